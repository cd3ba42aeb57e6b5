"""What a run's log says, epoch by epoch, of terms that are only watched."""

from __future__ import annotations

import json
from collections.abc import Sequence
from math import ceil
from pathlib import Path


def means_by_epoch(log: Path, terms: Sequence[str], epoch: float) -> dict[str, list[float]]:
    """Mean of each term in every epoch of `log.jsonl`, where it was logged at all.

    A line counts by the steps it covers, and belongs to the epoch in which it ends, of `epoch` steps each.
    """
    sums: dict[str, dict[int, tuple[float, int]]] = {term: {} for term in terms}
    before = 0
    for text in log.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        steps = line["step"] - before
        before = line["step"]
        number = ceil(round(before / epoch, 6))
        for term in terms:
            if term in line:
                total, covered = sums[term].get(number, (0.0, 0))
                sums[term][number] = (total + steps * line[term], covered + steps)
    return {
        term: [total / covered for _, (total, covered) in sorted(of_term.items())]
        for term, of_term in sums.items()
        if of_term
    }
