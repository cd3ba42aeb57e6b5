"""A paper's vision-language model in one file each: its join of text and regions, its heads, its pre-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.field_docs import with_field_docs
from groundling.models.multimodal_embeddings import MultimodalEmbeddings
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective, ObjectiveContext
from groundling.settings.objectives import PretrainingObjectiveSettings
from groundling.vision_language.single_stream import SingleStreamModel


@with_field_docs
@dataclass(frozen=True)
class PretrainingPhase:
    """What a model is pre-trained with: objectives, and how often a step scores which of them."""

    objectives: Callable[[ObjectiveContext, PretrainingObjectiveSettings], list[Objective]]
    """Makes them, from what a run knows and what its settings say."""
    step_mix: Sequence[tuple[float, tuple[str, ...]]] = ()
    """(ratio, objectives) of each kind of step; empty: every step scores all of them."""
    has_caption_pairs: bool = False
    """Two captions a text, as VisualBERT's."""
    keeps_object_tags: bool = False
    """A task's texts keep the places that name objects."""
    can_judge_answers: bool = False
    """Whether a task's texts are right may be predicted (`--task-answers judged`)."""


def leave_unchanged(
    model: SingleStreamModel, examples: Sequence[Example], pretraining: bool
) -> None:
    """Nothing: the model reads these examples as it is."""


@with_field_docs
@dataclass(frozen=True)
class Architecture:
    """A vision-language model that is a BERT over text and regions; raises InputError if its join has another name."""

    name: str
    """Also the join's `kind`, by which a folder's model finds its design."""
    embeddings: type[MultimodalEmbeddings]
    """How texts and regions become one sequence."""
    build: Callable[..., SingleStreamModel]
    """(bert, tokenizer, width of a region's features, options) to a model."""
    pretraining: PretrainingPhase
    """The phase on captioned images."""
    task_pretraining: PretrainingPhase | None = None
    """The phase on a task's own texts, where it is another one."""
    prepare_model: Callable[[SingleStreamModel, Sequence[Example], bool], None] = leave_unchanged
    """Makes a model ready for a task's examples: segments and words that they want, in pre-training (True) or after."""
    heads: Mapping[str, type[TaskHead]] = field(default_factory=dict)
    """The paper's head by task, where it is not the plain one; see docs/papers.md for the settings that go with it."""
    auxiliary_objectives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Objectives by name that the paper trains beside a task's own loss, by task."""
    bert_name: str = ""
    """Which BERT the paper starts from, in a word or two."""

    def __post_init__(self) -> None:
        if self.name != self.embeddings.kind:
            raise InputError(
                f"the design {self.name!r} has a join of the kind {self.embeddings.kind!r}; expected one name for both"
            )
