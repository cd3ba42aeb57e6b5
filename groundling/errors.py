"""The one kind of error a user can mend."""

from collections.abc import Sequence


class InputError(ValueError):
    """Something given by the user is wrong: one line that names the file, line or field, and what was expected."""


def refuse(faults: Sequence[str]) -> None:
    """Raises InputError with the first of some faults of one kind, and how many there are; nothing if there is none."""
    if faults:
        raise InputError(faults[0] + f" ({len(faults):,} such)" * (len(faults) > 1))
