"""Vision-language models from captions and regions to a fine-tuned, scored model; every phase on tiny files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tiny import homes
from tiny.homes import STEPS, log_of
from tiny.regions import store
from tiny.tasks import task_texts, unlabelled_texts, vqa
from tiny.toys import images_of

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.errors import InputError
from groundling.core.output_types import RegionSelection
from groundling.core.registry import registered
from groundling.models.heads import HEADS, load_head
from groundling.models.task_heads import HeadContext
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks.vqa import VQA
from groundling.vision_language import Architecture
from groundling.vision_language.loading import load_encoder

TERMS = {
    "visualbert": {"mlm", "sentence_image"},
    "vlbert": {"mlm", "masked_regions"},
    "uniter": {"mlm", "masked_regions", "regress_regions", "sentence_image", "word_region"},
}


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vision")
    homes.student(folder / "bert")
    names = [f"{i:03d}" for i in range(16)]
    store(folder / "store", names)
    lines = [
        f"{name}.jpg#{n}\tcaption {n} of a dog and {name} cats" for name in names for n in range(3)
    ]
    homes.put(folder / "some.token.txt", "\n".join(lines) + "\n")
    homes.text(folder / "text.txt", 60)
    return folder


@pytest.fixture(scope="session")
def settings(place: Path) -> PretrainConfig:
    return make_settings(
        PretrainConfig,
        model=str(place / "bert"),
        regions=str(place / "store"),
        captions=str(place / "some.token.txt"),
        max_length=48,
    )


@pytest.fixture(scope="session")
def trained(settings, tmp_path_factory) -> dict[str, tuple[Path, dict]]:
    root = tmp_path_factory.mktemp("pretrained")

    def run(kind: str) -> dict:  # UNITER has one objective a step
        steps = replace(STEPS, steps=30 if kind == "uniter" else 3, batch=4)
        return pretrain(replace_settings(settings, architecture=kind), steps, root / kind)

    return {kind: (root / kind, run(kind)) for kind in TERMS}


@pytest.mark.parametrize("kind", TERMS)
def test_each_model_has_its_own_objectives(kind, trained):
    out, result = trained[kind]
    lines = log_of(out)
    others = {"step", "loss", "lr", "grad_norm", "seconds", "tokens_per_second", "padding"}
    terms = {key for line in lines for key in line} - others
    assert terms == TERMS[kind]
    if kind == "uniter":  # one objective per step
        alone = [terms & set(line) for line in lines]
        assert all(len(some - {"word_region"}) == 1 for some in alone)
    else:
        assert all(terms <= set(line) for line in lines)
    model = load_encoder(out / "model")
    assert model.join.kind == kind
    assert sum(p.numel() for p in model.parameters()) == result["parameters"]
    assert json.loads((out / "result.json").read_text())["architecture"] == kind
    card = (out / "model/README.md").read_text()
    assert f"# {kind}, pre-trained" in card and f"- parameters: {result['parameters']}" in card


@pytest.fixture
def run(settings: PretrainConfig, tmp_path: Path) -> Callable[..., dict]:
    """Pre-trains into a folder of this name, with other settings and so many steps; 0: an epoch."""

    def call(out: str, steps: int = 3, **changes: object) -> dict:
        training = replace(STEPS, steps=steps, batch=4)
        return pretrain(replace_settings(settings, **changes), training, tmp_path / out)

    return call


def test_text_without_images_is_mixed_in(run: Callable, place: Path, tmp_path: Path) -> None:
    text = (str(place / "text.txt"),)
    run("out", 12, architecture="vlbert", text=text, max_length=24)
    seen = ["masked_regions" in line for line in log_of(tmp_path / "out")]
    assert 0 < sum(seen) < 12


@pytest.mark.parametrize(
    ("change", "missing", "parts"),
    [
        ({"sentence_image": False}, {"sentence_image"}, 0),
        ({"early_fusion": False}, set(), 16),
        ({"random_init": True}, set(), 0),
    ],
)
def test_visualberts_ablations(change, missing, parts, run, tmp_path):
    run("out", **change)
    assert set(log_of(tmp_path / "out")[0]).isdisjoint(missing)
    names = load_file(tmp_path / "out" / "model" / "join.safetensors")
    assert sum(name.startswith("fusion.") for name in names) == parts


def test_an_epoch_is_one_of_the_images(run: Callable, place: Path) -> None:
    """B5: four kinds of steps over the same 16 images are one epoch of them; text beside them is none."""
    vlbert = {"architecture": "vlbert", "max_length": 24, "text": (str(place / "text.txt"),)}
    alone = vlbert | {"text": ()}
    cases = {"uniter": ({"architecture": "uniter"}, 4), "alone": (alone, 4), "text": (vlbert, 8)}
    for name, (own, steps) in cases.items():
        assert run(name, 0, epoch_unit="images", **own)["steps"] == steps


def test_a_store_without_classes(run: Callable, tmp_path: Path) -> None:
    """B10: VL-BERT would be left with masked words alone, and says so; UNITER has two other objectives and notes it."""
    bare = str(store(tmp_path / "bare", [f"{i:03d}" for i in range(16)], classes=0))
    vlbert = {"architecture": "vlbert", "regions": bare}
    with pytest.raises(InputError, match="the regions have no classes to predict"):
        run("refused", **vlbert)
    result = run("words", **vlbert, region_classes="none")
    assert (result["objectives"], homes.apart(result["notes"])) == (["masked_lm"], [])
    (note,) = homes.apart(run("noted", architecture="uniter", regions=bare)["notes"])
    assert "masked_regions or hard_regions: the store's regions have no classes" in note
    (note,) = homes.apart(run("none", architecture="uniter", region_classes="none")["notes"])
    assert note.endswith(", or region_classes=none")
    assert not homes.apart(run("all", architecture="uniter")["notes"])


@pytest.mark.parametrize("kind", ["vlbert", "uniter"])
def test_regions_are_classified_by_their_best_class(kind, run, tmp_path):
    """B11: the papers' hard label, and a region head of a task that starts from what it trained."""
    result = run(".", 30 if kind == "uniter" else 3, architecture=kind, region_classes="hard")
    assert "hard_regions" in result["objectives"]
    assert "masked_regions" not in result["objectives"]
    assert any("hard_regions" in line for line in log_of(tmp_path))
    model = load_encoder(tmp_path / "model")
    head = registered("vision_language", Architecture)[kind].heads["refcoco+"](
        HeadContext(model.sizes, RegionSelection())
    )
    layers = head.pretrained_layers()
    assert [load_head(tmp_path / "model", *layer) for layer in layers] == [False, True]
    stored = load_file(tmp_path / "model" / HEADS)["hard_regions.head.0.weight"]
    assert torch.equal(head.pretrained_layers()[0][0].weight, stored)


def test_regions_of_another_backbone_are_refused(settings, place, tmp_path):
    """F4: features of the same width that another backbone made; what made them travels with the model."""
    brief = replace(STEPS, batch=4)
    folder = vqa(tmp_path / "vqa")
    splits = [VQA.with_answers_of(folder).read(folder, split) for split in ("train", "val")]
    names = images_of(*splits)
    captioned = [f"{i:03d}" for i in range(16)]
    stores = {
        backbone: str(store(tmp_path / backbone, [*names, *captioned], backbone=backbone))
        for backbone in ("resnet", "vit")
    }
    out = tmp_path / "pretrained"
    pretrain(
        replace_settings(settings, architecture="uniter", regions=stores["resnet"]), brief, out
    )
    made = {"identity": "hash of resnet", "made_by": "resnet"}
    assert json.loads((out / "model" / "join.json").read_text())["regions_from"] == made
    config = make_settings(
        FinetuneConfig,
        model=str(out / "model"),
        task="vqa",
        data=str(folder),
        regions=stores["vit"],
        save_model=True,
    )
    message = "made by vit, but the model was trained with resnet"
    with pytest.raises(InputError, match=message) as told:
        finetune(config, brief, tmp_path / "other")
    assert "\n" not in str(told.value) and "allow_region_mismatch" in str(told.value)
    second = replace_settings(
        settings, architecture="uniter", model=str(out / "model"), regions=stores["vit"]
    )
    with pytest.raises(InputError, match=message):
        pretrain(second, brief, tmp_path / "second")
    finetune(replace_settings(config, allow_region_mismatch=True), brief, tmp_path / "accepted")
    new = replace_settings(
        config, model=str(place / "bert"), architecture="uniter", regions=stores["resnet"]
    )
    same = replace_settings(config, regions=stores["resnet"])
    for name, own in (("new", new), ("same", same)):
        finetune(own, brief, tmp_path / name)
        tuned = tmp_path / name / "seed-0" / "model"
        assert json.loads((tuned / "join.json").read_text())["regions_from"] == made


def test_a_phase_on_the_texts_of_two_splits(settings, trained, tmp_path):
    """B17: before scores of the server, which learn from train and val."""
    folder = vqa(tmp_path / "vqa")
    task, splits = VQA.with_answers_of(folder), ("train", "val")
    alone = [task_texts(task, folder, splits=(split,)) for split in splits]
    both = task_texts(task, folder, splits=splits)
    assert both == [*alone[0], *alone[1]] and alone[0] == task_texts(task, folder)
    drawn = unlabelled_texts(task, folder, splits=splits)
    assert [versions[0].id for versions in drawn] == [text.id for text in both]
    assert drawn[-1][0].text_pair is None
    config = replace_settings(
        settings,
        model=str(trained["visualbert"][0] / "model"),
        captions="",
        task="vqa",
        data=str(folder),
        regions=str(store(tmp_path / "images", images_of(both))),
        train_splits=splits,
    )
    result = pretrain(config, replace(STEPS, batch=4), tmp_path / "phase")
    assert homes.apart(result["notes"]) == [
        "this model has read the right answers of vqa, val included, which are no longer held out"
    ]
    with pytest.raises(InputError, match="no labelled split 'test'; there are: train, val"):
        pretrain(replace_settings(config, train_splits=("test",)), STEPS, tmp_path / "x")
    with pytest.raises(InputError, match="train_splits=train val: applies only to task"):
        pretrain(replace_settings(settings, train_splits=splits), STEPS, tmp_path / "x")
    aside = replace_settings(config, train_splits=(), eval_splits=("val",))
    held = pretrain(aside, replace(STEPS, batch=4), tmp_path / "held")["held"]
    assert held["texts"] == len(alone[1]) and set(held["terms"]) == {"mlm"}
    with pytest.raises(InputError, match="eval_splits=val: is also a training split"):
        pretrain(replace_settings(config, eval_splits=("val",)), STEPS, tmp_path / "y")
    with pytest.raises(InputError, match="eval_splits: vqa has no labelled split 'dev'"):
        pretrain(replace_settings(aside, eval_splits=("dev",)), STEPS, tmp_path / "z")


@pytest.mark.parametrize("kind", TERMS)
def test_pixels_reach_the_score(kind, trained, tmp_path):
    folder = vqa(tmp_path / "vqa")
    names = images_of(
        *(VQA.with_answers_of(folder).read(folder, split) for split in ("train", "val"))
    )
    config = make_settings(
        FinetuneConfig,
        model=str(trained[kind][0] / "model"),
        task="vqa",
        data=str(folder),
        max_length=32,
        regions=str(store(tmp_path / "images", names)),
    )
    seen = finetune(config, replace(STEPS, batch=4), tmp_path / "seen")
    blind = finetune(
        replace_settings(config, regions=""), replace(STEPS, batch=4), tmp_path / "blind"
    )
    assert set(seen["scores"]) == set(blind["scores"])
    outputs = [
        (tmp_path / way / "seed-0" / "predictions_val.jsonl").read_text()
        for way in ("seen", "blind")
    ]
    assert outputs[0] != outputs[1]
    narrow = {"regions": str(store(tmp_path / "o", names, 7))}
    others = {"architecture": "vlbert" if kind == "uniter" else "uniter", "regions": ""}
    for change, message in (
        (narrow, "features have width 7, the model needs 12"),
        (others, f"architecture={others['architecture']}: .*model is a {kind}"),
    ):
        with pytest.raises(InputError, match=message):
            finetune(replace_settings(config, **change), STEPS, tmp_path / "x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": ""}, "needs model"),
        ({"captions": ""}, "needs captions=FILE, or task"),
        ({"data": "vqa_data"}, "data=vqa_data: applies only to task; leave it out"),
        (
            {"captions": "more.token.txt"},
            "1 of 17 captioned images .* gone.jpg",
        ),
    ],
)
def test_mistakes_are_named(change, message, settings, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    homes.put(
        tmp_path / "more.token.txt", (place / "some.token.txt").read_text() + "gone.jpg#0\ta dog\n"
    )
    with pytest.raises(InputError, match=message):
        pretrain(replace_settings(settings, **change), STEPS, tmp_path / "out")
    if change.get("captions"):
        result = pretrain(
            replace_settings(settings, **change, skip_missing=True),
            replace(STEPS, batch=4),
            tmp_path / "two",
        )
        assert result["left_out"] == 1
