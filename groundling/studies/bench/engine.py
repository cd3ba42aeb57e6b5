"""The experiment engine: setup, arms, readings and entries; `bench`, its curves, `bench-real` and the quickstart are
presets of it.

Every job has a result file in the folder, so an experiment resumes, and several processes or machines share its work. A
method of the user's own trains in a process of its own; its model is read in another one.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Any

from groundling.command_line.names import parse_arm, teacher_settings
from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.commands.merge import COMMAND as MERGE
from groundling.commands.merge import MergeConfig
from groundling.core.errors import InputError
from groundling.runs.folder import data_hash, read_object, write_json
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.report import format_count
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.methods import (
    BATCH,
    CAPTIONS,
    IMAGES,
    OPTION,
    RETENTION,
    RETENTIONS,
    TEXT,
    BenchMethod,
    Stage,
    resolve_stage_paths,
)
from groundling.studies.bench.protocol import REDRAWN, BenchFolder, BenchWorld, Files, key_of
from groundling.studies.bench.readings import CHOICE

BEFORE = "before"
"""The encoder as the user gave it."""
METHOD = "method"
TEXT_CONTROL = "text control"
SHUFFLED = "shuffled images"
RANDOM = "random targets"
TOWER = "teacher's text tower"
IMAGE_TOWER = "teacher's images"
MASKING = (
    *("mask_rate", "mask_scheme", "whole_word", "text_layout", "max_length", "limit", "dropout"),
)
"""Settings of a method that its text control shares."""
SWAPS = {
    SHUFFLED: {"captions": "shuffled captions", "teacher": REDRAWN},
    RANDOM: {"images": "noise images", "teacher": "teacher-untrained"},
}
"""What a control reads in place of what is handed to the method, by name."""
ITEMS = ("groups", "items", "cosines", "ratings")
"""What a reading has of each item."""
SHOWN = 100
"""Most missing jobs that a plan names."""

Weight = float | str | None
"""A value of the tuned setting; None if the method has none, or it is still to be chosen."""
Methods = Mapping[str, Mapping[str, Any]]
"""Descriptions of methods by name."""
Entry = Mapping[str, Any]
"""One arm of a method in one place with one seed: its `readings` by name, its `cost`, and which run it is."""


@dataclass(frozen=True)
class Arm:
    """One arm of a method with one seed."""

    method: BenchMethod | None
    """None: an encoder or a teacher that is only read."""
    arm: str
    """`METHOD`, a control, or what is read."""
    seed: int = 0
    world: BenchWorld | None = None
    """None: the user's own encoder and texts."""
    weight: Weight = None
    """The tuned setting's value, if it is not the chosen one."""

    @property
    def own_method(self) -> BenchMethod | None:
        """The method that it runs; None for a text control, which methods share."""
        return None if self.arm == TEXT_CONTROL else self.method

    @property
    def tuned_method(self) -> BenchMethod | None:
        """The method whose weight it has: its own, or for a text control one whose weight controls have too."""
        return self.method if self.method and self.method.tunes_control else self.own_method

    @property
    def name(self) -> str:
        """The job's name."""
        place = "" if self.world is None else f"{self.world}: "
        if self.method is None:
            return f"{place}{self.arm}"
        tuned = "" if self.weight is None else f", {self.method.weight} {self.weight}"
        if self.own_method is None:
            return f"{place}text control {text_key(self.method)}{tuned}, seed {self.seed}"
        return f"{place}{self.method.name}, {self.arm}{tuned}, seed {self.seed}"

    def as_json(self) -> dict[str, Any]:
        """Which run an entry is."""
        return {
            "method": self.own_method.name if self.own_method else "",
            "arm": self.arm,
            **({} if self.method is None else {"texts": text_key(self.method)}),
            **({} if self.world is None else self.world.as_json()),
            "seed": self.seed,
        }


@dataclass(frozen=True)
class Reading:
    """Something that is read of an arm's model."""

    name: str
    read: Callable[[Path, Path], Mapping[str, Mapping[str, Any]]]
    """From the model and a folder for its own runs: results by name."""
    folder: str = ""
    """Name of its folder; empty: as the reading's."""
    key: str = ""
    """Hash of what it reads, if the arm's does not contain it."""


def control_stages(method: BenchMethod) -> tuple[Stage, ...]:
    """The stages of the text control: masked LM, or the method's own, on the same texts, one after the other."""
    stages = []
    for number, stage in enumerate(method.stages):
        shared = {name: value for name, value in stage.settings.items() if name in MASKING}
        student = f"stage-{number}/model" if number else ""
        stages.append(
            replace(stage, arm=method.control, settings=shared, student=student, images=False)
        )
    return tuple(stages)


def text_key(method: BenchMethod) -> str:
    """Identifies a text control; methods that read the same texts in the same way share one, if none is merged."""
    return key_of(
        [
            [stage.texts, dict(stage.settings), stage.batch, stage.share]
            for stage in control_stages(method)
        ],
        method.steps,
        *([] if method.control == "mlm" else [method.control]),
        *([method.name] if method.is_merged else []),
        # Chosen among other values, it is another control.
        *([method.grid] if method.weight == RETENTION and method.grid != RETENTIONS else []),
    )[:8]


def best_weight(name: str, found: Mapping[Weight, Mapping[str, Any]]) -> Weight:
    """The value with the highest score, the first of several; None without values.

    A score is the mean of those readings by which weights are chosen. In worlds this is the accuracy of the linear
    visual readings on dev nouns and cross-validated train nouns, as the 18 dev nouns alone would leave a standard error
    of 0.05; elsewhere that of one half of the nouns of visual facts, and only the other half is reported. Raises
    InputError if the tuned setting changes nothing.
    """
    readings = list(found.values())
    if len(readings) > 1 and all(one == readings[0] for one in readings):
        raise InputError(
            f"{name}: all values of the tuned setting gave the same model, so the method does not read it; check its "
            "spelling, or leave `weight` and `grid` out"
        )
    return max(found, key=lambda value: choice_of(found[value])) if found else None


def choice_of(readings: Mapping[str, Any]) -> float:
    """The score by which weights are chosen."""
    return mean(one[CHOICE] for one in readings.values() if CHOICE in one)


def weights_of(grids: Sequence[Entry], methods: Methods) -> dict[str, dict[str, Any]]:
    """By arm and method whose grid is finished: the score of each value, and the chosen one."""
    weights: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, about in methods.items():
        for arm in (METHOD, TEXT_CONTROL, SHUFFLED):
            own = entries_of([*grids], name, arm)
            found = {one["weight"]: one["readings"] for one in own}
            if about["grid"] and all(value in found for value in about["grid"]):
                ordered = {value: found[value] for value in about["grid"]}
                scores = [[value, choice_of(one)] for value, one in ordered.items()]
                weights[arm][name] = {"scores": scores, "chosen": best_weight(name, ordered)}
    return weights


# -- the experiment ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Experiment:
    """Methods, their controls, and what is read of each; a preset says what is handed over, trained and read."""

    folder: BenchFolder
    methods: Sequence[BenchMethod]

    # What a preset says.

    @property
    def training(self) -> TrainingArguments:
        """Optimisation of every arm, over all of its stages together."""
        raise NotImplementedError

    @property
    def fixed(self) -> object:
        """What identifies results beside the method, as JSON."""
        raise NotImplementedError

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Settings of `adapt` in every stage, unless the method has others."""
        raise NotImplementedError

    def arms(self) -> list[Arm]:
        """All arms whose results are reported; text controls may repeat."""
        raise NotImplementedError

    def files(self, arm: Arm) -> Files:
        """What is handed over to an arm."""
        raise NotImplementedError

    def readings(self, arm: Arm) -> list[Reading]:
        """What is read of an arm, the first before the others."""
        raise NotImplementedError

    def setup(self, arm: Arm) -> list[Job]:
        """Jobs that make what an arm reads."""
        return []

    def grid(self, arm: Arm) -> list[Arm]:
        """The arms by which the weight of an arm's method is chosen, by default none."""
        return []

    def control(self, arm: Arm) -> Arm:
        """The text control that an arm is compared with."""
        return replace(arm, arm=TEXT_CONTROL, weight=None)

    def choose(self, arm: Arm) -> Weight:
        """The grid's value with the best readings, the first of several; None: the default of `adapt`."""
        found: dict[Weight, dict[str, Any]] = {}
        for one in self.grid(arm):
            names = [f"{one.name}: {reading.name}" for reading in self.readings(one)]
            jobs = [read_object(self.folder.job(name)) for name in names]
            found[one.weight] = {
                name: each for job in jobs for name, each in job["readings"].items()
            }
        return best_weight(arm.name, found)

    def encoder(self, arm: Arm) -> Path:
        """The encoder that an arm starts from."""
        return self.files(arm).places["encoder"]

    def stage_folder(self, arm: Arm, weight: Weight, number: int) -> Path:
        """Run folder of a stage, counted from 1."""
        parts = [] if arm.world is None else [str(arm.world)]
        if arm.own_method is not None:
            value = "weight" if weight is None else f"weight-{weight}"
            parts += [arm.own_method.name, arm.arm, value]
        elif arm.method is not None:
            parts += [arm.arm, text_key(arm.method)]
            parts += [] if weight is None else [f"weight-{weight}"]
        return self.folder.runs(*parts, f"seed-{arm.seed}", f"stage-{number}")

    def reading_folder(self, arm: Arm, reading: Reading) -> Path:
        """Folder of a reading's own runs."""
        return self.folder.probes(arm.name, reading.folder or reading.name)

    # Jobs.

    def key(self, arm: Arm) -> str:
        """Hash of everything that an arm's result depends on."""
        # The name of a text control contains the hash of its texts.
        about = arm.own_method.description() if arm.own_method else arm.arm
        return key_of(self.fixed, about, arm.name)

    def jobs(self, arms: Sequence[Arm] | None = None) -> list[Job]:
        """All jobs of these arms, by default of all, done or not, in starting order."""
        jobs: dict[str, Job] = {}
        for arm in self.arms() if arms is None else arms:
            grid = self.grid(arm) if arm.tuned_method and arm.weight is None else []
            for one in (*grid, arm):
                after = tuple(
                    f"{each.name}: {reading.name}"
                    for each in grid
                    for reading in self.readings(each)
                )
                jobs |= self._jobs_of(one, after if one is arm else ())
        # Random targets have no part in the verdict, so they can wait.
        return sorted(jobs.values(), key=lambda job: RANDOM in job.name)

    def _jobs_of(self, arm: Arm, after: tuple[str, ...]) -> dict[str, Job]:
        jobs = self.setup(arm)
        after = (*(job.name for job in jobs), *after)
        key = self.key(arm)
        if arm.method is not None:
            # The user's own code could change what later jobs of its process do.
            is_foreign = arm.own_method is not None and arm.own_method.is_foreign
            jobs.append(self.job(arm.name, key, partial(self.train, arm), after, is_foreign))
            after = (arm.name,)
        for number, reading in enumerate(self.readings(arm)):
            name = f"{arm.name}: {reading.name}"
            call = partial(self.read, arm, reading)
            jobs.append(self.job(name, key_of(key, reading.key), call, after))
            after = after if number else (*after, name)
        return {job.name: job for job in jobs}

    def job(
        self,
        name: str,
        key: str,
        call: Callable[[], dict[str, Any] | None],
        after: tuple[str, ...] = (),
        isolated: bool = False,
    ) -> Job:
        """A job whose result is in the folder; `key`: hash of everything that it depends on."""
        return Job(name, self.run_once, (name, key, call), after, isolated)

    def run_once(
        self, name: str, key: str, call: Callable[[], dict[str, Any] | None]
    ) -> dict[str, Any]:
        """A job's result as stored, which `call` makes if there is none."""
        done = self.finished(name, key)
        if done is not None:
            return done
        path = self.folder.job(name)
        result = {"key": key, **(call() or {})}
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, result)
        return read_object(path)

    def missing(self, arms: Sequence[Arm] | None = None) -> list[Job]:
        """Jobs that are not done; what they wait for is left out if it is done.

        Raises InputError for a result of another version of the method.
        """
        jobs = self.jobs(arms)
        done = self._done(jobs)
        return [
            replace(job, after=tuple(name for name in job.after if name not in done))
            for job in jobs
            if job.name not in done
        ]

    def _done(self, jobs: Sequence[Job]) -> set[str]:
        return {job.name for job in jobs if self.finished(*job.arguments[:2])}

    def run(self, processes: int, arms: Sequence[Arm] | None = None) -> None:
        """Run everything that is missing."""
        run_jobs(self.missing(arms), processes, print, self.folder.jobs)

    def finished(self, name: str, key: str) -> dict[str, Any] | None:
        """The result of a finished job; raises InputError if it was made with other settings or another source."""
        path = self.folder.job(name)
        if not path.exists():
            return None
        result = read_object(path)
        if result.get("key") != key:
            raise InputError(
                f"{path}: was made by another version of this method, or from other files; use another folder, or give "
                "the method another name"
            )
        return result

    def every_arm(self, arms: Sequence[str], seeds: int, world: BenchWorld | None) -> list[Arm]:
        """These arms of every method that has them, with every adaptation seed; random targets with one."""
        return [
            Arm(method, arm, seed, world)
            for method in self.methods
            for arm in arms
            if arm in (METHOD, TEXT_CONTROL) or method.data != TEXT
            for seed in range(1 if arm == RANDOM else seeds)
        ]

    def train(self, arm: Arm) -> dict[str, Any]:
        """Train an arm; the result has its weight, its costs and its model."""
        assert arm.method is not None
        method = arm.method
        is_chosen = arm.tuned_method is not None and arm.weight is None
        weight = self.choose(arm) if is_chosen else arm.weight
        stages = method.stages if arm.own_method else control_stages(method)
        factor = 1.0 if arm.world is None else arm.world.condition.steps
        steps = method.stage_steps(self.training.steps, factor)
        began = time.process_time()
        trained = []
        for number, (stage, count) in enumerate(zip(stages, steps, strict=True), 1):
            settings = self.stage_settings(arm, stage, weight)
            if number == len(stages):
                settings = _with_weight(settings, method, weight)
            batch = max(2, round(stage.batch * self.training.batch / BATCH))
            own = batch if stage.batch else self.training.batch
            training = replace(self.training, steps=count, batch=own, seed=arm.seed)
            out = self.stage_folder(arm, weight, number)
            found = ADAPT(make_settings(AdaptConfig, **settings), training, out)
            trained.append({**found, "samples": found["steps"] * own})
        model = self.stage_folder(arm, weight, len(stages)) / "model"
        if method.is_merged:
            model = self._merge(arm, model, weight)
        return {
            "name": arm.name,
            "run": arm.as_json(),
            "about": arm.own_method and arm.own_method.description(),
            "control": self.control(arm).name,
            "weight": weight,
            "cost": cost_of(trained, began),
            "model": {"path": str(model.relative_to(self.folder.root)), "sha256": data_hash(model)},
        }

    def _merge(self, arm: Arm, model: Path, weight: Weight) -> Path:
        """Merge an arm's model with the handed-over encoder; returns where it is."""
        share = {} if weight is None else {"share": (weight,)}
        merged = make_settings(
            MergeConfig, model=str(model), origin=str(self.encoder(arm)), **share
        )
        out = model.parent.with_name("merged")
        MERGE(merged, out)
        return out / "model"

    def stage_settings(self, arm: Arm, stage: Stage, weight: Weight) -> dict[str, Any]:
        """Settings of `adapt` for a stage of an arm; the tuned setting is not among them."""
        method, files = arm.method, self.files(arm)
        assert method is not None
        replaced = {"teacher": method.replaces_teacher}
        swaps = {
            name: other
            for name, other in SWAPS.get(arm.arm, {}).items()
            if replaced.get(name, method.data == IMAGES)
        }

        def place(name: str) -> str:
            return str(files.places[swaps.get(name, name)])

        runs = self.stage_folder(arm, weight, 1).parent
        settings = dict(self.defaults) | resolve_stage_paths(stage.settings, runs)
        texts = [text.partition("=") for text in stage.texts]
        student = str(runs / stage.student) if stage.student else place("encoder")
        settings |= {"arm": stage.arm, "student": student}
        settings["text"] = tuple(f"{place(name)}{equals}{share}" for name, equals, share in texts)
        parsed = parse_arm(stage.arm)
        if "teacher" in teacher_settings(parsed):
            settings["teacher"] = place("teacher")
            reads_captions = any(name == CAPTIONS for name, *_ in texts)
            images = reads_captions and method.data == IMAGES
            wanted = images if stage.images is None else stage.images
            if wanted and "images" in files.places:
                settings["teacher_images"] = place("images")
        reads_features = any(one.needed_teacher() == "teacher" for one in parsed.values())
        if (
            reads_features or method.weight == RETENTION
        ):  # the encoder's own vectors, to be retained
            shared = None if method.is_foreign else files.features
            settings |= {} if shared is None else {"teacher_cache": str(shared)}
        return settings

    def read(self, arm: Arm, reading: Reading) -> dict[str, Any]:
        """Read an arm's model."""
        model = self.encoder(arm)
        if arm.method is not None:
            model = self.folder.root / read_object(self.folder.job(arm.name))["model"]["path"]
        return {
            "name": arm.name,
            "run": arm.as_json(),
            "reading": reading.name,
            "readings": reading.read(model, self.reading_folder(arm, reading)),
        }

    # Results.

    def entries(self) -> list[dict[str, Any]]:
        """Every arm of the folder that is read, also of earlier commands, with all of its readings by name.

        This command's come first. Raises InputError for a damaged file.
        """
        jobs = [read_object(path) for path in sorted(self.folder.jobs.glob("*.json"))]
        trained = {job["name"]: job for job in jobs if "cost" in job}
        read: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for job in jobs:
            if "readings" in job:
                read[job["name"]].append(job)
        arms = self.arms()
        names = dict.fromkeys([arm.name for arm in arms] + list(read))
        order = [one.name for one in self.readings(arms[0])]
        for own in read.values():
            own.sort(key=lambda job: (*order, job["reading"]).index(job["reading"]))
        return [_entry(name, trained.get(name, {}), read[name]) for name in names if read[name]]

    def notes(self, methods: Mapping[str, Entry]) -> list[str]:
        """Notes on missing jobs, and on methods with steps of their own."""
        missing = format_count(len(self.missing()), "job")
        notes = [f"not done yet: {missing} of this bench"] if self.missing() else []
        return notes + [
            f"{name} asks for {about['steps']} steps; its controls got as many, other methods did not"
            for name, about in methods.items()
            if about["steps"]
        ]

    def print_plan(self) -> dict[str, int]:
        """Print the methods, their controls, and the first missing jobs; returns the numbers of jobs."""
        for method in self.methods:
            grid = f"; {method.weight} of {', '.join(map(str, method.grid))}"
            arms = " then ".join(f"{one.arm} on {' and '.join(one.texts)}" for one in method.stages)
            is_tuned = bool(self.grid(Arm(method, METHOD)))
            print(f"{method.name} ({method.data}): {arms}{grid if is_tuned else ''}")
        jobs = self.jobs()
        done = self._done(jobs)
        missing = [job.name for job in jobs if job.name not in done]
        for name in missing[:SHOWN]:
            print(f"missing  {name}")
        if len(missing) > SHOWN:
            print(f"missing  {len(missing) - SHOWN:,} others")
        print(f"{len(done)} of {format_count(len(jobs), 'job')} are done")
        return {"jobs": len(jobs), "missing": len(missing)}


def _with_weight(settings: dict[str, Any], method: BenchMethod, weight: Weight) -> dict[str, Any]:
    """The settings of the last stage with the tuned setting."""
    if weight is None or method.is_merged:
        return settings
    if method.weight.startswith(OPTION):
        option = f"{method.weight.removeprefix(OPTION)}={weight}"
        return settings | {"option": (*settings.get("option", ()), option)}
    return settings | {method.weight: weight}


def _entry(name: str, trained: Entry, read: Sequence[Entry]) -> dict[str, Any]:
    """What an arm's jobs say; of two results of one name the first."""
    kept = {
        part: trained[part] for part in ("about", "control", "weight", "cost", "model") if trained
    }
    entry: dict[str, Any] = {"name": name, **read[0]["run"], **kept, "readings": {}}
    for job in read:
        entry["readings"] = {**entry["readings"], **job["readings"], **entry["readings"]}
    return entry


def summary_of(entry: Entry) -> dict[str, Any]:
    """An entry for `bench.json`, without what the files of its jobs keep: readings of single items."""
    kept = {name: one for name, one in entry.items() if name not in ("name", "about", "control")}
    kept["readings"] = {
        name: {part: value for part, value in one.items() if part not in ITEMS}
        for name, one in entry["readings"].items()
    }
    return kept


def methods_of(entries: Sequence[Entry], first: Sequence[BenchMethod]) -> dict[str, Any]:
    """Descriptions of the methods that entries have, by name, those of this command first.

    Raises InputError if a folder has two versions of a method.
    """
    found: dict[str, Any] = {}
    for one in entries:
        if one.get("about") and found.setdefault(one["method"], one["about"]) != one["about"]:
            raise InputError(f"{one['name']}: of another version of the method; use another folder")
    order = dict.fromkeys([method.name for method in first] + list(found))
    return {name: found[name] for name in order if name in found}


def entries_of(entries: Sequence[Entry], method: str, arm: str) -> list[Entry]:
    """A method's entries of one arm; the text control of its texts."""
    if arm != TEXT_CONTROL:
        return [one for one in entries if (one["method"], one["arm"]) == (method, arm)]
    keys = {one["texts"] for one in entries_of(entries, method, METHOD)}
    return [one for one in entries if one["arm"] == TEXT_CONTROL and one["texts"] in keys]


def cost_of(stages: Sequence[Mapping[str, Any]], began: float) -> dict[str, Any]:
    """What an arm's stages cost since `began`; `core_seconds` does not count what an interrupted run did before."""
    return {
        "steps": sum(one["steps"] for one in stages),
        "samples": sum(one["samples"] for one in stages),
        "epochs": sum(one["epochs"] for one in stages),
        "seconds": round(sum(one["seconds"] for one in stages), 1),
        "core_seconds": round(time.process_time() - began, 1),
        "extra_parameters": max(one["training_parameters"] - one["parameters"] for one in stages),
    }
