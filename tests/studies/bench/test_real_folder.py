"""A folder of several commands of the bench on a real encoder, with jobs' files made by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tiny import homes

from groundling.core.errors import InputError
from groundling.settings.fields import make_settings
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.engine import METHOD, SHUFFLED, TEXT_CONTROL, Arm, read_job
from groundling.studies.bench.gains import BEFORE
from groundling.studies.bench.handed import TextCounts
from groundling.studies.bench.methods import find_methods
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.real import RealBench, conclude

VALUES = {BEFORE: 0.1, TEXT_CONTROL: 0.2, SHUFFLED: 0.3, METHOD: 0.5}
COST = {
    **{"steps": 2, "samples": 8, "epochs": [0.1], "seconds": 1.5, "extra_parameters": 0},
    **{"core_seconds": 1.0, "memory_mb": None},
}


def bench_of(root: Path, methods: Sequence[str], seeds: int = 3) -> RealBench:
    config = make_settings(BenchConfig, real=True, student="-", method=methods, adapt_seeds=seeds)
    return RealBench(BenchFolder(root), find_methods(methods), config, [])


def put_job(root: Path, name: str, arm: Arm, **more: Any) -> None:
    job = {"key": "k", "name": arm.name, "run": arm.as_json()} | more
    homes.put(BenchFolder(root).job(name), json.dumps(job))


def put_readings(
    root: Path, arm: Arm, set_name: str, name: str = "colours", nouns: Sequence[str] = "abc"
) -> None:
    value = VALUES[arm.arm] + 0.01 * arm.seed * (arm.arm == METHOD)
    reading = {
        **{"reading": name, "gain": True, "measure": "accuracy", "set": name, "same_items": []},
        **{"value": value, "groups": list(nouns), "items": [value] * len(nouns)},
    }
    more = {"reading": set_name, "readings": {name: reading}, "parameters_after": 0}
    put_job(root, f"{arm.name}: {set_name}", arm, **more)


def put_arm(root: Path, own: RealBench, arm: Arm) -> None:
    about = None if arm.arm == TEXT_CONTROL else own.describe(arm.method)
    more = {"about": about, "control": "", "weight": None}
    put_job(root, arm.name, arm, **more, cost=COST, model={"path": "m", "sha256": "h"})


def put_command(
    root: Path, methods: Sequence[str], set_name: str, seeds: int = 3, **more: Any
) -> None:
    """What a finished command leaves in `jobs/`."""
    own = bench_of(root, methods, seeds)
    for arm in own.arms():
        if arm.method is not None:
            put_arm(root, own, arm)
        put_readings(root, arm, set_name, **more)


def judged(root: Path, methods: Sequence[str]) -> dict[str, Any]:
    own = bench_of(root, methods)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealBench, "missing", lambda self: [])
        return conclude(own, TextCounts(1, 1, 0), [], root)


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
    put_command(tmp_path, ["l1"], "words x 111111", seeds=1)
    for path in (tmp_path / "jobs").glob("l1-shuffled*"):
        path.unlink()
    verdicts = judged(tmp_path, ["contrastive"])["verdicts"]
    assert {one["method"] for one in verdicts} == {"contrastive"}
    assert "l1 has no verdict: it or a control is not finished" in capsys.readouterr().out


def test_other_items_of_an_arm_name_it(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    (method,) = find_methods(["contrastive"])
    put_readings(tmp_path, Arm(method, SHUFFLED, 1), "words x 111111", nouns="ab")
    message = r"^contrastive on colours, beyond shuffled images: control, seed 1: 2 items, not the"
    with pytest.raises(InputError, match=message):
        judged(tmp_path, ["contrastive"])


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("contrastive, method, seed 0", {"cost": None}),
        ("contrastive, method, seed 0", {"model": {}}),
        ("contrastive, method, seed 0", {"about": {"data": "text"}}),
        ("contrastive, method, seed 0", {"run": {"seed": "x"}}),
        ("before: words x 111111", {"readings": [3]}),
        ("before: words x 111111", {"readings": {"colours": {"value": True}}}),
        ("before: words x 111111", {"readings": {"colours": {"items": [0.5, "0.5"]}}}),
        ("before: words x 111111", {"run": None}),
    ],
)
def test_a_damaged_job_is_one_line(tmp_path: Path, name: str, changes: dict[str, Any]) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111", seeds=1)
    path = BenchFolder(tmp_path).job(name)
    homes.put(path, json.dumps(read_job(path) | changes))
    with pytest.raises(InputError, match=f"^{path}: cannot be read .*; delete it") as caught:
        judged(tmp_path, ["contrastive"])
    assert "\n" not in str(caught.value)


def test_two_versions_of_a_method_are_not_mixed(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    path = BenchFolder(tmp_path).job("contrastive, method, seed 1")
    job = read_job(path)
    homes.put(path, json.dumps(job | {"about": job["about"] | {"steps": 7}}))
    with pytest.raises(InputError, match="seed 1: of another version of the method"):
        judged(tmp_path, ["contrastive"])
