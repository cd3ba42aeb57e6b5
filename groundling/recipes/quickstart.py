"""The whole path on a rendered world, from nothing: world, teachers, text encoder, arms, probes, report."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from groundling.config import (
    PROBING,
    AdaptConfig,
    ProbeConfig,
    QuickstartConfig,
    TeachConfig,
    TrainConfig,
)
from groundling.data.tables import lines_of
from groundling.jobs import Job, run_jobs
from groundling.keyed import seed_of
from groundling.recipes.adapt import adapt
from groundling.recipes.probe import probe
from groundling.recipes.teach import teach
from groundling.report import Picture, Section, bars, table, write_report
from groundling.runs import open_run, read_json, write_json
from groundling.world import World, WorldConfig

# Chosen on the dev nouns of world 100; see docs/results.md for what was tried.
TEACHER = TeachConfig(
    size=32,
    patch=16,
    vision=(192, 2),
    text=(64, 2),
    projection=64,
    vocabulary=1000,
    window=20,
    flip=False,
    shift=0.03,
)
TEACHING = TrainConfig(
    steps=900,
    batch=128,
    lr=1e-3,
    schedule="cosine",
    weight_decay=0.1,
    log_every=50,
    save_every=300,
    cpu=True,
)
BLIND_TEACHING = replace(TEACHING, steps=250)  # it has no looks to learn, only how scenes are told
PRETRAINING = TrainConfig(
    steps=1500,
    batch=64,
    lr=2e-3,
    warmup=0.1,
    weight_decay=0.01,
    log_every=50,
    save_every=500,
    cpu=True,
)
ADAPTING = TrainConfig(
    steps=500, batch=64, lr=2e-3, warmup=0.05, log_every=50, save_every=500, cpu=True
)
ADAPTER = AdaptConfig(max_length=32)
PROBES = replace(PROBING, steps=250, log_every=50, cpu=True)

ARMS = {
    "MLM only (control)": ("mlm", "", 0.0),
    "XDBERT as published": ("xdbert", "teacher", 0.0),
    "L1": ("l1", "teacher", 0.3),
    "contrastive": ("contrastive", "teacher", 1.0),
    "contrastive, blind teacher": ("contrastive", "teacher-blind", 1.0),
}
"""Each arm's objectives, teacher, and weight of what it distils.

The blind teacher saw the same scenes with every noun's looks redrawn.
"""

VISUAL = {"world/truth": "attribute true/false", "world/odd": "odd one out"}
LINEAR = {
    "linear/colour": "colour",
    "linear/shape": "shape",
    "linear/size": "size",
    "linear/texture": "texture",
}
TEXTUAL = {"world/category": "category", "world/order": "word order"}
"""Probes by name and as the table calls them; category and word order are known from text alone."""


def render(world: World, folder: Path, part: str) -> None:
    """Write one part of a world, "text", "images" or "blind images", unless an earlier run has finished it."""
    last = {
        "text": "world.json",
        "images": "captions_dev.json",
        "blind images": "captions_blind_dev.json",
    }[part]
    if (folder / last).exists():
        return
    if part == "text":
        world.write_text(folder)
    else:
        world.write_images(folder, blind=part == "blind images")


def new_encoder(text: Path, folder: Path, seed: int, layers: int = 2, positions: int = 32) -> None:
    """Write an untrained small BERT whose vocabulary is every word (and letter) of a text file, as an HF folder."""
    if (folder / "tokenizer_config.json").exists():
        return
    # By hand: the word-piece trainer numbers pieces differently in every process.
    words = sorted({word for line in lines_of(text) for word in line.lower().split()})
    letters = sorted({letter for word in words for letter in word})
    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        *letters,
        *("##" + letter for letter in letters),
        *words,
    ]
    vocabulary = {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}
    tokenizer = BertTokenizer(vocab=vocabulary, do_lower_case=True, model_max_length=positions)
    torch.manual_seed(seed_of(seed, "new encoder"))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=positions,
        # BERT's own values are for models six times as wide, trained a thousand times as long; feed-forward
        # layers of its four times the width took longer here and did no better on dev nouns.
        initializer_range=0.04,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def quickstart(
    config: QuickstartConfig, out: str | Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run everything, or what is missing of it, into `out`, print the table, write `report.html`."""
    began = time.perf_counter()
    folder = open_run(out, "quickstart", {"seed": config.seed, "scale": config.scale}, {})
    results = run_jobs(_jobs(config, folder), config.processes, say)
    arms = {name: results[f"{name}: probes"] for name in ARMS}
    result = {
        "arms": arms,
        "retrieval": results["teacher"]["retrieval"],
        "seconds": round(time.perf_counter() - began, 1),
        "seed": config.seed,
    }
    write_json(folder / "result.json", result)
    rows = table_rows(arms)
    say(
        "\n"
        + table(rows)
        + "\n\n"
        + verdict(arms)
        + f"\n\n{folder / 'report.html'} ({result['seconds']:.0f} s in all)"
    )
    _report(folder, rows, result)
    return result


def _jobs(config: QuickstartConfig, out: Path) -> list[Job]:
    def scaled(training: TrainConfig) -> TrainConfig:
        return replace(
            training, seed=config.seed, steps=max(2, round(training.steps * config.scale))
        )

    folder = out / "world"
    world = World(WorldConfig(seed=config.seed))
    corpus = folder / "corpus" / "train.txt"
    text = (str(corpus),)
    pretrain = AdaptConfig(
        student=str(out / "new"), arm="mlm", text=text, max_length=32, mask_rate=0.25
    )

    def teacher(name: str, suffix: str, training: TrainConfig, after: str) -> Job:
        settings = replace(
            TEACHER,
            captions=str(folder / f"captions{suffix}_train.json"),
            images=str(folder / f"images{suffix}"),
            eval_captions=str(folder / f"captions{suffix}_dev.json"),
        )
        return Job(name, teach, (settings, scaled(training), out / name), (after,))

    jobs = [
        Job("images", render, (world, folder, "images")),
        Job("text", render, (world, folder, "text")),
        Job("new encoder", new_encoder, (corpus, out / "new", config.seed), ("text",)),
        teacher("teacher", "", TEACHING, "images"),
        Job(
            "text encoder",
            adapt,
            (pretrain, scaled(PRETRAINING), out / "encoder"),
            ("new encoder",),
        ),
        Job("blind images", render, (world, folder, "blind images")),
        teacher("teacher-blind", "_blind", BLIND_TEACHING, "blind images"),
    ]
    probes = []
    for name, (arm, source, weight) in ARMS.items():
        own = out / "arms" / name.replace(", ", "-").replace(" ", "-")
        settings = replace(
            ADAPTER,
            arm=arm,
            text=text,
            student=str(out / "encoder" / "model"),
            distill_weight=weight,
        )
        if source:
            settings = replace(settings, teacher=str(out / source / "model"))
        after = ("text encoder", source) if source else ("text encoder",)
        jobs.append(Job(name, adapt, (settings, scaled(ADAPTING), own / "adapt"), after))
        ask = ProbeConfig(model=str(own / "adapt" / "model"), data=str(folder))
        probes.append(Job(f"{name}: probes", probe, (ask, scaled(PROBES), own / "probes"), (name,)))
    return [*jobs, *probes]  # short jobs last: no process idles long at the end


def table_rows(arms: dict[str, Any], split: str = "test") -> list[dict[str, str]]:
    """One row per arm and one for guessing; accuracies on nouns of `split`, which no probe was fitted on."""
    columns = VISUAL | LINEAR | TEXTUAL
    rows = [
        {"arm": name} | {label: f"{found[probe][split]:.2f}" for probe, label in columns.items()}
        for name, found in arms.items()
    ]
    any_arm = next(iter(arms.values()))
    return [
        *rows,
        {"arm": "guessing"}
        | {label: f"{any_arm[p]['chance']:.2f}" for p, label in columns.items()},
    ]


def verdict(arms: dict[str, Any], split: str = "test") -> str:
    """What the table shows, in plain words, against the control that saw the same text without a teacher."""
    control, *others = arms
    parts = []
    for name in others:
        gains = {
            label: arms[name][p][split] - arms[control][p][split]
            for p, label in (VISUAL | TEXTUAL).items()
        }
        changes = ", ".join(f"{label} {gain:+.2f}" for label, gain in gains.items())
        seen = [arms[name][p][split] >= 0.6 for p in VISUAL]
        worth = "sees" if all(seen) else "sees in part" if any(seen) else "does not see"
        parts.append(f"{name}: {worth} ({changes})")
    return f"Against {control}, on nouns never described to it. " + "; ".join(parts) + "."


def _report(out: Path, rows: list[dict[str, str]], result: dict[str, Any]) -> None:
    arms = result["arms"]
    captions = read_json(out / "world" / "captions_train.json")
    told: dict[int, list[str]] = {}
    for annotation in captions["annotations"]:
        told.setdefault(annotation["image_id"], []).append(annotation["caption"])
    scenes = [
        Picture(
            (out / "world" / "images" / image["file_name"]).read_bytes(),
            " / ".join(told[image["id"]]),
        )
        for image in captions["images"][:8]
    ]
    probes = VISUAL | TEXTUAL
    chances = [next(iter(arms.values()))[p]["chance"] for p in probes]
    series = {name: [found[p]["test"] for p in probes] for name, found in arms.items()}
    linear = {name: [found[p]["test"] for p in LINEAR] for name, found in arms.items()}
    label = "accuracy, unseen nouns"
    linear_chances = [next(iter(arms.values()))[p]["chance"] for p in LINEAR]
    sections = [
        Section("What the teacher sees", pictures=scenes),
        Section(
            "Questions answered after fine-tuning",
            figure=bars(list(probes.values()), series, chances, out / "report.png", label),
        ),
        Section(
            "Attributes read from the noun's own state by a linear probe",
            figure=bars(list(LINEAR.values()), linear, linear_chances, label=label),
        ),
        Section("Accuracy on nouns no probe was fitted on", rows=rows),
    ]
    recall = ", ".join(f"{k} {v}" for k, v in result["retrieval"].items())
    write_report(
        out / "report.html",
        "Does a text encoder learn to see?",
        sections,
        [
            "Every noun has a look that only images show, and a category that only text shows. A CLIP teacher sees "
            "the images; the text encoder reads text that never tells a noun's look. Each arm adapts it for the same "
            "number of steps on the same text.",
            verdict(arms),
        ],
        notes=[
            f"World and weights of seed {result['seed']}; {result['seconds']:.0f} seconds in all. "
            f"Teacher on held-out scenes: {recall}. The blind teacher saw scenes in which each noun's look was "
            "redrawn every time: whatever its student gains does not come from images.",
        ],
    )
