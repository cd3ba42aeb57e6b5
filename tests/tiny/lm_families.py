"""Families of encoders and decoders whose language-model head is read, with other settings than their defaults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import transformers as hf
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, Tokens, collate
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.heads import LMHead
from groundling.models.text_encoder import TextEncoder
from tiny import toys


class Family(NamedTuple):
    """How a family's masked-LM model is made, with another activation and epsilon than its default."""

    whole: Callable[[int], Any]
    words: Callable[[], PreTrainedTokenizerBase]


SIZES = {**toys.SMALL, **toys.SPREAD, "max_position_embeddings": 66}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64, **toys.SPREAD}
ODD = {"hidden_act": "relu", "layer_norm_eps": 1e-3, **SIZES}


def family(
    name: str,
    words: Callable[[], PreTrainedTokenizerBase],
    like: Any = None,
    head: str = "ForMaskedLM",
    **own: Any,
) -> Family:
    """The family of transformers' `name`, with these settings, or those of the tiny model `like` and these."""

    def whole(size: int) -> Any:
        settings = {"vocab_size": size} if like is None else like(size).config.to_dict()
        kind = "Gemma3Text" if name == "Gemma3" else name
        config = getattr(hf, f"{kind}Config")(**{**settings, **own})
        return getattr(hf, f"{name}{head}")(config)

    return Family(whole, words)


FAMILIES = {
    "relu bert": family("Bert", toys.bert_words, **{**ODD, "layer_norm_eps": 1e-2}),
    "roberta": family("Roberta", toys.roberta_words, type_vocab_size=1, **ODD),
    "electra": family("Electra", toys.bert_words, embedding_size=16, **ODD),
    "modernbert": family(
        *("ModernBert", toys.bert_words, toys.modernbert),
        **{"classifier_activation": "silu", "norm_eps": 1e-3},
    ),
    "mpnet": family("MPNet", toys.roberta_words, **ODD),
    "distilbert": family(
        *("DistilBert", toys.bert_words),
        **{"max_position_embeddings": 64, "activation": "relu", **DISTILBERT},
    ),
    "deberta-v2": family(
        *("DebertaV2", toys.deberta_words, toys.deberta),
        **{"hidden_act": "relu", "layer_norm_eps": 1e-3},
    ),
}


def of_sizes(text: TextEncoder) -> LMHead:
    """The head that objectives and `probe-facts` make for an encoder."""
    sizes = text.sizes
    return LMHead(sizes.text, sizes.input_embeddings, sizes.config)


def read(text: TextEncoder) -> tuple[Batch, Tokens]:
    batch = collate(TextDataset(toys.examples(4), TextRowEncoder(text.tokenizer, 40)).get(range(4)))
    assert batch.text is not None
    return batch, batch.text


ALL = {
    **FAMILIES,
    "albert": family("Albert", toys.bert_words, embedding_size=16, **SIZES),
    "xlm-roberta": family("XLMRoberta", toys.roberta_words, type_vocab_size=1, **SIZES),
    "camembert": family("Camembert", toys.roberta_words, type_vocab_size=1, **SIZES),
}


def decoder(name: str, head: str = "ForCausalLM", **own: Any) -> Family:
    """A family of causal models; it has no padding token of its own."""
    ends = {"bos_token_id": 0, "eos_token_id": 2, "pad_token_id": None}
    return family(name, toys.roberta_words, head=head, **ends, **own)


GROUPED = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8}
WINDOWED = {**GROUPED, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3}
DECODERS = {
    "gpt2": decoder("GPT2", "LMHeadModel", n_positions=66, n_embd=32, n_layer=2, n_head=2),
    "opt": decoder(
        *("OPT",),
        **{"hidden_size": 32, "word_embed_proj_dim": 16, "do_layer_norm_before": False},
        **{"ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 2, "init_std": 0.2},
    ),
    "llama": decoder("Llama", **GROUPED),
    "qwen3": decoder("Qwen3", use_sliding_window=True, max_window_layers=0, **WINDOWED),
    "smollm3": decoder("SmolLM3", **GROUPED),
    "gemma3": decoder("Gemma3", final_logit_softcapping=5.0, query_pre_attn_scalar=8, **WINDOWED),
}
