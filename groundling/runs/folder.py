"""Run folders: self-describing, each owned by one run, never overwritten by another; and files written as a whole."""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from stat import S_IMODE
from typing import Any, TextIO

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from groundling.core.errors import InputError, convert_errors, convert_read_errors, printable

RESULT = "result.json"
"""File that a run writes last."""
PREPARED = "prepared"
"""Subfolder for intermediate files that a run makes before its first step."""
SETTINGS = "config.json"
"""File that a run writes first."""
LOCK = ".lock"
"""File by which a process holds a folder; it stays there, empty."""
LOG = "log.jsonl"
"""File with the losses of a training."""
REPORT = ("report.html", "report.txt")
"""Files with a run's report."""
NO_RESULTS = {SETTINGS, PREPARED, LOCK, LOG, "tensorboard", ".partial", *REPORT}
"""Files and folders that a run, or runs inside its folder, may leave without having saved anything."""
CACHE = "GROUNDLING_CACHE"
"""Environment variable: cache folder of tokenised texts; empty: no cache."""
PACKAGES = ("groundling", "torch", "transformers", "accelerate", "tokenizers", "numpy")
"""Packages whose versions a run folder records."""

# Files, written as a whole.


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
    """Write JSON atomically; a full disk or a read-only folder is an InputError."""
    write_whole(path, json_text(value, indent=2, ensure_ascii=False, default=str) + "\n")


def write_json_lines(path: Path, rows: Iterable[object]) -> None:
    """Write each value in a line of its own, replacing the file atomically."""
    write_whole(path, "".join(json_text(row) + "\n" for row in rows))


def write_whole(path: Path, content: str | bytes) -> None:
    """Write text or bytes atomically: the file has either its old or its new content."""
    data = content.encode() if isinstance(content, str) else content
    if path.is_file() and path.read_bytes() == data:
        return  # a finished run may write its result again on a read-only disk
    with renamed(path) as partial:
        partial.write_bytes(data)


@contextmanager
def whole_file(path: Path) -> Iterator[TextIO]:
    """A new text file to write line by line, which gets its name when it is complete."""
    with renamed(path) as partial, partial.open("w", encoding="utf-8") as file:
        yield file


@contextmanager
def renamed(path: Path, synced: bool = False) -> Iterator[Path]:
    """Context manager: a temporary file in the folder of `path`, whose name it gets when it is complete.

    It is removed if the disk fills up. `synced`: it is on the disk before it gets its name.
    """
    with disk_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(path.name + ".partial")
        try:
            yield partial
            if synced:
                sync_to_disk(partial)
            os.replace(partial, path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise


def begin_file(path: Path) -> None:
    """Mark a folder as begun by its command, until its last file, `path`, is written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.with_name(path.name + ".partial").touch()


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A temporary folder whose content moves to the folder `path`, where it replaces its like, when it is complete."""
    with disk_errors(path):
        partial = path / ".partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        try:
            yield partial
            mode = S_IMODE(partial.stat().st_mode) & 0o666
            for file in partial.rglob("*"):
                if file.is_file():
                    file.chmod(mode)  # safetensors' can be read by their owner alone
                sync_to_disk(file)
        except Exception:
            shutil.rmtree(partial, ignore_errors=True)  # free the space on a full disk
            raise
        for child in sorted(partial.iterdir()):
            target = path / child.name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(child, target)
        partial.rmdir()
        sync_to_disk(path)


def sync_to_disk(path: Path) -> None:
    """Flush a file or folder to disk, so that a later rename cannot overtake it."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into an InputError of one line."""
    with convert_errors(f"{path}: cannot be written", errors=(OSError, SafetensorError)):
        try:
            yield
        except Exception as error:
            if type(error) is Exception and "(os error " in str(error):  # tokenizers' own kind
                raise OSError(str(error)) from None
            raise


# Other models that a saved model needs: a local one is named by its path from the model's folder.


def keep_path(folder: Path, source: str) -> str:
    """The name of a model that another one needs, for a file in `folder`; a hub id stays as it is."""
    if not os.path.exists(source):
        return source
    # A folder is written inside of `.partial`, from which it is moved up (`whole_folder`).
    parts = [part for part in Path(os.path.abspath(folder)).parts if part != ".partial"]
    return os.path.relpath(source, Path(*parts))


def kept_path(folder: str | Path, name: Any) -> Any:
    """The path for a name that `keep_path` made; anything else unchanged."""
    is_path = isinstance(name, str) and name.startswith("..")
    return os.path.normpath(os.path.join(os.path.abspath(folder), name)) if is_path else name


# Reading JSON.


def read_json(path: Path) -> Any:
    """Content of a JSON file; raises InputError, which names the file and the line."""
    with convert_read_errors(path):
        text = path.read_text(encoding="utf-8-sig")
    return decoded_json(path, text)


def read_object(path: Path) -> dict[str, Any]:
    """The object in a JSON file; raises InputError for anything else."""
    content = read_json(path)
    if not isinstance(content, dict):
        raise InputError(f"{path}: holds a {type(content).__name__}, expected an object")
    return content


def decoded_json(where: object, text: str) -> Any:
    """Decoded JSON; raises InputError, which begins with `where`, for invalid JSON."""
    with convert_errors(f"{where}: not valid JSON"):
        content = json.loads(text)
        if "\\u" in text:  # half of a surrogate pair cannot be tokenised or written
            json.dumps(content, ensure_ascii=False).encode()
        return content


def read_log(path: Path) -> list[dict[str, Any]]:
    """Lines of a run's `log.jsonl`, each with its `step`; empty without a file. Undefined numbers are None.

    A damaged last line is skipped: a kill may have cut it off.
    """
    if not path.exists():
        return []
    lines: list[dict[str, Any]] = []
    with convert_read_errors(path):
        written = path.read_bytes().rstrip(b"\0\n").split(b"\n")
        for number, text in enumerate(written, 1):
            try:
                line = json_safe(json.loads(text))  # another program may have written NaN
                lines.append(line | {"step": int(line["step"])})
            except (ValueError, TypeError, KeyError):
                if number < len(written):
                    raise
    return lines


# What files hold: a run knows small inputs by content and others by size and time; all else is hashed.

SMALL = 1 << 26
"""Bytes of an input's files below which their content identifies them: 64 MiB, read in a tenth of a second."""

STATES = ("content", "sizes_and_times")
"""How an input is identified."""


def input_state(path: str | Path, stored: Mapping[str, object] | None = None) -> dict[str, object]:
    """What a run remembers of an input: its path, and its files that are not hidden (locks).

    Small files by content, so that a copy is the same input; others by sizes and times, as are all of a run whose
    `stored` state has these.
    """
    state: dict[str, object] = {"path": str(path)}
    place = _place_of(path)
    if place is None or (stored == state and place != Path(path)):  # older runs knew no prefixes
        return state
    with convert_read_errors(place):
        files = {file.relative_to(place): file for file in _files(place) or [place]}
        if place.suffix == ".tar" and place.with_suffix(".parquet").exists():  # its captions
            files[Path("parquet")] = place.with_suffix(".parquet")
        seen = [
            (name, file, file.stat())
            for name, file in files.items()
            if file.is_file() and not any(part.startswith(".") for part in name.parts)
        ]
    by_time = (
        len(seen) > 1000  # each takes time to open
        or sum(stat.st_size for *_, stat in seen) >= SMALL
        or place.name == "manifest.json"  # stands for the files of a store of regions
        or "sizes_and_times" in (stored or {})
    )
    lines = [
        f"{name}\t{stat.st_size}\t{stat.st_mtime_ns if by_time else sha256_of(file)}\n"
        for name, file, stat in seen
    ]
    digest = hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]
    kind = STATES[by_time]
    return state | {"files": len(lines), kind: digest}


def _place_of(source: str | Path) -> Path | None:
    """The file or folder of a source, which may have a prefix (vectors:FOLDER, datasets:FOLDER:CONFIG)."""
    parts = str(source).split(":")
    places = [str(source), ":".join(parts[1:]), *parts[1:2]]
    return next((Path(place) for place in places if place and os.path.exists(place)), None)


def file_state(file: Path) -> tuple[int, int, int]:
    """Size, time of change, and time at which the file was put there, which no program can set to another."""
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def walk_folder(folder: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each folder below a folder, itself first, with the names of its files; links are followed, each place once."""
    seen = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        real = os.path.realpath(place)
        if real in seen:
            folders.clear()
            continue
        seen.add(real)
        folders.sort()
        yield Path(place), sorted(names)


def _files(folder: Path) -> list[Path]:
    paths = (place / name for place, names in walk_folder(folder) for name in names)
    return sorted((path for path in paths if path.is_file()), key=lambda one: one.parts)


def data_hash(path: str | Path) -> str:
    """SHA-256 of a file's content, or of names, sizes and contents of a folder's files; of a hub id a constant."""
    path = Path(path)
    if path.is_file():
        return sha256_of(path)
    if not path.is_dir():
        return "not a local path"
    digest = hashlib.sha256()
    for file in _files(path):
        name = f"{file.relative_to(path)}\t{file.stat().st_size}\n"
        digest.update(name.encode(errors="surrogateescape"))
        digest.update(sha256_of(file).encode())
    return digest.hexdigest()


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's content; raises InputError if it cannot be read."""
    with convert_read_errors(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def cache_folder() -> Path | None:
    """The shared cache folder; None if it is disabled or not writable."""
    setting = os.environ.get(CACHE, str(Path.home() / ".cache" / "groundling"))
    if not setting:
        return None
    folder = Path(setting)
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return folder if os.access(folder, os.W_OK) else None


# Whose folder it is.


def lock_folder(folder: Path) -> FileLock:
    """Hold a folder for this process until the returned object is gone; a second call returns the same object.

    Without effect where no file can be written or locked.
    """
    lock = FileLock(folder.resolve() / LOCK, timeout=0, is_singleton=True, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(f"{folder}: another process is writing there now") from None
    except (NotImplementedError, OSError):
        pass
    return lock


@contextmanager
def wait_for_folder(folder: Path, doing: str) -> Iterator[None]:
    """Context manager: only one process at a time writes into a folder, if that can be locked.

    A note says that the process waits for another one, which is `doing` something.
    """
    lock = FileLock(folder / "lock")
    with suppress(OSError, NotImplementedError):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            note = f"note: {folder}: waiting for another process, which is {doing}"
            print(printable(note), file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


def check_run_folder(out: Path) -> None:
    """Raises InputError unless a folder is new, empty, or a run's."""
    if not out.exists() or (out / SETTINGS).exists():
        return
    # An incomplete settings file does not count: its run was killed while writing it.
    unwritten = {LOCK, f"{SETTINGS}.partial"}
    if not out.is_dir() or any(one.name not in unwritten for one in out.iterdir()):
        raise InputError(f"{out}: exists and is not a groundling run folder; choose another `out`")


def open_run(
    out: str | Path,
    kind: str,
    config: Mapping[str, object],
    inputs: Mapping[str, str | Path],
    writes: bool = True,
) -> Path:
    """The folder of a new run, or of one to resume; raises InputError if it holds another run, or something else.

    The result depends on the command `kind`, the settings `config`, and the `inputs`, known as by `input_state`.
    `writes`: whether a folder is made.
    """
    out = Path(out)
    check_run_folder(out)
    settings = out / SETTINGS
    stored = read_object(settings) if settings.exists() else {}
    states = stored.get("inputs") or {}
    current: dict[str, Any] = {
        "kind": kind,
        "config": json.loads(json_text(config, default=str)),  # as they are read from the file
        "inputs": {name: input_state(path, states.get(name)) for name, path in inputs.items()},
    }
    parts = (difference(stored.get(part), value, part) for part, value in current.items())
    differing = next(filter(None, parts), "")
    if not differing:
        return out
    # Without results, it stopped at a mistake that may be corrected by now.
    files = [path.relative_to(out) for path in out.rglob("*") if path.is_file()]
    has_results = any(
        path.suffix != ".partial" and NO_RESULTS.isdisjoint(path.parts) for path in files
    )
    if stored and ("kind" not in stored or has_results):
        raise InputError(f"{out}: holds another run ({differing}); choose another `out`")
    if writes:
        with disk_errors(out):
            out.mkdir(parents=True, exist_ok=True)
            if stored:
                _clear_leftovers(out)
        about = {"versions": _versions(), "commit": commit_of(Path(__file__).parent)}
        write_json(settings, {**current, **about, "commits": _commits(inputs)})
    return out


def _clear_leftovers(out: Path) -> None:
    for path in out.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != LOCK:
            path.unlink()


@cache  # with many short runs the lookup would take longer than a small step
def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def _commits(inputs: Mapping[str, str | Path]) -> dict[str, str]:
    commits = {}
    for name, place in inputs.items():
        if Path(place).suffix == ".py":
            commits[name] = commit_of(Path(place).resolve().parent)
        elif not Path(place).exists():
            from huggingface_hub import try_to_load_from_cache

            with suppress(ValueError):  # no name of a model
                file = try_to_load_from_cache(str(place), "config.json")
                commits[name] = Path(file).parent.name if isinstance(file, str) else ""
    return {name: commit for name, commit in commits.items() if commit}


@cache
def commit_of(folder: Path) -> str:
    """Commit of the git checkout that a folder is in; empty if it is in none."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=True, timeout=5
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.strip()


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
    return read_object(path) if path.exists() else None


def check_run_of(path: Path, result: Mapping[str, Any], task: str) -> None:
    """Raises InputError, which begins with `path`, if a run's `result` is of another task."""
    if result.get("task") != task:
        raise InputError(f"{path}: a run of {result.get('task')}, expected one of {task}")


def check_file(out: str | Path, endings: Sequence[str] = (), is_new: bool = False) -> None:
    """Raises InputError for an `out` that is a folder, has a wrong ending, or exists although it must be new."""
    path = Path(out)
    if path.is_dir() or (endings and path.suffix not in endings):
        expected = f"ending in {', '.join(endings)}" if endings else "and no folder"
        raise InputError(f"out={path}: expected a file name {expected}")
    if is_new and path.exists():
        raise InputError(f"{path}: exists already; choose another `out`, or remove it")
