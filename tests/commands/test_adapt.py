"""`adapt` on a tiny rendered world: what each arm writes, that it goes on, that arms differ in their arm alone."""

from __future__ import annotations

import json
import math
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, digests, log_of, never
from transformers import AutoModel, AutoTokenizer, BertConfig, BertForPreTraining

from groundling.command_line.names import parse_arm
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.adapt.run import guessing_notes
from groundling.core.batch import OutputSizes
from groundling.core.errors import InputError
from groundling.objectives.mcse import SimCSE
from groundling.settings.fields import make_settings, replace_settings
from groundling.teachers.feature_cache import TeacherDataset
from groundling.training.batch_sampler import DataSource

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
def settings(world: Path, taught: tuple[Path, dict], encoder: Path) -> AdaptConfig:
    text = str(world / "corpus" / "train.txt")
    return make_settings(
        AdaptConfig,
        student=str(encoder),
        teacher=str(taught[0] / "model"),
        text=(text,),
        max_length=64,
        text_layout="lines",
    )


@pytest.fixture(scope="session")
def adapted(settings, tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    """Run folder and result of every arm."""
    root = tmp_path_factory.mktemp("arms")
    return {
        arm: (root / arm, adapt(replace_settings(settings, arm=arm), STEPS, root / arm))
        for arm in TERMS
    }


@pytest.mark.parametrize("arm", TERMS)
def test_every_arm_gives_back_a_stock_encoder_of_the_same_size(arm, adapted, encoder):
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
    assert set(result["train_metrics"]) == TERMS[arm] | {"loss"}
    assert (result["arm"], result["steps"]) == (arm, 3)
    assert (result["texts"], result["truncated_tokens"]) == (80, 0)
    assert result["objectives"] == list(parse_arm(arm))
    assert set(result["heads_from"].values()) == {"new"}
    assert json.loads((out / "result.json").read_text()) == result
    heads = load_file(out / "model" / "groundling_heads.safetensors")
    assert len({key.split(".")[0] for key in heads}) == len(parse_arm(arm))
    assert [line["step"] for line in log_of(out)] == [1, 2, 3]
    assert not (out / "checkpoints").exists()


def test_the_card_says_what_was_done(adapted: dict, settings: AdaptConfig) -> None:
    arm = "xdbert+contrastive"
    out, result = adapted[arm]
    card = (out / "model" / "README.md").read_text()
    assert re.match(
        r"---\nlibrary_name: transformers\ntags: \[groundling, [a-z0-9-]+\]\n---\n# ", card
    )
    assert f"{result['parameters']:,} parameters" in card
    # A model folder holds no folder of the machine, and is the same wherever it was trained.
    for name in ("student", "teacher"):
        path = Path(getattr(settings, name))
        assert f"{name}: `{path.parent.name}/{path.name}`" in card
    assert str(out.parent) not in card
    assert f"objectives: {', '.join(parse_arm(arm))}" in card
    assert "- text: `train.txt`, 80 texts\n" in card
    assert "3 steps of 8, learning rate 0.001, seed 0" in card
    loaded = homes.run_card(out / "model")["model"]
    assert sum(p.numel() for p in loaded.parameters()) == result["parameters"]


def test_the_control_says_that_it_had_no_teacher(settings, adapted, tmp_path):
    adapt(replace_settings(settings, arm="mlm", teacher=""), STEPS, tmp_path / "out")
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


@pytest.mark.parametrize(
    ("arm", "head", "stored"),
    [
        ("contrastive", "mlm", "masked_lm."),
        ("xdbert", "joint_mlm", "joint_masked_lm.head."),
    ],
)
def test_heads_of_an_earlier_run_go_on(arm, head, stored, adapted, settings, tmp_path):
    earlier = adapted[arm][0] / "model"
    still = replace(STEPS, lr=0.0)
    config = replace_settings(settings, student=str(earlier))
    again = adapt(replace_settings(config, arm=arm), still, tmp_path / "again")
    assert again["heads_from"][head] == "an earlier run's"
    one, other = (
        load_file(folder / "groundling_heads.safetensors")
        for folder in (earlier, tmp_path / "again" / "model")
    )
    kept = [key for key in other if key.startswith(stored)]
    assert len(kept) > 3
    assert all(torch.equal(one[key], other[key]) for key in kept)
    if head == "joint_mlm":  # a joint head goes on as a joint head alone
        control = adapt(replace_settings(config, arm="mlm"), still, tmp_path / "mlm")
        assert control["heads_from"] == {"mlm": "new"}


def test_a_joint_head_hides_no_head_of_the_checkpoint(settings, encoder, tmp_path):
    model = BertForPreTraining(BertConfig.from_pretrained(encoder))
    student = homes.home(tmp_path / "student", model, homes.words())
    config = replace_settings(settings, student=str(student))
    still = replace(STEPS, lr=0.0, steps=1)
    whole = adapt(replace_settings(config, arm="xdbert"), still, tmp_path / "xdbert")
    assert whole["heads_from"]["joint_mlm"] == "the checkpoint's"
    # the student's own head is handed on; the joint one beside it is not the encoder's
    assert whole["fills_masks"] == "the student's"
    after = replace_settings(config, student=str(tmp_path / "xdbert" / "model"), arm="mlm")
    assert adapt(after, still, tmp_path / "mlm")["heads_from"] == {"mlm": "the checkpoint's"}
    heads = tmp_path / "xdbert" / "model" / "groundling_heads.safetensors"
    heads.rename(student / heads.name)
    beside = adapt(replace_settings(config, arm="mlm"), still, tmp_path / "beside")
    assert beside["heads_from"] == {"mlm": "the checkpoint's"}


def test_without_room_for_features_the_teacher_answers_in_every_step(
    adapted: dict, settings: AdaptConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arm = "contrastive"
    monkeypatch.setattr(TeacherDataset, "_compute_records", never)
    online = adapt(replace_settings(settings, arm=arm, cache_gb=0.0), STEPS, tmp_path / "out")
    assert online["samples"] == 80
    cached = log_of(adapted[arm][0])[0]
    first = log_of(tmp_path / "out")[0]
    assert first.keys() == cached.keys()
    assert {k: first[k] for k in TERMS[arm]} == pytest.approx(
        {k: cached[k] for k in TERMS[arm]}, abs=1e-5
    )
    assert not any("teacher" in name for name in digests(tmp_path / "out"))


def test_a_short_run_on_many_texts_says_that_all_are_cached(settings, tmp_path):
    config = replace_settings(settings, arm="contrastive", masked_lm=False)
    one = replace(STEPS, steps=1, batch=2)
    told = "features of all "
    for cache_gb, notes in ((2.0, 1), (0.0, 0)):
        out = tmp_path / f"{cache_gb}"
        result = adapt(replace_settings(config, cache_gb=cache_gb), one, out)
        assert sum(note.startswith(told) for note in result.get("notes", ())) == notes


def test_a_term_that_is_no_better_than_guessing_is_told(settings, tmp_path):
    """Untrained, a contrastive loss is at or above the logarithm of the rows; where it falls, nothing is said."""
    config = replace_settings(settings, arm="contrastive", masked_lm=False)

    def told(steps: int, lr: float, temperature: float) -> list[str]:
        some = replace_settings(config, temperature=temperature)
        training = replace(STEPS, steps=steps, lr=lr)
        result = adapt(some, training, tmp_path / f"{steps} {temperature}")
        return [note for note in result.get("notes", ()) if "no better than guessing" in note]

    (note,) = told(2, 0.0001, 1.0)
    assert note.startswith(
        f"contrastive_sentence is no better than guessing among {STEPS.batch} rows"
    )
    assert f"that of guessing {math.log(STEPS.batch):.4g}" in note
    assert told(90, 0.003, 0.07) == []


def test_a_pair_of_captions_is_two_rows_to_guess_among() -> None:
    pairs = toys.caption_pairs()
    objectives = [SimCSE(OutputSizes(text=8))]
    training = replace(STEPS, batch=16)
    losses = {"train_metrics": {"simcse": 3.0}}  # between log 16 and log 32
    assert guessing_notes(objectives, [DataSource(pairs)], training, losses) == []
    (note,) = guessing_notes(objectives, [DataSource(pairs.samples)], training, losses)
    assert note.startswith("simcse is no better than guessing among 16 rows")


def test_arms_by_name_and_by_parts() -> None:
    assert list(parse_arm("xdbert")) == ["joint_mlm", "match", "clip_tokens"]
    parts = ["joint_mlm", "match", "clip_tokens", "contrastive"]
    assert list(parse_arm("xdbert+contrastive")) == parts
    assert list(parse_arm("l1+contrastive")) == ["mlm", "l1", "contrastive"]
    assert list(parse_arm("match")) == ["match"]
    with pytest.raises(InputError, match="no objective is called ''"):
        parse_arm("")


def test_a_student_starts_from_nothing_at_a_size_of_its_own(settings, encoder, tmp_path):
    """F1: Vokenization and VidLanKD train 12 layers of 768 or 6 of 512 from new weights."""
    bare = tmp_path / "bare"  # a configuration and a tokenizer are enough
    shutil.copytree(encoder, bare, ignore=shutil.ignore_patterns("*.safetensors"))
    own = {"student": str(bare), "arm": "mlm", "from_scratch": True}
    new = replace_settings(settings, **own, student_layers=1, student_width=64)
    still = replace(STEPS, steps=1, lr=0.0)
    result = adapt(new, still, tmp_path / "new")
    model = AutoModel.from_pretrained(tmp_path / "new" / "model")
    sizes = model.config
    assert (sizes.num_hidden_layers, sizes.hidden_size, sizes.num_attention_heads) == (1, 64, 1)
    assert result["heads_from"] == {"mlm": "new"}
    adapt(new, still, tmp_path / "again")
    adapt(new, replace(still, seed=1), tmp_path / "other")
    tables = [
        AutoModel.from_pretrained(tmp_path / name / "model").get_input_embeddings().weight
        for name in ("new", "again", "other")
    ]
    assert torch.equal(tables[0], tables[1])
    assert not torch.allclose(tables[0], tables[2])

    adapt(replace_settings(settings, **own | {"student": str(encoder)}), still, tmp_path / "same")
    untrained = AutoModel.from_pretrained(tmp_path / "same" / "model").get_input_embeddings().weight
    trained = AutoModel.from_pretrained(encoder).get_input_embeddings().weight
    assert untrained.shape == trained.shape
    assert not torch.allclose(untrained, trained)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"student_layers": 2}, "student_layers.*from_scratch"),
        ({"from_scratch": True, "student_width": 100}, "student_width=100.*multiple of 64"),
        (
            {"from_scratch": True, "student": "sentences"},
            "from_scratch: expected an encoder without pooling",
        ),
    ],
)
def test_a_student_from_nothing_needs_a_size_that_can_be(given, complaint, settings, tmp_path):
    if "student" in given:
        given = given | {"student": str(homes.sentence_encoder(tmp_path / "sentences"))}
    with pytest.raises(InputError, match=complaint):
        adapt(replace_settings(settings, arm="mlm", **given), STEPS, tmp_path / "run")
