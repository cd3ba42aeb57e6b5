"""Winoground: two images, and two captions of the same words (Thrush et al. 2022)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.data.images import image_id
from groundling.data.regions.samples import ImageSampleBuilder
from groundling.data.tables import read_json_lines
from groundling.prediction.similarity import (
    CosineMatcher,
    Matcher,
    MatchHeadMatcher,
    equalise_identical_texts,
    require_finite,
)
from groundling.runs.folder import json_text, whole_file
from groundling.runs.progress import print_notes
from groundling.runs.report import format_table
from groundling.runs.run import Run
from groundling.settings.input_settings import RegionSettings
from groundling.studies.knowledge.commands import WinogroundConfig
from groundling.studies.knowledge.pair_likelihoods import (
    WINOGROUND_RULES,
    as_json,
    bootstrap_means,
    paired_difference,
)
from groundling.teachers.feature_cache import FeatureCache
from groundling.vision_language.loading import is_single_stream

FILE = "examples.jsonl"
"""The data set's file name."""
TEXTS = ("image_0", "image_1", "caption_0", "caption_1")
"""Required fields; tags are optional."""
TAGS = ("collapsed_tag", "secondary_tag")
"""Fields of the paper's groups: what is swapped (Object, Relation, Both), and visual tags."""
ALL = "all"
"""The group of all examples."""
TEST = "test"
"""Hugging Face's name of the only split."""


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


def winoground(config: WinogroundConfig, run: Run) -> dict[str, Any]:
    """Score every image with both captions; writes `result.json` (returned) and `items.jsonl`.

    Raises:
        InputError: A setting or the data is wrong, an image is missing, or the model has no
            matching head.
    """
    examples = read_winoground(config.data)
    sources = [config.model, *([config.other] if config.other else [])]
    cache_folder = run.folder / "features"
    models = []
    for source in sources:
        match = _matcher(config, source, run.state.device, cache_folder)
        models.append(_model_scores(source, match, examples))
    credits = np.concatenate([of_model.item_scores for of_model in models], 1)
    groups: dict[str, list[int]] = {ALL: list(range(len(examples)))}
    for number, example in enumerate(examples):
        for tag in example.tags:
            groups.setdefault(tag, []).append(number)
    estimates = {name: bootstrap_means(credits[numbers], name) for name, numbers in groups.items()}
    count = len(WINOGROUND_RULES)
    result: dict[str, Any] = models[0].summary | {
        "chance": {rule.name: rule.chance for rule in WINOGROUND_RULES},
        "scores": {name: as_json(WINOGROUND_RULES, one) for name, one in estimates.items()},
    }
    if config.other:
        other_scores = {
            name: as_json(WINOGROUND_RULES, one, count) for name, one in estimates.items()
        }
        result["other"] = models[1].summary | {"scores": other_scores}
        result["difference"] = {
            name: as_json(WINOGROUND_RULES, paired_difference(one, count))
            for name, one in estimates.items()
        }
    if run.state.is_main_process:
        _write_items(run.folder / "items.jsonl", examples, models)
        shutil.rmtree(cache_folder, ignore_errors=True)
    return result


class _PairScores(NamedTuple):
    """A model's scores of the examples."""

    summary: dict[str, Any]
    """Its name, its measure, and the number of truncated captions."""
    scores: np.ndarray
    """(N, 4): image 0 with captions 0 and 1, then image 1."""
    item_scores: np.ndarray
    """(N, rules): 1 where a rule holds."""


def _matcher(
    config: WinogroundConfig, source: str, device: torch.device, cache_folder: Path
) -> Matcher:
    """The model's matcher, which scores captions and images; `cache_folder`: a folder for features."""
    # With --regions, --model must read regions, but the other model may be a CLIP.
    if config.image_settings.regions and (source == config.model or is_single_stream(source)):
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


def _model_scores(
    source: str, match: Matcher, examples: Sequence[WinogroundExample]
) -> _PairScores:
    """A model's scores of the examples."""
    scores, cut = _scores(examples, match)
    summary = {"model": source, "measure": match.measure, "cut_captions": cut}
    return _PairScores(
        summary, scores, np.stack([rule.item_score(scores) for rule in WINOGROUND_RULES], 1)
    )


def _scores(examples: Sequence[WinogroundExample], match: Matcher) -> tuple[np.ndarray, int]:
    """Scores (N, 4), image 0 with captions 0 and 1, then image 1; number of truncated captions."""
    rows: list[Example] = []
    for example in examples:
        for image in example.images:
            for caption in example.captions:
                name = f"{example.id}/{len(rows) % 4}"
                rows.append(Example(name, caption, images=(image,)))
    matched = match(rows, TEST)
    cut = int((matched.truncated_tokens > 0).sum()) // 2
    if cut:
        print_notes([f"truncated {cut:,} of {2 * len(examples):,} captions at their end"])
    # Captions with equal tokens get equal scores with an image, independent of the batch.
    token_digests = [matched.token_digests[start : start + 2] for start in range(0, len(rows), 2)]
    equalised = equalise_identical_texts(
        require_finite(matched.scores.reshape(-1, 2)), token_digests
    )
    return equalised.reshape(-1, 4), cut


def _write_items(
    path: Path, examples: Sequence[WinogroundExample], models: Sequence[_PairScores]
) -> None:
    """One JSON line per example: tags, scores, rules that hold; the other model's under `other`."""
    with whole_file(path) as file:
        for number, example in enumerate(examples):
            line: dict[str, Any] = {"id": example.id, "tags": example.tags}
            first, *other_lines = [_item(of_model, number) for of_model in models]
            line |= first
            if other_lines:
                line["other"] = other_lines[0]
            file.write(json_text(line) + "\n")


def _item(of_model: _PairScores, number: int) -> dict[str, Any]:
    """A model's scores of an example, and which rules hold."""
    holds = zip(WINOGROUND_RULES, of_model.item_scores[number], strict=True)
    scores = of_model.scores[number].round(6).tolist()
    return {"scores": scores, **{rule.name: bool(value) for rule, value in holds}}


def format_winoground(result: dict[str, Any]) -> str:
    """The result as text, in percentage points."""
    rows = [
        {"": "chance", "items": ""} | {r.name: f"{100 * r.chance:.2f}" for r in WINOGROUND_RULES}
    ]
    rows += [_row(name, found) for name, found in result["scores"].items()]
    if "other" in result:
        rows += [_row(f"{name}: other", one) for name, one in result["other"]["scores"].items()]
        rows += [
            _row(f"{name}: other - model", one, "+") for name, one in result["difference"].items()
        ]
    return format_table(rows)


def _row(name: str, scores: dict[str, Any], sign: str = "") -> dict[str, str]:
    row = {"": name, "items": f"{scores['items']:,}"}
    for rule in WINOGROUND_RULES:
        low, high = (100 * end for end in scores[f"{rule.name}_interval"])
        row[rule.name] = f"{100 * scores[rule.name]:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"
    return row
