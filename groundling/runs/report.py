"""Tables for the screen, and a self-contained page with tables, pictures and figures as inline SVG."""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from groundling.runs.folder import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ title }}</title>
<style>
 :root { color-scheme: light dark; --ink: #1c2126; --quiet: #55606b; --paper: #fff; --line: #c9d0d7 }
 @media (prefers-color-scheme: dark) {
  :root { --ink: #e8eaed; --quiet: #a3adb8; --paper: #14171a; --line: #4a535c }
 }
 * { box-sizing: border-box; min-width: 0 }
 body { font: 1rem/1.5 system-ui, sans-serif; max-width: 72rem; margin: 1.5rem auto; padding: 0 1rem;
  color: var(--ink); background: var(--paper); overflow-wrap: anywhere }
 h1 { font-size: 1.7rem; line-height: 1.2; margin-bottom: .4rem } h2 { font-size: 1.15rem; margin-top: 2rem }
 p, dl { max-width: 46rem } dt { font-weight: 600 } dd { margin: 0 0 .5rem }
 p.note, figcaption { color: var(--quiet) } abbr { text-decoration: underline dotted; cursor: help }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem; max-width: 100% }
 th, td { padding: .35rem .6rem; text-align: right; vertical-align: top; border-bottom: 1px solid var(--line) }
 th:first-child, td:first-child { text-align: left } th { border-bottom: 2px solid var(--quiet) }
 th, td { overflow-wrap: break-word } td.long { overflow-wrap: anywhere }
 {% for name, width in stacks.items() %}@media (max-width: {{ width }}rem) {
  table.{{ name }}, .{{ name }} tbody, .{{ name }} tr { display: block }
  .{{ name }} tr { border-bottom: 2px solid var(--quiet); padding: .4rem 0 } .{{ name }} tr:first-child { display: none }
  .{{ name }} td { display: flex; justify-content: space-between; gap: 1rem; padding: .15rem 0; border: 0 }
  .{{ name }} td:first-child { font-weight: 600 } .{{ name }} td::before { content: attr(data-label); font-weight: 400;
   color: var(--quiet); text-align: left; flex: 0 0 auto; max-width: 45% }
  .{{ name }} td > span { overflow-wrap: anywhere }
 }
 {% endfor %}.pictures { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); gap: 1rem }
 figure { margin: 0 } figcaption { font-size: .85rem; line-height: 1.35; white-space: pre-line; margin-top: .3rem }
 .pictures img { image-rendering: pixelated; width: 100%; max-width: 10rem; display: block }
 svg { max-width: 100%; height: auto; fill: currentColor; display: block }
 .narrow { display: none } .narrow svg { width: min(100%, 30rem) }
 @media (max-width: 52rem) { .broad { display: none } .narrow { display: block } }
</style></head><body>
<h1>{{ title }}</h1>
{% for text in sentences %}<p>{{ text }}</p>{% endfor %}
{% for section in sections %}<h2>{{ section.heading }}</h2>
{% for text in section.sentences %}<p>{{ text }}</p>{% endfor %}
{% if section.pictures %}<div class="pictures">{% for picture in section.pictures %}<figure>
<img src="data:image/png;base64,{{ picture.base64 }}" alt="{{ picture.caption }}">
<figcaption>{{ picture.caption }}</figcaption>
</figure>{% endfor %}</div>{% endif %}
{% if section.figure %}<div>{{ section.figure|safe }}</div>{% endif %}
{% if section.rows %}<table role="table" class="{{ stack(section.rows[0]|length) }}">
<tr role="row">{% for key in section.rows[0] %}<th role="columnheader">
{%- if key in terms %}<abbr title="{{ terms[key] }}">{{ key }}</abbr>{% else %}{{ key }}{% endif %}</th>{% endfor %}</tr>
{% for row in section.rows %}<tr role="row">{% for key, value in row.items() %}
<td role="cell" data-label="{{ key }}"{% if has_long_word(value) %} class="long"{% endif %}><span>{{ value }}</span></td>{% endfor %}</tr>{% endfor %}
</table>{% endif %}
{% endfor %}
{% if terms %}<h2>What the words mean</h2>
<dl>{% for term, meaning in terms.items() %}<dt>{{ term }}</dt><dd>{{ meaning }}</dd>{% endfor %}</dl>{% endif %}
{% for text in notes %}<p class="note">{{ text }}</p>{% endfor %}
</body></html>
"""
"""Everything that is filled in is escaped, except a section's figure, which is SVG of our own making."""

STACKS = {"few": 26, "some": 48, "many": 66}
"""Widths of the window, in rem, up to which a table's rows stand as blocks: of up to 3 columns, up to 6, and more."""

LONG = 20
"""Letters of a word that need not be broken in a table."""

TableRow = Mapping[str, str]
"""One row of a table: cells by column heading; all rows of a table have the same headings in the same order."""


class Picture(NamedTuple):
    """A small image inside a page."""

    png: bytes
    """Contents of a PNG file."""
    caption: str
    """Shown below the image, its lines as they are, and read aloud in its place."""

    @property
    def base64(self) -> str:
        """The image as it stands in a data URL."""
        return base64.b64encode(self.png).decode()


@dataclass(frozen=True)
class Section:
    """A part of a page under its own heading; what it does not have is left out."""

    heading: str
    sentences: Sequence[str] = ()
    """Paragraphs."""
    pictures: Sequence[Picture] = ()
    """Side by side."""
    figure: str = ""
    """SVG, as `svg_of` or `in_two_widths` gives it; goes into the page as it is."""
    rows: Sequence[TableRow] = ()
    """A table: its first column left-aligned, the others right-aligned."""


def counted(number: int, noun: str) -> str:
    """A number of things, whose name ends in s but of one alone."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def table(rows: Sequence[TableRow]) -> str:
    """Rows of equal keys as aligned text: first column left, others right."""
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
    sections: Sequence[Section],
    sentences: Sequence[str] = (),
    *,
    notes: Sequence[str] = (),
    terms: Mapping[str, str] | None = None,
) -> None:
    """Write one HTML file that needs no other: title, `sentences`, sections in order, and `notes` in grey at the end.

    `terms` explains words: where one heads a column it is explained to who points at it, and all of them are explained
    below, for touch and print. The page fits windows from 360 pixels on, light and dark, and loads nothing.

    Raises InputError if the file cannot be written.
    """
    # Imported late: the command line loads this module for its tables.
    from jinja2 import Environment

    page = Environment(autoescape=True).from_string(PAGE)
    told = {"title": title, "sections": sections, "sentences": sentences, "notes": notes}
    text = page.render(
        told, terms=terms or {}, stacks=STACKS, stack=_stack, has_long_word=_has_long_word
    )
    write_whole(path, text)


def _stack(columns: int) -> str:
    """The class of a table of so many columns, which decides in how narrow a window its rows stand as blocks."""
    if columns <= 3:
        return "few"
    return "some" if columns <= 6 else "many"


def _has_long_word(cell: str) -> bool:
    """Whether a cell has to be broken inside a word, or its table may be wider than the page."""
    return any(len(word) > LONG for word in cell.split())


def new_figure(width: float, height: float) -> Figure:
    """An empty matplotlib figure, in inches, that belongs to no window and no global state."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def svg_of(figure: Figure, path: str | Path | None = None, label: str = "") -> str:
    """A figure as SVG that can stand inside a page, black in the page's ink; also a PNG at `path`, if given.

    `label` is read aloud in its place. Raises InputError if the PNG cannot be written.
    """
    from matplotlib import rc_context

    out = io.StringIO()
    # Without a salt of ours the names inside are drawn by lot, and no page is ever the same again.
    with rc_context({"svg.hashsalt": f"groundling {figure.get_size_inches().tolist()}"}):
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    if path is not None:
        drawn = io.BytesIO()
        figure.savefig(drawn, format="png", dpi=130)
        write_whole(Path(path), drawn.getvalue())
    # What stands before the element (XML declaration and doctype) belongs to a file of its own.
    svg = re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)
    svg = svg.replace("#000000", "currentColor")
    about = f'<svg role="img" aria-label="{html.escape(label)}"' if label else "<svg"
    return svg.replace("<svg", about, 1)


def in_two_widths(
    draw: Callable[[bool], Figure], label: str, path: str | Path | None = None
) -> str:
    """What `draw` draws for a broad page (True) and for a narrow one, of which the page shows the one that fits.

    `label` is read aloud in their place; a PNG of the broad one is written to `path`, if given.
    """
    broad = svg_of(draw(True), path, label)
    narrow = svg_of(draw(False), None, label)
    return f'<div class="broad">{broad}</div><div class="narrow">{narrow}</div>'
