import json
import re
from pathlib import Path

import pytest
from builders.reports import one
from PIL import Image

from groundling.check import check
from groundling.check import images as module
from groundling.data.captions.captions import CaptionCollection
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.world import World

RTE = "index\tsentence1\tsentence2\tlabel\n0\tIt rained.\tIt was wet.\tentailment\n1\tA.\tB.\tnot_entailment\n"
DEV = RTE.replace("rained", "snowed")
QQP = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n5\t1\t2\tWhy?\tHow?\t0\n6\t1\t2\tWho\n7\t3\t4\tA?\tB?\t0\n"


def put(path: Path, text: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def picture(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((64, 48), 80).convert("RGB").save(path)
    return path


def coco(path: Path, images: list[tuple[int, str]], captions: list[tuple[int, int, str]]) -> Path:
    content = {
        "images": [{"id": i, "file_name": name, "width": 16, "height": 16} for i, name in images],
        "annotations": [
            {"id": i, "image_id": image, "caption": text} for i, image, text in captions
        ],
    }
    return put(path, json.dumps(content))


def test_a_glue_root(tmp_path: Path) -> None:
    for split in ("train", "dev"):
        put(tmp_path / "RTE" / f"{split}.tsv", RTE.replace("It rained", split))
        put(tmp_path / "QQP" / f"{split}.tsv", QQP.replace("Why", split))
    stsb = "sentence1\tsentence2\tscore\nA.\tB.\t1.5\nC.\tD.\t4\n"
    put(tmp_path / "STS-B" / "train.tsv", stsb)
    put(tmp_path / "STS-B" / "dev.tsv", stsb.replace("A.", "E."))
    put(tmp_path / "RTE" / "test.tsv", "index\tsentence1\tsentence2\n0\tA.\tB.\n")
    report = check(tmp_path)
    assert report.ok
    assert report.layout == "GLUE RTE, STS-B, QQP"
    assert (
        f"{tmp_path}/RTE/dev.tsv: 2 examples; labels entailment: 1, not_entailment: 1"
        in report.lines
    )
    assert f"{tmp_path}/RTE/test.tsv: 1 examples" in report.lines
    assert f"{tmp_path}/QQP/dev.tsv: 2 examples; labels 0: 2, 1: 0" in report.lines
    assert f"{tmp_path}/QQP/dev.tsv: 1 short rows skipped" in report.lines
    assert f"{tmp_path}/STS-B/dev.tsv: 2 examples; labels 1.5 to 4, mean 2.75" in report.lines


@pytest.mark.parametrize("name", ["RTE", "my_rte"])
def test_one_tasks_folder_by_name_or_by_content(name: str, tmp_path: Path) -> None:
    put(tmp_path / name / "train.tsv", RTE)
    put(tmp_path / name / "dev.tsv", DEV)
    report = check(tmp_path / name)
    assert (report.layout, report.ok, len(report.lines)) == ("GLUE RTE", True, 2)


def test_faults_of_glue_files(tmp_path: Path) -> None:
    train = put(tmp_path / "RTE" / "train.tsv", RTE)
    one(check(tmp_path), "RTE/dev.tsv: no such file")
    dev = put(
        tmp_path / "RTE" / "dev.tsv", RTE + "2\tIt snowed.\t \tentailment\n3\t\tB.\tentailment\n"
    )
    one(
        check(tmp_path),
        f"{dev}, example rte-dev-2, example rte-dev-3: expected text, found none (2 such)",
    )
    put(dev, RTE.encode() + b"2\tCaf\xe9\tB.\tentailment\n")
    one(check(tmp_path), f"{dev}, line 4: not UTF-8")
    put(dev, DEV)
    put(train, RTE + "2\tIt snowed.\n")
    one(check(tmp_path), f"{train}, line 4: 2 fields, expected 4")
    put(train, RTE)
    test = put(tmp_path / "RTE" / "test.tsv", "index\tsentence1\tsentence2\n0\tA.\tB.\n0\tC.\tD.\n")
    one(check(tmp_path), f"{test}, example rte-test-0: expected only once")


SWAG = "sent1,sent2,ending0,ending1,ending2,ending3,label\n"
FULL = "gold-ending,distractor-0,distractor-1,distractor-2,distractor-3,sent1,sent2\n"


def test_swag(tmp_path: Path) -> None:
    rows = 'A dog ran.,He,"barks, twice.",b,c,d,2\nA cat sat.,It,a,b,c,d,0\n'
    train = put(tmp_path / "train.csv", SWAG + rows)
    val = put(tmp_path / "val.csv", SWAG + rows.replace("dog", "bird"))
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "swag")
    assert report.lines == [
        f"{path}: 2 examples; labels 0: 1, 1: 0, 2: 1, 3: 0" for path in (train, val)
    ]
    full = put(tmp_path / "train_full.csv", FULL + "a,b,c,d,,A dog ran.,He\n")
    report = check(tmp_path)
    one(report, f"{tmp_path}/val_full.csv: no such file")
    assert report.layout == "swag + swag/full"
    assert any(line.startswith(f"{full}: 1 examples; labels 0: ") for line in report.lines)
    full.unlink()
    test = put(tmp_path / "test.csv", SWAG.replace(",label", "") + "A dog ran.,He,a,b,c,d\n")
    assert f"{test}: 1 examples" in check(tmp_path).lines
    put(val, SWAG + rows + "A dog ran.,He,a,b,c,d,4\n")
    one(check(tmp_path), f"{val}, line 4: label '4' is not one of 0, 1, 2, 3")
    put(val, SWAG + rows + " ,He,a,b,c,d,0\n,It,a,b,c,d,0\n")
    one(
        check(tmp_path),
        f"{val}, example swag-val-2, example swag-val-3: expected text, found none (2 such)",
    )
    put(val, (SWAG + "A caf\xe9,It,a,b,c,d,0\n").encode("latin-1"))
    one(check(tmp_path), f"{val}, line 2: not UTF-8")
    val.unlink()
    one(check(tmp_path), f"{val}: no such file")


@pytest.mark.parametrize("names", [("id", "excerpt", "target"), ("ID", "Excerpt", "BT_easiness")])
@pytest.mark.parametrize("quote", ["", '"'])
def test_readability(names: tuple[str, ...], quote: str, tmp_path: Path) -> None:
    head = ",".join(f"{quote}{name}{quote}" for name in names) + "\n"
    rows = "".join(f'{n},"{n} mills\nwere built.",{n / 10}\n' for n in range(20))
    path = put(tmp_path / "passages.csv", head + rows)
    put(tmp_path / "sample_submission.csv", "id,target\n7,0\n")
    report = check(tmp_path)
    assert (report.ok, report.layout, len(report.lines)) == (True, "readability", 2)
    found = [
        re.match(rf"{path}: (\d+) examples of (\w+); labels .+ to .+, mean .+", line)
        for line in report.lines
    ]
    assert [match[2] for match in found] == ["train", "dev"]
    assert sum(int(match[1]) for match in found) == 20
    put(path, head + rows + '20," ",1\n')
    one(
        check(tmp_path), f"{path}, line 42: column '{names[1]}' is empty"
    )  # once, though both splits meet it
    put(path, head + rows + "5,Again.,1\n")
    one(check(tmp_path), f"{path}, example readability-", "-5: expected only once")
    put(path, head.replace(names[2], "other") + rows)
    one(check(tmp_path), f"{path}, line 1: no column {names[2]!r}")


def test_a_csv_of_something_else_is_no_layout(tmp_path: Path) -> None:
    put(tmp_path / "prices.csv", "id,price\n1,2\n")
    (tmp_path / "folder.csv").mkdir()
    one(check(tmp_path), "no known layout", "SWAG", "readability")


def test_coco_with_boxes_and_images(tmp_path: Path) -> None:
    for n in (1, 2, 3):
        picture(tmp_path / "images" / f"{n}.jpg")
    path = coco(
        tmp_path / "captions.json",
        [(1, "1.jpg"), (2, "2.jpg")],
        [(1, 1, "A cup."), (2, 1, "A mug."), (3, 2, "B")],
    )
    content = json.loads(path.read_text())
    content["annotations"] = [
        {"id": 1, "image_id": 2, "category_id": 7, "bbox": [0.0, 0.0, 3.5, 2.0]}
    ]
    boxes = put(
        tmp_path / "instances.json",
        json.dumps(content | {"categories": [{"id": 7, "name": "cup"}]}),
    )
    put(tmp_path / "other.json", '{"seed": 1}')
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "COCO captions + COCO boxes")
    assert report.lines == [
        f"{path}: 3 captions of 2 images",
        f"{boxes}: 1 boxes in 1 categories; 2 images listed",
        f"{tmp_path}/images: 3 images; 1 have no caption; 3 decoded, evenly spaced",
    ]
    content["annotations"][0]["category_id"] = 8
    put(boxes, json.dumps(content | {"categories": [{"id": 7, "name": "cup"}]}))
    one(check(tmp_path), f"{boxes}, annotation 1: expected a listed category_id")


@pytest.mark.parametrize(
    ("images", "captions", "complaint"),
    [
        (
            [(1, "1.jpg"), (2, "2.jpg"), (3, "3.jpg")],
            [(1, 1, "A"), (2, 2, "B"), (3, 3, "C")],
            "2 of 3 captioned images are missing, the first is 2.jpg;",
        ),
        ([(1, "1.jpg"), (1, "1.jpg")], [(1, 1, "A")], "image 1: expected only once"),
        ([(1, "1.jpg")], [(4, 1, "A"), (4, 1, "B")], "annotation 4: expected only once"),
        (
            [(1, "1.jpg")],
            [(4, 1, "A"), (5, 9, "B")],
            "annotations[1] names image 9, not in `images`",
        ),
        ([(1, "1.jpg")], [(4, 1, "A"), (5, 1, " \n")], "annotations[1]: expected text"),
        ([(1, "1.jpg")], [(4, 1, None)], "annotations[0] has no text in `caption`"),
        ([([1], "1.jpg")], [(4, 1, "A")], "images[0] has no `id` or no `file_name`"),
    ],
)
def test_faults_of_coco(images: list, captions: list, complaint: str, tmp_path: Path) -> None:
    picture(tmp_path / "images" / "1.jpg")
    path = coco(tmp_path / "captions.json", images, captions)
    report = check(tmp_path)
    one(report, str(path), complaint)
    assert "COCO captions" in report.layout


def test_broken_json_is_a_problem(tmp_path: Path) -> None:
    picture(tmp_path / "images" / "1.jpg")
    path = put(tmp_path / "captions.json", '{"images": [\n')
    one(check(tmp_path), f"{path}, line 2: not valid JSON")


def test_flickr8k(tmp_path: Path) -> None:
    path = put(
        tmp_path / "Flickr8k.token.txt",
        "1.jpg#0\tA cup .\n1.jpg#1\tA mug .\n2.jpg#0\tA \u2028 dog .\n",
    )
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "Flickr8k captions")
    assert report.lines == [
        f"{path}: 3 captions of 2 images",
        f"{tmp_path}: no images*/ folder, so no images were checked",
    ]
    picture(tmp_path / "images_small" / "1.jpg")
    gone = f"{path}: 1 of 2 captioned images are missing, the first is 2.jpg; add them to"
    one(check(tmp_path), f"{gone} {tmp_path}/images_small or pass --skip-missing")
    picture(tmp_path / "images_small" / "2.jpg")
    put(path, "1.jpg#0\tA cup .\n1.jpg#0\tA mug .\n2.jpg#0 A dog .\n2.jpg#1\t\n2.jpg\tA cat .\n")
    assert check(tmp_path).problems == [
        f"{path}, line 3: expected file#number<TAB>caption (2 such)",
        f"{path}, line 4: expected text, found none",
        f"{path}, 1.jpg#0: expected only once, found again",
    ]


def test_conceptual_captions(tmp_path: Path) -> None:
    text = "a cup on a table\thttp://example.org/a/1.jpg?w=6\nperson with dog\thttp://example.org/2.jpg\n"
    path = put(tmp_path / "cc" / "Train_GCC-training.tsv", text)
    report = check(tmp_path / "cc")
    assert (report.ok, report.layout) == (True, "Conceptual Captions")
    assert f"{path}: 2 captions of 2 images" in report.lines
    put(tmp_path / "own" / "captions.tsv", "a cup\tholiday/1.jpg\na dog\t2.jpg\n")
    Image.new("RGB", (4, 4)).save(put(tmp_path / "own" / "images" / "holiday" / "1.jpg", ""))
    own = tmp_path / "own"
    gone = "1 of 2 captioned images are missing, the first is 2.jpg; add them to"
    one(check(own), f"{own / 'captions.tsv'}: {gone} {own / 'images'} or pass --skip-missing")
    put(path, text + "no link\n\thttp://example.org/3.jpg\n")
    assert check(tmp_path / "cc").problems == [
        f"{path}, line 3: expected caption<TAB>image file",
        f"{path}, line 4: expected text, found none",
    ]


def test_images_that_a_file_of_boxes_lists_are_looked_for(tmp_path: Path) -> None:  # E15
    picture(tmp_path / "images" / "1.jpg")
    sizes = {"width": 16, "height": 16}
    listed = [{"id": n, "file_name": f"{n}.jpg", **sizes} for n in (1, 2)]
    boxes = {"images": listed, "annotations": [], "categories": [{"id": 7, "name": "cup"}]}
    path = put(tmp_path / "instances.json", json.dumps(boxes))
    report = check(tmp_path)
    one(report, f"{path}, image 2.jpg: not in {tmp_path}/images")
    assert report.lines[-1] == f"{tmp_path}/images: 1 images; 1 decoded, evenly spaced"
    del listed[0]["width"]  # `regions --boxes` refuses it
    picture(tmp_path / "images" / "2.jpg")
    put(path, json.dumps(boxes))
    one(check(tmp_path), f"{path}, image 1: expected width and height in whole")


@pytest.mark.parametrize("missing", ["annotations", "images"])
def test_coco_json_without_a_half_is_a_problem(missing: str, tmp_path: Path) -> None:  # E15
    path = coco(tmp_path / "captions.json", [(1, "1.jpg")], [(1, 1, "A cup.")])
    content = json.loads(path.read_text())
    del content[missing]
    put(path, json.dumps(content))
    picture(tmp_path / "images" / "1.jpg")
    one(check(tmp_path), f"{path}: not COCO captions; expected the keys `images` and")
    if missing == "annotations":  # COCO's lists of test images rightly have none
        path.rename(tmp_path / "image_info_test2017.json")
        assert check(tmp_path).ok


def test_exchanged_columns_of_captions_are_a_problem(tmp_path: Path) -> None:  # E15
    picture(tmp_path / "images" / "1.jpg")
    path = put(tmp_path / "captions.tsv", "1.jpg\ta cup on a table\n")
    one(check(tmp_path), f"{path}, line 1: expected caption<TAB>image file, found", "swapped?")


def test_cocos_own_tree(tmp_path: Path) -> None:  # F5
    for split, number in (("train", 1), ("val", 2)):
        picture(tmp_path / f"{split}2014" / f"{number}.jpg")
        path = tmp_path / "annotations" / f"captions_{split}2014.json"
        coco(path, [(number, f"{number}.jpg")], [(1, number, "A cup.")])
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "COCO captions")
    assert f"{path}: 1 captions of 1 images" in report.lines
    (tmp_path / "val2014" / "2.jpg").unlink()
    one(check(tmp_path), f"{path}: 1 of 1", "first is 2.jpg")


def test_photos_in_folders_of_any_name(tmp_path: Path) -> None:  # F5
    picture(tmp_path / "2024" / "june" / "1.jpg")
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "images")
    assert report.lines == [f"{tmp_path}: 1 images; 1 decoded, evenly spaced"]


def test_an_image_without_width_is_no_image(tmp_path: Path) -> None:
    image = {"id": 1, "file_name": "1.jpg", "width": 0, "height": 8}
    note = {"id": 5, "image_id": 1, "category_id": 7, "bbox": [0, 0, 1, 1]}
    content = {"images": [image], "annotations": [note], "categories": [{"id": 7, "name": "cup"}]}
    path = put(tmp_path / "instances.json", json.dumps(content))
    one(check(tmp_path), f"{path}, image 1: expected width and height")


def test_plain_text(tmp_path: Path) -> None:
    raw = put(tmp_path / "wiki.train.raw", " \n = Mills = \n \n A mill grinds . \n")
    put(tmp_path / "sub" / "wiki.valid.tokens", "one\n")
    report = check(tmp_path)
    assert (report.ok, report.layout) == (True, "plain text")
    assert f"{raw}: 4 lines, 2 with text, 7 words" in report.lines
    assert len(report.lines) == 2
    put(raw, b"good\nb\xe4d\n")
    one(check(tmp_path), f"{raw}, line 2: not UTF-8")
    put(raw, "")
    one(check(tmp_path), f"{raw}: the file is empty")


def test_images_that_do_not_decode(tmp_path: Path) -> None:
    whole = picture(tmp_path / "1.jpg")
    assert check(tmp_path).layout == "images"
    assert check(tmp_path).ok
    put(tmp_path / "2.jpg", whole.read_bytes()[:-400])
    one(check(tmp_path), f"{tmp_path}, 2.jpg: does not decode")
    put(tmp_path / "3.png", b"<html>404</html>")
    one(check(tmp_path), f"{tmp_path}, 2.jpg, 3.png: does not decode", "(2 such)")


def test_of_many_images_an_evenly_spaced_sample_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_DECODED", 3)
    for n in range(9):
        picture(tmp_path / f"{n}.png")
    seen = []
    monkeypatch.setattr(module, "_decodes", lambda path: seen.append(path.name) or True)
    assert check(tmp_path).lines == [f"{tmp_path}: 9 images; 3 decoded, evenly spaced"]
    assert seen == ["0.png", "4.png", "8.png"]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    World(WorldConfig(scenes=6, dev_scenes=3, sentences=200, dev_sentences=10)).write(folder)
    return folder


def test_a_rendered_world(world: Path) -> None:
    report = check(world)
    assert (report.ok, report.layout) == (True, "rendered world + COCO captions + COCO boxes")
    assert f"{world}/corpus/train.txt: 200 lines, 200 with text" in "\n".join(report.lines)
    assert f"{world}/images: 9 images; 0 have no caption; 9 decoded, evenly spaced" in report.lines
    assert (
        f"{world}/images_redrawn: 9 images; 0 have no caption; 9 decoded, evenly spaced"
        in report.lines
    )
    probe = next(
        line for line in report.lines if line.startswith(f"{world}/probes/truth_dev.tsv: ")
    )
    assert "labels 0: " in probe


def test_a_worlds_control_captions_belong_to_its_control_images(world: Path) -> None:
    lost = sorted((world / "images_redrawn").iterdir())[0]
    content = lost.read_bytes()
    lost.unlink()
    try:
        one(
            check(world),
            "captions_redrawn_train.json",
            f"the first is {lost.name}; add them to {world}/images_redrawn",
        )
    finally:
        lost.write_bytes(content)


BLIMP_ROW = {"sentence_good": "a dog runs", "sentence_bad": "a dog run", "UID": "agreement"}
EWOK_ROW = {"Target1": "it runs", "Target2": "it waits", "Domain": "animals"}
EWOK_ROW |= {"Context1": "a red dog .", "Context2": "a wet dog ."}
OWN_ROW = {"good": "a dog", "bad": "dog a"}
CODA_ROW = {"class_id": "apple", "ngram": "apple", "label": [0.1] * 11, "object_group": 0}
CODA_ROW |= {"text": "Apples are [MASK].", "template_idx": 1, "template_group": 1}


@pytest.mark.parametrize(
    ("name", "row", "layout", "about"),
    [
        ("data/a.jsonl", BLIMP_ROW, "minimal pairs (BLiMP)", "1 minimal pairs (BLiMP) in 1 groups"),
        (
            "supplement.jsonl",
            {name: BLIMP_ROW[name] for name in ("sentence_good", "sentence_bad")},
            "minimal pairs (BLiMP)",
            "1 minimal pairs",
        ),
        ("ewok.jsonl", EWOK_ROW, "minimal pairs (EWoK)", "1 minimal pairs"),
        ("own.jsonl", OWN_ROW, "minimal pairs (your own)", "1 minimal pairs"),
        ("coda.jsonl", CODA_ROW, "CoDa", "facts (CoDa), color: 1"),
        (
            "db/size_larger/test.jsonl",
            {"sub": "cat", "obj": "mouse", "alt": "horse"},
            "ViComTe",
            "size_larger: 1",
        ),
        ("color-dist.jsonl", {"apple": [1] * 12}, "ViComTe", "color: 1"),
    ],
)
def test_pairs_and_visual_facts(
    name: str, row: dict, layout: str, about: str, tmp_path: Path
) -> None:
    path = put(tmp_path / name, json.dumps(row) + "\n")
    report = check(tmp_path)
    assert (report.layout, report.problems) == (layout, [])
    assert any(about in line for line in report.lines)
    row = {key: "" if isinstance(value, str) else [] for key, value in row.items()}
    put(path, path.read_text() + json.dumps(row) + "\n")
    one(check(tmp_path), f"{path}, line 2")


@pytest.mark.parametrize(("ending", "mark"), [("csv", ","), ("tsv", "\t")])
def test_own_pairs_in_tables(ending: str, mark: str, tmp_path: Path) -> None:
    rows = [("good", "bad", "id"), ("a dog", "dog a", "1"), ("a cat", "cat a", "1")]
    path = put(tmp_path / f"own.{ending}", "".join(mark.join(row) + "\n" for row in rows))
    report = check(tmp_path)
    assert report.layout == "minimal pairs (your own)"
    one(report, f"{path}, line 3: duplicate id own/1")


def test_codas_raw_files(tmp_path: Path) -> None:
    colours = {"black": 0, "blue": 0, "brown": 0, "gray": 0, "green": 1, "orange": 0, "pink": 0}
    answer = {"class_id": "apple", "included": True, "action": "keep", **colours}
    answer |= {"purple": 0, "red": 3, "white": 0, "yellow": 0}
    thing = {"class_id": "apple", "ngram": "apple", "object_s": "apple", "areis_s": "is"}
    thing |= {"object_pl": None, "areis_pl": None}
    path = put(tmp_path / "coda_annotations.jsonl", json.dumps(answer) + "\n")
    put(tmp_path / "coda_objects.jsonl", json.dumps(thing) + "\n")
    template = "templates: [{name: text-masked, templates: ['The {object_s} is [MASK].']}]\n"
    put(tmp_path / "coda_templates.yaml", template)
    report = check(tmp_path)
    assert (report.layout, report.problems) == ("CoDa, raw", [])
    assert f"{path}: facts (CoDa, raw), color: 1" in report.lines
    (tmp_path / "coda_templates.yaml").unlink()
    one(check(tmp_path), "coda_templates.yaml: no such file")


def test_a_table_beside_images_is_told_even_if_it_is_not_taken_for_captions(tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "pics" / "a.png")
    lacks = put(tmp_path / "lacks.csv", "photo,x\na.png,3\n")
    other = put(tmp_path / "other.csv", "photo,remark\na.png,a dog runs\n")
    report = check(tmp_path)
    (fault,) = CaptionCollection(lacks).faults  # as a command would name it
    assert f"note: not taken for captions: {fault}" in report.lines
    assert report.layout == "captions by column"  # as a command would read the other one
    line, note = [line for line in report.lines if str(other) in line]
    assert (
        line
        == f"{other}: 1 captions of 1 images; captions from column 'remark', images from 'photo'"
    )
    assert "detected from their values; to change them, pass --caption-column" in note


def test_an_imagefolder_below_a_folder_of_any_name_is_seen(tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    Image.new("RGB", (8, 8)).save(folder / "a.png")
    rows = put(folder / "metadata.jsonl", '{"file_name": "a.png", "text": "a dog runs"}\n')
    report = check(tmp_path)
    assert report.layout == "imagefolder"
    assert any(line.startswith(f"{rows}: 1 captions of 1 images") for line in report.lines)
    # captions of the folder itself come first; then those beside the images are only named
    put(tmp_path / "captions.csv", "image,caption\na.png,a cat\n")
    assert check(tmp_path).layout == "captions by column"


def test_an_unknown_layout_lists_what_is_recognised(tmp_path: Path) -> None:
    put(tmp_path / "model.bin", "x")
    report = check(tmp_path)
    assert report.layout == "unknown"
    one(
        report,
        str(tmp_path),
        "GLUE",
        "COCO",
        "Flickr8k",
        "Conceptual Captions",
        "plain text",
        "world.json",
        "images",
    )
    one(check(tmp_path / "nowhere"), "nowhere: no such folder")


def test_questions_without_answers_are_no_captions(tmp_path: Path) -> None:
    for name in ("a", "b"):
        picture(tmp_path / f"photos/{name}.png")
    put(tmp_path / "mine.csv", "question,photo,answer\nis it red ?,a.png,no\nis it ?,b.png,yes\n")
    put(tmp_path / "new.csv", "question,photo\nis it red ?,b.png\n")
    report = check(tmp_path)
    assert any(
        line.endswith("new.csv: the same columns without labels, for `predict`")
        for line in report.lines
    )
    assert not any("captions" in line for line in report.lines)
