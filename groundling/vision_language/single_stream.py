"""Single-stream models: a stock BERT over text and regions, and loading of the authors' released weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.bert.modeling_bert import BertLayer

from groundling.core.batch import Batch, EncoderOutput, Example, Regions, require, to_device
from groundling.core.errors import InputError, convert_errors, convert_read_errors, prefix_errors
from groundling.data.samples import TextRowEncoder
from groundling.models.attention import (
    AttentionCallback,
    SequencePositions,
    added_positions,
    capture_attention,
    region_positions,
    text_positions,
)
from groundling.models.heads import init_linears
from groundling.models.text_encoder import TextEncoder, embed_words, load_text_encoder
from groundling.runs.folder import json_text, read_object
from groundling.vision_language import RegionEncoder


class EmbeddedSequence(NamedTuple):
    """The embedded sequence of text and regions, S positions."""

    states: Tensor
    """(N, S, H)."""
    mask: Tensor
    """(N, S) bool."""
    text: slice
    """The T positions of the text."""
    regions: slice
    """The R positions of the regions."""


class RoiAlignSpec(NamedTuple):
    """How a paper's CNN computes a region's features from pixels."""

    bins: int
    """RoIAlign's bins per side, the input of the CNN's last stage, which has stride 1."""
    dilation: int
    """Dilation of that stage's 3 x 3 convolutions."""


class MultimodalEmbeddings(nn.Module):
    """Embeds text and regions of a batch as one sequence, or the text alone, with BERT's embedding module.

    VisualBERT, VL-BERT and UNITER differ, up to their heads, only in this. The sequence is text (its padding is
    masked), regions, and positions that the embeddings add, such as VL-BERT's [END]; position ids do not count
    padding. It has the layers that BERT lacks, so that BERT stays a stock model.
    """

    kind: ClassVar[str]
    """Its architecture's name, saved with the weights."""
    added_position_count: ClassVar[int] = 0
    """Number of position ids it uses after those of the text."""
    reads_whole_image: bool = False
    """Whether it reads the whole image as a region."""
    reads_tagged_regions: ClassVar[bool] = True
    """Whether a word that names an object of the image (VCR) also reads that object's region."""
    has_inclusive_boxes: ClassVar[bool] = False
    """Whether box coordinates include the last pixel, so that the whole image is W - 1 by H - 1 pixels."""
    region_pooling: ClassVar[RoiAlignSpec | None] = None
    """How its paper computes features from pixels; None: stored features only."""

    def __init__(self, width: int, **options: Any) -> None:
        """`width` of a region's features; `width` and `options` are saved with the weights."""
        super().__init__()
        self.width = width
        self.options = {"width": width, **options}

    def feature_projection_weight(self) -> Tensor | None:
        """The feature projection's weight (H, D) if a head is tied to it, else None."""
        return None

    def add_images(self, images: int, bert: BertModel) -> None:
        """Prepare itself and its BERT for samples of several images; by default nothing is needed."""

    def prepare(self, model: Any, examples: Sequence[Example], pretraining: bool) -> None:
        """Prepare the `SingleStreamModel` that it is part of for a task's examples; by default nothing is needed."""

    def make_text_input(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> TextRowEncoder:
        """How texts become its input, at most `max_length` tokens; by default as for BERT."""
        return TextRowEncoder(tokenizer, max_length)

    def forward(self, embeddings: Any, batch: Batch) -> EmbeddedSequence:
        """Embed text and regions of a batch; `embeddings` is BERT's embedding module."""
        tokens = require(batch.text, "text", f"a {self.kind} model")
        regions = batch.regions
        words = embed_words(embeddings.word_embeddings, batch, f"a {self.kind} model")
        text, rest = self.embed_parts(embeddings, words, batch)
        mask = tokens.attention_mask
        if regions is not None:
            mask = torch.cat([mask, regions.mask], 1)
        states = torch.cat([text, rest], 1)
        text_places = slice(0, text.shape[1])
        region_places = slice(text.shape[1], mask.shape[1])
        added = states.shape[1] - mask.shape[1]
        if text.shape[1] != words.shape[1] or added < 0:
            shapes = f"{tuple(text.shape)} and {tuple(rest.shape)}"
            raise InputError(f"{self.kind}: `embed_parts` returns too little: {shapes}")
        return EmbeddedSequence(
            states, F.pad(mask, (0, added), value=True), text_places, region_places
        )

    def last_stage(self, stage: nn.Module, states: Tensor, object_masks: Tensor) -> Tensor:
        """The CNN's last stage (R, D, bins, bins) of regions (R, C, bins, bins) with `object_masks` (R, 14, 14)."""
        output: Tensor = stage(states)
        return output

    def embed_parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Embedded text (N, T, H), and the regions followed by any added positions (N, R + added, H).

        `words` (N, T, E) are the word embeddings without positions and segments. Abstract.
        """
        raise NotImplementedError

    def masked_features(
        self, batch: Batch, regions: Regions, hidden: Tensor | None = None
    ) -> Tensor:
        """Features (N, R, D) of the regions: masked ones replaced by `hidden` (1, D) or (D,), then perturbed."""
        features = regions.features
        if hidden is not None and regions.masked is not None:
            features = torch.where(regions.masked[..., None], hidden, features)
        if "regions" in batch.perturbation:
            features = features + batch.perturbation["regions"]
        return features

    def segment_ids(self, batch: Batch, rows: Sequence[int]) -> Tensor:
        """Segment id (N, R) of each region, from `rows` by its image; raises InputError for too many images."""
        on_host = require(batch.cpu_copy.regions, "regions", f"a {self.kind} model")
        if int(on_host.image_index.max()) >= len(rows):
            raise InputError(f"a sample has more than the {len(rows)} images of this model")
        image = require(batch.regions, "regions", f"a {self.kind} model").image_index
        return to_device(torch.tensor(rows), image.device)[image]


def add_token_types(bert: BertModel, copies: Sequence[int | None]) -> None:
    """Append token type embeddings to a BERT, in place: copies of the given rows, random for None."""
    table = bert.embeddings.token_type_embeddings
    old = table.weight.detach()
    rows = [torch.randn_like(old[0]) * 0.02 if row is None else old[row] for row in copies]
    table.weight = nn.Parameter(torch.stack([*old, *rows]))
    table.num_embeddings = len(table.weight)
    bert.config.type_vocab_size = len(table.weight)


class SingleStreamModel(RegionEncoder):
    """A BERT whose layers attend over one sequence of text and regions, made by a `MultimodalEmbeddings`.

    With `early=False` (VisualBERT "without early fusion", ablation C2 of Appendix C), BERT reads the text
    alone, and one new layer attends over its output and the embedded regions; a text without regions skips
    that layer (as in the release, uclanlp/visualbert, pytorch_pretrained_bert/modeling.py).
    """

    def __init__(
        self,
        bert: BertModel,
        tokenizer: PreTrainedTokenizerBase,
        join: MultimodalEmbeddings,
        early: bool = True,
        regions_provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """`join`: made for this BERT; `regions_provenance`: detector or annotations of its training regions."""
        super().__init__()
        self.text = TextEncoder(bert, tokenizer)
        self.text_tokenizer = tokenizer
        self.join = join
        self.fusion: BertLayer | None = None
        if not early:
            self.fusion = BertLayer(bert.config)
            init_linears(self.fusion)
        self.regions_provenance = dict(regions_provenance or {})
        self.sizes = self.text.sizes._replace(visual=self.text.sizes.text, regions=join.width)
        self.reads_whole_image = join.reads_whole_image
        self.has_inclusive_boxes = join.has_inclusive_boxes
        self.reads_tagged_regions = join.reads_tagged_regions

    @property
    def architecture_name(self) -> str:
        """Name of its architecture."""
        return self.join.kind

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a text, special ones included."""
        positions = self.text.encoder.config.max_position_embeddings
        return int(min(self.text.max_length, positions - self.join.added_position_count))

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, None]:
        """Texts of at most `max_length` tokens, or the model's own maximum if it is lower."""
        return self.join.make_text_input(
            self.text.tokenizer, min(max_length, self.max_length)
        ), None

    def word_embeddings(self) -> nn.Embedding:
        """BERT's input embeddings."""
        return self.text.word_embeddings()

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states of the text, `text` (N, T, H), and of the regions, `visual` (N, R, H).

        `attention` is called with every layer's map over the whole sequence, named `self`; without early
        fusion BERT's maps are over the text alone, and the fusion layer's map is the last.
        """
        bert = self.text.encoder
        joined = self.join(bert.embeddings, batch)
        # The whole model, to include the fusion layer.
        with capture_attention(
            self, attention, lambda: self._positions(batch, joined), configured=bert
        ):
            states = self.encode(joined)
        return EncoderOutput(
            text=states[:, joined.text],
            visual=None if batch.regions is None else states[:, joined.regions],
            pooler_output=bert.pooler(states) if self.sizes.pooler_output else None,
            input_embeddings=self.word_embeddings().weight,
            region_embedding_weight=self.join.feature_projection_weight(),
        )

    def encode(self, joined: EmbeddedSequence) -> Tensor:
        """Last states (N, S, H) of an embedded sequence."""
        encoder = self.text.encoder.encoder
        no_regions = joined.regions.start == joined.regions.stop
        if self.fusion is None or no_regions:
            mask = self._mask(joined.states, joined.mask)
            states: Tensor = encoder(joined.states, attention_mask=mask).last_hidden_state
            return states
        words = joined.states[:, joined.text]
        text_mask = self._mask(words, joined.mask[:, joined.text])
        words = encoder(words, attention_mask=text_mask).last_hidden_state
        states = torch.cat([words, joined.states[:, joined.text.stop :]], 1)
        fused: Tensor = self.fusion(states, self._mask(states, joined.mask))
        return fused

    def _mask(self, states: Tensor, mask: Tensor) -> Any:
        return create_bidirectional_mask(
            config=self.text.encoder.config, inputs_embeds=states, attention_mask=mask.long()
        )

    def _positions(self, batch: Batch, joined: EmbeddedSequence) -> SequencePositions:
        parts = [text_positions(require(batch.text, "text", "a single-stream model"))]
        if batch.regions is not None:
            parts.append(region_positions(batch.regions))
        added = joined.states.shape[1] - joined.regions.stop
        if added:
            parts.append(added_positions(len(joined.states), added, joined.states.device))
        return SequencePositions.concatenate(*parts)

    def add_images(self, images: int) -> None:
        """As its embeddings need."""
        self.join.add_images(images, self.text.encoder)

    def prepare(self, examples: Sequence[Example], pretraining: bool) -> None:
        """As its embeddings need."""
        self.join.prepare(self, examples, pretraining)

    def add_tokens(self, words: Sequence[str]) -> None:
        """Append each of these words to the vocabulary, with a random embedding."""
        tokenizer = copy.deepcopy(self.text.tokenizer)
        tokenizer.add_tokens(list(words))
        bert = self.text.encoder
        if len(tokenizer) > len(self.word_embeddings().weight):
            bert.resize_token_embeddings(len(tokenizer), mean_resizing=False)
        self.text = TextEncoder(bert, tokenizer).train(self.training)
        self.text_tokenizer = tokenizer
        self.sizes = self.sizes._replace(input_embeddings=self.text.sizes.input_embeddings)

    def export(self, folder: Path) -> None:
        """Write `bert` as a stock HF folder, and beside it the weights and description of the other layers."""
        self.text.export(folder / "bert")
        weights = {
            name: value
            for name, value in self.state_dict().items()
            if name.startswith(("join.", "fusion."))
        }
        save_file(weights, folder / "join.safetensors")
        write_description(folder, self, early=self.fusion is None, options=self.join.options)


JOIN = "join.json"
"""The file that identifies the folder of a vision-language model."""


def write_description(folder: Path, model: RegionEncoder, **options: Any) -> None:
    """Write the file by which a model's folder is recognised: architecture, training regions, and `options`."""
    description = {
        "kind": model.architecture_name,
        **options,
        "regions_from": model.regions_provenance,
    }
    (folder / JOIN).write_text(json_text(description, indent=1) + "\n", encoding="utf-8")


BERT_SETTINGS = (
    "vocab_size",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "hidden_act",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
)
"""Settings that BERT's configuration shares with those of VisualBERT and LXMERT."""


def get_bert(start: object) -> tuple[BertModel, PreTrainedTokenizerBase]:
    """The BERT in a loaded text encoder, and its tokenizer; raises InputError for another encoder."""
    if not isinstance(start, TextEncoder) or not isinstance(start.encoder, BertModel):
        raise InputError(f"expected a BERT, found a {type(start).__name__}")
    return start.encoder, start.tokenizer


def read_join_description(folder: str | Path) -> dict[str, Any]:
    """Read what `write_description` wrote, with `kind` and `regions_from`; raises InputError if it is no JSON."""
    return read_object(Path(folder) / JOIN)


def load_single_stream(
    folder: str | Path, join: Callable[..., MultimodalEmbeddings]
) -> SingleStreamModel:
    """Load a single-stream model with these `MultimodalEmbeddings` from a folder written by its `export`.

    Raises InputError if a file is missing or damaged, or does not fit the others.
    """
    folder = Path(folder)
    description = read_join_description(folder)
    with convert_read_errors(folder / "join.safetensors"):
        weights = load_file(folder / "join.safetensors")
    text = load_text_encoder(folder / "bert")
    bert, _ = get_bert(text)
    with (
        prefix_errors(f"{folder}: the embeddings do not fit the BERT"),
        convert_errors("its weights"),
    ):
        model = SingleStreamModel(
            bert,
            text.tokenizer,
            join(bert, **description["options"]),
            description["early"],
            description.get("regions_from"),
        )
        text_weights = {k: v for k, v in model.state_dict().items() if k.startswith("text.")}
        model.load_state_dict(text_weights | weights)
    return model


# Weights released by the papers' authors: read safely, renamed, and loaded strictly.

POOLER = "text.encoder.pooler."
"""Prefix of weights that a checkpoint may lack, after pre-training without a pooler."""
BERT = {part: f"text.encoder.{part}" for part in ("embeddings.", "encoder.", "pooler.")}
"""Prefixes of a BERT's weights, and their names in a `SingleStreamModel`."""


@dataclass(frozen=True)
class WeightNames:
    """Maps the weight names of a code base; the longest matching prefix is used."""

    optional_prefixes: tuple[str, ...]
    """Outer prefixes to strip if present, in this order."""
    renamed_prefixes: Mapping[str, str]
    """From prefixes in the checkpoint to prefixes in `SingleStreamModel`."""
    unused_prefixes: tuple[str, ...]
    """Prefixes of unused weights: heads and detectors."""
    optional_weights: tuple[str, ...] = ()
    """Prefixes in `SingleStreamModel` that a checkpoint may lack, as well as the pooler."""

    def own_name(self, name: str) -> str:
        """A weight's name in `SingleStreamModel`; empty for an unused one, an unknown name unchanged."""
        inner = name
        for prefix in self.optional_prefixes:
            inner = inner.removeprefix(prefix)
        prefixes = dict.fromkeys(self.unused_prefixes, "") | dict(self.renamed_prefixes)
        longest = max(filter(inner.startswith, prefixes), key=len, default=None)
        if longest is None:
            return name
        if longest in self.unused_prefixes:
            return ""
        own = prefixes[longest] + inner.removeprefix(longest)
        # Early BERT checkpoints call a LayerNorm's weights gamma and beta.
        return own.replace(".gamma", ".weight").replace(".beta", ".bias")


def load_released_weights(
    model: SingleStreamModel, source: str | Path, names: WeightNames
) -> list[str]:
    """Load `model` strictly from a file or folder; prints and returns the unused weights.

    Raises InputError for a weight that is missing, unknown, or of another shape.
    """
    weights = read_weights(source)
    unused = [name for name in weights if not names.own_name(name)]
    renamed = {names.own_name(name): weights[name] for name in weights.keys() - set(unused)}
    before = model.state_dict()
    missing = sorted(before.keys() - renamed.keys())
    optional = [name for name in missing if name.startswith((POOLER, *names.optional_weights))]
    with convert_errors(f"{source}: weights of another model"):
        model.load_state_dict({**{name: before[name] for name in optional}, **renamed})
    if unused or missing:
        parts = ", ".join(sorted({name.rpartition(".")[0] for name in unused}))
        new = ", ".join(missing)
        print(f"{source}: not used: {parts or 'nothing'}; newly initialised: {new or 'nothing'}")
    return unused


def read_weights(source: str | Path) -> dict[str, Tensor]:
    """Weights (...) in a file, or in a folder's `model.safetensors` or `pytorch_model.bin`; only tensors are loaded.

    Raises InputError for a file that contains anything else, or cannot be read.
    """
    path = Path(source)
    if path.is_dir():
        safe = path / "model.safetensors"
        path = safe if safe.exists() else path / "pytorch_model.bin"
    # torch.load raises many types of errors for damaged pickles.
    with convert_errors(f"{path}: not loadable as tensors only; save a file of tensors by name"):
        if path.suffix == ".safetensors":
            return load_file(path)
        content: dict[str, Any] = torch.load(path, "cpu", weights_only=True)
        for whole in ("state_dict", "model"):  # inside a training checkpoint
            if isinstance(content.get(whole), dict):
                content = content[whole]
        return {name: value.detach() for name, value in content.items()}
