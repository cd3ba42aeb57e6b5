"""A folder of several commands of the bench on a real encoder, with jobs' files made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import homes
import pytest

from groundling.core.errors import InputError
from groundling.runs.progress import CommandContext
from groundling.settings.fields import make_settings
from groundling.studies.bench.arms import METHOD, SHUFFLED, TEXT_CONTROL
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.method import BenchMethod, find_methods
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.real.arms import RealArm, describe_method
from groundling.studies.bench.real.finished import BEFORE, read_job
from groundling.studies.bench.real.handed import TextCounts
from groundling.studies.bench.real.plan import BEFORE_ARM, RealPlan
from groundling.studies.bench.real.readings import SetReader
from groundling.studies.bench.real.run import conclude

VALUES = {BEFORE: 0.1, TEXT_CONTROL: 0.2, SHUFFLED: 0.3, METHOD: 0.5}
COST = {
    **{"steps": 2, "samples": 8, "epochs": [0.1], "seconds": 1.5, "extra_parameters": 0},
    "parameters_after": 0,
}


def put_job(root: Path, name: str, result: dict[str, Any]) -> None:
    homes.put(BenchFolder(root).job(name), json.dumps({"key": "k"} | result))


def put_readings(
    root: Path, one: RealArm, set_name: str, name: str = "colours", nouns: Sequence[str] = "abc"
) -> None:
    value = VALUES[one.arm] + 0.01 * one.seed * (one.arm == METHOD)
    reading = {
        **{"reading": name, "gain": True, "measure": "accuracy", "set": name, "same_items": []},
        **{"value": value, "groups": list(nouns), "items": [value] * len(nouns)},
    }
    job = {"arm": one.name, "set": set_name, "readings": [reading]}
    put_job(root, f"{set_name}: {one.name}", job)


def put_command(
    root: Path, methods: Sequence[str], set_name: str, seeds: int = 3, **more: Any
) -> None:
    """What a finished command leaves in `jobs/`."""
    put_readings(root, BEFORE_ARM, set_name, **more)
    for method in find_methods(methods):
        for arm in describe_method(method)["controls"].keys() | {METHOD}:
            for seed in range(seeds):
                one = RealArm(method, arm, seed)
                put_arm(root, method, one)
                put_readings(root, one, set_name, **more)


def put_arm(root: Path, method: BenchMethod, one: RealArm) -> None:
    about = describe_method(method)
    job = {"name": one.name, "arm": one.arm, "seed": one.seed, "method": one.owner}
    job |= {"texts": about["texts"], "about": about if one.owner else None}
    put_job(root, one.name, job | {"cost": COST, "model": {"path": "m"}, "heads_from": {}})


def judged(root: Path, methods: Sequence[str]) -> dict[str, Any]:
    config = make_settings(BenchConfig, real=True, student="-", method=methods)
    sets: list[SetReader] = []
    plan = RealPlan(config, find_methods(methods), sets, BenchFolder(root))
    return conclude(plan, TextCounts(1, 1, 0), [], CommandContext(root))


def test_methods_of_earlier_commands_count_in_the_correction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    (alone,) = judged(tmp_path, ["contrastive"])["verdicts"]
    put_command(tmp_path, ["l1"], "words x 111111")
    bench = judged(tmp_path, ["l1"])
    assert list(bench["methods"]) == ["l1", "contrastive"]
    assert [one["holm"] for one in bench["verdicts"]] == pytest.approx([2 * alone["holm"]] * 2)
    said = capsys.readouterr().out
    assert "Holm over 2 tests" in said and "contrastive is of an earlier command" in said
    both = judged(tmp_path, ["contrastive", "l1"])["verdicts"]
    assert sorted(map(str, both)) == sorted(map(str, bench["verdicts"]))


def test_sets_and_seeds_of_earlier_commands_are_kept(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    put_command(tmp_path, ["contrastive"], "facts y 222222", seeds=1, name="shapes")
    found = judged(tmp_path, ["contrastive"])
    seeds = {one["reading"]: one["text"]["seeds"] for one in found["verdicts"]}
    assert seeds == {"colours": (0, 1, 2), "shapes": (0,)}
    page = (tmp_path / "report.html").read_text()
    assert "contrastive: beyond its text control and" in page and "on colours" in page


def test_one_name_of_other_items_is_another_set(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "facts x 111111")
    put_command(tmp_path, ["contrastive"], "facts x 222222", nouns="ab")
    put_command(tmp_path, ["contrastive"], "facts x 333333")  # the first, with more modes
    verdicts = judged(tmp_path, ["contrastive"])["verdicts"]
    assert [one["reading"] for one in verdicts] == ["colours", "colours (222222)"]


def test_an_unfinished_method_is_named_and_not_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    (method,) = find_methods(["l1"])
    own = RealArm(method, METHOD, 0)
    put_arm(tmp_path, method, own)
    put_readings(tmp_path, own, "words x 111111")
    put_readings(tmp_path, RealArm(method, TEXT_CONTROL, 0), "words x 111111")
    for path in (tmp_path / "jobs").glob("l1-shuffled*"):
        path.unlink()
    verdicts = judged(tmp_path, ["contrastive"])["verdicts"]
    assert {one["method"] for one in verdicts} == {"contrastive"}
    assert "l1 has no verdict: it or a control is not finished" in capsys.readouterr().out


def test_other_items_of_an_arm_name_it(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    (method,) = find_methods(["contrastive"])
    put_readings(tmp_path, RealArm(method, SHUFFLED, 1), "words x 111111", nouns="ab")
    message = r"^contrastive on colours, beyond shuffled images: control, seed 1: 2 items, not the"
    with pytest.raises(InputError, match=message):
        judged(tmp_path, ["contrastive"])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("contrastive, method, seed 0", {"cost": None}),
        ("contrastive, method, seed 0", {"model": {}}),
        ("contrastive, method, seed 0", {"about": {"data": "text"}}),
        ("contrastive, method, seed 0", {"seed": "x"}),
        ("words x 111111: before", {"readings": [{"reading": "colours"}]}),
        ("words x 111111: before", {"readings": [3]}),
        ("words x 111111: before", {"set": None}),
    ],
)
def test_a_damaged_job_is_one_line(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111", seeds=1)
    path = BenchFolder(tmp_path).job(name)
    homes.put(path, json.dumps(read_job(path) | changes))
    message = f"^{path}: cannot be read .*; delete it"
    with pytest.raises(InputError, match=message) as caught:
        judged(tmp_path, ["contrastive"])
    assert "\n" not in str(caught.value)
