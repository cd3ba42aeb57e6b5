"""How much a model attends to text and image, and how much its answers depend on each (CLIP-TD,
Section 5.1 and Figures 2 to 4), as a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from groundling.core.batch import Example, Sample
from groundling.core.errors import InputError
from groundling.data.samples import subsample
from groundling.models.frozen_clip import load_frozen_clip
from groundling.runs.report import TableRow, format_count, format_table
from groundling.runs.run import Run
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.studies.attention import attribution
from groundling.studies.attention.answers import Outcome, ablate_inputs, outcome_of
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
from groundling.teachers.clip import ClipTeacher

JsonObject = dict[str, Any]
MIN_COMPLETE_SHARE = 0.9
"""A note is written if the share of complete attributions is below this."""


def modality(config: ModalityConfig, run: Run) -> dict[str, Any]:
    """Modality importance by layer and head, input ablation and attributions, for one model or two.

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
    analyses = [
        _ModelAnalysis(one, subject, examples, device)
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
        "examples": len(examples.every),
        "images": len(set(examples.bootstrap.images)),
        "models": [analysis.to_json() for analysis in analyses],
        "difference": difference,
        "selected_words": _selected_words(config, analyses, device) if config.teacher else None,
        "notes": run.notes,
    }


class _AnalysedExamples(NamedTuple):
    """The examples that all models read, and their resamples."""

    every: list[Example]
    word_level: list[Example]
    """Those that are analysed word by word."""
    bootstrap: Bootstrap
    word_level_bootstrap: Bootstrap


def _read_examples(
    config: ModalityConfig, subjects: Sequence[RegionModel], run: Run
) -> _AnalysedExamples:
    every, notes = read_analysis_examples(subjects[0], config)
    run.note(*dict.fromkeys([*notes, *(note for subject in subjects for note in subject.notes)]))
    examples = subsample(every, config.limit)
    if len(examples) < len(every):
        run.note(f"used {len(examples):,} of {len(every):,} examples, evenly spaced")
    is_scored = config.perturbed_inputs or config.ig_examples
    has_labels = all(one.label is not None or one.gold_boxes for one in examples)
    if is_scored and not has_labels and any(subject.form for subject in subjects):
        raise InputError(
            f"{config.data}: the examples have no labels; pass perturbed_inputs=False --ig-examples 0, or labelled data"
        )
    word_level = subsample(examples, config.ig_examples or len(examples))
    return _AnalysedExamples(
        examples,
        word_level,
        *(
            # The unit of resampling of an example: its image, or its images together.
            Bootstrap([" ".join(example.images) for example in some], config.seed)
            for some in (examples, word_level)
        ),
    )


class _ModelAnalysis:
    """The analysis of one model."""

    def __init__(
        self,
        config: ModalityConfig,
        subject: RegionModel,
        examples: _AnalysedExamples,
        device: torch.device,
    ) -> None:
        """Raises InputError if no layer covers regions."""
        self.config = config
        self.subject = subject
        self.examples = examples
        self.notes: list[str] = []
        """Notes for the reader of the result."""
        importance = ModalityImportance(config.query)
        self._read(examples.every, importance)
        if not importance.layers:
            raise InputError("no layer of this model attends to both text and regions")
        if importance.truncated_tokens:
            tokens = format_count(importance.truncated_tokens, "token")
            self.notes.append(f"truncated {tokens} of texts that are too long (max_length)")
        self.importance = ImportanceEstimate(importance, examples.bootstrap)
        self.cls_attention = ClsAttention()
        """[CLS]'s attention to every position of the word-level examples, where it is needed."""
        if config.teacher or config.ig_examples:
            self._read(examples.word_level, self.cls_attention)
        self.outcome = outcome_of(subject, config, device)
        self.inputs: JsonObject | None = None
        """Its answers with ablated inputs."""
        if config.perturbed_inputs:
            self.inputs = ablate_inputs(
                subject, self.outcome, examples.every, config, examples.bootstrap
            )
        self.attribution = self._attribute(self.outcome) if config.ig_examples else None

    def _read(self, examples: Sequence[Example], consumer: AttentionConsumer) -> None:
        samples = self.subject.samples(examples)
        consume_attention(self.subject.model, samples, consumer, self.config.batch)

    @cached_property
    def rows(self) -> list[Sample]:
        """The word-level examples as the model reads them."""
        samples = self.subject.samples(self.examples.word_level)
        return list(samples.get(range(len(samples)), ()))

    def _attribute(self, outcome: Outcome | None) -> JsonObject:
        model = self.subject.model
        if outcome is None:
            return {"undefined": "the model has no head whose answer can be attributed"}
        if model.region_source != "features":
            return {"undefined": "the model reads pixels; attributions need stored features"}
        samples = outcome.prepare(self.subject.samples(self.examples.word_level))
        steps = self.config.ig_steps
        found = attribution.attribute_answers(model, outcome, samples, self.config.batch, steps)
        summary = attribution.attribution_summary(
            found, self.cls_attention, self.rows, self.examples.word_level_bootstrap
        )
        if summary["complete"] < MIN_COMPLETE_SHARE:
            self.notes.append(
                f"{self.config.model}: integrated gradients are incomplete in {1 - summary['complete']:.0%} of "
                f"examples; double ig_steps ({steps}) until `complete` no longer rises"
            )
        return {"explains": outcome.target_name, "ig_steps": steps, **summary}

    def to_json(self) -> JsonObject:
        """The model's entry in `result.json`."""
        return {
            "model": self.config.model,
            "untrained": self.config.untrained,
            "kind": self.subject.model.architecture_name,
            **self.importance.to_json(),
            "inputs": self.inputs,
            "attribution": self.attribution,
        }


def _selected_words(
    config: ModalityConfig, analyses: Sequence[_ModelAnalysis], device: torch.device
) -> JsonObject:
    """Whether models attend to the words that CLIP-TD's teacher selects."""
    options = TargetedDistillationSettings(
        teacher_images=config.teacher_images, num_words=config.num_words, relevance=config.relevance
    )
    clip = load_frozen_clip(config.teacher)
    examples = analyses[0].examples
    teacher = ClipTeacher(clip, {"clip_words"}, options)
    teacher.to(device).fit(analyses[0].subject.samples(examples.word_level))
    texts = attribution.teacher_word_scores(teacher, analyses[0].rows, config.batch)
    attentions = [
        attribution.attention_to_words(one.cls_attention, one.rows, texts) for one in analyses
    ]
    summary = attribution.selected_words_summary(
        texts, attentions, config.num_words, examples.word_level_bootstrap
    )
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
    if model["attribution"]:
        parts.append(_of_attribution(model["attribution"]))
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


def _of_attribution(summary: JsonObject) -> str:
    title = "integrated gradients"
    if "undefined" in summary:
        return f"{title}: {summary['undefined']}"
    title = (
        f"{title} of the {summary['explains']}, {summary['ig_steps']} points, and [CLS]'s attention"
    )
    row = {
        "examples": f"{summary['examples']:,}",
        "complete": f"{100 * summary['complete']:.1f} %",
        "words' share, %": _percent(summary["text_share"]),
        "rank correlation, words": _cell(summary["agreement"]["words"]),
        "regions": _cell(summary["agreement"]["regions"]),
    }
    return f"{title}\n\n{format_table([row])}"


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
