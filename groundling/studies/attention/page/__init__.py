"""The page of `groundling visualize`: photo, boxes, words, heads; static, without server or network."""

from __future__ import annotations

import base64
import html
import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image

from groundling.core.batch import Example, require
from groundling.core.errors import InputError, convert_os_errors, prefix_errors, require_nonempty
from groundling.core.registry import resolve
from groundling.data.image_samples import files_below, single_file
from groundling.data.images import image_id, read_image
from groundling.data.tables import read_all_columns, row_texts, text_columns
from groundling.runs.folder import check_file, write_whole
from groundling.runs.progress import CommandContext
from groundling.runs.report import draw_heat_maps, render
from groundling.settings.fields import make_settings
from groundling.studies.attention.commands import VISUALIZE, VisualizeConfig
from groundling.studies.attention.figures import FORMATS, write_figures
from groundling.studies.attention.page.views import BOXES, WORDS, InspectedModel, ModelAttentionView
from groundling.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure


TITLE = "What does the model attend to?"
MAX_PHOTO_SIDE = 640
"""Largest long side of an embedded photo, in pixels."""
JPEG_QUALITY = 82
"""JPEG quality of an embedded photo."""
ENDINGS = (".html",)
"""Endings of a page's file."""
FRAME_HEIGHT = 760
"""Height of the page in a notebook, in pixels."""


@dataclass
class AttentionPage:
    """A page of what several models attend to in images and texts; displays itself in a notebook."""

    models: Sequence[tuple[str, Sequence[str]]] = ()
    """Name and notes of each model."""
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
        """Heat maps of heads (LAYER-HEAD) of the first model on the first pair; VisualBERT, Figures 1 and 5.

        Raises InputError for a head that does not exist.
        """
        view = require(self.first_view, "first_view", "a figure of heads")
        maps = {}
        even = []
        for head in heads:
            layer, number = view.layer_of(head)
            maps[f"layer-head {head}"] = layer.blocks[WORDS, BOXES][number]
            even.append(100 * float(layer.even[WORDS].max()))
        boxes = [view.boxes.title(number) for number in range(len(view.boxes.boxes))]
        words = [word.text for word in view.words]
        return draw_heat_maps(maps, words, boxes, ("box", "word"), min(even))

    def html(self) -> str:
        """The HTML, with all data inside."""
        models = [{"name": name, "notes": list(notes)} for name, notes in self.models]
        content = {"models": models, "pairs": self.entries}
        return render(__package__, "visualize.html", title=TITLE, data=content)

    def save(self, path: str | Path) -> None:
        """Write the page; an existing file is replaced. Raises InputError if `path` is no HTML file."""
        check_file(path, ENDINGS)
        write_whole(Path(path), self.html())

    def _repr_html_(self) -> str:
        inside = html.escape(self.html(), quote=True)
        style = f"width:100%;height:{FRAME_HEIGHT}px;border:0"
        return f'<iframe sandbox="allow-scripts" style="{style}" srcdoc="{inside}"></iframe>'


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


# -- pairs -------------------------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class ImageTextPair:
    """An image-text pair."""

    example: Example
    photo: Path | None = None
    """The image's file; None for a text alone."""
    gold: np.ndarray | None = None
    """(G, 4) gold boxes as shares of width and height; None if unknown."""
    phrase: str = ""
    """The phrase that these boxes belong to; empty: the whole text."""
    full_example: Example | None = None
    """The example with all choices, if `example` has the right one alone; None without choices."""


def select_pairs(config: VisualizeConfig) -> list[ImageTextPair]:
    """The pairs of the settings; raises InputError for bad data."""
    most = config.limit or None
    if config.task:
        task = resolve("tasks", Task, config.task)
        examples = task.read(Path(config.data), config.split or task.dev[0])
        examples = [one for one in examples if _is_selected(one, config.example)]
        message = f"example={config.example}: {config.data} has no such image, caption or example"
        require_nonempty(examples, message)
        find = _photos(config.images)
        return [_pair_of(example, find, config.data) for example in examples[:most]]
    if config.data:
        return list(_file_pairs(config))[:most]
    images = (image_id(Path(config.image).name),) if config.image else ()
    example = Example("own", config.text, config.pair or None, images=images)
    return [ImageTextPair(example, Path(config.image) if config.image else None)]


def _photos(images: str) -> Callable[[str], Path]:
    """Finds a photo by its file name, with or without extension; raises InputError for none or several."""
    if not images:
        raise InputError("visualize needs images=FOLDER, the folder of the photos")
    files = files_below(Path(images))

    def find(name: str) -> Path:
        candidates = files.get(image_id(name), [])
        require_nonempty(candidates, f"no photo {name!r} in {images}")
        return single_file(candidates)

    return find


def _is_selected(example: Example, selector: str) -> bool:
    """Whether the setting `example` is empty, or names the example, its caption or its image."""
    caption = example.official_id.rpartition("/")[0]
    return selector in ("", example.id, example.official_id, caption, *example.images)


def _pair_of(example: Example, find: Callable[[str], Path], data: str) -> ImageTextPair:
    """A task's example; of multiple choice with the right choice, or the first."""
    with prefix_errors(f"{data}, {example.id}"):
        if len(example.images) != 1:
            raise InputError(f"{len(example.images)} images; expected one image for each text")
        photo = find(example.images[0])
    gold = None
    if example.gold_boxes is not None:
        gold = example.gold_boxes.boxes / np.array([*example.gold_boxes.image_size] * 2)
    full_example = None
    if example.choices:
        full_example = example
        number = int(example.label) if isinstance(example.label, int) else 0
        example = replace(
            example, text_pair=example.choices[number], choices=(), choice_region_tags=()
        )
    phrase = ""
    if gold is not None and example.region_tags:
        (start, stop, _), *_ = example.region_tags
        phrase = example.text[start:stop]
    return ImageTextPair(example, photo, gold, phrase, full_example)


def _file_pairs(config: VisualizeConfig) -> Iterator[ImageTextPair]:
    path = Path(config.data)
    columns = (*text_columns(config.text_column, "text_column"), config.image_column)
    _, rows = read_all_columns(path, columns)
    find = _photos(config.images)
    for number, (where, cells) in enumerate(rows):
        with prefix_errors(where):
            text, *second, file = row_texts(cells, columns)
        file = file.strip().removeprefix("./")
        example = Example(
            f"{path.stem}-{number}", text, second[0] if second else None, images=(image_id(file),)
        )
        with prefix_errors(where):
            yield ImageTextPair(example, find(file))


# -- the command, and the function for notebooks -----------------------------------------------------------------------
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

    Raises InputError: a setting is unknown or does not fit, or its file cannot be read.
    """
    several = [model] if isinstance(model, str | os.PathLike) else list(model)
    arguments: dict[str, object] = {"model": several, "image": image, "text": text, **settings}
    with convert_os_errors():
        with prefix_errors("groundling.visualize"):
            config = make_settings(VisualizeConfig, **arguments)
        VISUALIZE.check_settings([config, ""])
        return make_page(config)


def make_page(config: VisualizeConfig) -> AttentionPage:
    """The page of the settings; raises InputError for bad inputs."""
    pairs = select_pairs(config)
    device = "cuda" if torch.cuda.is_available() and not config.cpu else "cpu"
    models = [InspectedModel(source, device, config) for source in config.model]
    page = AttentionPage([(model.name, model.notes) for model in models])
    for pair in pairs:
        shown = (pair.example, pair.photo, pair.full_example)
        page.add(pair, (model.view(*shown) for model in models))
    return page


def write_page(config: VisualizeConfig, work: CommandContext) -> dict[str, Any]:
    """Write what the models attend to as a page to `work.out`; returns the files.

    Raises InputError for settings that contradict each other, and unreadable inputs.
    """
    out = work.out
    check_file(out, ENDINGS)
    page = make_page(config)
    figures = {}
    if config.heat_maps:  # before anything is written, as a head may not exist
        figures[f"{out.stem}-heat-maps"] = page.figure(config.heat_maps)
    page.save(out)
    drawn = write_figures(figures, out.parent, FORMATS)
    return {
        "page": str(out),
        "pairs": len(page.entries),
        "models": [name for name, _ in page.models],
        **({"figures": [str(path) for path in drawn]} if drawn else {}),
    }
