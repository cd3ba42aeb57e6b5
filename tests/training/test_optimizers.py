"""Optimizers, schedules and clipping of the papers, against plain torch and by hand."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny.homes import Killed, dying, log_of
from tiny.objectives import weights
from torch import Tensor, nn

from groundling.core.batch import Batch, OutputSizes
from groundling.objectives import Objective
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.training import TrainingArguments
from groundling.training.batch_sampler import DataSource
from groundling.training.loop import ModelWithObjectives, PlainTrainingStep, train
from groundling.training.optimizers import BertAdam, make_optimizer, set_learning_rates

SIZES = OutputSizes(text=32)
CPU = TrainingArguments(steps=6, batch=8, log_every=1, save_every=1000, cpu=True)


class Pull(Objective):
    """A loss whose gradients are known: every parameter is drawn to a number that turns with the step."""

    name = "pull"
    required_fields = ("text",)

    def __init__(self, sizes: Any) -> None:
        super().__init__(sizes)
        torch.manual_seed(3)
        self.table = nn.Parameter(torch.randn(3, 4))
        self.gain = nn.Parameter(torch.randn(4))
        self.calls = 0

    def count(self, batch: Batch) -> dict[str, int]:
        return {"pull": 1}

    def forward(self, encoded: Any, batch: Batch) -> dict[str, Tensor]:
        self.calls += 1
        return {"pull": loss_at(self.table, self.gain, self.calls) + 0 * encoded.text.sum()}


def loss_at(table: Tensor, gain: Tensor, call: int) -> Tensor:
    """What pulls at the `call`-th call, from 1."""
    return ((table - math.sin(call)) ** 2).sum() + 3 * (gain * math.cos(call)).exp().sum()


@pytest.fixture
def ran(student: Any, text_only: Any, tmp_path: Path) -> Any:
    """`ran(config)`: the parameters of `Pull` (table, gain) after training, and the log."""

    def run(
        config: TrainingArguments, name: str = "run"
    ) -> tuple[Tensor, Tensor, list[dict[str, float]]]:
        model = student()
        model.requires_grad_(False)
        pull = Pull(model.sizes)
        train(model, [pull], text_only, config, tmp_path / name)
        return pull.table.detach(), pull.gain.detach(), log_of(tmp_path / name)

    return run


def plainly(make: Any, rates: list[float], clip: Any = None) -> tuple[Tensor, Tensor]:
    """The same by a plain loop: `make` makes the optimizer of [table, gain]."""
    pull = Pull(SIZES)
    optimizer = make([pull.table, pull.gain])
    for number, rate in enumerate(rates):
        for group in optimizer.param_groups:
            group["lr"] = rate
        loss_at(pull.table, pull.gain, number + 1).backward()
        if clip is not None:
            clip([pull.table, pull.gain])
        optimizer.step()
        optimizer.zero_grad()
    return pull.table.detach(), pull.gain.detach()


def same(found: Any, expected: Any) -> None:
    for one, other in zip(found[:2], expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


FLAT = replace(
    CPU, schedule="constant", warmup_ratio=0.0, lr=0.05, weight_decay=0.1, max_grad_norm=0.0
)


def test_adamw_with_the_papers_betas_and_epsilon(ran: Any) -> None:
    found = ran(replace(FLAT, betas=(0.9, 0.98), epsilon=1e-6))

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        groups = [
            {"params": parameters[:1], "weight_decay": 0.1},
            {"params": parameters[1:], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, 0.05, betas=(0.9, 0.98), eps=1e-6)

    same(found, plainly(make, [0.05] * 6))


def test_sgd_with_momentum_and_steps(ran: Any, text_only: Any) -> None:
    """VL-BERT's VCR: warm-up in steps, then constant, a tenth at each milestone; decay everywhere."""
    assert len(text_only) == 64
    config = replace(
        FLAT,
        optimizer="sgd",
        steps=0,
        epochs=3,
        batch=16,  # four steps are an epoch
        schedule="steps",
        milestones=(1.5, 2.5),
        warmup_ratio=0.5,
        warmup_steps=2,
        decay_bias_and_norm=True,
    )
    *found, log = ran(config)
    shares = [0.5, 1, 1, 1, 1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01]
    assert [line["lr"] for line in log] == pytest.approx([0.05 * share for share in shares])

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.05, momentum=0.9, weight_decay=0.1)

    same(found, plainly(make, [0.05 * share for share in shares]))


def test_milestones_are_epochs_of_the_counted_samples(student, text_only, tmp_path):
    """Text beside captioned images makes an epoch longer, and with it the time to a milestone."""
    model = student()
    model.requires_grad_(False)
    pull = Pull(model.sizes)
    sources = [DataSource(text_only), DataSource(text_only, counts_towards_epoch=False)]
    config = replace(FLAT, steps=16, batch=16, schedule="steps", milestones=(1,))
    train(model, [pull], sources, config, tmp_path)
    assert [line["lr"] for line in log_of(tmp_path)] == pytest.approx([0.05] * 8 + [0.005] * 8)


def test_bertadam_by_hand(ran: Any) -> None:
    """google-research/bert, optimization.py: no bias correction, and the decay stands beside the update."""
    found = ran(replace(FLAT, optimizer="bertadam", epsilon=1e-6))
    pull = Pull(SIZES)
    values = {"table": pull.table.detach().double(), "gain": pull.gain.detach().double()}
    means = {name: torch.zeros_like(value) for name, value in values.items()}
    squares = {name: torch.zeros_like(value) for name, value in values.items()}
    for call in range(1, 7):
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        loss_at(leaves["table"], leaves["gain"], call).backward()
        for name, leaf in leaves.items():
            means[name] = 0.9 * means[name] + 0.1 * leaf.grad
            squares[name] = 0.999 * squares[name] + 0.001 * leaf.grad**2
            update = means[name] / (squares[name].sqrt() + 1e-6)
            if name == "table":
                update = update + 0.1 * values[name]
            values[name] = values[name] - 0.05 * update
    same(found, (values["table"].float(), values["gain"].float()))


@pytest.mark.parametrize("each", [False, True])
def test_clipping_together_and_tensor_by_tensor(each: bool, ran: Any) -> None:
    config = replace(
        FLAT, optimizer="sgd", weight_decay=0.0, max_grad_norm=1.0, clip_per_tensor=each
    )
    *found, log = ran(config)

    def clip(parameters: list[Tensor]) -> None:
        for some in [[one] for one in parameters] if each else [parameters]:
            nn.utils.clip_grad_norm_(some, 1.0)

    def make(parameters: list[Tensor]) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, 0.05, momentum=0.9)

    same(found, plainly(make, [0.05] * 6, clip))
    assert log[0]["grad_norm"] > 1, "the norm of all together is logged, before clipping"


def test_warmup_steps_are_steps(ran: Any) -> None:
    *_, log = ran(replace(CPU, steps=10, warmup_ratio=0.9, warmup_steps=2, lr=1.0))
    rates = [line["lr"] for line in log]
    assert rates == pytest.approx([0.5, 1.0, *(1 - place / 8 for place in range(8))])


# -- a killed run ------------------------------------------------------------------------------------------------------


RESUMED = replace(CPU, save_every=2, lr=1e-2, schedule="constant")
TOKENS = replace(RESUMED, steps=7, batch_tokens=150, gradient_accumulation_steps=2)


@pytest.mark.parametrize(
    ("config", "at"),
    [
        (replace(RESUMED, optimizer="sgd"), 4),
        (replace(RESUMED, optimizer="bertadam"), 4),
        (replace(RESUMED, optimizer="muon"), 4),
        (TOKENS, 12),  # in the middle of the second epoch
    ],
)
def test_a_killed_run_resumes_bit_equal(config, at, student, text_only, tmp_path):
    """With a worker that loads its data, or none."""

    def resume(out: Path, inner: PlainTrainingStep, workers: int = 0) -> dict[str, Tensor]:
        model = student()
        torch.manual_seed(4)
        objective = MaskedLM(model.sizes, mask_id=4)
        own = replace(config, workers=workers)
        train(model, [objective], text_only, own, out, training_step=inner)
        return weights(model, [objective])

    whole = resume(tmp_path / "whole", PlainTrainingStep())
    with pytest.raises(Killed):
        resume(tmp_path / "killed", dying(at))
    again = resume(tmp_path / "killed", PlainTrainingStep(), int(config is TOKENS))
    assert [name for name in whole if not torch.equal(whole[name], again[name])] == []
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "killed")


def test_muon_moves_hidden_matrices_and_adamw_the_rest(
    student: Any, text_only: Any, tmp_path: Path
) -> None:
    """Two steps, beside torch's own optimizers of the same gradients; embeddings and heads are AdamW's."""
    model = student()
    torch.manual_seed(4)
    objective = MaskedLM(model.sizes, mask_id=4)
    module = ModelWithObjectives(model, [objective])
    config = replace(FLAT, optimizer="muon", lr=0.01)
    twin = deepcopy(module)
    optimizer = make_optimizer(module, config)
    named = dict(twin.named_parameters())
    hidden = {
        name
        for name in named
        if (".layer." in name and name.endswith(LINEARS)) or "pooler.dense.weight" in name
    }
    assert len(hidden) == 13 and all(named[name].ndim == 2 for name in hidden)
    muon = torch.optim.Muon(
        [named[name] for name in sorted(hidden)], 0.01, 0.1, adjust_lr_fn="match_rms_adamw"
    )
    rest = [value for name, value in named.items() if name not in hidden]
    groups = [
        {"params": [one for one in rest if (one.ndim > 1) is decays], "weight_decay": 0.1 * decays}
        for decays in (True, False)
    ]
    adamw = torch.optim.AdamW(groups, 0.01)
    optimizer.load_state_dict(optimizer.state_dict())  # as accelerate does
    for step in range(2):
        set_learning_rates(optimizer, config, step, 6, 6)
        for one, other in zip(module.parameters(), twin.parameters(), strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for one in (optimizer, muon, adamw):
            one.step()
    for name, value in module.named_parameters():
        torch.testing.assert_close(value, named[name], rtol=1e-5, atol=1e-6, msg=name)


LINEARS = ("query.weight", "key.weight", "value.weight", "dense.weight")


def test_bertadam_leaves_alone_what_has_no_gradient() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = BertAdam([{"params": [parameter], "weight_decay": 0.1}], lr=0.1)
    optimizer.step()
    assert torch.equal(parameter, torch.ones(2)) and not optimizer.state


def test_bertadam_moves_many_at_once_as_one_by_one() -> None:
    """On an accelerator a kernel moves many parameters; on a processor each is moved by itself."""
    alone, together = (
        [nn.Parameter(torch.linspace(-1, number, 5)) for number in (1, 2, 3)] for _ in range(2)
    )
    made = {"lr": 0.1, "betas": (0.9, 0.98)}
    one, other = (
        BertAdam([{"params": some, "weight_decay": 0.1}], **made) for some in (alone, together)
    )
    for call in range(3):
        for parameter in (*alone, *together):
            parameter.grad = (parameter * (call + 1)).cos().detach()
        one.step()
        with torch.no_grad():
            other._update(together, other.param_groups[0])
    for first, second in zip(alone, together, strict=True):
        torch.testing.assert_close(first, second, rtol=0, atol=1e-7)
