"""Negatives from all micro-batches of an optimizer step, by cached gradients (GradCache: Gao et al. 2021, 2101.06983).

The rows that an objective gathers are the paper's representations. First they are computed for all micro-batches,
without the model's gradients. Then the losses of all micro-batches give the gradients of these rows. Last each
micro-batch runs again, and its backward pass starts at its loss and at its rows. A micro-batch computes its own part
of the loss alone, so logits need memory that grows with the batch, not with its square.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from groundling.core.batch import Batch, EncoderOutput
from groundling.core.errors import InputError
from groundling.objectives import Objective
from groundling.objectives.contrastive import (
    GatheredRows,
    JoinedPass,
    RowsAreMissing,
    gather_across_processes,
)


@dataclass
class _Joined:
    """The rows of one gathering call."""

    own: Tensor
    """This process's rows, of all its micro-batches."""
    every: Tensor
    """Those of all processes, of which `own` is a part for autograd."""
    sizes: list[int]
    """Number of rows of each micro-batch."""
    gathered: GatheredRows
    gradient: Tensor | None = None
    """The gradient of the table (m, D) from this process's losses; None for integers."""


def join_micro_batches(
    objective: Objective,
    encoded: Sequence[EncoderOutput],
    batches: Sequence[Batch],
    seeds: Sequence[int],
    loss: Callable[[Mapping[str, Tensor]], Tensor],
) -> list[JoinedPass]:
    """A pass for each micro-batch, with the rows that all have gathered, and the gradients of its own.

    `encoded`: the model's outputs, without gradient; `seeds`: of each pass's random numbers; `loss`: from summed terms.
    Raises InputError for an objective that gathers nothing, or in some micro-batches alone.
    """
    joined: list[_Joined] = []
    while True:
        gathered = [one.gathered for one in joined]
        passes = [JoinedPass(place, seed, gathered) for place, seed in enumerate(seeds)]
        waiting = 0
        for one, states, batch in zip(passes, encoded, batches, strict=True):
            try:
                with one.run():
                    terms = objective(states, batch)
            except RowsAreMissing:
                waiting += 1
            else:
                _add_gradients(joined, terms, loss)
        if not waiting:
            break
        if waiting < len(passes):
            raise InputError(
                f"cached_negatives: {objective.name} gathers rows in some micro-batches alone"
            )
        joined.append(_join([one.rows[-1].detach() for one in passes]))
    if not joined:
        raise InputError(
            f"cached_negatives: {objective.name} takes its negatives from its own micro-batch, as it gathers no rows"
        )
    for one in passes:
        # The last pass's gradients must not reach the tables: the rows' own are cached.
        one.gathered = [
            GatheredRows(rows.gathered.table.detach(), rows.gathered.starts) for rows in joined
        ]
    for rows in joined:
        for one, gradient in zip(passes, _split_gradients(rows), strict=True):
            one.gradients.append(gradient)
    return passes


def _join(parts: Sequence[Tensor]) -> _Joined:
    own = torch.cat(list(parts))
    has_gradient = own.is_floating_point()
    every, start = gather_across_processes(own.requires_grad_(has_gradient))
    sizes = [len(part) for part in parts]
    starts = [start + sum(sizes[:place]) for place in range(len(sizes))]
    table = every.detach().requires_grad_(has_gradient)
    gradient = torch.zeros_like(table) if has_gradient else None
    return _Joined(own, every, sizes, GatheredRows(table, starts), gradient)


def _add_gradients(
    joined: Sequence[_Joined],
    terms: Mapping[str, Tensor],
    loss: Callable[[Mapping[str, Tensor]], Tensor],
) -> None:
    rows = [one for one in joined if one.gradient is not None]
    total = loss(terms) if terms else None
    if not rows or total is None or not total.requires_grad:
        return
    tables = [one.gathered.table for one in rows]
    found = torch.autograd.grad(total, tables, allow_unused=True)
    for one, gradient in zip(rows, found, strict=True):
        if gradient is not None and one.gradient is not None:
            one.gradient += gradient


def _split_gradients(rows: _Joined) -> Sequence[Tensor | None]:
    """Of each micro-batch's rows, the gradient summed over the losses of all processes."""
    if rows.gradient is None:
        return [None] * len(rows.sizes)
    (own,) = torch.autograd.grad(rows.every, rows.own, rows.gradient)
    return own.split(rows.sizes)
