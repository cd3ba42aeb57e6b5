"""Few-shot partitions: strata, bytes that anybody reproduces, and what training takes of them."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from tiny import vcr_files
from tiny.homes import STEPS, put, refused, student
from tiny.tasks import entailed, json_lines, vqa_answers

from groundling.cli import main
from groundling.commands.data import PARTITION as partition
from groundling.commands.data import FewShotPartitionConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.tasks import Task
from groundling.tasks.splits import CATEGORIES, category, draw_partition, strata, with_extra_splits
from groundling.tasks.vqa import VQA


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
