"""Train a small CLIP teacher from scratch on any set of captioned images."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase

from groundling.analysis.retrieval import retrieval
from groundling.config import TeachConfig, TrainConfig, check_training, need
from groundling.data.caption_samples import CaptionSamples
from groundling.data.captions import Captioned, keep_listed, present, read_captions
from groundling.data.samples import WindowInput
from groundling.keyed import seed_of
from groundling.models.clip import TwoTowers
from groundling.models.loading import load_tokenizer
from groundling.models.new_clip import clip_tokenizer, small_clip
from groundling.objectives.contrast import Contrast
from groundling.recipes.lifecycle import Run
from groundling.train import train


def teach(config: TeachConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Train the teacher and write `out/model` (a stock HF CLIP folder) and `out/result.json`; returns the result.

    Raises:
        InputError: captions or images are missing or malformed, or `out` holds another run.
    """
    need(config, "teach", "captions", "images")
    check_training(training)
    settings = {**asdict(config), "train": asdict(training)}
    inputs = {"captions": config.captions, "images": config.images}
    run = Run(out, "teach", settings, inputs, training.cpu)
    if run.result is not None:
        return run.result

    images, held_out, gaps = _images(config)
    with run.state.main_process_first():
        tokenizer = _tokenizer(run.folder / "tokenizer", images, config, run.state)
    torch.manual_seed(seed_of(training.seed, "init"))
    model = TwoTowers(small_clip(config, tokenizer), tokenizer)
    texts = WindowInput(tokenizer, config.window, max_windows=1)
    samples = CaptionSamples(
        images, config.images, config.size, texts, shift=config.shift, flip=config.flip
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    result: dict[str, Any] = {
        "images": len(images),
        "missing_images": gaps,
        "parameters": parameters,
    }
    if not config.untrained:
        result |= train(model, [Contrast(model.sizes)], samples, training, run.folder)
    if held_out:
        unseen = CaptionSamples(held_out, config.images, config.size, texts, augment=False)
        result["retrieval"] = retrieval(model, unseen)
    return run.finish(result, lambda folder: model.export(folder / "model"))


def _images(config: TeachConfig) -> tuple[list[Captioned], list[Captioned], int]:
    """Images to train on, images to evaluate on (none unless asked for), and how many of the former are missing."""
    described = read_captions(config.captions)
    images = keep_listed(described, config.listing) if config.listing else described
    images, gaps = present(images, config.images, config.skip_missing)
    if not config.eval_listing and not config.eval_captions:
        return images, [], gaps
    held_out = read_captions(config.eval_captions) if config.eval_captions else described
    if config.eval_listing:
        held_out = keep_listed(held_out, config.eval_listing)
    held_out, _ = present(held_out, config.images, config.skip_missing)
    return images, held_out, gaps


def _tokenizer(
    folder: Path, images: Sequence[Captioned], config: TeachConfig, state: PartialState
) -> PreTrainedTokenizerBase:
    """The run's tokenizer, learned from the training captions by the main process, read by all others."""
    if state.is_main_process and not folder.exists():
        captions = [caption for image in images for caption in image.captions]
        clip_tokenizer(captions, config.vocabulary).save_pretrained(folder)
    return load_tokenizer(folder)
