"""Students in half precision, and what the cards of saved models say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from tiny import homes, toys

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.models.text_encoder import load_text_encoder
from groundling.settings.fields import make_settings


def adapted(student: Path, tmp_path: Path, **settings: Any) -> dict[str, Any]:
    text = homes.text(tmp_path / "text.txt", 16)
    config = make_settings(
        AdaptConfig, student=str(student), **{"arm": "mlm", "text": (str(text),), **settings}
    )
    return adapt(config, homes.STEPS, tmp_path / "out")


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_what_is_trained_in_float32_is_saved_so(kind: torch.dtype, tmp_path: Path) -> None:
    words = homes.words()
    whole = hf.BertForMaskedLM(toys.bert(len(words)).config).to(kind)
    student = homes.home(tmp_path / "student", whole, words)
    adapted(student, tmp_path)
    saved = hf.AutoModel.from_pretrained(tmp_path / "out/model")
    assert saved.dtype == torch.float32
    assert hf.AutoModel.from_pretrained(tmp_path / "out/model", dtype=kind).dtype == kind
    rounded = {name: value.to(kind).float() for name, value in saved.state_dict().items()}
    lost = [name for name, value in saved.state_dict().items() if not value.equal(rounded[name])]
    assert len(lost) > 10  # which rounding would have taken away


def front_matter(folder: Path) -> list[str]:
    return (folder / "README.md").read_text().split("---")[1].splitlines()


def test_the_card_of_a_sentence_encoder_names_its_library(tmp_path: Path) -> None:
    student = homes.sentence_encoder(tmp_path / "student")
    adapted(student, tmp_path)
    left = tmp_path / "out/model"
    assert (left / "modules.json").exists()
    assert "library_name: sentence-transformers" in front_matter(left)


def test_the_card_says_what_automodel_reports(tmp_path: Path) -> None:
    adapted(homes.student(tmp_path / "student"), tmp_path)
    left = tmp_path / "out/model"
    assert "library_name: transformers" in front_matter(left)
    _, report = hf.AutoModel.from_pretrained(left, output_loading_info=True)
    unexpected = report["unexpected_keys"]
    assert unexpected and all(key.startswith("cls.predictions.") for key in unexpected)
    assert "UNEXPECTED" in (left / "README.md").read_text()
    assert load_text_encoder(left)
