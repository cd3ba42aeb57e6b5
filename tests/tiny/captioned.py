"""Captions with photos, a tiny student and a tiny CLIP, for runs of `adapt` that read images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.commands.adapt import AdaptConfig
from groundling.settings.fields import make_settings
from tiny import homes, toys


def captioned_run(folder: Path, arm: str, *, texts: int = 0, **settings: Any) -> AdaptConfig:
    """An `adapt` run on 16 captions of 8 photos, and beside them, drawn as often, on so many texts without photos."""
    sentences = toys.sentences()
    for number in range(8):
        homes.noise(folder / "photos" / f"{number}.png", (16, 16), seed=number)
    images = [(number, f"{number}.png") for number in range(8)]
    captions = [(number % 8, sentences[number]) for number in range(16)]
    files = [str(homes.coco(folder / "captions.json", images, captions))]
    if texts:
        files = [f"{files[0]}=1", f"{homes.text(folder / 'text.txt', texts)}=1"]
    given: dict[str, Any] = {
        "student": str(homes.student(folder / "student")),
        "teacher": str(homes.seeing_clip(folder / "clip")),
        "teacher_images": str(folder / "photos"),
    }
    return make_settings(AdaptConfig, arm=arm, text=tuple(files), **{**given, **settings})
