"""Heads of pre-training objectives, which several models share: made, saved beside an encoder, and read again."""

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

from groundling.core.errors import InputError, convert_read_errors
from groundling.models.hub import local_only
from groundling.runs.folder import disk_errors, read_json


class LMHeadNames(NamedTuple):
    """What checkpoints call the parts of a masked-LM head."""

    dense: str
    """The Linear before the output."""
    norm: str
    """Its LayerNorm."""
    bias: tuple[str, ...]
    """The output bias, the first that is there; where a file has both, transformers adds the first alone."""
    table: str = ""
    """The output embeddings; empty where the head always reads the input embeddings."""


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
    # Transformers calls the first one legacy; DeBERTa's own code, and its v3 checkpoints, have the second.
    "deberta-v2": (
        BERT,
        LMHeadNames(
            "lm_predictions.lm_head.dense",
            "lm_predictions.lm_head.LayerNorm",
            ("lm_predictions.lm_head.bias",),
        ),
    ),
}
"""How each family's checkpoints may call the language-modelling head; what is exported has the first names."""
INPUT_TABLES = (".word_embeddings.weight", ".tok_embeddings.weight")
"""Ends of the names of the input embeddings."""

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
    """BERT's masked-language-modelling head: Linear, activation, LayerNorm, then the input embedding table.

    A head whose checkpoint does not tie the two (`tie_word_embeddings`) has output embeddings of its own, `table`
    (vocabulary, E), which are trained with it.
    """

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
        self.table: nn.Parameter | None = None
        nn.Module.register_load_state_dict_pre_hook(self, _tie_as_stored)

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """Logits (n, vocabulary) of states (n, D) against `table` (vocabulary, E), or the head's own if it has one."""
        own = self.table
        transformed = self.norm(self.activation(self.dense(states)))
        return F.linear(transformed, table if own is None else own, self.bias)

    def load(self, folder: Path, family: str) -> bool:
        """Fill from a checkpoint folder that holds the family's head; False (and nothing changed) if it has none."""
        weights = self.match_weights(lm_head_weights(folder, family))
        if weights:
            self.load_state_dict(weights)
        return bool(weights)

    def match_weights(self, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Stored weights (...) of such a head, as long as this one's; none if one is missing or has another shape.

        Biases of the LayerNorm and of the Linear may be missing, which are zero then; so may a table.
        """
        made = {name: value for name, value in self.state_dict().items() if name != "table"}
        if not {"dense.weight", "norm.weight", "bias"} <= stored.keys():
            return {}
        weights = {
            name: extend_vector(stored[name], value) if name in stored else torch.zeros_like(value)
            for name, value in made.items()
        }
        shapes = {name: value.shape for name, value in made.items()}
        if "table" in stored:
            weights["table"] = stored["table"]
            shapes["table"] = torch.Size((len(self.bias), self.norm.weight.shape[0]))
        fits = all(weights[name].shape == shape for name, shape in shapes.items())
        return weights if fits else {}


def _tie_as_stored(head: LMHead, stored: Mapping[str, Tensor], prefix: str, *_: Any) -> None:
    """Before weights are loaded: a head gets a table of its own if these have one, and loses it if they have none."""
    table = stored.get(f"{prefix}table")
    if table is None:
        head.table = None
    elif head.table is None:
        head.table = nn.Parameter(torch.empty_like(table).to(head.bias))


def extend_vector(stored: Tensor, made: Tensor) -> Tensor:
    """A stored vector (n,) as long as the `made` one, whose last places it lacks: biases of words added since.

    Anything but a vector that has become longer is what it is.
    """
    if stored.ndim != 1 or made.ndim != 1 or len(stored) >= len(made):
        return stored
    return torch.cat([stored, made[len(stored) :].to(stored.dtype)])


def lm_head_weights(folder: Path, family: str) -> dict[str, Tensor]:
    """Weights (...) of the family's head in a checkpoint folder, by their names in `LMHead`; none if it has no head.

    There is a `table` if the checkpoint does not tie the output embeddings: if its configuration says so, or, as in
    transformers, if the file holds other numbers for these than for the input embeddings.
    """
    files = _files_of(folder)
    config = _config_of(folder)
    spellings = LM_HEADS.get(family, ())
    if config.get("legacy", True) is False:  # DeBERTa's own head counts, where a file has both
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
    """Whether the output embeddings, which the file may hold as `table`, are the input embeddings."""
    if config.get("tie_word_embeddings", True) is False:
        return False
    inputs = [name for name in files if name.endswith(INPUT_TABLES)]
    if table not in files or not inputs:
        return table not in files
    return torch.equal(_read_tensor(files, table), _read_tensor(files, inputs[0]))


def _files_of(folder: Path) -> dict[str, Path]:
    """The file of every weight in a checkpoint folder, by its name there; none without safetensors."""
    whole = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if whole.exists():
        with convert_read_errors(whole), safe_open(whole, framework="pt") as stored:
            return dict.fromkeys(stored.keys(), whole)
    if not index.exists():
        return {}
    content = read_json(index)
    parts = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(parts, dict):
        raise InputError(f"{index}: expected an object with weight_map, the file of every weight")
    return {str(name): folder / str(file) for name, file in parts.items()}


def _config_of(folder: Path) -> dict[str, Any]:
    path = folder / "config.json"
    content = read_json(path) if path.exists() else {}
    return content if isinstance(content, dict) else {}


def _read_tensor(files: Mapping[str, Path], name: str) -> Tensor:
    with convert_read_errors(files[name]), safe_open(files[name], framework="pt") as stored:
        value: Tensor = stored.get_tensor(name)
    return value


def _stored_names(spelling: LMHeadNames, keys: Collection[str]) -> dict[str, str] | None:
    """What a checkpoint with these keys calls each weight of the head but its table; None if it lacks one."""
    # BERT's first checkpoints, bert-base-uncased among them, call a LayerNorm's weights gamma and beta.
    wanted = {
        "dense.weight": (f"{spelling.dense}.weight",),
        "norm.weight": (f"{spelling.norm}.weight", f"{spelling.norm}.gamma"),
        "bias": spelling.bias,
    }
    optional = {
        "dense.bias": (f"{spelling.dense}.bias",),
        "norm.bias": (f"{spelling.norm}.bias", f"{spelling.norm}.beta"),
    }  # ModernBERT has neither
    names = {}
    for name, spellings in {**wanted, **optional}.items():
        there = [each for each in spellings if each in keys]
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


# A text encoder and its masked-LM head as one stock Hugging Face model: `AutoModelForMaskedLM` fills its masks.


def save_with_lm_head(folder: Path, encoder: Any, head: LMHead) -> bool:
    """Write an encoder and its head as the family's own masked-LM model; False (and nothing written) if it is unknown.

    What the encoder's own export wrote there is replaced: `AutoModel` finds the same encoder, with its pooler if it has
    one, and `AutoModelForMaskedLM` gives the head's logits.
    """
    family = encoder.config.model_type
    if family not in LM_HEADS:
        return False
    weights = {name: value.detach() for name, value in head.state_dict().items()}
    config = deepcopy(encoder.config)
    config.tie_word_embeddings = "table" not in weights
    if family == "deberta-v2":
        # The other of its two heads has no table of its own, nor one of another width than the states.
        config.legacy = True
    if family == "modernbert":
        config.classifier_bias = True
        config.decoder_bias = True
        if not config.norm_bias:
            inputs = encoder.get_input_embeddings().weight
            weights = _without_norm_bias(weights, weights.get("table", inputs))
    with torch.device("meta"):  # nothing is drawn, nothing is kept: all of it is put in below
        whole = AutoModelForMaskedLM.from_config(config)
    setattr(whole, whole.base_model_prefix, encoder)
    whole.load_state_dict(_checkpoint_weights(family, weights), strict=False, assign=True)
    whole.tie_weights()
    whole.save_pretrained(folder)
    return True


def _without_norm_bias(weights: dict[str, Tensor], table: Tensor) -> dict[str, Tensor]:
    """The same head without its LayerNorm's bias, for which ModernBERT has no place.

    The bias reaches the logits through the `table` (vocabulary, E) alone, so that the output bias can hold all of it.
    """
    rest = {name: value for name, value in weights.items() if name != "norm.bias"}
    through_table = table.detach().double() @ weights["norm.bias"].double()
    rest["bias"] = (weights["bias"].double() + through_table).to(weights["bias"].dtype)
    return rest


def _checkpoint_weights(family: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """The head's weights by the names of the family's model."""
    names = LM_HEADS[family][0]
    places = {"dense": names.dense, "norm": names.norm}
    named = {}
    for name, value in weights.items():
        layer, _, kind = name.rpartition(".")
        if layer:
            named[f"{places[layer]}.{kind}"] = value
    if "table" in weights:
        named[names.table] = weights["table"]
    for name in names.bias:  # without ties, each is a weight by itself
        named[name] = weights["bias"].clone()
    return named


# Heads of objectives, kept beside an exported encoder, from which a next run may start.

HEADS = "groundling_heads.safetensors"
"""The file of the heads; transformers ignores it."""
LM_HEAD = "masked_lm.head"
"""What the masked-LM head of the text encoder itself is called there."""
JOINT_LM_HEAD = "joint_masked_lm.head"
"""What XDBERT's is called, which reads the text after the cross-modal encoder and says nothing of the encoder alone."""


def save_heads(folder: Path, heads: Mapping[str, nn.Module]) -> None:
    """Write heads, by what each is called, beside an exported model."""
    weights: dict[str, Tensor] = {}
    for name, head in heads.items():
        for key, value in head.state_dict().items():
            weights[f"{name}.{key}"] = value.detach().cpu().contiguous()
    with disk_errors(folder / HEADS):
        save_file(weights, folder / HEADS)


def init_lm_head(
    head: LMHead, source: str | Path, family: str, names: Sequence[str] = (LM_HEAD,)
) -> str:
    """Fill a masked-LM head from a hub id or folder; whose it is: `an earlier run's`, `the checkpoint's`, or `new`.

    `names` are what an earlier run may have called it, the first that is there is taken.
    """
    folder = _weights_folder(source)
    if any(load_head(folder, head, name) for name in names):
        return "an earlier run's"
    return "the checkpoint's" if head.load(folder, family) else "new"


def init_layer(layer: nn.Module, source: str | Path, name: str, family: str) -> bool:
    """Fill a layer from a hub id or folder, where an earlier run called it `name`; False if there is none that fits.

    Layers of a masked-LM head come from the checkpoint's own if no earlier run left one, as VL-BERT's VQA head does
    (jackroos/VL-BERT, vqa/modules/resnet_vlbert_for_vqa.py).
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
    """Where the weights of a hub id or folder lie on this machine."""
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
    """Fill a head from a folder written by `save_heads`, where it is called `name`; False if none there fits.

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
    """Stored weights (...) of a head, as long as its own; none if one is missing or of another shape."""
    before = head.state_dict()
    if not before.keys() <= stored.keys():
        return {}
    weights = {key: extend_vector(stored[key], made) for key, made in before.items()}
    fits = all(weights[key].shape == made.shape for key, made in before.items())
    return weights if fits else {}
