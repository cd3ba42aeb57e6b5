"""CLIP-TD's protocols with few labels: unlabelled examples beside labelled ones, and adaptive finetuning."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import homes, vcr_files
from tiny.homes import STEPS, digests, log_of, refused
from tiny.regions import store
from tiny.tasks import task_texts, unlabelled_texts
from transformers import CLIPImageProcessorPil, CLIPModel

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.commands.pretrain.run import _read_labels_note as read_labels_note
from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.core.batch import IGNORE, collate
from groundling.core.registry import resolve
from groundling.core.rng import generator
from groundling.data.regions import RegionStore
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks import Task
from groundling.tasks.splits import examples_outside, partition_manifest, write_manifest
from groundling.training import fit as fitting
from groundling.training.batch_sampler import DataSource

BRIEF = replace(STEPS, batch=4, steps=3)
NAIVE = ("td_image", "td_text")
WITHOUT_TEACHER = {"teacher": "", "teacher_images": ""}


SHOTS = 7
"""Examples of the partition, one of each category, of 21."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """VCR's files, pictures, regions, a CLIP, a BERT, and a partition of one question per category."""
    folder = tmp_path_factory.mktemp("few")
    vcr_files.folder(folder / "vcr")
    rng = np.random.default_rng(0)
    for number in range(3):
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        homes.picture(folder / f"photos/movie/{number}.png", colour, (24, 16))
    names = [f"movie/{number}" for number in range(3)]
    store(folder / "store", names, objects=len(vcr_files.OBJECTS))
    square = {"height": 16, "width": 16}
    processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=square)
    processor.save_pretrained(homes.teacher(folder / "clip"))
    homes.student(folder / "bert")
    shots(folder / "vcr", folder / "shots.json")
    return folder


def shots(data: Path, path: Path, per: int = 1, name: str = "vcr/answer") -> Path:
    write_manifest(
        path, partition_manifest(resolve("tasks", Task, name), data, per_stratum=per, seed=0)
    )
    return path


def few(place: Path, **changes: Any) -> FinetuneConfig:
    """UNITER on the partition, all the others without labels beside it."""
    settings: dict[str, Any] = {
        "model": str(place / "bert"),
        "architecture": "uniter",
        "task": "vcr/answer",
        "data": str(place / "vcr"),
        "regions": str(place / "store"),
        "partition": str(place / "shots.json"),
        "unlabelled_per_labelled": 1,
        "objectives": NAIVE,
        "teacher": str(place / "clip"),
        "teacher_images": str(place / "photos"),
        "max_length": 32,
        "save_model": True,
    }
    return make_settings(FinetuneConfig, **(settings | changes))


# -- unlabelled examples beside labelled ones ------------------------------------------------------------------------


def test_every_step_has_both_and_result_tells_the_ratio(place, tmp_path) -> None:
    config = few(place, unlabelled_per_labelled=2, seeds=1, td_gate="question")
    result = finetune(config, replace(BRIEF, steps=1), tmp_path)
    assert result["unlabelled_examples"] == {"examples": 21 - SHOTS, "per_labelled": 2}
    terms = log_of(tmp_path / "seed-0")[0].keys()
    assert {"task", "td_image", "td_text", "td_text_gate_open"} < terms


def test_nothing_depends_on_labels_outside_the_partition(place: Path, tmp_path: Path) -> None:
    """Other answers are right of all that the partition does not hold: the same weights."""
    inside = set(json.loads((place / "shots.json").read_text())["ids"])
    rows = [json.loads(line) for line in (place / "vcr/train.jsonl").read_text().splitlines()]
    for row in rows:
        if row["annot_id"] not in inside:
            row["answer_label"] = 3 - row["answer_label"]
    vcr_files.write(tmp_path / "vcr/train.jsonl", rows)
    (tmp_path / "vcr/val.jsonl").write_bytes((place / "vcr/val.jsonl").read_bytes())
    drawn = shots(tmp_path / "vcr", tmp_path / "shots.json")
    assert set(json.loads(drawn.read_text())["ids"]) == inside
    finetune(few(place), BRIEF, tmp_path / "one")
    other = few(place, data=str(tmp_path / "vcr"), partition=str(drawn))
    finetune(other, BRIEF, tmp_path / "other")
    models = [digests(tmp_path / name / "seed-0/model") for name in ("one", "other")]
    assert models[0] == models[1]
    # and without the unlabelled ones they are others
    finetune(few(place, unlabelled_per_labelled=0), BRIEF, tmp_path / "none")
    assert digests(tmp_path / "none/seed-0/model") != models[0]


def learned_from(monkeypatch: pytest.MonkeyPatch, config: FinetuneConfig, out: Path) -> DataSource:
    """What `finetune` passes to `train`."""
    passed: list[DataSource] = []
    real = fitting.train

    def train(student: Any, objectives: Any, data: Any, *arguments: Any, **options: Any) -> Any:
        passed.extend(data)
        return real(student, objectives, data, *arguments, **options)

    monkeypatch.setattr(fitting, "train", train)
    finetune(config, replace(BRIEF, steps=1), out)
    return passed[0]


def test_the_labelled_are_the_partitions_and_the_rest_has_no_label(place, tmp_path, monkeypatch):
    source = learned_from(monkeypatch, few(place), tmp_path / "out")
    inside = json.loads((place / "shots.json").read_text())["ids"]
    assert sorted(source.samples.ids) == sorted(f"vcr-answer-{name}" for name in inside)
    rest = source.extra_samples
    assert rest is not None and len(rest) == 21 - SHOTS
    assert not set(rest.ids) & set(source.samples.ids)
    assert len(rest.lengths) == len(rest.images) == len(rest.sizes) == len(rest)
    batch = collate(rest.get(range(len(rest)), [generator(name) for name in rest.ids]))
    assert (batch.labels["label"] == IGNORE).all()
    assert {"clip_image", "clip_text"} <= batch.features.keys() and batch.regions is not None


def test_what_cannot_be_without_labels(place, tmp_path) -> None:
    whole = str(shots(place / "vcr", tmp_path / "all.json", per=3))
    none_left = "unlabelled_per_labelled: no example of vcr/answer is left"
    no_term = "unlabelled_per_labelled=1: every objective needs labels"
    for changes, message in (
        ({"partition": ""}, none_left),
        ({"partition": whole}, none_left),
        ({"objectives": (), **WITHOUT_TEACHER}, no_term),
    ):
        assert message in refused(finetune, few(place, **changes), BRIEF, tmp_path / "out")


# -- adaptive finetuning -----------------------------------------------------------------------------------------------


def adapting(place: Path, model: str, **changes: Any) -> PretrainConfig:
    settings: dict[str, Any] = {
        "architecture": model,
        "model": str(place / "bert"),
        "task": "vcr/answer",
        "data": str(place / "vcr"),
        "regions": str(place / "store"),
        "objectives": NAIVE,
        "teacher": str(place / "clip"),
        "teacher_images": str(place / "photos"),
        "max_length": 32,
    }
    return make_settings(PretrainConfig, **(settings | changes))


@pytest.mark.parametrize(
    ("model", "answers", "own"),
    [
        ("vlbert", "any", {"mlm", "masked_regions"}),
        ("uniter", "right", {"mlm", "masked_regions", "regress_regions"}),
    ],
)
def test_each_model_is_adapted_with_its_own_terms_and_clips(model, answers, own, place, tmp_path):
    # its baseline is the same stage without the teacher
    logs = []
    for name, changes in (("out", {}), ("plain", {"objectives": (), **WITHOUT_TEACHER})):
        config = adapting(place, model, task_answers=answers, **changes)
        pretrain(config, replace(BRIEF, steps=8, save_every=8), tmp_path / name)
        logs.append(log_of(tmp_path / name))
    terms = [{term for line in log for term in line} for log in logs]
    assert own | set(NAIVE) <= terms[0] and "sentence_image" not in terms[0]
    assert own <= terms[1] and not terms[1] & set(NAIVE)
    distilled = 0.05 * sum(logs[0][0][term] for term in NAIVE)
    assert logs[0][0]["loss"] - logs[1][0]["loss"] == pytest.approx(distilled, rel=1e-3)


def test_labels_that_were_told_are_noted(place: Path) -> None:
    told = "this model has read the right answers of vcr/answer, as in CLIP-TD"
    task = resolve("tasks", Task, "vcr/answer")
    shots_only = {"partition": str(place / "shots.json")}
    for changes, is_noted in (({}, True), ({"task_answers": "any"}, False), (shots_only, False)):
        notes = read_labels_note(task, adapting(place, "visualbert", **changes))
        assert [note.startswith(told) for note in notes] == [True] * is_noted


@pytest.mark.parametrize("name", ["vcr/answer", "vcr/rationale"])
def test_texts_of_a_partition(name: str, place: Path) -> None:
    task = resolve("tasks", Task, name)
    inside = json.loads((place / "shots.json").read_text())["ids"]
    right = task_texts(task, place / "vcr", partition=str(place / "shots.json"))
    assert {one.id for one in right} == {f"{name.replace('/', '-')}-{i}" for i in inside}
    drawn = unlabelled_texts(task, place / "vcr", partition=str(place / "shots.json"))
    assert {some[0].id.removesuffix("-a0") for some in drawn} == {one.id for one in right}
    assert {len(some) for some in drawn} == {4 if name == "vcr/rationale" else 1}
    # without labels, rationales stand after every answer
    examples = task.read(place / "vcr", "train")
    rest = examples_outside(examples, examples[:20], task, place / "vcr")
    several = name == "vcr/rationale"
    names = [f"train-20-a{n}" for n in range(4)] if several else ["train-20"]
    assert [one.official_id for one in rest] == names
    assert len({one.text for one in rest}) == len(names) and not any(one.label for one in rest)


def test_mistakes_in_adapting(place, tmp_path) -> None:
    captions = str(homes.put(tmp_path / "some.token.txt", "movie/0.jpg#0\ta dog\n"))
    alone = {"task": "", "data": "", "captions": captions, "partition": "x.json"}
    for changes, message in (
        (alone, "partition=x.json: applies only to task"),
        ({"td_gate": "question"}, "td_gate=question: only for a task"),
    ):
        config = adapting(place, "uniter", **changes)
        assert message in refused(pretrain, config, BRIEF, tmp_path / "out")


# -- CLIP's grid as the visual input (CLIP-ViL) ----------------------------------------


@pytest.fixture(scope="module")
def cells(place: Path) -> Path:
    """A store of the tiny CLIP's 2 x 2 patches."""
    config = make_settings(
        RegionsConfig, images=str(place / "photos"), grid=2, backbone=str(place / "clip"), cpu=True
    )
    regions(config, place / "grid")
    return place / "grid"


def test_a_grid_of_clip_holds_its_last_patch_states_unprojected(place: Path, cells: Path) -> None:
    store_of_cells = RegionStore(cells)
    row = store_of_cells["movie/1"]
    assert row.boxes.tolist() == [[0, 0, 0.5, 0.5], [0.5, 0, 1, 0.5], [0, 0.5, 0.5, 1], [0.5, 0.5, 1, 1]]  # fmt: skip
    tower = CLIPModel.from_pretrained(place / "clip").eval().vision_model
    with Image.open(place / "photos/movie/1.png") as image:
        square = np.asarray(image.resize((16, 16), Image.Resampling.BICUBIC), np.float32)
    about = json.loads((place / "clip/preprocessor_config.json").read_text())
    pixels = (square / 255 - np.array(about["image_mean"])) / np.array(about["image_std"])
    with torch.no_grad():
        given = torch.tensor(pixels, dtype=torch.float32).permute(2, 0, 1)[None]
        states = tower(pixel_values=given).last_hidden_state[0, 1:]
    assert store_of_cells.width == states.shape[1] == tower.config.hidden_size
    # RoIAlign reads between the centres of patches: a cell of a 2 x 2 map has some of its neighbours in it.
    weight = np.interp((np.arange(14) + 0.5) / 14 - 0.5, [0, 1], [0, 1]).mean()
    mix = torch.tensor([[1 - weight, weight], [weight, 1 - weight]], dtype=torch.float32)
    expected = torch.kron(mix, mix) @ states
    torch.testing.assert_close(torch.tensor(row.features), expected, rtol=0, atol=5e-3)


@pytest.mark.parametrize("model", ["uniter", "vlbert"])
def test_a_grid_is_any_models_input(model: str, place: Path, cells: Path, tmp_path: Path) -> None:
    """Of VCR, whose texts name annotated objects that a grid does not hold."""
    grid = {"regions": str(cells), "object_tags": False}
    config = few(
        place, architecture=model, unlabelled_per_labelled=0, auxiliary_losses=False, **grid
    )
    once = replace(BRIEF, steps=1)
    tagged = replace_settings(config, object_tags=True)
    if model != "uniter":  # where a tag is a word of its own, tied to no region
        finetune(config, once, tmp_path / "out")
        told = refused(finetune, tagged, once, tmp_path / "tagged")
        assert "numbers the objects of" in told and "or pass object_tags=False" in told
        return
    finetune(tagged, once, tmp_path / "tagged")
    stage = adapting(place, model, region_classes="none", task_answers="any", **grid)
    pretrain(stage, once, tmp_path / "stage")
