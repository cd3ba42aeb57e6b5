"""Commands and settings of the study of worlds: the rendered world, its data sets, its probes, and the quickstart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from groundling.command_line import Command
from groundling.core.errors import InputError
from groundling.runs.outputs import Inputs, OutputFile, ResumableRun
from groundling.settings.fields import (
    InputKind,
    InvalidSettingError,
    Settings,
    above,
    at_least,
    between,
    required,
)
from groundling.settings.training import TrainConfig

DEV_IMAGES = 10**9
"""Added to the ids of a world's dev images, so that no number of training scenes reaches them."""


@dataclass(frozen=True)
class WorldConfig(Settings):
    """How large a world to render, and from which seed."""

    seed: Annotated[int, at_least(0, below=DEV_IMAGES)] = 0
    """Redraws everything: nouns, attributes, scenes, sentences."""
    nouns: Annotated[int, between(4, 1000)] = 162
    """Number of invented nouns."""
    dev_nouns: Annotated[int, at_least(0, below=DEV_IMAGES)] = 18
    """Number of nouns for choosing settings."""
    test_nouns: Annotated[int, at_least(0, below=DEV_IMAGES)] = 36
    """Number of nouns for the reported numbers (the rest are train nouns)."""
    scenes: Annotated[int, at_least(0, below=DEV_IMAGES)] = 16000
    """Number of training images, two captions each."""
    dev_scenes: Annotated[int, at_least(0, below=DEV_IMAGES)] = 500
    """Number of held-out images, two captions each."""
    sentences: Annotated[int, at_least(0, below=DEV_IMAGES)] = 24000
    """Number of lines in the text corpus."""
    dev_sentences: Annotated[int, at_least(0, below=DEV_IMAGES)] = 1000
    """Number of lines in the held-out text corpus."""
    size: Annotated[int, at_least(16)] = 32
    """Width and height of an image in pixels, a multiple of 16."""
    stated_rate: Annotated[float, between(0, 1)] = 0.0
    """Reporting bias: probability that a mention of a noun, in text or caption, states one of its attributes."""
    control_images: bool = True
    """Also write the control images, in which each noun's attributes are redrawn for every image."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.size % 16:
            raise InvalidSettingError("size", f" = {self.size}, expected a multiple of 16")
        held_out = self.dev_nouns + self.test_nouns
        if held_out >= self.nouns:
            raise InputError(
                f"dev_nouns + test_nouns is {held_out}; expected fewer than nouns, {self.nouns}"
            )


DATA_WORLD = Command(
    "data make-world",
    "render a world whose nouns have looks that only images show",
    "groundling.studies.worlds.data_sets:render_world",
    {"_own": WorldConfig()},
    title="Worlds: the rendered world and the quickstart",
    example="groundling data make-world --out runs/world",
    common_flags="seed scenes sentences stated-rate",
    prints_output=True,
    output=OutputFile(("world.json*",)),
)


@dataclass(frozen=True)
class TasksConfig(Settings):
    """A rendered world as six vision-and-language data sets with captions, boxes, and a small untrained BERT."""

    limit_train: Annotated[int, at_least(1)] = 4000
    """Most examples of a training split."""
    limit_dev: Annotated[int, at_least(1)] = 1000
    """Most examples of a held-out split."""
    shortcut: Annotated[float, between(0, 1)] = 0.0
    """Share of VCR's questions, 0 to 1, whose wrong answers are of no kind that was asked for: their text tells."""


DATA_TASKS = Command(
    "data make-tasks",
    "a rendered world as six vision-and-language data sets, with captions and boxes",
    "groundling.studies.worlds.data_sets:render_tasks",
    {"_own": TasksConfig(), "world": WorldConfig()},
    title="Worlds: the rendered world and the quickstart",
    example="groundling data make-tasks --out runs/vision",
    common_flags="limit-train limit-dev shortcut world.seed",
    prints_output=True,
    output=OutputFile(("tasks.json*",)),
)


@dataclass(frozen=True)
class ProbeConfig(Settings):
    """How an encoder is asked what it knows of a world's nouns."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Text encoder: hub id or folder."""
    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of a rendered world, or of your own: its `probes` hold attribute.tsv, questions, or both."""
    seeds: Annotated[int, at_least(1)] = 3
    """Times that each question is fine-tuned on; each time draws its head and the order of its examples anew."""
    questions: tuple[str, ...] = ()
    """Questions that are fine-tuned on, each NAME of a file NAME_train.tsv; empty: all that are there."""
    columns: tuple[str, ...] = ()
    """Columns of attribute.tsv that linear probes ask for; empty: all."""
    max_length: Annotated[int, at_least(0)] = 32
    """Pieces per sentence."""
    kind: str = ""
    """MODULE:NAME of a `ModelFormat` of your own that loads --model; empty: it is told from the folder."""


PROBING = TrainConfig(steps=1000, lr=5e-4, warmup_ratio=0.1, weight_decay=0.0, log_every=50)
"""Fine-tuning on a world's questions: at 250 steps the odd one out was in mid-rise, and moved by .18 with the seed."""


def probe_inputs(config: ProbeConfig, training: TrainConfig) -> Inputs:
    """What tells runs apart beside their settings."""
    return {"model": config.model, "data": Path(config.data) / "probes"}


PROBE = Command(
    "probe",
    "ask an encoder what it knows of a rendered world's nouns",
    "groundling.studies.worlds.probe:probe",
    {"_own": ProbeConfig(), "_train": PROBING},
    title="Worlds: the rendered world and the quickstart",
    example="groundling probe --model bert-base-uncased --data runs/world --out runs/probe",
    common_flags="model data questions seeds steps cpu",
    output=ResumableRun(probe_inputs),
)


@dataclass(frozen=True)
class QuickstartConfig(Settings):
    """The whole path on a rendered world, offline, from nothing."""

    seed: Annotated[int, at_least(0)] = 0
    """Draws another world, other scenes and other weights."""
    processes: Annotated[int, at_least(1)] = 2
    """Runs side by side, one thread each."""
    full: bool = False
    """All arms, a blind teacher's too, and every probe, as in docs/results.md, section 1, in four times the time; \
otherwise one arm that transfers looks, beside the control."""
    scale: Annotated[float, above(0)] = 1.0
    """Multiplies every number of steps; below 1 nothing is learned, which is for trying the machinery."""


QUICKSTART = Command(
    "quickstart",
    "the whole path on a rendered world, offline, in minutes",
    "groundling.studies.worlds.quickstart:quickstart",
    {"_own": QuickstartConfig()},
    title="Worlds: the rendered world and the quickstart",
    example="groundling quickstart",
    common_flags="full seed processes",
    prints_output=True,
    output=ResumableRun(ignored_settings=("processes",), extendable=True),
)


COMMANDS = (
    DATA_TASKS,
    DATA_WORLD,
    PROBE,
    QUICKSTART,
)
