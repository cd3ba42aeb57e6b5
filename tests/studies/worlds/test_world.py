"""Rendered worlds of every family: each shows in images alone what its text never says."""

import hashlib
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from leaks import leaks
from PIL import Image

from groundling.core.errors import InputError
from groundling.core.registry import registered
from groundling.studies.bench.commands import QUICKSTART, QuickstartConfig
from groundling.studies.worlds.commands import (
    DATA_TASKS,
    DATA_WORLD,
    TasksConfig,
    WorldConfig,
)
from groundling.studies.worlds.families import WorldFamily, find_family
from groundling.studies.worlds.families.objects import OBJECTS
from groundling.studies.worlds.families.pictograms import PICTOGRAMS
from groundling.studies.worlds.language import ODD_RULES
from groundling.studies.worlds.world import World

FAMILIES = (OBJECTS, PICTOGRAMS)
SMALL = WorldConfig(scenes=40, dev_scenes=10, sentences=5000, dev_sentences=50)
TINY = WorldConfig(scenes=12, dev_scenes=3, sentences=200, dev_sentences=20)
SPLITS = ("train", "dev", "test")
PROBES = ("truth", "odd", "category", "order")
PLACES = {
    "objects": {"truth": (1, 3), "odd": (1, 5, 9), "category": (3, 1)},
    "pictograms": {"truth": (0, 2), "odd": (0, 2, 6), "category": (2, -2)},
}
"""Places of a question's words: noun and value; three nouns; noun and verb."""


class Written(NamedTuple):
    """A world in a folder."""

    world: World
    folder: Path


@pytest.fixture(scope="module", params=[one.name for one in FAMILIES])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    world = World(replace(SMALL, family=request.param))
    folder = tmp_path_factory.mktemp(request.param)
    world.write(folder)
    return Written(world, folder)


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def rows(folder: Path, probe: str, split: str) -> list[tuple[list[str], int]]:
    header, *lines = (folder / "probes" / f"{probe}_{split}.tsv").read_text().splitlines()
    assert header == "index\tsentence\tlabel"
    fields = [line.split("\t") for line in lines]
    assert [int(index) for index, _, _ in fields] == list(range(len(lines)))
    assert len({sentence for _, sentence, _ in fields}) == len(lines), "duplicate rows"
    return [(sentence.split(), int(label)) for _, sentence, label in fields]


def captions(folder: Path, name: str = "train") -> list[dict]:
    return json.loads((folder / f"captions_{name}.json").read_text())["annotations"]


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


PINNED = {
    "*.png": "0d6dff462e5a731b",
    "corpus/*": "e984a7aea49e3ce3",
    "probes/*": "155ac39880ef47c1",
    "captions_*": "87c1f1d5be0707b8",
    "instances_*": "bd5f64b17824047d",
    "world.json": "04a45ea52e4ae8a7",
}
"""Hashes of the files that the code wrote before there were families."""


def test_the_first_family_is_as_before_there_were_families(tmp_path: Path) -> None:
    World(TINY).write(tmp_path)
    assert {pattern: digest(tmp_path, pattern) for pattern in PINNED} == PINNED


def test_families_are_found_by_name() -> None:
    assert registered("families", WorldFamily) == {one.name: one for one in FAMILIES}
    assert find_family("pictograms") is PICTOGRAMS
    assert find_family("groundling.studies.worlds.families.pictograms:PICTOGRAMS") is PICTOGRAMS
    assert World(WorldConfig()).family is OBJECTS


def test_an_unknown_family_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    unknown = "no world family is called 'pictogram'.*objects, pictograms"
    for make in (
        lambda: DATA_WORLD(WorldConfig(family="pictogram"), tmp_path / "w"),
        lambda: QUICKSTART(QuickstartConfig(family="pictogram"), tmp_path / "q"),
    ):
        with pytest.raises(InputError, match=unknown):
            make()
    with pytest.raises(InputError, match=r"world.family=pictograms.*objects only.*make-world"):
        DATA_TASKS(TasksConfig(), WorldConfig(family="pictograms"), tmp_path / "t")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_a_family_is_well_formed(family: WorldFamily) -> None:
    values = list(itertools.chain(*family.attributes.values()))
    assert len(set(values)) == len(values)
    assert sorted(family.phrase_order) == sorted(family.attributes)
    assert family.box_attribute in family.attributes
    opposites = [family.opposite(one) for one in family.relations]
    assert opposites == [family.relations[i] for i in (1, 0, 3, 2)]
    names = family.noun_names()
    assert len(set(names)) == len(names) >= 1000
    world = World(replace(TINY, family=family.name, nouns=1000))
    templates = [text for _, text in family.templates]
    said = [*itertools.chain(*family.categories.values()), family.things.values(), values]
    others = " ".join([*templates, *itertools.chain(*said)])
    assert {noun.name for noun in world.nouns}.isdisjoint(others.split())


def test_the_families_share_no_noun_no_value_and_no_verb() -> None:
    def words(one: WorldFamily) -> set[str]:
        verbs = itertools.chain(*(verbs for verbs, _ in one.categories.values()))
        return {*itertools.chain(*one.attributes.values()), *one.noun_names(), *verbs}

    assert words(OBJECTS).isdisjoint(words(PICTOGRAMS))
    assert OBJECTS.categories.keys().isdisjoint(PICTOGRAMS.categories)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
@pytest.mark.parametrize(("family", "images"), [(OBJECTS, 1400), (PICTOGRAMS, 1000)])
def test_looks_can_be_told_from_pixels(family: WorldFamily, images: int) -> None:
    from sklearn.neural_network import MLPClassifier

    world = World(replace(SMALL, family=family.name))
    crops, looks = [], []
    for image_id in range(1, images):
        scene = world.scene(image_id, redraw_attributes=True)
        pixels = world.render_scene(scene) / 128.0 - 1
        for thing in scene.things:
            crops.append(pixels[thing.y : thing.y + 14, thing.x : thing.x + 14].reshape(-1))
            looks.append(thing.attributes)
    x, y = np.array(crops), np.array(looks)
    for column, kind in enumerate(family.attributes):
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


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_the_same_seed_gives_the_same_bytes_and_another_seed_none(
    family: WorldFamily, tmp_path: Path
) -> None:
    found = []
    for name, seed in (("one", 0), ("again", 0), ("other", 1)):
        few = replace(TINY, nouns=60, dev_nouns=14, test_nouns=16, sentences=50)
        World(replace(few, family=family.name, seed=seed)).write(tmp_path / name)
        found.append(contents(tmp_path / name))
    first, again, other = found
    assert first == again and first.keys() == other.keys()
    assert not [name for name in first if first[name] == other[name]]


def test_a_scene_does_not_depend_on_how_many_there_are(written: Written, tmp_path: Path) -> None:
    World(replace(written.world.config, scenes=7, dev_scenes=3, sentences=20)).write(tmp_path)
    few, many = contents(tmp_path), contents(written.folder)
    images = [name for name in few if name.endswith(".png")]
    assert len(images) == 2 * (7 + 3)
    assert all(few[name] == many[name] for name in images)
    for name in ("train", "dev", "redrawn_train", "redrawn_dev"):
        short = captions(tmp_path, name)
        assert short == captions(written.folder, name)[: len(short)]
    lines = few["corpus/train.txt"].splitlines()
    assert lines == many["corpus/train.txt"].splitlines()[:20]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("family", "apart", "in_train"), [(OBJECTS, 2, 4), (PICTOGRAMS, 2.5, 6)], ids=["objects", "p"]
)
def test_attributes_and_category_are_balanced_and_independent(
    family: WorldFamily, apart: float, in_train: int, seed: int
) -> None:
    nouns = World(replace(SMALL, family=family.name, seed=seed)).nouns
    assert len({noun.name for noun in nouns}) == len({noun.attributes for noun in nouns}) == 162
    table = [(*noun.attributes, noun.category) for noun in nouns]
    for column in zip(*table, strict=True):
        counts = Counter(column).values()
        assert max(counts) - min(counts) <= 2
    for first, second in itertools.combinations(zip(*table, strict=True), 2):
        joint = Counter(zip(first, second, strict=True))
        expected = 162 / len(set(first)) / len(set(second))
        assert len(joint) == len(set(first)) * len(set(second))
        assert max(abs(count - expected) for count in joint.values()) <= apart
    assert Counter(noun.split for noun in nouns) == {"train": 108, "dev": 18, "test": 36}
    for split in SPLITS:
        columns = zip(*(noun.attributes for noun in nouns if noun.split == split), strict=True)
        for values, column in zip(family.attributes.values(), columns, strict=True):
            counts = Counter(column).values()
            assert len(counts) == len(values)
            assert max(counts) - min(counts) <= (in_train if split == "train" else 3)


def test_questions_are_true_balanced_and_of_their_split(written: Written) -> None:
    world, folder = written
    family, places = world.family, PLACES[world.family.name]
    nouns = {noun.name: noun for noun in world.nouns}
    corpus = (folder / "corpus" / "train.txt").read_text()
    known, sentences = set(corpus.split()), set(corpus.splitlines())
    odd_rules = json.loads((folder / "world.json").read_text())["odd"]
    for split in SPLITS:
        found = {probe: rows(folder, probe, split) for probe in PROBES}
        for probe, own in found.items():
            assert sum(label for _, label in own) * 2 == len(own) >= 100, (probe, split)
            for words, _ in own:
                assert set(words) <= known
                assert {nouns[word].split for word in words if word in nouns} == {split}
        by_kind: dict[tuple[str, int], int] = Counter()
        for words, label in found["truth"]:
            noun, value = (words[place] for place in places["truth"])
            kind = next(kind for kind, values in family.attributes.items() if value in values)
            by_kind[kind, label] += 1
            assert (value in nouns[noun].attributes) == label
        assert len(set(by_kind.values())) == 1
        assert odd_rules[split] == ODD_RULES[0]
        tilt: dict[str, int] = Counter()
        for words, label in found["odd"]:
            p, like, unlike = (nouns[words[place]].attributes for place in places["odd"])
            near, far = (sum(map(str.__eq__, p, other)) for other in (like, unlike))
            assert (near >= 3 and far <= 1) if label else (near <= 1 and far >= 3)
            tilt[words[places["odd"][1]]] += 1 if label else -1
        assert max(map(abs, tilt.values())) <= 2
        for words, label in found["category"]:
            noun, verb = (words[place] for place in places["category"])
            assert (verb in family.categories[nouns[noun].category][0]) == label
        bags: dict[tuple[str, ...], int] = Counter()
        for words, label in found["order"]:
            assert " ".join(words) not in sentences
            bags[tuple(sorted(words))] += 2 * label - 1
        assert not any(bags.values())
    assert all(line.endswith(" .") and line == line.lower() for line in sentences)
    for name in ("train", "dev", "redrawn_train"):
        assert {word for one in captions(folder, name) for word in one["caption"].split()} <= known


def test_category_is_in_text_only(written: Written) -> None:
    world, folder = written
    noun_place, verb_place = PLACES[world.family.name]["category"]
    verbs = {verb: kind for kind, (words, _) in world.family.categories.items() for verb in words}
    categories = {noun.name: noun.category for noun in world.nouns}
    stated = set()
    for words in map(str.split, (folder / "corpus" / "train.txt").read_text().splitlines()):
        if words[verb_place] in verbs:
            assert categories[words[noun_place]] == verbs[words[verb_place]]
            stated.add(words[noun_place])
    assert stated == categories.keys()
    said = {word for one in captions(folder) for word in one["caption"].split()}
    assert verbs.keys().isdisjoint(said)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_text_and_captions_leak_only_when_told_to(family: WorldFamily, tmp_path: Path) -> None:
    config = replace(SMALL, family=family.name, sentences=4000)
    for name, rate in (("clean", 0.0), ("told", 0.5)):
        world = World(replace(config, stated_rate=rate))
        world.write_text(tmp_path / name)
        scenes = map(world.scene, range(1, 2001))  # captions without images: ten times as fast
        said = [{"caption": text} for scene in scenes for text in world.captions(scene)]
        (tmp_path / name / "captions_train.json").write_text(json.dumps({"annotations": said}))
    for in_captions in (False, True):
        clean, told = (leaks(tmp_path / name, in_captions) for name in ("clean", "told"))
        assert clean["adjacent"] == clean["predicated"] == 0
        assert clean["cooccurrence"] <= clean["cooccurrence_null"]
        assert told["adjacent"] == pytest.approx(0.5, abs=0.05)
        assert told["cooccurrence"] > 10 * told["cooccurrence_null"] > 0
    if family is OBJECTS:
        nouns = {noun.name: noun for noun in World(config).nouns}
        path = tmp_path / "told" / "corpus" / "train.txt"
        for words in map(str.split, path.read_text().splitlines()):
            for before, word in itertools.pairwise(words):
                assert word not in nouns or before in ("a", "the", *nouns[word].attributes)
        path.write_text(f"the {next(iter(nouns))} is red .\nthe block is red .\n")
        assert leaks(tmp_path / "told")["predicated"] == 0.5
    with pytest.raises(InputError, match=r"world\.json is missing"):
        leaks(tmp_path)


def test_control_images_keep_layout_and_names_but_redraw_attributes(written: Written) -> None:
    world, folder = written
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
    values = set(itertools.chain(*world.family.attributes.values()))
    differ = 0
    for pair in zip(captions(folder), captions(folder, "redrawn_train"), strict=True):
        one, other = ([w for w in each["caption"].split() if w in names] for each in pair)
        assert one == other
        one, other = ([w for w in each["caption"].split() if w in values] for each in pair)
        differ += set(one) != set(other)
    assert differ > 5


def said_of(family: str, words: list[str]) -> tuple[list[list[str]], str]:
    """The phrases of a caption, of which the first stands in the relation to the second."""
    if family == "objects":
        phrases = " ".join(words[2:] if words[0] == "there" else words).removesuffix(" .")
        relation = next((one for one in OBJECTS.relations if f" is {one} " in phrases), "")
        parts = phrases.split(f" is {relation} ") if relation else [phrases]
        return [part.split()[1:] for part in parts], relation
    if words[-2] == "shown":
        return [words[:-3]], ""
    *both, relation = words[:-2]
    assert words[-2:] == ["stands", "."]
    ka, mi = both.index("ka"), both.index("mi")
    first = both[:ka] if ka < mi else both[mi + 1 : ka]
    return [first, both[:mi] if mi < ka else both[ka + 1 : mi]], relation


def test_captions_say_what_is_there(written: Written) -> None:
    world, folder = written
    family, names = world.family, {noun.name for noun in world.nouns}
    swapped = 0
    for annotation in captions(folder):
        scene = world.scene(annotation["image_id"])
        phrases, relation = said_of(family.name, annotation["caption"].split())
        things = list(scene.things)
        assert len(phrases) == len(things) and bool(relation) == bool(scene.relation)
        if relation != scene.relation:
            assert relation == family.opposite(scene.relation)
            things.reverse()
            swapped += 1
        for said, thing in zip(phrases, things, strict=True):
            if names & {*said}:
                assert said == [thing.name]
            else:
                assert family.thing in said and {*said} - {family.thing} <= {*thing.attributes}
        if relation:
            one, other = things
            lead = (other.x - one.x, one.x - other.x, other.y - one.y, one.y - other.y)
            assert family.relations[int(np.argmax(lead))] == relation
    assert swapped > 5
    if family is PICTOGRAMS:  # the particles allow both orders
        pairs = [one["caption"] for one in captions(folder) if " mi " in one["caption"]]
        orders = Counter(" mi " in text.partition(" ka ")[0] for text in pairs)
        assert min(orders[False], orders[True]) > 0.3 * len(pairs)


@pytest.mark.parametrize("written", ["pictograms"], indirect=True)
def test_an_order_question_never_swaps_what_the_grammar_lets_swap(written: Written) -> None:
    """`X mi Y ka` is as good as `X ka Y mi`, so two particles, or two subjects, are not swapped."""
    classes = {"ka": "p", "lo": "p", "mi": "p"}
    for split in SPLITS:
        by_bag: dict[tuple[str, ...], list[list[str]]] = {}
        for words, _ in rows(written.folder, "order", split):
            by_bag.setdefault(tuple(sorted(words)), []).append(words)
        for pair in by_bag.values():
            if len(pair) != 2:
                continue
            moved = [{a, b} for a, b in zip(*pair, strict=True) if a != b]
            assert len(moved) == 2 and moved[0] == moved[1]
            assert len({classes.get(word, word) for word in moved[0]}) == 2


def test_a_bag_of_words_does_not_know_the_truth(written: Written) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    for probe in ("truth", "odd", "order"):
        train, test = (
            list(zip(*rows(written.folder, probe, split), strict=True)) for split in SPLITS[::2]
        )
        texts, asked = ([" ".join(words) for words in sentences] for sentences, _ in (train, test))
        bag = CountVectorizer(ngram_range=(1, 1)).fit(texts)
        model = LogisticRegression().fit(bag.transform(texts), train[1])
        score = model.score(bag.transform(asked), test[1])
        assert abs(score - 0.5) <= 2 * (0.25 / len(asked)) ** 0.5, (probe, score)


def test_coco_files_are_valid(written: Written) -> None:
    world, folder = written
    about = json.loads((folder / "world.json").read_text())
    assert about["config"].get("family", "objects") == world.family.name
    assert about["attributes"] == {k: list(v) for k, v in world.family.attributes.items()}
    for split, count in (("train", 40), ("dev", 10)):
        boxes, texts = (
            json.loads((folder / f"{kind}_{split}.json").read_text())
            for kind in ("instances", "captions")
        )
        assert boxes["images"] == texts["images"]
        images = {image["id"]: image for image in boxes["images"]}
        for image in images.values():
            for kind in ("images", "images_redrawn"):
                with Image.open(folder / kind / image["file_name"]) as picture:
                    assert picture.size == (image["width"], image["height"]) == (32, 32)
        told = Counter(text["image_id"] for text in texts["annotations"])
        assert told == dict.fromkeys(images, 2) and len(images) == count
        names = {category["id"]: category["name"] for category in boxes["categories"]}
        assert tuple(names.values()) == world.family.attributes[world.family.box_attribute]
        for content in (boxes, texts):
            ids = [annotation["id"] for annotation in content["annotations"]]
            assert len(set(ids)) == len(ids)
        for box in boxes["annotations"]:
            x, y, w, h = box["bbox"]
            assert all(isinstance(value, float) for value in box["bbox"])
            assert 0 <= x < x + w <= 32 and 0 <= y < y + h <= 32
            assert 0 < box["area"] <= 1.3 * w * h and box["iscrowd"] == 0
            assert names[box["category_id"]] in box["attributes"] and box["image_id"] in images


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [("dev_nouns", 130, 166), ("nouns", 3, 3), ("stated_rate", 1.5, 1.5), ("size", 30, 30)],
)
def test_bad_input_names_the_field(field: str, value: float, told: float) -> None:
    with pytest.raises(InputError, match=rf"{field.replace('_', '[-_]')}.*{told}.*expected"):
        WorldConfig(**{field: value})
