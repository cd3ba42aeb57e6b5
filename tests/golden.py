"""`python -m tests.golden`: tiny runs of every kind, each with a hash of its weights, predictions and scores.

A change that should change nothing prints the same lines before and after, on the same machine:

python -m tests.golden --out runs/golden > before.txt
python -m tests.golden --out runs/golden2 --against before.txt

Every run is a Python function, so that flags may change. `--only NAME ...` runs some, with what they need.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE)]

from tiny import toys  # noqa: E402, F401 - keeps libraries offline and on one thread, before they load

# isort: split
from safetensors import safe_open  # noqa: E402

import groundling  # noqa: E402
from groundling.models.text_encoder import new_encoder  # noqa: E402

WORLD = {
    "nouns": 24,
    "dev_nouns": 6,
    "test_nouns": 8,
    "size": 16,
    "control_images": False,
    "scenes": 12,
    "dev_scenes": 4,
    "sentences": 200,
    "dev_sentences": 8,
}
TRAIN: Mapping[str, Any] = {"steps": 4, "batch": 8, "lr": 1e-3, "cpu": True, "log_every": 1}
CLIP = {
    "size": 16,
    "patch_size": 8,
    "vision_tower": (32, 2),
    "text_tower": (32, 2),
    "projection_dim": 32,
    "vocab_size": 300,
    "context_length": 40,
}
WEIGHTS = "*.safetensors"
SHARDS = "shard-"
"""Start of the names of files that have the format of weights and hold tokens, features or regions."""
PREDICTIONS = "predictions*.jsonl"
CHANGING = {"seconds", "core_seconds", "speed"}
"""Keys of a result that differ between two equal runs."""
KILLED_AT = 3
"""The step at which one run is killed."""


@dataclass(frozen=True)
class Folder:
    """Places of what the runs read and write."""

    root: Path

    def __truediv__(self, name: str) -> str:
        """A path as text; a run that is not there yet, as with `--only`, is run first."""
        needed = name.partition("/")[0]
        if needed in RUNS and not (self.root / needed).exists():
            RUNS[needed](self, str(self.root / needed))
        return str(self.root / name)

    @property
    def captions(self) -> dict[str, str]:
        return {"text": self / "tasks/captions_train2014.json", "teacher": self / "clip/model"}

    @property
    def images(self) -> dict[str, str]:
        return {"teacher_images": self / "tasks/images"}


Run = Callable[[Folder, str], object]


def make_material(at: Folder, out: str) -> object:
    """A rendered world with its data sets, texts, a table, an encoder, and a region store."""
    counts = groundling.data_make_tasks(limit_train=80, limit_dev=30, world=WORLD, out=at / "tasks")
    lines = []
    for caption in json.loads((at.root / "tasks/captions_train2014.json").read_text())[
        "annotations"
    ]:
        lines.append(caption["caption"])
    text = at.root / "text.txt"
    text.write_text("\n".join(lines) + "\n")
    rows = [f"{line},{number % 2}" for number, line in enumerate(lines[:40]) if "," not in line]
    (at.root / "table.csv").write_text("\n".join(["sentence,label", *rows]) + "\n")
    rte = at.root / "glue/RTE"
    rte.mkdir(parents=True, exist_ok=True)
    for split, start in (("train", 0), ("dev", 20)):
        pairs = [
            f"{n}\t{lines[n]}\t{lines[-1 - n]}\t{('entailment', 'not_entailment')[n % 2]}"
            for n in range(start, start + 20)
        ]
        head = "index\tsentence1\tsentence2\tlabel"
        (rte / f"{split}.tsv").write_text("\n".join([head, *pairs]) + "\n")
    new_encoder(text, at.root / "encoder", seed=0, layers=2, positions=64, width=32)
    return counts


def train_clip(at: Folder, out: str) -> object:
    return groundling.train_clip(
        captions=at / "tasks/captions_train2014.json",
        images=at / "tasks/images",
        **CLIP,
        **TRAIN,
        out=out,
    )


def make_regions(at: Folder, out: str) -> object:
    """Annotated boxes, and a hash of what the store returns for each image."""
    counts = groundling.regions(
        images=at / "tasks/images",
        boxes=at / "tasks/instances.json",
        backbone=at / "clip/model",
        cpu=True,
        out=out,
    )
    store = groundling.RegionStore(out)
    rows = [store[name] for name in sorted(store)]
    arrays = [array.tobytes() for row in rows for array in (row.features, row.boxes)]
    return {"counts": counts, "rows": len(rows), "arrays": hash_of(b"".join(arrays))}


def adapt(at: Folder, out: str, *, arm: str, **settings: Any) -> object:
    shared = {"text": at / "text.txt", "teacher": at / "clip/model"}
    shared |= {"student": at / "encoder", "max_length": 32}
    return groundling.adapt(arm=arm, **{**shared, **TRAIN, **settings}, out=out)


def adapt_captions(at: Folder, out: str, *, arm: str) -> object:
    return adapt(at, out, arm=arm, **at.captions, **at.images)


def pretrain(at: Folder, out: str, *, architecture: str) -> object:
    return groundling.pretrain(
        architecture=architecture,
        model=at / "encoder",
        regions=at / "regions",
        captions=at / "tasks/captions_train2014.json",
        **TRAIN,
        out=out,
    )


def finetune_text(at: Folder, out: str, **settings: Any) -> object:
    return groundling.finetune(model=at / "adapt-mlm/model", seeds=2, **TRAIN, **settings, out=out)


def finetune_glue(at: Folder, out: str) -> object:
    return finetune_text(at, out, task="glue/rte", data=at / "glue")


def finetune_table(at: Folder, out: str) -> object:
    return finetune_text(at, out, data=at / "table.csv", text="sentence", label="label")


def finetune_images(at: Folder, out: str, *, model: str, task: str, **settings: Any) -> object:
    folder = at / f"tasks/{task}"
    regions = at / "regions"
    return groundling.finetune(
        model=at / f"{model}/model",
        task=task,
        data=folder,
        regions=regions,
        **{**TRAIN, **settings},
        out=out,
    )


def finetune_clip_td(at: Folder, out: str) -> object:
    return finetune_images(
        at,
        out,
        model="pretrain-uniter",
        task="vqa",
        objectives=("td_image", "td_text", "td_words"),
        teacher=at / "clip/model",
        **at.images,
    )


def predict(at: Folder, out: str) -> object:
    """Answers of the table's model, as the file that a user gets."""
    Path(out).mkdir(parents=True, exist_ok=True)
    answers = f"{out}/predictions.csv"
    groundling.predict(
        model=at / "finetune-table", data=at / "table.csv", cpu=True, top_k=2, out=answers
    )
    return Path(answers).read_text()


def verdict(at: Folder, out: str) -> object:
    """The comparison of a run with itself under other seeds."""
    groundling.finetune(
        model=at / "encoder",
        task="glue/rte",
        data=at / "glue",
        seeds=2,
        **TRAIN,
        out=at / "finetune-control",
    )
    runs = (f"control={at / 'finetune-control'}", f"adapted={at / 'finetune-glue'}")
    return groundling.verdict(runs=runs, out=out)


def bench(at: Folder, out: str) -> object:
    return groundling.bench(
        method=("contrastive", "caption_to_image"),
        worlds=(0,),
        families=("objects", "pictograms"),
        adapt_seeds=1,
        probe_seeds=1,
        probes=("truth",),
        processes=1,
        scale=0.004,
        out=out,
    )


def killed_and_resumed(at: Folder, out: str) -> object:
    """`adapt-xdbert`, killed after its third step and started again by the same call."""
    process = get_context("spawn").Process(target=adapt_and_die, args=(str(at.root), out))
    process.start()
    process.join()
    if process.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the run ended with {process.exitcode} before it was killed")
    return adapt(at, out, arm="xdbert", save_every=1)


def adapt_and_die(root: str, out: str) -> None:
    """Train until the third step is written, and kill this process."""
    from groundling.runs import run as checkpoints

    saved = checkpoints.save_file
    calls = 0

    def save_and_die(tensors: Any, path: Any, *rest: Any, **names: Any) -> None:
        nonlocal calls
        calls += 1
        saved(tensors, path, *rest, **names)
        if calls == KILLED_AT:
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.save_file = save_and_die
    adapt(Folder(Path(root)), out, arm="xdbert", save_every=1)


RUNS: dict[str, Run] = {
    "clip": train_clip,
    "regions": make_regions,
    "adapt-mlm": partial(adapt, arm="mlm"),
    "adapt-xdbert": partial(adapt, arm="xdbert", save_every=1),
    "adapt-killed": killed_and_resumed,
    "adapt-contrastive": partial(adapt, arm="contrastive"),
    "adapt-lexi": partial(adapt_captions, arm="mlm+lexi_contrastive"),
    "adapt-cap2img": partial(adapt_captions, arm="mlm+caption_to_image"),
    "pretrain-visualbert": partial(pretrain, architecture="visualbert"),
    "pretrain-vlbert": partial(pretrain, architecture="vlbert"),
    "pretrain-uniter": partial(pretrain, architecture="uniter"),
    "pretrain-lxmert": partial(pretrain, architecture="lxmert"),
    "finetune-glue": finetune_glue,
    "finetune-table": finetune_table,
    "finetune-vqa": partial(finetune_images, model="pretrain-visualbert", task="vqa"),
    "finetune-lxmert": partial(finetune_images, model="pretrain-lxmert", task="vqa"),
    "finetune-refcoco": partial(finetune_images, model="pretrain-vlbert", task="refcoco+"),
    "finetune-villa": partial(
        finetune_images, model="pretrain-uniter", task="vqa", training_step="villa"
    ),
    "finetune-clip-td": finetune_clip_td,
    "predict": predict,
    "verdict": verdict,
    "bench": bench,
}
"""In this order; later ones read what earlier ones wrote."""


def hash_of(text: str | bytes) -> str:
    data = text.encode() if isinstance(text, str) else text
    return hashlib.sha256(data).hexdigest()[:16]


def weights_hash(folder: Path) -> str:
    """One hash of all tensors by file and name, whatever the metadata of their files; - without weights."""
    digest = hashlib.sha256()
    paths = sorted(path for path in folder.rglob(WEIGHTS) if not path.name.startswith(SHARDS))
    for path in paths:
        digest.update(path.relative_to(folder).as_posix().encode())
        with safe_open(path, "numpy") as file:
            for name in sorted(file.keys()):
                digest.update(name.encode() + file.get_tensor(name).tobytes())
    return digest.hexdigest()[:16] if paths else "-"


def predictions_hash(folder: Path) -> str:
    """One hash of all files of predictions; - without any."""
    paths = sorted(folder.rglob(PREDICTIONS))
    contents = [path.relative_to(folder).as_posix().encode() + path.read_bytes() for path in paths]
    return hash_of(b"".join(contents)) if paths else "-"


def numbers_of(result: object, root: str) -> object:
    """A result without times, versions and places."""
    if isinstance(result, Mapping):
        kept = {key: value for key, value in result.items() if key not in CHANGING}
        return {str(key): numbers_of(value, root) for key, value in kept.items()}
    if isinstance(result, list | tuple):
        return [numbers_of(value, root) for value in result]
    return result.replace(root, "") if isinstance(result, str) else result


def line_of(name: str, folder: Path, result: object, root: str) -> str:
    scores = hash_of(json.dumps(numbers_of(result, root), sort_keys=True, default=str))
    return (
        f"{name:<20} weights {weights_hash(folder)}  predictions {predictions_hash(folder)}"
        f"  result {scores}"
    )


def run_all(at: Folder, names: list[str]) -> list[str]:
    """Run and print a line each; the output of the runs goes to `golden.log`."""
    lines = []
    at.root.mkdir(parents=True, exist_ok=True)
    with (at.root / "golden.log").open("w") as log:
        for name, run in {"material": make_material, **RUNS}.items():
            if names and name not in (*names, "material"):
                continue
            begun = time.perf_counter()
            with redirect_stdout(log), redirect_stderr(log):
                result = run(at, str(at.root / name))
            line = line_of(name, at.root / name, result, str(at.root))
            print(line, flush=True)
            print(f"{name}: {time.perf_counter() - begun:.1f} s", file=sys.stderr, flush=True)
            lines.append(line)
    return lines


def by_name(lines: list[str]) -> dict[str, str]:
    """Hashes by run; other lines are what processes of a run printed."""
    return dict(line.split(maxsplit=1) for line in lines if " weights " in line)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.golden",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", default="runs/golden", help="folder of the runs; made anew")
    parser.add_argument(
        "--against", default="", help="the lines of another commit; 1 if one differs"
    )
    parser.add_argument("--only", nargs="+", default=[], choices=[*RUNS], help="these alone")
    given = parser.parse_args()
    at = Folder(Path(given.out).resolve())
    shutil.rmtree(at.root, ignore_errors=True)
    lines = run_all(at, given.only)
    if not given.against:
        return 0
    before = by_name(Path(given.against).read_text().splitlines())
    after = by_name(lines)
    changed = [name for name in after if before.get(name) != after[name]]
    print(f"differ: {', '.join(changed) or 'none'}")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
