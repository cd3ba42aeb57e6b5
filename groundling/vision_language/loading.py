"""How any model folder becomes a model, how a plain BERT becomes a vision-language one, and which head answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.core.errors import InputError, check_known
from groundling.core.output_types import OutputType
from groundling.core.registry import fitting, instances, is_outside, named, outside, stock
from groundling.data.regions.stores import SeveralStores
from groundling.models.adapters import AdapterHead
from groundling.models.formats import Encoder, InspectionFormat, ModelFormat
from groundling.models.hub import CNN
from groundling.models.multimodal_embeddings import MultimodalEmbeddings
from groundling.models.task_heads import HeadContext, RawFirst, TaskHead, plain_head
from groundling.models.text import TextEncoder, load_text_encoder
from groundling.settings.fields import refuse_given
from groundling.settings.inputs import Joining
from groundling.vision_language import Architecture
from groundling.vision_language.single_stream import (
    JOIN,
    SingleStream,
    bert_of,
    described_join,
    load_single_stream,
)


def load_student(source: str | Path, kind: str = "", design: str = "") -> Encoder:
    """The model of a hub id or folder; `ModelFormat`s of this package are asked first, then transformers.

    `kind` (MODULE:NAME) names a `ModelFormat` of your own that loads it, `design` the `Architecture` that a
    single-stream model of a join outside this package was made with. Raises InputError if there is no model, or one
    that needs these.
    """
    if kind:
        loaded: object = outside(kind, ModelFormat).load(str(source))
        return fitting(loaded, Encoder, f"{kind}: `load` returned")
    if is_single_stream(source):
        return load_single_stream(source, _join_of(source, design))
    kinds = instances("models", ModelFormat) | instances("vision_language", ModelFormat)
    for one in kinds.values():
        if one.fits(str(source)):
            return one.load(str(source))
    return load_text_encoder(source)


def load_viewed(source: str | Path) -> Encoder:
    """The model of a hub id or folder as it is looked at, see `InspectionFormat`; others as `load_student` has them."""
    if not is_single_stream(source):
        for one in instances("models", InspectionFormat).values():
            if one.fits(str(source)):
                return one.load(str(source))
    return load_student(source)


def is_single_stream(source: str | Path) -> bool:
    """Whether a folder holds a single-stream model that reads stored features."""
    return (Path(source) / JOIN).exists() and not (Path(source) / CNN).exists()


def _join_of(source: str | Path, design: str) -> type[MultimodalEmbeddings]:
    """The kind of join a folder's model has; one of another package is only taken if it is named by `design`."""
    kind = str(described_join(source)["kind"])
    if is_outside(design):
        named_by_user = outside(design, Architecture)
        if named_by_user.name == kind:
            return named_by_user.join
    offered = instances("vision_language", Architecture)
    told = f"{Path(source) / JOIN}: unknown kind {kind!r}"
    advice = "; of a design of your own, pass --join MODULE:NAME, too"
    check_known(kind, sorted(offered), told, advice)
    return offered[kind].join


def design_of(model: SingleStream, name: str = "") -> Architecture:
    """The paper whose model it is; `name` (MODULE:NAME) where that is a design of your own."""
    if is_outside(name):
        design = outside(name, Architecture)
        if design.name == model.join.kind:
            return design
    return stock("vision_language", Architecture, model.join.kind)


PLAIN = "plain"
"""The head that is read by the pooler and one Linear, or the plain one of a form of regions."""
ADAPTER = "adapter"
"""The last Linear of an adapter over CLIP."""
RAW = "raw"
"""One Linear on a text encoder's own first position."""


def new_head(student: Encoder, form: OutputType, name: str = PLAIN, design: str = "") -> TaskHead:
    """A new head for answers of a form: `plain`, `raw`, `adapter`, or that of the design's paper for the task `name`.

    `design` (MODULE:NAME) where that is one of your own. Raises InputError if the paper has none for this task, or a
    `raw` one is asked of another model than a text encoder.
    """
    if name == ADAPTER:
        return AdapterHead(HeadContext(student.sizes, form))
    if name == RAW:
        if not isinstance(student, TextEncoder):
            raise InputError("--raw-first reads a text encoder; this model is none")
        return RawFirst(HeadContext(student.sizes, form))
    if not isinstance(student, SingleStream):
        return plain_head(HeadContext(student.sizes, form))
    table = student.word_embeddings().weight
    reading = HeadContext(student.sizes, form, student.text.tokenizer, table)
    if name == PLAIN:
        return plain_head(reading)
    heads = design_of(student, design).heads
    if name not in heads:
        raise InputError(f"a {student.join.kind} model has no head of its own for {name}")
    return heads[name](reading)


def joining_flags(joining: Joining) -> dict[str, bool]:
    """What is said of a new VisualBERT, by flag."""
    return {
        "--no-early-fusion": not joining.early_fusion,
        "--region-boxes": joining.region_boxes,
        "--object-classes": joining.object_classes,
    }


def join_options(
    start: Encoder, design: str, joining: Joining, store: SeveralStores
) -> dict[str, Any]:
    """What `joining` says of a new model, as options of the design's `build`.

    Raises InputError if nothing new is made, the design has no such options, or the store no classes.
    """
    if joining == Joining():
        return {}
    other = f"this {start.join.kind}" if isinstance(start, SingleStream) else design
    if other != "visualbert":
        refuse_given(
            joining_flags(joining), f"is about a new VisualBERT, not {other}; leave it out"
        )
    if joining.object_classes and not store.classes:
        raise InputError(
            f"--object-classes: the regions of {store.name} have no classes; make the store with "
            "`groundling regions --boxes` or a detector, or leave it out"
        )
    classes = store.classes if joining.object_classes else 0
    return {"early": joining.early_fusion, "boxes": joining.region_boxes, "classes": classes}


def join_to(start: Encoder, design: str, width: int, **options: Any) -> SingleStream:
    """A new model of a design around a loaded BERT, or `start` itself if it is a single-stream model already.

    Raises InputError if it is another encoder, or there is no such design.
    """
    if isinstance(start, SingleStream):
        return start
    build = named("vision_language", Architecture, design).build
    built: object = build(*bert_of(start), width, **options)
    return fitting(built, SingleStream, f"{design}: `build` returned")
