"""Faster attention in training: the bits of transformers' own."""

from types import SimpleNamespace

import pytest
import torch
from tiny.lm_families import ALL, DECODERS, read
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from groundling.models import sdpa
from groundling.models.sdpa import attend, faster_attention
from groundling.models.text_encoder import TextEncoder

FAMILIES = {**ALL, **DECODERS}
WRITTEN_OUT = {
    "bert",
    "roberta",
    "electra",
    "distilbert",
    "xlm-roberta",
    "camembert",
    "gpt2",
}


def states_and_gradients(text: TextEncoder) -> list[torch.Tensor]:
    batch, tokens = read(text)
    assert not tokens.attention_mask.all()
    torch.manual_seed(0)
    text.zero_grad()
    states = text.train()(batch).text
    states.square().sum().backward()
    return [states, *(one.grad for one in text.parameters() if one.grad is not None)]


@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_gradients_with_dropout_are_bit_equal(family, monkeypatch) -> None:
    words = FAMILIES[family].words()
    text = TextEncoder(FAMILIES[family].whole(len(words)).base_model, words)
    expected = states_and_gradients(text)
    calls = []
    own = sdpa_attention_forward
    monkeypatch.setattr(
        sdpa, "sdpa_attention_forward", lambda *a, **b: calls.append(a) or own(*a, **b)
    )
    with faster_attention():
        found = states_and_gradients(text)
    assert all(map(torch.equal, found, expected)) and len(found) == len(expected)
    assert not calls or family not in WRITTEN_OUT


@pytest.mark.parametrize("hidden", [(), (3, 4), (2, 3, 4)])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("scaling", [None, 0.2])
@pytest.mark.parametrize("autocast", [False, True])
def test_single_calls_are_bit_equal_even_for_queries_without_keys(
    hidden, dropout, scaling, autocast
) -> None:
    draw = torch.Generator().manual_seed(1)
    sides = [torch.randn(2, 3, 5, 4, generator=draw, requires_grad=True) for _ in range(3)]
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, :, :, list(hidden)] = False
    mask[1, :, 2] &= torch.tensor([False, False, True, True, True])  # no key is left for it
    found = []
    for function in (sdpa_attention_forward, attend):
        torch.manual_seed(4)
        with torch.autocast("cpu", enabled=autocast):
            out, _ = function(SimpleNamespace(is_causal=False), *sides, mask, dropout, scaling)
        found.append([out, *torch.autograd.grad(out.square().sum(), sides)])
    assert all(map(torch.equal, *found))
    assert torch.isfinite(found[0][0]).all()


def test_the_registry_is_as_before_afterwards() -> None:
    before = dict(sdpa.ALL_ATTENTION_FUNCTIONS), dict(sdpa.ALL_MASK_ATTENTION_FUNCTIONS)
    with faster_attention():
        assert sdpa.ALL_ATTENTION_FUNCTIONS["sdpa"] is attend
    after = dict(sdpa.ALL_ATTENTION_FUNCTIONS), dict(sdpa.ALL_MASK_ATTENTION_FUNCTIONS)
    assert after == before
