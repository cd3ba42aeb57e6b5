"""The model's answer and even attention on the page of `groundling visualize`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import homes, toys
from tiny.attention import TEXT, content_of

import groundling
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example, collate
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.models.heads import load_head, save_heads
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.attention.commands import VisualizeConfig
from groundling.studies.attention.page.inspected_model import InspectedModel
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import SingleStreamModel


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pre-trained model without heads, the same with a matching head, a fine-tuned one, a store
    and a photo.
    """
    folder = tmp_path_factory.mktemp("answers")
    torch.manual_seed(0)
    model = toys.seer()
    for name in ("seer", "matching"):
        (folder / name).mkdir()
        model.export(folder / name)
    save_heads(folder / "matching", ImageTextMatching(model.sizes).saved_modules())
    homes.picture(folder / "photos/one.jpg", size=(60, 40))
    row = toys.regions(3, 3)
    writer = RegionWriter(folder / "store")
    writer.write(
        0, [ImageRegions("one", (60, 40), row.boxes, row.confidence, row.features, row.classes)]
    )
    writer.close({"class_names": list("abcde")})
    rows = [("is it a dog", "one.jpg", ("yes", "no", "red")[n % 3]) for n in range(12)]
    homes.put(folder / "asked.csv", homes.table(("text", "image", "label"), *rows))
    config = make_settings(
        FinetuneConfig,
        model=str(folder / "seer"),
        data=str(folder / "asked.csv"),
        regions=str(folder / "store"),
        text="text",
        image="image",
        label="label",
        dev=str(folder / "asked.csv"),
        max_length=16,
        seeds=1,
    )
    brief = TrainingArguments(steps=2, batch=4, cpu=True)
    finetune(config, brief, folder / "run")
    return folder


def looked(place: Path, model: str) -> InspectedModel:
    config = VisualizeConfig(regions=str(place / "store"))
    return InspectedModel(str(place / model), "cpu", config)


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
    example = Example("own", TEXT, images=("one",))
    answer = model.view(example, place / "photos/one.jpg").answer
    assert answer is not None and "text match" in answer.title
    seen = model._image_inputs("one", place / "photos/one.jpg")
    samples = model._samples(example, seen).get([0], ())
    student = load_encoder(place / "matching").eval()
    assert isinstance(student, SingleStreamModel)
    head = ImageTextMatching(student.sizes)
    for name, part in head.saved_modules().items():
        assert load_head(place / "matching", part, name)
    batch = collate(samples)
    with torch.no_grad():
        share = head.eval().compute_logits(student(batch), batch).softmax(-1)[0, 1]
    assert answer.ranked == [("yes", pytest.approx(float(share)))]


def test_a_model_without_a_head_says_so(place: Path) -> None:
    example = Example("own", TEXT, images=("one",))
    answer = looked(place, "seer").view(example, place / "photos/one.jpg").answer
    assert answer is not None and answer.title.startswith("No answer") and not answer.ranked


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


def test_even_shares_of_all_places_sum_to_one(place: Path) -> None:
    example = Example("own", TEXT, images=("one",))
    view = looked(place, "seer").view(example, place / "photos/one.jpg")
    places = sum(word.tokens for word in view.words) + len(view.boxes.boxes)
    assert places > len(view.words) + len(view.boxes.boxes), "no word is of several tokens"
    for layer in view.layers:
        for shares in layer.even.values():
            np.testing.assert_allclose(shares, 1 / places)


def test_words_that_a_mask_hides_have_no_part_in_even_attention(tmp_path: Path) -> None:
    made = groundling.visualize(
        homes.seeing_clip(tmp_path / "clip"),
        homes.noise(tmp_path / "noise.png", (70, 40)),
        "a red dog",
        cpu=True,
    )
    (view,) = content_of(made.html())["pairs"][0]["views"]
    (text,) = [one for one in view["layers"] if (one["name"], one["number"]) == ("text", 0)]
    # A causal tower: words attend to themselves and to earlier words.
    assert [tokens for *_, tokens in view["words"]] == [1] * len(view["words"])
    assert text["even"]["words"] == pytest.approx(
        [1 / (1 + place) for place in range(len(view["words"]))], abs=1e-6
    )
