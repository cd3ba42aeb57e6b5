"""Teachers that open_clip loads, against open_clip; `test_open_clip.py` runs this in a process of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from tiny import homes, toys
from tiny import open_clip as made
from tiny.homes import noise as picture
from torch.nn import functional as F

from groundling.core.batch import Example, Sample, collate
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset
from groundling.models.adapters import ClipFeatureAdapter, load_adapter, load_adapter_backbone
from groundling.models.frozen_clip import has_text_tower, load_frozen_clip
from groundling.settings.input_settings import ClipAdapterSettings
from groundling.settings.objectives import ObjectiveSettings, TargetedDistillationSettings
from groundling.teachers import TeacherContext, add_features
from groundling.teachers.feature_cache import FeatureCache, TeacherSet
from groundling.teachers.loading import make_clip_teacher

TEXTS = ["two dogs chase a cat", "A red_ball, isn't it?"]
WIDTHS = {"resnet": (24, 24), "timm": (512, 24), "siglip": (64, 64), "coca": (24, 24)}
"""Widths of an image's features before and after the projection, where they are not (32, 24)."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("open_clip")
    toys.siglip_words().save_pretrained(place / "siglip")
    homes.words().save_pretrained(place / "timm")
    homes.student(place / "timm/text")
    for kind in made.CONFIGS:
        made.write(place / kind, kind)
    return place


@pytest.mark.parametrize("kind", made.CONFIGS)
@torch.no_grad()
def test_features_are_open_clips_own(kind: str, folders: Path) -> None:
    before = torch.random.get_rng_state()
    ours = load_frozen_clip(folders / kind)
    assert torch.equal(before, torch.random.get_rng_state())
    name = f"local-dir:{folders / kind}"
    model, transform = made.open_clip.create_model_from_pretrained(name)
    tokenizer = made.open_clip.get_tokenizer(name)
    expected = model.eval().encode_text(tokenizer(TEXTS))
    rows = [row for row, _ in ours.tokenize(TEXTS)]
    batch = collate([Sample(str(n), clip=row) for n, row in enumerate(rows)])
    states, ends = ours.text(batch.clip)
    close(F.normalize(ends, dim=-1), F.normalize(expected, dim=-1))
    assert states.shape == (*batch.clip.input_ids.shape, ours.text.embed_dim)
    if kind in ("clip", "resnet"):  # pooled at the end token
        close(states[torch.arange(2), batch.clip.eot_index], expected)
    assert ours.text.logit_scale == model.logit_scale
    words = rows[1].word_ids
    assert words[0] <= 0 and words.max() >= 4 and (np.diff(words[words >= 0]) >= 0).all()
    image = Image.effect_noise((61, 40), 80).convert("RGB")
    pooled = ours.image(torch.from_numpy(ours.image.preprocess(image)[None]))
    found = F.normalize(ours.image.projection(pooled), dim=-1)
    close(found, F.normalize(model.encode_image(transform(image)[None]), dim=-1))
    widths = (ours.image.pooled_width, ours.image.embed_dim)
    assert widths == (pooled.shape[1], found.shape[1]) == WIDTHS.get(kind, (32, 24))


@torch.no_grad()
def test_an_image_encoder_of_timm_is_timms_own(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(2)
    model = timm.create_model("resnet10t", pretrained=False, num_classes=3).eval()
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    config = {"input_size": [3, 32, 32], "mean": [0.4, 0.5, 0.6], "crop_pct": 0.9, "num_classes": 3}
    content = {"architecture": "resnet10t", "num_classes": 3, "pretrained_cfg": config}
    (tmp_path / "config.json").write_text(json.dumps(content))
    image = Image.effect_noise((61, 40), 80).convert("RGB")
    settings = timm.data.resolve_data_config(config, model=model)
    pixels = timm.data.create_transform(**settings)(image)[None]
    expected = model.forward_head(model.forward_features(pixels), pre_logits=True)
    for source in (str(tmp_path), f"timm:{tmp_path}"):
        tower = load_frozen_clip(source, text=False).image
        found = tower(torch.from_numpy(tower.preprocess(image)[None]))
        close(found, expected)
        assert tower.pooled_width == tower.embed_dim == found.shape[1]
        assert not has_text_tower(source)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-6)


def test_a_squashed_image_keeps_its_border(tmp_path: Path) -> None:
    folder = made.write(tmp_path, "clip", resize_mode="squash", interpolation="bilinear")
    image = Image.new("RGB", (64, 32))
    image.paste((255, 255, 255), (0, 0, 16, 32))
    columns = load_frozen_clip(folder, text=False).image.preprocess(image).mean((0, 1))
    assert columns.shape == (32,) and columns[0] > 250 > 5 > columns[-1]


@pytest.mark.parametrize("kind", ["siglip", "timm"])
def test_a_teacher_of_image_text_and_words(kind: str, folders: Path, tmp_path: Path) -> None:
    picture(tmp_path / "photos/0.png", (40, 24), 0)
    options = TargetedDistillationSettings(teacher_images=str(tmp_path / "photos"))
    settings = ObjectiveSettings(targeted_distillation=options)
    names = {"clip_image", "clip_text", "clip_words", "clip_word", "clip_similarity"}
    found = []
    for limit in (1.0, 0.0):
        context = TeacherContext(str(folders / kind), frozenset(names), settings)
        teacher = make_clip_teacher(context)
        data = TextDataset([Example(text, text, images=("0",)) for text in TEXTS], None)
        wrapped, live = TeacherSet([teacher], FeatureCache(tmp_path / "cache", limit)).wrap(data)
        batch = collate(wrapped.get([0, 1], [np.random.default_rng(0)] * 2))
        for one in live:
            batch = add_features(one, batch)
        found.append(batch.features)
    assert names == found[0].keys() == found[1].keys()
    close(found[0]["clip_text"], found[1]["clip_text"])
    assert found[0]["clip_words"].shape == (2, 2, teacher.width)


def changed(part: str, **values: object) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / CONFIG
        content = json.loads(path.read_text())
        content["model_cfg"][part] |= values
        path.write_text(json.dumps(content))

    return change


CONFIG, WEIGHTS = "open_clip_config.json", "open_clip_model.safetensors"
BAD: dict[str, tuple[Callable[[Path], object], str]] = {
    "is cut": (lambda at: homes.put(at / WEIGHTS, b"short"), "open_clip does not load it"),
    "is pickled": (
        lambda at: (at / WEIGHTS).rename(at / "open_clip_pytorch_model.bin"),
        "pickled weights are not opened",
    ),
    "is no JSON": (lambda at: homes.put(at / CONFIG, "["), "valid config"),
    "has no model": (lambda at: homes.put(at / CONFIG, "{}"), "valid config"),
    "has fewer layers": (changed("vision_cfg", layers=1), "Unexpected key"),
    "names no timm model": (changed("vision_cfg", timm_model_name="none"), "Unknown model"),
}


@pytest.mark.parametrize("damage", BAD)
def test_a_damaged_folder_gives_one_line(damage: str, folders: Path, tmp_path: Path) -> None:
    change, message = BAD[damage]
    folder = shutil.copytree(folders / "clip", tmp_path / "model")
    change(folder)
    told = homes.refused(load_frozen_clip, folder)
    assert message in told and str(folder) in told


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("ViT-B-33/openai", "lists no model ViT-B-33"),
        ("ViT-B-32/nine", "lists no weights nine of ViT-B-32"),
        ("ViT-B-32/openai", "QuickGELU mismatch|not load"),
    ],
)
def test_a_name_that_open_clip_does_not_list(source: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_frozen_clip(f"open_clip:{source}")


def test_an_adapter_over_it_is_saved_and_loaded(folders: Path, tmp_path: Path) -> None:
    base = load_adapter_backbone(str(folders / "timm"))
    adapter = ClipFeatureAdapter(base, ClipAdapterSettings("mlp", 3))
    adapter.export(tmp_path / "adapter")
    again = load_adapter(tmp_path / "adapter")
    assert again.clip_backbone.text_key == base.text_key
    for name, value in adapter.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
