"""The tiny models of `toys` as folders, tiny data files, and what tests of whole runs share."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import pickle
import re
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import (
    CLIPImageProcessorPil,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ViltImageProcessorPil,
)

import groundling.training.loop
from groundling.cli import COMMANDS
from groundling.core.errors import InputError
from groundling.models.text_encoder import load_text_encoder
from groundling.settings.training import TrainingArguments
from tiny import toys

STEPS = TrainingArguments(steps=3, batch=8, lr=1e-3, log_every=1, save_every=1, cpu=True)


def free_port() -> int:
    """A port at which processes of this machine can meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def on_machine(rank: int, port: int, function: Callable[..., None], *arguments: object) -> None:
    """Call a function as one of two machines of torchrun; by its module's own name, as folders have a conftest, too."""
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
    os.environ |= {"LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    function(*arguments)


def import_recipes() -> None:
    """Import every recipe; one imported while another is patched would keep the patch for good."""
    for command in COMMANDS.values():
        command.function()


def run_card(model: Path) -> dict[str, Any]:
    """What the Python of a saved model's card defines."""
    (code,) = re.findall(r"```python\n(.*?)```", (model / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code.replace("FOLDER", str(model)), names)
    return names


@cache
def words() -> PreTrainedTokenizerBase:
    return toys.bert_words()


@cache
def tokens() -> PreTrainedTokenizerBase:
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


POOLING_MODES = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
"""As `1_Pooling/config.json` of the first layout spells them, behind `pooling_mode_`."""


def sentence_encoder(folder: Path, layout: int = 2, mode: str = "mean") -> Path:
    """A tiny encoder in the layout of a version of sentence-transformers: 2 is all-MiniLM-L6-v2's, 6 the newest.

    Recorded from files that versions 2.0.0, 5.2.3 and 6.2.0 wrote.
    """
    student(folder)
    base, head = ("sentence_transformers.models.",) * 2
    kinds = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    encoder: dict[str, object] = {"max_seq_length": 24, "do_lower_case": False}
    pooling: dict[str, object] = {"embedding_dimension": 32, "pooling_mode": mode}
    about: dict[str, object] = {"__version__": {"sentence_transformers": "2.0.0"}}
    if layout == 6:
        base = "sentence_transformers.base.modules."
        head = "sentence_transformers.sentence_transformer.modules."
        text = {"method": "forward", "method_output_name": "last_hidden_state"}
        encoder = {"transformer_task": "feature-extraction", "modality_config": {"text": text}}
        encoder |= {"module_output_name": "token_embeddings"}
        names = {"module_input_name": "sentence_embedding"}
        names |= {"module_output_name": "sentence_embedding"}
        put(folder / "2_Normalize/config.json", json.dumps(names, indent=4))
    else:
        pooling = {"word_embedding_dimension": 32}
        spelt = {"mean": "mean_tokens", "cls": "cls_token", "max": "max_tokens"}.get(mode, mode)
        modes = (
            POOLING_MODES if layout == 2 else (*POOLING_MODES, "weightedmean_tokens", "lasttoken")
        )
        pooling |= {f"pooling_mode_{one}": one == spelt for one in modes}
    if layout >= 5:
        pooling["include_prompt"] = True
        about |= {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}
        about |= {"similarity_fn_name": "cosine"}
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": _type(layout, base, head, kind)}
        for number, (kind, path) in enumerate(kinds.items())
    ]
    put(folder / "modules.json", json.dumps(modules, indent=2))
    put(folder / "sentence_bert_config.json", json.dumps(encoder, indent=4))
    put(folder / "config_sentence_transformers.json", json.dumps(about, indent=2))
    put(folder / "1_Pooling/config.json", json.dumps(pooling, indent=4))
    return folder


def _type(layout: int, base: str, head: str, kind: str) -> str:
    """What a version calls a kind of module."""
    if layout < 6:
        return base + kind
    return f"{head if kind == 'Pooling' else base}{kind.lower()}.{kind}"


def speaking_encoder(folder: Path, width: int) -> Path:
    """A sentence encoder whose vectors a Dense takes to another space."""
    text = load_text_encoder(sentence_encoder(folder))
    torch.manual_seed(3)
    text.set_sentence_modules(text.sentence.with_projection(torch.nn.Linear(32, width)))
    text.export(folder)
    return folder


def teacher(folder: Path) -> Path:
    return home(folder, toys.clip(tokens()), tokens())


def vilt(folder: Path) -> Path:
    """A ViLT with its tokenizer and image processor, which makes photos of 32 pixels on their short side."""
    home(folder, toys.vilt(len(words())), words())
    ViltImageProcessorPil(size={"shortest_edge": 32}, size_divisor=8).save_pretrained(folder)
    return folder


def seeing_clip(folder: Path) -> Path:
    """CLIP with its image processor, which keeps the middle square of a photo."""
    square = {"height": 16, "width": 16}
    processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=square)
    processor.save_pretrained(teacher(folder))
    return folder


def noise(path: Path, size: tuple[int, int], seed: int = 0, exif: Image.Exif | None = None) -> Path:
    """A photo of noise, which PNG keeps as it is."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (*size[::-1], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, **({"exif": exif} if exif else {}))
    return path


def parquet(path: Path, **columns: list[Any]) -> Path:
    """Write a table of texts."""
    pyarrow = pytest.importorskip("pyarrow")
    path.parent.mkdir(parents=True, exist_ok=True)
    pytest.importorskip("pyarrow.parquet").write_table(pyarrow.table(columns), path)
    return path


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def lines(path: Path, *rows: Any) -> Path:
    """A file of JSON lines."""
    return put(path, "".join(json.dumps(row) + "\n" for row in rows))


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


def told_by(model: Path) -> str:
    """All that a model's folder says: its texts, and the beginnings of its weights' files."""
    files = [path for path in model.rglob("*") if path.is_file()]
    return "".join(path.read_bytes()[:100_000].decode(errors="replace") for path in files)


def digests(folder: Path) -> dict[str, str]:
    """Every file under a folder and the hash of its bytes."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def log_of(out: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    measured = {
        "seconds",
        "tokens_per_second",
        "padding",
        "mfu",
    }  # splitting a batch changes padding
    return [{k: v for k, v in line.items() if k not in measured} for line in lines]


def answers(path: Path) -> list[dict[str, Any]]:
    """The lines of a `predictions_*.jsonl`."""
    return [json.loads(line) for line in path.read_text().splitlines()]


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the library may catch it."""


class Counting(groundling.training.loop.PlainTrainingStep):
    """The ordinary inner step, which counts its calls and can die after the backward pass of one."""

    def __init__(self, at: int = 0) -> None:
        self.at = at
        self.calls = 0

    def __call__(self, micro: groundling.training.loop.MicroStep) -> Any:
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
        return groundling.training.loop.train(*arguments, **{**options, "training_step": inner})

    return call


def kill(
    recipe: Callable[..., Any], config: Any, steps: TrainingArguments, out: Path, at: int = 2
) -> None:
    """Leaves what a run leaves that is killed after the backward pass of its `at`-th micro-batch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.training.fit.train", training_with(dying(at)))
        with pytest.raises(Killed):
            recipe(config, steps, out)


def whole_and_resumed(
    recipe: Callable[..., Any],
    config: Any,
    steps: TrainingArguments,
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

    LOCK = threading.Lock()
    """One job at a time in all pools: while transformers loads a model it replaces functions of its own classes, and
    two loads at a time leave `PreTrainedModel.tie_weights` replaced for good."""

    def __init__(self, processes: int, mp_context: Any, **_: Any) -> None:
        assert mp_context.get_start_method() == "spawn"
        super().__init__(max_workers=1)

    def submit(self, call: Any, /, *arguments: Any, **_: Any) -> Any:
        return super().submit(alone_here, call, arguments)


def stay_here(patch: pytest.MonkeyPatch) -> None:
    """`run_jobs` starts no processes."""
    patch.setattr("groundling.runs.jobs.ProcessPoolExecutor", Here)
    patch.setattr("groundling.runs.jobs.run_alone", alone_here)


def alone_here(call: Any, arguments: tuple[Any, ...]) -> Any:
    """`run_alone` without its process."""
    call, arguments = pickle.loads(pickle.dumps((call, arguments)))
    with Here.LOCK:
        return call(*arguments)


class Copies:
    """`from_pretrained` of transformers' classes, which reads a folder once and gives copies while it stays as it is.

    Most tests load the same few tiny models, those that run whole documents hundreds of times.
    """

    MOST = 64
    """Folders whose models are kept; the one not asked for the longest goes first."""

    def __init__(self, load: Callable[..., Any]) -> None:
        """`load`: the function under the class method."""
        self.load = load
        self.made: dict[Any, toys.Copier] = {}

    def __call__(self, kind: type, source: Any, *more: Any, **options: Any) -> Any:
        if not Path(source).is_dir():
            return self.load(kind, source, *more, **options)
        files = ((file.name, file.stat()) for file in sorted(Path(source).iterdir()))
        state = tuple((name, one.st_ino, one.st_size, one.st_mtime_ns) for name, one in files)
        key = (kind, Path(source).resolve(), state, repr((more, sorted(options.items()))))
        if key not in self.made:
            self.made[key] = toys.Copier(self.load(kind, source, *more, **options))
            if len(self.made) > self.MOST:
                self.made.pop(next(iter(self.made)))
        self.made[key] = self.made.pop(key)  # to the end
        return self.made[key]()


def apart(notes: Sequence[str]) -> list[str]:
    """Notes without those on parts that have not left guessing, as most have not in three steps."""
    return [note for note in notes if "is no better than a constant prediction" not in note]


def refused(call: Callable[..., Any], *arguments: Any) -> str:
    """The one line of the user's mistake for which a call is refused."""
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)
