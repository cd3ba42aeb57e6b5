"""Which regions a model was trained with, and whether a store holds such ones."""

from __future__ import annotations

from typing import Any

from groundling.data.regions import RegionStore
from groundling.errors import InputError
from groundling.models.single_stream import SingleStream


def made_by(store: RegionStore) -> dict[str, Any]:
    """What travels with a model of the store that it was trained with."""
    return {"identity": store.identity, "made_by": store.made_by}


def check_regions(store: RegionStore, model: SingleStream, accept: bool) -> None:
    """Raises InputError if a store's features have another width, or come from another detector or backbone.

    `accept` lets the latter pass. A model or a store that does not say what its regions are fits any.
    """
    store.require(model.sizes.regions)
    before = model.regions_from.get("identity")
    if accept or not before or not store.identity or before == store.identity:
        return
    raise InputError(
        f"{store.folder}: made by {store.made_by}, but the model was trained with regions made by "
        f"{model.regions_from.get('made_by')}; make the store alike, or pass --other-regions"
    )
