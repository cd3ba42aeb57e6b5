"""A sentence encoder's vectors of texts, as sentence-transformers would make them, without that library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from groundling.batch import Example, collate, needed
from groundling.data.samples import TextInput, TextSamples
from groundling.errors import InputError, first_line
from groundling.models.text import load_text_encoder
from groundling.runs import read_json

BATCH = 64
"""Texts that are read at a time."""
ACTIVATIONS: dict[str, type[nn.Module]] = {"Tanh": nn.Tanh, "Identity": nn.Identity}
"""Of a Dense layer."""


class SentenceVectors:
    """Reads texts with a folder of sentence-transformers: an encoder, its pooling, and Dense layers after it."""

    def __init__(self, folder: str | Path, max_length: int = 0) -> None:
        """`max_length`: pieces of a text that are read, 0 for as many as the folder says.

        Raises InputError if the folder is none of sentence-transformers, or holds a module that is not known here.
        """
        self.folder = Path(folder)
        modules = read_modules(self.folder)
        self.encoder = load_text_encoder(self.folder).eval()
        self.pool = modules.pool
        self.dense = modules.dense.eval()
        self.lower = modules.lower
        wanted = max_length or modules.max_length or self.encoder.max_length
        self.max_length = min(wanted, self.encoder.max_length)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        layers = [layer for layer in self.dense if isinstance(layer, nn.Linear)]
        return layers[-1].out_features if layers else self.encoder.sizes.text

    @torch.no_grad()
    def __call__(self, texts: Sequence[str], device: torch.device) -> tuple[np.ndarray, np.ndarray]:
        """Unit-length vectors (N, E) of texts, and how many pieces were cut off the end of each, (N,).

        Raises InputError if a vector is not finite.
        """
        self.encoder.to(device)
        self.dense.to(device)
        read = [text.lower() if self.lower else text for text in texts]
        examples = [Example(str(number), text) for number, text in enumerate(read)]
        samples = TextSamples(examples, TextInput(self.encoder.tokenizer, self.max_length))
        vectors = np.zeros((len(texts), self.width), np.float32)
        dropped = np.zeros(len(texts), np.int64)
        order = np.argsort(samples.lengths, kind="stable")  # equal lengths need little padding
        for start in range(0, len(order), BATCH):
            places = order[start : start + BATCH]
            some = samples.get([int(place) for place in places])
            batch = collate(some).to(device)
            tokens = needed(batch.text, "text", "a sentence encoder")
            states = needed(self.encoder(batch).text, "text", "a sentence encoder")
            pooled = self.dense(pooled_states(states, tokens.mask, self.pool))
            vectors[places] = F.normalize(pooled.float(), dim=-1).cpu().numpy()
            dropped[places] = [sample.dropped for sample in some]
        if not np.isfinite(vectors).all():
            raise InputError(f"{self.folder}: its vectors are not finite numbers")
        return vectors, dropped


# -- the folder ------------------------------------------------------------------------------------------------------


class Modules(NamedTuple):
    """What a folder of sentence-transformers says of its vectors."""

    pool: str
    """`mean` of all pieces, special ones too, or `cls`, the first."""
    dense: nn.Sequential
    """What follows: (N, E) from (N, D)."""
    max_length: int
    """Pieces of a text, special ones included; 0: as many as the encoder takes."""
    lower: bool
    """Texts are lower-cased first."""


def read_modules(folder: Path) -> Modules:
    """Pooling, Dense layers and settings; raises InputError, naming the file, for what is not known here."""
    listed = folder / "modules.json"
    if not listed.is_file():
        raise InputError(
            f"{folder}: no folder of sentence-transformers, modules.json is missing; `adapt --keep-projection` "
            "writes one"
        )
    pool = "mean"
    layers: list[nn.Module] = []
    for module in read_json(listed):
        kind = module["type"].rpartition(".")[2]
        place = folder / module["path"]
        if kind == "Pooling":
            pool = _pool(place / "config.json")
        elif kind == "Dense":
            layers += _dense(place)
        elif kind not in ("Transformer", "Normalize"):
            raise InputError(f"{listed}: module {module['type']} is not known here")
    about = folder / "sentence_bert_config.json"
    settings = read_json(about) if about.is_file() else {}
    length = settings.get("max_seq_length") or 0
    return Modules(pool, nn.Sequential(*layers), length, bool(settings.get("do_lower_case")))


def _pool(file: Path) -> str:
    config = read_json(file)
    modes = [key for key, value in config.items() if key.startswith("pooling_mode_") and value]
    known = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls"}
    if len(modes) != 1 or modes[0] not in known:
        raise InputError(
            f"{file}: pooling {', '.join(modes)} is not known here; expected mean or cls"
        )
    return known[modes[0]]


def _dense(folder: Path) -> list[nn.Module]:
    config = read_json(folder / "config.json")
    activation = str(config["activation_function"]).rpartition(".")[2]
    if activation not in ACTIVATIONS:
        raise InputError(f"{folder}/config.json: activation {activation} is not known here")
    linear = nn.Linear(config["in_features"], config["out_features"], config["bias"])
    try:
        weights = load_file(folder / "model.safetensors")
        linear.load_state_dict(
            {name.removeprefix("linear."): value for name, value in weights.items()}
        )
    except (OSError, SafetensorError, RuntimeError) as error:
        raise InputError(
            f"{folder}/model.safetensors: cannot be loaded ({first_line(error)})"
        ) from None
    return [linear, ACTIVATIONS[activation]()]


def pooled_states(states: Tensor, mask: Tensor, pool: str) -> Tensor:
    """(N, D) from states (N, T, D) under a mask (N, T) of all pieces."""
    if pool == "cls":
        return states[:, 0]
    inside = mask.unsqueeze(-1)
    return (states * inside).sum(1) / inside.sum(1)
