"""VILLA (Gan et al., NeurIPS 2020): UNITER, trained adversarially, fine-tuned on VQA, VCR, SNLI-VE and NLVR2 as in its
released code. Rows with "UNITER" start from UNITER's weights, rows with "VILLA" from the authors' own weights; the code
of their adversarial pre-training was not released.

    groundling run recipes/villa.py --plan
    groundling run recipes/villa.py --table "VQA" --out runs/villa

The settings beside ours are those of zhegan27/VILLA, config/train-*-adv.json. A batch there is a number of tokens per
GPU, times accumulation steps; here one process does the work of all GPUs. uniter.py is the same without adversarial
training, and has the data; boxes are filtered as there (`regions --filter-imports`).
"""

from uniter import BY_QUESTION, RELEASED, VCR, micro_batches, tasks

from groundling.recipes import Table, paper, row, settings, weights

PAPER = "VILLA (Gan et al., NeurIPS 2020)"
OWN = "zhegan27/VILLA, scripts/download_pretrained.sh"
WEIGHTS = {
    f"{name}-{size}": weights(
        f"{name.lower()}-{size}",
        f"weights/{name.lower()}-{size}",
        f"{name}-{size}",
        place,
        kind="uniter",
    )
    for name, place in (("UNITER", RELEASED), ("VILLA", OWN))
    for size in ("base", "large")
}
AFTER_VCR = {
    f"{name}-{size}": weights(
        f"{name.lower()}-{size}-vcr",
        f"weights/{name.lower()}-{size}-vcr",
        f"{name}-{size} after its second stage on VCR",
        place,
        kind="uniter",
        trained_on=VCR,
    )
    for name, place in (("UNITER", RELEASED), ("VILLA", OWN))
    for size in ("base", "large")
}

# -- fine-tuning --

ADVERSARY = settings(
    paper("VILLA's code", training_step="villa"),
    paper("train-*-adv.json", adversarial_steps="3", adversarial_norm="l2"),
)
TASKS = tasks("VILLA's code", ADVERSARY)
TEXT = "text"
BOTH = ("image, text", "both", "the name here for image and text together")
LARGE_BY_QUESTION = (
    "the code counts a question as its four texts, 100 for its annotated boxes and the number of its other boxes, so 8 "
    "questions fit; here a question counts as four rows, and about 6 fit"
)
# fmt: off
SIZES = {
    name: settings(
        paper(
            file,
            lr=lr,
            steps=str(steps),
            warmup_steps=str(steps // 10),
            batch_tokens=tokens,
            gradient_accumulation_steps=micro_batches(accumulation, gpus),
            adversarial_modality=modality,
            adversarial_lr=adversarial_lr,
            adversarial_kl_weight=weight,
        ),
        paper("train_vcr_adv.py", adversarial_kl_reduction="mean")
        if "VCR" in name
        else paper("train_*_adv.py", adversarial_kl_reduction="sum"),
    )
    for name, file, lr, steps, tokens, accumulation, gpus, modality, adversarial_lr, weight in (
        ("VQA, base", "train-vqa-base-4gpu-adv.json", "8e-5", 6000, "5120", 5, 4, TEXT, "1e-3", "1.5"),
        ("VQA, large", "train-vqa-large-8gpu-adv.json", "5e-5", 5000, "3072", 4, 8, TEXT, "2e-3", "1.0"),
        ("VCR, base", "train-vcr-base-4gpu-adv.json", "6e-5", 8000, ("4000, by question", 4000, BY_QUESTION), 5, 4, BOTH, "1e-2", "1.5"),
        ("VCR, large", "train-vcr-large-4gpu-adv.json", "6e-5", 10000, ("2000, by question", 2000, LARGE_BY_QUESTION), 10, 4, BOTH, "1e-1", "1.0"),
        ("SNLI-VE, base", "train-ve-base-2gpu-adv.json", "8e-5", 4000, "4096", 4, 2, TEXT, "1e-3", "1.5"),
        ("SNLI-VE, large", "train-ve-large-4gpu-adv.json", "3e-5", 4000, "4096", 2, 4, TEXT, "1e-3", "1.5"),
        ("NLVR2, base", "train-nlvr2-base-1gpu-adv.json", "3e-5", 8000, "10240", 1, 1, TEXT, "1e-3", "1.5"),
        ("NLVR2, large", "train-nlvr2-large-2gpu-adv.json", "2e-5", 5000, "5120", 2, 2, TEXT, "1e-3", "1.5"),
    )
}
# fmt: on


def table(task):
    """A task with UNITER's and VILLA's weights of both sizes; VCR with those after its second stage."""
    starts = AFTER_VCR if task == "VCR" else WEIGHTS
    rows = [
        row(
            f"{task}, {size}, {start}",
            starts[f"{start}-{size}"],
            {task: TASKS[task]},
            SIZES[f"{task}, {size}"],
        )
        for size in ("base", "large")
        for start in ("UNITER", "VILLA")
    ]
    return Table(task, rows)


TABLES = [table(task) for task in TASKS]
