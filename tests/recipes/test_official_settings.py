"""Settings that a plan marks as equal are equal to the authors' files, in these files' units.

Below stand raw facts of each file, as it states them: a GPU's share of a batch, a rate per sample. The expected
settings of a run are computed from them, never copied from a recipe.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from functools import cache, reduce
from pathlib import Path
from typing import Any

import pytest
from tiny.commands import recipe_of

from groundling.recipes import Step, format_setting
from groundling.recipes.plan import setting_rows

Settings = dict[str, Any]


def facts(table: str) -> dict[str, dict[str, str]]:
    """A table's rows by their first cell, as texts by column; `-` is a key that the file does not have."""
    heading, *rows = (line.split() for line in table.strip().splitlines())
    cells = {name: dict(zip(heading[1:], row, strict=True)) for name, *row in rows}
    return {
        name: {key: value for key, value in row.items() if value != "-"}
        for name, row in cells.items()
    }


def numbers(text: str) -> tuple[float, ...]:
    return tuple(float(one) for one in text.split(","))


# -- ChenRocks/UNITER, config/*.json -----------------------------------------------------------------------------------
UNITER = facts("""
file                        num_train_steps warmup_steps learning_rate train_batch_size gradient_accumulation_steps lr_mul max_txt_len grad_norm weight_decay betas    optim
train-vqa-base-4gpu         6000            600          8e-05         5120             5                           10.0   60          2.0       0.01         0.9,0.98 adamw
train-vqa-large-8gpu        5000            500          5e-05         3072             4                           10.0   60          2.0       0.01         0.9,0.98 adamw
train-vcr-base-4gpu         8000            800          6e-05         4000             5                           1.0    220         2.0       0.01         0.9,0.98 adamw
train-vcr-large-4gpu        8000            800          6e-05         4000             5                           1.0    220         2.0       0.01         0.9,0.98 adamw
train-ve-base-2gpu          4000            400          8e-05         4096             4                           -      60          2.0       0.01         0.9,0.98 adamw
train-ve-large-4gpu         4000            400          3e-05         4096             2                           -      60          2.0       0.01         0.9,0.98 adamw
train-nlvr2-base-1gpu       8000            800          3e-05         10240            1                           -      60          2.0       0.01         0.9,0.98 adamw
train-nlvr2-large-2gpu      5000            500          2e-05         5120             2                           -      60          2.0       0.01         0.9,0.98 adamw
train-refcoco+-base-1gpu    10000           1000         6e-5          128              1                           1.0    60          2.0       0.01         0.9,0.98 adamw
pretrain-alldata-base-8gpu  200000          10000        5e-05         10240            6                           -      60          5.0       0.01         0.9,0.98 adamw
pretrain-alldata-large-16gpu 500000         10000        5e-05         6144             4                           -      60          5.0       0.01         0.9,0.98 adamw
pretrain-indomain-base-8gpu 200000          10000        5e-05         10240            2                           -      60          5.0       0.01         0.9,0.98 adamw
pretrain-vcr-base-4gpu      45000           4500         3e-05         6144             4                           -      220         -1        0.01         0.9,0.98 adamw
pretrain-vcr-large-4gpu     45000           4500         3e-05         6144             4                           -      220         -1        0.01         0.9,0.98 adamw
""")  # noqa: E501
MIXES = {
    # file: collection, and how often each of its tasks itm, mlm, mrfr, mrckl (of VCR all but the first) is drawn
    "pretrain-alldata-base-8gpu": {
        **{"coco": (6, 8, 4, 4), "vg": (9, 12, 6, 6), "cc": (9, 12, 6, 6), "sbu": (6, 8, 4, 4)}
    },
    "pretrain-alldata-large-16gpu": {
        **{"coco": (6, 8, 4, 4), "vg": (9, 12, 6, 6), "cc": (9, 12, 6, 6), "sbu": (6, 8, 4, 4)}
    },
    "pretrain-indomain-base-8gpu": {"coco": (2, 2, 1, 1), "vg": (2, 2, 1, 1)},
    "pretrain-vcr-base-4gpu": {"vcr": (2, 1, 1)},
    "pretrain-vcr-large-4gpu": {"vcr": (10, 1, 1)},
}
COLLECTIONS = {"coco": "COCO", "vg": "Visual Genome", "cc": "Conceptual Captions", "sbu": "SBU"}
MRM_PROB = 0.15
"""In every pretrain-*.json."""
COCO_DBS = ("/txt/pretrain_coco_train.db/", "/txt/pretrain_coco_restval.db/")
VCR_IMAGES = "/img/vcr_gt_train/;/img/vcr_train/"
"""Of train-vcr-*.json and pretrain-vcr-*.json, train_img_dbs and train_datasets."""
REFCOCO_IMAGES = {"train_img_db": "/img/re/re_coco_gt", "val_img_db": "/img/re/re_coco_det/"}
REFCOCO_TRUTH = {"img_db": "/img/re_coco_gt"}
"""Of scripts/eval_refcoco+.sh, its first command."""
REFCOCO_BEST = {"evaluate after each": "epoch", "save best model": True}
"""Comments of train_re.py, which no other train_*.py has."""
ADAMW_EPS = 1e-6
"""optim/adamw.py, the default, which every train_*.py and pretrain*.py leaves as it is."""
SCHEDULE = "warmup_linear"
"""The schedule that get_lr_sched of optim/sched.py calls."""
LENGTH_OF = "len(input_ids)"
"""The lengths in id2len (prepro.py), which max_txt_len limits; [CLS] and [SEP] are added later (data/data.py)."""
VCR_TARGET = "qa_target"
"""The answer and rationale that data/pretrain_vcr.py appends to a question."""

# -- zhegan27/VILLA, config/*.json -------------------------------------------------------------------------------------
VILLA = facts("""
file                        num_train_steps warmup_steps learning_rate train_batch_size gradient_accumulation_steps lr_mul max_txt_len grad_norm weight_decay betas    optim adv_modality adv_lr_txt adv_lr_img adv_steps norm_type adv_kl_weight
train-vqa-base-4gpu-adv     6000            600          8e-05         5120             5                           10.0   60          2.0       0.01         0.9,0.98 adamw text         1e-3       1e-3       3         l2        1.5
train-vqa-large-8gpu-adv    5000            500          5e-05         3072             4                           10.0   60          2.0       0.01         0.9,0.98 adamw text         2e-3       2e-3       3         l2        1.0
train-vcr-base-4gpu-adv     8000            800          6e-05         4000             5                           1.0    220         2.0       0.01         0.9,0.98 adamw image,text   0.01       0.01       3         l2        1.5
train-vcr-large-4gpu-adv    10000           1000         6e-05         2000             10                          1.0    220         2.0       0.01         0.9,0.98 adamw image,text   0.1        0.1        3         l2        1.0
train-ve-base-2gpu-adv      4000            400          8e-05         4096             4                           -      60          2.0       0.01         0.9,0.98 adamw text         1e-3       1e-3       3         l2        1.5
train-ve-large-4gpu-adv     4000            400          3e-05         4096             2                           -      60          2.0       0.01         0.9,0.98 adamw text         1e-3       1e-3       3         l2        1.5
train-nlvr2-base-1gpu-adv   8000            800          3e-05         10240            1                           -      60          2.0       0.01         0.9,0.98 adamw text         1e-3       1e-3       3         l2        1.5
train-nlvr2-large-2gpu-adv  5000            500          2e-05         5120             2                           -      60          2.0       0.01         0.9,0.98 adamw text         1e-3       1e-3       3         l2        1.5
""")  # noqa: E501
KL = {
    # the reduction of the divergence over elements (N, classes): train_*_adv.py
    "train_vqa_adv.py": "mean() * targets.size(1)",
    "train_ve_adv.py": "mean() * targets.size(1)",
    "train_nlvr2_adv.py": "sum(1).mean()",
    "train_vcr_adv.py": "mean()",
}

# -- jackroos/VL-BERT, cfgs/*.yaml -------------------------------------------------------------------------------------
VLBERT = facts("""
file                                            BATCH_IMAGES GRAD_ACCUMULATE_STEPS END_EPOCH OPTIMIZER LR      WD     CLIP_GRAD_NORM WARMUP_STEPS LR_SCHEDULE LR_STEP LR_FACTOR MOMENTUM SCALES
pretrain/base_e2e_16x16G_fp16                   8,8          -                     10        AdamW     1.0e-7  0.0001 10             16000        triangle    -       -         -        600,1000
pretrain/base_prec_4x16G_fp32                   32,32        -                     10        AdamW     1.0e-7  0.0001 10             16000        triangle    -       -         -        600,1000
pretrain/base_prec_withouttextonly_4x16G_fp32   64           -                     10        AdamW     1.0e-7  0.0001 10             8000         triangle    -       -         -        600,1000
pretrain/large_e2e_16x16G_fp16                  4,4          2                     10        AdamW     1.0e-7  0.0001 10             16000        triangle    -       -         -        600,1000
pretrain/large_prec_4x16G_fp16                  32,32        -                     10        AdamW     1.0e-7  0.0001 10             16000        triangle    -       -         -        600,1000
vcr/base_q2a_4x16G_fp32                         4            4                     20        SGD       7.0e-5  0.0001 10             1000         -           14,18   0.1       0.9      600,1200
vcr/base_qa2r_4x16G_fp32                        4            4                     20        SGD       7.0e-5  0.0001 10             1000         -           14,18   0.1       0.9      600,1200
vcr/large_q2a_4x16G_fp16                        4            4                     20        SGD       7.0e-5  0.0001 10             1000         -           14,18   0.1       0.9      600,1200
vcr/large_qa2r_4x16G_fp16                       4            4                     20        SGD       7.0e-5  0.0001 10             1000         -           14,18   0.1       0.9      600,1200
vqa/base_4x16G_fp32                             64           -                     5         AdamW     6.25e-7 0.0001 1.0            500          triangle    -       -         -        600,1000
vqa/large_4x16G_fp32                            16           4                     5         AdamW     6.25e-7 0.0001 1.0            500          triangle    -       -         -        600,1000
refcoco/base_gt_boxes_4x16G                     4            2                     20        AdamW     8.00e-7 0.0001 1.0            3750         triangle    -       -         -        600,1000
refcoco/base_detected_regions_4x16G             4            2                     20        AdamW     8.00e-7 0.0001 1.0            3750         triangle    -       -         -        600,1000
refcoco/large_gt_boxes_4x16G                    2            4                     20        AdamW     8.00e-7 0.0001 1.0            3750         triangle    -       -         -        600,1000
refcoco/large_detected_regions_4x16G            2            4                     20        AdamW     8.00e-7 0.0001 1.0            3750         triangle    -       -         -        600,1000
""")  # noqa: E501
VLBERT_CODE = {
    # {pretrain,vqa,refcoco,vcr}/function/train.py: AdamW of one group of parameters, all decayed alike
    **{"betas": (0.9, 0.999), "eps": 1e-6, "groups": 1},
    # function/config.py: the default of LR_SCHEDULE
    "LR_SCHEDULE": "step",
    # common/callbacks/epoch_end_callbacks: ValidationMonitor, at the end of each epoch; Checkpoint
    **{"epochs between evaluations": 1, "Save new best model": True},
}
SEQ_LEN = {"pretrain/data": 64, "vcr/data/datasets/vcr.py": 64}
"""For pre-training, text with special tokens plus boxes; for VCR, question and answer without special tokens."""
CORPORA = "./data/en_corpus/bc1g.doc+./data/en_corpus/wiki.doc"
"""TRAIN_ANNOTATION_FILE of the pretrain files whose BATCH_IMAGES are two."""
CORPUS = {"bc1g.doc": "BooksCorpus", "wiki.doc": "Wikipedia"}
NETWORK = {
    # of every cfgs/pretrain; of every cfgs/vcr
    "pretrain": {"WITH_REL_LOSS": False, "WITH_MLM_LOSS": True, "WITH_MVRC_LOSS": True},
    "vcr": {"ENABLE_CNN_REG_LOSS": True},
}
MVRC_LABEL = "cls_scores"
"""The targets of regions in pretrain/data/datasets/conceptual_captions.py: the detector's scores of all classes."""
BOXES = {
    "vqa": "10-100ada",
    "refcoco gt_boxes": {"TRAIN_BOXES": "gt", "VAL_BOXES": "gt"},
    "refcoco detected_regions": {"TRAIN_BOXES": "proposal+gt", "VAL_BOXES": "proposal"},
}
BOXES_CALLED = {
    **{"gt": "annotated boxes", "proposal": "detected boxes"},
    "proposal+gt": "annotated and detected boxes",
}
ABLATION = {
    # the final version's Table 4: which tasks (a) to (c) pre-train on, and what is left of the epochs of fine-tuning
    "a": ("words",),
    "b": ("words", "regions"),
    "c": ("words", "regions", "relation"),
    "epochs": 0.5,
}

VLBERT_PAPER = facts("""
section                batch epochs lr   betas     weight_decay warmup_steps schedule optimizer momentum milestones milestone_factor
pretrain(3.3,4.1)      256   10     1e-4 0.9,0.999 1e-4         8000         linear   -         -        -          -
VCR(4.2.1)             256   20     2e-3 -         1e-4         1000         steps    sgd       0.9      14,18      0.1
VQA(4.2.2)             256   20     1e-4 0.9,0.999 1e-4         2000         linear   -         -        -          -
RefCOCO+(4.2.3)        256   20     2e-4 0.9,0.999 1e-4         500          linear   -         -        -          -
""")  # noqa: E501
"""The paper's first version; VCR with "basic mini-batch gradient descent"."""
VLBERT_FIRST = {"related": True, "mask_rate": 0.15, "region_classes": "hard", "text": ""}
"""3.3: three tasks, masked words and predicted category labels."""
VLBERT_PRETRAIN = {"captions": "Conceptual Captions", "max_regions": 100}
VLBERT_DETECTOR = "ResNet-101"
VLBERT_REGIONS = {
    "VCR": "VCR's annotated boxes",  # ground-truth annotations in the dataset
    "VQA": "bottom-up attention's features of COCO",  # BUTD
    # ground-truth RoIs, and detected boxes in MAttNet
    **{"RefCOCO+ annotated": "annotated boxes", "RefCOCO+ detected": "detected boxes"},
}

# -- uclanlp/visualbert, visualbert/configs/*.json ---------------------------------------------------------------------
VISUALBERT = facts("""
file                  train_batch_size learning_rate num_train_epochs warmup_proportion max_seq_length masked_lm_prob image_feature_type image_feature_cap add_spatial_features add_all_features
vqa/coco-pre-train    48               5e-5          10               0.1               128            0.15           vqa_fix_100        -                 -                    -
vqa/pre-train         64               5e-5          10               0.1               128            -              -                  -                 -                    -
vqa/fine-tune         64               2e-5          10               0.1               128            -              -                  -                 -                    -
vcr/coco-pre-train    128              1e-4          10               0.1               128            0.15           r2c                -                 -                    -
vcr/pre-train         32               5e-5          1                0.1879            128            -              -                  -                 -                    true
vcr/fine-tune-qa      32               2e-5          8                0.1               128            -              -                  -                 -                    true
vcr/fine-tune-qar     32               2e-5          12               0.1               128            -              -                  -                 -                    true
nlvr2/coco-pre-train  64               5e-5          10               0.1               128            0.15           nlvr               144               -                    -
nlvr2/pre-train       64               5e-5          10               0.1               128            -              -                  144               -                    -
nlvr2/fine-tune       64               2e-5          10               0.1               128            -              -                  144               -                    -
flickr/coco-pre-train 32               5e-5          10               0.1               128            0.15           flickr             -                 true                 -
flickr/pre-train      32               5e-5          10               0.1               128            -              -                  -                 true                 -
flickr/fine-tune      32               2e-5          5                0.1               128            -              -                  -                 true                 -
""")  # noqa: E501
BERT_ADAM = {
    # pytorch_pretrained_bert/optimization.py and models/model_wrapper.py
    **{"e": 1e-6, "max_grad_norm": 1.0, "clip_grad_norm_": "each parameter"},
    **{"schedule": "warmup_linear", "weight_decay": 0.01},
}
MASKED_LM_PROB = 0.15
"""The data loaders' defaults for settings that a file of configs/ does not set."""
RESIZE = {"desired_width": 768, "desired_height": 384}
"""resize_image of dataloaders/box_utils.py, which pads and does not mirror."""
TWO_SENTENCE = True
"""Of every coco-pre-train.json; an item of its COCO data set is a caption (dataloaders/coco_dataset.py)."""
EXPAND_COCO = "train2014 and val2014"
"""The files that expand_coco reads."""
NULL_DETECTIONS = "skipped"
"""Images of dataloaders/coco_dataset.py without a detection."""
CLASS_EMBS = True
"""Default of VisualBERTDetector in models/model.py."""
VCR_TEXTS = {"complete_shuffle": True, "pretraining_include_qa_and_qar": True, "texts": 8}
NO_NEXT_SENTENCE = {"nlvr2/pre-train": False}
PATIENCE = 3
"""Of the fine-tuning files; models/train.py evaluates after each epoch, saves the best as such, and stops
if argmax < evaluations - 1 - patience.
"""
PHRASES, CAPTIONS = 427_193, 148_915
"""Phrases with boxes in Flickr30k Entities' training captions."""
# From the paper's appendices.
VISUAL_PAPER = {
    **{"initialised from": "BERT-base", "captions": "COCO, Karpathy's training split"},
    **{"warm-up": 0.10, "longest": 128, "sentence-image prediction": True},
    **{"task-specific": "masked language modeling with the image", "proposals": 144},
    **{"proposals in App. C": 36, "VCR": "ResNet-50, fine-tuned along", "alignments used": True},
    **{"VQA": "100 boxes of a ResNeXt-based Faster R-CNN"},
    **{"NLVR2": "Detectron's Mask R-CNN on NLVR2", "nlvr": "Detectron's Mask R-CNN on COCO"},
    **{"Flickr30k": "bottom-up attention's features of Flickr30k"},
    **{"flickr": "bottom-up attention's features of COCO"},
}


# -- what these facts come to ------------------------------------------------------------------------------------------
def gpus(file: str) -> int:
    """From the run in a file's name: `-4gpu`, or `_4x16G`."""
    found = re.search(r"(\d+)(?:gpu|x16G)", file)
    assert found
    return int(found[1])


def of_tokens(file: str, raw: dict[str, str]) -> Settings:
    """A run of UNITER's or VILLA's code on one process."""
    special = {"len(input_ids)": 2}[LENGTH_OF]
    settings = {
        "steps": int(raw["num_train_steps"]),
        "warmup_steps": int(raw["warmup_steps"]),
        "lr": float(raw["learning_rate"]),
        "betas": numbers(raw["betas"]),
        "epsilon": ADAMW_EPS,
        "weight_decay": float(raw["weight_decay"]),
        "max_grad_norm": max(0.0, float(raw["grad_norm"])),
        "optimizer": raw["optim"],
        "schedule": {"warmup_linear": "linear"}[SCHEDULE],
        "gradient_accumulation_steps": int(raw["gradient_accumulation_steps"]) * gpus(file),
    }
    if "refcoco" in file:
        settings["batch"] = int(raw["train_batch_size"])
    elif "vcr" not in file:  # it counts a question's texts differently
        settings["batch_tokens"] = int(raw["train_batch_size"])
        settings["max_length"] = int(raw["max_txt_len"]) + special
    if "lr_mul" in raw:
        settings["head_lr"] = float(raw["lr_mul"])
    if "vcr" in file:
        both = {"_gt_": "annotated", "/vcr_train": "detected"}
        kinds = [kind for part, kind in both.items() if part in VCR_IMAGES]
        settings["regions"] = f"bottom-up attention's features of VCR's {' and '.join(kinds)} boxes"
    return settings


def uniter(step: Step) -> Settings:
    size = "large" if "large" in step.name else "base"
    if step.command == "pretrain":
        kind = {"VCR": "vcr", "all data": "alldata", "in-domain": "indomain"}
        (stem,) = [file for name, file in kind.items() if f"pretrain {name}" in step.name]
        (file,) = [file for file in UNITER if file.startswith(f"pretrain-{stem}-{size}")]
        settings = of_tokens(file, UNITER[file]) | of_mix(file)
        if stem == "vcr":
            return settings | {"task_answers": {"qa_target": "right"}[VCR_TARGET]}
        splits = tuple(re.search(r"coco_(\w+)\.db", db)[1] for db in COCO_DBS)  # type: ignore[index]
        return settings | {"mask_rate": MRM_PROB, "caption_splits": splits}
    (file,) = [file for file in UNITER if file.startswith(f"train-{short(task_of(step))}-{size}")]
    settings = of_tokens(file, UNITER[file])
    if "refcoco" in file:
        assert REFCOCO_BEST["evaluate after each"] == "epoch"
        settings |= of_refcoco(task_of(step))
        settings |= {"eval_every": 1.0, "keep_best": REFCOCO_BEST["save best model"]}
    return settings


def short(task: str) -> str:
    """The names of tasks in file names."""
    return {"SNLI-VE": "ve"}.get(task, task.partition(" ")[0].lower())


def of_mix(file: str) -> Settings:
    """Shares of the tasks, and of the collections if there are several."""
    by_collection = MIXES[file]
    (mix,) = {tuple(one / reduce(math.gcd, mix) for one in mix) for mix in by_collection.values()}
    if len(by_collection) == 1:
        return {"step_mix": mix}
    divisor = reduce(math.gcd, (sum(mix) for mix in by_collection.values()))
    shares = [f"{COLLECTIONS[name]}={sum(each) // divisor}" for name, each in by_collection.items()]
    return {"step_mix": mix, "captions": " ".join(shares)}


def of_refcoco(task: str) -> Settings:
    called = {"re_coco_gt": "annotated boxes", "re_coco_det": "detected boxes"}
    scored = REFCOCO_TRUTH["img_db"] if "annotated" in task else REFCOCO_IMAGES["val_img_db"]
    learned = called[Path(REFCOCO_IMAGES["train_img_db"]).name]
    scored = called[Path(scored).name]
    return boxes_of_tracks(scored, learned)


def boxes_of_tracks(scored: str, learned: str) -> Settings:
    """The store of the training data is a setting of its own if it is another one."""
    return {"regions": scored, "train_regions": learned if learned != scored else ""}


def villa(step: Step) -> Settings:
    size = "large" if "large" in step.name else "base"
    (file,) = [file for file in VILLA if file.startswith(f"train-{short(task_of(step))}-{size}")]
    raw = VILLA[file]
    assert raw["adv_lr_txt"] == raw["adv_lr_img"]
    over = KL[f"train_{short(task_of(step))}_adv.py"]
    return of_tokens(file, raw) | {
        "training_step": "villa",  # adv_training
        "adversarial_steps": int(raw["adv_steps"]),
        "adversarial_norm": raw["norm_type"],
        "adversarial_modality": raw["adv_modality"].replace("image,text", "both"),
        "adversarial_lr": float(raw["adv_lr_txt"]),
        "adversarial_kl_weight": float(raw["adv_kl_weight"]),
        "adversarial_kl_reduction": "mean" if over == "mean()" else "sum",
    }


def vlbert(step: Step) -> Settings:
    if step.command == "pretrain":
        return vlbert_pretrained(step)
    by_code = task_of(step).startswith(("Code: ", "Half: "))
    # The paper does not say which weights are scored.
    return (vlbert_tuned_by_code if by_code else vlbert_tuned_by_paper)(step) | {
        "eval_every": VLBERT_CODE["epochs between evaluations"],
        "keep_best": VLBERT_CODE["Save new best model"],
    }


def vlbert_pretrained(step: Step) -> Settings:
    settings: Settings = dict(VLBERT_PRETRAIN)
    name = step.name.removeprefix("pretrain ")
    if name.startswith("first"):
        settings |= vlbert_paper("pretrain") | VLBERT_FIRST
        return settings | ({"backbone": VLBERT_DETECTOR} if name.endswith("pixels") else {})
    if name in ABLATION:
        file = "pretrain/base_prec_withouttextonly_4x16G_fp32"
        tasks = ABLATION[name]
        labels = "soft" if "regions" in tasks else "none"
        relation = "relation" in tasks
    else:
        size, _, kind = name.partition(", ")
        start = f"pretrain/{size}_{'e2e' if kind == 'pixels' else 'prec'}_"
        (file,) = [f for f in VLBERT if f.startswith(start) and "without" not in f]
        labels = {"cls_scores": "soft"}[MVRC_LABEL]
        relation = NETWORK["pretrain"]["WITH_REL_LOSS"]
    if len(numbers(VLBERT[file]["BATCH_IMAGES"])) == 2:
        settings["text"] = " ".join(CORPUS[Path(one).name] for one in CORPORA.split("+"))
    settings |= {
        "max_total_length": SEQ_LEN["pretrain/data"],
        "region_classes": labels,
        "related": relation,
    }
    return settings | of_yaml(file)


def of_yaml(file: str) -> Settings:
    """A run of VL-BERT's code on one process: its rates are per sample."""
    raw = VLBERT[file]
    share = sum(numbers(raw["BATCH_IMAGES"]))
    batch = share * gpus(file) * int(raw.get("GRAD_ACCUMULATE_STEPS", 1))
    schedule = raw.get("LR_SCHEDULE", VLBERT_CODE["LR_SCHEDULE"])
    settings = {
        "batch": batch,
        "lr": float(raw["LR"]) * batch,
        "epochs": float(raw["END_EPOCH"]),
        "optimizer": raw["OPTIMIZER"],
        "weight_decay": float(raw["WD"]),
        "decay_bias_and_norm": VLBERT_CODE["groups"] == 1,
        "max_grad_norm": float(raw["CLIP_GRAD_NORM"]),
        "warmup_steps": int(raw["WARMUP_STEPS"]),
        "schedule": {"triangle": "linear", "step": "steps"}[str(schedule)],
    }
    if raw["OPTIMIZER"] == "AdamW":
        settings |= {"epsilon": VLBERT_CODE["eps"], "betas": VLBERT_CODE["betas"]}
    else:
        settings |= {
            "momentum": float(raw["MOMENTUM"]),
            "milestones": numbers(raw["LR_STEP"]),
            "milestone_factor": float(raw["LR_FACTOR"]),
        }
    return settings


def vlbert_tuned_by_code(step: Step) -> Settings:
    kind, _, task = task_of(step).partition(": ")
    size = "large" if "large" in step.name else "base"
    where = {
        **{"VCR Q to A": f"vcr/{size}_q2a", "VCR QA to R": f"vcr/{size}_qa2r"},
        "VQA": f"vqa/{size}",
        "RefCOCO+ annotated": f"refcoco/{size}_gt_boxes",
        "RefCOCO+ detected": f"refcoco/{size}_detected_regions",
    }
    (file,) = [file for file in VLBERT if file.startswith(f"{where[task]}_4x16G")]
    settings = of_yaml(file)
    if kind == "Half":
        share = ABLATION["epochs"]
        settings["epochs"] *= share
        if "milestones" in settings:
            settings["milestones"] = tuple(each * share for each in settings["milestones"])
    if "refcoco" not in file:
        return settings | vlbert_inputs(task)
    boxes: Any = BOXES["refcoco gt_boxes" if "gt_boxes" in file else "refcoco detected_regions"]
    learned, scored = (BOXES_CALLED[boxes[name]] for name in ("TRAIN_BOXES", "VAL_BOXES"))
    return settings | boxes_of_tracks(scored, learned)


def vlbert_tuned_by_paper(step: Step) -> Settings:
    task = task_of(step)
    if task.startswith("RefCOCO+"):
        inputs = boxes_of_tracks(VLBERT_REGIONS[task], VLBERT_REGIONS[task])
    else:
        inputs = vlbert_inputs(task)
    return vlbert_paper(task.split()[0]) | inputs


def vlbert_paper(section: str) -> Settings:
    (row,) = [row for name, row in VLBERT_PAPER.items() if name.startswith(f"{section}(")]
    words = {name: row[name] for name in ("schedule", "optimizer") if name in row}
    values = {name: numbers(text) for name, text in row.items() if name not in words}
    return words | {name: one if len(one) > 1 else one[0] for name, one in values.items()}


def vlbert_inputs(task: str) -> Settings:
    """Regions and lengths of VCR and VQA, in the paper and, where it is silent, in the code."""
    if task == "VQA":
        most = int(re.findall(r"\d+", str(BOXES["vqa"]))[1])
        return {"max_regions": most, "regions": VLBERT_REGIONS[task]}
    return {
        "regions": VLBERT_REGIONS["VCR"],
        "auxiliary_losses": NETWORK["vcr"]["ENABLE_CNN_REG_LOSS"],  # as in the paper
        "longest_edge": numbers(VLBERT["vcr/base_q2a_4x16G_fp32"]["SCALES"])[1],
        "max_length": SEQ_LEN["vcr/data/datasets/vcr.py"] + 3,
    }


def visualbert(step: Step) -> Settings:
    paper = VISUAL_PAPER
    settings: Settings = {
        **{
            "optimizer": "bertadam",
            "epsilon": BERT_ADAM["e"],
            "max_grad_norm": BERT_ADAM["max_grad_norm"],
        },
        "clip_per_tensor": BERT_ADAM["clip_grad_norm_"] == "each parameter",
        "weight_decay": BERT_ADAM["weight_decay"],
        "schedule": {"warmup_linear": "linear"}[str(BERT_ADAM["schedule"])],
    }
    ablated = re.search(r"\bC[1-4]?[,-]", step.name)
    (folder,) = ["NLVR2"] if ablated else re.findall("VQA|VCR|NLVR2|Flickr30k", step.name)[:1]
    where = {"VQA": "vqa", "VCR": "vcr", "NLVR2": "nlvr2", "Flickr30k": "flickr"}[folder]
    if step.command == "pretrain":
        on_coco = ", COCO" in step.name
        file = f"{where}/{'coco-' if on_coco else ''}pre-train"
        settings["mask_rate"] = float(VISUALBERT[file].get("masked_lm_prob", MASKED_LM_PROB))
        of_phase = visualbert_on_coco if on_coco else visualbert_on_the_task
        settings |= of_phase(step, file)
    else:
        file = f"{where}/fine-tune{visual_part(task_of(step))}"
    raw = VISUALBERT[file]
    # The paper's and the code's longest text and warm-up agree; VCR's phase is in the file alone.
    assert int(raw["max_seq_length"]) == paper["longest"]
    settings |= {
        "max_length": int(raw["max_seq_length"]),
        "warmup_ratio": float(raw["warmup_proportion"]),
        "lr": float(raw["learning_rate"]),
    }
    settings.setdefault("batch", int(raw["train_batch_size"]))
    settings.setdefault("epochs", float(raw["num_train_epochs"]))
    if file == "flickr/fine-tune":  # number of captions, number of phrases
        settings["batch"] = round(settings["batch"] * PHRASES / CAPTIONS)
    if "image_feature_cap" in raw:
        cap = int(raw["image_feature_cap"])
        assert cap == paper["proposals"]
        settings["max_regions"] = paper["proposals in App. C"] if ablated else cap
    if "add_all_features" in raw:
        settings |= {"mentioned_objects_only": True, "object_tags": paper["alignments used"]}
    if step.command == "finetune":
        settings |= visualbert_regions(step, folder)
        settings |= {"eval_every": 1.0, "keep_best": True, "patience": PATIENCE + 1}
    return settings


def visual_part(task: str) -> str:
    return {"VCR Q-A": "-qa", "VCR QA-R": "-qar"}.get(task, "")


def visualbert_on_coco(step: Step, file: str) -> Settings:
    paper = VISUAL_PAPER
    reads = paper["captions"]
    if "Code" in step.name:
        reads = f"COCO, {EXPAND_COCO}"
    settings: Settings = {
        **{"model": paper["initialised from"], "captions": reads, "epoch_unit": "captions"},
        "sentence_image": paper["sentence-image prediction"] and TWO_SENTENCE,
    }
    kind = VISUALBERT[file]["image_feature_type"]
    if kind == "vqa_fix_100":
        settings["regions"] = paper["VQA"]
    elif kind == "r2c":
        settings |= {
            "skip_missing": NULL_DETECTIONS == "skipped",
            "object_classes": CLASS_EMBS,
        }
    else:
        settings["regions"] = paper[kind]
    if "add_spatial_features" in VISUALBERT[file]:
        settings["region_boxes"] = True
    ablations = {"C1": ("grounded", False), "C2": ("early_fusion", False)}
    ablations |= {"C3": ("random_init", True), "C4": ("sentence_image", False)}
    for name, (setting, value) in ablations.items():
        if name in step.name:
            settings[setting] = value
    if "late" in step.name:
        settings["early_fusion"] = False
    return settings | visualbert_pixels(step)


def visualbert_on_the_task(step: Step, file: str) -> Settings:
    paper = VISUAL_PAPER
    settings: Settings = {"task_answers": "right"}
    assert paper["task-specific"] == "masked language modeling with the image"
    if "Code" in step.name:
        judged = VCR_TEXTS["complete_shuffle"] or not NO_NEXT_SENTENCE[file]
        settings["task_answers"] = "judged" if judged else "right"
    if file.startswith("vcr"):
        # An epoch of all texts of a question, here one with two of them.
        settings["task"] = "vcr"
        epochs = int(VISUALBERT[file]["num_train_epochs"])
        settings["epochs"] = epochs * VCR_TEXTS["texts"] / 2
    else:
        folder = {"vqa": "VQA", "nlvr2": "NLVR2", "flickr": "Flickr30k"}[file.partition("/")[0]]
        if folder != "VQA":
            settings["regions"] = paper[folder]
    if "alone" in step.name:
        settings["model"] = paper["initialised from"]
    return settings | visualbert_pixels(step)


def visualbert_pixels(step: Step) -> Settings:
    fixed = "fixed" in step.name or "alone" in step.name
    if "VCR" not in step.name or fixed:
        return {}
    return {"backbone": "ResNet-50"} | sides()


def sides() -> Settings:
    return {
        **{"shortest_edge": RESIZE["desired_height"], "longest_edge": RESIZE["desired_width"]},
        "flip": False,
    }


def visualbert_regions(step: Step, folder: str) -> Settings:
    if folder != "VCR":
        return {"regions": VISUAL_PAPER[folder]}
    if "fixed" in step.name or "w-o-COCO" in step.name:
        return {}
    return {"images": "VCR's images"} | sides()


# -- the plans ---------------------------------------------------------------------------------------------------------
PAPERS: dict[str, Callable[[Step], Settings]] = {
    "uniter.py": uniter,
    "villa.py": villa,
    "vlbert.py": vlbert,
    "visualbert.py": visualbert,
}
TRAINED = ("pretrain", "finetune")


def task_of(step: Step) -> str:
    """The task's name in reports."""
    return step.values["display_name"] or step.values["task"] if step.command == "finetune" else ""


@cache
def planned(file: str) -> list[tuple[Step, set[str]]]:
    """The steps that train, and the settings that the plan marks as equal."""
    recipe = recipe_of(file)
    found = []
    for step in recipe.steps():
        rows = setting_rows(recipe, step).items()
        same = {name for name, row in rows if row["mark"].startswith("same")}
        if step.command in TRAINED and not step.name.endswith(": make"):
            found.append((step, same))
        else:
            assert not same, f"{step.name} makes data"
    return found


def approximately(official: Any) -> Any:
    """Numbers, rounded; anything else unchanged."""
    first = official[0] if isinstance(official, tuple) else official
    is_number = isinstance(first, int | float) and not isinstance(first, bool)
    return pytest.approx(official, rel=1e-9) if is_number else official


def faults(file: str, step: Step, settings: Settings) -> list[str]:
    """The settings of a step that differ from the official files."""
    wrong = []
    for name, official in settings.items():
        value = step.values[name]
        if isinstance(official, str):
            is_equal = format_setting(value).lower() == official.lower()
        else:
            is_equal = value == approximately(official)
        if not is_equal:
            wrong.append(f"{file}, {step.name}: {name} = {value!r}, officially {official!r}")
    return wrong


@pytest.mark.parametrize("file", PAPERS)
def test_settings_are_what_the_official_files_come_to(file: str) -> None:
    """And nothing is called the same that no official file says."""
    wrong, unofficial, compared = [], [], 0
    for step, same in planned(file):
        official = PAPERS[file](step)
        wrong += faults(file, step, official)
        unofficial += [f"{step.name}: {name}" for name in same - set(official)]
        compared += len(same)
    assert (wrong, unofficial) == ([], [])
    assert compared > 150


def test_the_optimizer_of_every_run_by_the_code_is_worked_out_whole() -> None:
    """Defaults that a plan does not set are compared too, such as an epsilon."""
    wanted = {"lr", "optimizer", "weight_decay", "max_grad_norm", "warmup_steps", "schedule"}
    for file in ("uniter.py", "villa.py", "vlbert.py"):
        for step, _ in planned(file):
            name = f"{step.name} {task_of(step)}"
            if file == "vlbert.py" and not re.search("Code: |Half: |^pretrain (?!first)", name):
                continue  # from the paper
            settings = PAPERS[file](step)
            more = set() if settings["optimizer"] == "SGD" else {"epsilon", "betas"}
            assert wanted | more <= set(settings), name
            assert len({"steps", "epochs"} & set(settings)) == 1, name
            assert {"batch", "batch_tokens"} & set(settings) or "VCR" in name, name
