"""The bench on a real encoder, here a tiny one, from its settings to its page."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys
from tiny.homes import never, stay_here
from transformers import BertForMaskedLM, CLIPImageProcessorPil

from groundling.core.errors import InputError
from groundling.models.clip import load_clip_image_tower, load_clip_text_tower
from groundling.models.frozen_clip import load_text_tower
from groundling.runs.folder import read_json, read_object
from groundling.settings.fields import make_settings
from groundling.studies.bench import readings
from groundling.studies.bench.commands import BENCH_REAL, RealBenchConfig
from groundling.studies.bench.engine import BEFORE, METHOD, SHUFFLED, TEXT_CONTROL, Arm
from groundling.studies.bench.handed import permute_teacher, permute_tokens, real_files
from groundling.studies.bench.methods import find_methods
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.readings import DEVIATIONS, SetReader, set_readers
from groundling.studies.bench.real import UNADAPTED, RealBench
from groundling.studies.knowledge.visual_facts import COLOURS
from groundling.teachers.vectors import write_vectors

NOUNS = [f"{first} {second}" for first in ("dog", "cat") for second in "abcdef"]


def make_files(folder: Path) -> Path:
    """An encoder with and without a masked-LM head, a teacher, captions with images, and sets to read."""
    homes.student(folder / "headless")
    words = homes.words()
    config = toys.bert(len(words)).config
    homes.home(folder / "encoder", BertForMaskedLM(config), words)
    homes.seeing_clip(folder / "teacher")
    texts = toys.sentences()[:12]
    for number in range(6):
        homes.noise(folder / f"images/{number}.png", (16, 16), number)
    captions = [(f"{n % 6}.png", text) for n, text in enumerate(texts)]
    homes.put(folder / "captions.csv", homes.table(("image", "caption"), *captions))
    homes.text(folder / "plain.txt", 12)
    counts = {noun: [n % 3, 1, *[0] * 9, n] for n, noun in enumerate(NOUNS)}
    homes.put(folder / "vicomte/distributions/color-dist.jsonl", json.dumps(counts) + "\n")
    colours = [{"descriptor": "a", "item": noun, "label": "red"} for noun in NOUNS[:5]]
    homes.put(folder / "colors.jsonl", "".join(json.dumps(row) + "\n" for row in colours))
    homes.put(folder / "rated.txt", "dog\tcat\t5\ndog\tball\t2\ncat\tball\t1\nred\tdog\t0.5\n")
    pairs = "".join(f"{texts[n]}\t{texts[n + 1]}\t{n % 5}\n" for n in range(8))
    homes.put(folder / "similar.tsv", pairs)
    homes.put(folder / "pairs.csv", homes.table(("good", "bad"), ("a red dog", "dog red a")))
    homes.rte(folder / "glue", 32)
    homes.rte(folder / "half", 32)
    (folder / "half/RTE/dev.tsv").unlink()
    answer = {"class_id": "a", "included": True, "action": "", **dict.fromkeys(COLOURS, 1)}
    homes.put(folder / "coda/annotations.jsonl", json.dumps(answer) + "\n")
    (folder / "vectors").mkdir()
    write_vectors(folder / "vectors/images.npy", ["0.png", "1.png"], list(np.eye(2)))
    return folder


def settings_for(folder: Path, **changes: Any) -> RealBenchConfig:
    own: dict[str, Any] = {
        "student": folder / "encoder",
        "teacher": folder / "teacher",
        "captions": folder / "captions.csv",
        "images": folder / "images",
        "facts": (folder / "vicomte/distributions/color-dist.jsonl",),
        "words": (folder / "rated.txt",),
        "retention_pairs": folder / "similar.tsv",
        **{"steps": 2, "batch": 4, "max_length": 16, "cpu": True},
        **{"method": ("contrastive", "lexi_contrastive"), "adapt_seeds": 1, "processes": 1},
    }
    return make_settings(RealBenchConfig, **own | changes)


def run(config: RealBenchConfig, out: Path) -> str:
    """What a bench prints, its jobs in this process."""
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        stay_here(patch)
        BENCH_REAL(config, out)
    return said.getvalue()


@pytest.fixture(scope="module", autouse=True)
def few_draws() -> Iterator[None]:
    """Of a set's items, whose thousand resamples take most of a small bench's time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.studies.bench.judge.DRAWS", 20)
        yield


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_files(tmp_path_factory.mktemp("files"))


@pytest.fixture(scope="module")
def ran(files: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A finished bench, and what it printed."""
    out = tmp_path_factory.mktemp("real") / "out"
    return out, run(settings_for(files), out)


def configs(out: Path) -> dict[str, dict[str, Any]]:
    """The settings of each run of `adapt` by its folder's name."""
    found = {}
    for path in (out / "runs").rglob("seed-0/stage-1/config.json"):
        method, arm = path.relative_to(out / "runs").parts[:2]
        found[f"{method}-{arm}"] = read_json(path)["config"]
    return found


def test_every_arm_is_read_on_every_set_before_and_after(ran: tuple[Path, str]) -> None:
    out, said = ran
    bench = read_json(out / "bench.json")
    arms = Counter((one["method"], one["arm"]) for one in bench["runs"])
    assert arms == {
        ("", "before"): 1,
        **{(name, arm): 1 for name in bench["methods"] for arm in ("method", "shuffled images")},
        ("", "text control"): 2,  # the corpus, and the captions
    }
    names = {
        "vicomte/color, fill-mask": True,
        "vicomte/color, linear": True,
        "rated, last layer": True,
        "similar": False,
    }
    for one in bench["runs"]:
        assert {name: read["gain"] for name, read in one["readings"].items()} == names
        assert all(np.isfinite(read["test"]) for read in one["readings"].values())
        assert "items" not in one["readings"]["vicomte/color, linear"]
    assert [one["reading"] for one in bench["verdicts"] if one["gain"]] == list(names)[:3] * 2
    assert "contrastive: no verdict with 1 adaptation seed, at least 3 are needed" in said
    assert said.startswith("note: a verdict needs 3 adaptation seeds; with 1 there is none\n")
    assert RealBenchConfig().adapt_seeds == 3
    assert "  lexi_contrastive: shuffled images" in said and "\nguessing  " in said
    assert (
        re.search(r"^before +\d\.\d\d\d", said, re.MULTILINE)
        and "\nCost to language skills\n" in said
    )
    page = (out / "report.html").read_text()
    for words in (
        "Cost to language skills, differences",
        "captions with each other&#39;s images",
        "no setting is",
    ):
        assert words in page


def test_controls_read_the_same_texts_with_one_thing_replaced(ran, files):
    out, _ = ran
    found = configs(out)
    handed = out / "handed"
    own = found["lexi_contrastive-method"]
    shuffled = found["lexi_contrastive-shuffled-images"]
    assert own["text"] == [str(handed / "captions.json")]
    assert shuffled["text"] == [str(handed / "shuffled" / "captions.json")]
    assert own["teacher"] == shuffled["teacher"] == str(files / "teacher")
    assert own["teacher_images"] == str(files / "images")
    taught = found["contrastive-method"]
    permuted = found["contrastive-shuffled-images"]
    assert taught["text"] == permuted["text"] == [str(handed / "corpus.txt")]
    assert taught["teacher"] == str(files / "teacher")
    assert permuted["teacher"] == str(handed / "teacher-permuted")
    texts = [one["text"] for name, one in found.items() if name.startswith("text-control")]
    assert sorted(texts) == sorted([own["text"], taught["text"]])
    captions = read_json(handed / "captions.json")
    exchanged = read_json(handed / "shuffled" / "captions.json")
    assert captions["annotations"] == exchanged["annotations"]
    both = zip(captions["images"], exchanged["images"], strict=True)
    assert all(one["file_name"] != other["file_name"] for one, other in both)
    lines = (handed / "corpus.txt").read_text().splitlines()
    assert sorted(lines) == sorted(toys.sentences()[:12])


@pytest.mark.parametrize("family", ["clip", "siglip"])
def test_words_of_all_texts_are_permuted_in_any_clip_like_teacher(tmp_path, monkeypatch, family):
    """Those of lines and of captions, no others; the image tower and all other weights stay."""
    monkeypatch.setattr("groundling.studies.bench.handed.LINES", 2)
    teacher = tmp_path / "teacher"
    if family == "clip":
        homes.seeing_clip(teacher)
    else:
        words = toys.siglip_words()
        homes.home(teacher, toys.siglip(words), words)
        CLIPImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(teacher)
    lines, captions = ["a dog", "a cat", "the ball"], ["a red ball", "a blue dog"]
    text = homes.put(tmp_path / "plain.txt", "\n".join(lines) + "\n")
    notes = [{"id": n, "image_id": n, "caption": text} for n, text in enumerate(captions)]
    images = [{"id": n, "file_name": f"{n}.png"} for n in range(2)]
    content = json.dumps({"images": images, "annotations": notes})
    homes.put(tmp_path / "handed/captions.json", content)
    given = {"teacher": teacher, "text": text, "captions": "captions.csv", "images": "images"}
    config = make_settings(RealBenchConfig, **given)
    files = real_files(tmp_path, config)
    permute_teacher(files, config)
    permuted = files.places["teacher-redrawn"]
    (own, tokenizer), (other, again) = (load_clip_text_tower(one) for one in (teacher, permuted))
    assert tokenizer.get_vocab() == again.get_vocab()
    tables = [one.token_embedding.weight.detach() for one in (own, other)]
    rows = tokenizer(lines + captions, add_special_tokens=False)["input_ids"]
    used = {token for row in rows for token in row} - set(tokenizer.all_special_ids)
    assert set((tables[0] != tables[1]).any(1).nonzero().flatten().tolist()) == used
    assert sorted(map(tuple, tables[0].tolist())) == sorted(map(tuple, tables[1].tolist()))
    state = other.state_dict()
    different = [name for name, one in own.state_dict().items() if not one.equal(state[name])]
    assert len(different) == 1 and "token_embedding" in different[0]
    pixels = torch.full((1, 3, 16, 16), 100, dtype=torch.uint8)
    towers = [load_clip_image_tower(one).eval() for one in (teacher, permuted)]
    torch.testing.assert_close(*(tower(pixels) for tower in towers))
    before = homes.digests(permuted)
    (permuted / "tokenizer.json").unlink()  # as after a kill while files were moved
    permute_teacher(files, config)
    assert homes.digests(permuted) == before


def test_words_are_permuted_in_a_sentence_encoder_as_a_teacher(tmp_path: Path) -> None:
    teacher = homes.sentence_encoder(tmp_path / "teacher")
    text = homes.put(tmp_path / "plain.txt", "a dog\na cat\nthe ball\n")
    files = real_files(tmp_path, make_settings(RealBenchConfig, teacher=teacher, text=text))
    permute_teacher(files, make_settings(RealBenchConfig, teacher=teacher, text=text))
    permuted = files.places["teacher-redrawn"]
    states = [load_text_tower(one)[0].state_dict() for one in (teacher, permuted)]
    different = [name for name, one in states[0].items() if not one.equal(states[1][name])]
    assert len(different) == 1 and "word_embeddings" in different[0]
    tables = [sorted(map(tuple, one[different[0]].tolist())) for one in states]
    assert tables[0] == tables[1]


def test_a_set_is_hashed_once(files: Path, tmp_path: Path) -> None:
    sets = {"tasks": ("glue/rte",), "data": files / "glue"}
    config = settings_for(files, plan=True, **sets)
    hashed: Counter[str] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        hash_of = readings.data_hash
        patch.setattr(readings, "data_hash", lambda path: hashed.update([path]) or hash_of(path))
        run(config, tmp_path / "out")
    assert hashed[str(files / "glue")] == 1 and set(hashed.values()) == {1}


def test_a_model_that_is_not_the_encoder_with_other_weights_is_not_read(files, tmp_path):
    words = homes.words()
    config = toys.bert(len(words)).config
    config.num_hidden_layers = 3
    homes.home(tmp_path / "deep", BertForMaskedLM(config), words)
    (reading, *_) = RealBench(
        BenchFolder(tmp_path),
        find_methods(["l1"]),
        settings_for(files),
        [SetReader("words", str(files / "rated.txt"))],
    ).readings(UNADAPTED)
    with pytest.raises(InputError, match="it differs in num_hidden_layers; no verdict"):
        reading.read(tmp_path / "deep", tmp_path / "out")


@pytest.mark.parametrize("cpu", [True, False])
def test_commands_that_read_run_where_the_bench_runs(files, tmp_path, cpu):
    given: list[tuple[str, bool]] = []

    def recorded(name: str, *_: Any, **settings: Any) -> None:
        given.append((name, settings["cpu"]))
        raise InputError("not run")

    config = settings_for(files, minimal_pairs=(files / "pairs.csv",), retention_pairs="", cpu=cpu)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readings, "run_quietly", recorded)
        for reader in set_readers(config):
            with pytest.raises(InputError, match="not run"):
                reader.read(files / "encoder", tmp_path, files / "encoder", cpu)
    assert given == [(name, cpu) for name in ("probe-facts", "probe-words", "pairs")]


def test_a_permuted_teacher_is_made_by_one_command_of_several(tmp_path: Path) -> None:
    jobs = bench_of(tmp_path, ["contrastive", "lexi_contrastive"], 1).jobs()
    after = {job.name: job.after for job in jobs}
    assert after["contrastive, shuffled images, seed 0"] == ("permuted teacher",)
    assert after["contrastive, method, seed 0"] == ()
    assert after["lexi_contrastive, shuffled images, seed 0"] == after["permuted teacher"] == ()


@pytest.mark.parametrize("count", [2, 8, 9, 17, 30])
def test_tokens_move_within_bands_of_similar_frequency(count: int) -> None:
    counts = Counter({token: 1000 - token for token in range(count)})
    moved = permute_tokens(counts)
    assert sorted(moved) == sorted(moved.values()) == list(range(count))
    assert all(one != other for one, other in moved.items())
    assert all(abs(one - other) <= 8 for one, other in moved.items())


def test_a_dry_run_counts_jobs_and_writes_nothing(files: Path, tmp_path: Path) -> None:
    said = BENCH_REAL.rehearse([settings_for(files), tmp_path / "out"])
    assert said["dry_run"] == "28 jobs" and said["read"]["captions"] == 12
    assert not (tmp_path / "out").exists()


def test_a_bench_resumes_does_only_what_is_missing_and_plans_more_sets(ran, files, capsys):
    out, _ = ran
    before = homes.digests(out / "jobs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.training.fit.train", never)
        assert "contrastive" in run(settings_for(files), out)
        assert homes.digests(out / "jobs") == before
        plan = run(settings_for(files, plan=True), out)
        assert "21 of 21 jobs are done" in re.sub(r"\b(\d+) of \1 jobs", "21 of 21 jobs", plan)
        more = (files / "vicomte/distributions/color-dist.jsonl", files / "colors.jsonl")
        plan = run(settings_for(files, plan=True, facts=more), out)
        assert len(re.findall(r"^missing  .*: facts ", plan, re.MULTILINE)) == 7
        assert "lexi_contrastive (captions with images): mlm+lexi_contrastive on captions" in plan
    with pytest.raises(InputError, match=r"holds another run \(config.steps: 2 there, 3 now\)"):
        BENCH_REAL(settings_for(files, steps=3), out)


@pytest.mark.parametrize(("depth", "read"), [(6, 4), (3, 3)])
def test_vokenization_reads_the_last_four_layers_of_a_real_encoder(files, tmp_path, depth, read):
    words = homes.words()
    config = toys.bert(len(words)).config
    config.num_hidden_layers = depth
    homes.home(tmp_path / "deep", BertForMaskedLM(config), words)
    given = {"student": tmp_path / "deep", "method": ("vokenization",), "plan": True}
    planned: list[RealBench] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealBench, "print_plan", lambda own: planned.append(own) or {})
        run(settings_for(files, **given), tmp_path / "out")
    assert planned[0].methods[0].stages[0].settings == {"vokenizer_layers": read}


def test_a_plan_says_what_is_handed_over_and_read(files: Path, tmp_path: Path) -> None:
    missing = homes.put(tmp_path / "captions.csv", (files / "captions.csv").read_bytes())
    homes.put(missing, missing.read_bytes() + b"none.png,a dog\n")
    sets = {"minimal_pairs": (files / "pairs.csv",), "tasks": ("glue/rte",), "data": files / "glue"}
    config = settings_for(files, plan=True, captions=missing, skip_missing=True, **sets)
    out = tmp_path / "new"
    plan = run(config, out)
    assert not out.exists()
    for words in (
        "12 captions of 6 images; text: the captions without their images",
        "missing  before: glue/rte ",
        "0 of 42 jobs are done\n",
        "note: 1 captioned images are missing and were skipped",
    ):
        assert words in plan, plan


@pytest.mark.parametrize(
    ("left_out", "missing"), [("lexi_contrastive-shuffled*", 4), ("[lc]*", 16), ("*", 22)]
)
def test_a_report_runs_nothing_and_says_what_is_missing(ran, files, tmp_path, left_out, missing):
    """A part of the jobs is there, those of the unadapted encoder and of text controls alone, or none."""
    out = tmp_path / "out"
    homes.put(out / "config.json", (ran[0] / "config.json").read_bytes())
    for path in set((ran[0] / "jobs").glob("*.json")) - set((ran[0] / "jobs").glob(left_out)):
        homes.put(out / "jobs" / path.name, path.read_bytes())
    before = homes.digests(out)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.training.fit.train", never)
        if left_out == "*":
            with pytest.raises(InputError, match="nothing is finished yet"):
                run(settings_for(files, report=True), out)
            return
        said = run(settings_for(files, report=True), out)
    after = homes.digests(out)
    assert {name: after[name] for name in before} == before
    assert after.keys() - before == {"bench.json", "report.html"}
    assert re.search(rf"note: not done yet: {missing} jobs of this bench", said), said
    assert re.search(r"^before +\d", said, re.MULTILINE)


def test_every_price_is_read(files: Path, tmp_path: Path) -> None:
    config = settings_for(
        files,
        method=("contrastive",),
        text=files / "plain.txt",
        **{"captions": "", "images": "", "facts": (), "retention_pairs": ""},
        minimal_pairs=(files / "pairs.csv",),
        **{"tasks": ("glue/rte",), "data": files / "glue", "task_seeds": 1, "limit_train": 32},
    )
    said = run(config, tmp_path / "out")
    runs = read_json(tmp_path / "out/bench.json")["runs"]
    assert list(runs[0]["readings"]) == ["rated, last layer", "minimal pairs pairs", "glue/rte"]
    assert runs[0]["readings"]["glue/rte"]["measure"] == "accuracy" and "glue/rte" in said
    texts = configs(tmp_path / "out")["contrastive-method"]["text"]
    assert texts == [str(files / "plain.txt")]


def test_an_encoder_without_a_head_is_read_without_it(files: Path, tmp_path: Path) -> None:
    config = settings_for(
        files,
        student=files / "headless",
        modes=("linear",),
        method=("l1",),
        retention_pairs="",
        words=(),
    )
    said = run(config, tmp_path / "out")
    assert "has no masked-LM head; methods and controls that train masked LM start" in said
    with pytest.raises(InputError, match="no masked-LM head of this encoder is saved there"):
        run(settings_for(files, student=files / "headless"), tmp_path / "other")


def test_weights_are_chosen_on_one_half_of_the_nouns_for_method_and_controls(files, tmp_path):
    """On a sentence encoder, from vectors alone: no masked LM is added, and how much is retained is chosen."""
    names = [f"{number}.png" for number in range(6)]
    (tmp_path / "vectors").mkdir()
    write_vectors(
        tmp_path / "vectors/images.npy", names, list(np.random.default_rng(0).normal(size=(6, 8)))
    )
    config = settings_for(
        files,
        student=homes.sentence_encoder(tmp_path / "student"),
        teacher=f"vectors:{tmp_path / 'vectors'}",
        images="",
        **{"method": ("caption_to_image",), "modes": ("linear",), "words": (), "tune": True},
    )
    said = run(config, tmp_path / "out")
    assert "no masked-LM head: methods leave it out" in said
    bench = read_json(tmp_path / "out/bench.json")
    assert {one["seed"] for one in bench["runs"]} == {0}
    for arm in (METHOD, TEXT_CONTROL, SHUFFLED):
        found = bench["weights"][arm]["caption_to_image"]
        assert [value for value, _ in found["scores"]] == [0.0, 1.0, 10.0]
        assert found["chosen"] == max(found["scores"], key=lambda pair: pair[1])[0]
        (own,) = (one for one in bench["runs"] if one["arm"] == arm)
        assert own["weight"] == found["chosen"]
    trained = {
        (one["arm"], one["masked_lm"], one["retain_weight"])
        for one in (
            read_json(path)["config"]
            for path in (tmp_path / "out/runs").rglob("stage-1/config.json")
        )
    }
    assert {arm for arm, *_ in trained} == {"mlm+caption_to_image", "simcse"}
    assert {masked for arm, masked, _ in trained if arm != "simcse"} == {False}
    assert {retained for *_, retained in trained} == {0.0, 1.0, 10.0}
    before = read_object(next((tmp_path / "out/jobs").glob("before-facts*.json")))
    (reading,) = before["readings"].values()
    assert set(reading["groups"]) < set(NOUNS) and "choice" in reading
    assert not any(readings._is_for_choice(noun) for noun in reading["groups"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"facts": ("captions.csv",)},
            "captions.csv: columns are image, caption; expected those of",
        ),
        ({"retention_pairs": "pairs.csv"}, "line 1: expected text<TAB>text<TAB>number"),
        ({"words": ("colors.jsonl",)}, "colors.jsonl"),
        ({"minimal_pairs": ("colors.jsonl",)}, "colors.jsonl: fields are"),
        ({"facts": ("{}/coda/annotations.jsonl",)}, r"coda.templates.yaml: no such file"),
        ({"tasks": ("glue/rte",), "data": "half"}, "dev.tsv: "),
        (
            {"method": ("vokenization",), "teacher": "vectors:{}/vectors", "images": ""},
            "vectors: no vector of the image '2.png'",
        ),
        (
            {"method": ("vokenization",), "teacher": "vectors:{}/glue", "images": ""},
            "glue: no vectors of images",
        ),
        (
            {"method": ("vokenization",), "teacher": "my.module:Teacher"},
            r"vokenization: vokens need a teacher that is not my\.module:Teacher",
        ),
        ({"images": "glue"}, "6 of 6 captioned images are missing, the first is 0.png"),
        ({"images": "nowhere"}, "images=.*nowhere: no such file or folder"),
        ({"student": "nowhere"}, "student: .*nowhere: no model found"),
        (
            {"method": ("caption_to_image", "l1"), "teacher": "encoder"},
            "encoder: lacks an image tower, for caption_to_image; --method l1 does without",
        ),
        (
            {"method": ("xdbert", "l1"), "teacher": "encoder"},
            "encoder: lacks a text tower of CLIP's kind, for xdbert; --method l1 does without",
        ),
        ({"modes": ("lineal",)}, "modes = 'lineal': expected 'fill-mask'"),
        ({"teacher": ""}, "method=contrastive: learns from a CLIP-like teacher; pass teacher"),
        ({"teacher": "vectors:captions.csv"}, "no such folder|lacks a text tower"),
        ({"captions": "", "images": "", "text": "plain.txt"}, "lexi_contrastive: reads captions"),
        ({"captions": ""}, "bench-real needs text, or captions"),
        ({"facts": (), "words": ()}, "bench-real needs facts or words"),
        ({"modes": ()}, "bench-real needs modes"),
        ({"batch": 64}, "captions.csv: 12 samples are fewer than one batch of 64"),
        (
            {"text": "plain.txt", "batch": 13, "captions": "", "images": "", "method": ("l1",)},
            "plain.txt: 12 samples are fewer than one batch of 13",
        ),
        ({"student": ""}, "bench-real needs student"),
        ({"tasks": ("glue/rte",)}, "bench-real needs data"),
        ({"method": ("guess",)}, "no bench method is called 'guess'"),
        ({"method": ("frozen_probe",)}, "frozen_probe: does not change the encoder"),
        ({"lr": 0}, "lr = 0: expected "),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_trained(files, tmp_path, changes, message):
    names = {path.name for path in files.iterdir()} | {"nowhere"}

    def placed(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(placed(one) for one in value)
        if isinstance(value, str) and "{}" in value:
            return value.format(files)
        return str(files / value) if value in names else value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.training.fit.train", never)
        own = {name: placed(value) for name, value in changes.items()}
        with pytest.raises(InputError, match=message) as caught:
            run(settings_for(files, **own), tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out/jobs").exists(), "before the encoder is read"


def test_facts_with_one_right_answer_are_read_by_accuracy(files: Path, tmp_path: Path) -> None:
    """ViComTe's pairs, whose set is measured by Spearman in its paper, as its distributions are."""
    colours = ["red", "blue", "green", "red", "blue"]
    pairs = [
        {"sub": noun, "obj": colour, "alt": "black"}
        for noun, colour in zip(NOUNS, colours, strict=False)
    ]
    source = homes.lines(tmp_path / "db/color/test.jsonl", *pairs)
    reader = SetReader("facts", str(source), (("modes", ("fill-mask", "linear")),))
    found = reader.read(files / "encoder", tmp_path / "read", files / "encoder", cpu=True)
    assert {name: one["measure"] for name, one in found.items()} == {
        "vicomte/color, fill-mask": "accuracy",
        "vicomte/color, linear": DEVIATIONS,
    }
    assert found["vicomte/color, fill-mask"]["chance"] == pytest.approx(1 / 12)
    alike = homes.lines(
        tmp_path / "alike/color/test.jsonl", *[one | {"obj": "red"} for one in pairs]
    )
    reader = SetReader("facts", str(alike), (("modes", ("linear",)),))
    with pytest.raises(InputError, match="undefined for every fact of vicomte/color, linear"):
        reader.read(files / "encoder", tmp_path / "none", files / "encoder", cpu=True)


def test_one_set_from_two_files_is_refused(files: Path, tmp_path: Path) -> None:
    again = tmp_path / "again/distributions/color-dist.jsonl"
    source = files / "vicomte/distributions/color-dist.jsonl"
    homes.put(again, source.read_text().replace("[0,", "[1,"))
    config = settings_for(
        files, facts=(source, again), words=(), retention_pairs="", method=("l1",)
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.training.fit.train", never)
        with pytest.raises(InputError, match="two files hold vicomte/color, fill-mask"):
            run(config, tmp_path / "out")


# -- a folder of several commands, with jobs' files made by hand ------------------------------------------------------
VALUES = {BEFORE: 0.1, TEXT_CONTROL: 0.2, SHUFFLED: 0.3, METHOD: 0.5}
COST = {
    **{"steps": 2, "samples": 8, "epochs": 0.1, "seconds": 1.5, "extra_parameters": 0},
    "core_seconds": 1.0,
}


def bench_of(root: Path, methods: Sequence[str], seeds: int = 3) -> RealBench:
    config = make_settings(RealBenchConfig, student="-", method=methods, adapt_seeds=seeds)
    return RealBench(BenchFolder(root), find_methods(methods), config, [])


def put_job(root: Path, name: str, arm: Arm, **more: Any) -> None:
    job = {"key": "k", "name": arm.name, "run": arm.as_json()} | more
    homes.put(BenchFolder(root).job(name), json.dumps(job))


def put_command(
    root: Path, methods: Sequence[str], set_name: str, seeds: int = 3, nouns: str = "abc"
) -> None:
    """What a finished command leaves in `jobs/`."""
    own = bench_of(root, methods, seeds)
    kind = set_name.split()[0]
    for arm in own.arms():
        value = VALUES[arm.arm] + 0.01 * arm.seed * (arm.arm == METHOD)
        items = {"groups": list(nouns), "items": [value] * len(nouns)}
        reading = {"test": value, "gain": True, "measure": "accuracy", "set": kind, **items}
        readings = {kind: reading | {"same_items": []}}
        more = {"reading": set_name, "readings": readings}
        put_job(root, f"{arm.name}: {set_name}", arm, **more)
        if arm.method is not None:
            about = None if arm.arm == TEXT_CONTROL else arm.method.description()
            trained = {"about": about, "control": "", "weight": None, "model": {}, "cost": COST}
            put_job(root, arm.name, arm, **trained)


def judged(root: Path, methods: Sequence[str]) -> dict[str, Any]:
    own = bench_of(root, methods)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RealBench, "missing", lambda self: [])
        patch.setattr(RealBench, "readings", lambda self, arm: [])
        return own.conclude({"captions": 1, "images": 1, "missing": 0}, [])


def test_methods_of_earlier_commands_count_in_the_correction(tmp_path, capsys):
    put_command(tmp_path, ["contrastive"], "words x 111111")
    (alone,) = judged(tmp_path, ["contrastive"])["verdicts"]
    put_command(tmp_path, ["l1"], "words x 111111")
    bench = judged(tmp_path, ["l1"])
    assert list(bench["methods"]) == ["l1", "contrastive"]
    assert [one["holm"] for one in bench["verdicts"]] == pytest.approx([2 * alone["holm"]] * 2)
    said = capsys.readouterr().out
    assert "Holm over 2 tests" in said
    both = judged(tmp_path, ["contrastive", "l1"])["verdicts"]
    assert sorted(map(str, both)) == sorted(map(str, bench["verdicts"]))


def test_sets_and_seeds_of_earlier_commands_are_kept(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    put_command(tmp_path, ["contrastive"], "facts y 222222", seeds=1)
    found = judged(tmp_path, ["contrastive"])
    seeds = {one["reading"]: one["text"]["units"] for one in found["verdicts"]}
    assert seeds == {"words": (0, 1, 2), "facts": (0,)}
    page = (tmp_path / "report.html").read_text()
    assert "contrastive: beyond its text control and shuffled images on words" in page


def test_arms_that_read_another_version_of_a_set_are_not_compared(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 222222")
    put_command(tmp_path, ["contrastive"], "words x 333333")  # the same items, in more modes
    assert len(judged(tmp_path, ["contrastive"])["verdicts"]) == 1
    put_command(tmp_path, ["contrastive"], "words x 111111", seeds=1, nouns="ab")
    with pytest.raises(InputError, match="words: arms were read on other items; use another out"):
        judged(tmp_path, ["contrastive"])


def test_an_unfinished_method_is_not_judged(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    put_command(tmp_path, ["l1"], "words x 111111", seeds=1)
    for path in (tmp_path / "jobs").glob("l1-shuffled*"):
        path.unlink()
    verdicts = judged(tmp_path, ["contrastive"])["verdicts"]
    assert {one["method"] for one in verdicts} == {"contrastive"}


def test_two_versions_of_a_method_are_not_mixed(tmp_path: Path) -> None:
    put_command(tmp_path, ["contrastive"], "words x 111111")
    path = BenchFolder(tmp_path).job("contrastive, method, seed 1")
    job = read_json(path)
    homes.put(path, json.dumps(job | {"about": job["about"] | {"steps": 7}}))
    with pytest.raises(InputError, match="seed 1: of another version of the method"):
        judged(tmp_path, ["contrastive"])
