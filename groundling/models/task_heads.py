"""Task heads: the plain ones, and building blocks of the papers' heads (in `groundling/vision_language/`)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, Example, OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType
from groundling.data.samples import mask_id_of
from groundling.models.heads import Pooler, init_linears

HEAD = 64
"""Width of an attention head in every BERT."""


@dataclass(frozen=True)
class HeadContext:
    """The task and the model that a head is made for."""

    sizes: OutputSizes
    """Widths of the model's outputs."""
    output_type: OutputType
    """The task's output type."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """The text encoder's tokenizer; None for a plain head outside a single-stream model."""
    input_embeddings: Tensor | None = None
    """(vocabulary, E): the text encoder's input embeddings, which may initialise a head."""

    @property
    def outputs(self) -> int:
        """Number of outputs per row."""
        return self.output_type.head_width


class TaskHead(nn.Module):
    """Computes a task's outputs from a model's `EncoderOutput`; made from a `HeadContext`."""

    loss: ClassVar[str] = ""
    """The `OutputType` loss that the paper trains this head with; empty: the output type's default."""
    separates_images: ClassVar[bool] = False
    """Whether each image of an example is a row of its own."""
    swaps_left_right: ClassVar[bool] = True
    """Whether "left" and "right" are swapped in the texts and answers of a mirrored image."""
    uses_segments: ClassVar[bool] = False
    """Whether its paper masks each region outside its object."""
    dropout_rate: ClassVar[float] = 0.1
    """Dropout before the last Linear, if it has any."""

    @classmethod
    def output_type_for(cls, output_type: OutputType) -> OutputType:
        """The task's output type with the loss of this head's paper, which may change the number of outputs."""
        return replace(output_type, kind=cls.loss) if cls.loss else output_type  # type: ignore[type-var]

    def prepare_example(self, example: Example) -> Example:
        """The example prepared for this head, e.g. with a [MASK] after the text, which becomes its `prompt_suffix`."""
        return example

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, with their names in its file of heads."""
        return []

    def count_loss_items(self, labels: Tensor, choices: int, output_type: OutputType) -> int:
        """Number of items that the loss is averaged over, by default samples; labels (B, ...), `choices` each.

        `output_type`: the output type the head is trained with.
        """
        return len(labels)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Outputs (N, outputs) by row, or (N, R) if regions are scored. Abstract."""
        raise NotImplementedError


def make_output_layer(width: int, outputs: int) -> nn.Linear:
    """The last Linear of a head, initialised as in BERT: N(0, 0.02), bias zero."""
    linear = nn.Linear(width, outputs)
    init_linears(linear)
    return linear


def make_transform(
    width: int, inner: int, activation: nn.Module, norm: bool = True
) -> nn.Sequential:
    """Linear, activation and, with `norm`, LayerNorm: the transform before a paper's last Linear."""
    parts = [nn.Linear(width, inner), activation]
    if norm:
        parts.append(nn.LayerNorm(inner, eps=1e-12))
    layers = nn.Sequential(*parts)
    init_linears(layers)
    return layers


class PooledClsHead(TaskHead):
    """The plain head: the encoder's pooler (or a new one), dropout, one Linear (Devlin et al. 2019).

    For a cross-modal model it reads the states after the last cross-modal layer (XDBERT Appendix C.3).
    XDBERT's Section 2.4 fine-tunes as BERT does; its released script does not, see `UnpooledClsHead`.
    """

    def __init__(self, context: HeadContext) -> None:
        super().__init__()
        sizes = context.sizes
        self.pooler = None if sizes.pooler_output else Pooler(sizes.text)
        self.dropout = nn.Dropout(self.dropout_rate)
        self.classify = make_output_layer(sizes.pooler_output or sizes.text, context.outputs)

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """The new pooler, which `SameSentencePrediction` may have trained."""
        return [] if self.pooler is None else [(self.pooler, "match.pooler")]

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the pooled first position."""
        if self.pooler is None:
            pooled = require(encoded.pooler_output, "pooler_output", "a task head")
        else:
            states = encoded.text if encoded.joint_text is None else encoded.joint_text
            pooled = self.pooler(require(states, "text", "a task head"))
        outputs: Tensor = self.classify(self.dropout(pooled))
        return outputs


class LastTokenHead(TaskHead):
    """A decoder's plain head: one Linear without bias on the last token, as in `GPT2ForSequenceClassification`."""

    def __init__(self, context: HeadContext) -> None:
        super().__init__()
        self.classify = nn.Linear(context.sizes.text, context.outputs, bias=False)
        init_linears(self.classify)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the last token, special or not, which has read the whole text."""
        states = require(encoded.text, "text", "a task head")
        outputs: Tensor = self.classify(require(batch.text, "text", "a task head").last(states))
        return outputs


class UnpooledClsHead(TaskHead):
    """One Linear on the encoder's first position, without pooler or dropout (Splend1d/XDBERT, its GLUE script)."""

    def __init__(self, context: HeadContext) -> None:
        """Raises InputError for an output type that is not predicted from the first position."""
        super().__init__()
        if context.output_type.head_input != "first":
            raise InputError("cls_without_pooler: not predicted from the first position")
        if context.sizes.causal:
            raise InputError("cls_without_pooler: the first position of a decoder has read nothing")
        self.classify = make_output_layer(context.sizes.text, context.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the first position."""
        states = require(encoded.text, "text", "a task head")
        outputs: Tensor = self.classify(states[:, 0])
        return outputs


class RegionScoreHead(TaskHead):
    """One score per region: dropout, one Linear on its last state."""

    def __init__(self, context: HeadContext) -> None:
        super().__init__()
        self.width = context.sizes.pooler_output or context.sizes.text
        self.between = self.make_transform()
        self.dropout = nn.Dropout(self.dropout_rate)
        self.classify = make_output_layer(self.width, context.outputs)

    def make_transform(self) -> nn.Sequential:
        """The layers before dropout and the last Linear; here none."""
        return nn.Sequential()

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, R); -inf where there is no region."""
        states = require(encoded.visual, "visual", "a head that scores regions")
        scores = self.classify(self.dropout(self.between(states))).squeeze(-1)
        return _mask_scores(scores, batch)


class TransformedRegionScoreHead(RegionScoreHead):
    """One score per region, after the first layer of the masked-region head from pre-training."""

    norm: ClassVar[bool]
    """Whether a LayerNorm follows that layer, as in the model's pre-training."""

    def make_transform(self) -> nn.Sequential:
        """That layer."""
        return make_transform(self.width, self.width, nn.GELU(), self.norm)

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """The layer that `MaskedRegionModeling` trained, with soft or with hard labels."""
        return [(self.between[0], f"{kind}_regions.head.0") for kind in ("masked", "hard")]


class PhraseGroundingHead(TaskHead):
    """One score per region for a phrase's last token: the weights of one attention head of 64 dimensions.

    VisualBERT Appendix B.4; release (uclanlp/visualbert): an attention head whose values are unused.
    """

    def __init__(self, context: HeadContext) -> None:
        super().__init__()
        width = context.sizes.pooler_output or context.sizes.text
        self.dropout = nn.Dropout(self.dropout_rate)  # before both Linears
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
    """Cross-attention between two sequences, each then pooled to one vector (ChenRocks/UNITER, model/nlvr2.py).

    Linears are initialised as in BERT, the attentions' input projections as in PyTorch (release: its
    `init_weights` does not reach them).
    """

    def __init__(self, width: int, dropout: float) -> None:
        """`width` of the states, in attention heads of 64; `dropout` everywhere, on pooling weights too."""
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
        """(B, 2H) from states (2B, S, H), in which a sample's two sequences are adjacent, and their mask (2B, S)."""
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
    """Two images, each encoded with the text in its own row, then cross-attention of both rows (UNITER's NLVR2)."""

    separates_images = True

    def __init__(self, context: HeadContext) -> None:
        """Dropout is inside the pooling; none is before the last Linear (release)."""
        super().__init__()
        width = context.sizes.text
        self.pair = PairPooler(width, self.dropout_rate)
        self.classify = make_output_layer(2 * width, context.outputs)

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
    """Base of heads that predict the answer at the last [MASK] of the text."""

    def __init__(self, context: HeadContext) -> None:
        """Raises InputError if the tokenizer has no mask token."""
        super().__init__()
        tokenizer = require(context.tokenizer, "tokenizer", "a head that reads a [MASK]")
        self.mask_id = mask_id_of(tokenizer, ", which this head needs to predict the answer")
        self.mask = str(tokenizer.mask_token)

    def mask_states(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """States (N, H) at each row's last [MASK]; raises InputError if a text was truncated before it."""
        text = require(encoded.text, "text", "a head that reads a [MASK]")
        if not self._masked(batch.cpu_copy).any(1).all():
            raise InputError("a text was truncated before its [MASK]; raise max_length")
        masked = self._masked(batch)
        last = masked.shape[1] - 1 - masked.flip(1).int().argmax(1)
        return text[torch.arange(len(last), device=last.device), last]

    def _masked(self, batch: Batch) -> Tensor:
        return require(batch.text, "text", "a head that reads a [MASK]").input_ids == self.mask_id


PLAIN: dict[str, type[TaskHead]] = {
    "first": PooledClsHead,
    "regions": RegionScoreHead,
    "phrase": PhraseGroundingHead,
}
"""The plain head by `OutputType.head_input`."""


def make_plain_head(context: HeadContext) -> TaskHead:
    """The plain head for the task's output type, of an encoder or a decoder."""
    if context.sizes.causal and context.output_type.head_input == "first":
        return LastTokenHead(context)
    return PLAIN[context.output_type.head_input](context)
