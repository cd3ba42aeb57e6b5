"""The jobs of a bench on a real encoder: what is done, what is missing, and the readings of finished arms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from groundling.core.errors import InputError
from groundling.runs.jobs import Job
from groundling.runs.report import format_count, format_table
from groundling.studies.bench.arms import TEXT_CONTROL, finished_job, text_key
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
from groundling.studies.bench.real.finished import BEFORE, collect, read_job
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
        done = {job.name for job in jobs if finished_job(self.folder, job.name, job.arguments[-1])}
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
            rows.append(
                {
                    "arm": one.name,
                    "trained": "-" if one.method is None else trained,
                    "sets read": f"{read} of {len(self.sets)}",
                }
            )
        print(format_table(rows))
        for note in notes:
            print(f"note: {note}")
        count = len(self.jobs())
        steps = sum(self._steps(one) for one in self.arms() if one.name in names)
        print(
            f"{count - len(missing)} of {format_count(count, 'job')} are done; {steps:,} steps of training are "
            "missing"
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
