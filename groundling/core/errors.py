"""The one kind of error a user can mend."""

import re
import struct
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import contextmanager
from difflib import get_close_matches
from os import PathLike
from zipfile import BadZipFile

from safetensors import SafetensorError

MOST_QUOTED = 160
"""Characters of a library's own error that a message quotes."""


class InputError(ValueError):
    """Something given by the user is wrong: one line that names the file, line or field, and what was expected."""

    def __str__(self) -> str:
        """The message; line ends and control characters of the names that it quotes are spaces."""
        return "".join(one if one.isprintable() else " " for one in super().__str__())


FLAG = re.compile(
    r"(`groundling [^`]*`)|(?<![\w/.-])--([a-z][a-z0-9-]*(?:\.[a-z][a-z0-9-]*)?)(?: (?=([^\s]+)))?"
)
"""A command as one types it, which is left alone; or a flag, and the word that follows it."""
VALUE = re.compile(r"-?[\d.]+\W*$|[A-Z]+\W*$|.*[/.:='\"\\]")
"""What a word looks like that is a flag's value, and does not go on with the sentence."""


@contextmanager
def rename_flags_to_keywords(
    settings: Collection[str],
    switches: Collection[str] = (),
    given: Mapping[str, object] | None = None,
) -> Iterator[None]:
    """Inside, an InputError calls a setting by its keyword, as Python has it, where it named a command's flag.

    A name that no file can have, and whatever else the system refuses, is an InputError as well.

    `settings` are the names of all keywords, `switches` those that are True or False: `--batch 8` becomes `batch=8`,
    `--no-object-tags` becomes `tags=False`, and `--train.batch 8` becomes `train['batch']=8`. A flag of no such name stays as
    it is, and so does what a quoted command has. `given` are keywords' values, by which a value is told from the next
    word of the sentence.
    """

    def is_value(name: str, word: str) -> bool:
        value = (given or {}).get(name)
        several = value if isinstance(value, (list, tuple)) else [value]
        return bool(VALUE.match(word)) or word.rstrip(".,;:)") in map(str, several)

    def keyword(found: re.Match[str]) -> str:
        command, flag, word = found.groups()
        name = (flag or "").replace("-", "_")
        negated = name.removeprefix("no_")
        blank = " " if found[0].endswith(" ") else ""
        group, dot, inner = name.partition(".")
        is_inner = bool(dot) and group in settings
        if is_inner:
            name = f"{group}[{inner!r}]"
        if name in switches:
            return f"{name}=True{blank}"
        if negated != name and negated in switches:
            return f"{negated}=False{blank}"
        if not is_inner and (command or name not in settings):
            return found[0]
        if word == "=" or found.string.startswith(":", found.end()):
            return f"{name}{blank}"
        return f"{name}=" if word and is_value(name, word) else f"{name}={blank}"

    try:
        yield
    except InputError as error:
        told = FLAG.sub(keyword, str(error))
        if told == str(error):
            raise
        raise InputError(told) from error.__cause__
    except OSError as error:  # beside the readers, which name their file themselves
        raise InputError(describe_os_error(error)) from error


STUMBLES = (
    BadZipFile,
    EOFError,
    MemoryError,
    OverflowError,
    RecursionError,
    SafetensorError,
    UnicodeError,
    struct.error,
)
"""What readers of libraries raise over damaged or hostile files, beside an OSError."""


@contextmanager
def convert_read_errors(path: str | PathLike[str], advice: str = "") -> Iterator[None]:
    """Inside, what a missing, damaged or hostile file makes a reader stumble over is an InputError that names the file.

    Stands around the lines that open and decode the file `path`; `advice` ends the message.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InputError(f"{error.filename or path}: no such file{advice}") from None
    except OSError as error:
        reason = error.strerror or first_line(error)
        raise InputError(f"{error.filename or path}: cannot be read ({reason}){advice}") from None
    except STUMBLES as error:
        reason = f"{type(error).__name__}: {first_line(error)}"
        raise InputError(f"{path}: cannot be read ({reason}){advice}") from None


@contextmanager
def prefix_errors(where: object) -> Iterator[None]:
    """Inside, the message of an InputError begins with `where`: a file and line, an example, a flag."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


MISSHAPEN = (
    *STUMBLES,
    ArithmeticError,
    AttributeError,
    LookupError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)
"""What readers raise over content of another shape than they expect, or over none."""


@contextmanager
def convert_errors(
    what: str,
    advice: str = "",
    errors: type[BaseException] | tuple[type[BaseException], ...] = MISSHAPEN,
) -> Iterator[None]:
    """Inside, what a reader or a library stumbles over is an InputError: `what`, why in brackets, and `advice`.

    An InputError stays as it is. `errors`: what else may happen inside, where a library fails in ways of its own.
    """
    try:
        yield
    except InputError:
        raise
    except errors as error:
        raise InputError(
            f"{what} ({type(error).__name__}: {flatten_message(error)}){advice}"
        ) from None


def qualify_flags(message: str, flags: Mapping[str, str]) -> str:
    """A message about some flags as their command has them: `--train.steps` for `--steps` if `flags` says so."""

    def typed(found: re.Match[str]) -> str:
        no, name = found.groups("")
        prefix, dot, last = flags.get(name, name).rpartition(".")
        return f"--{prefix}{dot}{no}{last}"

    return re.sub(r"(?<![\w/.-])--(no-)?([a-z][a-z0-9-]*)", typed, message)


def describe_os_error(error: OSError) -> str:
    """What an error of the system says of a file that no reader named."""
    reason = error.strerror or first_line(error)
    return f"{error.filename or 'a file'}: cannot be read or written ({reason})"


def first_line(error: BaseException) -> str:
    """The first line of what an error says, at most 160 characters; its type's name if it says nothing."""
    lines = str(error).strip().splitlines()
    return lines[0][:MOST_QUOTED] if lines else type(error).__name__


def flatten_message(error: BaseException) -> str:
    """What an error says on all its lines, as one of at most 160 characters."""
    return " ".join(str(error).split())[:MOST_QUOTED]


def count_suffix(faults: Sized) -> str:
    """What follows the first of several faults."""
    return f" ({len(faults):,} such)" if len(faults) > 1 else ""


def raise_first(faults: Sequence[str], advice: str = "") -> None:
    """Do nothing if there are no faults.

    Args:
        faults: messages about faults of one kind.
        advice: what ends the message.

    Raises:
        InputError: with the first fault, and how many there are if there are more.
    """
    if faults:
        raise InputError(f"{faults[0]}{count_suffix(faults)}{advice}")


def require_nonempty(found: Sized, told: str) -> None:
    """Raises InputError, as it is `told`, if nothing was found."""
    if not len(found):
        raise InputError(told)


NAMED = 5
"""Places of one fault that a line names."""
EMPTY = "expected text, found none"
TWICE = "expected only once, found again"


def fault_lines(file: object, what: str, places: Sequence[str]) -> list[str]:
    """One line for all places of a file with the same fault: the first few, and how many there are; none for none."""
    if not places:
        return []
    named = ", ".join(list(dict.fromkeys(places))[:NAMED])
    return [f"{file}, {named}: {what}{count_suffix(places)}"]


def duplicates(places: Iterable[str]) -> list[str]:
    """The places that occur more than once."""
    return [place for place, count in Counter(places).items() if count > 1]


def did_you_mean(name: str, offered: Iterable[str]) -> str:
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


def require_known(name: str, offered: Iterable[str], told: str, advice: str = "") -> None:
    """Raises InputError for a name that is not offered: what is `told` of it, then all that are, and the likeliest."""
    every = list(offered)
    if name not in every:
        there = ", ".join(every) or "none"
        raise InputError(f"{told}; there are: {there}{did_you_mean(name, every)}{advice}")
