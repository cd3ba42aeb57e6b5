"""Recipes: experiments as Python. A recipe is a file that binds `TABLES`, and `PAPER` to a paper's title.

`groundling run FILE` plans and runs it. `paper` gives settings the values that a paper prints, `step` is one command
with its settings, a `Row` holds the fine-tunings of one model, and a `Table` compares its rows with the first one.
"""

from groundling.recipes.paper import paper
from groundling.recipes.parts import (
    Row,
    Step,
    Table,
    adapt,
    data,
    pretrain,
    row,
    settings,
    slug,
    step,
    weights,
)

__all__ = [
    "Row",
    "Step",
    "Table",
    "adapt",
    "data",
    "paper",
    "pretrain",
    "row",
    "settings",
    "slug",
    "step",
    "weights",
]
