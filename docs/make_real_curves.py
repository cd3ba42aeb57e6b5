"""What carries the gain of docs/results/21_pretrained_encoder.md, and what it costs: the curves of that page.

    python docs/make_real_curves.py kit train.token.txt coda_annotations.jsonl color-dist.jsonl --curve steps

Every point adapts MiniLM (or another encoder of the kit) by Cap2Img with each of three seeds, once with each caption's
own vector and once with another photograph's (one fixed permutation), and reads both by `probe-facts`. What is done is
not done again.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import groundling
from groundling.core.errors import InputError
from groundling.core.resampling import bootstrap_sums, derangement, interval
from groundling.core.rng import generator
from groundling.runs.folder import data_hash, read_object, write_json
from groundling.studies.bench.readings import SetReader
from groundling.studies.knowledge.probe_facts import collect_nouns
from groundling.studies.knowledge.visual_facts import open_facts
from groundling.teachers.vectors import write_vectors

OWN, PERMUTED = "own", "permuted"
COLOURS = [
    "black",
    "blue",
    "brown",
    "gray",
    "green",
    "grey",
    "orange",
    "pink",
    "purple",
    "red",
    "tan",
    "white",
    "yellow",
]
"""Words that are taken out of captions: the colours of CoDa and ViComTe."""


@dataclass(frozen=True)
class Point:
    """An adaptation, and what is done with the encoder before it is read."""

    student: str = "minilm"
    steps: int = 100
    retain: float = 1.0
    captions: str = "all"
    vectors: str = "effnet"
    share: float = 1.0
    """Share of the adapted encoder in a merged one."""
    task: str = ""
    """GLUE task on which it is fine-tuned."""


MADE_HERE = ("random", "colours")
"""Vectors that are no teacher's."""
TRAINED = ("dual", "clip")
"""Vectors of what train-clip trained on the captions: heads on MiniLM and EfficientNet, and a CLIP from nothing."""
BASE = Point()
CURVES = {
    "steps": {f"{n:,}": replace(BASE, steps=n) for n in (30, 100, 300)},
    "more steps": {"1,000": replace(BASE, steps=1_000)},
    "most steps": {"6,000": replace(BASE, steps=6_000)},
    "nothing retained": {f"{n:,}": replace(BASE, steps=n, retain=0.0) for n in (100, 400, 1_200)},
    "photographs": {
        **{f"{n:,}": replace(BASE, captions=f"first {n}") for n in (500, 1_500)},
        "5,996": BASE,
    },
    "teacher": {
        name: replace(BASE, vectors=name)
        for name in ("effnet", "effnet-raw", "dual", "clip", "random")
    },
    "captions": {"all": BASE, "without colour words": replace(BASE, captions="no colours")},
    "oracle": {"people's colours": Point(captions="named nouns", vectors="colours")},
    "merging": {f"{share:g}": replace(BASE, share=share) for share in (0.25, 0.5, 0.75, 1.0)},
    "fine-tuned": {"SST-2": replace(BASE, task="sst-2")},
    "encoder": {"MPNet-base": replace(BASE, student="mpnet")},
}


class Kit:
    """Files of all points, and their encoders."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.folder: Path = options.kit
        self.captions: Path = options.captions
        self.facts: list[Path] = options.facts
        modes = (("modes", tuple(options.modes)),)
        self.sets = [SetReader("facts", str(file), modes) for file in self.facts]
        self.sets += [SetReader("retention", options.pairs)] if options.pairs else []
        self.glue: str = options.glue
        self.trained: Path = options.trained
        self.out: Path = options.out

    def check(self, points: Iterable[Point]) -> None:
        """Raises InputError if something is missing that these points read, or `out` has points of other inputs."""
        given = {
            name: str(getattr(self, name).resolve()) for name in ("folder", "captions", "trained")
        }
        given["captions"] += f" {data_hash(self.captions)}"
        kept = self.out / "inputs.json"
        if kept.exists() and read_object(kept) != given:
            raise InputError(
                f"{self.out}: holds points of other inputs ({kept}); choose another --out"
            )
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_json(kept, given)
        for file in self.facts:
            open_facts(str(file))
        for point in points:
            folders = [self.folder / point.student]
            if point.vectors not in MADE_HERE:
                folders.append(self.stored(point.vectors))
            if point.task:
                folders.append(Path(self.glue))
            for folder in folders:
                if folder == Path():
                    raise InputError("the curve fine-tuned needs --glue FOLDER")
                if not folder.is_dir():
                    raise InputError(f"{folder}: no such folder")

    def stored(self, name: str) -> Path:
        """The folder of vectors that were made before."""
        return self.trained / name / "vectors" if name in TRAINED else self.folder / name

    def caption_file(self, name: str) -> Path:
        """A point's captions, in Flickr8k's format."""
        path = self.out / "captions" / f"{name.replace(' ', '-')}.txt"
        if name == "all":
            return self.captions
        if path.exists():
            return path
        lines = self.captions.read_text().splitlines()
        if name.startswith("first "):
            images = dict.fromkeys(line.partition("#")[0] for line in lines)
            kept = set(list(images)[: int(name.split()[1])])
            lines = [line for line in lines if line.partition("#")[0] in kept]
        elif name == "no colours":
            word = re.compile(rf"\b({'|'.join(COLOURS)})\b ?", re.IGNORECASE)
            lines = [word.sub("", line) for line in lines]
        else:
            lines = self._oracle(lines)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def _oracle(self, lines: list[str]) -> list[str]:
        """Captions that name nouns of CoDa; their vectors are the nouns' colours, less those of the mean noun."""
        nouns = collect_nouns(open_facts(str(self.facts[0])).facts)
        roots = np.sqrt(nouns.shares)
        colours = dict(zip(nouns.names, roots - roots.mean(0), strict=True))
        names = sorted(map(re.escape, colours), key=len, reverse=True)
        word = re.compile(rf"\b({'|'.join(names)})s?\b")
        found = [word.findall(line.partition("\t")[2].lower()) for line in lines]
        kept = {
            f"{place}.jpg": line.partition("\t")[2]
            for place, line in enumerate(lines)
            if found[place]
        }
        vectors = [np.mean([colours[noun] for noun in one], 0) for one in found if one]
        save_vectors(self.out / "vectors" / "colours", np.stack(vectors), list(kept))
        return [f"{name}#0\t{caption}" for name, caption in kept.items()]

    def vectors(self, name: str, arm: str) -> Path:
        """A folder of image vectors; permuted, every photograph has another one's."""
        own = self.out / "vectors" / name
        if name == "random" and not own.exists():
            images = (self.folder / "effnet" / "images.txt").read_text().splitlines()
            drawn = generator("curves", "vectors").standard_normal((len(images), 1_280))
            save_vectors(own, drawn, images)
        own = own if name in MADE_HERE else self.stored(name)
        permuted = self.out / "vectors" / f"{name}-permuted"
        if arm == PERMUTED and not permuted.exists():
            files = sorted(own.glob("images*.npy"))
            images = [
                one for file in files for one in file.with_suffix(".txt").read_text().splitlines()
            ]
            vectors = np.concatenate([np.load(file) for file in files])
            others = derangement(len(images), generator("curves", "permutation"))
            save_vectors(permuted, vectors[others], images)
        return own if arm == OWN else permuted

    def run_folder(self, point: Point, arm: str, seed: int) -> Path:
        """Where a point is trained."""
        name = f"{point.steps}-{point.retain:g}-{point.captions}-{point.vectors}-{arm}-{seed}"
        if point.student != BASE.student:
            name = f"{point.student}-{name}"
        return self.out / "runs" / name.replace(" ", "-")

    def encoder(self, point: Point, arm: str, seed: int) -> Path:
        """The encoder of a point, trained if it is not there."""
        if point.steps == 0:
            return self.folder / point.student
        out = self.run_folder(point, arm, seed)
        captions = self.caption_file(point.captions)
        groundling.adapt(
            student=str(self.folder / point.student),
            teacher=f"vectors:{self.vectors(point.vectors, arm)}",
            text=(str(captions),),
            arm="caption_to_image",
            pooling="mean",
            retain_weight=point.retain,
            teacher_cache=str(self.out / "cache"),
            max_length=32,
            steps=point.steps,
            batch=32,
            lr=1e-4,
            seed=seed,
            cpu=True,
            out=out,
        )
        return out / "model"

    def read(self, point: Point, arm: str, seed: int) -> Scores:
        """Scores of nouns by set, and the correlation of sentences; those of each set are kept."""
        run = self.run_folder(point, arm, seed).name
        name = f"{run}-{point.share:g}-{point.task}"
        if point.steps == 0:
            name = f"{point.student}-{point.task}-{seed}"
        out = self.out / "read" / name
        places = {one: out / f"{one.name}.json" for one in self.sets}
        tuned = [out / "tuned.json"] if point.task else []
        if not all(place.exists() for place in (*places.values(), *tuned)):
            encoder = self.finished_encoder(point, arm, seed, out)
            for one, place in places.items():
                if place.exists():
                    continue
                readings = one.read(encoder, out / one.name, self.folder / point.student, True)
                found = {name: by_noun(reading) for name, reading in readings.items()}
                place.write_text(json.dumps(found))
        scores: Scores = {}
        for place in (*tuned, *places.values()):
            scores |= json.loads(place.read_text())
        return scores

    def finished_encoder(self, point: Point, arm: str, seed: int, out: Path) -> Path:
        """The encoder as it is read: merged or fine-tuned in `out`, if the point says so."""
        encoder = self.encoder(point, arm, seed)
        if point.share < 1:
            origin = str(self.folder / point.student)
            share = (point.share,)
            groundling.merge(model=str(encoder), origin=origin, share=share, out=out / "merged")
            encoder = out / "merged" / "model"
        if point.task:
            result = groundling.finetune(
                model=str(encoder),
                task=f"glue/{point.task}",
                data=self.glue,
                limit_train=4_000,
                epochs=1,
                lr=5e-5,
                seed=seed,
                cpu=True,
                out=out / "tuned",
            )
            headlines = {
                f"{point.task} {split}": scores[result["headline"]]
                for split, scores in result["median"].items()
            }
            (out / "tuned.json").write_text(json.dumps(headlines))
            (encoder,) = (out / "tuned").glob("**/model")
        return encoder


UNADAPTED = Point(steps=0)
Scores = dict[str, Any]
"""By set the scores of nouns, or one number."""


def save_vectors(folder: Path, vectors: np.ndarray, names: list[str]) -> None:
    """Write vectors (N, D) of images, as `vectors:FOLDER` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    write_vectors(folder / "images.npy", names, list(vectors.astype(np.float32)))


def by_noun(reading: dict[str, Any]) -> Any:
    """The mean score of each noun's items; the score itself of a reading without items."""
    scores: dict[str, list[float]] = {}
    for noun, score in zip(reading.get("groups", []), reading.get("items", []), strict=True):
        scores.setdefault(noun, []).append(score)
    return {noun: float(np.mean(own)) for noun, own in scores.items()} or reading["test"]


def differences(one: list[Scores], other: list[Scores], name: str, words: frozenset[str]) -> str:
    """The mean over nouns and seeds, with intervals and each seed's mean; then by whether captions name a noun."""
    pairs = list(zip(one, other, strict=True))
    if not isinstance(one[0][name], dict):
        return " ".join(f"{a[name] - b[name]:+.3f}" for a, b in pairs)
    nouns = list(one[0][name])
    values = np.array([[a[name][noun] - b[name][noun] for noun in nouns] for a, b in pairs])
    is_named = np.array([noun.lower() in words for noun in nouns])
    seeds = " ".join(f"{value:+.3f}" for value in values.mean(1))
    parts = f"{with_interval(values[:, is_named])} named, {with_interval(values[:, ~is_named])} not"
    return f"{with_interval(values)}, seeds {seeds}; {parts}"


def with_interval(values: np.ndarray) -> str:
    """The mean of differences (seeds, nouns), and its 95 % interval over nouns."""
    if not values.size:
        return "none"
    sums = bootstrap_sums(values.mean(0), generator("curves", "bootstrap"))
    low, high = interval(sums / values.shape[1])
    return f"{values.mean():+.3f} ({low:+.3f} to {high:+.3f}; {values.shape[1]:,} nouns)"


def words_of(captions: Path) -> frozenset[str]:
    """The words of captions, and every two that follow each other, with and without a plural s."""
    found: set[str] = set()
    for line in captions.read_text().splitlines():
        words = re.findall(r"[a-z]+", line.partition("\t")[2].lower())
        words += [f"{one} {other}" for one, other in pairwise(words)]
        found.update(words, (word.removesuffix("s") for word in words))
    return frozenset(found)


def main() -> None:
    """Train and read what is missing of a curve, then print its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kit", type=Path, help="folder that docs/make_real_kit.py made")
    parser.add_argument("captions", type=Path, help="captions in Flickr8k's format")
    parser.add_argument("facts", type=Path, nargs="+", help="CoDa, then other sets of visual facts")
    parser.add_argument(
        "--curve", nargs="+", choices=CURVES, default=list(CURVES), help="by default all"
    )
    parser.add_argument(
        "--modes", nargs="+", default=["linear"], help="how facts are read; by default linear"
    )
    parser.add_argument("--pairs", default="", help="STS-B, a tsv or its folder")
    parser.add_argument("--glue", default="", help="folder of GLUE, for the curve fine-tuned")
    parser.add_argument(
        "--trained",
        type=Path,
        default=Path("runs"),
        help=f"folder of {' and '.join(f'{name}/vectors' for name in TRAINED)}; by default runs",
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="by default 0 1 2")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/curves"), help="by default runs/curves"
    )
    options = parser.parse_args()
    kit, words = Kit(options), words_of(options.captions)
    kit.check(point for curve in options.curve for point in CURVES[curve].values())
    for curve in options.curve:
        for label, point in CURVES[curve].items():
            before = replace(UNADAPTED, student=point.student, task=point.task)
            rows = {
                arm: [kit.read(point, arm, seed) for seed in options.seeds]
                for arm in (OWN, PERMUTED)
            }
            rows["before"] = [
                kit.read(before, OWN, seed if point.task else 0) for seed in options.seeds
            ]
            for name in rows[OWN][0]:
                for arm in (PERMUTED, "before"):
                    told = differences(rows[OWN], rows[arm], name, words)
                    print(f"{curve} {label}, {name}, beyond {arm}: {told}", flush=True)


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
