"""Progress of commands: progress bars, lines on stderr, and notes."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast
from weakref import WeakValueDictionary

from tqdm import tqdm

from groundling.core.errors import printable
from groundling.runs.dry_run import end_dry_run

T = TypeVar("T")
SECONDS = 30.0
"""Seconds between two lines; shorter commands print none."""
LATER = 1.03
"""Factor on `SECONDS` before a command counts as silent; phases and jobs, which know more, print \
first."""
TICK = 0.05
"""Minimum seconds between two checks for silence."""


def is_main_process() -> bool:
    """Whether this is the main process, according to the launcher's environment variables.

    accelerate is not asked, because the first call to it decides whether an accelerator is used.
    """
    return os.environ.get("RANK", "0") == "0"


class Progress:
    """Progress of a phase, on stderr, from the main process only.

    A line shows the finished units and their total, the last measurement, samples per second and
    the remaining time: `training: step 120 of 2,000, loss 2.314, 84.0 samples/s, 0:12:31 left`.
    """

    def __init__(
        self,
        name: str,
        total: int,
        unit: str,
        *,
        done: int = 0,
        reads_inputs: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`total` units of a phase, of which an earlier process has finished `done`; `clock`
        returns seconds.

        A total of 0 means unknown. A dry run ends at the first phase that does more than read inputs
        (`reads_inputs`).
        """
        if not reads_inputs:
            end_dry_run(f"{name}, {total:,} {unit}{'s' * (total != 1)}" if total else name)
        self.name = printable(name)
        self.total = total
        self.unit = unit
        self.done = done
        self.start = done
        self.stream = sys.stderr if stream is None else stream
        self.clock = clock
        self.started = self.last_line = clock()
        self.samples = 0
        self.measurements: dict[str, float] = {}
        self.prints = is_main_process()
        _PHASES[next(_NUMBERS)] = self
        in_terminal = self.prints and self.stream.isatty()
        self.bar = tqdm(
            desc=self.name,
            total=total or None,
            initial=done,
            unit=unit,
            leave=None,  # the bar of a nested phase is removed
            file=self.stream,
            disable=not in_terminal,
        )

    def step(self, units: int = 1, samples: int = 0) -> None:
        """Count some finished units with their samples."""
        self.done += units
        self.samples += samples
        self.bar.update(units)
        now = self.clock()
        if self.prints and self.bar.disable and now - self.last_line >= SECONDS:
            self.last_line = now
            self._write(self.line())

    def set_measurements(self, measurements: Mapping[str, float]) -> None:
        """Set the last measurements; a line shows the first one."""
        self.measurements = dict(measurements)
        self.bar.set_postfix({name: f"{value:.3f}" for name, value in measurements.items()})

    def write(self, line: str) -> None:
        """Print a separate line now."""
        if not self.prints:
            return
        if self.bar.disable:
            self._write(line)
        else:
            self.bar.write(printable(line), file=self.stream)

    def line(self) -> str:
        """The progress in one line."""
        total = f" of {self.total:,}" if self.total else ""
        parts = [f"{self.name}: {self.unit} {self.done:,}{total}"]
        parts += [f"{name} {value:.3f}" for name, value in list(self.measurements.items())[:1]]
        elapsed = max(self.clock() - self.started, 1e-9)
        if self.samples:
            parts.append(f"{self.samples / elapsed:.1f} samples/s")
        each = elapsed / max(self.done - self.start, 1)
        if self.total:
            left = timedelta(seconds=round(each * (self.total - self.done)))
            parts.append(f"{left} left")
        return ", ".join(parts)

    def close(self) -> None:
        """End the phase."""
        self.bar.close()
        for number, phase in list(_PHASES.items()):
            if phase is self:
                del _PHASES[number]

    def _write(self, line: str) -> None:
        _LAST.time = time.monotonic()
        _print(line, self.stream)


_PHASES: WeakValueDictionary[int, Progress] = WeakValueDictionary()
"""Running phases of this process, in starting order."""
_NUMBERS = count()


class _LastReport:
    """Time of this process's last line, by `time.monotonic`."""

    time = 0.0


_LAST = _LastReport()


def print_line(line: str) -> None:
    """Print a line on stderr now, from the main process only."""
    if is_main_process():
        _LAST.time = time.monotonic()
        _print(line, sys.stderr)


def print_notes(notes: Iterable[str]) -> None:
    """Print notes, one line each, from the main process only."""
    for note in notes:
        print_line(f"note: {note}")


def _print(line: str, stream: TextIO) -> None:
    """Write a line and its end at once, so that lines of threads do not mix, and flush."""
    stream.write(f"{printable(line)}\n")
    stream.flush()


class _PrintableStream:
    """A stream that writes control characters as `printable` does; for the rest the one inside."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def write(self, text: str) -> int:
        return self.stream.write(printable(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


def printable_stdout() -> redirect_stdout[TextIO]:
    """Context manager: what is printed on stdout cannot steer the terminal.

    stderr stays as it is, because libraries draw their progress bars there.
    """
    return redirect_stdout(cast(TextIO, _PrintableStream(sys.stdout)))


@contextmanager
def report_silence(name: str, stream: TextIO | None = None) -> Iterator[None]:
    """Print a progress line for the command `name` whenever it has been silent for half a
    minute.

    The line is that of the innermost running phase. Without a phase, it shows how long the command
    has been running.
    """
    if not is_main_process():
        yield
        return
    out = sys.stderr if stream is None else stream
    finished = threading.Event()
    started = _LAST.time = time.monotonic()

    def watch() -> None:
        while not finished.wait(max(_LAST.time + LATER * SECONDS - time.monotonic(), TICK)):
            now = time.monotonic()
            phases = sorted(_PHASES.items())
            is_shown = any(not phase.bar.disable for _, phase in phases)
            if is_shown or now - _LAST.time < SECONDS:
                continue
            _LAST.time = now
            elapsed = timedelta(seconds=round(now - started))
            line = f"{name}: running for {elapsed}"
            if phases:
                phase = phases[-1][1]
                phase.last_line = phase.clock()
                line = phase.line()
            _print(line, out)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()


def track(items: Collection[T], name: str, unit: str, reads_inputs: bool = False) -> Iterator[T]:
    """The items one by one, as a phase with progress lines."""
    progress = Progress(name, len(items), unit, reads_inputs=reads_inputs)
    try:
        for item in items:
            yield item
            progress.step()
    finally:
        progress.close()


# Output path and notes of a command's function. Imports nothing heavy.


class CommandContext:
    """Output path and notes, passed to a command's function after its settings."""

    def __init__(self, out: Path | None = None) -> None:
        self._out = out
        self.notes: list[str] = []
        """Notes for the result."""
        self.counts: dict[str, int] = {}
        """What was read, by name, which a dry run reports."""

    @property
    def out(self) -> Path:
        """The output file or folder."""
        if self._out is None:
            raise AssertionError("a command without output has no output path")
        return self._out

    def note(self, *notes: str) -> None:
        """Print notes now, one line each, and add them to the result."""
        print_notes(notes)
        self.notes += notes

    def with_notes(self, result: Any) -> Any:
        """The result with the notes, if there are any and the result is a dict."""
        return (
            {**result, "notes": self.notes} if self.notes and isinstance(result, dict) else result
        )
