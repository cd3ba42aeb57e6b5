"""Arms, objectives, inner steps, designs and tasks by name, as the source of their modules tells them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import groundling
from groundling.core.errors import InputError, did_you_mean, require_known
from groundling.core.registry import is_import_path, kind_name, registered
from groundling.settings.objectives import AdversarialSettings, ExtraObjectiveSettings

TASKS = (
    *("glue/cola", "glue/mnli", "glue/mrpc", "glue/qnli", "glue/qqp", "glue/rte"),
    *("glue/sst-2", "glue/sts-b", "glue/wnli", "readability", "swag", "swag/full"),
    *("vqa", "vqa/minival", "vcr", "vcr/answer", "vcr/rationale", "snli-ve", "nlvr2"),
    *("flickr30k", "flickr30k/merged"),
    *("refcoco", "refcoco/mattnet", "refcoco+", "refcoco+/mattnet"),
    *("refcocog", "refcocog/google", "refcocog/mattnet"),
    *("world/category", "world/odd", "world/order", "world/truth"),
)
"""A test compares them with what is there."""

TOLD = ("swag", "swag/full", "vqa", "vqa/minival", "vcr", "vcr/answer", "vcr/rationale")
"""Those whose texts tell their labels in pre-training, being followed by what is right; a test compares these, too."""

ARMS = {
    "mlm": "mlm",
    "xdbert": "joint_mlm+match+clip_tokens",
    "l1": "mlm+l1",
    "contrastive": "mlm+contrastive",
}
"""Named arms; the control `mlm` is text, steps and seeds like the others, without a teacher."""


@cache
def declared_objects(folder: str, kind: str) -> dict[str, dict[str, Any]]:
    """The objects of a kind (`ObjectiveSpec`, `Architecture`, ...) in the modules of a sub-package, without an import.

    By name; each with what else its maker is given that is a plain value, such as `needs_teacher`.
    """
    found: dict[str, dict[str, Any]] = {}
    root = Path(groundling.__file__).parent
    inside = folder.replace(".", "/")
    for path in sorted([*root.glob(f"{inside}/[a-z]*.py"), *root.glob(f"studies/*/{inside}/*.py")]):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            made = node.value if isinstance(node, ast.Assign) else None
            if isinstance(made, ast.Call) and ast.unparse(made.func) == kind:
                words = {word.arg or "": word.value for word in made.keywords}
                name = made.args[0] if made.args else words.pop("name")
                plain: dict[str, Any] = {
                    key: value.value
                    for key, value in words.items()
                    if isinstance(value, ast.Constant)
                }
                found[ast.literal_eval(name)] = plain
    return found


def check_name(folder: str, kind: str, name: str) -> None:
    """Raises InputError for a name that no module of a sub-package offers; an empty one, or MODULE:NAME, is let be."""
    if name and not is_import_path(name):
        _check_offered(folder, kind, name)


def _check_offered(folder: str, kind: str, name: str) -> None:
    there = sorted(TASKS) if folder == "tasks" else sorted(declared_objects(folder, kind))
    require_known(name, there, f"no {kind_name(folder)} is called {name!r}")


@dataclass(frozen=True)
class ObjectiveRequirements:
    """What a command must know of an objective before it is made."""

    needs_cross_modal: bool
    """It reads states after the cross-modal encoder."""
    needs_teacher: bool
    """It reads a teacher's features."""


def objective_requirements(name: str) -> ObjectiveRequirements:
    """Of an objective by name, or of your own, MODULE:NAME, which is imported; raises InputError if there is none."""
    if is_import_path(name):
        from groundling.objectives import find_objective

        part = find_objective(name)
        return ObjectiveRequirements(part.needs_cross_modal, part.needs_teacher)
    _check_offered("objectives", "ObjectiveSpec", name)
    told = declared_objects("objectives", "ObjectiveSpec")[name]
    return ObjectiveRequirements(
        bool(told.get("needs_cross_modal")), bool(told.get("needs_teacher"))
    )


@dataclass(frozen=True)
class Arm:
    """What an arm is made of."""

    names: list[str]
    """Objectives, each once."""
    joint: bool
    """Some of them need the cross-modal encoder."""
    taught: bool
    """Some of them need a teacher's features."""


def parse_arm(text: str, masked_lm: bool = True) -> Arm:
    """What `--arm` asks for, without `mlm` if `masked_lm` is off; raises InputError for an unknown name."""
    told = text.split("+")
    for part in told:
        if told.count(part) > 1:
            raise InputError(f"--arm {text}: {part} is there twice, and would be trained once")
    names = [name for part in told for name in ARMS.get(part, part).split("+")]
    names = list(dict.fromkeys(names))
    for name in names:
        try:
            objective_requirements(name)
        except InputError as error:
            more = did_you_mean(name, ARMS) or f"; {error}"
            raise InputError(f"--arm {text}: {name!r} is none of {', '.join(ARMS)}{more}") from None
    facts = [objective_requirements(name) for name in names]
    if {"mlm", "joint_mlm"} <= set(names):
        names.remove("mlm")  # one masking per text: within XDBERT, MLM is joint
    if not masked_lm:
        if "mlm" not in names or len(names) == 1:
            raise InputError(
                f"--no-masked-lm: --arm {text} is {'+'.join(names)}; expected masked LM and an objective beside it, as "
                "in l1 and contrastive"
            )
        names.remove("mlm")
        facts = [objective_requirements(name) for name in names]
    return Arm(
        names, any(one.needs_cross_modal for one in facts), any(one.needs_teacher for one in facts)
    )


def check_extra_objectives(extra: ExtraObjectiveSettings, inner: str, command: str) -> None:
    """Raises InputError for an unknown objective, one without its teacher, or a teacher whose features nobody reads.

    An inner step of one's own may read them.
    """
    taught = [name for name in extra.objectives if objective_requirements(name).needs_teacher]
    if taught and not extra.teacher:
        raise InputError(f"{command}: {taught[0]} needs --teacher FOLDER_OR_HUB_ID")
    if extra.teacher and not taught and not is_import_path(inner):
        raise InputError(
            f"{command}: nothing reads --teacher {extra.teacher}; name an objective that does, such as --objectives "
            "contrastive"
        )


def check_training_step(name: str, options: AdversarialSettings) -> None:
    """Raises InputError for options that nothing reads, since the inner step is another one or none."""
    if options != AdversarialSettings() and (not name or is_import_path(name)):
        raise InputError(
            "--adversarial-... are settings of --training-step villa, which is not chosen"
        )


# What papers report of their systems, to stand beside what is measured here: found in studies' `published`.


@dataclass(frozen=True)
class PublishedScores:
    """A paper's numbers of one system."""

    name: str
    """What the paper calls it."""
    scores: Mapping[str, float]
    """By task, in the metric's own units."""


def published_scores() -> dict[str, Mapping[str, float]]:
    """The numbers of every system that a paper reports, by its name, then by task."""
    return {name: one.scores for name, one in registered("published", PublishedScores).items()}
