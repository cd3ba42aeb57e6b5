"""Curves of the bench: numbers and sentences by hand, and two axes run on the smallest world."""

from __future__ import annotations

import inspect
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from tiny.bench import CONFIG, Ran
from tiny.homes import digests, never, stay_here

from groundling.core.errors import InputError
from groundling.models.text_encoder import new_encoder
from groundling.runs.folder import read_json
from groundling.studies.bench.commands import BENCH, BenchConfig
from groundling.studies.bench.curves import (
    MethodCurve,
    curve_rows,
    entries_at,
    find_axes,
    is_changed,
    judge_curves,
)
from groundling.studies.bench.engine import METHOD, TEXT_CONTROL
from groundling.studies.bench.handed import shuffle_images, thin_captions, thin_images
from groundling.studies.bench.judge import judge_methods
from groundling.studies.bench.methods import built_in_methods
from groundling.studies.bench.protocol import (
    AXES,
    BenchCondition,
    BenchFolder,
    BenchWorld,
    CurveAxis,
)
from groundling.studies.bench.rendered import RenderedBench

STEPS, IMAGES, CAPTIONS = find_axes(["steps", "images", "captions"])


def at(axis: CurveAxis, value: int) -> BenchCondition:
    return next(one for one in axis.conditions() if one.value == value)


LOW, MIDDLE, HIGH = (0.00, 0.04, -0.02), (0.10, 0.12, 0.14), (0.20, 0.22, 0.24)
"""Gains in three worlds: one of chance, and two above it."""


def entry(method: str, arm: str, world: int, value: int | None, visual: float, **more) -> dict:
    """An arm of a method at a number of steps; None: the bench's own."""
    about = {"method": method, "arm": arm, "family": "objects", "world": world, "seed": 0}
    about |= {"texts": "abc", "weight": 1.0, "remarks": []}
    about["readings"] = {"visual": {"test": visual, "chance": 0.26}}
    if value is not None:
        about["condition"] = {"axis": "steps", "value": value}
    return about | more


def curve_of(gains: dict[int | None, tuple[float, ...]]) -> list[dict]:
    """Entries of a method with these gains over a control at .30, by value and world."""
    return [
        one
        for value, by_world in gains.items()
        for world, gain in enumerate(by_world)
        for one in (
            entry("a", METHOD, world, value, 0.30 + gain),
            entry("", TEXT_CONTROL, world, value, 0.30),
        )
    ]


ABOUT = {"a": {"data": "captions with images", "source": {}, "stages": [], "grid": []}}


def judged(gains: dict[int | None, tuple[float, ...]]) -> MethodCurve:
    (curve,) = judge_curves(curve_of(gains), ABOUT)
    return curve


def test_gains_are_those_of_each_value_and_the_own_one_is_the_benchs() -> None:
    curve = judged({100: LOW, None: MIDDLE, 1000: HIGH, 3000: HIGH})
    assert (curve.axis, curve.family, curve.method) == ("steps", "objects", "a")
    assert curve.values == (100, 300, 1000, 3000)
    means = [gain.mean for gain in curve.gains]
    assert means == pytest.approx([0.02 / 3, 0.12, 0.22, 0.22])
    # .10, .12, .14 have the standard deviation .02; over root 3 it is .011547.
    assert curve.gains[1].error == pytest.approx(0.011547, abs=1e-6)
    assert curve.gains[1].by_world == pytest.approx(MIDDLE)


@pytest.mark.parametrize(
    ("gains", "match"),
    [
        (
            {100: LOW, None: MIDDLE, 1000: HIGH},
            r"beyond its text control from 300 steps on \(at 300",
        ),
        ({100: HIGH, None: HIGH}, r"from 100 steps on, the fewest that were run \(at 100: \+0\.22"),
        ({None: LOW, 1000: HIGH}, r"from 1,000 steps on \(at 1,000: \+0\.22, 95 % interval"),
        ({100: HIGH, None: LOW}, r"at 100 steps, but not at every larger number \(at 300: \+0\.01"),
        (
            {100: LOW, None: LOW},
            r"no visual attributes beyond its text control at any of 100 to 300",
        ),
        (
            {100: HIGH, None: HIGH[:2], 1000: HIGH[:1]},
            r"no statement on steps is possible, because the values rest on different worlds: 300 lacks world 2, 1,000 "
            r"lacks worlds 1 and 2; gain beyond its text control at 1,000: \+0\.20$",
        ),
        (
            {100: LOW, None: (*HIGH, 0.3), 1000: (*HIGH, 0.3)},
            r"on different worlds: 100 lacks world 3; gain",
        ),
        ({100: HIGH[:2], None: HIGH[:2]}, r"no statement on steps .* with 2 worlds, it takes 3"),
        ({100: HIGH[:1], None: HIGH[:1]}, r"with 1 world, it takes 3; gain .* at 300: \+0\.20$"),
    ],
)
def test_a_sentence_says_from_where_on_a_method_works(gains: dict, match: str) -> None:
    sentence = judged(gains).sentence
    assert re.search(match, sentence.rstrip(".")), sentence
    assert sentence.startswith("a: ") and sentence.endswith(".") and "\n" not in sentence


def test_tables_have_gains_with_stars_and_each_control_once() -> None:
    entries = curve_of({100: LOW, None: MIDDLE})
    entries.append(entry("", "teacher's text tower", 0, None, 0.6))
    (curve,) = judge_curves(entries, ABOUT)
    rows = curve_rows(STEPS, [curve], entries)
    assert rows == [
        {"steps": "gain of a", "100": "+0.01 ± 0.03", "300 (bench)": "+0.12 ± 0.02*"},
        {"steps": "  a: worlds", "100": "3", "300 (bench)": "3"},
        {"steps": "text control of a", "100": "0.30 ± 0.00", "300 (bench)": "0.30 ± 0.00"},
    ]
    # A teacher that the axis changes has rows of its own.
    more = entry("", "teacher's text tower", 0, 100, 0.4)
    (row,) = curve_rows(STEPS, [curve], [*entries, more])[3:]
    assert row == {"steps": "teacher's text tower", "100": "0.40", "300 (bench)": "0.60"}


def test_a_table_says_on_how_many_worlds_each_value_rests() -> None:
    entries = curve_of({100: HIGH, None: HIGH[:1]})
    curves = judge_curves(entries, ABOUT)
    worlds = curve_rows(STEPS, curves, entries)[1]
    assert worlds == {"steps": "  a: worlds", "100": "3", "300 (bench)": "1"}


def test_a_curve_has_the_worlds_and_the_seed_of_its_conditions_only() -> None:
    entries = curve_of({100: HIGH, None: (*HIGH, 0.5)})
    entries.append(entry("a", METHOD, 0, None, 0.9, seed=1))
    at_base = entries_at(entries, STEPS, 300)
    assert {one["world"] for one in at_base} == {0, 1, 2} and {one["seed"] for one in at_base} == {
        0
    }
    assert judge_curves(curve_of({None: HIGH}), ABOUT) == []


def test_the_verdict_ignores_conditions() -> None:
    base = curve_of({None: MIDDLE})
    (verdict,) = judge_methods(base, ABOUT)
    (other,) = judge_methods([*base, *curve_of({100: LOW, 3000: LOW})], ABOUT)
    assert other == verdict


# -- the axes --------------------------------------------------------------------------------------------------------


def test_every_axis_has_the_benchs_own_value_among_ascending_ones() -> None:
    for axis in AXES:
        values = list(axis.values)
        assert axis.base in values and values == sorted(values)
        assert len(axis.conditions()) == len(values) - 1 > 1
        world = BenchWorld("objects", 0, axis.conditions()[0])
        assert str(world) == f"objects 0, {axis.name} {values[values[0] == axis.base]}"
    assert f"grows with {', '.join(axis.name for axis in AXES)}" in inspect.getsource(
        BenchConfig
    ).replace("\\\n", "")
    with pytest.raises(InputError, match=r"curve=seps: expected some of images, captions, steps"):
        find_axes(["seps"])


def test_a_condition_has_files_of_its_own_only_where_it_differs() -> None:
    folder = BenchFolder(Path("out"))
    base = folder.world(BenchWorld("objects", 0))
    assert folder.world(BenchWorld("objects", 0, at(STEPS, 100))) == base
    images = folder.world(BenchWorld("objects", 0, at(IMAGES, 4)))
    for name in ("corpus", "images", "encoder", "shuffled captions"):
        assert images.places[name] == base.places[name]
    assert images.private == base.private
    own = Path("out/shared/objects-0-images-4")
    assert images.places["teacher"] == own / "making/teacher/model"
    assert images.places["captions"] == own / "handed/captions.json"
    assert images.features == own / "features"
    captions = folder.world(BenchWorld("objects", 0, at(CAPTIONS, 500)))
    assert captions.places["teacher"] == base.places["teacher"]
    assert captions.features == base.features


def test_an_arm_runs_again_only_where_it_reads_what_differs() -> None:
    methods = built_in_methods()
    reads_corpus, reads_captions = methods["contrastive"], methods["lexi_contrastive"]
    changed = {
        (axis.name, method.name, arm)
        for axis in AXES
        for method in (reads_corpus, reads_captions)
        for arm in (METHOD, TEXT_CONTROL)
        if is_changed(axis.conditions()[0], method, arm)
    }
    everything = {
        (axis, method.name, arm)
        for axis in ("steps", "layers", "width")
        for method in (reads_corpus, reads_captions)
        for arm in (METHOD, TEXT_CONTROL)
    }
    assert changed == everything | {
        ("images", "contrastive", METHOD),
        ("images", "lexi_contrastive", METHOD),
        ("images", "lexi_contrastive", TEXT_CONTROL),
        ("captions", "lexi_contrastive", METHOD),
        ("captions", "lexi_contrastive", TEXT_CONTROL),
        ("teacher", "contrastive", METHOD),
        ("teacher", "lexi_contrastive", METHOD),
    }
    config = BenchConfig(curve=("captions",))
    match = "^curve=captions: contrastive reads nothing that changes with captions; add another"
    with pytest.raises(InputError, match=match):
        RenderedBench(BenchFolder(Path("out")), [reads_corpus], config)


def test_a_method_with_steps_of_its_own_has_no_curve_over_steps() -> None:
    methods = built_in_methods()
    longer = replace(methods["contrastive"], name="longer", steps=900)
    for arm in (METHOD, TEXT_CONTROL):
        assert not is_changed(at(STEPS, 100), longer, arm)
    assert is_changed(at(IMAGES, 4), longer, METHOD)
    folder = BenchFolder(Path("out"))
    reason = "longer asks for 900 steps of its own, so it has no curve over steps"
    with pytest.raises(InputError, match=f"^curve=steps: {reason}; add another method$"):
        RenderedBench(folder, [longer], BenchConfig(curve=("steps",)))
    own = RenderedBench(folder, [longer, methods["l1"]], BenchConfig(curve=("steps", "images")))
    at_100 = [arm.method for arm in own.arms() if arm.world.condition == at(STEPS, 100)]
    assert {method.name for method in at_100} == {"l1"}
    assert reason in own.without_curve()


def test_thinned_images_show_every_noun_equally_often() -> None:
    # 600 images, in turn of one noun of ten, of two, and of none.
    shown = {n: [[n % 10], [n % 10, (n + 3) % 10], []][n // 10 % 3] for n in range(600)}
    nouns = {n: [f"n{noun}" for noun in some] for n, some in shown.items() if some}
    content = {
        "images": [{"id": n, "file_name": f"{n}.png"} for n in shown],
        "annotations": [{"id": n, "image_id": n // 2, "caption": "c"} for n in range(1200)],
    }
    thinned = thin_images(content, nouns, 0.5)
    ids = [image["id"] for image in thinned["images"]]
    counts = [sum(noun in shown[n] for n in ids) for noun in range(10)]
    assert counts == [30] * 10  # of 60
    assert sum(not shown[n] for n in ids) == 100  # of 200
    assert [note["image_id"] for note in thinned["annotations"]] == [n for n in ids for _ in "12"]
    assert len(thin_images(content, nouns, 0.01)["images"]) == 128  # a batch of the teacher

    some, fewer = (thin_captions(content, 3, share) for share in (0.5, 0.25))
    kept = [note["id"] for note in some["annotations"]]
    assert len(kept) == 600 and kept == sorted(kept)
    assert {note["id"] for note in fewer["annotations"]} < set(kept)
    described = {note["image_id"] for note in some["annotations"]}
    assert [image["id"] for image in some["images"]] == sorted(described)
    assert len(thin_captions(content, 3, 0.001)["annotations"]) == 64  # a batch
    assert shuffle_images(some, 0)["annotations"] == some["annotations"]


def test_an_encoder_has_the_width_and_the_layers_that_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "corpus.txt").write_text("a b\n")
    new_encoder(tmp_path / "corpus.txt", tmp_path / "new", 0, layers=3, width=64)
    config = read_json(tmp_path / "new" / "config.json")
    sizes = ("num_hidden_layers", "hidden_size", "intermediate_size")
    assert [config[name] for name in sizes] == [3, 64, 128]


# -- a run -----------------------------------------------------------------------------------------------------------


def test_curves_share_the_runs_of_a_finished_bench(
    ran: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two values of two axes, for a method that reads the corpus and one that reads captions with images."""
    out = tmp_path / "out"
    shutil.copytree(ran.out, out)
    monkeypatch.chdir(ran.work)
    stay_here(monkeypatch)
    kept = {"images": (16, 104), "steps": (300, 1000)}
    few = tuple(
        replace(axis, values={value: axis.values[value] for value in kept[axis.name]})
        for axis in (IMAGES, STEPS)
    )
    monkeypatch.setattr("groundling.studies.bench.curves.AXES", few)
    config = replace(CONFIG, curve=("images", "steps"), adapt_seeds=2, probe_seeds=3)
    config = replace(config, probes=BenchConfig().probes)  # a curve has none of these three
    before = digests(out / "jobs")
    bench = read_json(out / "bench.json")
    BENCH(replace(config, plan=True), out)
    plan = capsys.readouterr().out
    assert "16, 104 images of each noun (the bench has 104)" in plan
    missing = re.findall(r"^missing  (objects .*)$", plan, re.MULTILINE)
    assert len(missing) == 19  # what images have of their own, and each arm's training and reading
    assert all("," in name or "teacher's images" in name for name in missing)

    BENCH(replace(config, report=True), out)
    assert "not done yet: 19 jobs of this bench" in capsys.readouterr().out
    assert read_json(out / "bench.json")["curves"] == []

    BENCH(config, out)
    shown = capsys.readouterr().out
    after = digests(out / "jobs")
    assert {name: after[name] for name in before} == before
    assert re.search(r"^images of each noun +16  104 \(bench\)$", shown, re.MULTILINE)
    gains = re.findall(r"^gain of contrastive +[+-]0\.\d\d +[+-]0\.\d\d$", shown, re.MULTILINE)
    assert len(gains) == 2  # over images too, which its control does not read
    assert re.search(r"^text control of look +0\.\d\d +0\.\d\d$", shown, re.MULTILINE)
    assert re.search(r"^teacher's images +0\.\d\d +0\.\d\d$", shown, re.MULTILINE)
    assert "look: no statement on steps is possible with 1 world, it takes 3" in shown

    found = read_json(out / "bench.json")
    _check_runs(out, found["runs"])
    plain = [one for one in found["runs"] if "condition" not in one]
    assert len(plain) == len(bench["runs"]) + 1  # the teacher's images
    own = next(one for one in plain if one["method"] == "look" and one["arm"] == METHOD)
    assert "truth" in own["readings"]  # of the bench, which fine-tuned
    assert found["verdicts"] == bench["verdicts"]
    assert len(found["curves"]) == 4
    page = (out / "report.html").read_text()
    assert "Objects: gain against images of each noun" in page and "teacher&#39;s images" in page
    assert page.count("Gain against steps. contrastive: ") == 1

    monkeypatch.setattr("groundling.training.fit.train", never)
    BENCH(CONFIG, out)  # the bench again keeps the curves
    again = read_json(out / "bench.json")
    assert again["curves"] == found["curves"] and len(again["runs"]) == len(found["runs"])
    assert "gain of look" in capsys.readouterr().out


def _check_runs(out: Path, runs: list[dict]) -> None:
    """Runs with a condition: those of both methods and of their controls, and towers of the teacher that differs."""
    conditioned = [one for one in runs if "condition" in one]
    arms = {
        (one["condition"]["axis"], one["condition"]["value"], one["arm"]) for one in conditioned
    }
    towers = {"teacher's text tower", "teacher's images"}
    assert arms == {
        (axis, value, arm)
        for axis, value in (("images", 16), ("steps", 1000))
        for arm in ({METHOD, TEXT_CONTROL} | (towers if axis == "images" else set()))
    }
    # A control on the corpus reads no images, so the bench's is read again, and none is trained here.
    paths = {
        (one["condition"]["axis"], one["method"], one["model"]["path"].split("/")[1])
        for one in conditioned
        if "model" in one
    }
    assert [path for path in sorted(paths) if path[:2] == ("images", "")] == [
        ("images", "", "objects-0"),
        ("images", "", "objects-0-images-16"),
    ]
    assert {folder for axis, _, folder in paths if axis == "steps"} == {"objects-0-steps-1000"}
    costs = {one["condition"]["axis"]: one["cost"]["steps"] for one in conditioned if "cost" in one}
    assert costs == {"images": 2, "steps": 7}  # at this scale: 2, and 2 * 1000 / 300
    own = out / "shared" / "objects-0-images-16"
    assert {path.name for path in own.iterdir()} >= {"handed", "making"}
    whole = read_json(out / "shared" / "objects-0" / "handed" / "captions.json")
    thinned = read_json(own / "handed" / "captions.json")
    assert len(thinned["images"]) < len(whole["images"])
