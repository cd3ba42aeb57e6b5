"""`python -m tests.recipes_plans`: the plan of every recipe as JSON, and what differs from an earlier dump.

A change that should change no experiment prints no difference:

python -m tests.recipes_plans --out runs/plans-before
python -m tests.recipes_plans --out runs/plans-after --against runs/plans-before
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent)]

from tiny.recipes import FILES, recipe_of  # noqa: E402

from groundling.recipes import Input, Source  # noqa: E402
from groundling.recipes.plan import plan_json  # noqa: E402
from groundling.settings.fields import setting_values  # noqa: E402


def plan_of(file: Path) -> dict[str, Any]:
    """Inputs, tables with the papers' scores, notes, and steps by name, each with every setting."""
    recipe = recipe_of(file)

    def place(source: Source) -> str:
        return source.name if isinstance(source, Input) else recipe.place(source)

    plan = plan_json(recipe)
    shown = {one["name"]: one for one in plan["steps"]}
    steps = {
        step.name: {**shown[step.name], "all": setting_values(*step.typed(place))}
        for step in recipe.steps()
    }
    tables = {
        table.name: {"columns": table.columns, **{row.name: row.scores for row in table.rows}}
        for table in recipe.tables
    }
    content = {**plan, "steps": steps, "tables": tables}
    return json.loads(json.dumps(content))


def differences(before: Any, after: Any, where: str) -> Iterator[str]:
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before | after:
            yield from differences(before.get(name), after.get(name), f"{where}/{name}")
    elif before != after:
        yield f"{where}: {before!r:.200} -> {after!r:.200}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    count = 0
    for file in FILES:
        plan = plan_of(file)
        (options.out / f"{file.stem}.json").write_text(json.dumps(plan, indent=1))
        if options.against is not None:
            before = json.loads((options.against / f"{file.stem}.json").read_text())
            for line in differences(before, plan, file.stem):
                print(line)
                count += 1
        print(f"{file.name}: {len(plan['steps'])} steps")
    return min(count, 1)


if __name__ == "__main__":
    sys.exit(main())
