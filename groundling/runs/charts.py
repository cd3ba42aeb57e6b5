"""Charts for reports: scores seed by seed, and differences with their intervals. Nothing is told by colour alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from groundling.runs.report import new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#E69F00", "#009E73", "#8A8A8A", "#000000"
"""Okabe and Ito's, and grey."""
VERMILION, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
"""More of Okabe and Ito's."""
MARKS = (
    (GREY, "o"),
    (VERMILION, "v"),
    (BLUE, "s"),
    (GREEN, "D"),
    (PURPLE, "^"),
    (ORANGE, "P"),
    (SKY, "X"),
)
"""Colour and mark of each row, in their order."""
GUESSING: dict[str, Any] = {
    "color": BLACK,
    "linestyle": "dashed",
    "linewidth": 0.9,
    "zorder": 1,
}
"""How the line of what guessing gives looks."""
BROAD, NARROW = 10.5, 3.5
"""Inches: as wide as a page's text, and as a telephone's."""
LABEL = 26
"""Letters of a label's line, beside its row."""
LINES = 3
"""Most lines of a label; what is beyond them is left out."""


@dataclass(frozen=True)
class Panel:
    """One question's scores."""

    title: str
    """What is asked."""
    chance: float
    """What guessing gives."""
    scores: Mapping[str, Sequence[float]]
    """By row: its scores from 0 to 1, one of each seed."""
    words: Mapping[str, str] = field(default_factory=dict)
    """By row: what is said where it has no scores."""


def panels(what: Sequence[Panel], broad: bool = True) -> Figure:
    """A panel for each question, in it a row for each arm: small dots are seeds, the large mark is their mean.

    Side by side, or below each other if the page is not `broad`. Rows are those of the first panel, each with a mark
    and a colour of its own; the number at the right is the mean, the dashed line what guessing gives.
    """
    rows = list(dict.fromkeys([*what[0].scores, *what[0].words]))
    across, down = (len(what), 1) if broad else (1, len(what))
    height = 0.34 * len(rows) + 0.75
    figure = new_figure(BROAD if broad else NARROW, height * down)
    every = figure.subplots(down, across, sharey=True, squeeze=False)
    for axes, panel in zip(every.flat, what, strict=True):
        _draw_panel(axes, panel, rows, size=8 if broad else 7)
    return figure


def _draw_panel(axes: Axes, panel: Panel, rows: Sequence[str], size: int) -> None:
    for place, row in enumerate(rows):
        colour, mark = MARKS[place % len(MARKS)]
        scores = panel.scores.get(row, ())
        if not scores:
            told = panel.words.get(row, "")
            axes.text(0.5, place, told, ha="center", va="center", fontsize=size, style="italic")
            continue
        axes.plot([panel.chance] * 2, [place - 0.5, place + 0.5], **GUESSING)
        mean = sum(scores) / len(scores)
        axes.plot([min(scores), max(scores)], [place] * 2, color=colour, linewidth=1.5, zorder=2)
        axes.plot(mean, place, mark, color=colour, markersize=8, zorder=3, clip_on=False)
        if len(scores) > 1:
            dots: dict[str, Any] = {
                "s": 9,
                "color": BLACK,
                "linewidths": 0,
                "zorder": 4,
                "clip_on": False,
            }
            axes.scatter(scores, [place + 0.3] * len(scores), **dots)
        axes.text(1.09, place, f"{mean:.2f}", va="center", fontsize=size)
    axes.set_xlim(0, 1.02)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"], fontsize=size)
    axes.set_yticks(range(len(rows)), [_label(row) for row in rows], fontsize=size + 1)
    axes.tick_params(axis="y", length=0)
    axes.set_title(_label(panel.title), fontsize=size + 1)
    axes.spines[["top", "right", "left"]].set_visible(False)


@dataclass(frozen=True)
class Difference:
    """One row of a forest plot."""

    label: str
    """What is compared."""
    counts: str
    """How many examples and seeds, on a line of its own below the label."""
    mean: float
    """The difference."""
    interval: tuple[float, float]
    """The ends of its 95 % interval."""
    seeds: Sequence[float]
    """The difference of each seed."""
    reliable: bool
    """Whether it is more than chance."""


def forest(rows: Sequence[Difference], unit: str, broad: bool = True) -> Figure:
    """Differences with their intervals, one below the other, and each seed as a dot; dashed is no difference.

    A reliable difference has a full mark, any other an empty one. If the page is not `broad`, labels stand above
    their rows. `unit` stands below the axis.
    """
    high = 0.55 if broad else 0.85
    figure = new_figure(BROAD if broad else NARROW, high * len(rows) + 0.8)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        _draw_difference(axes, row, place, broad)
    axes.set_ylim(len(rows) - 0.45, -0.75)
    axes.set_xlabel("\n".join(wrap(unit, 110 if broad else 44)), fontsize=9)
    axes.tick_params(axis="x", labelsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if broad:
        labels = [f"{_label(row.label, 44, 2)}\n{row.counts}" for row in rows]
        axes.set_yticks(range(len(rows)), labels, fontsize=9)
        return figure
    axes.set_yticks([])
    for place, row in enumerate(rows):
        where: dict[str, Any] = {"transform": axes.get_yaxis_transform(), "va": "bottom"}
        label = f"{_label(row.label, 46, 2)}\n{row.counts}"
        axes.text(0, place - 0.17, label, fontsize=8, **where)
    return figure


def _draw_difference(axes: Axes, row: Difference, place: int, broad: bool) -> None:
    """The interval with its ends, the mean, the seeds below it, and where no difference is."""
    low, high = row.interval
    axes.plot([low, high], [place] * 2, color=BLUE, linewidth=2.5, solid_capstyle="butt")
    for end in row.interval:
        axes.plot([end] * 2, [place - 0.1, place + 0.1], color=BLUE, linewidth=2.5)
    full = BLUE if row.reliable else "none"
    look: dict[str, Any] = {"s": 70, "marker": "s", "edgecolors": BLUE, "linewidths": 1.8}
    axes.scatter([row.mean], [place], facecolors=full, zorder=3, **look)
    dots: dict[str, Any] = {"s": 20, "color": ORANGE, "edgecolors": BLACK, "linewidths": 0.6}
    axes.scatter(row.seeds, [place + 0.25] * len(row.seeds), zorder=4, **dots)
    # Above the interval and longer than its ends, or one that touches 0 would hide it; below the means and the seeds.
    # On a narrow page a label stands above the row.
    span = [place - (0.5 if broad else 0.16), place + 0.5]
    axes.plot([0, 0], span, color=BLACK, linestyle="dashed", linewidth=1, zorder=2.5)


def _label(text: str, letters: int = LABEL, most: int = LINES) -> str:
    """A label in a few lines; a dollar sign in it begins no formula."""
    lines = wrap(text.replace("$", r"\$"), letters)
    if len(lines) > most:
        lines = [*lines[: most - 1], lines[most - 1][: letters - 1] + "…"]
    return "\n".join(lines)
