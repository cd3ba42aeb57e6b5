"""One arm of a method in one world: its stages, what they cost, what they leave, and its readings."""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groundling.command_line.registered_names import parse_arm, teacher_settings
from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.runs.folder import read_json, read_object, write_json
from groundling.runs.hashing import data_hash
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.cost import Cost
from groundling.studies.bench.handed import check_handed
from groundling.studies.bench.method import (
    CAPTIONS,
    OPTION,
    TEXT,
    BenchMethod,
    Stage,
    is_outside,
    resolve_stage_paths,
)
from groundling.studies.bench.plain_models import parameters_of, plain_faults
from groundling.studies.bench.protocol import (
    ADAPTING,
    MAX_LENGTH,
    TUNING_WORLD,
    BenchFolder,
    BenchWorld,
    Protocol,
    key_of,
)
from groundling.studies.bench.readings import (
    CHOICE,
    VISUAL,
    fine_tuned,
    read_encoder,
    read_image_tower,
    read_text_tower,
)
from groundling.studies.bench.results import read_run

METHOD = "method"
TEXT_CONTROL = "text control"
SHUFFLED = "shuffled images"
RANDOM = "random targets"
TOWER = "teacher's text tower"
IMAGE_TOWER = "teacher's images"
TOWERS = {TOWER: read_text_tower, IMAGE_TOWER: read_image_tower}
"""Readings of the teacher, without an encoder."""
CONTROLS = (TEXT_CONTROL, SHUFFLED, RANDOM)
MASKING = (
    *("mask_rate", "mask_scheme", "whole_word", "text_layout", "max_length", "limit", "dropout"),
)
"""Settings of a method that its text control shares."""

Weight = float | str | None
"""A value of the tuned setting; None if the method has none."""


@dataclass(frozen=True)
class ArmRun:
    """One arm of a method with one seed in one world."""

    method: BenchMethod
    arm: str
    """`METHOD` or one of `CONTROLS`."""
    world: BenchWorld
    seed: int
    weight: Weight = None
    """The tuned setting's value, in the tuning world; elsewhere the chosen one is looked up."""

    @property
    def name(self) -> str:
        """The job's name."""
        if self.arm == TEXT_CONTROL:
            return f"{self.world}: text control {text_key(self.method)}, seed {self.seed}"
        about = f"{self.world}: {self.method.name}, {self.arm}"
        if self.weight is not None:
            about += f", {self.method.weight} {self.weight}"
        return f"{about}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """What its result says of which run it is."""
        return {
            "method": "" if self.arm == TEXT_CONTROL else self.method.name,
            "arm": self.arm,
            "texts": text_key(self.method),
            **self.world.as_json(),
            "seed": self.seed,
        }

    @property
    def is_foreign(self) -> bool:
        """Whether it runs the user's own code, which could change what later jobs of its process do."""
        return self.arm != TEXT_CONTROL and is_outside(self.method)


def has_arm(method: BenchMethod, arm: str) -> bool:
    """Whether a method has an arm: one without a teacher has no images to shuffle and no targets to replace."""
    return arm in (METHOD, TEXT_CONTROL) or method.data != TEXT


def control_stages(method: BenchMethod) -> tuple[Stage, ...]:
    """The stages of the text control: masked LM on the same texts, one after the other."""
    stages = []
    for number, stage in enumerate(method.stages):
        shared = {name: value for name, value in stage.settings.items() if name in MASKING}
        student = f"stage-{number}/model" if number else ""
        stages.append(replace(stage, arm="mlm", settings=shared, student=student, images=False))
    return tuple(stages)


def text_key(method: BenchMethod) -> str:
    """Identifies a text control; methods that read the same texts in the same way share one."""
    return key_of(
        [
            [stage.texts, dict(stage.settings), stage.batch, stage.share]
            for stage in control_stages(method)
        ],
        method.steps,
    )[:8]


def run_arm(folder: BenchFolder, protocol: Protocol, one: ArmRun, key: str) -> dict[str, Any]:
    """The arm's readings, costs and hashes, of an earlier call or made now and written to its job's file."""
    done = finished_job(folder, one.name, key)
    if done is not None:
        return done
    trained = train_arm(folder, protocol, one, key)
    place = folder.world(one.world)
    runs = _folder(folder, one, trained["weight"])
    hashes = check_handed(place)
    model = runs / trained["stages"][-1] / "model"
    handed_encoder = place.place("encoder")
    more = parameters_of(model) - parameters_of(handed_encoder)
    result = {
        "key": key,
        **one.as_json(),
        "weight": trained["weight"],
        "readings": read_encoder(model, place.private, folder.probes(one.name, "pairs")),
        "cost": trained["spent"] | {"parameters_after": more},
        "handed": key_of(hashes),
        "model": {"path": str(model.relative_to(folder.root)), "sha256": data_hash(model)},
        "remarks": [f"not plain: {fault}" for fault in plain_faults(model, handed_encoder)],
    }
    return finish_job(folder, one.name, result)


def training_name(one: ArmRun) -> str:
    """Name of the job that trains an arm of foreign code; others are trained by the job that reads them."""
    return f"{one.name}: training"


def train_arm(folder: BenchFolder, protocol: Protocol, one: ArmRun, key: str) -> dict[str, Any]:
    """Train an arm: its weight, stages and costs.

    One of foreign code has a job and a process of its own, so that its model is read where none of its code ran.
    """
    done = finished_job(folder, training_name(one), key) if one.is_foreign else None
    if done is not None:
        return done
    place = folder.world(one.world)
    weight = one.weight
    if weight is None and one.arm != TEXT_CONTROL:
        weight = chosen_weight(folder, one.method)
    runs = _folder(folder, one, weight)
    stages = control_stages(one.method) if one.arm == TEXT_CONTROL else one.method.stages
    base_steps = protocol.scaled(ADAPTING, 0).steps
    steps = one.method.stage_steps(base_steps, one.world.condition.steps)
    cost = Cost()
    for number, (stage, count) in enumerate(zip(stages, steps, strict=True), 1):
        settings = stage_settings(one.method, one.arm, stage, place, runs)
        if number == len(stages):
            settings = _with_weight(settings, one, weight)
        training = stage_training(stage, count, one.seed)
        config = make_settings(AdaptConfig, **settings)
        cost.add(ADAPT(config, training, runs / f"stage-{number}"), training)
    cost.stop()
    result = {
        "key": key,
        "weight": weight,
        "stages": [f"stage-{number + 1}" for number in range(len(stages))],
        "spent": cost.as_json(),
    }
    return finish_job(folder, training_name(one), result) if one.is_foreign else result


def _folder(folder: BenchFolder, one: ArmRun, weight: Weight) -> Path:
    world = str(one.world)
    if one.arm == TEXT_CONTROL:
        return folder.runs(world, "text control", text_key(one.method), f"seed-{one.seed}")
    value = "weight" if weight is None else f"weight-{weight}"
    return folder.runs(world, one.method.name, one.arm, value, f"seed-{one.seed}")


def stage_training(stage: Stage, steps: int, seed: int) -> TrainingArguments:
    """Optimisation of a stage."""
    return replace(ADAPTING, steps=steps, batch=stage.batch or ADAPTING.batch, seed=seed)


class HandedFiles(typing.Protocol):
    """Where what is handed over lies."""

    @property
    def features(self) -> Path:
        """Features of the teacher, which methods share."""
        ...

    def place(self, name: str) -> Path:
        """The path of one of `HANDED`; a hub id stays as it is."""
        ...


def stage_settings(
    method: BenchMethod, arm: str, stage: Stage, place: HandedFiles, runs: Path
) -> dict[str, Any]:
    """Settings of `adapt` for a stage of an arm; the tuned setting is not among them."""
    swaps = _swaps(method, arm)
    settings: dict[str, Any] = {"max_length": MAX_LENGTH}
    settings |= resolve_stage_paths(stage.settings, runs)
    texts = []
    for text in stage.texts:
        name, equals, share = text.partition("=")
        texts.append(f"{place.place(swaps.get(name, name))}{equals}{share}")
    student = str(runs / stage.student) if stage.student else str(place.place("encoder"))
    settings |= {"arm": stage.arm, "text": tuple(texts), "student": student}
    parsed = parse_arm(stage.arm)
    if "teacher" in teacher_settings(parsed):
        settings["teacher"] = str(place.place(swaps.get("teacher", "teacher")))
        reads_captions = any(text.partition("=")[0] == CAPTIONS for text in stage.texts)
        images = reads_captions and method.data == "captions with images"
        if images if stage.images is None else stage.images:
            settings["teacher_images"] = str(place.place(swaps.get("images", "images")))
        reads_features = any(one.needed_teacher() == "teacher" for one in parsed.values())
        if reads_features and not is_outside(method):
            settings["teacher_cache"] = str(place.features)
    return settings


def _with_weight(settings: dict[str, Any], one: ArmRun, weight: Weight) -> dict[str, Any]:
    """The settings of the last stage with the tuned setting."""
    name = one.method.weight
    if weight is None or one.arm == TEXT_CONTROL:
        return settings
    if name.startswith(OPTION):
        option = f"{name.removeprefix(OPTION)}={weight}"
        return settings | {"option": (*settings.get("option", ()), option)}
    return settings | {name: weight}


def _swaps(method: BenchMethod, arm: str) -> dict[str, str]:
    """What a control gets in place of what is handed to the method, by name."""
    swaps: dict[str, str] = {}
    if arm == SHUFFLED:
        if method.shuffles_captions:
            swaps["captions"] = "shuffled captions"
        if method.replaces_teacher:
            swaps["teacher"] = "teacher-redrawn"
    if arm == RANDOM:
        if method.shuffles_captions:
            swaps["images"] = "noise images"
        if method.replaces_teacher:
            swaps["teacher"] = "teacher-untrained"
    return swaps


def describe_controls(method: BenchMethod) -> dict[str, str]:
    """What each control of a method is, in words."""
    words = {
        TEXT_CONTROL: "masked LM on the same texts, as many steps",
    }
    if method.data == TEXT:
        return words
    shuffled = ["captions with each other's images"] if method.shuffles_captions else []
    random = ["images of noise"] if method.shuffles_captions else []
    if method.replaces_teacher:
        shuffled.append("a teacher trained on redrawn attributes")
        random.append("an untrained teacher")
    return words | {SHUFFLED: " and ".join(shuffled), RANDOM: " and ".join(random)}


# -- the weight --------------------------------------------------------------------------------------------------------


def grid_runs(method: BenchMethod) -> list[ArmRun]:
    """The runs of the method's grid in the tuning world, all with adaptation seed 0; none without a grid."""
    return [ArmRun(method, METHOD, TUNING_WORLD, 0, value) for value in method.grid]


def chosen_weight(folder: BenchFolder, method: BenchMethod) -> Weight:
    """The grid's value with the best linear visual readings; ties go to the first."""
    return best_weight(weight_scores(folder, method))


def best_weight(scores: Mapping[Weight, float]) -> Weight:
    """The value with the highest score, the first of several; None without scores."""
    return max(scores, key=lambda value: scores[value]) if scores else None


def weight_scores(folder: BenchFolder, method: BenchMethod) -> dict[Weight, float]:
    """By value of the grid: accuracy of the linear visual readings on dev nouns and cross-validated train nouns.

    The 18 dev nouns alone would leave a standard error of .05; test nouns have no part in it. Raises InputError if the
    setting changes nothing.
    """
    scores: dict[Weight, float] = {}
    readings = []
    for one in grid_runs(method):
        readings.append(read_run(folder.job(one.name))["readings"])
        scores[one.weight] = readings[-1][VISUAL][CHOICE]
    if readings and all(one == readings[0] for one in readings):
        raise InputError(
            f"method {method.name}: all values of {method.weight} gave the same model, so it does not read this "
            "setting; check its spelling, or leave `weight` and `grid` out"
        )
    return scores


# -- other jobs --------------------------------------------------------------------------------------------------------


def run_probes(
    folder: BenchFolder,
    protocol: Protocol,
    one: ArmRun,
    questions: tuple[str, ...],
    seeds: int,
    key: str,
) -> dict[str, Any]:
    """Fine-tuned readings of a finished arm."""
    name = probes_name(one, questions, seeds)
    done = finished_job(folder, name, key)
    if done is not None:
        return done
    arm = read_object(folder.job(one.name))
    place = folder.world(one.world)
    out = folder.probes(one.name, f"seeds-{seeds}")
    model = folder.root / arm["model"]["path"]
    readings = fine_tuned(model, place.private, questions, seeds, protocol, out)
    return finish_job(folder, name, {"key": key, "readings": readings})


def probes_name(one: ArmRun, questions: tuple[str, ...], seeds: int) -> str:
    """Name of the job of an arm's fine-tuned questions."""
    return f"{one.name}: {' '.join(questions)}, {seeds} seeds"


def run_tower(folder: BenchFolder, world: BenchWorld, tower: str, key: str) -> dict[str, Any]:
    """Linear readings of a tower of the teacher, one of `TOWERS`: a ceiling of what it can teach."""
    name = tower_name(world, tower)
    done = finished_job(folder, name, key)
    if done is not None:
        return done
    place = folder.world(world)
    readings = TOWERS[tower](place)
    handed = key_of(read_object(place.record)["handed"])
    result = {"key": key, "method": "", "arm": tower, "seed": 0}
    result |= {**world.as_json(), "readings": readings, "handed": handed}
    return finish_job(folder, name, result)


def tower_name(world: BenchWorld, tower: str = TOWER) -> str:
    """Name of the job of a tower of the teacher."""
    return f"{world}: {tower}"


def finished_job(folder: BenchFolder, name: str, key: str) -> dict[str, Any] | None:
    """The result of a finished job; raises InputError if it was made with other settings or another source."""
    path = folder.job(name)
    if not path.exists():
        return None
    result = read_object(path)
    if result.get("key") != key:
        raise InputError(
            f"{path}: was made by another version of this method, or from other files; use another folder, or give the "
            "method another name"
        )
    return result


def finish_job(folder: BenchFolder, name: str, result: dict[str, Any]) -> dict[str, Any]:
    """Write a job's result, and return it as stored."""
    path = folder.job(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, result)
    stored: dict[str, Any] = read_json(path)
    return stored
