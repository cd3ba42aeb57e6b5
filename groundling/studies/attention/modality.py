"""How much a model attends to text and image, and how much its answers depend on each (CLIP-TD,
Section 5.1 and Figures 2 to 4), as a command.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import stats
from torch import Tensor

from groundling.core.batch import Batch, Example, Sample, require
from groundling.core.errors import InputError
from groundling.data.samples import SampleDataset, subsample
from groundling.data.text import word_spans
from groundling.data.text.keywords import select_tokens
from groundling.models.frozen_clip import load_frozen_clip
from groundling.runs.report import TableRow, format_count, format_table
from groundling.runs.run import Run
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.studies.attention.answers import Outcome, ablate_inputs, outcome_of
from groundling.studies.attention.commands import ModalityConfig
from groundling.studies.attention.figures import draw_modality, write_figures
from groundling.studies.attention.grounding import COUNTED
from groundling.studies.attention.importance import (
    ATTENTION_TARGETS,
    NUMBERS,
    Bootstrap,
    ClsAttention,
    ImportanceEstimate,
    ModalityImportance,
    compare_importance,
    intervals,
    mean_with_interval,
    right_choice_row,
)
from groundling.studies.attention.inspected_models import (
    AttentionConsumer,
    FineTunedRegionModel,
    RegionModel,
    consume_attention,
    is_fine_tuned,
    iterate_batches,
    read_analysis_examples,
)
from groundling.teachers.clip import ClipTeacher, text_for_clip
from groundling.vision_language import RegionEncoder

JsonObject = dict[str, Any]
MIN_COMPLETE_SHARE = 0.9
"""A note is written if the share of complete attributions is below this."""


def modality(config: ModalityConfig, run: Run) -> dict[str, Any]:
    """Modality importance by layer and head, input ablation and attributions, for one model or two; with figures.

    Raises InputError: a model reads no regions or gives no attention, a file is missing or malformed, examples have no
    labels where answers are scored, or settings do not fit the model.
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
    result = {
        "examples": len(examples.every),
        "images": len(set(examples.bootstrap.images)),
        "models": [analysis.to_json() for analysis in analyses],
        "difference": difference,
        "selected_words": _selected_words(config, analyses, device) if config.teacher else None,
        "notes": run.notes,
    }
    if run.state.is_main_process:
        write_figures(draw_modality(result), run.folder)
    return result


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
        importance = ModalityImportance()
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
        found = attribute_answers(model, outcome, samples, self.config.batch, steps)
        summary = attribution_summary(
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
    texts = teacher_word_scores(teacher, analyses[0].rows, config.batch)
    attentions = [attention_to_words(one.cls_attention, one.rows, texts) for one in analyses]
    summary = selected_words_summary(
        texts, attentions, config.num_words, examples.word_level_bootstrap
    )
    header = {"teacher": config.teacher, "words": config.num_words, "relevance": config.relevance}
    return {**header, **summary}


# -- tables ------------------------------------------------------------------------------------------------------------
def format_modality(result: JsonObject) -> str:
    """All tables as text."""
    parts = [f"{result['examples']:,} examples of {result['images']:,} images; {COUNTED}"]
    for model in result["models"]:
        parts += _of_model(model)
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


def _of_model(model: JsonObject) -> list[str]:
    even = {name: _percent(model["uniform"][name]) for name in ATTENTION_TARGETS}
    ratio = {name: _cell(model["ratio"][name]) for name in ATTENTION_TARGETS}
    rows = [
        *_layer_rows(model),
        {"layer": "even attention", **even, "gap": ""},
        {"layer": "all / even", **ratio, "gap": ""},
    ]
    title = f"{_name(model)}: attention of [CLS], % (95 % intervals over images)"
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
    difference = result["difference"]
    one, other = (_name(model) for model in result["models"])
    gap, visual = (_percent(difference["relative"][name]) for name in ("gap_size", "visual"))
    return (
        f"{other} less {one}, percentage points\n\n{format_table(_layer_rows(difference))}\n"
        f"relative change of the absolute gap: {gap} %; of attention to the image: {visual} %"
    )


def _of_words(summary: JsonObject, names: Sequence[str]) -> str:
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


# -- integrated gradients, and the words of CLIP-TD's teacher ----------------------------------------------------------
# Integrated gradients over words and regions (Sundararajan et al. 2017), and whether attention agrees with them. The
# attribution of an input is the gradient of the answer with respect to its embedding, averaged along the straight line
# from the baseline (padding in place of words, zero region features) to the input, times the difference between the
# two. Attributions add up to the change in the answer (completeness); the residual is reported.

LINE_POINTS = 64
"""Points on the line from baseline to input."""
POINT_POWER = 3
"""Exponent applied to the Gauss-Legendre points (0..1), so that most of them lie near the baseline.

UNITER projects region features and applies a LayerNorm, which removes their scale: without biases,
the regions' whole effect occurs in the first millionth of the line, with small biases soon after
it. Evenly spaced points miss it, however many there are.
"""
MIN_RANKED = 3
"""Least number of words or regions for a rank correlation."""


@dataclass(frozen=True)
class Attribution:
    """Attributions of one example's answer, for the row that `right_choice_row` selects."""

    tokens: np.ndarray
    """(T,): of each token; 0 for special tokens, which the baseline has too."""
    regions: np.ndarray
    """(R,): of each region."""
    change: float
    """The answer less that of the baseline."""
    residual: float
    """`change` less the attributions of all rows; close to 0 with enough points."""


def attribute_answers(
    model: RegionEncoder,
    outcome: Outcome,
    samples: SampleDataset,
    batch: int,
    steps: int = LINE_POINTS,
) -> list[Attribution]:
    """Attributions of every sample's answer, for a model that reads stored features.

    `samples` as in `measure_outcomes`; `steps`: points on the line.
    """
    model.requires_grad_(False)
    found: dict[int, Attribution] = {}
    for seen in iterate_batches(model, samples, batch):
        attributions = _attribute_batch(model, outcome, seen.batch, seen.samples, steps)
        found |= zip(seen.places, attributions, strict=True)
    return [found[place] for place in sorted(found)]


def _attribute_batch(
    model: RegionEncoder,
    outcome: Outcome,
    batch: Batch,
    samples: Sequence[Sample],
    steps: int,
) -> list[Attribution]:
    blank, path = _blank_and_path(model, batch)

    def answer(point: Sequence[Tensor]) -> Tensor:
        text, regions = point
        moved = replace(blank, perturbation={"text": text, "regions": regions})
        return outcome.attribution_target(model(moved), batch)

    with torch.no_grad():
        change = answer(path) - answer([torch.zeros_like(part) for part in path])
    slopes = [torch.zeros_like(part) for part in path]
    for share, weight in zip(*quadrature_points(steps), strict=True):
        point = [(part * share).requires_grad_() for part in path]
        gradients = torch.autograd.grad(answer(point).sum(), point)
        for slope, gradient in zip(slopes, gradients, strict=True):
            slope += gradient * weight
    shares = [(slope * part).sum(-1) for slope, part in zip(slopes, path, strict=True)]
    rest = change - sum(part.view(len(batch), -1).sum(1) for part in shares)
    tokens, regions = (part.double().cpu().numpy() for part in shares)
    attributions = []
    for number, sample in enumerate(samples):
        choice = right_choice_row(sample)
        row = number * batch.choices + choice
        length = len(require(sample.rows[choice].text, "text", "an attribution").input_ids)
        count = len(require(sample.rows[choice].regions, "regions", "an attribution"))
        attributions.append(
            Attribution(
                tokens[row, :length],
                regions[row, :count],
                float(change[number]),
                float(rest[number]),
            )
        )
    return attributions


def quadrature_points(steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Quadrature points (steps,), 0 (baseline) to 1 (input), and weights (steps,) with sum 1."""
    places, weights = np.polynomial.legendre.leggauss(steps)
    places, weights = (places + 1) / 2, weights / 2
    weights = weights * POINT_POWER * places ** (POINT_POWER - 1)
    return places**POINT_POWER, weights / weights.sum()


def _blank_and_path(model: RegionEncoder, batch: Batch) -> tuple[Batch, list[Tensor]]:
    """The baseline batch, and its differences to `batch`: words (N, T, E), regions (N, R, D).

    Points are the baseline plus a multiple of the difference, which is exact near the baseline;
    subtracting from the input would leave rounding errors there.
    """
    tokens = require(batch.text, "text", "an attribution")
    regions = require(batch.regions, "regions", "an attribution")
    table = model.word_embeddings()
    padding = 0 if model.text_tokenizer is None else model.text_tokenizer.pad_token_id or 0
    kept = torch.tensor(model.special_ids, device=tokens.input_ids.device)
    special = torch.isin(tokens.input_ids, kept) | tokens.special_tokens_mask
    ids = torch.where(special, tokens.input_ids, padding)
    features = regions.features.float()
    blank = replace(
        batch,
        text=replace(tokens, input_ids=ids),
        regions=replace(regions, features=torch.zeros_like(features)),
    )
    return blank, [(table(tokens.input_ids) - table(ids)).detach(), features]


# -- results -----------------------------------------------------------------------------------------------------------
COMPLETE_RELATIVE = 0.05
"""Relative tolerance: a complete attribution has a residual of at most this share of the change."""
COMPLETE_ABSOLUTE = 0.01
"""Absolute tolerance: a smaller residual counts as complete even if the change is close to 0."""


def attribution_summary(
    attributions: Sequence[Attribution],
    cls_attention: ClsAttention,
    rows: Sequence[Sample],
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Integrated gradients as in `result.json`: completeness, and agreement with attention.

    `cls_attention`: [CLS]'s attention in the same samples, which are `rows`; `bootstrap` over their examples.
    """
    agreements = [
        attribution_agreement(*one)
        for one in zip(cls_attention.means(), attributions, rows, strict=True)
    ]
    words, regions = intervals(bootstrap.means(np.array(agreements)))
    change = np.abs([one.change for one in attributions])
    residuals = np.abs([one.residual for one in attributions])
    is_complete = residuals <= np.maximum(COMPLETE_RELATIVE * change, COMPLETE_ABSOLUTE)
    return {
        "examples": len(attributions),
        "complete": round(float(is_complete.mean()), 6),
        "text_share": mean_with_interval(bootstrap.means(text_share(attributions))),
        "agreement": {"words": words, "regions": regions},
    }


def text_share(attributions: Sequence[Attribution]) -> np.ndarray:
    """The words' share (N,) of the total absolute attribution; NaN where all attributions are 0."""
    words = np.array([np.abs(one.tokens).sum() for one in attributions])
    regions = np.array([np.abs(one.regions).sum() for one in attributions])
    with np.errstate(invalid="ignore"):
        return np.asarray(words / (words + regions))


def sum_by_word(values: np.ndarray, word: np.ndarray) -> np.ndarray:
    """Sums (K,) of tokens' values (T,) over raw words; `word` (T,) is -1 for tokens of no word."""
    inside = word >= 0
    _, number = np.unique(word[inside], return_inverse=True)
    return np.bincount(number, weights=values[inside])


def rank_correlation(values: np.ndarray, other_values: np.ndarray) -> float:
    """Spearman's correlation of two arrays (K,); NaN for fewer than three or for equal numbers."""
    if len(values) < MIN_RANKED or np.ptp(values) == 0 or np.ptp(other_values) == 0:
        return float("nan")
    return float(stats.spearmanr(values, other_values).statistic)


def attribution_agreement(
    attention: np.ndarray, attribution: Attribution, sample: Sample
) -> tuple[float, float]:
    """Spearman's correlation of [CLS]'s attention (T + R,) with absolute attributions: over words, over regions."""
    row = sample.rows[right_choice_row(sample)]
    word = require(row.text, "text", "an attribution").word_ids
    tokens = len(word)
    size_of_words = np.abs(sum_by_word(attribution.tokens, word))
    return (
        rank_correlation(sum_by_word(attention[:tokens], word), size_of_words),
        rank_correlation(attention[tokens:], np.abs(attribution.regions)),
    )


# -- the words that CLIP-TD's teacher selects (Figure 2) ---------------------------------------------------------------
MIN_CANDIDATES = 4
"""Least number of candidate words in the text that is shown as an example."""


@dataclass(frozen=True)
class TeacherWordScores:
    """The teacher's selection scores of the K raw words of a row."""

    scores: np.ndarray
    """(K,) selection scores; 0 for words that are no candidates."""
    candidates: np.ndarray
    """(K,) bool: words that may be selected."""
    words: tuple[str, ...]
    """The words as written in the text."""
    text: str


def teacher_word_scores(
    teacher: ClipTeacher, samples: Sequence[Sample], batch: int
) -> list[TeacherWordScores]:
    """A teacher's scores for each sample's row of `right_choice_row`; it is fitted to these samples."""
    rows = [sample.rows[right_choice_row(sample)] for sample in samples]
    found = []
    for start in range(0, len(rows), batch):
        batch_rows = rows[start : start + batch]
        for row, (scores, candidates) in zip(
            batch_rows, teacher.word_scores(batch_rows), strict=True
        ):
            text = text_for_clip(require(row.example, "example", "a teacher"))
            words = tuple(text[first:last] for first, last in word_spans(text))
            found.append(
                TeacherWordScores(scores[: len(words)], candidates[: len(words)], words, text)
            )
    return found


def selection_agreement(
    attention: np.ndarray, words: TeacherWordScores, num_words: int
) -> np.ndarray:
    """Agreement (3,) of attention (K,) with scores, over candidates; NaN without any.

    Spearman's correlation with the scores; the overlap of the `num_words` selected words with the
    words that get the most attention, as a share; and the overlap expected by chance.
    """
    places = np.flatnonzero(words.candidates)
    if not len(places):
        return np.full(3, np.nan)
    many = min(num_words, len(places))
    chosen = select_tokens(words.scores, words.candidates, num_words)
    attended = select_tokens(attention, words.candidates, num_words)
    shared = len(np.intersect1d(chosen, attended)) / many
    ranks = rank_correlation(attention[places], words.scores[places])
    return np.array([ranks, shared, many / len(places)])


def attention_to_words(
    cls_attention: ClsAttention, rows: Sequence[Sample], texts: Sequence[TeacherWordScores]
) -> list[np.ndarray]:
    """[CLS]'s attention (K,) to each raw word of each text, which the model reads as `rows`.

    The sum over a word's tokens; 0 for truncated words.
    """
    found = []
    for attention, sample, text in zip(cls_attention.means(), rows, texts, strict=True):
        row = sample.rows[right_choice_row(sample)]
        word = require(row.text, "text", "a student").word_ids
        inside = (word >= 0) & (word < len(text.words))
        of_tokens = attention[: len(word)][inside]
        found.append(np.bincount(word[inside], weights=of_tokens, minlength=len(text.words)))
    return found


def selected_words_summary(
    texts: Sequence[TeacherWordScores],
    attentions: Sequence[Sequence[np.ndarray]],
    num_words: int,
    bootstrap: Bootstrap,
) -> dict[str, Any]:
    """Agreement of attention with the `num_words` words that the teacher selects, as in `result.json`.

    `attentions` of each model to the words of each text; `bootstrap` over the examples of the texts.
    """
    scores = []
    for of_model in attentions:
        pairs = zip(of_model, texts, strict=True)
        scores.append(np.stack([selection_agreement(*pair, num_words) for pair in pairs]))

    def summary(values: np.ndarray) -> dict[str, Any]:
        ranks, overlap = intervals(bootstrap.means(values[:, :2]))
        return {"ranks": ranks, "overlap": overlap}

    place = next((n for n, one in enumerate(texts) if one.candidates.sum() >= MIN_CANDIDATES), 0)
    return {
        "examples": len(texts),
        "models": [summary(own) for own in scores],
        "overlap_by_chance": mean_with_interval(bootstrap.means(scores[0][:, 2])),
        "difference": summary(scores[1] - scores[0]) if len(scores) == 2 else None,
        "shown": example_scores(texts[place], [each[place] for each in attentions]),
    }


def example_scores(text: TeacherWordScores, attentions: Sequence[np.ndarray]) -> dict[str, Any]:
    """JSON of a text's words, the teacher's scores and each model's attention (K,) (Figure 2)."""
    rows = []
    for number, word in enumerate(text.words):
        score = round(float(text.scores[number]), 6) if text.candidates[number] else None
        shares = [round(float(attention[number]), 6) for attention in attentions]
        rows.append({"word": word, "score": score, "attention": shares})
    return {"text": text.text, "words": rows}
