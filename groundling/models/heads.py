"""Heads of pre-training objectives: masked-LM head, pooler, and how heads are saved and loaded with an encoder."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForMaskedLM
from transformers.activations import ACT2FN
from transformers.utils.hub import cached_file

from groundling.core.errors import convert_errors, convert_read_errors
from groundling.models.hub import local_only
from groundling.runs.folder import disk_errors, read_object


class LMHeadNames(NamedTuple):
    """Names of a masked-LM head's weights in checkpoints."""

    dense: str
    """The Linear before the output."""
    norm: str
    """The LayerNorm after it."""
    bias: tuple[str, ...]
    """The output bias: the first name found; where a file has both, transformers uses the first only."""
    table: str = ""
    """The output embeddings; empty if they are always tied to the input embeddings."""


BERT = LMHeadNames(
    "cls.predictions.transform.dense",
    "cls.predictions.transform.LayerNorm",
    ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    "cls.predictions.decoder.weight",
)
ROBERTA = LMHeadNames(
    "lm_head.dense",
    "lm_head.layer_norm",
    ("lm_head.decoder.bias", "lm_head.bias"),
    "lm_head.decoder.weight",
)
LM_HEADS = {
    "bert": (BERT,),
    "roberta": (ROBERTA,),
    "xlm-roberta": (ROBERTA,),
    "camembert": (ROBERTA,),
    "mpnet": (ROBERTA,),
    "electra": (
        LMHeadNames(
            "generator_predictions.dense",
            "generator_predictions.LayerNorm",
            ("generator_lm_head.bias",),
            "generator_lm_head.weight",
        ),
    ),
    "modernbert": (LMHeadNames("head.dense", "head.norm", ("decoder.bias",), "decoder.weight"),),
    "distilbert": (
        LMHeadNames(
            "vocab_transform",
            "vocab_layer_norm",
            ("vocab_projector.bias",),
            "vocab_projector.weight",
        ),
    ),
    # The first is transformers' `legacy` head; DeBERTa's own code and its v3 checkpoints have the second.
    "deberta-v2": (
        BERT,
        LMHeadNames(
            "lm_predictions.lm_head.dense",
            "lm_predictions.lm_head.LayerNorm",
            ("lm_predictions.lm_head.bias",),
        ),
    ),
}
"""Possible names of the masked-LM head in each family's checkpoints; exports use the first."""
INPUT_TABLES = (".word_embeddings.weight", ".tok_embeddings.weight")
"""Suffixes of the input embeddings' names."""

ACTIVATIONS = {
    "bert": "hidden_act",
    "deberta-v2": "hidden_act",
    "distilbert": "activation",
    "modernbert": "classifier_activation",
}
"""Configuration name of the head's activation by family; RoBERTa, MPNet and ELECTRA always use exact GELU."""


def lm_head_style(config: Any) -> tuple[str, float]:
    """Activation and LayerNorm epsilon of the masked-LM head for an HF configuration."""
    settings = config.to_dict()
    activation = settings.get(ACTIVATIONS.get(config.model_type, ""), "gelu")
    epsilon = settings.get("layer_norm_eps", settings.get("norm_eps", 1e-12))
    if config.model_type == "distilbert":  # its code has an epsilon, its configuration has none
        epsilon = 1e-12
    return str(activation), float(epsilon)


class LMHead(nn.Module):
    """BERT's masked-LM head: Linear, activation, LayerNorm, then the input embeddings as output layer.

    If the checkpoint does not tie them (`tie_word_embeddings`), the head has its own trainable output
    embeddings, `table` (vocabulary, E).
    """

    def __init__(
        self,
        width: int,
        table: tuple[int, int],
        activation: str = "gelu",
        epsilon: float = 1e-12,
    ) -> None:
        """`width` of the states; `table` = (vocabulary, embedding width), possibly narrower (ELECTRA).

        `activation` and `epsilon` as returned by `lm_head_style`.
        """
        super().__init__()
        vocabulary, embedding = table
        self.dense = nn.Linear(width, embedding)
        with convert_errors(f"no masked-LM head with the activation {activation}", errors=KeyError):
            self.activation = ACT2FN[activation]
        self.norm = nn.LayerNorm(embedding, eps=epsilon)
        self.bias = nn.Parameter(torch.zeros(vocabulary))
        self.table: nn.Parameter | None = None
        nn.Module.register_load_state_dict_pre_hook(self, _tie_as_stored)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """Logits (n, vocabulary) of states (n, D) with `table` (vocabulary, E), or with the head's own table."""
        own = self.table
        transformed = self.norm(self.activation(self.dense(states)))
        return F.linear(transformed, table if own is None else own, self.bias)

    def load(self, folder: Path, family: str) -> bool:
        """Load the family's head from a checkpoint folder; False, without a change, if it has none."""
        weights = self.match_weights(lm_head_weights(folder, family))
        if weights:
            self.load_state_dict(weights)
        return bool(weights)

    def match_weights(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Stored weights (...) extended to this head's vocabulary; empty if one is missing or has another shape.

        Missing biases of the LayerNorm and of the Linear are zero; a table may be missing.
        """
        initial = {name: value for name, value in self.state_dict().items() if name != "table"}
        if not {"dense.weight", "norm.weight", "bias"} <= stored.keys():
            return {}
        weights = {
            name: extend_vector(stored[name], value) if name in stored else torch.zeros_like(value)
            for name, value in initial.items()
        }
        shapes = {name: value.shape for name, value in initial.items()}
        if "table" in stored:
            weights["table"] = stored["table"]
            shapes["table"] = torch.Size((len(self.bias), self.norm.weight.shape[0]))
        fits = all(weights[name].shape == shape for name, shape in shapes.items())
        return weights if fits else {}


def _tie_as_stored(head: LMHead, stored: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Before weights are loaded: add the head's own table if they contain one, else remove it."""
    table = stored.get(f"{prefix}table")
    if table is None:
        head.table = None
    elif head.table is None:
        head.table = nn.Parameter(torch.empty_like(table).to(head.bias))


def extend_vector(stored: Tensor, initial: Tensor) -> Tensor:
    """Extend a stored vector (n,) with the last values of the longer `initial`: biases of words added since.

    Any other tensor is returned unchanged.
    """
    if stored.ndim != 1 or initial.ndim != 1 or len(stored) >= len(initial):
        return stored
    return torch.cat([stored, initial[len(stored) :].to(stored.dtype)])


def lm_head_weights(folder: Path, family: str) -> dict[str, Tensor]:
    """Weights (...) of the family's head in a checkpoint folder, named as in `LMHead`; empty without a head.

    They include `table` if the output embeddings are untied: by the configuration, or, as in
    transformers, if their values differ from the input embeddings' in the file.
    """
    files = _files_of(folder)
    config = _config_of(folder)
    spellings = LM_HEADS.get(family, ())
    if config.get("legacy", True) is False:  # where a file has both, DeBERTa's own head is read
        spellings = spellings[::-1]
    for spelling in spellings:
        names = _stored_names(spelling, files.keys())
        if names is None:
            continue
        weights = {name: _read_tensor(files, key) for name, key in names.items()}
        if not spelling.table or _is_tied(files, spelling.table, config):
            return weights
        if spelling.table in files:
            return {**weights, "table": _read_tensor(files, spelling.table)}
    return {}


def _is_tied(files: Mapping[str, Path], table: str, config: Mapping[str, Any]) -> bool:
    """Whether the output embeddings, named `table` if they are in the file, equal the input embeddings."""
    if config.get("tie_word_embeddings", True) is False:
        return False
    inputs = [name for name in files if name.endswith(INPUT_TABLES)]
    if table not in files or not inputs:
        return table not in files
    return torch.equal(_read_tensor(files, table), _read_tensor(files, inputs[0]))


def _files_of(folder: Path) -> dict[str, Path]:
    """The file of each weight in a checkpoint folder, by the weight's name; empty without safetensors."""
    whole = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if whole.exists():
        with convert_read_errors(whole), safe_open(whole, framework="pt") as stored:
            return dict.fromkeys(stored.keys(), whole)
    if not index.exists():
        return {}
    return {name: folder / file for name, file in read_object(index)["weight_map"].items()}


def _config_of(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    return read_object(path) if path.exists() else {}


def _read_tensor(files: Mapping[str, Path], name: str) -> Tensor:
    with convert_read_errors(files[name]), safe_open(files[name], framework="pt") as stored:
        value: Tensor = stored.get_tensor(name)
    return value


def _stored_names(spelling: LMHeadNames, keys: Collection[str]) -> dict[str, str] | None:
    """The checkpoint's name of each weight of the head except `table`; None if one is missing from `keys`."""
    # Early BERT checkpoints, such as bert-base-uncased, call a LayerNorm's weights gamma and beta.
    required = {
        "dense.weight": (f"{spelling.dense}.weight",),
        "norm.weight": (f"{spelling.norm}.weight", f"{spelling.norm}.gamma"),
        "bias": spelling.bias,
    }
    optional = {
        "dense.bias": (f"{spelling.dense}.bias",),
        "norm.bias": (f"{spelling.norm}.bias", f"{spelling.norm}.beta"),
    }  # ModernBERT has neither
    names = {}
    for name, spellings in {**required, **optional}.items():
        stored_spellings = [each for each in spellings if each in keys]
        if stored_spellings:
            names[name] = stored_spellings[0]
        elif name in required:
            return None
    return names


class Pooler(nn.Module):
    """BERT's pooler: Linear and tanh on the first position (Devlin et al. 2019)."""

    def __init__(self, width: int) -> None:
        """`width` of the states and of the pooled vector."""
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """(N, D) from states (N, T, D)."""
        return torch.tanh(self.dense(states[:, 0]))


# A text encoder and its masked-LM head as one stock Hugging Face model, for `AutoModelForMaskedLM`.


def save_with_lm_head(folder: Path, encoder: Any, head: LMHead) -> bool:
    """Write an encoder and its head as the family's masked-LM model; False, without a file, for an unknown family.

    Replaces the encoder's own export: `AutoModel` loads the same encoder, with its pooler if it has
    one, and `AutoModelForMaskedLM` loads the encoder with the head.
    """
    family = encoder.config.model_type
    if family not in LM_HEADS:
        return False
    weights = {name: value.detach() for name, value in head.state_dict().items()}
    config = deepcopy(encoder.config)
    config.tie_word_embeddings = "table" not in weights
    if family == "deberta-v2":
        # The non-legacy head supports neither an untied table nor an embedding width other than the states'.
        config.legacy = True
    if family == "modernbert":
        config.classifier_bias = True
        config.decoder_bias = True
        if not config.norm_bias:
            inputs = encoder.get_input_embeddings().weight
            weights = _without_norm_bias(weights, weights.get("table", inputs))
    with torch.device("meta"):  # no weights are initialised: all are assigned below
        whole = AutoModelForMaskedLM.from_config(config)
    setattr(whole, whole.base_model_prefix, encoder)
    whole.load_state_dict(_named_as_stored(family, weights), strict=False, assign=True)
    whole.tie_weights()
    whole.save_pretrained(folder)
    return True


def _without_norm_bias(weights: dict[str, Tensor], table: Tensor) -> dict[str, Tensor]:
    """The same head without its LayerNorm's bias, which ModernBERT lacks.

    That bias adds a constant to the logits, through the `table` (vocabulary, E): it is moved into the output bias.
    """
    rest = {name: value for name, value in weights.items() if name != "norm.bias"}
    through_table = table.detach().double() @ weights["norm.bias"].double()
    rest["bias"] = (weights["bias"].double() + through_table).to(weights["bias"].dtype)
    return rest


def _named_as_stored(family: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The head's weights, named as in the family's model."""
    names = LM_HEADS[family][0]
    places = {"dense": names.dense, "norm": names.norm}
    named = {}
    for name, value in weights.items():
        layer, _, kind = name.rpartition(".")
        if layer:
            named[f"{places[layer]}.{kind}"] = value
    if "table" in weights:
        named[names.table] = weights["table"]
    for name in names.bias:  # untied, each is a separate weight
        named[name] = weights["bias"].clone()
    return named


# Heads of objectives, saved beside an exported encoder so that a later run can start from them.

HEADS = "groundling_heads.safetensors"
"""The file of the heads; transformers ignores it."""
LM_HEAD = "masked_lm.head"
"""The name in that file of the text encoder's masked-LM head."""
JOINT_LM_HEAD = "joint_masked_lm.head"
"""The name of XDBERT's masked-LM head, which reads the text states after the cross-modal encoder."""


def save_heads(folder: Path, heads: Mapping[str, nn.Module]) -> None:
    """Write heads, by name, beside an exported model."""
    weights: dict[str, Tensor] = {}
    for name, head in heads.items():
        for key, value in head.state_dict().items():
            weights[f"{name}.{key}"] = value.detach().cpu().contiguous()
    with disk_errors(folder / HEADS):
        save_file(weights, folder / HEADS)


def init_lm_head(
    head: LMHead, source: str | Path, family: str, names: Sequence[str] = (LM_HEAD,)
) -> str:
    """Load a masked-LM head from a hub id or folder; returns `an earlier run's`, `the checkpoint's`, or `new`.

    `names`: possible names in an earlier run's heads; the first found is loaded.
    """
    folder = _weights_folder(source)
    if any(load_head(folder, head, name) for name in names):
        return "an earlier run's"
    return "the checkpoint's" if head.load(folder, family) else "new"


def init_layer(layer: nn.Module, source: str | Path, name: str, family: str) -> bool:
    """Load a layer called `name` in an earlier run's heads, from a hub id or folder; False if none fits.

    Without such heads, layers of a masked-LM head come from the checkpoint's own head, as in VL-BERT's
    VQA head (jackroos/VL-BERT, vqa/modules/resnet_vlbert_for_vqa.py).
    """
    folder = _weights_folder(source)
    if load_head(folder, layer, name):
        return True
    before = layer.state_dict()
    prefix = f"{LM_HEAD}."
    if not name.startswith(prefix):
        return False
    part = f"{name.removeprefix(prefix)}."
    own = lm_head_weights(folder, family)
    weights = {key: own[part + key] for key in before if part + key in own}
    if len(weights) < len(before) or any(weights[k].shape != before[k].shape for k in before):
        return False
    layer.load_state_dict(weights)
    return True


def _weights_folder(source: str | Path) -> Path:
    """The local folder of the weights of a hub id or folder."""
    for name in ("model.safetensors", "model.safetensors.index.json"):
        weights = cached_file(
            str(source),
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **local_only(source),
        )
        if weights:
            return Path(weights).parent
    return Path(source)


def load_head(folder: Path, head: nn.Module, name: str) -> bool:
    """Load the head called `name` from a folder written by `save_heads`; False if none fits.

    Raises InputError if the file is damaged.
    """
    file = folder / HEADS
    if not file.exists():
        return False
    prefix = f"{name}."
    with convert_read_errors(file), safe_open(file, framework="pt") as stored:
        keys = [key for key in list(stored.keys()) if key.startswith(prefix)]
        weights = {key.removeprefix(prefix): stored.get_tensor(key) for key in keys}
    fitting = (
        head.match_weights(weights) if isinstance(head, LMHead) else _match_weights(head, weights)
    )
    if not fitting:
        return False
    head.load_state_dict(fitting)
    return True


def _match_weights(head: nn.Module, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights (...) extended to the head's vocabulary; empty if one is missing or has another shape."""
    before = head.state_dict()
    if not before.keys() <= stored.keys():
        return {}
    weights = {key: extend_vector(stored[key], initial) for key, initial in before.items()}
    fits = all(weights[key].shape == initial.shape for key, initial in before.items())
    return weights if fits else {}
