"""Shifted VCR files (CLIP-TD's SM, EM and IM), with a log of every edit and Table 9's statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from groundling.core.errors import InputError, convert_read_errors, prefix_errors, raise_first
from groundling.prediction.predictions import choice_scores, read_predictions
from groundling.runs.folder import check_run_of, read_json, read_result
from groundling.runs.progress import print_notes
from groundling.runs.run import Run
from groundling.studies.clip_td.commands import VcrShiftConfig, reads_wordnet
from groundling.studies.clip_td.explicit_mitigation import SynonymEditor, WordNet, wordnet_folder
from groundling.studies.clip_td.shortcut_mitigation import (
    AttackModel,
    PositionLosses,
    RephraseRule,
    mask_by_losses,
    plural_rule,
    read_losses,
    rephrase_by_rules,
    singular_rule,
)
from groundling.studies.clip_td.vcr_files import (
    Lemmatizer,
    ShiftedFile,
    VcrLine,
    VcrPart,
    link_shared_files,
    overlap_statistics,
    read_lines,
    write_lines,
    write_log,
)
from groundling.tasks.vcr import ANSWER, CHOICES

# Implicit mitigation (CLIP-TD's IM) removes the items that a text-only model answers right with high confidence.
# CLIP-TD Sections 4.1.2 and 8.4, threshold 0.90. In the paper, `language_biased` items are those that the text-only
# model answers right with at least this probability, and `image_biased` items those that it answers wrong; right
# answers below the threshold belong to neither. The IM evaluation set has all but the language-biased items, the
# interpretation that fits the paper's numbers (76.02 to 70.64 for VL-BERT); Table 9's rows "IM = Y" fit the
# language-biased group.


def group_by_bias(
    lines: Sequence[VcrLine], scores: Mapping[str, np.ndarray], threshold: float
) -> dict[str, list[VcrLine]]:
    """Items by group, from the scores (4,) of their answers before a softmax, by annot_id.

    `language_biased`: right, with at least the threshold's probability; `image_biased`: wrong; `unsure`: right, but
    below the threshold; `kept`: the IM evaluation set, all but the first group, in file order.

    Raises:
        InputError: An item without scores, a wrong number of scores, or scores that are not finite.
    """
    raise_first(
        [f"no prediction for {line.item.id}" for line in lines if line.item.id not in scores]
    )
    groups: dict[str, list[VcrLine]] = {
        name: [] for name in ("language_biased", "image_biased", "unsure", "kept")
    }
    for line in lines:
        of_item = scores[line.item.id]
        if of_item.shape != (CHOICES,) or not np.isfinite(of_item).all():
            raise InputError(f"{line.item.id}: expected {CHOICES} finite scores")
        chances = softmax(of_item)
        name = "unsure" if chances.max() < threshold else "language_biased"
        if chances.argmax() != line.label("answer"):
            name = "image_biased"
        groups[name].append(line)
        if name != "language_biased":
            groups["kept"].append(line)
    return groups


def read_scores(path: Path) -> dict[str, np.ndarray]:
    """The scores (4,) of every item's answers, by annot_id, from a text-only run's prediction file.

    Raises InputError as `read_predictions`, or for other outputs than one or two scores per choice.
    """
    scores = {}
    for row in read_predictions(path):
        with prefix_errors(f"{path}, {row.name}"):
            scores[row.name] = choice_scores(row, CHOICES)
    return scores


def text_only_run(path: Path) -> dict[str, Any]:
    """Model and seed of the run that predicted; raises InputError if its task is another one or it used regions."""
    done = read_result(path.parent)
    if done is None:
        return {"text-only run": "unknown: no result.json beside the predictions"}
    check_run_of(path, done, ANSWER.name)
    settings = path.parent.parent / "config.json"
    with convert_read_errors(settings):
        config = read_json(settings).get("config", {}) if settings.is_file() else {}
        model = config.get("model")
    if config.get("regions"):
        raise InputError(
            f"{path}: its model read regions ({config['regions']}); IM needs a text-only model"
        )
    return {"text-only run": {"model": model, "seed": done.get("seed")}}


LOSSES = "losses.jsonl"
EDITS = "edits.jsonl"
UNEDITED = "unedited"
"""Folder of the same items before the edits, for comparison with scores on edited items."""


def shift(config: VcrShiftConfig, run: Run) -> dict[str, Any]:
    """Write a shifted split in the official format, and a log of its edits, to the run's folder.

    Writes `SPLIT.jsonl` beside links to training data and images, `edits.jsonl`, `unedited/SPLIT.jsonl` if items were
    removed, `losses.jsonl` of an attack model, and `result.json` with counts and overlaps before and after. Labels, ids
    and the number of choices never change; the command is idempotent.

    Raises:
        InputError: Settings do not fit the protocol, a file cannot be read, or no item is left.
    """
    folder = Path(config.data)
    lines = read_lines(folder, config.split)
    wordnet = None
    if reads_wordnet(config.protocol, config.wordnet):
        wordnet = WordNet(wordnet_folder(config.wordnet))
    lemma: Lemmatizer = str.lower if wordnet is None else wordnet.lemma
    result: dict[str, Any] = {
        "lemmas": "forms in lower case" if wordnet is None else f"WordNet {wordnet.version}"
    }
    if config.protocol == "im":
        shifted, bias_summary = _mitigate_implicitly(config, lines, run.folder, lemma)
        result |= bias_summary
    else:
        shifted = _edit(config, lines, run, wordnet)
    if not shifted.lines:
        raise InputError(
            f"{ANSWER.file(folder, config.split)}: protocol={config.protocol} leaves no item"
        )
    write_lines(run.folder, config.split, shifted.lines)
    write_log(run.folder / EDITS, shifted.log)
    if len(shifted.lines) < len(lines):
        write_lines(run.folder / UNEDITED, config.split, shifted.originals)
        link_shared_files(folder, run.folder / UNEDITED)
    result["links"] = link_shared_files(folder, run.folder)
    result["items"] = {"read": len(lines), "written": len(shifted.lines)}
    result["edited choices"] = shifted.edited()
    result["left"] = shifted.unedited_counts
    result["before"] = overlap_statistics(lines, lemma)
    if len(shifted.lines) < len(lines):
        result["before, of the items written"] = overlap_statistics(shifted.originals, lemma)
    result["after"] = overlap_statistics(shifted.lines, lemma)
    return result


def _edit(
    config: VcrShiftConfig, lines: list[VcrLine], run: Run, wordnet: WordNet | None
) -> ShiftedFile:
    """The lines edited by a protocol other than IM."""
    if config.protocol == "none":
        return ShiftedFile(lines, lines)
    if config.protocol == "em" and wordnet is not None:
        return SynonymEditor(wordnet, config.min_count, config.max_ngram).edit_lines(lines)
    if config.protocol in ("advtop", "keeptop"):
        if config.losses:
            losses = read_losses(Path(config.losses))
        else:
            models: dict[VcrPart, str] = {
                "answer": config.attack,
                "rationale": config.attack_rationale,
            }
            losses = _attack_losses(models, config.max_length, lines, run)
        keep = config.keep_top if config.protocol == "keeptop" else 0
        with prefix_errors(config.losses or run.folder / LOSSES):
            return mask_by_losses(lines, losses, keep)
    plurals: RephraseRule = partial(plural_rule, legacy=config.legacy)
    rules: dict[str, list[RephraseRule]] = {
        "sm": [singular_rule, plurals],
        "singular": [singular_rule],
        "plural": [plurals],
    }
    return rephrase_by_rules(lines, rules[config.protocol])


def _attack_losses(
    sources: Mapping[VcrPart, str], max_length: int, lines: list[VcrLine], run: Run
) -> dict[str, PositionLosses]:
    """The losses of attack models, written to `losses.jsonl` first; a part without a model has none."""
    rows: list[dict[str, Any]] = [{"annot_id": line.item.id} for line in lines]
    for part, source in sources.items():
        if not source:
            continue
        attack = AttackModel(Path(source), part, max_length, run.state.device)
        truncated_texts = 0
        for row, line in zip(rows, lines, strict=True):
            row[f"{part}_losses"], truncated = attack.losses(line)
            truncated_texts += truncated
        if truncated_texts:
            note = f"{truncated_texts:,} texts of {part}s were truncated to {max_length} tokens"
            print_notes([note])
    write_log(run.folder / LOSSES, rows)
    return read_losses(run.folder / LOSSES)


def _mitigate_implicitly(
    config: VcrShiftConfig, lines: list[VcrLine], folder: Path, lemma: Lemmatizer
) -> tuple[ShiftedFile, dict[str, Any]]:
    """The IM evaluation set; writes the two biased groups to their own folders and returns their overlaps."""
    path = Path(config.predictions)
    summary = text_only_run(path)
    scores = read_scores(path)
    with prefix_errors(path):
        groups = group_by_bias(lines, scores, config.confidence_threshold)
    summary["groups"] = {name: len(group) for name, group in groups.items()}
    for name in ("language_biased", "image_biased"):
        if groups[name]:
            write_lines(folder / name, config.split, groups[name])
            link_shared_files(Path(config.data), folder / name)
            summary[name] = overlap_statistics(groups[name], lemma)
    return ShiftedFile(groups["kept"], groups["kept"]), summary
