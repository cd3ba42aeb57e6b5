"""Ways to damage a valid file, drawn by hypothesis; what a reader owes depends on what was done.

`SAME`: the same data, spelt otherwise (a byte-order mark, Windows' line ends): it reads as before, or is refused.
`DAMAGE`: no longer what its writer wrote, and a reader could know: refused, or reported, or nothing of it is read.
`EDIT`: another file that a user might have meant (another letter, a line less): any reading is right, a traceback or
a hang is not.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import strategies as st

TEXT = {".txt", ".tsv", ".csv", ".json", ".jsonl", ".xml", ".toml", ".conllu", ".raw", ".yaml"}
"""Endings of files that are mutated as text, too."""
FOREIGN = "planted.evil"
"""A module that is there, and that nobody named."""
Draw = Callable[[st.SearchStrategy[Any]], Any]
Change = Callable[[bytes, Draw], bytes]


class Effect(StrEnum):
    SAME = "same"
    DAMAGE = "damage"
    EDIT = "edit"


class Mutation(NamedTuple):
    name: str
    effect: Effect
    content: bytes | None
    """None: the file is gone."""


def one_of(draw: Draw, *values: Any) -> Any:
    return draw(st.sampled_from(values))


def place_in(draw: Draw, content: Sequence[Any], more: int = 1) -> int:
    """A place in some content; half of the time near its start, where headers are."""
    last = max(0, len(content) - 1 + more)
    return draw(st.integers(0, min(last, 200)) | st.integers(0, last))


def rearranged(items: list[Any], draw: Draw) -> list[Any]:
    """Lines or cells of which one is gone, there twice, empty or joined to the next, or all in another order."""
    place = place_in(draw, items, 0)
    how = one_of(draw, "less", "twice", "empty", "joined", "in disorder")
    if how == "in disorder":
        return draw(st.permutations(items))
    changed = {
        "less": [],
        "twice": items[place : place + 1] * 2,
        "empty": [b""],
        "joined": [b"".join(items[place : place + 2])],
    }
    return [*items[:place], *changed[how], *items[place + 1 + (how == "joined") :]]


# -- any file ----------------------------------------------------------------------------------------------------------
def flipped_bits(content: bytes, draw: Draw) -> bytes:
    changed = bytearray(content)
    for _ in range(one_of(draw, 1, 1, 2, 20)):
        changed[place_in(draw, content, 0)] ^= 1 << draw(st.integers(0, 7))
    return bytes(changed)


def replaced_bytes(content: bytes, draw: Draw) -> bytes:
    """Some bytes are others, fewer, more, there twice, or 0, as a file system leaves a block when the power fails."""
    start = place_in(draw, content)
    stop = start + draw(st.integers(0, 64))
    inside = content[start:stop]
    new = draw(st.sampled_from((b"", bytes(len(inside)), inside * 2)) | st.binary(max_size=16))
    return content[:start] + new + content[stop:]


def cut(content: bytes, draw: Draw) -> bytes:
    kept = draw(st.integers(0, len(content) - 1) | st.integers(1, 40).map(lambda n: -n))
    return content[:kept]


def another_whole(content: bytes, draw: Draw) -> bytes:
    middle = len(content) // 2
    odd = (b"", b"\0", b"\n", b"{", b"[", b"\xff", b'"', b"0", content[middle:] + content[:middle])
    return draw(st.sampled_from(odd) | st.binary(max_size=400))


# -- text --------------------------------------------------------------------------------------------------------------
SPELT: tuple[Callable[[bytes], bytes], ...] = (
    lambda content: b"\xef\xbb\xbf" + content,
    lambda content: content.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n"),
    lambda content: content.decode("utf-8").encode("utf-16"),
    lambda content: content.rstrip(b"\n"),
)
ODD = (*"\0\"',\t\\\x85\u2028\ud7ffé🐶\x1f&<([{%", "\0" * 512)
"""Characters that separate, quote or end something somewhere."""
NUMBERS = (
    *(b"-1", b"0", b"1e999", b"nan", b"NaN", b"inf", b"-Infinity", b"9" * 30, b"9" * 5000, b""),
    *(b"1000000000000", b"2147483648", b"0.5", b"1_0", "٣".encode(), "²".encode(), b"true"),
)
PATHS = (
    *(b"../../../etc/passwd", b"/dev/zero", b".", b"..", b"", b"/", b"x" * 300, b"C:\\\\x.jpg"),
    b"a/../b.jpg",
)
FILE = re.compile(rb'[^"\t\n,]*\.(jpg|png|json|safetensors)')


def spelt_otherwise(content: bytes, draw: Draw) -> bytes:
    return one_of(draw, *SPELT)(content)


def no_utf_8(content: bytes, draw: Draw) -> bytes:
    """A letter in Latin-1, or half of a surrogate pair."""
    place = place_in(draw, content)
    return content[:place] + one_of(draw, b"caf\xe9", b"\xed\xa0\xbd") + content[place:]


def an_odd_character(content: bytes, draw: Draw) -> bytes:
    place = place_in(draw, content)
    return content[:place] + one_of(draw, *ODD).encode() + content[place:]


def other_lines(content: bytes, draw: Draw) -> bytes:
    return b"\n".join(rearranged(content.split(b"\n"), draw))


def other_cells(content: bytes, draw: Draw) -> bytes:
    lines, mark = content.split(b"\n"), b"\t" if b"\t" in content else b","
    place = place_in(draw, lines, 0)
    lines[place] = mark.join(rearranged(lines[place].split(mark), draw))
    return b"\n".join(lines)


def another_number(content: bytes, draw: Draw) -> bytes:
    """A number, wherever one stands, becomes one that nobody expects."""
    return _replaced(content, re.compile(rb"\d+"), NUMBERS, draw)


def another_path(content: bytes, draw: Draw) -> bytes:
    """What looks like a file's name leads elsewhere."""
    return _replaced(content, FILE, PATHS, draw)


def _replaced(
    content: bytes, what: re.Pattern[bytes], values: Sequence[bytes], draw: Draw
) -> bytes:
    found = list(what.finditer(content))
    if not found:
        return content
    one = draw(st.sampled_from(found))
    return content[: one.start()] + one_of(draw, *values) + content[one.end() :]


# -- JSON --------------------------------------------------------------------------------------------------------------
VALUES: tuple[object, ...] = (
    *(None, True, [], {}, [[]], "", " ", "nonsense", "0", -1, 0, 1.5, 10**12, 10**30, 1e308),
    *(float("nan"), float("inf"), [None], {"id": 1}, "\ud800", "DEEP", "LONG"),
)
"""What may stand where something else is expected; the last two become brackets or digits without end."""
NAME = f"{FOREIGN}:THING"
NAMES = (NAME, f"{FOREIGN}.THING", FOREIGN, f"{FOREIGN}:", f"planted--{FOREIGN}.THING")
IMPORTED_AS = (
    *("kind", "model_format", "task", "architecture", "type", "auto_map", "tokenizer_class"),
    "attn_implementation",
)
"""Keys below which folders of models name code."""


def _places(value: Any) -> list[tuple[Any, Any]]:
    """All containers and keys of some JSON."""
    if not isinstance(value, dict | list):
        return []
    found = []
    for key in value if isinstance(value, dict) else range(len(value)):
        found += [(value, key), *_places(value[key])]
    return found


def _json(change: Callable[[Any, Any, Draw], None]) -> Change:
    """A change of one place in a file of JSON, or in one line of a file of JSON lines."""

    def changed(content: bytes, draw: Draw) -> bytes:
        try:
            return dumped(json.loads(content), draw)
        except ValueError:
            lines = content.split(b"\n")
            place = draw(st.integers(0, max(0, len(lines) - 2)))
            lines[place] = dumped(json.loads(lines[place]), draw)
            return b"\n".join(lines)

    def dumped(parsed: Any, draw: Draw) -> bytes:
        places: dict[str, list[tuple[Any, Any]]] = {}
        for box, key in _places(parsed):
            places.setdefault(str(key) if isinstance(box, dict) else "", []).append((box, key))
        if places:  # a name counts once: a list of numbers would hide all others
            change(*one_of(draw, *places[one_of(draw, *sorted(places))]), draw)
        raw = json.dumps(parsed).encode("utf-8", "surrogatepass")
        raw = raw.replace(b'"DEEP"', b"[" * 100_000 + b"]" * 100_000)
        return raw.replace(b'"LONG"', b"9" * 5_000)

    changed.__name__ = change.__name__
    return changed


@_json
def another_value(box: Any, key: Any, draw: Draw) -> None:
    old = box[key]
    new = draw(st.sampled_from((*VALUES, [old], {"value": old}, str(old))))
    box[key] = copy.deepcopy(new)


@_json
def a_value_less_or_twice(box: Any, key: Any, draw: Draw) -> None:
    if draw(st.booleans()):
        del box[key]
    elif isinstance(box, list):
        box.insert(key, copy.deepcopy(box[key]))
    else:
        box[f"{key} "] = box.pop(key)


@_json
def not_a_number(box: Any, key: Any, draw: Draw) -> None:
    """A number becomes NaN or infinite, which is no JSON, and nobody's box, score or count."""
    if isinstance(box[key], int | float) and not isinstance(box[key], bool):
        box[key] = one_of(draw, float("nan"), float("inf"), -float("inf"))


@_json
def a_foreign_name(box: Any, key: Any, draw: Draw) -> None:
    """One or all texts beside one another become the name of code; or one more setting names it."""
    name, how = one_of(draw, *NAMES), one_of(draw, "one", "all", "more")
    box[key] = name if how == "one" else box[key]
    for place in (list(box) if isinstance(box, dict) else range(len(box))) if how == "all" else ():
        box[place] = name if isinstance(box[place], str | None) else box[place]
    if how == "more" and isinstance(box, dict):
        auto = dict.fromkeys(("AutoConfig", "AutoModel", "AutoImageProcessor"), name)
        added = one_of(draw, *IMPORTED_AS)
        box[added] = auto | {"AutoTokenizer": [name, name]} if added == "auto_map" else name


def json_around_it(content: bytes, draw: Draw) -> bytes:
    return one_of(draw, b"[%b]", b'{"value": %b}', b'"%b"').replace(b"%b", content)


def other_spaces(content: bytes, draw: Draw) -> bytes:
    """The same JSON with other spaces and escapes."""
    try:
        return json.dumps(json.loads(content), indent=1).encode()
    except ValueError:
        lines = [json.loads(line) for line in content.splitlines() if line.strip()]
        return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


# -- by file -----------------------------------------------------------------------------------------------------------
BYTES = (flipped_bits, replaced_bytes, cut, another_whole)
AS_TEXT = (spelt_otherwise, no_utf_8, an_odd_character, other_lines, another_number, another_path)
AS_JSON = (
    *(another_value, a_value_less_or_twice, json_around_it, other_spaces, not_a_number),
    a_foreign_name,
)
EFFECTS = {
    **dict.fromkeys((spelt_otherwise, other_spaces), Effect.SAME),
    **dict.fromkeys((no_utf_8, not_a_number), Effect.DAMAGE),
}


@st.composite
def mutations(draw: Draw, path: Path, content: bytes, only: Change | None = None) -> Mutation:
    """One of the ways that fit a file; the simplest is that it is gone."""
    text = path.suffix in TEXT or _is_text(content)
    offered = [BYTES, *[AS_TEXT] * text, *[(other_cells,)] * (path.suffix in {".tsv", ".csv"})]
    if path.suffix in {".json", ".jsonl"}:
        offered += [AS_JSON] * 3
    if path.suffix == ".mdb":  # LMDB follows lengths inside of pages unchecked, and may end
        offered = [(cut, another_whole)]
    change = only or one_of(draw, None, *one_of(draw, *offered))
    if change is None:
        return Mutation("gone", Effect.EDIT, None)
    try:
        changed = change(content, draw)
    except (ValueError, IndexError):  # empty, or not of its ending's kind
        change, changed = another_whole, another_whole(content, draw)
    is_cut = change is cut and not text
    effect = Effect.DAMAGE if is_cut else EFFECTS.get(change, Effect.EDIT)
    return Mutation(change.__name__, effect, changed)


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content[:4000].decode("utf-8")
    except UnicodeDecodeError:
        return False
