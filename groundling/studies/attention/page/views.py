"""A model on the page: its inputs from a text and a photo, its words, boxes, attention and answer.

Fine-tuned and pre-trained models, text encoders, and models of transformers that can be inspected only.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import Batch, Example, RegionRow, Sample, collate, require
from groundling.core.errors import InputError, raise_first
from groundling.core.output_types import MultipleChoice, RegionSelection, Regression
from groundling.data.regions import InMemoryRegions, RegionSource, RegionStore
from groundling.data.regions.samples import ImageSampleBuilder, ImageSources
from groundling.data.samples import SampleDataset, TextDataset
from groundling.data.text import word_spans
from groundling.models.attention import AttentionMap, PositionKind, SequencePositions
from groundling.models.loading import Encoder
from groundling.prediction import Candidate, FineTunedModel, load
from groundling.prediction.model_description import detection_settings
from groundling.prediction.predictions import make_predictions, model_folder
from groundling.prediction.similarity import load_match_head
from groundling.settings.input_settings import RegionSettings
from groundling.studies.attention.commands import VisualizeConfig
from groundling.studies.attention.inspected_models import is_fine_tuned
from groundling.studies.attention.models import PatchReader, PatchStore
from groundling.vision import StoreRegionExtractor
from groundling.vision_language import RegionEncoder
from groundling.vision_language.loading import load_encoder

WORDS = "words"
BOXES = "boxes"
BLOCKS = ((WORDS, WORDS), (WORDS, BOXES), (BOXES, WORDS))
"""Query and key sides on the page, without attention among boxes, which would be most bytes."""
OF_PATCHES = (*BLOCKS, (BOXES, BOXES))
"""The same for patches, with attention among them."""
IMAGE_PLACES = (PositionKind.REGION, PositionKind.WHOLE_IMAGE, PositionKind.IMAGE_CLASS)
END = "[END]"
"""Label of the positions that an architecture adds at the end."""
WEIGHT_STEPS = 255
"""A weight is stored in steps of 1 / WEIGHT_STEPS of its row's largest weight."""
ROW_MAX_STEPS = 65535
"""A row's largest weight is stored in steps of 1 / ROW_MAX_STEPS."""


@dataclass(frozen=True)
class WordView:
    """A word of the text, or one special token."""

    text: str
    """The word as written."""
    word_index: int = -1
    """Its index among the text's words, for any tokenizer; -1: not a word of the text."""
    tokens: int = 1
    """Number of its positions in the sequence."""


@dataclass(frozen=True)
class RegionBoxesView:
    """The boxes that a model reads from an image: a detector's regions, or patches."""

    boxes: np.ndarray = field(default_factory=lambda: np.zeros((0, 4), np.float32))
    """(R, 4): x1, y1, x2, y2 as shares of the photo's width and height; a model of text has none."""
    is_whole_image: np.ndarray = field(default_factory=lambda: np.zeros(0, bool))
    """(R,) bool: the whole image or, with patches, the class token."""
    names: Sequence[str] = ()
    """Class name of each; empty if unknown."""
    are_patches: bool = False
    """Whether they are patches, whose attention to each other is shown, too."""

    def title(self, number: int) -> str:
        """A region's label: its number, with the whole image not counted, and its name."""
        if self.is_whole_image[number]:
            return "class token" if self.are_patches else "whole image"
        name = self.names[number] if self.names else ""
        return f"{number - int(self.is_whole_image[:number].sum())} {name}".strip()


@dataclass
class LayerView:
    """The attention of one layer."""

    name: str
    """`self`, the stream for a layer of one of two (`image`, `text`), or e.g. `text over regions`."""
    number: int
    """Counted from 0 among the layers of this name."""
    heads: int
    blocks: dict[tuple[str, str], np.ndarray] = field(default_factory=dict)
    """(heads, rows, columns) by query and key side, see `BLOCKS`."""
    even: dict[str, np.ndarray] = field(default_factory=dict)
    """(rows,) by query side: the share of one position under even attention."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the page."""
        blocks = {
            f"{row}_{column}": pack_attention(block) for (row, column), block in self.blocks.items()
        }
        even = {row: shares.round(6).tolist() for row, shares in self.even.items()}
        header = {"name": self.name, "number": self.number, "heads": self.heads}
        return {**header, "blocks": blocks, "even": even}


@dataclass(frozen=True)
class ModelAnswer:
    """A model's answer to an image and a text."""

    title: str
    ranked: Sequence[tuple[str, float | None]]
    """The most likely answers, best first, with probabilities; None for a regression."""


@dataclass
class ModelAttentionView:
    """One model's words, boxes and attention for an image and a text."""

    words: list[WordView]
    boxes: RegionBoxesView
    layers: list[LayerView]
    notes: list[str] = field(default_factory=list)
    """Notes for the reader, one line each."""
    answer: ModelAnswer | None = None
    """The model's answer; None if it has no head for it."""

    def to_json(self) -> dict[str, Any]:
        """The JSON object of the page."""
        return {
            "words": [[word.text, word.word_index, word.tokens] for word in self.words],
            "boxes": np.round(self.boxes.boxes, 4).tolist(),
            "whole": np.flatnonzero(self.boxes.is_whole_image).tolist(),
            "names": list(self.boxes.names),
            "patches": self.boxes.are_patches,
            "layers": [layer.to_json() for layer in self.layers],
            "notes": self.notes,
            "answer": None if self.answer is None else vars(self.answer),
        }

    def layer_of(self, head: str) -> tuple[LayerView, int]:
        """The layer of LAYER-HEAD, and the head's index in it; raises InputError without it."""
        usable = [layer for layer in self.layers if (WORDS, BOXES) in layer.blocks]
        for layer in usable:
            names = [f"{layer.number}-{place}" for place in range(layer.heads)]
            if head in names:
                return layer, names.index(head)
        raise InputError(
            f"heat_maps={head}: no such head; expected LAYER-HEAD of a layer whose words attend to boxes"
        )


def pack_attention(block: np.ndarray) -> str:
    """Attention (H, rows, columns) in base64: row maxima in two bytes, then a byte per weight.

    The error of a weight is at most half of 1/255 of its row's stored maximum, which is rounded up
    to a multiple of 1/65,535.
    """
    heads, rows, columns = block.shape
    largest = block.max(-1) if columns else np.zeros((heads, rows))
    row_maxima = np.ceil(largest * ROW_MAX_STEPS).clip(0, ROW_MAX_STEPS).astype("<u2")
    scale = np.maximum(row_maxima, 1).astype(np.float64) / ROW_MAX_STEPS
    steps = np.rint(block / scale[..., None] * WEIGHT_STEPS).clip(0, WEIGHT_STEPS).astype(np.uint8)
    return base64.b64encode(row_maxima.tobytes() + steps.tobytes()).decode()


def collect_view(
    student: Encoder, sample: Sample, boxes: RegionBoxesView, layers: Collection[int], device: str
) -> ModelAttentionView:
    """Run a model on a sample of one row and collect the attention of `layers` (empty: all).

    Raises InputError if the model gives no attention maps, or has no such layer.
    """
    collector = _WordBoxMapCollector(sample, student, boxes, layers)
    batch: Batch = collate([sample]).to(device)
    with torch.no_grad():
        student(batch, attention=collector)
    if not collector.layer_views:
        count = len({number for _, number in collector.layers_with_maps})
        raise InputError(f"layers: the model has {count} layers with attention maps")
    return ModelAttentionView(collector.words, boxes, collector.layer_views)


class _WordBoxMapCollector:
    """Collects the attention maps of one row, reduced to words and boxes."""

    def __init__(
        self, sample: Sample, student: Encoder, boxes: RegionBoxesView, layers: Collection[int]
    ) -> None:
        self.words, self.word_of = _words(sample, student)
        self.first_added = len(self.words)
        """Index of the first word for a position that the architecture adds."""
        self.boxes = boxes
        self.blocks = OF_PATCHES if boxes.are_patches else BLOCKS
        self.layers = layers
        self.layer_views: list[LayerView] = []
        self.layers_with_maps: set[tuple[str, int]] = set()

    def __call__(self, attention_map: AttentionMap) -> None:
        query, _, key = attention_map.name.partition(" over ")
        name = query if key in ("", query) else attention_map.name
        self.layers_with_maps.add((name, attention_map.layer))
        if self.layers and attention_map.layer not in self.layers:
            return
        # One matrix per side: the word or box of each position.
        rows = self._sides(attention_map.rows)
        columns = self._sides(attention_map.columns)
        weights = attention_map.weights[0].double().cpu().numpy()
        for row, column in self.blocks:
            of_row = rows[row]
            of_column = columns[column]
            if not of_row.any() or not of_column.any():
                continue
            # From a word of several tokens: their mean; to it: their sum (Clark et al. 2019, Section 4.1).
            mean = of_row / np.maximum(of_row.sum(1, keepdims=True), 1)
            block = mean @ weights @ of_column.T
            layer = self._layer(name, attention_map.layer, len(weights))
            layer.blocks[row, column] = block
            layer.even[row] = _even(weights, mean)

    def _layer(self, name: str, number: int, heads: int) -> LayerView:
        for layer in self.layer_views:
            if (layer.name, layer.number) == (name, number):
                return layer
        self.layer_views.append(LayerView(name, number, heads))
        return self.layer_views[-1]

    def _sides(self, positions: SequencePositions) -> dict[str, np.ndarray]:
        """(K, S) and (R, S) of 0 and 1: the word and the box of each of S positions."""
        kinds = positions.kinds[0].tolist()
        numbers = positions.indices[0].tolist()
        added = self.first_added + sum(kind == PositionKind.ADDED for kind in kinds)
        self.words += [WordView(END)] * (added - len(self.words))
        words = np.zeros((len(self.words), len(kinds)))
        boxes = np.zeros((len(self.boxes.boxes), len(kinds)))
        for place, (kind, number) in enumerate(zip(kinds, numbers, strict=True)):
            if kind in IMAGE_PLACES:
                boxes[number, place] = 1
            elif kind == PositionKind.ADDED:
                words[self.first_added + number, place] = 1
            elif kind != PositionKind.PADDING:
                words[self.word_of[number], place] = 1
        return {WORDS: words, BOXES: boxes}


def _even(weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The share (K,) of a position under even attention, from weights (H, S, S') and rows (K, S).

    A masked position, such as a later word in a causal model, has a weight of exactly 0 in every head.
    """
    readable = (weights > 0).any(0).sum(1)
    shares: np.ndarray = rows @ (1 / np.maximum(readable, 1))
    return shares


def _words(sample: Sample, student: Encoder) -> tuple[list[WordView], list[int]]:
    """A row's words, of which each special token is one, and the index of each token's word."""
    row = require(sample.text, "text", "visualize")
    text = require(student.inputs(max(1, len(row.input_ids)))[0], "text", "visualize")
    example = require(sample.example, "example", "visualize")
    written = [example.text] if example.text_pair is None else [example.text, example.text_pair]
    raw = [part[start:stop] for part in written for start, stop in word_spans(part)]
    words: list[WordView] = []
    word_of = []
    before = -1
    for number, is_special, word in zip(
        row.input_ids, row.special_tokens_mask, row.word_ids, strict=True
    ):
        is_raw = word >= 0 and not is_special
        if is_raw and word == before:
            words[-1] = replace(words[-1], tokens=words[-1].tokens + 1)
        elif is_raw:
            words.append(WordView(raw[word], int(word)))
        else:
            words.append(WordView(text.engine.id_to_token(int(number)) or "?"))
        before = word if is_raw else -1
        word_of.append(len(words) - 1)
    return words, word_of


# -- the model ---------------------------------------------------------------------------------------------------------
MAX_LENGTH = 128
"""Most tokens of a text, for a model whose folder does not record the length."""


class InspectedModel:
    """A model whose attention is shown on the page."""

    def __init__(self, source: str, device: str, config: VisualizeConfig) -> None:
        """Load the model and, if it reads regions, their source.

        Raises InputError if there is no such model, or the page does not support its kind.
        """
        self.name = source
        self.device = device
        self.config = config
        self.fine_tuned: FineTunedModel | None = None
        self.folder = str(model_folder(Path(source)))
        """Folder of its weights, or a hub id."""
        self.notes: list[str] = []
        if is_fine_tuned(source):
            self.fine_tuned = load(source, device=device, trust=config.trust)
            self.student: Encoder = self.fine_tuned.student
            self.notes = self.fine_tuned.notes
        else:
            loaded = load_encoder(
                self.folder, config.model_format, config.architecture, for_inspection=True
            )
            self.student = loaded.to(device).eval()
        student = self.student
        if student.clip_backbone is not None or student.inputs(MAX_LENGTH)[1] is not None:
            raise InputError(
                f"model={source}: expected a vision-language model, CLIP or a text encoder, not one that reads texts "
                "as a CLIP (for XDBERT's cross-modal encoder there is `groundling attention`)"
            )
        if isinstance(student, PatchReader) and student.note:
            self.notes = [student.note]
        self.reads_image, reads_pixels = False, False
        self.facts: Mapping[str, Any] = {}
        """The facts recorded about its training regions."""
        if isinstance(student, RegionEncoder):
            self.reads_image = student.sizes.regions > 0
            reads_pixels = student.region_source == "pixels"
            self.facts = student.regions_provenance
        if self.fine_tuned is not None:
            self.reads_image = self.reads_image and self.fine_tuned.description.reads_regions
            self.facts = self.fine_tuned.description.regions or self.facts
        self._features = not reads_pixels
        """Whether regions need features; a model that reads pixels computes its own."""
        # Words are not tied to regions; only some fine-tuned heads read such tags.
        settings = RegionSettings(
            config.regions, allow_region_mismatch=config.allow_region_mismatch, object_tags=False
        )
        self.inputs = ImageSampleBuilder(
            settings,
            features=self._features,
            region_finder=lambda images: self.region_finder(images),
        )
        self.store = self.inputs.store
        if self.store is not None and self.reads_image and isinstance(student, RegionEncoder):
            self.inputs.check(student, provenance=self.facts)

    # -- regions -------------------------------------------------------------------------------------------------------

    @cached_property
    def region_finder(self) -> StoreRegionExtractor:
        """Finds regions of photos that the store lacks, like those of training or else of the store."""
        manifests = [self.facts, *([] if self.store is None else [self.store.manifest])]
        recorded = next((one for one in manifests if one.get("made_with")), None)
        if recorded is None:
            raise InputError(
                f"model={self.name}: this photo is not in the regions store, and neither model nor store records "
                "how regions were found; make a store of it with `groundling regions`"
            )
        expected = {} if self.config.allow_region_mismatch else self.facts
        return StoreRegionExtractor(
            detection_settings(recorded), expected, self.device, self._features
        )

    def _image_inputs(self, image: str, photo: Path) -> ImageSources:
        """A photo as the model reads it; raises InputError if it cannot, or without regions."""
        if isinstance(self.student, PatchReader):
            return ImageSources(PatchStore(self.student, {image: photo}))
        sources = self.inputs.image_sources([image], {image: photo})
        raise_first([f"{photo}: {fault}" for fault in sources.faults.values()])
        return sources

    def _names(self, image: str, store: RegionSource, row: RegionRow) -> list[str]:
        """Each region's class name from a detector or file; empty for the whole image."""
        names: Sequence[str] = ()
        classes = None
        if isinstance(store, InMemoryRegions):
            found = store.regions[image]
            names = self.region_finder.extractor.facts["class_names"]
            classes = None if found.classes is None else found.classes[int(found.has_whole_image) :]
        elif isinstance(store, RegionStore):
            names = store.manifest.get("class_names", ())
            classes = None if row.classes is None else row.classes[~row.is_whole_image]
        if classes is None or not names:
            return []
        if classes.ndim == 2:
            classes = np.where(classes.max(1) > 0, classes.argmax(1), -1)
        things = iter(names[number] if 0 <= number < len(names) else "" for number in classes)
        return ["" if is_whole else next(things, "") for is_whole in row.is_whole_image]

    # -- attention and answers -----------------------------------------------------------------------------------------

    def view(
        self,
        example: Example,
        photo: Path | None,
        full_example: Example | None = None,
    ) -> ModelAttentionView:
        """The model's attention in a text and a photo, and its answer.

        `full_example`: the example with all of its choices, if `example` has the text of one choice alone.

        Raises InputError if the photo cannot be read, or its regions cannot be found.
        """
        notes = []
        sources = ImageSources()
        if self.reads_image and photo is not None:
            (image,) = example.images
            sources = self._image_inputs(image, photo)
        elif photo is not None:
            notes.append("This model reads the text only.")
        elif isinstance(self.student, PatchReader) and self.student.needs_photo:
            raise InputError(f"model={self.name}: this model reads photos; also pass image")
        else:
            example = replace(example, images=())
        (sample,) = self._samples(example, sources).get([0], ())
        if sample.truncated_tokens:
            notes.append(
                f"{sample.truncated_tokens} tokens of the text did not fit and were truncated."
            )
        boxes = RegionBoxesView()
        if sources.store is not None and sample.regions is not None:
            row = sample.regions
            names = self._names(example.images[0], sources.store, row)
            is_patch = isinstance(self.student, PatchReader)
            boxes = RegionBoxesView(row.boxes, row.is_whole_image, names, is_patch)
        view = collect_view(self.student, sample, boxes, self.config.layers, self.device)
        blocks = [block for layer in view.layers for block in layer.blocks.values()]
        if not all(np.isfinite(block).all() for block in blocks):
            raise InputError(f"model={self.name}: attention has NaN; the weights may be damaged")
        view.notes += notes
        if self.fine_tuned is not None:
            full = replace(full_example or example, images=example.images)
            view.answer = fine_tuned_answer(self.fine_tuned, full, sources, boxes)
        elif isinstance(self.student, RegionEncoder):
            view.answer = match_answer(self.student, self.folder, sample, self.device)
        return view

    def _samples(self, example: Example, sources: ImageSources) -> SampleDataset:
        """The example as the model reads it, with the text that a fine-tuned head appends."""
        if self.fine_tuned is not None:
            (tagged,) = self.fine_tuned.inputs.select_tags([example])
            if not isinstance(self.fine_tuned.form, MultipleChoice):
                tagged = self.fine_tuned.objective.head.prepare_example(tagged)
            return self.fine_tuned.make_samples([tagged], sources)
        text, clip = self.student.inputs(MAX_LENGTH)
        texts = TextDataset(self.inputs.select_tags([example]), text, clip)
        if not isinstance(self.student, RegionEncoder):
            return texts
        return self.inputs.samples(texts, self.student, sources)


# -- answers -----------------------------------------------------------------------------------------------------------
MAX_ANSWERS = 3
"""Number of answers shown, the most likely first."""
MATCH = "Image and text match"


def fine_tuned_answer(
    fitted: FineTunedModel, example: Example, sources: ImageSources, boxes: RegionBoxesView
) -> ModelAnswer | None:
    """A fine-tuned model's answer, as from `groundling predict`; the example has all choices.

    None without the choices or the phrase that the model is asked about. `boxes`: the boxes on the page, whose titles
    name a selected region.
    """
    form = fitted.form
    lacks_choices = isinstance(form, MultipleChoice) and not example.choices
    lacks_phrase = form.head_input == "phrase" and not example.region_tags
    if lacks_choices or lacks_phrase:
        return None
    scores = fitted.scores([example], sources, fitted.unscored_task)
    (prediction,) = make_predictions(scores, form, [example], MAX_ANSWERS)

    def format_candidate(candidate: Candidate) -> str:
        if isinstance(form, RegionSelection):
            return f"box {boxes.title(int(candidate.answer))}"
        if isinstance(form, Regression):
            return f"{candidate.answer:.4g}"
        return str(candidate.answer) if candidate.choice is None else candidate.choice

    return ModelAnswer(
        "Answer",
        [(format_candidate(candidate), candidate.probability) for candidate in prediction.best],
    )


def match_answer(
    student: RegionEncoder, folder: str, sample: Sample, device: str
) -> ModelAnswer | None:
    """The probability that text and image match, by the head of `pretrain`; None without image or head."""
    match = None if sample.regions is None else load_match_head(student, folder, device)
    if match is None:
        return None
    batch = collate([sample]).to(device)
    with torch.no_grad():
        share = match.compute_logits(student(batch), batch).softmax(-1)[0, 1]
    return ModelAnswer(MATCH, [("yes", float(share))])
