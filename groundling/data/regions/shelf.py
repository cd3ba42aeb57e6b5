"""Which region stores a run reads for what, which regions a model was trained with, and whether the two fit."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.data.images import Names
from groundling.data.regions.store import RegionStore, whole_store
from groundling.data.regions.stores import SeveralStores
from groundling.data.samples import Samples
from groundling.models.kinds import RegionReader

NAMED = re.compile(r"([^=/\\]+)=(.*)")
"""NAME=STORE."""


class Shelf:
    """The stores of `--regions`, by what they are for: STORE serves all, NAME=STORE what is called so."""

    def __init__(
        self, words: Sequence[str], names: Collection[str], what: str, features: bool = True
    ) -> None:
        """`names`: all that may be named, such as a task's splits; `what` messages call one of them.

        With `features` off only boxes and classes are read. Raises InputError for a name that there is not.
        """
        self.what = what
        self.features = features
        self.folders: dict[str, list[str]] = {}
        for word in words:
            name, folder = _parts(word)
            if not folder:
                raise InputError(f"--regions {word}: expected STORE or NAME=STORE")
            if name and name not in names:
                offered = ", ".join(names)
                raise InputError(
                    f"--regions {word}: no {what} is called {name!r}"
                    + (f"; there are: {offered}" if offered else "; leave the name out")
                )
            self.folders.setdefault(name, []).append(folder)
        self._open: dict[str, RegionStore] = {}

    def of(self, *names: str) -> SeveralStores:
        """The stores that serve all of these names together, each opened once.

        Stores of its own go before those of everybody. Raises InputError if a name has none, or stores do not go
        together.
        """
        folders = [folder for name in names for folder in self._serving(name)]
        return SeveralStores([self._store(folder) for folder in dict.fromkeys(folders)])

    def _serving(self, name: str) -> list[str]:
        """A name's own stores, or else those without a name."""
        folders = self.folders.get(name) or self.folders.get("", [])
        if not folders:
            raise InputError(
                f"--regions: no store for the {self.what} {name!r}; add {name}=STORE, or a STORE for all that have "
                "none of their own"
            )
        return folders

    def _store(self, folder: str) -> RegionStore:
        if folder not in self._open:
            self._open[folder] = whole_store(folder, self.features)
        return self._open[folder]


def _parts(word: str) -> tuple[str, str]:
    """Name (empty without one) and folder of one word of `--regions`."""
    named = NAMED.fullmatch(word)
    if named is None or Path(word).exists():
        return "", word
    return named[1], named[2]


def manifests(words: Sequence[str]) -> dict[str, str | Path]:
    """The manifest of every store of `--regions`, by a name for a run's inputs."""
    paths = [Path(_parts(word)[1]) / "manifest.json" for word in words]
    if len(paths) == 1:
        return {"regions": paths[0]}
    return {f"regions:{number}": path for number, path in enumerate(paths)}


def made_by(store: SeveralStores) -> dict[str, Any]:
    """What travels with a model of the stores that it was trained with."""
    return {"identity": store.identity, "made_by": store.made_by}


def check_regions(stores: SeveralStores, model: RegionReader, accept: bool) -> None:
    """Raises InputError if a store's features have another width, or come from another detector or backbone.

    `accept` lets the latter pass. A model or a store that does not say what its regions are fits any.
    """
    before = model.regions_from.get("identity")
    for store in stores.stores:
        store.require(model.sizes.regions)
        if accept or not before or not store.identity or before == store.identity:
            continue
        raise InputError(
            f"{store.folder}: made by {store.made_by}, but the model was trained with regions made by "
            f"{model.regions_from.get('made_by')}; make the store alike, or pass --other-regions"
        )


def check_images(samples: Samples, store: SeveralStores) -> None:
    """Raises InputError for images that samples ask for and a store has not, and says what may have been meant."""
    asked: dict[str, str] = {}
    for sample, images in zip(samples.ids, samples.images, strict=True):
        for image in images:
            asked.setdefault(image, sample)
    lacking = [image for image in asked if image not in store]
    if not lacking:
        return
    hint = Names(store).but_for_capitals(lacking)
    raise InputError(
        f"{store.name}: {len(lacking)} of {len(asked)} images are not in this region store, the first is "
        f"{lacking[0]!r} of {asked[lacking[0]]}; {hint}add them with `groundling regions`, or take their rows out"
    )
