"""Region stores of every kind through every command that reads regions: what is taken, what is refused, and why."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import standins, vcr_files
from tiny.homes import picture, put, student, table
from tiny.regions import resnet, seeing_models

from groundling.cli import main
from groundling.core.batch import Sample
from groundling.data.image_samples import RandomFlipDataset
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.samples import SampleDataset
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.world import World

FLICKR = ("0000000002", "0000000003", "1000000004", "1000000007")
STILLS = ("movie/0", "movie/1", "movie/2")
BRIEF = ("--steps", "1", "--batch", "3")
OBJECTS = (
    r"numbers the objects of 'movie/\d', but the region store lacks the image's 5 annotated objects"
)
FEW = ("--most-questions", "2")
ONE = ("--limit-train", "4", "--max-length", "24")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return seeing_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def place(models: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of Flickr30k and stills of VCR, as a world draws them, and a store of each kind of them all."""
    folder = tmp_path_factory.mktemp("every")
    write_tasks(World(WorldConfig(scenes=0, dev_scenes=0)), folder, 12, 12)
    photos = folder / "photos"
    for name in FLICKR:
        put(photos / f"{name}.jpg", (folder / f"images/{name}.jpg").read_bytes())
    things = json.loads((folder / "instances.json").read_text())
    things["images"] = [i for i in things["images"] if i["file_name"][:-4] in FLICKR]
    known = {image["id"] for image in things["images"]}
    things["annotations"] = [a for a in things["annotations"] if a["image_id"] in known]
    for number, name in enumerate(STILLS):
        picture(photos / f"{name}.jpg", (40 * number, 90, 10), (32, 32))
        box = [[4.0 + n, 2.0, 24.0, 20.0 + n] for n in range(5)]
        halves = [[[[x, y], [x, v], [(x + u) / 2, v], [(x + u) / 2, y]]] for x, y, u, v in box]
        about: dict[str, Any] = {"boxes": [[*b, 1.0] for b in box], "segms": halves}
        about |= {"names": list(vcr_files.OBJECTS), "width": 32, "height": 32}
        put(photos / f"{name}.json", json.dumps(about))
        things["images"].append(
            {"id": -1 - number, "file_name": f"{name}.jpg", "width": 32, "height": 32}
        )
        for n, (x, y, u, v) in enumerate(box):
            own = {"id": 9000 + 10 * number + n, "image_id": -1 - number, "category_id": 1 + n % 3}
            things["annotations"].append({**own, "bbox": [x, y, u - x, v - y], "iscrowd": 0})
    put(folder / "boxes.json", json.dumps(things))
    vcr_files.folder(folder / "vcr", train=8, val=4)
    rows = [(f"a thing {n}", f"{name}.jpg") for n, name in enumerate((*FLICKR, *STILLS))]
    put(folder / "told.csv", table(("caption", "image"), *rows))
    pairs = {"image_0": "movie/0", "image_1": "movie/1"}
    pairs |= {"caption_0": "a dog and a cat", "caption_1": "a cat and a dog"}
    put(folder / "pairs/examples.jsonl", json.dumps(pairs) + "\n")
    student(folder / "bert")
    resnet(folder / "cnn")
    torch.manual_seed(0)
    vit, detr = standins.backbone(folder / "vit"), standins.detector(folder / "detr")
    look = ["--images", str(photos), "--backbone", str(vit), "--cpu"]
    made = {
        "grid": [*look, "--grid", "2"],
        "detector": [*look, "--detector", str(detr), "--min-boxes", "2", "--max-boxes", "3"],
        "boxes": [*look, "--boxes", str(folder / "boxes.json")],
        "segments": [*look, "--boxes", str(photos)],
    }
    for name, flags in made.items():
        assert main(["regions", *flags, "--out", str(folder / name)]) == 0
    for name, some in (("stills", STILLS), ("flickr", FLICKR)):
        own = folder / f"only-{name}"
        for one in some:
            put(own / f"{one}.jpg", (photos / f"{one}.jpg").read_bytes())
        flags = ["--images", str(own), "--backbone", str(vit), "--cpu", "--grid", "2"]
        assert main(["regions", *flags, "--out", str(folder / name)]) == 0
    parts = [str(folder / name) for name in ("stills", "flickr")]
    assert main(["regions", "--imports", *parts, "--out", str(folder / "merged")]) == 0
    return folder


@pytest.fixture
def roads(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[SampleDataset]]:
    """All samples that are made with regions, by the command that `asking` has begun."""
    every: dict[str, list[SampleDataset]] = defaultdict(list)
    usual = ImageSampleBuilder.samples

    def samples(
        self: ImageSampleBuilder,
        texts: SampleDataset,
        model: Any,
        seen: Any,
        *more: Any,
        **named: Any,
    ) -> SampleDataset:
        found = usual(self, texts, model, seen, *more, **named)
        if seen.store is not None:
            every[NOW[-1]].append(found)
        return found

    monkeypatch.setattr(ImageSampleBuilder, "samples", samples)
    return every


NOW = [""]


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command refuses, in one line; empty if it does what it is asked."""
    NOW.append(words[0])
    capsys.readouterr()
    status = main([*words])
    lines = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("groundling:")
    ]
    assert (status, len(lines)) in ((0, 0), (2, 1)), (words, status, lines)
    return lines[0] if lines else ""


def by_image(every: Sequence[SampleDataset]) -> dict[str, list[Sample]]:
    """The samples of one image each, by that."""
    found = defaultdict(list)
    for samples in every:
        plain = samples.samples if isinstance(samples, RandomFlipDataset) else samples
        for place, images in enumerate(plain.images):
            rng = np.random.default_rng(0)
            found[images[0]] += plain.get([place], [rng])
    return found


def alike(roads: dict[str, list[SampleDataset]], commands: Sequence[str]) -> None:
    """Whatever command reads an image, it reads the same regions and the same pixels of it."""
    assert set(roads) == set(commands)
    first: dict[str, tuple[str, Any, Any]] = {}
    for command, every in roads.items():
        for image, samples in by_image(every).items():
            for sample in samples:
                row = sample.rows[0].regions
                assert row is not None
                own = {name: value for name, value in vars(row).items() if value is not None}
                before = first.setdefault(image, (command, own, sample.pixels))
                assert own.keys() == before[1].keys()
                for name, value in own.items():
                    same = np.array_equal(value, before[1][name])
                    assert same, f"{name} of {image}: {command}, {before[0]}"
                if sample.pixels is not None and before[2] is not None:
                    assert np.array_equal(sample.pixels, before[2])


def asked_alike(roads: dict[str, list[SampleDataset]]) -> None:
    """`evaluate` and `predict` put an example as the evaluation of the run that learned did, to the last array."""
    first: dict[str, Sample] = {}
    for command in ("finetune", "evaluate", "predict"):
        here = {one.id: one for some in by_image(roads[command]).values() for one in some}
        for name in [name for name in here if "-val-" in name]:
            sample, before = here[name], first.setdefault(name, here[name])
            assert len(sample.rows) == len(before.rows) == 4
            for row, other in zip(sample.rows, before.rows, strict=True):
                assert row.text is not None and other.text is not None
                for part, value in vars(row.text).items():
                    assert np.array_equal(value, vars(other.text)[part]), (command, part)
    assert len(first) == 4


@pytest.mark.parametrize("kind", ["detector", "boxes", "merged"])
def test_stored_features(kind, place, tmp_path, roads, capsys):
    stores = ["--regions", str(place / kind)]
    pre, run = str(tmp_path / "pre/model"), str(tmp_path / "run")

    def asks(command: str, *words: str, out: str = "", stores: Sequence[str] = stores) -> str:
        where = ["--out", str(tmp_path / (out or command))] if out != "none" else []
        return said(capsys, command, *words, *stores, "--cpu", *where)

    vcr = ("--task", "vcr/answer", "--data", str(place / "vcr"))
    told = str(place / "told.csv")
    start = ("--model", str(place / "bert"), "--captions", told, *BRIEF)
    assert not asks("pretrain", "--architecture", "visualbert", *start, out="pre")
    tuning = ("--model", pre, *vcr, *BRIEF, *ONE)
    zero = ("--model", pre, *vcr, *FEW)
    shown = ("--no-perturbed-inputs", "--ig-examples", "0", "--limit", "4")
    weigh = ("--model", pre, *vcr, *shown)
    untied: tuple[str, ...] = ()
    if (
        kind != "boxes"
    ):  # words name objects by number, and in these stores nobody has numbered them
        for command, words in (("finetune", tuning), ("zero-shot", zero), ("modality", weigh)):
            reason = asks(command, *words, out=f"tied-{command}")
            assert re.search(OBJECTS, reason) and reason.endswith("or pass object_tags=False")
            del roads[command]
        untied = ("--no-object-tags",)
    assert not asks("finetune", *tuning, *untied, out="run")
    assert not asks("zero-shot", *zero, *untied)
    assert not asks("modality", *weigh, *untied)
    assert not asks("modality", "--model", run, "--data", str(place / "vcr"), *shown, out="tuned")
    saved = ("--model", run, "--data", str(place / "vcr"))
    assert not asks("evaluate", *saved, "--split", "val", out="none")
    assert not asks("predict", *saved, "--split", "val", out="answers.csv")
    assert not asks("winoground", "--model", pre, "--data", str(place / "pairs"))
    flickr = ("--model", pre, "--data", str(place / "flickr30k"), "--split", "val")
    assert not asks("heads", *flickr, "--no-shuffled-images-control")
    assert not asks(
        "syntax", *flickr, "--parses", "gold", "--min-arcs", "1", "--no-shuffled-images-control"
    )
    page = ("--model", pre, run, *vcr, "--images", str(place / "photos"), "--limit", "1")
    assert not asks("visualize", *page, out="look.html")
    commands = (
        "pretrain finetune zero-shot modality evaluate predict winoground heads syntax visualize"
    )
    alike(roads, commands.split())
    asked_alike(roads)
    if kind != "boxes":
        return
    # A model that learned which object a word names cannot read a store of others, and no flag changes that.
    grid = ("--regions", str(place / "grid"))
    for command, words in (("evaluate", saved), ("predict", saved), ("modality", saved)):
        more = shown if command == "modality" else ("--split", "val")
        out = {"evaluate": "none", "predict": "other.csv"}.get(command, "other")
        reason = asks(command, *words, *more, out=out, stores=grid)
        assert (
            "boxes are from a grid of 2 x 2, but the model was trained with boxes from files of boxes"
            in reason
        )
        more_out = f"more-{out}" if out != "none" else out
        more += ("--allow-region-mismatch",)
        reason = asks(command, *words, *more, out=more_out, stores=grid)
        assert re.search(OBJECTS, reason) and "--no-object-tags" not in reason


@pytest.mark.parametrize("kind", ["boxes", "segments"])
def test_pixels_within_stored_boxes(kind, place, tmp_path, roads, capsys):
    """VL-BERT end to end: of a store boxes, classes and segments are read, and of photos the pixels."""
    photos = ("--images", str(place / "photos"))
    stores = ("--regions", str(place / kind))
    pre, run = str(tmp_path / "pre/model"), str(tmp_path / "run")

    def asks(command: str, *words: str, out: str = "") -> str:
        where = ["--out", str(tmp_path / (out or command))] if out != "none" else []
        return said(capsys, command, *words, *stores, "--cpu", *where)

    vcr = ("--task", "vcr/answer", "--data", str(place / "vcr"))
    new = ("--backbone", str(place / "cnn"), "--shortest-edge", "32", "--skip-missing", "--related")
    start = ("--model", str(place / "bert"), "--captions", str(place / "told.csv"), *BRIEF)
    assert not asks("pretrain", "--architecture", "vlbert", *start, *new, *photos, out="pre")
    tuning = ("--model", pre, *vcr, *BRIEF, *ONE)
    asked = {
        "finetune": tuning,
        "zero-shot": ("--model", pre, *vcr, *FEW),
        "winoground": ("--model", pre, "--data", str(place / "pairs")),
        "modality": ("--model", pre, *vcr, "--no-perturbed-inputs", "--ig-examples", "0"),
    }
    flickr = ("--model", pre, "--data", str(place / "flickr30k"), "--split", "val")
    flickr += ("--no-shuffled-images-control",)
    heads = {"heads": flickr, "syntax": (*flickr, "--parses", "gold", "--min-arcs", "1")}
    for command, words in (asked | heads).items():
        reason = asks(command, *words, out=f"{command}-blind")
        assert "this model reads pixels; pass images=FOLDER" in reason
    for command, words in asked.items():
        assert not asks(command, *words, *photos, out="run" if command == "finetune" else "")
    for command, words in heads.items():
        reason = asks(command, *words, *photos)
        if kind == "segments":
            absent = f"{place / kind}: 2 of 2 images are not in this region store, the first is "
            assert absent in reason
        else:
            assert not reason
    saved = ("--model", run, "--data", str(place / "vcr"), "--split", "val")
    for command, out in (("evaluate", "none"), ("predict", "answers.csv")):
        assert "reads pixels; pass images" in asks(command, *saved, out=out)
        assert not asks(command, *saved, *photos, out=out)
    assert not asks(
        "visualize", "--model", pre, run, *vcr, *photos, "--limit", "1", out="look.html"
    )
    read = [*asked, "pretrain", "evaluate", "predict", "visualize"]
    alike(roads, [*read, *heads] if kind == "boxes" else read)
    asked_alike(roads)
    every = [
        row for samples in roads.values() for some in by_image(samples).values() for row in some
    ]
    assert all(row.pixels is not None for row in every)
    covers = [row.rows[0].regions.segmentation is not None for row in every]  # type: ignore[union-attr]
    assert set(covers) == {kind == "segments"}
