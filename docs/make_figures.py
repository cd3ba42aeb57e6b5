"""Draw the README's figure: images of both kinds of worlds over what the bench's methods and controls read there.

    python docs/make_figures.py    # write docs/bench.png

The readings are those of docs/bench.csv; the images are rendered.
"""

from __future__ import annotations

import io
from pathlib import Path
from statistics import mean
from textwrap import fill
from typing import TYPE_CHECKING

import matplotlib as mpl
import numpy as np
from make_bench_results import published
from PIL import Image

from groundling.studies.bench.engine import METHOD, SHUFFLED, TEXT_CONTROL, TOWER, entries_of
from groundling.studies.bench.judge import base_entries, value_of
from groundling.studies.bench.readings import VISUAL
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.world import World

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURE = Path(__file__).with_name("bench.png")
FAMILIES = {"objects": "Coloured objects, English", "pictograms": "Pictograms, another grammar"}
COLOURS = 256
"""Colours of the file, for its size."""
IMAGES = 3
"""Images of each kind of worlds."""
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


def _values(runs: list[dict], name: str, arm: str) -> list[float]:
    found = [value_of(one, VISUAL) for one in entries_of(runs, name, arm)]
    return [float(value) for value in found if value is not None]


def _mean(runs: list[dict], name: str, arm: str) -> float:
    return mean(_values(runs, name, arm))


def main() -> None:
    """Draw the figure."""
    mpl.use("Agg")
    from matplotlib.figure import Figure

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
    drawn = io.BytesIO()
    figure.savefig(drawn)
    Image.open(drawn).convert("RGB").quantize(COLOURS, Image.Quantize.MAXCOVERAGE).save(
        FIGURE, optimize=True
    )


if __name__ == "__main__":
    main()
