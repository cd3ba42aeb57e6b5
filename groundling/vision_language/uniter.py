"""UNITER (Chen et al. 2020): embeddings, heads and pre-training. Release: ChenRocks/UNITER."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from tokenizers import Encoding
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase

from groundling.core.batch import (
    Batch,
    EncoderOutput,
    Example,
    OutputSizes,
    Tags,
    TextRow,
    require,
    to_device,
)
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType
from groundling.data.samples import TextRowEncoder, Tokens, texts_of
from groundling.data.text import align_words
from groundling.models.heads import init_linears
from groundling.models.task_heads import (
    HeadContext,
    ImagePairHead,
    TaskHead,
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
    BERT,
    MultimodalEmbeddings,
    SingleStreamModel,
    WeightNames,
    add_token_types,
    load_single_stream,
)

PERSONS = tuple(f"person_{number}" for number in range(81))
"""Words added for VCR: a tag of a person becomes `person_N`, with the tag's number; other tags stay class names.

Source: preprocessing code in the authors' repository before its release; the released code has only the
number of words (ChenRocks/UNITER, train_vcr.py) and a data folder, `vcr_train_w_obj_ids_base-cased.db`.
"""
VCR_TYPES = 3
"""Number of segments in VCR's texts: question, answer, rationale."""


class UniterEmbeddings(MultimodalEmbeddings):
    """Regions as LN(LN(projected feature) + LN(projected box) + segment), and BERT's embedded text (Section 3.1).

    The box is x1, y1, x2, y2, width, height and area. With regions, tokens of text `i` have segment `text_types[i]`,
    and regions of image `j` segment `image_types[j]`, both of BERT's own table (release; VCR: text types (0, 2, 3), see
    `add_vcr_inputs`; NLVR2: image types (1, 2), with rows appended by `add_token_types`). Without regions, segments are
    BERT's, except VCR's. A masked region's features are a learned vector.
    """

    kind = "uniter"
    reads_tagged_regions = False
    separators_follow = True
    """VCR: a [SEP] has the segment of the part after it; with False, of the part before it (release, second stage)."""

    def __init__(
        self,
        bert: BertModel,
        width: int = 2048,
        text_types: Sequence[int] = (0, 0),
        image_types: Sequence[int] = (1,),
    ) -> None:
        super().__init__(width, text_types=list(text_types), image_types=list(image_types))
        hidden = bert.config.hidden_size
        self.text_types = list(text_types)
        self.image_types = list(image_types)
        self.feature = nn.Linear(width, hidden)
        self.box = nn.Linear(7, hidden)
        init_linears(self)
        self.feature_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.box_norm = nn.LayerNorm(hidden, eps=1e-12)
        self.norm = nn.LayerNorm(hidden, eps=1e-12)
        # The authors' table; its row 0, for regions that are not masked, is zero and not used here.
        self.mask = nn.Embedding(2, width, padding_idx=0)
        nn.init.normal_(self.mask.weight.detach()[1:], std=0.02)

    def feature_projection_weight(self) -> Tensor:
        """The feature projection's weight (H, D); UNITER's feature regression uses its transpose."""
        return self.feature.weight

    def add_images(self, images: int, bert: BertModel) -> None:
        """Add a segment for each further image, initialised as the first image's (release, nlvr2)."""
        more = images - len(self.image_types)
        if more <= 0:
            return
        first = bert.config.type_vocab_size
        add_token_types(bert, [self.image_types[0]] * more)
        self.image_types = [*self.image_types, *range(first, first + more)]
        self.options["image_types"] = self.image_types

    def prepare(self, model: Any, examples: Sequence[Example], pretraining: bool) -> None:
        """Call `add_vcr_inputs` if the examples name the objects of their images, and set the segments of [SEP].

        In fine-tuning a [SEP] has the segment of the part after it (release, data/vcr.py), in pre-training of
        the part before it (data/pretrain_vcr.py).
        """
        self.separators_follow = not pretraining
        if any(example.object_names for example in examples):
            add_vcr_inputs(model, self)

    def make_text_input(
        self, tokenizer: PreTrainedTokenizerBase, max_length: int
    ) -> TextRowEncoder:
        """Texts of several parts (VCR) if it has segments for them, else as for BERT."""
        if len(self.text_types) < VCR_TYPES:
            return super().make_text_input(tokenizer, max_length)
        vocabulary = tokenizer.get_vocab()
        persons = {
            number: vocabulary[word] for number, word in enumerate(PERSONS) if word in vocabulary
        }
        return MultipartTextInput(tokenizer, max_length, persons, self.separators_follow)

    def embed_parts(self, embeddings: Any, words: Tensor, batch: Batch) -> tuple[Tensor, Tensor]:
        """Text (N, T, H) and regions (N, R, H)."""
        tokens = require(batch.text, "text", "a UNITER")
        regions = batch.regions
        types = tokens.token_type_ids
        if tokens.part_index is not None:
            types = to_device(torch.tensor(self.text_types), types.device)[tokens.part_index]
        elif regions is not None:
            types = to_device(torch.tensor(self.text_types), types.device)[types]
        text = embeddings(inputs_embeds=words, token_type_ids=types)
        if regions is None:
            return text, text[:, :0]
        features = self.masked_features(batch, regions, self.mask.weight[1])
        sides = regions.boxes[..., 2:] - regions.boxes[..., :2]
        box = torch.cat([regions.boxes, sides, sides.prod(-1, keepdim=True)], -1)
        segment = embeddings.token_type_embeddings(self.segment_ids(batch, self.image_types))
        embedded = (
            self.feature_norm(self.feature(features)) + self.box_norm(self.box(box)) + segment
        )
        return text, embeddings.dropout(self.norm(embedded))


def uniter(
    bert: BertModel, tokenizer: PreTrainedTokenizerBase, width: int = 2048
) -> SingleStreamModel:
    """Make a UNITER from a cased BERT; `add_images` prepares it for NLVR2, `add_vcr_inputs` for VCR."""
    return SingleStreamModel(bert, tokenizer, UniterEmbeddings(bert, width))


def add_vcr_inputs(model: SingleStreamModel, embeddings: UniterEmbeddings) -> None:
    """Add what VCR needs to a UNITER with these embeddings: segments for answer and rationale, and words for persons.

    The segments are initialised as the first text's, the words at random (release, model/vcr.py and
    model/pretrain_vcr.py); `load_released_weights` can replace them. A model that has them is not changed.
    """
    if len(embeddings.text_types) >= VCR_TYPES:
        return
    bert = model.text.encoder
    first = bert.config.type_vocab_size
    add_token_types(bert, [embeddings.text_types[0]] * (VCR_TYPES - 1))
    embeddings.text_types = [embeddings.text_types[0], *range(first, first + VCR_TYPES - 1)]
    embeddings.options["text_types"] = embeddings.text_types
    model.add_tokens(PERSONS)


class UniterClassificationHead(TaskHead):
    """VQA and SNLI-VE: binary cross-entropy of each answer (release, model/vqa.py, model/ve.py).

    Pooler, Linear of twice the width, activation, LayerNorm, Linear; no dropout.
    """

    loss = "bce"
    activation: type[nn.Module] = nn.GELU

    def __init__(self, context: HeadContext) -> None:
        """Of the width of the model's pooler."""
        super().__init__()
        width = context.sizes.pooler_output
        self.between = make_transform(width, 2 * width, self.activation())
        outputs = self.output_type_for(context.output_type).head_width
        self.classify = make_output_layer(2 * width, outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs) of the pooled first position."""
        pooled = require(encoded.pooler_output, "pooler_output", "a UNITER head")
        outputs: Tensor = self.classify(self.between(pooled))
        return outputs


class UniterBinaryChoiceHead(UniterClassificationHead):
    """VCR: with ReLU; two outputs per choice, wrong and right, with cross-entropy (release, model/vcr.py).

    The loss is averaged over choices, as distillation terms are.
    """

    loss = "each"
    activation = nn.ReLU

    def count_loss_items(self, labels: Tensor, choices: int, output_type: OutputType) -> int:
        """Choices."""
        return len(labels) * choices


class UniterRegionHead(TransformedRegionScoreHead):
    """RefCOCO+: Linear, GELU, LayerNorm, Linear; one softmax over the regions (release, model/re.py)."""

    loss = "ce"
    norm = True
    dropout_rate = 0.0


def objectives(context: ObjectiveContext, options: PretrainingVariantSettings) -> list[Objective]:
    """Masked LM, image-text matching with word-region alignment, region regression and classification (Section 3.2)."""
    sizes = context.sizes
    return [
        MaskedLM.from_context(context),
        ImageTextMatching(sizes, alignment=0.1),
        *_region_objectives(sizes, options),
    ]


def task_objectives(
    context: ObjectiveContext, options: PretrainingVariantSettings
) -> list[Objective]:
    """As `objectives`, on a task's texts, without matching (release, pretrain_vcr.py and its configurations)."""
    return [MaskedLM.from_context(context), *_region_objectives(context.sizes, options)]


def _region_objectives(sizes: OutputSizes, options: PretrainingVariantSettings) -> list[Objective]:
    # The release averages over a feature's dimensions. It also averages over classes, which would scale that term
    # by 1/1601, and is not done here.
    weight = 1 / sizes.regions
    chosen: list[Objective] = [
        MaskedRegionModeling(
            sizes, kind="regress", keep_ratio=0.0, min_masked=1, norm=True, tied=True, weight=weight
        )
    ]
    if sizes.classes and options.region_classes != "none":
        kind = options.region_classes
        chosen.append(
            MaskedRegionModeling(sizes, kind=kind, keep_ratio=0.0, min_masked=1, norm=True)
        )
    return chosen


REGRESSION = "regress_regions"
CLASSES = ("masked_regions", "hard_regions")

ARCHITECTURE = Architecture(
    name="uniter",
    build=uniter,
    load=partial(load_single_stream, join=UniterEmbeddings),
    # In-domain ratios of the release: itm 2, mlm 2, mrfr 1, mrc 1; one objective per optimizer step.
    pretraining=PretrainingPhase(
        objectives,
        step_mix=(
            (2, ("sentence_image",)),
            (2, ("masked_lm",)),
            (1, (REGRESSION,)),
            (1, CLASSES),
        ),
    ),
    # Second stage of the release, base (config/pretrain-vcr-base-4gpu.json); the large model's is 10, 1, 1.
    task_pretraining=PretrainingPhase(
        task_objectives,
        step_mix=((2, ("masked_lm",)), (1, (REGRESSION,)), (1, CLASSES)),
        keeps_object_tags=True,
    ),
    heads={
        "vqa": UniterClassificationHead,
        "snli-ve": UniterClassificationHead,
        "vcr": UniterBinaryChoiceHead,
        "vcr/answer": UniterBinaryChoiceHead,
        "vcr/rationale": UniterBinaryChoiceHead,
        "refcoco+": UniterRegionHead,
        "nlvr2": ImagePairHead,
    },
    bert_name="bert-base-cased",
)

RELEASED = WeightNames(
    optional_prefixes=("module.", "bert.", "uniter."),
    renamed_prefixes={
        "img_embeddings.img_linear.": "join.feature.",
        "img_embeddings.img_layer_norm.": "join.feature_norm.",
        "img_embeddings.pos_linear.": "join.box.",
        "img_embeddings.pos_layer_norm.": "join.box_norm.",
        "img_embeddings.mask_embedding.": "join.mask.",
        "img_embeddings.LayerNorm.": "join.norm.",
        **BERT,
    },
    unused_prefixes=(
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
"""Weight names in the authors' checkpoints, for `load_released_weights`."""


# -- VCR's texts of several parts --------------------------------------------------------------------------------------
class MultipartTextInput(TextRowEncoder):
    """Rows `[CLS] question [SEP] answer [SEP] rationale [SEP]`, of the parts of a text and of the second text.

    Every token has the number of its part; [CLS] is in the first. A [SEP] is in the part after it (the last
    [SEP] in the last part), or, with `separators_follow=False`, in the part before it. A tagged person is one word,
    `person_N` with the tag's number, instead of its name in the text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        max_length: int,
        persons: Mapping[int, int],
        separators_follow: bool = True,
    ) -> None:
        """`persons`: from a tag's number to a token id."""
        super().__init__(tokenizer, max_length)
        self.first = int(tokenizer.cls_token_id)
        self.separator = int(tokenizer.sep_token_id)
        self.persons = persons
        self.separators_follow = separators_follow

    def rows(
        self, examples: Sequence[Example], words: Sequence[tuple[np.ndarray, ...]]
    ) -> list[tuple[TextRow, int]]:
        """The row of each example, and its number of truncated tokens, which are taken from the longest parts.

        `words`: spans (K, 2) of each text. Raises InputError if `max_length` leaves no token for a part.
        """
        every = [text for example in examples for text in texts_of(example)]
        encodings = iter(self.engine.encode_batch(every, add_special_tokens=False))
        rows = []
        for example, spans_of_texts in zip(examples, words, strict=True):
            texts = [next(encodings) for _ in spans_of_texts]
            parts = self._parts(example, texts, spans_of_texts)
            first = len(example.part_starts) + 1  # parts of the first text
            rows.append(self._build_row(example.id, parts, first))
        return rows

    def row_of(self, tokens: Tokens) -> tuple[TextRow, int]:
        """The row of a text with one part, and its number of truncated tokens."""
        return self._build_row("a text", [tokens], 1)

    def _parts(
        self, example: Example, texts: Sequence[Encoding], words: Sequence[np.ndarray]
    ) -> list[Tokens]:
        parts = []
        word_count = 0
        tags_of_texts = [example.region_tags, *(example.choice_region_tags or [()])]
        breaks = [example.part_starts, ()]
        for text, spans_of_text, tags, begins in zip(
            texts, words, tags_of_texts, breaks, strict=False
        ):
            offsets = np.array(text.offsets, np.int64).reshape(-1, 2)
            word_ids = align_words(offsets, spans_of_text)
            word = np.where(word_ids >= 0, word_ids + word_count, -1)
            word_count += len(spans_of_text)
            ids, is_kept = self._replace_persons(
                np.array(text.ids, np.int64), offsets, tags, example.object_names
            )
            part = np.searchsorted(begins, offsets[:, 0], side="right")
            for number in range(len(begins) + 1):
                inside = is_kept & (part == number)
                parts.append((ids[inside], word[inside]))
        return parts

    def _replace_persons(
        self, ids: np.ndarray, offsets: np.ndarray, tags: Tags, names: Sequence[str]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Ids (P,) with each tagged person's first token replaced by its word, and a mask of the tokens to keep."""
        is_kept = np.ones(len(ids), bool)
        for start, stop, number in tags:
            if number not in self.persons or names[number : number + 1] != ("person",):
                continue
            inside = np.flatnonzero((offsets[:, 0] < stop) & (offsets[:, 1] > start))
            ids[inside[:1]] = self.persons[number]
            is_kept[inside[1:]] = False
        return ids, is_kept

    def _build_row(self, name: str, parts: list[Tokens], first: int) -> tuple[TextRow, int]:
        """The row of [CLS] and of each part with its [SEP]; the `first` parts are of the first text."""
        lengths = np.array([len(ids) for ids, _ in parts])
        room = self.max_length - 1 - len(parts)
        if room < len(parts):
            raise InputError(f"{name}: no room for {len(parts)} parts; raise max_length")
        truncated = max(0, int(lengths.sum()) - room)
        for _ in range(truncated):
            lengths[lengths.argmax()] -= 1
        ids = [np.array([self.first])]
        word = [np.array([-1])]
        part = [np.array([0])]
        for number, (length, (tokens, words)) in enumerate(zip(lengths, parts, strict=True)):
            ids += [tokens[:length], np.array([self.separator])]
            word += [words[:length], np.array([-1])]
            owner = min(number + 1, len(parts) - 1) if self.separators_follow else number
            part += [np.full(length, number), np.array([owner])]
        # For token types, every part includes its own [SEP].
        stands_in = np.repeat(np.arange(len(parts)), lengths + 1)
        types = np.concatenate([[0], stands_in >= first])
        special = np.concatenate([[True], *(np.arange(length + 1) == length for length in lengths)])
        row = TextRow(
            input_ids=np.concatenate(ids).astype(np.int64),
            special_tokens_mask=special,
            word_ids=np.concatenate(word).astype(np.int64),
            token_type_ids=types.astype(np.int64),
            pad_token_id=self.pad,
            part_index=np.concatenate(part).astype(np.int64),
        )
        return row, truncated
