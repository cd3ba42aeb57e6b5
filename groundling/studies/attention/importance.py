"""Shares of attention on text and on the image (Cao et al. 2020; CLIP-TD, 5.1 and 8.5).

The importance of a modality in a head is the sum of a position's attention to all positions of that modality. Attention
to special tokens, and to positions that the architecture adds, is counted apart; the three shares add up to 1. It is
not defined for two-stream models, whose self-attention covers one modality only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundling.core.batch import Sample
from groundling.core.errors import InputError
from groundling.core.resampling import bootstrap_sums, interval
from groundling.core.rng import generator
from groundling.models.attention import AttentionMap, PositionKind, SequencePositions
from groundling.studies.attention.inspected_models import AttentionBatch, SampleArrays

ATTENTION_TARGETS = ("visual", "textual", "special")
"""Kinds of positions that attention goes to."""
NUMBERS = (*ATTENTION_TARGETS, "gap", "gap_size")
"""Their shares, the gap (textual less visual), and its mean absolute value over layers."""
POSITIONS_OF_MODALITY = (
    (PositionKind.REGION, PositionKind.WHOLE_IMAGE),
    (PositionKind.TOKEN,),
    (PositionKind.SPECIAL, PositionKind.ADDED, PositionKind.IMAGE_CLASS),
)
"""Positions by kind: VL-BERT's whole image is visual; its [END], ViLT's class token special."""
EXACT = 1e-5
"""Largest difference from 1 of the sum of a position's attention."""


def modality_mask(positions: SequencePositions) -> Tensor:
    """Which positions are of which kind, (N, 3, S) float of 1 and 0; padding is of none."""
    each = [torch.isin(positions.kinds, _kinds(positions, k)) for k in range(3)]
    return torch.stack(each, 1).float()


def _kinds(positions: SequencePositions, target: int) -> Tensor:
    return torch.tensor(POSITIONS_OF_MODALITY[target], device=positions.kinds.device)


def attention_of_cls(attention_map: AttentionMap) -> Tensor:
    """Attention (N, heads, columns) of [CLS], the first special token."""
    kinds = attention_map.rows.kinds
    first = (kinds == PositionKind.SPECIAL).int().argmax(1)
    return attention_map.weights[torch.arange(len(kinds), device=kinds.device), :, first]


def covers_regions(attention_map: AttentionMap) -> bool:
    """Whether a map covers regions: a VisualBERT without early fusion has layers of text alone.

    Raises InputError for a map of a two-stream model.
    """
    if attention_map.name != "self":
        raise InputError(
            f"modality importance is not defined for a two-stream model (its maps are {attention_map.name!r}): "
            "self-attention covers one modality only; use `groundling heads` for its cross-attention"
        )
    visual = _kinds(attention_map.columns, 0)
    return bool(torch.isin(attention_map.columns.kinds, visual).any())


def attention_by_modality(attention_map: AttentionMap) -> Tensor:
    """Attention (N, heads, 3) of [CLS] to each of `ATTENTION_TARGETS`."""
    attention = attention_of_cls(attention_map).float()
    return torch.einsum("nhc,nkc->nhk", attention, modality_mask(attention_map.columns))


class ModalityImportance:
    """Modality importance by layer and head; for multiple choice, the mean over the choices.

    Each head is summed over all samples. Per sample and layer, only the means over heads are kept
    (12 bytes) for the intervals, so memory is nearly independent of the number of samples.
    """

    def __init__(self) -> None:
        self.heads: dict[int, np.ndarray] = {}
        """By number of each layer that covers regions, the sums (heads, 3) over samples."""
        self.rows = SampleArrays()
        """Means over heads, (3,) float32 for each sample and layer."""
        self.even = SampleArrays()
        """Share of each kind under even attention, (3,) for each sample."""
        self.truncated_tokens = 0
        """Number of truncated tokens."""

    def consume(self, batch: AttentionBatch, attention_map: AttentionMap) -> None:
        """Add the shares of a layer; raises InputError if attention does not sum to 1."""
        if not covers_regions(attention_map):
            return
        masses = attention_by_modality(attention_map)
        off = float((masses.sum(-1) - 1).abs().nan_to_num(torch.inf).max())
        if off > EXACT:
            raise InputError(
                f"attention of layer {attention_map.layer} does not sum to 1 (off by {off:.3g}); the model's weights "
                "may be damaged"
            )
        rows = (len(batch.samples), -1, *masses.shape[1:])
        by_sample = masses.double().view(rows).mean(1).cpu().numpy()
        layer = attention_map.layer
        self.heads.setdefault(layer, np.zeros(masses.shape[1:]))
        self.heads[layer] += by_sample.sum(0)
        self.rows.put(batch.places, layer, by_sample.mean(1).astype(np.float32))
        if layer == self.layers[0]:
            count = modality_mask(attention_map.columns).sum(-1)
            even = (count / count.sum(-1, keepdim=True)).view(len(batch.samples), -1, 3).mean(1)
            self.even.put(batch.places, 0, even.cpu().numpy())
            self.truncated_tokens += sum(sample.truncated_tokens for sample in batch.samples)

    @property
    def layers(self) -> list[int]:
        """Numbers of the layers that cover regions."""
        return self.rows.layers

    @property
    def by_head(self) -> np.ndarray:
        """Means over samples, (layers, heads, 3)."""
        return np.stack([*self.heads.values()]) / len(self.uniform)

    @property
    def uniform(self) -> np.ndarray:
        """Share of each kind under even attention, (samples, 3)."""
        return self.even.stacked()[:, 0]


class ClsAttention:
    """[CLS]'s attention, mean over heads, to a row's tokens, then regions, for every sample.

    For multiple choice, this is the row of the right choice, see `right_choice_row`.
    """

    def __init__(self) -> None:
        self.attention = SampleArrays()

    def consume(self, batch: AttentionBatch, attention_map: AttentionMap) -> None:
        """Add a layer's attention for each sample, (T + R,)."""
        if not covers_regions(attention_map):
            return
        attention = attention_of_cls(attention_map).float().mean(1).double().cpu().numpy()
        kinds = attention_map.columns.kinds.cpu().numpy()
        is_input = ~np.isin(kinds, (PositionKind.PADDING, PositionKind.ADDED))
        choices = len(kinds) // len(batch.samples)
        rows = [
            index * choices + right_choice_row(sample) for index, sample in enumerate(batch.samples)
        ]
        shares = [attention[row][is_input[row]] for row in rows]
        self.attention.put(batch.places, attention_map.layer, shares)

    def means(self) -> list[np.ndarray]:
        """Each sample's attention (T + R,), mean over layers, in the samples' order."""
        return [layers.mean(0) for layers in self.attention.by_sample()]


def right_choice_row(sample: Sample) -> int:
    """Index of the row that is analysed: the right choice's, or the first if that is unknown."""
    label = sample.labels.get("label")
    return int(label) if sample.choices and label is not None and label.ndim == 0 else 0


# -- means with intervals ----------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Bootstrap:
    """Means over N examples, and over bootstrap resamples of images with all of their examples.

    Equal seeds and images give the same resamples, so two models' draws are paired.
    """

    images: Sequence[str]
    """(N,): the image of every example."""
    seed: int

    def means(self, values: np.ndarray) -> np.ndarray:
        """Means (1 + draws, ...) of values (N, ...): data, then resamples; NaN is ignored.

        Raises InputError for fewer than two images.
        """
        if len(set(self.images)) < 2:
            raise InputError(
                "all examples have the same image; a confidence interval needs at least 2 images"
            )
        order = {image: number for number, image in enumerate(dict.fromkeys(self.images))}
        own = np.array([order[image] for image in self.images])
        flat = values.reshape(len(values), -1)
        known = np.isfinite(flat)
        sums = np.zeros((len(order), 2 * flat.shape[1]))
        for column in range(flat.shape[1]):  # one at a time, so that no copy of all values is made
            inside = known[:, column]
            sums[:, column] = np.bincount(own[inside], flat[inside, column], len(order))
            sums[:, flat.shape[1] + column] = np.bincount(own[inside], minlength=len(order))
        rng = generator(self.seed, "images", str(len(order)))
        drawn = np.concatenate([sums.sum(0, keepdims=True), bootstrap_sums(sums, rng)])
        total, count = np.split(drawn, 2, axis=1)
        with np.errstate(invalid="ignore", divide="ignore"):
            means = total / count
        return np.asarray(means.reshape(len(drawn), *values.shape[1:]))


def mean_with_interval(draws: np.ndarray) -> dict[str, float | None]:
    """JSON of a number (1 + draws,): `mean`, `low` and `high` (95 %); None where undefined."""
    ends = draws[1:][np.isfinite(draws[1:])]
    if not np.isfinite(draws[0]) or not len(ends):
        return {"mean": None, "low": None, "high": None}
    low, high = interval(ends)
    return {"mean": _round(draws[0]), "low": _round(low), "high": _round(high)}


def intervals(draws: np.ndarray) -> list[dict[str, float | None]]:
    """JSON of K numbers (1 + draws, K), see `mean_with_interval`."""
    return [mean_with_interval(column) for column in draws.T]


def _round(value: float) -> float:
    return round(float(value), 6)


class ImportanceEstimate:
    """Modality importance of one model, for the data and the resamples."""

    def __init__(self, importance: ModalityImportance, bootstrap: Bootstrap) -> None:
        """`bootstrap`: over the same samples."""
        self.layers = importance.layers
        self.by_head = importance.by_head
        """For the data alone, (layers, heads, 3)."""
        shares = bootstrap.means(importance.rows.stacked())
        gap = shares[..., 1:2] - shares[..., :1]
        self.by_layer = np.concatenate([shares, gap], -1)
        """Mean over heads, and the gap, textual less visual: (1 + draws, layers, 4)."""
        self.uniform = bootstrap.means(importance.uniform)
        """(1 + draws, 3)."""

    @property
    def overall(self) -> np.ndarray:
        """Means over layers of `by_layer`, then of the absolute gap: (1 + draws, 5)."""
        size = np.abs(self.by_layer[..., 3:]).mean(1)
        return np.concatenate([self.by_layer.mean(1), size], -1)

    def to_json(self) -> dict[str, Any]:
        """The model's importance as in `result.json`."""
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = self.overall[:, :3] / self.uniform
        return {
            "layers": self.layers,
            "heads": self.by_head.shape[1],
            "by_head": {
                name: self.by_head[..., place].round(6).tolist()
                for place, name in enumerate(ATTENTION_TARGETS)
            },
            "by_layer": _by_layer(self.layers, self.by_layer),
            "overall": _by_name(self.overall),
            "uniform": _by_name(self.uniform),
            "ratio": _by_name(ratio),
        }


def _by_name(draws: np.ndarray) -> dict[str, Any]:
    """Numbers (1 + draws, K) by the first K of `NUMBERS`."""
    return dict(zip(NUMBERS, intervals(draws), strict=False))


def _by_layer(layers: Sequence[int], draws: np.ndarray) -> list[dict[str, Any]]:
    return [{"layer": layer, **_by_name(draws[:, place])} for place, layer in enumerate(layers)]


def compare_importance(first: ImportanceEstimate, second: ImportanceEstimate) -> dict[str, Any]:
    """The second model less the first: by layer, overall, and CLIP-TD's two relative changes.

    Layers are compared if both models have the same ones.
    """
    overall = second.overall - first.overall
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = _by_name(overall / np.abs(first.overall))
    result: dict[str, Any] = {
        "overall": _by_name(overall),
        "relative": {name: relative[name] for name in ("gap_size", "visual")},
    }
    if first.layers == second.layers:
        result["by_layer"] = _by_layer(first.layers, second.by_layer - first.by_layer)
    return result
