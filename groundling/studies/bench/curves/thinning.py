"""Fewer images or captions of a world, chosen of all of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from groundling.core.rng import generator
from groundling.studies.bench.protocol import ADAPTING, TEACHING
from groundling.studies.bench.readings import nouns_of_images


def thin_images(
    captions: Mapping[str, Any], world: Path, seed: int, share: float
) -> dict[str, Any]:
    """COCO captions of a share of the images: each noun is in equally many, and images without nouns become as rare.

    Images are taken in order while all of their nouns have too few, so that two conditions have much in common.
    """
    shown = nouns_of_images(world)
    counts = Counter(noun for nouns in shown.values() for noun in nouns)
    limit = max(1, round(share * counts.total() / len(counts)))
    taken: Counter[str] = Counter()
    empty = 0
    ids = [image["id"] for image in captions["images"]]
    kept = set()
    for name in ids:
        nouns = shown.get(name, [])
        if not nouns:
            empty += 1
            is_kept = int(empty * share) > int((empty - 1) * share)
        else:
            is_kept = all(taken[noun] < limit for noun in nouns)
        if is_kept:
            kept.add(name)
            taken.update(nouns)
    # Worlds of small tests would not fill a batch of the teacher's training.
    others = [name for name in ids if name not in kept]
    kept.update(others[: max(0, TEACHING.batch - len(kept))])
    notes = [note for note in captions["annotations"] if note["image_id"] in kept]
    return _of_images(captions, notes, kept)


def thin_captions(
    captions: Mapping[str, Any], world: Path, seed: int, share: float
) -> dict[str, Any]:
    """COCO captions, a share of them at random, with their images; a smaller share is part of a larger one."""
    notes = captions["annotations"]
    count = max(ADAPTING.batch, round(share * len(notes)))
    order = generator(seed, "bench", "captions").permutation(len(notes))
    chosen = [notes[place] for place in sorted(order[:count])]
    return _of_images(captions, chosen, {note["image_id"] for note in chosen})


def _of_images(
    captions: Mapping[str, Any], notes: list[Any], ids: Collection[int]
) -> dict[str, Any]:
    images = [image for image in captions["images"] if image["id"] in ids]
    return {**captions, "images": images, "annotations": notes}
