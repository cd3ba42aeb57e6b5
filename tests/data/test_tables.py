"""Tables with commas, semicolons or tabs: which rows are refused, and how a wrong one is named."""

from pathlib import Path
from typing import Any

import pytest
from homes import put

from groundling.core.errors import InputError
from groundling.data.captions.captions import CaptionCollection
from groundling.data.tables import read_all_columns, read_csv, read_header, read_tsv, separator_note
from groundling.settings.input_settings import TableTaskSettings
from groundling.studies.knowledge.minimal_pairs import read_minimal_pairs
from groundling.tasks.glue import COLA, MRPC, QQP, RTE
from groundling.tasks.table import TableReader, table_notes


def refusal(call: Any, *given: Any) -> str:
    with pytest.raises(InputError) as caught:
        list(call(*given))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def own_notes_of(path: Path, options: TableTaskSettings) -> list[str]:
    return table_notes(TableReader(path, options))


def read(path: Path) -> list[dict[str, Any]]:
    return [dict(cells) for _, cells in read_all_columns(path, ())[1]]


# -- fields ------------------------------------------------------------------------------------------------------------


def test_a_tab_too_many_does_not_shift_a_pair(tmp_path: Path) -> None:
    head = "index\tsentence1\tsentence2\tlabel\n"
    rows = "0\tIt rained.\tIt was wet.\tentailment\n1\tA dog\tbarks.\tIt sleeps.\tentailment\n"
    path = put(tmp_path / "train.tsv", head + rows)
    assert f"{path}, line 3: 5 fields, expected 4" in refusal(RTE.read, tmp_path, "train")


def test_a_tab_behind_the_last_column_that_is_read_is_told(tmp_path: Path) -> None:
    head = "Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
    path = put(tmp_path / "train.tsv", head + "1\t2\t3\tHe said\tso.\tSo he said.\n")
    assert f"{path}, line 2: 6 fields, expected 5" in refusal(MRPC.read, tmp_path, "train")
    path = put(tmp_path / "dev.tsv", "gj04\t1\t\tThe boat\tsank.\n")
    assert f"{path}, line 1: 5 fields, expected 4" in refusal(COLA.read, tmp_path, "dev")


def test_a_row_with_a_field_too_few_is_told_though_what_is_read_is_there(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "id\ttext\tlabel\tnote\n1 is it red?\tyes\tsure\n")
    assert "line 2: 3 fields, expected 4" in refusal(read_tsv, path, ("text", "label"))
    path = put(tmp_path / "a.csv", "id,text,label,note\n1 is it red?,yes,sure\n")
    assert "line 2: no value for column 'note'" in refusal(read_csv, path, ("text", "label"))


def test_rows_that_a_newline_has_broken_are_left_out_of_qqp_and_longer_ones_told(
    tmp_path: Path,
) -> None:
    head = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n"
    good = "5\t1\t2\tWhy?\tHow?\t0\n"
    path = put(tmp_path / "train.tsv", head + good + "6\t1\t2\tWho\nis it?\tHe?\t1\n")
    assert [example.text for example in QQP.read(tmp_path, "train")] == ["Why?"]
    put(path, head + good + "6\t1\t2\tWho\tis it?\tHe?\t1\n")
    assert "line 3: 7 fields, expected 6" in refusal(QQP.read, tmp_path, "train")


def test_captions_without_a_header_have_the_columns_of_most_lines(tmp_path: Path) -> None:
    path = put(tmp_path / "a.tsv", "a dog\t1.jpg\na\tcat\t2.jpg\na bird\t3.jpg\n")
    (fault,) = CaptionCollection(path).faults
    assert fault.startswith(f"{path}, line 2: 3 fields, other lines have 2")
    labelled = "a dog\thttps://x.org/1.jpg\tdog\t/m/1\t0.9\n"
    put(path, labelled + labelled.replace("1.jpg", "2.jpg"))
    assert CaptionCollection(path).faults == []
    put(path, labelled + "a\tcat\thttps://x.org/2.jpg\tcat\t/m/2\t0.8\n")
    assert "line 2: 6 fields, other lines have 5" in CaptionCollection(path).faults[0]


# -- quotes ------------------------------------------------------------------------------------------------------------


def test_the_line_is_named_on_which_a_quote_opens(tmp_path: Path) -> None:
    rows = 'text,label\n"two\nlines",1\n"never closed,0\n' + "more,1\n" * 30_000
    path = put(tmp_path / "a.csv", rows)
    assert f"{path}, line 4: the quote that opens here is still open" in refusal(
        read_csv, path, ("text", "label")
    )
    put(path, 'text,label\n"never closed,0\nmore,1\n"closed",0\n')
    assert f"{path}, line 2: the quote that opens here closes in line 4" in refusal(
        read_csv, path, ("text", "label")
    )
    put(path, 'text,label\nfine,1\n"he said "hi" to me",0\n')
    told = refusal(read_csv, path, ("text", "label"))
    assert f"{path}, line 3: the quote that opens here closes in line 3" in told
    assert 'quote inside a value twice ("")' in told


def test_a_cell_without_end_is_told_by_its_line(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "text,label\nfine,1\n" + "x" * 200_000 + ",0\n")
    assert f"{path}, line 3: a cell is too long" in refusal(read_csv, path, ("text", "label"))


# -- what separates columns --------------------------------------------------------------------------------------------

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
    path = put(tmp_path / f"a{ending}", SEPARATED[called])
    usual = (ending, called) in [(".csv", "commas"), (".tsv", "tabs")]
    assert read_header(path) == ["text", "label"]
    if ending == ".tsv" and usual:
        assert read(path)[1] == {"text": '"a ""dog"""', "label": "no"}  # where quotes are text
    else:
        assert read(path) == ROWS
    note = separator_note(path)
    assert (note == "") if usual else (called in note and str(path) in note)


def test_a_semicolon_in_a_name_separates_nothing(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "text,label (yes; no; maybe)\nis it red?,yes\n")
    assert read_header(path) == ["text", "label (yes; no; maybe)"]


def test_semicolons_are_noted_of_a_task_and_of_captions(tmp_path: Path) -> None:
    rows = "".join(f"is it {n}?;{'yes' if n % 2 else 'no'}\n" for n in range(60))
    path = put(tmp_path / "a.csv", "text;label\n" + rows)
    reader = TableReader(path, TableTaskSettings(text="text", label="label"))
    assert len(reader.rows) == 60
    assert table_notes(reader)[0].startswith(f"{path}: its columns are separated by semicolons")
    path = put(tmp_path / "b.csv", "image;caption\n1.jpg;a red, red dog\n")
    captions = CaptionCollection(path)
    assert captions.faults == []
    assert captions.images[0].captions == ("a red, red dog",)
    assert "separated by semicolons" in captions.column_notes[0]
    path = put(tmp_path / "c.csv", "good;bad\nIt rains.;It rain.\n")
    (pair,) = read_minimal_pairs(path)
    assert [text.text for text in pair.texts] == ["It rains.", "It rain."]


def test_numbers_with_a_decimal_comma_are_no_classes(tmp_path: Path) -> None:
    rows = "".join(f"text {n};{n},5\n" for n in range(40))
    path = put(tmp_path / "a.csv", "text;score\n" + rows)
    told = refusal(own_notes_of, path, TableTaskSettings(text="text", label="score"))
    assert f"{path}, line 2: " in told
    assert "decimal comma" in told
    classes = TableReader(
        path, TableTaskSettings(text="text", label="score", label_type="classify")
    )
    assert len(classes.rows) == 40


# -- leaks -------------------------------------------------------------------------------------------------------------


def test_the_label_is_no_text(tmp_path: Path) -> None:
    path = put(tmp_path / "a.csv", "text,label\nis it?,yes\nor not?,no\n")
    told = refusal(own_notes_of, path, TableTaskSettings(text="text,label", label="label"))
    assert "--text text,label: column 'label' is the label" in told


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
