"""Published evaluation sets: their sizes, their measures, and which of them hold the same items."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Any, NamedTuple


class EvaluationSet(NamedTuple):
    """What is published about a set."""

    items: int
    """Facts or pairs of its evaluation split, counted in the released files; 0: unknown."""
    measure: str
    """The measure of its paper."""
    source: str
    """Paper and repository."""


_CORRELATION = "Spearman of cosine"
_TWO_WAY = "accuracy of two"
_VICOMTE = "Zhang et al. 2022, ChenyuHeidiZhang/VL-commonsense"
_VC = "Xia et al. 2023, hemingkx/ImageNetVC"
_LIU = "Liu et al. 2022, xxxiaol/spatial-commonsense"
_VEC = "Li et al. 2023, TobiasLee/VEC"

SETS: dict[str, EvaluationSet] = {
    "memory-colors": EvaluationSet(
        109, "accuracy", "Norlund et al. 2021, lovhag/measure-visual-commonsense-knowledge"
    ),
    "valm/color": EvaluationSet(52, "accuracy", "Wang et al. 2022 (VaLM)"),
    "coda": EvaluationSet(521, "Spearman", "Paik et al. 2021, nala-cub/coda"),
    "vicomte/color": EvaluationSet(574, "Spearman, accuracy", _VICOMTE),
    "vicomte/shape": EvaluationSet(140, "Spearman, accuracy", _VICOMTE),
    "vicomte/material": EvaluationSet(284, "Spearman, accuracy", _VICOMTE),
    "vicomte/cooccur": EvaluationSet(420, "accuracy", _VICOMTE),
    "vicomte/size_larger": EvaluationSet(200, "accuracy", _VICOMTE),
    "vicomte/size_smaller": EvaluationSet(200, "accuracy", _VICOMTE),
    "vicomte/coda": EvaluationSet(0, "Spearman, accuracy", _VICOMTE),
    "imagenet-vc/color": EvaluationSet(557, "accuracy", _VC),
    "imagenet-vc/shape": EvaluationSet(424, "accuracy", _VC),
    "imagenet-vc/material": EvaluationSet(430, "accuracy", _VC),
    "imagenet-vc/component": EvaluationSet(1114, "accuracy", _VC),
    "imagenet-vc/others": EvaluationSet(1551, "accuracy", _VC),
    "spatial/size": EvaluationSet(500, _TWO_WAY, _LIU),
    "spatial/height": EvaluationSet(500, _TWO_WAY, _LIU),
    "spatial/position": EvaluationSet(224, "accuracy", _LIU),
    "spatial/position-qa": EvaluationSet(448, _TWO_WAY, _LIU),
    "vec/color": EvaluationSet(574, _TWO_WAY, _VEC),
    "vec/shape": EvaluationSet(140, _TWO_WAY, _VEC),
    "vec/material": EvaluationSet(284, _TWO_WAY, _VEC),
    "vec/size": EvaluationSet(500, _TWO_WAY, _VEC),
    "vec/height": EvaluationSet(500, _TWO_WAY, _VEC),
    "vec/mass": EvaluationSet(654, _TWO_WAY, _VEC),
    "vec/temperature": EvaluationSet(422, _TWO_WAY, _VEC),
    "vec/hardness": EvaluationSet(1016, _TWO_WAY, _VEC),
    "norms/cslb": EvaluationSet(
        0, "MAP", "Devereux et al. 2014; 638 concepts with visual features"
    ),
    "norms/mcrae": EvaluationSet(0, "MAP", "McRae et al. 2005; 541 concepts"),
    "norms/queries": EvaluationSet(0, "MAP", "Hagström and Johansson 2022, Visual Property Norms"),
    "men": EvaluationSet(3000, _CORRELATION, "Bruni et al. 2014"),
    "simlex-999": EvaluationSet(999, _CORRELATION, "Hill et al. 2015"),
    "wordsim-353": EvaluationSet(353, _CORRELATION, "Finkelstein et al. 2001"),
    "simverb-3500": EvaluationSet(3500, _CORRELATION, "Gerz et al. 2016"),
    "rg-65": EvaluationSet(65, _CORRELATION, "Rubenstein and Goodenough 1965"),
}
"""The sets that readers recognise, by name."""

SAME_ITEMS: dict[tuple[str, str], str] = {
    ("valm/color", "memory-colors"): "VaLM's colours are Memory Colors",
    ("vec/color", "vicomte/color"): "VEC's colours are ViComTe's test split",
    ("vec/shape", "vicomte/shape"): "VEC's shapes are ViComTe's test split",
    ("vec/material", "vicomte/material"): "VEC's materials are ViComTe's test split",
    ("vec/size", "spatial/size"): "VEC's sizes are those of Liu et al.",
    ("vec/height", "spatial/height"): "VEC's heights are those of Liu et al.",
    ("vicomte/coda", "coda"): "ViComTe contains CoDa",
    ("spatial/position", "spatial/position-qa"): "one is the other as questions",
    ("norms/queries", "norms/cslb"): "Visual Property Norms are made from CSLB's",
    ("wordsim-353", "rg-65"): "WordSim-353 rated 30 pairs of RG-65 again",
}
"""Pairs of sets that share items, and how; a mean would count these items twice."""


def describe_set(name: str) -> dict[str, Any]:
    """A published set for `result.json`; empty for another file.

    `published` is the number of items of its evaluation split, and `same_items` names the sets that share
    items with it, with which it must not be averaged.
    """
    if not name:
        return {}
    known = SETS.get(name)
    about: dict[str, Any] = {"name": name, "same_items": sets_with_same_items(name)}
    if known is not None:
        about |= {"measure": known.measure, "source": known.source}
        about |= {"published": known.items} if known.items else {}
    return {"set": about}


def sets_with_same_items(name: str) -> list[str]:
    """The other sets that share items with a set."""
    shared = [pair for pair in SAME_ITEMS if name in pair]
    return sorted(other for pair in shared for other in pair if other != name)


def find_same_items(
    names: Collection[str], items: Mapping[str, Collection[Hashable]] = MappingProxyType({})
) -> str:
    """Why a mean over sets would count items twice; empty if it would not.

    Args:
        names: Names of sets; those that `SETS` does not contain are compared by their items alone.
        items: The items of sets, by name; two sets may not share any.
    """
    for one, other in combinations(sorted(names), 2):
        reason = SAME_ITEMS.get((one, other)) or SAME_ITEMS.get((other, one))
        if reason:
            return f"{one} and {other} share items: {reason}"
        shared = set(items.get(one, ())) & set(items.get(other, ()))
        if shared:
            return f"{one} and {other} share {len(shared):,} items"
    return ""
