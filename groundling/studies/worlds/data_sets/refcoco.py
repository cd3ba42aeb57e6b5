"""The world as RefCOCO+: expressions that refer to one object of an image."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from itertools import count

from numpy.random import Generator

from groundling.runs.folder import write_whole
from groundling.studies.worlds.data_sets.writer import (
    BalancedText,
    DataSetWriter,
    JsonObject,
    category_of,
    describe_object,
    draw_object_attributes,
    matching_objects,
    relation_of,
    unique_object,
)
from groundling.studies.worlds.families.objects import RELATIONS
from groundling.studies.worlds.world import Scene


@dataclass(frozen=True)
class BalancedExpression(BalancedText[str]):
    """A referring expression; the answers are the object's places, which are balanced."""

    attributes: tuple[str, ...]
    """Attribute values in the expression."""


def draw_expression(rng: Generator) -> BalancedExpression:
    """Draw an expression of one or two attribute values."""
    values = draw_object_attributes(rng)

    def answer_of(scene: Scene) -> str | None:
        thing = unique_object(scene, *values)
        if thing is None:
            return None
        return relation_of(scene, thing)

    return BalancedExpression(describe_object(*values), RELATIONS, answer_of, values)


def write_refcoco(files: DataSetWriter) -> None:
    """Write expressions and boxes; testA and testB have the same kinds of objects."""
    images: dict[int, str] = {}
    refs: dict[int, JsonObject] = {}
    sentence_ids = count()
    for split in ("train", "val", "testA", "testB"):
        for each in files.balanced_texts("refcoco+", split, draw_expression):
            for scene in each.scenes:
                thing = matching_objects(scene, *each.claim.attributes)[0]
                name = f"COCO_train2014_{scene.image_id:012d}.jpg"
                images[scene.image_id] = name
                files.images[name] = scene
                note = 2 * scene.image_id + thing
                if note not in refs:
                    refs[note] = _ref(len(refs), split, scene, thing, name)
                text = each.claim.text
                sentence = {
                    "raw": text,
                    "sent": text,
                    "tokens": text.split(),
                    "sent_id": next(sentence_ids),
                }
                refs[note]["sentences"].append(sentence)
                refs[note]["sent_ids"].append(sentence["sent_id"])
    files.write_rows("refcoco+/instances.json", files.coco_instances(list(images.items())))
    path = files.folder / "refcoco+" / "refs(unc).p"
    write_whole(path, pickle.dumps(list(refs.values()), protocol=2))


def _ref(ref_id: int, split: str, scene: Scene, thing: int, name: str) -> JsonObject:
    """REFER's entry of an object, still without expressions."""
    note = 2 * scene.image_id + thing
    return {
        "ref_id": ref_id,
        "ann_id": note,
        "image_id": scene.image_id,
        "split": split,
        "sentences": [],
        "category_id": category_of(scene, thing),
        "sent_ids": [],
        "file_name": name.replace(".jpg", f"_{note}.jpg"),
    }
