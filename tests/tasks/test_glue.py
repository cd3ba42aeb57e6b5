"""GLUE: every task as its official files, the hub and the server have it."""

import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
from tiny.homes import refused

from groundling.studies.worlds.tasks import TRUTH
from groundling.tasks import Task
from groundling.tasks.texts import (
    COLA,
    MNLI,
    MRPC,
    QNLI,
    QQP,
    RTE,
    SST2,
    STSB,
    TASKS,
    WNLI,
    from_hub,
)

MNLI_HEAD = "index promptID pairID genre sentence1_binary_parse sentence2_binary_parse sentence1_parse sentence2_parse"
PARSES = ("7", "7n", "fiction", "( a )", "( b )", "(ROOT a)", "(ROOT b)")


def table(*rows: tuple[str, ...], bom: bool = False) -> bytes:
    return ("\ufeff" * bom + "".join("\t".join(row) + "\n" for row in rows)).encode()


def mnli(labels: int, *rows: tuple[str, ...]) -> bytes:
    """Rows (sentence, sentence, gold label) with `labels` annotators' labels in between, all of them neutral."""
    votes = [f"label{n + 1}" for n in range(labels)]
    gold = ["gold_label"] if labels else []
    head = (*MNLI_HEAD.split(), "sentence1", "sentence2", *votes, *gold)
    said = ["neutral"] * labels
    body = [(str(n), *PARSES, *row[:2], *said, *row[2:]) for n, row in enumerate(rows)]
    return table(head, *body)


NLI = ("index", "sentence1", "sentence2", "label")
MRPC_HEAD = ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String")
STSB_COLUMNS = "index genre filename year old_index source1 source2 sentence1 sentence2 score"
STSB_HEAD = tuple(STSB_COLUMNS.split())
QNLI_HEAD = ("index", "question", "sentence", "label")
QQP_HEAD = ("id", "qid1", "qid2", "question1", "question2", "is_duplicate")
ORIGIN = ("main-captions", "MSRvid", "2012test", "0001", "none", "none")
DEV = {
    RTE.name: table(
        NLI,
        ("0", "The ferry left at noon.", "A boat left.", "entailment"),
        ("1", '"Rain," he said.', "It was dry.", "not_entailment"),
        ("2", "Ann owns two mills.", "Ann owns a mill.", "entailment"),
    ),
    MRPC.name: table(
        MRPC_HEAD,
        ("1", "11", "12", '" We lost , " she said .', "She said they had lost ."),
        ("0", "13", "14", "The shop opened in May .", "It 's 5 \" wide ."),
        ("1", "15", "16", "Prices rose .", "Prices went up ."),
        bom=True,
    ),
    STSB.name: table(
        STSB_HEAD,
        ("0", *ORIGIN, "A dog runs.", "A dog is running.", "5.000"),
        ("1", *ORIGIN, "A man eats.", "A cat sleeps.", "0.0"),
        ("2", *ORIGIN, "A girl sings.", "A woman sings.", "3.8"),
    ),
    COLA.name: table(
        ("gj04", "1", "", "The kettle sang itself hoarse."),
        ("ks08", "0", "*", "Sang kettle the."),
        ("ks08", "1", "", '"Sit," said Tom.'),
    ).rstrip(b"\n"),
    SST2.name: b"sentence\tlabel\na dull film \t0\nwarm and funny \t1\n'' great '' \t1\n",
    QNLI.name: table(
        QNLI_HEAD,
        ("0", "Who built the mill?", "The mill was built by monks.", "entailment"),
        ("1", "When did it burn?", '"It stands by the river.', "not_entailment"),
    ),
    QQP.name: table(
        QQP_HEAD,
        ("133273", "9", "10", "How do I bake bread?", "How is bread baked?", "1"),
        ("402555", "11", "12", "Why is the sky", "blue"),
        ("360472", "13", "14", "What is tea?", "Who is Tea?", "0"),
    ),
    MNLI.name: mnli(
        5,
        ("You can see the sea.", "The sea is near.", "neutral"),
        ("He never came.", "He came.", "contradiction"),
        ("It was cold and wet.", "It was cold.", "entailment"),
    ),
    WNLI.name: table(
        NLI,
        ("0", "The cup fell off the tray as it shook.", "The tray shook.", "1"),
        ("1", "A.", "B.", "0"),
    ),
}
"""The first dev split of every task, as its official file has it."""


BY_NAME = {task.name: task for task in TASKS}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, content in DEV.items():
        write(tmp_path, BY_NAME[name], BY_NAME[name].dev[0], content)
    return tmp_path


def write(root: Path, task: Task, split: str, content: bytes) -> Path:
    path = root / task.read.folder / f"{split}.tsv"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return path


BOTH = ["accuracy", "f1"]
OFFICIAL = [
    # labels of the dev split, as on the hub; metrics, as XDBERT reports them; predictions, as the server spells them
    (RTE, [0, 1, 0], ["accuracy"], [1, 0], ["not_entailment", "entailment"]),
    (MRPC, [1, 0, 1], BOTH[::-1], [1, 1], ["1", "1"]),
    (STSB, [5.0, 0.0, 3.8], ["pearson", "spearman"], [3.14159, 0.0], ["3.142", "0.000"]),
    (COLA, [1, 0, 1], ["matthews"], [1, 0], ["1", "0"]),
    (SST2, [0, 1, 1], ["accuracy"], [0.0, 1.0], ["0", "1"]),
    (QNLI, [0, 1], ["accuracy"], [0, 1], ["entailment", "not_entailment"]),
    (QQP, [1, 0], ["mean of accuracy and f1", *BOTH], [0, 1], ["0", "1"]),
    (MNLI, [1, 2, 0], ["accuracy"], [2, 1], ["contradiction", "neutral"]),
    (WNLI, [1, 0], ["accuracy"], [1, 0], ["1", "0"]),
]


@pytest.mark.parametrize("official", OFFICIAL, ids=lambda given: given[0].name)
def test_labels_metrics_and_the_servers_file(official, root: Path) -> None:
    task, labels, metrics, predictions, spelt = official
    examples = task.read(root, task.dev[0])
    assert [e.label for e in examples] == labels
    short = task.name.removeprefix("glue/")
    assert [e.id for e in examples] == [f"{short}-{task.dev[0]}-{n}" for n in range(len(labels))]
    assert all((e.text_pair is None) == (task in (COLA, SST2)) for e in examples)
    assert [m.name for m in task.metrics] == metrics
    for split in task.test:
        text = task.submission(split, ["0", "17"], np.array(predictions))
        assert text == f"index\tprediction\n0\t{spelt[0]}\n17\t{spelt[1]}\n"
    with pytest.raises(ValueError, match="shorter"):
        task.submission(split, ["0", "17"], predictions[:1])


def test_every_server_file_has_its_official_name() -> None:
    names = {file.removesuffix(".tsv") for task in TASKS for file in task.test.values()}
    assert names == set(
        ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI-m", "MNLI-mm", "QNLI", "RTE", "WNLI"]
    )


def test_cola_has_a_header_only_in_test(root: Path) -> None:
    assert COLA.read(root, "dev")[0].text == "The kettle sang itself hoarse."
    write(root, COLA, "test", b"index\tsentence\n0\tIt rained.\n1\tRained it.\n")
    found = [(e.id, e.text, e.label) for e in COLA.read(root, "test")]
    assert found == [("cola-test-0", "It rained.", None), ("cola-test-1", "Rained it.", None)]


def test_mnli_finds_its_label_by_name(root: Path) -> None:
    rows = ("It hailed.", "It rained.", "contradiction"), ("Two men sat.", "Men sat.", "entailment")
    train, dev = mnli(1, *rows), mnli(5, *rows)
    assert [len(content.split(b"\n")[0].split(b"\t")) for content in (train, dev)] == [12, 16]
    write(root, MNLI, "train", train)
    write(root, MNLI, "dev_mismatched", dev)
    assert MNLI.dev == ("dev_matched", "dev_mismatched")
    for split in ("train", "dev_mismatched"):
        found = [(e.text, e.text_pair, e.label) for e in MNLI.read(root, split)]
        assert found == [("It hailed.", "It rained.", 2), ("Two men sat.", "Men sat.", 0)]
    write(root, MNLI, "test_matched", mnli(0, ("A bell rang.", "It was loud.")))
    assert MNLI.read(root, "test_matched")[0].label is None


STSB_TWO = ("0", *ORIGIN, "A.", "B.", "5"), ("1", *ORIGIN, "C.", "D.")
RTE_ROW = ("0", "A.", "B.", "entailment")
LABEL = ", line 3: label 'neutral' is not one of entailment, not_entailment"
SCORED = [table(STSB_HEAD, STSB_TWO[0], (*STSB_TWO[1], one)) for one in ("5.001", "nan", "five")]
FAULTS = [
    *((STSB, content, ", line 3: label ") for content in SCORED),
    (STSB, table(STSB_HEAD, (*STSB_TWO[1], "")), ", line 2: label "),
    (RTE, table(NLI, RTE_ROW, ("1", "C.", "D.", "neutral")), LABEL),
    (COLA, table(("gj04", "2", "", "It rained.")), ", line 1: label '2'"),
    (QNLI, table(QNLI_HEAD, ("0", "Who?"), ("1", "A", "B", "C")), ", line 2: 2 fields, expected 4"),
    (MRPC, table(NLI, RTE_ROW), ": no column '#1 String'; there are: index, sentence1"),
    (RTE, table(NLI), "contains no examples"),
]


@pytest.mark.parametrize(("task", "content", "complaint"), FAULTS)
def test_a_fault_names_file_and_line(task, content, complaint, root):
    path = write(root, task, "train", content)
    message = refused(task.read, root, "train")
    assert message.startswith(str(path)) and complaint in message


def test_qqp_leaves_broken_rows_out(root: Path) -> None:
    assert [e.text for e in QQP.read(root, "dev")] == ["How do I bake bread?", "What is tea?"]
    write(root, QQP, "test", b"id\tquestion1\tquestion2\n0\tWhy?\tHow?\n1\tWho\n2\tA?\tB?\n")
    assert [e.id for e in QQP.read(root, "test")] == ["qqp-test-0", "qqp-test-2"]


def test_only_a_newline_ends_a_row(root: Path) -> None:
    text = "It\u2028rained.\x85It\x0bpoured.\x1cNow."
    rows = ("0", text, "It was wet.", "entailment"), ("1", "A.", "B.", "not_entailment")
    write(root, RTE, "train", table(NLI, *rows))
    assert [(e.text, e.label) for e in RTE.read(root, "train")] == [(text, 0), ("A.", 1)]


def test_submission_answers_by_the_test_files_own_index(root: Path) -> None:
    write(root, RTE, "test", table(NLI[:3], ("40", "A.", "B."), ("7", "C.", "D.")))
    examples = RTE.read(root, "test")
    assert [e.label for e in examples] == [None, None]
    sent = RTE.submission("test", [e.official_id for e in examples], [0, 1])
    assert sent == "index\tprediction\n40\tentailment\n7\tnot_entailment\n"
    message = refused(MNLI.submission, "dev_matched", [], [])
    assert message.startswith(
        "glue/mnli: 'dev_matched' has no server file; there are: test_matched"
    )


HUB = {"glue/mrpc": "mrpc", "glue/sts-b": "stsb", "glue/cola": "cola", "glue/sst-2": "sst2"}
FIELDS = {
    **dict.fromkeys((RTE.name, MRPC.name, STSB.name, WNLI.name), ("sentence1", "sentence2")),
    **dict.fromkeys((COLA.name, SST2.name), ("sentence",)),
    QNLI.name: ("question", "sentence"),
    QQP.name: ("question1", "question2"),
    MNLI.name: ("premise", "hypothesis"),
}


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_the_hub_gives_the_same_examples(task, root, monkeypatch):
    expected = task.read(root, task.dev[0])
    calls = []

    def load(*args: str, split: str) -> list[dict]:
        calls.append((*args, split))
        rows = []
        for number, e in enumerate(expected):
            row = dict(zip(FIELDS[task.name], (e.text, e.text_pair), strict=False))
            label = np.float32(e.label).item() if task.name == STSB.name else e.label
            rows.append(row | {"label": label, "idx": 900 + number})
        return rows

    monkeypatch.setattr(datasets, "load_dataset", load)
    assert from_hub(task, task.dev[0]) == expected
    config = HUB.get(task.name, task.name.removeprefix("glue/"))
    assert calls == [("nyu-mll/glue", config, task.dev[0].replace("dev", "validation"))]
    assert {e.label for e in from_hub(task, next(iter(task.test)))} == {None}


def test_no_network_no_library_and_no_glue_task_are_one_line(monkeypatch):
    def offline(*_: str, split: str) -> None:
        raise ConnectionError("Couldn't reach the Hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", offline)
    assert refused(from_hub, RTE, "train") == (
        "glue/rte: train cannot be read from the hub (ConnectionError: Couldn't reach the Hub second line); pip "
        "install 'groundling[hub]', or pass data=FOLDER"
    )
    assert "world/truth: only GLUE tasks" in refused(from_hub, TRUTH, "train")
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert "pip install 'groundling[hub]'" in refused(from_hub, RTE, "train")
