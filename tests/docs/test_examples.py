"""The notebooks under `examples/`, cell by cell, on stand-ins for the models and data that they name."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

import pytest
from documents import ROOT
from tiny import standins
from tiny.homes import digests
from transformers import AutoModel

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
FEW = {"adapt": "cpu=True, steps=1, batch=4, ", "regions": "cpu=True, "}
FEW |= {"pretrain": FEW["adapt"], "finetune": FEW["adapt"]}
"""Keywords that make a call small."""


def cells(path: Path) -> list[str]:
    """Sources of a notebook's code, whose training is small and has two seeds."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "code":
            for name, flags in FEW.items():
                source = re.sub(rf"\bgroundling\.{name}\(", rf"\g<0>{flags}", source)
            found.append(
                re.sub(r"\bepochs=1, |(seeds)=\d", lambda m: "seeds=2" * bool(m[1]), source)
            )
    return found


def shown(source: str, names: dict[str, Any]) -> object:
    """Runs a cell; gives what it ends with, as a notebook shows it."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return eval(compile(ast.Expression(last.value), "cell", "eval"), names) if last else None


@pytest.fixture(scope="session")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "all"
    standins.models(folder)
    standins.texts(folder)
    standins.glue(folder)
    standins.own_images(folder)
    return folder.parent


@pytest.fixture
def outputs(
    request: pytest.FixtureRequest, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[object]:
    """What the cells of a notebook show."""
    standins.put_down(shelf, "", tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    return [shown(source, names) for source in cells(request.param)]


def test_there_are_two() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["ask_your_photos", "ground_an_encoder"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_nothing_is_kept_of_a_run(path: Path) -> None:
    """Outputs would be somebody's machine and pictures."""
    book = json.loads(path.read_text(encoding="utf-8"))
    assert book["nbformat"] == 4 and len({cell["id"] for cell in book["cells"]}) == len(
        book["cells"]
    )
    for cell in book["cells"]:
        if cell["cell_type"] == "code":
            assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("outputs", [ROOT / "examples/ground_an_encoder.ipynb"], indirect=True)
def test_an_encoder_is_grounded(outputs: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    steps, last = outputs[1]
    assert steps == 1 and any(name.startswith("contrastive") for name in last)
    cosines = outputs[2]
    assert set(cosines) == {"seeing", "control"} and all(-1 <= x <= 1 for x in cosines.values())
    first, second = (digests(Path("runs") / name / "model") for name in ("seeing", "control"))
    assert first["model.safetensors"] != second["model.safetensors"]
    assert type(AutoModel.from_pretrained("runs/seeing/model")).__name__ == "BertModel"
    assert Path("runs/verdict/verdict.html").is_file()


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("outputs", [ROOT / "examples/ask_your_photos.ipynb"], indirect=True)
def test_photos_are_asked(outputs: list[object]) -> None:
    images, regions, skipped = outputs[1]
    assert (images, skipped) == (len(standins.PHOTOS), 0) and regions >= images
    assert all("accuracy" in scores for scores in outputs[2])
    answer, probability, best = outputs[3]
    assert answer in {"y", "n"} and 0 < probability < 1 and len(best) == 2
    assert "<iframe" in outputs[4]._repr_html_()
    assert "is it a dog" in Path("look.html").read_text(encoding="utf-8")
