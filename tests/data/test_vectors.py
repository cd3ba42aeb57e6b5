"""Vectors computed elsewhere: every layout is read alike, and what is damaged is named with its file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from safetensors.torch import save_file as torch_save_file
from tiny.homes import lines, parquet, put

from groundling.core.errors import InputError
from groundling.data.vectors import VectorTable

NAMES = ["a.jpg", "deep/b.png", "c"]
VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def numbers(path: Path, values: np.ndarray = VALUES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".npy":
        np.save(path, values)
    else:
        save_file({"vectors": values}, path)
    return path


def plain(folder: Path) -> None:
    numbers(folder / "images.npy")
    put(folder / "images.txt", "\n".join(NAMES) + "\n")


def in_two_files(folder: Path) -> None:
    numbers(folder / "images-0.safetensors", VALUES[:2])
    lines(folder / "images-0.jsonl", *({"image": name} for name in NAMES[:2]))
    numbers(folder / "images-1.npy", VALUES[2:].astype(np.float16))
    put(folder / "images-1.txt", NAMES[2])


def clip_retrieval(folder: Path) -> None:
    numbers(folder / "img_emb/img_emb_0.npy")
    paths = [f"/data/photos/{name}" for name in NAMES]
    parquet(folder / "metadata/metadata_0.parquet", image_path=paths, caption=["x", "y", "z"])


@pytest.mark.parametrize("write", [plain, in_two_files, clip_retrieval])
def test_an_image_is_found_by_its_id_in_every_layout(write, tmp_path):
    write(tmp_path)
    table = VectorTable(tmp_path, "image")
    assert (len(table), table.width) == (3, 4)
    rows = table.rows_of(["c", "a", "b"])
    np.testing.assert_array_equal(table.read(rows), VALUES[[2, 0, 1]])
    with pytest.raises(InputError, match=r"no vector of the image 'd' \(2 such\)"):
        table.rows_of(["d", "a", "e"])


@pytest.mark.parametrize(
    ("asked", "row"), [("deep/b", 1), ("x/deep/b.png", 1), ("b", 1), ("x/c", 2), ("other/b", -1)]
)
def test_the_name_in_another_folder_is_another_image(asked: str, row: int, tmp_path: Path) -> None:
    plain(tmp_path)
    table = VectorTable(tmp_path, "image")
    if row < 0:
        with pytest.raises(InputError, match="no vector of the image"):
            table.rows_of([asked])
    else:
        assert table.rows_of([asked]).tolist() == [row]


def test_a_text_is_found_whatever_its_spaces_and_twice_the_same_vector_is_one(tmp_path):
    numbers(tmp_path / "text_emb/text_emb_00.npy", VALUES[[0, 1, 1]])
    captions = ["Two dogs .", "a  cat", "a cat"]
    parquet(tmp_path / "metadata/metadata_00.parquet", caption=captions)
    table = VectorTable(tmp_path, "text")
    rows = table.rows_of([" a cat", "Two dogs ."])
    np.testing.assert_array_equal(table.read(rows), VALUES[[1, 0]])


def test_a_text_of_two_batches_may_differ_by_rounding_and_an_image_may_not(tmp_path):
    values = VALUES[[0, 1, 1]]
    values[2] = np.nextafter(values[2], 99)
    numbers(tmp_path / "texts.npy", values)
    put(tmp_path / "texts.txt", "two dogs\na cat\na cat\n")
    table = VectorTable(tmp_path, "text")
    np.testing.assert_array_equal(table.read(table.rows_of(["a cat"])), VALUES[[1]])
    numbers(tmp_path / "images.npy", values)
    put(tmp_path / "images.txt", "0\n1\n1\n")
    with pytest.raises(InputError, match=r"row 2 has the id of .*row 1, but not its vector"):
        VectorTable(tmp_path, "image").rows_of(["1"])


def test_an_empty_shard_is_skipped(tmp_path: Path) -> None:
    in_two_files(tmp_path)
    numbers(tmp_path / "images-2.npy", VALUES[:0])
    put(tmp_path / "images-2.txt", "")
    table = VectorTable(tmp_path, "image")
    np.testing.assert_array_equal(table.read(table.rows_of(["c", "a"])), VALUES[[2, 0]])


@pytest.mark.parametrize("name", ["c", "b"])
@pytest.mark.parametrize("together", [True, False])
def test_two_images_of_one_name_are_not_one(name: str, together: bool, tmp_path: Path) -> None:
    plain(tmp_path)
    table = VectorTable(tmp_path, "image")
    last = {"c": ["0.tar/c", "1.tar/c.png"], "b": ["x/deep/b", "y/deep/b"]}[name]
    read_before, asked = ([], last) if together else (last[:1], last[1:])
    table.rows_of([*read_before, "a"])
    told = r"images.npy: row \d would be the vector of '.*' and of an image in another folder"
    with pytest.raises(InputError, match=told):
        table.rows_of([*asked, "a"])
    for _ in range(2):  # one of them alone, twice
        assert len(VectorTable(tmp_path, "image").rows_of([last[0], last[0]])) == 2


def test_an_index_is_made_once_for_the_same_ids(tmp_path, monkeypatch):
    plain(tmp_path)
    assert VectorTable(tmp_path, "image").rows_of(["a", "c"]).tolist() == [0, 2]
    with monkeypatch.context() as patch:
        patch.setattr(VectorTable, "_indexed", lambda *_: pytest.fail("made again"))
        assert VectorTable(tmp_path, "image").rows_of(["c", "a"]).tolist() == [2, 0]
    changed = (tmp_path / "images.txt").stat().st_mtime_ns
    put(tmp_path / "images.txt", "c\ndeep/b.png\na.jpg\n")
    os.utime(tmp_path / "images.txt", ns=(changed, changed))  # as an archive may set it
    assert VectorTable(tmp_path, "image").rows_of(["c", "a"]).tolist() == [0, 2]


def other_width(folder: Path) -> None:
    numbers(folder / "images-2.npy", VALUES[:, :3])
    put(folder / "images-2.txt", "x\ny\nz")


def in_safetensors(**arrays: np.ndarray | torch.Tensor) -> Callable[[Path], object]:
    def write(folder: Path) -> None:
        (folder / "images.npy").unlink()
        tensors = {name: torch.as_tensor(array).clone() for name, array in arrays.items()}
        torch_save_file(tensors, folder / "images.safetensors")

    return write


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "no ids": (lambda at: (at / "images.txt").unlink(), "no file of ids beside it"),
    "an id too few": (lambda at: put(at / "images.txt", "a\nb"), "2 ids, but .* has 3 rows"),
    "an id too many": (lambda at: put(at / "images.txt", "a\nb\nc\nd"), "4 ids, but .* has 3 rows"),
    "an empty list": (lambda at: put(at / "images.txt", ""), "images.txt: the file is empty"),
    "an id twice": (lambda at: put(at / "images.txt", "a\nb\na"), "row 2 has the id of .*row 0"),
    "another width": (other_width, "4 numbers a row, but .* has 3"),
    "a cut file": (lambda at: put(at / "images.npy", b"\x93NUMPY"), "images.npy: cannot be read"),
    "objects": (
        lambda at: np.save(at / "images.npy", np.array([{}, {}]), allow_pickle=True),
        "images.npy: cannot be read",
    ),
    "whole numbers": (
        lambda at: numbers(at / "images.npy", VALUES.astype(int)),
        "an array .3, 4. of int64",
    ),
    "NaN": (lambda at: numbers(at / "images.npy", VALUES * np.nan), "row 0 has no finite length"),
    "huge": (lambda at: numbers(at / "images.npy", VALUES + 1e30), "row 0 has no finite length"),
    "zeros": (lambda at: numbers(at / "images.npy", VALUES * 0), "row 0 .* is zero throughout"),
    "two arrays": (in_safetensors(one=VALUES, other=VALUES), "one array, found one, other"),
    "no array": (in_safetensors(), "expected one array, found none"),
    "bfloat16": (
        in_safetensors(one=torch.ones(3, 4, dtype=torch.bfloat16)),
        "not bfloat16.* found an array .3, 4. of BF16",
    ),
    "no width": (lambda at: numbers(at / "images.npy", VALUES[:, :0]), "found an array .3, 0"),
    "ids that are none": (
        lambda at: (at / "images.txt").unlink() or lines(at / "images.jsonl", {"image": [1]}),
        "images.jsonl, line 1: field 'image' is .1",
    ),
    "no column": (
        lambda at: (at / "images.txt").unlink() or lines(at / "images.jsonl", {"no": "a"}),
        "no column of images",
    ),
    "nothing": (lambda at: (at / "images.npy").unlink(), "no vectors of images"),
    "half": (lambda at: put(at / "config.json", "{}"), "`embed` has not finished there"),
}


@pytest.mark.parametrize(("damage", "message"), DAMAGE.values(), ids=DAMAGE)
def test_damage_is_named_with_its_file(damage, message, tmp_path):
    plain(tmp_path)
    damage(tmp_path)
    with pytest.raises(InputError, match=message):
        vector_of(tmp_path, "a")


def vector_of(folder: Path, name: str) -> np.ndarray:
    table = VectorTable(folder, "image")
    return table.read(table.rows_of([name]))
