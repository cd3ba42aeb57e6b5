"""Heads of objectives: language model, pooler, token-image matching; how they are saved and loaded with an encoder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.func import functional_call
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForPreTraining,
    BertConfig,
    ElectraConfig,
)
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING
from transformers.utils import SAFE_WEIGHTS_NAME

from groundling.core.batch import EncoderOutput, require
from groundling.core.errors import InputError, convert_errors, convert_read_errors
from groundling.models.hub import find_file
from groundling.models.loading import from_pretrained, is_causal, load_config, model_type
from groundling.runs.folder import disk_errors, read_object


class _GivenStates(nn.Module):
    """In an encoder's place: returns the states that it is given."""

    def __init__(self) -> None:
        super().__init__()
        words = nn.Module()  # DeBERTa's own head reads its weight
        words.register_parameter("weight", None)
        self.embeddings = nn.ModuleDict({"word_embeddings": words})

    @property
    def decoder(self) -> nn.Module:
        """OPT's language model calls this part of its encoder."""
        return self

    def forward(self, *_: object, inputs_embeds: Tensor, **__: object) -> Any:
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)


def _model_class(config: Any) -> Any:
    """The class of a configuration's language models; None for a family without any."""
    if is_causal(config):
        return AutoModelForCausalLM
    return AutoModelForMaskedLM if type(config) in MODEL_FOR_MASKED_LM_MAPPING else None


def rows_to_add(states: Tensor, count: int) -> int:
    """Rows that make a multiple of 64 of a vocabulary: a GPU multiplies such tables several times as fast."""
    return -count % 64 if states.is_cuda else 0


class LMHead(nn.Module):
    """transformers' own language-model head of a text encoder's family, with the input embeddings as output layer.

    Its modules and weights are those of `AutoModelForMaskedLM` or `AutoModelForCausalLM`, called on states alone. If
    a checkpoint does not tie the output embeddings (`tie_word_embeddings`), the head has its own, which are trained.
    """

    model: Any
    """The language model, with a stub in the encoder's place."""

    def __init__(self, width: int, table: tuple[int, int], config: Any = None) -> None:
        """`width` of the states; `table` = (vocabulary, embedding width), possibly narrower (ELECTRA).

        `config`: the text encoder's; without one, or of a family without such a head, the head is BERT's.
        """
        super().__init__()
        # A model without such an input has sizes of 0; its samples are refused when training starts.
        width = width or 1
        table = (table[0] or 1, table[1] or 1)
        if _model_class(config) is None:
            config = BertConfig(hidden_size=width)
            if table[1] != width:
                config = ElectraConfig(hidden_size=width, embedding_size=table[1])
            config.num_attention_heads = 1
        config = deepcopy(config)
        config.vocab_size = table[0]
        self._build(config)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.LayerNorm) and module.weight is not None:
                module.reset_parameters()
        for value in self.parameters():
            if value.shape == table[:1]:
                nn.init.zeros_(value)

    def _build(self, config: Any) -> None:
        """Make the modules of a family's head, with weights of any values and tied output embeddings."""
        with torch.device("meta"):  # an encoder is made too, and dropped
            model = _model_class(config).from_config(config, dtype=torch.float32)
        self.base = model.base_model_prefix
        output = model.get_output_embeddings()  # some families look for the encoder first
        setattr(model, self.base, _GivenStates())
        names = {module: name for name, module in model.named_modules()}
        self.output, self.embeddings = names[output], f"{names[output]}.weight"
        if output.weight.shape[0] == config.vocab_size:
            output.weight = None
        else:
            self.embeddings = f"{self.base}.embeddings.word_embeddings.weight"
        made: dict[int, nn.Parameter] = {}
        for module in model.modules():
            for name, value in module._parameters.items():
                if value is not None:  # once for a value that two modules share
                    empty = nn.Parameter(torch.empty_like(value, device="cpu"))
                    module._parameters[name] = made.setdefault(id(value), empty)
        self.config = config
        self.__dict__["model"] = model  # not a part: only its head is
        for name, module in model.named_children():
            if name != self.base:
                self.add_module(name, module)

    @property
    def is_tied(self) -> bool:
        """Whether the input embeddings are its output layer."""
        return self.embeddings not in self.state_dict()

    def forward(self, states: Tensor, table: Tensor) -> Tensor:
        """Logits (n, vocabulary) of states (n, D) with `table` (vocabulary, E), or with the head's own table."""
        words = {self.embeddings: table} if self.is_tied else {}
        size = len(table)
        more = rows_to_add(states, size)
        if more and self.embeddings.startswith(self.output):
            words = self._padded_output(table, more)
        # A causal model slices its sequences, so that it needs one.
        states = states[None]
        logits: Tensor = functional_call(
            self.model, words, kwargs={"inputs_embeds": states, "return_dict": True}
        ).logits
        return logits[0, :, :size]

    def _padded_output(self, table: Tensor, more: int) -> dict[str, Tensor]:
        """Weights of the output layer with further rows of zeros."""
        layer = self.model.get_submodule(self.output)
        weight = table if layer.weight is None else layer.weight
        padded = {self.embeddings: F.pad(weight, (0, 0, 0, more))}
        if layer.bias is not None:
            padded[f"{self.output}.bias"] = F.pad(layer.bias, (0, more))
        return padded

    def load(self, source: str | Path) -> bool:
        """Load the head of a checkpoint's folder or hub id; False, without a change, if it has none that fits."""
        if self._is_embeddings_of(source):
            return True
        model = _language_model(source)
        if model is None:
            return False
        has_bert_head = model.config.model_type in WITH_BERT_HEAD
        if type(self.config) is not (BertConfig if has_bert_head else type(model.config)):
            return False
        stored = _head_weights(model)
        if has_bert_head:  # LXMERT's own name of the bias alone
            bias = stored["cls.predictions.bias"]
            stored.setdefault("cls.predictions.decoder.bias", bias)
        if getattr(model.config, "legacy", None) != getattr(self.config, "legacy", None):
            self.config.legacy = model.config.legacy  # DeBERTa has two kinds of head
            self._modules.clear()
            self._build(self.config)
        return self.adopt(stored)

    def _is_embeddings_of(self, source: str | Path) -> bool:
        """Whether a decoder's head is its input embeddings alone, by names: its weights need no second reading."""
        if self.state_dict() or not model_type(source):
            return False
        config = load_config(source)
        if type(config) is not type(self.config) or not config.tie_word_embeddings:
            return False
        output = self.output.rpartition(".")[2]
        names = _stored_names(source)
        return bool(names) and not any(output in name.split(".") for name in names)

    def adopt(self, stored: Mapping[str, Tensor]) -> bool:
        """Take over stored weights, and whether they are tied; False, without a change, if they do not fit."""
        own = {name: value for name, value in self.state_dict().items() if name != self.embeddings}
        weights = _match_weights(own, stored)
        table = stored.get(self.embeddings)
        # A causal head may have no weights besides the embeddings.
        fits = bool(weights) or not own
        if not fits or (table is not None and table.shape[0] != self.config.vocab_size):
            return False
        if self.embeddings.startswith(self.output):
            module = self.get_submodule(self.output)
            own_table = None if table is None else nn.Parameter(table.clone())
            module.register_parameter("weight", own_table)
        if table is not None:
            weights[self.embeddings] = table
        self.load_state_dict(weights)
        return True


WITH_BERT_HEAD = ("visual_bert", "lxmert")
"""Families whose model with pre-training heads has BERT's masked-LM head."""


def _language_model(source: str | Path) -> Any:
    family = model_type(source)
    if not family:
        return None
    config = load_config(source)
    model_class = AutoModelForPreTraining if family in WITH_BERT_HEAD else _model_class(config)
    if model_class is None:
        return None
    # transformers reads one kind of DeBERTa's heads by the configuration; released ones do not name theirs.
    kinds = [{}] if not hasattr(config, "legacy") else [{}, {"legacy": not config.legacy}]
    # VisualBERT's released weights are pickles, of which transformers reads tensors only.
    safe = None if family == "visual_bert" else True
    for kind in kinds:
        model, report = from_pretrained(
            model_class, source, use_safetensors=safe, dtype=torch.float32, **kind
        )
        missing = [*report["missing_keys"], *(key[0] for key in report["mismatched_keys"])]
        if all(name.startswith(f"{model.base_model_prefix}.") for name in missing):
            return model
    return None


def _stored_names(source: str | Path) -> list[str]:
    """Names of the weights in a checkpoint's safetensors; none without such files."""
    index = find_file(source, f"{SAFE_WEIGHTS_NAME}.index.json")
    if index is not None:
        return list(read_object(index).get("weight_map", {}))
    file = find_file(source, SAFE_WEIGHTS_NAME)
    if file is None:
        return []
    with convert_read_errors(file), safe_open(file, framework="pt") as stored:
        return list(stored.keys())


def _head_weights(model: Any) -> dict[str, Tensor]:
    base = f"{model.base_model_prefix}."
    weights = {name: v for name, v in model.state_dict().items() if not name.startswith(base)}
    inputs = model.get_input_embeddings().weight
    return {
        name: value
        for name, value in weights.items()
        if value.shape != inputs.shape or not torch.equal(value, inputs)
    }


def init_linears(module: nn.Module) -> None:
    """Initialise all Linears of a module as BERT does: weights N(0, 0.02), biases zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            nn.init.normal_(part.weight, std=0.02)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class Pooler(nn.Module):
    """BERT's pooler: Linear and tanh on the first position (Devlin et al. 2019)."""

    def __init__(self, width: int) -> None:
        """`width` of the states and of the pooled vector."""
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, states: Tensor) -> Tensor:
        """(N, D) from states (N, T, D)."""
        return torch.tanh(self.dense(states[:, 0]))


# A text encoder and its head as one stock Hugging Face language model.


def save_with_lm_head(folder: Path, encoder: Any, head: LMHead) -> bool:
    """Write an encoder and its head as the family's language model; False, without a file, for a family without one.

    Replaces the encoder's own export: `AutoModel` loads the same encoder, with its pooler if it has
    one, and `AutoModelForMaskedLM` or `AutoModelForCausalLM` loads the encoder with the head.
    """
    if type(encoder.config) is not type(head.config):
        return False
    config = deepcopy(encoder.config)
    config.tie_word_embeddings = head.is_tied
    if hasattr(head.config, "legacy"):
        config.legacy = head.config.legacy
    with torch.device("meta"):  # no weights are initialised: all are assigned below
        whole = _model_class(config).from_config(config)
    setattr(whole, whole.base_model_prefix, encoder)
    weights = {name: value.detach() for name, value in head.state_dict().items()}
    whole.load_state_dict(weights, strict=False, assign=True)
    whole.tie_weights()
    whole.save_pretrained(folder)
    return True


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
            weights[f"{name}.{key}"] = (
                value.detach().cpu().clone(memory_format=torch.contiguous_format)
            )
    with disk_errors(folder / HEADS):
        save_file(weights, folder / HEADS)


def init_lm_head(head: LMHead, source: str | Path, names: Sequence[str] = (LM_HEAD,)) -> str:
    """Load a masked-LM head from a hub id or folder; returns `an earlier run's`, `the checkpoint's`, or `new`.

    `names`: possible names in an earlier run's heads; the first found is loaded.
    """
    if any(load_head(source, head, name) for name in names):
        return "an earlier run's"
    return "the checkpoint's" if head.load(source) else "new"


def init_layer(layer: nn.Module, source: str | Path, name: str) -> bool:
    """Load a layer called `name` in an earlier run's heads, from a hub id or folder; False if none fits.

    Without such heads, layers of a masked-LM head come from the checkpoint's own head, as in VL-BERT's
    VQA head (jackroos/VL-BERT, vqa/modules/resnet_vlbert_for_vqa.py).
    """
    if load_head(source, layer, name):
        return True
    model = _language_model(source) if name.startswith(f"{LM_HEAD}.") else None
    if model is None:
        return False
    own = f"{name.removeprefix(f'{LM_HEAD}.')}."
    stored = {key.removeprefix(own): value for key, value in _head_weights(model).items()}
    return _adopt(layer, stored)


def load_head(source: str | Path, head: nn.Module, name: str) -> bool:
    """Load the head called `name` that `save_heads` wrote into a hub id or folder; False if none fits.

    Raises InputError if the file is damaged.
    """
    return _adopt(head, _saved_head(source, name))


def _saved_head(source: str | Path, name: str) -> dict[str, Tensor]:
    file = find_file(source, HEADS)
    if file is None:
        return {}
    prefix = f"{name}."
    with convert_read_errors(file), safe_open(file, framework="pt") as stored:
        keys = [key for key in list(stored.keys()) if key.startswith(prefix)]
        return {key.removeprefix(prefix): stored.get_tensor(key) for key in keys}


def _adopt(head: nn.Module, stored: Mapping[str, Tensor]) -> bool:
    if isinstance(head, LMHead):
        return bool(stored) and head.adopt(stored)
    fitting = _match_weights(head.state_dict(), stored)
    if fitting:
        head.load_state_dict(fitting)
    return bool(fitting)


def _match_weights(before: Mapping[str, Tensor], stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights (...) of a head, whose own are `before`; empty if one is missing or has another shape.

    To a shorter vector, biases from before words were added, the head's own last values are appended.
    """
    weights = {}
    for name, own in before.items():
        value = stored.get(name)
        if value is not None and value.ndim == own.ndim == 1 and len(value) < len(own):
            value = torch.cat([value, own[len(value) :].to(value.dtype)])
        if value is None or value.shape != own.shape:
            return {}
        weights[name] = value
    return weights


# A token-image matching model: contextual tokens and images as unit vectors of one space.

MATCHING_HEADS = "token_image_matching"
"""The name of the heads in a model's file of heads."""
HIDDEN = 256
"""Width between the two Linear layers (airsplay/vokenization, xmatching/model.py)."""
DROPOUT = 0.3
"""Dropout between them (there as well)."""


class TokenImageMatchingHeads(nn.Module):
    """Maps token states and image features to unit vectors, whose dot product is the relevance of image to token.

    Each side has Linear, ReLU, dropout and Linear. Without a text head, tokens keep their own width, and the image
    side maps to it, also between its layers (VidLanKD's teacher).
    """

    def __init__(
        self,
        states: int,
        image: int,
        *,
        hidden: int = HIDDEN,
        width: int = 64,
        has_text_head: bool = True,
    ) -> None:
        """`states`: width of the concatenated layers; `image`: width of an image feature; `width` of the vectors."""
        super().__init__()
        if not has_text_head:
            hidden = width = states
        self.states_width = states
        self.image_width = image
        self.width = width
        self.text = _two_layers(states, hidden, width) if has_text_head else nn.Identity()
        self.image = _two_layers(image, hidden, width)

    def token_vectors(self, states: Tensor) -> Tensor:
        """Unit vectors (n, width) of token states (n, states)."""
        return F.normalize(self.text(states), dim=-1)

    def image_vectors(self, features: Tensor) -> Tensor:
        """Unit vectors (n, width) of image features (n, image)."""
        return F.normalize(self.image(features), dim=-1)


def _two_layers(width: int, hidden: int, out: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(DROPOUT), nn.Linear(hidden, out)
    )


def concatenated_layers(encoded: EncoderOutput, count: int, flag: str) -> Tensor:
    """The last `count` layers of a text encoder, first to last: (N, T, count * D).

    Raises InputError, which names `flag`, if the encoder has fewer layers.
    """
    layers = require(encoded.layers, "layers", flag)
    there = len(layers) - 1  # the first are the embeddings
    if count > there:
        raise InputError(f"{flag}={count}: this encoder has {there} layers; set at most {there}")
    # Of some families the last of `layers` lacks the final LayerNorm, which `text` has.
    final = require(encoded.text, "text", flag)
    return torch.cat([*layers[len(layers) - count : -1], final], dim=-1)


def load_matching_heads(folder: str | Path) -> TokenImageMatchingHeads:
    """The heads that a run of `token_image_matching` wrote beside its model, in eval mode and frozen.

    Raises InputError if the folder has none.
    """
    weights = _saved_head(folder, MATCHING_HEADS)
    expected = "expected the folder `model` of a run of `adapt --arm token_image_matching`"
    with convert_errors(
        f"{Path(folder) / HEADS}: has no heads called {MATCHING_HEADS}; {expected}"
    ):
        first, last = weights["image.0.weight"], weights["image.3.weight"]
        text = weights.get("text.0.weight")
        heads = TokenImageMatchingHeads(
            len(last) if text is None else text.shape[1],
            first.shape[1],
            hidden=len(first),
            width=len(last),
            has_text_head=text is not None,
        )
        heads.load_state_dict(weights)
    return heads.eval().requires_grad_(False)
