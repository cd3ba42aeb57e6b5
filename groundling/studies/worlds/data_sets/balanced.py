"""The world as VQA v2, SNLI-VE, NLVR2 and RefCOCO+: short texts, each with an image for every answer."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

from numpy.random import Generator

from groundling.runs.folder import write_whole
from groundling.studies.worlds.data_sets.captions import marked_captions, without_marks
from groundling.studies.worlds.data_sets.writer import (
    KINDS,
    SPOKEN_ORDER,
    BalancedText,
    ComplementaryScenes,
    DataSetWriter,
    JsonObject,
    category_of,
    describe_object,
    draw_object_attributes,
    draw_topic,
    matching_objects,
    relation_of,
    unique_object,
)
from groundling.studies.worlds.families.objects import ATTRIBUTES, RELATIONS
from groundling.studies.worlds.world import Scene

# Statements, which VQA asks for and SNLI-VE claims.


@dataclass(frozen=True)
class SceneStatement:
    """A statement about an object, and its truth in a scene."""

    subject: str
    """The object, described by an attribute value and perhaps its place."""
    predicate: str
    """An attribute value, or a place."""
    holds: Callable[[Scene], bool | None]
    """Whether the statement is true in a scene; None unless exactly one object matches the subject."""
    mentioned: tuple[str, ...]
    """Attribute values that must occur in the scene for the statement to apply."""


def draw_statement(rng: Generator) -> SceneStatement:
    """Draw a statement about an object's attribute, or its relation to the other object."""
    value, other_value, relation = draw_topic(rng)
    if relation and rng.random() < 0.5:
        return _place_statement(value, other_value, relation)
    return _attribute_statement(value, other_value, relation)


def _attribute_statement(value: str, other_value: str, relation: str) -> SceneStatement:
    """The object with one value, or the object in a relation to it, has the other value."""

    def holds(scene: Scene) -> bool | None:
        number = unique_object(scene, value, relation=relation)
        return None if number is None else other_value in scene.things[number].attributes

    subject = f"the thing {relation} the {value} thing" if relation else f"the {value} thing"
    return SceneStatement(subject, other_value, holds, (value,))


def _place_statement(value: str, other_value: str, relation: str) -> SceneStatement:
    """The object with one value is in a relation to the object with the other value."""

    def holds(scene: Scene) -> bool | None:
        thing = unique_object(scene, value)
        other = unique_object(scene, other_value)
        if thing is None or other is None or other == thing:
            return None
        return relation_of(scene, thing) == relation

    predicate = f"{relation} the {other_value} thing"
    return SceneStatement(f"the {value} thing", predicate, holds, (value, other_value))


# VQA v2: questions on one image, with ten people's answers.

YES_NO = ("no", "yes")
NUMBERS = ("0", "1", "2")
ANSWER_TYPES = {YES_NO: "yes/no", NUMBERS: "number"}
"""Answer types of the official files; all other answers are "other"."""
QUESTION_TYPES = ("how many", "is there a", "is the", *(f"what {kind} is the" for kind in KINDS))
"""First words of the questions."""


def draw_question(rng: Generator) -> BalancedText:
    """Draw a question for an attribute (probability 2/6), yes or no (3/6), or a number (1/6)."""
    value, other_value, relation = draw_topic(rng)
    sort = int(rng.integers(6))
    if sort == 0:
        return BalancedText(
            f"how many things are {value} ?",
            NUMBERS,
            lambda scene: str(len(matching_objects(scene, value))),
        )
    if sort == 1:
        return BalancedText(
            f"is there a {describe_object(value, other_value)} ?",
            YES_NO,
            lambda scene: "yes" if matching_objects(scene, value, other_value) else "no",
        )
    if sort < 4:
        statement = draw_statement(rng)
        answers = {None: None, False: "no", True: "yes"}
        text = f"is {statement.subject} {statement.predicate} ?"
        return BalancedText(text, YES_NO, lambda scene: answers[statement.holds(scene)])
    return _which_value(value, other_value, relation)


def _which_value(value: str, answer: str, relation: str) -> BalancedText:
    """The question for the attribute of which one value is `answer`."""
    attribute = next(kind for kind in KINDS if answer in ATTRIBUTES[kind])

    def answer_of(scene: Scene) -> str | None:
        thing = unique_object(scene, value, relation=relation)
        return None if thing is None else scene.things[thing].attributes[KINDS.index(attribute)]

    subject = f"thing {relation} the {value} thing" if relation else f"{value} thing"
    return BalancedText(f"what {attribute} is the {subject} ?", ATTRIBUTES[attribute], answer_of)


def write_vqa(files: DataSetWriter) -> None:
    """Write questions and annotations of both splits, and the list of answers."""
    answers = [*YES_NO, *NUMBERS, *SPOKEN_ORDER]
    files.write_rows("vqa/trainval_label2ans.json", answers)
    files.texts.update(answers)
    for split in ("train", "val"):
        _write_vqa_split(files, split)


def _write_vqa_split(files: DataSetWriter, split: str) -> None:
    questions: list[JsonObject] = []
    annotations: list[JsonObject] = []
    question_counts = Counter[int]()
    for each in files.balanced_texts("vqa", split, draw_question):
        text, answers = each.claim.text, each.claim.answers
        for answer, scene in zip(answers, each.scenes, strict=True):
            image = scene.image_id
            files.images[f"COCO_{split}2014_{image:012d}.jpg"] = scene
            ids = {"image_id": image, "question_id": 1000 * image + question_counts[image]}
            question_counts[image] += 1
            questions.append({**ids, "question": text})
            annotation = {
                **ids,
                "question_type": next(one for one in QUESTION_TYPES if text.startswith(one)),
                "answer_type": ANSWER_TYPES.get(answers, "other"),
                "answers": _ten_people(each.rng, answer, answers),
                "multiple_choice_answer": answer,
            }
            annotations.append(annotation)
    head = {
        "info": {},
        "task_type": "Open-Ended",
        "data_type": "mscoco",
        "data_subtype": f"{split}2014",
        "license": {},
    }
    name = f"mscoco_{split}2014"
    files.write_rows(f"vqa/v2_OpenEnded_{name}_questions.json", head | {"questions": questions})
    files.write_rows(f"vqa/v2_{name}_annotations.json", head | {"annotations": annotations})


def _ten_people(
    rng: Generator, answer: str, answers: tuple[str, ...]
) -> list[dict[str, str | int]]:
    """Ten people's answers: at most two differ, so a wrong yes or no scores at most 0.6."""
    others = [other for other in answers if other != answer]
    dissenters = rng.choice(3, p=(0.7, 0.2, 0.1))
    replies = [others[rng.integers(len(others))] for _ in range(dissenters)]
    replies += [answer] * (10 - len(replies))
    people: list[dict[str, str | int]] = []
    for number, reply in enumerate(rng.permutation(replies).tolist(), 1):
        confidence = "yes" if reply == answer else "maybe"
        people.append({"answer": reply, "answer_confidence": confidence, "answer_id": number})
    return people


# SNLI-VE: hypotheses that an image entails, contradicts, or leaves open.

LABELS = ("contradiction", "entailment", "neutral")


def draw_hypothesis(rng: Generator) -> BalancedText:
    """Draw a hypothesis; it is neutral if no object of the image has the mentioned attribute values."""
    statement = draw_statement(rng)
    answers = {None: None, False: "contradiction", True: "entailment"}

    def answer_of(scene: Scene) -> str | None:
        if not all(matching_objects(scene, value) for value in statement.mentioned):
            return "neutral"
        return answers[statement.holds(scene)]

    return BalancedText(f"{statement.subject} is {statement.predicate} .", LABELS, answer_of)


def write_snli_ve(files: DataSetWriter) -> None:
    """Write all splits; each hypothesis has three images, one per label."""
    for split in ("train", "dev", "test"):
        rows: list[JsonObject] = []
        for each in files.balanced_texts("snli_ve", split, draw_hypothesis):
            for label, scene in zip(each.claim.answers, each.scenes, strict=True):
                name = f"{scene.image_id:010d}.jpg"
                number = int(each.rng.integers(5))
                premise = without_marks(marked_captions(files, scene)[number])
                files.images[name] = scene
                files.texts.add(premise)
                row = {
                    "Flikr30kID": name,
                    "captionID": f"{name}#{number}",
                    "pairID": f"{name}#{number}r{each.number}{label[0]}",
                    "sentence1": premise,
                    "sentence2": each.claim.text,
                    "gold_label": label,
                    "annotator_labels": [label],
                }
                rows.append(row)
        files.write_rows(f"snli_ve/snli_ve_{split}.jsonl", *rows)


# NLVR2: sentences about two images, each true of two image pairs and false of two.

SENTENCES = {
    "the left image has a {} .": (1, 0, 1, 1, 0, 1, 0, 0),
    "the right image has a {} .": (0, 1, 1, 1, 1, 0, 0, 0),
    "both images have a {} .": (1, 1, 1, 1, 1, 0, 0, 1),
    "one image has a {} , not both .": (1, 0, 0, 1, 1, 1, 0, 0),
}
"""Whether the left and the right image have such an object: in two pairs with label True, then two with False."""


def draw_sentence(rng: Generator) -> BalancedText:
    """Draw a sentence; its answers state for four pairs, left and right image in turn, whether the object is there."""
    values = draw_object_attributes(rng)
    template = tuple(SENTENCES)[rng.integers(len(SENTENCES))]
    return BalancedText(
        template.format(describe_object(*values)),
        SENTENCES[template],
        lambda scene: int(bool(matching_objects(scene, *values))),
    )


def write_nlvr2(files: DataSetWriter) -> None:
    """Write all splits; a round is one of NLVR2's sets of four pairs."""
    for split in ("train", "dev", "test1"):
        rows: list[JsonObject] = []
        for each in files.balanced_texts("nlvr2", split, draw_sentence, scenes_each=2):
            rows += _four_pairs(files, split, each)
        files.write_rows(f"nlvr2/{split}.json", *rows)


def _four_pairs(files: DataSetWriter, split: str, each: ComplementaryScenes) -> list[JsonObject]:
    rows = []
    for pair, place in enumerate(each.rng.permutation(4).tolist()):
        name = f"{split}-{each.number}-{pair}"
        label = str(place < 2)
        left, right = f"{name}-img0.png", f"{name}-img1.png"
        files.images[left], files.images[right] = each.scenes[2 * place : 2 * place + 2]
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


# RefCOCO+: expressions that refer to one object of an image.


def draw_expression(rng: Generator) -> BalancedText:
    """Draw an expression of one or two attribute values; the answers are the object's places, which are balanced."""
    values = draw_object_attributes(rng)

    def answer_of(scene: Scene) -> str | None:
        thing = unique_object(scene, *values)
        return None if thing is None else relation_of(scene, thing)

    return BalancedText(describe_object(*values), RELATIONS, answer_of)


def write_refcoco(files: DataSetWriter) -> None:
    """Write expressions and boxes; testA and testB have the same kinds of objects."""
    images: dict[int, str] = {}
    refs: dict[int, JsonObject] = {}
    sentence_ids = count()
    for split in ("train", "val", "testA", "testB"):
        for each in files.balanced_texts("refcoco+", split, draw_expression):
            for where, scene in zip(each.claim.answers, each.scenes, strict=True):
                thing = 0 if scene.relation == where else 1
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
