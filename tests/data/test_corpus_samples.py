"""Tokenised corpora: the same samples as from texts at once, opened without reading them again, and mended (D1)."""

from __future__ import annotations

import copy
import gzip
import shutil
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from tiny import homes, toys
from tiny.homes import put
from tiny.tasks import corpus, corpus_lines
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)

import groundling.data.text as lexicon
from groundling.core.batch import Sample, TextRow
from groundling.core.errors import InputError
from groundling.data import corpora
from groundling.data.corpora import CorpusDataset, corpus_samples, full_blocks, stores_folder
from groundling.data.samples import (
    ClipRowEncoder,
    SampleDataset,
    TextDataset,
    TextRowEncoder,
    backend_tokenizer,
)
from groundling.data.text import (
    LLAMA_3_WORDS,
    QWEN_WORDS,
    TokenizationCache,
    align_words,
    word_spans,
    word_type_ids,
)
from groundling.runs import jobs
from groundling.runs.folder import CACHE, PREPARED, cache_folder
from groundling.settings.input_settings import parse_weighted_files
from groundling.settings.training import TrainingArguments
from groundling.training.batch_sampler import DataSource, plan_batches, split_by_file

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
    "\u200b\u200b \x1f tab\tand\x0bmore\x1crunning",
    *toys.sentences()[:40],
    " ".join(toys.sentences()[40:70]),
]


@pytest.fixture(scope="module")
def tokenizers(bert_tokenizer, roberta_tokenizer, siglip_tokenizer) -> dict:
    return {"bert": bert_tokenizer, "roberta": roberta_tokenizer, "siglip": siglip_tokenizer}


class Uncached(TokenizationCache):
    """Counts every word by itself."""

    def counts(self, words: Sequence[str]) -> np.ndarray:
        return np.array([self.count(word) for word in words], np.int64)


@pytest.mark.parametrize("tokens", [1, 2, 7, 30])
@pytest.mark.parametrize("kind", ["bert", "roberta", "siglip"])
def test_blocks_are_cut_as_if_every_word_were_tokenised_by_itself(
    kind: str, tokens: int, tokenizers: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = backend_tokenizer(tokenizers[kind])
    monkeypatch.setattr(lexicon, "MOST_WORDS", 20)
    monkeypatch.setattr(corpora, "CHUNK", 5)
    cached = list(full_blocks(NASTY, TokenizationCache(engine), tokens))
    assert cached == list(full_blocks(NASTY, Uncached(engine), tokens))
    assert "".join("".join(cached).split()) == "".join("".join(NASTY).split())
    lengths = [len(engine.encode(block, add_special_tokens=False).ids) for block in cached]
    assert tokens < 30 or max(lengths) <= tokens
    if tokens == 30:  # the paper's blocks are full; of other tokenizers a word may not fit
        assert np.mean(lengths[:-1]) > tokens - 1
        assert kind != "bert" or set(lengths[:-1]) == {tokens}


def same_rows(one: TextRow | None, other: TextRow | None) -> None:
    assert (one is None) == (other is None)
    for field in fields(TextRow) if one is not None else ():
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert np.array_equal(a, b), field.name
        assert getattr(a, "dtype", None) == getattr(b, "dtype", None), field.name


def same(one: Sample, other: Sample) -> None:
    same_rows(one.text, other.text)
    same_rows(one.clip, other.clip)
    assert np.array_equal(one.word_type_ids, other.word_type_ids)
    names = ("id", "example", "truncated_tokens")
    assert [getattr(one, name) for name in names] == [getattr(other, name) for name in names]


def write(path: Path, texts: list[str]) -> Path:
    return put(path, "\n".join(text.replace("\n", " ") for text in texts))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several shards of few texts."""
    monkeypatch.setattr(corpora, "SMALLEST", 400)
    monkeypatch.setattr(corpora, "CHUNK", 3)


@pytest.mark.parametrize("limit", [0, 17])
@pytest.mark.parametrize("form", ["lines", "blocks"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "siglip"])
def test_samples_are_those_of_texts_at_once(
    kind: str, form: str, limit: int, tokenizers: dict, clip_tokenizer, small, tmp_path: Path
) -> None:
    paths = [write(tmp_path / part / "text.txt", NASTY[n:]) for n, part in enumerate("ab")]
    text = TextRowEncoder(tokenizers[kind], 20)
    clip = ClipRowEncoder(clip_tokenizer, 7, 2)
    old: SampleDataset = TextDataset(corpus(paths, form, tokenizers[kind], 20, limit), text, clip)
    new = corpus_samples(paths, form, text, tmp_path / "texts", clip, limit)
    assert len(new) == len(old) == len(set(new.ids))
    assert len(new._shards) > 8
    assert list(new.ids) == old.ids
    assert list(new.images) == old.images
    assert np.array_equal(new.lengths, old.lengths)
    assert np.array_equal(new.sizes, old.sizes)
    places = [*range(len(old)), 0]
    for one, other in zip(new.get(places), old.get(places), strict=True):
        same(one, other)


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which shards are written, by number."""
    written: list[str] = []
    write_shard = corpora.write_shard

    def record(*arguments) -> None:
        written.append(f"{arguments[2]}")
        write_shard(*arguments)

    monkeypatch.setattr(corpora, "write_shard", record)
    return written


def read(path: Path, place: Path, tokenizer, form: str = "lines") -> CorpusDataset:
    return corpus_samples([path], form, TextRowEncoder(tokenizer, 20), place)


def everything(samples: CorpusDataset) -> list[str]:
    return [repr((one.id, one.text.input_ids.tolist())) for one in samples.get(range(len(samples)))]


def test_a_second_run_reads_nothing_anew(bert_tokenizer, small, tmp_path, monkeypatch):
    path = write(tmp_path / "t.txt", NASTY)
    first = everything(read(path, tmp_path / "texts", bert_tokenizer))
    written = counted(monkeypatch)
    monkeypatch.setattr(corpora, "iterate_texts", None)
    assert everything(read(path, tmp_path / "texts", bert_tokenizer)) == first
    shutil.copy(path, tmp_path / "other.txt")  # content counts, not the name
    assert len(read(tmp_path / "other.txt", tmp_path / "texts", bert_tokenizer)) == len(first)
    assert written == []


def test_other_content_form_length_or_tokenizer_is_another_store(
    bert_tokenizer, roberta_tokenizer, small, tmp_path: Path
) -> None:
    path = write(tmp_path / "t.txt", NASTY)
    place = tmp_path / "texts"
    read(path, place, bert_tokenizer)
    read(path, place, bert_tokenizer, "blocks")
    read(path, place, roberta_tokenizer)
    corpus_samples([path], "lines", TextRowEncoder(bert_tokenizer, 21), place)
    assert len(list(place.iterdir())) == 4
    read(write(path, [*NASTY, "more"]), place, bert_tokenizer)
    read(Path(shutil.copy(path, tmp_path / "t.b")), place, bert_tokenizer)
    assert len(list(place.iterdir())) == 6  # what is read of a file depends on its ending


ODD = [
    *"aZé1.'_-,–狗犬ßﬁ½ΣİǅกΑ",
    *"\u0301\u0327\u200b\u200d\ufeff\ufe0f\x00\x1f\ufffd\u0600",
    *"👩🐕",
]
ODD += ["'s", "n't", "dogs", "[MASK]", "<mask>", "</s>", "<|endoftext|>", "##s", "Ġ", "</w>"]
SPACES = [" "] * 12 + ["  ", "\t", "\u00a0", "\u2028", "\x0b", "\x0c", "\x1c", "\x85", "\u3000"]


def odd_texts(count: int) -> list[str]:
    """Texts of words of odd characters, most of them parted by single blanks."""
    rng = np.random.default_rng(0)
    texts = []
    for _ in range(count):
        words = ["".join(rng.choice(ODD, rng.integers(1, 5))) for _ in range(rng.integers(0, 7))]
        texts.append("".join(word + rng.choice(SPACES) for word in words).strip())
    return texts


def byte_level(name: str) -> Tokenizer:
    """As the family's own, with its rules for words, trained on a few texts."""
    engine = Tokenizer(models.BPE(ignore_merges=name == "llama"))
    by_regex = pre_tokenizers.ByteLevel(add_prefix_space=False)
    words = LLAMA_3_WORDS if name == "llama" else QWEN_WORDS
    split = pre_tokenizers.Split(Regex(words), "isolated")
    engine.pre_tokenizer = {
        "modernbert": by_regex,
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(True), by_regex]),
    }.get(name) or pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    if name in ("modernbert", "qwen"):
        engine.normalizer = normalizers.NFC()
    learner = trainers.BpeTrainer(
        vocab_size=500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    engine.train_from_iterator([*odd_texts(50), *NASTY], learner)
    engine.add_tokens(["[MASK]", *([] if name == "llama" else ["  ", " " * 5])])
    return engine


@pytest.mark.parametrize("name", ["llama", "modernbert", "qwen", "smollm"])
def test_words_of_byte_level_tokenizers_are_tokenised_by_themselves(name: str) -> None:
    engine = byte_level(name)
    together = TokenizationCache(engine)
    assert together.by_word
    check_reading(together, [*odd_texts(400), *NASTY])
    # A pattern in which a word may end in a space.
    engine.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\S+ ?"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    assert not TokenizationCache(engine).by_word


@pytest.mark.parametrize("kind", ["bert", "roberta", "siglip", "clip", "masking roberta"])
def test_many_texts_are_read_as_each_by_itself(kind, tokenizers, clip_tokenizer, roberta_tokenizer):
    """Also with an added token that eats the blank before it."""
    known = {**tokenizers, "clip": clip_tokenizer}
    tokenizer = copy.deepcopy(known.get(kind, roberta_tokenizer))
    if kind == "masking roberta":
        tokenizer.add_special_tokens({"mask_token": AddedToken("<mask>", lstrip=True)})
    check_reading(TokenizationCache(backend_tokenizer(tokenizer)), [*odd_texts(400), *NASTY])


def check_reading(together: TokenizationCache, texts: Sequence[str]) -> None:
    """Tokens, raw words and counts of many texts against each text's own encoding."""
    (engine,) = together.engines
    found = together.read(texts)
    (ids,), (word,), (counts,) = found.ids, found.word, found.counts
    stops, word_stops = np.cumsum(counts), np.cumsum(found.word_counts)
    by_text = [int(own.sum()) for own in together.counts_by_text(texts)]
    assert by_text == counts.tolist()
    for place, text in enumerate(texts):
        whole = engine.encode(text, add_special_tokens=False)
        own = slice(stops[place] - counts[place], stops[place])
        words = slice(word_stops[place] - found.word_counts[place], word_stops[place])
        offsets = np.array(whole.offsets, np.int64).reshape(-1, 2)
        assert ids[own].tolist() == whole.ids, repr(text)
        assert word[own].tolist() == align_words(offsets, word_spans(text)).tolist(), repr(text)
        assert found.words[words].tolist() == word_type_ids(text, word_spans(text)).tolist()


@pytest.mark.parametrize("form", ["lines", "blocks"])
def test_a_killed_run_goes_on_at_the_shards_that_are_missing(
    form: str, bert_tokenizer, small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.txt", NASTY)
    whole = everything(read(path, tmp_path / "whole", bert_tokenizer, form))
    write_shard = corpora.write_shard

    def killed(*arguments) -> None:
        if arguments[2] == 3:
            raise KeyboardInterrupt
        write_shard(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(corpora, "write_shard", killed)
        with pytest.raises(KeyboardInterrupt):
            read(path, tmp_path / "texts", bert_tokenizer, form)
    written = counted(monkeypatch)
    assert everything(read(path, tmp_path / "texts", bert_tokenizer, form)) == whole
    assert written[0] == "3"
    assert len(written) > 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@pytest.mark.parametrize("name", ["shard-00002.safetensors", "manifest.json"])
def test_a_lost_file_is_made_anew_and_a_cut_one_is_named(
    name: str, bert_tokenizer, small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "t.txt", NASTY)
    whole = everything(read(path, tmp_path / "texts", bert_tokenizer))
    (folder,) = (tmp_path / "texts").iterdir()
    cut(folder / name)
    with pytest.raises(InputError, match=name):
        read(path, tmp_path / "texts", bert_tokenizer)
    (folder / name).unlink()
    (folder / "manifest.json").unlink(missing_ok=True)
    written = counted(monkeypatch)
    assert everything(read(path, tmp_path / "texts", bert_tokenizer)) == whole
    assert written == (["2"] if name.startswith("shard") else [])


def test_several_processes_write_what_one_does(bert_tokenizer, small, tmp_path, monkeypatch):
    """Processes would take seconds to start: threads stand in for them, and take shards in any order."""
    path = write(tmp_path / "t.txt", NASTY)
    one = everything(read(path, tmp_path / "one", bert_tokenizer))
    monkeypatch.setattr(jobs, "_pool", ThreadPoolExecutor)
    monkeypatch.setattr(corpora, "LARGE", 0)
    monkeypatch.setattr(corpora, "cores", lambda: 3)
    assert everything(read(path, tmp_path / "several", bert_tokenizer)) == one


def test_files_with_weights_are_drawn_by_them(bert_tokenizer, tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{n}.txt", toys.sentences()[:n]) for n in (40, 10, 30)]
    words = [f"{path}={weight}" for path, weight in zip(paths, ("1", "5", ".5"), strict=True)]
    files = parse_weighted_files(words, "--text")
    text = TextRowEncoder(bert_tokenizer, 60)
    samples = corpus_samples([f.file for f in files], "lines", text, tmp_path / "t", limit=20)
    plain = parse_weighted_files(paths, "--text")
    whole = DataSource(samples, 2.0, name="--text")
    assert split_by_file(whole, samples.bounds, plain) == [whole]
    sources = split_by_file(whole, samples.bounds, files)
    shares = [source.ratio for source in sources]
    assert shares == pytest.approx([2 / 6.5, 10 / 6.5, 1 / 6.5])
    assert [name for source in sources for name in source.samples.ids] == list(samples.ids)
    with pytest.raises(InputError, match=r"text: .*\d0\.txt: \d+ samples are fewer"):
        plan_batches(sources, [], TrainingArguments(batch=31, steps=1), 1)


def test_without_a_cache_texts_go_with_the_run(bert_tokenizer, tmp_path, monkeypatch):
    assert stores_folder(tmp_path).parent == cache_folder()
    blocked = put(tmp_path / "cache" / "texts", "")  # as another user's folder is, but to root, too
    with pytest.raises(InputError, match=f"{blocked}.*: cannot be written"):
        read(write(tmp_path / "t.txt", NASTY), blocked, bert_tokenizer)
    monkeypatch.setenv(CACHE, "")
    put(stores_folder(tmp_path) / "x.npy", "")
    shutil.rmtree(tmp_path / PREPARED)
    assert not stores_folder(tmp_path).exists()


@pytest.mark.parametrize("ending", ["", ".gz", ".zst", ".parquet"])
def test_packed_text_is_text(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"t.txt{ending}"
    raw = "\ufeff a dog \r\n\nzwei\u2028Hunde\n".encode()
    if ending == ".gz":
        path.write_bytes(gzip.compress(raw[:9]) + gzip.compress(raw[9:]))
    elif ending == ".zst":
        compress = pytest.importorskip("pyarrow").compress
        packed = [compress(part, "zstd", asbytes=True) for part in (raw[:9], raw[9:])]
        path.write_bytes(b"".join(packed))
    elif ending == ".parquet":
        arrow = pytest.importorskip("pyarrow")
        table = arrow.table({"text": [" a dog \n", None, "zwei\u2028Hunde"], "id": [1, 2, 3]})
        pytest.importorskip("pyarrow.parquet").write_table(table, path)
    else:
        path.write_bytes(raw)
    assert corpus_lines(path) == ["a dog", "zwei\u2028Hunde"]
    if ending:
        cut(path)
        with pytest.raises(InputError, match=f"t.txt{ending}: cannot be read"):
            corpus_lines(path)


# -- captions ----------------------------------------------------------------------------------------------------------

LONG = "a dog runs home " * 12
CAPTIONS = [
    ("one.jpg", "a dog"),
    ("two.jpg", LONG.strip()),
    ("animals/three.png", "two cats"),
    ("one.jpg", "a red bird"),
    ("four.v2.jpg", LONG.strip() + " again"),
    ("five.jpg", "a bus"),
]


def table(path: Path) -> Path:
    return put(path, "image\tcaption\n" + "".join(f"{i}\t{c}\n" for i, c in CAPTIONS))


def image_by_image() -> list[tuple[str, str]]:
    """Every caption with its image's id, an image's captions together."""
    order = list(dict.fromkeys(image for image, _ in CAPTIONS))
    ordered = sorted(CAPTIONS, key=lambda each: order.index(each[0]))
    return [(image.rpartition(".")[0], text) for image, text in ordered]


@pytest.fixture(params=[0, 1], ids=["one shard", "many shards"])
def shards(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param:
        monkeypatch.setattr(corpora, "SMALLEST", 1)
        monkeypatch.setattr(corpora, "CHUNK", 3)


def both_ways(
    path: Path, clip_tokenizer: object, limit: int = 0
) -> tuple[SampleDataset, SampleDataset]:
    """Samples of tokenised files, and of texts at once."""
    text = TextRowEncoder(homes.words(), 20)
    clip = ClipRowEncoder(clip_tokenizer, 7, 2)
    place = path.parent / "texts"
    kept = corpus_samples([path], "lines", text, place, clip, limit)
    return kept, TextDataset(corpus([path], "lines", homes.words(), 20, limit), text, clip)


@pytest.mark.parametrize("limit", [0, 7])
def test_a_cut_caption_shifts_no_other_and_keeps_its_image(limit, shards, clip_tokenizer, tmp_path):
    path = table(tmp_path / "c.tsv")
    for samples in both_ways(path, clip_tokenizer, limit):
        assert len(samples) == limit or len(samples) > len(CAPTIONS) + 5
        rows = samples.get(range(len(samples)), ())
        numbers = set()
        for index, row in enumerate(rows):
            name, _, place = row.id.rpartition(":")
            number, _, part = place.partition(".")
            image, text = image_by_image()[int(number)]
            assert (name, samples.ids[index]) == ("c.tsv", row.id)
            assert tuple(samples.images[index]) == row.example.images == (image,)
            assert row.example.text in text
            assert (row.example.text == text) == (not part)
            numbers.add(int(number))
        assert len(set(samples.ids)) == len(samples)
        assert limit or numbers == set(range(len(CAPTIONS)))
        assert limit or [one for one in samples.ids if "." not in one.removeprefix("c.tsv")] == [
            *("c.tsv:0", "c.tsv:1", "c.tsv:3", "c.tsv:5")
        ]


def test_a_caption_whose_image_nobody_names_has_none(tmp_path: Path) -> None:
    path = put(tmp_path / "c.tsv", "a dog\thttp://a.b/c/\na cat\thttp://a.b/c/cat.jpg\n")
    text = TextRowEncoder(homes.words(), 20)
    samples = corpus_samples([path], "lines", text, tmp_path / "texts")
    assert [tuple(some) for some in samples.images] == [(), ("cat",)]
