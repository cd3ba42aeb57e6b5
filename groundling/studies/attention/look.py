"""A page to look at what models attend to, as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.studies.attention.commands import LookConfig
from groundling.studies.attention.figure_files import FORMATS, write_figures
from groundling.studies.attention.page.made import looked_at
from groundling.studies.attention.page.page import check_place


def look(config: LookConfig, out: str | Path) -> dict[str, Any]:
    """Write what the models attend to as a page at `out`, or as several; returns which files.

    Raises InputError for settings that do not go together, what cannot be read, and a file in the way.
    """
    check_place(Path(out))
    made = looked_at(config)
    figures = {}
    if config.heat_maps:  # before anything is written, for heads that there are not
        figures[f"{Path(out).stem}-heat-maps"] = made.figure(config.heat_maps)
    paths = made.save(out)
    drawn = write_figures(figures, Path(out).parent, FORMATS)
    return {
        "pages": [str(path) for path in paths],
        "pairs": len(made.entries),
        "models": [name for name, _ in made.models],
        "bytes": sum(path.stat().st_size for path in paths),
        **({"figures": [str(path) for path in drawn]} if drawn else {}),
        **({"answers": dict(made.counts)} if made.counts else {}),
    }
