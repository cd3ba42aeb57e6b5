"""How any model folder becomes a model, and how a plain BERT becomes a vision-language one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.errors import InputError
from groundling.find import instances, is_outside, named, outside
from groundling.joins import Design
from groundling.models.join import Join
from groundling.models.kinds import Kind, Student
from groundling.models.single_stream import (
    CNN,
    JOIN,
    SingleStream,
    bert_of,
    described_join,
    load_single_stream,
)
from groundling.models.text import TextEncoder, load_text_encoder


def load_student(source: str | Path, kind: str = "", design: str = "") -> Student:
    """The model of a hub id or folder; `Kind`s of `models/` and `joins/` are asked first, then transformers.

    `kind` (MODULE:NAME) names a `Kind` of your own that loads it, `design` the `Design` that a single-stream model of
    a join outside this package was made with. Raises InputError if there is no model, or one that needs these.
    """
    if kind:
        return outside(kind, Kind).load(str(source))
    if is_single_stream(source):
        return load_single_stream(source, _join_of(source, design))
    kinds = instances("models", Kind) | instances("joins", Kind)
    for one in kinds.values():
        if one.fits(str(source)):
            return one.load(str(source))
    return load_text_encoder(source)


def is_single_stream(source: str | Path) -> bool:
    """Whether a folder holds a single-stream model that reads stored features."""
    return (Path(source) / JOIN).exists() and not (Path(source) / CNN).exists()


def _join_of(source: str | Path, design: str) -> type[Join]:
    """The kind of join a folder's model has; one of another package is only taken if it is named by `design`."""
    kind = str(described_join(source)["kind"])
    if is_outside(design):
        named_by_user = outside(design, Design)
        if named_by_user.name == kind:
            return named_by_user.join
    offered = instances("joins", Design)
    if kind not in offered:
        raise InputError(
            f"{Path(source) / JOIN}: unknown kind {kind!r}; there are: {', '.join(sorted(offered))}; "
            "of a design of your own, pass --join MODULE:NAME, too"
        )
    return offered[kind].join


def design_of(model: SingleStream, name: str = "") -> Design:
    """The paper whose model it is; `name` (MODULE:NAME) where that is a design of your own."""
    if is_outside(name):
        design = outside(name, Design)
        if design.name == model.join.kind:
            return design
    return named("joins", Design, model.join.kind)


def join_to(start: Student, design: str, width: int, **options: Any) -> SingleStream:
    """A new model of a design around a loaded BERT, or `start` itself if it is a single-stream model already.

    Raises InputError if it is another encoder, or there is no such design.
    """
    if isinstance(start, SingleStream):
        return start
    build = named("joins", Design, design).build
    bert = bert_of(start)
    if not isinstance(start, TextEncoder):
        raise InputError(f"expected a BERT to start from, found a {type(start).__name__}")
    return build(bert, start.tokenizer, width, **options)
