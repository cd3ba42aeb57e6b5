"""Commands and settings of the worlds study: the rendered world, its data sets and probes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from annotated_types import Ge, Interval

from groundling.command_line import Command, OutputFile, ResumableRun
from groundling.core.errors import InputError
from groundling.settings.fields import InputKind, Settings, required, settings
from groundling.settings.training import WITHOUT_EFFECT, TrainingArguments

TITLE = "Worlds: the rendered world and the quickstart"
DEV_IMAGES = 10**9
"""Offset of the ids of development images, larger than any number of training scenes."""
OUT_HELP = (
    "Output folder for the data: new or empty, or an older output of this command, whose files are "
    "replaced."
)


@settings
class WorldConfig(Settings):
    """Family, size and seed of a rendered world."""

    family: str = "objects"
    """What nouns look like and how text speaks of them: objects (coloured shapes, English), \
pictograms (line drawings, another grammar), or MODULE:NAME of your own `WorldFamily`."""
    seed: Annotated[int, Interval(ge=0, lt=DEV_IMAGES)] = 0
    """Seed of everything: nouns, attributes, scenes, sentences."""
    nouns: Annotated[int, Interval(ge=4, le=1000)] = 162
    """Number of invented nouns."""
    dev_nouns: Annotated[int, Ge(1)] = 18
    """Number of nouns held out for choosing settings."""
    test_nouns: Annotated[int, Ge(1)] = 36
    """Number of nouns held out for reported results; the rest are training nouns."""
    scenes: Annotated[int, Interval(ge=0, lt=DEV_IMAGES)] = 16000
    """Number of training images, with two captions each."""
    dev_scenes: Annotated[int, Interval(ge=0, lt=DEV_IMAGES)] = 500
    """Number of held-out images, with two captions each."""
    sentences: Annotated[int, Interval(ge=0, lt=DEV_IMAGES)] = 24000
    """Number of lines of the text corpus."""
    dev_sentences: Annotated[int, Interval(ge=0, lt=DEV_IMAGES)] = 1000
    """Number of lines of the held-out text corpus."""
    size: Annotated[int, Ge(16)] = 32
    """Image width and height in pixels, a multiple of 16."""
    stated_rate: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Reporting bias: probability that a mention of a noun in text or captions states one of its attributes."""
    control_images: bool = True
    """Also render the control images, in which each noun's attributes are redrawn for every image."""

    def __post_init__(self) -> None:
        if self.size % 16:
            raise InputError(f"size = {self.size}: expected a multiple of 16")
        held_out = self.dev_nouns + self.test_nouns
        if held_out >= self.nouns:
            raise InputError(
                f"dev_nouns + test_nouns = {held_out}, expected fewer than nouns = {self.nouns}"
            )


def _check_family(config: WorldConfig, out: str) -> None:
    from groundling.studies.worlds.families import find_family

    find_family(config.family)


def _check_tasks_family(tasks: TasksConfig, world: WorldConfig, out: str) -> None:
    if world.family != WorldConfig.family:
        raise InputError(
            f"world.family={world.family}: the six data sets speak of the family {WorldConfig.family} only; "
            "`groundling data make-world` writes other families"
        )


DATA_WORLD = Command(
    "data make-world",
    "render a world whose nouns have visual attributes that only images show",
    "groundling.studies.worlds.data_sets:render_world",
    {"_own": WorldConfig()},
    title=TITLE,
    example="groundling data make-world --out runs/world",
    common_flags="family seed scenes sentences stated-rate",
    validate=_check_family,
    out_help=OUT_HELP,
    output=OutputFile(("world.json*",)),
)


@settings
class TasksConfig(Settings):
    """A rendered world as six vision-and-language data sets, with captions, boxes, and a small untrained BERT."""

    limit_train: Annotated[int, Ge(1)] = 4000
    """Maximum number of examples of each data set's training split."""
    limit_dev: Annotated[int, Ge(1)] = 1000
    """Maximum number of examples of each held-out split."""
    shortcut: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Share of VCR's questions with a text shortcut: their wrong answers are of another kind than \
the question asks for."""


DATA_TASKS = Command(
    "data make-tasks",
    "make six vision-and-language data sets of a rendered world, with captions and boxes",
    "groundling.studies.worlds.data_sets:render_tasks",
    {"_own": TasksConfig(), "world": WorldConfig()},
    title=TITLE,
    example="groundling data make-tasks --out runs/vision",
    common_flags="limit-train limit-dev shortcut world.seed",
    validate=_check_tasks_family,
    out_help=OUT_HELP,
    output=OutputFile(("tasks.json*",)),
)


@settings
class TrueRegionsConfig(Settings):
    """Region store of a rendered world whose features are the objects' attributes."""

    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder that `data make-tasks` wrote."""
    noise: Annotated[float, Interval(ge=0, le=1)] = 0.0
    """Probability that an object's attribute is redrawn from all its values; 1 is chance."""
    seed: Annotated[int, Ge(0)] = 0
    """Seed of the noise."""


DATA_TRUE_REGIONS = Command(
    "data make-store",
    "make a region store of a rendered world whose features are the objects' attributes",
    "groundling.studies.worlds.data_sets:make_store",
    {"_own": TrueRegionsConfig()},
    title=TITLE,
    example="groundling data make-store --data runs/vision --out runs/vision/true_store",
    common_flags="data noise",
    output=ResumableRun(lambda config: {"data": Path(config.data) / "instances.json"}),
)


@settings
class ProbeConfig(Settings):
    """Probes of an encoder's knowledge about a world's nouns."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Text encoder: hub id or folder."""
    data: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of a rendered world, or your own; its subfolder `probes` holds attribute.tsv, questions, or both."""
    seeds: Annotated[int, Ge(1)] = 3
    """Number of fine-tuning runs per question; each has its own head initialisation and example order."""
    questions: tuple[str, ...] = ()
    """Questions to fine-tune on, each NAME of a file NAME_train.tsv; empty: all."""
    columns: tuple[str, ...] = ()
    """Columns of attribute.tsv that linear probes predict; empty: all."""
    max_length: Annotated[int, Ge(0)] = 32
    """Maximum tokens per sentence."""
    model_format: Annotated[str, InputKind.OBJECT] = ""
    """MODULE:NAME of your own `ModelFormat` that loads --model; empty: detected from the folder."""


PROBING = TrainingArguments(steps=1000, lr=5e-4, warmup_ratio=0.1, weight_decay=0.0, log_every=50)
"""Fine-tuning on a world's questions; at 250 steps accuracy on the odd one out was still rising \
and varied by 0.18 between seeds."""


PROBE = Command(
    "probe",
    "probe an encoder's knowledge of a rendered world's nouns",
    "groundling.studies.worlds.probe:probe",
    {"_own": ProbeConfig(), "_train": PROBING},
    title=TITLE,
    example="groundling probe --model bert-base-uncased --data runs/world --out runs/probe",
    common_flags="model data questions seeds steps cpu",
    output=ResumableRun(
        lambda config, training: {"model": config.model, "data": Path(config.data) / "probes"},
        WITHOUT_EFFECT,
    ),
)


COMMANDS = (DATA_TASKS, DATA_TRUE_REGIONS, DATA_WORLD, PROBE)
