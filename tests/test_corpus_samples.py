"""Tokenised corpora: the same samples as from texts at once, opened without reading them again, and mended."""

from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import toys
from homes import put
from tokenizers import Tokenizer

from groundling.batch import Row, Sample
from groundling.data import corpora, prepared
from groundling.data.corpora import corpus, full_blocks
from groundling.data.corpus_samples import corpus_samples
from groundling.data.samples import Samples, TextInput, TextSamples, WindowInput, backend
from groundling.data.words import spans, spans_of_much

NASTY = [
    "",
    "a",
    "  a  dog\u00a0runs\u2028home ",
    "naïve CAFÉ İstanbul ΑΣ ﷺ ﬁne ½ e\u0301te\u0301",
    "狗在公园里跑得很快而且非常高兴因为今天天气很好",
    "これは犬です。 とても速い。",
    "กขคงจฉชซ " * 3,
    "x" * 300,
    "redbluegreen" * 20,
    "don't 're' ... --- !!! ?!?! a_b_c __init__ 3.14 1,000,000",
    "[MASK] <mask> [SEP] </s> <|endoftext|> [CLS]dog",
    "👩‍👩‍👧‍👦 family 🐕🐕🐕 \U0001f3f4\U000e0067",
    "\u200b\u200b \x00 \x1f tab\tand\x0bmore\x1crunning",
    *toys.sentences()[:40],
    " ".join(toys.sentences()[40:70]),
]


@pytest.fixture(scope="module")
def tokenizers(bert_tokenizer, roberta_tokenizer, siglip_tokenizer) -> dict:
    return {"bert": bert_tokenizer, "roberta": roberta_tokenizer, "siglip": siglip_tokenizer}


def plainly(texts: list[str], engine: Tokenizer, pieces: int) -> Iterator[str]:
    """Full blocks in the way of their definition: every word is tokenised twice, at a start and behind a space."""

    def count(text: str) -> int:
        return len(engine.encode(text, add_special_tokens=False).ids)

    block: list[str] = []
    room = pieces
    for word in (word for text in texts for word in text.split()):
        first, later = count(word), count(" " + word)
        needed = later if block else first
        while word and needed > room:
            head, word = corpora._cut(word, engine, room, " " if block else "")
            if not (head or block):
                head, word = word[:1], word[1:]
            yield " ".join([*block, head] if head else block)
            block, room, needed = [], pieces, count(word)
        if word:
            room -= needed
            block.append(word)
    if block:
        yield " ".join(block)


@pytest.mark.parametrize("pieces", [1, 2, 7, 30])
@pytest.mark.parametrize("kind", ["bert", "roberta", "siglip"])
def test_blocks_are_cut_as_if_every_word_were_tokenised_by_itself(
    kind: str, pieces: int, tokenizers: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = backend(tokenizers[kind])
    monkeypatch.setattr(corpora, "MOST_WORDS", 20)
    monkeypatch.setattr(corpora, "CHUNK", 5)
    assert list(full_blocks(NASTY, engine, pieces)) == list(plainly(NASTY, engine, pieces))


def test_raw_words_of_much_text_are_those_of_little() -> None:
    text = "\n".join(NASTY) + "_\n"
    assert np.array_equal(spans_of_much(text), spans(text))
    assert spans_of_much("").shape == (0, 2)
    every = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x30000)]))
    assert np.array_equal(spans_of_much(every), spans(every))


def same_rows(one: Row | None, other: Row | None) -> None:
    assert (one is None) == (other is None)
    for field in fields(Row) if one is not None else ():
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b), field.name
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None), field.name


def same(one: Sample, other: Sample) -> None:
    same_rows(one.text, other.text)
    same_rows(one.clip, other.clip)
    assert np.array_equal(one.words, other.words)
    assert one.words.dtype == other.words.dtype
    assert (one.id, one.example, one.dropped) == (other.id, other.example, other.dropped)


def write(path: Path, texts: list[str]) -> Path:
    return put(path, "\n".join(text.replace("\n", " ") for text in texts))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards of few texts."""
    monkeypatch.setattr(prepared, "SMALLEST", 400)
    monkeypatch.setattr(prepared, "CHUNK", 3)


@pytest.mark.parametrize("limit", [0, 17])
@pytest.mark.parametrize("form", ["lines", "blocks"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "siglip"])
def test_samples_are_those_of_texts_at_once(
    kind: str, form: str, limit: int, tokenizers: dict, clip_tokenizer, small, tmp_path: Path
) -> None:
    paths = [write(tmp_path / part / "text.txt", NASTY[n:]) for n, part in enumerate("ab")]
    text = TextInput(tokenizers[kind], 20)
    clip = WindowInput(clip_tokenizer, 7, 2)
    old: Samples = TextSamples(corpus(paths, form, tokenizers[kind], 20, limit), text, clip)
    new = corpus_samples(paths, form, text, tmp_path / "texts", clip, limit)
    assert len(new) == len(old)
    assert len(new._shards) > 8
    assert list(new.ids) == old.ids
    assert list(new.images) == old.images
    assert np.array_equal(new.lengths, old.lengths)
    assert np.array_equal(new.sizes, old.sizes)
    places = [*range(len(old)), 0]
    for one, other in zip(new.get(places), old.get(places), strict=True):
        same(one, other)
