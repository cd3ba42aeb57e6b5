"""`groundling bench`: plans, runs what is missing, judges, and writes `bench.json`, the table and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from groundling.runs.folder import write_json
from groundling.runs.jobs import run_jobs
from groundling.runs.progress import CommandContext
from groundling.runs.report import format_table
from groundling.studies.bench.claims import FileClaims
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.curves.judge import MethodCurve, judge_curves
from groundling.studies.bench.curves.plan import METHODS, CurvePlan
from groundling.studies.bench.curves.report import (
    RULE,
    curve_groups,
    curve_rows,
    curve_sections,
    title_of,
)
from groundling.studies.bench.judge import MethodVerdict, base_entries, families_of, judge_methods
from groundling.studies.bench.method import find_methods
from groundling.studies.bench.plan import BenchPlan
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.real.run import bench_real
from groundling.studies.bench.report import scale_warning, table_rows, write_page
from groundling.studies.bench.results import NAME, Bench, add_earlier, finished_runs, merge


def bench(config: BenchConfig, work: CommandContext) -> dict[str, Any]:
    """Run everything that is missing, or merge other benches; prints the tables, the verdicts and the curves."""
    if config.real_encoder.real:
        return bench_real(config, work)
    if config.merge:
        merged, notes = merge(config.merge)
        merged["notes"] = list(dict.fromkeys([*merged["notes"], *notes]))
        work.out.mkdir(parents=True, exist_ok=True)
        return _conclude(merged, work.out)
    plan = _plan(config, BenchFolder(work.out.resolve()))
    if config.report and not config.method:
        # What the folder's commands have not run is not missing.
        has_run = {one["method"] for one in finished_runs(plan.folder.jobs)}
        plan = replace(plan, methods=[one for one in plan.methods if one.name in has_run])
    else:
        for name, reason in plan.left_out().items():
            print(f"note: {name} is left out: {reason}")
    if config.plan:
        plan.print_plan()
        return {"jobs": len(plan.jobs()), "missing": len(plan.missing())}
    if not config.report:
        with FileClaims(plan.folder) as claims:
            run_jobs(plan.missing(), config.processes, print, claims)
    return _conclude(add_earlier(plan.collect(), work.out / NAME), work.out, config.curve)


def _plan(config: BenchConfig, folder: BenchFolder) -> BenchPlan:
    if config.curve:
        return CurvePlan(config, find_methods(config.method or METHODS), folder)
    return BenchPlan(config, find_methods(config.method), folder)


def _conclude(found: Bench, out: Path, only_curves: tuple[str, ...] = ()) -> dict[str, Any]:
    """Judge, write bench.json and the page, print the tables and the sentences: all, or those of some curves."""
    base = {**found, "runs": base_entries(found["runs"])}
    verdicts = judge_methods(base["runs"], found["methods"])
    curves = judge_curves(found["runs"], found["methods"])
    found["verdicts"] = [one.as_json() for one in verdicts]
    found["curves"] = [one.as_json() for one in curves]
    write_json(out / NAME, found)
    if warning := scale_warning(found):
        print(f"\nWARNING: {warning}")
    page = out / "report.html"
    write_page(page, base, verdicts, curve_sections(curves, found["runs"]))
    if not only_curves:
        _print_verdicts(base, verdicts)
    asked = [one for one in curves if one.axis in only_curves or not only_curves]
    _print_curves(found, asked)
    for note in found["notes"]:
        print(f"note: {note}")
    print(f"\n{out / NAME}\n{page}")
    return found


def _print_verdicts(found: Bench, verdicts: list[MethodVerdict]) -> None:
    for family in families_of(found["runs"]):
        entries = [one for one in found["runs"] if one["family"] == family]
        print(f"\n{family}\n{format_table(table_rows(entries, found['methods']))}\n")
    for one in verdicts:
        print(one.sentence)


def _print_curves(found: Bench, curves: list[MethodCurve]) -> None:
    for axis, family, own in curve_groups(curves):
        entries = [one for one in found["runs"] if one["family"] == family]
        print(f"\n{title_of(axis, family)}\n{format_table(curve_rows(axis, own, entries))}\n")
        for one in own:
            print(one.sentence)
    if curves:
        print(f"\n{RULE}")
