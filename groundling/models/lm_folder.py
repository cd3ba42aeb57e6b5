"""A text encoder and its masked-LM head as one stock Hugging Face model: `AutoModelForMaskedLM` fills its masks."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForMaskedLM

from groundling.models.heads import LM_HEADS, LMHead


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
    whole.load_state_dict(_named(family, weights), strict=False, assign=True)
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


def _named(family: str, weights: dict[str, Tensor]) -> dict[str, Tensor]:
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
