"""The bench's report: readings with intervals, verdicts, price against gain, and cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from math import isfinite
from statistics import mean, stdev
from typing import Any

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
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    TOWER,
    Entry,
    entries_of,
)
from groundling.studies.bench.judge import (
    MIN_WORLDS,
    MethodVerdict,
    control_word,
    families_of,
    noise_of,
    value_of,
    words_of,
)
from groundling.studies.bench.methods import CLASSES
from groundling.studies.bench.readings import MASKED_LM, PAIRS, READOUT, VISUAL

READINGS = {
    READOUT: "odd one out, read out",
    "truth": "true/false",
    "odd": "odd one out",
    "category": "category",
    "order": "word order",
    PAIRS: "minimal pairs",
    MASKED_LM: "masked LM loss",
}
"""Readings in tables after the linear ones, with their headings."""
LINEAR = "linear/"
"""Prefix of the linear readings of attributes."""
Methods = Mapping[str, Mapping[str, Any]]
"""Descriptions of methods by name."""
NO_PROBE = "did not train"
"""Shown for a fine-tuned probe that never left the loss of guessing."""
TERMS = {
    "visual": "Mean of the linear readings of the visual attributes: a linear map predicts each from the encoder's "
    "state at a noun that it was not fitted on.",
    TEXT_CONTROL: "Masked LM on exactly the texts that the method reads, for as many steps.",
    SHUFFLED: "The method on captions with each other's images, or with a teacher for which nouns look different in "
    "every image.",
    RANDOM: "The method with images of noise, or an untrained teacher.",
    TOWER: "The same readings of the teacher's own text embeddings: a ceiling for what its text side can teach.",
    "noise": "Standard deviation of a reading between adaptation seeds of one arm in one world, over all arms.",
    "masked LM loss": "Mean loss of masked tokens of held-out text, in nats; lower is better.",
    "minimal pairs": "Share of test sentences that the masked LM prefers: to themselves with two words swapped, and to "
    "the same noun with a verb and an ending of another category; the mean of both.",
    "train nouns": "By cross-validation over the nouns on which the final readings are fitted.",
    "extra parameters": "Parameters trained beside the encoder's, and those that its exported model has beyond the "
    "handed-over encoder.",
}
"""Glossary of the page."""
PRICE = "Right: more visual attributes than the text control. Up: a higher loss of masked LM on held-out text."
CURVE_RULE = (
    "Gain: the linear visual reading on test nouns, of the method minus its text control, with the standard deviation "
    f"over worlds. A star marks gains above 0: a two-sided t-test over at least {MIN_WORLDS} worlds, whose standard "
    f"error is at least what the noise between adaptation seeds implies, has p of at most {ALPHA:g}, without a "
    "correction for the number of tests. If all of a method's values rest on the same worlds, it works from the "
    "smallest value on from which all gains have a star."
)
"""What the tables of curves show, and the rule of their sentences."""


def scale_warning(bench: Mapping[str, Any]) -> str:
    """A sentence on a bench that is smaller than the protocol's; empty for others."""
    scale = bench["protocol"]["scale"]
    if scale >= 1:
        return ""
    return f"Scale {scale:g}, a trial run: models learn nothing at this scale, and no number means anything."


def cell(entries: Sequence[Entry], reading: str, split: str = "test") -> str:
    """Mean and standard deviation over worlds of a reading; its worlds' means are over adaptation seeds."""
    if not any(reading in one["readings"] for one in entries):
        return "-"
    by_world: dict[int, list[float]] = {}
    for one in entries:
        value = value_of(one, reading, split)
        if value is not None:
            by_world.setdefault(one["world"], []).append(value)
    if not by_world:
        return NO_PROBE if reading in ("truth", "odd", "category", "order") else "-"
    means = [mean(values) for values in by_world.values()]
    spread = f" ± {stdev(means):.2f}" if len(means) > 1 else ""
    return f"{mean(means):.2f}{spread}"


def headings_of(entries: Sequence[Entry]) -> dict[str, str]:
    """The readings that entries have, with their headings: the visual mean, its attributes, then the others."""
    linear = [name for one in entries for name in one["readings"] if name.startswith(LINEAR)]
    headings = {VISUAL: "visual"}
    headings |= {name: name.removeprefix(LINEAR) for name in linear if name != LINEAR + TEXTUAL}
    headings |= READINGS
    known = {name for one in entries for name in one["readings"]}
    return {name: heading for name, heading in headings.items() if name in known}


def table_rows(entries: Sequence[Entry], methods: Methods, data: str = "") -> list[TableRow]:
    """One row per method and control of a data class (default: all), then the ceiling, guessing and the noise.

    `entries`: those of one family of worlds.
    """
    shown = headings_of(entries)
    rows: list[TableRow] = []
    for name, about in methods.items():
        if data and about["data"] != data:
            continue
        for arm in (METHOD, TEXT_CONTROL, SHUFFLED, RANDOM):
            found = entries_of(entries, name, arm)
            if found:
                label = name if arm == METHOD else f"  {name}: {_arm_word(arm, about['data'])}"
                rows.append({"arm": label, **{shown[r]: cell(found, r) for r in shown}})
    tower = [one for one in entries if one["arm"] == TOWER]
    if tower:
        rows.append({"arm": TOWER, **{shown[r]: cell(tower, r) for r in shown}})
    guessing = {shown[r]: _chance(entries, r) for r in shown}
    noise = {shown[r]: _number(noise_of(entries, r), ".3f") for r in shown}
    return [*rows, {"arm": "guessing", **guessing}, {"arm": "noise", **noise}]


def _arm_word(arm: str, data: str) -> str:
    if data == "text and teacher":
        return {SHUFFLED: "redrawn attributes", RANDOM: "untrained teacher"}.get(arm, arm)
    return arm


def _chance(entries: Sequence[Entry], reading: str) -> str:
    found = [
        one["readings"][reading]["chance"]
        for one in entries
        if "chance" in one["readings"].get(reading, {})
    ]
    return f"{mean(found):.2f}" if found else "-"


def _number(value: float, form: str) -> str:
    return f"{value:{form}}" if isfinite(value) else "-"


def train_rows(entries: Sequence[Entry], methods: Methods, data: str) -> list[TableRow]:
    """Linear readings on train, dev and test nouns of each method and its text control."""
    rows: list[TableRow] = []
    for name, about in methods.items():
        if about["data"] != data:
            continue
        for arm in (METHOD, TEXT_CONTROL):
            found = entries_of(entries, name, arm)
            for reading in (VISUAL, LINEAR + TEXTUAL):
                if found:
                    row = {"arm": name if arm == METHOD else f"  {name}: {arm}"}
                    row["reading"] = reading.removeprefix(LINEAR)
                    for split in ("train", "dev", "test"):
                        row[f"{split} nouns"] = cell(found, reading, split)
                    rows.append(row)
    return rows


def verdict_rows(verdicts: Sequence[MethodVerdict]) -> list[TableRow]:
    """The differences behind the verdicts."""
    rows: list[TableRow] = []
    for one in verdicts:
        price = one.prices.get(MASKED_LM)
        rows.append(
            {
                "method": one.method,
                "beyond text control": words_of(one.visual),
                f"beyond {SHUFFLED}": "-" if one.shuffled is None else words_of(one.shuffled),
                "worlds": str(len(one.visual.worlds)),
                "p after Holm": _number(one.holm, ".2g"),
                "transfers": "yes" if one.transfers else "no" if isfinite(one.holm) else "-",
                "masked LM loss": "-" if price is None else words_of(price),
            }
        )
    return rows


def cost_rows(
    methods: Iterable[str], entries: Callable[[str, str], Sequence[Mapping[str, Any]]]
) -> list[TableRow]:
    """What each method cost per run, beside its text control; `entries`: the runs of a method and arm."""
    rows: list[TableRow] = []
    for name in methods:
        for arm in (METHOD, TEXT_CONTROL):
            costs = [one["cost"] for one in entries(name, arm)]
            if not costs:
                continue
            memory = [found for cost in costs if (found := cost.get("memory_mb"))]
            rows.append(
                {
                    "arm": name if arm == METHOD else f"  {name}: {arm}",
                    "steps": f"{mean(cost['steps'] for cost in costs):,.0f}",
                    "samples": f"{mean(cost['samples'] for cost in costs):,.0f}",
                    "epochs": f"{mean(sum(cost['epochs']) for cost in costs):.2f}",
                    "seconds of training": f"{mean(cost['seconds'] for cost in costs):.1f}",
                    "peak memory, MB": f"{max(memory):,}" if memory else "-",
                    "extra parameters in training": f"{costs[0]['extra_parameters']:,}",
                    "and after it": f"{max(cost['parameters_after'] for cost in costs):,}",
                }
            )
    return rows


def weight_rows(bench: Mapping[str, Any]) -> list[TableRow]:
    """The tuned setting of each method."""
    return [
        {
            "method": name,
            "setting": bench["methods"][name]["weight"],
            "visual, without test nouns": ", ".join(
                f"{value}: {score:.2f}" for value, score in about["scores"]
            ),
            "chosen": str(about["chosen"]),
        }
        for name, about in bench["weights"].items()
    ]


def make_report(
    bench: Mapping[str, Any],
    verdicts: Sequence[MethodVerdict],
    curves: Sequence[ReportSection] = (),
) -> Report:
    """The report, with the sections of its curves."""
    sections: list[ReportSection] = []
    for family in families_of(bench["runs"]):
        in_family = [one for one in verdicts if one.family == family]
        entries = [one for one in bench["runs"] if one["family"] == family]
        sections += _family_sections(family, entries, bench["methods"], in_family)
    sections += curves
    costs = cost_rows(bench["methods"], partial(entries_of, bench["runs"]))
    sections.append(ReportSection("Cost of a run", rows=costs))
    sections.append(ReportSection("Chosen settings", rows=weight_rows(bench)))
    sections.append(ReportSection("Worlds", rows=_world_rows(bench)))
    today = datetime.now(UTC).date().isoformat()
    protocol = bench["protocol"]
    about = (
        f"{protocol['steps']} steps of {protocol['batch']} samples per method; written on {today}"
    )
    warning = scale_warning(bench)
    return Report(
        "Which method gives a text encoder visual knowledge?",
        sections,
        [*([warning] if warning else []), *(one.sentence for one in verdicts)],
        notes=[*bench["notes"], *([CURVE_RULE] if curves else []), about],
        terms=TERMS,
    )


def _family_sections(
    family: str, entries: Sequence[Entry], methods: Methods, verdicts: Sequence[MethodVerdict]
) -> list[ReportSection]:
    """Tables and figures of one family of worlds."""
    sections: list[ReportSection] = []
    name = family.capitalize()
    for data in CLASSES:
        own = [one for one in verdicts if one.data == data]
        if own:
            differences = f"{name}: differences of methods that read {data}"
            nouns = f"{name}: train, dev and test nouns"
            sections += [
                ReportSection(
                    f"{name}: methods that read {data}", rows=table_rows(entries, methods, data)
                ),
                ReportSection(differences, rows=verdict_rows(own), figures=_forest(own)),
                ReportSection(nouns, rows=train_rows(entries, methods, data)),
            ]
    points = {one.method: place for one in verdicts if (place := _point(one)) is not None}
    if points:
        title = f"{name}: price against gain"
        sections.append(ReportSection(title, figures=[_price_plot(points)], caption=PRICE))
    return sections


def _world_rows(bench: Mapping[str, Any]) -> list[TableRow]:
    return [
        {
            "world": name,
            "hash of texts, nouns and pixels": about["world"][:16],
            "teacher, text to image recall@1": _recall(about),
        }
        for name, about in bench["worlds"].items()
    ]


def _recall(about: Mapping[str, Any]) -> str:
    retrieval = about.get("retrieval") or {}
    value = retrieval.get("text_to_image_r@1")
    return "-" if value is None else f"{value:.1f} %"


def _forest(verdicts: Sequence[MethodVerdict]) -> list[str]:
    """Both differences of each method that has an interval."""
    rows = []
    for one in verdicts:
        named = {"text control": one.visual, control_word(one.data): one.shuffled}
        for control, found in named.items():
            if found is not None and isfinite(found.error):
                label = f"{one.method}, beyond {control}"
                counts = f"{len(found.worlds)} worlds, each a dot"
                rows.append(
                    ForestRow(
                        label, counts, found.mean, found.interval, found.by_world, one.transfers
                    )
                )
    unit = "linear readings of visual attributes, accuracy; right of 0 is better than the control"
    return [forest_svg(rows, unit)] if rows else []


def _point(one: MethodVerdict) -> tuple[float, float] | None:
    """Gain and price of a method; None if one is not measured."""
    price = one.prices.get(MASKED_LM)
    if price is None or not price.worlds or not one.visual.worlds:
        return None
    return one.visual.mean, price.mean


def _price_plot(points: Mapping[str, tuple[float, float]]) -> str:
    """Each method as a mark with its name."""
    figure = new_figure(WIDTH, 4.0)
    axes = figure.subplots()
    for number, (name, (gain, price)) in enumerate(points.items()):
        colour, mark = MARKS[number % len(MARKS)]
        axes.plot(gain, price, mark, color=colour, markersize=9, zorder=3)
        axes.annotate(name, (gain, price), xytext=(7, 5), textcoords="offset points", fontsize=8)
    for draw in (axes.axhline, axes.axvline):
        draw(0, color=BLACK, linestyle="dashed", linewidth=0.9, zorder=1)
    axes.margins(0.2)
    axes.set_xlabel("gain: visual readings beyond the text control", fontsize=9)
    axes.set_ylabel("price: masked LM loss", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    label = "; ".join(f"{name}: gain {x:+.2f}, price {y:+.2f}" for name, (x, y) in points.items())
    return svg_of(figure, f"Price against gain. {label}")
