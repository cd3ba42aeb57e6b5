"""Reports: sentences, tables and figures, as one self-contained HTML page and as text; and their charts."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, NamedTuple

from groundling.runs.folder import write_whole

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

TableRow = Mapping[str, str]
"""One row of a table: cells by column heading; all rows of a table have the same headings in the same order."""


SMALL = 64
"""Width in pixels below which an image is drawn pixel by pixel."""


class ReportImage(NamedTuple):
    """An image inside a page."""

    png: bytes
    """Content of a PNG file."""
    caption: str
    """Text below the image, with its line breaks; also its alternative text."""

    @property
    def base64(self) -> str:
        """The image for a data URL."""
        return base64.b64encode(self.png).decode()

    @property
    def is_small(self) -> bool:
        """Whether it is enlarged, as rendered scenes are, whose pixels then stay sharp; photographs would be coarse."""
        return int.from_bytes(self.png[16:20]) < SMALL


@dataclass(frozen=True)
class ReportSection:
    """A section of a report with its heading; empty parts are omitted."""

    heading: str
    sentences: Sequence[str] = ()
    """Paragraphs."""
    pictures: Sequence[ReportImage] = ()
    """Side by side; only on the page."""
    figures: Sequence[str] = ()
    """SVG from `svg_of`, inserted without escaping; only on the page."""
    caption: str = ""
    """How to read the figures."""
    rows: Sequence[TableRow] = ()
    """A table: first column left-aligned, others right-aligned."""


@dataclass(frozen=True)
class Report:
    """Title, sentences, sections in order, and notes, as a page and as text."""

    title: str
    sections: Sequence[ReportSection]
    sentences: Sequence[str] = ()
    """Paragraphs before the sections."""
    notes: Sequence[str] = ()
    """Remarks after the sections."""
    terms: Mapping[str, str] | None = None
    """A glossary, at the end of the page."""

    def write(self, path: Path) -> None:
        """Write the page."""
        write_whole(path, render(__package__, "report.html", report=self))

    def text(self) -> str:
        """The report for a terminal: without figures, which show what the tables hold, and glossary."""
        blocks = [self.title, "\n".join(self.sentences)]
        for section in self.sections:
            lines = [*section.sentences, format_table(section.rows) if section.rows else ""]
            if any(lines):
                blocks.append("\n".join([section.heading, *filter(None, lines)]))
        blocks.append("\n".join(f"note: {note}" for note in self.notes))
        return "\n\n".join(filter(None, blocks))


def render(package: str, template: str, **values: object) -> str:
    """A template beside a package's modules, filled with values, which are escaped."""
    # Imported late: the command line loads this module for its tables.
    from jinja2 import Environment, PackageLoader

    environment = Environment(autoescape=True, loader=PackageLoader(package, ""))
    environment.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False}
    return environment.get_template(template).render(values)


def format_count(number: int, noun: str) -> str:
    """A number with a noun, which gets a plural s unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_table(rows: Sequence[TableRow]) -> str:
    """Rows with equal keys as aligned text: first column left, others right."""
    first, *others = rows[0]
    width = {key: max(len(key), *(len(row[key]) for row in rows)) for key in rows[0]}
    rule = {key: "-" * width[key] for key in width}
    lines = []
    for row in ({key: key for key in width}, rule, *rows):
        cells = [row[first].ljust(width[first]), *(row[key].rjust(width[key]) for key in others)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


# -- figures -----------------------------------------------------------------------------------------------------------
def new_figure(width: float, height: float) -> Figure:
    """An empty matplotlib figure, size in inches, without window or global state."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def save_figure(figure: Figure, path: Path, dpi: int = 130) -> None:
    """Write a figure in the format of the file's ending, with the same bytes every time."""
    write_whole(path, _drawn(figure, path.suffix.removeprefix("."), dpi=dpi))


def svg_of(figure: Figure, label: str = "") -> str:
    """A figure as SVG for a page, black drawn in the page's text colour; `label` is its alternative text."""
    svg = _drawn(figure, "svg", transparent=True).decode()
    # Remove the XML declaration and doctype, which belong to a separate file.
    svg = svg[svg.index("<svg") :].replace("#000000", "currentColor")
    about = f'<svg role="img" aria-label="{html.escape(label)}"'
    return svg.replace("<svg", about, 1) if label else svg


def _drawn(figure: Figure, form: str, **how: Any) -> bytes:
    from matplotlib import rc_context

    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "groundling"}):  # otherwise the names of elements are random
        figure.savefig(out, format=form, metadata=undated.get(form), **how)
    return out.getvalue()


# Charts: scores by seed, and differences with intervals. No information is given by colour alone.

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#E69F00", "#009E73", "#8A8A8A", "#000000"
"""Okabe and Ito's colours, and grey."""
VERMILION, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
"""More of Okabe and Ito's colours."""
MARKS = tuple(zip((GREY, VERMILION, BLUE, GREEN, PURPLE, ORANGE, SKY), "ovsD^PX", strict=True))
"""Colour and marker of controls, whose labels are indented, then of each other row, in order."""
GUESSING: dict[str, Any] = {"color": BLACK, "linestyle": "dashed", "linewidth": 0.9, "zorder": 1}
"""Style of the chance line."""
WIDTH = 10.5
"""Width of a figure in inches, for a page's text."""


class ScorePanel(NamedTuple):
    """Scores of one question."""

    title: str
    """The question."""
    chance: float
    """Score of guessing."""
    scores: Mapping[str, Sequence[float]]
    """By row: scores from 0 to 1, one per seed."""


def score_panels(panels: Sequence[ScorePanel], missing: str = "") -> Figure:
    """A panel for each question with a row for each arm: small dots are seeds, the large mark is their mean.

    The number on the right is the mean, the dashed line guessing. `missing` is shown in rows without scores.
    """
    rows = list(panels[0].scores)
    others = [row for row in rows if not row.startswith(" ")]
    marks = dict(zip(others, cycle(MARKS[1:]), strict=False))
    figure = new_figure(WIDTH, 0.34 * len(rows) + 0.75)
    every = figure.subplots(1, len(panels), sharey=True, squeeze=False)
    for axes, panel in zip(every.flat, panels, strict=True):
        axes.axvline(panel.chance, **GUESSING)
        for place, row in enumerate(rows):
            _draw_scores(axes, place, marks.get(row, MARKS[0]), panel.scores[row], missing)
        axes.set_xlim(0, 1.02)
        axes.set_xticks([0, 0.5, 1], ["0", ".5", "1"], fontsize=8)
        axes.set_title(_label(panel.title), fontsize=9)
        _label_rows(axes, [_label(row) for row in rows])
    return figure


def _draw_scores(
    axes: Axes, place: int, look: tuple[str, str], scores: Sequence[float], missing: str
) -> None:
    if not scores:
        axes.text(0.5, place, missing, ha="center", va="center", fontsize=8, style="italic")
        return
    colour, mark = look
    mean = sum(scores) / len(scores)
    axes.plot([min(scores), max(scores)], [place] * 2, color=colour, linewidth=1.5)
    axes.plot(mean, place, mark, color=colour, markersize=8, clip_on=False)
    if len(scores) > 1:
        axes.plot(scores, [place + 0.3] * len(scores), ".", color=BLACK, clip_on=False)
    axes.text(1.09, place, f"{mean:.2f}", va="center", fontsize=8)


class ForestRow(NamedTuple):
    """One row of a forest plot."""

    label: str
    """The compared models and their task."""
    counts: str
    """Numbers of examples and seeds, on a separate line below the label."""
    mean: float
    """Mean difference."""
    interval: tuple[float, float]
    """Ends of its 95 % interval."""
    seeds: Sequence[float]
    """Difference of each seed."""
    reliable: bool
    """Whether the verdict calls the difference more than chance."""


def forest_plot(rows: Sequence[ForestRow], unit: str) -> Figure:
    """Forest plot: differences with their intervals, each seed as a dot; reliable ones have a filled mark."""
    figure = new_figure(WIDTH, 0.55 * len(rows) + 0.8)
    axes = figure.subplots()
    for place, row in enumerate(rows):
        axes.plot(row.interval, [place] * 2, "|-", color=BLUE, linewidth=2.5, markersize=9)
        face = BLUE if row.reliable else "none"
        axes.plot(row.mean, place, "s", color=BLUE, markersize=9, markerfacecolor=face, zorder=3)
        below = [place + 0.25] * len(row.seeds)
        axes.plot(row.seeds, below, "o", color=ORANGE, markersize=5, markeredgecolor=BLACK)
    # Above the intervals, whose ends could hide it at 0.
    axes.axvline(0, color=BLACK, linestyle="dashed", linewidth=1, zorder=2.5)
    axes.set_xlabel(unit, fontsize=9)
    axes.tick_params(axis="x", labelsize=9)
    _label_rows(axes, [f"{_label(row.label, 44, 2)}\n{row.counts}" for row in rows])
    return figure


def forest_svg(rows: Sequence[ForestRow], unit: str) -> str:
    """A forest plot as SVG, whose alternative text has the differences."""
    differences = "; ".join(f"{row.label}: {row.mean:+.3g}" for row in rows)
    return svg_of(forest_plot(rows, unit), f"Differences in {unit}. {differences}")


def _label_rows(axes: Axes, labels: Sequence[str]) -> None:
    axes.set_ylim(len(labels) - 0.45, -0.7)
    axes.set_yticks(range(len(labels)), labels, fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _label(text: str, letters: int = 26, max_lines: int = 3) -> str:
    """A label wrapped into a few lines; dollar signs, which start mathematics, are escaped."""
    return fill(text.replace("$", r"\$"), letters, max_lines=max_lines, placeholder="…")


# Heat maps of attention. The panels of a figure share their scales.

COLOUR_MAP = "cividis"
"""Colour map of heat maps, readable with colour blindness."""
TITLE_WIDTH = 24
"""Characters per line of a column's title."""
PANEL_WIDTH = 3.4
"""Width of a panel in inches, about a column of a two-column paper."""
PANEL_HEIGHT = 2.5
COLUMNS = 3
"""Panels side by side."""
SLANTED: dict[str, Any] = {
    **{"fontsize": 7, "rotation": 60, "ha": "right", "rotation_mode": "anchor"},
    "parse_math": False,  # a text may contain dollar signs
}
"""Style of the labels of words and boxes below an axis."""


def new_panels(
    count: int, wide: float = PANEL_WIDTH, high: float = PANEL_HEIGHT, columns: int = COLUMNS
) -> tuple[Figure, list[Axes]]:
    """A figure of `count` panels with shared scales, `columns` side by side."""
    across = min(count, columns)
    down = -(-count // across)
    figure = new_figure(wide * across, high * down)
    axes = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    every = list(axes.flat)
    for empty in every[count:]:
        empty.set_axis_off()
    for number, one in enumerate(every[:count]):
        one.spines[["top", "right"]].set_visible(False)
        if number + across >= count:  # the lowest of its column
            one.tick_params(labelbottom=True)
    return figure, every[:count]


def draw_heat_map(axes: Axes, shares: np.ndarray, top: float, rows: Sequence[Any]) -> AxesImage:
    """Draw shares (rows, columns) in per cent, from 0 to `top`."""
    axes.set_yticks(range(len(rows)), rows, fontsize=7, parse_math=False)
    return axes.imshow(shares, vmin=0, vmax=top, cmap=COLOUR_MAP, aspect="auto")


def add_scale(
    figure: Figure,
    axes: Sequence[Axes],
    image: AxesImage,
    largest: float,
    even: float | None = None,
) -> None:
    """Add the heat maps' colour bar, with the largest share and, given `even`, a line there."""
    bar = figure.colorbar(image, ax=axes)
    label = f"attention, % (largest: {largest:.1f})"
    if even is not None:
        label = f"attention, %\n(largest: {largest:.1f}; line: even, {even:.1f})"
    bar.set_label(label, fontsize=8 if even is None else 7)
    if even is not None:
        bar.ax.axhline(even, color=VERMILION, linewidth=1.5)
    bar.ax.tick_params(labelsize=7)


def draw_heat_maps(
    maps: Mapping[str, np.ndarray],
    rows: Sequence[str],
    columns: Sequence[str],
    axes_labels: tuple[str, str],
    even: float | None = None,
    panels: int = COLUMNS,
) -> Figure:
    """Attention (R, C) from rows to columns, one panel per title, `panels` side by side.

    `axes_labels`: what columns and rows are. All panels share one scale, from 0 to the largest share or, if that is
    more, to `even`, the share of a column under even attention, in per cent. NaN stays blank, and so does an axis
    without names.
    """
    import numpy as np  # the command line loads this module for its tables

    high, across = next(iter(maps.values())).shape
    labels = [fill(column, TITLE_WIDTH) for column in columns]
    longest = max((len(line) for column in labels for line in column.splitlines()), default=0)
    wide = max(PANEL_WIDTH * 0.8, 0.22 * across + 0.9)
    figure, axes = new_panels(len(maps), wide, 0.18 * high + 0.07 * longest + 0.8, panels)
    largest = 100 * max(float(np.nanmax(one)) for one in maps.values())
    top = max(largest, even or 0.0)
    for one, (title, shares) in zip(axes, maps.items(), strict=True):
        image = draw_heat_map(one, 100 * shares, top, rows)
        one.set_title(title, fontsize=9, parse_math=False)
        one.set_xticks(range(len(labels)), labels, **SLANTED)
    figure.supxlabel(axes_labels[0], fontsize=9)
    figure.supylabel(axes_labels[1], fontsize=9)
    add_scale(figure, axes, image, largest, even)
    return figure
