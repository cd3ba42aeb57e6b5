"""Answers without training, against plain restatements of the rules on a tiny CLIP and a tiny match head; refusals."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from scipy.special import expit, softmax
from tiny import homes, vcr_files
from tiny.homes import STEPS, answers, put, refused
from tiny.homes import noise as image
from tiny.regions import store
from tiny.tasks import vqa_answers
from transformers import AutoModel, AutoTokenizer, CLIPImageProcessorPil

from groundling.cli import main
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Example, collate
from groundling.data.kmeans import kmeans_1d
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import RegionDataset
from groundling.data.samples import TextDataset
from groundling.models.frozen_clip import FrozenClip
from groundling.models.heads import HEADS, load_head
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.prediction.similarity import equalise_identical_texts, require_finite
from groundling.settings.fields import make_settings
from groundling.studies.clip_td.commands import VCR as vcr
from groundling.studies.clip_td.commands import ZERO_SHOT as zero_shot
from groundling.studies.clip_td.commands import VcrJointScoreConfig, ZeroShotConfig
from groundling.studies.clip_td.zero_shot import choice_queries, classify
from groundling.studies.knowledge.commands import WINOGROUND as winoground
from groundling.studies.knowledge.commands import WinogroundConfig
from groundling.tasks.vcr import q_to_ar, read_items, render_text
from groundling.vision_language.loading import load_encoder

CLAIMS = ("a dog", "two cats", "a park", "snow", "a girl 's hat", "old horse", "river", "it", "man")
LABELS = ("entailment", "neutral", "contradiction")
ASKED = ["yes", "red", "no", "yes", "red", "no"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP, and VCR, SNLI-VE and VQA with images for it."""
    folder = tmp_path_factory.mktemp("zero-shot")
    square = {"height": 16, "width": 16}
    processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=square)
    processor.save_pretrained(homes.teacher(folder / "clip"))
    vcr_files.folder(folder / "vcr", val=14)
    rows = json_lines(folder / "vcr/val.jsonl")
    for number, row in enumerate(rows):
        row["question"] = ["Why", "?"]
        row["answer_choices"] = [[word] for word in np.roll(["dog", "cat", "hat", "."], number)]
        row["rationale_choices"] = [[word] for word in np.roll(["he", "on", "it", "is"], number)]
    vcr_files.write(folder / "vcr/val.jsonl", rows)
    for split, count in (("train", 9), ("dev", 9), ("test", 8)):
        claims = [claim(number, split) for number in range(count)]
        vcr_files.write(folder / f"snli_ve/snli_ve_{split}.jsonl", claims)
    vqa_answers(folder / "vqa", ASKED)
    for number in range(3):
        image(folder / f"images/movie/{number}.png", (16, 16), number)
        image(folder / f"images/{number}.png", (16, 16), number + 3)
    for number in range(len(ASKED)):
        image(folder / f"images/COCO_val2014_{number:012d}.png", (16, 16), number + 6)
    return folder


def json_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def claim(number: int, split: str) -> dict[str, Any]:
    return {
        "pairID": f"{split}-{number}",
        "Flikr30kID": f"{number % 3}.jpg",
        "sentence2": CLAIMS[number],
        "gold_label": LABELS[number % 3],
    }


def settings(place: Path, task: str, **changes: Any) -> ZeroShotConfig:
    folder = place / task.partition("/")[0].replace("-", "_")
    given = {"model": str(place / "clip"), "images": str(place / "images")}
    return make_settings(
        ZeroShotConfig, **{**given, "task": task, "data": str(folder), "cpu": True, **changes}
    )


def outputs(out: Path, split: str) -> np.ndarray:
    return np.array([row["outputs"] for row in answers(out / f"seed-0/predictions_{split}.jsonl")])


def chosen(out: Path, split: str) -> list[int]:
    return [int(row["prediction"]) for row in answers(out / f"seed-0/predictions_{split}.jsonl")]


@lru_cache
def clip(folder: Path) -> tuple[Any, Any, Any]:
    """A model, its tokenizer and its image processor, as transformers loads them."""
    parts = (AutoModel, AutoTokenizer, CLIPImageProcessorPil)
    model, tokenizer, processor = [part.from_pretrained(folder) for part in parts]
    return model.eval(), tokenizer, processor


def similarity(place: Path, images: list[str], texts: list[str]) -> np.ndarray:
    """(images, texts): the logits of transformers' own CLIP."""
    model, tokenizer, processor = clip(place / "clip")
    pictures = [Image.open(place / f"images/{name}.png") for name in images]
    pixels = processor(pictures, return_tensors="pt")["pixel_values"]
    found = []
    with torch.no_grad():
        seen = F.normalize(
            model.visual_projection(model.vision_model(pixels).pooler_output), dim=-1
        )
        for text in texts:
            ids = torch.tensor([tokenizer(text)["input_ids"]])
            state = model.text_model(input_ids=ids).last_hidden_state[0, -1]
            found.append(seen @ F.normalize(model.text_projection(state), dim=-1))
    return (model.logit_scale.exp() * torch.stack(found, 1)).detach().numpy()


# -- rules -------------------------------------------------------------------------------------------------------------
def test_rows_of_both_protocols() -> None:
    tags = (((0, 1, 0),), ((2, 3, 1),))
    one = Example(
        "e", "why ?", choices=("a b", "c"), images=("i",), label=1, choice_region_tags=tags
    )
    one = replace(one, region_tags=((0, 3, 2),), part_starts=(2,))
    first, second = choice_queries(one, "iqa")
    assert [row.id for row in (first, second)] == ["e/0", "e/1"]
    assert (second.text, second.text_pair, second.choice_region_tags) == ("why ?", "c", tags[1:])
    first, second = choice_queries(one, "ia")
    assert (first.text, first.text_pair, first.region_tags) == ("a b", None, tags[0])
    assert (second.region_tags, second.choice_region_tags, second.part_starts) == (tags[1], (), ())
    assert first.images == ("i",)
    assert first.label is None


def test_texts_read_alike_score_alike() -> None:
    scores = np.array([[1.0, 1.1, 3.0], [4.0, 5.0, 6.0]])
    read = [[b"a", b"a", b"b"], [b"a", b"b", b"c"]]
    assert equalise_identical_texts(scores, read).tolist() == [[1, 1, 3], [4, 5, 6]]
    told = refused(require_finite, np.array([[0.0, 1.0], [np.nan, 1.0]]))
    assert told == "row 1: a similarity is not a finite number"


def test_the_highest_cluster_is_entailment_whatever_the_order_of_classes() -> None:
    values = np.array([9.0, 1.0, 5.0, 1.5, 9.5, 5.5])
    for labels in (LABELS, LABELS[::-1], ("neutral", "entailment", "contradiction")):
        best = classify(values, kmeans_1d(values, 3), labels).argmax(1)
        assert "".join(labels[number][0] for number in best) == "ecncen"


# -- a CLIP ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("protocol", ["iqa", "ia"])
def test_vcr_by_hand(place: Path, tmp_path: Path, protocol: str) -> None:
    flags = ["--model", str(place / "clip"), "--images", str(place / "images"), "--cpu"]
    flags += ["--task", "vcr", "--data", str(place / "vcr"), "--protocol", protocol]
    assert main(["zero-shot", *flags, "--out", str(tmp_path / "out")]) == 0
    expected = []
    asked_items = read_items(place / "vcr", "val")
    for part in ("answers", "rationales"):
        for item in asked_items:
            before = list(item.question)
            if part == "rationales":
                before += item.answers[item.answer or 0]
            texts = []
            for choice in item.__dict__[part]:
                texts.append(render_text(before + choice if protocol == "iqa" else choice, ())[0])
            expected.append(similarity(place, [item.image], texts)[0])
    assert outputs(tmp_path / "out", "val") == pytest.approx(np.array(expected), abs=2e-3)
    best = np.argmax(expected, 1)
    assert chosen(tmp_path / "out", "val") == best.tolist()
    by_id = {item.id: int(one) for item, one in zip(asked_items, best, strict=False)}
    reasons = {item.id: int(one) for item, one in zip(asked_items, best[14:], strict=True)}
    result = json.loads((tmp_path / "out/result.json").read_text())
    assert q_to_ar(by_id, reasons, asked_items).items() <= result["scores"]["val"].items()
    assert not (tmp_path / "out/teacher").exists()


def test_answers_and_rationales_are_runs_that_others_read(place: Path, tmp_path: Path) -> None:
    answer, rationale = (str(tmp_path / part) for part in ("answer", "rationale"))
    for out in (answer, rationale):
        cached = settings(place, f"vcr/{Path(out).name}", teacher_cache=str(tmp_path / "cache"))
        zero_shot(cached, out)
    assert len([*(tmp_path / "cache").iterdir()]) == 2
    both = zero_shot(settings(place, "vcr"), tmp_path / "both")
    data = str(place / "vcr")
    joint = vcr(VcrJointScoreConfig(answer, rationale, data), tmp_path / "j")
    assert joint["median"].items() <= both["scores"]["val"].items()
    of_both = VcrJointScoreConfig(data=data, both=str(tmp_path / "both"))
    assert vcr(of_both, tmp_path / "k")["scores"] == joint["scores"]
    flags = ["--runs", f"a={answer}", f"b={answer}", "--out", str(tmp_path / "verdict")]
    assert main(["verdict", *flags]) == 0


def test_snli_ve_by_hand(place: Path, tmp_path: Path) -> None:
    result = zero_shot(settings(place, "snli-ve"), tmp_path)
    of_split = {}
    for split, count in (("dev", 9), ("test", 8)):
        names = [str(number % 3) for number in range(count)]
        of_split[split] = similarity(place, names, list(CLAIMS[:count])).diagonal()
    for split in ("dev", "test"):
        low, middle, high = kmeans_1d(of_split[split], 3).centres
        gaps = np.abs(of_split[split][:, None] - np.array([high, middle, low]))
        assert chosen(tmp_path, split) == gaps.argmin(1).tolist()
        right = gaps.argmin(1) == np.arange(len(gaps)) % 3
        assert result["scores"][split]["accuracy"] == right.mean()
        assert result["n"][split] == len(right)
        assert result["centroids"][split] == pytest.approx(
            {"contradiction": low, "neutral": middle, "entailment": high}, abs=1e-3
        )


@pytest.mark.parametrize("prompt", ["{question} {answer}", "{answer}", "{answer} ? {question}"])
def test_vqa_by_hand(place: Path, tmp_path: Path, prompt: str) -> None:
    result = zero_shot(settings(place, "vqa", prompt=prompt, split="val"), tmp_path)
    words = ["yes", "no", "red"]
    expected = []
    for number in range(len(ASKED)):
        question = f"is it {number} ?"
        texts = [prompt.replace("{question}", question).replace("{answer}", word) for word in words]
        expected.append(similarity(place, [f"COCO_val2014_{number:012d}"], texts)[0])
    best = np.argmax(expected, 1)
    assert chosen(tmp_path, "val") == best.tolist()
    right = [words[place] == answer for place, answer in zip(best, ASKED, strict=True)]
    assert result["scores"]["val"]["official"] == np.mean(right)
    for row, scores in zip(
        answers(tmp_path / "seed-0/predictions_val.jsonl"), expected, strict=True
    ):
        shares = dict(row["likely"])
        assert [shares[n] for n in range(3)] == pytest.approx(softmax(scores), abs=1e-4)


def test_answers_alone_are_read_once(place: Path, tmp_path: Path, monkeypatch) -> None:
    read: list[int] = []
    embed = FrozenClip.embed_texts
    monkeypatch.setattr(
        FrozenClip, "embed_texts", lambda clip, rows: read.append(len(rows)) or embed(clip, rows)
    )
    zero_shot(settings(place, "vqa", prompt="{answer}", split="val"), tmp_path / "alone")
    assert read == [3]
    result = zero_shot(settings(place, "vqa", split="val", most_questions=2), tmp_path / "asked")
    assert read[1:] == [3, 3]
    rows = answers(tmp_path / "asked/seed-0/predictions_val.jsonl")
    assert [row["official"] for row in rows] == ["0", "5"]
    assert "official" not in result["scores"]["val"]
    assert result["notes"] == ["val: 2 of 6 examples, evenly spaced"]


def test_texts_cut_alike_are_a_tie_of_which_the_first_is_taken(place, tmp_path, capsys):
    rows = json_lines(place / "vcr/val.jsonl")[:4]
    few = vcr_files.write(tmp_path / "few/val.jsonl", rows).parent
    rows[1]["question"] = ["dog"] * 60
    rows[2]["question"] = ["dog"] * 60
    vcr_files.write(tmp_path / "vcr/val.jsonl", rows)
    config = settings(place, "vcr/answer", data=str(tmp_path / "vcr"))
    result = zero_shot(config, tmp_path / "out")
    assert result["cut_alike"] == {"val": 2}
    assert result["truncated_tokens"] > 0
    assert chosen(tmp_path / "out", "val")[1:3] == [0, 0]
    assert len(np.unique(outputs(tmp_path / "out", "val")[1])) == 1
    assert "in 2 of 4 examples all choices are equal after truncation" in capsys.readouterr().err
    # answers alone are whole
    config = replace(config, protocol="ia", extra_eval=(f"few={few}",))
    whole = zero_shot(config, tmp_path / "alone")
    assert whole["cut_alike"] == {"val": 0, "few": 0}
    assert whole["truncated_tokens"] == 0 and "notes" not in whole
    assert chosen(tmp_path / "alone", "few") == chosen(tmp_path / "alone", "val")
    folder = shutil.copytree(place / "vqa", tmp_path / "vqa")
    (path,) = folder.glob("*val2014_questions.json")
    content = json.loads(path.read_text())
    content["questions"][3]["question"] = "dog " * 60
    put(path, json.dumps(content))
    result = zero_shot(settings(place, "vqa", data=str(folder), split="val"), tmp_path / "long")
    assert result["cut_alike"] == {"val": 1}
    assert chosen(tmp_path / "long", "val")[3] == 0


def test_what_a_clip_cannot_answer(place: Path, tmp_path: Path) -> None:
    rows = [
        claim(n, "dev") | {"sentence2": "a dog", "Flikr30kID": f"{n % 2}.jpg"} for n in range(5)
    ]
    vcr_files.write(tmp_path / "snli_ve/snli_ve_dev.jsonl", rows)
    alike = {"data": str(tmp_path / "snli_ve")}
    for task, changes, message in (
        ("vcr/answer", {"images": ""}, "zero-shot with a CLIP needs images"),
        ("glue/rte", {"data": str(place)}, "no rule for glue/rte"),
        ("vqa", {"prompt": "what ?"}, "expected a prompt that contains {answer}"),
        (
            "vcr",
            {"model": str(homes.student(tmp_path / "bert"))},
            "a bert model has no image tower",
        ),
        ("vcr", {"images": str(place / "clip")}, "3 images are missing, the first is 'movie/0'"),
        ("snli-ve", alike, "dev: k-means: expected finite numbers, at least 3 of them distinct"),
    ):
        assert message in refused(zero_shot, settings(place, task, **changes), tmp_path / "out")
    assert not (tmp_path / "out/result.json").exists()


# -- a match head ------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def seen(place: Path) -> Path:
    """UNITER, pre-trained for a few steps, and stores of the regions of VCR's and SNLI-VE's images."""
    names = [f"movie/{number}" for number in range(3)] + [str(number) for number in range(3)]
    regions = store(place / "regions", names, objects=5)
    captions = "".join(f"a dog {number}\t{number}.jpg\n" for number in range(3))
    config = make_settings(
        PretrainConfig,
        architecture="uniter",
        model=str(homes.student(place / "bert")),
        regions=str(regions),
        captions=str(put(place / "captions.tsv", captions)),
    )
    pretrain(config, replace(STEPS, steps=4, batch=2), place / "uniter")
    return place / "uniter/model"


def heads(model: Path, regions: Path, examples: list[Example]) -> np.ndarray:
    """Log-odds of a match, row by row."""
    student = load_encoder(model).eval()
    head = ImageTextMatching(student.sizes).eval()
    assert load_head(model, head, "sentence_image")
    text, _ = student.inputs(128)
    samples = RegionDataset(TextDataset(examples, text), RegionStore(regions))
    odds = []
    for number in range(len(examples)):
        batch = collate(samples.get([number], ()))
        with torch.no_grad():
            apart, together = head.compute_logits(student(batch), batch)[0].tolist()
        odds.append(together - apart)
    return np.array(odds)


def test_a_match_head_by_hand(place: Path, seen: Path, tmp_path: Path) -> None:
    given = {"model": str(seen), "images": "", "regions": str(place / "regions")}
    for protocol in ("iqa", "ia"):
        out = tmp_path / protocol
        result = zero_shot(settings(place, "vcr/answer", protocol=protocol, **given), out)
        rows = []
        for item in read_items(place / "vcr", "val"):
            for answer in item.answers:
                text = render_text(answer, item.objects)[0]
                one = Example(f"{len(rows)}", text, images=(item.image,))
                question = render_text(item.question, item.objects)[0]
                rows.append(
                    one if protocol == "ia" else replace(one, text=question, text_pair=text)
                )
        expected = heads(seen, place / "regions", rows).reshape(-1, 4)
        assert outputs(out, "val") == pytest.approx(expected, abs=1e-4)
        assert result["measure"] == "log-odds of a match"
    zero_shot(settings(place, "snli-ve", split="dev", **given), tmp_path / "claims")
    claims = [Example(f"{n}", CLAIMS[n], images=(str(n % 3),)) for n in range(9)]
    shares = expit(heads(seen, place / "regions", claims))
    assert chosen(tmp_path / "claims", "dev") == (2 - kmeans_1d(shares, 3).labels).tolist()


def test_what_a_match_head_cannot_answer(place: Path, seen: Path, tmp_path: Path) -> None:
    headless = shutil.copytree(seen, tmp_path / "headless")
    (headless / HEADS).unlink()
    images = {"images": str(place / "images")}
    given = {"model": str(seen), "images": "", "regions": str(place / "regions")}
    for task, changes, message in (
        ("vqa", {}, "no rule for vqa with a match head; pass a CLIP and images"),
        ("vcr", {"regions": "", **images}, "pass regions=STORE"),
        ("vcr", {"model": str(place / "bert")}, "reads no regions"),
        ("vcr", images, "leave out images"),
        ("vcr", {"model": str(headless)}, "without a match head (sentence_image)"),
        ("vcr", {"regions": str(store(tmp_path / "few", ["movie/0"]))}, "movie/1"),
    ):
        config = settings(place, task, **{**given, **changes})
        assert message in refused(zero_shot, config, tmp_path / "out")


# -- Winoground --------------------------------------------------------------------------------------------------------
def winoground_files(folder: Path, place: Path) -> Path:
    """Three examples over the images 0 to 2, in a folder as it is published."""
    rows = []
    for number in range(3):
        row = {"id": number, "image_0": str(number), "image_1": str((number + 1) % 3)}
        row |= {"caption_0": f"a {CLAIMS[number]}", "caption_1": f"{CLAIMS[number]} a"}
        rows.append(row | {"collapsed_tag": ("Object", "Relation")[number % 2]})
    vcr_files.write(folder / "examples.jsonl", rows)
    shutil.copytree(place / "images", folder / "images")
    return folder


def by_rule(scores: np.ndarray) -> dict[str, list[bool]]:
    """Scores (N, image, caption) as the paper's equations have it."""
    text = [s[0, 0] > s[0, 1] and s[1, 1] > s[1, 0] for s in scores]
    image = [s[0, 0] > s[1, 0] and s[1, 1] > s[0, 1] for s in scores]
    return {"text": text, "image": image, "group": list(map(min, text, image))}


def test_winoground_by_hand(place: Path, seen: Path, tmp_path: Path, capsys) -> None:
    """A match head and, as the other model, a CLIP."""
    data = winoground_files(tmp_path / "winoground", place)
    of_head = []
    of_clip = []
    for row in json_lines(data / "examples.jsonl"):
        images = [row["image_0"], row["image_1"]]
        texts = [row["caption_0"], row["caption_1"]]
        of_clip.append(similarity(place, images, texts))
        asked_of_head = [Example(f"{i}{t}", t, images=(i,)) for i in images for t in texts]
        of_head.append(heads(seen, place / "regions", asked_of_head).reshape(2, 2))
    out = tmp_path / "out"
    models = ["--model", str(seen), "--regions", str(place / "regions")]
    models += ["--other", str(place / "clip")]
    assert main(["winoground", "--data", str(data), "--cpu", *models, "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["measure"] == "log-odds of a match" != result["other"]["measure"]
    means = []
    for name, told, expected in (
        ("model", result, np.array(of_head)),
        ("other", result["other"], np.array(of_clip)),
    ):
        found = [line[name] for line in json_lines(out / "items.jsonl")]
        scores = np.array([line["scores"] for line in found]).reshape(3, 2, 2)
        assert scores == pytest.approx(expected, abs=2e-3)
        for rule, values in by_rule(expected).items():
            assert [line[rule] for line in found] == values
            assert told["scores"]["all"][rule] == pytest.approx(np.mean(values))
        assert told["scores"]["Object"]["items"] == 2
        means.append({rule: told["scores"]["all"][rule] for rule in result["chance"]})
    for rule in result["chance"]:
        gap = means[1][rule] - means[0][rule]
        assert result["difference"]["all"][rule] == pytest.approx(gap)
    assert result["chance"] == pytest.approx({"text": 0.25, "image": 0.25, "group": 1 / 6})
    assert not (out / "features").exists()
    assert "all: other - model" in capsys.readouterr().out


def test_captions_cut_alike_tie(place: Path, tmp_path: Path) -> None:
    data = winoground_files(tmp_path / "winoground", place)
    rows = json_lines(data / "examples.jsonl")
    for row in rows:
        row["caption_0"] = "dog " * 60
        row["caption_1"] = "dog " * 59
    vcr_files.write(data / "examples.jsonl", rows)
    config = WinogroundConfig(
        model=str(place / "clip"), data=str(data / "examples.jsonl"), cpu=True
    )
    result = winoground(config, tmp_path / "out")
    assert result["cut_captions"] == 6
    assert result["scores"]["all"]["text"] == 0
    shutil.rmtree(data / "images")
    told = refused(winoground, config, tmp_path / "without")
    assert "images are missing, the first is" in told
