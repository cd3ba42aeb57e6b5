"""SWAG and readability: what their files say, and what training sees of a choice."""

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import vcr_files
from tiny.homes import STEPS, put, refused, student, table
from tiny.tasks import COMMA, SWAG_HEAD, entailed, json_lines, swag_row, vqa_answers

from groundling.cli import main
from groundling.commands.data import PARTITION as partition
from groundling.commands.data import FewShotPartitionConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.tasks import Task
from groundling.tasks.splits import CATEGORIES, category, draw_partition, strata, with_extra_splits
from groundling.tasks.texts import READABILITY, REGULAR, SWAG_FORM
from groundling.tasks.vqa import VQA
from groundling.training.evaluation import evaluate

# -- SWAG ------------------------------------------------------------------------------------------------------------
LABELLED = [*SWAG_HEAD, "label"]


@pytest.fixture
def swag(tmp_path: Path) -> Path:
    for split, size in (("train", 12), ("val", 8)):
        put(tmp_path / f"{split}.csv", table(LABELLED, *(swag_row(n, n % 4) for n in range(size))))
    put(tmp_path / "test.csv", table(SWAG_HEAD, *(swag_row(n) for n in range(5))))
    return tmp_path


def test_swag_reads_its_regular_files(swag: Path) -> None:
    assert f'"{COMMA}"' in (swag / "val.csv").read_text()
    found = REGULAR.read(swag, "val")
    choices = ("He sings 3.", f"He {COMMA}", 'He says "no", twice.', "He waits.")
    text = "A dog runs 3."
    assert found[3] == Example("swag-val-3", text, label=3, choices=choices, official_id="3")
    assert [e.label for e in found] == [0, 1, 2, 3] * 2
    test = REGULAR.read(swag, "test")
    told = [(e.id, e.label, len(e.choices)) for e in test]
    assert told == [(f"swag-test-{n}", None, 4) for n in range(5)]
    sent = REGULAR.submission("test", [e.official_id for e in test[:2]], [3, 0])
    assert sent == "index\tprediction\n0\t3\n1\t0\n"
    assert (REGULAR.train, REGULAR.dev) == ("train", ("val",))
    assert resolve("tasks", Task, "swag") is REGULAR


GOOD = table(LABELLED, swag_row(0, 1))


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (GOOD + table(swag_row(1, 4)), ", line 3: label '4' is not one of 0, 1, 2, 3"),
        (table(SWAG_HEAD, swag_row(0)), ": no column 'label'; there are: "),
        (GOOD.replace('"', ""), ", line 2: 15 fields, expected 12"),
        (table(LABELLED), ": contains no examples"),
    ],
)
def test_faults_of_swag_name_file_and_line(content: str, complaint: str, tmp_path: Path) -> None:
    path = put(tmp_path / "train.csv", content)
    assert refused(REGULAR.read, tmp_path, "train").startswith(f"{path}{complaint}")


# -- readability -----------------------------------------------------------------------------------------------------
KAGGLE = ["id", "url_legal", "license", "excerpt", "target", "standard_error"]
CLEAR = ["ID", "Author", "Excerpt", "BT_easiness", "s.e."]
PASSAGE = 'The floor was white,\nnot "smooth", but rumpled.\n'


def test_readability_is_split_by_the_passages_id(tmp_path: Path) -> None:
    rows = [(f"c12a{n:05x}", "", "", f"{n}. {PASSAGE}", n / 100 - 3, 0.46) for n in range(1000)]
    put(tmp_path / "train.csv", table(KAGGLE, *rows))
    sides = {split: READABILITY.read(tmp_path, split) for split in ("train", "dev")}
    assert 160 < len(sides["dev"]) < 240
    ids = {split: {e.id.rsplit("-", 1)[1] for e in examples} for split, examples in sides.items()}
    assert len(ids["train"] | ids["dev"]) == len(sides["train"] + sides["dev"]) == 1000
    first = sides["train"][0]
    given = [(i, text, y) for i, _, _, text, y, _ in rows]
    assert (first.id.rsplit("-", 1)[1], first.text, first.label) in given
    put(tmp_path / "train.csv", table(KAGGLE, *rows[300:0:-1]))
    # Each stays on its side.
    assert ids["dev"] > {e.id.rsplit("-", 1)[1] for e in READABILITY.read(tmp_path, "dev")}
    assert [m.name for m in READABILITY.metrics if not m.higher_is_better] == ["rmse", "mse"]
    assert READABILITY.score([1.0, 2.0], [1.0, 4.0]) == {"rmse": pytest.approx(2**0.5), "mse": 2.0}


def test_the_clear_workbook_and_kaggles_test_file(tmp_path: Path) -> None:
    rows = [(400 + n, "Wells", PASSAGE, n / 10, 0.4) for n in range(30)]
    path = put(tmp_path / "any.csv", table(CLEAR, *rows))
    found = READABILITY.read(tmp_path, "train")
    assert READABILITY.read(path, "train") == found  # a file stands for itself
    labels = sorted(e.label for e in found + READABILITY.read(path, "dev"))
    assert labels == [n / 10 for n in range(30)]
    rows = [("c0f722661", "", "", PASSAGE), ("f0953f0a5", "", "", "A.")]
    put(tmp_path / "test.csv", table(KAGGLE[:4], *rows))
    test = READABILITY.read(tmp_path, "test")
    assert [(e.text, e.label) for e in test] == [(PASSAGE, None), ("A.", None)]
    officials = [e.official_id for e in test]
    assert officials == ["c0f722661", "f0953f0a5"]  # C4
    submission = READABILITY.submission("test", officials, np.array([-1.23456, 0.0]))
    assert submission == "id,target\nc0f722661,-1.235\nf0953f0a5,0.000\n"
    put(path, table(CLEAR, (1, "", PASSAGE, 0.1, 0), (2, "", " ", 0.2, 0)))
    assert refused(READABILITY.read, tmp_path, "train") == f"{path}, line 5: the passage is empty"
    put(path, table(CLEAR, *((n, "", "A.", "inf", 0) for n in range(20))))
    assert "label 'inf' is no number in" in refused(READABILITY.read, tmp_path, "train")


# -- choices ---------------------------------------------------------------------------------------------------------
def test_a_choice_is_a_row_and_an_example_one_label(swag: Path, student) -> None:
    model = student()
    choices = TextDataset(REGULAR.read(swag, "train"), TextRowEncoder(model.tokenizer, 64))
    batch = collate(choices.get([1, 5, 2]))
    assert (len(batch), batch.rows, batch.labels["label"].tolist()) == (3, 12, [1, 1, 2])
    for row, choice in enumerate(choices.examples[5].choices, 4):
        expected = model.tokenizer(choices.examples[5].text, choice)["input_ids"]
        assert batch.text.input_ids[row, batch.text.attention_mask[row]].tolist() == expected
    objective = SupervisedObjective(model.sizes, output_type=REGULAR.form).eval()
    encoded = model(batch)
    outputs = objective.outputs(encoded, batch)
    assert (outputs.shape, SWAG_FORM.head_width) == ((3, 4), 1)
    assert torch.equal(outputs.flatten(), objective.head.classify(encoded.pooler_output).flatten())
    summed = F.cross_entropy(outputs, torch.tensor([1, 1, 2]), reduction="sum")
    assert objective(encoded, batch)["task"].item() == pytest.approx(summed.item())
    assert objective.count(batch) == {"task": 3}
    found = evaluate(model, objective, REGULAR, choices, batch=5)
    # whatever stands beside it
    assert found.outputs[[1, 5, 2]] == pytest.approx(outputs.detach().numpy(), abs=1e-5)
    assert found.predictions.tolist() == found.outputs.argmax(1).tolist()
    assert found.labels.tolist() == [n % 4 for n in range(12)]
    assert found.metrics == {"accuracy": float((found.predictions == found.labels).mean())}


# -- few-shot partitions -----------------------------------------------------------------------------------------------
@pytest.fixture
def data(tmp_path: Path) -> Path:
    return vcr_files.folder(tmp_path / "vcr")


def drawn(out: Path, **settings: Any) -> dict[str, Any]:
    partition(FewShotPartitionConfig(**settings), out)
    content: dict[str, Any] = json.loads(out.read_text())
    return content


def refusal(**settings: Any) -> str:
    return refused(lambda: partition(FewShotPartitionConfig(**settings), "nowhere/p.json"))


# -- strata ----------------------------------------------------------------------------------------------------------
QUESTIONS = {
    "What would [0] do if [1] left ?": "hypothetical",
    "What might happen next ?": "hypothetical",
    "What happened before this ?": "temporal",
    "What will [0] do next ?": "temporal",
    "How is [0] feeling ?": "mental",
    "What is the relationship of [0] and [1] ?": "role",
    "What is [0] ' s occupation ?": "role",
    "Where are they ?": "scene",
    "What is [0] doing ?": "activity",
    "Why is [0] here ?": "explanation",
    "How did [0] get there ?": "explanation",
    "Is [0] tall ?": "unmatched",
    "Is [0] whyte ?": "unmatched",  # whole words
}


def test_categories_of_questions() -> None:
    for question, expected in QUESTIONS.items():
        assert category(vcr_files.tokens(question)) == expected, question
    assert {category(vcr_files.tokens(one)) for one in vcr_files.QUESTIONS} == set(CATEGORIES)


def test_strata_of_vqa(tmp_path: Path) -> None:
    folder = vqa_answers(tmp_path / "vqa", ("yes", "red", "blue", "yes"))
    task = VQA.with_answers_of(folder)
    assert strata(task, folder) == dict.fromkeys("0123", "all")
    types = strata(task, folder, "question-type")
    assert types == {"0": "is the", "1": "what color", "2": "is the", "3": "what color"}
    answers = strata(task, folder, "answer")
    assert answers == {"0": "yes", "1": "red", "2": "no answer in the map", "3": "yes"}
    assert "2" not in draw_partition(answers, per_stratum=9, seed=0, allow_fewer=True)
    with pytest.raises(InputError, match="vqa has no strata by category; there are: total"):
        strata(task, folder, "category")


def test_an_extra_split_lists_the_same_answers(tmp_path: Path) -> None:
    folder, other = (vqa_answers(tmp_path / name, ("yes", "red")) for name in ("vqa", "other"))
    task = VQA.with_answers_of(folder)
    assert with_extra_splits(task, [f"other={other}"]).dev == ("val", "other")
    put(other / "answers_vqa.txt", "no\nyes\nred\n")
    with pytest.raises(InputError, match="its answers and those of data differ, or their order"):
        with_extra_splits(task, [f"other={other}"])


def test_strata_of_classes(tmp_path: Path) -> None:
    labels = ("entailment", "neutral", "contradiction")
    rows = [entailed(f"p{n}", labels[n % 3], Flickr30K_ID="1") for n in range(12)]
    put(tmp_path / "ve/snli_ve_train.jsonl", json_lines(*rows))
    content = drawn(tmp_path / "p.json", task="snli-ve", data=str(tmp_path / "ve"), per_stratum=2)
    assert content["stratify_by"] == "label"
    assert content["strata"] == {name: {"drawn": 2, "examples": 4} for name in labels}
    assert len(content["ids"]) == 6


# -- drawing ---------------------------------------------------------------------------------------------------------
GOLDEN = ["train-15", "train-18", "train-2", "train-20", "train-3", "train-5", "train-7"]


def test_the_bytes_of_a_manifest(tmp_path: Path, data: Path) -> None:
    """Whoever changes them makes everybody's partitions other ones."""
    out = tmp_path / "shots.json"
    partition(FewShotPartitionConfig(task="vcr/answer", data=str(data), per_stratum=1, seed=7), out)
    content = json.loads(out.read_text())
    assert content["ids"] == GOLDEN
    assert content["sha256"] == sha256("".join(f"{name}\n" for name in GOLDEN).encode()).hexdigest()
    of_file = sha256((data / "train.jsonl").read_bytes()).hexdigest()
    assert content["files"] == {"train.jsonl": of_file}
    digest = sha256(out.read_bytes()).hexdigest()
    assert digest == "5d6b89fc6bbfa38f548a7b4ee0f5cd9755ed73c26514cbcd922fb63da24c647c"


def test_the_order_of_the_file_does_not_matter(tmp_path: Path, data: Path) -> None:
    of = strata(resolve("tasks", Task, "vcr/answer"), data)
    backwards = dict(reversed(list(of.items())))
    assert draw_partition(of, 2, seed=3) == draw_partition(backwards, 2, seed=3)
    assert draw_partition(of, 2, seed=3) != draw_partition(of, 2, seed=4)
    # what is added elsewhere, or to another stratum, changes nothing here
    more = {**of, "train-99": "unmatched", "train-98": "another"}
    assert {*draw_partition(of, 2, seed=3)} <= {*draw_partition(more, 2, 3, allow_fewer=True)}
    # and fewer are among more
    one, two, three = (set(draw_partition(of, count, seed=0)) for count in (1, 2, 3))
    assert one < two < three


def test_every_example_is_as_likely(data: Path) -> None:
    of = {f"x{number}": "all" for number in range(10)}
    times = dict.fromkeys(of, 0)
    for seed in range(1000):
        for name in draw_partition(of, 3, seed):
            times[name] += 1
    assert all(240 < count < 360 for count in times.values()), times  # 300, sd 14.5


def test_a_short_stratum(data: Path) -> None:
    told = refusal(task="vcr/answer", data=str(data), per_stratum=4)
    assert told == "stratum 'activity': 3 examples; set allow_fewer"
    with pytest.raises(InputError, match="none of 1 examples can be drawn"):
        draw_partition({"train-0": "unmatched"}, 1, seed=0)
    told = refusal(task="vcr/answer", data=str(data), per_stratum=-1)
    assert told == "per_stratum = -1: expected greater than or equal to 0"
    assert refusal(task="vcr/answer", data=str(data)) == "data partition needs per_stratum"


def test_the_report(tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (data / "train.jsonl").open("a") as file:
        file.write(json.dumps(vcr_files.row(99, "Is it ?", split="train")) + "\n")
    flags = ["--task", "vcr/rationale", "--data", str(data), "--per-stratum", "9", "--allow-fewer"]
    assert main(["data", "partition", *flags, "--out", str(tmp_path / "p.json")]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert first.endswith("p.json: 21 of 22 examples by category")
    assert "  explanation: 3 (13.6%), 3 drawn" in rest
    assert "  unmatched: 1 (4.5%), never drawn" in rest


# -- training --------------------------------------------------------------------------------------------------------
def test_damage(tmp_path: Path, data: Path) -> None:
    shots = tmp_path / "shots.json"
    whole = drawn(shots, task="vcr/answer", data=str(data), per_stratum=1)
    model = str(student(tmp_path / "student"))
    config = FinetuneConfig(model, "vcr/answer", str(data), max_length=32, partition=str(shots))

    def told(content: dict[str, Any]) -> str:
        shots.write_text(json.dumps(content))
        return refused(finetune, config, STEPS, tmp_path / "out")

    damaged = f"{shots}: not a partition, or damaged or edited"
    assert told(whole | {"ids": ["train-999", *whole["ids"][1:]]}) == damaged
    assert told(whole | {"ids": ["x", *whole["ids"]]}) == damaged
    elsewhere = {"ids": ["train-999"], "sha256": sha256(b"train-999\n").hexdigest()}
    unknown = f"{shots}: train-999 is not among the training examples of vcr/answer"
    assert told(whole | elsewhere) == unknown
    assert f"{shots}: cannot be read (KeyError: 'format')" in told({"ids": []})
    other = f"{shots}: drawn from other files than those in {data}"
    assert told(whole | {"files": {}}) == other
    with (data / "train.jsonl").open("a") as file:
        file.write(json.dumps(vcr_files.row(99, split="train")) + "\n")
    assert told(whole) == other
