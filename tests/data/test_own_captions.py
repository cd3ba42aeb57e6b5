"""Captions as people have them: every layout through a command, whole and damaged."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny.homes import coco, picture, put
from tiny.tasks import corpus_lines

from groundling.commands.train_clip import COMMAND as train_clip
from groundling.commands.train_clip import TrainClipConfig
from groundling.core.errors import InputError
from groundling.data import images
from groundling.data.captions import CaptionedImage, find_images, images_in_store, read_captions
from groundling.settings.fields import make_settings
from groundling.settings.input_settings import CaptionColumns, CaptionSettings
from groundling.settings.training import TrainingArguments

CAPTIONS = {"1.jpg": ["a red dog", "a dog runs"], "2.jpg": ["two cats"]}
ROWS = [(image, caption) for image, some in CAPTIONS.items() for caption in some]
UMLAUT = "gr\u00fcn.jpg"


def photos(folder: Path, names: Sequence[str] = tuple(CAPTIONS)) -> Path:
    for name in names:
        picture(folder / name)
    return folder


def karpathy(path: Path) -> Path:
    images = [
        {"filename": name, "split": split, "sentences": [{"raw": c} for c in CAPTIONS[name]]}
        for name, split in zip(CAPTIONS, ("train", "test"), strict=True)
    ]
    return put(path, json.dumps({"dataset": "coco", "images": images}))


def config_of(folder: Path, captions: str, images: str, **flags: object) -> TrainClipConfig:
    small = {"size": 16, "patch_size": 8, "vision_tower": (8, 1), "text_tower": (8, 1)}
    small |= {"untrained": True, "vocab_size": 300, "projection_dim": 8}
    where = {"captions": str(folder / captions), "images": str(folder / images)}
    return make_settings(TrainClipConfig, **where, **small, **flags)


def told(config: TrainClipConfig, out: Path) -> str:
    """What the command refuses; empty if it reads everything."""
    try:
        train_clip(config, TrainingArguments(cpu=True), out)
    except InputError as error:
        return str(error)
    return ""


def lines(template: str) -> str:
    """A line of each caption, `i` its image and `c` its text."""
    return "".join(template.format(i=image, c=caption) + "\n" for image, caption in ROWS)


def objects(*fields: str) -> list[dict[str, str]]:
    return [dict(zip(fields, row, strict=True)) for row in ROWS]


def json_lines(rows: Sequence[object]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


FIRST = "COCO_train2014_000000000001.jpg"
FILES = {
    "a csv": {"captions.csv": "id,Image,Caption\n" + lines("7,{i},{c}")},
    "a csv with flags": {
        "bilder.csv": "bild,satz,satz2\n1.jpg,a red dog,a dog runs\n2.jpg,two cats,cats two\n"
    },
    "a headed tsv": {"own.tsv": "image\tcaption\n" + lines("{i}\t{c}")},
    "a plain tsv": {"own.tsv": lines("{c}\t{i}")},
    "lists in jsonl": {
        "captions.jsonl": json_lines(
            [{"image": f"photos/{i}", "captions": some} for i, some in CAPTIONS.items()]
        )
    },
    "a list of json": {"blip.json": json.dumps(objects("image", "caption"))},
    "Kaggle's": {"captions.txt": "image,caption\n" + lines('{i},"{c}"')},
    "an imagefolder": {"metadata.jsonl": json_lines(objects("file_name", "text"))},
    "an imagefolder's csv": {"metadata.csv": "file_name,text\n" + lines("{i},{c}")},
    "texts beside": {f"june/{i[0]}.txt": "\n".join(some) for i, some in CAPTIONS.items()},
    "a tree of COCO": {},
    "Karpathy's": {},
    "another form": {"own.csv": f"image,caption\n{UMLAUT},a green dog\n1.jpg,a red dog\n"},
}
"""By layout: files and what they hold."""
PHOTOS = {
    "an imagefolder": "",
    "an imagefolder's csv": "",
    "texts beside": "june",
    "a list of json": "photos/2024",
}
"""Where photos lie, if not in `photos`."""
FLAGS: dict[str, dict[str, object]] = {
    "a csv with flags": {"caption_column": "satz", "image_column": "bild"},
    "Karpathy's": {"caption_splits": ("train", "test")},
}


def fixture_of(layout: str, folder: Path) -> TrainClipConfig:
    """The files and photos of a layout."""
    for name, content in FILES[layout].items():
        put(folder / name, content)
    captions, where = next(iter(FILES[layout]), ""), PHOTOS.get(layout, "photos")
    names = tuple(CAPTIONS)
    if layout == "a tree of COCO":
        coco(folder / "annotations" / "captions_train2014.json", [(1, FIRST)], [(1, "a red dog")])
        captions, where, names = "annotations/captions_train2014.json", "", (f"train2014/{FIRST}",)
        photos(folder / "val2014", ["COCO_val2014_000000000002.jpg"])
    elif layout == "Karpathy's":
        captions = karpathy(folder / "dataset_coco.json").name
    elif layout == "another form":
        names = (unicodedata.normalize("NFD", UMLAUT), "1.jpg")
    elif layout in ("texts beside", "an imagefolder"):
        captions = ""
    photos(folder / where, names)
    return config_of(folder, captions, where.partition("/")[0], **FLAGS.get(layout, {}))


@pytest.mark.parametrize("layout", FILES)
def test_every_layout_is_read(layout: str, tmp_path: Path) -> None:
    config = fixture_of(layout, tmp_path / "data")
    result = train_clip(config, TrainingArguments(cpu=True), tmp_path / "out")
    images = read_captions(config.captions, config.caption_settings).images
    assert result["images"] == len(images) == (1 if layout == "a tree of COCO" else 2)
    assert result["missing_images"] == 0


def edited(layout: str, folder: Path, file: str, old: str, new: str) -> TrainClipConfig:
    """A fixture of which a file is damaged."""
    fixture = fixture_of(layout, folder)
    text = (folder / file).read_text()
    assert old in text
    put(folder / file, text.replace(old, new))
    return fixture


GONE = "captioned images are missing, the first is "


@pytest.mark.parametrize("content", [b"no image", b"\xff\xd8\xff\xe0\0\x10JFIF"])
def test_broken_images_are_told(content: bytes, tmp_path: Path) -> None:
    config = fixture_of("a csv", tmp_path / "data")
    bad = put(tmp_path / "data/photos/2.jpg", content)
    assert f"{bad}: does not decode" in told(config, tmp_path / "out")


def test_names_of_images_that_no_disk_has(tmp_path: Path) -> None:
    long = edited("a csv", tmp_path / "long", "captions.csv", "2.jpg", "2" * 5000 + ".jpg")
    assert f"1 of 2 {GONE}2222" in told(long, tmp_path / "out")
    changed = "1.jpg,a dog", "./1.jpg,a dog"
    twice = edited("a csv", tmp_path / "twice", "captions.csv", *changed)
    message = "1.jpg and ./1.jpg both refer to the image 1.jpg"
    assert message in told(twice, tmp_path / "out")
    beside = fixture_of("texts beside", tmp_path / "beside")
    put(tmp_path / "beside/june/._1.jpg", "Mac OS X")  # a Mac's companion file
    assert told(beside, tmp_path / "out") == ""


EMPTY = {
    "a csv": ("captions.csv", "two cats", " ", "captions.csv, line 4"),
    "a plain tsv": ("own.tsv", "two cats", "", "own.tsv, line 3"),
    "lists in jsonl": ("captions.jsonl", '["two cats"]', "[]", "captions.jsonl, line 2"),
    "Karpathy's": ("dataset_coco.json", "two cats", "", "dataset_coco.json, images[1]"),
    "texts beside": ("june/2.txt", "two cats", " \n", "data/june/2.txt"),
}


@pytest.mark.parametrize("layout", EMPTY)
def test_captions_without_text_are_left_out_and_told(layout, tmp_path, capsys):
    *change, place = EMPTY[layout]
    config = edited(layout, tmp_path / "data", *change)
    assert told(config, tmp_path / "out") == ""
    err = capsys.readouterr().err.splitlines()
    (note,) = [line for line in err if line.startswith("note: ")]
    assert note.endswith(f"{place}: expected text, found none")


# -- what is read how --------------------------------------------------------------------------------------------------


def columns_of(caption: str) -> CaptionSettings:
    return CaptionSettings(CaptionColumns(caption))


def test_columns_of_other_names_are_not_guessed(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "nr,bild,satz\n1,a.JPG,ein Hund bellt\n2,b.heic,zwei Katzen\n")
    with pytest.raises(InputError, match="no captions among nr, bild, satz"):
        read_captions(path)
    with pytest.raises(InputError, match="as image files; set image_column"):
        read_captions(path, columns_of("satz"))
    with pytest.raises(InputError, match=r"a.csv, line 2: field 'satze' is None"):
        read_captions(path, columns_of("satze"))
    path = put(tmp_path / "own.csv", "image,caption,Caption\n1.jpg,a red dog,another text")
    assert read_captions(path).images[0].captions == ("a red dog",)


def test_texts_alone_are_read_of_captions_and_of_plain_text(tmp_path: Path) -> None:
    own = put(tmp_path / "own.csv", "image,caption\n1.jpg,a dog\n,a cat\n")
    with pytest.raises(InputError, match="column 'image' is empty"):
        corpus_lines(own)
    alone = put(tmp_path / "alone.csv", "nr,text\n1,a dog\n2,a cat\n")
    assert corpus_lines(alone) == ["a dog", "a cat"]
    assert corpus_lines(fixture_of("Kaggle's", tmp_path / "kaggle").captions) == [
        caption for _, caption in ROWS
    ]
    dataset = karpathy(tmp_path / "dataset_coco.json")
    assert corpus_lines(dataset, CaptionSettings(caption_splits=("test",))) == ["two cats"]
    plain = put(tmp_path / "plain.txt", "a dog\na cat\n")
    with pytest.raises(InputError, match="plain text has no splits, as"):
        corpus_lines(plain, CaptionSettings(caption_splits=("test",)))


# -- names of images ---------------------------------------------------------------------------------------------------


def captioned(*files: str) -> list[CaptionedImage]:
    return [CaptionedImage(file, file, ("a dog",)) for file in files]


def test_images_are_found_below_the_folder(tmp_path: Path) -> None:
    photos(tmp_path, ["a/1.jpg", "a/2.jpg", "b/2.jpg", "4.jpg"])
    images = captioned("1.jpg", "b/2.jpg", "photos/4.jpg")
    found, missing = find_images(images, tmp_path)
    assert [image.file for image in found] == ["a/1.jpg", "b/2.jpg", "4.jpg"] and not missing
    assert [image.id for image in found] == [image.id for image in images]


NOT_FOUND = [
    ("a/1.jpg", "val/1.jpg", f"1 of 1 {GONE}val/1.jpg"),  # another folder's is another photo
    ("4.jpg", "train/4.jpg val/4.jpg", "train/4.jpg and val/4.jpg both refer to the image 4.jpg"),
    ("a/2.jpg b/2.jpg", "2.jpg", "2.jpg is ambiguous: a/2.jpg or b/2.jpg"),
    ("", "1.jpg 2.jpg", f"2 of 2 {GONE}1.jpg"),
    ("2.jpg 4.jpg", "1.jpg 2.jpg 3.jpg 4.jpg", f"2 of 4 {GONE}1.jpg .skip_missing"),
    ("", "folder.jpg", f"1 of 1 {GONE}folder.jpg"),
]
"""Photos, captioned images, and the message."""


@pytest.mark.parametrize(("files", "wanted", "message"), NOT_FOUND)
def test_images_that_are_not_found(files: str, wanted: str, message: str, tmp_path: Path) -> None:
    photos(tmp_path, files.split())
    (tmp_path / "folder.jpg").mkdir()
    with pytest.raises(InputError, match=message):
        find_images(captioned(*wanted.split()), tmp_path)


def test_missing_images_may_be_skipped_but_not_all(tmp_path: Path) -> None:
    photos(tmp_path, ["2.jpg", "4.jpg"])
    images = captioned("1.jpg", "2.jpg", "3.jpg", "4.jpg")
    assert find_images(images, tmp_path, skip=True) == (images[1::2], 2)
    with pytest.raises(InputError, match=f"1 of 1 {GONE}1.jpg"):
        find_images(images[:1], tmp_path, skip=True)


def test_a_store_knows_images_in_folders_and_in_either_form() -> None:
    ids = ["train2014/1", unicodedata.normalize("NFD", "grün"), "3"]
    wanted = captioned("1.jpg", UMLAUT, "photos/3.jpg", "4.jpg")
    found, missing = images_in_store(wanted, ids, "store", skip=True)
    assert [image.id for image in found] == ["train2014/1", "grün", "3"] and missing == 1
    with pytest.raises(InputError, match=f"store: 1 of 4 {GONE}4.jpg"):
        images_in_store(wanted, ids, "store")


def test_photos_of_iphones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "IMG_1.HEIC", b"x")
    monkeypatch.setattr(images, "find_spec", lambda name: None)
    assert not images.is_image_file("IMG_1.HEIC")
    with pytest.raises(InputError, match=r"a HEIC file; pip install 'groundling\[heic\]'"):
        images.register_heif("IMG_1.HEIC")
    taught: list[str] = []
    reader = SimpleNamespace(register_heif_opener=lambda: taught.append("taught"))
    monkeypatch.setitem(sys.modules, "pi_heif", reader)
    monkeypatch.setattr(images, "find_spec", lambda name: name)
    assert images.is_image_file("IMG_1.HEIC")
    images.register_heif("IMG_1.HEIC")
    assert taught == ["taught"]
