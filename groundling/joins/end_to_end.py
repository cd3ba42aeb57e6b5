"""VL-BERT end to end: a ResNet that looks at the regions learns together with the encoder that reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase, ResNetModel

from groundling.batch import Batch, Encoded
from groundling.errors import InputError
from groundling.models.kinds import Kind
from groundling.models.loading import load_config, load_processor, load_weights
from groundling.models.roi_align import roi_align
from groundling.models.single_stream import CNN, JOIN, SingleStream, load_single_stream, vlbert

STRIDE, BINS, SAMPLES = 16, 14, 2
"""Pixels per cell of the map under RoIAlign, its bins per side (code), and samples per bin and direction."""


class EndToEnd(SingleStream):
    """A VL-BERT that makes its regions' features from pixels (VL-BERT Section 3.2; facts from the authors' code).

    All stages of the ResNet but the last see a picture, cut to its own size; RoIAlign takes 14 x 14 bins of every
    region, the whole image included; the last stage, with stride 1 and dilation 2, sees each; their mean is the
    feature, what lies outside a region's `cover` counting as zero. Stem, first stage and all BatchNorms are frozen.
    Masked regions are zero in the normalised pixels, wherever else these are seen.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, stream: SingleStream, cnn: ResNetModel, processor: Any) -> None:
        """`stream`: VL-BERT made for pixels; `processor` has the CNN's mean and deviation, and the pictures' side."""
        super().__init__(stream.text.encoder, stream.text.tokenizer, stream.join)
        self.cnn, self.processor = cnn.eval(), processor
        normal = processor.do_normalize
        for name, value in (
            ("mean", processor.image_mean if normal else [0.0] * 3),
            ("std", processor.image_std if normal else [1.0] * 3),
        ):
            self.register_buffer(name, torch.tensor(value)[:, None, None], persistent=False)
        norms = [part for part in cnn.modules() if isinstance(part, nn.BatchNorm2d)]
        for frozen in (cnn.embedder, cnn.encoder.stages[0], *norms):
            frozen.requires_grad_(False)
        for conv in cnn.encoder.stages[-1].modules():
            if isinstance(conv, nn.Conv2d):
                conv.stride = (1, 1)
                if conv.kernel_size == (3, 3):
                    conv.dilation = conv.padding = (2, 2)

    @property
    def side(self) -> int:
        """Pixels of the pictures' short side."""
        return int(self.processor.size["shortest_edge"])

    def train(self, mode: bool = True) -> EndToEnd:
        """As always, but the CNN's BatchNorms keep the statistics they came with."""
        super().train(mode)
        self.cnn.eval()
        return self

    def forward(self, batch: Batch, maps: bool = False) -> Encoded:
        """As `SingleStream`, with features of the regions seen in the pixels; a batch of texts alone needs neither."""
        return super().forward(batch if batch.regions is None else self.look(batch), maps)

    def look(self, batch: Batch) -> Batch:
        """The batch with features (B, R, D) of its regions; those of a multiple choice are seen once."""
        batch.require(("pixels",), "a model that reads pixels")
        regions, pixels, extent = batch.regions, batch.pixels, batch.extent
        assert regions is not None and pixels is not None and extent is not None
        choices = len(regions.boxes) // len(pixels)
        mask = regions.mask[::choices]
        boxes = regions.boxes[::choices] * extent.repeat(1, 2)[:, None]
        pictures = (pixels / 255 - self.mean) / self.std
        if regions.masked is not None:
            pictures = (
                pictures
                * ~under(boxes, regions.masked[::choices], pixels.shape[3], pixels.shape[2])[
                    :, None
                ]
            )
        found = []
        # One by one: padding would reach into a picture, since a BatchNorm makes something of its zeros.
        for b, (wide, high) in enumerate(extent.tolist()):
            cover = None if regions.cover is None else regions.cover[b * choices, mask[b]]
            found.append(
                self._features(pictures[b : b + 1, :, :high, :wide], boxes[b, mask[b]], cover)
            )
        seen = torch.cat(found)
        features = seen.new_zeros(*mask.shape, seen.shape[-1]).index_put((mask,), seen)
        return replace(
            batch, regions=replace(regions, features=features.repeat_interleave(choices, 0))
        )

    def _features(self, picture: Tensor, boxes: Tensor, cover: Tensor | None) -> Tensor:
        """(R, D) of boxes (R, 4) in pixels of one picture (1, 3, H, W); `cover` (R, 14, 14)."""
        *stages, last = self.cnn.encoder.stages
        states = self.cnn.embedder(picture)
        for stage in stages:
            states = stage(states)
        # In full precision: half of it would move the boxes.
        states = last(roi_align(states.float(), [boxes], BINS, 1 / STRIDE, SAMPLES))
        return (states if cover is None else states * cover[:, None]).float().mean((2, 3))

    def export(self, folder: Path) -> None:
        """Write what a `SingleStream` does, and `cnn`: a stock HF ResNet with its image processor."""
        super().export(folder)
        self.cnn.save_pretrained(folder / CNN)
        self.processor.save_pretrained(folder / CNN)


def under(boxes: Tensor, masked: Tensor, wide: int, high: int) -> Tensor:
    """Pixels (B, H, W) inside any masked (B, R) box (B, R, 4), both its ends included (code)."""

    def between(low: Tensor, last: Tensor, count: int) -> Tensor:
        at = torch.arange(count, device=boxes.device)
        return (at >= low.floor()[..., None]) & (at <= last.floor()[..., None])

    columns = between(boxes[..., 0], boxes[..., 2], wide) & masked[..., None]
    rows = between(boxes[..., 1], boxes[..., 3], high)
    return torch.einsum("brh,brw->bhw", rows.float(), columns.float()) > 0


def end_to_end(
    bert: BertModel, tokenizer: PreTrainedTokenizerBase, backbone: str | Path, side: int
) -> EndToEnd:
    """VL-BERT from a BERT, as `vlbert`, and a ResNet's hub id or folder; pictures get `side` pixels at the short one.

    The authors' ResNet-101 is bottom-up attention's, trained on Visual Genome's objects.
    """
    cnn, processor = _load_cnn(backbone)
    processor.size = {"shortest_edge": side}
    return EndToEnd(
        vlbert(bert, tokenizer, cnn.config.hidden_sizes[-1], pixels=True), cnn, processor
    )


def load_end_to_end(folder: str | Path) -> EndToEnd:
    """A model from a folder written by its `export`."""
    return EndToEnd(load_single_stream(folder), *_load_cnn(Path(folder) / CNN))


def _load_cnn(source: str | Path) -> tuple[Any, Any]:
    config = load_config(source)
    if config.model_type != "resnet" or len(config.depths) != 4 or config.downsample_in_first_stage:
        raise InputError(
            f"{source}: expected a ResNet of four stages and a stride of 32, e.g. microsoft/resnet-101"
        )
    return load_weights(ResNetModel, source), load_processor(source)


PIXELS = Kind(
    "end-to-end model",
    lambda source: (Path(source) / JOIN).exists() and (Path(source) / CNN).exists(),
    load_end_to_end,
)
"""VL-BERT with its own CNN."""
