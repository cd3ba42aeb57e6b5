"""`bench.json`: everything that a bench measured, and how benches of several places are joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from groundling.core.errors import InputError, convert_errors
from groundling.core.registry import describe_value
from groundling.runs.folder import difference, read_object
from groundling.stats.linear_probes import TEXTUAL
from groundling.studies.bench.arms import METHOD, TEXT_CONTROL
from groundling.studies.bench.judge import base_entries
from groundling.studies.bench.method import CLASSES
from groundling.studies.bench.protocol import TUNING_WORLD
from groundling.studies.bench.readings import MASKED_LM, VISUAL

FORMAT = "groundling bench"
REAL_FORMAT = "groundling bench on a real encoder"
VERSION = 2
"""Increases with every change of the file's layout."""
NAME = "bench.json"
TOO_LARGE = 1e15
"""No reading or cost reaches it; the squares of larger numbers may overflow."""
ROUNDING = 1e-5
"""Published results are rounded."""
NOT_DONE = "not done yet: "
"""Beginning of the note on missing jobs, which holds only when it is written."""

Bench = dict[str, Any]
"""Content of a bench.json."""


def read_bench(source: str | Path) -> Bench:
    """The content of a bench.json, or of the one in a folder; raises InputError if it is damaged."""
    path = Path(source)
    path = path / NAME if path.is_dir() else path
    if not path.exists():
        raise InputError(f"{path}: does not exist; a bench writes it when its runs are finished")
    bench = read_object(path)
    if bench.get("format") == REAL_FORMAT:
        raise InputError(
            f"{path}: is a bench on a real encoder; these cannot be merged, run their methods into one out"
        )
    if (bench.get("format"), bench.get("version")) != (FORMAT, VERSION):
        found = f"{bench.get('format')!r}, version {bench.get('version')!r}"
        raise InputError(f"{path}: {found}; expected {FORMAT!r}, version {VERSION}")
    advice = "; run that bench again"
    with convert_errors(f"{path}: damaged", advice):
        check_bench(bench)
    return bench


def check_bench(bench: Mapping[str, Any]) -> None:
    """Check everything that a merged bench needs; raises what a reader of damaged content raises."""
    for name, about in bench["methods"].items():
        _text(name)
        _ = (about["source"], about["stages"], about["grid"], _text(about["weight"]))
        if about["data"] not in CLASSES:
            raise ValueError(f"data = {about['data']!r}, expected one of {', '.join(CLASSES)}")
    names: dict[str, str] = {}
    for name, about in bench["worlds"].items():
        check_world(about)
        same = names.setdefault(about["world"], _text(name))
        if same != name:
            raise ValueError(f"{same} and {name} are one world (hash {about['world'][:12]})")
    protocol = bench["protocol"]
    _ = (_text(protocol["settings"]), _whole(protocol["steps"]), _whole(protocol["batch"]))
    if _number(protocol["scale"]) <= 0:
        raise ValueError(f"scale = {protocol['scale']}, expected a number above 0")
    seen = set()
    models: dict[object, object] = {}
    texts: dict[str, str] = {}
    for one in _list(bench["runs"]):
        check_run(one)
        world = f"{one['family']} {one['world']}"
        if world == str(TUNING_WORLD):
            raise ValueError(f"{world} chooses the weights, so its results are not reported")
        _ = bench["worlds"][world]
        place = (*_place(one), one["handed"])
        if place in seen:
            raise ValueError(f"{world}: {one['method'] or one['arm']} is listed twice")
        seen.add(place)
        if one["method"] and texts.setdefault(one["method"], one["texts"]) != one["texts"]:
            raise ValueError(f"runs of {one['method']} read different texts")
        sha256 = one.get("model", {}).get("sha256")
        where = f"{world}, seed {one['seed']}"
        # A run of the world itself may stand under several conditions.
        if sha256 is not None and models.setdefault(sha256, where) != where:
            raise ValueError(f"one model is listed for {models[sha256]} and for {where}")
    for name, about in bench["weights"].items():
        values = [(value, _number(score)) for value, score in about["scores"]]
        if isinstance(about["chosen"], str):
            _text(about["chosen"])
        if about["chosen"] not in [value for value, _ in values]:
            raise ValueError(f"weights of {name}: {about['chosen']!r} was not among the values")
        _ = bench["methods"][name]["weight"]
    for note in _list(bench["notes"]):
        _text(note)


def check_world(about: Mapping[str, Any]) -> None:
    """Check what pages show of a world; raises what a reader of damaged content raises."""
    _text(about["world"])
    for value in (about.get("retrieval") or {}).values():
        _number(value)


def _list(value: object) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError(f"{describe_value(value)} in place of a list")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{describe_value(value)} in place of a text")
    if not value.isprintable():
        raise ValueError(f"{value!r} has characters that cannot be printed")
    return value


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < TOO_LARGE:
        raise ValueError(f"{describe_value(value)} in place of a number")
    return value


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{describe_value(value)} in place of a whole number")
    return value


def check_run(one: Mapping[str, Any]) -> None:
    """Check everything that tables and verdicts need of a run; raises what a reader of damaged content raises."""
    for name in ("method", "arm", "family", "handed"):
        _text(one[name])
    _ = (_whole(one["seed"]), _whole(one["world"]))
    if one["arm"] == METHOD and not one["method"]:
        raise ValueError("a run of a method without a name")
    if one["method"] or one["arm"] == TEXT_CONTROL:
        _text(one["texts"])
    if not isinstance(one.get("model", {}), dict):
        raise TypeError(f"model: {describe_value(one['model'])}")
    if "condition" in one:
        _ = (_text(one["condition"]["axis"]), _whole(one["condition"]["value"]))
    for name, reading in one["readings"].items():
        for part, value in reading.items():
            if part in ("scores", "trained"):
                _ = [_number(float(each)) for each in value if each is not None]
            elif part == "chance":
                _share(value)
            elif value is not None:
                _ = _number(value) if name == MASKED_LM else _share(value)
    _check_visual(one["readings"], "condition" in one)
    if "cost" in one or one["method"]:
        cost = one["cost"]
        # A model may have fewer parameters afterwards.
        for value in (cost["extra_parameters"], cost["parameters_after"], *cost["epochs"]):
            _number(value)
        _ = (_number(cost["memory_mb"] or 0), _number(cost.get("core_seconds", 0)))
        spent = [_number(cost[name]) for name in ("steps", "samples", "seconds")]
        if min(spent) < 0 or cost["steps"] == 0:
            raise ValueError("a negative cost, or no step")
        if not isinstance(one.get("weight"), int | float | str | None):
            raise TypeError(f"weight: {describe_value(one['weight'])}")
        if not all(_text(remark) for remark in _list(one["remarks"])):
            raise ValueError("an empty remark")


def _check_visual(readings: Mapping[str, Any], of_curve: bool) -> None:
    """The visual reading is the mean of its attributes, which only published runs of curves leave out."""
    attributes = [
        reading
        for name, reading in readings.items()
        if name.startswith("linear/") and name != f"linear/{TEXTUAL}"
    ]
    if VISUAL not in readings or (of_curve and not attributes):
        return
    if not attributes:
        raise ValueError(f"{VISUAL} without the readings of its attributes, linear/...")
    for part in ("dev", "test"):
        expected = mean(one[part] for one in attributes)
        if abs(readings[VISUAL][part] - expected) > ROUNDING:
            raise ValueError(
                f"{VISUAL}, {part}: {readings[VISUAL][part]}, its attributes give {expected:.4f}"
            )


def _share(value: object) -> float:
    share = _number(value)
    if not 0 <= share <= 1:
        raise ValueError(f"{value} in place of a share from 0 to 1")
    return share


def merge(sources: Sequence[str | Path]) -> tuple[Bench, list[str]]:
    """Several benches as one, and notes on what occurs twice.

    Raises InputError for other formats or protocols, other worlds of the same seed, and a method of the same name
    with another source.
    """
    if len(sources) < 2:
        raise InputError("merge: expected at least two benches")
    places = [Path(source).resolve() for source in sources]
    for source, place in zip(sources, places, strict=True):
        if places.count(place) > 1:
            raise InputError(f"merge={source}: is given twice")
    merged = read_bench(sources[0])
    notes: list[str] = []
    for source in sources[1:]:
        notes += _add(merged, read_bench(source), source)
        with convert_errors(f"{source}: cannot be joined with the benches before it"):
            check_bench(merged)
    return merged, notes


def _add(merged: Bench, other: Bench, source: str | Path) -> list[str]:
    """Add a bench; returns notes."""
    differing = difference(other["protocol"], merged["protocol"], "protocol")
    if differing:
        raise InputError(
            f"{source}: another protocol than the first bench's ({differing}), so nothing is comparable"
        )
    for name, about in other["worlds"].items():
        known = merged["worlds"].setdefault(name, about)
        if known["world"] != about["world"]:
            raise InputError(
                f"{source}: world {name} has other texts, nouns or images (hash {about['world'][:12]}, expected "
                f"{known['world'][:12]}), so nothing is comparable"
            )
    for name, about in other["methods"].items():
        known = merged["methods"].setdefault(name, about)
        # Words about a method are not the method.
        differing = difference({**known, "paper": about["paper"]}, about, name)
        if differing:
            raise InputError(
                f"{source}: another method is called {name} ({differing}); rename one and run it again"
            )
    notes = _differing_weights(merged["weights"], other["weights"], source)
    merged["notes"] += [note for note in other["notes"] if note not in merged["notes"]]
    return [*notes, *_add_runs(merged, other["runs"], source)]


def _differing_weights(
    weights: dict[str, Any], others: Mapping[str, Any], source: str | Path
) -> list[str]:
    """Add chosen weights; returns notes on methods whose weights differ."""
    notes = []
    for name, about in others.items():
        chosen = weights.setdefault(name, about)["chosen"]
        if chosen != about["chosen"]:
            notes.append(
                f"{source}: {name} was tuned to {about['chosen']} there and to {chosen} in the earlier bench; each run "
                "has the weight of its own bench"
            )
    return notes


def add_earlier(found: Bench, path: Path) -> Bench:
    """A bench with the methods and worlds that the same folder's bench.json has from earlier commands."""
    if not path.exists():
        return found
    try:
        earlier = read_bench(path)
    except InputError as error:
        raise InputError(f"{error}; delete this file, which is written anew") from None
    differing = difference(earlier["protocol"], found["protocol"], "protocol")
    if differing:
        raise InputError(f"{path}: another protocol ({differing}); delete it to write a new one")
    # Only what this folder's runs have measured: a file can be edited.
    measured_here = {_made(result) for result in finished_runs(path.parent / "jobs")}
    earlier["runs"] = [one for one in earlier["runs"] if _made(one) in measured_here]
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


def finished_runs(jobs: Path) -> list[dict[str, Any]]:
    """The results of arms and towers in a folder of jobs; raises InputError for a damaged one."""
    results = [(path, read_object(path)) for path in sorted(jobs.glob("*.json"))]
    return [checked_run(path, one) for path, one in results if "arm" in one and "handed" in one]


def read_run(path: Path) -> dict[str, Any]:
    """The result of an arm or a tower; raises InputError if it is damaged."""
    return checked_run(path, read_object(path))


def checked_run(path: Path, run: dict[str, Any]) -> dict[str, Any]:
    """The content of a job's file; raises InputError if it is no whole result of an arm or a tower."""
    with convert_errors(f"{path}: damaged", "; delete it to run the arm again"):
        check_run(run)
    return run


def _made(one: Mapping[str, Any]) -> tuple[object, ...]:
    """What identifies a run and its model; a control may be listed under several conditions."""
    sha256 = one.get("model", {}).get("sha256")
    place = (one["family"], one["world"], one["seed"])
    return (one["method"], one["arm"], *place, one.get("texts"), sha256)


def _place(one: Mapping[str, Any]) -> tuple[object, ...]:
    """What identifies an entry in one folder."""
    place = (one["family"], one["world"], _condition(one), one["seed"])
    return (one["method"], one["arm"], *place, one.get("texts"))


def _condition(one: Mapping[str, Any]) -> str:
    """An entry's condition in words; empty outside of curves."""
    about = one.get("condition")
    return "" if about is None else f", {about['axis']} {about['value']}"


def _add_runs(merged: Bench, runs: Sequence[dict[str, Any]], source: str | Path) -> list[str]:
    """Add runs; of a method that both ran in one world, the runs of the bench with more seeds are kept."""
    notes = []
    for own in sorted({_of_world(one) for one in runs}):
        name, family, world, condition = own
        new = [one for one in runs if _of_world(one) == own]
        old = [one for one in merged["runs"] if _of_world(one) == own]
        if not name or not old or new == old:
            known = {(*_place(one), one["handed"]) for one in old}
            merged["runs"] += [one for one in new if (*_place(one), one["handed"]) not in known]
            continue
        replaces = _seeds(new) > _seeds(old)
        if replaces:
            merged["runs"] = [one for one in merged["runs"] if one not in old] + new
        kept = source if replaces else "the earlier bench"
        notes.append(
            f"{name} was run in world {family} {world}{condition} by two benches; those of {kept} count"
        )
        for remark in sorted({one for run in (old if replaces else new) for one in run["remarks"]}):
            notes.append(f"the runs of {name} that do not count have the remark: {remark}")
    base = base_entries(merged["runs"])
    encoders = {one["handed"] for one in base}
    worlds = {_of_world(one)[1:] for one in base}
    if len(encoders) > len(worlds):
        notes.append(
            f"{source}: its encoder or teachers differ, although its worlds are the same, as on another processor or "
            "in another folder; each method is compared with the controls of its own bench"
        )
    return notes


def _of_world(one: Mapping[str, Any]) -> tuple[str, str, int, str]:
    return (one["method"], one["family"], one["world"], _condition(one))


def _seeds(runs: Sequence[Mapping[str, Any]]) -> int:
    return sum(one["arm"] == METHOD for one in runs)
