"""Score an encoder's knowledge of visual attributes: Memory Colors, CoDa, ViComTe, worlds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.spatial.distance import jensenshannon
from scipy.special import softmax
from scipy.stats import kendalltau, rankdata
from sklearn.linear_model import RidgeCV
from sklearn.metrics import average_precision_score
from sklearn.model_selection import PredefinedSplit, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from groundling.core.batch import require
from groundling.core.errors import InputError
from groundling.core.metrics import SPEARMAN
from groundling.core.resampling import bootstrap_sums, interval
from groundling.core.rng import generator
from groundling.runs.folder import write_json_lines
from groundling.runs.progress import end_dry_run
from groundling.runs.run import Run
from groundling.studies.knowledge import JsonObject, describe_set
from groundling.studies.knowledge.commands import ProbeFactsConfig
from groundling.studies.knowledge.probing_modes import (
    OptionScores,
    ProbeNotes,
    score_by_embedding,
    score_by_fill_mask,
    score_by_stroop,
    word_states,
)
from groundling.studies.knowledge.visual_facts import VisualFact, open_facts

LEAST = (2, 5, 10, 20, 30)
"""Production frequencies from which a label of feature norms counts as right, as in the release."""

# The mode linear: can a linear map predict people's answers about a noun from its state?

PENALTIES = np.logspace(0, 5, 11)
"""Strengths of regularisation; selected for each fold by leave-one-out on its training nouns."""

FOLDS = 10
"""Number of folds; with fewer nouns, each noun is a fold."""

DRAWS = 1000
"""Bootstrap samples of nouns."""

MIN_NORM = 1e-9
"""Vectors shorter than this count as zero vectors."""


FactScores = dict[str, np.ndarray]
"""Scores of F facts by measure, (F,); NaN where undefined."""


@dataclass(frozen=True)
class HumanAnswerDistributions:
    """The nouns of one relation, with people's answers."""

    names: tuple[str, ...]
    """N distinct nouns."""
    shares: np.ndarray
    """(N, O) shares of all answers that occur, the mean over a noun's facts; each row sums to 1."""
    of_fact: np.ndarray
    """(F,) int64: index of each fact's noun."""
    places: tuple[np.ndarray, ...]
    """Of each fact: indices of its options among all, (its options,) int64."""


def collect_nouns(facts: Sequence[VisualFact]) -> HumanAnswerDistributions:
    """The distinct nouns of one relation's facts, ignoring case."""
    number: dict[str, int] = {}
    options: dict[str, int] = {}
    names: list[str] = []
    for fact in facts:
        key = fact.subject.lower()
        if key not in number:
            number[key] = len(names)
            names.append(fact.subject)
        for option in fact.options:
            options.setdefault(option, len(options))
    of_fact = np.array([number[fact.subject.lower()] for fact in facts])
    places = []
    for fact in facts:
        places.append(np.array([options[option] for option in fact.options]))
    shares = np.zeros((len(names), len(options)))
    for fact, noun, place in zip(facts, of_fact, places, strict=True):
        shares[noun, place] += fact.target
    shares /= shares.sum(1, keepdims=True)
    return HumanAnswerDistributions(tuple(names), shares, of_fact, tuple(places))


def assign_folds(nouns: Sequence[str], folds: int, seed: int) -> np.ndarray:
    """The fold of each noun, (N,) int64, drawn by the seed; sizes differ by at most one noun.

    With fewer nouns than `folds`, each noun is a fold. Raises InputError for fewer than three nouns.
    """
    count = len(nouns)
    if count < 3:
        raise InputError(
            f"modes=linear: expected 3 or more nouns per relation, found {count}; leave the mode out"
        )
    places = np.empty(count, np.int64)
    drawn = generator(seed, "linear", "folds").permutation(count)
    places[drawn] = np.arange(count) % min(folds, count)
    return places


def predict_by_ridge(
    states: np.ndarray, shares: np.ndarray, fold: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Ridge regression from states (N, D) to roots of shares (N, O), cross-validated by fold (N,).

    Square roots, as in the Hellinger distance, reduce the weight of frequent answers. Returns the predicted roots (N,
    O), which may be negative, and the correlation (N,) of deviations over answers. A deviation is the difference
    between a noun's roots (predicted or people's) and the mean of the fold's training nouns; their correlation is 0 for
    a prediction of the mean, and NaN for a noun whose answers are that mean.
    """
    roots = np.sqrt(shares)
    predicted = cross_validated_ridge(states, roots, fold)
    mean = np.empty_like(roots)
    for left_out in np.unique(fold):
        test = fold == left_out
        mean[test] = roots[~test].mean(0)
    return predicted, _correlations(predicted - mean, roots - mean)


def cross_validated_ridge(
    states: np.ndarray, values: np.ndarray, fold: np.ndarray, alone: bool = False
) -> np.ndarray:
    """Predictions (N, O) of values (N, O) from states (N, D), each fold's from the other folds (N,).

    The penalty is selected by leave-one-out on the training rows: one for all values, or with `alone` one for each.
    """
    model = make_pipeline(StandardScaler(), RidgeCV(PENALTIES, alpha_per_target=alone))
    predicted = cross_val_predict(model, states, values, cv=PredefinedSplit(fold))
    return np.asarray(predicted.reshape(values.shape))


def _correlations(predicted: np.ndarray, true: np.ndarray) -> np.ndarray:
    """Pearson's correlation of rows (N,); 0 for a constant predicted row, NaN for a true one."""
    predicted = predicted - predicted.mean(1, keepdims=True)
    true = true - true.mean(1, keepdims=True)
    length = np.linalg.norm(predicted, axis=1)
    true_length = np.linalg.norm(true, axis=1)
    product = (predicted * true).sum(1)
    is_known = true_length > MIN_NORM
    correlations = np.zeros(len(true))
    defined = (length > MIN_NORM) & is_known
    np.divide(product, length * true_length, out=correlations, where=defined)
    return np.where(is_known, correlations, np.nan)


def score_nouns(
    nouns: HumanAnswerDistributions, facts: Sequence[VisualFact], roots: np.ndarray
) -> dict[str, np.ndarray]:
    """Scores of each noun, (N,), from predicted roots (N, O): `spearman` and `accuracy`.

    `spearman` is the rank correlation of the shares, which predicting the mean inflates; it is left out if facts differ
    in their options, as for size and co-occurrence. `accuracy` is the accuracy of each fact among its own options.
    """
    right = np.zeros(len(nouns.names))
    counts = np.bincount(nouns.of_fact, minlength=len(right))
    for fact, noun, place in zip(facts, nouns.of_fact, nouns.places, strict=True):
        right[noun] += _best(fact)[roots[noun, place].argmax()]
    values = {}
    if _have_same_options(facts):
        ranks = rankdata(roots, axis=1)
        values["spearman"] = _correlations(ranks, rankdata(nouns.shares, axis=1))
    return values | {"accuracy": right / counts}


def _with_interval(values: np.ndarray, seed: int) -> JsonObject | None:
    """The mean of values (N,), NaN ignored, and its bootstrap interval over nouns; None if all are NaN."""
    defined = values[~np.isnan(values)]
    if not len(defined):
        return None
    rng = generator(seed, "linear", "bootstrap")
    ends = interval(bootstrap_sums(defined, rng, DRAWS) / len(defined)).tolist()
    return {"mean": float(defined.mean()), "interval": ends, "nouns": len(defined)}


def compare_states(
    facts: Sequence[VisualFact],
    states: Mapping[str, Mapping[str, np.ndarray]],
    folds: int,
    seed: int,
) -> tuple[JsonObject, list[np.ndarray], FactScores]:
    """Scores of one relation's facts for several kinds of `states`; predictions and fact scores of the first kind.

    `states` holds the state (D,) of every noun by kind. A control is added, the kind `random`: normal random
    numbers, drawn for each noun, of the first kind's width.
    """
    nouns = collect_nouns(facts)
    fold = assign_folds(nouns.names, folds, seed)
    first, *_ = states
    features = {}
    for kind, of_noun in states.items():
        features[kind] = np.stack([of_noun[name] for name in nouns.names])
    width = features[first].shape[1]
    draws = [generator(seed, "linear", name).standard_normal(width) for name in nouns.names]
    features["random"] = np.stack(draws)
    predicted: dict[str, np.ndarray] = {}
    scores: dict[str, FactScores] = {}
    rows: JsonObject = {}
    for kind, of_kind in features.items():
        predicted[kind], deviations = predict_by_ridge(of_kind, nouns.shares, fold)
        scores[kind] = {"deviations": deviations, **score_nouns(nouns, facts, predicted[kind])}
        means = {name: _with_interval(values, seed) for name, values in scores[kind].items()}
        rows[kind] = {"width": of_kind.shape[1], **means}
    places = zip(nouns.of_fact, nouns.places, strict=True)
    outputs = [predicted[first][noun, place] for noun, place in places]
    of_facts = {name: values[nouns.of_fact] for name, values in scores[first].items()}
    summary = {
        "facts": len(facts),
        "nouns": len(nouns.names),
        "options": nouns.shares.shape[1],
        "folds": int(fold.max()) + 1,
        "from": rows,
    }
    return summary, outputs, of_facts


ALL = "all"
"""The group of all of a relation's facts."""
NAN = float("nan")


class ProbeScores(NamedTuple):
    """The result of a mode."""

    result: JsonObject
    """For `result.json`: notes, and scores by relation and group."""
    outputs: list[np.ndarray]
    """By fact, a score for each of its options (options,)."""
    of_facts: FactScores
    """Scores of each fact; in the mode linear those of its noun."""


def probe_facts(config: ProbeFactsConfig, run: Run) -> JsonObject:
    """Probe an encoder; writes `result.json` (returned) and, for each mode, `scores_MODE.jsonl` with a line per fact.

    Raises InputError for a mode that the model does not support, and malformed data.
    """
    file = open_facts(config.data)
    end_dry_run("probing")
    result: JsonObject = {"facts": len(file.facts), "left_out": file.left_out}
    result |= describe_set(file.set_name)
    for mode in config.modes:
        scores = MODES[mode](config, file.facts)
        _write_scores(run.folder / f"scores_{mode}.jsonl", file.facts, scores)
        result[mode] = scores.result
    return result


def _untrained(
    answer: Callable[[str, Sequence[VisualFact], int], tuple[OptionScores, ProbeNotes]],
    config: ProbeFactsConfig,
    facts: Sequence[VisualFact],
    logs: bool = False,
) -> ProbeScores:
    """Run a mode without fitting; averages over templates; `logs`: for log-probabilities."""
    answers, notes = answer(config.model, facts, config.max_length)
    averaged = average_templates(answers)
    of_facts = score_facts(facts, averaged, logs)
    if _are_norms(facts):
        of_facts["map"] = average_precisions(facts, averaged, LEAST[0])
    result = {**notes, "relations": _summaries(facts, answers, logs)}
    return ProbeScores(result, averaged, of_facts)


def _fill_mask(config: ProbeFactsConfig, facts: Sequence[VisualFact]) -> ProbeScores:
    answer = partial(score_by_fill_mask, visual_token_clip=config.visual_token_clip)
    return _untrained(answer, config, facts, logs=True)


def _linear(config: ProbeFactsConfig, facts: Sequence[VisualFact]) -> ProbeScores:
    """Ridge regression from nouns' states; controls: word embeddings and random numbers."""
    nouns = [fact.subject for fact in facts]
    noun = word_states(config.model, nouns, config.templates, config.layer, config.max_length)
    kinds = {"state": noun.states, "words": noun.word_embeddings}
    relations: dict[str, JsonObject] = {}
    outputs: dict[int, np.ndarray] = {}
    of_facts: FactScores = {}
    for relation in dict.fromkeys(fact.relation for fact in facts):
        numbers = [number for number, fact in enumerate(facts) if fact.relation == relation]
        own = [facts[number] for number in numbers]
        scores, own_outputs, own_scores = compare_states(own, kinds, FOLDS, config.seed)
        relations[relation] = {ALL: scores}
        outputs |= dict(zip(numbers, own_outputs, strict=True))
        for name, values in own_scores.items():
            of_facts.setdefault(name, np.full(len(facts), NAN))[numbers] = values
    result = {"unknown_tokens": noun.unknown, "relations": relations}
    in_order = [outputs[number] for number in range(len(facts))]
    return ProbeScores(result, in_order, of_facts)


MODES: dict[str, Callable[[ProbeFactsConfig, Sequence[VisualFact]], ProbeScores]] = {
    "fill-mask": _fill_mask,
    "embedding": partial(_untrained, score_by_embedding),
    "stroop": partial(_untrained, score_by_stroop),
    "linear": _linear,
}
"""The probing modes by name."""


def _summaries(
    facts: Sequence[VisualFact], answers: OptionScores, logs: bool
) -> dict[str, dict[str, JsonObject]]:
    """Summaries by relation and group, with all of a relation's facts as `ALL`."""
    members: dict[str, dict[str, list[int]]] = {}
    for number, fact in enumerate(facts):
        groups = members.setdefault(fact.relation, {})
        groups.setdefault(ALL, []).append(number)
        if fact.group and fact.group != ALL:
            groups.setdefault(fact.group, []).append(number)
    return {
        relation: {
            group: summarize_relation(
                [facts[i] for i in numbers], [answers[i] for i in numbers], logs
            )
            for group, numbers in groups.items()
        }
        for relation, groups in members.items()
    }


def _write_scores(path: Path, facts: Sequence[VisualFact], scores: ProbeScores) -> None:
    """One JSON line per fact, with the answer, the score of each option, and measures, null where undefined."""
    lines = []
    for number, (fact, outputs) in enumerate(zip(facts, scores.outputs, strict=True)):
        answer = fact.options[outputs.argmax()]
        lines.append(
            {
                "id": fact.id,
                "subject": fact.subject,
                "relation": fact.relation,
                "answer": answer,
                "outputs": outputs.tolist(),
                **{name: float(values[number]) for name, values in scores.of_facts.items()},
            }
        )
    write_json_lines(path, lines)


def score_answers(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray], logs: bool = False
) -> dict[str, float]:
    """Top-1 accuracy, mean rank correlation with people, and divergence; NaN where undefined.

    If several answers are equally frequent, each is right. Correlations (`spearman`, `kendall`) are over facts whose
    target is not one-hot; with equal scores, `spearman` is 0 and `kendall` undefined. The Jensen-Shannon divergence
    (`js`), in bits, needs log-probabilities, which are normalised over the options.

    Args:
        facts: F facts.
        scores: The model's score of each option (options,), by fact.
        logs: Whether these are log-probabilities; otherwise `js` is NaN.
    """
    of_facts = score_facts(facts, scores, logs)
    return {
        name: float(np.nanmean(values)) if np.isfinite(values).any() else NAN
        for name, values in of_facts.items()
    }


def score_facts(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray], logs: bool = False
) -> FactScores:
    """The measures of `score_answers` of each fact."""
    names = ("accuracy", "spearman", "kendall", "js")
    of_facts = {name: np.full(len(facts), NAN) for name in names}
    for number, (fact, score) in enumerate(zip(facts, scores, strict=True)):
        of_facts["accuracy"][number] = _best(fact)[score.argmax()]
        if (fact.target > 0).sum() > 1:
            of_facts["spearman"][number] = SPEARMAN.compute(score, fact.target)
            of_facts["kendall"][number] = kendalltau(score, fact.target).statistic
        if logs:
            distance = jensenshannon(softmax(score), fact.target, base=2)
            of_facts["js"][number] = distance**2
    return of_facts


def summarize_relation(
    facts: Sequence[VisualFact], answers: OptionScores, logs: bool = False
) -> JsonObject:
    """`score_answers` of scores averaged over templates, and by template.

    Of feature norms, `map` is `mean_average_precision` of averaged scores.

    `chance`: accuracy of a random guess among each fact's options. `majority`: accuracy of the most
    frequent answer; NaN if facts differ in their options. `logs` as in `score_answers`.
    """
    templates = {}
    for name in dict.fromkeys(chain.from_iterable(answers)):
        having = [i for i, by_template in enumerate(answers) if name in by_template]
        asked = [facts[i] for i in having]
        scores = [answers[i][name] for i in having]
        templates[name] = score_answers(asked, scores, logs)
    averaged = average_templates(answers)
    best_answers = [_best(fact) for fact in facts]
    majority = NAN
    if _have_same_options(facts):
        majority = float(np.mean(best_answers, axis=0).max())
    return {
        **({"map": mean_average_precision(facts, averaged)} if _are_norms(facts) else {}),
        "facts": len(facts),
        "chance": float(np.mean([best.mean() for best in best_answers])),
        "majority": majority,
        "averaged_scores": score_answers(facts, averaged, logs),
        **paired_accuracy(facts, averaged),
        "templates": templates,
    }


def paired_accuracy(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray]
) -> dict[str, dict[str, float]]:
    """TaxonomiGQA's accuracy: a question at a hop is right if it is, and all on other concepts; empty for other sets.

    Questions without one on another concept are left out (release, analysis/taxonomigqa-results.R: overall_results).
    `chance`: that of guessing each answer.
    """
    groups: dict[tuple[str, int], dict[str, list[bool]]] = {}
    for fact, score in zip(facts, scores, strict=True):
        if fact.counts_with:
            parts = groups.setdefault(fact.counts_with, {})
            parts.setdefault(fact.group, []).append(bool(_best(fact)[score.argmax()]))
    pairs = [[*chain(*parts.values())] for parts in groups.values() if len(parts) == 2]
    if not pairs:
        return {}
    chance = float(np.mean([0.5 ** len(right) for right in pairs]))
    return {"paired": {"accuracy": float(np.mean([*map(all, pairs)])), "chance": chance}}


def average_templates(answers: OptionScores) -> list[np.ndarray]:
    """By fact, its scores (options,) averaged over templates."""
    return [np.mean(list(by_template.values()), axis=0) for by_template in answers]


def _best(fact: VisualFact) -> np.ndarray:
    """(options,) bool: the most frequent answers."""
    return fact.target == fact.target.max()


def _have_same_options(facts: Sequence[VisualFact]) -> bool:
    """Whether all facts have the same options; if not, a share of 0 may be a missing option."""
    return len({fact.options for fact in facts}) == 1


def _are_norms(facts: Sequence[VisualFact]) -> bool:
    return all(fact.frequencies is not None for fact in facts)


def mean_average_precision(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray]
) -> dict[str, dict[str, float]]:
    """MAP over all labels of F facts, by minimal production frequency: `map`, `queries`, and `chance`.

    A query counts if one of its labels has this frequency; these labels are its right ones. `chance` is
    the mean share of right labels, the average precision of equal scores (options,). As in the release,
    scikit-learn's average precision.
    """
    result = {}
    for least in LEAST:
        precisions = average_precisions(facts, scores, least)
        defined = np.isfinite(precisions)
        queries = zip(facts, defined, strict=True)
        shares = [_is_label(fact, least).mean() for fact, counts in queries if counts]
        if shares:
            result[str(least)] = {
                "map": float(precisions[defined].mean()),
                "queries": len(shares),
                "chance": float(np.mean(shares)),
            }
    return result


def average_precisions(
    facts: Sequence[VisualFact], scores: Sequence[np.ndarray], least: int
) -> np.ndarray:
    """The average precision of each fact's labels, (F,), for a minimal production frequency; NaN if none has it."""
    precisions = np.full(len(facts), np.nan)
    for number, (fact, score) in enumerate(zip(facts, scores, strict=True)):
        right = _is_label(fact, least)
        if right.any():
            precisions[number] = average_precision_score(right, score)
    return precisions


def _is_label(fact: VisualFact, least: int) -> np.ndarray:
    """(options,) bool: the labels that enough people named."""
    is_label: np.ndarray = require(fact.frequencies, "frequencies", "feature norms") >= least
    return is_label
