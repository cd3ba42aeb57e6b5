"""Vision-language models, one file per paper: multimodal embeddings, task heads and pre-training."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.models.multimodal_embeddings import MultimodalEmbeddings
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective, ObjectiveContext
from groundling.settings.objectives import PretrainingVariantSettings
from groundling.vision_language.single_stream import SingleStreamModel


@dataclass(frozen=True)
class PretrainingPhase:
    """A pre-training phase: its objectives, and how often each is trained."""

    objectives: Callable[[ObjectiveContext, PretrainingVariantSettings], list[Objective]]
    """Makes the objectives."""
    step_mix: Sequence[tuple[float, tuple[str, ...]]] = ()
    """(sampling ratio, objectives) of each type of step; empty: every step trains all objectives."""
    has_caption_pairs: bool = False
    """Whether a text is a pair of captions, as in VisualBERT."""
    keeps_object_tags: bool = False
    """Whether a task's texts keep their object tags."""
    can_judge_answers: bool = False
    """Whether it can predict if a task's answer is right (`--task-answers judged`)."""


def leave_unchanged(
    model: SingleStreamModel, examples: Sequence[Example], pretraining: bool
) -> None:
    """The default of `Architecture.prepare_model`: does nothing."""


@dataclass(frozen=True)
class Architecture:
    """A paper's vision-language model, a BERT over text and regions.

    Raises InputError unless its name is the `kind` of its `MultimodalEmbeddings`.
    """

    name: str
    """Also the `kind` of its `MultimodalEmbeddings`, by which a model folder's architecture is found."""
    embeddings: type[MultimodalEmbeddings]
    """Embeds text and regions as one sequence."""
    build: Callable[..., SingleStreamModel]
    """(bert, tokenizer, width of a region's features, options) to a model."""
    pretraining: PretrainingPhase
    """Pre-training on captioned images."""
    task_pretraining: PretrainingPhase | None = None
    """Pre-training on a task's texts, if it differs."""
    prepare_model: Callable[[SingleStreamModel, Sequence[Example], bool], None] = leave_unchanged
    """Adds the segments and words that a task's examples need; called in pre-training (True) and fine-tuning."""
    heads: Mapping[str, type[TaskHead]] = field(default_factory=dict)
    """The paper's head by task, if it is not the plain one; docs/papers.md has the matching settings."""
    auxiliary_objectives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of auxiliary objectives that the paper trains with a task's loss, by task."""
    bert_name: str = ""
    """The BERT that the paper starts from, e.g. `bert-base-cased`."""

    def __post_init__(self) -> None:
        if self.name != self.embeddings.kind:  # a trained model could not be loaded
            raise InputError(f"{self.name}: its `embeddings` have kind = {self.embeddings.kind!r}")
