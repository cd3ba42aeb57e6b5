"""`retrieve` against plain restatements of the ranks and transformers; and `train-clip`, whose result is retrieval."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from tiny import homes, toys
from tiny.homes import STEPS, never, put
from tiny.homes import noise as image
from transformers import AutoModel, AutoTokenizer, CLIPImageProcessorPil, CLIPModel

import groundling.stats.retrieval
from groundling.commands.retrieve import COMMAND as retrieve
from groundling.commands.retrieve import RetrieveConfig
from groundling.commands.train_clip import COMMAND as teach
from groundling.commands.train_clip import TrainClipConfig
from groundling.data.captions import join_captions
from groundling.models.clip import ClipImageTower
from groundling.stats.retrieval import (
    TO_IMAGE,
    TO_TEXT,
    chance_recall,
    compare_recall,
    recall_scores,
    retrieval_ranks,
)
from groundling.training import fit as fitting

NAMES = [f"{number}.png" for number in range(6)]
COUNTS = [2, 1, 3, 2, 2, 2]
"""Captions of each image."""


# -- ranks -----------------------------------------------------------------------------------------------------------
def plain_ranks(scores: np.ndarray, first: np.ndarray) -> tuple[list[int], list[int]]:
    """The rule as it is said: wrong answers that score at least as much, plus one."""
    owner = [
        image for image in range(len(first) - 1) for _ in range(first[image], first[image + 1])
    ]
    of_text = []
    for text, own in enumerate(owner):
        wrong = [scores[text, other] for other in range(scores.shape[1]) if other != own]
        of_text.append(1 + sum(score >= scores[text, own] for score in wrong))
    of_image = []
    for picture in range(scores.shape[1]):
        best = max(scores[text, picture] for text, own in enumerate(owner) if own == picture)
        wrong = [scores[text, picture] for text, own in enumerate(owner) if own != picture]
        of_image.append(1 + sum(score >= best for score in wrong))
    return of_text, of_image


@pytest.mark.parametrize("cells", [7, 1 << 24])
def test_ranks_are_those_of_the_rule_in_blocks_and_at_once(cells, monkeypatch):
    monkeypatch.setattr(groundling.stats.retrieval, "CELLS", cells)
    rng = np.random.default_rng(0)
    first = np.cumsum([0, *COUNTS])
    # Few different numbers, so that many scores are exactly equal.
    texts = rng.integers(-1, 2, (first[-1], 3)).astype(np.float32)
    images = rng.integers(-1, 2, (len(COUNTS), 3)).astype(np.float32)
    found = retrieval_ranks(texts, images, first)
    of_text, of_image = plain_ranks(texts @ images.T, first)
    assert found[TO_IMAGE].tolist() == of_text
    assert found[TO_TEXT].tolist() == of_image
    assert len(set(of_text)) > 3 and len(set(of_image)) > 2


@pytest.mark.parametrize("value", [1.0, np.nan])
def test_an_encoder_that_tells_nothing_apart_finds_nothing(value: float) -> None:
    first = np.cumsum([0, *[2] * 12])
    found = retrieval_ranks(np.full((24, 2), value), np.ones((12, 2)), first)
    assert recall_scores(found[TO_IMAGE]) == {"r@1": 0, "r@5": 0, "r@10": 0, "median_rank": 12}
    assert recall_scores(found[TO_TEXT])["r@10"] == 0


def test_chance_is_the_mean_over_all_orders() -> None:
    first = np.cumsum([0, 1, 3, 2])
    expected = chance_recall(first)
    owner = np.repeat([0, 1, 2], [1, 3, 2])
    places = []
    for order in itertools.permutations(range(6)):
        for picture in range(3):
            places.append(1 + min(np.flatnonzero(owner[list(order)] == picture)))
    assert expected[TO_TEXT]["r@1"] == pytest.approx(100 * np.mean(np.array(places) <= 1), abs=0.01)
    assert expected[TO_TEXT]["r@5"] == pytest.approx(100 * np.mean(np.array(places) <= 5), abs=0.01)
    assert expected[TO_TEXT]["median_rank"] == np.median(places)
    assert expected[TO_IMAGE] == {"r@1": 33.33, "r@5": 100, "r@10": 100, "median_rank": 2}
    flickr = chance_recall(np.arange(0, 5001, 5))  # as in docs/results.md
    assert flickr[TO_IMAGE] == {"r@1": 0.1, "r@5": 0.5, "r@10": 1.0, "median_rank": 500}
    assert flickr[TO_TEXT]["r@10"] == pytest.approx(1.0, abs=0.01)


def test_a_difference_is_judged_by_pairs_of_images() -> None:
    rng = np.random.default_rng(1)
    image = np.repeat(np.arange(200), 3)
    theirs = rng.integers(1, 40, 600)
    ours = np.where(
        rng.random(600) < 0.1, 1, theirs
    )  # a tenth is found at once, the rest as before
    told = compare_recall(ours, theirs, image)
    gap = 100 * ((ours <= 10).mean() - (theirs <= 10).mean())
    assert told["r@10"]["value"] == pytest.approx(gap, abs=0.01)
    by_image = ((ours <= 10).astype(float) - (theirs <= 10)).reshape(200, 3).mean(1)
    error = 100 * by_image.std(ddof=1) / np.sqrt(200)
    low, high = told["r@10"]["interval"]
    assert (high - low) / 3.92 == pytest.approx(error, rel=0.1)  # of unpaired ones twice as much
    assert told["r@10_ratio"]["value"] == pytest.approx(
        (ours <= 10).mean() / (theirs <= 10).mean(), abs=1e-3
    )
    same = compare_recall(theirs, theirs, image)
    assert same["r@1"] == {"value": 0, "interval": [0, 0]}
    assert same["r@10_ratio"] == {"value": 1, "interval": [1, 1]}
    never = compare_recall(ours, np.full(600, 40), image)
    assert never["r@10_ratio"] == {"value": None, "interval": None}
    rarely = compare_recall(ours, np.where(np.arange(600) == 5, 1, 40), image)
    assert rarely["r@10_ratio"]["value"] > 1
    assert rarely["r@10_ratio"]["interval"] is None
    assert (
        compare_recall(ours, theirs, image, seed=1)["r@10"]["interval"] != told["r@10"]["interval"]
    )


def test_captions_are_joined_in_their_order() -> None:
    captions = ["a dog", "a cat .", "two?", "it runs", "no"]
    assert join_captions(captions, 2) == ("a dog. a cat .", "two? it runs.", "no.")
    assert join_captions(captions, 9) == ("a dog. a cat . two? it runs. no.",)
    assert join_captions(captions, 1) == tuple(captions)


# -- the command -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP of width 24, images with captions, and a student."""
    folder = tmp_path_factory.mktemp("retrieve")
    square = {"height": 16, "width": 16}
    processor = CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=square)
    processor.save_pretrained(homes.teacher(folder / "clip"))
    for number, name in enumerate(NAMES):
        image(folder / "images" / name, (16, 16), number)
    lines = []
    texts = iter(toys.sentences())
    for name, count in zip(NAMES, COUNTS, strict=True):
        lines += [f"{name}#{number}\t{next(texts)}" for number in range(count)]
    put(folder / "captions.txt", "\n".join(lines) + "\n")
    homes.speaking_encoder(folder / "student", 24)
    return folder


def config_of(place: Path, **changes: object) -> RetrieveConfig:
    config = RetrieveConfig(
        model=str(place / "clip"),
        captions=str(place / "captions.txt"),
        images=str(place / "images"),
        cpu=True,
    )
    return replace(config, **changes)


def pictures(place: Path) -> np.ndarray:
    """The images' vectors, as transformers makes them."""
    model = AutoModel.from_pretrained(place / "clip").eval()
    processor = CLIPImageProcessorPil.from_pretrained(place / "clip")
    opened = [Image.open(place / "images" / file).convert("RGB") for file in NAMES]
    with torch.no_grad():
        found = model.get_image_features(**processor(images=opened, return_tensors="pt"))
    return F.normalize(found.pooler_output, dim=-1).numpy()


def clip_texts(place: Path, texts: list[str]) -> np.ndarray:
    model = CLIPModel.from_pretrained(place / "clip").eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "clip")
    # Of a text that is too long transformers cuts inside a word, groundling before it: these texts are short.
    inputs = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        return F.normalize(model.get_text_features(**inputs).pooler_output, dim=-1).numpy()


def student_texts(place: Path, texts: list[str]) -> np.ndarray:
    """Transformer, mean of all tokens, Dense, Normalize."""
    model = AutoModel.from_pretrained(place / "student").eval()
    tokenizer = AutoTokenizer.from_pretrained(place / "student")
    inputs = tokenizer(texts, padding=True, truncation=True, max_length=24, return_tensors="pt")
    with torch.no_grad():
        states = model(**inputs).last_hidden_state
    mask = inputs["attention_mask"].unsqueeze(-1)
    mean = (states * mask).sum(1) / mask.sum(1)
    dense = load_file(place / "student/2_Dense/model.safetensors")
    return F.normalize(F.linear(mean, dense["linear.weight"], dense["linear.bias"]), dim=-1).numpy()


def short(place: Path, folder: Path) -> str:
    """Captions that every encoder reads whole."""
    lines = []
    for line in (place / "captions.txt").read_text().splitlines():
        key, _, caption = line.partition("\t")
        lines.append(f"{key}\t{' '.join(caption.split()[1:4])}")
    return str(put(folder / "short.txt", "\n".join(lines) + "\n"))


def test_both_sides_find_what_transformers_finds(place: Path, tmp_path: Path, capsys) -> None:
    captions = short(place, tmp_path)
    config = config_of(place, captions=captions, student=str(place / "student"))
    result = retrieve(config, tmp_path / "out")
    texts = [line.partition("\t")[2] for line in Path(captions).read_text().splitlines()]
    first = np.cumsum([0, *COUNTS])
    seen = pictures(place)
    for side, vectors in (
        ("model", clip_texts(place, texts)),
        ("student", student_texts(place, texts)),
    ):
        of_text, of_image = plain_ranks(vectors @ seen.T, first)
        assert result[side][TO_IMAGE] == recall_scores(np.array(of_text))
        assert result[side][TO_TEXT] == recall_scores(np.array(of_image))
        assert result[side]["truncated_texts"] == 0
    assert result["model"][TO_IMAGE] != result["student"][TO_IMAGE]
    assert result["chance"] == chance_recall(first)
    gap = result["student"][TO_IMAGE]["r@1"] - result["model"][TO_IMAGE]["r@1"]
    told = result["student_minus_model"][TO_IMAGE]["r@1"]
    assert told["value"] == pytest.approx(gap, abs=0.011)
    assert told["interval"][0] <= told["value"] <= told["interval"][1]
    assert "texts_truncated_by_model" not in result
    assert json.loads((tmp_path / "out/result.json").read_text()) == result
    assert not (tmp_path / "out/teacher").exists()
    shown = capsys.readouterr().out
    assert "text to image: student" in shown and "image to text: chance" in shown
    assert retrieve(config, tmp_path / "out") == result
    assert capsys.readouterr().out == shown


def test_long_texts_are_cut_by_the_model_and_not_by_the_student(place, tmp_path, capsys):
    config = config_of(place, student=str(place / "student"), captions_per_text=2, max_length=64)
    result = retrieve(config, tmp_path / "out")
    assert (result["texts"], result["captions_per_text"]) == (7, 2)
    cut = result["model"]["truncated_texts"]
    assert cut > 3
    assert result["model"]["truncated_tokens"] > cut
    assert result["student"]["truncated_texts"] < cut
    some = result["texts_truncated_by_model"]
    assert some["texts"] == cut
    assert set(some) == {"texts", "model", "student", "student_minus_model"}
    assert f"{cut} truncated: student" in capsys.readouterr().out
    own = retrieve(replace(config, max_length=8), tmp_path / "less")["student"]
    assert (own["max_length"], own["truncated_texts"]) == (8, 7)
    whole = retrieve(replace(config, max_windows=0), tmp_path / "whole")
    assert whole["model"]["truncated_texts"] == 0
    assert whole["student"] == result["student"]
    assert "texts_truncated_by_model" not in whole


def test_features_that_stay_are_not_computed_again(place, tmp_path, monkeypatch):
    config = config_of(place, teacher_cache=str(tmp_path / "cache"))
    result = retrieve(config, tmp_path / "a")
    monkeypatch.setattr(ClipImageTower, "forward", never)
    again = retrieve(replace(config, student=str(place / "student")), tmp_path / "b")
    assert again["model"] == result["model"]


# -- refusals --------------------------------------------------------------------------------------------------------
@pytest.fixture
def refused(place: Path, tmp_path: Path, refusal) -> Callable[..., str]:
    """The one line that is said with other files."""

    def call(**changes: object) -> str:
        usual = {"model": place / "clip", "captions": place / "captions.txt"}
        usual |= {"images": place / "images", "out": tmp_path / "out"} | changes
        return refusal("retrieve", "--cpu", *(x for k, v in usual.items() for x in (f"--{k}", v)))

    return call


@pytest.mark.usefixtures("in_process")
def test_bad_images_are_one_line(place: Path, tmp_path: Path, refused) -> None:
    images = tmp_path / "images"
    shutil.copytree(place / "images", images)
    (images / "2.png").write_bytes((images / "2.png").read_bytes()[:60])
    said = refused(images=images)
    assert "2.png: does not decode" in said and "1 of 6" in said and "skip_bad" in said
    assert not (tmp_path / "out/result.json").exists()
    whole = retrieve(config_of(place, images=str(images), skip_bad=True), tmp_path / "bad")
    assert (whole["bad_images"], whole["bad_image_names"]) == (1, ["2.png"])
    (images / "2.png").unlink()
    assert "1 of 6 captioned images are missing, the first is 2.png" in refused(images=images)
    kept = retrieve(config_of(place, images=str(images), skip_missing=True), tmp_path / "skipped")
    assert (kept["images"], kept["missing_images"], kept["texts"]) == (5, 1, 9)
    assert (kept["model"], kept["bad_images"]) == (whole["model"], 0)


@pytest.mark.usefixtures("in_process")
def test_bad_students_and_models_are_one_line(place: Path, tmp_path: Path, refused) -> None:
    said = refused(student=homes.speaking_encoder(tmp_path / "narrow", 8))
    assert "its vectors of 8 dimensions" in said and "has 24" in said
    plain = homes.student(tmp_path / "bert")
    assert "bert needs `modules.json`" in refused(student=plain)
    assert "no image tower" in refused(model=plain)
    weights = tmp_path / "nan"
    shutil.copytree(place / "student", weights)
    nothing = {"linear.weight": torch.full((24, 32), torch.nan), "linear.bias": torch.zeros(24)}
    save_file(nothing, weights / "2_Dense/model.safetensors")
    assert "not finite" in refused(student=weights)


# -- train-clip: a stock CLIP, its retrieval, its listings ------------------------------------------------------------
def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in model.state_dict().items()}


def test_teach_writes_a_stock_clip(taught: tuple[Path, dict]) -> None:
    out, result = taught
    counts = [result[name] for name in ("steps", "images", "missing_images", "samples")]
    assert counts == [2, 40, 0, 40]
    model = CLIPModel.from_pretrained(out / "model")
    assert sum(p.numel() for p in model.parameters()) == result["parameters"]
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    words = tokenizer(["there is a red thing .", "a"], padding=True, return_tensors="pt")
    features = model.get_text_features(**words).pooler_output
    assert features.shape == (2, 16) and torch.isfinite(features).all()
    assert (
        model.config.text_config.max_position_embeddings,
        model.config.vision_config.image_size,
    ) == (20, 32)
    assert len(tokenizer) <= 560
    assert json.loads((out / "result.json").read_text()) == result
    assert not (out / "checkpoints").exists()


def test_teach_reports_retrieval(taught: tuple[Path, dict]) -> None:
    found = taught[1]["retrieval"]
    ways = [f"{way}_r@{k}" for way in ("text_to_image", "image_to_text") for k in (1, 5, 10)]
    assert list(found) == ["images", "captions", *ways, "mean_recall"]
    assert found["mean_recall"] == pytest.approx(sum(found[way] for way in ways) / 6, abs=0.01)
    assert (found["images"], found["captions"]) == (10, 20)
    for way in ("text_to_image", "image_to_text"):
        assert 0 <= found[f"{way}_r@1"] <= found[f"{way}_r@5"] <= found[f"{way}_r@10"] <= 100
    assert found["text_to_image_r@10"] == 100  # of ten images
    card = (taught[0] / "model/README.md").read_text()
    assert 'AutoModel.from_pretrained("FOLDER")' in card
    assert f"- retrieval, mean recall: {found['mean_recall']:.4g}\n" in card


def test_an_untrained_teacher_is_the_one_training_starts_from(
    teaching_config: TrainClipConfig,
    taught: tuple[Path, dict],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fitting, "train", never)
    result = teach(
        replace(teaching_config, untrained=True), replace(STEPS, steps=2), tmp_path / "out"
    )
    assert "steps" not in result
    assert result["retrieval"]["captions"] == 20
    before = weights(CLIPModel.from_pretrained(tmp_path / "out" / "model"))
    after = weights(CLIPModel.from_pretrained(taught[0] / "model"))
    assert before.keys() == after.keys()
    moved = {
        k: (after[k] - before[k]).abs().max().item()
        for k in before
        if before[k].is_floating_point()
    }
    assert 0 < max(moved.values()) < 0.01  # two steps at a rate of 1e-3
    for name in ("model/tokenizer.json", "model/tokenizer_config.json"):
        assert (tmp_path / "out" / name).read_bytes() == (taught[0] / name).read_bytes()


def test_teach_keeps_to_its_listings(teaching_config: TrainClipConfig, tmp_path: Path) -> None:
    images = [
        image["file_name"]
        for image in json.loads(Path(teaching_config.captions).read_text())["images"]
    ]
    config = replace(
        teaching_config,
        image_list=str(put(tmp_path / "train.txt", "\n".join(images[:24]))),
        eval_image_list=str(put(tmp_path / "test.txt", "\n".join(images[24:31]))),
        eval_captions="",
    )
    result = teach(config, replace(STEPS, steps=1), tmp_path / "out")
    assert (result["images"], result["samples"]) == (24, 24)
    assert (result["retrieval"]["images"], result["retrieval"]["captions"]) == (7, 14)
