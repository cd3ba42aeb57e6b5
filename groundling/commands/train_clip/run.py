"""Train a small CLIP on captioned images, from scratch or from an existing CLIP."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, PreTrainedTokenizerBase

from groundling.commands.train_clip import CLIP_TRAINING, TrainClipConfig
from groundling.core.rng import derive_seed
from groundling.data.captions.captions import (
    CaptionedImage,
    find_images,
    has_splits,
    keep_listed,
    read_captions,
)
from groundling.data.image_samples import CaptionedImageDataset, PixelMaker
from groundling.data.samples import ClipRowEncoder
from groundling.models.clip import ClipDualEncoder, load_clip_dual_encoder
from groundling.models.loading import load_tokenizer, precision_note
from groundling.objectives import in_batch_negatives_note
from groundling.objectives.clip_contrastive import ClipContrastiveLoss
from groundling.runs.folder import PREPARED, whole_folder
from groundling.runs.run import Run
from groundling.settings.training import EvaluationSettings, TrainingArguments
from groundling.stats.retrieval import MEAN, retrieval
from groundling.training.evaluation import Evaluator
from groundling.training.held_out_loss import (
    selection_bias_note,
    training_overlap_note,
)
from groundling.training.loop import train

# A new CLIP: its tokenizer, trained on captions, and its untrained towers.

START = "<|startoftext|>"
END = "<|endoftext|>"
WORD_END = "</w>"
"""CLIP's mark of the end of a word."""
HEAD_WIDTH = 32
"""Width of an attention head."""
WORD_SPREAD = 5.0
"""Factor on the initial word embeddings. CLIP's standard deviation of 0.02 suits long training; \
in short training words are learned sooner from larger embeddings."""


def clip_tokenizer(texts: Sequence[str], vocabulary: int) -> CLIPTokenizer:
    """CLIP's byte-pair tokenizer with merges learned from `texts`; adds start and end tokens.

    Args:
        texts: training texts of the merges.
        vocabulary: maximum vocabulary size, start and end token included; texts of few words yield fewer tokens.
    """
    template = CLIPTokenizer().backend_tokenizer
    learner = Tokenizer(BPE(end_of_word_suffix=WORD_END))
    learner.normalizer = template.normalizer
    learner.pre_tokenizer = template.pre_tokenizer
    alphabet = sorted(ByteLevel.alphabet())
    endings = [letter + WORD_END for letter in alphabet]
    trainer = BpeTrainer(
        vocab_size=vocabulary - 2,
        initial_alphabet=alphabet,
        # Numbered here: the trainer would number them in hash order, and it breaks ties by number.
        special_tokens=endings,
        end_of_word_suffix=WORD_END,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    # The tokenizer shows its merges only in its JSON form, each as a pair of tokens. (Any: transformers takes pairs,
    # but annotates them as strings.)
    merges: list[Any] = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    merged = [left + right for left, right in merges]
    tokens = dict.fromkeys([*alphabet, *endings, *merged, START, END])
    ids = {token: number for number, token in enumerate(tokens)}
    return CLIPTokenizer(vocab=ids, merges=merges)


def small_clip(
    tokenizer: PreTrainedTokenizerBase,
    *,
    vision: tuple[int, int],
    text: tuple[int, int],
    window: int,
    projection: int,
    size: int,
    patch: int,
) -> CLIPModel:
    """An untrained HF CLIP; its weights follow torch's global seed.

    Args:
        tokenizer: of its text tower.
        vision: width and layers of the vision tower.
        text: width and layers of the text tower.
        window: positions of the text tower.
        projection: width of the joint space.
        size: image side, pixels.
        patch: patch side, pixels.
    """
    vision_width, vision_layers = vision
    text_width, text_layers = text
    text_config = {
        "vocab_size": len(tokenizer),
        "hidden_size": text_width,
        "num_hidden_layers": text_layers,
        "num_attention_heads": max(1, text_width // HEAD_WIDTH),
        "intermediate_size": 4 * text_width,
        "max_position_embeddings": window,
        "projection_dim": projection,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision_config = {
        "hidden_size": vision_width,
        "num_hidden_layers": vision_layers,
        "num_attention_heads": max(1, vision_width // HEAD_WIDTH),
        "intermediate_size": 4 * vision_width,
        "image_size": size,
        "patch_size": patch,
        "projection_dim": projection,
    }
    clip = CLIPModel(
        CLIPConfig(projection_dim=projection, text_config=text_config, vision_config=vision_config)
    )
    with torch.no_grad():
        clip.text_model.embeddings.token_embedding.weight.mul_(WORD_SPREAD)
    return clip


COUNTS = ("images", "captions")
"""Counts among the scores of `retrieval`."""


def train_clip(config: TrainClipConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Train the CLIP and write `model`, a stock HF CLIP folder; returns the result.

    Raises InputError if captions or images are missing or malformed.
    """
    data = _data(config)
    images = data.images
    run.counts |= {"images": len(images), "missing images": data.missing}
    model, cut = _model(run, images, config, training)
    contrast = ClipContrastiveLoss(model.sizes)
    run.note(*data.notes, *_learning_rate_note(config.model, training))
    if config.model:
        run.note(*precision_note(config.model))
    if not config.untrained:
        run.note(*in_batch_negatives_note([contrast], training))
    window = model.clip.config.text_config.max_position_embeddings
    size = model.clip.config.vision_config.image_size
    texts = ClipRowEncoder(model.tokenizer, window, max_windows=1)
    make_dataset = partial(
        CaptionedImageDataset,
        folder=config.images,
        size=size,
        captions=texts,
        make_pixels=cut,
    )
    samples = make_dataset(images, shift=config.max_shift, flip=config.flip)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    result: dict[str, Any] = {
        "images": len(images),
        "missing_images": data.missing,
        "parameters": parameters,
    }
    if config.model:
        result["model"] = config.model
    held_out = make_dataset(data.held_out, augment=False) if data.held_out else None
    if not config.untrained:
        evaluator = (
            None
            if held_out is None
            else _make_retrieval_evaluator(model, held_out, config.examining)
        )
        result |= train(model, [contrast], samples, training, run.folder, evaluator=evaluator)
        run.note(*selection_bias_note(result))
    if held_out is not None:
        result["retrieval"] = retrieval(model, held_out)
    run.save(lambda folder: model.export(folder / "model"))
    return result


def _make_retrieval_evaluator(
    model: ClipDualEncoder,
    held_out: CaptionedImageDataset,
    examining: EvaluationSettings,
) -> Evaluator | None:
    """Evaluator of retrieval, run every --eval-every epochs and judged by mean recall; None without
    --eval-every.
    """

    def measure() -> dict[str, float]:
        found = [retrieval(model, held_out)]
        broadcast_object_list(found)  # processes must not diverge by rounding
        return {name: value for name, value in found[0].items() if name not in COUNTS}

    return Evaluator(examining, "held-out images", MEAN, measure)


def _learning_rate_note(model: str, training: TrainingArguments) -> list[str]:
    """Note if the learning rate is too high for an existing CLIP."""
    if not model or training.lr < CLIP_TRAINING.lr:
        return []
    return [
        f"model={model}: learning rate {training.lr:g} is for a CLIP from scratch and would undo its pre-training; "
        "use e.g. lr=1e-5"
    ]


def _model(
    run: Run, images: Sequence[CaptionedImage], config: TrainClipConfig, training: TrainingArguments
) -> tuple[ClipDualEncoder, PixelMaker | None]:
    """The existing CLIP and its image preprocessing, or a new one, with a tokenizer trained on the
    captions.
    """
    if config.model:
        return load_clip_dual_encoder(config.model)
    with run.state.main_process_first():
        place = run.folder / PREPARED / "tokenizer"
        tokenizer = _tokenizer(place, images, config.vocab_size, run.state)
    torch.manual_seed(derive_seed(training.seed, "init"))
    clip = small_clip(
        tokenizer,
        vision=config.vision_tower,
        text=config.text_tower,
        window=config.context_length,
        projection=config.projection_dim,
        size=config.size,
        patch=config.patch_size,
    )
    return ClipDualEncoder(clip, tokenizer), None


@dataclass(frozen=True)
class _CaptionData:
    """Training and evaluation data of a CLIP."""

    images: list[CaptionedImage]
    missing: int
    """Number of training images that are missing."""
    held_out: list[CaptionedImage]
    """Evaluation images; empty without evaluation settings."""
    notes: list[str]


def _data(config: TrainClipConfig) -> _CaptionData:
    """Training and evaluation images; raises InputError if they are missing or malformed."""
    settings = config.caption_settings
    captions = read_captions(config.captions, settings.caption_splits, settings.columns)
    images = captions.images
    if config.image_list:
        images = keep_listed(images, config.image_list)
    found = find_images(images, config.images, captions.path)
    images = found.select_images(config.skip_missing, config.images)
    missing = len(found.missing)
    notes = list(captions.notes)
    if not config.eval_image_list and not config.eval_captions and not config.eval_splits:
        return _CaptionData(images, missing, [], notes)
    if config.eval_captions or config.eval_splits:
        file = config.eval_captions or config.captions
        splits = config.eval_splits
        if settings.caption_splits and not splits and has_splits(file):
            splits = settings.caption_splits
        captions = read_captions(file, splits, settings.columns)
    held_out = captions.images
    if config.eval_image_list:
        held_out = keep_listed(held_out, config.eval_image_list)
    found = find_images(held_out, config.images, captions.path)
    held_out = found.select_images(config.skip_missing, config.images)
    notes += captions.notes
    notes += training_overlap_note(
        [one.file for one in held_out], [one.file for one in images], "images"
    )
    return _CaptionData(images, missing, held_out, list(dict.fromkeys(notes)))


def _tokenizer(
    folder: Path, images: Sequence[CaptionedImage], vocabulary: int, state: PartialState
) -> PreTrainedTokenizerBase:
    """The run's tokenizer, trained on the captions by the main process and loaded by all others."""
    if state.is_main_process and not folder.exists():
        captions = [caption for image in images for caption in image.captions]
        with whole_folder(folder.parent) as partial:
            clip_tokenizer(captions, vocabulary).save_pretrained(partial / folder.name)
    return load_tokenizer(folder)
