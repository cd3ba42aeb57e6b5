"""Tiny models and tokenizers, built once a session; tests that change a model take a deepcopy."""

import gc
import multiprocessing
import multiprocessing.forkserver
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import wait
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoConfig,
    AutoTokenizer,
    BertTokenizer,
    CLIPModel,
    CLIPTokenizer,
    DebertaV2Tokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    RobertaTokenizer,
    SiglipModel,
)
from transformers.models.auto.auto_factory import _BaseAutoModelClass

from groundling.cli import main
from groundling.command_line import Command
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder
from groundling.models.clip import ClipDualEncoder, make_clip_text_tower
from groundling.models.cross_modal import CrossModalEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.runs.folder import CACHE
from tiny import homes, toys
from tiny.homes import rte

# No test outlives a power cut; test_running.py looks whether files are synced at all.
os.fsync = lambda handle: None
# Every seed is kept for devices that are not there, each with a whole traceback of who set it.
for device in (torch.cuda, torch.xpu, torch.mtia):
    if not device.is_available():
        device.manual_seed_all = lambda seed: None


gc.disable()  # until all is imported


def pytest_collection_finish() -> None:
    """What was imported stays for good: from here on garbage is sought among a million objects less, and less often."""
    gc.freeze()
    gc.enable()
    gc.set_threshold(10_000, 20, 10)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    """No test writes into the home of who runs it, or reads what is there."""
    os.environ[CACHE] = str(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> list[tuple]:
    """The settings with which any command is run, in place of the run; whether they make sense is not looked at."""
    found: list[tuple] = []

    def record(command: Command, values: list) -> dict:
        found.append(tuple(values))
        return {"said": len(found)}

    monkeypatch.setattr("groundling.command_line.Command.call", record)
    monkeypatch.setattr("groundling.command_line.Command.check", lambda self, values: None)
    return found


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def processes():
    """A multiprocessing context whose processes start from one server that has imported everything, and run nothing."""
    context = multiprocessing.get_context("forkserver")
    recipes = [f"groundling.commands.{name}.run" for name in ("adapt", "finetune", "regions")]
    context.set_forkserver_preload(["tiny.toys", "tiny.homes", *recipes])
    here = Path(__file__).parents[1]
    with pytest.MonkeyPatch.context() as patch:
        # The server of Python 3.11 ignores this process's sys.path.
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parent)]))
        multiprocessing.forkserver.ensure_running()
    return context


@pytest.fixture(scope="session")
def two_machines(processes) -> Callable[..., None]:
    """Calls a function on two machines of one process each, as torchrun tells processes where they are."""

    def call(function: Callable[..., None], *arguments: object) -> None:
        port = homes.free_port()
        ranks = [
            processes.Process(target=homes.on_machine, args=(rank, port, function, *arguments))
            for rank in (0, 1)
        ]
        for rank in ranks:
            rank.start()
        # If one fails, the other would wait for it in a collective for ever.
        while any(one.exitcode is None for one in ranks) and not any(one.exitcode for one in ranks):
            wait([one.sentinel for one in ranks if one.exitcode is None], timeout=1)
        for one in ranks:
            if any(other.exitcode for other in ranks):
                one.kill()
            one.join()
        assert [one.exitcode for one in ranks] == [0, 0]

    return call


@pytest.fixture(scope="session")
def texts() -> list[str]:
    return toys.sentences()


@pytest.fixture(scope="session")
def bert_tokenizer() -> BertTokenizer:
    return toys.bert_words()


@pytest.fixture(scope="session")
def clip_tokenizer() -> CLIPTokenizer:
    return toys.clip_words()


@pytest.fixture(scope="session")
def roberta_tokenizer() -> RobertaTokenizer:
    return toys.roberta_words()


@pytest.fixture(scope="session")
def deberta_tokenizer() -> DebertaV2Tokenizer:
    return toys.deberta_words()


@pytest.fixture(scope="session")
def siglip_tokenizer() -> PreTrainedTokenizerFast:
    return toys.siglip_words()


@pytest.fixture(scope="session")
def _students(bert_tokenizer, roberta_tokenizer, deberta_tokenizer) -> dict[str, toys.Copier]:
    made = {
        "bert": TextEncoder(toys.bert(len(bert_tokenizer)), bert_tokenizer),
        "electra": TextEncoder(toys.electra(len(bert_tokenizer)), bert_tokenizer),
        "roberta": TextEncoder(toys.roberta(len(roberta_tokenizer)), roberta_tokenizer),
        "deberta": TextEncoder(toys.deberta(len(deberta_tokenizer)), deberta_tokenizer),
        "modernbert": TextEncoder(toys.modernbert(len(bert_tokenizer)), bert_tokenizer),
    }
    return {name: toys.Copier(model.eval()) for name, model in made.items()}


@pytest.fixture
def student(_students):
    """`student("bert")` is a fresh text encoder in eval mode."""
    return lambda name="bert": _students[name]()


@pytest.fixture(scope="session")
def _clip(clip_tokenizer) -> toys.Copier:
    return toys.Copier(toys.clip(clip_tokenizer).eval())


@pytest.fixture(scope="session")
def _siglip(siglip_tokenizer) -> toys.Copier:
    return toys.Copier(toys.siglip(siglip_tokenizer).eval())


@pytest.fixture
def clip(_clip) -> CLIPModel:
    return _clip()


@pytest.fixture
def siglip(_siglip) -> SiglipModel:
    return _siglip()


@pytest.fixture
def tower(clip, siglip, clip_tokenizer, siglip_tokenizer):
    """`tower("clip")` is a fresh text tower and its tokenizer."""
    made = {"clip": (clip, clip_tokenizer), "siglip": (siglip, siglip_tokenizer)}
    return lambda name="clip": (make_clip_text_tower(made[name][0]), made[name][1])


@pytest.fixture(scope="session")
def _cross() -> toys.Copier:
    return toys.Copier(toys.cross_modal().eval())


@pytest.fixture
def cross(_cross) -> CrossModalEncoder:
    return _cross()


@pytest.fixture
def towers(clip, clip_tokenizer) -> ClipDualEncoder:
    return ClipDualEncoder(clip, clip_tokenizer).eval()


@pytest.fixture(scope="session")
def samples() -> TextDataset:
    """64 texts with both sides; every eighth is a pair, some need several windows."""
    return toys.both_sides()


@pytest.fixture(scope="session")
def text_only(bert_tokenizer) -> TextDataset:
    return TextDataset(toys.examples(), TextRowEncoder(bert_tokenizer, 40))


@pytest.fixture(scope="session")
def pictures(clip_tokenizer) -> toys.Pictures:
    return toys.Pictures(clip_tokenizer)


@pytest.fixture(scope="session")
def windows(clip_tokenizer) -> ClipRowEncoder:
    return ClipRowEncoder(clip_tokenizer, toys.WINDOW)


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs run in this process."""
    homes.stay_here(monkeypatch)


@pytest.fixture(scope="session", autouse=True)
def _loaded_once() -> Iterator[None]:
    """Folders of models are read once and copied from then on: most tests load the same few all the time."""
    kinds = (_BaseAutoModelClass, PreTrainedModel, AutoConfig, AutoTokenizer)
    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            copies = homes.Copies(kind.from_pretrained.__func__)
            patch.setattr(kind, "from_pretrained", classmethod(copies))
        yield


@pytest.fixture
def few_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs ask trained models of few samples in place of hundreds, for tests that run whole documents."""
    monkeypatch.setattr("groundling.commands.pretrain.data.BASELINE_SAMPLES", 16)
    monkeypatch.setattr("groundling.commands.pretrain.data.BASELINE_PIXEL_SAMPLES", 8)
    monkeypatch.setattr("groundling.commands.adapt.evaluation.REPORT_TEXTS", 32)


@pytest.fixture(scope="session")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sound folders and files: student, teacher, text.txt, glue."""
    folder = tmp_path_factory.mktemp("given")
    homes.student(folder / "student")
    homes.teacher(folder / "teacher")
    homes.text(folder / "text.txt")
    rte(folder / "glue")
    return folder


@pytest.fixture
def refusal(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """`refusal(arguments)` is the only line on stderr but for notes; status 2, nothing on stdout."""

    def call(*arguments: object) -> str:
        capsys.readouterr()
        assert main([str(a) for a in arguments]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        lines = [line for line in err.splitlines() if not line.startswith("note: ")]
        assert len(lines) == 1 and lines[0].startswith("groundling: "), err
        assert err.endswith(f"{lines[0]}\n")
        return f"{lines[0]}\n"

    return call


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def _search_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that imports code of its own folder leaves this folder on no other test's search path."""
    monkeypatch.setattr(sys, "path", [*sys.path])
