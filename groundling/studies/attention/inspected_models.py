"""Models whose attention is analysed: their inputs, controls, and each answer as one number.

For a fine-tuned model, the number is the probability of the right answer; for a pre-trained one,
the log-odds that text and image match, or the log-probability of masked words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from groundling.core.batch import IGNORE, Batch, EncoderOutput, Example, RegionRow, Sample, require
from groundling.core.errors import InputError, raise_first
from groundling.core.metrics import Metric
from groundling.core.output_types import (
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.core.registry import require_instance, resolve
from groundling.core.rng import derive_seed, generator
from groundling.data.captions import (
    CaptionedImage,
    find_images,
    images_in_store,
    read_captions,
    with_store_ids,
)
from groundling.data.image_samples import image_files_by_id
from groundling.data.images import ImageInput
from groundling.data.regions import RegionSource, RegionStore
from groundling.data.regions.samples import ImageSampleBuilder, ImageSources, RegionLabeler
from groundling.data.samples import MappedDataset, SampleDataset, TextDataset
from groundling.models.formats import Encoder
from groundling.models.heads import init_lm_head, load_head
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction.fine_tuned import load
from groundling.prediction.model_description import FILE
from groundling.settings.fields import require_settings
from groundling.settings.input_settings import RegionSettings
from groundling.stats.resampling import derangement
from groundling.studies.attention.commands import AnalysedModelSettings, ModalityConfig
from groundling.studies.attention.models import PatchReader, PatchStore, pointing_game
from groundling.tasks import Task
from groundling.vision_language import RegionEncoder
from groundling.vision_language.loading import load_encoder

# Any model whose attention is analysed, its inputs, and its controls: features of other images,
# random weights.


class RegionModel:
    """A model of text and regions on its device, with its region store."""

    def __init__(self, config: AnalysedModelSettings, device: torch.device) -> None:
        """Raises InputError if the model reads no regions, or the store does not fit it."""
        self.config = config
        loaded = load_encoder(config.model, config.model_format, config.architecture)
        model = require_instance(loaded, RegionEncoder, f"{config.model}: reads no regions:")
        settings = RegionSettings(**vars(config.image_settings), object_tags=config.object_tags)
        self.inputs = ImageSampleBuilder(settings)
        self.inputs.check_pixels(model, config.model)
        self.store: RegionStore | None = None
        if not isinstance(model, PatchReader):
            require_settings(config, f"{config.model}: this model", "regions")
            self.inputs.check(model)
            self.store = self.inputs.store
        if config.untrained:
            randomize_weights(model, config.seed)
        # A text alone or a pair is read as in pre-training.
        model.prepare((), True)
        self.model = model.to(device).eval()

    def mark(self, usual: RegionLabeler) -> RegionLabeler:
        """The rule for right regions: the task's (`usual`), or `pointing_game` for patches."""
        return pointing_game if isinstance(self.model, PatchReader) else usual

    def samples(
        self, examples: Sequence[Example], partner: Mapping[str, str] | None = None
    ) -> SampleDataset:
        """Examples as the model reads them; with `partner`, features of each image's other image.

        Raises InputError if an example has no image, or an image no region.
        """
        model = self.model
        text, _ = model.inputs(self.config.max_length)
        texts = TextDataset(
            self.inputs.select_tags(examples), text, max_cached=0
        )  # each is read once
        files: dict[str, ImageInput] = {}
        if model.region_source != "features":
            files = image_files_by_id(
                texts, self.config.image_settings.images, "a model that reads pixels"
            )
        store: RegionSource | None = self.store
        if isinstance(model, PatchReader):
            store = PatchStore(model, files)
        assert store is not None  # only patches have none
        if partner is not None:
            store = OtherImageStore(store, partner)
        shown = {image: files[partner[image] if partner else image] for image in files}
        samples = self.inputs.samples(texts, model, ImageSources(store, shown))
        # The control with other images, hours later, would have no features for it.
        empty = [image for images in samples.images for image in images if not store.count(image)]
        raise_first([f"{image}: has no region" for image in empty])
        return samples


# -- controls ----------------------------------------------------------------------------------------------------------


def shuffle_images(images: Sequence[str], seed: int) -> dict[str, str]:
    """A permutation that maps every image to another one; the same for the same seed and images.

    Raises InputError for fewer than two images.
    """
    different = list(dict.fromkeys(images))
    if len(different) < 2:
        raise InputError(
            f"{len(different)} image, and the control with other images needs at least 2; turn the control off "
            "with shuffled_images_control=False or perturbed_inputs=False"
        )
    # The inverse, so that published numbers stay.
    others = np.argsort(derangement(len(different), generator(seed, "partners")))
    return {one: different[other] for one, other in zip(different, others, strict=True)}


class OtherImageStore(RegionSource):
    """A store in which every image keeps its boxes and has the region features of another image.

    A caption is read with the same number of regions in the same places, but with features that it
    does not describe. A head that is right with them uses the regions' positions, sizes or order.
    If the other image has fewer regions, its features are repeated.
    """

    def __init__(self, store: RegionSource, partner: Mapping[str, str]) -> None:
        """`partner`: the image whose features each image gets, see `shuffle_images`."""
        self.store = store
        self.partner = partner

    def count(self, image: str) -> int:
        """Number of an image's regions."""
        return self.store.count(image)

    def facts_of(self, image: str) -> Mapping[str, Any]:
        """Facts about the image whose boxes are read."""
        return self.store.facts_of(image)

    def __contains__(self, image: object) -> bool:
        return image in self.store

    def __getitem__(self, image: str) -> RegionRow:
        """The image's regions with the features of its partner's."""
        row = self.store[image]
        other = self.store[self.partner[image]]
        own_places = np.flatnonzero(~row.is_whole_image)
        places = np.flatnonzero(~other.is_whole_image)
        if not len(places):
            places = np.arange(len(other))
        features = row.features.copy()
        features[own_places] = other.features[np.resize(places, len(own_places))]
        if row.is_whole_image.any():
            # If the other image has no whole-image region, the mean of its regions replaces it, as in
            # `add_whole_image`.
            whole = (
                other.features[other.is_whole_image]
                if other.is_whole_image.any()
                else other.features
            )
            features[row.is_whole_image] = whole.mean(0)
        return replace(row, features=features)


def randomize_weights(model: Encoder, seed: int = 0) -> Encoder:
    """Replace the model's weights by random ones, as BERT's are initialised; a CNN stays.

    A control: results that remain with random weights are not due to training.
    """
    draws = torch.Generator().manual_seed(derive_seed(seed, "untrained"))
    for name, part in model.named_modules():
        if name.startswith("cnn."):
            continue
        if isinstance(part, nn.Linear | nn.Embedding):
            values = torch.randn(part.weight.shape, generator=draws) * 0.02
            part.weight.data.copy_(values)
        if isinstance(part, nn.Linear) and part.bias is not None:
            part.bias.data.zero_()
        if isinstance(part, nn.LayerNorm):
            part.reset_parameters()
    for weight in model.patch_parameters() if isinstance(model, PatchReader) else ():
        weight.data.copy_(torch.randn(weight.shape, generator=draws) * 0.02)
    return model


class Outcome:
    """Abstract: numbers that are measured for every example, from a model's output."""

    names: tuple[str, ...]
    """Labels of the columns of `values`."""
    target_name: str
    """Label of the number that `attribution_target` returns."""

    def prepare(self, samples: SampleDataset) -> SampleDataset:
        """The samples prepared for the outcome, such as with masked words; here as they are."""
        return samples

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, len(names)); NaN where a number is undefined for an example."""
        raise NotImplementedError

    def attribution_target(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B,): the output that is attributed to the inputs."""
        raise NotImplementedError


class MatchOutcome(Outcome):
    """How well text and image match, by the image-text matching head of pre-training."""

    names = ("log-odds of a match",)
    target_name = names[0]

    def __init__(self, head: ImageTextMatching) -> None:
        self.head = head

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, 1)."""
        return self.attribution_target(encoded, batch)[:, None]

    def attribution_target(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Log-odds of a match (B,), a difference of logits; for multiple choice, the mean."""
        logits = self.head.compute_logits(encoded, batch)
        return (logits[:, 1] - logits[:, 0]).view(len(batch), -1).mean(1)


class HiddenWordsOutcome(Outcome):
    """Log-probability of masked tokens (masked LM; every chosen token becomes [MASK])."""

    names = ("log-probability of a masked token", "accuracy on masked tokens")
    target_name = names[0]

    def __init__(self, head: MaskedLM, seed: int = 0) -> None:
        """`seed` draws the masked tokens, for each example by its id."""
        self.head = head
        self.seed = seed

    def prepare(self, samples: SampleDataset) -> SampleDataset:
        """The samples with masked tokens, at least one each."""
        return MappedDataset(samples, lambda sample: sample.each_row(self._hidden))

    def _hidden(self, row: Sample) -> Sample:
        text = require(row.text, "text", "a masked LM")
        draw = generator(self.seed, "hidden", row.id).random(len(text.input_ids))
        draw[text.special_tokens_mask] = np.inf
        chosen = (draw < self.head.settings.mask_rate) | (draw == draw.min())
        chosen &= ~text.special_tokens_mask
        ids = np.where(chosen, self.head.mask_id, text.input_ids)
        labels = np.where(chosen, text.input_ids, IGNORE)
        return replace(row, text=replace(text, input_ids=ids)).with_label(self.head.name, labels)

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, 2)."""
        labels = batch.labels[self.head.name]
        logits = self.head.compute_logits(encoded, batch).float()
        masked_ids = labels[labels != IGNORE]
        likely = logits.log_softmax(-1).gather(1, masked_ids[:, None])[:, 0]
        right = (logits.argmax(-1) == masked_ids).float()
        return torch.stack([_mean_of(likely, labels, batch), _mean_of(right, labels, batch)], 1)

    def attribution_target(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The mean log-probability (B,) of an example's masked tokens."""
        return self.values(encoded, batch)[:, 0]


def _mean_of(numbers: Tensor, labels: Tensor, batch: Batch) -> Tensor:
    """Means (B,) by example of `numbers`, one for each masked token in order."""
    row = (labels != IGNORE).nonzero()[:, 0] // batch.choices
    sums = numbers.new_zeros(len(batch)).index_add(0, row, numbers)
    counts = numbers.new_zeros(len(batch)).index_add(0, row, torch.ones_like(numbers))
    return sums / counts


PROBABILITY = "probability of the right answer"
ERROR = "squared error, negative"


class RightAnswerOutcome(Outcome):
    """A fine-tuned model's probability of the right answer, and its task's metrics."""

    target_name = "score of the right answer"

    def __init__(self, objective: SupervisedObjective, metrics: Sequence[Metric] = ()) -> None:
        """`metrics`: the first that is a mean over examples is measured."""
        self.objective = objective
        self.metrics = [one for one in metrics if one.is_mean][:1]
        first = ERROR if isinstance(objective.output_type, Regression) else PROBABILITY
        self.names = (first, *(one.name for one in self.metrics))

    def values(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(B, 1 + metrics)."""
        outputs = self.objective.outputs(encoded, batch)
        labels = batch.labels["label"]
        first = right_answer_probability(outputs, labels, self.objective.output_type)
        columns = [first.double().cpu()]
        predictions = self.objective.output_type.predict(outputs.detach().cpu().numpy())
        for metric in self.metrics:
            scored = outputs.detach().cpu().numpy() if metric.uses_scores else predictions
            columns.append(torch.from_numpy(metric.per_example(scored, labels.cpu().numpy())))
        return torch.stack(columns, 1)

    def attribution_target(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The right answer's score (B,) before softmax; the mean of several right regions."""
        outputs = self.objective.outputs(encoded, batch)
        form = self.objective.output_type
        if isinstance(form, Regression):
            return outputs[:, 0]
        weights = _right(outputs, batch.labels["label"], form)
        return (_scores(outputs, form) * weights).sum(1) / weights.sum(1).clamp(min=1)


def _scores(outputs: Tensor, form: OutputType) -> Tensor:
    """One score (B, K) for each answer; of UNITER's two per choice, the second."""
    if isinstance(form, MultipleChoice) and form.head_width == 2:
        return outputs[:, 1::2]
    return outputs


def _right(outputs: Tensor, labels: Tensor, form: OutputType) -> Tensor:
    """1 for right answers (B, K); for soft targets, the best one; all 0 if none is right."""
    scores = _scores(outputs, form)
    if isinstance(form, RegionSelection):
        return (labels > 0).to(scores.dtype)
    if isinstance(form, OpenAnswer) and labels.ndim == 3:
        place, credit = labels.unbind(-1)
        best = credit.where(place >= 0, -1.0).argmax(1, keepdim=True)
        is_given = (place >= 0) & (credit > 0)
        right = place.gather(1, best).clamp(min=0).long()
        weight = is_given.gather(1, best).to(scores.dtype)
        return torch.zeros_like(scores).scatter(1, right, weight)
    return torch.zeros_like(scores).scatter(1, labels.long()[:, None], 1.0)


def right_answer_probability(outputs: Tensor, labels: Tensor, form: OutputType) -> Tensor:
    """The softmax probability (B,) of the right answer, for any loss; NaN if none is right.

    For `Regression`, minus the squared error.
    """
    if isinstance(form, Regression):
        return -((outputs[:, 0] - labels) ** 2)
    scores = _scores(outputs, form)
    if isinstance(form, RegionSelection):
        scores = scores.masked_fill(labels < 0, -torch.inf)
    right = _right(outputs, labels, form)
    share = (scores.softmax(-1) * right).sum(1)
    return share.where(right.sum(1) > 0, torch.nan)


# -- models ------------------------------------------------------------------------------------------------------------


OutcomeName = Literal["best", "match", "words"]


def load_modality_model(
    config: AnalysedModelSettings,
    outcome: OutcomeName,
    device: torch.device,
    trust: Sequence[str] = (),
) -> ModalityModel:
    """Load the model; raises InputError if it reads no regions, or the stores do not fit it.

    `trust`: the user's own objects (MODULE:NAME) that a fine-tuned model's folder may import.
    """
    if is_fine_tuned(config.model):
        return FineTunedModalityModel(config, device, trust)
    return PretrainedModalityModel(config, outcome, device)


def is_fine_tuned(source: str) -> bool:
    """Whether `finetune` wrote the folder, so that it has a head and a task."""
    patterns = (FILE, f"model/{FILE}", f"seed-*/model/{FILE}")
    return any(any(Path(source).glob(pattern)) for pattern in patterns)


def load_match_head(
    model: Encoder, folder: str | Path, device: torch.device | str
) -> MatchOutcome | None:
    """The image-text matching head that `pretrain` saved with a model; None if there is none."""
    head = ImageTextMatching(model.sizes)
    if not all(load_head(Path(folder), part, name) for name, part in head.saved_modules().items()):
        return None
    return MatchOutcome(head.to(device).eval())


class PretrainedModalityModel(RegionModel):
    """A model that `pretrain` wrote, with its image-text matching head or its masked-LM head."""

    form: OutputType | None = None
    """Output type of a fine-tuned model."""
    notes: Sequence[str] = ()
    """Notes on its numbers, for the reader."""

    def __init__(
        self, config: AnalysedModelSettings, outcome: OutcomeName, device: torch.device
    ) -> None:
        """`outcome`: the head; `best`: the matching head if there is one."""
        super().__init__(config, device)
        folder = Path(config.model)
        self.outcome: Outcome | None = None
        """Its answer to an example as a number; None without a head."""
        if outcome != "words":
            self.outcome = load_match_head(self.model, folder, device)
        if outcome != "match" and self.outcome is None:
            self.outcome = self._words(folder, device, config.seed)

    def _words(self, folder: Path, device: torch.device, seed: int) -> HiddenWordsOutcome | None:
        mask = getattr(self.model.text_tokenizer, "mask_token_id", None)
        if mask is None:
            return None
        head = MaskedLM(self.model.sizes, mask_id=mask)
        if init_lm_head(head.head, folder) == "new":
            return None
        return HiddenWordsOutcome(head.to(device).eval(), seed)


class FineTunedModalityModel:
    """A model that `finetune` wrote, evaluated as in its training run."""

    def __init__(
        self, config: AnalysedModelSettings, device: torch.device, trust: Sequence[str] = ()
    ) -> None:
        """Raises InputError if it reads text alone."""
        self.fitted = load(config.model, device=str(device), trust=trust)
        student = self.fitted.student
        if not isinstance(student, RegionEncoder) or not self.fitted.description.reads_regions:
            raise InputError(
                f"{config.model}: this model reads only text; pass one that reads regions"
            )
        shown = config.image_settings
        if shown.max_regions or not config.object_tags:
            raise InputError(
                f"{config.model} always reads max_regions and object_tags as in its training; leave them out"
            )
        self.region_inputs = self.fitted.image_inputs(
            shown.regions, shown.images, allow_region_mismatch=shown.allow_region_mismatch
        )
        if config.untrained:
            randomize_weights(student, config.seed)
        self.model: RegionEncoder = student.to(device).eval()
        self.form: OutputType | None = self.fitted.form
        self.task = self.fitted.task
        self.outcome: Outcome | None = RightAnswerOutcome(self.fitted.objective, self.task.metrics)
        self.notes = self.fitted.notes

    def samples(
        self, examples: Sequence[Example], partner: Mapping[str, str] | None = None
    ) -> SampleDataset:
        """As its own head reads them; raises InputError for an image that cannot be read."""
        images = list(dict.fromkeys(image for one in examples for image in one.images))
        others = [] if partner is None else [partner[image] for image in images]
        sources = self.region_inputs.image_sources(list(dict.fromkeys([*images, *others])))
        raise_first([f"{image}: {fault}" for image, fault in sources.faults.items()])
        if partner is not None and sources.store is not None:
            photos = {image: sources.images[partner[image]] for image in images if sources.images}
            sources = replace(sources, store=OtherImageStore(sources.store, partner), images=photos)
        return self.fitted.samples(examples, sources, self.task.label_regions)


ModalityModel = PretrainedModalityModel | FineTunedModalityModel
"""A model that `modality` analyses, with its inputs and its outcome."""


def read_analysis_examples(
    subject: ModalityModel, config: ModalityConfig
) -> tuple[list[Example], Sequence[str]]:
    """The examples of a task, of a fine-tuned model's data, or of captions; and notes.

    Raises InputError if the data is missing or malformed, or an example has no image.
    """
    data = Path(config.data)
    if config.task:
        task = resolve("tasks", Task, config.task).with_answers_of(data)
        return task.read(data, config.split or task.dev[0]), ()
    if isinstance(subject, FineTunedModalityModel):
        inputs = subject.region_inputs
        _, parts = subject.fitted.labelled_splits(
            data, config.split, config.asking, config.label, inputs
        )
        return next(iter(parts.values())), ()
    captions = read_captions(data, (config.split,) if config.split else (), config.columns)
    photos = config.image_settings.images
    return _of_captions(captions.images, subject, photos), captions.notes


def _of_captions(
    images: Sequence[CaptionedImage], subject: RegionModel, folder: str
) -> list[Example]:
    """An example for every caption, with its image's id in the store or in a folder of photos."""
    store = subject.store
    if store is None and folder:
        images, _ = find_images(images, folder)
    images = with_store_ids(images)
    if isinstance(store, RegionStore):
        images, _ = images_in_store(images, store, store.folder)
    return [
        Example(f"{image.id}#{number}", caption, images=(image.id,))
        for image in images
        for number, caption in enumerate(image.captions)
    ]
