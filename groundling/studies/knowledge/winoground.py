"""Winoground: two images, and two captions of the same words (Thrush et al. 2022)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
from groundling.runs.progress import print_notes
from groundling.runs.run import Run
from groundling.settings.input_settings import RegionSettings
from groundling.studies.knowledge.commands import WinogroundConfig
from groundling.studies.knowledge.minimal_pairs import (
    WINOGROUND_RULES,
    bootstrap_means,
    compare_models,
    group_items,
    item_credits,
    write_items,
)
from groundling.teachers.feature_cache import FeatureCache
from groundling.vision_language.loading import is_region_encoder

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


def winoground(config: WinogroundConfig, run: Run) -> dict[str, Any]:
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
    result: dict[str, Any] = summaries[0] | {
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
    token_digests = [matched.token_digests[start : start + 2] for start in range(0, len(rows), 2)]
    equalised = equalise_identical_texts(
        require_finite(matched.scores.reshape(-1, 2)), token_digests
    )
    return equalised.reshape(-1, 4), cut
