"""The page of the Python API, from docstrings and settings; `mkdocs build` adds it to the site, `python` prints it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cache
from itertools import zip_longest
from types import ModuleType
from typing import Any, NamedTuple

import groundling
from groundling.api import command_of, function_names

WIDTH = 100

INTRODUCTION = """
The public functions and classes, from their docstrings. `import groundling` has the
functions of the first section and every `groundling.NAME` below; the others are in the modules named beside
them. `help()` shows the same texts. Letters in shapes mean the same everywhere: """
FUNCTIONS = """
Each function is the command of the same name. Its flags are keywords, with `_` for `-` and spaces;
`help(groundling.adapt)` explains them as `--help` does. A setting that takes a list of strings also takes a single
string, and paths are accepted as strings. Flags with a dot are a dict (`--train.steps 3` is `train={"steps": 3}`). A
function returns what the command prints (for a run, the contents of `result.json`), and raises `InputError` where the
command reports a mistake. `visualize` is a separate function, which returns a page."""

SECTIONS: dict[str, dict[str, str]] = {
    "Batch: the input of a model": {
        "groundling.core.batch": (
            "Batch Tokens Regions ClipWindows TeacherInput Sample TextRow "
            "RegionRow Example GoldBoxes collate"
        ),
    },
    "EncoderOutput: the output of a model": {
        "groundling.core.batch": "EncoderOutput OutputSizes",
        "groundling.models.attention": "AttentionMap SequencePositions PositionKind text_positions region_positions",
    },
    "Objective: a term of the loss": {
        "groundling.objectives": "Objective ObjectiveContext LossTargets",
        "groundling.training.training_steps": "TrainingStep MicroBatchContext ForwardOutput",
    },
    "Task: data, output type and metrics": {
        "groundling.tasks": "Task",
        "groundling.core.output_types": "Classification MultipleChoice Regression OpenAnswer RegionSelection",
        "groundling.core.metrics": "Metric",
    },
    "Training and evaluation": {
        "groundling.training.loop": "train",
        "groundling.training.evaluation": "evaluate EvaluationOutput",
        "groundling.training.batch_sampler": "DataSource",
        "groundling.settings.training": "TrainingArguments",
    },
    "Models and teachers": {
        "groundling.vision_language.loading": "load_encoder make_vision_language_model",
        "groundling.models.loading": "Encoder ModelFormat",
        "groundling.models.text_encoder": "TextEncoder",
        "groundling.vision_language.single_stream": "SingleStreamModel MultimodalEmbeddings EmbeddedSequence",
        "groundling.models.task_heads": "TaskHead HeadContext",
        "groundling.vision_language": "RegionEncoder Architecture PretrainingPhase",
        "groundling.teachers": "Teacher",
    },
    "Predictions of a fine-tuned model": {
        "groundling.prediction": "load FineTunedModel Prediction Candidate",
    },
    "Visualization": {
        "groundling.studies.attention.page": "visualize AttentionPage",
    },
    "Data": {
        "groundling.data.regions": "RegionStore RegionWriter ImageRegions",
        "groundling.data.samples": "TextDataset TextRowEncoder ClipRowEncoder",
    },
    "Errors": {"groundling.core.errors": "InputError"},
}
"""The public classes and functions by module; commands are added automatically."""

SECTION = re.compile(r"(Args|Returns|Raises|Source):")


class AsWritten(str):
    """An annotation that a signature shows without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def page() -> str:
    """The text of the page."""
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
    """Names of the commands that are functions of `import groundling`."""
    return [name for name in function_names() if name not in groundling.PLACES]


def _commands() -> Iterator[str]:
    yield "## Commands as functions\n"
    yield _filled(FUNCTIONS)
    for name in commands():
        yield f"- `{name}`: {_sentence(command_of(name).summary)}"
    yield ""


def _filled(text: str) -> str:
    """A paragraph wrapped into lines."""
    return textwrap.fill(" ".join(text.split()), 120, break_on_hyphens=False) + "\n"


def _entry(module: ModuleType, name: str) -> str:
    value = vars(module)[name]
    place = f"`groundling.{name}`, " if name in groundling.PLACES else ""
    lines = [f"### `{name}`\n", f"{place}in `{module.__name__}`\n"]
    if not isinstance(value, type):
        lines += [_definition(name, value), _markdown(inspect.getdoc(value) or "")]
        return "\n".join(lines)
    lines.append(_markdown(inspect.getdoc(value) or ""))
    if not is_dataclass(value) and "__init__" in vars(value):
        constructor = vars(value)["__init__"]
        lines += [_definition(name, value), _markdown(inspect.getdoc(constructor) or "")]
    fields = [_field(one.name, one.kind, one.default, one.text) for one in field_docs(value)]
    for some in (fields, [*_members(value)]):
        if some:
            lines.append("\n".join(some) + "\n")
    return "\n".join(lines)


def _field(name: str, kind: str, default: str, text: str) -> str:
    shown = f" = {default}" if default else ""
    return f"- `{name}: {kind}{shown}`" + (f": {text}" if text else "")


def _members(kind: type[Any]) -> Iterator[str]:
    """A line for each public method and property that the class itself defines."""
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
    """A function's signature as written; a method's without `self`."""
    signature = inspect.signature(function)
    parameters = [
        one.replace(annotation=_as_written(one.annotation)) for one in signature.parameters.values()
    ]
    returned = _as_written(signature.return_annotation)
    return signature.replace(parameters=parameters[bound:], return_annotation=returned)


def _as_written(annotation: object) -> object:
    return AsWritten(annotation) if isinstance(annotation, str) else annotation


def _definition(name: str, value: Any) -> str:
    """The definition of a function or of a class's `__init__`; a long one has one parameter per line."""
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
    return f"```python\n{text}\n```\n".replace("'", '"')  # as `ruff format` writes it


def _markdown(docstring: str) -> str:
    """A docstring in Markdown; its sections (`Args:`) become lists."""
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


# -- fields, read from the source, because Python keeps no docstrings of attributes ------------------------------------


class FieldDoc(NamedTuple):
    """A field of a class, as written in its source."""

    name: str
    """Its name."""
    kind: str
    """Its type annotation."""
    default: str
    """Its default, as written; empty if it has none."""
    text: str
    """Its docstring, on one line."""


def field_docs(kind: type[Any]) -> list[FieldDoc]:
    """The public fields of a class, inherited ones first; empty if its source is not available."""
    found: dict[str, FieldDoc] = {}
    package = kind.__module__.partition(".")[0]
    for one in reversed(kind.__mro__):
        if (
            one.__module__.partition(".")[0] == package
        ):  # fields of a library's own classes are not listed
            found |= _own_fields(one)
    return list(found.values())


def _own_fields(kind: type[Any]) -> dict[str, FieldDoc]:
    """The fields in the class's own body, by name."""
    node = _classes(kind.__module__).get(kind.__qualname__)
    body = [] if node is None else node.body
    found: dict[str, FieldDoc] = {}
    for line, below in zip_longest(body, body[1:]):
        if not isinstance(line, ast.AnnAssign) or not isinstance(line.target, ast.Name):
            continue
        if not line.target.id.startswith("_"):
            default = "" if line.value is None else _default(line.value)
            name, hint = line.target.id, _plain(line.annotation)
            found[name] = FieldDoc(name, hint, default, _text(below))
    return found


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    """The classes in a module's source, by name; empty if it has no source, as in a shell."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (KeyError, OSError, TypeError):
        return {}
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


class _WithoutMetadata(ast.NodeTransformer):
    """Replaces `Annotated[kind, ...]` by its kind."""

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if ast.unparse(node.value) == "Annotated" and isinstance(node.slice, ast.Tuple):
            return node.slice.elts[0]
        return node


def _plain(annotation: ast.expr) -> str:
    """A type annotation without the metadata of `Annotated`."""
    return ast.unparse(_WithoutMetadata().visit(annotation))


def _default(value: ast.expr) -> str:
    """A default as written; for `field(default_factory=dict)`, the value that the factory makes."""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        keywords = {one.arg: ast.unparse(one.value) for one in value.keywords}
        factory = keywords.get("default_factory")
        return f"{factory}()" if factory else keywords.get("default", "")
    return ast.unparse(value)


def _text(below: ast.stmt | None) -> str:
    """The string of a docstring statement, on one line; empty for any other statement."""
    if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
        return " ".join(str(below.value.value).split())
    return ""


if __name__ == "__main__":
    print(page())
