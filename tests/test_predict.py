"""A saved model is asked again: every task, one's own file, an empty folder, another process, and what goes wrong."""

from __future__ import annotations

import csv
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import toys
import vcr_files
from homes import STEPS, put, table
from test_pretrain import store

from groundling.config import (
    EvaluateConfig,
    PredictConfig,
    configured,
)
from groundling.find import instances
from groundling.forms import Choose, Classify, Pick, Regress
from groundling.load import PLAIN, join_to, load_student, new_head
from groundling.models.kinds import Student
from groundling.objectives.supervised import Supervised
from groundling.predicting.description import Described, Reads
from groundling.recipes.evaluate import evaluate
from groundling.recipes.predict import predict
from groundling.recipes.teaching import save_objectives
from groundling.tasks import Task
from groundling.tasks.glue import Reader
from groundling.world import World, WorldConfig
from groundling.world.encoder import new_encoder
from groundling.world.tasks import write_tasks

BRIEF = replace(STEPS, steps=2, batch=4)
WIDTH = 6
TASKS = instances("tasks", Task)
"""Every task of the library, by name."""
VISION = {
    "vqa": "vqa",
    "nlvr2": "nlvr2",
    "snli-ve": "snli_ve",
    "vcr": "vcr",
    "refcoco": "refcoco+",
    "flickr30k": "flickr30k",
}
"""Where the rendered world's files of a task are, by the beginning of its name."""
PARTITION = {"refcocog": "umd", "refcocog/mattnet": "umd", "refcocog/google": "google"}


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def config_of(**settings: Any) -> PredictConfig:
    return configured(PredictConfig, cpu=True, **settings)


def scores_of(**settings: Any) -> dict[str, Any]:
    return evaluate(configured(EvaluateConfig, cpu=True, **settings))


# -- every task --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of every task, a text encoder, a UNITER, and a store of all images."""
    folder = tmp_path_factory.mktemp("predict")
    names = {"vqa", "nlvr2", "snli-ve", "refcoco+", "flickr30k"}
    write_tasks(World(WorldConfig(scenes=0, dev_scenes=0)), folder, 24, 24, names)
    new_encoder(folder / "texts.txt", folder / "bert", 0, 1, 64)
    listed = json.loads((folder / "instances.json").read_text())["images"]
    images = [image["file_name"].rpartition(".")[0] for image in listed]
    store(folder / "store", images, WIDTH, objects=2)
    vcr_files.folder(folder / "vcr", 4, 4)
    store(folder / "stills", [f"movie/{n}" for n in range(3)], WIDTH, objects=5)
    for by in set(PARTITION.values()):
        shutil.copy(folder / "refcoco+/refs(unc).p", folder / f"refcoco+/refs({by}).p")
    for name, task in TASKS.items():
        if name.startswith("glue/"):
            glue(folder / "glue", task)
    swag(folder / "swag")
    passages = [(f"p{n}", text, n / 10) for n, text in enumerate(toys.sentences()[:9])]
    put(folder / "readability/train.csv", table(("id", "excerpt", "target"), *passages))
    put(folder / "readability/test.csv", table(("id", "excerpt"), *(one[:2] for one in passages)))
    return folder


def glue(folder: Path, task: Task) -> None:
    """Dev and test files of a GLUE task, with the columns that its reader wants."""
    reader = task.read
    assert isinstance(reader, Reader)
    (folder / reader.folder).mkdir(parents=True)
    texts = toys.sentences()
    for split in (*task.dev, *task.test):
        labelled = split not in task.test
        columns = [*reader.texts, reader.label if labelled else reader.index]
        lines = [] if labelled and reader.headless else ["\t".join(columns)]
        if labelled and reader.headless:
            columns = list(reader.headless)
        for number in range(4):
            row = dict.fromkeys(columns, str(number))
            row |= {name: texts[number + place] for place, name in enumerate(reader.texts)}
            spelt = task.form.labels[number % 2] if isinstance(task.form, Classify) else "2.5"
            row |= {reader.label: spelt} if labelled else {}
            lines.append("\t".join(row[name] for name in columns))
        put(reader.path(folder, split), "\n".join(lines) + "\n")


def swag(folder: Path) -> None:
    endings = [f"ending{n}" for n in range(4)]
    rows = [("a dog", "it", *(f"{word} {n}" for word in "abcd"), n % 4) for n in range(4)]
    put(folder / "val.csv", table(("sent1", "sent2", *endings, "label"), *rows))
    put(folder / "test.csv", table(("sent1", "sent2", *endings), *(row[:-1] for row in rows)))
    wrong = [f"distractor-{n}" for n in range(4)]
    full = [("a dog", "it", "a", "b", "c", "d", "e") for _ in range(4)]
    put(folder / "val_full.csv", table(("sent1", "sent2", "gold-ending", *wrong), *full))


def data_of(world: Path, name: str) -> Path:
    for beginning, folder in VISION.items():
        if name.startswith(beginning):
            return world / folder
    return world / name.partition("/")[0]


def saved(folder: Path, exported: Path, student: Student, about: Described) -> Path:
    """A model folder as `finetune` writes it, with a head that nobody trained."""
    torch.manual_seed(3)
    assert about.form is not None
    head = new_head(student, about.form, about.head)
    shutil.copytree(exported, folder)
    save_objectives(folder, [Supervised(student.sizes, form=about.form, head=head)])
    about.write(folder)
    return folder


@pytest.fixture(scope="module")
def students(world: Path) -> dict[bool, Student]:
    """By whether it reads regions."""
    torch.manual_seed(0)
    text = load_student(world / "bert")
    join_to(text, "uniter", WIDTH).export(world / "uniter")
    return {False: text, True: load_student(world / "uniter")}


@pytest.mark.parametrize("name", [name for name in TASKS if not name.startswith("world/")])
def test_every_task_is_answered_and_scored(
    name: str, world: Path, students: dict[bool, Student], tmp_path: Path
) -> None:
    data = data_of(world, name)
    task = TASKS[name].at(data)
    sees = data.name in VISION.values()
    reads = Reads(max_length=48, images=2 if name == "nlvr2" else int(sees), regions=sees)
    about = Described(task=name, form=task.form, head=PLAIN, reads=reads)
    exported = world / ("uniter" if sees else "bert")
    model = saved(tmp_path / "model", exported, students[sees], about)
    images = "stills" if name.startswith("vcr") else "store"
    where = {"regions": str(world / images)} if sees else {}
    settings: dict[str, Any] = {"model": str(model), "data": str(data), **where}

    dev = task.dev[0]
    told = predict(config_of(**settings, split=dev, best=2), tmp_path / "dev.csv")
    examples = task.read(data, dev)
    answers = rows(tmp_path / "dev.csv")
    assert told["rows"] == told["answered"] == len(answers) == len(examples) > 0
    assert [row["text"] for row in answers] == [example.text for example in examples]
    assert [row["id"] for row in answers] == [example.official for example in examples]
    for row in answers:
        assert row["answer"] != ""
        if not isinstance(task.form, Regress):
            assert 0 < float(row["probability"]) <= 1
            assert float(row["probability_2"]) <= float(row["probability"]) + 1e-6
        if isinstance(task.form, Pick):
            left, top, right, bottom = (float(row[side]) for side in ("x1", "y1", "x2", "y2"))
            assert 0 <= left < right <= 60 and 0 <= top < bottom <= 40
        if isinstance(task.form, Choose):
            assert row["choice"] == row[f"option_{row['answer']}"]

    scores = scores_of(**settings, split=dev)["scores"][dev]
    assert {metric.name for metric in task.metrics} <= set(scores)
    if isinstance(task.form, Classify) and "accuracy" in scores:
        right = [
            row["answer"] == task.form.spell(example.label)
            for row, example in zip(answers, examples, strict=True)
        ]
        assert scores["accuracy"] == pytest.approx(np.mean(right))
    for split in [name for name in task.test if (task.file(data, name)).is_file()]:
        predict(config_of(**settings, split=split), tmp_path / f"{split}.csv")
        count = len(rows(tmp_path / f"{split}.csv"))
        assert count == len(task.read(data, split)) > 0
