"""Which weights a model has, whatever folder or hub it came from."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from torch import nn

from groundling.runs.hashing import sha256_of


def weights_sha256(model: nn.Module) -> str:
    """A hash of all of a model's numbers; not of their names, which a library may change between its releases."""
    digests = []
    for tensor in model.state_dict().values():
        numbers = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digests.append(hashlib.sha256(numbers.numpy()).hexdigest())
    return hashlib.sha256("".join(sorted(digests)).encode()).hexdigest()


def saved_sha256(source: str | Path) -> str:
    """A hash of the weights below a folder, wherever it lies; empty if there are none, as of a hub id."""
    files = Path(source).rglob("*.safetensors")
    digests = sorted(sha256_of(path) for path in files)
    return hashlib.sha256("".join(digests).encode()).hexdigest() if digests else ""
