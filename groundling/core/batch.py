"""The inputs of a model (`Batch`) and its outputs (`EncoderOutput`).

Sizes, everywhere: B samples, C choices of each (1 unless the task is multiple choice), N = B x C rows, T text
tokens, K raw words, W windows of S tokens, V visual-side tokens, R regions, D/E widths. Inputs and features have
one entry per row, the choices of a sample one after the other; labels have one entry per sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar, cast

import numpy as np
import torch
from torch import Tensor

from groundling.core.errors import InputError

IGNORE = -100
"""Label of a position that no loss may score (PyTorch's convention)."""

FORWARD_BATCH = 64
"""Samples in a forward pass without gradient, where no setting says otherwise."""

Tags = tuple[tuple[int, int, int], ...]
"""Spans of a text: first character, last character + 1, number of the object or phrase that the span names."""

T = TypeVar("T")


def require(value: T | None, name: str, who: str) -> T:
    """The value of the field `name`; raises InputError if it is None, because `who` needs it."""
    if value is None:
        raise InputError(f"{who} needs `{name}`, which this data or this model does not provide")
    return value


class GoldBoxes(NamedTuple):
    """The gold boxes of an example, in pixels of its image."""

    boxes: np.ndarray
    """(G, 4): x1, y1, x2, y2."""
    image_size: tuple[int, int]
    """Width and height of the image."""


@dataclass(frozen=True)
class Example:
    """One example, as read from its file."""

    id: str
    """Unique in its split; the seed key of every random choice for this example."""
    text: str
    """The text, or the first of two texts."""
    text_pair: str | None = None
    """The second text, if there is one."""
    label: float | int | np.ndarray | None = None
    """A class, a number, or soft targets: (K, 2) pairs of class and score, with one K in a split."""
    choices: tuple[str, ...] = ()
    """Second texts, one of which is right; each forms a row with `text`."""
    images: tuple[str, ...] = ()
    """Ids of the images in a region store."""
    region_tags: Tags = ()
    """Spans of `text` that name objects of the image (VCR) or are phrases of a caption (Flickr30k Entities)."""
    choice_region_tags: tuple[Tags, ...] = ()
    """The tags of each of `choices`."""
    tag_lists: tuple[tuple[int, ...], ...] = ()
    """For `text` and then for each of `choices`: the first characters of tags that belong to a list
    of several objects (VCR); empty if unknown.
    """
    gold_boxes: GoldBoxes | None = None
    """The gold boxes, where the answer is a region."""
    official_id: str = ""
    """The example's id in the data set's own files, scorer and evaluation server."""
    object_count: int = 0
    """Number of annotated objects of the image (0: none). Tags number them from 0 in annotation order."""
    object_names: tuple[str, ...] = ()
    """The name of each annotated object; empty if unknown."""
    mentioned_objects: tuple[int, ...] = ()
    """The annotated objects that the question, answers or rationales of the item mention, in
    ascending order (VCR); empty if unknown.
    """
    part_starts: tuple[int, ...] = ()
    """Characters at which a new part of `text` begins, such as the answer after its question (VCR)."""
    prompt_suffix: str = ""
    """Text that an objective's head appends for the model alone, such as a [MASK].

    Image teachers read the text without it.
    """


@dataclass(frozen=True)
class TextRow:
    """One tokenised text of one row, without padding."""

    input_ids: np.ndarray
    """(T,) int64."""
    special_tokens_mask: np.ndarray
    """(T,) bool: added by the tokenizer, not part of the text."""
    word_ids: np.ndarray
    """(T,) int64: index of the raw word that the token belongs to, -1 for none."""
    token_type_ids: np.ndarray
    """(T,) int64: 0 first text, 1 second text."""
    pad_token_id: int
    """Id of the padding token; the attention mask alone marks padding."""
    window_index: np.ndarray | None = None
    """(T,) int64: index of the window in a CLIP text tower; None for a text encoder."""
    region_index: np.ndarray | None = None
    """(T,) int64: the region that a token names (VCR's tags), -1 for none."""
    part_index: np.ndarray | None = None
    """(T,) int64: index of the part (question 0, answer 1, rationale 2); None: no parts."""

    def take(self, places: np.ndarray) -> TextRow:
        """The tokens at these positions; all fields are indexed alike."""
        tokens = {name: one for name, one in vars(self).items() if isinstance(one, np.ndarray)}
        return replace(self, **{name: one[places] for name, one in tokens.items()})


@dataclass(frozen=True)
class RegionRow:
    """The regions of one row's images, most confident first; `data/regions` stores them."""

    features: np.ndarray
    """(R, D) float32."""
    boxes: np.ndarray
    """(R, 4) float32: x1, y1, x2, y2 as shares of the image's width and height."""
    confidence: np.ndarray
    """(R,) float32, 0..1; 1 for annotated boxes and the whole image."""
    image_index: np.ndarray
    """(R,) int64: index of the image among the row's images."""
    is_whole_image: np.ndarray
    """(R,) bool: True for a region that is the whole image."""
    classes: np.ndarray | None = None
    """(R, C) float32: the detector's distribution over classes."""
    masked: np.ndarray | None = None
    """(R,) bool: regions whose features are hidden from the model, which uses a learned vector there."""
    segmentation: np.ndarray | None = None
    """(R, 14, 14) bool: the cells of the box that the object fills (VCR's segmentation masks)."""

    def __len__(self) -> int:
        return len(self.boxes)

    def take(self, places: np.ndarray | slice) -> RegionRow:
        """The regions at these positions, given as numbers, a mask (R,) or a slice; all fields are indexed alike."""
        return RegionRow(**{name: values[places] for name, values in self.fields().items()})

    @staticmethod
    def concatenate(rows: Sequence[RegionRow]) -> RegionRow:
        """The regions of several rows, concatenated; a field that the first row lacks is omitted."""
        if len(rows) == 1:
            return rows[0]
        columns = {name: [row.fields()[name] for row in rows] for name in rows[0].fields()}
        return RegionRow(**{name: np.concatenate(values) for name, values in columns.items()})

    def fields(self) -> dict[str, np.ndarray]:
        """All fields that are not None, by name: arrays (R, ...)."""
        return {name: values for name, values in vars(self).items() if values is not None}


@dataclass(frozen=True)
class Sample:
    """One example, tokenised and decoded once; objectives modify copies of it."""

    id: str
    """The id of its example; the seed key of every random choice for this sample."""
    text: TextRow | None = None
    """Input of a text encoder."""
    clip: TextRow | None = None
    """Input of the model's own CLIP text tower."""
    word_type_ids: np.ndarray | None = None
    """(K,) int64: one number per raw word, equal for equal words."""
    pixels: np.ndarray | None = None
    """(3, H, W) uint8; one image for all choices."""
    regions: RegionRow | None = None
    """Regions that a single-stream model reads together with the text."""
    labels: Mapping[str, np.ndarray] = field(default_factory=dict)
    """By name: () or (L,) for a sample; (T,) and (R, ...) for a row's tokens and regions."""
    features: Mapping[str, np.ndarray] = field(default_factory=dict)
    """Features of this row from frozen teachers, by name: (...)."""
    teacher_inputs: Mapping[str, Sample] = field(default_factory=dict)
    """Inputs of teachers that run during training, by teacher.

    Equal inputs have equal ids, and no objective changes them.
    """
    truncated_tokens: int = 0
    """Number of truncated tokens of the text."""
    truncated_regions: int = 0
    """Number of truncated regions: those that did not fit together with the text."""
    choices: tuple[Sample, ...] = ()
    """The rows of a multiple-choice example, in place of its own. All samples of a data set have C of them."""
    example: Example | None = None
    """The example that this row was made from."""

    @property
    def rows(self) -> tuple[Sample, ...]:
        """The choices, or the sample itself if it has none."""
        return self.choices or (self,)

    def each_row(self, change: Callable[[Sample], Sample]) -> Sample:
        """A copy with `change` applied to every row."""
        return self.with_rows([change(row) for row in self.rows])

    def with_rows(self, rows: Sequence[Sample], truncated_tokens: int = 0) -> Sample:
        """A copy with other rows, and with more truncated tokens."""
        changed = replace(self, choices=tuple(rows)) if self.choices else rows[0]
        total = self.truncated_tokens + truncated_tokens
        return replace(changed, truncated_tokens=total) if truncated_tokens else changed

    def with_label(self, name: str, value: np.ndarray) -> Sample:
        """A copy with the label `name` added: () or (L,) for a sample, (T,) or (R, ...) for a row."""
        return replace(self, labels={**self.labels, name: value})


@dataclass(frozen=True)
class Tokens:
    """Inputs of the text encoder in a batch."""

    input_ids: Tensor
    """(N, T) long."""
    attention_mask: Tensor
    """(N, T) bool: True at tokens, False at padding."""
    special_tokens_mask: Tensor
    """(N, T) bool: added by the tokenizer; True in padding."""
    word_ids: Tensor
    """(N, T) long: the raw word that a token belongs to, -1 for none."""
    token_type_ids: Tensor
    """(N, T) long: 0 first text, 1 second text."""
    region_index: Tensor | None = None
    """(N, T) long: the region that a token names, -1 for none."""
    part_index: Tensor | None = None
    """(N, T) long: the part of the text that a token belongs to; None for models without parts."""

    @property
    def ordinary(self) -> Tensor:
        """(N, T) bool: True at the text's own tokens, False at special ones and padding."""
        return self.attention_mask & ~self.special_tokens_mask

    def last(self, states: Tensor) -> Tensor:
        """The state (N, D) at each row's last token, of states (N, T, D); padding stands right of the tokens."""
        last = self.attention_mask.sum(1) - 1
        return states[torch.arange(len(states), device=states.device), last]


@dataclass(frozen=True)
class Regions:
    """The regions of a batch."""

    features: Tensor
    """(N, R, D) float."""
    boxes: Tensor
    """(N, R, 4) float: x1, y1, x2, y2 as shares of width and height."""
    mask: Tensor
    """(N, R) bool: True at regions, False at padding."""
    image_index: Tensor
    """(N, R) long: index of the image among the row's images."""
    is_whole_image: Tensor
    """(N, R) bool: True for a region that is the whole image."""
    confidence: Tensor
    """(N, R) float."""
    classes: Tensor | None = None
    """(N, R, C) float."""
    masked: Tensor | None = None
    """(N, R) bool: features are zero, and the model uses its learned vector there."""
    segmentation: Tensor | None = None
    """(N, R, 14, 14) bool: the cells of a box that its object fills."""


@dataclass(frozen=True)
class ClipWindows:
    """Inputs of a CLIP text tower in a batch: each row has only as many windows as its text needs."""

    input_ids: Tensor
    """(W, S) long."""
    attention_mask: Tensor
    """(W, S) bool."""
    row_index: Tensor
    """(W,) long: the row that a window belongs to."""
    flat_position: Tensor
    """(W, S) long: position of a token in the flat (N * V) layout; 0 where mask is False."""
    eot_index: Tensor
    """(W,) long: index of each window's end token, its last token."""
    token_type_ids: Tensor
    """(W,) long: 0 first text, 1 second text."""
    key_mask: Tensor
    """(N, V) bool."""
    special_tokens_mask: Tensor
    """(N, V) bool."""
    word_ids: Tensor
    """(N, V) long, -1 for none."""
    pad_token_id: int = 0
    """The tokenizer's padding id, for towers that attend to padding (SigLIP)."""

    def flatten_states(self, states: Tensor) -> Tensor:
        """States per window (W, S, D), concatenated per row: (N, V, D), zeros at padding."""
        rows, tokens = self.key_mask.shape
        places = rows * tokens
        # Padding is written to one extra position, which is cut off: indexing by a mask would
        # synchronise with the GPU to count its entries.
        slot = torch.where(self.attention_mask, self.flat_position, places)
        flat = states.new_zeros(places + 1, states.shape[-1])
        flat = flat.index_put((slot.flatten(),), states.flatten(0, 1))
        return flat[:places].view(rows, tokens, -1)


@dataclass(frozen=True)
class TeacherInput:
    """Input of a teacher that runs during training: equal rows once, and the index of each row of the batch."""

    batch: Batch
    """The U distinct rows."""
    row_index: Tensor
    """(N,) long: index of each row of the outer batch among the distinct rows."""


@dataclass(frozen=True)
class Batch:
    """All inputs of a model for B samples; frozen, use `dataclasses.replace`."""

    ids: tuple[str, ...]
    """B sample ids."""
    text: Tokens | None = None
    """Texts for a text encoder, N rows."""
    clip: ClipWindows | None = None
    """The same texts for the model's own CLIP text tower, N rows."""
    word_type_ids: Tensor | None = None
    """(N, K) long: equal numbers for equal raw words, -1 beyond a row's words."""
    pixels: Tensor | None = None
    """(B, 3, H, W) uint8, zeros beyond an image; the rows of a multiple-choice sample share one."""
    image_sizes: Tensor | None = None
    """(B, 2) long: width and height of each image in `pixels`."""
    regions: Regions | None = None
    """Regions of the images, N rows."""
    labels: Mapping[str, Tensor] = field(default_factory=dict)
    """By name: (B,) or (B, L) for samples, (N, T) and (N, R, ...) for rows; IGNORE where unlabelled."""
    features: Mapping[str, Tensor] = field(default_factory=dict)
    """Features from frozen teachers, by name: (N, ...)."""
    teacher_inputs: Mapping[str, TeacherInput] = field(default_factory=dict)
    """Inputs of teachers that run during training, by teacher."""
    perturbation: Mapping[str, Tensor] = field(default_factory=dict)
    """What an adversarial training step adds (VILLA, Gan et al. 2020, Section 3.2).

    `text` (N, T, E) to the word embeddings alone, before positions, segments and LayerNorm; `regions` (N, R, D) to the
    regions' features, after masked ones are replaced by the learned vector and before they are embedded.
    """
    truncated_tokens: int = 0
    """Number of truncated tokens in these texts, for the report."""
    truncated_regions: int = 0
    """Number of truncated regions of these rows, for the report."""
    cpu_batch: Batch | None = None
    """The batch before it was moved to an accelerator; None if it was not moved. See `cpu_copy`."""

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def cpu_copy(self) -> Batch:
        """The batch in CPU memory, if it was there before: reading it never synchronises with the GPU.

        It lacks tensors added on the device, except teacher features by which objectives count their examples.
        """
        return self if self.cpu_batch is None else self.cpu_batch

    @property
    def device(self) -> torch.device:
        """The device of its inputs."""
        inputs = self._first_input()
        return torch.device("cpu") if inputs is None else inputs.device

    @property
    def rows(self) -> int:
        """N, the number of inputs: samples times choices."""
        inputs = self._first_input()
        return len(self.ids) if inputs is None else len(inputs)

    def _first_input(self) -> Tensor | None:
        if self.text is not None:
            return self.text.input_ids
        if self.clip is not None:
            return self.clip.key_mask
        if self.word_type_ids is not None:
            return self.word_type_ids
        return self.pixels if self.regions is None else self.regions.boxes

    @property
    def choices(self) -> int:
        """C, the number of rows of each sample."""
        return self.rows // len(self.ids)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Batch:
        """The batch on another device; on an accelerator, `cpu_batch` is the CPU batch."""
        moved = _each_tensor(self, lambda tensor: tensor.to(device, non_blocking=non_blocking))
        has_left_cpu = self.cpu_copy.device.type == "cpu" and moved.device.type != "cpu"
        return replace(moved, cpu_batch=self.cpu_copy if has_left_cpu else None)

    def pin_memory(self) -> Batch:
        """The batch in page-locked memory (called by `DataLoader`)."""
        return _each_tensor(self, lambda tensor: tensor.pin_memory())

    def flat_indices(self, make_mask: Callable[[Batch], Tensor]) -> Tensor:
        """Flat indices (n,) long at which a mask is true, on the batch's device.

        `make_mask` computes the mask from a batch; it is called with `cpu_copy`, so nothing synchronises with the GPU.
        """
        indices = make_mask(self.cpu_copy).flatten().nonzero().squeeze(1)
        return to_device(indices, self.device)

    def require(self, needs: Sequence[str], who: str) -> None:
        """Raise InputError for the first of `needs` (fields, `labels.x`, `features.x`) that is missing."""
        for need in needs:
            part, _, name = need.partition(".")
            value = self.__dict__.get(part)
            if name and value is not None:
                value = value.get(name)
            require(value, need, who)


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor copied to a device, without synchronising."""
    if device.type == "cuda":
        # A copy from pageable memory would wait for the work that is queued before it.
        tensor = tensor.pin_memory()
    return tensor.to(device, non_blocking=True)


def select(values: Tensor, places: Tensor) -> Tensor:
    """Rows (n, ...) of values (A, B, ...) at flat indices (n,) long into A x B; see `Batch.flat_indices`."""
    return values.flatten(0, 1).index_select(0, places)


def _each_tensor(value: T, change: Callable[[Tensor], Tensor]) -> T:
    changed: object = value
    if isinstance(value, Tensor):
        changed = change(value)
    elif isinstance(value, Mapping):
        changed = {key: _each_tensor(inner, change) for key, inner in value.items()}
    elif is_dataclass(value) and not isinstance(value, type):
        names = [one.name for one in fields(value) if one.name != "cpu_batch"]
        inner = {name: _each_tensor(value.__dict__[name], change) for name in names}
        changed = replace(value, **inner)
    return cast(T, changed)


@dataclass(frozen=True)
class EncoderOutput:
    """All outputs of a model for a batch; a field is None if the model has no such output."""

    text: Tensor | None = None
    """(N, T, D): last layer of the text encoder alone, which is the part that is exported."""
    pooler_output: Tensor | None = None
    """(N, D): the text encoder's own pooler."""
    sentence_embedding: Tensor | None = None
    """(N, S): the text encoder's states, pooled as its sentence-transformers configuration specifies."""
    visual: Tensor | None = None
    """(N, V, Dv): CLIP tokens before the cross-modal encoder; regions (single stream) after it."""
    joint_text: Tensor | None = None
    """(N, T, D): the text side after the cross-modal encoder."""
    joint_visual: Tensor | None = None
    """(N, V, Dv): the visual side after the cross-modal encoder."""
    text_embeds: Tensor | None = None
    """(N, E): text embeddings of two-tower models, unit length."""
    image_embeds: Tensor | None = None
    """(B, E): image embeddings of two-tower models, unit length."""
    scale: Tensor | None = None
    """(): inverse temperature of two-tower models."""
    bias: Tensor | None = None
    """(): bias of two-tower models that are trained with a sigmoid."""
    input_embeddings: Tensor | None = None
    """(vocabulary, E): input embeddings of the text side, for tied heads."""
    clip_input_embeddings: Tensor | None = None
    """(vocabulary, Ev): input embeddings of the CLIP side, for tied heads."""
    region_embedding_weight: Tensor | None = None
    """(D, features): weight that projects a region's features, for tied heads."""
    layers: Sequence[Tensor] | None = None
    """Outputs (N, T, D) of the text encoder's embeddings and of each of its layers; see `Objective.reads_layers`."""
    encode_again: Callable[..., Tensor] | None = None
    """Runs the text encoder over the same text again, with gradients and new dropout; see `Objective.reads_layers`.

    `encode_again(attention_mask, layers)` returns the output (N, T, D) of the first `layers` layers, by default of all.
    `attention_mask` (N, T, T) bool: which positions (columns) each position (row) may read; by default all but padding.
    """
    pool_states: Callable[[Tensor], Tensor] | None = None
    """Pools the states (N, T, D) of another pass as `sentence_embedding` (N, S); None without one."""
    heads: Mapping[str, Tensor] = field(default_factory=dict)
    """Outputs of the objectives' heads, by objective: `supervised` (B, outputs). See `Objective.compute_logits`."""


class OutputSizes(NamedTuple):
    """Widths of a model's outputs, from which heads are built; 0 if the model has no such output."""

    text: int = 0
    """D, the width of the text states."""
    input_embeddings: tuple[int, int] = (0, 0)
    """Vocabulary size and width of the text side's input embeddings."""
    visual: int = 0
    """Dv, the width of the visual states."""
    clip_input_embeddings: tuple[int, int] = (0, 0)
    """Vocabulary size and width of the CLIP side's input embeddings."""
    pooler_output: int = 0
    """Width of the model's own pooler."""
    sentence_embedding: int = 0
    """S, the width of the sentence embedding of a sentence-transformers model."""
    teacher: int = 0
    """Width of the frozen teacher's features; 0 without a teacher."""
    teacher_image: int = 0
    """Width of the frozen teacher's image features; 0 if it reads no images."""
    regions: int = 0
    """Width of a region's features; 0 if the model reads no regions."""
    classes: int = 0
    """Number of region classes, background included."""
    background: bool = True
    """Whether the first class is background. False where every class is a thing, as in a store of your own."""
    config: Any = None
    """Configuration of the text encoder, by which its masked-LM head is made; None: BERT's head."""
    epsilon: float = 1e-12
    """LayerNorm epsilon of the text encoder."""
    causal: bool = False
    """Whether a token of the text encoder reads those before it alone."""


def collate(samples: Sequence[Sample]) -> Batch:
    """Pad samples to the longest of the batch, field by field; raises InputError for a text without tokens."""
    counts = sorted({len(sample.rows) for sample in samples})
    if len(counts) > 1:
        raise InputError(f"samples with {counts} choices cannot share a batch")
    rows = [row for sample in samples for row in sample.rows]
    for row in rows:
        if row.text is not None and not len(row.text.input_ids):  # only padding would be read
            raise InputError(f"example {row.id}: the tokenizer gives no tokens for its text")
    words = _present(rows, "word_type_ids")
    pixels, extent = _pad_images(_present(samples, "pixels"))
    labels = _by_name([sample.labels for sample in samples], IGNORE)
    if samples[0].choices:
        labels |= _by_name([row.labels for row in rows], IGNORE)
    return Batch(
        ids=tuple(sample.id for sample in samples),
        text=_tokens(_present(rows, "text")),
        clip=_windows(_present(rows, "clip")),
        word_type_ids=_stack(words, -1) if words else None,
        pixels=pixels,
        image_sizes=extent,
        regions=_regions(_present(rows, "regions")),
        labels=labels,
        features=_by_name([row.features for row in rows], 0),
        teacher_inputs={
            name: _teacher_input([row.teacher_inputs[name] for row in rows])
            for name in rows[0].teacher_inputs
        },
        truncated_tokens=sum(sample.truncated_tokens for sample in samples),
        truncated_regions=sum(sample.truncated_regions for sample in samples),
    )


def _present(rows: Sequence[Sample], field_name: str) -> list[Any]:
    return [vars(row)[field_name] for row in rows if vars(row)[field_name] is not None]


def _by_name(rows: Sequence[Mapping[str, np.ndarray]], fill: int) -> dict[str, Tensor]:
    return {name: _stack([row[name] for row in rows], fill) for name in rows[0]}


def _teacher_input(inputs: Sequence[Sample]) -> TeacherInput:
    place: dict[str, int] = {}
    distinct: list[Sample] = []
    row = []
    for sample in inputs:
        if sample.id not in place:
            place[sample.id] = len(distinct)
            distinct.append(sample)
        row.append(place[sample.id])
    return TeacherInput(collate(distinct), torch.tensor(row))


TOKEN_FILLS = {
    "special_tokens_mask": True,
    "word_ids": -1,
    "token_type_ids": 0,
    "region_index": -1,
    "part_index": 0,
}
"""Padding values of the fields of a text's tokens, besides their ids."""


def _tokens(rows: Sequence[TextRow]) -> Tokens | None:
    if not rows:
        return None
    ids = [row.input_ids for row in rows]
    columns = {}
    for name, fill in TOKEN_FILLS.items():
        values = [vars(row)[name] for row in rows]
        if any(value is not None for value in values):  # a text without tags may be among others
            blank = (np.full(len(one), fill) for one in ids)
            own = [b if value is None else value for value, b in zip(values, blank, strict=True)]
            columns[name] = _stack(own, fill)
    return Tokens(_stack(ids, rows[0].pad_token_id), _mask(ids), **columns)


def _regions(rows: Sequence[RegionRow]) -> Regions | None:
    if not rows:
        return None
    columns = _by_name([row.fields() for row in rows], 0)
    return Regions(mask=_mask([row.boxes for row in rows]), **columns)


def _windows(rows: Sequence[TextRow]) -> ClipWindows | None:
    if not rows:
        return None
    ids = [row.input_ids for row in rows]
    pad_token_id = rows[0].pad_token_id
    width = max(len(row) for row in ids)
    tokens: list[np.ndarray] = []
    slots: list[np.ndarray] = []
    owner: list[int] = []
    types: list[int] = []
    for number, row in enumerate(rows):
        window = require(row.window_index, "window_index", "a CLIP text tower")
        starts = np.flatnonzero(np.diff(window, prepend=-1))
        for places in np.split(np.arange(len(window)), starts[1:]):
            tokens.append(row.input_ids[places])
            slots.append(places + number * width)
            owner.append(number)
            types.append(int(row.token_type_ids[places[0]]))
    return ClipWindows(
        input_ids=_stack(tokens, pad_token_id),
        attention_mask=_mask(tokens),
        row_index=torch.tensor(owner),
        flat_position=_stack(slots, 0),
        eot_index=torch.tensor([len(token) - 1 for token in tokens]),
        token_type_ids=torch.tensor(types),
        key_mask=_mask(ids),
        special_tokens_mask=_stack([row.special_tokens_mask for row in rows], True),
        word_ids=_stack([row.word_ids for row in rows], -1),
        pad_token_id=pad_token_id,
    )


def _mask(rows: Sequence[np.ndarray]) -> Tensor:
    return _stack([np.ones(len(row), bool) for row in rows], False)


def _stack(values: Sequence[np.ndarray], fill: int) -> Tensor:
    """Arrays (...) that may differ in their first axis, padded with `fill` and stacked: (N, ...)."""
    if values[0].ndim == 0:
        return torch.from_numpy(np.stack(values))
    longest = max(len(value) for value in values)
    out = np.full((len(values), longest, *values[0].shape[1:]), fill, values[0].dtype)
    for i, value in enumerate(values):
        out[i, : len(value)] = value
    return torch.from_numpy(out)


def _pad_images(pixels: Sequence[np.ndarray]) -> tuple[Tensor | None, Tensor | None]:
    """Pads arrays (3, H, W) with zeros to (B, 3, H, W), and returns their widths and heights (B, 2)."""
    if not pixels:
        return None, None
    sizes = np.array([picture.shape[:0:-1] for picture in pixels])
    out = np.zeros((len(pixels), 3, sizes[:, 1].max(), sizes[:, 0].max()), np.uint8)
    for i, picture in enumerate(pixels):
        out[i, :, : picture.shape[1], : picture.shape[2]] = picture
    return torch.from_numpy(out), torch.from_numpy(sizes)
