"""Whether a model uses the photographs: exchanged images, the interval, and the majority per question."""

from __future__ import annotations

import operator
from dataclasses import replace

import numpy as np
import pytest

from groundling.core.batch import Example
from groundling.core.errors import InputError
from groundling.core.metrics import ACCURACY
from groundling.core.output_types import Classification
from groundling.tasks import Task
from groundling.training.evaluation import EvaluationOutput
from groundling.training.image_use import (
    exchange_images,
    image_use,
    image_use_note,
    majority_per_question,
    shuffle_images,
)

TASK = Task("own", Classification(("no", "yes")), lambda folder, split: [], (ACCURACY,), source="")
PHOTOS = 30
LABELS = np.array([photo % 2 for photo in range(PHOTOS) for _ in range(2)])
HELD = [
    Example(f"{photo}-{question}", f"is it {question} ?", label=photo % 2, images=(str(photo),))
    for photo in range(PHOTOS)
    for question in ("big", "Red")
]


def output(predictions: np.ndarray) -> EvaluationOutput:
    return EvaluationOutput(HELD, np.zeros((len(HELD), 2)), predictions, LABELS, {})


def test_each_photo_becomes_another_one() -> None:
    exchanged = exchange_images(TASK, HELD)
    moved = dict(zip((one.images for one in HELD), (one.images for one in exchanged), strict=True))
    assert all(own != other for own, other in moved.items())
    assert len(set(moved.values())) == PHOTOS
    assert [replace(one, images=()) for one in exchanged] == [
        replace(one, images=()) for one in HELD
    ]
    assert exchange_images(TASK, HELD[::-1]) == exchanged[::-1]


def test_a_control_differs_in_the_photos_alone() -> None:
    splits = {"train": HELD[: PHOTOS // 2], "dev": HELD[PHOTOS // 2 :]}
    shuffled = shuffle_images(TASK, splits, 1)
    for split, some in splits.items():
        photos, others = ([one.images for one in each] for each in (some, shuffled[split]))
        assert set(photos) == set(others) and all(map(operator.ne, photos, others))
        blind = [[replace(one, images=()) for one in each] for each in (some, shuffled[split])]
        assert blind[0] == blind[1]
    assert shuffled == shuffle_images(TASK, splits, 1) != shuffle_images(TASK, splits, 2)
    boxes = [replace(one, object_count=2) for one in HELD[:4]]
    for some, reason in (
        (HELD[:2], "expected two images or more, found only 0"),
        ([*HELD[:4], replace(HELD[5], images=())], "an example has no image"),
        (boxes, "a question or an answer names boxes of its image"),
        ([], "no examples"),
    ):
        with pytest.raises(InputError, match=f"shuffle_images: test of own: {reason}"):
            shuffle_images(TASK, {"test": some}, 1)


@pytest.mark.parametrize("change", [{"label": None}, {"images": ()}, {"object_count": 2}])
def test_where_an_exchange_says_nothing(change: dict[str, object]) -> None:
    assert exchange_images(TASK, [*HELD, replace(HELD[0], **change)]) == []
    assert exchange_images(TASK, HELD[:2]) == []


@pytest.mark.parametrize(
    ("own", "exchanged", "says"),
    [
        (LABELS, 1 - LABELS, "yes: accuracy 1.000 with the right ones, 0.000"),
        (LABELS, LABELS, "that is not shown: accuracy 1.000 with the right ones, 1.000"),
        (0 * LABELS, 0 * LABELS, "0% of 60 answers about 30 photographs change; NOT above the"),
    ],
)
def test_what_is_said(own: np.ndarray, exchanged: np.ndarray, says: str) -> None:
    train = [replace(one, images=("other",)) for one in HELD]
    use = image_use(TASK, HELD, output(own), output(exchanged), train)
    assert says in image_use_note("dev", use)
    assert "change; trained without any: 0.400;" in image_use_note("dev", use, without=0.4)
    assert use["n"] == 60 and use["photographs"] == PHOTOS
    low, high = use["interval"]
    assert low <= use["difference"] <= high
    assert use["majority_per_question"] == 0.5


def test_the_interval_counts_photographs_not_questions() -> None:
    noisy = np.where(np.arange(len(HELD)) // 2 % 5 == 0, 1 - LABELS, LABELS)
    use = image_use(TASK, HELD, output(LABELS), output(noisy))
    low, high = use["interval"]
    # A share of .2 of 30 photographs: two standard errors on either side are .286.
    assert high - low == pytest.approx(4 * (0.2 * 0.8 / PHOTOS) ** 0.5, abs=0.03)


def test_a_new_question_gets_the_answer_to_all() -> None:
    train = [
        Example("0", "a ?", label=1),
        Example("1", "A  ?", label=1),
        Example("2", "b ?", label=0),
        Example("3", "c ?", label=np.array([[0, 0.3], [2, 1.0], [-1, 9.0]])),
        Example("4", "c ?", label=None),
    ]
    held = [Example(str(n), text) for n, text in enumerate(("a ?", "b ?", "c ?", "new ?"))]
    assert majority_per_question(train, held).tolist() == [1, 0, 2, 1]
