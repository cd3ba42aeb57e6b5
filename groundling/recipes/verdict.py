"""Judge run folders against a control's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.config import VerdictConfig
from groundling.errors import InputError
from groundling.published import PUBLISHED
from groundling.recipes.checks import rules
from groundling.recipes.judging import judge_folders


def verdict(config: VerdictConfig, out: str | Path) -> dict[str, Any]:
    """Judge the run folders of `config.runs`, written NAME=FOLDER or FOLDER, the control first.

    Raises:
        InputError: fewer than two groups, two of one name, an unknown published system, unreadable runs, or no task
            that the control and another group have in common.
    """
    rules.verdict(config, out)
    groups = rules.groups_of(config)
    published: dict[str, dict[str, float]] = {}
    for text in config.published:
        name, _, system = text.partition("=")
        published[name] = PUBLISHED[system]
    result = judge_folders(groups, out, published=published, trust=config.trust)
    if not result["verdicts"]:
        raise InputError(
            f"verdict: no task has finished runs of both {result['control']} and another group, so nothing is judged"
        )
    return result
