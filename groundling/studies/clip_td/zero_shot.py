"""Zero-shot predictions of a CLIP or of a pre-trained model's match head (CLIP-TD, Section 4).

Section 4.1: in VCR the choice with the highest image-text similarity is predicted, with question + answer (IQA) or the
answer alone (IA) as text, and likewise for rationales. Section 4.2: SNLI-VE's classes are three clusters of the
similarities of image and hypothesis. For VQA the paper lists a zero-shot setting without a protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from groundling.core.batch import FORWARD_BATCH, Example
from groundling.core.errors import InputError, prefix_errors
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.core.registry import resolve
from groundling.data.kmeans import Clusters, kmeans_1d
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.samples import rows_of, subsample
from groundling.prediction.similarity import (
    CosineMatcher,
    Matcher,
    MatchHeadMatcher,
    MatchScores,
    equalise_identical_texts,
    require_finite,
)
from groundling.runs.run import Run
from groundling.settings.input_settings import RegionSettings
from groundling.studies.clip_td.combined_runs import score_answers, write_single_seed
from groundling.studies.clip_td.commands import ZeroShotConfig
from groundling.tasks import Task
from groundling.tasks.splits import with_extra_splits
from groundling.teachers.feature_cache import FeatureCache, cache_folder
from groundling.training.evaluation import EvaluationOutput, find_top_classes

RISING = ("contradiction", "neutral", "entailment")
"""Classes in the order of their cluster centres; the paper does not assign clusters to classes."""


def zero_shot(config: ZeroShotConfig, run: Run) -> dict[str, Any]:
    """Predict a task's splits zero-shot, with the files of `finetune`: `result.json`, predictions in `seed-0`.

    Choices by the highest similarity, SNLI-VE's classes by exact k-means of the similarities, open answers by prompts.
    With several processes each one predicts everything.

    Raises InputError: there is no rule for the task, an image is missing, the model has no match head, or there are too
    few distinct similarities for the clusters.
    """
    folder = Path(config.data)
    task = resolve("tasks", Task, config.task).with_answers_of(folder)
    _check_task(task)
    task = with_extra_splits(task, config.extra_eval)
    predicted_splits = [config.split] if config.split else list(task.dev)
    work = _ZeroShotModel(config, task, run)
    answers = ((split, work.answers(split)) for split in predicted_splits)
    found = write_single_seed(run, task, config, answers, {}, is_whole=not config.most_questions)
    result = {"task": task.name, "version": task.version, "model": config.model}
    return result | found | work.summary


def _check_task(task: Task) -> None:
    """Raises InputError where image-text similarity cannot decide."""
    form = task.form
    are_clusters = isinstance(form, Classification) and set(form.labels) == set(RISING)
    if not are_clusters and not isinstance(form, MultipleChoice | OpenAnswer):
        raise InputError(
            f"zero-shot: no rule for {task.name}; expected a multiple-choice task, the classes {', '.join(RISING)}, or "
            "VQA's open answers"
        )


class _ZeroShotModel:
    """A zero-shot model for one task; `summary` collects settings, counts and notes for `result.json`."""

    def __init__(self, config: ZeroShotConfig, task: Task, run: Run) -> None:
        self.config = config
        self.task = task
        self.note = run.note
        self.match: Matcher
        device = run.state.device
        if config.image_settings.regions:
            settings = RegionSettings(**vars(config.image_settings), object_tags=config.object_tags)
            inputs = ImageSampleBuilder(settings)
            self.match = MatchHeadMatcher(config.model, inputs, device, config.max_length)
        else:
            cache = FeatureCache(cache_folder(config.teacher_cache, run.folder))
            self.match = CosineMatcher(config.model, config.image_settings.images, device, cache)
        self.summary: dict[str, Any] = {"truncated_tokens": 0, "measure": self.match.measure}

    def answers(self, split: str) -> EvaluationOutput:
        """Predictions and scores of one split."""
        all_examples = self.task.read(Path(self.config.data), split)
        examples = subsample(all_examples, self.config.most_questions)
        if len(examples) < len(all_examples):
            self.note(
                f"{split}: {len(examples):,} of {len(all_examples):,} examples, evenly spaced"
            )
        with prefix_errors(f"zero-shot, {split}"):
            form = self.task.form
            if isinstance(form, MultipleChoice):
                return self._predict_choices(split, examples)
            if isinstance(form, Classification):
                return self._predict_classes(split, examples, form)
            if isinstance(form, OpenAnswer) and isinstance(self.match, CosineMatcher):
                return self._predict_answers(split, examples, form, self.match)
            raise InputError(
                f"no rule for {self.task.name} with a match head; pass a CLIP and images"
            )

    def _predict_choices(self, split: str, examples: Sequence[Example]) -> EvaluationOutput:
        """Predict the choice with the highest similarity; ties go to the first."""
        rows = [
            row for example in examples for row in choice_queries(example, self.config.protocol)
        ]
        choices = len(rows) // len(examples)
        if any(len(example.choices) != choices for example in examples):
            raise InputError(f"examples have different numbers of choices, the first has {choices}")
        matched = self._match(split, rows)
        token_digests = [
            matched.token_digests[start : start + choices] for start in range(0, len(rows), choices)
        ]
        scores = equalise_identical_texts(matched.scores.reshape(-1, choices), token_digests)
        truncated = [int(tokens.sum()) for tokens in matched.truncated_tokens.reshape(-1, choices)]
        identical = sum(
            len(set(texts)) == 1 for one, texts in zip(truncated, token_digests, strict=True) if one
        )
        self._note_identical(split, identical, len(examples), "choices")
        return score_answers(self.task, examples, scores, require_finite(scores).argmax(1))

    def _predict_classes(
        self, split: str, examples: Sequence[Example], form: Classification
    ) -> EvaluationOutput:
        """Predict the class with the nearest of three cluster centres of the split's similarities; no label is used."""
        similarities = self.match.cluster_values(self._match(split, examples).scores)
        clusters = kmeans_1d(similarities, len(RISING))
        centres = dict(zip(RISING, clusters.centres.tolist(), strict=True))
        self.summary.setdefault("centroids", {})[split] = centres
        outputs = classify(similarities, clusters, form.labels)
        return score_answers(self.task, examples, outputs, form.predict(outputs))

    def _predict_answers(
        self, split: str, examples: Sequence[Example], form: OpenAnswer, match: CosineMatcher
    ) -> EvaluationOutput:
        """Predict the answer whose prompt has the highest similarity; equal questions share their prompts.

        Only one question's prompts are in memory at a time, and only the most likely answers are stored.
        """
        reads_question = "{question}" in self.config.prompt
        places: dict[str, list[int]] = {}
        for place, example in enumerate(examples):
            places.setdefault(example.text if reads_question else "", []).append(place)
        samples = match.with_features(examples, "clip_image")
        predictions = np.zeros(len(examples))
        outputs = np.zeros((len(examples), 1))
        likely: list[list[tuple[int, float]]] = [[] for _ in examples]
        identical = 0
        for question, members in places.items():
            table, row_of = self._prompt_embeddings(question, form.labels, match)
            identical += len(members) * (len(table) == 1 < len(row_of))
            for start in range(0, len(members), FORWARD_BATCH):
                indices = members[start : start + FORWARD_BATCH]
                images = np.stack([one.features["clip_image"] for one in samples.get(indices, ())])
                scores = require_finite(match.scale * images.astype(float) @ table.T)[:, row_of]
                predictions[indices] = form.predict(scores)
                best = predictions[indices].astype(int)
                outputs[indices] = np.take_along_axis(scores, best[:, None], 1)
                for place, answers in zip(indices, find_top_classes(scores), strict=True):
                    likely[place] = answers
        self._note_identical(split, identical, len(examples), "prompts")
        return score_answers(self.task, examples, outputs, predictions, likely)

    def _prompt_embeddings(
        self, question: str, answers: Sequence[str], match: CosineMatcher
    ) -> tuple[np.ndarray, list[int]]:
        """Embeddings (K, E) of a question's distinct prompts, and each answer's row in them.

        Prompts that are equal after truncation share a row, otherwise rounding would choose among them.
        """
        prompt = self.config.prompt.replace("{question}", question)
        rows = match.clip.tokenize([prompt.replace("{answer}", answer) for answer in answers])
        self.summary["truncated_tokens"] += sum(cut for _, cut in rows)
        different = {row.input_ids.tobytes(): row for row, _ in rows}
        number = {token_bytes: place for place, token_bytes in enumerate(different)}
        embedded = match.clip.embed_texts(list(different.values())).cpu().numpy().astype(float)
        return embedded, [number[row.input_ids.tobytes()] for row, _ in rows]

    def _match(self, split: str, rows: Sequence[Example]) -> MatchScores:
        matched = self.match(rows, split)
        self.summary["truncated_tokens"] += int(matched.truncated_tokens.sum())
        truncated = int((matched.truncated_tokens > 0).sum())
        if truncated:
            self.note(f"{split}: {truncated:,} of {len(rows):,} texts were truncated")
        return matched

    def _note_identical(self, split: str, identical: int, count: int, texts: str) -> None:
        self.summary.setdefault("cut_alike", {})[split] = identical
        if identical:
            alike = f"{identical:,} of {count:,} examples all {texts} are equal after truncation"
            self.note(f"{split}: in {alike}; the first one is predicted")


def choice_queries(example: Example, protocol: str) -> Iterator[Example]:
    """One example per choice, with its own id: question and choice (`iqa`), or the choice alone (`ia`)."""
    for number, row in enumerate(rows_of(example)):
        name = f"{example.id}/{number}"
        if protocol == "iqa":
            yield replace(row, id=name)
            continue
        (tags,) = example.choice_region_tags[number : number + 1] or ((),)
        alone = replace(row, id=name, text=example.choices[number], text_pair=None)
        yield replace(alone, region_tags=tags, choice_region_tags=(), part_starts=())


def classify(similarities: np.ndarray, clusters: Clusters, labels: Sequence[str]) -> np.ndarray:
    """Logits (N, 3) of the classes `labels` by distance to the cluster centres; the highest centre is entailment."""
    columns = [RISING.index(label) for label in labels]
    return clusters.logits(similarities)[:, columns]
