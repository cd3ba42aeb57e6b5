"""A sentence encoder's vectors of texts, as sentence-transformers would make them, without that library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch import Tensor, nn

from groundling.batch import Example, collate, needed
from groundling.data.samples import TextInput, TextSamples
from groundling.errors import InputError
from groundling.models.text import load_text_encoder
from groundling.runs import read_json

BATCH = 64
"""Texts that are read at a time."""


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


# -- to be replaced by models/sentence_folder.py -------------------------------------------------------------------


class Modules:
    def __init__(self, pool: str, dense: nn.Sequential, max_length: int, lower: bool) -> None:
        self.pool = pool
        self.dense = dense
        self.max_length = max_length
        self.lower = lower


def read_modules(folder: Path) -> Modules:
    if not (folder / "modules.json").is_file():
        raise InputError(
            f"{folder}: no folder of sentence-transformers, modules.json is missing; `adapt --keep-projection` writes one"
        )
    pool = "mean"
    layers: list[nn.Module] = []
    for module in read_json(folder / "modules.json"):
        kind = module["type"].rpartition(".")[2]
        place = folder / module["path"]
        if kind == "Pooling":
            config = read_json(place / "config.json")
            pool = "cls" if config.get("pooling_mode_cls_token") else "mean"
        elif kind == "Dense":
            config = read_json(place / "config.json")
            linear = nn.Linear(config["in_features"], config["out_features"], config["bias"])
            weights = load_file(place / "model.safetensors")
            linear.load_state_dict({k.removeprefix("linear."): v for k, v in weights.items()})
            activation = config["activation_function"].rpartition(".")[2]
            layers += [linear, {"Tanh": nn.Tanh, "Identity": nn.Identity}[activation]()]
        elif kind not in ("Transformer", "Normalize"):
            raise InputError(f"{folder}: unknown module {kind}")
    about = folder / "sentence_bert_config.json"
    settings = read_json(about) if about.is_file() else {}
    length = settings.get("max_seq_length") or 0
    return Modules(pool, nn.Sequential(*layers), length, bool(settings.get("do_lower_case")))


def pooled_states(states: Tensor, mask: Tensor, pool: str) -> Tensor:
    if pool == "cls":
        return states[:, 0]
    inside = mask.unsqueeze(-1)
    return (states * inside).sum(1) / inside.sum(1)
