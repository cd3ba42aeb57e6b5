"""Write the tables and verdicts of docs/bench.md from docs/bench.json, our published results.

    python docs/make_bench_results.py              # write docs/bench.md
    python docs/make_bench_results.py runs/bench   # first replace docs/bench.json by this bench's

Each table stands between two comments, `<!-- results: NAME -->` and `<!-- end -->`.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from math import isfinite
from pathlib import Path
from statistics import mean
from typing import Any

from groundling.studies.bench.arms import METHOD, SHUFFLED, TEXT_CONTROL, TOWER
from groundling.studies.bench.judge import (
    base_entries,
    entries_of,
    families_of,
    judge_methods,
    noise_of,
    value_of,
)
from groundling.studies.bench.readings import MASKED_LM, PAIRS, READOUT, VISUAL
from groundling.studies.bench.results import read_bench

PAGE = Path(__file__).with_name("bench.md")
RESULTS = Path(__file__).with_name("bench.json")
BLOCK = re.compile(r"(<!-- results: ([\w ]+) -->\n).*?(<!-- end -->)", re.DOTALL)
WIDTH = 120
DIGITS = 6


def _rounded(value: Any) -> Any:
    """A JSON value with rounded numbers, since the file is tracked."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {name: _rounded(one) for name, one in value.items()}
    return [_rounded(one) for one in value] if isinstance(value, list) else value


def blocks(bench: Mapping[str, Any]) -> dict[str, str]:
    """Each block's Markdown by name."""
    made = {"weights": _weights(bench)}
    verdicts = judge_methods(bench["runs"], bench["methods"])
    for family in families_of(base_entries(bench["runs"])):
        made[family] = _table(bench, family)
        sentences = [one.sentence for one in verdicts if one.family == family]
        made[f"{family} verdicts"] = "\n".join(
            textwrap.fill(f"- {one}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)
            for one in sentences
        )
    return made


def page(bench: Mapping[str, Any], text: str) -> str:
    """The page with every block replaced; raises KeyError for a block without results."""
    made = blocks(bench)
    return BLOCK.sub(lambda found: f"{found[1]}{made[found[2]]}\n{found[3]}", text)


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
            f"{seconds:.0f}",
        ]
        rows.append((_mean(own, VISUAL), cells))
    rows.sort(key=lambda row: -row[0])
    towers = [one for one in first if one["arm"] == TOWER]
    made = [cells for _, cells in rows]
    made.append(
        ["teacher's text tower", _by_world(towers), "", "", _number(towers, READOUT), *[""] * 3]
    )
    chance = mean(one["readings"][VISUAL]["chance"] for one in towers)
    made.append(["guessing", _words(chance), "", "", ".50", "", ".50", ""])
    noise = [noise_of(entries, reading) for reading in (VISUAL, READOUT, MASKED_LM, PAIRS)]
    if isfinite(noise[0]):
        words = [_words(one, 3) for one in noise]
        made.append(["noise between seeds", words[0], "", "", *words[1:], ""])
    head = [
        *("method", "visual", "text control", "control without its images"),
        *("odd one out, read out (text control)", "masked LM, nats (text control)"),
        *("minimal pairs (text control)", "core seconds"),
    ]
    return _markdown(head, made)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = (head, ["---"] * len(head), *rows)
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _words(value: float, digits: int = 2) -> str:
    """A number without the 0 before its point."""
    return f"{value:.{digits}f}".removeprefix("0")


def _mean(entries: Sequence[Mapping[str, Any]], reading: str) -> float:
    values = [value_of(one, reading) for one in entries]
    return mean(one for one in values if one is not None)


def _number(entries: Sequence[Mapping[str, Any]], reading: str) -> str:
    return _words(_mean(entries, reading))


def _by_world(entries: Sequence[Mapping[str, Any]]) -> str:
    """The mean, and each world's value."""
    ordered = sorted(entries, key=lambda one: one["world"])
    each = ", ".join(_number([one], VISUAL) for one in ordered)
    return f"**{_number(entries, VISUAL)}** {each}"


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
    bench = _rounded(read_bench(arguments[0])) if arguments else read_bench(RESULTS)
    # The page is made before either file is written.
    text = page(bench, PAGE.read_text(encoding="utf-8"))
    line = json.dumps(bench, separators=(",", ":"), allow_nan=False)
    RESULTS.write_text(line + "\n", encoding="utf-8")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
