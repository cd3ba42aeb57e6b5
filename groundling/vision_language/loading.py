"""How any model folder becomes a model, how a plain BERT becomes a vision-language one, and which head answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.core.errors import InputError, require_known
from groundling.core.output_types import OutputType
from groundling.core.registry import (
    import_object,
    is_import_path,
    registered,
    require_kind,
    resolve,
    resolve_builtin,
)
from groundling.data.regions.stores import CombinedStore
from groundling.models.adapters import AdapterHead
from groundling.models.formats import Encoder, InspectionFormat, ModelFormat
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
    """The model of a hub id or folder; `ModelFormat`s of this package are asked first, then transformers.

    `kind` (MODULE:NAME) names a `ModelFormat` of your own that loads it, `design` the `Architecture` that a
    single-stream model of a join outside this package was made with. Raises InputError if there is no model, or one
    that needs these.
    """
    if model_format:
        loaded: object = import_object(model_format, ModelFormat).load(str(source))
        return require_kind(loaded, Encoder, f"{model_format}: `load` returned")
    if is_single_stream(source):
        return load_single_stream(source, _join_of(source, architecture))
    kinds = registered("models", ModelFormat) | registered("vision_language", ModelFormat)
    for one in kinds.values():
        if one.matches(str(source)):
            return one.load(str(source))
    return load_text_encoder(source)


def load_for_inspection(source: str | Path) -> Encoder:
    """The model of a hub id or folder as it is looked at, see `InspectionFormat`; others as `load_encoder` has them."""
    if not is_single_stream(source):
        for one in registered("models", InspectionFormat).values():
            if one.fits(str(source)):
                return one.load(str(source))
    return load_encoder(source)


def is_single_stream(source: str | Path) -> bool:
    """Whether a folder holds a single-stream model that reads stored features."""
    return (Path(source) / JOIN).exists() and not (Path(source) / CNN).exists()


def _join_of(source: str | Path, design: str) -> type[MultimodalEmbeddings]:
    """The kind of join a folder's model has; one of another package is only taken if it is named by `design`."""
    kind = str(read_join_description(source)["kind"])
    if is_import_path(design):
        named_by_user = import_object(design, Architecture)
        if named_by_user.name == kind:
            return named_by_user.embeddings
    offered = registered("vision_language", Architecture)
    told = f"{Path(source) / JOIN}: unknown kind {kind!r}"
    advice = "; of a design of your own, pass --architecture MODULE:NAME, too"
    require_known(kind, sorted(offered), told, advice)
    return offered[kind].embeddings


def find_architecture(model: SingleStreamModel, name: str = "") -> Architecture:
    """The paper whose model it is; `name` (MODULE:NAME) where that is a design of your own."""
    if is_import_path(name):
        design = import_object(name, Architecture)
        if design.name == model.join.kind:
            return design
    return resolve_builtin("vision_language", Architecture, model.join.kind)


PLAIN = "plain"
"""The head that is read by the pooler and one Linear, or the plain one of a form of regions."""
ADAPTER = "adapter"
"""The last Linear of an adapter over CLIP."""
RAW = "raw"
"""One Linear on a text encoder's own first position."""


def make_task_head(
    student: Encoder, output_type: OutputType, name: str = PLAIN, architecture: str = ""
) -> TaskHead:
    """A new head for answers of a form: `plain`, `raw`, `adapter`, or that of the design's paper for the task `name`.

    `design` (MODULE:NAME) where that is one of your own. Raises InputError if the paper has none for this task, or a
    `raw` one is asked of another model than a text encoder.
    """
    if name == ADAPTER:
        return AdapterHead(HeadContext(student.sizes, output_type))
    if name == RAW:
        if not isinstance(student, TextEncoder):
            raise InputError("--cls-without-pooler reads a text encoder; this model is none")
        return UnpooledClsHead(HeadContext(student.sizes, output_type))
    if not isinstance(student, SingleStreamModel):
        return make_plain_head(HeadContext(student.sizes, output_type))
    table = student.word_embeddings().weight
    reading = HeadContext(student.sizes, output_type, student.text.tokenizer, table)
    if name == PLAIN:
        return make_plain_head(reading)
    heads = find_architecture(student, architecture).heads
    if name not in heads:
        raise InputError(f"a {student.join.kind} model has no head of its own for {name}")
    return heads[name](reading)


def embedding_flags(joining: VisualBertSettings) -> dict[str, bool]:
    """What is said of a new VisualBERT, by flag."""
    return {
        "--no-early-fusion": not joining.early_fusion,
        "--region-boxes": joining.region_boxes,
        "--object-classes": joining.object_classes,
    }


def embedding_options(
    start: Encoder, design: str, joining: VisualBertSettings, store: CombinedStore
) -> dict[str, Any]:
    """What `joining` says of a new model, as options of the design's `build`.

    Raises InputError if nothing new is made, the design has no such options, or the store no classes.
    """
    if joining == VisualBertSettings():
        return {}
    other = f"this {start.join.kind}" if isinstance(start, SingleStreamModel) else design
    if other != "visualbert":
        refuse_settings(
            embedding_flags(joining), f"is about a new VisualBERT, not {other}; leave it out"
        )
    if joining.object_classes and not store.classes:
        raise InputError(
            f"--object-classes: the regions of {store.name} have no classes; make the store with "
            "`groundling regions --boxes` or a detector, or leave it out"
        )
    classes = store.classes if joining.object_classes else 0
    return {"early": joining.early_fusion, "boxes": joining.region_boxes, "classes": classes}


def make_vision_language_model(
    start: Encoder, architecture: str, width: int, **options: Any
) -> SingleStreamModel:
    """A new model of a design around a loaded BERT, or `start` itself if it is a single-stream model already.

    Raises InputError if it is another encoder, or there is no such design.
    """
    if isinstance(start, SingleStreamModel):
        return start
    build = resolve("vision_language", Architecture, architecture).build
    built: object = build(*get_bert(start), width, **options)
    return require_kind(built, SingleStreamModel, f"{architecture}: `build` returned")
