"""Every model through every phase and task, on the world's own files; and the papers' heads by their sizes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys
from tiny.homes import STEPS
from tiny.regions import store

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.data import add_regions, region_inputs
from groundling.commands.finetune.run import head_name, head_of
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Batch, EncoderOutput, Example, OutputSizes, collate
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer, RegionSelection
from groundling.core.registry import registered, resolve
from groundling.data.regions import ImageRegions, RegionStore, RegionWriter
from groundling.data.samples import TextDataset
from groundling.models.task_heads import HeadContext, ImagePairHead, PooledClsHead
from groundling.models.text_encoder import new_encoder
from groundling.objectives import ObjectiveContext
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings
from groundling.settings.objectives import PretrainingVariantSettings
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.world import World
from groundling.tasks import Task
from groundling.vision_language import Architecture
from groundling.vision_language import vlbert as vlberts
from groundling.vision_language.loading import load_encoder

ARCHITECTURES = registered("vision_language", Architecture)
FOLDERS = {
    "vqa": "vqa",
    "nlvr2": "nlvr2",
    "snli-ve": "snli_ve",
    "vcr/answer": "vcr",
    "refcoco+": "refcoco+",
    "flickr30k": "flickr30k",
}
# Tasks on which a model without a head of its own for them is trained here, too.
PLAIN = {"visualbert": ("nlvr2", "flickr30k", "vcr/answer"), "lxmert": ("snli-ve", "refcoco+")}
PAIRS = [
    (kind, task)
    for kind, one in ARCHITECTURES.items()
    for task in FOLDERS
    if task in one.heads or task in PLAIN.get(kind, ())
]
BRIEF = replace(STEPS, steps=2, batch=4)
FORMS = {
    "vqa": OpenAnswer(tuple(map(str, range(3129)))),
    "nlvr2": Classification(("False", "True")),
    "snli-ve": Classification(("a",) * 3),
    "vcr/answer": MultipleChoice(("0", "1", "2", "3")),
    "refcoco+": RegionSelection(),
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("paths")
    write_tasks(World(WorldConfig(scenes=0, dev_scenes=0)), folder, 64, 48)
    new_encoder(folder / "texts.txt", folder / "bert", 0, 1, 64)
    captions = json.loads((folder / "captions_train2014.json").read_text())
    few = {image["id"]: image for image in captions["images"][:16]}
    mine = [one for one in captions["annotations"] if one["image_id"] in few]
    homes.put(folder / "few.json", json.dumps({"images": list(few.values()), "annotations": mine}))
    listed = json.loads((folder / "instances.json").read_text())["images"]
    images = [image["file_name"].rpartition(".")[0] for image in listed]
    store(folder / "store", images, width=6)
    # VCR's texts name objects by number: two in every still of the world (B7).
    store(folder / "objects", images, width=6, objects=2)
    return folder


@pytest.fixture(scope="module")
def trained(world: Path) -> dict[str, str]:
    for kind in ARCHITECTURES:
        config = make_settings(
            PretrainConfig,
            architecture=kind,
            model=str(world / "bert"),
            regions=str(world / "store"),
            captions=str(world / "few.json"),
        )
        pretrain(config, BRIEF, world / "pre" / kind)
    return {kind: str(world / "pre" / kind / "model") for kind in ARCHITECTURES}


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_control_reads_the_text_alone(kind: str, world: Path, tuned: Any) -> None:
    """Without regions the same model answers from the text, and no region can matter; a new join needs no training."""
    assert "dev" in tuned("alone", kind, "nlvr2", regions="")["median"]
    new = {"model": str(world / "bert"), "architecture": kind}
    assert "dev" in tuned("new", kind, "nlvr2", **new)["median"]
    assert "needs regions" in homes.refused(lambda: tuned("no", kind, "refcoco+", regions=""))


def test_the_blind_control_sees_boxes_and_no_features(world, tuned, tmp_path):
    poor = copied(tmp_path / "poor", world, lambda row: replace(row, features=0 * row.features))
    tuned("one", "uniter", "refcoco+", zero_region_features=True)
    tuned("other", "uniter", "refcoco+", regions=str(poor))
    one, other = (
        homes.answers(tmp_path / run / "seed-0/predictions_val.jsonl") for run in ("one", "other")
    )
    assert one == other


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("objects", [0, 3])
def test_tags_need_the_annotated_objects_in_their_order(kind, objects, world, tuned, tmp_path):
    """B7: on any other store, every tag would name some other region."""
    images = list(RegionStore(world / "store").ids)
    other = str(store(tmp_path / "other", images, width=6, objects=objects))

    def run() -> dict:
        return tuned("run", kind, "vcr/answer", replace(BRIEF, steps=1), regions=other)

    if kind in ("uniter", "lxmert"):  # these read no regions of tags
        assert run()["median"]
        return
    told = homes.refused(run)
    assert "2 annotated objects" in told and "make it of `boxes`" in told


def with_whole(folder: Path, world: Path) -> Path:
    """A copy of the store in which every image is a region, too."""
    return copied(folder, world, lambda row: row.with_whole(np.full((1, 6), 3.0)))


@pytest.mark.parametrize(("kind", "name"), [("visualbert", "flickr30k"), ("uniter", "refcoco+")])
def test_the_whole_image_is_no_candidate(kind, name, world, tuned, tmp_path):
    """B19: the same answers, scores and upper bounds on a store that also holds the whole image."""
    still = replace(BRIEF, lr=1e-30)  # what is learned depends on which samples share a batch
    scores, written = [], []
    for run, folder in (("parts", world / "store"), ("whole", with_whole(tmp_path / "s", world))):
        result = tuned(run, kind, name, still, regions=str(folder), max_regions=3)
        scores.append(result["median"])
        split = resolve("tasks", Task, name).dev[0]
        written.append(homes.answers(tmp_path / run / f"seed-0/predictions_{split}.jsonl"))
    assert scores[0] == scores[1]
    for parts, whole in zip(*written, strict=True):
        assert whole.pop("outputs") == pytest.approx(parts.pop("outputs"), abs=1e-4)
        assert whole == parts


def test_what_each_model_sees_of_an_image(world, trained, tmp_path):
    """B12, B19: the whole image, and boxes that end at the last of 60 x 40 pixels, are for VL-BERT alone."""
    plain = RegionStore(world / "store")
    whole = str(with_whole(tmp_path / "store", world))
    name = next(name for name in plain.ids if plain.count(name) > 2)
    task = resolve("tasks", Task, "snli-ve")
    for kind, folder in trained.items():
        config = make_settings(FinetuneConfig, model=folder, regions=whole, max_regions=2)
        student = load_encoder(folder)
        texts = {"dev": TextDataset([Example("a", "red", images=(name,))], student.inputs(8)[0])}
        (sample,) = add_regions(texts, student, task, region_inputs(config))["dev"].get([0], ())
        boxes = plain[name].boxes[:2]
        if kind == "vlbert":
            last = np.array([1 - 1 / 60, 1 - 1 / 40] * 2, np.float32)
            boxes = np.minimum([[0, 0, 1, 1], *boxes], last)
        assert np.array_equal(sample.regions.boxes, boxes), kind


def heads(kind: str, task: str, hidden: int = 768) -> int:
    sizes = OutputSizes(text=hidden, pooler_output=hidden, visual=hidden)
    with torch.device("meta"):
        reading = HeadContext(sizes, FORMS[task], toys.bert_words())
        head = ARCHITECTURES[kind].heads[task](reading)
        objective = SupervisedObjective(sizes, output_type=FORMS[task], head=head)
        return sum(p.numel() for p in objective.parameters())


def test_heads_have_the_papers_sizes() -> None:
    """Totals of the fact sheet's table, less what is not the head: the core, 2 or 1 more segments, 81 words."""
    core = 108_896_256 + 3_146_496 + 768  # VL-BERT, its visual Linear and [IMG]; no pooler
    assert heads("vlbert", "vqa") == 115_041_849 - core
    assert heads("vlbert", "refcoco+") == 112_634_881 - core
    pooler, of_81_classes = 590_592, 590_592 + 81 * 769
    assert heads("vlbert", "vcr/answer") == 113_287_762 - core - pooler - of_81_classes
    assert heads("vlbert", "vqa", 1024) == 342_553_657 - (334_098_432 + 4_195_328 + 1024)
    core = 109_898_752
    assert heads("uniter", "vqa") == 115_892_281 - core
    assert heads("uniter", "snli-ve") == 111_087_619 - core
    assert heads("uniter", "vcr/answer") == 111_149_826 - core - 83 * 768
    assert heads("uniter", "nlvr2") == 115_808_515 - core - 768
    assert heads("uniter", "vqa", 1024) == 344_210_489 - 335_695_872
    for kind in ("vlbert", "uniter"):
        of_task = ARCHITECTURES[kind].heads
        assert of_task["vcr/rationale"] is of_task["vcr/answer"]


@pytest.mark.parametrize(
    ("kind", "vocabulary", "total", "core"),
    [
        ("visualbert", 30_522, 112_074_812, 111_450_624),
        ("uniter", 28_996, 112_938_887, 109_898_752),
    ],
)
def test_pre_training_has_the_papers_sizes(kind, vocabulary, total, core):
    """UNITER's masked LM counts for a cased vocabulary; its classes are 1,601, its features 2,048 numbers."""
    sizes = OutputSizes(text=768, pooler_output=768, visual=768, regions=2048, classes=1601)
    sizes = sizes._replace(input_embeddings=(vocabulary, 768))
    context = ObjectiveContext(sizes, toys.bert_words())
    with torch.device("meta"):
        make = ARCHITECTURES[kind].pretraining.objectives
        objectives = make(context, PretrainingVariantSettings())
    assert sum(p.numel() for one in objectives for p in one.parameters()) == total - core


def test_regression_is_tied_to_what_embeds_the_features() -> None:
    torch.manual_seed(0)
    sizes = OutputSizes(text=8, visual=8, regions=6)
    objective = MaskedRegionModeling(sizes, kind="regress", norm=True, tied=True)
    table, states = torch.randn(8, 6), torch.randn(2, 3, 8)
    chosen = torch.tensor([[1, -100, 1], [-100, 1, -100]])
    targets = torch.randn(2, 3, 6)
    labels = {"regress_regions": chosen, "regress_regions_targets": targets}
    batch = Batch(ids=("a", "b"), labels=labels)
    (loss,) = objective(EncoderOutput(visual=states, region_embedding_weight=table), batch).values()
    found = objective.head(states) @ table + objective.bias
    torch.testing.assert_close(loss, (found - targets)[chosen == 1].pow(2).sum())
    with pytest.raises(InputError, match="needs `region_embedding_weight`"):
        objective(EncoderOutput(visual=states), batch)


def test_a_mask_is_where_the_answer_is_read(text_only: Any, bert_tokenizer: Any) -> None:
    """Only the state at the last [MASK] counts, wherever padding ends; without one, one line."""
    batch = collate(text_only.get(range(3), ()))
    form = Classification(("a", "b"))
    reading = HeadContext(OutputSizes(text=8), form, bert_tokenizer)
    head = vlberts.VLBertVqaHead(reading)
    objective = SupervisedObjective(reading.sizes, output_type=form, head=head).eval()
    head.mask_id = 4
    ids = batch.text.input_ids.clone()
    ids[0, 2], ids[1, 3], ids[1, 1], ids[2, 1] = 4, 4, 4, 4
    batch = replace(batch, text=replace(batch.text, input_ids=ids))
    states = torch.randn(*ids.shape, 8)
    expected = head.classify(head.between(torch.stack([states[0, 2], states[1, 3], states[2, 1]])))
    torch.testing.assert_close(objective.outputs(EncoderOutput(text=states), batch), expected)
    ids[2, 1] = 5
    with pytest.raises(InputError, match=r"truncated before its \[MASK\]"):
        objective.outputs(EncoderOutput(text=states), batch)


def test_answers_start_as_the_mean_of_their_words(trained: dict[str, str]) -> None:
    model = load_encoder(trained["vlbert"])
    tokenizer, table = model.text.tokenizer, model.word_embeddings().weight.detach()
    reading = HeadContext(model.sizes, OpenAnswer(("red", "left of", "")), tokenizer, table)
    rows = vlberts.VLBertVqaHead(reading).classify.weight
    ids = tokenizer.convert_tokens_to_ids
    torch.testing.assert_close(rows[0], table[ids("red")])
    torch.testing.assert_close(rows[1], (table[ids("left")] + table[ids("of")]) / 2)
    assert not rows[2].any()


def test_without_regions_images_are_not_read_apart(world: Path, trained: dict[str, str]) -> None:
    model = load_encoder(trained["uniter"])
    task = resolve("tasks", Task, "nlvr2")
    splits = {"train": [Example("a", "a dog", images=("1", "2"))]}
    for regions, kind in (("", PooledClsHead), (str(world / "store"), ImagePairHead)):
        config = make_settings(
            FinetuneConfig, model="m", task="nlvr2", data="nlvr2", regions=regions
        )
        assert type(head_of(model, task, splits, head_name(model, task, config), True)) is kind


def test_kinds_of_loss_by_hand() -> None:
    """BCE over classes and over choices."""
    outputs = torch.tensor([[0.2, -1.0, 0.5], [1.5, 0.3, -0.2]])
    labels = torch.tensor([2, 0])
    p, right = outputs.sigmoid(), torch.eye(3)[labels]
    by_hand = -torch.where(right > 0, p, 1 - p).log().sum()
    for form in (Classification(("a", "b", "c"), "bce"), MultipleChoice(("0", "1", "2"), "bce")):
        torch.testing.assert_close(form.loss(outputs, labels), by_hand)
        assert form.predict(outputs.numpy()).tolist() == [2, 0]


@pytest.fixture
def tuned(world: Path, trained: dict[str, str], tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Fine-tunes a pre-trained model on a task into a folder of this name."""

    def tune(name: str, kind: str, task: str, training: Any = BRIEF, **changes: Any) -> dict:
        given = {"model": trained[kind], "data": str(world / FOLDERS[task])}
        given["regions"] = str(world / ("objects" if task.startswith("vcr") else "store"))
        config = make_settings(FinetuneConfig, task=task, **(given | changes))
        return finetune(config, training, tmp_path / name)

    return tune


@pytest.mark.parametrize(("kind", "name"), PAIRS)
def test_every_model_learns_its_tasks(kind, name, world, trained, tuned, tmp_path):
    result = tuned("run", kind, name, save_model=True)
    task = resolve("tasks", Task, name)
    assert set(result["median"]) == set(task.dev)
    assert all(0 <= value <= 1 for scores in result["median"].values() for value in scores.values())
    after = load_encoder(tmp_path / "run/seed-0/model")
    before = load_encoder(trained[kind])
    assert after.architecture_name == kind
    assert not torch.equal(after.word_embeddings().weight, before.word_embeddings().weight)
    lines = homes.answers(tmp_path / f"run/seed-0/predictions_{task.dev[0]}.jsonl")
    folder = world / FOLDERS[name]
    assert len(lines) == len(task.with_answers_of(folder).read(folder, task.dev[0]))


def copied(folder: Path, world: Path, change: Callable[[ImageRegions], ImageRegions]) -> Path:
    """A copy of the world's store, with other regions of each image."""
    old = RegionStore(world / "store")
    writer = RegionWriter(folder)

    def one(name: str) -> ImageRegions:
        row = old[name]
        parts = (row.boxes, row.confidence, row.features, row.classes)
        order = old.in_annotated_order(name)
        return change(ImageRegions(name, old.size(name), *parts, annotated_order=order))

    writer.fill([(name, partial(one, name)) for name in old.ids])
    writer.close({"source": "test"}, [])
    return folder
