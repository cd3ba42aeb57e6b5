"""A text tower that is trained against the frozen features of an image encoder (LiT, Zhai et al. 2022, 2111.07991)."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import (
    FORWARD_BATCH,
    Batch,
    EncoderOutput,
    OutputSizes,
    collate,
    require,
)
from groundling.data.samples import SampleDataset
from groundling.models.clip import ClipTextTower, save_clip_text
from groundling.models.frozen_clip import EncoderTextTower
from groundling.models.sentence_modules import make_sentence_modules
from groundling.models.text_encoder import TextEncoder
from groundling.runs.progress import track

HEAD = "image_head.safetensors"
"""File of the layers that map the image encoder's features into the joint space."""


def make_head(width: int, dim: int, layers: int) -> nn.Sequential:
    """One Linear, or two with a GELU between them, from `width` to `dim`."""
    if layers == 1:
        return nn.Sequential(nn.Linear(width, dim, bias=False))
    return nn.Sequential(nn.Linear(width, dim), nn.GELU(), nn.Linear(dim, dim))


class LockedDualEncoder(nn.Module):
    """A trainable text tower, and a head on frozen image features; one window of text and one feature per sample.

    A frozen text encoder is not run in a step either: its vectors are the feature `text`.
    """

    is_siglip = False

    def __init__(
        self, text: ClipTextTower, tokenizer: PreTrainedTokenizerBase, image: nn.Module
    ) -> None:
        """`text`: a CLIP text tower, or `EncoderText`; `image`: the head on the features (N, E)."""
        super().__init__()
        self.text = text
        self.tokenizer = tokenizer
        self.image_head = image
        self.text.logit_scale.requires_grad_(False)  # that of the tower's own CLIP
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.logit_bias: Tensor | None = None
        self.sizes = OutputSizes()

    @property
    def device(self) -> torch.device:
        """Its device."""
        return self.logit_scale.device

    def start_sigmoid(self) -> None:
        """As `ClipDualEncoder.start_sigmoid`."""
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))
        with torch.no_grad():
            self.logit_scale.fill_(math.log(10))

    def forward(self, batch: Batch) -> EncoderOutput:
        """Unit-length embeddings of texts and of the feature `image` (N, E), if present, with scale and bias."""
        text = None
        image = None
        if batch.clip is not None:
            _, ends = self.text(batch.clip)
            text = F.normalize(ends, dim=-1)
        if "text" in batch.features:
            text = F.normalize(self.text.projection(batch.features["text"]), dim=-1)
        if "image" in batch.features:
            image = self.embed_images(batch.features["image"])
        scale = self.logit_scale.exp()
        return EncoderOutput(
            text_embeds=text, image_embeds=image, scale=scale, bias=self.logit_bias
        )

    def embed_images(self, features: Tensor) -> Tensor:
        """Unit-length embeddings (N, D) of image features (N, E)."""
        return F.normalize(self.image_head(F.normalize(features, dim=-1)), dim=-1)

    def export(self, folder: Path) -> None:
        """Write the text tower, a folder of Hugging Face or sentence-transformers, and the head on image features."""
        if isinstance(self.text, EncoderText):
            self.text.export(folder)
        else:
            save_clip_text(self.text, self.tokenizer, folder)
        weights = {name: value.contiguous() for name, value in self.image_head.state_dict().items()}
        save_file(weights, folder / HEAD)


class EncoderText(EncoderTextTower):
    """A text encoder with a head on its pooled states, in place of the modules after its own pooling."""

    def __init__(self, text: TextEncoder, head: nn.Sequential, freeze: bool) -> None:
        """An encoder without pooling of its own gets the mean over its tokens. `freeze`: only the head is trained."""
        if text.sentence is None:
            text.set_sentence_modules(
                make_sentence_modules("mean", text.sizes.text, text.max_length)
            )
        super().__init__(text)
        self.whole = text
        self.encoder.requires_grad_(not freeze)
        self.projection = head

    @torch.no_grad()
    def vectors(self, texts: SampleDataset) -> np.ndarray:
        """The pooled states (N, S) of texts, without dropout, in batches of a fixed size, on which rounding depends."""
        was_training = self.training
        self.eval()
        device = next(self.encoder.parameters()).device
        found = []
        for start in track(range(0, len(texts), FORWARD_BATCH), "captions", "batch"):
            some = texts.get(range(start, min(start + FORWARD_BATCH, len(texts))), ())
            windows = require(collate(some).to(device).clip, "clip", "a text encoder")
            found.append(self.forward_unprojected(windows)[1].float().cpu())
        self.train(was_training)
        return torch.cat(found).numpy()

    def export(self, folder: Path) -> None:
        """Write the encoder with its pooling, the head and a normalisation, as sentence-transformers loads it."""
        pooling = require(self.whole.sentence, "sentence", "a text tower")
        self.whole.set_sentence_modules(pooling.with_projection(self.projection))
        self.whole.export(folder)
