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
from PIL import Image

from groundling.core.errors import InputError
from groundling.core.registry import registered
from groundling.core.rng import generator
from groundling.data.captions import read_captions
from groundling.data.regions.annotations import read_annotated_boxes
from groundling.studies.bench.commands import QUICKSTART, QuickstartConfig
from groundling.studies.worlds.commands import (
    DATA_TASKS,
    DATA_WORLD,
    DEV_IMAGES,
    TasksConfig,
    WorldConfig,
)
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.families import WorldFamily, find_family
from groundling.studies.worlds.families.objects import OBJECTS
from groundling.studies.worlds.families.pictograms import PICTOGRAMS
from groundling.studies.worlds.language import ODD_RULES, sentence
from groundling.studies.worlds.world import World, read_world

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


def digest(folder: Path) -> str:
    """Hash of the names and contents of a folder's files; of images, of their pixels."""
    total = hashlib.sha256()
    for name, content in contents(folder).items():
        total.update(name.encode())
        total.update(
            np.asarray(Image.open(folder / name)).tobytes() if name.endswith(".png") else content
        )
    return total.hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "pinned"),
    [
        ("objects", ["43defa872757c590", "46ed091678b473f1"]),
        ("pictograms", ["a7db3a6b301710df", "3834824ea5cb2513"]),
        ("data sets", ["78d78dca51f0c7d6", "d467653906bdb5d9"]),
    ],
)
def test_a_seed_gives_the_same_bytes_for_ever_and_another_none_of_them(name, pinned, tmp_path):
    """Files that change need another `FORMAT_VERSION`."""
    few = replace(TINY, nouns=60, dev_nouns=14, test_nouns=16, sentences=50)
    folders = [tmp_path / "0", tmp_path / "1"]
    for seed, folder in enumerate(folders):
        if name == "data sets":
            write_tasks(World(replace(few, seed=seed)), folder, 40, 30)
        else:
            World(replace(few, family=name, seed=seed)).write(folder)
    assert [digest(folder) for folder in folders] == pinned
    first, other = map(contents, folders)
    same = {file for file in first if first[file] == other.get(file)}
    assert same == ({"vqa/trainval_label2ans.json"} if name == "data sets" else set())


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
@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_looks_can_be_told_from_pixels(family: WorldFamily) -> None:
    from sklearn.neural_network import MLPClassifier

    world = World(replace(SMALL, family=family.name))
    crops, looks = [], []
    for image_id in range(1, 900):
        scene = world.scene(image_id, redraw_attributes=True)
        pixels = world.render_scene(scene) / 128.0 - 1
        for thing in scene.things:
            crops.append(pixels[thing.y : thing.y + 14, thing.x : thing.x + 14].reshape(-1))
            looks.append(thing.attributes)
    x, y = np.array(crops), np.array(looks)
    for column, kind in enumerate(family.attributes):
        model = MLPClassifier((32,), learning_rate_init=0.003, max_iter=20, random_state=0)
        model.fit(x[:-400], y[:-400, column])
        assert model.score(x[-400:], y[-400:, column]) > 0.95, kind


def test_drawings_stay_in_their_cells_and_are_anti_aliased() -> None:
    for attributes in itertools.product(*PICTOGRAMS.attributes.values()):
        for fit, cell in itertools.product((0, 1), (7, 14)):
            drawn = PICTOGRAMS.render(attributes, fit, cell)
            assert drawn.cover.shape == drawn.mark.shape == (cell, cell, 1)
            for share in (drawn.cover, drawn.mark):
                assert share.min() >= 0 and share.max() <= 1
            assert ((drawn.cover > 0) & (drawn.cover < 1)).any()
            x, y, width, height = drawn.box
            assert 0 <= x < x + width <= cell and 0 <= y < y + height <= cell


def test_a_scene_and_a_line_do_not_depend_on_how_many_there_are(written, tmp_path, monkeypatch):
    world, folder = written
    few = World(replace(world.config, scenes=7, dev_scenes=3, sentences=20))
    for image_id in (1, 7, DEV_IMAGES + 3):
        scene = few.scene(image_id)
        assert scene == world.scene(image_id)
        assert few.captions(scene) == world.captions(scene)
        assert np.array_equal(few.render_scene(scene), world.render_scene(scene))
    monkeypatch.setattr(World, "_write_probes", lambda *_: "")
    few.write_text(tmp_path)
    lines, every = (
        (root / "corpus/train.txt").read_text().splitlines() for root in (tmp_path, folder)
    )
    assert lines == every[:20]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("family", "apart", "in_train"), [(OBJECTS, 2, 4), (PICTOGRAMS, 2.5, 6)], ids=["objects", "p"]
)
def test_attributes_and_category_are_balanced_and_independent(family, apart, in_train, seed):
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


def leaks(world: World, lines: list[str]) -> tuple[float, float, float, float]:
    """How far lines give the nouns' attributes away: four numbers, of which all but the last should be near 0.

    The share of noun mentions next to an attribute word; the share of lines that begin as the probe "truth"; the
    accuracy above the majority's, mean of the attributes, of a ridge classifier that reads how often a noun shares a
    sentence with each attribute word, one noun left out at a time; and the 95th percentile of the same with the nouns'
    attributes permuted.
    """
    index = {noun.name: i for i, noun in enumerate(world.nouns)}
    values = list(itertools.chain(*world.family.attributes.values()))
    words = {word: i for i, word in enumerate(values)}
    statements = {
        tuple(world.family.truth.format(noun=noun, value=word).removesuffix(" .").split())
        for noun, word in itertools.product(index, words)
    }
    length = len(next(iter(statements)))
    counts = np.zeros((len(index), len(words)))
    mentions, adjacent, predicated = 0, 0, 0
    for tokens in map(str.split, lines):
        predicated += tuple(tokens[:length]) in statements
        told = [words[token] for token in tokens if token in words]
        for i, token in enumerate(tokens):
            if token in index:
                mentions += 1
                adjacent += any(word in words for word in tokens[max(i - 1, 0) : i + 2])
                np.add.at(counts[index[token]], told, 1)
    labels = [
        np.unique(column, return_inverse=True)[1]
        for column in zip(*(noun.attributes for noun in world.nouns), strict=True)
    ]
    hat = _hat(counts)
    orders = (generator("leaks", i).permutation(len(index)) for i in range(200))
    null = np.quantile([_gain(hat, labels, order) for order in orders], 0.95)
    gain = _gain(hat, labels, np.arange(len(index)))
    return adjacent / mentions, predicated / len(lines), gain, float(null)


def _hat(counts: np.ndarray) -> np.ndarray:
    """The matrix (N, N) by which a ridge regression on the counts (N, W) turns targets into predictions."""
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    scaled = (shares - shares.mean(axis=0)) / (shares.std(axis=0) + 1e-9)
    x = np.c_[np.ones(len(scaled)), scaled]
    penalty = np.diag([1e-6] + [1.0] * counts.shape[1])
    return x @ np.linalg.solve(x.T @ x + penalty, x.T)


def _gain(hat: np.ndarray, labels: list[np.ndarray], order: np.ndarray) -> float:
    """Leave-one-out accuracy above the majority's, mean of the attributes, with the nouns' labels in this order."""
    own = np.diag(hat)[:, None]
    gains = []
    for label in labels:
        target = np.eye(label.max() + 1)[label[order]]
        # A ridge fit without noun i predicts for i what the full fit does, less i's own part.
        score = (hat @ target - own * target) / (1 - own)
        right = score.argmax(axis=1) == label[order]
        gains.append(right.mean() - target.mean(axis=0).max())
    return float(np.mean(gains))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda one: one.name)
def test_text_and_captions_leak_only_when_told_to(family: WorldFamily) -> None:
    for rate in (0.0, 0.5):
        world = World(replace(SMALL, family=family.name, stated_rate=rate))
        rngs = (generator("corpus", number) for number in range(4000))
        corpus = [sentence(rng, family, world.nouns, rate) for rng in rngs]
        scenes = map(world.scene, range(1, 2001))
        captions = [text for scene in scenes for text in world.captions(scene)]
        for lines in (corpus, captions):
            adjacent, predicated, gain, null = leaks(world, lines)
            if rate:
                assert adjacent == pytest.approx(0.5, abs=0.05)
                assert gain > 10 * null > 0
            else:
                assert adjacent == predicated == 0
                assert gain <= null
    if family is OBJECTS:
        nouns = {noun.name: noun for noun in world.nouns}
        for words in map(str.split, corpus):
            for before, word in itertools.pairwise(words):
                assert word not in nouns or before in ("a", "the", *nouns[word].attributes)
        told = [f"the {next(iter(nouns))} is red .", "the block is red ."]
        assert leaks(world, told)[1] == 0.5


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
        same = np.array_equal(world.render_scene(scene), world.render_scene(control))
        assert same == (scene == control)
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


def test_coco_files_are_those_of_the_scenes(written: Written) -> None:
    world, folder = written
    assert read_world(folder).config == world.config
    for split, start in (("train", 1), ("dev", DEV_IMAGES + 1)):
        boxes, names = read_annotated_boxes(folder / f"instances_{split}.json")
        assert tuple(names) == world.family.attributes[world.family.box_attribute]
        told = read_captions(folder / f"captions_{split}.json").images
        files = [f"{start + number:012d}.png" for number in range(40 if split == "train" else 10)]
        assert [one.file for one in told] == files == sorted(boxes)
        for number, (file, captioned) in enumerate(zip(files, told, strict=True), start):
            scene = world.scene(number)
            assert list(captioned.captions) == world.captions(scene)
            redrawn = world.scene(number, redraw_attributes=True)
            for name, shown in (("images", scene), ("images_redrawn", redrawn)):
                pixels = np.asarray(Image.open(folder / name / file))
                assert np.array_equal(pixels, world.render_scene(shown))
            assert boxes[file].image_size == (32, 32)
            for box, thing, corners in zip(
                world.boxes(scene), scene.things, boxes[file].boxes, strict=True
            ):
                assert names[box["category_id"] - 1] in thing.attributes
                assert {*box["attributes"]} == {*thing.attributes}
                x, y, width, height = box["bbox"]
                assert np.allclose(corners * 32, [x, y, x + width, y + height])
                assert thing.x <= x < x + width <= thing.x + world.cell
                assert thing.y <= y < y + height <= thing.y + world.cell
                assert 0 < box["area"] <= 1.3 * width * height


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [("dev_nouns", 130, 166), ("nouns", 3, 3), ("stated_rate", 1.5, 1.5), ("size", 30, 30)],
)
def test_bad_input_names_the_field(field: str, value: float, told: float) -> None:
    with pytest.raises(InputError, match=rf"{field.replace('_', '[-_]')}.*{told}.*expected"):
        WorldConfig(**{field: value})
