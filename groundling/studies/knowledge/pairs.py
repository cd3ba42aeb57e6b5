"""Which sentence of a minimal pair a language model finds likelier, as a command: BLiMP, EWoK, one's own pairs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.errors import InputError
from groundling.data.samples import thinned
from groundling.runs.folder import disk_errors, json_text, whole_file, write_json
from groundling.runs.progress import say_notes
from groundling.runs.report import table
from groundling.runs.run import Run
from groundling.studies.knowledge.commands import PairsConfig
from groundling.studies.knowledge.likelihood import LanguageModel
from groundling.studies.knowledge.minimal_pairs import MinimalPair, read_minimal_pairs
from groundling.studies.knowledge.preferences import (
    EWOK,
    PAIR,
    Estimate,
    Rule,
    as_json,
    estimate,
    grouped,
    less,
    macro,
)
from groundling.training.evaluation import Scores

SPLIT = "pairs"
"""What the answers are filed under, for `verdict`."""
LEVELS = ("field", "phenomenon", "paradigm")
"""How items are grouped, from large to small."""
ITEMS = "items.jsonl"
"""File of every item's scores."""


def pairs(config: PairsConfig, run: Run) -> dict[str, Any]:
    """Score minimal pairs; writes `result.json` (returned), `items.jsonl`, and answers that `verdict` reads.

    Raises:
        InputError: A setting or the data is wrong, the model has no head for it, or texts are too long for it.
    """
    items = _few(read_minimal_pairs(config.data), config.most_pairs)
    sources = [config.model, *([config.other] if config.other else [])]
    found = [_scored(config, source, items, run.state.device) for source in sources]
    told, scores = zip(*found, strict=True)
    items, scored, left_out = _whole(config, items, np.stack(scores))
    rules = EWOK if items[0].of_ewok else PAIR
    result: dict[str, Any] = {
        **{"model": config.model, **told[0]},
        **{"pll": config.pll, "reduce": config.reduce, "items": len(items), "left_out": left_out},
        "chance": {rule.name: rule.chance for rule in rules},
        **_results(items, scored, rules, config.other),
    }
    if config.other:
        result["other"] |= told[1]
    if run.state.is_main_process:
        _write_items(run.folder / ITEMS, items, scored, rules)
        _write_answers(run.folder, config, items, scored, rules)
    return result


def _few(items: Sequence[MinimalPair], most: int) -> list[MinimalPair]:
    """At most so many items of each paradigm, evenly spaced; 0: all."""
    chosen: list[MinimalPair] = []
    for numbers in grouped([item.paradigm for item in items]).values():
        chosen += [items[number] for number in thinned(numbers.tolist(), most)]
    return chosen


def _scored(
    config: PairsConfig, source: str, items: Sequence[MinimalPair], device: torch.device
) -> tuple[dict[str, Any], np.ndarray]:
    """What is to be told of a model, and what it gives each item's texts, (N, S)."""
    model = LanguageModel(source, device, config.max_length)
    found = model.score([text for item in items for text in item.texts], config.pll)
    values = found.sums
    if config.reduce == "mean":
        with np.errstate(invalid="ignore"):
            values = values / found.pieces
    kind = "causal" if model.causal else "masked"
    return {"kind": kind, "scored_pieces": int(found.pieces.sum())}, values.reshape(len(items), -1)


def _whole(
    config: PairsConfig, items: Sequence[MinimalPair], scores: np.ndarray
) -> tuple[list[MinimalPair], np.ndarray, int]:
    """The items all of whose texts every model could score (M, N, S), their scores, and how many are left out."""
    fits = np.isfinite(scores).all((0, 2))
    without = [item.id for item, one in zip(items, fits, strict=True) if not one]
    if without and not config.skip_long:
        raise InputError(
            f"{config.data}: {len(without):,} pairs have a text too long for the model, or without anything to score, "
            f"the first is {without[0]}; pass --skip-long to leave them out"
        )
    kept = [item for item, one in zip(items, fits, strict=True) if one]
    if not kept:
        raise InputError(f"{config.data}: no pair is left that fits the model")
    if without:
        say_notes(
            [f"{len(without):,} pairs are left out: a text is too long, or has nothing to score"]
        )
    return kept, scores[:, fits], len(without)


# -- results -----------------------------------------------------------------------------------------------------------


def _results(
    items: Sequence[MinimalPair], scores: np.ndarray, rules: Sequence[Rule], other: str
) -> dict[str, Any]:
    """Of the model, of the other one, and of their difference (other less model): all groups' shares."""
    worth = np.stack([rule.worth(of_model) for of_model in scores for rule in rules], 1)
    levels = _levels(items, worth)
    count = len(rules)

    def told(change: Callable[[Estimate], Estimate], first: int = 0) -> dict[str, Any]:
        shares: dict[str, Any] = {}
        for level, groups in levels.items():
            shares[level] = {
                name: as_json(rules, change(one), first) for name, one in groups.items()
            }
        return shares

    result: dict[str, Any] = {
        "ties": _ties(scores[0]),
        "scores": told(lambda one: one),
    }
    if other:
        result["other"] = {
            "model": other,
            "ties": _ties(scores[1]),
            "scores": told(lambda one: one, count),
        }
        result["difference"] = told(lambda one: less(one, count))
    return result


def _levels(items: Sequence[MinimalPair], worth: np.ndarray) -> dict[str, dict[str, Estimate]]:
    """Of every level the groups' estimates: paradigms of their items, larger groups of their paradigms alike."""
    paradigms: dict[str, Estimate] = {}
    members: dict[str, dict[str, list[Estimate]]] = {"field": {}, "phenomenon": {}}
    for name, numbers in grouped([item.paradigm for item in items]).items():
        paradigms[name] = estimate(worth[numbers], name)
        first = items[numbers[0]]
        for level, group in (("field", first.field), ("phenomenon", first.phenomenon)):
            if group:
                members[level].setdefault(group, []).append(paradigms[name])
    levels = {
        "overall": {
            "mean of paradigms": macro(list(paradigms.values())),
            "all items": estimate(worth),
        }
    }
    for level, groups in members.items():
        if groups:
            levels[level] = {name: macro(groups[name]) for name in sorted(groups)}
    return levels | {"paradigm": paradigms}


def _ties(scores: np.ndarray) -> int:
    """Comparisons (N, S) in which neither is above: good and bad, or a target after both contexts."""
    return int((scores[:, 0::2] == scores[:, 1::2]).sum())


# -- files and tables --------------------------------------------------------------------------------------------------


def _write_items(
    path: Path, items: Sequence[MinimalPair], scores: np.ndarray, rules: Sequence[Rule]
) -> None:
    """One JSON line per item: its groups, each model's scores of its texts, and what they are worth."""
    worth = [{rule.name: rule.worth(one).tolist() for rule in rules} for one in scores]
    names = ("model", "other")
    with whole_file(path) as file:
        for number, item in enumerate(items):
            line: dict[str, Any] = {"id": item.id}
            line |= {level: vars(item)[level] for level in LEVELS if vars(item)[level]}
            for name, one, gained in zip(names, scores, worth, strict=False):
                line[name] = {"scores": one[number].round(6).tolist()}
                line[name] |= {rule: values[number] for rule, values in gained.items()}
            file.write(json_text(line) + "\n")


def _write_answers(
    folder: Path,
    config: PairsConfig,
    items: Sequence[MinimalPair],
    scores: np.ndarray,
    rules: Sequence[Rule],
) -> None:
    """The model's answers as `verdict` reads them: 1 where an item is right as a whole, which is the label of all."""
    place = folder / f"seed-{config.model_seed}"
    with disk_errors(place):
        place.mkdir(exist_ok=True)
    strict = rules[1] if items[0].of_ewok else rules[0]
    right = strict.worth(scores[0])
    ids = [item.id for item in items]
    metrics = {"accuracy": float(right.mean())}
    answers = Scores(ids, right[:, None], right, np.ones(len(ids)), metrics)
    answers.write(place / f"predictions_{SPLIT}.jsonl")
    name = f"pairs/{Path(config.data).stem}"
    done: dict[str, Any] = {"seed": config.model_seed, "task": name, "metrics": ["accuracy"]}
    write_json(place / "result.json", done | {"splits": [SPLIT], "scores": {SPLIT: metrics}})


def told(result: Mapping[str, Any]) -> str:
    """What was found, in points; single paradigms only where nothing sums them up."""
    rows = []
    for level, groups in result["scores"].items():
        if level == "paradigm" and "phenomenon" in result["scores"]:
            continue
        for name, found in groups.items():
            row = {"": name, "items": f"{found['items']:,}"}
            for rule, chance in result["chance"].items():
                row |= {f"{rule} (chance {100 * chance:.0f})": _cell(found, rule)}
            if "difference" in result:
                row |= {"other": _cell(result["other"]["scores"][level][name], "accuracy")}
                row |= {"other - model": _cell(result["difference"][level][name], "accuracy", "+")}
            rows.append(row)
    counts = f"{result['items']:,} items, {result['ties']:,} ties, {result['left_out']:,} left out"
    return f"{table(rows)}\n{counts}"


def _cell(found: Mapping[str, Any], rule: str, sign: str = "") -> str:
    low, high = (100 * end for end in found[f"{rule}_interval"])
    return f"{100 * found[rule]:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
