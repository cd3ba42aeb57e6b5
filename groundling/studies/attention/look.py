"""A page to look at what models attend to, as a command and as a function for notebooks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from groundling.core.errors import as_keywords
from groundling.runs.work import Work
from groundling.settings.fields import declared, filled
from groundling.studies.attention.commands import LOOK, LookConfig
from groundling.studies.attention.figures import FORMATS, write_figures
from groundling.studies.attention.page.looked import Looked
from groundling.studies.attention.page.page import Look, check_place
from groundling.studies.attention.page.pairs import Pair, pairs_of
from groundling.studies.attention.page.ranked import Mass, Ranked
from groundling.studies.attention.page.views import View

TITLE = "What does it look at?"


def look(
    model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    image: str | os.PathLike[str] = "",
    text: str = "",
    **settings: object,
) -> Look:
    """What models attend to in a photo and a text, to be looked at in a notebook or saved as a page.

    Args:
        model: what `finetune` or `pretrain` wrote, or a text encoder; of several, each gets a panel.
        image: your own photo.
        text: what is said about it.
        settings: those of `groundling look`, with `_` for `-`, such as `regions`, `data` or `layers`.

    Raises:
        InputError: a setting is unknown or does not fit, or what it names cannot be read.
    """
    several = [model] if isinstance(model, str | os.PathLike) else list(model)
    given: dict[str, object] = {"model": several, "image": image, "text": text, **settings}
    known = declared(LookConfig)
    with as_keywords(known, [name for name, one in known.items() if one.kind is bool], given):
        (config,) = filled([LookConfig()], given, "groundling.look")
        LOOK.check_together([config, ""])
        return looked_at(config)


def looked_at(config: LookConfig) -> Look:
    """The pages that the settings ask for; raises InputError for what does not fit or cannot be read."""
    found = pairs_of(config)
    known = [Ranked.read(folder) for folder in config.heads]
    device = "cuda" if torch.cuda.is_available() and not config.cpu else "cpu"
    models = [
        Looked(
            source,
            device,
            regions=config.regions,
            other_regions=config.other_regions,
            detector=config.detector,
            backbone=config.backbone,
            grid=config.grid,
        )
        for source in config.model
    ]
    for model, ranked in zip(models, known, strict=False):  # fewer results than models
        if not config.other_heads:
            ranked.check_model(model.name, model.folder)
    mass = [Mass() for _ in models]
    made = Look(TITLE, per_page=config.per_page, counts=found.counts)
    for pair in found.pairs:
        made.add(pair, _views(pair, models, mass, config.layers))
        for one, ranked in zip(mass, known, strict=False):
            ranked.check_sizes(one.heads, every=not config.layers)
    made.models = [(model.name, model.notes) for model in models]
    made.ranks = [*known, *(one.ranked() for one in mass[len(known) :])]
    return made


def _views(
    pair: Pair, models: Sequence[Looked], mass: Sequence[Mass], layers: Sequence[int]
) -> Iterator[View]:
    """What each model makes of a pair; only asked for once its photo was read."""
    for model, one in zip(models, mass, strict=True):
        view = model.view(pair.example, pair.photo, layers, pair.asked)
        one.add(view)
        yield view


# -- the command -------------------------------------------------------------------------------------------------------


def write_pages(config: LookConfig, work: Work) -> dict[str, Any]:
    """Write what the models attend to as a page at `work.out`, or as several; returns which files.

    Raises InputError for settings that do not go together, what cannot be read, and a file in the way.
    """
    out = work.out
    check_place(out)
    made = looked_at(config)
    figures = {}
    if config.heat_maps:  # before anything is written, for heads that there are not
        figures[f"{out.stem}-heat-maps"] = made.figure(config.heat_maps)
    paths = made.save(out)
    drawn = write_figures(figures, out.parent, FORMATS)
    return {
        "pages": [str(path) for path in paths],
        "pairs": len(made.entries),
        "models": [name for name, _ in made.models],
        "bytes": sum(path.stat().st_size for path in paths),
        **({"figures": [str(path) for path in drawn]} if drawn else {}),
        **({"answers": dict(made.counts)} if made.counts else {}),
    }
