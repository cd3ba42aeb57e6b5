"""The jobs of a bench: what runs, what is done, and what the finished jobs say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import groundling
from groundling.core.errors import InputError
from groundling.runs.folder import read_object
from groundling.runs.jobs import Job
from groundling.runs.report import format_count
from groundling.studies.bench.arms import (
    CONTROLS,
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    TOWER,
    ArmRun,
    best_weight,
    describe_controls,
    finished_job,
    grid_runs,
    has_arm,
    probes_name,
    run_arm,
    run_probes,
    run_tower,
    text_key,
    tower_name,
    train_arm,
    training_name,
    weight_scores,
)
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.handed import make_shared
from groundling.studies.bench.method import BenchMethod, built_in_methods
from groundling.studies.bench.protocol import (
    MODELS,
    ONE_SEED,
    TUNING_WORLD,
    BenchFolder,
    BenchWorld,
    Protocol,
    key_of,
)
from groundling.studies.bench.results import (
    FORMAT,
    NOT_DONE,
    VERSION,
    Bench,
    read_run,
)


@dataclass(frozen=True)
class BenchPlan:
    """The jobs of a bench."""

    config: BenchConfig
    methods: Sequence[BenchMethod]
    folder: BenchFolder
    _described: dict[str, dict[str, Any]] = field(default_factory=dict)

    @property
    def protocol(self) -> Protocol:
        """The fixed settings."""
        return Protocol(self.config.scale)

    def left_out(self) -> dict[str, str]:
        """Methods of the package that cannot run here, with the reason; only if no method was asked for."""
        if self.config.method:
            return {}
        reasons = {name: one.why_not() for name, one in built_in_methods().items()}
        return {name: reason for name, reason in reasons.items() if reason}

    def describe(self, method: BenchMethod) -> dict[str, Any]:
        """A method's description with the hash of its source."""
        if method.name not in self._described:
            self._described[method.name] = method.description()
        return self._described[method.name]

    def jobs(self) -> list[Job]:
        """All jobs, done or not, in starting order."""
        jobs: dict[str, Job] = {}
        grids = [one for method in self.methods for one in grid_runs(method)]
        if grids:
            jobs |= {job.name: job for job in self._shared(TUNING_WORLD)}
            ready = (f"{TUNING_WORLD}: hash",)
            jobs |= {job.name: job for one in grids for job in self._arm_jobs(one, ready)}
        for world in self.all_worlds:
            jobs |= {job.name: job for job in (*self._shared(world), *self._world_arms(world))}
        # Random targets have no part in the verdict, so they can wait.
        return sorted(jobs.values(), key=lambda job: RANDOM in job.name)

    @property
    def worlds(self) -> list[BenchWorld]:
        """The worlds whose results are reported, family by family."""
        return [
            BenchWorld(name, seed) for name in self.config.families for seed in self.config.worlds
        ]

    @property
    def all_worlds(self) -> list[BenchWorld]:
        """The worlds in which arms run."""
        return self.worlds

    def missing(self) -> list[Job]:
        """Jobs that are not done; what they wait for is left out if it is done."""
        jobs = self.jobs()
        done = {job.name for job in jobs if self.is_done(job)}
        return [
            replace(job, after=tuple(name for name in job.after if name not in done))
            for job in jobs
            if job.name not in done
        ]

    def is_done(self, job: Job) -> bool:
        """Whether a job has a result; raises InputError if it was made by another version of the method."""
        key: str = job.arguments[-1]
        if finished_job(self.folder, job.name, key) is not None:
            return True
        # An arm that was read was trained before.
        return (
            job.call is train_arm
            and finished_job(self.folder, job.arguments[2].name, key) is not None
        )

    def _shared(self, world: BenchWorld) -> list[Job]:
        """Jobs that every method of a world shares; in the tuning world, those that the grids need."""
        models = ("encoder", "teacher") if world == TUNING_WORLD else MODELS
        render = f"{world}: render"
        jobs = [self._shared_job(world, "render")]
        jobs += [self._shared_job(world, name, render) for name in models]
        jobs.append(self._shared_job(world, "hash", *(job.name for job in jobs)))
        return [*jobs, *self._tower_jobs(world)]

    def _shared_job(self, world: BenchWorld, kind: str, *after: str) -> Job:
        name = f"{world}: {kind}"
        key = self._world_key(world)
        return Job(name, make_shared, (self.folder, self.protocol, world, kind, name, key), after)

    def _world_key(self, world: BenchWorld) -> str:
        return key_of(self.protocol.as_json(), str(world))

    def towers(self, world: BenchWorld) -> tuple[str, ...]:
        """The towers of a world's teacher that are read."""
        return () if world == TUNING_WORLD else (TOWER,)

    def _tower_jobs(self, world: BenchWorld) -> list[Job]:
        key, ready = self._world_key(world), (f"{world}: hash",)
        return [
            Job(tower_name(world, tower), run_tower, (self.folder, world, tower, key), ready)
            for tower in self.towers(world)
        ]

    def arms(self, world: BenchWorld) -> list[ArmRun]:
        """All arms of a world whose results are reported; text controls may repeat."""
        return [
            ArmRun(method, arm, world, seed)
            for method in self.methods
            for arm in (METHOD, *CONTROLS)
            if has_arm(method, arm)
            for seed in range(1 if arm == RANDOM else self.config.adapt_seeds)
        ]

    def controls(self, method: BenchMethod) -> dict[str, str]:
        """The controls of a method that run, in words."""
        return describe_controls(method)

    def _world_arms(self, world: BenchWorld) -> list[Job]:
        """Jobs of a world's arms, then the probes."""
        jobs = []
        probes = []
        for one in self.arms(world):
            after = tuple(run.name for run in grid_runs(one.method))
            if one.arm == TEXT_CONTROL:
                after = ()
            jobs += self._arm_jobs(one, (f"{one.world.shared}: hash", *after))
            if self.questions(one):
                probes.append(self._probe_job(one))
        return [*jobs, *probes]

    def questions(self, one: ArmRun) -> tuple[str, ...]:
        """The questions on which an arm is fine-tuned: none for random targets, no price for shuffled images."""
        priced = one.arm in (METHOD, TEXT_CONTROL)
        asked = self.config.probes if priced or one.arm == SHUFFLED else ()
        return tuple(name for name in asked if priced or name not in ONE_SEED)

    def _key(self, one: ArmRun) -> str:
        about = text_key(one.method) if one.arm == TEXT_CONTROL else self.describe(one.method)
        return key_of(self.protocol.as_json(), about, one.arm, str(one.world), one.seed)

    def _arm_jobs(self, one: ArmRun, after: tuple[str, ...]) -> list[Job]:
        """The job of an arm, after one that trains it if it runs foreign code."""
        arguments = (self.folder, self.protocol, one, self._key(one))
        if not one.is_foreign:
            return [Job(one.name, run_arm, arguments, after)]
        training = Job(training_name(one), train_arm, arguments, after, isolated=True)
        return [training, Job(one.name, run_arm, arguments, (training.name,))]

    def _probe_job(self, one: ArmRun) -> Job:
        questions, seeds = self.questions(one), self.config.probe_seeds
        name = probes_name(one, questions, seeds)
        arguments = (self.folder, self.protocol, one, questions, seeds, self._key(one))
        return Job(name, run_probes, arguments, (one.name,))

    def print_plan(self) -> None:
        """Print the methods, their controls, and the jobs that are missing."""
        for method in self.methods:
            grid = f"; {method.weight} of {', '.join(map(str, method.grid))}" if method.grid else ""
            arms = " then ".join(f"{one.arm} on {' and '.join(one.texts)}" for one in method.stages)
            print(f"{method.name} ({method.data}): {arms}{grid}")
            for name, words in self.controls(method).items():
                print(f"    {name}: {words}")
        jobs = self.jobs()
        missing = {job.name for job in self.missing()}
        for job in jobs:
            print(f"{'missing' if job.name in missing else 'done   '}  {job.name}")
        print(f"{len(jobs) - len(missing)} of {format_count(len(jobs), 'job')} are done")

    # -- results --

    def collect(self) -> Bench:
        """Everything that the folder's finished runs of these methods and worlds say, as `bench.json`."""
        found: Bench = {
            "format": FORMAT,
            "version": VERSION,
            "groundling": groundling.__version__,
            "protocol": self.protocol.as_json(),
            "methods": {one.name: self.describe(one) for one in self.methods},
            "worlds": {str(one): self._world(one) for one in self.worlds if self._is_handed(one)},
            "weights": self._weights(),
            "runs": [],
            "notes": self._notes(),
        }
        for world in self.all_worlds:
            found["runs"] += self._entries(world)
        if not found["runs"]:
            raise InputError(f"{self.folder.root}: nothing is finished yet")
        return found

    def _is_handed(self, world: BenchWorld) -> bool:
        """Whether everything that methods share in a world exists."""
        return self.folder.job(f"{world.shared}: hash").exists()

    def _world(self, world: BenchWorld) -> dict[str, Any]:
        retrieval = read_object(self.folder.job(f"{world}: teacher")).get("retrieval")
        return read_object(self.folder.world(world).record) | {"retrieval": retrieval}

    def _weights(self) -> dict[str, Any]:
        """By method: the grid's scores in the tuning world and the chosen value."""
        weights: dict[str, Any] = {}
        for method in self.methods:
            grid = [self.folder.job(one.name).exists() for one in grid_runs(method)]
            if grid and all(grid):
                scores = weight_scores(self.folder, method)
                pairs = [list(pair) for pair in scores.items()]
                weights[method.name] = {
                    "scores": pairs,
                    "chosen": best_weight(scores),
                }
        return weights

    def _entries(self, world: BenchWorld) -> list[dict[str, Any]]:
        """The entries of a world's finished arms, each once, with their fine-tuned readings, and of its teacher."""
        if not self._is_handed(world):
            return []
        entries: dict[str, dict[str, Any]] = {}
        for one in self.arms(world):
            path = self.folder.job(one.name)
            if one.name in entries or not path.exists():
                continue
            entries[one.name] = entry = read_run(path)
            if one.arm == METHOD:
                entry["remarks"] = list(dict.fromkeys([*entry["remarks"], *self._remarks(one)]))
            questions = self.questions(one)
            probes = self.folder.job(probes_name(one, questions, self.config.probe_seeds))
            if questions and probes.exists():
                entry["readings"] |= read_object(probes)["readings"]
        for name in (tower_name(world, tower) for tower in self.towers(world)):
            path = self.folder.job(name)
            if path.exists():
                entries[name] = read_run(path)
        for entry in entries.values():
            del entry["key"]
        return list(entries.values())

    def _remarks(self, one: ArmRun) -> list[str]:
        """Remarks on the runs that chose the weight of an arm."""
        paths = [self.folder.job(run.name) for run in grid_runs(one.method)]
        return [note for path in paths if path.exists() for note in read_run(path)["remarks"]]

    def _notes(self) -> list[str]:
        notes = []
        missing = len(self.missing())
        if missing:
            notes.append(f"{NOT_DONE}{format_count(missing, 'job')} of this bench")
        for method in self.methods:
            if method.steps:
                notes.append(
                    f"{method.name} asks for {method.steps} steps; its controls got as many, other methods did not"
                )
            if not method.grid:
                notes.append(f"{method.name} has no tuned setting; others chose among three")
        return notes
