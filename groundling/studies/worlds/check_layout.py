"""A rendered world, as `groundling data check` finds it: its probes and its text; others look at captions and boxes."""

from __future__ import annotations

from groundling.check.checked_folder import CheckedFolder, CheckReport, DataLayout, LayoutMatch
from groundling.check.tasks import count_lines, examples_of
from groundling.studies.worlds.tasks import CATEGORY, ODD, ORDER, TRUTH

MARK = "world.json"
"""The file that every rendered world has."""


def rendered_world(place: CheckedFolder, report: CheckReport) -> LayoutMatch | None:
    """The probes and the text of a world; its captions and images are what everybody's are."""
    if not (place.folder / MARK).is_file():
        return None
    report.mark_seen(place.folder / MARK, place.folder / "probes")
    for task in (TRUTH, ODD, CATEGORY, ORDER):
        for split in ("train", "dev", "test"):  # a world has all, whichever its tasks report
            examples_of(task, place.folder, split, report)
    count_lines(place.folder / "corpus", report)
    return LayoutMatch()


WORLD = DataLayout("rendered world", MARK, rendered_world, below=True)
