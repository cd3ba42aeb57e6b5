"""The bench's reports: tables of readings and verdicts with their price, forest plots, curves, and cost."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from math import isfinite, nan
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from groundling.runs.folder import write_json
from groundling.runs.report import (
    BLACK,
    MARKS,
    WIDTH,
    ForestRow,
    Report,
    ReportSection,
    TableRow,
    forest_svg,
    new_figure,
    svg_of,
)
from groundling.stats.linear_probes import TEXTUAL
from groundling.stats.verdict import ALPHA
from groundling.studies.bench.engine import (
    BEFORE,
    IMAGE_TOWER,
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    TOWER,
    Entry,
    entries_of,
)
from groundling.studies.bench.judge import (
    MIN_UNITS,
    BenchVerdict,
    Difference,
    MethodCurve,
    Methods,
    base_entries,
    entries_at,
    families_of,
    is_reliable,
    noise_of,
    unit_of,
    value_of,
    words_of,
)
from groundling.studies.bench.methods import CLASSES
from groundling.studies.bench.protocol import AXES, CurveAxis
from groundling.studies.bench.readings import CAUSAL_LM, MASKED_LM, PAIRS, READOUT, VISUAL

TUNED_QUESTIONS = {
    "truth": "true/false",
    "odd": "odd one out",
    "category": "category",
    "order": "word order",
}
"""Fine-tuned questions, with their headings."""
READINGS = {
    READOUT: "odd one out, read out",
    **TUNED_QUESTIONS,
    PAIRS: "minimal pairs",
    MASKED_LM: "masked LM loss",
    CAUSAL_LM: "causal LM loss",
}
"""Readings in tables after the linear ones, with their headings."""
LINEAR = "linear/"
"""Prefix of the linear readings of attributes."""
SET_DIGITS = 3
"""Digits of numbers on published sets, on which methods differ less than in worlds."""
NO_PROBE = "did not train"
"""Shown for a fine-tuned probe that never left the loss of guessing."""
CONTROL_TERMS = {
    BEFORE: "The encoder before any training.",
    TEXT_CONTROL: "Masked LM, or for a sentence encoder SimCSE, on exactly the texts that the method reads, for as "
    "many steps.",
    SHUFFLED: "The method on captions with each other's images; a method that reads the teacher's text tower gets a "
    "teacher trained on images that show each noun differently every time, or on a real encoder one whose token "
    "embeddings are permuted among tokens of similar frequency.",
    RANDOM: "The method with noise in place of images, or with an untrained teacher.",
    "noise": "Standard deviation of a metric between adaptation seeds of one method or control, over all of them.",
    "guessing": "Accuracy of the majority class.",
}
TERMS = CONTROL_TERMS | {
    "visual": "Mean accuracy of linear probes of the visual attributes: a linear map predicts each from the encoder's "
    "state at a noun that it was not fitted on.",
    TOWER: "The same probes of the teacher's own text embeddings: an upper bound for what its text tower can teach.",
    "odd one out, read out": "Which of two nouns looks like a third, from the linear probes, without fine-tuning.",
    "true/false": "After fine-tuning: is “the zib is red” true?",
    "odd one out": "After fine-tuning: is “the zib looks like the dax, not the wug” true?",
    "category": "After fine-tuning: does the verb fit the noun? Text alone answers it.",
    "word order": "After fine-tuning: are two words of a sentence swapped? Text alone answers it.",
    NO_PROBE: "The training loss stayed above 98 % of that of guessing, so the accuracy would be meaningless.",
    "masked LM loss": "Mean loss of masked tokens of held-out text, in nats; lower is better.",
    "minimal pairs": "Share of test sentences that the masked LM prefers: to themselves with two words swapped, and to "
    "the same noun with a verb and an ending of another category; the mean of both.",
    "extra parameters": "Parameters trained beside the encoder's.",
}
"""Glossary of the page."""
CAUSAL_WORDS = {"masked LM": "causal LM", "Masked LM": "Causal LM", "masked tokens": "next tokens"}
"""Replacements in the glossary of a bench of causal students."""
STUDENTS = {"masked": "masked (a small BERT)", "causal": "causal (a small GPT-2)"}
"""Names of students in the report."""
CURVE_RULE = (
    "Gain: accuracy of the linear visual probes on test nouns, method minus text control, with the standard deviation "
    f"over worlds. A star marks gains above 0: a two-sided t-test over at least {MIN_UNITS} worlds, whose standard "
    f"error is at least what the noise between adaptation seeds implies, has p of at most {ALPHA:g}, without a "
    "correction for the number of tests. If all of a method's values rest on the same worlds, it works from the "
    "smallest value on from which all gains have a star."
)
"""What the tables of curves show, and the rule of their sentences."""


# -- tables ------------------------------------------------------------------------------------------------------------
def scale_warning(scale: float) -> str:
    """A sentence on a bench that is smaller than the protocol's; empty for others."""
    if scale >= 1:
        return ""
    return f"Scale {scale:g}, a trial run: models learn nothing at this scale, and the numbers mean nothing."


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """A mean, and the standard deviation if there are several values."""
    deviation = f" ± {stdev(values):{form.lstrip('+')}}" if len(values) > 1 else ""
    return f"{mean(values):{form}}{deviation}"


def by_unit(entries: Sequence[Entry], reading: str, split: str = "test") -> list[float]:
    """A reading's mean in each world, or on a real encoder with each adaptation seed."""
    found: dict[int, list[float]] = {}
    for one in entries:
        value = value_of(one, reading, split)
        if value is not None:
            found.setdefault(unit_of(one), []).append(value)
    return [mean(found[unit]) for unit in sorted(found)]


def cell(entries: Sequence[Entry], reading: str, split: str = "test", digits: int = 2) -> str:
    """Mean and standard deviation over units of a reading."""
    if values := by_unit(entries, reading, split):
        return spread(values, f".{digits}f")
    was_read = any(reading in one["readings"] for one in entries)
    return NO_PROBE if was_read and reading in TUNED_QUESTIONS else "-"


def headings_of(entries: Sequence[Entry]) -> dict[str, str]:
    """Headings of the readings that entries of worlds have: the visual mean, its attributes, then the others."""
    linear = [name for one in entries for name in one["readings"] if name.startswith(LINEAR)]
    headings = {VISUAL: "visual"}
    headings |= {name: name.removeprefix(LINEAR) for name in linear if name != LINEAR + TEXTUAL}
    headings |= READINGS
    known = {name for one in entries for name in one["readings"]}
    return {name: heading for name, heading in headings.items() if name in known}


def arms_of(entries: Sequence[Entry], methods: Methods) -> dict[str, list[Entry]]:
    """The entries of each row of a table, by its label."""
    arms = {BEFORE: [one for one in entries if one["arm"] == BEFORE]}
    for name in methods:
        for arm in (METHOD, TEXT_CONTROL, SHUFFLED, RANDOM):
            label = name if arm == METHOD else f"  {name}: {arm}"
            arms[label] = entries_of(entries, name, arm)
    arms[TOWER] = [one for one in entries if one["arm"] == TOWER]
    return {label: own for label, own in arms.items() if own}


def table_rows(
    entries: Sequence[Entry], methods: Methods, headings: Mapping[str, str], digits: int = 2
) -> list[TableRow]:
    """A row for every method and control, the unadapted encoder before and the teacher after them; guessing; the noise.

    `entries`: those of one family of worlds, or of a real encoder; `headings`: by reading.
    """
    rows: list[TableRow] = [
        {"arm": label, **{word: cell(own, one, digits=digits) for one, word in headings.items()}}
        for label, own in arms_of(entries, methods).items()
    ]
    chance = {word: chance_of(entries, one) for one, word in headings.items()}
    guessing = {word: _number(value, f".{digits}f") for word, value in chance.items()}
    noise = {word: _number(noise_of(entries, one), ".3f") for one, word in headings.items()}
    return [*rows, {"arm": "guessing", **guessing}, {"arm": "noise", **noise}]


def chance_of(entries: Sequence[Entry], reading: str) -> float:
    """A reading's mean accuracy by guessing; NaN if it is not known."""
    found = [value_of(one, reading, "chance") for one in entries]
    return mean([one for one in found if one is not None] or [nan])


def _number(value: float | None, form: str) -> str:
    return "-" if value is None or not isfinite(value) else f"{value:{form}}"


def verdict_rows(verdicts: Sequence[BenchVerdict], digits: int = 2) -> list[TableRow]:
    """The differences behind verdicts, and what is decided; of prices, without a test."""
    rows: list[TableRow] = []
    for one in verdicts:
        row = {
            "method": one.method,
            "metric": f"{one.reading}, {one.measure}" if one.measure else one.reading,
            f"beyond {TEXT_CONTROL}": words_of(one.text, digits),
            f"beyond {SHUFFLED}": "-" if one.shuffled is None else words_of(one.shuffled, digits),
            "worlds or seeds": str(len(one.text.units)),
            "p after Holm": _number(one.holm, ".2g"),
            "beyond controls": ("yes" if one.is_beyond else "no") if isfinite(one.holm) else "-",
        }
        if one.before is not None:
            row[f"since {BEFORE}"] = f"{one.before.mean:+.{digits}f}"
        rows.append(row)
    return rows


def cost_rows(methods: Methods, runs: Sequence[Entry]) -> list[TableRow]:
    """What each method cost per run, beside its text control."""
    rows: list[TableRow] = []
    for name in methods:
        for arm in (METHOD, TEXT_CONTROL):
            costs = [one["cost"] for one in entries_of(runs, name, arm)]
            if not costs:
                continue
            rows.append(
                {
                    "arm": name if arm == METHOD else f"  {name}: {arm}",
                    "steps": f"{mean(cost['steps'] for cost in costs):,.0f}",
                    "samples": f"{mean(cost['samples'] for cost in costs):,.0f}",
                    "epochs": f"{mean(cost['epochs'] for cost in costs):.2f}",
                    "training seconds": f"{mean(cost['seconds'] for cost in costs):.1f}",
                    "extra parameters": f"{costs[0]['extra_parameters']:,}",
                }
            )
    return rows


# -- reports -----------------------------------------------------------------------------------------------------------
def make_report(
    bench: Mapping[str, Any], verdicts: Sequence[BenchVerdict], curves: Sequence[MethodCurve]
) -> Report:
    """The report of a bench in rendered worlds."""
    runs, methods = bench["runs"], bench["methods"]
    base = base_entries(runs)
    sections: list[ReportSection] = []
    for family in families_of(base):
        entries = [one for one in base if one["family"] == family]
        for data in CLASSES:
            own = [one for one in verdicts if (one.family, one.data) == (family, data)]
            of_class = {name: about for name, about in methods.items() if about["data"] == data}
            title = f"{family.capitalize()}: methods that read {data}"
            rows = table_rows(entries, of_class, headings_of(entries))
            sections += _compared(title, rows, own) if own else []
    for axis, family, of_axis in curve_groups(curves):
        sections.append(_curve_section(axis, family, of_axis, runs))
    weights: list[TableRow] = [
        {
            "method": name,
            "setting": methods[name]["weight"],
            "visual, without test nouns": ", ".join(
                f"{value}: {score:.2f}" for value, score in about["scores"]
            ),
            "chosen": str(about["chosen"]),
        }
        for name, about in bench["weights"].items()
    ]
    sections += [
        ReportSection("Cost of a run", rows=cost_rows(methods, base)),
        ReportSection("Chosen settings", rows=weights),
    ]
    protocol = bench["protocol"]
    student = bench["student"]
    terms = {_worded(name, student): _worded(one, student) for name, one in TERMS.items()}
    budget = f"{protocol['steps']} steps of {protocol['batch']} samples per method"
    about = f"student: {STUDENTS[student]}; {budget}; {_today()}"
    warning = scale_warning(protocol["scale"])
    sentences = [one.sentence for one in verdicts if one.gain]
    return Report(
        f"Which method gives a text {'decoder' if student == 'causal' else 'encoder'} visual knowledge?",
        sections,
        [*([warning] if warning else []), *sentences],
        notes=[*bench["notes"], *([CURVE_RULE] if curves else []), about],
        terms=terms,
    )


def _worded(text: str, student: str) -> str:
    for word, other in CAUSAL_WORDS.items() if student == "causal" else ():
        text = text.replace(word, other)
    return text


def make_set_report(
    bench: Mapping[str, Any], verdicts: Sequence[BenchVerdict], sentences: Sequence[str]
) -> Report:
    """The report of a bench on a real encoder: readings, differences, price and cost."""
    runs, methods = bench["runs"], bench["methods"]
    (before,) = (one for one in runs if one["arm"] == BEFORE)
    sections = []
    for title, is_gain in (
        ("Probe accuracy and correlations", True),
        ("Cost to language skills", False),
    ):
        names = {name: name for name, one in before["readings"].items() if one["gain"] == is_gain}
        own = [one for one in verdicts if one.gain == is_gain]
        rows = table_rows(runs, methods, names, SET_DIGITS)
        sections += _compared(title, rows, own, SET_DIGITS) if names else []
    sections.append(ReportSection("Cost of a run", rows=cost_rows(methods, runs)))
    notes = [*bench["notes"], _today()]
    title = "Which method gives this encoder visual knowledge?"
    return Report(title, sections, sentences, notes=notes, terms=CONTROL_TERMS)


def _compared(
    title: str, rows: list[TableRow], verdicts: Sequence[BenchVerdict], digits: int = 2
) -> list[ReportSection]:
    """A table of readings, and one of differences with the gains' figure."""
    differences = verdict_rows(verdicts, digits)
    return [
        ReportSection(title, rows=rows),
        ReportSection(f"{title}, differences", rows=differences, figures=_forest(verdicts)),
    ]


def publish(bench: Mapping[str, Any], report: Report, out: Path) -> None:
    """Write `bench.json` and the page, and print the report."""
    write_json(out / "bench.json", bench)
    report.write(out / "report.html")
    print(f"\n{report.text()}\n\n{out / 'bench.json'}\n{out / 'report.html'}")


def _today() -> str:
    return f"written on {datetime.now(UTC).date().isoformat()}"


# -- curves ------------------------------------------------------------------------------------------------------------
def curve_groups(
    curves: Sequence[MethodCurve],
) -> Iterator[tuple[CurveAxis, str, list[MethodCurve]]]:
    """The curves of each axis and family of worlds."""
    for axis in AXES:
        of_axis = [one for one in curves if one.axis == axis.name]
        for family in dict.fromkeys(one.family for one in of_axis):
            yield axis, family, [one for one in of_axis if one.family == family]


def curve_rows(
    axis: CurveAxis, curves: Sequence[MethodCurve], entries: Sequence[Entry]
) -> list[TableRow]:
    """Gains of an axis's methods in one family with their numbers of worlds, then the readings of controls and teacher.

    `entries`: those of the family. The protocol's own value has "(bench)" beside it.
    """
    values = sorted({value for one in curves for value in one.gains})
    headings = {value: f"{value:,}{' (bench)' if value == axis.base else ''}" for value in values}
    rows: list[TableRow] = []

    def add(label: str, cells: Mapping[int, str]) -> None:
        own = {heading: cells.get(value, "-") for value, heading in headings.items()}
        rows.append({axis.unit: label, **own})

    for one in curves:
        add(f"gain of {one.method}", {value: _gain(gain) for value, gain in one.gains.items()})
        counts = {value: str(len(gain.units)) for value, gain in one.gains.items()}
        add(f"  {one.method}: worlds", counts)
    at = {value: entries_at(entries, axis, value) for value in values}
    sharing: dict[str, list[str]] = {}
    for one in curves:
        texts = next((run["texts"] for run in entries if run["method"] == one.method), "")
        sharing.setdefault(texts, []).append(one.method)
    for names in sharing.values():
        own = {value: entries_of(runs, names[0], TEXT_CONTROL) for value, runs in at.items()}
        cells = {value: cell(found, VISUAL) for value, found in own.items()}
        add(f"{TEXT_CONTROL} of {' and '.join(names)}", cells)
    for tower in (TOWER, IMAGE_TOWER):
        own = {value: [run for run in runs if run["arm"] == tower] for value, runs in at.items()}
        if any(found for value, found in own.items() if value != axis.base):
            add(tower, {value: cell(found, VISUAL) for value, found in own.items()})
    return rows


def _gain(gain: Difference) -> str:
    star = "*" if is_reliable([gain], gain.p) else ""
    return spread(gain.by_unit, "+.2f") + star if gain.units else "-"


def _curve_section(
    axis: CurveAxis, family: str, curves: Sequence[MethodCurve], runs: Sequence[Entry]
) -> ReportSection:
    """Sentences, a figure of the gains and a table."""
    in_family = [one for one in runs if one["family"] == family]
    figure = new_figure(WIDTH, 3.9)
    axes = figure.subplots()
    for number, one in enumerate(curves):
        colour, mark = MARKS[number % len(MARKS)]
        gains = {value: gain for value, gain in one.gains.items() if gain.units}
        means = [gain.mean for gain in gains.values()]
        axes.plot(list(gains), means, color=colour, marker=mark, label=one.method, zorder=3)
        for value, gain in gains.items():
            axes.scatter([value] * len(gain.units), gain.by_unit, s=9, color=colour, zorder=4)
    values = sorted({value for one in curves for value in one.gains})
    axes.set_xscale("log")
    axes.set_xticks(values, [f"{value:,}" for value in values])
    axes.minorticks_off()
    axes.axhline(0, color=BLACK, linestyle="dashed", linewidth=0.9, zorder=1)
    axes.legend(fontsize=8, frameon=False)
    axes.set_xlabel(axis.unit, fontsize=9)
    axes.set_ylabel("gain: visual probes beyond the text control", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    heading = f"{family.capitalize()}: gain against {axis.unit}"
    return ReportSection(
        heading,
        [axis.about, *(one.sentence for one in curves)],
        figures=[svg_of(figure, f"{heading}, as in the table")],
        rows=curve_rows(axis, curves, in_family),
    )


# -- figures -----------------------------------------------------------------------------------------------------------
def _forest(verdicts: Sequence[BenchVerdict]) -> list[str]:
    """Both differences of each gain that has an interval."""
    rows = [
        ForestRow(
            f"{one.method}, {one.reading}, beyond {control}",
            f"{len(found.units)} worlds or seeds, each a dot",
            found.mean,
            found.interval,
            found.by_unit,
            one.is_beyond,
        )
        for one in verdicts
        if one.gain
        for control, found in zip((TEXT_CONTROL, SHUFFLED), one.controls, strict=False)
        if isfinite(found.error)
    ]
    about = "difference in the metric; right of 0 is better than the control"
    return [forest_svg(rows, about)] if rows else []
