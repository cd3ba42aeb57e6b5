"""A tiny masked language model with words for colours, sizes and features."""

from pathlib import Path

import pytest
import torch
from tiny import homes, toys
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from groundling.studies.worlds.families.objects import ATTRIBUTES

WORDS = (
    "the is a there . , zib dal ##ish pur compared with than owl fox brown round wings usually has "
    "smaller larger kite bus"
)


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    listed = [*toys.BERT_SPECIAL, *ATTRIBUTES["colour"], *WORDS.split()]
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(listed)})
    torch.manual_seed(0)
    config = BertConfig(vocab_size=len(tokenizer), max_position_embeddings=32, **toys.SMALL)
    model = BertForMaskedLM(config)
    with torch.no_grad():  # new biases are zero, so leaving them out would not show
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return homes.home(tmp_path_factory.mktemp("bert"), model, tokenizer)
