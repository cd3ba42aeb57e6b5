"""Which attention heads ground phrases in regions (VisualBERT, Section 3 and Figure 3), as a command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.runs.report import TableRow, format_table
from groundling.runs.run import Run
from groundling.studies.attention.commands import HeadsConfig
from groundling.studies.attention.grounding import (
    COUNTED,
    PhraseSpan,
    count_phrases,
    format_interval,
    format_value,
    notes_of_reports,
    score_heads,
)
from groundling.tasks import Task
from groundling.tasks import grounding as entities


def heads(config: HeadsConfig, run: Run) -> dict[str, Any]:
    """Every head's accuracy as a classifier of phrases, with baselines and a control.

    Raises:
        InputError: The model reads no regions or gives no attention, a file is missing or
            malformed, a phrase is not in its text, or no phrase is left.
    """
    task = resolve("tasks", Task, config.task)
    phrases, skipped = read_phrases(
        task, Path(config.data), config.split, config.include_unrelated_captions
    )
    firsts = [own[0].example for own in phrases]
    texts = [Example(one.id, one.text, images=one.images) for one in firsts]
    baselines, (board,) = score_heads(config, texts, phrases, task, config.query, run.state.device)
    report = board.report()
    counts = {
        "images": len({one.images for one in texts}),
        "texts": len(texts),
        **count_phrases(baselines),
        "without_box": skipped,
    }
    run.note(*notes_of_reports(counts, {}, [report]))
    return {
        "active_above": config.min_region_attention,
        "counts": counts,
        **report,
        "notes": run.notes,
    }


# -- texts and phrases -------------------------------------------------------------------------------------------------


def read_phrases(
    task: Task, folder: Path, split: str, unrelated: bool
) -> tuple[list[list[PhraseSpan]], int]:
    """The phrases of each text of a split, and the number of those without a box.

    `unrelated`: with Flickr30k's UNRELATED_CAPTIONS. Raises InputError for a task without boxes.
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
    skipped = 0
    if is_entities:
        captions = entities.read_captions(folder, split, unrelated=unrelated)
        skipped = sum(len(caption.skipped) for caption in captions)
        ids = {caption.id for caption in captions}
        examples = [one for one in examples if one.official_id.rpartition("/")[0] in ids]
    if not examples:
        raise InputError(f"{folder}: {split!r} has no phrase with a box")
    # Examples of the same text and image are merged, so that each text is read once.
    phrases: dict[tuple[str, tuple[str, ...]], list[PhraseSpan]] = {}
    for example in examples:
        # Without a tag, the whole text is the phrase, as in RefCOCO.
        (start, stop, _), *_ = example.region_tags or ((0, len(example.text), 0),)
        span = PhraseSpan(example, start, stop)
        phrases.setdefault((example.text, example.images), []).append(span)
    return list(phrases.values()), skipped


# -- tables ------------------------------------------------------------------------------------------------------------


def format_heads(result: dict[str, Any]) -> str:
    """The result as text: accuracies, and a table of layers."""
    counts = result["counts"]
    accuracies = [
        {"": label, "%": format_value(result[key]), "95 % interval": format_interval(result[key])}
        for key, label in ROWS.items()
    ]
    first, second = (name or "none" for name in result["chosen"])
    return "\n\n".join(
        [
            f"{counts['asked']:,} phrases of {counts['images']:,} images; {counts['without_box']:,} more have no box; "
            f"{COUNTED}",
            format_table(accuracies),
            f"heads selected on each half: {first}, {second}; {result['active_heads']} of {len(result['heads'])} "
            f"heads send more than {result['active_above']:.0%} of their attention from phrases to regions",
            format_table([_layer(layer) for layer in result["layers"]]),
        ]
    )


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


def _layer(layer: dict[str, Any]) -> TableRow:
    return {
        "layer": str(layer["layer"]),
        "best active": layer["best"]["head"] if layer["best"] else "-",
        "%": format_value(layer["best"]),
        "held out": format_value(layer["held_out"]),
        "other images": format_value(layer["other_images"]),
        "mean of heads": f"{layer['mean']:.2f}",
        "active": str(layer["active_heads"]),
        "to regions": f"{layer['region_share']:.2f}",
    }
