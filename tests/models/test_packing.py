"""Texts in one row without padding: the numbers of padded texts for families that can, a line for the others."""

from copy import deepcopy

import pytest
import torch
from tiny import toys
from tiny.lm_families import ALL
from tiny.objectives import assert_close, still, weights
from torch import nn

from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.packing import PACKED, PackedTexts, attend, attend_one_by_one, pack_texts
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.mcse import SimCSE
from groundling.settings.training import TrainingArguments
from groundling.training import loop
from groundling.training.loop import train

PACKING = (
    "bert",
    "relu bert",
    "albert",
    "roberta",
    "xlm-roberta",
    "electra",
    "distilbert",
    "modernbert",
)
UNEQUAL = (0, 7, 12, 31)


def made(family: str) -> TextEncoder:
    if family == "bert":  # with a pooler
        words = toys.bert_words()
        return still(TextEncoder(toys.bert(len(words)), words)).eval()
    words = ALL[family].words()
    return still(TextEncoder(ALL[family].whole(len(words)).base_model, words)).eval()


@pytest.mark.parametrize("family", PACKING)
@pytest.mark.parametrize("kind", [MaskedLM, SimCSE])
def test_states_losses_and_gradients_are_those_of_padded_texts(family, kind, monkeypatch) -> None:
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)  # of rotations and logits
    text = made(family).double()
    text.return_layers()
    torch.manual_seed(2)
    options = {"mask_id": 4} if kind is MaskedLM else {}
    objective = kind(text.sizes, **options).double().eval()
    samples = TextDataset(toys.examples(), TextRowEncoder(text.tokenizer, 40)).get(UNEQUAL)
    batch = collate([objective.corrupt(one, generator(0, one.id), None) for one in samples])
    read = batch.text.attention_mask
    found = []
    for on in (False, True):
        parts = deepcopy(nn.ModuleList([text, objective]))
        with pack_texts(parts[0], on):
            out = parts[0](batch)
            loss = sum(parts[1](out, batch).values())
            loss.backward()
        states = torch.cat([layer[read] for layer in (out.text, *out.layers)])
        if out.pooler_output is not None:
            states = torch.cat([states, out.pooler_output])
        gradients = [p.grad.flatten() for p in parts.parameters() if p.grad is not None]
        found.append((states, loss, torch.cat(gradients)))
        assert (out.text[~read] == 0).all() == on
    for padded, packed in zip(*found, strict=True):
        torch.testing.assert_close(packed, padded, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("family", "told"),
    [
        ("mpnet", "a mpnet model .*an attention of its own"),
        ("deberta-v2", "a deberta-v2 model .*an attention of its own"),
        ("towers", "a ClipDualEncoder"),
    ],
)
def test_a_model_that_cannot_is_named_before_training(family, told, text_only, request, tmp_path):
    model = made(family) if family in ALL else request.getfixturevalue("towers")
    config = TrainingArguments(steps=1, packing=True, cpu=True)
    with pytest.raises(InputError, match=f"^packing: not for {told}"):
        train(model, [MaskedLM(model.sizes, mask_id=4)], text_only, config, tmp_path)
    assert not list(tmp_path.iterdir())


def test_each_batch_would_be_compiled_anew() -> None:
    with pytest.raises(InputError, match=r"^packing: not with compile"):
        TrainingArguments(packing=True, compile=True)


@pytest.mark.parametrize("recomputed", [False, True])
def test_a_run_ends_with_the_weights_of_padded_texts(
    recomputed, cross, samples, tmp_path, monkeypatch
) -> None:
    """XDBERT's text encoder packs, its cross-modal layers read what they read before; FLOPs are counted padded."""
    monkeypatch.setattr("groundling.training.loop.known_peak", lambda *_: 1e12)
    counted = []
    count = loop.model_work
    monkeypatch.setattr(loop, "model_work", lambda *of: counted.append(count(*of)) or counted[-1])
    ends = []
    for packing in (False, True):
        model = still(deepcopy(cross))
        torch.manual_seed(3)
        parts = [MaskedLM(model.sizes, mask_id=4, joint=True)]
        config = TrainingArguments(
            steps=3, batch=8, optimizer="sgd", lr=0.1, packing=packing,
            gradient_checkpointing=recomputed, cpu=True,
        )  # fmt: skip
        train(model, parts, samples, config, tmp_path / str(packing))
        ends.append(weights(model, parts))
        assert model.text.encoder.config._attn_implementation != PACKED
    assert_close(*ends, 1e-6)
    assert counted[0] == counted[1]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="GPU")
@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("window", [0, 5])
def test_flash_attention_is_the_reference(window, dropout) -> None:
    """In bf16 within its eight bits; with dropout, means of many draws are as close as two of the reference's."""
    torch.manual_seed(0)
    mask = (torch.arange(64) < torch.tensor([[3], [64], [17]])).long()
    packed = PackedTexts.of(mask, torch.device("cuda"))
    sides = torch.randn(3, 1, 4, int(mask.sum()), 64, device="cuda", dtype=torch.bfloat16)
    layer = nn.Module()
    layer.config = type("Config", (), {"model_type": "modernbert"})
    options = {"packed": packed, "dropout": dropout, "sliding_window": window, "scaling": 0.1}

    def flash(*sides: torch.Tensor) -> torch.Tensor:
        return attend(layer, *sides, None, **options)[0]

    def reference(*sides: torch.Tensor) -> torch.Tensor:
        return attend_one_by_one(*sides, packed, dropout, 0.1, window)

    found = []
    for compute in (reference, reference, flash):
        leaves = [one.clone().requires_grad_() for one in sides]
        draws = [compute(*leaves) for _ in range(200 if dropout else 1)]
        mean = torch.stack(draws).float().mean(0)
        mean.square().sum().backward()
        found.append([mean, *(one.grad.float() for one in leaves)])
    for right, again, value in zip(*found, strict=True):
        bound = 0.02 * right.norm() + 1.3 * (again - right).norm()
        assert float((value - right).norm()) <= float(bound)
