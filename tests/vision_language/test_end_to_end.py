"""VL-BERT end to end: what its CNN sees of a picture, what learns, and whole runs on a few generated images."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import homes, toys
from tiny.homes import STEPS, log_of
from tiny.regions import store
from tiny.seeing import pictures, resnet
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
from groundling.data.images import read_image
from groundling.data.regions import RegionStore
from groundling.data.regions.samples import RegionDataset, RegionOptions, add_whole_image
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.attention import AttentionMap
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import PixelInputSettings
from groundling.tasks.vqa import VQA
from groundling.vision_language.end_to_end import EndToEndModel, make_end_to_end_model, mask_boxes
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
    row = add_whole_image(
        replace(
            toys.regions(number, count, width=0), boxes=BOXES[:count]
        )  # features are made by the model
    )
    row = replace(row, masked=np.isin(np.arange(count + 1), masked))
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
    assert batch.pixels is not None
    expected = model(batch)
    inside, outside = batch.pixels.clone(), batch.pixels.clone()
    inside[:, :, 16:64, 40:80] = (
        255 - inside[:, :, 16:64, 40:80]
    )  # 0.25..1 of 64 down, 0.5..1 of 80 across
    assert torch.equal(model(replace(batch, pixels=inside)).text, expected.text)
    assert torch.equal(model(replace(batch, pixels=inside)).visual, expected.visual)
    outside[:, :, :15, 41:] = 255 - outside[:, :, :15, 41:]
    assert (model(replace(batch, pixels=outside)).visual - expected.visual).abs().max() > 1e-3
    shown = replace(batch, regions=replace(batch.regions, masked=None))
    assert (model(shown).visual - expected.visual).abs().max() > 1e-3


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
    assert batch.pixels is not None and batch.regions is not None
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
        x, y = 6 * (x1 + (x2 - x1) * grid), 4 * (y1 + (y2 - y1) * grid)
        at = torch.stack(
            [(2 * x / 6 - 1).expand(28, 28), (2 * y / 4 - 1)[:, None].expand(28, 28)], -1
        )
        crop = nn.functional.grid_sample(
            hidden, at[None], padding_mode="border", align_corners=False
        )
        head = model.cnn.encoder.stages[3](nn.functional.avg_pool2d(crop, 2))
        close(found[0, r], head.mean((0, 2, 3)), rtol=1e-4, atol=1e-5)
    for conv in (
        part for part in model.cnn.encoder.stages[3].modules() if isinstance(part, nn.Conv2d)
    ):
        assert conv.stride == (1, 1) and conv.dilation == (
            (2, 2) if conv.kernel_size == (3, 3) else (1, 1)
        )


@torch.no_grad()
def test_cover_leaves_out_what_is_no_part_of_an_object(models: dict[str, EndToEndModel]) -> None:
    model, plain = models["basic"], sample(0, 64, 48)
    half = np.ones((3, 14, 14), bool)
    half[1, :, 7:] = False
    covered = replace(plain, regions=replace(plain.regions, segmentation=half))
    batch = collate(
        [
            covered,
            replace(
                sample(1, 64, 48),
                regions=replace(sample(1, 64, 48).regions, segmentation=np.ones((4, 14, 14), bool)),
            ),
        ]
    )
    assert batch.regions is not None and batch.regions.segmentation is not None
    assert (
        batch.regions.segmentation.shape == (2, 4, 14, 14)
        and not batch.regions.segmentation[0, 3].any()
    )
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
    batch = collate(several)
    assert batch.pixels is not None and len(batch.pixels) == 2
    hook = model.cnn.embedder.register_forward_hook(lambda *_: calls.append(1))
    found = model(batch)
    hook.remove()
    assert len(calls) == 2 and len(found.text) == 6
    for b, one in enumerate(several):
        for c, choice in enumerate(one.choices):
            alone = model(collate([replace(choice, pixels=one.pixels)]))
            close(
                found.visual[3 * b + c, : alone.visual.shape[1]], alone.visual[0], rtol=0, atol=1e-5
            )


def test_what_learns(model: EndToEndModel) -> None:
    before = {k: v.clone() for k, v in model.cnn.state_dict().items()}
    model.train()
    assert not any(part.training for part in model.cnn.modules()) and model.text.training
    out = model(collate([sample(0, 64, 48, (1,)), sample(1, 48, 64)]))
    (out.text.pow(3).sum() + out.visual.pow(3).sum()).backward()
    for name, parameter in model.cnn.named_parameters():
        learns = (
            name.startswith(("encoder.stages.1", "encoder.stages.2", "encoder.stages.3"))
            and "norm" not in name
        )
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
    assert (
        isinstance(again, EndToEndModel)
        and again.side == 64
        and again.reads_whole_image
        and again.sizes._replace(config=None) == model.sizes._replace(config=None)
    )
    for one in (batch, replace(batch, regions=None, pixels=None, image_sizes=None)):
        found, expected = again(one), model(one)
        assert torch.equal(found.text, expected.text)
        assert found.visual is expected.visual is None or torch.equal(found.visual, expected.visual)
    stock, report = ResNetModel.from_pretrained(tmp_path / "cnn", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert sum(p.numel() for p in stock.parameters()) == sum(
        p.numel() for p in model.cnn.parameters()
    )
    assert json.loads((tmp_path / "cnn" / "preprocessor_config.json").read_text())[
        "image_mean"
    ] == [0.4, 0.5, 0.6]
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
    with torch.device("meta"):
        bert = BertModel(BertConfig(type_vocab_size=3), add_pooling_layer=False)
        sizes = OutputSizes(text=768, visual=768, input_embeddings=(30522, 768), classes=1601)
        heads = [
            MaskedLM(sizes, mask_id=103, replacements=np.arange(5)),
            MaskedRegionModeling(sizes),
        ]
        parts = nn.ModuleList([bert, VLBertEmbeddings(bert, pixels=True), *heads])
        cnn = ResNetModel(ResNetConfig(depths=[3, 4, 23, 3]))
    assert sum(p.numel() for p in parts.parameters()) == 114489467
    assert sum(p.numel() for p in cnn.parameters()) == 42500160


# -- data and whole runs ---------------------------------------------------------------------------------------------


def test_pictures_are_scaled_whole(tmp_path: Path) -> None:
    store(tmp_path / "store", ["wide", "deep/high", "lost"], width=12)
    for name, size in (("wide.png", (300, 100)), ("deep/high.jpg", (30, 40))):
        homes.picture(tmp_path / "images" / name, size=size)
    put = RegionStore(tmp_path / "store", features=False)
    assert put.width == 0 and put["wide"].features.shape == (len(put["wide"].boxes), 0)

    def samples(*images: str, longest_edge: int = 0) -> PixelDataset:
        texts = TextDataset(
            [Example("t", "a dog", images=images)], TextRowEncoder(toys.bert_words(), 8)
        )
        seen = RegionDataset(texts, put, RegionOptions(whole_image=True))
        return PixelDataset(seen, tmp_path / "images", 60, longest_edge)

    found = {image: samples(image).get([0], ())[0] for image in ("wide", "deep/high")}
    assert {image: s.pixels.shape for image, s in found.items()} == {
        "wide": (3, 33, 100),
        "deep/high": (3, 80, 60),
    }
    for most, sides in ((120, (40, 120)), (1000, (60, 180))):
        (one,) = samples("wide", longest_edge=most).get([0], ())
        assert one.pixels is not None and one.pixels.shape[1:] == sides
    assert (found["wide"].pixels == np.array([200, 30, 30])[:, None, None]).all()
    assert len(samples("wide")) == 1 and samples("wide").ids == ["t"]
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
    out = tmp_path_factory.mktemp("runs") / "pretrained"
    result = pretrain(settings, TWO, out)
    assert (result["architecture"], result["objectives"]) == (
        "vlbert",
        ["masked_lm", "masked_regions"],
    )
    model = load_encoder(out / "model")
    assert result["parameters"] == sum(p.numel() for p in model.parameters())
    assert (model.side, model.join.mask_visual) == (40, None)
    return out / "model"


def test_pretraining_goes_on_from_an_end_to_end_model(
    settings: PretrainConfig, place: Path, trained: Path, tmp_path: Path
) -> None:
    first = ResNetModel.from_pretrained(place / "resnet").state_dict()
    second = ResNetModel.from_pretrained(trained / "cnn").state_dict()
    assert not torch.equal(
        *(cnn["encoder.stages.3.layers.0.layer.1.convolution.weight"] for cnn in (first, second))
    )
    assert torch.equal(*(cnn["embedder.embedder.convolution.weight"] for cnn in (first, second)))
    config = replace(settings, model=str(trained), text=(str(place / "text.txt"),))
    result = pretrain(config, TWO, tmp_path / "again")
    assert result["left_out"] == 0 and len(log_of(tmp_path / "again")) == 2


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


def test_finetuning_needs_the_pictures(asked: FinetuneConfig, tmp_path: Path) -> None:
    result = finetune(asked, TWO, tmp_path / "seen")
    assert result["scores"]["val"]
    assert isinstance(load_encoder(tmp_path / "seen" / "seed-0" / "model"), EndToEndModel)
    homes.student(tmp_path / "bert")
    for change, message in (
        ({"images": ""}, "pass images"),
        ({"regions": ""}, "needs regions; pass regions=STORE"),
        ({"model": str(tmp_path / "bert")}, "this model reads none"),
        ({"images": str(tmp_path / "none")}, "none: no such file or folder"),
    ):
        with pytest.raises(InputError, match=message):
            finetune(replace_settings(asked, **change), TWO, tmp_path / "no")


def test_a_blind_model_sees_no_pixels(asked: FinetuneConfig, place: Path, tmp_path: Path) -> None:
    """B4: a blind end-to-end model used to answer bit by bit as the seeing one."""
    seen = place / "images-vqa"
    for number, picture in enumerate(sorted(seen.iterdir())):  # the same files, other colours
        with Image.open(picture) as image:
            homes.picture(tmp_path / picture.name, (9 * number, 90, 20), image.size)
    answers = []
    for blind in (False, True):
        for images in (seen, tmp_path):
            config = replace_settings(asked, zero_region_features=blind, images=str(images))
            out = tmp_path / f"out{len(answers)}"
            finetune(config, TWO, out)
            answers.append(homes.answers(out / "seed-0" / "predictions_val.jsonl"))
    one, other, one_blind, other_blind = answers
    assert one != other and one != one_blind and one_blind == other_blind


def test_related_images_are_exchanged_with_their_pixels(
    settings: PretrainConfig, tmp_path: Path
) -> None:
    """B3: a whole run, in which a picture of another size comes with the boxes of its own image."""
    result = pretrain(replace_settings(settings, related=True), TWO, tmp_path)
    assert "sentence_image" in result["objectives"]


def test_mistakes_are_named(
    settings: PretrainConfig, trained: Path, place: Path, tmp_path: Path
) -> None:
    resnet(tmp_path / "deep", depths=[1, 1, 1, 1, 1], hidden_sizes=[8, 8, 16, 16, 16])
    pictures(tmp_path / "few", ["000"])
    no_pixels = {"images": "", "backbone": PixelInputSettings().backbone, "shortest_edge": 0}
    for change, message in (
        (
            {"architecture": "uniter"},
            "uniter reads stored features; leave images out",
        ),
        (
            {"model": str(trained), **no_pixels},
            "model: this model reads pixels",
        ),
        ({"backbone": str(place / "bert")}, "bert: expected a ResNet with four stages"),
        ({"backbone": str(tmp_path / "deep")}, "deep: expected a ResNet with"),
        ({"images": str(tmp_path / "few")}, "few: 5 images .* '001'"),
    ):
        with pytest.raises(InputError, match=message):
            pretrain(replace_settings(settings, **change), TWO, tmp_path / "out")
    stored = pretrain(
        replace_settings(settings, **no_pixels), TWO, tmp_path / "stored"
    )  # the same without a CNN
    config = make_settings(
        FinetuneConfig,
        model=str(tmp_path / "stored" / "model"),
        task="vqa",
        data=str(vqa(tmp_path / "vqa")),
        regions=str(place / "store"),
        images=str(place / "images"),
    )
    assert stored["architecture"] == "vlbert"
    with pytest.raises(InputError, match="no pixels; leave out"):
        finetune(config, TWO, tmp_path / "tuned")


def test_a_grey_picture_of_16_bits_is_not_white(tmp_path: Path) -> None:
    grey = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
    Image.fromarray(grey).save(tmp_path / "8.png")
    Image.fromarray(grey.astype(np.uint16) * 257).save(tmp_path / "16.png")
    eight, sixteen = (np.asarray(read_image(tmp_path / f"{bits}.png")) for bits in (8, 16))
    np.testing.assert_array_equal(sixteen, eight)
    Image.fromarray(grey.astype(np.float32)).save(tmp_path / "fractions.tiff")
    with pytest.raises(InputError, match="its pixels have fractions"):
        read_image(tmp_path / "fractions.tiff")
