"""What objects from outside return is checked where it enters; what a message quotes is one short line."""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import toys
from tiny.commands import adapting_with
from tiny.homes import put
from torch import Tensor, nn

from groundling import objectives as making
from groundling.commands.adapt import data as adapting_data
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.data import read_splits
from groundling.core.batch import Batch, EncoderOutput, Example, OutputSizes, Sample, collate
from groundling.core.errors import InputError, convert_read_errors, did_you_mean, flatten_message
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.loading import ModelFormat
from groundling.models.task_heads import TaskHead
from groundling.objectives import Objective, ObjectiveContext, make_objectives
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.training import TrainingArguments
from groundling.tasks import Task
from groundling.teachers import Teacher
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.training.loop import train
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.single_stream import MultimodalEmbeddings

STEP = TrainingArguments(steps=1, batch=4, lr=1e-3, cpu=True)


class Length(Objective):
    """A sound objective, of which one method is put out of order."""

    name = "length"
    required_fields = ("text",)

    def count(self, batch: Batch) -> Any:
        return {"length": batch.rows}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Any:
        return {"length": encoded.text.norm(dim=-1).sum()}


class Says(Teacher):
    """A sound teacher, of which one method is put out of order."""

    name = "says"
    width = 3

    def inputs(self, rows: Sequence[Sample]) -> Any:
        return [Sample(row.id, word_type_ids=np.array([len(row.word_type_ids)])) for row in rows]

    def features(self, batch: Batch) -> Any:
        return {"said": batch.word_type_ids.float().expand(-1, 3)}


class Hears(Length):
    required_fields = ("text", "features.said")


def with_method(kind: type, method: str, answer: Callable[..., Any]) -> Any:
    return type(kind.__name__, (kind,), {method: lambda self, *given: answer(*given)})


def trained(student: Any, samples: Any, out: Path, objective: Any, **options: Any) -> None:
    model = student()
    train(model, [objective(model.sizes)], samples, STEP, out, **options)


OBJECTIVES = [
    ("forward", lambda e, b: {"length": e.text.norm(dim=-1).sum(1)}, "`forward` returned 'length'"),
    ("forward", lambda e, b: {"length": e.text.sum((1, 2))[:1]}, "`forward` returned 'length'"),
    ("count", lambda b: {"length": 0.5}, "`count` returned 0.5 as 'length'"),
    ("count", lambda b: {"length": -1}, "`count` returned -1 as 'length'"),
]


@pytest.mark.parametrize(("method", "answer", "told"), OBJECTIVES)
def test_an_objectives_fault_is_told_by_its_name(
    method: str, answer: Any, told: str, student: Any, text_only: Any, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=f"^(length|Length): {told}"):
        trained(student, text_only, tmp_path, with_method(Length, method, answer))


class Clash(Length):
    """Counts and returns a term of another objective."""

    name = "clash"


def test_two_with_one_term_are_told(student: Any, text_only: Any, tmp_path: Path) -> None:
    model = student()
    with pytest.raises(
        InputError, match=r"^Clash: `count` returned 4 as 'length', expected a term"
    ):
        train(model, [Length(model.sizes), Clash(model.sizes)], text_only, STEP, tmp_path)


def test_what_could_not_be_saved_is_told_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = lambda sizes: with_method(Length, "saved_modules", lambda: {"a": 1})(sizes)  # noqa: E731
    monkeypatch.setattr(Length, "from_context", lambda context: kind(OutputSizes()))
    monkeypatch.setattr(making, "find_objective", {"text": Length}.__getitem__)
    with pytest.raises(InputError, match="text: 'a' of `saved_modules` is int, expected Module"):
        make_objectives(["text"], ObjectiveContext(OutputSizes()), 0)


TEACHERS = [
    ("features", lambda b: {"said": torch.zeros(len(b) + 1, 3)}, r"said: \d+ rows, expected \d+"),
    ("features", lambda b: {"said": torch.zeros(len(b) - 1, 3)}, r"said: \d+ rows, expected \d+"),
]


@pytest.mark.parametrize("live", [True, False])
@pytest.mark.parametrize(("method", "answer", "told"), TEACHERS)
def test_a_teachers_fault_is_told_by_its_name(
    live: bool, method: str, answer: Any, told: str, student: Any, text_only: Any, tmp_path: Path
) -> None:
    teacher = with_method(Says, method, answer)()

    def run() -> None:
        samples = TeacherDataset(text_only, teacher, None if live else FeatureCache())
        trained(student, samples, tmp_path, Hears, teachers=[teacher] if live else [])

    with pytest.raises(InputError, match=f"the teacher says: {told}"):
        run()


DOGS = Task("dogs", Classification(("no", "yes")), lambda folder, split: [], (ACCURACY,), "a test")
READ = [
    (lambda folder, split: [Example("a", "b", label=2)], "a of 'train' has the label 2"),
    (lambda folder, split: [Example("a", "b", label="yes")], "a of 'train' has the label 'yes'"),
]


@pytest.mark.parametrize(("read", "told"), READ)
def test_a_tasks_fault_is_told_by_its_name(read: Any, told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"^dogs: {told}"):
        read_splits(replace(DOGS, read=read), FinetuneConfig(data=str(tmp_path)))


class Wide(TaskHead):
    """A head with an output too many."""

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        return encoded.text[:, 0, :3]


def test_a_head_that_is_too_wide_is_told(student: Any, text_only: Any, tmp_path: Path) -> None:
    form = Classification(("no", "yes"))
    make = lambda sizes: SupervisedObjective(sizes, output_type=form, head=Wide())  # noqa: E731
    with pytest.raises(InputError, match=r"^Wide returns \(4, 3\), expected 8 outputs"):
        trained(student, text_only, tmp_path, make)


BROKEN = ModelFormat("broken", lambda source: True, lambda source: nn.Linear(2, 2))


def test_a_kind_that_loads_no_student_is_told() -> None:
    with pytest.raises(InputError, match="`load` returned Linear, expected Encoder"):
        load_encoder("anywhere", f"{__name__}:BROKEN")


def test_a_join_that_loses_words_is_told_by_its_name(student: Any) -> None:
    class Broken(MultimodalEmbeddings):
        kind = "broken"

        def embed_parts(self, embeddings: Any, words: Tensor, batch: Batch) -> Any:
            return words[:, :1], words[:, :0]

    model = student()
    examples = TextDataset(toys.examples(4), TextRowEncoder(model.tokenizer, 40))
    batch = collate(examples.get(range(4)))
    with pytest.raises(InputError, match=r"^broken: `embed_parts` returns too little: \(4, 1,"):
        Broken(8)(model.encoder.embeddings, batch)


# -- What a message quotes: one short line, which names the file


def test_an_error_is_quoted_in_one_short_line() -> None:
    error = OSError("\n  first  line\nsecond line " + 200 * "x")
    assert flatten_message(error).startswith("first line second line xxx")
    assert len(flatten_message(error)) == 160
    assert flatten_message(KeyError()) == "KeyError"


def packed(path: Path) -> None:
    struct.unpack("<i", path.read_bytes())


def zipped(path: Path) -> None:
    zipfile.ZipFile(path)


def coded(path: Path) -> None:
    path.read_text(encoding="utf-8")


def endless(path: Path) -> None:
    endless(path)


def huge(path: Path) -> None:
    raise MemoryError


@pytest.mark.parametrize("read", [packed, zipped, coded, endless, huge, Path.iterdir])
def test_e14_what_a_reader_stumbles_over_is_one_line_that_names_the_file(read, tmp_path):
    file = put(tmp_path / "damaged", b"\xff")
    with pytest.raises(InputError) as told, convert_read_errors(file):
        list(read(file))
    assert str(told.value).startswith(f"{file}: cannot be read (")
    with (
        pytest.raises(InputError, match="gone: no such file; make it"),
        convert_read_errors("gone", "; make it"),
    ):
        Path("gone").read_bytes()


def test_e14_what_the_system_refuses_is_one_line_that_names_the_file(
    given: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str]
) -> None:
    file = put(tmp_path / "damaged", b"\xff")
    monkeypatch.setattr(adapting_data, "corpus_samples", lambda *_: list(file.iterdir()))
    line = refusal(*adapting_with(given, tmp_path / "out", arm="mlm"))
    assert line.startswith(f"groundling: {file}: cannot be read or written (")


def test_e14_a_message_is_one_line_whatever_it_quotes() -> None:
    assert str(InputError("a\nb\x1b[31m\tc")) == "a b [31m c"


@pytest.mark.parametrize(
    ("name", "near"), {"RTE": "glue/rte", "swga": "swag", "xyz": "", "": ""}.items()
)
def test_the_nearest_name_is_one_of_the_same_last_part(name: str, near: str) -> None:
    offered = ["rtee", "glue/rte", "swag"]
    assert did_you_mean(name, offered) == (f"; did you mean {near}?" if near else "")
