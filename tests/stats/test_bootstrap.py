"""The bootstrap: what is drawn adds up, and examples that share an image or a text are drawn together."""

from __future__ import annotations

import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import toys
from tiny.results import both, judge_folders, write_runs

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.core.rng import generator
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.stats import (
    DRAWS,
    bootstrap_sums,
    derangement,
    draw_item_counts,
    draw_resample,
    interval,
)
from groundling.stats.verdict import MIN_GROUPS, judge
from groundling.stats.verdict_report import collect_runs, read_seed
from groundling.tasks.texts import RTE
from groundling.training.evaluation import evaluate, group_examples

ROOT = Path(__file__).parents[2]


def test_the_widest_interval_counts() -> None:
    """All examples of a group are answered alike, and seeds hardly differ: the error doubles with groups of four."""
    control, other = both(0.02, examples=400, seed_sd=0.0, shared=0.5, own=0.5)
    alike = np.arange(400) // 4
    for runs in (control, other):
        runs.predictions[:] = runs.predictions[:, alike * 4]
    single = judge(control, other, ACCURACY)
    assert single.resampled == "example"
    grouped = judge(replace(control, groups={"image": alike}), other, ACCURACY)
    assert grouped.resampled == "image" and grouped.as_json()["resampled"] == "image"
    assert grouped.error == pytest.approx(2 * single.error, rel=0.15)
    assert grouped.difference == single.difference
    of_both = replace(other, groups={"text": np.arange(400) // 2, "image": alike})
    assert judge(control, of_both, ACCURACY).resampled == "image"


def test_few_groups_and_groups_of_one_are_not_drawn() -> None:
    control, other = both(0.02, examples=200)
    for groups in (np.arange(200) % (MIN_GROUPS - 1), np.arange(200)):
        verdict = judge(replace(control, groups={"image": groups}), other, ACCURACY, draws=50)
        assert verdict.resampled == "example"


def test_false_alarms_where_models_differ_by_group() -> None:
    """The simulation of docs/results/04_verdict_errors.md, with fewer comparisons."""
    script = runpy.run_path(str(ROOT / "benchmarks/verdict_groups.py"))
    namespace = script["simulate"].__globals__
    namespace.update(TRIALS=200, EXAMPLES=400, DRAWS=200)
    rng = generator("test groups")
    right = script["simulate"](script["Null"](4, 0.0, 0.3), rng)
    (by_example, _), (by_group, _) = (script["excludes_zero"](right, size, rng) for size in (1, 4))
    assert by_group.mean() <= 0.08 < by_example.mean()


# -- files -------------------------------------------------------------------------------------------------------------


def test_groups_of_examples() -> None:
    one = Example("a", "what is it ?", choices=("x", "y"), images=("1",))
    other = replace(one, id="b", images=("2",))
    assert group_examples([one, other]).keys() == {"text"}
    third = replace(one, id="c", choices=("x", "z"))
    found = group_examples([one, other, third])
    assert [len(set(names)) for names in (found["image"], found["text"])] == [2, 2]
    assert found["image"][0] == found["image"][2] != found["image"][1]
    assert group_examples([one, replace(third, images=())]) == {}
    assert group_examples([]) == {}


def test_an_evaluation_writes_groups_and_a_verdict_reads_them(tmp_path: Path) -> None:
    words = toys.bert_words()
    model = TextEncoder(toys.bert(len(words)), words)
    task: Any = RTE
    examples = toys.examples(8)
    examples[1::2] = [replace(e, text="a dog .", text_pair=e.text) for e in examples[1::2]]
    objective = SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))
    found = evaluate(model, objective, task, TextDataset(examples, TextRowEncoder(words, 40)))
    found.write(tmp_path / "predictions.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "predictions.jsonl").read_text().splitlines()]
    assert all(row["groups"].keys() == {"text"} for row in rows)
    groups = read_seed(tmp_path / "predictions.jsonl", ACCURACY).groups["text"]
    assert len(set(groups[1::2])) == 1 and len(set(groups)) == len({e.text for e in examples})


def grouped_runs(folder: Path, names: list[object]) -> Path:
    """Runs whose prediction files name groups."""
    control, _ = both(0.0, examples=len(names))
    write_runs(folder, control)
    for path in folder.rglob("predictions_dev.jsonl"):
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        for line, name in zip(lines, names, strict=True):
            if name is not None:
                line["groups"] = {"image": name}
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def test_a_report_names_what_was_drawn(tmp_path: Path) -> None:
    names = [str(number // 4) for number in range(120)]
    groups = {name: grouped_runs(tmp_path / name, names) for name in ("a", "b")}
    (runs, _), *_ = collect_runs("a", tmp_path / "a").values()
    expected = np.unique(names, return_inverse=True)[1]
    assert runs.groups["image"].tolist() == expected.tolist()
    result = judge_folders(groups, tmp_path / "out", log=lambda line: None)
    assert result["verdicts"][0]["resampled"] in ("example", "image")
    page = (tmp_path / "out" / "verdict.html").read_text()
    assert "resampled" in page and "whichever makes the interval widest" in page


def test_damaged_groups_are_named(tmp_path: Path) -> None:
    folder = grouped_runs(tmp_path / "a", ["a", None])
    with pytest.raises(InputError, match=r"predictions_dev.jsonl: labels or groups differ in kind"):
        collect_runs("a", folder)


# -- resampling ------------------------------------------------------------------------------------------------------


def rng(name: str = "test") -> np.random.Generator:
    return generator(0, name)


def test_as_many_are_drawn_as_there_are() -> None:
    ones = np.ones((7, 1))
    assert (bootstrap_sums(ones, rng()) == 7).all()
    assert bootstrap_sums(ones, rng(), 150).shape == (150, 1)
    assert (bootstrap_sums(ones[:3], rng(), counts=np.array([4, 2, 1])) == 7).all()
    assert (draw_item_counts(7, 30, rng()).sum(1) == 7).all()
    assert set(draw_resample(np.arange(7), rng())) <= set(range(7))


def test_each_thing_is_drawn_once_on_average() -> None:
    for drawn in (bootstrap_sums(np.eye(11), rng()), draw_item_counts(11, DRAWS, rng())):
        np.testing.assert_allclose(drawn.mean(0), 1, atol=0.1)
    often = np.array([8, 3])
    found = bootstrap_sums(np.eye(2), rng(), counts=often)
    np.testing.assert_allclose(found.mean(0), often, atol=0.1)


def test_an_interval_holds_95_of_100_draws() -> None:
    low, high = interval(np.arange(1000.0))
    assert (low, high) == (24.975, 974.025)
    assert interval(np.zeros((10, 4))).shape == (2, 4)


def test_a_derangement_is_one_cycle_without_a_fixed_point() -> None:
    for count in (2, 3, 40):
        moved = derangement(count, rng())
        place, seen = 0, []
        for _ in range(count):
            place = int(moved[place])
            seen.append(place)
        assert sorted(seen) == list(range(count))
    assert derangement(40, rng()).tolist() != derangement(40, rng("other")).tolist()
