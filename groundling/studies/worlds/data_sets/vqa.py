"""The world as VQA v2: questions on one image, with ten people's answers."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from numpy.random import Generator

from groundling.studies.worlds.data_sets.writer import (
    KINDS,
    SPOKEN_ORDER,
    BalancedText,
    DataSetWriter,
    JsonObject,
    StatementTopic,
    describe_object,
    draw_statement,
    draw_topic,
    matching_objects,
    unique_object,
)
from groundling.studies.worlds.families.objects import ATTRIBUTES
from groundling.studies.worlds.world import Scene

YES_NO = ("no", "yes")
NUMBERS = ("0", "1", "2")
ANSWER_TYPES = {YES_NO: "yes/no", NUMBERS: "number"}
"""Answer types of the official files; all other answers are "other"."""


@dataclass(frozen=True)
class BalancedQuestion(BalancedText[str]):
    """A VQA question."""

    type: str
    """Question type: its first words."""


def draw_question(rng: Generator) -> BalancedQuestion:
    """Draw a question for an attribute (probability 2/6), yes or no (3/6), or a number (1/6)."""
    topic = draw_topic(rng)
    sort = int(rng.integers(6))
    if sort == 0:
        return _how_many(topic.value)
    if sort == 1:
        return _is_there(topic.value, topic.other_value)
    if sort < 4:
        return _is_the(rng)
    return _which_value(topic)


def _how_many(value: str) -> BalancedQuestion:
    def answer_of(scene: Scene) -> str:
        return str(len(matching_objects(scene, value)))

    return BalancedQuestion(f"how many things are {value} ?", NUMBERS, answer_of, "how many")


def _is_there(value: str, other_value: str) -> BalancedQuestion:
    def answer_of(scene: Scene) -> str:
        return "yes" if matching_objects(scene, value, other_value) else "no"

    return BalancedQuestion(
        f"is there a {describe_object(value, other_value)} ?", YES_NO, answer_of, "is there a"
    )


def _is_the(rng: Generator) -> BalancedQuestion:
    statement = draw_statement(rng)

    def answer_of(scene: Scene) -> str | None:
        true = statement.holds(scene)
        if true is None:
            return None
        return "yes" if true else "no"

    text = f"is {statement.subject} {statement.predicate} ?"
    return BalancedQuestion(text, YES_NO, answer_of, "is the")


def _which_value(topic: StatementTopic) -> BalancedQuestion:
    def answer_of(scene: Scene) -> str | None:
        thing = unique_object(scene, topic.value, relation=topic.relation)
        if thing is None:
            return None
        return scene.things[thing].attributes[topic.attribute]

    attribute = KINDS[topic.attribute]
    start = f"what {attribute} is the"
    subject = f"{topic.value} thing"
    if topic.relation:
        subject = f"thing {topic.relation} the {subject}"
    return BalancedQuestion(f"{start} {subject} ?", ATTRIBUTES[attribute], answer_of, start)


def write_vqa(files: DataSetWriter) -> None:
    """Write questions and annotations of both splits, and the list of answers."""
    answers = [*YES_NO, *NUMBERS, *SPOKEN_ORDER]
    files.write_rows("vqa/trainval_label2ans.json", answers)
    files.texts.update(answers)
    for split in ("train", "val"):
        _write_split(files, split)


def _write_split(files: DataSetWriter, split: str) -> None:
    questions: list[JsonObject] = []
    annotations: list[JsonObject] = []
    question_counts = Counter[int]()
    for each in files.balanced_texts("vqa", split, draw_question):
        question = each.claim
        for answer, scene in zip(question.answers, each.scenes, strict=True):
            image = scene.image_id
            files.images[f"COCO_{split}2014_{image:012d}.jpg"] = scene
            ids = {"image_id": image, "question_id": 1000 * image + question_counts[image]}
            question_counts[image] += 1
            questions.append({**ids, "question": question.text})
            annotation = {
                **ids,
                "question_type": question.type,
                "answer_type": ANSWER_TYPES.get(question.answers, "other"),
                "answers": _ten_people(each.rng, answer, question.answers),
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
