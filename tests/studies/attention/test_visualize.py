"""`groundling visualize`: numbers word by word, texts escaped in pages, one line for mistakes."""

from __future__ import annotations

import base64
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers as hf
from tiny import homes, toys
from tiny.attention import TEXT, content_of, entities

import groundling
from groundling.cli import main
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Batch, Example, collate
from groundling.core.errors import InputError
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.models.attention import AttentionMap
from groundling.models.heads import load_head, save_heads
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.attention.commands import VisualizeConfig
from groundling.studies.attention.figures import FORMATS
from groundling.studies.attention.page import AttentionPage, ImageTextPair, select_pairs
from groundling.studies.attention.page.views import (
    InspectedModel,
    ModelAttentionView,
    RegionBoxesView,
    WordView,
    pack_attention,
)
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.visualbert import visualbert


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model without heads, the same with a matching head, a fine-tuned one, a text
    encoder, two photos and a store of their regions; a task's files.
    """
    folder = tmp_path_factory.mktemp("visualize")
    torch.manual_seed(0)
    model = toys.seer()
    for name in ("seer", "matching"):
        (folder / name).mkdir()
        model.export(folder / name)
    save_heads(folder / "matching", ImageTextMatching(model.sizes).saved_modules())
    homes.student(folder / "bert")
    writer = RegionWriter(folder / "store")
    for number, name in enumerate(("one", "two")):
        homes.picture(folder / f"photos/{name}.jpg", size=(60, 40))
        row = toys.regions(len(name), 3)
        parts = (row.boxes, row.confidence, row.features, row.classes)
        writer.write(number, [ImageRegions(name, (60, 40), *parts)])
    writer.close({"class_names": list("abcde")})
    pairs = [("one.jpg", "a dog runs", "yes"), ("two.jpg", "two cats wait", "no")]
    homes.put(folder / "pairs.csv", homes.table(("image", "text", "label"), *pairs))
    rows = [("is it a dog", "one.jpg", ("yes", "no", "red")[n % 3]) for n in range(12)]
    asked = homes.put(folder / "asked.csv", homes.table(("text", "image", "label"), *rows))
    columns = {"text": "text", "image": "image", "label": "label"}
    config = make_settings(
        FinetuneConfig,
        **columns,
        model=str(folder / "seer"),
        data=str(asked),
        dev=str(asked),
        regions=str(folder / "store"),
        max_length=16,
        seeds=1,
    )
    finetune(config, TrainingArguments(steps=2, batch=4, cpu=True), folder / "run")
    entities(folder / "flickr30k", CAPTIONS)
    for name in "012":
        homes.picture(folder / f"flickr30k/photos/{name}.jpg", size=(100, 100))
    return folder


def looked(place: Path, model: str) -> InspectedModel:
    config = VisualizeConfig(regions=str(place / "store"))
    return InspectedModel(str(place / model), "cpu", config)


def batch_of(model: InspectedModel, example: Example, photo: Path) -> Batch:
    """The batch that the model reads for its view."""
    sources = model._image_inputs(example.images[0], photo)
    return collate(list(model._samples(example, sources).get([0], ())))


def decoded(text: str, heads: int, rows: int, columns: int) -> np.ndarray:
    """A packed block, decoded as in the page's script."""
    raw = base64.b64decode(text)
    largest = np.frombuffer(raw[: 2 * heads * rows], "<u2").reshape(heads, rows, 1) / 65535
    steps = np.frombuffer(raw[2 * heads * rows :], np.uint8).reshape(heads, rows, columns)
    return steps / 255 * largest


# -- numbers -----------------------------------------------------------------------------------------------------------
def test_words_are_the_sum_and_the_mean_of_their_tokens(place: Path) -> None:
    shown = looked(place, "seer")
    example = Example("own", TEXT, "it waits", images=("one",))
    view = shown.view(example, place / "photos/one.jpg")
    of_text = [word.text for word in view.words if word.word_index >= 0]
    assert of_text == [*TEXT.split(), "it", "waits"]
    assert [word.text for word in view.words if word.word_index < 0] == ["[CLS]", "[SEP]", "[SEP]"]
    assert set(view.boxes.names) <= set("abcde") and len(view.boxes.names) == 3

    batch = batch_of(shown, example, place / "photos/one.jpg")
    told: list[AttentionMap] = []
    load_encoder(place / "seer").eval()(batch, attention=told.append)
    # One word has several tokens; otherwise sums and means would be equal.
    tokens = _tokens_of_words(batch.text.word_ids[0].tolist())
    assert max(len(own) for own in tokens) > 1
    count = batch.text.input_ids.shape[1]
    places = count + len(view.boxes.boxes)
    for layer, one in zip(view.layers, told, strict=True):
        for shares in layer.even.values():
            np.testing.assert_allclose(shares, 1 / places)
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


def _tokens_of_words(word_ids: list[int]) -> list[list[int]]:
    groups: list[list[int]] = []
    for place, word in enumerate(word_ids):
        if word >= 0 and place and word == word_ids[place - 1]:
            groups[-1].append(place)
        else:
            groups.append([place])
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


def test_a_photo_of_ones_own(place, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("groundling.studies.attention.figures.DPI", 60)
    out = tmp_path / "look.html"
    line = ["visualize", *words_of(place, model=f"{place / 'seer'}|{place / 'bert'}"), "--cpu"]
    assert main([*line, "--out", str(out)]) == 0
    assert json.loads(capsys.readouterr().out)["page"] == str(out)
    (pair,) = content_of(out.read_text())["pairs"]
    seer, bert = pair["views"]
    assert len(seer["boxes"]) == 3 and bert["boxes"] == []
    assert bert["notes"] == ["This model reads the text only."]
    assert [len(layer["blocks"]) for layer in seer["layers"]] == [3, 3]
    replaced = [*line, "--layers", "1", "--heat-maps", "1-0", "--out", str(out)]
    assert main(replaced) == 0  # an older page is replaced
    drawn = [Path(path) for path in json.loads(capsys.readouterr().out)["figures"]]
    assert [path.name for path in drawn] == [f"look-heat-maps.{one}" for one in FORMATS]
    assert all(path.stat().st_size for path in drawn)
    (layer,) = content_of(out.read_text())["pairs"][0]["views"][0]["layers"]
    assert layer["number"] == 1


def test_regions_of_other_photos_are_found(place: Path, tmp_path: Path) -> None:
    """Like those of the store."""
    vit = homes.home(tmp_path / "vit", toys.vit(), None)
    hf.CLIPImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(vit)
    grid = ["--grid", "2", "--backbone", str(vit), "--cpu"]
    assert main(["regions", str(place / "photos"), *grid, "--out", str(tmp_path / "both")]) == 0
    shutil.copytree(place / "photos", tmp_path / "photos")
    (tmp_path / "photos/two.jpg").unlink()
    assert main(["regions", str(tmp_path / "photos"), *grid, "--out", str(tmp_path / "one")]) == 0
    words = toys.bert_words()
    visualbert(toys.bert(len(words)), words, width=32).export(tmp_path / "model")
    settings = {"image": place / "photos/two.jpg", "text": TEXT, "cpu": True}
    stored, found = (
        groundling.visualize(tmp_path / "model", regions=tmp_path / name, **settings)
        for name in ("both", "one")
    )
    view = found.entries[0]["views"][0]
    assert view["boxes"] == [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]
    assert view["layers"] == stored.entries[0]["views"][0]["layers"]
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
    view = ModelAttentionView([WordView(NASTY, 0)], RegionBoxesView(), [])
    made.add(ImageTextPair(Example("own", NASTY)), [view])
    page = made.html()
    assert content_of(page)["pairs"][0]["text"] == NASTY
    assert page.count("<script") == page.count("</script>") == 2
    assert "<b>" not in page
    assert not re.search(r"https?:", page)


# -- mistakes ----------------------------------------------------------------------------------------------------------
OF_ROWS = {"text": "", "image": "", "data": "pairs.csv", "images": "photos"}
OF_A_TASK = {"task": "flickr30k", "data": "flickr30k/data", "images": "flickr30k/photos"}


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"text": ""}, "visualize needs text"),
        ({"model": "nowhere"}, "nowhere: "),
        ({"image": "none.jpg"}, "image=none.jpg: no such file"),
        ({"image": "pairs.csv"}, "pairs.csv: does not decode"),
        ({"regions": ""}, "this photo is not in the regions store, and neither model nor store"),
        ({"heat-maps": "0-0|1-9"}, "heat_maps=1-9: no such head"),
        ({"layers": "7"}, "layers: the model has 2 layers with attention maps"),
        ({**OF_ROWS, "images": ""}, "visualize needs images=FOLDER"),
        ({**OF_ROWS, "image-column": "text"}, "no photo 'a dog"),
        ({**OF_A_TASK, "split": "val", "example": "8"}, "example=8: "),
        ({"out": "look.txt"}, "out=look.txt: expected a file name ending in .html"),
    ],
)
def test_a_mistake_is_one_line(flags, message, place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert main(["visualize", *words_of(place, **flags), "--cpu"]) == 2
    said = capsys.readouterr().err
    assert message in said
    assert said.count("\n") == 1


def test_stored_boxes_are_not_drawn_on_a_photo_of_another_shape(place, tmp_path):
    photo = tmp_path / "one.jpg"
    model, example = looked(place, "seer"), Example("own", TEXT, images=("one",))
    homes.picture(photo, size=(120, 80))  # resized: boxes are shares
    assert len(model.view(example, photo).boxes.boxes) == 3
    homes.picture(photo, size=(40, 60))
    told = f"{photo}: 40 x 60 pixels, but its regions are of 60 x 40"
    with pytest.raises(InputError, match=re.escape(told)):
        model.view(example, photo)


# -- a task's examples -------------------------------------------------------------------------------------------------
CAPTIONS = (
    "a [/EN#2/other bush]",
    "a [/EN#1/people wet dog] sees [/EN#2/other 3 $2 trees] and [/EN#1/people the dog] runs",
)
"""A dog, mentioned twice; trees."""


def test_each_phrase_is_a_pair_with_its_boxes(place: Path) -> None:
    task = place / "flickr30k"
    given = {"task": "flickr30k", "data": str(task / "data"), "images": str(task / "photos")}
    pairs = select_pairs(VisualizeConfig(**given, split="val", example="1#1"))
    assert [pair.phrase for pair in pairs] == ["wet dog", "3 $2 trees", "the dog"]
    for pair, left in zip(pairs, (0, 0.5, 0), strict=True):
        assert pair.photo == task / "photos/1.jpg" and pair.gold is not None
        np.testing.assert_allclose(pair.gold, [[left, 0, left + 0.5, 0.5]], atol=0.011)
    given |= {"model": task / "model", "regions": task / "store", "limit": 2}
    page = groundling.visualize(split="val", cpu=True, **given)
    assert [len(entry["gold"]) for entry in page.entries] == [1, 1]


# -- answers and even attention ----------------------------------------------------------------------------------------
def test_a_fine_tuned_models_answer_is_the_one_of_predict(place: Path) -> None:
    made = groundling.visualize(
        place / "run", place / "photos/one.jpg", TEXT, regions=str(place / "store"), cpu=True
    )
    told = content_of(made.html())["pairs"][0]["views"][0]["answer"]
    model = groundling.load(place / "run", device="cpu")
    own = model.predict(TEXT, image="one.jpg", top_k=3, regions=place / "store")
    assert told["title"] == "Answer"
    assert [text for text, _ in told["ranked"]] == [one.answer for one in own.best]
    shares = [share for _, share in told["ranked"]]
    assert shares == pytest.approx([one.probability for one in own.best])
    assert len(shares) == 3 and sum(shares) == pytest.approx(1)


def test_a_pre_trained_model_tells_whether_image_and_text_match(place: Path) -> None:
    model = looked(place, "matching")
    example, photo = Example("own", TEXT, images=("one",)), place / "photos/one.jpg"
    answer = model.view(example, photo).answer
    assert answer is not None and "text match" in answer.title
    student = load_encoder(place / "matching").eval()
    head = ImageTextMatching(student.sizes)
    for name, part in head.saved_modules().items():
        assert load_head(place / "matching", part, name)
    batch = batch_of(model, example, photo)
    with torch.no_grad():
        share = head.eval().compute_logits(student(batch), batch).softmax(-1)[0, 1]
    assert answer.ranked == [("yes", pytest.approx(float(share)))]
    assert looked(place, "seer").view(example, photo).answer is None


def test_a_heat_map_has_a_line_where_even_attention_is(place: Path) -> None:
    made = groundling.visualize(
        place / "seer", place / "photos/one.jpg", TEXT, regions=str(place / "store"), cpu=True
    )
    *_, scale = made.figure(["0-0"]).axes
    assert made.first_view is not None
    layer, _ = made.first_view.layer_of("0-0")
    even = 100 * layer.even["words"].max()
    assert any(list(line.get_ydata()) == [even, even] for line in scale.lines)
    assert f"line: even, {even:.1f}" in scale.get_ylabel()
    low, high = scale.get_ylim()
    assert low <= even <= high


def test_words_that_a_mask_hides_have_no_part_in_even_attention(tmp_path: Path) -> None:
    clip, photo = homes.seeing_clip(tmp_path / "clip"), homes.noise(tmp_path / "a.png", (70, 40))
    page = groundling.visualize(clip, photo, "a red dog", cpu=True)
    (view,) = page.entries[0]["views"]
    (text,) = [one for one in view["layers"] if (one["name"], one["number"]) == ("text", 0)]
    # A causal tower: words attend to themselves and to earlier words.
    assert [tokens for *_, tokens in view["words"]] == [1] * len(view["words"])
    expected = [1 / (1 + place) for place in range(len(view["words"]))]
    assert text["even"]["words"] == pytest.approx(expected, abs=1e-6)
