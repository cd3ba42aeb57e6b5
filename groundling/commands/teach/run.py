"""Train a small CLIP teacher on any set of captioned images, from scratch or from an existing CLIP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from transformers import PreTrainedTokenizerBase

from groundling.commands.teach import TEACHING, TeachConfig, check
from groundling.core.keyed import seed_of
from groundling.data.captions.captions import Captioned, Captions, has_splits, keep_listed
from groundling.data.captions.images import find_images
from groundling.data.captions.samples import CaptionSamples, Cut
from groundling.data.samples import WindowInput
from groundling.models.clip import TwoTowers, load_two_towers
from groundling.models.loading import load_tokenizer, precision_note
from groundling.models.new_clip import clip_tokenizer, small_clip
from groundling.objectives.contrast import Contrast
from groundling.objectives.making import fewer_negatives
from groundling.runs.folder import PREPARED, whole_folder
from groundling.runs.run import Run, say_notes
from groundling.settings.training import TrainConfig
from groundling.stats.retrieval import MEAN, retrieval
from groundling.training.exams import Exam
from groundling.training.held_out import exam_every, flattery, learned_too
from groundling.training.loop import train

COUNTS = ("images", "captions")
"""What `retrieval` tells besides scores."""


def teach(config: TeachConfig, training: TrainConfig, out: str | Path) -> dict[str, Any]:
    """Train the teacher and write `out/model` (a stock HF CLIP folder) and `out/result.json`; returns the result.

    Raises:
        InputError: captions or images are missing or malformed, or `out` holds another run.
    """
    check(config, training, out)
    settings = {**asdict(config), "train": asdict(training)}
    inputs = {"captions": config.captions, "images": config.images, "start": config.start}
    inputs |= {"eval_captions": config.eval_captions, "eval_listing": config.eval_listing}
    run = Run(out, "teach", settings, inputs, training.cpu, ["model"])
    if run.result is not None:
        return run.result

    data = _data(config)
    images = data.images
    model, cut = _model(run, images, config, training)
    contrast = Contrast(model.sizes)
    notes = [*data.notes, *_of_start(config, training)]
    notes += precision_note(config.start) if config.start else []
    notes += [] if config.untrained else fewer_negatives([contrast], training)
    say_notes(notes)
    window = model.clip.config.text_config.max_position_embeddings
    size = model.clip.config.vision_config.image_size
    texts = WindowInput(model.tokenizer, window, max_windows=1)
    seen = partial(CaptionSamples, folder=config.images, size=size, captions=texts, cut=cut)
    samples = seen(images, shift=config.shift, flip=config.flip)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    result: dict[str, Any] = {
        "images": len(images),
        "missing_images": data.missing,
        "parameters": parameters,
    }
    if config.start:
        result["start"] = config.start
    held_out = seen(data.held_out, augment=False) if data.held_out else None
    if not config.untrained:
        exam = _exam(model, held_out, config)
        result |= train(model, [contrast], samples, training, run.folder, exam=exam)
        remarks = flattery(result)
        say_notes(remarks)
        notes += remarks
    if notes:
        result["notes"] = notes
    if held_out is not None:
        result["retrieval"] = retrieval(model, held_out)
    return run.finish(result, lambda folder: model.export(folder / "model"))


def _exam(model: TwoTowers, held_out: CaptionSamples | None, config: TeachConfig) -> Exam | None:
    """Retrieval every --eval-every epochs, by its mean recall; None without held-out images."""
    if held_out is None:
        return None
    samples = held_out

    def measure() -> dict[str, float]:
        found = [retrieval(model, samples)]
        broadcast_object_list(found)  # what one process rounds otherwise must not part them
        return {name: value for name, value in found[0].items() if name not in COUNTS}

    return exam_every(config.examining, "held-out images", MEAN, measure)


def _of_start(config: TeachConfig, training: TrainConfig) -> list[str]:
    """What to say of settings for an existing CLIP; nothing of a new one."""
    if not config.start or training.lr < TEACHING.lr:
        return []
    return [
        f"--start {config.start}: a rate of {training.lr:g} is for a CLIP from scratch and undoes what this one knew; "
        "--lr 1e-5 is a gentle one"
    ]


def _model(
    run: Run, images: Sequence[Captioned], config: TeachConfig, training: TrainConfig
) -> tuple[TwoTowers, Cut | None]:
    """The existing CLIP and how it cuts pictures, or a new one, with a tokenizer learned from the captions."""
    if config.start:
        return load_two_towers(config.start)
    with run.state.main_process_first():
        tokenizer = _tokenizer(run.folder / PREPARED / "tokenizer", images, config, run.state)
    torch.manual_seed(seed_of(training.seed, "init"))
    return TwoTowers(small_clip(config, tokenizer), tokenizer), None


@dataclass(frozen=True)
class _Data:
    """What a teacher is trained and evaluated on."""

    images: list[Captioned]
    missing: int
    """Captioned images that are not there, of those to train on."""
    held_out: list[Captioned]
    """To evaluate on; none unless asked for."""
    notes: list[str]


def _data(config: TeachConfig) -> _Data:
    """Images to train on and to evaluate on; raises InputError if they are missing or malformed."""
    told = Captions(config.captions, config.caption_splits, config.columns).sound()
    images = keep_listed(told.images, config.listing) if config.listing else told.images
    there = find_images(images, config.images, told.path)
    images = there.kept(config.skip_missing, config.images)
    missing = len(there.missing)
    notes = [*told.guess, *told.notes, *there.notes]
    if not config.eval_listing and not config.eval_captions and not config.eval_splits:
        return _Data(images, missing, [], notes)
    if config.eval_captions or config.eval_splits:
        file = config.eval_captions or config.captions
        splits = config.eval_splits or config.caption_splits
        told = Captions(file, splits if has_splits(file) else config.eval_splits, config.columns)
        told.sound()
    held_out = keep_listed(told.images, config.eval_listing) if config.eval_listing else told.images
    there = find_images(held_out, config.images, told.path)
    held_out = there.kept(config.skip_missing, config.images)
    notes += [*told.notes, *there.notes]
    notes += learned_too([one.file for one in held_out], [one.file for one in images], "images")
    return _Data(images, missing, held_out, list(dict.fromkeys(notes)))


def _tokenizer(
    folder: Path, images: Sequence[Captioned], config: TeachConfig, state: PartialState
) -> PreTrainedTokenizerBase:
    """The run's tokenizer, learned from the training captions by the main process, read by all others."""
    if state.is_main_process and not folder.exists():
        captions = [caption for image in images for caption in image.captions]
        with whole_folder(folder.parent) as partial:
            clip_tokenizer(captions, config.vocabulary).save_pretrained(partial / folder.name)
    return load_tokenizer(folder)
