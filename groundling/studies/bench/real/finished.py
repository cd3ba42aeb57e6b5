"""Finished jobs of a bench's folder on a real encoder, of this command and of earlier ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from groundling.core.errors import convert_read_errors
from groundling.runs.folder import read_object
from groundling.studies.bench.protocol import BenchFolder
from groundling.studies.bench.real.readings import KEY, Reading
from groundling.studies.bench.results import CostSchema, Schema

BEFORE = "before"
"""The encoder as the user gave it."""


class _Reading(Schema):
    reading: str
    gain: bool
    measure: str
    set: str
    same_items: list[str]
    value: float


class _Readings(Schema):
    """Of an arm on a set."""

    key: str
    arm: str
    set: str
    readings: list[_Reading]


class _About(Schema):
    data: str
    steps: int
    texts: str
    controls: dict[str, str]


class _ModelPath(Schema):
    path: str


class _Arm(Schema):
    """A trained arm."""

    key: str
    name: str
    arm: str
    seed: int
    method: str
    texts: str
    about: _About | None
    """None: a text control, which methods share."""
    cost: CostSchema
    model: _ModelPath


def read_job(path: Path) -> dict[str, Any]:
    """The result of a job: a trained arm, or an arm's readings on a set.

    Raises InputError, which names the file, if it is damaged.
    """
    job = read_object(path)
    with convert_read_errors(path, "; delete it, and the same command makes it again"):
        (_Readings if "readings" in job else _Arm).model_validate(job)
    return job


def finished_jobs(folder: BenchFolder) -> list[dict[str, Any]]:
    """Every finished job of the folder; raises InputError as `read_job`."""
    return [read_job(path) for path in sorted(folder.jobs.glob("*.json"))]


def collect(folder: BenchFolder, sets: Sequence[str]) -> list[dict[str, Any]]:
    """The unadapted encoder and every trained arm of the folder, by seed, each with its readings by name.

    `sets`: names of this command's sets, which come first. A reading whose name another file gives to
    other items has the other set's hash in its name.
    """
    jobs = finished_jobs(folder)
    read = [one for one in jobs if "readings" in one]
    read.sort(key=lambda job: sets.index(job["set"]) if job["set"] in sets else len(sets))
    names = _names([job for job in read if job["arm"] == BEFORE])
    readings: dict[str, dict[str, Reading]] = defaultdict(dict)
    for job in read:
        for one in job["readings"]:
            name = names.get((job["set"], one["reading"]))
            if name:  # else the unadapted encoder is not read on it yet
                readings[job["arm"]].setdefault(name, one | {"reading": name})
    before = {"name": BEFORE, "arm": BEFORE, "seed": 0, "method": "", "texts": ""}
    arms = [before, *sorted((one for one in jobs if "cost" in one), key=lambda one: one["seed"])]
    return [one | {"readings": readings[one["name"]]} for one in arms]


def _names(before: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], str]:
    """By set and reading: the reading's name in the bench."""
    first: dict[str, Reading] = {}
    names: dict[tuple[str, str], str] = {}
    for job in before:
        for one in job["readings"]:
            name = one["reading"]
            # One file read with more modes is another set with the same items.
            is_same = first.setdefault(name, one) == one
            names[job["set"], name] = name if is_same else f"{name} ({job['set'][-KEY:]})"
    return names
