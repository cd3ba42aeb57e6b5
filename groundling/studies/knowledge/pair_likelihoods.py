"""Likelihoods of minimal pairs under a language model: scores, accuracies, and the command."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from groundling.core.batch import Batch, Example, Sample, TextRow, collate, require
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.samples import TextDataset, mask_id_of, subsample
from groundling.data.text import word_spans
from groundling.models.heads import HEADS, LM_HEAD, LMHead, load_head
from groundling.models.loading import load_config, load_tokenizer, load_weights
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.runs.folder import disk_errors, json_text, whole_file, write_json
from groundling.runs.progress import print_notes, track
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.stats.resampling import bootstrap_sums, interval
from groundling.studies.knowledge.commands import PairsConfig
from groundling.studies.knowledge.minimal_pairs import (
    MinimalPair,
    TextWithContext,
    read_minimal_pairs,
)
from groundling.training.evaluation import EvaluationOutput

# Pseudo-log-likelihood of texts under a masked language model, and log-likelihood under a causal
# one.

Masking = Literal["within-word", "original"]
"""What is masked to score a token: it and the later tokens of its word, or it alone."""

MAX_BATCH_TOKENS = 8192
"""Tokens per batch, padding included."""
MAX_CAUSAL_BATCH_TOKENS = 1024
"""The same for a causal model, whose head gives a vocabulary of logits at every token."""

NO_LANGUAGE_MODEL = (
    "expected a masked language model, such as `groundling adapt --arm mlm` writes, or a causal one"
)


class Likelihoods(NamedTuple):
    """Likelihoods of N texts."""

    sums: np.ndarray
    """(N,) float64, natural logarithm, summed over scored tokens; NaN without any."""
    tokens: np.ndarray
    """(N,) int64: number of scored tokens; 0 for a text that is too long or has none."""


class ScoringInput(NamedTuple):
    """A text as the model reads it to score some of its tokens."""

    text: int
    """Index of the text."""
    row: TextRow
    """T tokens, some replaced by masks."""
    places: np.ndarray
    """(K,) int64: the positions whose states predict the targets."""
    targets: np.ndarray
    """(K,) int64: the ids of the tokens to predict."""


Logits = Callable[[Batch, Tensor, Tensor], Tensor]
"""Logits (K, vocabulary) at rows (K,) and positions (K,) of a batch (N, T)."""


class LanguageModel:
    """A masked or causal language model; its head is called only where a token is scored."""

    def __init__(self, source: str | Path, device: torch.device, max_length: int = 0) -> None:
        """`max_length`: most tokens of a text, special ones included; 0: the model's limit.

        Raises InputError for a model without a language-model head or, if it is masked, without a
        mask token.
        """
        config = load_config(source)
        if config.is_encoder_decoder:
            raise InputError(f"{source}: an encoder-decoder model; {NO_LANGUAGE_MODEL}")
        self.causal = is_causal(config)
        self.text, self.logits = _load(source, self.causal, device)
        tokenizer = self.text.tokenizer
        self.mask = -1 if self.causal else mask_id_of(tokenizer, f"; {NO_LANGUAGE_MODEL}")
        self.start = [] if not self.causal else _start(tokenizer)
        self.device = device
        limit = self.text.max_length - len(self.start)
        self.window = min(max_length, limit) if max_length else limit

    @torch.no_grad()
    def score(
        self, texts: Sequence[TextWithContext], masking: Masking = "within-word"
    ) -> Likelihoods:
        """The (pseudo-)log-likelihood of every text's scored words, given the context before them.

        For a masked model, the sum over tokens of the log-probability of the masked token (Salazar
        et al. 2020, Eq. 1). Unless `masking` is `original`, the later tokens of its word are masked
        too (Kauf and Ivanova 2023, PLL-word-l2r), because they reveal the word's beginning. For a
        causal model, the log-likelihood; the first token is scored if the tokenizer has a start or
        end token to put before it.
        """
        rows = self._rows(texts)
        # Texts with equal tokens are scored once, so that their scores are equal.
        first: dict[tuple[bytes, ...], int] = {}
        same = np.arange(len(texts))
        for number, (row, scored) in enumerate(rows):
            tokens_read = tuple(part.tobytes() for part in (row.input_ids, row.word_ids, scored))
            same[number] = first.setdefault(tokens_read, number)
        sums = np.zeros(len(texts))
        tokens = np.zeros(len(texts), np.int64)
        order = sorted(first.values(), key=lambda number: len(rows[number][0].input_ids))
        copies = (
            copy
            for number in track(order, "texts", "text")
            for copy in self._copies(number, *rows[number], masking)
        )
        for batch in _fill_batches(
            copies, MAX_CAUSAL_BATCH_TOKENS if self.causal else MAX_BATCH_TOKENS
        ):
            for copy, log_probabilities in zip(batch, self._log_probabilities(batch), strict=True):
                sums[copy.text] += log_probabilities.sum()
                tokens[copy.text] += len(log_probabilities)
        sums[tokens == 0] = np.nan
        return Likelihoods(sums[same], tokens[same])

    def _rows(self, texts: Sequence[TextWithContext]) -> list[tuple[TextRow, np.ndarray]]:
        """Each text's tokens, and which are scored (T,) bool; none of a text that is too long."""
        text_input, _ = self.text.inputs(self.window)
        examples = [Example(str(number), text.text) for number, text in enumerate(texts)]
        samples = TextDataset(examples, text_input).get(range(len(texts)))
        rows = []
        for text, sample in zip(texts, samples, strict=True):
            row = _with_words(require(sample.text, "text", "a language model"))
            is_scored = ~row.special_tokens_mask & (sample.truncated_tokens == 0)
            if text.scored_from:
                context = int((word_spans(text.text)[:, 0] < text.scored_from).sum())
                is_scored &= row.word_ids >= context
            rows.append((row, is_scored))
        return rows

    def _copies(
        self, number: int, row: TextRow, is_scored: np.ndarray, masking: Masking
    ) -> Iterator[ScoringInput]:
        """The inputs that score tokens (T,) of a text: one, or one for each masked token."""
        scored_places = np.flatnonzero(is_scored)
        if self.causal:
            copy = self._read_on(number, row, scored_places)
            if len(copy.places):
                yield copy
            return
        every = np.arange(len(row.input_ids))
        for place in scored_places:
            is_masked = every == place
            if masking == "within-word":
                is_masked |= is_scored & (row.word_ids == row.word_ids[place]) & (every > place)
            masked = replace(row, input_ids=np.where(is_masked, self.mask, row.input_ids))
            yield ScoringInput(number, masked, np.array([place]), row.input_ids[[place]])

    def _read_on(self, number: int, row: TextRow, places: np.ndarray) -> ScoringInput:
        """The text once, each token predicted from the one before it; without one, not scored."""
        before = len(self.start)
        ids = np.concatenate([np.array(self.start, np.int64), row.input_ids])
        longer = row.take(np.r_[np.zeros(before, np.int64), np.arange(len(row.input_ids))])
        places = places[places + before > 0] + before
        return ScoringInput(number, replace(longer, input_ids=ids), places - 1, ids[places])

    def _log_probabilities(self, copies: Sequence[ScoringInput]) -> list[np.ndarray]:
        """The log-probabilities (K,) float64 of each copy's targets."""
        batch = collate([Sample(str(copy.text), copy.row) for copy in copies]).to(self.device)
        sizes = [len(copy.places) for copy in copies]
        rows = torch.from_numpy(np.repeat(np.arange(len(copies)), sizes)).to(self.device)
        places = torch.from_numpy(np.concatenate([copy.places for copy in copies])).to(self.device)
        targets = torch.from_numpy(np.concatenate([copy.targets for copy in copies]))
        logits = self.logits(batch, rows, places).float()
        logs = logits.log_softmax(-1).gather(1, targets.to(self.device)[:, None])[:, 0]
        values = logs.double().cpu().numpy()
        if not np.isfinite(values).all():
            raise InputError(
                "the model gives probabilities of NaN or infinity; its weights may be damaged"
            )
        return np.split(values, np.cumsum(sizes)[:-1])


def _with_words(row: TextRow) -> TextRow:
    """A row in which a token without a raw word (a space) belongs to the next word."""
    none = row.word_ids < 0
    following = np.where(none, row.word_ids.max() + 1, row.word_ids)
    next_word = np.minimum.accumulate(following[::-1])[::-1]
    return replace(row, word_ids=np.where(none, next_word, row.word_ids))


def _fill_batches(copies: Iterator[ScoringInput], room: int) -> Iterator[list[ScoringInput]]:
    """Copies, sorted by length, in batches of at most `room` tokens, or of one copy."""
    batch: list[ScoringInput] = []
    for copy in copies:
        if batch and (len(batch) + 1) * len(copy.row.input_ids) > room:
            yield batch
            batch = []
        batch.append(copy)
    if batch:
        yield batch


# -- models ------------------------------------------------------------------------------------------------------------


def is_causal(config: Any) -> bool:
    """Whether a configuration is of a causal model; model types of both kinds have `is_decoder`."""
    if config.model_type in MODEL_FOR_MASKED_LM_MAPPING_NAMES:
        return bool(config.to_dict().get("is_decoder"))
    return config.model_type in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _start(tokenizer: Any) -> list[int]:
    """The start token for a tokenizer that adds none itself; empty if it has none."""
    ids = tokenizer("a")["input_ids"]
    if ids and ids[0] in tokenizer.all_special_ids:
        return []
    for token in (tokenizer.bos_token_id, tokenizer.eos_token_id):
        if token is not None:
            return [int(token)]
    return []


def _load(source: str | Path, causal: bool, device: torch.device) -> tuple[TextEncoder, Logits]:
    """The encoder with its tokenizer, and the logits of an earlier run's or transformers' head."""
    if not causal:
        adapted = _load_adapted(source, device)
        if adapted is not None:
            return adapted
    try:
        model = load_weights(AutoModelForCausalLM if causal else AutoModelForMaskedLM, source)
    except InputError as error:
        raise InputError(f"{error}; {NO_LANGUAGE_MODEL}") from None
    model.to(device).eval()
    text = TextEncoder(model.base_model, load_tokenizer(source))

    def logits(batch: Batch, rows: Tensor, places: Tensor) -> Tensor:
        tokens = require(batch.text, "text", "a language model")

        def select_positions(module: Any, inputs: Any, out: Any) -> Any:
            out.last_hidden_state = out.last_hidden_state[rows, places].unsqueeze(1)
            return out

        # The hook passes only the states of these positions to the head, whatever its type.
        hook = model.base_model.register_forward_hook(select_positions)
        try:
            out = model(input_ids=tokens.input_ids, attention_mask=tokens.attention_mask.long())
        finally:
            hook.remove()
        selected: Tensor = out.logits[:, 0]
        return selected

    return text, logits


def _load_adapted(source: str | Path, device: torch.device) -> tuple[TextEncoder, Logits] | None:
    """A student with the masked-LM head that `adapt` saved with it; None if there is none."""
    if not (Path(source) / HEADS).exists():
        return None
    text = load_text_encoder(source)
    sizes = text.sizes
    head = LMHead(sizes.text, sizes.input_embeddings, sizes.config)
    if not load_head(Path(source), head, LM_HEAD):
        return None
    text.to(device).eval()
    head.to(device).eval()

    def logits(batch: Batch, rows: Tensor, places: Tensor) -> Tensor:
        encoded = text(batch)
        states = require(encoded.text, "text", "a language model")[rows, places]
        logits_of_tokens: Tensor = head(states, encoded.input_embeddings)
        return logits_of_tokens

    return text, logits


# Accuracies of comparisons of scores, by group, with intervals: BLiMP, EWoK, Winoground.


class PreferenceRule(NamedTuple):
    """A rule by which an item counts as right."""

    name: str
    """Key of the accuracy in `result.json`."""
    chance: float
    """Expected accuracy of random scores."""
    item_score: Callable[[np.ndarray], np.ndarray]
    """From scores (N, S) of N items to the credit of each, 0 to 1: (N,)."""


def _first_above(first: int, second: int) -> Callable[[np.ndarray], np.ndarray]:
    """Whether one score is strictly above another."""
    return lambda scores: (scores[:, first] > scores[:, second]).astype(float)


def _all_above(*comparisons: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    """Whether the first score is strictly above the second in all comparisons."""
    return lambda scores: (
        np.all([scores[:, a] > scores[:, b] for a, b in comparisons], axis=0) * 1.0
    )


def _half_for_ties(*comparisons: tuple[int, int]) -> Callable[[np.ndarray], np.ndarray]:
    """Mean over comparisons: 1 if the first score is above the second, 1/2 if they are equal."""
    return lambda scores: np.mean(
        [(1 + np.sign(scores[:, a] - scores[:, b])) / 2 for a, b in comparisons], axis=0
    )


BLIMP_RULES = (PreferenceRule("accuracy", 1 / 2, _first_above(0, 1)),)
"""BLiMP: the good sentence is more likely; a tie is wrong (Warstadt et al. 2020, Section 4)."""

EWOK_RULES = (
    PreferenceRule("accuracy", 1 / 2, _half_for_ties((0, 1), (3, 2))),
    PreferenceRule("both", 1 / 4, _all_above((0, 1), (3, 2))),
    PreferenceRule("targets", 1 / 2, _first_above(0, 2)),
)
"""EWoK: scores of target 1 after contexts 1 and 2, then of target 2.

`accuracy` (Ivanova et al. 2024; release: ewok-core/ewok-paper,
analyses/scripts/ewok_analysis_utils.R): each target is more likely after its own context than after
the other one; a tie counts 1/2, and an item the mean of its two targets. `both`: both comparisons
hold strictly (`Accuracy_both` there). `targets`: after context 1, target 1 is more likely than
target 2, as scored by the BabyLM challenge of 2025 (release: babylm/evaluation-pipeline-2025,
sentence_zero_shot/read_files.py).
"""

WINOGROUND_RULES = (
    PreferenceRule("text", 1 / 4, _all_above((0, 1), (3, 2))),
    PreferenceRule("image", 1 / 4, _all_above((0, 2), (3, 1))),
    PreferenceRule("group", 1 / 6, _all_above((0, 1), (3, 2), (0, 2), (3, 1))),
)
"""Thrush et al. 2022, Eqs. 1 to 3: scores of image 0 with captions 0 and 1, then of image 1.

`text`: for each image, the right caption scores higher; `image`: for each caption, the right image;
`group`: both.
"""


class BootstrapEstimate(NamedTuple):
    """Means of C columns over items, and of bootstrap resamples of the items."""

    items: int
    """Number of items."""
    mean: np.ndarray
    """(C,): means over the items."""
    draws: np.ndarray
    """(DRAWS, C): means over each resample."""


def bootstrap_means(values: np.ndarray, *key: str) -> BootstrapEstimate:
    """Means of values (N, C) and their bootstrap over items; draws are paired over columns.

    Items are drawn with replacement; items with equal values are exchangeable, so only their
    numbers are drawn.
    """
    kinds, counts = np.unique(values, axis=0, return_counts=True)
    drawn = bootstrap_sums(kinds, generator(0, "preferences", *key), counts=counts)
    return BootstrapEstimate(len(values), values.mean(0), drawn / len(values))


def macro_average(estimates: Sequence[BootstrapEstimate]) -> BootstrapEstimate:
    """The unweighted mean of the groups' means; items are drawn within groups."""
    return BootstrapEstimate(
        sum(estimate.items for estimate in estimates),
        np.mean([estimate.mean for estimate in estimates], axis=0),
        np.mean([estimate.draws for estimate in estimates], axis=0),
    )


def compare_models(
    rules: Sequence[PreferenceRule], groups: Mapping[str, BootstrapEstimate]
) -> dict[str, dict[str, Any]]:
    """By name of a comparison, each group's means and 95 % intervals of the rules, and its number of items.

    The comparisons are `scores`; with a second model `other` and `difference`, other less model, paired by item. The
    columns of the estimates are the first model's rules, then the other's.
    """
    count = len(rules)
    columns = {"scores": lambda values: values[..., :count]}
    if any(len(estimate.mean) > count for estimate in groups.values()):
        columns["other"] = lambda values: values[..., count:]
        columns["difference"] = lambda values: values[..., count:] - values[..., :count]
    return {
        comparison: {
            name: _summary(rules, one.items, select(one.mean), select(one.draws))
            for name, one in groups.items()
        }
        for comparison, select in columns.items()
    }


def _summary(
    rules: Sequence[PreferenceRule], items: int, mean: np.ndarray, draws: np.ndarray
) -> dict[str, Any]:
    summary: dict[str, Any] = {"items": items}
    for column, rule in enumerate(rules):
        summary[rule.name] = float(mean[column])
        summary[f"{rule.name}_interval"] = interval(draws[:, column]).tolist()
    return summary


def item_credits(rules: Sequence[PreferenceRule], scores: Iterable[np.ndarray]) -> np.ndarray:
    """Credits (N, models x rules) of N items from each model's scores (N, S)."""
    return np.stack([rule.item_score(of_model) for of_model in scores for rule in rules], 1)


def format_cell(scores: Mapping[str, Any], rule: str, sign: str = "") -> str:
    """A mean with its interval as text, in percentage points."""
    low, high = (100 * end for end in scores[f"{rule}_interval"])
    return f"{100 * scores[rule]:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def group_items(names: Sequence[str]) -> Mapping[str, np.ndarray]:
    """Indices of the items of each group, by name, in the order of first items."""
    groups: dict[str, list[int]] = {}
    for number, name in enumerate(names):
        groups.setdefault(name, []).append(number)
    return {name: np.array(numbers) for name, numbers in groups.items()}


SPLIT = "pairs"
"""Split name of the answers, for `verdict`."""
LEVELS = ("field", "phenomenon", "paradigm")
"""Groupings of items, from coarse to fine."""
ITEMS = "items.jsonl"
"""File with the scores of every item."""


def pairs(config: PairsConfig, run: Run) -> dict[str, Any]:
    """Score minimal pairs; writes `result.json` (returned), `items.jsonl`, answers for `verdict`.

    Raises:
        InputError: A setting or the data is wrong, the model has no language-model head, or texts
            are too long for it.
    """
    items = _limit_items(read_minimal_pairs(config.data), config.limit)
    sources = [config.model, *([config.other] if config.other else [])]
    scored_models = [_score_items(config, source, items, run.state.device) for source in sources]
    facts, scores = zip(*scored_models, strict=True)
    items, scored, left_out = _scorable_items(config, items, np.stack(scores))
    rules = EWOK_RULES if items[0].of_ewok else BLIMP_RULES
    result: dict[str, Any] = {
        **{"model": config.model, **facts[0]},
        **{
            "pll": config.pll,
            "reduction": config.reduction,
            "items": len(items),
            "left_out": left_out,
        },
        "chance": {rule.name: rule.chance for rule in rules},
        **_results(items, scored, rules, config.other),
    }
    if config.other:
        result["other"] |= facts[1]
    if run.state.is_main_process:
        _write_items(run.folder / ITEMS, items, scored, rules)
        _write_answers(run.folder, config, items, scored, rules)
    return result


def _limit_items(items: Sequence[MinimalPair], limit: int) -> list[MinimalPair]:
    """At most `limit` items of each paradigm, evenly spaced; 0: all."""
    chosen: list[MinimalPair] = []
    for numbers in group_items([item.paradigm for item in items]).values():
        chosen += [items[number] for number in subsample(numbers.tolist(), limit)]
    return chosen


def _score_items(
    config: PairsConfig, source: str, items: Sequence[MinimalPair], device: torch.device
) -> tuple[dict[str, Any], np.ndarray]:
    """Facts about a model for the result, and its scores (N, S) of each item's texts."""
    model = LanguageModel(source, device, config.max_length)
    likelihoods = model.score([text for item in items for text in item.texts], config.pll)
    values = likelihoods.sums
    if config.reduction == "mean":
        with np.errstate(invalid="ignore"):
            values = values / likelihoods.tokens
    kind = "causal" if model.causal else "masked"
    return {"kind": kind, "scored_tokens": int(likelihoods.tokens.sum())}, values.reshape(
        len(items), -1
    )


def _scorable_items(
    config: PairsConfig, items: Sequence[MinimalPair], scores: np.ndarray
) -> tuple[list[MinimalPair], np.ndarray, int]:
    """The items that all models could score, their scores (M, N, S), and the number left out."""
    fits = np.isfinite(scores).all((0, 2))
    unscorable = [item.id for item, one in zip(items, fits, strict=True) if not one]
    remaining = [item for item, one in zip(items, fits, strict=True) if one]
    if unscorable and not (config.skip_long and remaining):
        raise InputError(
            f"{config.data}: {len(unscorable):,} of {len(items):,} pairs have a text that is too long for the model or "
            f"has nothing to score; the first is {unscorable[0]}; skip_long leaves them out"
        )
    if unscorable:
        print_notes(
            [f"left out {len(unscorable):,} pairs: a text is too long, or has nothing to score"]
        )
    return remaining, scores[:, fits], len(unscorable)


# -- results -----------------------------------------------------------------------------------------------------------


def _results(
    items: Sequence[MinimalPair], scores: np.ndarray, rules: Sequence[PreferenceRule], other: str
) -> dict[str, Any]:
    """Accuracies by level and group of the model, the other one, and the difference (other less model)."""
    by_comparison: dict[str, Any] = {}
    for level, groups in _levels(items, item_credits(rules, scores)).items():
        for comparison, of_groups in compare_models(rules, groups).items():
            by_comparison.setdefault(comparison, {})[level] = of_groups
    result = {"ties": _ties(scores[0]), "scores": by_comparison["scores"]}
    if other:
        other_scores = by_comparison["other"]
        result["other"] = {"model": other, "ties": _ties(scores[1]), "scores": other_scores}
        result["difference"] = by_comparison["difference"]
    return result


def _levels(
    items: Sequence[MinimalPair], credits: np.ndarray
) -> dict[str, dict[str, BootstrapEstimate]]:
    """Estimates by level and group: of a paradigm's items, or the mean of a group's paradigms."""
    paradigms: dict[str, BootstrapEstimate] = {}
    members: dict[str, dict[str, list[BootstrapEstimate]]] = {"field": {}, "phenomenon": {}}
    for name, numbers in group_items([item.paradigm for item in items]).items():
        paradigms[name] = bootstrap_means(credits[numbers], name)
        first = items[numbers[0]]
        for level, group in (("field", first.field), ("phenomenon", first.phenomenon)):
            if group:
                members[level].setdefault(group, []).append(paradigms[name])
    levels = {
        "overall": {
            "mean of paradigms": macro_average(list(paradigms.values())),
            "all items": bootstrap_means(credits),
        }
    }
    for level, groups in members.items():
        if groups:
            levels[level] = {name: macro_average(groups[name]) for name in sorted(groups)}
    return levels | {"paradigm": paradigms}


def _ties(scores: np.ndarray) -> int:
    """Number of ties in scores (N, S): good and bad, or a target after both contexts."""
    return int((scores[:, 0::2] == scores[:, 1::2]).sum())


# -- files and tables --------------------------------------------------------------------------------------------------


def _write_items(
    path: Path, items: Sequence[MinimalPair], scores: np.ndarray, rules: Sequence[PreferenceRule]
) -> None:
    """One JSON line per item: its groups, and each model's scores and credits by rule."""
    credits = [{rule.name: rule.item_score(one).tolist() for rule in rules} for one in scores]
    names = ("model", "other")
    with whole_file(path) as file:
        for number, item in enumerate(items):
            line: dict[str, Any] = {"id": item.id}
            line |= {level: vars(item)[level] for level in LEVELS if vars(item)[level]}
            for name, one, credits_by_rule in zip(names, scores, credits, strict=False):
                line[name] = {"scores": one[number].round(6).tolist()}
                line[name] |= {rule: values[number] for rule, values in credits_by_rule.items()}
            file.write(json_text(line) + "\n")


def _write_answers(
    folder: Path,
    config: PairsConfig,
    items: Sequence[MinimalPair],
    scores: np.ndarray,
    rules: Sequence[PreferenceRule],
) -> None:
    """The answers in the format of `verdict`: 1 for an item that is right; every label is 1."""
    place = folder / f"seed-{config.model_seed}"
    with disk_errors(place):
        place.mkdir(exist_ok=True)
    strict = rules[1] if items[0].of_ewok else rules[0]
    right = strict.item_score(scores[0])
    examples = [Example(item.id, "") for item in items]
    metrics = {"accuracy": float(right.mean())}
    answers = EvaluationOutput(examples, right[:, None], right, np.ones(len(items)), metrics)
    answers.write(place / f"predictions_{SPLIT}.jsonl")
    name = f"pairs/{Path(config.data).stem}"
    done: dict[str, Any] = {"seed": config.model_seed, "task": name, "metrics": ["accuracy"]}
    write_json(place / "result.json", done | {"splits": [SPLIT], "scores": {SPLIT: metrics}})


def format_pairs(result: Mapping[str, Any]) -> str:
    """The result as text, in percentage points; paradigms only if there are no phenomena."""
    rows = []
    for level, groups in result["scores"].items():
        if level == "paradigm" and "phenomenon" in result["scores"]:
            continue
        for name, scores in groups.items():
            row = {"": name, "items": f"{scores['items']:,}"}
            for rule, chance in result["chance"].items():
                row |= {f"{rule} (chance {100 * chance:.0f})": format_cell(scores, rule)}
            if "difference" in result:
                row |= {"other": format_cell(result["other"]["scores"][level][name], "accuracy")}
                row |= {
                    "other - model": format_cell(result["difference"][level][name], "accuracy", "+")
                }
            rows.append(row)
    counts = f"{result['items']:,} items, {result['ties']:,} ties, {result['left_out']:,} left out"
    return f"{format_table(rows)}\n{counts}"
