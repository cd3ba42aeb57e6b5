"""VL-BERT end to end: what its CNN sees of a picture, what learns, and whole runs on a few generated images."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from tiny import homes, toys
from tiny.homes import STEPS
from tiny.regions import pictures, resnet, store
from tiny.tasks import vqa
from tiny.toys import images_of
from torch import nn
from transformers import BertConfig, BertModel, ResNetConfig, ResNetModel

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.core.batch import Example, OutputSizes, Sample, collate
from groundling.core.errors import InputError
from groundling.data.image_samples import PixelDataset
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import RegionDataset, RegionOptions, add_whole_image
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.attention import AttentionMap
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import PixelInputSettings
from groundling.tasks.vqa import VQA
from groundling.vision_language.end_to_end import (
    EndToEndModel,
    make_end_to_end_model,
    mask_boxes,
    roi_align,
)
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.vlbert import VLBertEmbeddings

BOXES = np.array([[0, 0, 0.5, 0.5], [0.5, 0.25, 1, 1], [0.1, 0.6, 0.4, 0.9]], np.float32)
KINDS = ("basic", "bottleneck")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, EndToEndModel]:
    words, out = toys.bert_words(), {}
    for kind in KINDS:
        folder = resnet(tmp_path_factory.mktemp("cnn"), kind)
        torch.manual_seed(5)
        out[kind] = make_end_to_end_model(toys.bert(len(words)), words, folder, 64).eval()
        for norm in (out[kind].join.norm_text, out[kind].join.norm_region):
            nn.init.normal_(norm.weight)  # 0 at the start: nothing seen would come through
    return out


@pytest.fixture(params=KINDS)
def model(request: pytest.FixtureRequest, models: dict[str, EndToEndModel]) -> EndToEndModel:
    return models[request.param]


def sample(
    number: int, wide: int, high: int, masked: tuple[int, ...] = (), choices: int = 0
) -> Sample:
    rng, words = np.random.default_rng(number), TextRowEncoder(toys.bert_words(), 40)
    example = Example("a", toys.sentences()[number], choices=tuple(toys.sentences()[:choices]))
    (made,) = TextDataset([example], words).get([0])
    count = 2 + number % 2
    # Features are made by the model.
    row = replace(toys.regions(number, count, width=0), boxes=BOXES[:count])
    row = replace(add_whole_image(row), masked=np.isin(np.arange(count + 1), masked))
    pixels = rng.integers(0, 256, (3, high, wide), dtype=np.uint8)
    own = tuple(replace(choice, regions=row) for choice in made.choices)
    return replace(made, pixels=pixels, regions=row, choices=own)


close = torch.testing.assert_close


@torch.no_grad()
def test_padding_does_not_matter(model: EndToEndModel) -> None:
    samples = [sample(0, 48, 40, (1,)), sample(1, 112, 65, (2, 3)), sample(2, 33, 80)]
    together = model(collate(samples))
    for b, one in enumerate(samples):
        alone = model(collate([one]))
        for found, many in ((alone.text, together.text), (alone.visual, together.visual)):
            close(many[b, : found.shape[1]], found[0], rtol=0, atol=1e-5)
    blind = model(replace(collate(samples), pixels=torch.zeros_like(collate(samples).pixels)))
    assert (blind.visual - together.visual).abs().max() > 1e-2


@torch.no_grad()
def test_masked_boxes_are_zero_in_the_pixels(model: EndToEndModel) -> None:
    batch = collate([sample(0, 80, 64, (2,))])
    expected = model(batch)
    inside, outside = batch.pixels.clone(), batch.pixels.clone()
    inside[:, :, 16:64, 40:80] ^= 255  # 0.25..1 of 64 down, 0.5..1 of 80 across
    found = model(replace(batch, pixels=inside))
    assert torch.equal(found.text, expected.text) and torch.equal(found.visual, expected.visual)
    outside[:, :, :15, 41:] ^= 255
    shown = replace(batch, regions=replace(batch.regions, masked=None))
    for other in (replace(batch, pixels=outside), shown):
        assert (model(other).visual - expected.visual).abs().max() > 1e-3


def test_both_ends_of_a_box_are_inside() -> None:
    boxes = torch.tensor([[[1.0, 2.0, 3.0, 2.5], [0.0, 0.0, 9.0, 9.0], [5.7, 0.2, 6.1, 0.9]]])
    found = mask_boxes(boxes, torch.tensor([[True, False, True]]), 8, 4)
    expected = torch.zeros(1, 4, 8, dtype=torch.bool)
    expected[0, 2, 1:4] = expected[0, 0, 5:7] = True
    assert torch.equal(found, expected)


@torch.no_grad()
def test_regions_are_seen_at_stride_16_by_a_dilated_last_stage(model: EndToEndModel) -> None:
    """Against the steps in plain words; the stock ResNet's own first three stages, one region after the other."""
    batch = collate([sample(1, 96, 64)])
    shapes = []
    hook = model.cnn.encoder.stages[-1].register_forward_hook(
        lambda stage, into, out: shapes.append(out.shape)
    )
    found = model.add_region_features(batch).regions.features
    hook.remove()
    assert shapes == [(4, 32, 14, 14)] and found.shape == (1, 4, 32)
    mean, std = torch.tensor([0.4, 0.5, 0.6]), torch.tensor([0.2, 0.3, 0.2])
    picture = ((batch.pixels[0] / 255).permute(1, 2, 0) - mean) / std
    hidden = model.cnn.embedder(picture.permute(2, 0, 1)[None])
    for stage in model.cnn.encoder.stages[:3]:
        hidden = stage(hidden)
    assert hidden.shape == (1, 16, 4, 6)
    grid = torch.arange(28) / 28 + 1 / 56  # 2 samples in each of 14 bins
    for r, (x1, y1, x2, y2) in enumerate(batch.regions.boxes[0].tolist()):
        x, y = 2 * (x1 + (x2 - x1) * grid) - 1, 2 * (y1 + (y2 - y1) * grid) - 1
        at = torch.stack([x.expand(28, 28), y[:, None].expand(28, 28)], -1)[None]
        crop = F.grid_sample(hidden, at, padding_mode="border", align_corners=False)
        head = model.cnn.encoder.stages[3](F.avg_pool2d(crop, 2))
        close(found[0, r], head.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    for conv in model.cnn.encoder.stages[3].modules():
        if isinstance(conv, nn.Conv2d):
            wide = 2 if conv.kernel_size == (3, 3) else 1
            assert conv.stride == (1, 1) and conv.dilation == (wide, wide)


@torch.no_grad()
def test_cover_leaves_out_what_is_no_part_of_an_object(models: dict[str, EndToEndModel]) -> None:
    model = models["basic"]
    half, whole = np.ones((3, 14, 14), bool), np.ones((4, 14, 14), bool)
    half[1, :, 7:] = False
    samples = []
    for number, cover in enumerate((half, whole)):
        one = sample(number, 64, 48)
        samples.append(replace(one, regions=replace(one.regions, segmentation=cover)))
    batch = collate(samples)
    assert batch.regions.segmentation.shape == (2, 4, 14, 14)
    assert not batch.regions.segmentation[0, 3].any()
    maps = []
    hook = model.cnn.encoder.stages[-1].register_forward_hook(
        lambda stage, into, out: maps.append(out)
    )
    found = model.add_region_features(batch).regions.features
    hook.remove()
    close(found[0, 1], maps[0][1, :, :, :7].sum((1, 2)) / 196)
    close(found[0, 2], maps[0][2].mean((1, 2)))
    close(found[1], maps[1].mean((2, 3)))


@torch.no_grad()
def test_choices_share_one_look(models: dict[str, EndToEndModel]) -> None:
    model = models["basic"]
    several, calls = [sample(0, 48, 40, choices=3), sample(1, 64, 32, choices=3)], []
    hook = model.cnn.embedder.register_forward_hook(lambda *_: calls.append(1))
    found = model(collate(several))
    hook.remove()
    assert len(calls) == 2 and len(found.text) == 6
    for b, one in enumerate(several):
        for c, choice in enumerate(one.choices):
            alone = model(collate([replace(choice, pixels=one.pixels)])).visual[0]
            close(found.visual[3 * b + c, : len(alone)], alone, rtol=0, atol=1e-5)


def test_what_learns(model: EndToEndModel) -> None:
    before = {k: v.clone() for k, v in model.cnn.state_dict().items()}
    model.train()
    assert not any(part.training for part in model.cnn.modules()) and model.text.training
    out = model(collate([sample(0, 64, 48, (1,)), sample(1, 48, 64)]))
    (out.text.pow(3).sum() + out.visual.pow(3).sum()).backward()
    trained = tuple(f"encoder.stages.{stage}" for stage in (1, 2, 3))
    for name, parameter in model.cnn.named_parameters():
        learns = name.startswith(trained) and "norm" not in name
        assert parameter.requires_grad == learns, name
        assert learns == (parameter.grad is not None and bool(parameter.grad.any())), name
    assert all(torch.equal(value, before[name]) for name, value in model.cnn.state_dict().items())
    model.zero_grad()
    model.eval()


@torch.no_grad()
def test_export_and_texts_alone(model: EndToEndModel, tmp_path: Path) -> None:
    batch = collate([sample(0, 64, 48, (1,)), sample(1, 48, 64)])
    model.export(tmp_path)
    again = load_encoder(tmp_path).eval()
    assert again.image_sides == (64, 0) and again.reads_whole_image
    assert again.sizes._replace(config=None) == model.sizes._replace(config=None)
    for one in (batch, replace(batch, regions=None, pixels=None, image_sizes=None)):
        found, expected = again(one), model(one)
        assert torch.equal(found.text, expected.text)
        assert found.visual is expected.visual is None or torch.equal(found.visual, expected.visual)
    stock, report = ResNetModel.from_pretrained(tmp_path / "cnn", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert stock.state_dict().keys() == model.cnn.state_dict().keys()
    about = json.loads((tmp_path / "cnn/preprocessor_config.json").read_text())
    assert about["image_mean"] == [0.4, 0.5, 0.6]
    maps: list[AttentionMap] = []
    model(batch, attention=maps.append)
    assert len(maps) == 2
    with pytest.raises(InputError, match="a model that reads pixels needs `pixels`"):
        model(replace(batch, pixels=None))
    (tmp_path / "cnn" / "config.json").unlink()
    with pytest.raises(InputError, match=r"cnn: no model found .*config\.json"):
        load_encoder(tmp_path)


@torch.no_grad()
def test_half_precision_keeps_the_boxes(models: dict[str, EndToEndModel]) -> None:
    batch = collate([sample(1, 320, 240, (1,))])
    expected = models["basic"].add_region_features(batch).regions
    with torch.autocast("cpu", torch.bfloat16):
        found = models["basic"].add_region_features(batch).regions
    assert found is not None and expected is not None and found.features.dtype == torch.float32
    close(found.features, expected.features, rtol=0.05, atol=0.05)


def test_published_sizes() -> None:
    """The table's 114,489,467 (base, without the CNN) and 42,500,160 (ResNet-101)."""
    sizes = OutputSizes(text=768, visual=768, input_embeddings=(30522, 768), classes=1601)
    with torch.device("meta"):
        bert = BertModel(BertConfig(type_vocab_size=3), add_pooling_layer=False)
        lm = MaskedLM(sizes, mask_id=103, replacements=np.arange(5))
        parts = [bert, VLBertEmbeddings(bert, pixels=True), lm, MaskedRegionModeling(sizes)]
        cnn = ResNetModel(ResNetConfig(depths=[3, 4, 23, 3]))
    for module, total in ((nn.ModuleList(parts), 114_489_467), (cnn, 42_500_160)):
        assert sum(p.numel() for p in module.parameters()) == total


def test_pictures_are_scaled_whole(tmp_path: Path) -> None:
    store(tmp_path / "store", ["wide", "deep/high", "lost"], width=12)
    for name, size in (("wide.png", (300, 100)), ("deep/high.jpg", (30, 40))):
        homes.picture(tmp_path / "images" / name, size=size)
    kept = RegionStore(tmp_path / "store", features=False)
    assert kept.width == 0 and kept["wide"].features.shape == (len(kept["wide"].boxes), 0)
    words = TextRowEncoder(toys.bert_words(), 8)

    def samples(*images: str, longest_edge: int = 0) -> PixelDataset:
        texts = TextDataset([Example("t", "a dog", images=images)], words)
        seen = RegionDataset(texts, kept, RegionOptions(whole_image=True))
        return PixelDataset(seen, tmp_path / "images", 60, longest_edge)

    for image, longest, sides in (
        ("wide", 0, (33, 100)),
        ("deep/high", 0, (80, 60)),
        ("wide", 120, (40, 120)),
        ("wide", 1000, (60, 180)),
    ):
        (one,) = samples(image, longest_edge=longest).get([0], ())
        assert one.pixels.shape == (3, *sides)
    assert (one.pixels == np.array([200, 30, 30])[:, None, None]).all()
    for images, message in (
        (("wide", "deep/high"), "t has 2 images; a model that reads pixels reads one per text"),
        (("lost",), "1 images are missing, .* 'lost'"),
    ):
        with pytest.raises(InputError, match=message):
            samples(*images)
    homes.put(tmp_path / "images" / "lost.jpg", b"no picture")
    with pytest.raises(InputError, match=r"lost\.jpg: does not decode"):
        samples("lost").get([0], ())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pixels")
    homes.student(folder / "bert")
    resnet(folder / "resnet")
    names = [f"{i:03d}" for i in range(6)]
    store(folder / "store", names)
    pictures(folder / "images", names)
    homes.put(
        folder / "some.token.txt", "\n".join(f"{n}.jpg#0\ta dog and {n} cats" for n in names) + "\n"
    )
    homes.text(folder / "text.txt", 20)
    return folder


@pytest.fixture(scope="module")
def settings(place: Path) -> PretrainConfig:
    return make_settings(
        PretrainConfig,
        architecture="vlbert",
        model=str(place / "bert"),
        regions=str(place / "store"),
        images=str(place / "images"),
        captions=str(place / "some.token.txt"),
        backbone=str(place / "resnet"),
        shortest_edge=40,
        max_length=24,
    )


TWO = replace(STEPS, steps=2, batch=2)


@pytest.fixture(scope="module")
def trained(settings: PretrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model pre-trained with related images (B3), in which a picture comes with the boxes of its own image."""
    out = tmp_path_factory.mktemp("runs") / "pretrained"
    result = pretrain(replace_settings(settings, related=True), TWO, out)
    assert result["objectives"] == ["masked_lm", "masked_regions", "sentence_image"]
    model = load_encoder(out / "model")
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert (model.image_sides, model.join.mask_visual) == ((40, 0), None)
    return out / "model"


@pytest.fixture(scope="module")
def asked(trained: Path, place: Path) -> FinetuneConfig:
    """VQA with pictures."""
    folder = vqa(place / "vqa")
    names = images_of(
        *(VQA.with_answers_of(folder).read(folder, split) for split in ("train", "val"))
    )
    return make_settings(
        FinetuneConfig,
        model=str(trained),
        task="vqa",
        data=str(folder),
        max_length=16,
        save_model=True,
        regions=str(store(place / "store-vqa", names, 7)),
        images=str(pictures(place / "images-vqa", names)),
    )


def test_a_blind_model_sees_no_pixels(asked: FinetuneConfig, place: Path, tmp_path: Path) -> None:
    """B4: a blind end-to-end model used to answer bit by bit as the seeing one."""
    seen = place / "images-vqa"
    for number, picture in enumerate(sorted(seen.iterdir())):  # the same files, other colours
        with Image.open(picture) as image:
            homes.picture(tmp_path / picture.name, (9 * number, 90, 20), image.size)
    answers = {}
    for blind in (False, True):
        for images in (seen, tmp_path):
            config = replace_settings(asked, zero_region_features=blind, images=str(images))
            out = tmp_path / f"out{len(answers)}"
            finetune(config, TWO, out)
            answers[blind, images] = homes.answers(out / "seed-0/predictions_val.jsonl")
    assert answers[False, seen] not in (answers[False, tmp_path], answers[True, seen])
    assert answers[True, seen] == answers[True, tmp_path]


def test_mistakes_are_named(settings, asked, trained, place, tmp_path):
    resnet(tmp_path / "deep", depths=[1, 1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16, 16])
    pictures(tmp_path / "few", ["000"])
    no_pixels = {"images": "", "backbone": PixelInputSettings().backbone, "shortest_edge": 0}
    stored = replace_settings(settings, **no_pixels)
    pretrain(stored, TWO, tmp_path / "stored")  # the same without a CNN
    of_stored = {"model": str(tmp_path / "stored/model")}
    for config, change, message in (
        (settings, {"architecture": "uniter"}, "uniter reads stored features; leave images out"),
        (stored, {"model": str(trained)}, "model: this model reads pixels"),
        (settings, {"backbone": str(place / "bert")}, "bert: expected a ResNet with four stages"),
        (settings, {"backbone": str(tmp_path / "deep")}, "deep: expected a ResNet with"),
        (settings, {"images": str(tmp_path / "few")}, "few: 5 images .* '001'"),
        (asked, of_stored, "no pixels; leave out"),
        (asked, {"images": ""}, "pass images"),
        (asked, {"regions": ""}, "needs regions; pass regions=STORE"),
        (asked, {"model": str(place / "bert")}, "this model reads none"),
        (asked, {"images": str(tmp_path / "none")}, "none: no such file or folder"),
    ):
        run = pretrain if isinstance(config, PretrainConfig) else finetune
        with pytest.raises(InputError, match=message):
            run(replace_settings(config, **change), TWO, tmp_path / "no")


ROW = torch.tensor([[[[10.0, 20.0, 30.0, 40.0]]]])


@pytest.mark.parametrize(
    ("x1", "expected"),
    [
        (-1.0, 10.0),  # at -1: still the first pixel
        (-1.125, 0.0),  # at -1.125: nothing
        (3.75, 40.0),  # at 3.75: the last pixel
        (4.0, 40.0),  # at 4, the width: still the last pixel
        (4.125, 0.0),  # at 4.125: nothing
    ],
)
def test_a_sample_counts_from_one_pixel_before_to_the_end(x1: float, expected: float) -> None:
    """A pixel's centre is at its number plus .5, so half a pixel is taken off: 1.0 to 2.0 is sampled at 1.0, 20."""
    box = torch.tensor([[x1, 0.0, x1 + 1, 1.0]])
    assert roi_align(ROW, [box], 1, 1.0, 1).item() == expected


def in_torchvisions_order(box: np.ndarray, size: int, sampling: int, width: int) -> np.ndarray:
    """How many of each bin's samples count (size,), every step in single precision."""
    single = np.float32
    low, high = (single(side * single(1) - single(0.5)) for side in box)
    span = single(single(high - low) / single(size))
    counts = np.zeros(size)
    for number, point in product(range(size), range(sampling)):
        place = single(low + single(single(number) * span))
        place += single(single(single(point + 0.5) * span) / single(sampling))
        counts[number] += (not (place < -1 or place > width)) / sampling
    return counts


@pytest.mark.parametrize(("size", "sampling"), [(7, 3), (7, 2), (14, 2)])
def test_rounding_takes_the_side_that_it_takes_in_torchvision(size: int, sampling: int) -> None:
    # Left ends in steps of 1/16 and widths such that a sample lies at -1 but for rounding.
    rng = np.random.default_rng(size)
    middles = rng.integers(0, 2 * size, 400) + 0.5
    spans = rng.integers(1, 60, 400) * 0.7
    lefts = -0.5 - spans * middles / (2 * size)
    boxes = np.stack([lefts, lefts + spans], 1).astype(np.float32)
    given = torch.tensor([[left, 0.0, right, 1.0] for left, right in boxes.tolist()])
    found = roi_align(torch.ones(1, 1, 1, 12), [given], size, 1.0, sampling)[:, 0, 0].numpy()
    expected = [in_torchvisions_order(box, size, sampling, 12) for box in boxes]
    np.testing.assert_allclose(found, np.stack(expected), atol=1e-5)


def test_an_image_without_boxes_has_no_features() -> None:
    features = torch.randn(3, 2, 4, 4)
    box = torch.tensor([[0.0, 0.0, 4.0, 4.0]])
    none = torch.zeros(0, 4)
    found = roi_align(features, [none, box, none], 2, 1.0, 2)
    assert torch.equal(found, roi_align(features[1:2], [box], 2, 1.0, 2))
    assert roi_align(features, [none] * 3, 2, 1.0, 2).shape == (0, 2, 2, 2)
