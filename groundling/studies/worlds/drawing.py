"""How one thing is drawn: its colour, its shape at two fits and two sizes, its texture."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

RGB = {
    "red": (215, 30, 40),
    "green": (30, 150, 50),
    "blue": (40, 70, 225),
    "yellow": (245, 220, 30),
    "purple": (140, 50, 185),
    "pink": (250, 130, 195),
}
"""The paint of each colour, 0 to 255."""
TEXTURE_INK = {"striped": 20, "dotted": 250}
"""Brightness of a texture's marks: dark and light, so that few pixels suffice to tell them apart."""
SCALES = {"small": (0.56, 0.64), "large": (0.92, 1.0)}
"""How much of its cell a thing fills, at each of the two fits of its size."""
OVERSAMPLING = 4
"""A shape is drawn at this many times the cell's resolution and averaged down."""


@dataclass(frozen=True)
class Stamp:
    """A thing in its cell of C x C pixels."""

    cover: np.ndarray
    """The thing's share of each pixel (C, C, 1), 0 to 1."""
    mark: np.ndarray
    """Of that share, the part that is texture (C, C, 1), 0 to 1."""
    box: tuple[int, int, int, int]
    """x, y, width, height in pixels."""


def stamp(shape: str, size: str, texture: str, fit: int, cell: int) -> Stamp:
    """One shape at one of its size's two fits (0 or 1), in a cell of `cell` x `cell` pixels."""
    fine_cover = _shape(shape, SCALES[size][fit], OVERSAMPLING * cell)
    blocks = fine_cover.reshape(cell, OVERSAMPLING, cell, OVERSAMPLING)
    cover = blocks.mean(axis=(1, 3), dtype=np.float32)
    mark = np.float32(0.8) * _texture(texture, cell).astype(np.float32)
    return Stamp(cover[:, :, None], mark[:, :, None], _box(cover))


def _shape(shape: str, scale: float, side: int) -> np.ndarray:
    """Which of `side` x `side` points are inside a shape; at scale 1 the shape touches the edges."""
    points = (np.arange(side) + 0.5) / (side // 2) - 1
    x = points[None, :] / scale
    y = points[:, None] / scale
    radius = np.hypot(x, y)
    extent = np.maximum(abs(x), abs(y))
    if shape == "round":
        return radius <= 1
    if shape == "square":
        return extent <= 1
    if shape == "bent":
        return ((x <= -0.3) | (y >= 0.3)) & (extent <= 1)
    if shape == "tall":
        return (abs(x) <= 0.36) & (abs(y) <= 1)
    if shape == "hollow":
        return (radius <= 1) & (radius >= 0.55)
    if shape == "flat":
        return (abs(y) <= 0.36) & (abs(x) <= 1)
    raise ValueError(f"no shape {shape!r}")


def _texture(texture: str, cell: int) -> np.ndarray:
    """Where a texture has its marks (C, C), 0 or 1: in bands, each a seventh of the cell wide."""
    row, column = np.indices((cell, cell)) * 14 // cell // 2 % 2
    if texture == "plain":
        return np.zeros_like(row)
    if texture == "striped":
        return column
    if texture == "dotted":
        return row * column
    raise ValueError(f"no texture {texture!r}")


def _box(cover: np.ndarray) -> tuple[int, int, int, int]:
    """x, y, width, height of the pixels that a thing covers by half or more."""
    ys, xs = np.nonzero(cover >= 0.5)
    width = int(np.ptp(xs)) + 1
    height = int(np.ptp(ys)) + 1
    return (int(xs.min()), int(ys.min()), width, height)
