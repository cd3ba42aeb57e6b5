"""What the terms of CLIP Targeted Distillation share, its confidence too (CLIP-TD: Wang et al. 2022)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, Sizes, needed
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OutputType
from groundling.objectives import Objective, ObjectiveContext
from groundling.objectives.supervised import Supervised
from groundling.settings.objectives import Targeted

# When a teacher is worth listening to: where it is surer of the answer than the student (CLIP-TD Eq. 9 and 10).


@dataclass(frozen=True)
class Gate:
    """Open where T times the teacher's confidence exceeds the student's; no gradient flows through it.

    Confidence is the largest share of a softmax over the answers, whatever loss the head is trained with (the paper
    says sigma and means either). The teacher's softmax is over its scaled similarities with the choices, or it says
    how sure it is itself (`clip_confidence`), where answers are no texts of the example. Per pair (ours), the
    shares of each choice are compared in place of the largest ones; a head with two outputs a choice has each choice's
    share of these two.
    """

    form: OutputType
    """The task's, as its head is trained."""
    per: Literal["question", "pair"] = "question"
    temperature: float = 1.0
    """T, of which the paper gives no value."""

    def __post_init__(self) -> None:
        """Raises InputError for a task without answers to be sure of."""
        if not self._chooses and self.form.outputs < 2:
            raise InputError(
                "a gate compares how sure teacher and student are of an answer, and this task has none to choose "
                "from; leave out --td-gate"
            )

    @property
    def _chooses(self) -> bool:
        return isinstance(self.form, MultipleChoice)

    @property
    def needs(self) -> str:
        """What the batch must hold of the teacher."""
        return "features.clip_similarity" if self._chooses else "features.clip_confidence"

    def count(self, batch: Batch) -> int:
        """How many gates a batch has: one for each sample, or for each row."""
        return batch.rows if self.by_pair else len(batch)

    @property
    def by_pair(self) -> bool:
        """Whether there is a gate for each row, and not one for each sample."""
        return self.per == "pair" and self._chooses

    def ratio(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The ratio r of every gate, (B,) or (N,); raises InputError if the teacher says what is no number."""
        self._check(batch.host)
        with torch.no_grad():
            teacher = self._teacher(batch)
            student = self._student(encoded, batch)
            if not self.by_pair:
                teacher = teacher.amax(-1)
                student = student.amax(-1)
            return (self.temperature * teacher / student).flatten()

    def open(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Which gates are open, (B,) or (N,) bool."""
        return self.ratio(encoded, batch) > 1

    def _check(self, batch: Batch) -> None:
        """Raises InputError if what was read of the teacher is no number; the loop looks at what it says live."""
        name = self.needs.partition(".")[2]
        if name in batch.features and not self._teacher(batch).isfinite().all():
            raise InputError(f"the teacher's {name} is not a number for some of {batch.ids[:3]}")

    def _teacher(self, batch: Batch) -> Tensor:
        """The teacher's shares (B, C), or how sure it is (B, rows of a sample)."""
        said = batch.features[self.needs.partition(".")[2]].float().view(len(batch), -1)
        return said.softmax(-1) if self._chooses else said

    def _student(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The student's shares (B, C), or (B, answers)."""
        answers = needed(
            encoded.heads.get(Supervised.name), "heads.supervised", "a gate on the task's answers"
        )
        outputs = answers.float()
        if isinstance(self.form, MultipleChoice) and self.form.kind == "each":
            wrong_or_right = outputs.view(len(batch), -1, 2)
            if self.by_pair:
                return wrong_or_right.softmax(-1)[..., 1]
            outputs = wrong_or_right[..., 1]
        return outputs.softmax(-1)


PAPER = Targeted()
"""The paper's settings, and ours where it is silent."""


class TargetedTerm(Objective, ABC):
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
        sizes: Sizes,
        *,
        options: Targeted = PAPER,
        form: OutputType | None = None,
        weight: float = PAPER.td_weight,
        warmup: int = 0,
    ) -> None:
        """`form` is the task's, as its head is trained; raises InputError if there is to be a gate, and no task."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.options = options
        self.right_only = options.td_choices == "right" and isinstance(form, MultipleChoice)
        self.gate: Gate | None = None
        if options.td_gate != "none":
            if form is None:
                raise InputError(
                    f"{self.name}: --td-gate {options.td_gate} compares answers to a task, and there is none; leave it "
                    "out (CLIP-TD has its gate in fine-tuning alone)"
                )
            self.gate = Gate(form, options.td_gate, options.td_temperature)
            self.needs = (*self.needs, self.gate.needs)
            self.watched = (*self.watched, self._opened)
        if self.right_only:
            self.needs = (*self.needs, "labels.label")
        self.project = nn.Linear(*self.widths(sizes))

    @property
    def _opened(self) -> str:
        """The term that says how often the gate is open."""
        return f"{self.name}_gate_open"

    def widths(self, sizes: Sizes) -> tuple[int, int]:
        """Widths of the student's states and of the teacher's features."""
        return sizes.text, sizes.teacher

    @abstractmethod
    def distances(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """How far the student is from the teacher in each row: (N,)."""

    def saved(self) -> dict[str, nn.Module]:
        """Nothing: the projection is thrown away."""
        return {}

    def distance(self, states: Tensor, features: Tensor) -> Tensor:
        """L1 (...) between states (..., D) of the student, projected, and features (..., E) of the teacher."""
        student = self.project(states).float()
        if self.options.td_unit:
            student = F.normalize(student, dim=-1)
        gaps: Tensor = (student - features.detach().float()).abs()
        return gaps.sum(-1) if self.options.td_reduction == "sum" else gaps.mean(-1)

    def rows(self, batch: Batch) -> Tensor:
        """Which rows (N,) bool are distilled: all, or those of the right choices."""
        number = torch.arange(batch.rows, device=batch.device)
        if not self.right_only:
            return number >= 0
        right = batch.labels["label"].repeat_interleave(batch.choices)
        return number % batch.choices == right

    def count(self, batch: Batch) -> dict[str, int]:
        """Rows, and gates; of gates that rows have by themselves, those of the rows that are distilled."""
        counts = {self.name: int(self.rows(batch).sum())}
        if self.gate is not None:
            is_own = self.gate.by_pair
            counts[self._opened] = counts[self.name] if is_own else self.gate.count(batch)
        return counts

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed distance (), by the term's own name, and how many gates are open, as `NAME_gate_open`."""
        distances = self.distances(encoded, batch)
        heard = self.rows(batch)
        terms = {}
        if self.gate is not None:
            is_open = self.gate.open(encoded, batch)
            open_rows = heard & is_open.repeat_interleave(batch.rows // len(is_open))
            terms[self._opened] = (open_rows if self.gate.by_pair else is_open).float().sum()
            heard = open_rows
        return {self.name: (distances * heard).sum(), **terms}

    def remarks(self, means: Mapping[str, Sequence[float]]) -> list[str]:
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


def of_settings(kind: Callable[..., Objective]) -> Callable[[ObjectiveContext], Objective]:
    """How a run makes a term: with the command's settings and the task's form."""
    return lambda given: kind(
        given.sizes,
        options=given.settings.targeted,
        form=given.form,
        weight=given.settings.targeted.td_weight,
    )
