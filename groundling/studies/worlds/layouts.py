"""How `groundling data check` recognises a rendered world and checks its probes and text."""

from __future__ import annotations

from groundling.check.checked_folder import CheckedFolder, CheckReport, DataLayout, LayoutMatch
from groundling.check.tasks import count_lines, examples_of
from groundling.studies.worlds.tasks import CATEGORY, ODD, ORDER, TRUTH

MARK = "world.json"
"""File that identifies a rendered world."""


def rendered_world(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """Check the probes and text of a world; general checks cover its captions and images."""
    if not (place.folder / MARK).is_file():
        return None
    report.mark_checked(place.folder / MARK, place.folder / "probes")
    for task in (TRUTH, ODD, CATEGORY, ORDER):
        for split in (
            "train",
            "dev",
            "test",
        ):  # a world has all splits, though its tasks score only some
            examples_of(task, place.folder, split, report)
    count_lines(place.folder / "corpus", report)
    return LayoutMatch()


WORLD = DataLayout("rendered world", MARK, rendered_world, in_subfolders=True)
