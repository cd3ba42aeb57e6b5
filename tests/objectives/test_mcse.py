"""SimCSE and MCSE: both losses in plain loops, pooling and dropout."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys
from tiny.homes import STEPS
from tiny.objectives import captioned_run, tokens_of
from torch import Tensor, nn

from groundling.commands.adapt import COMMAND as adapt
from groundling.core.batch import Batch, EncoderOutput, OutputSizes, collate
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import load_text_encoder
from groundling.objectives.contrastive import pool_sentences
from groundling.objectives.mcse import MCSE, SimCSE, pool_again

TWO = OutputSizes(text=2, teacher_image=2)


def batch_of(rows: int, images: Tensor | None = None, kinds: Tensor | None = None) -> Batch:
    text = tokens_of(torch.ones(rows, 3) if kinds is None else kinds)
    features = {} if images is None else {"clip_image": images}
    return Batch(tuple(map(str, range(rows))), text=text, features=features)


def encoded(one: Tensor, two: Tensor, **fields: Any) -> EncoderOutput:
    """Two passes whose first states are these (N, D)."""
    first, second = (torch.stack([each] * 3, 1) for each in (one, two))
    return EncoderOutput(text=first, encode_again=lambda *_: second, **fields)


def plain(kind: type[SimCSE] | type[MCSE], **options: Any) -> Any:
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


# -- the losses --------------------------------------------------------------------------------------------------------

ONE = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
OTHER = torch.tensor([[3.0, 0.0], [1.0, 1.0]])
"""The second pass; text 1 lies between both axes, at a cosine of .70711."""


def unit(vector: np.ndarray) -> np.ndarray:
    return vector / math.sqrt((vector**2).sum())


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
    found = objective(encoded(*views), batch_of(6))["simcse"]
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
    found = objective(encoded(*views), batch_of(6, torch.from_numpy(images)))["mcse"]
    assert found.item() == pytest.approx(expected, rel=1e-4)


def test_mcse_reads_the_second_pass_of_simcse() -> None:
    images = torch.eye(2)
    objective = plain(MCSE, mcse_temperature=1.0)
    shared = replace(encoded(ONE, -OTHER), heads={"simcse": OTHER})
    alone = objective(encoded(ONE, OTHER), batch_of(2, images))
    assert objective(shared, batch_of(2, images)) == alone
    simcse = plain(SimCSE, simcse_temperature=1.0)
    assert torch.equal(simcse.compute_logits(encoded(ONE, OTHER), batch_of(2)), OTHER)
    assert simcse.count_logits(batch_of(2)) == 2


# -- pooling and dropout -----------------------------------------------------------------------------------------------


def test_the_mean_leaves_out_special_tokens_and_padding() -> None:
    states = torch.arange(12.0).view(2, 3, 2)
    batch = batch_of(2, kinds=torch.tensor([[2, 1, 1], [2, 1, 0]]))
    output = EncoderOutput(text=states, encode_again=lambda *_: 2 * states)
    expected = torch.tensor([[3.0, 4.0], [8.0, 9.0]])
    assert torch.equal(pool_sentences(output, batch, OutputSizes(), "mean", "x"), expected)
    assert torch.equal(pool_again(output, batch, "mean", "x"), 2 * expected)
    assert torch.equal(pool_sentences(output, batch, OutputSizes(), "cls", "x"), states[:, 0])
    assert torch.equal(pool_sentences(output, batch, OutputSizes(), "own", "x"), states[:, 0])


def test_a_sentence_encoder_pools_both_passes_itself(tmp_path: Path) -> None:
    model = load_text_encoder(homes.sentence_encoder(tmp_path / "student", mode="max")).eval()
    samples = TextDataset(toys.examples(3), TextRowEncoder(model.tokenizer, 40))
    batch = collate(samples.get(range(3)))
    assert model(batch).pool_states is None
    model.return_layers()
    with torch.no_grad():
        output = model(batch)
        one = pool_sentences(output, batch, model.sizes, "own", "x")
        two = pool_again(output, batch, "own", "x")
        first = pool_again(output, batch, "cls", "x")
    assert output.sentence_embedding is not None
    torch.testing.assert_close(one, output.sentence_embedding)
    torch.testing.assert_close(two, one)
    assert not torch.allclose(first, one)


def test_passes_without_dropout_are_refused_in_training_alone() -> None:
    objective = plain(SimCSE)
    with pytest.raises(InputError, match="simcse: the student has no dropout; pass dropout"):
        objective(encoded(ONE, ONE), batch_of(2))
    objective.eval()(encoded(ONE, ONE), batch_of(2))
    objective.train()(encoded(ONE, OTHER), batch_of(2))
    assert objective(encoded(ONE, ONE), batch_of(2)), "only the first step looks"


def test_simcse_needs_no_teacher(tmp_path: Path) -> None:
    config = captioned_run(tmp_path, "simcse", teacher="", teacher_images="")
    assert set(adapt(config, STEPS, tmp_path / "run")["train_metrics"]) == {"loss", "simcse"}
