"""`groundling bench`: methods in rendered worlds, each with its controls and one tuned setting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import groundling
from groundling.core.errors import InputError
from groundling.runs.jobs import Job
from groundling.runs.progress import CommandContext
from groundling.settings.training import TrainingArguments
from groundling.stats.linear_probes import read_nouns
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.engine import (
    IMAGE_TOWER,
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    TOWER,
    Arm,
    Experiment,
    Reading,
    methods_of,
    summary_of,
    weights_of,
)
from groundling.studies.bench.handed import make_part
from groundling.studies.bench.judge import MIN_UNITS, judge_curves, judge_methods
from groundling.studies.bench.methods import TEXT, BenchMethod, ReadTexts, find_methods, for_decoder
from groundling.studies.bench.protocol import (
    ADAPTING,
    BASE,
    MAX_LENGTH,
    MODELS,
    ONE_SEED,
    PROBE_STEPS,
    PROBING,
    TUNING_WORLD,
    BenchCondition,
    BenchFolder,
    BenchWorld,
    CurveAxis,
    Files,
    find_axes,
    key_of,
    protocol_of,
    scaled,
)
from groundling.studies.bench.readings import (
    fine_tuned,
    linear_readings,
    read_encoder,
    read_image_tower,
    read_text_tower,
)
from groundling.studies.bench.report import make_report, publish

TOWERS = {TOWER: read_text_tower, IMAGE_TOWER: read_image_tower}
"""Readings of the teacher, without an encoder: a ceiling for what it can teach."""
CURVE_METHODS = ("xdbert", "contrastive", "l1")
"""The methods of curves, if no others are named."""


@dataclass(frozen=True)
class RenderedBench(Experiment):
    """Methods in rendered worlds; with `curve`, at other values of its axes, with text controls alone."""

    config: BenchConfig
    left_out: Sequence[str] = ()
    """Why methods of the package are left out: a sentence for each."""

    def __post_init__(self) -> None:
        """Raises InputError for an unknown axis, and one that changes nothing for any method."""
        for axis in self.axes:
            condition = axis.conditions()[0]
            if not any(is_changed(condition, method, METHOD) for method in self.methods):
                raise InputError(
                    f"curve={axis.name}: changes nothing for these methods; add another one"
                )

    @property
    def axes(self) -> list[CurveAxis]:
        """What grows; empty for a bench without curves."""
        return find_axes(self.config.curve)

    @cached_property
    def fixed(self) -> object:
        """The protocol at this scale, for this student."""
        return protocol_of(self.config.scale, self.config.student)

    @property
    def training(self) -> TrainingArguments:
        """Every method has the same steps and samples."""
        return scaled(ADAPTING, self.config.scale, 0)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Texts are as short as the worlds' sentences."""
        return {"max_length": MAX_LENGTH}

    # Setup.

    def files(self, arm: Arm) -> Files:
        """The files of the arm's world."""
        assert arm.world is not None
        return self.folder.world(arm.world)

    def setup(self, arm: Arm) -> list[Job]:
        """What every method of a world shares; in the tuning world what grids need; under a condition what differs."""
        assert arm.world is not None
        world = arm.world.shared
        models = ("encoder", "teacher") if world == TUNING_WORLD else MODELS
        jobs: list[Job] = []
        for part in ("render", *models):
            jobs.append(self._making(world.base, part, *(job.name for job in jobs[:1])))
        for part in world.condition.makes:
            # A teacher is trained on the condition's captions, which come first.
            jobs.append(self._making(world, part, *(job.name for job in jobs)))
        return jobs

    def _making(self, world: BenchWorld, part: str, *after: str) -> Job:
        own = (part, self.folder.world(world), world, self.config.scale, self.config.student)
        call = partial(make_part, *own)
        return self.job(f"{world}: {part}", key_of(self.fixed, str(world)), call, after)

    # Arms.

    @property
    def worlds(self) -> list[BenchWorld]:
        """The worlds whose results are reported, family by family."""
        return [
            BenchWorld(name, seed) for name in self.config.families for seed in self.config.worlds
        ]

    def arms(self) -> list[Arm]:
        """All arms of all worlds, and of curves those that their values change, beside the worlds' own."""
        if not self.axes:
            arms = (METHOD, TEXT_CONTROL, SHUFFLED, RANDOM)
            return [
                arm
                for world in self.worlds
                for arm in (
                    Arm(None, TOWER, 0, world),
                    *self.every_arm(arms, self.config.adapt_seeds, world),
                )
            ]
        conditions = [BASE, *(one for axis in self.axes for one in axis.conditions())]
        return [
            arm
            for world in self.worlds
            for condition in conditions
            for arm in self._curve_arms(replace(world, condition=condition))
        ]

    def _curve_arms(self, world: BenchWorld) -> list[Arm]:
        """Towers of a teacher of its own; methods that a condition changes, and their text controls."""
        condition = world.condition
        has_teacher = condition == BASE or "teacher" in condition.makes
        arms = [Arm(None, tower, 0, world) for tower in TOWERS if has_teacher]
        for method in self.methods:
            if condition == BASE or is_changed(condition, method, METHOD):
                arm = Arm(method, METHOD, 0, world)
                arms += [arm, self.control(arm)]
        return arms

    def grid(self, arm: Arm) -> list[Arm]:
        """The values of the method's weight in the tuning world, all with adaptation seed 0."""
        method = arm.tuned_method
        values = method.grid if method else ()
        return [Arm(method, METHOD, 0, TUNING_WORLD, value) for value in values]

    def control(self, arm: Arm) -> Arm:
        """The text control of an arm's world; of the world without a condition that does not change the control."""
        assert arm.world is not None and arm.method is not None
        is_own = is_changed(arm.world.condition, arm.method, TEXT_CONTROL)
        world = arm.world if is_own else arm.world.base
        return replace(super().control(arm), world=world)

    # Readings.

    def readings(self, arm: Arm) -> list[Reading]:
        """Linear readings, and the questions on which the arm is fine-tuned."""
        files = self.files(arm)
        if arm.method is None:
            return [Reading("nouns", partial(_read_tower, tower=arm.arm, files=files))]
        linear = partial(read_encoder, world=files.private, encoder=self.encoder(arm))
        if arm.own_method and arm.own_method.vectors:
            linear = partial(_read_vectors, arm.own_method.vectors, linear, files.private)
        nouns = Reading("nouns", linear, "pairs")
        names = self._questions(arm)
        if not names:
            return [nouns]
        seeds = self.config.probe_seeds
        how = {
            name: (
                1 if name in ONE_SEED else seeds,
                scaled(replace(PROBING, steps=PROBE_STEPS[name]), self.config.scale, 0),
            )
            for name in names
        }
        tuned = partial(fine_tuned, world=files.private, how=how)
        return [nouns, Reading(f"{' '.join(names)}, {seeds} seeds", tuned, f"seeds-{seeds}")]

    def _questions(self, arm: Arm) -> tuple[str, ...]:
        """None for random targets, the tuning world and curves, and no price for shuffled images."""
        if arm.arm == RANDOM or arm.weight is not None or self.axes:
            return ()
        is_priced = arm.arm in (METHOD, TEXT_CONTROL)
        return tuple(one for one in self.config.probes if is_priced or one not in ONE_SEED)

    # Results.

    def conclude(self) -> dict[str, Any]:
        """Judge everything in the folder, write `bench.json` and the page, and print the report."""
        found = self.entries()
        grids = [one for one in found if one["world"] == TUNING_WORLD.seed and "weight" in one]
        grids = [one for one in grids if one["family"] == TUNING_WORLD.family]
        entries = with_controls([one for one in found if one not in grids])
        if not entries:
            raise InputError(f"{self.folder.root}: nothing is finished yet")
        methods = methods_of(entries, self.methods)
        untuned = [name for name, about in methods.items() if not about["grid"]]
        untuned_notes = [
            f"{name} has no tuned setting; others chose among three" for name in untuned
        ]
        verdicts = judge_methods(entries, methods)
        curves = judge_curves(entries, methods)
        result = {
            "groundling": groundling.__version__,
            "student": self.config.student,
            "protocol": self.fixed,
            "methods": methods,
            "weights": weights_of(grids, methods)[METHOD],
            "runs": [summary_of(one) for one in entries],
            "notes": [*self.notes(methods), *self.left_out, *untuned_notes],
            "verdicts": [asdict(one) for one in verdicts],
            "curves": [asdict(one) for one in curves],
        }
        publish(result, make_report(result, verdicts, curves), self.folder.root)
        return result


def _read_tower(model: Path, out: Path, tower: str, files: Files) -> dict[str, Any]:
    return TOWERS[tower](files)


def _read_vectors(
    vectors: ReadTexts, read: partial[dict[str, Any]], world: Path, model: Path, out: Path
) -> dict[str, Any]:
    """What is read of a model, with the linear readings of its vectors of each noun's sentence."""
    rows = read_nouns(world)
    found = vectors(model, [row["sentence"] for row in rows], MAX_LENGTH)
    return {**read(model, out), **linear_readings(found, rows, world)}


# -- curves ------------------------------------------------------------------------------------------------------------
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


def with_controls(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries with those controls again, under a method's condition, that the condition does not change."""
    by_name = {one["name"]: one for one in entries}
    copies = {}
    for one in entries:
        control = by_name.get(one.get("control", ""))
        if control is not None and control.get("condition") != one.get("condition"):
            copies[control["name"], str(one["condition"])] = {
                **control,
                "condition": one["condition"],
            }
    return [*entries, *copies.values()]


# -- the command -------------------------------------------------------------------------------------------------------
def bench(config: BenchConfig, work: CommandContext) -> dict[str, Any]:
    """Run everything that is missing; prints the report."""
    methods, left_out = [], []
    for one in find_methods(config.method or (CURVE_METHODS if config.curve else ())):
        try:
            method = for_decoder(one) if config.student == "causal" else one
        except InputError as error:
            if config.method:
                raise
            left_out.append(f"{one.name} is left out: {error}")
            continue
        steps = method.steps and max(2, round(method.steps * config.scale))
        methods.append(replace(method, steps=steps))
    own = RenderedBench(BenchFolder(work.out.resolve()), methods, config, left_out)
    if not config.method and config.report:
        # What the folder's commands have not run is not missing.
        has_run = {one["method"] for one in own.entries()}
        own = replace(own, methods=[one for one in methods if one.name in has_run])
    if config.plan:
        print(*own.left_out, sep="\n", end="\n" if own.left_out else "")
        return own.print_plan()
    if not config.report:
        if len(config.worlds) < MIN_UNITS:
            print(
                f"note: a verdict takes {MIN_UNITS} worlds; with {len(config.worlds)} there is none, unless this "
                "folder has others"
            )
        own.run(config.processes)
    return own.conclude()
