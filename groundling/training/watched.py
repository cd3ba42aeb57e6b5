"""What a run's log says, epoch by epoch, of terms that are only watched."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from pathlib import Path
from typing import Any

from groundling.objectives import Objective
from groundling.runs.folder import read_log


def watched_terms(
    objectives: Sequence[Objective], folder: Path, trained: Mapping[str, Any]
) -> tuple[dict[str, list[float]], list[str]]:
    """The mean of every watched term in each epoch of a finished training, and what is to be said of them, once.

    `trained` is what `train` returned, and `folder` where it wrote its log.
    """
    terms = [term for objective in objectives for term in objective.watched]
    if not terms:
        return {}, []
    # An epoch of fewer than a ten-thousandth is written as 0.
    epoch = trained["steps"] / max(trained["epochs"], 1e-4)
    means = means_by_epoch(folder / "log.jsonl", terms, epoch)
    # Terms that share a gate say the same of it.
    notes = list(dict.fromkeys(line for one in objectives for line in one.remarks(means)))
    return means, notes


def means_by_epoch(log: Path, terms: Sequence[str], epoch: float) -> dict[str, list[float]]:
    """Mean of each term in every epoch of `log.jsonl`, where it was logged at all.

    A line counts by the steps it covers (one that covers none says nothing), and belongs to the epoch in which it ends,
    of `epoch` steps each. Raises InputError as `read_log`.
    """
    sums: dict[str, dict[int, tuple[float, int]]] = {term: {} for term in terms}
    before = 0
    for line in read_log(log):
        steps = line["step"] - before
        before = line["step"]
        number = ceil(round(before / epoch, 6))
        for term in terms:
            if line.get(term) is not None and steps:
                total, covered = sums[term].get(number, (0.0, 0))
                sums[term][number] = (total + steps * line[term], covered + steps)
    return {
        term: [total / covered for _, (total, covered) in sorted(of_term.items())]
        for term, of_term in sums.items()
        if of_term
    }
