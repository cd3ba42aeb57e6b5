"""Tables for the terminal, HTML pages and charts: one template and style for all pages, and the
report with its figures.

A page is NAME.html and NAME.css beside a module, and NAME.js if it has data (`page_of`); the
report's are `report.html` and `report.css`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from groundling.runs.folder import write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


STACKS = {"few": 26, "some": 48, "many": 66}
"""Window widths, in rem, up to which a table's rows are stacked: for up to 3 columns, up to 6, \
and more."""

MAX_WORD = 20
"""Maximum length of a word that is not broken in a table."""

OWN = __package__
"""Package of the template and style of all pages."""

TableRow = Mapping[str, str]
"""One row of a table: cells by column heading; all rows of a table have the same headings in the \
same order."""


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


@dataclass(frozen=True)
class ReportSection:
    """A section of a page with its heading; empty parts are omitted."""

    heading: str
    sentences: Sequence[str] = ()
    """Paragraphs."""
    pictures: Sequence[ReportImage] = ()
    """Side by side."""
    figure: str = ""
    """SVG from `svg_of` or `in_two_widths`, inserted without escaping."""
    rows: Sequence[TableRow] = ()
    """A table: first column left-aligned, others right-aligned."""


def page_of(
    package: str, name: str, title: str, values: Mapping[str, Any], data: object = None
) -> str:
    """A self-contained page: a package's NAME.html inside `page.html`, filled with `values`.

    Inserted text is escaped, unless NAME.html says otherwise. A page with `data` has it as JSON in
    the element `data`, and runs its NAME.js; its content security policy allows no other script.
    """
    # Imported late: the command line loads this module for its tables.
    from jinja2 import DictLoader, Environment

    style = _read_part(OWN, "page.css") + _read_part(package, f"{name}.css")
    script = "" if data is None else _read_part(package, f"{name}.js")
    # A page without a script may show figures, whose elements have inline styles.
    styles = f"'{_hash(style)}'" if script else "'unsafe-inline'"
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    inside = f"{name}.html"
    templates = {"page.html": _read_part(OWN, "page.html"), inside: _read_part(package, inside)}
    page = Environment(autoescape=True, loader=DictLoader(templates)).get_template(inside)
    return page.render(
        values,
        name=name,
        title=title,
        policy=f"default-src 'none'; img-src data:; style-src {styles}; {scripts}base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=_json(data),
    )


def _read_part(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """Hash of an element's text for the content security policy."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(content: object) -> str:
    """JSON for a script element, which `<` could end; further characters are escaped for unusual
    parsers.
    """
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def format_count(number: int, noun: str) -> str:
    """A number with a noun, which gets a plural s unless the number is 1."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_table(rows: Sequence[TableRow]) -> str:
    """Rows with equal keys as aligned text: first column left, others right."""
    keys = list(rows[0])
    first = keys[0]
    width = {}
    for key in keys:
        cells = [len(row[key]) for row in rows]
        width[key] = max(len(key), *cells)

    def line(values: TableRow) -> str:
        cells = []
        for key in keys:
            align = str.ljust if key == first else str.rjust
            cells.append(align(values[key], width[key]))
        return "  ".join(cells).rstrip()

    headings = line({key: key for key in keys})
    rule = "  ".join("-" * width[key] for key in keys)
    return "\n".join([headings, rule, *(line(row) for row in rows)])


def write_report(
    path: Path,
    title: str,
    sections: Sequence[ReportSection],
    sentences: Sequence[str] = (),
    *,
    notes: Sequence[str] = (),
    terms: Mapping[str, str] | None = None,
) -> None:
    """Write one self-contained HTML file: title, `sentences`, sections in order, and `notes` in
    grey at the end.

    `terms` explains words: as a tooltip where a word heads a column, and in a list at the end, for
    touch screens and print. The page fits windows from 360 pixels on, light and dark.

    Raises InputError if the file cannot be written.
    """
    values = {
        "sections": sections,
        "sentences": sentences,
        "notes": notes,
        "terms": terms or {},
        "stacks": STACKS,
        "stack": _stack,
        "has_long_word": _has_long_word,
    }
    write_whole(path, page_of(OWN, "report", title, values))


def _stack(columns: int) -> str:
    """CSS class of a table with so many columns, which sets the window width for stacked rows."""
    if columns <= 3:
        return "few"
    return "some" if columns <= 6 else "many"


def _has_long_word(cell: str) -> bool:
    """Whether a cell has a word so long that it must be broken to fit the page."""
    return any(len(word) > MAX_WORD for word in cell.split())


def new_figure(width: float, height: float) -> Figure:
    """An empty matplotlib figure, size in inches, without window or global state."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def svg_of(figure: Figure, path: str | Path | None = None, label: str = "") -> str:
    """A figure as SVG for a page, black drawn in the page's text colour; also a PNG at `path`, if
    given.

    `label` is its alternative text. Raises InputError if the PNG cannot be written.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    # A fixed salt: otherwise element names are random and pages are not reproducible.
    with rc_context({"svg.hashsalt": f"groundling {figure.get_size_inches().tolist()}"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    if path is not None:
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=130)
        write_whole(Path(path), drawn.getvalue())
    # Remove the XML declaration and doctype, which belong to a separate file.
    svg = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)
    svg = svg.replace("#000000", "currentColor")
    about = f'<svg role="img" aria-label="{html.escape(label)}"' if label else "<svg"
    return svg.replace("<svg", about, 1)


def in_two_widths(
    draw: Callable[[bool], Figure], label: str, path: str | Path | None = None
) -> str:
    """Figures for a wide (True) and a narrow page, of which the page shows the one that fits.

    `label` is their alternative text; a PNG of the wide one is written to `path`, if given.
    """
    broad = svg_of(draw(True), path, label)
    narrow = svg_of(draw(False), None, label)
    return f'<div class="broad">{broad}</div><div class="narrow">{narrow}</div>'


# Charts for reports: scores by seed, and differences with intervals. No information is given by colour alone.

BLUE, ORANGE, GREEN, GREY, BLACK = "#0072B2", "#E69F00", "#009E73", "#8A8A8A", "#000000"
"""Okabe and Ito's colours, and grey."""
VERMILION, PURPLE, SKY = "#D55E00", "#CC79A7", "#56B4E9"
"""More of Okabe and Ito's colours."""
MARKS = (
    (GREY, "o"),
    (VERMILION, "v"),
    (BLUE, "s"),
    (GREEN, "D"),
    (PURPLE, "^"),
    (ORANGE, "P"),
    (SKY, "X"),
)
"""Colour and marker of each row, in order."""
GUESSING: dict[str, Any] = {
    "color": BLACK,
    "linestyle": "dashed",
    "linewidth": 0.9,
    "zorder": 1,
}
"""Style of the chance line."""
BROAD, NARROW = 10.5, 3.5
"""Figure widths in inches, for a page's text and for a phone."""
MAX_LETTERS = 26
"""Maximum letters per line of a label."""
MAX_LINES = 3
"""Maximum lines of a label; further ones are omitted."""


@dataclass(frozen=True)
class ScorePanel:
    """Scores of one question."""

    title: str
    """The question."""
    chance: float
    """Score of guessing."""
    scores: Mapping[str, Sequence[float]]
    """By row: scores from 0 to 1, one per seed."""
    placeholders: Mapping[str, str] = field(default_factory=dict)
    """By row: text shown if it has no scores."""


def score_panels(panels: Sequence[ScorePanel], broad: bool = True) -> Figure:
    """A panel for each question with a row for each arm: small dots are seeds, the large mark is
    their mean.

    Side by side, or below each other if the page is not `broad`. Rows are those of the first panel,
    each with its own marker and colour; the number on the right is the mean, the dashed line the
    score of guessing.
    """
    rows = list(dict.fromkeys([*panels[0].scores, *panels[0].placeholders]))
    across, down = (len(panels), 1) if broad else (1, len(panels))
    height = 0.34 * len(rows) + 0.75
    figure = new_figure(BROAD if broad else NARROW, height * down)
    every = figure.subplots(down, across, sharey=True, squeeze=False)
    for axes, panel in zip(every.flat, panels, strict=True):
        _draw_panel(axes, panel, rows, size=8 if broad else 7)
    return figure


def _draw_panel(axes: Axes, panel: ScorePanel, rows: Sequence[str], size: int) -> None:
    for place, row in enumerate(rows):
        colour, mark = MARKS[place % len(MARKS)]
        scores = panel.scores.get(row, ())
        if not scores:
            text = panel.placeholders.get(row, "")
            axes.text(0.5, place, text, ha="center", va="center", fontsize=size, style="italic")
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
class ForestRow:
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


def forest_plot(rows: Sequence[ForestRow], unit: str, broad: bool = True) -> Figure:
    """Forest plot: differences with their intervals, one below the other, each seed as a dot; the
    dashed line marks 0.

    A reliable difference has a filled mark, any other an empty one. If the page is not `broad`,
    labels stand above their rows. `unit` is the label of the axis.
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


def _draw_difference(axes: Axes, row: ForestRow, place: int, broad: bool) -> None:
    """Draw the interval with its ends, the mean, the seeds below it, and the line at 0."""
    low, high = row.interval
    axes.plot([low, high], [place] * 2, color=BLUE, linewidth=2.5, solid_capstyle="butt")
    for end in row.interval:
        axes.plot([end] * 2, [place - 0.1, place + 0.1], color=BLUE, linewidth=2.5)
    face = BLUE if row.reliable else "none"
    style: dict[str, Any] = {"s": 70, "marker": "s", "edgecolors": BLUE, "linewidths": 1.8}
    axes.scatter([row.mean], [place], facecolors=face, zorder=3, **style)
    dots: dict[str, Any] = {"s": 20, "color": ORANGE, "edgecolors": BLACK, "linewidths": 0.6}
    axes.scatter(row.seeds, [place + 0.25] * len(row.seeds), zorder=4, **dots)
    # Above the interval and longer than its ends, which could hide it at 0; below the means and the seeds.
    # On a narrow page a label stands above the row.
    span = [place - (0.5 if broad else 0.16), place + 0.5]
    axes.plot([0, 0], span, color=BLACK, linestyle="dashed", linewidth=1, zorder=2.5)


def _label(text: str, letters: int = MAX_LETTERS, max_lines: int = MAX_LINES) -> str:
    """A label wrapped into a few lines; dollar signs are escaped."""
    lines = wrap(text.replace("$", r"\$"), letters)
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], lines[max_lines - 1][: letters - 1] + "…"]
    return "\n".join(lines)
