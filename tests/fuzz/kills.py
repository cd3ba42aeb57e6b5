"""Commands that are killed at a random file event, or moment, and started again: they must end as if nobody had."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import NamedTuple

from tiny import homes, standins, vcr_files

from groundling.cli import main

EVENTS = {
    *("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate", "shutil.rmtree")
}
"""What Python tells of its file events, beside files that are opened for writing."""
MAKES = os.O_WRONLY | os.O_RDWR
SECONDS = re.compile(rb'"[a-z_ ]*(seconds|per_second|rate)[a-z_ ]*": *[0-9.e+-]+')
"""What differs between any two runs."""
TRAINED = "--cpu --batch 4 --save-every 1 --steps 3"


class Ended(NamedTuple):
    """How a process with one command ended."""

    status: int
    """Below 0: by this signal."""
    events: int
    """File events in the run's folder."""
    seconds: float


def commands(shelf: Path) -> dict[str, list[str]]:
    """Small runs of every kind of command that leaves a folder, by name, without their `--out`."""
    student = f"--student {shelf}/bert-base-uncased"
    clip = f"{shelf}/openai/clip-vit-base-patch32"
    text = f"--text {shelf}/my_text.txt --max-length 32"
    captions = f"--captions {shelf}/my_captions.tsv"
    small = "--size 16 --patch-size 8 --vision-tower 16 1 --text-tower 16 1 --projection-dim 8"
    others = f"{shelf}/trainval_resnet101_faster_rcnn_genome_36.tsv"
    rte = f"--task glue/rte --data {shelf}/glue"
    lines = {
        "adapt, the control": f"adapt {student} --arm mlm {text} {TRAINED}",
        "adapt": f"adapt {student} --teacher {clip} {text} {TRAINED}",
        "pretrain": f"pretrain --architecture visualbert --model {shelf}/bert-base-uncased "
        f"--regions {shelf}/store {captions} {TRAINED}",
        "finetune": f"finetune --model {shelf}/bert-base-uncased {rte} --seeds 2 --save-model {TRAINED}",
        "train-clip": f"train-clip {captions} --images {shelf}/my_photos {small} {TRAINED}",
        "regions": f"regions {shelf}/my_photos --grid 2 --shard-size 2 --cpu --backbone {shelf}/microsoft/resnet-50",
        "regions of others": f"regions --shard-size 2 --cpu --imports {others}",
        "predict": f"predict --model {shelf}/learned --data {shelf}/glue --cpu",
        "data make-world": "data make-world " + " ".join(standins.WORLD),
        "data counts": f"data counts {captions} --tokenizer {shelf}/bert-base-uncased",
        "run": f"run {shelf}/s.py",
    }
    return {name: line.split() for name, line in (lines | _looking(shelf)).items()}


def _looking(shelf: Path) -> dict[str, str]:
    """Those that train nothing, or render, or compare."""
    clip = f"{shelf}/openai/clip-vit-base-patch32"
    seen = f"--model {shelf}/seer/model --regions {shelf}/world_store --data {shelf}/made/flickr30k --cpu"
    rte = f"--task glue/rte --data {shelf}/glue"
    arms = "--train.steps 1 --train.batch 4 --train.cpu --tune.steps 1 --tune.batch 4 --tune.cpu"
    arms += f" --adapt.student {shelf}/bert-base-uncased --adapt.text {shelf}/my_text.txt --adapt.teacher {clip}"
    photos = f"--captions {shelf}/my_captions.tsv --images {shelf}/my_photos"
    entailed = f"--data {shelf}/made/snli_ve --images {shelf}/made/images"
    counted = f"--counts {shelf}/counts --tokenizer {shelf}/bert-base-uncased"
    shown = (
        f"--model {shelf}/seer/model --regions {shelf}/store --image {shelf}/my_photos/house.jpg"
    )
    return {
        "data make-tasks": "data make-tasks " + " ".join(standins.TASKS),
        "compare": f"compare --arms contrastive --tasks glue/rte --data {shelf}/glue --seeds 1 {arms}",
        "verdict": f"verdict --runs {shelf}/learned {shelf}/others",
        "probe": f"probe --model {shelf}/bert-base-uncased --data {shelf}/world --seeds 2 {TRAINED}",
        "heads": f"heads {seen} --min-region-attention 0",
        "syntax": f"syntax {seen} --min-region-attention 0 --parses gold --labels as-is",
        "modality": f"modality {seen.replace('/flickr30k', '/captions_val2014.json')} --ig-examples 2 --ig-steps 2",
        "visualize": f"visualize {shown} --text dogs --cpu",
        "zero-shot": f"zero-shot --model {clip} --task snli-ve {entailed} --cpu",
        "retrieve": f"retrieve --model {clip} {photos} --cpu",
        "winoground": f"winoground --model {clip} --data {shelf}/winoground --cpu",
        "pairs": f"pairs --model {shelf}/control/model --data {shelf}/my_pairs.csv --cpu",
        "probe-facts": f"probe-facts --model {shelf}/bert-base-uncased --modes linear "
        f"--data {shelf}/coda/annotations.jsonl",
        "probe-words": f"probe-words --model {shelf}/bert-base-uncased --data {shelf}/EN-RG-65.txt",
        "similarity": f"similarity --model {shelf}/bert-base-uncased --other {shelf}/control/model",
        "grounded": f"grounded --base {shelf}/learned --other {shelf}/others {rte} {counted}",
        "ensemble": f"ensemble {shelf}/learned {shelf}/others {rte}",
        "data shift": f"data shift --data {shelf}/vcr --protocol sm --cpu",
        "data partition": f"data partition --task vcr/answer --data {shelf}/vcr --per-stratum 2 --allow-fewer",
    }


ENDINGS = {"predict": ".csv", "visualize": ".html", "data partition": ".json"}
"""Of the files that commands write, where it is no folder."""


def stock(shelf: Path) -> None:
    """What the commands read."""
    for name in ("models", "texts", "looks", "glue", "own_images", "coco", "others_regions"):
        getattr(standins, name)(shelf)
    standins.store(shelf / "store", standins.PHOTOS)
    homes.put(
        shelf / "s.py",
        "from groundling.recipes import Table, row\n"
        f"TASKS = {{'glue/rte': dict(seeds=2, steps=2, batch=4, cpu=True, data='{shelf / 'glue'}')}}\n"
        f"TABLES = [Table('', [row('a', '{shelf / 'bert-base-uncased'}', TASKS)])]\n",
    )
    standins.pairs(shelf)
    vcr_files.folder(shelf / "vcr")
    offered = commands(shelf)
    made = {
        "made": offered["data make-tasks"],
        "world": offered["data make-world"],
        "learned": offered["finetune"],
        "others": [*offered["finetune"], "--lr", "1e-3"],
        "seer": offered["pretrain"],
        "control": offered["adapt, the control"],
        "counts": offered["data counts"],
    }
    with _quiet():
        for name, arguments in made.items():
            assert main([*arguments, "--out", str(shelf / name)]) == 0, name
        images = json.loads((shelf / "made/instances.json").read_text())["images"]
        names = [image["file_name"].rpartition(".")[0] for image in images]
        standins.store(shelf / "world_store", names)


def run(arguments: list[str], out: Path, kill_at: int = 0, kill_after: float = 0.0) -> Ended:
    """A command in a process of its own, which is killed at its `kill_at`-th file event, or so many seconds on."""
    began = time.perf_counter()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        status = 70
        try:
            os.close(reader)
            counted = _watch(out, kill_at)
            if kill_after:
                timer = threading.Timer(kill_after, os.kill, (os.getpid(), signal.SIGKILL))
                timer.daemon = True
                timer.start()
            with _quiet():
                status = main([*arguments, "--out", str(out)])
            os.write(writer, str(counted()).encode())
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as told:
        events = int(told.read() or 0)
    _, ended = os.waitpid(child, 0)
    return Ended(os.waitstatus_to_exitcode(ended), events, time.perf_counter() - began)


def _watch(out: Path, kill_at: int) -> Callable[[], int]:
    """Counts file events below a folder's parent; the process ends itself at one of them."""
    count = 0
    place = str(out.parent)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal count
        is_made = event == "open" and isinstance(arguments[2], int) and arguments[2] & MAKES
        if not (is_made or event in EVENTS) or not str(arguments[0]).startswith(place):
            return
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return lambda: count


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    nothing = io.StringIO()
    with contextlib.redirect_stdout(nothing), contextlib.redirect_stderr(nothing):
        yield


def digests(out: Path) -> dict[str, str]:
    """Hashes of all that a command left, times aside."""
    files = [out] if out.is_file() else sorted(path for path in out.rglob("*") if path.is_file())
    found = {}
    for path in files:
        content = SECONDS.sub(b"", path.read_bytes())
        found[str(path.relative_to(out.parent))] = hashlib.sha256(content).hexdigest()
    return found


class Trial(NamedTuple):
    """A command that was killed and started again."""

    command: str
    how: str
    finding: str
    """Empty: it ended as one that nobody killed."""


class Killer:
    """One command, what it leaves when nobody kills it, and what it leaves otherwise."""

    def __init__(self, name: str, arguments: list[str], folder: Path) -> None:
        self.name = name
        self.arguments = arguments
        self.place = folder / re.sub(r"\W+", "-", name)
        self.out = self.place / f"out{ENDINGS.get(name, '')}"
        # A run before the first: what is compiled or cached once is no event of the command's.
        whole = [self._whole() for _ in range(2)]
        self.events = whole[1][0].events
        self.seconds = whole[1][0].seconds
        first, second = (left for _, left in whole)
        self.expected = {name: first[name] for name in first if second.get(name) == first[name]}
        self.unlike = sorted(set(first) - set(self.expected))

    def _whole(self) -> tuple[Ended, dict[str, str]]:
        self._clear()
        ended = run(self.arguments, self.out)
        if ended.status:
            command = " ".join(self.arguments)
            raise RuntimeError(f"{self.name} itself fails with {ended.status}: {command}")
        return ended, digests(self.out)

    def _clear(self) -> None:
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)

    def _is_whole(self) -> bool:
        """Whether all is there: a file that is whole, `predict` refuses to write again."""
        return digests(self.out) == self.expected

    def killed(self, rng: Random) -> Trial:
        """Killed once or twice, then started again until it ends."""
        self._clear()
        how = []
        for _ in range(rng.choice((1, 1, 2))):
            if rng.random() < 0.7:
                at = rng.randint(1, max(1, self.events))
                ended = run(self.arguments, self.out, kill_at=at)
                how.append(f"event {at} of {self.events}")
            else:
                after = rng.uniform(0.05, 1.0) * self.seconds
                ended = run(self.arguments, self.out, kill_after=after)
                how.append(f"after {after:.2f} of {self.seconds:.2f} s")
            if ended.status not in (0, -signal.SIGKILL) and not self._is_whole():
                return Trial(
                    self.name, ", ".join(how), f"status {ended.status} where it is resumed"
                )
        ended = run(self.arguments, self.out)
        left = digests(self.out)
        if ended.status and not self._is_whole():
            return Trial(self.name, ", ".join(how), f"status {ended.status} after the kill")
        unlike = sorted(name for name in self.expected if left.get(name) != self.expected[name])
        surplus = sorted(set(left) - set(self.expected) - set(self.unlike))
        surplus = [name for name in surplus if "tensorboard" not in name]
        finding = f"differs: {', '.join(unlike)}" if unlike else ""
        finding += f" left over: {', '.join(surplus)}" if surplus else ""
        return Trial(self.name, ", ".join(how), finding)
