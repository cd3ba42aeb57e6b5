"""How well a CLIP finds the image of a caption, and a caption of an image."""

from __future__ import annotations

import numpy as np
import torch

from groundling.batch import collate, needed
from groundling.data.caption_samples import CaptionSamples
from groundling.models.clip import TwoTowers

RANKS = (1, 5, 10)
"""Recall is reported at each of these."""


def retrieval(model: TwoTowers, samples: CaptionSamples, batch: int = 128) -> dict[str, float]:
    """Text-to-image and image-to-text recall at 1, 5 and 10 in per cent, with the numbers of images and captions.

    Every caption is a query for its image; an image's query is answered by any of its captions.

    Args:
        model: both towers, put into evaluation mode.
        samples: held-out images, made without `augment`.
        batch: captions or images in one forward pass.
    """
    scores = _scores(model, samples, batch)
    images = len(samples)
    image_of_caption = np.repeat(np.arange(images), np.diff(samples.first))
    captions = len(image_of_caption)

    right = scores[np.arange(captions), image_of_caption]
    better_images = (scores > right[:, None]).sum(1)

    # Each image's captions follow each other, so their best score is a maximum over a run of rows.
    best_caption = np.maximum.reduceat(scores, samples.first[:-1]).diagonal()
    better_captions = (scores > best_caption).sum(0)

    result = {"images": float(images), "captions": float(captions)}
    for direction, better in (("text_to_image", better_images), ("image_to_text", better_captions)):
        for rank in RANKS:
            result[f"{direction}_r@{rank}"] = round(100 * float((better < rank).mean()), 2)
    return result


@torch.no_grad()
def _scores(model: TwoTowers, samples: CaptionSamples, batch: int) -> np.ndarray:
    """Cosine of every caption and every image; (captions, images)."""
    model.eval()
    device = model.mean.device
    texts = []
    for start in range(0, len(samples.texts), batch):
        stop = min(start + batch, len(samples.texts))
        encoded = model(collate(samples.texts.get(range(start, stop))).to(device))
        texts.append(needed(encoded.text_embedding, "text_embedding", "retrieval").cpu())
    images = []
    for start in range(0, len(samples), batch):
        stop = min(start + batch, len(samples))
        encoded = model(collate(samples.get(range(start, stop), ())).to(device))
        images.append(needed(encoded.image_embedding, "image_embedding", "retrieval").cpu())
    return (torch.cat(texts) @ torch.cat(images).T).numpy()
