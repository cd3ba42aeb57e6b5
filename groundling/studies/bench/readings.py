"""Readings of an encoder: linear probes of its nouns' states, held-out masked LM, and fine-tuned questions."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import torch
from PIL import Image
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer

from groundling.command_line import COMMANDS
from groundling.core.batch import require
from groundling.core.registry import resolve_builtin
from groundling.core.rng import generator
from groundling.data.images import open_image
from groundling.data.tables import lines_of
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import read_json, write_whole
from groundling.settings.fields import replace_settings
from groundling.settings.training import TrainingArguments
from groundling.stats.linear_probes import (
    TEXTUAL,
    AttributeRows,
    fit_probes,
    noun_states,
    read_nouns,
    score_readout,
)
from groundling.studies.bench.engine import parameters_of
from groundling.studies.bench.protocol import MAX_LENGTH, Files
from groundling.tasks import Task

LINE_MASK_RATE = 0.15
"""Share of masked tokens in the held-out masked-LM loss."""
VISUAL = "visual"
"""The mean of the linear readings of the visual attributes."""
CHOICE = "choice"
"""Accuracy over dev nouns and cross-validated train nouns, by which weights are chosen."""
READOUT = "readout odd"
"""Odd-one-out questions, answered from the linear probes of the visual attributes."""
MASKED_LM = "masked LM"
"""Mean loss in nats of masked tokens of held-out text."""
FOLDS = 5
"""Folds of the train nouns' cross-validation."""
LINES = 64
"""Lines, or images, per forward pass."""

PAIRS = "minimal pairs"
"""Share of test sentences that the masked LM prefers: to themselves with two words swapped, and to the same noun with
a verb and an ending of another category; the mean of both."""
PAIRS_FILE = "pairs.tsv"
"""File of a world's minimal pairs."""

Reading = dict[str, Any]
"""Accuracies `train`, `dev` and `test`, and the majority class's `chance`; losses have `test` alone."""


def linear_readings(states: np.ndarray, rows: AttributeRows, world: Path) -> dict[str, Reading]:
    """Readings by name: each attribute, the mean of the visual ones, and the readout of odd-one-out questions.

    `states` (nouns, D) belong to `rows`. On train nouns, accuracy is cross-validated.
    """
    readings: dict[str, Reading] = {}
    probes = fit_probes(states, rows)
    for name, probe in probes.items():
        readings[name] = {"train": probe.cross_validate(FOLDS), **probe.score()}
    visual = [name for name, probe in probes.items() if probe.column != TEXTUAL]
    readings[VISUAL] = {
        part: mean(readings[name][part] for name in visual)
        for part in ("train", "dev", "test", "chance")
    }
    counts = {part: sum(row["split"] == part for row in rows) for part in ("train", "dev")}
    right = sum(readings[VISUAL][part] * count for part, count in counts.items())
    readings[VISUAL][CHOICE] = right / sum(counts.values())
    odd = resolve_builtin("tasks", Task, "world/odd")
    names = [row["noun"] for row in rows]
    visual_probes = [probes[name] for name in visual]
    answers = {
        split: score_readout(visual_probes, names, odd.read(world, split))
        for split in ("dev", "test")
    }
    readings[READOUT] = {**answers, "chance": 0.5}
    return readings


def read_encoder(model: Path, out: Path, world: Path) -> dict[str, Reading]:
    """Linear readings of an encoder's states; its held-out masked-LM loss and minimal pairs, None without a head.

    `out`: folder of the run that scores the pairs.
    """
    rows = read_nouns(world)
    encoder = load_text_encoder(str(model))
    readings = linear_readings(noun_states(encoder, rows, MAX_LENGTH), rows, world)
    loss = masked_lm_loss(model, world / "corpus" / "dev.txt")
    readings[MASKED_LM] = {"test": loss}
    right = None if loss is None else minimal_pair_accuracy(model, world / PAIRS_FILE, out)
    readings[PAIRS] = {"test": right, "chance": 0.5}
    return readings


def write_grammar_pairs(world: Path) -> None:
    """Write a world's minimal pairs, from the test sentences of the questions "order" and "category".

    Order: a sentence, and itself with two words swapped. Category: a noun with a verb and an ending of its own
    category, and with those of another one; in the strict sense these are no minimal pairs, as several words differ.
    """
    nouns = {row["noun"] for row in read_nouns(world)}
    lines = ["good\tbad\tgroup"]
    for name in ("order", "category"):
        task = resolve_builtin("tasks", Task, f"world/{name}")
        good: dict[tuple[str, ...], list[str]] = {}
        bad: dict[tuple[str, ...], list[str]] = {}
        for example in task.read(world, "test"):
            words = example.text.split()
            shared = words if name == "order" else nouns.intersection(words)
            (good if example.label else bad).setdefault(tuple(sorted(shared)), []).append(
                example.text
            )
        for words_of_pair in sorted(good):
            texts = good[words_of_pair], bad.get(words_of_pair, [])
            # Several orders of the same words would not say which belong together.
            if name == "category" or len(texts[0]) == len(texts[1]) == 1:
                lines += [f"{one}\t{other}\t{name}" for one, other in zip(*texts, strict=False)]
    write_whole(world / PAIRS_FILE, "\n".join(lines) + "\n")


def minimal_pair_accuracy(model: Path, pairs: Path, out: Path) -> float:
    """Share of pairs of which the masked LM prefers the good one, by pseudo-log-likelihood; mean of both groups."""
    command = COMMANDS["pairs"]
    settings = replace_settings(
        command.settings["_own"], model=str(model), data=str(pairs), max_length=MAX_LENGTH, cpu=True
    )
    with redirect_stdout(io.StringIO()):
        result = command(settings, out)
    return float(result["scores"]["overall"]["mean of paradigms"]["accuracy"])


def read_text_tower(files: Files) -> dict[str, Reading]:
    """Linear readings of the teacher's own text embeddings of each noun's sentence."""
    rows = read_nouns(files.private)
    clip = load_frozen_clip(files.places["teacher"])
    tokens = [row for row, _ in clip.tokenize([row["sentence"] for row in rows])]
    return linear_readings(clip.embed_texts(tokens).cpu().numpy(), rows, files.private)


def nouns_of_images(world: Path) -> dict[int, list[str]]:
    """The nouns that each of a world's training images shows, by image id; images without a noun are left out."""
    shown: dict[int, list[str]] = {}
    for note in read_json(world / "instances_train.json")["annotations"]:
        if note["noun"]:
            shown.setdefault(note["image_id"], []).append(note["noun"])
    return shown


@torch.no_grad()
def read_image_tower(files: Files) -> dict[str, Reading]:
    """Linear readings of the teacher's embeddings of images: the mean over the images that show a noun.

    The images are those handed over, on which the teacher was trained. A noun that none of them shows gets the mean
    of the other nouns.
    """
    rows = read_nouns(files.private)
    tower = require(load_frozen_clip(files.places["teacher"]).image, "image", "a teacher's images")
    shown = nouns_of_images(files.private)
    images = [one for one in read_json(files.places["captions"])["images"] if one["id"] in shown]
    by_noun: dict[str, list[np.ndarray]] = {}
    for start in range(0, len(images), LINES):
        some = images[start : start + LINES]
        paths = [files.places["images"] / one["file_name"] for one in some]
        pixels = torch.from_numpy(np.stack([tower.preprocess(_read_image(path)) for path in paths]))
        embedded = torch.nn.functional.normalize(tower.projection(tower(pixels)), dim=-1)
        for one, state in zip(some, embedded.numpy(), strict=True):
            for noun in shown[one["id"]]:
                by_noun.setdefault(noun, []).append(state)
    means: dict[str, np.ndarray] = {
        noun: np.stack(states).mean(axis=0) for noun, states in by_noun.items()
    }
    unseen: np.ndarray = np.stack(list(means.values())).mean(axis=0)
    states = [means.get(row["noun"], unseen) for row in rows]
    return linear_readings(np.stack(states), rows, files.private)


def _read_image(path: Path) -> Image.Image:
    with open_image(path) as image:
        return image.convert("RGB")


@torch.no_grad()
def masked_lm_loss(model: Path, text: Path) -> float | None:
    """Mean loss of masked tokens, with the same masks for every model; None for a model without a head."""
    filler, loading = AutoModelForMaskedLM.from_pretrained(model, output_loading_info=True)
    if any("predictions" in name or "lm_head" in name for name in loading["missing_keys"]):
        return None
    tokenizer = AutoTokenizer.from_pretrained(model)
    filler.eval()
    lines = list(lines_of(text))
    total, count = 0.0, 0
    for start in range(0, len(lines), LINES):
        some = lines[start : start + LINES]
        inputs = tokenizer(
            some,
            padding=True,
            truncation=True,
            max_length=MAX_LENGTH,
            return_tensors="pt",
            return_special_tokens_mask=True,
        )
        ordinary = (inputs.pop("special_tokens_mask") == 0) & (inputs["attention_mask"] == 1)
        masked = torch.stack([_mask(ordinary[row], start + row) for row in range(len(some))])
        labels = inputs["input_ids"].masked_fill(~masked, -100)
        inputs["input_ids"] = inputs["input_ids"].masked_fill(masked, tokenizer.mask_token_id)
        logits = filler(**inputs).logits
        total += float(
            torch.nn.functional.cross_entropy(
                logits.flatten(0, 1), labels.flatten(), reduction="sum"
            )
        )
        count += int(masked.sum())
    return total / count if count else None


def _mask(ordinary: torch.Tensor, line: int) -> torch.Tensor:
    """(T,) bool: the masked tokens of a line, at least one of the `ordinary` ones, drawn by the line's number."""
    places = ordinary.nonzero().flatten().numpy()
    if not len(places):
        return torch.zeros_like(ordinary)
    drawn = generator("bench", "masked LM", line).permutation(places)
    masked = torch.zeros_like(ordinary)
    masked[torch.from_numpy(drawn[: max(1, round(LINE_MASK_RATE * len(places)))])] = True
    return masked


def run_probe(
    model: Path,
    out: Path,
    world: Path,
    questions: Sequence[str],
    seeds: int,
    training: TrainingArguments,
) -> dict[str, Reading]:
    """Results of `probe` by name: linear probes, and fine-tuned questions."""
    command = COMMANDS["probe"]
    settings = replace_settings(
        command.settings["_own"],
        model=str(model),
        data=str(world),
        seeds=seeds,
        questions=tuple(questions),
        max_length=MAX_LENGTH,
    )
    found: dict[str, Reading] = command(settings, training, out)
    return found


def fine_tuned(
    model: Path, out: Path, world: Path, how: Mapping[str, tuple[int, TrainingArguments]]
) -> dict[str, Reading]:
    """Accuracies of fine-tuned questions by name; `test` is the mean over the seeds that trained, None if none did.

    `how`: by question, the number of seeds and the settings of training.
    """
    readings: dict[str, Reading] = {}
    for question, (seeds, training) in how.items():
        found = run_probe(model, out / question, world, (question,), seeds, training)
        own = found[f"world/{question}"]
        kept = {name: own[name] for name in ("dev", "test", "test_sd", "chance")}
        readings[question] = kept | {"scores": own["scores"]["test"], "trained": own["learned"]}
    return readings


# -- is what a method exports the handed-over encoder with other weights? ----------------------------------------------

NOT_COMPARED = {"auto_map", "architectures", "dtype", "transformers_version", "_name_or_path"}
"""Settings of a model's configuration that do not change its states, or are compared apart."""


def plain_faults(model: Path, encoder: Path) -> list[str]:
    """Why an exported model is no plain encoder like the handed-over one; empty if it is."""
    faults: list[str] = []
    own, handed = (AutoTokenizer.from_pretrained(one) for one in (model, encoder))
    if own.get_vocab() != handed.get_vocab():
        faults.append("another vocabulary")
    elif own.backend_tokenizer.to_str() != handed.backend_tokenizer.to_str():
        faults.append("another tokenizer")
    changed, config = (AutoConfig.from_pretrained(one).to_dict() for one in (model, encoder))
    if changed.get("auto_map"):
        faults.append("code of its own")
    names = sorted(
        name for name in {*changed, *config} - NOT_COMPARED if changed.get(name) != config.get(name)
    )
    if names:
        faults.append(f"another configuration ({', '.join(names)})")
    more = parameters_of(model) - parameters_of(encoder)
    if more > 0:
        faults.append(f"{more:,} more parameters")
    return faults
