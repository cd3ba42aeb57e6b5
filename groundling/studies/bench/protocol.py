"""The bench's fixed settings, which no method chooses, the axes of its curves, and where its files are."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from groundling.commands.train_clip import TrainClipConfig
from groundling.core.errors import require_known
from groundling.runs.folder import json_text
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.commands import FAMILIES, PROTOCOL_VERSION, TUNING_SEED, Student
from groundling.studies.bench.methods import BATCH, slug

# Sizes and steps were chosen on the dev nouns of world 100; docs/results.md lists the alternatives.
TEACHER = TrainClipConfig(
    size=32,
    patch_size=16,
    vision_tower=(192, 2),
    text_tower=(64, 2),
    projection_dim=64,
    vocab_size=1000,
    context_length=20,
    flip=False,
    max_shift=0.03,
)
TEACHING = TrainingArguments(
    steps=900,
    batch=128,
    lr=1e-3,
    schedule="cosine",
    weight_decay=0.1,
    log_every=50,
    save_every=300,
    cpu=True,
)
REDRAWN_TEACHING = replace(TEACHING, steps=250)  # without attributes to learn, only caption wording
PRETRAINING = TrainingArguments(
    steps=1500,
    batch=64,
    lr=2e-3,
    warmup_ratio=0.1,
    weight_decay=0.01,
    log_every=50,
    save_every=500,
    cpu=True,
)
PRETRAINING_MASK_RATE = 0.25
ENCODER = {"layers": 2, "width": 128}
"""Sizes of the encoder, as in `new_encoder`."""
ADAPTING = TrainingArguments(
    steps=300, batch=BATCH, lr=2e-3, warmup_ratio=0.05, log_every=50, save_every=300, cpu=True
)
MAX_LENGTH = 32
"""Maximum tokens of a text for the student."""
PROBING = TrainingArguments(
    steps=250, lr=5e-4, warmup_ratio=0.1, weight_decay=0.0, log_every=50, cpu=True
)
PROBE_STEPS = {"truth": 250, "category": 250, "order": 250, "odd": 1000}
"""Fine-tuning steps of each question."""
ONE_SEED = ("category", "order")
"""Questions that are fine-tuned on once: the price."""

NOUNS = {"nouns": 162, "dev_nouns": 18, "test_nouns": 36}
WORLD = {"scenes": 16000, "sentences": 24000, "dev_scenes": 500, "dev_sentences": 1000}
SMALL_NOUNS = {"nouns": 36, "dev_nouns": 9, "test_nouns": 9}
SMALLEST = {"scenes": 130, "sentences": 150, "dev_scenes": 10, "dev_sentences": 40}
"""A batch of the teacher's training is 128 images."""


def scaled(training: TrainingArguments, scale: float, seed: int) -> TrainingArguments:
    """Training settings with scaled steps and a seed."""
    return replace(training, steps=max(2, round(training.steps * scale)), seed=seed)


def world_sizes(scale: float) -> dict[str, int]:
    """Sizes of a world, as settings of `data make-world`."""
    if scale >= 1:
        return {**NOUNS, **WORLD}
    nouns = NOUNS if scale >= 0.1 else SMALL_NOUNS
    return nouns | {name: max(SMALLEST[name], round(n * scale)) for name, n in WORLD.items()}


def protocol_of(scale: float, student: Student = "masked") -> dict[str, Any]:
    """What is fixed, for `bench.json`; results of other settings are not comparable.

    The hash leaves out ENCODER, PRETRAINING_MASK_RATE and MAX_LENGTH, since published results keep theirs: a change of
    these needs another PROTOCOL_VERSION.
    """
    fixed = (TEACHER, TEACHING, REDRAWN_TEACHING, PRETRAINING, ADAPTING, PROBING)
    # Defaults are left out, so that a new setting of a command does not make all earlier benches incomparable; a
    # default that changes results needs another PROTOCOL_VERSION.
    changed = []
    for one in fixed:
        defaults = asdict(type(one)())
        settings = asdict(one).items()
        changed.append({name: value for name, value in settings if value != defaults[name]})
    text = json_text([*changed, PROBE_STEPS, world_sizes(scale)], default=str)
    return {
        "version": PROTOCOL_VERSION,
        "scale": scale,
        "steps": max(2, round(ADAPTING.steps * scale)),
        "batch": ADAPTING.batch,
        "settings": hashlib.sha256(text.encode()).hexdigest()[:16],
        **({} if student == "masked" else {"student": student}),
    }


def key_of(*parts: object) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json_text(parts, default=str).encode()).hexdigest()[:16]


# -- curves ------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True, order=True)
class BenchCondition:
    """What differs from the fixed settings at one point of a curve; by default nothing."""

    axis: str = ""
    """Name of the curve's axis."""
    value: int = 0
    """Place on the axis."""
    images: float = field(default=1.0, compare=False)
    """Share of the images, with their captions, that are handed over."""
    captions: float = field(default=1.0, compare=False)
    """Share of the captions that are handed over."""
    teaching: TrainingArguments | None = field(default=None, compare=False)
    """Training of a teacher of its own, on the captions that are handed over."""
    encoder: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Sizes of an encoder of its own, as in `new_encoder`."""
    steps: float = field(default=1.0, compare=False)
    """Factor on the steps of every arm."""

    def __str__(self) -> str:
        return f"{self.axis} {self.value}"

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of what is handed over otherwise than in the world without the condition."""
        made = {
            "captions": self.images != 1 or self.captions != 1,
            "encoder": bool(self.encoder),
            "teacher": self.teaching is not None,
        }
        return tuple(name for name, is_changed in made.items() if is_changed)


BASE = BenchCondition()
"""The fixed settings, unchanged."""


@dataclass(frozen=True)
class CurveAxis:
    """Something that grows, while everything else stays as the protocol says."""

    name: str
    """Name, as in `--curve`."""
    unit: str
    """What is counted."""
    values: Mapping[int, Mapping[str, Any]]
    """Ascending points of a curve at scale 1, and what each changes: fields of a `BenchCondition`."""
    about: str
    """A sentence on what a value changes."""

    @property
    def base(self) -> int:
        """The protocol's own value, which changes nothing: there the runs are the bench's."""
        return next(value for value, change in self.values.items() if not change)

    def conditions(self) -> list[BenchCondition]:
        """The conditions at all values but the protocol's own."""
        changes = self.values.items()
        return [BenchCondition(self.name, value, **change) for value, change in changes if change]


IMAGES_OF_A_NOUN = 104
"""Training images that show a noun of a world, in the mean: 16,000 images with 1.05 nouns each, 162 nouns."""
CAPTIONS = 2 * WORLD["scenes"]
"""Every image has two captions."""

AXES = (
    CurveAxis(
        "images",
        "images of each noun",
        {
            value: {"images": value / IMAGES_OF_A_NOUN, "teaching": TEACHING}
            for value in (1, 4, 16, 64)
        }
        | {IMAGES_OF_A_NOUN: {}},
        "Captions are those of fewer images, and the teacher is trained on nothing else.",
    ),
    CurveAxis(
        "captions",
        "captions",
        {value: {"captions": value / CAPTIONS} for value in (500, 2000, 8000)} | {CAPTIONS: {}},
        "Methods read fewer captions; the teacher is the same.",
    ),
    CurveAxis(
        "steps",
        "steps",
        {
            value: {"steps": value / ADAPTING.steps} if value != ADAPTING.steps else {}
            for value in (100, 300, 1000, 3000)
        },
        "The method and its text control have so many steps over all stages.",
    ),
    CurveAxis(
        "layers",
        "layers of the encoder",
        {ENCODER["layers"]: {}, 4: {"encoder": {"layers": 4}}, 6: {"encoder": {"layers": 6}}},
        "An encoder of so many layers is pre-trained with the same settings.",
    ),
    CurveAxis(
        "width",
        "dimensions of the encoder's states",
        {64: {"encoder": {"width": 64}}, ENCODER["width"]: {}, 256: {"encoder": {"width": 256}}},
        "An encoder of this width is pre-trained with the same settings.",
    ),
    CurveAxis(
        "teacher",
        "training steps of the teacher",
        {
            value: {"teaching": replace(TEACHING, steps=value)} if value != TEACHING.steps else {}
            for value in (30, 100, 300, 900, 2700)
        },
        "A teacher is trained for so many steps on the same images and captions.",
    ),
)
"""All axes; another entry is another curve."""


def find_axes(names: Sequence[str]) -> list[CurveAxis]:
    """Axes by name; raises InputError for an unknown one."""
    offered = {axis.name: axis for axis in AXES}
    for name in names:
        require_known(name, offered, f"curve={name}: not known")
    return [offered[name] for name in dict.fromkeys(names)]


# -- worlds and files --------------------------------------------------------------------------------------------------
@dataclass(frozen=True, order=True)
class BenchWorld:
    """A rendered world of the bench, perhaps under a condition of a curve."""

    family: str
    """Family of worlds, as in `data make-world --family`."""
    seed: int
    """Seed of everything in it."""
    condition: BenchCondition = BASE
    """What differs from the fixed settings."""

    def __str__(self) -> str:
        world = f"{self.family} {self.seed}"
        return f"{world}, {self.condition}" if self.condition.axis else world

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        about: dict[str, Any] = {"family": self.family, "world": self.seed}
        if self.condition.axis:
            about["condition"] = {"axis": self.condition.axis, "value": self.condition.value}
        return about

    @property
    def base(self) -> BenchWorld:
        """The world without its condition."""
        return replace(self, condition=BASE)

    @property
    def shared(self) -> BenchWorld:
        """The world whose files every method reads: itself, or its base if both have the same files."""
        return self if self.condition.makes else self.base


TUNING_WORLD = BenchWorld(FAMILIES[0], TUNING_SEED)
"""The world in which weights are chosen; its results are not reported."""


@dataclass(frozen=True)
class Files:
    """Files of one world, or of the user's encoder: what is handed over to methods, and what is not."""

    root: Path
    places: Mapping[str, Path]
    """What is handed over, by name: `encoder`, `teacher`, texts, images, and their replacements for controls."""
    private: Path = Path()
    """Probes, attributes and held-out text, which methods never get."""
    features: Path | None = None
    """Features of the teacher, which methods share."""

    def run(self, model: str) -> Path:
        """Run folder of a teacher or of the encoder."""
        return self.places[model].parent


TEXTS_AND_IMAGES = {
    "corpus": "corpus.txt",
    "captions": "captions.json",
    # The same file name: samples' ids contain it and key every random choice, such as masks.
    "shuffled captions": "shuffled/captions.json",
    "images": "images",
    "noise images": "noise",
}
REDRAWN = "teacher-redrawn"
"""A teacher for which nouns look different in every image."""
MODELS = ("encoder", "teacher", REDRAWN, "teacher-untrained")


@dataclass(frozen=True)
class BenchFolder:
    """Layout of an experiment's folder."""

    root: Path

    def world(self, world: BenchWorld) -> Files:
        """The files of a world that all its methods read; under a condition, those that differ are its own."""
        own = self.root / "shared" / slug(str(world.shared))
        places = {name: own / "handed" / file for name, file in TEXTS_AND_IMAGES.items()}
        places |= {name: own / "making" / name / "model" for name in MODELS}
        if world.shared == world.base:
            return Files(own, places, own / "private", own / "features")
        base = self.world(world.base)
        made = {name: places[name] for name in world.condition.makes}
        features = own / "features" if "teacher" in made else base.features
        return Files(own, {**base.places, **made}, base.private, features)

    @property
    def jobs(self) -> Path:
        """The results of all jobs."""
        return self.root / "jobs"

    def job(self, name: str) -> Path:
        """The result file of a job."""
        return self.jobs / f"{slug(name)}.json"

    def runs(self, *parts: str) -> Path:
        """A folder of runs."""
        return self.root.joinpath("runs", *map(slug, parts))

    def probes(self, *parts: str) -> Path:
        """A folder of readings, apart from the runs of methods."""
        return self.root.joinpath("probes", *map(slug, parts))
