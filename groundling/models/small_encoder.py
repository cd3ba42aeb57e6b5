"""A small untrained BERT with the words of a text file as vocabulary."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from groundling.core.rng import derive_seed
from groundling.data.tables import lines_of
from groundling.runs.folder import whole_folder

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def new_encoder(
    text: Path, folder: Path, seed: int, layers: int = 2, positions: int = 32, width: int = 128
) -> None:
    """Write a small untrained BERT with all words and letters of a text file as vocabulary, as an HF folder.

    `positions`: maximum input length in tokens; `width`: dimensions of the hidden states. Does nothing if the folder
    already has an encoder. Raises InputError if the text cannot be read.
    """
    if (folder / "tokenizer_config.json").exists():
        return
    tokenizer = BertTokenizer(
        vocab=_vocabulary(text), do_lower_case=True, model_max_length=positions
    )
    torch.manual_seed(derive_seed(seed, "new encoder"))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=2 * width,
        max_position_embeddings=positions,
        # BERT's values are for models six times as wide, trained a thousand times as long; feed-forward layers of
        # four times the width took longer here and were no better on dev nouns.
        initializer_range=0.04,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with whole_folder(folder.parent) as partial:
        BertModel(config).save_pretrained(partial / folder.name)
        tokenizer.save_pretrained(partial / folder.name)


def _vocabulary(text: Path) -> dict[str, int]:
    """Token ids by token, without the WordPiece trainer, whose numbering differs in every process."""
    words: set[str] = set()
    for line in lines_of(text):
        words.update(line.lower().split())
    letters = sorted(set("".join(words)))
    tokens = [*SPECIAL, *letters]
    tokens += [f"##{letter}" for letter in letters]
    tokens += sorted(words)
    # A one-letter word is already a token and keeps its first id.
    return {token: number for number, token in enumerate(dict.fromkeys(tokens))}
