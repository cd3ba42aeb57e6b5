"""Arms, which name objectives, and checks of the objectives that settings name; published scores by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from groundling.core.errors import InputError, did_you_mean, prefix_errors, require_known
from groundling.core.registry import is_import_path, registered
from groundling.settings.objectives import (
    AdversarialSettings,
    ExtraObjectiveSettings,
    parse_options,
)

if TYPE_CHECKING:
    from groundling.objectives import ObjectiveSpec

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


@dataclass(frozen=True)
class ArmObjectives:
    """Objectives of an arm."""

    names: list[str]
    """Names of the objectives, without repetition."""
    specs: list[ObjectiveSpec]
    """The objectives."""

    @property
    def needs_cross_modal(self) -> bool:
        """Whether any needs the cross-modal encoder."""
        return any(one.needs_cross_modal for one in self.specs)

    @property
    def needs_teacher(self) -> bool:
        """Whether any needs features of the setting `teacher`."""
        return any(one.needs_teacher and not one.teacher_setting for one in self.specs)

    @property
    def wraps_encoder(self) -> bool:
        """Whether any trains a model of its own around the text encoder."""
        return any(one.wrap_encoder is not None for one in self.specs)

    @property
    def teacher_settings(self) -> list[str]:
        """Settings that name further teachers."""
        return list(dict.fromkeys(one.teacher_setting for one in self.specs if one.teacher_setting))


def parse_arm(text: str, masked_lm: bool = True) -> ArmObjectives:
    """The objectives of `--arm`, without `mlm` if `masked_lm` is off; raises InputError for an
    unknown name.
    """
    from groundling.objectives import find_objective

    parts = text.split("+")
    for part in parts:
        if parts.count(part) > 1:
            raise InputError(
                f"arm={text}: {part} is given twice but would be trained once; remove one"
            )
    names = [name for part in parts for name in ARMS.get(part, part).split("+")]
    names = list(dict.fromkeys(names))
    for name in names:
        with prefix_errors(f"arm={text}{did_you_mean(name, ARMS)}"):
            find_objective(name)
    if {"mlm", "joint_mlm"} <= set(names):
        names.remove("mlm")  # one masking per text: XDBERT's MLM is the joint one
    if not masked_lm:
        if "mlm" not in names or len(names) == 1:
            raise InputError(
                f"masked_lm=False: arm={text} is {'+'.join(names)}; expected masked LM and another objective, as "
                "in l1 and contrastive"
            )
        names.remove("mlm")
    specs = {name: find_objective(name) for name in names}
    masking = [name for name, one in specs.items() if one.masks_text]
    if len(masking) > 1:
        raise InputError(
            f"arm={text}: {' and '.join(masking)} both mask the text; train one of them (masked_lm=False leaves "
            "mlm out)"
        )
    return ArmObjectives(names, list(specs.values()))


def check_options(options: Sequence[str], names: Sequence[str]) -> None:
    """Raises InputError for a malformed --option, or for options without a part of the user's own among `names`."""
    parse_options(options)
    if options and not any(is_import_path(name) for name in names):
        raise InputError(
            f"option={options[0]}: only your own objectives and teachers, MODULE:NAME, read options; leave it out"
        )


def check_extra_objectives(extra: ExtraObjectiveSettings, training_step: str, command: str) -> None:
    """Raises InputError for an unknown objective, one without its teacher, or a teacher that no
    objective uses.

    A training step of the user's own may use the teacher.
    """
    taught = [name for name in extra.objectives if _needs_teacher(name)]
    if taught and not extra.teacher:
        raise InputError(f"{command}: {taught[0]} needs teacher=FOLDER_OR_HUB_ID")
    if extra.teacher and not taught and not is_import_path(training_step):
        raise InputError(
            f"{command}: no objective uses teacher={extra.teacher}; name one that does, such as objectives "
            "contrastive"
        )


def _needs_teacher(name: str) -> bool:
    from groundling.objectives import find_objective

    spec = find_objective(name)
    return spec.needs_teacher and not spec.teacher_setting


def check_training_step(name: str, options: AdversarialSettings) -> None:
    """Raises InputError for an unknown step, and for adversarial settings without `--training-step villa`."""
    if name and not is_import_path(name):
        from groundling.training.training_steps import TRAINING_STEPS

        require_known(name, TRAINING_STEPS, f"no training step is called {name!r}")
    if options != AdversarialSettings() and (not name or is_import_path(name)):
        raise InputError("adversarial_... settings need training_step=villa")


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
