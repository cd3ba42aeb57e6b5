"""What a CLIP, or a pre-trained model's match head, answers without any training on the task (CLIP-TD, Section 4).

Section 4.1: VCR's choice is the one whose text matches the image best, read as question + answer (IQA) or as answer
alone (IA), and the same for rationales. Section 4.2: SNLI-VE's classes are three clusters of the similarities of image
and hypothesis. For VQA the paper lists a zero-shot setting and gives no protocol.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from groundling.core.batch import Example
from groundling.core.errors import InputError, prefix_errors
from groundling.core.metrics import is_degenerate
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.core.registry import resolve
from groundling.data.kmeans import Clusters, kmeans_1d
from groundling.data.regions.inputs import UNTIED, RegionInputs
from groundling.data.samples import rows_of, thinned
from groundling.prediction.similarity import (
    BATCH,
    CosineMatcher,
    Matcher,
    MatchHeadMatcher,
    MatchScores,
    equalise_identical_texts,
    require_finite,
)
from groundling.runs.folder import disk_errors, write_json
from groundling.runs.progress import print_notes
from groundling.runs.run import Run
from groundling.settings.fields import refuse_settings
from groundling.settings.input_settings import RegionSettings
from groundling.studies.clip_td.commands import ZeroShotConfig
from groundling.tasks import Task
from groundling.tasks.splits import with_extra_splits
from groundling.teachers.feature_cache import FeatureCache, cache_folder
from groundling.training.evaluation import EvaluationOutput, find_top_classes, write_predictions

ZeroShotProtocol = Literal["iqa", "ia"]
"""Whether an image is compared with question and choice, or with the choice alone; of rationales IQR and IR."""
RISING = ("contradiction", "neutral", "entailment")
"""Classes in the order of their clusters' centres; the paper does not say which cluster is which class."""
SEED = "seed-0"
"""Where the answers are: nothing is drawn, so it is a run of one seed, which `vcr`, `ensemble` and `verdict` read."""
ZeroShotKind = Literal["choices", "classes", "answers"]
USES: dict[str, ZeroShotKind] = {"protocol": "choices", "fit": "classes", "prompt": "answers"}
"""Settings that only one kind of task reads."""


def zero_shot(config: ZeroShotConfig, run: Run) -> dict[str, Any]:
    """Answer a task's splits as `finetune` would after training; scores in `result.json`, answers in `seed-0`.

    Choices by the best match, SNLI-VE's classes by exact k-means of the matches, answers by prompts. Of several
    processes each answers everything.

    Raises:
        InputError: Settings do not fit the task, an image is missing, the model has no head for it, or too few
            similarities differ to make clusters of.
    """
    folder = Path(config.data)
    task = resolve("tasks", Task, config.task).with_answers_of(folder)
    kind = _kind(task)
    _check(config, task, kind)
    task = with_extra_splits(task, config.extra_eval)
    answered = [config.split] if config.split else list(task.dev)
    read = [*answered, *([task.train] if config.fit_split == "train" else [])]  # clusters are of it
    inputs = _looks_at(config, task, read)  # a mistake in --regions is told before any data is read
    work = _ZeroShotModel(config, task, kind, run, inputs, read)
    place = run.folder / SEED
    with disk_errors(place):
        place.mkdir(exist_ok=True)
    scores: dict[str, dict[str, float]] = {}
    for split in answered:
        answers = work.answers(split)
        if run.state.is_main_process:
            write_predictions(answers, task, split, place)
        if answers.labels is not None:
            scores[split] = _scored(answers, task, split, folder, not config.most_questions)
    done = {"seed": 0, "task": config.task, "metrics": [metric.name for metric in task.metrics]}
    done |= {"splits": list(scores), "scores": scores}
    if run.state.is_main_process:
        write_json(place / "result.json", done)
    result = {"task": task.name, "version": task.version, "model": config.model, "scores": scores}
    return result | work.told


def _kind(task: Task) -> ZeroShotKind:
    """What is asked; raises InputError where a similarity of text and image decides nothing."""
    if isinstance(task.form, MultipleChoice):
        return "choices"
    if isinstance(task.form, OpenAnswer):
        return "answers"
    if isinstance(task.form, Classification) and set(task.form.labels) == set(RISING):
        return "classes"
    raise InputError(
        f"zero-shot: no rule makes answers to {task.name} of similarities; there are rules for choices, for "
        f"{', '.join(RISING)}, and for VQA's answers"
    )


def _check(config: ZeroShotConfig, task: Task, kind: ZeroShotKind) -> None:
    """Raises InputError for a setting that this kind of task does not read."""
    given = asdict(config)
    unset = asdict(ZeroShotConfig())
    for name, reader in USES.items():
        if reader != kind:
            other = {f"--{name}": given[name] != unset[name]}
            refuse_settings(other, f"{task.name} does not read it, only tasks of {reader} do")
    if kind == "answers" and config.shown.regions:
        raise InputError(
            f"zero-shot: {task.name} has {task.form.head_width:,} answers, and a match head would read the image once for "
            "each of them; pass a CLIP and --images, without --regions"
        )
    if config.shown.regions:
        cache = {"--teacher-cache": config.teacher_cache}
        refuse_settings(cache, "is for features of a CLIP; --regions has none")


def _looks_at(config: ZeroShotConfig, task: Task, read: Sequence[str]) -> RegionInputs | None:
    """The regions of every split that is `read`, whose stores are opened; None without --regions."""
    if not config.shown.regions:
        return None
    settings = RegionSettings(**vars(config.shown), object_tags=config.object_tags)
    names = (task.train, *task.dev, *task.test)
    inputs = RegionInputs(settings, names, f"split of {task.name}", called=UNTIED)
    for split in read:
        inputs.stores(split)
    return inputs


def _scored(
    answers: EvaluationOutput, task: Task, split: str, folder: Path, is_whole: bool
) -> dict[str, float]:
    """The task's metrics and, of a whole split, the benchmark's own scores; one answer to all is marked."""
    scores = dict(answers.metrics)
    if is_whole:
        scores |= task.official(folder, split, answers.official_ids, answers.predictions)
    if is_degenerate(answers.predictions, answers.labels):
        scores["constant"] = 1.0
    return scores


class _ZeroShotModel:
    """A model at a task; what is to be told of the answers beside their scores gathers in `told`."""

    def __init__(
        self,
        config: ZeroShotConfig,
        task: Task,
        kind: ZeroShotKind,
        run: Run,
        inputs: RegionInputs | None,
        read: Sequence[str],
    ) -> None:
        self.config = config
        self.task = task
        self.fitted: Clusters | None = None
        self.told: dict[str, Any] = {"notes": [], "dropped_pieces": 0}
        self.match: Matcher
        if inputs is not None:
            device = run.state.device
            self.match = MatchHeadMatcher(config.model, inputs, read, device, config.max_length)
        else:
            cache = FeatureCache(cache_folder(config.teacher_cache, run.folder))
            self.match = CosineMatcher(config.model, config.shown.images, run.state.device, cache)
        self.told["measure"] = self.match.measure
        if kind == "choices":
            self.told["protocol"] = config.protocol

    def answers(self, split: str) -> EvaluationOutput:
        """What it answers to one split."""
        every = self.task.read(Path(self.config.data), split)
        examples = thinned(every, self.config.most_questions)
        if len(examples) < len(every):
            self._note(f"{split}: {len(examples):,} of {len(every):,} examples, evenly spaced")
        with prefix_errors(f"zero-shot, {split}"):
            form = self.task.form
            if isinstance(form, MultipleChoice):
                return self._chosen(split, examples)
            if isinstance(form, Classification):
                return self._classified(split, examples, form)
            if isinstance(form, OpenAnswer) and isinstance(self.match, CosineMatcher):
                return self._prompted(split, examples, form, self.match)
            raise InputError(f"no rule makes answers to {self.task.name} of similarities")

    def _note(self, note: str) -> None:
        self.told["notes"].append(note)
        print_notes([note])

    def _chosen(self, split: str, examples: Sequence[Example]) -> EvaluationOutput:
        """The choice that fits the image best; of equals the first."""
        rows = [
            row for example in examples for row in choice_queries(example, self.config.protocol)
        ]
        choices = len(rows) // len(examples)
        if any(len(example.choices) != choices for example in examples):
            raise InputError(f"examples differ in how many choices they have, one has {choices}")
        found = self._matched(split, rows)
        read = [
            found.token_digests[start : start + choices] for start in range(0, len(rows), choices)
        ]
        scores = equalise_identical_texts(found.scores.reshape(-1, choices), read)
        cut = [int(pieces.sum()) for pieces in found.truncated_tokens.reshape(-1, choices)]
        alike = sum(len(set(texts)) == 1 for one, texts in zip(cut, read, strict=True) if one)
        self._tell_alike(split, alike, len(examples), "choices")
        return self._scores(examples, scores, choose(scores))

    def _classified(
        self, split: str, examples: Sequence[Example], form: Classification
    ) -> EvaluationOutput:
        """The class whose centre is nearest, of three clusters of the similarities; no label is read."""
        found = self.match.cluster_values(self._matched(split, examples).scores)
        clusters = self._clusters(found)
        centres = dict(zip(RISING, clusters.centres.tolist(), strict=True))
        self.told.setdefault("centroids", {})[split] = centres
        outputs = classify(found, clusters, form.labels)
        return self._scores(examples, outputs, form.predict(outputs))

    def _clusters(self, found: np.ndarray) -> Clusters:
        """Those of the similarities that were found, or of the training split's, which are the same for all splits."""
        if self.config.fit_split == "split":
            told = "of the similarities of the split that is answered, without its labels (transductive)"
            self.told["clusters"] = told
            return kmeans_1d(found, len(RISING))
        self.told["clusters"] = "of the training split's similarities, without its labels"
        if self.fitted is None:
            train = self.task.read(Path(self.config.data), self.task.train)
            fitted = self._matched(self.task.train, train).scores
            self.fitted = kmeans_1d(self.match.cluster_values(fitted), len(RISING))
        return self.fitted

    def _prompted(
        self, split: str, examples: Sequence[Example], form: OpenAnswer, match: CosineMatcher
    ) -> EvaluationOutput:
        """The answer whose prompt fits the image best; equal questions share their prompts.

        One question's prompts are in memory at a time, and of all answers' scores the likeliest are kept.
        """
        asks = "{question}" in self.config.prompt
        places: dict[str, list[int]] = {}
        for place, example in enumerate(examples):
            places.setdefault(example.text if asks else "", []).append(place)
        samples = match.with_features(examples, "clip_image")
        predictions = np.zeros(len(examples))
        outputs = np.zeros((len(examples), 1))
        likely: list[list[tuple[int, float]]] = [[] for _ in examples]
        alike = 0
        for question, own in places.items():
            table, row_of = self._table(question, form.labels, match)
            alike += len(own) * (len(table) == 1 < len(row_of))
            for start in range(0, len(own), BATCH):
                some = own[start : start + BATCH]
                images = np.stack([one.features["clip_image"] for one in samples.get(some, ())])
                scores = require_finite(match.scale * images.astype(float) @ table.T)[:, row_of]
                predictions[some] = form.predict(scores)
                best = predictions[some].astype(int)
                outputs[some] = np.take_along_axis(scores, best[:, None], 1)
                for place, answers in zip(some, find_top_classes(scores), strict=True):
                    likely[place] = answers
        self._tell_alike(split, alike, len(examples), "prompts")
        return self._scores(examples, outputs, predictions, likely)

    def _table(
        self, question: str, answers: Sequence[str], match: CosineMatcher
    ) -> tuple[np.ndarray, list[int]]:
        """Embeddings (K, E) of a question's prompts, those that are read alike once, and each answer's row of them.

        Otherwise rounding would choose among prompts that differ only in what was cut off.
        """
        asked_so = self.config.prompt.replace("{question}", question)
        rows = match.clip.tokenize([asked_so.replace("{answer}", answer) for answer in answers])
        self.told["dropped_pieces"] += sum(cut for _, cut in rows)
        different = {row.input_ids.tobytes(): row for row, _ in rows}
        number = {read: place for place, read in enumerate(different)}
        embedded = match.clip.embed_texts(list(different.values())).cpu().numpy().astype(float)
        return embedded, [number[row.input_ids.tobytes()] for row, _ in rows]

    def _matched(self, split: str, rows: Sequence[Example]) -> MatchScores:
        found = self.match(rows, split)
        self.told["dropped_pieces"] += int(found.truncated_tokens.sum())
        cut = int((found.truncated_tokens > 0).sum())
        if cut:
            self._note(f"{split}: {cut:,} of {len(rows):,} texts were cut at their end")
        return found

    def _tell_alike(self, split: str, alike: int, count: int, what: str) -> None:
        self.told.setdefault("cut_alike", {})[split] = alike
        if alike:
            self._note(
                f"{split}: of {alike:,} of {count:,} examples all {what} were cut to the same text; the first is taken"
            )

    def _scores(
        self,
        examples: Sequence[Example],
        outputs: np.ndarray,
        predictions: np.ndarray,
        likely: Sequence[Sequence[tuple[int, float]]] = (),
    ) -> EvaluationOutput:
        labels = None
        metrics: dict[str, float] = {}
        if examples[0].label is not None:
            labels = np.array([example.label for example in examples], float)
            metrics = self.task.score(predictions, labels)
        ids = [example.id for example in examples]
        officials = [example.official_id for example in examples]
        return EvaluationOutput(ids, outputs, predictions, labels, metrics, officials, likely)


def choice_queries(example: Example, protocol: ZeroShotProtocol) -> Iterator[Example]:
    """One row for each choice of an example, told apart by their ids: its question and the choice, or that alone."""
    for number, row in enumerate(rows_of(example)):
        name = f"{example.id}/{number}"
        if protocol == "iqa":
            yield replace(row, id=name)
            continue
        (tags,) = example.choice_region_tags[number : number + 1] or ((),)
        alone = replace(row, id=name, text=example.choices[number], text_pair=None)
        yield replace(alone, region_tags=tags, choice_region_tags=(), part_starts=())


def classify(similarities: np.ndarray, clusters: Clusters, labels: Sequence[str]) -> np.ndarray:
    """Logits (N, 3) of the classes `labels`, the best one's centre being the nearest: the highest is entailment."""
    columns = [RISING.index(label) for label in labels]
    return clusters.logits(similarities)[:, columns]


def choose(similarities: np.ndarray) -> np.ndarray:
    """The best choice (N,) of similarities (N, C), the first of equals; raises InputError where one is not finite."""
    return require_finite(similarities).argmax(1)
