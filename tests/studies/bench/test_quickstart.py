"""The quickstart from nothing to its report, and what it makes of numbers."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import wheels
from PIL import Image
from tiny.homes import Here, digests, never, put
from tiny.results import LINEAR, scores, tuned

from groundling.core.errors import InputError
from groundling.runs.report import (
    Report,
    ReportImage,
    ReportSection,
    ScorePanel,
    format_table,
    save_figure,
    score_panels,
    svg_of,
)
from groundling.settings.training import TrainingArguments
from groundling.studies.bench import quickstart as module
from groundling.studies.bench.commands import QUICKSTART as quickstart
from groundling.studies.bench.commands import QuickstartConfig
from groundling.studies.bench.engine import TEXT_CONTROL, control_stages
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.quickstart import (
    NOTHING,
    READ_OUT,
    SHORT_ARMS,
    TEXTUAL,
    VISUAL,
    table_rows,
    verdict,
)
from groundling.studies.worlds.world import World

CONFIG = QuickstartConfig(scale=0.003, processes=1)


SIZES = {
    "nouns": 24,
    "dev_nouns": 6,
    "test_nouns": 8,
    "dev_scenes": 10,
    "dev_sentences": 10,
    "sentences": 150,
    "scenes": 130,  # a batch of the teacher's is 128
}
"""Of a very small world."""

FROM_THE_WHEEL = """
from pathlib import Path

import groundling
from groundling.studies.bench import quickstart as module
from groundling.studies.bench.commands import QUICKSTART, QuickstartConfig

assert Path(groundling.__file__).is_relative_to({site!r}), groundling.__file__
module.WORLD = {sizes!r}
module.SHORT_PROBES = {{name: (how[0], 1, how[2]) for name, how in module.SHORT_PROBES.items()}}
QUICKSTART(QuickstartConfig(scale=0.003, processes=1), {out!r})
"""


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WORLD", SIZES)
    few = {name: (how[0], 1, how[2]) for name, how in module.SHORT_PROBES.items()}
    monkeypatch.setattr(module, "SHORT_PROBES", few)


@pytest.mark.usefixtures("small")
def test_from_nothing_to_the_report_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The first time from the wheel in an empty folder, then from here."""
    out = tmp_path / "empty" / "q"
    out.parent.mkdir()
    site = str(wheels.site(tmp_path / "wheel"))
    code = FROM_THE_WHEEL.format(site=site, sizes=SIZES, out=str(out))
    shown = wheels.run(Path(site), code, out.parent)
    assert [path.name for path in out.parent.iterdir()] == ["q"]
    result = json.loads((out / "result.json").read_text())
    assert tuple(result["arms"]) == SHORT_ARMS
    for found in result["arms"].values():
        asked = set(VISUAL) | set(READ_OUT) | set(LINEAR) | set(TEXTUAL)
        assert set(found) == asked | {"linear/category"}
    page = (out / "report.html").read_text()
    for name in (*SHORT_ARMS, "guessing"):
        first = rf"^{re.escape(name)}  +([01]\.\d\d|{NOTHING})"
        assert re.search(first, shown, re.MULTILINE), name
        assert name in page
    assert page.count("<svg") == 2
    assert page.count('src="data:image/png;base64,') == 8
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert verdict(result["arms"]) in shown
    assert page.count(NOTHING) > 3 and "text_to_image" not in page and "r@" not in page
    with Image.open(out / "report.png") as figure:
        assert figure.size[0] > 500

    # The control and each arm start from the same encoder; the control alone has no teacher.
    for name in SHORT_ARMS:
        folder = out / "arms" / name.replace(", ", "-").replace(" ", "-") / "adapt"
        config = json.loads((folder / "config.json").read_text())["config"]
        is_control = name == SHORT_ARMS[0]
        assert config["arm"] == ("mlm" if is_control else "contrastive")
        assert config["student"] == str(out / "encoder" / "model")
        assert config["teacher"] == ("" if is_control else str(out / "teacher" / "model"))

    # Once more: nothing is rendered or trained, the same table is shown.
    monkeypatch.setattr("groundling.runs.jobs.ProcessPoolExecutor", Here)
    monkeypatch.setattr("groundling.training.fit.train", never)
    monkeypatch.setattr(World, "write", never)
    monkeypatch.setattr("groundling.models.text_encoder.BertModel", never)
    before = digests(out)
    assert quickstart(replace(CONFIG, processes=2), out)["arms"] == result["arms"]
    again = capsys.readouterr().out
    table = again[again.index("Accuracy on nouns") : again.index("Retrieval of")]
    assert table in shown and verdict(result["arms"]) in again
    changed = {name for name, digest in digests(out).items() if before.get(name) != digest}
    assert changed <= {"result.json", "report.html", "report.png"}
    with pytest.raises(InputError, match="seed: 0 there, 1 now"):
        quickstart(replace(CONFIG, seed=1), out)
    with pytest.raises(InputError, match="full: False there, True now"):
        quickstart(replace(CONFIG, full=True), out)


def test_full_is_what_the_results_are_of_and_short_a_part_of_it(tmp_path: Path) -> None:
    full, short = (
        module.Quickstart(BenchFolder(tmp_path), [], QuickstartConfig(full=is_full, seed=3))
        for is_full in (True, False)
    )
    steps = {
        job.name: training.steps
        for job in full.jobs()
        for training in job.arguments
        if isinstance(training, TrainingArguments)
    }
    assert steps == {"encoder": 1500, "teacher": 900, "teacher-redrawn": 250}
    assert full.training.steps == 500 and full.training.seed == 3
    found = {}
    for name, arm in full.rows().items():
        stages = control_stages(arm.method) if arm.arm == TEXT_CONTROL else arm.method.stages
        (settings,) = (full.stage_settings(arm, stage, arm.weight) for stage in stages)
        teacher = settings.get("teacher", "").removeprefix(f"{tmp_path}/")
        found[name] = (settings["arm"], teacher, arm.weight)
        assert settings["student"] == str(tmp_path / "encoder" / "model")
    assert found == {
        "MLM only (control)": ("mlm", "", None),
        "XDBERT as published": ("xdbert", "teacher/model", None),
        "L1": ("l1", "teacher/model", 0.3),
        "contrastive": ("contrastive", "teacher/model", 1.0),
        "contrastive, redrawn attributes": ("contrastive", "teacher-redrawn/model", 1.0),
    }
    assert short.rows().items() < full.rows().items()
    asked = {name: how[1:] for name, how in module.PROBES.items()}
    assert asked == {"odd": (3, 500), "truth": (3, 250), "text": (1, 250)}


def test_a_world_family_passes_through_the_quickstart(tmp_path: Path) -> None:
    config = QuickstartConfig(family="pictograms", seed=3)
    jobs = module.Quickstart(BenchFolder(tmp_path), [], config).jobs()
    (rendering,) = [job for job in jobs if job.name == "world"]
    (settings,) = [one for one in rendering.arguments if isinstance(one, dict)]
    assert settings["family"] == "pictograms" and settings["seed"] == 3
    looks = ("body", "legs", "crest", "fill")
    arm = {name: result for name, result in scores(0.5).items() if name not in LINEAR}
    arm |= {f"linear/{name}": {"dev": 0.0, "test": 0.5, "chance": 0.5} for name in looks}
    row, _ = table_rows({"arm": arm})
    assert [name for name in row if name in looks] == list(looks)
    for name in ("truth", "odd", "category"):
        line = "index\tsentence\tlabel\n0\tzib ka pointed is .\t1\n"
        put(tmp_path / "world/probes" / f"{name}_train.tsv", line)
    terms = module.glossary(tmp_path / "world", looks)
    assert "“zib ka pointed is .”" in terms["attribute true/false"]
    assert "body, legs, crest, fill" in terms


# -- numbers by hand -------------------------------------------------------------------------------------------------


def test_rows_show_the_test_nouns_and_guessing() -> None:
    arms = {"MLM only (control)": scores(0.5), "contrastive": scores(0.814)}
    rows = table_rows(arms)
    assert [row["arm"] for row in rows] == ["MLM only (control)", "contrastive", "guessing"]
    columns = [*VISUAL.values(), *READ_OUT.values(), *LINEAR.values(), *TEXTUAL.values()]
    assert list(rows[0]) == ["arm", *columns]
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
    assert told.startswith(
        "Visual attributes compared with control, on nouns that its text never describes. l1: not transferred ("
    )
    both = "attribute true/false 0.55 against 0.52, odd one out 0.55 against 0.52"
    assert f"l1: not transferred ({both}, category 0.80 against 0.90, word order" in told
    assert "contrastive: transferred (attribute true/false 0.80 against 0.52," in told
    one_eyed = scores(0.9) | {"world/odd": {"test": 0.59, "chance": 0.5}}
    assert "blind: not transferred" in verdict({"control": scores(0.65), "blind": scores(0.62)})
    assert "half: partly transferred" in verdict({"control": scores(0.5), "half": one_eyed})


def test_a_probe_that_learned_nothing_has_no_accuracy() -> None:
    control = scores(0.5) | {"world/odd": tuned(None, None, None)}
    some = scores(0.9) | {"world/odd": tuned(0.7, None, 0.8)}
    all_of_them = scores(0.9) | {"world/odd": tuned(0.7, 0.75, 0.8)}
    arms = {"control": control, "some": some, "all": all_of_them, "as control": control}
    cells = [row["odd one out"] for row in table_rows(arms)]
    assert cells == [NOTHING, "0.75 ± 0.07 (2 of 3)", "0.75 ± 0.05", NOTHING, "0.50"]
    told = verdict(arms)
    assert f"odd one out 0.75 against {NOTHING}" in told
    assert f"odd one out {NOTHING}, nor the control's," in told


def test_a_table_is_aligned() -> None:
    rows = [{"arm": "a", "score": "0.5"}, {"arm": "longer name", "score": "100.25"}]
    assert format_table(rows).splitlines() == [
        "arm           score",
        "-----------  ------",
        "a               0.5",
        "longer name  100.25",
    ]


def test_marks_stand_where_their_values_are() -> None:
    shown = [
        ScorePanel("one", 0.5, {"low": [0.25], "high": [0.5, 0.9], "none": []}),
        ScorePanel("two", 0.25, {"low": [0.5], "high": [1.0], "none": [0.1]}),
    ]
    figure = score_panels(shown, NOTHING)
    for axes, panel in zip(figure.axes, shown, strict=True):
        marks = [line for line in axes.lines if line.get_marker() not in ("None", ".")]
        means = [mean(values) for values in panel.scores.values() if values]
        assert [line.get_xdata()[0] for line in marks] == pytest.approx(means)
        assert len({(line.get_marker(), line.get_color()) for line in marks}) == len(marks)
        said = [text.get_text() for text in axes.texts]
        assert said == [f"{value:.2f}" for value in means] + [NOTHING] * (3 - len(means))
    (dots,) = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert list(dots.get_xdata()) == [0.5, 0.9]  # of one seed the mark is enough
    assert svg_of(figure, label="a < b").startswith('<svg role="img" aria-label="a &lt; b"')


def test_a_figure_is_in_the_pages_ink(tmp_path: Path) -> None:
    figure = score_panels([ScorePanel("$ one", 0.5, {"$x$": [0.25]})])
    svg = svg_of(figure)
    assert "currentColor" in svg and "#000000" not in svg and "#ffffff" not in svg
    save_figure(figure, tmp_path / "f.png")
    with Image.open(tmp_path / "f.png") as image:
        assert image.size[0] > 500


def test_what_a_report_is_told_cannot_break_its_page(tmp_path: Path) -> None:
    rows = [{"arm": "<script>alert(1)</script>", "score": "1"}]
    Report(
        "a < b",
        [
            ReportSection("p", pictures=[ReportImage(b"png", 'a "red" thing')]),
            ReportSection("f", figures=["<svg></svg>"], caption="c & d"),
            ReportSection("t & u", rows=rows),
        ],
        ["s > t"],
        notes=["n"],
        terms={"score": 'a "share" < 1', "arm": "</dd>"},
    ).write(tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert "<svg></svg>" in page
    assert 'src="data:image/png;base64,cG5n"' in page
    assert 'alt="a &#34;red&#34; thing"' in page
    assert "c &amp; d" in page and "<dd>a &#34;share&#34; &lt; 1</dd>" in page
    assert "<dt>arm</dt><dd>&lt;/dd&gt;</dd>" in page
