"""Published evaluation sets: their measures, and which of them hold the same items."""

from __future__ import annotations

from typing import Any

JsonObject = dict[str, Any]
"""An object of a JSON file, or a part of a result."""

MEASURED = {
    "accuracy": """
        memory-colors valm/color
        vicomte/cooccur vicomte/size_larger vicomte/size_smaller
        imagenet-vc/color imagenet-vc/shape imagenet-vc/material imagenet-vc/component imagenet-vc/others
        spatial/size spatial/height spatial/position spatial/position-qa
        vec/color vec/shape vec/material vec/size vec/height vec/mass vec/temperature vec/hardness
        comps/comps_base comps/comps_wugs comps/comps_wugs_dist-before comps/comps_wugs_dist-in-between
        winoviz taxonomigqa""",
    "spearman": "coda vicomte/color vicomte/shape vicomte/material vicomte/coda",
    "map": "norms/cslb norms/mcrae norms/queries",
    "Spearman of cosine": "men simlex-999 wordsim-353 simverb-3500 rg-65",
    # Norms of words, whose papers test no model: ours.
    "Spearman of prediction": "lancaster glasgow things",
}
"""The sets that readers recognise, by the first measure of their papers; the readers name the papers."""
SETS = {name: measure for measure, names in MEASURED.items() for name in names.split()}
"""The same by name."""

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


def describe_set(name: str) -> JsonObject:
    """A published set for `result.json`; empty for another file.

    `same_items` names the sets that share items with it, with which it must not be averaged.
    """
    if not name:
        return {}
    shared = {other for pair in SAME_ITEMS if name in pair for other in pair}
    about: JsonObject = {"name": name, "same_items": sorted(shared - {name})}
    if name in SETS:
        about["measure"] = SETS[name]
    return {"set": about}
