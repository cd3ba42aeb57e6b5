"""Region stores and region files that are no longer what was written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import standins

from groundling.core.errors import InputError
from groundling.data.regions.store import ImageRegions, RegionStore, to_stored


def test_a_cut_store_is_not_trained_on(tmp_path: Path) -> None:
    standins.store(tmp_path / "store", standins.PHOTOS)
    shard = tmp_path / "store/shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(InputError, match=f"{shard}: damaged or missing .*; make the store again"):
        RegionStore(tmp_path / "store")


def test_e5_class_shares_that_add_up_to_more_than_one_are_told() -> None:
    shares = np.full((2, 4), 0.25, np.float32)
    boxes = np.tile(np.float32([0, 0, 1, 1]), (2, 1))
    image = ImageRegions("a", (9, 9), boxes, np.ones(2), np.ones((2, 3)), shares)
    to_stored(image)
    shares[1] = 0.5
    with pytest.raises(InputError, match="classes of region 1 add up to more than 1"):
        to_stored(image)
