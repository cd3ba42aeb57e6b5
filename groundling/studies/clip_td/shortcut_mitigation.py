"""Shortcut mitigation (CLIP-TD's SM), by rule and by an attack model's losses (Ye and Kovashka 2021).

Ye and Kovashka 2021, "A case study of the shortcut effects in visual commonsense reasoning"; release:
yekeren/VCR-shortcut-effects-study, tools/rephrase_choice_singular.py and rephrase_choice_plural.py. The right choice's
tag becomes a pronoun, the wrong choices' tags and pronouns become the question's tag. Questions stay as they are, so an
edited file meets the same rules again, and they find nothing left to edit.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import Example, collate
from groundling.core.errors import InputError, raise_first
from groundling.core.registry import require_kind
from groundling.data.samples import TextDataset, mask_id_of
from groundling.data.tables import read_json_lines
from groundling.models.heads import load_head
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.runs.folder import check_run_of, read_result
from groundling.studies.clip_td.vcr_files import MASK, PARTS, ShiftedFile, VcrLine, VcrPart, VcrText
from groundling.tasks import Task
from groundling.tasks.vcr import ANSWER, CHOICES, RATIONALE, VcrToken, render_text
from groundling.vision_language.loading import load_encoder

HE = frozenset({"he", "his", "him", "He", "His", "Him"})
SHE = frozenset({"she", "her", "hers", "She", "Her", "Hers"})
SUBJECTS = frozenset({"he", "she", "He", "She"})
"""What becomes a tag in a wrong choice of a singular question; possessives stay."""
THEY = frozenset({"they", "They"})
PERSON = "person"

ChoiceEdit = Callable[[VcrText, bool], list[VcrToken] | None]
"""From a choice, and whether it is right, to the edited choice, or None if it is not one to edit."""
RephraseRule = Callable[[VcrLine], ChoiceEdit | None]
"""From a line to what edits its choices, or None if the rule does not apply to its question."""


def singular_rule(line: VcrLine) -> ChoiceEdit | None:
    """The rule for questions that mention exactly one person (16,154 of VCR's val)."""
    objects = line.item.objects
    asked = _persons(line.item.question, objects)
    if len(asked) != 1:
        return None

    def edit(choice: VcrText, is_right: bool) -> list[VcrToken] | None:
        persons = _persons(choice, objects)
        pronouns = {word.lower() for word in choice if isinstance(word, str)} & {"he", "she"}
        if len(persons) + len(pronouns) != 1:
            return None
        if is_right:
            return _replaced(choice, persons, _pronoun(choice, line.item.question))
        return [asked if token == persons or _is_in(token, SUBJECTS) else token for token in choice]

    return edit


def plural_rule(line: VcrLine, legacy: bool = False) -> ChoiceEdit | None:
    """The rule for questions whose only tag is one group of persons (3,657 of VCR's val).

    `legacy`: the release sorts a group before it looks for it, so that groups in another order are never replaced; here
    groups are compared as sets.
    """
    objects = line.item.objects
    asked = _only_group(line.item.question, objects, legacy)
    if asked is None:
        return None

    def edit(choice: VcrText, is_right: bool) -> list[VcrToken] | None:
        group = _only_group(choice, objects, legacy)
        if group is None and not any(_is_in(token, THEY) for token in choice):
            return None
        if is_right:
            return _replaced(choice, group, "they")
        return [asked if token == group or _is_in(token, THEY) else token for token in choice]

    return edit


def rephrase_by_rules(lines: Sequence[VcrLine], rules: Sequence[RephraseRule]) -> ShiftedFile:
    """The lines to which one of the rules applies, the first one, edited by it."""
    out = ShiftedFile()
    for line in lines:
        edits = (rule(line) for rule in rules)
        edit = next((one for one in edits if one is not None), None)
        if edit is not None:
            out.add(line, _edited(line, edit, out))
    return out


def _edited(line: VcrLine, edit: ChoiceEdit, out: ShiftedFile) -> VcrLine:
    """The line with both parts edited; counts the choices that stay."""
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
    """The different persons that a text's tags name, in order of their numbers."""
    named = {number for token in text if isinstance(token, list) for number in token}
    return sorted(number for number in named if objects[number] == PERSON)


def _only_group(text: VcrText, objects: Sequence[str], legacy: bool) -> list[int] | None:
    """The group of persons that is a text's only tag, as it stands there; `legacy`: sorted."""
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
    """The pronoun, he or she, that the choice says more often; if neither, the question; else "he"."""
    for text in (choice, question):
        he = sum(_is_in(token, HE) for token in text)
        she = sum(_is_in(token, SHE) for token in text)
        if he != she:
            return "he" if he > she else "she"
    return "he"


def _replaced(text: VcrText, tag: list[int] | None, pronoun: str) -> list[VcrToken]:
    """The text with a pronoun for a tag, capitalised where it is the first word."""
    out: list[VcrToken] = []
    for place, token in enumerate(text):
        if token != tag:
            out.append(token)
        else:
            out.append(pronoun.capitalize() if place == 0 else pronoun)
    return out


def _is_in(token: VcrToken, words: frozenset[str]) -> bool:
    return isinstance(token, str) and token in words


# Adversarial shortcut mitigation: positions of a choice are hidden by what an attack model loses without them.
# Ye and Kovashka 2021, Section on adversarial masking; release: yekeren/VCR-shortcut-effects-study,
# modeling/shortcut_main.py and tools/merge_adversarial_annotations.py. One position at a time is replaced by [MASK]
# and its tag taken away; the loss is that choice's own sigmoid cross-entropy. AdvTop-1 hides the position with the
# largest loss: in the right choice the one that carries it, in a wrong choice the one whose loss makes it more
# plausible. KeepTop-k hides all but the k with the largest losses.
# The attack model here reads the text alone, so a hidden position loses its tag with its name. Scores are model-
# specific, therefore the losses are written to a file, which anybody can shift by.

ROWS = 256
"""Texts a model reads at a time."""
TASKS: dict[VcrPart, Task] = {"answer": ANSWER, "rationale": RATIONALE}
DIGITS = 6
"""Of a loss in the file."""
PositionLosses = Mapping[VcrPart, list[list[float]]]
"""Of an item, by part: a loss for every position of its four choices; a part without losses stays as it is."""


def count_positions(text: VcrText) -> int:
    """How many positions a text has: a word is one, a group of objects one for each of them."""
    return sum(1 if isinstance(token, str) else len(token) for token in text)


def mask_positions(text: VcrText, hidden: Collection[int]) -> list[VcrToken]:
    """The text with [MASK] at these positions; what is left of a group stays a tag on each side of it.

    The release writes such members as numbers from 10,000 on, which no reader of official files takes.
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
    """The positions to hide: the one with the largest loss, or all but the `keep` largest; of equals the first counts.

    Raises:
        ValueError: There are no positions.
    """
    if not losses:
        raise ValueError("a choice without positions")
    order = np.argsort(-np.array(losses, float), kind="stable").tolist()
    return set(order[keep:]) if keep else {order[0]}


def mask_by_losses(
    lines: Sequence[VcrLine], losses: Mapping[str, PositionLosses], keep: int = 0
) -> ShiftedFile:
    """Every line with its choices masked by the losses of its annot_id; `keep` 0: AdvTop-1.

    A choice that holds a [MASK] was masked before and stays, so an edited file comes back as it was.

    Raises:
        InputError: A line without losses, or with losses of another number of positions.
    """
    absent = [line.item.id for line in lines if line.item.id not in losses]
    raise_first([f"no losses of {name}" for name in absent])
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
                        f"{line.item.id}, {part} {number}: {len(of_choice)} losses for {count_positions(choice)} positions"
                    )
                choices.append(mask_positions(choice, positions_to_mask(of_choice, keep)))
            new = new.with_choices(part, choices)
        out.add(line, new)
    return out


def read_losses(path: Path) -> dict[str, PositionLosses]:
    """The losses of a file of JSON lines, by annot_id: `answer_losses` and, where there are any, `rationale_losses`.

    The fields are those of the release's own file. Raises InputError for another line, or a number that is not finite.
    """
    out: dict[str, PositionLosses] = {}
    repeated = []
    for where, row in read_json_lines(path, ("annot_id",)):
        of_item: dict[VcrPart, list[list[float]]] = {}
        for part in PARTS:
            field = f"{part}_losses"
            if field in row:
                of_item[part] = _four_lists(where, field, row[field])
        if not of_item:
            raise InputError(f"{where}: neither answer_losses nor rationale_losses")
        if row["annot_id"] in out:
            repeated.append(f"{where}: annot_id {row['annot_id']} stands there before")
        out[row["annot_id"]] = of_item
    raise_first(repeated)
    return out


def _four_lists(where: str, field: str, value: Any) -> list[list[float]]:
    is_four = isinstance(value, list) and len(value) == CHOICES
    if not is_four or not all(isinstance(of_choice, list) and of_choice for of_choice in value):
        raise InputError(f"{where}: expected {CHOICES} lists of numbers in {field!r}")
    for of_choice in value:
        for loss in of_choice:
            if isinstance(loss, bool) or not isinstance(loss, int | float) or not isfinite(loss):
                raise InputError(f"{where}: {str(loss)[:40]!r} in {field!r} is no finite number")
    return value


@dataclass(frozen=True)
class MaskedChoice:
    """One choice with one position hidden."""

    line: int
    """Which of the lines."""
    choice: int
    """Which of its choices."""
    is_right: bool
    """Whether that is the right one."""
    text: str
    """What the choice is asked after."""
    hidden: str
    """The choice, with the model's own mask token."""


class AttackModel:
    """A text encoder and its head, as `finetune --save-model` left them."""

    def __init__(self, folder: Path, part: VcrPart, max_length: int, device: torch.device) -> None:
        """Raises InputError if the folder holds no text encoder with a head for the part's task, and a mask token."""
        task = TASKS[part]
        done = read_result(folder.parent)
        if done is not None:
            check_run_of(folder, done, task.name)
        student = require_kind(load_encoder(folder), TextEncoder, f"{folder}: holds")
        mask_id_of(student.tokenizer, " to hide a position with")
        self.objective = SupervisedObjective(student.sizes, output_type=task.form)
        if not load_head(folder, self.objective, self.objective.name):
            raise InputError(
                f"{folder}: no head of a plain {task.name}; pass `seed-N/model` of `finetune --task {task.name} "
                "--save-model`"
            )
        self.part = part
        self.mask = student.tokenizer.mask_token
        self.inputs, _ = student.inputs(max_length)
        self.student = student.to(device).eval()
        self.objective.to(device).eval()
        self.device = device

    def losses(self, lines: Sequence[VcrLine]) -> tuple[list[list[list[float]]], int]:
        """Of every line, of its four choices, a loss for each position; and how many texts were cut to the length."""
        out = [
            [[0.0] * count_positions(choice) for choice in line.choices(self.part)]
            for line in lines
        ]
        places = [[0] * len(of_line) for of_line in out]
        cut = 0
        rows = self._rows(lines)  # of VCR's val more than a million: never a list
        while some := list(islice(rows, ROWS)):
            logits, dropped = self._logits(some)
            cut += dropped
            for row, loss in zip(some, cross_entropy(logits, some), strict=True):
                place = places[row.line][row.choice]
                out[row.line][row.choice][place] = round(float(loss), DIGITS)
                places[row.line][row.choice] = place + 1
        return out, cut

    def _rows(self, lines: Sequence[VcrLine]) -> Iterator[MaskedChoice]:
        """Every choice with every one of its positions hidden, in order."""
        for number, line in enumerate(lines):
            objects = line.item.objects
            text, _ = render_text(line.query(self.part), objects)
            for which, choice in enumerate(line.choices(self.part)):
                for place in range(count_positions(choice)):
                    words, _ = render_text(mask_positions(choice, {place}), objects)
                    hidden = words.replace(MASK, self.mask)
                    yield MaskedChoice(number, which, which == line.label(self.part), text, hidden)

    @torch.no_grad()
    def _logits(self, rows: Sequence[MaskedChoice]) -> tuple[np.ndarray, int]:
        """The score (N,) of each row's choice, and how many rows were cut."""
        examples = [Example(str(n), row.text, row.hidden) for n, row in enumerate(rows)]
        samples = TextDataset(examples, self.inputs).get(range(len(rows)))
        batch = collate(samples).to(self.device)
        outputs = self.objective.outputs(self.student(batch), batch).cpu().numpy()
        return outputs[:, 0], sum(sample.truncated_tokens > 0 for sample in samples)


def cross_entropy(logits: np.ndarray, rows: Sequence[MaskedChoice]) -> np.ndarray:
    """Sigmoid cross-entropy (N,) of each row's own score (N,): the right choice's should be high, another's low."""
    signs = np.array([-1.0 if row.is_right else 1.0 for row in rows])
    return np.logaddexp(0, signs * logits)
