"""Teachers beside any run: fine-tuning and pre-training with a distilled term, cached and live, killed and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, log_of, never, put, table, whole_and_resumed
from tiny.regions import store

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.clip import make_clip_text_tower
from groundling.settings.fields import make_settings, replace_settings
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset, TeacherSet
from groundling.teachers.text import ClipTextTeacher

CONTRASTIVE = {"contrastive_sentence", "contrastive_word"}
PHOTOS = [f"{number:03d}" for number in range(16)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a teacher, GLUE, a region store with captions, and questions on its images."""
    folder = tmp_path_factory.mktemp("teaching")
    homes.student(folder / "student")
    homes.teacher(folder / "teacher")
    homes.rte(folder / "glue")
    store(folder / "store", PHOTOS)
    captions = [f"{name}.jpg#{n}\tcaption {n} of {name} cats" for name in PHOTOS for n in range(2)]
    put(folder / "some.token.txt", "\n".join(captions) + "\n")
    questions = [(f"is {name} a dog ?", f"{name}.jpg", "yn"[int(name) % 2]) for name in PHOTOS]
    put(folder / "questions.csv", table(("question", "photo", "answer"), *questions))
    homes.text(folder / "text.txt", 60)
    return folder


@pytest.fixture
def tune(place: Path) -> FinetuneConfig:
    return make_settings(
        FinetuneConfig,
        model=str(place / "student"),
        task="glue/rte",
        data=str(place / "glue"),
        max_length=64,
        objectives=("contrastive",),
        teacher=str(place / "teacher"),
        save_model=True,
    )


def terms(out: Path) -> list[dict[str, float]]:
    """What was lost at each step, by term."""
    left_out = {"step", "loss", "lr", "grad_norm"}
    return [{k: v for k, v in line.items() if k not in left_out} for line in log_of(out)]


def test_finetuning_with_a_teacher_trains_both_terms(tune: FinetuneConfig, tmp_path: Path) -> None:
    finetune(tune, STEPS, tmp_path / "with")
    seed = tmp_path / "with" / "seed-0"
    assert [set(line) for line in terms(seed)] == [{"task"} | CONTRASTIVE] * 3
    finetune(replace_settings(tune, objectives=(), teacher=""), STEPS, tmp_path / "without")
    alone = tmp_path / "without" / "seed-0"
    assert [set(line) for line in terms(alone)] == [{"task"}] * 3
    assert terms(seed)[0]["task"] == pytest.approx(terms(alone)[0]["task"], abs=1e-6)
    first, *_, last = terms(seed)
    assert all(first[name] != last[name] for name in first)

    # the projection onto the teacher's features is a head: it is kept beside the model, which has none
    models = [load_file(out / "model/model.safetensors") for out in (seed, alone)]
    assert models[0].keys() == models[1].keys()
    assert not all(torch.equal(value, models[1][name]) for name, value in models[0].items())
    heads = load_file(seed / "model" / "groundling_heads.safetensors")
    assert {key.split(".")[0] for key in heads} == {"supervised", "contrastive"}
    assert not [path for path in seed.rglob("*") if "teacher" in path.name]


def test_regions_do_not_count_as_the_teachers_words(place, tmp_path, monkeypatch):
    # a thousand characters for each region once made a teacher live that fits the cache many times
    config = make_settings(
        FinetuneConfig,
        model=str(place / "student"),
        data=str(place / "questions.csv"),
        text="question",
        image="photo",
        label="answer",
        regions=str(place / "store"),
        architecture="visualbert",
        objectives=("l1",),
        teacher=str(place / "teacher"),
        cache_gb=1e-4,
    )
    monkeypatch.setattr("groundling.training.loop.add_features", never)
    finetune(config, replace(STEPS, batch=4), tmp_path)
    assert set(terms(tmp_path / "seed-0")[0]) == {"task", "l1_sentence", "l1_word"}


# -- pre-training ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seeing(place: Path) -> PretrainConfig:
    return make_settings(
        PretrainConfig,
        model=str(place / "student"),
        regions=str(place / "store"),
        captions=str(place / "some.token.txt"),
        max_length=48,
        objectives=("contrastive",),
        teacher=str(place / "teacher"),
    )


def test_pretraining_with_a_teacher_runs_and_resumes(seeing, tmp_path, monkeypatch) -> None:
    # captions are drawn anew: only a live teacher can know
    monkeypatch.setattr(TeacherDataset, "_fill", never)
    config = replace_settings(seeing, architecture="uniter")
    whole, killed = whole_and_resumed(pretrain, config, replace(STEPS, batch=4), tmp_path, "model")
    assert whole == killed
    assert all(set(line) >= CONTRASTIVE for line in terms(tmp_path / "whole"))
    files = list((tmp_path / "whole/model").rglob("*.safetensors"))
    projections = [
        path.name for path in files if any("project.sentence" in key for key in load_file(path))
    ]
    assert projections == ["groundling_heads.safetensors"] and len(files) > 1


def test_text_without_images_has_no_teacher(seeing, place, tmp_path) -> None:
    text = (str(place / "text.txt"),)
    config = replace_settings(seeing, architecture="vlbert", text=text, max_length=24)
    pretrain(config, replace(STEPS, steps=8, batch=4), tmp_path)
    taught = [set(line) >= CONTRASTIVE for line in terms(tmp_path)]
    assert 0 < sum(taught) < 8
    assert all("mlm" in line for line in terms(tmp_path))


def test_the_teacher_reads_the_caption_that_was_drawn(seeing, tmp_path, monkeypatch) -> None:
    read = set()
    inputs = ClipTextTeacher.inputs

    def watched(teacher: ClipTextTeacher, rows: list) -> list:
        read.update((row.example.text, row.example.text_pair) for row in rows)
        return inputs(teacher, rows)

    monkeypatch.setattr(ClipTextTeacher, "inputs", watched)
    pretrain(seeing, replace(STEPS, steps=8, batch=4), tmp_path)
    assert {text for text, _ in read} > {f"caption 1 of {PHOTOS[0]} cats"}
    assert len(read) > len(PHOTOS)


# -- the cache's limit -----------------------------------------------------------------------------------------------


def test_each_data_set_is_judged_beside_those_that_are_cached() -> None:
    tokens = toys.clip_words()
    teacher = ClipTextTeacher(make_clip_text_tower(toys.clip(tokens)), tokens)
    texts = toys.examples(24)
    parts = [texts[:2], texts[2:22], texts[22:], texts[:2]]
    data = [TextDataset(part, TextRowEncoder(toys.bert_words(), 40)) for part in parts]
    limit = 1.5 * (teacher.size_gb(data[0]) + teacher.size_gb(data[2]))
    teacher_set = TeacherSet([teacher], FeatureCache(limit_gb=limit))
    live = [bool(teacher_set.wrap(samples)[1]) for samples in data]
    assert live == [False, True, False, False]
