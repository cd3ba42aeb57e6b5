"""A list of runs, over variants, tasks and seeds: what is done is never repeated, what is missing is completed."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from groundling.config import (
    TUNING,
    AdaptConfig,
    FinetuneConfig,
    SweepConfig,
    TrainConfig,
    changed,
    flat,
    need,
)
from groundling.data.tables import read_text
from groundling.errors import InputError
from groundling.find import named
from groundling.jobs import Job, run_jobs
from groundling.published import PUBLISHED
from groundling.recipes.adapt import adapt, arm_of
from groundling.recipes.finetune import finetune
from groundling.recipes.judging import judge_folders
from groundling.runs import open_run
from groundling.tasks import Task

First = TypeVar("First")
Second = TypeVar("Second")


@dataclass(frozen=True)
class Variant:
    """A model of the sweep: adapted as told, or one that is there already."""

    name: str
    """What reports call it."""
    adapt: AdaptConfig
    """How it is adapted."""
    train: TrainConfig
    """How that is optimised."""
    model: str = ""
    """Fine-tuned without adaptation: a hub id, a folder, or `joint of NAME`, which is another variant's whole model."""
    published: str = ""
    """Which published system it stands for, see `published.py`."""
    tune: tuple[tuple[str, Any], ...] = ()
    """Settings of its own for every fine-tuning, such as regions it does not see."""

    @property
    def joint_of(self) -> str:
        """The variant whose whole model is fine-tuned; empty if none is."""
        return self.model.removeprefix(JOINT_OF) if self.model.startswith(JOINT_OF) else ""


JOINT_OF = "joint of "
SEEDS = 5
"""Runs of every task, where nothing says how many."""


@dataclass(frozen=True)
class Tuning:
    """A task of the sweep and how it is fine-tuned."""

    finetune: FinetuneConfig
    """The task, its data and its settings."""
    train: TrainConfig
    """How that is optimised."""
    seeds: int = 0
    """Runs of this task (XDBERT has 9 of RTE, 5 of the rest); 0: as many as the sweep says."""

    def of(self, variant: Variant) -> tuple[FinetuneConfig, TrainConfig]:
        """The settings for a variant, with its own."""
        where = f'[variants."{variant.name}".tune]'
        return _filled((self.finetune, self.train), dict(variant.tune), where)


@dataclass(frozen=True)
class Sweep:
    """Everything to run; the first variant is the control."""

    variants: tuple[Variant, ...]
    """The models."""
    tunings: tuple[Tuning, ...]
    """The tasks."""
    seeds: int = SEEDS
    """Runs of every task that has no number of its own."""
    adapt_every_seed: bool = False
    """A seed adapts anew and fine-tunes; otherwise one adaptation, fine-tuned once per seed (the paper's way)."""

    def seeds_of(self, tuning: Tuning) -> int:
        """Runs of a task."""
        return tuning.seeds or self.seeds


TABLES = {
    "seeds": int,
    "adapt_every_seed": bool,
    "adapt": dict,
    "tune": dict,
    "tasks": dict,
    "variants": dict,
}
"""What a sweep's file may hold."""
KINDS = {int: "a whole number", bool: "true or false", dict: "a table"}


def read_sweep(path: str | Path) -> Sweep:
    """A sweep from TOML: `seeds`, `[adapt]`, `[tune]`, `[tasks."name"]`, `[variants."name"]` (and `.tune`).

    Keys are the flags' names. `seeds` may stand above all tables, in `[tune]`, and in a task's own table; the most
    special one counts. Raises InputError naming the table and key that is unknown or of a wrong type.
    """
    content = _content(path)
    adapting = _filled((AdaptConfig(), TrainConfig()), content.get("adapt", {}), f"{path}, [adapt]")
    variants = [
        _variant(name, table, adapting, path) for name, table in content["variants"].items()
    ]
    shared = content.get("tune", {})
    tuning = _filled((FinetuneConfig(), TUNING), shared, f"{path}, [tune]")
    _check_no_model(shared, f"{path}, [tune]")
    default = _seeds(shared, f"{path}, [tune]") or _seeds(content, str(path)) or SEEDS
    tunings = [_tuning(task, table, tuning, path) for task, table in content["tasks"].items()]
    return Sweep(tuple(variants), tuple(tunings), default, content.get("adapt_every_seed", False))


def _seeds(table: Mapping[str, Any], where: str) -> int:
    """A table's `seeds`, 0 if it has none; raises InputError if they are fewer than 1."""
    if "seeds" not in table:
        return 0
    seeds = int(table["seeds"])
    if seeds < 1:
        raise InputError(f"{where}: seeds = {seeds}, expected at least 1")
    return seeds


def _content(path: str | Path) -> dict[str, Any]:
    """The file, with tables where tables belong."""
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML ({error})") from None
    for key, value in content.items():
        if key not in TABLES:
            raise InputError(f"{path}: unknown key {key!r}; expected {', '.join(sorted(TABLES))}")
        if type(value) is not TABLES[key]:
            raise InputError(f"{path}: {key} = {value!r}, expected {KINDS[TABLES[key]]}")
    for key in ("tasks", "variants"):
        tables = content.get(key)
        if not tables or not all(isinstance(table, dict) for table in tables.values()):
            raise InputError(f"{path}: no [{key}.NAME] table")
    return content


def _variant(
    name: str, table: dict[str, Any], adapting: tuple[AdaptConfig, TrainConfig], path: str | Path
) -> Variant:
    where = f'{path}, [variants."{name}"]'
    rest = dict(table)
    model = str(rest.pop("model", ""))
    published = str(rest.pop("published", ""))
    tune = rest.pop("tune", {})
    if not isinstance(tune, dict):
        raise InputError(f"{where}: tune = {tune!r}, expected a table")
    # A mistake is told now, not after hours.
    _filled((FinetuneConfig(), TUNING), tune, f"{where}.tune")
    _check_no_model(tune, f"{where}.tune")
    if published and published not in PUBLISHED:
        raise InputError(
            f"{where}: published = {published!r}, expected one of {', '.join(PUBLISHED)}"
        )
    if "seeds" in tune:
        raise InputError(
            f"{where}.tune: seeds = {tune['seeds']}; every variant has the same seeds, "
            "which belong above all tables, in [tune] or in a task's own table"
        )
    config, training = _filled(adapting, rest, where)
    return Variant(name, config, training, model, published, tuple(tune.items()))


def _tuning(
    task: str,
    table: dict[str, Any],
    tuning: tuple[FinetuneConfig, TrainConfig],
    path: str | Path,
) -> Tuning:
    where = f'{path}, [tasks."{task}"]'
    config, training = _filled((replace(tuning[0], task=task), tuning[1]), table, where)
    _check_no_model(table, where)
    return Tuning(config, training, _seeds(table, where))


def _check_no_model(table: Mapping[str, Any], where: str) -> None:
    """Raises InputError for a model among the settings of a fine-tuning: it would be replaced by each variant's."""
    if "model" in table:
        raise InputError(
            f"{where}: model = {table['model']!r}; a model belongs in the table of a variant"
        )


def _filled(
    defaults: tuple[First, Second], values: Mapping[str, Any], where: str
) -> tuple[First, Second]:
    """Two configurations with the values of one table; a key belongs to the one that has a setting of its name."""
    first, second = defaults
    for key, value in values.items():
        value = tuple(value) if isinstance(value, list) else value
        for place, config in enumerate((first, second)):
            holders = [group for group, one in flat(config) if one.name == key]
            if holders:
                _check_value(holders[0], key, value, where)
                if place == 0:
                    first = changed(first, **{key: value})
                else:
                    second = changed(second, **{key: value})
                break
        else:
            names = sorted({one.name for config in (first, second) for _, one in flat(config)})
            raise InputError(f"{where}: unknown key {key!r}; expected one of {', '.join(names)}")
    return first, second


def _check_value(group: object, key: str, value: object, where: str) -> None:
    """Raises InputError for a value of another type than the setting's default, or none of its choices."""
    before = vars(group)[key]
    kinds = (int, float) if isinstance(before, float) else (type(before),)
    wrong_bool = isinstance(value, bool) and not isinstance(before, bool)
    if not isinstance(value, kinds) or wrong_bool:
        raise InputError(f"{where}: {key} = {value!r}, expected a value like {before!r}")
    hint = get_type_hints(type(group))[key]
    if isinstance(value, tuple) and not all(isinstance(one, str) for one in value):
        raise InputError(f"{where}: {key} = {list(value)!r}, expected a list of texts")
    if get_origin(hint) is Literal and value not in get_args(hint):
        raise InputError(f"{where}: {key} = {value!r}, expected one of {', '.join(get_args(hint))}")


def sweep(
    what: Sweep, out: str | Path, processes: int = 1, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run what is missing into `out/VARIANT/...`, then judge every variant against the first one.

    Raises InputError for a variant or task that does not fit, before anything runs.
    """
    _check_variants(what.variants)
    for tuning in what.tunings:
        named("tasks", Task, tuning.finetune.task)
        if not tuning.finetune.data:
            raise InputError(
                f"{tuning.finetune.task} needs `data`, the folder of its official files"
            )
    # Variants, tasks and seeds may grow: each run checks its own settings.
    folder = open_run(out, "sweep", {}, {})
    run_jobs(_jobs(what, folder), processes, say)
    groups = {variant.name: folder / slug(variant.name) for variant in what.variants}
    published = {variant.name: variant.published for variant in what.variants}
    return judge_folders(groups, folder, say=say, published=published)


def _check_variants(variants: Sequence[Variant]) -> None:
    """Raises InputError for an unknown arm, two variants with one folder, and a joint of nothing."""
    folders = [slug(variant.name) for variant in variants]
    with_joint = [variant.name for variant in variants if variant.adapt.crossing.save_joint]
    for variant, folder in zip(variants, folders, strict=True):
        arm_of(variant.adapt.arm)
        if folders.count(folder) > 1:
            raise InputError(
                f"two variants would share the folder {folder}; rename {variant.name!r}"
            )
        if variant.joint_of and variant.joint_of not in with_joint:
            raise InputError(
                f"{variant.name}: model is the joint of {variant.joint_of!r}, which is no variant with save_joint"
            )


def slug(name: str) -> str:
    """A name as a folder's name."""
    letters = (letter if letter.isalnum() or letter in "+-." else "-" for letter in name)
    return "".join(letters).strip("-")


@dataclass(frozen=True)
class _Round:
    """One adaptation of a variant and what is fine-tuned from it."""

    variant: Variant
    folder: Path
    seed: int
    """Of the adaptation; of the fine-tuning, too, where every seed adapts anew."""


def _rounds(what: Sweep, variant: Variant, out: Path) -> list[_Round]:
    """One adaptation with all fine-tuning seeds, or one of both per seed."""
    folder = out / slug(variant.name)
    first = variant.train.seed
    if not what.adapt_every_seed:
        return [_Round(variant, folder, first)]
    most = max(what.seeds_of(tuning) for tuning in what.tunings)
    return [_Round(variant, folder / f"seed-{s}", s) for s in range(first, first + most)]


def _jobs(what: Sweep, out: Path) -> list[Job]:
    """Adaptations first, then task by task, so that a sweep cut short has whole columns."""
    rounds = [one for variant in what.variants for one in _rounds(what, variant, out)]
    jobs = []
    for one in rounds:
        if not one.variant.model:
            training = replace(one.variant.train, seed=one.seed)
            target = one.folder / "adapt"
            jobs.append(
                Job(_adapting(one.folder, out), adapt, (one.variant.adapt, training, target))
            )
    for tuning in what.tunings:
        jobs += [_tuning_job(what, tuning, one, out) for one in rounds if _runs(what, tuning, one)]
    return jobs


def _runs(what: Sweep, tuning: Tuning, one: _Round) -> bool:
    """Whether a task wants this round: of several adaptations, as many as it has seeds."""
    return not what.adapt_every_seed or one.seed - one.variant.train.seed < what.seeds_of(tuning)


def _tuning_job(what: Sweep, tuning: Tuning, one: _Round, out: Path) -> Job:
    config, training = tuning.of(one.variant)
    if what.adapt_every_seed:
        config = replace(config, seeds=1)
        training = replace(training, seed=one.seed)
    else:
        config = replace(config, seeds=what.seeds_of(tuning))
    model, after = _model_of(one, out)
    target = one.folder / slug(config.task)
    name = f"{one.folder.relative_to(out)}: {config.task}"
    return Job(name, finetune, (replace(config, model=model), training, target), after)


def _model_of(one: _Round, out: Path) -> tuple[str, tuple[str, ...]]:
    """What is fine-tuned, and the adaptation that must come before."""
    variant = one.variant
    if variant.joint_of:
        source = out / slug(variant.joint_of) / one.folder.relative_to(out / slug(variant.name))
        return str(source / "adapt" / "joint"), (_adapting(source, out),)
    if variant.model:
        return variant.model, ()
    return str(one.folder / "adapt" / "model"), (_adapting(one.folder, out),)


def _adapting(folder: Path, out: Path) -> str:
    return f"{folder.relative_to(out)}: adapt"


def run_sweep(config: SweepConfig, out: str | Path) -> dict[str, Any]:
    """The sweep of a TOML file; `--seeds` overrides the file's, those of single tasks too."""
    need(config, "sweep", "file")
    what = read_sweep(config.file)
    if config.seeds:
        tunings = tuple(replace(tuning, seeds=0) for tuning in what.tunings)
        what = replace(what, seeds=config.seeds, tunings=tunings)
    return sweep(what, out, config.processes)
