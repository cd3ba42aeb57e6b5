"""Dependency labels: Universal Dependencies (v2), ClearNLP (spaCy's English models), Stanford.

Most relations differ in their name alone. Two differ in structure. A preposition is a child of its
noun in UD (`case`); in the others it is the noun's parent (`prep`), and the noun its `pobj`. UD
attaches `cc` to the conjunct that follows, the others to the first conjunct. A relation without a
counterpart keeps its name. Words that the schemes attach to different parents (punctuation, copulas
except before a preposition) keep the parser's parent.

Stanford: de Marneffe and Manning 2008, basic dependencies, as in AllenNLP's parser, which the
VisualBERT paper uses.
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
"""Stanford's names for relations of UD and ClearNLP, where they differ."""
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
"""UD's names for relations of Stanford's scheme and ClearNLP, where they differ."""
POSSESSIVE = ("nmod:poss", "poss")
"""Relations of a possessor, whose `case` is 's."""
OBLIQUE = ("nmod", "obl")
"""UD's relations of a noun with a preposition, with any subtype."""
PREPOSITIONS = ("prep", "agent", "dative")
"""Relations of a preposition that has its own `pobj`."""
IN_A_NOUN_PHRASE = (
    *("acl", "amod", "appos", "case", "compound", "conj", "cc", "det", "fixed", "flat"),
    *("goeswith", "nmod", "nummod", "poss", "relcl"),
)
"""Relations whose children stay with a noun when a copula becomes the predicate in its place."""
VERBAL = ("VERB", "AUX", "ADJ", "ADV", "V", "J", "R", "MD")
"""Prefixes of universal and Penn Treebank tags of words whose nouns are `obl`, not `nmod`."""


def relabel(words: Sequence[ParsedWord], scheme: LabelScheme) -> tuple[ParsedWord, ...]:
    """The words of a parse with the relations of `scheme`; `as-is` changes nothing."""
    if scheme == "as-is":
        return tuple(words)
    tree = _Tree(words)
    (tree.to_stanford if scheme == "stanford" else tree.to_ud)()
    return tree.words()


def base_relation(relation: str) -> str:
    """A relation without its subtype, the part after the colon."""
    return relation.partition(":")[0]


class _Tree:
    """A parse that can be changed."""

    def __init__(self, words: Sequence[ParsedWord]) -> None:
        self.original_words = words
        self.head = [word.head for word in words]
        self.relation = [word.relation for word in words]

    def words(self) -> tuple[ParsedWord, ...]:
        changed = zip(self.original_words, self.head, self.relation, strict=True)
        return tuple(word._replace(head=head, relation=name) for word, head, name in changed)

    def children(self, place: int, fits: Callable[[str], bool]) -> list[int]:
        """Indices of the children of word `place` whose relations fit, in order."""
        return [
            child
            for child, head in enumerate(self.head)
            if head == place and fits(self.relation[child])
        ]

    def attach(self, place: int, head: int, relation: str) -> None:
        self.head[place] = head
        self.relation[place] = relation

    # -- to Stanford ---------------------------------------------------------------------------------------------------

    def to_stanford(self) -> None:
        for place in range(len(self.head)):
            self._move_conjunction_up(place)
        for place in range(len(self.head)):
            cases = self.children(place, lambda name: base_relation(name) == "case")
            if cases:
                self._put_prepositions_between(place, cases)
        for place, name in enumerate(self.relation):
            if base_relation(name) == "acl" and name != "acl:relcl" and self._is_infinitive(place):
                self.relation[place] = "infmod"
            elif name == "dative" and not self.children(place, lambda name: name == "pobj"):
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
        """Attach a noun to its last preposition; the first one takes its place."""
        name = self.relation[noun]
        if name in POSSESSIVE:
            for case in cases:
                self.relation[case] = "possessive"
            return
        copulas = self.children(noun, lambda name: base_relation(name) == "cop")
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
        """Put a copula in its noun's place, as "is" in "the dog is on the grass"."""
        self.attach(verb, self.head[noun], self.relation[noun])
        for child in self.children(noun, lambda name: base_relation(name) not in IN_A_NOUN_PHRASE):
            self.head[child] = verb

    def _is_infinitive(self, place: int) -> bool:
        marks = self.children(place, lambda name: name in ("mark", "aux"))
        return any(self.original_words[mark].form.lower() == "to" for mark in marks)

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
        """Put a noun in its preposition's place; chained ones ("out of") become its children."""
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
            name = "obl" if self.original_words[above].tag.startswith(VERBAL) else "nmod"
        self.attach(noun, above, name)
        for preposition in chain:
            self.attach(preposition, noun, "case")

    def _is_preposition(self, place: int) -> bool:
        return self.relation[place] in PREPOSITIONS or self.head[place] == ROOT

    def _has_no_own_noun(self, place: int) -> bool:
        """Whether the word is a preposition whose noun is attached to another preposition."""
        return (
            place != ROOT
            and self.relation[place] in PREPOSITIONS
            and not self.children(place, lambda name: name == "pobj")
        )

    def _move_conjunction_down(self, place: int) -> None:
        """Attach a conjunction to the conjunct that follows, if there is one."""
        if self.relation[place] != "cc" or self.head[place] == ROOT:
            return
        conjuncts = self.children(self.head[place], lambda name: name == "conj")
        behind = [conjunct for conjunct in conjuncts if conjunct > place]
        if behind:
            self.head[place] = behind[0]
