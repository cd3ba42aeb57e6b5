"""Several region stores as one: train2014's and val2014's, say, or one for each collection of captions.

Either each image is looked up in the first that has it, or they become a store of the regions of all, image by image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from groundling.core.batch import RegionRow
from groundling.core.errors import InputError
from groundling.data.regions.store import ImageRegions, Item, RegionStore, open_checked_store

FACTS = ("background", "classes", "class_names")
"""What a manifest says of all that made the features alike."""


class CombinedStore:
    """`stores[image_id]` gives the regions of an image, from the first of the stores that has it."""

    def __init__(self, stores: Sequence[RegionStore]) -> None:
        """One store or more; has `width` D, `classes` C, `background` and `covers` as each of them has.

        Raises InputError if stores differ in these, or if different models made their features.
        """
        self.stores = stores
        first = stores[0]
        for store in stores[1:]:
            if unlike := _unlike(first, store):
                both = f"{first.folder} and {store.folder}"
                raise InputError(
                    f"{both}: {unlike}; together, stores are of one kind: make both alike"
                )
        self.width = first.width
        self.classes = first.classes
        self.background = first.background
        self.covers = first.covers
        # A store that does not say what made it fits any, so those that do speak for all.
        known = next((store for store in stores if store.identity), first)
        self.identity = known.identity
        self.made_by = known.made_by

    @property
    def name(self) -> str:
        """What messages call them."""
        return " + ".join(str(store.folder) for store in self.stores)

    @property
    def facts(self) -> dict[str, Any]:
        """What travels with a model of the stores that it was trained with."""
        return {"identity": self.identity, "made_by": self.made_by}

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(image for store in self.stores for image in store.ids))

    def __contains__(self, image_id: object) -> bool:
        return any(image_id in store for store in self.stores)

    def __getitem__(self, image_id: str) -> RegionRow:
        """The regions of an image; raises InputError if no store has it, or its shard is damaged."""
        return self.holder(image_id)[image_id]

    def count(self, image_id: str) -> int:
        """How many regions an image has."""
        return self.holder(image_id).count(image_id)

    def size(self, image_id: str) -> tuple[int, int]:
        """Width and height of an image in pixels; 0 where the source did not say."""
        return self.holder(image_id).size(image_id)

    def in_annotated_order(self, image_id: str) -> bool:
        """Whether an image's regions are its annotated objects, all of them and in their order, and others behind."""
        return self.holder(image_id).in_annotated_order(image_id)

    def appended_detections(self, image_id: str) -> int:
        """How many detected regions stand behind an image's annotated objects."""
        return self.holder(image_id).appended_detections(image_id)

    def repeated(self, images: Iterable[str]) -> list[str]:
        """Those of the images that more than one store has."""
        if len(self.stores) == 1:
            return []
        return [image for image in images if sum(image in store for store in self.stores) > 1]

    def holder(self, image_id: str) -> RegionStore:
        """The first store that has an image; the first of all if none has, which says so when asked."""
        return next((store for store in self.stores if image_id in store), self.stores[0])


def _unlike(first: RegionStore, other: RegionStore) -> str:
    """Why no model can read two stores as one; empty if it can."""
    if first.width != other.width:
        return f"features are {first.width} and {other.width} wide"
    if (first.classes, first.background) != (other.classes, other.background):
        return f"regions have {_kinds(first)} and {_kinds(other)}"
    if first.covers != other.covers:
        lacking = other if first.covers else first
        return f"{lacking.folder} knows no segments of objects"
    looks = first.features and other.features  # of others, the model makes the features itself
    known = bool(first.identity and other.identity)
    if looks and known and first.identity != other.identity:
        return f"made by {first.made_by} and by {other.made_by}"
    return ""


def _kinds(store: RegionStore) -> str:
    if not store.classes:
        return "no classes"
    return (
        f"{store.classes} classes, {'background among them' if store.background else 'all things'}"
    )


def box_source(facts: Mapping[str, Any]) -> str:
    """Where the boxes of a store are from, as far as a model must not care less: a grid, a detector, or files.

    Empty where the manifest does not say.
    """
    boxes = facts.get("boxes_from")
    if not isinstance(boxes, str):
        return ""
    if boxes.startswith("a grid of "):
        return boxes
    return "a detector" if boxes.startswith("the detector") else "files of boxes"


def describe_mismatch(facts: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """In which way regions differ from those that a model learned from, in words; empty if in none that is known."""
    mine = facts.get("identity")
    theirs = other.get("identity")
    if mine and theirs and mine != theirs:
        return f"made by {other.get('made_by')}, the model learned from {facts.get('made_by')}"
    mine = box_source(facts)
    theirs = box_source(other)
    if mine and theirs and mine != theirs:
        return f"boxes are from {theirs}, the model learned from boxes of {mine}"
    return ""


def are_stores(paths: Sequence[str | Path]) -> bool:
    """Whether any of these paths is a region store."""
    return any((Path(path) / "manifest.json").is_file() for path in paths)


def combine_images(paths: Sequence[str | Path]) -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts for a manifest, and the images of all stores, each with its regions of all of them.

    UNITER reads VCR so: annotated boxes, then detected ones. Of later stores the whole image is left out. Raises
    InputError if stores are not alike, or hold segments of objects, which others' features lack.
    """
    stores = [open_checked_store(path) for path in paths]
    together = CombinedStore(stores)
    if together.covers:
        raise InputError(
            f"{together.name}: hold segments of objects, which would be lost; `regions --boxes --add-detected-boxes` keeps "
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


def _found(stores: Sequence[RegionStore], image: str) -> ImageRegions:
    """The regions of an image, store after store."""
    first, *others = (store for store in stores if image in store)
    row = first[image]
    behind = [other[image].take(~other[image].is_whole_image) for other in others]
    row = RegionRow.concatenate([row, *behind])
    return ImageRegions(
        id=image,
        size=first.size(image),
        boxes=row.boxes,
        confidence=row.confidence,
        features=row.features,
        classes=row.classes,
        has_whole_image=bool(row.is_whole_image[0]),
        annotated_order=first.in_annotated_order(image),
        appended_detections=first.appended_detections(image) + sum(len(other) for other in behind),
    )
