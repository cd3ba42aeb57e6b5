"""Attention with dropout in training is torch's, bit for bit."""

from contextlib import nullcontext

import pytest
import torch
from transformers import BertConfig, BertModel

from groundling.models.text_encoder import cheaper_dropout_in_attention


@pytest.mark.parametrize("padded", [False, True])
def test_outputs_and_gradients_are_the_same(padded: bool) -> None:
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=32
    )  # fmt: skip
    model = BertModel(config).train()
    ids = torch.randint(50, (3, 7))
    mask = torch.ones_like(ids)
    if padded:
        mask[1, 4:] = 0
    found = []
    for context in (nullcontext, cheaper_dropout_in_attention):
        torch.manual_seed(1)
        model.zero_grad()
        with context():
            states = model(input_ids=ids, attention_mask=mask).last_hidden_state
        (states * states.detach().cos()).sum().backward()
        gradients = [one.grad for one in model.parameters() if one.grad is not None]
        found.append([states, *gradients, torch.get_rng_state()])
    plain, cheaper = found
    assert len(plain) > 20
    assert all(torch.equal(one, other) for one, other in zip(plain, cheaper, strict=True))
