"""A rendered world in which looks show only in images and kinds only in text, written in the field's file formats."""

import itertools
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from .errors import InputError
from .keyed import generator

FORMAT_VERSION = 1
RGB = {
    "red": (215, 30, 40),
    "green": (30, 150, 50),
    "blue": (40, 70, 225),
    "yellow": (245, 220, 30),
    "purple": (140, 50, 185),
    "pink": (250, 130, 195),
}
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "colour": tuple(RGB),
    "shape": ("round", "square", "bent", "tall", "hollow", "flat"),
    "size": ("small", "large"),
    "texture": ("plain", "striped", "dotted"),
}
TEXTURE_INK = {"striped": 20, "dotted": 250}  # dark and light, so that few pixels suffice to tell them apart
SPOKEN = (2, 0, 3, 1)  # English puts size before colour before texture before shape
SHAPE = list(ATTRIBUTES).index("shape")
OPPOSITE = {"left of": "right of", "right of": "left of", "above": "below", "below": "above"}
THINGS = {"block": "blocks", "toy": "toys", "ball": "balls", "box": "boxes", "cup": "cups", "hat": "hats"}
# category: (verbs, endings); a verb and its ending always agree, so that only the noun can be wrong
FRAMES = {
    "animal": (("feeds", "walks", "pets", "calls"), ("in the morning", "at the farm", "after school")),
    "food": (("eats", "cooks", "tastes", "bakes"), ("with salt", "for dinner", "in the kitchen")),
    "tool": (("uses", "repairs", "sharpens", "lends"), ("at work", "in the shed", "before lunch")),
    "plant": (("waters", "prunes", "grows", "trims"), ("in the garden", "in spring", "by the fence")),
}
# percent of the text: templates, one a line. N noun, O noun or described thing as in captions, T and P ordinary thing
# and its plural, A and B two values of attribute K, R relation, S person, V and E verb and ending of N's category
TEMPLATES: tuple[tuple[int, str], ...] = (
    (20, "there is a O .\na O is R a O .\na O is R a O ."),
    (
        18,
        """the T is A .
        the T is not A .
        the T is A , not B .
        the T and the T are A .
        the two P have the same K .
        the A T and the A T have the same K .
        the A T and the B T do not have the same K .
        the T looks like the T .
        the T looks like the T , not the T .
        the A T looks like the A T , not the B T .""",
    ),
    (
        12,
        """the N is near the N .
        the N is R the N .
        the N is near the A T .
        the N is not here .
        S sees the N and the N .
        S puts the N on the table , not the N .
        there is a N and a T .""",
    ),
    # Verb and ending apart as well as together: where both stand, a masked one can be told without the noun.
    (50, "S V the N .\nS V the N .\nS V the N .\nS sees the N E .\nS sees the N E .\nS V the N E ."),
)
ROWS = {"train": 1200, "dev": 400, "test": 800}
ODD_RULES = ("q shares at least 3 attributes with p, r at most 1", "q shares at least 2 more attributes with p than r")
DEV_IMAGES = 10**9  # added to the ids of dev images, so that no number of training scenes reaches them

Looks = tuple[str, ...]  # colour, shape, size, texture: the order of ATTRIBUTES
Row = tuple[str, int]


@dataclass(frozen=True)
class WorldConfig:
    """How large a world to render, and from which seed."""

    seed: int = 0
    """redraws everything: nouns, attributes, scenes, sentences"""
    nouns: int = 108
    """number of invented nouns"""
    dev_nouns: int = 18
    """number of nouns for choosing settings"""
    test_nouns: int = 36
    """number of nouns for the reported numbers (the rest are train nouns)"""
    scenes: int = 12000
    """number of training images, two captions each"""
    dev_scenes: int = 500
    """number of held-out images, two captions each"""
    sentences: int = 30000
    """number of lines in the text corpus"""
    dev_sentences: int = 1000
    """number of lines in the held-out text corpus"""
    size: int = 32
    """width and height of an image in pixels, a multiple of 16"""
    stated: float = 0.0
    """reporting bias: probability that a mention of a noun, in text or caption, states one of its attributes"""
    blind: bool = True
    """also write the control images, in which each noun's attributes are redrawn for every image"""

    def __post_init__(self) -> None:
        for field, value in asdict(self).items():
            low, high = {"nouns": (4, 1000), "stated": (0, 1)}.get(field, (0, DEV_IMAGES - 1))
            if not low <= value <= high:
                raise InputError(f"{field} is {value}; expected {low} to {high}")
        if self.size < 16 or self.size % 16:
            raise InputError(f"size is {self.size}; expected a positive multiple of 16")
        if (held := self.dev_nouns + self.test_nouns) >= self.nouns:
            raise InputError(f"dev_nouns + test_nouns is {held}; expected fewer than nouns, {self.nouns}")


@dataclass(frozen=True)
class Noun:
    """An invented word: how its things look, what kind they are, and the split it is probed in."""

    name: str
    colour: str
    shape: str
    size: str
    texture: str
    category: str
    split: str

    @property
    def looks(self) -> Looks:
        """The four visual attributes, in the order of ATTRIBUTES."""
        return (self.colour, self.shape, self.size, self.texture)


@dataclass(frozen=True)
class Thing:
    """One object of a scene; `name` is empty for an unnamed thing, `x` and `y` are its cell's corner in pixels."""

    name: str
    looks: Looks
    x: int
    y: int
    fit: int


@dataclass(frozen=True)
class Scene:
    """One or two things; `relation` holds from the first to the second."""

    image_id: int
    relation: str
    things: tuple[Thing, ...]


@dataclass(frozen=True)
class Stamp:
    """A thing in its cell: its share of each pixel (C,C,1), and of that share the part that is texture (C,C,1)."""

    cover: np.ndarray
    mark: np.ndarray
    box: tuple[int, int, int, int]
    """x, y, width, height in pixels"""


class World:
    """Nouns, scenes, captions, sentences and probes, each drawn from (seed, stream, index) alone."""

    def __init__(self, config: WorldConfig) -> None:
        self.config = config
        self.nouns = self._nouns()
        self._cell = config.size * 7 // 16
        looks = itertools.product(ATTRIBUTES["shape"], ATTRIBUTES["size"], ATTRIBUTES["texture"], (0, 1))
        self._stamps = {look: stamp(*look, self._cell) for look in looks}

    def _rng(self, stream: str, index: int | str = 0) -> np.random.Generator:
        return generator(self.config.seed, stream, index)

    def _nouns(self) -> list[Noun]:
        """Names, with attributes and category as balanced, and as independent of each other, as the count allows."""
        config, rng = self.config, self._rng("nouns")
        names = ["".join(parts) for parts in itertools.product("bdfgklmnprstvz", "aeiou", "bdglmnrvz", "aeiou", "kv")]
        order = rng.permutation(len(names))
        kinds = (*ATTRIBUTES.values(), tuple(FRAMES))
        levels = [len(kind) for kind in kinds]
        grid = np.array(list(itertools.product(*map(range, levels))))
        hot = np.concatenate([np.eye(n)[grid[:, i]] * n**0.5 for i, n in enumerate(levels)], axis=1)
        looks = np.arange(len(grid)) // len(FRAMES)
        taken, together, picks = np.zeros(len(grid)), np.zeros((hot.shape[1],) * 2), []
        for _ in range(config.nouns):
            # Looks no noun has come first, then values and pairs of values that are rare so far, then the lot.
            cost = 1e6 * taken[looks] + ((hot @ together) * hot).sum(axis=1) + rng.random(len(grid))
            pick = int(cost.argmin())
            picks.append(pick)
            taken[looks[pick]] += 1
            together += np.outer(hot[pick], hot[pick]) * (1 + 4 * np.eye(len(together)))
        values, hot, splits = grid[picks], hot[picks], np.full(config.nouns, "train")
        for split in ("test",) * config.test_nouns + ("dev",) * config.dev_nouns:
            # Values rare in the split come first, then nouns with one look-alike in it, which "odd" needs.
            inside = splits == split
            alike = ((values[:, None, :4] == values[None, inside, :4]).sum(axis=2) == 3).sum(axis=1)
            cost = 2 * hot @ hot[inside].sum(axis=0) + (alike != 1) + rng.random(config.nouns)
            splits[np.where(splits == "train", cost, np.inf).argmin()] = split
        nouns = []
        for row, name, split in zip(values, order, splits, strict=False):
            colour, shape, size, texture, category = (kind[i] for kind, i in zip(kinds, row, strict=True))
            nouns.append(Noun(names[name], colour, shape, size, texture, category, str(split)))
        return nouns

    def scene(self, image_id: int, blind: bool = False) -> Scene:
        """What one image shows; blind, the same layout and nouns with the nouns' attributes redrawn."""
        rng, size, cell = self._rng("scene", image_id), self.config.size, self._cell
        first = int(rng.integers(len(self.nouns)))
        second = (first + 1 + int(rng.integers(len(self.nouns) - 1))) % len(self.nouns)
        alone, *named = rng.random(3) < (0.60, 0.75, 0.75)
        others = draw_looks(rng), draw_looks(rng)
        redrawn = self._rng("blind", image_id) if blind else None
        relation = "" if alone else tuple(OPPOSITE)[rng.integers(4)]
        # Few places, hardly jittered: a vision transformer this small does not learn to move a shape about.
        middle, off = (size - cell) // 2, size // 4
        jitter = rng.integers(-1, 2, (2, 2)) * (size // 32)
        if relation:
            sign = -1 if relation in ("left of", "above") else 1
            x, y = middle + off * np.array([sign, -sign]) + jitter[0], middle + jitter[1]
            if relation in ("above", "below"):
                x, y = y, x
        else:
            along, across = ((0, 0), (0, 1), (0, -1), (1, 0), (-1, 0))[rng.integers(5)]
            x, y = middle + off * along + jitter[0], middle + off * across + jitter[1]
        fits = rng.integers(2, size=2)
        things = []
        for slot in range(1 if alone else 2):
            noun = self.nouns[(first, second)[slot]]
            looks = noun.looks if redrawn is None else draw_looks(redrawn)
            name, looks = (noun.name, looks) if named[slot] else ("", others[slot])
            things.append(Thing(name, looks, int(x[slot]), int(y[slot]), int(fits[slot])))
        return Scene(image_id, relation, tuple(things))

    def _stamp(self, thing: Thing) -> Stamp:
        return self._stamps[thing.looks[1], thing.looks[2], thing.looks[3], thing.fit]

    def picture(self, scene: Scene) -> np.ndarray:
        """The pixels (S,S,3) of a scene, 0 to 255."""
        rng, size, cell = self._rng("pixels", scene.image_id), self.config.size, self._cell
        noise = 6 * rng.standard_normal((size, size, 3), dtype=np.float32)
        pixels = np.empty((size, size, 3), dtype=np.float32)
        pixels[:] = 125 + rng.uniform(-20, 20) + rng.uniform(-12, 12, 3)
        for thing in scene.things:
            drawn = self._stamp(thing)
            paint = np.array(RGB[thing.looks[0]] + rng.uniform(-14, 14, 3), dtype=np.float32)
            ink = TEXTURE_INK.get(thing.looks[3], 0.0)
            patch = pixels[thing.y : thing.y + cell, thing.x : thing.x + cell]
            patch += drawn.cover * (paint + drawn.mark * (ink - paint) - patch)
        pixels += noise
        return np.clip(pixels, 0, 255).astype(np.uint8)

    def captions(self, scene: Scene) -> list[str]:
        """Two captions; what they name and describe depends on the image's id alone, so it is the same when blind."""
        captions = []
        for index in (0, 1):
            rng = self._rng("caption", 2 * scene.image_id + index)
            named = rng.random(2) < 0.70
            phrases = [
                f"a {phrase(rng, thing.name if name else '', thing.looks, self.config.stated)}"
                for thing, name in zip(scene.things, named, strict=False)
            ]
            relation = scene.relation
            if relation and rng.random() < 0.5:
                phrases, relation = phrases[::-1], OPPOSITE[relation]
            captions.append(f" is {relation} ".join(phrases) + " ." if relation else f"there is {phrases[0]} .")
        return captions

    def sentence(self, rng: np.random.Generator, nouns: Sequence[Noun], stated: float) -> str:
        """A line of text over `nouns`, each mention stating an attribute with probability `stated`."""
        group = int(np.searchsorted(np.cumsum([percent for percent, _ in TEMPLATES]), rng.integers(100), side="right"))
        templates = TEMPLATES[group][1].splitlines()
        template = templates[rng.integers(len(templates))]
        chosen = [nouns[i] for i in rng.permutation(len(nouns))[:2]]
        mentions, things = iter(chosen * 2), iter(str(thing) for thing in rng.permutation(list(THINGS)))
        kind = list(ATTRIBUTES)[rng.integers(4)]
        value, other = (str(word) for word in rng.permutation(ATTRIBUTES[kind])[:2])
        relation = tuple(OPPOSITE)[rng.integers(4)]
        fixed = {"A": value, "B": other, "K": kind, "R": relation, "S": ("she", "he")[rng.integers(2)]}
        verbs, endings = FRAMES[chosen[0].category]
        fixed |= {"V": verbs[rng.integers(len(verbs))], "E": endings[rng.integers(len(endings))]}
        words = []
        for token in template.split():
            if token in ("N", "O"):
                noun = next(mentions)
                named = token == "N" or rng.random() < 0.6
                words.append(phrase(rng, noun.name if named else "", noun.looks if named else draw_looks(rng), stated))
            elif token in ("T", "P"):
                thing = next(things)
                words.append(thing if token == "T" else THINGS[thing])
            else:
                words.append(fixed.get(token, token))
        return " ".join(words)

    def write(self, folder: str | os.PathLike) -> None:
        """Write text, images, captions, boxes and probes; `world.json` comes last and so marks a complete folder."""
        config, root = self.config, Path(folder)
        lines = {}
        for split, count in (("train", config.sentences), ("dev", config.dev_sentences)):
            rngs = (self._rng(f"corpus/{split}", i) for i in range(count))
            lines[split] = [self.sentence(rng, self.nouns, config.stated) for rng in rngs]
            write_text(root / "corpus" / f"{split}.txt", lines[split])
        for split, start, count in (("train", 1, config.scenes), ("dev", DEV_IMAGES + 1, config.dev_scenes)):
            self._write_images(root, split, range(start, start + count))
        known, odd = {*lines["train"], *lines["dev"]}, {}
        for split, cap in ROWS.items():
            nouns = [noun for noun in self.nouns if noun.split == split]
            triples, odd[split] = self._odd(split, nouns, cap)
            probes = {
                "truth": self._truth(split, nouns, cap),
                "odd": triples,
                "category": self._category(split, nouns, cap),
                "order": self._order(split, nouns, cap, known),
            }
            for name, rows in probes.items():
                order = self._rng(f"rows/{name}", split).permutation(len(rows))
                table = [f"{index}\t{rows[i][0]}\t{rows[i][1]}" for index, i in enumerate(order)]
                write_text(root / "probes" / f"{name}_{split}.tsv", ["index\tsentence\tlabel", *table])
        header = "\t".join(("noun", "split", *ATTRIBUTES, "category", "sentence"))
        fields = ((n.name, n.split, *n.looks, n.category, f"there is a {n.name} .") for n in self.nouns)
        write_text(root / "probes" / "attribute.tsv", [header, *map("\t".join, fields)])
        about = {"format_version": FORMAT_VERSION, "config": asdict(config), "nouns": [asdict(n) for n in self.nouns]}
        words = {"attributes": ATTRIBUTES, "categories": FRAMES, "things": THINGS, "relations": list(OPPOSITE)}
        write_text(root / "world.json", [json.dumps(about | words | {"odd": odd}, indent=1)])

    def _write_images(self, root: Path, split: str, ids: range) -> None:
        """Images, captions and boxes of one split, in COCO's layout."""
        size = self.config.size
        records = [{"id": i, "width": size, "height": size, "file_name": f"{i:012d}.png"} for i in ids]
        head = {"info": {"description": "groundling world", "version": str(FORMAT_VERSION)}, "licenses": []}
        for blind in (False, True) if self.config.blind else (False,):
            folder = root / ("images_blind" if blind else "images")
            folder.mkdir(parents=True, exist_ok=True)
            captions: list[dict] = []
            boxes: list[dict] = []
            for record, image_id in zip(records, ids, strict=True):
                scene = self.scene(image_id, blind)
                Image.fromarray(self.picture(scene)).save(folder / str(record["file_name"]), compress_level=1)
                for text in self.captions(scene):
                    captions.append({"id": len(captions) + 1, "image_id": image_id, "caption": text})
                for box in self.boxes(scene):
                    boxes.append({"id": len(boxes) + 1} | box)
            name = f"captions_blind_{split}.json" if blind else f"captions_{split}.json"
            write_text(root / name, [json.dumps(head | {"images": records, "annotations": captions})])
            if not blind:  # the control needs no boxes: a teacher sees whole images
                shapes = [{"id": i + 1, "name": name} for i, name in enumerate(ATTRIBUTES["shape"])]
                content = {"images": records, "annotations": boxes, "categories": shapes}
                write_text(root / f"instances_{split}.json", [json.dumps(head | content)])

    def boxes(self, scene: Scene) -> list[dict]:
        """COCO annotations of a scene without their ids; boxes x, y, w, h in pixels."""
        found = []
        for thing in scene.things:
            x, y, w, h = self._stamp(thing).box
            bbox = [float(x + thing.x), float(y + thing.y), float(w), float(h)]
            area = round(float(self._stamp(thing).cover.sum()), 2)
            shape = ATTRIBUTES["shape"].index(thing.looks[1]) + 1
            box = {"image_id": scene.image_id, "category_id": shape, "bbox": bbox, "area": area, "iscrowd": 0}
            found.append(box | {"attributes": [thing.looks[i] for i in SPOKEN], "noun": thing.name})
        return found

    def _truth(self, split: str, nouns: list[Noun], cap: int) -> list[Row]:
        """`the zib is red .`: per noun and attribute one true and one false; each value as often false as true."""
        rng, rows = self._rng("truth", split), []
        nouns = nouns[: cap // 8]
        for column, values in enumerate(ATTRIBUTES.values()):
            true = [noun.looks[column] for noun in nouns]
            false = [true[i] for i in rng.permutation(len(true))]
            for i, word in enumerate(true):
                if false[i] == word:
                    swaps = [j for j, taken in enumerate(false) if word not in (taken, true[j])]
                    if swaps:
                        j = swaps[rng.integers(len(swaps))]
                        false[i], false[j] = false[j], false[i]
                    else:
                        false[i] = next(value for value in values if value != word)
            for noun, yes, no in zip(nouns, true, false, strict=True):
                rows += [(f"the {noun.name} is {yes} .", 1), (f"the {noun.name} is {no} .", 0)]
        return rows

    def _odd(self, split: str, nouns: list[Noun], cap: int) -> tuple[list[Row], str]:
        """`the p looks like the q , not the r .`; a noun is similar about as often as not, so no noun gives it away."""
        nouns = nouns[:120]  # a table of all triples; these give more rows than any cap
        looks = np.array([noun.looks for noun in nouns]).reshape(-1, 4)
        shared = (looks[:, None] == looks[None]).sum(axis=2)
        near, far = shared[:, :, None], shared[:, None, :]
        own = np.eye(len(nouns), dtype=bool)
        apart = ~(own[:, :, None] | own[:, None, :] | own[None, :, :])
        rows: list[Row] = []
        for rule, fits in zip(ODD_RULES, ((near >= 3) & (far <= 1), near - far >= 2), strict=True):
            triples = np.argwhere(fits & apart)
            rng, rows, tilt = self._rng("odd", split), [], np.zeros(len(nouns), dtype=int)
            triples = triples[rng.permutation(len(triples))]
            while len(triples) and len(rows) < cap:
                lead = np.maximum(tilt[triples[:, 1]], -tilt[triples[:, 2]])
                pick = int(lead.argmin())
                if lead[pick] > 1:
                    break
                p, q, r = triples[pick]
                triples = np.delete(triples, pick, axis=0)
                tilt[q] += 1
                tilt[r] -= 1
                for label, (one, two) in ((1, (q, r)), (0, (r, q))):
                    like, unlike = nouns[one].name, nouns[two].name
                    rows.append((f"the {nouns[p].name} looks like the {like} , not the {unlike} .", label))
            if len(rows) >= min(cap, 4 * len(nouns)):
                return rows, rule
        return rows, ODD_RULES[-1]

    def _category(self, split: str, nouns: list[Noun], cap: int) -> list[Row]:
        """`she eats the zib with salt .`: per noun as many frames of its own category as of the others."""
        rng, rows = self._rng("category", split), []
        nouns = nouns[: cap // 2]
        for noun in nouns:
            frames: tuple[list[str], list[str]] = [], []
            for category, parts in FRAMES.items():
                for person, verb, ending in itertools.product(("she", "he"), *parts):
                    frames[category == noun.category].append(f"{person} {verb} the {noun.name} {ending} .")
            for label, texts in enumerate(frames):
                order = rng.permutation(len(texts))[: min(len(frames[1]), cap // 2 // len(nouns))]
                rows += [(texts[i], label) for i in order]
        return rows

    def _order(self, split: str, nouns: list[Noun], cap: int, known: set[str]) -> list[Row]:
        """A new sentence, and the same with two words of different classes exchanged, which no template yields."""
        rows: list[Row] = []
        names, seen = {noun.name for noun in nouns}, set(known)
        classes = dict.fromkeys(("a", "the"), "article") | dict.fromkeys((*names, *THINGS, "thing"), "noun")
        classes |= dict.fromkeys(itertools.chain(*ATTRIBUTES.values()), "attribute")
        for index in range(20 * cap if nouns else 0):
            rng = self._rng(f"order/{split}", index)
            text = self.sentence(rng, nouns, 0.0)
            words = text.split()
            pairs = [
                (i, j)
                for i, j in itertools.combinations(range(len(words) - 1), 2)
                if classes.get(words[i], words[i]) != classes.get(words[j], words[j])
            ]
            i, j = pairs[rng.integers(len(pairs))]
            words[i], words[j] = words[j], words[i]
            swapped = " ".join(words)
            if names & set(words) and not {text, swapped} & seen:
                seen |= {text, swapped}
                rows += [(text, 1), (swapped, 0)]
            if len(rows) >= cap:
                break
        return rows


def draw_looks(rng: np.random.Generator) -> Looks:
    """Four attributes, each value as likely as any."""
    return tuple(values[i] for values, i in zip(ATTRIBUTES.values(), rng.integers((6, 6, 2, 3)), strict=True))


def phrase(rng: np.random.Generator, name: str, looks: Looks, stated: float) -> str:
    """A noun, with probability `stated` with an attribute before it; without a name, a thing with two or three.

    A thing's shape is always told: it is what a contrastive teacher learns last, and from captions alone.
    """
    order, bias, count = rng.permutation(4), rng.random(), int(rng.integers(1, 3))
    if name:
        return f"{looks[order[0]]} {name}" if bias < stated else name
    told = {SHAPE, *[i for i in order if i != SHAPE][:count]}
    return " ".join([looks[i] for i in SPOKEN if i in told] + ["thing"])


def stamp(shape: str, size: str, texture: str, fit: int, cell: int) -> Stamp:
    """One shape at one of two fits, drawn at four times the cell's resolution and averaged down."""
    grid = (np.arange(4 * cell) + 0.5) / (2 * cell) - 1
    scale = {"small": (0.56, 0.64), "large": (0.92, 1.0)}[size][fit]
    x, y = grid[None, :] / scale, grid[:, None] / scale
    radius, extent = np.hypot(x, y), np.maximum(abs(x), abs(y))
    inside = {
        "round": radius <= 1,
        "square": extent <= 1,
        "bent": ((x <= -0.3) | (y >= 0.3)) & (extent <= 1),
        "tall": (abs(x) <= 0.36) & (abs(y) <= 1),
        "hollow": (radius <= 1) & (radius >= 0.55),
        "flat": (abs(y) <= 0.36) & (abs(x) <= 1),
    }[shape]
    row, column = np.indices((cell, cell)) * 14 // cell // 2 % 2  # bands of a seventh of the cell
    texture_on = {"plain": 0 * row, "striped": column, "dotted": row * column}[texture]
    cover = inside.reshape(cell, 4, cell, 4).mean(axis=(1, 3), dtype=np.float32)
    ys, xs = np.nonzero(cover >= 0.5)
    box = (int(xs.min()), int(ys.min()), int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1)
    return Stamp(cover[:, :, None], np.float32(0.8) * texture_on[:, :, None].astype(np.float32), box)


def write_text(path: Path, lines: Sequence[str]) -> None:
    """Write lines as UTF-8 with the same line ends on every system."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes("".join(f"{line}\n" for line in lines).encode())


def leaks(folder: str | os.PathLike) -> dict[str, float]:
    """How far the text gives the nouns' attributes away, from the files alone; all but the null should be near 0.

    `adjacent`: share of noun mentions next to an attribute word; `predicated`: share of lines `the NOUN is ATTRIBUTE`;
    `cooccurrence`: accuracy above the majority's, mean of the attributes, of a ridge classifier that reads how often a
    noun shares a sentence with each attribute word, one noun left out at a time; `cooccurrence_null`: 95th percentile
    of the same with the nouns' attributes permuted.
    """
    path = Path(folder) / "world.json"
    if not path.is_file():
        raise InputError(f"{path} is missing; expected a folder written by World.write")
    nouns = json.loads(path.read_text(encoding="utf-8"))["nouns"]
    index = {noun["name"]: i for i, noun in enumerate(nouns)}
    words = {word: i for i, word in enumerate(itertools.chain(*ATTRIBUTES.values()))}
    counts, mentions, adjacent, predicated = np.zeros((len(nouns), len(words))), 0, 0, 0
    lines = (Path(folder) / "corpus" / "train.txt").read_text(encoding="utf-8").splitlines()
    for tokens in map(str.split, lines):
        match tokens:
            case ["the", noun, "is", word, *_]:
                predicated += noun in index and word in words
        found = [words[token] for token in tokens if token in words]
        for i, token in enumerate(tokens):
            if token in index:
                mentions += 1
                adjacent += any(word in words for word in tokens[max(i - 1, 0) : i + 2])
                np.add.at(counts[index[token]], found, 1)
    x = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    x = np.c_[np.ones(len(x)), (x - x.mean(axis=0)) / (x.std(axis=0) + 1e-9)]
    hat = x @ np.linalg.solve(x.T @ x + np.diag([1e-6] + [1.0] * len(words)), x.T)
    labels = [np.array([values.index(noun[kind]) for noun in nouns]) for kind, values in ATTRIBUTES.items()]

    def gain(order: np.ndarray) -> float:
        gains = []
        for label in labels:
            target = np.eye(label.max() + 1)[label[order]]
            # A ridge fit without noun i predicts for i what the full fit does, less i's own part.
            score = (hat @ target - np.diag(hat)[:, None] * target) / (1 - np.diag(hat)[:, None])
            gains.append((score.argmax(axis=1) == label[order]).mean() - target.mean(axis=0).max())
        return float(np.mean(gains))

    null = [gain(generator("leaks", i).permutation(len(nouns))) for i in range(200)]
    return {
        "adjacent": adjacent / max(mentions, 1),
        "predicated": predicated / max(len(lines), 1),
        "cooccurrence": gain(np.arange(len(nouns))),
        "cooccurrence_null": float(np.quantile(null, 0.95)),
    }
