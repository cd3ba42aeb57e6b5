"""How diversely a cross-modal model's text pieces attend to CLIP pieces (XDBERT, Section 5 and Table 9), in numbers.

The paper shows one text's maps of head 0, each on a colour scale of its own, two of them all but uniform. Here are all
heads over many texts, beside what uniform attention would give. Rows are the text's own pieces (without the encoder's
[CLS] and [SEP]), columns all CLIP pieces, start and end tokens included.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import entr

from groundling.analysis.grounded import stop_words
from groundling.batch import Example, Row, collate
from groundling.data.samples import TextSamples
from groundling.data.words import spans
from groundling.errors import InputError
from groundling.keyed import generator
from groundling.models.crossmodal import CrossModal
from groundling.report import new_figure, svg_of
from groundling.runs import disk_errors, write_json

MEASURES = (
    "row_entropy",
    "pairwise_js",
    "effective_rank",
    "distinct_argmax",
    "special_mass",
    "stopword_mass",
)


def row_entropy(maps: ArrayLike) -> np.ndarray:
    """Mean entropy of the rows of maps (..., R, V) as a share of log V: 1 is uniform; NaN for one column."""
    rows = _checked(maps)
    return entr(rows).sum(-1).mean(-1) / (np.log(rows.shape[-1]) or np.nan)


def pairwise_js(maps: ArrayLike) -> np.ndarray:
    """Mean Jensen-Shannon divergence (nats) over all pairs of rows of maps (..., R, V): 0 if alike, at most ln 2."""
    rows = _checked(maps)
    own, count, total = entr(rows).sum(-1), rows.shape[-2], np.zeros(rows.shape[:-2])
    for i in range(
        count - 1
    ):  # one row with all later ones: all pairs at once would take R * R * V numbers a map
        mixed = entr((rows[..., i : i + 1, :] + rows[..., i + 1 :, :]) / 2).sum(-1)
        total += (mixed - (own[..., i : i + 1] + own[..., i + 1 :]) / 2).sum(-1)
    return np.maximum(total, 0) / (count * (count - 1) / 2 or np.nan)


def effective_rank(maps: ArrayLike) -> np.ndarray:
    """Exponential of the entropy of the normalised singular values of maps (..., R, V) (Roy and Vetterli 2007)."""
    singular = np.linalg.svd(_checked(maps), compute_uv=False)
    return np.exp(entr(singular / singular.sum(-1, keepdims=True)).sum(-1))


def distinct_argmax(maps: ArrayLike) -> np.ndarray:
    """How many columns are the largest of some row, per row, of maps (..., R, V); ties go to the first column."""
    best = np.sort(_checked(maps).argmax(-1), axis=-1)
    return (1 + (np.diff(best) > 0).sum(-1)) / best.shape[-1]


def column_mass(maps: ArrayLike, columns: ArrayLike) -> np.ndarray:
    """Mean over the rows of maps (..., R, V) of the weight on the marked `columns` (V,)."""
    return _checked(maps)[..., np.asarray(columns, bool)].sum(-1).mean(-1)


def measures(maps: ArrayLike, special: ArrayLike, stop: ArrayLike) -> np.ndarray:
    """All MEASURES (..., 6) of maps (..., R, V) whose columns of special tokens and of stop words (V,) are marked."""
    masses = column_mass(maps, special), column_mass(maps, stop)
    return np.stack(
        [
            row_entropy(maps),
            pairwise_js(maps),
            effective_rank(maps),
            distinct_argmax(maps),
            *masses,
        ],
        -1,
    )


def _checked(maps: ArrayLike) -> np.ndarray:
    rows = np.asarray(maps, np.float64)
    if (
        rows.ndim < 2
        or 0 in rows.shape
        or not ((rows >= 0).all() and np.allclose(rows.sum(-1), 1, atol=1e-3))
    ):
        raise InputError(
            f"attention map {rows.shape}: expected (..., rows, columns), none negative, rows of sum 1"
        )
    return rows / rows.sum(-1, keepdims=True)  # single precision leaves a little


@torch.no_grad()
def attention_maps(
    model: CrossModal, examples: Sequence[Example], max_length: int = 128, batch: int = 32
) -> Iterator[tuple[int, Row, Row, np.ndarray]]:
    """Each example's number, text row, CLIP row and maps (L layers, H heads, R, V) without padding, shortest first."""
    if several := [e.id for e in examples if e.choices]:
        raise InputError(f"example {several[0]} is multiple choice; expected a text, or a pair")
    # Of texts from several files, only some may have labels.
    samples = TextSamples(
        [replace(e, label=None) for e in examples], *model.inputs(max_length), keep=0
    )
    device, training = next(model.parameters()).device, model.training
    order = np.argsort(samples.lengths, kind="stable").tolist()
    model.eval()
    try:
        for start in range(0, len(order), batch):
            rows = samples.get(order[start : start + batch])
            found = (
                torch.stack(model(collate(rows).to(device), maps=True).attention)
                .float()
                .cpu()
                .numpy()
            )
            for place, sample in enumerate(rows):
                text, clip = sample.text, sample.clip
                assert text is not None and clip is not None, "a CrossModal reads both sides"
                own = np.flatnonzero(~text.special)
                yield order[start + place], text, clip, found[:, place][:, :, own, : len(clip.ids)]
    finally:
        model.train(training)


def diversity(
    model: CrossModal, examples: Sequence[Example], max_length: int = 128
) -> tuple[np.ndarray, ...]:
    """MEASURES of N examples' maps (N, L, H, 6), those of uniform attention (N, 6), rows and columns (N, 2).

    Computed in eval mode on the model's device; NaN for an example with fewer than two rows or columns.
    """
    scores: list[Any] = [np.nan] * len(examples)
    uniform, shapes, stops = (
        np.full((len(examples), 6), np.nan),
        np.zeros((len(examples), 2), np.int64),
        stop_words(),
    )
    for number, _, clip, maps in attention_maps(model, examples, max_length):
        shapes[number] = rows, columns = maps.shape[-2:]
        scores[number] = np.full((*maps.shape[:2], 6), np.nan)
        if min(rows, columns) > 1:
            parts = examples[number].text, examples[number].pair or ""
            words = [part[i:j].lower() in stops for part in parts for i, j in spans(part)]
            stop = [at >= 0 and words[at] for at in clip.word]  # every piece of a stop word is one
            scores[number] = measures(maps, clip.special, stop)
            uniform[number] = measures(np.full((rows, columns), 1 / columns), clip.special, stop)
    return np.array(scores), uniform, shapes


def compare_maps(
    a: CrossModal,
    b: CrossModal,
    examples: Sequence[Example],
    draws: int = 2000,
    seed: int = 0,
    least: int = 200,
    max_length: int = 128,
) -> dict[str, Any]:
    """Per measure and layer: means of `a` and `b` over heads and texts, and b - a with its 95 % interval; for JSON.

    A paired bootstrap over texts, each once however often given: it speaks of these two trainings, not of other seeds.
    """
    if len(a.cross) != len(b.cross):
        raise InputError(
            f"models of {len(a.cross)} and {len(b.cross)} cross-modal layers: expected equally many"
        )
    texts = list({(e.text, e.pair, e.choices): e for e in examples}.values())
    (first, uniform, shapes), (second, _, theirs) = (
        diversity(model, texts, max_length) for model in (a, b)
    )
    for at in np.flatnonzero((shapes != theirs).any(1)):
        raise InputError(
            f"example {texts[at].id}: maps of {shapes[at]} and {theirs[at]}; expected equal tokenizers"
        )
    kept, least = np.flatnonzero(shapes.min(1) > 1), max(least, 2)
    if len(kept) < least or draws < 2:
        raise InputError(
            f"{len(kept)} different texts of two pieces, {draws} draws; expected at least {least} and 2"
        )
    values = [
        scores[kept].mean(2) for scores in (first, second)
    ]  # (N, L, 6): heads of one text are no sample
    gap, rng = values[1] - values[0], generator(seed, "bootstrap")
    drawn = np.stack([gap[rng.integers(len(kept), size=len(kept))].mean(0) for _ in range(draws)])
    low, high = np.quantile(drawn, [0.025, 0.975], axis=0)
    cells = {
        "a": values[0].mean(0),
        "b": values[1].mean(0),
        "difference": gap.mean(0),
        "low": low,
        "high": high,
    }
    rows = [
        {
            "measure": name,
            "layer": layer + 1,
            "uniform": float(uniform[kept, m].mean()),
            **{key: float(cell[layer, m]) for key, cell in cells.items()},
        }
        for m, name in enumerate(MEASURES)
        for layer in range(len(a.cross))
    ]
    counts = {
        "texts": len(kept),
        "left_out": len(texts) - len(kept),
        "mean_pieces": shapes[kept].mean(0).tolist(),
    }
    return {**counts, "draws": draws, "seed": seed, "measures": rows}


def heat_maps(
    a: CrossModal,
    b: CrossModal,
    example: Example,
    head: int = 0,
    names: tuple[str, str] = ("a", "b"),
    path: str | Path | None = None,
    max_length: int = 128,
) -> str:
    """One head's maps, layers by models, on one colour scale with uniform attention marked, as SVG; a PNG at `path`."""
    (_, text, clip, ours), (_, *_, theirs) = (
        next(attention_maps(m, [example], max_length)) for m in (a, b)
    )
    if ours.shape != theirs.shape or 0 in ours.shape or not 0 <= head < ours.shape[1]:
        found = f"{ours.shape} and {theirs.shape}"
        raise InputError(
            f"example {example.id}: maps of {found}; expected equal ones, not empty, with head {head}"
        )
    drawing = new_figure(14, 6 * len(ours))
    panels: Any = drawing.subplots(len(ours), 2, squeeze=False)
    top = max(float(maps[:, head].max()) for maps in (ours, theirs))
    labels = (
        _spelled(a.clip_tokenizer, clip.ids),
        _spelled(a.text.tokenizer, text.ids[~text.special]),
    )
    for (layer, column), axes in np.ndenumerate(panels):
        shown = (ours, theirs)[column][layer, head]
        image = axes.imshow(shown, vmin=0, vmax=top, aspect="auto", interpolation="nearest")
        # A dollar sign in a name or a piece begins no formula.
        axes.set_title(f"{names[column]}: layer {layer + 1}, head {head}", parse_math=False)
        axes.set_xticks(range(len(labels[0])), labels[0], rotation=90, fontsize=6, parse_math=False)
        axes.set_yticks(range(len(labels[1])), labels[1], fontsize=6, parse_math=False)
    bar = drawing.colorbar(image, ax=panels, label=f"attention (red: uniform, 1/{len(clip.ids)})")
    bar.ax.axhline(1 / len(clip.ids), color="red", linewidth=2)
    drawing.supxlabel("CLIP pieces"), drawing.supylabel("text pieces")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # pieces are of any script, the font has few
        return svg_of(drawing, path)


def _spelled(tokenizer: Any, ids: np.ndarray) -> list[str]:
    pieces = (
        tokenizer.convert_ids_to_tokens(ids.tolist()) if len(ids) <= 60 else []
    )  # more cannot be read
    return [
        tokenizer.convert_tokens_to_string([piece]).removesuffix("</w>").strip() or piece
        for piece in pieces
    ]


def attention_report(
    a: CrossModal,
    b: CrossModal,
    texts: Sequence[Example],
    out: Path,
    names: tuple[str, str] = ("a", "b"),
    head: int = 0,
    draws: int = 2000,
    seed: int = 0,
    least: int = 200,
    max_length: int = 128,
) -> dict[str, Any]:
    """Compare two whole models: `attention.json` (returned), `attention.svg` of a text of median length."""
    found = compare_maps(a, b, texts, draws, seed, least, max_length)
    example = sorted(texts, key=lambda e: len(e.text))[len(texts) // 2]
    svg = heat_maps(a, b, example, head, names, max_length=max_length)
    shown = {"example": example.id, "head": head}
    report = {"a": names[0], "b": names[1], **found, "shown": shown}
    with disk_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        (out / "attention.svg").write_text(svg, encoding="utf-8")
    write_json(out / "attention.json", report)
    return report
