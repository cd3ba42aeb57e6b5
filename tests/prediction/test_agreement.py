"""A prediction that is not what its outputs say is refused by whatever reads it, in a line that names its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vcr_files
from homes import put

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.prediction.predictions import PredictionFileValidator
from groundling.tasks.vcr import ANSWER, RATIONALE

TWO = Classification(("no", "yes"))
FOUR = MultipleChoice(("0", "1", "2", "3"))


def told(form: OutputType | None, *rows: dict[str, Any], classes: bool = True) -> str:
    """What is wrong with the lines of a file; empty if nothing is."""
    agreement = PredictionFileValidator(form, classes)
    try:
        for number, row in enumerate(rows, 1):
            agreement.check(f"line {number}", row, float(row["prediction"]))
        agreement.finish()
    except InputError as error:
        return str(error)
    return ""


def said(prediction: float, *outputs: float | None, **more: object) -> dict[str, Any]:
    return {"prediction": prediction, "outputs": list(outputs), **more}


@pytest.mark.parametrize("prediction", [1.5, -1, 0.999])
def test_a_class_is_a_whole_number(prediction: float) -> None:
    for form in (TWO, FOUR, RegionSelection(), OpenAnswer(("a", "b")), None):
        wrong = told(form, said(1, 0, 1), {"prediction": prediction})
        assert wrong.startswith("line 2: 'prediction' is ") and "a class" in wrong


def test_a_class_is_the_one_of_the_highest_output() -> None:
    assert told(TWO, said(1, 0.1, 0.9), said(0, 2, -2), said(0, 1, 1), said(1, 1, 1)) == ""
    assert told(TWO, said(1, 0.1, 0.9), said(0, 0.1, 0.9)).startswith("line 2: 'prediction' is 0")
    assert "highest at 1" in told(TWO, said(2, 0.1, 0.9))
    # Written with five digits: these may have been equal before, or the other way round.
    assert told(TWO, said(0, 0.12345, 0.12346)) == ""
    # Of regions that an image lacks -inf is written, or null.
    assert told(RegionSelection(), said(1, 0.5, 0.7, -np.inf), said(0, 0.5, None)) == ""
    assert "line 1" in told(RegionSelection(), said(0, 0.5, 0.7, -np.inf))


def test_of_two_scores_a_choice_the_right_one_counts() -> None:
    in_pairs = [0.0, 1, 9, 2, 0, 5, 0, 4]
    assert told(FOUR, said(2, *in_pairs)) == ""
    assert "highest at 2" in told(FOUR, said(1, *in_pairs))
    assert told(None, said(2, *in_pairs)) == ""


def test_a_number_is_its_output() -> None:
    form = Regression(0, 5)
    assert told(form, said(2.5000049, 2.5), said(-3, -3)) == ""
    assert "its 'outputs' give 2.5" in told(form, said(3.5, 2.5))
    assert "its 'outputs' give 2.5" in told(None, said(3.5, 2.5), classes=False)


def test_of_many_classes_the_likely_ones_are_known() -> None:
    form = OpenAnswer(tuple(map(str, range(200))))
    likely = [[7, 0.6], [3, 0.2]]
    assert told(form, said(3, 1.5, likely=likely)) == ""
    assert "not among the classes in 'likely'" in told(form, said(4, 1.5, likely=likely))


def test_an_answer_that_is_never_predicted_may_be_barred() -> None:
    form = OpenAnswer(("<unk>", "a", "b"), excluded_answers=("<unk>",))
    assert told(form, said(1, 9, 1, 0), said(2, 9, 0, 1)) == ""
    assert "line 1" in told(form, said(1, 0, 1, 9), said(2, 0, 0, 1))


def test_a_file_of_others_has_predictions_alone() -> None:
    assert told(TWO, {"prediction": 1}) == ""


def finished(folder: Path, task: str, *rows: dict[str, Any], split: str = "dev") -> Path:
    lines = [{"id": f"x{n}", "label": n % 2} | row for n, row in enumerate(rows)]
    about = {"task": task, "seed": 0, "metrics": ["accuracy"], "splits": [split]}
    put(folder / "seed-0/result.json", json.dumps(about))
    text = "".join(json.dumps(line) + "\n" for line in lines)
    return put(folder / f"seed-0/predictions_{split}.jsonl", text)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vcr_files.folder(tmp_path_factory.mktemp("vcr"))


def of_vcr(folder: Path, data: Path, which: Any = ANSWER, wrong: int = -1) -> Path:
    """Answers to VCR's val, of which line `wrong` is not what its outputs say."""
    rows = []
    for number, one in enumerate(which.read(data, "val")):
        prediction = 0 if number == wrong else 3
        rows.append({"id": one.id, "official": one.official_id, **said(prediction, 0, 0, 0, 1)})
    finished(folder, which.name, *rows, split="val")
    return folder / "seed-0/predictions_val.jsonl"


def test_every_reader_of_predictions_refuses_edited_ones(
    data: Path, tmp_path: Path, capsys: Any
) -> None:
    good = str(of_vcr(tmp_path / "good", data).parent.parent)
    rationales = str(of_vcr(tmp_path / "why", data, RATIONALE).parent.parent)
    path = of_vcr(tmp_path / "edited", data, wrong=2)
    edited = str(tmp_path / "edited")
    at = ["--data", str(data), "--out", str(tmp_path / "out")]
    for words in (
        ["ensemble", "--runs", good, edited, "--task", "vcr/answer", *at],
        ["vcr", "--answers", edited, "--rationales", rationales, *at],
        ["data", "shift", "--protocol", "im", "--predictions", str(path), "--split", "val", *at],
    ):
        capsys.readouterr()
        assert main(words) == 2
        complaint = capsys.readouterr().err.strip().splitlines()[-1]
        assert f"{path}, line 3: 'prediction' is 0" in complaint, complaint
