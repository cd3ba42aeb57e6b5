"""VisualBERT (Li et al. 2019/2020): embeddings, heads and pre-training. Release: uclanlp/visualbert."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertConfig, BertModel, PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, Example, require
from groundling.core.errors import InputError
from groundling.models.heads import init_linears
from groundling.models.loading import ModelFormat, load_config, load_tokenizer
from groundling.models.task_heads import HeadContext, MaskTokenHead, make_output_layer
from groundling.objectives import Objective, ObjectiveContext
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.objectives import PretrainingVariantSettings
from groundling.vision_language import Architecture, PretrainingPhase
from groundling.vision_language.single_stream import (
    BERT,
    BERT_SETTINGS,
    MultimodalEmbeddings,
    RoiAlignSpec,
    SingleStreamModel,
    WeightNames,
    load_released_weights,
    load_single_stream,
)

REDUCED = 512
"""Width of R2C's region vectors in VisualBERT's release."""
CLASS_WIDTH = 128
"""Width of the embedding of a region's class."""
CHANNELS = 32
"""Number of channels of the last stage's input that object masks are added to (all channels of a smaller CNN)."""


class R2CRegionEmbedding(nn.Module):
    """R2C's region vectors of width 512, from features and classes: class embedding, dropout, Linear, ReLU.

    With PyTorch's default initialisation (rowanz/r2c, utils/detector.py).
    """

    def __init__(self, width: int, classes: int, pixels: bool) -> None:
        """With `pixels` it also has the convolution of object masks for the CNN."""
        super().__init__()
        self.classes = nn.Parameter(torch.randn(classes, CLASS_WIDTH))
        linear = nn.Linear(width + CLASS_WIDTH, REDUCED)
        self.reduce = nn.Sequential(nn.Dropout(0.1), linear, nn.ReLU())
        self.segments: nn.Conv2d | None = None
        if pixels:
            self.segments = nn.Conv2d(1, CHANNELS, kernel_size=3, stride=2, padding=1)

    def forward(self, features: Tensor, classes: Tensor) -> Tensor:
        """(N, R, 512) from features (N, R, D) and class distributions (N, R, C)."""
        reduced: Tensor = self.reduce(torch.cat([features, classes @ self.classes], -1))
        return reduced


class VisualBertEmbeddings(MultimodalEmbeddings):
    """Regions as projected feature + visual segment + visual position, with BERT's LayerNorm (Appendix A).

    Visual segments and positions have their own embeddings, initialised with BERT's. As in the release, the position is
    always 0; for a region that the text mentions (VCR), the mean of the mentions' text position embeddings is added
    (paper: their sum instead). The segment is the image's index (NLVR2), 0 for a single image; HF's default is 1. With
    `boxes`, x1, y1, x2, y2, width and height are appended to the features (release: Flickr30k).

    With `classes`, regions are R2C's (release: VCR; rowanz/r2c, utils/detector.py): they include the whole
    image, and features and a class embedding are reduced to width 512. With `pixels`, a convolution adds the
    object mask to the first 32 channels of the last CNN stage's input.
    """

    kind = "visualbert"
    region_pooling = RoiAlignSpec(bins=7, dilation=1)

    def __init__(
        self,
        bert: BertModel,
        width: int = 2048,
        boxes: bool = False,
        classes: int = 0,
        pixels: bool = False,
    ) -> None:
        """`width` of the stored features, without the box; `classes`: number of classes, 0 if they are not read."""
        super().__init__(width, boxes=boxes, classes=classes, pixels=pixels)
        self.boxes = boxes
        self.reads_whole_image = bool(classes)
        reduced = REDUCED if classes else width
        self.projection = nn.Linear(reduced + 6 * boxes, bert.config.hidden_size)
        init_linears(self)
        self.r2c = R2CRegionEmbedding(width, classes, pixels) if classes else None
        self.position = deepcopy(bert.embeddings.position_embeddings)
        self.segment = deepcopy(bert.embeddings.token_type_embeddings)

    def embed_parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Text (N, T, H) and regions (N, R, H)."""
        tokens = require(batch.text, "text", "a VisualBERT")
        text = embeddings(inputs_embeds=words, token_type_ids=tokens.token_type_ids)
        regions = batch.regions
        if regions is None:
            return text, text[:, :0]
        features = self.masked_features(batch, regions)
        if self.r2c is not None:
            classes = require(regions.classes, "regions.classes", "a VisualBERT made for classes")
            if classes.shape[-1] != len(self.r2c.classes):
                raise InputError(f"the regions have other than {len(self.r2c.classes)} classes")
            features = self.r2c(features, classes)
        if self.boxes:
            sides = regions.boxes[..., 2:] - regions.boxes[..., :2]
            features = torch.cat([features, regions.boxes, sides], -1)
        segment = self.segment(self.segment_ids(batch, range(self.segment.num_embeddings)))
        embedded = self.projection(features) + segment + self.position.weight[0]
        if tokens.region_index is not None:
            positions = embeddings.position_embeddings.weight[: text.shape[1]]
            count = embedded.shape[1]
            mentions = _mention_weights(tokens.region_index, tokens.word_ids, count)
            embedded = embedded + mentions @ positions
        return text, embeddings.dropout(embeddings.LayerNorm(embedded))

    def last_stage(self, stage: nn.Module, states: Tensor, object_masks: Tensor) -> Tensor:
        """The last stage of states (R, C, 7, 7), with the object masks (R, 14, 14) added to their first channels."""
        if self.r2c is not None and self.r2c.segments is not None:
            added = self.r2c.segments(object_masks[:, None].to(states) - 0.5)
            states = states + F.pad(added, (0, 0, 0, 0, 0, states.shape[1] - added.shape[1]))
        return super().last_stage(stage, states, object_masks)


def _mention_weights(region: Tensor, word: Tensor, count: int) -> Tensor:
    """Weights (N, R, T) of tokens that mention a region: equal over its mentions, with sum 1 (0 without any)."""
    # Only the first token of a mention has a weight.
    again = (region[:, 1:] == region[:, :-1]) & (word[:, 1:] == word[:, :-1])
    first = ~F.pad(again, (1, 0))
    named = F.one_hot(region + 1, count + 1)[..., 1:].transpose(1, 2) * first[:, None]
    return named / named.sum(-1, keepdim=True).clamp(min=1)


def visualbert(
    bert: BertModel,
    tokenizer: PreTrainedTokenizerBase,
    width: int = 2048,
    early: bool = True,
    **options: Any,
) -> SingleStreamModel:
    """Make a VisualBERT from an uncased BERT; `width` of region features (NLVR2: 1024).

    `options` are those of `VisualBertEmbeddings`.
    """
    join = VisualBertEmbeddings(bert, width, **options)
    return SingleStreamModel(bert, tokenizer, join, early)


class VisualBertVqaHead(MaskTokenHead):
    """VQA: dropout and one Linear at a [MASK] after the question; Kullback-Leibler divergence (release, vqa model)."""

    loss = "kl"

    def __init__(self, context: HeadContext) -> None:
        super().__init__(context)
        self.dropout = nn.Dropout(self.dropout_rate)
        self.classify = make_output_layer(context.sizes.text, context.outputs)

    def prepare_example(self, example: Example) -> Example:
        """The question with a [MASK] after it."""
        return replace(example, text=f"{example.text} {self.mask}", prompt_suffix=self.mask)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) from the state at the [MASK]."""
        outputs: Tensor = self.classify(self.dropout(self.mask_states(encoded, batch)))
        return outputs


def objectives(context: ObjectiveContext, options: PretrainingVariantSettings) -> list[Objective]:
    """Masked LM with the image, and sentence-image prediction, which ablation C4 omits (Appendix A)."""
    chosen: list[Objective] = [MaskedLM.from_context(context)]
    if options.sentence_image:
        chosen.append(ImageTextMatching(context.sizes, swap_images=False))
    return chosen


def task_objectives(
    context: ObjectiveContext, options: PretrainingVariantSettings
) -> list[Objective]:
    """Masked LM alone, as in the paper's task-specific phase.

    With `task_answers="judged"`, the sentence-image head also predicts if the answer is right (release: NLVR2 and VCR).
    """
    if options.task_answers == "judged":
        return objectives(context, options)
    return [MaskedLM.from_context(context)]


ARCHITECTURE = Architecture(
    name="visualbert",
    build=visualbert,
    load=partial(load_single_stream, join=VisualBertEmbeddings),
    has_embedding_options=True,
    can_read_pixels=True,
    pretraining=PretrainingPhase(objectives, has_caption_pairs=True),
    task_pretraining=PretrainingPhase(
        task_objectives, keeps_object_tags=True, can_judge_answers=True
    ),
    heads={"vqa": VisualBertVqaHead},
    bert_name="bert-base-uncased",
)

RELEASED = WeightNames(
    # Prefixes of DDP, of HF's model with heads, and of the authors' models.
    optional_prefixes=("module.", "visual_bert.", "bert.", "bert."),
    renamed_prefixes={
        "embeddings.projection.": "join.projection.",
        "embeddings.position_embeddings_visual.": "join.position.",
        "embeddings.token_type_embeddings_visual.": "join.segment.",
        "embeddings.visual_projection.": "join.projection.",  # HF's
        "embeddings.visual_position_embeddings.": "join.position.",
        "embeddings.visual_token_type_embeddings.": "join.segment.",
        "additional_layer.": "fusion.",
        **BERT,
    },
    unused_prefixes=(
        "cls.",
        "classifier.",
        "flickr_attention.",
        "attention.",
        "detector.",
        "embeddings.position_ids",
    ),
)
"""Weight names in the authors' and Hugging Face's checkpoints, for `load_released_weights`."""


def load_hf_visualbert(
    folder: str | Path, tokenizer: str | Path | None = None
) -> SingleStreamModel:
    """Load a transformers VisualBERT folder as a `SingleStreamModel`; pass uncased BERT's tokenizer if it has none.

    Raises InputError if the weights do not fit.
    """
    config = load_config(folder)
    every = config.to_dict()
    names = ("num_hidden_layers", "layer_norm_eps", *BERT_SETTINGS)
    # Not the padding id, which differs (HF: 1 and 0).
    bert = BertModel(BertConfig(**{name: every[name] for name in names}))
    words = load_tokenizer(tokenizer or folder)
    early = not config.bypass_transformer
    model = visualbert(bert, words, config.visual_embedding_dim, early=early)
    load_released_weights(model, folder, RELEASED)
    return model.eval()


def _is_visualbert(source: str) -> bool:
    has_config = (Path(source) / "config.json").exists()
    return has_config and load_config(source).model_type == "visual_bert"


HF = ModelFormat("VisualBERT of transformers", _is_visualbert, load_hf_visualbert)
