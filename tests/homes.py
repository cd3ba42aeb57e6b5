"""The tiny models of `toys` as folders, tiny data files, and what tests of whole runs share."""

from __future__ import annotations

import copy
import csv
import hashlib
import importlib
import io
import json
import pickle
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import toys
from PIL import Image
from transformers import PreTrainedModel, PreTrainedTokenizerBase

import groundling.train
from groundling.cli import COMMANDS
from groundling.config import TrainConfig
from groundling.errors import InputError

STEPS = TrainConfig(steps=3, batch=8, lr=1e-3, log_every=1, save_every=1, cpu=True)


RECIPES = [command.recipe.replace(":", ".") for command in COMMANDS.values()]
"""What commands call, by place."""


def import_recipes() -> None:
    """Import every recipe; one imported while another is patched would keep the patch for good."""
    for command in COMMANDS.values():
        importlib.import_module(command.recipe.partition(":")[0])


@cache
def words() -> PreTrainedTokenizerBase:
    return toys.bert_words()


@cache
def pieces() -> PreTrainedTokenizerBase:
    return toys.clip_words()


def home(
    folder: Path, model: PreTrainedModel | None, tokenizer: PreTrainedTokenizerBase | None
) -> Path:
    """A model folder, or what is left of one."""
    folder.mkdir(parents=True, exist_ok=True)
    if model is not None:
        model.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    return folder


def student(folder: Path) -> Path:
    return home(folder, toys.bert(len(words())), words())


def teacher(folder: Path) -> Path:
    return home(folder, toys.clip(pieces()), pieces())


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def table(*rows: Sequence[object]) -> str:
    """A csv in which only what needs quotes has them."""
    csv.writer(out := io.StringIO(), lineterminator="\n").writerows(rows)
    return out.getvalue()


def text(path: Path, count: int = 40) -> Path:
    return put(path, "\n".join(toys.sentences()[:count]) + "\n")


def rte(folder: Path, count: int = 16, sentence: str = "") -> Path:
    """A GLUE root with RTE: `count` training pairs, 8 for development, 5 for the server."""
    made = toys.sentences()
    for split, size in (("train", count), ("dev", 8), ("test", 5)):
        rows = [f"{i}\t{sentence or made[i]}\t{made[-1 - i]}" for i in range(size)]
        if split != "test":
            rows = [
                row + ("\tentailment" if i % 2 else "\tnot_entailment")
                for i, row in enumerate(rows)
            ]
        header = "index\tsentence1\tsentence2" + ("\tlabel" if split != "test" else "")
        put(folder / "RTE" / f"{split}.tsv", "\n".join([header, *rows]) + "\n")
    return folder


def picture(
    path: Path, colour: tuple[int, int, int] = (200, 30, 30), size: tuple[int, int] = (16, 16)
) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


def coco(
    path: Path, images: Sequence[tuple[int, str]], captions: Sequence[tuple[int, Any]]
) -> Path:
    content = {
        "info": {"description": "by hand"},
        "images": [{"id": i, "file_name": name, "width": 16, "height": 16} for i, name in images],
        "annotations": [
            {"id": n, "image_id": i, "caption": c} for n, (i, c) in enumerate(captions)
        ],
    }
    return put(path, json.dumps(content))


def digests(folder: Path) -> dict[str, str]:
    """Every file under a folder and the hash of its bytes."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def log_of(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def answers(path: Path) -> list[dict[str, Any]]:
    """The lines of a `predictions_*.jsonl`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the library may catch it."""


class Counting(groundling.train.Once):
    """The ordinary inner step, which counts its calls and can die after the backward pass of one."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.calls = 0

    def __call__(self, micro: groundling.train.MicroStep) -> Any:
        self.calls += 1
        terms = super().__call__(micro)
        if self.calls == self.at:
            raise Killed
        return terms


def dying(at: int) -> Counting:
    """An inner step that dies at its `at`-th call, after its backward pass."""
    return Counting(at)


def training_with(inner: Any) -> Callable[..., dict[str, object]]:
    """`train` with an inner step in place of that which a recipe asks for."""

    def call(*arguments: Any, **options: Any) -> dict[str, object]:
        return groundling.train.train(*arguments, **{**options, "inner": inner})

    return call


def kill(
    recipe: Callable[..., Any], config: Any, steps: TrainConfig, out: Path, at: int = 2
) -> None:
    """Leaves what a run leaves that is killed after the backward pass of its `at`-th micro-batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys.modules[recipe.__module__], "train", training_with(dying(at)))
        with pytest.raises(Killed):
            recipe(config, steps, out)


def whole_and_resumed(
    recipe: Callable[..., Any],
    config: Any,
    steps: TrainConfig,
    folder: Path,
    model: str,
    at: int = 2,
) -> tuple[dict[str, str], dict[str, str]]:
    """Digests of the folder `model` of a run that nothing stopped, and of one that was killed and started again."""
    recipe(config, steps, folder / "whole")
    kill(recipe, config, steps, folder / "killed", at)
    recipe(config, steps, folder / "killed")
    return digests(folder / "whole" / model), digests(folder / "killed" / model)


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("called, but should not have been")


class Here(ThreadPoolExecutor):
    """`run_jobs`' pool without its processes (5 s of imports each); a job must still survive being sent to one."""

    def __init__(self, processes: int, mp_context: Any, **_: Any) -> None:
        assert mp_context.get_start_method() == "spawn"
        # One thread, however many are asked for: while transformers loads a model it replaces functions of its own
        # classes, and two loads at a time leave `PreTrainedModel.tie_weights` replaced for good.
        super().__init__(max_workers=1)

    def submit(self, call: Any, /, *arguments: Any, **_: Any) -> Any:
        call, arguments = pickle.loads(pickle.dumps((call, arguments)))
        return super().submit(call, *arguments)


class Copies:
    """`from_pretrained` of transformers' classes, which reads a folder once and gives copies while it stays as it is.

    Runs of whole documents and papers load the same few tiny models hundreds of times.
    """

    def __init__(self, load: Callable[..., Any]) -> None:
        """`load`: the function under the class method."""
        self.load = load
        self.made: dict[Any, Any] = {}

    def __call__(self, kind: type, source: Any, *more: Any, **options: Any) -> Any:
        if not Path(source).is_dir():
            return self.load(kind, source, *more, **options)
        files = ((file.name, file.stat()) for file in sorted(Path(source).iterdir()))
        state = tuple((name, about.st_ino, about.st_mtime_ns) for name, about in files)
        key = (kind, Path(source).resolve(), state, repr((more, sorted(options.items()))))
        if key not in self.made:
            self.made[key] = self.load(kind, source, *more, **options)
        return copy.deepcopy(self.made[key])


def note(path: str, name: str) -> str:
    """A job that leaves a line in a file."""
    with Path(path).open("a") as file:
        file.write(name + "\n")
    return name


def refuse(reason: str) -> None:
    """A job that ends as a user's mistake does."""
    raise InputError(reason)
