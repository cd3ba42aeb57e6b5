"""Sentence encoders in sentence-transformers' format: its own modules after the encoder, loaded, applied and saved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from tokenizers import normalizers
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.errors import InputError, convert_errors, convert_read_errors
from groundling.models.hub import find_file, local_only
from groundling.runs.folder import json_text

MODULES = "modules.json"
"""The file that identifies a sentence-transformers folder and lists its modules in order."""
ENCODER = "sentence_bert_config.json"
"""Settings of the encoder module."""
ABOUT = "config_sentence_transformers.json"
"""Prompts and the similarity function."""
EXPECTED = (("Transformer",), ("Pooling",), ("Dense", "Normalize", "LayerNorm", "Dropout"))
"""Kinds of the first module, of the second, and of those after it, which read and write the sentence vector."""


class SentenceModules:
    """The modules that turn an encoder's states into a sentence vector; they are frozen, and no part of a student."""

    def __init__(
        self,
        modules: Sequence[Any],
        max_length: int = 0,
        prompt: str = "",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Pooling, and what follows it.

        Args:
            modules: sentence-transformers' modules.
            max_length: maximum number of tokens, special ones included; 0: the encoder's own maximum.
            prompt: default prompt, before every text.
            settings: content of the folder's settings, by the file's name.
        """
        self.modules = nn.Sequential(*modules).float().eval().requires_grad_(False)
        self.max_length = max_length
        self.prompt = prompt
        self.settings = settings or {}

    @property
    def modes(self) -> tuple[str, ...]:
        """Names of the poolings, which are concatenated."""
        mode: Any = self.modules[0].pooling_mode
        return (mode,) if isinstance(mode, str) else tuple(mode)

    def pooling(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pooled states (N, modes * D) of states (N, T, D) and a mask (N, T) bool, True at every token."""
        return _apply(nn.Sequential(self.modules[0]), states, mask)

    def vectors(self, states: Tensor, mask: Tensor) -> Tensor:
        """Sentence vectors (N, E) of states (N, T, D) and a mask (N, T)."""
        return _apply(self.modules.to(states.device), states, mask)

    @property
    def after_pooling(self) -> nn.Module:
        """The modules after the pooling, for vectors (..., S)."""
        return _AfterPooling(list(self.modules)[1:])

    def with_projection(self, projection: nn.Module) -> SentenceModules:
        """The same pooling, then a Linear, or several with a GELU after each but the last, and normalisation.

        They replace the modules after it.
        """
        library = _library()
        layers = [one for one in projection.modules() if isinstance(one, nn.Linear)]
        modules: list[Any] = [self.modules[0]]
        for place, layer in enumerate(layers, 1):
            rows, columns = layer.weight.shape
            activation = nn.Identity() if place == len(layers) else nn.GELU()
            bias = layer.bias is not None
            with torch.random.fork_rng(devices=[]):
                dense = library.Dense(columns, rows, bias=bias, activation_function=activation)
            dense.linear.load_state_dict(layer.state_dict())
            modules.append(dense)
        modules.append(library.Normalize())
        return SentenceModules(modules, self.max_length, self.prompt, self.settings)

    def write(self, folder: Path) -> None:
        """Write `modules.json` and the modules' files beside the encoder's own files."""
        kinds = [_library().Transformer, *map(type, self.modules)]
        paths = ["", *(f"{place}_{kind.__name__}" for place, kind in enumerate(kinds) if place)]
        modules: Sequence[Any] = list(self.modules)
        for module, path in zip(modules, paths[1:], strict=True):
            (folder / path).mkdir(parents=True, exist_ok=True)
            module.save(str(folder / path))
        listed = [
            {"idx": place, "name": str(place), "path": path, "type": _type(kind)}
            for place, (kind, path) in enumerate(zip(kinds, paths, strict=True))
        ]
        for name, content in {**self.settings, MODULES: listed}.items():
            (folder / name).write_text(json_text(content, indent=2, ensure_ascii=False) + "\n")


class _AfterPooling(nn.Module):
    def __init__(self, modules: Sequence[nn.Module]) -> None:
        super().__init__()
        self.own = nn.Sequential(*modules)

    def forward(self, vectors: Tensor) -> Tensor:
        projected: Tensor = self.own({"sentence_embedding": vectors})["sentence_embedding"]
        return projected


def _type(kind: type) -> str:
    return f"{kind.__module__}.{kind.__name__}"


def _apply(modules: nn.Sequential, states: Tensor, mask: Tensor) -> Tensor:
    features = {"token_embeddings": states, "attention_mask": mask.long()}
    vectors: Tensor = modules(features)["sentence_embedding"]
    return vectors


def _library() -> Any:
    with convert_errors("a sentence encoder needs: pip install 'groundling[sentence]'"):
        from sentence_transformers.sentence_transformer import modules

        return modules


def make_sentence_modules(mode: str, width: int, max_length: int) -> SentenceModules:
    """Make a plain encoder a sentence encoder: pooling only, of states of `width`, at most `max_length` tokens."""
    settings = {
        ENCODER: {"max_seq_length": max_length, "do_lower_case": False},
        ABOUT: {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": "cosine"},
    }
    return SentenceModules([_library().Pooling(width, mode)], max_length, settings=settings)


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

    `width` of the encoder's states. Raises InputError for a module that is not sentence-transformers', or does not fit.
    """
    listed = _read(source, MODULES)
    if listed is None:
        return None, False
    library = _library()
    with (
        convert_errors(f"{source}: sentence-transformers does not load its modules"),
        torch.random.fork_rng(devices=[]),
    ):
        modules = [
            _load_module(library, source, place, module) for place, module in enumerate(listed)
        ]
        # An encoder in a subfolder has its settings there.
        place = str(listed[0]["path"])
        own = _read(source, str(PurePosixPath(place, ENCODER)))
        own = own or library.Transformer.load_config(str(source), place, **local_only(source))
        about = _read(source, ABOUT) or {}
        prompt = about.get("default_prompt_name")
        prompt = about["prompts"][prompt] if prompt else ""
        if prompt and not modules[1].include_prompt:
            raise InputError(f"{source}/{ABOUT}: a prompt without include_prompt is not supported")
        settings = {name: one for name, one in ((ENCODER, own), (ABOUT, about)) if one}
        length = int(own.get("max_seq_length") or 0)
        sentence = SentenceModules(modules[1:], length, prompt, settings)
        sentence.vectors(torch.zeros(1, 1, width), torch.ones(1, 1))  # another width fails here
        return sentence, bool(own.get("do_lower_case"))


def _load_module(library: Any, source: str | Path, place: int, module: Mapping[str, Any]) -> Any:
    """A module of the list; None for the encoder. Raises InputError for another one at this place."""
    expected = EXPECTED[min(place, 2)]
    package, _, kind = str(module["type"]).rpartition(".")
    if kind not in expected or not package.startswith("sentence_transformers."):
        raise InputError(
            f"{source}/{MODULES}: module {place} is {module['type']}, expected {' or '.join(expected)}"
        )
    if place == 0:
        return None
    folder, options = str(module["path"]), local_only(source)
    made = getattr(library, kind)
    if kind == "Dense":
        config = made.load_config(str(source), folder, **options)
        # Of other packages it would become Tanh, with a warning.
        if not str(config.get("activation_function", "torch.")).startswith("torch."):
            raise InputError(f"{source}/{folder}: unknown {config['activation_function']}")
    return made.load(str(source), subfolder=folder, **options)


def _read(source: str | Path, name: str) -> Any:
    path = find_file(source, name)
    with convert_read_errors(f"{source}/{name}"):
        return json.loads(path.read_bytes()) if path else None


def add_lowercase(tokenizer: PreTrainedTokenizerBase) -> None:
    """Make a tokenizer lower-case its texts, as sentence-transformers does for `do_lower_case`."""
    engine = tokenizer.backend_tokenizer
    steps = [normalizers.Lowercase()]
    if engine.normalizer is not None:
        steps.append(engine.normalizer)
    engine.normalizer = normalizers.Sequence(steps)
