"""VL-BERT's own recipes: segments, classes, names, mirrored pictures, budgets, and what its heads start from.

B22: text and boxes in a budget, losses and heads, pixels without pre-training; B24: segments into the CNN, flips.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import homes, toys
from tiny.homes import STEPS, log_of, put
from tiny.regions import store
from tiny.seeing import resnet
from tiny.tasks import vqa
from transformers import BertForMaskedLM

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.core.batch import Batch, EncoderOutput, Example, OutputSizes, Regions, collate
from groundling.core.errors import InputError
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    RegionSelection,
    Regression,
    with_loss,
)
from groundling.core.rng import generator
from groundling.data.image_samples import (
    LeftRightWordSwap,
    PixelDataset,
    RandomFlipDataset,
    mirrored_regions,
)
from groundling.data.regions import ImageRegions, RegionStore, RegionWriter
from groundling.data.regions.annotations import CLASSES, class_names, read_vcr_objects
from groundling.data.regions.samples import (
    RegionDataset,
    RegionOptions,
    add_whole_image,
    truncate_to_budget,
)
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.heads import init_layer, save_heads
from groundling.models.task_heads import HeadContext, make_plain_head
from groundling.objectives import ObjectiveContext, find_objective
from groundling.objectives.masked_regions import MaskedRegionModeling, UnmaskedRegionClassification
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings, replace_settings
from groundling.vision_language.end_to_end import EndToEndModel, mask_boxes
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.vlbert import (
    NAMES,
    VLBertChoiceHead,
    VLBertRegionHead,
    VLBertVqaHead,
)

OBJECTS = ["person", "pottedplant", "person", "cellphone"]
BOXES = [[10, 5, 50, 45, 0.9], [0, 0, 80, 30, 0.8], [50, 10, 80, 50, 0.7], [30, 20, 60, 40, 0.9]]
SIZE = (80, 50)
TWO = replace(STEPS, steps=2, batch=4)


# -- VCR, from its files to a score ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VCR's files and stills, a store of them, a BERT and a ResNet."""
    folder = tmp_path_factory.mktemp("vcr")
    rng = np.random.default_rng(1)
    for n in range(3):
        still = folder / f"vcr1images/film/{n}"
        put(still.with_suffix(".jpg"), b"")
        Image.fromarray(rng.integers(0, 256, (50, 80, 3), dtype=np.uint8)).save(f"{still}.jpg")
        halves = [[[[x, y], [x, v], [(x + u) / 2, v], [(x + u) / 2, y]]] for x, y, u, v, _ in BOXES]
        about = {"boxes": BOXES, "segms": [*halves[:3], []], "names": OBJECTS}
        about |= {"width": SIZE[0], "height": SIZE[1]}
        put(still.with_suffix(".json"), json.dumps(about))
    for split, count in (("train", 8), ("val", 4)):
        rows = [
            {
                "img_fn": f"film/{n % 3}.jpg",
                "annot_id": f"{split}-{n}",
                "objects": OBJECTS,
                "question": ["why", "is", [0, 2], "near", [1], "?"],
                "answer_choices": [["a", [2], "."], ["no", "."], [[n % 4], "."], ["b", "."]],
                "answer_label": n % 4,
                "rationale_choices": [["a"], ["b"], ["c"], ["d"]],
                "rationale_label": 0,
            }
            for n in range(count)
        ]
        put(folder / f"{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    homes.student(folder / "bert")
    resnet(folder / "resnet")
    config = make_settings(
        RegionsConfig,
        images=str(folder / "vcr1images"),
        boxes=str(folder / "vcr1images"),
        backbone=str(folder / "resnet"),
        shortest_edge=64,
        cpu=True,
    )
    regions(config, folder / "store")
    regions(replace_settings(config, add_whole_image=True), folder / "whole")
    return folder


@pytest.fixture(scope="module")
def settings(place: Path) -> FinetuneConfig:
    return make_settings(
        FinetuneConfig,
        model=str(place / "bert"),
        architecture="vlbert",
        task="vcr/answer",
        data=str(place),
        regions=str(place / "store"),
        images=str(place / "vcr1images"),
        backbone=str(place / "resnet"),
        shortest_edge=40,
        max_length=24,
    )


def test_a_store_of_vcr_holds_segments_and_cocos_classes(place: Path) -> None:
    objects = read_vcr_objects(place / "vcr1images/film/0.json")
    covers = objects.masks()
    assert covers.shape == (4, 14, 14) and covers[:3].any((1, 2)).all()
    assert covers[0, :, :7].all() and not covers[0, :, 7:].any()  # the left half of the box
    assert covers[3].all()  # no polygon: the whole box
    for name, first in (("store", 0), ("whole", 1)):
        seen = RegionStore(place / name, features=False)
        assert seen.has_segmentations
        cover = seen["film/0"].segmentation
        assert cover is not None and cover.dtype == bool and len(cover) == first + 4
        assert np.array_equal(cover[first:], covers) and cover[:first].all()
        assert (
            RegionStore(place / name)["film/0"].segmentation is None
        )  # features are there already
        classes = seen["film/0"].classes
        assert classes is not None and seen.classes == 80 and not classes[:first].any()
        named = [CLASSES[number] for number in classes[first:].argmax(1)]
        assert named == OBJECTS
    assert len(CLASSES) == len(set(CLASSES)) == 80 and (CLASSES[0], CLASSES[79]) == (
        "person",
        "toothbrush",
    )
    assert class_names(["thing", "dog"]) == ["dog", "thing"] != class_names(["dog"])


def test_damaged_segments_are_named(place: Path, tmp_path: Path) -> None:
    cover = np.ones((2, 14, 14), bool)
    boxes = np.tile(np.float32([0, 0, 1, 1]), (2, 1))
    found = ImageRegions("a", (9, 9), boxes, np.ones(2), np.ones((2, 3)), segmentation=cover)
    writer = RegionWriter(tmp_path / "some")
    with pytest.raises(InputError, match="records have different arrays"):
        writer.write(0, [found, replace(found, id="b", segmentation=None)])
    for field, value in (("segms", None), ("segms", [[], []]), ("names", ["dog"])):
        about = json.loads((place / "vcr1images/film/0.json").read_text()) | {field: value}
        path = put(tmp_path / "vcr/0.json", json.dumps(about))
        with pytest.raises(InputError, match=r"0\.json: ") as caught:
            read_vcr_objects(path)
        assert "\n" not in str(caught.value)


def test_a_new_end_to_end_model_learns_vcr_as_the_paper_does(
    settings: FinetuneConfig, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = replace_settings(settings, save_model=True, longest_edge=50)
    finetune(config, TWO, tmp_path / "paper")
    result = json.loads((tmp_path / "paper/seed-0/result.json").read_text())
    assert result["objectives"] == ["supervised", "region_classes"] and "notes" not in result
    assert {"task", "region_classes"} <= log_of(tmp_path / "paper/seed-0")[0].keys()
    model = load_encoder(tmp_path / "paper/seed-0/model")
    assert isinstance(model, EndToEndModel) and (model.side, model.longest_edge) == (40, 50)
    assert model.regions_provenance
    finetune(replace_settings(settings, auxiliary_losses=False), TWO, tmp_path / "alone")
    assert log_of(tmp_path / "alone/seed-0")[0].keys().isdisjoint({"region_classes"})
    # A store from before, without segments and without classes.
    plain = store(tmp_path / "plain", [f"film/{n}" for n in range(3)], classes=0, objects=4)
    capsys.readouterr()
    with pytest.raises(InputError, match="the regions have no classes"):
        finetune(replace_settings(settings, regions=str(plain)), TWO, tmp_path / "no")
    finetune(
        replace_settings(settings, regions=str(plain), auxiliary_losses=False),
        TWO,
        tmp_path / "old",
    )
    assert "plain: whole boxes are used" in capsys.readouterr().err
    assert json.loads((tmp_path / "old/seed-0/result.json").read_text())["notes"]


def test_sides_change_when_a_model_is_fine_tuned(settings: FinetuneConfig, tmp_path: Path) -> None:
    first = replace_settings(settings, save_model=True)
    finetune(first, TWO, tmp_path / "first")
    model = str(tmp_path / "first/seed-0/model")
    again = replace_settings(
        first, model=model, architecture="", backbone="", shortest_edge=0, longest_edge=60
    )
    finetune(again, TWO, tmp_path / "again")
    kept = load_encoder(tmp_path / "again/seed-0/model")
    assert isinstance(kept, EndToEndModel) and (kept.side, kept.longest_edge) == (40, 60)
    before = load_encoder(model)
    assert isinstance(before, EndToEndModel) and (before.side, before.longest_edge) == (40, 0)
    with pytest.raises(InputError, match="longest_edge=30: less than the short side, 40"):
        finetune(replace_settings(again, longest_edge=30), TWO, tmp_path / "no")
    with pytest.raises(InputError, match="uniter reads stored features"):
        finetune(replace_settings(settings, architecture="uniter"), TWO, tmp_path / "uniter")


# -- the classes of regions --------------------------------------------------------------------------------------------


def seen_regions() -> Regions:
    """Two rows of 3 regions of 4 classes, one of them without any, and one place that is none."""
    classes = torch.zeros(2, 3, 4)
    classes[0, 1, 2] = classes[0, 2, 0] = 1
    classes[1, 1] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    mask = torch.tensor([[True, True, True], [True, True, False]])
    nothing = torch.zeros(2, 3)
    whole = torch.tensor([[True, False, False]] * 2)
    return Regions(
        torch.zeros(2, 3, 1), torch.zeros(2, 3, 4), mask, nothing.long(), whole, nothing, classes
    )


def test_every_region_has_its_class_and_the_whole_image_none() -> None:
    batch = Batch(ids=("a",), regions=seen_regions())
    sizes = OutputSizes(text=8, visual=8, classes=4, background=False)
    objective = UnmaskedRegionClassification(sizes)
    assert objective.classify.out_features == 5
    states = torch.randn(2, 3, 8)
    (loss,) = objective(EncoderOutput(visual=states), batch).values()
    rows, expected = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)], [0, 3, 1, 0, 4]
    with torch.no_grad():
        hidden = torch.stack([states[row] for row in rows])
        hidden = F.gelu(objective.between[0](hidden))
        logs = objective.classify(hidden).log_softmax(-1)
    assert loss.item() == pytest.approx(
        -sum(float(logs[n, label]) for n, label in enumerate(expected)), rel=1e-5
    )
    assert objective.count(batch) == {"region_classes": 5}
    # Where the first class is none already, nothing stands before it.
    with_none = UnmaskedRegionClassification(sizes._replace(background=True))
    assert with_none.classify.out_features == 4
    assert with_none.labels(seen_regions()).tolist() == [[0, 2, 0], [0, 3, 0]]


def test_region_classes_start_from_masked_regions(tmp_path: Path) -> None:
    sizes = OutputSizes(text=8, visual=8, classes=4)
    earlier = MaskedRegionModeling(sizes)
    save_heads(tmp_path, earlier.saved_modules())
    made = find_objective("region_classes").from_context(ObjectiveContext(sizes))
    done = [init_layer(layer, tmp_path, name) for layer, name in made.pretrained_layers()]
    assert done == [True, False]
    assert torch.equal(made.between[0].weight, earlier.head[0].weight)  # type: ignore[index, union-attr]
    with pytest.raises(InputError, match="the regions have no classes"):
        find_objective("region_classes").from_context(ObjectiveContext(sizes._replace(classes=0)))


# -- names -------------------------------------------------------------------------------------------------------------


def test_persons_have_names_that_go_round() -> None:
    head = VLBertChoiceHead(
        HeadContext(OutputSizes(text=8, pooler_output=8), MultipleChoice(tuple("0123")))
    )
    example = Example(
        "vcr-1",
        "Why is Casey Jessie near dog ?",
        choices=("Quinn left .", "No ."),
        region_tags=((7, 12, 0), (13, 19, 2), (25, 28, 3)),
        choice_region_tags=(((0, 5, 14),), ()),
        tag_lists=((13,), (), ()),
        object_count=20,
    )
    asked = head.prepare_example(example)
    names = [asked.text[start:stop] for start, stop, _ in asked.region_tags]
    first = NAMES.index(names[0])
    assert names == [NAMES[first], NAMES[(first + 2) % 13], "dog"]
    assert asked.text == f"Why is {names[0]} and {names[1]} near dog ?"
    other = NAMES[(first + 14) % 13]
    assert asked.choices == (f"{other} left .", "No .")
    assert asked.choice_region_tags == (((0, len(other), 14),), ()) and asked.object_count == 20
    assert head.prepare_example(example) == asked  # whenever it is asked
    starts = Counter(
        head.prepare_example(replace(example, id=f"vcr-{n}")).text[7:10] for n in range(400)
    )
    assert len(starts) == len(NAMES) == 13 and max(starts.values()) < 70
    assert head.prepare_example(Example("plain", "no tags", choices=("a", "b"))).choices == (
        "a",
        "b",
    )


# -- mirrored pictures -------------------------------------------------------------------------------------------------


def test_left_and_right_change_places() -> None:
    example = Example(
        "a",
        "Left of the dog, right?",
        "the left bright one",
        np.array([[0, 1], [1, 0.3], [2, 0.6], [-100, -100]], np.float32),
        region_tags=((12, 15, 4),),
    )
    turned = LeftRightWordSwap(("left side", "right side", "left"))(example)
    assert turned.text == "Right of the dog, left?" and turned.text_pair == "the right bright one"
    (start, stop, number) = turned.region_tags[0]
    assert (turned.text[start:stop], number) == ("dog", 4)
    assert isinstance(turned.label, np.ndarray) and turned.label.dtype == np.float32
    # An answer whose counterpart is no answer counts for nothing, as the padding does.
    expected = np.array([[1, 1], [0, 0.3], [-1, 0.6], [-100, -100]], np.float32)
    assert np.array_equal(turned.label, expected)
    form = OpenAnswer(("left side", "right side", "left"))
    outputs = torch.randn(1, 3)
    found = form.loss(outputs, torch.from_numpy(turned.label[None]))
    wanted = form.loss(outputs, torch.tensor([[0.3, 1.0, 0.0]]))
    assert torch.equal(found, wanted)
    assert LeftRightWordSwap(("left", "right"))(replace(example, label=1)).label == 0
    assert LeftRightWordSwap(("left", "no"))(replace(example, label=0)).label == 0
    assert LeftRightWordSwap()(replace(example, label=0.5)).label == 0.5
    choices = LeftRightWordSwap()(Example("b", "x", label=1, choices=("on the left", "no")))
    assert (choices.choices, choices.choice_region_tags, choices.label) == (
        ("on the right", "no"),
        (),
        1,
    )


def test_boxes_and_segments_turn_with_the_pixels() -> None:
    """What lies under a mirrored box is what lay under the box, mirrored; twice is once more the same."""
    width = 20
    corners = np.float32([[0, 0, 19, 9], [3, 2, 7, 6], [10, 0, 19, 9]]) / [20, 10, 20, 10]
    row = replace(toys.regions(0, 3), boxes=corners.astype(np.float32))
    row = replace(row, is_whole_image=np.array([True, False, False]))
    row = replace(row, segmentation=np.random.default_rng(0).random((3, 14, 14)) < 0.5)
    turned = mirrored_regions(row, width)
    assert turned.segmentation is not None and row.segmentation is not None
    assert np.array_equal(turned.segmentation, row.segmentation[:, :, ::-1])
    assert np.array_equal(turned.boxes[0], row.boxes[0])
    np.testing.assert_allclose(mirrored_regions(turned, width).boxes, row.boxes, atol=1e-6)
    sides = torch.tensor([20, 10, 20, 10])
    for number in range(3):
        masked = torch.tensor([[True]])
        spots = [
            mask_boxes(
                torch.from_numpy(one.boxes[None, number : number + 1]) * sides + 1e-3,
                masked,
                20,
                10,
            )
            for one in (row, turned)
        ]
        assert spots[0].any() and torch.equal(spots[1], spots[0].flip(-1))


def test_half_of_the_draws_are_mirrored_by_a_key_of_their_own(place: Path) -> None:
    example = Example("vcr-1", "left of it", choices=("a", "b"), images=("film/0",))
    words = TextRowEncoder(toys.bert_words(), 8)
    kept = RegionStore(place / "store", features=False)

    def pictured(one: Example) -> PixelDataset:
        seen = RegionDataset(
            TextDataset([one], words), kept, RegionOptions(whole_image=True, last_pixel=True)
        )
        return PixelDataset(seen, place / "vcr1images", 25, 30)

    plain = pictured(example)
    both = RandomFlipDataset(plain, pictured(replace(example, text="right of it")))
    assert (both.ids, len(both)) == (["vcr-1"], 1)
    (straight,) = plain.get([0], ())
    assert straight.pixels is not None and straight.pixels.shape == (3, 19, 30)
    turned = 0
    for epoch in range(60):
        (one,) = both.get([0], [generator(0, epoch, "vcr-1", "sample")])
        (again,) = both.get([0], [generator(0, epoch, "vcr-1", "sample")])
        assert one.pixels is not None and np.array_equal(one.pixels, again.pixels)
        is_turned = not np.array_equal(one.pixels, straight.pixels)
        turned += is_turned
        if is_turned:
            assert np.array_equal(one.pixels, straight.pixels[:, :, ::-1])
        for choice, original in zip(one.choices, straight.choices, strict=True):
            assert choice.regions is not None and original.regions is not None
            expected = mirrored_regions(original.regions, 30) if is_turned else original.regions
            assert np.array_equal(choice.regions.boxes, expected.boxes)
            assert choice.regions.segmentation is not None and expected.segmentation is not None
            assert np.array_equal(choice.regions.segmentation, expected.segmentation)
            assert np.array_equal(choice.text.input_ids, original.text.input_ids) != is_turned  # type: ignore[union-attr]
    assert 18 < turned < 42
    batch = collate([one, straight])  # flipped views are copied
    assert batch.pixels is not None and batch.pixels.is_contiguous()


def test_flips_change_training_and_can_be_left_out(place: Path, tmp_path: Path) -> None:
    """VQA turns words and answers; without flip, two runs see the same pixels."""
    folder = vqa(tmp_path / "vqa")
    names = [f"COCO_{split}2014_{n:012d}" for split in ("train", "val") for n in range(16)]
    for name in names:
        noise = np.random.default_rng(sum(name.encode())).integers(0, 256, (40, 60, 3))
        Image.fromarray(noise.astype(np.uint8)).save(put(tmp_path / f"images/{name}.png", b""))
    config = make_settings(
        FinetuneConfig,
        model=str(place / "bert"),
        architecture="vlbert",
        task="vqa",
        data=str(folder),
        regions=str(store(tmp_path / "store", names)),
        images=str(tmp_path / "images"),
        backbone=str(place / "resnet"),
        shortest_edge=40,
        max_length=16,
    )
    first = {}
    for name, flip in (("on", True), ("off", False)):
        finetune(replace_settings(config, flip=flip), TWO, tmp_path / name)
        first[name] = [line["task"] for line in log_of(tmp_path / name / "seed-0")]
    assert first["on"] != first["off"]


# -- a budget of places ------------------------------------------------------------------------------------------------


def cut_as_released(text: int, boxes: int, budget: int) -> tuple[int, int]:
    """The release's loop, step by step."""
    while text + boxes > budget and text > 0 and boxes > 0:
        if boxes > text:
            boxes -= 1
        else:
            text -= 1
    return max(text, 2), max(boxes, 1)


def test_the_longer_side_is_cut_as_in_the_release() -> None:
    long = TextDataset(
        [Example("a", " ".join(toys.sentences()[:9]))], TextRowEncoder(toys.bert_words(), 60)
    )
    (made,) = long.get([0])
    assert made.text is not None
    for tokens in (3, 12, 30, 50):
        short = replace(
            made.text,
            **{
                name: made.text.__dict__[name][:tokens]
                for name in ("input_ids", "special_tokens_mask", "word_ids", "token_type_ids")
            },
        )
        sample = replace(made, text=short, truncated_tokens=0)
        for count in (1, 7, 29, 40):
            row = add_whole_image(toys.regions(0, count))
            for budget in (6, 20, 33, 64):
                found, kept = truncate_to_budget(sample, row, budget)
                assert found.text is not None
                sizes = (len(found.text.input_ids), len(kept))
                assert sizes == cut_as_released(tokens, count + 1, budget)
                assert (
                    found.truncated_tokens == tokens - sizes[0]
                    and found.truncated_regions == count + 1 - sizes[1]
                )
                assert found.text.input_ids[-1] == short.input_ids[-1] and kept.is_whole_image[0]
                assert np.array_equal(found.text.input_ids[:-1], short.input_ids[: sizes[0] - 1])
    assert truncate_to_budget(made, row, 0) == (made, row)


def test_choices_share_the_regions_that_the_longest_leaves_room_for() -> None:
    example = Example("a", "a dog", choices=("cat", " ".join(toys.sentences()[:4])), images=("i",))
    texts = TextDataset([example], TextRowEncoder(toys.bert_words(), 40))
    shelf = toys.RegionDict({"i": toys.regions(0, 30)})
    (found,) = RegionDataset(texts, shelf, RegionOptions(max_sequence=24)).get([0], ())
    (plain,) = texts.get([0])
    longest = max(len(choice.text.input_ids) for choice in plain.choices)  # type: ignore[union-attr]
    text, boxes = cut_as_released(longest, 30, 24)
    assert [len(choice.regions) for choice in found.choices] == [boxes] * 2  # type: ignore[arg-type]
    assert [len(choice.text.input_ids) for choice in found.choices][1] == text  # type: ignore[union-attr]
    assert (
        found.truncated_regions == 30 - boxes
        and found.truncated_tokens - plain.truncated_tokens == longest - text
    )
    batch = collate([found])
    assert (batch.truncated_regions, batch.truncated_tokens) == (
        found.truncated_regions,
        found.truncated_tokens,
    )


def test_a_budget_is_counted_and_checked(place: Path, tmp_path: Path) -> None:
    names = [f"{n:03d}" for n in range(6)]
    captions = "\n".join(f"{n}.jpg#0\t{' '.join(['a dog'] * 12)}" for n in names)
    config = make_settings(
        PretrainConfig,
        architecture="vlbert",
        model=str(place / "bert"),
        regions=str(store(tmp_path / "store", names)),
        captions=str(put(tmp_path / "some.token.txt", captions + "\n")),
        max_length=24,
        max_total_length=5,
    )
    result = pretrain(config, replace(TWO, steps=1, batch=6), tmp_path / "run")
    kept = RegionStore(tmp_path / "store")
    sizes = [cut_as_released(24, kept.count(name) + 1, 5) for name in names]
    assert result["truncated_regions"] == sum(
        kept.count(name) + 1 - boxes for name, (_, boxes) in zip(names, sizes, strict=True)
    )
    assert result["truncated_regions"] > 0
    caption = Example("a", " ".join(["a dog"] * 12))
    (alone,) = TextDataset([caption], TextRowEncoder(homes.words(), 24)).get([0])
    assert result["truncated_tokens"] == 6 * alone.truncated_tokens + sum(
        24 - text for text, _ in sizes
    )
    with pytest.raises(InputError, match="max_total_length=2: no room for two tokens and a region"):
        pretrain(replace_settings(config, max_total_length=2), TWO, tmp_path / "no")
    texts = TextDataset(
        [Example("a", "b", images=("000", "001"))], TextRowEncoder(toys.bert_words(), 9)
    )
    with pytest.raises(InputError, match=r"a: 2 images .*max_total_length=9"):
        RegionDataset(texts, kept, RegionOptions(max_sequence=9))


# -- heads and losses --------------------------------------------------------------------------------------------------


def test_vqa_starts_from_berts_own_transform(place: Path, tmp_path: Path) -> None:
    words = homes.words()
    bert = toys.bert(len(words))
    torch.manual_seed(2)
    folder = homes.home(tmp_path / "masked", BertForMaskedLM(bert.config), words)
    transform = BertForMaskedLM.from_pretrained(folder).cls.predictions.transform
    model = load_encoder(folder)
    reading = HeadContext(model.sizes, OpenAnswer(("yes", "no")), words)
    head = VLBertVqaHead(reading)
    assert [init_layer(layer, folder, name) for layer, name in head.pretrained_layers()] == [
        True
    ] * 2
    assert torch.equal(head.between[0].weight, transform.dense.weight)
    assert torch.equal(head.between[2].bias, transform.LayerNorm.bias)
    # An earlier run's head counts more, and a folder without any leaves the layer new.
    earlier = VLBertVqaHead(reading)
    names = dict(zip(["dense", "LayerNorm"], [earlier.between[0], earlier.between[2]], strict=True))
    save_heads(
        folder,
        {
            f"masked_lm.head.cls.predictions.transform.{name}": layer
            for name, layer in names.items()
        },
    )
    assert all(init_layer(layer, folder, name) for layer, name in head.pretrained_layers())
    assert torch.equal(head.between[0].weight, earlier.between[0].weight)
    bare = homes.student(tmp_path / "bare")
    assert not any(init_layer(layer, bare, name) for layer, name in head.pretrained_layers())
    wide = [
        init_layer(torch.nn.Linear(3, 3), folder, "masked_lm.head.cls.predictions.transform.dense")
    ]
    assert wide == [False]


def test_vqa_without_pretraining_reaches_the_saved_head(place: Path, tmp_path: Path) -> None:
    torch.manual_seed(2)
    model = BertForMaskedLM(toys.bert(len(homes.words())).config)
    folder = homes.home(tmp_path / "masked", model, homes.words())
    data = vqa(tmp_path / "vqa")
    names = [f"COCO_{split}2014_{n:012d}" for split in ("train", "val") for n in range(16)]
    config = make_settings(
        FinetuneConfig,
        model=str(folder),
        architecture="vlbert",
        task="vqa",
        data=str(data),
        regions=str(store(tmp_path / "store", names)),
        max_length=16,
        save_model=True,
    )
    finetune(config, replace(TWO, lr=0.0), tmp_path / "run")
    again = torch.nn.Linear(*model.cls.predictions.transform.dense.weight.T.shape)
    kept = tmp_path / "run/seed-0/model"
    assert init_layer(again, kept, "supervised.head.between.0")
    torch.testing.assert_close(again.weight, model.cls.predictions.transform.dense.weight)


def test_refcoco_takes_the_mean_over_regions_and_drops_nothing_out() -> None:
    sizes = OutputSizes(text=8, visual=8)
    head = VLBertRegionHead(HeadContext(sizes, RegionSelection()))
    assert head.dropout.p == 0
    objective = SupervisedObjective(sizes, output_type=RegionSelection("regions", "ce"), head=head)
    labels = torch.tensor([[1, 0, 0, -100], [0, 1, 1, 0]])
    batch = Batch(ids=("a", "b"), labels={"label": labels})
    outputs = torch.randn(2, 4)
    encoded = EncoderOutput(heads={"supervised": outputs})
    (loss,) = objective(encoded, batch).values()
    assert objective.count(batch) == {"task": 7}
    there = labels >= 0
    expected = F.binary_cross_entropy_with_logits(outputs[there], labels[there].float())
    assert (loss / 7).item() == pytest.approx(expected.item(), rel=1e-5)
    # Other heads, and this one with a softmax, count samples as before.
    plain = SupervisedObjective(
        sizes,
        output_type=RegionSelection(),
        head=make_plain_head(HeadContext(sizes, RegionSelection())),
    )
    softmax = SupervisedObjective(sizes, output_type=RegionSelection(), head=head, loss="ce")
    assert plain.count(batch) == softmax.count(batch) == {"task": 2}


def test_vcr_takes_the_mean_over_choices() -> None:
    form = MultipleChoice(tuple("0123"))
    sizes = OutputSizes(text=8, pooler_output=8)
    head = VLBertChoiceHead(HeadContext(sizes, form))
    texts = TextDataset(
        [Example("a", "b", label=2, choices=tuple("cdef"))], TextRowEncoder(toys.bert_words(), 8)
    )
    batch = collate(texts.get([0]))
    outputs = torch.randn(1, 4)
    encoded = EncoderOutput(heads={"supervised": outputs})
    paper = SupervisedObjective(sizes, output_type=form, head=head)
    (loss,) = paper(encoded, batch).values()
    expected = F.binary_cross_entropy_with_logits(outputs, torch.tensor([[0, 0, 1.0, 0]]))
    assert (loss / paper.count(batch)["task"]).item() == pytest.approx(expected.item(), rel=1e-5)
    first = SupervisedObjective(
        sizes, output_type=form, head=head, loss="ce"
    )  # the paper's first version
    (loss,) = first(encoded, batch).values()
    assert first.count(batch) == {"task": 1}
    assert loss.item() == pytest.approx(F.cross_entropy(outputs, torch.tensor([2])).item())


def test_a_loss_that_a_task_does_not_have_is_named(
    settings: FinetuneConfig, tmp_path: Path
) -> None:
    assert with_loss(Classification(("a", "b")), "bce").kind == "bce"
    for form, kind, message in (
        (MultipleChoice(("0", "1")), "kl", "head_loss=kl: this task's losses are ce, bce"),
        (Regression(), "ce", "head_loss=ce: this task's losses are fixed"),
    ):
        with pytest.raises(InputError, match=message):
            with_loss(form, kind)
    finetune(
        replace_settings(settings, head_loss="ce", auxiliary_losses=False), TWO, tmp_path / "ce"
    )
    with pytest.raises(InputError, match="head_loss=kl"):
        finetune(replace_settings(settings, head_loss="kl"), TWO, tmp_path / "kl")
