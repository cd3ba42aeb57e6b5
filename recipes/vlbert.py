"""VL-BERT (Su et al., ICLR 2020), in two sections. The first has Tables 2 to 4 of the paper's first version, with the
settings printed there. The second has the released code, which is that of the final version: "Code: ..." rows on
"Code: ..." tasks, with the settings of jackroos/VL-BERT, cfgs/. A row is a fine-tuning; its pre-training precedes it.

    groundling run recipes/vlbert.py --plan
    groundling run recipes/vlbert.py --table "Table 2" --out runs/vlbert

The learning rates in the code's files are per sample; times GPUs, batch and accumulation they are those of a step. As in
the code, VCR and RefCOCO+ are trained from pixels and VQA from stored features. VQA is scored here on val, and the paper
prints scores on test-dev. For the server, train on both splits with `finetune --train-splits train val --submit`. Q to AR
of VCR is `groundling vcr --answers ... --rationales ...` on the two runs of a row (save their models with `save_model`).

The code scores val after each epoch and keeps the best weights; the paper does not say which it scores. Here all rows keep
the best of val, whose score then has selection bias.

The paper keeps the detector's boxes above a score of .5, at least 10 and at most 100 (Sec. 4.1); `regions
--filter-imports --score-threshold 0.5` does so where the files have scores. The code filters no boxes: it reads files as
they were made.

The detector's ResNet is ours: an ImageNet ResNet-101, because bottom-up attention's weights do not exist in a format
that is safe to read.
"""

from uniter import CC, REFCOCO

from groundling.recipes import Table, data, paper, pretrain, row, settings, weights

PAPER = "VL-BERT (Su et al., ICLR 2020)"

# -- weights and data --

BERT = weights("bert", "bert-base-uncased", "BERT-base", kind="bert")
BERT_LARGE = weights("bert-large", "bert-large-uncased", "BERT-large", kind="bert")
RESNET = weights("resnet", "microsoft/resnet-101", "ResNet-101", kind="resnet")


def boxes(name, path, title, images, *files):
    """A store of boxes, which `regions` makes with the ResNet."""
    maker = dict(images=images, boxes=list(files), backbone=RESNET)
    return data(name, path, title, made_by=("regions", maker))


VCR = data(
    "vcr",
    "data/vcr",
    "VCR",
    "https://visualcommonsense.com/download: vcr1annots.zip, and vcr1images.zip into the same folder",
    kind="vcr",
    examples=212923,
)
VCR_IMAGES = data(
    "vcr-images",
    "data/vcr/vcr1images",
    "VCR's images",
    "https://visualcommonsense.com/download: vcr1images.zip",
    kind="images",
)
VCR_BOXES = boxes(
    "vcr-boxes", "stores/vlbert/vcr_boxes", "VCR's annotated boxes", VCR_IMAGES, VCR / "vcr1images"
)
VQA = data(
    "vqa",
    "data/vqa",
    "VQA v2",
    "https://visualqa.org/download.html: questions and annotations of train2014 and val2014; a list of the 3,129 answers",
    kind="vqa",
    examples=443757,
)
COCO_REGIONS = data(
    "coco-regions",
    "stores/vlbert/coco",
    "bottom-up attention's features of COCO",
    "jackroos/VL-BERT, data/PREPARE_DATA.md: trainval2014_resnet101_faster_rcnn_genome.zip, unpacked and imported by `groundling "
    "regions --imports ... --ids-as captions_train2014.json captions_val2014.json`",
    kind="regions",
)
COCO_IMAGES = data(
    "coco-images",
    "data/coco/images",
    "COCO's images of 2014",
    "https://cocodataset.org/#download: train2014 and val2014 in one folder",
    kind="images",
)
DETECTIONS = data(
    "detections",
    "data/refcoco+/res101_coco_minus_refer_notime_dets.json",
    "MAttNet's detections",
    "https://github.com/lichengunc/MAttNet, detections/refcoco+_unc: res101_coco_minus_refer_notime_dets.json",
    kind="detections",
)
ANNOTATIONS = REFCOCO / "instances.json"
TRUTH = boxes("truth", "stores/vlbert/refcoco_truth", "annotated boxes", COCO_IMAGES, ANNOTATIONS)
FOUND = boxes("found", "stores/vlbert/refcoco_found", "detected boxes", COCO_IMAGES, DETECTIONS)
TRUTH_AND_FOUND = boxes(
    "both",
    "stores/vlbert/refcoco_both",
    "annotated and detected boxes",
    COCO_IMAGES,
    ANNOTATIONS,
    DETECTIONS,
)
CC_IMAGES = data(
    "cc-images",
    "data/cc/images",
    "Conceptual Captions' images",
    "the addresses in its tsv; missing images are skipped and counted",
    kind="images",
)
CC_REGIONS = data(
    "cc-regions",
    "stores/vlbert/cc",
    "bottom-up attention's features of Conceptual Captions",
    "jackroos/VL-BERT, data/PREPARE_DATA.md: json of its detector, imported by `groundling regions --imports ... "
    "--filter-imports --score-threshold 0.5`",
    kind="regions",
)
CORPORA = "jackroos/VL-BERT, data/PREPARE_DATA.md"
BOOKS = data("books", "data/bc1g.doc", "BooksCorpus", f"{CORPORA}: bc1g.doc", kind="text")
WIKIPEDIA = data("wikipedia", "data/wiki.doc", "Wikipedia", f"{CORPORA}: wiki.doc", kind="text")

DECOUPLED = "with decoupled weight decay, as in the code"
LOSS_NAME = "the name of this loss here"


def per_sample(printed, samples, value):
    """A learning rate of the code's files, and that of a step."""
    return printed, value, f"printed per sample; times the {samples} samples of a step"


# -- pre-training, first version --

WORDS_AND_PICTURES = settings(
    paper(
        "Sec. 4.1",
        captions=[CC],
        max_regions="100",
        epochs="10",
        batch="256",
        weight_decay="1e-4",
        schedule="linear",
    ),
    architecture="vlbert",
    skip_missing=True,
    regions=CC_REGIONS,
)
THREE_TASKS = settings(
    paper("Sec. 3.3, Task 1", related="yes"),
    paper("Sec. 3.3, Task 2", mask_rate="15 %"),
    paper("Sec. 3.3, Task 3", region_classes="hard"),
    paper(
        "Sec. 4.1",
        optimizer=("Adam", "adamw", DECOUPLED),
        lr="1e-4",
        betas="0.9, 0.999",
        warmup_steps="8,000",
    ),
)
WITH_PIXELS = dict(images=CC_IMAGES, backbone=RESNET)
RESNET_101 = paper("Sec. 4.1", backbone=RESNET)
FIRST = [WORDS_AND_PICTURES, THREE_TASKS]

# -- pre-training, released code --

CODE_OPTIMIZER = settings(
    paper("pretrain/modules", region_classes="soft"),
    paper("pretrain/data", max_total_length="64"),
    paper(
        "cfgs/pretrain",
        optimizer="AdamW",
        lr=per_sample("1.0e-7", 256, 2.56e-5),
        max_grad_norm="10",
    ),
    paper("pretrain/function", betas="0.9, 0.999", epsilon="1e-6", decay_bias_and_norm="yes"),
)
WORDS_ALONE = paper("base_prec_withouttextonly_4x16G_fp32.yaml", warmup_steps="8000")
TEXT_BESIDE = paper(
    "cfgs/pretrain",
    text=[BOOKS, WIKIPEDIA],
    warmup_steps="16000",
    batch=(
        "256",
        "the code has 128 of each kind in every step; here steps of the two kinds alternate, equally many of each",
    ),
)
CODE = [WORDS_AND_PICTURES, CODE_OPTIMIZER, TEXT_BESIDE]

# -- tasks, first version --

TUNE = settings(
    paper("Sec. 4.2", weight_decay="1e-4"),
    paper(
        "common/callbacks",
        eval_every="1",
        keep_best=(
            "yes",
            "chosen by the split that is scored, so its score is too high (selection bias)",
        ),
    ),
    seeds=1,
)
VCR_TASK = settings(
    TUNE,
    paper("Sec. 4.2.1", regions=VCR_BOXES),
    paper("cfgs/vcr", longest_edge="1200"),
    paper("vcr/data", max_length=("64", 67, "here the length includes the 3 special tokens")),
    data=VCR,
    images=VCR_IMAGES,
    backbone=RESNET,
)
VCR_STEPS = settings(
    paper(
        "Sec. 4.2.1",
        optimizer="SGD",
        momentum="0.9",
        epochs="20",
        milestones="14, 18",
        milestone_factor="0.1",
        warmup_steps="1,000",
    ),
    schedule="steps",
)
VCR_FIRST = paper(
    "Sec. 4.2.1",
    head_loss=("Softmax", "ce", LOSS_NAME),
    auxiliary_losses="yes",
    lr="2e-3",
    batch="256",
)
VQA_TASK = settings(
    TUNE,
    paper("Sec. 4.2.2", betas="0.9, 0.999", regions=COCO_REGIONS, schedule="linear"),
    paper("cfgs/vqa", max_regions="100"),
    task="vqa",
    data=VQA,
)
VQA_FIRST = paper(
    "Sec. 4.2.2",
    head_loss=("multi-class cross-entropy", "ce", LOSS_NAME),
    optimizer=("Adam", "adamw", DECOUPLED),
    epochs="20",
    batch="256",
    lr="1e-4",
    warmup_steps="2,000",
)
REFCOCO_TASK = settings(
    TUNE,
    paper("Sec. 4.2.3", betas="0.9, 0.999", schedule="linear", epochs="20"),
    task="refcoco+",
    data=REFCOCO,
    images=COCO_IMAGES,
    backbone=RESNET,
)
REFCOCO_FIRST = paper(
    "Sec. 4.2.3",
    optimizer=("Adam", "adamw", DECOUPLED),
    batch="256",
    lr="2e-4",
    warmup_steps="500",
)
ANNOTATED = paper("Sec. 4.2.3", regions=TRUTH)
DETECTED = paper("Sec. 4.2.3", regions=FOUND)

# -- tasks, released code --

VCR_CODE = settings(
    paper(
        "cfgs/vcr",
        auxiliary_losses="yes",
        lr=per_sample("7.0e-5", 64, 4.48e-3),
        batch=(
            "4",
            64,
            "printed per GPU; times 4 GPUs and 4 accumulation steps, or 16 GPUs",
        ),
        max_grad_norm="10",
    ),
    paper("vcr/function", decay_bias_and_norm="yes"),
)
VQA_CODE = settings(
    paper(
        "cfgs/vqa",
        train_splits=("train val", (), "val is kept for scoring"),
        optimizer="AdamW",
        epochs="5",
        batch=(
            "16",
            256,
            "printed per GPU; large: times 4 GPUs and 4 accumulation steps; base: 64 per GPU, times 4 GPUs",
        ),
        lr=per_sample("6.25e-7", 256, 1.6e-4),
        warmup_steps="500",
        max_grad_norm="1.0",
    ),
    paper("vqa/function", epsilon="1e-6", decay_bias_and_norm="yes"),
)
REFCOCO_CODE = settings(
    paper(
        "cfgs/refcoco",
        optimizer="AdamW",
        batch=(
            "4",
            32,
            "printed per GPU; times 4 GPUs and 2 accumulation steps; large: 2 per GPU, times 4 and 4",
        ),
        lr=per_sample("8.00e-7", 32, 2.56e-5),
        warmup_steps="3750",
        max_grad_norm="1.0",
    ),
    paper("refcoco/function", epsilon="1e-6", decay_bias_and_norm="yes"),
)
ANNOTATED_CODE = paper("cfgs/refcoco, gt_boxes", regions=TRUTH)
DETECTED_CODE = paper(
    "cfgs/refcoco, detected_regions", regions=FOUND, train_regions=TRUTH_AND_FOUND
)

# -- tasks of the final version's ablation: half as many epochs --

HALF = "half as many, as in Table 4"
HALF_VCR = paper(
    "cfgs/vcr",
    epochs=("20", 10, HALF),
    milestones=("14, 18", [7, 9], "halved with the epochs"),
)
HALF_VQA = settings(
    paper(
        "cfgs/vqa",
        images=(
            "none",
            COCO_IMAGES,
            "from images, so that one model is fine-tuned on all tasks of a row",
        ),
        epochs=("5", 2.5, HALF),
    ),
    backbone=RESNET,
)
HALF_REFCOCO = paper("cfgs/refcoco", epochs=("20", 10, HALF))


def both_parts(prefix, *groups):
    """VCR's two parts with the same settings."""
    return {
        f"{prefix}VCR Q to A": settings(VCR_TASK, VCR_STEPS, *groups, task="vcr/answer"),
        f"{prefix}VCR QA to R": settings(VCR_TASK, VCR_STEPS, *groups, task="vcr/rationale"),
    }


VCR_TASKS = both_parts("", VCR_FIRST)
VQA_TASKS = {"VQA": settings(VQA_TASK, VQA_FIRST)}
REFCOCO_TASKS = {
    "RefCOCO+ annotated": settings(REFCOCO_TASK, REFCOCO_FIRST, ANNOTATED),
    "RefCOCO+ detected": settings(REFCOCO_TASK, REFCOCO_FIRST, DETECTED),
}
CODE_VCR_TASKS = both_parts("Code: ", VCR_CODE)
CODE_VQA_TASKS = {"Code: VQA": settings(VQA_TASK, VQA_CODE)}
CODE_REFCOCO_TASKS = {
    "Code: RefCOCO+ annotated": settings(REFCOCO_TASK, REFCOCO_CODE, ANNOTATED_CODE),
    "Code: RefCOCO+ detected": settings(REFCOCO_TASK, REFCOCO_CODE, DETECTED_CODE),
}
HALF_TASKS = {
    **both_parts("Half: ", VCR_CODE, HALF_VCR),
    "Half: VQA": settings(VQA_TASK, VQA_CODE, HALF_VQA),
    "Half: RefCOCO+ detected": settings(REFCOCO_TASK, REFCOCO_CODE, DETECTED_CODE, HALF_REFCOCO),
}

# -- tables of the first version; scores are those of val, VQA's of test-dev --

FIRST_PIXELS = pretrain("first, pixels", *FIRST, WITH_PIXELS, RESNET_101, model=BERT)
FIRST_STORED = pretrain("first, stored", *FIRST, model=BERT)
BASE_PIXELS = pretrain("base, pixels", *CODE, WITH_PIXELS, model=BERT)
BASE_STORED = pretrain("base, stored", *CODE, model=BERT)
LARGE_PIXELS = pretrain("large, pixels", *CODE, WITH_PIXELS, model=BERT_LARGE)
LARGE_STORED = pretrain("large, stored", *CODE, model=BERT_LARGE)


def not_pretrained(tasks, scores=None):
    """The control: BERT with new embeddings for regions."""
    return row("w/o pre-training", BERT, tasks, scores=scores, architecture="vlbert")


def table_2():
    """VCR."""
    without = not_pretrained(VCR_TASKS, {"VCR Q to A": 73.5, "VCR QA to R": 74.4})
    scores = {"VCR Q to A": 73.7, "VCR QA to R": 74.5}
    return Table("Table 2", [without, row("VL-BERT", FIRST_PIXELS, VCR_TASKS, scores=scores)])


def table_3():
    """VQA."""
    without = not_pretrained(VQA_TASKS, {"VQA": 69.58})
    stored = row("VL-BERT, stored", FIRST_STORED, VQA_TASKS, scores={"VQA": 70.50})
    return Table("Table 3", [without, stored])


def on_splits(annotated, detected):
    """Scores on val, testA and testB of RefCOCO+."""
    splits = ("", " (testA)", " (testB)")
    scores = {
        f"RefCOCO+ annotated{split}": one for split, one in zip(splits, annotated, strict=True)
    }
    return scores | {
        f"RefCOCO+ detected{split}": one for split, one in zip(splits, detected, strict=True)
    }


def table_4():
    """RefCOCO+ on annotated and on detected boxes."""
    without = on_splits((73.96, 76.65, 67.64), (65.92, 72.30, 55.55))
    scores = on_splits((78.44, 81.30, 71.18), (71.84, 77.59, 60.57))
    vlbert = row("VL-BERT", FIRST_PIXELS, REFCOCO_TASKS, scores=scores)
    return Table("Table 4", [not_pretrained(REFCOCO_TASKS, without), vlbert])


# -- tables of the final version, by the released code --


def code_vcr():
    """VCR, base and large."""
    base = {"Code: VCR Q to A": 73.8, "Code: VCR QA to R": 74.4}
    large = {"Code: VCR Q to A": 75.5, "Code: VCR QA to R": 77.9}
    return Table(
        "Code: VCR",
        [
            not_pretrained(CODE_VCR_TASKS),
            row("Code: base", BASE_PIXELS, CODE_VCR_TASKS, scores=base),
            row("Code: large", LARGE_PIXELS, CODE_VCR_TASKS, scores=large),
        ],
    )


def code_vqa():
    """VQA, base and large."""
    return Table(
        "Code: VQA",
        [
            not_pretrained(CODE_VQA_TASKS),
            row("Code: base, stored", BASE_STORED, CODE_VQA_TASKS, scores={"Code: VQA": 71.16}),
            row("Code: large, stored", LARGE_STORED, CODE_VQA_TASKS, scores={"Code: VQA": 71.79}),
        ],
    )


def code_refcoco():
    """RefCOCO+, base and large."""
    large = {
        "Code: RefCOCO+ annotated": 80.31,
        "Code: RefCOCO+ annotated (testA)": 83.62,
        "Code: RefCOCO+ annotated (testB)": 75.45,
        "Code: RefCOCO+ detected": 72.59,
    }
    return Table(
        "Code: RefCOCO+",
        [
            not_pretrained(CODE_REFCOCO_TASKS),
            row("Code: base", BASE_PIXELS, CODE_REFCOCO_TASKS),
            row("Code: large", LARGE_PIXELS, CODE_REFCOCO_TASKS, scores=large),
        ],
    )


WORDS = paper("final version, Table 4, (a)", region_classes="none")
RELATION = paper("final version, Table 4, (c)", related="yes")


def code_ablation():
    """The final version's ablation of pre-training tasks, its Table 4. There the CNN is frozen in (a) to (d), and only
    the last row trains it. Here a model of pixels always trains it, so (d) and the last row are one: "Code: base".
    """
    rows = [not_pretrained(HALF_TASKS)]
    for letter, name, changed in (
        ("a", "(a) words", WORDS),
        ("b", "(b) words, regions", {}),
        ("c", "(c) words, regions, relation", RELATION),
    ):
        groups = [WORDS_AND_PICTURES, CODE_OPTIMIZER, WORDS_ALONE, WITH_PIXELS, changed]
        rows.append(row(name, pretrain(letter, *groups, model=BERT), HALF_TASKS))
    return Table("Code: ablation", [*rows, row("Code: base", BASE_PIXELS, HALF_TASKS)])


TABLES = [
    table_2(),
    table_3(),
    table_4(),
    code_vcr(),
    code_vqa(),
    code_refcoco(),
    code_ablation(),
]
