"""The world's own data sets, read as anybody's, and judged by what stands where in the scenes."""

import json
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.captions import read_captions
from groundling.data.regions.annotations import read_annotated_boxes, read_vcr_objects
from groundling.studies.worlds.commands import DATA_TASKS as render_tasks
from groundling.studies.worlds.commands import DATA_WORLD as render_world
from groundling.studies.worlds.commands import DEV_IMAGES, TasksConfig, WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.data_sets.writer import POOLS
from groundling.studies.worlds.families.objects import ATTRIBUTES, render
from groundling.studies.worlds.world import Scene, SceneObject, World
from groundling.tasks import grounding, vcr
from groundling.tasks.visual_inference import NLVR2, SNLI_VE, SNLI_VE_FORM, consistency
from groundling.tasks.vqa import VQA, read_questions

WORLD = World(WorldConfig(scenes=0, dev_scenes=0))
TRAIN, HELD = 240, 160
SIDE = "left of|right of|above|below"
THING = rf"the (?:thing ({SIDE}) the )?(\w+) thing"
LOOKS = {value for values in ATTRIBUTES.values() for value in values}
HELD_OUT = (
    (VQA, ("val",)),
    (SNLI_VE, ("dev", "test")),
    (NLVR2, ("dev", "test1")),
    (vcr.ANSWER, ("val",)),
    (vcr.RATIONALE, ("val",)),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tasks")
    counts = write_tasks(WORLD, path, TRAIN, HELD)
    assert json.loads((path / "tasks.json").read_text())["examples"] == counts
    for name, number in counts.items():  # whole rounds only, of six at most
        assert (TRAIN if "train" in name else HELD) - number in range(6)
    return path


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict[str, Scene]:
    """The scene that every image shows, by its pixels."""
    every = (
        WORLD.scene(pool * DEV_IMAGES + number)
        for pool in sorted(set(POOLS.values()))
        for number in range(1, 3 * (HELD if pool else TRAIN))
    )
    scenes = {WORLD.render_scene(scene).tobytes(): scene for scene in every if scene.relation}
    images = folder / "images"
    return {
        path.relative_to(images).with_suffix("").as_posix(): scenes[
            np.asarray(Image.open(path)).tobytes()
        ]
        for path in images.rglob("*.*g")
    }


@pytest.fixture(scope="module")
def read(folder: Path) -> dict[str, dict[str, list[Example]]]:
    found = {}
    for task, held_out in HELD_OUT:
        own = folder / task.name.partition("/")[0].replace("-", "_")
        found[task.name] = {split: task.read(own, split) for split in ("train", *held_out)}
    return found


def at(a: SceneObject, b: SceneObject, where: str) -> bool:
    """Whether a is `where` of b, by their places."""
    lead = {"left of": b.x - a.x, "right of": a.x - b.x, "above": b.y - a.y, "below": a.y - b.y}
    return max(lead, key=lead.__getitem__) == where


def meant(scene: Scene, where: str, *words: str) -> SceneObject | None:
    found = [thing for thing in scene.things if {*words} <= {*thing.attributes, thing.name}]
    if len(found) != 1 or not where:
        return found[0] if len(found) == 1 else None
    other = next(thing for thing in scene.things if thing is not found[0])
    return other if at(other, found[0], where) else None


def truth(scene: Scene, text: str) -> bool:
    match = re.fullmatch(rf"{THING} is (?:({SIDE}) the )?(\w+)(?: thing)?", text)
    thing, other = meant(scene, match[1], match[2]), meant(scene, "", match[4])
    assert thing is not None and (not match[3] or other not in (None, thing))
    return at(thing, other, match[3]) if match[3] else match[4] in thing.attributes


def reply(scene: Scene, text: str) -> str:
    if match := re.fullmatch(r"how many things are (\w+) \?", text):
        return str(sum(match[1] in thing.attributes for thing in scene.things))
    if match := re.fullmatch(rf"what (\w+) is {THING} \?", text):
        thing = meant(scene, *match.groups()[1:])
        return next(value for value in thing.attributes if value in ATTRIBUTES[match[1]])
    if match := re.fullmatch(r"is there a (.+) thing \?", text):
        words = {*match[1].split()}
        return ("no", "yes")[any(words <= {*thing.attributes} for thing in scene.things)]
    match = re.fullmatch(rf"is ({THING}) (.*) \?", text)
    return ("no", "yes")[truth(scene, f"{match[1]} is {match[4]}")]


def told_apart(pairs: Iterable[tuple[Hashable, Hashable]]) -> dict[Hashable, list[int]]:
    """How often each text has each of its answers."""
    found: dict[Hashable, Counter] = defaultdict(Counter)
    for text, answer in pairs:
        found[text][answer] += 1
    return {text: [*counts.values()] for text, counts in found.items()}


def blind(train: Sequence[Any], test: Sequence[Any], choices: int = 0) -> float:
    """Accuracy of a classifier that reads words and pairs of words, and no image; of every `choices` rows one is 1."""

    def columns(rows: Sequence[Any]) -> Iterable[tuple[Any, ...]]:
        pairs = ((row.text, row.label) if isinstance(row, Example) else row for row in rows)
        return zip(*pairs, strict=True)

    (texts, labels), (asked, gold) = columns(train), columns(test)
    bag = CountVectorizer(ngram_range=(1, 2), token_pattern=r"\S+").fit(texts)
    model = LogisticRegression(max_iter=200).fit(bag.transform(texts), labels)
    if choices:
        picked = model.decision_function(bag.transform(asked)).reshape(-1, choices).argmax(1)
        return float(np.mean(picked == np.reshape(gold, (-1, choices)).argmax(1)))
    return float(model.score(bag.transform(asked), gold))


def test_one_region_store_and_one_vocabulary_serve_all(folder, shown, read):
    given, names = read_annotated_boxes(folder / "instances.json")
    assert tuple(names) == ATTRIBUTES["shape"]
    assert len(given) == len(shown) == len(list((folder / "images").rglob("*.*g")))
    known = set((folder / "texts.txt").read_text().split())
    phrases = [
        caption
        for split in ("train", "val", "test")
        for caption in grounding.read_captions(folder / "flickr30k", split)
    ]
    told = [
        image
        for split in ("train", "val")
        for image in read_captions(folder / f"captions_{split}2014.json").images
    ]
    assert all(len(one.captions) == 5 for one in told) and len(told) == TRAIN + HELD
    examples = [one for splits in read.values() for own in splits.values() for one in own]
    texts = [text for one in examples for text in (one.text, *one.choices)]
    spoken = [*texts, *(one.text for one in phrases), *(t for one in told for t in one.captions)]
    spoken += VQA.with_answers_of(folder / "vqa").form.labels
    assert {word for text in spoken for word in text.split()} <= known
    nouns = {noun.name for noun in WORLD.nouns}  # whose looks can be learnt without the image
    assert not [text for text in texts if nouns & {*text.split()}]
    wanted = {image for one in examples for image in one.images}
    wanted |= {one.image for one in phrases}
    wanted |= {one.file.removesuffix(".jpg") for one in told}
    assert wanted | _candidates(folder).keys() == shown.keys()
    for splits in read.values():
        scenes = [{shown[i].image_id for e in own for i in e.images} for own in splits.values()]
        assert sum(map(len, scenes)) == len(set.union(*scenes))
        assert all(len({e.id for e in own}) == len(own) for own in splits.values())
    # No box tells anything but where: all are as large as the largest thing, and hold theirs.
    for name, boxes in given.items():
        truth = WORLD.boxes(shown[name.rpartition(".")[0]])
        assert boxes.image_size == (32, 32) and not boxes.left_out
        for box, kind, tight in zip(boxes.boxes * 32, boxes.classes, truth, strict=True):
            x, y, w, h = tight["bbox"]
            assert box[0] <= x < x + w <= box[2] == box[0] + 14
            assert box[1] <= y < y + h <= box[3] == box[1] + 14
            assert kind == tight["category_id"] - 1


def test_vqa(folder: Path, shown: dict[str, Scene], read: dict[str, Any]) -> None:
    task, splits = VQA.with_answers_of(folder / "vqa"), {}
    counts = {"yes/no": [2], "number": [3], "other": [6, 2, 3]}
    for split, examples in read["vqa"].items():
        asked = read_questions(folder / "vqa", split)
        gold = [max(q.scores, key=q.scores.__getitem__) for q in asked]
        assert gold == [reply(shown[q.image], q.text) for q in asked]
        assert {len(q.answers) for q in asked} == {10}
        assert 0.1 < np.mean([len({*q.answers}) > 1 for q in asked]) < 0.5
        starts = {"how many", "is the", "is there a", "what colour is the"}
        assert {q.types[1] for q in asked} >= starts
        splits[split] = [(q.text, answer) for q, answer in zip(asked, gold, strict=True)]
        told = told_apart(splits[split])
        assert {len(set(own)) for own in told.values()} == {1}
        assert all(len(told[q.text]) in counts[q.types[0]] for q in asked)
        classes = [task.form.class_index[answer] for answer in gold]
        ids = [e.official_id for e in examples]
        assert task.official(folder / "vqa", split, ids, classes)["official"] == 1
    # of the best guess from the text
    chance = sum(max(own) for own in told.values()) / len(asked)
    assert blind(splits["train"], splits["val"]) <= chance < 0.45


def test_snli_ve(shown: dict[str, Scene], read: dict[str, Any]) -> None:
    for examples in read["snli-ve"].values():
        for e in examples:
            scene, named = shown[e.images[0]], LOOKS & {*re.findall(r"(\w+) thing\b", e.text)}
            there = named <= {*scene.things[0].attributes, *scene.things[1].attributes}
            so = ("contradiction", "entailment")
            right = so[truth(scene, e.text.removesuffix(" ."))] if there else "neutral"
            assert SNLI_VE_FORM.labels[e.label] == right
        told = told_apart((e.text, e.label) for e in examples).values()
        assert {(len(own), len(set(own))) for own in told} == {(3, 1)}
        assert blind(read["snli-ve"]["train"], examples) == pytest.approx(1 / 3)


def test_nlvr2(shown: dict[str, Scene], read: dict[str, Any]) -> None:
    for examples in read["nlvr2"].values():
        for e in examples:
            words = {*e.text.split()} & LOOKS
            left, right = (
                any(words <= {*thing.attributes} for thing in shown[i].things) for i in e.images
            )
            both, one = left and right, left != right
            rule = {"the left": left, "the right": right, "both images": both, "one image": one}
            assert e.label == next(true for start, true in rule.items() if e.text.startswith(start))
        assert consistency({e.official_id: True for e in examples}) == 1
        groups = told_apart(((e.id.split("-")[2], e.text), e.label) for e in examples)
        assert {tuple(counts) for counts in groups.values()} == {(2, 2)}
        assert blind(read["nlvr2"]["train"], examples) == 0.5


def test_vcr(folder: Path, shown: dict[str, Scene], read: dict[str, Any]) -> None:
    lines = [json.loads(line) for line in (folder / "vcr" / "val.jsonl").read_text().splitlines()]
    assert {len(line) for line in lines} == {23}
    for name, slack in (("vcr/answer", 0.0), ("vcr/rationale", 0.06)):
        rows = list[list[tuple[str, bool]]]()
        for examples in read[name].values():
            for e in examples:
                thing = e.choice_region_tags[0][0][2]
                one, other = (shown[e.images[0]].things[n] for n in (thing, 1 - thing))
                fits = [LOOKS & {*choice.split()} <= {*one.attributes} for choice in e.choices]
                assert fits == [n == e.label for n in range(4)]
                places = re.findall(rf"the thing ({SIDE})", e.text)
                assert all(at(one, other, where) for where in places)
            assert Counter(e.label for e in examples) == dict.fromkeys(range(4), len(examples) // 4)
            rows.append(
                [(f"{e.text} {c}", n == e.label) for e in examples for n, c in enumerate(e.choices)]
            )
        assert abs(blind(*rows, choices=4) - 0.25) <= slack, name
    item = vcr.read_items(folder / "vcr", "val")[0]
    found = read_vcr_objects(folder / "vcr" / "vcr1images" / f"{item.image}.json")
    for n, thing in enumerate(shown[item.image].things):
        cover = render(thing.attributes, thing.fit, 14).cover[:, :, 0]
        assert np.array_equal(found.mask(n), cover >= 0.5)
    given, names = read_annotated_boxes(folder / "vcr" / "vcr1images")
    boxes = given[f"{item.image}.jpg"]
    assert names == ["thing"] and boxes.image_size == (32, 32) and set(boxes.confidence) == {1}
    items = [one for split in ("train", "val") for one in vcr.read_items(folder / "vcr", split)]
    assert np.array_equal(boxes.boxes, found.boxes)
    assert len(given) == len({one.image for one in items})


def test_a_shortcut_tells_vcrs_answers_as_often_as_asked(tmp_path: Path) -> None:
    labels, shares = [], {}
    for share in (0.0, 0.5, 1.0):
        write_tasks(WORLD, tmp_path / str(share), 120, 8, ["vcr"], share)
        read = vcr.read_items(tmp_path / str(share) / "vcr", "train")
        told = []
        for item in read:
            values = [next(iter(LOOKS.intersection(map(str, answer)))) for answer in item.answers]
            kinds = [kind for value in values for kind in ATTRIBUTES if value in ATTRIBUTES[kind]]
            right = kinds.pop(item.answer or 0)
            assert len(set(kinds)) == 1
            told.append(right not in kinds)
        labels.append([item.answer for item in read])
        shares[share] = sum(told) / len(told)
    assert labels[0] == labels[1] == labels[2]
    assert shares[0.0] == 0 and shares[1.0] == 1
    assert 0.4 < shares[0.5] < 0.6


def _candidates(folder: Path) -> dict[str, list[np.ndarray]]:
    """The annotated boxes of every image."""
    boxes: dict[str, list[np.ndarray]] = {}
    for note in grounding.read_annotated_objects(folder / "refcoco+").objects.values():
        name = grounding.COCO.format(subset="train2014", number=note.image)
        boxes.setdefault(name, []).append(np.array(note.corners))
    return boxes


def test_refcoco(folder: Path, shown: dict[str, Scene]) -> None:
    candidates, ids = _candidates(folder), list[str]()
    for split in ("train", "val", "testA", "testB"):
        asked = grounding.read_expressions(folder / "refcoco+", split)
        said, places = dict[str, np.ndarray](), list[tuple[str, str]]()
        for e in asked:
            (image,) = e.images
            thing = meant(shown[image], "", *e.text.split()[:-1])
            other = next(t for t in shown[image].things if t is not thing)
            said[e.id] = np.array([thing.x, thing.y, thing.x + 14, thing.y + 14])
            assert any((said[e.id] == box).all() for box in candidates[image])
            places.append(
                (e.text, next(where for where in SIDE.split("|") if at(thing, other, where)))
            )
        assert all(grounding.VL_BERT(said[e.id], e.gold_boxes.boxes).all() for e in asked)
        # Who knows the expression and where the boxes are still has to guess.
        assert {(len(c), len(set(c))) for c in told_apart(places).values()} == {(4, 1)}
        ids += said
    assert len(set(ids)) == len(ids)


def test_flickr30k_entities(folder: Path, shown: dict[str, Scene]) -> None:
    first = Counter[str]()
    for split in ("train", "val", "test"):
        found = grounding.read_captions(folder / "flickr30k", split)
        assert {(len(c.phrases), len(c.skipped) <= 1) for c in found} == {(2, True)}
        for c in found:
            scene = shown[c.image]
            words = (c.text[p.start : p.stop].removesuffix(" thing").split()[1:] for p in c.phrases)
            things = [meant(scene, "", *own) for own in words]
            for thing, p in zip(things, c.phrases, strict=True):
                assert p.boxes.tolist() == [[thing.x + 1, thing.y + 1, thing.x + 14, thing.y + 14]]
                assert scene.things[p.chain - 2 * scene.image_id] is thing
            first.update(where for where in SIDE.split("|") if at(things[0], things[1], where))
    sides = first["left of"] + first["right of"]
    assert abs(first["left of"] - first["right of"]) < 4 * sides**0.5
    assert sum(first.values()) == TRAIN + 2 * HELD


@pytest.mark.parametrize(
    ("make", "settings"), [(render_world, ()), (render_tasks, (TasksConfig(),))]
)
def test_a_folder_that_cannot_be_written_is_one_line(make, settings, tmp_path):
    out = tmp_path / "file" / "out"
    out.parent.touch()
    with pytest.raises(InputError, match=f"{out}: cannot be written"):
        make(*settings, WorldConfig(), out)


def test_a_worlds_settings_import_nothing_heavy() -> None:
    code = "import sys, groundling.studies.worlds.data_sets; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert {"torch", "transformers"}.isdisjoint(done.stdout.split())


def test_control_images_show_the_same_places_and_other_attributes(folder: Path) -> None:
    """The control of a teacher: its captions are those of images that it never saw."""
    names = {
        image["file_name"]
        for split in ("train", "val")
        for image in json.loads((folder / f"captions_{split}2014.json").read_text())["images"]
    }
    control = folder / "redrawn" / "images"
    assert {path.name for path in control.iterdir()} == names
    kept = []
    for name in sorted(names):
        seen = np.asarray(Image.open(folder / "images" / name))
        redrawn = np.asarray(Image.open(control / name))
        assert seen.shape == redrawn.shape
        kept.append(bool((seen == redrawn).all()))
    # Two things of four looks each: one scene in some 40,000 is drawn as it was.
    assert np.mean(kept) < 0.01


def test_files_without_examples_are_named(tmp_path: Path) -> None:
    world = WorldConfig(scenes=0, dev_scenes=0)
    made = render_tasks(TasksConfig(limit_train=6, limit_dev=4), world, tmp_path / "t")
    empty = [name for name, number in made.items() if number == 0]
    assert empty and made["notes"] == [
        f"no examples of {', '.join(empty)}: raise limit_train or limit_dev"
    ]
