"""Every script under `benchmarks/` runs at toy size; the bench's pages and README have the published numbers."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from multiprocessing import dummy
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from documents import ROOT
from tiny import standins
from transformers.utils import logging

from groundling.data import corpora
from groundling.runs.folder import CACHE
from groundling.studies.bench.engine import METHOD, entries_of
from groundling.studies.bench.judge import base_entries
from groundling.studies.bench.methods import built_in_methods
from groundling.studies.bench.protocol import protocol_of
from groundling.studies.bench.readings import VISUAL
from groundling.training import fit

BENCHMARKS = sorted((ROOT / "benchmarks").glob("*.py"))
SMALL = "--layers 2 --width 64 --batch 2 --steps 1"
HEADS = "--texts 10 --layers 2 --heads 2 --width 64"
RTE = "{models}/bert-base-uncased {models}/glue/RTE --epochs 1 --batch 4 --most 8 --max-length 48 --cpu"
GPU = [
    ["toy", part]
    for part in ("resumes", "adapt_xdbert", "adapt_contrastive", "adapt_caption_to_image", "pretrain_visualbert",
                 "pretrain_uniter", "pretrain_vlbert", "adapt_mlm", "trainer_mlm", "finetune", "train_clip", "regions")
]  # fmt: skip
ALONE: dict[str, tuple[str, ...]] = {
    "adaptation_step": tuple(
        f"--way {way} {SMALL}" for way in ("plain", "here", "transformers", "alone")
    ),
    "clip_td_step": ("--layers 2 --width 64 --batch 2 --steps 2",),
    "finetuning": (
        *(f"{RTE} --way {way}" for way in ("padded", "grouped", "here")),
        "--profile --steps 4 --rounds 1 --batch 4 --layers 1 --width 64",
    ),
    "gpu": (f"--only {json.dumps(GPU, separators=(',', ':'))}",),
    "heads": tuple(f"--way {way} {HEADS}" for way in ("streamed", "masses", "held")),
    "memory": (f"--alone {SMALL} --length 16", f"--alone --recompute {SMALL} --length 16"),
    "muon": (
        "{models}/bert-base-uncased {models}/wiki.txt --steps 5 --batch 2 --seeds 1 --lr 1e-4",
    ),
    "pairs": ("--pairs 2 --rounds 1 --layers 1 --width 32",),
    "region_store": ("--images 3 --regions 4 --rounds 1",),
}
"""The arguments of each way, which a benchmark would run in a process of its own."""
IN_TURN = {
    "corpus": "--sizes .00002 --processes 1 --rounds 1 --steps 1 --forms lines",
    "shards": "--samples 4 --shards 2 --side 16 --rounds 1",
    "vectors": "--captions 40 --width 8 --steps 1 --batch 4",
}
"""The arguments of those that start processes of their own one after the other."""
SIMULATIONS = {
    "verdict_groups": {"TRIALS": 20, "EXAMPLES": 60, "DRAWS": 20, "CHECKED": 2},
    "verdict_power": {"TRIALS": 2, "FEWER_TRIALS": 2, "DRAWS": 20, "SEEDS": (3,)},
}
"""Smaller constants of those without arguments."""


@pytest.fixture(autouse=True)
def _settings_of_libraries() -> Iterator[None]:
    """Benchmarks choose threads and how much transformers says."""
    threads, verbosity = torch.get_num_threads(), logging.get_verbosity()
    yield
    torch.set_num_threads(threads)
    logging.set_verbosity(verbosity)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("benchmarks")
    standins.models(folder)
    standins.texts(folder)
    standins.glue(folder)
    return folder


def script(name: str) -> str:
    return str(ROOT / f"benchmarks/{name}.py")


def test_every_benchmark_is_run() -> None:
    assert {path.stem for path in BENCHMARKS} == {*ALONE, *SIMULATIONS, *IN_TURN, "vision_step"}


@pytest.mark.parametrize(
    ("name", "arguments"), [(name, each) for name, ways in ALONE.items() for each in ways]
)
def test_one_way(name, arguments, models, monkeypatch, capsys):
    words = [word.format(models=models) for word in arguments.split()]
    monkeypatch.setattr(sys, "argv", [script(name), *words])
    runpy.run_path(script(name), run_name="__main__")
    said = capsys.readouterr().out
    assert any(character.isdigit() for character in said)
    assert "nan" not in said


def main_of(name: str, arguments: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(sys, "argv", [script(name), *arguments.split()])
    return runpy.run_path(script(name))["main"]


def test_processes_that_answer_in_turn(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    """Threads stand for them, which need no imports of their own."""
    threads = SimpleNamespace(Pool=dummy.Pool, Pipe=dummy.Pipe, Process=Thread)
    monkeypatch.setattr("multiprocessing.get_context", lambda _: threads)
    main_of("vision_step", SMALL, monkeypatch)()
    assert "here is " in capsys.readouterr().out


@pytest.mark.parametrize("name", IN_TURN)
def test_processes_one_after_the_other(name: str, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(corpora, "cores", corpora.cores)  # which a way replaces
    monkeypatch.setattr(fit, "train", fit.train)
    for variable in ("TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "HF_DATASETS_OFFLINE"):
        monkeypatch.setenv(variable, "1")
    monkeypatch.setenv(CACHE, "")
    main = main_of(name, IN_TURN[name], monkeypatch)

    def run_here(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", [name, *words])
        with redirect_stdout(StringIO()) as said:
            main()
        return said.getvalue().splitlines()[-1]

    main.__globals__["run_in_new_process"] = run_here
    main()
    assert "processor" in capsys.readouterr().out


@pytest.mark.parametrize("name", SIMULATIONS)
def test_simulation(name: str, capsys) -> None:
    main = runpy.run_path(script(name))["main"]
    main.__globals__.update(SIMULATIONS[name])
    main()
    assert "reliable" in capsys.readouterr().out


# -- The numbers of the bench's pages are those of docs/bench.csv, which a bench wrote

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", DOCS / "make_bench_results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_published_results(results: ModuleType) -> None:
    texts = [path.read_text(encoding="utf-8") for path in results.PAGES]
    assert results.pages(results.published(), texts) == texts, (
        "run `python docs/make_bench_results.py`"
    )
    assert all(len(results.BLOCK.findall(text)) >= 2 for text in texts)


def test_the_readme_claims_what_the_bench_found(results: ModuleType) -> None:
    """One value per headline: the first screen's numbers are the mean of the published worlds."""
    runs = [one for one in base_entries(results.published()["runs"]) if one["seed"] == 0]
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    claims = " ".join(readme[: readme.index("## Install")].split())

    def number(method: str, arm: str, reading: str, family: str = "objects") -> str:
        of_family = [one for one in runs if one["family"] == family]
        return results._number(entries_of(of_family, method, arm), reading)

    visual = {name: number(name, METHOD, VISUAL) for name in ("l1", "contrastive", "mcse")}
    assert f"{visual['mcse']} after MCSE" in claims
    assert f"{visual['l1']} after L1 and {visual['contrastive']} after contrastive" in claims
    for name in ("caption_to_image", "lexi_contrastive"):
        assert f"read {number(name, METHOD, VISUAL)} of the visual attributes" in claims
    rows = dict.fromkeys(re.findall(r"^\|.*\| (0\.\d+, 0\.\d+) \|.*$", readme, re.MULTILINE))
    both = {
        f"{number(name, METHOD, VISUAL)}, {number(name, METHOD, VISUAL, 'pictograms')}"
        for name in {one["method"] for one in runs if one["arm"] == METHOD}
    }
    assert rows.keys() == both


def test_published_results_are_those_of_this_protocol_and_its_methods(results: ModuleType) -> None:
    offered = built_in_methods()
    for name, about in results.published()["methods"].items():
        now = results.definition_of(protocol_of(1.0), offered[name].description())
        assert about["definition"] == now, (
            f"{name} or the protocol changed; run it again, and publish it"
        )


def test_figures_are_drawn_small_and_shown(
    results: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(DOCS)
    figures = runpy.run_path(str(DOCS / "make_figures.py"))
    assert figures["SPELT"].keys() == results.published()["methods"].keys()
    blocks = figures["control_rows"]()
    for block in ("400, of the truth", "400, `--regions runs/vision/store`"):
        assert {len(seeds) for seeds in blocks[block].values()} == {5}
    assert all(any(row.startswith(one) for row in blocks[block]) for one in figures["TEACHERS"])
    figures["main"].__globals__["DOCS"] = tmp_path
    figures["main"]()
    pages = "".join(page.read_text(encoding="utf-8") for page in DOCS.rglob("*.md"))
    for name in figures["FIGURES"]:
        assert 15_000 < (tmp_path / f"{name}.png").stat().st_size < 60_000
        assert f"{name}.png)" in pages
        assert (DOCS / f"{name}.png").stat().st_size < 60_000


# -- first steps ----------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def outputs_script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_outputs", ROOT / "docs" / "make_outputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_first_steps_can_be_read(outputs_script: ModuleType) -> None:
    page = outputs_script.PAGE.read_text()
    for heading in outputs_script.SECTIONS:
        blocks = outputs_script.blocks_of(page, heading)
        commands = [
            one
            for block in blocks
            if block.kind == "bash"
            for one in outputs_script.commands_of(block)
        ]
        printed = dict.fromkeys(commands, "")
        shown = [block.text.partition("\n")[0] for block in blocks if block.kind == "console"]
        assert commands and shown
        for line in shown:
            if not line.startswith("$ head "):
                assert outputs_script.output_of(line.removeprefix("$ "), printed, ROOT) == ""
