"""`groundling bench --real`: plans, runs what is missing, judges, and writes `bench.json`, the table and the page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import groundling
from groundling.command_line.registered_names import parse_arm, teacher_settings
from groundling.commands.adapt.run import own_lm_head
from groundling.core.errors import InputError, prefix_errors
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import write_json
from groundling.runs.jobs import run_jobs
from groundling.runs.progress import CommandContext
from groundling.runs.report import format_count
from groundling.studies.bench.arms import METHOD, SHUFFLED, TEXT_CONTROL
from groundling.studies.bench.commands import BenchConfig
from groundling.studies.bench.method import (
    CAPTIONS,
    IMAGES,
    BenchMethod,
    built_in_methods,
    find_methods,
)
from groundling.studies.bench.methods import for_encoder
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.real.arms import describe_method
from groundling.studies.bench.real.finished import BEFORE, finished_jobs
from groundling.studies.bench.real.handed import (
    RealFiles,
    TextCounts,
    check_teacher,
    hand_over_texts,
    permute_teacher,
)
from groundling.studies.bench.real.judge import GainVerdict, compare, decide, sentences_of
from groundling.studies.bench.real.plan import RealPlan
from groundling.studies.bench.real.readings import (
    Reading,
    check_set,
    set_readers,
    shared_sets,
)
from groundling.studies.bench.real.report import entries_of, make_report
from groundling.studies.bench.real_settings import RealSettings
from groundling.studies.bench.results import NOT_DONE, REAL_FORMAT

VERSION = 1
"""Increases with every change of the file's layout."""


def bench_real(config: BenchConfig, work: CommandContext) -> dict[str, Any]:
    """Run everything that is missing; prints the table and a sentence for each method.

    Raises InputError before anything is trained for texts, images, models or sets that cannot be used.
    """
    settings = config.real_encoder
    methods, left_out = choose_methods(config.method, settings)
    folder = BenchFolder(work.out.resolve())
    files = RealFiles(folder.root, settings)
    sets = set_readers(settings)
    for one in sets:
        check_set(one)
    notes = [f"{name} is left out: {reason}" for name, reason in left_out.items()]
    notes += encoder_notes(settings)
    depth = load_text_encoder(settings.student).encoder.config.num_hidden_layers
    methods = [for_encoder(one, depth) for one in methods]
    permutes = any(one.replaces_teacher for one in methods)
    if settings.teacher and (permutes or any(method.data == IMAGES for method in methods)):
        check_teacher(settings.teacher)
    plan = RealPlan(config, methods, sets, folder)
    plan.missing()  # jobs of another version end the bench before anything is written
    counts = hand_over_texts(files, writes=not (config.plan or config.report))
    if config.plan:
        plan.print_plan(counts, notes)
        return {"jobs": len(plan.jobs()), "missing": len(plan.missing())}
    if counts.missing:
        notes.append(f"{counts.missing:,} captioned images are missing and were skipped")
    if config.report:
        return report(plan, counts, notes, work)
    if permutes:
        permute_teacher(files)
    run_jobs(plan.missing(first=True), config.processes, print, folder.jobs)
    plan.check_distinct_sets()
    run_jobs(plan.missing(), config.processes, print, folder.jobs)
    return conclude(plan, counts, notes, work)


def report(
    plan: RealPlan, counts: TextCounts, notes: list[str], work: CommandContext
) -> dict[str, Any]:
    """What is finished in the folder, judged and written; raises InputError if nothing is."""
    if not finished_jobs(plan.folder):
        raise InputError(f"{plan.folder.root}: nothing is finished yet")
    missing = len(plan.missing())
    if missing:
        notes = [*notes, f"{NOT_DONE}{format_count(missing, 'job')} of this bench"]
    return conclude(plan, counts, notes, work)


def choose_methods(
    names: Sequence[str], settings: RealSettings
) -> tuple[list[BenchMethod], dict[str, str]]:
    """The methods to compare, and those of the package that are left out, with the reason.

    Raises InputError for a method that lacks its captions or its teacher, if the user named it.
    """
    methods = find_methods(names)
    reasons = {one.name: _lacks(one, settings) for one in methods}
    lacking = {name: reason for name, reason in reasons.items() if reason}
    if names and lacking:
        name, reason = next(iter(lacking.items()))
        raise InputError(f"method={name}: {reason}")
    if not names:
        offered = built_in_methods().items()
        lacking |= {name: reason for name, one in offered if (reason := one.why_not())}
    kept = [one for one in methods if not reasons[one.name]]
    return kept, lacking


def _lacks(method: BenchMethod, settings: RealSettings) -> str:
    """What a method reads that the user does not hand over; empty if nothing."""
    texts = [text.partition("=")[0] for stage in method.stages for text in stage.texts]
    if (CAPTIONS in texts or method.data == IMAGES) and not settings.captions:
        return "reads captions with images; pass captions and images"
    needed = {one for stage in method.stages for one in teacher_settings(parse_arm(stage.arm))}
    if "teacher" in needed and not settings.teacher:
        return "learns from a CLIP-like teacher; pass teacher"
    return ""


def encoder_notes(settings: RealSettings) -> list[str]:
    """A note on an encoder without a masked-LM head."""
    if own_lm_head(settings.student, load_text_encoder(settings.student)):
        return []
    return [
        f"{settings.student} has no masked-LM head; methods and controls that train masked LM start from a new one, "
        "and the encoder forgets while it learns"
    ]


def conclude(
    plan: RealPlan, counts: TextCounts, notes: list[str], work: CommandContext
) -> dict[str, Any]:
    """Judge everything in the folder, write bench.json and the page, print the table and the sentences.

    Methods, sets and seeds of earlier commands are judged too: a folder with one command for each method has the
    same correction as one command with all methods.
    """
    found = plan.collect()
    methods = {one.name: describe_method(one) for one in plan.methods}
    earlier = {
        one["method"]: one["about"]
        for one in found
        if one["method"] and one["method"] not in methods
    }
    bench: dict[str, Any] = {
        "format": REAL_FORMAT,
        "version": VERSION,
        "groundling": groundling.__version__,
        "settings": plan.settings.identity(),
        "texts": vars(counts),
        "methods": methods | earlier,
        "runs": [
            {name: value for name, value in one.items() if name not in ("key", "name", "about")}
            for one in found
        ],
    }
    verdicts = judge(bench)
    readings = list(bench["runs"][0]["readings"].values())
    bench["notes"] = notes + _notes(bench["methods"], earlier, verdicts, readings)
    bench["verdicts"] = [one.as_json() for one in verdicts]
    controls = {
        name: about["controls"].get(SHUFFLED, "") for name, about in bench["methods"].items()
    }
    sentences = sentences_of(verdicts, controls)
    for one in bench["runs"]:  # the job's files keep them
        one["readings"] = {name: _summary(found) for name, found in one["readings"].items()}
    write_json(work.out / "bench.json", bench)
    made = make_report(bench, verdicts, sentences)
    made.write(work.out / "report.html")
    print(f"\n{made.text()}\n\n{work.out / 'bench.json'}\n{work.out / 'report.html'}")
    return bench


def _summary(reading: Reading) -> dict[str, Any]:
    """A reading without its items."""
    items = ("groups", "items", "cosines", "ratings")
    return {name: value for name, value in reading.items() if name not in items}


def judge(bench: dict[str, Any]) -> list[GainVerdict]:
    """Every method on every set that it and its controls are read on; raises InputError as `compare`."""
    (before,) = (one for one in bench["runs"] if one["arm"] == BEFORE)
    verdicts = []
    for method, about in bench["methods"].items():
        arms = {arm: entries_of(bench, method, arm) for arm in (METHOD, TEXT_CONTROL, SHUFFLED)}
        for name, first in before["readings"].items():
            by_seed = {
                arm: {
                    one["seed"]: one["readings"][name] for one in entries if name in one["readings"]
                }
                for arm, entries in arms.items()
            }
            own = by_seed[METHOD]
            # An earlier command may not have finished, and had other sets.
            if not all(own.keys() & by_seed[control].keys() for control in about["controls"]):
                continue
            by_seed[BEFORE] = dict.fromkeys(own, first)
            found = {}
            for control in (BEFORE, *about["controls"]):
                with prefix_errors(f"{method} on {name}, beyond {control}"):
                    found[control] = compare(own, by_seed[control])
            verdicts.append(
                GainVerdict(
                    method,
                    name,
                    first["gain"],
                    first["measure"],
                    before=found[BEFORE],
                    text=found[TEXT_CONTROL],
                    shuffled=found.get(SHUFFLED),
                )
            )
    decide(verdicts)
    return verdicts


def _notes(
    methods: Mapping[str, Any],
    earlier: Iterable[str],
    verdicts: Sequence[GainVerdict],
    readings: Sequence[Reading],
) -> list[str]:
    judged = {one.method for one in verdicts}
    notes = [f"{name} is of an earlier command in this folder, and judged too" for name in earlier]
    notes += [
        f"{name} has no verdict: it or a control is not finished"
        for name in methods
        if name not in judged
    ]
    notes += [
        f"{one} and {other} share items: their results are one finding, and no mean is taken over sets"
        for one, other in shared_sets(readings)
    ]
    notes.append(
        "no setting is tuned: each method has the weights of its paper or its released code, and one of your own the "
        "defaults of its code"
    )
    notes += [
        f"{name} asks for {about['steps']} steps; its controls got as many, other methods did not"
        for name, about in methods.items()
        if about["steps"]
    ]
    return notes
