"""The script that pastes what the README's commands print: how it reads, cuts and compares. Nothing is trained here."""

from __future__ import annotations

import importlib.util
import json
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


def test_what_is_not_printed_is_named(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(script.StaleError, match="'loss: 3' is not printed"):
        script.paste_output("steps: 2\nloss: 3\n", "loss: 4\nsteps: 1\n")
    with pytest.raises(script.StaleError, match="0 commands match"):
        script.output_of("groundling adapt ...", {"groundling train-clip": ""}, tmp_path)
    with pytest.raises(script.StaleError, match="no section"):
        script.blocks_of(README, "Gone")


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        ("loss 10.0", "loss 10.9", False),
        ("loss 10.0", "loss 11.2", True),
        ("accuracy 0.55", "accuracy 0.62", False),
        ("accuracy 0.55", "accuracy 0.7", True),
        ("62 steps", "63 steps", True),
        ("1,500 rows", "1,500 rows", False),
        ("two words", "three words", True),
        ("a\nb", "a", True),
    ],
)
def test_numbers_may_differ_by_rounding(
    script: ModuleType, old: str, new: str, differs: bool
) -> None:
    assert bool(script.differences(old, new)) == differs


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


def test_what_one_brings_is_made_of_rendered_captions(script: ModuleType, tmp_path: Path) -> None:
    world = tmp_path / "world"
    (world / "images").mkdir(parents=True)
    images = [{"id": n, "file_name": f"{n}.jpg"} for n in range(700)]
    captions = ("a red thing .", "there is a red thing ."), ("a blue thing .", "blue things .")
    notes = [{"image_id": n, "caption": text} for n in range(700) for text in captions[n % 2]]
    for image in images:
        (world / "images" / image["file_name"]).write_bytes(b"")
    content = {"images": images, "annotations": notes}
    (world / "captions_train2014.json").write_text(json.dumps(content))
    script.put_files(tmp_path / "here", world)
    rows = (tmp_path / "here" / "my_questions.csv").read_text().splitlines()
    assert rows[0] == "question,photo,answer" and len(rows) == script.PHOTOS + 1
    assert rows[1:3] == ["is something red ?,0.jpg,yes", "is something red ?,1.jpg,no"]
    assert sum(row.endswith("yes") for row in rows) == script.PHOTOS // 2
    assert (tmp_path / "here" / "new_photos" / "pier.jpg").exists()
    rte = (tmp_path / "here" / "glue_data" / "RTE" / "dev.tsv").read_text().splitlines()
    assert len(rte) == script.EXAMPLES["dev"] + 1
