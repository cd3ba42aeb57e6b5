"""The command line: one table of commands, one parser; flags and help come from the dataclasses they fill.

Heavy imports wait until a command runs.
"""

from __future__ import annotations

import importlib
import os
import re
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass, field, is_dataclass, make_dataclass
from difflib import get_close_matches
from io import StringIO
from itertools import dropwhile, takewhile
from typing import Annotated, Any, cast, get_type_hints
from zipfile import BadZipFile

from groundling import __version__, config
from groundling.documented import summary_of
from groundling.errors import InputError, first_line, nearest
from groundling.progress import heard, is_first
from groundling.runs import json_text


@dataclass(frozen=True)
class Command:
    """One command of the table."""

    summary: str
    """What it does, in one line."""
    recipe: str
    """MODULE:NAME of the function that takes the settings and the run folder, in this order."""
    settings: Mapping[str, Any]
    """Its settings by prefix of their flags, with their defaults; the prefix of names that begin with _ is left out."""
    positional: tuple[str, ...] = ()
    """The flags that the first bare words mean, as in `groundling regions my_photos`."""
    out: bool = True
    """Whether it has a run folder, or writes a file."""
    file: str = ""
    """The file that it writes, if nobody says which; empty: a run folder."""
    writes: str = ""
    """What its `--out` is, in words, if neither a run folder nor a table."""
    needs: tuple[str, ...] = ()
    """Settings that must be given, where its rules do not say so."""
    rules: str = ""
    """MODULE:NAME of a function that loads no torch and raises InputError for settings that do not go together; it \
takes what the recipe takes, and the recipe calls it, too, whoever calls that; empty: there are none."""
    speaks: bool = False
    """It prints for itself, and may return an exit status; of other commands the result is printed."""

    def check(self, name: str, values: Sequence[Any]) -> None:
        """What can be told before torch is loaded, which takes seconds; `values`: its settings and its `out`.

        Raises InputError for settings that are missing, out of their range, or do not go together, and for files,
        folders, models and columns that are not there.
        """
        from groundling.recipes.checks.inputs import check_inputs

        # An `out` comes last.
        every = [
            ("" if prefix.startswith("_") else f"{prefix}.", settings)
            for prefix, settings in zip(self.settings, values, strict=False)
        ]
        for prefix, settings in every:
            config.check_numbers(settings, prefix)
            config.check_lists(settings, prefix)
            if isinstance(settings, config.TrainConfig):
                config.check_training(settings, prefix)
        if self.needs:
            config.need(values[0], name, *self.needs)
        if self.rules:
            _imported(self.rules)(*_own(values))
        for sharing in _shared(values):
            from groundling.recipes.checks.sharing import check_sharing

            check_sharing(sharing, _own(values))
        for prefix, settings in every:
            check_inputs(settings, prefix)

    def function(self) -> Callable[..., Any]:
        """The recipe itself; only now is what it needs imported."""
        return _imported(self.recipe)

    def call(self, values: Sequence[Any]) -> Any:
        """What the recipe returns for its settings and its `out`; what it saved goes to the hub, if it is to.

        Raises InputError where the recipe does, or if what it saved cannot go there.
        """
        own = _own(values)
        result = self.function()(*own)
        for sharing in _shared(values):
            from groundling.recipes.push import share

            share(own[-1], sharing)
        return result


def _imported(place: str) -> Callable[..., Any]:
    """The function of MODULE:NAME."""
    module, _, name = place.partition(":")
    function: Callable[..., Any] = vars(importlib.import_module(module))[name]
    return function


def _own(values: Sequence[Any]) -> list[Any]:
    """What a recipe takes: what is done with a saved model is no affair of its."""
    return [value for value in values if not isinstance(value, config.Sharing)]


def _shared(values: Sequence[Any]) -> list[config.Sharing]:
    """Where the model goes, if it is to go anywhere and this process is the one that sends it."""
    shared = [one for one in values if isinstance(one, config.Sharing) and one.push_to_hub]
    return shared if is_first() else []


SHARED = {"_share": config.Sharing()}
"""Settings of commands that save a model."""

COMMANDS = {
    "quickstart": Command(
        "the whole path on a rendered world, offline, in minutes",
        "groundling.recipes.quickstart:quickstart",
        {"_own": config.QuickstartConfig()},
        speaks=True,
    ),
    "teach": Command(
        "train a small CLIP teacher on captioned images",
        "groundling.recipes.teach:teach",
        {"_own": config.TeachConfig(), "_train": config.TEACHING, **SHARED},
        rules="groundling.recipes.checks.rules:teach",
    ),
    "adapt": Command(
        "adapt a text encoder with a CLIP-like teacher (or without: the control)",
        "groundling.recipes.adapt:adapt",
        {"_own": config.AdaptConfig(), "_train": config.ADAPTING, **SHARED},
        rules="groundling.recipes.checks.rules:adapt",
    ),
    "regions": Command(
        "regions of your own images, or of others' region files, as a store",
        "groundling.recipes.regions:regions",
        {"_own": config.RegionsConfig()},
        positional=("--images",),
        rules="groundling.recipes.checks.rules:regions",
    ),
    "pretrain": Command(
        "pre-train VisualBERT, VL-BERT or UNITER on captioned images",
        "groundling.recipes.pretrain:pretrain",
        {"_own": config.PretrainConfig(), "_train": config.PRETRAINING, **SHARED},
        rules="groundling.recipes.checks.rules:pretrain",
    ),
    "finetune": Command(
        "fine-tune an encoder on a task, over seeds",
        "groundling.recipes.finetune:finetune",
        {"_own": config.FinetuneConfig(), "_train": config.TUNING, **SHARED},
        rules="groundling.recipes.checks.rules:finetune",
    ),
    "predict": Command(
        "what a fine-tuned model answers to new data: your own file with its answers, best first",
        "groundling.recipes.predict:predict",
        {"_own": config.PredictConfig()},
        file="answers.csv",
        rules="groundling.recipes.checks.rules:predict",
    ),
    "evaluate": Command(
        "score a fine-tuned model on labelled data, without any training",
        "groundling.recipes.evaluate:evaluate",
        {"_own": config.EvaluateConfig()},
        out=False,
        needs=("model", "data"),
    ),
    "push": Command(
        "put what a run saved on Hugging Face's hub, with a card of how it was made",
        "groundling.recipes.push:push",
        {"_own": config.PushConfig()},
        positional=("--run",),
        out=False,
        needs=("run", "to"),
    ),
    "probe": Command(
        "ask an encoder what it knows of a rendered world's nouns",
        "groundling.recipes.probe:probe",
        {"_own": config.ProbeConfig(), "_train": config.PROBING},
        needs=("model", "data"),
    ),
    "ask": Command(
        "ask an encoder what things look like: Memory Colors, CoDa, ViComTe",
        "groundling.recipes.ask:ask",
        {"_own": config.AskConfig()},
        needs=("model", "data"),
    ),
    "pairs": Command(
        "which sentence of minimal pairs a language model finds likelier: BLiMP, EWoK, your own",
        "groundling.recipes.pairs:pairs",
        {"_own": config.PairsConfig()},
        speaks=True,
        needs=("model", "data"),
    ),
    "winoground": Command(
        "does a model tell images and captions of the same words apart?",
        "groundling.recipes.winoground:winoground",
        {"_own": config.WinogroundConfig()},
        speaks=True,
        needs=("model", "data"),
    ),
    "compare": Command(
        "adapt and fine-tune several arms beside the control, and judge them",
        "groundling.recipes.compare:compare",
        {
            "_own": config.CompareConfig(),
            "adapt": config.AdaptConfig(),
            "train": config.ADAPTING,
            "tune": config.TUNING,
        },
        speaks=True,
    ),
    "sweep": Command(
        "a list of runs over variants, tasks and seeds; does what is missing",
        "groundling.recipes.sweep:run_sweep",
        {"_own": config.SweepConfig()},
        speaks=True,
        needs=("file",),
    ),
    "verdict": Command(
        "judge runs against a control's: intervals, permutation, one plain sentence each",
        "groundling.recipes.verdict:verdict",
        {"_own": config.VerdictConfig()},
        speaks=True,
        rules="groundling.recipes.checks.rules:verdict",
    ),
    "vcr": Command(
        "VCR's joint score and server file, from runs on its answers and on its rationales",
        "groundling.recipes.vcr:vcr",
        {"_own": config.VcrConfig()},
        rules="groundling.recipes.checks.rules:vcr",
    ),
    "ensemble": Command(
        "several finished runs' probabilities, averaged and scored as one",
        "groundling.recipes.ensemble:ensemble",
        {"_own": config.EnsembleConfig()},
        positional=("--runs",),
        rules="groundling.recipes.checks.rules:ensemble",
    ),
    "zero-shot": Command(
        "what a CLIP, or a pre-trained model's match head, answers without training on a task",
        "groundling.recipes.zero_shot:zero_shot",
        {"_own": config.ZeroShotConfig()},
        rules="groundling.recipes.checks.rules:zero_shot",
    ),
    "retrieve": Command(
        "image-text retrieval of a CLIP, and of a text encoder that speaks its space",
        "groundling.recipes.retrieve:retrieve",
        {"_own": config.RetrieveConfig()},
        speaks=True,
        rules="groundling.recipes.checks.rules:retrieve",
    ),
    "similarity": Command(
        "CCA, SVCCA and PWCCA of two encoders' word embeddings",
        "groundling.recipes.similarity:similarity",
        {"_own": config.SimilarityConfig()},
        rules="groundling.recipes.checks.rules:similarity",
    ),
    "grounded": Command(
        "do gains go with the share of visually grounded words?",
        "groundling.recipes.grounded:grounded",
        {"_own": config.GroundedConfig()},
        needs=("base", "other", "task", "data", "counts", "tokenizer"),
    ),
    "attention": Command(
        "how diverse the attention of two cross-modal models is",
        "groundling.recipes.attention:attention",
        {"_own": config.AttentionConfig()},
        rules="groundling.recipes.checks.rules:attention",
    ),
    "heads": Command(
        "which attention heads look where a phrase's own thing is: every head as a classifier",
        "groundling.recipes.heads:heads",
        {"_own": config.HeadsConfig()},
        speaks=True,
        rules="groundling.recipes.checks.rules:heads",
    ),
    "modality": Command(
        "how much a model looks at, and depends on, text and image; before and after distillation",
        "groundling.recipes.modality:modality",
        {"_own": config.ModalityConfig()},
        speaks=True,
        rules="groundling.recipes.checks.rules:modality",
    ),
    "syntax": Command(
        "which attention heads look from a word to the thing of its syntactic neighbour",
        "groundling.recipes.syntax:syntax",
        {"_own": config.SyntaxConfig()},
        speaks=True,
        rules="groundling.recipes.checks.rules:syntax",
    ),
    "figures": Command(
        "figures for papers from what `heads`, `syntax` and `modality` wrote",
        "groundling.recipes.figures:figures",
        {"_own": config.FiguresConfig()},
        positional=("--results",),
        writes="Folder of the figures; older ones of the same names are replaced.",
        needs=("results",),
    ),
    "look": Command(
        "a page to look at: which regions a model's words attend to, head by head, on your own photo",
        "groundling.recipes.look:look",
        {"_own": config.LookConfig()},
        positional=("--model",),
        file="look.html",
        writes="HTML page to write; an older page is replaced, any other file is left alone.",
        rules="groundling.recipes.checks.rules:look",
    ),
    "info": Command(
        "parameter counts of a preset or a model folder",
        "groundling.recipes.info:info",
        {"_own": config.InfoConfig()},
        positional=("--name",),
        out=False,
        speaks=True,
        needs=("name",),
    ),
    "data check": Command(
        "what is wrong with a folder of data, before any training",
        "groundling.recipes.check:data_check",
        {"_own": config.CheckConfig()},
        positional=("--folder",),
        out=False,
        speaks=True,
        needs=("folder",),
    ),
    "data show": Command(
        "a photo with the boxes that a region store has of it",
        "groundling.recipes.show:data_show",
        {"_own": config.ShowConfig()},
        positional=("--store", "--image"),
        file="regions.png",
        writes="PNG file to write; an older picture of this command is replaced, any other file is left alone.",
        needs=("store", "image"),
    ),
    "data world": Command(
        "render a world whose nouns have looks that only images show",
        "groundling.recipes.render:render_world",
        {"_own": config.WorldConfig()},
        speaks=True,
    ),
    "data tasks": Command(
        "a rendered world as six vision-and-language data sets, with captions and boxes",
        "groundling.recipes.render:render_tasks",
        {"_own": config.TasksConfig(), "world": config.WorldConfig()},
        speaks=True,
    ),
    "data shift": Command(
        "VCR's files without the text's shortcuts: SM, EM and IM, with overlap statistics",
        "groundling.recipes.shift:shift",
        {"_own": config.ShiftConfig()},
        rules="groundling.recipes.checks.rules:shift",
    ),
    "data partition": Command(
        "a few training examples of every stratum, as a hashed list that others reproduce",
        "groundling.recipes.partition:partition",
        {"_own": config.PartitionConfig()},
        rules="groundling.recipes.checks.rules:partition",
    ),
    "data counts": Command(
        "how often captions have each word, for `grounded`",
        "groundling.recipes.count:count",
        {"_own": config.CountsConfig()},
        needs=("captions", "tokenizer"),
    ),
}
"""Every command of `groundling`."""


def out_of(name: str) -> tuple[str, str]:
    """Where a command writes if nobody says where, and what its `--out` is, in words."""
    command = COMMANDS[name]
    place = command.file or f"runs/{name.replace(' ', '-')}"
    if command.writes:
        return place, command.writes
    if command.file:
        return place, "File to write, a csv, tsv or jsonl by its ending; all of it or nothing."
    about = "Run folder; the same command again goes on from what it has saved."
    return place, about


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; a mistake of the user's is one line on stderr and exit status 2."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    name, rest = _command(words)
    try:
        status = _run(name, rest) if name else _no_command(words)
        sys.stdout.flush()  # a closed pipe, as of `groundling --help | head`, is met here and not at the end
        return status
    except InputError as error:
        print(f"groundling: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        stopped = "stopped; nothing is written"
        if name and COMMANDS[name].out and not COMMANDS[name].file:
            stopped = "stopped; the same command goes on from what it has saved"
        print(f"groundling: {stopped}", file=sys.stderr)
        return 130
    except BrokenPipeError:  # as of `groundling adapt --help | head`
        # The interpreter flushes stdout once more at its end, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except READING as error:
        print(f"groundling: {_unreadable(error)}", file=sys.stderr)
        return 2


READING = (
    OSError,
    RecursionError,
    OverflowError,
    MemoryError,
    UnicodeError,
    BadZipFile,
    struct.error,
)
"""What readers raise over damaged or hostile files, where none of them expected it."""


def _unreadable(error: BaseException) -> str:
    """A line about a file that no reader could read: which, as far as the reader or the system says, and why."""
    if isinstance(error, OSError):
        reason = error.strerror or first_line(error)
        return f"{error.filename or 'a file'}: cannot be read or written ({reason})"
    file: object = "an input"
    step = error.__traceback__
    while step is not None:  # the innermost function that was given a file
        local = step.tb_frame.f_locals
        given = local.get("path", local.get("file"))
        file = given if isinstance(given, str | os.PathLike) else file
        step = step.tb_next
    return f"{file}: cannot be read ({type(error).__name__}: {first_line(error)})"


def _usage(commands: Mapping[str, Command]) -> str:
    lines = [
        "usage: groundling COMMAND [options]; `groundling COMMAND --help` lists the options",
        "",
    ]
    lines += [f"  {name:<16}{command.summary}" for name, command in commands.items()]
    return "\n".join(lines)


def _command(words: Sequence[str]) -> tuple[str, list[str]]:
    """The command that the words begin with, of one word or two, and the rest; an empty name if there is none."""
    for count in (2, 1):
        name = " ".join(words[:count])
        if name in COMMANDS:
            return name, list(words[count:])
    return "", []


def _no_command(words: Sequence[str]) -> int:
    """What to say where no command is named; help or the version, if that is what was asked for."""
    if not words or words[0] in {"-h", "--help"}:
        print(_usage(COMMANDS))
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    family = {name: one for name, one in COMMANDS.items() if name.startswith(words[0] + " ")}
    asked = any(word in {"-h", "--help"} for word in words)
    if family:
        print(_usage(family), file=sys.stdout if asked else sys.stderr)
        return 0 if asked else 2
    hint = nearest(words[0], COMMANDS)
    there = ", ".join(COMMANDS)
    print(f"groundling: no command {words[0]!r}; there are: {there}{hint}", file=sys.stderr)
    return 2


def _run(name: str, arguments: list[str]) -> int:
    command = COMMANDS[name]
    values = _parse(name, command, _with_flags(command, arguments))
    command.check(name, values)
    command.function()
    _quiet()
    with heard(name):
        result = command.call(values)
    if command.speaks:
        return result if isinstance(result, int) else 0
    if is_first():
        print(result if isinstance(result, str) else json_text(result, indent=2))
    return 0


def _with_flags(command: Command, arguments: Sequence[str]) -> list[str]:
    """The arguments, with their flags before the first bare words."""
    named = []
    rest = list(arguments)
    for flag in command.positional:
        if not rest or rest[0].startswith("-"):
            break
        named += [flag, rest.pop(0)]
    return [*named, *rest]


def _parse(name: str, command: Command, arguments: Sequence[str]) -> list[Any]:
    """The command's settings, filled from flags, and its run folder, if it has one.

    Groups inside settings have no prefix, the settings themselves may have.
    """
    import tyro

    members: list[Any] = []
    for prefix, default in command.settings.items():
        kind: Any = _with_plain_groups(type(default))
        start = kind(**vars(default))
        # The summary is given, or the parser would look for one in the source, whatever command it parses.
        about = summary_of(kind)
        if prefix.startswith("_"):
            kind = Annotated[kind, tyro.conf.arg(name="", help=about), tyro.conf.OmitArgPrefixes]
        else:
            kind = Annotated[kind, tyro.conf.arg(help=about)]
        members.append((prefix.lstrip("_"), kind, field(default=start)))
    if command.out:
        place, about = out_of(name)
        out = Annotated[str, tyro.conf.arg(help=about)]
        members.append(("out", out, field(default=place)))
    options = make_dataclass("Options", members, frozen=True)
    parsed: Any
    said = StringIO()
    try:
        with redirect_stderr(said):
            parsed, unknown = tyro.cli(
                options,
                prog=f"groundling {name}",
                description=command.summary,
                args=list(arguments),
                return_unknown_args=True,
            )
    except SystemExit as done:
        if not done.code:
            raise
        raise InputError(f"{_unframed(said.getvalue())}; see `groundling {name} --help`") from None
    if unknown:
        raise InputError(_unknown(unknown[0], name, command))
    values = vars(parsed)
    settings: list[Any] = []
    for prefix, default in command.settings.items():
        filled = values.pop(prefix.lstrip("_"))
        settings.append(type(default)(**vars(filled)))
    return settings + list(values.values())


def _unframed(box: str) -> str:
    """The first thing that the parser says below its box's title, in one line; plain terminals get lines for a box."""
    rows = [re.sub(r"^[│|] *| *[│|]$", "", row) for row in box.strip().splitlines()]
    below = dropwhile(_is_rule, rows[1:])
    said = takewhile(lambda row: not _is_rule(row), below)
    return " ".join(" ".join(said).split()).rstrip(".")


def _is_rule(row: str) -> bool:
    return re.search(r"\w", row) is None


def _unknown(word: str, name: str, command: Command) -> str:
    """What to say of a word that is no flag of a command's, nor a flag's value."""
    flag, _, _ = word.partition("=")
    there = []
    for prefix, settings in command.settings.items():
        before = "" if prefix.startswith("_") else f"{prefix}."
        there += [before + one.name.replace("_", "-") for _, one in config.flat(settings)]
    bare = flag.lstrip("-").replace("_", "-")
    alike = [one for one in there if one.rpartition(".")[2] == bare] or get_close_matches(
        bare, there, 1
    )
    hint = f"; did you mean {' or '.join(f'--{one}' for one in alike)}?" if alike else ""
    kind = "flag" if word.startswith("-") else "place for"
    return f"{name} has no {kind} {word!r}{hint}; see `groundling {name} --help`"


def _with_plain_groups(kind: type[Any]) -> type[Any]:
    """The same settings for the parser, in which a group's flags lack the group's name: `--adapt.mask-rate`."""
    import tyro

    groups: dict[str, Any] = {}
    hints: dict[str, Any] = get_type_hints(kind)
    for name, hint in hints.items():
        if is_dataclass(hint):
            about = summary_of(cast(type, hint))
            groups[name] = Annotated[hint, tyro.conf.arg(name="", help=about)]
    # Its own words alone: the parser finds those of every field by itself.
    return type(kind.__name__, (kind,), {"__annotations__": groups, "__doc__": summary_of(kind)})


def _quiet() -> None:
    """No progress bars or advice of a library that a recipe uses; those that do without are not slowed by it."""
    if "transformers" not in sys.modules:
        return
    from transformers.utils import logging as hf_logging

    hf_logging.disable_progress_bar()
    hf_logging.set_verbosity_error()


if __name__ == "__main__":
    sys.exit(main())
