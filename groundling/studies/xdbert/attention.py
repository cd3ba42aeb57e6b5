"""How diverse the attention of two cross-modal models is, as a command (XDBERT, Section 5 and Table 9)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from groundling.core.batch import Example
from groundling.core.find import named
from groundling.data.corpora.files import corpus
from groundling.data.samples import thinned
from groundling.models.crossmodal import CrossModal, load_crossmodal
from groundling.runs.folder import disk_errors, write_json, write_whole
from groundling.runs.run import Run
from groundling.studies.xdbert.commands import AttentionConfig, check_attention
from groundling.studies.xdbert.diversity import compare_maps, heat_maps
from groundling.tasks import Task


def attention(config: AttentionConfig, out: str | Path) -> dict[str, Any]:
    """Diversity of two cross-modal models' attention maps, and heat maps of one text, in `out`.

    Writes `attention.json` and `attention.svg`, and the same numbers as `result.json`, which are returned. Raises
    InputError if a folder holds no whole cross-modal model, or the models do not fit each other.
    """
    check_attention(config, out)
    run = Run(out, "attention", asdict(config), {"data": config.data})
    a = load_crossmodal(config.a)
    b = load_crossmodal(config.b)
    names = (config.a, config.b)
    result = attention_report(
        a,
        b,
        _texts(config, a),
        run.folder,
        names,
        max_length=config.max_length,
        special=config.special,
    )
    return run.finish(result)


def _texts(config: AttentionConfig, model: CrossModal) -> list[Example]:
    """Sentences of files, or the development examples of a task."""
    if not config.task:
        longest = model.inputs(config.max_length)[0].max_length
        return corpus(config.text, "lines", model.text.tokenizer, longest, config.max_texts)
    task = named("tasks", Task, config.task)
    return thinned(task.read(Path(config.data), task.dev[0]), config.max_texts)


def attention_report(
    a: CrossModal,
    b: CrossModal,
    texts: Sequence[Example],
    out: Path,
    names: tuple[str, str] = ("a", "b"),
    head: int = 0,
    draws: int = 2000,
    seed: int = 0,
    least: int = 200,
    max_length: int = 128,
    special: bool = False,
) -> dict[str, Any]:
    """Compare two whole models: `attention.json` (returned), `attention.svg` of a text of median length.

    For the numbers see `compare_maps`; `head` is the one shown, with `special` with rows of [CLS] and [SEP].
    """
    comparison = compare_maps(a, b, texts, draws, seed, least, max_length)
    by_length = sorted(texts, key=lambda example: len(example.text))
    example = by_length[len(texts) // 2]
    svg = heat_maps(a, b, example, head, names, max_length=max_length, special=special)
    report = {
        "a": names[0],
        "b": names[1],
        **comparison,
        "shown": {"example": example.id, "head": head},
    }
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_whole(out / "attention.svg", svg)
    write_json(out / "attention.json", report)
    return report
