"""Arms side by side on the same text, steps and seeds, with the control that has no teacher."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..config import AdaptConfig, CompareConfig, FinetuneConfig, TrainConfig
from ..errors import InputError
from ..jobs import Job, run_jobs
from ..report import table, write_report
from ..runs import open_run, write_json
from .adapt import adapt, parts_of
from .finetune import finetune

CONTROL = "mlm"


def compare(
    config: CompareConfig,
    adapting: AdaptConfig,
    training: TrainConfig,
    tuning: TrainConfig,
    out: str | Path,
    say: Callable[[str], None] = print,
) -> dict[str, Any]:
    """Adapt every arm, fine-tune each on every task, and write `out/result.json` and `out/report.html`.

    `training` is for adaptation, `tuning` for fine-tuning; finished parts are never done again.
    """
    arms = list(dict.fromkeys(([CONTROL] if config.control else []) + list(config.arms)))
    for arm in arms:
        parts_of(arm)
    if not config.tasks or not config.data:
        raise InputError("compare needs --tasks and --data")
    # Which arms, tasks and seeds there are may grow later; how each is done may not.
    settings = {"adapt": asdict(adapting), "train": asdict(training), "tune": asdict(tuning)}
    settings["adapt"].pop("arm")
    folder = open_run(out, "compare", settings, {})
    jobs = []
    for arm in arms:
        arm_folder = folder / arm
        jobs.append(Job(f"{arm}: adapt", adapt, (replace(adapting, arm=arm), training, arm_folder / "adapt")))
        for task in config.tasks:
            tune = FinetuneConfig(
                model=str(arm_folder / "adapt" / "model"),
                task=task,
                data=config.data,
                seeds=config.seeds,
                max_train=config.max_train,
                max_length=config.max_length,
            )
            name = task.replace("/", "-")
            jobs.append(Job(f"{arm}: {task}", finetune, (tune, tuning, arm_folder / name), (f"{arm}: adapt",)))
    found = run_jobs(jobs, config.processes, say)
    result: dict[str, Any] = {"control": CONTROL if config.control else None, "arms": {}}
    for arm in arms:
        result["arms"][arm] = {task: found[f"{arm}: {task}"] for task in config.tasks}
        result["arms"][arm]["adapt"] = found[f"{arm}: adapt"]
    rows = summary_rows(result, config.tasks)
    write_json(folder / "result.json", result)
    say(table(rows))
    write_report(
        folder / "report.html", "Arms compared", [("Median of seeds, and every seed", rows)], [sentence(result)]
    )
    say(sentence(result))
    return result


def summary_rows(result: dict[str, Any], tasks: tuple[str, ...]) -> list[dict[str, str]]:
    """One row per arm, one column per task: median and, in brackets, every seed's score, times 100."""
    rows = []
    for arm, by_task in result["arms"].items():
        row = {"arm": arm + (" (control)" if arm == result["control"] else "")}
        for task in tasks:
            one = by_task[task]
            split = next(iter(one["median"]))
            scores = one["scores"][split][one["headline"]]
            every = " ".join(f"{100 * s:.1f}" for s in scores)
            row[f"{task} ({one['headline']})"] = f"{100 * one['median'][split][one['headline']]:.1f}  [{every}]"
        rows.append(row)
    return rows


def sentence(result: dict[str, Any]) -> str:
    """What the comparison shows, in plain words: differences to the control against the spread of seeds."""
    control = result["control"]
    if control is None:
        return "No control was run, so nothing can be said of what the teacher adds."
    parts = []
    for arm, by_task in result["arms"].items():
        for task, one in by_task.items():
            if arm == control or task == "adapt":
                continue
            split, metric = next(iter(one["scores"])), one["headline"]
            mine, theirs = one["scores"][split][metric], result["arms"][control][task]["scores"][split][metric]
            apart = min(mine) > max(theirs) or max(mine) < min(theirs)
            gap = 100 * (one["median"][split][metric] - result["arms"][control][task]["median"][split][metric])
            verdict = "all seeds on one side of the control's" if apart else "within the spread of seeds"
            parts.append(f"{arm} on {task}: {gap:+.1f} points ({verdict})")
    if not parts:
        return "Only the control was run."
    return "Against the control: " + "; ".join(parts) + f". {len(mine)} seeds."
