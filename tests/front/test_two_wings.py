"""Two wings: the core loads no study, and what a study offers is found by being there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import groundling

PACKAGE = Path(groundling.__file__).parent

CORE_ALONE = """
import importlib, pkgutil, sys
import groundling, groundling.commands
from groundling import cli
from groundling.command_line import Command

def loaded():  # a study's own folder is looked into for modules of a name, such as `tasks`
    studies = [name for name in sys.modules if name.startswith("groundling.studies.")]
    return [name for name in studies if name.count(".") > 2]

for words in ("finetune", "data show", "regions nowhere"):
    assert cli.main([*words.split(), "--nope", "3"]) == 2
    assert not [name for name in sys.modules if name.startswith("groundling.studies.")], words
names = set()
for one in pkgutil.walk_packages(groundling.commands.__path__, "groundling.commands."):
    module = importlib.import_module(one.name)
    names |= {one.function_name for one in vars(module).values() if isinstance(one, Command)}
    assert not loaded(), one.name
names.remove("train_clip")  # of two words for all that its name tells, so it is looked for among the studies'
asked = dict.fromkeys(names, {}) | {
    "adapt": {"student": "none/there", "arm": "mlm+xdbert", "teacher": "none/there", "text": sys.argv[1]},
    "pretrain": {"model": "none/there", "architecture": "uniter", "regions": ".", "captions": sys.argv[1]},
    "finetune": {"model": "none/there", "task": "glue/rte", "data": "."},
    "verdict": {"runs": (".", "a=.")},
    "regions": {"images": ".", "backbone": "none/there"},
}
for name, given in asked.items():
    try:
        getattr(groundling, name)(**given)
    except groundling.InputError as error:
        assert not loaded(), (name, loaded())
    else:
        raise AssertionError(f"{name} was to be refused")
print(len(names))
"""
"""Imports every core command, and asks each for what its check refuses."""

STUDY = {
    "__init__.py": "",
    "commands.py": '''
from groundling.command_line import Command
from groundling.runs.outputs import CommandOutput
from groundling.settings.fields import Settings, settings


@settings
class MineConfig(Settings):
    """Settings of a study of one's own."""

    word: str = "hello"
    """What is said."""


MINE = Command(
    "mine",
    "says a word",
    "groundling.studies.mine.say:say",
    {"_own": MineConfig()},
    title="Mine: a study of one's own",
    example="groundling mine",
    output=CommandOutput(),
)
COMMANDS = (MINE,)
''',
    "say.py": "def say(config, work):\n    return f'{config.word}, world'\n",
    "tasks.py": """
from groundling.core.output_types import Classification
from groundling.core.metrics import ACCURACY
from groundling.tasks import Task

TASK = Task("mine", Classification(("no", "yes")), lambda folder, split: [], metrics=(ACCURACY,), source="here")
""",
    "published.py": """
PUBLISHED = {"MINE-b": {"glue/rte": 70.0}}
""",
}
"""A study, which imports of the core what it needs, and which nothing names."""

FOUND = """
import groundling.studies
from groundling import command_line
from groundling.core.registry import public_modules, resolve
from groundling.command_line.names import published_scores
from groundling.tasks import Task

groundling.studies.__path__.append(sys.argv[2])
public_modules.cache_clear(), command_line._study_commands.cache_clear()
assert resolve("tasks", Task, "mine").name == "mine"
assert published_scores()["MINE-b"] == {"glue/rte": 70.0} and published_scores()["XDBERT-b"]
assert cli.main(["mine", "--word", "Hello"]) == 0
cli.main(["--help"])
"""


def test_the_core_loads_no_study_and_a_study_is_found_by_being_there(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a dog\n")
    study = tmp_path / "studies/mine"
    study.mkdir(parents=True)
    for name, code in STUDY.items():
        (study / name).write_text(code)
    done = subprocess.run(
        [sys.executable, "-c", CORE_ALONE + FOUND, str(text), str(study.parent)],
        capture_output=True,
        text=True,
        cwd=PACKAGE.parent,
        env={**os.environ, "PYTHONPATH": str(PACKAGE.parent), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    count, hello, *listed = done.stdout.splitlines()
    assert int(count) > 10
    assert hello == "Hello, world" and any("says a word" in line for line in listed)
