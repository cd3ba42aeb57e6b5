"""The world as VQA v2, SNLI-VE, NLVR2, RefCOCO+ and VCR: short texts, each with an image for every answer."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
from numpy.random import Generator

from groundling.runs.folder import write_whole
from groundling.studies.worlds.data_sets.writer import (
    KINDS,
    SPOKEN_ORDER,
    TAGS_AS_WORDS,
    BalancedText,
    DataSetWriter,
    JsonObject,
    category_of,
    describe_object,
    draw_captions,
    draw_object_attributes,
    draw_topic,
    matching_objects,
    plain_text,
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
    attribute = next(kind for kind in KINDS if other_value in ATTRIBUTES[kind])

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
    for question, scenes, rng in files.balanced_texts("vqa", split, draw_question):
        question_type = next(one for one in QUESTION_TYPES if question.text.startswith(one))
        for answer, scene in zip(question.answers, scenes, strict=True):
            image = scene.image_id
            files.images[f"COCO_{split}2014_{image:012d}.jpg"] = scene
            ids = {"image_id": image, "question_id": 1000 * image + question_counts[image]}
            question_counts[image] += 1
            questions.append({**ids, "question": question.text})
            annotations.append(
                {
                    **ids,
                    "question_type": question_type,
                    "answer_type": ANSWER_TYPES.get(question.answers, "other"),
                    "answers": _ten_people(rng, answer, question.answers),
                    "multiple_choice_answer": answer,
                }
            )
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
        texts = files.balanced_texts("snli_ve", split, draw_hypothesis)
        for round_number, (hypothesis, scenes, rng) in enumerate(texts):
            for label, scene in zip(hypothesis.answers, scenes, strict=True):
                name = f"{scene.image_id:010d}.jpg"
                number = int(rng.integers(5))
                premise = plain_text(draw_captions(files, scene)[number])
                files.images[name] = scene
                files.texts.add(premise)
                row: JsonObject = {
                    "Flikr30kID": name,
                    "captionID": f"{name}#{number}",
                    "pairID": f"{name}#{number}r{round_number}{label[0]}",
                    "sentence1": premise,
                    "sentence2": hypothesis.text,
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
        texts = files.balanced_texts("nlvr2", split, draw_sentence, scenes_each=2)
        for round_number, (sentence, scenes, rng) in enumerate(texts):
            for pair, place in enumerate(rng.permutation(4).tolist()):
                name = f"{split}-{round_number}-{pair}"
                label = str(place < 2)
                left = f"{name}-img0.png"
                right = f"{name}-img1.png"
                files.images[left] = scenes[2 * place]
                files.images[right] = scenes[2 * place + 1]
                row: JsonObject = {
                    "sentence": sentence.text,
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
                    row["directory"] = round_number % 100
                else:
                    row["extra_validations"] = {}
                rows.append(row)
        files.write_rows(f"nlvr2/{split}.json", *rows)


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
        for expression, scenes, _ in files.balanced_texts("refcoco+", split, draw_expression):
            for where, scene in zip(expression.answers, scenes, strict=True):
                thing = 0 if scene.relation == where else 1
                name = f"COCO_train2014_{scene.image_id:012d}.jpg"
                images[scene.image_id] = name
                files.images[name] = scene
                note = 2 * scene.image_id + thing
                ref = refs.setdefault(
                    note,
                    {
                        "ref_id": len(refs),
                        "ann_id": note,
                        "image_id": scene.image_id,
                        "split": split,
                        "sentences": [],
                        "category_id": category_of(scene, thing),
                        "sent_ids": [],
                        "file_name": name.replace(".jpg", f"_{note}.jpg"),
                    },
                )
                text = expression.text
                number = next(sentence_ids)
                words = {"raw": text, "sent": text, "tokens": text.split()}
                ref["sentences"].append(words | {"sent_id": number})
                ref["sent_ids"].append(number)
    files.write_rows("refcoco+/instances.json", files.coco_instances(list(images.items())))
    path = files.folder / "refcoco+" / "refs(unc).p"
    write_whole(path, pickle.dumps(list(refs.values()), protocol=2))


# VCR: four answers and four rationales, with tags that refer to objects.

FROM_1 = str.maketrans("01", "12")
"""Converts tags to the annotators' numbering, from 1."""


def draw_vcr_question(rng: Generator) -> BalancedText:
    """Draw a question on an object's colour with its shape as rationale, or the reverse.

    The question names the object by its tag or its place. An answer is the object's tag, the requested value, and the
    rationale's value.
    """
    answer_attribute, reason_attribute = rng.permutation(2).tolist()
    thing = int(rng.integers(2))
    _, _, relation = draw_topic(rng)
    answers, reasons = (
        rng.permutation(ATTRIBUTES[KINDS[attribute]])[:4].tolist()
        for attribute in (answer_attribute, reason_attribute)
    )

    def answer_of(scene: Scene) -> tuple[int, str, str] | None:
        if relation and relation != relation_of(scene, thing):
            return None
        values = scene.things[thing].attributes
        return thing, values[answer_attribute], values[reason_attribute]

    subject = f"the thing {relation} {1 - thing}" if relation else str(thing)
    text = f"what {KINDS[answer_attribute]} is {subject} ?"
    return BalancedText(text, tuple(zip([thing] * 4, answers, reasons, strict=True)), answer_of)


def write_vcr(files: DataSetWriter) -> None:
    """Write lines and metadata of both splits.

    The four lines of a round share their choices, each of which is right once; tags are written as digits.
    """
    for split in ("train", "val"):
        rows: list[JsonObject] = []
        for question, scenes, rng in files.balanced_texts("vcr", split, draw_vcr_question):
            rows += _vcr_rows(files, split, question, scenes, rng, len(rows))
        files.write_rows(f"vcr/{split}.jsonl", *rows)


def _vcr_rows(
    files: DataSetWriter,
    split: str,
    question: BalancedText,
    scenes: Sequence[Scene],
    rng: Generator,
    first_line: int,
) -> list[JsonObject]:
    """The four lines of a round, numbered from `first_line`; writes the metadata of their images."""
    order = rng.permutation(4).tolist()  # order of the rationales, the same for all four lines
    line_order = rng.permutation(4).tolist()  # order of the lines
    has_shortcut = rng.random(4) < files.shortcut
    rows = []
    for number, right in enumerate(line_order, first_line):
        scene = scenes[right]
        still = f"lsmdc_0001_WORLD/0001_WORLD_{scene.image_id:012d}@0"
        thing, answer, _ = question.answers[right]
        # With the shortcut, wrong answers have another attribute, which reveals the right one.
        answers = [
            one[2 if has_shortcut[right] and place != right else 1]
            for place, one in enumerate(question.answers)
        ]
        reasons = [question.answers[place][2] for place in order]
        stated = {
            "answer": ([f"{thing} is {one} ." for one in answers], [0, 1, 2, 3]),
            "rationale": (
                [f"{thing} is a {describe_object(answer, one)} ." for one in reasons],
                order,
            ),
        }
        row: JsonObject = {}
        for name, (texts, places) in stated.items():
            files.texts.update(text.translate(TAGS_AS_WORDS) for text in texts)
            label = places.index(right)
            row |= {
                f"{name}_choices": [_tokens(text) for text in texts],
                f"{name}_label": label,
                f"{name}_sources": [first_line + line_order.index(place) for place in places],
                f"{name}_match_iter": [(place - right) % 4 for place in places],
                f"{name}_orig": texts[label].translate(FROM_1),
            }
        row |= {
            "question": _tokens(question.text),
            "question_orig": question.text.translate(FROM_1),
            "movie": "0001_WORLD",
            "img_fn": f"{still}.jpg",
            "metadata_fn": f"{still}.json",
            "img_id": f"{split}-{scene.image_id}",
            "annot_id": f"{split}-{number}",
            "question_number": 0,
            "objects": ["thing", "thing"],
            "interesting_scores": [1],
            "answer_likelihood": "likely",
            "match_fold": f"{split}-0",
            "match_index": number,
        }
        rows.append(row)
        files.images[f"{still}.jpg"] = scene
        files.write_rows(f"vcr/vcr1images/{still}.json", _metadata(files, scene))
    return rows


def _tokens(text: str) -> list[str | list[int]]:
    """A text in VCR's format: a tag is a list of object numbers."""
    return [[int(word)] if word.isdigit() else word for word in text.split()]


def _metadata(files: DataSetWriter, scene: Scene) -> JsonObject:
    corners = [files.box(scene, thing) for thing in (0, 1)]
    boxes = [[x, y, x + width, y + height, 1.0] for x, y, width, height in corners]
    segments = [_segments(files, scene, thing) for thing in (0, 1)]
    return {"boxes": boxes, "segms": segments, "names": ["thing", "thing"], **files.shape}


def _segments(files: DataSetWriter, scene: Scene, number: int) -> list[list[list[int]]]:
    """An object's pixels as polygons, one for each run in a row: polygons cannot have holes, but some shapes do."""
    thing = scene.things[number]
    covered = files.world.render_object(thing).cover[:, :, 0] >= 0.5
    polygons = []
    for y, line in enumerate(covered, thing.y):
        edges = np.flatnonzero(np.diff([0, *line, 0]))  # starts and ends of runs, alternating
        runs = edges.reshape(-1, 2) + thing.x
        below = y + 1
        for left, right in runs.tolist():
            polygons.append([[left, y], [right, y], [right, below], [left, below]])
    return polygons
