"""Text to adapt on, of files and of `datasets`: nothing is lost, nothing is too long, and words stay whole."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import toys
from tiny.commands import adapting_with
from tiny.homes import STEPS, lines, never, put, rte, words
from tiny.tasks import corpus
from tokenizers import Tokenizer

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.verdict import VerdictConfig, groups_of
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.corpora import corpus_samples, full_blocks, iterate_texts, split_long_texts
from groundling.data.samples import TextDataset, TextRowEncoder, backend_tokenizer
from groundling.data.tables import hub_dataset_identity, hub_dataset_texts
from groundling.data.text import TokenizationCache
from groundling.settings.fields import make_settings
from groundling.settings.input_settings import parse_named_folder

KINDS = ["bert", "roberta", "siglip"]


@pytest.fixture(scope="session")
def tokenizers(bert_tokenizer, roberta_tokenizer, siglip_tokenizer) -> dict:
    return {"bert": bert_tokenizer, "roberta": roberta_tokenizer, "siglip": siglip_tokenizer}


@pytest.fixture(scope="session")
def engines(tokenizers: dict) -> dict[str, Tokenizer]:
    return {name: backend_tokenizer(tokenizer) for name, tokenizer in tokenizers.items()}


def squeezed(texts: list[str]) -> str:
    return "".join("".join(texts).split())


def length(engine: Tokenizer, text: str) -> int:
    return len(engine.encode(text, add_special_tokens=False).ids)


LONG = [" ".join(toys.sentences()[i : i + 7]) for i in range(0, 70, 7)] + toys.sentences()[-60:]


def fitted(texts: list[str], lexicon: TokenizationCache, tokens: int) -> list[str]:
    return [unit for _, unit in split_long_texts(texts, lexicon, tokens)]


def blocks(texts: list[str], lexicon: TokenizationCache, tokens: int) -> list[str]:
    return list(full_blocks(texts, lexicon, tokens, whole_words=True))


@pytest.mark.parametrize("way", [fitted, blocks])
@pytest.mark.parametrize("tokens", [14, 30, 62])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_too_long_or_cut_in_a_word(kind, tokens, way, engines):
    engine = engines[kind]
    words = " ".join(LONG).split()
    assert max(length(engine, word) for word in words) <= tokens  # so no word need be cut
    units = list(way(LONG, TokenizationCache(engine), tokens))
    assert " ".join(units).split() == words
    assert [unit for unit in units if length(engine, unit) > tokens] == []
    assert all(units)


@pytest.mark.parametrize("kind", KINDS)
def test_a_word_longer_than_a_block_is_cut_and_kept(kind: str, engines: dict) -> None:
    texts = ["a dog", "redbluegreen" * 7, "two cats"]
    units = blocks(texts, TokenizationCache(engines[kind]), 12)
    assert squeezed(units) == squeezed(texts)
    if kind != "siglip":  # to which the long word is one unknown token
        assert len(units) > 3


def test_ids_name_file_and_number_and_limit_is_evenly_spaced(bert_tokenizer, tmp_path):
    one = put(tmp_path / "one.txt", "\n".join(f"dog {n}" for n in range(6)))
    two = put(tmp_path / "two.txt", "\n".join(f"cat {n}" for n in range(5)))
    examples = corpus([one, two], "lines", bert_tokenizer, 32)
    assert [e.id for e in examples] == [f"one.txt:{n}" for n in range(6)] + [
        f"two.txt:{n}" for n in range(5)
    ]
    assert [e.text for e in examples][4:8] == ["dog 4", "dog 5", "cat 0", "cat 1"]
    some = corpus([one, two], "lines", bert_tokenizer, 32, limit=6)
    assert some == examples[::2]
    assert corpus([one, two], "lines", bert_tokenizer, 32, limit=11) == examples
    assert corpus([one, two], "lines", bert_tokenizer, 32, limit=1) == examples[:1]


def test_a_folders_name_may_have_an_equals_sign(here: Path) -> None:
    for folder in ("runs/lr=1/a", "b"):
        (here / folder).mkdir(parents=True)
    for word, name, folder in (
        ("runs/lr=1/a", "", "runs/lr=1/a"),
        ("A=runs/lr=1/a", "A", "runs/lr=1/a"),
        ("A=b", "A", "b"),
        ("A=gone=1", "A", "gone=1"),
        ("gone", "", "gone"),
        ("A=", "A", ""),
    ):
        assert parse_named_folder(word) == (name, folder)
    config = make_settings(VerdictConfig, runs=["runs/lr=1/a", "w/o images=b"])
    assert groups_of(config.runs) == {"a": "runs/lr=1/a", "w/o images": "b"}


# -- commands ----------------------------------------------------------------------------------------------------------


def test_a_length_that_leaves_no_room_for_text(given, monkeypatch, refusal, tmp_path):
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


# -- Texts from Hugging Face's `datasets`: the same samples as of a text file, and other content is


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
    time = (tmp_path / "set/train.jsonl").stat().st_mtime_ns
    lines(tmp_path / "set/train.jsonl", {"caption": "another"})
    assert hub_dataset_identity(source) != before
    os.utime(tmp_path / "set/train.jsonl", ns=(time, time))  # the library reads nothing else
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
