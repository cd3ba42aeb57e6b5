"""Train a small CLIP teacher from scratch on any set of captioned images."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from tokenizers import Tokenizer, models, trainers
from tokenizers.pre_tokenizers import ByteLevel
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, PreTrainedTokenizerBase

from groundling.batch import collate
from groundling.checkpoint import Checkpoints
from groundling.config import TeachConfig, TrainConfig
from groundling.data.caption_samples import CaptionSamples
from groundling.data.captions import Captioned, keep_listed, present, read_captions
from groundling.data.samples import WindowInput
from groundling.errors import InputError
from groundling.keyed import seed_of
from groundling.models.clip import TwoTowers
from groundling.models.loading import load_tokenizer
from groundling.objectives.contrast import Contrast
from groundling.runs import disk_errors, finished, open_run, write_json
from groundling.train import train

START, END = "<|startoftext|>", "<|endoftext|>"


def clip_tokenizer(texts: Sequence[str], vocabulary: int) -> CLIPTokenizer:
    """CLIP's byte-pair tokenizer with its pieces learned from `texts`; adds start and end tokens."""
    template = CLIPTokenizer().backend_tokenizer
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>"))
    learner.normalizer, learner.pre_tokenizer = template.normalizer, template.pre_tokenizer
    alphabet = sorted(ByteLevel.alphabet())
    endings = [letter + "</w>" for letter in alphabet]
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary - 2,
        initial_alphabet=alphabet,
        # Numbered here, or the trainer numbers them as its hash table happens to list them, and breaks ties by number.
        special_tokens=endings,
        end_of_word_suffix="</w>",
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    merges: list[Any] = [tuple(m) for m in json.loads(learner.to_str())["model"]["merges"]]
    pieces = [*alphabet, *endings, *("".join(m) for m in merges), START, END]
    vocab = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    return CLIPTokenizer(vocab=vocab, merges=merges)


def small_clip(config: TeachConfig, tokenizer: PreTrainedTokenizerBase) -> CLIPModel:
    """An untrained HF CLIP of the configured size."""
    (vision, vision_layers), (text, text_layers) = config.vision, config.text
    clip = CLIPModel(
        CLIPConfig(
            projection_dim=config.projection,
            text_config={
                "vocab_size": len(tokenizer),
                "hidden_size": text,
                "num_hidden_layers": text_layers,
                "num_attention_heads": max(1, text // 32),
                "intermediate_size": 4 * text,
                "max_position_embeddings": config.window,
                "projection_dim": config.projection,
                "bos_token_id": tokenizer.bos_token_id,
                "eos_token_id": tokenizer.eos_token_id,
                "pad_token_id": tokenizer.pad_token_id,
            },
            vision_config={
                "hidden_size": vision,
                "num_hidden_layers": vision_layers,
                "num_attention_heads": max(1, vision // 32),
                "intermediate_size": 4 * vision,
                "image_size": config.size,
                "patch_size": config.patch,
                "projection_dim": config.projection,
            },
        )
    )
    with (
        torch.no_grad()
    ):  # CLIP's 0.02 suits long training; in a short one, words are learned sooner from more
        clip.text_model.embeddings.token_embedding.weight.mul_(5)
    return clip


def teach(config: TeachConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Train the teacher and write `out/model` (a stock HF CLIP folder) and `out/result.json`; returns the result."""
    state = PartialState(cpu=training.cpu)
    if not config.captions or not config.images:
        raise InputError("teach needs --captions FILE and --images FOLDER")
    inputs = {"captions": config.captions, "images": config.images}
    with state.main_process_first():
        folder = open_run(out, "teach", {**asdict(config), "train": asdict(training)}, inputs)
    if (done := finished(folder)) is not None:
        return done

    everything = read_captions(config.captions)
    images = keep_listed(everything, config.listing) if config.listing else everything
    images, gaps = present(images, config.images, config.skip_missing)
    held_out: list[Captioned] = []
    if config.eval_listing or config.eval_captions:
        pool = read_captions(config.eval_captions) if config.eval_captions else everything
        held_out = keep_listed(pool, config.eval_listing) if config.eval_listing else pool
        held_out, _ = present(held_out, config.images, config.skip_missing)

    with state.main_process_first():
        if not (folder / "tokenizer").exists() and state.is_main_process:
            learned = clip_tokenizer(
                [c for image in images for c in image.captions], config.vocabulary
            )
            learned.save_pretrained(folder / "tokenizer")
    tokenizer = load_tokenizer(folder / "tokenizer")
    torch.manual_seed(seed_of(training.seed, "init"))
    model = TwoTowers(small_clip(config, tokenizer), tokenizer)
    texts = WindowInput(tokenizer, config.window, max_windows=1)
    samples = CaptionSamples(
        images, config.images, config.size, texts, shift=config.shift, flip=config.flip
    )
    result: dict[str, Any] = {
        "images": len(images),
        "missing_images": gaps,
        "parameters": _count(model),
    }
    if not config.untrained:
        result |= train(model, [Contrast(model.sizes)], samples, training, folder)
    if held_out:
        samples = CaptionSamples(held_out, config.images, config.size, texts, augment=False)
        result["retrieval"] = retrieval(model, samples)
    if state.is_main_process:
        with disk_errors(folder / "model"):
            model.export(folder / "model")
        write_json(folder / "result.json", result)
        Checkpoints(folder / "checkpoints").clear()
    state.wait_for_everyone()
    return result


@torch.no_grad()
def retrieval(model: TwoTowers, samples: CaptionSamples, batch: int = 128) -> dict[str, float]:
    """Text-to-image and image-to-text recall at 1, 5 and 10 in percent, every caption a query (any caption counts)."""
    model.eval()
    device = model.mean.device
    texts, images = [], []
    for start in range(0, len(samples.texts), batch):
        some = collate(samples.texts.get(range(start, min(start + batch, len(samples.texts)))))
        texts.append(model(some.to(device)).text_embedding.cpu())
    for start in range(0, len(samples), batch):
        some = collate(samples.get(range(start, min(start + batch, len(samples))), ()))
        images.append(model(some.to(device)).image_embedding.cpu())
    scores = (torch.cat(texts) @ torch.cat(images).T).numpy()  # (captions, images)
    owner = np.repeat(np.arange(len(samples)), np.diff(samples.first))
    own = scores[np.arange(len(owner)), owner]
    text_rank = (scores > own[:, None]).sum(1)
    best = np.array(
        [scores[samples.first[i] : samples.first[i + 1], i].max() for i in range(len(samples))]
    )
    image_rank = (scores > best[None]).sum(0)
    found = {"images": float(len(samples)), "captions": float(len(owner))}
    for name, rank in (("text_to_image", text_rank), ("image_to_text", image_rank)):
        found |= {f"{name}_r@{k}": round(100 * float((rank < k).mean()), 2) for k in (1, 5, 10)}
    return found


def _count(model: TwoTowers) -> int:
    return sum(p.numel() for p in model.parameters())
