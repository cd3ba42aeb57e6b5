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
from tiny.regions import store
from tiny.seeing import pictures, resnet
from tiny.tasks import (
    VCR_ANSWERS,
    VCR_QUESTION,
    VCR_REASONS,
    judged_texts,
    task_texts,
    vcr_line,
)

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Example, Sample, collate
from groundling.core.errors import InputError
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import MultiVersionTextDataset, TextDataset, TextRowEncoder
from groundling.models.heads import HEADS
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks.grounding import FLICKR30K
from groundling.tasks.vcr import ANSWER, mentioned_in, read_items
from groundling.tasks.visual_inference import NLVR2
from groundling.vision_language.end_to_end import EndToEndModel, make_end_to_end_model
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.visualbert import VisualBertEmbeddings, visualbert

BRIEF = replace(STEPS, steps=2, batch=4)
PERSONS = ["person", "car", "person", "dog"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VCR of 4 objects, of which the texts name 0, 1 and 2; NLVR2; captions; stores of all of them."""
    folder = tmp_path_factory.mktemp("visualbert")
    homes.student(folder / "bert")
    for split, count in (("train", 8), ("val", 4)):
        rows = [json.loads(vcr_line(n)) | {"objects": PERSONS} for n in range(count)]
        put(folder / f"vcr/{split}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    stills = [f"m/{n}" for n in range(8)]
    names = [f"{n:03d}" for n in range(8)]
    pairs = [f"{split}-{n}-0-img{side}" for split in ("train", "dev") for n in range(8) for side in (0, 1)]  # fmt: skip
    for split in ("train", "dev"):
        rows = [
            {"identifier": f"{split}-{n}-0-0", "sentence": f"there are {n} dogs", "label": label}
            for n, label in enumerate(["True", "False"] * 4)
        ]
        put(folder / f"nlvr2/{split}.json", "".join(json.dumps(row) + "\n" for row in rows))
    store(folder / "store", stills, objects=4)
    store(folder / "captioned", [*names, *pairs])
    captions = (f"{name}.jpg#{n}\tcaption {n} of {name}\n" for name in names for n in range(2))
    put(folder / "some.token.txt", "".join(captions))
    pictures(folder / "images", [*stills, *names])
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
    return make_settings(
        PretrainConfig,
        model=str(place / "bert"),
        regions=str(place / ("store" if of_vcr else "captioned")),
        task=task,
        data=str(place / task.partition("/")[0]),
        max_length=24,
        **changes,
    )


def refusal(config: PretrainConfig | FinetuneConfig, out: Path) -> str:
    run: Any = pretrain if isinstance(config, PretrainConfig) else finetune
    with pytest.raises(InputError) as told:
        run(config, BRIEF, out)
    assert "\n" not in str(told.value)
    return str(told.value)


# -- VCR's mentioned objects -------------------------------------------------------------------------------------------


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
    examples = ANSWER.read(place / "vcr", "val")
    examples = [
        replace(one, mentioned_objects=(0, 2), region_tags=one.region_tags[:1]) for one in examples
    ]
    texts = TextDataset(examples, TextRowEncoder(homes.words(), 40))
    regions = RegionStore(place / "store")

    def seen(**options: Any) -> Sample:
        (sample,) = RegionDataset(texts, regions, RegionOptions(whole_image=whole, **options)).get(
            [0], ()
        )
        return sample

    def named(row: Sample) -> set[bytes]:
        """The features of the regions that its tokens name."""
        assert (
            row.text is not None and row.text.region_index is not None and row.regions is not None
        )
        places = sorted(set(row.text.region_index.tolist()) - {-1})
        return {row.regions.features[number].tobytes() for number in places}

    every, some = seen(), seen(only_mentioned=True)
    assert len(every.rows[0].regions or ()) == 4 + whole
    assert len(some.rows[0].regions or ()) == 2 + whole
    for one, other in zip(every.rows, some.rows, strict=True):
        assert named(one) == named(other) != set()
    fewer = seen(only_mentioned=True, max_regions=2)
    assert [len(row.regions or ()) for row in fewer.rows] == [1 + whole] * 4
    assert named(fewer.rows[0]) < named(every.rows[0]) | {b""}


def test_the_flag_travels_with_the_model_and_is_refused_elsewhere(
    place: Path, tmp_path: Path
) -> None:
    config = make_settings(
        FinetuneConfig,
        model=str(place / "bert"),
        architecture="visualbert",
        task="vcr/answer",
        data=str(place / "vcr"),
        regions=str(place / "store"),
        mentioned_objects_only=True,
        object_classes=True,
    )
    finetune(config, BRIEF, tmp_path / "out")
    described = tmp_path / "out/seed-0/model/groundling_task.json"
    assert json.loads(described.read_text())["region_settings"]["mentioned_objects_only"] is True
    assert "mentioned_objects_only: no text of vcr/answer names an object by number" in refusal(
        replace_settings(config, object_tags=False), tmp_path / "no"
    )
    other = replace_settings(
        config, task="nlvr2", data=str(place / "nlvr2"), regions=str(place / "captioned")
    )
    assert "no text of nlvr2 names an object by number" in refusal(other, tmp_path / "no")
    captions = on_task(place, "vcr", mentioned_objects_only=True)
    captions = replace_settings(captions, task="", data="", captions=str(place / "some.token.txt"))
    assert "mentioned_objects_only: applies only to task" in refusal(captions, tmp_path / "no")


# -- the phase on a task's own texts -----------------------------------------------------------------------------------


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
    folder = place / "vcr"
    choices = judged_texts(ANSWER, folder, tags=True)
    statements = judged_texts(NLVR2, place / "nlvr2")
    text = TextRowEncoder(homes.words(), 40)
    rights = 0
    for epoch in range(4):
        rngs = [np.random.default_rng([epoch, n]) for n in range(8)]
        drawn = MultiVersionTextDataset(
            [(one,) for one in choices], text, labels_correctness=True
        ).get(range(8), rngs)
        for sample, example in zip(drawn, choices, strict=True):
            assert sample.example is not None and "label" not in sample.labels
            is_right = sample.example.text_pair == example.choices[int(str(example.label))]
            assert sample.labels["sentence_image"] == is_right
            rights += is_right
    assert 0 < rights < 32
    rngs = [np.random.default_rng(n) for n in range(8)]
    drawn = MultiVersionTextDataset(
        [(one,) for one in statements], text, labels_correctness=True
    ).get(range(8), rngs)
    assert [int(one.labels["sentence_image"]) for one in drawn] == [1, 0] * 4


@pytest.mark.parametrize("task", ["vcr", "nlvr2"])
def test_the_codes_phase_goes_on_with_the_head_of_captions(
    task: str, first: Path, place: Path, tmp_path: Path
) -> None:
    config = on_task(place, task, task_answers="judged")
    config = replace_settings(config, model=str(first))
    still = replace(BRIEF, steps=1, lr=1e-30)
    result = pretrain(config, still, tmp_path / "out")
    assert result["objectives"] == ["masked_lm", "sentence_image"]
    assert "right answers" in result["notes"][0]
    before, after = (load_file(folder / HEADS) for folder in (first, tmp_path / "out/model"))
    assert torch.equal(after["sentence_image.classify.weight"], before["sentence_image.classify.weight"])  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"task": "flickr30k"}, "flickr30k has no right and wrong texts"),
        ({"architecture": "uniter"}, "only VisualBERT's phase, not uniter's"),
        ({"task": "", "data": "", "captions": "c.txt"}, "applies only to task"),
    ],
)
def test_what_cannot_be_judged(
    changes: dict[str, Any], message: str, place: Path, tmp_path: Path
) -> None:
    config = replace_settings(on_task(place, "nlvr2", task_answers="judged"), **changes)
    assert message in refusal(config, tmp_path / "out")


def test_a_caption_of_several_phrases_is_one_text(tmp_path: Path) -> None:
    """B20: Flickr30k's phase reads captions, as the code does, while phrases are what is fine-tuned on."""
    boxes = "".join(
        f"<object><name>{n}</name><bndbox><xmin>1</xmin><ymin>1</ymin><xmax>9</xmax><ymax>9</ymax></bndbox></object>"
        for n in (1, 2)
    )
    size = "<size><width>10</width><height>10</height></size>"
    put(tmp_path / "Annotations/7.xml", f"<annotation>{size}{boxes}</annotation>")
    lines = (
        "[/EN#1/people A man] sees [/EN#2/animals a dog]\n[/EN#2/animals A dog] runs\nnobody here\n"
    )
    put(tmp_path / "Sentences/7.txt", lines)
    put(tmp_path / "train.txt", "7\n")
    assert len(FLICKR30K.read(tmp_path, "train")) == 3
    texts = task_texts(FLICKR30K, tmp_path)
    assert [(text.text, text.region_tags) for text in texts] == [
        ("A man sees a dog", ()),
        ("A dog runs", ()),
    ]


# -- captions alone (C1) -----------------------------------------------------------------------------------------------


def test_captions_alone_see_no_image(
    on_captions: PretrainConfig, place: Path, tmp_path: Path
) -> None:
    others = store(tmp_path / "others", [f"{n:03d}" for n in range(8)], classes=3)
    weights = []
    for regions in (place / "captioned", others):
        config = replace_settings(on_captions, grounded=False, regions=str(regions))
        out = tmp_path / "out" / regions.name
        result = pretrain(config, BRIEF, out)
        assert result["objectives"] == ["masked_lm", "sentence_image"]
        weights.append(load_encoder(out / "model").state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    config = replace_settings(on_captions, grounded=False, architecture="uniter")
    assert "needs `regions`, which this data" in refusal(config, tmp_path / "no")


# -- how a new VisualBERT joins its regions ----------------------------------------------------------------------------


def test_boxes_are_appended_to_features(
    on_captions: PretrainConfig, first: Path, place: Path, tmp_path: Path
) -> None:
    result = pretrain(replace_settings(on_captions, region_boxes=True), BRIEF, tmp_path / "out")
    model = load_encoder(tmp_path / "out/model")
    assert isinstance(model.join, VisualBertEmbeddings) and model.join.boxes
    assert model.join.projection.in_features == 12 + 6
    plain = load_encoder(first)
    width = model.join.projection.out_features
    count = sum(parameter.numel() for parameter in plain.parameters())
    assert result["parameters"] == count + 6 * width
    for changes, message in (
        ({"model": str(first)}, "not this visualbert; omit it"),
        ({"architecture": "uniter"}, "region_boxes: is only for a new VisualBERT, not uniter"),
    ):
        config = replace_settings(on_captions, region_boxes=True, **changes)  # type: ignore[arg-type]
        assert message in refusal(config, tmp_path / "no")
    tuned = make_settings(FinetuneConfig, model=str(first), task="nlvr2", data=str(place / "nlvr2"))
    tuned = replace_settings(tuned, regions=str(place / "captioned"), region_boxes=True)
    assert "region_boxes: applies only to a new VisualBERT" in refusal(tuned, tmp_path / "no")


def test_a_store_without_classes_has_none_to_embed(
    on_captions: PretrainConfig, tmp_path: Path
) -> None:
    bare = store(tmp_path / "bare", [f"{n:03d}" for n in range(8)], classes=0)
    config = replace_settings(on_captions, object_classes=True, regions=str(bare))
    assert "object_classes: the regions of" in refusal(config, tmp_path / "no")


@torch.no_grad()
def test_r2cs_regions_in_plain_words() -> None:
    words = toys.bert_words()
    torch.manual_seed(2)
    model = visualbert(toys.bert(len(words)), words, width=12, classes=5, boxes=True).eval()
    assert model.reads_whole_image
    (sample,) = TextDataset([Example("a", "a dog")], TextRowEncoder(words, 20)).get([0])
    row = toys.regions(3, 2)
    batch = collate([replace(sample, regions=row)])
    join, bert = model.join, model.text.encoder
    assert (
        isinstance(join, VisualBertEmbeddings) and join.r2c is not None and row.classes is not None
    )
    classes = torch.from_numpy(row.classes) @ join.r2c.classes
    linear = join.r2c.reduce[1]
    both = torch.cat([torch.from_numpy(row.features), classes], 1)
    reduced = (both @ linear.weight.T + linear.bias).relu()  # type: ignore[operator,union-attr]
    assert reduced.shape == (2, 512)
    boxes = torch.from_numpy(row.boxes)
    looks = join.projection(torch.cat([reduced, boxes, boxes[:, 2:] - boxes[:, :2]], 1))
    looks = looks + join.position.weight[0] + join.segment.weight[0]
    found = join(bert.embeddings, batch).states[0, -2:]
    torch.testing.assert_close(found, bert.embeddings.LayerNorm(looks))
    other = replace(row, classes=np.ones((2, 4), np.float32))
    with pytest.raises(InputError, match="the regions have other than 5 classes"):
        model(collate([replace(sample, regions=other)]))
    with pytest.raises(InputError, match=r"made for classes needs `regions\.classes`"):
        model(collate([replace(sample, regions=replace(row, classes=None))]))


# -- ResNet trained along ----------------------------------------------------------------------------------------------


def of_pixels(place: Path, early: bool = True) -> EndToEndModel:
    words = homes.words()
    torch.manual_seed(3)
    bert = toys.bert(len(words))
    return make_end_to_end_model(
        bert, words, place / "resnet", 48, 0, visualbert, classes=5, early=early
    )


@torch.no_grad()
def test_segments_are_read_by_the_last_stage(place: Path) -> None:
    model = of_pixels(place).eval()
    join = model.join
    assert isinstance(join, VisualBertEmbeddings) and join.r2c is not None
    assert join.r2c.segments is not None
    cover = torch.zeros(2, 14, 14, dtype=torch.bool)
    cover[1, :, 7:] = True
    states = torch.randn(2, 16, 7, 7)
    inputs: list[torch.Tensor] = []
    hook = model.cnn.encoder.stages[-1].register_forward_hook(
        lambda _, into, out: inputs.extend([into[0], out])
    )
    batch = collate([seen_in_pixels(cover.numpy())])
    model.add_region_features(batch)
    hook.remove()
    assert inputs[0].shape == (2, 16, 7, 7) and inputs[1].shape[2:] == (7, 7)
    added = join.r2c.segments(cover[:, None].float() - 0.5)
    assert added.shape == (2, 32, 7, 7)
    torch.testing.assert_close(join.prepare_last_stage(states, cover), states + added[:, :16])
    wide = torch.randn(2, 40, 7, 7)
    torch.testing.assert_close(join.prepare_last_stage(wide, cover)[:, 32:], wide[:, 32:])
    assert torch.equal(join.mask_last_stage(states, cover), states)
    other = collate([seen_in_pixels(~cover.numpy())])
    assert (model(batch).visual - model(other).visual).abs().max() > 1e-5


def seen_in_pixels(cover: np.ndarray) -> Sample:
    (sample,) = TextDataset([Example("a", "a dog")], TextRowEncoder(homes.words(), 20)).get([0])
    row = replace(toys.regions(1, 2, width=0), segmentation=cover)
    pixels = np.random.default_rng(0).integers(0, 256, (3, 48, 64), dtype=np.uint8)
    return replace(sample, regions=row, pixels=pixels)


@pytest.mark.parametrize("early", [True, False])
def test_from_bert_to_vcr_through_both_phases(
    early: bool, on_captions: PretrainConfig, place: Path, tmp_path: Path
) -> None:
    images = str(place / "images")
    seeing = {
        "images": images,
        "backbone": str(place / "resnet"),
        "shortest_edge": 32,
        "flip": False,
    }
    config = replace_settings(on_captions, object_classes=True, early_fusion=early, **seeing)  # type: ignore[arg-type]
    pretrain(config, BRIEF, tmp_path / "captions")
    config = on_task(place, "vcr", mentioned_objects_only=True, images=images)
    config = replace_settings(config, model=str(tmp_path / "captions/model"))
    pretrain(config, BRIEF, tmp_path / "task")
    tuned = make_settings(
        FinetuneConfig,
        model=str(tmp_path / "task/model"),
        task="vcr/answer",
        data=str(place / "vcr"),
        regions=str(place / "store"),
        images=images,
        mentioned_objects_only=True,
    )
    finetune(tuned, BRIEF, tmp_path / "tuned")
    stages = ("captions/model", "task/model", "tuned/seed-0/model")
    models = [load_encoder(tmp_path / stage) for stage in stages]
    for model in models:
        assert isinstance(model, EndToEndModel) and isinstance(model.join, VisualBertEmbeddings)
        assert (model.side, model.reads_whole_image, model.fusion is None) == (32, True, early)
    last = "cnn.encoder.stages.3.layers.0.layer.1.convolution.weight"
    learned = [model.state_dict()[last] for model in models]
    assert not torch.equal(learned[0], learned[1]) and not torch.equal(learned[1], learned[2])
    described = tmp_path / "task/model/join.json"
    about = json.loads(described.read_text())
    described.write_text(json.dumps(about | {"kind": "uniter"}))
    with pytest.raises(InputError, match="embeddings do not fit"):
        load_encoder(tmp_path / "task/model")


def test_what_the_files_hold() -> None:
    """The fixtures' texts name objects 0, 1 and 2, and not 3."""
    texts: list[Any] = [VCR_QUESTION, *VCR_ANSWERS, *VCR_REASONS]
    tags = [token for text in texts for token in text if isinstance(token, list)]
    assert {number for tag in tags for number in tag} == {0, 1, 2}
