"""VL-BERT and VisualBERT end to end: a ResNet with RoIAlign is trained together with the encoder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase, ResNetModel

from groundling.core.batch import Batch, EncoderOutput, require, to_device
from groundling.core.errors import InputError
from groundling.core.registry import require_instance
from groundling.models.attention import AttentionCallback
from groundling.models.hub import CNN
from groundling.models.loading import load_config, load_processor, load_weights
from groundling.vision_language import RegionEncoder
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.vlbert import vlbert

# RoIAlign (He et al. 2017, "Mask R-CNN", Section 3) with a half-pixel shift, as torchvision's with `aligned=True`.


def roi_align(
    features: Tensor, boxes: Sequence[Tensor], size: int, scale: float, sampling: int
) -> Tensor:
    """Bilinearly sampled features of boxes, (R, C, size, size), image by image, with one `grid_sample` each.

    Args:
        features: (N, C, H, W).
        boxes: N tensors (R_i, 4) of x1, y1, x2, y2; times `scale`, in pixels of the feature map.
        size: bins per side.
        scale: pixels of the feature map per unit of `boxes`.
        sampling: points per bin and direction.
    """
    found = [features.new_zeros(0, features.shape[1], size, size)]
    for image, image_boxes in zip(features, boxes, strict=True):
        corners = image_boxes.to(features) * scale - 0.5  # the centre of the first pixel is at 0
        if len(image_boxes):
            found.append(_sample(image, corners, size, sampling))
    return torch.cat(found)


def _sample(image: Tensor, corners: Tensor, size: int, each: int) -> Tensor:
    """Sample (C, H, W) in boxes (R, 4), `each` x `each` points per bin: (R, C, size, size)."""
    x, counts_x = _sample_positions(corners[:, 0], corners[:, 2], size, each, image.shape[2])
    y, counts_y = _sample_positions(corners[:, 1], corners[:, 3], size, each, image.shape[1])
    shape = (len(corners), size * each, size * each)
    columns = x[:, None].expand(shape)
    rows = y[:, :, None].expand(shape)
    grid = torch.stack([columns, rows], -1)  # (R, size * each, size * each, 2)
    # All boxes of an image in one grid, so that the features are not copied per box.
    stacked = grid.view(1, -1, shape[2], 2)
    values = F.grid_sample(image[None], stacked, padding_mode="border", align_corners=False)
    values = values[0].view(-1, *shape)  # (C, R, size * each, size * each)
    values = values * (counts_y[:, :, None] & counts_x[:, None])
    bins = values.view(-1, shape[0], size, each, size, each)
    return bins.mean((3, 5)).transpose(0, 1)


def _sample_positions(
    low: Tensor, high: Tensor, size: int, samples_per_bin: int, limit: int
) -> tuple[Tensor, Tensor]:
    """Positions (R, size * each) of samples in `grid_sample`'s range -1..1, and a mask of the valid ones.

    Valid positions are -1 to `limit`, both included; others are zero. Sums are in torchvision's order, so
    that rounding puts a position on the same side of these limits.
    """
    bins = torch.arange(size, device=low.device)[:, None]
    middles = torch.arange(samples_per_bin, device=low.device) + 0.5
    span_of_bin = ((high - low) / size)[:, None, None]
    place = low[:, None, None] + bins * span_of_bin + middles * span_of_bin / samples_per_bin
    place = place.flatten(1)
    counts = (place >= -1) & (place <= limit)
    return (2 * place + 1) / limit - 1, counts


SIDE = 600
"""Length of an image's short side in pixels (jackroos/VL-BERT, SCALES of every configuration)."""
STRIDE = 16
"""Image pixels per cell of RoIAlign's feature map."""
SAMPLES = 2
"""RoIAlign's samples per bin and direction."""


class EndToEndModel(SingleStreamModel):
    """A model that computes region features from pixels (VL-BERT Section 3.2; release: common/fast_rcnn.py).

    All stages of the ResNet except the last run on an image without padding; RoIAlign pools 14 x 14 bins of every
    region, the whole image included; the last stage, with stride 1 and dilation 2, runs on each region. The feature is
    the mean over bins, with zeros outside a region's object mask. Stem, first stage and all BatchNorms are frozen.
    Pixels in masked regions are zero (after normalisation), also where other regions overlap them.

    VisualBERT's regions are R2C's (rowanz/r2c, utils/detector.py): 7 x 7 bins without dilation, and the object
    mask is an input of the last stage (`MultimodalEmbeddings.last_stage`); R2C also trains stem and BatchNorms.
    """

    region_source = "pixels"
    mean: Tensor
    std: Tensor

    def __init__(self, model: SingleStreamModel, cnn: ResNetModel, processor: Any) -> None:
        """`model`: a model made for pixels; `processor`: the CNN's normalisation and the images' size."""
        super().__init__(
            model.text.encoder,
            model.text.tokenizer,
            model.join,
            regions_provenance=model.regions_provenance,
        )
        self.fusion = model.fusion
        self.made_by = model.made_by
        who = f"a {model.join.kind} end to end"
        self.region_pooling = require(model.join.region_pooling, "region_pooling", who)
        self.cnn = cnn.eval()
        self.processor = processor
        mean = processor.image_mean if processor.do_normalize else [0.0] * 3
        std = processor.image_std if processor.do_normalize else [1.0] * 3
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)
        cnn.embedder.requires_grad_(False)
        cnn.encoder.stages[0].requires_grad_(False)
        for module in cnn.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(False)
        dilation = self.region_pooling.dilation
        for conv in cnn.encoder.stages[-1].modules():  # 14 x 14 cells, without a stride
            if isinstance(conv, nn.Conv2d):
                conv.stride = (1, 1)
                if conv.kernel_size == (3, 3):
                    conv.dilation = conv.padding = (dilation, dilation)

    @property
    def image_sides(self) -> tuple[int, int]:
        """Length of the images' short side and maximum of the long side in pixels, 0: 5/3 of the short side."""
        sides = self.processor.size
        return int(sides["shortest_edge"]), int(sides.get("longest_edge") or 0)

    def resize(self, side: int, longest_edge: int) -> None:
        """Set the images' short and long side, which are saved with the model; 0 keeps the current value.

        Raises InputError for a long side below the short side.
        """
        short, long = self.image_sides
        side = side or short
        longest_edge = longest_edge or long
        if longest_edge and longest_edge < side:
            raise InputError(f"longest_edge={longest_edge}: less than the short side, {side}")
        self.processor.size = {"shortest_edge": side}
        if longest_edge:
            self.processor.size = {"shortest_edge": side, "longest_edge": longest_edge}

    def train(self, mode: bool = True) -> EndToEndModel:
        """As `nn.Module.train`, but the CNN stays in eval mode, so its BatchNorms keep their statistics."""
        super().train(mode)
        self.cnn.eval()
        return self

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """As `SingleStreamModel`, with region features computed from pixels; a batch of texts needs neither."""
        return super().forward(
            batch if batch.regions is None else self.add_region_features(batch), attention
        )

    def add_region_features(self, batch: Batch) -> Batch:
        """The batch with features (N, R, D) of its regions, computed once for all choices of an example.

        Without pixels, regions keep features that they have: the control with zero features needs this.
        Raises InputError if there are neither pixels nor features.
        """
        who = "a model that reads pixels"
        regions = require(batch.regions, "regions", who)
        if batch.pixels is None and regions.features.shape[-1] == self.join.width:
            return batch
        pixels = require(batch.pixels, "pixels", who)
        extent = require(batch.image_sizes, "image_sizes", who)
        choices, device, host = batch.choices, pixels.device, batch.cpu_copy
        # Sizes and numbers of regions are read in host memory, without synchronising with the GPU.
        sizes = require(host.image_sizes, "image_sizes", who).tolist()
        region_mask = require(host.regions, "regions", who).mask[::choices]
        boxes = regions.boxes[::choices] * extent.repeat(1, 2)[:, None]
        pictures = (pixels / 255 - self.mean) / self.std
        if regions.masked is not None:
            high, wide = pixels.shape[2:]
            pictures = pictures * ~mask_boxes(boxes, regions.masked[::choices], wide, high)[:, None]
        features_of_images = []
        # Image by image: BatchNorm turns padding into non-zero values, which would leak into an image.
        for number, (wide, high) in enumerate(sizes):
            places = to_device(region_mask[number].nonzero().squeeze(1), device)
            object_masks = None
            if regions.segmentation is not None:
                object_masks = regions.segmentation[number * choices, places]
            picture = pictures[number : number + 1, :, :high, :wide]
            features_of_images.append(self._features(picture, boxes[number, places], object_masks))
        found = torch.cat(features_of_images)
        rows, columns = (to_device(where, device) for where in region_mask.nonzero(as_tuple=True))
        features = found.new_zeros(*region_mask.shape, found.shape[-1])
        features = features.index_put((rows, columns), found)
        features = features.repeat_interleave(choices, 0)
        return replace(batch, regions=replace(regions, features=features))

    def _features(self, picture: Tensor, boxes: Tensor, object_masks: Tensor | None) -> Tensor:
        """Features (R, D) of boxes (R, 4), in pixels of one image (1, 3, H, W), with `object_masks` (R, 14, 14)."""
        *stages, last = self.cnn.encoder.stages
        states = self.cnn.embedder(picture)
        for stage in stages:
            states = stage(states)
        # In float32: half precision would shift the boxes.
        states = roi_align(states.float(), [boxes], self.region_pooling.bins, 1 / STRIDE, SAMPLES)
        if object_masks is None:
            states = last(states)
        else:
            states = self.join.last_stage(last, states, object_masks)
        means: Tensor = states.float().mean((2, 3))
        return means

    def export(self, folder: Path) -> None:
        """As `SingleStreamModel.export`, with a stock HF ResNet and its image processor in `cnn`."""
        super().export(folder)
        self.cnn.save_pretrained(folder / CNN)
        self.processor.save_pretrained(folder / CNN)


def mask_boxes(boxes: Tensor, masked: Tensor, wide: int, high: int) -> Tensor:
    """Mask (B, H, W) of the pixels in any box (B, R, 4) that is `masked` (B, R), edges included (VL-BERT's release)."""

    def between(low: Tensor, last: Tensor, count: int) -> Tensor:
        place = torch.arange(count, device=boxes.device)
        return (place >= low.floor()[..., None]) & (place <= last.floor()[..., None])

    columns = between(boxes[..., 0], boxes[..., 2], wide) & masked[..., None]
    rows = between(boxes[..., 1], boxes[..., 3], high)
    return torch.einsum("brh,brw->bhw", rows.float(), columns.float()) > 0


def make_end_to_end_model(
    bert: BertModel,
    tokenizer: PreTrainedTokenizerBase,
    backbone: str | Path,
    side: int,
    longest_edge: int = 0,
    build: Callable[..., RegionEncoder] = vlbert,
    **options: Any,
) -> EndToEndModel:
    """Make an end-to-end VL-BERT (or a model of another `build`) from a BERT and a ResNet's hub id or folder.

    Images are resized to `side` pixels at the short side, and at most `longest_edge` (by default 5/3 of the
    short side) at the long one. The authors' ResNet-101 is bottom-up attention's, trained on Visual Genome.
    """
    cnn, processor = _load_cnn(backbone)
    processor.size = {"shortest_edge": side}
    stream = build(bert, tokenizer, cnn.config.hidden_sizes[-1], pixels=True, **options)
    model = EndToEndModel(
        require_instance(stream, SingleStreamModel, "a model end to end:"), cnn, processor
    )
    model.resize(side, longest_edge)
    return model


def load_end_to_end(model: RegionEncoder, folder: str | Path) -> EndToEndModel:
    """`model`, loaded from a folder written by an end-to-end model's `export`, with the CNN in that folder."""
    if not isinstance(model, SingleStreamModel):
        raise InputError(f"{folder}: a {model.architecture_name} model has no CNN")
    return EndToEndModel(model, *_load_cnn(Path(folder) / CNN))


def _load_cnn(source: str | Path) -> tuple[Any, Any]:
    config = load_config(source)
    if config.model_type != "resnet" or len(config.depths) != 4 or config.downsample_in_first_stage:
        raise InputError(f"{source}: expected a ResNet with four stages and a stride of 32")
    return load_weights(ResNetModel, source), load_processor(source)
