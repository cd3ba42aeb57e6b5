"""How alike two tables of word embeddings are: mean CCA, SVCCA and PWCCA, beside what chance alone gives.

The published definitions (Raghu et al. 2017, Morcos et al. 2018), as in XDBERT's Table 2. Independent tables score far
above 0 (.36 at 4500 words of 768 dimensions), so no value is given without the same value of permuted pairings.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from groundling.errors import InputError
from groundling.keyed import generator
from groundling.models.clip import CLIP_LIKE, load_clip_text
from groundling.models.loading import load_config
from groundling.models.text import load_text_encoder

TOLERANCE = 1e-6
"""Directions whose singular value is below this share of the largest do not count."""

CROWDED = 5
"""Fewer samples than this per dimension, and chance is much of what is measured; below 2, PWCCA is not even unique."""


@dataclass(frozen=True)
class Canonical:
    """Canonical correlations rho (R,) in falling order, R the lower rank, and both sides' PWCCA weights (R,), sum 1."""

    rho: np.ndarray
    weights_a: np.ndarray
    weights_b: np.ndarray
    ranks: tuple[int, int]

    @property
    def mean_cca(self) -> float:
        """Mean correlation over the true ranks."""
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
    def side(self) -> str:
        """The side that weights by default: the one of lower rank, else `a`."""
        return "b" if self.ranks[1] < self.ranks[0] else "a"

    @property
    def pwcca(self) -> float:
        """PWCCA weighted by the default side."""
        return self.pwcca_a if self.side == "a" else self.pwcca_b


@dataclass(frozen=True)
class _Side:
    """A centred table (n, d) as `basis` (n, R) orthonormal, times `loads` (R, d); principal directions first."""

    basis: np.ndarray
    loads: np.ndarray

    def leading(self, keep: float) -> _Side:
        """The first directions that hold a share `keep` < 1 of the variance; from 1 on, `keep` is their number."""
        if not keep > 0:
            raise InputError(
                f"keep {keep}: expected a share of the variance below 1, or a number of components"
            )
        held = np.cumsum((self.loads**2).sum(1))
        k = int(keep) if keep >= 1 else int(np.searchsorted(held / held[-1], keep)) + 1
        return _Side(self.basis[:, :k], self.loads[:k])


def canonical(a: np.ndarray, b: np.ndarray) -> Canonical:
    """Canonical correlations of two tables (n, d1) and (n, d2) with paired rows, in float64."""
    return _canonical(*_sides(a, b))


def svcca(a: np.ndarray, b: np.ndarray, keep: float = 0.99) -> float:
    """Mean CCA of both sides' first principal components: as many as hold a share `keep` of the variance, or `keep`."""
    one, two = _sides(a, b)
    return _canonical(one.leading(keep), two.leading(keep)).mean_cca


def compare_tables(
    a: np.ndarray, b: np.ndarray, draws: int = 5, seed: int = 0, keep: float = 0.99
) -> dict[str, Any]:
    """Every score of tables (n, d1), (n, d2), beside mean and sd of `draws` permuted pairings; ready for JSON.

    `corrected` is (value - null) / (1 - null), None where chance alone gives 1. `keep` is that of `svcca`.
    """
    if draws < 2:
        raise InputError(f"draws: {draws} permuted pairings have no spread; expected at least 2")
    one, two = _sides(a, b)
    kept = one.leading(keep), two.leading(keep)
    n, dims = len(one.basis), [one.loads.shape[1], two.loads.shape[1]]
    rows: dict[str, list[float]] = {
        "mean_cca": [],
        "svcca": [],
        "pwcca": [],
        "pwcca_a": [],
        "pwcca_b": [],
    }
    for order in [
        np.arange(n),
        *(generator(seed, "null", draw).permutation(n) for draw in range(draws)),
    ]:
        found, first = _canonical(one, two, order), _canonical(*kept, order)
        values = (found.mean_cca, first.mean_cca, found.pwcca, found.pwcca_a, found.pwcca_b)
        for row, value in zip(rows.values(), values, strict=True):
            row.append(value)
    scores = {name: _beside_chance(row[0], np.array(row[1:])) for name, row in rows.items()}
    crowded = (
        f"{n} samples are fewer than {CROWDED} for each of {max(dims)} dimensions: "
        f"chance alone gives a mean CCA of {scores['mean_cca']['null']:.2f}"
    )
    return {
        "n": n,
        "dims": dims,
        "ranks": list(found.ranks),
        "components": list(first.ranks),
        "side": found.side,
        "draws": draws,
        "seed": seed,
        "scores": scores,
        "warnings": [crowded] if n < CROWDED * max(dims) else [],
    }


def word_table(
    source: str | Path, partner: Sequence[str] = (), width: int = 768, seed: int = 0
) -> tuple[list[str], np.ndarray]:
    """Lower-case whole words of a text encoder or CLIP-like model, by piece id, and their input embeddings (N, D).

    The source "random" gives every word of `partner` `width` uniform numbers (RANDOM in XDBERT's Table 2).
    """
    if source == "random":
        if not partner or width < 1:
            raise InputError(
                "random: a random table needs a partner's words and a width of 1 or more"
            )
        return list(partner), np.stack(
            [generator(seed, "random", word).random(width) for word in partner]
        )
    if load_config(source).model_type in CLIP_LIKE:
        tower, tokenizer = load_clip_text(source)
        table = tower.table
    else:
        text = load_text_encoder(source)
        table, tokenizer = text.encoder.get_input_embeddings().weight, text.tokenizer
    special = set(tokenizer.all_special_ids)
    pieces = {piece: i for piece, i in tokenizer.get_vocab().items() if i not in special}
    # The tokenizer's own decoder undoes byte alphabets: "crÃªpes" is all letters too, but no word.
    spelled = [
        (tokenizer.convert_tokens_to_string([p]).removesuffix("</w>").strip(), pieces[p])
        for p in _whole(pieces)
    ]
    first: dict[str, int] = {}
    # Lower case goes first: CLIP has an "A</w>" before its "a</w>", but lower-cases its text and never trained it.
    for word, i in sorted(spelled, key=lambda found: (found[0] != found[0].lower(), found[1])):
        if word.isalpha():
            first.setdefault(word.lower(), i)
    words = sorted(first, key=first.__getitem__)
    if words and first[words[-1]] >= len(table):
        raise InputError(
            f"{source}: the tokenizer knows piece {first[words[-1]]}, the model only {len(table)} pieces"
        )
    return words, table.detach().numpy()[[first[word] for word in words]]


def similarity(
    a: str | Path, b: str | Path, top: int = 0, draws: int = 5, seed: int = 0, width: int = 768
) -> dict[str, Any]:
    """Compare two models' input embeddings on the words that both have whole, the first `top` by a's piece ids.

    Either may be "random" (of `width` dimensions). XDBERT's Table 2 states neither words nor side: see both, and `n`.
    """
    if a == b == "random" or top < 0:
        raise InputError(
            f"similarity of {a} and {b}, top {top}: expected a model on one side at least, and top >= 0"
        )
    models = {source: word_table(source) for source in (a, b) if source != "random"}
    partner = next(iter(models.values()))[0]
    (words_a, table_a), (words_b, table_b) = (
        models[source] if source in models else word_table(source, partner, width, seed)
        for source in (a, b)
    )
    at_a, at_b = ({word: i for i, word in enumerate(words)} for words in (words_a, words_b))
    shared = [word for word in words_a if word in at_b]
    chosen = shared[:top] if top else shared
    if len(chosen) < 3:
        raise InputError(f"{a} and {b}: {len(chosen)} whole words to compare, expected at least 3")
    found = compare_tables(
        table_a[[at_a[w] for w in chosen]], table_b[[at_b[w] for w in chosen]], draws, seed
    )
    return {
        "a": str(a),
        "b": str(b),
        "words": [len(words_a), len(words_b)],
        "shared": len(shared),
        **found,
    }


def _sides(a: np.ndarray, b: np.ndarray) -> tuple[_Side, _Side]:
    if len(a) != len(b):
        raise InputError(
            f"tables of {len(a)} and {len(b)} rows: rows are pairs, expected as many on both sides"
        )
    return _side(a, "first"), _side(b, "second")


def _side(table: np.ndarray, name: str) -> _Side:
    table = np.asarray(table, dtype=np.float64)
    if table.ndim != 2 or len(table) < 3:
        raise InputError(f"{name} table: shape {table.shape}, expected (n, d) with n >= 3")
    if not np.isfinite(table).all():
        raise InputError(f"{name} table: {int((~np.isfinite(table)).sum())} values are not finite")
    if not np.ptp(table, axis=0).any():
        raise InputError(f"{name} table: all rows are equal, nothing can correlate")
    basis, singular, directions = np.linalg.svd(table - table.mean(0), full_matrices=False)
    rank = int((singular > TOLERANCE * singular[0]).sum())
    return _Side(basis[:, :rank], singular[:rank, None] * directions[:rank])


def _canonical(a: _Side, b: _Side, order: Any = slice(None)) -> Canonical:
    # Permuted, a centred orthonormal basis stays one: another pairing needs no second decomposition of a table.
    cross = a.basis.T @ b.basis[order]
    left, rho, right = np.linalg.svd(cross, full_matrices=False)
    # What a variate h accounts for of a centred table: sum over dimensions x of |<h, x>|.
    parts = [np.abs(turn @ side.loads).sum(1) for turn, side in ((left.T, a), (right, b))]
    return Canonical(
        np.clip(rho, 0, 1), parts[0] / parts[0].sum(), parts[1] / parts[1].sum(), cross.shape
    )


def _beside_chance(value: float, null: np.ndarray) -> dict[str, float | None]:
    mean = float(null.mean())
    corrected = (value - mean) / (1 - mean) if 1 - mean > 1e-9 else None
    return {
        "value": value,
        "null": mean,
        "null_sd": float(null.std(ddof=1)),
        "corrected": corrected,
    }


def _whole(pieces: Mapping[str, int]) -> list[str]:
    """Pieces that are whole words, by the mark that most of a vocabulary's pieces bear; all of them without any."""
    bounded = [  # at a word's begin (byte-level BPE, SentencePiece) or at its end (CLIP)
        [p for p in pieces if p.startswith("Ġ")],
        [p for p in pieces if p.startswith("▁")],
        [p for p in pieces if p.endswith("</w>")],
    ]
    most = max(bounded, key=len)
    begun = [p for p in pieces if not p.startswith("##")]  # WordPiece marks what goes on
    return begun if len(pieces) - len(begun) >= len(most) else most
