"""Ask a text encoder what it knows of a world's nouns: linear probes, a readout, and questions it is fine-tuned on.

Linear probes ask whether nouns' own states tell their looks: fitted on train nouns, their strength chosen on dev nouns.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.run import one_run
from groundling.core.batch import Example, collate, require
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset
from groundling.data.tables import read_header, read_tsv
from groundling.data.text.words import word_spans
from groundling.models.formats import Encoder
from groundling.runs.run import Run, RunPart
from groundling.settings.training import TrainConfig
from groundling.studies.worlds.commands import ProbeConfig
from groundling.studies.worlds.tasks import ODD, questions_in
from groundling.tasks import Task
from groundling.training.batch_sampler import check_batch
from groundling.vision_language.loading import load_encoder

LEARNED = 0.98
"""A probe has learned something if its training loss ends below this share of what guessing costs."""
READOUT = "readout/odd"
"""The odd one out, told by the linear probes of the nouns' looks."""
SPLITS = ("train", "dev", "test")

ExamplesBySplit = Mapping[str, Sequence[Example]]
"""A question's examples by split."""
FIXED = ("noun", "split", "sentence")
"""Columns of `attribute.tsv` that are no attribute; any other is one."""
TEXTUAL = "category"
"""The attribute that is no look: a rendered world's text tells it, and its images do not."""
STRENGTHS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Ridge penalties tried on the dev nouns."""
AttributeRows = Sequence[dict[str, str]]
"""Rows of `attribute.tsv`, one per noun."""


def probe(config: ProbeConfig, training: TrainConfig, run: Run) -> dict[str, Any]:
    """Accuracy by probe on dev and test nouns, written to `result.json`; the encoder itself stays as it is.

    Linear probes and the readout are fixed by the encoder's states. A question is fine-tuned on `config.seeds` times:
    its accuracies are means over the seeds that learned anything, and None if none did. Raises InputError if the
    folder holds nothing to ask, or something that cannot be asked.
    """
    world = Path(config.data)
    tasks, rows = _probe_inputs(config, world)
    # Everything is read before anything is trained: a mistake in the last file is told at once.
    examples = {task.name: {split: task.read(world, split) for split in SPLITS} for task in tasks}
    for task in tasks:
        if not training.batch_tokens:
            count = len(examples[task.name][task.train])
            check_batch(task.file(world, task.train), count, training.batch)
    result: dict[str, Any] = {}
    if rows:
        result |= _run_linear_probes(config, rows, examples.get(ODD.name), world)
    for task in tasks:
        result[task.name] = _run_fine_tuned_probes(task, examples[task.name], config, training, run)
    return result


def _probe_inputs(config: ProbeConfig, world: Path) -> tuple[list[Task], list[dict[str, str]]]:
    """The questions of a folder, and its nouns with their attributes; raises InputError if it has neither."""
    tasks = questions_in(world, config.questions)
    has_nouns = (world / "probes" / "attribute.tsv").is_file()
    if not tasks and not has_nouns:
        raise InputError(
            f"{config.data}: nothing to ask; expected a folder `probes` with attribute.tsv or NAME_train.tsv, "
            "NAME_dev.tsv and NAME_test.tsv (`groundling data make-world` writes one)"
        )
    if config.columns and not has_nouns:
        raise InputError(f"--columns: {world / 'probes'} holds no attribute.tsv")
    return tasks, read_nouns(world, config.columns) if has_nouns else []


def _run_linear_probes(
    config: ProbeConfig, rows: list[dict[str, str]], odd: ExamplesBySplit | None, world: Path
) -> dict[str, Any]:
    """What frozen states tell: an attribute each, and from all looks together the odd one out."""
    states = noun_states(load_encoder(config.model, config.kind), rows, config.max_length)
    probes = attributes_of(rows)
    result: dict[str, Any] = {one.name: one.score(states, rows) for one in probes}
    looks = [one for one in probes if one.column != TEXTUAL]
    if odd is None or not looks:
        return result
    shares = [one.shares(states, rows) for one in looks]
    names = [row["noun"] for row in rows]
    scores = {
        split: score_readout(shares, names, odd[split], ODD.file(world, split))
        for split in ("dev", "test")
    }
    return result | {READOUT: {**scores, "chance": _chance(odd["test"])}}


def _run_fine_tuned_probes(
    task: Task, splits: ExamplesBySplit, config: ProbeConfig, training: TrainConfig, run: Run
) -> dict[str, Any]:
    """Accuracy of a question's fine-tuned probes, seed by seed, and the mean of those that learned something."""
    # Tuned, only the train nouns' word embeddings would move, and held-out nouns' lag.
    tuning = FinetuneConfig(
        model=config.model,
        data=config.data,
        max_length=config.max_length,
        freeze_word_embeddings=True,
        model_format=config.kind,
        save_model=False,
    )
    runs = []
    seeds = range(training.seed, training.seed + config.seeds)
    for seed in seeds:
        place = f"{task.name.removeprefix('world/')}/seed-{seed}"

        def one_seed(part: RunPart, seed: int = seed) -> dict[str, Any]:
            student = load_encoder(config.model, config.kind)
            return one_run(student, task, splits, replace(training, seed=seed), part, tuning)

        runs.append(run.part(place, one_seed, lambda done: _summary([done], splits)))
    return {"chance": _chance(splits["test"]), "seeds": list(seeds), **_summary(runs, splits)}


def _summary(runs: Sequence[Mapping[str, Any]], splits: ExamplesBySplit) -> dict[str, Any]:
    """Every seed's accuracies and whether it learned something, and the mean of those that did."""
    losses = [run["train_metrics"]["loss"] for run in runs]
    guessing = _guessing_loss(splits["train"])
    learned = [loss < LEARNED * guessing for loss in losses]
    scores = {
        split: [run["scores"][split]["accuracy"] for run in runs] for split in ("dev", "test")
    }
    told: dict[str, Any] = {}
    for split, values in scores.items():
        counted = [value for value, has_learned in zip(values, learned, strict=True) if has_learned]
        told[split] = mean(counted) if counted else None
        told[f"{split}_sd"] = stdev(counted) if len(counted) > 1 else None
    told |= {"scores": scores, "losses": losses, "guessing_loss": guessing, "learned": learned}
    return told


def _chance(examples: Sequence[Example]) -> float:
    """The accuracy of the best single answer."""
    return max(Counter(example.label for example in examples).values()) / len(examples)


def _guessing_loss(examples: Sequence[Example]) -> float:
    """Cross-entropy, nats, of who knows the labels' shares and nothing else; .693 for two equally frequent ones."""
    counts = Counter(example.label for example in examples).values()
    return -sum(count / len(examples) * log(count / len(examples)) for count in counts)


if TYPE_CHECKING:
    from sklearn.linear_model import RidgeClassifier


# -- linear probes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearProbe:
    """A question put to frozen states."""

    name: str
    """By which it is found, `linear/...`."""
    column: str
    """Of `attribute.tsv`: what is asked for."""
    version: int = 1
    """Raised whenever scores stop being comparable with earlier ones."""

    def score(self, features: np.ndarray, rows: AttributeRows) -> dict[str, float]:
        """Accuracy on dev and test nouns, and what the best single answer gets on test nouns.

        Args:
            features: (nouns, D).
            rows: of `attribute.tsv`, one per noun.
        """
        split, labels = _splits_and_labels(rows, self.column)
        said = _fitted(features, split, labels).predict
        scaled = _scaled(features, split)
        most = Counter(labels[split == "test"].tolist()).most_common(1)[0][1]
        accuracy = {}
        for part in ("dev", "test"):
            asked = split == part
            accuracy[part] = float((said(scaled[asked]) == labels[asked]).mean())
        return accuracy | {"chance": most / int((split == "test").sum())}

    def shares(self, features: np.ndarray, rows: AttributeRows) -> np.ndarray:
        """How much of each value is read from each noun's state, (nouns, values); the sum over values is 1.

        Ridge regression to indicators keeps their sum, so no share has to be scaled; some fall below 0.
        """
        split, labels = _splits_and_labels(rows, self.column)
        scores = _fitted(features, split, labels).decision_function(_scaled(features, split))
        indicators = (scores + 1) / 2  # scikit-learn regresses to -1 and 1
        if indicators.ndim == 1:  # of two values, it tells the second
            indicators = np.stack([1 - indicators, indicators], axis=1)
        return indicators


def _splits_and_labels(rows: AttributeRows, column: str) -> tuple[np.ndarray, np.ndarray]:
    return np.array([row["split"] for row in rows]), np.array([row[column] for row in rows])


def _scaled(features: np.ndarray, split: np.ndarray) -> np.ndarray:
    from sklearn.preprocessing import StandardScaler  # slow to load, as is all of scikit-learn

    scaler = StandardScaler()
    scaler.fit(features[split == "train"])
    return np.asarray(scaler.transform(features))


def _fitted(features: np.ndarray, split: np.ndarray, labels: np.ndarray) -> RidgeClassifier:
    """The classifier of the strength that does best on dev nouns."""
    from sklearn.linear_model import RidgeClassifier

    scaled = _scaled(features, split)
    tried = []
    for strength in STRENGTHS:
        classifier = RidgeClassifier(alpha=strength)
        classifier.fit(scaled[split == "train"], labels[split == "train"])
        tried.append(classifier)
    asked = split == "dev"
    return max(tried, key=lambda one: float(one.score(scaled[asked], labels[asked])))


def score_readout(
    shares: Sequence[np.ndarray], names: Sequence[str], examples: Sequence[Example], path: Path
) -> float:
    """How often the odd one out is told by what linear probes read of the nouns; nothing else is fitted.

    A question names three nouns: is the first one more like the second than like the third? Two nouns are as alike as
    the number of attributes that they are read to share: per attribute the sum over values of the product of their
    shares.

    Args:
        shares: per attribute (nouns, values), see `LinearProbe.shares`.
        names: the nouns, in the order of `shares`.
        examples: sentences that name three of them, label 1 if the answer is yes.
        path: of the examples, for messages.

    Raises:
        InputError: A sentence does not name three different nouns.
    """
    alike = sum(one @ one.T for one in shares)
    number = {name: place for place, name in enumerate(names)}
    longest_first = sorted(map(re.escape, names), key=len, reverse=True)
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")
    right = []
    for example in examples:
        named = pattern.findall(example.text)
        if len(set(named)) != 3 or len(named) != 3:
            raise InputError(
                f"{path}, index {example.official_id}: {example.text!r} names {len(named)} nouns of attribute.tsv, "
                "expected three different ones; call a file of other questions by another name than `odd`"
            )
        asked, first, second = (number[name] for name in named)
        right.append((alike[asked, first] > alike[asked, second]) == bool(example.label))
    return float(np.mean(right))


# -- attribute.tsv -----------------------------------------------------------------------------------------------------


def read_nouns(folder: Path, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Rows of a folder's `probes/attribute.tsv`: noun, split, the sentence that holds the noun, and its attributes.

    `columns` are the attributes that are read; without them all. Raises InputError for what cannot be asked.
    """
    path = Path(folder) / "probes" / "attribute.tsv"
    header = read_header(path)
    asked = list(columns) or [name for name in header if name not in FIXED]
    if not asked:
        raise InputError(
            f"{path}, line 1: no attribute; expected a column beside {', '.join(FIXED)}"
        )
    rows = []
    seen: set[str] = set()
    for line, row in read_tsv(path, (*FIXED, *asked)):
        where = f"{path}, line {line}"
        if row["split"] not in SPLITS:
            raise InputError(f"{where}: split {row['split']!r}, expected {', '.join(SPLITS)}")
        if not _words_of(row["sentence"], row["noun"]):
            raise InputError(f"{where}: the sentence {row['sentence']!r} lacks {row['noun']!r}")
        if row["noun"] in seen:
            raise InputError(f"{where}: the noun {row['noun']!r} is there twice")
        for column in asked:
            if not row[column].strip():
                raise InputError(
                    f"{where}: no value of {column!r}; give one, or name other columns with --columns"
                )
        seen.add(row["noun"])
        rows.append(row)
    for split in SPLITS:
        if all(row["split"] != split for row in rows):
            raise InputError(
                f"{path}: no noun of split {split}; expected some of each of {', '.join(SPLITS)}"
            )
    for column in asked:
        _check_values(path, rows, column)
    return rows


def _check_values(path: Path, rows: AttributeRows, column: str) -> None:
    """Raises InputError for an attribute that nothing can be learned of."""
    known = {row[column] for row in rows if row["split"] == "train"}
    others = {row[column] for row in rows if row["split"] != "train"}
    wrong = ""
    if len(known) < 2:
        wrong = "all train nouns have the same value"
    elif known.isdisjoint(others):
        wrong = "no dev or test noun has a value that a train noun has"
    if wrong:
        raise InputError(
            f"{path}: column {column!r} cannot be asked, {wrong}; name others with --columns"
        )


def attributes_of(rows: AttributeRows) -> list[LinearProbe]:
    """A linear probe for each attribute of the nouns."""
    return [LinearProbe(f"linear/{name}", name) for name in rows[0] if name not in FIXED]


def _words_of(sentence: str, noun: str) -> range:
    """Numbers of the words of a sentence that are the noun's, where it stands first; empty if it is not there."""
    words = [sentence[start:stop] for start, stop in word_spans(sentence)]
    wanted = [noun[start:stop] for start, stop in word_spans(noun)]
    for start in range(len(words) - len(wanted) + 1):
        if words[start : start + len(wanted)] == wanted:
            return range(start, start + len(wanted))
    return range(0)


@torch.no_grad()
def noun_states(model: Encoder, rows: AttributeRows, max_length: int = 32) -> np.ndarray:
    """The model's last states at each noun, averaged over its pieces: (nouns, D).

    Raises InputError for a model without states of the text's pieces, or a noun beyond `max_length`.
    """
    model.eval()
    examples = [Example(row["noun"], row["sentence"]) for row in rows]
    samples = TextDataset(examples, *model.inputs(max_length))
    batch = collate(samples.get(range(len(rows))))
    tokens = require(batch.text, "text", "the linear probe")
    device = next(model.parameters()).device
    encoded = model(batch.to(device))
    states = require(encoded.text, "text", "the linear probe").cpu()
    at_nouns = []
    for number, row in enumerate(rows):
        words = _words_of(row["sentence"], row["noun"])
        pieces = torch.isin(tokens.word_ids[number], torch.tensor(list(words)))
        if not pieces.any():
            raise InputError(
                f"--max-length {max_length}: cuts off {row['noun']!r} in {row['sentence']!r}"
            )
        at_nouns.append(states[number, pieces].mean(0))
    return torch.stack(at_nouns).numpy()
