"""The command line: help comes from the settings' own docstrings, values reach the recipes, mistakes are one line."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import homes
from tiny.commands import flags_of

import groundling
from groundling.cli import COMMANDS, main
from groundling.command_line.flags import parse_flags
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.runs import progress
from groundling.runs.progress import CommandContext
from groundling.settings.fields import make_settings


@pytest.fixture
def help_of(capsys, monkeypatch) -> Callable[[str], str]:
    """The help of a command as one line."""
    monkeypatch.setenv("COLUMNS", "100")

    def call(command: str) -> str:
        assert main([*command.split(), "--help-all"]) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return " ".join(out.split())

    return call


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_field_with_its_docstring(command, help_of):
    text = help_of(command)
    assert f"groundling {command}" in text
    assert COMMANDS[command].summary[1:] in text
    assert f"example: {' '.join(COMMANDS[command].example.split())} " in text
    flags = flags_of(command)
    for flag, doc in flags.items():
        bare = re.escape(flag.removeprefix("--"))
        entry = re.search(rf"--{bare}[ ,].*", text)
        assert entry, flag
        assert doc and " ".join(doc.split()) in entry[0], flag
    assert ("--out" in text) == COMMANDS[command].has_out
    assert not re.search(r"--[\w-]+\.[\w-]+\.", text)  # a group's flags lack the group's name


@pytest.mark.parametrize("command", COMMANDS)
def test_help_fits_a_screen_and_names_what_most_people_use(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    about = COMMANDS[command]
    common = [f"--{name}" for name in about.common_flags.split()]
    assert main([*command.split(), "--help"]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) <= 45
    listed = [flag for flag in re.findall(r"^  (--[\w.-]+)", out, re.MULTILINE)]
    assert listed == [*common, *["--out", "--dry-run"][: 2 * about.has_out]]
    assert main([*command.split(), "--help-all"]) == 0
    every = re.findall(r"^  --([\w.-]+)", capsys.readouterr().out, re.MULTILINE)
    assert len(every) == len(set(every)) == len(flags_of(command)) + 2 * about.has_out
    first, *rest = shlex.split(about.example)
    assert (first, rest[: len(command.split())]) == ("groundling", command.split())
    parse_flags(about, rest[len(command.split()) :])


def test_every_command_is_listed(capsys: pytest.CaptureFixture[str]) -> None:
    pages = []
    for arguments in ([], ["--help"], ["-h"]):
        assert main(arguments) == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1] == pages[2]
    for name, command in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(command.summary)}$", pages[0], re.MULTILINE)
    assert len(COMMANDS) > 15
    titles = re.findall(r"^(\w.*):$", pages[0], re.MULTILINE)
    assert titles[:4] == ["Train", "Use", "Judge", "Data"]
    assert len(set(titles)) == len(titles) > 6
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"{groundling.__version__}\n"


@pytest.mark.parametrize(
    ("word", "near"), [("train", "pretrain"), ("Adapt", "adapt"), ("--adapt", "adapt"), ("", "")]
)
def test_an_unknown_command_is_one_line(word, near, capsys):
    assert main([word, "--out", "x"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    hint = f"; did you mean {near}?" if near else ""
    assert err == f"groundling: no command {word!r}; there are: {', '.join(COMMANDS)}{hint}\n"


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("adapt --nope 1", "adapt has no flag '--nope'; see `groundling adapt --help`"),
        ("compare --steps 1", "'--steps'; did you mean --tune.steps?; see"),
        ("adapt --images x", "--teacher-images or --voken-images or --shuffle-images?; see"),
        ("adapt zzz", "adapt takes no argument 'zzz'; see"),
        ("adapt --steps", "--steps: expected one argument; see `groundling adapt --help`"),
        ("adapt --betas 1", "--betas: expected 2 arguments; see `groundling adapt --help`"),
        ("adapt --lr -1", "lr = '-1': expected greater than or equal to 0"),
        ("adapt --lr 1 --steps 2 --lr 3", "--lr: is given twice"),
        ("finetune --no-submit yes", "finetune takes no argument 'yes'; see"),
        ("adapt --cpu=1", "--cpu/--no-cpu: ignored explicit argument '1'; see"),
        (
            "compare --train.schedule steps",
            "train: schedule=steps, and only that, needs milestones",
        ),
        ("compare --adapt.patience 2", "adapt: patience=2: needs eval_every=EPOCHS"),
        ("info", "info needs name"),
        ("data x", "no command 'data x'; there are: adapt, "),
    ],
)
def test_unknown_flags_are_one_line(command, told, capsys):
    assert main(command.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("groundling: ")
    assert err.index("\n") == len(err) - 1
    assert told in err


# -- values reach the recipes ----------------------------------------------------------------------------------------
def test_flags_fill_the_settings(called: list[tuple], capsys: pytest.CaptureFixture[str]) -> None:
    command = "adapt --student s --text a.txt b.txt --arm l1 --lr 3e-4 --freeze-clip --steps 7 --cpu --out here"
    assert main(command.split()) == 0
    config, training, out = called[0]
    assert config == make_settings(
        AdaptConfig, student="s", text=("a.txt", "b.txt"), arm="l1", freeze_clip=True
    )
    assert training == replace(ADAPTING, lr=3e-4, steps=7, cpu=True)
    assert out == "here"
    assert json.loads(capsys.readouterr().out) == {"said": 1}


def test_flags_may_be_spelt_with_underscores_and_equals_signs(called: list[tuple]) -> None:
    assert (
        main(["adapt", "--limit=3", "--no_masked_lm", "--text=a_b.txt", "--cpu", "--no-cpu"]) == 0
    )
    config, training, _ = called[0]
    assert config == make_settings(AdaptConfig, limit=3, masked_lm=False, text="a_b.txt")
    assert training == ADAPTING


def test_an_empty_list_and_a_number_below_0_are_values(called: list[tuple]) -> None:
    assert main(["predict", "--model-seed", "-1", "--trust"]) == 0
    assert main(["bench", "--probes"]) == 0
    assert called[1][0].probes == ()


def test_under_torchrun_only_the_first_process_speaks(called, capsys, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    assert main(["adapt"]) == 0
    assert capsys.readouterr().out == ""
    assert len(called) == 1


def test_an_interrupted_run_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    def interrupted(*_: object) -> dict:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("groundling.command_line.Command.check", lambda self, values: None)
    monkeypatch.setattr("groundling.command_line.Command.call", interrupted)
    assert main(["adapt"]) == 130
    assert capsys.readouterr().err == "groundling: stopped; run the same command again to resume\n"
    assert main(["predict"]) == 130
    assert capsys.readouterr().err == "groundling: stopped; nothing was written\n"


# -- info and data ---------------------------------------------------------------------------------------------------
def test_info_of_a_preset(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "xdbert-bert-base", "--json"]) == 0
    out = capsys.readouterr().out
    found = json.loads(out)
    assert out.count("\n") == 1
    assert set(found) == {"name", "total", "components"}
    assert (found["name"], found["total"]) == ("xdbert-bert-base", 202059009)
    assert sum(found["components"].values()) == 202059009
    assert main(["info", "xdbert-electra-large"]) == 0
    assert capsys.readouterr().out.startswith("xdbert-electra-large: 442,671,617 parameters\n")


def test_info_of_a_folder(given: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = given / "student"
    total = sum(p.numel() for p in homes.toys.bert(len(homes.words())).parameters())
    assert main(["info", str(folder)]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first == f"{folder}: {total:,} parameters"
    assert [line.split()[0] for line in rest] == ["embeddings", "encoder", "pooler"]
    assert sum(int(line.split()[1].replace(",", "")) for line in rest) == total


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def test_no_file_or_text_steers_the_terminal(capsys, monkeypatch):
    """A title or a cleared screen from a file's name; \x9b is \x1b[ in one character."""
    CommandContext().note("caption \x1b[31m", "a\rb\tc\nd")
    name = "tokenising \x1b]0;x\x07"
    monkeypatch.setattr(progress, "SECONDS", 0.0)
    progress.Progress(name, 2, "text").close()
    progress.print_line("task \x9b2J")
    notes = capsys.readouterr().err
    assert (
        "caption \\x1b[31m\nnote: a\\x0db\tc\nd\ntokenising" in notes and "task \\x9b2J\n" in notes
    )
    assert main(["info", "\x1b[2J"]) == 2
    read = capsys.readouterr()
    assert not CONTROL.search(notes + read.out + read.err)


def test_a_reader_that_stops_reading_is_no_error() -> None:
    command = [sys.executable, "-m", "groundling", "finetune", "--help"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait() == 141
    assert said == b""
