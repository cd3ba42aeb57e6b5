"""The right regions for each split: several stores together, a store for a split, and splits learned from together."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import homes
import numpy as np
import pytest
from builders.regions import store
from builders.tasks import vqa
from homes import STEPS

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.data import add_regions, read_splits, regions_of
from groundling.core.batch import IGNORE, Example
from groundling.core.errors import InputError
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.data.regions.inputs import ImageSampleBuilder, manifests
from groundling.data.regions.store import ImageRegions, RegionStore, RegionWriter
from groundling.data.regions.stores import CombinedStore
from groundling.data.samples import TextDataset
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import RegionSettings
from groundling.stats.finished_runs import collect_runs
from groundling.tasks import Task
from groundling.tasks.vqa import VQA
from groundling.vision_language.loading import load_encoder

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


def test_a_lone_store_may_be_written_as_a_text() -> None:
    assert RegionSettings("store").regions == ("store",)  # type: ignore[arg-type]
    assert RegionSettings("").regions == ()  # type: ignore[arg-type]
    assert make_settings(FinetuneConfig, regions=["a", "b"]).regions.regions == ("a", "b")


# -- several as one ----------------------------------------------------------------------------------------------------


def test_the_first_store_that_has_an_image_counts(tmp_path: Path) -> None:
    first = RegionStore(store(tmp_path / "a", ["1", "2"]))
    second = RegionStore(store(tmp_path / "b", ["2", "0", "3"]))
    both = CombinedStore([first, second])
    assert list(both) == ["1", "2", "0", "3"] and len(both) == 4
    assert "3" in both and "4" not in both
    assert np.array_equal(both["2"].features, first["2"].features)
    assert not np.array_equal(both["2"].boxes, second["2"].boxes)
    assert np.array_equal(both["3"].boxes, second["3"].boxes)
    assert (both.count("3"), both.size("3")) == (second.count("3"), (60, 40))
    assert both.in_several_stores(["1", "2", "3"]) == ["2"]
    assert CombinedStore([first]).in_several_stores(["1", "2"]) == []
    with pytest.raises(InputError, match="no image '4'"):
        both["4"]


def test_stores_that_are_no_one_kind_are_refused(tmp_path: Path) -> None:
    made = {
        "first": store(tmp_path / "first", ["1"], backbone="resnet"),
        "wide": store(tmp_path / "wide", ["2"], width=7, backbone="resnet"),
        "bare": store(tmp_path / "bare", ["2"], classes=0, backbone="resnet"),
        "other": store(tmp_path / "other", ["2"], backbone="vit"),
        "unknown": store(tmp_path / "unknown", ["2"]),
    }
    first = RegionStore(made["first"])
    for name, message in (
        ("wide", "features have widths 12 and 7"),
        ("bare", "regions have 5 classes without background and no classes"),
        ("other", "made by resnet and by vit; stores that are used together need the same kind"),
    ):
        with pytest.raises(InputError, match=message) as told:
            CombinedStore([first, RegionStore(made[name])])
        assert "\n" not in str(told.value) and str(made[name]) in str(told.value)
    writer = RegionWriter(tmp_path / "covered")
    parts = (np.array([[0, 0, 1, 1]]), np.ones(1), np.zeros((1, 12)), np.full((1, 5), 0.2))
    writer.write(0, [ImageRegions("3", (60, 40), *parts, segmentation=np.ones((1, 14, 14), bool))])
    writer.close({"source": "test"})
    with pytest.raises(InputError, match="first has no segmentations of objects"):
        CombinedStore([RegionStore(tmp_path / "covered"), first])
    both = CombinedStore([RegionStore(made["unknown"]), first])
    assert (both.identity, both.origin) == ("hash of resnet", "resnet")
    blind = [RegionStore(made[name], features=False) for name in ("first", "other")]
    assert CombinedStore(blind).width == 0  # whose features nobody reads


def test_names_say_what_a_store_is_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b", "c", "train=d"):
        store(tmp_path / name, [name])
    names = ("train", "val", "test")

    def of(words: list[str], *asked: str) -> list[str]:
        inputs = ImageSampleBuilder(RegionSettings(tuple(words)), names, "split of x")
        return [str(one.folder) for one in inputs.stores(*asked).stores]

    assert of(["a"], "train") == of(["a"], "test") == ["a"]
    assert of(["a", "b"], "val") == ["a", "b"]
    assert of(["a", "train=b", "train=c"], "train") == ["b", "c"]
    assert of(["a", "train=b"], "val") == ["a"]
    assert of(["train=a", "val=b"], "train", "val") == ["a", "b"]
    assert of(["train=a", "val=a"], "train", "val") == ["a"]
    assert of(["train=d"], "val") == ["train=d"]  # a folder of that name
    for words, asked, message in (
        (["tran=a"], "train", "no split of x is called 'tran'; there are: train, val, test"),
        (["train="], "train", "expected STORE or NAME=STORE"),
        (["train=a"], "val", "no store for the split of x 'val'; add val=STORE"),
        (["x"], "val", "x: not a complete region store"),
    ):
        with pytest.raises(InputError, match=message) as told:
            of(words, asked)
        assert "\n" not in str(told.value)
    with pytest.raises(InputError, match=r"is called 'train'; .*leave the name out"):
        ImageSampleBuilder(RegionSettings(("train=a",)), (), "split")
    assert manifests(["a"]) == {"regions": Path("a/manifest.json")}
    assert list(manifests(["a", "val=b"]).values()) == [
        Path("a/manifest.json"),
        Path("b/manifest.json"),
    ]


# -- a store for a split -----------------------------------------------------------------------------------------------


def test_every_way_to_pass_the_same_regions_gives_the_same_answers(
    config: FinetuneConfig, place: Path, tmp_path: Path
) -> None:
    ways = {
        "one": [str(place / "both")],
        "several": [str(place / "val"), str(place / "train")],
        "named": [f"train={place / 'train'}", f"val={place / 'val'}"],
        "rest": [f"train={place / 'train'}", str(place / "both")],
    }
    # A store's regions are drawn in the order of its images, so those of val differ between `both` and `val`.
    homes_of_val = {"one": "both", "several": "val", "named": "val", "rest": "both"}
    answers: dict[str, set[str]] = {}
    for way, words in ways.items():
        finetune(replace_settings(config, regions=tuple(words)), BRIEF, tmp_path / way)
        file = tmp_path / way / "seed-0" / "predictions_val.jsonl"
        answers.setdefault(homes_of_val[way], set()).add(file.read_text())
    assert [len(some) for some in answers.values()] == [1, 1]
    assert answers["both"] != answers["val"]
    inputs = json.loads((tmp_path / "named" / "config.json").read_text())["inputs"]
    assert [inputs[f"regions:{n}"]["path"] for n in (0, 1)] == [
        str(place / name / "manifest.json") for name in ("train", "val")
    ]


def test_a_changed_manifest_is_another_run(
    config: FinetuneConfig, place: Path, tmp_path: Path
) -> None:
    store(tmp_path / "val", VAL, backbone="resnet")
    words = (f"train={place / 'train'}", f"val={tmp_path / 'val'}")
    finetune(replace_settings(config, regions=words), BRIEF, tmp_path / "run")
    manifest = tmp_path / "val" / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"test"', '"tost"'))
    with pytest.raises(InputError, match=r"holds another run \(inputs.regions:1"):
        finetune(replace_settings(config, regions=words), BRIEF, tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("train={}/train", "dev={}/val"),
            "no split of vqa is called 'dev'; there are: train, val, ",
        ),
        (("train={}/train",), "no store for the split of vqa 'val'"),
        (("train={}/train", "val={}/vit"), "vit: made by vit, but the model was trained with"),
        (
            ("train={}/val", "val={}/val"),
            "12 of 12 images are not in this region store, the first is 'COCO_train2014_0",
        ),
        (("{}/train", "{}/gone"), "gone: no such file"),
    ],
)
def test_stores_that_do_not_fit_are_named(
    words: tuple[str, ...], message: str, config: FinetuneConfig, place: Path, tmp_path: Path
) -> None:
    regions = tuple(word.format(place) for word in words)
    with pytest.raises(InputError, match=message) as told:
        finetune(replace_settings(config, regions=regions), BRIEF, tmp_path)
    assert "\n" not in str(told.value)


# -- learned from together ---------------------------------------------------------------------------------------------


def test_train_and_val_are_learned_from_together_and_marked(
    config: FinetuneConfig, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = replace_settings(config, train_splits=("train", "val"))
    splits = read_splits(
        VQA.with_answers_of(place / "vqa"), both.data, train_splits=both.train_splits
    )
    assert [example.id for example in splits["train"][-6:]] == [e.id for e in splits["val"]]
    assert len(splits["train"]) == 18
    words = (f"train={place / 'train'}", f"val={place / 'val'}")
    once = replace(BRIEF, steps=0, epochs=1)
    result = finetune(replace_settings(both, regions=words), once, tmp_path / "both")
    seed = json.loads((tmp_path / "both/seed-0/result.json").read_text())
    assert (seed["samples"], seed["steps"]) == (18, 4)
    assert result["trained_on"] == seed["trained_on"] == ["val"]
    note = "val is a training split, so its scores are not on held-out data"
    assert result["notes"] == [note] and f"note: {note}" in capsys.readouterr().err
    assert set(collect_runs("x", tmp_path / "both")) == {"vqa (val, learned from)"}
    plain = finetune(replace_settings(config, regions=words), once, tmp_path / "plain")
    assert "trained_on" not in plain and set(collect_runs("x", tmp_path / "plain")) == {"vqa"}


def test_each_split_keeps_its_own_regions_when_learned_from_together(
    config: FinetuneConfig, place: Path, tmp_path: Path
) -> None:
    words = (f"train={place / 'train'}", f"val={place / 'val'}")
    both = replace_settings(config, train_splits=("train", "val"), regions=words)
    task = VQA.with_answers_of(place / "vqa")
    finetune(replace_settings(both, save_model=True), BRIEF, tmp_path / "made")
    student = load_encoder(tmp_path / "made/seed-0/model")
    inputs = student.inputs(24)[0]
    texts = {
        s: TextDataset(examples, inputs)
        for s, examples in read_splits(task, both.data, train_splits=both.train_splits).items()
    }
    made = add_regions(
        texts,
        student,
        task,
        regions_of(both.regions, task, both.train_splits),
    )
    (first,), (last,) = (made["train"].get([place], ()) for place in (0, 17))
    assert np.array_equal(first.regions.boxes, RegionStore(place / "train")[TRAIN[0]].boxes)
    assert np.array_equal(last.regions.boxes, RegionStore(place / "val")[VAL[5]].boxes)
    other = replace_settings(both, regions=(f"train={place / 'both'}", f"val={place / 'val'}"))
    with pytest.raises(
        InputError, match=r"is in .*both, but also in .*val, the store of val"
    ) as told:
        add_regions(
            texts,
            student,
            task,
            regions_of(
                other.regions,
                task,
                other.train_splits,
                zero_region_features=other.zero_region_features,
                flip=other.pixels.flip,
            ),
        )
    assert "\n" not in str(told.value)
    alone = replace_settings(other, train_splits=())
    made = add_regions(
        texts,
        student,
        task,
        regions_of(
            alone.regions,
            task,
            alone.train_splits,
            zero_region_features=alone.zero_region_features,
            flip=alone.pixels.flip,
        ),
    )
    assert set(made) == {"train", "val"}


def test_soft_targets_of_two_splits_get_one_width(config: FinetuneConfig) -> None:
    wide = np.array([[0, 1.0], [1, 0.3]], np.float32)
    labels = {"train": wide, "val": wide[:1]}

    def read(folder: Path, split: str) -> list[Example]:
        return [Example(split, "a", label=labels[split])]

    task = Task("x", VQA.form, read, VQA.metrics, "test", dev=("val",))
    here = replace_settings(config, data=".", train_splits=("val", "train"))
    first, second = read_splits(task, here.data, train_splits=here.train_splits)["train"]
    assert (first.id, second.id) == ("val", "train")
    assert first.label.tolist() == [wide[0].tolist(), [IGNORE, IGNORE]]  # type: ignore[union-attr]
    assert second.label is wide


@pytest.mark.parametrize(
    ("splits", "message"),
    [
        (("train", "test"), "vqa has no labelled split 'test'; there are: train, val"),
        (("train", "vall"), "no labelled split 'vall'"),
        (("val", "val"), "val is given twice"),
    ],
)
def test_splits_that_cannot_be_learned_from(
    splits: tuple[str, ...], message: str, config: FinetuneConfig, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=message) as told:
        finetune(replace_settings(config, train_splits=splits), BRIEF, tmp_path)
    assert "\n" not in str(told.value)


def test_examples_of_one_id_in_two_splits_are_refused(config: FinetuneConfig) -> None:
    def read(folder: Path, split: str) -> list[Example]:
        return [Example("same", "a", label=0)]

    task = Task("x", Classification(("n", "y")), read, (ACCURACY,), "test")
    here = replace_settings(config, data=".", train_splits=("train", "dev"))
    with pytest.raises(InputError, match="2 examples are called 'same'; the splits overlap"):
        read_splits(task, here.data, train_splits=here.train_splits)
