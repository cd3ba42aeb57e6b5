"""Mutual nearest neighbours: by hand, against the definition row by row, galleries, and captions beside photographs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tiny import homes

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.stats import interval
from groundling.studies.xdbert import similarity as module
from groundling.studies.xdbert.commands import SimilarityConfig
from groundling.studies.xdbert.similarity import (
    compare_captions,
    mutual_neighbors,
    neighbors_by_gallery,
)


def related(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(n, 6))
    return a, a @ rng.normal(size=(6, 4)) + rng.normal(size=(n, 4))


def by_definition(a: np.ndarray, b: np.ndarray, k: int) -> float:
    """Huh et al. 2024: the mean of |S(a_i) and S(b_i)| / k, each S the k nearest rows by cosine."""
    shares = []
    for row in range(len(a)):
        nearest = []
        for table in (a, b):
            unit = table / np.linalg.norm(table, axis=1, keepdims=True)
            order = np.argsort(-(unit @ unit[row]), kind="stable")
            nearest.append([one for one in order if one != row][:k])
        shares.append(len(set(nearest[0]) & set(nearest[1])) / k)
    return float(np.mean(shares))


def test_neighbors_by_hand() -> None:
    # On the circle at 0, 10, 40 and 100 degrees; in the other table the last two have changed places.
    angles = np.radians([0, 10, 40, 100])
    a = np.stack([np.cos(angles), np.sin(angles)], 1) * [[1], [5], [2], [3]]
    b = a[[0, 1, 3, 2]]
    # The nearest in a: 1, 0, 1, 2; in b: 1, 0, 3, 1.
    assert mutual_neighbors(a, b, 1) == 2 / 4
    # The two nearest in a: 12, 02, 10, 21; in b: 13, 03, 31, 10.
    assert mutual_neighbors(a, b, 2) == (1 + 1 + 1 + 1) / 8
    # Of equally near rows the first count: three equal rows and one that is none's neighbour.
    equal = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]])
    assert mutual_neighbors(equal, equal, 1) == 1


@pytest.mark.parametrize("k", [1, 3, 10])
def test_the_definition_in_blocks_of_any_size(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = related(90)
    wanted = by_definition(a, b, k)
    assert mutual_neighbors(a, b, k) == pytest.approx(wanted, abs=1e-12)
    assert 0 < wanted < 1 == mutual_neighbors(a, a * 3, k)
    monkeypatch.setattr(module, "BLOCK", 7 * 90)
    assert mutual_neighbors(a, b, k) == pytest.approx(wanted, abs=1e-12)


def test_galleries_are_keyed_and_unrelated_tables_at_chance() -> None:
    a, b = related(1400)
    curve = neighbors_by_gallery(a, b, 5, seed=3)
    assert [(one["rows"], one["galleries"]) for one in curve] == [(256, 10), (1024, 10), (1400, 1)]
    assert curve[0]["value"] > curve[1]["value"] > curve[2]["value"] > 10 * curve[2]["chance"]
    drawn = [
        np.sort(module.generator(3, "gallery", 256, n).permutation(1400)[:256]) for n in range(10)
    ]
    values = [by_definition(a[rows], b[rows], 5) for rows in drawn[:2]]
    assert [mutual_neighbors(a[rows], b[rows], 5) for rows in drawn[:2]] == pytest.approx(values)
    every = np.array([mutual_neighbors(a[rows], b[rows], 5) for rows in drawn])
    assert curve[0]["value"] == every.mean() and curve[0]["interval"] == interval(every).tolist()
    assert curve[2]["value"] == mutual_neighbors(a, b, 5) and curve[2]["interval"] is None
    assert neighbors_by_gallery(a, b, 5, seed=3) == curve != neighbors_by_gallery(a, b, 5, seed=4)
    order = np.random.default_rng(0).permutation(1400)
    for point in neighbors_by_gallery(a, b[order], 5):
        assert point["chance"] == 5 / (point["rows"] - 1)
        assert point["value"] == pytest.approx(point["chance"], rel=0.5)
    assert neighbors_by_gallery(a[:4], b[:4])[0]["neighbors"] == 2


def folders(tmp_path: Path, photographs: int = 5) -> tuple[Path, Path]:
    """Captions, two of each photograph, and a folder of their vectors: texts' first number tells the photograph."""
    rows = [(f"{n}.jpg", f"caption {which} of {n}") for n in range(5) for which in "ab"]
    captions = homes.put(
        tmp_path / "some.token.txt", "".join(f"{i}#0\t{text}\n" for i, text in rows)
    )
    texts = np.stack([np.array([n // 2, n % 2, 1.0]) for n in range(10)]).astype(np.float32)
    images = related(5, seed=2)[0].astype(np.float32)[:photographs]
    folder = tmp_path / "vectors"
    homes.put(folder / "texts.txt", "".join(f"{text}\n" for _, text in rows))
    homes.put(folder / "images.txt", "".join(f"{n}.jpg\n" for n in range(photographs)))
    np.save(folder / "texts.npy", texts)
    np.save(folder / "images.npy", images)
    return captions, folder


def test_captions_beside_photographs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    captions, folder = folders(tmp_path)
    stored = f"vectors:{folder}"
    line = ["similarity", "--model", stored, "--other", stored, "--captions", str(captions)]
    assert main([*line, "--neighbors", "1", "--out", str(tmp_path / "run")]) == 0
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    first = np.load(folder / "texts.npy")[::2]  # the first caption of each photograph
    wanted = by_definition(first, np.load(folder / "images.npy"), 1)
    (point,) = result["mutual_neighbors"]
    assert (point["rows"], point["value"]) == (5, wanted) and result["n"] == 5
    few = SimilarityConfig(model=stored, other=stored, captions=str(captions), limit=4)
    assert compare_captions(few)["n"] == 4


def test_bad_requests(tmp_path: Path) -> None:
    captions, folder = folders(tmp_path, photographs=4)
    stored = f"vectors:{folder}"
    plain = homes.put(tmp_path / "plain.txt", "a dog runs\na cat sits\n")
    for model, other, file, expected in [
        (stored, stored, captions, r"vectors: no vector of the image '4(\.jpg)?'"),
        ("bert", stored, captions, "bert: captions need vectors:FOLDER, which `embed` writes"),
        (stored, stored, plain, "plain.txt: expected captions with the image of each"),
    ]:
        with pytest.raises(InputError, match=expected) as error:
            compare_captions(SimilarityConfig(model=model, other=other, captions=str(file)))
        assert "\n" not in str(error.value)
    rows = related(9)[0]
    with pytest.raises(InputError, match="9 rows have no 9 neighbours each"):
        mutual_neighbors(rows, rows, 9)
    for hole in (0, np.nan):
        damaged = np.where(np.arange(9)[:, None] == 4, hole, rows)
        with pytest.raises(InputError, match="row 4 of the tables is 0 or not finite"):
            mutual_neighbors(rows, damaged, 2)
