"""The oracle: its answers are the data's own labels, its noise ends at chance, and every distillation term reads it."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes
from tiny.homes import STEPS
from tiny.regions import store

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example, Sample, collate
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.data.regions import RegionStore
from groundling.data.samples import TextDataset, TextRowEncoder, rows_of
from groundling.models.text_encoder import new_encoder
from groundling.settings.fields import make_settings
from groundling.settings.objectives import ObjectiveSettings
from groundling.studies.worlds.commands import DATA_TRUE_REGIONS as true_regions
from groundling.studies.worlds.commands import TrueRegionsConfig, WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.oracle import (
    IMAGE_FEATURES,
    ORACLE,
    OracleOptions,
    OracleTeacher,
    OracleTextTeacher,
    WorldFacts,
)
from groundling.studies.worlds.world import World, read_world
from groundling.tasks import Task
from groundling.tasks.vcr import ANSWER, RATIONALE
from groundling.teachers import TeacherContext, compute_features
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset

NAME = "groundling.studies.worlds.oracle:ORACLE"
BRIEF = replace(STEPS, steps=2, batch=4, cpu=True)
TASKS = [("vqa", "vqa", "val"), ("snli-ve", "snli_ve", "dev")]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data sets with the shortcut, so that wrong answers may be of another kind than the question asks for."""
    folder = tmp_path_factory.mktemp("oracle")
    names = ("captions", "vqa", "vcr", "snli-ve")
    write_tasks(World(WorldConfig(scenes=0, dev_scenes=0)), folder, 64, 200, names, shortcut=0.5)
    new_encoder(folder / "texts.txt", folder / "bert", 0, 1, 64)
    images = [
        image["file_name"].rpartition(".")[0]
        for image in json.loads((folder / "instances.json").read_text())["images"]
    ]
    store(folder / "store", images, objects=2, width=6)
    return folder


def context(world: Path, features: set[str], task: Task | None = None, **options: Any) -> Any:
    given = tuple(f"{name}={value}" for name, value in {"world": world, **options}.items())
    settings = ObjectiveSettings(option=given)
    form = None if task is None else task.form
    return TeacherContext(NAME, frozenset(features), settings, form)


def rows(examples: Any) -> list[Sample]:
    return [Sample(one.id, example=row) for one in examples for row in rows_of(one)]


def facts(world: Path, task: Any, noise: float, seed: int = 0) -> WorldFacts:
    return WorldFacts(OracleOptions(world=str(world), noise=noise, seed=seed), task.form)


@pytest.mark.parametrize("task", [ANSWER, RATIONALE], ids=lambda one: one.name)
def test_a_right_choice_is_the_labelled_one(task: Any, world: Path) -> None:
    known = facts(world, task, 0.0)
    for example in task.read(world / "vcr", "val"):
        judged = [known.is_right(row) for row in rows_of(example)]
        assert judged == [number == example.label for number in range(4)]
        assert judged == [known.seems_right(row) for row in rows_of(example)]
        of_rows = {known.answer(row) for row in rows_of(example)}
        stated = example.choices[example.label].split()
        assert set(stated) & set(known.kind_of) <= set(" ".join(of_rows).split())


@pytest.mark.parametrize(("name", "folder", "split"), TASKS)
def test_the_answer_of_other_tasks_is_the_label(name, folder, split, world):
    task = resolve("tasks", Task, name).with_answers_of(world / folder)
    known = facts(world, task, 0.0)
    form: Any = task.form
    for example in task.read(world / folder, split):
        label = example.label
        assert known.answer(example) == (
            form.best_answer(label) if name == "vqa" else form.labels[label]
        )
    with pytest.raises(InputError, match="has no label that is a class or an answer"):
        known.answer(replace(example, label=None))


def test_facts_of_an_image_are_those_of_its_objects(world: Path) -> None:
    known = facts(world, ANSWER, 0.0)
    opposite = known.world.family.opposite
    for example in ANSWER.read(world / "vcr", "val")[:50]:
        scene = known.world.scene(int(example.images[0].rpartition("_")[2].partition("@")[0]))
        pairs = zip(scene.things, (scene.relation, opposite(scene.relation)), strict=True)
        values = [([*thing.attributes], place) for thing, place in pairs]
        expected = [f"{value} {place}" for own, place in values for value in own]
        for own, _ in values:
            expected += [*own, *(f"{one} {other}" for one, other in combinations(own, 2))]
        assert sorted(known.of_image(example)) == sorted(expected)


def test_noise_ends_at_chance_and_is_nested(world: Path) -> None:
    examples = ANSWER.read(world / "vcr", "val")
    every = [row for example in examples for row in rows_of(example)]
    known = facts(world, ANSWER, 0.0)
    true = np.array([known.is_right(row) for row in every])
    changed_before = np.zeros(len(every), bool)
    for noise in (0.25, 0.5, 1.0):
        known = facts(world, ANSWER, noise)
        judged = np.array([known.is_right(row) for row in every])
        changed = judged != true
        assert (changed_before <= changed).all()
        changed_before = changed
        # wrong with probability noise * (1/4 * 3/4 + 3/4 * 1/4)
        assert changed.mean() == pytest.approx(noise * 3 / 8, abs=0.05)
        colours = [
            known.scene(one).things[0].attributes[0]
            == known.world.scene(known.scene(one).image_id).things[0].attributes[0]
            for one in examples
        ]
        assert np.mean(colours) == pytest.approx(1 - noise * 5 / 6, abs=0.1)
    assert np.corrcoef(judged, true)[0, 1] == pytest.approx(0, abs=0.12)


def test_noise_is_keyed_by_seed_and_row(world: Path) -> None:
    every = rows(ANSWER.read(world / "vcr", "val")[:10])

    def computed(seed: int, some: list[Sample]) -> np.ndarray:
        told = {"knows": "attributes+answer", "noise": 0.5, "seed": seed}
        teacher = ORACLE.make(context(world, {"clip_text"}, ANSWER, **told))
        return teacher.features(collate(teacher.inputs(some)))["clip_text"].numpy()

    first = computed(0, every)
    assert np.array_equal(first[::-1], computed(0, every[::-1]))
    assert not np.allclose(first, computed(1, every))


@pytest.mark.parametrize("knows", ["attributes", "answer", "attributes+answer"])
def test_features_have_the_shapes_of_clips(knows: str, world: Path) -> None:
    names = set(IMAGE_FEATURES) - ({"clip_confidence"} if knows == "attributes" else set())
    teacher = ORACLE.make(context(world, names, ANSWER, knows=knows, width=40))
    assert isinstance(teacher, OracleTeacher) and teacher.image_features
    some = ANSWER.read(world / "vcr", "val")[:5]
    every = rows(some)
    found = compute_features(teacher, collate(teacher.inputs(every)))
    shapes = {name: tuple(value.shape) for name, value in found.items() if name in names}
    assert set(found) == names and shapes["clip_image"] == shapes["clip_text"] == (20, 40)
    assert (shapes["clip_words"], shapes["clip_word"]) == ((20, 2, 40), (20, 2))
    assert found["clip_word"].dtype == torch.int64 and shapes["clip_similarity"] == (20,)
    for name in ("clip_image", "clip_text", "clip_words"):
        lengths = found[name].norm(dim=-1)
        torch.testing.assert_close(lengths, torch.ones_like(lengths))
    assert found["clip_similarity"].view(5, 4).argmax(1).tolist() == [one.label for one in some]
    # equal inputs have equal ids, and an id is known without the features
    assert teacher.ids(every) == [one.id for one in teacher.inputs(every)]
    for row, numbers in zip(every, found["clip_word"].tolist(), strict=True):
        example: Any = row.example
        words = f"{example.text} {example.text_pair}".split()
        assert words[numbers[0]] in teacher.facts.kind_of
    if knows == "answer":  # one image feature of all choices, and a text feature of the right one
        images, texts = (found[name].view(5, 4, -1) for name in ("clip_image", "clip_text"))
        assert torch.equal(images, images[:, :1].expand_as(images))
        for example, own in zip(some, texts, strict=True):
            same = [torch.equal(one, own[example.label]) for one in own]
            assert same == [number == example.label for number in range(4)]


@pytest.mark.parametrize(("file", "key"), [("world.json", "config"), ("tasks.json", "world")])
def test_a_world_file_imports_nothing(tmp_path, monkeypatch, file, key):
    homes.put(tmp_path / "evil.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
    homes.put(tmp_path / file, json.dumps({key: {"family": "evil:FAMILY"}}))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="no world family is called 'evil:FAMILY'"):
        read_world(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_features_of_texts(world: Path) -> None:
    noun = read_world(world).nouns[0].name
    examples = [Example("a", f"the {noun} is near a red thing ."), Example("b", "it rains .")]
    data = TextDataset(examples, TextRowEncoder(homes.words(), 40))
    teacher = ORACLE.make(context(world, {"sentence", "words", "has"}))
    assert isinstance(teacher, OracleTextTeacher) and not teacher.image_features
    taught = TeacherDataset(data, teacher, FeatureCache())
    first, second = taught.get([0, 1], [np.random.default_rng(0)] * 2)
    known = [word in (noun, "red") for word in examples[0].text.split()]
    assert first.features["has"].tolist() == known
    assert first.features["words"].shape == (8, 128) and second.features["sentence"].shape == (128,)
    assert not second.features["has"].any()


def taught(world: Path, knows: str = "attributes") -> dict[str, Any]:
    return {"teacher": NAME, "option": [f"world={world}", f"knows={knows}", "noise=0.25"]}


@pytest.mark.parametrize(
    ("task", "folder", "knows"),
    [
        ("vcr/answer", "vcr", "attributes"),
        ("vqa", "vqa", "attributes+answer"),
        ("snli-ve", "snli_ve", "attributes"),
    ],
)
def test_every_targeted_term_trains(task, folder, knows, world, tmp_path):
    terms = ["td_image", "td_text", "td_words", "td_image_text"]
    terms += ["td_similarity"] * (folder == "vcr")  # the others have no choices
    config = make_settings(
        FinetuneConfig,
        model=str(world / "bert"),
        architecture="visualbert",
        regions=str(world / "store"),
        task=task,
        data=str(world / folder),
        objectives=terms,
        td_gate="none" if knows == "attributes" and folder != "vcr" else "question",
        limit_train=8,
        **taught(world, knows),
    )
    finetune(config, BRIEF, tmp_path / "out")
    lines = homes.log_of(tmp_path / "out" / "seed-0")
    assert all(lines[0][term] > 0 for term in ("td_words_used", *terms))


@pytest.mark.parametrize("arm", ["mlm+l1+contrastive", "mlm+mcse+simcse"])
def test_arms_of_adapt_train(arm: str, world: Path, tmp_path: Path) -> None:
    text = [str(world / "captions_train2014.json")]
    own = {"student": str(world / "bert"), "arm": arm, "text": text, "dropout": 0.1}
    adapt(make_settings(AdaptConfig, **own, **taught(world)), BRIEF, tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "features", "message"),
    [
        ([], "clip_image", "an oracle needs world"),
        (["nose=0"], "clip_image", "unknown key 'nose'.*did you mean noise"),
        (["knows=all"], "clip_image", "knows = 'all': expected 'attributes', 'answer' or"),
        (["noise=2"], "clip_image", "noise = '2': expected less than or equal to 1"),
        (["world=docs"], "clip_image", "docs: is no rendered world"),
        (["world={}"], "clip_image sentence", "train them in two runs"),
        (["world={}", "knows=answer"], "sentence", "texts alone have no answer"),
    ],
)
def test_what_it_cannot_be_is_refused(given, features, message, world):
    settings = ObjectiveSettings(option=tuple(one.format(world) for one in given))
    with pytest.raises(InputError, match=message):
        ORACLE.make(TeacherContext(NAME, frozenset(features.split()), settings))


def test_what_it_cannot_know_is_refused(world: Path) -> None:
    example = next(rows_of(ANSWER.read(world / "vcr", "val")[0]))
    known = facts(world, ANSWER, 0.0)
    for images in ((), ("photo-1",)):
        with pytest.raises(InputError, match="needs exactly one image, of one scene"):
            known.of_image(replace(example, images=images))
    with pytest.raises(InputError, match="have no object tags"):
        known.is_right(replace(example, choice_region_tags=()))
    teacher = ORACLE.make(context(world, {"clip_confidence"}, ANSWER))
    with pytest.raises(InputError, match="this oracle does not know"):
        teacher.inputs([Sample("a", example=example)])


def test_true_regions_are_the_objects_attributes(world: Path, tmp_path: Path) -> None:
    def made(name: str, **noise: float) -> tuple[dict[str, Any], RegionStore]:
        config = make_settings(TrueRegionsConfig, data=str(world), **noise)
        return true_regions(config, tmp_path / name), RegionStore(tmp_path / name)

    found, opened = made("store")
    assert found["images"] == len(opened.ids) > 50
    rendered = read_world(world)
    assert found["features"] == list(chain(*rendered.family.attributes.values()))
    for name in opened.ids[:20]:
        regions = opened[name]
        things = rendered.scene(int(name.rpartition("_")[2].partition("@")[0])).things
        assert regions.is_whole_image[0] and opened.in_annotated_order(name)
        for row, thing in zip(regions.features[1:], things, strict=True):
            named = [value for value, is_on in zip(found["features"], row, strict=True) if is_on]
            assert named == list(thing.attributes)
    # at noise 1 a value is right as often as by guessing
    noisy, redrawn = made("noisy", noise=1.0)
    assert noisy["regions"] == found["regions"] and redrawn.identity != opened.identity
    colours = len(rendered.family.attributes["colour"])
    same = [
        (redrawn[name].features[1:, :colours] == opened[name].features[1:, :colours]).all(1)
        for name in opened.ids
    ]
    assert np.concatenate(same).mean() == pytest.approx(1 / colours, abs=0.15)
