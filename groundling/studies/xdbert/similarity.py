"""Similarity of two encoders' word embeddings, or of texts' and images' vectors: CCA, SVCCA, PWCCA, neighbours.

The published definitions (Raghu et al. 2017, Morcos et al. 2018), as in XDBERT's Table 2. Independent tables score far
above 0 (0.36 for 4500 words of 768 dimensions), so every value comes with its value for permuted pairings.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from groundling.core.errors import InputError
from groundling.core.resampling import interval
from groundling.core.rng import generator
from groundling.data.corpora import iterate_texts
from groundling.data.samples import check_vocabulary
from groundling.data.vectors import Modality, VectorTable
from groundling.models.clip import CLIP_LIKE, load_clip_text_tower
from groundling.models.hub import VECTORS
from groundling.models.loading import load_config
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.run import Run
from groundling.studies.xdbert.commands import SimilarityConfig
from groundling.studies.xdbert.published import PWCCA

TOLERANCE = 1e-6
"""Directions with a singular value below this share of the largest are dropped."""

KEPT_VARIANCE = 0.99
"""Share of the variance that the principal components of SVCCA explain."""

RANDOM = "random"
"""Name of the random baseline: uniform numbers as embeddings (RANDOM in XDBERT's Table 2)."""

RANDOM_WIDTH = 768
"""Dimensions of the random baseline."""


def similarity(config: SimilarityConfig, run: Run) -> dict[str, Any]:
    """Similarity of two models' word embeddings with the published values; also in `result.json`.

    With `captions`, similarity of the texts' and the images' stored vectors. Raises InputError if a model is missing or
    invalid, or the models share too few words.
    """
    if config.captions:
        return compare_captions(config)
    published = {" / ".join(pair): value for pair, value in PWCCA.items()}
    return {**compare_models(config), "published_pwcca": published}


@dataclass(frozen=True)
class CanonicalCorrelations:
    """Canonical correlations of two tables, and the PWCCA weights of every canonical variate."""

    rho: np.ndarray
    """(R,) correlations in descending order; R is the lower of the two ranks."""
    weights_a: np.ndarray
    """(R,) PWCCA weights of the first table, sum 1."""
    weights_b: np.ndarray
    """(R,) PWCCA weights of the second table, sum 1."""
    ranks: tuple[int, int]
    """Ranks of both centred tables."""

    @property
    def mean_cca(self) -> float:
        """Mean correlation over the R correlations."""
        return float(self.rho.mean())

    @property
    def pwcca_a(self) -> float:
        """Correlations weighted by how much of `a` each canonical variate accounts for (Morcos et al. 2018)."""
        return float(self.rho @ self.weights_a)

    @property
    def pwcca_b(self) -> float:
        """Correlations weighted by how much of `b` each canonical variate accounts for."""
        return float(self.rho @ self.weights_b)

    @property
    def weighting_table(self) -> str:
        """The table whose weights PWCCA uses by default: the one of lower rank, else `a`."""
        return "b" if self.ranks[1] < self.ranks[0] else "a"

    @property
    def pwcca(self) -> float:
        """PWCCA with the weights of the default table."""
        return self.pwcca_a if self.weighting_table == "a" else self.pwcca_b


_SCORES: dict[str, Callable[[CanonicalCorrelations, CanonicalCorrelations], float]] = {
    "mean_cca": lambda whole, _: whole.mean_cca,
    "svcca": lambda _, leading: leading.mean_cca,
    "pwcca": lambda whole, _: whole.pwcca,
    "pwcca_a": lambda whole, _: whole.pwcca_a,
    "pwcca_b": lambda whole, _: whole.pwcca_b,
}
"""All scores, as functions of the correlations of the whole tables and of their leading components."""


@dataclass(frozen=True)
class _CenteredTable:
    """A centred table (n, d) as the product of `basis` and `loads`, in order of the principal components."""

    basis: np.ndarray
    """(n, R) orthonormal."""
    loadings: np.ndarray
    """(R, d)."""

    def leading(self) -> _CenteredTable:
        """The first components, which explain `KEPT_VARIANCE`."""
        explained = np.cumsum((self.loadings**2).sum(1))
        count = int(np.searchsorted(explained / explained[-1], KEPT_VARIANCE)) + 1
        return _CenteredTable(self.basis[:, :count], self.loadings[:count])


def canonical_correlations(a: np.ndarray, b: np.ndarray) -> CanonicalCorrelations:
    """Canonical correlations of two tables (n, d1) and (n, d2) with paired rows, in float64.

    Raises InputError for tables that are not finite, have fewer than 3 rows, or are constant.
    """
    return _correlate(*_sides(a, b))


def compare_tables(a: np.ndarray, b: np.ndarray, draws: int = 5, seed: int = 0) -> dict[str, Any]:
    """All scores of two tables with paired rows, with their values for permuted pairings; JSON-compatible.

    `svcca` is the mean CCA of the tables' first principal components (Raghu et al. 2017).

    Args:
        a: (n, d1).
        b: (n, d2).
        draws: Number of permuted pairings, at least 2, whose mean is `null` and standard deviation `null_sd`.
        seed: Seed of the permutations.

    `corrected` is (value - null) / (1 - null), or None if `null` is 1. Raises InputError as `canonical_correlations`
    does.
    """
    first, second = _sides(a, b)
    n = len(first.basis)
    as_given = np.arange(n)
    permuted = [generator(seed, "null", draw).permutation(n) for draw in range(draws)]
    pairings = [as_given, *permuted]
    whole = [_correlate(first, second, order) for order in pairings]
    components = first.leading(), second.leading()
    leading = [_correlate(*components, order) for order in pairings]

    scores = {}
    for name, score in _SCORES.items():
        value, *null = map(score, whole, leading)
        scores[name] = _beside_chance(value, np.array(null))
    return {
        "n": n,
        "dims": [first.loadings.shape[1], second.loadings.shape[1]],
        "ranks": list(whole[0].ranks),
        "components": list(leading[0].ranks),
        "side": whole[0].weighting_table,
        "permutations": draws,
        "seed": seed,
        "scores": scores,
    }


def word_table(
    source: str | Path, partner: Sequence[str] = (), seed: int = 0
) -> tuple[list[str], np.ndarray]:
    """Lower-case single-token words of a text encoder or CLIP-like model, by token id, and their embeddings (N, D).

    The source "random" gives every word of `partner` uniform numbers. Raises InputError for another kind of model, or
    one whose tokenizer has more tokens than the model has embeddings.
    """
    if source == RANDOM:
        if not partner:
            raise InputError("random: a random table needs the words of another model")
        rows = [generator(seed, RANDOM, word).random(RANDOM_WIDTH) for word in partner]
        return list(partner), np.stack(rows)
    if load_config(source).model_type in CLIP_LIKE:
        tower, tokenizer = load_clip_text_tower(source)
        table = tower.token_embedding.weight
    else:
        text = load_text_encoder(source)
        tokenizer = text.tokenizer
        table = text.encoder.get_input_embeddings().weight
    token_of = _whole_words(tokenizer)
    check_vocabulary(tokenizer, table)
    words = sorted(token_of, key=token_of.__getitem__)
    tokens = [token_of[word] for word in words]
    return words, table.detach().numpy()[tokens]


def compare_models(config: SimilarityConfig) -> dict[str, Any]:
    """Compare two models' input embeddings on words that are single tokens in both; JSON-compatible.

    XDBERT's Table 2 states neither the words nor the weighting table: see PWCCA with both weightings, and `n`. Raises
    InputError if both sources are random, or fewer than 3 words are shared.
    """
    if config.model == RANDOM:
        words_b, table_b = word_table(config.other)
        words_a, table_a = word_table(config.model, words_b, config.seed)
    else:
        words_a, table_a = word_table(config.model)
        words_b, table_b = word_table(config.other, words_a, config.seed)
    row_a = {word: row for row, word in enumerate(words_a)}
    row_b = {word: row for row, word in enumerate(words_b)}
    shared = [word for word in words_a if word in row_b]
    chosen = shared[: config.limit] if config.limit else shared
    rows_a = table_a[[row_a[word] for word in chosen]]
    rows_b = table_b[[row_b[word] for word in chosen]]
    return {
        "a": config.model,
        "b": config.other,
        "words": [len(words_a), len(words_b)],
        "shared": len(shared),
        **_compare(rows_a, rows_b, config),
    }


def compare_captions(config: SimilarityConfig) -> dict[str, Any]:
    """Compare stored vectors of captions with those of their images, by the first caption of each; JSON-compatible.

    Raises InputError if a side has no stored vectors, or not one of each caption or image.
    """
    text_of: dict[str, str] = {}
    for text, image in iterate_texts(config.captions, config.caption_settings):
        text_of.setdefault(image, text)
    if text_of.pop("", None) is not None:
        raise InputError(f"{config.captions}: expected captions with the image of each")
    images = list(text_of)[: config.limit or None]
    texts = _stored(config.model, "text", [text_of[image] for image in images])
    return {
        "a": config.model,
        "b": config.other,
        "captions": config.captions,
        **_compare(texts, _stored(config.other, "image", images), config),
    }


def _stored(source: str, modality: Modality, names: Sequence[str]) -> np.ndarray:
    if not source.startswith(VECTORS):
        raise InputError(f"{source}: captions need {VECTORS}FOLDER, which `embed` writes")
    table = VectorTable(source.removeprefix(VECTORS), modality)
    return table.read(table.rows_of(names).tolist())


def _compare(a: np.ndarray, b: np.ndarray, config: SimilarityConfig) -> dict[str, Any]:
    compared = compare_tables(a, b, config.permutations, config.seed)
    return compared | {
        "mutual_neighbors": neighbors_by_gallery(a, b, config.neighbors, config.seed)
    }


# -- correlations ------------------------------------------------------------------------------------------------------
def _sides(a: np.ndarray, b: np.ndarray) -> tuple[_CenteredTable, _CenteredTable]:
    if len(a) != len(b):
        raise InputError(f"tables of {len(a)} and {len(b)} rows: expected paired rows")
    return _side(a, "first"), _side(b, "second")


def _side(table: np.ndarray, name: str) -> _CenteredTable:
    table = np.asarray(table, dtype=np.float64)
    if len(table) < 3 or not np.isfinite(table).all() or not np.ptp(table, axis=0).any():
        raise InputError(
            f"{name} table, of shape {table.shape}: expected 3 or more rows of finite numbers, not all equal"
        )
    basis, singular, directions = np.linalg.svd(table - table.mean(0), full_matrices=False)
    rank = int((singular > TOLERANCE * singular[0]).sum())
    return _CenteredTable(basis[:, :rank], singular[:rank, None] * directions[:rank])


def _correlate(
    a: _CenteredTable, b: _CenteredTable, order: np.ndarray | None = None
) -> CanonicalCorrelations:
    """Canonical correlations of `a` with the rows of `b` in `order` (n,)."""
    # A permuted orthonormal basis stays orthonormal: another pairing needs no new decomposition.
    basis_b = b.basis if order is None else b.basis[order]
    cross = a.basis.T @ basis_b
    left, rho, right = np.linalg.svd(cross, full_matrices=False)
    return CanonicalCorrelations(
        rho=np.clip(rho, 0, 1),
        weights_a=_weights(left.T, a),
        weights_b=_weights(right, b),
        ranks=cross.shape,
    )


def _weights(turn: np.ndarray, side: _CenteredTable) -> np.ndarray:
    """PWCCA weights of the canonical variates h, normalised to sum 1: sum over dimensions x of |<h, x>|."""
    accounted = np.abs(turn @ side.loadings).sum(1)
    return accounted / accounted.sum()


def _beside_chance(value: float, null: np.ndarray) -> dict[str, float | None]:
    mean = float(null.mean())
    room = 1 - mean
    return {
        "value": value,
        "null": mean,
        "null_sd": float(null.std(ddof=1)),
        "corrected": (value - mean) / room if room > 1e-9 else None,
    }


# -- words -------------------------------------------------------------------------------------------------------------
def _whole_words(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Lower-case words of letters that are single tokens, each with its token id."""
    special = set(tokenizer.all_special_ids)
    id_of = {token: i for token, i in tokenizer.get_vocab().items() if i not in special}
    spellings = []
    for token in _whole_tokens(id_of):
        # The tokenizer's decoder undoes byte alphabets: "crÃªpes" has only letters, too, but is no word.
        decoded = tokenizer.convert_tokens_to_string([token])
        spellings.append((decoded.removesuffix("</w>").strip(), id_of[token]))
    # Lower case first: CLIP has "A</w>" before "a</w>", but lower-cases its text, so "A</w>" is untrained.
    spellings.sort(key=lambda spelling: (spelling[0] != spelling[0].lower(), spelling[1]))
    words: dict[str, int] = {}
    for word, token_id in spellings:
        if word.isalpha():
            words.setdefault(word.lower(), token_id)
    return words


def _whole_tokens(tokens: Collection[str]) -> list[str]:
    """Tokens that are whole words, by the vocabulary's most frequent word-boundary mark; without marks, all tokens."""
    marked = [
        [token for token in tokens if token.startswith("Ġ")],  # byte-level BPE: start of a word
        [token for token in tokens if token.startswith("▁")],  # SentencePiece: start of a word
        [token for token in tokens if token.endswith("</w>")],  # CLIP: end of a word
    ]
    most = max(marked, key=len)
    # WordPiece instead marks tokens inside a word.
    begun = [token for token in tokens if not token.startswith("##")]
    inside = len(tokens) - len(begun)
    return begun if inside >= len(most) else most


# -- mutual nearest neighbours -----------------------------------------------------------------------------------------
# The share of neighbours that a row has in both tables (Huh et al. 2024, "The Platonic Representation Hypothesis",
# Section 2; minyoungg/platonic-rep, metrics.py, `mutual_knn`). It is high in small galleries, where either table has
# little choice, and falls with their size (Koepke et al. 2026, "Back into Plato's Cave", arXiv 2604.18572).

SMALLEST = 256
"""Rows of the smallest gallery; each other one has `GROWTH` times as many, and the last has all."""
GROWTH = 4
REPEATS = 10
"""Galleries of each size below all rows."""
BLOCK = 1 << 22
"""Similarities in memory at once, of each table."""


def mutual_neighbors(a: np.ndarray, b: np.ndarray, neighbors: int) -> float:
    """The mean share of a row's nearest rows, by cosine, that tables (n, d1) and (n, d2) have in common.

    Of equally near rows the first count. Memory grows with n, not with its square. Raises InputError for a row
    without a direction, or not more than `neighbors` rows.
    """
    if len(a) <= neighbors:
        raise InputError(f"{len(a)} rows have no {neighbors} neighbours each")
    one, other = _directions(a), _directions(b)
    common = 0
    step = max(1, BLOCK // len(a))
    for start in range(0, len(a), step):
        block = slice(start, start + step)
        shared = _are_nearest(one, block, neighbors) & _are_nearest(other, block, neighbors)
        common += int(shared.sum())
    return common / (neighbors * len(a))


def _directions(table: np.ndarray) -> np.ndarray:
    """The rows as unit vectors, float32."""
    table = np.asarray(table, np.float32)
    lengths = np.linalg.norm(table, axis=1, keepdims=True)
    if not (np.isfinite(lengths) & (lengths > 0)).all():
        place = int(np.flatnonzero(~(np.isfinite(lengths) & (lengths > 0)))[0])
        raise InputError(f"row {place} of the tables is 0 or not finite, and has no neighbours")
    directions: np.ndarray = table / lengths
    return directions


def _are_nearest(directions: np.ndarray, block: slice, neighbors: int) -> np.ndarray:
    """(rows of the block, n) bool: the nearest other rows of each."""
    cosines = directions[block] @ directions.T
    rows = np.arange(len(cosines))
    cosines[rows, rows + block.start] = -np.inf
    last = np.partition(cosines, -neighbors, axis=1)[:, -neighbors, None]
    nearer = cosines > last
    as_near = cosines == last
    room = neighbors - nearer.sum(1, keepdims=True)
    nearest: np.ndarray = nearer | (as_near & (as_near.cumsum(1) <= room))
    return nearest


def neighbors_by_gallery(
    a: np.ndarray, b: np.ndarray, neighbors: int = 10, seed: int = 0
) -> list[dict[str, Any]]:
    """`mutual_neighbors` of galleries of 256, 1,024, ... rows of two tables (n, d1) and (n, d2), and of all rows.

    Of each smaller size it is the mean over galleries that the seed draws, with an interval over them. `chance` is its
    value for tables without relation, k / (rows - 1). Of few rows all others but one are neighbours at most.
    """
    k = min(neighbors, len(a) - 2)
    sizes = takewhile(lambda size: size < len(a), (SMALLEST * GROWTH**power for power in range(32)))
    curve = []
    for size in [*(size for size in sizes if size > k), len(a)]:
        galleries = REPEATS if size < len(a) else 1
        values = []
        for repeat in range(galleries):
            drawn = generator(seed, "gallery", size, repeat).permutation(len(a))[:size]
            drawn.sort()
            values.append(mutual_neighbors(a[drawn], b[drawn], k))
        ends = interval(np.array(values)).tolist() if galleries > 1 else None
        point = {"rows": size, "galleries": galleries, "neighbors": k, "chance": k / (size - 1)}
        curve.append(point | {"value": float(np.mean(values)), "interval": ends})
    return curve
