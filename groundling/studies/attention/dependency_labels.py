"""Labels of dependencies: Universal Dependencies (v2), ClearNLP's (spaCy's English models) and Stanford's.

Mostly a relation has another name. Two things are built otherwise. A preposition is UD's `case`, below its noun; in the
others it stands between (`prep`) and the noun is its `pobj`. UD's `cc` belongs to the conjunct behind it, the others'
to the first. What has no counterpart keeps its name, and what either scheme attaches elsewhere (punctuation, copulas
but those before a preposition) stays where the parser has it.

Stanford's: de Marneffe and Manning 2008, basic dependencies, which AllenNLP's parser of the VisualBERT paper says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from groundling.data.text.parses import ROOT, ParsedWord

LabelScheme = Literal["stanford", "ud", "as-is"]

TO_STANFORD = {
    "acl": "partmod",
    "acl:relcl": "rcmod",
    "agent": "prep",
    "aux:pass": "auxpass",
    "cc:preconj": "preconj",
    "compound": "nn",
    "compound:prt": "prt",
    "csubj:pass": "csubjpass",
    "det:predet": "predet",
    "fixed": "mwe",
    "intj": "discourse",
    "nmod:npmod": "npadvmod",
    "nmod:poss": "poss",
    "nmod:tmod": "tmod",
    "nmod:unmarked": "npadvmod",
    "nsubj:pass": "nsubjpass",
    "nummod": "num",
    "obj": "dobj",
    "obl:npmod": "npadvmod",
    "obl:tmod": "tmod",
    "obl:unmarked": "npadvmod",
    "relcl": "rcmod",
}
"""Names of UD and ClearNLP that Stanford's scheme has others for."""
TO_UD = {
    "acomp": "xcomp",
    "auxpass": "aux:pass",
    "complm": "mark",
    "csubjpass": "csubj:pass",
    "dobj": "obj",
    "infmod": "acl",
    "intj": "discourse",
    "mwe": "fixed",
    "neg": "advmod",
    "nn": "compound",
    "npadvmod": "obl:unmarked",
    "nsubjpass": "nsubj:pass",
    "num": "nummod",
    "number": "compound",
    "partmod": "acl",
    "poss": "nmod:poss",
    "possessive": "case",
    "preconj": "cc:preconj",
    "predet": "det:predet",
    "prt": "compound:prt",
    "quantmod": "advmod",
    "rcmod": "acl:relcl",
    "relcl": "acl:relcl",
    "tmod": "obl:unmarked",
    "vmod": "acl",
}
"""Names of Stanford's scheme and ClearNLP that UD has others for."""
POSSESSIVE = ("nmod:poss", "poss")
"""Relations of an owner, whose `case` is 's."""
OBLIQUE = ("nmod", "obl")
"""UD's relations of a noun with a preposition, whatever stands behind a colon."""
PREPOSITIONS = ("prep", "agent", "dative")
"""Relations of a preposition with a `pobj` of its own."""
IN_A_NOUN_PHRASE = (
    *("acl", "amod", "appos", "case", "compound", "conj", "cc", "det", "fixed", "flat"),
    *("goeswith", "nmod", "nummod", "poss", "relcl"),
)
"""What stays with a noun, where it stops being the predicate."""
VERBAL = ("VERB", "AUX", "ADJ", "ADV", "V", "J", "R", "MD")
"""Beginnings of universal and of the Penn Treebank's tags of words whose nouns are `obl`, not `nmod`."""


def relabel(words: Sequence[ParsedWord], scheme: LabelScheme) -> tuple[ParsedWord, ...]:
    """The words of a parse with relations of `scheme`, whichever of the three they had; `as-is` changes nothing."""
    if scheme == "as-is":
        return tuple(words)
    tree = _Tree(words)
    (tree.to_stanford if scheme == "stanford" else tree.to_ud)()
    return tree.words()


def base_relation(relation: str) -> str:
    """What stands before the colon of a relation with a subtype."""
    return relation.partition(":")[0]


class _Tree:
    """A parse while it is changed."""

    def __init__(self, words: Sequence[ParsedWord]) -> None:
        self.given = words
        self.head = [word.head for word in words]
        self.relation = [word.relation for word in words]

    def words(self) -> tuple[ParsedWord, ...]:
        changed = zip(self.given, self.head, self.relation, strict=True)
        return tuple(word._replace(head=head, relation=name) for word, head, name in changed)

    def below(self, place: int, fits: Callable[[str], bool]) -> list[int]:
        """Words that depend on one of this number, in order, and whose relations fit."""
        return [
            child
            for child, head in enumerate(self.head)
            if head == place and fits(self.relation[child])
        ]

    def attach(self, place: int, head: int, relation: str) -> None:
        self.head[place] = head
        self.relation[place] = relation

    # -- to Stanford's -------------------------------------------------------------------------------------------------

    def to_stanford(self) -> None:
        for place in range(len(self.head)):
            self._move_conjunction_up(place)
        for place in range(len(self.head)):
            cases = self.below(place, lambda name: base_relation(name) == "case")
            if cases:
                self._put_prepositions_between(place, cases)
        for place, name in enumerate(self.relation):
            if base_relation(name) == "acl" and name != "acl:relcl" and self._is_infinitive(place):
                self.relation[place] = "infmod"
            elif name == "dative" and not self.below(place, lambda name: name == "pobj"):
                self.relation[place] = "iobj"
            elif name == "dative":
                self.relation[place] = "prep"
            else:
                self.relation[place] = TO_STANFORD.get(
                    name, TO_STANFORD.get(base_relation(name), base_relation(name))
                )

    def _move_conjunction_up(self, place: int) -> None:
        head = self.head[place]
        if self.relation[place] == "cc" and head != ROOT and self.relation[head] == "conj":
            self.head[place] = self.head[head]

    def _put_prepositions_between(self, noun: int, cases: Sequence[int]) -> None:
        """A noun below its prepositions, the first of which takes its place; a noun that owns has none."""
        name = self.relation[noun]
        if name in POSSESSIVE:
            for case in cases:
                self.relation[case] = "possessive"
            return
        copulas = self.below(noun, lambda name: base_relation(name) == "cop")
        if base_relation(name) in OBLIQUE:
            above = self.head[noun]
        elif copulas:
            above = copulas[0]
            self._make_predicate(above, noun)
        else:
            return
        for case in cases:
            self.attach(case, above, "prep")
            above = case
        self.attach(noun, above, "pobj")

    def _make_predicate(self, verb: int, noun: int) -> None:
        """A copula in its noun's place: "is" of "the dog is on the grass"."""
        self.attach(verb, self.head[noun], self.relation[noun])
        for child in self.below(noun, lambda name: base_relation(name) not in IN_A_NOUN_PHRASE):
            self.head[child] = verb

    def _is_infinitive(self, place: int) -> bool:
        marks = self.below(place, lambda name: name in ("mark", "aux"))
        return any(self.given[mark].form.lower() == "to" for mark in marks)

    # -- to UD ---------------------------------------------------------------------------------------------------------

    def to_ud(self) -> None:
        for place, name in enumerate(self.relation):
            if name == "pobj":
                self._put_prepositions_below(place)
        for place in range(len(self.head)):
            self._move_conjunction_down(place)
        for place, name in enumerate(self.relation):
            self.relation[place] = "iobj" if name == "dative" else TO_UD.get(name, name)

    def _put_prepositions_below(self, noun: int) -> None:
        """A noun in its preposition's place; prepositions above that have no other noun ("out of") come along."""
        top = self.head[noun]
        if top == ROOT or not self._is_preposition(top):
            return
        chain = [top]
        while self._has_no_own_noun(self.head[top]):
            top = self.head[top]
            chain.append(top)
        above = self.head[top]
        if above == ROOT:
            name = self.relation[top]
        else:
            name = "obl" if self.given[above].tag.startswith(VERBAL) else "nmod"
        self.attach(noun, above, name)
        for preposition in chain:
            self.attach(preposition, noun, "case")

    def _is_preposition(self, place: int) -> bool:
        return self.relation[place] in PREPOSITIONS or self.head[place] == ROOT

    def _has_no_own_noun(self, place: int) -> bool:
        """Whether a preposition is there that has no noun but by way of another one."""
        return (
            place != ROOT
            and self.relation[place] in PREPOSITIONS
            and not self.below(place, lambda name: name == "pobj")
        )

    def _move_conjunction_down(self, place: int) -> None:
        """To the next conjunct behind it, if there is one."""
        if self.relation[place] != "cc" or self.head[place] == ROOT:
            return
        conjuncts = self.below(self.head[place], lambda name: name == "conj")
        behind = [conjunct for conjunct in conjuncts if conjunct > place]
        if behind:
            self.head[place] = behind[0]
