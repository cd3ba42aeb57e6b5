"""VisualBERT as paper and code train it: VCR's mentioned objects, R2C's regions, judged texts, captions alone."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, log_of, put
from tiny.regions import pictures, resnet, store
from tiny.tasks import json_lines, judged_texts, task_texts, vcr_line

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Batch, Example, Sample, collate
from groundling.core.errors import InputError
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import MultiVersionTextDataset, TextDataset, TextRowEncoder
from groundling.models.heads import HEADS
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks.grounding import FLICKR30K
from groundling.tasks.vcr import ANSWER, mentioned_in, read_items
from groundling.tasks.visual_inference import NLVR2
from groundling.vision_language.end_to_end import make_end_to_end_model
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.visualbert import visualbert

BRIEF = replace(STEPS, steps=2, batch=4)
PERSONS = ["person", "car", "person", "dog"]
NAMES = [f"{n:03d}" for n in range(8)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VCR of 4 objects, of which the texts name 0, 1 and 2; NLVR2; captions; stores of all of them."""
    folder = tmp_path_factory.mktemp("visualbert")
    homes.student(folder / "bert")
    for split, count in (("train", 8), ("val", 4)):
        rows = [json.loads(vcr_line(n)) | {"objects": PERSONS} for n in range(count)]
        put(folder / f"vcr/{split}.jsonl", json_lines(*rows))
    pairs = []
    for split in ("train", "dev"):
        rows = [
            {"identifier": f"{split}-{n}-0-0", "sentence": f"there are {n} dogs", "label": label}
            for n, label in enumerate(["True", "False"] * 4)
        ]
        put(folder / f"nlvr2/{split}.json", json_lines(*rows))
        pairs += [f"{split}-{n}-0-img{side}" for n in range(8) for side in (0, 1)]
    stills = [f"m/{n}" for n in range(8)]
    store(folder / "store", stills, objects=4)
    store(folder / "captioned", [*NAMES, *pairs])
    captions = (f"{name}.jpg#{n}\tcaption {n} of {name}\n" for name in NAMES for n in range(2))
    put(folder / "some.token.txt", "".join(captions))
    pictures(folder / "images", [*stills, *NAMES])
    resnet(folder / "resnet")
    return folder


@pytest.fixture(scope="module")
def on_captions(place: Path) -> PretrainConfig:
    return make_settings(
        PretrainConfig,
        model=str(place / "bert"),
        regions=str(place / "captioned"),
        captions=str(place / "some.token.txt"),
        max_length=24,
    )


@pytest.fixture(scope="module")
def first(on_captions: PretrainConfig, place: Path) -> Path:
    pretrain(on_captions, BRIEF, place / "first")
    return place / "first/model"


def on_task(place: Path, task: str, **changes: Any) -> PretrainConfig:
    of_vcr = task.startswith("vcr")
    settings: dict[str, Any] = {
        "model": str(place / "bert"),
        "regions": str(place / ("store" if of_vcr else "captioned")),
        "task": task,
        "data": str(place / task.partition("/")[0]),
        "max_length": 24,
    }
    return make_settings(PretrainConfig, **(settings | changes))


def test_objects_that_any_of_nine_texts_names(place: Path, tmp_path: Path) -> None:
    (item, *_) = read_items(place / "vcr", "val")
    assert mentioned_in(item) == (0, 1, 2)
    texts: list[Any] = [["so", "."]] * 4

    def of(**changes: Any) -> tuple[int, ...]:
        silent = replace(item, question=["why", "?"], answers=texts, rationales=texts)
        return mentioned_in(replace(silent, **changes))

    assert of(rationales=[*texts[:3], [[3, 1]]]) == (1, 3)
    assert of(answers=[["Everyone", "left", "."], *texts[:3]], question=[[1]]) == (0, 1, 2)
    assert of() == (0, 2)
    assert of(objects=("car", "dog")) == ()


@pytest.mark.parametrize("whole", [False, True])
def test_words_keep_their_regions_when_others_are_left_out(whole: bool, place: Path) -> None:
    examples = [
        replace(one, mentioned_objects=(0, 2), region_tags=one.region_tags[:1])
        for one in ANSWER.read(place / "vcr", "val")
    ]
    texts = TextDataset(examples, TextRowEncoder(homes.words(), 40))
    regions = RegionStore(place / "store")

    def seen(**options: Any) -> tuple[Sample, ...]:
        options = RegionOptions(whole_image=whole, **options)
        return RegionDataset(texts, regions, options).get([0], ())[0].rows

    def named(row: Sample) -> set[bytes]:
        """The features of the regions that its tokens name."""
        places = sorted(set(row.text.region_index.tolist()) - {-1})
        return {row.regions.features[number].tobytes() for number in places}

    every, some = seen(), seen(only_mentioned=True)
    assert (len(every[0].regions), len(some[0].regions)) == (4 + whole, 2 + whole)
    for one, other in zip(every, some, strict=True):
        assert named(one) == named(other) != set()
    fewer = seen(only_mentioned=True, max_regions=2)
    assert [len(row.regions) for row in fewer] == [1 + whole] * 4
    assert named(fewer[0]) < named(every[0]) | {b""}


def test_the_phase_keeps_what_words_name(place: Path, tmp_path: Path) -> None:
    """B18: with `object_tags=False`, positions of words no longer reach their regions, and the loss is another one."""
    losses = []
    for tags in (True, False):
        config = on_task(place, "vcr", object_tags=tags)
        result = pretrain(config, BRIEF, tmp_path / str(tags))
        assert result["objectives"] == ["masked_lm"]
        losses.append(log_of(tmp_path / str(tags))[0]["mlm"])
    assert losses[0] != losses[1]


def test_judged_choices_and_statements(place: Path) -> None:
    text = TextRowEncoder(homes.words(), 40)

    def drawn(texts: list[Example], epoch: int) -> list[Sample]:
        versions = [(one,) for one in texts]
        rngs = [np.random.default_rng([epoch, n]) for n in range(8)]
        return MultiVersionTextDataset(versions, text, labels_correctness=True).get(range(8), rngs)

    choices = judged_texts(ANSWER, place / "vcr", tags=True)
    rights = 0
    for epoch in range(4):
        for sample, example in zip(drawn(choices, epoch), choices, strict=True):
            is_right = sample.example.text_pair == example.choices[example.label]
            assert sample.labels["sentence_image"] == is_right and "label" not in sample.labels
            rights += is_right
    assert 0 < rights < 32
    statements = drawn(judged_texts(NLVR2, place / "nlvr2"), 0)
    assert [int(one.labels["sentence_image"]) for one in statements] == [1, 0] * 4


@pytest.mark.parametrize("task", ["vcr", "nlvr2"])
def test_the_codes_phase_goes_on_with_the_head_of_captions(task, first, place, tmp_path):
    config = on_task(place, task, task_answers="judged", model=str(first))
    result = pretrain(config, replace(BRIEF, steps=1, lr=1e-30), tmp_path / "out")
    assert result["objectives"] == ["masked_lm", "sentence_image"]
    assert "right answers" in result["notes"][0]
    before, after = (load_file(folder / HEADS) for folder in (first, tmp_path / "out/model"))
    name = "sentence_image.classify.weight"
    assert torch.equal(after[name], before[name])


def test_a_caption_of_several_phrases_is_one_text(tmp_path: Path) -> None:
    """B20: Flickr30k's phase reads captions, as the code does, while phrases are what is fine-tuned on."""
    box = "<bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>"
    boxes = "".join(f"<object><name>{n}</name>{box}</object>" for n in (1, 2))
    size = "<size><width>10</width><height>10</height></size>"
    put(tmp_path / "Annotations/7.xml", f"<annotation>{size}{boxes}</annotation>")
    first = "[/EN#1/people A man] sees [/EN#2/animals a dog]"
    put(tmp_path / "Sentences/7.txt", f"{first}\n[/EN#2/animals A dog] runs\nnobody here\n")
    put(tmp_path / "train.txt", "7\n")
    assert len(FLICKR30K.read(tmp_path, "train")) == 3
    found = [(text.text, text.region_tags) for text in task_texts(FLICKR30K, tmp_path)]
    assert found == [("A man sees a dog", ()), ("A dog runs", ())]


def test_captions_alone_see_no_image(on_captions, place, tmp_path):
    weights = []
    for regions in (place / "captioned", store(tmp_path / "others", NAMES, classes=3)):
        config = replace_settings(on_captions, grounded=False, regions=str(regions))
        out = tmp_path / "out" / regions.name
        result = pretrain(config, BRIEF, out)
        assert result["objectives"] == ["masked_lm", "sentence_image"]
        weights.append(load_encoder(out / "model").state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


@torch.no_grad()
def test_r2cs_regions_in_plain_words() -> None:
    words = toys.bert_words()
    torch.manual_seed(2)
    model = visualbert(toys.bert(len(words)), words, width=12, classes=5, boxes=True).eval()
    assert model.reads_whole_image
    (sample,) = TextDataset([Example("a", "a dog")], TextRowEncoder(words, 20)).get([0])
    row = toys.regions(3, 2)
    join, bert = model.join, model.text.encoder
    classes = torch.from_numpy(row.classes) @ join.r2c.classes
    both = torch.cat([torch.from_numpy(row.features), classes], 1)
    reduced = join.r2c.reduce[1](both).relu()
    assert reduced.shape == (2, 512)
    boxes = torch.from_numpy(row.boxes)
    looks = join.projection(torch.cat([reduced, boxes, boxes[:, 2:] - boxes[:, :2]], 1))
    looks = looks + join.position.weight[0] + join.segment.weight[0]
    found = join(bert.embeddings, collate([replace(sample, regions=row)])).states[0, -2:]
    torch.testing.assert_close(found, bert.embeddings.LayerNorm(looks))
    for classes, message in (
        (np.ones((2, 4), np.float32), "the regions have other than 5 classes"),
        (None, r"made for classes needs `regions\.classes`"),
    ):
        with pytest.raises(InputError, match=message):
            model(collate([replace(sample, regions=replace(row, classes=classes))]))


@torch.no_grad()
def test_segments_are_read_by_the_last_stage(place: Path) -> None:
    words = homes.words()
    torch.manual_seed(3)
    parts = (toys.bert(len(words)), words, place / "resnet", 48, 0)
    model = make_end_to_end_model(*parts, visualbert, classes=5).eval()
    join = model.join
    cover = torch.zeros(2, 14, 14, dtype=torch.bool)
    cover[1, :, 7:] = True

    def seen(cover: torch.Tensor) -> Batch:
        (sample,) = TextDataset([Example("a", "a dog")], TextRowEncoder(words, 20)).get([0])
        row = replace(toys.regions(1, 2, width=0), segmentation=cover.numpy())
        pixels = np.random.default_rng(0).integers(0, 256, (3, 48, 64), dtype=np.uint8)
        return collate([replace(sample, regions=row, pixels=pixels)])

    shapes: list[torch.Size] = []
    hook = model.cnn.encoder.stages[-1].register_forward_hook(
        lambda _, into, out: shapes.extend([into[0].shape, out.shape[2:]])
    )
    looks = model(seen(cover)).visual
    hook.remove()
    assert shapes == [(2, 16, 7, 7), (7, 7)]
    assert (looks - model(seen(~cover)).visual).abs().max() > 1e-5
    added = join.r2c.segments(cover[:, None].float() - 0.5)
    states, wide = torch.randn(2, 16, 7, 7), torch.randn(2, 40, 7, 7)
    same = torch.nn.Identity()
    torch.testing.assert_close(join.last_stage(same, states, cover), states + added[:, :16])
    torch.testing.assert_close(join.last_stage(same, wide, cover)[:, 32:], wide[:, 32:])


def test_from_bert_to_vcr_through_both_phases(on_captions, tuning, place, tmp_path):
    images = str(place / "images")
    seeing = {"images": images, "backbone": str(place / "resnet"), "shortest_edge": 32}
    joining = {"object_classes": True, "early_fusion": False, "region_boxes": True, "flip": False}
    pretrain(replace_settings(on_captions, **seeing, **joining), BRIEF, tmp_path / "captions")
    config = on_task(place, "vcr", mentioned_objects_only=True, images=images)
    config = replace_settings(config, model=str(tmp_path / "captions/model"))
    pretrain(config, BRIEF, tmp_path / "task")
    config = replace_settings(tuning, model=str(tmp_path / "task/model"), images=images)
    finetune(replace_settings(config, architecture=""), BRIEF, tmp_path / "tuned")
    stages = ("captions/model", "task/model", "tuned/seed-0/model")
    models = [load_encoder(tmp_path / stage) for stage in stages]
    for model in models:
        assert model.image_sides[0] == 32 and model.reads_whole_image and model.fusion is not None
        assert model.join.projection.in_features == 512 + 6
    described = json.loads((tmp_path / "tuned/seed-0/model/groundling_task.json").read_text())
    assert described["region_settings"]["mentioned_objects_only"] is True
    last = "cnn.encoder.stages.3.layers.0.layer.1.convolution.weight"
    learned = [model.state_dict()[last] for model in models]
    assert not torch.equal(learned[0], learned[1]) and not torch.equal(learned[1], learned[2])
    described = tmp_path / "task/model/join.json"
    put(described, described.read_text().replace('"visualbert"', '"uniter"'))
    with pytest.raises(InputError, match="embeddings do not fit"):
        load_encoder(tmp_path / "task/model")


@pytest.fixture(scope="module")
def tuning(place: Path) -> FinetuneConfig:
    """VCR's answers with the objects that the texts mention."""
    return make_settings(
        FinetuneConfig,
        model=str(place / "bert"),
        architecture="visualbert",
        task="vcr/answer",
        data=str(place / "vcr"),
        regions=str(place / "store"),
        mentioned_objects_only=True,
    )


def test_what_does_not_go_together(on_captions, tuning, first, place, tmp_path):
    bare = str(store(tmp_path / "bare", NAMES, classes=0))
    captions = {"task": "", "data": "", "captions": str(place / "some.token.txt")}
    on_nlvr2 = {"task": "nlvr2", "data": str(place / "nlvr2"), "regions": str(place / "captioned")}
    judged = on_task(place, "nlvr2", task_answers="judged")
    boxes = replace_settings(on_captions, region_boxes=True)
    mentioned = on_task(place, "vcr", mentioned_objects_only=True)
    for config, changes, message in (
        (boxes, {"model": str(first)}, "not this visualbert; omit it"),
        (boxes, {"architecture": "uniter"}, "is only for a new VisualBERT, not uniter"),
        (on_captions, {"object_classes": True, "regions": bare}, "object_classes: the regions of"),
        (on_captions, {"grounded": False, "architecture": "uniter"}, "needs `regions`, which this"),
        (judged, {"task": "flickr30k"}, "flickr30k has no right and wrong texts"),
        (judged, {"architecture": "uniter"}, "only VisualBERT's phase, not uniter's"),
        (judged, captions, "applies only to task"),
        (mentioned, captions, "mentioned_objects_only: applies only to task"),
        (tuning, {"object_tags": False}, "no text of vcr/answer names an object by number"),
        (tuning, on_nlvr2, "no text of nlvr2 names an object by number"),
    ):
        run: Any = pretrain if isinstance(config, PretrainConfig) else finetune
        assert message in homes.refused(
            run, replace_settings(config, **changes), BRIEF, tmp_path / "no"
        )
