"""How much a model attends to text and image, and how much its answers depend on each (CLIP-TD,
Section 5.1 and Figures 2 to 4), as a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from groundling.core.batch import Example, Sample
from groundling.core.errors import InputError
from groundling.data.samples import subsample
from groundling.models.frozen_clip import load_frozen_clip
from groundling.runs.report import TableRow, format_count, format_table
from groundling.runs.run import Run
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.studies.attention.answers import ablate_inputs, outcome_of
from groundling.studies.attention.commands import ModalityConfig
from groundling.studies.attention.grounding import COUNTED
from groundling.studies.attention.importance import (
    ATTENTION_TARGETS,
    NUMBERS,
    Bootstrap,
    ClsAttention,
    ImportanceEstimate,
    ModalityImportance,
    compare_importance,
)
from groundling.studies.attention.inspected_models import (
    AttentionConsumer,
    FineTunedRegionModel,
    RegionModel,
    consume_attention,
    is_fine_tuned,
    read_analysis_examples,
)
from groundling.studies.attention.selected_words import (
    TeacherWordScores,
    attention_to_words,
    selected_words_summary,
    teacher_word_scores,
)
from groundling.teachers.clip import ClipTeacher

JsonObject = dict[str, Any]


def modality(config: ModalityConfig, run: Run) -> dict[str, Any]:
    """Modality importance by layer and head, and input ablation, for one model or two.

    Raises:
        InputError: A model reads no regions or gives no attention, a file is missing or malformed,
            examples have no labels where answers are scored, or settings do not fit the model.
    """
    device = run.state.device
    models = [config]
    if config.other:
        models.append(replace(config, model=config.other, untrained=False))
    subjects = [
        FineTunedRegionModel(one, device, config.trust)
        if is_fine_tuned(one.model)
        else RegionModel(one, device)
        for one in models
    ]
    examples = _read_examples(config, subjects, run)
    # The unit of resampling of an example: its image, or its images together.
    bootstrap = Bootstrap([" ".join(example.images) for example in examples], config.seed)
    analyses = [
        _ModelAnalysis(one, subject, examples, bootstrap, device)
        for one, subject in zip(models, subjects, strict=True)
    ]
    notes = [note for analysis in analyses for note in analysis.notes]
    difference = None
    if config.other:
        first, second = (analysis.importance for analysis in analyses)
        difference = compare_importance(first, second)
        if not np.allclose(first.uniform[0], second.uniform[0]):
            notes.append(
                "the two models have different numbers of positions for the same examples, so their shares are not "
                "comparable; compare their ratios to even attention"
            )
    run.note(*dict.fromkeys(notes))
    return {
        "query": config.query,
        "examples": len(examples),
        "images": len(set(bootstrap.images)),
        "models": [analysis.to_json() for analysis in analyses],
        "difference": difference,
        "selected_words": _selected_words(config, analyses) if config.teacher else None,
        "notes": run.notes,
    }


def _read_examples(
    config: ModalityConfig, subjects: Sequence[RegionModel], run: Run
) -> list[Example]:
    every, notes = read_analysis_examples(subjects[0], config)
    run.note(*dict.fromkeys([*notes, *(note for subject in subjects for note in subject.notes)]))
    examples = subsample(every, config.limit)
    if len(examples) < len(every):
        run.note(f"used {len(examples):,} of {len(every):,} examples, evenly spaced")
    has_labels = all(one.label is not None or one.gold_boxes for one in examples)
    if config.perturbed_inputs and not has_labels and any(subject.form for subject in subjects):
        raise InputError(
            f"{config.data}: the examples have no labels; pass perturbed_inputs=False, or labelled data"
        )
    return examples


class _ModelAnalysis:
    """The analysis of one model."""

    def __init__(
        self,
        config: ModalityConfig,
        subject: RegionModel,
        examples: Sequence[Example],
        bootstrap: Bootstrap,
        device: torch.device,
    ) -> None:
        """Raises InputError if no layer covers regions."""
        self.config = config
        self.subject = subject
        self.examples = examples
        self.bootstrap = bootstrap
        self.device = device
        self.notes: list[str] = []
        """Notes for the reader of the result."""
        importance = ModalityImportance(config.query)
        self._read(examples, importance)
        if not importance.layers:
            raise InputError("no layer of this model attends to both text and regions")
        if importance.truncated_tokens:
            tokens = format_count(importance.truncated_tokens, "token")
            self.notes.append(f"truncated {tokens} of texts that are too long (max_length)")
        self.importance = ImportanceEstimate(importance, bootstrap)
        self.inputs: JsonObject | None = None
        """Its answers with ablated inputs."""
        if config.perturbed_inputs:
            outcome = outcome_of(subject, config, device)
            self.inputs = ablate_inputs(subject, outcome, examples, config, bootstrap)

    def _read(self, examples: Sequence[Example], consumer: AttentionConsumer) -> None:
        samples = self.subject.samples(examples)
        consume_attention(self.subject.model, samples, consumer, self.config.batch)

    def attention_to(self, texts: Sequence[TeacherWordScores]) -> list[np.ndarray]:
        """[CLS]'s attention to the words of each example."""
        attention = ClsAttention()
        self._read(self.examples, attention)
        return attention_to_words(attention, self.rows(), texts)

    def rows(self) -> list[Sample]:
        """The examples as the model reads them."""
        samples = self.subject.samples(self.examples)
        return list(samples.get(range(len(samples)), ()))

    def to_json(self) -> JsonObject:
        """The model's entry in `result.json`."""
        return {
            "model": self.config.model,
            "untrained": self.config.untrained,
            "kind": self.subject.model.architecture_name,
            **self.importance.to_json(),
            "inputs": self.inputs,
        }


def _selected_words(config: ModalityConfig, analyses: Sequence[_ModelAnalysis]) -> JsonObject:
    """Whether models attend to the words that CLIP-TD's teacher selects."""
    options = TargetedDistillationSettings(
        teacher_images=config.teacher_images, num_words=config.num_words, relevance=config.relevance
    )
    one = analyses[0]
    teacher = ClipTeacher(load_frozen_clip(config.teacher), {"clip_words"}, options)
    teacher.to(one.device).fit(one.subject.samples(one.examples))
    texts = teacher_word_scores(teacher, one.rows(), config.batch)
    attentions = [analysis.attention_to(texts) for analysis in analyses]
    summary = selected_words_summary(texts, attentions, config.num_words, one.bootstrap)
    header = {"teacher": config.teacher, "words": config.num_words, "relevance": config.relevance}
    return {**header, **summary}


# -- tables ------------------------------------------------------------------------------------------------------------


def format_modality(result: JsonObject) -> str:
    """All tables as text."""
    parts = [f"{result['examples']:,} examples of {result['images']:,} images; {COUNTED}"]
    for model in result["models"]:
        parts += _of_model(model, result["query"])
    if result["difference"]:
        parts.append(_of_difference(result))
    if result["selected_words"]:
        names = [_name(model) for model in result["models"]]
        parts.append(_of_words(result["selected_words"], names))
    return "\n\n".join(parts)


def _name(model: JsonObject) -> str:
    return f"{model['model']} (random weights)" if model["untrained"] else str(model["model"])


def _cell(number: JsonObject, scale: int = 1, digits: int = 3) -> str:
    if number["mean"] is None:
        return "-"
    mean, low, high = (f"{scale * number[key]:.{digits}f}" for key in ("mean", "low", "high"))
    return f"{mean} [{low}, {high}]"


def _percent(number: JsonObject) -> str:
    return _cell(number, 100, 1)


def _layer_rows(numbers: JsonObject) -> list[TableRow]:
    """The shares on text and image and the gap of every layer, and of all."""
    rows = [*numbers.get("by_layer", ()), {"layer": "all", **numbers["overall"]}]
    return [
        {"layer": str(row["layer"])} | {name: _percent(row[name]) for name in NUMBERS[:4]}
        for row in rows
    ]


def _of_model(model: JsonObject, query: str) -> list[str]:
    even = {name: _percent(model["uniform"][name]) for name in ATTENTION_TARGETS}
    ratio = {name: _cell(model["ratio"][name]) for name in ATTENTION_TARGETS}
    rows = [
        *_layer_rows(model),
        {"layer": "even attention", **even, "gap": ""},
        {"layer": "all / even", **ratio, "gap": ""},
    ]
    query_name = "[CLS]" if query == "cls" else "all positions"
    title = f"{_name(model)}: attention of {query_name}, % (95 % intervals over images)"
    parts = [f"{title}\n\n{format_table(rows)}"]
    if model["inputs"]:
        parts.append(_of_inputs(model["inputs"]))
    return parts


def _of_inputs(inputs: JsonObject) -> str:
    title = "how much the answer depends on image and text"
    if "undefined" in inputs:
        return f"{title}: {inputs['undefined']}"
    rows: list[TableRow] = []
    reasons = []
    for row in inputs["rows"]:
        cells = {"given": row["given"]}
        is_defined = "undefined" not in row
        for place, name in enumerate(inputs["measures"]):
            cells[name] = f"{row['values'][place]['mean']:.4f}" if is_defined else "-"
            change = "change" if place == 0 else f"change of {name}"
            cells[change] = _cell(row["changes"][place]) if is_defined else "-"
        rows.append(cells)
        if not is_defined:
            reasons.append(f"{row['given']}: undefined, because {row['undefined']}")
    return "\n".join([title, "", format_table(rows), *reasons])


def _of_difference(result: JsonObject) -> str:
    """Table of the second model less the first."""
    difference = result["difference"]
    one, other = (_name(model) for model in result["models"])
    gap, visual = (_percent(difference["relative"][name]) for name in ("gap_size", "visual"))
    return (
        f"{other} less {one}, percentage points\n\n{format_table(_layer_rows(difference))}\n"
        f"relative change of the absolute gap: {gap} %; of attention to the image: {visual} %"
    )


def _of_words(summary: JsonObject, names: Sequence[str]) -> str:
    """Table of attention to words against the teacher's scores."""
    rows: list[TableRow] = [
        {
            "": name,
            "rank correlation": _cell(model["ranks"]),
            "overlap": _percent(model["overlap"]),
        }
        for name, model in zip(names, summary["models"], strict=True)
    ]
    chance = _percent(summary["overlap_by_chance"])
    rows.append({"": "by chance", "rank correlation": "0.0", "overlap": chance})
    teacher = f"{summary['teacher']} selects {summary['words']}"
    title = f"[CLS]'s attention to words compared with the scores by which {teacher}"
    return f"{title}\n\n{format_table(rows)}"
