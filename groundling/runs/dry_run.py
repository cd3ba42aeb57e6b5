"""`--dry-run`: a command reads its inputs, says what it would do next, and stops before it computes anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_ACTIVE: ContextVar[bool] = ContextVar("dry_run", default=False)


class DryRunEnd(BaseException):
    """The command has read its inputs; the message says what it would do next. No library catches it."""


@contextmanager
def dry_run() -> Iterator[None]:
    """Make `end_dry_run` end the command inside."""
    token = _ACTIVE.set(True)
    try:
        yield
    finally:
        _ACTIVE.reset(token)


def end_dry_run(work: str) -> None:
    """End a dry run before `work` begins; nothing in an ordinary run."""
    if _ACTIVE.get():
        raise DryRunEnd(work)
