"""Faster attention and vocabularies in training: the bits of transformers' own."""

from types import SimpleNamespace

import pytest
import torch
from tiny import toys
from tiny.lm_families import ALL, DECODERS, of_sizes, read
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from groundling.core.batch import Example
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models import heads, sdpa
from groundling.models.sdpa import attend, faster_attention
from groundling.models.text_encoder import TextEncoder
from groundling.objectives.masked_lm import MaskedLM
from groundling.settings.training import TrainingArguments
from groundling.training.loop import train

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


@pytest.mark.parametrize(("unequal", "allowed"), [(False, True), (True, False)])
def test_cudnn_plans_are_made_for_few_lengths_only(unequal, allowed, tmp_path, monkeypatch) -> None:
    words = toys.bert_words()
    model = TextEncoder(toys.bert(len(words)), words)
    count = 24 if unequal else 2
    texts = [Example(str(n), "a dog " * (1 + n % count)) for n in range(24)]
    seen = []

    class Sees(MaskedLM):
        def forward(self, *given):
            seen.append(torch.backends.cuda.cudnn_sdp_enabled())
            return super().forward(*given)

    data = TextDataset(texts, TextRowEncoder(words, 40))
    config = TrainingArguments(steps=1, batch=4, cpu=True)
    before = torch.backends.cuda.cudnn_sdp_enabled()
    train(model, [Sees(model.sizes, mask_id=4)], data, config, tmp_path)
    assert seen == [allowed and before]
    assert torch.backends.cuda.cudnn_sdp_enabled() == before


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_of_zeros_in_the_output_layer_change_nothing(family, monkeypatch) -> None:
    """As a GPU gets them."""
    words = FAMILIES[family].words()
    text = TextEncoder(FAMILIES[family].whole(len(words)).base_model, words)
    head, table = of_sizes(text).double(), text.double().word_embeddings().weight
    states = torch.randn(5, text.sizes.text, dtype=torch.double, requires_grad=True)
    found = []
    for more in (0, -len(table) % 64):
        monkeypatch.setattr(heads, "rows_to_add", lambda *_, more=more: more)
        logits = head(states, table)
        grown = [states, *(one for one in (table, *head.parameters()))]
        found.append([logits, *torch.autograd.grad(logits.square().sum(), grown)])
    for right, value in zip(*found, strict=True):
        torch.testing.assert_close(value, right, rtol=1e-6, atol=1e-9)
