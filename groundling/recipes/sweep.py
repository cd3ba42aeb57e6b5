"""A list of runs, over variants, tasks and seeds: what is done is never repeated, what is missing is made up."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from groundling.config import TUNING, AdaptConfig, FinetuneConfig, SweepConfig, TrainConfig
from groundling.data.tables import read_text
from groundling.errors import InputError
from groundling.find import named
from groundling.jobs import Job, run_jobs
from groundling.recipes.adapt import adapt, parts_of
from groundling.recipes.finetune import finetune
from groundling.recipes.verdict import judge_folders
from groundling.runs import open_run
from groundling.tasks import Task


@dataclass(frozen=True)
class Variant:
    """A model of the sweep: adapted as told, or one that is there already."""

    name: str
    adapt: AdaptConfig
    train: TrainConfig
    model: str = ""
    """Fine-tuned without adaptation: a hub id, a folder, or `joint of NAME`, which is another variant's whole model."""
    published: str = ""
    """Which published system it stands for, see `published.py`."""
    tune: tuple[tuple[str, Any], ...] = ()
    """Settings of its own for every fine-tuning, such as regions it does not see."""


@dataclass(frozen=True)
class Tuning:
    """A task of the sweep and how it is fine-tuned."""

    finetune: FinetuneConfig
    train: TrainConfig

    def of(self, variant: Variant) -> tuple[FinetuneConfig, TrainConfig]:
        """The settings for a variant, with its own."""
        return _filled(
            (self.finetune, self.train), dict(variant.tune), f'[variants."{variant.name}".tune]'
        )


@dataclass(frozen=True)
class Sweep:
    """Everything to run; the first variant is the control."""

    variants: tuple[Variant, ...]
    tunings: tuple[Tuning, ...]
    seeds: int = 5
    adapt_every_seed: bool = False
    """A seed adapts anew and fine-tunes; otherwise one adaptation, fine-tuned once per seed (the paper's way)."""


def read_sweep(path: str | Path) -> Sweep:
    """A sweep from TOML: `seeds`, `[adapt]`, `[tune]`, `[tasks."name"]`, `[variants."name"]` (and `.tune`); keys as
    the flags' names.

    Raises InputError naming the table and key that is unknown or of a wrong type.
    """
    try:
        content = tomllib.loads(read_text(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"{path}: not valid TOML ({error})") from None
    kinds = {
        "seeds": int,
        "adapt_every_seed": bool,
        "adapt": dict,
        "tune": dict,
        "tasks": dict,
        "variants": dict,
    }
    for key, value in content.items():
        if key not in kinds:
            raise InputError(f"{path}: unknown key {key!r}; expected {', '.join(sorted(kinds))}")
        if type(value) is not kinds[key]:
            what = {int: "a whole number", bool: "true or false", dict: "a table"}[kinds[key]]
            raise InputError(f"{path}: {key} = {value!r}, expected {what}")
    for key in ("tasks", "variants"):
        if not content.get(key) or not all(isinstance(own, dict) for own in content[key].values()):
            raise InputError(f"{path}: no [{key}.NAME] table")
    base = _filled((AdaptConfig(), TrainConfig()), content.get("adapt", {}), f"{path}, [adapt]")
    variants = []
    for name, own in content["variants"].items():
        where = f'{path}, [variants."{name}"]'
        model, published, change = (
            str(own.pop("model", "")),
            str(own.pop("published", "")),
            own.pop("tune", {}),
        )
        if not isinstance(change, dict):
            raise InputError(f"{where}: tune = {change!r}, expected a table")
        _filled((FinetuneConfig(), TUNING), change, f"{where}.tune")
        adapting, training = _filled(base, own, where)
        variants.append(Variant(name, adapting, training, model, published, tuple(change.items())))
    tune = _filled((FinetuneConfig(), TUNING), content.get("tune", {}), f"{path}, [tune]")
    tunings = [
        Tuning(*_filled((replace(tune[0], task=task), tune[1]), own, f'{path}, [tasks."{task}"]'))
        for task, own in content["tasks"].items()
    ]
    return Sweep(
        tuple(variants),
        tuple(tunings),
        content.get("seeds", 5),
        content.get("adapt_every_seed", False),
    )


def _filled(defaults: tuple[Any, Any], values: Mapping[str, Any], where: str) -> tuple[Any, Any]:
    """Two dataclasses with the values of one table; a key belongs to the one that has a field of its name."""
    out = list(defaults)
    for key, value in values.items():
        place = next(
            (i for i, part in enumerate(out) if key in {f.name for f in fields(part)}), None
        )
        if place is None:
            names = sorted({f.name for part in out for f in fields(part)})
            raise InputError(f"{where}: unknown key {key!r}; expected one of {', '.join(names)}")
        have = out[place].__dict__[key]
        value = tuple(value) if isinstance(value, list) else value
        kinds = (int, float) if isinstance(have, float) else (type(have),)
        if not isinstance(value, kinds) or (isinstance(value, bool) and not isinstance(have, bool)):
            raise InputError(f"{where}: {key} = {value!r}, expected a value like {have!r}")
        hint = get_type_hints(type(out[place]))[key]
        if get_origin(hint) is Literal and value not in get_args(hint):
            raise InputError(
                f"{where}: {key} = {value!r}, expected one of {', '.join(get_args(hint))}"
            )
        out[place] = replace(out[place], **{key: value})
    return out[0], out[1]


def sweep(
    what: Sweep, out: str | Path, processes: int = 1, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run what is missing into `out/VARIANT/...`, then judge every variant against the first one."""
    folders = [slug(variant.name) for variant in what.variants]
    for variant, own in zip(what.variants, folders, strict=True):
        parts_of(variant.adapt.arm)
        if folders.count(own) > 1:
            raise InputError(f"two variants would share the folder {own}; rename {variant.name!r}")
        source = variant.model.removeprefix("joint of ")
        if source != variant.model and source not in [
            v.name for v in what.variants if v.adapt.save_joint
        ]:
            raise InputError(
                f"{variant.name}: model is the joint of {source!r}, which is no variant with save_joint"
            )
    for tuning in what.tunings:
        named("tasks", Task, tuning.finetune.task)
        if not tuning.finetune.data:
            raise InputError(
                f"{tuning.finetune.task} needs `data`, the folder of its official files"
            )
    folder = open_run(
        out, "sweep", {}, {}
    )  # variants, tasks and seeds may grow: each run checks its own settings
    run_jobs(_jobs(what, folder), processes, say)
    groups = {v.name: folder / slug(v.name) for v in what.variants}
    return judge_folders(
        groups, folder, say=say, published={v.name: v.published for v in what.variants}
    )


def slug(name: str) -> str:
    """A name as a folder's name."""
    return "".join(c if c.isalnum() or c in "+-." else "-" for c in name).strip("-")


def _jobs(what: Sweep, out: Path) -> list[Job]:
    """Adaptations first, then task by task, so that a sweep cut short has whole columns."""
    adaptations: list[Job] = []
    tunings: list[list[Job]] = [[] for _ in what.tunings]
    for variant in what.variants:
        own = out / slug(variant.name)
        every = range(variant.train.seed, variant.train.seed + what.seeds)
        # One adaptation with all fine-tuning seeds, or one of both per seed.
        rounds = (
            [(own / f"seed-{s}", s) for s in every]
            if what.adapt_every_seed
            else [(own, variant.train.seed)]
        )
        for place, seed in rounds:
            model = variant.model
            after: tuple[str, ...] = ()
            if model.startswith("joint of "):
                source = out / slug(model.removeprefix("joint of ")) / place.relative_to(own)
                model, after = (
                    str(source / "adapt" / "joint"),
                    (f"{source.relative_to(out)}: adapt",),
                )
            elif not model:
                model, after = str(place / "adapt" / "model"), (f"{place.relative_to(out)}: adapt",)
                adapting = variant.adapt, replace(variant.train, seed=seed), place / "adapt"
                adaptations.append(Job(f"{place.relative_to(out)}: adapt", adapt, adapting))
            for number, tuning in enumerate(what.tunings):
                settings, training = tuning.of(variant)
                config = replace(
                    settings, model=model, seeds=1 if what.adapt_every_seed else what.seeds
                )
                training = replace(training, seed=seed) if what.adapt_every_seed else training
                name = f"{place.relative_to(out)}: {config.task}"
                tunings[number].append(
                    Job(name, finetune, (config, training, place / slug(config.task)), after)
                )
    return adaptations + [job for task in tunings for job in task]


def run_sweep(config: SweepConfig, out: str | Path) -> dict[str, Any]:
    """The sweep of a TOML file; `--seeds` overrides the file's."""
    if not config.file:
        raise InputError("sweep needs --file FILE.toml")
    what = read_sweep(config.file)
    return sweep(replace(what, seeds=config.seeds or what.seeds), out, config.processes)
