"""Parameter counts of a preset or a model folder."""

from __future__ import annotations

from typing import Any

from groundling.runs.folder import json_text
from groundling.studies.papers.commands import InfoConfig
from groundling.studies.papers.presets import describe


def info(config: InfoConfig) -> dict[str, Any]:
    """Print the model's parts and their parameters, or one JSON object; returns what it printed."""
    described = describe(config.name)
    if config.json:
        print(json_text(described))
        return described
    print(f"{described['name']}: {described['total']:,} parameters")
    for part, count in described["components"].items():
        print(f"  {part:<12}{count:>14,}")
    return described
