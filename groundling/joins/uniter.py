"""UNITER (Chen et al. 2020): join, heads and pre-training. Release: ChenRocks/UNITER."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase

from groundling.batch import Batch, Encoded, needed
from groundling.config import PretrainConfig
from groundling.errors import InputError
from groundling.joins import Design, Phase
from groundling.models.join import Join, add_types, fresh
from groundling.models.released_weights import BERT, Names
from groundling.models.single_stream import SingleStream
from groundling.models.task_heads import (
    EachRegionTransformed,
    ImagesApart,
    Reading,
    TaskHead,
    answer,
    block,
)
from groundling.objectives import Given, Objective
from groundling.objectives.masked_lm import masked_lm
from groundling.objectives.masked_regions import MaskedRegions
from groundling.objectives.sentence_image import SentenceImage


class UniterJoin(Join):
    """LN(LN(projected feature) + LN(projected box) + segment), beside BERT's embedded text (Section 3.1).

    The box is x1, y1, x2, y2, width, height and their product. With regions, a piece of text `i` has segment
    `text_types[i]` and a region of image `j` segment `image_types[j]` of BERT's own table (release; VCR: text types
    (0, 2, 3), NLVR2: image types (1, 2), with rows appended by `add_types`); without regions segments are BERT's.
    A hidden region's features are a learned vector.
    """

    kind = "uniter"

    def __init__(
        self,
        bert: BertModel,
        width: int = 2048,
        text_types: Sequence[int] = (0, 0),
        image_types: Sequence[int] = (1,),
    ) -> None:
        """Raises InputError if the BERT has too few segments."""
        super().__init__(width, text_types=list(text_types), image_types=list(image_types))
        hidden = bert.config.hidden_size
        segments = bert.config.type_vocab_size
        if max(*text_types, *image_types) >= segments:
            raise InputError(
                f"segments {text_types}, {image_types}: this BERT has {segments}; `add_types` appends some"
            )
        self.text_types = list(text_types)
        self.image_types = list(image_types)
        self.feature = nn.Linear(width, hidden)
        self.box = nn.Linear(7, hidden)
        fresh(self)
        self.feature_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.box_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        # The authors' table; row 0, for regions that are not hidden, is zero there and never read here.
        self.mask = nn.Embedding(2, width, padding_idx=0)
        nn.init.normal_(self.mask.weight.detach()[1:], std=0.02)

    def table(self) -> Tensor:
        """The feature Linear's weight (H, D), to whose transpose UNITER's feature regression is tied."""
        return self.feature.weight

    def see(self, images: int, bert: BertModel) -> None:
        """Later images get rows of their own in BERT's table, which start as the first one's (release, nlvr2)."""
        more = images - len(self.image_types)
        if more <= 0:
            return
        first = bert.config.type_vocab_size
        add_types(bert, [self.image_types[0]] * more)
        self.image_types = [*self.image_types, *range(first, first + more)]
        self.options["image_types"] = self.image_types

    def parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Text (N, T, H) and regions (N, R, H)."""
        tokens = needed(batch.text, "text", "a UNITER")
        regions = batch.regions
        if regions is None:
            text = embeddings(inputs_embeds=words, token_type_ids=tokens.types)
            return text, text[:, :0]
        types = tokens.types.new_tensor(self.text_types)[tokens.types]
        text = embeddings(inputs_embeds=words, token_type_ids=types)
        features = self.features(batch, regions, self.mask.weight[1])
        sides = regions.boxes[..., 2:] - regions.boxes[..., :2]
        box = torch.cat([regions.boxes, sides, sides.prod(-1, keepdim=True)], -1)
        segment = embeddings.token_type_embeddings(self.segments(regions, self.image_types))
        looks = self.feature_norm(self.feature(features)) + self.box_norm(self.box(box)) + segment
        return text, embeddings.dropout(self.norm(looks))


def uniter(
    bert: BertModel,
    tokenizer: PreTrainedTokenizerBase,
    width: int = 2048,
    text_types: Sequence[int] = (0, 0),
    image_types: Sequence[int] = (1,),
) -> SingleStream:
    """UNITER from a BERT: cased; `add_types(bert, [1])` first for NLVR2, `add_types(bert, [0, 0])` for VCR."""
    return SingleStream(bert, tokenizer, UniterJoin(bert, width, text_types, image_types))


class _PooledTwiceAsWide(TaskHead):
    """Pooler, Linear of twice the width, activation, LayerNorm, dropout, Linear."""

    activation: type[nn.Module] = nn.GELU

    def __init__(self, reading: Reading, dropout: float = 0.1) -> None:
        """Raises InputError if the model has no pooler."""
        super().__init__()
        width = reading.sizes.pooled
        if not width:
            raise InputError("UNITER's heads read BERT's pooler, and this BERT has none")
        self.between = block(width, 2 * width, self.activation())
        self.dropout = nn.Dropout(dropout)
        self.classify = answer(2 * width, self.trained_on(reading.form).outputs)

    def forward(self, encoded: Encoded, batch: Batch) -> Tensor:
        """(N, outputs) of the pooled first position."""
        pooled = needed(encoded.pooled, "pooled", "a UNITER head")
        outputs: Tensor = self.classify(self.dropout(self.between(pooled)))
        return outputs


class AnswerByItself(_PooledTwiceAsWide):
    """VQA and SNLI-VE: every answer by itself, with binary cross-entropy (release, model/vqa.py, model/ve.py)."""

    loss = "bce"


class ChoiceRightOrWrong(_PooledTwiceAsWide):
    """VCR: with ReLU; two outputs a choice, wrong and right, each pair with a cross-entropy (release, model/vcr.py)."""

    loss = "each"
    activation = nn.ReLU


class RegionAmongAll(EachRegionTransformed):
    """RefCOCO+: Linear, GELU, LayerNorm, dropout, Linear; one softmax over the regions (release, model/re.py)."""

    loss = "ce"
    norm = True


def objectives(given: Given, config: PretrainConfig) -> list[Objective]:
    """Masked LM, image-text matching with word-region alignment, region regression and classification (Section 3.2)."""
    sizes = given.sizes
    chosen: list[Objective] = [masked_lm(given), SentenceImage(sizes, alignment=0.1)]
    # The release takes the mean over the features' numbers. Over classes too, which would leave 1/1601 of that term.
    weight = 1 / sizes.regions
    chosen.append(
        MaskedRegions(sizes, kind="regress", keep=0.0, least=1, norm=True, tied=True, weight=weight)
    )
    if sizes.classes and config.region_classes != "none":
        chosen.append(
            MaskedRegions(sizes, kind=config.region_classes, keep=0.0, least=1, norm=True)
        )
    return chosen


DESIGN = Design(
    name="uniter",
    join=UniterJoin,
    build=uniter,
    # In-domain ratios of the release: itm 2, mlm 2, mrfr 1, mrc 1; one of them per optimizer step.
    phase=Phase(
        objectives,
        mix=(
            (2, ("sentence_image",)),
            (2, ("masked_lm",)),
            (1, ("regress_regions",)),
            (1, ("masked_regions", "hard_regions")),
        ),
    ),
    heads={
        "vqa": AnswerByItself,
        "snli-ve": AnswerByItself,
        "vcr/answer": ChoiceRightOrWrong,
        "vcr/rationale": ChoiceRightOrWrong,
        "refcoco+": RegionAmongAll,
        "nlvr2": ImagesApart,
    },
    vocabulary="bert-base-cased",
)

RELEASED = Names(
    outer=("module.", "bert.", "uniter."),
    renamed={
        "img_embeddings.img_linear.": "join.feature.",
        "img_embeddings.img_layer_norm.": "join.feature_norm.",
        "img_embeddings.pos_linear.": "join.box.",
        "img_embeddings.pos_layer_norm.": "join.box_norm.",
        "img_embeddings.mask_embedding.": "join.mask.",
        "img_embeddings.LayerNorm.": "join.norm.",
        **BERT,
    },
    dropped=(
        "cls.",
        "feat_regress.",
        "region_classifier.",
        "itm_output.",
        "vqa_output.",
        "vcr_output.",
        "re_output.",
        "rank_output.",
        "nlvr2_output.",
        "attn1.",
        "attn2.",
        "attn_pool.",
        "fc.",
    ),
)
"""What the authors' checkpoints call the weights; `load_released_weights` reads them."""
