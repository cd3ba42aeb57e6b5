"""The numbers of docs/bench.md are those of docs/bench.csv, which a bench wrote."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from groundling.core.errors import InputError
from groundling.studies.bench.engine import METHOD, TEXT_CONTROL, entries_of
from groundling.studies.bench.judge import base_entries
from groundling.studies.bench.methods import built_in_methods
from groundling.studies.bench.protocol import protocol_of
from groundling.studies.bench.readings import READOUT, VISUAL

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def results() -> ModuleType:
    spec = importlib.util.spec_from_file_location("results", DOCS / "make_bench_results.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_shows_the_published_results(results: ModuleType) -> None:
    text = results.PAGE.read_text(encoding="utf-8")
    assert results.page(results.published(), text) == text, (
        "run `python docs/make_bench_results.py`"
    )
    assert len(results.BLOCK.findall(text)) >= 3


def test_the_readme_claims_what_the_bench_found(results: ModuleType) -> None:
    """One value per headline: the first screen's numbers are the mean of the published worlds."""
    runs = [one for one in base_entries(results.published()["runs"]) if one["seed"] == 0]
    readme = (DOCS.parent / "README.md").read_text(encoding="utf-8")
    claims = " ".join(readme[: readme.index("## Install")].split())

    def number(method: str, arm: str, reading: str, family: str = "objects") -> str:
        of_family = [one for one in runs if one["family"] == family]
        return results._number(entries_of(of_family, method, arm), reading)

    visual = {name: number(name, METHOD, VISUAL) for name in ("l1", "contrastive", "mcse")}
    assert f"{visual['mcse']} after MCSE" in claims
    assert f"{visual['l1']} after L1 and {visual['contrastive']} after contrastive" in claims
    for name in ("caption_to_image", "lexi_contrastive"):
        assert f"read {number(name, METHOD, VISUAL)} of the visual attributes" in claims
    odd = [number("contrastive", arm, READOUT) for arm in (METHOD, TEXT_CONTROL)]
    assert f"for {odd[0]} after contrastive, for {odd[1]} after its control" in claims
    category = [
        number(name, arm, results.CATEGORY, "pictograms")
        for name, arm in (("l1", METHOD), ("contrastive", METHOD), ("l1", TEXT_CONTROL))
    ]
    said = "{} and {} of the nouns' categories, their control's {}".format(*category)
    assert said in claims


def test_blocks_and_results_must_agree(results: ModuleType) -> None:
    text = results.PAGE.read_text(encoding="utf-8")
    bench = results.published()
    with pytest.raises(InputError, match="has a block 'stars', for which the bench has no results"):
        results.page(bench, text + "<!-- results: stars -->\n<!-- end -->\n")
    first = results.BLOCK.search(text)
    with pytest.raises(InputError, match=f"has no block for the results '{first[2]}'"):
        results.page(bench, text.replace(first[0], ""))


def test_names_do_not_break_a_table(results: ModuleType) -> None:
    rows = results._markdown(["method"], [["a|b <!-- end -->"]]).splitlines()
    assert rows[-1] == r"| a\|b &lt;!-- end --> |"


def test_published_results_are_those_of_this_protocol_and_its_methods(results: ModuleType) -> None:
    offered = built_in_methods()
    for name, about in results.published()["methods"].items():
        now = results.definition_of(protocol_of(1.0), offered[name].description())
        assert about["definition"] == now, (
            f"{name} or the protocol changed; run it again, and publish it"
        )


# -- readme outputs ----------------------------------------------------------------------------------

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
