"""What the terms of CLIP Targeted Distillation share, its confidence too (CLIP-TD: Wang et al. 2022)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OutputType
from groundling.objectives import Objective, ObjectiveContext
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.objectives import TargetedDistillationSettings

# When a teacher is worth listening to: where it is surer of the answer than the student (CLIP-TD Eq. 9 and 10).


@dataclass(frozen=True)
class ConfidenceGate:
    """Open where T times the teacher's confidence exceeds the student's; no gradient flows through it.

    Confidence is the largest share of a softmax over the answers, whatever loss the head is trained with (the paper
    says sigma and means either). The teacher's softmax is over its scaled similarities with the choices, or it says
    how sure it is itself (`clip_confidence`), where answers are no texts of the example. Per pair (ours), the
    shares of each choice are compared in place of the largest ones; a head with two outputs a choice has each choice's
    share of these two.
    """

    output_type: OutputType
    """The task's, as its head is trained."""
    scope: Literal["question", "pair"] = "question"
    temperature: float = 1.0
    """T, of which the paper gives no value."""

    def __post_init__(self) -> None:
        """Raises InputError for a task without answers to be sure of."""
        if not self._is_multiple_choice and self.output_type.head_width < 2:
            raise InputError(
                "a gate compares how sure teacher and student are of an answer, and this task has none to choose "
                "from; leave out --td-gate"
            )

    @property
    def _is_multiple_choice(self) -> bool:
        return isinstance(self.output_type, MultipleChoice)

    @property
    def needs(self) -> str:
        """What the batch must hold of the teacher."""
        return (
            "features.clip_similarity" if self._is_multiple_choice else "features.clip_confidence"
        )

    def count(self, batch: Batch) -> int:
        """How many gates a batch has: one for each sample, or for each row."""
        return batch.rows if self.is_per_pair else len(batch)

    @property
    def is_per_pair(self) -> bool:
        """Whether there is a gate for each row, and not one for each sample."""
        return self.scope == "pair" and self._is_multiple_choice

    def confidence_ratio(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The ratio r of every gate, (B,) or (N,); raises InputError if the teacher says what is no number."""
        self._check(batch.cpu_copy)
        with torch.no_grad():
            teacher = self._teacher(batch)
            student = self._student(encoded, batch)
            if not self.is_per_pair:
                teacher = teacher.amax(-1)
                student = student.amax(-1)
            return (self.temperature * teacher / student).flatten()

    def open_gates(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Which gates are open, (B,) or (N,) bool."""
        return self.confidence_ratio(encoded, batch) > 1

    def _check(self, batch: Batch) -> None:
        """Raises InputError if what was read of the teacher is no number; the loop looks at what it says live."""
        name = self.needs.partition(".")[2]
        if name in batch.features and not self._teacher(batch).isfinite().all():
            raise InputError(f"the teacher's {name} is not a number for some of {batch.ids[:3]}")

    def _teacher(self, batch: Batch) -> Tensor:
        """The teacher's shares (B, C), or how sure it is (B, rows of a sample)."""
        said = batch.features[self.needs.partition(".")[2]].float().view(len(batch), -1)
        return said.softmax(-1) if self._is_multiple_choice else said

    def _student(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The student's shares (B, C), or (B, answers)."""
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


PAPER = TargetedDistillationSettings()
"""The paper's settings, and ours where it is silent."""


class TargetedDistillationTerm(Objective, ABC):
    """L1 between states of the student, projected, and features of a frozen CLIP, of every row.

    A sub-class says what is compared (`feature`, `distances`) and how wide it is (`widths`). L1 is summed over
    dimensions and averaged over rows (Eq. 3, 4, 7); all choices of an example are rows (Table 8). With a gate, rows
    where it is closed add nothing and are counted all the same (Eq. 10). The projection is the student's (the paper
    mentions none, although widths differ), is trained with it, and is not exported.
    """

    feature: ClassVar[str]
    """What it reads of the teacher."""

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        options: TargetedDistillationSettings = PAPER,
        form: OutputType | None = None,
        weight: float = PAPER.td_weight,
        warmup: int = 0,
    ) -> None:
        """`form` is the task's, as its head is trained; raises InputError if there is to be a gate, and no task."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.options = options
        self.correct_choice_only = options.td_choices == "right" and isinstance(
            form, MultipleChoice
        )
        self.gate: ConfidenceGate | None = None
        if options.td_gate != "none":
            if form is None:
                raise InputError(
                    f"{self.name}: --td-gate {options.td_gate} compares answers to a task, and there is none; leave it "
                    "out (CLIP-TD has its gate in fine-tuning alone)"
                )
            self.gate = ConfidenceGate(form, options.td_gate, options.td_temperature)
            self.required_fields = (*self.required_fields, self.gate.needs)
            self.monitored_terms = (*self.monitored_terms, self._opened)
        if self.correct_choice_only:
            self.required_fields = (*self.required_fields, "labels.label")
        self.project = nn.Linear(*self.widths(sizes))

    @property
    def _opened(self) -> str:
        """The term that says how often the gate is open."""
        return f"{self.name}_gate_open"

    def widths(self, sizes: OutputSizes) -> tuple[int, int]:
        """Widths of the student's states and of the teacher's features."""
        return sizes.text, sizes.teacher

    @abstractmethod
    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """How far the student is from the teacher in each row: (N,)."""

    def saved_modules(self) -> dict[str, nn.Module]:
        """Nothing: the projection is thrown away."""
        return {}

    def distance(self, states: Tensor, features: Tensor) -> Tensor:
        """L1 (...) between states (..., D) of the student, projected, and features (..., E) of the teacher."""
        student = self.project(states).float()
        if self.options.td_unit:
            student = F.normalize(student, dim=-1)
        gaps: Tensor = (student - features.detach().float()).abs()
        return gaps.sum(-1) if self.options.td_reduction == "sum" else gaps.mean(-1)

    def distilled_rows(self, batch: Batch) -> Tensor:
        """Which rows (N,) bool are distilled: all, or those of the right choices."""
        number = torch.arange(batch.rows, device=batch.device)
        if not self.correct_choice_only:
            return number >= 0
        right = batch.labels["label"].repeat_interleave(batch.choices)
        return number % batch.choices == right

    def count(self, batch: Batch) -> dict[str, int]:
        """Rows, and gates; of gates that rows have by themselves, those of the rows that are distilled."""
        counts = {self.name: int(self.distilled_rows(batch).sum())}
        if self.gate is not None:
            is_own = self.gate.is_per_pair
            counts[self._opened] = counts[self.name] if is_own else self.gate.count(batch)
        return counts

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), by the term's own name, and how many gates are open, as `NAME_gate_open`."""
        distances = self.distances(encoded, batch)
        heard = self.distilled_rows(batch)
        terms = {}
        if self.gate is not None:
            is_open = self.gate.open_gates(encoded, batch)
            open_rows = heard & is_open.repeat_interleave(batch.rows // len(is_open))
            terms[self._opened] = (open_rows if self.gate.is_per_pair else is_open).float().sum()
            heard = open_rows
        return {self.name: (distances * heard).sum(), **terms}

    def notes(self, means: Mapping[str, Sequence[float]]) -> list[str]:
        """Epochs in which the gate was never or always open."""
        lines = []
        opened = list(enumerate(means.get(self._opened, ()), start=1))
        for share, what in ((0.0, "nothing was distilled"), (1.0, "it kept nothing back")):
            epochs = [str(number) for number, mean in opened if mean == share]
            if epochs:
                lines.append(
                    f"the confidence gate was open in {share:.0%} of all cases in epoch {', '.join(epochs)}: {what}; "
                    "see --td-temperature and the scale of the teacher's logits"
                )
        return lines


def make_from_settings(kind: Callable[..., Objective]) -> Callable[[ObjectiveContext], Objective]:
    """How a run makes a term: with the command's settings and the task's form."""
    return lambda given: kind(
        given.sizes,
        options=given.settings.targeted_distillation,
        form=given.output_type,
        weight=given.settings.targeted_distillation.td_weight,
    )
