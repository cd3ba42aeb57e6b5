"""Judge run folders against a control's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.config import VerdictConfig
from groundling.errors import InputError
from groundling.published import PUBLISHED
from groundling.recipes.judging import judge_folders


def verdict(config: VerdictConfig, out: str | Path) -> dict[str, Any]:
    """Judge the run folders of `config.runs`, written NAME=FOLDER or FOLDER, the control first.

    Raises:
        InputError: fewer than two groups, two of one name, an unknown published system, unreadable runs, or no task
            that the control and another group have in common.
    """
    groups: dict[str, str] = {}
    for text in config.runs:
        name, equals_sign, folder = text.rpartition("=")
        if not equals_sign:
            name = Path(folder).name
        if name in groups:
            raise InputError(f"--runs: two groups are called {name!r}; write NAME=FOLDER")
        groups[name] = folder
    if len(groups) < 2:
        raise InputError(
            "verdict needs --runs CONTROL_FOLDER OTHER_FOLDER [...], each FOLDER or NAME=FOLDER"
        )
    published: dict[str, dict[str, float]] = {}
    for text in config.published:
        name, _, system = text.partition("=")
        if system not in PUBLISHED:
            raise InputError(f"--published {name}={system}: there are {', '.join(PUBLISHED)}")
        published[name] = PUBLISHED[system]
    result = judge_folders(groups, out, published=published, trust=config.trust)
    if not result["verdicts"]:
        raise InputError(
            f"verdict: no task has finished runs of both {result['control']} and another group, so nothing is judged"
        )
    return result
