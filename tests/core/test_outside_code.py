"""Code runs if the user named it, and not because a file says so; and a run knows the code that it ran."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import homes

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.core.registry import import_object
from groundling.models.loading import load_processor
from groundling.prediction.fine_tuned import load
from groundling.runs.folder import difference
from groundling.stats.verdict_report import collect_runs
from groundling.studies.attention.commands import AnalysedModelSettings
from groundling.studies.attention.inspected_models import FineTunedRegionModel
from groundling.studies.attention.page import visualize
from groundling.tasks import Task
from groundling.tasks.splits import select_partition
from groundling.tasks.texts import RTE
from groundling.teachers import code_hash
from groundling.vision_language.loading import load_encoder

Refusal = Callable[..., str]

FEW = ["--steps", "1", "--batch", "4", "--cpu"]
PLANTED = """
from pathlib import Path

Path({ran!r}).touch()
from groundling.models.loading import ModelFormat
from groundling.models.text_encoder import load_text_encoder
from groundling.tasks.texts import RTE as TASK

KIND = ModelFormat("planted", lambda source: True, load_text_encoder)
ARCHITECTURE = None
"""
MODULES = {"downloaded", "mine", "helper", "absent_library"}


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on RTE with its model, and the data beside it."""
    folder = tmp_path_factory.mktemp("tuned")
    homes.student(folder / "bert")
    homes.rte(folder / "glue")
    words = ["--model", str(folder / "bert"), "--task", "glue/rte", "--data", str(folder / "glue")]
    assert main(["finetune", *words, "--seeds", "1", *FEW, "--out", str(folder / "run")]) == 0
    return folder


@pytest.fixture
def place(tmp_path: Path, tuned: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory with a run that was downloaded, whose folder has code; `ran` is there once that ran."""
    shutil.copytree(tuned / "run", tmp_path / "downloaded")
    homes.put(tmp_path / "downloaded/evil.py", PLANTED.format(ran=str(tmp_path / "ran")))
    (tmp_path / "glue").symlink_to(tuned / "glue")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in MODULES]:
        del sys.modules[name]
    importlib.invalidate_caches()


def edited(path: Path, **values: object) -> Path:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | values))
    return path


MODEL = Path("downloaded/seed-0/model")
ABOUT = MODEL / "groundling_task.json"
ASKED = ["--model", "downloaded", "--data", "glue", "--cpu"]
NAMES = {
    "model_format": {"model_format": "downloaded.evil:KIND"},
    "task": {"task": "downloaded.evil:TASK", "form": None, "own": None},
    "architecture": {"architecture": "downloaded.evil:ARCHITECTURE"},
}


# -- a model's folder --------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("road", NAMES)
def test_a_models_folder_imports_nothing(road: str, place: Path, refusal: Refusal) -> None:
    edited(ABOUT, **NAMES[road])
    name = NAMES[road][road]
    commands = [["evaluate", *ASKED], ["predict", *ASKED, "--split", "dev", "--out", "answers.tsv"]]
    for command in commands:
        complaint = refusal(*command)
        assert str(ABOUT) in complaint and f"trust={name}" in complaint
        # Another object of the same module is none that the user named.
        assert f"trust={name}" in refusal(*command, "--trust", "downloaded.evil:OTHER")
    with pytest.raises(InputError, match=f"trust={name}"):
        _ = load("downloaded").task
    assert not (place / "ran").exists()


def test_what_is_no_name_is_none_to_import(place: Path, refusal: Refusal) -> None:
    for value in ("downloaded.evil", "downloaded.evil:", "downloaded.evil:KIND "):
        edited(ABOUT, model_format=value)
        assert "expected MODULE:NAME" in refusal("evaluate", *ASKED, "--trust", value)
    assert not (place / "ran").exists()


def test_what_a_folder_says_wrongly_of_itself_names_its_file(place: Path, refusal: Refusal) -> None:
    for wrong, told in (({"loss": "hinge"}, "hinge"), ({"task": "flue/rte", "form": None}, "flue")):
        edited(ABOUT, **wrong)
        complaint = refusal("evaluate", *ASKED)
        assert complaint.startswith(f"groundling: {ABOUT}: ") and told in complaint


def test_what_the_user_names_is_imported(place: Path, capsys: Any) -> None:
    edited(ABOUT, **NAMES["model_format"], **NAMES["task"])
    trust = ["downloaded.evil:KIND", "downloaded.evil:TASK"]
    assert main(["evaluate", *ASKED, "--trust", *trust]) == 0
    assert (place / "ran").exists()
    assert load("downloaded", trust=trust).task is import_object(trust[1], Task)
    assert visualize("downloaded", text="a dog", trust=trust, cpu=True).entries


def test_an_analysis_of_a_fine_tuned_model_imports_nothing(place: Path) -> None:
    edited(ABOUT, **NAMES["model_format"])
    with pytest.raises(InputError, match=r"trust=downloaded\.evil:KIND"):
        FineTunedRegionModel(AnalysedModelSettings(model="downloaded"), torch.device("cpu"), ())
    with pytest.raises(InputError, match=r"trust=downloaded\.evil:KIND"):
        visualize("downloaded", text="a dog", cpu=True)
    assert not (place / "ran").exists()


def auto_maps(value: str) -> dict[str, Any]:
    """Settings that name code, by the file that has them, and whether a folder with them is refused."""
    auto = {"AutoConfig": value, "AutoModel": value, "AutoTokenizer": [value, value]}
    unknown = {"model_type": "unheard_of", "architectures": ["X"]}
    first = {"idx": 0, "name": "0", "path": ""}
    listed = [{**first, "type": "sentence_transformers.models.Transformer"}]
    listed += [{"idx": 1, "name": "1", "path": "1_X", "type": value}]
    image = {"auto_map": {"AutoImageProcessor": value}, "image_processor_type": "Unheard"}
    return {
        "unknown model": ("config.json", {"auto_map": auto, **unknown}, True),
        "known model": ("config.json", {"auto_map": auto}, False),  # read as what it says it is
        "tokenizer": ("tokenizer_config.json", {"auto_map": auto, "tokenizer_class": "X"}, False),
        "processor": ("preprocessor_config.json", image, True),
        "modules": ("modules.json", listed, True),
    }


@pytest.mark.parametrize("road", auto_maps(""))
def test_a_librarys_files_import_nothing(road: str, place: Path, tuned: Path) -> None:
    folder = shutil.copytree(tuned / "bert", place / "model")
    for path in (folder / "evil.py", place / "evil.py"):
        homes.put(path, PLANTED.format(ran=str(place / "ran")))
    name, content, is_refused = auto_maps("evil.KIND")[road]
    if (folder / name).exists():
        content = json.loads((folder / name).read_text()) | content
    homes.put(folder / name, json.dumps(content))
    homes.put(folder / "1_X/config.json", "{}")
    read = load_processor if road == "processor" else load_encoder
    if is_refused:
        with pytest.raises(InputError, match=str(folder)):
            read(folder)
    else:
        assert type(read(folder)).__name__ == "TextEncoder"
    assert not (place / "ran").exists()


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("attn_implementation", "somebody/kernel", "attn_implementation to code outside"),
        ("attn_implementation", "flash_attention_2", "attn_implementation to code outside"),
        ("num_hidden_layers", 10**9, "num_hidden_layers to 1000000000"),
        ("vocab_size", 10**30, "vocab_size to 1000000000"),
    ],
)
def test_what_a_model_asks_for_is_refused(name, value, told, place, tuned):
    folder = shutil.copytree(tuned / "bert", place / "model")
    edited(folder / "config.json", **{name: value})
    with pytest.raises(InputError, match=rf"config\.json sets {told}"):
        load_encoder(folder)


# -- a run's folder ----------------------------------------------------------------------------------------------------
def test_a_verdict_imports_nothing(place: Path) -> None:
    edited(place / "downloaded/seed-0/result.json", task="downloaded.evil:TASK")
    with pytest.raises(InputError, match=r"result.json: needs downloaded\.evil:TASK"):
        collect_runs("a", place / "downloaded")
    assert not (place / "ran").exists()


def test_ensembles_and_partitions_import_nothing(place: Path, refusal: Refusal) -> None:
    edited(place / "downloaded/seed-0/result.json", task="downloaded.evil:TASK")
    words = ["--runs", "downloaded", "./downloaded", "--task", "glue/rte", "--data", "glue"]
    assert "expected one of glue/rte" in refusal("ensemble", *words, "--out", "mean")
    about = {"format": 1, "task": "downloaded.evil:TASK", "ids": [], "files": {}}
    path = homes.put(place / "few.json", json.dumps(about))
    with pytest.raises(InputError, match=r"few\.json"):
        select_partition([], path, RTE, Path("glue"))
    assert not (place / "ran").exists()


# -- the working directory ---------------------------------------------------------------------------------------------
def test_the_working_directory_stands_in_for_no_library(place: Path) -> None:
    """It comes last: nothing that lies beside the data replaces a library."""
    homes.put(place / "mine/part.py", "import helper\n\nVALUE = helper.VALUE\n")
    homes.put(place / "helper.py", "VALUE = 3\n")
    homes.put(place / "safetensors.py", PLANTED.format(ran=str(place / "ran")))
    assert import_object("mine.part:VALUE", int) == 3
    assert sys.path[-1] == str(place)
    found = find_spec("safetensors")
    assert found is not None and not str(found.origin).startswith(str(place))


# -- what a run knows of its code --------------------------------------------------------------------------------------
def test_a_models_folder_knows_the_code_that_it_needs(place: Path, tuned: Path) -> None:
    code = "from groundling.tasks.texts import RTE\n\nTASK = RTE\n"
    homes.put(place / "mine/task.py", code)
    words = ["finetune", "--model", str(tuned / "bert"), "--task", "mine.task:TASK"]
    assert main([*words, "--data", "glue", "--seeds", "1", *FEW, "--out", "out"]) == 0
    about = json.loads((place / "out/seed-0/model/groundling_task.json").read_text())
    assert set(about["modules"]) == {"mine.task:TASK"}
    homes.put(place / "mine/task.py", code + "# edited\n")
    model = load("out", trust="mine.task:TASK")
    assert isinstance(model.task, Task)
    assert [note for note in model.notes if "task.py: changed since" in note]


def test_kept_features_belong_to_a_teachers_code(place: Path) -> None:
    homes.put(place / "mine/teacher.py", "class Own:\n    pass\n")
    kind = import_object("mine.teacher:Own", type)
    before = code_hash(kind)
    assert code_hash(kind) == before
    homes.put(place / "mine/teacher.py", "class Own:\n    VALUE = 2\n")
    assert difference(before, code_hash(kind), "key").startswith("key.source")
