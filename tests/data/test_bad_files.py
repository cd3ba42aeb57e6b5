"""Files that cannot be read: one line that names the file and the line, status 2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from builders.commands import adapting_with, tuning_with
from homes import coco, picture, put, rte


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("t.txt", None, "t.txt: no such file"),
        ("t.txt", b"", "t.txt: the file is empty"),
        ("t.txt", b" \n\n", "t.txt: the file is empty"),
        ("t.txt", b"fine\ncaf\xe9\n", "t.txt, line 2: cannot be read (UnicodeDecodeError: 'utf-8'"),
        ("c.json", None, "c.json: no such file"),
        ("c.json", b'{"images": [],\n"annotations": [', "c.json: not valid JSON"),
        (
            "c.json",
            b'{"images": []}',
            "c.json: cannot be read (KeyError: 'annotations')",
        ),
        (
            "c.json",
            b'{"images": [{"id": 1}], "annotations": []}',
            "c.json: cannot be read (KeyError: 'file_name')",
        ),
        (
            "x.token.txt",
            b"1.jpg#0\tA dog.\n2.jpg A cat.\n",
            "token.txt, line 2: expected file#number<TAB>caption",
        ),
        ("x.tsv", b"A dog.\t1.jpg\nA cat.\n", "x.tsv, line 2: 1 fields, but line 1 has 2"),
    ],
)
def test_text_that_cannot_be_read(
    name: str,
    content: bytes | None,
    complaint: str,
    given: Path,
    tmp_path: Path,
    refusal: Callable[..., str],
) -> None:
    path = tmp_path / name
    if content is not None:
        put(path, content)
    line = refusal(*adapting_with(given, tmp_path / "out", text=path))
    assert complaint in line
    assert str(path) in line


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ("16\tA dog.\tA cat.", "line 18: 3 fields, expected 4"),
        (
            "16\tA dog.\tA cat.\tmaybe",
            "line 18: label 'maybe' is not one of entailment, not_entailment",
        ),
    ],
)
def test_a_broken_row_of_a_task(
    row: str, complaint: str, given: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    path = rte(tmp_path / "glue") / "RTE" / "train.tsv"
    put(path, path.read_text() + row + "\n")
    line = refusal(*tuning_with(given, tmp_path / "out", data=tmp_path / "glue"))
    assert f"{path}, {complaint}" in line


@pytest.mark.parametrize("kind", ["garbage", "cut short", "missing"])
def test_images_that_are_broken_or_missing(
    kind: str, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    for n in (1, 2, 3):
        picture(tmp_path / "images" / f"{n}.png", size=(64, 64))
    bad = tmp_path / "images" / "2.png"
    if kind == "missing":
        bad.unlink()
    else:
        put(bad, b"no image" if kind == "garbage" else bad.read_bytes()[:60])
    captions = coco(
        tmp_path / "c.json", [(n, f"{n}.png") for n in (1, 2, 3)], [(n, "a dog") for n in (1, 2, 3)]
    )
    line = refusal(
        "train-clip",
        "--captions",
        captions,
        "--images",
        tmp_path / "images",
        "--cpu",
        "--steps",
        1,
        "--batch",
        2,
        "--size",
        16,
        "--vision-tower",
        32,
        1,
        "--text-tower",
        32,
        1,
        "--vocab-size",
        520,
        "--out",
        tmp_path / "out",
    )
    if kind == "missing":
        assert "1 of 3" in line and "2.png" in line
        assert "skip_missing" in line
    else:
        assert f"{bad}: does not decode" in line
