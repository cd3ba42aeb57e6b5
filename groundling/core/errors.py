"""`InputError`, the error for mistakes in the user's input, and helpers for its messages."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from difflib import get_close_matches
from os import PathLike
from typing import Any

MAX_QUOTED = 160
"""Maximum number of characters that a message quotes from a library's own error."""


class InputError(ValueError):
    """Error in the user's input: one line that names the file, line or field, and what was expected."""

    def __str__(self) -> str:
        """The message, with spaces in place of line ends and control characters of quoted names."""
        return "".join(one if one.isprintable() else " " for one in super().__str__())


CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters that steer a terminal; line ends and tabs do not."""


def printable(text: str) -> str:
    """A text in which control characters of names and captions are written in hexadecimal, with a backslash."""
    return CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)


@contextmanager
def convert_read_errors(path: str | PathLike[str], advice: str = "") -> Iterator[None]:
    """Context manager: whatever is raised while the file `path` is read or parsed becomes an InputError that names it.

    The message has the library's own words and ends in `advice`.
    """
    with convert_errors(f"{path}: cannot be read", advice):
        try:
            yield
        except FileNotFoundError as error:
            raise InputError(f"{error.filename or path}: no such file{advice}") from error
        except OSError as error:
            reason = error.strerror or flatten_message(error)
            message = f"{error.filename or path}: cannot be read ({reason}){advice}"
            raise InputError(message) from error


@contextmanager
def convert_errors(
    message: str,
    advice: str = "",
    errors: type[BaseException] | tuple[type[BaseException], ...] = Exception,
) -> Iterator[None]:
    """Context manager: a library's exception becomes an InputError: `message`, its words in brackets, `advice`.

    An InputError stays unchanged. `errors`: the exceptions to convert.
    """
    try:
        yield
    except InputError:
        raise
    except errors as error:
        reason = f"{type(error).__name__}: {flatten_message(error)}"
        raise InputError(f"{message} ({reason}){advice}") from error


@contextmanager
def prefix_errors(where: object) -> Iterator[None]:
    """Context manager: the message of an InputError begins with `where`: a file and line, an example, a setting."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{where}: {error}") from error


@contextmanager
def convert_os_errors() -> Iterator[None]:
    """Context manager: an OSError that no reader has converted becomes an InputError that names its file."""
    try:
        yield
    except BrokenPipeError:  # `groundling adapt --help | head`
        raise
    except OSError as error:
        reason = error.strerror or flatten_message(error)
        message = f"{error.filename or 'a file'}: cannot be read or written ({reason})"
        raise InputError(message) from error


def flatten_message(error: BaseException) -> str:
    """An error's message in one line of at most 160 characters; if it is empty, the name of the error's type."""
    return " ".join(str(error).split())[:MAX_QUOTED] or type(error).__name__


def count_suffix(faults: Sized) -> str:
    """The number of faults, as a suffix after the first: ` (3 such)`; empty for one fault."""
    return f" ({len(faults):,} such)" if len(faults) > 1 else ""


def raise_first(faults: Sequence[str], advice: str = "") -> None:
    """Raise InputError with the first of some faults of one kind, and their number; do nothing without faults."""
    if faults:
        raise InputError(f"{faults[0]}{count_suffix(faults)}{advice}")


def require_nonempty(values: Sized, message: str) -> None:
    """Raise InputError with `message` if `values` is empty."""
    if not len(values):
        raise InputError(message)


EMPTY = "expected text, found none"


def duplicates(places: Iterable[Any]) -> list[Any]:
    """The places that occur more than once."""
    return [place for place, count in Counter(places).items() if count > 1]


def did_you_mean(name: str, offered: Iterable[str]) -> str:
    """The suffix `; did you mean glue/rte?` for a name that is not among `offered`; empty if none is similar.

    A name whose last part matches (`rte`) takes precedence over one with similar spelling (`glue/rtee`).
    """
    names = {other.lower(): other for other in offered}
    ends = {other.rpartition("/")[2]: names[other] for other in sorted(names, reverse=True)}
    similar = get_close_matches(name.lower(), [*names, *ends], 1)
    return f"; did you mean {(ends | names)[similar[0]]}?" if similar else ""


def require_known(name: str, offered: Iterable[str], message: str, advice: str = "") -> None:
    """Raise InputError if `name` is not among `offered`: `message`, all names offered, and the nearest one."""
    names = list(offered)
    if name not in names:
        near = did_you_mean(name, names)
        listing = f"; there are: {', '.join(names) or 'none'}{advice}"
        # Behind a hundred settings the nearest one would not be seen.
        listing = near + listing if len(names) > 50 else listing + near
        raise InputError(f"{message}{listing}")
