"""Adapters over a frozen CLIP: against a plain restatement, on three tasks, saved, killed, and what they refuse."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tiny import homes, toys, vcr_files
from tiny.homes import STEPS, digests, log_of, put, refused
from tiny.tasks import entailed, json_lines, vqa
from tiny.toys import images_of
from transformers import SiglipImageProcessorPil

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import FORWARD_BATCH, Batch, EncoderOutput, OutputSizes, Sample
from groundling.core.output_types import Classification, MultipleChoice, OpenAnswer
from groundling.core.registry import resolve
from groundling.models.adapters import (
    ClipAdapterHead,
    ClipFeatureAdapter,
    load_adapter,
    load_adapter_backbone,
)
from groundling.models.frozen_clip import FrozenClip
from groundling.models.task_heads import HeadContext
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import ClipAdapterSettings
from groundling.tasks import Task
from groundling.vision_language.loading import load_encoder

BRIEF = replace(STEPS, batch=4)
WIDTH = 24
"""Of the tiny CLIP's embeddings."""
ALL = {
    "mlp 1": ClipAdapterSettings("mlp"),
    "mlp 3": ClipAdapterSettings("mlp", 3),
    "cosine 1": ClipAdapterSettings("mlp", 1, "cosine"),
    "cosine 3": ClipAdapterSettings("mlp", 3, "cosine"),
    "attention": ClipAdapterSettings("attention"),
    "linear": ClipAdapterSettings("linear"),
}
"""Every row of Table 11, and ours."""
FOUR = MultipleChoice(("0", "1", "2", "3"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP, files of three tasks, and their pictures."""
    folder = tmp_path_factory.mktemp("adapters")
    homes.seeing_clip(folder / "clip")
    vcr_files.folder(folder / "vcr", train=12, val=6)
    vqa(folder / "vqa")
    labels = ("entailment", "neutral", "contradiction")
    for split, count in (("train", 12), ("dev", 6), ("test", 3)):
        rows = [
            entailed(f"{n % 3}.jpg#{n}", labels[n % 3], Flikr30kID=f"{n % 3}.jpg")
            for n in range(count)
        ]
        put(folder / f"snli-ve/snli_ve_{split}.jsonl", json_lines(*rows))
    names = [f"movie/{n}" for n in range(3)] + [str(n) for n in range(3)]
    task = resolve("tasks", Task, "vqa").with_answers_of(folder / "vqa")
    names += images_of(*(task.read(folder / "vqa", split) for split in ("train", *task.dev)))
    for number, name in enumerate(dict.fromkeys(names)):
        homes.picture(folder / f"photos/{name}.png", (40 * number % 256, 90, 200), (20, 16))
    return folder


def over(
    place: Path, adapting: ClipAdapterSettings = ALL["mlp 3"], **changes: Any
) -> FinetuneConfig:
    settings: dict[str, Any] = {
        "model": str(place / "clip"),
        "task": "vcr/answer",
        "data": str(place / "vcr"),
        "teacher_images": str(place / "photos"),
        "save_model": True,
        **vars(adapting),
    }
    return make_settings(FinetuneConfig, **(settings | changes))


def features(rows: int) -> Batch:
    torch.manual_seed(2)
    both = F.normalize(torch.randn(2, rows, WIDTH), dim=-1)
    return Batch(
        tuple(map(str, range(rows // 4))),
        word_type_ids=torch.zeros(rows, 1, dtype=torch.long),
        features={"clip_image": both[0], "clip_text": both[1]},
    )


class Rows:
    """Samples of two choices each, or of one row, with these features."""

    def __init__(self, of: Mapping[str, torch.Tensor], choices: int = 1) -> None:
        each = zip(*(of[name].numpy() for name in ("clip_image", "clip_text")), strict=True)
        rows = [Sample("", features={"clip_image": one, "clip_text": two}) for one, two in each]
        pairs = zip(*(rows[start::choices] for start in range(choices)), strict=True)
        self.samples = rows if choices == 1 else [Sample("", choices=pair) for pair in pairs]

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Sequence[int], rngs: Sequence[object]) -> list[Sample]:
        return [self.samples[index] for index in indices]


def restated(model: ClipFeatureAdapter, head: ClipAdapterHead, batch: Batch) -> torch.Tensor:
    """The answers, from the weights by name."""
    own = {name: value.double() for name, value in model.state_dict().items()}
    image, text = (batch.features[name].double() for name in ("clip_image", "clip_text"))

    def layers(name: str, values: torch.Tensor, count: int) -> torch.Tensor:
        for number in range(count):
            layer = f"{name}.{2 * number}"
            values = F.gelu(values) if number else values
            values = values @ own[f"{layer}.weight"].T + own[f"{layer}.bias"]
        return values

    settings = model.options
    if settings.fusion == "cosine":
        count = settings.adapter_layers
        sides = (layers("of_image", image, count), layers("of_text", text, count))
        return own["scale"].exp() * F.cosine_similarity(*sides)[:, None]
    if settings.adapter == "linear":
        both = (torch.cat([image, text], -1) - own["mean"]) / own["deviation"]
        pooled = torch.cat([both, both[:, :WIDTH] * both[:, WIDTH:]], -1)
    elif settings.adapter == "attention":
        mine = model.attend.double()
        states = torch.stack([own["first"].expand(len(image), -1), image, text], 1)
        normal = mine.norm1(states)
        states = states + mine.self_attn(normal, normal, normal)[0]
        pooled = (states + mine.linear2(F.gelu(mine.linear1(mine.norm2(states)))))[:, 0]
    else:
        pooled = torch.cat([image, text], -1)
        if settings.adapter_layers == 3:
            pooled = F.gelu(layers("mix", pooled, 2))
    return head.double().classify(pooled)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("linear", 0),
        ("mlp 1", 0),
        ("mlp 3", 1776),
        ("cosine 1", 1201),
        ("cosine 3", 3601),
        ("attention", 7248),
    ],
)
def test_each_is_its_definition(name: str, parameters: int, place: Path) -> None:
    torch.manual_seed(1)
    base = load_adapter_backbone(str(place / "clip"))
    model = ClipFeatureAdapter(base, ALL[name]).eval()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters
    if "cosine" in name:  # starts from CLIP's scale
        assert model.scale.item() == base.text.logit_scale.item() and model.scale.requires_grad
    head = ClipAdapterHead(HeadContext(model.sizes, FOUR)).eval()
    batch = features(8)
    if name == "linear":
        model.standardise(Rows(batch.features))
    encoded = model(batch)
    assert encoded.pooler_output.shape == (8, model.sizes.pooler_output)
    ours = head(encoded, batch).double()
    assert ours.shape == (8, 1)
    torch.testing.assert_close(ours, restated(model, head, batch), rtol=0, atol=1e-4)


@pytest.mark.parametrize("choices", [1, 2])
def test_a_linear_adapter_reads_standardised_features(choices, place, tmp_path) -> None:
    batch = features(2 * FORWARD_BATCH + 6)
    batch.features["clip_text"][:, 3] = 0.25
    batch.features["clip_text"][::2, 3] += 1e-8  # as rounding differs between batches
    model = ClipFeatureAdapter(load_adapter_backbone(str(place / "clip")), ALL["linear"])
    model.standardise(Rows(batch.features, choices))
    values = model(batch).pooler_output[:, : 2 * WIDTH].double()
    varies = torch.arange(2 * WIDTH) != WIDTH + 3
    torch.testing.assert_close(values.mean(0), torch.zeros(2 * WIDTH).double(), rtol=0, atol=1e-5)
    torch.testing.assert_close(values.std(0, correction=0), varies.double(), rtol=0, atol=1e-5)
    model.export(tmp_path / "saved")
    again, new = load_adapter(tmp_path / "saved"), features(5)
    assert torch.equal(again(new).pooler_output, model(new).pooler_output)


def test_a_linear_adapter_answers_two_questions_about_an_image_differently(place) -> None:
    """One question's answer is the opposite of the other's: no linear score of image and text alone has all right."""
    batch = features(2)
    both = {name: batch.features[name] for name in ("clip_image", "clip_text")}
    batch.features.update(
        clip_image=both["clip_image"][[0, 0, 1, 1]], clip_text=both["clip_text"][[0, 1, 0, 1]]
    )
    gold, right = torch.tensor([0, 1, 1, 0]), {}
    base = load_adapter_backbone(str(place / "clip"))
    for name in ("linear", "mlp 1"):
        model = ClipFeatureAdapter(base, ALL[name])
        if name == "linear":
            model.standardise(Rows(batch.features))
        head = ClipAdapterHead(HeadContext(model.sizes, Classification(("no", "yes"))))
        optimizer = torch.optim.Adam(head.parameters(), 1e-2)
        for _ in range(100):
            F.cross_entropy(head(model(batch), batch), gold).backward()
            optimizer.step()
            optimizer.zero_grad()
        right[name] = (head(model(batch), batch).argmax(-1) == gold).sum().item()
    assert right["linear"] == 4 and right["mlp 1"] < 4


def test_clip_is_asked_once_and_never_trained(place, tmp_path, monkeypatch) -> None:
    asked = Counter[str]()
    real = FrozenClip.encode_images

    def pictures(self: Any, batch: Batch, names: Any) -> Any:
        asked.update(dict.fromkeys(names, 1))
        assert not torch.is_grad_enabled()
        assert not self.image.training and not self.text.training
        assert not any(p.requires_grad for p in (*self.image.parameters(), *self.text.parameters()))
        return real(self, batch, names)

    monkeypatch.setattr(FrozenClip, "encode_images", pictures)
    kept = {"teacher_cache": str(tmp_path / "kept")}
    finetune(over(place, seeds=2, **kept), BRIEF, tmp_path / "out")
    assert len(asked) == 3 and set(asked.values()) == {1}, "training and evaluation share pictures"
    finetune(over(place, **kept), BRIEF, tmp_path / "again")
    assert set(asked.values()) == {1}
    models = [tmp_path / run / "seed-0/model" for run in ("out", "again")]
    assert digests(models[0]) == digests(models[1])
    saved = load_file(models[0] / "adapter.safetensors")
    assert {key.partition(".")[0] for key in saved} == {"mix"}


def refusal(config: FinetuneConfig, out: Path, **changes: Any) -> str:
    return refused(lambda: finetune(replace_settings(config, **changes), BRIEF, out))


def test_a_damaged_folder_or_another_clip(place: Path, tmp_path: Path) -> None:
    finetune(over(place), BRIEF, tmp_path / "out")
    folder = tmp_path / "out/seed-0/model"
    plain = over(place, ClipAdapterSettings(), model=str(folder))
    assert str(folder) in refusal(plain, tmp_path / "no", adapter="mlp")
    told = refusal(plain, tmp_path / "no", teacher_images="")
    assert told.endswith("needs teacher_images=FOLDER")
    file, weights = folder / "adapter.json", folder / "adapter.safetensors"
    about, whole = file.read_text(), weights.read_bytes()

    def changed(**values: object) -> str:
        return json.dumps(json.loads(about) | values)

    for content, tensors, message in (
        (changed(clip=3), whole, f"{file}: "),
        (changed(adapter="x"), whole, f"{file}: "),
        (changed(fusion=None), whole, f"{file}: "),
        (about[:-9], whole, "not valid JSON"),
        (changed(adapter_layers=1), whole, "adapter.safetensors: cannot be read"),
        (about, whole[:-7], "adapter.safetensors: cannot be read"),
        (changed(weights={"image": "0", "text": "1"}), whole, "trained over other weights than"),
        (changed(clip=str(tmp_path / "gone")), whole, "gone"),
    ):
        put(file, content)
        put(weights, tensors)
        assert message in refused(load_adapter, folder)
    put(file, about)
    elsewhere = shutil.copytree(folder, tmp_path / "elsewhere")  # as if downloaded
    told = refused(load_adapter, elsewhere)
    assert f"{elsewhere / 'adapter.json'}: " in told and "no such folder" in told


def test_a_cosine_tells_no_thousands_apart() -> None:
    sizes = OutputSizes(pooler_output=1)
    three = ClipAdapterHead(HeadContext(sizes, Classification(("a", "b", "c"))))
    assert three(EncoderOutput(pooler_output=torch.ones(2, 1)), features(4)).shape == (2, 3)
    told = refused(ClipAdapterHead, HeadContext(sizes, OpenAnswer(tuple("abcde"))))
    assert "fusion=cosine gives one number per row" in told


@pytest.mark.parametrize(
    ("task", "name"),
    [
        ("vcr/answer", "mlp 1"),
        ("vcr/answer", "cosine 3"),
        ("snli-ve", "attention"),
        ("vqa", "mlp 3"),
        ("vqa", "linear"),
        ("vcr/answer", "linear"),
    ],
)
def test_each_learns_and_is_saved(task: str, name: str, place: Path, tmp_path: Path) -> None:
    before = digests(place / "clip")
    data = {"task": task, "data": str(place / task.partition("/")[0])}
    result = finetune(over(place, ALL[name], seeds=2, **data), BRIEF, tmp_path / "out")
    assert all(np.isfinite(list(scores.values())).all() for scores in result["median"].values())
    assert not (tmp_path / "out/teacher").exists() and digests(place / "clip") == before
    folder = tmp_path / "out/seed-0/model"
    weights = load_file(folder / "adapter.safetensors")
    again = load_encoder(folder)
    assert again.options == ALL[name] and weights.keys() == again.state_dict().keys()
    assert all(torch.equal(value, weights[key]) for key, value in again.state_dict().items())
    other = load_file(tmp_path / "out/seed-1/model/adapter.safetensors")
    differ = [key for key in weights if not torch.equal(weights[key], other[key])]
    assert differ or not list(again.parameters())
    if name == "linear":
        assert weights["deviation"].unique().numel() > 2, "of the training rows"
    # training goes on from the folder, which says what CLIP it is
    more = over(place, ClipAdapterSettings(), model=str(folder), **data)
    finetune(more, BRIEF, tmp_path / "more")
    assert all("task" in line for line in log_of(tmp_path / "more/seed-0"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"objectives": ("td_text",), "teacher": "x"}, "objectives=td_text: an adapter"),
        ({"training_step": "villa"}, "training_step=villa: an adapter"),
        ({"adapter_layers": 2}, "adapter_layers = 2: expected 1 or 3"),
        ({"adapter": "none"}, "needs adapter=mlp"),
        ({"adapter": "attention"}, "needs adapter=mlp"),
        ({"adapter": "linear"}, "needs adapter=mlp"),
    ],
)
def test_settings_that_do_not_fit(changes, message, place, tmp_path):
    assert message in refusal(over(place), tmp_path / "out", **changes)


def test_models_that_do_not_fit(tmp_path: Path) -> None:
    told = refused(load_adapter_backbone, str(homes.student(tmp_path / "bert")))
    assert "has no image tower" in told
    words = toys.siglip_words()
    model = toys.siglip(words)
    model.text_model.head = torch.nn.Linear(32, 24)
    model.config.text_config.projection_size = 24
    folder = homes.home(tmp_path / "siglip", model, words)
    SiglipImageProcessorPil(size={"height": 16, "width": 16}).save_pretrained(folder)
    assert "images are 32 wide, texts 24" in refused(load_adapter_backbone, str(folder))
