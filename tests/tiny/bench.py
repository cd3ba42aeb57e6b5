"""A bench of the smallest world, killed once and finished."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import documents
import pytest

from groundling.studies.bench import handed, rendered
from groundling.studies.bench.commands import BENCH, BenchConfig
from groundling.studies.bench.readings import PAIRS_FILE, read_encoder, write_grammar_pairs
from tiny.homes import digests, stay_here

CONFIG = BenchConfig(
    method=("contrastive", "mine.look:METHOD"),
    worlds=(0,),
    families=("objects",),
    adapt_seeds=1,
    probe_seeds=1,
    probes=("truth",),
    processes=1,
    scale=0.004,
)
STOP_AT = 3
"""Encoders that are read before the first bench is killed."""


class Killed(Exception):
    """Stands for a killed process."""


@dataclass(frozen=True)
class Ran:
    """A finished bench."""

    out: Path
    work: Path
    """The working folder with the package `mine`."""
    when_killed: dict[str, str]
    """Hashes of the job files that the killed bench left."""
    said: str
    """What the second, finished bench printed."""


READ: list[Path] = []
"""Models that the bench that is killed has read."""


def read_few(model: Path, out: Path, world: Path, encoder: Path) -> object:
    """Stands for `read_encoder` until the bench is killed."""
    READ.append(model)
    if len(READ) > STOP_AT:
        raise Killed
    return read_encoder(model, out, world, encoder)


def write_few_pairs(world: Path) -> None:
    """Every thirtieth minimal pair: each takes a forward pass per token, of every encoder."""
    write_grammar_pairs(world)
    head, *lines = (world / PAIRS_FILE).read_text().splitlines(keepends=True)
    (world / PAIRS_FILE).write_text("".join([head, *lines[::30]]))


def run_bench(work: Path) -> Ran:
    """Killed after some jobs, then finished by the same command, beside a method in one file of the user's own."""
    out = work / "out"
    documents.write_modules(documents.ROOT / "docs" / "bench.md", work)
    before = os.getcwd()
    path = list(sys.path)
    documents.forget_modules("mine")
    with pytest.MonkeyPatch.context() as patch:
        stay_here(patch)
        patch.setattr(handed, "write_grammar_pairs", write_few_pairs)
        os.chdir(work)
        try:
            with patch.context() as killing:
                killing.setattr(rendered, "read_encoder", read_few)
                with pytest.raises(Killed):
                    BENCH(CONFIG, out)
            killed = digests(out / "jobs")
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                BENCH(CONFIG, out)
        finally:
            os.chdir(before)
            sys.path[:] = path
            documents.forget_modules("mine")
    return Ran(out, work, killed, said.getvalue())
