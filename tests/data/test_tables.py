"""Tables with commas, semicolons or tabs: what is read, and which damage is refused with which message."""

from pathlib import Path
from typing import Any

import pytest
from tiny.homes import put

from groundling.core.errors import InputError
from groundling.data.tables import read_all_columns, read_header, read_rows, row_texts
from groundling.settings.input_settings import TableTaskSettings
from groundling.tasks.table import TableReader, table_notes
from groundling.tasks.texts import COLA, QQP


def refusal(call: Any, *given: Any) -> str:
    with pytest.raises(InputError) as caught:
        list(call(*given))
    return str(caught.value)


def read(path: Path) -> list[dict[str, Any]]:
    return [cells for _, cells in read_all_columns(path)[1]]


# -- damage ------------------------------------------------------------------------------------------------------------

HALF = b'{"text": "\\ud83d", "label": 1}\n'
DAMAGE: dict[str, tuple[str, bytes | None, str]] = {
    "missing": ("a.csv", None, ": no such file"),
    "empty": ("a.csv", b" \n", ": the file is empty"),
    "not UTF-8": ("a.csv", b"text,label\ncaf\xe9,1\n", "can't decode byte 0xe9"),
    "UTF-16": ("a.tsv", "text\tlabel\na\t1\n".encode("utf-16"), "can't decode byte 0xff"),
    "column missing": ("a.csv", b"text,y\na,1\n", ": no column 'label'; there are: text, y"),
    "column twice": ("a.tsv", b"text\tlabel\tlabel\na\t1\t2\n", "2 columns are called 'label'"),
    "cell less": ("a.csv", b"text,label\na,1\nb\n", ", line 3: 1 fields, expected 2"),
    "cell more": ("a.tsv", b"text\tlabel\na\tb\t1\n", ", line 2: 3 fields, expected 2"),
    "unread cell": ("a.csv", b"text,label,note\na,1\n", ", line 2: 2 fields, expected 3"),
    "open quote": ("a.csv", b'text,label\n"a,1\nb,1\n', ", line 3: unexpected end of data"),
    "inner quote": ("a.csv", b'text,label\n"b "c" d",1\n', ", line 2: ',' expected after '\"'"),
    "long cell": ("a.csv", b"text,label\n" + b"x" * 200_000 + b",0\n", ", line 2: field larger"),
    "cut json": ("a.json", b'[{"text": "a",\n', ": not valid JSON"),
    "no list": ("a.json", b'{"text": "a"}', ": expected a list of objects"),
    "no object": ("a.json", b'[{"text": "a", "label": 1}, 3]', ", entry 1: expected an object"),
    "no field": ("a.jsonl", b'{"text": "a"}\n', ", line 1: no field 'label'"),
    "null": ("a.jsonl", b'{"text": "a", "label": null}\n', ", line 1: no field 'label'"),
    "cut line": ("a.jsonl", b'\n{"text": "a"\n', ", line 2: not valid JSON"),
    "old Mac's lines": ("a.tsv", b"text\tlabel\ra\t1\r", ": no column 'label'"),
    "deep json": ("a.jsonl", b"[" * 100_000, ", line 1: not valid JSON"),
    "long number": ("a.json", b"[" + b"1" * 9_000 + b"]", ": not valid JSON"),
    "half a character": ("a.jsonl", HALF, ", line 1: not valid JSON (UnicodeEncodeError"),
    "no parquet": ("a.parquet", b"PAR1 or not", ": cannot be read (ArrowInvalid"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_refused_with_file_and_line(damage: str, tmp_path: Path) -> None:
    name, content, message = DAMAGE[damage]
    path = tmp_path / name
    if name.endswith(".parquet"):
        pytest.importorskip("pyarrow")
    if content is not None:
        put(path, content)
    told = refusal(read_rows, path, ("text", "label"))
    assert told.startswith(str(path)) and message in told


@pytest.mark.parametrize("value", ["true", "[1]", "{}", "NaN"])
def test_values_of_json_that_are_no_cells_are_refused(value: str, tmp_path: Path) -> None:
    path = put(tmp_path / "a.jsonl", f'{{"text": {value}}}\n')
    ((_, row),) = read_rows(path, ["text"])
    with pytest.raises(InputError, match=r"field 'text' is .*; expected a text or a number"):
        row_texts(row, ["text"])
    assert row_texts({"text": 10**400}, ["text"]) == [f"1{400 * '0'}"]  # larger than any float


def test_rows_of_other_lengths_than_a_tasks_columns(tmp_path: Path) -> None:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    put(tmp_path / "train.tsv", f"{head}6\t1\t2\tWho\tis it?\tHe?\t1\n")
    assert "line 2: 7 fields, expected 6" in refusal(QQP.read, tmp_path, "train")
    path = put(tmp_path / "dev.tsv", "gj04\t1\t\tThe boat\tsank.\n")  # without a header, too
    assert f"{path}, line 1: 5 fields, expected 4" in refusal(COLA.read, tmp_path, "dev")


# -- what is read ------------------------------------------------------------------------------------------------------

ROWS = [{"text": "is it red, or not?", "label": "yes"}, {"text": 'a "dog"', "label": "no"}]
SEPARATED = {
    "semicolons": 'text;label\n"is it red, or not?";yes\n"a ""dog""";no\n',
    "tabs": 'text\tlabel\nis it red, or not?\tyes\n"a ""dog"""\tno\n',
    "commas": 'text,label\n"is it red, or not?",yes\n"a ""dog""",no\n',
}


@pytest.mark.parametrize("ending", [".csv", ".tsv"])
@pytest.mark.parametrize("called", SEPARATED)
def test_columns_may_be_separated_otherwise_than_the_ending_says(
    called: str, ending: str, tmp_path: Path
) -> None:
    path = put(tmp_path / f"a{ending}", "\ufeff" + SEPARATED[called].replace("\n", "\r\n"))
    assert read_header(path) == ["text", "label"]
    if ending == ".tsv" and called == "tabs":
        assert read(path)[1] == {"text": '"a ""dog"""', "label": "no"}  # where quotes are text
    else:
        assert read(path) == ROWS
    put(path, path.read_text() + "\n\n")
    assert len(read(path)) == 2  # empty lines at the end are no rows


def test_a_line_end_in_quotes_is_part_of_a_value(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", 'text,label\n"two\nlines",1\n\nmore,0\n')
    assert list(read_rows(path)) == [
        (f"{path}, line 3", {"text": "two\nlines", "label": "1"}),
        (f"{path}, line 5", {"text": "more", "label": "0"}),
    ]


def test_parquet(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    path = tmp_path / "a.parquet"
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table({"text": ["a", "b"], "label": [1, 2]}), path)
    assert read(path) == [{"text": "a", "label": 1}, {"text": "b", "label": 2}]
    assert read_header(path) == ["text", "label"]
    assert "no field 'y'" in refusal(read_rows, path, ("y",))


# -- leaks -------------------------------------------------------------------------------------------------------------


def test_the_label_is_no_text(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "text,label\nis it?,yes\nor not?,no\n")
    told = refusal(TableReader, path, TableTaskSettings(text="text,label", label="label"))
    assert "text text,label: column 'label' is the label" in told


def test_rows_of_dev_are_told_though_they_are_spelt_otherwise_in_train(tmp_path: Path) -> None:
    said = ["the café is red", "two dogs play", "a bird sings"]
    rows = "".join(f"{text},{n % 2}\n" for n, text in enumerate([*said, "more", "text"]))
    path = put(tmp_path / "a.csv", "text,label\n" + rows)
    spelt = ["the cafe\u0301 is red", "TWO DOGS PLAY", "a  bird sings "]
    rows = "".join(f"{text},{n % 2}\n" for n, text in enumerate([*spelt, "new one"]))
    held = put(tmp_path / "held.csv", "text,label\n" + rows)
    notes = table_notes(
        TableReader(path, TableTaskSettings(text="text", label="label", dev=str(held)))
    )
    assert any("3 of 4 dev rows" in note for note in notes)
