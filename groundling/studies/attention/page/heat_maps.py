"""Heat maps of heads: words by boxes, or by the things that a text names (VisualBERT, Figures 1 and 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from groundling.core.errors import InputError
from groundling.studies.attention.figures import heat_maps
from groundling.studies.attention.page.pairs import Entity
from groundling.studies.attention.page.views import Boxes, View
from groundling.tasks.flickr_entities import BAN

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ATTENDED = 0.1
"""Share of some word's attention from which a region of no entity stands by itself.

The paper shows regions that the model is "actively attending to" and does not say how much that is.
"""


def drawn(view: View, heads: Sequence[str], entities: Sequence[Entity] = ()) -> Figure:
    """Some heads (LAYER-HEAD) of a model on one image and text: words by boxes.

    Where boxes are known of what the text names, its `entities`, regions are grouped by them, see `groups_of`. Raises
    InputError for a head that there is not, and if nothing is left to draw.
    """
    maps = {head: view.shares(head) for head in heads}
    if entities:
        return _grouped(view, maps, entities)
    boxes = [view.boxes.title(number) for number in range(len(view.boxes.places))]
    even = [100 * view.even(head) for head in heads]
    return heat_maps(maps, [word.text for word in view.words], boxes, "box", min(even))


def _grouped(view: View, maps: Mapping[str, np.ndarray], entities: Sequence[Entity]) -> Figure:
    """The text's own words by what they name."""
    words = [place for place, word in enumerate(view.words) if word.raw >= 0]
    of_words = {head: shares[words] for head, shares in maps.items()}
    groups = groups_of(view.boxes, entities, np.stack(list(of_words.values())))
    if not any(len(group.regions) for group in groups):
        raise InputError(
            "--heat-maps: no region shows what the text names, and no word attends to another one in these heads; "
            "choose another example (--only), or a store whose regions fit"
        )
    sums = {head: summed(shares, groups) for head, shares in of_words.items()}
    told = [view.words[place].text for place in words]
    return heat_maps(sums, told, [group.title for group in groups], "regions, by what they show")


class Group(NamedTuple):
    """A column."""

    title: str
    regions: np.ndarray
    """Numbers of its regions; none for an entity that no region shows."""


def groups_of(boxes: Boxes, entities: Sequence[Entity], shares: np.ndarray) -> list[Group]:
    """The regions of each entity, then the others that some word attends to, one by one and starred.

    A region belongs to the entity of the gold box with which its intersection over union is largest, if that is at
    least .5, from which `groundling heads` counts it as right; of equals the first. A patch of the photo belongs to the
    entity of the smallest gold box around its centre. The whole image belongs to none.

    Args:
        boxes: R regions.
        entities: what the text names, each with its boxes.
        shares: (H, W, R), what the words give to regions in the heads that are drawn.
    """
    measure = _around if boxes.patches else BAN.iou
    best = [measure(boxes.places, entity.boxes).max(1) for entity in entities]
    overlap = np.stack(best, 1)  # (R, entities)
    is_theirs = (overlap.max(1) >= BAN.at) & ~boxes.whole
    nearest = overlap.argmax(1)
    groups = []
    for number, entity in enumerate(entities):
        regions = np.flatnonzero(is_theirs & (nearest == number))
        title = entity.phrase if len(regions) else f"{entity.phrase} (no region)"
        groups.append(Group(title, regions))
    is_attended = shares.max((0, 1)) >= ATTENDED
    for region in np.flatnonzero(is_attended & ~is_theirs):
        groups.append(Group(f"{boxes.title(int(region))} *", np.array([region])))
    return groups


def _around(patches: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """(R, G): 0 where a patch (R, 4) has its centre outside a box (G, 4), else 1 over the box's share of the image."""
    centre = (patches[:, None, :2] + patches[:, None, 2:]) / 2
    is_inside = ((centre >= boxes[None, :, :2]) & (centre <= boxes[None, :, 2:])).all(-1)
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
    return np.asarray(is_inside / areas)


def summed(shares: np.ndarray, groups: Sequence[Group]) -> np.ndarray:
    """What words give to groups (W, G), the sum over their regions, of what they give to regions (W, R).

    NaN for an entity that no region shows.
    """
    sums = [
        shares[:, group.regions].sum(1) if len(group.regions) else np.full(len(shares), np.nan)
        for group in groups
    ]
    return np.stack(sums, 1)
