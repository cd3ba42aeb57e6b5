"""Files of word pairs with people's ratings.

Sets: MEN, SimLex-999, WordSim-353, SimVerb-3500 and RG-65, in the formats of their releases; the number of
pairs identifies the set.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from groundling.core.errors import InputError
from groundling.data.tables import lines_of

SIZES = {3000: "men", 999: "simlex-999", 353: "wordsim-353", 3500: "simverb-3500", 65: "rg-65"}
"""Names of sets by their number of pairs."""
SEPARATORS = ("\t", ";", ",", None)
"""Possible separators of columns, in this order; None: spaces."""
WORD_COLUMNS = (("word1", "word2"), ("word 1", "word 2"))
"""Names of the columns of words, in lower case."""
RATING_COLUMNS = ("simlex999", "human (mean)", "similarity", "mean", "score", "rating")
"""Names of the column of ratings, in lower case."""
PARTS_OF_SPEECH = ("-n", "-v", "-j")
"""Endings of MEN's words in lemma form."""


class WordPairs(NamedTuple):
    """Pairs of words with people's ratings."""

    name: str
    """The set, by its number of pairs; the file's name for another number."""
    pairs: list[tuple[str, str]]
    ratings: np.ndarray
    """(pairs,) float."""

    @property
    def items(self) -> set[frozenset[str]]:
        """The distinct pairs, in lower case and either order."""
        return {frozenset((one.lower(), other.lower())) for one, other in self.pairs}


def read_word_pairs(path: str | Path) -> WordPairs:
    """Pairs of words of one file; its first line determines the separator and the columns.

    - MEN's `MEN_dataset_natural_form_full` and `..._lemma_form_full`: words and rating, by spaces;
      a lemma's part of speech is removed.
    - SimLex-999's `SimLex-999.txt`: a header; word1, word2, POS, SimLex999, ... by tabs.
    - WordSim-353's `combined.csv` and `combined.tab`: a header; Word 1, Word 2, Human (mean).
    - SimVerb-3500's `SimVerb-3500.txt`: words, POS, rating, relation, by tabs.
    - RG-65 and any other: words and rating, by tabs, semicolons, commas or spaces; or a header with
      word1, word2 and similarity.

    Raises InputError with the line and field that is damaged.
    """
    path = Path(path)
    if path.is_dir():
        raise InputError(f"{path}: is a folder; pass one of its files")
    lines = lines_of(path)
    separator = next((mark for mark in SEPARATORS if len(_split(lines[0], mark)) > 2), None)
    header = [name.lower() for name in _split(lines[0], separator)]
    if len(header) < 3:
        raise InputError(f"{path}, line 1: {len(header)} columns; expected two words and a rating")
    columns = _named_columns(header)
    first = 1
    if columns is None:
        columns = _columns_of_row(path, _split(lines[0], separator))
        first = 0
    pairs = []
    ratings = []
    for number, line in enumerate(lines[first:], start=first + 1):
        values = _split(line, separator)
        where = f"{path}, line {number}"
        if len(values) != len(header):
            raise InputError(f"{where}: {len(values)} columns, expected {len(header)}")
        one, other = (values[place] for place in columns[:2])
        if not one or not other:
            raise InputError(f"{where}: word {1 if not one else 2} is empty")
        pairs.append((one, other))
        ratings.append(_rating(values[columns[2]], where))
    if len(pairs) < 3:
        raise InputError(f"{path}: {len(pairs)} pairs; a correlation needs three")
    if all(word.endswith(PARTS_OF_SPEECH) for pair in pairs for word in pair):
        pairs = [(one[:-2], other[:-2]) for one, other in pairs]
    return WordPairs(SIZES.get(len(pairs), path.stem), pairs, np.array(ratings))


def _split(line: str, separator: str | None) -> list[str]:
    return [value.strip() for value in line.strip().split(separator)]


def _named_columns(header: Sequence[str]) -> tuple[int, int, int] | None:
    """The columns of words and rating that a header names; None without one."""
    for names in WORD_COLUMNS:
        rating = next((name for name in RATING_COLUMNS if name in header), None)
        if set(names) <= set(header) and rating is not None:
            return header.index(names[0]), header.index(names[1]), header.index(rating)
    return None


def _columns_of_row(path: Path, values: Sequence[str]) -> tuple[int, int, int]:
    """The columns of a file without a header: words, and the first number after them."""
    for place, value in enumerate(values[2:4], start=2):
        if _is_number(value):
            return 0, 1, place
    raise InputError(
        f"{path}, line 1: columns are {', '.join(values)[:80]}; expected two words and a rating, or a header with "
        "word1, word2 and similarity"
    )


def _is_number(value: str) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except ValueError:
        return False


def _rating(value: str, where: str) -> float:
    if not _is_number(value):
        raise InputError(f"{where}: rating is {value[:60]!r}; expected a number")
    return float(value)
