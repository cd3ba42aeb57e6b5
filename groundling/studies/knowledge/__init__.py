"""Published evaluation sets: their sizes, their measures, and which of them hold the same items."""

from __future__ import annotations

from typing import Any, NamedTuple

ACCURACY = "accuracy"
CORRELATION = "spearman"
MEAN_PRECISION = "map"
COSINES = "Spearman of cosine"
PREDICTION = "Spearman of prediction"
"""Of norms, whose papers test no model: ours."""


class EvaluationSet(NamedTuple):
    """What is published about a set."""

    items: int
    """Facts or pairs of its evaluation split, counted in the released files; 0: unknown."""
    measure: str
    """The first measure of its paper."""


SETS: dict[str, EvaluationSet] = {
    "memory-colors": EvaluationSet(109, ACCURACY),  # Norlund et al. 2021
    "valm/color": EvaluationSet(52, ACCURACY),  # Wang et al. 2022
    "coda": EvaluationSet(521, CORRELATION),  # Paik et al. 2021
    # Zhang et al. 2022, ChenyuHeidiZhang/VL-commonsense
    "vicomte/color": EvaluationSet(574, CORRELATION),
    "vicomte/shape": EvaluationSet(140, CORRELATION),
    "vicomte/material": EvaluationSet(284, CORRELATION),
    "vicomte/cooccur": EvaluationSet(420, ACCURACY),
    "vicomte/size_larger": EvaluationSet(200, ACCURACY),
    "vicomte/size_smaller": EvaluationSet(200, ACCURACY),
    "vicomte/coda": EvaluationSet(0, CORRELATION),
    # Xia et al. 2023, hemingkx/ImageNetVC
    "imagenet-vc/color": EvaluationSet(557, ACCURACY),
    "imagenet-vc/shape": EvaluationSet(424, ACCURACY),
    "imagenet-vc/material": EvaluationSet(430, ACCURACY),
    "imagenet-vc/component": EvaluationSet(1114, ACCURACY),
    "imagenet-vc/others": EvaluationSet(1551, ACCURACY),
    # Liu et al. 2022, xxxiaol/spatial-commonsense
    "spatial/size": EvaluationSet(500, ACCURACY),
    "spatial/height": EvaluationSet(500, ACCURACY),
    "spatial/position": EvaluationSet(224, ACCURACY),
    "spatial/position-qa": EvaluationSet(448, ACCURACY),
    # Li et al. 2023, TobiasLee/VEC
    "vec/color": EvaluationSet(574, ACCURACY),
    "vec/shape": EvaluationSet(140, ACCURACY),
    "vec/material": EvaluationSet(284, ACCURACY),
    "vec/size": EvaluationSet(500, ACCURACY),
    "vec/height": EvaluationSet(500, ACCURACY),
    "vec/mass": EvaluationSet(654, ACCURACY),
    "vec/temperature": EvaluationSet(422, ACCURACY),
    "vec/hardness": EvaluationSet(1016, ACCURACY),
    "norms/cslb": EvaluationSet(0, MEAN_PRECISION),  # Devereux et al. 2014; 638 visual concepts
    "norms/mcrae": EvaluationSet(0, MEAN_PRECISION),  # McRae et al. 2005; 541 concepts
    "norms/queries": EvaluationSet(0, MEAN_PRECISION),  # Hagström and Johansson 2022
    "men": EvaluationSet(3000, COSINES),  # Bruni et al. 2014
    "simlex-999": EvaluationSet(999, COSINES),  # Hill et al. 2015
    "wordsim-353": EvaluationSet(353, COSINES),  # Finkelstein et al. 2001
    "simverb-3500": EvaluationSet(3500, COSINES),  # Gerz et al. 2016
    "rg-65": EvaluationSet(65, COSINES),  # Rubenstein and Goodenough 1965
    # Misra et al. 2023, kanishka/comps; its other subsets' sizes are not known here
    "comps/comps_base": EvaluationSet(49340, ACCURACY),
    "comps/comps_wugs": EvaluationSet(0, ACCURACY),
    "comps/comps_wugs_dist-before": EvaluationSet(0, ACCURACY),
    "comps/comps_wugs_dist-in-between": EvaluationSet(0, ACCURACY),
    "winoviz": EvaluationSet(0, ACCURACY),  # Jin et al. 2024: 1,380 examples, in several files
    "taxonomigqa": EvaluationSet(148020, ACCURACY),  # Qin et al. 2025, tinlaboratory/taxonomigqa
    "lancaster": EvaluationSet(39707, PREDICTION),  # Lynott et al. 2020
    "glasgow": EvaluationSet(5553, PREDICTION),  # Scott et al. 2019
    "things": EvaluationSet(1854, PREDICTION),  # THINGSplus, Stoinski et al. 2023
}
"""The sets that readers recognise, by name."""

SAME_ITEMS = (
    ("valm/color", "memory-colors"),
    ("vec/color", "vicomte/color"),
    ("vec/shape", "vicomte/shape"),
    ("vec/material", "vicomte/material"),
    ("vec/size", "spatial/size"),
    ("vec/height", "spatial/height"),
    ("vicomte/coda", "coda"),
    ("spatial/position", "spatial/position-qa"),
    ("norms/queries", "norms/cslb"),
    ("wordsim-353", "rg-65"),
)
"""Pairs of sets that share items; a mean would count these items twice.

VaLM's colours are Memory Colors. VEC has ViComTe's test split and the sizes and heights of Liu et al.; ViComTe contains
CoDa. Positions are asked in two ways, Visual Property Norms are made from CSLB's, and WordSim-353 rated 30 pairs of
RG-65 again.
"""


def describe_set(name: str) -> dict[str, Any]:
    """A published set for `result.json`; empty for another file.

    `published` is the number of items of its evaluation split, and `same_items` names the sets that share
    items with it, with which it must not be averaged.
    """
    if not name:
        return {}
    shared = {other for pair in SAME_ITEMS if name in pair for other in pair}
    about: dict[str, Any] = {"name": name, "same_items": sorted(shared - {name})}
    known = SETS.get(name)
    if known is not None:
        about["measure"] = known.measure
        about |= {"published": known.items} if known.items else {}
    return {"set": about}
