"""Which attention heads ground phrases in regions (VisualBERT, Section 3 and Figure 3), as a command."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import Example, require
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.runs.report import TableRow, format_count, format_table
from groundling.runs.run import Run
from groundling.studies.attention.commands import HeadsConfig
from groundling.studies.attention.forward_passes import consume_attention
from groundling.studies.attention.grounding import (
    GroundingResult,
    HeadGrounding,
    HeadLeaderboard,
    PhraseSpan,
    PhraseStatus,
    assign_halves,
)
from groundling.studies.attention.inspected_models import RegionModel
from groundling.tasks import Task
from groundling.tasks import flickr_entities as entities

COUNTED = "layers and heads count from 0"
STATUS_KEYS = {
    PhraseStatus.TRUNCATED: "cut_off",
    PhraseStatus.NO_TOKENS: "without_tokens",
    PhraseStatus.SPLITS_WORD: "split_a_word",
}
"""Keys in the result for the reasons why a phrase is not scored."""


@dataclass(frozen=True)
class GroundingData:
    """The texts of a split, and their phrases."""

    examples: Sequence[Example]
    """Each text of an image, once."""
    phrases: Sequence[Sequence[PhraseSpan]]
    """Of every text, the phrases that heads are scored on."""
    kinds: Sequence[tuple[str, ...]]
    """Of every phrase of all texts, its entity types."""
    skipped: dict[str, int]
    """Number of phrases without a box, by reason; texts that have no other phrase are not read."""

    def image_halves(self, seed: int) -> dict[str, int]:
        """The half (0 or 1) of each image."""
        return assign_halves([one.images[0] for one in self.examples], seed)


def heads(config: HeadsConfig, run: Run) -> dict[str, Any]:
    """Every head's accuracy as a classifier of phrases, with baselines and a control.

    Raises:
        InputError: The model reads no regions or gives no attention, a file is missing or
            malformed, a phrase is not in its text, or no phrase is left.
    """
    task = resolve("tasks", Task, config.task)
    texts = read_grounding_data(
        task, Path(config.data), config.split, config.include_unrelated_captions
    )
    results = ground_phrases(config, task, texts, run.state.device)
    summary = _summarise(texts, results, config.min_region_attention, config.attention.seed)
    run.note(*summary["notes"])
    return {
        "task": config.task,
        "split": config.split,
        "model": config.attention.model,
        "untrained": config.attention.untrained,
        "counted": COUNTED,
        "query": config.query,
        "active_above": config.min_region_attention,
        **summary,
    }


# -- texts and phrases -------------------------------------------------------------------------------------------------


def read_grounding_data(task: Task, folder: Path, split: str, unrelated: bool) -> GroundingData:
    """The texts and phrases of a split; `unrelated`: with Flickr30k's UNRELATED_CAPTIONS.

    Raises InputError for a task without boxes.
    """
    if task.label_regions is None:
        raise InputError(
            f"task={task.name}: its answers are not regions; expected flickr30k, refcoco+ or another task with boxes"
        )
    is_entities = task in (entities.FLICKR30K, entities.MERGED)
    if not unrelated and not is_entities:
        raise InputError(
            f"include_unrelated_captions=False is for Flickr30k Entities, not for {task.name}"
        )
    examples = task.read(folder, split)
    kinds: dict[str, tuple[str, ...]] = {}
    skipped: Counter[str] = Counter()
    if is_entities:
        for caption in entities.read_captions(folder, split, unrelated=unrelated):
            for number, phrase in enumerate(caption.phrases):
                kinds[f"{caption.id}/{number}"] = phrase.types
            skipped.update(_skip_reason(phrase) for phrase in caption.skipped)
        examples = [example for example in examples if example.official_id in kinds]
    if not examples:
        raise InputError(f"{folder}: {split!r} has no phrase with a box")
    return _by_text(examples, kinds, dict(sorted(skipped.items())))


def _skip_reason(phrase: entities.EntityPhrase) -> str:
    """Why a phrase has no box: nothing visible, a scene, or not annotated."""
    for kind in ("notvisual", "scene"):
        if kind in phrase.types:
            return kind
    return "nobox"


def _by_text(
    examples: Sequence[Example], kinds: dict[str, tuple[str, ...]], skipped: dict[str, int]
) -> GroundingData:
    """Merge examples of the same text and image, so that each text is read once."""
    place: dict[tuple[str, tuple[str, ...]], int] = {}
    texts: list[Example] = []
    phrases: list[list[PhraseSpan]] = []
    for example in examples:
        key = (example.text, example.images)
        if key not in place:
            place[key] = len(texts)
            texts.append(Example(example.id, example.text, images=example.images))
            phrases.append([])
        # Without a tag, the whole text is the phrase, as in RefCOCO.
        (start, stop, _), *_ = example.region_tags or ((0, len(example.text), 0),)
        phrases[place[key]].append(PhraseSpan(example, start, stop))
    ordered = [kinds.get(one.example.official_id, ()) for own in phrases for one in own]
    return GroundingData(texts, phrases, ordered, skipped)


# -- scores ------------------------------------------------------------------------------------------------------------


def ground_phrases(
    config: HeadsConfig, task: Task, texts: GroundingData, device: torch.device
) -> list[GroundingResult]:
    """The heads' scores on the phrases, and those with features of other images."""
    attending = config.attention
    attended = RegionModel(attending, device)
    mark = attended.mark(require(task.label_regions, "mark", task.name))
    halves_of = texts.image_halves(attending.seed)
    half = [halves_of[one.images[0]] for one in texts.examples]
    results = []
    for with_other_images in (False, True)[: 1 + config.shuffled_images_control]:
        samples = attended.samples(texts.examples, with_other_images)
        grounding = HeadGrounding(texts.phrases, mark, half, config.query)
        consume_attention(attended.model, samples, grounding, attending.batch)
        results.append(grounding.result())
    return results


def _summarise(
    texts: GroundingData, results: Sequence[GroundingResult], active: float, seed: int
) -> dict[str, Any]:
    """Counts, accuracies and notes of `result.json`; `active`: threshold of active heads."""
    result, *others = results
    half_of = texts.image_halves(seed)
    number = {image: place for place, image in enumerate(half_of)}
    images = [one.example.images[0] for own in texts.phrases for one in own]
    board = HeadLeaderboard(
        result,
        np.array([number[image] for image in images]),
        np.array([half_of[image] for image in images]),
        texts.kinds,
        active,
        seed,
        others[0] if others else None,
    )
    statuses = Counter(result.baselines.status.tolist())
    counts = {
        "images": len(half_of),
        "texts": len(texts.examples),
        "asked": statuses[PhraseStatus.SCORED],
        **{name: statuses[state] for state, name in STATUS_KEYS.items()},
        "in_images_without_regions": int((result.baselines.region_count == 0).sum()),
        "without_box": texts.skipped,
    }
    report = board.report()
    report["notes"] += _notes(counts)
    if not report["upper_bound"]["value"]:
        report["notes"].append(
            "no region matches any phrase's box, so no head can be right; use a store with smaller or other boxes"
        )
    return {"counts": counts, **report}


def _notes(counts: dict[str, Any]) -> list[str]:
    reasons = {
        "cut_off": "left out: truncated with the end of a text (max_length, or the model's limit)",
        "without_tokens": "left out: the tokenizer gives them no token",
        "split_a_word": "left out: they begin or end within a word",
        "in_images_without_regions": "counted as wrong: no region in the image",
    }
    return [
        f"{format_count(counts[name], 'phrase')} {why}"
        for name, why in reasons.items()
        if counts[name]
    ]


# -- tables ------------------------------------------------------------------------------------------------------------


def format_heads(result: dict[str, Any]) -> str:
    """The result as text: accuracies, and a table of layers."""
    counts = result["counts"]
    skipped = sum(counts["without_box"].values())
    lines = [
        f"{counts['asked']:,} phrases of {counts['images']:,} images; {skipped:,} more have no box; {COUNTED}",
        format_table([_row(name, result[key]) for key, name in ROWS.items()]),
    ]
    chosen = [name or "none" for name in result["chosen"]]
    lines.append(
        f"heads selected on each half: {chosen[0]}, {chosen[1]}; {result['active_heads']} of {len(result['heads'])} "
        f"heads send more than {result['active_above']:.0%} of their attention from phrases to regions"
    )
    lines.append(format_table([_layer(layer) for layer in result["layers"]]))
    return "\n\n".join(lines)


ROWS = {
    "upper_bound": "upper bound",
    "chance": "a region at random",
    "confidence": "the region of highest confidence",
    "held_out": "best active head of the other half",
    "other_images": "the same with other images",
    "other_images_best": "best active head with other images",
    "held_out_less_rule": "best active head less baseline",
    "held_out_less_other_images": "best active head less other images",
}
"""Row labels of the first table."""


def _row(name: str, estimate: dict[str, Any] | None) -> TableRow:
    if estimate is None:
        return {"": name, "%": "-", "95 % interval": "-"}
    low, high = estimate["interval"]
    return {"": name, "%": f"{estimate['value']:.2f}", "95 % interval": f"{low:.2f} to {high:.2f}"}


def _layer(layer: dict[str, Any]) -> TableRow:
    best = layer["best"]

    def value(name: str) -> str:
        return "-" if layer[name] is None else f"{layer[name]['value']:.2f}"

    return {
        "layer": str(layer["layer"]),
        "best active": "-" if best is None else best["head"],
        "%": "-" if best is None else f"{best['value']:.2f}",
        "held out": value("held_out"),
        "other images": value("other_images"),
        "mean of heads": f"{layer['mean']:.2f}",
        "active": str(layer["active_heads"]),
        "to regions": f"{layer['region_share']:.2f}",
    }
