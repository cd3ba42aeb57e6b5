"""The world as six vision-and-language data sets in their official files, which no text alone gives away.

A text is drawn first, then an image for each of its answers. So in every split a question, hypothesis, sentence,
expression or list of choices has all its answers equally often: VQA v2's complementary pairs, carried through.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from groundling.data.tables import lines_of
from groundling.keyed import generator
from groundling.world import DEV_IMAGES, Scene, World, write_lines
from groundling.world.drawing import stamp
from groundling.world.language import ATTRIBUTES, OPPOSITE, SPOKEN

POOLS = {"train": 0, "val": 1, "dev": 1, "test": 2, "test1": 2, "testA": 2, "testB": 3}
"""Splits by where they take their scenes from: pool n has ids from n * DEV_IMAGES + 1."""
KINDS, SIDES, SHAPES = tuple(ATTRIBUTES), tuple(OPPOSITE), ATTRIBUTES["shape"]
ORDER = tuple(chain(*(ATTRIBUTES[KINDS[i]] for i in SPOKEN)))
YES_NO, NUMBERS, LABELS = ("no", "yes"), ("0", "1", "2"), ("contradiction", "entailment", "neutral")
SORTS = {YES_NO: "yes/no", NUMBERS: "number"}
PAIRS = {
    "the left image has a {} .": (1, 0, 1, 1, 0, 1, 0, 0),
    "the right image has a {} .": (0, 1, 1, 1, 1, 0, 0, 0),
    "both images have a {} .": (1, 1, 1, 1, 1, 0, 0, 1),
    "one image has a {} , not both .": (1, 0, 0, 1, 1, 1, 0, 0),
}
"""NLVR2's sentences: has the left, has the right image such a thing, in two pairs of which it is true, then two not."""
FROM_1, NAMED = str.maketrans("01", "12"), str.maketrans({"0": "thing", "1": "thing"})
"""VCR's tags, in a text before it becomes a list of tokens: as annotators saw them, and as models do."""
MARKED = re.compile(r"\[/EN#\S+ ([^\]]*)\]")
SAID = "the {} is {} the {} ."
CAPTIONS = (
    "there is {a0} and {a1} .",
    "{the0} is near {the1} .",
    "[/EN#0/notvisual she] sees {the0} and {the1} .",
)


@dataclass(frozen=True)
class Claim:
    """A text, all of its answers, each for an image of its own, and how to ask one (None: it does not apply there)."""

    text: str
    answers: tuple[Any, ...]
    ask: Callable[[Scene], Any]
    kind: Any = ""


def write_tasks(
    world: World, folder: str | os.PathLike, train: int = 4000, held: int = 1000
) -> dict[str, int]:
    """Write all six data sets below `folder`, at most so many examples a split; returns how many there are of each.

    `images/` and `instances.json` are those of all of them, for one region store; `captions_*2014.json`, for
    pre-training, are of as many training and held-out images; `tasks.json` comes last.
    """
    files = _Files(world, Path(folder), train, held)
    for write in (_captions, _vqa, _vcr, _nlvr2, _refcoco, _flickr, _snli_ve):
        write(files)
    files.close()
    return files.counts


def sentences(folder: str | os.PathLike) -> list[str]:
    """Every text of a folder that `write_tasks` wrote, once, and VQA's answers: what a vocabulary has to have."""
    return lines_of(Path(folder) / "texts.txt")


def fitting(scene: Scene, *values: str) -> list[int]:
    """Numbers of the things that look as all of `values` say."""
    return [i for i, thing in enumerate(scene.things) if set(values) <= set(thing.looks)]


def side(scene: Scene, thing: int) -> str:
    """Where one thing is, seen from the other."""
    return OPPOSITE[scene.relation] if thing else scene.relation


def only(scene: Scene, *values: str, where: str = "") -> int | None:
    """Number of the one thing with these looks, or of the thing that is `where` from it."""
    found = fitting(scene, *values)
    thing = found[0] ^ bool(where) if len(found) == 1 else None
    return thing if thing is None or not where or side(scene, thing) == where else None


def spoken(*values: str) -> str:
    """A thing by its looks, in the order of English."""
    return " ".join((*sorted(values, key=ORDER.index), "thing"))


def _two(rng: np.random.Generator) -> tuple[tuple[str, str], int, str]:
    """Values of two attributes, the number of the second attribute, and a relation or, half of the time, none."""
    columns = [int(i) for i in rng.permutation(4)[:2]]
    a, b = (ATTRIBUTES[KINDS[i]][rng.integers(len(ATTRIBUTES[KINDS[i]]))] for i in columns)
    return (a, b), columns[1], ("", SIDES[rng.integers(4)])[rng.integers(2)]


def _said(
    rng: np.random.Generator,
) -> tuple[str, str, Callable[[Scene], bool | None], tuple[str, ...]]:
    """Subject, predicate, whether it is so (None: no such thing, or two of them), and the looks that must be there."""
    (a, b), _, where = _two(rng)
    placed, subject = bool(where and rng.random() < 0.5), f"the {a} thing"

    def so(scene: Scene) -> bool | None:
        thing, other = only(scene, a, where="" if placed else where), only(scene, b)
        if thing is None or (placed and other in (None, thing)):
            return None
        return side(scene, thing) == where if placed else b in scene.things[thing].looks

    if placed:
        return subject, f"{where} the {b} thing", so, (a, b)
    return f"the thing {where} {subject}" if where else subject, b, so, (a,)


def question(rng: np.random.Generator) -> Claim:
    """One of VQA's: an attribute of a thing known by another one or by its place, yes or no, or a number."""
    (a, b), column, where = _two(rng)
    sort = int(rng.integers(6))
    if sort == 0:
        return Claim(
            f"how many things are {a} ?", NUMBERS, lambda s: str(len(fitting(s, a))), "how many"
        )
    if sort == 1:
        return Claim(
            f"is there a {spoken(a, b)} ?",
            YES_NO,
            lambda s: YES_NO[bool(fitting(s, a, b))],
            "is there a",
        )
    if sort < 4:
        subject, predicate, so, _ = _said(rng)
        polar = {None: None, False: "no", True: "yes"}
        return Claim(f"is {subject} {predicate} ?", YES_NO, lambda s: polar[so(s)], "is the")
    kind, asked = (
        f"what {KINDS[column]} is the",
        f"thing {where} the {a} thing" if where else f"{a} thing",
    )
    return Claim(
        f"{kind} {asked} ?",
        ATTRIBUTES[KINDS[column]],
        lambda s: None if (i := only(s, a, where=where)) is None else s.things[i].looks[column],
        kind,
    )


def hypothesis(rng: np.random.Generator) -> Claim:
    """One of SNLI-VE's; it is neutral where the image shows nothing that looks as what it speaks of."""
    subject, predicate, so, mentioned = _said(rng)
    label = {None: None, False: "contradiction", True: "entailment"}
    text = f"{subject} is {predicate} ."
    return Claim(
        text, LABELS, lambda s: label[so(s)] if all(fitting(s, v) for v in mentioned) else "neutral"
    )


def _still(rng: np.random.Generator) -> Claim:
    """VCR's four answers with a reason each, colours told with shapes or the reverse; `kind` is the object's number."""
    columns, thing, where = [int(i) for i in rng.permutation(2)], int(rng.integers(2)), _two(rng)[2]
    asked, told = (rng.permutation(ATTRIBUTES[KINDS[i]])[:4].tolist() for i in columns)

    def ask(scene: Scene) -> tuple[str, ...] | None:
        return (
            tuple(scene.things[thing].looks[i] for i in columns)
            if where in ("", side(scene, thing))
            else None
        )

    subject = f"the thing {where} {1 - thing}" if where else thing
    return Claim(
        f"what {KINDS[columns[0]]} is {subject} ?", tuple(zip(asked, told, strict=True)), ask, thing
    )


class _Files:
    """What the data sets share: scenes, images, texts, counts."""

    def __init__(self, world: World, folder: Path, train: int, held: int) -> None:
        self.world, self.folder, self.cell, self.sizes = (
            world,
            folder,
            world.config.size * 7 // 16,
            (train, held),
        )
        self.images, self.texts, self.counts = dict[str, Scene](), set[str](), dict[str, int]()
        self.shape = {"width": world.config.size, "height": world.config.size}
        self.scenes, self.stamp = cache(self._scenes), cache(stamp)

    def _scenes(self, pool: int) -> list[Scene]:
        """As many scenes as a split has examples, all of two things that do not look the same."""
        found = (self.world.scene(i) for i in count(pool * DEV_IMAGES + 1))
        return list(
            islice(
                (s for s in found if len({t.looks for t in s.things}) == 2), self.sizes[pool > 0]
            )
        )

    def rounds(
        self, name: str, split: str, draw: Callable[..., Claim], weight: int = 1
    ) -> Iterator[Any]:
        """Claims with a scene for each answer, `weight` of them an example; no text is used twice for one scene."""
        scenes, used, most = (
            self.scenes(POOLS[split]),
            set[tuple[str, int]](),
            self.sizes[split != "train"],
        )
        made = number = 0
        for key in range(
            most
        ):  # tries: where scenes are few, not every claim gets all that it needs
            rng = generator(self.world.config.seed, name, split, key)
            claim, start, found = draw(rng), int(rng.integers(len(scenes))), dict[int, Scene]()
            if len(claim.answers) > weight * most - made:
                continue
            for scene in chain(scenes[start:], scenes[:start]):
                if (claim.text, scene.image_id) not in used and (
                    answer := claim.ask(scene)
                ) is not None:
                    free = [
                        i
                        for i, wanted in enumerate(claim.answers)
                        if wanted == answer and i not in found
                    ]
                    found |= {i: scene for i in free[:1]}
                if len(found) == len(claim.answers):
                    used |= {(claim.text, scene.image_id) for scene in found.values()}
                    yield number, rng, claim, [found[i] for i in range(len(found))]
                    self.texts.add(claim.text.translate(NAMED))
                    made, number = made + len(found), number + 1
                    break
        self.counts[f"{name} {split}"] = made // weight

    def box(self, scene: Scene, thing: int) -> list[int]:
        """x, y, width, height of a thing's cell: a box that fits would tell size and shape to who sees no pixel."""
        return [scene.things[thing].x, scene.things[thing].y, self.cell, self.cell]

    def coco(self, images: Sequence[tuple[int, str]]) -> dict[str, Any]:
        """COCO's instances; the numbers of an image's annotations are twice its own, and one more."""
        notes = [
            {
                "id": 2 * n + i,
                "image_id": n,
                "category_id": SHAPES.index(thing.looks[1]) + 1,
                "iscrowd": 0,
                "bbox": [float(side) for side in self.box(self.images[name], i)],
                "area": self.cell**2,
            }
            for n, name in images
            for i, thing in enumerate(self.images[name].things)
        ]
        listed = [{"id": n, "file_name": name, **self.shape} for n, name in images]
        kinds = [
            {"id": n, "name": kind, "supercategory": "thing"} for n, kind in enumerate(SHAPES, 1)
        ]
        return {
            "info": {},
            "licenses": [],
            "images": listed,
            "annotations": notes,
            "categories": kinds,
        }

    def put(self, path: str, *rows: Any) -> None:
        write_lines(
            self.folder / path, [row if isinstance(row, str) else json.dumps(row) for row in rows]
        )

    def close(self) -> None:
        """Images, their boxes, and all texts."""
        drawn = dict[int, bytes]()
        for name, scene in self.images.items():
            if scene.image_id not in drawn:
                # As PNG whatever the ending: readers look inside, and textures this fine do not survive JPEG.
                Image.fromarray(self.world.picture(scene)).save(
                    stream := io.BytesIO(), "PNG", compress_level=1
                )
                drawn[scene.image_id] = stream.getvalue()
            path = self.folder / "images" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(drawn[scene.image_id])
        self.put("instances.json", self.coco(list(enumerate(sorted(self.images), 1))))
        self.put("texts.txt", *sorted(self.texts))
        self.put("tasks.json", {"world": asdict(self.world.config), "examples": self.counts})


def _captions(files: _Files) -> None:
    """Five captions an image in COCO's layout, two of which tell where the things are."""
    for split in ("train", "val"):
        images, told = list[dict[str, Any]](), list[dict[str, Any]]()
        for scene in files.scenes(POOLS[split]):
            name = f"COCO_{split}2014_{scene.image_id:012d}.jpg"
            files.images[name] = scene
            images.append({"id": scene.image_id, "file_name": name, **files.shape})
            texts = [MARKED.sub(r"\1", line) for line in _told(files, scene)[:3]]
            rng = generator(files.world.config.seed, "captions", scene.image_id)
            for thing in (0, 1):
                one, other = (
                    spoken(*set(rng.permutation(scene.things[i].looks)[:2]))
                    for i in (thing, 1 - thing)
                )
                texts.append(SAID.format(one, side(scene, thing), other))
            files.texts |= set(texts)
            told += [
                {"id": 5 * scene.image_id + n, "image_id": scene.image_id, "caption": t}
                for n, t in enumerate(texts)
            ]
        files.put(
            f"captions_{split}2014.json",
            {"info": {}, "licenses": [], "images": images, "annotations": told},
        )


def _vqa(files: _Files) -> None:
    files.put("vqa/trainval_label2ans.json", answers := [*YES_NO, *NUMBERS, *ORDER])
    files.texts |= set(answers)
    for split in ("train", "val"):
        asked, notes, times = list[dict[str, Any]](), list[dict[str, Any]](), Counter[int]()
        for _, rng, claim, scenes in files.rounds("vqa", split, question):
            for gold, scene in zip(claim.answers, scenes, strict=True):
                image = scene.image_id
                files.images[f"COCO_{split}2014_{image:012d}.jpg"] = scene
                ids, times[image] = (
                    {"image_id": image, "question_id": 1000 * image + times[image]},
                    times[image] + 1,
                )
                # At most two of ten say otherwise, so that the wrong one of yes and no is worth 0.6 at most.
                others = [answer for answer in claim.answers if answer != gold]
                said = [
                    others[rng.integers(len(others))]
                    for _ in range(rng.choice(3, p=(0.7, 0.2, 0.1)))
                ]
                people = [
                    {
                        "answer": answer,
                        "answer_confidence": "yes" if answer == gold else "maybe",
                        "answer_id": n,
                    }
                    for n, answer in enumerate(
                        rng.permutation([*said, *[gold] * (10 - len(said))]).tolist(), 1
                    )
                ]
                types = {
                    "question_type": claim.kind,
                    "answer_type": SORTS.get(claim.answers, "other"),
                }
                asked.append({**ids, "question": claim.text})
                notes.append({**ids, **types, "answers": people, "multiple_choice_answer": gold})
        head = {
            "info": {},
            "task_type": "Open-Ended",
            "data_type": "mscoco",
            "data_subtype": f"{split}2014",
        }
        files.put(
            f"vqa/v2_OpenEnded_mscoco_{split}2014_questions.json",
            head | {"license": {}, "questions": asked},
        )
        files.put(
            f"vqa/v2_mscoco_{split}2014_annotations.json",
            head | {"license": {}, "annotations": notes},
        )


def _vcr(files: _Files) -> None:
    """The choices are those of the other three of a round, so that each is right once; tags are written as digits."""

    def tokens(text: str) -> list[str | list[int]]:
        return [[int(word)] if word.isdigit() else word for word in text.split()]

    for split in ("train", "val"):
        rows: list[dict[str, Any]] = []
        for _, rng, claim, scenes in files.rounds("vcr", split, _still):
            order, turn, first = rng.permutation(4).tolist(), rng.permutation(4).tolist(), len(rows)
            for number, n in enumerate(turn, first):
                scene = scenes[n]
                answers = [f"{claim.kind} is {answer} ." for answer, _ in claim.answers]
                why = [
                    f"{claim.kind} is a {spoken(claim.answers[n][0], claim.answers[i][1])} ."
                    for i in order
                ]
                still, row = (
                    f"lsmdc_0001_WORLD/0001_WORLD_{scene.image_id:012d}@0",
                    dict[str, Any](),
                )
                for name, texts, places in (
                    ("answer", answers, [0, 1, 2, 3]),
                    ("rationale", why, order),
                ):
                    label = places.index(n)
                    row |= {
                        f"{name}_choices": [tokens(text) for text in texts],
                        f"{name}_label": label,
                        f"{name}_sources": [first + turn.index(i) for i in places],
                        f"{name}_match_iter": [(i - n) % 4 for i in places],
                        f"{name}_orig": texts[label].translate(FROM_1),
                    }
                    files.texts |= {text.translate(NAMED) for text in texts}
                rows.append(
                    {
                        **row,
                        "question": tokens(claim.text),
                        "question_orig": claim.text.translate(FROM_1),
                        "movie": "0001_WORLD",
                        "img_fn": f"{still}.jpg",
                        "metadata_fn": f"{still}.json",
                        "img_id": f"{split}-{scene.image_id}",
                        "annot_id": f"{split}-{number}",
                        "question_number": 0,
                        "objects": ["thing"] * 2,
                        "interesting_scores": [1],
                        "answer_likelihood": "likely",
                        "match_fold": f"{split}-0",
                        "match_index": number,
                    }
                )
                files.images[f"{still}.jpg"] = scene
                boxes = [
                    [x, y, x + w, y + h, 1.0]
                    for x, y, w, h in (files.box(scene, i) for i in (0, 1))
                ]
                about = {
                    "boxes": boxes,
                    "segms": [_segments(files, scene, i) for i in (0, 1)],
                    "names": ["thing"] * 2,
                }
                files.put(f"vcr/vcr1images/{still}.json", about | files.shape)
        files.put(f"vcr/{split}.jsonl", *rows)


def _segments(files: _Files, scene: Scene, number: int) -> list[list[list[int]]]:
    """A thing's pixels as polygons, one for each run in a row: some shapes have holes, which polygons do not."""
    thing, found = scene.things[number], list[list[list[int]]]()
    for y, line in enumerate(
        files.stamp(*thing.looks[1:], thing.fit, files.cell).cover[:, :, 0] >= 0.5, thing.y
    ):
        for a, b in (np.flatnonzero(np.diff([0, *line, 0])).reshape(-1, 2) + thing.x).tolist():
            found.append([[a, y], [b, y], [b, y + 1], [a, y + 1]])
    return found


def _nlvr2(files: _Files) -> None:
    """A round is a set of four pairs: its answers are who has the thing, left and right of each."""

    def compared(rng: np.random.Generator) -> Claim:
        values, template = (
            _two(rng)[0][: rng.integers(1, 3)],
            tuple(PAIRS)[rng.integers(len(PAIRS))],
        )
        return Claim(
            template.format(spoken(*values)),
            PAIRS[template],
            lambda s: int(bool(fitting(s, *values))),
        )

    for split in ("train", "dev", "test1"):
        rows = []
        for number, rng, claim, scenes in files.rounds("nlvr2", split, compared, weight=2):
            for pair, place in enumerate(rng.permutation(4).tolist()):
                name, label = f"{split}-{number}-{pair}", str(place < 2)
                left, right = (f"{name}-img{i}.png" for i in (0, 1))
                files.images |= {left: scenes[2 * place], right: scenes[2 * place + 1]}
                more: dict[str, Any] = (
                    {"directory": number % 100} if split == "train" else {"extra_validations": {}}
                )
                rows.append(
                    {
                        "sentence": claim.text,
                        "left_url": left,
                        "right_url": right,
                        "identifier": f"{name}-0",
                        "label": label,
                        "writer": "0",
                        "validation": {"0": label},
                        "synset": "thing",
                        "query": "",
                        **more,
                    }
                )
        files.put(f"nlvr2/{split}.json", *rows)


def _refcoco(files: _Files) -> None:
    """The answers are the target's places, so that none is the likelier; testA and testB ask for the same sorts."""
    images, refs, number = dict[int, str](), dict[int, dict[str, Any]](), count()

    def expression(rng: np.random.Generator) -> Claim:
        values = _two(rng)[0][: rng.integers(1, 3)]
        return Claim(
            spoken(*values),
            SIDES,
            lambda s: None if (i := only(s, *values)) is None else side(s, i),
            values,
        )

    for split in ("train", "val", "testA", "testB"):
        for _, _, claim, scenes in files.rounds("refcoco+", split, expression):
            for scene in scenes:
                image, thing = scene.image_id, fitting(scene, *claim.kind)[0]
                images[image] = name = f"COCO_train2014_{image:012d}.jpg"
                files.images[name] = scene
                note = 2 * image + thing
                ref: dict[str, Any] = {
                    "ref_id": len(refs),
                    "ann_id": note,
                    "image_id": image,
                    "split": split,
                    "sentences": [],
                    "category_id": SHAPES.index(scene.things[thing].looks[1]) + 1,
                    "sent_ids": [],
                    "file_name": name.replace(".jpg", f"_{note}.jpg"),
                }
                told = {
                    "raw": claim.text,
                    "sent": claim.text,
                    "tokens": claim.text.split(),
                    "sent_id": next(number),
                }
                refs.setdefault(note, ref)["sentences"].append(told)
                refs[note]["sent_ids"].append(told["sent_id"])
    files.put("refcoco+/instances.json", files.coco(list(images.items())))
    (files.folder / "refcoco+" / "refs(unc).p").write_bytes(
        pickle.dumps(list(refs.values()), protocol=2)
    )


def _told(files: _Files, scene: Scene) -> list[str]:
    """Five captions with Flickr30k Entities' marks; their order says nothing of where the things are."""
    lines, kinds = [], {noun.name: noun.category for noun in files.world.nouns}
    for nth in range(5):
        rng, phrases = (
            generator(files.world.config.seed, "told", scene.image_id, nth),
            dict[str, str](),
        )
        for place, i in enumerate(rng.permutation(2).tolist()):
            thing = scene.things[i]
            differ = [value for value in thing.looks if value not in scene.things[1 - i].looks]
            words = spoken(*{differ[rng.integers(len(differ))], thing.looks[rng.integers(4)]})
            words = thing.name if thing.name and rng.random() < 0.5 else words
            mark = f"[/EN#{2 * scene.image_id + i}/{'animals' if kinds.get(words) == 'animal' else 'other'}"
            phrases |= {
                f"{article}{place}": f"{mark} {article} {words}]" for article in ("a", "the")
            }
        lines.append(CAPTIONS[rng.integers(len(CAPTIONS))].format(**phrases))
    return lines


def _flickr(files: _Files) -> None:
    size = "".join(f"<{side}>{n}</{side}>" for side, n in (files.shape | {"depth": 3}).items())
    for split in ("train", "val", "test"):
        scenes = files.scenes(POOLS[split])[: files.sizes[split != "train"] // 5]
        for scene in scenes:
            name = f"{scene.image_id:010d}"
            files.images[f"{name}.jpg"] = scene
            files.put(f"flickr30k/Sentences/{name}.txt", *(told := _told(files, scene)))
            files.texts |= {MARKED.sub(r"\1", line) for line in told}
            lines = [f"<annotation><filename>{name}.jpg</filename><size>{size}</size>"]
            for i in (0, 1):
                x, y, w, h = files.box(scene, i)
                ends = {
                    "xmin": x + 1,
                    "ymin": y + 1,
                    "xmax": x + w,
                    "ymax": y + h,
                }  # from 1, the last pixel included
                box = "".join(f"<{end}>{n}</{end}>" for end, n in ends.items())
                lines.append(
                    f"<object><name>{2 * scene.image_id + i}</name><bndbox>{box}</bndbox></object>"
                )
            files.put(f"flickr30k/Annotations/{name}.xml", *lines, "</annotation>")
        files.put(f"flickr30k/{split}.txt", *(f"{scene.image_id:010d}" for scene in scenes))
        files.counts[f"flickr30k {split}"] = 5 * len(scenes)


def _snli_ve(files: _Files) -> None:
    for split in ("train", "dev", "test"):
        rows = []
        for number, rng, claim, scenes in files.rounds("snli_ve", split, hypothesis):
            for label, scene in zip(claim.answers, scenes, strict=True):
                name, nth = f"{scene.image_id:010d}.jpg", int(rng.integers(5))
                files.images[name] = scene
                files.texts.add(premise := MARKED.sub(r"\1", _told(files, scene)[nth]))
                rows.append(
                    {
                        "Flikr30kID": name,
                        "captionID": f"{name}#{nth}",
                        "pairID": f"{name}#{nth}r{number}{label[0]}",
                        "sentence1": premise,
                        "sentence2": claim.text,
                        "gold_label": label,
                        "annotator_labels": [label],
                    }
                )
        files.put(f"snli_ve/snli_ve_{split}.jsonl", *rows)
