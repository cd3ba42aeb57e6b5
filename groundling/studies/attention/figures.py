"""Figures for papers from finished runs of `heads`, `syntax` and `modality`, as a command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.core.errors import InputError
from groundling.runs.folder import read_json
from groundling.studies.attention.commands import FiguresConfig
from groundling.studies.attention.figure_files import figures_of, write_figures

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def figures(config: FiguresConfig, out: str | Path) -> dict[str, Any]:
    """Write the figures of every run, NAME-FIGURE by the run folder's name, to the folder `out`; returns the files.

    Raises InputError if a folder holds no such result, two are called the same, or a format is unknown.
    """
    names = [Path(folder).resolve().name for folder in config.results]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"--results: two folders are called {twice}, and so would their figures")
    made: dict[str, Figure] = {}
    for name, folder in zip(names, config.results, strict=True):
        result = Path(folder) / "result.json"
        if not result.is_file():
            raise InputError(f"{result}: no such file; expected the folder of a finished run")
        content = read_json(result)
        try:
            found = figures_of(content)
        except InputError as error:
            raise InputError(f"{result}: {error}") from None
        made |= {f"{name}-{figure}": drawn for figure, drawn in found.items()}
    paths = write_figures(made, Path(out), config.formats)
    return {"figures": [str(path) for path in paths]}
