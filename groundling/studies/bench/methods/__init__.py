"""Methods that an experiment compares: stages, what they read, the one tuned setting; the package's own, and yours.

Each of the package is the paper's method at the bench's budget. A module here with a `BenchMethod` is a method of the
package, with its objective if no other method has it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groundling.command_line.names import NAMES, check_causal, parse_arm, teacher_settings
from groundling.commands.adapt import AdaptConfig
from groundling.commands.merge import MergeConfig
from groundling.core.errors import InputError, prefix_errors, require_known
from groundling.core.registry import (
    IMPORT_PATH,
    files_of_object,
    is_import_path,
    registered,
    resolve,
)
from groundling.runs.folder import sha256_of
from groundling.settings.fields import replace_settings, setting_fields, settings_of

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
GRID = (0.1, 1.0, 10.0)
"""The values of a tuned weight, unless the method says others."""
BATCH = 64
"""Samples per step of every method; a stage may have fewer."""
RETENTION = "retain_weight"
"""The setting that keeps a sentence encoder close to itself."""
RETENTIONS = (0.0, 1.0, 10.0)
"""Its tried values; 10 is the default of `adapt`."""
OPTION = "option:"
"""Prefix of a tuned setting that is an --option of one's own objective, e.g. `option:margin`."""
MERGED_SHARE = "merged share"
"""The tuned setting of a method whose encoder is merged with the handed-over one: the share of `groundling merge`."""


ReadTexts = Callable[[Path, Sequence[str], int], np.ndarray]
"""From an exported model, texts and their maximum number of tokens to vectors (N, E)."""


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
    """Setting of the last stage that the bench chooses on dev nouns, `option:NAME`, or `MERGED_SHARE`; empty: none."""
    grid: tuple[float | str, ...] = ()
    """The three values of `weight` that are compared."""
    reads_text_tower: bool = False
    """Captions with images: whether it also reads the teacher's text tower. The controls then replace it too."""
    steps: int = 0
    """Steps of all stages together, if not the bench's; every control gets the same."""
    control: str = "mlm"
    """Arm of its text control: what learns from the same texts without a teacher."""
    vectors: ReadTexts | None = None
    """Vectors of each noun's sentence, which the linear readings read in place of the encoder's states at the noun; \
for the package's own methods alone."""
    place: str = ""
    """MODULE:NAME, if it is the user's own; set when it is found."""

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
    def objectives(self) -> list[str]:
        """The names of the objectives of all stages."""
        return [name for stage in self.stages for name in parse_arm(stage.arm)]

    @property
    def replaces_teacher(self) -> bool:
        """Whether the controls replace the teacher, since the method reads its text tower."""
        return self.data == TEACHER or (self.data == IMAGES and self.reads_text_tower)

    @property
    def is_merged(self) -> bool:
        """Whether its encoder is merged with the handed-over one in the end; its controls are merged alike."""
        return self.weight == MERGED_SHARE

    @property
    def tunes_control(self) -> bool:
        """Whether the tuned setting is one of the text control too, and not a weight of the method's own term."""
        return self.weight in (RETENTION, MERGED_SHARE)

    def stage_steps(self, total: int, factor: float = 1.0) -> list[int]:
        """Steps of each stage; together `factor` times `total`, or the method's own."""
        total = round(factor * (self.steps or total))
        shares = sum(stage.share for stage in self.stages)
        steps = [max(1, round(total * stage.share / shares)) for stage in self.stages]
        steps[-1] = total - sum(steps[:-1])
        if steps[-1] < 1:
            raise InputError(f"{self.name}: {total} steps are too few for {len(steps)} stages")
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
            **({} if self.control == "mlm" else {"control": self.control}),
            **({} if self.vectors is None else {"vectors": self.vectors.__name__}),
            "stages": [
                {**vars(stage), "texts": list(stage.texts), "settings": dict(stage.settings)}
                for stage in self.stages
            ],
            "source": {
                name: sha256_of(file)
                for place in self.own_modules
                for name, file in files_of_object(place).items()
            },
        }

    @property
    def is_foreign(self) -> bool:
        """Whether it runs the user's own code."""
        return bool(self.own_modules)

    @property
    def own_modules(self) -> list[str]:
        """MODULE:NAME of every object of the user's own that it runs, which needs a process of its own."""
        parts = [part for stage in self.stages for part in stage.arm.split("+")]
        return [one for one in (self.place, *parts) if IMPORT_PATH.fullmatch(one)]

    def check(self) -> None:
        """Raises InputError for settings that `adapt` does not know, and a teacher of a method that reads text."""
        for stage in self.stages:
            arm = parse_arm(stage.arm)
            replace_settings(AdaptConfig(), **stage.settings)
            if self.data == TEXT and "teacher" in teacher_settings(arm):
                raise InputError(f"{stage.arm} reads a teacher, so the data class is not `{TEXT}`")
        if self.weight.startswith(OPTION):
            option = self.weight.removeprefix(OPTION)
            read = {name for one in arm.values() for name in setting_fields(one.Settings)}
            require_known(option, sorted(read), f"no objective reads the option {option!r}")
        elif self.is_merged:
            replace_settings(MergeConfig(), share=self.grid)
        elif self.weight:
            replace_settings(AdaptConfig(), **{self.weight: self.grid[0]})


def _check_stage(stage: Stage, number: int, data: DataClass) -> None:
    """Raises InputError for a stage that reads what the bench does not hand over, or more samples than others."""
    names = {text.partition("=")[0] for text in stage.texts}
    reads_captions = CAPTIONS in names and data == TEACHER
    if reads_captions or (stage.images and data != IMAGES):
        raise InputError(f"reads captions or images, so its data class is not `{data}`")
    if stage.batch > BATCH:
        raise InputError(f"batch = {stage.batch}, the bench's is {BATCH}")
    refused = [*sorted(names - set(TEXTS)), *(name for name in stage.settings if name in GIVEN)]
    inputs = [one.name for one in settings_of(AdaptConfig()) if one.input not in NAMES]
    for value in (stage.student, *(stage.settings.get(name, "") for name in inputs)):
        paths = value if isinstance(value, list | tuple) else (value,)
        refused += [path for path in paths if path and not _is_earlier(str(path), number)]
    if refused:
        raise InputError(
            f"{refused[0]}: a method reads the bench's texts and models, and outputs of its earlier stages "
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


# -- finding methods --------------------------------------------------------------------------------------------------
def built_in_methods() -> dict[str, BenchMethod]:
    """The methods of the package by name."""
    return registered("methods", BenchMethod)


def find_methods(names: Sequence[str]) -> list[BenchMethod]:
    """Methods by name or MODULE:NAME; without names, all of the package.

    Raises InputError for an unknown method, one that cannot run, and two of one name.
    """
    offered = built_in_methods()
    found = []
    for name in names or offered:
        method = resolve("methods", BenchMethod, name)
        if is_import_path(name):
            method = replace(method, place=name)
        with prefix_errors(f"method={method.name}"):
            method.check()
            if method.place and method.name in offered:
                raise InputError("another method has this name; give yours another")
            if method.place and method.vectors is not None:
                raise InputError(
                    "a method of your own is read by its encoder's states, not `vectors`"
                )
        found.append(method)
    return found


def for_encoder(method: BenchMethod, layers: int, has_head: bool) -> BenchMethod:
    """The method for an encoder of so many layers.

    Vokenization's matcher reads the last four layers, or all of fewer. A sentence encoder has no masked-LM head
    (`has_head` is off), and a new one would make it forget: a method that has masked LM beside another objective leaves
    it out, its text control is SimCSE, and what is tuned is how much the encoder keeps of itself.
    """
    if method.name == "vokenization":
        matching, vokens = method.stages
        own = replace(matching, settings={"vokenizer_layers": min(4, layers)})
        method = replace(method, stages=(own, vokens))
    if has_head:
        return method
    stages = tuple(_without_masked_lm(stage) for stage in method.stages)
    for stage in stages:
        kinds = parse_arm(stage.arm, stage.settings.get("masked_lm", True)).values()
        if any(kind.masks_text for kind in kinds):
            return method
    method = replace(method, stages=stages, control="simcse")
    return method if method.is_merged else replace(method, weight=RETENTION, grid=RETENTIONS)


def for_decoder(method: BenchMethod) -> BenchMethod:
    """The method for a causal student: `clm` takes the place of `mlm`, in its text control too.

    Raises InputError for a method that needs both sides of a token.
    """
    stages = []
    for stage in method.stages:
        has_lm = stage.settings.get("masked_lm", True)
        check_causal(parse_arm(stage.arm, has_lm, causal=True), stage.arm, "causal")
        parts = ["clm" if part == "mlm" and has_lm else part for part in stage.arm.split("+")]
        stages.append(replace(stage, arm="+".join(parts)))
    control = "clm" if method.control == "mlm" else method.control
    paper = method.paper.replace("masked LM", "causal LM")
    return replace(method, stages=tuple(stages), control=control, paper=paper)


def _without_masked_lm(stage: Stage) -> Stage:
    """The stage without `mlm` beside its other objectives."""
    names = list(parse_arm(stage.arm))
    if "mlm" not in names or len(names) == 1:
        return stage
    return replace(stage, settings={**stage.settings, "masked_lm": False})
