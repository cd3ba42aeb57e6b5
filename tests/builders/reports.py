"""What a report of `data check` must say."""

from __future__ import annotations

from groundling.check.checked_folder import CheckReport


def one(report: CheckReport, *parts: str) -> None:
    """Exactly one problem, of one line, that holds every part."""
    assert not report.ok
    assert len(report.problems) == 1, report.problems
    assert "\n" not in report.problems[0]
    assert [part for part in parts if part not in report.problems[0]] == []
