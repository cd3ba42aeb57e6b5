#!/usr/bin/env python3
"""Set up `.venv` and run one of the project's two commands in it; needs only Python 3.11.

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
EXTRA = {"quickstart": "", "test": "[test]"}
"""The extra of the package that each command needs."""
OPEN_CLIP = ("open_clip_torch>=3,<4", "timm>=1,<2", "torchvision<0.29", "ftfy>=6,<7", "wcwidth<1")
"""Installed beside the environment: this torchvision is built for CUDA's torch, and nothing else may import it."""
BIN = VENV / ("Scripts" if os.name == "nt" else "bin")


def environment() -> dict[str, str]:
    """The caller's environment, but offline and with one thread per process."""
    return {
        **os.environ,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }


def install(extra: str) -> None:
    """Make the virtual environment with an extra of the package, unless it exists for exactly these files.

    If the environment lacks only the extra, the extra is added. The stamp is written last.
    """
    files = b"".join((ROOT / name).read_bytes() for name in ("pyproject.toml", "constraints.txt"))
    digest = hashlib.sha256(files + f"{sys.version}{ROOT}".encode()).hexdigest()
    installed = STAMP.read_text().split() if STAMP.exists() else []
    if installed[:1] == [digest] and (not extra or extra in installed):
        return
    if sys.version_info < (3, 11):
        sys.exit(f"groundling needs Python 3.11 or newer; this is {sys.version.split()[0]}")
    if installed[:1] != [digest]:
        shutil.rmtree(VENV, ignore_errors=True)
        try:
            subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        except subprocess.CalledProcessError:
            sys.exit(
                "cannot create a virtual environment; on Debian and Ubuntu: apt install python3-venv"
            )
    print("installing into .venv; downloading torch alone takes minutes ...", flush=True)
    constraints = ["-c", str(ROOT / "constraints.txt")]
    pip = [str(BIN / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Without a flag that hides errors: pip's own messages best explain what is missing.
    subprocess.run(
        [*pip, *constraints, "-e", f"{ROOT}{extra}"], check=True, stderr=subprocess.STDOUT
    )
    if extra == EXTRA["test"]:
        beside = ["--no-deps", "--target", str(VENV / "open_clip")]
        subprocess.run([*pip, *beside, *OPEN_CLIP], check=True, stderr=subprocess.STDOUT)
    STAMP.write_text(f"{digest} {extra}".strip())


def run(*command: str) -> None:
    """Run a command of the environment from the project's root; stop with its status if it fails."""
    status = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, env=environment()
    ).returncode
    if status:
        sys.exit(status)


def main() -> None:
    """Install what the command needs, and run it."""
    command, options = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if command not in EXTRA:
        sys.exit(__doc__)
    install(EXTRA[command])
    if command == "quickstart":
        run("groundling", "quickstart", *options)
    else:
        run("ruff", "check", ".")
        run("ruff", "format", "--check", ".")
        run("mypy")
        run("lint-imports")
        run("pytest", *(options or ["-n", "2", "--dist", "loadfile", "--max-worker-restart", "0"]))


if __name__ == "__main__":
    main()
