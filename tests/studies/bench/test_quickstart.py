"""The quickstart from nothing to its report, what it makes of numbers, and the report's own parts."""

import json
import re
from dataclasses import replace
from pathlib import Path
from statistics import mean

import pytest
import wheels
from PIL import Image
from tiny.homes import Here, digests, never, put
from tiny.results import full

from groundling.core.errors import InputError
from groundling.runs.report import (
    GREY,
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
from groundling.studies.bench.methods.text_and_teacher import CONTRASTIVE, L1, XDBERT
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.report import NO_PROBE
from groundling.studies.worlds.world import World

CONFIG = QuickstartConfig(scale=0.003, processes=1)
SIZES = {
    **{"nouns": 24, "dev_nouns": 6, "test_nouns": 8, "dev_scenes": 10, "dev_sentences": 10},
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
module.STEPS = {{"odd": 500, "category": 250}}
QUICKSTART(QuickstartConfig(scale=0.003, processes=1), {out!r})
"""


def test_from_nothing_to_the_report_and_again(tmp_path, monkeypatch, capsys):
    """The first time from the wheel in an empty folder, then from here."""
    out = tmp_path / "empty" / "q"
    out.parent.mkdir()
    site = str(wheels.site(tmp_path / "wheel"))
    code = FROM_THE_WHEEL.format(site=site, sizes=SIZES, out=str(out))
    shown = wheels.run(Path(site), code, out.parent)
    assert [path.name for path in out.parent.iterdir()] == ["q"]
    result = json.loads((out / "result.json").read_text())
    assert [one["arm"] for one in result["runs"]] == ["method", "text control"]
    for one in result["runs"]:
        assert {"visual", "readout odd", "linear/colour", "odd", "category"} <= set(one["readings"])
        assert one["model"]["path"].startswith("arms/")
    page = (out / "report.html").read_text()
    for name in ("contrastive", "  contrastive: text control", "guessing"):
        assert re.search(rf"^{name}  +[01]\.\d\d", shown, re.MULTILINE), name
        assert name in page
    assert page.count("<svg") == 1 and page.count('src="data:image/png;base64,') == 8
    assert not re.search(r"(src|href)\s*=\s*[\"']?(https?:)?//", page)
    assert "contrastive: no verdict with 1 world, at least 3 are needed" in shown
    assert "a trial run" in shown and NO_PROBE in shown
    with Image.open(out / "report.png") as figure:
        assert figure.size[0] > 500

    # Once more: nothing is rendered or trained, the same table is shown.
    monkeypatch.setattr(module, "STEPS", {"odd": 500, "category": 250})
    monkeypatch.setattr(module, "WORLD", SIZES)
    monkeypatch.setattr("groundling.runs.jobs.ProcessPoolExecutor", Here)
    monkeypatch.setattr("groundling.training.fit.train", never)
    monkeypatch.setattr(World, "write", never)
    before = digests(out)
    assert quickstart(replace(CONFIG, processes=2), out)["runs"] == result["runs"]
    again = capsys.readouterr().out
    assert again[again.index("Accuracy") : again.index("Retrieval of")] in shown
    changed = {name for name, digest in digests(out).items() if before.get(name) != digest}
    assert changed <= {"result.json", "report.html", "report.png"}
    with pytest.raises(InputError, match="seed: 0 there, 1 now"):
        quickstart(replace(CONFIG, seed=1), out)


def test_full_is_what_the_results_are_of_and_short_a_part_of_it(tmp_path: Path) -> None:
    methods = [XDBERT, L1, CONTRASTIVE]
    config = QuickstartConfig(full=True, seed=3, family="pictograms")
    full = module.Quickstart(BenchFolder(tmp_path), methods, config)
    short = module.Quickstart(BenchFolder(tmp_path), methods[2:], replace(config, full=False))
    steps = {
        job.name: training.steps
        for job in full.jobs()
        for training in job.arguments[-1].args
        if isinstance(training, TrainingArguments)
    }
    assert steps == {"encoder": 1500, "teacher": 900, "teacher-redrawn": 250}
    (rendering,) = [job for job in full.jobs() if job.name == "world"]
    (settings,) = [one for one in rendering.arguments[-1].args if isinstance(one, dict)]
    assert settings["family"] == "pictograms" and settings["seed"] == 3
    assert full.training.steps == 500 and full.training.seed == 3
    found = set()
    for arm in full.arms():
        stages = control_stages(arm.method) if arm.arm == TEXT_CONTROL else arm.method.stages
        (settings,) = (full.stage_settings(arm, stage, None) for stage in stages)
        teacher = settings.get("teacher", "").removeprefix(f"{tmp_path}/")
        layout = settings.get("text_layout", "lines")
        weight = full.choose(arm)
        found.add((settings["arm"], layout, teacher, weight))
        assert settings["student"] == str(tmp_path / "encoder" / "model")
    assert found == {
        ("mlm", "lines", "", None),
        ("mlm", "blocks", "", None),
        ("xdbert", "blocks", "teacher/model", None),
        ("l1", "lines", "teacher/model", 0.3),
        ("contrastive", "lines", "teacher/model", 1.0),
        ("contrastive", "lines", "teacher-redrawn/model", 1.0),
    }
    assert all(one in full.arms() for one in short.arms()) and len(short.arms()) == 2
    (seeds, training) = full.readings(full.arms()[0])[1].read.keywords["how"]["odd"]
    assert (seeds, training.steps) == (3, 500)


def test_the_report_shows_every_arm_and_probes_that_did_not_train(tmp_path: Path) -> None:
    put(tmp_path / "world/captions_train.json", '{"images": [], "annotations": []}')
    about = {"versions": {"groundling": "1.2"}, "commit": "0123456789abcdef"}
    put(tmp_path / "config.json", json.dumps(about))
    shown = module.write_report(tmp_path, full())
    assert re.search(r"^contrastive +0\.81 +0\.81 +0\.81 +0\.75 +0\.90$", shown, re.MULTILINE)
    assert re.search(r"^  contrastive: text control .* did not train ", shown, re.MULTILINE)
    assert "text control (+0.51) and a teacher with redrawn attributes (+0.56)" in shown
    assert "45.3" in shown and "trial run" not in shown


# -- the report's own parts --------------------------------------------------------------------------------------------
def test_a_table_is_aligned() -> None:
    rows = [{"arm": "a", "score": "0.5"}, {"arm": "longer name", "score": "100.25"}]
    assert format_table(rows).splitlines() == [
        "arm           score",
        "-----------  ------",
        "a               0.5",
        "longer name  100.25",
    ]


def test_marks_stand_where_their_values_are(tmp_path: Path) -> None:
    shown = [
        ScorePanel("$ one", 0.5, {"low": [0.25], "  low: control": [0.5, 0.9], "none": []}),
        ScorePanel("two", 0.25, {"low": [0.5], "  low: control": [1.0], "none": [0.1]}),
    ]
    figure = score_panels(shown, NO_PROBE)
    for axes, panel in zip(figure.axes, shown, strict=True):
        marks = [line for line in axes.lines if line.get_marker() not in ("None", ".")]
        means = [mean(values) for values in panel.scores.values() if values]
        assert [line.get_xdata()[0] for line in marks] == pytest.approx(means)
        assert len({(line.get_marker(), line.get_color()) for line in marks}) == len(marks)
        assert (marks[1].get_color(), marks[1].get_marker()) == (GREY, "o")
        said = [text.get_text() for text in axes.texts]
        assert said == [f"{value:.2f}" for value in means] + [NO_PROBE] * (3 - len(means))
    (dots,) = [line for line in figure.axes[0].lines if line.get_marker() == "."]
    assert list(dots.get_xdata()) == [0.5, 0.9]  # of one seed the mark is enough
    svg = svg_of(figure, label="a < b")
    assert svg.startswith('<svg role="img" aria-label="a &lt; b"')
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
    assert "<script>" not in page and "&lt;script&gt;" in page and "<svg></svg>" in page
    assert 'src="data:image/png;base64,cG5n"' in page
    assert 'alt="a &#34;red&#34; thing"' in page
    assert "c &amp; d" in page and "<dd>a &#34;share&#34; &lt; 1</dd>" in page
    assert "<dt>arm</dt><dd>&lt;/dd&gt;</dd>" in page
