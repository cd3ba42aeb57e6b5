"""Minimal pairs of BLiMP, EWoK and your own files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from groundling.core.errors import InputError, convert_errors, prefix_errors, require_nonempty
from groundling.data.tables import ROWS, read_header, read_rows, row_texts

BLIMP = ("sentence_good", "sentence_bad")
"""Fields of BLiMP (Warstadt et al. 2020) and, without any others, of BabyLM's supplement."""
EWOK = ("Target1", "Target2", "Context1", "Context2", "Domain")
"""Fields of EWoK (Ivanova et al. 2024) with the texts and the group."""
OWN = ("good", "bad")
"""Columns of your own file; `group` and `id` are optional."""
SAME_FIELD = {"syntax/semantics": "syntax_semantics"}
"""BLiMP's files have two spellings of one field."""
SAME_PHENOMENON = {"s-selection": "argument_structure"}
"""BLiMP's files have 13 terms, its paper 12 phenomena: argument structure has nine paradigms there (Table 2)."""


class TextWithContext(NamedTuple):
    """A text, and the character where scoring begins."""

    text: str
    """The text that the model reads."""
    scored_from: int = 0
    """Words from this character on are scored; the text before it is context."""


@dataclass(frozen=True)
class MinimalPair:
    """Texts that differ minimally: good and bad, or two targets after each of two contexts."""

    id: str
    """Unique within a folder."""
    texts: tuple[TextWithContext, ...]
    """Good and bad; for EWoK, target 1 after contexts 1 and 2, then target 2."""
    paradigm: str
    """The smallest group whose accuracy is reported: BLiMP's UID, EWoK's domain, your own group."""
    phenomenon: str = ""
    """BLiMP's linguistic term."""
    field: str = ""
    """BLiMP's field: morphology, syntax, semantics, syntax_semantics."""

    @property
    def of_ewok(self) -> bool:
        """Whether it has two targets and two contexts."""
        return len(self.texts) == 4


def read_minimal_pairs(path: str | Path) -> list[MinimalPair]:
    """Pairs of a file, or of all .jsonl, .csv and .tsv files below a folder, sorted by name.

    The fields of the first file determine the layout, which the others must have too. Raises
    InputError with file and line for a field that is missing, or a duplicate id.
    """
    files = _files(Path(path))
    fields = read_header(files[0])
    columns = next((names for names in LAYOUTS if set(names) <= set(fields)), None)
    if columns is None:
        layouts = "; ".join(", ".join(names) for names in LAYOUTS)
        raise InputError(f"{files[0]}: fields are {', '.join(fields)[:80]}; expected {layouts}")
    pairs: dict[str, MinimalPair] = {}
    for file in files:
        for number, (where, row) in enumerate(read_rows(file, columns), 1):
            with prefix_errors(where), convert_errors("not a pair"):
                pair = LAYOUTS[columns](row, file, number)
            if pair.id in pairs:
                raise InputError(f"{where}: duplicate id {pair.id}; each pair needs its own")
            pairs[pair.id] = pair
    return list(pairs.values())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # Archives made on macOS have a second file for each name, which begins with a dot.
    visible = [file for file in sorted(path.rglob("*")) if not file.name.startswith(".")]
    files = [file for file in visible if file.suffix in ROWS]
    require_nonempty(files, f"{path}: no {', '.join(ROWS)} file there; unpack an archive first")
    return files


def _blimp(row: dict[str, Any], file: Path, number: int) -> MinimalPair:
    paradigm = row.get("UID", file.stem)
    phenomenon = row.get("linguistics_term", "")
    field = row.get("field", "")
    return MinimalPair(
        f"{paradigm}/{row.get('pairID', number)}",
        tuple(map(TextWithContext, row_texts(row, BLIMP))),
        paradigm,
        SAME_PHENOMENON.get(phenomenon, phenomenon),
        SAME_FIELD.get(field, field),
    )


def _ewok(row: dict[str, Any], file: Path, number: int) -> MinimalPair:
    *texts, domain = (text.strip() for text in row_texts(row, EWOK))
    targets, contexts = texts[:2], texts[2:]
    scored = tuple(
        TextWithContext(f"{context} {target}", len(context) + 1)
        for target in targets
        for context in contexts
    )
    return MinimalPair(f"{file.stem}/{number}", scored, domain)


def _own(row: dict[str, Any], file: Path, number: int) -> MinimalPair:
    texts = tuple(map(TextWithContext, row_texts(row, OWN)))
    return MinimalPair(
        f"{file.stem}/{row.get('id', number)}", texts, str(row.get("group", file.stem))
    )


PairReader = Callable[[dict[str, Any], Path, int], MinimalPair]
"""Makes the pair of a row, of a file, with the row's number."""
LAYOUTS: dict[tuple[str, ...], PairReader] = {BLIMP: _blimp, EWOK: _ewok, OWN: _own}
"""The formats by their columns or fields; the first that a file has is its format."""
