"""UNITER (Chen et al., ECCV 2020) as in its released code: fine-tuning on VQA, VCR, SNLI-VE, NLVR2 and RefCOCO+, VCR's
second stage, and pre-training.

    groundling run recipes/uniter.py --plan
    groundling run recipes/uniter.py --table "VQA" --out runs/uniter

The settings beside ours are those of ChenRocks/UNITER, config/*.json. A batch there is a number of tokens per GPU, times
accumulation steps; here one process does the work of all GPUs. Rows start from the authors' weights (converted by
groundling.vision_language.single_stream; their server has refused downloads since 2024). The rows of "Pre-training" start
from our own weights.

The code reads the boxes above a confidence of .2, at least 10 and at most 100 (conf_th, min_bb and max_bb of every file but
RefCOCO+'s, which reads up to 100 whatever their confidence): `regions --filter-imports`, by its defaults. Annotated boxes
are never filtered.

RefCOCO+'s code keeps the best epoch of val, whose score then has selection bias; so do its rows here. All others keep the
last step, here and in the code.

Not here: RefCOCO and RefCOCOg, whose head is one Linear in the code and RefCOCO+'s head in this library; RefCOCO+ with
the large model, for which the code has no settings; image and text retrieval, which the code fine-tunes with hard
negatives and this library evaluates only for CLIP-like models.
"""

from groundling.recipes import Table, data, paper, pretrain, row, settings, weights

PAPER = "UNITER (Chen et al., ECCV 2020)"

# -- data --


def regions(name, path, of, available_from):
    """Bottom-up attention's features, which UNITER's authors released."""
    title = f"bottom-up attention's features of {of}"
    return data(name, path, title, available_from, kind="regions")


def image_database(script, name="database"):
    """Where to obtain one of the authors' databases of features."""
    return (
        f"UNITER's image {name} (scripts/{script}), imported by "
        "`groundling regions --imports ... --filter-imports`"
    )


VQA = data(
    "vqa",
    "data/vqa",
    "VQA v2",
    "https://visualqa.org/download.html: questions and annotations of train2014 and val2014; a list of the 3,129 answers; "
    "https://nlp.cs.unc.edu/data/lxmert_data/vqa/: minival.json and nominival.json",
    kind="vqa",
    examples=632117,
)
VCR = data(
    "vcr",
    "data/vcr",
    "VCR",
    "https://visualcommonsense.com/download: vcr1annots.zip",
    kind="vcr",
    examples=212923,
)
SNLI_VE = data(
    "snli-ve",
    "data/snli_ve",
    "SNLI-VE",
    "https://github.com/necla-ml/SNLI-VE: snli_ve_train.jsonl, snli_ve_dev.jsonl, snli_ve_test.jsonl",
    kind="snli-ve",
    examples=529527,
)
NLVR2 = data(
    "nlvr2",
    "data/nlvr2",
    "NLVR2",
    "https://github.com/lil-lab/nlvr: nlvr2/data/train.json, dev.json, test1.json",
    kind="nlvr2",
    examples=86373,
)
REFCOCO = data(
    "refcoco",
    "data/refcoco+",
    "RefCOCO+",
    "https://github.com/lichengunc/refer: refs(unc).p and instances.json of refcoco+",
    kind="refcoco+",
    examples=120191,
)
COCO = data(
    "coco",
    "data/dataset_coco.json",
    "COCO",
    "https://cs.stanford.edu/people/karpathy/deepimagesent/caption_datasets.zip: dataset_coco.json",
    kind="captions",
    examples=566747,
)
VG = data(
    "vg",
    "data/vg_captions.json",
    "Visual Genome",
    "https://homes.cs.washington.edu/~ranjay/visualgenome: region descriptions, converted to COCO's caption format",
    kind="captions",
    examples=5060000,
)
CC = data(
    "cc",
    "data/cc/Train_GCC-training.tsv",
    "Conceptual Captions",
    "https://ai.google.com/research/ConceptualCaptions/download",
    kind="captions",
    examples=3318333,
)
SBU = data(
    "sbu",
    "data/sbu.tsv",
    "SBU",
    "https://www.cs.rice.edu/~vo9/sbucaptions: captions and addresses side by side, as in Conceptual Captions' tsv",
    kind="captions",
    examples=990000,
)
VCR_REGIONS = regions(
    "vcr-regions",
    "stores/vcr",
    "VCR's annotated and detected boxes",
    "UNITER's image databases of VCR (scripts/download_vcr.sh), both kinds as one store, the detected boxes filtered: "
    "docs/vision.md",
)
COCO_REGIONS = regions(
    "coco-regions",
    "stores/coco",
    "COCO",
    "UNITER's image databases of COCO (scripts/download_vqa.sh): `groundling regions --imports ... --ids-as "
    "'COCO_{subset}_{number:012d}' --filter-imports`",
)
FLICKR_REGIONS = regions(
    "flickr-regions",
    "stores/flickr30k",
    "Flickr30k",
    image_database("download_ve.sh", "database of Flickr30k"),
)
NLVR2_REGIONS = regions(
    "nlvr2-regions",
    "stores/nlvr2",
    "NLVR2",
    image_database("download_nlvr2.sh", "databases of NLVR2"),
)
ALL_REGIONS = regions(
    "all-regions",
    "stores/all",
    "COCO, Visual Genome, Conceptual Captions and SBU",
    "UNITER's image databases (scripts/download_pretrain.sh), each imported by `groundling regions --imports ... "
    "--filter-imports`, COCO's with --ids-as; together: `groundling regions --imports stores/coco stores/vg stores/cc "
    "stores/sbu --out stores/all`",
)
IN_DOMAIN_REGIONS = regions(
    "in-domain-regions",
    "stores/in_domain",
    "COCO and Visual Genome",
    "the same, of two: `groundling regions --imports stores/coco stores/vg --out stores/in_domain`",
)
TRUTH = data(
    "truth",
    "stores/refcoco_truth",
    "annotated boxes",
    "UNITER's image database re_coco_gt (scripts/download_re.sh), imported as in docs/vision.md",
    kind="regions",
)
FOUND = data(
    "found",
    "stores/refcoco_found",
    "detected boxes",
    "UNITER's image database re_coco_det (scripts/download_re.sh), imported as in docs/vision.md",
    kind="regions",
)

# -- weights --

RELEASED = "ChenRocks/UNITER, scripts/download_pretrained.sh"
BASE = weights("base", "weights/uniter-base", "UNITER-base", RELEASED, kind="uniter")
LARGE = weights("large", "weights/uniter-large", "UNITER-large", RELEASED, kind="uniter")
BERT = weights("bert", "bert-base-cased", "BERT-base, cased", kind="bert")
BERT_LARGE = weights("bert-large", "bert-large-cased", "BERT-large, cased", kind="bert")


def micro_batches(printed, gpus):
    """Accumulation steps of the code, and those of one process."""
    reason = f"one process does the work of {gpus} GPUs"
    return (str(printed), printed * gpus, reason) if gpus > 1 else str(printed)


def texts(length, special):
    """The code's longest text, whose special tokens are counted here."""
    return str(length), length + special, f"here the length includes the {special} special tokens"


FOUR_CHOICES = (
    "220, of four choices",
    220,
    "the code counts all four choices, and skips a question with more; here the limit is for one text, special tokens "
    "included",
)

# -- pre-training --

PRETRAIN = settings(
    paper(
        "pretrain-*.json",
        max_length=texts(60, 2),
        lr="5e-05",
        betas="0.9, 0.98",
        weight_decay="0.01",
        warmup_steps="10000",
        max_grad_norm="5.0",
    ),
    paper("pretrain-*.json, mrm_prob", mask_rate="15 %"),
    paper("UNITER's code", epsilon="1e-6", schedule="linear"),
    architecture="uniter",
    skip_missing=True,
)
SHARES = "here the shares of the collections and those of the objectives are separate settings"
ALL_DATA = settings(
    paper(
        "pretrain-alldata-*.json",
        captions=(
            "6 8 4 4; 9 12 6 6; 9 12 6 6; 6 8 4 4",
            [COCO.weighted(2), VG.weighted(3), CC.weighted(3), SBU.weighted(2)],
            SHARES,
        ),
        caption_splits="train restval",
        step_mix="3 4 2 2",
    ),
    regions=ALL_REGIONS,
)
IN_DOMAIN = settings(
    paper(
        "pretrain-indomain-base-8gpu.json",
        captions=("2 2 1 1; 2 2 1 1", [COCO.weighted(1), VG.weighted(1)], SHARES),
        caption_splits="train restval",
        step_mix="2 2 1 1",
    ),
    regions=IN_DOMAIN_REGIONS,
)
BUDGETS = {
    "all data, base": paper(
        "pretrain-alldata-base-8gpu.json",
        steps="200000",
        batch_tokens="10240",
        gradient_accumulation_steps=micro_batches(6, 8),
    ),
    "all data, large": paper(
        "pretrain-alldata-large-16gpu.json",
        steps="500000",
        batch_tokens="6144",
        gradient_accumulation_steps=micro_batches(4, 16),
    ),
    "in-domain, base": paper(
        "pretrain-indomain-base-8gpu.json",
        steps="200000",
        batch_tokens="10240",
        gradient_accumulation_steps=micro_batches(2, 8),
    ),
}


def pretrained(name, model, *groups):
    """A pre-training from BERT's weights."""
    return pretrain(name, PRETRAIN, *groups, BUDGETS[name], model=model)


# -- VCR's second stage --

SECOND_STAGE = settings(
    paper(
        "pretrain-vcr-*.json",
        regions=VCR_REGIONS,
        max_length=FOUR_CHOICES,
        steps="45000",
        warmup_steps="4500",
        lr="3e-05",
        betas="0.9, 0.98",
        weight_decay="0.01",
        max_grad_norm=("-1", 0.0, "here this means no clipping"),
        batch_tokens=(
            "6144",
            2048,
            "the code counts four choices and 100 for annotated boxes, so about 20 texts fit; this number of texts has "
            "2,048 tokens and regions of its own",
        ),
        gradient_accumulation_steps=micro_batches(4, 4),
    ),
    paper("UNITER's code", epsilon="1e-6", schedule="linear", task_answers="right"),
    task="vcr",
    data=VCR,
)
SECOND_STAGE_MIX = {
    "VCR, base": paper("pretrain-vcr-base-4gpu.json", step_mix="2 1 1"),
    "VCR, large": paper("pretrain-vcr-large-4gpu.json", step_mix="10 1 1"),
}

# -- tasks --


def tuning(code):
    """Settings of every fine-tuning, in the code of UNITER or VILLA."""
    return paper(
        code,
        optimizer="AdamW",
        betas="0.9, 0.98",
        epsilon="1e-6",
        weight_decay="0.01",
        schedule="linear",
        max_grad_norm="2",
        max_length=texts(60, 2),
    )


def vqa(code):
    """VQA's own settings, in the code of UNITER or VILLA."""
    return settings(
        paper(
            code,
            train_splits=(
                "train, most of val, Visual Genome",
                ["train", "nominival"],
                "LXMERT's split of val; which questions of Visual Genome are used is recorded only in the code's text "
                "database",
            ),
            head_lr="10.0",
        ),
        task="vqa/minival",
        data=VQA,
        regions=COCO_REGIONS,
    )


def vcr(code):
    """VCR's own settings, in the code of UNITER or VILLA."""
    printed = paper(code, max_length=FOUR_CHOICES, regions=VCR_REGIONS)
    return settings(printed, task="vcr", data=VCR)


def tasks(code, *groups):
    """VQA, VCR, SNLI-VE and NLVR2, each as the only column of a table."""
    shared = settings(tuning(code), *groups, seeds=1)
    return {
        "VQA": settings(shared, vqa(code)),
        "VCR": settings(shared, vcr(code)),
        "SNLI-VE": settings(shared, task="snli-ve", data=SNLI_VE, regions=FLICKR_REGIONS),
        "NLVR2": settings(shared, task="nlvr2", data=NLVR2, regions=NLVR2_REGIONS),
    }


TUNE = tuning("UNITER's code")
VQA_TASK = vqa("UNITER's code")
VCR_TASK = vcr("UNITER's code")
TASKS = tasks("UNITER's code")
REFCOCO_TASK = settings(
    paper(
        "train_re.py",
        eval_every="1",
        keep_best=(
            "yes",
            "chosen by val of the same boxes, so its score is too high (selection bias); in the code by val of detected "
            "boxes, for both tracks",
        ),
    ),
    paper(
        "train-refcoco+-base-1gpu.json", batch="128", lr="6e-5", steps="10000", warmup_steps="1000"
    ),
    task="refcoco+/mattnet",
    data=REFCOCO,
)
ANNOTATED = paper("scripts/eval_refcoco+.sh", regions=TRUTH)
DETECTED = paper("train-refcoco+-base-1gpu.json", regions=FOUND, train_regions=TRUTH)
BY_QUESTION = (
    "the code counts a question as its four texts, 100 for its annotated boxes and the number of its other boxes, so about 14 "
    "questions fit; here a question counts as four rows, and 13 fit"
)
# fmt: off
SIZES = {
    name: paper(
        file,
        lr=lr,
        steps=str(steps),
        warmup_steps=str(steps // 10),
        batch_tokens=tokens,
        gradient_accumulation_steps=micro_batches(accumulation, gpus),
    )
    for name, file, lr, steps, tokens, accumulation, gpus in (
        ("VQA, base", "train-vqa-base-4gpu.json", "8e-5", 6000, "5120", 5, 4),
        ("VQA, large", "train-vqa-large-8gpu.json", "5e-5", 5000, "3072", 4, 8),
        ("VCR, base", "train-vcr-base-4gpu.json", "6e-5", 8000, ("4000, by question", 4000, BY_QUESTION), 5, 4),
        ("VCR, large", "train-vcr-large-4gpu.json", "6e-5", 8000, ("4000, by question", 4000, BY_QUESTION), 5, 4),
        ("SNLI-VE, base", "train-ve-base-2gpu.json", "8e-5", 4000, "4096", 4, 2),
        ("SNLI-VE, large", "train-ve-large-4gpu.json", "3e-5", 4000, "4096", 2, 4),
        ("NLVR2, base", "train-nlvr2-base-1gpu.json", "3e-5", 8000, "10240", 1, 1),
        ("NLVR2, large", "train-nlvr2-large-2gpu.json", "2e-5", 5000, "5120", 2, 2),
    )
}
# fmt: on

# -- tables --


def tuned(name, task, size, model):
    """A row of one task, with the task's settings for a size of the model."""
    return row(name, model, {task: TASKS[task]}, SIZES[f"{task}, {size}"])


def one_task(task):
    """The authors' weights of both sizes on a task."""
    return Table(
        task,
        [tuned(f"{task}, base", task, "base", BASE), tuned(f"{task}, large", task, "large", LARGE)],
    )


def vcr_table():
    """VCR after its second stage, which both sizes do first."""
    rows = []
    for size, model in (("base", BASE), ("large", LARGE)):
        name = f"VCR, {size}"
        stage = pretrain(name, SECOND_STAGE, SECOND_STAGE_MIX[name], model=model)
        rows.append(tuned(name, "VCR", size, stage))
    return Table("VCR", rows)


def refcoco():
    """RefCOCO+ on annotated and on detected boxes."""
    both = {
        "RefCOCO+ annotated": settings(TUNE, REFCOCO_TASK, ANNOTATED, seeds=1),
        "RefCOCO+ detected": settings(TUNE, REFCOCO_TASK, DETECTED, seeds=1),
    }
    return Table("RefCOCO+", [row("RefCOCO+, base", BASE, both)])


def pretraining():
    """Pre-training in-domain and on all four collections, judged on NLVR2."""
    rows = [tuned("NLVR2, base", "NLVR2", "base", BASE)]
    for name, model in (
        ("NLVR2, base, all data", pretrained("all data, base", BERT, ALL_DATA)),
        ("NLVR2, base, in-domain", pretrained("in-domain, base", BERT, IN_DOMAIN)),
        ("NLVR2, large, all data", pretrained("all data, large", BERT_LARGE, ALL_DATA)),
    ):
        rows.append(tuned(name, "NLVR2", "large" if "large" in name else "base", model))
    return Table("Pre-training", rows)


TABLES = [
    one_task("VQA"),
    vcr_table(),
    one_task("SNLI-VE"),
    one_task("NLVR2"),
    refcoco(),
    pretraining(),
]
