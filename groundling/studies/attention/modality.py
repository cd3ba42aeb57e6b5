"""How much a model attends to text and image, and how much its answers depend on each (CLIP-TD,
Section 5.1 and Figures 2 to 4), as a command.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from groundling.core.batch import Example, Sample
from groundling.core.errors import InputError
from groundling.data.samples import SampleDataset, subsample
from groundling.models.clip import load_frozen_clip
from groundling.runs.report import TableRow, format_count, format_table
from groundling.runs.run import Run
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.studies.attention import attribution, selected_words
from groundling.studies.attention.attribution import (
    COMPLETE_ABSOLUTE,
    COMPLETE_RELATIVE,
    AblatedAnswers,
    AttributionPass,
)
from groundling.studies.attention.commands import AnalysedModelSettings, ModalityConfig
from groundling.studies.attention.forward_passes import (
    AttentionConsumer,
    AttentionPass,
    ModelPass,
    run_passes,
)
from groundling.studies.attention.importance import (
    ATTENTION_TARGETS,
    AttentionQuery,
    Bootstrap,
    ClsAttention,
    ImportanceEstimate,
    ModalityImportance,
    compare_importance,
)
from groundling.studies.attention.inspected_models import (
    ModalityModel,
    check_labels,
    load_modality_model,
    read_analysis_examples,
    reads_pixels,
)
from groundling.teachers.clip import ClipTeacher
from groundling.vision_language.single_stream import SingleStreamModel

COUNTED = "layers and heads count from 0"
JsonObject = dict[str, Any]


def modality(config: ModalityConfig, run: Run) -> dict[str, Any]:
    """Modality importance by layer and head, input ablation and attributions, for one model or two.

    Several processes share the examples.

    Raises:
        InputError: A model reads no regions or gives no attention, a file is missing or malformed,
            examples have no labels where answers are scored, or settings do not fit the model.
    """
    make = partial(_ModalityAnalysis, config)
    analysis = make(run.state.device)
    run_passes(analysis.passes, partial(modality_passes, make), config.processes)
    result = analysis.result()
    selected = _selected_words(config, analysis, run.state.device)
    run.note(*dict.fromkeys(analysis.notes))
    header = {"data": config.data, "task": config.task, "query": config.query}
    return {**header, **result, "selected_words": selected, "notes": run.notes}


def modality_passes(
    make: Callable[[torch.device], _ModalityAnalysis], device: torch.device
) -> list[ModelPass]:
    """Every pass of every model; other processes make the same ones."""
    return make(device).passes


class _ModalityAnalysis:
    """The analysis of one model or two on the same examples, after its passes have run."""

    def __init__(self, config: ModalityConfig, device: torch.device) -> None:
        settings = [config.attention_model]
        if config.other:
            settings.append(replace(config.attention_model, model=config.other, untrained=False))
        subjects = [
            load_modality_model(one, config.outcome, device, config.trust) for one in settings
        ]
        every, remarks = read_analysis_examples(
            subjects[0],
            Path(config.data),
            config.task,
            config.split,
            asking=config.asking,
            label=config.label,
            columns=config.columns,
            photos=config.attention_model.image_settings.images,
        )
        self.examples = subsample(every, config.limit)
        self.word_level_examples = subsample(
            self.examples, config.ig_examples or len(self.examples)
        )
        """The examples that are analysed word by word."""
        seed = config.attention_model.seed
        self.bootstrap = Bootstrap(images_of(self.examples), seed)
        self.word_level_bootstrap = Bootstrap(images_of(self.word_level_examples), seed)
        self.notes = [*remarks, *(note for subject in subjects for note in subject.notes)]
        if len(self.examples) < len(every):
            self.notes.append(
                f"used {len(self.examples):,} of {len(every):,} examples, evenly spaced"
            )
        self.models: list[_ModelAnalysis] = []
        for one, subject in zip(settings, subjects, strict=True):
            if config.perturbed_inputs or (config.ig_examples and not reads_pixels(subject)):
                check_labels(subject, self.examples, config.data)
            model = _ModelAnalysis(
                one, subject, self.examples, self.word_level_examples, config.query
            )
            if config.perturbed_inputs:
                model.add_ablation()
            if config.ig_examples:
                model.add_attribution(config.ig_steps)
            if config.teacher or model.attribution_pass is not None:
                model.add_cls_attention()
            self.models.append(model)

    @property
    def passes(self) -> list[ModelPass]:
        """The passes of all models."""
        return [one for model in self.models for one in model.passes]

    def result(self) -> JsonObject:
        """Attention, ablated answers and attributions as in `result.json`; adds to `notes`."""
        drawn = [model.importance(self.bootstrap) for model in self.models]
        self.notes += [note for model in self.models for note in model.cut_off]
        models = [
            model.to_json(one.to_json(), self.bootstrap, self.word_level_bootstrap)
            for model, one in zip(self.models, drawn, strict=True)
        ]
        self.notes += [note for model in self.models for note in model.notes]
        return {
            "examples": len(self.examples),
            "images": len(set(self.bootstrap.images)),
            "counted": COUNTED,
            "models": models,
            "difference": self._difference(drawn),
        }

    def _difference(self, estimates: Sequence[ImportanceEstimate]) -> JsonObject | None:
        if len(estimates) < 2:
            return None
        one, other = estimates
        if not np.allclose(one.uniform[0], other.uniform[0]):
            self.notes.append(
                "the two models have different numbers of positions for the same examples, so their shares are not "
                "comparable; compare their ratios to even attention"
            )
        return compare_importance(one, other)


class _ModelAnalysis:
    """The analysis of one model; results are available once `passes` have run."""

    def __init__(
        self,
        attending: AnalysedModelSettings,
        subject: ModalityModel,
        examples: Sequence[Example],
        word_level_examples: Sequence[Example],
        query: AttentionQuery,
    ) -> None:
        """`word_level_examples` of the `examples` are analysed word by word."""
        self.attending = attending
        self.subject = subject
        self.examples = examples
        self.word_level_examples = word_level_examples
        self.importance_consumer = ModalityImportance(query)
        self.cls_attention = ClsAttention()
        self.passes: list[ModelPass] = [self._attention_pass(self.importance_consumer, examples)]
        self.ablation: AblatedAnswers | None = None
        self.attribution_pass: AttributionPass | None = None
        self.no_attribution_reason = ""
        """Why its answers cannot be attributed; empty if they can."""
        self.notes: list[str] = []
        """Notes on the result; `to_json` adds them."""

    def _attention_pass(
        self, consumer: AttentionConsumer, examples: Sequence[Example]
    ) -> AttentionPass:
        samples = partial(self.subject.samples, examples)
        return AttentionPass(self.subject.model, samples, [consumer], self.attending.batch)

    def add_ablation(self) -> None:
        """Add the passes with ablated inputs."""
        batch = self.attending.batch
        self.ablation = AblatedAnswers(self.subject, self.examples, self.attending.seed, batch)
        self.passes += self.ablation.passes

    def add_attribution(self, points: int) -> None:
        """Add a pass that attributes its answers, if any, with `points` points on the line."""
        outcome = self.subject.outcome
        if outcome is None:
            self.no_attribution_reason = "the model has no head whose answer can be attributed"
            return
        if reads_pixels(self.subject):
            self.no_attribution_reason = "the model reads pixels; attributions need stored features"
            return
        model = self.subject.model
        assert isinstance(model, SingleStreamModel)  # no other has an outcome

        def samples() -> SampleDataset:
            return outcome.prepare(self.subject.samples(self.word_level_examples))

        self.attribution_pass = AttributionPass(
            model, outcome, samples, self.attending.batch, points
        )
        self.passes.append(self.attribution_pass)

    def add_cls_attention(self) -> None:
        """Add a pass that records [CLS]'s attention to every position of the word-level examples."""
        self.passes.append(self._attention_pass(self.cls_attention, self.word_level_examples))

    @cached_property
    def rows(self) -> list[Sample]:
        """The word-level examples as the model reads them."""
        samples = self.subject.samples(self.word_level_examples)
        return list(samples.get(range(len(samples)), ()))

    @property
    def cut_off(self) -> list[str]:
        """A note on truncated tokens, if there are any."""
        if not self.importance_consumer.truncated_tokens:
            return []
        tokens = format_count(self.importance_consumer.truncated_tokens, "token")
        return [f"truncated {tokens} of texts that are too long (max_length)"]

    def importance(self, bootstrap: Bootstrap) -> ImportanceEstimate:
        """Its modality importance with resamples; raises InputError if no layer covers regions."""
        if not self.importance_consumer.layers.numbers:
            raise InputError("no layer of this model attends to both text and regions")
        return ImportanceEstimate(self.importance_consumer, bootstrap)

    def to_json(
        self, numbers: JsonObject, bootstrap: Bootstrap, word_level_bootstrap: Bootstrap
    ) -> JsonObject:
        """The model's entry in `result.json`; `numbers`: its modality importance."""
        inputs = None
        if self.ablation is not None:
            inputs = self.ablation.to_json(bootstrap)
            self._note(self.ablation.notes)
        explained: JsonObject | None = None
        if self.no_attribution_reason:
            explained = {"undefined": self.no_attribution_reason}
        elif self.attribution_pass is not None:
            explained = attribution.attribution_summary(
                self.attribution_pass, self.cls_attention, self.rows, word_level_bootstrap
            )
            self._note(attribution.completeness_notes(explained))
        return {
            "model": self.attending.model,
            "untrained": self.attending.untrained,
            "kind": self.subject.model.architecture_name,
            **numbers,
            "inputs": inputs,
            "attribution": explained,
        }

    def _note(self, notes: Sequence[str]) -> None:
        self.notes += [f"{self.attending.model}: {note}" for note in notes]


def _selected_words(
    config: ModalityConfig, analysis: _ModalityAnalysis, device: torch.device
) -> JsonObject | None:
    """Whether models attend to the words that CLIP-TD's teacher selects; None without one."""
    if not config.teacher:
        return None
    options = TargetedDistillationSettings(
        teacher_images=config.teacher_images, num_words=config.num_words, relevance=config.relevance
    )
    clip = load_frozen_clip(config.teacher)
    samples = analysis.models[0].subject.samples(analysis.word_level_examples)
    teacher = ClipTeacher(clip, {"clip_words"}, options)
    teacher.to(device).fit(samples)
    texts = selected_words.teacher_word_scores(
        teacher, analysis.models[0].rows, config.attention_model.batch
    )
    readers = [
        selected_words.AttentionToWords(model.rows, model.cls_attention)
        for model in analysis.models
    ]
    summary = selected_words.selected_words_summary(
        texts, readers, config.num_words, analysis.word_level_bootstrap
    )
    header = {"teacher": config.teacher, "words": config.num_words, "relevance": config.relevance}
    return {**header, **summary}


def images_of(examples: Sequence[Example]) -> list[str]:
    """The unit of resampling of each example: its image, or its images together."""
    return [" ".join(example.images) for example in examples]


# -- tables ------------------------------------------------------------------------------------------------------------


def format_modality(result: JsonObject) -> str:
    """All tables as text."""
    parts = [f"{result['examples']:,} examples of {result['images']:,} images; {COUNTED}"]
    for model in result["models"]:
        parts += _of_model(model, result["query"])
    if result["difference"]:
        parts += _of_difference(result)
    if result["selected_words"]:
        names = [_name(model) for model in result["models"]]
        parts += _of_words(result["selected_words"], names)
    return "\n\n".join(parts)


def _name(model: JsonObject) -> str:
    """A model's label in tables."""
    return f"{model['model']} (random weights)" if model["untrained"] else str(model["model"])


def _cell(number: JsonObject) -> str:
    """A number with its interval as text."""
    if number["mean"] is None:
        return "-"
    return f"{number['mean']:.3f} [{number['low']:.3f}, {number['high']:.3f}]"


def _percent(number: JsonObject) -> str:
    """A share with its interval, in per cent."""
    if number["mean"] is None:
        return "-"
    mean, low, high = (100 * number[key] for key in ("mean", "low", "high"))
    return f"{mean:.1f} [{low:.1f}, {high:.1f}]"


def _layer_rows(rows: Sequence[JsonObject], names: Sequence[str]) -> list[TableRow]:
    return [
        {"layer": str(row["layer"])} | {name: _percent(row[name]) for name in names} for row in rows
    ]


def _of_model(model: JsonObject, query: str) -> list[str]:
    """A model's own tables."""
    names = [*ATTENTION_TARGETS, "gap"]
    rows = _layer_rows(model["by_layer"], names)
    rows.append({"layer": "all"} | {name: _percent(model["overall"][name]) for name in names})
    even = {name: _percent(model["uniform"][name]) for name in ATTENTION_TARGETS}
    rows.append({"layer": "even attention"} | even | {"gap": ""})
    ratio = {name: _cell(model["ratio"][name]) for name in ATTENTION_TARGETS}
    rows.append({"layer": "all / even"} | ratio | {"gap": ""})
    query_name = "[CLS]" if query == "cls" else "all positions"
    parts = [
        f"{_name(model)}: attention of {query_name}, % (95 % intervals over images)\n\n{format_table(rows)}"
    ]
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
    for row in inputs["rows"]:
        cells = {"given": row["given"]}
        for place, name in enumerate(inputs["measures"]):
            is_there = "undefined" not in row
            cells[name] = f"{row['values'][place]['mean']:.4f}" if is_there else "-"
            change = _cell(row["changes"][place]) if is_there else "-"
            cells["change" if place == 0 else f"change of {name}"] = change
        rows.append(cells)
    reasons = [
        f"{row['given']}: undefined, because {row['undefined']}"
        for row in inputs["rows"]
        if "undefined" in row
    ]
    return "\n".join([title, "", format_table(rows), *reasons])


def _of_attribution(summary: JsonObject) -> str:
    title = "integrated gradients"
    if "undefined" in summary:
        return f"{title}: {summary['undefined']}"
    words = summary["agreement"]["words"]["mean_of_layers"]
    regions = summary["agreement"]["regions"]["mean_of_layers"]
    return "\n".join(
        [
            f"{title} of the {summary['explains']}, {summary['examples']:,} examples, {summary['ig_steps']} points",
            f"  complete within {100 * COMPLETE_RELATIVE:.0f} % or {COMPLETE_ABSOLUTE}: "
            f"{100 * summary['complete']:.1f} % of examples",
            f"  the words' share of all attributions: {_percent(summary['text_share'])} %",
            f"  rank correlation with [CLS]'s attention, words: {_cell(words)}, regions: {_cell(regions)}",
        ]
    )


def _of_difference(result: JsonObject) -> list[str]:
    """Tables of the second model less the first."""
    difference = result["difference"]
    names = [*ATTENTION_TARGETS, "gap"]
    rows = _layer_rows(difference.get("by_layer", ()), names)
    rows.append({"layer": "all"} | {name: _percent(difference["overall"][name]) for name in names})
    one, other = (_name(model) for model in result["models"])
    relative = difference["relative"]
    lines = [
        f"{other} less {one}, percentage points",
        "",
        format_table(rows),
        f"relative change of the absolute gap: {_percent(relative['gap_size'])} %; of attention to the image: "
        f"{_percent(relative['visual'])} %",
    ]
    return ["\n".join(lines)]


def _of_words(summary: JsonObject, names: Sequence[str]) -> list[str]:
    """Tables of attention to words against the teacher's scores, and of one example text."""
    rows: list[TableRow] = []
    for source, model in zip(names, summary["models"], strict=True):
        ranks, overlap = (model[name]["mean_of_layers"] for name in ("ranks", "overlap"))
        rows.append({"": source, "rank correlation": _cell(ranks), "overlap": _percent(overlap)})
    chance = _percent(summary["overlap_by_chance"])
    rows.append({"": "by chance", "rank correlation": "0.0", "overlap": chance})
    shown = []
    for word in summary["shown"]["words"]:
        cells = {"word": word["word"], "score": "-"}
        if word["score"] is not None:
            cells["score"] = f"{word['score']:.3f}"
        for source, attention in zip(names, word["attention"], strict=True):
            cells[f"attention of {source}, %"] = f"{100 * attention:.2f}"
        shown.append(cells)
    selection = f"{summary['teacher']} selects {summary['words']}"
    title = f"[CLS]'s attention to words compared with the scores by which {selection}"
    return [
        f"{title}\n\n{format_table(rows)}",
        f"{summary['shown']['text']}\n\n{format_table(shown)}",
    ]
