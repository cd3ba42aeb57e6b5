"""What the tables and the page of a verdict call things, and that nothing on them hides something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.results import both, judge_folders, write_runs

from groundling.runs.report import ForestRow, forest_plot
from groundling.stats.verdict import SeedRuns


def split_votes(name: str, flipped: int) -> SeedRuns:
    """Three seeds, of which the last gets so many examples wrong: most seeds are always right."""
    control, _ = both(0.0)
    predictions = np.zeros((3, len(control.ids)))
    predictions[2, :flipped] = 1
    return replace(
        control,
        name=name,
        seeds=(0, 1, 2),
        labels=np.zeros(len(control.ids)),
        predictions=predictions,
    )


@pytest.fixture
def told(tmp_path: Path) -> tuple[str, str, Path]:
    """What is printed and what the page holds, of a control called control."""
    said: list[str] = []
    groups = {
        "control": write_runs(tmp_path / "a", split_votes("control", 0)),
        "seeing": write_runs(tmp_path / "b", split_votes("seeing", 60)),
    }
    judge_folders(groups, tmp_path / "out", said.append)
    page = tmp_path / "out/verdict.html"
    return "\n".join(said), page.read_text(), page


def test_a_control_that_is_called_control_is_not_marked_twice(told: Any) -> None:
    said, page, _ = told
    assert "control (control)" not in said + page
    assert "\ncontrol " in said


def test_a_control_of_another_name_is_marked(tmp_path: Path) -> None:
    said: list[str] = []
    groups = {name: write_runs(tmp_path / name, split_votes(name, 0)) for name in ("mlm", "seeing")}
    judge_folders(groups, tmp_path / "out", said.append)
    assert "mlm (control)" in "\n".join(said)
    assert "mlm (control)" in (tmp_path / "out/verdict.html").read_text()


def test_page_and_text_have_the_same_content(told: Any) -> None:
    said, page, _ = told
    for line in (
        "seeing against control on glue/rte: no reliable difference",
        "277 examples, 3 seeds",
    ):
        assert line in said and line in page
    for heading in ("Scores", "Differences", "What was compared"):
        assert f"\n{heading}\n" in said and f"<h2>{heading}</h2>" in page


def test_tasks_of_one_side_are_named_on_the_page(tmp_path: Path) -> None:
    said: list[str] = []
    groups = {name: write_runs(tmp_path / name, split_votes(name, 0)) for name in ("mlm", "seeing")}
    write_runs(tmp_path / "seeing", split_votes("seeing", 0), "swag")
    judge_folders(groups, tmp_path / "out", said.append)
    note = "mlm: no finished run of swag, so this task is not compared"
    assert f"note: {note}" in "\n".join(said)
    assert note in (tmp_path / "out/verdict.html").read_text()


def test_the_page_is_named_when_it_is_written(told: Any) -> None:
    said, _, page = told
    assert said.splitlines()[-1] == f"page: {page}" and page.is_file()


def test_an_interval_that_ends_at_zero_does_not_hide_the_line() -> None:
    (axes,) = forest_plot([ForestRow("a", "3 seeds", 1, (0, 2), [1.0], False)], "points").axes
    zero = [line for line in axes.lines if list(line.get_xdata()) == [0, 0]]
    (dashed,) = [line for line in zero if line.get_linestyle() == "--"]
    others = [line for line in axes.lines if line is not dashed]
    assert len(zero) == 2, "the line of no difference, and the interval's lower end"
    assert all(dashed.get_zorder() > line.get_zorder() for line in others)
    low, high = sorted(float(value) for value in dashed.get_ydata())
    ends = [float(value) for line in others for value in line.get_ydata()]
    assert low < min(ends) - 0.05 and high > max(ends) + 0.3
    assert all(dashed.get_zorder() < dots.get_zorder() for dots in axes.collections)
