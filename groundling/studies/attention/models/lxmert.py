"""Hugging Face's LXMERT, for inspection only: a two-stream model (Tan and Bansal 2019)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers import LxmertConfig, LxmertModel, PreTrainedTokenizerBase
from transformers.models.lxmert.modeling_lxmert import LxmertAttention

from groundling.core.batch import Batch, EncoderOutput, require
from groundling.core.errors import InputError
from groundling.models.attention import (
    ON_REQUEST,
    AttentionCallback,
    AttentionMap,
    region_positions,
    text_positions,
)
from groundling.models.formats import ModelFormat
from groundling.models.loading import load_tokenizer, load_weights, model_type
from groundling.models.text_encoder import embed_words
from groundling.studies.attention.models import TransformersRegionReader

TEXT, REGIONS = "text", "regions"
SIDES = {
    "layer": (TEXT, TEXT),
    "r_layers": (REGIONS, REGIONS),
    "lang_self_att": (TEXT, TEXT),
    "visn_self_att": (REGIONS, REGIONS),
}
"""Query and key side of HF's modules by name; cross-attention has both directions."""
CROSS = "visual_attention"


class Lxmert(TransformersRegionReader):
    """An `LxmertModel`: layers within text and within regions, then cross-attention.

    Boxes are corners as shares of width and height. Its maps are named `text over text`, `regions
    over regions`, `text over regions` and `regions over text`; the layers of each kind count from
    0.
    """

    reads_whole_image = False
    """It was trained without a whole-image region."""

    def __init__(self, model: LxmertModel, tokenizer: PreTrainedTokenizerBase) -> None:
        """Raises InputError if the tokenizer has more tokens than the model, or without pooler."""
        super().__init__(model, tokenizer, regions=model.config.visual_feat_dim)
        if model.pooler is None:
            raise InputError("its pooler is missing; expected a complete LXMERT")

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """Last states `text` (N, T, H) and `visual` (N, R, H); `attention` receives the maps.

        Raises InputError without regions.
        """
        tokens = require(batch.text, "text", "an LXMERT")
        regions = require(batch.regions, "regions", "an LXMERT")
        features = regions.features
        if "regions" in batch.perturbation:
            features = features + batch.perturbation["regions"]
        with nullcontext() if attention is None else self._watching(batch, attention):
            out = self.model(
                inputs_embeds=embed_words(self.word_embeddings(), batch, "an LXMERT"),
                attention_mask=tokens.attention_mask.long(),
                token_type_ids=tokens.token_type_ids,
                visual_feats=features,
                visual_pos=regions.boxes,
                visual_attention_mask=regions.mask.long(),
            )
        return EncoderOutput(
            text=out.language_output,
            visual=out.vision_output,
            pooler_output=out.pooled_output,
            input_embeddings=self.word_embeddings().weight,
        )

    @contextmanager
    def _watching(self, batch: Batch, attention: AttentionCallback) -> Iterator[None]:
        """A context in which `attention` receives the map of every attention module."""
        places = {
            TEXT: text_positions(require(batch.text, "text", "an LXMERT")),
            REGIONS: region_positions(require(batch.regions, "regions", "an LXMERT")),
        }
        count: Counter[str] = Counter()
        hooks = []
        for name, module in self.model.encoder.named_modules():
            if isinstance(module, LxmertAttention):
                tell = _ModuleAttention(name, places, count, attention)
                hooks.append(module.register_forward_pre_hook(_request_weights, with_kwargs=True))
                hooks.append(module.register_forward_hook(tell))
        try:
            yield
        finally:
            for hook in hooks:
                hook.remove()


class _ModuleAttention:
    """A forward hook that passes on the maps of one attention module."""

    def __init__(
        self,
        name: str,
        places: Mapping[str, Any],
        count: Counter[str],
        attention: AttentionCallback,
    ) -> None:
        self.parts = name.split(".")
        self.places = places
        self.count = count
        self.attention = attention
        self.calls = 0

    def __call__(self, module: nn.Module, inputs: object, output: tuple[Tensor, ...]) -> None:
        rows, columns = self._sides()
        name = f"{rows} over {columns}"
        one = AttentionMap(
            name, self.count[name], output[1], self.places[rows], self.places[columns]
        )
        self.count[name] += 1
        self.attention(one)

    def _sides(self) -> tuple[str, str]:
        """Query and key side; HF calls cross-attention for text first, then for regions."""
        self.calls += 1
        if CROSS in self.parts:
            return (TEXT, REGIONS) if self.calls == 1 else (REGIONS, TEXT)
        return next(SIDES[part] for part in self.parts if part in SIDES)


def _request_weights(
    module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call, with the attention weights requested."""
    return inputs[:3], {**options, ON_REQUEST: True}


def load_lxmert(source: str | Path) -> Lxmert:
    """Load a folder of transformers' LXMERT; raises InputError if it is incomplete."""
    return Lxmert(load_weights(LxmertModel, source), load_tokenizer(source)).eval()


def _is_lxmert(source: str) -> bool:
    return model_type(source) == LxmertConfig.model_type


LXMERT = ModelFormat("LXMERT of transformers", _is_lxmert, load_lxmert)
