"""Captions and lines keep their numbers and captions their images, however long some of them are."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny import homes
from tiny.corpora import corpus
from tiny.homes import put

from groundling.data import corpora
from groundling.data.corpora import corpus_samples
from groundling.data.samples import ClipRowEncoder, SampleDataset, TextDataset, TextRowEncoder

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


def read(path: Path, clip_tokenizer: object, limit: int = 0) -> tuple[SampleDataset, SampleDataset]:
    """Samples of tokenised files, and of texts at once."""
    text = TextRowEncoder(homes.words(), 20)
    clip = ClipRowEncoder(clip_tokenizer, 7, 2)
    place = path.parent / "texts"
    kept = corpus_samples([path], "lines", text, place, clip, limit)
    return kept, TextDataset(corpus([path], "lines", homes.words(), 20, limit), text, clip)


@pytest.mark.parametrize("limit", [0, 7])
def test_a_cut_caption_shifts_no_other_and_keeps_its_image(
    limit: int, shards: None, clip_tokenizer, tmp_path: Path
) -> None:
    path = table(tmp_path / "c.tsv")
    for samples in read(path, clip_tokenizer, limit):
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


def test_parts_of_a_caption_are_the_whole_of_it(clip_tokenizer, tmp_path: Path) -> None:
    for samples in read(table(tmp_path / "c.tsv"), clip_tokenizer):
        parts: dict[str, list[str]] = {}
        for row in samples.get(range(len(samples)), ()):
            parts.setdefault(row.id.removeprefix("c.tsv:").partition(".")[0], []).append(
                row.example.text
            )
        assert [" ".join(some) for some in parts.values()] == [text for _, text in image_by_image()]


def test_a_caption_whose_image_nobody_names_has_none(tmp_path: Path) -> None:
    path = put(tmp_path / "c.tsv", "a dog\thttp://a.b/c/\na cat\thttp://a.b/c/cat.jpg\n")
    text = TextRowEncoder(homes.words(), 20)
    samples = corpus_samples([path], "lines", text, tmp_path / "texts")
    assert [tuple(some) for some in samples.images] == [(), ("cat",)]
