"""Regions of photos that no store holds: found as `groundling regions` would, when somebody asks about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from groundling.core.errors import InputError
from groundling.data.images import Picture
from groundling.data.regions.store import Found, RegionsInMemory, storable
from groundling.vision.extract import Extractor
from groundling.vision.settings import Extraction, Finding


class Finder:
    """Finds the regions of photos by a store's own detector or grid, and its backbone."""

    def __init__(
        self,
        finding: Finding,
        facts: Mapping[str, Any],
        device: str = "cpu",
        features: bool = True,
    ) -> None:
        """`finding` as the store was made with, `facts` what its manifest says of models and preprocessing.

        With `features` off, boxes alone are handed on. Raises InputError if a model is missing, or is not the one that
        the store was made with.
        """
        self.features = features
        try:
            self.extractor = Extractor(Extraction(finding=finding), device, {}, ())
        except InputError as error:
            raise InputError(
                f"{error}; regions of new photos are found as those were that the model learned from: --backbone and "
                "--detector say where these models lie now"
            ) from None
        found = self.extractor.facts
        sources = {"backbone": finding.backbone, "detector": finding.detector}
        for name, weights in dict(facts.get("weights", {})).items():
            if found["weights"].get(name) != weights and (features or name == "detector"):
                raise InputError(
                    f"{sources[name]}: not the {name} that this model's regions were made with; its weights differ"
                )
        if features and facts.get("identity") not in ("", None, found["identity"]):
            raise InputError(
                f"{finding.backbone}: its images are prepared otherwise than those that this model learned from"
            )

    def __call__(self, photos: Mapping[str, Picture]) -> tuple[RegionsInMemory, dict[str, str]]:
        """Regions of photos, by their id; and what is wrong with those that have none, by id."""
        found, skipped = self.extractor(list(photos.items()))
        kept: list[Found] = []
        for image in found:
            try:
                kept.append(storable(image))
            except InputError as error:
                skipped.append(f"{image.id}: {error}")
        there = {image.id for image in kept}
        return RegionsInMemory(kept, self.features), {
            name: _reason(name, skipped) for name in photos if name not in there
        }


def _reason(name: str, skipped: Sequence[str]) -> str:
    """Why a photo was skipped, of the lines that say so."""
    told = (line.removeprefix(f"{name}: ") for line in skipped if line.startswith(f"{name}: "))
    return next(told, "no regions were found")
