"""The sigmoid loss: transformers' own for SigLIP, with gradients; captions of one image are no negatives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import homes, toys
from transformers import AutoModel, SiglipImageProcessorPil

import groundling
from groundling.core.batch import Example, collate
from groundling.data.samples import ClipRowEncoder, TextDataset
from groundling.models.clip import ClipDualEncoder
from groundling.objectives.contrastive import SigmoidContrastiveLoss


def batch_of(towers: ClipDualEncoder, images: list[int]):
    rows = ClipRowEncoder(towers.tokenizer, toys.WINDOW, 1)
    texts = [Example(str(n), text) for n, text in enumerate(toys.sentences()[: len(images)])]
    batch = collate(TextDataset(texts, None, rows).get(range(len(images))))
    pixels = torch.randint(
        0, 255, (len(images), 3, 16, 16), generator=torch.Generator().manual_seed(0)
    )
    return replace(batch, pixels=pixels.byte(), labels={"image": torch.tensor(images)})


@pytest.fixture
def towers(siglip, siglip_tokenizer) -> ClipDualEncoder:
    side = {"height": 16, "width": 16}
    return ClipDualEncoder(siglip, siglip_tokenizer, SiglipImageProcessorPil(size=side))


def test_loss_and_gradients_are_transformers_own(towers) -> None:
    batch = batch_of(towers, [0, 1, 2, 3])
    loss = SigmoidContrastiveLoss(towers.sizes)
    found = loss(towers(batch), batch)["clip"] / loss.count(batch)["clip"]
    found.backward()
    ours = {name: value.grad.clone() for name, value in towers.clip.named_parameters()}
    towers.zero_grad()
    ids = torch.nn.functional.pad(
        batch.clip.input_ids, (0, toys.WINDOW - batch.clip.input_ids.shape[1])
    )
    pixels = (batch.pixels / 255 - towers.mean) / towers.std
    expected = towers.clip(input_ids=ids, pixel_values=pixels, return_loss=True).loss
    expected.backward()
    torch.testing.assert_close(found, expected)
    for name, value in towers.clip.named_parameters():
        torch.testing.assert_close(ours[name], value.grad, rtol=1e-4, atol=1e-6)


def test_captions_of_one_image_are_no_negatives(towers) -> None:
    batch = batch_of(towers, [0, 1, 0])
    encoded = towers(batch)
    logits = encoded.scale * encoded.text_embeds @ encoded.image_embeds.T + encoded.bias
    terms = -torch.nn.functional.logsigmoid(torch.where(torch.eye(3).bool(), logits, -logits))
    kept = terms.sum() - terms[0, 2] - terms[2, 0]
    found = SigmoidContrastiveLoss(towers.sizes)(encoded, batch)["clip"]
    torch.testing.assert_close(found, kept)


@pytest.mark.parametrize("start", ["new", "siglip"])
def test_train_clip_with_the_sigmoid_loss(start: str, towers, tmp_path: Path) -> None:
    images = [(number, f"{number}.png") for number in range(8)]
    for number, name in images:
        homes.noise(tmp_path / "photos" / name, (16, 16), number)
    sentences = toys.sentences()
    captions = homes.coco(tmp_path / "a.json", images, [(n, sentences[n]) for n in range(8)])
    given = {"loss": "sigmoid", "size": 16, "patch_size": 8}
    if start == "siglip":
        towers.export(tmp_path / "siglip")
        given = {"model": tmp_path / "siglip", "flip": False, "max_shift": 0.0}
    result = groundling.train_clip(
        captions=captions,
        images=tmp_path / "photos",
        out=tmp_path / "out",
        steps=3,
        batch=8,
        **given,
    )
    trained = AutoModel.from_pretrained(tmp_path / "out/model")
    assert trained.config.model_type == ("siglip" if start == "siglip" else "clip")
    assert 0 < result["train_metrics"]["clip"] < 20
    if start == "siglip":
        assert not torch.equal(trained.logit_bias, towers.clip.logit_bias)
