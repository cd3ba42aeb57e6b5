"""`bench.json`: everything that a bench measured. It and the files of jobs are read once, against one schema."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, NonNegativeInt, PositiveFloat, PositiveInt

from groundling.core.errors import InputError, convert_read_errors
from groundling.runs.folder import difference, read_object
from groundling.studies.bench.method import DataClass

FORMAT = "groundling bench"
REAL_FORMAT = "groundling bench on a real encoder"
VERSION = 2
"""Increases with every change of the file's layout."""
NAME = "bench.json"
NOT_DONE = "not done yet: "
"""Beginning of the note on missing jobs, which holds only when it is written."""

Bench = dict[str, Any]
"""Content of a bench.json."""


class Schema(BaseModel):
    """What is used as it stands in the file: numbers that are numbers, and finite."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class CostSchema(Schema):
    """Of training."""

    steps: PositiveInt
    samples: int
    epochs: list[float]
    seconds: float
    core_seconds: float = 0.0
    memory_mb: int | None = None
    extra_parameters: int
    parameters_after: int


class _Condition(Schema):
    axis: str
    value: int


class _ModelHash(Schema):
    sha256: str


class _Run(Schema):
    """An arm or a tower."""

    method: str
    arm: str
    family: str
    world: NonNegativeInt
    seed: NonNegativeInt
    handed: str
    texts: str = ""
    """Of towers: none."""
    condition: _Condition | None = None
    weight: float | str | None = None
    readings: dict[str, dict[str, float | list[float | bool | None] | None]]
    remarks: list[str] = []


class _TrainedRun(_Run):
    cost: CostSchema
    model: _ModelHash | None = None
    """Left out of published runs of curves."""
    texts: str
    remarks: list[str]


class _World(Schema):
    world: str
    retrieval: dict[str, float] | None = None


class _Method(Schema):
    data: DataClass
    weight: str
    grid: list[float | str]


class _Weights(Schema):
    scores: list[list[float | str]]
    chosen: float | str


class _Protocol(Schema):
    settings: str
    scale: PositiveFloat
    steps: int
    batch: int


class _Bench(Schema):
    protocol: _Protocol
    methods: dict[str, _Method]
    worlds: dict[str, _World]
    weights: dict[str, _Weights]
    runs: list[dict[str, Any]]
    notes: list[str]


def read_bench(source: str | Path) -> Bench:
    """The content of a bench.json, or of the one in a folder; raises InputError if it is damaged."""
    path = Path(source)
    path = path / NAME if path.is_dir() else path
    bench = read_object(path)
    if (bench.get("format"), bench.get("version")) != (FORMAT, VERSION):
        found = f"{bench.get('format')!r}, version {bench.get('version')!r}"
        raise InputError(f"{path}: {found}; expected {FORMAT!r}, version {VERSION}")
    with convert_read_errors(path):
        _Bench.model_validate(bench)
        for one in bench["runs"]:
            _validate_run(one)
    return bench


def read_run(path: Path) -> dict[str, Any]:
    """The result of an arm or a tower; raises InputError if it is damaged."""
    run = read_object(path)
    with convert_read_errors(path, "; delete it to run the arm again"):
        _validate_run(run)
    return run


def _validate_run(run: Mapping[str, Any]) -> None:
    is_trained = "cost" in run or bool(run["method"])
    (_TrainedRun if is_trained else _Run).model_validate(run)


def finished_runs(jobs: Path) -> list[dict[str, Any]]:
    """The results of arms and towers in a folder of jobs; raises InputError for a damaged one."""
    paths = [path for path in sorted(jobs.glob("*.json")) if "arm" in read_object(path)]
    return [read_run(path) for path in paths]


def add_earlier(found: Bench, path: Path) -> Bench:
    """A bench with the methods and worlds that the same folder's bench.json has from earlier commands."""
    if not path.exists():
        return found
    earlier = read_bench(path)
    differing = difference(earlier["protocol"], found["protocol"], "protocol")
    if differing:
        raise InputError(f"{path}: another protocol ({differing}); delete it to write a new one")
    for part in ("methods", "worlds", "weights"):
        found[part] = {**earlier[part], **found[part]}
    measured = {_place(one) for one in found["runs"]}
    found["runs"] += [one for one in earlier["runs"] if _place(one) not in measured]
    # Curves do not fine-tune, so a run may have more readings of an earlier command.
    before = {_made(one): one["readings"] for one in earlier["runs"]}
    for one in found["runs"]:
        one["readings"] = {**before.get(_made(one), {}), **one["readings"]}
    notes = [note for note in earlier["notes"] if not note.startswith(NOT_DONE)]
    found["notes"] = list(dict.fromkeys([*found["notes"], *notes]))
    return found


def _made(one: Mapping[str, Any]) -> tuple[object, ...]:
    """What identifies a run and its model; a control may be listed under several conditions."""
    sha256 = one.get("model", {}).get("sha256")
    place = (one["family"], one["world"], one["seed"])
    return (one["method"], one["arm"], *place, one.get("texts"), sha256)


def _place(one: Mapping[str, Any]) -> tuple[object, ...]:
    """What identifies an entry in one folder."""
    condition = one.get("condition", {})
    place = (one["family"], one["world"], condition.get("axis"), condition.get("value"))
    return (one["method"], one["arm"], *place, one["seed"], one.get("texts"))
