"""The papers' optimizers, learning rate schedules, and weight decay."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Muon, Optimizer

from groundling.settings.training import TrainingArguments


class BertAdam(Optimizer):
    """Adam as in BERT's code: no bias correction, and decoupled weight decay.

    Source: google-research/bert, optimization.py; also used by VisualBERT's and XDBERT's code.
    """

    def __init__(
        self,
        groups: Iterable[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
    ) -> None:
        """`groups` of parameters, each with its own `weight_decay`."""
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; `closure` is ignored."""
        for group in self.param_groups:
            parameters: list[Tensor] = [one for one in group["params"] if one.grad is not None]
            if all(one.is_cpu for one in parameters):
                # One by one, each stays in the CPU caches, and no second copy of all parameters is needed.
                for one in parameters:
                    self._update([one], group)
            else:
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for one in parameters:
            if not self.state[one]:
                self.state[one]["exp_avg"] = torch.zeros_like(one)
                self.state[one]["exp_avg_sq"] = torch.zeros_like(one)
        gradients = _gradients(parameters)
        means = [self.state[one]["exp_avg"] for one in parameters]
        squares = [self.state[one]["exp_avg_sq"] for one in parameters]
        first, second = group["betas"]
        torch._foreach_lerp_(means, gradients, 1 - first)
        torch._foreach_mul_(squares, second)
        torch._foreach_addcmul_(squares, gradients, gradients, value=1 - second)
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        divisors = torch._foreach_sqrt(squares)
        torch._foreach_add_(divisors, group["eps"])
        torch._foreach_addcdiv_(parameters, means, divisors, value=-group["lr"])


class MuonWithAdamW(Optimizer):
    """Muon for the groups marked `is_muon`, AdamW for the others.

    Muon's updates are as large as AdamW's (`match_rms_adamw`: Liu et al. 2025, 2502.16982, Section 2.2), so one
    learning rate serves both. Its other settings are torch's, those of Jordan et al. 2024 (momentum .95, five
    Newton-Schulz steps).
    """

    def __init__(
        self, groups: Iterable[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        """`groups` of parameters, each with its own `weight_decay` and with `is_muon`."""
        super().__init__(groups, {"lr": lr})
        muon, adamw = self._groups_of(True), self._groups_of(False)
        self.parts: dict[bool, Optimizer] = {}
        if muon:
            self.parts[True] = Muon(muon, lr=lr, adjust_lr_fn="match_rms_adamw")
        if adamw:
            self.parts[False] = AdamW(adamw, lr=lr, betas=betas, eps=eps, fused=True)

    def _groups_of(self, is_muon: bool) -> list[dict[str, Any]]:
        return [one for one in self.param_groups if one["is_muon"] is is_muon]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update every parameter that has a gradient; `closure` is ignored."""
        for is_muon, part in self.parts.items():
            # A loaded state replaces both, which all parts share.
            part.param_groups = self._groups_of(is_muon)
            part.state = self.state
            part.step()


def make_optimizer(module: nn.Module, config: TrainingArguments) -> Optimizer:
    """Make a run's optimizer of all trainable parameters of `module`."""
    groups = _groups(module, config)
    if config.optimizer == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum)
    if config.optimizer == "bertadam":
        return BertAdam(groups, config.lr, config.betas, config.epsilon)
    if config.optimizer == "muon":
        return MuonWithAdamW(groups, config.lr, config.betas, config.epsilon)
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.epsilon, fused=True)


def _groups(module: nn.Module, config: TrainingArguments) -> list[dict[str, Any]]:
    hidden = _hidden_matrices(module) if config.optimizer == "muon" else set()
    groups: dict[tuple[bool, bool, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            is_head = name.startswith("objectives.")
            decays = config.decay_bias_and_norm or parameter.ndim > 1
            is_muon = parameter in hidden and not is_head
            groups.setdefault((is_head, decays, is_muon), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if decays else 0.0,
            "scale": config.head_lr if head else 1.0,
            "head": head,
            "is_muon": is_muon,
        }
        for (head, decays, is_muon), parameters in groups.items()
    ]


def _hidden_matrices(module: nn.Module) -> set[nn.Parameter]:
    """All matrices but embeddings, those tied to heads included, for which Muon's authors advise AdamW."""
    tables = {one.weight for one in module.modules() if isinstance(one, nn.Embedding)}
    return {one for one in module.parameters() if one.ndim == 2} - tables


def set_learning_rates(
    optimizer: Optimizer, config: TrainingArguments, step: int, steps: int, epoch: float
) -> None:
    """Set every group's learning rate for a step of `steps`; `epoch`: number of steps per epoch."""
    for group in optimizer.param_groups:
        share = _learning_rate_factor(step, steps, config, epoch, head=group["head"])
        group["lr"] = config.lr * group["scale"] * share


def _learning_rate_factor(
    step: int, steps: int, config: TrainingArguments, epoch: float, head: bool
) -> float:
    whole = config.schedule_steps or steps
    delay = 0 if head else config.freeze_encoder_steps or round(config.freeze_encoder_ratio * whole)
    place = step - delay
    span = max(1, whole - delay)
    if place < 0:
        return 0.0
    warm = config.warmup_steps or round(config.warmup_ratio * span)
    if place < warm:
        return (place + 1) / warm
    if config.schedule == "steps":
        passed = bisect.bisect_right([number * epoch for number in config.milestones], step)
        return config.milestone_factor**passed
    progress = min(1.0, (place - warm) / max(1, span - warm))
    if config.schedule == "linear":
        return 1 - progress
    if config.schedule == "cosine":
        return (1 + math.cos(math.pi * progress)) / 2
    return 1.0


def clip_each_gradient(module: nn.Module, max_norm: float) -> None:
    """Clip every parameter's gradient norm separately (uclanlp/visualbert, visualbert/pytorch_pretrained_bert)."""
    gradients = _gradients(module.parameters())
    if not gradients:
        return
    norms = torch.stack(torch._foreach_norm(gradients))
    # The same as torch.nn.utils.clip_grad_norm_ for each parameter.
    shares = (max_norm / (norms + 1e-6)).clamp(max=1)
    torch._foreach_mul_(gradients, shares.unbind())


def _gradients(parameters: Iterable[Tensor]) -> list[Tensor]:
    return [one.grad for one in parameters if one.grad is not None]
