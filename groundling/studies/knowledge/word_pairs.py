"""Files of word pairs with people's ratings.

Sets: MEN, SimLex-999, WordSim-353, SimVerb-3500 and RG-65, in the formats of their releases; the number of
pairs identifies the set.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.data.tables import lines_of

SIZES = {3000: "men", 999: "simlex-999", 353: "wordsim-353", 3500: "simverb-3500", 65: "rg-65"}
"""Names of sets by their number of pairs."""
SEPARATORS = ("\t", ";", ",", None)
"""Possible separators of columns, in this order; None: spaces."""
COLUMNS = (
    ("word1", "word2", "simlex999"),
    ("word 1", "word 2", "human (mean)"),
    ("word1", "word2", "similarity"),
)
"""Columns of words and ratings that headers name, in lower case: SimLex, WordSim, your own file."""
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

    - Your own: a header with word1, word2 and similarity; or words and rating without a header, as RG-65.
    - MEN's `MEN_dataset_natural_form_full` and `..._lemma_form_full`: words and rating, by spaces;
      a lemma's part of speech is removed.
    - SimLex-999's `SimLex-999.txt`: a header; word1, word2, POS, SimLex999, ... by tabs.
    - WordSim-353's `combined.csv` and `combined.tab`: a header; Word 1, Word 2, Human (mean).
    - SimVerb-3500's `SimVerb-3500.txt`: words, POS, rating, relation, by tabs.

    Raises InputError with the line that is damaged.
    """
    path = Path(path)
    lines = lines_of(path)
    separator = next((mark for mark in SEPARATORS if len(lines[0].split(mark)) > 2), None)
    rows = [[value.strip() for value in line.strip().split(separator)] for line in lines]
    header = [name.lower() for name in rows[0]]
    names = next((names for names in COLUMNS if set(names) <= set(header)), ())
    # Without a header the rating is the first number, which SimVerb's part of speech precedes.
    has_pos = len(header) > 3 and header[2].isalpha()
    places = [header.index(name) for name in names] or [0, 1, 2 + has_pos]
    pairs = []
    ratings = []
    for number, row in enumerate(rows, start=1):
        if names and number == 1:
            continue
        with prefix_errors(f"{path}, line {number}"), convert_errors("not two words and a rating"):
            one, other, rating = (row[place] for place in places)
            if not one or not other or len(row) != len(header) or not np.isfinite(float(rating)):
                raise InputError(f"expected {len(header)} columns: two words and a number")
        pairs.append((one, other))
        ratings.append(float(rating))
    if len(pairs) < 3 or not np.ptp(ratings):
        raise InputError(
            f"{path}: {len(pairs)} pairs; a correlation needs three, not all rated alike"
        )
    if all(word.endswith(PARTS_OF_SPEECH) for pair in pairs for word in pair):
        pairs = [(one[:-2], other[:-2]) for one, other in pairs]
    return WordPairs(SIZES.get(len(pairs), path.stem), pairs, np.array(ratings))
