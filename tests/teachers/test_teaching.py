"""Teachers beside any run: fine-tuning and pre-training with a distilled term, cached and live, killed and resumed."""

# C5: a teacher could reach `adapt` alone.

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import homes
from tiny.homes import STEPS, Counting, log_of, never, put, table, training_with
from tiny.regions import store
from tiny.tasks import SWAG_HEAD, swag_row
from transformers import AutoModel

from groundling.cli import main
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Sample, collate
from groundling.core.errors import InputError
from groundling.settings.fields import make_settings, replace_settings
from groundling.teachers import Teacher, compute_features
from groundling.teachers.feature_cache import TeacherDataset
from groundling.teachers.text import ClipTextTeacher
from groundling.training import fit as fitting

CONTRASTIVE = {"contrastive_sentence", "contrastive_word"}
PHOTOS = [f"{number:03d}" for number in range(16)]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a teacher, GLUE, SWAG, a region store with captions, and questions on its images."""
    folder = tmp_path_factory.mktemp("teaching")
    homes.student(folder / "student")
    homes.teacher(folder / "teacher")
    homes.rte(folder / "glue")
    for split, size in (("train", 16), ("val", 8)):
        rows = [swag_row(number, number % 4) for number in range(size)]
        put(folder / "swag" / f"{split}.csv", table([*SWAG_HEAD, "label"], *rows))
    store(folder / "store", PHOTOS)
    captions = [f"{name}.jpg#{n}\tcaption {n} of {name} cats" for name in PHOTOS for n in range(2)]
    put(folder / "some.token.txt", "\n".join(captions) + "\n")
    questions = [(f"is {name} a dog ?", f"{name}.jpg", "yn"[int(name) % 2]) for name in PHOTOS]
    put(folder / "questions.csv", table(("question", "photo", "answer"), *questions))
    homes.text(folder / "text.txt", 60)
    return folder


@pytest.fixture(params=["glue/rte", "swag"])
def tune(request: pytest.FixtureRequest, place: Path) -> FinetuneConfig:
    """Fine-tuning on a pair of sentences, and on a multiple choice, with a teacher."""
    return make_settings(
        FinetuneConfig,
        model=str(place / "student"),
        task=request.param,
        data=str(place / request.param.split("/")[0]),
        max_length=64,
        objectives=("contrastive",),
        teacher=str(place / "teacher"),
        save_model=True,
    )


def terms(out: Path) -> list[dict[str, float]]:
    """What was lost at each step, by term."""
    left_out = {"step", "loss", "lr", "grad_norm"}
    return [{k: v for k, v in line.items() if k not in left_out} for line in log_of(out)]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    heads = load_file(folder / "groundling_heads.safetensors")
    return load_file(folder / "model.safetensors") | heads


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_finetuning_with_a_teacher_trains_both_terms(tune: FinetuneConfig, tmp_path: Path) -> None:
    finetune(tune, STEPS, tmp_path / "with")
    seed = tmp_path / "with" / "seed-0"
    assert [set(line) for line in terms(seed)] == [{"task"} | CONTRASTIVE] * 3
    finetune(replace_settings(tune, objectives=(), teacher=""), STEPS, tmp_path / "without")
    alone = tmp_path / "without" / "seed-0"
    assert [set(line) for line in terms(alone)] == [{"task"}] * 3
    assert terms(seed)[0]["task"] == pytest.approx(terms(alone)[0]["task"], abs=1e-6)
    assert not same(weights(seed / "model"), weights(alone / "model"))
    first, *_, last = terms(seed)
    assert all(first[name] != last[name] for name in first)

    # the projection onto the teacher's features is a head: it is kept beside the model, which has none
    model = AutoModel.from_pretrained(seed / "model")
    student = AutoModel.from_pretrained(tune.model)
    assert {k: v.shape for k, v in model.state_dict().items()} == {
        k: v.shape for k, v in student.state_dict().items()
    }
    assert not any("project" in key for key in load_file(seed / "model" / "model.safetensors"))
    heads = load_file(seed / "model" / "groundling_heads.safetensors")
    assert {key.split(".")[0] for key in heads} == {"supervised", "contrastive"}
    assert not [path for path in seed.rglob("*") if "teacher" in path.name]


def test_a_cached_and_a_live_teacher_say_the_same(
    tune: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("groundling.training.loop.add_features", never)
        finetune(tune, STEPS, tmp_path / "cached")
    monkeypatch.setattr(TeacherDataset, "_fill", never)
    finetune(replace_settings(tune, cache_gb=0.0), STEPS, tmp_path / "live")
    cached, live = (terms(tmp_path / name / "seed-0") for name in ("cached", "live"))
    assert len(cached) == len(live) == 3
    for one, other in zip(cached, live, strict=True):
        assert one == pytest.approx(other, abs=1e-6, rel=1e-6)


@pytest.mark.parametrize("cache_gb", [2.0, 0.0])
def test_a_killed_fine_tuning_with_a_teacher_resumes_to_the_same_weights(
    cache_gb: float, tune: FinetuneConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace_settings(tune, cache_gb=cache_gb)
    finetune(config, STEPS, tmp_path / "whole")
    homes.kill(finetune, config, STEPS, tmp_path / "killed", at=3)
    rest = Counting()
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "train", training_with(rest))
        finetune(config, STEPS, tmp_path / "killed")
    assert rest.calls == 1
    whole, killed = (tmp_path / name / "seed-0" for name in ("whole", "killed"))
    assert same(weights(whole / "model"), weights(killed / "model"))
    assert log_of(whole) == log_of(killed)


def test_regions_do_not_count_as_the_teachers_words(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


@pytest.mark.parametrize("model", ["visualbert", "vlbert", "uniter"])
def test_pretraining_with_a_teacher_runs_and_resumes(
    model: str,
    seeing: PretrainConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        TeacherDataset, "_fill", never
    )  # captions are drawn anew: only a live teacher can know
    config = replace_settings(seeing, architecture=model)
    steps = replace(STEPS, batch=4)
    result = pretrain(config, steps, tmp_path / "whole")
    assert "contrastive" in result["objectives"]
    assert all(set(line) >= CONTRASTIVE for line in terms(tmp_path / "whole"))
    homes.kill(pretrain, config, steps, tmp_path / "killed", at=3)
    rest = Counting()
    with monkeypatch.context() as patch:
        patch.setattr(fitting, "train", training_with(rest))
        pretrain(config, steps, tmp_path / "killed")
    assert rest.calls == 1
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "killed")
    whole, killed = (tmp_path / name / "model" for name in ("whole", "killed"))
    assert homes.digests(whole) == homes.digests(killed)
    heads = load_file(whole / "groundling_heads.safetensors")
    assert any(key.startswith("contrastive.project") for key in heads)
    others = [path for path in whole.rglob("*.safetensors") if "heads" not in path.name]
    assert others and not any(
        "project.sentence" in key for path in others for key in load_file(path)
    )


def test_text_without_images_has_no_teacher(
    seeing: PretrainConfig, place: Path, tmp_path: Path
) -> None:
    config = replace_settings(
        seeing, architecture="vlbert", text=(str(place / "text.txt"),), max_length=24
    )
    pretrain(config, replace(STEPS, steps=8, batch=4), tmp_path)
    taught = [set(line) >= CONTRASTIVE for line in terms(tmp_path)]
    assert 0 < sum(taught) < 8
    assert all("mlm" in line for line in terms(tmp_path))


def test_the_teacher_reads_the_caption_that_was_drawn(
    seeing: PretrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[tuple[str, str | None]] = []
    inputs = ClipTextTeacher.inputs

    def watched(teacher: ClipTextTeacher, rows: list) -> list:
        read.extend((row.example.text, row.example.text_pair) for row in rows)
        return inputs(teacher, rows)

    monkeypatch.setattr(ClipTextTeacher, "inputs", watched)
    pretrain(seeing, replace(STEPS, steps=8, batch=4), tmp_path)
    assert {text for text, _ in read} > {f"caption 1 of {name} cats" for name in PHOTOS[:1]}
    assert len(set(read)) > len(PHOTOS)


# -- mistakes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--objectives", "contrastiv"], "no objective is called 'contrastiv'; there are: "),
        (["--objectives", "contrastive"], "contrastive needs teacher=FOLDER_OR_HUB_ID"),
        (["--objectives", "l1", "--teacher", "nowhere"], "nowhere: "),
        (["--objectives", "no_such_module:X"], "the module 'no_such_module' cannot be imported"),
    ],
)
@pytest.mark.parametrize("command", ["finetune", "pretrain"])
def test_mistakes_are_one_line(
    command: str,
    flags: list[str],
    message: str,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = {
        "finetune": ["--model", "student", "--task", "glue/rte", "--data", "glue"],
        "pretrain": ["--model", "student", "--regions", "store", "--captions", "some.token.txt"],
    }[command]
    words = [str(place / word) if (place / word).exists() else word for word in words]
    out = ["--steps", "1", "--batch", "4", "--cpu", "--out", str(tmp_path / "out")]
    assert main([command, *words, *flags, *out]) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("groundling: ")
    assert message in complaint
    assert complaint.count("\n") == 1


@pytest.mark.parametrize("returned", [{"x": [1.0]}, {"x": torch.tensor(1.0)}, None])
def test_a_teacher_that_returns_no_tensors_is_one_line(returned: object) -> None:
    class Mine(Teacher):
        name = "mine"

        def features(self, batch: object) -> object:
            return returned

    with pytest.raises(InputError, match="the teacher mine: expected tensors by name"):
        compute_features(Mine(), collate([Sample("a")]))
