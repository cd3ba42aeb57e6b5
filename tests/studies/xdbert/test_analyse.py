"""The analyses as commands: from run and model folders to numbers, pages and pictures."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import homes, toys
from tiny.results import write_runs

from groundling.cli import main
from groundling.core.batch import Example
from groundling.core.registry import resolve
from groundling.models.clip import make_clip_text_tower
from groundling.models.cross_modal import CrossModalEncoder, load_cross_modal_encoder
from groundling.models.text_encoder import TextEncoder
from groundling.stats.verdict import SeedRuns
from groundling.tasks import Task

GROUNDED = "grounded --base base --other other --task glue/rte --data glue --counts counts.json --tokenizer student"


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def runs(name: str, examples: list[Example], right: float, seed: int) -> SeedRuns:
    labels = np.array([e.label for e in examples], float)
    rng = np.random.default_rng(seed)
    predictions = np.where(rng.random((4, len(labels))) < right, labels, 1 - labels)
    return SeedRuns(
        name, "glue/rte", (0, 1, 2, 3), tuple(e.id for e in examples), labels, predictions
    )


def captions(place: Path) -> Path:
    lines = [f"{i}.jpg#0\ta dog and a cat number {i % 3} on the grass" for i in range(30)]
    return homes.put(place / "some.token.txt", "\n".join(lines) + "\n")


def count(place: Path, out: str = "counts.json") -> int:
    """Runs `data counts` on those captions; its exit status."""
    command = ["data", "counts", "--captions", str(captions(place)), "--tokenizer", "student"]
    return main([*command, "--out", out])


def test_grounded_from_captions_to_the_figure(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    homes.student(place / "student")
    homes.rte(place / "glue")
    examples = resolve("tasks", Task, "glue/rte").read(place / "glue", "dev")
    write_runs(place / "base", runs("base", examples, 0.5, 0))
    write_runs(place / "other", runs("other", examples, 0.8, 1))
    assert count(place) == 0
    assert "of 30 captions" in capsys.readouterr().out
    assert main([*GROUNDED.split(), "--threshold", "5", "--variant", "words", "--out", "out"]) == 0
    result = json.loads((place / "out" / "result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert (result["task"], result["seeds"]) == ("glue/rte", [0, 1, 2, 3])
    for which in ("models", "null"):
        groups = result[which]["groups"]
        assert sum(g["n"] + g["undefined"] for g in groups.values()) == len(examples)
    page = (place / "out" / "grounded.html").read_text()
    assert "<svg" in page and "models: improved" in page
    assert (place / "out" / "grounded.png").read_bytes()[:4] == b"\x89PNG"
    assert (place / "out" / "examples.md").read_text().startswith("## Improved")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            ("--task glue/rte", "--task glue/cola"),
            "base: no finished run of glue/cola; there are: glue/rte",
        ),
        (("--data glue", "--data more"), "have different examples"),
        (("--base base", "--base absent"), "base=absent: no such file or folder"),
        (("--counts counts.json", "--counts glue/RTE/dev.tsv"), "not valid JSON"),
        (("--tokenizer student", ""), "grounded needs tokenizer"),
        (("--other other", "--other one"), "the null split needs 2 seeds of both models, got 1"),
    ],
)
def test_grounded_names_what_does_not_fit(
    change: tuple[str, str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    homes.student(place / "student")
    homes.rte(place / "glue")
    longer = homes.rte(place / "more") / "RTE" / "dev.tsv"
    longer.write_text(longer.read_text() + "8\tA.\tB.\tentailment\n")
    examples = resolve("tasks", Task, "glue/rte").read(place / "glue", "dev")
    for name in ("base", "other", "one"):
        made = runs(name, examples, 0.5, 0)
        one = replace(made, seeds=(0,), predictions=made.predictions[:1])
        write_runs(place / name, one if name == "one" else made)
    count(place)
    capsys.readouterr()
    assert main(GROUNDED.replace(*change).split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_counts_need_a_file_to_write_to(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homes.student(place / "student")
    assert main(["data", "counts", "--tokenizer", "student"]) == 2
    assert "needs captions" in capsys.readouterr().err
    assert count(place, ".") == 2
    assert "expected a file name and no folder" in capsys.readouterr().err


def test_similarity_of_two_folders(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    homes.student(place / "student")
    homes.teacher(place / "teacher")
    command = "similarity --model student --other teacher --permutations 2 --out out"
    assert main(command.split()) == 0
    result = json.loads((place / "out" / "result.json").read_text())
    assert json.loads(capsys.readouterr().out) == result
    assert result["scores"]["pwcca"]["null"] > 0
    assert result["published_pwcca"]["BERT / CLIP"] == 0.498
    assert main(["similarity", "--model", "student"]) == 2
    assert "needs other" in capsys.readouterr().err


def test_attention_of_two_whole_models(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "b"):
        text = TextEncoder(toys.bert(len(homes.words())), homes.words())
        CrossModalEncoder(
            text, make_clip_text_tower(toys.clip(homes.tokens())), 2, homes.tokens()
        ).export(place / name)
    homes.text(place / "text.txt", 205)
    assert main(["info", "a", "--json"]) == 0
    counted = json.loads(capsys.readouterr().out)
    assert list(counted["components"]) == ["text", "clip", "cross"]
    assert counted["total"] == sum(p.numel() for p in load_cross_modal_encoder("a").parameters())
    command = "attention --model a --other b --text text.txt --max-length 64 --out out"
    assert main(command.split()) == 0
    result = json.loads((place / "out" / "result.json").read_text())
    assert result["texts"] >= 200
    assert {row["layer"] for row in result["measures"]} == {1, 2}
    assert "<svg" in (place / "out" / "attention.svg").read_text()
    capsys.readouterr()
    assert (
        main(
            [
                "attention",
                "--model",
                "a",
                "--other",
                "absent",
                "--text",
                "text.txt",
                "--out",
                "other",
            ]
        )
        == 2
    )
    assert "absent" in capsys.readouterr().err
    assert main(["attention", "--model", "a", "--out", "other"]) == 2
    assert "attention needs other" in capsys.readouterr().err
