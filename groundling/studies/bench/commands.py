"""Command and settings of the bench."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from groundling.command_line import COMMANDS as COMMANDS_BY_NAME
from groundling.command_line import Command
from groundling.core.errors import InputError, require_known
from groundling.core.registry import is_import_path, resolve_builtin
from groundling.runs.folder import open_run
from groundling.runs.outputs import ByPrefix, CommandOutput, Inputs
from groundling.runs.progress import CommandContext
from groundling.settings.fields import (
    Settings,
    refuse_settings,
    replace_settings,
    require_settings,
    settings,
)
from groundling.studies.bench.real_settings import RealSettings, check_real

QUESTIONS = ("truth", "category", "order", "odd")
"""Questions that can be fine-tuned on."""
Family = Literal["objects", "pictograms"]
WORLDS_ONLY = ("worlds", "families", "probe_seeds", "probes", "curve", "scale")
"""Settings that a bench on a real encoder does not read."""
NOT_OF_CURVES = ("adapt_seeds", "probe_seeds", "probes")
"""Settings that curves do not read."""
FAMILIES: tuple[Family, ...] = ("objects", "pictograms")
"""Families of rendered worlds; no setting was tuned on the second."""
TUNING_SEED = 100
"""Seed of the world of the first family in which weights are chosen."""
PROTOCOL_VERSION = 3
"""Increases with every change after which results of two benches are not comparable."""


@settings
class BenchConfig(Settings):
    """Comparison of methods that give a text encoder visual knowledge, with their controls."""

    method: tuple[str, ...] = ()
    """Methods: names of the package's, or MODULE:NAME of your own `BenchMethod` or objective; empty: \
all of the package."""
    worlds: tuple[Annotated[int, Ge(0)], ...] = (0, 1, 2, 3, 4)
    """Seeds of the rendered worlds of each family; a verdict needs at least three."""
    families: tuple[Family, ...] = FAMILIES
    """Families of rendered worlds, as in `data make-world --family`; each has its own verdict. \
Weights are chosen in a world of objects."""
    adapt_seeds: Annotated[int, Ge(1)] = 2
    """Adaptation seeds per world and arm."""
    probe_seeds: Annotated[int, Ge(1)] = 3
    """Fine-tuning seeds of the true/false and odd-one-out probes."""
    probes: tuple[str, ...] = ("truth", "category", "order")
    """Questions to fine-tune on: truth, category, order, odd (1,000 steps, slow)."""
    curve: tuple[str, ...] = ()
    """Instead of the whole bench: how the gain grows with images, captions, steps, layers, width, \
teacher (some of these). Runs --method, by default xdbert, contrastive and l1, and its text control, with one \
adaptation seed and linear readings only."""
    processes: Annotated[int, Ge(1)] = 2
    """Parallel runs, one thread each."""
    plan: bool = False
    """Print what will run and what is done, and stop."""
    report: bool = False
    """Instead of running: write the table, the page and bench.json of what is finished."""
    scale: Annotated[float, Gt(0)] = 1.0
    """Factor on all steps and, below 1, on the world's size: with less than 1 the models learn \
nothing, but the bench is tested."""
    real_encoder: RealSettings = field(default_factory=RealSettings)


def check(config: BenchConfig, out: str | Path) -> None:
    """Raises InputError for unknown methods, and for a verdict in the world in which weights are chosen."""
    check_real(config.real_encoder)
    names = WORLDS_ONLY if config.real_encoder.real else NOT_OF_CURVES if config.curve else ()
    usual = vars(BenchConfig())
    unread = {name: vars(config)[name] for name in names if vars(config)[name] != usual[name]}
    refuse_settings(unread, f"{'real' if config.real_encoder.real else 'curve'} does not read it")
    require_settings(config, "bench", "worlds", "families")
    for name in config.probes:
        require_known(name, QUESTIONS, f"probes: no question is called {name!r}")
    world = COMMANDS_BY_NAME["data make-world"]
    for name in config.families:  # an unknown one would end the bench after hours
        world.check_settings([replace_settings(world.settings["_own"], family=name), out])
    if FAMILIES[0] in config.families and TUNING_SEED in config.worlds:
        raise InputError(
            f"worlds={TUNING_SEED}: weights are chosen in this world of {FAMILIES[0]}; expected other seeds"
        )
    if any(not is_import_path(name) for name in config.method):
        from groundling.studies.bench.method import BenchMethod

        for name in config.method:
            if not is_import_path(name):
                resolve_builtin("methods", BenchMethod, name)


@dataclass(frozen=True)
class BenchOutput(CommandOutput):
    """A folder that several processes and machines fill together; more methods and worlds may be added."""

    def run(
        self, function: Callable[..., Any], name: str, settings: ByPrefix, out: str | Path
    ) -> Any:
        """The command's result; raises InputError if the folder is not a bench's, or has another scale."""
        config: BenchConfig = settings["_own"]
        identity: dict[str, Any] = {"scale": config.scale, "protocol": PROTOCOL_VERSION}
        inputs: Inputs = {}
        if config.real_encoder.real:
            identity, inputs = config.real_encoder.identity(), config.real_encoder.inputs()
        writes = not (config.plan or config.report)
        work = CommandContext(open_run(out, name, identity, inputs, writes))
        return work.with_notes(function(config, work))


BENCH = Command(
    "bench",
    "compare methods that give a text encoder visual knowledge, each with its controls",
    "groundling.studies.bench.run:bench",
    {"_own": BenchConfig()},
    title="Bench: which method gives a text encoder visual knowledge?",
    example="groundling bench --method contrastive --worlds 0 1 2 --out runs/bench",
    common_flags="method worlds families curve plan processes",
    validate=check,
    prints_output=True,
    out_help="Bench folder; running the same command again resumes, other methods and worlds are added, and several "
    "processes or machines may work on one folder.",
    output=BenchOutput(),
)


COMMANDS = (BENCH,)
