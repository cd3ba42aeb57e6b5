"""A task made of the user's own file: every kind of file, of label and of fault, and a whole run."""

import json
from pathlib import Path

import pytest
from tiny import homes
from tiny.homes import put, table

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, Regression
from groundling.settings.input_settings import TableTaskSettings
from groundling.tasks import Task
from groundling.tasks.table import TableReader, form_of, table_notes, table_task


def own(path: Path, text: str = "q,a", **options: str) -> Task:
    return table_task(path, TableTaskSettings(text=text, label="y", **options))


def notes(path: Path, text: str = "q,a", **options: str) -> list[str]:
    return table_notes(TableReader(path, TableTaskSettings(text=text, label="y", **options)))


def write(path: Path, *labels: object) -> Path:
    rows = [(f"Is it {n}?", f"Yes, {n}.", label) for n, label in enumerate(labels)]
    objects = [dict(zip("qay", row, strict=True)) for row in rows]
    lines = "".join("\t".join(map(str, row)) + "\n" for row in [("q", "a", "y"), *rows])
    made = {".csv": table(("q", "a", "y"), *rows), ".tsv": lines, ".json": json.dumps(objects)}
    return put(path, (made | {".jsonl": "\n\n".join(map(json.dumps, objects))})[path.suffix])


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".json", ".jsonl"])
def test_own_files_of_every_kind_say_the_same(suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"mine{suffix}", *(n % 2 for n in range(20)))
    task = own(path)
    assert (task.name, task.form, task.dev) == ("table/mine", Classification(("0", "1")), ("dev",))
    assert [m.name for m in task.metrics] == ["accuracy", "matthews", "f1"]
    sides = {split: task.read(path, split) for split in ("train", "dev")}
    numbers = {split: [int(e.official_id) for e in examples] for split, examples in sides.items()}
    assert sorted(numbers["train"] + numbers["dev"]) == list(range(20))
    assert 2 <= len(numbers["dev"]) <= 8
    for split, examples in sides.items():
        assert examples == [
            Example(f"mine-{split}-{n}", f"Is it {n}?", f"Yes, {n}.", n % 2, official_id=str(n))
            for n in numbers[split]
        ]
    alone = own(path, text="a").read(path, "dev")
    assert [(e.text, e.text_pair) for e in alone] == [
        (f"Yes, {e.official_id}.", None) for e in alone
    ]
    apart = own(path, dev=str(write(tmp_path / f"held{suffix}", 1, 0, 1)))
    assert [len(apart.read(path, split)) for split in ("train", "dev")] == [20, 3]
    assert [e.id for e in apart.read(path, "dev")] == [f"held-dev-{n}" for n in range(3)]
    apart = own(path, dev=str(write(tmp_path / f"held{suffix}", 1, "maybe")))
    with pytest.raises(
        InputError, match=rf"held{suffix}, \w+ \d: label 'maybe' is not one of 0, 1"
    ):
        apart.read(path, "dev")


CLASSES, HALVES = Classification(("0", "1", "2", "3", "4")), Classification(("0.0", "0.5"))


@pytest.mark.parametrize(
    ("labels", "form", "expected", "metrics"),
    [
        (["no", "yes", "maybe"] * 7, "auto", Classification(("maybe", "no", "yes")), ["accuracy"]),
        ([n % 5 for n in range(30)], "auto", CLASSES, ["accuracy"]),
        ([n % 5 for n in range(30)], "regress", Regression(), ["pearson", "spearman", "rmse"]),
        # More whole numbers than classes.
        (list(range(21)), "auto", Regression(), ["pearson", "spearman", "rmse"]),
        ([n % 2 / 2 for n in range(30)], "auto", Regression(), ["pearson", "spearman", "rmse"]),
        ([0.0, 0.5] * 9, "classify", HALVES, ["accuracy", "matthews", "f1"]),
    ],
)
def test_labels_are_classes_or_numbers(labels, form, expected, metrics, tmp_path):
    task = own(path := write(tmp_path / "x.csv", *labels), label_type=form)
    assert (task.form, [m.name for m in task.metrics]) == (expected, metrics)
    assert form_of(dict.fromkeys(map(str, labels), "x"), form) == expected
    for split in ("train", "dev"):
        examples = task.read(path, split)
        assert [e.label for e in examples] == [
            expected.parse_label(str(labels[int(e.official_id)]), "") for e in examples
        ]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("x.csv", "q,a,y\n", ": contains no examples"),
        ("x.csv", "q,a,y\n1,2,0\n3,4,0\n", ", line 2: every label is '0'"),
        ("x.csv", "q,a,y\n1,2,0\n3,4,\n", ", line 3: column 'y' is empty; expected a label"),
        ("x.csv", "q,a,y\n1,2,0\n ,4,1\n", ", line 3: column 'q' is empty; expected a text"),
        ("x.csv", "q,a,y\n1,2,0.5\n3,4,nan\n", ", line 3: the label 'nan' stands for a missing"),
        ("x.csv", "q,a,y\n1,2,0.5\n3,4,<NA>\n", ", line 3: the label '<NA>' stands for"),
        # E7: none of these is guessed at
        ("x.jsonl", '{"q": ["1"], "a": "2", "y": 0}', ", line 1: field 'q' is ['1']; expected a"),
        ("x.json", '[{"q": "1", "a": "2", "y": true}]', ", entry 0: field 'y' is True; expected"),
        ("x.json", '[{"q": "1", "a": {}, "y": 1}]', ", entry 0: field 'a' is {}; expected"),
        ("x.json", '[{"q": "1", "a": "2", "y": NaN}]', ", entry 0: field 'y'"),
        ("x.json", '[{"q": "1", "a": "2", "y": {"is": 1}}]', ", entry 0: field 'y' is {"),
    ],
)
def test_faults_of_own_files(name: str, content: str, complaint: str, tmp_path: Path) -> None:
    path = put(tmp_path / name, content)
    told = homes.refused(lambda: own(path).read(path, "train"))
    assert told.startswith(f"{path}{complaint}")


# -- what is held out ------------------------------------------------------------------------------------------------
def photos(path: Path, count: int = 79, questions: int = 5) -> Path:
    """Every photo with the same questions in the same order, and a label by photo that its number gives away."""
    rows = [
        (f"photo {photo}: question {n}?", f"{photo:03d}.jpg", "yes" if photo % 2 else "no")
        for photo in range(count)
        for n in range(questions)
    ]
    return put(path, table(("q", "photo", "y"), *rows))


@pytest.mark.parametrize("option", [{"image": "photo"}, {"group": "photo"}])
def test_rows_of_one_image_or_group_are_on_one_side(option: dict[str, str], tmp_path: Path) -> None:
    path = photos(tmp_path / "x.csv")
    task = own(path, "q", **option)
    sides = {split: task.read(path, split) for split in ("train", "dev")}
    shown = {
        split: {e.text.partition(":")[0] for e in examples} for split, examples in sides.items()
    }
    assert not shown["train"] & shown["dev"]
    assert len(sides["train"]) + len(sides["dev"]) == 79 * 5
    assert 0.1 < len(sides["dev"]) / (79 * 5) < 0.3
    for examples in sides.values():
        assert {e.text[-2] for e in examples} == set("01234")  # every question is on both sides
    assert notes(path, "q", **option) == []


def test_a_group_may_be_a_column_of_the_text(tmp_path: Path) -> None:
    rows = [(f"premise {n // 3}", f"claim {n}", n % 2) for n in range(90)]
    path = put(tmp_path / "x.csv", table(("q", "a", "y"), *rows))
    told = notes(path)
    assert len(told) == 1
    assert "the first text of" in told[0]
    task = own(path, group="q")
    first = {split: {e.text for e in task.read(path, split)} for split in ("train", "dev")}
    assert not first["train"] & first["dev"]
    assert notes(path, group="q") == []


def test_appended_rows_move_no_others(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", *(n % 2 for n in range(60)))
    before = {e.official_id for e in own(path).read(path, "dev")}
    write(path, *(n % 2 for n in range(200)))
    after = {e.official_id for e in own(path).read(path, "dev")}
    assert before == {name for name in after if int(name) < 60}
    assert len(before) < len(after)


def test_equal_texts_are_on_one_side(tmp_path: Path) -> None:
    rows = [(f"text {n % 30}", n % 2) for n in range(120)]
    path = put(tmp_path / "x.csv", table(("q", "y"), *rows))
    texts = [{e.text for e in own(path, "q").read(path, split)} for split in ("train", "dev")]
    assert not texts[0] & texts[1]


@pytest.mark.parametrize(
    ("ways", "option"),
    [
        (("t{}", "t{} "), {"group": "g"}),
        (("{}.jpg", "./{}.jpg"), {"image": "g"}),
        (("{}.jpg", " {}.jpg "), {"image": "g"}),
    ],
)
def test_values_that_mean_the_same_are_one_group(ways, option, tmp_path: Path) -> None:
    rows = [(f"text {n}", ways[n % 2].format(n // 2), n % 2) for n in range(60)]
    path = put(tmp_path / "x.csv", table(("q", "g", "y"), *rows))
    dev = own(path, "q", **option).read(path, "dev")
    assert len(dev) == 2 * len({int(example.official_id) // 2 for example in dev})
    assert len({image for example in dev for image in example.images}) in {0, len(dev) // 2}


def test_a_few_texts_that_repeat_are_on_both_sides_and_told(tmp_path: Path) -> None:
    # without the photos' column, five questions must not make a dev set of one of them
    rows = [(f"question {n % 5}?", n % 2) for n in range(200)]
    path = put(tmp_path / "x.csv", table(("q", "y"), *rows))
    task = own(path, "q")
    for split in ("train", "dev"):
        assert len({e.text for e in task.read(path, split)}) == 5
    dev = task.read(path, "dev")
    assert 20 < len(dev) < 60
    assert notes(path, "q") == [
        f"{len(dev)} of {len(dev)} dev rows have texts that are also in train: "
        "scores include memorisation; see group and dev"
    ]
    before = {e.official_id for e in dev}
    put(path, table(("q", "y"), *rows, *rows))
    assert before == {
        e.official_id for e in own(path, "q").read(path, "dev") if int(e.official_id) < 200
    }


@pytest.mark.parametrize("count", range(2, 8))
def test_tiny_files_have_rows_on_both_sides(count: int, tmp_path: Path) -> None:
    for shift in range(20):
        rows = [(f"text {shift} {n}", n % 2) for n in range(count)]
        path = put(tmp_path / "x.csv", table(("q", "y"), *rows))
        task = own(path, "q")
        assert len(task.read(path, "train")) + len(task.read(path, "dev")) == count
    rows = [(f"text {n}", "g", n % 2) for n in range(count)]
    same = put(tmp_path / "x.csv", table(("q", "g", "y"), *rows))
    message = homes.refused(own(same, "q", group="g").read, same, "dev")
    assert message == f"{same}: all rows are in one group; pass a dev file"


def test_an_overlap_with_a_dev_file_is_told(tmp_path: Path) -> None:
    path = photos(tmp_path / "x.csv")
    rows = [("another question?", f"{n:03d}.jpg", "yes") for n in (77, 78, 79, 80)]
    held = put(tmp_path / "held.csv", table(("q", "photo", "y"), *rows))
    assert notes(path, "q", image="photo", dev=str(held)) == [
        "class 'no' has 200 rows in train and 0 in dev; check its spelling and the label column",
        "2 of 4 dev rows have an image that is also in train: "
        "scores include memorisation; see group and dev",
    ]
    rows = [("photo 3: question 2?", "", "no")]
    held = put(tmp_path / "held.csv", table(("q", "photo", "y"), *rows))
    assert "1 of 1 dev rows have texts that are also in train" in notes(path, "q", dev=str(held))[1]
    told = homes.refused(lambda: own(path, "q", dev=str(held), group="photo"))
    assert "group is for held-out rows" in told
    empty = put(tmp_path / "x.csv", table(("q", "g", "y"), ("a", "1", 0), ("b", " ", 1)))
    told = homes.refused(lambda: own(empty, "q", group="g"))
    assert told.endswith("line 3: column 'g' is empty; expected a group")


def test_classes_that_look_wrong_are_told(tmp_path: Path) -> None:
    labels = ["yes" if n % 2 else "no" for n in range(60)]
    assert notes(write(tmp_path / "x.csv", *labels)) == []
    path = write(tmp_path / "x.csv", "yse", "yes ", " no", "yes", *labels[4:])
    assert own(path).form == Classification(("no", "yes", "yse"))
    assert notes(path) == [
        "class 'yse' has 1 rows in train and 0 in dev; check its spelling and the label column"
    ]
    # free texts as labels: a line for each would bury the rest
    (note,) = notes(write(tmp_path / "x.csv", *labels, *(f"answer {n:02}" for n in range(30))))
    assert note.startswith("class 'answer 00' has ") and "(30 such)" in note


def test_many_whole_numbers_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", *range(21))
    (note,) = notes(path)
    assert note.startswith("the labels are 21 whole numbers, more than 20, so this is a regression")
    assert notes(path, label_type="regress") == []
    assert notes(write(tmp_path / "y.csv", *(n / 2 for n in range(21)))) == []


def test_classes_that_are_spelt_alike_are_told(tmp_path: Path) -> None:
    for labels, told in (
        (["Yes", "yes", "no"], "'Yes' and 'yes'"),
        (["caf\u00e9", "cafe\u0301"], r"'cafe\u0301' and 'caf\xe9'"),
        (["1", "1.0", "2"], "'1' and '1.0'"),
        (["01", "1", "2", "2.0", "3"], "'01' and '1'"),
    ):
        (note,) = notes(write(tmp_path / "x.csv", *labels * 20))
        assert note.startswith(f"classes {told} are the same number, or differ only in case")
        assert note.endswith("(2 such)") == ("2.0" in labels)
