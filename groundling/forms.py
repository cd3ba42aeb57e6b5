"""The few shapes an answer can have: how many outputs, which loss, how outputs become a prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.errors import InputError


class Form(Protocol):
    """The shape of a task's answer."""

    @property
    def reads(self) -> Literal["first", "regions", "phrase"]:
        """What the head reads: the first position; every region; or those from where a phrase of the text ends."""
        ...

    @property
    def outputs(self) -> int:
        """Width of the head, per row of input."""
        ...

    def label(self, text: str, where: str) -> int | float:
        """A label as its file spells it, turned into a number; raises InputError naming `where`."""
        ...

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Summed loss of outputs (B, outputs), or (B, C) of a choice, against labels (B,), or soft targets."""
        ...

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """Predictions (N,) from outputs (N, outputs)."""
        ...

    def spell(self, prediction: float) -> str:
        """A prediction as the task's own files spell it."""
        ...


@dataclass(frozen=True)
class Classify:
    """One of several classes; cross-entropy, unless `kind` says otherwise."""

    reads: ClassVar[Literal["first"]] = "first"
    labels: tuple[str, ...]
    """Classes as the files spell them, in the order of their numbers."""
    kind: Literal["ce", "bce", "each"] = "ce"
    """bce: each class by itself (UNITER's SNLI-VE, VL-BERT's VCR); each: see `Choose`."""

    @property
    def outputs(self) -> int:
        """One per class."""
        return len(self.labels)

    def label(self, text: str, where: str) -> int:
        """The class number; raises InputError if the class is not one of `labels`."""
        if text not in self.labels:
            raise InputError(f"{where}: label {text!r} is none of {', '.join(self.labels)}")
        return self.labels.index(text)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, or binary cross-entropy of every class, summed."""
        if self.kind == "bce":
            wanted = F.one_hot(labels.long(), outputs.shape[-1]).to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(outputs, wanted, reduction="sum")
        return F.cross_entropy(outputs, labels.long(), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely class."""
        return outputs.argmax(-1)

    def spell(self, prediction: float) -> str:
        """The class's name."""
        return self.labels[int(prediction)]


@dataclass(frozen=True)
class Choose(Classify):
    """One of the example's own choices, each of which is an input and gets one score; cross-entropy over them.

    With kind `each` a choice gets two, wrong and right, with a cross-entropy of its own, and the best right one is
    predicted (UNITER's VCR, code).
    """

    @property
    def outputs(self) -> int:
        """One score per choice, or two."""
        return 2 if self.kind == "each" else 1

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Summed, of outputs (B, C * outputs)."""
        if self.kind != "each":
            return super().loss(outputs, labels)
        right = F.one_hot(labels.long(), outputs.shape[-1] // 2)
        return F.cross_entropy(outputs.view(-1, 2), right.view(-1), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The choice with the highest (last) score."""
        return outputs[:, self.outputs - 1 :: self.outputs].argmax(-1)


@dataclass(frozen=True)
class Regress:
    """A number; squared error."""

    reads: ClassVar[Literal["first"]] = "first"
    low: float = -np.inf
    high: float = np.inf
    """Bounds of a label; predictions are not clipped."""

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    def label(self, text: str, where: str) -> float:
        """The number; raises InputError if it is none or out of bounds."""
        try:
            value = float(text)
        except ValueError:
            value = np.nan
        if not np.isfinite(value):
            raise InputError(f"{where}: label {text!r} is not a number")
        if not self.low <= value <= self.high:
            raise InputError(f"{where}: label {value} is outside {self.low} to {self.high}")
        return value

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Squared error, summed."""
        return F.mse_loss(outputs[:, 0], labels.to(outputs.dtype), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The number itself."""
        return outputs[:, 0]

    def spell(self, prediction: float) -> str:
        """Three decimals."""
        return f"{prediction:.3f}"


@dataclass(frozen=True)
class Answer:
    """One of many answers, of which several may be right to a degree."""

    reads: ClassVar[Literal["first"]] = "first"
    labels: tuple[str, ...]
    """Answers in the order of their classes."""
    kind: Literal["bce", "kl", "ce"] = "bce"
    """bce: LXMERT, UNITER, VL-BERT's code; kl: VisualBERT; ce: one softmax, against targets made to sum to 1."""
    never: tuple[str, ...] = ()
    """Answers that are never predicted, such as `<unk>` or the empty one."""

    @cached_property
    def place(self) -> dict[str, int]:
        """The class of every answer."""
        return {answer: i for i, answer in enumerate(self.labels)}

    @property
    def outputs(self) -> int:
        """One per answer; raises InputError while they are unknown."""
        if not self.labels:
            raise InputError("this task's answers stand in its data folder; use task.at(folder)")
        return len(self.labels)

    def label(self, text: str, where: str) -> int:
        """The class of the one right answer; raises InputError if it is not among the answers."""
        if text not in self.place:
            raise InputError(f"{where}: answer {text!r} is none of the {len(self.labels):,}")
        return self.place[text]

    def targets(self, scores: Mapping[str, float]) -> np.ndarray:
        """Pairs (K, 2) float32 of class and score; answers that are not among `labels` are left out."""
        known = [
            (self.place[answer], score) for answer, score in scores.items() if answer in self.place
        ]
        return np.array(known, np.float32).reshape(-1, 2)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Summed over samples, and bce over classes (the published mean over classes times their number).

        `labels` are classes (B,), targets (B, C), or pairs (B, K, 2) of class and score (class < 0: none).
        """
        if labels.ndim == 1:
            labels = F.one_hot(labels.long(), outputs.shape[-1])
        if labels.ndim == 3:
            place, score = labels.unbind(-1)
            score = score.where(place >= 0, 0).to(outputs.dtype)
            labels = torch.zeros_like(outputs).scatter_add(1, place.clamp(min=0).long(), score)
        labels = labels.to(outputs.dtype)
        if self.kind == "bce":
            return F.binary_cross_entropy_with_logits(outputs, labels, reduction="sum")
        if self.kind == "kl":  # VisualBERT does not make the targets sum to 1
            return F.kl_div(outputs.log_softmax(-1), labels, reduction="sum")
        return F.cross_entropy(outputs, F.normalize(labels, p=1, dim=-1), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely answer that may be predicted."""
        return np.where(np.isin(self.labels, self.never), -np.inf, outputs).argmax(-1)

    def best(self, label: Any) -> str:
        """The answer with the highest score of a label as `targets` makes it, empty if it has none."""
        pairs = np.asarray(label)
        return self.labels[int(pairs[pairs[:, 1].argmax(), 0])] if len(pairs) else ""

    def spell(self, prediction: float) -> str:
        """The answer's text."""
        return self.labels[int(prediction)]


@dataclass(frozen=True)
class Pick:
    """Some of the regions, each of which gets one score: for an expression, or for every phrase of a caption."""

    reads: Literal["regions", "phrase"] = "regions"
    """regions: each by itself, for the whole text; phrase: from the last piece of the text's tagged phrase."""
    kind: Literal["bce", "ce", "kl"] = "bce"
    """bce: each region by itself (VL-BERT); ce: one softmax over them (UNITER); kl: divergence from it (VisualBERT)."""

    @property
    def outputs(self) -> int:
        """One score per region."""
        return 1

    def label(self, text: str, where: str) -> int:
        """Raises InputError: a region is right by its box, no file spells that."""
        raise InputError(f"{where}: label {text!r}; regions are right or wrong by their boxes")

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Summed over rows, and bce over regions, of outputs (B, R); the published bce is the mean over all regions.

        `labels` (B, R): 1 right, 0 wrong, below 0 no region. With ce and kl the right ones share the target evenly, and
        a row with none adds nothing.
        """
        here = labels >= 0
        if self.kind == "bce":
            return F.binary_cross_entropy_with_logits(
                outputs[here], labels[here].to(outputs.dtype), reduction="sum"
            )
        target = F.normalize((labels > 0).to(outputs.dtype), p=1, dim=-1)
        low = torch.finfo(outputs.dtype).min  # -inf would be NaN times a target of 0
        loss = F.cross_entropy(outputs.where(here, low), target, reduction="sum")
        return loss if self.kind == "ce" else loss + torch.xlogy(target, target).sum()

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The best region (N,), the first of equals; where there is no region, outputs (N, R) are -inf."""
        return outputs.argmax(-1)

    def spell(self, prediction: float) -> str:
        """The region's number."""
        return str(int(prediction))
