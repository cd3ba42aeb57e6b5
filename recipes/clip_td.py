"""CLIP Targeted Distillation (Wang et al., 2022): Tables 1, 2, 3, 5, 6, 8, 10, 11.

    groundling run recipes/clip_td.py --plan
    groundling run recipes/clip_td.py --table "Table 2" --out runs/clip_td

No code was released. Section 9.2 gives one recipe per student, for all tasks, in units of the students' own code:
VL-BERT's learning rate is per sample; UNITER's and VILLA's batches are tokens per GPU, and times GPUs and accumulation
both give 80,000 per step. The paper's settings are kept even where they are odd: 30 epochs of 700 questions are 164
steps of VL-BERT, which end within its warm-up of 1,000. Where neither the paper nor the students' code gives a setting,
the choice is ours.

Every row starts from its student's large-scale pre-training. The rows of CLIP-TD and AF have adaptive finetuning first.
In their own code UNITER and VILLA have a second stage on VCR, which reads the right answers and rationales of all
training questions. Before a row of 700 or 7,000 questions this would reveal the answers of the others, so the second
stage precedes only full rows ("Second stage"). The paper does not say whether the printed baselines had it.

The paper does not say which weights are scored: here it is those of the last step (VL-BERT's code keeps the best epoch of
val, which has 38 times as many questions as the smallest partition).

The paper does not say how boxes are filtered. UNITER's and VILLA's code reads those above a confidence of .2, at least 10
and at most 100 (`regions --filter-imports`).

groundling.vision_language.single_stream converts the weights; UNITER's server has refused downloads since 2024.

docs/clip_td.md has what this file lacks: rows without training (`groundling zero-shot`), CLIP-ViL, ensembles, QA to R
(Table 7), and VQA's test server (Table 6): `finetune --submit --train-splits train val`.
"""

from uniter import SNLI_VE
from vlbert import COCO_IMAGES, VCR, VCR_IMAGES, VQA

from groundling.recipes import Table, data, paper, pretrain, row, settings, weights

PAPER = "CLIP Targeted Distillation (Wang et al., 2022)"

# -- weights --

VLBERT_SITE = "https://github.com/jackroos/VL-BERT"
UNITER_SITE = "https://github.com/ChenRocks/UNITER, scripts/download_pretrained.sh"
VILLA_SITE = "https://github.com/zhegan27/VILLA, scripts/download_pretrained.sh"
VLBERT_PIXELS = weights(
    "vlbert-pixels",
    "weights/vlbert-large-e2e",
    "VL-BERT-Large, end to end",
    f"{VLBERT_SITE}, vl-bert-large-e2e.model",
    kind="vlbert-pixels",
)
VLBERT = weights(
    "vlbert",
    "weights/vlbert-large-prec",
    "VL-BERT-Large, stored features",
    f"{VLBERT_SITE}, vl-bert-large-prec.model",
    kind="vlbert",
)
UNITER_BASE = weights(
    "uniter-base", "weights/uniter-base", "UNITER-base", UNITER_SITE, kind="uniter"
)
UNITER_LARGE = weights(
    "uniter-large", "weights/uniter-large", "UNITER-large", UNITER_SITE, kind="uniter"
)
VILLA = weights("villa", "weights/villa-large", "VILLA-large", VILLA_SITE, kind="uniter")
CLIP_32 = weights("clip-32", "openai/clip-vit-base-patch32", "ViT-B/32", kind="clip")
CLIP_16 = weights("clip-16", "openai/clip-vit-base-patch16", "ViT-B/16", kind="clip")
BERT = weights("bert", "bert-base-uncased", "BERT-base", kind="bert")
RESNET = weights("resnet", "microsoft/resnet-50", "ResNet-50", kind="resnet")

# -- data --

FLICKR_IMAGES = data(
    "flickr-images",
    "data/flickr30k/images",
    "Flickr30k's images",
    "https://shannon.cs.illinois.edu/DenotationGraph (a form)",
    kind="images",
)
WORDNET = data(
    "wordnet",
    "/usr/share/wordnet",
    "WordNet 3.0 or 3.1",
    "Debian's package wordnet-base, or https://wordnet.princeton.edu",
    kind="wordnet",
)


def partition(name, file, title, task, of, per_stratum, examples):
    """A part of a training set, which `data partition` draws."""
    maker = ("data partition", dict(task=task, data=of, per_stratum=per_stratum))
    return data(name, f"data/partitions/{file}.json", title, examples=examples, made_by=maker)


# fmt: off
VCR_700 = partition("vcr-700", "vcr-700", "100 questions of each category", "vcr/answer", VCR, 100, 700)
VCR_7000 = partition("vcr-7000", "vcr-7000", "1,000 questions of each category", "vcr/answer", VCR, 1000, 7000)
VE_3000 = partition("ve-3000", "snli-ve-3000", "1,000 of each class", "snli-ve", SNLI_VE, 1000, 3000)
VE_30000 = partition("ve-30000", "snli-ve-30000", "10,000 of each class", "snli-ve", SNLI_VE, 10000, 30000)
VQA_100 = partition("vqa-100", "vqa-100", "100 questions", "vqa", VQA, 100, 100)
VQA_1000 = partition("vqa-1000", "vqa-1000", "1,000 questions", "vqa", VQA, 1000, 1000)
# fmt: on
TEXT_ONLY = data(
    "text-only",
    "data/shift/text-only",
    "BERT that reads VCR's texts alone",
    made_by=("finetune", dict(model=BERT, task="vcr/answer", data=VCR, lr=2e-5, epochs=3)),
)


def shift(protocol, title, **values):
    """VCR's validation split under another condition, which `data shift` makes."""
    maker = ("data shift", dict(data=VCR, protocol=protocol, **values))
    return data(f"vcr-{protocol}", f"data/shift/{protocol}", title, made_by=maker)


VCR_SM = shift("sm", "VCR, shortcuts mitigated", legacy=True)
VCR_EM = shift("em", "VCR, explicit mitigation", wordnet=WORDNET)
VCR_IM = shift(
    "im",
    "VCR, implicit mitigation",
    predictions=TEXT_ONLY / "seed-0/predictions_val.jsonl",
)
VCR_BOXES = data(
    "vcr-boxes",
    "stores/vcr_boxes",
    "VCR's boxes with their segments",
    made_by=("regions", dict(images=VCR_IMAGES, boxes=[VCR / "vcr1images"], backbone=RESNET)),
)


def regions(name, path, of, available_from):
    """Bottom-up attention's features, which UNITER's authors released."""
    title = f"bottom-up attention's features of {of}"
    return data(name, path, title, available_from, kind="regions")


VCR_REGIONS = regions(
    "vcr-regions",
    "stores/vcr",
    "VCR's annotated and detected boxes",
    "UNITER's image databases of VCR (ChenRocks/UNITER, scripts/download_vcr.sh), both kinds as one store, the detected "
    "boxes filtered: docs/vision.md",
)
FLICKR_REGIONS = regions(
    "flickr-regions",
    "stores/flickr30k",
    "Flickr30k",
    "UNITER's image database of Flickr30k (ChenRocks/UNITER, scripts/download_ve.sh), imported by `groundling regions "
    "--imports ... --filter-imports`",
)
COCO_REGIONS = regions(
    "coco-regions",
    "stores/coco",
    "COCO",
    "UNITER's image databases of COCO (ChenRocks/UNITER, scripts/download_vqa.sh): `groundling regions --imports ... "
    "--ids-as 'COCO_{subset}_{number:012d}' --filter-imports`",
)


def after_second_stage(name, path, title, site, file):
    """Weights after the second stage of their own code, which reads VCR's answers."""
    title = f"{title} after its second stage on VCR"
    return weights(name, path, title, f"{site}: {file}", kind="uniter", trained_on=VCR)


# fmt: off
UNITER_BASE_VCR = after_second_stage("uniter-base-vcr", "weights/uniter-base-vcr", "UNITER-base", UNITER_SITE, "uniter-base-vcr_2nd_stage.pt")
UNITER_LARGE_VCR = after_second_stage("uniter-large-vcr", "weights/uniter-large-vcr", "UNITER-large", UNITER_SITE, "uniter-large-vcr_2nd_stage.pt")
VILLA_VCR = after_second_stage("villa-vcr", "weights/villa-large-vcr", "VILLA-large", VILLA_SITE, "villa-large-vcr-2nd-stage.pt")
# fmt: on

# -- students --

VLBERT_RECIPE = settings(
    paper(
        "Sec. 9.2",
        optimizer="SGD",
        lr=(
            "7.0e-5",
            8.96e-3,
            "VL-BERT's code has a rate per sample; times 8 GPUs, 4 images and 4 accumulation steps",
        ),
        epochs="30",
        milestones="14, 18, 26",
        milestone_factor="0.1",
        warmup_steps="1000",
        gradient_accumulation_steps=("4", 32, "one process does the work of 8 GPUs"),
    ),
    paper(
        "VL-BERT's code",
        momentum="0.9",
        weight_decay="1e-4",
        max_grad_norm="10",
        batch=("4", 128, "printed per GPU; times 8 GPUs and 4 accumulation steps"),
    ),
    schedule="steps",
    decay_bias_and_norm=True,
)
VLBERT_VCR = settings(
    paper(
        "VL-BERT's code",
        longest_edge="1200",
        max_length=("64", 67, "here the length includes the 3 special tokens"),
    ),
    images=VCR_IMAGES,
    regions=VCR_BOXES,
)
UNITER_RECIPE = settings(
    paper(
        "Sec. 9.2",
        optimizer="AdamW",
        lr="6e-05",
        steps="8000",
        warmup_steps="800",
        weight_decay="0.01",
        batch_tokens="4000",
        gradient_accumulation_steps=("5", 20, "one process does the work of 4 GPUs"),
    ),
    paper(
        "UNITER's code",
        schedule="linear",
        betas="0.9, 0.98",
        epsilon="1e-6",
        max_grad_norm="2",
    ),
)
UNITER_VCR = paper(
    "Sec. 9.2, UNITER's code",
    batch_tokens=(
        "4000, by question",
        4000,
        "the code counts a question as its four texts, 100 for its annotated boxes and the number of its other boxes, so "
        "about 14 questions fit; here a question counts as four rows, and 13 fit",
    ),
)
VILLA_RECIPE = settings(
    paper(
        "Sec. 9.2",
        optimizer="AdamW",
        lr="6e-05",
        steps="10000",
        warmup_steps="1000",
        weight_decay="0.01",
        batch_tokens="1250",
        gradient_accumulation_steps=("8", 64, "one process does the work of 8 GPUs"),
    ),
    paper(
        "VILLA's code",
        schedule="linear",
        betas="0.9, 0.98",
        epsilon="1e-6",
        max_grad_norm="2",
    ),
    training_step="villa",
)
VILLA_VCR_RECIPE = settings(
    paper(
        "Sec. 9.2, VILLA's code",
        batch_tokens=(
            "1250, by question",
            1250,
            "by the code's count its minimum of eight questions does not fit; here a question counts as four rows",
        ),
    ),
    paper(
        "VILLA's code",
        adversarial_modality="both",
        adversarial_lr="1e-1",
        adversarial_kl_weight="1.0",
        adversarial_kl_reduction="mean",
    ),
)
VILLA_VE = paper(
    "VILLA's code",
    adversarial_modality="text",
    adversarial_lr="1e-3",
    adversarial_kl_weight="1.5",
)
VILLA_VQA = paper(
    "VILLA's code",
    adversarial_modality="text",
    adversarial_lr="2e-3",
    adversarial_kl_weight="1.0",
)
UNITER_TEXT = paper(
    "UNITER's and VILLA's code",
    max_length=("60", 62, "here the length includes the 2 special tokens"),
)
UNITER_VQA = paper("UNITER's and VILLA's code", head_lr="10.0")
VCR_FEATURES = settings(
    paper(
        "UNITER's code",
        max_regions="100",
        max_length=(
            "220, of four choices",
            220,
            "the code counts all four choices, and skips a question with more; here the limit is for one text, special "
            "tokens included",
        ),
    ),
    regions=VCR_REGIONS,
)
VLBERT_ON_VCR = settings(VLBERT_RECIPE, VLBERT_VCR)
UNITER_ON_VCR = settings(UNITER_RECIPE, UNITER_VCR, VCR_FEATURES)
VILLA_ON_VCR = settings(VILLA_RECIPE, VILLA_VCR_RECIPE, VCR_FEATURES)

# -- distillation --

NAIVE = settings(
    paper("Eq. 2", objectives="td_image, td_text"), paper("Sec. 10.1", td_weight="0.05")
)
SELECTED = settings(
    paper("Eq. 8", objectives="td_image, td_text, td_words"),
    paper("Sec. 10.1", td_weight="0.05"),
    paper("Sec. 9.2", num_words="2"),
)
GATED = settings(paper("Sec. 9.2", td_choices="all"), td_gate="question", td_temperature=1.0)
CLIP_TD = settings(SELECTED, GATED)
VCR_32 = settings(paper("Table 1", teacher=CLIP_32), teacher_images=VCR_IMAGES)
VCR_16 = settings(paper("Table 1", teacher=CLIP_16), teacher_images=VCR_IMAGES)
VE_16 = settings(paper("Table 5", teacher=CLIP_16), teacher_images=FLICKR_IMAGES)
VQA_16 = settings(paper("Table 6", teacher=CLIP_16), teacher_images=COCO_IMAGES)

# -- adaptive finetuning: the student's pre-training and naive distillation on the task's data (Eq. 11) --
#
# The paper says "the same set of pretraining tasks" as UNITER, and gives neither steps nor learning rate; these are those
# of UNITER's second stage on VCR. The paper trains on the full training set before the low-shot rows too. Here a question
# comes with any of its answers, not the right one, so that no label leaks into these rows.

ADAPTIVE = paper(
    "UNITER's code",
    steps="45000",
    warmup_steps="4500",
    lr="3e-5",
    betas="0.9, 0.98",
    epsilon="1e-6",
    max_grad_norm="0",
    batch_tokens="6144",
    gradient_accumulation_steps=("4", 16, "one process does the work of 4 GPUs"),
    task_answers=(
        "right",
        "any",
        "otherwise labels of the whole training set would leak into low-shot rows",
    ),
)
ADAPTIVE_VCR = paper(
    "UNITER's code",
    batch_tokens=(
        "6144",
        2048,
        "the code counts four choices and 100 for annotated boxes, so about 20 texts fit; this number of texts has 2,048 "
        "tokens and regions of its own",
    ),
)
LARGE_MIX = paper("UNITER's code, large", step_mix="10, 1, 1")


def on_vcr(name, model, *groups):
    """Adaptive finetuning on VCR."""
    own = [ADAPTIVE, ADAPTIVE_VCR, *groups]
    return pretrain(f"VCR, {name}", *own, task="vcr/answer", data=VCR, model=model)


def on_ve(name, model, *groups):
    """Adaptive finetuning on SNLI-VE."""
    own = [ADAPTIVE, *groups, NAIVE, VE_16]
    return pretrain(
        f"VE, {name}", *own, task="snli-ve", data=SNLI_VE, model=model, regions=FLICKR_REGIONS
    )


def on_vqa(name, model, *groups):
    """Adaptive finetuning on VQA."""
    own = [ADAPTIVE, *groups, NAIVE, VQA_16]
    return pretrain(f"VQA, {name}", *own, task="vqa", data=VQA, model=model, regions=COCO_REGIONS)


AF_VLBERT_32 = on_vcr("VL-BERT, 32", VLBERT_PIXELS, VLBERT_VCR, NAIVE, VCR_32)
AF_VLBERT_16 = on_vcr("VL-BERT, 16", VLBERT_PIXELS, VLBERT_VCR, NAIVE, VCR_16)
SECOND_STAGE = on_vcr("VL-BERT, no teacher", VLBERT_PIXELS, VLBERT_VCR)
AF_UNITER_32 = on_vcr("UNITER-B, 32", UNITER_BASE, VCR_FEATURES, NAIVE, VCR_32)
AF_UNITER_16 = on_vcr("UNITER-B, 16", UNITER_BASE, VCR_FEATURES, NAIVE, VCR_16)
AF_UNITER_LARGE = on_vcr("UNITER-L", UNITER_LARGE, VCR_FEATURES, NAIVE, VCR_16, LARGE_MIX)
AF_VILLA = on_vcr("VILLA", VILLA, VCR_FEATURES, NAIVE, VCR_16, LARGE_MIX)

# -- tasks --

SHIFTED = [VCR_SM.named("SM"), VCR_EM.named("EM"), VCR_IM.named("IM")]
VCR_FULL = dict(task="vcr/answer", data=VCR, extra_eval=SHIFTED, seeds=1)
VE_FULL = dict(task="snli-ve", data=SNLI_VE, regions=FLICKR_REGIONS, seeds=1)
VQA_FULL = dict(task="vqa", data=VQA, regions=COCO_REGIONS, seeds=1)
VCR_TASKS = {
    "VCR 700": settings(VCR_FULL, partition=VCR_700),
    "VCR 7000": settings(VCR_FULL, partition=VCR_7000),
    "VCR full": VCR_FULL,
}
LOW_SHOT = {name: VCR_TASKS[name] for name in ("VCR 700", "VCR 7000")}
FULL = {"VCR full": VCR_FULL}
VE_TASKS = {
    "VE 3000": settings(VE_FULL, partition=VE_3000),
    "VE 30000": settings(VE_FULL, partition=VE_30000),
    "VE full": VE_FULL,
}
VQA_TASKS = {
    "VQA 100": settings(VQA_FULL, partition=VQA_100),
    "VQA 1000": settings(VQA_FULL, partition=VQA_1000),
    "VQA full": VQA_FULL,
}

# -- rows on VCR: settings, and the paper's scores --
#
# Standard: 700, 7,000 and all questions; then the same under SM; EM and IM are Table 10's.

COLUMNS = ("VCR 700", "VCR 7000", "VCR full", "VCR 700 (SM)", "VCR 7000 (SM)", "VCR full (SM)")
MITIGATED = {
    name: {"VCR full (EM)": em, "VCR full (IM)": im}
    for name, em, im in (
        ("VL-BERT", 68.23, 70.64),
        ("VL-BERT, CLIP-TD 16", 73.53, 73.67),
        ("UNITER-B", 69.42, 69.93),
        ("UNITER-B, CLIP-TD 16", 71.02, 71.35),
    )
}
RANDOM_WORDS = paper("Table 2", word_selection="random")
IMAGE_ONLY = paper("Eq. 3", objectives="td_image")
TEXT_TERM_ONLY = paper("Eq. 4", objectives="td_text")
RIGHT_ANSWER = paper("Table 8", td_choices="right")
# (S): for each question of the partition, one of the other questions without its label; the paper does not say how many.
UNLABELLED = dict(unlabelled_per_labelled=1)
WEIGHTS = {weight: paper("Table 8", td_weight=weight) for weight in ("1.0", "0.5", "0.1", "0.01")}
WORDS = {number: paper("Table 8", num_words=number) for number in ("1", "3")}

VLBERT_NAIVE = settings(VLBERT_ON_VCR, NAIVE, VCR_32)
VLBERT_SELECTED = settings(VLBERT_ON_VCR, SELECTED, VCR_32)
VLBERT_GATED = settings(VLBERT_ON_VCR, NAIVE, GATED, VCR_32)
VLBERT_32 = settings(VLBERT_ON_VCR, CLIP_TD, VCR_32)
VLBERT_16 = settings(VLBERT_ON_VCR, CLIP_TD, VCR_16)
UNITER_16 = settings(UNITER_ON_VCR, CLIP_TD, VCR_16)
# fmt: off
VCR_ROWS = {
    # row: start, settings, scores in the order of COLUMNS
    "VL-BERT": (VLBERT_PIXELS, [VLBERT_ON_VCR], (30.85, 57.59, 76.02, 26.42, 54.53, 72.21)),
    "VL-BERT, naive V": (VLBERT_PIXELS, [VLBERT_NAIVE, IMAGE_ONLY], (40.13, 55.23, 76.28, 41.16, 53.56, 72.24)),
    "VL-BERT, naive L": (VLBERT_PIXELS, [VLBERT_NAIVE, TEXT_TERM_ONLY], (44.07, 57.86, 76.57, 41.97, 55.03, 72.67)),
    "VL-BERT, naive VL": (VLBERT_PIXELS, [VLBERT_NAIVE], (45.18, 58.91, 76.74, 42.99, 55.66, 73.5)),
    "VL-BERT, naive VL, weight 1.0": (VLBERT_PIXELS, [VLBERT_NAIVE, WEIGHTS["1.0"]], (35.39, 58.57, 76.4, 32.2, 55.05, 72.65)),
    "VL-BERT, naive VL, weight 0.5": (VLBERT_PIXELS, [VLBERT_NAIVE, WEIGHTS["0.5"]], (37.2, 58.96, 76.42, 35.31, 55.17, 73.1)),
    "VL-BERT, naive VL, weight 0.1": (VLBERT_PIXELS, [VLBERT_NAIVE, WEIGHTS["0.1"]], (40.47, 58.72, 76.62, 37.64, 55.32, 73.2)),
    "VL-BERT, naive VL, weight 0.01": (VLBERT_PIXELS, [VLBERT_NAIVE, WEIGHTS["0.01"]], (42.31, 58.65, 76.23, 41.34, 55.23, 73.03)),
    "VL-BERT, RTS": (VLBERT_PIXELS, [VLBERT_SELECTED, RANDOM_WORDS], (40.21, 57.24, 75.34, 42.02, 55.43, 77.23)),
    "VL-BERT, TS": (VLBERT_PIXELS, [VLBERT_SELECTED], (46.28, 59.68, 77.08, 45.06, 55.98, 74.24)),
    "VL-BERT, TS, 1 word": (VLBERT_PIXELS, [VLBERT_SELECTED, WORDS["1"]], (45.24, 58.88, 76.71, 43.12, 55.4, 73.51)),
    "VL-BERT, TS, 3 words": (VLBERT_PIXELS, [VLBERT_SELECTED, WORDS["3"]], (45.84, 59.07, 76.87, 44.22, 55.49, 73.73)),
    "VL-BERT, CW": (VLBERT_PIXELS, [VLBERT_GATED], (46.54, 58.93, 76.84, 45.17, 55.76, 74.23)),
    "VL-BERT, CW, right answer": (VLBERT_PIXELS, [VLBERT_GATED, RIGHT_ANSWER], (46.14, 58.27, 76.66, 44.83, 55.64, 73.79)),
    "VL-BERT, second stage": (SECOND_STAGE, [VLBERT_ON_VCR], (38.32, 58.13, 76.38, 36.42, 55.07, 72.87)),
    "VL-BERT, AF": (AF_VLBERT_32, [VLBERT_NAIVE], (46.02, 59.23, 76.93, 45.26, 55.87, 74.54)),
    "VL-BERT, CLIP-TD 32": (AF_VLBERT_32, [VLBERT_32], (46.74, 59.98, 77.24, 45.25, 55.86, 74.37)),
    "VL-BERT, CLIP-TD 16": (AF_VLBERT_16, [VLBERT_16], (46.87, 59.84, 77.61, 45.27, 55.88, 74.55)),
    "UNITER-B": (UNITER_BASE, [UNITER_ON_VCR], (31.31, 57.02, 74.23, 27.84, 52.32, 71.31)),
    "UNITER-B, naive VL": (UNITER_BASE, [UNITER_ON_VCR, NAIVE, VCR_32], (39.32, 57.23, 75.21, 40.23, 54.24, 72.12)),
    "UNITER-B, CLIP-TD 32": (AF_UNITER_32, [UNITER_ON_VCR, CLIP_TD, VCR_32], (45.58, 58.42, 76.35, 44.65, 54.95, 73.79)),
    "UNITER-L": (UNITER_LARGE, [UNITER_ON_VCR], (31.43, 58.24, 76.67, 28.43, 53.64, 73.84)),
    "UNITER-L, CLIP-TD 16": (AF_UNITER_LARGE, [UNITER_16], (46.23, 59.47, 77.05, 44.83, 54.93, 74.23)),
    "VILLA": (VILLA, [VILLA_ON_VCR], (34.84, 59.13, 78.27, 29.41, 54.15, 75.43)),
    "VILLA, CLIP-TD 16": (AF_VILLA, [VILLA_ON_VCR, CLIP_TD, VCR_16], (46.95, 60.13, 78.86, 44.97, 55.22, 76.01)),
}
# fmt: on


def vcr_table(table, *names):
    """Rows on 700, 7,000 and all questions."""
    rows = []
    for name in names:
        model, groups, scores = VCR_ROWS[name]
        printed = dict(zip(COLUMNS, scores, strict=True)) | MITIGATED.get(name, {})
        rows.append(row(name, model, VCR_TASKS, *groups, scores=printed))
    return Table(table, rows)


def table_1():
    """Students with naive distillation and with CLIP-TD."""
    return vcr_table(
        "Table 1",
        *("VL-BERT", "VL-BERT, naive VL", "VL-BERT, CLIP-TD 32", "VL-BERT, CLIP-TD 16"),
        *("UNITER-B", "UNITER-B, naive VL", "UNITER-B, CLIP-TD 32"),
        *("UNITER-L", "UNITER-L, CLIP-TD 16", "VILLA", "VILLA, CLIP-TD 16"),
    )


def table_2():
    """The parts of CLIP-TD one by one."""
    parts = ("naive V", "naive L", "naive VL", "RTS", "TS", "CW", "AF", "CLIP-TD 32")
    return vcr_table("Table 2", "VL-BERT", *(f"VL-BERT, {part}" for part in parts))


def table_3():
    """With unlabelled questions."""
    rows = []
    for name, model, groups, scores in (
        ("CLIP-TD 32", AF_VLBERT_32, [VLBERT_32], (46.74, 59.98, 45.25, 55.86)),
        (
            "naive VL (S)",
            VLBERT_PIXELS,
            [VLBERT_NAIVE, UNLABELLED],
            (51.32, 60.21, 48.24, 57.53),
        ),
        ("CLIP-TD 32 (S)", AF_VLBERT_32, [VLBERT_32, UNLABELLED], (51.93, 61.05, 48.33, 58.07)),
        ("CLIP-TD 16 (S)", AF_VLBERT_16, [VLBERT_16, UNLABELLED], (52.43, 61.33, 48.71, 58.82)),
    ):
        columns = ("VCR 700", "VCR 7000", "VCR 700 (SM)", "VCR 7000 (SM)")
        printed = dict(zip(columns, scores, strict=True))
        rows.append(row(f"VL-BERT, {name}", model, LOW_SHOT, *groups, scores=printed))
    return Table("Table 3", rows)


def three_rows(name, tasks, columns, teacher, student, scores):
    """The rows of a student: without distillation, with the naive one (where the paper has it), and with CLIP-TD."""
    start, adapted, groups = student
    without, naive, with_clip = scores
    named = [
        (name, start, [], without),
        (f"{name}, naive VL", start, [NAIVE, teacher], naive),
        (f"{name}, CLIP-TD", adapted, [CLIP_TD, teacher], with_clip),
    ]
    rows = []
    for title, model, more, printed in named:
        if printed:
            shown = dict(zip(columns, printed, strict=True))
            rows.append(row(title, model, tasks, *groups, *more, scores=shown))
    return rows


# fmt: off
VE_SCORES = {
    # student: without, naive, CLIP-TD; on 3,000, 30,000 and all examples, and on the test split
    "VL-BERT": ((53.28, 62.31, 74.66, 74.02), (56.02, 64.92, 75.08, 74.93), (56.78, 65.37, 75.75, 75.43)),
    "UNITER-B": ((57.13, 65.52, 78.53, 77.82), (58.24, 66.01, 78.95, 78.67), (58.27, 66.16, 78.96, 78.83)),
    "UNITER-L": ((58.36, 66.23, 79.02, 79.19), (58.95, 67.74, 80.08, 80.16), (59.42, 68.34, 80.14, 80.23)),
    "VILLA": ((58.47, 67.16, 79.64, 79.32), (), (59.65, 68.43, 80.67, 80.31)),
}
VQA_SCORES = {
    # student: without, naive, CLIP-TD; on 100, 1,000 and all questions
    "VL-BERT": ((35.33, 63.29, 69.05), (36.83, 64.43, 70.22), (37.12, 65.71, 71.42)),
    "UNITER-L": ((36.46, 64.43, 71.26), (38.95, 65.17, 71.56), (39.75, 65.93, 71.94)),
    "VILLA": ((37.18, 65.75, 72.11), (), (40.16, 66.93, 73.02)),
}
# fmt: on


def table_5():
    """SNLI-VE."""
    rows = []
    for name, start, texts, groups in (
        ("VL-BERT", VLBERT, {}, [VLBERT_RECIPE]),
        ("UNITER-B", UNITER_BASE, UNITER_TEXT, [UNITER_RECIPE]),
        ("UNITER-L", UNITER_LARGE, UNITER_TEXT, [UNITER_RECIPE]),
        ("VILLA", VILLA, UNITER_TEXT, [VILLA_RECIPE, VILLA_VE]),
    ):
        student = (start, on_ve(name, start, texts), [*groups, texts])
        columns = (*VE_TASKS, "VE full (test)")
        rows += three_rows(f"VE, {name}", VE_TASKS, columns, VE_16, student, VE_SCORES[name])
    return Table("Table 5", rows)


def table_6():
    """VQA."""
    rows = []
    for name, start, texts, groups in (
        ("VL-BERT", VLBERT, {}, [VLBERT_RECIPE]),
        ("UNITER-L", UNITER_LARGE, UNITER_TEXT, [UNITER_RECIPE, UNITER_VQA]),
        ("VILLA", VILLA, UNITER_TEXT, [VILLA_RECIPE, VILLA_VQA, UNITER_VQA]),
    ):
        student = (start, on_vqa(name, start, texts), [*groups, texts])
        rows += three_rows(f"VQA, {name}", VQA_TASKS, VQA_TASKS, VQA_16, student, VQA_SCORES[name])
    return Table("Table 6", rows)


def table_8():
    """Weights, numbers of words, gates and first stages."""
    return vcr_table(
        "Table 8",
        "VL-BERT",
        *(f"VL-BERT, naive VL, weight {weight}" for weight in ("1.0", "0.5", "0.1")),
        *("VL-BERT, naive VL", "VL-BERT, naive VL, weight 0.01", "VL-BERT, RTS"),
        *("VL-BERT, TS, 1 word", "VL-BERT, TS", "VL-BERT, TS, 3 words"),
        *("VL-BERT, CW, right answer", "VL-BERT, CW"),
        *("VL-BERT, second stage", "VL-BERT, AF", "VL-BERT, CLIP-TD 32"),
    )


def table_10():
    """Three other conditions, on all questions."""
    rows = []
    for name, model, groups, *scores in (
        ("VL-BERT", VLBERT_PIXELS, [VLBERT_ON_VCR], 76.02, 72.21),
        ("VL-BERT, CLIP-TD 16", AF_VLBERT_16, [VLBERT_16], 77.61, 74.55),
        ("UNITER-B", UNITER_BASE, [UNITER_ON_VCR], 74.23, 71.31),
        ("UNITER-B, CLIP-TD 16", AF_UNITER_16, [UNITER_16], 76.35, 73.79),
    ):
        printed = dict(zip(("VCR full", "VCR full (SM)"), scores, strict=True)) | MITIGATED[name]
        rows.append(row(name, model, FULL, *groups, scores=printed))
    return Table("Table 10", rows)


def mlp(layers, fusion):
    """An adapter of Table 11."""
    return paper("Table 11", adapter="MLP", adapter_layers=layers, fusion=fusion)


ADAPTERS = {
    "MLP 1, concat": mlp("1", "concat"),
    "MLP 1, cosine": mlp("1", "cosine"),
    "MLP 3, concat": mlp("3", "concat"),
    "MLP 3, cosine": mlp("3", "cosine"),
    "attention": paper("Table 11", adapter="Attention"),
}


def table_11():
    """Adapters over a frozen CLIP; the paper gives no settings for them."""
    scores = {
        "MLP 1, concat": (30.13, 30.39, 31.86, 28.1, 27.43, 29.31),
        "MLP 1, cosine": (28.64, 29.31, 30.42, 27.32, 27.04, 29.03),
        "MLP 3, concat": (30.43, 30.86, 32.31, 28.73, 28.32, 29.94),
        "MLP 3, cosine": (29.65, 30.23, 30.84, 28.85, 28.08, 29.64),
        "attention": (34.41, 35.34, 36.42, 33.35, 34.02, 35.48),
    }
    rows = []
    for name, adapter in ADAPTERS.items():
        printed = dict(zip(COLUMNS, scores[name], strict=True))
        own = settings(adapter, teacher_images=VCR_IMAGES)
        rows.append(row(f"CLIP, {name}", CLIP_32, VCR_TASKS, own, scores=printed))
    return Table("Table 11", rows)


def second_stage():
    """After the second stage of their own code; only for the full training set."""
    scores = {"VCR full": 74.23, "VCR full (SM)": 71.31, **MITIGATED["UNITER-B"]}
    return Table(
        "Second stage",
        [
            row("UNITER-B", UNITER_BASE, FULL, UNITER_ON_VCR, scores=scores),
            row("UNITER-B, second stage", UNITER_BASE_VCR, FULL, UNITER_ON_VCR),
            row("UNITER-L, second stage", UNITER_LARGE_VCR, FULL, UNITER_ON_VCR),
            row("VILLA, second stage", VILLA_VCR, FULL, VILLA_ON_VCR),
        ],
    )


TABLES = [
    table_1(),
    table_2(),
    table_3(),
    table_5(),
    table_6(),
    table_8(),
    table_10(),
    table_11(),
    second_stage(),
]
