"""A model on the page, its inputs from a text and a photo, and its answer.

Fine-tuned and pre-trained models, text encoders, and models of transformers that can be inspected
only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import Example, RegionRow, Sample, collate
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, RegionSelection, Regression
from groundling.data.regions import InMemoryRegions, RegionSource, RegionStore
from groundling.data.regions.samples import ImageSampleBuilder, ImageSources
from groundling.data.samples import SampleDataset, TextDataset
from groundling.models.loading import Encoder
from groundling.prediction import Candidate, FineTunedModel, load
from groundling.prediction.model_description import detection_settings
from groundling.prediction.predictions import make_predictions, model_folder
from groundling.settings.input_settings import RegionSettings
from groundling.studies.attention.answers import load_match_head
from groundling.studies.attention.commands import VisualizeConfig
from groundling.studies.attention.inspected_models import is_fine_tuned
from groundling.studies.attention.models import PatchReader, PatchStore
from groundling.studies.attention.page.attention_views import (
    ModelAnswer,
    ModelAttentionView,
    RegionBoxesView,
    collect_view,
)
from groundling.vision import StoreRegionExtractor
from groundling.vision_language import RegionEncoder
from groundling.vision_language.loading import load_encoder

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
            self.fine_tuned = load(source, device=device)
            self.student: Encoder = self.fine_tuned.student
            self.notes = self.fine_tuned.notes
        else:
            self.student = load_encoder(self.folder, for_inspection=True).to(device).eval()
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
        for fault in sources.faults.values():
            # The photo itself was read before, so a fault in a store means that it is of another image.
            where = ""
            if self.store is not None and image in self.store:
                where = f" in {self.store.folder}; make the store again or leave regions out"
            raise InputError(f"{photo}: {fault}{where}")
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
        if sample.text is None:
            notes.append("This model reads the photo only.")
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
) -> ModelAnswer:
    """A fine-tuned model's answer, as from `groundling predict`; the example has all choices.

    `boxes`: the boxes on the page, whose titles name a selected region.
    """
    form = fitted.form
    if isinstance(form, MultipleChoice) and not example.choices:
        return ModelAnswer("No answer: this model chooses among texts, and there are none")
    if form.head_input == "phrase" and not example.region_tags:
        return ModelAnswer(
            "No answer: this model finds the region of a phrase, and no phrase is marked"
        )
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


def match_answer(student: RegionEncoder, folder: str, sample: Sample, device: str) -> ModelAnswer:
    """The probability that text and image match, by the head of `pretrain`, if any."""
    match = None if sample.regions is None else load_match_head(student, folder, device)
    if match is None:
        what = "image to match" if sample.regions is None else "image-text matching head"
        return ModelAnswer(f"No answer: this model is not fine-tuned, and there is no {what}")
    batch = collate([sample]).to(device)
    with torch.no_grad():
        log_odds = match.attribution_target(student(batch), batch)
    return ModelAnswer(MATCH, [("yes", float(log_odds.sigmoid()))])
