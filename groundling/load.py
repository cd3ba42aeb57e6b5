"""How any model folder becomes a model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.find import instances
from groundling.models.kinds import Kind
from groundling.models.text import load_text_encoder


def load_student(source: str | Path) -> Any:
    """The model of a hub id or folder; module-level `Kind`s of `models/` are asked first, then transformers."""
    for kind in (instances("models", Kind) | instances("joins", Kind)).values():
        if kind.fits(str(source)):
            return kind.load(str(source))
    return load_text_encoder(source)
