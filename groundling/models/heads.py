"""Heads that several models share: masked language modelling, pooling. Objectives own them; none is exported."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn
from transformers.activations import ACT2FN

from groundling.errors import InputError

LM_HEADS = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "xlm-roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "camembert": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "mpnet": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
    "electra": (
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head.bias",
    ),
    "modernbert": ("head.dense", "head.norm", "decoder.bias"),
    "distilbert": ("vocab_transform", "vocab_layer_norm", "vocab_projector.bias"),
    "deberta-v2": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
}
"""Where each family's checkpoints keep the language-modelling head: transform, its LayerNorm, output bias."""

ACTIVATIONS = {
    "bert": "hidden_act",
    "deberta-v2": "hidden_act",
    "distilbert": "activation",
    "modernbert": "classifier_activation",
}
"""Which setting names the activation inside a family's head; RoBERTa's, MPNet's and ELECTRA's are exact GELU always."""


def lm_head_style(config: Any) -> tuple[str, float]:
    """Activation and LayerNorm epsilon of the masked-LM head that belongs to an HF configuration's family.

    Raises InputError for an activation that transformers does not have.
    """
    settings = config.to_dict()
    activation = settings.get(ACTIVATIONS.get(config.model_type, ""), "gelu")
    epsilon = settings.get("layer_norm_eps", settings.get("norm_eps", 1e-12))
    if config.model_type == "distilbert":  # its configuration has no epsilon, its code has
        epsilon = 1e-12
    if activation not in ACT2FN:
        where = f"{config.name_or_path}: " if config.name_or_path else ""
        raise InputError(
            f"{where}a {config.model_type} model with the unknown activation {activation!r}"
        )
    return str(activation), float(epsilon)


class LMHead(nn.Module):
    """BERT's masked-language-modelling head: Linear, activation, LayerNorm, then the (tied) input embedding table."""

    def __init__(
        self,
        width: int,
        table: tuple[int, int],
        activation: str = "gelu",
        epsilon: float = 1e-12,
    ) -> None:
        """`width` of the states; `table` = (vocabulary, embedding width), which may be narrower (ELECTRA).

        `activation` and `epsilon` as `lm_head_style` gives them.
        """
        super().__init__()
        vocabulary, embedding = table
        self.dense = nn.Linear(width, embedding)
        self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(embedding, eps=epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """Logits (n, vocabulary) of states (n, D) against `table` (vocabulary, E)."""
        return F.linear(self.norm(self.activation(self.dense(states))), table, self.bias)

    def load(self, folder: Path, family: str) -> bool:
        """Fill from a checkpoint folder that holds the family's head; False (and nothing changed) if it has none."""
        weights = lm_head_weights(folder, family)
        before = self.state_dict()
        weights = {name: grown(value, before[name]) for name, value in weights.items()}
        if not weights or any(weights[name].shape != before[name].shape for name in weights):
            return False
        for name in before.keys() - weights.keys():  # a head without biases: zero is no bias
            weights[name] = torch.zeros_like(before[name])
        self.load_state_dict(weights)
        return True


def grown(stored: Tensor, made: Tensor) -> Tensor:
    """A stored vector (n,) as long as the `made` one, whose last places it lacks: biases of words added since.

    Anything but a vector that has become longer is what it is.
    """
    if stored.ndim != 1 or made.ndim != 1 or len(stored) >= len(made):
        return stored
    return torch.cat([stored, made[len(stored) :].to(stored.dtype)])


def lm_head_weights(folder: Path, family: str) -> dict[str, Tensor]:
    """Weights (...) of the family's head in a checkpoint folder, by their names in `LMHead`; none if it has no head."""
    file = folder / "model.safetensors"
    if family not in LM_HEADS or not file.exists():
        return {}
    with safe_open(file, framework="pt") as stored:
        names = _stored_names(family, set(stored.keys()))
        return {name: stored.get_tensor(key) for name, key in (names or {}).items()}


def _stored_names(family: str, keys: set[str]) -> dict[str, str] | None:
    """What a checkpoint with these keys calls each weight of the head; None if it lacks one."""
    dense, norm, bias = LM_HEADS[family]
    # BERT's first checkpoints, bert-base-uncased among them, call a LayerNorm's weights gamma and beta.
    wanted = {
        "dense.weight": (f"{dense}.weight",),
        "norm.weight": (f"{norm}.weight", f"{norm}.gamma"),
        "bias": (bias,),
    }
    optional = {
        "dense.bias": (f"{dense}.bias",),
        "norm.bias": (f"{norm}.bias", f"{norm}.beta"),
    }  # ModernBERT has neither
    names = {}
    for name, spellings in {**wanted, **optional}.items():
        there = [spelling for spelling in spellings if spelling in keys]
        if there:
            names[name] = there[0]
        elif name in wanted:
            return None
    return names


class Pooler(nn.Module):
    """BERT's pooler on the first position: Linear, tanh (Devlin et al. 2019)."""

    def __init__(self, width: int) -> None:
        """`width` of the states and of the pooled vector."""
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """(N, D) from states (N, T, D)."""
        return torch.tanh(self.dense(states[:, 0]))
