"""Captioned images from the field's own files, and the samples made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tiny import homes, toys
from tiny.corpora import corpus_lines
from tiny.homes import coco, put

from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.captions import CaptionedImage, keep_listed, read_captions, with_store_ids
from groundling.data.image_samples import CaptionedImageDataset, decode_image
from groundling.data.samples import ClipRowEncoder

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


# -- files -----------------------------------------------------------------------------------------------------------


def test_coco_captions_are_grouped_by_image(tmp_path: Path) -> None:
    path = coco(
        tmp_path / "captions_val2014.json",
        [
            (42, "COCO_val2014_000000000042.jpg"),
            (7, "COCO_val2014_000000000007.jpg"),
            (9, "no_caption.jpg"),
        ],
        [(7, "A dog."), (42, " Two  cats\nsleep. "), (7, "A brown dog."), (7, " \n")],
    )
    assert read_captions(path).images == [
        CaptionedImage("7", "COCO_val2014_000000000007.jpg", ("A dog.", "A brown dog.")),
        CaptionedImage("42", "COCO_val2014_000000000042.jpg", ("Two cats sleep.",)),
    ]
    assert corpus_lines(path) == ["A dog.", "A brown dog.", "Two cats sleep."]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_flickr8k(end: str, tmp_path: Path) -> None:
    rows = [
        "1000268201_693b08cb0e.jpg#0\tA child in a pink dress .",
        "1000268201_693b08cb0e.jpg#1\tA girl going into a wooden building .",
        "1001773457_577c3a7d70.jpg#0\tA black dog and a spotted dog are fighting",
        "1000268201_693b08cb0e.jpg#2\tA little girl climbing .",
    ]
    path = put(tmp_path / "Flickr8k.token.txt", end.join(rows) + end)
    first, second = read_captions(path).images
    assert first.file == first.id == "1000268201_693b08cb0e.jpg"
    assert first.captions == tuple(row.split("\t")[1] for row in (rows[0], rows[1], rows[3]))
    assert second.captions == ("A black dog and a spotted dog are fighting",)

    listing = put(
        tmp_path / "Flickr_8k.trainImages.txt", f"1001773457_577c3a7d70.jpg{end}other.jpg{end}"
    )
    assert keep_listed([first, second], listing) == [second]
    with pytest.raises(InputError, match="lists none of"):
        keep_listed([first], listing)


def test_conceptual_captions(tmp_path: Path) -> None:
    rows = [
        "a very typical bus station\thttp://lh6.ggpht.com/-IvRt/AAAAAAAAM6o/_11Mu/IMG_3422.JPG",
        "sierra looked stunning\thttp://78.media.tumblr.com/3b133294bdc7c7784b781b45c0f6ecf8/tumblr_o.jpg",
    ]
    path = put(tmp_path / "Train_GCC-training.tsv", "\n".join(rows) + "\n")
    assert [(image.file, image.captions) for image in read_captions(path).images] == [
        ("IMG_3422.JPG", ("a very typical bus station",)),
        ("tumblr_o.jpg", ("sierra looked stunning",)),
    ]
    local = put(tmp_path / "own.tsv", "a dog\t1.png\nthe dog\t1.png\n")
    assert [(image.file, image.captions) for image in read_captions(local).images] == [
        ("1.png", ("a dog", "the dog"))
    ]


def test_coco_images_have_an_id_each(tmp_path: Path) -> None:
    # B6: train2014 and val2014 merged without their folders
    captions = [(1, "A dog."), (2, "A cat.")]
    path = coco(tmp_path / "c.json", [(1, "1.jpg"), (2, "2.jpg"), (1, "3.jpg")], captions)
    with pytest.raises(InputError, match=r"c.json: 1.jpg and 3.jpg have the same id 1"):
        read_captions(path)
    path = coco(tmp_path / "c.json", [(1, "1.jpg"), (3, "2.jpg"), (2, "1.jpg")], captions)
    assert corpus_lines(path) == ["A dog.", "A cat."]  # text alone needs no image


def test_two_files_never_share_a_stores_regions(tmp_path: Path) -> None:
    # B6: a region store knows images by their file's name without the ending
    images = [
        CaptionedImage(str(n), file, ("a dog",)) for n, file in enumerate(["a/1.jpg", "2.jpg"])
    ]
    assert [image.id for image in with_store_ids(images)] == ["a/1", "2"]
    assert [image.file for image in with_store_ids(images)] == ["a/1.jpg", "2.jpg"]
    with pytest.raises(InputError, match=r"a/1.jpg and a/1.jpeg both refer to the image a/1"):
        with_store_ids([*images, CaptionedImage("3", "a/1.jpeg", ("a cat",))])


# -- pixels ----------------------------------------------------------------------------------------------------------


def bands(path: Path, colours: list[tuple[int, int, int]], widths: list[int], high: int) -> Path:
    image = Image.new("RGB", (sum(widths), high))
    at = 0
    for colour, wide in zip(colours, widths, strict=True):
        image.paste(colour, (at, 0, at + wide, high))
        at += wide
    image.save(path)
    return path


@pytest.mark.parametrize("size", [8, 20, 32])
def test_the_middle_square_is_scaled_and_cut_out(size: int, tmp_path: Path) -> None:
    pixels = decode_image(bands(tmp_path / "wide.png", [GREEN, RED, GREEN], [30, 80, 30], 40), size)
    assert pixels.shape == (3, size, size) and pixels.dtype == np.uint8
    assert (pixels[0] > 250).all() and (pixels[1:] < 5).all()
    tall = Image.open(tmp_path / "wide.png").transpose(Image.Transpose.ROTATE_90)
    tall.save(tmp_path / "tall.png")
    assert (decode_image(tmp_path / "tall.png", size) == pixels).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "I;16"])
def test_every_kind_of_picture_becomes_rgb(mode: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    Image.new(mode, (20, 16)).save(path)
    assert decode_image(path, 16).shape == (3, 16, 16)


# -- samples ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve images, red on the left and blue on the right, with another green level each."""
    folder = tmp_path_factory.mktemp("images")
    for n in range(12):
        bands(folder / f"{n}.png", [(255, 10 * n, 0), (0, 10 * n, 255)], [8, 8], 16)
    return folder


@pytest.fixture
def make(folder: Path) -> Callable[..., CaptionedImageDataset]:
    made = toys.sentences()
    images = [
        CaptionedImage(f"i{n}", f"{n}.png", tuple(made[5 * n : 5 * n + 1 + n % 5]))
        for n in range(12)
    ]
    windows = ClipRowEncoder(homes.tokens(), toys.WINDOW, max_windows=1)
    return lambda **options: CaptionedImageDataset(images, folder, 16, windows, **options)


def drawn(
    samples: CaptionedImageDataset, indices: list[int], epoch: int = 0, seed: int = 0
) -> list[tuple]:
    rngs = [generator(seed, epoch, samples.ids[i], "sample") for i in indices]
    return [
        (s.id, s.clip.input_ids.tolist(), s.pixels.tolist()) for s in samples.get(indices, rngs)
    ]


def test_what_is_drawn_depends_on_seed_epoch_and_sample_alone(
    make: Callable[..., CaptionedImageDataset],
) -> None:
    samples = make(shift=0.2)
    every = list(range(12))
    first = drawn(samples, every)
    assert drawn(make(shift=0.2), every) == first
    assert drawn(samples, every[::-1])[::-1] == first
    assert drawn(samples, [4, 9]) == [first[4], first[9]]
    for other in (drawn(samples, every, epoch=1), drawn(samples, every, seed=1)):
        assert [s[0] for s in other] == [s[0] for s in first]
        assert sum(a[1] != b[1] for a, b in zip(first, other, strict=True)) >= 2
        assert sum(a[2] != b[2] for a, b in zip(first, other, strict=True)) >= 2
    assert drawn(samples, every) == first


def test_every_caption_of_an_image_is_drawn_and_no_other(
    make: Callable[..., CaptionedImageDataset],
) -> None:
    samples = make()
    expected = {
        tuple(s.clip.input_ids.tolist())
        for s in samples.texts.get(range(samples.first[4], samples.first[5]))
    }
    assert len(expected) == 5
    assert {tuple(drawn(samples, [4], epoch)[0][1]) for epoch in range(60)} == expected


def test_flips_and_shifts(make: Callable[..., CaptionedImageDataset]) -> None:
    plain = make(flip=False).pixels[3]
    both = [np.array(drawn(make(), [3], epoch)[0][2]) for epoch in range(30)]
    flipped = [(found == plain[:, :, ::-1]).all() for found in both]
    assert all(f or (found == plain).all() for f, found in zip(flipped, both, strict=True))
    assert 5 < sum(flipped) < 25
    samples = make(flip=False, shift=0.25)
    borders = set()
    for epoch in range(60):
        pixels = np.array(drawn(samples, [3], epoch)[0][2])
        border = int((pixels[0, 0] == 255).sum())  # where red ends
        assert (pixels[0, :, :border] == 255).all() and (pixels[2, :, border:] == 255).all()
        borders.add(border)
    assert borders == set(range(4, 13))  # a quarter of 16 pixels to either side


def test_without_augmentation_first_caption_and_image_as_it_is(
    make: Callable[..., CaptionedImageDataset],
) -> None:
    samples = make(augment=False, shift=0.3)
    found = samples.get(range(12), ())
    assert [s.clip.input_ids.tolist() for s in found] == [
        s.clip.input_ids.tolist() for s in samples.texts.get([int(i) for i in samples.first[:-1]])
    ]
    assert all((s.pixels == samples.pixels[i]).all() for i, s in enumerate(found))
    assert [int(s.labels["image"]) for s in found] == list(range(12))
    assert [s.id for s in found] == samples.ids == [f"i{n}" for n in range(12)]
    assert len(samples) == len(samples.lengths) == 12
