"""Region stores and region files that are no longer what was written."""

from __future__ import annotations

from pathlib import Path
from zipfile import ZipFile

import numpy as np
import pytest
import standins

from groundling.core.errors import InputError
from groundling.data.regions.imports import import_regions
from groundling.data.regions.store import RegionStore, first_fault


def test_a_cut_store_is_not_trained_on(tmp_path: Path) -> None:
    standins.store(tmp_path / "store", standins.PHOTOS)
    shard = tmp_path / "store/shard-00000.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4])
    with pytest.raises(InputError, match=f"{shard}: damaged or missing .*; make the store again"):
        RegionStore(tmp_path / "store")


def test_e5_class_shares_that_add_up_to_more_than_one_are_told() -> None:
    shares = np.full((2, 4), 0.25, np.float32)
    assert first_fault({"classes": shares}) == ""
    shares[1] = 0.5
    assert first_fault({"classes": shares}) == "classes of region 1 add up to more than 1"


def test_e13_damaged_pages_of_an_lmdb_do_not_end_the_process(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path), map_size=1 << 22) as base, base.begin(write=True) as view:
        for number in range(300):
            view.put(f"{number}".encode(), bytes(40))
    path = tmp_path / "data.mdb"
    content = bytearray(path.read_bytes())
    for page in range(2, len(content) // 4096):
        content[page * 4096 + 16 : page * 4096 + 400] = b"\xff" * 384  # where the nodes are
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"data.mdb: .*; copy it again"):
        list(import_regions(tmp_path)[1])


def test_e14_a_zip_of_a_version_to_come_is_refused(tmp_path: Path) -> None:
    with ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("1.json", "{}")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    content[content.index(b"PK\1\2") + 6] = 148
    (tmp_path / "a.zip").write_bytes(content)
    with pytest.raises(
        InputError,
        match=r"a.zip: not a readable zip file \(NotImplementedError: zip file version 14.8",
    ):
        list(import_regions(tmp_path / "a.zip")[1])
