"""Ways to damage a valid file, each drawn from a generator; what a reader owes depends on what was done.

`SAME`: the same data, spelt otherwise (a byte-order mark, Windows' line ends): it reads as before, or is refused.
`DAMAGE`: no longer what its writer wrote, and a reader could know: refused, or reported, or nothing of it is read.
`EDIT`: another file that a user might have meant (another letter, a line less): any reading is right, a traceback or
a hang is not.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

TEXT = {".txt", ".tsv", ".csv", ".json", ".jsonl", ".xml", ".toml", ".conllu", ".raw", ".yaml"}
"""Endings of files that are mutated as text, too."""
LINES = {".tsv", ".csv", ".jsonl"}
"""Endings of files with a record in every line."""


class Effect(StrEnum):
    SAME = "same"
    DAMAGE = "damage"
    EDIT = "edit"


class Mutation(NamedTuple):
    name: str
    kind: Effect
    content: bytes | None
    """None: the file is gone."""


Change = Callable[[bytes, Random], bytes]


# -- any file ----------------------------------------------------------------------------------------------------------


def flip_a_bit(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def flip_bits(content: bytes, rng: Random) -> bytes:
    for _ in range(rng.randint(2, 30)):
        content = flip_a_bit(content, rng)
    return content


def flip_near_the_start(content: bytes, rng: Random) -> bytes:
    """Where headers are."""
    return flip_a_bit(content[:200], rng) + content[200:]


def truncate(content: bytes, rng: Random) -> bytes:
    return content[: rng.randrange(len(content))]


def cut_the_end(content: bytes, rng: Random) -> bytes:
    return content[: -rng.randint(1, min(40, len(content)))]


def remove_bytes(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + content[place + rng.randint(1, 50) :]


def repeat_bytes(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + content[max(0, place - 40) : place] + content[place:]


def insert_bytes(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.randbytes(rng.randint(1, 9)) + content[place:]


def zero_a_block(content: bytes, rng: Random) -> bytes:
    """As a file system leaves one after the power failed."""
    place = rng.randrange(len(content))
    return content[:place] + bytes(len(content[place : place + 64])) + content[place + 64 :]


def empty(content: bytes, rng: Random) -> bytes:
    return b""


def one_byte(content: bytes, rng: Random) -> bytes:
    return rng.choice((b"\0", b"\n", b"{", b"[", b"\xff", b'"', b"0"))


def noise(content: bytes, rng: Random) -> bytes:
    return rng.randbytes(rng.randint(1, 400))


def append_noise(content: bytes, rng: Random) -> bytes:
    return content + rng.randbytes(rng.randint(1, 40))


def swap_halves(content: bytes, rng: Random) -> bytes:
    middle = len(content) // 2
    return content[middle:] + content[:middle]


ANY: dict[Change, Effect] = dict.fromkeys(
    (
        flip_a_bit,
        flip_bits,
        flip_near_the_start,
        truncate,
        cut_the_end,
        remove_bytes,
        repeat_bytes,
        insert_bytes,
        zero_a_block,
        empty,
        one_byte,
        noise,
        append_noise,
        swap_halves,
    ),
    Effect.EDIT,
)

# -- text --------------------------------------------------------------------------------------------------------------


def byte_order_mark(content: bytes, rng: Random) -> bytes:
    return b"\xef\xbb\xbf" + content


def windows_lines(content: bytes, rng: Random) -> bytes:
    return content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")


def utf_16(content: bytes, rng: Random) -> bytes:
    return content.decode("utf-8").encode("utf-16")


def no_last_newline(content: bytes, rng: Random) -> bytes:
    return content.rstrip(b"\n")


def zeros_behind(content: bytes, rng: Random) -> bytes:
    return content + bytes(512)


def a_line_less(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    del lines[rng.randrange(len(lines))]
    return b"\n".join(lines)


def a_line_twice(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    return b"\n".join([*lines[:place], lines[place], *lines[place:]])


def two_lines_joined(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    place = rng.randrange(len(lines))
    return b"\n".join([*lines[:place], b"".join(lines[place : place + 2]), *lines[place + 2 :]])


def lines_in_disorder(content: bytes, rng: Random) -> bytes:
    lines = content.split(b"\n")
    rng.shuffle(lines)
    return b"\n".join(lines)


ODD = (
    "\0",
    '"',
    "'",
    ",",
    "\t",
    "\\",
    "\x85",
    "\u2028",
    "\ud7ff",
    "é",
    "🐶",
    "\x1f",
    "&",
    "<",
    "(",
    "[",
    "{",
    "%",
)
"""Characters that separate, quote or end something somewhere."""


def an_odd_character(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + rng.choice(ODD).encode("utf-8", "surrogatepass") + content[place:]


def latin_1(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + b"caf\xe9" + content[place:]


def half_a_character(content: bytes, rng: Random) -> bytes:
    place = rng.randrange(len(content) + 1)
    return content[:place] + b"\xed\xa0\xbd" + content[place:]


def another_number(content: bytes, rng: Random) -> bytes:
    """A number, wherever one stands, becomes one that nobody expects."""
    places = [place for place, byte in enumerate(content) if chr(byte).isdigit()]
    if not places:
        return content
    start = stop = rng.choice(places)
    while stop < len(content) and chr(content[stop]).isdigit():
        stop += 1
    return content[:start] + rng.choice(NUMBERS) + content[stop:]


NUMBERS = (
    b"-1",
    b"0",
    b"1e999",
    b"nan",
    b"NaN",
    b"inf",
    b"-Infinity",
    b"9" * 30,
    b"9" * 5000,
    b"1000000000000",
    b"2147483648",
    b"0.5",
    b"1_0",
    "٣".encode(),
    "²".encode(),
    b"true",
    b"",
)


def another_path(content: bytes, rng: Random) -> bytes:
    """What looks like a file's name leads elsewhere."""
    for ending in rng.sample((b".jpg", b".png", b".json", b".safetensors"), 4):
        end = content.find(ending)
        if end > 0:
            start = max(content.rfind(mark, 0, end) for mark in (b'"', b"\t", b"\n", b",")) + 1
            return content[:start] + rng.choice(PATHS) + content[end + len(ending) :]
    return content


PATHS = (
    b"../../../etc/passwd",
    b"/dev/zero",
    b".",
    b"..",
    b"",
    b"/",
    b"x" * 300,
    b"C:\\\\x.jpg",
    b"a/../b.jpg",
)

AS_TEXT: dict[Change, Effect] = {
    byte_order_mark: Effect.SAME,
    windows_lines: Effect.SAME,
    utf_16: Effect.SAME,
    no_last_newline: Effect.SAME,
    zeros_behind: Effect.EDIT,
    latin_1: Effect.DAMAGE,
    half_a_character: Effect.DAMAGE,
    a_line_less: Effect.EDIT,
    a_line_twice: Effect.EDIT,
    two_lines_joined: Effect.EDIT,
    lines_in_disorder: Effect.EDIT,
    an_odd_character: Effect.EDIT,
    another_number: Effect.EDIT,
    another_path: Effect.EDIT,
}

# -- tables ------------------------------------------------------------------------------------------------------------


def _cells(change: Callable[[list[bytes], Random], None]) -> Change:
    def changed(content: bytes, rng: Random) -> bytes:
        mark = b"\t" if b"\t" in content else b","
        lines = content.split(b"\n")
        place = rng.randrange(len(lines))
        cells = lines[place].split(mark)
        change(cells, rng)
        lines[place] = mark.join(cells)
        return b"\n".join(lines)

    changed.__name__ = change.__name__
    return changed


@_cells
def a_cell_less(cells: list[bytes], rng: Random) -> None:
    del cells[rng.randrange(len(cells))]


@_cells
def a_cell_twice(cells: list[bytes], rng: Random) -> None:
    place = rng.randrange(len(cells))
    cells.insert(place, cells[place])


@_cells
def an_empty_cell(cells: list[bytes], rng: Random) -> None:
    cells[rng.randrange(len(cells))] = b""


@_cells
def cells_in_disorder(cells: list[bytes], rng: Random) -> None:
    rng.shuffle(cells)


AS_TABLE: dict[Change, Effect] = dict.fromkeys(
    (a_cell_less, a_cell_twice, an_empty_cell, cells_in_disorder), Effect.EDIT
)

# -- JSON --------------------------------------------------------------------------------------------------------------

VALUES: tuple[object, ...] = (
    None,
    True,
    [],
    {},
    [[]],
    "",
    " ",
    "nonsense",
    "0",
    -1,
    0,
    1.5,
    10**12,
    10**30,
    1e308,
    float("nan"),
    float("inf"),
    [None],
    {"id": 1},
    "\ud800",
)
"""What may stand where something else is expected."""


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """All containers and keys of some JSON."""
    keys = (
        value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    )
    for key in keys:
        found.append((value, key))
        _places(value[key], found)
    return found


def _json(change: Callable[[Any, Any, Random], None]) -> Change:
    """A change of one place in a file of JSON, or in one line of a file of JSON lines."""

    def changed(content: bytes, rng: Random) -> bytes:
        try:
            return _dumped(json.loads(content), change, rng)
        except ValueError:
            lines = content.split(b"\n")
            place = rng.randrange(max(1, len(lines) - 1))
            lines[place] = _dumped(json.loads(lines[place]), change, rng)
            return b"\n".join(lines)

    changed.__name__ = change.__name__
    return changed


def _dumped(parsed: Any, change: Callable[[Any, Any, Random], None], rng: Random) -> bytes:
    places = _places(parsed, [])
    if places:
        # Every name counts once, however often it is there: a list of a thousand numbers would hide all others.
        names = sorted({str(key) if isinstance(box, dict) else "" for box, key in places})
        name = rng.choice(names)
        among = [
            (box, key) for box, key in places if (str(key) if isinstance(box, dict) else "") == name
        ]
        change(*rng.choice(among), rng)
    return json.dumps(parsed).encode("utf-8", "surrogatepass")


@_json
def another_value(box: Any, key: Any, rng: Random) -> None:
    box[key] = copy.deepcopy(rng.choice(VALUES))


@_json
def a_value_less(box: Any, key: Any, rng: Random) -> None:
    del box[key]


@_json
def a_value_twice(box: Any, key: Any, rng: Random) -> None:
    if isinstance(box, list):
        box.insert(key, copy.deepcopy(box[key]))
    else:
        box[f"{key} "] = box.pop(key)


@_json
def a_value_wrapped(box: Any, key: Any, rng: Random) -> None:
    box[key] = rng.choice(([box[key]], {"value": box[key]}, str(box[key])))


@_json
def a_deep_value(box: Any, key: Any, rng: Random) -> None:
    box[key] = "DEEP"


def deep(content: bytes, rng: Random) -> bytes:
    depth = rng.choice((200, 5_000, 100_000))
    return a_deep_value(content, rng).replace(b'"DEEP"', b"[" * depth + b"]" * depth)


def a_long_number(content: bytes, rng: Random) -> bytes:
    return a_deep_value(content, rng).replace(b'"DEEP"', b"9" * rng.choice((400, 5_000)))


def all_of_it_wrapped(content: bytes, rng: Random) -> bytes:
    return rng.choice((b"[%b]", b'{"value": %b}', b'"%b"')).replace(b"%b", content)


def another_whole(content: bytes, rng: Random) -> bytes:
    return json.dumps(rng.choice(VALUES[:-1])).encode()


AS_JSON: dict[Change, Effect] = dict.fromkeys(
    (
        another_value,
        a_value_less,
        a_value_twice,
        a_value_wrapped,
        deep,
        a_long_number,
        all_of_it_wrapped,
        another_whole,
    ),
    Effect.EDIT,
)


def spelt_otherwise(content: bytes, rng: Random) -> bytes:
    """The same JSON with other spaces and escapes."""
    try:
        return json.dumps(json.loads(content), indent=1).encode()
    except ValueError:
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
        return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


@_json
def with_a_nan(box: Any, key: Any, rng: Random) -> None:
    """A number becomes NaN or infinite, which is no JSON, and nobody's box, score or count."""
    if isinstance(box[key], int | float) and not isinstance(box[key], bool):
        box[key] = rng.choice((float("nan"), float("inf"), -float("inf")))


FOREIGN = "planted.evil"
"""A module that is there, and that nobody named."""
NAME = f"{FOREIGN}:THING"
NAMES = (*[NAME] * 4, f"{FOREIGN}.THING", FOREIGN, f"{FOREIGN}:", f"planted--{FOREIGN}.THING")
IMPORTED_AS = (
    "kind",
    "task",
    "design",
    "type",
    "auto_map",
    "tokenizer_class",
    "attn_implementation",
)
"""Keys below which folders of models name code."""


@_json
def a_foreign_name(box: Any, key: Any, rng: Random) -> None:
    """Any value becomes the name of code."""
    box[key] = rng.choice(NAMES)


@_json
def a_foreign_text(box: Any, key: Any, rng: Random) -> None:
    """All texts beside one another become the name of code."""
    name = rng.choice(NAMES)
    for place in list(box) if isinstance(box, dict) else range(len(box)):
        if isinstance(box[place], str | None):
            box[place] = name


@_json
def a_foreign_key(box: Any, key: Any, rng: Random) -> None:
    """One more setting, which names code."""
    if isinstance(box, dict):
        name = rng.choice(NAMES)
        auto = dict.fromkeys(("AutoConfig", "AutoModel", "AutoImageProcessor"), name)
        added = rng.choice(IMPORTED_AS)
        box[added] = auto | {"AutoTokenizer": [name, name]} if added == "auto_map" else name


AS_JSON |= {spelt_otherwise: Effect.SAME, with_a_nan: Effect.DAMAGE}
FOREIGNERS: dict[Change, Effect] = dict.fromkeys(
    (a_foreign_name, a_foreign_text, a_foreign_key), Effect.EDIT
)


def another_prediction(content: bytes, rng: Random) -> bytes:
    """A class that is not the best of its line's outputs, or none at all."""
    lines = content.split(b"\n")
    place = rng.choice([number for number, line in enumerate(lines) if b'"prediction"' in line])
    line = json.loads(lines[place])
    others = [n for n, one in enumerate(line["outputs"]) if one < max(line["outputs"])]
    line["prediction"] = rng.choice([*others, -1, 99, line["prediction"] + 0.5])
    lines[place] = json.dumps(line).encode()
    return b"\n".join(lines)


def another_output(content: bytes, rng: Random) -> bytes:
    """A higher one than that of the class that is predicted."""
    lines = content.split(b"\n")
    place = rng.choice([number for number, line in enumerate(lines) if b'"prediction"' in line])
    line = json.loads(lines[place])
    outputs = line["outputs"]
    others = [n for n in range(len(outputs)) if n != line["prediction"]]
    outputs[rng.choice(others)] = max(outputs) + rng.choice((0.1, 10, 1e9))
    lines[place] = json.dumps(line).encode()
    return b"\n".join(lines)


AS_PREDICTIONS: dict[Change, Effect] = dict.fromkeys(
    (another_prediction, another_output), Effect.EDIT
)


def mutated(path: Path, content: bytes, rng: Random) -> Mutation:
    """One of the ways that fit a file."""
    if rng.random() < 0.02:
        return Mutation("gone", Effect.EDIT, None)
    offered = [ANY]
    is_text = path.suffix in TEXT or _is_text(content)
    if is_text:
        offered.append(AS_TEXT)
    if path.suffix in {".tsv", ".csv"}:
        offered.append(AS_TABLE)
    if path.suffix in {".json", ".jsonl"}:
        offered += [AS_JSON, AS_JSON, FOREIGNERS]
    if path.suffix == ".jsonl" and b'"outputs"' in content:
        offered += [AS_PREDICTIONS]
    ways = rng.choice(offered)
    change = rng.choice(list(ways))
    if not content:
        change = append_noise
    try:
        made = change(content, rng)
    except (ValueError, IndexError):  # the file is not of its ending's kind
        change = flip_a_bit
        made = change(content, rng)
    kind = ANY.get(change) or ways.get(change, Effect.EDIT)
    if change in (truncate, cut_the_end) and not is_text:
        kind = Effect.DAMAGE
    return Mutation(change.__name__, kind, made)


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content[:4000].decode("utf-8")
    except UnicodeDecodeError:
        return False
