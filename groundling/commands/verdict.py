"""`groundling verdict`: compare runs with a control: intervals, permutation test, one sentence each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from groundling.command_line import Command, OutputFile
from groundling.command_line.names import published_scores
from groundling.core.errors import InputError, require_known
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, settings
from groundling.settings.input_settings import parse_named_folder


@settings
class VerdictConfig(Settings):
    """Runs to compare."""

    runs: Annotated[tuple[str, ...], InputKind.NAMED] = ()
    """Run folders, each FOLDER or NAME=FOLDER, the control first; each is searched for finished seeds."""
    published: tuple[str, ...] = ()
    """NAME=SYSTEM: show a published system's scores beside those of the runs called NAME, e.g. XDBERT=XDBERT-b."""
    trust: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """MODULE:NAME of each task of your own, which is imported for its metrics. Code named in a run \
is imported only if it is listed here."""


def check(config: VerdictConfig, out: str | Path) -> None:
    """Raises InputError for fewer than two groups, and for an unknown published system or group."""
    groups = groups_of(config.runs)
    if len(groups) < 2:
        raise InputError("verdict needs runs=CONTROL_FOLDER OTHER_FOLDER [...]")
    published_of(config.published, groups)


def groups_of(runs: Sequence[str]) -> dict[str, str]:
    """The run folders by group name; raises InputError for two of one name."""
    groups: dict[str, str] = {}
    for text in runs:
        name, folder = parse_named_folder(text)
        if not name:
            name = Path(folder).name
        if name in groups:
            raise InputError(f"runs: two groups are called {name!r}; write NAME=FOLDER")
        groups[name] = folder
    return groups


def published_of(
    published: Sequence[str], groups: Mapping[str, str]
) -> dict[str, Mapping[str, float]]:
    """Published scores by the group beside which they are shown; raises InputError for an unknown name."""
    found = {}
    for text in published:
        name, _, system = text.partition("=")
        require_known(name, groups, f"published={text}: no group is called {name!r}")
        require_known(system, published_scores(), f"published={text}: no such system")
        found[name] = published_scores()[system]
    return found


def verdict(config: VerdictConfig, work: CommandContext) -> dict[str, Any]:
    """Compare the run folders of `config.runs`, written NAME=FOLDER or FOLDER, the control first."""
    from groundling.stats.verdict_report import collect_groups, write_verdict

    groups = groups_of(config.runs)
    collected = collect_groups(groups, trust=config.trust)
    control, *others = collected.values()
    # Before anything is written, so that an earlier verdict's page is kept.
    if all(control.keys().isdisjoint(other) for other in others):
        raise InputError("verdict: no task has finished runs of both the control and another group")
    return write_verdict(collected, work.out, print, published_of(config.published, groups))


COMMAND = Command(
    "verdict",
    "compare runs with a control: intervals, permutation test, one sentence each",
    "groundling.commands.verdict:verdict",
    {"_own": VerdictConfig()},
    title="Judge",
    example="groundling verdict --runs runs/control runs/xdbert --out runs/verdict",
    common_flags="runs published",
    prints_output=True,
    validate=check,
    output=OutputFile(("verdict.json*",)),
)
