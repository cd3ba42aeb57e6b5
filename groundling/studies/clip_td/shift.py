"""Shifted VCR files (CLIP-TD's SM, EM and IM), with a log of every edit and Table 9's statistics."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.special import softmax

from groundling.core.batch import Example, collate
from groundling.core.errors import (
    InputError,
    convert_errors,
    convert_read_errors,
    prefix_errors,
    raise_first,
)
from groundling.core.registry import require_instance
from groundling.data.samples import TextDataset, mask_id_of
from groundling.data.tables import read_json_lines
from groundling.models.heads import load_head
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction.predictions import choice_scores, read_predictions
from groundling.runs.folder import check_run_of, read_json, read_result, write_json_lines
from groundling.runs.progress import print_notes
from groundling.runs.run import Run
from groundling.studies.clip_td.commands import VcrShiftConfig, reads_wordnet
from groundling.studies.clip_td.explicit_mitigation import SynonymEditor, WordNet, wordnet_folder
from groundling.studies.clip_td.vcr_files import (
    MASK,
    PARTS,
    Lemmatizer,
    ShiftedFile,
    VcrLine,
    VcrPart,
    VcrText,
    link_shared_files,
    overlap_statistics,
    read_lines,
    write_lines,
)
from groundling.tasks import Task
from groundling.tasks.vcr import ANSWER, CHOICES, PERSON, RATIONALE, VcrToken, render_text
from groundling.vision_language.loading import load_encoder

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

    Raises InputError: an item without scores, a wrong number of scores, or scores that are not finite.
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

    Raises InputError: settings do not fit the protocol, a file cannot be read, or no item is left.
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
        shifted = _edited(config, lines, run, wordnet)
    if not shifted.lines:
        raise InputError(
            f"{ANSWER.file(folder, config.split)}: protocol={config.protocol} leaves no item"
        )
    write_lines(run.folder, config.split, shifted.lines)
    write_json_lines(run.folder / EDITS, shifted.log)
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


def _edited(
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
    write_json_lines(run.folder / LOSSES, rows)
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


# -- shortcut mitigation (SM) ------------------------------------------------------------------------------------------
# By rules and by an attack model's losses (Ye and Kovashka 2021, "A case study of the shortcut effects in visual
# commonsense reasoning"; release: yekeren/VCR-shortcut-effects-study, tools/rephrase_choice_singular.py and
# rephrase_choice_plural.py). The right choice's tag becomes a pronoun; the wrong choices' tags and pronouns become the
# question's tag. Questions do not change, so the rules are idempotent.

HE = frozenset({"he", "his", "him", "He", "His", "Him"})
SHE = frozenset({"she", "her", "hers", "She", "Her", "Hers"})
SUBJECTS = frozenset({"he", "she", "He", "She"})
"""Pronouns that become a tag in a wrong choice of a singular question; possessives stay."""
THEY = frozenset({"they", "They"})

ChoiceEdit = Callable[[VcrText, bool], list[VcrToken] | None]
"""From a choice and whether it is right to the edited choice, or None if the edit does not apply."""
RephraseRule = Callable[[VcrLine], ChoiceEdit | None]
"""From a line to the edit of its choices, or None if the rule does not apply to its question."""


def singular_rule(line: VcrLine) -> ChoiceEdit | None:
    """The rule for questions that mention exactly one person (16,154 of VCR's val)."""
    objects = line.item.objects
    question_persons = _persons(line.item.question, objects)
    if len(question_persons) != 1:
        return None

    def edit(choice: VcrText, is_right: bool) -> list[VcrToken] | None:
        persons = _persons(choice, objects)
        pronouns = {word.lower() for word in choice if isinstance(word, str)} & {"he", "she"}
        if len(persons) + len(pronouns) != 1:
            return None
        if is_right:
            return _replace_tag(choice, persons, _pronoun(choice, line.item.question))
        return [
            question_persons if token == persons or _is_in(token, SUBJECTS) else token
            for token in choice
        ]

    return edit


def plural_rule(line: VcrLine, legacy: bool = False) -> ChoiceEdit | None:
    """The rule for questions whose only tag is one group of persons (3,657 of VCR's val).

    `legacy`: the release sorts a group before searching for it, so groups in another order are never replaced. By
    default they are replaced, too.
    """
    objects = line.item.objects
    question_group = _only_group(line.item.question, objects, legacy)
    if question_group is None:
        return None

    def edit(choice: VcrText, is_right: bool) -> list[VcrToken] | None:
        group = _only_group(choice, objects, legacy)
        if group is None and not any(_is_in(token, THEY) for token in choice):
            return None
        if is_right:
            return _replace_tag(choice, group, "they")
        return [
            question_group if token == group or _is_in(token, THEY) else token for token in choice
        ]

    return edit


def rephrase_by_rules(lines: Sequence[VcrLine], rules: Sequence[RephraseRule]) -> ShiftedFile:
    """The lines to which a rule applies, each edited by the first such rule."""
    out = ShiftedFile()
    for line in lines:
        edits = (rule(line) for rule in rules)
        edit = next((one for one in edits if one is not None), None)
        if edit is not None:
            out.add(line, _edit(line, edit, out))
    return out


def _edit(line: VcrLine, edit: ChoiceEdit, out: ShiftedFile) -> VcrLine:
    """The line with both parts edited; counts unedited choices in `out.unedited_counts`."""
    new = line
    for part in PARTS:
        choices = []
        for number, choice in enumerate(line.choices(part)):
            changed = edit(choice, number == line.label(part))
            if changed is None:
                out.unedited_counts["not of one person or group alone"] += 1
            elif changed == choice:
                out.unedited_counts["says it that way already"] += 1
            choices.append(choice if changed is None else changed)
        new = new.with_choices(part, choices)
    return new


def _persons(text: VcrText, objects: Sequence[str]) -> list[int]:
    """The distinct persons in a text's tags, in order of their numbers."""
    tagged = {number for token in text if isinstance(token, list) for number in token}
    return sorted(number for number in tagged if objects[number] == PERSON)


def _only_group(text: VcrText, objects: Sequence[str], legacy: bool) -> list[int] | None:
    """The group of persons that is a text's only tag, in the text's order; `legacy`: sorted."""
    groups = [token for token in text if isinstance(token, list)]
    if len(groups) != 1:
        return None
    (group,) = groups
    if len(group if legacy else set(group)) < 2:
        return None
    if any(objects[number] != PERSON for number in group):
        return None
    return sorted(group) if legacy else group


def _pronoun(choice: VcrText, question: VcrText) -> str:
    """The pronoun, he or she, that is more frequent in the choice, else in the question; else "he"."""
    for text in (choice, question):
        he = sum(_is_in(token, HE) for token in text)
        she = sum(_is_in(token, SHE) for token in text)
        if he != she:
            return "he" if he > she else "she"
    return "he"


def _replace_tag(text: VcrText, tag: list[int] | None, pronoun: str) -> list[VcrToken]:
    """The text with a tag replaced by a pronoun, which is capitalised as the first word."""
    out: list[VcrToken] = []
    for place, token in enumerate(text):
        if token != tag:
            out.append(token)
        else:
            out.append(pronoun.capitalize() if place == 0 else pronoun)
    return out


def _is_in(token: VcrToken, words: frozenset[str]) -> bool:
    return isinstance(token, str) and token in words


# Adversarial shortcut mitigation masks the positions of a choice on which an attack model depends most. Ye and Kovashka
# 2021, Section on adversarial masking; release: yekeren/VCR-shortcut-effects-study, modeling/shortcut_main.py and
# tools/merge_adversarial_annotations.py. One position at a time is replaced by [MASK] and its tag removed; the loss is
# the choice's own sigmoid cross-entropy. AdvTop-1 masks the position with the largest loss: in the right choice the
# most important position, in a wrong choice the position whose masking makes the choice most plausible. KeepTop-k masks
# all but the k positions with the largest losses. The attack model here is text-only, so a masked position loses both
# name and tag. Losses depend on the model, so they are written to a file that other runs can use.

TASKS: dict[VcrPart, Task] = {"answer": ANSWER, "rationale": RATIONALE}
DIGITS = 6
"""Decimal places of a loss in the file."""
PositionLosses = Mapping[VcrPart, list[list[float]]]
"""By part of an item: a loss for every position of its four choices; a part without losses is not edited."""


def count_positions(text: VcrText) -> int:
    """Number of positions in a text: one per word, and one per object of a group."""
    return sum(1 if isinstance(token, str) else len(token) for token in text)


def mask_positions(text: VcrText, hidden: Collection[int]) -> list[VcrToken]:
    """The text with [MASK] at these positions; the rest of a group stays as a tag on each side of the mask.

    The release writes masked group members as numbers from 10,000, which readers of official files reject.
    """
    out: list[VcrToken] = []
    place = 0
    for token in text:
        group: list[int] = []
        for member in [token] if isinstance(token, str) else token:
            if place in hidden:
                if group:
                    out.append(group)
                group = []
                out.append(MASK)
            elif isinstance(member, str):
                out.append(member)
            else:
                group.append(member)
            place += 1
        if group:
            out.append(group)
    return out


def positions_to_mask(losses: Sequence[float], keep: int = 0) -> set[int]:
    """The positions to mask: the one with the largest loss, or all but the `keep` largest; ties go to the first."""
    order = np.argsort(-np.array(losses, float), kind="stable").tolist()
    return set(order[keep:]) if keep else {order[0]}


def mask_by_losses(
    lines: Sequence[VcrLine], losses: Mapping[str, PositionLosses], keep: int = 0
) -> ShiftedFile:
    """Every line with its choices masked by the losses of its annot_id; `keep` 0: AdvTop-1.

    A choice that already contains [MASK] does not change, so masking is idempotent.

    Raises InputError: a line without losses, or with losses for another number of positions.
    """
    absent = [line.item.id for line in lines if line.item.id not in losses]
    raise_first([f"no losses for {name}" for name in absent])
    out = ShiftedFile()
    for line in lines:
        new = line
        for part, of_choices in losses[line.item.id].items():
            choices = []
            for number, choice in enumerate(line.choices(part)):
                if MASK in choice:
                    out.unedited_counts["masked already"] += 1
                    choices.append(choice)
                    continue
                of_choice = of_choices[number]
                if len(of_choice) != count_positions(choice):
                    raise InputError(
                        f"{line.item.id}, {part} {number}: {len(of_choice)} losses for "
                        f"{count_positions(choice)} positions"
                    )
                choices.append(mask_positions(choice, positions_to_mask(of_choice, keep)))
            new = new.with_choices(part, choices)
        out.add(line, new)
    return out


def read_losses(path: Path) -> dict[str, PositionLosses]:
    """The losses of a file of JSON lines, by annot_id: `answer_losses` and, where there are any, `rationale_losses`.

    The fields are those of the release's file. Raises InputError for an invalid line, or a number that is not finite.
    """
    out: dict[str, PositionLosses] = {}
    repeated = []
    for where, row in read_json_lines(path, ("annot_id",)):
        with convert_errors(f"{where}: no losses"):
            of_item = {
                part: _four_lists(row[f"{part}_losses"])
                for part in PARTS
                if f"{part}_losses" in row
            }
        if not of_item:
            raise InputError(f"{where}: expected answer_losses, rationale_losses or both")
        if row["annot_id"] in out:
            repeated.append(f"{where}: repeated annot_id {row['annot_id']}")
        out[row["annot_id"]] = of_item
    raise_first(repeated)
    return out


def _four_lists(value: Any) -> list[list[float]]:
    """Finite numbers for each position of four choices; raises ValueError or TypeError for anything else."""
    lists = [np.array(of_choice, float) for of_choice in value]
    if len(lists) != CHOICES or not all(len(one) and np.isfinite(one).all() for one in lists):
        raise ValueError(f"expected {CHOICES} lists of finite numbers")
    return [one.tolist() for one in lists]


class AttackModel:
    """The attack model: a text encoder and its head, saved by `finetune --save-model`."""

    def __init__(self, folder: Path, part: VcrPart, max_length: int, device: torch.device) -> None:
        """Raises InputError unless the folder has a text encoder with a mask token and a head for the part's task."""
        task = TASKS[part]
        done = read_result(folder.parent)
        if done is not None:
            check_run_of(folder, done, task.name)
        student = require_instance(load_encoder(folder), TextEncoder, f"{folder}: holds")
        mask_id_of(student.tokenizer, " for masked positions")
        self.objective = SupervisedObjective(student.sizes, output_type=task.form)
        if not load_head(folder, self.objective, self.objective.name):
            raise InputError(
                f"{folder}: no default head for {task.name}; pass `seed-N/model` of `finetune task={task.name} "
                "save_model`"
            )
        self.part = part
        self.mask = student.tokenizer.mask_token
        self.inputs, _ = student.inputs(max_length)
        self.student = student.to(device).eval()
        self.objective.to(device).eval()
        self.device = device

    @torch.no_grad()
    def losses(self, line: VcrLine) -> tuple[list[list[float]], int]:
        """Losses of a line by choice (4) and position, and the number of truncated texts."""
        query, _ = render_text(line.query(self.part), line.item.objects)
        examples = []
        sizes = []
        for choice in line.choices(self.part):
            sizes.append(count_positions(choice))
            for place in range(sizes[-1]):
                hidden, _ = render_text(mask_positions(choice, {place}), line.item.objects)
                examples.append(Example(str(place), query, hidden.replace(MASK, self.mask)))
        samples = TextDataset(examples, self.inputs).get(range(len(examples)))
        batch = collate(samples).to(self.device)
        logits = self.objective.outputs(self.student(batch), batch)[:, 0].cpu().numpy()
        is_right = np.repeat(np.arange(CHOICES) == line.label(self.part), sizes)
        # sigmoid cross-entropy, with target 1 for the right choice and 0 for others
        losses = np.logaddexp(0, np.where(is_right, -logits, logits)).astype(float).round(DIGITS)
        by_choice = [one.tolist() for one in np.split(losses, np.cumsum(sizes)[:-1])]
        return by_choice, sum(sample.truncated_tokens > 0 for sample in samples)
