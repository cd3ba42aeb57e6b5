"""Vision-language models from captions and regions to a fine-tuned, scored model; every phase on tiny files."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import homes
import numpy as np
import pytest
from homes import STEPS, log_of
from safetensors.torch import load_file

from groundling.config import FinetuneConfig, PretrainConfig, changed, configured
from groundling.data.regions import Found, RegionWriter
from groundling.errors import InputError
from groundling.load import load_student
from groundling.recipes.finetune import finetune
from groundling.recipes.pretrain import pretrain, task_texts
from groundling.tasks.vqa import VQA

TERMS = {
    "visualbert": {"mlm", "sentence_image"},
    "vlbert": {"mlm", "masked_regions"},
    "uniter": {"mlm", "masked_regions", "regress_regions", "sentence_image", "word_region"},
}


def store(
    folder: Path, names: list[str], width: int = 12, classes: int = 5, objects: int = 0
) -> Path:
    """A store of 2 to 5 regions an image; or of as many `objects`, in the annotators' order."""
    rng = np.random.default_rng(0)
    found = []
    for name in names:
        count = objects or int(rng.integers(2, 6))
        corners = np.sort(rng.random((count, 2, 2)), axis=1).reshape(count, 4)
        kinds = rng.dirichlet(np.ones(classes or 1), count)
        found.append(
            Found(
                name,
                (60, 40),
                corners,
                rng.random(count),
                rng.normal(size=(count, width)),
                kinds if classes else None,
                annotated_order=bool(objects),
            )
        )
    folder.mkdir(parents=True, exist_ok=True)
    writer = RegionWriter(folder)
    writer.fill([(one.id, lambda one=one: one) for one in found])  # type: ignore[misc]
    writer.close({"source": "test"}, [])
    return folder


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
    return configured(
        PretrainConfig,
        student=str(place / "bert"),
        regions=str(place / "store"),
        captions=str(place / "some.token.txt"),
        max_length=48,
    )


@pytest.fixture(scope="session")
def trained(
    settings: PretrainConfig, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, tuple[Path, dict]]:
    root = tmp_path_factory.mktemp("pretrained")
    steps = replace(STEPS, steps=30, batch=4)
    return {
        kind: (root / kind, pretrain(changed(settings, model=kind), steps, root / kind))  # type: ignore[arg-type]
        for kind in TERMS
    }


@pytest.mark.parametrize("kind", TERMS)
def test_each_model_has_its_own_objectives(
    kind: str, trained: dict[str, tuple[Path, dict]]
) -> None:
    out, result = trained[kind]
    lines = log_of(out)
    terms = {key for line in lines for key in line} - {"step", "loss", "lr", "grad_norm", "seconds"}
    assert terms == TERMS[kind]
    if kind == "uniter":  # one objective per step
        alone = [terms & set(line) for line in lines]
        assert all(len(some - {"word_region"}) == 1 for some in alone)
    else:
        assert all(terms <= set(line) for line in lines)
    model = load_student(out / "model")
    assert model.join.kind == kind
    assert sum(p.numel() for p in model.parameters()) == result["parameters"]
    assert json.loads((out / "result.json").read_text())["model"] == kind


def test_text_without_images_is_mixed_in(
    settings: PretrainConfig, place: Path, tmp_path: Path
) -> None:
    config = changed(settings, model="vlbert", text=(str(place / "text.txt"),), max_length=24)
    pretrain(config, replace(STEPS, steps=12, batch=4), tmp_path)
    seen = ["masked_regions" in line for line in log_of(tmp_path)]
    assert 0 < sum(seen) < 12


def test_vlberts_first_version_also_asks_whether_image_and_caption_are_related(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    pretrain(changed(settings, model="vlbert", related=True), replace(STEPS, batch=4), tmp_path)
    assert {"mlm", "masked_regions", "sentence_image"} <= set(log_of(tmp_path)[0])


@pytest.mark.parametrize(
    ("change", "missing", "parts"),
    [
        ({"sentence_image": False}, {"sentence_image"}, 0),
        ({"early_fusion": False}, set(), 16),
        ({"random_start": True}, set(), 0),
    ],
)
def test_visualberts_ablations(
    change: dict, missing: set[str], parts: int, settings: PretrainConfig, tmp_path: Path
) -> None:
    pretrain(changed(settings, **change), replace(STEPS, batch=4), tmp_path)
    assert set(log_of(tmp_path)[0]).isdisjoint(missing)
    names = load_file(tmp_path / "model" / "join.safetensors")
    assert sum(name.startswith("fusion.") for name in names) == parts


def vqa(folder: Path) -> Path:
    asked = [("what is it", "dog"), ("how many", "2"), ("is it wet", "yes")]
    for split, count in (("train2014", 12), ("val2014", 6)):
        questions, notes = [], []
        for i in range(count):
            question, answer = asked[i % 3]
            image, number = i % 16, (i % 16) * 1000 + i
            questions.append(
                {"image_id": image, "question": f"{question} {i}?", "question_id": number}
            )
            notes.append(
                {
                    "question_id": number,
                    "image_id": image,
                    "question_type": question,
                    "answer_type": "other",
                    "multiple_choice_answer": answer,
                    "answers": [
                        {"answer": answer, "answer_confidence": "yes", "answer_id": n + 1}
                        for n in range(10)
                    ],
                }
            )
        homes.put(
            folder / f"v2_OpenEnded_mscoco_{split}_questions.json",
            json.dumps({"info": {}, "questions": questions}),
        )
        homes.put(
            folder / f"v2_mscoco_{split}_annotations.json",
            json.dumps({"info": {}, "annotations": notes}),
        )
    homes.put(folder / "trainval_label2ans.json", json.dumps(["dog", "2", "yes", "no"]))
    return folder


def test_a_tasks_own_texts_are_a_phase(
    settings: PretrainConfig, trained: dict[str, tuple[Path, dict]], tmp_path: Path
) -> None:
    folder = vqa(tmp_path / "vqa")
    texts = task_texts(VQA.at(folder), folder)
    assert (texts[0].text, texts[0].pair) == ("what is it 0?", "dog")
    names = sorted({image for example in texts for image in example.images})
    own = store(tmp_path / "images", names)
    config = changed(
        settings,
        student=str(trained["visualbert"][0] / "model"),
        captions="",
        task="vqa",
        data=str(folder),
        regions=str(own),
    )
    pretrain(config, replace(STEPS, batch=4), tmp_path / "phase")
    assert set(log_of(tmp_path / "phase")[0]) >= {"mlm"}
    assert "sentence_image" not in log_of(tmp_path / "phase")[0]


@pytest.mark.parametrize("kind", TERMS)
def test_pixels_reach_the_score(
    kind: str, trained: dict[str, tuple[Path, dict]], tmp_path: Path
) -> None:
    folder = vqa(tmp_path / "vqa")
    names = sorted(
        {
            i
            for split in ("train", "val")
            for e in VQA.at(folder).read(folder, split)
            for i in e.images
        }
    )
    config = configured(
        FinetuneConfig,
        model=str(trained[kind][0] / "model"),
        task="vqa",
        data=str(folder),
        max_length=32,
        regions=str(store(tmp_path / "images", names)),
    )
    seen = finetune(config, replace(STEPS, batch=4), tmp_path / "seen")
    blind = finetune(changed(config, regions=""), replace(STEPS, batch=4), tmp_path / "blind")
    assert set(seen["scores"]) == set(blind["scores"])
    outputs = [
        (tmp_path / way / "seed-0" / "predictions_val.jsonl").read_text()
        for way in ("seen", "blind")
    ]
    assert outputs[0] != outputs[1]
    with pytest.raises(InputError, match="features are 7 wide, the model reads 12"):
        finetune(
            changed(config, regions=str(store(tmp_path / "o", names, 7))), STEPS, tmp_path / "x"
        )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"student": ""}, "needs --student"),
        ({"regions": ""}, "needs --regions"),
        ({"captions": ""}, "needs --captions FILE, or --task"),
        ({"task": "vqa"}, "needs --captions FILE, or --task"),
        (
            {"captions": "more.token.txt"},
            "1 of 17 captioned images are not in the store, the first is 'gone'",
        ),
    ],
)
def test_mistakes_are_named(
    change: dict[str, str],
    message: str,
    settings: PretrainConfig,
    place: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    homes.put(
        tmp_path / "more.token.txt", (place / "some.token.txt").read_text() + "gone.jpg#0\ta dog\n"
    )
    with pytest.raises(InputError, match=message):
        pretrain(changed(settings, **change), STEPS, tmp_path / "out")  # type: ignore[arg-type]
    if change.get("captions"):
        result = pretrain(
            changed(settings, **change, skip_missing=True),
            replace(STEPS, batch=4),
            tmp_path / "two",
        )  # type: ignore[arg-type]
        assert result["left_out"] == 1
