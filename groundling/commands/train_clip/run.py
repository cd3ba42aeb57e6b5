"""Train a small CLIP on captioned images, from scratch or from an existing CLIP."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate.utils import broadcast_object_list
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import CLIPConfig, CLIPModel, CLIPTokenizer, PreTrainedTokenizerBase

from groundling.commands.train_clip import TrainClipConfig
from groundling.core.errors import prefix_errors
from groundling.core.rng import derive_seed
from groundling.data.captions import (
    CaptionedImage,
    find_images,
    has_splits,
    keep_listed,
    read_captions,
)
from groundling.data.image_samples import (
    CaptionDraws,
    CaptionedImageDataset,
    CaptionedVectors,
    FrozenTexts,
)
from groundling.data.images import image_id
from groundling.data.samples import ClipRowEncoder
from groundling.data.vectors import VectorTable
from groundling.models.adapters import EncoderText, LockedDualEncoder, make_head
from groundling.models.clip import (
    ClipDualEncoder,
    ClipTextTower,
    load_clip_dual_encoder,
    make_clip_text_tower,
)
from groundling.models.hub import VECTORS
from groundling.models.loading import load_tokenizer
from groundling.models.text_encoder import load_text_encoder
from groundling.objectives.contrastive import ClipContrastiveLoss, SigmoidContrastiveLoss
from groundling.runs.folder import PREPARED, whole_folder
from groundling.runs.run import Run
from groundling.runs.run_report import training_card
from groundling.settings.training import TrainingArguments
from groundling.stats.retrieval import MEAN, retrieval
from groundling.teachers.vectors import image_teacher, vectors_of, write_vectors
from groundling.training.batch_sampler import DataSource
from groundling.training.evaluation import Evaluator
from groundling.training.fit import fit, training_overlap_note

CARD_PARTS = ("images", "parameters", "steps", "train_metrics", "retrieval")
"""What a model card says of a result."""

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
    """CLIP's byte-pair tokenizer with merges learned from `texts`, of at most `vocabulary` tokens."""
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


def small_clip(tokenizer: PreTrainedTokenizerBase, config: TrainClipConfig) -> CLIPModel:
    """An untrained HF CLIP; its weights follow torch's global seed."""
    dim = config.projection_dim

    def tower(width: int, layers: int) -> dict[str, int]:
        return {
            "hidden_size": width,
            "num_hidden_layers": layers,
            "num_attention_heads": max(1, width // HEAD_WIDTH),
            "intermediate_size": 4 * width,
            "projection_dim": dim,
        }

    text = tower(*config.text_tower) | {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": config.context_length,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    sides = {"image_size": config.size, "patch_size": config.patch_size}
    vision = tower(*config.vision_tower) | sides
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=dim))
    with torch.no_grad():
        clip.text_model.embeddings.token_embedding.weight.mul_(WORD_SPREAD)
    return clip


def train_clip(config: TrainClipConfig, training: TrainingArguments, run: Run) -> dict[str, Any]:
    """Train the CLIP and write `model`, a stock HF CLIP folder; returns the result."""
    splits = config.caption_settings.caption_splits
    images, missing = _read(config, run, config.captions, splits, config.image_list)
    run.counts |= {"images": len(images), "missing images": missing}
    held_out = _read_held_out(config, images, run)
    model, make_dataset = _model(run, images, config, training)
    samples = make_dataset(images, augment=True)
    held = make_dataset(held_out, augment=False) if held_out else None
    result: dict[str, Any] = {"images": len(images), "missing_images": missing}
    result["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    evaluator = None
    if held is not None:

        def measure() -> dict[str, float]:
            found = [retrieval(model, held)]
            broadcast_object_list(found)  # processes must not diverge by rounding
            del found[0]["images"], found[0]["captions"]
            return found[0]

        evaluator = Evaluator(config.examining, "held-out images", MEAN, measure)
    if not config.untrained:
        result |= fit(
            model,
            [_loss(model, config.loss)],
            ([DataSource(samples)], ()),
            training,
            run,
            evaluation=config.examining,
            evaluator=evaluator,
        )
    if config.model:
        result["model"] = config.model
    if held is not None:
        result["retrieval"] = retrieval(model, held)
    is_locked = isinstance(model, LockedDualEncoder)
    library, kind = "transformers", "CLIPTextModelWithProjection" if is_locked else "AutoModel"
    load = f'from transformers import {kind}\n\nmodel = {kind}.from_pretrained("FOLDER")'
    if is_locked and isinstance(model.text, EncoderText):
        library = "sentence-transformers"
        load = 'from sentence_transformers import SentenceTransformer\n\nmodel = SentenceTransformer("FOLDER")'
    starts = (config.model, config.image_model, config.text_model)
    card = training_card(
        f"A {'text encoder for image vectors' if is_locked else 'CLIP'}, trained with groundling",
        library,
        load,
        {
            "started from": ", ".join(Path(one).name for one in starts if one) or "new weights",
            "captions": Path(config.captions).name,
            **{name: result.get(name) for name in CARD_PARTS},
            "learning rate": training.lr,
            "seed": training.seed,
        },
    )
    run.save(lambda folder: _save(folder, model, [samples, held] if held else [samples], card))
    return result


def _save(
    folder: Path,
    model: ClipDualEncoder | LockedDualEncoder,
    data: Sequence[CaptionDraws],
    card: str,
) -> None:
    model.export(folder / "model")
    (folder / "model" / "README.md").write_text(card, encoding="utf-8")
    if isinstance(model, LockedDualEncoder):
        vectors: dict[str, np.ndarray] = {}
        for samples in data:
            assert isinstance(samples, CaptionedVectors)
            with torch.no_grad():
                some = model.embed_images(torch.from_numpy(samples.vectors).to(model.device))
            names = [image_id(image.file) for image in samples.captioned]
            vectors |= dict(zip(names, some.cpu().numpy(), strict=True))
        (folder / "vectors").mkdir()
        write_vectors(folder / "vectors/images-00000.npy", list(vectors), list(vectors.values()))


def _loss(model: ClipDualEncoder | LockedDualEncoder, name: str) -> ClipContrastiveLoss:
    is_sigmoid = model.is_siglip if name == "own" else name == "sigmoid"
    if not is_sigmoid:
        return ClipContrastiveLoss(model.sizes)
    if not model.is_siglip:
        model.start_sigmoid()
    return SigmoidContrastiveLoss(model.sizes)


MakeDataset = Callable[..., CaptionDraws]
"""Makes samples of captioned images; `augment`: their captions and views are drawn."""


def _model(
    run: Run, images: Sequence[CaptionedImage], config: TrainClipConfig, training: TrainingArguments
) -> tuple[ClipDualEncoder | LockedDualEncoder, MakeDataset]:
    if config.image_model:
        return _locked_model(run, images, config, training)
    if config.model:
        model, cut = load_clip_dual_encoder(config.model)
    else:
        tokenizer = _tokenizer(run, images, config)
        torch.manual_seed(derive_seed(training.seed, "init"))
        model, cut = ClipDualEncoder(small_clip(tokenizer, config), tokenizer), None
    text_config = model.clip.config.text_config
    texts = ClipRowEncoder(model.tokenizer, text_config.max_position_embeddings, max_windows=1)
    size = model.clip.config.vision_config.image_size

    def make_dataset(some: Sequence[CaptionedImage], augment: bool) -> CaptionedImageDataset:
        options: dict[str, Any] = {"shift": config.max_shift, "flip": config.flip}
        return CaptionedImageDataset(
            some,
            config.images,
            size,
            texts,
            augment=augment,
            make_pixels=cut,
            **(options if augment else {}),
        )

    return model, make_dataset


def _locked_model(
    run: Run, images: Sequence[CaptionedImage], config: TrainClipConfig, training: TrainingArguments
) -> tuple[LockedDualEncoder, MakeDataset]:
    """A text tower, new or from a text encoder, beside the frozen image features of `image_model`."""
    read, width = _image_vectors(config, run)
    torch.manual_seed(derive_seed(training.seed, "init"))
    tower: ClipTextTower
    if config.text_model:
        text = load_text_encoder(config.text_model)
        tokenizer = text.tokenizer
        head = make_head(text.sizes.text, config.projection_dim, config.head_layers)
        tower = EncoderText(text, head, config.freeze_text).to(run.state.device)
    else:
        tokenizer = _tokenizer(run, images, config)
        tower = make_clip_text_tower(small_clip(tokenizer, config))
    image = make_head(width, config.projection_dim, config.head_layers)
    texts = ClipRowEncoder(tokenizer, tower.context_length, max_windows=1)

    def make_dataset(some: Sequence[CaptionedImage], augment: bool) -> CaptionedVectors:
        samples = CaptionedVectors(some, read(some), texts, augment=augment)
        if isinstance(tower, EncoderText) and config.freeze_text:
            samples.texts = FrozenTexts(samples.texts, tower.vectors(samples.texts))
        return samples

    return LockedDualEncoder(tower, tokenizer, image), make_dataset


def _image_vectors(
    config: TrainClipConfig, run: Run
) -> tuple[Callable[[Sequence[CaptionedImage]], np.ndarray], int]:
    """A function from captioned images to their frozen features (n, E) float32, and the width E."""
    if config.image_model.startswith(VECTORS):
        table = VectorTable(config.image_model.removeprefix(VECTORS), "image")

        def find(images: Sequence[CaptionedImage]) -> np.ndarray:
            return table.read(table.rows_of([image_id(image.file) for image in images]).tolist())

        return find, table.width
    teacher = image_teacher(config.image_model, {}).to(run.state.device)

    def compute(images: Sequence[CaptionedImage]) -> np.ndarray:
        files = {image_id(image.file): Path(config.images, image.file) for image in images}
        teacher.files.update(files)
        return np.stack(list(vectors_of(teacher, "image", list(files))))

    return compute, teacher.image_width


def _tokenizer(
    run: Run, images: Sequence[CaptionedImage], config: TrainClipConfig
) -> PreTrainedTokenizerBase:
    folder = run.folder / PREPARED
    with run.state.main_process_first():  # the others load what it has trained
        if not (folder / "tokenizer").exists():
            captions = [caption for image in images for caption in image.captions]
            with whole_folder(folder) as partial:
                tokenizer = clip_tokenizer(captions, config.vocab_size)
                tokenizer.save_pretrained(partial / "tokenizer")
    return load_tokenizer(folder / "tokenizer")


def _read(
    config: TrainClipConfig, run: Run, file: str, splits: tuple[str, ...], listing: str
) -> tuple[list[CaptionedImage], int]:
    captions = read_captions(file, replace(config.caption_settings, caption_splits=splits))
    run.note(*(note for note in captions.notes if note not in run.notes))
    images = keep_listed(captions.images, listing)
    if not config.images:
        return images, 0
    with prefix_errors(file):
        return find_images(images, config.images, config.skip_missing)


def _read_held_out(
    config: TrainClipConfig, training: Sequence[CaptionedImage], run: Run
) -> list[CaptionedImage]:
    if not config.eval_image_list and not config.eval_captions and not config.eval_splits:
        return []
    file = config.eval_captions or config.captions
    splits = config.eval_splits
    if not splits and has_splits(file):
        splits = config.caption_settings.caption_splits
    images, _ = _read(config, run, file, splits, config.eval_image_list)
    names, trained = ([one.file for one in some] for some in (images, training))
    run.note(*training_overlap_note(names, trained, "images"))
    return images
