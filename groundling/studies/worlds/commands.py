"""Commands and settings of the study of worlds: the rendered world, its data sets, its probes, and the quickstart."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.settings.training import TrainConfig

DEV_IMAGES = 10**9
"""Added to the ids of a world's dev images, so that no number of training scenes reaches them."""


@documented
@dataclass(frozen=True)
class WorldConfig:
    """How large a world to render, and from which seed."""

    seed: int = 0
    """Redraws everything: nouns, attributes, scenes, sentences."""
    nouns: int = 162
    """Number of invented nouns."""
    dev_nouns: int = 18
    """Number of nouns for choosing settings."""
    test_nouns: int = 36
    """Number of nouns for the reported numbers (the rest are train nouns)."""
    scenes: int = 16000
    """Number of training images, two captions each."""
    dev_scenes: int = 500
    """Number of held-out images, two captions each."""
    sentences: int = 24000
    """Number of lines in the text corpus."""
    dev_sentences: int = 1000
    """Number of lines in the held-out text corpus."""
    size: int = 32
    """Width and height of an image in pixels, a multiple of 16."""
    stated: float = 0.0
    """Reporting bias: probability that a mention of a noun, in text or caption, states one of its attributes."""
    blind: bool = True
    """Also write the control images, in which each noun's attributes are redrawn for every image."""

    def __post_init__(self) -> None:
        ranges = {"nouns": (4, 1000), "stated": (0, 1)}
        for name, value in asdict(self).items():
            low, high = ranges.get(name, (0, DEV_IMAGES - 1))
            if not low <= value <= high:
                raise InputError(f"{name} is {value}; expected {low} to {high}")
        if self.size < 16 or self.size % 16:
            raise InputError(f"size is {self.size}; expected a positive multiple of 16")
        held_out = self.dev_nouns + self.test_nouns
        if held_out >= self.nouns:
            raise InputError(
                f"dev_nouns + test_nouns is {held_out}; expected fewer than nouns, {self.nouns}"
            )


DATA_WORLD = Command(
    "data world",
    "render a world whose nouns have looks that only images show",
    "groundling.studies.worlds.render:render_world",
    {"_own": WorldConfig()},
    speaks=True,
)


@documented
@dataclass(frozen=True)
class TasksConfig:
    """A rendered world as six vision-and-language data sets with captions, boxes, and a small untrained BERT."""

    train: int = 4000
    """Most examples of a training split."""
    held: int = 1000
    """Most examples of a held-out split."""
    shortcut: float = 0.0
    """Share of VCR's questions, 0 to 1, whose wrong answers are of no kind that was asked for: their text tells."""


DATA_TASKS = Command(
    "data tasks",
    "a rendered world as six vision-and-language data sets, with captions and boxes",
    "groundling.studies.worlds.render:render_tasks",
    {"_own": TasksConfig(), "world": WorldConfig()},
    speaks=True,
)


@documented
@dataclass(frozen=True)
class ProbeConfig:
    """How an encoder is asked what it knows of a world's nouns."""

    model: str = ""
    """Text encoder: hub id or folder."""
    data: str = ""
    """Folder of a rendered world, or of your own: its `probes` hold attribute.tsv, questions, or both."""
    seeds: int = 3
    """Times that each question is fine-tuned on; each time draws its head and the order of its examples anew."""
    questions: tuple[str, ...] = ()
    """Questions that are fine-tuned on, each NAME of a file NAME_train.tsv; empty: all that are there."""
    columns: tuple[str, ...] = ()
    """Columns of attribute.tsv that linear probes ask for; empty: all."""
    max_length: int = 32
    """Pieces per sentence."""
    kind: str = ""
    """MODULE:NAME of a `Kind` of your own that loads --model; empty: it is told from the folder."""


PROBING = TrainConfig(steps=1000, lr=5e-4, warmup=0.1, weight_decay=0.0, log_every=50)
"""Fine-tuning on a world's questions: at 250 steps the odd one out was in mid-rise, and moved by .18 with the seed."""


PROBE = Command(
    "probe",
    "ask an encoder what it knows of a rendered world's nouns",
    "groundling.studies.worlds.probe:probe",
    {"_own": ProbeConfig(), "_train": PROBING},
    needs=("model", "data"),
)


@documented
@dataclass(frozen=True)
class QuickstartConfig:
    """The whole path on a rendered world, offline, from nothing."""

    seed: int = 0
    """Draws another world, other scenes and other weights."""
    processes: int = 2
    """Runs side by side, one thread each."""
    full: bool = False
    """All arms, a blind teacher's too, and every probe, as in docs/results.md, section 1, in four times the time; \
otherwise one arm that transfers looks, beside the control."""
    scale: float = 1.0
    """Multiplies every number of steps; below 1 nothing is learned, which is for trying the machinery."""


QUICKSTART = Command(
    "quickstart",
    "the whole path on a rendered world, offline, in minutes",
    "groundling.studies.worlds.quickstart:quickstart",
    {"_own": QuickstartConfig()},
    speaks=True,
)


COMMANDS = (
    DATA_TASKS,
    DATA_WORLD,
    PROBE,
    QUICKSTART,
)
