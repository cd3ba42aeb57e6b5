"""What the tables and the page of a verdict call things, and that nothing on them hides something else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny.results import both, judge_folders, write_runs

from groundling.runs.report import ForestRow, forest_plot
from groundling.stats.verdict import SeedRuns


def split_votes(name: str, flipped: int) -> SeedRuns:
    """Three seeds, of which the last gets so many examples wrong: most seeds are always right."""
    control, _ = both(0.0)
    predictions = np.zeros((3, len(control.ids)))
    predictions[2, :flipped] = 1
    labels = np.zeros(len(control.ids))
    return replace(control, name=name, seeds=(0, 1, 2), labels=labels, predictions=predictions)


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


def test_page_and_text_have_the_same_content(told: Any) -> None:
    said, page, _ = told
    sentence = "seeing against control on glue/rte: no reliable difference"
    for line in (sentence, "277 examples, 3 seeds"):
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
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    interval, mark, seeds = [line for line in axes.lines if line is not dashed]
    assert list(dashed.get_xdata()) == [0, 0] and list(interval.get_xdata()) == [0, 2]
    assert interval.get_zorder() < dashed.get_zorder() < mark.get_zorder()
    assert mark.get_markerfacecolor() == "none" and list(seeds.get_xdata()) == [1.0]
