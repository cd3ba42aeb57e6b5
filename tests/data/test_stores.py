"""One region store: several merged, one of the training data, and splits learned from together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tiny import homes
from tiny.homes import STEPS
from tiny.regions import imported, store
from tiny.tasks import vqa

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.data import read_splits
from groundling.core.batch import IGNORE, Example
from groundling.core.errors import InputError
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.data.regions import ImageRegions, RegionStore, RegionWriter
from groundling.settings.fields import make_settings, replace_settings
from groundling.stats.verdict_report import collect_runs
from groundling.tasks import Task
from groundling.tasks.vqa import VQA

BRIEF = replace(STEPS, batch=4)
TRAIN = [f"COCO_train2014_{n:012d}" for n in range(12)]
VAL = [f"COCO_val2014_{n:012d}" for n in range(6)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stores")
    homes.student(folder / "bert")
    vqa(folder / "vqa")
    store(folder / "train", TRAIN, backbone="resnet")
    store(folder / "val", VAL, backbone="resnet")
    store(folder / "both", [*TRAIN, *VAL], backbone="resnet")
    store(folder / "vit", VAL, backbone="vit")
    return folder


@pytest.fixture(scope="module")
def config(place: Path) -> FinetuneConfig:
    return make_settings(
        FinetuneConfig,
        model=str(place / "bert"),
        architecture="uniter",
        task="vqa",
        data=str(place / "vqa"),
        max_length=24,
    )


# -- several merged ----------------------------------------------------------------------------------------------------


def test_images_of_several_stores_become_one_store(tmp_path: Path) -> None:
    first = RegionStore(store(tmp_path / "a", ["1", "2"], backbone="resnet"))
    second = RegionStore(store(tmp_path / "b", ["2", "0", "3"]))
    both, result = imported(tmp_path / "both", first.folder, second.folder)
    assert list(both) == ["1", "2", "0", "3"] and (both.identity, both.origin) == (
        "hash of resnet",
        "resnet",
    )
    for name, old in (("1", first), ("0", second), ("3", second)):
        assert vars(both[name]).keys() == vars(old[name]).keys()
        for array, value in vars(old[name]).items():
            assert np.array_equal(getattr(both[name], array), value), array
        assert (both.size(name), both.count(name)) == (old.size(name), old.count(name))
    together = [*first["2"].features, *second["2"].features]
    assert np.array_equal(both["2"].features, together)
    assert both.appended_detections("2") == second.count("2")
    note = "1 image in several stores: the regions of all of them, store after store"
    assert result["notes"] == [note]
    assert both.manifest["source"] == [str(first.folder), str(second.folder)]


def test_segmentations_stay_and_others_fill_their_boxes(tmp_path: Path) -> None:
    cover = np.random.default_rng(0).random((1, 14, 14)) < 0.5
    row = (np.array([[0, 0, 1, 1]]), np.ones(1), np.ones((1, 3)))
    for name, own in (("a", cover), ("b", None)):
        writer = RegionWriter(tmp_path / name)
        images = [ImageRegions(image, (60, 40), *row, segmentation=own) for image in ("x", name)]
        writer.write(0, images)
        writer.close({"boxes_from": "a grid of 1 x 1", "seen": name})
    manifest = imported(tmp_path / "both", tmp_path / "a", tmp_path / "b")[0].manifest
    assert manifest["boxes_from"] == "a grid of 1 x 1" and "seen" not in manifest
    both = RegionStore(tmp_path / "both", features=False)
    full = np.ones((1, 14, 14), bool)
    for name, expected in (("a", [cover]), ("b", [full]), ("x", [cover, full])):
        assert np.array_equal(both[name].segmentation, np.concatenate(expected))


def test_stores_and_images_that_are_no_one_kind_are_refused(tmp_path: Path) -> None:
    first = store(tmp_path / "first", ["1", "2"], backbone="resnet")
    other = store(tmp_path / "sbu", ["2", "3"], size=(80, 80), backbone="resnet")
    both, _ = imported(tmp_path / "sizes", first, other)
    assert both.ids == ["1", "3"]
    assert both.manifest["skipped"] == [
        "2: has the sizes [(60, 40), (80, 80)], so these are several images"
    ]
    for name, other in (
        ("wide", {"width": 7, "backbone": "resnet"}),
        ("bare", {"classes": 0}),
        ("vit", {"backbone": "vit"}),
    ):
        made = store(tmp_path / name, ["2"], **other)  # type: ignore[arg-type]
        with pytest.raises(
            InputError, match="expected features of one model, and classes of"
        ) as told:
            imported(tmp_path / "both", first, made)
        assert str(made) in str(told.value)


# -- a store of the training data --------------------------------------------------------------------------------------


def test_training_data_may_have_a_store_of_their_own(config, place, tmp_path):
    # A store's regions are drawn in the order of its images, so those of val differ between `both` and `val`.
    ways = {
        "one": {"regions": "both"},
        "other": {"regions": "both", "train_regions": "train"},
        "val": {"regions": "val", "train_regions": "train"},
    }
    answers = {}
    for way, stores in ways.items():
        folders = {name: str(place / one) for name, one in stores.items()}
        finetune(replace_settings(config, **folders), BRIEF, tmp_path / way)
        answers[way] = (tmp_path / way / "seed-0/predictions_val.jsonl").read_text()
    assert answers["one"] == answers["other"] != answers["val"]
    inputs = json.loads((tmp_path / "val/config.json").read_text())["inputs"]
    for name, one in ways["val"].items():
        assert inputs[name]["path"] == str(place / one / "manifest.json")


@pytest.mark.parametrize(
    ("stores", "message"),
    [
        ({"train_regions": "train"}, "train_regions=.*: needs regions; pass regions"),
        ({"regions": "train"}, "6 of 6 images are not in this region store, .*COCO_val2014_0"),
        (
            {"regions": "vit", "train_regions": "train"},
            "vit: made by vit, but the model was trained with",
        ),
        (
            {"regions": "val", "train_regions": "val"},
            "12 of 12 images are not in this .* 'COCO_train2014_0",
        ),
    ],
)
def test_stores_that_do_not_fit_are_named(stores, message, config, place, tmp_path):
    folders = {name: str(place / one) for name, one in stores.items()}
    with pytest.raises(InputError, match=message):
        finetune(replace_settings(config, **folders), BRIEF, tmp_path)


# -- learned from together ---------------------------------------------------------------------------------------------


def test_train_and_val_are_learned_from_together_and_marked(config, place, tmp_path, capsys):
    both = replace_settings(config, train_splits=("train", "val"))
    splits = read_splits(VQA.with_answers_of(place / "vqa"), both)
    assert [example.id for example in splits["train"][-6:]] == [e.id for e in splits["val"]]
    assert len(splits["train"]) == 18
    both = replace_settings(both, regions=str(place / "both"))
    once = replace(BRIEF, steps=0, epochs=1)
    result = finetune(both, once, tmp_path / "both")
    seed = json.loads((tmp_path / "both/seed-0/result.json").read_text())
    assert (seed["samples"], seed["steps"]) == (18, 4)
    assert result["trained_on"] == seed["trained_on"] == ["val"]
    note = "val is a training split, so its scores are not on held-out data"
    assert result["notes"][0] == note and "use the photographs?" in result["notes"][1]
    assert f"note: {note}" in capsys.readouterr().err
    assert set(collect_runs("x", tmp_path / "both")) == {"vqa (val, learned from)"}
    plain = finetune(replace_settings(both, train_splits=()), once, tmp_path / "plain")
    assert "trained_on" not in plain and set(collect_runs("x", tmp_path / "plain")) == {"vqa"}


def test_soft_targets_of_two_splits_get_one_width(config: FinetuneConfig) -> None:
    wide = np.array([[0, 1.0], [1, 0.3]], np.float32)
    labels = {"train": wide, "val": wide[:1]}

    def read(folder: Path, split: str) -> list[Example]:
        return [Example(split, "a", label=labels[split])]

    task = Task("x", VQA.form, read, VQA.metrics, "test", dev=("val",))
    here = replace_settings(config, data=".", train_splits=("val", "train"))
    first, second = read_splits(task, here)["train"]
    assert (first.id, second.id) == ("val", "train")
    assert first.label.tolist() == [wide[0].tolist(), [IGNORE, IGNORE]]  # type: ignore[union-attr]
    assert second.label is wide


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("train", "test"), "vqa has no labelled split 'test'; there are: train, val"),
        (("val", "val"), "val is given twice"),
    ],
)
def test_splits_that_cannot_be_learned_from(splits, message, config, tmp_path):
    with pytest.raises(InputError, match=message):
        finetune(replace_settings(config, train_splits=splits), BRIEF, tmp_path)


def test_examples_of_one_id_in_two_splits_are_refused(config: FinetuneConfig) -> None:
    def read(folder: Path, split: str) -> list[Example]:
        return [Example("same", "a", label=0)]

    task = Task("x", Classification(("n", "y")), read, (ACCURACY,), "test")
    here = replace_settings(config, data=".", train_splits=("train", "dev"))
    with pytest.raises(InputError, match="2 examples are called 'same'"):
        read_splits(task, here)
