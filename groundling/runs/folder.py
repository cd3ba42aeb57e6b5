"""Run folders: self-describing, each owned by one run, never overwritten by another."""

from __future__ import annotations

import fcntl
import json
import math
import os
import platform
import shutil
import subprocess
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from stat import S_IMODE
from typing import Any, TextIO
from weakref import WeakValueDictionary

from groundling.core.errors import InputError, convert_read_errors, first_line
from groundling.runs.hashing import data_hash

RESULT = "result.json"
"""File that a run writes last."""
PREPARED = "prepared"
"""Subfolder for intermediate files that a run makes before its first step."""
SETTINGS = "config.json"
"""File that a run writes first."""
NO_RESULTS = (
    SETTINGS,
    PREPARED,
    "log.jsonl",
    "tensorboard",
    "partial",
    "partial.safetensors",
    ".partial",
)
"""Files and folders that a run, or runs inside its folder, may leave without having saved \
anything."""
MAX_STEPS = 10**12
"""Upper bound on the steps of a run."""
MAX_DIGITS = 300
"""Maximum digits of a whole number in JSON; longer ones overflow floats."""
INTEGER_BOUND = 2**63
"""Upper bound on whole numbers in a log."""
PACKAGES = ("groundling", "torch", "transformers", "accelerate", "tokenizers", "numpy")
"""Packages whose versions a run folder records."""


def json_safe(value: Any) -> Any:
    """A value for JSON: numbers that are not finite become None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: json_safe(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(inner) for inner in value]
    return value


def json_text(value: object, **options: Any) -> str:
    """JSON of a value after `json_safe`; `options` are passed to `json.dumps`."""
    return json.dumps(json_safe(value), allow_nan=False, **options)


def write_json(path: Path, value: object) -> None:
    """Write JSON atomically: the file has either its old or its new content.

    Raises:
        InputError: the disk is full, or the folder is not writable.
    """
    write_whole(path, json_text(value, indent=2, ensure_ascii=False, default=str) + "\n")


def write_whole(path: Path, content: str | bytes) -> None:
    """Write text or bytes atomically: the file has either its old or its new content.

    Raises InputError as `write_json`.
    """
    with disk_errors(path):
        if _holds(path, content.encode() if isinstance(content, str) else content):
            return  # a finished run may write its result again on a read-only disk
        partial = _partial(path)
        try:
            if isinstance(content, str):
                partial.write_text(content, encoding="utf-8")
            else:
                partial.write_bytes(content)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def _holds(path: Path, content: bytes) -> bool:
    """Whether a file has exactly this content."""
    return path.is_file() and path.stat().st_size == len(content) and path.read_bytes() == content


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A new text file to write line by line, which gets its name when it is complete.

    Raises InputError as `write_json`.
    """
    with disk_errors(path):
        partial = _partial(path)
        try:
            with partial.open("w", encoding="utf-8") as file:
                yield file
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def begin_file(path: Path) -> None:
    """RegionLabeler a folder as begun by its command, until the last file is written; an existing file is
    not changed.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        _partial(path).touch()


def _partial(path: Path) -> Path:
    """Temporary path of a file that is being written; raises InputError as `refuse_link`."""
    return refuse_link(path.with_name(path.name + ".partial"))


def refuse_link(path: Path) -> Path:
    """The path; raises InputError for a symbolic link, because writing there would change another file."""
    if path.is_symlink():
        raise InputError(f"{path}: is a symbolic link; remove it, so that no other file is written")
    return path


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder whose content moves to the folder `path` when it is complete.

    Folders and files of the same names are replaced, others stay. Raises InputError as
    `write_json`.
    """
    with disk_errors(path):
        partial = path / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            set_file_modes(partial)
            for file in partial.rglob("*"):
                sync_to_disk(file)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)  # free the space on a full disk
            raise
        for child in sorted(partial.iterdir()):
            target = path / child.name
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            os.replace(child, target)
        partial.rmdir()
        sync_to_disk(path)


def write_new(path: Path, text: str) -> None:
    """Write a text atomically to a file that must not exist, even if several processes try.

    Raises InputError if the file exists by now, or as `write_json`.
    """
    with disk_errors(path):
        partial = refuse_link(path.with_name(f"{path.name}.{os.getpid()}.partial"))
        try:
            partial.write_text(text, encoding="utf-8")
            _name(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _name(partial: Path, path: Path) -> None:
    """Give a complete file its name; raises InputError if the name is taken."""
    try:
        os.link(partial, path)  # unlike a move, a link never overwrites
    except FileExistsError:
        raise InputError(
            f"{path}: another command has written this file in the meantime; choose another --out"
        ) from None
    except OSError:  # a file system without links
        os.replace(partial, path)


def set_file_modes(folder: Path) -> None:
    """Give all files below a folder the default mode of new files; safetensors writes files only
    their owner can read.
    """
    new = folder / "mode"
    new.touch()
    mode = S_IMODE(new.stat().st_mode)
    new.unlink()
    for file in folder.rglob("*"):
        if file.is_file() and S_IMODE(file.stat().st_mode) != mode:
            file.chmod(mode)


def sync_to_disk(path: Path) -> None:
    """Flush a file or folder to disk, so that a later rename cannot overtake it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class disk_errors:  # (reads as a phrase: `with disk_errors(path)`)
    """Turn a full disk or a read-only folder into an InputError of one line."""

    def __init__(self, path: Path, remark: str = "") -> None:
        """`path`: the file or folder to write; `remark`: end of the message."""
        self.path = path
        self.remark = remark

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        if error is None or isinstance(error, InputError):
            return
        # safetensors reports a full disk with its own exception, which contains the system's message.
        if not isinstance(error, OSError) and "os error" not in str(error).lower():
            return
        reason = error.strerror if isinstance(error, OSError) else None
        reason = reason or first_line(error)
        remark = f"; {self.remark}" if self.remark else ""
        raise InputError(f"{self.path}: cannot be written ({reason}){remark}") from None


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError("a number of too many digits")
    return int(digits)


_DECODER = json.JSONDecoder(parse_int=_whole)


def parsed_json(text: str) -> Any:
    """Parsed JSON, as `json.loads`; also raises ValueError for a whole number that no float can
    hold.
    """
    return _DECODER.decode(text)


def read_json(path: Path) -> Any:
    """Content of a JSON file (so Any: callers check what they need of it).

    Raises:
        InputError: names the file and the place of the fault.
    """
    with convert_read_errors(path):
        content = path.read_bytes()
    return decoded_json(path, utf8(path, content.removeprefix(b"\xef\xbb\xbf")))


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises InputError for anything else."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, expected an object")
    return content


def decoded_json(
    where: object, text: str, decode: Callable[[str], Any] = parsed_json, line: bool = False
) -> Any:
    """JSON decoded by `decode`; raises InputError, which begins with `where`, for invalid JSON.

    `line`: the text is the one line that `where` names.
    """
    try:
        return decode(text)
    except InputError:
        raise
    except json.JSONDecodeError as error:
        place = "" if line else f", line {error.lineno}"
        raise InputError(f"{where}{place}: not valid JSON ({error.msg})") from None
    except (RecursionError, ValueError):
        # Python refuses thousands of nested brackets and numbers with thousands of digits.
        raise InputError(f"{where}: nested too deep, or a number of too many digits") from None


def utf8(path: Path, content: bytes, advice: str = "") -> str:
    """Bytes of a file as text; raises InputError, which ends in `advice`, if they are not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}{advice}") from None


def read_log(path: Path) -> list[dict[str, Any]]:
    """Lines of a run's `log.jsonl`, each with its `step`; empty without a file. Undefined numbers
    are None.

    A last line cut off by a kill is skipped. Raises InputError, naming the line, for any other
    malformed line.
    """
    with convert_read_errors(path):
        content = path.read_bytes() if path.exists() else b""
    text = utf8(path, content, "; delete the file")
    rows = text.split("\n")
    lines: list[dict[str, Any]] = []
    for number, one in enumerate(rows, 1):
        line = _log_line(one)
        if line is not None:
            if lines and line["step"] < lines[-1]["step"]:
                raise InputError(
                    f"{path}, line {number}: step {line['step']} after step {lines[-1]['step']}; delete the line"
                )
            lines.append(line)
        elif number < len(rows):
            raise InputError(f"{path}, line {number}: not a line of a log; delete the line")
    return lines


def _log_line(text: str) -> dict[str, Any] | None:
    """A line of a log; None for anything else."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(line, dict) or type(line.get("step")) is not int:
        return None
    numbers = [value for value in line.values() if type(value) in (int, float)]
    undefined = sum(value is None for value in line.values())
    is_line = len(numbers) + undefined == len(line) and 0 <= line["step"] <= MAX_STEPS
    # Whole numbers in JSON may be larger than any float.
    is_line = is_line and all(type(n) is float or abs(n) < INTEGER_BOUND for n in numbers)
    return line if is_line else None


@cache  # with many short runs the lookup would take longer than a small step
def _versions() -> dict[str, str]:
    """Versions of the packages that this process has imported."""
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = "not installed"
    return versions


@cache
def _commit() -> str:
    """Commit of the package's source, if it is a git checkout."""
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        )
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return answer.stdout.strip()


class FolderLock:
    """Exclusive lock of a folder, held until the object is deleted or the process ends.

    On file systems without locks (some network file systems) it has no effect.
    """

    def __init__(self, folder: Path) -> None:
        """Raises InputError if another process holds the folder."""
        self.handle = os.open(folder, os.O_RDONLY)
        self.close = weakref.finalize(self, os.close, self.handle)
        try:
            fcntl.flock(self.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise InputError(
                f"{folder}: another process is writing there now; wait until it ends, or choose another --out"
            ) from None
        except OSError:
            self.close()


_LOCKS: WeakValueDictionary[Path, FolderLock] = WeakValueDictionary()
"""Locks of this process; a folder locked again shares its lock."""


def lock_folder(folder: Path) -> FolderLock:
    """Lock a folder for this process; raises InputError if another process holds it."""
    key = folder.resolve()
    lock = _LOCKS.get(key) or FolderLock(key)
    _LOCKS[key] = lock
    return lock


def _release_locks() -> None:
    """Release locks in a forked child, such as a data-loading worker, which may outlive the parent."""
    for lock in list(_LOCKS.values()):
        lock.close()


os.register_at_fork(after_in_child=_release_locks)


def open_run(
    out: str | Path,
    kind: str,
    config: Mapping[str, object],
    inputs: Mapping[str, str | Path],
    writes: bool = True,
    on_ready: Callable[[Path], object] = Path.resolve,
) -> Path:
    """The folder of a new run, or of one to resume.

    Args:
        out: the folder.
        kind: the command.
        config: every setting on which the result depends.
        inputs: files and folders on which it depends, by name; compared by their hashes.
        writes: whether this process creates the folder; of several processes one does, the others only compare.
        on_ready: called when the folder may be written to, before anything is written.

    Raises:
        InputError: the folder holds another run, or something else, or as `on_ready` does.
    """
    out = Path(out)
    current: dict[str, Any] = {
        "kind": kind,
        "config": json.loads(json_text(config, default=str)),  # as it is read from the file
        "inputs": {
            name: {"path": str(path), "sha256": data_hash(path)} for name, path in inputs.items()
        },
    }
    settings = out / SETTINGS
    if _has_results(out, settings):
        stored = read_json(settings)
        if not isinstance(stored, dict):
            raise InputError(f"{settings}: not a run's settings; choose another --out")
        for part, value in current.items():
            if stored.get(part) != value:
                differing = difference(stored.get(part), value, part)
                raise InputError(f"{out}: holds another run ({differing}); choose another --out")
        on_ready(out)
        return out
    # An incomplete settings file does not count: its run was killed while writing it.
    partial = _partial(settings)
    is_free = not out.exists() or (out.is_dir() and all(one == partial for one in out.iterdir()))
    if not is_free and not settings.exists():
        raise InputError(f"{out}: exists and is not a groundling run folder; choose another --out")
    if not writes:
        return out
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    on_ready(out)
    stored = _read_settings(settings) if settings.exists() else current
    if any(stored.get(part) != current[part] for part in current):
        _clear_leftovers(out)
    write_json(settings, {**current, "versions": _versions(), "commit": _commit()})
    return out


def _has_results(out: Path, settings: Path) -> bool:
    """Whether a run has saved anything from which it can resume; otherwise it stopped at a mistake
    that may be corrected by now.

    An unknown file counts as saved.
    """
    if not settings.exists():
        return False
    files = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    if not all(_is_leftover(path) for path in files):
        return True
    # A config.json of another program does not permit removing the files beside it.
    return len(files) > 1 and "kind" not in _read_settings(settings)


def _read_settings(settings: Path) -> Mapping[str, Any]:
    """Content of a settings file; empty if it is damaged or malformed."""
    try:
        content = read_json(settings)
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}


def _is_leftover(path: Path) -> bool:
    """Whether a file in a run folder cannot be used to resume."""
    return path.suffix == ".partial" or not set(path.parts).isdisjoint(NO_RESULTS)


def _clear_leftovers(out: Path) -> None:
    """Remove files of another run that saved nothing, such as its tokenizer."""
    with disk_errors(out):
        for path in sorted(out.rglob("*"), reverse=True):
            if path.is_file() and _is_leftover(path.relative_to(out)):
                path.unlink()
            elif path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
                path.rmdir()


def clear_prepared(out: Path) -> None:
    """Remove the intermediate files of a finished run."""
    shutil.rmtree(out / PREPARED, ignore_errors=True)


def difference(stored: object, current: object, name: str) -> str:
    """The first difference of two JSON values, by its full name; empty if they are equal."""
    if stored == current:
        return ""
    if isinstance(stored, dict) and isinstance(current, dict):
        for part in sorted({*stored, *current}):
            if stored.get(part) != current.get(part):
                return difference(stored.get(part), current.get(part), f"{name}.{part}")
    return f"{name}: {stored} there, {current} now"


def read_result(out: Path) -> dict[str, Any] | None:
    """The result of a finished run, or None; raises InputError if it is damaged."""
    path = out / RESULT
    if not path.exists():
        return None
    result = read_object(path)
    trained_on = result.get("trained_on", [])
    if not isinstance(trained_on, list):
        raise InputError(f"{path}: 'trained_on' is {trained_on!r}, expected a list of splits")
    return result


def check_run_of(path: Path, result: Mapping[str, Any], task: str) -> None:
    """Raises InputError, which begins with `path`, if a run's `result` is of another task."""
    if result.get("task") != task:
        raise InputError(f"{path}: a run of {result.get('task')}, expected one of {task}")


def check_file(out: str | Path, endings: Sequence[str] = ()) -> None:
    """Raises InputError for an `--out` that is a folder, or has a wrong ending."""
    path = Path(out)
    if endings and path.suffix not in endings:
        raise InputError(f"--out {path}: expected a file name ending in {', '.join(endings)}")
    if path.is_dir():
        raise InputError(f"--out {path}: is a folder; expected a file")
