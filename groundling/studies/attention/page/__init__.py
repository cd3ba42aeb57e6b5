"""The page of `groundling visualize`: photo, boxes, words, heads. It is static and needs neither server nor network."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from groundling.core.batch import require
from groundling.core.errors import (
    InputError,
    convert_read_errors,
    prefix_errors,
    rename_flags_to_keywords,
)
from groundling.core.field_docs import with_field_docs
from groundling.data.images import read_image
from groundling.runs.folder import check_file, disk_errors, write_whole
from groundling.runs.progress import CommandContext
from groundling.runs.report import page_of
from groundling.settings.fields import declared_settings, fill_settings
from groundling.studies.attention.commands import VISUALIZE, VisualizeConfig
from groundling.studies.attention.figures import FORMATS, write_figures
from groundling.studies.attention.page.attention_views import (
    MAX_PAGE_CHARACTERS,
    AttentionView,
    MeanBoxAttention,
    RankedHeads,
    draw_heads,
)
from groundling.studies.attention.page.image_text_pairs import (
    ImageTextPair,
    PairSelection,
    PhraseEntity,
    select_pairs,
)
from groundling.studies.attention.page.inspected_model import InspectedModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_PHOTO_SIDE = 640
"""Most pixels of an embedded photo's long side."""
JPEG_QUALITY = 82
"""Of its JPEG."""
MARK = '<meta name="generator" content="groundling visualize">'
"""By which a page of ours is known, which may be written anew."""
BEST = "best"
"""In place of heads to be drawn: the best ones that `groundling heads` found."""
FRAME_HEIGHT = 760
"""Height of the page in a notebook, pixels."""


@with_field_docs
@dataclass
class AttentionPage:
    """What several models attend to in images and texts, as pages; shows itself in a notebook."""

    title: str
    """Of the page."""
    models: Sequence[tuple[str, Sequence[str]]] = ()
    """Name of each, and what a reader must know of it."""
    per_page: int = 10
    """Pairs on a page."""
    ranks: Sequence[RankedHeads | None] = ()
    """Of each model."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """How many answers changed how, see `PairSelection`."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The pairs as the page has them."""
    first_view: AttentionView | None = None
    """The first model's view of the first pair, from which figures are drawn."""
    entities: Sequence[PhraseEntity] = ()
    """What the first pair's text names, where boxes of it are known."""

    def add(self, pair: ImageTextPair, views: Iterable[AttentionView]) -> None:
        """Put an image and a text on the page, with a view of each model; the photo is read first."""
        change = pair.change
        kept: list[AttentionView] = []

        def packed() -> Iterator[dict[str, Any]]:
            for view in views:
                kept[:] = kept or [view]
                yield view.to_json()

        self.entries.append(
            {
                "id": pair.example.id if pair.photo is None else pair.photo.name,
                "text": " · ".join(filter(None, (pair.example.text, pair.example.text_pair))),
                "phrase": pair.phrase,
                "photo": None if pair.photo is None else _embedded(pair.photo),
                "gold": [] if pair.gold is None else pair.gold.round(4).tolist(),
                "change": None if change is None else vars(change),
                "views": list(packed()),
            }
        )
        if self.first_view is None:
            self.first_view, self.entities = kept[0], pair.entities

    def figure(self, heads: Sequence[str]) -> Figure:
        """Heat maps of some heads (LAYER-HEAD) of the first model on the first pair: words by boxes.

        `best` alone stands for the heads of `RankedHeads.best`. Where boxes are known of what the text names, regions
        are grouped by them, see `group_regions`. Raises InputError for a head that there is not, for a model whose words
        read no boxes, and if nothing is left to draw.
        """
        view = require(self.first_view, "first_view", "a figure of heads")
        if list(heads) == [BEST]:
            ranked = self.ranks[0] if self.ranks else None
            heads = (ranked or RankedHeads("", ())).best([layer.number for layer in view.layers])
        return draw_heads(view, heads, self.entities)

    @property
    def pages(self) -> int:
        """How many there are."""
        return max(1, -(-len(self.entries) // self.per_page))

    def html(self, page: int = 0, links: Sequence[str] = ()) -> str:
        """A page as it stands in its file; `links`: the files of all of them.

        Raises InputError for one so large that no browser likes it.
        """
        first = page * self.per_page
        shown = self.entries[first : first + self.per_page]
        content = {
            "models": [{"name": name, "notes": list(notes)} for name, notes in self.models],
            "pairs": shown,
            "ranks": [None if one is None else one.to_json() for one in self.ranks],
            "counts": dict(self.counts),
            "page": {"number": page, "before": first, "links": list(links)},
        }
        text = page_of(__package__, "visualize", self.title, {}, content)
        if len(text) > MAX_PAGE_CHARACTERS:
            raise InputError(
                f"a page of {len(shown)} pairs and {len(self.models)} models would have {len(text) / 2**20:.0f} MB; "
                "pass a smaller --per-page, or --layers for some of the layers"
            )
        return text

    def save(self, path: str | Path) -> list[Path]:
        """Write the page, further ones beside it as NAME-2.html and so on; returns the files.

        An older page of such a name is replaced. Raises InputError if another file is in the way.
        """
        path = Path(path)
        check_page_file(path)
        paths = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(2, self.pages + 1))]
        for one in paths[1:]:
            check_page_file(one)
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        links = [one.name for one in paths] if len(paths) > 1 else ()
        for number, one in enumerate(paths):
            write_whole(one, self.html(number, links))
        return paths

    def _repr_html_(self) -> str:
        """The first page in a frame of its own, for notebooks."""
        inside = html.escape(self.html(), quote=True)
        more = ""
        if self.pages > 1:
            more = f"<p>Page 1 of {self.pages}; .save(path) writes all of them.</p>"
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{inside}"></iframe>{more}'


def check_page_file(path: Path) -> None:
    """Raises InputError for a file that no page can be written to, such as one that is no page of ours."""
    check_file(path, (".html",))
    if not path.exists():
        return
    if path.is_file():
        with convert_read_errors(path), path.open(encoding="utf-8", errors="replace") as file:
            if MARK in file.read(2000):
                return
    raise InputError(
        f"{path}: exists already, and is no page of `groundling visualize`; choose another --out"
    )


def _embedded(photo: Path) -> dict[str, Any]:
    """A photo as a small JPEG inside the page, turned as its EXIF says, as models see it."""
    with prefix_errors(photo):
        image = read_image(photo)
    if max(image.size) > MAX_PHOTO_SIDE:
        image.thumbnail((MAX_PHOTO_SIDE, MAX_PHOTO_SIDE), Image.Resampling.LANCZOS)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=JPEG_QUALITY, optimize=True)
    source = base64.b64encode(out.getvalue()).decode()
    return {
        "src": f"data:image/jpeg;base64,{source}",
        "width": image.width,
        "height": image.height,
    }


# A page to look at what models attend to, as a command and as a function for notebooks.

TITLE = "What does it look at?"


def visualize(
    model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    image: str | os.PathLike[str] = "",
    text: str = "",
    **settings: object,
) -> AttentionPage:
    """What models attend to in a photo and a text, to be looked at in a notebook or saved as a page.

    Args:
        model: what `finetune` or `pretrain` wrote, or a text encoder; of several, each gets a panel.
        image: your own photo.
        text: what is said about it.
        settings: those of `groundling visualize`, with `_` for `-`, such as `regions`, `data` or `layers`.

    Raises:
        InputError: a setting is unknown or does not fit, or what it names cannot be read.
    """
    several = [model] if isinstance(model, str | os.PathLike) else list(model)
    given: dict[str, object] = {"model": several, "image": image, "text": text, **settings}
    known = declared_settings(VisualizeConfig)
    with rename_flags_to_keywords(
        known, [name for name, one in known.items() if one.kind is bool], given
    ):
        (config,) = fill_settings([VisualizeConfig()], given, "groundling.visualize")
        VISUALIZE.check_settings([config, ""])
        return make_page(config, select_pairs(config))


def make_page(config: VisualizeConfig, found: PairSelection) -> AttentionPage:
    """The pages of the pairs that were found; raises InputError for what does not fit or cannot be read."""
    known = [RankedHeads.read(folder) for folder in config.heads]
    device = "cuda" if torch.cuda.is_available() and not config.cpu else "cpu"
    models = [
        InspectedModel(
            source,
            device,
            regions=config.regions,
            allow_region_mismatch=config.allow_region_mismatch,
            detector=config.detector,
            backbone=config.backbone,
            grid=config.grid,
        )
        for source in config.model
    ]
    for model, ranked in zip(models, known, strict=False):  # fewer results than models
        if not config.other_heads:
            ranked.check_model(model.name, model.folder)
    mass = [MeanBoxAttention() for _ in models]
    made = AttentionPage(TITLE, per_page=config.per_page, counts=found.counts)
    for pair in found.pairs:
        made.add(pair, _views(pair, models, mass, config.layers))
        for one, ranked in zip(mass, known, strict=False):
            ranked.check_sizes(one.heads, every=not config.layers)
    made.models = [(model.name, model.notes) for model in models]
    made.ranks = [*known, *(one.ranked() for one in mass[len(known) :])]
    return made


def _views(
    pair: ImageTextPair,
    models: Sequence[InspectedModel],
    mass: Sequence[MeanBoxAttention],
    layers: Sequence[int],
) -> Iterator[AttentionView]:
    """What each model makes of a pair; only asked for once its photo was read."""
    for model, one in zip(models, mass, strict=True):
        view = model.view(pair.example, pair.photo, layers, pair.full_example)
        one.add(view)
        yield view


# -- the command -------------------------------------------------------------------------------------------------------


def write_pages(config: VisualizeConfig, work: CommandContext) -> dict[str, Any]:
    """Write what the models attend to as a page at `work.out`, or as several; returns which files.

    Raises InputError for settings that do not go together, what cannot be read, and a file in the way.
    """
    out = work.out
    check_page_file(out)
    made = make_page(config, select_pairs(config))
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
