"""Captions as people have them: every layout through a command, whole and damaged."""

from __future__ import annotations

import json
import sys
import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from tiny.corpora import corpus_lines
from tiny.homes import coco, picture, put

from groundling.commands.train_clip import COMMAND as train_clip
from groundling.commands.train_clip import TrainClipConfig
from groundling.core.errors import InputError
from groundling.data import images
from groundling.data.captions import (
    CaptionedImage,
    find_images,
    images_in_store,
    read_captions,
    settings_by_file,
)
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


def karpathy(path: Path, **more: object) -> Path:
    images = [
        {
            "filename": name,
            "filepath": "photos",
            "split": split,
            "sentences": [{"raw": c} for c in some],
        }
        for (name, some), split in zip(CAPTIONS.items(), ("train", "test"), strict=True)
    ]
    images[0] |= more
    return put(path, json.dumps({"dataset": "coco", "images": images}))


def rows_of_json(*fields: str) -> list[dict[str, str]]:
    return [dict(zip(fields, row, strict=True)) for row in ROWS]


class Fixture:
    """A folder of data, and how a command is told of it."""

    def __init__(self, folder: Path, captions: str, images: str, **flags: object) -> None:
        self.folder = folder
        self.captions = str(folder / captions)
        self.images = str(folder / images)
        self.flags = flags

    def config(self) -> TrainClipConfig:
        small = {
            "size": 16,
            "patch_size": 8,
            "vision_tower": (8, 1),
            "text_tower": (8, 1),
            "projection_dim": 8,
        }
        return make_settings(
            TrainClipConfig,
            captions=self.captions,
            images=self.images,
            untrained=True,
            vocab_size=300,
            **small,
            **self.flags,
        )

    def told(self, out: Path) -> str:
        """What the command refuses it with; empty if it reads it."""
        try:
            train_clip(self.config(), TrainingArguments(cpu=True), out)
        except InputError as error:
            return str(error)
        return ""


def csv_named(folder: Path) -> Fixture:
    put(folder / "captions.csv", "id,Image,Caption\n" + "".join(f"7,{i},{c}\n" for i, c in ROWS))
    return Fixture(folder, "captions.csv", str(photos(folder / "photos")))


def csv_with_flags(folder: Path) -> Fixture:
    put(
        folder / "bilder.csv",
        "bild,satz,satz2\n1.jpg,a red dog,a dog runs\n2.jpg,two cats,cats two\n",
    )
    photos(folder / "photos")
    return Fixture(folder, "bilder.csv", "photos", caption_column="satz", image_column="bild")


def tsv_headed(folder: Path) -> Fixture:
    put(folder / "own.tsv", "image\tcaption\n" + "".join(f"{i}\t{c}\n" for i, c in ROWS))
    return Fixture(folder, "own.tsv", str(photos(folder / "images")))


def tsv_plain(folder: Path) -> Fixture:
    put(folder / "own.tsv", "".join(f"{c}\t{i}\n" for i, c in ROWS))
    return Fixture(folder, "own.tsv", str(photos(folder / "images")))


def jsonl_lists(folder: Path) -> Fixture:
    rows = [{"image": f"photos/{i}", "captions": some} for i, some in CAPTIONS.items()]
    put(folder / "captions.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return Fixture(folder, "captions.jsonl", str(photos(folder / "photos")))


def json_list(folder: Path) -> Fixture:
    put(folder / "blip.json", json.dumps(rows_of_json("image", "caption")))
    return Fixture(folder, "blip.json", str(photos(folder / "photos" / "2024").parent))


def kaggle(folder: Path) -> Fixture:
    put(folder / "captions.txt", "image,caption\n" + "".join(f'{i},"{c}"\n' for i, c in ROWS))
    return Fixture(folder, "captions.txt", str(photos(folder / "Images")))


def imagefolder(folder: Path) -> Fixture:
    put(
        folder / "metadata.jsonl",
        "".join(json.dumps(r) + "\n" for r in rows_of_json("file_name", "text")),
    )
    photos(folder)
    return Fixture(folder, "", "")


def imagefolder_csv(folder: Path) -> Fixture:
    put(folder / "metadata.csv", "file_name,text\n" + "".join(f"{i},{c}\n" for i, c in ROWS))
    photos(folder)
    return Fixture(folder, "metadata.csv", "")


def texts_beside(folder: Path) -> Fixture:
    photos(folder / "june", CAPTIONS)
    for name, some in CAPTIONS.items():
        put((folder / "june" / name).with_suffix(".txt"), "\n".join(some))
    return Fixture(folder, "", "")


def coco_tree(folder: Path) -> Fixture:
    name = "COCO_train2014_000000000001.jpg"
    photos(folder / "train2014", [name])
    photos(folder / "val2014", ["COCO_val2014_000000000002.jpg"])
    coco(folder / "annotations" / "captions_train2014.json", [(1, name)], [(1, "a red dog")])
    return Fixture(folder, "annotations/captions_train2014.json", "")


def karpathys(folder: Path) -> Fixture:
    karpathy(folder / "dataset_coco.json")
    photos(folder / "photos")
    return Fixture(folder, "dataset_coco.json", "photos", caption_splits=("train", "test"))


def other_form(folder: Path) -> Fixture:
    put(folder / "own.csv", f"image,caption\n{UMLAUT},a green dog\n1.jpg,a red dog\n")
    photos(folder / "photos", [unicodedata.normalize("NFD", UMLAUT), "1.jpg"])
    return Fixture(folder, "own.csv", "photos")


WHOLE = [csv_named, csv_with_flags, tsv_headed, tsv_plain, jsonl_lists, json_list]
WHOLE += [kaggle, imagefolder, imagefolder_csv, texts_beside, coco_tree, karpathys]
WHOLE += [other_form]


@pytest.mark.parametrize("make", WHOLE, ids=lambda make: make.__name__)
def test_every_layout_is_read(make: Callable[[Path], Fixture], tmp_path: Path) -> None:
    fixture = make(tmp_path / "data")
    result = train_clip(fixture.config(), TrainingArguments(cpu=True), tmp_path / "out")
    config = fixture.config()
    splits = config.caption_settings.caption_splits
    images = read_captions(fixture.captions, splits, config.caption_settings.columns).images
    assert result["images"] == len(images) == (1 if make is coco_tree else 2)
    assert result["missing_images"] == 0


def edited(
    make: Callable[[Path], Fixture], file: str, old: str, new: str
) -> Callable[[Path], Fixture]:
    """A fixture of which a file is damaged."""

    def damaged(folder: Path) -> Fixture:
        fixture = make(folder)
        text = (folder / file).read_text()
        assert old in text
        (folder / file).write_text(text.replace(old, new))
        return fixture

    return damaged


GONE = "captioned images are missing, the first is "
MISSING = {
    csv_named: ("photos/2.jpg", f"1 of 2 {GONE}2.jpg "),
    tsv_headed: ("images/1.jpg", f"1 of 2 {GONE}1.jpg "),
    json_list: ("photos/2024/1.jpg", f"1 of 2 {GONE}1.jpg "),
    imagefolder: ("1.jpg", f"1 of 2 {GONE}1.jpg "),
    coco_tree: ("train2014/COCO_train2014_000000000001.jpg", f"1 of 1 {GONE}COCO_"),
    karpathys: ("photos/2.jpg", f"1 of 2 {GONE}2.jpg "),
}


@pytest.mark.parametrize("make", MISSING, ids=lambda make: make.__name__)
def test_missing_images_are_told(make: Callable[[Path], Fixture], tmp_path: Path) -> None:
    file, message = MISSING[make]
    fixture = make(tmp_path / "data")
    (tmp_path / "data" / file).unlink()
    assert message in fixture.told(tmp_path / "out")


def test_names_of_images_that_no_disk_has(tmp_path: Path) -> None:
    long = edited(csv_named, "captions.csv", "2.jpg", "2" * 5000 + ".jpg")
    assert f"1 of 2 {GONE}2222" in long(tmp_path / "long").told(tmp_path / "out")
    twice = edited(csv_named, "captions.csv", "1.jpg,a dog", "./1.jpg,a dog")
    told = twice(tmp_path / "twice").told(tmp_path / "out")
    assert "1.jpg and ./1.jpg both refer to the image 1.jpg" in told
    beside = texts_beside(tmp_path / "beside")
    put(beside.folder / "june/._1.jpg", "Mac OS X")  # a Mac's companion file
    assert beside.told(tmp_path / "out") == ""


EMPTY = [
    (edited(csv_named, "captions.csv", "two cats", " "), "captions.csv, line 4"),
    (edited(tsv_plain, "own.tsv", "two cats", ""), "own.tsv, line 3"),
    (edited(jsonl_lists, "captions.jsonl", '["two cats"]', "[]"), "captions.jsonl, line 2"),
    (edited(karpathys, "dataset_coco.json", "two cats", ""), "dataset_coco.json, images[1]"),
    (edited(texts_beside, "june/2.txt", "two cats", " \n"), "data/june/2.txt"),
]


@pytest.mark.parametrize(("make", "place"), EMPTY)
def test_captions_without_text_are_left_out_and_told_by_both(
    make: Callable[[Path], Fixture], place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fixture = make(tmp_path / "data")
    assert fixture.told(tmp_path / "out") == ""
    err = capsys.readouterr().err.splitlines()
    (note,) = [line for line in err if line.startswith("note: ")]
    assert note.endswith(f"{place}: expected text, found none")


# -- what is read how --------------------------------------------------------------------------------------------------


def columns_of(caption: str) -> CaptionColumns:
    return make_settings(TrainClipConfig, caption_column=caption).caption_settings.columns


def test_columns_of_other_names_are_not_guessed(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "nr,bild,satz\n1,a.JPG,ein Hund bellt\n2,b.heic,zwei Katzen\n")
    with pytest.raises(InputError, match="no captions among nr, bild, satz"):
        read_captions(path)
    with pytest.raises(InputError, match="as image files; set image_column"):
        read_captions(path, (), columns_of("satz"))
    with pytest.raises(InputError, match=r"a.csv, line 2: field 'satze' is None"):
        read_captions(path, (), columns_of("satze"))


def test_of_columns_that_differ_in_capitals_alone_the_first_is_read(tmp_path: Path) -> None:
    path = put(tmp_path / "own.csv", "image,caption,Caption\n1.jpg,a red dog,another text")
    assert read_captions(path).images[0].captions == ("a red dog",)


def test_columns_are_for_tables_alone(tmp_path: Path) -> None:
    path = coco(tmp_path / "c.json", [(1, "1.jpg")], [(1, "a dog")])
    columns = columns_of("text")
    assert read_captions(path, (), columns).images[0].captions == ("a dog",)
    own = put(tmp_path / "own.csv", "image,text,more\n1.jpg,a dog,a red dog\n")
    wanted = settings_by_file([path, own], CaptionSettings(columns=columns))
    assert [one.columns.caption_column for one in wanted] == ["text", "text"]


def test_texts_alone_are_read_of_captions_and_of_plain_text(tmp_path: Path) -> None:
    own = put(tmp_path / "own.csv", "image,caption\n1.jpg,a dog\n,a cat\n")
    with pytest.raises(InputError, match="column 'image' is empty"):
        corpus_lines(own)
    alone = put(tmp_path / "alone.csv", "nr,text\n1,a dog\n2,a cat\n")
    assert corpus_lines(alone) == ["a dog", "a cat"]
    assert corpus_lines(kaggle(tmp_path / "kaggle").captions) == [caption for _, caption in ROWS]
    dataset = karpathy(tmp_path / "dataset_coco.json")
    assert corpus_lines(dataset, CaptionSettings(caption_splits=("test",))) == ["two cats"]
    plain = put(tmp_path / "plain.txt", "a dog\na cat\n")
    assert corpus_lines(plain) == ["a dog", "a cat"]
    with pytest.raises(InputError, match="plain text has no splits, as"):
        corpus_lines(plain, CaptionSettings(caption_splits=("test",)))


def test_a_folder_without_captions(tmp_path: Path) -> None:
    for name in ("00000.tar", "a.csv", "1.jpg"):
        put(tmp_path / name, "x")
    with pytest.raises(InputError, match="no captions found"):
        read_captions(tmp_path)


# -- names of images ---------------------------------------------------------------------------------------------------


def captioned(*files: str) -> list[CaptionedImage]:
    return [CaptionedImage(file, file, ("a dog",)) for file in files]


def test_images_are_found_below_the_folder(tmp_path: Path) -> None:
    photos(tmp_path, ["a/1.jpg", "a/2.jpg", "b/2.jpg", "3.png", "4.jpg"])
    wanted = captioned("1.jpg", "b/2.jpg", "photos/4.jpg")
    found, _ = find_images(wanted, tmp_path)
    files = ["a/1.jpg", "b/2.jpg", "4.jpg"]
    assert [image.file for image in found] == files
    assert [image.id for image in found] == [image.id for image in wanted]
    with pytest.raises(
        InputError, match=r"train/4.jpg and val/4.jpg both refer to the image 4.jpg"
    ):
        find_images(captioned("train/4.jpg", "val/4.jpg"), tmp_path)
    # Another folder's photo of the same name is another photo.
    with pytest.raises(InputError, match="1 of 1 captioned images are missing"):
        find_images(captioned("val/1.jpg"), tmp_path)


def test_a_store_knows_images_in_folders_and_in_either_form() -> None:
    ids = ["train2014/1", unicodedata.normalize("NFD", "grün"), "3"]
    wanted = captioned("1.jpg", UMLAUT, "photos/3.jpg", "4.jpg")
    found, missing = images_in_store(wanted, ids, "store", skip=True)
    assert [image.id for image in found] == ["train2014/1", "grün", "3"] and missing == 1
    told = "store: 1 of 4 captioned images are missing, the first is 4.jpg"
    with pytest.raises(InputError, match=told):
        images_in_store(wanted, ids, "store")


def test_a_photo_that_lies_in_two_folders_is_ambiguous(tmp_path: Path) -> None:
    photos(tmp_path, ["a/2.jpg", "b/2.jpg"])
    with pytest.raises(InputError, match=r"2.jpg is ambiguous: a/2.jpg or b/2.jpg"):
        find_images([CaptionedImage("2", "2.jpg", ("a dog",))], tmp_path)


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
