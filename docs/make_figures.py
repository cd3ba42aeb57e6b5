"""Draw the figures of README, bench.md and results/16: each is made of rendered images and of published tables.

    python docs/make_figures.py                # write all of them
    python docs/make_figures.py curves price   # write docs/curves.png and docs/price.png

Readings of the bench are those of docs/bench.csv, those of the positive control stand in docs/results/16_clip_td.md.
"""

from __future__ import annotations

import io
import re
import sys
from itertools import islice
from pathlib import Path
from statistics import mean, median
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from make_bench_results import published
from matplotlib.figure import Figure
from PIL import Image

from groundling.studies.bench.engine import METHOD, SHUFFLED, TEXT_CONTROL, TOWER, entries_of
from groundling.studies.bench.judge import base_entries, judge_curves, judge_methods, value_of
from groundling.studies.bench.protocol import AXES
from groundling.studies.bench.readings import MASKED_LM, VISUAL
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.language import sentence
from groundling.studies.worlds.world import World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DOCS = Path(__file__).parent
FAMILIES = {"objects": "Coloured objects, English", "pictograms": "Pictograms, another grammar"}
COLOURS = 256
"""Colours of the file, for its size."""
IMAGES = 3
"""Images of each kind of worlds in the figure of the bench."""
LINES = 24
"""Sentences of a corpus among which one about a noun is looked for, in each of its lines."""
CONTROLS = DOCS / "results/16_clip_td.md"
"""The page of whose tables the figure of the positive control is drawn."""
SERIES = {
    METHOD: ("the method", "#1b6ca8", "o"),
    TEXT_CONTROL: ("the same texts without images", "#888888", "s"),
    SHUFFLED: ("each other's images", "#c46210", "^"),
}
SPELT = {
    "xdbert": "XDBERT",
    "l1": "L1",
    "contrastive": "contrastive",
    "vokenization": "Vokenization",
    "vidlankd": "VidLanKD",
    "lexi_contrastive": "LexiContrastive",
    "clip_bert": "CLIP-BERT",
    "mcse": "MCSE",
    "grounded_space": "grounded space",
    "mlm_distillation": "MLM distillation",
    "caption_to_image": "Cap2Img",
}


def draw_images(axes: list[Axes], family: str) -> None:
    """The first images of world 0, with the first caption of each."""
    world = World(WorldConfig(family=family))
    for number, place in enumerate(axes):
        scene = world.scene(number)
        place.imshow(world.render_scene(scene), interpolation="nearest")
        place.set_title(
            fill(world.captions(scene)[0].removesuffix(" ."), 24), fontsize=7, loc="left", pad=3
        )
        place.set_axis_off()


def draw_readings(axes: Axes, family: str) -> None:
    """A row for each method: each world's reading of its arms, a bar for their mean, and the teacher's ceiling."""
    bench = published()
    runs = [one for one in base_entries(bench["runs"]) if one["family"] == family]
    names = sorted(bench["methods"], key=lambda name: _mean(runs, name, METHOD))
    for row, name in enumerate(names):
        for height, (arm, (label, colour, marker)) in zip(
            (0.2, 0, -0.2), SERIES.items(), strict=True
        ):
            values = _values(runs, name, arm)
            heights = np.full(len(values), row + height)
            axes.scatter(values, heights, 14, colour, marker=marker, alpha=0.5, linewidths=0)
            axes.plot([mean(values)] * 2, [row + height - 0.17, row + height + 0.17], color=colour,
                      label="" if row else label)  # fmt: skip
    axes.axvline(
        _mean(runs, "", TOWER), color="black", linestyle=":", label="the teacher's text tower"
    )
    axes.set_yticks(range(len(names)), [SPELT[name] for name in names])
    axes.set_xlim(0, 1)
    axes.set_xlabel("visual attributes of unseen nouns, read right by a linear map", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _values(runs: list[dict], name: str, arm: str, reading: str = VISUAL) -> list[float]:
    found = [value_of(one, reading) for one in entries_of(runs, name, arm)]
    return [float(value) for value in found if value is not None]


def _mean(runs: list[dict], name: str, arm: str, reading: str = VISUAL) -> float:
    return mean(_values(runs, name, arm, reading))


def _bench() -> Figure:
    """Images of both kinds of worlds over what the bench's methods and controls read there."""
    figure = Figure(figsize=(10, 6.2), dpi=110, layout="constrained")
    above, below = figure.subfigures(2, 1, height_ratios=(1, 2.6))
    strips = above.subplots(1, 2 * IMAGES)
    panels = below.subplots(1, 2)
    for number, (family, title) in enumerate(FAMILIES.items()):
        draw_images(list(strips[number * IMAGES :][:IMAGES]), family)
        draw_readings(panels[number], family)
        panels[number].set_title(f"{title}: five worlds", fontsize=9, loc="left")
    panels[1].legend(
        fontsize=7, loc="lower right", bbox_to_anchor=(0.81, 0), frameon=False, handlelength=1
    )
    return figure


# -- what a world looks like -------------------------------------------------------------------------------------------
def _worlds() -> Figure:
    """For each kind of worlds: one noun in three images, another thing, and what the texts say of the noun."""
    figure = Figure(figsize=(6.4, 6), dpi=120, layout="constrained")
    for part, (family, title) in zip(figure.subfigures(2, 1), FAMILIES.items(), strict=True):
        world = World(WorldConfig(family=family))
        scenes = [world.scene(number) for number in range(1000)]
        name = scenes[0].things[0].name
        alone = [one for one in scenes if [thing.name for thing in one.things] == [name]]
        pairs = [one for one in scenes if one.relation and not any(x.name for x in one.things)]
        part.suptitle(title, fontsize=12, x=0.01, ha="left", weight="bold")
        for place, scene in zip(part.subplots(1, 4), [*alone[:3], pairs[0]], strict=True):
            place.imshow(world.render_scene(scene), interpolation="nearest")
            place.set_axis_off()
            caption = world.captions(scene)[0].removesuffix(" .")
            place.set_title(fill(caption, 16), fontsize=9.5, loc="left", y=-0.06, va="top")
        said = "\n".join(f"\u201c{one.removesuffix(' .')}\u201d" for one in _said(world, name))
        part.supxlabel(
            f"Text, without images, says of {name}:\n{said}", fontsize=10, x=0.01, ha="left"
        )
    return figure


def _said(world: World, name: str, count: int = 2) -> list[str]:
    """The first short lines of the corpus that are about a noun."""
    about = (world.family, world.nouns, world.config.stated_rate)
    lines = (sentence(world._rng("corpus/train", n), *about) for n in range(world.config.sentences))
    found = (line for line in lines if name in line.split() and len(line) < 70)
    return list(islice(dict.fromkeys(found), count))


# -- how gains grow ----------------------------------------------------------------------------------------------------
PANELS = {
    "images": "images of each noun",
    "captions": "captions",
    "steps": "steps",
    "teacher": "steps of the teacher",
}
STYLES = {
    "caption_to_image": ("#1b6ca8", "o"),
    "lexi_contrastive": ("#c46210", "s"),
    "l1": ("#2b8a3e", "^"),
    "contrastive": ("#8e44ad", "v"),
    "xdbert": ("#666666", "x"),
    "vokenization": ("#b0a000", "+"),
}
"""Colours and markers of the methods that have curves."""


def _curves() -> Figure:
    """Gains over the text control along four axes: means of three worlds, with their standard deviations."""
    bench = published()
    curves = judge_curves(bench["runs"], bench["methods"])
    bases = {axis.name: axis.base for axis in AXES}
    figure = Figure(figsize=(6.4, 6.4), dpi=120, layout="constrained")
    for place, (axis, title) in zip(
        figure.subplots(2, 2, sharey=True).flat, PANELS.items(), strict=True
    ):
        for one in (curve for curve in curves if curve.axis == axis):
            colour, marker = STYLES[one.method]
            worlds = [gain.by_unit for gain in one.gains.values()]
            place.errorbar(list(one.gains), [mean(each) for each in worlds],
                           [np.std(each, ddof=1) for each in worlds], color=colour, marker=marker,
                           capsize=2, linewidth=1.2, elinewidth=0.8, label=SPELT[one.method])  # fmt: skip
        place.axhline(0, color="black", linewidth=0.8)
        place.axvline(bases[axis], color="black", linestyle=":", linewidth=0.8)
        place.set_xscale("log")
        ticks = sorted({value for one in curves if one.axis == axis for value in one.gains})
        place.set_xticks(ticks, [f"{one:,}" for one in ticks], minor=False, fontsize=9)
        place.set_xticks([], minor=True)
        place.set_xlabel(title, fontsize=11)
        place.tick_params(axis="y", labelsize=9)
        place.spines[["top", "right"]].set_visible(False)
    figure.supylabel("visual attributes of unseen nouns, gain over the text control", fontsize=11)
    named = {
        label: line
        for place in figure.axes
        for line, label in zip(*place.get_legend_handles_labels(), strict=True)
    }
    figure.legend(
        named.values(),
        named.keys(),
        loc="outside upper center",
        ncols=3,
        fontsize=10,
        frameon=False,
    )
    return figure


# -- what gains cost ---------------------------------------------------------------------------------------------------
BESIDE = {"contrastive": "right", "l1": "left"}
"""Names beside an arrow's head: above it they would lie on each other."""


def _price() -> Figure:
    """For each kind of worlds an arrow for each method: from its text control to itself, in visual reading and loss."""
    bench = published()
    verdicts = judge_methods(bench["runs"], bench["methods"])
    figure = Figure(figsize=(6.4, 7.6), dpi=120, layout="constrained")
    for place, (family, title) in zip(
        figure.subplots(2, 1, sharex=True), FAMILIES.items(), strict=True
    ):
        runs = [one for one in base_entries(bench["runs"]) if one["family"] == family]
        for one in (each for each in verdicts if each.family == family and each.gain):
            ends = [
                [_mean(runs, one.method, arm, reading) for reading in (MASKED_LM, VISUAL)]
                for arm in (TEXT_CONTROL, METHOD)
            ]
            colour = "#1b6ca8" if one.is_beyond else "#999999"
            place.annotate("", ends[1], ends[0], arrowprops={"arrowstyle": "-|>", "color": colour})
            place.plot(*ends[0], "o", color=colour, markersize=4, fillstyle="none")
            if one.is_beyond:
                place.annotate(SPELT[one.method], ends[1], (0, 4), textcoords="offset points",
                               fontsize=10, ha=BESIDE.get(one.method, "center"))  # fmt: skip
        place.set_title(title, fontsize=11, loc="left")
        place.set_xlim(0.8, 3.4)
        place.set_ylim(0.15, 0.95)
        place.tick_params(labelsize=10)
        place.spines[["top", "right"]].set_visible(False)
    key = "ring: text control\narrow: the method\ngrey: no transfer"
    figure.axes[0].text(3.4, 0.95, key, fontsize=10, ha="right", va="top")
    figure.supylabel("visual attributes of unseen nouns, read right", fontsize=11)
    figure.supxlabel("masked LM on held-out text, nats (lower is better)", fontsize=11)
    return figure


# -- the positive control ----------------------------------------------------------------------------------------------
TEACHERS = {
    "none": "no teacher",
    "`td_image td_text`, oracle": "oracle",
    "the same, CLIP as": "CLIP",
    "untrained CLIP": "untrained\nCLIP",
    "CLIP with redrawn": "CLIP, redrawn\nattributes",
}
"""Rows of the table on regions of a CLIP by how they begin, and what the figure calls them."""


def control_rows() -> dict[str, dict[str, list[float]]]:
    """Each block of the first table on the page: the seeds of its rows, by what is added to the base command."""
    rows: dict[str, dict[str, list[float]]] = {}
    block = ""
    pattern = r"^\|([^|]*)\| ([^|]+) \| \*\*[\d.]+\*\* ([\d./]+) \|"
    for found in re.finditer(pattern, CONTROLS.read_text(encoding="utf-8"), re.MULTILINE):
        block = found[1].strip() or block
        seeds = [float(one) for one in found[3].split("/")]
        rows.setdefault(block, {}).setdefault(found[2], seeds)
    return rows


def _positive_control() -> Figure:
    """VCR by teacher, with 400 and 4,000 questions; and by how many of the oracle's facts are wrong."""
    rows = control_rows()
    figure = Figure(figsize=(6.4, 6.4), dpi=120, layout="constrained")
    above, below = figure.subplots(2, 1)
    for number, (count, colour) in enumerate({"400": "#1b6ca8", "4,000": "#c46210"}.items()):
        block = rows[f"{count}, `--regions runs/vision/store`"]
        for place, start in enumerate(TEACHERS):
            seeds = next((some for row, some in block.items() if row.startswith(start)), None)
            if seeds is not None:
                _dots(above, place + 0.2 * (2 * number - 1), seeds, colour)
        above.plot([], [], "o", color=colour, label=f"{count} questions")
    above.set_xticks(range(len(TEACHERS)), TEACHERS.values(), fontsize=10)
    above.legend(fontsize=10, frameon=False)
    above.set_title("Regions of a CLIP: which teacher helps?", fontsize=11, loc="left")
    clean = rows["400, of the truth"]
    ladder = [seeds for row, seeds in clean.items() if "oracle" in row or "noise" in row]
    for place, seeds in enumerate([clean["none"], *ladder]):
        _dots(below, place, seeds, "#666666" if place == 0 else "#1b6ca8")
    shares = ("0", "\u00bc", "\u00bd", "\u00be", "all")
    below.set_xticks(range(6), ["no teacher", *shares], fontsize=10)
    below.set_xlabel("facts of the oracle that are redrawn", fontsize=11)
    below.set_title(
        "Regions of the truth, 400 questions: how much must it know?", fontsize=11, loc="left"
    )
    for place in (above, below):
        place.axhline(25, color="black", linestyle=":", linewidth=0.8)
        place.set_ylabel("VCR answers right, %", fontsize=11)
        place.set_ylim(20, 100)
        place.spines[["top", "right"]].set_visible(False)
    return figure


def _dots(axes: Axes, place: float, seeds: list[float], colour: str) -> None:
    """A dot for each seed and a bar for their median."""
    axes.scatter([place] * len(seeds), seeds, 22, colour, alpha=0.6, linewidths=0)
    axes.plot([place - 0.15, place + 0.15], [median(seeds)] * 2, color=colour)


FIGURES = {
    "bench": _bench,
    "worlds": _worlds,
    "curves": _curves,
    "price": _price,
    "positive_control": _positive_control,
}
"""What draws each figure of `docs/`, by its name."""


def main(*names: str) -> None:
    """Draw figures; by default all."""
    mpl.use("Agg")
    for name in names or FIGURES:
        drawn = io.BytesIO()
        FIGURES[name]().savefig(drawn)
        Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(
            DOCS / f"{name}.png", optimize=True
        )


if __name__ == "__main__":
    main(*sys.argv[1:])
