"""The report of a training run: what it reads of the folder, what it says, and that no run depends on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny.results import write_training

from groundling.command_line import ResumableRun, write_run_report
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.runs import run_report
from groundling.runs.run_report import curves_of, differing_settings, read_training_run, ticks


def test_a_run_beside_its_control(tmp_path: Path) -> None:
    control = write_training(tmp_path / "control", [3.0, 2.9], lr=1e-3, model="bert")
    run = write_training(tmp_path / "run", [3.0, 1.5], lr=2e-5, model="bert", arm="xdbert")
    said = write_run_report(run, control).text()
    assert (run / "report.txt").read_text() == said + "\n"
    page = (run / "report.html").read_text()
    for text in (f"Control: {control}; it differs in arm, lr.", "too short to judge"):
        assert text in said and text in page
    lines = [" ".join(line.split()) for line in said.splitlines()]
    assert "lr 2e-05 0.001" in lines and "arm xdbert mlm" in lines
    (last,) = (one.split() for one in lines if one.startswith("20 "))
    assert {"1.5", "2.9"} <= set(last) and "control: loss" in said
    # Of the two, only the arm is not the default.
    assert "arm xdbert contrastive" in lines
    assert not any(one.startswith("lr 2e-05 2e-05") for one in lines)
    assert "dev accuracy 0.75 [0.5 0.75 1] 8 0.75 [0.5 0.75 1]" in lines
    assert page.count("<polyline") == 2 * 3 and page.count("stroke-dasharray") == 3


def test_held_out_losses_are_in_the_chart_of_their_term(tmp_path: Path) -> None:
    curves = curves_of(read_training_run(write_training(tmp_path / "run", [3.0, 1.5])))
    assert list(curves) == ["loss", "dev accuracy"]  # mlm is all of the loss
    train, held = curves["loss"]
    assert (train.points, train.is_held_out) == ([(10, 3.0), (20, 1.5)], False)
    assert (held.points, held.is_held_out) == ([(20, 1.6)], True)


def test_a_killed_run_and_a_folder_of_none(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", [3.0], is_finished=False)
    assert "Not finished: the log ends at step 10" in write_run_report(run).text()
    (run / "log.jsonl").unlink()
    with pytest.raises(InputError, match="not the folder of a run that has trained"):
        write_run_report(run)
    odd = write_training(tmp_path / "odd", [3.0])
    (odd / "result.json").write_text('{"steps": 10, "scores": {"dev": {"accuracy": ["high"]}}}')
    with pytest.raises(InputError, match="odd: not the files of a training run"):
        write_run_report(odd)
    (odd / "config.json").write_text('{"kind": "adapt"}')
    with pytest.raises(InputError, match=r"odd/config\.json: not the settings of a run"):
        write_run_report(odd)


def test_a_control_of_another_command_and_a_control_that_was_killed(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", [3.0])
    other = write_training(tmp_path / "other", [3.0], is_finished=False)
    settings = other / "config.json"
    before = json.loads(settings.read_text())
    settings.write_text(json.dumps(before | {"kind": "mine"}))
    said = write_run_report(run, other).text()
    assert f"It is a run of mine, not of {before['kind']}: no control of this run" in said
    assert "The control is not finished." in said
    assert "The control is not finished." not in write_run_report(run, run).text()


def test_a_loss_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", [3.0, 1.5])
    with (run / "log.jsonl").open("a") as log:
        log.write(
            '{"step": 30, "loss": NaN, "lr": 1e-5}\n{"step": 40, "loss": Infinity, "lr": 0}\n'
        )
        log.write('{"step": 50, "dev accuracy": NaN}\n')
    said = write_run_report(run).text()
    lines = [line.split() for line in said.splitlines()]
    assert [line[:2] for line in lines if line[:1] in (["30"], ["40"])] == [
        ["30", "-"],
        ["40", "-"],
    ]


def test_the_run_before_is_compared_too(tmp_path: Path) -> None:
    names = ("one", "other")
    for name, lr in zip(names, (1e-3, 1e-4), strict=True):
        model = write_training(tmp_path / f"{name}-adapted", [1.0], lr=lr, text="t.txt") / "model"
        write_training(tmp_path / name, [1.0], model=str(model))
    one, other = (read_training_run(tmp_path / name).settings for name in names)
    assert differing_settings(one, other) == ["model", "model: lr"]


@pytest.mark.parametrize("ends", [(0, 1), (0, 936), (-0.3, 0.2), (2.95, 3.0), (1e-9, 2e-9)])
def test_an_axis_has_a_few_round_numbers(ends: tuple[float, float]) -> None:
    found = list(ticks(*ends))
    assert 2 <= len(found) <= 6 and ends[0] <= found[0] and found[-1] <= ends[1]


def test_no_run_is_lost_by_its_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def train(config: AdaptConfig, run: Any) -> dict[str, Any]:
        (run.folder / "log.jsonl").write_text('{"step": 1, "loss": 2.0, "lr": 0.1}\n')
        return {"steps": 1}

    def fail(*_: object) -> None:
        raise ZeroDivisionError("no axis")

    output = ResumableRun()
    assert output.run(train, "adapt", {"_own": AdaptConfig()}, tmp_path / "a") == {"steps": 1}
    assert (tmp_path / "a" / "report.html").exists()
    monkeypatch.setattr(run_report, "make_report", fail)
    assert output.run(train, "adapt", {"_own": AdaptConfig()}, tmp_path / "b") == {"steps": 1}
    told = capsys.readouterr().err
    assert "the run is finished, but has no report" in told and "no axis" in told
    assert not (tmp_path / "b" / "report.html").exists()
