"""Every family of encoders whose masked-LM head is read, with other settings than its defaults."""

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

FAMILIES = {
    "relu bert": Family(
        lambda size: hf.BertForMaskedLM(
            hf.BertConfig(vocab_size=size, hidden_act="relu", layer_norm_eps=1e-2, **SIZES)
        ),
        toys.bert_words,
    ),
    "roberta": Family(
        lambda size: hf.RobertaForMaskedLM(
            hf.RobertaConfig(
                vocab_size=size, type_vocab_size=1, hidden_act="relu", layer_norm_eps=1e-3, **SIZES
            )
        ),
        toys.roberta_words,
    ),
    "electra": Family(
        lambda size: hf.ElectraForMaskedLM(
            hf.ElectraConfig(
                vocab_size=size, embedding_size=16, hidden_act="relu", layer_norm_eps=1e-3, **SIZES
            )
        ),
        toys.bert_words,
    ),
    "modernbert": Family(
        lambda size: hf.ModernBertForMaskedLM(
            hf.ModernBertConfig(
                **{
                    **toys.modernbert(size).config.to_dict(),
                    "classifier_activation": "silu",
                    "norm_eps": 1e-3,
                }
            )
        ),
        toys.bert_words,
    ),
    "mpnet": Family(
        lambda size: hf.MPNetForMaskedLM(
            hf.MPNetConfig(vocab_size=size, hidden_act="relu", layer_norm_eps=1e-3, **SIZES)
        ),
        toys.roberta_words,
    ),
    "distilbert": Family(
        lambda size: hf.DistilBertForMaskedLM(
            hf.DistilBertConfig(
                vocab_size=size, max_position_embeddings=64, activation="relu", **DISTILBERT
            )
        ),
        toys.bert_words,
    ),
    "deberta-v2": Family(
        lambda size: hf.DebertaV2ForMaskedLM(
            hf.DebertaV2Config(
                **{
                    **toys.deberta(size).config.to_dict(),
                    "hidden_act": "relu",
                    "layer_norm_eps": 1e-3,
                }
            )
        ),
        toys.deberta_words,
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
    "albert": Family(
        lambda size: hf.AlbertForMaskedLM(
            hf.AlbertConfig(vocab_size=size, embedding_size=16, **SIZES)
        ),
        toys.bert_words,
    ),
    "xlm-roberta": Family(
        lambda size: hf.XLMRobertaForMaskedLM(
            hf.XLMRobertaConfig(vocab_size=size, type_vocab_size=1, **SIZES)
        ),
        toys.roberta_words,
    ),
    "camembert": Family(
        lambda size: hf.CamembertForMaskedLM(
            hf.CamembertConfig(vocab_size=size, type_vocab_size=1, **SIZES)
        ),
        toys.roberta_words,
    ),
}
