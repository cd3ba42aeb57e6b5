"""The command line: flags and help come from the dataclasses they fill; heavy imports wait until a command runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import field, make_dataclass
from typing import Annotated, Any

from .errors import InputError

COMMANDS = {
    "quickstart": "the whole path on a rendered world, offline, in minutes",
    "teach": "train a small CLIP teacher on captioned images",
    "adapt": "adapt a text encoder with a CLIP-like teacher (or without: the control)",
    "finetune": "fine-tune an encoder on a task, over seeds",
    "probe": "ask an encoder what it knows of a rendered world's nouns",
    "compare": "adapt and fine-tune several arms beside the control, and report",
    "info": "parameter counts of a preset or a model folder",
    "data": "`data check FOLDER` reports on data before any training; `data world` renders a world",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user's is one line on stderr and exit status 2."""
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    if not arguments or arguments[0] in {"-h", "--help"}:
        print("usage: groundling COMMAND [options]; `groundling COMMAND --help` lists the options\n")
        print("\n".join(f"  {name:<12}{text}" for name, text in COMMANDS.items()))
        return 0
    if arguments[0] == "--version":
        from importlib.metadata import version

        print(version("groundling"))
        return 0
    if arguments[0] not in COMMANDS:
        print(f"groundling: no command {arguments[0]!r}; there are: {', '.join(COMMANDS)}", file=sys.stderr)
        return 2
    try:
        return HANDLERS[arguments[0]](arguments[1:])
    except InputError as error:
        print(f"groundling: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("groundling: stopped; the same command goes on from the last checkpoint", file=sys.stderr)
        return 130


def _parse(command: str, arguments: list[str], **groups: Any) -> Any:
    """Fill dataclasses from flags; `groups` hold the defaults, prefixed with their name unless it begins with _."""
    import tyro

    members: list[Any] = [
        (name.lstrip("_"), Annotated[type(default), tyro.conf.arg(name="")] if name.startswith("_") else type(default),
         field(default=default))
        for name, default in groups.items()
    ]  # fmt: skip
    out = Annotated[str, tyro.conf.arg(help="Run folder; the same command again goes on from its last checkpoint.")]
    members.append(("out", out, field(default=f"runs/{command.replace(' ', '-')}")))
    options = make_dataclass("Options", members, frozen=True)
    return tyro.cli(options, prog=f"groundling {command}", description=COMMANDS[command.split()[0]], args=arguments)


def _quiet() -> None:
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()


def _print(result: dict[str, Any]) -> int:
    if int(os.environ.get("RANK", 0)) == 0:  # under torchrun, the first process speaks
        print(json.dumps(result, indent=2))
    return 0


def _quickstart(arguments: list[str]) -> int:
    from .config import QuickstartConfig

    values = _parse("quickstart", arguments, _own=QuickstartConfig())
    _quiet()
    from .quickstart import quickstart

    quickstart(values.own, values.out)
    return 0


def _teach(arguments: list[str]) -> int:
    from .config import TeachConfig, TrainConfig

    training = TrainConfig(epochs=20, batch=200, lr=1e-3, schedule="cosine", weight_decay=0.1)
    values = _parse("teach", arguments, _own=TeachConfig(), _train=training)
    _quiet()
    from .recipes.teach import teach

    return _print(teach(values.own, values.train, values.out))


def _adapt(arguments: list[str]) -> int:
    from .config import AdaptConfig, TrainConfig

    values = _parse("adapt", arguments, _own=AdaptConfig(), _train=TrainConfig())
    _quiet()
    from .recipes.adapt import adapt

    return _print(adapt(values.own, values.train, values.out))


def _finetune(arguments: list[str]) -> int:
    from .config import TUNING, FinetuneConfig

    values = _parse("finetune", arguments, _own=FinetuneConfig(), _train=TUNING)
    _quiet()
    from .recipes.finetune import finetune

    return _print(finetune(values.own, values.train, values.out))


def _probe(arguments: list[str]) -> int:
    from .config import PROBING, ProbeConfig

    values = _parse("probe", arguments, _own=ProbeConfig(), _train=PROBING)
    _quiet()
    from .recipes.probe import probe

    return _print(probe(values.own, values.train, values.out))


def _compare(arguments: list[str]) -> int:
    from .config import TUNING, AdaptConfig, CompareConfig, TrainConfig

    values = _parse("compare", arguments, _own=CompareConfig(), adapt=AdaptConfig(), train=TrainConfig(), tune=TUNING)
    _quiet()
    from .recipes.compare import compare

    compare(values.own, values.adapt, values.train, values.tune, values.out)
    return 0


def _info(arguments: list[str]) -> int:
    import argparse

    parser = argparse.ArgumentParser(prog="groundling info", description=COMMANDS["info"])
    parser.add_argument("name", help="a preset (xdbert-bert-base, xdbert-electra-base, ...) or a model folder")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    values = parser.parse_args(arguments)
    _quiet()
    from .models.presets import describe

    found = describe(values.name)
    if values.json:
        print(json.dumps(found))
    else:
        print(f"{found['name']}: {found['total']:,} parameters")
        print("\n".join(f"  {part:<12}{count:>14,}" for part, count in found["components"].items()))
    return 0


def _data(arguments: list[str]) -> int:
    if arguments[:1] == ["world"]:
        from .world import World, WorldConfig

        values = _parse("data world", arguments[1:], _own=WorldConfig())
        World(values.own).write(values.out)
        print(f"{values.out}: a world is written; `groundling data check {values.out}` describes it")
        return 0
    if arguments[:1] != ["check"] or len(arguments) != 2 or arguments[1] in {"-h", "--help"}:
        print("usage: groundling data check FOLDER | groundling data world [options]\n\n" + COMMANDS["data"])
        return 0 if "--help" in arguments or "-h" in arguments else 2
    from pathlib import Path

    from .data.check import check

    report = check(Path(arguments[1]))
    print("\n".join([f"{arguments[1]}: {report.layout}", *(f"  {line}" for line in report.lines)]))
    for line in report.problems:
        print(f"  problem: {line}", file=sys.stderr)
    return 0 if report.ok else 1


HANDLERS: dict[str, Callable[[list[str]], int]] = {
    "quickstart": _quickstart,
    "teach": _teach,
    "adapt": _adapt,
    "finetune": _finetune,
    "probe": _probe,
    "compare": _compare,
    "info": _info,
    "data": _data,
}


if __name__ == "__main__":
    sys.exit(main())
