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
TEXTURE_INK = {
    "striped": 20,
    "dotted": 250,
}  # dark and light, so that few pixels suffice to tell them apart


@dataclass(frozen=True)
class Stamp:
    """A thing in its cell: its share of each pixel (C,C,1), and of that share the part that is texture (C,C,1)."""

    cover: np.ndarray
    mark: np.ndarray
    box: tuple[int, int, int, int]
    """x, y, width, height in pixels"""


def stamp(shape: str, size: str, texture: str, fit: int, cell: int) -> Stamp:
    """One shape at one of two fits, drawn at four times the cell's resolution and averaged down."""
    grid = (np.arange(4 * cell) + 0.5) / (2 * cell) - 1
    scale = {"small": (0.56, 0.64), "large": (0.92, 1.0)}[size][fit]
    x, y = grid[None, :] / scale, grid[:, None] / scale
    radius, extent = np.hypot(x, y), np.maximum(abs(x), abs(y))
    inside = {
        "round": radius <= 1,
        "square": extent <= 1,
        "bent": ((x <= -0.3) | (y >= 0.3)) & (extent <= 1),
        "tall": (abs(x) <= 0.36) & (abs(y) <= 1),
        "hollow": (radius <= 1) & (radius >= 0.55),
        "flat": (abs(y) <= 0.36) & (abs(x) <= 1),
    }[shape]
    row, column = np.indices((cell, cell)) * 14 // cell // 2 % 2  # bands of a seventh of the cell
    texture_on = {"plain": 0 * row, "striped": column, "dotted": row * column}[texture]
    cover = inside.reshape(cell, 4, cell, 4).mean(axis=(1, 3), dtype=np.float32)
    ys, xs = np.nonzero(cover >= 0.5)
    box = (int(xs.min()), int(ys.min()), int(np.ptp(xs)) + 1, int(np.ptp(ys)) + 1)
    return Stamp(
        cover[:, :, None], np.float32(0.8) * texture_on[:, :, None].astype(np.float32), box
    )
