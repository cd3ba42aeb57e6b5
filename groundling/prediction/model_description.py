"""The description file in a fine-tuned model's folder, from which the model loads without its run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator, TypeAdapter

from groundling.core.errors import InputError, convert_errors
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.data.regions import RegionStore
from groundling.runs.folder import keep_path, kept_path, read_object, write_json
from groundling.settings.input_settings import DetectionSettings, RegionSettings, TableTaskSettings
from groundling.vision_language.loading import PLAIN

FILE = "groundling_task.json"
"""Stands beside the model's own files; transformers ignores it."""
FORMS: dict[str, Any] = {
    "classify": Classification,
    "choose": MultipleChoice,
    "regress": Regression,
    "answer": OpenAnswer,
    "pick": RegionSelection,
}
"""Output types by name in the file; an output type of your own comes from its task's module."""
STRICTLY: dict[str, Any] = {"strict": True, "extra": "forbid"}
"""A file is read without conversions, and without fields that this version does not know."""


def _read_form(content: Mapping[str, Any] | None) -> OutputType | None:
    if content is None:
        return None
    # JSON has no infinity, which is the default of the fields that may be None.
    values = {name: value for name, value in content.items() if name != "is" and value is not None}
    return TypeAdapter(FORMS[content["is"]]).validate_json(json.dumps(values), **STRICTLY)


@dataclass(frozen=True)
class ModelDescription:
    """Everything beside the weights that a fine-tuned model needs for predictions."""

    task: str
    """Task name: one of this package, MODULE:NAME, or `table/...` for your own file."""
    form: Annotated[OutputType | None, PlainValidator(_read_form)]
    """Output type; None where only the task's own module defines it."""
    version: int = 1
    """Version of the task at training time."""
    head: str = PLAIN
    """Name of the head, see `groundling.vision_language.loading.make_task_head`."""
    loss: str = ""
    """Loss that replaces the head's default; it may decide how scores become predictions."""
    max_length: int = 128
    """Maximum number of tokens per text."""
    images: int = 0
    """Maximum number of images per example."""
    reads_regions: bool = False
    """Whether the model reads image regions."""
    region_settings: RegionSettings = field(default_factory=RegionSettings)
    """Limits of the regions, and which tags and objects are read; names no store and no images."""
    zero_region_features: bool = False
    """Whether zeros replace the region features."""
    is_prepared: bool = True
    """Whether the model was prepared for the task's texts as in its architecture's paper."""
    own: TableTaskSettings | None = None
    """Columns of your own file; None for a task with official files."""
    architecture: str = ""
    """MODULE:NAME of an architecture of your own."""
    model_format: str = ""
    """MODULE:NAME of a `ModelFormat` of your own that loads the folder."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the file of each of your own modules, by MODULE:NAME."""
    regions: Mapping[str, Any] = field(default_factory=dict)
    """Manifest fields of the training region stores; see `region_facts`."""

    def write(self, folder: Path) -> None:
        """Write the description beside the weights, with local models by their paths from the folder."""
        content = asdict(self)
        kinds = [name for name, kind in FORMS.items() if type(self.form) is kind]
        # An output type of one's own can be built only by its module.
        content["form"] = {"is": kinds[0], **content["form"]} if kinds else None
        made_with = content["regions"].get("made_with") or {}
        for role in MODELS & made_with.keys():
            made_with[role] = keep_path(folder, made_with[role])
        write_json(folder / FILE, content)


def read_description(folder: Path) -> ModelDescription:
    """Read the description file in a model's folder."""
    path = folder / FILE
    content = read_object(path)
    with convert_errors(f"{path}: damaged, or from another version of groundling; fine-tune again"):
        for one in fields(ModelDescription):  # a default in place of a lost field may be wrong
            content[one.name]
        made_with = content["regions"].get("made_with") or {}
        for role in MODELS & made_with.keys():
            made_with[role] = kept_path(folder, made_with[role])
        return TypeAdapter(ModelDescription).validate_json(json.dumps(content), **STRICTLY)


# -- regions -----------------------------------------------------------------------------------------------------------
DESCRIBED_FIELDS = ("made_by", "weights", "preprocessing", "boxes_from", "made_with")
"""Manifest fields of region stores that a model's description keeps."""
MODELS = {"backbone", "detector"}
"""Settings in `made_with` that name a model."""


def region_facts(store: RegionStore) -> dict[str, Any]:
    """The manifest fields of a store and the origin of the regions, for a description."""
    facts = {name: store.manifest[name] for name in DESCRIBED_FIELDS if name in store.manifest}
    return facts | {"identity": store.identity, "origin": store.origin}


def detection_settings(facts: Mapping[str, Any]) -> DetectionSettings:
    """The settings that find the same kind of regions on other photos."""
    made_with = facts.get("made_with")
    if made_with is None:
        raise InputError(
            f"regions from {facts.get('boxes_from') or 'others'} cannot be detected on other photos; pass regions=STORE"
        )
    with convert_errors(f"{FILE}: damaged; expected settings of `groundling regions`"):
        return TypeAdapter(DetectionSettings).validate_json(json.dumps(made_with), **STRICTLY)
