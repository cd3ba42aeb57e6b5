"""Any stock Hugging Face text encoder or decoder, loaded or new; gradient checkpointing."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from math import gcd
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    AutoModel,
    BertConfig,
    BertModel,
    BertTokenizer,
    GPT2Config,
    GPT2Model,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from groundling.core.batch import Batch, EncoderOutput, OutputSizes, Tokens, require
from groundling.core.errors import InputError, convert_errors
from groundling.core.rng import derive_seed
from groundling.data.samples import TextRowEncoder, check_vocabulary
from groundling.data.tables import lines_of
from groundling.models.attention import AttentionCallback, capture_attention, text_positions
from groundling.models.loading import (
    Encoder,
    is_causal,
    load_config,
    load_tokenizer,
    load_weights,
)
from groundling.models.packing import (
    PACKED,
    check_packing,
    encode_packed,
    first_position,
    packed_texts,
    position_table,
)
from groundling.models.sentence_modules import SentenceModules, add_lowercase, load_sentence_modules
from groundling.runs.folder import read_object, whole_folder, write_json

TOKENIZER_CONFIG = "tokenizer_config.json"
"""transformers' file of a tokenizer's settings."""


def make_attention_mask(tokens: Tokens, batch: Batch) -> Tensor | None:
    """The attention mask (N, T) long of texts; None on an accelerator if no text is padded."""
    before = None if batch.cpu_batch is None else batch.cpu_batch.text
    if before is not None and before.attention_mask.all():
        return None
    return tokens.attention_mask.long()


@contextmanager
def compiled_layers(model: nn.Module) -> Iterator[None]:
    """Within the context, each layer of a model (an item of a list of modules) is compiled by itself.

    Layers of one kind share what is compiled. (Compiled as a whole, with sizes that vary, an encoder loses PyTorch's
    fast attention.)
    """
    layers = [layer for part in _outer_lists(model) for layer in part]
    for layer in layers:
        layer.compile(dynamic=True)
    try:
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None


def _outer_lists(module: nn.Module) -> Iterator[nn.ModuleList]:
    if isinstance(module, nn.ModuleList):
        yield module
    else:
        for part in module.children():
            yield from _outer_lists(part)


# Gradient checkpointing: activations are recomputed in the backward pass instead of stored.


@contextmanager
def gradient_checkpointing(model: nn.Module) -> Iterator[None]:
    """Within the context, every Hugging Face encoder inside a model uses gradient checkpointing.

    Dropout masks are reproduced, so losses and gradients stay the same.
    """
    parts = [
        module
        for module in model.modules()
        if isinstance(module, PreTrainedModel) and module.supports_gradient_checkpointing
    ]
    with warnings.catch_warnings():
        # The newer name is missing from the oldest supported version.
        warnings.simplefilter("ignore", FutureWarning)
        for part in parts:
            # Reentrant checkpoints need inputs with gradients and conflict with DDP's unused parameters.
            part.gradient_checkpointing_enable({"use_reentrant": False})
    try:
        yield
    finally:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)
            for part in parts:
                part.gradient_checkpointing_disable()


def embed_words(table: nn.Module, batch: Batch, who: str) -> Tensor:
    """Word embeddings (N, T, E) of a batch's texts, without positions or segments; every model calls this.

    Adds the training step's perturbation, if any (VILLA perturbs word embeddings only). Raises InputError
    without texts.
    """
    words: Tensor = table(require(batch.text, "text", who).input_ids)
    if "text" in batch.perturbation:
        words = words + batch.perturbation["text"]
    return words


class _LayerReached(Exception):
    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = states


def encoder_layers(encoder: nn.Module) -> nn.ModuleList:
    """The layers of a Hugging Face encoder, in order; raises InputError if they cannot be told from its modules."""
    config: Any = encoder.config
    count = config.num_hidden_layers
    lists = [
        module
        for module in encoder.modules()
        if isinstance(module, nn.ModuleList) and len(module) == count
    ]
    if not lists:
        raise InputError(f"a {config.model_type} model has no list of {count} layers")
    return lists[0]


def first_layers(encoder: nn.Module, arguments: Mapping[str, Any], count: int) -> Tensor:
    """Output (N, T, D) of an encoder's first `count` layers; later ones do not run.

    Raises InputError if it has fewer layers.
    """
    layers = encoder_layers(encoder)
    if not 1 <= count <= len(layers):
        raise InputError(f"layer {count}: this encoder has {len(layers)} layers")

    def end(module: nn.Module, inputs: object, output: Any) -> None:
        raise _LayerReached(output[0] if isinstance(output, tuple) else output)

    hook = layers[count - 1].register_forward_hook(end)
    try:
        encoder(**arguments)
    except _LayerReached as reached:
        return reached.states
    finally:
        hook.remove()
    raise InputError(f"a {type(encoder).__name__} does not run its layers in order")


class TextEncoder(Encoder):
    """A stock HF encoder and its tokenizer; `encoder` is the HF module itself, which is exported."""

    def __init__(self, encoder: Any, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises InputError if the tokenizer has more tokens than the encoder's input embeddings."""
        super().__init__()
        self.encoder = encoder
        self.tokenizer = self.text_tokenizer = tokenizer
        reads_types = "token_type_ids" in inspect.signature(encoder.forward).parameters
        self.has_types = reads_types and bool(getattr(encoder.config, "type_vocab_size", 0))
        table = encoder.get_input_embeddings().weight
        check_vocabulary(tokenizer, table)
        settings = encoder.config.to_dict()
        width = _output_width(encoder.config)
        self.sizes = OutputSizes(
            text=width,
            input_embeddings=(table.shape[0], table.shape[1]),
            pooler_output=width if getattr(encoder, "pooler", None) is not None else 0,
            config=encoder.config,
            epsilon=settings.get("layer_norm_eps", settings.get("norm_eps", 1e-12)),
            causal=is_causal(encoder.config),
        )
        self.sentence: SentenceModules | None = None
        self.has_layer_outputs = False
        self.is_projected = width != encoder.config.hidden_size
        """Whether its output has another width than its layers, as OPT-350M's: then only the output can be read."""
        self.padded_attention = ""
        """Its attention's name beside packing; empty while it does not pack."""

    def set_sentence_modules(self, sentence: SentenceModules) -> None:
        """Add sentence modules: outputs include sentence vectors, and exports are in sentence-transformers' format.

        Its tokenizer pads on the right, as groundling does, because sentence-transformers gives GPT-2 the positions of
        padding too, and needs a padding token.
        """
        self.sentence = sentence
        self.tokenizer.padding_side = "right"
        if self.tokenizer.pad_token is None:
            end = self.tokenizer.eos_token or self.tokenizer.convert_ids_to_tokens(0)
            self.tokenizer.pad_token = end
        width = self.sizes.text * len(sentence.modes)
        self.sizes = self.sizes._replace(sentence_embedding=width)

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of the encoder and its tokenizer, special ones included."""
        limit = getattr(self.encoder.config, "max_position_embeddings", None) or 512
        table = position_table(self.encoder)
        if table is not None:
            limit = table.num_embeddings - first_position(table)
        return min(limit, self.tokenizer.model_max_length)

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Encode `batch.text`; `attention` is called with every layer's map, named `self`."""
        tokens = require(batch.text, "text", "a text encoder")
        arguments = self._encoder_arguments(batch)
        pooling: Callable[[Tensor], Tensor] | None = None
        if self.sentence is not None:
            pooling = partial(self.sentence.pooling, mask=tokens.attention_mask)
        if self.has_layer_outputs:
            arguments["output_hidden_states"] = True
        with capture_attention(self.encoder, attention, lambda: text_positions(tokens)):
            out = self._encode(batch, arguments, is_packing=attention is None)
        return EncoderOutput(
            text=out.last_hidden_state,
            pooler_output=out.pooler_output if self.sizes.pooler_output else None,
            sentence_embedding=None if pooling is None else pooling(out.last_hidden_state),
            input_embeddings=self.word_embeddings().weight,
            layers=out.hidden_states if self.has_layer_outputs and not self.is_projected else None,
            encode_again=partial(self._encode_again, batch) if self.has_layer_outputs else None,
            pool_states=pooling,
        )

    def set_dropout(self, probability: float) -> None:
        """Set the probability of every dropout layer; the configuration, and so the export, stays as it is.

        Raises InputError for an encoder without dropout layers.
        """
        layers = [module for module in self.encoder.modules() if isinstance(module, nn.Dropout)]
        if not layers:
            family = self.encoder.config.model_type
            raise InputError(f"dropout={probability:g}: a {family} model has no dropout layers")
        for layer in layers:
            layer.p = probability

    def return_layers(self) -> None:
        """From now on, outputs include `layers` and `encode_again`."""
        self.has_layer_outputs = True

    def pack_texts(self, on: bool) -> bool:
        """See `Encoder.pack_texts`."""
        before = bool(self.padded_attention)
        if on and not before:
            check_packing(self.encoder)
            self.padded_attention = self.encoder.config._attn_implementation
            self.encoder.set_attn_implementation(PACKED)
        elif before and not on:
            self.encoder.set_attn_implementation(self.padded_attention)
            self.padded_attention = ""
        return before

    def _encode(self, batch: Batch, arguments: Mapping[str, Any], is_packing: bool) -> Any:
        packed = packed_texts(batch) if is_packing and self.padded_attention else None
        if packed is None:
            return self.encoder(**arguments)
        return encode_packed(self.encoder, arguments, packed)

    def _encode_again(
        self, batch: Batch, attention_mask: Tensor | None = None, layers: int | None = None
    ) -> Tensor:
        """See `EncoderOutput.encode_again`; raises InputError if the encoder has fewer than `layers` layers."""
        arguments = self._encoder_arguments(batch)
        if attention_mask is not None:
            # A row without any allowed position would be NaN: such a position reads itself.
            itself = torch.eye(
                attention_mask.shape[-1], dtype=torch.bool, device=attention_mask.device
            )
            is_read = attention_mask | (~attention_mask.any(-1, keepdim=True) & itself)
            weight = self.word_embeddings().weight
            mask = weight.new_zeros(is_read.shape, device=is_read.device)
            lowest = torch.finfo(weight.dtype).min
            arguments["attention_mask"] = mask.masked_fill(~is_read, lowest)[:, None]
            if self.encoder.config.model_type == "opt":  # it counts positions by the mask
                place = torch.arange(attention_mask.shape[-1], device=attention_mask.device)
                arguments["position_ids"] = place[None]
        family = self.encoder.config.model_type
        with convert_errors(
            f"a {family} model does not accept a mask for pairs of positions", errors=RuntimeError
        ):
            if layers is not None and self.is_projected:
                raise InputError(
                    f"the layers of this {family} model have another width than its output, so none can be read again"
                )
            if layers is None:
                out = self._encode(batch, arguments, is_packing=attention_mask is None)
                states: Tensor = out.last_hidden_state
                return states
            return first_layers(self.encoder, arguments, layers)

    def _encoder_arguments(self, batch: Batch) -> dict[str, Any]:
        tokens = require(batch.text, "text", "a text encoder")
        arguments: dict[str, Any] = {"attention_mask": make_attention_mask(tokens, batch)}
        if not batch.perturbation:
            arguments["input_ids"] = tokens.input_ids
        else:
            table = self.word_embeddings()
            arguments["inputs_embeds"] = embed_words(table, batch, "a text encoder")
        if self.has_types:
            arguments["token_type_ids"] = tokens.token_type_ids
        if self.sizes.causal:
            arguments["use_cache"] = False
        return arguments

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, None]:
        """Texts of at most `max_length` tokens, or the encoder's own maximum if it is lower."""
        return TextRowEncoder(self.tokenizer, min(max_length, self.max_length)), None

    def word_embeddings(self) -> nn.Embedding:
        """The encoder's input embeddings."""
        table: nn.Embedding = self.encoder.get_input_embeddings()
        return table

    def export(self, folder: Path) -> None:
        """Write a stock HF folder: `AutoModel.from_pretrained(folder)` works without groundling.

        A sentence encoder's folder also has sentence-transformers' format.
        """
        self.encoder.save_pretrained(folder)
        save_tokenizer(self.tokenizer, folder)
        if self.sentence is not None:
            self.sentence.write(folder)


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Write a tokenizer so that transformers 4 loads it, too.

    It knows neither the class that transformers 5 names for a tokenizer without one of its own, nor a list of
    `extra_special_tokens`; transformers 5 reads the names of both.
    """
    tokenizer.save_pretrained(folder)
    file = folder / TOKENIZER_CONFIG
    settings = read_object(file)
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_json(file, settings)


def _output_width(config: Any) -> int:
    projected = getattr(config, "word_embed_proj_dim", None)  # OPT's
    return int(projected or config.hidden_size)


def _text_config(source: str | Path) -> Any:
    config = load_config(source)
    # Two encoders (CLIP) have no `hidden_size`, an image encoder no `vocab_size`.
    one_text_encoder = hasattr(config, "hidden_size") and hasattr(config, "vocab_size")
    if not one_text_encoder or config.is_encoder_decoder:
        raise InputError(f"{source}: a {config.model_type} model is not a text encoder")
    return config


def load_text_encoder(source: str | Path) -> TextEncoder:
    """Load a text encoder and its tokenizer from a hub id or folder; raises InputError for another model."""
    config = _text_config(source)
    tokenizer = load_tokenizer(source)
    sentence, lower = load_sentence_modules(source, _output_width(config))
    if lower:
        add_lowercase(tokenizer)
    text = TextEncoder(load_weights(AutoModel, source), tokenizer)
    if sentence is not None:
        text.set_sentence_modules(sentence)
    return text


HEAD_WIDTH = 64
"""Width of an attention head of a new encoder, as in every BERT."""


def new_text_encoder(source: str | Path, seed: int, layers: int, width: int) -> TextEncoder:
    """A text encoder with new weights, with the configuration and tokenizer of a hub id or folder.

    `layers` and `width` replace those of the configuration, 0: not. Raises InputError for another model, and for a
    sentence-transformers folder, whose pooling belongs to trained weights.
    """
    config = _text_config(source)
    if width % HEAD_WIDTH:
        raise InputError(f"student_width={width}: expected a multiple of {HEAD_WIDTH}")
    if load_sentence_modules(source, _output_width(config))[0] is not None:
        raise InputError(f"{source}: from_scratch: expected an encoder without pooling")
    torch.manual_seed(derive_seed(seed, "init", "student"))
    with convert_errors(f"{source}: no encoder of this size", errors=Exception):
        config.update(_other_size(config, layers, width))
        config.validate()  # a model of layers without kinds could be trained, but not saved
        encoder = AutoModel.from_config(config, dtype=torch.float32)
    return TextEncoder(encoder, load_tokenizer(source))


SCALED = ("intermediate_size", "ffn_dim", "n_inner", "hidden_dim", "word_embed_proj_dim")
"""Settings of widths that grow with that of the hidden states, in some family's configuration."""
OF_EACH_LAYER = ("layer_types", "no_rope_layers")
"""Settings with a value for each layer, which are repeated."""


def _other_size(config: Any, layers: int, width: int) -> dict[str, Any]:
    """Settings of a configuration with other `layers` and `width`, 0: as they are."""
    own = config.to_dict()
    sizes: dict[str, Any] = {}
    if layers:
        sizes["num_hidden_layers"] = layers
        kinds = {name: own[name] for name in OF_EACH_LAYER if own.get(name)}
        for name, kind in kinds.items():
            sizes[name] = [kind[place % len(kind)] for place in range(layers)]
    if width:
        heads = width // HEAD_WIDTH
        sizes |= {"hidden_size": width, "num_attention_heads": heads}
        scaled = {name: own[name] for name in SCALED if own.get(name)}
        sizes |= {name: value * width // config.hidden_size for name, value in scaled.items()}
        shared = own.get("num_key_value_heads")
        if shared:
            sizes["num_key_value_heads"] = gcd(heads, shared)
        if own.get("head_dim"):
            sizes["head_dim"] = HEAD_WIDTH
    return sizes


SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def new_encoder(
    text: Path,
    folder: Path,
    seed: int,
    layers: int = 2,
    positions: int = 32,
    width: int = 128,
    causal: bool = False,
) -> None:
    """Write a small new BERT, or `causal` GPT-2, with all words and letters of a text as vocabulary, as HF folder.

    `positions`: maximum input length in tokens; `width`: dimensions of the hidden states. Does nothing if the folder
    already has an encoder. Raises InputError if the text cannot be read.
    """
    if (folder / TOKENIZER_CONFIG).exists():
        return
    # GPT-2 would add to every state the embedding of the token with a segment's number.
    names = ["input_ids", "attention_mask"]
    read: dict[str, Any] = {"model_input_names": names} if causal else {}
    tokenizer = BertTokenizer(
        vocab=_vocabulary(text), do_lower_case=True, model_max_length=positions, **read
    )
    # BERT's and GPT-2's values are for models six times as wide, trained a thousand times as long; feed-forward layers
    # of four times the width took longer here and were no better on dev nouns.
    size = {"num_hidden_layers": layers, "num_attention_heads": 4, "hidden_size": width}
    size |= {"vocab_size": len(tokenizer), "max_position_embeddings": positions}
    torch.manual_seed(derive_seed(seed, "new encoder"))
    encoder: PreTrainedModel
    if causal:
        still = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
        ends = {"bos_token_id": tokenizer.cls_token_id, "eos_token_id": tokenizer.sep_token_id}
        settings = {**size, **still, **ends, "pad_token_id": tokenizer.pad_token_id}
        encoder = GPT2Model(GPT2Config(n_inner=2 * width, initializer_range=0.04, **settings))
    else:
        still = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
        settings = {**size, **still, "intermediate_size": 2 * width}
        encoder = BertModel(BertConfig(initializer_range=0.04, **settings))
    with whole_folder(folder.parent) as partial:
        encoder.save_pretrained(partial / folder.name)
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
