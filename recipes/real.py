"""The main comparison on real text: control, XDBERT, contrastive distillation, and the teacher by itself.

    groundling run recipes/real.py --processes 2 --out runs/real

The working folder needs glue/ and clear/ (official files), minilm/ (any text encoder), runs/teacher/model
(docs/results/02_real_text.md, has the command), and the texts named below. XDBERT reads blocks of 512 tokens, as in its
paper; eight of them have more text than the 32 lines of the others.
"""

from groundling.recipes import Table, adapt, row, settings

TEACHER = "runs/teacher/model"
ADAPT = dict(
    student="minilm",
    teacher=TEACHER,
    text=["flickr8k/Flickr8k.token.txt", "captions_val2017.json", "wiki.test.raw"],
    max_length=64,
    pooling="cls",
    steps=400,
    batch=32,
    lr=1e-4,
    freeze_encoder_steps=80,
    head_lr=1.0,
    precision="bf16",
    cpu=True,
)
BLOCKS = dict(text_layout="blocks", max_length=512, batch=8, save_joint=True)
TUNE = dict(seeds=3, epochs=2, precision="bf16", cpu=True)
TASKS = {
    "glue/rte": settings(TUNE, data="glue"),
    "glue/cola": settings(TUNE, data="glue", max_length=64, limit_train=5000),
    "readability": settings(TUNE, data="clear", max_length=128, limit_train=700),
}
CONTROL = adapt("MLM only", ADAPT, arm="mlm")
XDBERT = adapt("XDBERT", ADAPT, BLOCKS, arm="xdbert")
CONTRASTIVE = adapt("contrastive", ADAPT, arm="contrastive")
TABLES = [
    Table(
        "",
        [
            row("MLM only", CONTROL, TASKS, published="BERT-b"),
            row("XDBERT", XDBERT, TASKS, published="XDBERT-b"),
            row("contrastive", CONTRASTIVE, TASKS),
            row("CLIP-T", TEACHER, TASKS, published="CLIP-T"),
        ],
    )
]
