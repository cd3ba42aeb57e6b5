"""`--dry-run` reads what the command would read, says what comes next, and leaves nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import homes
import pytest
import standins
from homes import put, table

import groundling
from groundling.cli import main
from groundling.core.errors import InputError

CLIP = ["--size", "16", "--patch-size", "8", "--vision-tower", "32", "1", "--text-tower", "32", "1"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dry")
    homes.student(folder / "student")
    homes.teacher(folder / "clip")
    homes.text(folder / "text.txt", 12)
    standins.own_images(folder)
    standins.store(folder / "store", standins.PHOTOS)
    standins.backbone(folder / "vit")
    return folder


COMMANDS = {
    "adapt": ("adapt --student student --arm mlm --text text.txt", {"texts": 12}, "training, "),
    "finetune": (
        "finetune --model student --data my_questions.csv --text question --image photo --label answer",
        {"train": 17, "dev": 3},
        "training, ",
    ),
    "pretrain": (
        "pretrain --model student --architecture visualbert --regions store --captions my_captions.tsv",
        {"samples": 6},
        "training, ",
    ),
    "train-clip": (
        "train-clip --captions my_captions.tsv --images my_photos --vocab-size 300",
        {"images": 6, "missing images": 0},
        "training, ",
    ),
    "regions": ("regions my_photos --backbone vit --grid 2", {}, "regions, 6 images"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_inputs_are_read_and_nothing_is_written(
    command: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    line, read, work = COMMANDS[command]
    monkeypatch.chdir(place)
    before = homes.digests(place)
    words = [*line.split(), *(CLIP if command == "train-clip" else ()), "--cpu", "--out", "runs/x"]
    words += [] if command == "regions" else ["--batch", "4"]
    assert main([*words, "--dry-run"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["dry_run"].startswith(work)
    assert read.items() <= said["read"].items()
    assert homes.digests(place) == before


def test_what_cannot_be_read_is_told(place: Path, tmp_path: Path) -> None:
    rows = put(tmp_path / "q.csv", table(("q", "y"), ("a", "1"), ("b", "")))
    with pytest.raises(InputError, match=r"q\.csv, line 3: column 'y' is empty"):
        groundling.finetune(
            model=place / "student",
            data=rows,
            text="q",
            label="y",
            dry_run=True,
            out=tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


def test_notes_come_too(place: Path, tmp_path: Path) -> None:
    rows = [(f"text {number}", ("1", "1.0", "2")[number % 3]) for number in range(30)]
    data = put(tmp_path / "q.csv", table(("q", "y"), *rows))
    settings = {"model": place / "student", "data": data, "text": "q", "label": "y"}
    said = groundling.finetune(**settings, cpu=True, batch=4, dry_run=True)
    assert any("are the same number" in note for note in said["notes"])


def test_a_command_that_writes_nothing_has_none(capsys: Any) -> None:
    assert main(["info", "--name", "bert-base", "--dry-run"]) == 2
    assert "info has no flag '--dry-run'" in capsys.readouterr().err
