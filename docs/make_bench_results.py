"""Write the tables and verdicts of the bench's pages from docs/bench.csv, our published results.

    python docs/make_bench_results.py                        # write docs/bench.md, docs/bench_results.md
    python docs/make_bench_results.py runs/bench/bench.json  # first make docs/bench.csv of this bench

Each table stands between two comments, `<!-- results: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import csv
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite, nan
from pathlib import Path
from statistics import mean
from typing import Any

from groundling.core.errors import InputError
from groundling.data.tables import read_rows
from groundling.runs.folder import read_json
from groundling.studies.bench.engine import (
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    TOWER,
    entries_of,
)
from groundling.studies.bench.judge import (
    base_entries,
    families_of,
    judge_curves,
    judge_methods,
    noise_of,
    value_of,
)
from groundling.studies.bench.methods import built_in_methods
from groundling.studies.bench.protocol import TUNING_WORLD, key_of
from groundling.studies.bench.readings import MASKED_LM, PAIRS, READOUT, VISUAL
from groundling.studies.bench.report import curve_groups, curve_rows

PAGES = tuple(Path(__file__).with_name(name) for name in ("bench.md", "bench_results.md"))
RESULTS = Path(__file__).with_name("bench.csv")
BLOCK = re.compile(r"(<!-- results: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
CATEGORY = "linear/category"
WIDTH = 120
DIGITS = 6


GRID = "grid"
"""The arm of a value of a tuned setting in the tuning world."""
READINGS = (VISUAL, READOUT, MASKED_LM, PAIRS, CATEGORY)
COLUMNS = (
    *("method", "arm", "texts", "family", "world", "axis", "value", "seed", "weight"),
    *(*READINGS, "chance", "core seconds", "definition"),
)


def definition_of(protocol: Mapping[str, Any], about: Mapping[str, Any]) -> str:
    """Hash of the protocol and of a method, without its paper and its code, which change without its numbers."""
    kept = {
        name: value for name, value in about.items() if name not in ("source", "paper", "texts")
    }
    return key_of(protocol, kept)


def publish(bench: Mapping[str, Any]) -> None:
    """Write what the page needs of a bench.json; random targets have no part in it."""
    order = [*bench["methods"], ""]
    runs = sorted(bench["runs"], key=lambda one: order.index(one["method"]))
    rows = [_row(bench, one) for one in runs if one["arm"] != RANDOM]
    for name, about in bench["weights"].items():
        place = {"family": TUNING_WORLD.family, "world": TUNING_WORLD.seed, "seed": 0}
        for value, score in about["scores"]:
            own = {"method": name, "arm": GRID, "weight": value, VISUAL: _short(score)}
            rows.append({**place, **own})
    with RESULTS.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def _row(bench: Mapping[str, Any], run: Mapping[str, Any]) -> dict[str, Any]:
    """A run's cells; of curves only the readings that their tables show."""
    condition = run.get("condition", {})
    row = {name: run.get(name) for name in ("method", "arm", "texts", "family", "world", "seed")}
    row |= {"axis": condition.get("axis"), "value": condition.get("value")}
    row |= {name: _short(value_of(run, name)) for name in (READINGS if not condition else [VISUAL])}
    row["chance"] = _short(run["readings"][VISUAL].get("chance"))
    if run["method"] and not condition:
        row["weight"] = run["weight"]
        row["core seconds"] = run["cost"].get("core_seconds")
        row["definition"] = definition_of(bench["protocol"], bench["methods"][run["method"]])
    return row


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def published() -> dict[str, Any]:
    """The methods, weights and runs of docs/bench.csv."""
    bench: dict[str, Any] = {"methods": {}, "weights": {}, "runs": []}
    offered = built_in_methods()
    for _, row in read_rows(RESULTS, COLUMNS):
        name = row["method"]
        if row["arm"] == GRID:
            about = bench["weights"].setdefault(name, {"scores": []})
            about["scores"].append([float(row["weight"]), float(row[VISUAL])])
            continue
        if name and name not in bench["methods"]:
            about = {"data": offered[name].data, "weight": offered[name].weight}
            bench["methods"][name] = about | {"definition": row["definition"]}
        bench["runs"].append(_run(row))
    for about in bench["weights"].values():
        about["chosen"] = max(about["scores"], key=lambda pair: pair[1])[0]
    return bench


def _run(row: Mapping[str, str]) -> dict[str, Any]:
    """A run as in bench.json."""
    run: dict[str, Any] = {name: row[name] for name in ("method", "arm", "texts", "family")}
    run |= {"world": int(row["world"]), "seed": int(row["seed"]), "weight": row["weight"]}
    run["readings"] = {name: {"test": float(row[name])} for name in READINGS if row[name]}
    run["readings"][VISUAL]["chance"] = float(row["chance"])
    run["cost"] = {"core_seconds": float(row["core seconds"] or nan)}
    if row["axis"]:
        run["condition"] = {"axis": row["axis"], "value": int(row["value"])}
    return run


def blocks(bench: Mapping[str, Any]) -> dict[str, str]:
    """Each block's Markdown by name."""
    made = {"weights": _weights(bench)}
    verdicts = judge_methods(bench["runs"], bench["methods"])
    for family in families_of(base_entries(bench["runs"])):
        made[family] = _table(bench, family)
        sentences = [one.sentence for one in verdicts if one.gain and one.family == family]
        made[f"{family} verdicts"] = _list(sentences)
    curves = judge_curves(bench["runs"], bench["methods"])
    for axis, family, own in curve_groups(curves):
        entries = [one for one in bench["runs"] if one["family"] == family]
        rows = curve_rows(axis, own, entries)
        made[f"{family} {axis.name}"] = _markdown(
            list(rows[0]), [list(row.values()) for row in rows]
        )
        made[f"{family} {axis.name} sentences"] = _list([one.sentence for one in own])
    return made


def _list(sentences: Sequence[str]) -> str:
    return "\n".join(
        textwrap.fill(f"- {_escaped(one)}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
        for one in sentences
    )


def pages(bench: Mapping[str, Any], texts: Sequence[str]) -> list[str]:
    """The pages with every block replaced; raises InputError for a block without results, or results without one."""
    made = blocks(bench)
    asked = [found[2] for text in texts for found in BLOCK.finditer(text)]
    names = " and ".join(path.name for path in PAGES)
    for name in asked:
        if name not in made:
            raise InputError(f"{names}: the bench has no results for the block '{name}'")
    for name in made:
        if name not in asked:
            raise InputError(
                f"{names}: no block for the results '{name}'; add <!-- results: {name} --> and <!-- end -->"
            )
    return [
        BLOCK.sub(lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", text) for text in texts
    ]


def _table(bench: Mapping[str, Any], family: str) -> str:
    """A row for each method of a family with first seeds, best first, then the teacher and the noise."""
    entries = [one for one in base_entries(bench["runs"]) if one["family"] == family]
    first = [one for one in entries if one["seed"] == 0]
    rows = []
    for name in bench["methods"]:
        own = entries_of(first, name, METHOD)
        if not own:
            continue
        text = entries_of(first, name, TEXT_CONTROL)
        shuffled = entries_of(first, name, SHUFFLED)
        seconds = mean(one["cost"]["core_seconds"] for one in own)
        cells = [
            name,
            _by_world(own),
            _by_world(text),
            _by_world(shuffled),
            f"{_number(own, READOUT)} ({_number(text, READOUT)})",
            f"{_number(own, MASKED_LM)} ({_number(text, MASKED_LM)})",
            f"{_number(own, PAIRS)} ({_number(text, PAIRS)})",
            f"{_number(own, CATEGORY)} ({_number(text, CATEGORY)})",
            _words(seconds, 0),
        ]
        rows.append((_mean(own, VISUAL), cells))
    rows.sort(key=lambda row: -row[0])
    towers = [one for one in first if one["arm"] == TOWER]
    made = [cells for _, cells in rows]
    made.append(
        ["teacher's text tower", _by_world(towers), "", "", _number(towers, READOUT), *[""] * 4]
    )
    chances = [one["readings"][VISUAL].get("chance", nan) for one in first]
    made.append(["guessing", _words(mean(chances)), "", "", "0.50", "", "0.50", "", ""])
    noise = [
        noise_of(entries, reading) for reading in (VISUAL, READOUT, MASKED_LM, PAIRS, CATEGORY)
    ]
    if isfinite(noise[0]):
        words = [_words(one, 3) for one in noise]
        made.append(["noise between seeds", words[0], "", "", *words[1:], ""])
    head = [
        *("method", "visual", "text control", "control without its images"),
        *("odd one out, read out (text control)", "masked LM, nats (text control)"),
        *("minimal pairs (text control)", "category, linear (text control)", "core seconds"),
    ]
    return _markdown(head, made)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(map(_escaped, cells)) + " |" for cells in lines)


def _escaped(text: str) -> str:
    """Text, such as a method's name, without signs that end a cell or begin a comment."""
    return text.replace("|", "\\|").replace("<", "&lt;")


def _words(value: float, digits: int = 2) -> str:
    """A number; a dash for none."""
    return f"{value:.{digits}f}" if isfinite(value) else "-"


def _mean(entries: Sequence[Mapping[str, Any]], reading: str) -> float:
    values = [value_of(one, reading) for one in entries]
    return mean([one for one in values if one is not None] or [nan])


def _number(entries: Sequence[Mapping[str, Any]], reading: str) -> str:
    return _words(_mean(entries, reading))


def _by_world(entries: Sequence[Mapping[str, Any]]) -> str:
    """The mean, and each world's value."""
    ordered = sorted(entries, key=lambda one: one["world"])
    each = ", ".join(_number([one], VISUAL) for one in ordered)
    return f"**{_number(entries, VISUAL)}** {each}" if entries else "-"


def _weights(bench: Mapping[str, Any]) -> str:
    """The scores of each grid, the chosen value in bold."""
    rows = []
    for name, about in bench["weights"].items():
        scores = []
        for value, score in about["scores"]:
            words = f"{value:g}: {_words(score)}"
            scores.append(f"**{words}**" if value == about["chosen"] else words)
        rows.append([name, bench["methods"][name]["weight"], ", ".join(scores)])
    return _markdown(["method", "setting", "score by value"], rows)


def main(arguments: Sequence[str]) -> None:
    """Publish a bench if one is named, and write the page."""
    if arguments:
        publish(read_json(Path(arguments[0])))
    try:
        texts = pages(published(), [path.read_text(encoding="utf-8") for path in PAGES])
    except InputError as error:
        raise SystemExit(str(error)) from None
    for path, text in zip(PAGES, texts, strict=True):
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
