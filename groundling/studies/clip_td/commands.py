"""CLIP-TD's commands and their settings: shifted VCR, zero-shot answers, ensembles, VCR's joint score."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

from groundling.command_line import Command
from groundling.core.errors import InputError
from groundling.runs.outputs import Inputs, ResumableRun
from groundling.settings.fields import (
    InputKind,
    Settings,
    at_least,
    between,
    flag_name,
    refuse_settings,
    require_settings,
    required,
    unnested,
)
from groundling.settings.input_settings import ImageSettings


@dataclass(frozen=True)
class ShiftConfig(Settings):
    """How VCR's choices are edited or its items chosen, so that shortcuts of the text no longer help."""

    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder with VCR's official files, or one that this command wrote."""
    split: str = "val"
    """Which labelled split."""
    protocol: Literal["none", "sm", "singular", "plural", "advtop", "keeptop", "em", "im"] = "none"
    """none: only measure; sm: pronouns for shared tags, in singular and in plural questions; advtop, keeptop: [MASK] \
where an attack model loses most, or everywhere else; em: synonyms for shared words; im: without what texts tell."""
    legacy: bool = False
    """plural: look for a group in sorted order only, as the released code does."""
    attack: Annotated[str, InputKind.FOLDER] = ""
    """advtop, keeptop: `seed-N/model` of `finetune --task vcr/answer --save-model` without regions."""
    attack_rationale: Annotated[str, InputKind.FOLDER] = ""
    """The same of `vcr/rationale`; empty: rationales stay as they are."""
    losses: Annotated[str, InputKind.FILE] = ""
    """advtop, keeptop: instead of a model, a file of losses, such as the `losses.jsonl` of an earlier run."""
    keep_top: Annotated[int, at_least(1)] = 1
    """keeptop: positions of a choice that are not masked (the paper: 1, 3, 5)."""
    max_length: Annotated[int, at_least(0)] = 128
    """advtop, keeptop: pieces per text for the attack model; longer ones are cut and counted."""
    wordnet: Annotated[str, InputKind.FOLDER] = ""
    """Folder of WordNet 3.0 or 3.1; empty: where Debian or NLTK put it (em), or none: words are not lemmatised."""
    min_count: Annotated[int, at_least(1)] = 10
    """em: replace what so many items share with question or image, or more."""
    max_ngram: Annotated[int, at_least(1)] = 3
    """em: words of the longest n-gram."""
    predictions: Annotated[str, InputKind.FILE] = ""
    """im: `seed-N/predictions_val.jsonl` of `finetune --task vcr/answer` without regions."""
    confidence_threshold: Annotated[float, between(0, 1)] = 0.9
    """im: probability from which a right answer tells that the text is enough."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


READ_BY = {
    "legacy": ("sm", "plural"),
    "attack": ("advtop", "keeptop"),
    "attack_rationale": ("advtop", "keeptop"),
    "losses": ("advtop", "keeptop"),
    "predictions": ("im",),
}
"""Settings that only some protocols read."""


def check_data_shift(config: ShiftConfig, out: str | Path) -> None:
    """Raises InputError for a setting that the protocol does not read, or lacks."""
    for name, readers in READ_BY.items():
        if config.protocol not in readers:
            given = {f"--{flag_name(name)}": vars(config)[name]}
            refuse_settings(
                given,
                f"--protocol {config.protocol} does not read it, only {' and '.join(readers)}",
            )
    if config.protocol == "im":
        require_settings(config, "data shift --protocol im", "predictions")
    has_attack = bool(config.attack or config.attack_rationale)
    if config.protocol in ("advtop", "keeptop") and has_attack == bool(config.losses):
        raise InputError(
            f"data shift --protocol {config.protocol} needs --attack FOLDER or --losses FILE, one of them"
        )


def reads_wordnet(protocol: str, wordnet: str) -> bool:
    """Whether WordNet tells lemmas, and synonyms."""
    return protocol == "em" or bool(wordnet)


def shift_inputs(config: ShiftConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    from groundling.studies.clip_td.explicit_mitigation import wordnet_folder
    from groundling.tasks.vcr import ANSWER

    has_wordnet = reads_wordnet(config.protocol, config.wordnet)
    return {
        "data": ANSWER.file(Path(config.data), config.split),
        "attack": config.attack,
        "attack rationale": config.attack_rationale,
        "losses": config.losses,
        "predictions": config.predictions,
        "wordnet": wordnet_folder(config.wordnet) if has_wordnet else "",
    }


DATA_SHIFT = Command(
    "data shift",
    "VCR's files without the text's shortcuts: SM, EM and IM, with overlap statistics",
    "groundling.studies.clip_td.shift:shift",
    {"_own": ShiftConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling data shift --data vcr_data --protocol sm --out runs/sm",
    common_flags="data protocol split attack losses predictions",
    validate=check_data_shift,
    output=ResumableRun(shift_inputs),
)


@dataclass(frozen=True)
class EnsembleConfig(Settings):
    """Which finished runs are averaged."""

    runs: Annotated[tuple[str, ...], InputKind.FOLDER, required] = ()
    """Run folders of `finetune`, or single seeds' folders in them; every finished seed is a member."""
    task: Annotated[str, InputKind.TASK, required] = ""
    """Task by name, e.g. vcr/answer, or MODULE:NAME of your own."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""


def answers_of(run: str, split: str = "*") -> Inputs:
    """The answers of a run's finished seeds, each a file by its path; a seed's own folder is a run of one."""
    places = [Path(run), *sorted(Path(run).glob("seed-*"))]
    seeds = [place for place in places if (place / "result.json").is_file()]
    files = [file for seed in seeds for file in sorted(seed.glob(f"predictions_{split}.jsonl"))]
    return {str(file): file for file in files}


def ensemble_inputs(config: EnsembleConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    found: dict[str, str | Path] = {"data": config.data}
    for run in config.runs:
        found |= answers_of(run)
    return found


ENSEMBLE = Command(
    "ensemble",
    "several finished runs' probabilities, averaged and scored as one",
    "groundling.studies.clip_td.combined_runs:ensemble",
    {"_own": EnsembleConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling ensemble runs/one runs/other --task vcr/answer --data vcr_data --out "
    "runs/ensemble",
    common_flags="runs task data",
    positional=("--runs",),
    output=ResumableRun(ensemble_inputs),
)


@dataclass(frozen=True)
class VcrConfig(Settings):
    """Which runs on VCR's two tasks are scored together."""

    answers: Annotated[str, InputKind.FOLDER] = ""
    """Run folder of `finetune --task vcr/answer`."""
    rationales: Annotated[str, InputKind.FOLDER] = ""
    """Run folder of `finetune --task vcr/rationale`; its seeds go with the same ones of the other."""
    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder with VCR's official files."""
    split: str = "val"
    """What is scored; of `test`, whose labels are secret, the server's file is written (`finetune --submit` before)."""
    both: Annotated[str, InputKind.FOLDER] = ""
    """Instead of --answers and --rationales: run folder of `finetune --task vcr`, one model for both."""


def check_vcr(config: VcrConfig, out: str | Path) -> None:
    """Raises InputError without the runs on both tasks."""
    if not config.both:
        require_settings(config, "vcr", "answers", "rationales")
    else:
        apart = {"--answers": config.answers, "--rationales": config.rationales}
        refuse_settings(apart, f"--both {config.both} answers and gives reasons; leave it out")


def vcr_inputs(config: VcrConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    from groundling.tasks.vcr import ANSWER

    found: dict[str, str | Path] = {"data": ANSWER.file(Path(config.data), config.split)}
    for run in (config.both, config.answers, config.rationales):
        found |= answers_of(run, config.split) if run else {}
    return found


VCR = Command(
    "vcr",
    "VCR's joint score and server file, from runs on its answers and on its rationales",
    "groundling.studies.clip_td.combined_runs:vcr",
    {"_own": VcrConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling vcr --answers runs/answer --rationales runs/rationale --data vcr_data --out "
    "runs/vcr",
    common_flags="answers rationales both data split",
    validate=check_vcr,
    output=ResumableRun(vcr_inputs),
)


@dataclass(frozen=True)
class ZeroShotConfig(Settings):
    """What a model answers without any training on a task, and how it is asked."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """CLIP-like model, hub id or folder; with --regions a pre-trained single-stream model and its match head."""
    task: Annotated[str, InputKind.TASK, required] = ""
    """A task of images: vcr/answer, vcr/rationale, vcr (both, with Q->AR), snli-ve, vqa, or MODULE:NAME of your own."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""
    split: str = ""
    """What is answered; empty: every labelled split."""
    extra_eval: Annotated[tuple[str, ...], InputKind.NAMED] = ()
    """NAME=FOLDER: also answer the development split of another folder, such as one that `data shift` wrote."""
    shown: Annotated[ImageSettings, unnested] = field(default_factory=ImageSettings)
    object_tags: bool = True
    """VCR: words that name objects are tied to these objects' regions (turn off for a store of others: a grid's)."""
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per text of a single-stream model; a CLIP's own window cuts its texts."""
    protocol: Literal["iqa", "ia"] = "iqa"
    """Multiple choice: the image is compared with question and choice, or with the choice alone (CLIP-TD's IQA and \
IA; of rationales IQR and IR)."""
    fit_split: Literal["split", "train"] = "split"
    """Classes: clusters of the similarities of the split that is answered (transductive, as CLIP-TD does), or of the \
training split's."""
    prompt: str = "{question} {answer}"
    """Answers: what the image is compared with; without {question} the answers are read only once."""
    most_questions: Annotated[int, at_least(0)] = 0
    """At most so many examples of a split, evenly spaced; 0: all."""
    teacher_cache: str = ""
    """Folder in which a CLIP's features stay for other runs; empty: in the run folder, until the run ends."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


def check_zero_shot(config: ZeroShotConfig, out: str | Path) -> None:
    """Raises InputError without a model, a task, data, or what a CLIP sees."""
    if not config.shown.regions:
        require_settings(config, "zero-shot with a CLIP", "images")
    if "{answer}" not in config.prompt:
        raise InputError(f"--prompt {config.prompt!r}: expected {{answer}} in it")


def zero_shot_inputs(config: ZeroShotConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    from groundling.data.regions.inputs import manifests

    return {
        "model": config.model,
        "data": config.data,
        "images": config.shown.images,
        **manifests(config.shown.regions),
        **{f"also {other}": other.partition("=")[2] for other in config.extra_eval},
    }


ZERO_SHOT = Command(
    "zero-shot",
    "what a CLIP, or a pre-trained model's match head, answers without training on a task",
    "groundling.studies.clip_td.zero_shot:zero_shot",
    {"_own": ZeroShotConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling zero-shot --model openai/clip-vit-base-patch16 --task vcr --data vcr_data "
    "--images vcr1images --out runs/zero",
    common_flags="model task data images regions protocol prompt cpu",
    validate=check_zero_shot,
    output=ResumableRun(zero_shot_inputs),
)


COMMANDS = (
    DATA_SHIFT,
    ENSEMBLE,
    VCR,
    ZERO_SHOT,
)
