"""The bench from nothing to its page, killed once on the way, then its curves; with a method in one's own file."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import documents
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny.homes import digests, never, stay_here
from transformers import (
    AutoImageProcessor,
    AutoModel,
    AutoTokenizer,
    CLIPVisionModel,
    GPT2LMHeadModel,
)

from groundling.core.errors import InputError
from groundling.data.corpora import iterate_texts, names_of
from groundling.models.frozen_clip import load_frozen_clip
from groundling.runs.folder import read_json
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.studies.bench import handed, rendered
from groundling.studies.bench.commands import BENCH, BenchConfig
from groundling.studies.bench.engine import (
    METHOD,
    RANDOM,
    SHUFFLED,
    TEXT_CONTROL,
    Arm,
    best_weight,
    control_stages,
    text_key,
)
from groundling.studies.bench.methods import built_in_methods, find_methods, for_decoder
from groundling.studies.bench.protocol import MODELS, BenchFolder, BenchWorld, find_axes
from groundling.studies.bench.readings import (
    PAIRS_FILE,
    check_plain,
    read_encoder,
    write_grammar_pairs,
)
from groundling.studies.bench.rendered import RenderedBench
from groundling.teachers.clip import ClipTeacher

CONFIG = BenchConfig(
    method=("contrastive", "mine.look:METHOD"),
    worlds=(0,),
    families=("objects",),
    adapt_seeds=1,
    probe_seeds=1,
    probes=("truth",),
    processes=1,
    scale=0.004,
)
STOP_AT = 3
"""Encoders that are read before the first bench is killed."""


class Killed(Exception):
    """Stands for a killed process."""


@dataclass(frozen=True)
class Ran:
    """A finished bench."""

    out: Path
    work: Path
    """The working folder with the package `mine`."""
    when_killed: dict[str, str]
    """Hashes of the job files that the killed bench left."""
    said: str
    """What the second, finished bench printed."""


READ: list[Path] = []
"""Models that the bench that is killed has read."""


def read_few(model: Path, out: Path, world: Path, encoder: Path) -> object:
    """Stands for `read_encoder` until the bench is killed."""
    READ.append(model)
    if len(READ) > STOP_AT:
        raise Killed
    return read_encoder(model, out, world, encoder)


def write_few_pairs(world: Path) -> None:
    """Every thirtieth minimal pair: each takes a forward pass per token, of every encoder."""
    write_grammar_pairs(world)
    head, *lines = (world / PAIRS_FILE).read_text().splitlines(keepends=True)
    (world / PAIRS_FILE).write_text("".join([head, *lines[::30]]))


def run_bench(work: Path) -> Ran:
    """Killed after some jobs, then finished by the same command, beside a method in one file of the user's own."""
    out = work / "out"
    documents.write_modules(documents.ROOT / "docs" / "bench_your_method.md", work)
    before = os.getcwd()
    path = list(sys.path)
    documents.forget_modules("mine")
    with pytest.MonkeyPatch.context() as patch:
        stay_here(patch)
        patch.setattr(handed, "write_grammar_pairs", write_few_pairs)
        os.chdir(work)
        try:
            with patch.context() as killing:
                killing.setattr(rendered, "read_encoder", read_few)
                with pytest.raises(Killed):
                    BENCH(CONFIG, out)
            killed = digests(out / "jobs")
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                BENCH(CONFIG, out)
        finally:
            os.chdir(before)
            sys.path[:] = path
            documents.forget_modules("mine")
    return Ran(out, work, killed, said.getvalue())


MODULE = "groundling.studies.bench"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run_bench(tmp_path_factory.mktemp("bench"))


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
    of_method = ("method", "shuffled images", "random targets")
    wanted = {(name, arm) for name in ("contrastive", "look") for arm in of_method}
    assert arms == wanted | {("", "text control"), ("", "teacher's text tower")}
    texts = [one["texts"] for one in runs(ran) if one["arm"] == "text control"]
    assert len(set(texts)) == len(texts) == 2  # the corpus, and the captions
    page = (ran.out / "report.html").read_text()
    for data in ("text and teacher", "captions with images"):
        assert f"Objects: methods that read {data}" in page
    for name in ("contrastive", "look", "guessing", "noise", "teacher&#39;s text tower"):
        assert name in page
    assert re.search(r"^contrastive  +[01]\.\d\d", ran.said, re.MULTILINE)
    assert "look: no verdict with 1 world, at least 3 are needed" in ran.said
    warning = "Scale 0.004, a trial run: models learn nothing at this scale"
    assert 0 < ran.said.index(warning) < ran.said.index("\nObjects: methods that read")
    assert page.index(warning) < page.index("no verdict with 1 world") < page.index("<table")


def test_controls_read_what_the_method_reads_with_one_thing_replaced(ran: Ran) -> None:
    world = ran.out / "shared" / "objects-0"
    config = {}
    for path in (ran.out / "runs" / "objects-0").rglob("stage-1/config.json"):
        name = path.parent.relative_to(ran.out / "runs" / "objects-0").parts[:2]
        config[name[0] if name[0] == "text-control" else name] = read_json(path)["config"]
        assert "private" not in path.read_text()
    arms = ("method", "shuffled-images", "random-targets")
    method, shuffled, random = (config["look", arm] for arm in arms)
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
    folders = [Path(one["teacher_images"]).name for one in (method, shuffled, random)]
    assert folders == ["images", "images", "noise"]
    teachers = [Path(config["contrastive", arm]["teacher"]).parent.name for arm in arms]
    assert teachers == ["teacher", "teacher-redrawn", "teacher-untrained"]

    original = read_json(world / "private" / "captions_train.json")
    assert read_json(world / "handed" / "captions.json") == original
    names = {path.name for path in (world / "handed").iterdir()}
    assert names == {"captions.json", "shuffled", "corpus.txt", "images", "noise"}
    noise = {path.name for path in (world / "handed" / "noise").iterdir()}
    assert noise == {one["file_name"] for one in original["images"]}


def test_the_weight_is_the_best_in_the_tuning_world_without_its_test_nouns(ran: Ran) -> None:
    about = read_json(ran.out / "bench.json")["weights"]
    for name, grid in (("contrastive", [0.1, 1.0, 10.0]), ("look", [0.3, 1.0, 3.0])):
        scores = about[name]["scores"]
        assert [value for value, _ in scores] == grid
        for value, score in scores:
            pattern = f"objects-100-{name}-method-*-{value}-seed-0-nouns.json"
            (path,) = (ran.out / "jobs").glob(pattern)
            visual = read_json(path)["readings"]["visual"]
            # 18 train nouns, cross-validated, and 9 dev nouns.
            assert score == pytest.approx((18 * visual["train"] + 9 * visual["dev"]) / 27)
        best = max(score for _, score in scores)
        chosen = next(value for value, score in scores if score == best)
        assert about[name]["chosen"] == chosen
        own = [one for one in runs(ran) if one["method"] == name]
        assert {one["weight"] for one in own} == {chosen}
        assert {(one["family"], one["world"]) for one in own} == {("objects", 0)}


def test_a_weight_that_changes_nothing_is_refused() -> None:
    same = {"visual": {"choice": 0.5}, "masked LM": {"test": 2.0}}
    found = dict.fromkeys((0.1, 1.0, 10.0), same)
    with pytest.raises(InputError, match="all values of the tuned setting gave the same model"):
        best_weight("name", found)
    # Equal scores of different models are a tie, which goes to the first value.
    assert best_weight("name", found | {1.0: same | {"masked LM": {"test": 2.1}}}) == 0.1


def test_minimal_pairs_differ_in_two_words_or_in_the_category_of_their_noun(ran, tmp_path):
    probes = ran.out / "shared/objects-0/private/probes"
    (tmp_path / "probes").symlink_to(probes)
    write_grammar_pairs(tmp_path)
    lines = (tmp_path / "pairs.tsv").read_text().splitlines()
    assert lines[0] == "good\tbad\tgroup"
    groups = [line.split("\t")[2] for line in lines[1:]]
    assert min(groups.count("order"), groups.count("category")) > 50
    nouns = {row.split("\t")[0] for row in (probes / "attribute.tsv").read_text().splitlines()[1:]}
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
    costs = {one["arm"]: one["cost"] for one in runs(ran) if "cost" in one}
    assert {(cost["steps"], cost["samples"]) for cost in costs.values()} == {(2, 128)}
    assert costs["method"]["extra_parameters"] > costs["text control"]["extra_parameters"] > 0


def test_a_killed_bench_resumes_and_a_finished_one_does_nothing(inside, capsys):
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
    assert "missing" not in plan and re.search(r"^(\d+) of \1 jobs are done", plan, re.MULTILINE)
    assert "mlm+mine.look:Look on captions; option:look_weight of 0.3, 1.0, 3.0" in plan


def test_a_report_shows_what_is_finished_and_says_what_is_missing(inside, capsys):
    before = read_json(inside.out / "bench.json")
    BENCH(replace(CONFIG, report=True, worlds=(0, 1)), inside.out)
    shown = capsys.readouterr().out
    assert re.search(r"^contrastive  +[01]\.\d\d", shown, re.MULTILINE)
    missing = re.search(r"note: not done yet: (\d+) jobs of this bench", shown)
    assert missing and int(missing[1]) > 10
    assert read_json(inside.out / "bench.json")["runs"] == before["runs"]
    # Methods of earlier commands are judged, and others are not missing.
    for methods in (("contrastive",), ()):
        BENCH(replace(CONFIG, method=methods, report=True), inside.out)
        assert "xdbert" not in capsys.readouterr().out
        after = read_json(inside.out / "bench.json")
        assert after["methods"] == before["methods"] and after["notes"] == before["notes"]
        assert len(after["runs"]) == len(before["runs"])
    BENCH(CONFIG, inside.out)  # the folder's order again
    assert "not done yet" not in (inside.out / "bench.json").read_text()


def test_a_plan_writes_nothing_and_compares_with_what_is_there(inside, tmp_path, capsys):
    out = tmp_path / "new"
    BENCH(replace(CONFIG, plan=True), out)
    assert "missing  objects 0: encoder" in capsys.readouterr().out
    with pytest.raises(InputError, match="curve=seps: not known; there are: images, captions"):
        BENCH(BenchConfig(plan=True, curve=("seps",)), out)
    with pytest.raises(InputError, match="nothing is finished yet"):
        BENCH(replace(CONFIG, report=True), out)
    assert not out.exists()
    before = digests(inside.out)
    with pytest.raises(InputError, match=r"scale: 0\.004 there, 0\.005 now"):
        BENCH(replace(CONFIG, plan=True, scale=0.005), inside.out)
    BENCH(replace(CONFIG, plan=True, worlds=(0, 1)), inside.out)
    assert "missing  objects 1: encoder" in capsys.readouterr().out
    assert digests(inside.out) == before
    module = inside.work / "mine" / "look.py"
    text = module.read_text()
    try:
        module.write_text(text + "\n# changed\n")
        with pytest.raises(InputError, match="another version of this method"):
            BENCH(CONFIG, inside.out)
    finally:
        module.write_text(text)


def test_a_dry_run_counts_jobs(inside: Ran, tmp_path: Path) -> None:
    assert re.fullmatch(r"\d+ jobs", BENCH.rehearse([CONFIG, tmp_path / "out"])["dry_run"])
    assert not (tmp_path / "out").exists()


def test_a_job_that_is_no_json_is_one_line(inside: Ran) -> None:
    (path,) = (inside.out / "jobs").glob("objects-0-look-shuffled-images-seed-0-nouns.json")
    text = path.read_text()
    try:
        path.write_text(text[:-10])
        with pytest.raises(InputError, match=f"{re.escape(path.name)}: not valid JSON"):
            BENCH(replace(CONFIG, report=True), inside.out)
    finally:
        path.write_text(text)


NEW = (
    *("feature_mimicry", "interactive_contrast", "relational_kd", "sigmoid"),
    *("lexi_contrastive_image", "merging", "frozen_probe", "td_words"),
)
"""Methods that the published bench does not have."""


@pytest.mark.parametrize(
    "name", [name for name in built_in_methods() if name not in ("contrastive", *NEW)]
)
def test_every_published_method_runs(ran: Ran, tmp_path: Path, name: str) -> None:
    """One arm of each, in the world of the finished bench; contrastive ran there."""
    method = built_in_methods()[name]
    (tmp_path / "shared").symlink_to(ran.out / "shared")
    weight = method.grid[-1] if method.grid else None
    own = RenderedBench(BenchFolder(tmp_path), [method], replace(CONFIG, probes=()))
    arm = Arm(method, METHOD, 0, BenchWorld("objects", 0), weight)
    trained, result = run_arm(own, arm)
    assert trained["weight"] == weight and trained["cost"]["steps"] == 2
    assert 0 <= result["readings"]["visual"]["test"] <= 1


def run_arm(own: RenderedBench, arm: Arm) -> list[dict]:
    """The results of an arm's training and of its linear readings."""
    jobs = [job for job in own.jobs([arm]) if job.name.startswith(arm.name)]
    return [job.call(*job.arguments) for job in jobs]


@pytest.fixture(scope="module")
def pictograms(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is handed over in a world of pictograms; controls have the method's teacher, since nothing is learned."""
    out = tmp_path_factory.mktemp("pictograms")
    world = BenchWorld("pictograms", 0)
    own = RenderedBench(BenchFolder(out), [], CONFIG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(handed, "write_grammar_pairs", write_few_pairs)
        for part in ("render", "encoder", "teacher"):
            job = own._making(world, part)
            job.call(*job.arguments)
    files = own.folder.world(world)
    for name in MODELS[2:]:
        shutil.copytree(files.run("teacher"), files.run(name))
    return out


@pytest.mark.parametrize("name", NEW)
def test_new_methods_and_their_controls_run_in_pictograms(pictograms, tmp_path, name):
    method = built_in_methods()[name]
    (tmp_path / "shared").symlink_to(pictograms / "shared")
    own = RenderedBench(BenchFolder(tmp_path), [method], replace(CONFIG, probes=()))
    weight = method.grid[0] if method.grid else None
    world = BenchWorld("pictograms", 0)
    trained, result = run_arm(own, Arm(method, METHOD, 0, world, weight))
    assert trained["weight"] == weight and 0 <= result["readings"]["visual"]["test"] <= 1
    for arm in (TEXT_CONTROL, SHUFFLED, RANDOM):
        tuned = weight if arm != TEXT_CONTROL or method.is_merged else None
        one = own.train(Arm(method, arm, 0, world, tuned))
        assert one["weight"] == tuned and (tmp_path / one["model"]["path"]).is_dir()


def test_a_merged_methods_controls_are_merged_alike(ran: Ran, tmp_path: Path) -> None:
    method = built_in_methods()["merging"]
    (tmp_path / "shared").symlink_to(ran.out / "shared")
    world = BenchWorld("objects", 0)
    own = RenderedBench(BenchFolder(tmp_path), [method], CONFIG)
    origin = load_file(own.folder.world(world).places["encoder"] / "model.safetensors")
    merges = set()
    for arm in (METHOD, TEXT_CONTROL, SHUFFLED):
        path = tmp_path / own.train(Arm(method, arm, 0, world, 0.25))["model"]["path"]
        run = path.parent
        adapted = load_file(run.with_name("stage-1") / "model" / "model.safetensors")
        for name, value in load_file(path / "model.safetensors").items():
            expected = 0.25 * adapted[name].double() + 0.75 * origin[name].double()
            torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-8)
        config = read_json(run / "config.json")["config"]
        merges.add((config["origin"], *config["share"]))
    assert len(merges) == 1
    # Each control waits for the choice of the share, and no other method shares the text control.
    jobs = {job.name: job for job in own.jobs()}
    grid = {f"{arm.name}: nouns" for arm in own.grid(Arm(method, METHOD))}
    trained = [job for name, job in jobs.items() if ": nouns" not in name and "seed 0" in name]
    waiting = [job.name for job in trained if grid <= set(job.after)]
    assert len(waiting) == 4  # the method, its text control, shuffled images, random targets
    contrastive = built_in_methods()["contrastive"]
    assert control_stages(method) == control_stages(contrastive)
    assert text_key(method) != text_key(contrastive)


def test_a_frozen_probe_leaves_the_encoder_and_is_read_through_its_head(ran, tmp_path):
    method = built_in_methods()["frozen_probe"]
    (tmp_path / "shared").symlink_to(ran.out / "shared")
    own = RenderedBench(BenchFolder(tmp_path), [method], replace(CONFIG, probes=()))
    arm = Arm(method, METHOD, 0, BenchWorld("objects", 0))
    trained, result = run_arm(own, arm)
    model, encoder = tmp_path / trained["model"]["path"], own.encoder(arm)
    weights, before = (load_file(one / "model.safetensors") for one in (model, encoder))
    assert all(torch.equal(value, weights[name]) for name, value in before.items())
    text = "a zop is near a wug ."
    tokens = AutoTokenizer.from_pretrained(model)(text, return_tensors="pt")
    head = load_file(model / "groundling_heads.safetensors")
    with torch.no_grad():
        state = AutoModel.from_pretrained(model)(**tokens).last_hidden_state[0, 1:-1].mean(0)
        for place in range(0, 12, 4):
            linear, norm = (
                [head[f"frozen_probe.project.{place + n}.{part}"] for part in ("weight", "bias")]
                for n in (0, 1)
            )
            state = F.linear(state, *linear)
            state = F.layer_norm(state, state.shape, *norm).relu()
        state = F.linear(
            state, *(head[f"frozen_probe.project.12.{part}"] for part in ("weight", "bias"))
        )
    (found,) = torch.from_numpy(method.vectors(model, [text], 32))
    torch.testing.assert_close(found, state / state.norm(), rtol=1e-4, atol=1e-5)
    plain = read_encoder(model, tmp_path / "plain", ran.out / "shared/objects-0/private", encoder)
    same = {name for name, one in plain.items() if result["readings"][name] == one}
    assert "visual" not in same and {"masked LM", "minimal pairs"} <= same  # the encoder's price


def test_the_image_tower_alone_teaches_what_it_teaches_inside_its_clip(ran, tmp_path):
    """`lexi_contrastive_image`: an image encoder without texts, loaded as one, has the same features."""
    teacher = ran.out / "shared" / "objects-0" / "making" / "teacher" / "model"
    CLIPVisionModel.from_pretrained(teacher).save_pretrained(tmp_path / "alone")
    AutoImageProcessor.from_pretrained(teacher).save_pretrained(tmp_path / "alone")
    (stage,) = built_in_methods()["lexi_contrastive_image"].stages
    options = TargetedDistillationSettings(**stage.settings, teacher_images=str(teacher))
    inside = ClipTeacher(load_frozen_clip(teacher, text=False), ["clip_image"], options)
    tower = load_frozen_clip(tmp_path / "alone", text=False).image
    assert inside.image_width == tower.embed_dim
    pixels = torch.rand(3, 3, 32, 32)
    torch.testing.assert_close(inside.clip.image(pixels), tower.projection(tower(pixels)))


def test_foreign_code_trains_in_a_process_that_reads_nothing(inside: Ran) -> None:
    methods = [*find_methods(["mine.look:METHOD"]), *find_methods(["contrastive"])]
    jobs = RenderedBench(BenchFolder(inside.out), methods, CONFIG).jobs()
    isolated = {job.name for job in jobs if job.isolated}
    assert len(isolated) >= 6 and all("look" in name for name in isolated)
    read = [job for job in jobs if job.name.endswith(": nouns") and "look" in job.name]
    assert all(job.after == (job.name.removesuffix(": nouns"),) for job in read)
    assert {job.after[0] for job in read} == isolated


@pytest.mark.parametrize(("scale", "steps"), [(1.0, 1000), (0.004, 4), (0.0001, 2)])
def test_a_methods_own_steps_are_scaled(tmp_path: Path, scale: float, steps: int) -> None:
    method = replace(built_in_methods()["l1"], steps=1000)
    planned: list[RenderedBench] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rendered, "find_methods", lambda names: [method])
        patch.setattr(RenderedBench, "print_plan", lambda own: planned.append(own) or {})
        BENCH(replace(CONFIG, plan=True, scale=scale, method=("l1",)), tmp_path / "out")
    assert planned[0].methods[0].stage_steps(300) == [steps]


def test_a_model_that_is_not_plain_ends_the_bench(ran: Ran, tmp_path: Path) -> None:
    encoder = ran.out / "shared" / "objects-0" / "making" / "encoder" / "model"
    check_plain(encoder, encoder)
    model = AutoModel.from_pretrained(encoder)
    model.resize_token_embeddings(model.config.vocab_size + 2)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    tokenizer.add_tokens(["newword"])
    for one in (model, tokenizer):
        one.save_pretrained(tmp_path / "big")
    with pytest.raises(InputError, match="it differs in the tokenizer, vocab_size; no verdict"):
        check_plain(tmp_path / "big", encoder)
    shutil.copytree(encoder, tmp_path / "coded")
    config = json.loads((encoder / "config.json").read_text())
    for name, value in (("auto_map", {"AutoModel": "code.Model"}), ("hidden_act", "relu")):
        (tmp_path / "coded" / "config.json").write_text(json.dumps(config | {name: value}))
        with pytest.raises(InputError, match=f"it differs in {name}; no verdict is possible"):
            check_plain(tmp_path / "coded", encoder)


# -- decoders ----------------------------------------------------------------------------------------------------------
def test_a_decoder_has_the_same_bench_by_the_next_token(ran, tmp_path, capsys):
    """A merged method and its text control, in the texts, images and teacher of the finished bench."""
    config = replace(CONFIG, student="causal", method=("merging",), probes=())
    with pytest.raises(InputError, match=r"holds another run .*student: "):
        BENCH(replace(config, plan=True), ran.out)
    with pytest.raises(InputError, match="joint_mlm and match and clip_tokens need both sides"):
        BENCH(replace(config, method=("xdbert",)), tmp_path / "named")
    BENCH(replace(config, method=(), plan=True), tmp_path / "plan")
    plan = capsys.readouterr().out
    left_out = re.findall(r"^(\w+) is left out: .*needs? both sides", plan, re.MULTILINE)
    assert left_out == ["clip_bert", "mlm_distillation", "xdbert"]
    assert "clm+sigmoid on captions" in plan and "objects 0: xdbert" not in plan

    for path in (ran.out / "shared" / "objects-0").glob("*/*"):
        own = tmp_path / path.relative_to(ran.out)
        own.parent.mkdir(parents=True, exist_ok=True)
        if path.name not in ("encoder", "new"):
            own.symlink_to(path)
    method = for_decoder(built_in_methods()["merging"])
    assert text_key(method) != text_key(built_in_methods()["merging"])
    own = RenderedBench(BenchFolder(tmp_path), [method], config)
    world = BenchWorld("objects", 0)
    making = own._making(world, "encoder")
    making.call(*making.arguments)
    run = own.folder.world(world).run("encoder")
    assert read_json(run / "config.json")["config"]["arm"] == "clm"
    decoder = GPT2LMHeadModel.from_pretrained(run / "model").eval()
    sizes = decoder.config.n_layer, decoder.config.n_embd, decoder.config.n_inner
    assert sizes == (2, 128, 256)
    found = {arm: run_arm(own, Arm(method, arm, 0, world, 0.5)) for arm in (METHOD, TEXT_CONTROL)}
    control = own.stage_folder(Arm(method, TEXT_CONTROL, 0, world, 0.5), 0.5, 1)
    assert read_json(control / "config.json")["config"]["arm"] == "clm"

    trained, result = found[METHOD]
    home = tmp_path / trained["model"]["path"]
    decoder, words = (
        GPT2LMHeadModel.from_pretrained(home).eval(),
        AutoTokenizer.from_pretrained(home),
    )
    losses, count = 0.0, 0
    with torch.no_grad():
        for line in (tmp_path / "shared/objects-0/private/corpus/dev.txt").read_text().splitlines():
            ids = words(line, return_tensors="pt")
            tokens = ids["input_ids"].shape[1] - 1
            losses += float(decoder(**ids, labels=ids["input_ids"]).loss) * tokens
            count += tokens
    assert result["readings"]["causal LM"]["test"] == pytest.approx(losses / count, abs=1e-4)
    assert "masked LM" not in result["readings"]
    assert 0 <= result["readings"]["minimal pairs"]["test"] <= 1
    own.conclude()
    assert read_json(tmp_path / "bench.json")["student"] == "causal"
    page = (tmp_path / "report.html").read_text()
    assert "student: causal (a small GPT-2)" in page and "causal LM loss" in page
    assert "asked LM" not in page and "text decoder" in page


# -- curves ------------------------------------------------------------------------------------------------------------
def test_curves_share_the_runs_of_a_finished_bench(ran, tmp_path, monkeypatch, capsys):
    """Two values of two axes, for a method that reads the corpus and one that reads captions with images."""
    out = tmp_path / "out"
    shutil.copytree(ran.out, out)
    monkeypatch.chdir(ran.work)
    stay_here(monkeypatch)
    kept = {"images": (16, 104), "steps": (300, 1000)}
    few = [
        replace(axis, values={value: axis.values[value] for value in kept[axis.name]})
        for axis in find_axes(list(kept))
    ]
    for name in ("protocol", "judge", "report"):
        monkeypatch.setattr(f"{MODULE}.{name}.AXES", few)
    defaults = BenchConfig()  # a curve reads none of these three
    own = {name: vars(defaults)[name] for name in ("adapt_seeds", "probe_seeds", "probes")}
    config = replace(CONFIG, curve=("images", "steps"), **own)
    before = digests(out / "jobs")
    bench = read_json(out / "bench.json")
    BENCH(replace(config, plan=True), out)
    plan = capsys.readouterr().out
    missing = re.findall(r"^missing  (objects .*)$", plan, re.MULTILINE)
    assert len(missing) == 19  # what images have of their own, and each arm's training and reading
    assert all("," in name or "teacher's images" in name for name in missing)

    BENCH(config, out)
    shown = capsys.readouterr().out
    after = digests(out / "jobs")
    assert {name: after[name] for name in before} == before
    assert re.search(r"^images of each noun +16  104 \(bench\)$", shown, re.MULTILINE)
    gains = re.findall(r"^gain of contrastive +[+-]0\.\d\d +[+-]0\.\d\d$", shown, re.MULTILINE)
    assert len(gains) == 2  # over images too, which its control does not read
    assert re.search(r"^text control of look +0\.\d\d +0\.\d\d$", shown, re.MULTILINE)
    assert re.search(r"^teacher's images +0\.\d\d +0\.\d\d$", shown, re.MULTILINE)
    assert "look: no statement on steps is possible: it needs 3 worlds" in shown

    found = read_json(out / "bench.json")
    _check_runs(out, found["runs"])
    plain = [one for one in found["runs"] if "condition" not in one]
    assert len(plain) == len(bench["runs"]) + 1  # the teacher's images
    own = next(one for one in plain if one["method"] == "look" and one["arm"] == METHOD)
    assert "truth" in own["readings"]  # of the bench, which fine-tuned
    assert found["verdicts"] == bench["verdicts"] and len(found["curves"]) == 4
    page = (out / "report.html").read_text()
    assert "Objects: gain against images of each noun" in page and "teacher&#39;s images" in page

    monkeypatch.setattr("groundling.training.fit.train", never)
    BENCH(CONFIG, out)  # the bench again keeps the curves
    again = read_json(out / "bench.json")
    assert again["curves"] == found["curves"] and len(again["runs"]) == len(found["runs"])


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
