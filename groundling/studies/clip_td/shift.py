"""Shifted files of VCR (CLIP-TD's SM, EM and IM) with a log of every edit and Table 9's statistics."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError
from groundling.prediction.predictions import told_of
from groundling.runs.progress import say_notes
from groundling.runs.run import Run
from groundling.studies.clip_td.commands import ShiftConfig, reads_wordnet
from groundling.studies.clip_td.implicit import groups, read_scores, text_only_run
from groundling.studies.clip_td.lines import (
    Line,
    Part,
    Shifted,
    link_beside,
    read_lines,
    write_lines,
    write_log,
)
from groundling.studies.clip_td.masking import Attack, Losses, read_losses
from groundling.studies.clip_td.masking import shifted as hidden
from groundling.studies.clip_td.overlap import Lemma, measured
from groundling.studies.clip_td.pronouns import Rule, plural, singular
from groundling.studies.clip_td.pronouns import shifted as with_pronouns
from groundling.studies.clip_td.synonyms import Editor
from groundling.studies.clip_td.wordnet import WordNet, wordnet_folder
from groundling.tasks.vcr import ANSWER

LOSSES = "losses.jsonl"
EDITS = "edits.jsonl"
UNEDITED = "unedited"
"""Folder of the same items as they were: what an edited score is compared with."""


def shift(config: ShiftConfig, run: Run) -> dict[str, Any]:
    """Write a shifted split to the run's folder, in the official format, and what was done to it.

    `SPLIT.jsonl` beside links to training data and images, `edits.jsonl`, `unedited/SPLIT.jsonl` where items were left
    out, `losses.jsonl` of an attack, and `result.json` with counts and overlaps before and after. Labels, ids and the
    number of choices never change; of its own output the command makes the same file again.

    Raises:
        InputError: Settings do not fit the kind, a file cannot be read, or no item is left.
    """
    folder = Path(config.data)
    lines = read_lines(folder, config.split)
    wordnet = WordNet(wordnet_folder(config.wordnet)) if reads_wordnet(config) else None
    lemma: Lemma = str.lower if wordnet is None else wordnet.lemma
    result: dict[str, Any] = {"kind": config.kind, "split": config.split}
    result["lemmas"] = "none, forms in lower case"
    if wordnet is not None:
        result["lemmas"] = f"WordNet {wordnet.version}"
    if config.kind == "im":
        made, told = _implicit(config, lines, run.folder, lemma)
        result |= told
    else:
        made = _edited(config, lines, run, wordnet)
    if not made.lines:
        raise InputError(
            f"{ANSWER.file(folder, config.split)}: no item is left by --kind {config.kind}"
        )
    write_lines(run.folder, config.split, made.lines)
    write_log(run.folder / EDITS, made.log)
    if len(made.lines) < len(lines):
        write_lines(run.folder / UNEDITED, config.split, made.before)
        link_beside(folder, run.folder / UNEDITED)
    result["links"] = link_beside(folder, run.folder)
    result |= {"items": {"read": len(lines), "written": len(made.lines)}}
    result |= {"edited choices": made.edited(), "left": dict(sorted(made.left.items()))}
    result["before"] = measured(lines, lemma)
    if len(made.lines) < len(lines):
        result["before, of the items written"] = measured(made.before, lemma)
    result["after"] = measured(made.lines, lemma)
    return result


def _edited(config: ShiftConfig, lines: list[Line], run: Run, wordnet: WordNet | None) -> Shifted:
    """The lines as a kind other than IM makes them."""
    if config.kind == "none":
        return Shifted(lines, lines)
    if config.kind == "em" and wordnet is not None:
        return Editor(wordnet, config.least, config.longest).shifted(lines)
    if config.kind in ("advtop", "keeptop"):
        if config.losses:
            losses = read_losses(Path(config.losses))
        else:
            models: dict[Part, str] = {
                "answer": config.attack,
                "rationale": config.attack_rationale,
            }
            losses = _attacked(models, config.max_length, lines, run)
        keep = config.keep if config.kind == "keeptop" else 0
        with told_of(config.losses or run.folder / LOSSES):
            return hidden(lines, losses, keep)
    plurals: Rule = partial(plural, legacy=config.legacy)
    rules: dict[str, list[Rule]] = {
        "sm": [singular, plurals],
        "singular": [singular],
        "plural": [plurals],
    }
    return with_pronouns(lines, rules[config.kind])


def _attacked(
    sources: Mapping[Part, str], max_length: int, lines: list[Line], run: Run
) -> dict[str, Losses]:
    """The losses of attack models, which are written to a file first; a part without a model has none."""
    rows: list[dict[str, Any]] = [{"annot_id": line.item.id} for line in lines]
    for part, source in sources.items():
        if not source:
            continue
        attack = Attack(Path(source), part, max_length, run.state.device)
        losses, cut = attack.losses(lines)
        if cut:
            say_notes([f"{cut:,} texts of {part}s were cut to {max_length} pieces"])
        for row, of_line in zip(rows, losses, strict=True):
            row[f"{part}_losses"] = of_line
    path = run.folder / LOSSES
    write_log(path, rows)
    return read_losses(path)


def _implicit(
    config: ShiftConfig, lines: list[Line], folder: Path, lemma: Lemma
) -> tuple[Shifted, dict[str, Any]]:
    """The IM evaluation set; its two groups in folders of their own, with their overlaps."""
    path = Path(config.predictions)
    told = text_only_run(path)
    scores = read_scores(path)
    with told_of(path):
        by_group = groups(lines, scores, config.confident)
    told["groups"] = by_group.sizes()
    biased = {
        "language_biased": by_group.language_biased,
        "image_biased": by_group.image_biased,
    }
    for name, some in biased.items():
        if some:
            write_lines(folder / name, config.split, some)
            link_beside(Path(config.data), folder / name)
            told[name] = measured(some, lemma)
    return Shifted(by_group.kept, by_group.kept), told
