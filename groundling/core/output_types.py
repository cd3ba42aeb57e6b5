"""The output types of tasks: number of outputs, loss, and prediction.

Sizes: B examples of a batch, N of a split; C choices of an example, R regions of its images, K answers with credit.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from textwrap import shorten
from typing import Literal, TypeVar, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.errors import MAX_QUOTED, InputError

AnyOutputType = TypeVar("AnyOutputType", bound="OutputType")


class OutputType:
    """The output type of a task; any object with these members is one.

    =================  =====================  ===========================================  ====================
    type               outputs of the head    labels                                       prediction
    =================  =====================  ===========================================  ====================
    `Classification`   (B, classes)           (B,) class                                   class
    `MultipleChoice`   (B, C), or (B, 2 C)    (B,) number of the right choice              number of the choice
    `Regression`       (B, 1)                 (B,) float                                   the number
    `OpenAnswer`       (B, answers)           (B,) class, (B, answers), or pairs           class of the answer
                                              (B, K, 2)
    `RegionSelection`  (B, R)                 (B, R): 1 right, 0 wrong, below 0 no region  number of the region
    =================  =====================  ===========================================  ====================
    """

    @property
    def head_input(self) -> Literal["first", "regions", "phrase"]:
        """Input of the head: the first position, or every region, for `phrase` with a tagged phrase's last token."""
        return "first"

    @property
    def head_width(self) -> int:
        """Width of the head: outputs per row or, if it reads regions, per region."""
        return 1

    def parse_label(self, text: str, where: str) -> int | float:
        """A label, converted from its text in a file to a number; an InputError begins with `where`."""
        raise InputError(f"{where}: label {text!r}, expected none for this task")

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss (), summed over examples; the table above gives the shapes of `outputs` and `labels`."""
        raise NotImplementedError

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """Predictions (N,), from all outputs, whose first axis is N in place of B; ties go to the first."""
        return outputs.argmax(-1)

    def format_prediction(self, prediction: float) -> str:
        """A prediction as text, in the spelling of the task's own files."""
        return str(int(prediction))


@dataclass(frozen=True)
class NamedOutput(OutputType):
    """One of several classes or answers with names."""

    labels: tuple[str, ...]
    """Names as spelt in the files, in the order of their numbers."""

    @cached_property
    def class_index(self) -> dict[str, int]:
        """The number of each name."""
        return {label: number for number, label in enumerate(self.labels)}

    @property
    def head_width(self) -> int:
        """One per name; raises InputError while a task's answers are unknown."""
        if not self.labels:
            raise InputError(
                "this task's answers are in its data folder; use task.with_answers_of(folder)"
            )
        return len(self.labels)

    def parse_label(self, text: str, where: str) -> int:
        """The number; raises InputError if the text is not one of `labels`."""
        if text not in self.class_index:
            names = shorten(", ".join(self.labels), MAX_QUOTED)
            raise InputError(f"{where}: label {text!r} is not one of {names}")
        return self.class_index[text]

    def format_prediction(self, prediction: float) -> str:
        """The name."""
        return self.labels[int(prediction)]


@dataclass(frozen=True)
class Classification(NamedOutput):
    """One of several classes."""

    kind: Literal["ce", "bce", "each"] = "ce"
    """Loss: `ce`, softmax over classes, or `bce`, each class alone (UNITER's SNLI-VE, VL-BERT's VCR).

    `each` is only for `MultipleChoice`; see there.
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, or binary cross-entropy of every class; summed."""
        classes = labels.long()
        if self.kind == "bce":
            targets = F.one_hot(classes, outputs.shape[-1]).to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
        return F.cross_entropy(outputs, classes, reduction="sum")


@dataclass(frozen=True)
class MultipleChoice(Classification):
    """One of the example's own choices; each choice is an input and gets one score.

    `labels` are the numbers of the choices as spelt in the files. With kind `each`, a choice gets
    two scores, wrong and right, and a cross-entropy of its own; the choice with the highest right
    score is predicted (UNITER's VCR: ChenRocks/UNITER, model/vcr.py).
    """

    @property
    def head_width(self) -> int:
        """One score per choice, or two with kind `each`."""
        return 2 if self.kind == "each" else 1

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss for scores (B, C), or (B, 2 C) in pairs of wrong and right; summed."""
        if self.kind != "each":
            return super().loss(outputs, labels)
        choices = outputs.shape[-1] // 2
        is_right = F.one_hot(labels.long(), choices)
        return F.cross_entropy(outputs.view(-1, 2), is_right.view(-1), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The choice (N,) with the highest right score."""
        scores = outputs[:, 1::2] if self.kind == "each" else outputs
        return scores.argmax(-1)


@dataclass(frozen=True)
class Regression(OutputType):
    """A number; squared error."""

    low: float = -np.inf
    """Lowest label; predictions are not clipped."""
    high: float = np.inf
    """Highest label."""

    def parse_label(self, text: str, where: str) -> float:
        """The number of a text; raises InputError if it is not a number within bounds."""
        value = np.nan
        with suppress(ValueError):
            value = float(text)
        if not (np.isfinite(value) and self.low <= value <= self.high):
            raise InputError(f"{where}: label {text!r} is no number in {self.low} to {self.high}")
        return value

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Squared error, summed."""
        return F.mse_loss(outputs[:, 0], labels.to(outputs.dtype), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The numbers (N,) of outputs (N, 1)."""
        return outputs[:, 0]

    def format_prediction(self, prediction: float) -> str:
        """The number, with three decimals."""
        return f"{prediction:.3f}"


@dataclass(frozen=True)
class OpenAnswer(NamedOutput):
    """One of many answers, several of which may have full or partial credit."""

    kind: Literal["bce", "kl", "ce"] = "bce"
    """Loss: `bce` (UNITER, VL-BERT, LXMERT: ChenRocks/UNITER, model/vqa.py), binary cross-entropy per answer; `kl`
    (VisualBERT: uclanlp/visualbert, visualbert/pytorch_pretrained_bert/modeling.py), divergence of one softmax from
    targets that need not sum to 1; `ce`, one softmax with targets normalised to sum to 1.
    """
    excluded_answers: tuple[str, ...] = ()
    """Answers that are never predicted, such as `<unk>` or the empty answer."""

    def targets(self, scores: Mapping[str, float]) -> np.ndarray:
        """Pairs (K, 2) float32 of class and score, without answers that are not among `labels`."""
        known = [answer for answer in scores if answer in self.class_index]
        pairs = [(self.class_index[answer], scores[answer]) for answer in known]
        return np.array(pairs, np.float32).reshape(-1, 2)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss, summed over examples and, for `bce`, over answers, where papers take the mean.

        Pairs (B, K, 2) of class and score are padded with classes below 0, which are ignored.
        """
        if labels.ndim == 1:
            targets = F.one_hot(labels.long(), outputs.shape[-1]).to(outputs.dtype)
        elif labels.ndim == 3:
            targets = self._spread(labels, outputs)
        else:
            targets = labels.to(outputs.dtype)
        if self.kind == "bce":
            return F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
        if self.kind == "kl":
            return F.kl_div(outputs.log_softmax(-1), targets, reduction="sum")
        return F.cross_entropy(outputs, F.normalize(targets, p=1, dim=-1), reduction="sum")

    @staticmethod
    def _spread(pairs: Tensor, like: Tensor) -> Tensor:
        """Targets (B, answers), shaped as `like`, from pairs (B, K, 2) of class and score."""
        place, score = pairs.unbind(-1)
        is_answer = place >= 0
        # Padding adds a score of 0 to class 0, because a scatter needs a class.
        score = score.where(is_answer, 0).to(like.dtype)
        return torch.zeros_like(like).scatter_add(1, place.clamp(min=0).long(), score)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely answer (N,) for outputs (N, answers), without `excluded_answers`."""
        is_excluded = np.isin(self.labels, self.excluded_answers)
        return np.where(is_excluded, -np.inf, outputs).argmax(-1)

    def best_answer(self, label: float | np.ndarray | None) -> str:
        """The text of the best answer in an example's label; empty if none of `labels` has credit.

        `label` is `Example.label`: pairs (K, 2) of class and score, padded with classes below 0,
        one class, or None. Ties go to the first pair.
        """
        if label is None:
            return ""
        pairs = np.asarray(label)
        if pairs.ndim == 0:
            return self.labels[int(pairs)]
        credited = pairs[(pairs[:, 0] >= 0) & (pairs[:, 1] > 0)]
        return self.labels[int(credited[credited[:, 1].argmax(), 0])] if len(credited) else ""


@dataclass(frozen=True)
class RegionSelection(OutputType):
    """One of the regions, each with one score: for an expression, or for each phrase of a caption."""

    head_input: Literal["regions", "phrase"] = "regions"
    """Input of the head: each region, for the whole text (`regions`) or a tagged phrase (`phrase`).

    A phrase is read at its last token.
    """
    kind: Literal["bce", "ce", "kl"] = "bce"
    """Loss: `bce`, binary cross-entropy per region (jackroos/VL-BERT, refcoco/modules/resnet_vlbert_for_refcoco.py);
    `ce`, one softmax over regions (ChenRocks/UNITER, model/re.py); `kl`, divergence from such a softmax (VisualBERT's
    Flickr30k: uclanlp/visualbert, visualbert/pytorch_pretrained_bert/modeling.py).
    """

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss, summed over examples and, for `bce`, over regions, where papers take the mean.

        With `ce` and `kl`, the right regions share the target evenly, and an example without a right region adds 0.
        """
        is_region = labels >= 0
        if self.kind == "bce":
            scores = outputs[is_region]
            targets = labels[is_region].to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(scores, targets, reduction="sum")
        shares = F.normalize((labels > 0).to(outputs.dtype), p=1, dim=-1)
        lowest = torch.finfo(outputs.dtype).min  # -inf times a share of 0 would be NaN
        loss = F.cross_entropy(outputs.where(is_region, lowest), shares, reduction="sum")
        if self.kind == "kl":
            loss = loss + torch.xlogy(shares, shares).sum()
        return loss


def with_loss(output_type: AnyOutputType, kind: str) -> AnyOutputType:
    """The output type with another loss; raises InputError if it has no such loss."""
    kinds = get_args(get_type_hints(type(output_type)).get("kind"))
    if kind not in kinds:
        raise InputError(f"head_loss={kind}: this task's losses are {', '.join(kinds) or 'fixed'}")
    changed: AnyOutputType = replace(output_type, kind=kind)  # type: ignore[type-var]
    return changed
