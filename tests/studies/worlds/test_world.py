import hashlib
import itertools
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from leaks import leaks
from PIL import Image

from groundling.core.errors import InputError
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.families.objects import ATTRIBUTES
from groundling.studies.worlds.language import ODD_RULES
from groundling.studies.worlds.world import World

SMALL = WorldConfig(scenes=40, dev_scenes=10, sentences=8000, dev_sentences=50)
SPLITS = ("train", "dev", "test")
PROBES = ("truth", "odd", "category", "order")


@pytest.fixture(scope="module")
def world() -> World:
    return World(SMALL)


@pytest.fixture(scope="module")
def folder(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("world")
    world.write(path)
    return path


def digests(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def rows(folder: Path, probe: str, split: str) -> list[tuple[list[str], int]]:
    header, *lines = (folder / "probes" / f"{probe}_{split}.tsv").read_text().splitlines()
    assert header == "index\tsentence\tlabel"
    fields = [line.split("\t") for line in lines]
    assert [int(index) for index, _, _ in fields] == list(range(len(lines)))
    assert len({sentence for _, sentence, _ in fields}) == len(lines), "duplicate rows"
    return [(sentence.split(), int(label)) for _, sentence, label in fields]


def captions(folder: Path, name: str) -> list[dict]:
    return json.loads((folder / f"captions_{name}.json").read_text())["annotations"]


def test_same_config_same_bytes_and_another_seed_none(folder: Path, tmp_path: Path) -> None:
    World(SMALL).write(tmp_path / "again")
    World(replace(SMALL, seed=1)).write(tmp_path / "other")
    first, again, other = digests(folder), digests(tmp_path / "again"), digests(tmp_path / "other")
    assert first == again
    assert first.keys() == other.keys()
    assert not [name for name in first if first[name] == other[name]]


def test_a_scene_does_not_depend_on_how_many_there_are(folder: Path, tmp_path: Path) -> None:
    World(replace(SMALL, scenes=7, dev_scenes=3, sentences=20)).write(tmp_path)
    few, many = digests(tmp_path), digests(folder)
    images = [name for name in few if name.endswith(".png")]
    assert len(images) == 2 * (7 + 3)
    assert all(few[name] == many[name] for name in images)
    for name in ("train", "dev", "redrawn_train", "redrawn_dev"):
        short = captions(tmp_path, name)
        assert short == captions(folder, name)[: len(short)]
    lines = (tmp_path / "corpus" / "train.txt").read_text().splitlines()
    assert lines == (folder / "corpus" / "train.txt").read_text().splitlines()[:20]


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
        assert max(abs(count - expected) for count in joint.values()) <= 2
    for split in SPLITS:
        for kind, column in zip(
            ATTRIBUTES,
            zip(*(n.attributes for n in nouns if n.split == split), strict=True),
            strict=True,
        ):
            counts = Counter(column).values()
            assert len(counts) == len(ATTRIBUTES[kind])
            assert max(counts) - min(counts) <= (
                4 if split == "train" else 3
            )  # twice as many nouns


def test_probes_use_only_the_nouns_of_their_split(world: World, folder: Path) -> None:
    assert Counter(noun.split for noun in world.nouns) == {"train": 108, "dev": 18, "test": 36}
    splits = {noun.name: noun.split for noun in world.nouns}
    for probe, split in itertools.product(PROBES, SPLITS):
        used = [
            {splits[word] for word in words if word in splits}
            for words, _ in rows(folder, probe, split)
        ]
        assert used
        assert all(found == {split} for found in used), (probe, split)
    lines = (folder / "probes" / "attribute.tsv").read_text().splitlines()
    assert lines[0].split("\t") == ["noun", "split", *ATTRIBUTES, "category", "sentence"]
    for noun, line in zip(world.nouns, lines[1:], strict=True):
        assert line.split("\t") == [
            noun.name,
            noun.split,
            *noun.attributes,
            noun.category,
            f"there is a {noun.name} .",
        ]


def test_labels_are_true_and_balanced(world: World, folder: Path) -> None:
    nouns = {noun.name: noun for noun in world.nouns}
    odd_rules = json.loads((folder / "world.json").read_text())["odd"]
    frames = json.loads((folder / "world.json").read_text())["categories"]
    for split in SPLITS:
        for probe in PROBES:
            labels = [label for _, label in rows(folder, probe, split)]
            assert sum(labels) * 2 == len(labels) >= 100, (probe, split)
        by_kind: dict[tuple[str, int], int] = Counter()
        for words, label in rows(folder, "truth", split):
            kind = next(kind for kind, values in ATTRIBUTES.items() if words[3] in values)
            by_kind[kind, label] += 1
            assert (words[3] in nouns[words[1]].attributes) == label
        assert len(set(by_kind.values())) == 1
        for words, label in rows(folder, "category", split):
            assert (words[1] in frames[nouns[words[3]].category][0]) == label
        assert odd_rules[split] == ODD_RULES[0]
        tilt: dict[str, int] = Counter()
        for words, label in rows(folder, "odd", split):
            p, like, unlike = (nouns[words[i]].attributes for i in (1, 5, 9))
            near, far = (
                sum(a == b for a, b in zip(p, other, strict=True)) for other in (like, unlike)
            )
            assert (near >= 3 and far <= 1) if label else (near <= 1 and far >= 3)
            tilt[words[5]] += 1 if label else -1
        assert max(map(abs, tilt.values())) <= 2


def test_order_keeps_the_words_and_is_new(folder: Path) -> None:
    known = set((folder / "corpus" / "train.txt").read_text().splitlines())
    for split in SPLITS:
        bags: dict[tuple[str, ...], list[int]] = {}
        for words, label in rows(folder, "order", split):
            assert " ".join(words) not in known
            bags.setdefault(tuple(sorted(words)), []).append(label)
        assert all(sum(labels) * 2 == len(labels) for labels in bags.values())


def test_text_leaks_only_when_told_to(folder: Path, tmp_path: Path) -> None:
    clean = leaks(folder)
    assert clean["adjacent"] == clean["predicated"] == 0
    assert clean["cooccurrence"] <= clean["cooccurrence_null"]
    World(replace(SMALL, scenes=20, stated_rate=0.5)).write(tmp_path)
    told = leaks(tmp_path)
    assert told["adjacent"] == pytest.approx(0.5, abs=0.05)
    assert told["cooccurrence"] > 10 * told["cooccurrence_null"] > 0
    nouns = {noun.name: noun for noun in World(SMALL).nouns}
    for words in map(str.split, (tmp_path / "corpus" / "train.txt").read_text().splitlines()):
        for before, word in itertools.pairwise(words):
            assert word not in nouns or before in ("a", "the", *nouns[word].attributes)
    path = tmp_path / "corpus" / "train.txt"
    path.write_text(f"the {next(iter(nouns))} is red .\nthe block is red .\n")
    assert leaks(tmp_path)["predicated"] == 0.5


def test_control_images_keep_layout_and_names_but_redraw_attributes(
    world: World, folder: Path
) -> None:
    redrawn, total = 0, 0
    for image_id in range(1, 41):
        scene, control = world.scene(image_id), world.scene(image_id, redraw_attributes=True)
        assert scene.relation == control.relation
        for a, b in zip(scene.things, control.things, strict=True):
            assert (a.name, a.x, a.y) == (b.name, b.x, b.y)
            assert a.attributes == b.attributes or a.name
            total += bool(a.name)
            redrawn += a.attributes != b.attributes
        same = scene == control
        pixels = [
            np.asarray(Image.open(folder / kind / f"{image_id:012d}.png"))
            for kind in ("images", "images_redrawn")
        ]
        assert np.array_equal(*pixels) == same
    assert redrawn > 0.9 * total
    names = {noun.name for noun in world.nouns}
    attributes = set(itertools.chain(*ATTRIBUTES.values()))
    differ = 0
    for a, b in zip(captions(folder, "train"), captions(folder, "redrawn_train"), strict=True):
        assert [w for w in a["caption"].split() if w in names] == [
            w for w in b["caption"].split() if w in names
        ]
        described = [{w for w in c["caption"].split() if w in attributes} for c in (a, b)]
        differ += described[0] != described[1]
    assert differ > 5


def test_captions_say_what_is_there(world: World, folder: Path) -> None:
    names = {noun.name for noun in world.nouns}
    for caption in captions(folder, "train"):
        scene = world.scene(caption["image_id"])
        words = caption["caption"].split()
        phrases = " ".join(words[2:] if words[0] == "there" else words)
        for relation in ("left of", "right of", "above", "below"):
            phrases = phrases.replace(f" is {relation} ", " | ")
        things = [tuple(part.split()[1:]) for part in phrases.removesuffix(" .").split("|")]
        allowed = [
            [
                t
                for t in scene.things
                if (said[-1] == t.name if said[-1] in names else {*said[:-1]} <= {*t.attributes})
            ]
            for said in things
        ]
        assert len(things) == len(scene.things)
        assert all(allowed), caption
        if scene.relation:
            a, b = scene.things
            centre = {
                "left of": b.x - a.x,
                "right of": a.x - b.x,
                "above": b.y - a.y,
                "below": a.y - b.y,
            }
            assert max(centre, key=centre.__getitem__) == scene.relation


def test_coco_files_are_valid(folder: Path) -> None:
    seen: set[int] = set()
    for split, count in (("train", 40), ("dev", 10)):
        boxes, texts = (
            json.loads((folder / f"{kind}_{split}.json").read_text())
            for kind in ("instances", "captions")
        )
        assert boxes["images"] == texts["images"]
        images = {image["id"]: image for image in boxes["images"]}
        assert len(images) == count
        assert not seen & images.keys()
        seen |= images.keys()
        for image in images.values():
            for kind in ("images", "images_redrawn"):
                with Image.open(folder / kind / image["file_name"]) as picture:
                    assert picture.size == (image["width"], image["height"]) == (32, 32)
        assert Counter(Counter(text["image_id"] for text in texts["annotations"]).values()) == {
            2: count
        }
        names = {category["id"]: category["name"] for category in boxes["categories"]}
        assert tuple(names.values()) == ATTRIBUTES["shape"]
        for content in (boxes, texts):
            ids = [annotation["id"] for annotation in content["annotations"]]
            assert len(set(ids)) == len(ids)
        for box in boxes["annotations"]:
            x, y, w, h = box["bbox"]
            assert all(isinstance(value, float) for value in box["bbox"])
            assert 0 <= x < x + w <= 32
            assert 0 <= y < y + h <= 32
            assert 0 < box["area"] <= 1.3 * w * h
            assert box["iscrowd"] == 0
            assert names[box["category_id"]] in box["attributes"]
            assert box["image_id"] in images


def test_the_corpus_has_every_probe_and_caption_word_and_every_fact_of_kind(
    world: World, folder: Path
) -> None:
    lines = (folder / "corpus" / "train.txt").read_text().splitlines()
    known = set(" ".join(lines).split())
    assert all(line.endswith(" .") and line == line.lower() for line in lines)
    for probe, split in itertools.product(PROBES, SPLITS):
        assert {word for words, _ in rows(folder, probe, split) for word in words} <= known
    for name in ("train", "dev", "redrawn_train"):
        assert {
            word for caption in captions(folder, name) for word in caption["caption"].split()
        } <= known
    frames = json.loads((folder / "world.json").read_text())["categories"]
    verbs = {verb: category for category, (words, _) in frames.items() for verb in words}
    kinds = {noun.name: noun.category for noun in world.nouns}
    stated = Counter(words[3] for words in map(str.split, lines) if words[1] in verbs)
    assert stated.keys() == kinds.keys()
    assert all(
        kinds[words[3]] == verbs[words[1]] for words in map(str.split, lines) if words[1] in verbs
    )


def test_a_bag_of_words_does_not_know_the_truth(folder: Path) -> None:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    for probe in ("truth", "odd", "order"):
        train, test = (
            [(" ".join(words), label) for words, label in rows(folder, probe, split)]
            for split in SPLITS[::2]
        )
        bag = CountVectorizer(ngram_range=(1, 1)).fit([text for text, _ in train])
        model = LogisticRegression().fit(
            bag.transform([text for text, _ in train]), [label for _, label in train]
        )
        score = model.score(bag.transform([text for text, _ in test]), [label for _, label in test])
        assert abs(score - 0.5) <= 2 * (0.25 / len(test)) ** 0.5, (probe, score)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer")
def test_looks_can_be_told_from_pixels(world: World) -> None:
    from sklearn.neural_network import MLPClassifier

    crops, looks = [], []
    for image_id in range(1, 1400):
        scene = world.scene(image_id, redraw_attributes=True)
        pixels = world.render_scene(scene) / 128.0 - 1
        for thing in scene.things:
            crops.append(pixels[thing.y : thing.y + 14, thing.x : thing.x + 14].reshape(-1))
            looks.append(thing.attributes)
    x, y = np.array(crops), np.array(looks)
    for column, kind in enumerate(ATTRIBUTES):
        model = MLPClassifier((64,), max_iter=20, random_state=0).fit(x[:-500], y[:-500, column])
        assert model.score(x[-500:], y[-500:, column]) > 0.95, kind


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("dev_nouns", 130),
        ("nouns", 3),
        ("scenes", -1),
        ("sentences", -5),
        ("stated_rate", 1.5),
        ("stated_rate", -0.1),
        ("size", 30),
    ],
)
def test_bad_input_names_the_field(field: str, value: float) -> None:
    name = field.replace("_", "[-_]")
    with pytest.raises(
        InputError, match=rf"{name}.*{value if field != 'dev_nouns' else 166}.*expected"
    ) as error:
        WorldConfig(**{field: value})
    assert "\n" not in str(error.value)


def test_leaks_needs_a_world(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"world\.json is missing"):
        leaks(tmp_path)
