"""Any Hugging Face text encoder, as it is."""

from __future__ import annotations

import inspect
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import AutoModel, PreTrainedTokenizerBase

from groundling.core.batch import Batch, Encoded, Sizes, needed
from groundling.core.errors import InputError
from groundling.data.samples import TextInput
from groundling.models.attention import AttentionMap, Watch, places_of_text, watching
from groundling.models.heads import lm_head_style
from groundling.models.kinds import Student
from groundling.models.loading import load_config, load_tokenizer, load_weights
from groundling.models.masks import mask_of
from groundling.models.sentence import Sentence, load_sentence, lower_cased


def embedded_words(table: nn.Module, batch: Batch, who: str) -> Tensor:
    """Word embeddings (N, T, E) of a batch's texts, without positions or segments; the one place that looks them up.

    An inner step's perturbation is added here (VILLA: to the word embedding alone). Raises InputError without texts.
    """
    words: Tensor = table(needed(batch.text, "text", who).ids)
    if batch.perturbation is not None and batch.perturbation.text is not None:
        words = words + batch.perturbation.text
    return words


class TextEncoder(Student):
    """A stock HF encoder and its tokenizer; `encoder` *is* the HF module, which is what gets exported."""

    def __init__(self, encoder: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises InputError if the tokenizer knows more pieces than the encoder embeds."""
        super().__init__()
        self.encoder = encoder
        self.tokenizer = tokenizer
        reads_types = "token_type_ids" in inspect.signature(encoder.forward).parameters
        self.has_types = reads_types and bool(getattr(encoder.config, "type_vocab_size", 0))
        table = encoder.get_input_embeddings().weight
        if len(tokenizer) > table.shape[0]:
            raise InputError(
                f"{tokenizer.name_or_path}: the tokenizer knows {len(tokenizer)} pieces, the encoder {table.shape[0]}"
            )
        width = encoder.config.hidden_size
        activation, epsilon = lm_head_style(encoder.config)
        self.sizes = Sizes(
            text=width,
            word_table=(table.shape[0], table.shape[1]),
            pooled=width if getattr(encoder, "pooler", None) is not None else 0,
            activation=activation,
            epsilon=epsilon,
        )
        self.sentence: Sentence | None = None

    def speaks(self, sentence: Sentence) -> None:
        """Let it say sentence vectors, pooled thus, and write what makes them beside itself (sentence-transformers)."""
        self.sentence = sentence
        width = self.sizes.text * len(sentence.pooling.modes)
        self.sizes = self.sizes._replace(sentence=width)

    @property
    def max_length(self) -> int:
        """Most pieces the encoder and its tokenizer can take, special ones included."""
        limit = getattr(self.encoder.config, "max_position_embeddings", None) or 512
        for name, module in self.encoder.named_modules():
            # RoBERTa-like tables spend their first rows on padding: positions start at padding_idx + 1.
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                spent = 0 if module.padding_idx is None else module.padding_idx + 1
                limit = module.num_embeddings - spent
        return min(limit, self.tokenizer.model_max_length)

    def forward(self, batch: Batch, attention: Watch | None = None) -> Encoded:
        """Encode `batch.text`; `attention` is told every layer's map, named `self`."""
        tokens = needed(batch.text, "text", "a text encoder")

        def tell(layer: int, weights: Tensor) -> None:
            places = places_of_text(tokens)
            if attention is not None:
                attention(AttentionMap("self", layer, weights, places, places))

        with nullcontext() if attention is None else watching(self.encoder, tell):
            out = self.encoder(**self._arguments(batch))
        return Encoded(
            text=out.last_hidden_state,
            pooled=out.pooler_output if self.sizes.pooled else None,
            sentence=self._pooled(out.last_hidden_state, tokens.mask),
            word_table=self.word_embeddings().weight,
        )

    def _pooled(self, states: Tensor, mask: Tensor) -> Tensor | None:
        """A sentence encoder's pooled states (N, S), of states (N, T, D) under a mask (N, T)."""
        return None if self.sentence is None else self.sentence.pooling(states, mask)

    def layers(self, batch: Batch) -> tuple[Tensor, ...]:
        """What the embeddings and then each layer put out for `batch.text`, (N, T, D) each."""
        out = self.encoder(**self._arguments(batch), output_hidden_states=True)
        states: tuple[Tensor, ...] = out.hidden_states
        return states

    def _arguments(self, batch: Batch) -> dict[str, Any]:
        """What Hugging Face's module reads of a batch."""
        tokens = needed(batch.text, "text", "a text encoder")
        arguments: dict[str, Any] = {"attention_mask": mask_of(tokens, batch)}
        if batch.perturbation is None:
            arguments["input_ids"] = tokens.ids
        else:
            table = self.word_embeddings()
            arguments["inputs_embeds"] = embedded_words(table, batch, "a text encoder")
        if self.has_types:
            arguments["token_type_ids"] = tokens.types
        return arguments

    def inputs(self, max_length: int) -> tuple[TextInput, None]:
        """Texts of at most `max_length` pieces, or what the encoder can take."""
        return TextInput(self.tokenizer, min(max_length, self.max_length)), None

    def word_embeddings(self) -> nn.Embedding:
        """The encoder's input embeddings."""
        table: nn.Embedding = self.encoder.get_input_embeddings()
        return table

    def export(self, folder: Path) -> None:
        """Write a stock HF folder: `AutoModel.from_pretrained(folder)` needs nothing of groundling.

        A sentence encoder's is a sentence-transformers folder, too.
        """
        self.encoder.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        if self.sentence is not None:
            self.sentence.write(folder)


def load_text_encoder(source: str | Path) -> TextEncoder:
    """A text encoder with its tokenizer from a hub id or a folder; raises InputError if it holds something else."""
    config = load_config(source)
    # CLIP has two encoders, and an image encoder has no vocabulary.
    one_text_encoder = hasattr(config, "hidden_size") and hasattr(config, "vocab_size")
    if not one_text_encoder or config.is_encoder_decoder:
        raise InputError(f"{source}: a {config.model_type} model is no text encoder")
    tokenizer = load_tokenizer(source)
    sentence, lower = load_sentence(source, config.hidden_size)
    if lower:
        lower_cased(tokenizer)
    text = TextEncoder(load_weights(AutoModel, source), tokenizer)
    if sentence is not None:
        text.speaks(sentence)
    return text
