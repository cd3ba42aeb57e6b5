"""Model card of a saved model for the hub, made from its run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from groundling.runs.hashing import NOT_LOCAL
from groundling.settings.fields import flatten_settings

BASES = ("student", "model")
"""Settings that may name the base model, in this order."""

MLM_HEAD_TEXTS = {
    "this run's": "`AutoModelForMaskedLM.from_pretrained` loads the masked-LM head that was trained in this run. "
    "`AutoModel`, which needs no head, reports its weights as UNEXPECTED.",
    "the student's": "`AutoModelForMaskedLM.from_pretrained` loads the student's own masked-LM head, "
    "which was not trained in this run. "
    "`AutoModel`, which needs no head, reports its weights as UNEXPECTED.",
    "none": "There is no masked-LM head: `AutoModelForMaskedLM` would initialise one randomly.",
}
"""Text of a model card on the masked-LM head, by the head's origin."""


def card(
    name: str,
    folder: Path,
    run: Mapping[str, Any],
    result: Mapping[str, Any],
    defaults: Sequence[Any],
) -> str:
    """README.md of a model on the hub.

    Args:
        name: `OWNER/NAME` of the repository.
        folder: the model folder, which determines the library.
        run: `config.json` of the run folder.
        result: `result.json` of the run folder.
        defaults: default settings of its command, and default training settings.

    Local files appear by name only, without the folders of this machine.
    """
    local = {one["path"] for one in run["inputs"].values() if one["sha256"] != NOT_LOCAL}
    inputs = {key: _shown(one["path"], local) for key, one in run["inputs"].items()}
    bases = [_shown(run["config"][key], local) for key in BASES if run["config"].get(key)]
    base = bases[0] if bases else "nothing"
    hub = [one["path"] for one in run["inputs"].values() if one["sha256"] == NOT_LOCAL]
    library = library_of(folder)
    data = ModelCardData(
        library_name=library,
        base_model=base if base in hub else None,
        tags=["groundling", run["kind"]],
    )
    facts = {"started from": base, "objectives": ", ".join(result.get("objectives", []))}
    facts |= {key: inputs[key] for key in inputs if key not in BASES}
    facts |= {key: str(result[key]) for key in ("task", "arm", "steps") if key in result}
    lines = [f"- {key}: {value}" for key, value in facts.items() if value]
    numbers = [f"| {key} | {value:.4g} |" for key, value in _numbers(result)]
    table = ["| measured | |", "|---|---:|", *numbers] if numbers else ["nothing"]
    notes = [f"- {_without_folders(note, local)}" for note in result.get("notes", [])]
    versions = ", ".join(f"{key} {value}" for key, value in run["versions"].items())
    parts = [
        f"---\n{data.to_yaml()}\n---\n# {name.partition('/')[2]}",
        f"Made with groundling (`groundling {run['kind']}`). {_loading(name, library)}",
        MLM_HEAD_TEXTS.get(result.get("fills_masks", ""), ""),
        "## What it was made from\n\n" + "\n".join(lines),
        "```\n" + command(run, local, defaults) + "\n```",
        "## Scores\n\n" + "\n".join(table),
        "\n".join(["## Notes", "", *notes]) if notes else "",
        f"{versions}; commit {run['commit']}. The licences of its base model, of its teacher and of "
        "the data apply.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def command(run: Mapping[str, Any], local: set[str], defaults: Sequence[Any]) -> str:
    """The command line of a run, with the settings that differ from the defaults."""
    config = run["config"]
    own = dict(_leaves({key: value for key, value in config.items() if key != "train"}))
    groups = (own, dict(_leaves(config["train"])))
    words = ["groundling", run["kind"]]
    for settings, values in zip(defaults, groups, strict=True):
        for group, one in flatten_settings(settings):
            default = vars(group)[one.name]
            default = list(default) if isinstance(default, tuple) else default
            value = values.get(one.name, default)
            if value != default:
                words += _flag(one.name, value, local)
    return " ".join(words)


def _flag(name: str, value: object, local: set[str]) -> list[str]:
    """A setting as typed."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    every = value if isinstance(value, list) else [value]
    return [f"--{flag}", *(_shown(str(one), local) for one in every)]


def end_of_path(place: str) -> str:
    """The last two parts of a local path, without the folders of this machine; a hub id as it is."""
    if not Path(place).exists():
        return place
    path = Path(os.path.abspath(place))
    top = Path.home() if path.is_relative_to(Path.home()) else Path(path.anchor)
    return "/".join(path.relative_to(top).parts[-2:])


def _shown(value: str, local: set[str]) -> str:
    """A setting's value without the folders of this machine."""
    # NAME=FOLDER and FILE=WEIGHT contain `=`, and folder names may too.
    starts = [0, *(at + 1 for at, letter in enumerate(value) if letter == "=")]
    for start in starts:
        place, equals_sign, weight = value[start:].rpartition("=")
        for path, rest in ((value[start:], ""), (place, equals_sign + weight)):
            if path in local or Path(path).is_absolute() or path.startswith("~"):
                return value[:start] + Path(path).name + rest
    return value


def _without_folders(text: str, local: set[str]) -> str:
    """A sentence in which local files are shown by name only."""
    for place in sorted(local, key=len, reverse=True):
        text = text.replace(place, Path(place).name)
    return text


def _leaves(nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Single settings by name, nested groups included."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield key, value


SCORES = ("median", "official", "retrieval", "retention", "held", "train_metrics")
"""Parts of a result whose numbers the card lists."""


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers of a result, by name."""
    for part in SCORES:
        yield from _inside(part, result.get(part, {}))


def _inside(name: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _inside(f"{name}: {key}", one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def library_of(folder: Path) -> str:
    """The library that loads a model folder."""
    if (folder / "modules.json").exists():
        return "sentence-transformers"
    return "transformers" if (folder / "config.json").exists() else "groundling"


def _loading(name: str, library: str) -> str:
    """How to load it from the hub."""
    return {
        "sentence-transformers": f'Load it with `SentenceTransformer("{name}")`.',
        "transformers": f'Load it with `AutoModel.from_pretrained("{name}")`.',
        "groundling": f"Download it with `hf download {name} --local-dir FOLDER`, and "
        "pass FOLDER to groundling's commands.",
    }[library]
