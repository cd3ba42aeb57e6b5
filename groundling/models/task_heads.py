"""Heads that answer a task: plain ones, and what the papers' own (in `groundling/vision_language/`) are made of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, Example, Sizes, needed
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType
from groundling.data.samples import mask_id_of
from groundling.models.heads import Pooler
from groundling.models.multimodal_embeddings import fresh

HEAD = 64
"""Width of an attention head of every BERT."""


@documented
@dataclass(frozen=True)
class HeadContext:
    """What a head may know of the task it answers and of the model it reads."""

    sizes: Sizes
    """Widths of the model's outputs."""
    form: OutputType
    """The shape of the task's answer."""
    tokenizer: PreTrainedTokenizerBase | None = None
    """The text encoder's; None if the head asks nothing of its own."""
    table: Tensor | None = None
    """(vocabulary, E): the text encoder's input embeddings, from which a head may start."""

    @property
    def outputs(self) -> int:
        """Width of the answer, per row."""
        return self.form.outputs


@documented
class TaskHead(nn.Module):
    """From what a model says to a task's outputs; takes a `HeadContext` and keyword options."""

    loss: ClassVar[str] = ""
    """Kind of the form's loss that the paper trains this head with; empty: the form's own."""
    apart: ClassVar[bool] = False
    """Whether each image of an example is read by itself, in a row of its own."""
    turns_words: ClassVar[bool] = True
    """Whether left and right change places in the texts and answers of a mirrored picture."""
    segments: ClassVar[bool] = False
    """Whether its paper sees of each region only what its object fills."""

    @classmethod
    def trained_on(cls, form: OutputType) -> OutputType:
        """The task's form with the loss of this head's paper, which may want other outputs."""
        return replace(form, kind=cls.loss) if cls.loss else form  # type: ignore[type-var]

    def ask(self, example: Example) -> Example:
        """The example as this head wants it put, such as with a [MASK] behind the text, which is its `cue` then."""
        return example

    def starts(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, and what its file of heads calls them."""
        return []

    def count(self, labels: Tensor, choices: int, form: OutputType) -> int:
        """Over how many items the mean of the loss is taken, of labels (B, ...) of so many choices each: samples.

        `form` is the one that it is trained with.
        """
        return len(labels)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Outputs (N, outputs) by row, or (N, R) where regions are scored. Abstract."""
        raise NotImplementedError


def answer(width: int, outputs: int) -> nn.Linear:
    """The last Linear of a head, initialised as BERT does: N(0, 0.02), bias zero."""
    linear = nn.Linear(width, outputs)
    fresh(linear)
    return linear


def block(width: int, inner: int, activation: nn.Module, norm: bool = True) -> nn.Sequential:
    """Linear, activation and, with `norm`, LayerNorm: what papers put before the last Linear."""
    parts = [nn.Linear(width, inner), activation]
    if norm:
        parts.append(nn.LayerNorm(inner, eps=1e-12))
    layers = nn.Sequential(*parts)
    fresh(layers)
    return layers


class FirstPosition(TaskHead):
    """The plain head: the encoder's pooler if it has one, else a new one, dropout, one Linear (Devlin et al. 2019).

    A cross-modal model is read after its last cross-modal layer (XDBERT Appendix C.3). XDBERT's Section 2.4 says that
    fine-tuning follows BERT's; its released script does not, see `RawFirst`.
    """

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before the last Linear."""
        super().__init__()
        sizes = reading.sizes
        self.pooler = None if sizes.pooled else Pooler(sizes.text)
        self.dropout = nn.Dropout(dropout)
        self.classify = answer(sizes.pooled or sizes.text, reading.outputs)

    def starts(self) -> list[tuple[nn.Module, str]]:
        """A cross-modal model's pooler, which `Match` trained."""
        return [] if self.pooler is None else [(self.pooler, "match.pooler")]

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the pooled first position."""
        if self.pooler is None:
            pooled = needed(encoded.pooled, "pooled", "a task head")
        else:
            joint = encoded.joint_text
            pooled = self.pooler(
                needed(encoded.text, "text", "a task head") if joint is None else joint
            )
        outputs: Tensor = self.classify(self.dropout(pooled))
        return outputs


class RawFirst(TaskHead):
    """One Linear on the encoder's own first position, without pooler or dropout (Splend1d/XDBERT, its GLUE script)."""

    def __init__(self, reading: HeadContext) -> None:
        """Raises InputError for a form that is not read at the first position."""
        super().__init__()
        if reading.form.reads != "first":
            raise InputError("--raw-first: this task's answers are not read at the first position")
        self.classify = answer(reading.sizes.text, reading.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the first position."""
        states = needed(encoded.text, "text", "a task head")
        outputs: Tensor = self.classify(states[:, 0])
        return outputs


class EachRegion(TaskHead):
    """One score for every region: dropout, one Linear on its last state."""

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before the last Linear."""
        super().__init__()
        self.dropout = nn.Dropout(dropout)
        self.classify = answer(reading.sizes.pooled or reading.sizes.text, reading.outputs)

    def read(self, regions: Tensor) -> Tensor:
        """What the last Linear reads of the regions' states (N, R, H)."""
        return regions

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, R); -inf where there is no region."""
        states = needed(encoded.visual, "visual", "a head that scores regions")
        scores = self.classify(self.dropout(self.read(states))).squeeze(-1)
        return _inside(scores, batch)


@documented
class EachRegionTransformed(EachRegion):
    """One score for every region, through the first layer of the head that masked regions were pre-trained with."""

    norm: ClassVar[bool]
    """Whether LayerNorm follows that layer, as it does in the model's pre-training."""

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before the last Linear."""
        width = reading.sizes.pooled or reading.sizes.text
        # Made before the last Linear, so that both are drawn in the order in which they are read.
        between = block(width, width, nn.GELU(), self.norm)
        super().__init__(reading, dropout)
        self.between = between

    def read(self, regions: Tensor) -> Tensor:
        """The states (N, R, H) after that layer."""
        states: Tensor = self.between(regions)
        return states

    def starts(self) -> list[tuple[nn.Module, str]]:
        """The layer that masked regions trained, by soft or by hard labels."""
        return [(self.between[0], f"{kind}_regions.head.0") for kind in ("masked", "hard")]


class PhraseToRegions(TaskHead):
    """One score for every region, from the last piece of a phrase: one attention head of 64 dimensions.

    VisualBERT Appendix B.4; release (uclanlp/visualbert): the weights of one attention head, whose values are unused.
    """

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` before both Linears."""
        super().__init__()
        width = reading.sizes.pooled or reading.sizes.text
        self.dropout = nn.Dropout(dropout)
        self.query = nn.Linear(width, HEAD)
        self.classify = answer(width, HEAD)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, R); -inf where there is no region."""
        regions = needed(encoded.visual, "visual", "a head that scores regions")
        text = needed(encoded.text, "text", "a head that scores regions")
        ends = text[torch.arange(len(text), device=text.device), batch.labels["query"]]
        keys = self.classify(self.dropout(regions))
        queries = self.query(self.dropout(ends)).unsqueeze(-1)
        return _inside((keys @ queries / HEAD**0.5).squeeze(-1), batch)


def _inside(scores: Tensor, batch: Batch) -> Tensor:
    mask = needed(batch.regions, "regions", "a head that scores regions").mask
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
        fresh(self)

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


class ImagesApart(TaskHead):
    """Two images, each read with the text by itself; the two sequences then read each other (UNITER's NLVR2)."""

    apart = True

    def __init__(self, reading: HeadContext, dropout: float = 0.1) -> None:
        """`dropout` inside the pooling; before the last Linear there is none (release)."""
        super().__init__()
        width = reading.sizes.text
        self.pair = PairPooler(width, dropout)
        self.classify = answer(2 * width, reading.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, outputs), from 2B rows."""
        text = needed(encoded.text, "text", "a head of image pairs")
        visual = needed(encoded.visual, "visual", "a head of image pairs")
        tokens = needed(batch.text, "text", "a head of image pairs")
        regions = needed(batch.regions, "regions", "a head of image pairs")
        mask = torch.cat([tokens.mask, regions.mask], 1)
        pooled = self.pair(torch.cat([text, visual], 1), mask)
        outputs: Tensor = self.classify(pooled)
        return outputs


class MaskWord(TaskHead):
    """What heads share that read their answer at the last [MASK] of the text."""

    def __init__(self, reading: HeadContext) -> None:
        """Raises InputError if the tokenizer has no mask token."""
        super().__init__()
        tokenizer = needed(reading.tokenizer, "tokenizer", "a head that reads a [MASK]")
        self.mask_id = mask_id_of(tokenizer, ", where the answer is read")
        self.mask = str(tokenizer.mask_token)

    def at_mask(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """States (N, H) at each row's last [MASK]; raises InputError if a text was cut before it."""
        text = needed(encoded.text, "text", "a head that reads a [MASK]")
        if not self._masked(batch.host).any(1).all():
            raise InputError(
                "a text was cut before its [MASK], where the answer is read; raise --max-length"
            )
        masked = self._masked(batch)
        last = masked.shape[1] - 1 - masked.flip(1).int().argmax(1)
        return text[torch.arange(len(last), device=last.device), last]

    def _masked(self, batch: Batch) -> Tensor:
        """Which pieces (N, T) are a [MASK]."""
        return needed(batch.text, "text", "a head that reads a [MASK]").ids == self.mask_id


PLAIN: dict[str, type[TaskHead]] = {
    "first": FirstPosition,
    "regions": EachRegion,
    "phrase": PhraseToRegions,
}
"""The plain head of each way to read a form."""


def plain_head(reading: HeadContext) -> TaskHead:
    """The plain head of the task's form."""
    return PLAIN[reading.form.reads](reading)
