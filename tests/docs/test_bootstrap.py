"""`bootstrap.py` refuses what it does not know before it installs anything."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "bootstrap.py"


@pytest.mark.parametrize("words", [(), ("tests",)])
def test_an_unknown_command_says_what_there_is(words: tuple[str, ...], tmp_path: Path) -> None:
    copy = tmp_path / SCRIPT.name
    copy.write_bytes(SCRIPT.read_bytes())
    told = subprocess.run([sys.executable, str(copy), *words], capture_output=True, text=True)
    assert told.returncode == 1 and "bootstrap.py quickstart" in told.stderr
    assert [path.name for path in tmp_path.iterdir()] == [copy.name]
