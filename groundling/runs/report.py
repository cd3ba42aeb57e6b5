"""Tables for the screen, and pages: one template and base style for all, and the report with tables and figures.

A page of one's own is NAME.html and NAME.css beside a module, and NAME.js where it has data (`page_of`); the report's
are `report.html` and `report.css`.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from groundling.runs.folder import write_whole

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STACKS = {"few": 26, "some": 48, "many": 66}
"""Widths of the window, in rem, up to which a table's rows stand as blocks: of up to 3 columns, up to 6, and more."""

LONG = 20
"""Letters of a word that need not be broken in a table."""

OWN = __package__
"""Where the template and style of all pages are."""

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


def page_of(
    package: str, name: str, title: str, told: Mapping[str, Any], data: object = None
) -> str:
    """A page that needs no other file and loads nothing: a package's NAME.html inside `page.html`, filled with `told`.

    All that is filled in is escaped, unless NAME.html says otherwise. A page with `data` has it as JSON in the element
    `data`, and runs its NAME.js; its policy lets nothing else run.
    """
    # Imported late: the command line loads this module for its tables.
    from jinja2 import DictLoader, Environment

    style = _part(OWN, "page.css") + _part(package, f"{name}.css")
    script = "" if data is None else _part(package, f"{name}.js")
    # A page without a script may show figures, whose elements bring styles of their own.
    styles = f"'{_hash(style)}'" if script else "'unsafe-inline'"
    scripts = f"script-src '{_hash(script)}'; " if script else ""
    inside = f"{name}.html"
    templates = {"page.html": _part(OWN, "page.html"), inside: _part(package, inside)}
    page = Environment(autoescape=True, loader=DictLoader(templates)).get_template(inside)
    return page.render(
        told,
        name=name,
        title=title,
        policy=f"default-src 'none'; img-src data:; style-src {styles}; {scripts}base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=_json(data),
    )


def _part(package: str, name: str) -> str:
    return (files(package) / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """By which a policy knows an element's text."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _json(content: object) -> str:
    """JSON that can stand inside a script element, which `<` could end; the other marks are for stray parsers."""
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


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
    told = {
        "sections": sections,
        "sentences": sentences,
        "notes": notes,
        "terms": terms or {},
        "stacks": STACKS,
        "stack": _stack,
        "has_long_word": _has_long_word,
    }
    write_whole(path, page_of(OWN, "report", title, told))


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
