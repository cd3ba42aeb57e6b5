"""What may be a student, with every teacher: a text encoder, a CLIP-like text tower, a whole cross-modal model."""

from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, home, log_of, rte
from tiny.lm_families import DECODERS
from tiny.objectives import captioned_run
from torch import nn
from transformers import (
    AutoModel,
    AutoTokenizer,
    CLIPTextModelWithProjection,
    GenerationConfig,
    SiglipTextModel,
)

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Batch, Example, collate
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.core.rng import derive_seed
from groundling.data.samples import TextDataset
from groundling.models.attention import AttentionMap
from groundling.models.clip import ClipTextEncoder, load_clip_text_tower
from groundling.models.cross_modal import LAYERS, CrossModalEncoder
from groundling.models.heads import MATCHING_HEADS, TokenImageMatchingHeads, save_heads
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.objectives import built_in_objectives, find_objective
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings, replace_settings
from groundling.training import fit as fitting
from groundling.training.loop import train
from groundling.vision_language.loading import load_encoder

TWO = replace(STEPS, steps=2, save_every=10)
SHORT, PAIR = Example("s", "a dog"), Example("p", "a red dog runs", "it is wet")
LONG = Example("l", " ".join(toys.sentences()[:5]), " ".join(toys.sentences()[5:10]))


STUDENTS: dict[str, tuple[Callable, Callable]] = {
    "bert": (toys.bert, toys.bert_words),
    "roberta": (toys.roberta, toys.roberta_words),
    "electra": (toys.electra, toys.bert_words),
    "deberta": (toys.deberta, toys.deberta_words),
    "modernbert": (toys.modernbert, toys.bert_words),
    "poolerless": (toys.poolerless, toys.bert_words),
}
CAUSAL: dict[str, tuple[Callable, Callable]] = {name: one for name, one in DECODERS.items()}
TEACHERS = {"clip": (toys.clip, toys.clip_words), "siglip": (toys.siglip, toys.siglip_words)}


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders of all students and teachers, a text and a task."""
    root = tmp_path_factory.mktemp("students")
    for name, (model, words) in (STUDENTS | CAUSAL | TEACHERS).items():
        tokenizer = words()
        home(root / name, model(tokenizer if name in TEACHERS else len(tokenizer)), tokenizer)
        if name in CAUSAL:
            GenerationConfig(eos_token_id=[2, 5]).save_pretrained(root / name)
    homes.text(root / "text.txt", 24)
    rte(root / "glue", count=8)
    return root


def adaptation(at: Path, student: str, teacher: str, arm: str, **options: bool) -> AdaptConfig:
    given = {"student": str(at / student), "teacher": str(at / teacher), "arm": arm}
    text = (str(at / "text.txt"),)
    return make_settings(AdaptConfig, **given, text=text, max_length=40, **options)


def tuned(at: Path, model: Path, out: Path, **options: object) -> dict:
    given = {"model": str(model), "task": "glue/rte", "data": str(at / "glue"), "max_length": 40}
    config = make_settings(FinetuneConfig, **given, **options)
    result = finetune(config, TWO, out)
    assert 0 <= result["median"]["dev"]["accuracy"] <= 1
    return result


def encoder_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The stored weights of an encoder by its own names; a masked-LM model's file has a prefix before them."""
    stored = load_file(folder / "model.safetensors")
    prefix = f"{AutoModel.from_pretrained(folder).base_model_prefix}."
    own = {k.removeprefix(prefix): v for k, v in stored.items() if k.startswith(prefix)}
    return own or stored


def read(student: nn.Module, *examples: Example) -> Batch:
    return collate(TextDataset(examples, *student.inputs(40)).get(range(len(examples))))


TERMS = {"xdbert": {"match", "clip_tokens"}}
TERMS |= {"contrastive": {"contrastive_sentence", "contrastive_word"}}
PAIRS = [(student, "clip", "xdbert") for student in STUDENTS]
PAIRS += [("roberta", "siglip", "contrastive"), ("bert", "siglip", "xdbert")]
PAIRS += [(student, "clip", "contrastive") for student in CAUSAL]


@pytest.mark.parametrize(("student", "teacher", "arm"), PAIRS)
def test_every_student_learns(student, teacher, arm, at, tmp_path):
    result = adapt(adaptation(at, student, teacher, arm), TWO, tmp_path / "adapt")
    assert set(result["train_metrics"]) == TERMS[arm] | {
        "clm" if student in CAUSAL else "mlm",
        "loss",
    }
    model = tmp_path / "adapt" / "model"
    before, after = (encoder_weights(folder) for folder in (at / student, model))
    assert {k: v.shape for k, v in after.items()} == {k: v.shape for k, v in before.items()}
    assert sum(not torch.equal(after[k], before[k]) for k in before) > len(before) / 2
    stock = AutoModel.from_pretrained(model).eval()
    words = AutoTokenizer.from_pretrained(model)
    if student in CAUSAL:
        assert GenerationConfig.from_pretrained(model).eos_token_id == [2, 5]
        assert "AutoModelForCausalLM.from_pretrained" in (model / "README.md").read_text()
    ours = load_encoder(model).eval()
    with torch.no_grad():
        expected = stock(**words(PAIR.text, PAIR.text_pair, return_tensors="pt")).last_hidden_state
        torch.testing.assert_close(ours(read(ours, PAIR)).text, expected, rtol=0, atol=1e-5)
    assert isinstance(ours, TextEncoder) and bool(ours.sizes.pooler_output) == (
        student in {"bert", "roberta"}
    )
    if teacher == "clip" and student not in CAUSAL:  # of which the encoder has kept nothing
        tuned(at, model, tmp_path / "tuned")


def test_a_missing_pooler_is_the_tasks_own(at, monkeypatch, tmp_path):
    model, seen = load_text_encoder(at / "poolerless"), []
    assert model.encoder.pooler is None

    def starting(
        model: nn.Module, objectives: list[SupervisedObjective], *rest: object, **options: object
    ) -> dict:
        seen.append(objectives[0].head.pooler.dense.weight.clone())
        return train(model, objectives, *rest, **options)

    adapt(adaptation(at, "poolerless", "clip", "xdbert"), TWO, tmp_path / "adapt")
    monkeypatch.setattr(fitting, "train", starting)
    for name in ("a", "b"):
        torch.manual_seed(ord(name))
        tuned(at, tmp_path / "adapt" / "model", tmp_path / name)
    torch.manual_seed(derive_seed(0, "init", "glue/rte"))
    fresh = SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))
    # Neither by chance nor `SameSentencePrediction`'s.
    assert len(seen) == 2
    assert all(torch.equal(weight, fresh.head.pooler.dense.weight) for weight in seen)


def test_frozen_words_are_the_word_table_alone(at: Path, tmp_path: Path) -> None:
    for name in ("electra", "clip"):
        tuned(at, at / name, tmp_path / name, freeze_word_embeddings=True, save_model=True)
        before, after = load_encoder(at / name), load_encoder(tmp_path / name / "seed-0" / "model")
        table = {id(p) for p in before.word_embeddings().parameters()}
        words = [n for n, p in before.named_parameters() if id(p) in table]
        assert len(words) == 1
        new = dict(after.named_parameters())
        same = {n for n, p in before.named_parameters() if torch.equal(p, new[n])}
        assert same - {"clip.logit_scale"} == set(words)


@pytest.mark.parametrize("teacher", TEACHERS)
def test_a_text_tower_is_a_student(teacher: str, at: Path, tmp_path: Path) -> None:
    tower = load_encoder(at / teacher).eval()
    assert isinstance(tower, ClipTextEncoder)
    batch = read(tower, SHORT, PAIR, LONG)
    assert batch.text is None
    assert batch.clip.row_index.tolist() == [0, 1, 1, 2, 2, 2, 2]
    assert batch.clip.token_type_ids.tolist() == [0, 0, 1, 0, 0, 1, 1]
    assert batch.truncated_tokens > 0
    with torch.no_grad():
        pooled = tower(batch).pooler_output
        features = tower.clip(batch.clip)[1]
    zero = torch.zeros(tower.clip.embed_dim)
    long = [features[3:5].mean(0), features[5:7].mean(0)]
    expected = torch.stack([features[0], zero, features[1], features[2], *long])
    torch.testing.assert_close(pooled.view(6, -1), expected)
    tuned(at, at / teacher, tmp_path / "tuned", save_model=True)
    after = load_encoder(tmp_path / "tuned" / "seed-0" / "model").eval()
    assert isinstance(after, ClipTextEncoder)
    with torch.no_grad():
        assert not torch.allclose(after(batch).pooler_output, pooled)


@pytest.mark.parametrize(
    ("teacher", "kind"), [("clip", CLIPTextModelWithProjection), ("siglip", SiglipTextModel)]
)
@torch.no_grad()
def test_a_saved_tower_is_stock(teacher: str, kind: type, at: Path, tmp_path: Path) -> None:
    tower = load_encoder(at / teacher).eval()
    tower.export(tmp_path)
    stock, report = kind.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    words = AutoTokenizer.from_pretrained(tmp_path)
    padded = {"padding": "max_length", "max_length": toys.WINDOW} if teacher == "siglip" else {}
    ids = words([SHORT.text], return_tensors="pt", **padded)["input_ids"]
    theirs = stock(input_ids=ids)
    expected = theirs.pooler_output if teacher == "siglip" else theirs.text_embeds
    torch.testing.assert_close(tower.clip(read(tower, SHORT).clip)[1], expected, rtol=0, atol=1e-5)
    again = ClipTextEncoder(*load_clip_text_tower(tmp_path)).eval()
    assert torch.equal(
        again(read(again, LONG)).pooler_output, tower(read(tower, LONG)).pooler_output
    )


@pytest.fixture(scope="module")
def joint(at: Path) -> dict[str, Path]:
    """A whole model with each teacher."""
    for teacher in TEACHERS:
        config = adaptation(at, "bert", teacher, "xdbert", save_joint=True)
        adapt(config, TWO, at / f"xdbert-{teacher}")
    return {teacher: at / f"xdbert-{teacher}" / "joint" for teacher in TEACHERS}


@pytest.mark.parametrize("teacher", TEACHERS)
@torch.no_grad()
def test_a_whole_model_is_written_and_read(teacher, joint, tmp_path):
    model = load_encoder(joint[teacher]).eval()
    assert isinstance(model, CrossModalEncoder)
    beside = load_file(joint[teacher].parent / "model" / "model.safetensors")
    assert all(
        torch.equal(value, beside[key]) for key, value in model.text.encoder.state_dict().items()
    )
    model.export(tmp_path / "again")
    again = load_encoder(tmp_path / "again").eval()
    batch = read(model, SHORT, PAIR, LONG)
    parts = torch.bincount(batch.clip.row_index * 2 + batch.clip.token_type_ids)
    assert parts.tolist() == [1, 0, 1, 1, 2, 2]
    told: list[AttentionMap] = []
    one, other = model(batch, attention=told.append), again(batch)
    for name in ("text", "visual", "joint_text", "joint_visual"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    shape = (3, 2, batch.text.input_ids.shape[1], batch.clip.key_mask.shape[1])
    over_clip = [map.weights for map in told if map.name == "text over clip"]
    assert (one.pooler_output, [tuple(maps.shape) for maps in over_clip]) == (None, [shape, shape])
    for maps in over_clip:
        assert maps.sum(-1) == pytest.approx(1, abs=1e-5)
        assert not maps.masked_select(~batch.clip.key_mask[:, None, None, :]).any()
    assert torch.equal(model(batch).joint_text, one.joint_text)
    (tmp_path / "again" / LAYERS).write_bytes(b"no tensors")
    with pytest.raises(InputError, match=f"{LAYERS}: cannot be read"):
        load_encoder(tmp_path / "again")


@pytest.mark.parametrize("teacher", TEACHERS)
def test_a_whole_model_is_tuned_from_what_it_has_joined(teacher, joint, at, tmp_path, monkeypatch):
    heads, seen = load_file(joint[teacher] / "groundling_heads.safetensors"), []

    def starting(
        model: CrossModalEncoder,
        objectives: list[SupervisedObjective],
        *rest: object,
        **options: object,
    ) -> dict:
        objective, batch = objectives[0].eval(), read(model.eval(), PAIR)
        head = objective.head
        for part, value in head.pooler.state_dict().items():
            assert torch.equal(value, heads[f"match.pooler.{part}"])
        encoded = model(batch)
        expected = head.classify(torch.tanh(head.pooler.dense(encoded.joint_text[:, 0])))
        torch.testing.assert_close(objective.outputs(encoded, batch), expected)
        seen.append(1)
        return train(model.train(), [objective.train()], *rest, **options)

    monkeypatch.setattr(fitting, "train", starting)
    tuned(at, joint[teacher], tmp_path / "tuned", save_model=True)
    assert seen
    after = load_encoder(tmp_path / "tuned" / "seed-0" / "model")
    before = dict(load_encoder(joint[teacher]).named_parameters())
    moved = {n.split(".")[0] for n, p in after.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"text", "clip", "cross"}


# -- arms --------------------------------------------------------------------------------------------------------------
TOGETHER = [
    "mlm+contrastive+l1",
    "mlm+nst+crd+nt_xent",
    "joint_mlm+match+clip_tokens",
    "simcse+mcse+lexi_contrastive+caption_to_image+grounded_space+td_text+td_words",
]
"""Runs of several objectives; every other one that is found has a run of its own."""
ARMS = [*TOGETHER]
for name, kind in built_in_objectives().items():
    if "regions" not in kind.required_fields and name not in "+".join(TOGETHER).split("+"):
        ARMS.append(name)
ARMS += ["clm+contrastive", "clm+caption_to_image+lexi_contrastive+mcse"]
OF_TEXT = {"features.sentence", "features.teacher_states"}
"""Features of teachers that read no images."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Captions of photos, a student, and every teacher: a CLIP, a CLIP-BERT, and a vokenizer that was never trained."""
    root = tmp_path_factory.mktemp("arms")
    config = captioned_run(root, "visual_token_mlm", save_joint=True, max_length=40)
    adapt(config, replace(STEPS, steps=1), root / "clip_bert")
    load_text_encoder(config.student).export(root / "vokenizer")
    torch.manual_seed(2)
    heads = TokenImageMatchingHeads(64, 24, width=6)
    save_heads(root / "vokenizer", {MATCHING_HEADS: heads})
    words = DECODERS["gpt2"].words()
    homes.home(root / "gpt2", DECODERS["gpt2"].whole(len(words)), words)
    return root


@pytest.mark.parametrize("arm", ARMS)
def test_a_run_leaves_a_plain_encoder_and_resumes(arm: str, place: Path, tmp_path: Path) -> None:
    kinds = [find_objective(name) for name in arm.split("+")]
    fields = {field for kind in kinds for field in kind.required_fields}
    config = replace_settings(
        captioned_run(place, arm, max_length=40),
        student=str(place / ("gpt2" if "clm" in arm else "student")),
        kd_teacher=str(place / "student"),
        mlm_teacher=str(place / "clip_bert" / "joint"),
        voken_matcher=str(place / "vokenizer"),
        voken_images=str(place / "photos"),
        vokenizer_layers=2,
        crd_partition="first_batch",
        teacher_images="" if fields & OF_TEXT else str(place / "photos"),
    )
    whole, resumed = homes.whole_and_resumed(adapt, config, STEPS, tmp_path, "model")
    assert whole == resumed
    log = log_of(tmp_path / "whole")
    assert log == log_of(tmp_path / "killed")
    assert [line["step"] for line in log] == [1, 2, 3]
    assert all(isfinite(value) for line in log for value in line.values())
    terms = set(log[0]) - {"step", "epoch", "loss", "lr"}
    assert len(terms) >= len(kinds)
    before, after = (
        AutoModel.from_pretrained(folder) for folder in (config.student, tmp_path / "whole/model")
    )
    assert type(before) is type(after)
    old, new = before.state_dict(), after.state_dict()
    assert {key: value.shape for key, value in old.items()} == {
        key: value.shape for key, value in new.items()
    }
    changed = [key for key in old if not torch.equal(old[key], new[key])]
    # Vokenization's first stage trains its heads alone.
    assert (len(changed) > len(old) / 2) == (arm != MATCHING_HEADS), changed
    heads = load_file(tmp_path / "whole/model/groundling_heads.safetensors")
    assert all(value.isfinite().all() for value in heads.values())
