"""The words that a student and its teachers read, and the word counts at which students are saved (BabyLM)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from groundling.commands.adapt import MILLION, MOST_EPOCHS, AdaptConfig, parse_words
from groundling.core.errors import InputError
from groundling.core.registry import is_import_path
from groundling.data.captions import IS_PAIR
from groundling.data.corpora import CorpusDataset, corpus_of, iterate_texts
from groundling.data.samples import SampleDataset, SampleWrapper
from groundling.models.hub import TIMM, VECTORS, is_open_clip, is_timm
from groundling.models.loading import model_type
from groundling.objectives import Objective
from groundling.runs.folder import SETTINGS, read_object
from groundling.settings.fields import InputKind, settings_of
from groundling.settings.input_settings import parse_weighted_files
from groundling.settings.training import TrainingArguments
from groundling.training.batch_sampler import DataSource, plan_batches

IMAGES_ALONE = (
    *("dinov2", "dinov2_with_registers", "dinov3_vit", "dinov3_convnext"),
    *("ijepa", "vit_mae", "vit_msn"),
)
"""transformers' types of models that learn from images without texts and labels."""
TIMM_IMAGES_ALONE = re.compile(r"^(?!.*_ft_).*(dino|ijepa|\.mae)")
"""Such models by timm's names; others may come from a CLIP, which their names do not always say."""
OTHER_MODELS = ("voken_matcher", "keyword_extractor")
"""Settings that name an ancillary model, beside those of the kind MODEL."""

Ledger = dict[str, Any]
"""`budget`, `texts` (words by file), `teachers` (words by name), `total`; of the plan `read`, `times` and `saved`."""


def open_ledger(config: AdaptConfig, texts: CorpusDataset) -> Ledger:
    """The words of the texts and of every teacher; raises InputError if they are more than the budget.

    Also for a teacher that may have read an unknown number of words.
    """
    budget, teachers = parse_words(config.word_budget), teacher_words(config)
    files = [each.file for each in parse_weighted_files(config.text, "text")]
    counts = count_words(texts, files, config)
    spans = zip(texts.bounds[:-1], texts.bounds[1:], strict=True)
    own = {
        file: int(counts[start:stop].sum())
        for file, (start, stop) in zip(files, spans, strict=True)
    }
    total = sum(own.values()) + sum(teachers.values())
    if total > budget:
        raise InputError(
            f"word_budget={config.word_budget}: texts and teachers have {total:,} words ({_listed(own | teachers)})"
        )
    return {"budget": budget, "texts": own, "teachers": teachers, "total": total, "counts": counts}


def teacher_words(config: AdaptConfig) -> dict[str, int]:
    """Words that each ancillary model has read: 0 for one of images alone, `teacher_words` for all others together."""
    named = {
        str(one.value): one.name
        for one in settings_of(config)
        if one.value and (one.input is InputKind.MODEL or one.name in OTHER_MODELS)
        if one.name != "student"
    }
    unknown = [source for source in named if not reads_images_alone(source)]
    if unknown and config.teacher_words < 0:
        raise InputError(
            f"{named[unknown[0]]}={unknown[0]}: the words that it has read count towards word_budget and are unknown; "
            "set teacher_words to those of all such models, 0 for image encoders that have read none"
        )
    if config.teacher_words > 0 and not unknown:
        raise InputError(f"teacher_words={config.teacher_words}: no model here has read texts")
    words = dict.fromkeys([source for source in named if source not in unknown], 0)
    return words | ({" and ".join(unknown): config.teacher_words} if unknown else {})


def reads_images_alone(source: str) -> bool:
    """Whether a teacher is known to have learned from images without texts and labels, from its kind alone."""
    if source.startswith(VECTORS):
        written = Path(source.removeprefix(VECTORS)) / SETTINGS
        teacher = read_object(written)["config"].get("teacher", "") if written.exists() else ""
        return bool(teacher) and reads_images_alone(teacher)
    if source.startswith(TIMM):
        return bool(TIMM_IMAGES_ALONE.search(source))
    if is_open_clip(source) or is_timm(source) or is_import_path(source):
        return False
    return model_type(source) in IMAGES_ALONE


def count_words(texts: CorpusDataset, files: Sequence[str], config: AdaptConfig) -> np.ndarray:
    """Words between spaces (len(texts),) of each text, which in each file add up to the file's own number.

    A cut may divide a word, and the token between a block's lines is none: texts share the words of their file.
    """
    between = texts.text.end_of_text
    counts = np.array(
        [
            len(text.split()) - (text.count(between) if between else 0)
            for text in texts.strings("text", range(len(texts)))
        ],
        np.int64,
    )
    for file, start, stop in zip(files, texts.bounds[:-1], texts.bounds[1:], strict=True):
        whole = sum(len(line.text.split()) for line in iterate_texts(file, config.caption_settings))
        ends = np.cumsum(counts[start:stop])
        counts[start:stop] = np.diff(ends * whole // max(1, int(ends[-1])), prepend=0)
    return counts


def plan_saves(
    ledger: Ledger,
    sources: Sequence[DataSource],
    objectives: Sequence[Objective],
    training: TrainingArguments,
    processes: int,
) -> dict[int, list[str]]:
    """Names of the students to save after each step, by the words read until then; completes the ledger.

    The words of every step follow from the seed, so a run that was killed saves the same. Raises InputError for a
    source of which more than `MOST_EPOCHS` times its words would be read.
    """
    pairing = [one.name for one in objectives if f"labels.{IS_PAIR}" in one.required_fields]
    if pairing:
        raise InputError(f"word_budget: {pairing[0]} draws a second text, which is not counted")
    counts = [_counts_of(source.samples, ledger["counts"]) for source in sources]
    read = np.zeros(len(sources), np.int64)
    plan = plan_batches(sources, objectives, training, processes)
    places = training.gradient_accumulation_steps * processes if training.batch_tokens else 1
    saves: dict[int, list[str]] = {}
    saved: dict[str, dict[str, int]] = {}
    due = milestones()
    following = next(due)
    for step in range(len(plan)):
        for place in range(places):
            number, _, indices = plan.micro_batch(step, place, places)
            read[number] += counts[number][indices].sum()
        while read.sum() >= following:
            name = f"chck_{following // MILLION}M"
            saves.setdefault(step + 1, []).append(name)
            saved[name] = {"step": step + 1, "words": int(read.sum())}
            following = next(due)
    times = {}
    for source, own, words in zip(sources, counts, read.tolist(), strict=True):
        times[source.name] = round(words / max(1, int(own.sum())), 4)
        if words > MOST_EPOCHS * own.sum():
            raise InputError(
                f"{source.name}: {words:,} words would be read of {own.sum():,}, more than {MOST_EPOCHS} times; lower "
                "epochs (with several sources, chance decides how often each is read)"
            )
    del ledger["counts"]
    ledger |= {"read": int(read.sum()), "times": times, "saved": saved}
    return saves


def milestones() -> Iterator[int]:
    """Every million words up to 10, every 10 up to 100, every 100 up to 1,000, and so on."""
    count = 0
    while True:
        count += MILLION * 10 ** (len(str(max(1, count // MILLION))) - 1)
        yield count


def _counts_of(samples: SampleDataset, counts: np.ndarray) -> np.ndarray:
    while isinstance(samples, SampleWrapper):
        samples = samples.samples
    found = corpus_of(samples)
    assert found is not None  # every source of an adaptation is stored texts
    return counts[found[1].start : found[1].stop]


def describe(ledger: Ledger, student: str) -> str:
    """The ledger in one line."""
    saved = ledger["saved"]
    times = ", ".join(f"{name} {count:.2f} times" for name, count in ledger["times"].items())
    return (
        f"{ledger['total']:,} of {ledger['budget']:,} words: {_listed(ledger['texts'])}; teachers: "
        f"{_listed(ledger['teachers']) or 'none'}; {ledger['read']:,} are read in training ({times}), with "
        f"{len(saved)} intermediate students saved{f', the last as {list(saved)[-1]}' if saved else ''}. The words "
        f"that the tokenizer of {student} was trained on count too, and are not known here"
    )


def _listed(words: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in words.items())
