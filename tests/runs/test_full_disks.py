"""A disk that fills up: one line, and nothing of worth is lost."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from tensorboard.summary.writer.record_writer import RecordWriter
from tiny import homes
from tiny.commands import same
from tiny.homes import STEPS, dying, never, put, training_with
from transformers import BertTokenizer

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.errors import InputError
from groundling.runs import run as checkpoint
from groundling.training import fit as fitting


def full_disk() -> OSError:
    return OSError(errno.ENOSPC, "No space left on device")


def safetensors_full_disk() -> SafetensorError:
    return SafetensorError(
        "Error while serializing: I/O error: No space left on device (os error 28)"
    )


@pytest.mark.parametrize("full", [full_disk, safetensors_full_disk])
def test_the_disk_fills_up_during_a_checkpoint(full, control, whole, tmp_path, monkeypatch):
    out, calls = tmp_path / "out", []

    def save(tensors: dict, path: Path) -> None:
        calls.append(path)
        if len(calls) == 2:
            Path(path).write_bytes(b"half")
            raise full()
        save_file(tensors, path)

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", save)
        with pytest.raises(InputError, match="checkpoints: cannot be written") as error:
            adapt(control, STEPS, out)
    assert "\n" not in str(error.value)
    assert "No space left on device" in str(error.value)
    folder = out / "checkpoints" / "step-000000001"
    assert len(load_file(folder / "state.safetensors")) > 50
    assert json.loads((folder / "counters.json").read_text())["step"] == 1
    assert not (out / "checkpoints" / "step-000000002").exists()

    with monkeypatch.context() as patch:
        step = dying(3)  # two steps are left, so it does not die
        patch.setattr(fitting, "train", training_with(step))
        assert adapt(control, STEPS, out)["steps"] == 3
    assert step.calls == 2
    assert same(out, whole)
    assert [line["step"] for line in homes.log_of(out)] == [1, 2, 3]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(("at", "named"), [(1, "tensorboard"), (3, "log.jsonl")])
def test_e14_the_disk_fills_up_under_tensorboards_writer(
    at: int,
    named: str,
    control: AdaptConfig,
    whole: dict,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its file is written in a thread, whose errors nobody may miss."""
    written = []

    def write(self: RecordWriter, event: bytes) -> None:
        written.append(event)
        if len(written) >= at:
            raise full_disk()

    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, "write", write)
        with pytest.raises(InputError, match=f"out/{named}: cannot be written .*No space left"):
            adapt(control, STEPS, tmp_path / "out")
    adapt(control, STEPS, tmp_path / "out")
    assert same(tmp_path / "out", whole)
    assert [line["step"] for line in homes.log_of(tmp_path / "out")] == [1, 2, 3]


def full_json(patch: pytest.MonkeyPatch) -> None:
    real = Path.write_bytes

    def write(path: Path, content: bytes) -> int:
        if path.name == "result.json.partial":
            real(path, b"{")
            raise full_disk()
        return real(path, content)

    patch.setattr(Path, "write_bytes", write)


def full_export(patch: pytest.MonkeyPatch) -> None:
    def save(*_: object, **__: object) -> None:
        raise safetensors_full_disk()

    patch.setattr("transformers.modeling_utils.safe_save_file", save)


def full_tokenizer(patch: pytest.MonkeyPatch) -> None:
    def save(*_: object, **__: object) -> None:
        raise Exception("No space left on device (os error 28)")

    patch.setattr(BertTokenizer, "save_pretrained", save)


@pytest.mark.parametrize("fill", [full_json, full_export, full_tokenizer])
def test_the_disk_fills_up_at_the_end(fill, control, whole, tmp_path, monkeypatch):
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        fill(patch)
        with pytest.raises(
            InputError, match=f"^{out}[^\\n]*cannot be written [^\\n]*No space left"
        ):
            adapt(control, STEPS, out)
    assert not (out / "result.json").exists()
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "train", training_with(never))  # all steps are done
        adapt(control, STEPS, out)
    assert same(out, whole)
    assert json.loads((out / "result.json").read_text())["steps"] == 3


def test_e12_a_model_folder_is_there_as_a_whole_or_not_at_all(
    control: AdaptConfig, whole: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill after the weights, before the tokenizer; what an earlier try left is replaced."""

    def killed(*_: object, **__: object) -> None:
        raise homes.Killed

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(BertTokenizer, "save_pretrained", killed)
        with pytest.raises(homes.Killed):
            adapt(control, STEPS, out)
    assert not (out / "model").exists()
    put(out / "model" / "old.bin", "of an earlier version")
    adapt(control, STEPS, out)
    assert same(out, whole)
    assert not (out / "model" / "old.bin").exists()
    assert not list(out.glob(".partial"))
