"""The verdict engine and its bootstrap: every statistic against an independent one, its calibration, and bad runs."""

from __future__ import annotations

import itertools
import json
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tiny import homes, toys
from tiny.homes import put
from tiny.results import both, judge_folders, write_runs
from verdict_power import power

from groundling.cli import main
from groundling.command_line.names import published_scores as reported
from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.metrics import (
    ACCURACY,
    MATTHEWS,
    METRICS,
    PEARSON,
    REGION_ACCURACY,
    RMSE,
    SCORE,
    SPEARMAN,
)
from groundling.core.output_types import Classification
from groundling.core.resampling import (
    DRAWS,
    bootstrap_sums,
    derangement,
    draw_item_counts,
    draw_resample,
    interval,
)
from groundling.core.rng import generator
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.runs.folder import write_json
from groundling.runs.report import ForestRow, forest_plot
from groundling.stats.verdict import (
    ALPHA,
    MIN_GROUPS,
    SeedRuns,
    bootstrap,
    decide,
    few_seeds_note,
    holm,
    judge,
    permutation,
    seeds_needed,
)
from groundling.stats.verdict_report import collect_runs, read_seed
from groundling.studies.clip_td.combined_runs import finished_seeds
from groundling.tasks.texts import RTE
from groundling.training.evaluation import evaluate, group_examples


def runs(
    name: str, predictions: object, labels: object, seeds: tuple[int, ...] = (), task: str = "toy"
) -> SeedRuns:
    values, truth = np.asarray(predictions, float), np.asarray(labels, float)
    ids = tuple(f"e{i}" for i in range(len(truth)))
    return SeedRuns(name, task, seeds or tuple(range(len(values))), ids, truth, values)


# -- the parts -------------------------------------------------------------------------------------------------------
def test_permutation_is_scipys_exact_test() -> None:
    rng = np.random.default_rng(0)
    for sizes in ((5, 5), (3, 4), (2, 6)):
        a, b = rng.normal(0, 1, sizes[0]), rng.normal(1, 1, sizes[1])
        gap = lambda x, y: x.mean() - y.mean()  # noqa: E731
        theirs = stats.permutation_test((b, a), gap, n_resamples=np.inf)
        p, smallest = permutation(a, b)
        every = len(list(itertools.combinations(range(sum(sizes)), sizes[0])))
        assert smallest == (2 if sizes[0] == sizes[1] else 1) / every
        # SciPy doubles the smaller tail; for equal sizes the distribution is symmetric and both agree.
        if sizes[0] == sizes[1]:
            assert p == pytest.approx(theirs.pvalue)
        assert smallest <= p <= 1


def test_holm_against_a_plain_restatement() -> None:
    values = [0.01, 0.04, 0.03, float("nan"), 0.5]
    found = holm(values)
    assert found[:3] == pytest.approx([0.04, 0.09, 0.09])
    assert np.isnan(found[3])
    assert found[4] == 0.5


def test_accumulated_wins_are_those_of_common_seeds() -> None:
    a = runs("a", [[0, 0, 1], [0, 1, 1]], [0, 0, 0], (1, 2))
    b = runs("b", [[0, 0, 0], [0, 0, 0], [1, 1, 1]], [0, 0, 0], (1, 2, 3))
    assert judge(a, b, ACCURACY, draws=50).wins == 6 - 3
    assert judge(a, b, RMSE, draws=50).wins is None


BOOTSTRAPPED = [
    metric.from_per_example() if metric.uses_example_scores else metric
    for metric in METRICS
    if metric is not SPEARMAN  # whose ranks change
]


@pytest.mark.parametrize("metric", BOOTSTRAPPED, ids=lambda m: m.name)
@pytest.mark.parametrize("is_grouped", [False, True])
def test_bootstrap_equals_a_plain_loop(metric: Any, is_grouped: bool) -> None:
    """The matrix product gives what recomputing the metric on each resample gives; groups are drawn whole."""
    rng = np.random.default_rng(1)
    labels = rng.integers(0, 2, 30).astype(float)
    draws = [rng.random((4, 30)) < share for share in (0.6, 0.8)]
    sides = [labels, *(np.where(is_right, labels, 1 - labels) for is_right in draws)]
    if not metric.is_classification:
        sides = [x + 0.1 * rng.normal(size=x.shape) for x in sides]
    labels, control, other = sides
    numbers = np.arange(30) // 4 if is_grouped else np.arange(30)
    groups = numbers if is_grouped else None
    found = bootstrap(control, other, labels, metric, draws=40, seed=3, groups=groups)
    draw = generator(3, "verdict", metric.name)
    count = numbers.max() + 1
    picked, seeds = draw.integers(count, size=(40, count)), draw.integers(4, size=(40, 3))
    plain = []
    for drawn, chosen in zip(picked, seeds, strict=True):
        examples = np.concatenate([np.flatnonzero(numbers == one) for one in drawn])
        sides = [
            np.mean([metric.compute(p[examples], labels[examples]) for p in side[chosen]])
            for side in (control, other)
        ]
        plain.append(sides[1] - sides[0])
    np.testing.assert_allclose(found, plain, atol=1e-9)


def test_the_interval_has_the_known_standard_error() -> None:
    """Where seeds differ, theirs; where all is noise of single runs, up to sqrt(3) times theirs (counted twice)."""
    control, other = both(0.0, examples=1000, seeds=20, accuracy=0.7, seed_sd=0.0, shared=0.0)
    true = np.sqrt(2 * 0.7 * 0.3 / (20 * 1000))
    assert true < judge(control, other, ACCURACY, draws=1000).error < 2 * true
    noise = {"accuracy": 0.7, "seed_sd": 0.03, "shared": 0.5}
    control, other = both(0.0, seed=1, examples=10_000, seeds=30, **noise)
    of_seeds = pytest.approx(np.sqrt(2 * 0.03**2 / 30), rel=0.35)
    assert judge(control, other, ACCURACY, draws=500).error == of_seeds


# -- calibration -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("noise", [{}, {"shared": 0.6, "own": 0.3}], ids=["seeds", "examples"])
def test_at_most_five_in_a_hundred_null_comparisons_are_reliable(noise: dict[str, float]) -> None:
    """Models differ by their seeds alone, or also by example."""
    assert power(0.0, trials=300, draws=200, **noise) <= 0.05


# -- what it says ----------------------------------------------------------------------------------------------------
def test_a_large_gain_is_reliable_and_a_loss_is_called_one() -> None:
    control, other = both(0.1)
    found = judge(control, other, ACCURACY)
    assert found.reliable and found.interval[0] > 0
    size = f"{100 * found.difference:.1f} ± {100 * found.error:.1f} points"
    assert f"better by {size}" in found.sentence
    assert "worse by" in judge(other, control, ACCURACY).sentence


def test_lower_is_better_is_the_metrics_own_word() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=200)
    noise = {"near": 0.1, "far": 0.5}
    near, far = (
        runs(name, labels + sd * rng.normal(size=(6, 200)), labels) for name, sd in noise.items()
    )
    found = judge(far, near, RMSE)
    assert found.difference < 0
    assert "near against far on toy: better by" in found.sentence
    assert "RMSE" in found.sentence


def test_too_few_seeds_are_said_to_be_too_few() -> None:
    control, other = both(0.2, seeds=3)
    found = judge(control, other, ACCURACY)
    assert not found.reliable
    assert "cannot be decided with 3 seeds" in found.sentence
    assert "the smallest possible p is 0.1; 4 seeds can" in found.sentence


@pytest.mark.parametrize(("tasks", "needed"), [(1, 4), (2, 5), (8, 6)])
def test_what_seeds_can_show_is_known_before(tasks: int, needed: int) -> None:
    assert seeds_needed(tasks) == needed
    assert few_seeds_note(needed, tasks) == []
    (note,) = few_seeds_note(needed - 1, tasks)
    apart = np.arange(2 * needed - 2.0).reshape(2, -1)  # no difference could be larger
    p, _ = permutation(*apart)
    assert p * tasks > ALPHA and f"{min(1, p * tasks):.2g}; {needed} seeds can" in note
    assert permutation(*np.arange(2.0 * needed).reshape(2, -1))[0] * tasks <= ALPHA


def test_more_tasks_need_more_seeds() -> None:
    verdicts = []
    for task in range(8):
        sides = [replace(runs, task=f"t{task}") for runs in both(0.15, seed=task)]
        verdicts.append(judge(*sides, ACCURACY))
    assert all(v.reliable for v in verdicts)
    assert not any(v.reliable for v in decide(verdicts))  # 8 * 2/252 is above 0.05
    assert "times 8 tasks" in verdicts[0].sentence


def test_collapsed_and_missing_seeds_are_named_and_kept() -> None:
    control, other = both(0.0)
    broken = np.array(other.predictions)
    broken[2] = 1
    other = replace(other, predictions=broken)
    lame = replace(control, seeds=control.seeds[:4], predictions=control.predictions[:4])
    found = judge(lame, other, ACCURACY)
    assert found.notes == [
        "control, missing: seed 4",
        "other, degenerate (one answer to nearly all examples) but included: seed 2",
    ]
    assert found.difference == pytest.approx(
        np.mean(other.scores(ACCURACY)) - np.mean(lame.scores(ACCURACY))
    )


def test_a_collapsed_seed_of_a_correlation_counts_as_zero() -> None:
    # A6
    rng = np.random.default_rng(0)
    labels = rng.normal(size=50)
    good = labels + rng.normal(size=(5, 50))
    flat = np.array(good)
    flat[1] = 0.25
    found = judge(runs("good", good, labels), runs("flat", flat, labels), PEARSON)
    (note,) = found.notes
    assert note == "flat, degenerate (one answer to nearly all examples) but included: seed 1"
    mean = np.mean([stats.pearsonr(p, labels)[0] for p in good])
    correlations = [stats.pearsonr(p, labels)[0] for p in flat[[0, 2, 3, 4]]]
    assert found.difference == pytest.approx(np.mean([*correlations, 0]) - mean)
    dead = judge(runs("good", good, labels), runs("dead", np.zeros((5, 50)), labels), PEARSON)
    assert "worse by" in dead.sentence
    assert dead.difference == pytest.approx(-mean)


def test_an_undefined_metric_is_no_zero() -> None:
    rng = np.random.default_rng(0)
    labels = rng.normal(size=50)
    good = labels + rng.normal(size=(5, 50))
    broken = np.array(good)
    broken[1, 3] = np.nan
    found = judge(runs("good", good, labels), runs("broken", broken, labels), PEARSON)
    assert found.notes == ["broken, omitted from means, where pearson is undefined: seed 1"]
    other, control = (
        np.mean([stats.pearsonr(p, labels)[0] for p in some])
        for some in (broken[[0, 2, 3, 4]], good)
    )
    assert found.difference == pytest.approx(other - control)
    constant = np.ones(50)
    dead = judge(runs("good", good, constant), runs("same", good, constant), PEARSON)
    assert "undefined for all runs" in dead.sentence
    assert not dead.reliable


def test_a_resample_of_equal_predictions_scores_zero_in_the_bootstrap_too() -> None:
    # A6
    labels = np.array([0.0, 1.0, 2.0, 3.0])
    control = np.array([[0.1, 0.1, 0.1, 0.7]] * 2)  # constant in many a resample of four
    other = np.array([[0.1, 0.4, 0.5, 0.7]] * 2)
    found = bootstrap(control, other, labels, PEARSON, draws=100, seed=5)
    draw = generator(5, "verdict", "pearson")
    picked = draw.integers(4, size=(100, 4))
    plain = [
        PEARSON.compute(other[0, at], labels[at]) - PEARSON.compute(control[0, at], labels[at])
        for at in picked
    ]
    plain = [value for value in plain if np.isfinite(value)]  # resamples of one label
    assert 80 < len(plain) < 100
    np.testing.assert_allclose(found, plain, atol=1e-9)


def test_other_examples_are_refused() -> None:
    control, other = both(0.0)
    ids = ((*other.ids[:-1], "x"), other.ids[::-1])
    for differing in (*({"ids": one} for one in ids), {"labels": 1 - other.labels}):
        with pytest.raises(InputError, match="examples, their order, or labels of control and"):
            judge(control, replace(other, **differing), ACCURACY)


# -- folders ---------------------------------------------------------------------------------------------------------
def test_from_folders_to_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    control, other = both(0.1)
    a, b = write_runs(tmp_path / "a", control), write_runs(tmp_path / "b", other)
    out = tmp_path / "verdict"
    command = ["verdict", "--runs", f"base={a}", f"new={b}", "--out", str(out)]
    assert main([*command, "--published", "base=BERT-b", "new=XDBERT-b"]) == 0
    said = capsys.readouterr().out
    result = json.loads((out / "verdict.json").read_text())
    (found,) = result["verdicts"]
    assert found["sentence"] in said
    assert "new against base on glue/rte: better by" in said
    assert result["scores"]["base"]["glue/rte"]["scores"] == control.scores(ACCURACY).tolist()
    assert found["permutation"]["smallest"] == 2 / 252
    page = (out / "verdict.html").read_text()
    assert "66.43" in page and "69.31" in page and found["sentence"].replace("±", "±") in page
    assert reported()["XDBERT-b"]["glue/rte"] == 69.31


def test_a_metric_comes_from_the_runs_task(tmp_path: Path) -> None:
    # C4
    made = both(0.0)[0]
    for task, metric in (("refcoco+", REGION_ACCURACY), ("vqa", SCORE), ("glue/cola", MATTHEWS)):
        labels = {REGION_ACCURACY: [0, 1, -100], SCORE: [[1, 0.6], [0, 0.3]]}.get(metric)
        folder = write_runs(tmp_path / metric.name, made, task, metric.name, labels)
        found, judged = collect_runs("a", folder)[task]
        for field in ("name", "scale", "is_classification"):
            assert vars(judged)[field] == vars(metric)[field]
        truth = np.array([labels] * 277) if labels else made.labels
        expected = [metric.compute(p, truth) for p in made.predictions]
        assert found.scores(judged) == pytest.approx(expected)


def test_ones_own_task_leaves_its_metrics_name(tmp_path: Path) -> None:
    # C4
    made = both(0.0)[0]
    folder = write_runs(tmp_path / "a", made, "table/mine", "matthews")
    assert collect_runs("a", folder)["table/mine"][1] is MATTHEWS
    folder = write_runs(tmp_path / "c", made, "table/mine", "bleu")
    message = homes.refused(collect_runs, "c", folder)
    assert "result.json: not the result of a fine-tuning run (KeyError: 'bleu')" in message
    folder = write_runs(tmp_path / "d", made, "refcoco+", "picked")
    message = homes.refused(collect_runs, "d", folder)
    assert "predictions_dev.jsonl: labels or groups differ in kind" in message


def test_models_with_other_regions_are_compared_by_what_they_gained(tmp_path: Path) -> None:
    # C4
    made = both(0.0)[0]
    write_runs(tmp_path / "a", made, "refcoco+", "picked", [1, 0, 0])
    write_runs(tmp_path / "b", made, "refcoco+", "picked", [0, 1])
    groups = {"a": tmp_path / "a", "b": tmp_path / "b"}
    (found,) = judge_folders(groups, tmp_path / "out", lambda _: None)["verdicts"]
    right = int((made.predictions == 1).sum())
    assert (found["metric"], found["wins"]) == ("picked", right - (5 * 277 - right))
    (written,) = json.loads((tmp_path / "out" / "verdict.json").read_text())["verdicts"]
    assert written == found | {"interval": list(found["interval"])}


def test_a_run_that_is_always_right_has_not_collapsed(tmp_path: Path) -> None:
    # C4: gains of 1 throughout are no single answer
    made = both(0.0)[0]
    same = replace(made, predictions=np.ones_like(made.predictions))
    for name, runs, seeds in (("a", made, []), ("b", same, [0, 1, 2, 3, 4])):
        folder = write_runs(tmp_path / name, runs, "refcoco+", "picked", [1, 1])
        assert collect_runs(name, folder)["refcoco+"][0].degenerate_seeds() == seeds


def test_an_unfinished_seed_is_found(tmp_path: Path) -> None:
    control, other = both(0.0)
    a, b = write_runs(tmp_path / "a", control), write_runs(tmp_path / "b", other)
    (b / "glue-rte" / "seed-3" / "result.json").unlink()
    said: list[str] = []
    judge_folders({"a": a, "b": b}, tmp_path / "out", said.append)
    lines = "\n".join(said).splitlines()
    assert "note: glue/rte, b, missing: seed 3" in lines


def test_seeds_of_an_earlier_command_are_not_pooled(tmp_path: Path) -> None:
    made = both(0.0)[0]
    folder = write_runs(tmp_path / "a", made)
    (folder / "glue-rte" / "result.json").write_text(json.dumps({"seeds": [0, 1, 2]}))
    found, metric = collect_runs("a", folder)["glue/rte"]
    assert found.seeds == (0, 1, 2)
    assert found.scores(metric).tolist() == made.scores(ACCURACY)[:3].tolist()
    assert sorted(finished_seeds(str(folder / "glue-rte"), "glue/rte")) == [0, 1, 2]


ROW = '{"id": "x", "prediction": 1, "label": 1}\n'


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense\n", "line 1: expected"),
        (None, "no such file"),
        (ROW * 2, "example x is repeated"),
        (ROW, "examples or labels differ from seed 0"),
    ],
)
def test_broken_score_files_are_named(tmp_path: Path, content: str | None, message: str) -> None:
    folder = write_runs(tmp_path / "a", both(0.0)[0])
    path = folder / "glue-rte" / "seed-2" / "predictions_dev.jsonl"
    path.unlink()
    if content is not None:
        path.write_text(content)
    told = homes.refused(collect_runs, "a", folder)
    assert message in told and "seed-2" in told


def test_runs_of_a_task_at_two_sizes_are_never_pooled(tmp_path: Path) -> None:
    for name in ("few", "full"):
        folder = write_runs(tmp_path / "a" / name, both(0.0)[0])
        for path in folder.rglob("result.json"):
            result = json.loads(path.read_text())
            path.write_text(json.dumps(result | {"display_name": f"RTE {name}"}))
    collected = collect_runs("a", tmp_path / "a")
    assert list(collected) == ["RTE few", "RTE full"]
    assert {metric.name for _, metric in collected.values()} == {"accuracy"}


def test_empty_folders_and_names_given_twice(tmp_path, capsys):
    folder = write_runs(tmp_path / "a", both(0.0)[0])
    (tmp_path / "empty").mkdir()
    for arguments, message in (
        (["--runs", str(folder)], "needs runs=CONTROL_FOLDER OTHER_FOLDER"),
        (["--runs", str(folder), str(tmp_path / "empty")], "contains no finished fine-tuning run"),
        (["--runs", str(folder), str(tmp_path / "absent")], "absent: no such file"),
        (["--runs", str(folder), f"a={folder}"], "two groups are called 'a'"),
        (["--runs", str(folder), f"b={folder}", "--published", "b=GPT"], "there are: CLIP-T"),
    ):
        assert main(["verdict", *arguments, "--out", str(tmp_path / "v")]) == 2
        error = capsys.readouterr().err
        assert message in error
        assert error.count("\n") == 1
    twice = write_runs(tmp_path / "twice" / "x", both(0.0)[0]).parent
    write_runs(twice / "y", both(0.0)[0])
    with pytest.raises(InputError, match=r"seed 0 of glue/rte is also in"):
        collect_runs("twice", twice)


def test_a_verdict_on_nothing_leaves_an_earlier_one_alone(here: Path, capsys: Any) -> None:
    for run, task in (("a", "glue/rte"), ("b", "glue/rte"), ("c", "glue/mrpc")):
        rows = [{"id": f"{n}", "prediction": n % 2, "label": 1.0} for n in range(6)]
        put(here / run / "seed-0/predictions_dev.jsonl", "\n".join(map(json.dumps, rows)) + "\n")
        done = {"seed": 0, "task": task, "metrics": ["accuracy"], "splits": ["dev"]}
        put(here / run / "seed-0/result.json", json.dumps(done))
    assert main(["verdict", "--runs", "a", "b", "--out", "judged"]) == 0
    before = homes.digests(here / "judged")
    assert main(["verdict", "--runs", "a", "c", "--out", "judged"]) == 2
    assert "no task has finished runs of both" in capsys.readouterr().err
    assert homes.digests(here / "judged") == before


# -- tables and page -------------------------------------------------------------------------------------------------
def split_votes(name: str, flipped: int) -> SeedRuns:
    """Three seeds, of which the last gets so many examples wrong: most seeds are always right."""
    control, _ = both(0.0)
    predictions = np.zeros((3, len(control.ids)))
    predictions[2, :flipped] = 1
    labels = np.zeros(len(control.ids))
    return replace(control, name=name, seeds=(0, 1, 2), labels=labels, predictions=predictions)


def test_page_and_text_have_the_same_content(tmp_path: Path) -> None:
    lines: list[str] = []
    groups = {
        "control": write_runs(tmp_path / "a", split_votes("control", 0)),
        "seeing": write_runs(tmp_path / "b", split_votes("seeing", 60)),
    }
    write_runs(tmp_path / "b", split_votes("seeing", 0), "swag")
    judge_folders(groups, tmp_path / "out", lines.append)
    page = tmp_path / "out/verdict.html"
    said, shown = "\n".join(lines), page.read_text()
    sentence = "seeing against control on glue/rte: cannot be decided with 3 seeds"
    alone = "control: no finished run of swag, so this task is not compared"
    for line in (sentence, "277 examples, 3 seeds", alone):
        assert line in said and line in shown
    for heading in ("Scores", "Differences"):
        assert f"\n{heading}\n" in said and f"<h2>{heading}</h2>" in shown
    assert said.splitlines()[-1] == f"page: {page}"


def test_settings_that_differ_are_listed_with_their_tasks(tmp_path: Path) -> None:
    groups = {"control": 1e-4, "seeing": 1e-3}
    for (name, lr), made in zip(groups.items(), both(0.1), strict=True):
        for task in ("glue/rte", "glue/cola"):
            write_runs(tmp_path / name, made, task)
            config = {"model": "bert", "max_length": 128, "train": {"lr": lr}}
            place = tmp_path / name / task.replace("/", "-") / "config.json"
            write_json(place, {"kind": "finetune", "config": config})
    said: list[str] = []
    judge_folders({name: tmp_path / name for name in groups}, tmp_path / "out", said.append)
    (table,) = (text for text in said if "Settings that differ from control" in text)
    last = table.split("Settings that differ from control\n")[1].split("\n\n")[0].splitlines()
    assert [line.split() for line in last] == [
        ["runs", "setting", "control", "theirs", "task"],
        [
            "-" * len(part)
            for part in ("seeing", "setting", "control", "theirs", "glue/cola, glue/rte")
        ],
        ["seeing", "lr", "0.0001", "0.001", "glue/cola,", "glue/rte"],
    ]
    assert (tmp_path / "out/verdict.txt").read_text() == table + "\n"


def test_an_interval_that_ends_at_zero_does_not_hide_the_line() -> None:
    (axes,) = forest_plot([ForestRow("a", "3 seeds", 1, (0, 2), [1.0], False)], "points").axes
    (dashed,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    interval, mark, seeds = [line for line in axes.lines if line is not dashed]
    assert list(dashed.get_xdata()) == [0, 0] and list(interval.get_xdata()) == [0, 2]
    assert interval.get_zorder() < dashed.get_zorder() < mark.get_zorder()
    assert mark.get_markerfacecolor() == "none" and list(seeds.get_xdata()) == [1.0]


# -- The bootstrap: what is drawn adds up, and examples that share an image or a text are drawn toge

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
