"""What a command says while it works: bars and lines of progress, and the notes that its function hands on."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TextIO, TypeVar
from weakref import WeakValueDictionary

from tqdm import tqdm

T = TypeVar("T")
SECONDS = 30.0
"""Between two lines; a command that takes less says nothing."""
LATER = 1.03
"""Times as long as `SECONDS` before a command is called silent: phases and jobs, which know more, speak first."""
TICK = 0.05
"""Least seconds between two looks at whether half a minute is over."""


def is_main_process() -> bool:
    """Whether this is the process that speaks for all, by what the launcher says of it.

    accelerate is not asked: whoever asks it first decides for it whether there is an accelerator.
    """
    return os.environ.get("RANK", "0") == "0"


class Progress:
    """How far a phase is, on stderr and of the main process alone.

    A line says what is done, how much of how much, what was measured last, how many samples a second, and about how
    long it will take: `training: step 120 of 2,000, loss 2.314, 84.0 samples/s, 0:12:31 left`.
    """

    def __init__(
        self,
        what: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total` units of a phase, of which an earlier process has `done` some; `clock` gives seconds.

        A total of 0 is one that nobody knows.
        """
        self.what = what
        self.total = total
        self.unit = unit
        self.done = done
        self.start = done
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self.began = self.said = clock()
        self.samples = 0
        self.measured: dict[str, float] = {}
        self.speaks = is_main_process()
        _UNDER_WAY[next(_NUMBERS)] = self
        in_terminal = self.speaks and self.stream.isatty()
        self.bar = tqdm(
            desc=what,
            total=total or None,
            initial=done,
            unit=unit,
            leave=None,  # of a phase inside another nothing stays
            file=self.stream,
            disable=not in_terminal,
        )

    def step(self, units: int = 1, samples: int = 0) -> None:
        """Some more units are done, which had so many samples."""
        self.done += units
        self.samples += samples
        self.bar.update(units)
        now = self.clock()
        if self.speaks and self.bar.disable and now - self.said >= SECONDS:
            self.said = now
            self._write(self.line())

    def tell(self, measured: Mapping[str, float]) -> None:
        """What was measured last; of a line the first of it."""
        self.measured = dict(measured)
        self.bar.set_postfix({name: f"{value:.3f}" for name, value in measured.items()})

    def say(self, line: str) -> None:
        """A line of its own, now."""
        if not self.speaks:
            return
        if self.bar.disable:
            self._write(line)
        else:
            self.bar.write(line, file=self.stream)

    def line(self) -> str:
        """How far it is."""
        known = f" of {self.total:,}" if self.total else ""
        parts = [f"{self.what}: {self.unit} {self.done:,}{known}"]
        parts += [f"{name} {value:.3f}" for name, value in list(self.measured.items())[:1]]
        elapsed = max(self.clock() - self.began, 1e-9)
        if self.samples:
            parts.append(f"{self.samples / elapsed:.1f} samples/s")
        each = elapsed / max(self.done - self.start, 1)
        if self.total:
            left = timedelta(seconds=round(each * (self.total - self.done)))
            parts.append(f"{left} left")
        return ", ".join(parts)

    def close(self) -> None:
        """The phase is over."""
        self.bar.close()
        for number, phase in list(_UNDER_WAY.items()):
            if phase is self:
                del _UNDER_WAY[number]

    def _write(self, line: str) -> None:
        _LAST.time = time.monotonic()
        _print(line, self.stream)


_UNDER_WAY: WeakValueDictionary[int, Progress] = WeakValueDictionary()
"""Phases of this process that are not over, by the order in which they began."""
_NUMBERS = count()


class _LastReport:
    """When this process said something last, by the clock of `time.monotonic`."""

    time = 0.0


_LAST = _LastReport()


def print_line(line: str) -> None:
    """Say a line on stderr now, of the main process alone."""
    if is_main_process():
        _LAST.time = time.monotonic()
        _print(line, sys.stderr)


def print_notes(notes: Iterable[str]) -> None:
    """Tell the user, a line each and once for all processes, what a reader of the result must know, too."""
    for note in notes:
        print_line(f"note: {note}")


def _print(line: str, stream: TextIO) -> None:
    """Write a line and its end at once, so that no other thread's stands between, and now: a log would keep it back."""
    stream.write(f"{line}\n")
    stream.flush()


@contextmanager
def report_silence(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Let a command, called `what`, say a line where it has been silent for half a minute, whatever it does.

    The line is that of the innermost phase under way, such as one of many short ones, or of one with long steps. Where
    there is none, it says how long the command has been at work.
    """
    if not is_main_process():
        yield
        return
    out = sys.stderr if stream is None else stream
    over = threading.Event()
    began = _LAST.time = time.monotonic()

    def watch() -> None:
        while not over.wait(max(_LAST.time + LATER * SECONDS - time.monotonic(), TICK)):
            now = time.monotonic()
            phases = sorted(_UNDER_WAY.items())
            is_shown = any(not phase.bar.disable for _, phase in phases)
            if is_shown or now - _LAST.time < SECONDS:
                continue
            _LAST.time = now
            elapsed = timedelta(seconds=round(now - began))
            line = f"{what}: at work, {elapsed} so far"
            if phases:
                phase = phases[-1][1]
                phase.said = phase.clock()
                line = phase.line()
            _print(line, out)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield
    finally:
        over.set()
        watching.join()


def track(items: Collection[T], what: str, unit: str) -> Iterator[T]:
    """The items, one by one, of a phase that says how far it is."""
    progress = Progress(what, len(items), unit)
    try:
        for item in items:
            yield item
            progress.step()
    finally:
        progress.close()


# What a command's function is handed behind its settings. Imports nothing heavy.


class CommandContext:
    """What a command's function is handed behind its settings."""

    def __init__(self, out: Path | None = None) -> None:
        self._out = out
        self.notes: list[str] = []
        """What the result tells beside its numbers."""

    @property
    def out(self) -> Path:
        """The file or folder that the user wants written."""
        if self._out is None:
            raise AssertionError("a command that leaves nothing has no place for it")
        return self._out

    def note(self, *notes: str) -> None:
        """Tell the user now, a line each and once for all processes, and the reader of the result."""
        print_notes(notes)
        self.notes += notes

    def with_notes(self, result: Any) -> Any:
        """A result with the notes in it, if there are any, and if it is one that can hold them."""
        return (
            {**result, "notes": self.notes} if self.notes and isinstance(result, dict) else result
        )
