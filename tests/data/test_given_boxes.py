"""Boxes that exist already, MAttNet's above all; both tracks of RefCOCO+ (B14); imported images under other names."""

from __future__ import annotations

import json
import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from tiny import toys
from tiny.homes import home, put
from tiny.regions import imported, instances, lxmert, npz

from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.core.batch import Example, GoldBoxes, RegionRow, collate, require
from groundling.core.errors import InputError
from groundling.core.registry import registered as found_in
from groundling.core.registry import resolve
from groundling.data.regions import RegionStore
from groundling.data.regions.annotations import ImageBoxes, read_annotated_boxes
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks import Task
from groundling.tasks.grounding import TASKS
from groundling.vision_language import Architecture

NAMES = [f"COCO_train2014_{n:012d}" for n in range(3)]
FILES = {number: f"{name}.jpg" for number, name in enumerate(NAMES[:2])}
SIZE = (40, 30)


def detection(image: int, box: list[float], score: float, kind: int = 18, **more: Any) -> dict:
    """One of MAttNet's."""
    named = {"category_id": kind, "category_name": {18: "dog", 3: "car"}.get(kind, "?")}
    return {"det_id": 1, "image_id": image, "box": box, "score": score, **named, **more}


def detections(path: Path, *rows: object) -> Path:
    return put(path, json.dumps(rows))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = home(tmp_path_factory.mktemp("vit"), toys.vit(), None)
    hf.CLIPImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    return str(folder)


class Detects:
    """A detector that finds a person and a phone in every image, and something that VCR has no name for."""

    names = ("cell phone", "person", "windmill")
    model = torch.nn.Linear(1, 1)

    def __init__(self, *_: object) -> None:
        self.processor = self

    def to_dict(self) -> dict[str, object]:
        return {}

    def __call__(self, images: Sequence[object]) -> list[ImageBoxes]:
        boxes = np.array([[0, 0, 0.5, 1], [0.5, 0, 1, 1], [0, 0.5, 1, 1]], np.float32)
        confidence = np.array([0.9, 0.8, 0.7], np.float32)
        return [
            ImageBoxes(boxes, confidence, np.eye(3, dtype=np.float32)[[1, 0, 2]]) for _ in images
        ]


def vcr_images(folder: Path) -> Path:
    """vcr1images with a still and its two annotated objects, of which polygons fill a half each."""
    half = [[0, 0], [20, 0], [20, 15], [0, 15]]
    about = {"names": ["cellphone", "person"], "width": 40, "height": 30, "segms": [[half], [half]]}
    about["boxes"] = [[0, 0, 20, 30, 0.2], [0, 0, 40, 15, 0.9]]
    put(folder / "film/1.json", json.dumps(about))
    Image.new("RGB", SIZE).save(folder / "film/1.jpg")
    return folder


@pytest.fixture
def config(tmp_path: Path, backbone: str) -> RegionsConfig:
    for number, name in enumerate(NAMES):
        noise = np.random.default_rng(number).integers(0, 256, (6, 6, 3), dtype=np.uint8)
        put(tmp_path / "images" / f"{name}.jpg", b"")
        Image.fromarray(noise).resize(SIZE).save(tmp_path / "images" / f"{name}.jpg")
    return make_settings(RegionsConfig, images=str(tmp_path / "images"), backbone=backbone)


# -- boxes of files ----------------------------------------------------------------------------------------------------


def test_detections_alone(config: RegionsConfig, tmp_path: Path) -> None:
    rows = [
        detection(1, [4, 3, 20, 15], 0.5),
        detection(1, [0, 0, 40.2, 30], 0.75, kind=3),  # cut
        detection(1, [50, 3, 20, 15], 0.9),  # outside
        detection(1, [5, 5, 0, 5], 0.9),  # empty
        detection(1, [float("nan"), 1, 9, 9], 0.5),
        detection(2, [0, 0, 20, 30], 0.25),
        detection(0, [60, 60, 5, 5], 6.5),
    ]
    file = detections(tmp_path / "dets.json", *rows)
    result = regions(replace_settings(config, boxes=(str(file),)), tmp_path / "store")
    assert (result["images"], result["boxes_left_out"], result["skipped"]) == (2, 3, 1)
    made = RegionStore(tmp_path / "store")
    assert made.ids == NAMES[1:] and made.manifest["class_names"] == ["car", "dog"]
    assert made.manifest["skipped"] == [f"{NAMES[0]}: no box in this image"]
    row = made[NAMES[1]]
    np.testing.assert_allclose(row.boxes, [[0, 0, 1, 1], [0.1, 0.1, 0.6, 0.6]], atol=1e-6)
    assert row.confidence.tolist() == [0.75, 0.5]
    assert row.classes is not None and row.classes.tolist() == [[1, 0], [0, 1]]
    assert not made.in_annotated_order(NAMES[1])
    assert made.manifest["boxes_from"] == file.name


def test_detected_boxes_stand_behind_vcrs_annotated_ones(backbone, tmp_path, monkeypatch):
    """UNITER on VCR; tags still name the annotated ones, and classes are VCR's by their names."""
    monkeypatch.setattr("groundling.vision.Detector", Detects)
    folder = str(vcr_images(tmp_path / "vcr1images"))
    config = make_settings(
        RegionsConfig, images=folder, boxes=(folder,), backbone=backbone, add_whole_image=True
    )
    regions(config, tmp_path / "annotated")
    regions(replace_settings(config, add_detected_boxes=True, detector=backbone), tmp_path / "both")
    first, both = (RegionStore(tmp_path / name) for name in ("annotated", "both"))
    assert first.appended_detections("film/1") == 0 and both.appended_detections("film/1") == 3
    assert both.in_annotated_order("film/1")
    row = both["film/1"]
    assert row.is_whole_image.tolist() == [True, *[False] * 5]
    np.testing.assert_array_equal(row.boxes[:3], first["film/1"].boxes)
    np.testing.assert_allclose(row.confidence, [1, 1, 1, 0.9, 0.8, 0.7], atol=1e-6)
    names = both.manifest["class_names"]
    phone, person = names.index("cellphone"), names.index("person")
    assert row.classes is not None and row.classes.argmax(1).tolist()[1:5] == [
        *(phone, person, person, phone)
    ]
    assert row.classes.sum(1).tolist() == [0, 1, 1, 1, 1, 0]
    cover = RegionStore(tmp_path / "both", features=False)["film/1"].segmentation
    assert cover is not None and cover[3:].all() and not cover[1:3].all()
    example = Example(
        "a", "cellphone", images=("film/1",), region_tags=((0, 9, 0),), object_count=2
    )
    words = TextDataset([example], TextRowEncoder(toys.bert_words(), 9))
    plain = replace(example, id="b", text="person", region_tags=())
    named = [
        collate(TextDataset(some, words.text).get(range(2))).text
        for some in ([example, plain], [plain, example])
    ]  # a text without tags changes nothing for the others
    assert [one.region_index.max(1).values.tolist() for one in named] == [[0, -1], [-1, 0]]  # type: ignore[union-attr]
    tags = (((0, 9, 1),), ())
    asked = replace(plain, text="person", choices=("cellphone", "dog"), choice_region_tags=tags)
    (choices,) = TextDataset([asked], words.text).get([0])
    assert [one.text.region_index.max() for one in choices.rows] == [1, -1]  # type: ignore[union-attr]
    rng = np.random.default_rng(0)
    for most in (0, 1, 4):
        (sample,) = RegionDataset(
            words, both, RegionOptions(whole_image=True, max_regions=most)
        ).get([0], [rng])
        assert sample.regions is not None and len(sample.regions) == 1 + (most or 5)
    with pytest.raises(InputError, match="3 annotated objects in their order"):
        RegionDataset(TextDataset([replace(example, object_count=3)], words.text), both).get(
            [0], [rng]
        )


def test_annotated_boxes_and_detections_together(config: RegionsConfig, tmp_path: Path) -> None:
    """VL-BERT learns RefCOCO+ from proposals and all annotated boxes, of which it is sure."""
    boxes = (0, 3, [0, 0, 20, 15]), (1, 18, [4, 3, 20, 15])
    notes = instances(tmp_path / "instances.json", FILES, *boxes)
    rows = [detection(1, [0, 0, 40, 30], 0.75, kind=3), detection(1, [8, 3, 20, 15], 1.0)]
    file = detections(tmp_path / "dets.json", *rows)
    parts = {"both": (str(file), str(notes)), "notes": (str(notes),), "dets": (str(file),)}
    for name, boxes in parts.items():
        regions(replace_settings(config, boxes=boxes), tmp_path / name)
    both, annotators, detector = (RegionStore(tmp_path / name) for name in parts)
    assert (both.ids, detector.ids) == (NAMES[:2], NAMES[1:2])
    assert both[NAMES[1]].confidence.tolist() == [1, 1, 0.75]
    np.testing.assert_allclose(both[NAMES[1]].boxes[0], [0.1, 0.1, 0.6, 0.6], atol=1e-6)
    np.testing.assert_allclose(both[NAMES[1]].boxes[1:], detector[NAMES[1]].boxes, atol=1e-6)
    assert [both.in_annotated_order(name) for name in both.ids] == [True, False]
    assert all(map(annotators.in_annotated_order, annotators))
    assert both.manifest["class_names"] == ["car", "dog"]
    assert both.identity == annotators.identity == detector.identity  # of one backbone


SURE = detection(1, [1, 1, 9, 9], 0.5)
COW = detection(1, [1, 1, 9, 9], 0.5, category_name="cow")
CONTRADICTIONS: list[tuple[tuple[str, ...], list[dict], str]] = [
    (("a.json", "b.json"), [], r"b.json: COCO_train2014_000000000000.jpg is listed twice"),
    (("a.json", "c.json"), [], "class 18 is 'cat' here and 'dog' elsewhere"),
    (("d.json",), [], "category_id 7 is not among the categories"),
    (("a.json", "dets.json"), [detection(2, [1, 1, 9, 9], 0.5)], "both of the .* found 2 and 18"),
    (("a.json", "dets.json"), [SURE | {"category_id": 7}], "dets.json.* found 1 and 7"),
    (("a.json", "vcr1images"), [], r"vcr1images: cannot be read"),
    (("dets.json",), [SURE, COW], "class 18 is 'cow' here and 'dog' elsewhere"),
]
"""Sources of boxes, what is detected, and the message."""


@pytest.mark.parametrize(("names", "rows", "message"), CONTRADICTIONS)
def test_sources_of_boxes_that_contradict_each_other(names, rows, message, tmp_path):
    notes = instances(tmp_path / "a.json", FILES, (0, 3, [0, 0, 20, 15]))
    put(tmp_path / "b.json", notes.read_text())
    put(tmp_path / "c.json", notes.read_text().replace('"dog"', '"cat"'))
    put(tmp_path / "d.json", notes.read_text().replace('"category_id": 3', '"category_id": 7'))
    detections(tmp_path / "dets.json", *rows)
    (tmp_path / "vcr1images").mkdir()
    with pytest.raises(InputError, match=message):
        read_annotated_boxes(*(tmp_path / name for name in names))


# -- the tasks ---------------------------------------------------------------------------------------------------------


def test_the_two_rules_differ_where_they_should() -> None:
    """A box of 10 x 5 pixels in one of 10 x 10: 66 of 121 by VL-BERT's counting, exactly half by MAttNet's."""
    example = Example("a", "x", gold_boxes=GoldBoxes(np.array([[0.0, 0, 10, 10]]), (20, 20)))
    row = regions_of([0, 0, 0.5, 0.25], [0, 0, 0.5, 0.5])
    for task in TASKS:
        marks = require(task.label_regions, "rule", task.name)(example, row)
        assert marks.tolist() == ([0, 1] if task.name.endswith("mattnet") else [1, 1]), task.name
    # Exactly half, counted VL-BERT's way: enough to be right, not enough to be learned.
    nine = Example("a", "x", gold_boxes=GoldBoxes(np.array([[0.0, 0, 9, 9]]), (20, 20)))
    plus = resolve("tasks", Task, "refcoco+")
    for rule, expected in ((plus.label_regions, 1), (plus.label_train_regions, 0)):
        assert require(rule, "rule", "a")(nine, regions_of([0, 0, 0.45, 0.2])) == expected


def regions_of(*boxes: list[float]) -> RegionRow:
    return replace(toys.regions(0, len(boxes)), boxes=np.array(boxes, np.float32))


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Expressions about six images, in all partitions."""
    folder = tmp_path_factory.mktemp("refer")
    files = {number: f"{number}.jpg" for number in range(6)}
    boxes = [(number, 18, [5, 5, 30, 20]) for number in files]
    instances(folder / "instances.json", files, *boxes)
    for by, last in (("unc", ("testA", "testB")), ("umd", ("test",)), ("google", ())):
        refs = []
        for n, split in enumerate(("train", "train", "train", "val", *last)):
            about = {"ref_id": n, "ann_id": n, "image_id": n, "split": split}
            said = [{"sent_id": 10 * n + k, "sent": f"the {'lrb'[k]} dog"} for k in range(3)]
            refs.append(about | {"sentences": said})
        put(folder / f"refs({by}).p", pickle.dumps(refs, protocol=2))
    return folder


@pytest.mark.parametrize("name", [task.name for task in TASKS])
def test_every_task_reads_its_splits_and_has_the_papers_head(name: str, world: Path) -> None:
    task = resolve("tasks", Task, name)
    read = {split: len(task.read(world, split)) for split in (task.train, *task.dev)}
    assert read == {"train": 9} | dict.fromkeys(task.dev, 3)
    assert task.dev == {
        "refcocog": ("val", "test"),
        "refcocog/mattnet": ("val", "test"),
        "refcocog/google": ("val",),
    }.get(name, ("val", "testA", "testB"))
    assert all(
        task.head_task in found_in("vision_language", Architecture)[kind].heads
        for kind in ("vlbert", "uniter")
    )


# -- imported images under other names ---------------------------------------------------------------------------------


def test_vcrs_stills_have_uniters_names(tmp_path: Path) -> None:
    stills = ["lsmdc_3/3_A_00.08@0", "movieclips_B/b@7"]
    lines = [json.dumps({"img_fn": f"{still}.jpg"}) for still in stills]
    told = (str(put(tmp_path / "val.jsonl", "\n".join([*lines, lines[0], ""]))),)
    put(tmp_path / "in/vcr_gt_val_3_A_00.08@0.npz", npz())
    put(tmp_path / "in/vcr_gt_val_unknown@0.npz", npz())
    put(tmp_path / "in/vcr_val_b@7.npz", npz())
    made, _ = imported(tmp_path / "out", tmp_path / "in", ids_as=told)
    assert made.ids == stills
    assert made.manifest["skipped"] == [
        "vcr_gt_val_unknown@0: `ids_as` gives no id to an image of in (KeyError: 'unknown@0')"
    ]


def test_several_files_become_one_store(tmp_path: Path) -> None:
    train = put(tmp_path / "train2014_obj36.tsv", lxmert("1") + lxmert("2"))
    val = put(tmp_path / "val2014_obj36.tsv", lxmert("3") + lxmert("1"))
    plain, _ = imported(tmp_path / "plain", train, val)
    assert plain.ids == ["1", "2", "3"]
    assert plain.manifest["skipped"] == ["1: repeated; the first one is used"]
    assert plain.manifest["source"] == [str(train), str(val)]
    named, _ = imported(tmp_path / "named", train, val, ids_as=("COCO_{subset}_{number}",))
    assert named.ids == [
        f"COCO_{one}" for one in ("train2014_1", "train2014_2", "val2014_3", "val2014_1")
    ]
    assert plain.identity == named.identity
    folder = put(tmp_path / "npz/4.npz", npz()).parent
    with pytest.raises(InputError, match=r"npz: a TSV of LXMERT and a npz of UNITER; make a store"):
        imported(tmp_path / "mixed", train, folder)


def test_numbers_of_mixed_subsets_are_named_by_cocos_json(tmp_path: Path) -> None:
    """Bottom-up attention's trainval files: plain numbers of train2014 and val2014."""
    file = put(tmp_path / "trainval_36.tsv", lxmert("1") + lxmert("2") + lxmert("7"))
    told = []
    for name, number in (("train2014", 1), ("val2014", 2)):
        images = [{"id": number, "file_name": f"COCO_{name}_{number:012d}.jpg"}]
        told.append(str(put(tmp_path / f"{name}.json", json.dumps({"images": images}))))
    store, _ = imported(tmp_path / "store", file, ids_as=tuple(told))
    assert store.ids == ["COCO_train2014_000000000001", "COCO_val2014_000000000002"]
    assert store.manifest["skipped"] == [
        f"7: `ids_as` gives no id to an image of {file.name} (KeyError: 7)"
    ]
    karpathy = {"images": [{"cocoid": 7, "filename": "seven.jpg"}]}
    path = put(tmp_path / "dataset_coco.json", json.dumps(karpathy))
    assert imported(tmp_path / "k", file, ids_as=(str(path),))[0].ids == ["seven"]


@pytest.mark.parametrize(
    ("ids_as", "message"),
    [
        (("COCO_{x}",), "no image can be stored .*`ids_as` gives no id .*KeyError: 'x'"),
        (("{subset}",), "no image can be stored .*KeyError: 'subset'"),
        (("{number",), "gives no id to an image of x.tsv .ValueError"),
        (("gone.json",), "gone.json: no such file"),
        (("a.json",), "a.json: cannot be read .ValueError"),
    ],
)
def test_names_that_are_none(ids_as, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    put(tmp_path / "a.json", '{"images": [{"id": "x", "file_name": "y"}]}')
    file = put(tmp_path / "x.tsv", lxmert("1"))
    with pytest.raises(InputError, match=message):
        imported(tmp_path / "out", file, ids_as=ids_as)
