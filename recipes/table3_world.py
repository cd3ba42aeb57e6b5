"""XDBERT's Table 3 (ablations) on the rendered world of `groundling quickstart --full --out runs/quickstart`, beside the
control and the contrastive arm. Every seed adapts and evaluates its own encoder.

    groundling run recipes/table3_world.py --out runs/table3

XDBERT reads blocks, as in its paper: of exactly 32 tokens, this encoder's maximum (512 in the paper), in at most 9 of the
teacher's windows. Sixteen blocks have as much text as the control's 64 lines. In lines, length alone reveals MATCH.
"""

from groundling.recipes import Row, Table, slug, step

SEEDS = 5
QUICKSTART = "runs/quickstart"
WORLD = f"{QUICKSTART}/world"
ADAPT = dict(
    student=f"{QUICKSTART}/encoder/model",
    teacher=f"{QUICKSTART}/teacher/model",
    text=[f"{WORLD}/corpus/train.txt"],
    max_length=32,
    steps=300,
    batch=64,
    lr=2e-3,
    freeze_encoder_ratio=0.0,
    head_lr=1.0,
    cpu=True,
)
TUNE = dict(freeze_word_embeddings=True, max_length=32, steps=250, lr=5e-4, cpu=True, data=WORLD)
TASKS = ("world/truth", "world/odd", "world/category")
BLOCKS = dict(text_layout="blocks", batch=16)
LINES = dict(text_layout="lines")
ARMS = {
    "MLM only, no teacher": dict(arm="mlm"),
    "MLM": dict(arm="joint_mlm", **BLOCKS),
    "MLM+MATCH": dict(arm="joint_mlm+match", **BLOCKS, save_joint=True),
    "MLM+MATCH+CLIPTC": dict(arm="xdbert", **BLOCKS, save_joint=True),
    "1 cross layer": dict(arm="xdbert", **BLOCKS, cross_layers=1),
    "2x steps": dict(arm="xdbert", **BLOCKS, steps=600),
    "other corpus": dict(arm="xdbert", **BLOCKS, text=[f"{WORLD}/captions_train.json"]),
    "contrastive": dict(arm="contrastive"),
    "lines, as XDBERT does not": dict(arm="xdbert", **LINES),
    "lines of like lengths": dict(arm="xdbert", **LINES, match_negatives="length"),
    "MLM+MATCH+CLIPTC, contrastive": dict(arm="xdbert+contrastive", **LINES),
}
WHOLE = "MLM+MATCH+CLIPTC"


def adapted(name, seed):
    """An arm's encoder of one seed."""
    place = f"{slug(name)}/seed-{seed}"
    own = ARMS[name]
    return step("adapt", ADAPT, own, name=f"{place}: adapt", out=f"{place}/adapt", seed=seed)


def tuned(name, models):
    """A row: each seed's own encoder on every task."""
    steps = []
    for task in TASKS:
        for seed, model in enumerate(models):
            place = f"{slug(name)}/seed-{seed}"
            own = dict(task=task, model=model, seed=seed, seeds=1)
            out = f"{place}/{slug(task)}"
            steps.append(step("finetune", TUNE, own, name=f"{place}: {task}", out=out))
    return Row(name, tuple(steps))


MODELS = {name: [adapted(name, seed) for seed in range(SEEDS)] for name in ARMS}
ROWS = [tuned(name, models) for name, models in MODELS.items()]
ROWS.append(tuned(f"{WHOLE}, whole model", [model / "joint" for model in MODELS[WHOLE]]))
TABLES = [Table("", ROWS)]
