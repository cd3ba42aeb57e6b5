"""Tokens of any tokenizer to raw words of one string; a text in windows with nothing lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys
from tokenizers import processors
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from groundling.core.batch import IGNORE, Batch, Example, Sample, collate, require
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice
from groundling.data.image_samples import PixelDataset
from groundling.data.regions.samples import RegionDataset
from groundling.data.samples import (
    ClipRowEncoder,
    SampleDataset,
    TextDataset,
    TextRowEncoder,
    backend_tokenizer,
)
from groundling.data.text import align_words, word_spans, word_type_ids
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.training import TrainingArguments
from groundling.teachers import Teacher, add_features
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import ModelWithObjectives

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


def row_of(encoder: TextRowEncoder | ClipRowEncoder, text: str, pair: str | None = None) -> tuple:
    """The row of a text, or of a pair, and how many tokens were dropped."""
    words = tuple(word_spans(one) for one in (text, pair) if one is not None)
    return encoder.rows([Example("a", text, pair)], [words])[0]


def plain(tokenizer, text: str) -> tuple[np.ndarray, np.ndarray]:
    """Ids and offsets of a text without special tokens."""
    encoding = backend_tokenizer(tokenizer).encode(text, add_special_tokens=False)
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
    assert [text[a:b] for a, b in word_spans(text)] == words


def test_equal_words_have_equal_numbers():
    text = "The dog saw the DOG's cat"
    found = word_type_ids(text, word_spans(text)).tolist()
    assert found[0] == found[3] and found[1] == found[4]
    assert len(set(found)) == 6 and min(found) >= 0


def test_word_of_is_its_brute_force():
    rng = np.random.default_rng(0)
    for _ in range(300):
        edges = np.sort(rng.choice(40, 2 * rng.integers(0, 8), replace=False)).reshape(-1, 2)
        starts = np.sort(rng.integers(0, 40, 12))
        tokens = np.stack([starts, starts + rng.integers(0, 6, 12)], 1)
        expected = [
            next((k for k, (a, b) in enumerate(edges) if max(a, s) < min(b, e)), -1)
            for s, e in tokens.tolist()
        ]
        assert align_words(tokens, edges).tolist() == expected


# -- alignment -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "clip", "roberta", "siglip"])
def test_tokens_overlap_their_words(name, tokenizers, texts):
    tokenizer = tokenizers[name]
    window = name in ("clip", "siglip")
    make = ClipRowEncoder(tokenizer, 16) if window else TextRowEncoder(tokenizer, 512)
    for text in everything(texts):
        words = word_spans(text)
        row, _ = row_of(make, text)
        ids, offsets = plain(tokenizer, text)
        assert np.array_equal(row.input_ids[~row.special_tokens_mask], ids)
        assert (row.word_ids[row.special_tokens_mask] == -1).all()
        for (start, stop), word in zip(
            offsets, row.word_ids[~row.special_tokens_mask], strict=True
        ):
            overlapping = [k for k, (a, b) in enumerate(words) if max(a, start) < min(b, stop)]
            assert word == (overlapping[0] if overlapping else -1), (text, text[start:stop])


def test_second_text_of_a_pair_counts_on(bert_tokenizer, clip_tokenizer, roberta_tokenizer):
    example = Example("a", "a dog isn't here", text_pair="two café owners")
    words = (word_spans(example.text), word_spans(example.text_pair))
    assert [len(w) for w in words] == [6, 3]
    for make in (
        TextRowEncoder(roberta_tokenizer, 64),
        ClipRowEncoder(clip_tokenizer, 16),
        TextRowEncoder(bert_tokenizer, 64),
    ):
        row, _ = row_of(make, example.text, example.text_pair)
        found = [w for w in row.word_ids.tolist() if w >= 0]
        assert set(found[found.index(6) :]) == {6, 7, 8}
        assert found[: found.index(6)] == sorted(w for w in found if w < 6)
    assert row.token_type_ids[row.word_ids >= 6].all()
    assert not row.token_type_ids[(row.word_ids >= 0) & (row.word_ids < 6)].any()


# -- text rows -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["bert", "roberta"])
def test_text_rows_are_the_tokenizers_own(name, tokenizers, texts):
    tokenizer = tokenizers[name]
    for pair in (None, "a dog isn't 1,000"):
        for text in everything(texts):
            row, dropped = row_of(TextRowEncoder(tokenizer, 500), text, pair)
            assert row.input_ids.tolist() == tokenizer(text, pair)["input_ids"]
            assert dropped == 0
            mask = tokenizer(text, pair, return_special_tokens_mask=True)["special_tokens_mask"]
            assert row.special_tokens_mask.tolist() == [bool(m) for m in mask]


@pytest.mark.parametrize("name", ["bert", "roberta"])
@pytest.mark.parametrize("pair", [None, "a café owner throws 1,000 crêpes in the park"])
def test_truncation_counts_what_it_drops(name, pair, tokenizers, texts):
    tokenizer = tokenizers[name]
    text = " ".join(texts[:3])
    whole, _ = row_of(TextRowEncoder(tokenizer, 500), text, pair)
    row, dropped = row_of(TextRowEncoder(tokenizer, 20), text, pair)
    assert len(row.input_ids) == 20
    assert dropped == len(whole.input_ids) - 20 > 0
    expected = tokenizer(text, pair, truncation="longest_first", max_length=20)["input_ids"]
    assert row.input_ids.tolist() == expected
    assert row.special_tokens_mask.sum() == whole.special_tokens_mask.sum(), "special tokens stay"
    samples = TextDataset([Example("a", text, pair)] * 2, TextRowEncoder(tokenizer, 20))
    assert collate(samples.get([0, 1])).truncated_tokens == 2 * dropped


def test_a_tokenizers_own_settings_are_ignored(bert_tokenizer):
    """Someone else's padding and truncation must not reach the rows."""
    tokenizer = type(bert_tokenizer)(vocab=bert_tokenizer.get_vocab(), do_lower_case=True)
    tokenizer(["a", "a dog runs by the river"], padding=True, truncation=True, max_length=4)
    rows = [row_of(TextRowEncoder(tokenizer, 64), text) for text in ("a", "a dog runs")]
    assert len(rows[0][0].input_ids) == 3
    assert len(rows[1][0].input_ids) > 4
    assert rows[1][1] == 0


def test_a_text_without_any_token_is_refused(roberta_tokenizer):
    """A decoder's tokenizer may add no special tokens: padding alone would be read."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=roberta_tokenizer.backend_tokenizer)
    tokenizer.backend_tokenizer.post_processor = processors.ByteLevel()
    texts = TextDataset([Example("a", "a dog"), Example("b", "")], TextRowEncoder(tokenizer, 20))
    with pytest.raises(InputError, match="example b: the tokenizer gives no tokens"):
        collate(texts.get(range(2)))


# -- windows ---------------------------------------------------------------------------------------------------------


def windows_of(row) -> list[np.ndarray]:
    return [np.flatnonzero(row.window_index == n) for n in range(row.window_index.max() + 1)]


@pytest.mark.parametrize("limit", [4, 16])
def test_windows_lose_nothing(limit, clip_tokenizer, texts):
    make = ClipRowEncoder(clip_tokenizer, limit)
    for text in [*everything(texts), " ".join(texts[:5])]:
        row, dropped = row_of(make, text)
        assert dropped == 0
        assert (
            row.input_ids[~row.special_tokens_mask].tolist()
            == clip_tokenizer(text)["input_ids"][1:-1]
        )
        for n, window in enumerate(windows_of(row)):
            assert 2 <= len(window) <= limit
            assert np.array_equal(window, np.arange(window[0], window[-1] + 1))
            ids = row.input_ids[window]
            assert (ids[0], ids[-1]) == (clip_tokenizer.bos_token_id, clip_tokenizer.eos_token_id)
            assert np.flatnonzero(row.special_tokens_mask[window]).tolist() == [0, len(window) - 1]
            assert len(window) > 2 or n == 0, "no empty window but that of an empty text"


@pytest.mark.parametrize("limit", [5, 9])
def test_no_word_is_split_when_avoidable(limit, clip_tokenizer, texts):
    room, split = limit - 2, 0
    for text in [*everything(texts), " ".join(texts[:5])]:
        row, _ = row_of(ClipRowEncoder(clip_tokenizer, limit), text)
        sizes = Counter(row.word_ids[row.word_ids >= 0].tolist())
        for one, two in zip(windows_of(row), windows_of(row)[1:], strict=False):
            last, first = row.word_ids[one[-2]], row.word_ids[two[1]]
            if last == first >= 0:
                split += 1
                assert sizes[last] > room, (text, "this word would have fitted a window of its own")
            # A window is left short only where the next word would have been cut.
            following = sizes[first] if first >= 0 else 1
            assert len(one) - 2 + following > room or last == first
    assert limit > 5 or split, "the shortest limit forces some splits"


def test_sentences_of_a_pair_never_share_a_window(clip_tokenizer):
    row, _ = row_of(ClipRowEncoder(clip_tokenizer, 77), "a dog", "a cat waits")
    assert [row.input_ids[w].tolist() for w in windows_of(row)] == [
        clip_tokenizer("a dog")["input_ids"],
        clip_tokenizer("a cat waits")["input_ids"],
    ]
    assert {row.window_index[n] for n in np.flatnonzero(row.word_ids >= 2)} == {1}
    assert np.array_equal(row.token_type_ids, row.window_index)  # the number of the text


@pytest.mark.parametrize("texts_of_row", [1, 2])
@pytest.mark.parametrize("most", [1, 3])
def test_max_windows_holds_for_each_text_and_counts_what_is_dropped(
    most, texts_of_row, clip_tokenizer, texts
):
    said = (" ".join(texts[:4]), " ".join(texts[4:8]))[:texts_of_row]
    whole, _ = row_of(ClipRowEncoder(clip_tokenizer, 16), *said)
    assert whole.window_index.max() + 1 > 3 * texts_of_row
    row, dropped = row_of(ClipRowEncoder(clip_tokenizer, 16, most), *said)
    assert row.window_index.max() + 1 == most * texts_of_row
    assert dropped == (~whole.special_tokens_mask).sum() - (~row.special_tokens_mask).sum() > 0
    first = np.flatnonzero(row.window_index < most)
    assert np.array_equal(row.input_ids[first], whole.input_ids[first])


@pytest.mark.parametrize("text", ["", "   "])
def test_empty_text_has_one_window(text, clip_tokenizer, bert_tokenizer):
    samples = TextDataset(
        [Example("a", text), Example("b", "a dog"), Example("c", text, text_pair="a dog")],
        TextRowEncoder(bert_tokenizer, 16),
        ClipRowEncoder(clip_tokenizer, 16),
    )
    batch = collate(samples.get([0, 1, 2]))
    assert batch.clip.row_index.tolist() == [0, 1, 2, 2]
    assert batch.clip.input_ids[0, batch.clip.attention_mask[0]].tolist() == [
        clip_tokenizer.bos_token_id,
        clip_tokenizer.eos_token_id,
    ]
    assert (batch.word_type_ids[0] == -1).all()


def test_windows_without_a_start_token(siglip_tokenizer):
    text = "a dog runs in a park near 3 trees"
    row, _ = row_of(ClipRowEncoder(siglip_tokenizer, 5), text)
    for window in windows_of(row):
        assert row.input_ids[window[-1]] == siglip_tokenizer.eos_token_id
        assert row.special_tokens_mask[window].sum() == 1
    assert (
        row.input_ids[~row.special_tokens_mask].tolist() == siglip_tokenizer(text)["input_ids"][:-1]
    )


def test_tokenizers_of_other_kinds_are_refused(bert_tokenizer):
    tokenizer = type(bert_tokenizer)(vocab=bert_tokenizer.get_vocab(), do_lower_case=True)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 2)]
    )
    with pytest.raises(InputError, match="expected an end token, as CLIP has"):
        ClipRowEncoder(tokenizer, 16)
    slow = SimpleNamespace(is_fast=False, name_or_path="slow")
    with pytest.raises(InputError, match="slow: expected a fast tokenizer"):
        TextRowEncoder(slow, 16)


# -- keeping what was converted --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [0, 3, 100])
def test_samples_are_the_same_however_many_are_kept(keep, bert_tokenizer, samples):
    data = TextDataset(toys.examples(), TextRowEncoder(bert_tokenizer, 40), max_cached=keep)
    for indices in ([5, 2, 5], [2, 60, 7, 1], [5]):
        found = data.get(indices)
        assert [s.id for s in found] == [f"s{i}" for i in indices]
        for sample, expected in zip(found, samples.get(indices), strict=True):
            assert np.array_equal(sample.text.input_ids, expected.text.input_ids)
            assert np.array_equal(sample.word_type_ids, expected.word_type_ids)
    assert len(data.cache) == min(keep, 5)


# -- wrappers ----------------------------------------------------------------------------------------------------------

COUNT = 6
CHOICES = 3
STORE = toys.RegionDict({f"image{n}": toys.regions(n, 2 + n) for n in range(COUNT)})


class Letters(Teacher):
    """A teacher that says how many characters a row's texts have."""

    name = "letters"
    width = 2

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        made = []
        for row in rows:
            example = require(row.example, "example", "a test")
            lengths = [len(example.text), len(example.text_pair or "")]
            made.append(
                Sample(f"{example.text}|{example.text_pair}", word_type_ids=np.array(lengths))
            )
        return made

    def features(self, batch: Batch) -> dict[str, Tensor]:
        return {"sentence": require(batch.word_type_ids, "word_type_ids", "a test").float()}


def texts(choices: int, tokenizer: Any) -> TextDataset:
    made = toys.sentences()
    examples = []
    for n in range(COUNT):
        seconds = tuple(made[10 * n : 10 * n + choices])
        label = n % CHOICES
        examples.append(
            Example(f"s{n}", made[n], label=label, choices=seconds, images=(f"image{n}",))
        )
    return TextDataset(examples, TextRowEncoder(tokenizer, 40))


def flat(value: object, path: str = "") -> dict[str, object]:
    """Every value inside a batch by its path; tensors as lists."""
    if isinstance(value, Tensor):
        return {path: (value.dtype, value.tolist())}
    if is_dataclass(value):
        value = {one.name: value.__dict__[one.name] for one in fields(value)}
    if not isinstance(value, Mapping):
        return {path: value}
    out = {}
    for name, inner in value.items():
        out |= flat(inner, f"{path}.{name}")
    return out


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("images")
    for n in range(COUNT):
        homes.picture(folder / f"image{n}.png", (20 * n, 30, 40), (16 + n, 20))
    return folder


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("choices", [0, CHOICES])
def test_wrappers_nest_in_any_order(choices, cached, images, bert_tokenizer):
    """C5: regions and teachers did not nest."""
    wraps = {
        "regions": lambda samples: RegionDataset(samples, STORE),
        "pixels": lambda samples: PixelDataset(samples, images, 16),
        "teacher": lambda samples: TeacherDataset(
            samples, Letters(), FeatureCache() if cached else None
        ),
    }
    batches = {}
    for order in permutations(wraps):
        samples: SampleDataset = texts(choices, bert_tokenizer)
        for name in order:
            samples = wraps[name](samples)
        assert len(samples) == COUNT
        assert list(samples.ids) == [f"s{n}" for n in range(COUNT)]
        assert [tuple(one) for one in samples.images] == [(f"image{n}",) for n in range(COUNT)]
        batch = collate(samples.get([4, 0, 3], ()))
        batches[order] = flat(batch if cached else add_features(Letters(), batch))
    first, *others = batches.values()
    assert {".pixels", ".regions.features", ".features.sentence", ".labels.label"} <= first.keys()
    assert all(other == first for other in others)


def test_a_choice_is_masked_and_taught_by_row(bert_tokenizer: Any) -> None:
    """C5: masked LM and a teacher beside a multiple choice; features and labels of tokens come by row."""
    model = toys.seer()
    form = MultipleChoice(("0", "1", "2"))
    masked = MaskedLM(model.sizes, mask_id=bert_tokenizer.mask_token_id)
    task = SupervisedObjective(model.sizes, output_type=form)
    plain = texts(CHOICES, bert_tokenizer)
    samples = TeacherDataset(RegionDataset(plain, STORE), Letters(), FeatureCache())
    feed = MicroBatchDataset(
        plan_batches([DataSource(samples)], [], TrainingArguments(batch=4, steps=1), 1),
        [task, masked],
        1,
        0,
        1,
    )
    batch = feed[0]
    assert batch.text is not None and batch.regions is not None
    assert (len(batch), batch.rows, batch.choices) == (4, 4 * CHOICES, CHOICES)
    assert batch.labels["label"].shape == (4,)
    assert batch.labels["masked_lm"].shape == batch.text.input_ids.shape
    assert batch.features["sentence"].shape == (4 * CHOICES, 2)
    row = 0
    for name in batch.ids:
        (sample,) = plain.get([plain.ids.index(name)])
        assert sample.example is not None
        for choice in sample.choices:
            assert choice.text is not None and choice.example is not None
            ids = torch.from_numpy(choice.text.input_ids)
            labels = batch.labels["masked_lm"][row]
            read = torch.where(labels == IGNORE, batch.text.input_ids[row], labels)[: len(ids)]
            assert torch.equal(read, ids) and (labels != IGNORE).any()
            lengths = [len(choice.example.text), len(choice.example.text_pair or "")]
            assert batch.features["sentence"][row].tolist() == lengths
            row += 1
    step = ModelWithObjectives(model, [task, masked]).eval()
    terms = step(batch, ("supervised", "masked_lm")).terms
    scores = task.outputs(model(batch), batch)
    assert scores.shape == (4, CHOICES) and terms["mlm"] > 0
    torch.testing.assert_close(terms["task"], form.loss(scores, batch.labels["label"]))
