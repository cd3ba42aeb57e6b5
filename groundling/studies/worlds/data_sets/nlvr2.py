"""The world as NLVR2: sentences about two images, each true of two image pairs and false of two."""

from __future__ import annotations

from numpy.random import Generator

from groundling.studies.worlds.data_sets.writer import (
    BalancedText,
    ComplementaryScenes,
    DataSetWriter,
    JsonObject,
    describe_object,
    draw_object_attributes,
    matching_objects,
)
from groundling.studies.worlds.world import Scene

SENTENCES = {
    "the left image has a {} .": (1, 0, 1, 1, 0, 1, 0, 0),
    "the right image has a {} .": (0, 1, 1, 1, 1, 0, 0, 0),
    "both images have a {} .": (1, 1, 1, 1, 1, 0, 0, 1),
    "one image has a {} , not both .": (1, 0, 0, 1, 1, 1, 0, 0),
}
"""Whether the left and the right image have such an object: in two pairs with label True, then two with False."""


def draw_sentence(rng: Generator) -> BalancedText[int]:
    """Draw a sentence; its answers state for four pairs, left and right image in turn, whether the object is there."""
    values = draw_object_attributes(rng)
    template = tuple(SENTENCES)[rng.integers(len(SENTENCES))]

    def answer_of(scene: Scene) -> int:
        return 1 if matching_objects(scene, *values) else 0

    return BalancedText(template.format(describe_object(*values)), SENTENCES[template], answer_of)


def write_nlvr2(files: DataSetWriter) -> None:
    """Write all splits; a round is one of NLVR2's sets of four pairs."""
    for split in ("train", "dev", "test1"):
        rows: list[JsonObject] = []
        for each in files.balanced_texts("nlvr2", split, draw_sentence, scenes_each=2):
            rows += _rows(files, split, each)
        files.write_rows(f"nlvr2/{split}.json", *rows)


def _rows(
    files: DataSetWriter, split: str, each: ComplementaryScenes[BalancedText[int]]
) -> list[JsonObject]:
    rows = []
    for pair, place in enumerate(each.rng.permutation(4).tolist()):
        name = f"{split}-{each.number}-{pair}"
        label = str(place < 2)
        left = f"{name}-img0.png"
        right = f"{name}-img1.png"
        files.images[left] = each.scenes[2 * place]
        files.images[right] = each.scenes[2 * place + 1]
        row: JsonObject = {
            "sentence": each.claim.text,
            "left_url": left,
            "right_url": right,
            "identifier": f"{name}-0",
            "label": label,
            "writer": "0",
            "validation": {"0": label},
            "synset": "thing",
            "query": "",
        }
        if split == "train":
            row["directory"] = each.number % 100
        else:
            row["extra_validations"] = {}
        rows.append(row)
    return rows
