"""What each reader says of a damaged file: one line, with the file and the place in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from groundling.core.errors import InputError

sys.path.append(str(Path(__file__).parents[1] / "fuzz"))
from readers import LazyFixture, Reader, readers

RTE = "index\tsentence1\tsentence2\tlabel\n16\tA dog.\tA cat."
BUS = "a bus\thttps://a.com/1.jpg"
CUT = "PLACE/data.mdb: cut off or damaged; copy it again"
ENTRY = "PLACE/dets.json, entry 0: cannot be read"
MESSAGES: dict[tuple[str, str], list[tuple[str | int | None, str, str]]] = {
    ("text", "a.txt"): [
        (None, "", "PLACE/a.txt: no such file"),
        ("", "", "PLACE/a.txt: the file is empty"),
        ("", " \n\n", "PLACE/a.txt: the file is empty"),
        ("", "fine\ncaf\udce9\n", "a.txt, line 2: cannot be read (UnicodeDecodeError: 'utf-8'"),
    ],
    ("captions COCO", "c.json"): [
        (None, "", "PLACE/c.json: no such file"),
        ("", '{"images": [],\n"annotations": [', "PLACE/c.json: not valid JSON (JSONDecodeError: "),
        ("", '{"images": []}', "PLACE/c.json: cannot be read (KeyError: 'annotations')"),
        ('"file_name"', '"f"', "PLACE/c.json: cannot be read (KeyError: 'file_name')"),
        ('"image_id": 1', '"image_id": 9', "PLACE/c.json: cannot be read (KeyError: '9')"),
        ('"a dog"', "null", "PLACE/c.json: cannot be read (AttributeError: 'NoneType' object"),
        ('"a dog"', '"\\ud83d"', "PLACE/c.json: not valid JSON (UnicodeEncodeError: "),
        ('"2.jpg"', '"1.jpg"', "annotations[1]: 2 and 1 both refer to the image file 1.jpg"),
        ("", '{"images": [], "annotations": []}', "PLACE/c.json: no captions found"),
    ],
    ("captions Karpathy", "dataset_coco.json"): [
        ('"raw"', '"tokens"', "dataset_coco.json, images[0]: cannot be read (KeyError: 'raw')"),
    ],
    ("captions Flickr8k", "Flickr8k.token.txt"): [
        ("", "1.jpg#0\tA dog.\n2.jpg A cat.\n", "line 2: expected file#number<TAB>caption"),
    ],
    ("captions Conceptual", "cc_train.tsv"): [
        ("", "A dog.\t1.jpg\nA cat.\n", "cc_train.tsv, line 2: 1 fields, but line 1 has 2"),
        # Two addresses never share an image file.
        (
            "",
            f"{BUS}?size=2\na dog\thttps://a.com/1.jpg?size=3\n",
            "both refer to the image file 1",
        ),
        ("", f"{BUS}\na dog\t1.jpg\n", "line 2: 1.jpg and https://a.com/1.jpg both refer to"),
    ],
    ("captions csv", "c.csv"): [
        ("sub/2.png", " ", "PLACE/c.csv, line 4: column 'image' is empty"),
        (",sub/2.png", "", "PLACE/c.csv, line 4: 1 fields, expected 2"),
        ("", "caption\na dog", "c.csv: no column is recognised as image files; set image_column"),
        ("", "1.jpg,a dog\n2.jpg,two cats", "c.csv: no captions among 1.jpg, a dog; set caption_"),
    ],
    ("captions jsonl", "c.jsonl"): [
        ('"caption": "two cats"', '"c": 1', "c.jsonl, line 3: field 'caption' is None; expected a"),
        ('"two cats"', "true", "c.jsonl, line 3: field 'caption' is True; expected a text or a"),
        ('"two cats"', "NaN", "c.jsonl, line 3: field 'caption' is nan; expected a text or a"),
    ],
    ("captions beside images", "1.txt"): [
        ("", "caf\udce9", "PLACE/1.txt: cannot be read (UnicodeDecodeError: 'utf-8'"),
    ],
    ("instances", "instances.json"): [
        ("", '{"images": []}', "instances.json: not COCO's instances, nor a list of detections"),
    ],
    ("glue/rte", "RTE/train.tsv"): [
        ("", f"{RTE}\n", "PLACE/RTE/train.tsv, line 2: 3 fields, expected 4"),
        ("", f"{RTE}\tmaybe\n", "line 2: label 'maybe' is not one of entailment, not_entailment"),
    ],
    ("detections", "dets.json"): [
        ("[1, 1, 5, 6]", "[1, 1, 5]", f"{ENTRY} (ValueError: not enough values to unpack"),
        ('"category_id": 1', '"category_id": [1]', f"{ENTRY} (TypeError: 'list' object cannot be"),
        ("0.5", "null", f"{ENTRY} (TypeError: float() argument must be"),
        ("[1, 1,", f"[1, 1{400 * '0'},", f"{ENTRY} (OverflowError: int too large to convert"),
    ],
    ("VCR's metadata", "1.json"): [
        ('"width": 16', '"width": "x"', "PLACE/1.json: cannot be read (ValueError: "),
        ('"names"', '"n"', "PLACE/1.json: cannot be read (KeyError: 'names')"),
    ],
    # LMDB maps its file: a page that is not there would end the process.
    ("regions lmdb", "data.mdb"): [
        (0, "", "PLACE: cannot be read (error: unpack_from requires a buffer of"),
        (100, "", "PLACE: cannot be read (error: unpack_from requires a buffer of"),
        (4096, "", "PLACE: cannot be read (error: unpack"),
        (10_000, "", CUT),
    ],
}
"""By reader and file: what is replaced (all, if empty; an int: where it is cut; None: gone), by what, the message."""
CASES = [(*where, *case) for where, cases in MESSAGES.items() for case in cases]


@pytest.fixture(scope="module")
def every(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Reader]:
    return readers(LazyFixture(tmp_path_factory.mktemp("shelf")))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "file", "old", "new", "message"), CASES)
def test_damage_is_told(name, file, old, new, message, every, tmp_path):
    place = tmp_path / "in"
    every[name].make(place)
    path, raw = place / file, new.encode("utf-8", "surrogateescape")
    whole = path.read_bytes()
    if old is None:
        path.unlink()
    elif isinstance(old, int):
        path.write_bytes(whole[:old])
    else:
        assert old.encode() in whole
        path.write_bytes(whole.replace(old.encode(), raw, 1) if old else raw)
    with pytest.raises(InputError) as told:
        every[name].read(place)
    line = str(told.value)
    assert message in line.replace(str(place), "PLACE") and str(place) in line
