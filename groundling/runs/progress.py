"""Progress of commands on stderr: bars in a terminal, occasional lines elsewhere; notes; and the end of a dry run."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from threading import RLock
from typing import Any, TypeVar

from tqdm import tqdm

from groundling.core.errors import printable

# tqdm's own lock is shared by processes, and a process that is ended at once would leave it behind.
tqdm.set_lock(RLock())

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


T = TypeVar("T")
SECONDS = 30.0
"""Seconds between two lines of a phase where there is no terminal; shorter phases print none."""
LINE = "{desc}: {n_fmt} of {total_fmt} {unit}, {elapsed}<{remaining}{postfix}"
"""A line of a phase."""


def is_main_process() -> bool:
    """Whether this is the main process, according to the launcher's environment variables.

    accelerate is not asked, because the first call to it decides whether an accelerator is used.
    """
    return os.environ.get("RANK", "0") == "0"


def has_bars() -> bool:
    """Whether stderr is a terminal with room for bars; some have no width, and a bar would be cut to nothing."""
    return sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns > 0


class Progress(tqdm):
    """Progress of a phase, from the main process only: a bar in a terminal, elsewhere a line now and then."""

    def __init__(
        self, name: str, total: int, unit: str, *, done: int = 0, reads_inputs: bool = False
    ) -> None:
        """`total` units of a phase (0: unknown), of which an earlier process has finished `done`.

        A dry run ends at the first phase that does more than read inputs (`reads_inputs`).
        """
        self.is_bar = has_bars()
        units = f"{unit}es" if unit.endswith("ch") else f"{unit}s"
        if not reads_inputs:
            end_dry_run(f"{name}, {total:,} {unit if total == 1 else units}" if total else name)
        # miniters: otherwise tqdm's monitor adds lines whenever a phase slows down
        lines = {"mininterval": SECONDS, "miniters": 1, "delay": SECONDS, "bar_format": LINE}
        super().__init__(
            desc=printable(name),
            total=total or None,
            initial=done,
            unit=unit if self.is_bar else units,
            leave=None,  # a nested bar is removed
            disable=not is_main_process(),
            **({} if self.is_bar else lines),
        )

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        """Draw the bar, or print a line."""
        if self.is_bar:
            super().display(msg, pos)
        elif msg is None:
            print_line(str(self))

    def close(self) -> None:
        """End the phase, without a last line where there is no bar."""
        if not self.is_bar:
            self.delay = math.inf  # as if no line had been printed yet
        super().close()

    def set_measurements(self, measurements: Mapping[str, float]) -> None:
        """Set the measurements that the next line shows."""
        self.set_postfix(
            {
                name: f"{value:,.0f}" if value >= 1000 else f"{value:.3f}"
                for name, value in measurements.items()
            },
            refresh=False,
        )


def track(items: Collection[T], name: str, unit: str, reads_inputs: bool = False) -> Iterator[T]:
    """The items one by one, as a phase."""
    with Progress(name, len(items), unit, reads_inputs=reads_inputs) as progress:
        for item in items:
            yield item
            progress.update()


def print_line(line: str) -> None:
    """Print a line on stderr now, above the bars, from the main process only."""
    if not is_main_process():
        return
    if has_bars():
        tqdm.write(printable(line), file=sys.stderr)
    else:
        print(printable(line), file=sys.stderr, flush=True)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes, one line each, from the main process only."""
    for note in notes:
        print_line(f"note: {note}")


# Output path and notes of a command's function. Imports nothing heavy.


class CommandContext:
    """Output path and notes, passed to a command's function after its settings."""

    def __init__(self, out: Path | None = None) -> None:
        self.out = out or Path()
        """The output file or folder; the working directory for a command without one."""
        self.notes: list[str] = []
        """Notes for the result."""
        self.counts: dict[str, int] = {}
        """What was read, by name, which a dry run reports."""

    def note(self, *notes: str) -> None:
        """Print notes now, one line each, and add them to the result."""
        print_notes(notes)
        self.notes += notes

    def with_notes(self, result: Any) -> Any:
        """The result with the notes, if there are any and the result is a dict."""
        return (
            {**result, "notes": self.notes} if self.notes and isinstance(result, dict) else result
        )
