#!/usr/bin/env python3
"""Set up `.venv` and run one of the project's two commands in it; needs Python 3.11 and nothing else.

python3 bootstrap.py quickstart [options of `groundling quickstart`]
python3 bootstrap.py test [options of pytest]
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
STAMP = VENV / "installed"
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")


def environment() -> dict[str, str]:
    """Offline and one thread per process, whatever the caller's shell says."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def install() -> None:
    """Make the virtual environment, unless one for these very files is there; the stamp is written last."""
    files = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    wanted = hashlib.sha256(files + f"{sys.version}{ROOT}".encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    if sys.version_info < (3, 11):
        sys.exit(f"groundling needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    shutil.rmtree(VENV, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
    except subprocess.CalledProcessError:
        sys.exit(
            "no virtual environment could be made; on Debian and Ubuntu: apt install python3-venv"
        )
    print("installing into .venv (about a minute) ...", flush=True)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Not silenced by a flag of ours: pip's own errors say best what is missing.
    subprocess.run([*pip, *constraints, "-e", f"{ROOT}[dev]"], check=True, stderr=subprocess.STDOUT)
    STAMP.write_text(wanted)


def run(*command: str) -> None:
    """Run a command of the environment from the project's root; stop with its status if it fails."""
    status = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, env=environment()
    ).returncode
    if status:
        sys.exit(status)


def main() -> None:
    """Dispatch."""
    command, options = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if command not in {"quickstart", "test"}:
        sys.exit(__doc__)
    install()
    if command == "quickstart":
        run("groundling", "quickstart", *options)
    else:
        run("ruff", "check", ".")
        run("ruff", "format", "--check", ".")
        run("mypy")
        run("lint-imports")
        run("pytest", *(options or ["-n", "2", "--dist", "loadfile"]))


if __name__ == "__main__":
    main()
