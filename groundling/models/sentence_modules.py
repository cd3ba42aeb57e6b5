"""Sentence encoders in sentence-transformers' format: read, apply and write the modules after the encoder.

The format is that of sentence-transformers 2 to 6: `modules.json` lists the encoder and the modules
after it, each with its own folder. An encoder in a subfolder (`0_Transformer/`) is written back beside
`modules.json`, as newer versions do. Nothing is unpickled, and sentence-transformers is not required.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from groundling.core.errors import InputError, convert_errors, convert_read_errors
from groundling.models.hub import local_only
from groundling.runs.folder import json_text

MODULES = "modules.json"
"""The file that identifies a sentence-transformers folder and lists its modules in order."""
ABOUT = "config_sentence_transformers.json"
"""Prompts and the similarity function."""
ENCODER = (
    "sentence_bert_config.json",
    *(
        f"sentence_{family}_config.json"
        for family in ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
    ),
)
"""Possible names of the encoder module's settings file; the first in all versions, the others in old ones."""
ENCODER_KIND = "Transformer"
"""Type of the encoder module."""
CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PACKAGE = "sentence_transformers."
OLD_TYPES = "sentence_transformers.models."
"""Prefix of module types up to version 5, which later versions read too."""

LEGACY = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Pooling settings up to version 5, in the order of concatenation, and their names in version 6."""

Pool = Callable[[Tensor, Tensor], Tensor]


def _pool_first(states: Tensor, mask: Tensor) -> Tensor:
    place = mask.int().argmax(1)
    return states[torch.arange(len(states), device=states.device), place]


def _pool_last(states: Tensor, mask: Tensor) -> Tensor:
    place = mask.shape[1] - 1 - mask.int().flip(1).argmax(1)
    return states[torch.arange(len(states), device=states.device), place]


def _pool_max(states: Tensor, mask: Tensor) -> Tensor:
    return states.masked_fill(~mask.unsqueeze(-1), float("-inf")).amax(1)


def _pool_mean(states: Tensor, mask: Tensor) -> Tensor:
    inside = mask.unsqueeze(-1)
    return (states * inside).sum(1) / inside.sum(1).clamp(min=1)


def _pool_mean_sqrt_len(states: Tensor, mask: Tensor) -> Tensor:
    inside = mask.unsqueeze(-1)
    return (states * inside).sum(1) / inside.sum(1).clamp(min=1).sqrt()


def _pool_weighted_mean(states: Tensor, mask: Tensor) -> Tensor:
    weights = (mask.cumsum(1) * mask).unsqueeze(-1).to(states.dtype)
    return (states * weights).sum(1) / weights.sum(1).clamp(min=1)


POOLS: dict[str, Pool] = {
    "cls": _pool_first,
    "max": _pool_max,
    "mean": _pool_mean,
    "mean_sqrt_len_tokens": _pool_mean_sqrt_len,
    "weightedmean": _pool_weighted_mean,
    "lasttoken": _pool_last,
}
"""All poolings of sentence-transformers, of states (N, T, D) and a mask (N, T) that includes special tokens."""


@dataclass(frozen=True)
class Pooling:
    """Pools a text's states to one vector, in one way or in several, which are concatenated."""

    modes: tuple[str, ...] = ("mean",)
    """Names in `POOLS`."""

    def __call__(self, states: Tensor, mask: Tensor) -> Tensor:
        """(N, modes * D) from states (N, T, D) and a mask (N, T) bool, True at every token, special ones included."""
        return torch.cat([POOLS[mode](states, mask) for mode in self.modes], -1)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "torch.nn.modules.linear.Identity": lambda values: values,
    "torch.nn.modules.activation.Tanh": torch.tanh,
    "torch.nn.modules.activation.ReLU": F.relu,
    "torch.nn.modules.activation.GELU": F.gelu,
    "torch.nn.modules.activation.SiLU": F.silu,
    "torch.nn.modules.activation.Sigmoid": torch.sigmoid,
}
"""Activations of a Dense module, by their names in its settings."""
IDENTITY = "torch.nn.modules.linear.Identity"


@dataclass(frozen=True, eq=False)
class Dense:
    """sentence-transformers' Dense module, frozen: a Linear and an activation."""

    weight: Tensor
    """(E, D)."""
    bias: Tensor | None
    """(E,)."""
    activation: str = IDENTITY
    """Name in `ACTIVATIONS`."""

    def __call__(self, vectors: Tensor) -> Tensor:
        """(N, E) from (N, D)."""
        bias = None if self.bias is None else self.bias.to(vectors.device)
        return ACTIVATIONS[self.activation](F.linear(vectors, self.weight.to(vectors.device), bias))


def unit_length(vectors: Tensor) -> Tensor:
    """Vectors (N, D) scaled to unit length."""
    return F.normalize(vectors, dim=-1)


@dataclass(frozen=True, eq=False)
class SentenceModules:
    """The modules that turn an encoder's states into a sentence vector, and their files for sentence-transformers."""

    pooling: Pooling
    post_pooling: tuple[Callable[[Tensor], Tensor], ...] = ()
    """Modules after pooling: `Dense`, `unit_length`."""
    max_length: int = 0
    """Maximum number of tokens, special ones included; 0: the encoder's own maximum."""
    prompt: str = ""
    """Default prompt, before every text."""
    modules: tuple[Mapping[str, Any], ...] = ()
    """Content of `modules.json`."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Every other file, by its path in the folder."""

    def vectors(self, states: Tensor, mask: Tensor) -> Tensor:
        """Sentence vectors (N, E) of states (N, T, D) and a mask (N, T), as sentence-transformers computes them."""
        vectors = self.pooling(states, mask)
        for step in self.post_pooling:
            vectors = step(vectors)
        return vectors

    def with_projection(self, projection: nn.Linear) -> SentenceModules:
        """The same pooling, followed by `projection` and normalisation instead of the modules after it."""
        weights = {
            f"linear.{name}": value.detach().cpu().clone()
            for name, value in projection.state_dict().items()
        }
        dense = Dense(weights["linear.weight"], weights["linear.bias"])
        heads = self.modules[:2]
        kept = {name: content for name, content in self.files.items() if not self._is_after(name)}
        new = {
            f"2_Dense/{CONFIG}": _json(
                {
                    "in_features": dense.weight.shape[1],
                    "out_features": dense.weight.shape[0],
                    "bias": True,
                    "activation_function": IDENTITY,
                }
            ),
            f"2_Dense/{WEIGHTS}": save(weights),
        }
        modules = (*heads, _module(2, "Dense"), _module(3, "Normalize"))
        return replace(
            self, post_pooling=(dense, unit_length), modules=modules, files={**kept, **new}
        )

    def _is_after(self, name: str) -> bool:
        folders = {PurePosixPath(str(module["path"])) for module in self.modules[2:]}
        return PurePosixPath(name).parent in folders

    def write(self, folder: Path) -> None:
        """Write `modules.json` and the modules' files beside the encoder's own files."""
        for name, content in self.files.items():
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        (folder / MODULES).write_bytes(_json([dict(module) for module in self.modules]))


def make_sentence_modules(mode: str, width: int, max_length: int) -> SentenceModules:
    """Make a plain encoder a sentence encoder: pooling only, of states of `width`, at most `max_length` tokens."""
    pooling = {"word_embedding_dimension": width}
    pooling |= {name: mode == one for name, one in LEGACY.items()}
    files = {
        ENCODER[0]: _json({"max_seq_length": max_length, "do_lower_case": False}),
        ABOUT: _json({"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}),
        f"1_Pooling/{CONFIG}": _json(pooling),
    }
    modules = (_module(0, "Transformer"), _module(1, "Pooling"))
    return SentenceModules(Pooling((mode,)), max_length=max_length, modules=modules, files=files)


def _module(number: int, kind: str) -> dict[str, Any]:
    path = f"{number}_{kind}" if number else ""
    return {"idx": number, "name": str(number), "path": path, "type": OLD_TYPES + kind}


def _json(value: object) -> bytes:
    return (json_text(value, indent=2, ensure_ascii=False) + "\n").encode()


# -- reading -----------------------------------------------------------------------------------------------------------


def encoder_folder(source: str | Path) -> str | Path:
    """The folder of the encoder's own files: the one that `modules.json` names, else `source` unchanged.

    A hub id is returned unchanged.
    """
    modules = Path(source) / MODULES
    if not modules.is_file():
        return source
    with convert_read_errors(modules):
        return Path(source, json.loads(modules.read_bytes())[0]["path"])


def load_sentence_modules(source: str | Path, width: int) -> tuple[SentenceModules | None, bool]:
    """Load the sentence modules of a hub id or folder (None without), and whether texts are lower-cased.

    `width` of the encoder's states. Raises InputError for an unsupported module, or one that does not fit.
    """
    folder = _SentenceFolder(source)
    if not folder.has(MODULES):
        return None, False
    with convert_errors(f"{source}: damaged sentence modules"):
        return _read_modules(folder, width)


def _read_modules(folder: _SentenceFolder, width: int) -> tuple[SentenceModules, bool]:
    modules = folder.modules()
    pooling = _pooling(folder, str(modules[1]["path"]))
    width *= len(pooling.modes)
    post_pooling: list[Callable[[Tensor], Tensor]] = []
    for module in modules[2:]:
        path = str(module["path"])
        if _kind(module) == "Normalize":
            folder.keep(f"{path}/{CONFIG}")
            post_pooling.append(unit_length)
        else:
            dense = _dense(folder, path, width)
            width = len(dense.weight)
            post_pooling.append(dense)
    # An encoder in a subfolder has its settings there.
    place = f"{modules[0]['path']}/" if modules[0]["path"] else ""
    name = next((place + name for name in ENCODER if folder.keep(place + name)), "")
    settings = folder.settings(name) if name else {}
    about = folder.settings(ABOUT) if folder.keep(ABOUT) else {}
    prompt_name = about.get("default_prompt_name")
    prompt = about["prompts"][prompt_name] if prompt_name else ""
    if prompt and not folder.settings(f"{modules[1]['path']}/{CONFIG}").get("include_prompt", True):
        raise InputError(
            f"{folder.name(ABOUT)}: a default prompt that pooling excludes (include_prompt: false) is not supported"
        )
    sentence = SentenceModules(
        pooling,
        tuple(post_pooling),
        int(settings.get("max_seq_length") or 0),
        prompt,
        ({**modules[0], "path": ""}, *modules[1:]),
        {file.removeprefix(place): content for file, content in folder.files.items()},
    )
    return sentence, bool(settings.get("do_lower_case"))


def add_lowercase(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer lower-case its texts, as sentence-transformers does for `do_lower_case`."""
    engine = tokenizer.backend_tokenizer
    steps = [normalizers.Lowercase()]
    if engine.normalizer is not None:
        steps.append(engine.normalizer)
    engine.normalizer = normalizers.Sequence(steps)


class _SentenceFolder:
    """The files of a hub id or folder; those that a module needs are read and kept."""

    def __init__(self, source: str | Path) -> None:
        self.source = source
        self.files: dict[str, bytes] = {}

    def name(self, file: str) -> str:
        return f"{self.source}/{file}"

    def _path(self, file: str) -> Path | None:
        cached = cached_file(
            str(self.source),
            file,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **local_only(self.source),
        )
        return Path(cached) if cached else None

    def has(self, file: str) -> bool:
        """Whether the file exists."""
        return self._path(file) is not None

    def keep(self, file: str) -> bool:
        """Read and keep a file; False if it does not exist."""
        path = self._path(file)
        if path is None:
            return False
        with convert_read_errors(self.name(file)):
            self.files[file] = path.read_bytes()
        return True

    def content(self, file: str) -> bytes:
        """The content of a file that must exist, which is kept."""
        if file not in self.files and not self.keep(file):
            raise InputError(f"{self.name(file)}: no such file; pickled weights are not opened")
        return self.files[file]

    def settings(self, file: str) -> Any:
        """The JSON of a file, which is kept."""
        with convert_read_errors(self.name(file)):
            return json.loads(self.content(file))

    def modules(self) -> list[dict[str, Any]]:
        """The modules in order: encoder, pooling, and those after it; raises InputError for any other list."""
        listed: list[dict[str, Any]] = self.settings(MODULES)
        del self.files[MODULES]
        for place, module in enumerate(listed):
            expected = ((ENCODER_KIND,), ("Pooling",), ("Dense", "Normalize"))[min(place, 2)]
            path = PurePosixPath(module["path"])
            # Files of modules are written to the same paths below another folder.
            if _kind(module) not in expected or path.is_absolute() or ".." in path.parts:
                raise InputError(
                    f"{self.name(MODULES)}: module {place} is {module['type']} in {str(path)!r}, expected "
                    f"{' or '.join(expected)} in a folder inside"
                )
        return listed


def _kind(module: Mapping[str, Any]) -> str:
    """The module's class name in sentence-transformers; the full type if it is from another package."""
    kind = str(module["type"])
    return kind.rpartition(".")[2] if kind.startswith(PACKAGE) else kind


def _pooling(folder: _SentenceFolder, path: str) -> Pooling:
    """The pooling in a module's folder."""
    file = f"{path}/{CONFIG}"
    settings = folder.settings(file)
    value = settings.get("pooling_mode", settings)
    if value is settings:
        switched = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on]
        unknown = [key for key in switched if key not in LEGACY]
        named = unknown or [mode for key, mode in LEGACY.items() if key in switched]
        # With all of them off sentence-transformers pools the mean; an empty `pooling_mode` is an error.
        modes: Sequence[Any] = named or ["mean"]
    else:
        modes = [value] if isinstance(value, str) else value
    if not modes or any(mode not in POOLS for mode in modes):
        raise InputError(
            f"{folder.name(file)}: pooling {modes!r} is not supported; expected some of {', '.join(POOLS)}"
        )
    return Pooling(tuple(modes))


def _dense(folder: _SentenceFolder, path: str, width: int) -> Dense:
    """The Dense module in a folder, for vectors of `width`."""
    file = f"{path}/{CONFIG}"
    settings = folder.settings(file)
    activation = str(settings.get("activation_function", "torch.nn.modules.activation.Tanh"))
    plain = {"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}
    odd = [key for key, value in plain.items() if settings.get(key, value) not in (value, None)]
    odd += ["use_residual"] if settings.get("use_residual") else []
    odd += [] if activation in ACTIVATIONS else ["activation_function"]
    if odd:
        raise InputError(f"{folder.name(file)}: {odd[0]} = {settings[odd[0]]!r} is not supported")
    file = f"{path}/{WEIGHTS}"
    with convert_read_errors(folder.name(file)):
        weights = load(folder.content(file))
        bias = weights.get("linear.bias")
        bias = None if bias is None else bias.float()
        dense = Dense(weights["linear.weight"].float(), bias, activation)
        dense(torch.zeros(1, width))  # weights of another width fail here
    return dense
