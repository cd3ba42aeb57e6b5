"""Vision-language models, one file per paper: what commands, predictions and studies ask of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.registry import require_instance, resolve_builtin
from groundling.data.regions.samples import RegionRequirements
from groundling.models.heads import load_head
from groundling.models.loading import Encoder
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective, ObjectiveContext
from groundling.settings.objectives import PretrainingVariantSettings


class RegionEncoder(Encoder, RegionRequirements):
    """A model that reads text and regions, or text and patches. Abstract.

    Commands, predictions and studies ask it only what stands here, in `Encoder` and in
    `RegionRequirements`; its paper's pre-training and heads are those of its `architecture`.
    """

    made_by: Architecture | None = None
    """The architecture that made or loaded it."""

    @property
    def architecture_name(self) -> str:
        """Name of its architecture, also in results."""
        raise NotImplementedError

    @property
    def architecture(self) -> Architecture:
        """The architecture that made it, else the one of groundling that has its name."""
        return self.made_by or resolve_builtin(
            "vision_language", Architecture, self.architecture_name
        )

    @property
    def special_ids(self) -> list[int]:
        """Ids of its tokenizer's special tokens; none without a tokenizer."""
        return [] if self.text_tokenizer is None else list(self.text_tokenizer.all_special_ids)

    def add_images(self, images: int) -> None:
        """Prepare the model for samples of so many images; by default nothing is needed."""

    def prepare(self, examples: Sequence[Example], pretraining: bool) -> None:
        """Add the segments and words that a task's examples need; by default none.

        `pretraining`: whether it will be pre-trained, or used as in pre-training.
        """

    def load_heads(self, objective: Objective, source: str | Path) -> None:
        """Load the heads of a pre-training objective that an earlier run wrote beside the model of `source`, if any."""
        for name, head in objective.saved_modules().items():
            load_head(Path(source), head, name)

    def resize(self, side: int, longest_edge: int) -> None:
        """Set the short and the long side of its images in pixels, if it reads pixels; 0 keeps one."""


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
    keeps_labels: bool = False
    """Whether a task's texts are its questions with their labels, as for LXMERT's image QA."""
    can_judge_answers: bool = False
    """Whether it can predict if a task's answer is right (`--task-answers judged`)."""


@dataclass(frozen=True)
class Architecture:
    """A paper's vision-language model: how it is made, loaded, pre-trained and fine-tuned."""

    name: str
    """The `architecture_name` of its models, by which a model folder's architecture is found."""
    build: Callable[..., RegionEncoder]
    """(bert, tokenizer, width of a region's features, options) to a model."""
    load: Callable[[str | Path], RegionEncoder]
    """Loads a folder that its model's `export` wrote with `write_description`."""
    pretraining: PretrainingPhase
    """Pre-training on captioned images."""
    task_pretraining: PretrainingPhase | None = None
    """Pre-training on a task's texts, if it differs."""
    heads: Mapping[str, type[TaskHead]] = field(default_factory=dict)
    """The paper's head by task, if it is not the plain one; docs/papers.md has the matching settings."""
    auxiliary_objectives: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Names of auxiliary objectives that the paper trains with a task's loss, by task."""
    has_embedding_options: bool = False
    """Whether `build` has the options of `VisualBertSettings`: `early`, `boxes` and `classes`."""
    can_read_pixels: bool = False
    """Whether `build` has an option `pixels`, for a model that is trained together with a CNN."""
    bert_name: str = ""
    """The BERT that the paper starts from, e.g. `bert-base-cased`."""

    def make(self, *parts: Any, **options: Any) -> RegionEncoder:
        """A new model, as `build` makes it; raises InputError for anything else, or a model of another name."""
        return self._checked(self.build(*parts, **options), "`build`")

    def open(self, folder: str | Path) -> RegionEncoder:
        """The model in a folder, as `load` loads it; raises InputError as `make` does."""
        return self._checked(self.load(folder), "`load`")

    def _checked(self, made: object, source: str) -> RegionEncoder:
        model = require_instance(made, RegionEncoder, f"{self.name}: {source} returned")
        if model.architecture_name != self.name:  # its folders could not be loaded
            raise InputError(
                f"{self.name}: {source} returned a model named {model.architecture_name!r}"
            )
        model.made_by = self
        return model
