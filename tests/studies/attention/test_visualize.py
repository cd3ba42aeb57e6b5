"""`groundling visualize`: numbers word by word, texts escaped in pages, one line for mistakes."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers as hf
from tiny import homes, toys
from tiny.attention import TEXT, content_of

import groundling
from groundling.cli import main
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.models.attention import AttentionMap
from groundling.studies.attention.commands import VisualizeConfig
from groundling.studies.attention.page import (
    MAX_PAGE_CHARACTERS,
    AttentionPage,
    ImageTextPair,
    make_page,
)
from groundling.studies.attention.page.attention_views import (
    ModelAttentionView,
    RegionBoxesView,
    WordView,
    pack_attention,
)
from groundling.studies.attention.page.inspected_model import InspectedModel
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import SingleStreamModel


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model, a text encoder, two photos and a store of their regions."""
    folder = tmp_path_factory.mktemp("visualize")
    model = toys.seer()
    (folder / "seer").mkdir()
    model.export(folder / "seer")
    homes.student(folder / "bert")
    for name in ("one", "two"):
        homes.picture(folder / f"photos/{name}.jpg", size=(60, 40))
    writer = RegionWriter(folder / "store")
    writer.write(0, [_found(name) for name in ("one", "two")])
    writer.close({"class_names": list("abcde")})
    rows = [("one.jpg", "a dog runs", "yes"), ("two.jpg", "two cats wait", "no")]
    homes.put(folder / "pairs.csv", homes.table(("image", "text", "label"), *rows))
    return folder


def _found(name: str) -> ImageRegions:
    row = toys.regions(len(name), 3)
    return ImageRegions(name, (60, 40), row.boxes, row.confidence, row.features, row.classes)


def decoded(text: str, heads: int, rows: int, columns: int) -> np.ndarray:
    """A packed block, decoded as in the page's script."""
    raw = base64.b64decode(text)
    largest = np.frombuffer(raw[: 2 * heads * rows], "<u2").reshape(heads, rows, 1) / 65535
    steps = np.frombuffer(raw[2 * heads * rows :], np.uint8).reshape(heads, rows, columns)
    return steps / 255 * largest


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_words_are_the_sum_and_the_mean_of_their_tokens(place: Path) -> None:
    config = VisualizeConfig(regions=str(place / "store"))
    looked = InspectedModel(str(place / "seer"), "cpu", config)
    example = Example("own", TEXT, "it waits", images=("one",))
    view = looked.view(example, place / "photos/one.jpg")
    assert [word.text for word in view.words if word.word_index >= 0] == [
        *TEXT.split(),
        "it",
        "waits",
    ]
    assert [word.text for word in view.words if word.word_index < 0] == ["[CLS]", "[SEP]", "[SEP]"]
    assert set(view.boxes.names) <= set("abcde") and len(view.boxes.names) == 3

    model = load_encoder(place / "seer").eval()
    assert isinstance(model, SingleStreamModel)
    seen = looked._image_inputs("one", place / "photos/one.jpg")
    (sample,) = looked._samples(example, seen).get([0], ())
    told: list[AttentionMap] = []
    model(collate([sample]), attention=told.append)
    # One word has several tokens; otherwise sums and means would be equal.
    tokens = _tokens_of_words(sample.text)
    assert max(len(own) for own in tokens) > 1
    count = len(sample.text.input_ids)
    for layer, one in zip(view.layers, told, strict=True):
        weights = one.weights[0].double().detach().numpy()
        for head in range(layer.heads):
            for i, rows in enumerate(tokens):
                for r in range(3):
                    mean = sum(weights[head, p, count + r] for p in rows) / len(rows)
                    assert layer.blocks["words", "boxes"][head, i, r] == pytest.approx(mean)
                    total = sum(weights[head, count + r, p] for p in rows)
                    assert layer.blocks["boxes", "words"][head, r, i] == pytest.approx(total)
                for j, columns in enumerate(tokens):
                    between = sum(weights[head, p, q] for p in rows for q in columns) / len(rows)
                    assert layer.blocks["words", "words"][head, i, j] == pytest.approx(between)


def _tokens_of_words(text: Any) -> list[list[int]]:
    groups: list[list[int]] = []
    before = -1
    for place, word in enumerate(text.word_ids.tolist()):
        if word >= 0 and word == before:
            groups[-1].append(place)
        else:
            groups.append([place])
        before = word
    return groups


def test_packed_weights_are_off_by_half_a_step_of_their_row() -> None:
    rng = np.random.default_rng(0)
    block = rng.dirichlet(np.ones(40) / 5, (3, 7))
    found = decoded(pack_attention(block), 3, 7, 40)
    largest = block.max(-1, keepdims=True)
    assert np.all(np.abs(found - block) <= largest / 255 / 2 + 2 / 65535)
    assert not pack_attention(np.zeros((2, 3, 0))).strip("A=")  # a model without images


# -- the command -------------------------------------------------------------------------------------------------------


def words_of(place: Path, **flags: str) -> list[str]:
    """A command on your own photo, with changed flags, and without empty ones."""
    given = {"model": str(place / "seer"), "image": str(place / "photos/one.jpg"), "text": TEXT}
    given |= {"regions": str(place / "store"), **flags}
    return [
        word for name, value in given.items() if value for word in (f"--{name}", *value.split("|"))
    ]


def test_a_photo_of_ones_own(place: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "look.html"
    line = ["visualize", *words_of(place, model=f"{place / 'seer'}|{place / 'bert'}"), "--cpu"]
    assert main([*line, "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(out)
    content = content_of(out.read_text())
    (pair,) = content["pairs"]
    seer, bert = pair["views"]
    assert len(seer["boxes"]) == 3 and bert["boxes"] == []
    assert bert["notes"] == ["This model reads the text only."]
    assert [len(layer["blocks"]) for layer in seer["layers"]] == [3, 3]
    replaced = [*line, "--layers", "1", "--heat-maps", "1-0", "--out", str(out)]
    assert main(replaced) == 0  # an older page is replaced
    drawn = json.loads(capsys.readouterr().out)["figures"]
    assert [Path(path).name for path in drawn] == [
        f"look-heat-maps.{ending}" for ending in ("svg", "pdf", "png")
    ]
    assert all(Path(path).stat().st_size for path in drawn)
    (layer,) = content_of(out.read_text())["pairs"][0]["views"][0]["layers"]
    assert layer["number"] == 1


def test_regions_of_other_photos_are_found(place: Path, tmp_path: Path) -> None:
    """Like those of the store."""
    model = hf.ViTModel(
        hf.ViTConfig(
            image_size=16,
            patch_size=8,
            hidden_size=12,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
        )
    )
    vit = homes.home(tmp_path / "vit", model, None)
    hf.CLIPImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(vit)
    settings = {"image": place / "photos/two.jpg", "text": TEXT, "cpu": True}
    grid = ["--grid", "2", "--backbone", str(vit), "--cpu"]
    assert main(["regions", str(place / "photos"), *grid, "--out", str(tmp_path / "both")]) == 0
    shutil.copytree(place / "photos", tmp_path / "photos")
    (tmp_path / "photos/two.jpg").unlink()
    assert main(["regions", str(tmp_path / "photos"), *grid, "--out", str(tmp_path / "one")]) == 0
    stored, found = (
        groundling.visualize(place / "seer", regions=tmp_path / name, **settings)
        for name in ("both", "one")
    )
    boxes = [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]
    assert found.entries[0]["views"][0]["boxes"] == boxes
    layers = [one.entries[0]["views"][0]["layers"] for one in (stored, found)]
    assert layers[0] == layers[1]
    assert "srcdoc=" in found._repr_html_() and "<script" not in found._repr_html_()


def test_many_pairs(place: Path, tmp_path: Path) -> None:
    settings = {"data": place / "pairs.csv", "images": place / "photos", "regions": place / "store"}
    made = groundling.visualize(place / "seer", **settings)
    made.save(tmp_path / "a.html")
    texts = [pair["text"] for pair in content_of((tmp_path / "a.html").read_text())["pairs"]]
    assert texts == ["a dog runs", "two cats wait"]
    assert len(groundling.visualize(place / "seer", limit=1, **settings).entries) == 1


# -- texts stay texts --------------------------------------------------------------------------------------------------

NASTY = '</script><script>alert(1)</script><!-- <b>bold</b> & \u2028 "quotes" {{ title }}'


def test_a_text_cannot_leave_the_page_s_data() -> None:
    made = AttentionPage([(NASTY, [NASTY])])
    made.add(
        ImageTextPair(Example("own", NASTY)),
        [ModelAttentionView([WordView(NASTY, 0)], RegionBoxesView(), [])],
    )
    page = made.html()
    assert content_of(page)["pairs"][0]["text"] == NASTY
    assert page.count("<script") == page.count("</script>") == 2
    assert "<b>" not in page
    assert not re.search(r"https?:", page)


# -- mistakes ----------------------------------------------------------------------------------------------------------

OWN = {"text": "", "image": ""}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"model": ""}, "visualize needs model"),
        ({"text": ""}, "visualize needs text"),
        ({"model": "nowhere"}, "nowhere: "),
        ({"image": "none.jpg"}, "image=none.jpg: no such file"),
        ({"image": "pairs.csv"}, "pairs.csv: does not decode"),
        (
            {"regions": ""},
            "this photo is not in the regions store, and neither model nor store records",
        ),
        ({"heat-maps": "0-0|1-9"}, "heat_maps=1-9: no such head"),
        ({"layers": "7"}, "layers: the model has 2 layers with attention maps"),
        ({**OWN, "data": "pairs.csv"}, "visualize needs images=FOLDER"),
        ({**OWN, "data": "pairs.csv", "images": "photos", "text-column": "x"}, "no column 'x'"),
        (
            {**OWN, "data": "pairs.csv", "images": "photos", "image-column": "text"},
            "no photo 'a dog",
        ),
        ({"out": "look.txt"}, "out=look.txt: expected a file name ending in .html"),
        (
            {"out": "mine.html"},
            "mine.html: exists, and is not a page of `groundling visualize`",
        ),
    ],
)
def test_a_mistake_is_one_line(
    flags: dict[str, str], message: str, place: Path, monkeypatch: Any, capsys: Any
) -> None:
    monkeypatch.chdir(place)
    (place / "mine.html").write_text("<p>mine</p>")
    assert main(["visualize", *words_of(place, **flags), "--cpu"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_a_page_too_heavy_is_refused(monkeypatch: Any) -> None:
    monkeypatch.setattr("groundling.studies.attention.page.MAX_PAGE_CHARACTERS", 1000)
    assert MAX_PAGE_CHARACTERS > 2**24
    made = AttentionPage([("m", [])])
    made.add(
        ImageTextPair(Example("own", "a dog")),
        [ModelAttentionView([WordView("a", 0)], RegionBoxesView(), [])],
    )
    with pytest.raises(
        InputError,
        match=r"a page of 1 pairs and 1 models would be 0 MB; pass a smaller limit",
    ):
        made.html()


def test_stored_boxes_are_not_drawn_on_a_photo_of_another_shape(tmp_path: Path) -> None:
    (tmp_path / "seer").mkdir()
    toys.seer().export(tmp_path / "seer")
    homes.picture(tmp_path / "one.jpg", size=(60, 40))
    row = toys.regions(3, 3)
    writer = RegionWriter(tmp_path / "store")
    writer.write(
        0, [ImageRegions("one", (60, 40), row.boxes, row.confidence, row.features, row.classes)]
    )
    writer.close({"class_names": list("abcde")})
    config = VisualizeConfig(
        model=(str(tmp_path / "seer"),),
        regions=str(tmp_path / "store"),
        image=str(tmp_path / "one.jpg"),
        text="a red dog runs",
        cpu=True,
    )
    assert len(make_page(config).entries) == 1
    homes.picture(tmp_path / "one.jpg", size=(120, 80))  # resized: boxes are shares
    assert len(make_page(config).entries) == 1
    homes.picture(tmp_path / "one.jpg", size=(40, 60))
    with pytest.raises(InputError) as caught:
        make_page(config)
    told = str(caught.value)
    assert f"{tmp_path}/one.jpg: 40 x 60 pixels, but its regions are of 60 x 40" in told
    assert str(tmp_path / "store") in told
