"""Which settings of a command are needed, and which do not go together; no file is opened. Imports nothing heavy."""

from __future__ import annotations

from pathlib import Path

from groundling.config import (
    AdaptConfig,
    AttentionConfig,
    EnsembleConfig,
    FinetuneConfig,
    HeadsConfig,
    LookConfig,
    ModalityConfig,
    PartitionConfig,
    PredictConfig,
    PretrainConfig,
    RegionsConfig,
    RetrieveConfig,
    ShiftConfig,
    SimilarityConfig,
    SyntaxConfig,
    Targeted,
    TeachConfig,
    TrainConfig,
    VcrConfig,
    VerdictConfig,
    ZeroShotConfig,
    check_adapter,
    check_held,
    check_look,
    check_numbers,
    check_training,
    need,
)
from groundling.data.weighted_files import named_folder, weighted, weighted_files
from groundling.errors import InputError
from groundling.models.folders import is_adapter
from groundling.published import PUBLISHED
from groundling.recipes.checks.names import (
    Arm,
    arm_of,
    check_inner,
    check_name,
    check_parts,
    check_teacher,
)

Out = str | Path

# -- what is trained ---------------------------------------------------------------------------------------------------

NEW = ("size", "patch", "vision", "text", "projection", "vocabulary", "window", "untrained")
"""Settings that an existing CLIP leaves no choice of."""


def teach(config: TeachConfig, training: TrainConfig, out: Out) -> None:
    """Raises InputError for settings of a new CLIP beside an existing one, and evaluation of nothing, or on nothing."""
    need(config, "teach", "captions", "images")
    check_numbers(config)
    check_training(training)
    new = TeachConfig()
    for name in NEW:
        if config.start and vars(config)[name] != vars(new)[name]:
            raise InputError(
                f"--start {config.start}: --{name} is for a new CLIP, this one has its own; leave it out"
            )
    held = config.eval_captions or config.eval_listing or config.eval_splits
    flags = "--eval-captions FILE, --eval-listing FILE or --eval-splits NAMES"
    check_held(config.examining, bool(held), flags)
    if config.examining.eval_every and config.untrained:
        raise InputError("--eval-every: --untrained leaves no training to evaluate on the way")


def adapt(config: AdaptConfig, training: TrainConfig, out: Out) -> Arm:
    """What the arm is made of; raises InputError for settings that are missing, or do not go together."""
    arm = arm_of(config.arm, config.masked_lm)
    if not config.student:
        raise InputError(f"--arm {config.arm} needs --student FOLDER_OR_HUB_ID")
    if not config.teacher and (arm.joint or arm.taught):
        raise InputError(f"--arm {config.arm} needs --teacher FOLDER_OR_HUB_ID")
    check_held(config.examining, bool(config.held), "--held FILES, texts that are not learned from")
    learned_from = {each.file for each in weighted_files(config.text, "--text")}
    for path in config.held:
        if path in learned_from:
            raise InputError(f"--held {path}: --text has it, too, so that it is learned from")
    if config.crossing.save_joint and not arm.joint:
        raise InputError(f"--save-joint: --arm {config.arm} has no cross-modal model; use xdbert")
    if config.keep_projection:
        projects = {"l1", "contrastive"} & set(arm.names) and config.distilling.sentence
        if not projects:
            raise InputError(
                f"--keep-projection: --arm {config.arm} trains no sentence projection; use contrastive or l1, with a "
                "--sentence share above 0"
            )
    check_numbers(config)
    check_training(training)
    check_inner(config.inner, config.adversarial)
    return arm


def pretrain(config: PretrainConfig, training: TrainConfig, out: Out) -> None:
    """Raises InputError for settings that are missing, or do not go together."""
    need(config, "pretrain", "student", "regions")
    if bool(config.captions) == bool(config.task):
        raise InputError(
            "pretrain needs --captions FILE, or --task and --data for a task's own texts"
        )
    if config.captions and config.data:
        raise InputError(f"--data {config.data}: captions have none; pass --task with it")
    for flag, given in (
        ("--listing", config.listing),
        ("--caption-splits", " ".join(config.caption_splits)),
        ("--eval-captions", " ".join(config.eval_captions)),
        ("--eval-listing", config.eval_listing),
    ):
        if config.task and given:
            raise InputError(f"{flag} {given}: a task's own texts have none; pass --captions")
    if config.task_answers != "right" and not config.task:
        raise InputError(f"--task-answers {config.task_answers}: captions have none; pass --task")
    if config.train_splits and not config.task:
        raise InputError(
            f"--train-splits {' '.join(config.train_splits)}: captions have none; pass --task and --data"
        )
    if config.regions.mentioned and not config.task:
        raise InputError("--mentioned: captions name no objects by their numbers; pass --task")
    if not config.grounded and config.task:
        raise InputError("--no-grounded: a task's texts are about its images; pass --captions")
    if config.partition and not config.task:
        raise InputError(
            f"--partition {config.partition}: captions have none; pass --task and --data"
        )
    held = config.eval_captions or config.eval_listing or config.eval_splits
    flags = "--eval-captions FILES, --eval-listing FILE or --eval-splits NAMES"
    check_held(config.examining, bool(held), flags)
    check_name("joins", "Design", config.model)
    check_name("tasks", "Task", config.task)
    weighted_files(config.captions, "--captions")
    weighted_files(config.text, "--text")
    for word in config.eval_captions:
        weighted(word, "--eval-captions")
    check_parts(config.objectives, config.teacher, "pretrain")
    check_teacher(config.objectives, config.teacher, config.inner, "pretrain")
    check_numbers(config)
    check_training(training)
    check_inner(config.inner, config.adversarial)


def finetune(
    config: FinetuneConfig, training: TrainConfig, out: Out, task: object | None = None
) -> None:
    """Raises InputError for settings that are missing, or do not go together; `task`: an object in place of a name."""
    need(config, "finetune", "model", "data")
    if not (config.task or config.own.label or task):
        raise InputError("finetune needs --task (or --text and --label for your own file)")
    if config.own.label and (config.task or task):
        raise InputError(
            f"finetune: --label {config.own.label} makes a task of your own file; leave it or --task out"
        )
    _check_regions_given(config)
    if config.seeds < 1:
        raise InputError(f"finetune: --seeds {config.seeds}, expected at least 1")
    if config.max_train < 0:
        raise InputError(f"--max-train {config.max_train}, expected at least 0; 0 means all")
    _check_baselines(config)
    _check_unlabelled(config)
    _check_adapter(config, training)
    check_name("tasks", "Task", config.task)
    check_name("joins", "Design", config.join)
    check_parts(config.objectives, config.teacher, "finetune")
    check_teacher(config.objectives, config.teacher, config.inner, "finetune")
    check_numbers(config)
    check_training(training)
    check_inner(config.inner, config.adversarial)


def _check_baselines(config: FinetuneConfig) -> None:
    """Raises InputError for --baselines of a model that sees no images, or nothing but them."""
    if not config.baselines:
        return
    if config.adapting.adapter != "none" or is_adapter(config.model):
        raise InputError(
            "--baselines is for models that read regions; of an adapter the baseline is the same command without "
            "--adapter, its settings and --teacher-images, which reads the texts alone"
        )
    if not config.regions.regions or config.blind:
        raise InputError(
            "--baselines trains the same model without the images, but this one sees none; pass --regions STORE, or "
            "leave it out"
        )


def _check_unlabelled(config: FinetuneConfig) -> None:
    """Raises InputError if nothing is without a label, or no objective could score it."""
    flag = f"--unlabelled {config.unlabelled}"
    if config.unlabelled < 0:
        raise InputError(f"{flag}: expected at least 0")
    if not config.unlabelled:
        return
    if not config.partition:
        raise InputError(
            f"{flag} is about training examples outside a partition; pass --partition FILE, too"
        )
    if not config.objectives:
        raise InputError(
            f"{flag}: no objective scores what has no label; name one that does, such as --objectives td_text"
        )
    if config.targeted.td_choices == "right":
        raise InputError(
            f"{flag}: nobody knows the right choice of what has no label; leave --td-choices out"
        )


def _check_adapter(config: FinetuneConfig, training: TrainConfig) -> None:
    """Raises InputError for settings that say something of what an adapter over CLIP has not."""
    check_adapter(config.adapting)
    is_new = config.adapting.adapter != "none"
    there = is_adapter(config.model)
    if not (is_new or there):
        return
    if is_new and there:
        raise InputError(f"{config.model}: an adapter over CLIP already; leave --adapter out")
    flag = f"--adapter {config.adapting.adapter}" if is_new else f"--model {config.model}"
    if not config.targeted.teacher_images:
        raise InputError(f"{flag} needs --teacher-images FOLDER, the pictures that CLIP sees")
    without = {
        "--regions": config.regions.regions,
        "--join": config.join,
        "--kind": config.kind,
        "--teacher": config.teacher,
        "--objectives": config.objectives,
        "--inner": config.inner,
        "--batch-tokens": training.batch_tokens,
    }
    for other, given in without.items():
        if given:
            raise InputError(
                f"{flag} reads CLIP's features of whole pictures and texts alone; leave {other} out"
            )
    kept = Targeted(
        teacher_images=config.targeted.teacher_images, teacher_cache=config.targeted.teacher_cache
    )
    if config.targeted != kept:
        raise InputError(
            f"{flag}: nothing is distilled, so CLIP-TD's other settings say nothing; leave them out"
        )


def _check_regions_given(config: FinetuneConfig) -> None:
    """Raises InputError for settings that say something of regions where there are none."""
    if config.regions.regions:
        return
    if config.regions.images:
        raise InputError(
            f"--images {config.regions.images}: a model that reads pixels needs --regions STORE, too, which says where "
            "to look; a CLIP sees whole photos with --adapter mlp --teacher-images FOLDER"
        )
    for flag, given in (("--blind", config.blind), ("--most-regions", config.regions.most_regions)):
        if given:
            raise InputError(f"{flag} is about regions; pass --regions STORE or leave it out")


def regions(config: RegionsConfig, out: Out) -> None:
    """Raises InputError for settings that do not go together."""
    if bool(config.images) == bool(config.imports):
        raise InputError("regions needs --images FOLDER or --imports FILE, one of them")
    if min(config.shard, config.batch, config.processes) < 1 or config.grid < 0:
        raise InputError(
            "regions: --shard, --batch and --processes are at least 1, --grid is not below 0"
        )
    if not config.imports and (config.ids or config.ids_as):
        raise InputError("regions: --ids and --ids-as name the images of --imports; leave them out")
    if bool(config.boxes) and config.grid:
        raise InputError("regions: --boxes and --grid both say where the boxes are; give one")
    if config.also_detected and not config.boxes:
        raise InputError("regions: --also-detected adds to --boxes; without, leave it out")


# -- what is asked -----------------------------------------------------------------------------------------------------

TABLES = (".csv", ".tsv", ".jsonl")
"""Endings of what `predict` writes."""


def predict(config: PredictConfig, out: Out) -> None:
    """Raises InputError without a model or data, and for an `out` that is no table, or there already."""
    need(config, "predict", "model", "data")
    out = Path(out)
    if out.suffix not in TABLES:
        raise InputError(f"--out {out}: expected a file that ends in {', '.join(TABLES)}")
    if out.exists():
        raise InputError(f"{out}: exists already; choose another --out, or remove it")
    if not out.parent.is_dir():
        raise InputError(f"{out}: no folder {out.parent}; make it, or choose another --out")


def zero_shot(config: ZeroShotConfig, out: Out) -> None:
    """Raises InputError without a model, a task, data, or what a CLIP sees."""
    need(config, "zero-shot", "model", "task", "data")
    if not config.regions:
        need(config, "zero-shot with a CLIP", "images")
    check_name("tasks", "Task", config.task)
    check_numbers(config)
    if "{answer}" not in config.prompt:
        raise InputError(f"--prompt {config.prompt!r}: expected {{answer}} in it")


def retrieve(config: RetrieveConfig, out: Out) -> None:
    """Raises InputError for settings that are missing, or that nothing reads."""
    need(config, "retrieve", "model", "captions", "images")
    check_numbers(config)
    if config.max_length and not config.student:
        raise InputError("--max-length is for --student; a CLIP's window cuts its texts")


def heads(config: HeadsConfig, out: Out) -> None:
    """Raises InputError without a model or data, and for a task that there is not."""
    need(config, "heads", "data")
    need(config.attending, "heads", "model")
    check_name("tasks", "Task", config.task)
    check_numbers(config)


def modality(config: ModalityConfig, out: Out) -> None:
    """Raises InputError without a model or data, for a task that there is not, and for a teacher without images."""
    need(config, "modality", "data")
    need(config.attending, "modality", "model")
    if config.teacher:
        need(config, "modality --teacher", "teacher_images")
    check_name("tasks", "Task", config.task)
    check_numbers(config)


def syntax(config: SyntaxConfig, out: Out) -> None:
    """Raises InputError without data, and, but where captions are only written, without parses or a model."""
    need(config, "syntax", "data")
    check_numbers(config)
    if not config.write_captions:
        need(config, "syntax", "parses")
        need(config.attending, "syntax", "model")


def similarity(config: SimilarityConfig, out: Out) -> None:
    """Raises InputError without two models."""
    if not config.a or not config.b:
        raise InputError("similarity needs --a and --b, each a model or `random`")


def attention(config: AttentionConfig, out: Out) -> None:
    """Raises InputError without two models, or texts."""
    if not config.a or not config.b:
        raise InputError(
            "attention needs --a and --b, each a folder `joint` of `adapt --save-joint`"
        )
    if bool(config.text) == bool(config.task and config.data):
        raise InputError("attention needs --text FILE [FILE ...], or --task with --data")
    check_name("tasks", "Task", config.task)


def look(config: LookConfig, out: Out) -> None:
    """Raises InputError as `check_look`, and for a task that there is not."""
    check_look(config)
    check_name("tasks", "Task", config.task)


# -- what is made of runs and data -------------------------------------------------------------------------------------


def verdict(config: VerdictConfig, out: Out) -> None:
    """Raises InputError for fewer than two groups, two of one name, and an unknown published system."""
    if len(groups_of(config)) < 2:
        raise InputError(
            "verdict needs --runs CONTROL_FOLDER OTHER_FOLDER [...], each FOLDER or NAME=FOLDER"
        )
    for text in config.published:
        name, _, system = text.partition("=")
        if system not in PUBLISHED:
            raise InputError(f"--published {name}={system}: there are {', '.join(PUBLISHED)}")


def groups_of(config: VerdictConfig) -> dict[str, str]:
    """The run folders of a verdict by name; raises InputError for two of one name."""
    groups: dict[str, str] = {}
    for text in config.runs:
        name, folder = named_folder(text)
        if not name:
            name = Path(folder).name
        if name in groups:
            raise InputError(f"--runs: two groups are called {name!r}; write NAME=FOLDER")
        groups[name] = folder
    return groups


def vcr(config: VcrConfig, out: Out) -> None:
    """Raises InputError without the runs on both tasks."""
    need(config, "vcr", "data")
    if not config.both:
        need(config, "vcr", "answers", "rationales")
    elif config.answers or config.rationales:
        raise InputError(
            f"vcr: --both {config.both} answers and gives reasons; leave out --answers and --rationales"
        )


def ensemble(config: EnsembleConfig, out: Out) -> None:
    """Raises InputError without runs, a task or data, and for a task that there is not."""
    need(config, "ensemble", "runs", "task", "data")
    check_name("tasks", "Task", config.task)


def partition(config: PartitionConfig, out: Out) -> None:
    """Raises InputError without a task, data or a number, for a task that there is not, and a folder in the way."""
    need(config, "data partition", "task", "data", "per")
    check_name("tasks", "Task", config.task)
    if Path(out).is_dir():
        raise InputError(f"{out}: is a folder; --out names the file of the partition")


READ_BY = {
    "legacy": ("sm", "plural"),
    "attack": ("advtop", "keeptop"),
    "attack_rationale": ("advtop", "keeptop"),
    "losses": ("advtop", "keeptop"),
    "predictions": ("im",),
}
"""Settings that only some kinds read."""


def shift(config: ShiftConfig, out: Out) -> None:
    """Raises InputError for a setting that the kind does not read, or lacks."""
    need(config, "data shift", "data")
    for name, kinds in READ_BY.items():
        if config.__dict__[name] and config.kind not in kinds:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"data shift: --kind {config.kind} does not read {flag}, only {' and '.join(kinds)}"
            )
    if config.kind == "im":
        need(config, "data shift --kind im", "predictions")
    has_attack = bool(config.attack or config.attack_rationale)
    if config.kind in ("advtop", "keeptop") and has_attack == bool(config.losses):
        raise InputError(
            f"data shift --kind {config.kind} needs --attack FOLDER or --losses FILE, one of them"
        )
    if config.kind == "keeptop" and config.keep < 1:
        raise InputError(f"data shift: --keep {config.keep}, expected at least 1")
