"""A mutation tried on a reader, and what came of it; processes that try many, watched by one that outlives them."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from typing import Any

from mutations import FOREIGN, Effect, Mutation, mutated
from readers import LazyFixture, Reader, readers, told

from groundling.core.errors import InputError, flatten_message

PATIENCE = 5
"""Seconds of computing for one reading of files that take milliseconds."""
STUCK = 120
"""Seconds without any word from a process that waits, for a pipe perhaps."""
MEMORY = 6 << 30
"""Bytes that a process may have: a reader that asks for more gets a MemoryError in place of all there is."""

FINE = ("as before", "refused", "reported", "edited")
"""What may come of a mutation; all else is a finding."""


@dataclass(frozen=True)
class MutationOutcome:
    """What came of a mutation."""

    reader: str
    number: int
    what: str
    """One of `FINE`, or the sort of a finding."""
    mutation: str = ""
    message: str = ""

    @property
    def is_finding(self) -> bool:
        return self.what not in FINE

    def __str__(self) -> str:
        return f"{self.what}: {self.reader} #{self.number} ({self.mutation}): {self.message}"


class Hang(BaseException):
    """Nothing in the library may catch it."""


@contextlib.contextmanager
def impatient(seconds: float = PATIENCE) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Bench:
    """One reader's valid files, what is read of them, and mutations of them."""

    def __init__(self, name: str, reader: Reader, place: Path, seed: int) -> None:
        self.name = name
        self.reader = reader
        self.place = place
        self.seed = seed
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            reader.make(place)
            self.files = sorted(
                path
                for path in place.rglob("*")
                if path.is_file() and path.suffix not in reader.kept
            )
            self.before = told(reader.read(place))

    def mutation(self, number: int) -> tuple[Path, Mutation]:
        """What a number stands for, whatever was tried before."""
        rng = Random(f"{self.seed} {self.name} {number}")
        path = rng.choice(self.files)
        return path, mutated(path, path.read_bytes(), rng)

    def tried(self, number: int) -> MutationOutcome:
        path, mutation = self.mutation(number)
        whole = path.read_bytes()
        if mutation.content is None:
            path.unlink()
        else:
            path.write_bytes(mutation.content)
        try:
            what, message = self._come_of(mutation, path)
        finally:
            path.write_bytes(whole)
        about = f"{mutation.name} in {path.relative_to(self.place)}"
        if forgotten():
            what, message = "code ran", f"{FOREIGN} was imported"
        return MutationOutcome(self.name, number, what, about, message)

    def _come_of(self, mutation: Mutation, path: Path) -> tuple[str, str]:
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            what, message, after = guarded(lambda: told(self.reader.read(self.place)), self.place)
            noted = bool(said.getvalue())
        if what:
            return what, message
        if after == self.before:
            return "as before", ""
        if noted:
            return "reported", ""
        if self._may_differ(mutation.kind):
            return "edited", ""
        return f"silent {mutation.kind}", _difference(self.before, after)

    def _may_differ(self, kind: Effect) -> bool:
        """Whether another reading may go unsaid: nobody can know of an edit, nor of damage in a layout of no rules."""
        if self.reader.sealed or kind == Effect.SAME:
            return False
        return kind == Effect.EDIT or not self.reader.checked


def forgotten() -> bool:
    """Whether the module was imported that nobody named, which is as if it had not been from then on."""
    names = [name for name in sys.modules if name.split(".")[0] == FOREIGN.split(".")[0]]
    for name in names:
        del sys.modules[name]
    return bool(names)


def guarded(call: Callable[[], Any], place: Path) -> tuple[str, str, Any]:
    """What a call raised, in the sorts of an outcome (empty: nothing), what that says, and what it returned."""
    try:
        with impatient(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return "", "", call()
    except InputError as error:
        return _line(str(error), place)
    except OSError as error:  # the command line makes a line of it
        return _line(f"{error.filename}: {error.strerror}", place)
    except Hang:
        return "hang", _where(sys.exc_info()[1]), None
    except BaseException as error:
        return (
            "traceback",
            f"{type(error).__name__}: {flatten_message(error)} {_where(error)}",
            None,
        )


def _line(message: str, place: Path) -> tuple[str, str, Any]:
    if "\n" in message:
        return "several lines", message, None
    if str(place) not in message and not message.startswith("note: "):
        return "no file is named", message, None
    return "refused", message, None


def _where(error: BaseException | None) -> str:
    """The innermost line of the library's own, and the innermost of all."""
    frames = traceback.extract_tb(error.__traceback__ if error else None)
    own = [frame for frame in frames if "/groundling/" in frame.filename]
    last = [f"{Path(frame.filename).name}:{frame.lineno}" for frame in (*own[-1:], *frames[-1:])]
    return f"at {' in '.join(dict.fromkeys(last))}"


def _difference(before: object, after: object) -> str:
    """The first part of a reading that is another."""
    while isinstance(before, tuple) and isinstance(after, tuple) and len(before) == len(after):
        pairs = zip(before, after, strict=True)
        unlike = [(one, other) for one, other in pairs if one != other]
        if not unlike:
            break
        before, after = unlike[0]
    return f"{str(before)[:60]!r} became {str(after)[:60]!r}"


# -- many --------------------------------------------------------------------------------------------------------------


def run(
    names: Sequence[str],
    numbers: Iterable[int],
    seed: int,
    folder: Path,
    processes: int = 1,
    say: Callable[[MutationOutcome], None] = lambda outcome: None,
) -> list[MutationOutcome]:
    """Mutations of readers, in processes of their own: what ends one is a finding, too, and the next goes on."""
    shelf = LazyFixture(folder / "shelf")
    offered = readers(shelf)
    todo = [(name, number) for number in numbers for name in names]
    context = multiprocessing.get_context("fork")  # what is imported and made stays so
    outcomes: list[MutationOutcome] = []
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for make in (shelf.tasks, shelf.world, shelf.shop):
            make()
    workers: dict[Connection, Any] = {}
    doing: dict[Connection, tuple[str, int]] = {}
    position = iter(todo)

    def start() -> None:
        ours, theirs = context.Pipe()
        own = folder / f"worker-{len(outcomes)}-{len(workers)}"
        process = context.Process(target=_work, args=(theirs, offered, own, seed), daemon=True)
        process.start()
        theirs.close()
        workers[ours] = process

    def hand_on(worker: Connection) -> None:
        item = next(position, None)
        doing.pop(worker, None)
        if item is None:
            workers.pop(worker).kill()
            worker.close()
            return
        doing[worker] = item
        worker.send(item)

    for _ in range(processes):
        start()
    for worker in list(workers):
        hand_on(worker)
    while workers:
        ready = wait(list(workers), timeout=STUCK)
        for worker in ready or list(workers):
            try:
                if not ready:
                    raise EOFError
                outcome = worker.recv()
            except (EOFError, ConnectionResetError):
                process = workers.pop(worker)
                process.kill()
                process.join()
                name, number = doing.pop(worker)
                how = f"by signal {-process.exitcode}" if ready else "after it did not answer"
                outcome = MutationOutcome(name, number, "the process ended", "", how)
                start()
                worker = next(reversed(workers))
            outcomes.append(outcome)
            say(outcome)
            hand_on(worker)
    return outcomes


def _work(pipe: Connection, offered: dict[str, Reader], folder: Path, seed: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    benches: dict[str, Bench] = {}
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plant(folder)
    while True:
        name, number = pipe.recv()
        if name not in benches:
            benches[name] = Bench(name, offered[name], folder / str(len(benches)), seed)
        pipe.send(benches[name].tried(number))


def plant(folder: Path) -> None:
    """A module that everybody can import, in the working directory: whoever does was told to by a file."""
    path = folder / f"{FOREIGN.replace('.', '/')}.py"
    path.parent.mkdir()
    path.write_text("THING = 1\n")
    os.chdir(folder)
    sys.path.append(str(folder))


def summary(outcomes: Sequence[MutationOutcome]) -> str:
    """One line: how many, and how they ended."""
    counts = Counter(outcome.what for outcome in outcomes)
    told_of = ", ".join(f"{count:,} {what}" for what, count in counts.most_common())
    found = sum(outcome.is_finding for outcome in outcomes)
    names = len({outcome.reader for outcome in outcomes})
    return f"{len(outcomes):,} mutations of {names} readers: {told_of}; {found:,} findings"
