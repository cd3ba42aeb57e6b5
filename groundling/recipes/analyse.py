"""The papers' analyses from model and run folders: similar embeddings, grounded gains, diverse attention."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from groundling.analysis.attention import attention_report
from groundling.analysis.finished_runs import collect
from groundling.analysis.gains import analyse, figure, listing, null_split, split
from groundling.analysis.grounded import Grounding
from groundling.analysis.similarity import similarity as compare_tables
from groundling.config import AttentionConfig, GroundedConfig, SimilarityConfig
from groundling.data.corpora import corpus
from groundling.errors import InputError
from groundling.find import named
from groundling.models.crossmodal import load_crossmodal
from groundling.models.loading import load_tokenizer
from groundling.published import PWCCA
from groundling.report import write_report
from groundling.runs import disk_errors, open_run, write_json
from groundling.tasks import Task


def similarity(config: SimilarityConfig, out: str | Path) -> dict[str, Any]:
    """Similarity of two models' word embeddings (XDBERT Table 2), written to `out/result.json`."""
    if not config.a or not config.b:
        raise InputError("similarity needs --a and --b, each a model or `random`")
    folder = open_run(out, "similarity", asdict(config), {})
    result = compare_tables(config.a, config.b, config.top, config.draws, config.seed)
    result["published_pwcca"] = {" / ".join(pair): value for pair, value in PWCCA.items()}
    write_json(folder / "result.json", result)
    return result


def grounded(config: GroundedConfig, out: str | Path) -> dict[str, Any]:
    """Grounded ratios of improved and worsened examples (XDBERT Figure 4, Appendix D).

    Writes `out/result.json`, the box plot `grounded.html` and `grounded.png`, and the extreme `examples.md`.
    """
    for field in ("base", "other", "task", "data", "counts", "tokenizer"):
        if not asdict(config)[field]:
            raise InputError(f"grounded needs --{field}")
    task = named("tasks", Task, config.task)
    found = {
        name: collect(name, place)
        for name, place in (("base", config.base), ("other", config.other))
    }
    for name, place in (("base", config.base), ("other", config.other)):
        if task.name not in found[name]:
            raise InputError(
                f"{place}: no finished run of {task.name}; there are {', '.join(found[name])}"
            )
    base, other = found["base"][task.name][0], found["other"][task.name][0]
    examples = {example.id: example for example in task.read(Path(config.data), task.dev[0])}
    if base.ids != other.ids or set(base.ids) != set(examples):
        raise InputError(
            f"{config.base}, {config.other} and {config.data} do not hold the same examples"
        )
    seeds = [s for s in base.seeds if s in other.seeds]
    if len(seeds) < 2:
        raise InputError(f"{len(seeds)} seeds are in both run folders, at least 2 are needed")
    texts = [examples[name] for name in base.ids]
    grounding = Grounding.read(config.counts, load_tokenizer(config.tokenizer), config.threshold)
    folder = open_run(out, "grounded", asdict(config), {"counts": config.counts})
    ours, theirs = base.right(seeds), other.right(seeds)
    ratios = np.array([grounding.ratio(e.text, e.pair, config.variant) for e in texts])
    lengths = [len(e.text) + len(e.pair or "") for e in texts]
    result = {
        "task": task.name,
        "seeds": seeds,
        **analyse(ratios, ours, theirs, lengths, base.labels),
    }
    groups = [
        {name: ratios[at] for name, at in parts._asdict().items()}
        for parts in (split(ours, theirs), null_split(ours))
    ]
    picture = figure(groups[0], groups[1], folder / "grounded.png")
    title = f"Visually grounded ratio of {task.name}"
    rows = [
        {"": f"{which}: {name}", **{k: "-" if v is None else f"{v:.3g}" for k, v in group.items()}}
        for which in ("models", "null")
        for name, group in result[which]["groups"].items()
    ]
    write_report(
        folder / "grounded.html",
        title,
        [("Groups of examples", rows)],
        figures=[("Figure 4", picture)],
    )
    with disk_errors(folder):
        (folder / "examples.md").write_text(
            listing(grounding, texts, ours, theirs, variant=config.variant), encoding="utf-8"
        )
    write_json(folder / "result.json", result)
    return result


def attention(config: AttentionConfig, out: str | Path) -> dict[str, Any]:
    """Diversity of two cross-modal models' attention maps (XDBERT Table 9), and their heat maps, in `out`."""
    if not config.a or not config.b:
        raise InputError(
            "attention needs --a and --b, each a folder `joint` of `adapt --save-joint`"
        )
    folder = open_run(out, "attention", asdict(config), {})
    a, b = load_crossmodal(config.a), load_crossmodal(config.b)
    room = a.inputs(config.max_length)[0].max_length
    texts = corpus(config.text, "lines", a.text.tokenizer, room, config.max_texts)
    result = attention_report(
        a, b, texts, folder, (config.a, config.b), max_length=config.max_length
    )
    write_json(folder / "result.json", result)
    return result
