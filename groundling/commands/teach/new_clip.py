"""A CLIP from nothing: its tokenizer, learned from captions, and its untrained towers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, PreTrainedTokenizerBase

from groundling.commands.teach import TeachConfig

START = "<|startoftext|>"
END = "<|endoftext|>"
WORD_END = "</w>"
"""How CLIP's pieces mark the end of a word."""
HEAD_WIDTH = 32
"""Width of an attention head."""
WORD_SPREAD = 5.0
"""Factor on the initial word embeddings. CLIP's standard deviation of 0.02 suits long training; in a short one, words
are learned sooner from larger ones."""


def clip_tokenizer(texts: Sequence[str], vocabulary: int) -> CLIPTokenizer:
    """CLIP's byte-pair tokenizer with its pieces learned from `texts`; adds start and end tokens.

    Args:
        texts: what the merges are learned from.
        vocabulary: most pieces, start and end token included; texts of few words yield fewer.
    """
    template = CLIPTokenizer().backend_tokenizer
    learner = Tokenizer(BPE(end_of_word_suffix=WORD_END))
    learner.normalizer = template.normalizer
    learner.pre_tokenizer = template.pre_tokenizer
    alphabet = sorted(ByteLevel.alphabet())
    endings = [letter + WORD_END for letter in alphabet]
    trainer = BpeTrainer(
        vocab_size=vocabulary - 2,
        initial_alphabet=alphabet,
        # Numbered here, or the trainer numbers them as its hash table happens to list them, and breaks ties by number.
        special_tokens=endings,
        end_of_word_suffix=WORD_END,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    # The engine shows its merges in its JSON form only, each as a pair of pieces. (Any: transformers takes such pairs,
    # but its annotation says strings.)
    merges: list[Any] = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    merged = [left + right for left, right in merges]
    pieces = dict.fromkeys([*alphabet, *endings, *merged, START, END])
    ids = {piece: number for number, piece in enumerate(pieces)}
    return CLIPTokenizer(vocab=ids, merges=merges)


def small_clip(config: TeachConfig, tokenizer: PreTrainedTokenizerBase) -> CLIPModel:
    """An untrained HF CLIP of the configured size; its weights follow torch's global seed."""
    vision_width, vision_layers = config.vision
    text_width, text_layers = config.text
    text = {
        "vocab_size": len(tokenizer),
        "hidden_size": text_width,
        "num_hidden_layers": text_layers,
        "num_attention_heads": max(1, text_width // HEAD_WIDTH),
        "intermediate_size": 4 * text_width,
        "max_position_embeddings": config.window,
        "projection_dim": config.projection,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {
        "hidden_size": vision_width,
        "num_hidden_layers": vision_layers,
        "num_attention_heads": max(1, vision_width // HEAD_WIDTH),
        "intermediate_size": 4 * vision_width,
        "image_size": config.size,
        "patch_size": config.patch,
        "projection_dim": config.projection,
    }
    clip = CLIPModel(
        CLIPConfig(projection_dim=config.projection, text_config=text, vision_config=vision)
    )
    with torch.no_grad():
        clip.text_model.embeddings.token_embedding.weight.mul_(WORD_SPREAD)
    return clip
