"""A run folder describes itself, belongs to one run, and is never overwritten by another."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from groundling.errors import InputError

HASHED = {".json", ".jsonl", ".tsv", ".csv", ".txt", ".xml", ".safetensors"}
"""Files of a folder whose contents count, if they are below 64 MiB; of others the name and size."""
TRACKED = ("groundling", "torch", "transformers", "accelerate", "tokenizers", "numpy")


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that the file is either the old one or the new one, never half of it."""
    with disk_errors(path):
        partial = path.with_name(path.name + ".partial")
        partial.write_text(
            json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n", encoding="utf-8"
        )
        os.replace(partial, path)


class disk_errors:  # (reads as a phrase: `with disk_errors(path)`)
    """Turn a full disk or a forbidden folder into one line; what was there before stays."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> None: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: object
    ) -> None:
        # safetensors reports a full disk through its own error, which carries the system's words.
        text = str(error)
        if isinstance(error, InputError):
            return
        if isinstance(error, OSError) or (error is not None and "os error" in text.lower()):
            reason = (error.strerror if isinstance(error, OSError) else None) or text.splitlines()[
                0
            ]
            raise InputError(
                f"{self.path}: cannot be written ({reason}); earlier checkpoints are intact"
            ) from None


def read_json(path: Path) -> Any:
    """Read JSON; raises InputError naming the file and place of what is wrong."""
    try:
        return json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None


def data_hash(path: str | Path) -> str:
    """SHA-256 of a file; of a folder, over its files' names and sizes (contents of small text files included)."""
    path = Path(path)
    digest = hashlib.sha256()
    if path.is_file():
        with path.open("rb") as stream:
            while block := stream.read(1 << 20):
                digest.update(block)
    elif path.is_dir():
        for file in sorted(p for p in path.rglob("*") if p.is_file()):
            digest.update(f"{file.relative_to(path)}\t{file.stat().st_size}\n".encode())
            if file.suffix in HASHED and file.stat().st_size < 1 << 26:
                digest.update(data_hash(file).encode())
    else:
        return "not a local path"
    return digest.hexdigest()


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for name in TRACKED:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return found


def _commit() -> str:
    try:
        here = Path(__file__).parent
        return subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def open_run(
    out: str | Path, kind: str, config: Mapping[str, Any], inputs: Mapping[str, str | Path]
) -> Path:
    """The folder of a run, new or to be continued; raises InputError if it holds anything else.

    `config` and the hashes of `inputs` (name to path) decide whether it is the same run.
    """
    out = Path(out)
    mine = {
        "kind": kind,
        "config": json.loads(json.dumps(config, default=str)),
        "inputs": {
            name: {"path": str(path), "sha256": data_hash(path)} for name, path in inputs.items()
        },
    }
    there = out / "config.json"
    # A run that has left nothing but its settings stopped at a mistake that may be mended by now.
    begun = there.exists() and any(p.is_file() and p != there for p in out.rglob("*"))
    if begun:
        theirs = read_json(there)
        for part in ("kind", "config", "inputs"):
            if theirs.get(part) != mine[part]:
                difference = _difference(theirs.get(part), mine[part], part)
                raise InputError(f"{out}: holds another run ({difference}); choose another --out")
    elif not there.exists() and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: exists and is no run folder of groundling; choose another --out")
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    if not begun:
        write_json(there, {**mine, "versions": _versions(), "commit": _commit()})
    return out


def _difference(theirs: Any, mine: Any, name: str) -> str:
    if isinstance(theirs, dict) and isinstance(mine, dict):
        for key in sorted({*theirs, *mine}):
            if theirs.get(key) != mine.get(key):
                return _difference(theirs.get(key), mine.get(key), f"{name}.{key}")
    return f"{name}: {theirs} there, {mine} now"


def finished(out: Path) -> dict[str, Any] | None:
    """What a completed run wrote as its result, or None if it has not completed."""
    return read_json(out / "result.json") if (out / "result.json").exists() else None
