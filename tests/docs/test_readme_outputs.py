"""The script that pastes what the README's commands print: how it reads, cuts and compares. Nothing is trained here."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]

README = """# a

## Not run

```bash
groundling info x
```

## Run

```bash
groundling info bert   # first
groundling adapt --lr 1 \\
  --out runs/a
```

```console
$ groundling adapt --lr ...
{
  "steps": 62,
  ...
  "loss": 15.28,
  arm against control on x: ...
```

Text.

```console
$ head -2 answers.csv
old
```

## Next
"""

PRINTED = """{
  "steps": 63,
  "epochs": 1.0,
  "loss": 2.5e-05,
arm   against control on x: no reliable difference (+0.5 points)
}
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "make_readme_outputs", ROOT / "docs" / "make_readme_outputs.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_outputs_are_pasted_below_their_commands(script: ModuleType, tmp_path: Path) -> None:
    blocks = script.blocks_of(README, "Run")
    assert [block.kind for block in blocks] == ["bash", "console", "console"]
    commands = script.commands_of(blocks[0])
    assert commands == ["groundling info bert", "groundling adapt --lr 1 --out runs/a"]
    (tmp_path / "answers.csv").write_text("a,b\n1,2\n3,4\n")
    printed = {commands[0]: "fine\n", commands[1]: PRINTED}
    new = script.with_outputs(README, "Run", printed, tmp_path)
    shown = new[new.index("$ groundling adapt") :]
    assert shown.startswith(
        '$ groundling adapt --lr ...\n{\n  "steps": 63,\n  ...\n  "loss": 2.5e-05,\n'
        "arm   against control on x: ...\n```\n"
    )
    assert "$ head -2 answers.csv\na,b\n1,2\n```\n\n## Next\n" in new
    assert new[: new.index('"steps"')] == README[: README.index('"steps"')]
    assert script.with_outputs(new, "Run", printed, tmp_path) == new


def test_the_readme_can_be_read(script: ModuleType) -> None:
    readme = script.README.read_text()
    for heading in script.SECTIONS:
        blocks = script.blocks_of(readme, heading)
        commands = [
            one for block in blocks if block.kind == "bash" for one in script.commands_of(block)
        ]
        printed = dict.fromkeys(commands, "")
        shown = [block.text.partition("\n")[0] for block in blocks if block.kind == "console"]
        assert commands and shown
        for line in shown:
            if not line.startswith("$ head "):
                assert script.output_of(line.removeprefix("$ "), printed, ROOT) == ""
