"""Files that are damaged, lead elsewhere, or are not what they seem: what is said of them, and what is read."""

import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import standins
import vcr_files
from homes import put
from PIL import Image

from groundling.check import check
from groundling.commands.sweep.file import read_sweep
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.data.captions.captions import CaptionCollection, find_images
from groundling.data.images import shape_mismatch
from groundling.data.regions import imports as region_imports
from groundling.data.regions.imports import import_regions
from groundling.data.tables import read_json_lines
from groundling.models.loading import _check_shards
from groundling.prediction.model_description import TOKENIZER, sha256_of_files
from groundling.prediction.predictions import read_predictions
from groundling.stats import finished_runs
from groundling.studies.knowledge.visual_facts import read_coda
from groundling.tasks.flickr_entities import read_image_ids
from groundling.tasks.glue import RTE
from groundling.tasks.vcr import objects_of

HUGE = "1" + "0" * 400


def refusal(call: Any, *given: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*given)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def picture(path: Path, size: tuple[int, int] = (16, 12)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, "red").save(path)
    return path


# -- captions ----------------------------------------------------------------------------------------------------------


def karpathy(path: Path, *splits: str) -> Path:
    entries = [
        {"split": split, "filename": f"{n}.jpg", "sentences": [{"raw": f"a dog {n}"}]}
        for n, split in enumerate(splits)
    ]
    return put(path, json.dumps({"images": entries}))


def test_images_of_a_split_that_nobody_knows_are_counted_and_told(tmp_path: Path) -> None:
    path = karpathy(tmp_path / "dataset.json", "train", "trian", "val", "trian")
    captions = CaptionCollection(path, ("train",))
    assert captions.faults == []
    assert [image.file for image in captions.images] == ["0.jpg"]
    (note,) = captions.notes
    assert f"{path}, 2 images: their split 'trian' is not one of train, restval, val, test" in note
    assert CaptionCollection(path, ("train", "trian")).notes == []
    assert any("'trian'" in problem for problem in check(tmp_path).problems)


def test_metadata_that_is_a_folder_is_no_imagefolder(tmp_path: Path) -> None:
    picture(tmp_path / "1.jpg")
    (tmp_path / "metadata.jsonl").mkdir()
    (fault,) = CaptionCollection(tmp_path).faults
    assert str(tmp_path) in fault
    assert CaptionCollection(tmp_path / "metadata.jsonl").faults
    assert check(tmp_path).layout == "images"
    assert check(tmp_path / "metadata.jsonl").layout == "unknown"


def test_a_path_that_leads_out_of_the_image_folder_is_not_followed(tmp_path: Path) -> None:
    picture(tmp_path / "outside.png")
    folder = picture(tmp_path / "photos" / "in" / "1.png").parent.parent
    rows = "image,caption\nin/1.png,a dog\n../outside.png,a cat\n"
    path = put(tmp_path / "a.csv", rows)
    found = find_images(CaptionCollection(path).images, folder, path)
    assert [image.file for image in found.images] == ["in/1.png"]
    assert "1 of them, such as ../outside.png, are outside that folder" in found.fault
    put(path, rows.replace("../outside.png", str(tmp_path / "outside.png")))
    assert (
        "are outside that folder" in find_images(CaptionCollection(path).images, folder, path).fault
    )
    # by whatever way a path stays inside, it is followed
    put(path, rows.replace("../outside.png", str(folder / "in" / ".." / "in" / "2.png")))
    picture(folder / "in" / "2.png")
    assert find_images(CaptionCollection(path).images, folder, path).fault == ""


def test_an_ending_in_capitals_is_the_same_and_told(tmp_path: Path) -> None:
    folder = picture(tmp_path / "photos" / "IMG_0001.JPG").parent
    path = put(tmp_path / "a.csv", "image,caption\nIMG_0001.jpg,a dog\n")
    found = find_images(CaptionCollection(path).images, folder, path)
    assert [image.file for image in found.images] == ["IMG_0001.JPG"]
    assert found.fault == ""
    (note,) = found.notes
    assert "1 image names" in note and "IMG_0001.jpg" in note
    assert check(tmp_path).problems == []
    assert note in check(tmp_path).lines
    put(path, "image,caption\nimg_0001.jpg,a dog\n")
    fault = find_images(CaptionCollection(path).images, folder, path).fault
    assert "1 differ from a file only in case, such as img_0001.jpg from IMG_0001.JPG" in fault
    picture(folder / "IMG_0001.jpg")
    put(path, "image,caption\nIMG_0001.jpg,a dog\n")
    assert (
        find_images(CaptionCollection(path).images, folder, path).images[0].file == "IMG_0001.jpg"
    )


def test_advice_on_other_endings_is_for_images_that_have_them(tmp_path: Path) -> None:
    folder = picture(tmp_path / "photos" / "1.jpg").parent
    put(folder / "2.tiff", "x")
    path = put(tmp_path / "a.csv", "image,caption\n1.jpg,a dog\ngone.jpg,a cat\n")
    assert "tiff" not in find_images(CaptionCollection(path).images, folder, path).fault
    put(path, "image,caption\n1.jpg,a dog\n2.jpg,a cat\n")
    assert (
        "1 .tiff images are not read"
        in find_images(CaptionCollection(path).images, folder, path).fault
    )


def test_a_check_takes_columns_that_are_told_by_their_values(tmp_path: Path) -> None:
    picture(tmp_path / "photos" / "1.jpg")
    path = put(tmp_path / "mine.csv", "nr,bild,satz\n1,1.jpg,ein Hund bellt\n2,2.jpg,zwei Katzen\n")
    report = check(tmp_path)
    assert report.layout == "captions by column"
    assert f"note: {CaptionCollection(path).column_notes[0]}" in report.lines
    assert any("1 of 2 captioned images are missing" in problem for problem in report.problems)


def test_broken_files_are_named_up_to_a_few_and_counted(tmp_path: Path) -> None:
    for number in range(7):
        put(tmp_path / f"{number}.jpg", "no picture")
    (problem,) = check(tmp_path).problems
    assert "0.jpg, 1.jpg, 2.jpg, 3.jpg, 4.jpg: does not decode" in problem
    assert problem.endswith("(7 such)")


# -- other files that name files ---------------------------------------------------------------------------------------


def test_a_still_or_a_listed_image_stays_in_its_folder(tmp_path: Path) -> None:
    put(tmp_path / "secret.json", "{}")
    one = Example("a", "", images=("../../secret",), object_names=("person",), official_id="val-0")
    assert "val-0: img_fn '../../secret' points outside" in refusal(objects_of, tmp_path, one)
    path = put(tmp_path / "train.txt", "1000\n../2000\n")
    assert f"{path}, line 2: '../2000' points outside" in refusal(read_image_ids, tmp_path, "train")


def test_an_index_of_weights_names_files_of_its_own_folder(tmp_path: Path) -> None:
    index = tmp_path / "model" / "model.safetensors.index.json"
    put(tmp_path / "other.safetensors", "x")
    for names, told in (
        (["../other.safetensors"], "names '../other.safetensors', expected a file in this folder"),
        ([str(tmp_path / "other.safetensors")], "file in this folder"),
        (["gone.safetensors"], "names 'gone.safetensors', which does not exist"),
        ([5], "names '5', expected"),
        ([], "no `weight_map`"),
    ):
        put(index, json.dumps({"weight_map": {f"w{n}": name for n, name in enumerate(names)}}))
        assert told in refusal(_check_shards, index.parent)
    put(index, "[]")
    assert f"{index}: holds a list, expected an object" in refusal(_check_shards, index.parent)
    put(index, json.dumps({"weight_map": {"w": "a.safetensors"}}))
    put(index.parent / "a.safetensors", "x")
    _check_shards(index.parent)


def test_another_tokenizer_of_the_same_size_is_another_hash(tmp_path: Path) -> None:
    assert sha256_of_files(tmp_path, TOKENIZER) == ""
    put(tmp_path / "tokenizer.json", '{"a": 0, "b": 1}')
    before = sha256_of_files(tmp_path, TOKENIZER)
    put(tmp_path / "model.safetensors", "x")
    assert sha256_of_files(tmp_path, TOKENIZER) == before
    put(tmp_path / "tokenizer.json", '{"b": 0, "a": 1}')
    assert sha256_of_files(tmp_path, TOKENIZER) != before


# -- size --------------------------------------------------------------------------------------------------------------


def test_a_member_larger_than_an_image_s_regions_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_imports, "LARGEST", 1000)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.json", "0" * 1001)
    monkeypatch.setattr(zipfile.ZipFile, "read", lambda *given: pytest.fail("it is read"))
    _, items = import_regions(tmp_path / "a.zip")
    told = [refusal(read) for _, read in items]
    assert told == ["1.json: 1,001 bytes, expected at most 1,000 for the regions of one image"]
    put(tmp_path / "folder" / "1.json", "0" * 1001)
    _, items = import_regions(tmp_path / "folder")
    ((_, read),) = items
    assert "1.json: 1,001 bytes" in refusal(read)
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("features.npy", "0" * 1001)  # a few bytes on the disk
    put(tmp_path / "packed" / "b.npz", (tmp_path / "b.npz").read_bytes())
    _, items = import_regions(tmp_path / "packed")
    ((_, read),) = items
    assert "b.npz: 1,001 bytes" in refusal(read)


def test_an_lmdb_that_has_lost_entries_is_told(tmp_path: Path) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(tmp_path / "db"), map_size=1 << 20) as base, base.begin(write=True) as made:
        for number in range(5):
            made.put(f"{number}.npz".encode(), b"PK" + bytes(100))
    file = tmp_path / "db" / "data.mdb"
    raw = bytearray(file.read_bytes())
    leaf = next(
        page for page in range(0, len(raw), 4096) if b"0.npz" in raw[page : page + 4096]
    )  # of its header, two bytes say where the list of its entries ends
    lower = int.from_bytes(raw[leaf + 12 : leaf + 14], "little")
    raw[leaf + 12 : leaf + 14] = (lower - 4).to_bytes(2, "little")
    file.write_bytes(raw)
    told = refusal(lambda: list(import_regions(tmp_path / "db")[1]))
    assert f"{file}: 3 of 5 entries are found" in told
    assert any("3 of 5 entries are found" in problem for problem in check(tmp_path).problems)


@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "x = {{ y = 1, {} = 1 }}"])
def test_a_key_of_too_many_parts_is_refused_before_it_is_parsed(form: str, tmp_path: Path) -> None:
    path = put(tmp_path / "a.toml", "seeds = 1\n" + form.format(".".join(['"a"'] * 20_000)))
    assert f"{path}, line 2: a key has more than 32 parts" in refusal(read_sweep, path)


# -- numbers -----------------------------------------------------------------------------------------------------------


def test_a_number_that_no_float_holds_is_one_line(tmp_path: Path) -> None:
    path = put(
        tmp_path / "p.jsonl",
        f'{{"id": "a", "prediction": {HUGE}, "outputs": [1, 2], "label": 1}}\n',
    )
    assert f"{path}, line 1: nested too deep" in refusal(
        read_predictions, path, Classification(("no", "yes"))
    )
    assert f"{path}, line 1: " in refusal(finished_runs.read_split_predictions, path)
    assert "line 1" in refusal(lambda: list(read_json_lines(path, ("id",))))
    colours = dict.fromkeys(("black", "blue"), 1) | {"class_id": "1", "included": True}
    annotations = put(
        tmp_path / "annotations.jsonl",
        json.dumps(colours).replace('"black": 1', f'"black": {HUGE}'),
    )
    put(tmp_path / "objects.jsonl", "{}")
    put(tmp_path / "templates.yaml", "templates: [{name: text-masked, templates: [a]}]")
    assert f"{annotations}, line 1" in refusal(read_coda, annotations)


# -- what is not what it was -------------------------------------------------------------------------------------------


def test_a_photo_of_another_shape_is_not_the_one_that_regions_are_of(tmp_path: Path) -> None:
    photo = picture(tmp_path / "1.png", (160, 120))
    assert shape_mismatch((640, 480), photo) == ""
    assert shape_mismatch((0, 0), photo) == ""
    assert shape_mismatch((641, 480), photo) == ""
    assert shape_mismatch((480, 640), photo) == (
        "160 x 120 pixels, but its regions are from an image of 480 x 640"
    )
    turned = Image.new("RGB", (160, 120))
    exif = turned.getexif()
    exif[0x0112] = 6  # on its side, as a telephone's photo is
    turned.save(tmp_path / "2.jpg", exif=exif)
    assert shape_mismatch((480, 640), tmp_path / "2.jpg") == ""
    assert shape_mismatch((480, 640), Image.new("RGB", (48, 64))) == ""


def test_a_dev_file_that_is_the_training_file_is_told(tmp_path: Path) -> None:
    rows = "index\tsentence1\tsentence2\tlabel\n0\tA.\tB.\tentailment\n1\tC.\tD.\tnot_entailment\n"
    for split in ("train", "dev"):
        put(tmp_path / "RTE" / f"{split}.tsv", rows)
    (note,) = RTE.identical_split_notes(tmp_path)
    assert note.startswith(f"{tmp_path}/RTE/dev.tsv: identical to {tmp_path}/RTE/train.tsv")
    assert note in check(tmp_path).problems
    put(tmp_path / "RTE" / "dev.tsv", rows + "2\tE.\tF.\tentailment\n")
    assert RTE.identical_split_notes(tmp_path) == []


def test_e15_data_check_tells_what_commands_refuse(tmp_path: Path) -> None:
    standins.pairs(tmp_path)
    path = tmp_path / "blimp/wh_island.jsonl"
    put(path, "{" + path.read_text())
    assert f"{path}, line 1: not valid JSON" in check(tmp_path / "blimp").problems[0]
    standins.store(tmp_path / "store", ["a", "b"])
    path = tmp_path / "store/features-00000.npy"
    content = path.read_bytes()
    put(path, content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    assert check(tmp_path / "store").problems == [f"{path}: changed since it was written (SHA-256)"]
    vcr_files.folder(tmp_path / "vcr")
    assert check(tmp_path / "vcr").ok


def test_e15_data_check_tells_of_sizes_and_splits_that_readers_refuse(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "1.jpg", "width": 2**31, "height": 8}
    note = {"id": 1, "image_id": 1, "category_id": 1, "bbox": [0, 0, 4, 4]}
    coco = {"images": [image], "annotations": [note], "categories": [{"id": 1, "name": "dog"}]}
    put(tmp_path / "boxes/instances.json", json.dumps(coco))
    assert "in whole pixels" in check(tmp_path / "boxes").problems[0]
    image["width"] = 8
    put(tmp_path / "refs/instances.json", json.dumps(coco))
    ref = {"split": "trein", "ann_id": 1, "image_id": 1}
    refs = [ref | {"sentences": [{"sent_id": 1, "sent": "the dog"}]}]
    put(tmp_path / "refs/refs(umd).p", pickle.dumps(refs, 0))
    told = check(tmp_path / "refs").problems
    assert any("splits other than train, val" in one and "trein" in one for one in told), told
