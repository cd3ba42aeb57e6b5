"""Minimal pairs of BLiMP, EWoK and your own files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from groundling.core.errors import InputError
from groundling.data.tables import TABLES, read_header, read_json_lines, read_rows

BLIMP = ("sentence_good", "sentence_bad")
"""Fields of BLiMP (Warstadt et al. 2020) and, without any others, of BabyLM's supplement."""
EWOK = ("Target1", "Target2", "Context1", "Context2", "Domain")
"""Fields of EWoK (Ivanova et al. 2024) with the texts and the group."""
OWN = ("good", "bad")
"""Columns of your own file; `group` and `id` are optional."""
LAYOUTS = (
    f"{' and '.join(BLIMP)} (BLiMP); {', '.join(EWOK)} (EWoK); or {' and '.join(OWN)} (your own)"
)
"""The accepted fields, for messages."""
ENDINGS = (".jsonl", *TABLES)
"""Extensions of the files that are read."""
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
    InputError with file and line for a field that is missing or empty, or a duplicate id.
    """
    files = _files(Path(path))
    reader = _reader(files[0])
    pairs: dict[str, MinimalPair] = {}
    for file in files:
        for where, pair in reader(file):
            if pair.id in pairs:
                raise InputError(f"{where}: duplicate id {pair.id}; each pair needs its own")
            for text in pair.texts:
                if not text.text[text.scored_from :].strip():
                    raise InputError(f"{where}: an empty sentence; expected all texts of the pair")
            pairs[pair.id] = pair
    return list(pairs.values())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        if path.suffix not in ENDINGS:
            raise InputError(f"{path}: expected a {', '.join(ENDINGS)} file, or a folder of them")
        return [path]
    # Archives made on macOS have a second file for each name, which begins with a dot.
    visible = [file for file in sorted(path.rglob("*")) if not file.name.startswith(".")]
    files = [file for file in visible if file.suffix in ENDINGS]
    if not files:
        raise InputError(f"{path}: no {', '.join(ENDINGS)} file there; unpack an archive first")
    return files


PairReader = Callable[[Path], Iterator[tuple[str, MinimalPair]]]
"""Reads the pairs of a file, each with its file and line."""


def _reader(file: Path) -> PairReader:
    if file.suffix != ".jsonl":
        return _own_table
    _, first = next(read_json_lines(file, ()))
    fields = list(first)
    for names, reader in ((BLIMP, _blimp), (EWOK, _ewok), (OWN, _own_lines)):
        if set(names) <= set(fields):
            return reader
    raise InputError(f"{file}, line 1: fields are {', '.join(fields)[:80]}; expected {LAYOUTS}")


def _blimp(file: Path) -> Iterator[tuple[str, MinimalPair]]:
    for number, (where, row) in enumerate(read_json_lines(file, BLIMP), 1):
        paradigm = _text(where, row, "UID", file.stem)
        phenomenon = _text(where, row, "linguistics_term")
        field = _text(where, row, "field")
        yield (
            where,
            MinimalPair(
                f"{paradigm}/{_text(where, row, 'pairID', str(number))}",
                tuple(TextWithContext(row[name]) for name in BLIMP),
                paradigm,
                SAME_PHENOMENON.get(phenomenon, phenomenon),
                SAME_FIELD.get(field, field),
            ),
        )


def _ewok(file: Path) -> Iterator[tuple[str, MinimalPair]]:
    for number, (where, row) in enumerate(read_json_lines(file, EWOK), 1):
        texts = []
        for target in ("Target1", "Target2"):
            for context in ("Context1", "Context2"):
                if not row[context].strip():
                    raise InputError(f"{where}: an empty {context}")
                before = row[context].strip() + " "
                texts.append(TextWithContext(before + row[target].strip(), len(before)))
        yield where, MinimalPair(f"{file.stem}/{number}", tuple(texts), row["Domain"])


def _own_lines(file: Path) -> Iterator[tuple[str, MinimalPair]]:
    for number, (where, row) in enumerate(read_json_lines(file, OWN), 1):
        yield where, _own_pair(file, where, number, row)


def _own_table(file: Path) -> Iterator[tuple[str, MinimalPair]]:
    if file.suffix not in TABLES:
        raise InputError(
            f"{file}: a .jsonl file in a folder with tables; pass one kind of file at a time"
        )
    header = read_header(file)
    columns = [*OWN, *(name for name in ("group", "id") if name in header)]
    for number, (where, row) in enumerate(read_rows(file, columns), 1):
        yield where, _own_pair(file, where, number, row)


def _own_pair(file: Path, where: str, number: int, row: dict[str, Any]) -> MinimalPair:
    name = _text(where, row, "id", str(number))
    texts = tuple(TextWithContext(row[column]) for column in OWN)
    return MinimalPair(f"{file.stem}/{name}", texts, _text(where, row, "group", file.stem))


def _text(where: str, row: dict[str, Any], name: str, default: str = "") -> str:
    """An optional field; numbers are converted to text."""
    value = row.get(name, default)
    is_text = isinstance(value, str | int) and not isinstance(
        value, bool
    )  # bool is a subclass of int
    if not is_text or (name in row and not str(value).strip()):
        raise InputError(f"{where}: field {name!r} is {value!r}, expected a text")
    return str(value)
