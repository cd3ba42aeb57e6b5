"""The bench from nothing to its page, killed once on the way, with a method in one file of the user's own."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tiny.bench import CONFIG, STOP_AT, Ran
from tiny.homes import digests, never, stay_here

from groundling.core.errors import InputError
from groundling.data.corpora import iterate_texts, names_of
from groundling.runs.folder import read_json
from groundling.studies.bench.commands import BENCH, BenchConfig
from groundling.studies.bench.engine import METHOD, Arm
from groundling.studies.bench.handed import shuffle_images
from groundling.studies.bench.methods import built_in_methods, find_methods
from groundling.studies.bench.protocol import BenchFolder, BenchWorld
from groundling.studies.bench.rendered import RenderedBench, best_weight
from groundling.studies.bench.report import scale_warning


@pytest.fixture
def inside(ran: Ran, monkeypatch: pytest.MonkeyPatch) -> Ran:
    """In the working folder of the bench, where nothing may be trained."""
    monkeypatch.chdir(ran.work)
    stay_here(monkeypatch)
    monkeypatch.setattr("groundling.training.fit.train", never)
    return ran


def runs(ran: Ran) -> list[dict]:
    found: list[dict] = read_json(ran.out / "bench.json")["runs"]
    return found


def test_every_arm_is_in_the_json_the_table_and_the_page(ran: Ran) -> None:
    arms = {(one["method"], one["arm"]) for one in runs(ran)}
    wanted = {
        (name, arm) for name in ("contrastive", "look") for arm in ("method", "shuffled images")
    }
    wanted |= {(name, "random targets") for name in ("contrastive", "look")}
    assert arms == wanted | {("", "text control"), ("", "teacher's text tower")}
    texts = [one["texts"] for one in runs(ran) if one["arm"] == "text control"]
    assert len(set(texts)) == len(texts) == 2  # the corpus, and the captions
    page = (ran.out / "report.html").read_text()
    for data in ("text and teacher", "captions with images"):
        assert f"Objects: methods that read {data}" in page
    for name in ("contrastive", "look", "guessing", "noise", "teacher&#39;s text tower"):
        assert name in page
    assert re.search(r"^contrastive  +[01]\.\d\d", ran.said, re.MULTILINE)
    assert "look: no verdict over worlds is possible with 1 of them, it takes 3" in ran.said


def test_controls_read_what_the_method_reads_with_one_thing_replaced(ran: Ran) -> None:
    world = ran.out / "shared" / "objects-0"
    config = {}
    for path in (ran.out / "runs" / "objects-0").rglob("stage-1/config.json"):
        name = path.parent.relative_to(ran.out / "runs" / "objects-0").parts[:2]
        config[name[0] if name[0] == "text-control" else name] = read_json(path)["config"]
        assert "private" not in path.read_text()
    method, shuffled, random = (
        config["look", arm] for arm in ("method", "shuffled-images", "random-targets")
    )
    captions = str(world / "handed" / "captions.json")
    assert method["text"] == [captions] == random["text"]
    assert shuffled["text"] == [captions.replace("captions.json", "shuffled/captions.json")]
    # Ids key every random choice, so the method and its control read the same batches with the same masks.
    assert names_of(shuffled["text"]) == names_of([captions])
    own, other = (list(iterate_texts(path)) for path in (captions, *shuffled["text"]))
    assert [line.text for line in own] == [line.text for line in other]
    assert all(one.image != two.image for one, two in zip(own, other, strict=True))
    for one in (method, shuffled, random):
        assert one["teacher"] == str(world / "making" / "teacher" / "model")
        assert one["student"] == str(world / "making" / "encoder" / "model")
    images = (
        [one["objective_settings"] for one in (method, shuffled, random)]
        if ("objective_settings" in method)
        else [method, shuffled, random]
    )
    folders = [one["teacher_images"] for one in images]
    assert [Path(one).name for one in folders] == ["images", "images", "noise"]
    teachers = [
        Path(config["contrastive", arm]["teacher"]).parent.name
        for arm in ("method", "shuffled-images", "random-targets")
    ]
    assert teachers == ["teacher", "teacher-redrawn", "teacher-untrained"]


def test_the_weight_is_the_one_that_is_best_in_the_tuning_world_without_its_test_nouns(
    ran: Ran,
) -> None:
    about = read_json(ran.out / "bench.json")["weights"]
    for name, grid in (("contrastive", [0.1, 1.0, 10.0]), ("look", [0.3, 1.0, 3.0])):
        scores = about[name]["scores"]
        assert [value for value, _ in scores] == grid
        for value, score in scores:
            (path,) = (ran.out / "jobs").glob(
                f"objects-100-{name}-method-*-{value}-seed-0-nouns.json"
            )
            visual = read_json(path)["readings"]["visual"]
            # 18 train nouns, cross-validated, and 9 dev nouns.
            assert score == pytest.approx((18 * visual["train"] + 9 * visual["dev"]) / 27)
        best = max(score for _, score in scores)
        chosen = next(value for value, score in scores if score == best)
        assert about[name]["chosen"] == chosen
        own = [one for one in runs(ran) if one["method"] == name]
        assert {one["weight"] for one in own} == {chosen}
        assert {(one["family"], one["world"]) for one in own} == {("objects", 0)}


def test_minimal_pairs_differ_in_two_words_or_in_the_category_of_their_noun(ran: Ran) -> None:
    world = ran.out / "shared/objects-0/private"
    lines = (world / "pairs.tsv").read_text().splitlines()
    assert lines[0] == "good\tbad\tgroup"
    groups = [line.split("\t")[2] for line in lines[1:]]
    assert min(groups.count("order"), groups.count("category")) > 50
    rows = (world / "probes" / "attribute.tsv").read_text().splitlines()[1:]
    nouns = {row.split("\t")[0] for row in rows}
    for line in lines[1:]:
        good, bad = (text.split() for text in line.split("\t")[:2])
        if line.endswith("\torder"):
            assert sorted(good) == sorted(bad)
            assert sum(one != other for one, other in zip(good, bad, strict=True)) == 2
        else:
            assert nouns.intersection(good) == nouns.intersection(bad) and good != bad
    readings = [one["readings"] for one in runs(ran) if one["arm"] != "teacher's text tower"]
    assert all(0 <= one["minimal pairs"]["test"] <= 1 for one in readings)


def test_arms_have_equal_budgets_and_their_costs_are_known(ran: Ran) -> None:
    costs = [one["cost"] for one in runs(ran) if "cost" in one]
    assert {(cost["steps"], cost["samples"]) for cost in costs} == {(2, 128)}
    assert all(cost["parameters_after"] == 0 for cost in costs)
    extra = {one["arm"]: one["cost"]["extra_parameters"] for one in runs(ran) if "cost" in one}
    assert extra["method"] > extra["text control"] > 0
    assert all(cost["memory_mb"] is None or cost["memory_mb"] > 50 for cost in costs)


def test_a_killed_bench_resumes_and_a_finished_one_does_nothing(
    inside: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    now = digests(inside.out / "jobs")
    before = {name: digest for name, digest in inside.when_killed.items() if "lock" not in name}
    assert len(before) >= 4 + STOP_AT
    assert {name: now[name] for name in before} == before
    BENCH(CONFIG, inside.out)
    assert digests(inside.out / "jobs") == now
    shown = capsys.readouterr().out
    assert "look" in shown and "job " not in shown
    BENCH(replace(CONFIG, plan=True), inside.out)
    plan = capsys.readouterr().out
    assert "missing" not in plan and "23 of 23" in re.sub(r"(\d+) of \1 jobs", "23 of 23", plan)
    assert "mlm+mine.look:Look on captions; option:look_weight of 0.3, 1.0, 3.0" in plan
    BENCH(replace(CONFIG, plan=True, worlds=(0, 1)), inside.out)
    plan = capsys.readouterr().out
    assert "missing  objects 1: encoder" in plan


def test_a_report_shows_what_is_finished_and_says_what_is_missing(
    inside: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_json(inside.out / "bench.json")
    BENCH(replace(CONFIG, report=True, worlds=(0, 1)), inside.out)
    shown = capsys.readouterr().out
    assert re.search(r"^contrastive  +[01]\.\d\d", shown, re.MULTILINE)
    missing = re.search(r"note: not done yet: (\d+) jobs of this bench", shown)
    assert missing and int(missing[1]) > 10
    assert read_json(inside.out / "bench.json")["runs"] == before["runs"]
    with pytest.raises(InputError, match="nothing is finished yet"):
        BENCH(replace(CONFIG, report=True), inside.work / "nothing")
    capsys.readouterr()
    BENCH(CONFIG, inside.out)
    assert "not done yet" not in capsys.readouterr().out
    assert "not done yet" not in (inside.out / "bench.json").read_text()


def test_a_plan_writes_nothing_and_compares_with_what_is_there(
    inside: Ran, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new"
    BENCH(replace(CONFIG, plan=True), out)
    assert "missing  objects 0: encoder" in capsys.readouterr().out
    with pytest.raises(InputError, match="curve=seps: expected some of"):
        BENCH(BenchConfig(plan=True, curve=("seps",)), out)
    with pytest.raises(InputError, match="nothing is finished yet"):
        BENCH(replace(CONFIG, report=True), out)
    assert not out.exists()
    before = digests(inside.out)
    with pytest.raises(InputError, match=r"scale: 0\.004 there, 0\.005 now"):
        BENCH(replace(CONFIG, plan=True, scale=0.005), inside.out)
    BENCH(replace(CONFIG, plan=True, worlds=(0, 1)), inside.out)
    assert digests(inside.out) == before
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(InputError, match="exists and is not a groundling run folder"):
        BENCH(replace(CONFIG, plan=True), tmp_path)


def test_a_small_scale_is_said_before_any_number(ran: Ran) -> None:
    words = "Scale 0.004, a trial run: models learn nothing at this scale, and no number means any"
    assert 0 < ran.said.index(words) < ran.said.index("\nObjects: methods that read")
    page = (ran.out / "report.html").read_text()
    assert page.index(words) < page.index("no verdict over worlds") < page.index("<table")
    assert scale_warning({"protocol": {"scale": 1.0}}) == ""


def test_an_unknown_method_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"^no bench method is called 'contrastiv'.* did you mean contr"
    ):
        BENCH(BenchConfig(method=("contrastiv",)), tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("pattern", "change"),
    [
        ("objects-0-contrastive-shuffled-images-seed-0-nouns", {"readings": None}),
        ("objects-0-contrastive-shuffled-images-seed-0-nouns", {"remarks": 3}),
        ("objects-0-contrastive-shuffled-images-seed-0", {"cost": None}),
        ("objects-0-teacher-s-text-tower-nouns", {"readings": 3}),
        ("objects-0-teacher-s-text-tower-nouns", {"readings": {"visual": {"test": "0.5"}}}),
        ("objects-0-teacher-s-text-tower-nouns", {"readings": {"visual": {"test": float("nan")}}}),
        ("objects-0-contrastive-random*seed-0", {"cost": {"steps": 0, "seconds": "x"}}),
    ],
)
def test_a_damaged_job_is_one_line(inside: Ran, pattern: str, change: dict[str, Any]) -> None:
    (path,) = (inside.out / "jobs").glob(f"{pattern}.json")
    text = path.read_text()
    try:
        path.write_text(json.dumps(json.loads(text) | change))
        with pytest.raises(InputError, match=f"{re.escape(path.name)}: cannot be read") as caught:
            BENCH(replace(CONFIG, report=True), inside.out)
        assert "\n" not in str(caught.value)
    finally:
        path.write_text(text)


def test_methods_of_earlier_commands_are_judged_and_others_are_not_missing(
    inside: Ran, capsys: pytest.CaptureFixture[str]
) -> None:
    before = read_json(inside.out / "bench.json")
    for methods in (("contrastive",), ()):
        BENCH(replace(CONFIG, method=methods, report=True), inside.out)
        assert "xdbert" not in capsys.readouterr().out
        after = read_json(inside.out / "bench.json")
        assert after["methods"] == before["methods"] and after["notes"] == before["notes"]
        assert len(after["runs"]) == len(before["runs"])
    BENCH(CONFIG, inside.out)  # the folder's order again


def test_a_weight_that_nothing_reads_is_refused() -> None:
    same = {"visual": {"choice": 0.5}, "masked LM": {"test": 2.0}}
    found = dict.fromkeys((0.1, 1.0, 10.0), same)
    with pytest.raises(InputError, match="all values of weight gave the same model"):
        best_weight("name", "weight", found)
    # Equal scores of different models are a tie, which goes to the first value.
    assert best_weight("name", "weight", found | {1.0: same | {"masked LM": {"test": 2.1}}}) == 0.1


def test_another_scale_or_source_is_another_bench(inside: Ran) -> None:
    with pytest.raises(InputError, match=r"scale: 0\.004 there, 0\.005 now"):
        BENCH(replace(CONFIG, scale=0.005), inside.out)
    module = inside.work / "mine" / "look.py"
    text = module.read_text()
    try:
        module.write_text(text + "\n# changed\n")
        with pytest.raises(InputError, match="another version of this method"):
            BENCH(CONFIG, inside.out)
    finally:
        module.write_text(text)


def test_shuffled_captions_keep_their_texts_and_no_image_keeps_its_own() -> None:
    images = [{"id": 10 + n, "file_name": f"{n}.png"} for n in range(7)]
    notes = [{"id": n, "image_id": 10 + n % 7, "caption": f"c{n}"} for n in range(14)]
    content = {"images": images, "annotations": notes}
    shuffled = shuffle_images(content, 3)
    assert shuffled["annotations"] == notes
    assert [one["id"] for one in shuffled["images"]] == [one["id"] for one in images]
    pairs = list(zip(images, shuffled["images"], strict=True))
    assert all(one["file_name"] != other["file_name"] for one, other in pairs)
    assert {one["file_name"] for one in shuffled["images"]} == {f"{n}.png" for n in range(7)}
    assert shuffle_images(content, 3) == shuffled != shuffle_images(content, 4)


def test_handed_over_captions_are_the_worlds_own(ran: Ran) -> None:
    world = ran.out / "shared" / "objects-0"
    original = read_json(world / "private" / "captions_train.json")
    assert read_json(world / "handed" / "captions.json") == original
    names = {path.name for path in (world / "handed").iterdir()}
    assert names == {"captions.json", "shuffled", "corpus.txt", "images", "noise"}
    noise = {path.name for path in (world / "handed" / "noise").iterdir()}
    assert noise == {one["file_name"] for one in original["images"]}


@pytest.mark.parametrize("name", [name for name in built_in_methods() if name != "contrastive"])
def test_every_method_of_the_package_runs(ran: Ran, tmp_path: Path, name: str) -> None:
    """One arm of each, in the world of the finished bench; contrastive ran there."""
    method = built_in_methods()[name]
    (tmp_path / "shared").symlink_to(ran.out / "shared")
    weight = method.grid[-1] if method.grid else None
    own = RenderedBench(BenchFolder(tmp_path), [method], replace(CONFIG, probes=()))
    arm = Arm(method, METHOD, 0, BenchWorld("objects", 0), weight)
    trained = own.train(arm, "key")
    result = own.read(arm, own.readings(arm)[0], "key")
    assert result["remarks"] == [] and trained["weight"] == weight
    assert trained["cost"]["steps"] == 2 and result["parameters_after"] == 0
    assert 0 <= result["readings"]["visual"]["test"] <= 1


def test_foreign_code_trains_in_a_process_that_reads_nothing(inside: Ran) -> None:
    methods = [*find_methods(["mine.look:METHOD"]), *find_methods(["contrastive"])]
    jobs = RenderedBench(BenchFolder(inside.out), methods, CONFIG).jobs()
    isolated = {job.name for job in jobs if job.isolated}
    assert len(isolated) >= 6 and all("look" in name for name in isolated)
    read = [job for job in jobs if job.name.endswith(": nouns") and "look" in job.name]
    assert all(job.after == (job.name.removesuffix(": nouns"),) for job in read)
    assert {job.after[0] for job in read} == isolated
