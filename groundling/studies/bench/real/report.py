"""The report of a bench on a real encoder: readings, gains beyond controls, the price and the cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from statistics import mean, stdev
from typing import Any

from groundling.runs.report import ForestRow, Report, ReportSection, TableRow, forest_svg
from groundling.studies.bench.arms import METHOD, SHUFFLED, TEXT_CONTROL
from groundling.studies.bench.method import TEACHER
from groundling.studies.bench.real.finished import BEFORE
from groundling.studies.bench.real.judge import GainVerdict, words_of
from groundling.studies.bench.report import cost_rows

Bench = Mapping[str, Any]
"""Content of a `bench.json` of a real encoder."""

PERMUTED = "permuted teacher"
"""The shuffled control of a method that reads text and teacher, in tables."""
TERMS = {
    BEFORE: "The encoder as it was given, before any method.",
    TEXT_CONTROL: "Masked LM on exactly the texts that the method reads, for as many steps: the caption control.",
    SHUFFLED: "The method on captions with each other's images.",
    PERMUTED: "The method with a teacher whose token embeddings are permuted among tokens of similar frequency: the "
    "shuffled control of a method that reads its text tower.",
    "seeds": "95 % interval over adaptation seeds: Student's t, paired by seed.",
    "items": "95 % interval over the set's items, such as nouns or pairs of words: bootstrap, paired by item.",
}
"""Glossary of the page."""


def entries_of(bench: Bench, method: str, arm: str) -> list[Mapping[str, Any]]:
    """A method's entries of one arm; the text control of its texts."""
    if arm == TEXT_CONTROL:
        texts = bench["methods"][method]["texts"]
        return [one for one in bench["runs"] if (one["arm"], one["texts"]) == (arm, texts)]
    return [one for one in bench["runs"] if (one["arm"], one["method"]) == (arm, method)]


def table_rows(bench: Bench, gain: bool) -> list[TableRow]:
    """The unadapted encoder, each method and its controls: mean ± standard deviation of each reading over seeds."""
    before = [one for one in bench["runs"] if one["arm"] == BEFORE]
    names = [name for name, one in before[0]["readings"].items() if one["gain"] == gain]
    if not names:
        return []
    rows = [_row(BEFORE, before, names)]
    for method, about in bench["methods"].items():
        for arm in (METHOD, TEXT_CONTROL, SHUFFLED):
            entries = entries_of(bench, method, arm)
            if entries:
                word = _control_word(about["data"]) if arm == SHUFFLED else arm
                label = method if arm == METHOD else f"  {method}: {word}"
                rows.append(_row(label, entries, names))
    return rows


def _control_word(data: str) -> str:
    """The shuffled control of a data class, in a word."""
    return PERMUTED if data == TEACHER else SHUFFLED


def _row(label: str, entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> TableRow:
    return {"arm": label, **{name: _cell(entries, name) for name in names}}


def _cell(entries: Sequence[Mapping[str, Any]], name: str) -> str:
    values = [one["readings"][name]["value"] for one in entries if name in one["readings"]]
    if not values:
        return "-"
    spread = f" ± {stdev(values):.3f}" if len(values) > 1 else ""
    return f"{mean(values):.3f}{spread}"


def verdict_rows(bench: Bench, verdicts: Sequence[GainVerdict]) -> list[TableRow]:
    """The differences behind the verdicts; of prices, those to the text control and to the unadapted encoder."""
    return [
        {
            "method": one.method,
            "reads": bench["methods"][one.method]["data"],
            "set": one.reading,
            "measure": one.measure,
            f"beyond {TEXT_CONTROL}": words_of(one.text),
            "beyond shuffled control": words_of(one.shuffled),
            f"since {BEFORE}": f"{one.before.mean:+.3f}",
            "p after Holm": f"{one.holm:.2g}" if isfinite(one.holm) else "-",
            "beyond controls": ("yes" if one.beyond else "no") if isfinite(one.holm) else "-",
        }
        for one in verdicts
    ]


def make_report(bench: Bench, verdicts: Sequence[GainVerdict], sentences: Sequence[str]) -> Report:
    """Readings, gains, price, controls and cost."""
    gains = [one for one in verdicts if one.gain]
    prices = [one for one in verdicts if not one.gain]
    controls: list[TableRow] = [
        {"method": name, "control": control, "what it is": words}
        for name, about in bench["methods"].items()
        for control, words in about["controls"].items()
    ]
    sections = [
        ReportSection("Readings", rows=table_rows(bench, True)),
        ReportSection("Gains", rows=verdict_rows(bench, gains), figures=_forest(bench, gains)),
        ReportSection("Price", rows=table_rows(bench, False)),
        ReportSection("Price, differences", rows=verdict_rows(bench, prices)),
        ReportSection("Controls", rows=controls),
        ReportSection(
            "Cost of a run", rows=cost_rows(bench["methods"], partial(entries_of, bench))
        ),
    ]
    notes = [*bench["notes"], f"written on {datetime.now(UTC).date().isoformat()}"]
    title = "Which method gives this encoder visual knowledge?"
    return Report(title, sections, sentences, notes=notes, terms=TERMS)


def _forest(bench: Bench, verdicts: Sequence[GainVerdict]) -> list[str]:
    """Both differences of each method and set, with their intervals over seeds."""
    rows = []
    for one in verdicts:
        word = _control_word(bench["methods"][one.method]["data"])
        for control, found in ((TEXT_CONTROL, one.text), (word, one.shuffled)):
            if found is not None and isfinite(found.over_seeds[0]):
                label = f"{one.method}, {one.reading}, beyond {control}"
                counts = f"{len(found.seeds)} adaptation seeds, each a dot"
                rows.append(
                    ForestRow(
                        label, counts, found.mean, found.over_seeds, found.by_seed, one.beyond
                    )
                )
    unit = "difference in the set's measure; right of 0 is better than the control"
    return [forest_svg(rows, unit)] if rows else []
