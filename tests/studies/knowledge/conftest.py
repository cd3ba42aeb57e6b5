"""A tiny masked language model with words for colours, sizes and features; an encoder; a world's facts."""

from pathlib import Path

import pytest
import torch
from tiny import homes, toys
from transformers import BertConfig, BertForMaskedLM, BertTokenizer

from groundling.studies.worlds.commands import WorldConfig
from groundling.studies.worlds.families.objects import ATTRIBUTES
from groundling.studies.worlds.world import World

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


@pytest.fixture(scope="session")
def student(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return homes.student(tmp_path_factory.mktemp("student"))


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    """A world of 24 nouns, and its file of facts."""
    sizes = {"nouns": 24, "dev_nouns": 4, "test_nouns": 6, "scenes": 0, "dev_scenes": 0}
    made = World(WorldConfig(**sizes, sentences=0, dev_sentences=0))
    folder = tmp_path_factory.mktemp("world")
    made.write_text(folder)
    return made, folder / "probes/knowledge.jsonl"
