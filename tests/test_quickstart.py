"""The quickstart from nothing to its report, and what it makes of numbers."""

import json
import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from homes import Here, digests, never
from PIL import Image

from groundling.config import QuickstartConfig
from groundling.errors import InputError
from groundling.recipes import quickstart as module
from groundling.recipes.quickstart import (
    ARMS,
    LINEAR,
    TEXTUAL,
    VISUAL,
    quickstart,
    table_rows,
    verdict,
)
from groundling.report import Picture, Section, bars, table, write_report
from groundling.world import World, WorldConfig

CONFIG = QuickstartConfig(scale=0.003, processes=1)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = partial(
        WorldConfig,
        nouns=24,
        dev_nouns=6,
        test_nouns=8,
        dev_scenes=10,
        dev_sentences=10,
        sentences=150,
        scenes=130,  # a batch of the teacher's is 128
    )
    monkeypatch.setattr(module, "WorldConfig", tiny)


@pytest.mark.usefixtures("small")
def test_from_nothing_to_the_report_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, said = tmp_path / "q", []
    result = quickstart(CONFIG, out, said.append)
    assert list(result["arms"]) == list(ARMS) and len(ARMS) == 5
    for found in result["arms"].values():
        assert set(found) == set(VISUAL) | set(LINEAR) | set(TEXTUAL) | {"linear/category"}
    shown = "\n".join(said)
    page = (out / "report.html").read_text()
    for name in (*ARMS, "guessing"):
        assert re.search(rf"^{re.escape(name)}  +[01]\.\d\d", shown, re.MULTILINE), name
        assert name in page
    assert page.count("<svg") == 2
    assert page.count('src="data:image/png;base64,') == 8
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert verdict(result["arms"]) in page
    with Image.open(out / "report.png") as figure:
        assert figure.size[0] > 500
    assert json.loads((out / "result.json").read_text())["arms"] == result["arms"]

    # The control and each arm start from the same encoder; the control alone has no teacher.
    for name, (arm, source, _) in ARMS.items():
        folder = out / "arms" / name.replace(", ", "-").replace(" ", "-") / "adapt"
        config = json.loads((folder / "config.json").read_text())["config"]
        assert config["arm"] == arm
        assert config["student"] == str(out / "encoder" / "model")
        assert config["teacher"] == (str(out / source / "model") if source else "")

    # Once more: nothing is rendered or trained, the same table is shown.
    monkeypatch.setattr("groundling.jobs.ProcessPoolExecutor", Here)
    for place in ("teach", "adapt", "finetune"):
        monkeypatch.setattr(f"groundling.recipes.{place}.train", never)
    monkeypatch.setattr(World, "write_text", never)
    monkeypatch.setattr(World, "write_images", never)
    monkeypatch.setattr("groundling.world.encoder.BertModel", never)
    before, again = digests(out), []
    assert quickstart(replace(CONFIG, processes=2), out, again.append)["arms"] == result["arms"]
    assert again[-1].split("\n\n")[:2] == said[-1].split("\n\n")[:2]
    changed = {name for name, digest in digests(out).items() if before.get(name) != digest}
    assert changed <= {"result.json", "report.html", "report.png"}
    with pytest.raises(InputError, match="seed: 0 there, 1 now"):
        quickstart(replace(CONFIG, seed=1), out, again.append)


# -- numbers by hand -------------------------------------------------------------------------------------------------


def scores(visual: float, textual: float = 0.9) -> dict[str, dict[str, float]]:
    """An arm's result: the same accuracy on every visual, and on every textual question."""
    found = {name: {"dev": 0.0, "test": visual, "chance": 0.5} for name in (*VISUAL, *LINEAR)}
    return found | {name: {"dev": 0.0, "test": textual, "chance": 0.25} for name in TEXTUAL}


def test_rows_show_the_test_nouns_and_guessing() -> None:
    arms = {"MLM only (control)": scores(0.5), "contrastive": scores(0.814)}
    rows = table_rows(arms)
    assert [row["arm"] for row in rows] == ["MLM only (control)", "contrastive", "guessing"]
    assert list(rows[0]) == ["arm", *VISUAL.values(), *LINEAR.values(), *TEXTUAL.values()]
    assert [rows[1][label] for label in VISUAL.values()] == ["0.81", "0.81"]
    assert [rows[2][label] for label in (*VISUAL.values(), *TEXTUAL.values())] == [
        "0.50",
        "0.50",
        "0.25",
        "0.25",
    ]
    assert table_rows(arms, "dev")[1]["odd one out"] == "0.00"


def test_the_verdict_compares_with_the_first_arm() -> None:
    told = verdict({"control": scores(0.52), "l1": scores(0.55, 0.8), "contrastive": scores(0.8)})
    assert told.startswith("Against control, on nouns never described to it. l1: does not see (")
    gains = "attribute true/false +0.03, odd one out +0.03, category -0.10, word order -0.10"
    assert f"l1: does not see ({gains}); contrastive: sees (attribute true/false +0.28," in told
    one_eyed = scores(0.9) | {"world/odd": {"test": 0.59, "chance": 0.5}}
    assert "half: sees in part" in verdict({"control": scores(0.5), "half": one_eyed})


def test_a_table_is_aligned() -> None:
    rows = [{"arm": "a", "score": "0.5"}, {"arm": "longer name", "score": "100.25"}]
    assert table(rows).splitlines() == [
        "arm           score",
        "-----------  ------",
        "a               0.5",
        "longer name  100.25",
    ]


def test_bars_are_as_high_as_their_values(tmp_path: Path) -> None:
    svg = bars(
        ["one", "two"], {"low": [0.25, 0.5], "high": [0.5, 1.0]}, [0.5, 0.5], tmp_path / "f.png"
    )
    assert svg.startswith("<svg")
    assert svg.rstrip().endswith("</svg>")
    with Image.open(tmp_path / "f.png") as figure:
        assert figure.size[0] > 500
    path = r'<path d="M ([\d.]+) ([\d.]+) \nL ([\d.]+) [\d.]+ \nL [\d.]+ ([\d.]+) \n'
    drawn = re.findall(
        path + r'L [\d.]+ [\d.]+ \nz\n" clip-path="[^"]+" style="fill: (#[0-9a-f]{6})"', svg
    )
    assert len(drawn) == 4
    high = [float(bottom) - float(top) for _, bottom, _, top, _ in drawn]
    assert [h / high[3] for h in high] == pytest.approx([0.25, 0.5, 0.5, 1.0], abs=0.01)
    assert drawn[0][4] == drawn[1][4] != drawn[2][4] == drawn[3][4]


def test_what_a_report_is_told_cannot_break_its_page(tmp_path: Path) -> None:
    rows = [{"arm": "<script>alert(1)</script>", "score": "1"}]
    write_report(
        tmp_path / "r.html",
        "a < b",
        [
            Section("p", pictures=[Picture(b"png", 'a "red" thing')]),
            Section("f", figure="<svg></svg>"),
            Section("t & u", rows=rows),
        ],
        ["s > t"],
        notes=["n"],
    )
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<svg></svg>" in page
    assert 'src="data:image/png;base64,cG5n"' in page
    assert 'alt="a &#34;red&#34; thing"' in page
