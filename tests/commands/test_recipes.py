"""Whole runs on a tiny rendered world: what they write, that they go on, and that arms differ in their arm alone."""

import json
import re
import threading
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

import homes
import pytest
import torch
from homes import STEPS, Counting, Killed, digests, dying, log_of, never, put, rte, training_with
from safetensors.torch import load_file
from toys import sentences
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForPreTraining, CLIPModel

from groundling.checks.names import arm_of
from groundling.cli import main
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt import run as adapting
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune import run as tuning
from groundling.commands.finetune.result import summary
from groundling.commands.teach import COMMAND as teach
from groundling.commands.teach import TeachConfig
from groundling.commands.teach import run as teaching
from groundling.core.errors import InputError
from groundling.runs.jobs import Job, run_jobs
from groundling.settings.fields import changed, configured
from groundling.studies.worlds.commands import PROBE as probe
from groundling.studies.worlds.commands import ProbeConfig, WorldConfig
from groundling.studies.worlds.world import World
from groundling.tasks.glue import STSB
from groundling.teachers.taught import Taught
from groundling.training.loop import train

TINY = {
    "size": 32,
    "patch": 16,
    "vision": (32, 1),
    "text": (32, 1),
    "projection": 16,
    "vocabulary": 560,
    "window": 20,
}
TERMS = {
    "mlm": {"mlm"},
    "xdbert": {"mlm", "match", "clip_tokens"},
    "l1": {"mlm", "l1_sentence", "l1_word"},
    "contrastive": {"mlm", "contrastive_sentence", "contrastive_word"},
    "xdbert+contrastive": {
        "mlm",
        "match",
        "clip_tokens",
        "contrastive_sentence",
        "contrastive_word",
    },
}


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    World(
        WorldConfig(
            nouns=24,
            dev_nouns=6,
            test_nouns=8,
            scenes=40,
            dev_scenes=10,
            sentences=80,
            dev_sentences=10,
            blind=False,
        )
    ).write(folder)
    return folder


@pytest.fixture(scope="session")
def teaching_config(world: Path) -> TeachConfig:
    return TeachConfig(
        captions=str(world / "captions_train.json"),
        images=str(world / "images"),
        eval_captions=str(world / "captions_dev.json"),
        **TINY,
    )


@pytest.fixture(scope="session")
def taught(
    teaching_config: TeachConfig, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, dict]:
    """A teacher's run folder and result."""
    out = tmp_path_factory.mktemp("teacher")
    return out, teach(teaching_config, replace(STEPS, steps=2), out)


@pytest.fixture(scope="session")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return homes.student(tmp_path_factory.mktemp("encoder"))


@pytest.fixture(scope="session")
def settings(world: Path, taught: tuple[Path, dict], encoder: Path) -> AdaptConfig:
    text = str(world / "corpus" / "train.txt")
    return configured(
        AdaptConfig,
        student=str(encoder),
        teacher=str(taught[0] / "model"),
        text=(text,),
        max_length=64,
        form="lines",
    )


@pytest.fixture(scope="session")
def adapted(
    settings: AdaptConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict]]:
    """Run folder and result of every arm."""
    root = tmp_path_factory.mktemp("arms")
    return {
        arm: (root / arm, adapt(changed(settings, arm=arm), STEPS, root / arm)) for arm in TERMS
    }


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rte(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="session")
def tune(encoder: Path, glue: Path) -> FinetuneConfig:
    return configured(
        FinetuneConfig, model=str(encoder), task="glue/rte", data=str(glue), max_length=64
    )


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


# -- teach -----------------------------------------------------------------------------------------------------------


def test_teach_writes_a_stock_clip(taught: tuple[Path, dict]) -> None:
    out, result = taught
    assert (result["steps"], result["images"], result["missing_images"], result["samples"]) == (
        2,
        40,
        0,
        40,
    )
    model = CLIPModel.from_pretrained(out / "model")
    assert sum(p.numel() for p in model.parameters()) == result["parameters"]
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    words = tokenizer(["there is a red thing .", "a"], padding=True, return_tensors="pt")
    features = model.get_text_features(**words).pooler_output
    assert features.shape == (2, 16) and torch.isfinite(features).all()
    assert (
        model.config.text_config.max_position_embeddings,
        model.config.vision_config.image_size,
    ) == (20, 32)
    assert len(tokenizer) <= 560
    assert json.loads((out / "result.json").read_text()) == result
    assert not (out / "checkpoints").exists()


def test_teach_reports_retrieval(taught: tuple[Path, dict]) -> None:
    found = taught[1]["retrieval"]
    ways = [f"{way}_r@{k}" for way in ("text_to_image", "image_to_text") for k in (1, 5, 10)]
    assert list(found) == ["images", "captions", *ways, "mean_recall"]
    assert found["mean_recall"] == pytest.approx(sum(found[way] for way in ways) / 6, abs=0.01)
    assert (found["images"], found["captions"]) == (10, 20)
    for way in ("text_to_image", "image_to_text"):
        assert 0 <= found[f"{way}_r@1"] <= found[f"{way}_r@5"] <= found[f"{way}_r@10"] <= 100
    assert found["text_to_image_r@10"] == 100  # of ten images


def test_an_untrained_teacher_is_the_one_training_starts_from(
    teaching_config: TeachConfig,
    taught: tuple[Path, dict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(teaching, "train", never)
    result = teach(
        replace(teaching_config, untrained=True), replace(STEPS, steps=2), tmp_path / "out"
    )
    assert "steps" not in result
    assert result["retrieval"]["captions"] == 20
    before = weights(CLIPModel.from_pretrained(tmp_path / "out" / "model"))
    after = weights(CLIPModel.from_pretrained(taught[0] / "model"))
    assert before.keys() == after.keys()
    moved = {
        k: (after[k] - before[k]).abs().max().item()
        for k in before
        if before[k].is_floating_point()
    }
    assert 0 < max(moved.values()) < 0.01  # two steps at a rate of 1e-3
    for name in ("model/tokenizer.json", "model/tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (taught[0] / name).read_bytes()


def test_e10_a_kill_while_the_tokenizer_is_written_leaves_a_folder_to_go_on_with(
    teaching_config: TeachConfig,
    taught: tuple[Path, dict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Half:
        def save_pretrained(self, folder: Path) -> None:
            put(folder / "tokenizer_config.json", "{}")
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(teaching, "clip_tokenizer", lambda *_: Half())
        with pytest.raises(Killed):
            teach(teaching_config, replace(STEPS, steps=2), tmp_path / "out")
    assert not (tmp_path / "out" / "prepared" / "tokenizer").exists()
    teach(teaching_config, replace(STEPS, steps=2), tmp_path / "out")
    assert digests(tmp_path / "out" / "model") == digests(taught[0] / "model")
    assert not list((tmp_path / "out").rglob("*partial"))


def test_teach_keeps_to_its_listings(teaching_config: TeachConfig, tmp_path: Path) -> None:
    images = [
        image["file_name"]
        for image in json.loads(Path(teaching_config.captions).read_text())["images"]
    ]
    config = replace(
        teaching_config,
        listing=str(put(tmp_path / "train.txt", "\n".join(images[:24]))),
        eval_listing=str(put(tmp_path / "test.txt", "\n".join(images[24:31]))),
        eval_captions="",
    )
    result = teach(config, replace(STEPS, steps=1), tmp_path / "out")
    assert (result["images"], result["samples"]) == (24, 24)
    assert (result["retrieval"]["images"], result["retrieval"]["captions"]) == (7, 14)


# -- adapt -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arm", TERMS)
def test_every_arm_gives_back_a_stock_encoder_of_the_same_size(
    arm: str, adapted: dict, encoder: Path
) -> None:
    out, result = adapted[arm]
    student, model = AutoModel.from_pretrained(encoder), AutoModel.from_pretrained(out / "model")
    assert type(model) is type(student)
    sizes = {k: v.shape for k, v in student.state_dict().items()}
    assert {k: v.shape for k, v in model.state_dict().items()} == sizes
    assert result["parameters"] == sum(v.numel() for v in student.parameters())
    changed = [
        k for k, v in model.state_dict().items() if not torch.equal(v, student.state_dict()[k])
    ]
    assert len(changed) > len(sizes) / 2
    assert (
        AutoTokenizer.from_pretrained(out / "model")("a red dog")["input_ids"]
        == homes.words()("a red dog")["input_ids"]
    )
    assert set(result["last"]) == TERMS[arm] | {"loss"}
    assert (result["arm"], result["steps"], result["texts"], result["dropped_pieces"]) == (
        arm,
        3,
        80,
        0,
    )
    assert result["objectives"] == arm_of(arm).names
    assert set(result["heads_from"].values()) == {"new"}
    assert json.loads((out / "result.json").read_text()) == result
    heads = load_file(out / "model" / "groundling_heads.safetensors")
    assert len({key.split(".")[0] for key in heads}) == len(arm_of(arm).names)
    assert [line["step"] for line in log_of(out)] == [1, 2, 3]
    assert not (out / "checkpoints").exists()


@pytest.mark.parametrize("arm", TERMS)
def test_the_card_says_what_was_done(arm: str, adapted: dict, settings: AdaptConfig) -> None:
    out, result = adapted[arm]
    card = (out / "model" / "README.md").read_text()
    assert re.match(
        r"---\nlibrary_name: transformers\ntags: \[groundling, [a-z0-9-]+\]\n---\n# ", card
    )
    assert f"{result['parameters']:,} parameters" in card
    assert f"student: `{settings.student}`" in card
    assert f"teacher: `{settings.teacher}`" in card
    assert f"objectives: {', '.join(arm_of(arm).names)}" in card
    assert "text (80 texts, 0 pieces cut off):\n- `train.txt`" in card
    assert "3 steps of 8, learning rate 0.001, seed 0" in card


def test_the_control_says_that_it_had_no_teacher(
    settings: AdaptConfig, adapted: dict, tmp_path: Path
) -> None:
    adapt(changed(settings, arm="mlm", teacher=""), STEPS, tmp_path / "out")
    assert "teacher: `none (control)`" in (tmp_path / "out" / "model" / "README.md").read_text()
    one, other = (
        load_file(out / "model" / "model.safetensors")
        for out in (tmp_path / "out", adapted["mlm"][0])
    )
    assert all(
        torch.equal(one[k], other[k]) for k in other
    )  # and one that was named and not asked is none


def test_arms_see_the_same_masking_from_the_same_start(adapted: dict) -> None:
    first = {arm: log_of(out)[0] for arm, (out, _) in adapted.items()}
    assert first["mlm"]["mlm"] == first["l1"]["mlm"] == first["contrastive"]["mlm"]
    assert first["xdbert"]["mlm"] == first["xdbert+contrastive"]["mlm"] != first["mlm"]["mlm"]


def test_heads_of_an_earlier_run_go_on(
    adapted: dict, settings: AdaptConfig, tmp_path: Path
) -> None:
    earlier = adapted["contrastive"][0] / "model"
    result = adapt(
        changed(settings, student=str(earlier), arm="contrastive"),
        replace(STEPS, lr=0.0),
        tmp_path / "out",
    )
    assert result["heads_from"]["mlm"] == "an earlier run's"
    one, other = (
        load_file(f / "groundling_heads.safetensors") for f in (earlier, tmp_path / "out" / "model")
    )
    mlm = [key for key in other if key.startswith("masked_lm.")]
    assert len(mlm) > 3
    assert all(torch.equal(one[key], other[key]) for key in mlm)


# A2: the joint head was saved as the encoder's own, which it never was.


def test_the_joint_head_is_not_called_the_encoders_own(adapted: dict) -> None:
    for arm in ("xdbert", "xdbert+contrastive"):
        heads = load_file(adapted[arm][0] / "model" / "groundling_heads.safetensors")
        assert [key for key in heads if key.startswith("joint_masked_lm.head.")]
        assert not [key for key in heads if key.startswith("masked_lm.head.")]
    control = load_file(adapted["mlm"][0] / "model" / "groundling_heads.safetensors")
    assert [key for key in control if key.startswith("masked_lm.head.")]
    assert not [key for key in control if key.startswith("joint_masked_lm.")]


def test_an_encoder_of_xdbert_fills_no_mask(
    adapted: dict, world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    facts = str(world / "probes" / "knowledge.jsonl")
    words = ["ask", "--data", facts, "--modes", "fill-mask"]
    asked = {}
    for arm in ("xdbert", "mlm"):
        model = str(adapted[arm][0] / "model")
        asked[arm] = main([*words, "--model", model, "--out", str(tmp_path / arm)])
        complaint = capsys.readouterr().err
        if arm == "xdbert":
            assert re.fullmatch(
                r"groundling: \S+: no masked-LM head of this encoder's own is saved there; .*\n",
                complaint,
            )
    assert asked == {"xdbert": 2, "mlm": 0}
    assert json.loads((tmp_path / "mlm" / "result.json").read_text())["fill-mask"]["head"] == (
        "an earlier run's"
    )


def test_a_joint_head_goes_on_as_a_joint_head_alone(
    adapted: dict, settings: AdaptConfig, tmp_path: Path
) -> None:
    earlier = adapted["xdbert"][0] / "model"
    still = replace(STEPS, lr=0.0)
    control = adapt(changed(settings, student=str(earlier), arm="mlm"), still, tmp_path / "mlm")
    assert control["heads_from"] == {"mlm": "new"}
    again = adapt(changed(settings, student=str(earlier), arm="xdbert"), still, tmp_path / "again")
    assert again["heads_from"]["joint_mlm"] == "an earlier run's"
    one, other = (
        load_file(folder / "groundling_heads.safetensors")
        for folder in (earlier, tmp_path / "again" / "model")
    )
    joint = [key for key in other if key.startswith("joint_masked_lm.head.")]
    assert len(joint) > 3
    assert all(torch.equal(one[key], other[key]) for key in joint)


def test_a_joint_head_hides_no_head_of_the_checkpoint(
    settings: AdaptConfig, encoder: Path, tmp_path: Path
) -> None:
    model = BertForPreTraining(BertConfig.from_pretrained(encoder))
    student = homes.home(tmp_path / "student", model, homes.words())
    config = changed(settings, student=str(student))
    still = replace(STEPS, lr=0.0, steps=1)
    whole = adapt(changed(config, arm="xdbert"), still, tmp_path / "xdbert")
    assert whole["heads_from"]["joint_mlm"] == "the checkpoint's"
    # the student's own head is handed on; the joint one beside it is not the encoder's
    assert whole["fills_masks"] == "the student's"
    after = changed(config, student=str(tmp_path / "xdbert" / "model"), arm="mlm")
    assert adapt(after, still, tmp_path / "mlm")["heads_from"] == {"mlm": "the checkpoint's"}
    heads = tmp_path / "xdbert" / "model" / "groundling_heads.safetensors"
    heads.rename(student / heads.name)
    beside = adapt(changed(config, arm="mlm"), still, tmp_path / "beside")
    assert beside["heads_from"] == {"mlm": "the checkpoint's"}


@pytest.mark.parametrize("arm", ["l1", "contrastive"])
def test_without_room_for_features_the_teacher_answers_in_every_step(
    arm: str, adapted: dict, settings: AdaptConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Taught, "_read", never)
    online = adapt(changed(settings, arm=arm, cache_gb=0.0), STEPS, tmp_path / "out")
    assert online["samples"] == 80
    cached = log_of(adapted[arm][0])[0]
    first = log_of(tmp_path / "out")[0]
    assert first.keys() == cached.keys()
    assert {k: first[k] for k in TERMS[arm]} == pytest.approx(
        {k: cached[k] for k in TERMS[arm]}, abs=1e-5
    )
    assert not any("teacher" in name for name in digests(tmp_path / "out"))


@pytest.mark.parametrize("arm", ["contrastive", "xdbert"])
def test_a_killed_run_goes_on_to_the_same_weights(
    arm: str, adapted: dict, settings: AdaptConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(adapting, "train", training_with(dying(3)))
        with pytest.raises(Killed):
            adapt(changed(settings, arm=arm), STEPS, out)
    there = sorted(p.name for p in (out / "checkpoints").iterdir())
    assert there == ["step-000000001", "step-000000002"]
    assert not (out / "result.json").exists()

    counted = Counting()
    with monkeypatch.context() as patch:
        patch.setattr(adapting, "train", training_with(counted))
        result = adapt(changed(settings, arm=arm), STEPS, out)
    assert counted.calls == 1
    whole, expected = adapted[arm]
    for name in ("model.safetensors", "groundling_heads.safetensors"):
        one, other = load_file(whole / "model" / name), load_file(out / "model" / name)
        assert one.keys() == other.keys()
        assert [key for key in one if not torch.equal(one[key], other[key])] == []
    assert log_of(out) == log_of(whole)
    assert {k: v for k, v in result.items() if k != "seconds"} == {
        k: v for k, v in expected.items() if k != "seconds"
    }


def test_two_kinds_of_distillation_keep_two_heads(
    settings: AdaptConfig, adapted: dict, tmp_path: Path
) -> None:
    result = adapt(
        changed(settings, arm="l1+contrastive"), replace(STEPS, steps=1), tmp_path / "out"
    )
    assert set(result["last"]) == TERMS["l1"] | TERMS["contrastive"] | {"loss"}
    heads = [
        load_file(out / "model" / "groundling_heads.safetensors")
        for out in (
            tmp_path / "out",
            adapted["l1"][0],
            adapted["contrastive"][0],
            adapted["mlm"][0],
        )
    ]
    both, l1, contrastive, mlm = (sum(v.numel() for v in found.values()) for found in heads)
    assert both == l1 + contrastive - mlm


def test_arms_by_name_and_by_parts() -> None:
    assert arm_of("xdbert").names == ["joint_mlm", "match", "clip_tokens"]
    assert arm_of("xdbert+contrastive").names == [
        "joint_mlm",
        "match",
        "clip_tokens",
        "contrastive",
    ]
    assert arm_of("contrastive+l1").names == ["mlm", "contrastive", "l1"]
    assert arm_of("match").names == ["match"]
    with pytest.raises(InputError, match="'' is none of"):
        arm_of("")


# -- finetune and probe ----------------------------------------------------------------------------------------------


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def tuned(tune: FinetuneConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("tuned")
    return out, finetune(replace(tune, seeds=2, submit=True), replace(STEPS, seed=4), out)


def test_finetune_reports_every_seed_and_the_median(tuned: tuple[Path, dict]) -> None:
    out, result = tuned
    assert (result["task"], result["headline"], result["seeds"]) == ("glue/rte", "accuracy", [4, 5])
    assert list(result["scores"]) == list(result["median"]) == ["dev"]
    each = [json.loads((out / f"seed-{seed}" / "result.json").read_text()) for seed in (4, 5)]
    assert [run["seed"] for run in each] == [4, 5]
    assert result["scores"]["dev"]["accuracy"] == [run["scores"]["dev"]["accuracy"] for run in each]
    assert result["median"]["dev"]["accuracy"] == median(result["scores"]["dev"]["accuracy"])
    constant = [run["seed"] for run in each if "constant" in run["scores"]["dev"]]
    assert result["collapsed_seeds"] == constant
    assert json.loads((out / "result.json").read_text()) == result


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # A6: three collapsed seeds of five once dropped out, and the median was that of the other two
        ([0.9, 0.0, 0.0, 0.87, 0.0], 0.0),
        ([0.9, 0.8, 0.7], 0.8),
        ([0.9, float("nan"), 0.7], None),
        ([float("nan")], None),
    ],
)
def test_no_seed_drops_out_of_a_median(scores: list[float], expected: float | None) -> None:
    runs = []
    for seed, score in enumerate(scores):
        dev = {"pearson": score, "spearman": score} | ({} if score else {"constant": 1.0})
        runs.append({"seed": seed, "scores": {"dev": dev}, "dropped_pieces": 0})
    result = summary(STSB, runs, FinetuneConfig())
    assert result["median"]["dev"]["pearson"] == expected
    assert len(result["scores"]["dev"]["pearson"]) == len(result["seeds"]) == len(scores)
    assert result["collapsed_seeds"] == [n for n, score in enumerate(scores) if score == 0]


def test_a_collapsed_seed_of_stsb_scores_0_and_counts(encoder: Path, tmp_path: Path) -> None:
    # A6, the whole way: with a rate of 0 and a head of zeros, every prediction is the same
    rows = [
        f"{n}\t\t\t\t\t\t\t{text}\tA cat.\t{n % 5}.0" for n, text in enumerate(sentences()[:16])
    ]
    header = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    )
    for split in ("train", "dev"):
        put(tmp_path / "glue" / "STS-B" / f"{split}.tsv", "\n".join([header, *rows]) + "\n")
    config = configured(
        FinetuneConfig, model=str(encoder), task="glue/sts-b", data=str(tmp_path / "glue"), seeds=2
    )
    torch_zero = replace(STEPS, lr=0.0, steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.models.task_heads.answer", silent)
        result = finetune(config, torch_zero, tmp_path / "out")
    assert result["scores"]["dev"]["pearson"] == [0.0, 0.0]
    assert result["median"]["dev"]["pearson"] == 0.0
    assert result["collapsed_seeds"] == [0, 1]


def silent(width: int, outputs: int) -> torch.nn.Linear:
    """A last layer that says the same of everything."""
    linear = torch.nn.Linear(width, outputs)
    for parameter in linear.parameters():
        torch.nn.init.zeros_(parameter)
    return linear


def test_predictions_are_the_scores(tuned: tuple[Path, dict]) -> None:
    out, result = tuned
    outputs = []
    for number, seed in enumerate((4, 5)):
        found = lines(out / f"seed-{seed}" / "predictions_dev.jsonl")
        assert [row["id"] for row in found] == [f"rte-dev-{i}" for i in range(8)]
        assert [row["label"] for row in found] == [1 - i % 2 for i in range(8)]
        for row in found:
            assert row["prediction"] == max((0, 1), key=lambda i: row["outputs"][i])
        right = sum(row["prediction"] == row["label"] for row in found) / 8
        assert right == result["scores"]["dev"]["accuracy"][number]
        outputs.append([row["outputs"] for row in found])
    assert outputs[0] != outputs[1]


def test_submission_is_what_was_predicted(tuned: tuple[Path, dict]) -> None:
    for seed in (4, 5):
        own = tuned[0] / f"seed-{seed}"
        predicted = lines(own / "predictions_test.jsonl")
        names = ("entailment", "not_entailment")
        expected = [f"{i}\t{names[row['prediction']]}" for i, row in enumerate(predicted)]
        assert (own / "RTE.tsv").read_text().splitlines() == ["index\tprediction", *expected]
        assert len(expected) == 5
        assert {row["label"] for row in predicted} == {None}


def test_seeds_can_be_added(
    tune: FinetuneConfig, tuned: tuple[Path, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, training, drawn = tmp_path / "out", replace(STEPS, seed=4), []
    config = replace(tune, submit=True)
    assert finetune(config, training, out)["seeds"] == [4]

    def counted(
        model: object,
        objectives: object,
        data: object,
        config: object,
        *rest: object,
        **options: object,
    ) -> dict:
        drawn.append(config.seed)
        return train(model, objectives, data, config, *rest, **options)

    monkeypatch.setattr(tuning, "train", counted)
    before = digests(out / "seed-4")
    result = finetune(changed(config, seeds=2), training, out)
    assert drawn == [5]
    assert digests(out / "seed-4") == before
    assert result == tuned[1]
    assert finetune(changed(config, seeds=2), training, out) == result
    assert drawn == [5]


def test_finetune_keeps_what_it_trained_unless_told_not_to(
    tune: FinetuneConfig, tuned: tuple[Path, dict], encoder: Path, tmp_path: Path
) -> None:
    assert (tuned[0] / "seed-4" / "model").exists()
    finetune(replace(tune, save_model=False, max_train=9), STEPS, tmp_path / "none")
    assert not (tmp_path / "none" / "seed-0" / "model").exists()
    result = finetune(replace(tune, max_train=9), STEPS, tmp_path / "out")
    folder = tmp_path / "out" / "seed-0"
    assert json.loads((folder / "result.json").read_text())["samples"] == 9
    assert result["seeds"] == [0]
    model = AutoModel.from_pretrained(folder / "model")
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in AutoModel.from_pretrained(encoder).parameters()
    )
    assert load_file(folder / "model" / "groundling_heads.safetensors")


def test_probe_asks_every_question_of_unseen_nouns(
    adapted: dict, world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ProbeConfig(model=str(adapted["contrastive"][0] / "model"), data=str(world), seeds=2)
    before = digests(Path(config.model))
    result = probe(config, replace(STEPS, steps=2), tmp_path / "out")
    linear = {f"linear/{column}" for column in ("colour", "shape", "size", "texture", "category")}
    asked = {f"world/{name}" for name in ("truth", "odd", "category", "order")}
    assert set(result) == linear | asked | {"readout/odd"}
    for name, scores in result.items():
        if not name.startswith("world/"):
            assert set(scores) == {"dev", "test", "chance"}, name
            assert all(0 <= value <= 1 for value in scores.values())
            continue
        assert scores["chance"] == 0.5
        assert scores["seeds"] == [0, 1]
        for number, seed in enumerate(scores["seeds"]):
            own = tmp_path / "out" / name.removeprefix("world/") / f"seed-{seed}"
            for split in ("dev", "test"):
                rows = lines(own / f"predictions_{split}.jsonl")
                table = world / "probes" / f"{own.parent.name}_{split}.tsv"
                labels = [row.split("\t")[2] for row in table.read_text().splitlines()[1:]]
                assert [row["label"] for row in rows] == [float(label) for label in labels]
                right = sum(r["prediction"] == r["label"] for r in rows) / len(rows)
                assert right == pytest.approx(scores["scores"][split][number])
    assert digests(Path(config.model)) == before
    monkeypatch.setattr(tuning, "train", never)
    assert probe(config, replace(STEPS, steps=2), tmp_path / "out") == result


# -- jobs -------------------------------------------------------------------------------------------------------------


def test_jobs_run_in_processes_in_order_and_the_first_mistake_is_named(tmp_path: Path) -> None:
    path, said = str(tmp_path / "order"), []
    jobs = [
        Job("late", homes.note, (path, "late"), after=("second", "first")),
        Job("first", homes.note, (path, "first")),
        Job("second", homes.note, (path, "second")),
        Job("wrong", homes.refuse, ("x.txt: no such file",), after=("late",)),
        Job("never", homes.note, (path, "never"), after=("wrong",)),
    ]
    with pytest.raises(InputError, match=r"^wrong: x.txt: no such file$"):
        run_jobs(jobs, 1, said.append)
    assert Path(path).read_text().split() == ["first", "second", "late"]
    assert [line.split(":")[0] for line in said] == ["first", "second", "late"]


@pytest.mark.usefixtures("in_process")
@pytest.mark.parametrize("processes", [1, 3])
def test_jobs_give_results_by_name(processes: int, tmp_path: Path) -> None:
    path = str(tmp_path / "order")
    jobs = [
        Job(name, homes.note, (path, name), after=after)
        for name, after in (("c", ("b",)), ("a", ()), ("b", ()))
    ]
    assert run_jobs(jobs, processes, lambda _: None) == {"a": "a", "b": "b", "c": "c"}
    order = Path(path).read_text().split()
    assert order.index("b") < order.index("c")  # `a` may come anywhere
    with pytest.raises(ValueError, match=r"names that do not exist: \['x'\]"):
        run_jobs([Job("x", homes.note, (path, "x"), after=("nothing",))], processes, lambda _: None)


def thread_after_a_while() -> int:
    time.sleep(0.05)
    return threading.get_ident()


@pytest.mark.usefixtures("in_process")
def test_jobs_in_this_process_run_one_at_a_time() -> None:
    jobs = [Job(name, thread_after_a_while, ()) for name in ("a", "b")]
    results = run_jobs(jobs, 2, lambda _: None)
    assert results["a"] == results["b"]
