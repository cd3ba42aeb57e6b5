"""`adapt` on captions with images, a tiny CLIP and a tiny encoder."""

from __future__ import annotations

from pathlib import Path

from groundling.commands.adapt import AdaptConfig
from groundling.settings.fields import make_settings
from tiny import homes, toys


def pictured_captions(folder: Path, each: int = 3) -> AdaptConfig:
    """The settings of a run on 12 images with `each` captions, and one image with a single caption."""
    texts = toys.sentences()
    images = [(number, f"{number}.png") for number in range(13)]
    for number, name in images:
        homes.noise(folder / "images" / name, (16, 16), number)
    captions = [(number // each, texts[number]) for number in range(12 * each + 1)]
    return make_settings(
        AdaptConfig,
        student=str(homes.student(folder / "student")),
        teacher=str(homes.seeing_clip(folder / "clip")),
        text=(str(homes.coco(folder / "captions.json", images, captions)),),
        teacher_images=str(folder / "images"),
        max_length=48,
    )
