"""CLIP-TD's commands and settings: shifted VCR, zero-shot answers, ensembles, VCR's joint score."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge, Interval

from groundling.command_line import Command, Inputs, ResumableRun
from groundling.command_line.names import input_paths
from groundling.core.errors import InputError
from groundling.settings.fields import (
    InputKind,
    Settings,
    refuse_settings,
    require_settings,
    required,
    settings,
)
from groundling.settings.input_settings import ImageSettings


@settings
class VcrShiftConfig(Settings):
    """Editing or selection of VCR examples that removes text shortcuts."""

    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder with VCR's official files, or an output of this command."""
    split: str = "val"
    """Labelled split to edit."""
    protocol: Literal["none", "sm", "singular", "plural", "advtop", "keeptop", "em", "im"] = "none"
    """none: only measure overlaps; sm: replace shared object tags by pronouns, in singular and in plural questions \
(singular, plural: only in these); advtop, keeptop: [MASK] where an attack model loses most, or everywhere else; em: \
replace shared words by synonyms; im: drop examples that a text-only model answers right with confidence."""
    legacy: bool = False
    """sm, plural: match groups of tags in sorted order only, as the released code does."""
    attack: Annotated[str, InputKind.FOLDER] = ""
    """advtop, keeptop: attack model, `seed-N/model` of `finetune --task vcr/answer --save-model` without regions."""
    attack_rationale: Annotated[str, InputKind.FOLDER] = ""
    """advtop, keeptop: attack model of `vcr/rationale`; empty: rationales are not edited."""
    losses: Annotated[str, InputKind.FILE] = ""
    """advtop, keeptop: instead of a model, a file of losses, such as `losses.jsonl` of an earlier run."""
    keep_top: Annotated[int, Ge(1)] = 1
    """keeptop: number of unmasked positions per choice (the paper: 1, 3, 5)."""
    max_length: Annotated[int, Ge(0)] = 128
    """advtop, keeptop: maximum tokens per text for the attack model; longer texts are truncated and counted."""
    wordnet: Annotated[str, InputKind.FOLDER] = ""
    """Folder of WordNet 3.0 or 3.1; empty: where Debian or NLTK install it (em), or no \
lemmatisation (other protocols)."""
    min_count: Annotated[int, Ge(1)] = 10
    """em: replace n-grams that at least this many examples share with their question or image."""
    max_ngram: Annotated[int, Ge(1)] = 3
    """em: maximum n-gram length in words."""
    predictions: Annotated[str, InputKind.FILE] = ""
    """im: predictions of the text-only model, `seed-N/predictions_val.jsonl` of `finetune --task \
vcr/answer` without regions."""
    confidence_threshold: Annotated[float, Interval(gt=0, le=1)] = 0.9
    """im: minimum probability of a right answer at which an example is dropped."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


def check_data_shift(config: VcrShiftConfig, out: str | Path) -> None:
    """Raises InputError for a setting that the protocol lacks, and for losses of two sources."""
    if config.protocol == "im":
        require_settings(config, "data shift protocol=im", "predictions")
    has_attack = bool(config.attack or config.attack_rationale)
    if config.protocol in ("advtop", "keeptop") and has_attack == bool(config.losses):
        raise InputError(f"protocol={config.protocol} needs either attack=FOLDER or losses=FILE")


def reads_wordnet(protocol: str, wordnet: str) -> bool:
    """Whether WordNet provides lemmas and synonyms."""
    return protocol == "em" or bool(wordnet)


def shift_inputs(config: VcrShiftConfig) -> Inputs:
    """Inputs whose hashes identify a run."""
    from groundling.studies.clip_td.explicit_mitigation import wordnet_folder
    from groundling.tasks.vcr import ANSWER

    has_wordnet = reads_wordnet(config.protocol, config.wordnet)
    own = {"data": ANSWER.file(Path(config.data), config.split)}
    words = {"wordnet": wordnet_folder(config.wordnet)} if has_wordnet else {}
    return {**input_paths(config), **own, **words}


DATA_SHIFT = Command(
    "data shift",
    "make VCR files without text shortcuts (SM, EM, IM), with overlap statistics",
    "groundling.studies.clip_td.shift:shift",
    {"_own": VcrShiftConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling data shift --data vcr_data --protocol sm --out runs/sm",
    common_flags="data protocol split attack losses predictions",
    validate=check_data_shift,
    output=ResumableRun(shift_inputs),
)


@settings
class EnsembleConfig(Settings):
    """Finished runs that are averaged."""

    runs: Annotated[tuple[str, ...], InputKind.FOLDER, required] = ()
    """Run folders of `finetune`, or folders of single seeds; every finished seed is a member."""
    task: Annotated[str, InputKind.OBJECT, required] = ""
    """Task name, e.g. vcr/answer, or MODULE:NAME of your own task."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""


def answers_of(run: str, split: str = "*") -> Inputs:
    """Prediction files of a run's finished seeds, by path; a seed's own folder counts as a run of one."""
    places = [Path(run), *sorted(Path(run).glob("seed-*"))]
    seeds = [place for place in places if (place / "result.json").is_file()]
    files = [file for seed in seeds for file in sorted(seed.glob(f"predictions_{split}.jsonl"))]
    return {str(file): file for file in files}


def ensemble_inputs(config: EnsembleConfig) -> Inputs:
    """Inputs whose hashes identify a run."""
    inputs: dict[str, str | Path] = {"data": config.data}
    for run in config.runs:
        inputs |= answers_of(run)
    return inputs


ENSEMBLE = Command(
    "ensemble",
    "average the probabilities of finished runs and score the ensemble",
    "groundling.studies.clip_td.combined_runs:ensemble",
    {"_own": EnsembleConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling ensemble runs/one runs/other --task vcr/answer --data vcr_data --out "
    "runs/ensemble",
    common_flags="runs task data",
    positional=("--runs",),
    output=ResumableRun(ensemble_inputs),
)


@settings
class VcrJointScoreConfig(Settings):
    """Runs on VCR's two tasks that are scored together."""

    answers: Annotated[str, InputKind.FOLDER] = ""
    """Run folder of `finetune --task vcr/answer`."""
    rationales: Annotated[str, InputKind.FOLDER] = ""
    """Run folder of `finetune --task vcr/rationale`; seeds are paired with equal seeds of --answers."""
    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder with VCR's official files."""
    split: str = "val"
    """Split to score; for `test`, whose labels are secret, the server's file is written (needs `finetune --submit`)."""
    both: Annotated[str, InputKind.FOLDER] = ""
    """Instead of --answers and --rationales: run folder of `finetune --task vcr`, where one model does both."""


def check_vcr(config: VcrJointScoreConfig, out: str | Path) -> None:
    """Raises InputError without runs on both tasks, and for two sources of them."""
    if config.both:
        reason = f"both={config.both} has both; leave it out"
        refuse_settings(config, reason, "answers", "rationales")
    else:
        require_settings(config, "vcr", "answers", "rationales")


def vcr_inputs(config: VcrJointScoreConfig) -> Inputs:
    """Inputs whose hashes identify a run."""
    from groundling.tasks.vcr import ANSWER

    inputs: dict[str, str | Path] = {"data": ANSWER.file(Path(config.data), config.split)}
    for run in (config.both, config.answers, config.rationales):
        inputs |= answers_of(run, config.split) if run else {}
    return inputs


VCR = Command(
    "vcr",
    "VCR's joint Q->AR score and server file, from runs on answers and on rationales",
    "groundling.studies.clip_td.combined_runs:vcr",
    {"_own": VcrJointScoreConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling vcr --answers runs/answer --rationales runs/rationale --data vcr_data --out "
    "runs/vcr",
    common_flags="answers rationales both data split",
    validate=check_vcr,
    output=ResumableRun(vcr_inputs),
)


@settings
class ZeroShotConfig(Settings):
    """Zero-shot evaluation of a model on a task."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """CLIP-like model: hub id or folder; with --regions a pre-trained single-stream model with a match head."""
    task: Annotated[str, InputKind.OBJECT, required] = ""
    """Task with images: vcr/answer, vcr/rationale, vcr (both, with Q->AR), snli-ve, vqa, or \
MODULE:NAME of your own task."""
    data: Annotated[str, InputKind.PATH, required] = ""
    """Folder with the task's official files."""
    split: str = ""
    """Split to evaluate; empty: every labelled split."""
    extra_eval: Annotated[tuple[str, ...], InputKind.NAMED] = ()
    """NAME=FOLDER: also evaluate on the development split of another folder, such as an output of `data shift`."""
    image_settings: ImageSettings = field(default_factory=ImageSettings)
    object_tags: bool = True
    """VCR: link words that name objects to the regions of these objects; turn off for stores of \
other regions, such as a grid."""
    max_length: Annotated[int, Ge(0)] = 128
    """Single-stream model: maximum tokens per text. A CLIP truncates texts to its own context length."""
    protocol: Literal["iqa", "ia"] = "iqa"
    """Multiple choice: match the image with question and choice (iqa), or with the choice alone \
(ia) (CLIP-TD's IQA and IA; for rationales IQR and IR)."""
    prompt: str = "{question} {answer}"
    """Open answers (vqa): text that the image is matched with; without {question} each answer is encoded only once."""
    most_questions: Annotated[int, Ge(0)] = 0
    """Maximum number of examples of a split, evenly spaced; 0: all."""
    teacher_cache: str = ""
    """Folder that keeps the CLIP's features for other runs; empty: they stay in the run folder until the run ends."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


def check_zero_shot(config: ZeroShotConfig, out: str | Path) -> None:
    """Raises InputError for a CLIP without --images, and for a prompt without {answer}."""
    if not config.image_settings.regions:
        require_settings(config, "zero-shot with a CLIP", "images")
    if "{answer}" not in config.prompt:
        raise InputError(f"prompt={config.prompt!r}: expected a prompt that contains {{answer}}")


ZERO_SHOT = Command(
    "zero-shot",
    "zero-shot evaluation of a CLIP, or of a pre-trained model's match head, on a task",
    "groundling.studies.clip_td.zero_shot:zero_shot",
    {"_own": ZeroShotConfig()},
    title="CLIP-TD: shifted VCR, zero-shot answers, ensembles",
    example="groundling zero-shot --model openai/clip-vit-base-patch16 --task vcr --data vcr_data "
    "--images vcr1images --out runs/zero",
    common_flags="model task data images regions protocol prompt cpu",
    validate=check_zero_shot,
    output=ResumableRun(input_paths),
)


COMMANDS = (
    DATA_SHIFT,
    ENSEMBLE,
    VCR,
    ZERO_SHOT,
)
