"""Texts from Hugging Face's `datasets`: the same samples as of a text file, and other content is another store."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import toys
from tiny.homes import lines, put, words

from groundling.core.errors import InputError
from groundling.data.corpora import corpus_samples, iterate_texts
from groundling.data.samples import TextRowEncoder
from groundling.data.tables import hub_dataset_identity, hub_dataset_texts


def test_the_texts_are_those_of_a_file(tmp_path: Path) -> None:
    texts = toys.sentences()[:8]
    lines(tmp_path / "set/train.jsonl", *({"caption": text} for text in texts))
    put(tmp_path / "lines.txt", "\n".join(texts))
    source = f"datasets:{tmp_path / 'set'}"
    rows = TextRowEncoder(words(), 32)
    stored = corpus_samples([source, tmp_path / "lines.txt"], "lines", rows, tmp_path / "stores")
    assert len(stored) == 2 * len(texts)
    half = len(stored) // 2
    for one, other in zip(stored.get(range(half)), stored.get(range(half, 2 * half)), strict=True):
        assert (one.text.input_ids == other.text.input_ids).all()
    before = hub_dataset_identity(source)
    lines(tmp_path / "set/train.jsonl", {"caption": "another"})
    assert hub_dataset_identity(source) != before


def test_a_null_is_no_text_and_what_is_no_text_is_named_with_its_row(tmp_path: Path) -> None:
    source = f"datasets:{tmp_path}"
    lines(tmp_path / "train.jsonl", {"text": "one", "n": 1}, {"text": None, "n": 2})
    assert [text.text for text in iterate_texts(source)] == ["one"]
    with pytest.raises(InputError, match="row 0: column 'n' holds 1, expected text"):
        list(hub_dataset_texts(source, "n"))
    lines(tmp_path / "train.jsonl", {"text": " "})
    with pytest.raises(InputError, match="no text found"):
        list(iterate_texts(source))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("datasets:a:b:c:d", "expected datasets:NAME"),
        ("datasets:{}:default:test", "Bad split: test"),
        ("datasets:{}/nowhere", "cannot be read"),
    ],
)
def test_what_is_missing_is_said(source: str, message: str, tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", {"text": "one"})
    with pytest.raises(InputError, match=message):
        list(hub_dataset_texts(source.format(tmp_path)))
    with pytest.raises(InputError, match="no column 'nothing'"):
        list(hub_dataset_texts(f"datasets:{tmp_path}", "nothing"))
