"""Write what docstrings and settings say once more in another form: `docs/api.md`, and types of `import groundling`.

Run `python docs/make_api.py` after a change of either; a test compares.
"""

from __future__ import annotations

import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import groundling
from groundling.api import FunctionKeyword, command_of, keywords_of
from groundling.cli import COMMANDS
from groundling.core.field_docs import field_docs, summary_of

ROOT = Path(groundling.__file__).parents[1]
PAGE = ROOT / "docs" / "api.md"
STUB = ROOT / "groundling" / "__init__.pyi"
WIDTH = 100

INTRODUCTION = """
What a program may use, from the docstrings: `python docs/make_api.py` writes this page. The functions of the first
section, and what is called `groundling.NAME` below, come with `import groundling`; the rest is in the modules that are
named. `help()` says the same of each of them. Letters in shapes are the same everywhere: """
FUNCTIONS = """
Each is the command of its name, with its flags as keywords, with `_` for `-` and spaces; `help(groundling.adapt)`
explains them as `--help` does. A setting of several texts takes a lone one, too, and a path stands for its text; flags
with a dot are a dict (`--train.steps 3` is `train={"steps": 3}`). A function returns what the command prints, which is
what `result.json` holds of a run, and raises `InputError` where the command would name a mistake. `visualize` is a function
of its own, which gives a page."""

SECTIONS: dict[str, dict[str, str]] = {
    "Batch: what a model may see": {
        "groundling.core.batch": (
            "Batch Tokens Regions ClipWindows TeacherInput Perturbation Sample TextRow RegionRow Example GoldBoxes collate"
        ),
    },
    "EncoderOutput: all that a model says": {
        "groundling.core.batch": "EncoderOutput OutputSizes",
        "groundling.models.attention": "AttentionMap SequencePositions",
    },
    "Objective: what is learned": {
        "groundling.objectives": "Objective ObjectiveSpec ObjectiveContext MaskingVocabulary LossTargets",
        "groundling.training.training_steps": "TrainingStep TrainingStepSpec MicroBatchContext ForwardOutput",
    },
    "Task: what is asked": {
        "groundling.tasks": "Task",
        "groundling.core.output_types": "Classification MultipleChoice Regression OpenAnswer RegionSelection",
        "groundling.core.metrics": "Metric",
    },
    "The two verbs": {
        "groundling.training.loop": "train",
        "groundling.training.evaluation": "evaluate EvaluationOutput",
        "groundling.training.batch_sampler": "DataSource",
        "groundling.settings.training": "TrainConfig",
    },
    "Models and teachers": {
        "groundling.vision_language.loading": "load_encoder make_vision_language_model",
        "groundling.models.formats": "Encoder ModelFormat",
        "groundling.models.text_encoder": "TextEncoder",
        "groundling.vision_language.single_stream": "SingleStreamModel",
        "groundling.models.multimodal_embeddings": "MultimodalEmbeddings EmbeddedSequence",
        "groundling.models.task_heads": "TaskHead HeadContext",
        "groundling.vision_language": "Architecture PretrainingPhase",
        "groundling.teachers": "Teacher",
    },
    "A fine-tuned model, asked again": {
        "groundling.prediction": "load FineTunedModel Prediction Candidate",
    },
    "To look at": {
        "groundling.studies.attention.page": "visualize AttentionPage",
        "groundling.vision.show": "show_regions AnnotatedPhoto",
    },
    "Data": {
        "groundling.data.regions.store": "RegionStore RegionWriter ImageRegions",
        "groundling.data.samples": "TextDataset TextRowEncoder ClipRowEncoder",
    },
    "Mistakes": {"groundling.core.errors": "InputError"},
}
"""The public classes and functions, by module; commands are found by themselves."""

SECTION = re.compile(r"(Args|Returns|Raises|Source):")


class AsWritten(str):
    """An annotation, which a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def page() -> str:
    """The text of `docs/api.md`."""
    sizes = inspect.getdoc(importlib.import_module("groundling.core.batch")) or ""
    _, _, sizes = " ".join(sizes.split()).partition("Sizes, everywhere: ")
    parts = ["# In Python\n", _filled(INTRODUCTION + sizes), *_commands()]
    for title, places in SECTIONS.items():
        parts.append(f"## {title}\n")
        for path, names in places.items():
            module = importlib.import_module(path)
            parts += [_entry(module, name) for name in names.split()]
    return "\n".join(parts)


def commands() -> list[str]:
    """The commands that are functions of `import groundling`."""
    return sorted(groundling.FUNCTIONS)


def _commands() -> Iterator[str]:
    yield "## Commands as functions\n"
    yield _filled(FUNCTIONS)
    for name in commands():
        yield f"- `{name}`: {_sentence(COMMANDS[command_of(name)].summary)}"
    yield ""


def _filled(text: str) -> str:
    """A paragraph in lines."""
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False) + "\n"


def _entry(module: ModuleType, name: str) -> str:
    value = vars(module)[name]
    place = (
        f"`groundling.{name}`, "
        if name in groundling.__all__ and name not in groundling.FUNCTIONS
        else ""
    )
    lines = [f"### `{name}`\n", f"{place}in `{module.__name__}`\n"]
    if not isinstance(value, type):
        lines += [_definition(name, value), _markdown(inspect.getdoc(value) or "")]
        return "\n".join(lines)
    lines.append(_markdown(summary_of(value)))
    if not is_dataclass(value) and "__init__" in vars(value):
        made = vars(value)["__init__"]
        lines += [_definition(name, value), _markdown(inspect.getdoc(made) or "")]
    fields = [_field(one.name, one.kind, one.default, one.text) for one in field_docs(value)]
    for some in (fields, [*_members(value)]):
        if some:
            lines.append("\n".join(some) + "\n")
    return "\n".join(lines)


def _field(name: str, kind: str, default: str, text: str) -> str:
    shown = f" = {default}" if default else ""
    return f"- `{name}: {kind}{shown}`" + (f": {text}" if text else "")


def _members(kind: type[Any]) -> Iterator[str]:
    """A line for each public method and property of the class's own."""
    defaults = {one.name for one in field_docs(kind)}
    for name, value in vars(kind).items():
        if name.startswith("_") or name in defaults:
            continue
        if isinstance(value, property):
            yield f"- `.{name}`: {_first(value.fget)}"
            continue
        function = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        if inspect.isfunction(function):
            bound = not isinstance(value, staticmethod)
            yield f"- `.{name}{_signature(function, bound)}`: {_first(function)}"


def _first(function: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join((inspect.getdoc(function) or "").split("\n\n")[0].split())


def _signature(function: Any, bound: bool = False) -> inspect.Signature:
    """A function's signature as it is written; without `self`, if it is one of an object."""
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=_as_written(one.annotation)) for one in signature.parameters.values()
    ]
    returned = _as_written(signature.return_annotation)
    return signature.replace(parameters=parameters[bound:], return_annotation=returned)


def _as_written(annotation: object) -> object:
    return AsWritten(annotation) if isinstance(annotation, str) else annotation


def _definition(name: str, value: Any) -> str:
    """A function, or how an object is made, in Python's words; if they are long, with one parameter a line."""
    is_class = isinstance(value, type)
    signature = _signature(vars(value)["__init__"] if is_class else value)
    head, indent = (f"class {name}:\n    def __init__", "    ") if is_class else (f"def {name}", "")
    text = f"{head}{signature}: ..."
    if len(text.rpartition("\n")[2]) > WIDTH:
        parts: list[str] = []
        for one in signature.parameters.values():
            if one.kind is one.KEYWORD_ONLY and "*" not in parts:
                parts.append("*")
            parts.append(str(one))
        inner = "".join(f"{indent}    {part},\n" for part in parts)
        text = f"{head}(\n{inner}{indent}) -> {signature.return_annotation}: ..."
    return f"```python\n{text}\n```\n".replace("'", '"')  # as `ruff format` has it


def _markdown(docstring: str) -> str:
    """A docstring whose sections (`Args:`) are lists."""
    lines: list[str] = []
    inside = False
    for line in docstring.split("\n"):
        if SECTION.fullmatch(line):
            inside = True
            lines.append(f"{line}\n")
        elif inside and re.match(r"    \S", line):
            name, colon, rest = line.strip().partition(": ")
            lines.append(f"- `{name}`: {rest}" if colon else f"- {line.strip()}")
        else:
            lines.append(f"  {line.strip()}" if inside and line.strip() else line)
    return "\n".join(lines).strip() + "\n"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def stub() -> str:
    """The text of `groundling/__init__.pyi`, by which editors and type checkers know what is imported late."""
    lines = [f"from {module} import {name} as {name}" for name, module in groundling.PLACES.items()]
    places = sorted([*lines, "from groundling.api import Text, Texts"])
    lines = [
        "# Written by `python docs/make_api.py`, which see.",
        "from collections.abc import Mapping, Sequence",
        "from typing import Any, Literal",
        "",
        *places,
        "",
        "__version__: str",
        "__all__: list[str]",
        "",
    ]
    for name in commands():
        command = COMMANDS[command_of(name)]
        returned = inspect.signature(command.function()).return_annotation
        parameters = [f"    {_keyword(one)}," for one in keywords_of(name)]
        lines += [f"def {name}(", "    *,", *parameters, f") -> {returned}:"]
        lines += [f'    """{_sentence(command.summary)}"""', ""]
    return "\n".join(lines)


def _keyword(one: FunctionKeyword) -> str:
    """A keyword of a command's function, as the stub has it; it may be given more freely than it is kept."""
    kind = one.doc.kind.replace("'", '"')
    kind = {"str": "Text", "tuple[str, ...]": "Texts"}.get(kind, kind)
    numbers = re.match(r"tuple\[(int|float)", kind)
    if numbers:
        kind = f"Sequence[{numbers[1]}]"
    return f"{one.doc.name}: {kind} = {one.doc.default}".replace("'", '"')


def main() -> None:
    """Write both files."""
    PAGE.write_text(page(), encoding="utf-8")
    STUB.write_text(stub(), encoding="utf-8")


if __name__ == "__main__":
    main()
