"""Diversity of a cross-modal model's attention from text tokens to CLIP tokens (XDBERT, Section 5 and Table 9).

The paper shows the maps of head 0 for one text, each with its own colour scale; two of them are nearly uniform. Here
all heads are measured over many texts and compared with uniform attention. Rows are the text's tokens (the encoder's
[CLS] and [SEP] can be shown, but are never measured); columns are all CLIP tokens, including start and end tokens.

Sizes: L cross-modal layers, H heads, R rows, V columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import entr
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, Example, TextRow, collate, require
from groundling.core.errors import InputError
from groundling.core.registry import resolve
from groundling.core.resampling import DRAWS, draw_resample, interval
from groundling.core.rng import generator
from groundling.data.corpora import corpus_samples, stores_folder
from groundling.data.samples import TextDataset, subsample
from groundling.data.text import stop_words, word_spans
from groundling.models.attention import AttentionMap, PositionKind
from groundling.models.cross_modal import CrossModalEncoder, load_cross_modal_encoder
from groundling.runs.progress import track
from groundling.runs.report import draw_heat_maps, save_figure
from groundling.runs.run import Run
from groundling.studies.xdbert.commands import AttentionConfig
from groundling.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MEASURES = (
    "row_entropy",
    "pairwise_js",
    "effective_rank",
    "distinct_argmax",
    "special_mass",
    "stopword_mass",
)
"""Names of the measures, in the order of `measures`."""

SHOWN_HEAD = 0
"""The head whose maps are drawn, as in the paper."""

MIN_TEXTS = 200
"""Minimum number of distinct texts with at least two tokens."""

LEGIBLE = 60
"""Maximum number of tokens on an axis with labels."""

TEXT_OVER_CLIP = "text over clip"
"""Name of the measured attention maps."""


def attention(config: AttentionConfig, run: Run) -> dict[str, Any]:
    """Diversity of two cross-modal models' attention maps, and heat maps of a text of median length.

    Writes `attention.svg` to the run's folder, and returns the numbers of `compare_maps`. Raises InputError if a folder
    contains no complete cross-modal model, or the models are not comparable.
    """
    a = load_cross_modal_encoder(config.model)
    b = load_cross_modal_encoder(config.other)
    texts = _texts(config, a, run.folder)
    comparison = compare_maps(a, b, texts, max_length=config.max_length)
    example = sorted(texts, key=lambda example: len(example.text))[len(texts) // 2]
    names = (config.model, config.other)
    maps = heat_maps(
        a, b, example, names, max_length=config.max_length, special=config.special_tokens
    )
    with warnings.catch_warnings():  # tokens may be in any script, the font lacks most
        warnings.filterwarnings("ignore", "Glyph")
        save_figure(maps, run.folder / "attention.svg")
    shown = {"example": example.id, "head": SHOWN_HEAD}
    return {"a": config.model, "b": config.other, **comparison, "shown": shown}


def _texts(config: AttentionConfig, model: CrossModalEncoder, out: Path) -> list[Example]:
    """Sentences of text files, or the development examples of a task."""
    if not config.task:
        text, _ = model.inputs(config.max_length)
        place = stores_folder(out)
        samples = corpus_samples(config.text, "lines", text, place, limit=config.limit)
        corpus = samples.get(range(len(samples)))
        return [require(one.example, "example", "a corpus") for one in corpus]
    task = resolve("tasks", Task, config.task)
    return subsample(task.read(Path(config.data), task.dev[0]), config.limit)


# -- measures ----------------------------------------------------------------------------------------------------------
def compute_measures(maps: ArrayLike, special: ArrayLike, stop: ArrayLike) -> np.ndarray:
    """All MEASURES (..., 6) of maps (..., R, V); `special` and `stop` (V,) mark special tokens and stop words.

    Raises InputError for maps that are empty, negative, or whose rows do not sum to 1.
    """
    rows = _normalise_rows(maps)
    masses = [rows[..., np.asarray(one, bool)].sum(-1).mean(-1) for one in (special, stop)]
    measures = (row_entropy, pairwise_js, effective_rank, distinct_argmax)
    return np.stack([*(measure(rows) for measure in measures), *masses], -1)


def row_entropy(rows: np.ndarray) -> np.ndarray:
    """Mean row entropy of maps (..., R, V) divided by log V: 1 is uniform; NaN for one column."""
    columns = rows.shape[-1]
    maximum = np.log(columns) if columns > 1 else np.nan
    return entr(rows).sum(-1).mean(-1) / maximum


def pairwise_js(rows: np.ndarray) -> np.ndarray:
    """Mean Jensen-Shannon divergence (nats) over all pairs of rows of maps (..., R, V).

    0 for equal rows, at most ln 2; NaN for one row.
    """
    count = rows.shape[-2]
    entropy = entr(rows).sum(-1)
    total = np.zeros(rows.shape[:-2])
    # One row against all later rows at a time: all pairs at once would take R * R * V numbers per map.
    for i in range(count - 1):
        mixture = (rows[..., i : i + 1, :] + rows[..., i + 1 :, :]) / 2
        mean_entropy = (entropy[..., i : i + 1] + entropy[..., i + 1 :]) / 2
        total += (entr(mixture).sum(-1) - mean_entropy).sum(-1)
    pairs = count * (count - 1) / 2 if count > 1 else np.nan
    return np.maximum(total, 0) / pairs


def effective_rank(rows: np.ndarray) -> np.ndarray:
    """Exponential of the entropy of the normalised singular values of maps (..., R, V) (Roy and Vetterli 2007)."""
    singular = np.linalg.svd(rows, compute_uv=False)
    shares = singular / singular.sum(-1, keepdims=True)
    return np.exp(entr(shares).sum(-1))


def distinct_argmax(rows: np.ndarray) -> np.ndarray:
    """Number of distinct argmax columns divided by R, of maps (..., R, V); ties go to the first column."""
    best = np.sort(rows.argmax(-1), axis=-1)
    distinct = 1 + (np.diff(best) > 0).sum(-1)
    return distinct / best.shape[-1]


def _normalise_rows(maps: ArrayLike) -> np.ndarray:
    """Maps in double precision, with rows normalised to sum 1 exactly."""
    rows = np.asarray(maps, np.float64)
    sums = rows.sum(-1, keepdims=True) if rows.ndim else rows
    shaped = rows.ndim >= 2 and 0 not in rows.shape
    if not shaped or not (rows >= 0).all() or not np.allclose(sums, 1, atol=1e-3):
        raise InputError(
            f"attention map {rows.shape}: expected (..., rows, columns), none negative, rows of sum 1"
        )
    return rows / sums


# -- maps of a model ---------------------------------------------------------------------------------------------------
class ExampleMaps(NamedTuple):
    """An example's attention maps, without padding."""

    number: int
    """Number of the example."""
    text: TextRow
    """Tokens of the text encoder; those that are not special are the maps' rows."""
    clip: TextRow
    """Tokens of the CLIP text tower, the maps' columns."""
    weights: np.ndarray
    """(L, H, R, V); rows sum to 1."""


class DiversityScores(NamedTuple):
    """MEASURES of N examples' maps."""

    scores: np.ndarray
    """(N, L, H, 6); NaN for an example with fewer than two rows or columns."""
    uniform: np.ndarray
    """(N, 6): MEASURES of uniform attention with the same numbers of rows and columns."""
    shapes: np.ndarray
    """(N, 2) int: number of rows and columns."""


@torch.no_grad()
def attention_maps(
    model: CrossModalEncoder,
    examples: Sequence[Example],
    max_length: int = 128,
    batch: int = 32,
    special: bool = False,
) -> Iterator[ExampleMaps]:
    """Each example's maps, shortest examples first; computed in eval mode on the model's device.

    Examples are truncated to `max_length` tokens, in batches of `batch`. Rows are the text's tokens, with `special`
    also the encoder's [CLS] and [SEP]; columns are all CLIP tokens. Raises InputError for multiple choice.
    """
    # Only some of several files may have labels.
    unlabelled = [replace(example, label=None) for example in examples]
    samples = TextDataset(unlabelled, *model.inputs(max_length), max_cached=0)
    device = next(model.parameters()).device
    order = np.argsort(samples.lengths, kind="stable").tolist()
    model.eval()
    for start in track(range(0, len(order), batch), "attention maps", "batch"):
        numbers = order[start : start + batch]
        rows = samples.get(numbers)
        maps = _batch_maps(model, collate(rows).to(device), special)
        for number, row, layers in zip(numbers, rows, zip(*maps, strict=True), strict=True):
            text = require(row.text, "text", "attention maps of multiple choice")
            clip = require(row.clip, "clip", "attention maps of multiple choice")
            yield ExampleMaps(number, text, clip, np.stack(layers))


def _batch_maps(model: CrossModalEncoder, batch: Batch, special: bool) -> list[list[np.ndarray]]:
    """The maps (H, R, V) of every cross-modal layer and example, without padding."""
    row_kinds = (PositionKind.TOKEN, PositionKind.SPECIAL) if special else (PositionKind.TOKEN,)
    layers: list[list[np.ndarray]] = []

    def receive(attention_map: AttentionMap) -> None:
        if attention_map.name != TEXT_OVER_CLIP:
            return
        is_row = np.isin(attention_map.rows.kinds.cpu().numpy(), row_kinds)
        is_column = (attention_map.columns.kinds != PositionKind.PADDING).cpu().numpy()
        layer = []
        for maps, rows, columns in zip(
            attention_map.weights.float().cpu().numpy(), is_row, is_column, strict=True
        ):
            layer.append(maps[:, rows][:, :, columns])
        layers.append(layer)

    model(batch, attention=receive)
    return layers


def diversity(
    model: CrossModalEncoder, examples: Sequence[Example], max_length: int = 128, batch: int = 32
) -> DiversityScores:
    """MEASURES of every example's `attention_maps`. Raises InputError for multiple choice."""
    scores: dict[int, np.ndarray] = {}
    uniform = np.full((len(examples), len(MEASURES)), np.nan)
    shapes = np.zeros((len(examples), 2), np.int64)
    stopwords = stop_words()
    for number, _, clip, weights in attention_maps(model, examples, max_length, batch):
        rows, columns = shapes[number] = weights.shape[-2:]
        scores[number] = np.full((*weights.shape[:2], len(MEASURES)), np.nan)
        if min(rows, columns) > 1:
            stop = _stop_word_columns(examples[number], clip, stopwords)
            scores[number] = compute_measures(weights, clip.special_tokens_mask, stop)
            flat = np.full((rows, columns), 1 / columns)
            uniform[number] = compute_measures(flat, clip.special_tokens_mask, stop)
    in_order = [scores[number] for number in range(len(examples))]
    return DiversityScores(np.array(in_order), uniform, shapes)


def _stop_word_columns(example: Example, clip: TextRow, stopwords: Collection[str]) -> np.ndarray:
    """(V,) bool: whether each CLIP token belongs to a stop word of the example."""
    is_stop = []
    for part in (example.text, example.text_pair or ""):
        is_stop += [part[start:stop].lower() in stopwords for start, stop in word_spans(part)]
    return np.array([word >= 0 and is_stop[word] for word in clip.word_ids], bool)


# -- two models --------------------------------------------------------------------------------------------------------
def compare_maps(
    a: CrossModalEncoder,
    b: CrossModalEncoder,
    examples: Sequence[Example],
    max_length: int = 128,
) -> dict[str, Any]:
    """Per measure and layer: means of `a` and `b`, and b - a with its 95 % interval; JSON-compatible.

    Means are over texts and heads; `heads` has each head's means over texts. Head h of one training does not correspond
    to head h of another, so there are no differences by head. Of equal texts one counts. The paired bootstrap is over
    texts: the interval covers these two trainings, not other seeds.

    Raises InputError if the models have other tokenizers or numbers of layers, or there are too few texts.
    """
    texts = _distinct(examples)
    of_a = diversity(a, texts, max_length)
    of_b = diversity(b, texts, max_length)
    if len(a.cross) != len(b.cross) or (of_a.shapes != of_b.shapes).any():
        raise InputError("the models' maps differ in shape: expected equal tokenizers and layers")
    measurable = np.flatnonzero(of_a.shapes.min(1) > 1)
    if len(measurable) < MIN_TEXTS:
        raise InputError(
            f"{len(measurable)} distinct texts of two or more tokens; expected at least {MIN_TEXTS}"
        )
    scores_a = of_a.scores[measurable]
    scores_b = of_b.scores[measurable]
    uniform = of_a.uniform[measurable].mean(0)
    return {
        "texts": len(measurable),
        "left_out": len(texts) - len(measurable),
        "mean_tokens": of_a.shapes[measurable].mean(0).tolist(),
        "measures": _measure_rows(scores_a, scores_b, uniform),
    }


def _distinct(examples: Sequence[Example]) -> list[Example]:
    """Distinct texts, keeping the last of equal ones."""
    by_content = {
        (example.text, example.text_pair, example.choices): example for example in examples
    }
    return list(by_content.values())


def _measure_rows(
    scores_a: np.ndarray, scores_b: np.ndarray, uniform: np.ndarray
) -> list[dict[str, Any]]:
    """One row for each measure and layer, from scores (N, L, H, 6) and those of uniform attention (6,)."""
    # Heads of one text are not independent, so average over them: (N, L, 6).
    by_text_a = scores_a.mean(2)
    by_text_b = scores_b.mean(2)
    difference = by_text_b - by_text_a
    rng = generator(0, "bootstrap")
    means = [draw_resample(difference, rng).mean(0) for _ in range(DRAWS)]
    low, high = interval(np.stack(means))
    cells = {
        "a": by_text_a.mean(0),
        "b": by_text_b.mean(0),
        "difference": difference.mean(0),
        "low": low,
        "high": high,
    }
    heads_a = scores_a.mean(0)  # (L, H, 6)
    heads_b = scores_b.mean(0)
    rows = []
    for place, name in enumerate(MEASURES):
        for layer in range(len(heads_a)):
            row: dict[str, Any] = {
                "measure": name,
                "layer": layer + 1,
                "uniform": float(uniform[place]),
            }
            for key, cell in cells.items():
                row[key] = float(cell[layer, place])
            row["heads"] = {
                "a": heads_a[layer, :, place].tolist(),
                "b": heads_b[layer, :, place].tolist(),
            }
            rows.append(row)
    return rows


def heat_maps(
    a: CrossModalEncoder,
    b: CrossModalEncoder,
    example: Example,
    names: tuple[str, str] = ("a", "b"),
    max_length: int = 128,
    special: bool = False,
) -> Figure:
    """Maps of `SHOWN_HEAD` for one text, layers by models.

    All maps share one colour scale, on which uniform attention is marked. With `special`, [CLS] and [SEP] have rows, as
    in XDBERT's Table 9.
    """
    _, text, clip, maps_a = next(attention_maps(a, [example], max_length, special=special))
    _, _, _, maps_b = next(attention_maps(b, [example], max_length, special=special))
    rows = _token_labels(
        a.text.tokenizer, text.input_ids if special else text.input_ids[~text.special_tokens_mask]
    )
    columns = _token_labels(
        require(a.clip_tokenizer, "clip_tokenizer", "a heat map"), clip.input_ids
    )
    titles = {}
    for layer, layers in enumerate(zip(maps_a, maps_b, strict=True), 1):
        for name, heads in zip(names, layers, strict=True):
            titles[f"{name}: layer {layer}, head {SHOWN_HEAD}"] = heads[SHOWN_HEAD]
    labels = ("CLIP tokens", "text tokens")
    return draw_heat_maps(titles, rows, columns, labels, 100 / len(clip.input_ids), panels=2)


def _token_labels(tokenizer: PreTrainedTokenizerBase, ids: np.ndarray) -> list[str]:
    """Readable tokens; none if there are more than LEGIBLE."""
    if len(ids) > LEGIBLE:
        return []
    spelt = []
    for token in tokenizer.convert_ids_to_tokens(ids.tolist()):
        decoded = tokenizer.convert_tokens_to_string([token])
        spelt.append(decoded.removesuffix("</w>").strip() or token)
    return spelt
