"""Loads any model folder, makes vision-language models from a BERT, and makes task heads."""

from __future__ import annotations

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
    resolve_builtin,
)
from groundling.data.regions.store import RegionStore
from groundling.models.adapters import ClipAdapterHead
from groundling.models.formats import Encoder, InspectedModelFormat, ModelFormat
from groundling.models.hub import CNN
from groundling.models.multimodal_embeddings import MultimodalEmbeddings
from groundling.models.task_heads import HeadContext, TaskHead, UnpooledClsHead, make_plain_head
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.settings.fields import refuse_settings
from groundling.settings.input_settings import VisualBertSettings
from groundling.vision_language import Architecture
from groundling.vision_language.single_stream import (
    JOIN,
    SingleStreamModel,
    get_bert,
    load_single_stream,
    read_join_description,
)


def load_encoder(source: str | Path, model_format: str = "", architecture: str = "") -> Encoder:
    """Load the model of a hub id or folder, in a `ModelFormat` of this package or as a transformers encoder.

    `model_format` (MODULE:NAME): your own `ModelFormat` that loads it. `architecture`
    (MODULE:NAME): the `Architecture` of
    a single-stream model that is not from this package. Raises InputError if there is no model, or if it
    needs one of these.
    """
    if model_format:
        loaded: object = import_object(model_format, ModelFormat).load(str(source))
        return require_instance(loaded, Encoder, f"{model_format}: `load` returned")
    if is_single_stream(source):
        return load_single_stream(source, _join_of(source, architecture))
    kinds = registered("models", ModelFormat) | registered("vision_language", ModelFormat)
    for one in kinds.values():
        if one.matches(str(source)):
            return one.load(str(source))
    return load_text_encoder(source)


def load_for_inspection(source: str | Path) -> Encoder:
    """Load the model of a hub id or folder for inspection, in an `InspectedModelFormat` or as `load_encoder` does."""
    if not is_single_stream(source):
        for one in registered("models", InspectedModelFormat).values():
            if one.matches(str(source)):
                return one.load(str(source))
    return load_encoder(source)


def is_single_stream(source: str | Path) -> bool:
    """Whether a folder holds a single-stream model that reads stored features."""
    return (Path(source) / JOIN).exists() and not (Path(source) / CNN).exists()


def _join_of(source: str | Path, architecture: str) -> type[MultimodalEmbeddings]:
    """The `MultimodalEmbeddings` of a folder's model; those of other packages only if `architecture` names them."""
    kind = str(read_join_description(source).get("kind"))
    if is_import_path(architecture):
        own_architecture = import_object(architecture, Architecture)
        if own_architecture.name == kind:
            return own_architecture.embeddings
    architectures = registered("vision_language", Architecture)
    message = f"{Path(source) / JOIN}: unknown kind {kind!r}"
    advice = "; for your own architecture, also pass architecture MODULE:NAME"
    require_known(kind, sorted(architectures), message, advice)
    return architectures[kind].embeddings


def find_architecture(model: SingleStreamModel, name: str = "") -> Architecture:
    """The architecture of a model; `name` (MODULE:NAME) if it is your own."""
    if is_import_path(name):
        architecture = import_object(name, Architecture)
        if architecture.name == model.join.kind:
            return architecture
    return resolve_builtin("vision_language", Architecture, model.join.kind)


PLAIN = "plain"
"""The plain head of the output type: pooler and one Linear, or scores of regions."""
ADAPTER = "adapter"
"""The last Linear of an adapter over CLIP."""
RAW = "raw"
"""One Linear on a text encoder's first position."""


def make_task_head(
    encoder: Encoder, output_type: OutputType, name: str = PLAIN, architecture: str = ""
) -> TaskHead:
    """Make a head for an output type: `plain`, `raw`, `adapter`, or the paper's head for the task `name`.

    `architecture` (MODULE:NAME): your own architecture. Raises InputError if the paper has no head for this task,
    or for `raw` with a model that is no text encoder.
    """
    if name == ADAPTER:
        return ClipAdapterHead(HeadContext(encoder.sizes, output_type))
    if name == RAW:
        if not isinstance(encoder, TextEncoder):
            raise InputError("cls_without_pooler: this model is not a text encoder; omit it")
        return UnpooledClsHead(HeadContext(encoder.sizes, output_type))
    if not isinstance(encoder, SingleStreamModel):
        return make_plain_head(HeadContext(encoder.sizes, output_type))
    table = encoder.word_embeddings().weight
    context = HeadContext(encoder.sizes, output_type, encoder.text.tokenizer, table)
    if name == PLAIN:
        return make_plain_head(context)
    heads = find_architecture(encoder, architecture).heads
    require_known(name, heads, f"a {encoder.join.kind} model has no head for {name}")
    return heads[name](context)


def embedding_flags(settings: VisualBertSettings) -> dict[str, bool]:
    """Whether each flag about a new VisualBERT was given."""
    return {
        "early_fusion=False": not settings.early_fusion,
        "region_boxes": settings.region_boxes,
        "object_classes": settings.object_classes,
    }


def embedding_options(
    start: Encoder, architecture: str, settings: VisualBertSettings, store: RegionStore
) -> dict[str, Any]:
    """The `settings` of a new model, as options of the architecture's `build`.

    Raises InputError if no new model is made, the architecture has no such options, or the store has no classes.
    """
    if settings == VisualBertSettings():
        return {}
    other = f"this {start.join.kind}" if isinstance(start, SingleStreamModel) else architecture
    if other != "visualbert":
        refuse_settings(
            embedding_flags(settings), f"is only for a new VisualBERT, not {other}; omit it"
        )
    if settings.object_classes and not store.classes:
        raise InputError(f"object_classes: the regions of {store.folder} have no classes")
    classes = store.classes if settings.object_classes else 0
    return {"early": settings.early_fusion, "boxes": settings.region_boxes, "classes": classes}


def make_vision_language_model(
    start: Encoder, architecture: str, width: int, **options: Any
) -> SingleStreamModel:
    """Make a model of an architecture from a loaded BERT, or return `start` if it is a single-stream model.

    Raises InputError for another encoder, or an unknown architecture.
    """
    if isinstance(start, SingleStreamModel):
        return start
    build = resolve("vision_language", Architecture, architecture).build
    built: object = build(*get_bert(start), width, **options)
    return require_instance(built, SingleStreamModel, f"{architecture}: `build` returned")
