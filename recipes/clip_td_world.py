"""CLIP-TD on the rendered world, with controls that the paper does not have (docs/results/16_clip_td.md).

    groundling run recipes/clip_td_world.py --out runs/clip_td_world

Half of the VCR questions can be answered from their text (`data make-tasks --shortcut 0.5`), as many of the real ones can.
`im` is the validation split without the questions that a text-only model answers confidently. The teacher is a small
CLIP trained on the world's captions; it is not the regions' backbone. The teacher with redrawn attributes was trained on
the same captions, beside images with redrawn visual attributes; the untrained teacher has random weights. The students
are small and pre-trained on the captions.
"""

from groundling.recipes import Table, data, pretrain, row, settings

WORLD = "runs/td_world"
MADE = "groundling data make-tasks --shortcut 0.5 --out runs/td_world"
UNITER = f"{WORLD}/uniter/model"
VLBERT = f"{WORLD}/vlbert/model"
CLIP = f"{WORLD}/clip/model"
IMAGES = f"{WORLD}/images"
STORE = f"{WORLD}/store"

# -- data --

VCR = data("vcr", f"{WORLD}/vcr", available_from=MADE)
SNLI_VE = data("snli-ve", f"{WORLD}/snli_ve", available_from=MADE)
VQA = data("vqa", f"{WORLD}/vqa", available_from=MADE)


def partition(name, **values):
    """A part of a training set."""
    return data(name, f"{WORLD}/{name}.json", made_by=("data partition", values))


VCR_100 = partition("vcr-100", task="vcr/answer", data=VCR, per_stratum=100, stratify_by="total")
VCR_400 = partition("vcr-400", task="vcr/answer", data=VCR, per_stratum=400, stratify_by="total")
VE_300 = partition("ve-300", task="snli-ve", data=SNLI_VE, per_stratum=100)
VQA_400 = partition("vqa-400", task="vqa", data=VQA, per_stratum=400)
READER = dict(
    model=f"{WORLD}/bert", task="vcr/answer", data=VCR, lr=5e-4, epochs=5, batch=32, cpu=True
)
TEXT_ONLY = data("text-only", f"{WORLD}/text", made_by=("finetune", READER))
CONFIDENT = TEXT_ONLY / "seed-0/predictions_val.jsonl"
IM = data(
    "im",
    f"{WORLD}/im",
    made_by=("data shift", dict(data=VCR, protocol="im", predictions=CONFIDENT)),
)

# -- tasks --

TUNE = dict(
    seeds=5,
    regions=STORE,
    teacher_images=IMAGES,
    batch=32,
    lr=5e-4,
    max_length=64,
    cpu=True,
)
VCR_TUNE = settings(TUNE, task="vcr/answer", data=VCR, extra_eval=[IM.named("im")])
VCR_TASKS = {
    "VCR 100": settings(VCR_TUNE, partition=VCR_100, epochs=60),
    "VCR 400": settings(VCR_TUNE, partition=VCR_400, epochs=20),
    "VCR full": settings(VCR_TUNE, epochs=3),
}
OTHER_TASKS = {
    "VE 300": settings(TUNE, task="snli-ve", data=SNLI_VE, partition=VE_300, epochs=30),
    "VE full": settings(TUNE, task="snli-ve", data=SNLI_VE, epochs=4),
    "VQA 400": settings(TUNE, task="vqa", data=VQA, partition=VQA_400, epochs=30),
    "VQA full": settings(TUNE, task="vqa", data=VQA, epochs=4),
}
VCR_400_ONLY = {"VCR 400": VCR_TASKS["VCR 400"]}

# -- distillation --

SIGHTED = dict(teacher=CLIP)
REDRAWN = dict(teacher=f"{WORLD}/clip-redrawn/model")
UNTRAINED = dict(teacher=f"{WORLD}/clip-untrained/model")
NAIVE = dict(objectives=["td_image", "td_text"])
WORDS = dict(objectives=["td_image", "td_text", "td_words"])
GATE = dict(td_gate="question")
ALL = settings(WORDS, GATE)
SECOND = dict(
    architecture="uniter",
    model=UNITER,
    regions=STORE,
    task="vcr",
    task_answers="any",
    data=VCR,
    max_length=64,
    steps=1500,
    batch=64,
    lr=3e-4,
    mask_rate=0.3,
    cpu=True,
)
SECOND_STAGE = pretrain("second", SECOND)
ADAPTIVE = pretrain("adaptive", SECOND, SIGHTED, NAIVE, teacher_images=IMAGES)
ADAPTIVE_REDRAWN = pretrain("adaptive-redrawn", SECOND, REDRAWN, NAIVE, teacher_images=IMAGES)
STUDENT = {
    "UNITER": [],
    "naive VL": [SIGHTED, NAIVE],
    "all": [SIGHTED, ALL],
    "all, redrawn attributes": [REDRAWN, ALL],
}
PARTS = {
    "UNITER": [],
    "naive V": [SIGHTED, dict(objectives=["td_image"])],
    "naive L": [SIGHTED, dict(objectives=["td_text"])],
    "naive VL": [SIGHTED, NAIVE],
    "naive VL, redrawn attributes": [REDRAWN, NAIVE],
    "random words": [SIGHTED, WORDS, dict(word_selection="random")],
    "selected words": [SIGHTED, WORDS],
    "confidence": [SIGHTED, NAIVE, GATE],
    "all": [SIGHTED, ALL],
    "all, redrawn attributes": [REDRAWN, ALL],
    "all, untrained teacher": [UNTRAINED, ALL],
    "naive VL, weight 0.5": [SIGHTED, NAIVE, dict(td_weight=0.5)],
    "naive VL, weight 0.5, redrawn attributes": [REDRAWN, NAIVE, dict(td_weight=0.5)],
    "naive VL (S)": [SIGHTED, NAIVE, dict(unlabelled_per_labelled=1)],
    "all (S)": [SIGHTED, ALL, dict(unlabelled_per_labelled=1)],
}


def uniter_rows(rows, tasks):
    """UNITER with several kinds of distillation."""
    return [row(name, UNITER, tasks, *groups) for name, groups in rows.items()]


def adaptive():
    """A second stage without and with a teacher."""
    return Table(
        "adaptive",
        [
            row("second stage", SECOND_STAGE, VCR_400_ONLY),
            row("adaptive", ADAPTIVE, VCR_400_ONLY, SIGHTED, NAIVE),
            row("CLIP-TD", ADAPTIVE, VCR_400_ONLY, SIGHTED, ALL),
            row("CLIP-TD, redrawn attributes", ADAPTIVE_REDRAWN, VCR_400_ONLY, REDRAWN, ALL),
        ],
    )


def vlbert():
    """Another student."""
    return Table(
        "VL-BERT",
        [
            row("VL-BERT", VLBERT, VCR_400_ONLY),
            row("VL-BERT, naive VL", VLBERT, VCR_400_ONLY, SIGHTED, NAIVE),
            row("VL-BERT, all", VLBERT, VCR_400_ONLY, SIGHTED, ALL),
            row("VL-BERT, all, redrawn attributes", VLBERT, VCR_400_ONLY, REDRAWN, ALL),
        ],
    )


def adapters():
    """Adapters over a frozen CLIP."""
    rows = [row("UNITER", UNITER, VCR_400_ONLY)]
    for name, model, own in (
        ("CLIP, MLP 1", CLIP, dict(adapter="mlp")),
        ("CLIP, MLP 3", CLIP, dict(adapter="mlp", adapter_layers=3)),
        ("CLIP, attention", CLIP, dict(adapter="attention")),
        (
            "CLIP with redrawn attributes, MLP 3",
            REDRAWN["teacher"],
            dict(adapter="mlp", adapter_layers=3),
        ),
    ):
        rows.append(row(name, model, VCR_400_ONLY, own, regions="", lr=2e-3, epochs=60))
    return Table("adapters", rows)


TABLES = [
    Table("VCR", uniter_rows(STUDENT, VCR_TASKS)),
    Table("each part", uniter_rows(PARTS, VCR_400_ONLY)),
    adaptive(),
    vlbert(),
    adapters(),
    Table("SNLI-VE and VQA", uniter_rows(STUDENT, OTHER_TASKS)),
]
