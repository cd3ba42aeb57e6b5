"""A method that the bench compares: its stages, the texts and images they read, and its one tuned setting."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from groundling.command_line.input_paths import NAMES
from groundling.command_line.registered_names import parse_arm, teacher_settings
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError, prefix_errors
from groundling.core.registry import (
    IMPORT_PATH,
    files_of_object,
    import_object,
    is_import_path,
    registered,
    resolve_builtin,
)
from groundling.runs.hashing import sha256_of
from groundling.settings.fields import replace_settings, settings_of

DataClass = Literal["text", "text and teacher", "captions with images"]
"""What a method reads; methods of different classes are not ranked against each other."""
TEXT: DataClass = "text"
TEACHER: DataClass = "text and teacher"
IMAGES: DataClass = "captions with images"
CLASSES = (TEXT, TEACHER, IMAGES)

CORPUS, CAPTIONS = "corpus", "captions"
TEXTS = (CORPUS, CAPTIONS)
"""The handed-over texts, by the names that a stage uses."""
STAGE_PATH = re.compile(r"stage-(\d+)(?:/(.+))?")
"""A setting's value that names an output of an earlier stage, e.g. `stage-1/model`."""
GIVEN = ("student", "teacher", "text", "teacher_images", "teacher_cache", "arm")
"""Settings of `adapt` that only the bench sets."""
BATCH = 64
"""Samples per step of every method; a stage may have fewer."""
OPTION = "option:"
"""Prefix of a tuned setting that is an --option of one's own objective, e.g. `option:margin`."""


def slug(text: str) -> str:
    """A name as part of a path."""
    return re.sub(r"[^\w.-]+", "-", text).strip("-")


@dataclass(frozen=True)
class Stage:
    """One run of `groundling adapt`."""

    arm: str
    """Objectives, as in `adapt --arm`."""
    texts: tuple[str, ...] = (CORPUS,)
    """Texts that it reads, of `corpus` and `captions`; all with a weight, `("corpus=1", "captions=2")`, or none."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Further settings of `adapt` by name; a value `stage-1/model` is an output of the first stage."""
    student: str = ""
    """Encoder to start from: empty for the handed-over one, or an earlier stage's, `stage-1/model`."""
    images: bool | None = None
    """Whether the teacher's images are passed; None: if it reads captions and its arm has a teacher."""
    share: float = 1.0
    """Share of the method's steps, relative to other stages."""
    batch: int = 0
    """Samples per step; 0: the bench's. For blocks, which hold several lines, fewer."""


@dataclass(frozen=True)
class BenchMethod:
    """A method, as the bench runs it."""

    name: str
    """Its name in tables."""
    paper: str
    """The paper, or a sentence on what it does."""
    data: DataClass
    """What it reads."""
    stages: tuple[Stage, ...]
    """Runs of `adapt`, in order; the encoder of the last is judged."""
    weight: str = ""
    """Setting of the last stage that the bench chooses on dev nouns, or `option:NAME`; empty: none."""
    grid: tuple[float | str, ...] = ()
    """The three values of `weight` that are compared."""
    reads_text_tower: bool = False
    """Captions with images: whether it also reads the teacher's text tower. The controls then replace it too."""
    steps: int = 0
    """Steps of all stages together, if not the bench's; every control gets the same."""

    def __post_init__(self) -> None:
        """Raises InputError for a method that the bench cannot run fairly."""
        where = f"method {self.name}"
        if self.data not in CLASSES:
            raise InputError(f"{where}: data = {self.data!r}, expected one of {', '.join(CLASSES)}")
        is_tuned = bool(self.weight) and len(set(self.grid)) == len(self.grid) == 3
        if not is_tuned and (self.weight or self.grid):
            raise InputError(
                f"{where}: every method has a `weight` with a `grid` of three values, or neither"
            )
        for number, stage in enumerate(self.stages, 1):
            with prefix_errors(f"{where}, stage {number}"):
                _check_stage(stage, number, self.data)

    @property
    def shuffles_captions(self) -> bool:
        """Whether the shuffled control gives captions other images."""
        return self.data == IMAGES

    @property
    def replaces_teacher(self) -> bool:
        """Whether the controls replace the teacher, since the method reads its text tower."""
        return self.data == TEACHER or (self.data == IMAGES and self.reads_text_tower)

    def stage_steps(self, total: int, factor: float = 1.0) -> list[int]:
        """Steps of each stage; together `factor` times `total`, or the method's own."""
        total = round(factor * (self.steps or total))
        shares = sum(stage.share for stage in self.stages)
        steps = [max(1, round(total * stage.share / shares)) for stage in self.stages]
        steps[-1] = max(1, total - sum(steps[:-1]))
        return steps

    def description(self) -> dict[str, Any]:
        """Everything that defines it, for `bench.json`."""
        return {
            "name": self.name,
            "paper": self.paper,
            "data": self.data,
            "reads_text_tower": self.reads_text_tower,
            "weight": self.weight,
            "grid": list(self.grid),
            "steps": self.steps,
            "stages": [
                {**vars(stage), "texts": list(stage.texts), "settings": dict(stage.settings)}
                for stage in self.stages
            ],
            "source": source_of(self),
        }

    def why_not(self) -> str:
        """Why it cannot run with this installation; empty if it can."""
        try:
            for stage in self.stages:
                arm = parse_arm(stage.arm)
                replace_settings(AdaptConfig(), **stage.settings)
                if self.data == TEXT and "teacher" in teacher_settings(arm):
                    return f"{stage.arm} reads a teacher, so the data class is not `{TEXT}`"
            if self.weight and not self.weight.startswith(OPTION):
                replace_settings(AdaptConfig(), **{self.weight: self.grid[0]})
        except InputError as error:
            return str(error)
        return ""


def _check_stage(stage: Stage, number: int, data: DataClass) -> None:
    """Raises InputError for a stage that reads what the bench does not hand over, or more samples than others."""
    names = {text.partition("=")[0] for text in stage.texts}
    reads_captions = CAPTIONS in names and data == TEACHER
    if reads_captions or (stage.images and data != IMAGES):
        raise InputError(f"reads captions or images, so its data class is not `{data}`")
    if stage.batch > BATCH:
        raise InputError(f"batch = {stage.batch}, the bench's is {BATCH}")
    kinds = {one.name: one.input for one in settings_of(AdaptConfig())}
    foreign = [*sorted(names - set(TEXTS)), *(name for name in stage.settings if name in GIVEN)]
    for name, value in {"start": stage.student, **stage.settings}.items():
        values = value if isinstance(value, list | tuple) else (value,)
        is_path = kinds.get(name) not in NAMES or name == "start"
        paths = [str(one) for one in values if one and (is_path or "/" in str(one))]
        foreign += [path for path in paths if not _is_earlier(path, number)]
    if foreign:
        raise InputError(
            f"{foreign[0]}: a method reads the bench's texts and models, and outputs of its earlier stages "
            "(`stage-1/model`)"
        )


def _is_earlier(value: str, number: int) -> bool:
    """Whether a value names an output of a stage before stage `number`."""
    match = STAGE_PATH.fullmatch(value)
    return match is not None and 0 < int(match[1]) < number and ".." not in value


def resolve_stage_paths(settings: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The settings with `stage-N/...` replaced by paths below `folder`."""

    def resolved(value: Any) -> Any:
        if isinstance(value, tuple | list):
            return tuple(resolved(one) for one in value)
        if isinstance(value, str) and STAGE_PATH.fullmatch(value):
            return str(folder / value)
        return value

    return {name: resolved(value) for name, value in settings.items()}


def source_of(method: BenchMethod) -> dict[str, str]:
    """SHA-256 of the files of its objectives, by module."""
    from groundling.objectives import find_objective

    files: dict[str, Path] = {}
    for stage in method.stages:
        try:
            names = list(parse_arm(stage.arm))
        except InputError:
            continue  # not installed: it has no source yet
        for name in names:
            if is_import_path(name):
                files |= files_of_object(name)
            else:
                module = find_objective(name).__module__
                files[module] = Path(str(sys.modules[module].__file__))
    return {name: sha256_of(files[name]) for name in sorted(files)}


# -- finding methods ---------------------------------------------------------------------------------------------------


def built_in_methods() -> dict[str, BenchMethod]:
    """The methods of the package by name, also those whose objectives are not installed."""
    return registered("methods", BenchMethod)


def find_methods(names: Sequence[str]) -> list[BenchMethod]:
    """Methods by name or MODULE:NAME; without names, all of the package that can run.

    Raises InputError for an unknown method, one that cannot run, and two of one name.
    """
    offered = built_in_methods().values()
    if not names:
        return [one for one in offered if not one.why_not()]
    found = [
        outside_method(name)
        if is_import_path(name)
        else resolve_builtin("methods", BenchMethod, name)
        for name in names
    ]
    titles = [one.name for one in (*found, *(one for one in offered if one not in found))]
    for method in found:
        reason = method.why_not()
        if titles.count(method.name) > 1:
            reason = "another method has this name; give yours another"
        if reason:
            raise InputError(f"method={method.name}: cannot run ({reason})")
    return found


def outside_method(place: str) -> BenchMethod:
    """The user's own method MODULE:NAME: a `BenchMethod`, or an objective, which is trained beside masked LM.

    Raises InputError for anything else.
    """
    value = import_object(place, object)
    if isinstance(value, BenchMethod):
        stages = tuple(
            replace(stage, settings=dict(stage.settings), texts=tuple(stage.texts))
            for stage in value.stages
        )
        return _OutsideMethod(**{**vars(value), "stages": stages}, place=place)
    data, reads_text_tower = _data_of_objective(place)
    texts = (CAPTIONS,) if data == IMAGES else (CORPUS,)
    return _OutsideMethod(
        name=place.rpartition(":")[2],
        paper=f"masked LM and {place}",
        data=data,
        stages=(Stage(f"mlm+{place}", texts),),
        reads_text_tower=reads_text_tower,
        place=place,
    )


@dataclass(frozen=True)
class _OutsideMethod(BenchMethod):
    """A method of the user's own."""

    place: str = ""
    """MODULE:NAME."""

    def description(self) -> dict[str, Any]:
        """As of any method, and the files of its own module and of those that it imports."""
        described = super().description()
        files = files_of_object(self.place)
        names = sorted(files)
        hashes = {one: sha256_of(files[one]) for one in names}
        return described | {"place": self.place, "source": described["source"] | hashes}


def is_outside(method: BenchMethod) -> bool:
    """Whether a method, or an objective of it, is the user's own."""
    parts = [part for stage in method.stages for part in stage.arm.split("+")]
    return isinstance(method, _OutsideMethod) or any(IMPORT_PATH.fullmatch(one) for one in parts)


IMAGE_FEATURES = {
    *("clip_image", "clip_similarity", "clip_words", "clip_word", "clip_confidence"),
}
"""Features of stock teachers that are computed from images."""


def _data_of_objective(place: str) -> tuple[DataClass, bool]:
    """The data class of an objective by the features that it requires, and whether it reads the text tower."""
    from groundling.core.batch import OutputSizes
    from groundling.objectives import ObjectiveContext, find_objective, required_features
    from groundling.teachers import TeacherSpec

    if find_objective(place).needs_cross_modal:
        return TEACHER, False
    sizes = OutputSizes(text=8, input_embeddings=(8, 8), pooler_output=8)
    features = required_features([place], ObjectiveContext(sizes))
    of_images = set(IMAGE_FEATURES)
    for spec in registered("teachers", TeacherSpec).values():
        if not of_images.isdisjoint(spec.reads):
            of_images |= set(spec.features)
    if not features:
        return TEXT, False
    if features.isdisjoint(of_images):
        return TEACHER, False
    return IMAGES, bool(features - of_images)
