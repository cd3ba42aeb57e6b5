"""Shortcut mitigation by rule (CLIP-TD's SM): right choices lose the tags they share with the question.

Ye and Kovashka 2021, "A case study of the shortcut effects in visual commonsense reasoning"; release:
yekeren/VCR-shortcut-effects-study, tools/rephrase_choice_singular.py and rephrase_choice_plural.py. The right choice's
tag becomes a pronoun, the wrong choices' tags and pronouns become the question's tag. Questions stay as they are, so an
edited file meets the same rules again, and they find nothing left to edit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from groundling.studies.clip_td.lines import PARTS, Line, Shifted, Text
from groundling.tasks.vcr import Token

HE = frozenset({"he", "his", "him", "He", "His", "Him"})
SHE = frozenset({"she", "her", "hers", "She", "Her", "Hers"})
SUBJECTS = frozenset({"he", "she", "He", "She"})
"""What becomes a tag in a wrong choice of a singular question; possessives stay."""
THEY = frozenset({"they", "They"})
PERSON = "person"

Edit = Callable[[Text, bool], list[Token] | None]
"""From a choice, and whether it is right, to the edited choice, or None if it is not one to edit."""
Rule = Callable[[Line], Edit | None]
"""From a line to what edits its choices, or None if the rule does not apply to its question."""


def singular(line: Line) -> Edit | None:
    """The rule for questions that mention exactly one person (16,154 of VCR's val)."""
    objects = line.item.objects
    asked = _persons(line.item.question, objects)
    if len(asked) != 1:
        return None

    def edit(choice: Text, is_right: bool) -> list[Token] | None:
        persons = _persons(choice, objects)
        pronouns = {word.lower() for word in choice if isinstance(word, str)} & {"he", "she"}
        if len(persons) + len(pronouns) != 1:
            return None
        if is_right:
            return _replaced(choice, persons, _pronoun(choice, line.item.question))
        return [asked if token == persons or _is_in(token, SUBJECTS) else token for token in choice]

    return edit


def plural(line: Line, legacy: bool = False) -> Edit | None:
    """The rule for questions whose only tag is one group of persons (3,657 of VCR's val).

    `legacy`: the release sorts a group before it looks for it, so that groups in another order are never replaced; here
    groups are compared as sets.
    """
    objects = line.item.objects
    asked = _only_group(line.item.question, objects, legacy)
    if asked is None:
        return None

    def edit(choice: Text, is_right: bool) -> list[Token] | None:
        group = _only_group(choice, objects, legacy)
        if group is None and not any(_is_in(token, THEY) for token in choice):
            return None
        if is_right:
            return _replaced(choice, group, "they")
        return [asked if token == group or _is_in(token, THEY) else token for token in choice]

    return edit


def shifted(lines: Sequence[Line], rules: Sequence[Rule]) -> Shifted:
    """The lines to which one of the rules applies, the first one, edited by it."""
    out = Shifted()
    for line in lines:
        edits = (rule(line) for rule in rules)
        edit = next((one for one in edits if one is not None), None)
        if edit is not None:
            out.add(line, _edited(line, edit, out))
    return out


def _edited(line: Line, edit: Edit, out: Shifted) -> Line:
    """The line with both parts edited; counts the choices that stay."""
    new = line
    for part in PARTS:
        choices = []
        for number, choice in enumerate(line.choices(part)):
            changed = edit(choice, number == line.right(part))
            if changed is None:
                out.left["not of one person or group alone"] += 1
            elif changed == choice:
                out.left["says it that way already"] += 1
            choices.append(choice if changed is None else changed)
        new = new.with_choices(part, choices)
    return new


def _persons(text: Text, objects: Sequence[str]) -> list[int]:
    """The different persons that a text's tags name, in order of their numbers."""
    named = {number for token in text if isinstance(token, list) for number in token}
    return sorted(number for number in named if objects[number] == PERSON)


def _only_group(text: Text, objects: Sequence[str], legacy: bool) -> list[int] | None:
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


def _pronoun(choice: Text, question: Text) -> str:
    """The pronoun, he or she, that the choice says more often; if neither, the question; else "he"."""
    for text in (choice, question):
        he = sum(_is_in(token, HE) for token in text)
        she = sum(_is_in(token, SHE) for token in text)
        if he != she:
            return "he" if he > she else "she"
    return "he"


def _replaced(text: Text, tag: list[int] | None, pronoun: str) -> list[Token]:
    """The text with a pronoun for a tag, capitalised where it is the first word."""
    out: list[Token] = []
    for place, token in enumerate(text):
        if token != tag:
            out.append(token)
        else:
            out.append(pronoun.capitalize() if place == 0 else pronoun)
    return out


def _is_in(token: Token, words: frozenset[str]) -> bool:
    return isinstance(token, str) and token in words
