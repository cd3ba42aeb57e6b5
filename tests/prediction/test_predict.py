"""A saved model is asked again: every task, one's own file, an empty folder, another process, and what goes wrong."""

from __future__ import annotations

import csv
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import homes, toys, vcr_files
from tiny.homes import STEPS, put, table
from tiny.regions import resnet, store
from transformers import CLIPImageProcessorPil

from groundling.cli import main
from groundling.commands.evaluate import COMMAND as evaluate
from groundling.commands.evaluate import EvaluateConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.predict import COMMAND as predict
from groundling.commands.predict import PredictConfig
from groundling.commands.regions import COMMAND as regions
from groundling.commands.regions import RegionsConfig
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    RegionSelection,
    Regression,
)
from groundling.core.registry import registered
from groundling.data.regions.samples import ImageSources
from groundling.data.tables import read_rows
from groundling.models.adapters import ClipFeatureAdapter, load_adapter_backbone
from groundling.models.loading import Encoder
from groundling.models.text_encoder import new_encoder
from groundling.objectives import save_objective_heads
from groundling.objectives.supervised import SupervisedObjective
from groundling.prediction import Prediction, load
from groundling.prediction.model_description import FILE, ModelDescription, read_description
from groundling.prediction.predictions import choose_seed_model
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import (
    ClipAdapterSettings,
    PredictionColumns,
    SavedModelSettings,
    TableTaskSettings,
)
from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.data_sets import write_tasks
from groundling.studies.worlds.world import World
from groundling.tasks import Task
from groundling.vision_language.end_to_end import make_end_to_end_model
from groundling.vision_language.loading import (
    ADAPTER,
    PLAIN,
    load_encoder,
    make_task_head,
    make_vision_language_model,
)

BRIEF = replace(STEPS, steps=2, batch=4)
WIDTH = 6
TASKS = registered("tasks", Task)
"""Every task of the library, by name."""
VISION = {
    "vqa": "vqa",
    "nlvr2": "nlvr2",
    "vcr/answer": "vcr",
    "refcoco+": "refcoco+",
    "flickr30k": "flickr30k",
}
"""Where the files of tasks with images are."""
TYPICAL = {**VISION, "glue/rte": "glue", "readability": "readability"}
"""Of every kind of task one, and its files."""


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def config_of(**settings: Any) -> PredictConfig:
    return make_settings(PredictConfig, cpu=True, **settings)


def scores_of(**settings: Any) -> dict[str, Any]:
    return evaluate(make_settings(EvaluateConfig, cpu=True, **settings))


# -- every kind of task -----------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of typical tasks, a text encoder, a UNITER, and a store of all images."""
    folder = tmp_path_factory.mktemp("predict")
    names = {"vqa", "nlvr2", "refcoco+", "flickr30k"}
    write_tasks(World(WorldConfig(scenes=0, dev_scenes=0)), folder, 24, 24, names)
    new_encoder(folder / "texts.txt", folder / "bert", 0, 1, 64)
    listed = json.loads((folder / "instances.json").read_text())["images"]
    images = [image["file_name"].rpartition(".")[0] for image in listed]
    store(folder / "store", images, WIDTH, objects=2)
    vcr_files.folder(folder / "vcr", 4, 4)
    store(folder / "stills", [f"movie/{n}" for n in range(3)], WIDTH, objects=5)
    homes.rte(folder / "glue")
    passages = [(f"p{n}", text, n / 10) for n, text in enumerate(toys.sentences()[:9])]
    put(folder / "readability/train.csv", table(("id", "excerpt", "target"), *passages))
    put(folder / "readability/test.csv", table(("id", "excerpt"), *(one[:2] for one in passages)))
    return folder


def test_every_kind_of_task_is_among_these() -> None:
    kinds = {name: (type(task.form), task.form.head_input) for name, task in TASKS.items()}
    assert {kinds[name] for name in TYPICAL} == set(kinds.values())


def saved(folder: Path, exported: Path, student: Encoder, about: ModelDescription) -> Path:
    """A model folder as `finetune` writes it, with a head that nobody trained."""
    torch.manual_seed(3)
    assert about.form is not None
    head = make_task_head(student, about.form, about.head)
    shutil.copytree(exported, folder)
    save_objective_heads(
        folder, [SupervisedObjective(student.sizes, output_type=about.form, head=head)]
    )
    about.write(folder)
    return folder


@pytest.fixture(scope="module")
def students(world: Path) -> dict[bool, Encoder]:
    """By whether it reads regions."""
    torch.manual_seed(0)
    text = load_encoder(world / "bert")
    make_vision_language_model(text, "uniter", WIDTH).export(world / "uniter")
    return {False: text, True: load_encoder(world / "uniter")}


@pytest.mark.parametrize("name", TYPICAL)
def test_a_task_is_answered_and_scored(name, world, students, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "groundling.prediction.fine_tuned.load", cache(load)
    )  # as each command would
    data = world / TYPICAL[name]
    task = TASKS[name].with_answers_of(data)
    sees = name in VISION
    reads: dict[str, Any] = {"max_length": 48, "reads_regions": sees}
    reads["images"] = 2 if name == "nlvr2" else int(sees)
    about = ModelDescription(task=name, form=task.form, head=PLAIN, **reads)
    exported = world / ("uniter" if sees else "bert")
    model = saved(tmp_path / "model", exported, students[sees], about)
    images = "stills" if name == "vcr/answer" else "store"
    where = {"regions": str(world / images)} if sees else {}
    settings: dict[str, Any] = {"model": str(model), "data": str(data), **where}

    dev = task.dev[0]
    told = predict(config_of(**settings, split=dev, top_k=2), tmp_path / "dev.csv")
    examples = task.read(data, dev)
    answers = rows(tmp_path / "dev.csv")
    assert told["rows"] == told["answered"] == len(answers) == len(examples) > 0
    assert [row["text"] for row in answers] == [example.text for example in examples]
    assert [row["id"] for row in answers] == [example.official_id for example in examples]
    for row in answers:
        assert row["answer"] != ""
        if not isinstance(task.form, Regression):
            assert 0 < float(row["probability"]) <= 1
            assert float(row["probability_2"]) <= float(row["probability"]) + 1e-6
        if isinstance(task.form, RegionSelection):
            left, top, right, bottom = (float(row[side]) for side in ("x1", "y1", "x2", "y2"))
            assert 0 <= left < right <= 60 and 0 <= top < bottom <= 40
        if isinstance(task.form, MultipleChoice):
            assert row["choice"] == row[f"option_{row['answer']}"]

    scores = scores_of(**settings, split=dev)["scores"][dev]
    assert {metric.name for metric in task.metrics} <= set(scores)
    if isinstance(task.form, Classification) and "accuracy" in scores:
        right = [
            row["answer"] == task.form.format_prediction(example.label)
            for row, example in zip(answers, examples, strict=True)
        ]
        assert scores["accuracy"] == pytest.approx(np.mean(right))
    for split in [name for name in task.test if (task.file(data, name)).is_file()]:
        predict(config_of(**settings, split=split), tmp_path / f"{split}.csv")
        asked = task.read(data, split)
        assert len(rows(tmp_path / f"{split}.csv")) == len(asked) > 0
        if asked[0].label is None:
            with pytest.raises(InputError, match=f"'{split}' of {name} has no labels"):
                scores_of(**settings, split=split)
        else:  # NLVR2's, which are public
            assert scores_of(**settings, split=split)["n"] == {split: len(asked)}


def test_answers_in_another_order_are_refused(world: Path, students: Any, tmp_path: Path) -> None:
    task = TASKS["vqa"].with_answers_of(world / "vqa")
    about = ModelDescription("vqa", task.form, reads_regions=True, images=1)
    model = saved(tmp_path / "model", world / "uniter", students[True], about)
    data = shutil.copytree(world / "vqa", tmp_path / "vqa")
    listed = json.loads((data / "trainval_label2ans.json").read_text())
    put(data / "trainval_label2ans.json", json.dumps(listed[::-1]))
    settings = {"model": str(model), "data": str(data), "regions": str(world / "store")}
    with pytest.raises(InputError, match="answers and those of the model differ, or their order"):
        scores_of(**settings)
    with pytest.raises(InputError, match="differ"):
        predict(config_of(**settings, split="val"), tmp_path / "answers.csv")


# -- one's own file: trained, saved, asked from elsewhere --------------------------------------------------------------
PHOTOS = 12
ASKED = ("what is it", "is it wet")


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos, a grid's regions of them, questions, and two seeds of a UNITER that answers these."""
    folder = tmp_path_factory.mktemp("own")
    homes.student(folder / "bert")
    torch.manual_seed(1)
    square = {"height": 16, "width": 16}
    vit = homes.home(folder / "vit", toys.vit(), None)
    CLIPImageProcessorPil(size=square).save_pretrained(vit)
    for number in range(PHOTOS):
        colour = (20 * number, 250 - 20 * number, 90)
        homes.picture(folder / f"photos/trip/{number}.png", colour, (20, 16))
    grid = make_settings(
        RegionsConfig, images=str(folder / "photos"), backbone=str(vit), grid=2, cpu=True
    )
    regions(grid, folder / "store")
    asked = [
        (q, f"trip/{n}.png", ("dog", "cat", "sea")[n % 3]) for n in range(PHOTOS) for q in ASKED
    ]
    put(folder / "train.csv", table(("question", "photo", "answer"), *asked))
    config = make_settings(
        FinetuneConfig,
        model=str(folder / "bert"),
        architecture="uniter",
        data=str(folder / "train.csv"),
        regions=str(folder / "store"),
        text="question",
        image="photo",
        label="answer",
        max_length=16,
        seeds=2,
    )
    finetune(config, BRIEF, folder / "run")
    new = [(n, "what is it", f"./trip/{n % 3}.png", "é,\n" * (n == 1)) for n in (4, 0, 1, 1, 2)]
    put(folder / "new.csv", table(("number", "question", "photo", "note"), *new))
    return folder


def test_a_run_is_asked_as_it_was_evaluated(own: Path, tmp_path: Path, capsys: Any) -> None:
    """The same numbers to the last bit, from a run's folder, of either seed, and a row for every row."""
    store = str(own / "store")
    for seed in (0, 1):
        settings = {"model": str(own / "run"), "model_seed": seed, "data": str(own / "train.csv")}
        done = json.loads((own / f"run/seed-{seed}/result.json").read_text())
        scored = scores_of(**settings, regions=store, split="dev")
        assert scored["scores"]["dev"] == done["scores"]["dev"]
        model = load(own / "run", seed, device="cpu")
        again = model.evaluate(own / "train.csv", "dev", regions=store)
        assert {**again, "notes": scored["notes"]} == scored
        out = tmp_path / f"{seed}.jsonl"
        predict(config_of(**settings, regions=store, top_k=3), out)
        answers = homes.answers(out)
        assert len(answers) == PHOTOS * len(ASKED)
        form = read_description(own / f"run/seed-{seed}/model").form
        for line in homes.answers(own / f"run/seed-{seed}/predictions_dev.jsonl"):
            row = answers[int(line["official"])]
            assert row["predicted_answer"] == form.labels[line["prediction"]]
            shares = np.exp(line["outputs"]) / np.exp(line["outputs"]).sum()
            assert row["predicted_probability"] == pytest.approx(shares.max(), abs=1e-4)
            assert row["answer"] in form.labels  # its own column, as it was
    capsys.readouterr()
    flags = ["--model", str(own / "run"), "--data", str(own / "new.csv"), "--regions", store]
    assert main(["predict", *flags, "--cpu", "--out", str(tmp_path / "new.csv")]) == 0
    told = capsys.readouterr()
    assert json.loads(told.out)["answered"] == 5
    assert "the best on dev (" in told.err and ") of 0, 1" in told.err
    before, after = rows(own / "new.csv"), rows(tmp_path / "new.csv")
    assert [{name: row[name] for name in before[0]} for row in after] == before
    assert list(after[0])[4:] == ["answer", "probability"]
    assert after[2]["answer"] == after[3]["answer"]


def test_from_a_folder_that_was_moved(own: Path, tmp_path: Path, monkeypatch: Any) -> None:
    """Photos and the backbone are elsewhere, and there is neither run nor store."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(own / "run/seed-0/model", "given")
    shutil.copy(own / "new.csv", ".")
    shutil.copytree(own / "photos/trip", "photos/trip")
    shutil.copytree(own / "vit", "vit")
    about = json.loads(Path("given", FILE).read_text())
    about["regions"]["made_with"]["backbone"] = str(tmp_path / "gone")
    put(Path("given", FILE), json.dumps(about))
    flags = "--model given --data new.csv --images photos --backbone vit --cpu --top-k 2"
    assert main(["predict", *flags.split(), "--out", "answers.csv"]) == 0
    answers = rows(Path("answers.csv"))
    model = load("given", backbone="vit", device="cpu")
    one = model.predict(text="what is it", image="photos/trip/1.png")
    assert one.answer == answers[2]["answer"]
    assert one.probability == pytest.approx(float(answers[2]["probability"]), abs=1e-4)
    assert model.encode(texts=["a dog", "it"]).shape == (2, 32)
    assert model.encode("it", "photos/trip/1.png").shape == (32,)
    run = str(own / "run")
    stored = config_of(
        model=run, model_seed=0, data=str(own / "new.csv"), regions=str(own / "store")
    )
    predict(stored, tmp_path / "stored.csv")
    for live, kept in zip(answers, rows(tmp_path / "stored.csv"), strict=True):
        assert live["answer"] == kept["answer"]
        assert float(live["probability"]) == pytest.approx(float(kept["probability"]), abs=1e-3)
    with pytest.raises(
        InputError, match=r"^new images need the models of .*backbone.*gone: no model"
    ):
        load("given", device="cpu").predict("what", image="photos/trip/0.png")


def test_python_answers_one_and_many(own: Path) -> None:
    model = load(own / "run/seed-1", device="cpu")
    photos = [str(own / f"photos/trip/{n}.png") for n in (3, 0)]
    first, second = model.predict_many(["what is it", "is it wet"], images=photos, top_k=9)
    assert first.best[0].answer == first.answer and len(first.best) == 3
    assert sum(one.probability for one in first.best) == pytest.approx(1, abs=1e-5)
    alone = model.predict("is it wet", image=Path(photos[1]))
    assert isinstance(alone, Prediction)
    assert alone.answer == second.answer
    assert model.predict("is it wet", image=photos[1].removesuffix(".png")) == alone
    assert alone.probability == pytest.approx(second.probability, abs=1e-4)
    texts = ["what is it", "is it wet ?"]
    opened = [Image.open(photo) for photo in photos]
    of_pictures = model.predict_many(["what is it", "is it wet"], images=opened)
    assert [one.answer for one in of_pictures] == [first.answer, second.answer]
    assert model.predict("is it wet", image=opened[1]).answer == second.answer
    features = model.encode(texts, photos, pool="mean")
    np.testing.assert_allclose(model.encode(texts, opened, pool="mean"), features, atol=1e-6)
    assert model.encode(["it"], images=photos[:1]).shape == (1, 32)
    assert features.shape == (2, 32) and features.dtype == np.float32
    assert not np.allclose(features, model.encode(texts))
    samples = model.make_samples([Example("0", "what is it")], ImageSources())
    with torch.no_grad():
        encoded = model.student(collate(samples.get([0], ())))
    states = encoded.text if encoded.joint_text is None else encoded.joint_text
    inside = states[0, 1:-1].mean(0).numpy()  # without [CLS] and [SEP]
    np.testing.assert_allclose(model.encode("what is it", pool="mean"), inside, atol=1e-6)


def test_python_tells_mistakes_in_one_line(own: Path) -> None:
    model = load(own / "run/seed-1", device="cpu")
    photo = own / "photos/trip/0.png"
    one: Any = {"texts": ["is it"]}
    for asked, message in (
        ({"texts": ["is it", "is it"], "images": [photo]}, "expected lists of one length"),
        ({"texts": "it"}, "not one text; predict takes one question"),
        (one | {"pairs": "a"}, "not one text; predict takes one question"),
        (
            one | {"images": [Image.open(photo)], "regions": own / "store"},
            "image 0 of question 0: not in ",
        ),
        (one | {"images": ["nope.jpg"]}, "question 0: nope.jpg: no such file"),
        ({"texts": [" "], "images": [photo]}, "question 0: a text is empty, or"),
        (one, "pass either regions=STORE, or images=FOLDER to detect them"),
        (one | {"images": [[None]]}, "images as paths or PIL images"),
    ):
        with pytest.raises(InputError, match=message):
            model.predict_many(**asked)
    with pytest.raises(InputError, match="pass either regions=STORE, or images=FOLDER"):
        model.evaluate(own / "train.csv")


def test_models_that_look_at_the_photos_themselves(own: Path, tmp_path: Path) -> None:
    """An adapter over CLIP, and VL-BERT end to end with stored boxes or boxes that are found now."""
    form = Classification(("cat", "dog", "sea"))
    columns = TableTaskSettings(text="question", label="answer", image="photo")
    square = {"height": 16, "width": 16}
    clip = homes.teacher(tmp_path / "clip")
    CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=square).save_pretrained(clip)
    torch.manual_seed(2)
    adapter = ClipFeatureAdapter(load_adapter_backbone(str(clip)), ClipAdapterSettings("mlp", 3))
    adapter.export(tmp_path / "mlp")
    about = ModelDescription("table/own", form, head=ADAPTER, own=columns, max_length=16, images=1)
    models = {"adapter": saved(tmp_path / "adapter", tmp_path / "mlp", adapter, about)}
    looking = make_end_to_end_model(
        toys.bert(len(homes.words())), homes.words(), resnet(tmp_path / "cnn"), 32
    )
    looking.export(tmp_path / "vlbert")
    facts = {"made_with": {"grid": 2, "backbone": str(own / "vit")}}
    about = replace(about, head=PLAIN, reads_regions=True, regions=facts)
    models["pixels"] = saved(tmp_path / "pixels", tmp_path / "vlbert", looking, about)
    photos = {"images": str(own / "photos"), "data": str(own / "new.csv")}
    found = {}
    for name, more in (
        ("adapter", {}),
        ("pixels", {"regions": str(own / "store")}),
        ("pixels", {}),
    ):
        out = tmp_path / f"{len(found)}.csv"
        told = predict(config_of(model=str(models[name]), **photos, **more), out)
        assert told["answered"] == 5
        found[len(found)] = [float(row["probability"]) for row in rows(out)]
        model = load(models[name], device="cpu")
        one = model.predict("what is it", image=str(own / "photos/trip/1.png"))
        assert one.probability == pytest.approx(found[len(found) - 1][2], abs=1e-4)
        with Image.open(own / "photos/trip/1.png") as picture:
            again = model.predict_many(["what is it"], images=[picture], top_k=1)
        assert again[0].probability == pytest.approx(one.probability, abs=1e-4)
        assert model.encode(["a", "b"], [own / "photos/trip/1.png"] * 2).shape[0] == 2
    assert found[1] == pytest.approx(found[2], abs=1e-4)
    assert len(set(found[0])) > 2
    with pytest.raises(InputError, match="this model reads pixels; pass images=FOLDER"):
        load(models["adapter"]).image_inputs(str(own / "store"))
    with pytest.raises(InputError, match="this model reads pixels; pass images=FOLDER"):
        load(models["pixels"]).image_inputs(str(own / "store"))


# -- what goes wrong ---------------------------------------------------------------------------------------------------
def test_rows_that_cannot_be_asked_keep_their_place(own: Path, tmp_path: Path) -> None:
    shutil.copytree(own / "photos/trip", tmp_path / "photos/trip")
    put(tmp_path / "photos/trip/1.png", b"no picture")
    asked = [("what", f"trip/{n}.png") for n in (0, 1, 99, 2)] + [("", "trip/0.png")]
    file = put(tmp_path / "asked.csv", table(("question", "photo"), *asked))
    settings = {"model": str(own / "run"), "data": str(file)}
    out = tmp_path / "answers.csv"
    for where, first in (
        (
            {"images": str(tmp_path / "photos")},
            f"{file}, line 6: a text is empty, or there are other than 0 choices and 1 images; correct it, or",
        ),
        ({"regions": str(own / "store")}, f"{file}, line 6: a text is empty, or"),
    ):
        with pytest.raises(InputError) as caught:
            predict(config_of(**settings, **where), out)
        assert str(caught.value).startswith(first)
    put(file, table(("question", "photo"), *asked[:4]))
    with pytest.raises(InputError, match=r"line 3: trip/1: does not decode as an image .*2 such"):
        predict(config_of(**settings, images=str(tmp_path / "photos")), out)
    assert not out.exists()
    put(file, table(("question", "photo"), *asked))
    told = predict(config_of(**settings, images=str(tmp_path / "photos"), skip_bad=True), out)
    assert (told["rows"], told["answered"], told["skipped"]) == (5, 2, 3)
    answers = rows(out)
    assert [bool(row["answer"]) for row in answers] == [True, False, False, True, False]
    assert [row["photo"] for row in answers] == [photo for _, photo in asked]
    kept = predict(
        config_of(**settings, regions=str(own / "store"), skip_bad=True), tmp_path / "kept.csv"
    )
    assert kept["skipped_first"] == [
        f"{file}, line 4: trip/99: not in {own / 'store'}",
        f"{file}, line 6: a text is empty, or there are other than 0 choices and 1 images",
    ]


def test_no_column_and_no_row_of_the_data_is_lost(own: Path, tmp_path: Path) -> None:
    file = put(
        tmp_path / "asked.csv",
        'question,photo,answer,predicted_answer\n"what\nis ""it""",trip/0.png,a,b\n"""what\tis""",trip/1.png,c,d\n',
    )
    settings = {"model": str(own / "run"), "data": str(file), "regions": str(own / "store")}
    predict(config_of(**settings), tmp_path / "answers.csv")
    first, second = rows(tmp_path / "answers.csv")
    assert [first["answer"], second["predicted_answer"]] == ["a", "d"]
    assert first["predicted_predicted_answer"] in ("cat", "dog", "sea")
    predict(config_of(**settings), tmp_path / "answers.tsv")
    lines = [list(line.values()) for _, line in read_rows(tmp_path / "answers.tsv")]
    assert [line[:4] for line in lines] == [
        ['what is "it"', "trip/0.png", "a", "b"],
        ['"what is"', "trip/1.png", "c", "d"],
    ]
    half = put(tmp_path / "half.jsonl", '{"question": "a \\ud800", "photo": "trip/0.png"}\n')
    with pytest.raises(InputError, match=r"line 1: not valid JSON \(UnicodeEncodeError"):
        predict(config_of(**{**settings, "data": str(half)}), tmp_path / "no.jsonl")


@pytest.fixture(scope="module")
def refused(own: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., str]:
    """The one line that a prediction is refused with; values may name `own`."""
    place = tmp_path_factory.mktemp("refused")
    torch.manual_seed(5)
    other = homes.home(place / "other", toys.vit(), None)
    CLIPImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(other)
    base = make_settings(
        RegionsConfig, images=str(own / "photos"), backbone=str(own / "vit"), cpu=True
    )
    regions(replace_settings(base, grid=3), place / "finer")
    regions(replace_settings(base, grid=2, backbone=str(other)), place / "foreign")
    put(place / "few.csv", "question\nwhat\n")
    put(place / "named.csv", "question,photo,answer\nwhat,trip/0.png,bird\n")
    put(place / "above.csv", "question,photo\nwhat,photos/trip/0.png\n")

    def call(command: Callable[..., Any] = predict, **changes: Any) -> str:
        settings = {"model": "run", "data": "new.csv", "regions": "store", **changes}
        for name, value in settings.items():
            for root in (place, own):
                if isinstance(value, str) and (root / value.partition("/")[0]).exists() and value:
                    settings[name] = str(root / value)
        out = place / settings.pop("out", "answers.csv")
        kind = PredictConfig if command is predict else EvaluateConfig
        rest = (out,) if command is predict else ()
        with pytest.raises(InputError) as caught:
            command(make_settings(kind, cpu=True, **settings), *rest)
        assert "\n" not in str(caught.value)
        assert not (place / "answers.csv").exists()
        return str(caught.value)

    return call


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"regions": "finer"},
            "boxes are from a grid of 3 x 3, but the model was trained with boxes from a grid of 2 x 2",
        ),
        (
            {"regions": "foreign"},
            "made by .*, but the model was trained with .*pass allow_region_mismatch",
        ),
        (
            {"regions": ""},
            "reads image regions; pass either regions=STORE, or images=FOLDER to detect them",
        ),
        (
            {"regions": "", "images": "photos", "backbone": "other"},
            "new images: the weights of the backbone differ from those",
        ),
        ({"data": "few.csv"}, "few.csv: no column 'photo'; there are: question"),
        ({"data": "above.csv"}, "above.csv, line 2: photos/trip/0: not in "),
        (
            {"data": "above.csv", "regions": "", "images": "photos", "backbone": "vit"},
            "photos/trip/0: no such image in",
        ),
        ({"split": "dev"}, "is a file and has no splits"),
        ({"model": "bert"}, f"{FILE}: no such file"),
        ({"model_seed": 7}, "no saved model of seed 7; there are: 0, 1"),
        (
            {"command": evaluate, "data": "named.csv"},
            "line 2: label 'bird' is not one of cat, dog, sea",
        ),
        ({"command": evaluate}, "new.csv, line 2: field 'answer' is None"),
        (
            {"command": evaluate, "data": "train.csv", "split": "test"},
            "no split 'test' of your own file; there are: train, dev",
        ),
    ],
)
def test_mistakes_are_one_line(changes, message, refused):
    assert re.search(message, refused(**changes))


def test_a_row_is_answered_from_the_very_photo_that_it_names(own: Path, tmp_path: Path) -> None:
    """Of `0.jpg` and `0.png` neither can be told by an id, and no `1.jpg` stands for `1.png`."""
    photos = shutil.copytree(own / "photos", tmp_path / "photos")
    Image.open(photos / "trip/0.png").save(photos / "trip/0.jpg")
    Image.open(photos / "trip/1.png").save(photos / "trip/1.JPG")
    (photos / "trip/1.png").unlink()
    names = ("trip/0.png", "trip/0", "trip/1.png", "trip/1.jpg", "trip/1")
    file = put(tmp_path / "new.csv", table(("question", "photo"), *(("what", n) for n in names)))
    settings = {"model": str(own / "run"), "data": str(file), "images": str(photos)}
    settings |= {"backbone": str(own / "vit")}
    with pytest.raises(
        InputError, match=r"line 4: trip/1.png: no such file; .*photos contains 1.JPG"
    ):
        predict(config_of(**settings), tmp_path / "no.csv")
    told = predict(config_of(**settings, skip_bad=True), tmp_path / "some.csv")
    assert [bool(row["answer"]) for row in rows(tmp_path / "some.csv")] == [0, 0, 0, 1, 1]
    assert "line 2: trip/0: 0.jpg and 0.png differ only in" in told["skipped_first"][0]


def test_a_text_model_is_given_no_images(world: Path, students: Any, tmp_path: Path) -> None:
    about = ModelDescription("glue/rte", Classification(("a", "b")), own=None)
    model = saved(tmp_path / "model", world / "bert", students[False], about)
    file = put(tmp_path / "new.tsv", "first\tsecond\na dog\ta cat\n")
    for extra, message in (
        ({"images": str(world)}, "this model reads only text; leave images and regions out"),
        ({"regions": str(world / "store")}, "reads only text"),
        ({"text": ""}, "text=: expected one column, or two"),
    ):
        settings: dict[str, Any] = {"text": "first", **extra}
        with pytest.raises(InputError, match=message):
            predict(config_of(model=str(model), data=str(file), **settings), tmp_path / "no.csv")
    told = predict(
        config_of(model=str(model), data=str(file), text="first,second"), tmp_path / "a.tsv"
    )
    assert told["answered"] == 1
    with pytest.raises(InputError, match="reads only text; leave images"):
        load(model).predict("a dog", image="x.png")
    one = load(model).predict("a dog", pair="a cat")
    assert one.answer == (tmp_path / "a.tsv").read_text().splitlines()[1].split("\t")[2]


# -- a damaged folder --------------------------------------------------------------------------------------------------
DAMAGED: list[tuple[dict[str, Any], str]] = [
    ({"form": {"is": "riddle"}}, "damaged"),
    ({"form": {"is": "classify", "labels": ["a"]}}, "lacks the head"),
    ({"head": "vqa"}, "lacks the head"),
    ({"modules": {"a:b": 1}}, "modules.a:b Input should be a valid string"),
    ({"more": 1}, "another version of groundling; fine-tune again (ValidationError"),
    ({"regions": {"made_with": {"grid": "two"}}}, "expected settings of `groundling regions`"),
    ({"regions": {"boxes_from": "a"}}, "regions from a cannot be detected on other photos"),
]


@pytest.mark.parametrize(("change", "message"), DAMAGED)
def test_a_damaged_description(change: Any, message: str, own: Path, tmp_path: Path) -> None:
    model = shutil.copytree(own / "run/seed-0/model", tmp_path / "model")
    content = json.loads((model / FILE).read_text())
    put(model / FILE, json.dumps({**content, **change}))
    with pytest.raises(InputError) as caught:
        load(model, device="cpu").predict("what", image=str(own / "photos/trip/0.png"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "form",
    [
        Classification(("a", "b"), "bce"),
        MultipleChoice(("0", "1"), "each"),
        Regression(0, 5),
        Regression(),
        OpenAnswer(("x", "<unk>"), excluded_answers=("<unk>",)),
        RegionSelection("phrase", "kl"),
    ],
)
def test_a_description_is_read_as_it_was_written(form: Any, tmp_path: Path) -> None:
    about = ModelDescription(
        "mine.dogs:DOGS", form, head="refcoco+", modules={"mine.dogs:DOGS": "0"}
    )
    about.write(tmp_path)
    assert read_description(tmp_path) == about


# -- which seed answers ------------------------------------------------------------------------------------------------
def run(folder: Path, results: dict[int, dict[str, object]]) -> Path:
    """A run's folder, as far as it matters which seed is the best."""
    for seed, result in results.items():
        put(folder / f"seed-{seed}/model/config.json", "{}")
        put(folder / f"seed-{seed}/result.json", json.dumps(result))
    return folder


def result(score: object, metric: str = "accuracy", **more: object) -> dict[str, object]:
    done = {"metrics": [metric], "splits": ["dev", "test"]}
    return done | {"scores": {"dev": {metric: score}, "test": {metric: 1.0}}} | more


def constant(score: float) -> dict[str, object]:
    return result(score, scores={"dev": {"accuracy": score, "constant": 1.0}})


@pytest.mark.parametrize(
    ("results", "best", "words"),
    [
        ({0: result(0.5), 1: result(0.7), 2: result(0.7)}, 1, r"dev \(accuracy 0.7\) of 0, 1, 2"),
        (
            {n: result(score, "mse", higher_is_better=False) for n, score in ((3, 0.5), (4, 0.7))},
            3,
            "the best on dev",
        ),
        ({0: result(0.5, "mine", higher_is_better=False), 1: result(0.7, "mine")}, 1, "the best"),
        ({0: result(None), 1: result(0.1), 2: {}}, 1, "the best on dev"),
        (
            {0: result(0.9), 1: result(0.1)} | {0: {}, 1: {}},
            0,
            "predictions of seed 0, the first of 0, 1",
        ),
        ({0: result(0.9, trained_on=["dev"]), 1: result(0.95)}, 0, "the best on test"),
        ({2: result(0.1), 10: result(0.2)}, 10, "the best on dev"),
        # Of equals a seed with one answer to everything is the last.
        ({0: constant(0.5), 1: result(0.5), 2: constant(0.5)}, 1, "the best on dev"),
    ],
)
def test_the_best_on_held_out_data_answers_and_it_is_said(results, best, words, tmp_path):
    folder, note = choose_seed_model(run(tmp_path / "run", results))
    assert folder == tmp_path / f"run/seed-{best}/model"
    assert f"predictions of seed {best}," in note
    assert re.search(words, note)


def test_a_seed_is_named(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", {0: result(0.5), 1: result(0.9), 2: result(0.7)})
    assert choose_seed_model(folder, 2)[0].parent.name == "seed-2"
    with pytest.raises(InputError, match="no saved model of seed 1; there are: none"):
        choose_seed_model(folder / "seed-0", 1)


def test_seeds_of_an_earlier_command_do_not_answer(tmp_path: Path) -> None:
    folder = run(tmp_path / "run", {0: result(0.5), 1: result(0.6), 2: result(0.9)})
    put(folder / "result.json", json.dumps({"seeds": [0, 1]}))
    assert choose_seed_model(folder)[0] == folder / "seed-1/model"
    assert choose_seed_model(folder, 2)[0] == folder / "seed-2/model"


@pytest.fixture(scope="module")
def mine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds on a table of one's own, of which the last one is the best on dev."""
    folder = tmp_path_factory.mktemp("mine")
    homes.student(folder / "bert")
    rows = [(f"a dog number {n}", "yes" if n % 2 else "no") for n in range(60)]
    put(folder / "my.csv", table(("text", "label"), *rows))
    config = make_settings(
        FinetuneConfig,
        model=str(folder / "bert"),
        data=str(folder / "my.csv"),
        text="text",
        label="label",
        seeds=3,
    )
    finetune(config, replace(STEPS, steps=2, batch=4), folder / "run")
    for seed, score in ((0, 0.4), (1, 0.3), (2, 0.8)):
        path = folder / f"run/seed-{seed}/result.json"
        done = json.loads(path.read_text())
        done["scores"]["dev"]["accuracy"] = score
        path.write_text(json.dumps(done))
    return folder


def test_commands_and_python_take_the_same_seeds(mine, tmp_path, capsys):
    data = str(mine / "my.csv")

    def asked(name: str, **chosen: Any) -> dict[str, Any]:
        saved = SavedModelSettings(str(mine / "run"), cpu=True, **chosen)
        return predict(PredictConfig(saved, data=data), tmp_path / f"{name}.jsonl")

    assert asked("best")["model"] == str(mine / "run/seed-2/model")
    said = "predictions of seed 2, the best on dev (accuracy 0.8) of 0, 1, 2"
    assert said in capsys.readouterr().err
    asked("named", model_seed=1)
    best, named = (homes.answers(tmp_path / f"{name}.jsonl") for name in ("best", "named"))
    assert best != named
    assert (
        load(mine / "run", 1, device="cpu").predict("a dog number 1").answer == named[1]["answer"]
    )
    assert load(mine / "run", device="cpu").folder == mine / "run/seed-2/model"


def test_held_out_rows_are_those_that_training_held_out(tmp_path: Path) -> None:
    """With a file of their own, no row of the other file was held out; other columns are read where they are named."""
    rows = [(f"a dog number {n}", "cat", "yes" if n % 2 else "no") for n in range(40)]
    data = put(tmp_path / "my.csv", table(("text", "other", "label"), *rows))
    dev = put(tmp_path / "own_dev.csv", table(("text", "other", "label"), *rows[:8]))
    for name, held in (("own", str(dev)), ("drawn", "")):
        config = make_settings(
            FinetuneConfig,
            model=str(homes.student(tmp_path / "bert")),
            **dict(data=str(data), text="text", label="label", dev=held, save_model=True),
        )
        finetune(config, replace(STEPS, steps=1, batch=4), tmp_path / name)
    assert str(tmp_path) not in homes.told_by(tmp_path / "own/seed-0/model")

    def scored(name: str, **columns: str) -> dict[str, Any]:
        saved = SavedModelSettings(str(tmp_path / name), cpu=True)
        columns = PredictionColumns(**columns)
        return evaluate(EvaluateConfig(saved, data=str(data), split="dev", columns=columns))

    with pytest.raises(InputError, match=r"split=dev: own_dev.csv was held out"):
        scored("own")
    assert scored("drawn")["positive"] == "yes"
    assert json.loads((tmp_path / "drawn/result.json").read_text())["positive"] == "yes"
    with pytest.raises(InputError, match="nothing"):
        scored("drawn", text="nothing")
