"""Texts that are longer than an encoder reads, and lengths that leave no room for a text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import toys
from tiny.commands import adapting_with
from tiny.corpora import corpus
from tiny.homes import STEPS, never, put, rte, words

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.loading import load_tokenizer
from groundling.settings.fields import make_settings


def test_fewer_texts_than_a_batch(given: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    line = refusal(*adapting_with(given, tmp_path / "out", arm="mlm", batch=41))
    assert all(part in line for part in ("40 samples", "batch of 41", "lower batch"))


def test_a_length_that_leaves_no_room_for_text(
    given: Path, monkeypatch: pytest.MonkeyPatch, refusal: Callable[..., str], tmp_path: Path
) -> None:
    monkeypatch.setattr(
        "groundling.data.corpora.split_long_texts", never
    )  # with no room it would never end
    assert "max" in refusal(*adapting_with(given, tmp_path / "out", arm="mlm", **{"max-length": 2}))


@pytest.mark.parametrize(
    ("pair", "length"), [(None, -1), (None, 0), (None, 1), (None, 2), ("a cat", 2), ("a cat", 3)]
)
def test_a_text_is_never_longer_than_it_may_be(pair: str | None, length: int) -> None:
    """Without room, the tokenizers' truncation silently keeps the whole text."""

    def made() -> None:
        TextDataset(
            [Example("a", "a dog", text_pair=pair)], TextRowEncoder(toys.bert_words(), length)
        ).get([0])

    with pytest.raises(InputError, match=f"max_length {length}: no room"):
        made()


def test_finetune_cuts_long_texts_and_counts_what_it_cut(given: Path, tmp_path: Path) -> None:
    sentence = " ".join(toys.sentences()[:6])
    rte(tmp_path / "glue", count=8, sentence=sentence)
    made, tokenizer = toys.sentences(), words()
    lengths = [len(tokenizer(sentence, made[-1 - i])["input_ids"]) for i in range(8)]
    expected = sum(
        length - 64 for length in lengths
    )  # the encoder has 64 positions, --max-length says 128
    assert min(lengths) > 64
    config = make_settings(
        FinetuneConfig, model=str(given / "student"), task="glue/rte", data=str(tmp_path / "glue")
    )
    result = finetune(config, replace(STEPS, steps=1, batch=8), tmp_path / "out")
    assert result["truncated_tokens"] == expected


def test_adapt_splits_long_texts_and_loses_nothing(given: Path, tmp_path: Path) -> None:
    made = toys.sentences()
    long = [" ".join(made[i : i + 8]) for i in range(0, 64, 8)] + made[64:72]
    path = put(tmp_path / "long.txt", "\n".join(long))
    examples = corpus([path], "lines", load_tokenizer(given / "student"), 64)
    assert "".join("".join(e.text for e in examples).split()) == "".join("".join(long).split())
    config = make_settings(
        AdaptConfig, student=str(given / "student"), arm="mlm", text=(str(path),), max_length=128
    )
    result = adapt(config, STEPS, tmp_path / "out")
    assert result["texts"] == len(examples) > len(long)
    assert result["truncated_tokens"] == 0
