"""Transfer visual knowledge from CLIP into text encoders, and measure whether the transfer worked.

These names are all that most programs need. Commands are functions with their flags as keywords:
`adapt`, `pretrain`, `finetune`, ... `train` is the training loop below them, and
`groundling.training.evaluation.evaluate` scores its models. Importing the package loads nothing: a
name is imported when it is first used.
"""

import importlib

__version__ = "0.1.0"

# The types of these names are in `__init__.pyi`, which `python docs/make_api.py` writes.
FUNCTIONS = (
    "adapt",
    "attention",
    "bench",
    "compare",
    "data_captions",
    "data_counts",
    "data_make_store",
    "data_make_tasks",
    "data_make_world",
    "data_partition",
    "data_shift",
    "data_show",
    "ensemble",
    "evaluate",
    "figures",
    "finetune",
    "grounded",
    "heads",
    "info",
    "modality",
    "pairs",
    "predict",
    "pretrain",
    "probe",
    "probe_facts",
    "probe_words",
    "quickstart",
    "regions",
    "retrieve",
    "run",
    "similarity",
    "syntax",
    "train_clip",
    "vcr",
    "verdict",
    "winoground",
    "zero_shot",
)
"""Commands as functions: all except `visualize`, which has a function of its own that returns a page."""
PLACES = {
    "Batch": "groundling.core.batch",
    "EncoderOutput": "groundling.core.batch",
    "Example": "groundling.core.batch",
    "InputError": "groundling.core.errors",
    "Objective": "groundling.objectives",
    "RegionStore": "groundling.data.regions.store",
    "Sample": "groundling.core.batch",
    "Task": "groundling.tasks",
    "Teacher": "groundling.teachers",
    "TrainingArguments": "groundling.settings.training",
    "load": "groundling.prediction",
    "visualize": "groundling.studies.attention.page",
    "show_regions": "groundling.vision.show",
    "train": "groundling.training.loop",
}
"""Modules of the other names."""

__all__ = ["__version__", *PLACES, *FUNCTIONS]


def __dir__() -> list[str]:
    return sorted(__all__)


def __getattr__(name: str) -> object:
    if name in FUNCTIONS:
        value = importlib.import_module(f"{__name__}.api").function_of(name)
    elif name in PLACES:
        value = vars(importlib.import_module(PLACES[name]))[name]
    else:
        errors = importlib.import_module(f"{__name__}.core.errors")
        hint = errors.did_you_mean(name, __all__) or f"; it has: {', '.join(sorted(__all__))}"
        # Only `name` is passed: given the module too, Python would append a suggestion of its own.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}", name=name)
    globals()[name] = value
    return value
