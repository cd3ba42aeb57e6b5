"""Published weights of VisualBERT, VL-BERT and UNITER, by name: what each is called here, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import BertConfig, BertModel

from groundling.errors import InputError
from groundling.joins.visualbert import visualbert
from groundling.models.kinds import Kind
from groundling.models.loading import load_config, load_tokenizer
from groundling.models.single_stream import SingleStream


class Names(NamedTuple):
    """How a code base names its weights; of several prefixes that fit, the longest counts."""

    outer: tuple[str, ...]  # prefixes that checkpoints may or may not have, in this order
    renamed: Mapping[str, str]  # from a prefix there to one of `SingleStream`
    dropped: tuple[str, ...]  # prefixes of weights that are not used: heads and detectors
    optional: tuple[
        str, ...
    ] = ()  # prefixes here that a checkpoint need not have, beside the pooler


BERT = {part: f"text.encoder.{part}" for part in ("embeddings.", "encoder.", "pooler.")}

VISUALBERT = Names(
    (
        "module.",
        "visual_bert.",
        "bert.",
        "bert.",
    ),  # of processes, of HF's model with heads, of the authors'
    {
        "embeddings.projection.": "join.projection.",
        "embeddings.position_embeddings_visual.": "join.position.",
        "embeddings.token_type_embeddings_visual.": "join.segment.",
        "embeddings.visual_projection.": "join.projection.",  # HF's
        "embeddings.visual_position_embeddings.": "join.position.",
        "embeddings.visual_token_type_embeddings.": "join.segment.",
        "additional_layer.": "fusion.",
        **BERT,
    },
    (
        "cls.",
        "classifier.",
        "flickr_attention.",
        "attention.",
        "detector.",
        "embeddings.position_ids",
    ),
)
VLBERT = Names(
    ("module.", "vlbert."),
    {
        "word_embeddings.": "text.encoder.embeddings.word_embeddings.",
        "position_embeddings.": "text.encoder.embeddings.position_embeddings.",
        "token_type_embeddings.": "text.encoder.embeddings.token_type_embeddings.",
        "embedding_LayerNorm.": "text.encoder.embeddings.LayerNorm.",
        "encoder.": "text.encoder.encoder.",
        "pooler.": "text.encoder.pooler.",
        "end_embedding.weight": "join.end",
        "visual_ln_text.": "join.norm_text.",
        "visual_ln_object.": "join.norm_region.",
        "image_feature_extractor.obj_downsample.1.": "join.visual.",
        "object_linguistic_embeddings.weight": "join.image_word",
        "object_mask_word_embedding.weight": "join.mask_word",
        "object_mask_visual_embedding.weight": "join.mask_visual",
        "aux_text_visual_embedding.weight": "join.no_image",
    },
    ("mlm_head.", "mvrc_head.", "relationsip_head.", "final_mlp.", "image_feature_extractor."),
    ("join.mask_word", "join.mask_visual", "join.no_image"),  # each only of some pre-trainings
)
UNITER = Names(
    ("module.", "bert.", "uniter."),
    {
        "img_embeddings.img_linear.": "join.feature.",
        "img_embeddings.img_layer_norm.": "join.feature_norm.",
        "img_embeddings.pos_linear.": "join.box.",
        "img_embeddings.pos_layer_norm.": "join.box_norm.",
        "img_embeddings.mask_embedding.": "join.mask.",
        "img_embeddings.LayerNorm.": "join.norm.",
        **BERT,
    },
    (
        *(
            "cls.",
            "feat_regress.",
            "region_classifier.",
            "itm_output.",
            "vqa_output.",
            "vcr_output.",
            "re_output.",
        ),
        *("rank_output.", "nlvr2_output.", "attn1.", "attn2.", "attn_pool.", "fc."),
    ),
)


def renamed(weights: Mapping[str, Tensor], names: Names) -> tuple[dict[str, Tensor], list[str]]:
    """Weights by the names of `SingleStream`, and the names of those dropped; raises InputError on an unknown name."""
    found, dropped = {}, []
    known: dict[str, str | None] = {**names.renamed, **dict.fromkeys(names.dropped)}
    for name, value in weights.items():
        inner = name
        for prefix in names.outer:
            inner = inner.removeprefix(prefix)
        longest = max((prefix for prefix in known if inner.startswith(prefix)), key=len, default="")
        if not longest:
            raise InputError(f"{name}: neither a known weight nor one known to be of no use here")
        own = known[longest]
        if own is None:
            dropped.append(name)
        else:  # BERT's first checkpoints call a LayerNorm's weights gamma and beta
            own += (
                inner.removeprefix(longest).replace(".gamma", ".weight").replace(".beta", ".bias")
            )
            found[own] = value
    return found, dropped


def load_visual_weights(
    model: SingleStream, source: str | Path | Mapping[str, Tensor], names: Names
) -> list[str]:
    """Fill `model` from a file, a folder or weights, strictly; what is dropped is printed and returned."""
    weights, where = (
        (source, "weights") if isinstance(source, Mapping) else (read_weights(source), str(source))
    )
    found, dropped = renamed(weights, names)
    own = model.state_dict()
    missing = sorted(own.keys() - found.keys())
    if lacking := [
        name for name in missing if not name.startswith(("text.encoder.pooler.", *names.optional))
    ]:
        raise InputError(f"{where}: {len(lacking)} weights are missing, the first is {lacking[0]}")
    for name, value in found.items():
        if name not in own or value.shape != own[name].shape:
            expected = tuple(own[name].shape) if name in own else "nothing"
            raise InputError(
                f"{where}: {name} is {tuple(value.shape)}, this model expects {expected}"
            )
    model.load_state_dict({**own, **found})
    if dropped or missing:
        parts = sorted({name.rpartition(".")[0] for name in dropped})
        print(
            f"{where}: not used: {', '.join(parts) or 'nothing'}; left as made: {', '.join(missing) or 'nothing'}"
        )
    return dropped


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """Weights of a file, or of a folder's `model.safetensors` or `pytorch_model.bin`; nothing but tensors is read."""
    path = Path(source)
    if path.is_dir():
        safe = path / "model.safetensors"
        path = safe if safe.exists() else path / "pytorch_model.bin"
    try:
        found: Any = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, "cpu", weights_only=True)
        )
    except (OSError, SafetensorError, UnpicklingError, RuntimeError, EOFError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{path}: no weights that can be read safely; save its tensors alone ({reason})"
        ) from None
    for whole in ("state_dict", "model"):  # of a training state
        found = (
            found[whole]
            if isinstance(found, dict) and isinstance(found.get(whole), dict)
            else found
        )
    if not isinstance(found, dict) or not all(
        isinstance(value, Tensor) for value in found.values()
    ):
        raise InputError(f"{path}: expected weights by name")
    return found


SHARED = (
    *(
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "intermediate_size",
        "hidden_act",
    ),
    *(
        "hidden_dropout_prob",
        "attention_probs_dropout_prob",
        "max_position_embeddings",
        "type_vocab_size",
    ),
    *("initializer_range", "layer_norm_eps"),
)
"""What the configurations of VisualBERT and BERT have in common, but for the id of padding (HF: 1 and 0)."""


def load_hf_visualbert(folder: str | Path, tokenizer: str | Path | None = None) -> SingleStream:
    """A `SingleStream` from a VisualBERT folder of transformers; without a tokenizer in it, give BERT's, uncased."""
    config = load_config(folder)
    bert = BertModel(
        BertConfig(**{name: value for name, value in config.to_dict().items() if name in SHARED})
    )
    words, early = load_tokenizer(tokenizer or folder), not config.bypass_transformer
    model = visualbert(bert, words, config.visual_embedding_dim, early=early)
    load_visual_weights(model, folder, VISUALBERT)
    return model.eval()


def _is_visualbert(source: str) -> bool:
    return (Path(source) / "config.json").exists() and load_config(
        source
    ).model_type == "visual_bert"


HF = Kind("VisualBERT of transformers", _is_visualbert, load_hf_visualbert)
