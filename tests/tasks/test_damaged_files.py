"""Official files whose values no data set has."""

from __future__ import annotations

import json
from math import nan
from pathlib import Path

import pytest
from homes import put

from groundling.check.folder import check
from groundling.core.errors import InputError
from groundling.core.find import named
from groundling.tasks import Task


def test_e6_a_list_of_answers_that_fits_no_question_is_refused(tmp_path: Path) -> None:
    asked = {"question_id": 1, "image_id": 1, "question": "is it red ?"}
    said = {"question_id": 1, "answers": [{"answer": "yes"}] * 10}
    said |= {"answer_type": "yes/no", "question_type": "is it"}
    put(
        tmp_path / "v2_OpenEnded_mscoco_train2014_questions.json",
        json.dumps({"questions": [asked]}),
    )
    put(tmp_path / "v2_mscoco_train2014_annotations.json", json.dumps({"annotations": [said]}))
    path = put(tmp_path / "trainval_label2ans.json", json.dumps(["yes", "no"]))
    task = named("tasks", Task, "vqa")
    assert len(task.at(tmp_path).read(tmp_path, "train")) == 1
    put(path, json.dumps(["Ja", "Nein"]))
    with pytest.raises(InputError, match=r"label2ans.json: holds no answer that people gave"):
        task.at(tmp_path).read(tmp_path, "train")


@pytest.mark.parametrize("score", [nan, 1.5, -1, 10**400, "1"])
def test_e5_a_share_of_people_is_from_0_to_1(score: object, tmp_path: Path) -> None:
    asked = {"question_id": 1, "img_id": "COCO_val2014_000000000042", "sent": "is it red ?"}
    put(tmp_path / "trainval_label2ans.json", json.dumps(["yes", "no"]))
    path = put(tmp_path / "minival.json", json.dumps([asked | {"label": {"yes": score}}]))
    with pytest.raises(InputError, match=r"minival.json, questions\[0\]: .* numbers from 0 to 1"):
        named("tasks", Task, "vqa/minival").read(tmp_path, "minival")
    put(path, "[]")
    assert f"{path}: expected a list of questions" in check(tmp_path).problems[0]
