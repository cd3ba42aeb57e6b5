"""Figures of the results of `heads`, `syntax` and `modality`, and of one text and image.

VisualBERT's Figures 3 and 4 (accuracy of heads by layer) and CLIP-TD's Figures 2 to 4 (attention to the words that a
teacher selects, modality importance by layer and by head). The panels of a figure share their scales. Colours are from
Okabe and Ito's palette, and nothing is conveyed by colour alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from groundling.runs.folder import disk_errors
from groundling.runs.report import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    SLANTED,
    add_scale,
    draw_heat_map,
    new_figure,
    new_panels,
    save_figure,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


KINDS = {"visual": (BLUE, "o"), "textual": (ORANGE, "s"), "special": (GREEN, "^")}
"""Colour and marker of each modality."""
FORMATS = ("svg", "pdf", "png")
DPI = 300
HEAD_SPREAD = 0.35
"""Half the width over which a layer's dots are spread, in layers."""

ResultJson = Mapping[str, Any]


def write_figures(
    figures: Mapping[str, Figure], folder: Path, formats: Sequence[str] = ("svg",)
) -> list[Path]:
    """Write each figure in each format, atomically; returns the files."""
    paths = []
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures.items():
        for one in formats:
            paths.append(folder / f"{name}.{one}")
            save_figure(figure, paths[-1], DPI)
    return paths


# -- heads as classifiers ----------------------------------------------------------------------------------------------
def draw_head_accuracies(panels: Mapping[str, ResultJson]) -> Figure:
    """Accuracy of every head by layer, one panel per title; VisualBERT, Figures 3 and 4.

    Active heads are large and dark, others small and light; the grey line is the baseline: the
    region of the highest confidence or, without confidences, a random region.
    """
    measures = list(dict.fromkeys(result["measure"] for result in panels.values()))
    largest = 0.0
    figure, axes = new_panels(len(panels))
    for one, (title, result) in zip(axes, panels.items(), strict=True):
        _dots(one, result["heads"], result["measure"])
        name, rule = "highest confidence", result["confidence"]
        if rule is None:
            name, rule = "a region at random", result["chance"]
        one.axhline(rule["value"], color=GREY, linewidth=1.2, label=name, zorder=1)
        one.set_title(title, fontsize=9)
        largest = max(
            largest, rule["value"], *(head[result["measure"]] for head in result["heads"])
        )
    # Set once for all panels: setting the bottom alone would freeze the top of later panels.
    axes[0].set_ylim(0, min(1.06 * largest, 104) or 1)
    figure.supxlabel("layer", fontsize=9)
    figure.supylabel(f"{' or '.join(measures)}, %", fontsize=9)
    _legend(figure, axes[0])
    return figure


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    place: dict[str, Any] = {"loc": "outside upper center", "ncols": len(labels)}
    figure.legend(handles, labels, frameon=False, fontsize=7, columnspacing=1, **place)


def _dots(axes: Axes, heads: Sequence[ResultJson], measure: str) -> None:
    layers = sorted({(one["attention"], one["layer"]) for one in heads})
    most = max(one["head"] for one in heads)
    # Heads of a layer are spread horizontally in their order, so that equal accuracies do not overlap.
    across = np.linspace(-HEAD_SPREAD, HEAD_SPREAD, most + 1) if most else np.zeros(1)
    looks: dict[bool, dict[str, Any]] = {
        True: {"s": 22, "color": BLUE, "label": "active head", "zorder": 3},
        False: {"s": 7, "color": "#9FC6DC", "label": "other head", "zorder": 2},
    }
    for is_active, look in looks.items():
        chosen = [one for one in heads if bool(one["active"]) == is_active]
        places = [
            layers.index((one["attention"], one["layer"])) + across[one["head"]] for one in chosen
        ]
        axes.scatter(places, [one[measure] for one in chosen], linewidths=0, **look)
    several = len({name for name, _ in layers}) > 1
    names = [f"{name} {number}" if several else str(number) for name, number in layers]
    axes.set_xticks(range(len(layers)), names, fontsize=7)


# -- modality importance -----------------------------------------------------------------------------------------------
def draw_modality(result: ResultJson) -> dict[str, Figure]:
    """The figures of a result of `modality`, by name."""
    models = result["models"]
    figures = {
        "modality_by_layer": draw_importance_by_layer(models),
        "modality_by_head": draw_importance_by_head(models),
    }
    chosen = result.get("selected_words")
    if chosen:
        figures["selected_words"] = draw_selected_words(
            chosen, [model["model"] for model in models]
        )
    return figures


def draw_importance_by_layer(models: Sequence[ResultJson]) -> Figure:
    """Share of attention on each modality by layer, one panel per model; CLIP-TD, Figure 3.

    Bands are 95 % intervals; thin lines are the shares under even attention over all positions.
    """
    figure, axes = new_panels(len(models))
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


def draw_importance_by_head(models: Sequence[ResultJson]) -> Figure:
    """Share of attention on text and on image by head, one row per model; CLIP-TD, Figure 4.

    All panels share one scale, from 0 to the largest share, which its label gives; titles give the
    share under even attention over all positions, in per cent.
    """
    kinds = ("visual", "textual")
    maps = [
        (
            f"{model['model']}: {kind} (even: {100 * model['uniform'][kind]['mean']:.1f})",
            model["layers"],
            100 * np.array(model["by_head"][kind]),
        )
        for model in models
        for kind in kinds
    ]
    figure = new_figure(PANEL_WIDTH * len(kinds), PANEL_HEIGHT * len(models))
    axes = figure.subplots(len(models), len(kinds), squeeze=False)
    most = max(float(values.max()) for _, _, values in maps)
    for one, (title, layers, values) in zip(axes.flat, maps, strict=True):
        image = draw_heat_map(one, values, most, layers)
        one.set_title(title, fontsize=8)
        one.set_xticks(range(values.shape[1]), range(values.shape[1]), fontsize=7)
    figure.supxlabel("head", fontsize=9)
    figure.supylabel("layer", fontsize=9)
    add_scale(figure, list(axes.flat), image, most)
    return figure


def draw_selected_words(summary: ResultJson, names: Sequence[str]) -> Figure:
    """A teacher's scores of words, and each model's attention to them; CLIP-TD, Figure 2.

    One text, word by word; `summary` is `selected_words` of `groundling modality`, `names` are the
    models' names. Selected words are dark and starred; words that are no candidates have no score.
    """
    words = summary["shown"]["words"]
    scores = [word["score"] for word in words]
    ranked = sorted(
        (place for place, score in enumerate(scores) if score is not None),
        key=lambda place: -scores[place],
    )  # ties go to the earlier word, as in the teacher
    selected = set(ranked[: summary["words"]])
    bars = [("teacher's score", [np.nan if score is None else score for score in scores])]
    for number, name in enumerate(names):
        bars.append((f"{name}: attention, %", [100 * word["attention"][number] for word in words]))
    figure = new_figure(max(PANEL_WIDTH * 1.5, 0.24 * len(words) + 1.2), 1.25 * len(bars) + 0.6)
    axes = figure.subplots(len(bars), 1, sharex=True)
    largest = max(max(heights) for _, heights in bars[1:])
    for row, (panel, (title, heights)) in enumerate(zip(axes, bars, strict=True)):
        colours = [BLUE if place in selected else "#9FC6DC" for place in range(len(words))]
        panel.bar(range(len(words)), heights, color=colours)
        panel.axhline(0, color=GREY, linewidth=0.8)
        panel.set_title(title, fontsize=8, loc="left")
        panel.tick_params(axis="y", labelsize=7)
        panel.spines[["top", "right"]].set_visible(False)
        if row:  # models share a scale; the teacher has its own
            panel.set_ylim(0, 1.06 * largest if largest else 1)
    labels = [
        f"{word['word']} *" if place in selected else word["word"]
        for place, word in enumerate(words)
    ]
    axes[-1].set_xticks(range(len(words)), labels, **SLANTED)
    figure.supxlabel("word (*: selected)", fontsize=9)
    return figure
