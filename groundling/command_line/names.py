"""What settings name: files, folders and models, which must exist; arms and objectives; and published systems."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from groundling.core.errors import InputError, did_you_mean, prefix_errors, require_known
from groundling.core.registry import is_import_path, public_modules
from groundling.data.tables import hub_dataset_identity, is_hub_dataset, read_rows, user_columns
from groundling.settings.fields import (
    InputKind,
    Setting,
    refuse_settings,
    setting_values,
    settings_of,
)
from groundling.settings.input_settings import (
    TableTaskSettings,
    parse_named_folder,
    parse_weighted_file,
    region_manifest,
)
from groundling.settings.objectives import ExtraObjectiveSettings

# Files, folders and models: whether they exist, and which of them identify a run.

NAMES = (None, InputKind.OBJECT, InputKind.COLUMN)
"""Kinds of texts that name no file, folder or model."""


def _named_inputs(config: object) -> Iterator[tuple[Setting, int, str]]:
    for one in settings_of(config):
        words = [one.value] if isinstance(one.value, str) else one.value
        for number, word in enumerate(filter(None, words if one.input not in NAMES else ())):
            if one.input is InputKind.WEIGHTED:
                word = parse_weighted_file(word, one.name).file
            elif one.input is InputKind.NAMED:
                word = parse_named_folder(word)[1] or word
            if not (one.input is InputKind.MODEL and is_import_path(word)):
                yield one, number, word


def input_paths(*configs: object) -> dict[str, str]:
    """Each file, folder and model by the name of its setting, and its number from the second one."""
    found = {}
    for one, number, path in (each for config in configs for each in _named_inputs(config)):
        is_store = one.name in ("regions", "train_regions")
        name = f"{one.name}:{number}" if number else one.name
        found[name] = region_manifest(path) if is_store else path
    return found


def check_inputs(
    config: object, prefix: str = "", skip: Callable[[str], bool] = lambda path: False
) -> None:
    """Raises InputError for files, folders and models that do not exist, which would end a run or a recipe late.

    `prefix` stands before a setting's name; `skip` decides which paths are not checked yet.
    """
    from groundling.models.hub import check_model

    has_own_format = setting_values(config).get("model_format")  # it may load anything
    for one, _, path in _named_inputs(config):
        if skip(path) or one.value == one.default:  # a default is not always read
            continue
        if one.input is InputKind.MODEL:
            with prefix_errors(f"{prefix}{one.name}"):
                if not has_own_format and path != "random":
                    check_model(path)
        elif is_hub_dataset(path):
            hub_dataset_identity(path)
        elif not Path(path).exists() and not (one.input is InputKind.DATA and path == "hub"):
            raise InputError(f"{prefix}{one.name}={path}: no such file or folder")
    own, data = vars(config).get("own"), str(setting_values(config).get("data", ""))
    if isinstance(own, TableTaskSettings) and own.label and data and not skip(data):
        for table in filter(None, (data, own.dev)):  # of `compare`, read hours later
            next(read_rows(table, tuple(user_columns(own)[1])), None)


if TYPE_CHECKING:
    from groundling.objectives import Objective

# Arms, which name objectives, and what a run of these reads.

TASKS_WITH_ANSWERS = tuple(["swag", "vqa", "vqa/minival", "vcr", "vcr/answer", "vcr/rationale"])
"""Tasks whose pre-training texts contain the right answer; a test compares them with the registry."""

ARMS = {
    "mlm": "mlm",
    "xdbert": "joint_mlm+match+clip_tokens",
    "l1": "mlm+l1",
    "contrastive": "mlm+contrastive",
}
"""Named arms; the control `mlm` uses the same text, steps and seeds, without a teacher."""


def parse_arm(
    text: str, masked_lm: bool = True, causal: bool = False
) -> dict[str, type[Objective]]:
    """The classes of the objectives of an arm by name, without `mlm` if `masked_lm` is off.

    For a `causal` student, `clm` takes the place of `mlm`.
    """
    from groundling.objectives import find_objective

    parts = [name for part in text.split("+") for name in ARMS.get(part, part).split("+")]
    if causal and masked_lm:
        parts = ["clm" if name == "mlm" else name for name in parts]
    kinds = {}
    for name in parts:
        with prefix_errors(f"arm={text}{did_you_mean(name, list(ARMS))}"):
            kinds[name] = find_objective(name)
    if "joint_mlm" in kinds:  # one masking per text: XDBERT's MLM is the joint one
        kinds.pop("mlm", None)
    if not masked_lm and (kinds.pop("mlm", None) is None or not kinds):
        raise InputError(
            f"masked_lm=False: arm={text} does not join masked LM and another objective"
        )
    masking = [name for name, one in kinds.items() if one.masks_text]
    if len(masking) > 1:
        both = " and ".join(masking)
        raise InputError(f"arm={text}: {both} both mask the text; masked_lm=False leaves mlm out")
    return kinds


def check_causal(arm: Mapping[str, type[Objective]], text: str, family: str) -> None:
    """Raises InputError for objectives, named by the arm `text`, that a causal model of this `family` cannot have."""
    both = [
        name
        for name, one in arm.items()
        if one.masks_text or one.needs_cross_modal or one.wraps_encoder()
    ]
    if both:
        raise InputError(
            f"arm={text}: {' and '.join(both)} {'needs' if len(both) == 1 else 'need'} both sides of a token, but a "
            f"{family} model reads those before it alone"
        )


def teacher_settings(arm: Mapping[str, type[Objective]]) -> list[str]:
    """The settings that name the teachers of an arm; `teacher` is also the CLIP of a cross-modal encoder."""
    needed = ["teacher" for one in arm.values() if one.needs_cross_modal]
    needed += [one.needed_teacher() for one in arm.values()]
    return [name for name in dict.fromkeys(needed) if name]


def check_lora(rank: int) -> None:
    """Raises InputError for adapters without the library that makes them."""
    if rank and find_spec("peft") is None:
        raise InputError(f"lora={rank} needs: pip install 'groundling[lora]'")


def check_training_step(config: object) -> None:
    """Raises InputError for an unknown training step, and for adversarial settings that no training step reads."""
    given = setting_values(config)
    step = given["training_step"]
    if step and not is_import_path(step):
        from groundling.training.training_steps import TRAINING_STEPS

        require_known(step, list(TRAINING_STEPS), f"training_step: no {step!r}", ", or MODULE:NAME")
    else:
        names = [name for name in given if name.startswith("adversarial_")]
        refuse_settings(config, "needs training_step=villa", *names)


def check_teacher(extra: ExtraObjectiveSettings, training_step: str) -> None:
    """Raises InputError for an unknown objective, one without its teacher, or a teacher that no objective uses.

    A training step of the user's own may use the teacher.
    """
    if not (extra.objectives or extra.teacher):
        return
    from groundling.objectives import find_objective

    kinds = {name: find_objective(name) for name in extra.objectives}
    taught = [name for name, one in kinds.items() if one.needed_teacher() == "teacher"]
    if taught and not extra.teacher:
        raise InputError(f"{taught[0]} needs teacher=FOLDER_OR_HUB_ID")
    if extra.teacher and not taught and not is_import_path(training_step):
        raise InputError(f"no objective uses teacher={extra.teacher}; name one, e.g. contrastive")


def published_scores() -> dict[str, Mapping[str, float]]:
    """Scores of every published system, by name, then by task, in the metric's own units."""
    tables = [vars(module)["PUBLISHED"] for module in public_modules("published")]
    return {system: scores for table in tables for system, scores in table.items()}
