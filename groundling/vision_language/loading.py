"""Loads any model folder, makes vision-language models from a BERT, and makes task heads."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from groundling.core.errors import InputError, require_known
from groundling.core.output_types import OutputType
from groundling.core.registry import (
    import_object,
    is_import_path,
    registered,
    require_instance,
    resolve,
)
from groundling.data.regions import RegionStore
from groundling.models.adapters import ClipAdapterHead
from groundling.models.hub import CNN
from groundling.models.loading import Encoder, ModelFormat
from groundling.models.task_heads import HeadContext, TaskHead, UnpooledClsHead, make_plain_head
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.settings.fields import refuse_settings
from groundling.settings.input_settings import PixelInputSettings, VisualBertSettings
from groundling.vision_language import Architecture, RegionEncoder
from groundling.vision_language.end_to_end import SIDE, load_end_to_end, make_end_to_end_model
from groundling.vision_language.single_stream import JOIN, get_bert, read_join_description


def load_encoder(
    source: str | Path, model_format: str = "", architecture: str = "", for_inspection: bool = False
) -> Encoder:
    """Load the model of a hub id or folder, in a `ModelFormat` of this package or as a transformers encoder.

    `model_format` (MODULE:NAME): your own `ModelFormat` that loads it. `architecture` (MODULE:NAME): your own
    `Architecture`, of whose models it is one. `for_inspection`: formats only for inspection come first. Raises
    InputError if there is no model, or if it needs one of these.
    """
    if model_format:
        loaded: object = import_object(model_format, ModelFormat).load(str(source))
        return require_instance(loaded, Encoder, f"{model_format}: `load` returned")
    if is_region_encoder(source):
        kind = str(read_join_description(source).get("kind"))
        architectures = registered("vision_language", Architecture)
        if is_import_path(architecture):
            own = import_object(architecture, Architecture)
            architectures = {**architectures, own.name: own}
        message = f"{Path(source) / JOIN}: unknown kind {kind!r}"
        advice = "; for your own architecture, also pass architecture MODULE:NAME"
        require_known(kind, sorted(architectures), message, advice)
        model = architectures[kind].open(source)
        return load_end_to_end(model, source) if (Path(source) / CNN).exists() else model
    formats = registered("models", ModelFormat) | registered("vision_language", ModelFormat)
    for one in sorted(formats.values(), key=lambda one: not one.for_inspection):
        if (for_inspection or not one.for_inspection) and one.matches(str(source)):
            return one.load(str(source))
    return load_text_encoder(source)


def is_region_encoder(source: str | Path) -> bool:
    """Whether a folder holds a vision-language model that `pretrain` or `finetune` wrote."""
    return (Path(source) / JOIN).exists()


PLAIN = "plain"
"""The plain head of the output type: pooler and one Linear, or scores of regions."""
ADAPTER = "adapter"
"""The last Linear of an adapter over CLIP."""
RAW = "raw"
"""One Linear on a text encoder's first position."""


def make_task_head(encoder: Encoder, output_type: OutputType, name: str = PLAIN) -> TaskHead:
    """Make a head for an output type: `plain`, `raw`, `adapter`, or the paper's head for the task `name`.

    Raises InputError if the paper has no head for this task, or for `raw` with a model that is no text encoder.
    """
    context = HeadContext(encoder.sizes, output_type)
    if name == ADAPTER:
        return ClipAdapterHead(context)
    if name == RAW:
        if not isinstance(encoder, TextEncoder):
            raise InputError("cls_without_pooler: this model is not a text encoder; omit it")
        return UnpooledClsHead(context)
    if name == PLAIN or not isinstance(encoder, RegionEncoder):
        return make_plain_head(context)
    heads = encoder.architecture.heads
    require_known(name, heads, f"a {encoder.architecture_name} model has no head for {name}")
    table: Any = encoder.word_embeddings().weight
    return heads[name](replace(context, tokenizer=encoder.text_tokenizer, input_embeddings=table))


def make_vision_language_model(
    start: Encoder, architecture: str, width: int, **options: Any
) -> RegionEncoder:
    """Make a model of an architecture from a loaded BERT, or return `start` if it is a vision-language model.

    Raises InputError for another encoder, or an unknown architecture.
    """
    if isinstance(start, RegionEncoder):
        return start
    return resolve("vision_language", Architecture, architecture).make(
        *get_bert(start), width, **options
    )


def new_vision_language_model(
    start: Encoder,
    architecture: str,
    store: RegionStore,
    images: str,
    pixels: PixelInputSettings,
    joining: VisualBertSettings,
) -> RegionEncoder:
    """`start` as a model of an architecture that reads a store's features or, with `images`, pixels in its boxes.

    `joining`: options of the architecture's `build`. Raises InputError if no new model is made or it has no such
    options, and for a store without the classes that it needs.
    """
    options: dict[str, Any] = {}
    if joining != VisualBertSettings():
        is_made = isinstance(start, RegionEncoder)
        if (
            is_made
            or not resolve("vision_language", Architecture, architecture).has_embedding_options
        ):
            other = f"this {start.architecture_name}" if is_made else architecture
            refuse_settings(joining, f"is only for a new VisualBERT, not {other}; omit it")
        if joining.object_classes and not store.classes:
            raise InputError(f"object_classes: the regions of {store.folder} have no classes")
        classes = store.classes if joining.object_classes else 0
        options = {"early": joining.early_fusion, "boxes": joining.region_boxes, "classes": classes}
    if not images:
        return make_vision_language_model(start, architecture, store.width, **options)
    if isinstance(start, RegionEncoder) and start.region_source == "pixels":
        start.resize(pixels.shortest_edge, pixels.longest_edge)
        return start
    found = resolve("vision_language", Architecture, architecture)
    if not found.can_read_pixels or not isinstance(start, TextEncoder):
        raise InputError(f"images={images}: {architecture} reads stored features; leave images out")
    side, longest_edge = pixels.shortest_edge or SIDE, pixels.longest_edge
    parts = (*get_bert(start), pixels.backbone, side, longest_edge)
    return make_end_to_end_model(*parts, build=found.make, **options)
