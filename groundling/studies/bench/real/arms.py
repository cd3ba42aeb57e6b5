"""One arm of a method on a real encoder: its stages, what they cost, and its readings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import read_object
from groundling.runs.hashing import data_hash
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.arms import (
    METHOD,
    SHUFFLED,
    TEXT_CONTROL,
    control_stages,
    finish_job,
    finished_job,
    stage_settings,
    text_key,
)
from groundling.studies.bench.cost import Cost
from groundling.studies.bench.method import TEXT, BenchMethod, Stage, is_outside
from groundling.studies.bench.protocol import ADAPTING, BenchFolder
from groundling.studies.bench.real.finished import BEFORE, read_job
from groundling.studies.bench.real.handed import RealFiles
from groundling.studies.bench.real.readings import SetReader
from groundling.studies.bench.real_settings import RealSettings


@dataclass(frozen=True)
class RealArm:
    """One arm of a method with one adaptation seed, or the unadapted encoder."""

    method: BenchMethod | None
    """None: the unadapted encoder."""
    arm: str
    """`METHOD`, `TEXT_CONTROL`, `SHUFFLED` or `BEFORE`."""
    seed: int = 0

    @property
    def name(self) -> str:
        """The job's name."""
        if self.method is None:
            return BEFORE
        if self.arm == TEXT_CONTROL:
            return f"text control {text_key(self.method)}, seed {self.seed}"
        return f"{self.method.name}, {self.arm}, seed {self.seed}"

    @property
    def is_foreign(self) -> bool:
        """Whether it runs the user's own code, which could change what later jobs of its process do."""
        if self.method is None or self.arm == TEXT_CONTROL:
            return False
        return is_outside(self.method)

    @property
    def owner(self) -> str:
        """Name of its method; empty for a text control, which methods share."""
        return "" if self.method is None or self.arm == TEXT_CONTROL else self.method.name


def arms_of(method: BenchMethod, seeds: int) -> list[RealArm]:
    """All arms of a method; one that reads no teacher has nothing to shuffle."""
    arms = (METHOD, TEXT_CONTROL) if method.data == TEXT else (METHOD, TEXT_CONTROL, SHUFFLED)
    return [RealArm(method, arm, seed) for arm in arms for seed in range(seeds)]


def describe_controls(method: BenchMethod) -> dict[str, str]:
    """What each control of a method is, in words."""
    words = {TEXT_CONTROL: "masked LM on the same texts, as many steps"}
    shuffled = ["captions with each other's images"] if method.shuffles_captions else []
    if method.replaces_teacher:
        shuffled.append("the teacher with its text tower's token embeddings permuted")
    return words | ({SHUFFLED: " and ".join(shuffled)} if shuffled else {})


def describe_method(method: BenchMethod) -> dict[str, Any]:
    """A method in `bench.json`, from which commands with other methods judge it too."""
    controls = describe_controls(method)
    return method.description() | {"texts": text_key(method), "controls": controls}


def stage_training(
    settings: RealSettings, stage: Stage, steps: int, seed: int
) -> TrainingArguments:
    """Optimisation of a stage; its own batch is relative to that of the bench in rendered worlds."""
    batch = settings.batch
    if stage.batch:
        batch = max(2, round(stage.batch * batch / ADAPTING.batch))
    return TrainingArguments(
        steps=steps, batch=batch, lr=settings.lr, seed=seed, log_every=50, cpu=settings.cpu
    )


def run_arm(folder: BenchFolder, settings: RealSettings, one: RealArm, key: str) -> dict[str, Any]:
    """The arm's cost and model, of an earlier call or made now and written to its job's file."""
    done = finished_job(folder, one.name, key)
    if done is not None or one.method is None:
        return done or {}
    files = RealFiles(folder.root, settings)
    runs = folder.runs(one.name)
    stages = control_stages(one.method) if one.arm == TEXT_CONTROL else one.method.stages
    cost = Cost()
    for number, (stage, steps) in enumerate(
        zip(stages, one.method.stage_steps(settings.steps), strict=True), 1
    ):
        own = stage_settings(one.method, one.arm, stage, files, runs)
        own["max_length"] = stage.settings.get("max_length", settings.max_length)
        # A sentence encoder would be kept close to itself, which no method here does by itself.
        own.setdefault("retain_weight", 0.0)
        training = stage_training(settings, stage, steps, one.seed)
        out = runs / f"stage-{number}"
        cost.add(ADAPT(make_settings(AdaptConfig, **own), training, out), training)
    cost.stop()
    model = runs / f"stage-{len(stages)}" / "model"
    adapted = read_object(model.parent / "result.json")
    more = _parameters(model) - _parameters(files.place("encoder"))
    return finish_job(
        folder,
        one.name,
        {
            "key": key,
            "name": one.name,
            **{"arm": one.arm, "seed": one.seed},
            **{"method": one.owner, "texts": text_key(one.method)},
            "about": describe_method(one.method) if one.owner else None,
            "cost": cost.as_json() | {"parameters_after": more},
            "heads_from": adapted["heads_from"],
            "model": {"path": str(model.relative_to(folder.root)), "sha256": data_hash(model)},
        },
    )


def _parameters(model: Path) -> int:
    """Number of parameters of an encoder, wherever its folder keeps it."""
    return sum(one.numel() for one in load_text_encoder(str(model)).encoder.parameters())


def model_of(folder: BenchFolder, settings: RealSettings, one: RealArm) -> Path:
    """The model of a finished arm, or the unadapted encoder."""
    if one.method is None:
        return Path(settings.student)
    return folder.root / read_job(folder.job(one.name))["model"]["path"]


def reading_name(one: RealArm, read: SetReader) -> str:
    """Name of the job of an arm's readings on a set."""
    return f"{read.name}: {one.name}"


def run_reading(
    folder: BenchFolder, settings: RealSettings, one: RealArm, read: SetReader, key: str
) -> dict[str, Any]:
    """The arm's readings on a set, of an earlier call or made now and written to the job's file."""
    name = reading_name(one, read)
    done = finished_job(folder, name, key)
    if done is not None:
        return done
    model = model_of(folder, settings, one)
    out = folder.probes(one.name, read.name)
    began = time.perf_counter()
    readings = read.read(model, out, settings.cpu)
    seconds = round(time.perf_counter() - began, 1)
    about = {"key": key, "arm": one.name, "set": read.name, "seconds": seconds}
    return finish_job(folder, name, about | {"readings": readings})
