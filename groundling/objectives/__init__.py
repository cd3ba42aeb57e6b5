"""An objective corrupts samples, has a head, and computes its loss from a model's outputs; made by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import IGNORE, Batch, EncoderOutput, OutputSizes, Sample, require, select
from groundling.core.errors import InputError, duplicates, require_known
from groundling.core.output_types import OutputType
from groundling.core.registry import import_object, is_import_path, public_modules, require_instance
from groundling.core.rng import derive_seed
from groundling.models.heads import save_heads
from groundling.models.hub import VECTORS
from groundling.models.loading import Encoder
from groundling.models.text_encoder import TextEncoder
from groundling.settings.fields import (
    Settings,
    make_settings,
    setting_fields,
    setting_values,
    settings_of,
)
from groundling.settings.objectives import (
    CrossModalEncoderSettings,
    NoSettings,
    ObjectiveSettings,
    parse_options,
)
from groundling.settings.training import TrainingArguments

NegativeSampler = Callable[..., Sample]
"""Draws a sample with the objective's random generator, maybe the same; `similar_length=True`: of about its length."""


class Objective(nn.Module):
    """A training objective: corruption, head and loss.

    For one micro-batch, `forward` returns the *sum* of each loss term by name, and `count` the number of
    items in each sum. The loop divides by the count of the whole step, over accumulation and processes,
    so that splitting a batch changes nothing, except for in-batch negatives. A term without a count, or
    with a count of 0, is divided by 1. Sub-classes take `OutputSizes` first, then their settings as keywords.
    """

    name: str = ""
    """Prefix of its terms in the log, and key of its random generator; required."""
    arm_name: ClassVar[str | None] = None
    """Name in `--arm` and `--objectives`, if it is not `name`; empty: only commands make it."""
    Settings: ClassVar[type[Settings]] = NoSettings
    """Its settings: each is a flag, for your own objective a NAME of `--option NAME=VALUE`, and a keyword of the class.
    """
    required_fields: Sequence[str] = ()
    """Required batch fields, e.g. `text` or `features.sentence`."""
    optional_fields: Sequence[str] = ()
    """Features that it reads where the data has them, e.g. those of images; it also trains on data without."""
    monitored_terms: Sequence[str] = ()
    """Terms that are logged but have weight 0 in the loss, such as how often a gate is open."""
    in_batch_negatives: bool = False
    """True if an item's loss depends on the rest of its micro-batch, which accumulation makes smaller; a run notes it.

    Items of other processes, and with `cached_negatives` of other micro-batches, are included only if the objective
    gathers them (`gather_across_processes`), as the package's own do.
    """
    reads_layers: ClassVar[bool] = False
    """True if it reads `EncoderOutput.layers` or `EncoderOutput.encode_again`, which other runs do not compute."""
    swaps_inputs: ClassVar[bool] = False
    """True if `corrupt` exchanges whole inputs; such objectives run before those that mask tokens or regions."""
    masks_text: ClassVar[bool] = False
    """True if it masks tokens, which only one objective of a run may do."""
    needs_cross_modal: ClassVar[bool] = False
    """True if it reads states after the cross-modal encoder."""

    def __init__(self, sizes: OutputSizes, *, weight: float = 1.0, **settings: Any) -> None:
        """`weight` of its terms in the loss.

        `settings`: values of its `Settings`; raises InputError for one that is unknown or not allowed.
        """
        super().__init__()
        self.sizes = sizes
        self.weight = weight
        self.settings: Any = make_settings(self.Settings, **settings)

    @classmethod
    def from_context(cls, context: ObjectiveContext) -> Self:
        """A new objective for a run; one that needs more than sizes and settings overrides this."""
        return cls(context.sizes, **context.values(cls.Settings))

    @staticmethod
    def wrap_encoder(text: TextEncoder, sizes: OutputSizes) -> Encoder:
        """The model that is trained around the text encoder, for the teachers' widths; by default the encoder."""
        return text

    @classmethod
    def wraps_encoder(cls) -> bool:
        """Whether it trains a model of its own around the text encoder."""
        return cls.wrap_encoder is not Objective.wrap_encoder

    @classmethod
    def features(cls, context: ObjectiveContext | None = None) -> frozenset[str]:
        """Names of the teacher's features that it reads, in a run with these settings."""
        fields = (*cls.required_fields, *cls.optional_fields)
        return frozenset(one.partition(".")[2] for one in fields if one.startswith("features."))

    @classmethod
    def needed_teacher(cls) -> str:
        """The setting that names its teacher; empty if it reads no features."""
        return "teacher" if cls.features() else ""

    def weight_of(self, term: str) -> float:
        """Weight of one of its terms in the loss; 0 for one of `monitored_terms`."""
        return 0.0 if term in self.monitored_terms else self.weight

    def notes(self, means: Mapping[str, float]) -> list[str]:
        """Notes on its `monitored_terms` after a run, one line each, from the last `means` of all terms."""
        return []

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, with their names in its file of heads, for `finetune`."""
        return []

    def saved_modules(self) -> dict[str, nn.Module]:
        """Modules saved beside an exported model, by name, from which a later run can start."""
        return {self.name: self}

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: NegativeSampler
    ) -> Sample:
        """A copy with corrupted inputs and with labels; `sample_negative()` draws another sample."""
        return sample

    def count(self, batch: Batch) -> dict[str, int]:
        """Number of items in each term of `forward`, computed from the batch alone; 0 for none.

        By default the `scored` positions, of a term with the objective's name.
        """
        return {self.name: int(self.scored(batch).sum())}

    def scored(self, batch: Batch) -> Tensor:
        """Mask (N, T) or (N, R) bool of the scored tokens or regions, computed from the batch alone. Abstract."""
        raise InputError(f"{type(self).__name__}: this objective has no method `count`")

    def select_scored(self, values: Tensor, batch: Batch) -> Tensor:
        """The values (n, ...) at the scored positions, of values (N, T, ...) or (N, R, ...)."""
        return select(values, batch.flat_indices(self.scored))

    def loss_targets(self, batch: Batch) -> Mapping[str, LossTargets]:
        """Targets of its terms, computed from the batch alone, for terms that have a constant baseline.

        A run uses them to check whether a term is better than that baseline.
        """
        return {}

    def guessing_losses(self, rows: int) -> Mapping[str, float]:
        """The loss of each term that knows nothing, for terms that compare a batch's `rows` with each other."""
        return {}

    def compute_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor | None:
        """Outputs of the head, such as logits (B, outputs); the loop stores them in `encoded.heads[self.name]`.

        The loop calls `compute_logits` of all active objectives before any `forward`, so that a gate or a
        divergence can use the task's logits.
        """
        return None

    def cached_logits(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Outputs of `compute_logits` in this pass, computed if missing; raises InputError if it returns None."""
        logits = encoded.heads.get(self.name)
        logits = self.compute_logits(encoded, batch) if logits is None else logits
        return require(logits, "compute_logits", self.name)

    def count_logits(self, batch: Batch) -> int:
        """Number of items in the outputs of `compute_logits`, from the batch alone: the first term's count."""
        return next(iter(self.count(batch).values()), 0)

    def comparison_logits(self, logits: Tensor) -> Tensor:
        """The outputs of `compute_logits` as softmax logits (..., K), by which a training step compares two passes."""
        return logits

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Mapping[str, Tensor]:
        """The summed loss of each term, a scalar () by name. Abstract."""
        raise InputError(f"{type(self).__name__}: this objective has no method `forward`")


class LossTargets(NamedTuple):
    """Targets of a term whose loss is a cross-entropy or a squared error."""

    kind: Literal["class", "share", "number"]
    """Type of `values`."""
    values: Tensor
    """(n,) class ids; (n, K) class probabilities; (n, D) numbers."""


def masked_tokens(batch: Batch, who: str) -> Tensor:
    """(N, T) bool: the tokens that masked LM has chosen, which most other objectives leave out; none without it."""
    labels = batch.labels.get("masked_lm")
    if labels is None:
        return torch.zeros_like(require(batch.text, "text", who).word_ids, dtype=torch.bool)
    return labels != IGNORE


def read_words(batch: Batch, sizes: OutputSizes, who: str) -> Tensor:
    """(N, T) long: the raw word that each token's state stands for, -1 for none.

    In a causal model only a word's last token has read all of it, and stands for it.
    """
    word = require(batch.text, "text", who).word_ids
    if not sizes.causal:
        return word
    following = F.pad(word[:, 1:], (0, 1), value=-1)
    return word.masked_fill(word == following, -1)


@dataclass(frozen=True)
class ObjectiveContext:
    """The model, settings and task that a run's objectives are made for."""

    sizes: OutputSizes
    tokenizer: PreTrainedTokenizerBase | None = None
    """The student's; None for a student without one of its own."""
    settings: ObjectiveSettings = field(default_factory=ObjectiveSettings)
    cross_modal: CrossModalEncoderSettings = field(default_factory=CrossModalEncoderSettings)
    output_type: OutputType | None = None
    """The task's output type, with the loss of its head; None without a task."""

    def values(self, kind: type[Settings]) -> dict[str, Any]:
        """The run's values of the settings in a class, by name: of flags, or of `--option` for your own.

        Raises InputError for a malformed option.
        """
        values = setting_values(self.settings, self.cross_modal)
        values = {**parse_options(self.settings.option), **values}
        return {name: values[name] for name in setting_fields(kind) if name in values}


@cache
def built_in_objectives(folder: str = "objectives") -> Mapping[str, type[Objective]]:
    """The package's objectives that a run can name, by this name; in `methods` those of one bench method alone."""
    found = {}
    for module in public_modules(folder):
        for kind in vars(module).values():
            if isinstance(kind, type) and issubclass(kind, Objective):
                own = vars(kind).get("arm_name")
                found[kind.name if own is None else own] = kind
    return {name: kind for name, kind in sorted(found.items()) if name}


def find_objective(name: str) -> type[Objective]:
    """The class of an objective: one of the package's, or `MODULE:NAME` of your own; raises InputError for another."""
    if not is_import_path(name):
        offered = built_in_objectives()
        if name not in offered:  # the core loads no study that is not named
            offered = {**offered, **built_in_objectives("methods")}
        require_known(name, sorted(offered), f"no objective is called {name!r}")
        return offered[name]
    found = import_object(name, object)
    if not isinstance(found, type) or not issubclass(found, Objective):
        raise InputError(f"{name}: expected a sub-class of Objective")
    return found


def order_for_corruption(objectives: Sequence[Objective]) -> list[Objective]:
    """Objectives in the order in which their `corrupt` runs: those that swap whole inputs first."""
    return sorted(objectives, key=lambda objective: not objective.swaps_inputs)


def make_objectives(names: Sequence[str], context: ObjectiveContext, seed: int) -> list[Objective]:
    """Make objectives by name; a head's initialisation depends on the seed and its name, not on other objectives."""
    objectives = []
    for name in names:
        torch.manual_seed(derive_seed(seed, "init", name))
        made = find_objective(name).from_context(context)
        for key, head in made.saved_modules().items():  # not only after training
            require_instance(head, nn.Module, f"{name}: {key!r} of `saved_modules` is")
        objectives.append(made)
    for own in duplicates(objective.name for objective in objectives):
        raise InputError(f"two of {', '.join(names)} are the objective {own}; train one of them")
    return objectives


def save_objective_heads(folder: Path, objectives: Sequence[Objective]) -> None:
    """Write the objectives' `saved_modules` beside an exported model."""
    heads = {name: head for one in objectives for name, head in one.saved_modules().items()}
    save_heads(folder, heads)


def in_batch_negatives_note(
    objectives: Sequence[Objective], training: TrainingArguments
) -> list[str]:
    """A note if gradient accumulation leaves objectives fewer in-batch negatives than the batch size."""
    names = [one.name for one in objectives if one.in_batch_negatives]
    if not names or training.gradient_accumulation_steps == 1 or training.cached_negatives:
        return []
    return [
        f"gradient_accumulation_steps={training.gradient_accumulation_steps}: {', '.join(names)} takes its negatives "
        "from one micro-batch, so the loss differs from that of the whole batch; cached_negatives takes them from all"
    ]


ALWAYS_READ = frozenset({"cache_gb", "teacher_cache", "option", "save_joint"})
"""Settings of the cache, of the user's own parts and of what is saved, which no objective has to read."""
TEACHER_READS = frozenset({"teacher_images", "teacher_space", "max_windows"})
"""Settings that teachers read, whatever the objective."""


def unused_settings_note(
    names: Sequence[str],
    settings: ObjectiveSettings,
    training_step: str,
    cross_modal: CrossModalEncoderSettings | None = None,
    teacher: str = "",
) -> list[str]:
    """A note on settings that differ from their defaults although none of the objectives `names` reads them.

    `cross_modal`: settings of the cross-modal encoder, in a command that may train one. `teacher`: the run's.
    """
    if any(is_import_path(name) for name in (*names, training_step)):
        return []  # the user's own objective may read any setting
    read = set(ALWAYS_READ)
    for kind in map(find_objective, names):
        read |= setting_fields(kind.Settings).keys()
        if kind.needed_teacher():
            read |= TEACHER_READS
        if kind.needs_cross_modal:
            read |= {"max_windows", *setting_fields(CrossModalEncoderSettings)}
    is_stored = teacher.startswith(VECTORS)
    if is_stored:
        read -= TEACHER_READS
    flags = [
        one.name
        for one in [*settings_of(settings), *settings_of(cross_modal)]
        if one.name not in read and one.value != one.default
    ]
    if not flags:
        return []
    trained = " and ".join(names) or "the task's own loss"
    source = f" on {teacher}" if is_stored else ""
    return [f"{', '.join(flags)} has no effect: this run trains {trained}{source}"]
