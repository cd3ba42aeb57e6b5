"""What is loaded: no torch by help and refusals of any command, no study by the core."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import groundling
from groundling.cli import COMMANDS
from groundling.command_line.names import check_inputs
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.models import hub as folders
from groundling.settings.fields import make_settings, replace_settings

ROOT = Path(groundling.__file__).parent.parent

OWN = "--data my.csv --text question --label y"
ADAPT = "--adapt.student model --adapt.teacher model --adapt.text t.txt"
CASES = [
    ("train-clip --captions no.tsv --images photos", "captions=no.tsv: no such file"),
    ("adapt --student gone --arm mlm --text t.txt", "gone: no model found"),
    ("adapt --student model --arm mlm --text no.txt", "text=no.txt: no such file"),
    ("embed --teacher gone --images photos", "gone: no model found"),
    ("merge --model gone --origin model", "model=gone: no such file or folder"),
    ("report gone", "run=gone: no such file or folder"),
    ("regions gone", "images=gone: no such file or folder"),
    ("regions photos --grid 3 --backbone no/such/model", "backbone: no/such/model: no model"),
    ("pretrain --model model --regions gone --captions c.csv", "regions=gone: no such"),
    ("finetune --model model --task glue/rte --data gone", "gone: no such file or folder"),
    ("predict --model tuned --data gone.csv", "data=gone.csv: no such file"),
    ("predict --model tuned --data my.csv --out my.csv", "my.csv: exists already"),
    ("evaluate --model tuned --data gone.csv", "data=gone.csv: no such file"),
    (
        f"baselines {OWN} --image y --model model --images gone",
        "images=gone: no such file or folder",
    ),
    ("probe --model model --data gone", "data=gone: no such file or folder"),
    ("probe-facts --model model --data gone.jsonl", "data=gone.jsonl: no such file"),
    ("probe-words --model model --data gone.txt", "data=gone.txt: no such file"),
    ("pairs --model model --data gone", "data=gone: no such file"),
    ("winoground --model model --data gone", "data=gone: no such file"),
    (
        f"compare {OWN} --adapt.student gone --adapt.teacher model --adapt.text t.txt",
        "student: gone: no model",
    ),
    (f"compare {OWN} --adapt.text t.txt --arms mlm", "arm=mlm needs student"),
    (f"compare --data my.csv --text q --label y {ADAPT}", "no column 'q'"),
    ("run gone.py", "gone.py: FileNotFoundError"),
    ("run bad.py", "gone: no such file or folder"),
    ("verdict --runs model", "verdict needs runs"),
    ("bench --method contrast", "no bench method is called 'contrast'"),
    ("bench-real --student model --text t.txt --words gone", "words=gone: no such file"),
    ("vcr --answers gone --rationales gone --data photos", "answers=gone: no such file or folder"),
    ("ensemble --runs gone --task glue/rte --data photos", "runs=gone: no such file or folder"),
    ("zero-shot --model model --task vqa --data gone --images photos", "data=gone: no such"),
    (
        "retrieve --model model --captions c.csv --images gone",
        "images=gone: no such file or folder",
    ),
    ("similarity --model random --other gone", "other: gone: no model found"),
    (
        "grounded --base gone --other gone --task glue/rte --data photos --counts c.csv --tokenizer model",
        "base=gone: no such file or folder",
    ),
    ("attention --model gone --other gone --text t.txt", "model=gone: no such file or folder"),
    ("heads --model gone --data photos", "model: gone: no model found"),
    ("modality --model model --data gone", "data=gone: no such file"),
    ("syntax --model model --data gone --parses gold", "data=gone: no such file or folder"),
    ("visualize model --image gone.jpg --text words", "image=gone.jpg: no such file"),
    ("info", "info needs name"),
    ("data shift --data gone", "data=gone: no such file or folder"),
    ("data partition --task glue/rte --data gone --per-stratum 3", "data=gone: no such file"),
    ("data captions gone", "data=gone: no such file or folder"),
    ("data make-store --data gone", "data=gone: no such file or folder"),
    ("data counts --captions gone.tsv --tokenizer model", "captions=gone.tsv: no such"),
]

NAMES = ("adapt", "compare", "run", "bench")
"""Commands whose settings name objectives, which are imported to be checked."""

NOTHING_READ = {"quickstart", "data make-world", "data make-tasks"}
"""Commands that read nothing."""

RECIPE = """
from groundling.recipes import Table, adapt, row

CONTROL = adapt("control", student="model", text=["t.txt"], arm="mlm")
TABLES = [Table("", [row("control", CONTROL, {"glue/rte": dict(data="gone")})])]
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("place")
    for name in ("photos", "empty", "model", "tuned/seed-0/model"):
        (place / name).mkdir(parents=True)
    (place / "model" / "config.json").write_text("{}")
    about = {"own": {"text": "question", "label": "y", "image": ""}}
    (place / "tuned/seed-0/model/groundling_task.json").write_text(json.dumps(about))
    (place / "t.txt").write_text("a cat\n")
    (place / "c.csv").write_text("image,caption\na.jpg,a cat\n")
    (place / "my.csv").write_text("question,y\nis it wet ?,1\n")
    (place / "other.csv").write_text("a,y\nis it wet ?,1\n")
    (place / "bad.py").write_text(RECIPE)
    return place


def run(code: str, place: Path, *arguments: object) -> tuple[str, str]:
    """What a new process prints on stdout and stderr."""
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=place,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_an_import_help_and_refusals_load_nothing_heavy(place: Path) -> None:
    """All in one process: what one of them loaded would be there for the next."""
    assert {case.split(" --")[0].split(" gone")[0] for case, _ in CASES} >= set(COMMANDS) - (
        NOTHING_READ | {"visualize", "regions"}
    )
    cases = sorted(CASES, key=lambda case: case[0].startswith(NAMES))
    code = f"""
import sys
before = set(sys.modules)
import groundling
assert groundling.__version__
assert [one for one in set(sys.modules) - before if one.startswith("groundling")] == ["groundling"]
from groundling.cli import COMMANDS, main
for command in ("", *COMMANDS):
    assert main([*command.split(), "--help"]) == 0
    assert not {{"torch", "transformers", "accelerate", "numpy"}} & set(sys.modules), command
for case in {[case for case, _ in cases]!r}:
    print("<case>", file=sys.stderr)
    assert main(case.split()) == 2, case
    loaded = {{"torch", "transformers", "accelerate", "scipy", "sklearn"}} & set(sys.modules)
    assert not loaded or case.startswith({NAMES}), (case, loaded)
"""
    said = run(code, place)[1].split("<case>\n")[1:]
    for (case, complaint), line in zip(cases, said, strict=True):
        assert complaint in line and line.count("\n") == 1, (case, line)


def test_a_function_checks_what_its_command_checks(place: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(InputError, match="images=gone: no such file or folder"):
        groundling.train_clip(captions="c.csv", images="gone")


def test_a_hub_id_is_asked_for_once(monkeypatch: Any, tmp_path: Path) -> None:
    asked = []

    class HubStub:
        def model_info(self, source: str, timeout: float) -> None:
            asked.append(source)
            if source == "me/gone":
                raise folders.RepositoryNotFoundError.__new__(folders.RepositoryNotFoundError)
            if source == "me/slow":
                raise TimeoutError

    monkeypatch.setattr(folders, "HfApi", HubStub)
    monkeypatch.setattr(folders, "is_hub_reachable", lambda: True)
    monkeypatch.setattr(folders.constants, "HF_HUB_CACHE", str(tmp_path))
    for source in ("me/there", "me/slow"):
        folders.check_model(source)
    with pytest.raises(InputError, match=r"me/gone: no model found"):
        folders.check_model("me/gone")
    (tmp_path / "models--me--gone" / "snapshots" / "1").mkdir(parents=True)
    folders.check_model("me/gone")
    assert asked == ["me/there", "me/slow", "me/gone"]
    monkeypatch.setattr(folders, "is_hub_reachable", lambda: False)
    folders.check_model("me/gone")
    with pytest.raises(InputError, match="me/there: no model found"):
        folders.check_model("me/there")


def test_what_your_own_module_loads_may_be_anything(place: Path) -> None:
    settings = make_settings(
        FinetuneConfig, model="words:of:mine", model_format="mine.average:KIND", data=str(place)
    )
    check_inputs(settings)
    with pytest.raises(InputError, match="model: words:of:mine"):
        check_inputs(replace_settings(settings, model_format=""))


# -- two wings: the core, and studies that are found by being there ----------------------------------------
CORE_ALONE = """
import sys
from groundling import cli

for words in ("finetune", "data partition", "regions nowhere"):
    assert cli.main([*words.split(), "--nope", "3"]) == 2
    assert not [name for name in sys.modules if name.startswith("groundling.studies.")], words
"""
"""What the core imports is for `lint-imports` to say; commands are found by name."""

STUDY = {
    "__init__.py": "",
    "commands.py": '''
from groundling.command_line import Command
from groundling.command_line import CommandOutput
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

groundling.studies.__path__.append(sys.argv[1])
public_modules.cache_clear(), command_line._study_commands.cache_clear()
assert resolve("tasks", Task, "mine").name == "mine"
assert published_scores()["MINE-b"] == {"glue/rte": 70.0} and published_scores()["XDBERT-b"]
assert cli.main(["mine", "--word", "Hello"]) == 0
cli.main(["--help"])
"""


def test_the_core_loads_no_study_and_a_study_is_found_by_being_there(tmp_path: Path) -> None:
    study = tmp_path / "studies/mine"
    study.mkdir(parents=True)
    for name, code in STUDY.items():
        (study / name).write_text(code)
    said, _ = run(CORE_ALONE + FOUND, ROOT, study.parent)
    hello, *listed = said.splitlines()
    assert hello == "Hello, world" and any("says a word" in line for line in listed)


def test_commands_print_no_bars_of_transformers(place: Path) -> None:
    code = (
        "import sys; from groundling.cli import _silence_transformers as silence; silence(); "
        "assert 'transformers' not in sys.modules; from transformers.utils import logging; "
        "print(logging.is_progress_bar_enabled(), logging.get_verbosity() == logging.ERROR)"
    )
    assert run(code, place)[0] == "False True\n"
