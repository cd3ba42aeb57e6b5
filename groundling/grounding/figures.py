"""Figures for papers, from the numbers that `groundling heads`, `syntax` and `modality` wrote.

VisualBERT's Figures 3 and 4 (accuracy of heads, layer by layer), CLIP-TD's Figures 3 and 4 (modality importance by
layer and by head). Panels of one figure share their scales; colours are Okabe and Ito's, and nothing is told by colour
alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from groundling.charts import BLUE, GREEN, GREY, ORANGE
from groundling.errors import InputError
from groundling.report import new_figure
from groundling.runs import disk_errors

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

KINDS = {"visual": (BLUE, "o"), "textual": (ORANGE, "s"), "special": (GREEN, "^")}
"""Colour and mark of each modality."""
SHADES = "cividis"
"""Of heat maps: light and dark for every kind of sight."""
FORMATS = ("svg", "pdf", "png")
DPI = 300
WIDE = 3.4
"""Inches of a panel, about a column of a two-column paper."""
HIGH = 2.5
COLUMNS = 3
"""Panels side by side."""
SPREAD = 0.35
"""How far dots of one layer stand apart, in layers."""

Told = Mapping[str, Any]


def figures_of(result: Told) -> dict[str, Figure]:
    """What there is to draw of a run's `result.json`, by the name of the file.

    Raises InputError if it is none of `groundling heads`, `syntax` or `modality`.
    """
    try:
        if not all(result.get(name, True) for name in ("relations", "models")):
            raise ValueError("it is empty")
        if "relations" in result:
            return {"relations": accuracies({_relation(one): one for one in result["relations"]})}
        if "models" in result:
            return _of_modality(result["models"])
        return {"heads": accuracies({"": result})}
    except (KeyError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise InputError(
            f"no result of `groundling heads`, `syntax` or `modality` ({type(error).__name__}: {error})"
        ) from None


def write_figures(
    figures: Mapping[str, Figure], folder: Path, formats: Sequence[str]
) -> list[Path]:
    """Write each figure in each format; returns the files. Raises InputError for an unknown format."""
    if not formats:
        raise InputError(f"--formats: none is named; expected some of {', '.join(FORMATS)}")
    unknown = [one for one in formats if one not in FORMATS]
    if unknown:
        raise InputError(f"--formats {unknown[0]}: expected some of {', '.join(FORMATS)}")
    nobody = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}
    paths = []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            for one in formats:
                path = folder / f"{name}.{one}"
                figure.savefig(path, format=one, dpi=DPI, metadata=nobody[one])
                paths.append(path)
    return paths


def _panels(count: int, wide: float = WIDE, high: float = HIGH) -> tuple[Figure, list[Axes]]:
    """A figure of panels with shared scales."""
    across = min(count, COLUMNS)
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


# -- heads as classifiers ----------------------------------------------------------------------------------------------


def _relation(told: Told) -> str:
    """A relation as a panel's title: which of its two ends owns the boxes stands behind it."""
    return f"{told['relation']} (phrase is {told['phrase_is']})"


def accuracies(panels: Mapping[str, Told]) -> Figure:
    """Accuracy of every head over its layer, a panel for each title; VisualBERT, Figures 3 and 4.

    Active heads are large and dark, others small and light; the grey line is the rule: the region of the highest
    confidence, or, where there is none, a region at random.
    """
    figure, axes = _panels(len(panels))
    for one, (title, told) in zip(axes, panels.items(), strict=True):
        _dots(one, told["heads"])
        by_confidence = told.get("confidence")
        rule = by_confidence or told["chance"]
        name = "highest confidence" if by_confidence else "a region at random"
        one.axhline(rule["value"], color=GREY, linewidth=1.2, label=name, zorder=1)
        one.set_title(title, fontsize=9)
    # Told once for all: a panel that asks for the bottom alone would freeze the top of those that come after it.
    highest = max(head["accuracy"] for told in panels.values() for head in told["heads"])
    rules = [(told.get("confidence") or told["chance"])["value"] for told in panels.values()]
    axes[0].set_ylim(0, min(1.06 * max(highest, *rules), 104))
    figure.supxlabel("layer", fontsize=9)
    figure.supylabel("accuracy, %", fontsize=9)
    _legend(figure, axes[0])
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    """One legend for all panels, above them."""
    handles, labels = axes.get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": len(labels)}
    figure.legend(handles, labels, frameon=False, fontsize=7, columnspacing=1, **place)


def _dots(axes: Axes, heads: Sequence[Told]) -> None:
    layers = sorted({(one["attention"], one["layer"]) for one in heads})
    most = max(one["head"] for one in heads)
    # Heads of a layer stand beside each other in their order, so that equal ones are told apart.
    across = np.linspace(-SPREAD, SPREAD, most + 1) if most else np.zeros(1)
    looks: dict[bool, dict[str, Any]] = {
        True: {"s": 22, "color": BLUE, "label": "active head", "zorder": 3},
        False: {"s": 7, "color": "#9FC6DC", "label": "other head", "zorder": 2},
    }
    for is_active, look in looks.items():
        chosen = [one for one in heads if bool(one["active"]) == is_active]
        places = [
            layers.index((one["attention"], one["layer"])) + across[one["head"]] for one in chosen
        ]
        axes.scatter(places, [one["accuracy"] for one in chosen], linewidths=0, **look)
    several = len({name for name, _ in layers}) > 1
    names = [f"{name} {number}" if several else str(number) for name, number in layers]
    axes.set_xticks(range(len(layers)), names, fontsize=7)


# -- modality importance -----------------------------------------------------------------------------------------------


def _of_modality(models: Sequence[Told]) -> dict[str, Figure]:
    return {"modality_by_layer": by_layer(models), "modality_by_head": by_head(models)}


def by_layer(models: Sequence[Told]) -> Figure:
    """Share of attention on each modality, layer by layer, a panel for each model; CLIP-TD, Figure 3.

    Bands are 95 % intervals, thin lines what even attention over all places would give.
    """
    figure, axes = _panels(len(models))
    for one, model in zip(axes, models, strict=True):
        layers = [row["layer"] for row in model["by_layer"]]
        for kind, (colour, mark) in KINDS.items():
            mean, low, high = (
                [100 * row[kind][end] for row in model["by_layer"]]
                for end in ("mean", "low", "high")
            )
            one.fill_between(layers, low, high, color=colour, alpha=0.2, linewidth=0)
            one.plot(layers, mean, color=colour, marker=mark, markersize=4, label=kind)
            even = 100 * model["uniform"][kind]["mean"]
            one.axhline(even, color=colour, linewidth=0.8, linestyle="dotted")
        one.set_title(model["model"], fontsize=8)
        one.set_ylim(0, 100)
        one.set_xticks(layers, layers, fontsize=7)
    figure.supxlabel("layer", fontsize=9)
    figure.supylabel("attention, %", fontsize=9)
    _legend(figure, axes[0])
    return figure


def by_head(models: Sequence[Told]) -> Figure:
    """Share of attention on text and on image in every head, a row of panels for each model; CLIP-TD, Figure 4."""
    kinds = ("visual", "textual")
    maps = [
        (f"{model['model']}: {kind}", model["layers"], 100 * np.array(model["by_head"][kind]))
        for model in models
        for kind in kinds
    ]
    figure = new_figure(WIDE * len(kinds), HIGH * len(models))
    axes = figure.subplots(len(models), len(kinds), squeeze=False)
    for one, (title, layers, values) in zip(axes.flat, maps, strict=True):
        image = one.imshow(values, vmin=0, vmax=100, cmap=SHADES, aspect="auto")
        one.set_title(title, fontsize=8)
        one.set_yticks(range(len(layers)), layers, fontsize=7)
        one.set_xticks(range(values.shape[1]), range(values.shape[1]), fontsize=7)
    figure.supxlabel("head", fontsize=9)
    figure.supylabel("layer", fontsize=9)
    figure.colorbar(image, ax=axes, label="attention, %")
    return figure


# -- one text and image ------------------------------------------------------------------------------------------------


def heat_maps(maps: Mapping[str, np.ndarray], words: Sequence[str], boxes: Sequence[str]) -> Figure:
    """Attention (W, R) from words to boxes, a panel for each head's title; VisualBERT, Figure 5, ungrouped.

    All panels share one scale, from 0 to the largest share.
    """
    wide = max(WIDE * 0.8, 0.22 * len(boxes) + 0.9)
    figure, axes = _panels(len(maps), wide, max(HIGH, 0.18 * len(words) + 0.8))
    most = max(float(one.max()) for one in maps.values())
    for one, (title, shares) in zip(axes, maps.items(), strict=True):
        image = one.imshow(100 * shares, vmin=0, vmax=100 * most, cmap=SHADES, aspect="auto")
        one.set_title(title, fontsize=9)
        one.set_yticks(range(len(words)), words, fontsize=7)
        one.set_xticks(range(len(boxes)), boxes, fontsize=7, rotation=60, ha="right")
    figure.colorbar(image, ax=axes, label="attention, %")
    return figure
