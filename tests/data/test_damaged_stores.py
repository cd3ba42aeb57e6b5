"""A region store that is no longer what was written is refused before anything is learned from it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import homes
import numpy as np
import pytest
import standins

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.data.regions.imports import import_regions
from groundling.data.regions.inputs import ImageSampleBuilder
from groundling.data.regions.store import RegionStore, first_fault, open_checked_store
from groundling.data.regions.stores import combine_images
from groundling.settings.input_settings import RegionSettings


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of six photos, a BERT and captions."""
    folder = tmp_path_factory.mktemp("made")
    standins.own_images(folder)
    standins.store(folder / "store", standins.PHOTOS)
    homes.student(folder / "bert")
    return folder


@pytest.fixture
def store(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made / "store", tmp_path / "store"))


def damaged(file: Path) -> None:
    """One bit of a number's last byte, which no range of values tells."""
    content = bytearray(file.read_bytes())
    content[-2] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("name", ["features", "boxes", "confidence"])
def test_a_damaged_store_is_not_trained_on(
    name: str, store: Path, made: Path, tmp_path: Path, capsys: Any
) -> None:
    file = store / f"{name}-00000.npy"
    damaged(file)
    RegionStore(store)[standins.PHOTOS[0]]  # it can be read, and reads otherwise
    words = ["pretrain", "--architecture", "visualbert", "--model", str(made / "bert"), "--regions"]
    words += [str(store), "--captions", str(made / "my_captions.tsv"), "--steps", "1", "--cpu"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    complaint = capsys.readouterr().err.strip().splitlines()[-1]
    assert complaint.startswith(f"groundling: {file}: changed since")
    assert not (tmp_path / "out/checkpoints").exists()


def test_every_way_to_a_store_compares(store: Path) -> None:
    index = store / "index-00000.json"
    index.write_text(index.read_text().replace('"facts"', ' "facts"'))
    for way in (
        lambda: open_checked_store(store),
        lambda: ImageSampleBuilder(RegionSettings((str(store),)), (), "split").stores("dev"),
        lambda: combine_images([store]),
    ):
        with pytest.raises(InputError, match=r"index-00000\.json: changed since"):
            way()


def test_a_manifest_that_lacks_hashes_is_damaged(store: Path) -> None:
    path = store / "manifest.json"
    about = json.loads(path.read_text())
    for hashes in ({}, None):
        path.write_text(json.dumps(about | {"sha256": hashes}))
        with pytest.raises(InputError, match=r"manifest\.json: lacks the SHA-256 of index-00000"):
            open_checked_store(store)


def test_one_process_of_a_machine_compares(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    damaged(store / "features-00000.npy")
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert len(open_checked_store(store)) == len(standins.PHOTOS)
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(InputError, match="changed since"):
        open_checked_store(store)


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
