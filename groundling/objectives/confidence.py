"""When a teacher is worth listening to: where it is surer of the answer than the student (CLIP-TD Eq. 9 and 10)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from groundling.core.batch import Batch, Encoded, needed
from groundling.core.errors import InputError
from groundling.core.forms import Choose, Form
from groundling.objectives.supervised import Supervised


@dataclass(frozen=True)
class Gate:
    """Open where T times the teacher's confidence exceeds the student's; no gradient flows through it.

    Confidence is the largest share of a softmax over the answers, whatever loss the head is trained with (the paper
    says sigma and means either). The teacher's softmax is over its scaled similarities with the choices, or it says
    how sure it is itself (`clip_confidence`), where answers are no texts of the example. Per pair (ours), the
    shares of each choice are compared in place of the largest ones; a head with two outputs a choice has each choice's
    share of these two.
    """

    form: Form
    """The task's, as its head is trained."""
    per: Literal["question", "pair"] = "question"
    temperature: float = 1.0
    """T, of which the paper gives no value."""

    def __post_init__(self) -> None:
        """Raises InputError for a temperature that is not positive, or a task without answers to be sure of."""
        if not self.temperature > 0:
            raise InputError(f"td_temperature = {self.temperature}, expected a positive number")
        if not self._chooses and self.form.outputs < 2:
            raise InputError(
                "a gate compares how sure teacher and student are of an answer, and this task has none to choose "
                "from; leave out --td-gate"
            )

    @property
    def _chooses(self) -> bool:
        return isinstance(self.form, Choose)

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

    def ratio(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The ratio r of every gate, (B,) or (N,); raises InputError if the teacher says what is no number."""
        self._check(batch.host)
        with torch.no_grad():
            teacher = self._teacher(batch)
            student = self._student(encoded, batch)
            if not self.by_pair:
                teacher = teacher.amax(-1)
                student = student.amax(-1)
            return (self.temperature * teacher / student).flatten()

    def open(self, encoded: Encoded, batch: Batch) -> Tensor:
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

    def _student(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The student's shares (B, C), or (B, answers)."""
        answers = needed(
            encoded.heads.get(Supervised.name), "heads.supervised", "a gate on the task's answers"
        )
        outputs = answers.float()
        if isinstance(self.form, Choose) and self.form.kind == "each":
            wrong_or_right = outputs.view(len(batch), -1, 2)
            if self.by_pair:
                return wrong_or_right.softmax(-1)[..., 1]
            outputs = wrong_or_right[..., 1]
        return outputs.softmax(-1)
