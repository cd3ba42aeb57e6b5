"""The jobs of a bench on a real encoder: what is done, what is missing, and the readings of finished arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from statistics import mean
from typing import Any

from groundling.core.errors import InputError
from groundling.runs.jobs import Job
from groundling.runs.report import format_count, format_table
from groundling.studies.bench.arms import TEXT_CONTROL, text_key
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.method import BenchMethod
from groundling.studies.bench.protocol import BenchFolder, key_of
from groundling.studies.bench.real.arms import (
    RealArm,
    arms_of,
    describe_controls,
    reading_name,
    run_arm,
    run_reading,
)
from groundling.studies.bench.real.finished import BEFORE, collect, finished_jobs, read_job
from groundling.studies.bench.real.handed import TextCounts
from groundling.studies.bench.real.readings import GAINS, SetReader
from groundling.studies.bench.real_settings import RealSettings

BEFORE_ARM = RealArm(None, BEFORE)
"""The unadapted encoder."""


@dataclass(frozen=True)
class RealPlan:
    """The jobs of a bench on a real encoder."""

    config: BenchConfig
    methods: Sequence[BenchMethod]
    sets: Sequence[SetReader]
    folder: BenchFolder

    @property
    def settings(self) -> RealSettings:
        """Settings of the real encoder."""
        return self.config.real_encoder

    def arms(self) -> list[RealArm]:
        """Every arm once: text controls of equal texts are shared."""
        every = [one for method in self.methods for one in arms_of(method, self.config.adapt_seeds)]
        return list({one.name: one for one in every}.values())

    def jobs(self, first: bool = False) -> list[Job]:
        """All jobs, done or not, or the `first` ones: the unadapted encoder is read before anything is trained."""
        before = [self._reading(BEFORE_ARM, one, ()) for one in self.sets]
        if first:
            return before
        arms = [
            Job(one.name, run_arm, self._arguments(one), isolated=one.is_foreign)
            for one in self.arms()
        ]
        readings = [
            self._reading(one, read, (one.name,)) for one in self.arms() for read in self.sets
        ]
        return [*before, *arms, *readings]

    def _arguments(self, one: RealArm) -> tuple[Any, ...]:
        return (self.folder, self.settings, one, self._key(one))

    def _key(self, one: RealArm) -> str:
        about: object = one.name
        if one.method is not None:
            about = text_key(one.method) if one.arm == TEXT_CONTROL else one.method.description()
        return key_of(self.settings.identity(), about, one.arm, one.seed)

    def _reading(self, one: RealArm, read: SetReader, after: tuple[str, ...]) -> Job:
        key = key_of(self._key(one), read.key)
        arguments = (self.folder, self.settings, one, read, key)
        return Job(reading_name(one, read), run_reading, arguments, after)

    def missing(self, first: bool = False) -> list[Job]:
        """Jobs that are not done; raises InputError for one that another version of a method made."""
        jobs = self.jobs(first)
        done = {job.name for job in jobs if self._is_done(job)}
        return [
            Job(
                job.name,
                job.call,
                job.arguments,
                tuple(name for name in job.after if name not in done),
            )
            for job in jobs
            if job.name not in done
        ]

    def _is_done(self, job: Job) -> bool:
        path = self.folder.job(job.name)
        if not path.exists():
            return False
        if read_job(path)["key"] != job.arguments[-1]:
            raise InputError(
                f"{path}: was made by another version of this method; use another folder, or give the method another "
                "name"
            )
        return True

    def check_distinct_sets(self) -> None:
        """Raises InputError if two files hold one set, which the unadapted encoder's readings show."""
        names: set[str] = set()
        for read in self.sets:
            for one in read_job(self.folder.job(reading_name(BEFORE_ARM, read)))["readings"]:
                if one["reading"] in names:
                    raise InputError(
                        f"{read.source}: another file holds {one['reading']} too; leave one out"
                    )
                names.add(one["reading"])

    def collect(self) -> list[dict[str, Any]]:
        """Every finished arm of the folder, also of earlier commands, with all of its readings by name."""
        return collect(self.folder, [one.name for one in self.sets])

    def print_plan(self, counts: TextCounts, notes: Sequence[str]) -> None:
        """Print the methods with their controls, what they read, the sets, and the jobs that are missing."""
        for method in self.methods:
            arms = " then ".join(f"{one.arm} on {' and '.join(one.texts)}" for one in method.stages)
            print(f"{method.name} ({method.data}): {arms}")
            for name, words in describe_controls(method).items():
                print(f"    {name}: {words}")
        for line in self._about(counts):
            print(line)
        missing = self.missing()
        names = {job.name for job in missing}
        rows = []
        for one in (BEFORE_ARM, *self.arms()):
            read = sum(reading_name(one, each) not in names for each in self.sets)
            trained = "missing" if one.name in names else "done"
            own = [self.seconds(job) for job in missing if job.arguments[2].name == one.name]
            seconds = "-" if None in own else f"{sum(filter(None, own)):.0f}"
            rows.append(
                {
                    "arm": one.name,
                    "trained": "-" if one.method is None else trained,
                    "sets read": f"{read} of {len(self.sets)}",
                    "seconds of the rest": seconds,
                }
            )
        print(format_table(rows))
        for note in notes:
            print(f"note: {note}")
        count = len(self.jobs())
        steps = sum(self._steps(one) for one in self.arms() if one.name in names)
        times = [self.seconds(job) for job in missing]
        total = sum(one for one in times if one is not None)
        took = f", about {timedelta(seconds=round(total))} of one process" if total else ""
        if total and None in times:
            took += f" without {format_count(times.count(None), 'job')} of unknown time"
        print(
            f"{count - len(missing)} of {format_count(count, 'job')} are done; {steps:,} steps of training are "
            f"missing{took}"
        )

    def _about(self, counts: TextCounts) -> list[str]:
        """Lines on what is handed over, how methods are trained, and what is read."""
        own = self.settings
        handed = "no captions"
        if own.captions:
            handed = f"{format_count(counts.captions, 'caption')} of {format_count(counts.images, 'image')}"
            if counts.missing:
                handed += f" ({format_count(counts.missing, 'image')} missing, skipped)"
        seeds = format_count(self.config.adapt_seeds, "adaptation seed")
        gains = [one.about for one in self.sets if one.kind in GAINS]
        prices = [one.about for one in self.sets if one.kind not in GAINS]
        return [
            f"encoder: {own.student}; teacher: {own.teacher or 'none'}",
            f"handed over: {handed}; text: {own.text or 'the captions without their images'}",
            f"training of each method and control: {own.steps:,} steps of {own.batch} samples, learning rate "
            f"{own.lr:g}, at most {own.max_length} tokens, {seeds}",
            f"gains: {'; '.join(gains)}",
            f"price: {'; '.join(prices) or 'nothing is read'}",
        ]

    def _steps(self, one: RealArm) -> int:
        """Steps of an arm over all of its stages."""
        return 0 if one.method is None else sum(one.method.stage_steps(self.settings.steps))

    def seconds(self, job: Job) -> float | None:
        """Estimated seconds of a job, from finished ones in the folder; None if none is like it."""
        own: list[float] = []
        one: RealArm = job.arguments[2]
        if job.call is run_arm:
            costs = [(done["method"], done["cost"]) for done in self._finished if "cost" in done]
            alike = [cost for name, cost in costs if name == one.owner] or [c for _, c in costs]
            own = [self._steps(one) * cost["seconds"] / cost["steps"] for cost in alike]
        else:
            name = job.arguments[3].name
            read = [done for done in self._finished if done.get("set") == name]
            own = [done["seconds"] for done in read if "seconds" in done]
        return mean(own) if own else None

    @cached_property
    def _finished(self) -> list[dict[str, Any]]:
        return finished_jobs(self.folder)
