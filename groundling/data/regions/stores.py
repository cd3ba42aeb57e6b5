"""Several region stores as one, e.g. train2014's and val2014's, or one for
each collection of captions.

Either each image is looked up in the first store that has it, or the stores become one, with the
regions of all, image by image.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from groundling.core.batch import RegionRow
from groundling.core.errors import InputError
from groundling.data.regions.store import ImageRegions, Item, RegionStore

FACTS = ("background", "classes", "class_names")
"""Facts of a manifest that stores share if their features are from the same model."""


class CombinedStore:
    """`stores[image_id]` gives the regions of an image, from the first of the stores that has it."""

    def __init__(self, stores: Sequence[RegionStore]) -> None:
        """One or more stores; has the `width` D, `classes` C, `background` and
        `has_segmentations` that all of them share.

        Raises InputError if stores differ in these, or if different models made their features.
        """
        self.stores = stores
        first = stores[0]
        for store in stores[1:]:
            if unlike := _unlike(first, store):
                both = f"{first.folder} and {store.folder}"
                raise InputError(
                    f"{both}: {unlike}; stores that are used together need the same kind of regions"
                )
        self.width = first.width
        self.classes = first.classes
        self.background = first.background
        self.has_segmentations = first.has_segmentations
        # A store of unknown origin matches any, so the others describe all.
        identified = next((store for store in stores if store.identity), first)
        self.identity = identified.identity
        self.origin = identified.origin

    @property
    def name(self) -> str:
        """The name of the stores in messages."""
        return " + ".join(str(store.folder) for store in self.stores)

    @property
    def facts(self) -> dict[str, Any]:
        """Facts that are saved with a model trained with these stores."""
        return {"identity": self.identity, "made_by": self.origin}

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys(image for store in self.stores for image in store.ids))

    def __contains__(self, image_id: object) -> bool:
        return any(image_id in store for store in self.stores)

    def __getitem__(self, image_id: str) -> RegionRow:
        """The regions of an image; raises InputError if no store has it, or its shard is damaged."""
        return self.store_of(image_id)[image_id]

    def count(self, image_id: str) -> int:
        """Number of an image's regions."""
        return self.store_of(image_id).count(image_id)

    def size(self, image_id: str) -> tuple[int, int]:
        """Width and height of an image in pixels; 0 if unknown."""
        return self.store_of(image_id).size(image_id)

    def in_annotated_order(self, image_id: str) -> bool:
        """Whether an image's regions are all its annotated objects, in annotation order,
        perhaps followed by others.
        """
        return self.store_of(image_id).in_annotated_order(image_id)

    def appended_detections(self, image_id: str) -> int:
        """Number of detected regions that follow an image's annotated objects."""
        return self.store_of(image_id).appended_detections(image_id)

    def in_several_stores(self, images: Iterable[str]) -> list[str]:
        """The images that more than one store has."""
        if len(self.stores) == 1:
            return []
        return [image for image in images if sum(image in store for store in self.stores) > 1]

    def store_of(self, image_id: str) -> RegionStore:
        """The first store that has an image.

        Without one, the first of all, which raises the error on access.
        """
        return next((store for store in self.stores if image_id in store), self.stores[0])


def _unlike(first: RegionStore, other: RegionStore) -> str:
    """The difference that keeps a model from reading two stores as one; empty if there is none."""
    if first.width != other.width:
        return f"features have widths {first.width} and {other.width}"
    if (first.classes, first.background) != (other.classes, other.background):
        return f"regions have {_kinds(first)} and {_kinds(other)}"
    if first.has_segmentations != other.has_segmentations:
        incomplete = other if first.has_segmentations else first
        return f"{incomplete.folder} has no segmentations of objects"
    reads_features = (
        first.features and other.features
    )  # without features, the model computes them itself
    has_identities = bool(first.identity and other.identity)
    if reads_features and has_identities and first.identity != other.identity:
        return f"made by {first.origin} and by {other.origin}"
    return ""


def _kinds(store: RegionStore) -> str:
    if not store.classes:
        return "no classes"
    return f"{store.classes} classes {'with' if store.background else 'without'} background"


def box_source(facts: Mapping[str, Any]) -> str:
    """The origin of a store's boxes, as far as it matters to a model: a grid, a detector, or files.

    Empty if the manifest does not say.
    """
    boxes = facts.get("boxes_from")
    if not isinstance(boxes, str):
        return ""
    if boxes.startswith("a grid of "):
        return boxes
    return "a detector" if boxes.startswith("the detector") else "files of boxes"


def describe_mismatch(model_facts: Mapping[str, Any], store_facts: Mapping[str, Any]) -> str:
    """The difference between a store's regions and those that a model was trained with, in words.

    Empty if none is known.
    """
    model_identity = model_facts.get("identity")
    store_identity = store_facts.get("identity")
    if model_identity and store_identity and model_identity != store_identity:
        return (
            f"made by {store_facts.get('made_by')}, but the model was trained with "
            f"{model_facts.get('made_by')}"
        )
    model_boxes = box_source(model_facts)
    store_boxes = box_source(store_facts)
    if model_boxes and store_boxes and model_boxes != store_boxes:
        return (
            f"boxes are from {store_boxes}, but the model was trained with boxes from {model_boxes}"
        )
    return ""


def are_stores(paths: Sequence[str | Path]) -> bool:
    """Whether any of these paths is a region store."""
    return any((Path(path) / "manifest.json").is_file() for path in paths)


def combine_images(paths: Sequence[str | Path]) -> tuple[dict[str, Any], Iterator[Item]]:
    """Facts for a manifest, and the images of all stores, each with its regions of all of them.

    UNITER reads VCR in this way: annotated boxes, then detected ones. The whole-image regions of
    later stores are left out. Raises InputError if stores differ, or if one has segmentations of
    objects, which the others' features lack.
    """
    stores = [RegionStore(path) for path in paths]
    combined = CombinedStore(stores)
    if combined.has_segmentations:
        raise InputError(
            f"{combined.name}: combining these stores would lose their segmentations of objects; "
            "`regions --boxes --add-detected-boxes` keeps them"
        )
    facts = {name: stores[0].manifest[name] for name in FACTS if name in stores[0].manifest}
    facts |= {
        "source": [str(path) for path in paths],
        "layout": "region stores, one behind the other",
        "identity": combined.identity,
        "made_by": combined.origin,
    }
    return facts, ((image, partial(_combined_regions, stores, image)) for image in combined)


def _combined_regions(stores: Sequence[RegionStore], image: str) -> ImageRegions:
    """The regions of an image, store after store."""
    first, *others = (store for store in stores if image in store)
    row = first[image]
    appended = [other[image].take(~other[image].is_whole_image) for other in others]
    row = RegionRow.concatenate([row, *appended])
    return ImageRegions(
        id=image,
        size=first.size(image),
        boxes=row.boxes,
        confidence=row.confidence,
        features=row.features,
        classes=row.classes,
        has_whole_image=bool(row.is_whole_image[0]),
        annotated_order=first.in_annotated_order(image),
        appended_detections=first.appended_detections(image)
        + sum(len(other) for other in appended),
    )
