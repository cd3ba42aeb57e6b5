"""File layouts of zero-shot data for `groundling data check`: minimal pairs and visual facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

from groundling.check.checked_folder import CheckedFolder, CheckReport, DataLayout, LayoutMatch
from groundling.data.captions.files import header_of
from groundling.data.tables import TABLES, separator_note
from groundling.studies.knowledge.fact_files import open_facts
from groundling.studies.knowledge.minimal_pairs import BLIMP, ENDINGS, EWOK, OWN, read_minimal_pairs

PAIRS = {"BLiMP": BLIMP, "EWoK": EWOK, "your own": OWN}
"""Fields that identify a file of pairs; BabyLM's supplement has BLiMP's."""
FACTS: dict[str, tuple[str, ...]] = {
    "CoDa, raw": ("class_id", "included", "action"),
    "CoDa": ("class_id", "ngram", "label"),
    "Memory Colors": ("descriptor", "item", "label"),
    "ViComTe": ("sub", "obj", "alt"),
}
"""Fields that identify a file of facts; ViComTe's distributions are identified by file name."""
DISTRIBUTIONS = "*-dist.jsonl"


def find_minimal_pairs(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Files that `groundling pairs` reads, in the folder and below it."""
    kinds: dict[tuple[Path, str], list[Path]] = {}
    unknown: list[Path] = []
    for path in _files(place, ENDINGS):
        name = _layout_of(path, PAIRS)
        if name:
            kinds.setdefault((path.parent, name), []).append(path)
        elif path.suffix == ".jsonl" and not _layout_of(path, FACTS):
            unknown.append(path)
    for path in unknown:  # the command reads all files of a folder with pairs
        beside = [key for key in kinds if key[0] == path.parent]
        if len(beside) == 1:
            kinds[beside[0]].append(path)
    for (folder, name), paths in kinds.items():
        pairs_by_file = report.read_all(partial(read_minimal_pairs, path) for path in paths)
        pairs = [pair for of_file in pairs_by_file for pair in of_file]
        groups = {pair.paradigm for pair in pairs}
        about = f"{len(pairs):,} minimal pairs ({name}) in {len(groups):,} groups"
        report.add_fact(folder, f"{about}; {len(paths):,} files")
        report.mark_checked(*paths)
        tables = [path for path in paths if path.suffix in TABLES]
        report.lines.extend(note for path in tables if (note := separator_note(path)))
        report.add_duplicates(folder, [f"pair {pair.id}" for pair in pairs])
    if not kinds:
        return None
    names = dict.fromkeys(name for _, name in kinds)
    found_files = [path for paths in kinds.values() for path in paths]
    return LayoutMatch(
        dict.fromkeys(found_files, ()), tuple(f"minimal pairs ({name})" for name in names)
    )


def find_visual_facts(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Files that `groundling probe-facts` reads, in the folder and below it, except in a rendered world."""
    if (place.folder / "world.json").is_file():
        return None
    kinds: dict[Path, str] = {}
    for path in _files(place, (".jsonl",)):
        name = "ViComTe" if path.match(DISTRIBUTIONS) else _layout_of(path, FACTS)
        if name:
            kinds[path] = name
    reads: list[Callable[[], tuple[Path, str]]] = [
        partial(_facts, path, kinds[path]) for path in kinds
    ]
    for path, line in report.read_all(reads):
        report.add_fact(path, line)
        if kinds[path] == "CoDa, raw":
            report.mark_checked(*path.parent.glob("coda_*"))
    names = dict.fromkeys(kinds.values())
    return LayoutMatch(dict.fromkeys(kinds, ()), tuple(names)) if kinds else None


def _facts(path: Path, name: str) -> tuple[Path, str]:
    """A file of facts, and a line about its content."""
    file = open_facts(path)
    relations = Counter(fact.relation for fact in file.facts)
    counts = ", ".join(f"{relation}: {count:,}" for relation, count in relations.items())
    left_out = [f"{reason}: {count:,}" for reason, count in file.left_out.items() if count]
    out = f"; left out: {', '.join(left_out)}" if left_out else ""
    return path, f"facts ({name}), {counts}{out}"


def _files(place: CheckedFolder, endings: tuple[str, ...]) -> list[Path]:
    """Files with these extensions in a folder and below it; no hidden files, no image folders."""
    candidates = list(place.files)
    for folder in place.other_folders:
        candidates += sorted(folder.rglob("*"))
    return [
        path
        for path in candidates
        if path.suffix in endings and not path.name.startswith(".") and path.is_file()
    ]


def _layout_of(path: Path, kinds: dict[str, tuple[str, ...]]) -> str:
    """The kind of a file by the fields of its first line; empty if unknown."""
    fields = header_of(path)
    return next((name for name, required in kinds.items() if set(required) <= set(fields)), "")


LAYOUTS = (
    DataLayout(
        "minimal pairs",
        "BLiMP, EWoK, BabyLM's supplement: *.jsonl; your own *.csv, *.tsv, *.jsonl with good and bad",
        find_minimal_pairs,
    ),
    DataLayout(
        "visual facts", "CoDa, also raw, Memory Colors, ViComTe: *.jsonl", find_visual_facts
    ),
)
"""The layouts of this study that `groundling data check` recognises."""
