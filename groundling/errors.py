"""The one kind of error a user can mend."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

MOST_QUOTED = 160
"""Characters of a library's own error that a message quotes."""


class InputError(ValueError):
    """Something given by the user is wrong: one line that names the file, line or field, and what was expected."""

    def __str__(self) -> str:
        """The message; line ends and control characters of the names that it quotes are spaces."""
        return "".join(one if one.isprintable() else " " for one in super().__str__())


def first_line(error: BaseException) -> str:
    """The first line of what an error says, at most 160 characters; its type's name if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:MOST_QUOTED] if lines else type(error).__name__


def in_one_line(error: BaseException) -> str:
    """What an error says on all its lines, as one of at most 160 characters."""
    return " ".join(str(error).split())[:MOST_QUOTED]


def refuse(faults: Sequence[str]) -> None:
    """Do nothing if there are no faults.

    Args:
        faults: messages about faults of one kind.

    Raises:
        InputError: with the first fault, and how many there are if there are more.
    """
    if not faults:
        return
    count = f" ({len(faults):,} such)" if len(faults) > 1 else ""
    raise InputError(faults[0] + count)


def nearest(name: str, offered: Iterable[str]) -> str:
    """`; did you mean glue/rte?` of a name that is not among those offered; empty if none is like it.

    A name whose last part it is (`rte`) counts before one that is spelt alike (`glue/rtee`).
    """
    every = list(offered)
    wanted = name.lower()
    ends = [other for other in every if other.lower().rpartition("/")[2] == wanted]
    spelt = {other.lower(): other for other in every}
    parts = {other.rpartition("/")[2]: spelt[other] for other in spelt}
    alike = [spelt[one] for one in get_close_matches(wanted, spelt, 1)]
    alike += [parts[one] for one in get_close_matches(wanted, parts, 1)]
    found = [*sorted(ends), *alike]
    return f"; did you mean {found[0]}?" if found else ""
