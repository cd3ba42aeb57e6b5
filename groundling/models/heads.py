"""The few heads there are; objectives own them, none is exported with a model."""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn

LM_HEADS = {
    "bert": (
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.bias",
    ),
    "roberta": ("lm_head.dense", "lm_head.layer_norm", "lm_head.bias"),
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


class LMHead(nn.Module):
    """BERT's masked-language-modelling head: Linear, GELU, LayerNorm, then the (tied) input embedding table."""

    def __init__(self, width: int, table: tuple[int, int]) -> None:
        """`width` of the states; `table` = (vocabulary, embedding width), which may be narrower (ELECTRA)."""
        super().__init__()
        vocabulary, embedding = table
        self.dense = nn.Linear(width, embedding)
        self.norm = nn.LayerNorm(embedding, eps=1e-12)
        self.bias = nn.Parameter(torch.zeros(vocabulary))

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """Logits (N, vocabulary) of states (N, D) against `table` (vocabulary, E)."""
        return F.linear(self.norm(F.gelu(self.dense(states))), table, self.bias)

    def load(self, folder: Path, family: str) -> bool:
        """Fill from a checkpoint folder that holds the family's head; False (and nothing changed) if it has none."""
        file = folder / "model.safetensors"
        if family not in LM_HEADS or not file.exists():
            return False
        dense, norm, bias = LM_HEADS[family]
        theirs = {"norm.weight": f"{norm}.weight", "dense.weight": f"{dense}.weight", "bias": bias}
        optional = {
            "norm.bias": f"{norm}.bias",
            "dense.bias": f"{dense}.bias",
        }  # ModernBERT has neither
        own = self.state_dict()
        with safe_open(file, framework="pt") as stored:
            keys = set(stored.keys())
            if not set(theirs.values()) <= keys:
                return False
            wanted = theirs | {k: v for k, v in optional.items() if v in keys}
            found = {name: stored.get_tensor(key) for name, key in wanted.items()}
        if any(found[name].shape != own[name].shape for name in found):
            return False
        for name in optional.keys() - found.keys():  # a head without biases: zero is no bias
            found[name] = torch.zeros_like(own[name])
        self.load_state_dict({**own, **found})
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self.norm.eps = config.get("layer_norm_eps", config.get("norm_eps", self.norm.eps))
        return True


class Pooler(nn.Module):
    """BERT's pooler on the first position: Linear, tanh."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """(B, D) from states (B, T, D)."""
        return torch.tanh(self.dense(states[:, 0]))


class PairPooler(nn.Module):
    """UNITER's NLVR2 head (code): two sequences read each other and are pooled to one vector each, side by side."""

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        """Heads of 64, as BERT's."""
        super().__init__()
        self.read = nn.ModuleList(
            nn.MultiheadAttention(width, max(1, width // 64), dropout, batch_first=True)
            for _ in range(2)
        )
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(dropout))
        self.score = nn.Linear(width, 1)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(B, 2D) from states (2B, S, D), a sample's two sequences one after the other, and their mask (2B, S)."""
        pooled = []
        for own, other in ((0, 1), (1, 0)):
            mine, theirs, hidden = states[own::2], states[other::2], ~mask[other::2]
            read, _ = self.read[own](
                mine, theirs, theirs, key_padding_mask=hidden, need_weights=False
            )
            mixed = self.mix(torch.cat([mine, read], -1))
            scores = self.score(mixed).relu().masked_fill(~mask[own::2, :, None], -torch.inf)
            pooled.append((scores.softmax(1) * mixed).sum(1))
        return torch.cat(pooled, -1)
