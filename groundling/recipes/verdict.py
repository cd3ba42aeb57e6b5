"""From run folders to a verdict: tables, JSON, a report, and one plain sentence per comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from groundling.analysis.verdict import Runs, decide, judge
from groundling.config import VerdictConfig
from groundling.data.tables import lines_of
from groundling.errors import InputError
from groundling.metrics import METRICS, Metric
from groundling.published import PUBLISHED
from groundling.report import Section, table, write_report
from groundling.runs import finished, write_json

PREDICTIONS = "predictions_{}.jsonl"


def collect(name: str, folder: str | Path) -> dict[str, tuple[Runs, Metric]]:
    """All finished fine-tuning runs under a folder, by task (and split, where a task has several).

    Raises InputError on a file that cannot be read, a seed that is there twice, and seeds with different examples.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise InputError(f"{folder}: no such run folder")
    found: dict[str, dict[int, tuple[Path, dict[str, Any]]]] = {}
    unfinished: list[tuple[Path, int]] = []
    for own in sorted(path.parent for path in folder.rglob("log.jsonl")):
        done, number = finished(own) or {}, own.name.removeprefix("seed-")
        if not done and number.isdigit():
            unfinished.append((own.parent, int(number)))
        for split in done.get("splits", ()):
            key = done["task"] if split == done["splits"][0] else f"{done['task']} ({split})"
            seeds, seed = found.setdefault(key, {}), done["seed"]
            if seed in seeds:
                raise InputError(f"{own}: seed {seed} of {key} is also in {seeds[seed][0].parent}")
            seeds[seed] = own / PREDICTIONS.format(split), done
    if not found:
        raise InputError(
            f"{folder}: holds no finished fine-tuning run (seed-*/result.json with a task)"
        )
    out = {}
    for task, seeds in found.items():
        read = {seed: read_predictions(path) for seed, (path, _) in sorted(seeds.items())}
        first = next(iter(read))
        ids, labels, _ = read[first]
        for seed, (other, truth, _) in read.items():
            if other != ids or not np.array_equal(truth, labels):
                raise InputError(f"{seeds[seed][0]}: other examples or labels than in seed {first}")
        metric = METRICS[next(iter(seeds.values()))[1]["metrics"][0]]
        here = {path.parent.parent for path, _ in seeds.values()}
        waiting = tuple(sorted(seed for place, seed in unfinished if place in here))
        runs = Runs(
            name,
            task,
            tuple(read),
            ids,
            labels,
            np.stack([p for _, _, p in read.values()]),
            waiting,
        )
        out[task] = runs, metric
    return out


def read_predictions(path: Path) -> tuple[tuple[str, ...], np.ndarray, np.ndarray]:
    """Ids, labels (N,) and predictions (N,) of a `predictions_*.jsonl`."""
    ids, labels, predictions = [], [], []
    for number, line in enumerate(lines_of(path), 1):
        try:
            row = json.loads(line)
            ids.append(str(row["id"]))
            prediction, label = _plain(float(row["prediction"]), row["label"])
            labels.append(label)
            predictions.append(prediction)
        except (json.JSONDecodeError, KeyError, IndexError, TypeError, ValueError):
            raise InputError(
                f'{path}, line {number}: expected {{"id": ..., "prediction": number, "label": number}}'
            ) from None
    if len(set(ids)) != len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise InputError(f"{path}: example {twice} is there twice")
    return tuple(ids), np.array(labels), np.array(predictions)


def _plain(prediction: float, label: Any) -> tuple[float, float]:
    """Prediction and label as numbers; of a picked region or a soft answer, what it gained, and 1."""
    if not isinstance(label, list):
        return prediction, float(label)
    if label and isinstance(label[0], list):
        return sum(score for kind, score in label if kind == prediction), 1.0
    return float(label[int(prediction)] == 1), 1.0


def judge_folders(
    groups: Mapping[str, str | Path],
    out: str | Path,
    say: Callable[[str], None] = print,
    published: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Judge every group of runs against the first one; writes `out/verdict.json` and `out/verdict.html`."""
    collected = {name: collect(name, folder) for name, folder in groups.items()}
    control, *others = collected
    for name, runs in collected.items():
        for task in collected[control].keys() ^ runs.keys():
            say(
                f"{name if task not in runs else control}: no finished run of {task}, so it is not judged"
            )
    result: dict[str, Any] = {"control": control, "scores": {}, "verdicts": []}
    for name, by_task in collected.items():
        result["scores"][name] = {task: _scores(*found) for task, found in by_task.items()}
    for name in others:
        both = [task for task in collected[control] if task in collected[name]]
        verdicts = [
            judge(collected[control][t][0], collected[name][t][0], collected[name][t][1])
            for t in both
        ]
        result["verdicts"] += [asdict(v) for v in decide(verdicts)]
    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "verdict.json", result)
    rows, comparisons = score_rows(result, published or {}), list(_comparison_rows(result))
    say(table(rows))
    for verdict in result["verdicts"]:
        say(verdict["sentence"])
    notes = list(
        dict.fromkeys(f"{v['task']}, {note}" for v in result["verdicts"] for note in v["notes"])
    )
    for note in notes:
        say(f"note: {note}")
    sentences = [v["sentence"] for v in result["verdicts"]]
    sections = [Section("Median, and every seed", rows=rows)]
    if comparisons:
        sections.append(Section("Comparisons", rows=comparisons))
    write_report(out / "verdict.html", f"Against {control}", sections, sentences, notes=notes)
    return result


def _scores(runs: Runs, metric: Metric) -> dict[str, Any]:
    values = runs.scores(metric)
    defined = values[np.isfinite(values)]
    low, middle, high = (
        np.quantile(defined, (0.25, 0.5, 0.75)).tolist() if len(defined) else [float("nan")] * 3
    )
    return {
        "metric": metric.name,
        "seeds": list(runs.seeds),
        "scores": values.tolist(),
        "median": middle,
        "mean": float(defined.mean()) if len(defined) else float("nan"),
        "sd": float(defined.std(ddof=1)) if len(defined) > 1 else float("nan"),
        "quartiles": [low, high],
        "agreement": runs.agreement() if metric.classes else None,
        "collapsed": runs.collapsed(),
        "unfinished": list(runs.unfinished),
    }


def score_rows(result: Mapping[str, Any], published: Mapping[str, str]) -> list[dict[str, str]]:
    """One row per group, one column per task: median and, in brackets, every seed; published values beside them."""
    tasks = dict.fromkeys(task for by_task in result["scores"].values() for task in by_task)
    rows = []
    for name, by_task in result["scores"].items():
        row = {"": name + (" (control)" if name == result["control"] else "")}
        theirs = PUBLISHED.get(published.get(name, ""), {})
        for task in tasks:
            one = by_task.get(task)
            metric = METRICS[
                next(g[task]["metric"] for g in result["scores"].values() if task in g)
            ]
            digits = 1 if metric.scale == 100 else 3
            cell = "-"
            if one is not None:
                every = " ".join(f"{s * metric.scale:.{digits}f}" for s in one["scores"])
                cell = f"{one['median'] * metric.scale:.{digits}f} [{every}]"
            row[
                f"{task} ({metric.name}{'' if metric.higher_is_better else ', lower is better'})"
            ] = cell
            if any(task in PUBLISHED.get(system, {}) for system in published.values()):
                row[f"{task}, published"] = str(theirs.get(task, "-"))
        rows.append(row)
    return rows


def _comparison_rows(result: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    for v in result["verdicts"]:
        scale, mcnemar = METRICS[v["metric"]].scale, v["mcnemar"]
        yield {
            "": v["other"],
            "task": v["task"],
            "difference": f"{v['difference'] * scale:+.3g}",
            "95 % interval": f"{v['interval'][0] * scale:+.3g} to {v['interval'][1] * scale:+.3g}",
            "permutation p": f"{v['permutation']['p']:.3g} (at least {v['permutation']['smallest']:.2g})",
            "after Holm": f"{v['permutation']['holm']:.3g}",
            "McNemar on votes": "-"
            if mcnemar is None
            else f"{mcnemar['only_other']} : {mcnemar['only_control']}, p {mcnemar['p']:.3g}",
            "wins": "-" if v["wins"] is None else f"{v['wins']:+d}",
            "reliable": "yes" if v["reliable"] else "no",
        }


def verdict(config: VerdictConfig, out: str | Path) -> dict[str, Any]:
    """Judge the run folders of `config.runs`, written NAME=FOLDER or FOLDER, the control first."""
    groups: dict[str, str] = {}
    for text in config.runs:
        name, sign, folder = text.rpartition("=")
        name = name if sign else Path(folder).name
        if name in groups:
            raise InputError(f"--runs: two groups are called {name!r}; write NAME=FOLDER")
        groups[name] = folder
    if len(groups) < 2:
        raise InputError(
            "verdict needs --runs CONTROL_FOLDER OTHER_FOLDER [...], each FOLDER or NAME=FOLDER"
        )
    published = dict(text.partition("=")[::2] for text in config.published)
    for name, system in published.items():
        if system not in PUBLISHED:
            raise InputError(f"--published {name}={system}: there are {', '.join(PUBLISHED)}")
    return judge_folders(groups, out, published=published)
