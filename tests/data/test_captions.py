"""Captioned images from the field's own files, and the samples made of them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image
from tiny import homes, toys
from tiny.homes import coco, put
from tiny.tasks import corpus_lines

import groundling
from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.captions import (
    CaptionedImage,
    CaptionPairs,
    is_captions,
    keep_listed,
    read_captions,
    with_store_ids,
)
from groundling.data.corpora import iterate_texts
from groundling.data.image_samples import CaptionedImageDataset, decode_image
from groundling.data.images import check_shape, read_image
from groundling.data.samples import ClipRowEncoder, SampleDataset

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

    # A file of another name is not plain text either, whose words would be names of images.
    own = put(tmp_path / "mine.txt", rows[0] + end)
    assert [(one.text, one.image) for one in iterate_texts(own)] == [
        ("A child in a pink dress .", "1000268201_693b08cb0e")
    ]
    assert not is_captions(put(tmp_path / "plain.txt", "a dog.png\tand a cat" + end))

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


@pytest.mark.parametrize("mode", ["P", "RGBA", "CMYK", "1"])
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


def test_what_is_drawn_depends_on_seed_epoch_and_sample_alone(make):
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


def test_every_caption_of_an_image_is_drawn_and_no_other(make):
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


def test_without_augmentation_first_caption_and_image_as_it_is(make):
    samples = make(augment=False, shift=0.3)
    found = samples.get(range(12), ())
    firsts = samples.texts.get([int(i) for i in samples.first[:-1]])
    for number, (one, text) in enumerate(zip(found, firsts, strict=True)):
        assert one.clip.input_ids.tolist() == text.clip.input_ids.tolist()  # type: ignore[union-attr]
        assert (one.pixels == samples.pixels[number]).all()
        assert (one.id, int(one.labels["image"])) == (f"i{number}", number)


# -- pairs of captions -------------------------------------------------------------------------------------------------


def drawn_pairs(pairs: CaptionPairs, epoch: int) -> list[tuple[str, str, int]]:
    """Names of both captions of every pair, and its label."""
    rngs = [generator(0, epoch, name) for name in pairs.ids]
    samples = pairs.get(range(len(pairs)), rngs)
    assert [sample.id for sample in samples] == list(pairs.ids)
    return [(s.choices[0].id, s.choices[1].id, int(s.labels["is_pair"])) for s in samples]


def test_the_second_row_is_another_caption_of_the_image() -> None:
    # 16 captions, five of an image: images 0 to 2, and one caption of image 3.
    pairs = toys.caption_pairs(16, each=5)
    partners: dict[str, set[str]] = {}
    for epoch in range(40):
        for one, other, is_pair in drawn_pairs(pairs, epoch):
            assert int(one[1:]) // 5 == int(other[1:]) // 5
            assert is_pair == (one != other) == (one != "s15")
            partners.setdefault(one, set()).add(other)
    assert [len(partners[f"s{number}"]) for number in range(16)] == [4] * 15 + [1]
    assert drawn_pairs(pairs, 3) == drawn_pairs(pairs, 3) != drawn_pairs(pairs, 4)


def test_a_batch_has_two_rows_of_every_sample() -> None:
    pairs = toys.caption_pairs(6)
    batch = collate(pairs.get([4, 1], [generator(0), generator(1)]))
    assert (len(batch), batch.rows, batch.choices) == (2, 4, 2)
    assert batch.ids == ("s4", "s1")
    assert batch.labels["is_pair"].tolist() == [1, 1]
    plain = collate(cast(SampleDataset, toys.captions(6)).get([4, 5, 1, 0], [generator(0)] * 4))
    assert plain.text is not None
    assert batch.text is not None
    assert batch.text.input_ids.equal(plain.text.input_ids)
    assert batch.features["clip_image"].equal(plain.features["clip_image"])


def test_sizes_are_bounds() -> None:
    pairs = CaptionPairs(toys.captions(20, 3).samples, "captions")
    own = pairs.samples.sizes
    longest = np.array([own[pairs.group == group].max(0) for group in pairs.group])
    assert (pairs.sizes[:, 0] == 2).all()
    assert np.array_equal(pairs.sizes[:, 1:], longest[:, 1:])
    assert (pairs.lengths == pairs.samples.lengths).all()


def test_one_caption_for_each_image_is_refused() -> None:
    with pytest.raises(InputError, match=r"a.json compares .* every image has one"):
        CaptionPairs(toys.captions(5, each=1), "a.json")


# -- image files -------------------------------------------------------------------------------------------------------


def test_e1_pictures_are_read_in_their_full_range_and_turned_everywhere(tmp_path: Path) -> None:
    shades = np.arange(96, dtype=np.uint16).reshape(8, 12) * 600
    Image.fromarray(shades).save(tmp_path / "a.png")
    read = np.asarray(read_image(tmp_path / "a.png"))
    assert np.array_equal(read[..., 0], shades >> 8)
    homes.noise(tmp_path / "b.png", (9, 12))
    exif = Image.Exif()
    exif[0x0112] = 6
    homes.noise(tmp_path / "turned.png", (9, 12), exif=exif)
    turned = np.rot90(np.asarray(read_image(tmp_path / "b.png")), -1)
    assert np.array_equal(np.asarray(read_image(tmp_path / "turned.png")), turned)
    assert not np.array_equal(
        decode_image(tmp_path / "turned.png", 8), decode_image(tmp_path / "b.png", 8)
    )


def test_a_file_that_ghostscript_would_draw_is_no_picture(tmp_path, monkeypatch):
    started: list[object] = []
    monkeypatch.setattr(EpsImagePlugin, "Ghostscript", lambda *given: started.append(given))
    Image.new("RGB", (8, 8)).save(tmp_path / "x.jpg", "EPS")
    with pytest.raises(InputError, match="does not decode as an image"):
        read_image(tmp_path / "x.jpg")
    with pytest.raises(InputError, match="does not decode as an image"):
        check_shape((8, 8), tmp_path / "x.jpg")
    assert not started
    package = Path(groundling.__file__).parent
    opening = [path for path in package.rglob("*.py") if "Image.open(" in path.read_text()]
    assert opening == [package / "data/images.py"]


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_a_picture_with_the_wrong_ending_is_read(kind: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), (200, 0, 0)).save(tmp_path / "x.png", kind)
    assert np.asarray(read_image(tmp_path / "x.png"))[..., 0].min() > 190


def test_texts_beside_images_behind_a_link_are_read_with_them(tmp_path: Path) -> None:
    homes.noise(tmp_path / "disk/1.png", (8, 8))
    put(tmp_path / "disk/1.txt", "a red bus")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/linked").symlink_to(tmp_path / "disk")
    assert [text for text, _ in iterate_texts(tmp_path / "photos")] == ["a red bus"]
