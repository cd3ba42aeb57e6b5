"""The one kind of error a user can mend."""

from collections.abc import Sequence


class InputError(ValueError):
    """Something given by the user is wrong: one line that names the file, line or field, and what was expected."""


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
