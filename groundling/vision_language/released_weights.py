"""Weights as the papers' authors released them: read safely, renamed, and loaded strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from groundling.core.errors import InputError, in_one_line
from groundling.vision_language.single_stream import SingleStream

POOLER = "text.encoder.pooler."
"""Weights that a checkpoint need not have: pre-training without a pooler leaves none."""
BERT = {part: f"text.encoder.{part}" for part in ("embeddings.", "encoder.", "pooler.")}
"""What a BERT's own weights are called in a `SingleStream`."""


@dataclass(frozen=True)
class Names:
    """How a code base names its weights; of several prefixes that fit, the longest counts."""

    outer: tuple[str, ...]
    """Prefixes that checkpoints may or may not have, in this order."""
    renamed: Mapping[str, str]
    """From a prefix there to one of `SingleStream`."""
    dropped: tuple[str, ...]
    """Prefixes of weights that are not used: heads and detectors."""
    optional: tuple[str, ...] = ()
    """Prefixes here that a checkpoint need not have, beside the pooler."""

    def inside(self, name: str) -> str:
        """A weight's name without the outer prefixes."""
        for prefix in self.outer:
            name = name.removeprefix(prefix)
        return name


def renamed(weights: Mapping[str, Tensor], names: Names) -> tuple[dict[str, Tensor], list[str]]:
    """Weights (...) by the names of `SingleStream`, and the names of those dropped.

    Raises InputError on an unknown name.
    """
    kept: dict[str, Tensor] = {}
    dropped = []
    for name, value in weights.items():
        inner = names.inside(name)
        prefixes = [one for one in (*names.renamed, *names.dropped) if inner.startswith(one)]
        if not prefixes:
            raise InputError(f"{name}: neither a known weight nor one known to be of no use here")
        longest = max(prefixes, key=len)
        if longest not in names.renamed:
            dropped.append(name)
            continue
        rest = inner.removeprefix(longest)
        # BERT's first checkpoints call a LayerNorm's weights gamma and beta.
        rest = rest.replace(".gamma", ".weight").replace(".beta", ".bias")
        target = names.renamed[longest].replace(".gamma", ".weight").replace(".beta", ".bias")
        kept[target + rest] = value
    return kept, dropped


def load_released_weights(
    model: SingleStream, source: str | Path | Mapping[str, Tensor], names: Names
) -> list[str]:
    """Fill `model` from a file, a folder or weights (...) by name, strictly; what is dropped is printed and returned.

    Raises InputError for a weight that is missing, unknown, or of another shape.
    """
    if isinstance(source, Mapping):
        weights: Mapping[str, Tensor] = source
        where = "weights"
    else:
        weights = read_weights(source)
        where = str(source)
    kept, dropped = renamed(weights, names)
    before = model.state_dict()
    missing = sorted(before.keys() - kept.keys())
    lacking = [name for name in missing if not name.startswith((POOLER, *names.optional))]
    if lacking:
        raise InputError(f"{where}: {len(lacking)} weights are missing, the first is {lacking[0]}")
    for name, value in kept.items():
        if name not in before or value.shape != before[name].shape:
            expected = tuple(before[name].shape) if name in before else "nothing"
            raise InputError(
                f"{where}: {name} is {tuple(value.shape)}, this model expects {expected}"
            )
    model.load_state_dict({**before, **kept})
    if dropped or missing:
        parts = sorted({name.rpartition(".")[0] for name in dropped})
        unused = ", ".join(parts) or "nothing"
        print(f"{where}: not used: {unused}; left as made: {', '.join(missing) or 'nothing'}")
    return dropped


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """Weights (...) of a file, or of a folder's `model.safetensors` or `pytorch_model.bin`; only tensors are read.

    Raises InputError for a file that holds anything else, or cannot be read.
    """
    path = Path(source)
    if path.is_dir():
        safe = path / "model.safetensors"
        path = safe if safe.exists() else path / "pytorch_model.bin"
    try:
        content: object
        if path.suffix == ".safetensors":
            content = load_file(path)
        else:
            content = torch.load(path, "cpu", weights_only=True)
    except Exception as error:  # torch's reader of damaged pickles fails in many ways
        raise InputError(
            f"{path}: no weights that can be read safely; save its tensors alone ({in_one_line(error)})"
        ) from None
    for whole in ("state_dict", "model"):  # of a training state
        if isinstance(content, dict) and isinstance(content.get(whole), dict):
            content = content[whole]
    if not isinstance(content, dict):
        raise InputError(f"{path}: expected weights by name")
    if not all(isinstance(value, Tensor) for value in content.values()):
        raise InputError(f"{path}: expected weights by name")
    return content
