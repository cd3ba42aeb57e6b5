"""Readings of an encoder on published sets, through the commands that read them: gains, and the price."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from io import StringIO
from pathlib import Path
from statistics import mean
from types import FunctionType
from typing import Any, Literal

import torch

from groundling.command_line import COMMANDS
from groundling.commands.adapt.evaluation import read_pairs
from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.core.registry import import_object
from groundling.data.tables import lines_of
from groundling.models.sentence_modules import make_sentence_modules
from groundling.models.text_encoder import load_text_encoder
from groundling.prediction.similarity import sentence_vectors
from groundling.runs.folder import data_hash, decoded_json
from groundling.runs.jobs import use_cpu
from groundling.runs.report import format_count
from groundling.settings.fields import replace_settings
from groundling.studies.bench.commands import RealSettings
from groundling.studies.bench.protocol import key_of

SetKind = Literal["facts", "words", "retention", "pairs", "task"]
KEY = 6
"""Characters of a set's hash in its name."""
KNOWLEDGE = "groundling.studies.knowledge"
FILE_READERS = {
    "facts": f"{KNOWLEDGE}.visual_facts:open_facts",
    "words": f"{KNOWLEDGE}.word_similarity:read_word_pairs",
    "pairs": f"{KNOWLEDGE}.minimal_pairs:read_minimal_pairs",
}
"""By kind: who reads its file, by MODULE:NAME, since no study imports another."""
GAINS = ("facts", "words")
"""Kinds of readings in which a method may gain; the others are its price."""
SPEARMANS = "Spearman of cosine"
"""Measure of word pairs and of text pairs."""
DEVIATIONS = "correlation of deviations"
"""Measure of the linear mode: predicted against people's answers, both less the mean noun's."""

Reading = dict[str, Any]
"""`reading`: its name; `gain`: whether it is one; `measure`, `value`; `chance` if known; `same_items`: sets that \
share items with its own; `groups`: what is resampled, and its `items`, or `cosines` with `ratings`."""


@dataclass(frozen=True)
class SetReader:
    """A file of items, or a task, on which every encoder is read."""

    kind: SetKind
    source: str
    """The file, or the task's name."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Settings of the command that reads it, by name."""
    data: str = ""
    """A task's folder."""

    @property
    def name(self) -> str:
        """Its name in jobs, which does not depend on where the file is."""
        if self.kind == "task":
            return f"{self.source} {self.key[:KEY]}"
        path = Path(self.source)
        return f"{self.kind} {path.resolve().parent.name} {path.stem} {self.key[:KEY]}"

    @property
    def about(self) -> str:
        """The file or task, and how it is read, in words."""
        given = dict(self.settings)
        how = {
            "facts": ", ".join(given.get("modes", ())),
            "words": "rated word pairs",
            "retention": "similarities of text pairs",
            "pairs": "minimal pairs",
            "task": f"fine-tuned with {format_count(given.get('seeds', 0), 'seed')}",
        }
        return f"{self.source} ({how[self.kind]})"

    @property
    def key(self) -> str:
        """Hash of its content, and of how it is read."""
        return key_of(self.kind, data_hash(self.data or self.source), self.settings)

    def read(self, model: Path, out: Path, cpu: bool) -> dict[str, Reading]:
        """The readings of an encoder by name; `out` is the folder of the command that reads it.

        Raises InputError for a file that no reader knows, and as the command does.
        """
        settings = dict(self.settings)
        if self.kind == "retention":
            found = [_read_retention(self.source, model, cpu)]
        else:
            with redirect_stdout(StringIO()):  # tables of the commands, one for each arm
                found = READERS[self.kind](self, str(model), settings, out)
        return {one["reading"]: one | {"gain": self.kind in GAINS} for one in found}


def set_readers(settings: RealSettings) -> list[SetReader]:
    """The sets of a bench, gains first."""
    modes = (("modes", settings.modes),)
    limit = (("limit", settings.pair_limit), ("cpu", settings.cpu))
    tuned = (
        *(("seeds", settings.task_seeds), ("limit_train", settings.limit_train)),
        ("cpu", settings.cpu),
    )
    sets = [SetReader("facts", file, modes) for file in settings.facts]
    sets += [SetReader("words", file) for file in settings.words]
    if settings.retention_pairs:
        sets.append(SetReader("retention", settings.retention_pairs))
    sets += [SetReader("pairs", file, limit) for file in settings.minimal_pairs]
    sets += [SetReader("task", name, tuned, settings.data) for name in settings.tasks]
    return sets


def check_set(one: SetReader) -> None:
    """Raises InputError for a file that no reader knows; a task's files are read with the unadapted encoder, first."""
    if one.kind == "retention":
        read_pairs(one.source)
    if one.kind in FILE_READERS:
        import_object(FILE_READERS[one.kind], FunctionType)(one.source)


# -- facts -------------------------------------------------------------------------------------------------------------


def _read_facts(
    one: SetReader, model: str, settings: Mapping[str, Any], out: Path
) -> list[Reading]:
    """A reading for each mode and relation."""
    command = COMMANDS["probe-facts"]
    config = replace_settings(command.settings["_own"], model=model, data=one.source, **settings)
    result = command(config, out)
    about = result.get("set", {})
    readings = []
    for mode in settings["modes"]:
        relations = result[mode]["relations"]
        rows = _json_lines(out / f"scores_{mode}.jsonl")
        for relation, groups in relations.items():
            name = about.get("name", Path(one.source).stem)
            name += f" {relation}" if len(relations) > 1 else ""
            measure = _fact_measure(mode, about, groups["all"])
            field = "deviations" if measure == DEVIATIONS else measure
            own = [
                row for row in rows if row["relation"] == relation and row.get(field) is not None
            ]
            if not own:
                continue
            items = [row[field] for row in own]
            readings.append(
                {
                    "reading": f"{name}, {mode}",
                    "measure": measure,
                    "value": mean(items),
                    "chance": groups["all"].get("chance") if measure == "accuracy" else None,
                    "same_items": about.get("same_items", []),
                    "set": name,
                    "groups": [row["subject"].lower() for row in own],
                    "items": items,
                }
            )
    return readings


def _fact_measure(mode: str, about: Mapping[str, Any], scores: Mapping[str, Any]) -> str:
    """The measure of a set's paper, or for the linear mode the one that predicting the mean does not inflate."""
    if mode == "linear":
        # Facts whose options differ have no common distribution.
        same_options = "spearman" in scores["from"]["state"]
        return DEVIATIONS if same_options else "accuracy"
    first = about.get("measure", "accuracy").partition(",")[0].lower()
    return {"spearman": "spearman", "map": "map"}.get(first, "accuracy")


def _json_lines(path: Path) -> list[dict[str, Any]]:
    return [decoded_json(str(path), line) for line in lines_of(path)]


# -- words, texts, pairs, tasks ----------------------------------------------------------------------------------------


def _read_words(
    one: SetReader, model: str, settings: Mapping[str, Any], out: Path
) -> list[Reading]:
    """The last layer's correlation, which is not selected on the set."""
    command = COMMANDS["probe-words"]
    config = replace_settings(command.settings["_own"], model=model, data=(one.source,))
    ((name, found),) = command(config, out)["sets"].items()
    rows = _json_lines(out / "pairs.jsonl")
    return [
        {
            "reading": f"{name}, last layer",
            "measure": SPEARMANS,
            "value": found["last"]["spearman"],
            "same_items": found.get("set", {}).get("same_items", []),
            "set": name,
            "groups": [" ".join(row["words"]) for row in rows],
            "cosines": [row["cosine"] for row in rows],
            "ratings": [row["rating"] for row in rows],
        }
    ]


def _read_retention(source: str, model: Path, cpu: bool) -> Reading:
    """Text pairs: cosines of the encoder's own sentence vectors, or of mean states of a plain encoder."""
    pairs = read_pairs(source)
    text = load_text_encoder(str(model))
    text.to(torch.device("cpu") if use_cpu(cpu) else torch.accelerator.current_accelerator())
    sentence = text.sentence or make_sentence_modules("mean", text.sizes.text, text.max_length)
    sides = zip(*pairs.texts, strict=True)
    one, other = (sentence_vectors(text, sentence, list(side))[0] for side in sides)
    cosines = torch.nn.functional.cosine_similarity(one, other).double().numpy()
    return {
        "reading": "STS-B" if Path(source).is_dir() else Path(source).stem,
        "measure": SPEARMANS,
        "value": float(SPEARMAN.compute(cosines, pairs.similarities)),
        "same_items": [],
        "set": "STS-B",
        "groups": [f"{left}\t{right}" for left, right in pairs.texts],
        "cosines": cosines.round(6).tolist(),
        "ratings": pairs.similarities.tolist(),
    }


def _read_pairs(
    one: SetReader, model: str, settings: Mapping[str, Any], out: Path
) -> list[Reading]:
    command = COMMANDS["pairs"]
    config = replace_settings(command.settings["_own"], model=model, data=one.source, **settings)
    result = command(config, out)
    rows = _json_lines(out / "items.jsonl")
    rule = next(iter(result["chance"]))
    items = [row["model"][rule] for row in rows]
    return [
        {
            "reading": f"minimal pairs {Path(one.source).stem}",
            "measure": rule,
            "value": mean(items),
            "chance": result["chance"][rule],
            "same_items": [],
            "set": Path(one.source).stem,
            "groups": [f"{row['paradigm']} {row['id']}" for row in rows],
            "items": items,
        }
    ]


def _read_task(one: SetReader, model: str, settings: Mapping[str, Any], out: Path) -> list[Reading]:
    """The median over fine-tuning seeds, with the settings of `finetune`."""
    command = COMMANDS["finetune"]
    own = {name: value for name, value in settings.items() if name != "cpu"}
    own |= {"model": model, "task": one.source, "data": one.data, "save_model": False}
    config = replace_settings(command.settings["_own"], **own)
    training = replace(command.settings["_train"], cpu=settings["cpu"])
    result = command(config, training, out)
    split = next(iter(result["median"]))
    value = result["median"][split][result["headline"]]
    if value is None:
        raise InputError(f"{out}: {result['headline']} is undefined for a seed")
    return [
        {
            "reading": one.source,
            "measure": result["headline"],
            "value": value,
            "same_items": [],
            "set": one.source,
            "seeds": result["scores"][split][result["headline"]],
        }
    ]


Reader = Callable[[SetReader, str, Mapping[str, Any], Path], list[Reading]]
READERS: Mapping[str, Reader] = {
    "facts": _read_facts,
    "words": _read_words,
    "pairs": _read_pairs,
    "task": _read_task,
}
"""By kind; text pairs have no command of their own."""


def shared_sets(readings: Sequence[Reading]) -> list[tuple[str, str]]:
    """Pairs of read sets that share items, each once, in order of names."""
    names = {one["set"] for one in readings}
    pairs = {
        tuple(sorted((one["set"], other)))
        for one in readings
        for other in one["same_items"]
        if other in names and other != one["set"]
    }
    return sorted((one, other) for one, other in pairs)
