"""SimCSE, MCSE and LexiContrastive Grounding: their losses in plain loops, pooling, windows and draws."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys
from tiny.homes import STEPS, log_of
from tiny.objectives import captioned_run, tokens_of
from torch import Tensor, nn
from transformers import AutoModel, SiglipImageProcessorPil

import groundling
from groundling.commands.adapt import COMMAND as adapt
from groundling.core.batch import IGNORE, Batch, EncoderOutput, Example, OutputSizes, collate
from groundling.core.errors import InputError
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder
from groundling.models.clip import ClipDualEncoder
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.objectives.contrastive import (
    ClipContrastiveLoss,
    SigmoidContrastiveLoss,
    pool_sentences,
)
from groundling.objectives.lexi_contrastive import LexiContrastiveGrounding
from groundling.objectives.mcse import MCSE, SimCSE
from groundling.settings.fields import replace_settings
from groundling.training.cached_negatives import join_micro_batches

TO_IMAGE, TO_TEXT = "lexi_contrastive_to_image", "lexi_contrastive_to_text"
TWO = OutputSizes(text=2, teacher_image=2)


def batch_of(mask: Tensor, images: Tensor, **labels: Tensor) -> Batch:
    """A batch whose tokens are drawn in their order."""
    draws = torch.arange(mask.numel()).view_as(mask)
    return Batch(
        tuple(str(number) for number in range(len(mask))),
        text=tokens_of(mask.long()),
        labels={"lexi_contrastive": draws.where(mask, IGNORE), **labels},
        features={"clip_image": images},
    )


def plain(**options: Any) -> LexiContrastiveGrounding:
    """An objective whose projections change no direction, with a scale of 1."""
    made = LexiContrastiveGrounding(TWO, **options)
    with torch.no_grad():
        made.scale.zero_()
        nn.init.eye_(made.pool_image.weight)
        nn.init.zeros_(made.pool_image.bias)
        nn.init.eye_(made.project_image.weight)
        nn.init.eye_(made.project_text.weight)
    return made


def encoded(states: Tensor) -> EncoderOutput:
    return EncoderOutput(text=states, encode_again=lambda mask=None, layers=None: states)


STATES = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], [[0.0, 2.0], [0.8, 0.6], [1.0, 0.0]]])
"""Caption 0 has three tokens; caption 1 has two, and a padding that looks like image 0."""
MASK = torch.tensor([[True, True, True], [True, True, False]])
IMAGES = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


# -- LexiContrastive Grounding: the loss -------------------------------------------------------------------------------
def unit(vector: np.ndarray) -> np.ndarray:
    return vector / math.sqrt((vector**2).sum())


def by_loops(
    objective: LexiContrastiveGrounding,
    states: np.ndarray,
    images: np.ndarray,
    there: np.ndarray,
    compared: np.ndarray,
) -> tuple[float, float]:
    """Both sums, one token and one number at a time."""
    weights = {
        name: value.detach().double().numpy() for name, value in objective.named_parameters()
    }
    scale = math.exp(weights["scale"])
    rows, length = there.shape

    seen = []
    for image in images:
        pooled = np.tanh(weights["pool_image.weight"] @ image + weights["pool_image.bias"])
        seen.append(unit(weights["project_image.weight"] @ pooled))
    said = [[unit(weights["project_text.weight"] @ state) for state in row] for row in states]
    to_image = to_text = 0.0
    for row in range(rows):
        for place in range(length):
            if not compared[row, place]:
                continue
            over = sum(math.exp(scale * said[row][place] @ image) for image in seen)
            own = scale * said[row][place] @ seen[row]
            to_image += math.log(over) - own
            image = seen[row]
            if objective.settings.lcg_image_to_text == "released":
                image = seen[(row * length + place) % rows]
            own = scale * said[row][place] @ image
            over = math.exp(own)
            for other in range(rows):
                for j in range(length):
                    if other != row and (
                        there[other, j] or objective.settings.lcg_negatives == "released"
                    ):
                        over += math.exp(scale * said[other][j] @ image)
            to_text += math.log(over) - own
    return to_image, to_text


@pytest.mark.parametrize("negatives", ["tokens", "released"])
@pytest.mark.parametrize("image_to_text", ["standard", "released"])
def test_the_loss_in_plain_loops(negatives: Any, image_to_text: Any) -> None:
    rng = np.random.default_rng(1)
    states, images = rng.normal(size=(4, 6, 5)), toys.unit(rng.normal(size=(4, 3)))
    there = np.arange(6) < np.array([[6], [2], [4], [5]])
    torch.manual_seed(2)
    objective = LexiContrastiveGrounding(
        OutputSizes(text=5, teacher_image=3),
        lcg_negatives=negatives,
        lcg_image_to_text=image_to_text,
    )
    assert objective.scale.exp().item() == pytest.approx(1 / 0.07)
    batch = batch_of(torch.from_numpy(there), torch.from_numpy(images))
    found = objective(encoded(torch.from_numpy(states).float()), batch)
    to_image, to_text = by_loops(objective, states, images.astype(float), there, there)
    assert found[TO_IMAGE].item() == pytest.approx(to_image, rel=1e-4)
    assert found[TO_TEXT].item() == pytest.approx(to_text, rel=1e-4)


def test_a_caption_alone_has_no_loss() -> None:
    one = batch_of(MASK[:1], IMAGES[:1])
    states = STATES[:1].clone().requires_grad_()
    found = plain()(encoded(states), one)
    sum(found.values()).backward()
    assert [value.item() for value in found.values()] == [0, 0]
    assert states.grad is not None and states.grad.isfinite().all()


# -- which tokens ------------------------------------------------------------------------------------------------------
def test_at_most_so_many_tokens_are_compared_and_all_are_negatives() -> None:
    batch = batch_of(MASK, IMAGES)
    drawn = torch.tensor([[5, 1, 4], [9, 2, IGNORE]])
    batch = replace(batch, labels={"lexi_contrastive": drawn})
    few = plain(lcg_positions=2)
    assert few.count(batch) == {TO_IMAGE: 2, TO_TEXT: 2}
    compared = np.array([[False, True, False], [False, True, False]])
    to_image, to_text = by_loops(few, STATES.numpy(), IMAGES.numpy(), MASK.numpy(), compared)
    found = few(encoded(STATES), batch)
    assert found[TO_IMAGE].item() == pytest.approx(to_image, rel=1e-5)
    assert found[TO_TEXT].item() == pytest.approx(to_text, rel=1e-5)


def test_a_masked_token_takes_no_part() -> None:
    labels = torch.full(MASK.shape, IGNORE)
    labels[0, 1] = 7
    batch = batch_of(MASK, IMAGES, masked_lm=labels)
    there = MASK.numpy() & (labels == IGNORE).numpy()
    for negatives in ("tokens", "released"):
        objective = plain(lcg_negatives=negatives)
        assert objective.count(batch) == {TO_IMAGE: 4, TO_TEXT: 4}
        states = STATES.clone().requires_grad_()
        sum(objective(encoded(states), batch).values()).backward()
        assert states.grad is not None and not states.grad[0, 1].any()
    to_image, to_text = by_loops(plain(), STATES.numpy(), IMAGES.numpy(), there, there)
    found = plain()(encoded(STATES), batch)
    assert found[TO_IMAGE].item() == pytest.approx(to_image, rel=1e-5)
    assert found[TO_TEXT].item() == pytest.approx(to_text, rel=1e-5)


# -- the window --------------------------------------------------------------------------------------------------------
def test_windows_by_hand() -> None:
    batch = batch_of(torch.tensor([[True, True, True, False]]), torch.ones(1, 2))

    def rows(attention: Any) -> list[str]:
        window = plain(lcg_attention=attention)._window(batch)
        assert window is not None
        return ["".join("x" if cell else "." for cell in row) for row in window[0].tolist()]

    assert rows("causal") == ["x...", "xx..", ".xx.", "..x."]
    assert rows("bidirectional") == ["xx..", "xxx.", ".xx.", "..x."]
    assert plain(lcg_attention="full")._window(batch) is None


@pytest.mark.parametrize(
    ("attention", "layer", "reach"),
    [
        ("causal", 2, {5, 6, 7}),
        ("bidirectional", 1, {4, 5, 6}),
        ("full", 1, set(range(12))),
    ],
)
def test_which_tokens_a_token_changes(attention: Any, layer: int, reach: set[int]) -> None:
    """Token 5 of a text is replaced: these states of the layer are other ones."""
    words = toys.bert_words()
    model = TextEncoder(toys.bert(len(words)), words).eval()
    model.return_layers()
    samples = TextDataset(toys.examples(1), TextRowEncoder(words, 12))
    batch = collate(samples.get([0]))
    assert batch.text is not None and batch.text.attention_mask.sum() == 12
    ids = batch.text.input_ids.clone()
    ids[0, 5] = 30 if ids[0, 5] != 30 else 31
    other = replace(batch, text=replace(batch.text, input_ids=ids))
    window = plain(lcg_attention=attention)._window(batch)
    with torch.no_grad():
        before, after = (model(each).encode_again(window, layer) for each in (batch, other))
    changed = (before - after).abs().amax(-1)[0] > 1e-5
    assert set(changed.nonzero().flatten().tolist()) == reach


# -- whole runs --------------------------------------------------------------------------------------------------------
def test_texts_without_images_train_masked_lm_alone(tmp_path: Path) -> None:
    config = captioned_run(tmp_path, "mlm+lexi_contrastive", texts=16)
    result = adapt(config, replace(STEPS, steps=4), tmp_path / "run")
    assert result["loss_weights"] == {"mlm": 1, TO_IMAGE: 0.3, TO_TEXT: 0.3}
    both = [TO_IMAGE in line for line in log_of(tmp_path / "run")]
    assert any(both) and not all(both)
    assert not [note for note in result.get("notes", ()) if "has no effect" in note]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lcg_layer": 3}, "lexi_contrastive, lcg_layer: layer 3: this encoder has 2 layers"),
        ({"teacher_images": ""}, "needs teacher_images=FOLDER"),
    ],
)
def test_what_a_run_refuses(change: dict[str, Any], told: str, tmp_path: Path) -> None:
    config = captioned_run(tmp_path, "lexi_contrastive")
    with pytest.raises(InputError, match=told):
        adapt(replace_settings(config, **change), STEPS, tmp_path / "run")


# -- SimCSE and MCSE ---------------------------------------------------------------------------------------------------
def texts_of(rows: int, images: Tensor | None = None, kinds: Tensor | None = None) -> Batch:
    text = tokens_of(torch.ones(rows, 3) if kinds is None else kinds)
    features = {} if images is None else {"clip_image": images}
    return Batch(tuple(map(str, range(rows))), text=text, features=features)


def twice(one: Tensor, two: Tensor, **fields: Any) -> EncoderOutput:
    """Two passes whose first states are these (N, D)."""
    first, second = (torch.stack([each] * 3, 1) for each in (one, two))
    return EncoderOutput(text=first, encode_again=lambda *_: second, **fields)


def direct(kind: type[SimCSE] | type[MCSE], **options: Any) -> Any:
    """An objective whose layers change no direction along an axis; tanh keeps such directions."""
    made = kind(TWO, **options)
    for layer in made.modules():
        if isinstance(layer, nn.Linear):
            nn.init.eye_(layer.weight)
            nn.init.zeros_(layer.bias)
    return made


def equal_share(cosines: list[list[float]], temperature: float) -> float:
    """Sum over rows of the cross-entropy of the diagonal."""
    total = 0.0
    for number, row in enumerate(cosines):
        total += math.log(sum(math.exp(value / temperature) for value in row))
        total -= row[number] / temperature
    return total


ONE = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
OTHER = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
"""The second pass; text 1 lies between both axes, at a cosine of .70711."""


def through(objective: nn.Module, layer: str, vectors: np.ndarray) -> list[np.ndarray]:
    weights = {
        name: value.detach().double().numpy() for name, value in objective.named_parameters()
    }
    weight, bias = weights[f"{layer}.weight"], weights[f"{layer}.bias"]
    return [unit(np.tanh(weight @ vector + bias)) for vector in vectors]


def test_simcse_in_plain_loops() -> None:
    rng = np.random.default_rng(1)
    one, two = rng.normal(size=(2, 6, 5))
    torch.manual_seed(2)
    objective = SimCSE(OutputSizes(text=5), simcse_temperature=0.1)
    anchors = through(objective, "project", one)
    others = through(objective, "project", two)
    expected = equal_share([[a @ b for b in others] for a in anchors], 0.1)
    views = [torch.from_numpy(each).float() for each in (one, two)]
    found = objective(twice(*views), texts_of(6))["simcse"]
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_mcse_in_plain_loops() -> None:
    rng = np.random.default_rng(3)
    one, two = rng.normal(size=(2, 6, 5))
    images = toys.unit(rng.normal(size=(6, 4)))
    torch.manual_seed(4)
    objective = MCSE(OutputSizes(text=5, teacher_image=4))
    assert objective.project_text.out_features == objective.project_image.out_features == 256
    seen = through(objective, "project_image", images.astype(float))
    expected = 0.0
    for view in (one, two):
        said = through(objective, "project_text", view)
        expected += equal_share([[a @ b for b in seen] for a in said], 0.05) / 2
    views = [torch.from_numpy(each).float() for each in (one, two)]
    found = objective(twice(*views), texts_of(6, torch.from_numpy(images)))["mcse"]
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_mcse_reads_the_second_pass_of_simcse() -> None:
    images = torch.eye(2)
    objective = direct(MCSE, mcse_temperature=1.0)
    shared = replace(twice(ONE, -OTHER), heads={"simcse": OTHER})
    alone = objective(twice(ONE, OTHER), texts_of(2, images))
    assert objective(shared, texts_of(2, images)) == alone
    simcse = direct(SimCSE, simcse_temperature=1.0)
    assert torch.equal(simcse.compute_logits(twice(ONE, OTHER), texts_of(2)), OTHER)
    assert simcse.count_logits(texts_of(2)) == 2


# -- pooling and dropout -----------------------------------------------------------------------------------------------
def test_the_mean_leaves_out_special_tokens_and_padding() -> None:
    states = torch.arange(12.0).view(2, 3, 2)
    batch = texts_of(2, kinds=torch.tensor([[2, 1, 1], [2, 1, 0]]))
    output = EncoderOutput(text=states, encode_again=lambda *_: 2 * states)
    expected = torch.tensor([[3.0, 4.0], [8.0, 9.0]])
    assert torch.equal(pool_sentences(output, batch, OutputSizes(), "mean", "x"), expected)
    again = SimCSE(TWO, pooling="mean").second_pass(output, batch)
    assert torch.equal(again, 2 * expected)
    assert torch.equal(pool_sentences(output, batch, OutputSizes(), "cls", "x"), states[:, 0])
    assert torch.equal(pool_sentences(output, batch, OutputSizes(), "own", "x"), states[:, 0])


def test_a_sentence_encoder_pools_both_passes_itself(tmp_path: Path) -> None:
    model = load_text_encoder(homes.sentence_encoder(tmp_path / "student", mode="max")).eval()
    samples = TextDataset(toys.examples(3), TextRowEncoder(model.tokenizer, 40))
    batch = collate(samples.get(range(3)))
    model.return_layers()
    with torch.no_grad():
        output = model(batch)
        one = pool_sentences(output, batch, model.sizes, "own", "x")
        two, first = (
            SimCSE(model.sizes, pooling=pooling).second_pass(output, batch)
            for pooling in ("own", "cls")
        )
    assert output.sentence_embedding is not None
    torch.testing.assert_close(one, output.sentence_embedding)
    torch.testing.assert_close(two, one)
    assert not torch.allclose(first, one)


def test_passes_without_dropout_are_refused_in_training_alone() -> None:
    objective = direct(SimCSE)
    with pytest.raises(InputError, match="simcse: the student has no dropout; pass dropout"):
        objective(twice(ONE, ONE), texts_of(2))
    objective.eval()(twice(ONE, ONE), texts_of(2))
    objective.train()(twice(ONE, OTHER), texts_of(2))
    assert objective(twice(ONE, ONE), texts_of(2)), "only the first step looks"


def test_simcse_needs_no_teacher(tmp_path: Path) -> None:
    config = captioned_run(tmp_path, "simcse", teacher="", teacher_images="")
    assert set(adapt(config, STEPS, tmp_path / "run")["train_metrics"]) == {"loss", "simcse"}


# -- SigLIP's loss -----------------------------------------------------------------------------------------------------
def captioned_batch(towers: ClipDualEncoder, images: list[int]):
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
    batch = captioned_batch(towers, [0, 1, 2, 3])
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
    batch = captioned_batch(towers, [0, 1, 0])
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


@pytest.mark.parametrize("kind", [ClipContrastiveLoss, SigmoidContrastiveLoss])
def test_a_batch_of_4096_in_micro_batches_of_32(kind, monkeypatch) -> None:
    """Loss and gradients of one batch in float64, with heads alone."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.manual_seed(0)
    features = torch.randn(2, 4096, 6, dtype=torch.double)
    numbers = torch.arange(4096) // 2 * 2  # two captions an image
    heads = torch.randn(2, 6, 4, dtype=torch.double, requires_grad=True)
    scale, bias = (torch.tensor(x, dtype=torch.double, requires_grad=True) for x in (5.0, -2.0))
    leaves = [heads, scale, bias] if kind is SigmoidContrastiveLoss else [heads, scale]
    objective = kind(OutputSizes())

    def encode(places: slice) -> EncoderOutput:
        text, image = torch.nn.functional.normalize(features[:, places] @ heads, dim=-1)
        return EncoderOutput(text_embeds=text, image_embeds=image, scale=scale, bias=bias)

    def batch(places: slice) -> Batch:
        named = numbers[places]
        return Batch(tuple(map(str, named.tolist())), labels={"image": named})

    whole = objective(encode(slice(4096)), batch(slice(4096)))["clip"]
    expected = torch.autograd.grad(whole, leaves)
    parts = [slice(start, start + 32) for start in range(0, 4096, 32)]
    batches = [batch(part) for part in parts]
    with torch.no_grad():
        encoded = [encode(part) for part in parts]
    passes = join_micro_batches(
        objective, encoded, batches, range(len(parts)), lambda terms: terms["clip"]
    )
    total = torch.zeros((), dtype=torch.double)
    for one, part, its in zip(passes, parts, batches, strict=True):
        with one.run():
            loss = objective(encode(part), its)["clip"]
        rows, gradients = zip(*one.cached_gradients(), strict=True)
        torch.autograd.backward((loss, *rows), (torch.ones_like(loss), *gradients))
        total += loss.detach()
    torch.testing.assert_close(total, whole.detach(), rtol=1e-12, atol=0)
    for leaf, gradient in zip(leaves, expected, strict=True):
        torch.testing.assert_close(leaf.grad, gradient, rtol=1e-10, atol=1e-12 * float(whole))
