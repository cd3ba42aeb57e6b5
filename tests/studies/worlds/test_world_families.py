"""Every family of worlds: the first is what it was, and each shows in images alone what its text never says."""

import hashlib
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from leaks import leaks
from PIL import Image

from groundling.core.errors import InputError
from groundling.core.registry import registered
from groundling.studies.worlds.commands import (
    DATA_TASKS,
    DATA_WORLD,
    QUICKSTART,
    QuickstartConfig,
    TasksConfig,
    WorldConfig,
)
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.families import WorldFamily, find_family
from groundling.studies.worlds.families.objects import OBJECTS
from groundling.studies.worlds.families.pictograms import PICTOGRAMS
from groundling.studies.worlds.probe import fit_probes, read_nouns, score_readout
from groundling.studies.worlds.tasks import CATEGORY, ODD, ORDER, TRUTH
from groundling.studies.worlds.world import World

FAMILIES = (OBJECTS, PICTOGRAMS)
SMALL = WorldConfig(
    family="pictograms", scenes=300, dev_scenes=10, sentences=8000, dev_sentences=50
)
SPLITS = ("train", "dev", "test")
TINY = WorldConfig(scenes=12, dev_scenes=3, sentences=200, dev_sentences=20)


@pytest.fixture(scope="module")
def world() -> World:
    return World(SMALL)


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictograms")
    world.write(path)
    return path


def digest(folder: Path, pattern: str) -> str:
    """Hash of the names and contents of a folder's files; of images, of their pixels."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        total.update(path.relative_to(folder).as_posix().encode())
        if path.suffix == ".png":
            total.update(np.asarray(Image.open(path)).tobytes())
        else:
            total.update(path.read_bytes())
    return total.hexdigest()[:16]


def captions(folder: Path, name: str = "train") -> list[str]:
    content = json.loads((folder / f"captions_{name}.json").read_text())
    return [annotation["caption"] for annotation in content["annotations"]]


def test_the_first_family_is_bit_equal_to_what_it_was_before_there_were_families(
    tmp_path: Path,
) -> None:
    World(TINY).write(tmp_path / "world")
    found = {
        pattern: digest(tmp_path / "world", pattern)
        for pattern in ("*.png", "corpus/*", "probes/*", "captions_*", "instances_*", "world.json")
    }
    assert found == PINNED


PINNED = {
    "*.png": "0d6dff462e5a731b",
    "corpus/*": "e984a7aea49e3ce3",
    "probes/*": "155ac39880ef47c1",
    "captions_*": "87c1f1d5be0707b8",
    "instances_*": "bd5f64b17824047d",
    "world.json": "04a45ea52e4ae8a7",
}
"""Hashes of the files that the code wrote before there were families."""


def test_families_are_found_by_name() -> None:
    assert registered("families", WorldFamily) == {one.name: one for one in FAMILIES}
    assert find_family("pictograms") is PICTOGRAMS
    assert find_family("groundling.studies.worlds.families.pictograms:PICTOGRAMS") is PICTOGRAMS
    assert World(WorldConfig()).family is OBJECTS


def test_an_unknown_family_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    expected = r"no world family is called 'pictogram'.*objects, pictograms"
    for make in (
        lambda: DATA_WORLD(WorldConfig(family="pictogram"), tmp_path / "w"),
        lambda: QUICKSTART(QuickstartConfig(family="pictogram"), tmp_path / "q"),
        lambda: World(WorldConfig(family="pictogram")),
    ):
        with pytest.raises(InputError, match=expected) as error:
            make()
        assert "\n" not in str(error.value)
    assert not list(tmp_path.iterdir())


def test_the_six_data_sets_refuse_another_family(tmp_path: Path) -> None:
    expected = "world.family=pictograms.*objects only.*make-world"
    with pytest.raises(InputError, match=expected):
        DATA_TASKS(TasksConfig(), WorldConfig(family="pictograms"), tmp_path / "t")
    with pytest.raises(InputError, match=expected):
        write_tasks(World(SMALL), tmp_path / "t")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_a_family_is_well_formed(family: WorldFamily) -> None:
    values = list(itertools.chain(*family.attributes.values()))
    assert len(set(values)) == len(values)
    assert sorted(family.phrase_order) == sorted(family.attributes)
    assert family.box_attribute in family.attributes
    assert [family.opposite(one) for one in family.relations] == [
        family.relations[i] for i in (1, 0, 3, 2)
    ]
    names = family.noun_names()
    assert len(set(names)) == len(names) >= 1000
    world = World(replace(TINY, family=family.name, nouns=1000))
    others = " ".join(
        [
            *(templates for _, templates in family.templates),
            *itertools.chain(*itertools.chain(*family.categories.values())),
            *family.things.values(),
            *values,
        ]
    )
    assert {noun.name for noun in world.nouns}.isdisjoint(others.split())


def test_the_families_share_no_noun_no_value_and_no_sentence() -> None:
    first, second = (one.attributes for one in FAMILIES)
    assert set(itertools.chain(*first.values())).isdisjoint(itertools.chain(*second.values()))
    assert sorted(map(len, first.values())) != sorted(map(len, second.values()))
    assert set(OBJECTS.noun_names()).isdisjoint(PICTOGRAMS.noun_names())
    assert OBJECTS.categories.keys().isdisjoint(PICTOGRAMS.categories)
    verbs = [
        set(itertools.chain(*(verbs for verbs, _ in one.categories.values()))) for one in FAMILIES
    ]
    assert verbs[0].isdisjoint(verbs[1])


@pytest.mark.parametrize("seed", [0, 1])
def test_attributes_and_category_are_balanced_and_independent(seed: int) -> None:
    nouns = World(replace(SMALL, seed=seed)).nouns
    assert len({noun.name for noun in nouns}) == len({noun.attributes for noun in nouns}) == 162
    table = [(*noun.attributes, noun.category) for noun in nouns]
    for column in zip(*table, strict=True):
        counts = Counter(column).values()
        assert max(counts) - min(counts) <= 2
    for first, second in itertools.combinations(zip(*table, strict=True), 2):
        joint = Counter(zip(first, second, strict=True))
        expected = 162 / len(set(first)) / len(set(second))
        assert len(joint) == len(set(first)) * len(set(second))
        assert max(abs(count - expected) for count in joint.values()) <= 2.5
    for split in SPLITS:
        columns = zip(*(noun.attributes for noun in nouns if noun.split == split), strict=True)
        for kind, column in zip(PICTOGRAMS.attributes, columns, strict=True):
            counts = Counter(column).values()
            assert len(counts) == len(PICTOGRAMS.attributes[kind])
            assert max(counts) - min(counts) <= (6 if split == "train" else 3)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_every_attribute_changes_pixels(family: WorldFamily) -> None:
    """Of two scenes that differ in one attribute of one object, several pixels differ clearly, beyond all jitter."""
    world = World(replace(TINY, family=family.name))
    ids = (image_id for image_id in itertools.count(1) if not world.scene(image_id).relation)
    for kind, values in enumerate(family.attributes.values()):
        for image_id in itertools.islice(ids, 4):
            scene = world.scene(image_id)
            pictures = []
            for value in values:
                thing = scene.things[0]
                attributes = (*thing.attributes[:kind], value, *thing.attributes[kind + 1 :])
                changed = replace(scene, things=(replace(thing, attributes=attributes),))
                pictures.append(world.render_scene(changed).astype(int))
            for one, other in itertools.combinations(pictures, 2):
                clear = abs(one - other).mean(axis=2) > 25
                assert clear.sum() >= 4, (kind, image_id)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_looks_can_be_told_from_pixels(world: World) -> None:
    from sklearn.neural_network import MLPClassifier

    crops, looks = [], []
    for image_id in range(1, 1000):
        scene = world.scene(image_id, redraw_attributes=True)
        pixels = world.render_scene(scene) / 128.0 - 1
        for thing in scene.things:
            crops.append(pixels[thing.y : thing.y + 14, thing.x : thing.x + 14].reshape(-1))
            looks.append(thing.attributes)
    x, y = np.array(crops), np.array(looks)
    for column, kind in enumerate(PICTOGRAMS.attributes):
        model = MLPClassifier((64,), max_iter=20, random_state=0).fit(x[:-400], y[:-400, column])
        assert model.score(x[-400:], y[-400:, column]) > 0.95, kind


def test_drawings_stay_in_their_cells_and_are_anti_aliased() -> None:
    for attributes in itertools.product(*PICTOGRAMS.attributes.values()):
        for fit, cell in itertools.product((0, 1), (7, 14, 28)):
            drawn = PICTOGRAMS.render(attributes, fit, cell)
            assert drawn.cover.shape == drawn.mark.shape == (cell, cell, 1)
            for share in (drawn.cover, drawn.mark):
                assert share.min() >= 0 and share.max() <= 1
            assert ((drawn.cover > 0) & (drawn.cover < 1)).any()
            x, y, width, height = drawn.box
            assert 0 <= x < x + width <= cell and 0 <= y < y + height <= cell


def test_text_and_captions_leak_only_when_told_to(folder: Path, tmp_path: Path) -> None:
    for in_captions in (False, True):
        clean = leaks(folder, in_captions)
        assert clean["adjacent"] == clean["predicated"] == 0
        assert clean["cooccurrence"] <= clean["cooccurrence_null"]
    World(replace(SMALL, stated_rate=0.5, scenes=300)).write(tmp_path)
    for in_captions in (False, True):
        told = leaks(tmp_path, in_captions)
        assert told["adjacent"] == pytest.approx(0.5, abs=0.05)
        assert told["cooccurrence"] > told["cooccurrence_null"] > 0


def test_a_noun_is_followed_by_a_particle_everywhere(world: World, folder: Path) -> None:
    """The grammar leaves no place for an attribute at a noun, in any text of images, corpus and control."""
    names = {noun.name for noun in world.nouns}
    values = set(itertools.chain(*PICTOGRAMS.attributes.values()))
    lines = [*captions(folder), *captions(folder, "dev"), *captions(folder, "redrawn_train")]
    for name in ("train", "dev"):
        lines += (folder / "corpus" / f"{name}.txt").read_text().splitlines()
    for line in lines:
        words = line.split()
        for place, word in enumerate(words):
            if word in names:
                assert words[place + 1] in ("ka", "lo", "mi"), line
                assert not place or words[place - 1] not in values, line
        if words[0] in names and "is" in words:
            assert words[1:] == ["ka", "here", "not", "is", "."], line


def test_category_is_in_text_only(world: World, folder: Path) -> None:
    verbs = {
        verb: category for category, (words, _) in PICTOGRAMS.categories.items() for verb in words
    }
    categories = {noun.name: noun.category for noun in world.nouns}
    stated = set()
    for words in map(str.split, (folder / "corpus" / "train.txt").read_text().splitlines()):
        if words[-2] in verbs:
            assert categories[words[2]] == verbs[words[-2]]
            stated.add(words[2])
    assert stated == categories.keys()
    assert verbs.keys().isdisjoint(" ".join(captions(folder)).split())


def test_captions_say_what_is_there(world: World, folder: Path) -> None:
    names = {noun.name for noun in world.nouns}
    content = json.loads((folder / "captions_train.json").read_text())["annotations"]
    orders = Counter()
    for annotation in content:
        scene = world.scene(annotation["image_id"])
        words = annotation["caption"].split()
        phrases: dict[str, tuple[str, ...]] = {}
        said: list[str] = []
        for word in words:
            if word in ("ka", "mi"):
                phrases[word] = tuple(said)
                said = []
            else:
                said.append(word)
        if not scene.relation:
            assert said == ["shown", "."]
            assert _fits(scene.things[0], phrases["ka"], names)
            continue
        relation, *end = said
        assert end == ["stands", "."]
        orders[next(iter(phrases))] += 1
        one, other = scene.things
        if relation != scene.relation:
            assert relation == PICTOGRAMS.opposite(scene.relation)
            one, other = other, one
        assert _fits(one, phrases["ka"], names) and _fits(other, phrases["mi"], names)
        lead = (other.x - one.x, one.x - other.x, other.y - one.y, one.y - other.y)
        assert PICTOGRAMS.relations[int(np.argmax(lead))] == relation
    assert min(orders.values()) > 0.3 * orders.total()


def _fits(thing: object, said: Sequence[str], names: set[str]) -> bool:
    if said[0] in names:
        return list(said) == [thing.name]  # type: ignore[attr-defined]
    return said[0] == "figure" and {*said[1:]} <= {*thing.attributes}  # type: ignore[attr-defined]


def test_questions_are_well_formed_and_true(world: World, folder: Path) -> None:
    nouns = {noun.name: noun for noun in world.nouns}
    known = set((folder / "corpus" / "train.txt").read_text().split())
    for split in SPLITS:
        for task in (TRUTH, ODD, CATEGORY, ORDER):
            examples = task.read(folder, split)
            assert sum(example.label for example in examples) * 2 == len(examples) >= 100
            assert len({example.text for example in examples}) == len(examples)
            for example in examples:
                words = example.text.split()
                assert set(words) <= known
                used = {nouns[word].split for word in words if word in nouns}
                assert used == {split}
        for example in TRUTH.read(folder, split):
            noun, _, value, *_ = example.text.split()
            assert (value in nouns[noun].attributes) == example.label
        for example in ODD.read(folder, split):
            words = example.text.split()
            p, like, unlike = (nouns[words[i]].attributes for i in (0, 2, 6))
            near, far = (sum(map(str.__eq__, p, other)) for other in (like, unlike))
            assert (near >= 3 and far <= 1) if example.label else (near <= 1 and far >= 3)
        for example in CATEGORY.read(folder, split):
            words = example.text.split()
            verbs, _ = PICTOGRAMS.categories[nouns[words[2]].category]
            assert (words[-2] in verbs) == example.label
        bags: dict[tuple[str, ...], int] = Counter()
        for example in ORDER.read(folder, split):
            bags[tuple(sorted(example.text.split()))] += 2 * example.label - 1
        assert not any(bags.values())


def test_an_order_question_never_swaps_what_the_grammar_lets_swap(folder: Path) -> None:
    """`X mi Y ka` is as good as `X ka Y mi`, so two particles, or two subjects, are not swapped."""
    classes = {"ka": "p", "lo": "p", "mi": "p"}
    for split in SPLITS:
        by_bag: dict[tuple[str, ...], list[list[str]]] = {}
        for example in ORDER.read(folder, split):
            words = example.text.split()
            by_bag.setdefault(tuple(sorted(words)), []).append(words)
        for pair in by_bag.values():
            if len(pair) != 2:
                continue
            moved = [{a, b} for a, b in zip(*pair, strict=True) if a != b]
            assert len(moved) == 2 and moved[0] == moved[1]
            assert len({classes.get(word, word) for word in moved[0]}) == 2


def test_a_bag_of_words_does_not_know_the_truth(folder: Path) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    for task in (TRUTH, ODD, ORDER):
        train, test = (task.read(folder, split) for split in SPLITS[::2])
        bag = CountVectorizer(ngram_range=(1, 1)).fit([one.text for one in train])
        model = LogisticRegression().fit(
            bag.transform([one.text for one in train]), [one.label for one in train]
        )
        score = model.score(bag.transform([one.text for one in test]), [one.label for one in test])
        assert abs(score - 0.5) <= 2 * (0.25 / len(test)) ** 0.5, task.name


def test_the_same_seed_gives_the_same_bytes_and_another_seed_none(
    folder: Path, tmp_path: Path
) -> None:
    World(SMALL).write(tmp_path / "again")
    World(replace(SMALL, seed=1)).write(tmp_path / "other")
    first, again, other = (
        {
            str(path.relative_to(place)): path.read_bytes()
            for path in place.rglob("*")
            if path.is_file()
        }
        for place in (folder, tmp_path / "again", tmp_path / "other")
    )
    assert first == again
    assert first.keys() == other.keys()
    assert not [name for name in first if first[name] == other[name]]


def test_control_images_keep_layout_and_names_but_redraw_attributes(
    world: World, folder: Path
) -> None:
    redrawn, total = 0, 0
    for image_id in range(1, 41):
        scene, control = world.scene(image_id), world.scene(image_id, redraw_attributes=True)
        assert scene.relation == control.relation
        for one, other in zip(scene.things, control.things, strict=True):
            assert (one.name, one.x, one.y, one.fit) == (other.name, other.x, other.y, other.fit)
            assert one.attributes == other.attributes or one.name
            total += bool(one.name)
            redrawn += one.attributes != other.attributes
        pixels = [
            np.asarray(Image.open(folder / kind / f"{image_id:012d}.png"))
            for kind in ("images", "images_redrawn")
        ]
        assert np.array_equal(*pixels) == (scene == control)
    assert redrawn > 0.9 * total
    names = {noun.name for noun in world.nouns}
    for one, other in zip(captions(folder), captions(folder, "redrawn_train"), strict=True):
        assert [w for w in one.split() if w in names] == [w for w in other.split() if w in names]


def test_the_files_say_which_family_they_are_of(world: World, folder: Path) -> None:
    about = json.loads((folder / "world.json").read_text())
    assert about["config"]["family"] == "pictograms"
    assert about["attributes"] == {k: list(v) for k, v in PICTOGRAMS.attributes.items()}
    boxes = json.loads((folder / "instances_train.json").read_text())
    names = {category["id"]: category["name"] for category in boxes["categories"]}
    assert tuple(names.values()) == PICTOGRAMS.attributes["body"]
    for box in boxes["annotations"]:
        assert names[box["category_id"]] in box["attributes"]
        x, y, width, height = box["bbox"]
        assert 0 <= x < x + width <= 32 and 0 <= y < y + height <= 32


def test_the_probes_and_the_readout_read_it_as_it_is(world: World, folder: Path) -> None:
    rows = read_nouns(folder)
    assert {row["sentence"] for row in rows} == {f"{row['noun']} ka shown ." for row in rows}
    known = np.array(
        [
            [
                float(row[kind] == value)
                for kind, values in PICTOGRAMS.attributes.items()
                for value in values
            ]
            for row in rows
        ]
    )
    *probes, last = fit_probes(known, rows).values()
    assert [one.column for one in probes] == ["body", "legs", "crest", "fill"]
    assert last.column == "category"
    for one in probes:
        assert one.score()["test"] == 1
    shares = [one.shares() for one in probes]
    names = [row["noun"] for row in rows]
    path = ODD.file(folder, "test")
    assert score_readout(shares, names, ODD.read(folder, "test"), path) == 1
