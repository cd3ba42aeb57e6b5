"""Transfer visual knowledge from CLIP into text encoders, and measure whether the transfer worked.

These names are all that most programs need. Commands are functions with their flags as keywords: `adapt`, `pretrain`,
`finetune`, ... `train` is the training loop below them, and `groundling.training.evaluation.evaluate` scores its
models. Importing the package loads nothing: a name is imported when it is first used.
"""

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what is imported when it is first used, for editors and type checkers
    from groundling.core.batch import Batch as Batch
    from groundling.core.batch import EncoderOutput as EncoderOutput
    from groundling.core.batch import Example as Example
    from groundling.core.batch import Sample as Sample
    from groundling.core.errors import InputError as InputError
    from groundling.data.regions import RegionStore as RegionStore
    from groundling.objectives import Objective as Objective
    from groundling.prediction import load as load
    from groundling.settings.training import TrainingArguments as TrainingArguments
    from groundling.studies.attention.page import visualize as visualize
    from groundling.tasks import Task as Task
    from groundling.teachers import Teacher as Teacher
    from groundling.training.loop import train as train

__version__ = "0.1.0"

PLACES = {
    "Batch": "groundling.core.batch",
    "EncoderOutput": "groundling.core.batch",
    "Example": "groundling.core.batch",
    "InputError": "groundling.core.errors",
    "Objective": "groundling.objectives",
    "RegionStore": "groundling.data.regions",
    "Sample": "groundling.core.batch",
    "Task": "groundling.tasks",
    "Teacher": "groundling.teachers",
    "TrainingArguments": "groundling.settings.training",
    "load": "groundling.prediction",
    "visualize": "groundling.studies.attention.page",
    "train": "groundling.training.loop",
}
"""Modules of the names that are no commands as functions."""


def __dir__() -> list[str]:
    names = importlib.import_module(f"{__name__}.api").function_names()
    return sorted({"__version__", *PLACES, *names})


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return __dir__()
    if name in PLACES:
        value: Any = vars(importlib.import_module(PLACES[name]))[name]
    elif name.startswith("_") or find_spec(f"{__name__}.{name}"):  # a module, not imported yet
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
    else:
        try:
            value = importlib.import_module(f"{__name__}.api").function_of(name)
        except KeyError:
            hint = importlib.import_module(f"{__name__}.core.errors").did_you_mean(name, __dir__())
            message = f"module {__name__!r} has no attribute {name!r}{hint}"
            # Only `name` is passed: given the module too, Python would append a suggestion of its own.
            raise AttributeError(message, name=name) from None
    globals()[name] = value
    return value
