"""VL-BERT's own recipes: segments, classes, names, mirrored pictures, budgets, and what its heads start from."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import homes, toys
from tiny.homes import STEPS, log_of, put
from tiny.regions import resnet, store
from tiny.tasks import json_lines, vcr_line
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
from groundling.data.regions import RegionStore
from groundling.data.regions.annotations import CLASSES, class_names, read_vcr_objects
from groundling.data.regions.samples import (
    RegionDataset,
    RegionOptions,
    add_whole_image,
    truncate_to_budget,
)
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.heads import init_layer, save_heads
from groundling.models.task_heads import HeadContext, RegionScoreHead
from groundling.objectives import ObjectiveContext, find_objective
from groundling.objectives.masked_regions import MaskedRegionModeling, UnmaskedRegionClassification
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks import Task
from groundling.tasks.vcr import ANSWER, RATIONALE
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
FOUR = MultipleChoice(tuple("0123"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VCR's files and stills, a store of them, a BERT and a ResNet."""
    folder = tmp_path_factory.mktemp("vcr")
    halves = [[[[x, y], [x, v], [(x + u) / 2, v], [(x + u) / 2, y]]] for x, y, u, v, _ in BOXES]
    about = {"boxes": BOXES, "segms": [*halves[:3], []], "names": OBJECTS}
    about |= {"width": SIZE[0], "height": SIZE[1]}
    for n in range(3):
        homes.noise(folder / f"vcr1images/film/{n}.jpg", SIZE, n)
        put(folder / f"vcr1images/film/{n}.json", json.dumps(about))
    for split, count in (("train", 8), ("val", 4)):
        rows = []
        for n in range(count):
            own = {"img_fn": f"film/{n % 3}.jpg", "objects": OBJECTS}
            own |= {"question": ["why", "is", [0, 2], "near", [1], "?"]}
            own |= {"answer_choices": [["a", [2], "."], ["no", "."], [[n % 4], "."], ["b", "."]]}
            rows.append(json.loads(vcr_line(n)) | own)
        put(folder / f"{split}.jsonl", json_lines(*rows))
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
    covers = read_vcr_objects(place / "vcr1images/film/0.json").masks()
    assert covers.shape == (4, 14, 14) and covers[:3].any((1, 2)).all()
    assert covers[0, :, :7].all() and not covers[0, :, 7:].any()  # the left half of the box
    assert covers[3].all()  # no polygon: the whole box
    for name, first in (("store", 0), ("whole", 1)):
        seen = RegionStore(place / name, features=False)
        cover = seen["film/0"].segmentation
        assert seen.has_segmentations and cover.dtype == bool and len(cover) == first + 4
        assert np.array_equal(cover[first:], covers) and cover[:first].all()
        # Features are there already.
        assert RegionStore(place / name)["film/0"].segmentation is None
        classes = seen["film/0"].classes
        assert seen.classes == 80 and not classes[:first].any()
        assert [CLASSES[number] for number in classes[first:].argmax(1)] == OBJECTS
    assert len(set(CLASSES)) == 80 and (CLASSES[0], CLASSES[79]) == ("person", "toothbrush")
    assert class_names(["thing", "dog"]) == ["dog", "thing"] != class_names(["dog"])


def test_a_new_end_to_end_model_learns_vcr_as_the_paper_does(settings, place, tmp_path, capsys):
    def run(name: str, **changes: object) -> dict:
        finetune(replace_settings(settings, **changes), TWO, tmp_path / name)
        return log_of(tmp_path / name / "seed-0")[-1]

    paper = run("paper", save_model=True, longest_edge=50)
    assert {"task", "region_classes"} <= paper.keys()
    result = json.loads((tmp_path / "paper/seed-0/result.json").read_text())
    assert result["objectives"] == ["supervised", "region_classes"] and "notes" not in result
    model = load_encoder(tmp_path / "paper/seed-0/model")
    assert isinstance(model, EndToEndModel) and model.image_sides == (40, 50)
    assert model.regions_provenance
    alone = run("alone", auxiliary_losses=False)
    assert "region_classes" not in alone
    assert alone["task"] != run("straight", auxiliary_losses=False, flip=False)["task"]
    # A store from before, without segments and without classes.
    plain = store(tmp_path / "plain", [f"film/{n}" for n in range(3)], classes=0, objects=4)
    capsys.readouterr()
    with pytest.raises(InputError, match="the regions have no classes"):
        run("no", regions=str(plain))
    run("old", regions=str(plain), auxiliary_losses=False)
    assert "plain: whole boxes are used" in capsys.readouterr().err


def test_sides_change_when_a_model_is_fine_tuned(settings: FinetuneConfig, tmp_path: Path) -> None:
    first = replace_settings(settings, save_model=True)
    finetune(first, TWO, tmp_path / "first")
    own = {"architecture": "", "backbone": "", "shortest_edge": 0, "longest_edge": 60}
    again = replace_settings(first, model=str(tmp_path / "first/seed-0/model"), **own)
    finetune(again, TWO, tmp_path / "again")
    for run, longest in (("first", 0), ("again", 60)):
        model = load_encoder(tmp_path / run / "seed-0/model")
        assert model.image_sides == (40, longest)
    for config, message in (
        (replace_settings(again, longest_edge=30), "longest_edge=30: less than the short side, 40"),
        (replace_settings(settings, architecture="uniter"), "uniter reads stored features"),
        (
            replace_settings(settings, head_loss="kl"),
            "head_loss=kl: this task's losses are ce, bce",
        ),
    ):
        with pytest.raises(InputError, match=message):
            finetune(config, TWO, tmp_path / "no")


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
    hidden = F.gelu(objective.between[0](states[batch.regions.mask]))
    expected = F.cross_entropy(
        objective.classify(hidden), torch.tensor([0, 3, 1, 0, 4]), reduction="sum"
    )
    torch.testing.assert_close(loss, expected)
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
    assert torch.equal(made.between[0].weight, earlier.head[0].weight)


def test_persons_have_names_that_go_round() -> None:
    head = head_of(VLBertChoiceHead, FOUR, pooler_output=8)
    example = Example(
        "vcr-1",
        "Why is Casey near dog ?",
        choices=("Quinn left .", "No ."),
        region_tags=((7, 12, 0), (18, 21, 3)),
        choice_region_tags=(((0, 5, 14),), ()),
    )
    asked = head.prepare_example(example)
    name, dog = (asked.text[start:stop] for start, stop, _ in asked.region_tags)
    assert (asked.text, dog) == (f"Why is {name} near dog ?", "dog")
    other = NAMES[(NAMES.index(name) + 14) % 13]
    assert asked.choices == (f"{other} left .", "No .")
    assert asked.choice_region_tags == (((0, len(other), 14),), ())
    assert head.prepare_example(example) == asked  # whenever it is asked
    many = (replace(example, id=f"vcr-{n}") for n in range(400))
    starts = Counter(head.prepare_example(one).text[7:10] for one in many)
    assert len(starts) == len(NAMES) == 13 and max(starts.values()) < 70


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
    # An answer whose counterpart is no answer counts for nothing, as the padding does.
    expected = np.array([[1, 1], [0, 0.3], [-1, 0.6], [-100, -100]], np.float32)
    assert turned.label.dtype == np.float32 and np.array_equal(turned.label, expected)
    form = OpenAnswer(("left side", "right side", "left"))
    outputs = torch.randn(1, 3)
    wanted = form.loss(outputs, torch.tensor([[0.3, 1.0, 0.0]]))
    assert torch.equal(form.loss(outputs, torch.from_numpy(turned.label[None])), wanted)
    for answers, before, after in (
        (("left", "right"), 1, 0),
        (("left", "no"), 0, 0),
        ((), 0.5, 0.5),
    ):
        assert LeftRightWordSwap(answers)(replace(example, label=before)).label == after
    choices = LeftRightWordSwap()(Example("b", "x", label=1, choices=("on the left", "no")))
    assert choices == Example("b", "x", label=1, choices=("on the right", "no"))


def test_boxes_and_segments_turn_with_the_pixels() -> None:
    """What lies under a mirrored box is what lay under the box, mirrored; twice is once more the same."""
    corners = np.float32([[0, 0, 19, 9], [3, 2, 7, 6], [10, 0, 19, 9]]) / [20, 10, 20, 10]
    row = replace(toys.regions(0, 3), boxes=corners.astype(np.float32))
    row = replace(row, is_whole_image=np.array([True, False, False]))
    row = replace(row, segmentation=np.random.default_rng(0).random((3, 14, 14)) < 0.5)
    turned = mirrored_regions(row, 20)
    assert np.array_equal(turned.segmentation, row.segmentation[:, :, ::-1])
    assert np.array_equal(turned.boxes[0], row.boxes[0])
    np.testing.assert_allclose(mirrored_regions(turned, 20).boxes, row.boxes, atol=1e-6)
    sides = torch.tensor([20, 10, 20, 10])
    for number in range(3):
        spots = []
        for one in (row, turned):
            box = torch.from_numpy(one.boxes[None, number : number + 1]) * sides + 1e-3
            spots.append(mask_boxes(box, torch.tensor([[True]]), 20, 10))
        assert spots[0].any() and torch.equal(spots[1], spots[0].flip(-1))


def test_half_of_the_draws_are_mirrored_by_a_key_of_their_own(place: Path) -> None:
    example = Example("vcr-1", "left of it", choices=("a", "b"), images=("film/0",))
    words = TextRowEncoder(toys.bert_words(), 8)
    kept = RegionStore(place / "store", features=False)
    options = RegionOptions(whole_image=True, last_pixel=True)

    def pictured(one: Example) -> PixelDataset:
        seen = RegionDataset(TextDataset([one], words), kept, options)
        return PixelDataset(seen, place / "vcr1images", 25, 30)

    plain = pictured(example)
    both = RandomFlipDataset(plain, pictured(replace(example, text="right of it")))
    assert (both.ids, len(both)) == (["vcr-1"], 1)
    (straight,) = plain.get([0], ())
    assert straight.pixels.shape == (3, 19, 30)
    turned = 0
    for epoch in range(60):
        one, again = (both.get([0], [generator(0, epoch, "vcr-1", "sample")])[0] for _ in range(2))
        assert np.array_equal(one.pixels, again.pixels)
        is_turned = not np.array_equal(one.pixels, straight.pixels)
        turned += is_turned
        if is_turned:
            assert np.array_equal(one.pixels, straight.pixels[:, :, ::-1])
        for choice, original in zip(one.choices, straight.choices, strict=True):
            expected = mirrored_regions(original.regions, 30) if is_turned else original.regions
            assert np.array_equal(choice.regions.boxes, expected.boxes)
            assert np.array_equal(choice.regions.segmentation, expected.segmentation)
            assert np.array_equal(choice.text.input_ids, original.text.input_ids) != is_turned
    assert 18 < turned < 42
    assert collate([one, straight]).pixels.is_contiguous()  # flipped views are copied


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
    fields = ("input_ids", "special_tokens_mask", "word_ids", "token_type_ids")
    for tokens, count, budget in product((3, 12, 30, 50), (1, 7, 29, 40), (6, 20, 33, 64)):
        short = replace(made.text, **{name: vars(made.text)[name][:tokens] for name in fields})
        sample = replace(made, text=short, truncated_tokens=0)
        row = add_whole_image(toys.regions(0, count))
        found, kept = truncate_to_budget(sample, row, budget)
        sizes = (len(found.text.input_ids), len(kept))
        assert sizes == cut_as_released(tokens, count + 1, budget)
        lost = (found.truncated_tokens, found.truncated_regions)
        assert lost == (tokens - sizes[0], count + 1 - sizes[1])
        assert found.text.input_ids[-1] == short.input_ids[-1] and kept.is_whole_image[0]
        assert np.array_equal(found.text.input_ids[:-1], short.input_ids[: sizes[0] - 1])
    assert truncate_to_budget(made, row, 0) == (made, row)


def test_choices_share_the_regions_that_the_longest_leaves_room_for() -> None:
    example = Example("a", "a dog", choices=("cat", " ".join(toys.sentences()[:4])), images=("i",))
    texts = TextDataset([example], TextRowEncoder(toys.bert_words(), 40))
    shelf = toys.RegionDict({"i": toys.regions(0, 30)})
    (found,) = RegionDataset(texts, shelf, RegionOptions(max_sequence=24)).get([0], ())
    (plain,) = texts.get([0])
    longest = max(len(choice.text.input_ids) for choice in plain.choices)
    text, boxes = cut_as_released(longest, 30, 24)
    assert [len(choice.regions) for choice in found.choices] == [boxes] * 2
    assert len(found.choices[1].text.input_ids) == text
    batch = collate([found])
    assert batch.truncated_regions == found.truncated_regions == 30 - boxes
    assert batch.truncated_tokens == plain.truncated_tokens + longest - text


def test_a_budget_is_counted_and_checked(place: Path, tmp_path: Path) -> None:
    captions = "".join(f"{n}.jpg#0\t{'a dog ' * 12}\n" for n in range(6))
    config = make_settings(
        PretrainConfig,
        architecture="vlbert",
        model=str(place / "bert"),
        regions=str(store(tmp_path / "store", list(map(str, range(6))))),
        captions=str(put(tmp_path / "some.token.txt", captions)),
        max_length=24,
        max_total_length=5,
    )
    result = pretrain(config, replace(TWO, steps=1, batch=6), tmp_path / "run")
    kept = RegionStore(tmp_path / "store")
    counts = [kept.count(str(n)) + 1 for n in range(6)]
    sizes = [cut_as_released(24, count, 5) for count in counts]
    lost = sum(counts) - sum(boxes for _, boxes in sizes)
    assert result["truncated_regions"] == lost > 0
    assert result["truncated_tokens"] >= sum(24 - text for text, _ in sizes)
    with pytest.raises(InputError, match="max_total_length=2: no room for two tokens and a region"):
        pretrain(replace_settings(config, max_total_length=2), TWO, tmp_path / "no")
    two = [Example("a", "b", images=("0", "1"))]
    texts = TextDataset(two, TextRowEncoder(toys.bert_words(), 9))
    with pytest.raises(InputError, match=r"a: 2 images .*max_total_length=9"):
        RegionDataset(texts, kept, RegionOptions(max_sequence=9))


def test_vqa_starts_from_berts_own_transform(tmp_path: Path) -> None:
    words = homes.words()
    torch.manual_seed(2)
    masked = BertForMaskedLM(toys.bert(len(words)).config)
    folder = homes.home(tmp_path / "masked", masked, words)
    transform = masked.cls.predictions.transform
    reading = HeadContext(load_encoder(folder).sizes, OpenAnswer(("yes", "no")), words)
    head = VLBertVqaHead(reading)
    named = head.pretrained_layers()
    assert all(init_layer(layer, folder, name) for layer, name in named)
    assert torch.equal(head.between[0].weight, transform.dense.weight)
    assert torch.equal(head.between[2].bias, transform.LayerNorm.bias)
    # An earlier run's head counts more; a folder without any, or another width, leaves the layer new.
    earlier = VLBertVqaHead(reading)
    save_heads(folder, {name: layer for layer, name in earlier.pretrained_layers()})
    assert all(init_layer(layer, folder, name) for layer, name in named)
    assert torch.equal(head.between[0].weight, earlier.between[0].weight)
    bare = homes.student(tmp_path / "bare")
    assert not any(init_layer(layer, bare, name) for layer, name in named)
    assert not init_layer(torch.nn.Linear(3, 3), folder, named[0][1])


def test_refcoco_takes_the_mean_over_regions_and_drops_nothing_out() -> None:
    head = head_of(VLBertRegionHead, RegionSelection(), visual=8)
    assert head.dropout.p == 0
    form = RegionSelection("regions", "ce")
    sizes = OutputSizes(text=8, visual=8)
    objective = SupervisedObjective(sizes, output_type=form, head=head)
    labels = torch.tensor([[1, 0, 0, -100], [0, 1, 1, 0]])
    batch = Batch(ids=("a", "b"), labels={"label": labels})
    outputs = torch.randn(2, 4)
    (loss,) = objective(EncoderOutput(heads={"supervised": outputs}), batch).values()
    assert objective.count(batch) == {"task": 7}
    there = labels >= 0
    expected = F.binary_cross_entropy_with_logits(outputs[there], labels[there].float())
    torch.testing.assert_close(loss / 7, expected)
    # Other heads, and this one with a softmax, count samples.
    for other in (head, head_of(RegionScoreHead, form, visual=8)):
        softmax = SupervisedObjective(sizes, output_type=form, head=other, loss="ce")
        assert softmax.count(batch) == {"task": 2}


def test_vcr_takes_the_mean_over_choices() -> None:
    head = head_of(VLBertChoiceHead, FOUR, pooler_output=8)
    asked = [Example("a", "b", label=2, choices=tuple("cdef"))]
    batch = collate(TextDataset(asked, TextRowEncoder(toys.bert_words(), 8)).get([0]))
    outputs = torch.randn(1, 4)
    encoded = EncoderOutput(heads={"supervised": outputs})
    sizes = OutputSizes(text=8, pooler_output=8)
    each = F.binary_cross_entropy_with_logits(outputs, torch.tensor([[0, 0, 1.0, 0]]))
    # The paper's first version has a softmax.
    for kind, count, expected in (
        ("", 4, each),
        ("ce", 1, F.cross_entropy(outputs, torch.tensor([2]))),
    ):
        task = SupervisedObjective(sizes, output_type=FOUR, head=head, loss=kind)
        (loss,) = task(encoded, batch).values()
        assert task.count(batch) == {"task": count}
        torch.testing.assert_close(loss / count, expected)


def test_a_loss_that_a_task_does_not_have_is_named() -> None:
    assert with_loss(Classification(("a", "b")), "bce").kind == "bce"
    with pytest.raises(InputError, match="head_loss=ce: this task's losses are fixed"):
        with_loss(Regression(), "ce")


def head_of(kind: type, form: object, **sizes: int) -> Any:
    return kind(HeadContext(OutputSizes(text=8, **sizes), form))


def test_and_stands_inside_a_list_of_objects_alone(tmp_path: Path) -> None:
    row = json.loads(vcr_line(0)) | {
        "objects": ["person", "person", "person", "car"],
        "question": ["Do", [0, 1, 3], [2], "see", [1]],
        "answer_choices": [[[0], [1], "do"], [[0, 1], "do"], ["No"], [[2], [0, 3], "."]],
        "answer_label": 3,
        "rationale_choices": [[[1], [2]], [[2, 1]], ["So", "."], [[3], "."]],
    }
    put(tmp_path / "val.jsonl", json.dumps(row) + "\n")
    head = head_of(VLBertChoiceHead, FOUR, pooler_output=8)

    def asked(task: Task) -> list[str]:
        """Its texts as VL-BERT reads them, persons by their numbers."""
        (example,) = task.read(tmp_path, "val")
        assert " and " not in "".join((example.text, *example.choices))  # as others read it
        turned = head.prepare_example(example)
        texts = [turned.text, *turned.choices]
        called = {}
        for text, tags in zip(texts, (turned.region_tags, *turned.choice_region_tags), strict=True):
            called |= {text[start:stop]: f"p{number}" for start, stop, number in tags}
        return [
            " ".join(called[word] if word in NAMES else word for word in text.split())
            for text in texts
        ]

    question = "Do p0 and p1 and car p2 see p1"
    assert asked(ANSWER) == [question, "p0 p1 do", "p0 and p1 do", "No", "p2 p0 and car ."]
    reasons = ["p1 p2", "p2 and p1", "So .", "car ."]
    assert asked(RATIONALE) == [f"{question} p2 p0 and car .", *reasons]
