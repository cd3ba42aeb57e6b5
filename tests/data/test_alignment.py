"""Pieces of any tokenizer to raw words of one string; a text in windows with nothing lost."""

import unicodedata
from collections import Counter

import numpy as np
import pytest
import toys
from transformers import PreTrainedTokenizer

from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.data.samples import TextInput, TextSamples, WindowInput, backend
from groundling.data.text.words import numbers, spans, word_of

HARD = [
    "it's 1,000 naïve cafés",
    "don't they're we'll 'em 'tis rock'n'roll",
    "10:30 on 3-4-2021 costs $4.50 (or 5%)",
    "🐶🐕 👩‍🚀 a🎈b 🇨🇭",
    "ﬁne ½ Ⅳ ① straße İstanbul ǅ",
    "e\u0301te\u0301 o\u0302 cafe\u0301",  # combining accents
    "  two   spaces\tand a tab ",
    "snow_board __init__ x_",
    "日本語 text 한국어 العربية",
    "a\u200bb zero\u00adwidth non\u00a0breaking",
    "!!! ... -- ,,, ''",
    "UPPER MiXeD lower",
    "a",
    "",
    " ",
]


@pytest.fixture(scope="module")
def tokenizers(bert_tokenizer, clip_tokenizer, roberta_tokenizer, siglip_tokenizer):
    return {
        "bert": bert_tokenizer,
        "clip": clip_tokenizer,
        "roberta": roberta_tokenizer,
        "siglip": siglip_tokenizer,
    }


def everything(texts: list[str]) -> list[str]:
    return HARD + texts[::10] + toys.ODD


def plain(tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids and offsets of a text without special tokens."""
    encoding = backend(tokenizer).encode(text, add_special_tokens=False)
    return np.array(encoding.ids, int), np.array(encoding.offsets, int).reshape(-1, 2)


# -- raw words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a naïve café", ["a", "naïve", "café"]),
        ("don't", ["don", "'", "t"]),
        ("1,000", ["1", ",", "000"]),
        ("sold-out!", ["sold", "-", "out", "!"]),
        ("snow_board", ["snow", "_", "board"]),
        ("🐶🐕", ["🐶", "🐕"]),
        ("  a \t b\n", ["a", "b"]),
        ("", []),
        ("   ", []),
    ],
)
def test_raw_words(text, words):
    assert [text[a:b] for a, b in spans(text)] == words


def test_equal_words_have_equal_numbers():
    text = "The dog saw the DOG's cat"
    found = numbers(text, spans(text)).tolist()
    assert found[0] == found[3]
    assert found[1] == found[4]
    assert len(set(found)) == 6  # the, dog, saw, ', s, cat
    assert all(n >= 0 for n in found)


def test_word_of_is_its_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(300):
        edges = np.sort(rng.choice(40, 2 * rng.integers(0, 8), replace=False)).reshape(-1, 2)
        starts = np.sort(rng.integers(0, 40, 12))
        pieces = np.stack([starts, starts + rng.integers(0, 6, 12)], 1)
        expected = [
            next((k for k, (a, b) in enumerate(edges) if max(a, s) < min(b, e)), -1)
            for s, e in pieces.tolist()
        ]
        assert word_of(pieces, edges).tolist() == expected


# -- alignment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "clip", "roberta", "siglip"])
def test_pieces_overlap_their_words(name, tokenizers, texts):
    tokenizer = tokenizers[name]
    window = name in ("clip", "siglip")
    make = WindowInput(tokenizer, 16) if window else TextInput(tokenizer, 512)
    for text in everything(texts):
        words = spans(text)
        row = make.rows([Example("a", text)], [(words,)])[0][0]
        ids, offsets = plain(tokenizer, text)
        assert np.array_equal(row.ids[~row.special], ids)
        assert (row.word[row.special] == -1).all()
        for (start, stop), word in zip(offsets, row.word[~row.special], strict=True):
            overlapping = [k for k, (a, b) in enumerate(words) if max(a, start) < min(b, stop)]
            assert word == (overlapping[0] if overlapping else -1), (text, text[start:stop])


@pytest.mark.parametrize("name", ["bert", "clip", "roberta"])
def test_every_word_is_covered(name, tokenizers, texts):
    """Characters that a normaliser drops aside, each raw word has a piece, or begins inside another word's piece."""
    for text in texts[::7] + toys.ODD[:1]:
        words = spans(text)
        ids, offsets = plain(tokenizers[name], text)
        found = word_of(offsets, words)
        inside = {k for k, (a, _) in enumerate(words) for s, e in offsets if s < a < e}
        unseen = {
            k for k, (a, b) in enumerate(words) if unicodedata.category(text[a:b][0]) == "Cf"
        }  # a joiner
        assert set(range(len(words))) <= set(found.tolist()) | inside | unseen
        assert len(ids) == len(found)


def test_tokenizers_agree_on_words(tokenizers, texts):
    """The same raw word under two tokenizers is the same characters: "1,000", "isn't", accents, emoji."""
    text = "a naïve café isn't 1,000 🐶"
    words = spans(text)
    names = [text[a:b] for a, b in words]
    assert names == ["a", "naïve", "café", "isn", "'", "t", "1", ",", "000", "🐶"]
    pieces = {
        name: Counter(word_of(plain(t, text)[1], words).tolist()) for name, t in tokenizers.items()
    }
    # "'t" is one CLIP or RoBERTa piece: it belongs to the first word it overlaps, and "t" has none.
    assert pieces["clip"][names.index("'")] == 1
    assert pieces["clip"][names.index("t")] == 0
    assert pieces["bert"][names.index("t")] == 1
    assert pieces["clip"][names.index("000")] == 3, "CLIP splits digits"
    assert pieces["clip"][names.index("🐶")] > 1, "several pieces share one character"
    assert pieces["bert"][names.index("🐶")] == 1
    for counted in pieces.values():
        assert counted[-1] == 0


def test_second_text_of_a_pair_counts_on(bert_tokenizer, clip_tokenizer, roberta_tokenizer):
    example = Example("a", "a dog isn't here", pair="two café owners")
    words = (spans(example.text), spans(example.pair))
    assert [len(w) for w in words] == [6, 3]
    for make in (
        TextInput(bert_tokenizer, 64),
        TextInput(roberta_tokenizer, 64),
        WindowInput(clip_tokenizer, 16),
    ):
        row = make.rows([example], [words])[0][0]
        first = [w for w in row.word.tolist() if 0 <= w < 6]
        second = [w for w in row.word.tolist() if w >= 6]
        assert set(second) == {6, 7, 8}
        assert row.word.tolist().index(6) > max(n for n, w in enumerate(row.word) if 0 <= w < 6)
        assert first == sorted(first)
    row = TextInput(bert_tokenizer, 64).rows([example], [words])[0][0]
    assert row.types[row.word >= 6].all()
    assert not row.types[(row.word >= 0) & (row.word < 6)].any()
    sample = TextSamples([example], TextInput(bert_tokenizer, 64)).get([0])[0]
    assert sample.words.tolist() == [
        *numbers(example.text, words[0]),
        *numbers(example.pair, words[1]),
    ]


# -- text rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_text_rows_are_the_tokenizers_own(name, tokenizers, texts):
    tokenizer = tokenizers[name]
    for pair in (None, "a dog isn't 1,000"):
        for text in everything(texts):
            words = (spans(text),) if pair is None else (spans(text), spans(pair))
            row, dropped = TextInput(tokenizer, 500).rows([Example("a", text, pair)], [words])[0]
            assert row.ids.tolist() == tokenizer(text, pair)["input_ids"]
            assert dropped == 0
            mask = tokenizer(text, pair, return_special_tokens_mask=True)["special_tokens_mask"]
            assert row.special.tolist() == [bool(m) for m in mask]


@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.parametrize("pair", [None, "a café owner throws 1,000 crêpes in the park"])
def test_truncation_counts_what_it_drops(name, pair, tokenizers, texts):
    tokenizer = tokenizers[name]
    text = " ".join(texts[:3])
    words = (spans(text),) if pair is None else (spans(text), spans(pair))
    whole = TextInput(tokenizer, 500).rows([Example("a", text, pair)], [words])[0][0]
    row, dropped = TextInput(tokenizer, 20).rows([Example("a", text, pair)], [words])[0]
    assert len(row.ids) == 20
    assert dropped == len(whole.ids) - 20 > 0
    expected = tokenizer(text, pair, truncation="longest_first", max_length=20)["input_ids"]
    assert row.ids.tolist() == expected
    assert row.special.sum() == whole.special.sum(), "special tokens stay"
    samples = TextSamples([Example("a", text, pair), Example("b", "a")], TextInput(tokenizer, 20))
    assert [s.dropped for s in samples.get([0, 1])] == [dropped, 0]
    assert collate(samples.get([0, 1])).dropped == dropped


def test_a_tokenizers_own_settings_are_ignored(bert_tokenizer):
    """Someone else's padding and truncation must not reach the rows."""
    tokenizer = type(bert_tokenizer)(vocab=bert_tokenizer.get_vocab(), do_lower_case=True)
    tokenizer(["a", "a dog runs by the river"], padding=True, truncation=True, max_length=4)
    rows = TextInput(tokenizer, 64).rows(
        [Example("a", "a"), Example("b", "a dog runs")], [(spans("a"),), (spans("a dog runs"),)]
    )
    assert len(rows[0][0].ids) == 3
    assert len(rows[1][0].ids) > 4
    assert rows[1][1] == 0


# -- windows ---------------------------------------------------------------------------------------------------------


def windows_of(row) -> list[np.ndarray]:
    return [np.flatnonzero(row.window == n) for n in range(row.window.max() + 1)]


@pytest.mark.parametrize("limit", [4, 7, 16])
def test_windows_lose_nothing(limit, clip_tokenizer, texts):
    make = WindowInput(clip_tokenizer, limit)
    for text in [*everything(texts), " ".join(texts[:5])]:
        row, dropped = make.rows([Example("a", text)], [(spans(text),)])[0]
        assert dropped == 0
        assert row.ids[~row.special].tolist() == clip_tokenizer(text)["input_ids"][1:-1]
        for n, window in enumerate(windows_of(row)):
            assert 2 <= len(window) <= limit
            assert np.array_equal(window, np.arange(window[0], window[-1] + 1))
            ids = row.ids[window]
            assert (ids[0], ids[-1]) == (clip_tokenizer.bos_token_id, clip_tokenizer.eos_token_id)
            assert np.flatnonzero(row.special[window]).tolist() == [0, len(window) - 1]
            assert len(window) > 2 or n == 0, "no empty window but that of an empty text"


@pytest.mark.parametrize("limit", [5, 7, 9, 16])
def test_no_word_is_split_when_avoidable(limit, clip_tokenizer, texts):
    room, split = limit - 2, 0
    for text in [*everything(texts), " ".join(texts[:5])]:
        row = WindowInput(clip_tokenizer, limit).rows([Example("a", text)], [(spans(text),)])[0][0]
        sizes = Counter(row.word[row.word >= 0].tolist())
        for one, two in zip(windows_of(row), windows_of(row)[1:], strict=False):
            last, first = row.word[one[-2]], row.word[two[1]]
            if last == first >= 0:
                split += 1
                assert sizes[last] > room, (text, "this word would have fitted a window of its own")
            # A window is left short only where the next word would have been cut.
            following = sizes[first] if first >= 0 else 1
            assert len(one) - 2 + following > room or last == first
    assert limit > 5 or split, "the shortest limit forces some splits"


def test_sentences_of_a_pair_never_share_a_window(clip_tokenizer):
    example = Example("a", "a dog", pair="a cat waits")
    row = WindowInput(clip_tokenizer, 77).rows(
        [example], [(spans(example.text), spans(example.pair))]
    )[0][0]
    assert [row.ids[w].tolist() for w in windows_of(row)] == [
        clip_tokenizer("a dog")["input_ids"],
        clip_tokenizer("a cat waits")["input_ids"],
    ]
    assert {row.window[n] for n in np.flatnonzero(row.word >= 2)} == {1}


def test_max_windows_counts_what_is_dropped(clip_tokenizer, texts):
    text = " ".join(texts[:4])
    whole = WindowInput(clip_tokenizer, 16).rows([Example("a", text)], [(spans(text),)])[0][0]
    assert whole.window.max() + 1 > 3
    for most in (1, 2, 3):
        row, dropped = WindowInput(clip_tokenizer, 16, most).rows(
            [Example("a", text)], [(spans(text),)]
        )[0]
        assert row.window.max() + 1 == most
        assert dropped == (~whole.special).sum() - (~row.special).sum() > 0
        assert np.array_equal(row.ids, whole.ids[: len(row.ids)])
    samples = TextSamples([Example("a", text)], None, WindowInput(clip_tokenizer, 16, 1))
    assert samples.get([0])[0].dropped > 0


@pytest.mark.parametrize("most", [1, 2, 3])
def test_max_windows_holds_for_each_text_of_a_pair(most, clip_tokenizer, texts):
    example = Example("a", " ".join(texts[:4]), pair=" ".join(texts[4:8]))
    words = (spans(example.text), spans(example.pair))
    row, dropped = WindowInput(clip_tokenizer, 16, most).rows([example], [words])[0]
    assert row.window.max() + 1 == 2 * most
    whole = WindowInput(clip_tokenizer, 16).rows([example], [words])[0][0]
    assert dropped == (~whole.special).sum() - (~row.special).sum()


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_text_has_one_window(text, clip_tokenizer, bert_tokenizer):
    samples = TextSamples(
        [Example("a", text), Example("b", "a dog"), Example("c", text, pair="a dog")],
        TextInput(bert_tokenizer, 16),
        WindowInput(clip_tokenizer, 16),
    )
    batch = collate(samples.get([0, 1, 2]))
    assert batch.clip.row.tolist() == [0, 1, 2, 2]
    assert batch.clip.ids[0, batch.clip.mask[0]].tolist() == [
        clip_tokenizer.bos_token_id,
        clip_tokenizer.eos_token_id,
    ]
    assert (batch.words[0] == -1).all()
    assert collate(samples.get([0])).words.shape == (1, 0)


def test_windows_without_a_start_token(siglip_tokenizer):
    text = "a dog runs in a park near 3 trees"
    row = WindowInput(siglip_tokenizer, 5).rows([Example("a", text)], [(spans(text),)])[0][0]
    for window in windows_of(row):
        assert row.ids[window[-1]] == siglip_tokenizer.eos_token_id
        assert row.special[window].sum() == 1
    assert row.ids[~row.special].tolist() == siglip_tokenizer(text)["input_ids"][:-1]


def test_a_tokenizer_without_an_end_token_is_refused(bert_tokenizer):
    from tokenizers import processors

    tokenizer = type(bert_tokenizer)(vocab=bert_tokenizer.get_vocab(), do_lower_case=True)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    with pytest.raises(InputError, match="adds no end token") as error:
        WindowInput(tokenizer, 16)
    assert "\n" not in str(error.value)


def test_a_slow_tokenizer_is_refused():
    class Slow(PreTrainedTokenizer):
        @property
        def vocab_size(self):
            return 1

        def get_vocab(self):
            return {"a": 0}

        def _tokenize(self, text):
            return list(text)

    for make in (lambda t: TextInput(t, 16), lambda t: WindowInput(t, 16)):
        with pytest.raises(InputError, match="a fast tokenizer is needed") as error:
            make(Slow())
        assert "\n" not in str(error.value)


# -- keeping what was converted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 3, 100])
def test_samples_are_the_same_however_many_are_kept(keep, bert_tokenizer, samples):
    data = TextSamples(toys.examples(), TextInput(bert_tokenizer, 40), keep=keep)
    for indices in ([5, 2, 5], [2, 60, 7, 1], [5]):
        found = data.get(indices)
        assert [s.id for s in found] == [f"s{i}" for i in indices]
        for sample, expected in zip(found, samples.get(indices), strict=True):
            assert np.array_equal(sample.text.ids, expected.text.ids)
            assert np.array_equal(sample.words, expected.words)
    assert len(data.kept) == min(keep, 5)


def test_labels_come_along(samples):
    assert [int(s.labels["label"]) for s in samples.get(range(20))] == [
        e.label for e in toys.examples(20)
    ]
