"""Recipes of the repository, and those that a test writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.commands.run import RunConfig, load_recipe
from groundling.recipes import Step
from groundling.recipes.plan import Recipe

RECIPES = Path(__file__).parents[2] / "recipes"
FILES = sorted(RECIPES.glob("*.py"))
PAPERS = [path for path in FILES if "\nPAPER = " in path.read_text(encoding="utf-8")]
"""Recipes with a paper's own experiments."""


def recipe_of(file: Path | str, out: str = "out", **chosen: Any) -> Recipe:
    """The recipe of a file, or of a name in `recipes/`; `chosen`: table, rows, seeds."""
    path = file if isinstance(file, Path) else RECIPES / file
    return load_recipe(RunConfig(file=str(path), **chosen), Path(out))


def steps_by_name(recipe: Recipe) -> dict[str, Step]:
    return {step.name: step for step in recipe.steps()}
