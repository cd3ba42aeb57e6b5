"""VL-BERT (Su et al. 2020): embeddings, heads and pre-training. Release: jackroos/VL-BERT."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, Example, Regions, Tags, Tokens, require
from groundling.core.errors import InputError
from groundling.core.output_types import Classification, OpenAnswer, OutputType, RegionSelection
from groundling.core.rng import generator
from groundling.data.text import replace_words
from groundling.models.task_heads import (
    HeadContext,
    ImagePairHead,
    MaskTokenHead,
    PooledClsHead,
    TransformedRegionScoreHead,
    make_output_layer,
    make_transform,
)
from groundling.objectives import Objective, ObjectiveContext
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.settings.objectives import PretrainingVariantSettings
from groundling.vision_language import Architecture, PretrainingPhase
from groundling.vision_language.single_stream import (
    MultimodalEmbeddings,
    RoiAlignSpec,
    SingleStreamModel,
    WeightNames,
    add_token_types,
    load_single_stream,
)


def embed_boxes(boxes: Tensor) -> Tensor:
    """VL-BERT's geometry embedding (N, R, 2048) of boxes (N, R, 4): sines and cosines of centre, width and height.

    Each of the four numbers, in percent, is divided by 1000^(k / 256) for 256 values of k, as in the
    release. The paper (Section 3.2) uses normalised corners.
    """
    first = boxes[..., :2]
    second = boxes[..., 2:]
    places = 100 * torch.cat([(first + second) / 2, second - first], -1)
    divisors = 1000 ** (torch.arange(256, device=boxes.device, dtype=boxes.dtype) / 256)
    angles = places[..., None] / divisors  # (N, R, 4, 256)
    return torch.cat([angles.sin(), angles.cos()], -1).flatten(-2)


class VLBertEmbeddings(MultimodalEmbeddings):
    """Tokens as word + visual feature, regions as [IMG] + visual feature, then [END] (Section 3.2).

    A token's visual feature is that of the whole image, which must be among the row's regions, or of the region that it
    names (VCR); in a row without regions, a learned vector (text-only pre-training). A region's visual feature combines
    geometry and appearance. Two LayerNorms, for tokens and for regions, scale visual features; their gains start at 0,
    so that the model starts as BERT. All regions have the position after the text, and [END] the next one (release).
    Masked regions have learned vectors in place of appearance and [IMG] (release, pre-computed features); with
    `pixels`, where masking is in the image, in place of [IMG] only (release, end to end). Regions and [END] have
    segment 2, a third row of BERT's table. Boxes include their last pixel: the whole image is W - 1 by H - 1 (release).
    """

    kind = "vlbert"
    region_pooling = RoiAlignSpec(bins=14, dilation=2)
    added_position_count = 2
    reads_whole_image = True
    has_inclusive_boxes = True

    def __init__(self, bert: BertModel, width: int = 2048, pixels: bool = False) -> None:
        super().__init__(width, pixels=pixels)
        hidden = bert.config.hidden_size
        self.dropout = nn.Dropout(bert.config.hidden_dropout_prob)
        # Keeps PyTorch's own initialisation (release).
        self.visual = nn.Linear(2048 + width, hidden)
        self.norm_text = nn.LayerNorm(hidden, eps=1e-12)
        self.norm_region = nn.LayerNorm(hidden, eps=1e-12)
        nn.init.zeros_(self.norm_text.weight)
        nn.init.zeros_(self.norm_region.weight)
        self.image_word = _vector(hidden)
        self.mask_word = _vector(hidden)
        self.end = _vector(hidden)
        self.no_image = _vector(hidden)
        self.mask_visual = None if pixels else nn.Parameter(torch.zeros(1, width))

    def embed_parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Text (N, T, H), and regions with [END] (N, R + 1, H)."""
        tokens = require(batch.text, "text", "a VL-BERT")
        rows, length = tokens.input_ids.shape
        # (N, 1): the first position after the row's text.
        after_text = tokens.attention_mask.sum(1, keepdim=True)
        token_features = self.no_image.expand(rows, length, -1)
        rest = self.end.expand(rows, 1, -1)
        places = after_text + 1
        regions = batch.regions
        if regions is not None:
            appearance = self.masked_features(batch, regions, self.mask_visual)
            both = torch.cat([embed_boxes(regions.boxes), appearance], -1)
            embedded = self.visual(self.dropout(both)).relu()
            _check_whole(batch.cpu_copy)
            chosen = self._region_of_tokens(tokens, regions)[..., None].expand(
                -1, -1, embedded.shape[-1]
            )
            has_regions = regions.mask.any(1)[:, None, None]
            token_features = torch.where(has_regions, embedded.gather(1, chosen), token_features)
            image_words: Tensor = self.image_word
            if regions.masked is not None:
                image_words = torch.where(regions.masked[..., None], self.mask_word, image_words)
            rest = torch.cat([image_words + self.norm_region(embedded), rest], 1)
            places = torch.cat([after_text.expand(regions.mask.shape), places], 1)
        text = embeddings(
            inputs_embeds=words + self.norm_text(token_features),
            token_type_ids=tokens.token_type_ids,
        )
        segment = torch.full_like(places, 2)
        return text, embeddings(inputs_embeds=rest, position_ids=places, token_type_ids=segment)

    def last_stage(self, stage: nn.Module, states: Tensor, object_masks: Tensor) -> Tensor:
        """The last stage (R, D, 14, 14), zero outside the `object_masks` (R, 14, 14)."""
        return super().last_stage(stage, states, object_masks) * object_masks[:, None]

    def _region_of_tokens(self, tokens: Tokens, regions: Regions) -> Tensor:
        """Index (N, T) of the region whose visual feature each token has."""
        whole = regions.is_whole_image & regions.mask
        first = whole.int().argmax(1, keepdim=True).expand(tokens.input_ids.shape)
        if tokens.region_index is None:
            return first
        return torch.where(tokens.region_index >= 0, tokens.region_index, first)


def _check_whole(batch: Batch) -> None:
    regions = require(batch.regions, "regions", "a VL-BERT")
    whole = regions.is_whole_image & regions.mask
    if (regions.mask.any(1) & ~whole.any(1)).any():
        raise InputError("VL-BERT needs the whole image as a region, which a sample lacks")


def _vector(width: int) -> nn.Parameter:
    return nn.Parameter(torch.randn(1, width) * 0.02)


def vlbert(
    bert: BertModel, tokenizer: PreTrainedTokenizerBase, width: int = 2048, pixels: bool = False
) -> SingleStreamModel:
    """Make a VL-BERT from an uncased BERT; adds a third, random segment to the BERT, in place."""
    missing = max(0, 3 - bert.config.type_vocab_size)
    add_token_types(bert, [None] * missing)
    return SingleStreamModel(bert, tokenizer, VLBertEmbeddings(bert, width, pixels))


class VLBertVqaHead(MaskTokenHead):
    """VQA: the masked-LM head's transform and one Linear, at a [MASK] as second text; binary cross-entropy."""

    loss = "bce"

    def __init__(self, context: HeadContext) -> None:
        """The last Linear is initialised with the mean word embedding of each answer's tokens (release)."""
        super().__init__(context)
        width = context.sizes.text
        self.between = make_transform(width, width, nn.GELU())
        self.dropout = nn.Dropout(self.dropout_rate)
        self.classify = make_output_layer(width, context.outputs)
        if context.input_embeddings is not None and isinstance(context.output_type, OpenAnswer):
            table = context.input_embeddings.detach()
            tokenizer = require(context.tokenizer, "tokenizer", "a head that starts from words")
            answers = list(context.output_type.labels)
            tokens: Any = tokenizer(answers, add_special_tokens=False)["input_ids"]
            none = table.new_zeros(table.shape[1])
            rows = [table[ids].mean(0) if ids else none for ids in tokens]
            self.classify.weight.data.copy_(torch.stack(rows))

    def prepare_example(self, example: Example) -> Example:
        """The question with a [MASK] as second text."""
        return replace(example, text_pair=self.mask, prompt_suffix=self.mask)

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """The transform of the masked-LM head, from pre-training or from BERT's checkpoint."""
        return [
            (self.between[0], "masked_lm.head.cls.predictions.transform.dense"),
            (self.between[2], "masked_lm.head.cls.predictions.transform.LayerNorm"),
        ]

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) from the state at the [MASK]."""
        states = self.between(self.mask_states(encoded, batch))
        outputs: Tensor = self.classify(self.dropout(states))
        return outputs


NAMES = (
    "Casey",
    "Riley",
    "Jessie",
    "Jackie",
    "Avery",
    "Jaime",
    "Peyton",
    "Kerry",
    "Jody",
    "Kendall",
    "Frankie",
    "Pat",
    "Quinn",
)
"""Names for persons in VCR, in this order (release, vcr/data/datasets/vcr.py)."""


class VLBertChoiceHead(PooledClsHead):
    """VCR: pooler, dropout, one Linear; binary cross-entropy of each choice (release, vcr).

    The loss is averaged over choices. Persons get names from a cyclic list. The release continues the list
    from item to item, so that an item's names change every epoch; here each item has its own fixed start.
    """

    loss = "bce"
    swaps_left_right = False  # the release does not swap left and right, although it mirrors images
    uses_segments = True

    def __init__(self, context: HeadContext) -> None:
        """The last Linear has Xavier initialisation (release)."""
        super().__init__(context)
        nn.init.xavier_uniform_(self.classify.weight)

    def prepare_example(self, example: Example) -> Example:
        """The example with names for persons; other objects keep their class names.

        VCR lists persons before other objects, so that an object's number is also the person's number.
        """
        start = int(generator("vlbert", "names", example.id).integers(len(NAMES)))
        texts = (example.text, *example.choices)
        tags_of_texts = (
            example.region_tags,
            *(example.choice_region_tags or ((),) * len(example.choices)),
        )
        lists = example.tag_lists or ((),) * len(texts)
        each = zip(texts, tags_of_texts, lists, strict=True)
        (text, tags), *choices = (_replace_names(*one, start) for one in each)
        return replace(
            example,
            text=text,
            region_tags=tags,
            choices=tuple(choice for choice, _ in choices),
            choice_region_tags=tuple(choice_tags for _, choice_tags in choices)
            if example.choice_region_tags
            else (),
            part_starts=(),  # only UNITER has parts, and these offsets are no longer valid
            tag_lists=(),  # nor are these
        )

    def count_loss_items(self, labels: Tensor, choices: int, output_type: OutputType) -> int:
        """Choices, if the loss is per choice, else samples."""
        is_per_item = isinstance(output_type, Classification) and output_type.kind == "bce"
        return len(labels) * choices if is_per_item else len(labels)


def _replace_names(
    text: str, tags: Tags, continuation_starts: Collection[int], first: int
) -> tuple[str, Tags]:
    """A text in which person N is called `NAMES[first + N]` (cyclic), with "and" between the objects of a list.

    `continuation_starts`: start offsets of tags that are not first in their list (release, vcr/data/datasets/vcr.py).
    """
    changes = []
    for start, stop, number in tags:
        if start in continuation_starts:
            changes.append((start, start, "and "))
        if text[start].isupper():  # class names are lower-case
            changes.append((start, stop, NAMES[(first + number) % len(NAMES)]))
    return replace_words(text, changes, tags)


class VLBertRegionHead(TransformedRegionScoreHead):
    """RefCOCO+: the first layer of the masked-region head, one Linear; binary cross-entropy (release, refcoco).

    The loss is averaged over all regions of a batch, the whole image included, and there is no dropout
    (release, refcoco/modules/resnet_vlbert_for_refcoco.py and cfgs/refcoco, CLASSIFIER_DROPOUT).
    """

    loss = "bce"
    norm = False
    dropout_rate = 0.0

    def __init__(self, context: HeadContext) -> None:
        """Both Linears have Xavier initialisation (release)."""
        super().__init__(context)
        for linear in (self.between[0], self.classify):
            nn.init.xavier_uniform_(linear.weight)  # type: ignore[arg-type]

    def count_loss_items(self, labels: Tensor, choices: int, output_type: OutputType) -> int:
        """Regions, if the loss is per region, else samples."""
        is_per_item = isinstance(output_type, RegionSelection) and output_type.kind == "bce"
        return int((labels >= 0).sum()) if is_per_item else len(labels)


def objectives(context: ObjectiveContext, options: PretrainingVariantSettings) -> list[Objective]:
    """Whole-word masked LM and masked region classification (Section 3.3; the release trains these two).

    Raises InputError if the regions have no classes, unless `--region-classes none` was given.
    """
    chosen: list[Objective] = [MaskedLM.from_context(context, whole_word=True)]
    if options.related:
        chosen.append(ImageTextMatching(context.sizes))
    if options.region_classes == "none":
        return chosen
    if not context.sizes.classes:
        raise InputError("the regions have no classes to predict; pass region_classes=none")
    chosen.append(MaskedRegionModeling(context.sizes, kind=options.region_classes))
    return chosen


ARCHITECTURE = Architecture(
    name="vlbert",
    build=vlbert,
    load=partial(load_single_stream, join=VLBertEmbeddings),
    can_read_pixels=True,
    pretraining=PretrainingPhase(objectives),
    heads={
        "vqa": VLBertVqaHead,
        "vcr": VLBertChoiceHead,
        "vcr/answer": VLBertChoiceHead,
        "vcr/rationale": VLBertChoiceHead,
        "refcoco+": VLBertRegionHead,
        # Not in the release; region embeddings do not identify the image, so each image has a row of its own.
        "nlvr2": ImagePairHead,
    },
    auxiliary_objectives={
        "vcr": ("region_classes",),
        "vcr/answer": ("region_classes",),
        "vcr/rationale": ("region_classes",),
    },
    bert_name="bert-base-uncased",
)

RELEASED = WeightNames(
    optional_prefixes=("module.", "vlbert."),
    renamed_prefixes={
        "word_embeddings.": "text.encoder.embeddings.word_embeddings.",
        "position_embeddings.": "text.encoder.embeddings.position_embeddings.",
        "token_type_embeddings.": "text.encoder.embeddings.token_type_embeddings.",
        "embedding_LayerNorm.": "text.encoder.embeddings.LayerNorm.",
        "encoder.": "text.encoder.encoder.",
        "pooler.": "text.encoder.pooler.",
        "end_embedding.weight": "join.end",
        "visual_ln_text.": "join.norm_text.",
        "visual_ln_object.": "join.norm_region.",
        "image_feature_extractor.obj_downsample.1.": "join.visual.",
        "object_linguistic_embeddings.weight": "join.image_word",
        "object_mask_word_embedding.weight": "join.mask_word",
        "object_mask_visual_embedding.weight": "join.mask_visual",
        "aux_text_visual_embedding.weight": "join.no_image",
    },
    unused_prefixes=(
        "mlm_head.",
        "mvrc_head.",
        "relationsip_head.",
        "final_mlp.",
        "image_feature_extractor.",
    ),
    optional_weights=(
        "join.mask_word",
        "join.mask_visual",
        "join.no_image",
    ),  # each is trained only in some pre-training settings
)
"""Weight names in the authors' checkpoints, for `load_released_weights`."""
