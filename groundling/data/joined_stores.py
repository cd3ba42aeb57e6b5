"""Region stores of the same images as one: of each image the regions of the first store, then those of the next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from groundling.batch import RegionRow
from groundling.data.regions import Found, Item, RegionStore
from groundling.data.several_stores import SeveralStores
from groundling.errors import InputError

FACTS = ("background", "classes", "class_names")
"""What a manifest says of all that made the features alike."""


def are_stores(paths: Sequence[str | Path]) -> bool:
    """Whether any of these paths is a region store."""
    return any((Path(path) / "manifest.json").is_file() for path in paths)


def joined(paths: Sequence[str | Path]) -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts for a manifest, and the images of all stores, each with its regions of all of them.

    UNITER reads VCR so: annotated boxes, then detected ones. Of later stores the whole image is left out. Raises
    InputError if stores are not alike, or hold segments of objects, which others' features lack.
    """
    stores = [RegionStore(path) for path in paths]
    together = SeveralStores(stores)
    if together.covers:
        raise InputError(
            f"{together.name}: hold segments of objects, which would be lost; `regions --boxes --also-detected` keeps "
            "them"
        )
    facts = {name: stores[0].manifest[name] for name in FACTS if name in stores[0].manifest}
    facts |= {
        "source": [str(path) for path in paths],
        "layout": "region stores, one behind the other",
        "identity": together.identity,
        "made_by": together.made_by,
    }
    return facts, ((image, partial(_found, stores, image)) for image in together)


def _found(stores: Sequence[RegionStore], image: str) -> Found:
    """The regions of an image, store after store."""
    first, *others = (store for store in stores if image in store)
    row = first[image]
    behind = [other[image].take(~other[image].whole) for other in others]
    row = RegionRow.join([row, *behind])
    return Found(
        id=image,
        size=first.size(image),
        boxes=row.boxes,
        confidence=row.confidence,
        features=row.features,
        classes=row.classes,
        whole=bool(row.whole[0]),
        annotated_order=first.in_annotated_order(image),
        behind=first.behind(image) + sum(len(other) for other in behind),
    )
