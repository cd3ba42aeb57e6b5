"""What a fine-tuned model's folder says of itself, so that it can be asked again where nobody knows its run."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, get_args, get_type_hints

from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.data.regions.stores import CombinedStore
from groundling.runs.folder import read_object, write_json
from groundling.runs.hashing import hashes_of
from groundling.settings.input_settings import DetectionSettings, RegionSettings, TableTaskSettings
from groundling.vision_language.loading import PLAIN

FILE = "groundling_task.json"
"""Beside the model's own files; transformers ignores it."""
FORMAT = 1
"""Raised whenever an older reader would misread the file."""
FORMS: dict[str, Any] = {
    "classify": Classification,
    "choose": MultipleChoice,
    "regress": Regression,
    "answer": OpenAnswer,
    "pick": RegionSelection,
}
"""The shapes of answers that a file can tell; a form of your own comes from its task's module."""


@dataclass(frozen=True)
class InputSpec:
    """How examples are put before the model."""

    max_length: int = 128
    """Most pieces of a text."""
    images: int = 0
    """Most images of an example."""
    regions: bool = False
    """Whether it sees the regions of images."""
    max_regions: int = 0
    """Regions per image, best first; 0: all."""
    budget: int = 0
    """Most pieces and regions together; 0: no bound."""
    tags: bool = True
    """Whether words that name objects are tied to these objects' regions."""
    mentioned: bool = False
    """Whether objects that no text of the item speaks of are left out."""
    blind: bool = False
    """Zeros in place of the regions' features."""

    def settings(self, **places: Any) -> RegionSettings:
        """The same as settings, and where regions and photos are."""
        return RegionSettings(
            max_regions=self.max_regions,
            max_total_length=self.budget,
            object_tags=self.tags,
            mentioned_objects_only=self.mentioned,
            **places,
        )


@dataclass(frozen=True)
class ModelDescription:
    """All that is needed beside the weights to put a question to a fine-tuned model."""

    task: str
    """Name of its task: of this package, MODULE:NAME, or `table/...` for one's own file."""
    form: OutputType | None
    """The shape of its answers; None where only the task's own module knows it."""
    version: int = 1
    """The task's, when it was learned."""
    head: str = PLAIN
    """Name of its head, see `groundling.vision_language.loading.make_task_head`."""
    loss: str = ""
    """Kind of loss in place of the head's own, which may say how its scores are read."""
    reads: InputSpec = field(default_factory=InputSpec)
    ready: bool = True
    """Whether the model was made ready for the task's texts as its design's paper has it."""
    own: TableTaskSettings | None = None
    """Columns of one's own file; None for a task with files of its own layout."""
    design: str = ""
    """MODULE:NAME of a design of your own."""
    kind: str = ""
    """MODULE:NAME of a `ModelFormat` of your own that loads the folder."""
    modules: Mapping[str, str] = field(default_factory=dict)
    """SHA-256 of the file of every module of yours, by MODULE:NAME; of those that these import, by module."""
    regions: Mapping[str, Any] = field(default_factory=dict)
    """What the manifests of the region stores said that it learned from; see `facts_of`."""

    tokenizer: str = ""
    """Hash of the tokenizer's files beside the weights; empty if there are none, or nobody says."""

    def write(self, folder: Path) -> None:
        """Put it beside the weights, with the hash of the tokenizer that is there."""
        content = {"format": FORMAT, **asdict(self), "tokenizer": tokenizer_sha256(folder)}
        content["form"] = None if self.form is None else output_type_as_json(self.form)
        content["own"] = None if self.own is None else asdict(self.own)
        write_json(folder / FILE, content)


TOKENIZER = (
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.txt", "vocab.json", "merges.txt", "bpe.codes", "spiece.model", "spm.model"),
    *("sentencepiece.bpe.model", "tokenizer.model"),
)
"""Files of tokenizers, as transformers calls them."""


def tokenizer_sha256(folder: Path) -> str:
    """A hash of the tokenizer's files in a model's folder; empty if there are none.

    Raises InputError if one cannot be read.
    """
    files = [folder / name for name in TOKENIZER if (folder / name).is_file()]
    told = [f"{file.name} {sha256}" for file, sha256 in zip(files, hashes_of(files), strict=True)]
    return hashlib.sha256("\n".join(told).encode()).hexdigest() if told else ""


def read_description(folder: Path) -> ModelDescription:
    """What the file in a model's folder says.

    Raises InputError, in one line, if there is none, or it is damaged or of a later version.
    """
    path = folder / FILE
    if not path.is_file():
        raise InputError(
            f"{folder}: does not say what it answers ({FILE} is missing): not written by `groundling finetune`, or by "
            "an earlier version of it; fine-tune once more"
        )
    content = read_object(path)
    found = content.get("format")
    if found != FORMAT:
        raise InputError(
            f"{path}: format {found!r}, this version reads {FORMAT}; fine-tune once more"
        )
    with (
        prefix_errors(f"{path}: damaged, or of another version"),
        convert_errors("fine-tune once more"),
    ):
        return _parsed(content)


def _parsed(content: Mapping[str, Any]) -> ModelDescription:
    values = {name: value for name, value in content.items() if name != "format"}
    for name in ("task", "head", "ready", "regions"):
        if name not in values:
            raise KeyError(name)
    values["form"] = None if values["form"] is None else _form(values["form"])
    values["reads"] = _checked(InputSpec, values["reads"])
    values["own"] = None if values["own"] is None else _checked(TableTaskSettings, values["own"])
    made = ModelDescription(**values)
    _check_types(
        made, ModelDescription("", None), [name for name in values if name not in ("form", "own")]
    )
    for name, digest in made.modules.items():
        if not isinstance(digest, str):
            raise TypeError(f"modules: {name} is {digest!r:.40}")
    return made


def _checked(kind: type[Any], values: Mapping[str, Any]) -> Any:
    """A dataclass of plain settings, each of the type of its default."""
    made = kind(**values)
    _check_types(made, kind(), list(vars(made)))
    return made


def _check_types(made: Any, unset: Any, names: Sequence[str]) -> None:
    """Raises TypeError unless these attributes are of the types that they have in `unset`."""
    for name in names:
        value = getattr(made, name)
        if type(value) is not type(getattr(unset, name)):
            raise TypeError(f"{name} is {value!r:.40}")


# -- forms -------------------------------------------------------------------------------------------------------------


def output_type_as_json(form: OutputType) -> dict[str, Any] | None:
    """A form as JSON; None for one of your own, which only its module can make."""
    for name, kind in FORMS.items():
        if type(form) is kind:
            values = {one.name: vars(form)[one.name] for one in fields(FORMS[name])}
            # JSON has no infinity.
            return {"is": name} | {key: _finite(value) for key, value in values.items()}
    return None


def _finite(value: object) -> object:
    unbounded = isinstance(value, float) and not math.isfinite(value)
    return None if unbounded else value


def _form(content: Mapping[str, Any]) -> OutputType:
    kind = FORMS[content["is"]]
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name == "is" or value is None:
            continue
        if isinstance(value, list):
            if not all(isinstance(one, str) for one in value):
                raise TypeError(f"{name} of the form holds what is no text")
            value = tuple(value)
        values[name] = value
    form: OutputType = kind(**values)
    types = get_type_hints(kind)
    for name in ("kind", "reads"):
        # `reads` of most forms is no setting, and given by none.
        if name in values and values[name] not in get_args(types[name]):
            raise ValueError(f"{name} of the form is {values[name]!r:.40}")
    for name in ("labels", "never"):
        listed = values.get(name, ())
        if not isinstance(listed, tuple) or len(set(listed)) < len(listed):
            raise ValueError(f"{name} of the form are {listed!r:.40}")
    return form


# -- regions -----------------------------------------------------------------------------------------------------------

KEPT = ("identity", "made_by", "model", "weights", "preprocessing", "boxes_from", "made_with")
"""What a model remembers of its stores' manifests."""


def region_facts(store: CombinedStore) -> dict[str, Any]:
    """What a model must remember of the regions that it learned from: the first store's manifest, what made them."""
    manifest = store.stores[0].manifest
    facts = {name: manifest[name] for name in KEPT if name in manifest}
    facts |= {"identity": store.identity, "made_by": store.made_by}
    made_with = facts.get("made_with")
    if made_with:
        facts["made_with"] = {name: _anywhere(value) for name, value in made_with.items()}
    return facts


def _anywhere(value: object) -> object:
    """A folder's full path, by which it is found from elsewhere, too; a hub id, or a number, as it is."""
    is_folder = isinstance(value, str) and value and Path(value).is_dir()
    return str(Path(str(value)).resolve()) if is_folder else value


def finding_settings(facts: Mapping[str, Any]) -> DetectionSettings:
    """What finds the same regions on other photos.

    Raises InputError for regions that cannot be found again: of files of boxes, of others' features, of old stores.
    """
    made_with = facts.get("made_with")
    if not isinstance(made_with, dict):
        raise InputError(
            "the regions that this model learned from cannot be found on other photos (they are from "
            f"{facts.get('boxes_from') or 'others'}, or their store is of an earlier version); pass --regions STORE"
        )
    try:
        finding: DetectionSettings = _checked(DetectionSettings, made_with)
    except (TypeError, InputError) as error:
        raise InputError(
            f"{FILE}: damaged, no settings of `groundling regions` ({error})"
        ) from None
    return finding
