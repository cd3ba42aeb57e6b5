"""`groundling bench`: plans, runs what is missing, judges, and writes `bench.json` and the report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from groundling.runs.folder import write_json
from groundling.runs.jobs import run_jobs
from groundling.runs.progress import CommandContext
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.curves.judge import judge_curves
from groundling.studies.bench.curves.plan import METHODS, CurvePlan
from groundling.studies.bench.curves.report import curve_sections
from groundling.studies.bench.judge import base_entries, judge_methods
from groundling.studies.bench.method import find_methods
from groundling.studies.bench.plan import BenchPlan
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.real.run import bench_real
from groundling.studies.bench.report import make_report
from groundling.studies.bench.results import NAME, Bench, add_earlier, finished_runs


def bench(config: BenchConfig, work: CommandContext) -> dict[str, Any]:
    """Run everything that is missing; prints the report."""
    if config.real_encoder.real:
        return bench_real(config, work)
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
        run_jobs(plan.missing(), config.processes, print, plan.folder.jobs)
    return _conclude(add_earlier(plan.collect(), work.out / NAME), work.out)


def _plan(config: BenchConfig, folder: BenchFolder) -> BenchPlan:
    if config.curve:
        return CurvePlan(config, find_methods(config.method or METHODS), folder)
    return BenchPlan(config, find_methods(config.method), folder)


def _conclude(found: Bench, out: Path) -> dict[str, Any]:
    """Judge, write bench.json and the page, and print the report."""
    base = {**found, "runs": base_entries(found["runs"])}
    verdicts = judge_methods(base["runs"], found["methods"])
    curves = judge_curves(found["runs"], found["methods"])
    found["verdicts"] = [one.as_json() for one in verdicts]
    found["curves"] = [one.as_json() for one in curves]
    write_json(out / NAME, found)
    page = out / "report.html"
    report = make_report(base, verdicts, curve_sections(curves, found["runs"]))
    report.write(page)
    print(f"\n{report.text()}\n\n{out / NAME}\n{page}")
    return found
