"""The base class of CLIP Targeted Distillation's terms, and its confidence gate (CLIP-TD: Wang et al. 2022)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OutputType
from groundling.objectives import Objective, ObjectiveContext
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.objectives import TargetedDistillationSettings


def check_finite(batch: Batch, name: str) -> None:
    """Raises InputError if a cached feature is not finite; the loop checks features computed in the step."""
    if name in batch.features and not batch.features[name].isfinite().all():
        raise InputError(f"the teacher's {name} is not finite for some of {batch.ids[:3]}")


# The confidence gate: distil only where the teacher is more confident than the student (CLIP-TD Eq. 9 and 10).


@dataclass(frozen=True)
class ConfidenceGate:
    """Open where T times the teacher's confidence exceeds the student's; without gradient.

    Confidence is the largest softmax probability over the answers, whatever the head's loss (the paper's
    sigma may be softmax or sigmoid). The teacher's softmax is over its scaled similarities with the
    choices; if the answers are not texts of the example, its feature `clip_confidence` is used. Per pair
    (not in the paper), each choice's probability is compared instead of the largest; for a head with two
    outputs per choice, the softmax is over these two.
    """

    output_type: OutputType
    """The task's output type, with the loss of its head."""
    scope: Literal["question", "pair"] = "question"
    temperature: float = 1.0
    """T; the paper gives no value."""

    def __post_init__(self) -> None:
        """Raises InputError for a task without answers to choose from."""
        if not self._is_multiple_choice and self.output_type.head_width < 2:
            raise InputError("td_gate: this task has no answers to choose from; omit it")

    @property
    def _is_multiple_choice(self) -> bool:
        return isinstance(self.output_type, MultipleChoice)

    @property
    def required_field(self) -> str:
        """The batch field of the teacher's feature that it reads."""
        return (
            "features.clip_similarity" if self._is_multiple_choice else "features.clip_confidence"
        )

    def count(self, batch: Batch) -> int:
        """Number of gates in a batch: one per sample, or one per row."""
        return batch.rows if self.is_per_pair else len(batch)

    @property
    def is_per_pair(self) -> bool:
        """Whether there is one gate per row instead of one per sample."""
        return self.scope == "pair" and self._is_multiple_choice

    def confidence_ratio(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The ratio r of each gate, (B,) or (N,); raises InputError if the teacher's feature is not finite."""
        check_finite(batch.cpu_copy, self.required_field.partition(".")[2])
        with torch.no_grad():
            teacher = self._teacher(batch)
            student = self._student(encoded, batch)
            if not self.is_per_pair:
                teacher = teacher.amax(-1)
                student = student.amax(-1)
            return (self.temperature * teacher / student).flatten()

    def open_gates(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Mask (B,) or (N,) bool of the open gates."""
        return self.confidence_ratio(encoded, batch) > 1

    def _teacher(self, batch: Batch) -> Tensor:
        """The teacher's probabilities (B, C), or its confidence (B, rows of a sample)."""
        values = batch.features[self.required_field.partition(".")[2]].float().view(len(batch), -1)
        return values.softmax(-1) if self._is_multiple_choice else values

    def _student(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The student's probabilities (B, C), or (B, answers)."""
        answers = require(
            encoded.heads.get(SupervisedObjective.name),
            "heads.supervised",
            "a gate on the task's answers",
        )
        outputs = answers.float()
        if isinstance(self.output_type, MultipleChoice) and self.output_type.kind == "each":
            wrong_or_right = outputs.view(len(batch), -1, 2)
            if self.is_per_pair:
                return wrong_or_right.softmax(-1)[..., 1]
            outputs = wrong_or_right[..., 1]
        return outputs.softmax(-1)


class TargetedDistillationTerm(Objective, ABC):
    """L1 distance between projected states of the student and features of a frozen CLIP, in every row.

    Sub-classes define what is compared (`feature`, `distances`) and its widths (`widths`). L1 is summed
    over dimensions and averaged over rows (Eq. 3, 4, 7); each choice of an example is a row (Table 8).
    With `td_distance = l2` (not in the paper) differences are squared.
    Rows with a closed gate have loss 0 but are counted (Eq. 10). The projection is on the student's side
    (the paper mentions none, although the widths differ), is trained, and is not exported.
    """

    feature: ClassVar[str]
    """The teacher's feature that it reads."""

    Settings = TargetedDistillationSettings
    settings: TargetedDistillationSettings

    def __init__(
        self, sizes: OutputSizes, *, output_type: OutputType | None = None, **options: Any
    ) -> None:
        """`output_type`: the task's, with the loss of its head; raises InputError for a gate without a task."""
        super().__init__(sizes, **options)
        settings = self.settings
        self.weight *= settings.td_weight
        self.correct_choice_only = settings.td_choices == "right" and isinstance(
            output_type, MultipleChoice
        )
        self.gate: ConfidenceGate | None = None
        if settings.td_gate != "none":
            if output_type is None:
                raise InputError(f"td_gate={settings.td_gate}: only for a task; omit it")
            self.gate = ConfidenceGate(output_type, settings.td_gate, settings.td_temperature)
            self.required_fields = (*self.required_fields, self.gate.required_field)
            self.monitored_terms = (*self.monitored_terms, self._gate_term)
        if self.correct_choice_only:
            self.required_fields = (*self.required_fields, "labels.label")
        self.project = nn.Linear(*self.widths(sizes))

    @classmethod
    def from_context(cls, context: ObjectiveContext) -> Self:
        """A term with a run's settings, for the task's output type."""
        values = context.values(cls.Settings)
        return cls(context.sizes, output_type=context.output_type, **values)

    @property
    def _gate_term(self) -> str:
        """Name of the term that counts open gates."""
        return f"{self.name}_gate_open"

    def widths(self, sizes: OutputSizes) -> tuple[int, int]:
        """Widths of the student's states and of the teacher's features."""
        return sizes.text, sizes.teacher

    @abstractmethod
    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Distance (N,) between student and teacher in each row."""

    def saved_modules(self) -> dict[str, nn.Module]:
        """Nothing: the projection is not saved."""
        return {}

    def distance(self, states: Tensor, features: Tensor) -> Tensor:
        """Distance (...) between projected states (..., D) of the student and features (..., E) of the teacher."""
        student = self.project(states).float()
        if self.settings.td_unit:
            student = F.normalize(student, dim=-1)
        gaps: Tensor = (student - features.detach().float()).abs()
        if self.settings.td_distance == "l2":
            gaps = gaps.square()
        return gaps.sum(-1) if self.settings.td_reduction == "sum" else gaps.mean(-1)

    def distilled_rows(self, batch: Batch) -> Tensor:
        """Mask (N,) bool of the distilled rows: all, or those of the correct choices."""
        number = torch.arange(batch.rows, device=batch.device)
        if not self.correct_choice_only:
            return number >= 0
        right = batch.labels["label"].repeat_interleave(batch.choices)
        return number % batch.choices == right

    def count(self, batch: Batch) -> dict[str, int]:
        """Distilled rows, and gates; with one gate per row, the gates of the distilled rows."""
        counts = {self.name: int(self.distilled_rows(batch).sum())}
        if self.gate is not None:
            is_own = self.gate.is_per_pair
            counts[self._gate_term] = counts[self.name] if is_own else self.gate.count(batch)
        return counts

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), by the term's name, and the number of open gates, as `NAME_gate_open`."""
        distances = self.distances(encoded, batch)
        rows = self.distilled_rows(batch)
        terms = {}
        if self.gate is not None:
            is_open = self.gate.open_gates(encoded, batch)
            open_rows = rows & is_open.repeat_interleave(batch.rows // len(is_open))
            terms[self._gate_term] = (open_rows if self.gate.is_per_pair else is_open).float().sum()
            rows = open_rows
        return {self.name: (distances * rows).sum(), **terms}

    def notes(self, means: Mapping[str, Sequence[float]]) -> list[str]:
        """Notes on epochs in which the gate was never or always open."""
        lines = []
        opened = list(enumerate(means.get(self._gate_term, ()), start=1))
        for share, consequence in ((0.0, "nothing was distilled"), (1.0, "the gate had no effect")):
            epochs = [str(number) for number, mean in opened if mean == share]
            if epochs:
                lines.append(
                    f"the confidence gate was open in {share:.0%} of all cases in epoch {', '.join(epochs)}: "
                    f"{consequence}; check td_temperature and the scale of the teacher's logits"
                )
        return lines
