"""The page of `groundling visualize`: photo, boxes, words, heads; static, without server or network."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from PIL import Image

from groundling.core.batch import require
from groundling.core.errors import InputError, convert_os_errors, prefix_errors
from groundling.data.images import read_image
from groundling.runs.folder import check_file, write_whole
from groundling.runs.progress import CommandContext
from groundling.runs.report import render
from groundling.settings.fields import make_settings
from groundling.studies.attention.commands import VISUALIZE, VisualizeConfig
from groundling.studies.attention.figures import FORMATS, write_figures
from groundling.studies.attention.page.attention_views import ModelAttentionView, draw_heads
from groundling.studies.attention.page.image_text_pairs import ImageTextPair, select_pairs
from groundling.studies.attention.page.inspected_model import InspectedModel

if TYPE_CHECKING:
    from matplotlib.figure import Figure


MAX_PHOTO_SIDE = 640
"""Largest long side of an embedded photo, in pixels."""
JPEG_QUALITY = 82
"""JPEG quality of an embedded photo."""
MARK = '<meta name="generator" content="groundling visualize">'
"""Marks a page of `groundling visualize`, which may be overwritten."""
MAX_PAGE_CHARACTERS = 20 * 2**20
"""Most characters of a page; browsers are slow with larger ones."""
FRAME_HEIGHT = 760
"""Height of the page in a notebook, in pixels."""


@dataclass
class AttentionPage:
    """Pages of what several models attend to in images and texts; displays itself in a notebook."""

    title: str
    """Title of the page."""
    models: Sequence[tuple[str, Sequence[str]]] = ()
    """Name and notes of each model."""
    per_page: int = 10
    """Pairs per page."""
    entries: list[dict[str, Any]] = field(default_factory=list)
    """The pairs as JSON objects of the page."""
    first_view: ModelAttentionView | None = None
    """The first model's view of the first pair, from which figures are drawn."""

    def add(self, pair: ImageTextPair, views: Iterable[ModelAttentionView]) -> None:
        """Add a pair with a view of each model; the photo is read before the views."""
        photo = None if pair.photo is None else _embedded(pair.photo)
        every = list(views)
        self.first_view = self.first_view or every[0]
        self.entries.append(
            {
                "id": pair.example.id if pair.photo is None else pair.photo.name,
                "text": " · ".join(filter(None, (pair.example.text, pair.example.text_pair))),
                "phrase": pair.phrase,
                "photo": photo,
                "gold": [] if pair.gold is None else pair.gold.round(4).tolist(),
                "views": [view.to_json() for view in every],
            }
        )

    def figure(self, heads: Sequence[str]) -> Figure:
        """Heat maps of heads (LAYER-HEAD) of the first model on the first pair: words by boxes.

        Raises InputError for a head that does not exist.
        """
        return draw_heads(require(self.first_view, "first_view", "a figure of heads"), heads)

    @property
    def pages(self) -> int:
        """Number of pages."""
        return max(1, -(-len(self.entries) // self.per_page))

    def html(self, page: int = 0, links: Sequence[str] = ()) -> str:
        """The HTML of one page; `links`: the file names of all pages.

        Raises InputError for a page that is too large for browsers (`MAX_PAGE_CHARACTERS`).
        """
        first = page * self.per_page
        shown = self.entries[first : first + self.per_page]
        content = {
            "models": [{"name": name, "notes": list(notes)} for name, notes in self.models],
            "pairs": shown,
            "page": {"number": page, "before": first, "links": list(links)},
        }
        text = render(__package__, "visualize.html", title=self.title, data=content)
        if len(text) > MAX_PAGE_CHARACTERS:
            raise InputError(
                f"a page of {len(shown)} pairs and {len(self.models)} models would be {len(text) / 2**20:.0f} MB; "
                "pass a smaller per_page or fewer layers"
            )
        return text

    def save(self, path: str | Path) -> list[Path]:
        """Write the pages to `path`, NAME-2.html and so on; returns the files.

        Older pages are overwritten. Raises InputError if another file has such a name.
        """
        path = Path(path)
        paths = [path, *(path.with_stem(f"{path.stem}-{n}") for n in range(2, self.pages + 1))]
        for one in paths:
            check_page_file(one)
        links = [one.name for one in paths] if len(paths) > 1 else ()
        for number, one in enumerate(paths):
            write_whole(one, self.html(number, links))
        return paths

    def _repr_html_(self) -> str:
        """The first page in an iframe, for notebooks."""
        inside = html.escape(self.html(), quote=True)
        more = ""
        if self.pages > 1:
            more = f"<p>Page 1 of {self.pages}; .save(path) writes all of them.</p>"
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{inside}"></iframe>{more}'


def check_page_file(path: Path) -> None:
    """Raises InputError if no page can be written to `path`, or it is another kind of file."""
    check_file(path, (".html",))
    with convert_os_errors():
        if path.exists() and MARK not in path.read_text(encoding="utf-8", errors="replace")[:2000]:
            raise InputError(
                f"{path}: exists, and is not a page of `groundling visualize`; choose another `out`"
            )


def _embedded(photo: Path) -> dict[str, Any]:
    """A photo as a small JPEG inside the page, rotated by its EXIF orientation."""
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


# The page as a command, and as a function for notebooks.

TITLE = "What does the model attend to?"


def visualize(
    model: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    image: str | os.PathLike[str] = "",
    text: str = "",
    **settings: object,
) -> AttentionPage:
    """Show what models attend to in a photo and a text, in a notebook or saved as a page.

    Args:
        model: a folder of `finetune` or `pretrain`, or a text encoder; several models get a panel
            each.
        image: file of your photo.
        text: a text about it.
        settings: the settings of `groundling visualize`, with `_` for `-`, such as `regions`, `data` or
            `layers`.

    Raises:
        InputError: a setting is unknown or does not fit, or its file cannot be read.
    """
    several = [model] if isinstance(model, str | os.PathLike) else list(model)
    arguments: dict[str, object] = {"model": several, "image": image, "text": text, **settings}
    with convert_os_errors():
        with prefix_errors("groundling.visualize"):
            config = make_settings(VisualizeConfig, **arguments)
        VISUALIZE.check_settings([config, ""])
        return make_page(config)


def make_page(config: VisualizeConfig) -> AttentionPage:
    """The pages of the settings; raises InputError for bad inputs."""
    pairs = select_pairs(config)
    device = "cuda" if torch.cuda.is_available() and not config.cpu else "cpu"
    models = [InspectedModel(source, device, config) for source in config.model]
    notes = [(model.name, model.notes) for model in models]
    page = AttentionPage(TITLE, notes, per_page=config.per_page)
    for pair in pairs:
        shown = (pair.example, pair.photo, config.layers, pair.full_example)
        page.add(pair, (model.view(*shown) for model in models))
    return page


# -- the command -------------------------------------------------------------------------------------------------------


def write_pages(config: VisualizeConfig, work: CommandContext) -> dict[str, Any]:
    """Write what the models attend to as one or several pages to `work.out`; returns the files.

    Raises InputError for settings that contradict each other, unreadable inputs, and a file that is
    not such a page.
    """
    out = work.out
    check_page_file(out)
    page = make_page(config)
    figures = {}
    if config.heat_maps:  # before anything is written, as a head may not exist
        figures[f"{out.stem}-heat-maps"] = page.figure(config.heat_maps)
    paths = page.save(out)
    drawn = write_figures(figures, out.parent, FORMATS)
    return {
        "pages": [str(path) for path in paths],
        "pairs": len(page.entries),
        "models": [name for name, _ in page.models],
        "bytes": sum(path.stat().st_size for path in paths),
        **({"figures": [str(path) for path in drawn]} if drawn else {}),
    }
