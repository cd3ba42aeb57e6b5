"""The jobs of curves: a few methods and their text controls, with one thing more or less of what they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from groundling.core.errors import InputError
from groundling.runs.folder import read_object
from groundling.runs.jobs import Job
from groundling.studies.bench.arms import (
    IMAGE_TOWER,
    METHOD,
    TEXT_CONTROL,
    TOWER,
    ArmRun,
)
from groundling.studies.bench.curves.axes import CurveAxis, find_axes
from groundling.studies.bench.method import TEXT, BenchMethod
from groundling.studies.bench.plan import BenchPlan
from groundling.studies.bench.protocol import (
    BASE,
    TUNING_WORLD,
    BenchCondition,
    BenchWorld,
    key_of,
)

METHODS = ("xdbert", "contrastive", "l1")
"""The methods of curves, if no others are named."""


def is_changed(condition: BenchCondition, method: BenchMethod, arm: str) -> bool:
    """Whether a condition changes anything that an arm of a method reads or does.

    A method's own number of steps stays as it is, since the axis would say another one.
    """
    read = {text.partition("=")[0] for stage in method.stages for text in stage.texts}
    read.add("encoder")
    if arm != TEXT_CONTROL and method.data != TEXT:
        read.add("teacher")
    is_longer = condition.steps != 1 and not method.steps
    return is_longer or not read.isdisjoint(condition.makes)


def why_no_curve(axis: CurveAxis, method: BenchMethod) -> str:
    """Why a method has no curve on an axis; empty if it has one."""
    condition = axis.conditions()[0]
    if is_changed(condition, method, METHOD):
        return ""
    if condition.steps != 1:
        return f"{method.name} asks for {method.steps} steps of its own, so it has no curve over {axis.unit}"
    return f"{method.name} reads nothing that changes with {axis.unit}"


def check_axes(axes: Sequence[CurveAxis], methods: Sequence[BenchMethod]) -> None:
    """Raises InputError for an axis on which none of the methods has a curve."""
    for axis in axes:
        reasons = [why_no_curve(axis, method) for method in methods]
        if all(reasons):
            raise InputError(f"curve={axis.name}: {'; '.join(reasons)}; add another method")


@dataclass(frozen=True)
class CurvePlan(BenchPlan):
    """The jobs of a bench's curves; those at the protocol's own values are the bench's."""

    def __post_init__(self) -> None:
        """Raises InputError for an unknown axis, and one that changes nothing."""
        check_axes(self.axes, self.methods)

    @property
    def axes(self) -> list[CurveAxis]:
        """What grows."""
        return find_axes(self.config.curve)

    @property
    def all_worlds(self) -> list[BenchWorld]:
        """Each world, without and with every condition."""
        conditions = [BASE, *(one for axis in self.axes for one in axis.conditions())]
        return [replace(world, condition=one) for world in self.worlds for one in conditions]

    def left_out(self) -> dict[str, str]:
        """None: methods of curves are named."""
        return {}

    def controls(self, method: BenchMethod) -> dict[str, str]:
        """The text control."""
        return {TEXT_CONTROL: super().controls(method)[TEXT_CONTROL]}

    def arms(self, world: BenchWorld) -> list[ArmRun]:
        """Methods that the world's condition changes, and their text controls.

        A control that the condition does not change is the one of the world without it.
        """
        arms = []
        for method in self.methods:
            condition = world.condition
            if condition == BASE or is_changed(condition, method, METHOD):
                for arm in (METHOD, TEXT_CONTROL):
                    own = world if is_changed(condition, method, arm) else world.base
                    arms.append(ArmRun(method, arm, own, 0))
        return arms

    def questions(self, one: ArmRun) -> tuple[str, ...]:
        """None: curves have linear readings only."""
        return ()

    def towers(self, world: BenchWorld) -> tuple[str, ...]:
        """Both towers of every teacher that arms read."""
        is_read = world.condition == BASE or "teacher" in world.condition.makes
        return (TOWER, IMAGE_TOWER) if is_read and world != TUNING_WORLD else ()

    def _shared(self, world: BenchWorld) -> list[Job]:
        """Jobs of what a condition has of its own."""
        if world.condition == BASE:
            return super()._shared(world)
        jobs: list[Job] = []
        for name in world.condition.makes:
            # A teacher is trained on the condition's captions, which come first.
            after = (f"{world.base}: hash", *(job.name for job in jobs))
            jobs.append(self._shared_job(world, name, *after))
        if not jobs:
            return []
        jobs.append(self._shared_job(world, "hash", *(job.name for job in jobs)))
        return [*jobs, *self._tower_jobs(world)]

    def print_plan(self) -> None:
        """Print the curves, and the plan."""
        for axis in self.axes:
            values = ", ".join(f"{value:,}" for value in axis.values)
            print(f"{values} {axis.unit} (the bench has {axis.base:,}): {axis.about}")
        for reason in self._without_curve():
            print(f"note: {reason}")
        super().print_plan()

    def _entries(self, world: BenchWorld) -> list[dict[str, Any]]:
        """The entries of a world under its condition; a control that it does not change is there again."""
        entries = super()._entries(world)
        if world.condition == BASE or not entries:
            return entries
        handed = key_of(read_object(self.folder.world(world).record)["handed"])
        about = {"condition": world.condition.as_json(), "handed": handed}
        return [one | about for one in entries]

    def _notes(self) -> list[str]:
        notes = super()._notes()
        return notes + self._without_curve()

    def _without_curve(self) -> list[str]:
        """Why methods have no curve on some of the axes."""
        reasons = [why_no_curve(axis, method) for axis in self.axes for method in self.methods]
        return [reason for reason in reasons if reason]
