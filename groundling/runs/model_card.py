"""What a saved model's card on the hub says of it, from what its run folder holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData

from groundling.runs.hashing import NOT_LOCAL
from groundling.settings.fields import flatten_settings

BASES = ("student", "model")
"""Settings that name the model that was started from, the first that a command has."""

FILLS_MASKS = {
    "this run's": "`AutoModelForMaskedLM.from_pretrained` fills masks with the head that was trained here. "
    "`AutoModel`, which needs no head, reports its weights as UNEXPECTED.",
    "the student's": "`AutoModelForMaskedLM.from_pretrained` has the student's own head, which was not trained here. "
    "`AutoModel`, which needs no head, reports its weights as UNEXPECTED.",
    "none": "It has no masked-LM head: that of `AutoModelForMaskedLM` would be random.",
}
"""What a model's card says of masks, by whose head its folder has."""


def card(
    name: str,
    folder: Path,
    run: Mapping[str, Any],
    result: Mapping[str, Any],
    defaults: Sequence[Any],
) -> str:
    """The README.md of a model on the hub.

    Args:
        name: `OWNER/NAME` there.
        folder: the model's own, which tells what loads it.
        run: `config.json` of the run's folder.
        result: its `result.json`.
        defaults: the settings of its command, and those of its training, where nobody says otherwise.

    Of local files the names alone are told, no folders of this machine.
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
        FILLS_MASKS.get(result.get("fills_masks", ""), ""),
        "## What it was made from\n\n" + "\n".join(lines),
        "```\n" + command(run, local, defaults) + "\n```",
        "## Scores\n\n" + "\n".join(table),
        "\n".join(["## Notes", "", *notes]) if notes else "",
        f"{versions}; commit {run['commit']}. The licences of the model it was started from, of its teacher and of "
        "the data apply.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def command(run: Mapping[str, Any], local: set[str], defaults: Sequence[Any]) -> str:
    """The command of a run, of its settings those that are not the default."""
    kept = run["config"]
    own = dict(_leaves({key: value for key, value in kept.items() if key != "train"}))
    given = (own, dict(_leaves(kept["train"])))
    words = ["groundling", run["kind"]]
    for settings, values in zip(defaults, given, strict=True):
        for group, one in flatten_settings(settings):
            default = vars(group)[one.name]
            default = list(default) if isinstance(default, tuple) else default
            value = values.get(one.name, default)
            if value != default:
                words += _flag(one.name, value, local)
    return " ".join(words)


def _flag(name: str, value: object, local: set[str]) -> list[str]:
    """A setting as it is typed."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    every = value if isinstance(value, list) else [value]
    return [f"--{flag}", *(_shown(str(one), local) for one in every)]


def _shown(value: str, local: set[str]) -> str:
    """A setting's value without the folders of this machine."""
    # NAME=FOLDER and FILE=WEIGHT have a `=`, and so may any folder's own name.
    starts = [0, *(at + 1 for at, letter in enumerate(value) if letter == "=")]
    for start in starts:
        place, equals_sign, weight = value[start:].rpartition("=")
        for path, rest in ((value[start:], ""), (place, equals_sign + weight)):
            if path in local or Path(path).is_absolute() or path.startswith("~"):
                return value[:start] + Path(path).name + rest
    return value


def _without_folders(text: str, local: set[str]) -> str:
    """A sentence in which files of this machine are called by their names alone."""
    for place in sorted(local, key=len, reverse=True):
        text = text.replace(place, Path(place).name)
    return text


def _leaves(nested: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Single settings by name, those of groups too."""
    for key, value in nested.items():
        if isinstance(value, Mapping):
            yield from _leaves(value)
        else:
            yield key, value


MEASURED = ("median", "official", "retrieval", "retention", "held", "train_metrics")
"""Parts of a result whose numbers are told."""


def _numbers(result: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """Numbers of a result by what they are of."""
    for part in MEASURED:
        yield from _inside(part, result.get(part, {}))


def _inside(name: str, value: object) -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, one in value.items():
            yield from _inside(f"{name}: {key}", one)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield name, value


def library_of(folder: Path) -> str:
    """What loads a model's folder."""
    if (folder / "modules.json").exists():
        return "sentence-transformers"
    return "transformers" if (folder / "config.json").exists() else "groundling"


def _loading(name: str, library: str) -> str:
    """How to load it from the hub."""
    return {
        "sentence-transformers": f'Load it with `SentenceTransformer("{name}")`.',
        "transformers": f'Load it with `AutoModel.from_pretrained("{name}")`.',
        "groundling": f"Get it with `hf download {name} --local-dir FOLDER`, and give FOLDER to groundling's commands.",
    }[library]
