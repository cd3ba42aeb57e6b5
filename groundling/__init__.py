"""Give text encoders visual knowledge from CLIP, and measure whether they really got it.

These names are all that most programs need. Commands are functions here, with their flags as keywords: `adapt`,
`pretrain`, `finetune`, ... `groundling.train.train` and `groundling.evaluate.evaluate` are the two verbs below them.
Importing the package costs nothing: what a name stands for is imported when the name is first used.
"""

import importlib

__version__ = "0.1.0"

# What stands here has its types in `__init__.pyi`, which `python docs/make_api.py` writes.
FUNCTIONS = (
    "adapt",
    "figures",
    "finetune",
    "heads",
    "modality",
    "pairs",
    "predict",
    "pretrain",
    "regions",
    "retrieve",
    "syntax",
    "teach",
    "verdict",
)
"""Commands that are functions, too."""
MODULES = ("evaluate", "train")
"""Modules to be had without a second import."""
PLACES = {
    "Batch": "groundling.batch",
    "Encoded": "groundling.batch",
    "Example": "groundling.batch",
    "InputError": "groundling.errors",
    "Objective": "groundling.objectives",
    "RegionStore": "groundling.data.regions",
    "Sample": "groundling.batch",
    "Task": "groundling.tasks",
    "Teacher": "groundling.teachers",
    "TrainConfig": "groundling.config",
    "load": "groundling.predicting",
    "look": "groundling.looking",
    "show_regions": "groundling.vision.show",
}
"""Where the other names are."""

__all__ = ["__version__", *PLACES, *FUNCTIONS, *MODULES]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name in MODULES:
        return importlib.import_module(f"{__name__}.{name}")
    if name in FUNCTIONS:
        value = importlib.import_module(f"{__name__}.functions").function_of(name)
    elif name in PLACES:
        value = vars(importlib.import_module(PLACES[name]))[name]
    else:
        errors = importlib.import_module(f"{__name__}.errors")
        hint = errors.nearest(name, __all__) or f"; it has: {', '.join(sorted(__all__))}"
        # Told by name alone: with the module, too, Python would add a guess of its own.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    globals()[name] = value
    return value
