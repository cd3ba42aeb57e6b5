"""A small untrained BERT whose vocabulary is a text file's words."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from groundling.core.keyed import seed_of
from groundling.data.tables import lines_of
from groundling.runs.folder import whole_folder

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def new_encoder(text: Path, folder: Path, seed: int, layers: int = 2, positions: int = 32) -> None:
    """Write an untrained small BERT whose vocabulary is every word (and letter) of a text file, as an HF folder.

    `positions`: longest input, word pieces. Does nothing if the folder holds an encoder already. Raises InputError if
    the text cannot be read.
    """
    if (folder / "tokenizer_config.json").exists():
        return
    tokenizer = BertTokenizer(
        vocab=_vocabulary(text), do_lower_case=True, model_max_length=positions
    )
    torch.manual_seed(seed_of(seed, "new encoder"))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=positions,
        # BERT's own values are for models six times as wide, trained a thousand times as long; feed-forward
        # layers of its four times the width took longer here and did no better on dev nouns.
        initializer_range=0.04,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with whole_folder(folder.parent) as partial:
        BertModel(config).save_pretrained(partial / folder.name)
        tokenizer.save_pretrained(partial / folder.name)


def _vocabulary(text: Path) -> dict[str, int]:
    """Word pieces by number, made by hand: the word-piece trainer numbers them differently in every process."""
    words: set[str] = set()
    for line in lines_of(text):
        words.update(line.lower().split())
    letters = sorted(set("".join(words)))
    pieces = [*SPECIAL, *letters]
    pieces += [f"##{letter}" for letter in letters]
    pieces += sorted(words)
    # A word of one letter is a piece already; it keeps its first place.
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
