"""How weights move: the papers' optimizers, their schedules, and which weights decay."""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import SGD, AdamW, Optimizer

from groundling.config import TrainConfig


class BertAdam(Optimizer):
    """Adam as BERT's code has it: running means are not corrected for their start at zero; decay is apart from them.

    Source: google-research/bert, optimization.py; VisualBERT's and XDBERT's code train with it.
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
        """Move every parameter that has a gradient; `closure` is not read."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = self.state[parameter]
        if not state:
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        first, second = group["betas"]
        mean = state["exp_avg"].lerp_(gradient, 1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        parameter.mul_(1 - group["lr"] * group["weight_decay"])
        parameter.addcdiv_(mean, square.sqrt().add_(group["eps"]), value=-group["lr"])


def optimizer_of(module: nn.Module, config: TrainConfig) -> Optimizer:
    """The optimizer of a run, over all parameters of `module` that train."""
    groups = _groups(module, config)
    if config.optimizer == "sgd":
        return SGD(groups, lr=config.lr, momentum=config.momentum)
    if config.optimizer == "bertadam":
        return BertAdam(groups, config.lr, config.betas, config.epsilon)
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.epsilon, fused=True)


def _groups(module: nn.Module, config: TrainConfig) -> list[dict[str, Any]]:
    """Parameter groups: those that decay and those that do not, of the model and of the objectives' heads."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            of_head = name.startswith("objectives.")
            decays = config.decay_all or parameter.ndim > 1
            groups.setdefault((of_head, decays), []).append(parameter)
    return [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if decays else 0.0,
            "scale": config.head_lr if head else 1.0,
            "head": head,
        }
        for (head, decays), parameters in groups.items()
    ]


def set_rates(
    optimizer: Optimizer, config: TrainConfig, step: int, steps: int, epoch: float
) -> None:
    """Give every group its learning rate at a step of `steps`; `epoch` is the number of steps in one."""
    for group in optimizer.param_groups:
        share = _rate(step, steps, config, epoch, head=group["head"])
        group["lr"] = config.lr * group["scale"] * share


def _rate(step: int, steps: int, config: TrainConfig, epoch: float, head: bool) -> float:
    """Learning rate at a step, as a share of its peak."""
    whole = config.horizon or steps
    delay = 0 if head else config.head_start or round(config.head_share * whole)
    place = step - delay
    span = max(1, whole - delay)
    if place < 0:
        return 0.0
    warm = config.warmup_steps or round(config.warmup * span)
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


def clip_each(module: nn.Module, largest: float) -> None:
    """Clip every parameter's gradient by itself (uclanlp/visualbert, visualbert/pytorch_pretrained_bert)."""
    for parameter in module.parameters():
        if parameter.grad is not None:
            clip_grad_norm_([parameter], largest)
