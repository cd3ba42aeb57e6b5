"""The few shapes an answer can have: how many outputs, which loss, how outputs become a prediction.

Sizes: B examples of a batch, N of a split; C choices of an example, R regions of its images, K answers with credit.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal, Protocol, TypeVar, get_args, get_type_hints

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.errors import InputError
from groundling.core.field_docs import with_field_docs

AnyOutputType = TypeVar("AnyOutputType", bound="OutputType")


class OutputType(Protocol):
    """The shape of a task's answer; any object with these members is one.

    =================  =====================  ===========================================  ====================
    form               outputs of the head    labels                                       prediction
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
    @abstractmethod
    def head_input(self) -> Literal["first", "regions", "phrase"]:
        """What the head reads.

        first: the first position; regions: every region; phrase: every region, from where a phrase of the text ends.
        """
        ...

    @property
    @abstractmethod
    def head_width(self) -> int:
        """Width of the head, for each row of input or, where it reads regions, for each region."""
        ...

    @abstractmethod
    def parse_label(self, text: str, where: str) -> int | float:
        """A label as its file spells it, turned into a number.

        Raises:
            InputError: the text is no label of this form; the message begins with `where`, its file and line.
        """
        ...

    @abstractmethod
    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss (), summed over examples; shapes of `outputs` and `labels` as in the table above."""
        ...

    @abstractmethod
    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """Predictions (N,) of all outputs, whose first axis is N in place of B."""
        ...

    @abstractmethod
    def format_prediction(self, prediction: float) -> str:
        """A prediction as the task's own files spell it."""
        ...


@with_field_docs
@dataclass(frozen=True)
class Classification(OutputType):
    """One of several classes."""

    head_input: ClassVar[Literal["first"]] = "first"
    """The first position."""
    labels: tuple[str, ...]
    """Classes as the files spell them, in the order of their numbers."""
    kind: Literal["ce", "bce", "each"] = "ce"
    """Loss: `ce`, one softmax over classes; `bce`, each class by itself (UNITER's SNLI-VE, VL-BERT's VCR).

    `each` is for `MultipleChoice` alone, and described there.
    """

    @property
    def head_width(self) -> int:
        """One per class."""
        return len(self.labels)

    def parse_label(self, text: str, where: str) -> int:
        """The class number; raises InputError if the class is not one of `labels`."""
        if text not in self.labels:
            raise InputError(f"{where}: label {text!r} is none of {', '.join(self.labels)}")
        return self.labels.index(text)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Cross-entropy, or binary cross-entropy of every class, of outputs (B, classes) and labels (B,); summed."""
        classes = labels.long()
        if self.kind == "bce":
            targets = F.one_hot(classes, outputs.shape[-1]).to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
        return F.cross_entropy(outputs, classes, reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely class (N,) of outputs (N, classes), the first of equals."""
        return outputs.argmax(-1)

    def format_prediction(self, prediction: float) -> str:
        """The class's name."""
        return self.labels[int(prediction)]


@with_field_docs
@dataclass(frozen=True)
class MultipleChoice(Classification):
    """One of the example's own choices, each of which is an input and gets one score.

    `labels` are the numbers of the choices as the files spell them. With kind `each` a choice gets two scores, wrong
    and right, and a cross-entropy of its own; the choice with the best right one is predicted (UNITER's VCR:
    ChenRocks/UNITER, model/vcr.py).
    """

    @property
    def head_width(self) -> int:
        """One score per choice, or two."""
        return 2 if self.kind == "each" else 1

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of the scores (B, C), or (B, 2 C) in pairs of wrong and right, and labels (B,); summed."""
        if self.kind != "each":
            return super().loss(outputs, labels)
        choices = outputs.shape[-1] // 2
        is_right = F.one_hot(labels.long(), choices)
        return F.cross_entropy(outputs.view(-1, 2), is_right.view(-1), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The choice (N,) with the highest score, of outputs (N, C), or (N, 2 C) in pairs of wrong and right."""
        scores = outputs[:, 1::2] if self.kind == "each" else outputs
        return scores.argmax(-1)


@with_field_docs
@dataclass(frozen=True)
class Regression(OutputType):
    """A number; squared error."""

    head_input: ClassVar[Literal["first"]] = "first"
    """The first position."""
    low: float = -np.inf
    """Lowest label; predictions are not clipped."""
    high: float = np.inf
    """Highest label."""

    @property
    def head_width(self) -> int:
        """One number."""
        return 1

    def parse_label(self, text: str, where: str) -> float:
        """The number; raises InputError if the text is none, or one out of bounds."""
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
        """Squared error of outputs (B, 1) and labels (B,), summed."""
        return F.mse_loss(outputs[:, 0], labels.to(outputs.dtype), reduction="sum")

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The numbers (N,) themselves, of outputs (N, 1)."""
        return outputs[:, 0]

    def format_prediction(self, prediction: float) -> str:
        """Three decimals."""
        return f"{prediction:.3f}"


@with_field_docs
@dataclass(frozen=True)
class OpenAnswer(OutputType):
    """One of many answers, of which several may be right to a degree."""

    head_input: ClassVar[Literal["first"]] = "first"
    """The first position."""
    labels: tuple[str, ...]
    """Answers in the order of their classes."""
    kind: Literal["bce", "kl", "ce"] = "bce"
    """Loss: `bce` (UNITER, VL-BERT, LXMERT: ChenRocks/UNITER, model/vqa.py), each answer by itself; `kl` (VisualBERT:
    uclanlp/visualbert, visualbert/pytorch_pretrained_bert/modeling.py), divergence of one softmax from targets that
    need not sum to 1; `ce`, one softmax against targets made to sum to 1."""
    excluded_answers: tuple[str, ...] = ()
    """Answers that are never predicted, such as `<unk>` or the empty one."""

    @cached_property
    def class_index(self) -> dict[str, int]:
        """The class of every answer."""
        return {answer: number for number, answer in enumerate(self.labels)}

    @property
    def head_width(self) -> int:
        """One per answer; raises InputError while the answers are unknown."""
        if not self.labels:
            raise InputError("this task's answers stand in its data folder; use task.at(folder)")
        return len(self.labels)

    def parse_label(self, text: str, where: str) -> int:
        """The class of the one right answer; raises InputError if it is not among the answers."""
        if text not in self.class_index:
            raise InputError(f"{where}: answer {text!r} is none of the {len(self.labels):,}")
        return self.class_index[text]

    def targets(self, scores: Mapping[str, float]) -> np.ndarray:
        """Pairs (K, 2) float32 of class and score; answers that are not among `labels` are left out."""
        pairs = []
        for answer, score in scores.items():
            if answer in self.class_index:
                pairs.append((self.class_index[answer], score))
        return np.array(pairs, np.float32).reshape(-1, 2)

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of outputs (B, answers), summed over examples; `bce` also over answers, where papers take the mean.

        `labels` are classes (B,), targets (B, answers), or pairs (B, K, 2) of class and score, padded with classes
        below 0, which count for nothing.
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
        """Targets (B, answers), shaped as `like`, of pairs (B, K, 2) of class and score."""
        place, score = pairs.unbind(-1)
        is_answer = place >= 0
        # Padding adds a score of 0 to class 0, since a scatter needs some class.
        score = score.where(is_answer, 0).to(like.dtype)
        return torch.zeros_like(like).scatter_add(1, place.clamp(min=0).long(), score)

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely answer (N,) that may be predicted, of outputs (N, answers)."""
        barred = np.isin(self.labels, self.excluded_answers)
        return np.where(barred, -np.inf, outputs).argmax(-1)

    def best_answer(self, label: float | np.ndarray | None) -> str:
        """The text of the best answer of an example's label, empty if no answer of the map has any credit.

        `label` is what `Example.label` holds: pairs (K, 2) of class and score, padded with classes below 0, one
        class, or None. Of equal scores the first pair counts.
        """
        if label is None:
            return ""
        pairs = np.asarray(label)
        if pairs.ndim == 0:
            return self.labels[int(pairs)]
        credited = pairs[(pairs[:, 0] >= 0) & (pairs[:, 1] > 0)]
        if not len(credited):
            return ""
        best = credited[:, 1].argmax()
        return self.labels[int(credited[best, 0])]

    def format_prediction(self, prediction: float) -> str:
        """The answer's text."""
        return self.labels[int(prediction)]


@with_field_docs
@dataclass(frozen=True)
class RegionSelection(OutputType):
    """One of the regions, each of which gets one score: for an expression, or for every phrase of a caption."""

    head_input: Literal["regions", "phrase"] = "regions"
    """regions: each by itself, for the whole text; phrase: from the last piece of the text's tagged phrase."""
    kind: Literal["bce", "ce", "kl"] = "bce"
    """Loss: `bce`, each region by itself (jackroos/VL-BERT, refcoco/modules/resnet_vlbert_for_refcoco.py); `ce`, one
    softmax over them (ChenRocks/UNITER, model/re.py); `kl`, divergence from it (VisualBERT's Flickr30k:
    uclanlp/visualbert, visualbert/pytorch_pretrained_bert/modeling.py)."""

    @property
    def head_width(self) -> int:
        """One score per region."""
        return 1

    def parse_label(self, text: str, where: str) -> int:
        """Raises InputError always: a region is right by its box, which no file spells as a label."""
        raise InputError(f"{where}: label {text!r}; regions are right or wrong by their boxes")

    def loss(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Loss of outputs (B, R), summed over examples, and `bce` over regions too, where papers take the mean.

        `labels` (B, R): 1 right, 0 wrong, below 0 no region. With `ce` and `kl` the right regions share the target
        evenly, and an example without one adds nothing.
        """
        is_region = labels >= 0
        if self.kind == "bce":
            scores = outputs[is_region]
            targets = labels[is_region].to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(scores, targets, reduction="sum")
        shares = F.normalize((labels > 0).to(outputs.dtype), p=1, dim=-1)
        lowest = torch.finfo(outputs.dtype).min  # -inf would be NaN times a share of 0
        loss = F.cross_entropy(outputs.where(is_region, lowest), shares, reduction="sum")
        if self.kind == "kl":
            loss = loss + torch.xlogy(shares, shares).sum()
        return loss

    def predict(self, outputs: np.ndarray) -> np.ndarray:
        """The best region (N,), the first of equals; where there is no region, outputs (N, R) are -inf."""
        return outputs.argmax(-1)

    def format_prediction(self, prediction: float) -> str:
        """The region's number."""
        return str(int(prediction))


def with_loss(form: AnyOutputType, kind: str) -> AnyOutputType:
    """The form with another kind of loss; raises InputError if it has no such kind, or one with other outputs."""
    kinds = [one for one in get_args(get_type_hints(type(form)).get("kind")) if one != "each"]
    if kind not in kinds:
        raise InputError(
            f"--head-loss {kind}: this task's answers are trained with {' or '.join(kinds) or 'one loss alone'}"
        )
    changed: AnyOutputType = replace(form, kind=kind)  # type: ignore[type-var]
    if changed.head_width != form.head_width:
        raise InputError(
            f"--head-loss {kind}: this head gives {form.head_width} scores, {kind} reads {changed.head_width}; "
            "pass --linear-head, too"
        )
    return changed
