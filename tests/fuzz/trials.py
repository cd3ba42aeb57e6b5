"""Mutations tried on readers by hypothesis, and what came of them."""

from __future__ import annotations

import contextlib
import io
import resource
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import hypothesis
from hypothesis import strategies as st
from mutations import FOREIGN, Change, Effect, Mutation, mutations
from readers import LazyFixture, Reader, readers, told

from groundling.core.errors import InputError, flatten_message

PATIENCE = 5
"""Seconds of computing for one reading of files that take milliseconds."""
MEMORY = 6 << 30
"""Bytes that the process may have: a reader that asks for more gets a MemoryError in place of all there is."""
FINE = ("as before", "refused", "reported", "edited")
"""What may come of a mutation; all else is a finding."""


class Outcomes(NamedTuple):
    """What came of mutations of readers: how many ended how, and a line for each reader with a finding."""

    counts: Counter[str]
    findings: list[str]


class Hang(BaseException):
    """Nothing in the library may catch it."""


@contextlib.contextmanager
def impatient() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, PATIENCE)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class Bench:
    """One reader's valid files, what is read of them, and mutations of them."""

    def __init__(self, name: str, reader: Reader, place: Path) -> None:
        self.name = name
        self.reader = reader
        self.place = place
        with quiet():
            reader.make(place)
            found = [path for path in place.rglob("*") if path.is_file()]
            self.files = sorted(path for path in found if path.suffix not in reader.kept)
            self.before = told(reader.read(place))

    def fuzz(self, count: int, seed: int, only: Change | None = None) -> Outcomes:
        """Tries mutations; hypothesis makes the first that is a finding as small as it can."""
        counts: Counter[str] = Counter()

        @hypothesis.seed(f"{seed} {self.name}")
        @hypothesis.settings(
            max_examples=count,
            database=None,
            deadline=None,
            phases=(hypothesis.Phase.generate, hypothesis.Phase.shrink),
            report_multiple_bugs=False,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        @hypothesis.given(st.data())
        def one(data: st.DataObject) -> None:
            path = data.draw(st.sampled_from(self.files))
            mutation = data.draw(mutations(path, path.read_bytes(), only))
            what, message = self.tried(path, mutation)
            counts[what] += 1
            about = f"{mutation.name} in {path.relative_to(self.place)}"
            assert what in FINE, f"{what}: {self.name} ({about}): {message}"

        try:
            with quiet():
                one()
        except AssertionError as error:
            return Outcomes(counts, [str(error).partition("\n")[0]])
        return Outcomes(counts, [])

    def tried(self, path: Path, mutation: Mutation) -> tuple[str, str]:
        """What came of a mutation, and what was said."""
        whole = path.read_bytes()
        if mutation.content is None:
            path.unlink()
        else:
            path.write_bytes(mutation.content)
        try:
            what, message = self._come_of(mutation.effect)
        finally:
            path.write_bytes(whole)
        return ("code ran", f"{FOREIGN} was imported") if forgotten() else (what, message)

    def _come_of(self, effect: Effect) -> tuple[str, str]:
        with quiet() as said:
            what, message, after = guarded(lambda: told(self.reader.read(self.place)), self.place)
        if what:
            return what, message
        if after == self.before:
            return "as before", ""
        if said.getvalue():
            return "reported", ""
        # Nobody can know of an edit, nor of damage in a layout of no rules.
        if effect == Effect.EDIT or (effect == Effect.DAMAGE and not self.reader.checked):
            return "edited", ""
        return f"silent {effect}", f"{str(self.before)[:80]} became {str(after)[:80]}"


@contextlib.contextmanager
def quiet() -> Iterator[io.StringIO]:
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        yield said


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
        message = f"{type(error).__name__}: {flatten_message(error)} {_where(error)}"
        return "traceback", message, None


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


# -- many --------------------------------------------------------------------------------------------------------------
def run(
    names: Sequence[str],
    count: int,
    seed: int,
    folder: Path,
    say: Callable[[str], None] = lambda finding: None,
) -> Outcomes:
    """So many mutations of each reader."""
    shelf = LazyFixture(folder / "shelf")
    offered = readers(shelf)
    with quiet():
        for make in (shelf.tasks, shelf.world, shelf.shop):
            make()
    counts = Counter[str]()
    findings: list[str] = []
    with little_memory(), planted(folder / "work"):
        for number, name in enumerate(names):
            found = Bench(name, offered[name], folder / f"reader-{number}").fuzz(count, seed)
            counts += found.counts
            findings += found.findings
            for finding in found.findings:
                say(finding)
    return Outcomes(counts, findings)


@contextlib.contextmanager
def little_memory() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@contextlib.contextmanager
def planted(folder: Path) -> Iterator[None]:
    """A module that everybody can import, in the working directory: whoever does was told to by a file."""
    path = folder / f"{FOREIGN.replace('.', '/')}.py"
    path.parent.mkdir(parents=True)
    path.write_text("THING = 1\n")
    with contextlib.chdir(folder):
        sys.path.append(str(folder))
        try:
            yield
        finally:
            sys.path.remove(str(folder))
