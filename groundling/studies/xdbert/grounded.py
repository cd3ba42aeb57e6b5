"""Visually grounded ratio of texts, and whether a model improves on more grounded ones (XDBERT, Section 4).

Seeds of a single model also have improved and worsened examples, and grounded texts differ from others in length and
label. So each comparison is repeated between the base model's own seeds, and within strata of length and label.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import mannwhitneyu
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Example
from groundling.core.errors import InputError, convert_errors, require_known
from groundling.core.registry import resolve
from groundling.core.resampling import DRAWS, draw_resample, interval
from groundling.core.rng import generator
from groundling.data.captions import captions_of_images, settings_by_file
from groundling.data.corpora import CHUNK
from groundling.data.samples import backend_tokenizer
from groundling.data.text import stop_words, word_spans
from groundling.models.loading import load_tokenizer
from groundling.runs.folder import check_file, read_json, write_json, write_whole
from groundling.runs.progress import CommandContext
from groundling.runs.report import new_figure, save_figure
from groundling.runs.run import Run
from groundling.stats.verdict import SeedRuns
from groundling.stats.verdict_report import collect_runs
from groundling.studies.xdbert.commands import CaptionTokenCountsConfig, GroundedConfig
from groundling.tasks import Task

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# The visually grounded ratio of a text (XDBERT, Section 4 and Appendix D). A token is grounded if it is no stop word,
# no punctuation, and occurs more than 100 times in COCO's captions; stop words and punctuation are ignored. There is no
# released code; NLTK's list and WordPiece counts reproduce the totals in Appendix D where these are consistent.
# `count_captions` writes the table of token counts in captions, from which `grounded` reads which tokens are grounded.

_CORE = re.compile(r"[^\W_](?:.*[^\W_])?", re.DOTALL)
"""A token from its first letter or digit to its last."""


def count_captions(config: CaptionTokenCountsConfig, work: CommandContext) -> str:
    """Count the tokens of caption files into the JSON table of `GroundedTokens.read`; returns a summary.

    The table records its sources. Raises InputError if a file or the tokenizer cannot be read, or `out` cannot be
    written.
    """
    tokenizer = load_tokenizer(config.tokenizer)
    captions: list[str] = []
    selections = settings_by_file(config.captions, config.caption_settings)
    for file, own in zip(config.captions, selections, strict=True):
        captions += [text for text, _ in captions_of_images(file, own)]
    tokens = count_tokens(captions, tokenizer)
    provenance = {
        "files": config.captions,
        "tokenizer": {
            "source": config.tokenizer,
            "vocabulary_sha256": vocabulary_hash(tokenizer),
        },
        "captions": len(captions),
    }
    out = work.out
    check_file(out)
    write_json(out, {"provenance": provenance, "tokens": tokens})
    return f"{out}: {len(tokens):,} tokens of {len(captions):,} captions"


def count_tokens(captions: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """Token counts in the captions, most frequent first, without punctuation."""
    engine = backend_tokenizer(tokenizer)
    counts = Counter[str]()
    for start in range(0, len(captions), CHUNK):
        for tokens in _tokens(captions[start : start + CHUNK], engine):
            counts.update(key for _, key in tokens if key)
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def vocabulary_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """SHA-256 of a tokenizer's sorted vocabulary, which identifies the tokenizer of a count table."""
    tokens = sorted(tokenizer.get_vocab())
    return hashlib.sha256("\n".join(tokens).encode()).hexdigest()


class GroundedTokens:
    """Classifies tokens as visually grounded, and computes the grounded ratio of texts."""

    def __init__(
        self,
        counts: Mapping[str, int],
        tokenizer: PreTrainedTokenizerBase,
        threshold: int = 100,
    ) -> None:
        """A token is grounded if it occurs more than `threshold` times.

        `counts` are those of this tokenizer's tokens in captions. The paper's threshold of 100 refers to COCO's 414,113
        training captions.
        """
        self.counts = counts
        self.threshold = threshold
        self.engine = backend_tokenizer(tokenizer)

    @classmethod
    def read(
        cls, path: str | Path, tokenizer: PreTrainedTokenizerBase, threshold: int = 100
    ) -> GroundedTokens:
        """Read a table of `groundling data counts`.

        Raises InputError if the file is not a count table, or was made with another tokenizer.
        """
        path = Path(path)
        table = read_json(path)
        with convert_errors(f"{path}: not a count table"):
            counted_with = table["provenance"]["tokenizer"]
            is_same = counted_with["vocabulary_sha256"] == vocabulary_hash(tokenizer)
            counts = {token: int(count) for token, count in table["tokens"].items()}
        if not is_same:
            source = counted_with.get("source")
            raise InputError(f"{path}: counted with another tokenizer, {source}")
        return cls(counts, tokenizer, threshold)

    def status(self, token: str) -> bool | None:
        """Whether a token, spelt as in the table, is grounded; None for a stop word or punctuation."""
        # "##s" is no stop word, although "s" is one: see Appendix D ("dump ##s").
        if token in stop_words() or not any(character.isalnum() for character in token):
            return None
        return self.counts.get(token, 0) > self.threshold

    def token_statuses(self, text: str) -> list[tuple[str, bool | None]]:
        """The tokens in order, each with its `status`."""
        (tokens,) = _tokens([text], self.engine)
        return [(written, self.status(key)) for written, key in tokens]

    def shares(self, text: str, pair: str | None = None) -> tuple[int, int]:
        """Number of grounded and of not grounded tokens in both texts together."""
        tokens = self.token_statuses(text) + self.token_statuses(pair or "")
        statuses = [status for _, status in tokens]
        return statuses.count(True), statuses.count(False)

    def ratio(self, text: str, pair: str | None = None) -> float:
        """Grounded / (grounded + not grounded) over both texts together; NaN if both are 0."""
        grounded, not_grounded = self.shares(text, pair)
        every = grounded + not_grounded
        return grounded / every if every else float("nan")


def _tokens(texts: Sequence[str], engine: Tokenizer) -> Iterator[list[tuple[str, str]]]:
    """Tokens of each text as written and as in the count table, with "##" before them inside a word.

    The table has lower case without accents, and nothing for punctuation. The tokenizer's own spelling is ambiguous:
    byte-level BPE marks neither tokens in a word nor the first word.
    """
    encodings = engine.encode_batch(list(texts), add_special_tokens=False)
    for text, encoding in zip(texts, encodings, strict=True):
        yield _tokens_of(text, encoding)


def _tokens_of(text: str, encoding: Encoding) -> list[tuple[str, str]]:
    word_starts = word_spans(text)[:, 0].tolist()
    tokens = []
    for start, stop in encoding.offsets:
        written = text[start:stop].strip()
        core = _CORE.search(text, start, stop)
        if core is None:
            tokens.append((written, ""))
            continue
        word = bisect_right(word_starts, core.start()) - 1
        mark = "" if word_starts[word] == core.start() else "##"
        tokens.append((mark + written, mark + _fold(core.group())))
    return tokens


@lru_cache(1 << 17)
def _fold(text: str) -> str:
    """Lower case without accents, as in uncased BERT."""
    decomposed = unicodedata.normalize("NFD", text.lower())
    return "".join(character for character in decomposed if not unicodedata.combining(character))


QUARTERS = (0.25, 0.5, 0.75)
"""Quartiles."""


def grounded(config: GroundedConfig, run: Run) -> dict[str, Any]:
    """Compare the grounded ratios of improved and worsened examples.

    Writes `result.json` (returned), the box plot of XDBERT's Figure 4 as `grounded.png`, and the most extreme examples
    as `examples.md`. Raises InputError if a run folder has no finished run of the task, or runs and data have different
    examples.
    """
    task = resolve("tasks", Task, config.task)
    base = _runs_of(config.task, "base", config.base)
    other = _runs_of(config.task, "other", config.other)
    examples = _examples(task, config, base, other)
    seeds = [seed for seed in base.seeds if seed in other.seeds]
    grounding = GroundedTokens.read(
        config.counts, load_tokenizer(config.tokenizer), config.threshold
    )
    folder = run.folder

    right_base = base.is_correct(seeds)
    right_other = other.is_correct(seeds)
    ratios = np.array([grounding.ratio(e.text, e.text_pair) for e in examples])
    lengths = [len(e.text) + len(e.text_pair or "") for e in examples]
    gains = compare_groups(ratios, right_base, right_other, lengths, base.labels)
    result = {"task": task.name, "seeds": seeds, **gains}

    boxes = draw_ratio_boxes(
        {name: ratios[own] for name, own in group_by_improvement(right_base, right_other).items()},
        {name: ratios[own] for name, own in null_split(right_base).items()},
    )
    save_figure(boxes, folder / "grounded.png")
    markdown = list_extreme_examples(grounding, examples, right_base, right_other)
    write_whole(folder / "examples.md", markdown)
    return result


def _runs_of(task: str, name: str, folder: str) -> SeedRuns:
    by_task = collect_runs(name, folder, (task,))
    require_known(task, by_task, f"{folder}: no finished run of {task}")
    runs, _ = by_task[task]
    return runs


def _examples(task: Task, config: GroundedConfig, base: SeedRuns, other: SeedRuns) -> list[Example]:
    by_id = {example.id: example for example in task.read(Path(config.data), task.dev[0])}
    if base.ids != other.ids or set(base.ids) != set(by_id):
        raise InputError(f"{config.base}, {config.other} and {config.data} have different examples")
    return [by_id[name] for name in base.ids]


def group_by_improvement(base: ArrayLike, other: ArrayLike) -> dict[str, np.ndarray]:
    """Numbers of the examples that more (`improved`), fewer (`worsened`) or equally many seeds (`on_par`) answer right.

    The right answers of both models are (S, N) booleans, seeds by examples; `other` is the one that improves. Raises
    InputError if the two differ in shape.
    """
    right_base = np.asarray(base, bool)
    right_other = np.asarray(other, bool)
    # Unequal numbers of seeds would sort examples by difficulty: a model with more seeds has more right answers.
    if right_base.shape != right_other.shape:
        raise InputError(f"answers of shapes {right_base.shape} and {right_other.shape}, not equal")
    gain = right_other.sum(0) - right_base.sum(0)
    return {
        "improved": np.flatnonzero(gain > 0),
        "worsened": np.flatnonzero(gain < 0),
        "on_par": np.flatnonzero(gain == 0),
    }


def null_split(base: ArrayLike, seed: int = 0) -> dict[str, np.ndarray]:
    """The groups between two random halves of one model's seeds; an odd seed is omitted.

    `base` is (S, N) booleans; raises InputError for fewer than 2 seeds.
    """
    right = np.asarray(base, bool)
    if len(right) < 2:
        raise InputError(f"the null split needs 2 seeds of both models, got {len(right)}")
    half = len(right) // 2
    order = generator(seed, "null split").permutation(len(right))
    return group_by_improvement(right[order[:half]], right[order[half : 2 * half]])


def compare_groups(
    ratios: ArrayLike,
    base: ArrayLike,
    other: ArrayLike,
    lengths: ArrayLike,
    labels: ArrayLike,
    seed: int = 0,
) -> dict[str, Any]:
    """Compare improved with worsened examples, between models (`models`) and between base seeds (`null`); for JSON.

    Args:
        ratios: (N,) visually grounded ratios, NaN where undefined.
        base: (S, N) booleans: whether each answer of the base model is right, seeds by examples.
        other: (S, N) booleans of the other model.
        lengths: (N,) text lengths, in any unit.
        labels: (N,) labels of the examples.
        seed: Seed of bootstrap samples, permutations and the halves of the null split.

    Undefined values are None.
    """
    ratio = np.asarray(ratios, float)
    length = np.asarray(lengths, float)
    label = np.asarray(labels)
    return {
        "models": _compare(ratio, group_by_improvement(base, other), length, label, seed),
        "null": _compare(ratio, null_split(base, seed), length, label, seed),
    }


def _compare(
    ratios: np.ndarray,
    groups: Mapping[str, np.ndarray],
    lengths: np.ndarray,
    labels: np.ndarray,
    seed: int,
) -> dict[str, Any]:
    comparison: dict[str, Any] = {
        "groups": {name: _summary(ratios[group]) for name, group in groups.items()},
        "mann_whitney_p": None,
        "cliffs_delta": None,
        "interval": None,
        "controlled": None,
    }
    improved, worsened = (
        groups[name][~np.isnan(ratios[groups[name]])] for name in ("improved", "worsened")
    )
    if not len(improved) or not len(worsened):
        return comparison
    up = ratios[improved]
    down = ratios[worsened]
    comparison["mann_whitney_p"] = float(mannwhitneyu(up, down).pvalue)
    comparison["cliffs_delta"] = _cliffs_delta(up, down)
    comparison["interval"] = _bootstrap_interval(up, down, seed)
    both = np.concatenate([improved, worsened])
    is_improved = np.repeat([1.0, 0.0], [len(improved), len(worsened)])
    comparison["controlled"] = _controlled(
        ratios[both], is_improved, lengths[both], labels[both], seed
    )
    return comparison


def _summary(ratios: np.ndarray) -> dict[str, float | int | None]:
    defined = ratios[~np.isnan(ratios)]
    summary: dict[str, float | int | None] = {
        "n": len(defined),
        "undefined": len(ratios) - len(defined),
        "mean": None,
        "median": None,
        "q1": None,
        "q3": None,
    }
    if len(defined):
        first, median, third = np.quantile(defined, QUARTERS).tolist()
        summary.update(mean=float(defined.mean()), median=median, q1=first, q3=third)
    return summary


def _cliffs_delta(up: np.ndarray, down: np.ndarray) -> float:
    """Cliff's delta: the share of pairs in which `up` is larger, minus the share in which it is smaller."""
    ordered = np.sort(down)
    smaller = np.searchsorted(ordered, up, "left")
    smaller_or_equal = np.searchsorted(ordered, up, "right")
    return float(np.mean(smaller + smaller_or_equal) / len(ordered) - 1)


def _bootstrap_interval(up: np.ndarray, down: np.ndarray, seed: int) -> list[float]:
    rng = generator(seed, "bootstrap")
    drawn = [_cliffs_delta(draw_resample(up, rng), draw_resample(down, rng)) for _ in range(DRAWS)]
    ends: list[float] = interval(np.array(drawn)).tolist()
    return ends


def _controlled(
    values: np.ndarray, group: np.ndarray, lengths: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, float | int] | None:
    """The difference of means within strata (label x length quartile), tested by permuting groups within strata.

    `group` is (N,): 1 improved, 0 worsened. Unlike a regression, strata assume no form of dependence on length. None if
    no stratum has both groups.
    """
    stratum = _strata(lengths, labels)
    order = np.argsort(stratum, kind="stable")
    values = values[order]
    group = group[order]
    stratum = stratum[order]
    size = np.bincount(stratum)
    share = np.bincount(stratum, group) / size  # of improved examples, by stratum
    mean = np.bincount(stratum, values) / size
    centred = values - mean[stratum]
    spread = float((share * (1 - share) * size).sum())
    if spread < 1e-9:
        return None
    effect = float(group @ centred / spread)
    rng = generator(seed, "permutation")
    extreme = 0
    for _ in range(DRAWS):
        # Strata are integers, so sorting with a random fraction added shuffles within each stratum.
        shuffled = group[np.argsort(stratum + rng.random(len(group)))]
        if abs(shuffled @ centred / spread) >= abs(effect) - 1e-12:
            extreme += 1
    mixed = (share > 0) & (share < 1)
    return {
        "difference": effect,
        "p": (1 + extreme) / (1 + DRAWS),
        "strata": int(mixed.sum()),
    }


def _strata(lengths: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Stratum number (N,) of each example, from label and length quartile, from 0 without gaps."""
    quarter = np.searchsorted(np.quantile(lengths, QUARTERS), lengths)
    _, label = np.unique(labels, return_inverse=True)
    _, stratum = np.unique(label * 4 + quarter, return_inverse=True)
    return stratum


# -- figure and examples -----------------------------------------------------------------------------------------------
def draw_ratio_boxes(
    groups: Mapping[str, ArrayLike], null_groups: Mapping[str, ArrayLike]
) -> Figure:
    """Box plots of the groups' ratios and of the null split; groups are (N,) ratios by name, NaN is omitted.

    The line is the median, the green plus the mean.
    """
    drawing = new_figure(10, 3.8)
    left, right = drawing.subplots(1, 2, sharey=True)
    _draw_boxes(left, "between the models", groups)
    _draw_boxes(right, "null split: between base seeds", null_groups)
    left.set_ylabel("visually grounded ratio")
    return drawing


def _draw_boxes(axes: Axes, title: str, groups: Mapping[str, ArrayLike]) -> None:
    values = []
    names = []
    for name, ratios in groups.items():
        every = np.asarray(ratios, float)
        defined = every[~np.isnan(every)]
        values.append(defined)
        names.append(f"{name.replace('_', ' ')}\nn = {len(defined)}")
    plus = {"marker": "+", "markeredgecolor": "green", "markersize": 10, "markeredgewidth": 2}
    axes.boxplot(values, tick_labels=names, widths=0.5, showmeans=True, meanprops=plus)
    axes.set_title(title)
    axes.spines[["top", "right"]].set_visible(False)


def list_extreme_examples(
    grounding: GroundedTokens,
    examples: Sequence[Example],
    base: ArrayLike,
    other: ArrayLike,
    most: int = 3,
) -> str:
    """The `most` extreme examples of each group as Markdown: **grounded** tokens, (stop words and punctuation).

    Extreme examples have the largest gain or loss; for on par, all seeds right or all wrong. Ties are in the data's
    order. `base` and `other` are (S, N) booleans of right answers to the N examples.
    """
    seeds = len(np.asarray(base))
    right_base = np.asarray(base, bool).sum(0)
    right_other = np.asarray(other, bool).sum(0)
    gain = np.abs(right_other - right_base)
    extreme = np.where(gain == 0, np.abs(2 * right_base - seeds), gain)
    lines = []
    for group_name, group in group_by_improvement(base, other).items():
        lines += [f"## {group_name.replace('_', ' ').capitalize()}", ""]
        order = np.argsort(-extreme[group], kind="stable")
        for number in group[order[:most]]:
            example = examples[number]
            ratio = grounding.ratio(example.text, example.text_pair)
            right = f"base right {right_base[number]}/{seeds}, other {right_other[number]}/{seeds}"
            lines += [f"Example {example.id}: grounded ratio {ratio:.4f}; {right}", ""]
            for text in filter(None, (example.text, example.text_pair)):
                tokens = grounding.token_statuses(text)
                lines += [" ".join(_marked(token, status) for token, status in tokens), ""]
    return "\n".join(lines)


def _marked(token: str, status: bool | None) -> str:
    escaped = re.sub(r"([\\*_`<\[\]])", r"\\\1", token)
    if status is None:
        return f"({escaped})"
    return f"**{escaped}**" if status else escaped
