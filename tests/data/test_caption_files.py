"""Captions to pre-train on: Karpathy's split, several files by weight, and what an epoch counts."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny import homes
from tiny.homes import STEPS, put
from tiny.regions import store

from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.captions import (
    CaptionedImage,
    has_splits,
    keep_listed,
    read_captions,
)
from groundling.data.regions.samples import CaptionSampleDataset
from groundling.data.samples import TextRowEncoder
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import CaptionSettings

BRIEF = replace(STEPS, batch=4)


def entry(number: int, split: str, captions: int = 2, **more: Any) -> dict[str, Any]:
    """An image of Karpathy's `dataset_coco.json`."""
    said = [
        {"raw": f"caption {n} of {number} . ", "tokens": ["caption"], "imgid": number, "sentid": n}
        for n in range(captions)
    ]
    folder = "train2014" if split == "train" else "val2014"
    file = f"COCO_{folder}_{number:012d}.jpg"
    own = {"filepath": folder, "filename": file, "split": split, "cocoid": number}
    return own | {"sentences": said, "imgid": number, "sentids": [0, 1]} | more


def karpathy(path: Path, *images: dict[str, Any]) -> Path:
    every = images or [entry(n, s) for n, s in enumerate(("train", "restval", "val", "test"))]
    return put(path, json.dumps({"images": every, "dataset": "coco"}))


def splits_of(*splits: str) -> CaptionSettings:
    return CaptionSettings(caption_splits=splits)


# -- Karpathy's split --------------------------------------------------------------------------------------------------


def test_karpathys_json(tmp_path: Path) -> None:
    path = karpathy(tmp_path / "dataset_coco.json")
    assert has_splits(path)
    assert read_captions(path, splits_of("restval", "train")).images == [
        CaptionedImage(
            "0", "COCO_train2014_000000000000.jpg", ("caption 0 of 0 .", "caption 1 of 0 .")
        ),
        CaptionedImage(
            "1", "COCO_val2014_000000000001.jpg", ("caption 0 of 1 .", "caption 1 of 1 .")
        ),
    ]
    flickr = entry(5, "train")
    del flickr["cocoid"], flickr["filepath"]
    path = karpathy(tmp_path / "dataset_flickr30k.json", flickr)
    (image,) = read_captions(path, splits_of("train")).images
    assert image.id == image.file == "COCO_train2014_000000000005.jpg"


def test_a_file_without_splits_is_not_read_as_if_it_had_some(tmp_path: Path) -> None:
    plain = homes.coco(tmp_path / "captions.json", [(0, "a.jpg")], [(0, "a dog")])
    text = put(tmp_path / "cc.tsv", "a dog\ta.jpg\n")
    for path in (plain, text):
        assert not has_splits(path)
        with pytest.raises(
            InputError, match="its images have no splits, as caption_splits selects"
        ):
            read_captions(path, splits_of("train"))


def test_karpathys_lists_name_files_by_path_or_name(tmp_path: Path) -> None:
    image_list = put(
        tmp_path / "karpathy_val_images.txt",
        "val2014/COCO_val2014_000000011169.jpg 11169\nval2014/COCO_val2014_000000000042.jpg 42",
    )
    flat = CaptionedImage("11169", "COCO_val2014_000000011169.jpg", ("a",))
    nested = CaptionedImage("42", "val2014/COCO_val2014_000000000042.jpg", ("a",))
    other = CaptionedImage("43", "COCO_val2014_000000000043.jpg", ("a",))
    assert keep_listed([flat, nested, other], image_list) == [flat, nested]
    spaced = put(tmp_path / "spaced.txt", "my photo 3.jpg\n")
    named = CaptionedImage("x", "my photo 3.jpg", ("a",))
    assert keep_listed([named, other], spaced) == [named]


# -- what an epoch counts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pairs", [False, True])
def test_every_caption_comes_up_once_in_an_epoch(pairs: bool) -> None:
    made = [
        CaptionedImage(f"i{n}", f"{n}.jpg", tuple(f"c{n} c{k}" for k in range(n + 1)))
        for n in range(4)
    ]
    text = TextRowEncoder(homes.words(), 24)
    every = CaptionSampleDataset(made, text, pairs, every_caption=True)
    assert len(every) == len(every.lengths) == 10 and len(set(every.ids)) == 10
    assert Counter(image for (image,) in every.images) == {"i0": 1, "i1": 2, "i2": 3, "i3": 4}
    rngs = [generator(0, n) for n in range(10)]
    samples = every.get(range(10), rngs)
    firsts = [sample.example.text for sample in samples]  # type: ignore[union-attr]
    assert firsts == [caption for image in made for caption in image.captions]
    assert [sample.id for sample in samples] == every.ids
    assert every.sizes.shape == (10, 3)
    assert all(
        len(sample.text.input_ids) <= most
        for sample, most in zip(samples, every.sizes[:, 1], strict=True)
    )  # type: ignore[union-attr]
    if not pairs:
        return
    seconds: dict[int, set[str]] = {0: set(), 1: set()}
    for epoch in range(40):
        (sample,) = every.get([8], [generator(1, epoch)])
        seconds[int(sample.labels["sentence_image"])].add(sample.example.text_pair or "")  # type: ignore[union-attr]
    assert seconds[1] == {"c3 c0", "c3 c1", "c3 c3"}  # i3's others
    assert seconds[0] and not any(one.startswith("c3") for one in seconds[0])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("captions")
    homes.student(folder / "bert")
    coco = [f"COCO_train2014_{n:012d}" for n in range(6)]
    store(folder / "coco", coco)
    store(folder / "cc", [f"{n}" for n in range(8)])
    store(folder / "every", [*coco, *(f"{n}" for n in range(8))])
    captions = [(n % 6, f"a dog and {n} cats") for n in range(18)]
    homes.coco(folder / "coco.json", [(n, f"{name}.jpg") for n, name in enumerate(coco)], captions)
    rows = "".join(f"a bus number {n}\t{n}.jpg\n" for n in range(8))
    put(folder / "cc.tsv", rows)
    return folder


@pytest.fixture
def config(place: Path, monkeypatch: pytest.MonkeyPatch) -> PretrainConfig:
    monkeypatch.chdir(place)
    return make_settings(
        PretrainConfig,
        architecture="uniter",
        model="bert",
        regions="every",
        captions=("coco.json", "cc.tsv"),
        max_length=24,
    )


def test_an_epoch_is_of_captions_or_of_images(config: PretrainConfig, tmp_path: Path) -> None:
    """A release's epoch of COCO has five times as many samples as COCO has images."""
    once = replace(STEPS, steps=0, epochs=1, batch=2)
    for unit, samples in (("captions", 26), ("images", 14)):
        result = pretrain(replace_settings(config, epoch_unit=unit), once, tmp_path / unit)
        assert (result["samples"], result["steps"]) == (samples, samples // 2)
        assert result["left_out"] == 0
    inputs = json.loads((tmp_path / "images/config.json").read_text())["inputs"]
    assert {inputs[name]["path"] for name in ("captions", "captions:1")} == {"coco.json", "cc.tsv"}


# -- several files -----------------------------------------------------------------------------------------------------


class Stopped(Exception):
    """The sources of a run, which is not run."""


def sources_of(config: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def catch(
        model: object, objectives: object, sources: object, *rest: object, **more: object
    ) -> None:
        raise Stopped(sources)

    monkeypatch.setattr("groundling.training.fit.train", catch)
    with pytest.raises(Stopped) as stopped:
        pretrain(config, BRIEF, tmp_path)
    return stopped.value.args[0]


def test_files_are_drawn_by_weight_with_every_kind_of_step(config, tmp_path, monkeypatch):
    weighted = replace_settings(config, captions=("coco.json=2", "cc.tsv=3"))
    sources = sources_of(weighted, tmp_path / "weighted", monkeypatch)
    shares = {source.name: source.ratio for source in sources}
    assert len(shares) == 8  # UNITER's four kinds, of each file
    by_file: dict[str, float] = {}
    for source in sources:
        file, _, kind = source.name.partition(": ")
        by_file[file] = by_file.get(file, 0) + source.ratio
        assert source.ratio * 3 == shares[f"cc.tsv: {kind}"] * 2 or file == "cc.tsv"
    assert by_file == {"coco.json": 12, "cc.tsv": 18}
    sizes = {source.name.partition(": ")[0]: len(source.samples) for source in sources}
    assert sizes == {"coco.json": 18, "cc.tsv": 8}
    plain = sources_of(
        replace_settings(config, architecture="visualbert"), tmp_path / "plain", monkeypatch
    )
    assert [source.ratio for source in plain] == [18, 8]
    for source in plain:  # a step and its negatives stay inside a file
        are_coco = {image.startswith("COCO") for (image,) in source.samples.images}
        assert are_coco == {source.name.startswith("coco.json")}


@pytest.mark.parametrize(
    ("captions", "message"),
    [
        (("coco.json=0", "cc.tsv=1"), "coco.json=0: expected a weight above 0"),
        (("coco.json=nan", "cc.tsv=1"), "coco.json=nan: expected a weight above 0"),
        (("coco.json=six", "cc.tsv=1"), "coco.json=six: not FILE or FILE=WEIGHT"),
        (("coco.json=6", "cc.tsv"), "cc.tsv has no weight; give one to all files or to none"),
        (("cc.tsv=6", "cc.tsv=1"), "cc.tsv is given twice"),
    ],
)
def test_weights_that_are_none(captions, message, config, tmp_path):
    with pytest.raises(InputError, match=message):
        pretrain(replace_settings(config, captions=captions), BRIEF, tmp_path)


def test_a_split_for_the_file_that_has_splits(config, place, tmp_path, monkeypatch):
    splits = ("train", "restval", "val", "train", "train", "test")
    images = [
        entry(n, split, filename=f"COCO_train2014_{n:012d}.jpg") for n, split in enumerate(splits)
    ]
    path = karpathy(tmp_path / "dataset_coco.json", *images)
    both = replace_settings(
        config, captions=(str(path), "cc.tsv"), caption_splits=("train", "restval")
    )
    sources = sources_of(both, tmp_path / "both", monkeypatch)
    named = {image for source in sources for (image,) in source.samples.images}
    assert {image[-1] for image in named if image.startswith("COCO")} == {"0", "1", "3", "4"}
    assert len([image for image in named if not image.startswith("COCO")]) == 8
    with pytest.raises(InputError, match="select caption_splits from"):
        pretrain(replace_settings(both, caption_splits=()), BRIEF, tmp_path / "unsaid")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"regions": "cc"}, "6 of 6 captioned images are missing"),
        ({"regions": "coco"}, "cc.tsv: .*coco: 8 of 8 captioned .* 0.jpg"),
        ({"image_list": "list.txt"}, "list.txt: lists none of the captioned images"),
    ],
)
def test_stores_and_lists_that_do_not_fit(change, message, config, tmp_path):
    put(Path("list.txt"), "0.jpg\n")
    with pytest.raises(InputError, match=message):
        pretrain(replace_settings(config, **change), BRIEF, tmp_path)
