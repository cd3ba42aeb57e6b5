"""A task made of the user's own file: every kind of file, of label and of fault, and a whole run."""

import json
from pathlib import Path

import homes
import pytest
import toys
from homes import STEPS, put, table

from groundling.batch import Example
from groundling.config import FinetuneConfig
from groundling.errors import InputError
from groundling.forms import Classify, Form, Regress
from groundling.recipes.finetune import finetune
from groundling.tasks import Task
from groundling.tasks.table import form_of, own_task


def own(path: Path, text: str = "q,a", **options: str) -> Task:
    return own_task(FinetuneConfig(data=str(path), text=text, label="y", **options))


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
    assert (task.name, task.form, task.dev) == ("table/mine", Classify(("0", "1")), ("dev",))
    assert [m.name for m in task.metrics] == ["accuracy", "matthews", "f1"]
    assert [e.id for e in task.read(path, "dev")] == [f"mine-dev-{n}" for n in (4, 9, 14, 19)]
    assert len(task.read(path, "train")) == 16
    assert task.read(path, "dev")[1] == Example("mine-dev-9", "Is it 9?", "Yes, 9.", 1)
    assert own(path, text="a").read(path, "dev")[1] == Example("mine-dev-9", "Yes, 9.", None, 1)
    apart = own(path, dev=str(write(tmp_path / f"held{suffix}", 1, 0, 1)))
    assert [len(apart.read(path, split)) for split in ("train", "dev")] == [20, 3]
    assert [e.id for e in apart.read(path, "dev")] == [f"held-dev-{n}" for n in range(3)]
    write(tmp_path / f"held{suffix}", 1, "maybe")
    with pytest.raises(InputError, match=rf"held{suffix}, \w+ \d: label 'maybe' is none of 0, 1"):
        apart.read(path, "dev")


CLASSES = Classify(("0", "1", "2", "3", "4"))


@pytest.mark.parametrize(
    ("labels", "form", "expected", "metrics"),
    [
        (["no", "yes", "maybe"] * 7, "auto", Classify(("maybe", "no", "yes")), ["accuracy"]),
        ([n % 5 for n in range(30)], "auto", CLASSES, ["accuracy"]),
        ([n % 5 for n in range(30)], "regress", Regress(), ["pearson", "spearman", "rmse"]),
        (
            list(range(21)),
            "auto",
            Regress(),
            ["pearson", "spearman", "rmse"],
        ),  # more whole numbers than classes
        ([n % 2 / 2 for n in range(30)], "auto", Regress(), ["pearson", "spearman", "rmse"]),
        (
            [n % 2 / 2 for n in range(30)],
            "classify",
            Classify(("0.0", "0.5")),
            ["accuracy", "matthews", "f1"],
        ),
    ],
)
def test_labels_are_classes_or_numbers(
    labels: list[object], form: str, expected: Form, metrics: list[str], tmp_path: Path
) -> None:
    task = own(path := write(tmp_path / "x.csv", *labels), form=form)
    assert (task.form, [m.name for m in task.metrics]) == (expected, metrics)
    assert form_of([("x", str(label)) for label in labels], form) == expected
    assert [expected.label(str(y), "") for y in labels[4::5]] == [
        e.label for e in task.read(path, "dev")
    ]


@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("x.txt", "q,a,y\n1,2,3\n", ": expected a .csv, .tsv, .json or .jsonl file"),
        ("x.csv", "q,y\n1,2\n", ", line 1: no column 'a'"),
        ("x.csv", "q,a,y\n", ": holds no examples"),
        (
            "x.csv",
            "q,a,y\n1,2,0\n3,4,0\n",
            ", line 2: every label is '0'; expected at least two classes",
        ),
        ("x.csv", "q,a,y\n1,2,0\n3,4,\n", ", line 3: column 'y' is empty; expected a label"),
        ("x.csv", "q,a,y\n1,2,0\n ,4,1\n", ", line 3: column 'q' is empty; expected a text"),
        ("x.csv", "q,a,y\n1,2,0.5\n3,4,nan\n", ", line 3: label 'nan' is not a number"),
        ("x.json", '{"q": 1}', ": expected a list of objects"),
        ("x.json", '[{"q": "1", "a": "2", "y": 0}, {"q": "1", "y": 0}]', ", entry 1: no field 'a'"),
        ("x.jsonl", '{"q": "1", "a": "2", "y": null}', ", line 1: no field 'y'"),
        ("x.jsonl", '{"q": "1", "a": "2", "y": 0}\n{"q"', ", line 2: not valid JSON"),
    ],
)
def test_faults_of_own_files(name: str, content: str, complaint: str, tmp_path: Path) -> None:
    path = put(tmp_path / name, content)
    with pytest.raises(InputError) as caught:
        own(path).read(path, "train")
    assert str(caught.value).startswith(f"{path}{complaint}")
    assert "\n" not in str(caught.value)


def test_fine_tuning_on_an_own_file(tmp_path: Path) -> None:
    encoder, out = homes.student(tmp_path / "encoder"), tmp_path / "out"
    rows = [(text, n % 3 / 2) for n, text in enumerate(toys.sentences()[:20])]
    mine, held = (put(tmp_path / f"{n}.csv", table(("q", "y"), *rows[:n])) for n in (20, 6))
    config = FinetuneConfig(model=str(encoder), data=str(mine), text="q", label="y", dev=str(held))
    result = finetune(config, STEPS, out)
    assert (result["task"], result["headline"], result["median"]["dev"]["rmse"] > 0) == (
        "table/20",
        "pearson",
        True,
    )
    lines = homes.answers(out / "seed-0" / "predictions_dev.jsonl")
    assert [line["label"] for line in lines] == [n % 3 / 2 for n in range(6)]
    put(held, table(("q", "y"), *rows[:7]))
    with pytest.raises(InputError, match=r"inputs\.dev\.sha256"):
        finetune(config, STEPS, out)
