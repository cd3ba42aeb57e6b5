"""Which heads ground phrases, in numbers that choosing the best of many heads does not flatter.

The best of 144 heads on a split is too good to be true: heads are chosen on one half of the images and scored on the
other, both ways round, and every number stands beside what a rule, chance and the same heads before other images reach.

Sizes: Q phrases, M heads of all layers, I images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from groundling.core.errors import InputError
from groundling.core.keyed import generator
from groundling.stats.resampling import drawn_counts, interval, sums_of
from groundling.studies.attention.grounding import MEASURES, POINTING, Hits, State

SEE_NOTHING = "no head sends more than {:.0%} of its attention from phrases to regions"


def halves(images: Sequence[str], seed: int) -> dict[str, int]:
    """0 or 1 for every image: half of the different ones each, the same for the same seed and images."""
    different = sorted(set(images))
    order = generator(seed, "halves").permutation(len(different))
    return {different[place]: int(rank % 2) for rank, place in enumerate(order)}


@dataclass(frozen=True)
class Board:
    """What a pass found of Q phrases, and what they are."""

    found: Hits
    image: np.ndarray
    """(Q,) int: the image each is about, from 0."""
    half: np.ndarray
    """(Q,): the half of the images it is in."""
    kinds: Sequence[tuple[str, ...]]
    """(Q) kinds of what it names, such as people; none where nobody says."""
    least: float
    """Heads that send no more than this share of their attention from phrases to regions are not chosen."""
    seed: int
    null: Hits | None = None
    """What the same pass found beside the looks of other images."""

    @cached_property
    def used(self) -> np.ndarray:
        """(Q,) bool: heads could be asked for it."""
        return np.asarray(self.found.facts.state == State.ASKED)

    @cached_property
    def active(self) -> np.ndarray:
        """(2, M) bool: heads that look at regions, in each half."""
        return np.asarray(self.found.means[..., 0] > self.least)

    @cached_property
    def means(self) -> np.ndarray:
        """(M, MEASURES) over both halves."""
        weight = np.array([(self.used & (self.half == half)).sum() for half in (0, 1)])
        sums = np.nan_to_num(self.found.means) * weight[:, None, None]
        return np.asarray(sums.sum(0) / weight.sum())

    @cached_property
    def draws(self) -> np.ndarray:
        """(DRAWS, I): how often each image is drawn."""
        rng = generator(self.seed, "heads", "bootstrap")
        return drawn_counts(int(self.image.max()) + 1, rng)

    def chosen(self, hits: np.ndarray, rows: np.ndarray, among: np.ndarray) -> list[int | None]:
        """The best active head of each half, by `hits` (Q, M) of phrases `rows` (Q,) and of heads `among` (M,).

        None where a half has no phrase or no active head; of equals the first.
        """
        best: list[int | None] = []
        for half in (0, 1):
            own = rows & (self.half == half)
            heads = np.flatnonzero(among & self.active[half])
            if not own.any() or not len(heads):
                best.append(None)
                continue
            best.append(int(heads[hits[own][:, heads].sum(0).argmax()]))
        return best

    def held_out(self, hits: np.ndarray, chosen: Sequence[int | None]) -> np.ndarray | None:
        """Whether each phrase (Q,) is found by the head that was chosen on the other half; None without such heads."""
        first, second = chosen
        if first is None or second is None:
            return None
        return np.where(self.half == 0, hits[:, second], hits[:, first])

    def intervals(
        self, columns: Mapping[str, np.ndarray], rows: np.ndarray
    ) -> dict[str, dict[str, Any]]:
        """Means in per cent of columns (Q,) over phrases `rows`, with 95 % intervals over images.

        Draws are the same for all, so the interval of a column of differences is that of a paired comparison.
        """
        values = [np.where(rows, column, 0.0) for column in columns.values()]
        values.append(rows.astype(float))
        sums = np.stack([np.bincount(self.image, weights=one) for one in values], 1)
        drawn = sums_of(self.draws, sums)
        drawn = drawn[drawn[:, -1] > 0]  # a resample may lack a rare kind
        shares = 100 * drawn[:, :-1] / drawn[:, -1:]
        total = 100 * sums[:, :-1].sum(0) / sums[:, -1].sum()
        low, high = interval(shares)
        told = {}
        for place, name in enumerate(columns):
            ends = [_round(low[place]), _round(high[place])]
            told[name] = {"value": _round(total[place]), "interval": ends}
        return told

    # -- the whole of it -----------------------------------------------------------------------------------------------

    def report(self) -> dict[str, Any]:
        """All numbers: the whole, layer by layer, kind by kind, head by head; raises InputError without a phrase."""
        if not self.used.any():
            raise InputError("no phrase is left that heads could be asked for")
        every = np.ones(len(self.found.heads), bool)
        shown, chosen = self._of(self.used, every)
        kinds = sorted({kind for own in self.kinds for kind in own})
        notes = []
        if not self.ranked:
            notes.append(
                "these regions have no detector's confidence, so there is no confidence baseline; chance is that of a "
                "region drawn at random"
            )
        if self.found.measure == "pointing":
            notes.append(POINTING)
        if not self.active.any():
            notes.append(SEE_NOTHING.format(self.least) + "; --active 0 takes all heads")
        return {
            "measure": self.found.measure,
            "active_heads": int((self.means[:, 0] > self.least).sum()),
            **shown,
            "chosen": [None if head is None else self.name(head) for head in chosen],
            "best": self._best(self.used, every),
            "layers": [self._layer(layer) for layer in self.layers],
            "kinds": {kind: self._kind(kind, every) for kind in kinds},
            "heads": self._heads(kinds),
            "notes": notes,
        }

    @cached_property
    def ranked(self) -> bool:
        """Whether regions have confidences that tell one from another."""
        return bool(self.found.facts.ranked.any())

    @cached_property
    def layers(self) -> list[tuple[str, int]]:
        """Name and number of every layer."""
        return list(dict.fromkeys((name, layer) for name, layer, _ in self.found.heads))

    def name(self, head: int) -> str:
        """LAYER-HEAD, counted from 0, with the map's name before it where there are several."""
        name, layer, number = self.found.heads[head]
        several = len({name for name, _, _ in self.found.heads}) > 1
        return f"{name} {layer}-{number}" if several else f"{layer}-{number}"

    def _of(self, rows: np.ndarray, among: np.ndarray) -> tuple[dict[str, Any], list[int | None]]:
        """What is reached on phrases `rows` by heads `among`, and by no head at all; and the heads that were chosen."""
        facts = self.found.facts
        columns: dict[str, np.ndarray] = {"upper_bound": facts.possible, "chance": facts.chance}
        if self.ranked:
            columns["confidence"] = facts.confident
        chosen = self.chosen(self.found.hits, rows, among)
        best = self.held_out(self.found.hits, chosen)
        if best is not None:
            rule = columns.get("confidence", facts.chance)
            columns["held_out"] = best
            columns["held_out_less_rule"] = best.astype(float) - rule
        if self.null is not None:
            own = self.held_out(self.null.hits, chosen)
            other = self.held_out(self.null.hits, self.chosen(self.null.hits, rows, among))
            if best is not None and own is not None and other is not None:
                columns["other_images"] = own
                columns["other_images_best"] = other
                columns["held_out_less_other_images"] = best.astype(float) - own
        told: dict[str, Any] = {"phrases": int(rows.sum())}
        told |= dict.fromkeys(COLUMNS)
        return told | self.intervals(columns, rows), chosen

    def _best(self, rows: np.ndarray, among: np.ndarray) -> dict[str, Any] | None:
        """The best active head on all phrases, which is chosen and scored on the same."""
        heads = np.flatnonzero(among & (self.means[:, 0] > self.least))
        if not len(heads) or not rows.any():
            return None
        head = int(heads[self.found.hits[rows][:, heads].sum(0).argmax()])
        told = self.intervals({"best": self.found.hits[:, head]}, rows)["best"]
        return {"head": self.name(head), **told, "region_share": _round(100 * self.means[head, 0])}

    def _layer(self, layer: tuple[str, int]) -> dict[str, Any]:
        among = np.array([(name, number) == layer for name, number, _ in self.found.heads])
        told, chosen = self._of(self.used, among)
        accuracy = self.found.hits[self.used][:, among].mean(0)
        shares = self.means[among].mean(0)
        return {
            "attention": layer[0],
            "layer": layer[1],
            "active_heads": int((self.means[among, 0] > self.least).sum()),
            "mean": _round(100 * accuracy.mean()),
            "best": self._best(self.used, among),
            "chosen": [None if head is None else self.name(head) for head in chosen],
            **{name: told[name] for name in OF_LAYERS},
            **_measured(shares),
        }

    def _kind(self, kind: str, every: np.ndarray) -> dict[str, Any]:
        rows = self.used & np.array([kind in own for own in self.kinds])
        if not rows.any():
            return {"phrases": 0}
        told, chosen = self._of(rows, every)
        return {
            **told,
            "chosen": [None if head is None else self.name(head) for head in chosen],
            "best": self._best(rows, every),
        }

    def _heads(self, kinds: Sequence[str]) -> list[dict[str, Any]]:
        rows = {kind: self.used & np.array([kind in own for own in self.kinds]) for kind in kinds}
        shares = {
            kind: 100 * self.found.hits[own].mean(0) for kind, own in rows.items() if own.any()
        }
        accuracy = 100 * self.found.hits[self.used].mean(0)
        null = None if self.null is None else 100 * self.null.hits[self.used].mean(0)
        table = []
        for place, (name, layer, head) in enumerate(self.found.heads):
            row: dict[str, Any] = {"attention": name, "layer": layer, "head": head}
            row |= {self.found.measure: _round(accuracy[place])}
            row |= {"active": bool(self.means[place, 0] > self.least)}
            row |= _measured(self.means[place])
            row |= {"other_images": None if null is None else _round(null[place])}
            row |= {kind: _round(values[place]) for kind, values in shares.items()}
            table.append(row)
        return table


COLUMNS = (
    *("upper_bound", "chance", "confidence", "held_out", "other_images", "other_images_best"),
    *("held_out_less_rule", "held_out_less_other_images"),
)
"""What is told of phrases, None where it cannot be had; in per cent, with an interval each.

`held_out`: the best active head of one half of the images on the other half, both ways round; `other_images`: the same
heads before the looks of other images; `other_images_best`: heads that were chosen there; `rule`: the region of the
highest confidence, or chance where there is no confidence.
"""
OF_LAYERS = ("held_out", "other_images")
"""Of these, what is told of a layer."""


def _measured(means: np.ndarray) -> dict[str, float]:
    """Shares (MEASURES,) in per cent, the entropy in nats."""
    told = {}
    for name, value in zip(MEASURES, means.tolist(), strict=True):
        told[name] = round(value, 3) if name == "entropy" else _round(100 * value)
    return told


def _round(value: float) -> float:
    return round(float(value), 2)
