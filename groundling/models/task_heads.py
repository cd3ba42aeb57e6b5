"""Heads that answer a task: plain ones, and what the papers' own (in `groundling/vision_language/`) are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, Example, OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.field_docs import with_field_docs
from groundling.core.output_types import OutputType
from groundling.data.samples import mask_id_of
from groundling.models.heads import Pooler
from groundling.models.multimodal_embeddings import init_linears

HEAD = 64
"""Width of an attention head of every BERT."""


@with_field_docs
@dataclass(frozen=True)
class HeadContext:
    """What a head may know of the task it answers and of the model it reads."""

    sizes: OutputSizes
    """Widths of the model's outputs."""
    output_type: OutputType
    """The shape of the task's answer."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """The text encoder's; None if the head asks nothing of its own."""
    input_embeddings: Tensor | None = None
    """(vocabulary, E): the text encoder's input embeddings, from which a head may start."""

    @property
    def outputs(self) -> int:
        """Width of the answer, per row."""
        return self.output_type.head_width


@with_field_docs
class TaskHead(nn.Module):
    """From what a model says to a task's outputs; takes a `HeadContext` and keyword options."""

    loss: ClassVar[str] = ""
    """Kind of the form's loss that the paper trains this head with; empty: the form's own."""
    separates_images: ClassVar[bool] = False
    """Whether each image of an example is read by itself, in a row of its own."""
    swaps_left_right: ClassVar[bool] = True
    """Whether left and right change places in the texts and answers of a mirrored picture."""
    uses_segments: ClassVar[bool] = False
    """Whether its paper sees of each region only what its object fills."""

    @classmethod
    def output_type_for(cls, form: OutputType) -> OutputType:
        """The task's form with the loss of this head's paper, which may want other outputs."""
        return replace(form, kind=cls.loss) if cls.loss else form  # type: ignore[type-var]

    def prepare_example(self, example: Example) -> Example:
        """The example as this head wants it put, such as with a [MASK] behind the text, which is its `cue` then."""
        return example

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, and what its file of heads calls them."""
        return []

    def count_loss_items(self, labels: Tensor, choices: int, form: OutputType) -> int:
        """Over how many items the mean of the loss is taken, of labels (B, ...) of so many choices each: samples.

        `form` is the one that it is trained with.
        """
        return len(labels)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Outputs (N, outputs) by row, or (N, R) where regions are scored. Abstract."""
        raise NotImplementedError


def make_output_layer(width: int, outputs: int) -> nn.Linear:
    """The last Linear of a head, initialised as BERT does: N(0, 0.02), bias zero."""
    linear = nn.Linear(width, outputs)
    init_linears(linear)
    return linear


def make_transform(
    width: int, inner: int, activation: nn.Module, norm: bool = True
) -> nn.Sequential:
    """Linear, activation and, with `norm`, LayerNorm: what papers put before the last Linear."""
    parts = [nn.Linear(width, inner), activation]
    if norm:
        parts.append(nn.LayerNorm(inner, eps=1e-12))
    layers = nn.Sequential(*parts)
    init_linears(layers)
    return layers


class PooledClsHead(TaskHead):
    """The plain head: the encoder's pooler if it has one, else a new one, dropout, one Linear (Devlin et al. 2019).

    A cross-modal model is read after its last cross-modal layer (XDBERT Appendix C.3). XDBERT's Section 2.4 says that
    fine-tuning follows BERT's; its released script does not, see `UnpooledClsHead`.
    """

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before the last Linear."""
        super().__init__()
        sizes = reading.sizes
        self.pooler = None if sizes.pooler_output else Pooler(sizes.text)
        self.dropout = nn.Dropout(dropout)
        self.classify = make_output_layer(sizes.pooler_output or sizes.text, reading.outputs)

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """A cross-modal model's pooler, which `SameSentencePrediction` trained."""
        return [] if self.pooler is None else [(self.pooler, "match.pooler")]

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the pooled first position."""
        if self.pooler is None:
            pooled = require(encoded.pooler_output, "pooler_output", "a task head")
        else:
            joint = encoded.joint_text
            pooled = self.pooler(
                require(encoded.text, "text", "a task head") if joint is None else joint
            )
        outputs: Tensor = self.classify(self.dropout(pooled))
        return outputs


class UnpooledClsHead(TaskHead):
    """One Linear on the encoder's own first position, without pooler or dropout (Splend1d/XDBERT, its GLUE script)."""

    def __init__(self, reading: HeadContext) -> None:
        """Raises InputError for a form that is not read at the first position."""
        super().__init__()
        if reading.output_type.head_input != "first":
            raise InputError(
                "--cls-without-pooler: this task's answers are not read at the first position"
            )
        self.classify = make_output_layer(reading.sizes.text, reading.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the first position."""
        states = require(encoded.text, "text", "a task head")
        outputs: Tensor = self.classify(states[:, 0])
        return outputs


class RegionScoreHead(TaskHead):
    """One score for every region: dropout, one Linear on its last state."""

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before the last Linear."""
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classify = make_output_layer(
            reading.sizes.pooler_output or reading.sizes.text, reading.outputs
        )

    def transform(self, regions: Tensor) -> Tensor:
        """What the last Linear reads of the regions' states (N, R, H)."""
        return regions

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, R); -inf where there is no region."""
        states = require(encoded.visual, "visual", "a head that scores regions")
        scores = self.classify(self.dropout(self.transform(states))).squeeze(-1)
        return _mask_scores(scores, batch)


@with_field_docs
class TransformedRegionScoreHead(RegionScoreHead):
    """One score for every region, through the first layer of the head that masked regions were pre-trained with."""

    norm: ClassVar[bool]
    """Whether LayerNorm follows that layer, as it does in the model's pre-training."""

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before the last Linear."""
        width = reading.sizes.pooler_output or reading.sizes.text
        # Made before the last Linear, so that both are drawn in the order in which they are read.
        between = make_transform(width, width, nn.GELU(), self.norm)
        super().__init__(reading, dropout)
        self.between = between

    def transform(self, regions: Tensor) -> Tensor:
        """The states (N, R, H) after that layer."""
        states: Tensor = self.between(regions)
        return states

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """The layer that masked regions trained, by soft or by hard labels."""
        return [(self.between[0], f"{kind}_regions.head.0") for kind in ("masked", "hard")]


class PhraseGroundingHead(TaskHead):
    """One score for every region, from the last piece of a phrase: one attention head of 64 dimensions.

    VisualBERT Appendix B.4; release (uclanlp/visualbert): the weights of one attention head, whose values are unused.
    """

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before both Linears."""
        super().__init__()
        width = reading.sizes.pooler_output or reading.sizes.text
        self.dropout = nn.Dropout(dropout)
        self.query = nn.Linear(width, HEAD)
        self.classify = make_output_layer(width, HEAD)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, R); -inf where there is no region."""
        regions = require(encoded.visual, "visual", "a head that scores regions")
        text = require(encoded.text, "text", "a head that scores regions")
        ends = text[torch.arange(len(text), device=text.device), batch.labels["query"]]
        keys = self.classify(self.dropout(regions))
        queries = self.query(self.dropout(ends)).unsqueeze(-1)
        return _mask_scores((keys @ queries / HEAD**0.5).squeeze(-1), batch)


def _mask_scores(scores: Tensor, batch: Batch) -> Tensor:
    mask = require(batch.regions, "regions", "a head that scores regions").mask
    return scores.float().masked_fill(~mask, -torch.inf)


class PairPooler(nn.Module):
    """Two sequences read each other and are pooled to one vector each (ChenRocks/UNITER, model/nlvr2.py).

    Linears start as BERT's do, the attentions' input projections as PyTorch's (release: what `init_weights` reaches).
    """

    def __init__(self, width: int, dropout: float = 0.1) -> None:
        """`width` of the states; attention heads of 64, as BERT's; `dropout` in all, on pooling weights too."""
        super().__init__()
        heads = max(1, width // HEAD)
        self.read = nn.ModuleList(
            nn.MultiheadAttention(width, heads, dropout, batch_first=True) for _ in range(2)
        )
        self.mix = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Dropout(dropout))
        self.score = nn.Linear(width, 1)
        self.dropout = nn.Dropout(dropout)
        init_linears(self)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """(B, 2H) from states (2B, S, H), a sample's two sequences one after the other, and their mask (2B, S)."""
        pooled = []
        for this, other in ((0, 1), (1, 0)):
            mine = states[this::2]
            theirs = states[other::2]
            read, _ = self.read[this](
                mine, theirs, theirs, key_padding_mask=~mask[other::2], need_weights=False
            )
            mixed = self.mix(torch.cat([mine, read], -1))
            scores = self.score(mixed).relu().masked_fill(~mask[this::2, :, None], -torch.inf)
            shares = self.dropout(scores.softmax(1))
            pooled.append((shares * mixed).sum(1))
        return torch.cat(pooled, -1)


class ImagePairHead(TaskHead):
    """Two images, each read with the text by itself; the two sequences then read each other (UNITER's NLVR2)."""

    separates_images = True

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` inside the pooling; before the last Linear there is none (release)."""
        super().__init__()
        width = reading.sizes.text
        self.pair = PairPooler(width, dropout)
        self.classify = make_output_layer(2 * width, reading.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, outputs), from 2B rows."""
        text = require(encoded.text, "text", "a head of image pairs")
        visual = require(encoded.visual, "visual", "a head of image pairs")
        tokens = require(batch.text, "text", "a head of image pairs")
        regions = require(batch.regions, "regions", "a head of image pairs")
        mask = torch.cat([tokens.attention_mask, regions.mask], 1)
        pooled = self.pair(torch.cat([text, visual], 1), mask)
        outputs: Tensor = self.classify(pooled)
        return outputs


class MaskTokenHead(TaskHead):
    """What heads share that read their answer at the last [MASK] of the text."""

    def __init__(self, reading: HeadContext) -> None:
        """Raises InputError if the tokenizer has no mask token."""
        super().__init__()
        tokenizer = require(reading.tokenizer, "tokenizer", "a head that reads a [MASK]")
        self.mask_id = mask_id_of(tokenizer, ", where the answer is read")
        self.mask = str(tokenizer.mask_token)

    def at_mask(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """States (N, H) at each row's last [MASK]; raises InputError if a text was cut before it."""
        text = require(encoded.text, "text", "a head that reads a [MASK]")
        if not self._masked(batch.cpu_copy).any(1).all():
            raise InputError(
                "a text was cut before its [MASK], where the answer is read; raise --max-length"
            )
        masked = self._masked(batch)
        last = masked.shape[1] - 1 - masked.flip(1).int().argmax(1)
        return text[torch.arange(len(last), device=last.device), last]

    def _masked(self, batch: Batch) -> Tensor:
        """Which pieces (N, T) are a [MASK]."""
        return require(batch.text, "text", "a head that reads a [MASK]").input_ids == self.mask_id


PLAIN: dict[str, type[TaskHead]] = {
    "first": PooledClsHead,
    "regions": RegionScoreHead,
    "phrase": PhraseGroundingHead,
}
"""The plain head of each way to read a form."""


def make_plain_head(reading: HeadContext) -> TaskHead:
    """The plain head of the task's form."""
    return PLAIN[reading.output_type.head_input](reading)
