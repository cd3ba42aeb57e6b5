"""Each term's share of the gradient: as by hand, and without a trace in training."""

import json
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys
from torch import Tensor, nn

from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.objectives import Objective
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.objectives import AdversarialSettings
from groundling.settings.training import TrainingArguments
from groundling.training.loop import ModelWithObjectives, train
from groundling.training.training_steps.villa import VillaStep

TEXTS = 8
CONFIG = TrainingArguments(
    steps=3, batch=TEXTS, lr=1e-3, log_every=2, save_every=100, cpu=True, gradient_shares=(1, 3)
)


class Shorter(Objective):
    """The squared length of a projection of the first position, and a term that is only watched."""

    name = "shorter"
    required_fields = ("text",)
    monitored_terms = ("watched",)

    def __init__(self, sizes: Any, **options: Any) -> None:
        super().__init__(sizes, **options)
        self.project = nn.Linear(sizes.text, 3)

    def count(self, batch: Any) -> dict[str, int]:
        return {"shorter": batch.rows}

    def forward(self, encoded: Any, batch: Any) -> dict[str, Tensor]:
        squares = self.project(encoded.text[:, 0]).pow(2).sum()
        return {"shorter": squares, "watched": squares.detach()}


def made(dropout: float = 0.0) -> tuple[Any, list[Objective], TextDataset]:
    words = toys.bert_words()
    torch.manual_seed(7)
    bert = toys.bert(len(words), hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = TextEncoder(bert, words)
    task = SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))
    for part in task.modules():
        if isinstance(part, nn.Dropout):
            part.p = dropout
    objectives = [task, Shorter(model.sizes, weight=0.3, warmup=2)]
    return model, objectives, TextDataset(toys.examples(TEXTS), TextRowEncoder(words, 40))


def log_of(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def gradient_lines(out: Path) -> list[dict[str, Any]]:
    return [line for line in log_of(out) if "gradient_norm/task" in line]


@pytest.mark.parametrize("accumulate", [1, 4])
def test_norms_and_shares_by_hand(accumulate: int, tmp_path: Path) -> None:
    """The first step reads every text: each term's own loss, its mean over the whole step, its own backward pass."""
    model, objectives, data = made()
    before = deepcopy(model), deepcopy(objectives)
    config = replace(
        CONFIG,
        gradient_shares=(1,),
        steps=1,
        gradient_accumulation_steps=accumulate,
        max_grad_norm=0.01,
    )
    train(model, objectives, data, config, tmp_path)
    model, (task, shorter) = before
    batch = collate(data.get(range(TEXTS), [np.random.default_rng(0)] * TEXTS))
    norms = {}
    for term, objective, weight in (("task", task, 1.0), ("shorter", shorter, 0.3 / 2)):
        model.zero_grad()
        (weight * objective(model(batch), batch)[term] / TEXTS).backward()
        squares = [one.grad.pow(2).sum() for one in model.parameters() if one.grad is not None]
        norms[term] = float(torch.stack(squares).sum().sqrt())
    (line,) = gradient_lines(tmp_path)
    assert line["step"] == 1
    for term, norm in norms.items():
        assert line[f"gradient_norm/{term}"] == pytest.approx(norm, rel=1e-4)
        share = norm / sum(norms.values())
        assert line[f"gradient_share/{term}"] == pytest.approx(share, rel=1e-4)
    assert not any("watched" in name for name in line)


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("villa", [False, True])
def test_training_does_not_change(villa: bool, checkpointing: bool, tmp_path: Path) -> None:
    """With dropout, accumulation and VILLA's perturbations, whose divergence is one more term."""
    found = []
    for steps in ((), (1, 3)):
        model, objectives, data = made(dropout=0.1)
        out = tmp_path / str(len(steps))
        config = replace(
            CONFIG,
            gradient_shares=steps,
            gradient_accumulation_steps=2,
            gradient_checkpointing=checkpointing,
        )
        step = VillaStep(AdversarialSettings(adversarial_modality="text")) if villa else None
        train(model, objectives, data, config, out, training_step=step)
        found.append((out, ModelWithObjectives(model, objectives).state_dict()))
    (without, first), (out, second) = found
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = [[line for line in log_of(one) if "loss" in line] for one in (without, out)]
    for one, other in zip(*lines, strict=True):
        assert {**one, "seconds": 0} == {**other, "seconds": 0}
    assert not gradient_lines(without)
    assert [line["step"] for line in gradient_lines(out)] == [1, 3]
    for line in gradient_lines(out):
        terms = {name.partition("/")[2] for name in line if "/" in name}
        assert terms == {"task", "shorter"} | ({"divergence"} if villa else set())
        assert sum(line[f"gradient_share/{term}"] for term in terms) == pytest.approx(1)


def test_it_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, objectives, data = made()
    train(model, objectives, data, replace(CONFIG, gradient_shares=(2,)), tmp_path)
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "gradient norms" in one]
    assert line.startswith("step 2: gradient norms: shorter ") and "%), task " in line


def test_steps_beyond_the_run_are_refused_before_it_starts(tmp_path: Path) -> None:
    model, objectives, data = made()
    config = replace(CONFIG, gradient_shares=(1, 3, 4))
    match = "^gradient_shares 4: expected steps up to the run's last, 3$"
    with pytest.raises(InputError, match=match):
        train(model, objectives, data, config, tmp_path)
    assert not (tmp_path / "log.jsonl").exists()


def test_compiled_models_are_refused() -> None:
    with pytest.raises(InputError, match="gradient_shares needs the graph"):
        replace(CONFIG, compile=True)
