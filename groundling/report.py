"""Tables for the screen, and a self-contained report with figures as inline SVG."""

from __future__ import annotations

import base64
import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.runs import disk_errors

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{{ title }}</title>
<style>
 body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #1c2126; }
 h1 { font-size: 1.7rem; margin-bottom: .2rem } h2 { font-size: 1.15rem; margin-top: 2rem }
 table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .92rem }
 th, td { padding: .35rem .8rem; text-align: right; border-bottom: 1px solid #dde2e7; white-space: nowrap }
 th:first-child, td:first-child { text-align: left } th { border-bottom: 2px solid #8b98a5 }
 svg, img.scene { max-width: 100%; height: auto } img.scene { image-rendering: pixelated; margin-right: .5rem; width: 7rem }
 figure { margin: 1rem 0; display: inline-block; vertical-align: top } figcaption { font-size: .85rem; color: #55606b; max-width: 7.5rem }
 .wide { overflow-x: auto } p.note { color: #55606b }
</style></head><body>
<h1>{{ title }}</h1>
{% for text in sentences %}<p>{{ text }}</p>{% endfor %}
{% if scenes %}<h2>What the teacher sees</h2><div>{% for image, caption in scenes %}<figure>
<img class="scene" src="data:image/png;base64,{{ image }}" alt="{{ caption }}"><figcaption>{{ caption }}</figcaption>
</figure>{% endfor %}</div>{% endif %}
{% for name, svg in figures %}<h2>{{ name }}</h2><div class="wide">{{ svg|safe }}</div>{% endfor %}
{% for name, rows in tables %}<h2>{{ name }}</h2><div class="wide"><table>
<tr>{% for key in rows[0] %}<th>{{ key }}</th>{% endfor %}</tr>
{% for row in rows %}<tr>{% for value in row.values() %}<td>{{ value }}</td>{% endfor %}</tr>{% endfor %}
</table></div>{% endfor %}
{% for text in notes %}<p class="note">{{ text }}</p>{% endfor %}
</body></html>
"""


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows of equal keys as aligned text: first column left, others right."""
    keys = list(rows[0])
    width = {key: max(len(key), *(len(row[key]) for row in rows)) for key in keys}

    def line(values: Mapping[str, str]) -> str:
        cells = [
            values[k].ljust(width[k]) if k == keys[0] else values[k].rjust(width[k]) for k in keys
        ]
        return "  ".join(cells).rstrip()

    rule = "  ".join("-" * width[k] for k in keys)
    return "\n".join([line({k: k for k in keys}), rule, *(line(row) for row in rows)])


def write_report(
    path: Path,
    title: str,
    tables: Sequence[tuple[str, Sequence[Mapping[str, str]]]],
    sentences: Sequence[str] = (),
    *,
    figures: Sequence[tuple[str, str]] = (),
    scenes: Sequence[tuple[bytes, str]] = (),
    notes: Sequence[str] = (),
) -> None:
    """Write one HTML file: `figures` are (heading, SVG), `scenes` (PNG bytes, caption)."""
    from jinja2 import Environment

    page = Environment(autoescape=True).from_string(PAGE)
    pictures = [(base64.b64encode(image).decode(), caption) for image, caption in scenes]
    html = page.render(
        title=title,
        tables=tables,
        sentences=sentences,
        figures=figures,
        scenes=pictures,
        notes=notes,
    )
    with disk_errors(path):
        path.write_text(html, encoding="utf-8")


def bars(
    groups: Sequence[str],
    series: Mapping[str, Sequence[float]],
    chances: Sequence[float],
    path: Path | None = None,
) -> str:
    """Grouped bars of accuracies with a chance mark per group, as SVG; also a PNG at `path`, if given."""
    from matplotlib import colormaps

    figure = new_figure(10, 3.8)
    axes: Any = figure.subplots()
    wide = 0.82 / len(series)
    colours = colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, (name, values) in enumerate(series.items()):
        places = [g + (number - (len(series) - 1) / 2) * wide for g in range(len(groups))]
        axes.bar(places, values, wide * 0.92, label=name, color=colours[number % 10])
    for g, chance in enumerate(chances):
        label = "guessing" if g == 0 else None
        axes.hlines(
            chance,
            g - 0.44,
            g + 0.44,
            colors="black",
            linestyles="dashed",
            linewidth=1.2,
            label=label,
        )
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylim(0, 1)
    axes.set_ylabel("accuracy, unseen nouns")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=len(series) + 1, frameon=False, fontsize=9)
    return svg_of(figure, path)


def new_figure(width: float, height: float) -> Any:
    """An empty matplotlib figure, inches, that no window and no global state knows of."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasSVG(figure)
    return figure


def svg_of(figure: Any, path: str | Path | None = None) -> str:
    """A figure as SVG that can stand inside a page; also a PNG at `path`, if given."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    if path is not None:
        with disk_errors(Path(path)):
            figure.savefig(path, dpi=130)
    return re.sub(r"^.*?(?=<svg)", "", out.getvalue(), count=1, flags=re.DOTALL)
