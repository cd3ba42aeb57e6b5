"""LoRA: stock models with merged matrices, adapters that peft loads, runs that resume, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from safetensors.torch import load_file
from tiny import homes
from tiny.homes import STEPS
from tiny.lm_families import ALL, DECODERS, read
from torch._dynamo.testing import CompileCounter
from transformers import AutoModel

from groundling.command_line import names
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.models.lora import LoraAdapters, adapted_modules
from groundling.models.text_encoder import load_text_encoder
from groundling.settings.fields import make_settings, replace_settings

STUDENTS = {**DECODERS, **{name: ALL[name] for name in ("relu bert", "modernbert", "albert")}}


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path) -> AdaptConfig:
    """A run with adapters on a family's tiny model, by default BERT."""
    family = STUDENTS[getattr(request, "param", "relu bert")]
    words = family.words()
    torch.manual_seed(0)
    home = homes.home(tmp_path / "student", family.whole(len(words)), words)
    text = str(homes.text(tmp_path / "text.txt"))
    given = {"student": str(home), "text": (text,), "arm": "mlm", "lora": 4, "max_length": 40}
    return make_settings(AdaptConfig, **given)


def without_dropout(home: str | Path) -> None:
    """Set a BERT's dropout to 0 in its configuration."""
    about = Path(home) / "config.json"
    still = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    about.write_text(json.dumps(json.loads(about.read_text()) | still))


def stored(model: Any) -> dict[str, torch.Tensor]:
    """Weights without a pooler, which a masked-LM model lacks and transformers draws."""
    return {name: one for name, one in model.state_dict().items() if "pooler" not in name}


@pytest.mark.parametrize("config", STUDENTS, indirect=True)
def test_merged_it_is_a_stock_model_and_peft_says_the_same(
    config: AdaptConfig, tmp_path: Path
) -> None:
    result = adapt(config, STEPS, tmp_path / "out")
    base, merged = (
        AutoModel.from_pretrained(one).eval() for one in (config.student, tmp_path / "out/model")
    )
    before, after = stored(base), stored(merged)
    assert after.keys() == before.keys()
    changed = {name for name, one in before.items() if not torch.equal(one, after[name])}
    assert changed == {f"{name}.weight" for name in adapted_modules(base)}
    expected = sum(4 * sum(one.weight.shape) for one in adapted_modules(base).values())
    assert result["lora_parameters"] == expected
    about = (tmp_path / "out/adapter/adapter_config.json").read_text()
    assert str(tmp_path) not in about and json.loads(about)["r"] == 4
    _, tokens = read(load_text_encoder(config.student))
    inputs = {"input_ids": tokens.input_ids, "attention_mask": tokens.attention_mask.long()}
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "out/adapter").eval()
    with torch.no_grad():
        ours, theirs = (one(**inputs).last_hidden_state for one in (merged, adapted))
    real = tokens.attention_mask
    torch.testing.assert_close(ours[real], theirs[real], rtol=0, atol=1e-5)
    for name, one in stored(adapted.merge_and_unload()).items():
        torch.testing.assert_close(one, after[name], rtol=0, atol=1e-6)


@pytest.mark.parametrize("config", ["gpt2"], indirect=True)
def test_a_killed_run_ends_bit_equal_and_keeps_only_what_trains(
    config: AdaptConfig, tmp_path: Path
) -> None:
    homes.kill(adapt, config, STEPS, tmp_path / "early", at=3)
    state = next((tmp_path / "early/checkpoints").glob("step-*")) / "state.safetensors"
    frozen = [
        name
        for name in load_file(state)
        if name.startswith("weight.model.") and "lora_" not in name
    ]
    assert frozen == []
    for part in ("model", "adapter"):
        whole, resumed = homes.whole_and_resumed(adapt, config, STEPS, tmp_path / part, part, at=3)
        assert whole == resumed


def test_the_first_matrices_depend_on_the_seed_alone(config: AdaptConfig) -> None:
    def drawn(before: int, seed: int) -> list[torch.Tensor]:
        torch.manual_seed(before)
        text = load_text_encoder(config.student)
        state = torch.get_rng_state()
        LoraAdapters(text, 2, seed)
        assert torch.equal(state, torch.get_rng_state())
        return [one for name, one in text.named_parameters() if "lora_A" in name]

    first, same, other = drawn(1, 0), drawn(2, 0), drawn(1, 1)
    assert all(torch.equal(one, two) for one, two in zip(first, same, strict=True))
    assert not any(torch.equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("way", [{"packing": True}, {"gradient_checkpointing": True}])
def test_other_ways_to_compute_learn_the_same(
    way: dict[str, Any], config: AdaptConfig, tmp_path: Path
) -> None:
    without_dropout(config.student)
    plain, other = (
        adapt(config, replace(STEPS, **some), tmp_path / str(len(some)))["train_metrics"]
        for some in ({}, way)
    )
    assert other["mlm"] == pytest.approx(plain["mlm"], rel=1e-5)


def test_adapters_are_compiled_a_few_times(
    config: AdaptConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counter = CompileCounter()  # a backend that only counts graphs
    whole = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call, **options: whole(call, backend=counter, **options)
    )
    adapt(config, replace(STEPS, steps=6, batch=2, compile=True), tmp_path / "out")
    assert 1 <= counter.frame_count < 5


def test_a_sentence_encoder_begins_as_itself_and_is_held_there(
    config: AdaptConfig, tmp_path: Path
) -> None:
    home = homes.sentence_encoder(tmp_path / "sentences")
    without_dropout(home)
    logs = []
    for rank in (0, 4):
        out = tmp_path / str(rank)
        adapt(replace_settings(config, student=str(home), lora=rank), STEPS, out)
        logs.append([line["retain"] for line in homes.log_of(out)])
        assert (out / "model/modules.json").exists()
    assert logs[1][0] == pytest.approx(logs[0][0], rel=1e-5)
    assert logs[1][-1] != pytest.approx(logs[0][-1], rel=1e-5)


def test_fine_tuning_saves_the_merged_model_that_it_evaluated(
    config: AdaptConfig, tmp_path: Path
) -> None:
    glue = homes.rte(tmp_path / "glue")
    tuning = make_settings(
        FinetuneConfig, model=config.student, task="glue/rte", data=str(glue), lora=2
    )
    whole, resumed = homes.whole_and_resumed(finetune, tuning, STEPS, tmp_path, "seed-0/model")
    assert whole == resumed
    seed = tmp_path / "whole/seed-0"
    base, tuned = (AutoModel.from_pretrained(one) for one in (config.student, seed / "model"))
    table = "embeddings.word_embeddings.weight"
    assert torch.equal(base.state_dict()[table], tuned.state_dict()[table])
    assert (seed / "adapter/adapter_model.safetensors").exists()


VISION = {"architecture": "visualbert"}
NONE = "pip install 'groundling\\[lora\\]'"


def test_what_does_not_combine_is_refused(
    config: AdaptConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scratch = replace_settings(config, from_scratch=True)
    with pytest.raises(InputError, match="lora=4: adapts weights that exist"):
        adapt(scratch, STEPS, tmp_path / "scratch")
    glue = str(homes.rte(tmp_path / "glue"))
    given = {"model": config.student, "task": "glue/rte", "data": glue, "lora": 2}
    with pytest.raises(InputError, match=r"lora=2: .*: expected a plain text encoder"):
        finetune(make_settings(FinetuneConfig, **given, **VISION), STEPS, tmp_path / "vision")
    monkeypatch.setattr(
        names, "find_spec", lambda name: None if name == "peft" else find_spec(name)
    )
    with pytest.raises(InputError, match=f"lora=4 needs: {NONE}"):
        adapt(config, STEPS, tmp_path / "none")
