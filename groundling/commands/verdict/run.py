"""Judge run folders against a control's."""

from __future__ import annotations

from typing import Any

from groundling.commands.verdict import VerdictConfig, groups_of
from groundling.core.errors import InputError
from groundling.runs.work import Work
from groundling.stats.judging import are_comparable, collected_of, write_judged
from groundling.stats.published import published


def verdict(config: VerdictConfig, work: Work) -> dict[str, Any]:
    """Judge the run folders of `config.runs`, written NAME=FOLDER or FOLDER, the control first.

    Raises:
        InputError: fewer than two groups, two of one name, an unknown published system, unreadable runs, or no task
            that the control and another group have in common.
    """
    groups = groups_of(config)
    beside = {}
    for text in config.published:
        name, _, system = text.partition("=")
        beside[name] = published()[system]
    collected = collected_of(groups, trust=config.trust)
    # Before anything is written: a page of an earlier verdict is not to be lost.
    if not are_comparable(collected):
        raise InputError(
            f"verdict: no task has finished runs of both {next(iter(groups))} and another group, so nothing is judged"
        )
    return write_judged(collected, work.out, print, beside)
