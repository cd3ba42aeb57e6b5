"""Arms, objectives, training steps, architectures and tasks by name, read from the source without
an import.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import groundling
from groundling.core.errors import InputError, did_you_mean, require_known
from groundling.core.registry import is_import_path, kind_name, registered
from groundling.settings.objectives import (
    AdversarialSettings,
    ExtraObjectiveSettings,
    parse_options,
)

TASKS = (
    *("glue/cola", "glue/mnli", "glue/mrpc", "glue/qnli", "glue/qqp", "glue/rte"),
    *("glue/sst-2", "glue/sts-b", "glue/wnli", "readability", "swag", "swag/full"),
    *("vqa", "vqa/minival", "vcr", "vcr/answer", "vcr/rationale", "snli-ve", "nlvr2"),
    *("flickr30k", "flickr30k/merged"),
    *("refcoco", "refcoco/mattnet", "refcoco+", "refcoco+/mattnet"),
    *("refcocog", "refcocog/google", "refcocog/mattnet"),
    *("world/category", "world/odd", "world/order", "world/truth"),
)
"""Names of all tasks; a test compares them with the registry."""

TASKS_WITH_ANSWERS = (
    "swag",
    "swag/full",
    "vqa",
    "vqa/minival",
    "vcr",
    "vcr/answer",
    "vcr/rationale",
)
"""Tasks whose pre-training texts contain the right answer; a test compares them with the \
registry."""

ARMS = {
    "mlm": "mlm",
    "xdbert": "joint_mlm+match+clip_tokens",
    "l1": "mlm+l1",
    "contrastive": "mlm+contrastive",
}
"""Named arms; the control `mlm` uses the same text, steps and seeds, without a teacher."""


@cache
def declared_objects(folder: str, kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a class (`ObjectiveSpec`, `Architecture`, ...) that the modules of a
    sub-package define, without an import.

    By name; each with the keyword values of its constructor call, such as `needs_teacher`, or True
    for a value that is no constant.
    """
    objects: dict[str, dict[str, Any]] = {}
    root = Path(groundling.__file__).parent
    inside = folder.replace(".", "/")
    for path in sorted([*root.glob(f"{inside}/[a-z]*.py"), *root.glob(f"studies/*/{inside}/*.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            call = node.value if isinstance(node, ast.Assign) else None
            if isinstance(call, ast.Call) and ast.unparse(call.func) == kind:
                keywords = {word.arg or "": word.value for word in call.keywords}
                name = call.args[0] if call.args else keywords.pop("name")
                plain: dict[str, Any] = {
                    key: value.value if isinstance(value, ast.Constant) else True
                    for key, value in keywords.items()
                }
                objects[ast.literal_eval(name)] = plain
    return objects


def check_name(folder: str, kind: str, name: str) -> None:
    """Raises InputError for a name that no module of a sub-package defines; an empty name and
    MODULE:NAME pass.
    """
    if name and not is_import_path(name):
        _check_offered(folder, kind, name)


def _check_offered(folder: str, kind: str, name: str) -> None:
    names = sorted(TASKS) if folder == "tasks" else sorted(declared_objects(folder, kind))
    require_known(name, names, f"no {kind_name(folder)} is called {name!r}")


@dataclass(frozen=True)
class ObjectiveRequirements:
    """What a command must know about an objective before it is made."""

    needs_cross_modal: bool
    """It reads states of the cross-modal encoder."""
    needs_teacher: bool
    """It reads teacher features."""
    teacher_setting: str = ""
    """The setting that names its teacher, if it is not --teacher."""
    wraps_encoder: bool = False
    """It trains a model of its own around the text encoder."""
    masks_text: bool = False
    """It masks tokens."""

    @property
    def needs_teacher_flag(self) -> bool:
        """Whether --teacher names its teacher."""
        return self.needs_teacher and not self.teacher_setting


def objective_requirements(name: str) -> ObjectiveRequirements:
    """The requirements of an objective by name; MODULE:NAME of your own is imported. Raises
    InputError if it does not exist.
    """
    if is_import_path(name):
        from groundling.objectives import find_objective

        spec = find_objective(name)
        return ObjectiveRequirements(
            spec.needs_cross_modal,
            spec.needs_teacher,
            spec.teacher_setting,
            spec.wrap_encoder is not None,
            spec.masks_text,
        )
    _check_offered("objectives", "ObjectiveSpec", name)
    keywords = declared_objects("objectives", "ObjectiveSpec")[name]
    return ObjectiveRequirements(
        bool(keywords.get("needs_cross_modal")),
        bool(keywords.get("needs_teacher")),
        keywords.get("teacher_setting", ""),
        bool(keywords.get("wrap_encoder")),
        bool(keywords.get("masks_text")),
    )


@dataclass(frozen=True)
class ArmObjectives:
    """Objectives of an arm."""

    names: list[str]
    """Names of the objectives, without repetition."""
    needs_cross_modal: bool
    """Whether any needs the cross-modal encoder."""
    needs_teacher: bool
    """Whether any needs features of --teacher."""
    wraps_encoder: bool
    """Whether any trains a model of its own around the text encoder."""
    teacher_settings: list[str]
    """Settings that name further teachers."""


def parse_arm(text: str, masked_lm: bool = True) -> ArmObjectives:
    """The objectives of `--arm`, without `mlm` if `masked_lm` is off; raises InputError for an
    unknown name.
    """
    parts = text.split("+")
    for part in parts:
        if parts.count(part) > 1:
            raise InputError(
                f"--arm {text}: {part} is given twice but would be trained once; remove one"
            )
    names = [name for part in parts for name in ARMS.get(part, part).split("+")]
    names = list(dict.fromkeys(names))
    for name in names:
        try:
            objective_requirements(name)
        except InputError as error:
            more = did_you_mean(name, ARMS) or f"; {error}"
            raise InputError(
                f"--arm {text}: unknown name {name!r}, expected {', '.join(ARMS)} or objectives{more}"
            ) from None
    requirements = [objective_requirements(name) for name in names]
    if {"mlm", "joint_mlm"} <= set(names):
        names.remove("mlm")  # one masking per text: XDBERT's MLM is the joint one
    if not masked_lm:
        if "mlm" not in names or len(names) == 1:
            raise InputError(
                f"--no-masked-lm: --arm {text} is {'+'.join(names)}; expected masked LM and another objective, as "
                "in l1 and contrastive"
            )
        names.remove("mlm")
        requirements = [objective_requirements(name) for name in names]
    masking = [name for name in names if objective_requirements(name).masks_text]
    if len(masking) > 1:
        raise InputError(
            f"--arm {text}: {' and '.join(masking)} both mask the text; train one of them (--no-masked-lm leaves "
            "mlm out)"
        )
    return ArmObjectives(
        names,
        any(one.needs_cross_modal for one in requirements),
        any(one.needs_teacher_flag for one in requirements),
        any(one.wraps_encoder for one in requirements),
        list(dict.fromkeys(one.teacher_setting for one in requirements if one.teacher_setting)),
    )


def check_options(options: Sequence[str], names: Sequence[str]) -> None:
    """Raises InputError for a malformed --option, or for options without a part of the user's own among `names`."""
    parse_options(options)
    if options and not any(is_import_path(name) for name in names):
        raise InputError(
            f"--option {options[0]}: only your own objectives and teachers, MODULE:NAME, read options; leave it out"
        )


def check_extra_objectives(extra: ExtraObjectiveSettings, training_step: str, command: str) -> None:
    """Raises InputError for an unknown objective, one without its teacher, or a teacher that no
    objective uses.

    A training step of the user's own may use the teacher.
    """
    taught = [name for name in extra.objectives if objective_requirements(name).needs_teacher_flag]
    if taught and not extra.teacher:
        raise InputError(f"{command}: {taught[0]} needs --teacher FOLDER_OR_HUB_ID")
    if extra.teacher and not taught and not is_import_path(training_step):
        raise InputError(
            f"{command}: no objective uses --teacher {extra.teacher}; name one that does, such as --objectives "
            "contrastive"
        )


def check_training_step(name: str, options: AdversarialSettings) -> None:
    """Raises InputError for adversarial settings without `--training-step villa`."""
    if options != AdversarialSettings() and (not name or is_import_path(name)):
        raise InputError("--adversarial-... settings need --training-step villa")


# Scores that papers report, shown beside the measured ones: found in the studies' `published` modules.


@dataclass(frozen=True)
class PublishedScores:
    """A paper's scores of one system."""

    name: str
    """The paper's name of the system."""
    scores: Mapping[str, float]
    """By task, in the metric's own units."""


def published_scores() -> dict[str, Mapping[str, float]]:
    """Scores of every published system, by name, then by task."""
    return {name: one.scores for name, one in registered("published", PublishedScores).items()}
