"""Teachers beside any run: distilled terms, cached and live, killed and resumed; encoders of images or texts alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, log_of, never, put, table, whole_and_resumed
from tiny.objectives import captioned_run
from tiny.regions import store

import groundling
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Sample, collate
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.clip import make_clip_text_tower
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.text_encoder import load_text_encoder
from groundling.settings.fields import make_settings, replace_settings, setting_values
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


# -- Teachers that read images alone or texts alone: features are those of transformers' own models

SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
SQUARE = {"image_size": 28, "patch_size": 7}
ENCODERS: dict[str, tuple[Any, Any]] = {
    "dinov2": (hf.Dinov2Model, hf.Dinov2Config(**SMALL, **SQUARE)),
    "vit": (hf.ViTModel, hf.ViTConfig(**SMALL, **SQUARE, intermediate_size=64)),
    "vit without pooler": (
        hf.ViTForImageClassification,
        hf.ViTConfig(**SMALL, **SQUARE, intermediate_size=64),
    ),
    "resnet": (
        hf.ResNetModel,
        hf.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1]),
    ),
    "convnext": (
        hf.ConvNextModel,
        hf.ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    ),
}


def image_encoder(folder: Path, name: str) -> Path:
    kind, config = ENCODERS[name]
    torch.manual_seed(3)
    kind(config).save_pretrained(folder)
    square = {"height": 28, "width": 28}
    hf.BitImageProcessorPil(size={"shortest_edge": 28}, crop_size=square).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", ENCODERS)
@torch.no_grad()
def test_image_features_are_transformers_own(name: str, tmp_path: Path) -> None:
    folder = image_encoder(tmp_path, name)
    tower = load_frozen_clip(folder, text=False).image
    noise = np.random.default_rng(0).integers(0, 255, (60, 40, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    pixels = hf.AutoImageProcessor.from_pretrained(folder, backend="pil")(
        image, return_tensors="pt"
    )
    read = hf.AutoModel.from_pretrained(folder).eval()(**pixels)
    expected = read.pooler_output.flatten(1)
    if name == "vit without pooler":  # transformers draws one
        expected = read.last_hidden_state[:, 0]
    found = tower(torch.from_numpy(tower.preprocess(image)[None]))
    torch.testing.assert_close(found, expected, rtol=0, atol=5e-6)
    assert tower.pooled_width == tower.embed_dim == expected.shape[1]


@torch.no_grad()
def test_text_features_are_those_of_the_text_encoder(tmp_path: Path) -> None:
    folder = homes.sentence_encoder(tmp_path)
    clip = load_frozen_clip(folder, image=False)
    texts = toys.sentences()[:3]
    batch = collate([Sample(str(n), clip=row) for n, (row, _) in enumerate(clip.tokenize(texts))])
    states, _ = clip.encode_texts(batch)
    _, ends = clip.text(batch.clip)
    text = load_text_encoder(folder)
    tokens = text.tokenizer(texts, return_tensors="pt", padding=True)
    own = text.encoder(**tokens).last_hidden_state
    mask = tokens["attention_mask"].bool()
    torch.testing.assert_close(states[mask], own[mask], rtol=0, atol=2e-6)
    torch.testing.assert_close(ends, text.sentence.vectors(own, mask), rtol=0, atol=2e-6)
    torch.testing.assert_close(ends.norm(dim=-1), torch.ones(3))  # its last module normalises


def test_an_image_encoder_teaches_and_names_what_reads_images_alone(tmp_path: Path) -> None:
    teacher = str(image_encoder(tmp_path / "encoder", "dinov2"))
    config = captioned_run(tmp_path, "caption_to_image", teacher=teacher)
    result = groundling.adapt(
        **setting_values(config), steps=2, batch=4, cpu=True, out=tmp_path / "out"
    )
    assert np.isfinite(result["train_metrics"]["caption_to_image"])
    with pytest.raises(
        InputError, match=r"contrastive reads; of images alone are caption_to_image"
    ):
        groundling.adapt(**setting_values(config) | {"arm": "contrastive"}, out=tmp_path / "other")
    reader = {"teacher": str(homes.sentence_encoder(tmp_path / "sentences"))}
    with pytest.raises(
        InputError, match=r"no image tower.* caption_to_image reads; of texts alone are contrastive"
    ):
        groundling.adapt(**setting_values(config) | reader, out=tmp_path / "third")
