"""Figures for papers: they show the results' numbers, on shared scales, in valid files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from tiny import homes

from groundling.runs.report import draw_heat_maps
from groundling.studies.attention.figures import (
    BLUE,
    GREEN,
    ORANGE,
    draw_head_accuracies,
    draw_modality,
    write_figures,
)


def heads() -> dict[str, Any]:
    """A result of `groundling heads`: two layers of three heads."""
    rows = [
        {"attention": "self", "layer": layer, "head": head, "accuracy": 10.0 * layer + head}
        | {"active": head == 2}
        for layer in (0, 1)
        for head in range(3)
    ]
    rules = {"confidence": {"value": 7.5}, "chance": {"value": 3.0}}
    return {"measure": "accuracy", "heads": rows, **rules}


def syntax() -> list[dict[str, Any]]:
    told = [{"relation": name, "phrase_is": "head", **heads()} for name in ("det", "amod", "num")]
    told[1]["confidence"] = None
    return [*told, {"relation": "pobj", "phrase_is": "dependent", **heads()}]


def modality() -> dict[str, Any]:
    def told(mean: float) -> dict[str, float]:
        return {"mean": mean, "low": mean - 0.05, "high": mean + 0.05}

    shares = {"visual": 0.2, "textual": 0.7, "special": 0.1}
    row = {kind: told(share) for kind, share in shares.items()}
    model = {
        "model": "a",
        "layers": [0, 1],
        "by_layer": [{"layer": layer, **row} for layer in (0, 1)],
        "uniform": {kind: told(0.3) for kind in shares},
        "by_head": {kind: [[share, share / 2]] * 2 for kind, share in shares.items()},
    }
    return {"models": [model, {**model, "model": "b"}]}


def test_every_head_is_a_dot_and_the_rule_a_line() -> None:
    figure = draw_head_accuracies({"": heads()})
    (axes,) = figure.axes
    active, other = axes.collections
    assert active.get_offsets()[:, 1].tolist() == [2, 12]
    assert other.get_offsets()[:, 1].tolist() == [0, 1, 10, 11]
    assert np.round(other.get_offsets()[:, 0]).tolist() == [0, 0, 1, 1]
    assert active.get_sizes() > other.get_sizes()
    (line,) = axes.lines
    assert set(line.get_ydata()) == {7.5}


def test_a_pointing_result_is_drawn_under_its_own_name() -> None:
    made = heads() | {"measure": "pointing", "confidence": None}
    made["heads"] = [one | {"pointing": one.pop("accuracy")} for one in made["heads"]]
    figure = draw_head_accuracies({"": made})
    assert figure.get_supylabel() == "pointing, %"
    (axes,) = figure.axes
    assert sorted(axes.collections[1].get_offsets()[:, 1]) == [0, 1, 10, 11]
    assert set(axes.lines[0].get_ydata()) == {3.0}  # patches have no confidence


def test_relations_share_their_scales() -> None:
    panels = {f"{one['relation']} (phrase is {one['phrase_is']})": one for one in syntax()}
    figure = draw_head_accuracies(panels)
    shown = [axes for axes in figure.axes if axes.get_title()]
    names = [*(f"{name} (phrase is head)" for name in ("det", "amod", "num"))]
    assert [axes.get_title() for axes in shown] == [*names, "pobj (phrase is dependent)"]
    assert len({(axes.get_xlim(), axes.get_ylim()) for axes in shown}) == 1
    rules = [axes.lines[0].get_ydata()[0] for axes in shown]
    assert rules == [7.5, 3.0, 7.5, 7.5]  # a random region without confidences


def test_modalities_by_layer_and_by_head() -> None:
    lines, maps = draw_modality(modality()).values()  # words only with a teacher
    first, second = lines.axes
    assert first.get_ylim() == second.get_ylim() == (0, 100)
    marked = [line for line in first.lines if line.get_marker() != "None"]
    drawn = {to_hex(line.get_color()).upper(): list(line.get_ydata()) for line in marked}
    expected = {BLUE: [20, 20], ORANGE: [70, 70], GREEN: [10, 10]}
    assert drawn == {colour: pytest.approx(values) for colour, values in expected.items()}
    images = [axes.images[0] for axes in maps.axes if axes.images]
    assert len(images) == 4
    assert {image.get_clim() for image in images} == {(0, 70)}
    assert maps.axes[-1].get_ylabel() == "attention, % (largest: 70.0)"
    np.testing.assert_allclose(images[1].get_array(), [[70, 35], [70, 35]])


def test_attention_stands_above_the_words_that_a_teacher_selects() -> None:
    told = [("a", None, [0.1, 0.2]), ("dog", 0.4, [0.3, 0.0]), ("runs", 0.4, [0.0, 0.1])]
    told += [("fast", -0.2, [0.1, 0.1])]
    words = [{"word": word, "score": score, "attention": own} for word, score, own in told]
    result = modality() | {"selected_words": {"words": 1, "shown": {"text": "", "words": words}}}
    figure = draw_modality(result)["selected_words"]
    scores, *models = figure.axes
    assert [axes.get_title(loc="left") for axes in models] == ["a: attention, %", "b: attention, %"]
    heights = [[bar.get_height() for bar in axes.patches] for axes in figure.axes]
    np.testing.assert_allclose(heights[0], [np.nan, 0.4, 0.4, -0.2])
    np.testing.assert_allclose(heights[1:], [[10, 30, 0, 10], [20, 0, 10, 10]])
    assert models[0].get_ylim() == models[1].get_ylim()
    # With equal scores, the earlier word is selected.
    labels = [text.get_text() for text in models[1].get_xticklabels()]
    assert labels == ["a", "dog *", "runs", "fast"]
    dark = [to_hex(bar.get_facecolor()).upper() == BLUE for bar in scores.patches]
    assert dark == [False, True, False, False]


def test_the_same_figure_is_the_same_bytes(tmp_path: Path) -> None:
    maps = {"0-1": np.array([[0.1, 0.2]])}  # a heat map is an image, which has an id in SVG
    for name in ("one", "other"):
        # A text may contain dollar signs, which start mathematics.
        drawn = {"maps": draw_heat_maps(maps, [r"$\x$"], ["0", r"1 $\x$"], ("box", "word"))}
        write_figures(drawn, tmp_path / name, ["svg", "pdf"])
    assert homes.digests(tmp_path / "one") == homes.digests(tmp_path / "other")


def test_words_over_boxes_share_one_scale() -> None:
    maps = {"0-1": np.array([[0.1, 0.2], [0.3, 0.0]]), "1-0": np.array([[0.5, 0.2], [0.0, 0.0]])}
    figure = draw_heat_maps(maps, ["a", "dog"], ["0 person", "1 ball"], ("box", "word"))
    assert figure.get_supxlabel() == "box"
    images = [axes.images[0] for axes in figure.axes if axes.images]
    assert {image.get_clim() for image in images} == {(0, 50)}
    np.testing.assert_allclose(images[0].get_array(), 100 * maps["0-1"])
