"""Minimal pairs of texts (BLiMP, EWoK, COMPS, WinoViz, your own), and of images with captions (Winoground)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from groundling.core.batch import Example
from groundling.core.errors import InputError, convert_errors, prefix_errors, require_nonempty
from groundling.core.resampling import bootstrap_sums, interval
from groundling.core.rng import generator
from groundling.data.images import image_id
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.samples import subsample
from groundling.data.tables import ROWS, read_header, read_json_lines, read_rows, row_texts
from groundling.prediction.similarity import (
    CosineMatcher,
    Matcher,
    MatchHeadMatcher,
    equalise_identical_texts,
    require_finite,
)
from groundling.runs.folder import disk_errors, json_text, whole_file, write_json
from groundling.runs.progress import end_dry_run, print_notes
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.settings.input_settings import RegionSettings
from groundling.studies.knowledge import JsonObject, describe_set
from groundling.studies.knowledge.commands import PairsConfig, WinogroundConfig
from groundling.studies.knowledge.pair_likelihoods import LanguageModel, TextWithContext
from groundling.teachers.feature_cache import FeatureCache
from groundling.training.evaluation import EvaluationOutput
from groundling.vision_language.loading import is_region_encoder

BLIMP = ("sentence_good", "sentence_bad")
"""Fields of BLiMP (Warstadt et al. 2020) and, without any others, of BabyLM's supplement."""
EWOK = ("Target1", "Target2", "Context1", "Context2", "Domain")
"""Fields of EWoK (Ivanova et al. 2024) with the texts and the group."""
COMPS = ("prefix_acceptable", "prefix_unacceptable", "property_phrase", "negative_sample_type")
"""Fields of COMPS (Misra et al. 2023; kanishka/comps): subjects, a property of the first, how the second was drawn."""
WINOVIZ = (
    *("Premise Sentence 1", "Premise Sentence 2"),
    *("Visual Hypothesis 1", "Visual Hypothesis 2"),
)
"""Columns of WinoViz (Jin et al. 2024): states of an object, and what it looks like in each."""
OWN = ("good", "bad")
"""Columns of your own file; `group` and `id` are optional."""
WINOVIZ_SET = "winoviz"
SAME_FIELD = {"syntax/semantics": "syntax_semantics"}
"""BLiMP's files have two spellings of one field."""
SAME_PHENOMENON = {"s-selection": "argument_structure"}
"""BLiMP's files have 13 terms, its paper 12 phenomena: argument structure has nine paradigms there (Table 2)."""


@dataclass(frozen=True)
class MinimalPair:
    """Texts that differ minimally: good and bad, or two targets after each of two contexts."""

    id: str
    """Unique within a folder."""
    texts: tuple[TextWithContext, ...]
    """Good and bad; for EWoK and WinoViz, target 1 after contexts 1 and 2, then target 2."""
    paradigm: str
    """The smallest group whose accuracy is reported: BLiMP's UID, EWoK's domain, your own group."""
    phenomenon: str = ""
    """BLiMP's linguistic term."""
    field: str = ""
    """BLiMP's field: morphology, syntax, semantics, syntax_semantics."""
    set_name: str = ""
    """The published set, if its size is known."""

    @property
    def rules(self) -> tuple[PreferenceRule, ...]:
        """The rules by which it counts as right."""
        if self.set_name == WINOVIZ_SET:
            return WINOVIZ_RULES
        return EWOK_RULES if len(self.texts) == 4 else BLIMP_RULES

    @property
    def strict(self) -> PreferenceRule:
        """The rule that says whether all of it is right."""
        return self.rules[min(1, len(self.rules) - 1)]


def read_minimal_pairs(path: str | Path) -> list[MinimalPair]:
    """Pairs of a file, or of all .jsonl, .csv and .tsv files below a folder, sorted by name.

    The fields of the first file determine the layout, which the others must have too. Raises
    InputError with file and line for a field that is missing, or a duplicate id.
    """
    files = _files(Path(path))
    fields = read_header(files[0])
    columns = next((names for names in LAYOUTS if set(names) <= set(fields)), None)
    if columns is None:
        layouts = "; ".join(", ".join(names) for names in LAYOUTS)
        raise InputError(f"{files[0]}: fields are {', '.join(fields)[:80]}; expected {layouts}")
    pairs: dict[str, MinimalPair] = {}
    for file in files:
        for number, (where, row) in enumerate(read_rows(file, columns), 1):
            with prefix_errors(where), convert_errors("not a pair"):
                pair = LAYOUTS[columns](row, file, number)
            if pair.id in pairs:
                raise InputError(f"{where}: duplicate id {pair.id}; each pair needs its own")
            pairs[pair.id] = pair
    return list(pairs.values())


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    # Archives made on macOS have a second file for each name, which begins with a dot.
    every = sorted(path.rglob("*"))
    visible = [file for file in every if not file.name.startswith(".")]
    files = [file for file in visible if file.suffix in ROWS]
    require_nonempty(files, f"{path}: no {', '.join(ROWS)} file there; unpack an archive first")
    return files


def _blimp(row: JsonObject, file: Path, number: int) -> MinimalPair:
    paradigm = row.get("UID", file.stem)
    phenomenon: str = row.get("linguistics_term", "")
    field: str = row.get("field", "")
    return MinimalPair(
        f"{paradigm}/{row.get('pairID', number)}",
        tuple(map(TextWithContext, row_texts(row, BLIMP))),
        paradigm,
        SAME_PHENOMENON.get(phenomenon, phenomenon),
        SAME_FIELD.get(field, field),
    )


def _ewok(row: JsonObject, file: Path, number: int) -> MinimalPair:
    *texts, domain = (text.strip() for text in row_texts(row, EWOK))
    targets, contexts = texts[:2], texts[2:]
    scored = tuple(_after(context, target) for target in targets for context in contexts)
    return MinimalPair(f"{file.stem}/{number}", scored, domain)


def _after(context: str, target: str) -> TextWithContext:
    return TextWithContext(f"{context} {target}", len(context) + 1)


def _comps(row: JsonObject, file: Path, number: int) -> MinimalPair:
    """A property after each subject, as in the paper: its likelihood alone counts (Misra et al. 2023, Section 2.3)."""
    *subjects, claim, drawn = (text.strip() for text in row_texts(row, COMPS))
    return MinimalPair(
        f"{file.stem}/{number}",
        tuple(_after(subject, claim) for subject in subjects),
        f"{file.stem} {drawn}",
        set_name=f"comps/{file.stem}",
    )


def _winoviz(row: JsonObject, file: Path, number: int) -> MinimalPair:
    *contexts, first, second = (text.strip() for text in row_texts(row, WINOVIZ))
    scored = tuple(_after(context, target) for target in (first, second) for context in contexts)
    return MinimalPair(f"{file.stem}/{number}", scored, file.stem, set_name=WINOVIZ_SET)


def _own(row: JsonObject, file: Path, number: int) -> MinimalPair:
    texts = tuple(map(TextWithContext, row_texts(row, OWN)))
    return MinimalPair(
        f"{file.stem}/{row.get('id', number)}", texts, str(row.get("group", file.stem))
    )


LAYOUTS: dict[tuple[str, ...], Callable[[JsonObject, Path, int], MinimalPair]] = {
    BLIMP: _blimp,
    EWOK: _ewok,
    COMPS: _comps,
    WINOVIZ: _winoviz,
    OWN: _own,
}
"""The formats by their columns or fields; the first that a file has is its format."""


# Accuracies of comparisons of scores, by group, with intervals: BLiMP, EWoK, Winoground.


ItemScore = Callable[[np.ndarray], np.ndarray]
"""From scores (N, S) of N items to the credit of each, 0 to 1: (N,)."""


class PreferenceRule(NamedTuple):
    """A rule by which an item counts as right."""

    name: str
    """Key of the accuracy in `result.json`."""
    chance: float
    """Expected accuracy of random scores."""
    item_score: ItemScore


def _all_above(*comparisons: tuple[int, int]) -> ItemScore:
    """Whether the first score is strictly above the second in all comparisons."""

    def item_score(scores: np.ndarray) -> np.ndarray:
        is_right = np.ones(len(scores), bool)
        for first, second in comparisons:
            is_right &= scores[:, first] > scores[:, second]
        return is_right.astype(float)

    return item_score


def _half_for_ties(*comparisons: tuple[int, int]) -> ItemScore:
    """Mean over comparisons: 1 if the first score is above the second, 1/2 if they are equal."""

    def item_score(scores: np.ndarray) -> np.ndarray:
        credit = np.zeros(len(scores))
        for first, second in comparisons:
            credit += (1 + np.sign(scores[:, first] - scores[:, second])) / 2
        return credit / len(comparisons)

    return item_score


BLIMP_RULES = (PreferenceRule("accuracy", 1 / 2, _all_above((0, 1))),)
"""BLiMP: the good sentence is more likely; a tie is wrong (Warstadt et al. 2020, Section 4)."""

EWOK_RULES = (
    PreferenceRule("accuracy", 1 / 2, _half_for_ties((0, 1), (3, 2))),
    PreferenceRule("both", 1 / 4, _all_above((0, 1), (3, 2))),
    PreferenceRule("targets", 1 / 2, _all_above((0, 2))),
)
"""EWoK: scores of target 1 after contexts 1 and 2, then of target 2.

`accuracy` (Ivanova et al. 2024; release: ewok-core/ewok-paper,
analyses/scripts/ewok_analysis_utils.R): each target is more likely after its own context than after
the other one; a tie counts 1/2, and an item the mean of its two targets. `both`: both comparisons
hold strictly (`Accuracy_both` there). `targets`: after context 1, target 1 is more likely than
target 2, as scored by the BabyLM challenge of 2025 (release: babylm/evaluation-pipeline-2025,
sentence_zero_shot/read_files.py).
"""

WINOVIZ_RULES = (
    PreferenceRule("accuracy", 1 / 2, _half_for_ties((0, 2), (3, 1))),
    PreferenceRule("pair", 1 / 4, _all_above((0, 2), (3, 1))),
)
"""WinoViz: in each state its own look is more likely than the other's; `pair`: in both (Jin et al. 2024)."""

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
) -> dict[str, JsonObject]:
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
) -> JsonObject:
    summary: JsonObject = {"items": items}
    for column, rule in enumerate(rules):
        summary[rule.name] = float(mean[column])
        summary[f"{rule.name}_interval"] = interval(draws[:, column]).tolist()
    return summary


def item_credits(rules: Sequence[PreferenceRule], scores: Iterable[np.ndarray]) -> np.ndarray:
    """Credits (N, models x rules) of N items from each model's scores (N, S)."""
    return np.stack([rule.item_score(of_model) for of_model in scores for rule in rules], 1)


def format_comparisons(result: Mapping[str, Any], levels: Sequence[str] = ()) -> str:
    """A result's groups as text, in percentage points; `levels`: those of its scores, none for groups alone."""
    rows = [{"": "chance", "items": ""}]
    rows[0] |= {name: f"{100 * at:.2f}" for name, at in result["chance"].items()}
    for what, scores, sign in (
        ("", result["scores"], ""),
        (": other", result.get("other", {}).get("scores", {}), ""),
        (": other - model", result.get("difference", {}), "+"),
    ):
        for groups in [scores.get(level, {}) for level in levels] or [scores]:
            for name, found in groups.items():
                row = {"": f"{name}{what}", "items": f"{found['items']:,}"}
                for rule in result["chance"]:
                    low, high = (100 * end for end in found[f"{rule}_interval"])
                    mean = 100 * found[rule]
                    row[rule] = f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
                rows.append(row)
    return format_table(rows)


def group_items(names: Sequence[Sequence[str]]) -> Mapping[str, np.ndarray]:
    """Indices of the items of each group from each item's groups, in the order of first items."""
    groups: dict[str, list[int]] = {}
    for number, of_item in enumerate(names):
        for name in of_item:
            groups.setdefault(name, []).append(number)
    return {name: np.array(numbers) for name, numbers in groups.items()}


def write_items(
    path: Path,
    lines: Sequence[JsonObject],
    rules: Sequence[PreferenceRule],
    scores: Iterable[np.ndarray],
) -> None:
    """One JSON line per item: `lines`, and the scores (N, S) of each model, with credits by rule."""
    credits = [{rule.name: rule.item_score(one).tolist() for rule in rules} for one in scores]
    with whole_file(path) as file:
        for number, line in enumerate(lines):
            of_models = {}
            for name, one, by_rule in zip(("model", "other"), scores, credits, strict=False):
                of_models[name] = {"scores": one[number].round(6).tolist()}
                of_models[name] |= {rule: values[number] for rule, values in by_rule.items()}
            file.write(json_text(line | of_models) + "\n")


LEVELS = ("field", "phenomenon", "paradigm")
"""Groupings of items, from coarse to fine."""


def pairs(config: PairsConfig, run: Run) -> JsonObject:
    """Score minimal pairs; writes `result.json` (returned), `items.jsonl`, answers for `verdict`.

    Raises:
        InputError: A setting or the data is wrong, the model has no language-model head, or texts
            are too long for it.
    """
    read = read_minimal_pairs(config.data)
    end_dry_run("scoring pairs")
    items = [
        read[number]
        for numbers in group_items([(item.paradigm,) for item in read]).values()
        for number in subsample(numbers.tolist(), config.limit)
    ]
    sources = [config.model, *([config.other] if config.other else [])]
    scores = [_score_items(config, source, items, run.state.device) for source in sources]
    items, scored, left_out = _scorable_items(config, items, np.stack(scores))
    rules = items[0].rules
    levels = _levels(items, item_credits(rules, scored)).items()
    compared = {level: compare_models(rules, groups) for level, groups in levels}

    def by_level(comparison: str) -> JsonObject:
        return {level: one[comparison] for level, one in compared.items()}

    sets = {item.set_name for item in items}
    about = describe_set(sets.pop()) if len(sets) == 1 else {}
    result: JsonObject = {
        **about,
        "items": len(items),
        "left_out": left_out,
        "chance": {rule.name: rule.chance for rule in rules},
        "ties": _ties(scored[0], rules),
        "scores": by_level("scores"),
    }
    if config.other:
        ties = _ties(scored[1], rules)
        result["other"] = {"ties": ties, "scores": by_level("other")}
        result["difference"] = by_level("difference")
    if run.state.is_main_process:
        lines: list[JsonObject] = []
        for item in items:
            fields = vars(item)
            groups = {level: fields[level] for level in LEVELS if fields[level]}
            lines.append({"id": item.id, **groups})
        write_items(run.folder / "items.jsonl", lines, rules, scored)
        _write_answers(run.folder, config, items, scored)
    return result


def _score_items(
    config: PairsConfig, source: str, items: Sequence[MinimalPair], device: torch.device
) -> np.ndarray:
    """A model's scores (N, S) of each item's texts."""
    model = LanguageModel(source, device, config.max_length)
    texts = [text for item in items for text in item.texts]
    values, tokens = model.score(texts, config.pll)
    if config.reduction == "mean":
        with np.errstate(invalid="ignore"):
            values = values / tokens
    return values.reshape(len(items), -1)


def _scorable_items(
    config: PairsConfig, items: Sequence[MinimalPair], scores: np.ndarray
) -> tuple[list[MinimalPair], np.ndarray, int]:
    """The items that all models could score, their scores (M, N, S), and the number left out."""
    fits = np.isfinite(scores).all((0, 2))
    left_out = int((~fits).sum())
    if left_out and not (config.skip_long and fits.any()):
        raise InputError(
            f"{config.data}: {left_out:,} of {len(items):,} pairs have a text that is too long for the model or "
            f"has nothing to score; the first is {items[int(fits.argmin())].id}; skip_long leaves them out"
        )
    if left_out:
        print_notes([f"left out {left_out:,} pairs: a text is too long, or has nothing to score"])
    kept = [item for item, one in zip(items, fits, strict=True) if one]
    return kept, scores[:, fits], left_out


def _levels(
    items: Sequence[MinimalPair], credits: np.ndarray
) -> dict[str, dict[str, BootstrapEstimate]]:
    """Estimates by level and group: of a paradigm's items, or the mean of a group's paradigms."""
    paradigms: dict[str, BootstrapEstimate] = {}
    members: dict[str, dict[str, list[BootstrapEstimate]]] = {"field": {}, "phenomenon": {}}
    for name, numbers in group_items([(item.paradigm,) for item in items]).items():
        paradigms[name] = bootstrap_means(credits[numbers], name)
        first = items[numbers[0]]
        for level, group in (("field", first.field), ("phenomenon", first.phenomenon)):
            if group:
                members[level].setdefault(group, []).append(paradigms[name])
    every = macro_average(list(paradigms.values()))
    levels = {"overall": {"mean of paradigms": every, "all items": bootstrap_means(credits)}}
    for level, groups in members.items():
        if groups:
            levels[level] = {name: macro_average(groups[name]) for name in sorted(groups)}
    return levels | {"paradigm": paradigms}


def _ties(scores: np.ndarray, rules: Sequence[PreferenceRule]) -> int:
    """Number of ties in scores (N, S): good and bad, a target after both contexts, or WinoViz' targets after one."""
    step = 2 if rules is WINOVIZ_RULES else 1
    pairs = scores.reshape(len(scores), -1, 2, step)
    are_equal = pairs[:, :, 0] == pairs[:, :, 1]
    return int(are_equal.sum())


def _write_answers(
    folder: Path,
    config: PairsConfig,
    items: Sequence[MinimalPair],
    scores: np.ndarray,
) -> None:
    """The answers in the format of `verdict`: 1 for an item that is right; every label is 1."""
    place = folder / f"seed-{config.model_seed}"
    with disk_errors(place):
        place.mkdir(exist_ok=True)
    right = items[0].strict.item_score(scores[0])
    examples = [Example(item.id, "") for item in items]
    metrics = {"accuracy": float(right.mean())}
    labels = np.ones(len(items))
    answers = EvaluationOutput(examples, right[:, None], right, labels, metrics)
    answers.write(place / "predictions_pairs.jsonl")
    done: JsonObject = {"seed": config.model_seed, "task": f"pairs/{Path(config.data).stem}"}
    done |= {"metrics": ["accuracy"], "splits": ["pairs"], "scores": {"pairs": metrics}}
    write_json(place / "result.json", done)


def format_pairs(result: Mapping[str, Any]) -> str:
    """The result as text, in percentage points; paradigms only if there are no phenomena."""
    has_phenomena = "phenomenon" in result["scores"]
    levels = [name for name in result["scores"] if name != "paradigm" or not has_phenomena]
    counts = f"{result['items']:,} items, {result['ties']:,} ties, {result['left_out']:,} left out"
    return f"{format_comparisons(result, levels)}\n{counts}"


# -- Winoground: two images, and two captions of the same words (Thrush et al. 2022) -----------------------------------


FILE = "examples.jsonl"
"""The data set's file name."""
TEXTS = ("image_0", "image_1", "caption_0", "caption_1")
"""Required fields; tags are optional."""
TAGS = ("collapsed_tag", "secondary_tag")
"""Fields of the paper's groups: what is swapped (Object, Relation, Both), and visual tags."""


@dataclass(frozen=True)
class WinogroundExample:
    """Two images and two captions; caption n belongs to image n."""

    id: str
    """The data set's id."""
    images: tuple[str, str]
    """Ids of the images: paths without the extension."""
    captions: tuple[str, str]
    """The caption of each image."""
    tags: tuple[str, ...]
    """Its groups: the tags of its file, and its number of main predicates."""


def read_winoground(path: str | Path) -> list[WinogroundExample]:
    """The examples of a folder's `examples.jsonl`, or of that file.

    Raises InputError with the line that lacks an image or caption, or has a duplicate id.
    """
    file = Path(path)
    if file.is_dir():
        file = file / FILE
    examples: dict[str, WinogroundExample] = {}
    for where, row in read_json_lines(file, TEXTS):
        number = row.get("id", len(examples))
        name = str(number)
        if name in examples:
            raise InputError(f"{where}: duplicate id {name}; each example needs its own")
        tags = [str(row[tag]) for tag in TAGS if row.get(tag)]
        if "num_main_preds" in row:
            tags.append(f"{row['num_main_preds']} main predicates")
        images = (image_id(row["image_0"]), image_id(row["image_1"]))
        examples[name] = WinogroundExample(
            name, images, (row["caption_0"], row["caption_1"]), tuple(tags)
        )
    return list(examples.values())


def winoground(config: WinogroundConfig, run: Run) -> JsonObject:
    """Score every image with both captions; writes `result.json` (returned) and `items.jsonl`.

    Raises:
        InputError: A setting or the data is wrong, an image is missing, or the model has no
            matching head.
    """
    examples = read_winoground(config.data)
    sources = [config.model, *([config.other] if config.other else [])]
    cache_folder = run.folder / "features"
    summaries, scores = [], []
    for source in sources:
        match = _matcher(config, source, run.state.device, cache_folder)
        own, cut = _scores(examples, match)
        summaries.append({"model": source, "measure": match.measure, "cut_captions": cut})
        scores.append(own)
    credits = item_credits(WINOGROUND_RULES, scores)
    groups = group_items([("all", *example.tags) for example in examples])
    compared = compare_models(
        WINOGROUND_RULES,
        {name: bootstrap_means(credits[numbers], name) for name, numbers in groups.items()},
    )
    result: JsonObject = summaries[0] | {
        "chance": {rule.name: rule.chance for rule in WINOGROUND_RULES},
        "scores": compared["scores"],
    }
    if config.other:
        result["other"] = summaries[1] | {"scores": compared["other"]}
        result["difference"] = compared["difference"]
    if run.state.is_main_process:
        lines = [{"id": example.id, "tags": example.tags} for example in examples]
        write_items(run.folder / "items.jsonl", lines, WINOGROUND_RULES, scores)
        shutil.rmtree(cache_folder, ignore_errors=True)
    return result


def _matcher(
    config: WinogroundConfig, source: str, device: torch.device, cache_folder: Path
) -> Matcher:
    """The model's matcher, which scores captions and images; `cache_folder`: a folder for features."""
    # With --regions, --model must read regions, but the other model may be a CLIP.
    if config.image_settings.regions and (source == config.model or is_region_encoder(source)):
        regions = RegionSettings(**vars(config.image_settings))
        inputs = ImageSampleBuilder(regions)
        return MatchHeadMatcher(source, inputs, device, config.max_length)
    folder = Path(config.data)
    default_images = (folder.parent if folder.name == FILE else folder) / "images"
    return CosineMatcher(
        source,
        config.image_settings.images or str(default_images),
        device,
        FeatureCache(cache_folder),
    )


def _scores(examples: Sequence[WinogroundExample], match: Matcher) -> tuple[np.ndarray, int]:
    """Scores (N, 4), image 0 with captions 0 and 1, then image 1; number of truncated captions."""
    rows: list[Example] = []
    for example in examples:
        for image in example.images:
            for caption in example.captions:
                name = f"{example.id}/{len(rows) % 4}"
                rows.append(Example(name, caption, images=(image,)))
    matched = match(rows, "test")
    cut = int((matched.truncated_tokens > 0).sum()) // 2
    if cut:
        print_notes([f"truncated {cut:,} of {2 * len(examples):,} captions at their end"])
    # Captions with equal tokens get equal scores with an image, independent of the batch.
    digests = matched.token_digests
    token_digests = [digests[start : start + 2] for start in range(0, len(rows), 2)]
    equalised = equalise_identical_texts(
        require_finite(matched.scores.reshape(-1, 2)), token_digests
    )
    return equalised.reshape(-1, 4), cut
