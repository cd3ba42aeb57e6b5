"""Which heads of a model are worth looking at first."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.errors import InputError
from groundling.models.weights import saved_sha256
from groundling.runs.folder import read_json
from groundling.studies.attention.page.views import View

PANELS = 6
"""Layers whose best heads VisualBERT's Figures 1 and 5 show."""


@dataclass(frozen=True)
class Ranked:
    """The heads of one model, best first."""

    by: str
    """What they are ranked by, in words."""
    heads: Sequence[tuple[str, int, int, float]]
    """Name and number of the layer, the head, and its share 0..1."""
    active: int = 0
    """So many of them, the first, look at regions as `groundling heads` counts it."""
    file: str = ""
    """The result that says so; empty where nobody measured what they find."""
    model: str = ""
    """What that result calls the model."""
    weights: str = ""
    """Hash of its weights, see `saved_sha256`; empty of a hub's model, and in results of earlier versions."""
    untrained: bool = False
    """Random weights were in place of the model's own."""

    @staticmethod
    def read(folder: str | Path) -> Ranked:
        """What `groundling heads` found, by the measure that it names, of active heads first.

        Raises InputError for another folder.
        """
        path = Path(folder)
        path = path if path.is_file() else path / "result.json"
        content = read_json(path)
        try:
            measure = content.get("measure", "accuracy")
            rows = [
                (
                    bool(one["active"]),
                    str(one["attention"]),
                    one["layer"],
                    one["head"],
                    one[measure],
                )
                for one in content["heads"]
            ]
            best_first = sorted(rows, key=lambda row: (not row[0], -row[4]))
            heads = [(row[1], int(row[2]), int(row[3]), row[4] / 100) for row in best_first]
            as_told = {row[1:4] for row in rows}
        except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
            raise InputError(
                f"{path}: no result of `groundling heads` ({type(error).__name__}: {error})"
            ) from None
        if not heads or not all(0 <= share <= 1 for *_, share in heads):
            raise InputError(
                f"{path}: no result of `groundling heads` (expected heads, each with an accuracy of 0 to 100)"
            )
        places = {(name, layer, head) for name, layer, head, _ in heads}
        if (
            not places == as_told
            or len(places) < len(heads)
            or any(layer < 0 or head < 0 for _, layer, head in places)
        ):
            raise InputError(
                f"{path}: no result of `groundling heads` (expected whole numbers of layers and heads, each head once)"
            )
        return Ranked(
            f"{measure} in {path.parent.name}",
            heads,
            active=sum(is_active for is_active, *_ in rows),
            file=str(path),
            model=str(content.get("model", "")),
            weights=str(content.get("weights", "")),
            untrained=bool(content.get("untrained", False)),
        )

    def packed(self) -> dict[str, Any]:
        """As the page has it."""
        return {"by": self.by, "heads": self.heads}

    def check_model(self, source: str, folder: str) -> None:
        """Raises InputError if the result says that it is of another model than the one in `folder`.

        A folder that was moved is known by its weights; one of a result without their hash by its name.
        """
        if self.weights:
            is_same = self.weights == saved_sha256(folder)
        else:
            is_same = not self.model or Path(self.model).resolve() == Path(folder).resolve()
        told = f"{self.model} with random weights" if self.untrained else self.model
        if self.untrained or not is_same:
            raise InputError(
                f"--heads {self.file}: is of {told}, not of --model {source}; pass this model's own result, or "
                "--other-heads"
            )

    def check_sizes(self, heads: Mapping[tuple[str, int], int], every: bool) -> None:
        """Raises InputError unless the model's layers have the result's heads.

        `heads`: how many there are in a layer, by its name and number; `every`: no layer was left out.
        """
        theirs: dict[str, tuple[int, int]] = {}
        for name, layer, head, _ in self.heads:
            layers, most = theirs.get(name, (0, 0))
            theirs[name] = (max(layers, layer + 1), max(most, head + 1))
        for (name, layer), count in heads.items():
            layers, most = theirs.get(name, (0, 0))
            mine = 1 + max(number for other, number in heads if other == name)
            if most != count or layer >= layers or (every and mine != layers):
                raise InputError(
                    f"--heads {self.file}: has {layers} layers of {most} heads, the model {mine} of {count}; pass this "
                    "model's own result"
                )

    def best(self, layers: Collection[int]) -> list[str]:
        """LAYER-HEAD of the best active head in each of the best `PANELS` of some layers, in their order.

        So VisualBERT's authors chose what to show (Section 3). Raises InputError if heads were not measured, or none
        is active there.
        """
        if not self.file:
            raise InputError(
                "--heat-maps best: pass --heads, what `groundling heads` found of the model, or name heads"
            )
        best: dict[int, int] = {}
        for _, layer, head, _ in self.heads[: self.active]:
            if layer in layers:
                best.setdefault(layer, head)
        if not best:
            raise InputError(
                f"--heat-maps best: in {self.file} no head of the layers shown is active; name heads, or run "
                "`groundling heads --active 0`"
            )
        return [f"{layer}-{best[layer]}" for layer in sorted(list(best)[:PANELS])]


class Mass:
    """Gathers how much of words' attention is on boxes, view by view of one model."""

    def __init__(self) -> None:
        self.total: dict[tuple[str, int], np.ndarray] = {}
        self.count: dict[tuple[str, int], int] = {}

    def add(self, view: View) -> None:
        """One more image and text."""
        for key, mass in view.mass().items():
            self.total[key] = self.total.get(key, 0) + mass
            self.count[key] = self.count.get(key, 0) + 1

    @property
    def heads(self) -> dict[tuple[str, int], int]:
        """How many heads there are in every layer whose words read boxes, by its name and number."""
        return {key: len(total) for key, total in self.total.items()}

    def ranked(self) -> Ranked | None:
        """The heads by their mean; None of a model whose words read no boxes."""
        heads = [
            (name, layer, head, round(float(share), 4))
            for (name, layer), total in self.total.items()
            for head, share in enumerate(total / self.count[name, layer])
        ]
        best_first = sorted(heads, key=lambda one: -one[3])
        return Ranked("attention of words to boxes", best_first) if heads else None
