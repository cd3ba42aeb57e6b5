"""`data check` on vision-and-language data: every layout as it should be, and with every fault."""

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders.regions import FEATURES, PIXELS, SHARES, b64, lxmert, npz, some, vlbert
from builders.reports import one
from homes import picture, put

from groundling.check import check
from groundling.data.regions.store import RegionWriter
from groundling.studies.clip_td.commands import DATA_SHIFT as shift
from groundling.studies.clip_td.commands import VcrShiftConfig
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.world import World

QUESTIONS, ANNOTATIONS = (
    "v2_OpenEnded_mscoco_val2014_questions.json",
    "v2_mscoco_val2014_annotations.json",
)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, int]]:
    folder = tmp_path_factory.mktemp("written")
    counts = write_tasks(World(WorldConfig(seed=0)), folder, limit_train=48, limit_dev=48)
    assert all(counts.values())
    return folder, counts


@pytest.fixture
def data(written: tuple[Path, dict[str, int]], tmp_path: Path) -> Path:
    """Six data sets, to be spoilt."""
    return Path(shutil.copytree(written[0], tmp_path / "data"))


def change(path: Path, edit: Callable[[Any], Any]) -> Path:
    """JSON, or JSON lines, edited in place."""
    lines = path.suffix == ".jsonl" or path.parent.name == "nlvr2"
    content = (
        [json.loads(line) for line in path.read_text().splitlines()]
        if lines
        else json.loads(path.read_text())
    )
    content = edit(content) or content
    return put(
        path, "".join(json.dumps(row) + "\n" for row in content) if lines else json.dumps(content)
    )


def first(rows: list[dict[str, Any]], **values: object) -> None:
    rows[0].update(values)


def again(rows: list[dict[str, Any]]) -> None:
    rows += rows[:2]


def test_what_write_tasks_wrote(written: tuple[Path, dict[str, int]]) -> None:
    folder, counts = written
    report = check(folder)
    assert report.problems == []
    assert set(report.layout.split(" + ")) == {
        "VQA v2",
        "VCR",
        "NLVR2",
        "SNLI-VE",
        "RefCOCO",
        "Flickr30k Entities",
        "COCO captions",
        "COCO boxes",
    }
    told = "\n".join(report.lines)
    files = {
        "vqa val": f"vqa/{QUESTIONS}",
        "vcr val": "vcr/val.jsonl",
        "nlvr2 test1": "nlvr2/test1.json",
        "snli_ve test": "snli_ve/snli_ve_test.jsonl",
    }
    for name, file in files.items():
        assert f"{folder}/{file}: {counts[name]} examples" in told, name
    assert (
        f"{folder}/refcoco+/refs(unc).p: {counts['refcoco+ testA']} expressions of testA, " in told
    )
    assert (
        f"{folder}/flickr30k/test.txt: {counts['flickr30k test'] // 5} images, {counts['flickr30k test']} ca"
        in told
    )
    assert f"{folder}/images: " in told and "nlvr2: no images" not in told
    for sub in ("vqa", "vcr", "nlvr2", "snli_ve", "refcoco+", "flickr30k"):  # each by itself
        alone = check(folder / sub)
        assert alone.ok, alone.problems
        assert f"{folder / sub}: no images, so none were checked" in alone.lines


@pytest.mark.parametrize(
    ("file", "gone"),
    [
        (f"vqa/{QUESTIONS}", "COCO_val2014_"),
        ("vcr/val.jsonl", "lsmdc_0001_WORLD/0001_WORLD_"),
        ("nlvr2/dev.json", "dev-"),
        ("snli_ve/snli_ve_dev.jsonl", "1"),
        ("refcoco+/refs(unc).p", "COCO_train2014_"),
        ("flickr30k/val.txt", "1"),
    ],
)
def test_images_that_are_missing_or_corrupt(file: str, gone: str, data: Path) -> None:
    for path in (data / "images").rglob("*"):
        if path.is_file() and str(path.relative_to(data / "images")).startswith(gone):
            path.unlink()
    told = [
        line for line in check(data).problems if line.startswith(f"{data / file}, image {gone}")
    ]
    assert len(told) == 1 and f"not in {data}/images (" in told[0] and " such)" in told[0]


def test_captioned_images_that_are_missing(data: Path) -> None:
    for path in (data / "images").glob("COCO_val2014_*"):
        path.unlink()
    gone = [line for line in check(data).problems if line.startswith(f"{data}/captions_val2014")]
    assert len(gone) == 1 and "first is COCO_val2014_" in gone[0]


def test_a_data_sets_own_images_come_first(data: Path) -> None:
    for n in (1, 2):
        put(picture(data / f"vqa/images/COCO_val2014_00000000000{n}.jpg"), b"cut off")
    problems = check(data).problems
    assert (
        f"{data}/vqa/images, COCO_val2014_000000000001.jpg, COCO_val2014_000000000002.jpg: does not decode as an "
        "image (2 such)" in problems
    )
    assert [
        line
        for line in problems
        if line.startswith(f"{data}/vqa/v2_") and f"not in {data}/vqa/images" in line
    ]
    assert len(problems) == 3  # of both splits, images are missing


def test_vqas_ids_and_answers(data: Path) -> None:
    questions, notes, known = (
        data / "vqa" / QUESTIONS,
        data / "vqa" / ANNOTATIONS,
        "trainval_label2ans.json",
    )
    (data / f"vqa/{QUESTIONS}".replace("val", "train")).unlink()
    (data / f"vqa/{ANNOTATIONS}".replace("val", "train")).unlink()
    assert check(data / "vqa").ok  # a folder with only val
    change(data / "vqa" / known, lambda answers: ["nobody said this", *answers[2:]])
    report = check(data / "vqa")
    assert report.ok  # counted only
    (line,) = [line for line in report.lines if "answer list" in line]
    assert (
        not line.startswith(f"{questions}: 0 ")
        and "; 0 questions" not in line
        and "are kept" in line
    )
    kept, kept_notes = questions.read_text(), notes.read_text()
    change(questions, lambda content: content["questions"].__delitem__(-1))
    change(notes, lambda content: content["annotations"].__delitem__(0))
    one(
        check(data / "vqa"),
        f"{questions}: question_id ",
        f" is not in {notes.name} (1 such); {notes}: question_id ",
    )
    put(questions, kept)
    change(questions, lambda content: again(content["questions"]))
    one(check(data / "vqa"), f"{questions}, questions[", "repeated question_id")
    questions.unlink()
    one(check(data / "vqa"), f"{questions}: no such file")
    put(questions, kept)
    put(notes, kept_notes)
    (data / "vqa" / known).unlink()
    one(check(data / "vqa"), f"{data / 'vqa'}: no answer list; expected trainval_label2ans.json")


def test_lxmerts_lists_of_vqa(tmp_path: Path) -> None:
    row = {
        "question_id": 1,
        "img_id": "COCO_val2014_000000000042",
        "sent": "Why?",
        "label": {"yes": 1, "odd": 0.3},
    }
    path = put(
        tmp_path / "minival.json", json.dumps([row, row | {"question_id": 2, "label": {"odd": 1}}])
    )
    put(tmp_path / "trainval_label2ans.json", '["yes", "no"]')
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "VQA v2")
    assert f"{path}: 2 human answers are not in the answer list; 1 questions have no" in "\n".join(
        report.lines
    )


@pytest.mark.parametrize(
    ("file", "edit", "complaint"),
    [
        ("vcr/val.jsonl", again, "repeated annot_id val-0 (2 such)"),
        (
            "vcr/val.jsonl",
            lambda rows: first(rows, question=["is", [2], "?"]),
            "line 1: token '[2]'; expected words",
        ),
        ("vcr/val.jsonl", lambda rows: first(rows, objects=5), "line 1: not a line"),
        ("nlvr2/dev.json", again, "repeated identifier dev-0-0-0 (2 such)"),
        (
            "nlvr2/dev.json",
            lambda rows: first(rows, label="maybe"),
            "line 1: label 'Maybe' is not one of False, True",
        ),
        (
            "nlvr2/dev.json",
            lambda rows: first(rows, sentence=" "),
            "example nlvr2-dev-0-0-0: expected text",
        ),
        ("snli_ve/snli_ve_dev.jsonl", again, "line 1 (2 such)"),
        (
            "snli_ve/snli_ve_dev.jsonl",
            lambda rows: first(rows, gold_label="yes"),
            "line 1: label 'yes' is not one of",
        ),
        (
            "snli_ve/snli_ve_dev.jsonl",
            lambda rows: first(rows, Flikr30kID=None),
            "line 1: no image",
        ),
        (
            "captions_val2014.json",
            lambda c: again(c["annotations"]),
            "once, found again (2 such)",
        ),
        (
            "instances.json",
            lambda c: first(c["annotations"], bbox=[1, 1, 0, 5]),
            "box inside its image",
        ),
    ],
)
def test_faults_of_lines(file: str, edit: Callable[[Any], Any], complaint: str, data: Path) -> None:
    path = change(data / file, edit)
    one(check(data), str(path.parent), complaint)


def test_the_logs_of_a_shift_are_no_lines_of_vcr(data: Path, tmp_path: Path) -> None:
    shift(VcrShiftConfig(data=str(data / "vcr"), protocol="none"), tmp_path / "shifted")
    put(tmp_path / "shifted/losses.jsonl", '{"annot_id": "val-0", "answer_losses": [[1.0]]}\n')
    told = check(tmp_path / "shifted")
    assert not told.problems, told.problems


def test_metadata_of_vcr(data: Path) -> None:
    rows = [json.loads(line) for line in (data / "vcr/val.jsonl").read_text().splitlines()]
    paths = [
        data / "vcr/vcr1images" / name for name in dict.fromkeys(row["metadata_fn"] for row in rows)
    ]
    (data / "vcr/train.jsonl").unlink()
    for path in paths[:2]:
        change(
            path, lambda content: first([content], boxes=[[5, 5, 5, 9, 1.0], content["boxes"][1]])
        )
    paths[2].unlink()
    report = check(data)
    assert (
        f"{data}/vcr/val.jsonl: {len(paths)} images, metadata of {len(paths) - 3} with "
        in "\n".join(report.lines)
    )
    bad, gone = report.problems
    assert bad.startswith(f"{paths[0]}: box 0 is empty") and bad.endswith(" (2 such)")
    assert gone.startswith(f"{paths[2]}: no such file")


def test_the_three_keys_of_snli_ve_and_lines_without_a_label(data: Path) -> None:
    path = data / "snli_ve/snli_ve_dev.jsonl"
    for key in ("Flickr30K_ID", "Flickr30kID"):
        change(
            path,
            lambda rows, key=key: [
                {key if k[0] == "F" else k: v for k, v in row.items()} for row in rows
            ],
        )
        assert check(data).ok
    change(path, lambda rows: [*(row | {"gold_label": "-"} for row in rows[:3]), *rows[3:]])
    assert f"{path}: 3 lines without a majority label (-) are omitted" in check(data).lines


def test_lists_of_nlvr2s_subsets(data: Path) -> None:
    path = put(data / "nlvr2/balanced_dev_identifiers.txt", "dev-0-0-0\n")
    assert check(data).ok
    put(path, "dev-0-0-0\ndev-999-0-0\n")
    one(check(data), f"{path}: 'dev-999-0-0' is not in dev.json")


def test_boxes_of_refcoco(data: Path) -> None:
    path, boxes = data / "refcoco+/refs(unc).p", data / "refcoco+/instances.json"
    notes = {ref["ann_id"] for ref in pickle.loads(path.read_bytes()) if ref["split"] == "val"}

    def outside(content: dict[str, Any]) -> None:
        for note in [note for note in content["annotations"] if note["id"] in notes][:2]:
            note["bbox"][0] = 1e4

    whole = boxes.read_text()
    change(boxes, outside)
    problems = check(data).problems
    assert any(
        line.startswith(f"{path}, refs[") and "is empty or outside the image" in line
        for line in problems
    )
    assert any(line.endswith(" (2 such)") for line in problems)
    put(boxes, whole)
    rows = [
        {
            "image_id": json.loads(whole)["images"][0]["id"],
            "box": [0, 0, 5, 5],
            "score": 0.5,
            "category_id": 1,
        }
    ]
    dets = put(
        data / "refcoco+/res101_dets.json", json.dumps([*rows, rows[0] | {"box": [1, 1, 0, 0]}])
    )
    assert f"{dets}: 1 detected boxes in 1 images; 1 empty ones" in check(data).lines
    put(dets, json.dumps([rows[0] | {"box": [0, 0, 5, 5000]}, rows[0] | {"image_id": 7_654_321}]))
    assert [line.partition(": ")[2] for line in check(data).problems] == [
        "expected a box inside its image, and not an empty one",
        "not in instances.json",
    ]
    dets.unlink()
    refs = pickle.loads(path.read_bytes())
    refs[0]["sentences"] *= 2
    path.write_bytes(pickle.dumps(refs, protocol=2))
    one(check(data), f"{path}, expression ", "expected only once, found again")
    path.write_bytes(pickle.dumps([5], protocol=2))
    one(check(data), f"{path.parent}: RefCOCO with a missing field or a field of the wrong type")
    path.write_bytes(pickle.dumps(check))
    one(check(data), f"{path}: not read (this pickle needs 'groundling.check.check'")


def test_faults_of_flickr30k_entities(data: Path) -> None:
    folder = data / "flickr30k"
    listed = (folder / "val.txt").read_text().splitlines()
    for name in listed[:2]:
        path = folder / f"Annotations/{name}.xml"
        put(path, path.read_text().replace("<xmin>", "<xmin>999"))
    (folder / f"Sentences/{listed[2]}.txt").unlink()
    put(folder / f"Sentences/{listed[3]}.txt", "[/EN#1/other a cut\n")
    put(folder / "val.txt", "\n".join([*listed, listed[4]]) + "\n")
    report = check(data)
    assert len(report.problems) == 4
    starts = {
        f"Annotations/{listed[0]}.xml: box [": "is empty or outside",
        f"Sentences/{listed[2]}.txt: no such file": "",
        f"Sentences/{listed[3]}.txt, line 1: the phrase '[/EN#1": "is the file complete?",
        f"val.txt, image {listed[4]}: expected only once": "",
    }
    for line, (start, part) in zip(report.problems, starts.items(), strict=True):
        assert line.startswith(f"{folder}/{start}") and part in line
    assert report.problems[0].endswith(" (2 such)")
    for split in ("train", "val", "test"):
        (folder / f"{split}.txt").unlink()
    one(check(data), f"{folder}: found no image list, expected train.txt")


def test_a_region_store(tmp_path: Path) -> None:
    writer = RegionWriter(tmp_path / "store", 2)
    writer.fill((f"i{n}", lambda n=n: some(f"i{n}", soft=3)) for n in range(5))
    one(check(tmp_path), f"{tmp_path}/store: not a complete region store")
    writer.close({"background": "column 0", "classes": 3}, ["lost: does not decode"])
    for folder in (tmp_path, tmp_path / "store"):
        report = check(folder)
        assert (report.ok, report.layout) == (True, "region store")
        (line,) = report.lines
        assert line.startswith(
            f"{tmp_path}/store/manifest.json: 5 images, 15 regions, 1 skipped, 0 boxes left out; "
        )
        assert line.endswith("a region: 6 numbers, 3 classes, the first is background")
    manifest = change(tmp_path / "store/manifest.json", lambda c: first([c["counts"]], images=6))
    for name in ("boxes-00001.npy", "features-00002.npy"):
        path = tmp_path / "store" / name
        put(path, path.read_bytes()[:-4])
    problems = check(tmp_path).problems
    assert [line.partition(":")[0] for line in problems] == [
        f"{tmp_path}/store/boxes-00001.npy",
        f"{tmp_path}/store/features-00002.npy",
        str(manifest),
    ]
    assert "counts {'images': 6" in problems[2]


def test_region_files_of_tsv(tmp_path: Path) -> None:
    inside = PIXELS.copy()
    inside[2] = inside[1]
    row = "\t".join(["9", "40", "30", "3", b64(inside), b64(FEATURES)]) + "\n"
    butd = put(tmp_path / "trainval.tsv.0", row)
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "region files")
    assert report.lines == [
        f"{butd}: TSV of bottom-up-attention; 1 images, 1 readable with 3 regions; a region: 4 numbers, no classes"
    ]
    butd.unlink()
    rows = [lxmert("a"), lxmert("b"), lxmert("a")]
    rows += [lxmert(f"cut{n}").rsplit("\t", 2)[0] + "\n" for n in range(2)]
    path = put(tmp_path / "sub/train_obj36.tsv", "".join(rows))
    report = check(tmp_path)
    assert report.lines == [
        f"{path}: TSV of LXMERT; 5 images, 3 readable with 6 regions; a region: 4 numbers, one class"
    ]
    assert report.problems == [
        f"{path}, line 4: 8 columns, expected 10; the row is cut off (2 such)",
        f"{path}, image a: expected only once, found again",
        f"{path}, image a, image b: expected a box inside its image, and not an empty one (3 such)",
    ]
    put(path, rows[3])
    one(check(tmp_path), f"{path}, line 1: 8 columns without")


def test_folders_and_databases_of_regions(tmp_path: Path) -> None:
    put(tmp_path / "npz/a.npz", npz(norm_bb=np.concatenate([SHARES[:2], SHARES[:1]])))
    put(tmp_path / "npz/b.npz", npz()[:-50])
    put(tmp_path / "npz/c.npz", npz()[:-40])
    put(tmp_path / "json/12.json", vlbert(boxes=b64(PIXELS[[0, 1, 0]])))
    put(tmp_path / "json/13.json", "{}")
    problems = check(tmp_path).problems
    assert problems == [
        f"{tmp_path}/json, 13.json: damaged, or of another layout ('image_w')",
        f"{tmp_path}/npz, b.npz: damaged, or of another layout (File is not a zip file) (2 such)",
    ]
    assert f"{tmp_path}/npz: npz of UNITER; 3 images, 1 readable with 3 regions; " in "\n".join(
        check(tmp_path).lines
    )


def test_databases_of_regions(tmp_path: Path) -> None:
    h5py, lmdb = pytest.importorskip("h5py"), pytest.importorskip("lmdb")
    spatial = np.concatenate([SHARES, SHARES[:, 2:] - SHARES[:, :2]], 1)[[0, 1, 0]]
    with h5py.File(tmp_path / "train36.hdf5", "w") as file:
        own = {
            "image_features": FEATURES,
            "image_bb": PIXELS[[0, 1, 0]],
            "spatial_features": spatial,
        }
        file.update({name: np.stack([value, value]) for name, value in own.items()})
    (tmp_path / "lmdb").mkdir()
    with lmdb.open(str(tmp_path / "lmdb"), map_size=1 << 22) as env, env.begin(write=True) as view:
        view.put(b"one.npz", npz())
        view.put(b"two.npz", b"\x80")
    report = check(tmp_path)
    assert report.problems == [
        f"{tmp_path}/lmdb, value: loading a pickle runs code, so pickles are not read; use the TSV or "
        "HDF5 file of the same features",
        f"{tmp_path}/lmdb, image one: expected a box inside its image, and not an empty one",
    ]
    assert f"{tmp_path}/train36.hdf5: HDF5; 2 images, 2 readable with 6 regions; " in "\n".join(
        report.lines
    )


def test_without_the_extra_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "a.h5", "")
    base = put(tmp_path / "lmdb/data.mdb", "").parent
    for name in ("h5py", "lmdb"):
        monkeypatch.setitem(sys.modules, name, None)
    told = "this layout needs the package {}: pip install 'groundling[regions]'"
    assert check(tmp_path).problems == [
        f"{path}: {told.format('h5py')}",
        f"{base}: {told.format('lmdb')}",
    ]
