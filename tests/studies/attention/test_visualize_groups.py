"""Heat maps by entity: groups of regions, sums, selection of heads, and checks of the model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import homes
import numpy as np
import pytest
import toys

import groundling
from groundling.cli import main
from groundling.core.errors import InputError
from groundling.data.regions.store import ImageRegions, RegionWriter
from groundling.studies.attention.page.attention_views import (
    RankedHeads,
    RegionBoxesView,
    group_regions,
    sum_groups,
)
from groundling.studies.attention.page.image_text_pairs import PhraseEntity

CAPTION = (
    "a [/EN#1/people wet dog] sees [/EN#2/other 3 $2 trees] and [/EN#1/people the dog] runs to "
    "[/EN#4/other $5 cats]"
)
"""A dog, mentioned twice; trees; cats without a region."""
BOXES = {1: [(1, 1, 50, 50)], 2: [(51, 1, 100, 50), (1, 60, 20, 100)], 4: [(90, 90, 100, 100)]}
SEEN = [
    *([0, 0, 50, 50], [4, 0, 50, 50], [50, 0, 100, 50]),
    *([0, 60, 20, 100], [40, 60, 80, 100], [60, 60, 80, 80]),
]
"""Two regions of the dog, two of the trees, and two of no entity."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Flickr30k Entities' files for one image, its photo, a store, a model and its result of
    `heads`.
    """
    folder = tmp_path_factory.mktemp("groups")
    homes.put(folder / "data/Sentences/7.txt", f"a [/EN#2/other bush]\n{CAPTION}\n")
    corners = ("xmin", "ymin", "xmax", "ymax")
    objects = [
        f"<object><name>{name}</name><bndbox>{''.join(f'<{c}>{n}</{c}>' for c, n in zip(corners, box, strict=True))}"
        "</bndbox></object>"
        for name, boxes in BOXES.items()
        for box in boxes
    ]
    size = "<size><width>100</width><height>100</height></size>"
    annotation = f"<annotation>{size}{''.join(objects)}</annotation>"
    homes.put(folder / "data/Annotations/7.xml", annotation)
    homes.put(folder / "data/val.txt", "7\n")
    homes.picture(folder / "photos/7.jpg", size=(100, 100))
    boxes = np.array(SEEN, np.float32) / 100
    looks = np.random.default_rng(0).normal(size=(len(SEEN), 12)).astype(np.float32)
    looks[4:] *= 6  # words attend to regions of no entity
    confidence = np.linspace(0.9, 0.1, len(SEEN), dtype=np.float32)
    writer = RegionWriter(folder / "store")
    writer.write(0, [ImageRegions("7", (100, 100), boxes, confidence, looks)])
    writer.close({"source": "test"})
    model = toys.seer()
    for layer in model.text.encoder.encoder.layer:  # random weights attend nearly evenly
        layer.attention.self.query.weight.data *= 12
    (folder / "model").mkdir()
    model.export(folder / "model")
    flags = ["--model", f"{folder}/model", "--data", f"{folder}/data", "--regions"]
    line = [
        "heads",
        *flags,
        f"{folder}/store",
        "--min-region-attention",
        "0",
        "--no-shuffled-images-control",
        "--cpu",
    ]
    assert main([*line, "--out", str(folder / "found")]) == 0
    return folder


def settings(place: Path, **more: Any) -> dict[str, Any]:
    given = {"task": "flickr30k", "data": place / "data", "images": place / "photos"}
    return (
        given | {"regions": place / "store", "split": "val", "example": "7#1", "cpu": True} | more
    )


def iou(a: Any, b: Any) -> float:
    """With plain widths."""
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    both = max(wide, 0) * max(high, 0)
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    return both / (sum(areas) - both)


def test_maps_equal_plain_loops_over_the_files(place: Path) -> None:
    made = groundling.visualize(place / "model", heads=place / "found", **settings(place))
    figure = made.figure(["best"])
    view = made.first_view
    assert view is not None
    assert [entry["phrase"] for entry in made.entries] == [
        "wet dog",
        "3 $2 trees",
        "the dog",
        "$5 cats",
    ]
    words = [place for place, word in enumerate(view.words) if word.word_index >= 0]
    columns: dict[str, list[int]] = {"wet dog, the dog": [], "3 $2 trees": []}
    others = []
    for region, box in enumerate(SEEN):
        best, owner = 0.0, ""
        for chain, title in ((1, "wet dog, the dog"), (2, "3 $2 trees")):
            for gold in BOXES[chain]:
                if iou(box, gold) > best:
                    best, owner = iou(box, gold), title
        (columns[owner] if best >= 0.5 else others).append(region)
    assert columns == {"wet dog, the dog": [0, 1], "3 $2 trees": [2, 3]}
    panels = [axes for axes in figure.axes if axes.images]
    heads = [axes.get_title().removeprefix("layer-head ") for axes in panels]
    rows = json.loads((place / "found/result.json").read_text())["heads"]
    assert heads == [
        f"{n}-{max((r for r in rows if r['layer'] == n), key=lambda r: r['accuracy'])['head']}"
        for n in (0, 1)
    ]
    shares = {head: view.shares(head) for head in heads}
    starred = [
        region
        for region in others
        if any(shares[head][word, region] >= 0.1 for head in heads for word in words)
    ]
    assert starred
    titles = [*columns, "$5 cats (no region)"]
    titles += [f"{region} *" for region in starred]
    for head, axes in zip(heads, panels, strict=True):
        told = [label.get_text().replace("\n", " ") for label in axes.get_xticklabels()]
        assert told == titles
        drawn = axes.images[0].get_array()
        for row, word in enumerate(words):
            for column, regions in enumerate([*columns.values(), None, *([r] for r in starred)]):
                if regions is None:
                    assert np.ma.is_masked(drawn[row, column]) or np.isnan(drawn[row, column])
                else:
                    total = sum(shares[head][word, region] for region in regions)
                    assert drawn[row, column] == pytest.approx(100 * total)
    assert len({axes.images[0].get_clim() for axes in panels}) == 1


def test_a_region_goes_to_the_nearest_box_and_is_starred_from_a_tenth() -> None:
    places = np.array(
        [[0, 0, 0.5, 1], [0.2, 0, 0.7, 1], [0.5, 0, 1, 1], [0, 0, 1, 1], [0, 0, 1, 1]]
    )
    boxes = RegionBoxesView(places, np.array([False] * 4 + [True]), ["", "", "", "sky", ""])
    entities = [
        PhraseEntity("left", np.array([[0, 0, 0.5, 1]])),
        PhraseEntity("right", np.array([[0.5, 0, 1, 1], [0.3, 0, 0.8, 1]])),
    ]
    shares = np.array([[[0.1, 0.2, 0.3, 0.09, 0.1]], [[0, 0, 0, 0.1, 0.0]]])
    groups = group_regions(boxes, entities, shares)
    # 1 overlaps the left box by 3/7, a right one by 2/3; 3 covers just half of either.
    told = [(group.title, group.regions.tolist()) for group in groups]
    assert told == [("left", [0, 3]), ("right", [1, 2]), ("whole image *", [4])]
    np.testing.assert_allclose(sum_groups(shares[0], groups), [[0.19, 0.5, 0.1]])
    nothing = group_regions(boxes, [PhraseEntity("far", np.array([[0.9, 0.9, 1, 1]]))], shares)
    names = ["far (no region)", "0 *", "1 *", "2 *", "3 sky *", "whole image *"]
    assert [group.title for group in nothing] == names


def test_a_patch_goes_to_the_smallest_box_around_its_centre() -> None:
    corners = np.stack(np.meshgrid(np.arange(4), np.arange(4)), -1).reshape(-1, 2) / 4
    patches = np.concatenate([[[0, 0, 1, 1]], np.concatenate([corners, corners + 0.25], 1)])
    boxes = RegionBoxesView(patches, np.arange(17) == 0, are_patches=True)
    entities = [
        PhraseEntity("street", np.array([[0, 0, 1, 0.6]])),
        PhraseEntity("man", np.array([[0.3, 0.2, 0.7, 0.9]])),
    ]
    shares = np.zeros((1, 1, 17))
    shares[..., [0, 16]] = 0.2
    told = {one.title: one.regions.tolist() for one in group_regions(boxes, entities, shares)}
    assert told.pop("man") == [6, 7, 10, 11, 14, 15]  # centres at .375 and .625, down to .875
    assert told == {
        "street": [1, 2, 3, 4, 5, 8],
        "class token *": [0],
        "15 *": [16],
    }


def test_the_best_layers_are_shown_in_their_order() -> None:
    rows = [(layer, layer % 3, 1 - abs(layer - 6) / 10) for layer in (6, 5, 7, 4, 8, 3, 9, 2)]
    heads = [("self", layer, head, share) for layer, head, share in rows]
    ranked = RankedHeads("accuracy", [*heads, ("self", 1, 1, 1.0)], active=8, file="result.json")
    assert ranked.best(range(12)) == ["3-0", "4-1", "5-2", "6-0", "7-1", "8-2"]
    assert ranked.best([1, 2, 9]) == ["2-2", "9-0"]
    with pytest.raises(InputError, match=r"result\.json has no active head in the layers shown"):
        ranked.best([1])
    with pytest.raises(InputError, match="heat_maps=best: pass heads"):
        RankedHeads("mass", heads).best(range(12))


def test_the_command_draws_a_caption(place: Path, tmp_path: Path, capsys: Any) -> None:
    flags = ["--task", "flickr30k", "--data", f"{place}/data", "--images", f"{place}/photos"]
    flags += ["--model", f"{place}/model", "--regions", f"{place}/store", "--cpu", "--split", "val"]
    out = ["--heat-maps", "1-0", "--out", str(tmp_path / "look.html")]
    assert main(["visualize", *flags, "--example", "7#1", *out]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["pairs"] == 4 and (tmp_path / "look-heat-maps.svg").stat().st_size
    assert main(["visualize", *flags, "--example", "8", *out]) == 2
    said = capsys.readouterr().err
    assert "example=8: " in said and "has no such image, caption or example" in said
    assert said.count("\n") == 1


# -- whose heads -------------------------------------------------------------------------------------------------------


def test_heads_are_those_of_the_model_wherever_it_lies(place: Path, tmp_path: Path) -> None:
    shutil.copytree(place / "model", tmp_path / "moved")
    own = settings(place, heads=place / "found", limit=1)
    assert groundling.visualize(tmp_path / "moved", **own).ranks[0] == RankedHeads.read(
        place / "found"
    )
    other = tmp_path / "other"
    other.mkdir()
    toys.seer().export(other)
    with pytest.raises(
        InputError, match=r"result\.json: a result of .*model, not of model=.*other;"
    ):
        groundling.visualize(other, **own)
    assert groundling.visualize(other, other_heads=True, **own).entries


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"untrained": True}, "a result of model with random weights, not of model="),
        ({"model": "elsewhere"}, "a result of elsewhere, not of model="),
        ({"more": (2, 0)}, "3 layers of 2 heads, but the model has 2 of 2; pass this model's own"),
        ({"more": (1, 2)}, "2 layers of 3 heads, but the model has 2 of 2; pass this model's own"),
    ],
)
def test_heads_of_another_model_are_refused(
    change: dict[str, Any], message: str, place: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(place)
    result = json.loads((place / "found/result.json").read_text())
    result |= {"model": "model", "weights": ""} | change
    if "more" in change:
        layer, head = change["more"]
        result["heads"].append(result["heads"][0] | {"layer": layer, "head": head})
    homes.put(tmp_path / "result.json", json.dumps(result))
    with pytest.raises(InputError, match=message) as caught:
        groundling.visualize("model", heads=tmp_path, **settings(place))
    assert "\n" not in str(caught.value)
