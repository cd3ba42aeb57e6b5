"""The description file in a fine-tuned model's folder, from which the model loads without its run."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, TypeVar

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
from groundling.data.regions.store import RegionStore
from groundling.runs.folder import read_object, write_json
from groundling.runs.hashing import sha256_of
from groundling.runs.local_paths import keep_path, kept_path
from groundling.settings.input_settings import DetectionSettings, RegionSettings, TableTaskSettings
from groundling.vision_language.loading import PLAIN

T = TypeVar("T")
FILE = "groundling_task.json"
"""Stands beside the model's own files; transformers ignores it."""
FORMAT = 1
"""Increases with every change that an older reader would misread."""
FORMS: dict[str, Any] = {
    "classify": Classification,
    "choose": MultipleChoice,
    "regress": Regression,
    "answer": OpenAnswer,
    "pick": RegionSelection,
}
"""Output types by name in the file; an output type of your own comes from its task's module."""


@dataclass(frozen=True)
class InputPreprocessing:
    """How examples become model inputs."""

    max_length: int = 128
    """Maximum number of tokens per text."""
    images: int = 0
    """Maximum number of images per example."""
    regions: bool = False
    """Whether the model reads image regions."""
    max_regions: int = 0
    """Maximum number of regions per image, highest scores first; 0: all."""
    max_total_length: int = 0
    """Maximum number of tokens and regions together; 0: no limit."""
    object_tags: bool = True
    """Whether words that name objects are linked to the regions of these objects."""
    mentioned_objects_only: bool = False
    """Whether objects that no text of the item mentions are removed."""
    zero_region_features: bool = False
    """Whether zeros replace the region features."""

    def settings(self, **sources: Any) -> RegionSettings:
        """The same values as `RegionSettings`; `sources` are its other fields, which name regions and photos."""
        return RegionSettings(
            max_regions=self.max_regions,
            max_total_length=self.max_total_length,
            object_tags=self.object_tags,
            mentioned_objects_only=self.mentioned_objects_only,
            **sources,
        )


def _read_form(content: Mapping[str, Any] | None) -> OutputType | None:
    if content is None:
        return None
    values = {name: value for name, value in content.items() if name != "is" and value is not None}
    form: OutputType = _validated(FORMS[content["is"]], values)
    return form


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
    reads: InputPreprocessing = field(default_factory=InputPreprocessing)
    ready: bool = True
    """Whether the model was prepared for the task's texts as in its architecture's paper."""
    own: TableTaskSettings | None = None
    """Columns of your own file; None for a task with official files."""
    design: str = ""
    """MODULE:NAME of an architecture of your own."""
    kind: str = ""
    """MODULE:NAME of a `ModelFormat` of your own that loads the folder."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of each of your own modules' files by MODULE:NAME; of modules they import, by module."""
    regions: Mapping[str, Any] = field(default_factory=dict)
    """Manifest fields of the training region stores; see `region_facts`."""

    tokenizer: str = ""
    """Hash of the tokenizer files beside the weights; empty if there are none or it is unknown."""
    config: str = ""
    """Hash of the model's configuration beside the weights; likewise."""

    def write(self, folder: Path) -> None:
        """Write the description beside the weights, with the hashes of the folder's tokenizer and configuration."""
        content = {"format": FORMAT, **asdict(self)}
        content["tokenizer"] = sha256_of_files(folder, TOKENIZER)
        content["config"] = sha256_of_files(folder, CONFIG)
        content["form"] = None if self.form is None else output_type_as_json(self.form)
        content["own"] = None if self.own is None else asdict(self.own)
        made_with = self.regions.get("made_with") or {}
        kept = {role: keep_path(folder, made_with[role]) for role in MODELS & made_with.keys()}
        if kept:
            content["regions"]["made_with"] |= kept
        write_json(folder / FILE, content)


TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "spiece.model", "spm.model"),
    *("sentencepiece.bpe.model", "tokenizer.model"),
)
"""Tokenizer file names of transformers."""
CONFIG = ("config.json", "join.json")
"""Configuration file names of transformers and of models with regions."""


def sha256_of_files(folder: Path, names: Sequence[str]) -> str:
    """Hash of the files of these names in a model's folder and its sub-folders; empty if there are none.

    Raises InputError if one cannot be read.
    """
    places = [folder, *sorted(place for place in folder.iterdir() if place.is_dir())]
    files = [place / name for place in places for name in names if (place / name).is_file()]
    lines = [f"{file.relative_to(folder).as_posix()} {sha256_of(file)}" for file in files]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""


def read_description(folder: Path) -> ModelDescription:
    """Read the description file in a model's folder.

    Raises InputError, in one line, if the file is missing, damaged or of a later version.
    """
    path = folder / FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: {FILE} is missing; expected a model that this version of `groundling finetune` wrote; "
            "fine-tune again"
        )
    content = read_object(path)
    version = content.pop("format", None)
    if version != FORMAT:
        raise InputError(
            f"{path}: format {version!r}, but this version of groundling reads {FORMAT}; fine-tune again"
        )
    with convert_errors(f"{path}: damaged, or from another version of groundling; fine-tune again"):
        for one in fields(ModelDescription):  # a default in place of a lost field may be wrong
            content[one.name]
        description = _validated(ModelDescription, content)
    made_with = description.regions.get("made_with")
    if isinstance(made_with, dict):
        for role in MODELS & made_with.keys():
            made_with[role] = kept_path(folder, made_with[role])
    return description


def _validated(kind: type[T], values: Mapping[str, Any]) -> T:
    """A dataclass from JSON values, each of the type that the dataclass declares; raises ValueError otherwise."""
    text = json.dumps(values)
    return TypeAdapter(kind).validate_json(text, strict=True, extra="forbid")


# -- output types ------------------------------------------------------------------------------------------------------


def output_type_as_json(form: OutputType) -> dict[str, Any] | None:
    """An output type as JSON; None for one of your own, which only its module can build."""
    for name, kind in FORMS.items():
        if type(form) is kind:
            values = {one.name: vars(form)[one.name] for one in fields(FORMS[name])}
            # JSON has no infinity.
            return {"is": name} | {key: _finite(value) for key, value in values.items()}
    return None


def _finite(value: object) -> object:
    unbounded = isinstance(value, float) and not math.isfinite(value)
    return None if unbounded else value


# -- regions -----------------------------------------------------------------------------------------------------------

DESCRIBED_FIELDS = (
    "identity",
    "made_by",
    "weights",
    "preprocessing",
    "boxes_from",
    "made_with",
)
"""Manifest fields of region stores that a model's description keeps."""
MODELS = {"backbone", "detector"}
"""Settings in `made_with` that name a model."""


def region_facts(store: RegionStore) -> dict[str, Any]:
    """The manifest fields of a store and the origin of the regions, for a description."""
    manifest = store.manifest
    facts = {name: manifest[name] for name in DESCRIBED_FIELDS if name in manifest}
    facts |= {"identity": store.identity, "origin": store.origin}
    made_with = facts.get("made_with")
    if made_with:
        facts["made_with"] = {name: _absolute_path(value) for name, value in made_with.items()}
    return facts


def _absolute_path(value: object) -> object:
    """The absolute path of an existing folder; a hub id or a number unchanged."""
    is_folder = isinstance(value, str) and value and Path(value).is_dir()
    return str(Path(str(value)).resolve()) if is_folder else value


def detection_settings(facts: Mapping[str, Any]) -> DetectionSettings:
    """The settings that find the same kind of regions on other photos.

    Raises InputError for regions from box files, third-party features or stores of earlier versions.
    """
    made_with = facts.get("made_with")
    if not isinstance(made_with, dict):
        raise InputError(
            "this model's regions cannot be detected on other photos (its training regions are from "
            f"{facts.get('boxes_from') or 'others'}, or their store is of an old version); pass regions=STORE"
        )
    with convert_errors(f"{FILE}: damaged; expected settings of `groundling regions`"):
        return _validated(DetectionSettings, made_with)
