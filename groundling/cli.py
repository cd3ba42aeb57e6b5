"""The command line: flags and help come from the dataclasses they fill; heavy imports wait until a command runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any

from groundling import config
from groundling.errors import InputError

COMMANDS = {
    "quickstart": "the whole path on a rendered world, offline, in minutes",
    "teach": "train a small CLIP teacher on captioned images",
    "adapt": "adapt a text encoder with a CLIP-like teacher (or without: the control)",
    "regions": "regions of your own images, or of others' region files, as a store",
    "pretrain": "pre-train VisualBERT, VL-BERT or UNITER on captioned images",
    "finetune": "fine-tune an encoder on a task, over seeds",
    "probe": "ask an encoder what it knows of a rendered world's nouns",
    "ask": "ask an encoder what things look like: Memory Colors, CoDa, ViComTe",
    "compare": "adapt and fine-tune several arms beside the control, and judge them",
    "sweep": "a list of runs over variants, tasks and seeds; does what is missing",
    "verdict": "judge runs against a control's: intervals, permutation, one plain sentence each",
    "vcr": "VCR's joint score and server file, from runs on its answers and on its rationales",
    "similarity": "CCA, SVCCA and PWCCA of two encoders' word embeddings",
    "grounded": "do gains go with the share of visually grounded words?",
    "attention": "how diverse the attention of two cross-modal models is",
    "info": "parameter counts of a preset or a model folder",
    "data": "`check FOLDER` reports on data before any training, `world` renders one, `tasks` writes one as six \
vision-and-language data sets, `counts` counts captions' words",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user's is one line on stderr and exit status 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if arguments[:1] == ["regions"] and len(arguments) > 1 and not arguments[1].startswith("-"):
        arguments.insert(1, "--images")  # `groundling regions my_photos/`
    if not arguments or arguments[0] in {"-h", "--help"}:
        print(
            "usage: groundling COMMAND [options]; `groundling COMMAND --help` lists the options\n"
        )
        print("\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items()))
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("groundling"))
        return 0
    if arguments[0] not in COMMANDS:
        print(
            f"groundling: no command {arguments[0]!r}; there are: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    try:
        command, *rest = arguments
        return (
            {"info": _info, "data": _data}[command](rest)
            if command not in RECIPES
            else _run(command, rest)
        )
    except InputError as error:
        print(f"groundling: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(
            "groundling: stopped; the same command goes on from the last checkpoint",
            file=sys.stderr,
        )
        return 130


def _parse(command: str, arguments: list[str], **groups: Any) -> Any:
    """Fill dataclasses from flags; `groups` hold the defaults, prefixed with their name unless it begins with _."""
    import tyro

    members: list[Any] = [
        (
            name.lstrip("_"),
            Annotated[type(default), tyro.conf.arg(name="")]
            if name.startswith("_")
            else type(default),
            field(default=default),
        )
        for name, default in groups.items()
    ]
    out = Annotated[
        str,
        tyro.conf.arg(help="Run folder; the same command again goes on from its last checkpoint."),
    ]
    members.append(("out", out, field(default=f"runs/{command.replace(' ', '-')}")))
    options = make_dataclass("Options", members, frozen=True)
    return tyro.cli(
        options,
        prog=f"groundling {command}",
        description=COMMANDS[command.split()[0]],
        args=arguments,
    )


def _quiet() -> None:
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()


def _quickstart() -> Callable[..., Any]:
    from groundling.recipes.quickstart import quickstart

    return quickstart


def _teach() -> Callable[..., Any]:
    from groundling.recipes.teach import teach

    return teach


def _adapt() -> Callable[..., Any]:
    from groundling.recipes.adapt import adapt

    return adapt


def _regions() -> Callable[..., Any]:
    from groundling.recipes.regions import regions

    return regions


def _pretrain() -> Callable[..., Any]:
    from groundling.recipes.pretrain import pretrain

    return pretrain


def _finetune() -> Callable[..., Any]:
    from groundling.recipes.finetune import finetune

    return finetune


def _probe() -> Callable[..., Any]:
    from groundling.recipes.probe import probe

    return probe


def _ask() -> Callable[..., Any]:
    from groundling.recipes.ask import ask

    return ask


def _compare() -> Callable[..., Any]:
    from groundling.recipes.compare import compare

    return compare


def _sweep() -> Callable[..., Any]:
    from groundling.recipes.sweep import run_sweep

    return run_sweep


def _verdict() -> Callable[..., Any]:
    from groundling.recipes.verdict import verdict

    return verdict


def _vcr() -> Callable[..., Any]:
    from groundling.recipes.vcr import vcr

    return vcr


def _similarity() -> Callable[..., Any]:
    from groundling.recipes.similarity import similarity

    return similarity


def _grounded() -> Callable[..., Any]:
    from groundling.recipes.grounded import grounded

    return grounded


def _attention() -> Callable[..., Any]:
    from groundling.recipes.attention import attention

    return attention


RECIPES: dict[str, tuple[dict[str, Any], Callable[[], Callable[..., Any]]]] = {
    "quickstart": ({"_own": config.QuickstartConfig()}, _quickstart),
    "teach": ({"_own": config.TeachConfig(), "_train": config.TEACHING}, _teach),
    "adapt": ({"_own": config.AdaptConfig(), "_train": config.TrainConfig()}, _adapt),
    "regions": ({"_own": config.RegionsConfig()}, _regions),
    "pretrain": ({"_own": config.PretrainConfig(), "_train": config.PRETRAINING}, _pretrain),
    "finetune": ({"_own": config.FinetuneConfig(), "_train": config.TUNING}, _finetune),
    "probe": ({"_own": config.ProbeConfig(), "_train": config.PROBING}, _probe),
    "ask": ({"_own": config.AskConfig()}, _ask),
    "compare": (
        {
            "_own": config.CompareConfig(),
            "adapt": config.AdaptConfig(),
            "train": config.TrainConfig(),
            "tune": config.TUNING,
        },
        _compare,
    ),
    "sweep": ({"_own": config.SweepConfig()}, _sweep),
    "verdict": ({"_own": config.VerdictConfig()}, _verdict),
    "vcr": ({"_own": config.VcrConfig()}, _vcr),
    "similarity": ({"_own": config.SimilarityConfig()}, _similarity),
    "grounded": ({"_own": config.GroundedConfig()}, _grounded),
    "attention": ({"_own": config.AttentionConfig()}, _attention),
}
"""Each command's settings, and the recipe that takes them (and the run folder) in this order."""

SPEAK = {"quickstart", "compare", "sweep", "verdict"}
"""Recipes that print for themselves; of the others the result is printed."""


def _run(command: str, arguments: list[str]) -> int:
    groups, recipe = RECIPES[command]
    values = _parse(command, arguments, **groups)
    _quiet()
    settings = [values.__dict__[name.lstrip("_")] for name in groups]
    result = recipe()(*settings, values.out)
    if (
        command not in SPEAK and int(os.environ.get("RANK", 0)) == 0
    ):  # under torchrun, the first process speaks
        print(json.dumps(result, indent=2))
    return 0


def _info(arguments: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="groundling info", description=COMMANDS["info"])
    parser.add_argument(
        "name", help="a preset (xdbert-bert-base, xdbert-electra-base, ...) or a model folder"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    values = parser.parse_args(arguments)
    _quiet()
    from groundling.presets import describe

    found = describe(values.name)
    if values.json:
        print(json.dumps(found))
    else:
        print(f"{found['name']}: {found['total']:,} parameters")
        print("\n".join(f"  {part:<12}{count:>14,}" for part, count in found["components"].items()))
    return 0


def _data(arguments: list[str]) -> int:
    if arguments[:1] == ["world"]:
        from groundling.world import World, WorldConfig

        values = _parse("data world", arguments[1:], _own=WorldConfig())
        World(values.own).write(values.out)
        print(
            f"{values.out}: a world is written; `groundling data check {values.out}` describes it"
        )
        return 0
    if arguments[:1] == ["tasks"]:
        from pathlib import Path

        from groundling.recipes.quickstart import new_encoder
        from groundling.world import World, WorldConfig
        from groundling.world.tasks import write_tasks

        values = _parse("data tasks", arguments[1:], _own=config.TasksConfig(), world=WorldConfig())
        print(
            json.dumps(
                write_tasks(World(values.world), values.out, values.own.train, values.own.held),
                indent=2,
            )
        )
        new_encoder(
            Path(values.out) / "texts.txt", Path(values.out) / "bert", values.world.seed, 3, 64
        )
        return 0
    if arguments[:1] == ["counts"]:
        values = _parse("data counts", arguments[1:], _own=config.CountsConfig())
        _quiet()
        from groundling.recipes.count import count

        print(count(values.own, values.out))
        return 0
    if arguments[:1] != ["check"] or len(arguments) != 2 or arguments[1] in {"-h", "--help"}:
        print(
            "usage: groundling data check FOLDER | data {world,tasks,counts} [options]\n\n"
            + COMMANDS["data"]
        )
        return 0 if "--help" in arguments or "-h" in arguments else 2
    from pathlib import Path

    from groundling.check.folder import check

    report = check(Path(arguments[1]))
    print("\n".join([f"{arguments[1]}: {report.layout}", *(f"  {line}" for line in report.lines)]))
    for line in report.problems:
        print(f"  problem: {line}", file=sys.stderr)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
