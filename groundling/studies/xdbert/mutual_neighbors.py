"""Mutual nearest neighbours of two tables with paired rows, by the size of the gallery.

The share of neighbours that a row has in both tables (Huh et al. 2024, "The Platonic Representation Hypothesis",
Section 2; minyoungg/platonic-rep, metrics.py, `mutual_knn`). It is high in small galleries, where either table has
little choice, and falls with their size (Koepke et al. 2026, "Back into Plato's Cave", arXiv 2604.18572).
"""

from __future__ import annotations

from itertools import takewhile
from typing import Any

import numpy as np

from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.stats import interval

SMALLEST = 256
"""Rows of the smallest gallery; each other one has `GROWTH` times as many, and the last has all."""
GROWTH = 4
REPEATS = 10
"""Galleries of each size below all rows."""
BLOCK = 1 << 22
"""Similarities in memory at once, of each table."""


def mutual_neighbors(a: np.ndarray, b: np.ndarray, neighbors: int) -> float:
    """The mean share of a row's nearest rows, by cosine, that tables (n, d1) and (n, d2) have in common.

    Of equally near rows the first count. Memory grows with n, not with its square. Raises InputError for a row
    without a direction, or not more than `neighbors` rows.
    """
    if len(a) <= neighbors:
        raise InputError(f"{len(a)} rows have no {neighbors} neighbours each")
    one, other = _directions(a), _directions(b)
    common = 0
    step = max(1, BLOCK // len(a))
    for start in range(0, len(a), step):
        block = slice(start, start + step)
        shared = _are_nearest(one, block, neighbors) & _are_nearest(other, block, neighbors)
        common += int(shared.sum())
    return common / (neighbors * len(a))


def _directions(table: np.ndarray) -> np.ndarray:
    """The rows as unit vectors, float32."""
    table = np.asarray(table, np.float32)
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        place = int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[0])
        raise InputError(f"row {place} of the tables is 0 or not finite, and has no neighbours")
    directions: np.ndarray = table / lengths
    return directions


def _are_nearest(directions: np.ndarray, block: slice, neighbors: int) -> np.ndarray:
    """(rows of the block, n) bool: the nearest other rows of each."""
    cosines = directions[block] @ directions.T
    rows = np.arange(len(cosines))
    cosines[rows, rows + block.start] = -np.inf
    last = np.partition(cosines, -neighbors, axis=1)[:, -neighbors, None]
    nearer = cosines > last
    as_near = cosines == last
    room = neighbors - nearer.sum(1, keepdims=True)
    nearest: np.ndarray = nearer | (as_near & (as_near.cumsum(1) <= room))
    return nearest


def neighbors_by_gallery(
    a: np.ndarray, b: np.ndarray, neighbors: int = 10, seed: int = 0
) -> list[dict[str, Any]]:
    """`mutual_neighbors` of galleries of 256, 1,024, ... rows of two tables (n, d1) and (n, d2), and of all rows.

    Of each smaller size it is the mean over galleries that the seed draws, with an interval over them. `chance` is its
    value for tables without relation, k / (rows - 1). Of few rows all others but one are neighbours at most.
    """
    k = min(neighbors, len(a) - 2)
    sizes = takewhile(lambda size: size < len(a), (SMALLEST * GROWTH**power for power in range(32)))
    curve = []
    for size in [*(size for size in sizes if size > k), len(a)]:
        galleries = REPEATS if size < len(a) else 1
        values = []
        for repeat in range(galleries):
            drawn = generator(seed, "gallery", size, repeat).permutation(len(a))[:size]
            drawn.sort()
            values.append(mutual_neighbors(a[drawn], b[drawn], k))
        ends = interval(np.array(values)).tolist() if galleries > 1 else None
        point = {"rows": size, "galleries": galleries, "neighbors": k, "chance": k / (size - 1)}
        curve.append(point | {"value": float(np.mean(values)), "interval": ends})
    return curve
