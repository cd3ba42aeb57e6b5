"""What a sweep consists of: data, models, tasks, tables, and what a paper says of them. Imports nothing heavy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.sweep.paper import REFERENCE, Note
from groundling.commands.sweep.settings import Filled, filled
from groundling.settings.fields import changed, flat
from groundling.settings.training import TrainConfig

PRETRAININGS = "pretrain"
VERDICTS = "tables"
"""Folders of a sweep that are no variant's."""
JOINT_OF = "joint of "
PRETRAIN_OF = "pretrain of "
SEEDS = 5
"""Runs of every task, where nothing says how many."""
Notes = Mapping[str, Note]
"""What a paper says of settings, by their names."""


@dataclass(frozen=True)
class Source:
    """Data or weights that runs need."""

    name: str
    """How settings refer to it: `data:NAME` or `weights:NAME`."""
    path: str
    """File or folder; of weights also a hub id."""
    title: str
    """What papers call it."""
    get: str = ""
    """Where to obtain it; empty for what is made here, and for a hub id, which is fetched when it is read."""
    kind: str = ""
    """What stands in for it in a miniature; empty for what is made here."""
    size: str = ""
    """Of weights: base or large, for the estimate of hours."""
    examples: int = 0
    """Of data: training examples, for the estimate of steps; 0: not known."""
    tokens: int = 0
    """Of data: pieces and regions of a row on average, for the estimate of hours; 0: not known."""
    answers: str = ""
    """Of weights: the data whose right answers they were trained on, such as `data:vcr`; empty: none."""
    command: str = ""
    """What makes it, if it is not there: the name of a command."""
    settings: Filled = (None, None)
    """Of that command."""


@dataclass(frozen=True)
class Pretraining:
    """A pre-training of the sweep, from which variants start."""

    name: str
    """What the file calls it."""
    settings: Filled
    """`PretrainConfig` and its training; a student may be `pretrain of NAME`."""
    notes: Notes = field(default_factory=dict)
    """What the paper says of them."""


@dataclass(frozen=True)
class Variant:
    """A model of the sweep: adapted as told, or one that is there already."""

    name: str
    """What reports call it."""
    adapt: AdaptConfig
    """How it is adapted."""
    train: TrainConfig
    """How that is optimised."""
    model: str = ""
    """Fine-tuned without adaptation: a hub id, a folder, `pretrain of NAME`, or `joint of NAME`, which is another \
variant's whole model."""
    published: str = ""
    """Which published system it stands for, see `published.py`."""
    tune: tuple[tuple[str, Any], ...] = ()
    """Settings of its own for every fine-tuning, such as regions it does not see."""
    notes: Notes = field(default_factory=dict)
    """What the paper says of its adaptation."""
    tune_notes: Notes = field(default_factory=dict)
    """What the paper says of `tune`."""
    scores: Mapping[str, float] = field(default_factory=dict)
    """What the paper reports, in the metric's own units, by task as reports call it."""

    @property
    def joint_of(self) -> str:
        """The variant whose whole model is fine-tuned; empty if none is."""
        return self.model.removeprefix(JOINT_OF) if self.model.startswith(JOINT_OF) else ""

    @property
    def pretrain_of(self) -> str:
        """The pre-training that it starts from; empty if there is none."""
        return self.model.removeprefix(PRETRAIN_OF) if self.model.startswith(PRETRAIN_OF) else ""


@dataclass(frozen=True)
class Tuning:
    """A task of the sweep and how it is fine-tuned."""

    finetune: FinetuneConfig
    """The task, its data and its settings."""
    train: TrainConfig
    """How that is optimised."""
    seeds: int = 0
    """Runs of this task (XDBERT has 9 of RTE, 5 of the rest); 0: as many as the sweep says."""
    notes: Notes = field(default_factory=dict)
    """What the paper says of these settings."""

    @property
    def name(self) -> str:
        """What folders and reports call it."""
        return self.finetune.called or self.finetune.task

    def of(self, variant: Variant) -> tuple[FinetuneConfig, TrainConfig]:
        """The settings for a variant, with its own."""
        where = f'[variants."{variant.name}".tune]'
        return filled((self.finetune, self.train), dict(variant.tune), where)

    def notes_of(self, variant: Variant) -> Notes:
        """What the paper says of the settings for a variant."""
        return {**self.notes, **variant.tune_notes}


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper: which variants are run on which tasks; the first variant is the control."""

    name: str
    """As the paper numbers it; empty for the whole of a file that has no tables."""
    rows: tuple[str, ...]
    """Variants."""
    columns: tuple[str, ...]
    """Tasks."""


@dataclass(frozen=True)
class Sweep:
    """Everything to run; the first variant is the control."""

    variants: tuple[Variant, ...]
    """The models."""
    tunings: tuple[Tuning, ...]
    """The tasks."""
    seeds: int = SEEDS
    """Runs of every task that has no number of its own."""
    adapt_every_seed: bool = False
    """A seed adapts anew and fine-tunes; otherwise one adaptation, fine-tuned once per seed (the paper's way)."""
    pretrainings: tuple[Pretraining, ...] = ()
    """What comes before adaptation and fine-tuning."""
    sources: Mapping[str, Source] = field(default_factory=dict)
    """Data and weights by reference."""
    tables: tuple[PaperTable, ...] = ()
    """None: every variant is run on every task."""
    title: str = ""
    """The paper."""

    def seeds_of(self, tuning: Tuning) -> int:
        """Runs of a task."""
        return tuning.seeds or self.seeds

    def judged(self) -> tuple[PaperTable, ...]:
        """The tables, or all as one."""
        if self.tables:
            return self.tables
        variants = tuple(variant.name for variant in self.variants)
        return (PaperTable("", variants, tuple(tuning.name for tuning in self.tunings)),)

    def runs(self, variant: Variant, tuning: Tuning) -> bool:
        """Whether a table asks for this cell."""
        return any(
            variant.name in table.rows and tuning.name in table.columns for table in self.judged()
        )

    @property
    def titles(self) -> dict[str, str]:
        """What references are called in print."""
        return {name: source.title for name, source in self.sources.items()}


def slug(name: str) -> str:
    """A name as a folder's name."""
    letters = (letter if letter.isalnum() or letter in "+-." else "-" for letter in name)
    return "".join(letters).strip("-")


def references(value: object) -> list[str]:
    """Every `data:NAME` and `weights:NAME` in a text, or in the texts of settings, lists and tables."""
    if isinstance(value, str):
        return REFERENCE.findall(value)
    if isinstance(value, Mapping):
        return references(list(value.values()))
    if isinstance(value, Sequence):
        return [found for one in value for found in references(one)]
    held = (vars(group)[one.name] for group, one in flat(value))
    # Most settings are numbers, which there is no need to look into.
    return [found for one in held if isinstance(one, str | tuple) for found in references(one)]


def resolved(value: Any, sources: Mapping[str, Source]) -> Any:
    """Settings, or a text, with every reference replaced by the path it stands for."""
    if isinstance(value, str):
        return REFERENCE.sub(lambda match: sources[match[0]].path, value)
    if isinstance(value, tuple):
        return tuple(resolved(one, sources) for one in value)
    new = {one.name: resolved(vars(group)[one.name], sources) for group, one in flat(value)}
    return changed(value, **new) if new else value
