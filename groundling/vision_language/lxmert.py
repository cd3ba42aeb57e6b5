"""LXMERT (Tan and Bansal 2019), a two-stream model: layers, heads and pre-training. Release: airsplay/lxmert."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertModel, LxmertConfig, LxmertModel, PreTrainedTokenizerBase
from transformers.models.lxmert.modeling_lxmert import LxmertAttention

from groundling.core.batch import (
    IGNORE,
    Batch,
    EncoderOutput,
    OutputSizes,
    Sample,
    Tokens,
    require,
    select,
)
from groundling.core.output_types import OpenAnswer, OutputType
from groundling.data.samples import TextRowEncoder, check_vocabulary
from groundling.models.attention import (
    AttentionCallback,
    AttentionMap,
    region_positions,
    request_attention_weights,
    text_positions,
)
from groundling.models.loading import ModelFormat, load_tokenizer, load_weights, model_type
from groundling.models.task_heads import HeadContext, TaskHead, make_output_layer, make_transform
from groundling.models.text_encoder import embed_words
from groundling.objectives import LossTargets, Objective, ObjectiveContext
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.objectives import PretrainingVariantSettings
from groundling.vision_language import Architecture, PretrainingPhase, RegionEncoder
from groundling.vision_language.single_stream import (
    BERT_SETTINGS,
    JOIN,
    read_join_description,
    read_weights,
    write_description,
)
from groundling.vision_language.uniter import UniterClassificationHead

TEXT, REGIONS = "text", "regions"
SIDES = {
    "layer": TEXT,
    "r_layers": REGIONS,
    "lang_self_att": TEXT,
    "visn_self_att": REGIONS,
}
"""The side that transformers' modules of self-attention read, by name; `visual_attention` has both directions."""


class Lxmert(RegionEncoder):
    """transformers' `LxmertModel`: layers over the text and over the regions, then cross-modality layers.

    Boxes are corners as shares of width and height; there is no whole-image region. A text without
    regions is read without cross-attention (not in the paper). Attention maps are named `text over text`,
    `regions over regions`, `text over regions` and `regions over text`; each name counts its layers from 0.
    """

    architecture_name = "lxmert"
    reads_whole_image = False
    has_inclusive_boxes = False
    reads_tagged_regions = False

    def __init__(
        self,
        model: LxmertModel,
        tokenizer: PreTrainedTokenizerBase,
        regions_provenance: Mapping[str, Any] | None = None,
    ) -> None:
        """Raises InputError if the tokenizer has more tokens than the model."""
        super().__init__()
        self.model = model
        self.text_tokenizer = tokenizer
        self.regions_provenance = dict(regions_provenance or {})
        table = self.word_embeddings().weight
        check_vocabulary(tokenizer, table)
        width = model.config.hidden_size
        self.sizes = OutputSizes(
            text=width,
            input_embeddings=(table.shape[0], table.shape[1]),
            visual=width,
            pooler_output=width,
            regions=model.config.visual_feat_dim,
        )

    def inputs(self, max_length: int) -> tuple[TextRowEncoder, None]:
        """Texts as for BERT, of at most `max_length` tokens or the model's limit."""
        tokenizer = require(self.text_tokenizer, "tokenizer", "an LXMERT")
        limit = self.model.config.max_position_embeddings
        return TextRowEncoder(tokenizer, min(max_length, limit)), None

    def word_embeddings(self) -> nn.Embedding:
        """Its input embeddings."""
        table: nn.Embedding = self.model.get_input_embeddings()
        return table

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states `text` (N, T, H) and `visual` (N, R, H); `attention` receives every map."""
        tokens = require(batch.text, "text", "an LXMERT")
        words = embed_words(self.word_embeddings(), batch, "an LXMERT")
        with nullcontext() if attention is None else self._watching(batch, attention):
            text, visual = self._encode(words, tokens, batch)
        return EncoderOutput(
            text=text,
            visual=visual,
            pooler_output=self.model.pooler(text),
            input_embeddings=self.word_embeddings().weight,
        )

    def _encode(self, words: Tensor, tokens: Tokens, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Last states (N, T, H) and (N, R, H), None without regions."""
        regions = batch.regions
        if regions is None:
            return self._encode_text(words, tokens), None
        features = regions.features
        if REGIONS in batch.perturbation:
            features = features + batch.perturbation[REGIONS]
        out = self.model(
            inputs_embeds=words,
            attention_mask=tokens.attention_mask.long(),
            token_type_ids=tokens.token_type_ids,
            visual_feats=features,
            visual_pos=regions.boxes,
            visual_attention_mask=regions.mask.long(),
        )
        return out.language_output, out.vision_output

    def _encode_text(self, words: Tensor, tokens: Tokens) -> Tensor:
        states: Tensor = self.model.embeddings(None, tokens.token_type_ids, words)
        mask = (~tokens.attention_mask[:, None, None]).to(words) * torch.finfo(words.dtype).min
        layer: Any
        for layer in self.model.encoder.layer:
            (states,) = layer(states, mask)
        for layer in self.model.encoder.x_layers:
            (states,) = layer.lang_self_att(states, mask)
            states = layer.lang_output(layer.lang_inter(states), states)
        return states

    @contextmanager
    def _watching(self, batch: Batch, attention: AttentionCallback) -> Iterator[None]:
        positions = {TEXT: text_positions(require(batch.text, "text", "an LXMERT"))}
        if batch.regions is not None:
            positions[REGIONS] = region_positions(batch.regions)
        layers: Counter[str] = Counter()
        calls: Counter[str] = Counter()

        def report(name: str, module: nn.Module, inputs: object, output: Any) -> None:
            if "visual_attention" in name:
                # transformers calls cross-attention for the text first, then for the regions.
                rows, columns = ((TEXT, REGIONS), (REGIONS, TEXT))[calls[name]]
                calls[name] += 1
            else:
                rows = columns = next(SIDES[part] for part in name.split(".") if part in SIDES)
            title = f"{rows} over {columns}"
            places = (positions[rows], positions[columns])
            attention(AttentionMap(title, layers[title], output[1], *places))
            layers[title] += 1

        hooks = []
        for name, module in self.model.encoder.named_modules():
            if isinstance(module, LxmertAttention):
                ask = request_attention_weights
                hooks.append(module.register_forward_pre_hook(ask, with_kwargs=True))
                hooks.append(module.register_forward_hook(partial(report, name)))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()

    def load_heads(self, objective: Objective, source: str | Path) -> None:
        """Also the heads of a folder of transformers' `LxmertForPreTraining`."""
        names = RELEASED_HEADS.get(objective.name, {})
        if (Path(source) / JOIN).exists() or not names:
            super().load_heads(objective, source)
            return
        weights = {}
        for name, value in read_weights(source).items():
            for theirs, ours in names.items():
                if name.startswith(theirs):
                    weights[ours + name.removeprefix(theirs)] = value
        own = objective.state_dict()
        fitting = {n: v for n, v in weights.items() if n in own and v.shape == own[n].shape}
        objective.load_state_dict(own | fitting)

    def export(self, folder: Path) -> None:
        """Write a stock folder of transformers, and beside it where the training regions came from."""
        self.model.save_pretrained(folder)
        require(self.text_tokenizer, "tokenizer", "an LXMERT").save_pretrained(folder)
        write_description(folder, self)


RELEASED_HEADS = {
    "sentence_image": {"cls.seq_relationship.": "classify."},
    "masked_objects": {
        "obj_predict_head.transform.dense.": "head.0.",
        "obj_predict_head.transform.LayerNorm.": "head.2.",
        "obj_predict_head.decoder_dict.feat.": "head.3.",
        "obj_predict_head.decoder_dict.obj.": "classify.",
    },
    "image_qa": {
        "answer_head.logit_fc.0.": "head.between.0.",
        "answer_head.logit_fc.2.": "head.between.2.",
        "answer_head.logit_fc.3.": "head.classify.",
    },
}
"""Weight names of `LxmertForPreTraining` and ours, by objective; those of masked LM are BERT's."""


def lxmert(bert: BertModel, tokenizer: PreTrainedTokenizerBase, width: int = 2048) -> Lxmert:
    """Make an LXMERT whose embeddings, text layers and pooler are an uncased BERT's; all others are new.

    A BERT of 12 layers gives 9 layers over the text, 5 over the regions and 5 cross-modality layers, as in the paper,
    and a smaller one as many in proportion. The paper's own pre-training starts from random weights (`random_init`).
    """
    layers = bert.config.num_hidden_layers
    others = max(1, min(5, layers * 5 // 12))
    shared = {name: getattr(bert.config, name) for name in BERT_SETTINGS}
    model = LxmertModel(
        LxmertConfig(
            **shared,
            visual_feat_dim=width,
            l_layers=min(9, layers),
            r_layers=others,
            x_layers=others,
        )
    )
    own = model.state_dict()
    weights = {name: value for name, value in bert.state_dict().items() if name in own}
    model.load_state_dict(own | weights)
    return Lxmert(model, tokenizer)


def load_lxmert(source: str | Path) -> Lxmert:
    """Load a folder of transformers' LXMERT, or one that `Lxmert.export` wrote; raises InputError if it is damaged."""
    has_description = (Path(source) / JOIN).exists()
    provenance = read_join_description(source)["regions_from"] if has_description else {}
    return Lxmert(load_weights(LxmertModel, source), load_tokenizer(source), provenance).eval()


# -- pre-training (Section 3.1) ----------------------------------------------------------------------------------------
class MaskedObjects(MaskedRegionModeling):
    """Masked object prediction: features (`masked_objects`) and detected labels (`masked_labels`) of masked regions.

    Of 15 % of the regions, 80 % become zeros, 10 % a region of another image, and 10 % stay. Features are scored by
    the smooth L1 error, averaged over dimensions; labels, which a store has as `classes`, by cross-entropy times
    the detector's confidence. Both heads share a transform. The release also predicts labels of regions that are
    not masked (issues 19 and 41), and attributes, which no region store has.
    """

    def __init__(self, sizes: OutputSizes, *, labels: bool = True) -> None:
        """`labels`: whether to predict them, too, if the regions have classes."""
        super().__init__(sizes, kind="regress", norm=True)
        self.name = "masked_objects"
        self.required_fields = ("regions", f"labels.{self.name}", f"labels.{self.name}_targets")
        self.classify = (
            make_output_layer(sizes.visual, sizes.classes) if labels and sizes.classes else None
        )

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: Callable[[], Sample]
    ) -> Sample:
        """Mask the features of chosen regions, or replace them by those of another image."""

        def replace_some(row: Sample) -> Sample:
            masked = self._mask_row(row, rng)
            regions = require(masked.regions, "regions", self.name)
            hidden = require(regions.masked, "regions.masked", self.name)
            is_replaced = hidden & (rng.random(len(regions)) < 1 / 9)
            other = sample_negative().rows[0].regions if is_replaced.any() else None
            if other is None:
                return masked
            features = regions.features.copy()
            drawn = rng.integers(len(other), size=int(is_replaced.sum()))
            features[is_replaced] = other.features[drawn]
            changed = replace(regions, features=features, masked=hidden & ~is_replaced)
            return replace(masked, regions=changed)

        return sample.each_row(replace_some)

    def count(self, batch: Batch) -> dict[str, int]:
        """Scored regions."""
        count = int(self.scored(batch).sum())
        return {self.name: count, "masked_labels": count} if self.classify else {self.name: count}

    def loss_targets(self, batch: Batch) -> dict[str, LossTargets]:
        """None: no constant is the best for either loss."""
        return {}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The losses () summed over scored regions."""
        regions = require(batch.regions, "regions", self.name)
        places = batch.flat_indices(self.scored)
        states = self.head[:3](select(require(encoded.visual, "visual", self.name), places))
        features = self.head[3](states).float()
        targets = select(batch.labels[f"{self.name}_targets"], places).to(features.dtype)
        errors = F.smooth_l1_loss(features, targets, reduction="none").mean(1)
        terms = {self.name: errors.sum()}
        if self.classify is not None:
            classes = require(regions.classes, "regions.classes", self.name)
            labels = self._top_class(select(classes, places))
            losses = F.cross_entropy(self.classify(states).float(), labels, reduction="none")
            terms["masked_labels"] = (losses * select(regions.confidence, places)).sum()
        return terms


class ImageQuestionAnswering(SupervisedObjective):
    """Image question answering in pre-training: one softmax over the answers, for matching pairs."""

    name = "image_qa"

    def __init__(self, sizes: OutputSizes, output_type: OutputType) -> None:
        """`output_type`: the task's."""
        head = LxmertAnswerHead(HeadContext(sizes, output_type))
        super().__init__(sizes, output_type=output_type, head=head, loss="ce")

    def corrupt(
        self, sample: Sample, rng: np.random.Generator, sample_negative: Callable[[], Sample]
    ) -> Sample:
        """Without the answer if `ImageTextMatching` has swapped the image."""
        if sample.labels.get("sentence_image") != 0:
            return sample
        label = sample.labels["label"]
        missing = np.nan if np.issubdtype(label.dtype, np.floating) else IGNORE
        return sample.with_label("label", np.full_like(label, missing))

    def count(self, batch: Batch) -> dict[str, int]:
        """Questions with their own image."""
        return {self.name: super().count(batch)["task"]}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The summed cross-entropy ()."""
        losses = super().forward(encoded, batch)
        return {self.name: losses["task"]} if losses else {}


def objectives(context: ObjectiveContext, options: PretrainingVariantSettings) -> list[Objective]:
    """Masked LM, cross-modality matching and masked object prediction; with a task's answers, image QA."""
    chosen: list[Objective] = [
        MaskedLM.from_context(context),
        ImageTextMatching(context.sizes),
        MaskedObjects(context.sizes, labels=options.region_classes != "none"),
    ]
    if isinstance(context.output_type, OpenAnswer):
        chosen.append(ImageQuestionAnswering(context.sizes, context.output_type))
    return chosen


# -- heads (Section 4; release: tasks/vqa_model.py, tasks/nlvr2_model.py) ----------------------------------------------
class LxmertAnswerHead(UniterClassificationHead):
    """VQA: Linear of twice the width, GELU, LayerNorm, Linear; binary cross-entropy of each answer.

    It starts from the head of image QA; the last layer only if there are as many answers.
    """

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """Both parts of the image-QA head."""
        return [
            (self.between, "image_qa.head.between"),
            (self.classify, "image_qa.head.classify"),
        ]


class LxmertPairHead(TaskHead):
    """NLVR2: each image in a row of its own with the text; the same layers on both rows' pooled vectors."""

    separates_images = True

    def __init__(self, context: HeadContext) -> None:
        """No dropout (release)."""
        super().__init__()
        width = 2 * context.sizes.pooler_output
        self.between = make_transform(width, width, nn.GELU())
        self.classify = make_output_layer(width, context.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, outputs), from 2B rows."""
        pooled = require(encoded.pooler_output, "pooler_output", "a head of image pairs")
        outputs: Tensor = self.classify(self.between(pooled.reshape(len(batch), -1)))
        return outputs


ARCHITECTURE = Architecture(
    name="lxmert",
    build=lxmert,
    load=load_lxmert,
    pretraining=PretrainingPhase(objectives),
    task_pretraining=PretrainingPhase(objectives, keeps_labels=True),
    heads={"vqa": LxmertAnswerHead, "nlvr2": LxmertPairHead},
    bert_name="bert-base-uncased",
)
HF = ModelFormat(
    "LXMERT of transformers", lambda source: model_type(source) == "lxmert", load_lxmert
)
