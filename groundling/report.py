"""Tables for the screen, and a self-contained page with tables, pictures and figures as inline SVG."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from groundling.runs import disk_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
 body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2126; }
 h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2rem }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
 th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #dde2e7; white-space: nowrap }
 th:first-child, td:first-child { text-align: left } th { border-bottom: 2px solid #8b98a5 }
 svg, img.small { max-width: 100%; height: auto }
 img.small { image-rendering: pixelated; margin-right: .5rem; width: 7rem }
 figure { margin: 1rem 0; display: inline-block; vertical-align: top }
 figcaption { font-size: .85rem; color: #55606b; max-width: 7.5rem }
 .wide { overflow-x: auto } p.note { color: #55606b }
</style></head><body>
<h1>{{ title }}</h1>
{% for text in sentences %}<p>{{ text }}</p>{% endfor %}
{% for section in sections %}<h2>{{ section.heading }}</h2>
{% for text in section.sentences %}<p>{{ text }}</p>{% endfor %}
{% if section.pictures %}<div>{% for picture in section.pictures %}<figure>
<img class="small" src="data:image/png;base64,{{ picture.base64 }}" alt="{{ picture.caption }}">
<figcaption>{{ picture.caption }}</figcaption>
</figure>{% endfor %}</div>{% endif %}
{% if section.figure %}<div class="wide">{{ section.figure|safe }}</div>{% endif %}
{% if section.rows %}<div class="wide"><table>
<tr>{% for key in section.rows[0] %}<th>{{ key }}</th>{% endfor %}</tr>
{% for row in section.rows %}<tr>{% for value in row.values() %}<td>{{ value }}</td>{% endfor %}</tr>{% endfor %}
</table></div>{% endif %}
{% endfor %}
{% for text in notes %}<p class="note">{{ text }}</p>{% endfor %}
</body></html>
"""
"""Everything that is filled in is escaped, except a section's figure, which is SVG of our own making."""

TableRow = Mapping[str, str]
"""One row of a table: cells by column heading; all rows of a table have the same headings in the same order."""


class Picture(NamedTuple):
    """A small image inside a page."""

    png: bytes
    """Contents of a PNG file."""
    caption: str
    """Shown below the image, and read aloud in its place."""

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
    """SVG, as `svg_of` gives it; goes into the page as it is."""
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
) -> None:
    """Write one HTML file that needs no other: title, `sentences`, sections in order, and `notes` in grey at the end.

    Raises InputError if the file cannot be written.
    """
    # Imported late: the command line loads this module for its tables.
    from jinja2 import Environment

    page = Environment(autoescape=True).from_string(PAGE)
    html = page.render(title=title, sections=sections, sentences=sentences, notes=notes)
    with disk_errors(path):
        path.write_text(html, encoding="utf-8")


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    chances: Sequence[float],
    path: Path | None = None,
    label: str = "accuracy",
) -> str:
    """Grouped bars of shares from 0 to 1 as SVG, with a dashed mark per group for what guessing gives.

    Args:
        groups: Names of the G groups along the axis.
        series: By name, one value for each group; each series has its own colour.
        chances: What guessing gives, one value for each group.
        path: Where a PNG is written too, if given.
        label: What the values are; stands beside the axis.
    """
    figure = new_figure(10, 3.8)
    axes = figure.subplots()
    _draw_series(axes, series)
    _draw_chances(axes, chances)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 1)
    axes.set_ylabel(label)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(series) + 1, frameon=False, fontsize=9)
    return svg_of(figure, path)


def _draw_series(axes: Axes, series: Mapping[str, Sequence[float]]) -> None:
    from matplotlib import colormaps

    width = 0.82 / len(series)  # the bars of a group leave some space to the next group
    middle = (len(series) - 1) / 2
    colours = colormaps["tab10"]
    for number, (name, values) in enumerate(series.items()):
        offset = (number - middle) * width
        places = [group + offset for group in range(len(values))]
        axes.bar(places, values, width * 0.92, label=name, color=colours(number % 10))


def _draw_chances(axes: Axes, chances: Sequence[float]) -> None:
    for group, chance in enumerate(chances):
        axes.hlines(
            chance,
            group - 0.44,
            group + 0.44,
            colors="black",
            linestyles="dashed",
            linewidth=1.2,
            label="guessing" if group == 0 else "",  # once in the legend
        )


def new_figure(width: float, height: float) -> Figure:
    """An empty matplotlib figure, in inches, that belongs to no window and no global state."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def svg_of(figure: Figure, path: str | Path | None = None) -> str:
    """A figure as SVG that can stand inside a page; also a PNG at `path`, if given.

    Raises InputError if the PNG cannot be written.
    """
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    if path is not None:
        with disk_errors(Path(path)):
            figure.savefig(path, dpi=130)
    # What stands before the element (XML declaration and doctype) belongs to a file of its own.
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)
