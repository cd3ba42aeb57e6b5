"""The bench's fixed settings, which no method chooses, and where its files are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from groundling.commands.train_clip import TrainClipConfig
from groundling.runs.folder import json_text
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.commands import FAMILIES, PROTOCOL_VERSION, TUNING_SEED
from groundling.studies.bench.method import BATCH, slug

# The sizes and steps of the quickstart, which were chosen on the dev nouns of world 100.
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
REDRAWN_TEACHING = replace(TEACHING, steps=250)
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
LINE_MASK_RATE = 0.15
"""Share of masked tokens in the held-out masked-LM loss."""

NOUNS = {"nouns": 162, "dev_nouns": 18, "test_nouns": 36}
WORLD = {"scenes": 16000, "sentences": 24000, "dev_scenes": 500, "dev_sentences": 1000}
SMALL_NOUNS = {"nouns": 36, "dev_nouns": 9, "test_nouns": 9}
SMALLEST = {"scenes": 130, "sentences": 150, "dev_scenes": 10, "dev_sentences": 40}
"""A batch of the teacher's training is 128 images."""


@dataclass(frozen=True, order=True)
class BenchCondition:
    """What differs from the fixed settings at one point of a curve; by default nothing."""

    axis: str = ""
    """Name of the curve's axis."""
    value: int = 0
    """Place on the axis."""
    thin: Callable[[Mapping[str, Any], Path, int], dict[str, Any]] | None = field(
        default=None, compare=False
    )
    """Chooses the captions that are handed over, of all captions, the world's private folder and its seed."""
    teaching: TrainingArguments | None = field(default=None, compare=False)
    """Training of a teacher of its own, on the captions that are handed over."""
    encoder: Mapping[str, int] = field(default_factory=dict, compare=False)
    """Sizes of an encoder of its own, as in `new_encoder`."""
    steps: float = field(default=1.0, compare=False)
    """Factor on the steps of every arm."""

    def __str__(self) -> str:
        return f"{self.axis} {self.value}"

    def as_json(self) -> dict[str, Any]:
        """For `bench.json`."""
        return {"axis": self.axis, "value": self.value}

    @property
    def makes(self) -> tuple[str, ...]:
        """Names of what is handed over otherwise than in the world without the condition."""
        made = {"captions": self.thin, "encoder": self.encoder, "teacher": self.teaching}
        return tuple(name for name, change in made.items() if change)


BASE = BenchCondition()
"""The fixed settings, unchanged."""


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
        return about | ({"condition": self.condition.as_json()} if self.condition.axis else {})

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
class Protocol:
    """The fixed settings at a scale."""

    scale: float = 1.0

    def world(self) -> dict[str, int]:
        """Sizes of a world."""
        if self.scale >= 1:
            return {**NOUNS, **WORLD}
        nouns = NOUNS if self.scale >= 0.1 else SMALL_NOUNS
        sizes = {name: max(SMALLEST[name], round(n * self.scale)) for name, n in WORLD.items()}
        return {**nouns, **sizes}

    def scaled(self, training: TrainingArguments, seed: int) -> TrainingArguments:
        """Training settings with scaled steps and a seed."""
        steps = max(2, round(training.steps * self.scale))
        return replace(training, steps=steps, seed=seed)

    def probe_training(self, question: str) -> TrainingArguments:
        """Settings of fine-tuning on a question."""
        return self.scaled(replace(PROBING, steps=PROBE_STEPS[question]), 0)

    def as_json(self) -> dict[str, Any]:
        """Everything fixed, for `bench.json`; results of other settings are not comparable."""
        fixed = (TEACHER, TEACHING, REDRAWN_TEACHING, PRETRAINING, ADAPTING, PROBING)
        # Defaults are left out, so that a new setting of a command does not make all earlier benches incomparable; a
        # default that changes results needs another PROTOCOL_VERSION.
        changed = []
        for one in fixed:
            defaults = asdict(type(one)())
            settings = asdict(one).items()
            changed.append({name: value for name, value in settings if value != defaults[name]})
        text = json_text([*changed, PROBE_STEPS, self.world()], default=str)
        return {
            "version": PROTOCOL_VERSION,
            "scale": self.scale,
            "steps": max(2, round(ADAPTING.steps * self.scale)),
            "batch": ADAPTING.batch,
            "settings": hashlib.sha256(text.encode()).hexdigest()[:16],
        }


def key_of(*parts: object) -> str:
    """A short hash of JSON values."""
    return hashlib.sha256(json_text(parts, default=str).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class WorldFolder:
    """Files of one world: what is handed over to methods, and what is not."""

    root: Path
    """The world's folder."""
    base: WorldFolder | None = None
    """Under a condition: files of the world without it."""
    makes: tuple[str, ...] = ()
    """Under a condition: what it has of its own, of `HANDED`."""

    @property
    def private(self) -> Path:
        """The rendered world with its probes, attributes and held-out text, which methods never get."""
        return self.base.private if self.base is not None else self.root / "private"

    @property
    def handed(self) -> Path:
        """Texts and images that methods read."""
        return self.root / "handed"

    @property
    def features(self) -> Path:
        """Features of the teacher, which methods share."""
        if self.base is not None and "teacher" not in self.makes:
            return self.base.features
        return self.root / "features"

    def making(self, name: str) -> Path:
        """Run folder of a teacher or of the encoder."""
        return self.root / "making" / name

    def place(self, name: str) -> Path:
        """The path of one of `HANDED`."""
        if self.base is not None and name not in self.makes:
            return self.base.place(name)
        if name in MODELS:
            return self.making(name) / "model"
        return self.handed / FILES[name]

    @property
    def record(self) -> Path:
        """Hashes of everything handed over; it is written last."""
        return self.root / "handed.json"


FILES = {
    "corpus": "corpus.txt",
    "captions": "captions.json",
    # The same file name: samples' ids contain it and key every random choice, such as masks.
    "shuffled captions": "shuffled/captions.json",
    "images": "images",
    "noise images": "noise",
}
MODELS = ("encoder", "teacher", "teacher-redrawn", "teacher-untrained")
HANDED = (*FILES, *MODELS)
"""Everything that is handed over to methods and controls, by name."""


@dataclass(frozen=True)
class BenchFolder:
    """Layout of a bench's folder."""

    root: Path

    def world(self, world: BenchWorld) -> WorldFolder:
        """The files of a world that all its methods read."""
        own = self.root / "shared" / slug(str(world.shared))
        if world.shared == world.base:
            return WorldFolder(own)
        return WorldFolder(own, self.world(world.base), world.condition.makes)

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
        """A folder of fine-tuned probes, apart from the runs of methods."""
        return self.root.joinpath("probes", *map(slug, parts))
