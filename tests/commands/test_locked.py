"""`train-clip` against frozen image features: what it trains, what it writes, and that both libraries load it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tiny import homes, toys

import groundling
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.data.image_samples import FrozenTexts
from groundling.data.samples import ClipRowEncoder, TextDataset
from groundling.data.vectors import VectorTable
from groundling.models.adapters import EncoderText, LockedDualEncoder, make_head
from groundling.models.clip import load_clip_text_tower
from groundling.models.frozen_clip import load_teacher_text
from groundling.models.text_encoder import load_text_encoder
from groundling.teachers.vectors import text_teacher, vectors_of


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve photos with captions, their vectors, and models."""
    home = tmp_path_factory.mktemp("locked")
    images = [(number, f"{number}.png") for number in range(12)]
    for number, name in images:
        homes.noise(home / "photos" / name, (16, 16), number)
    sentences = toys.sentences()
    homes.coco(home / "captions.json", images, [(n % 12, sentences[n]) for n in range(24)])
    homes.seeing_clip(home / "clip")
    homes.sentence_encoder(home / "encoder")
    groundling.embed(teacher=home / "clip", images=home / "photos", out=home / "vectors", cpu=True)
    return home


def trained(home: Path, out: Path, **settings: Any) -> dict[str, Any]:
    given = {"captions": home / "captions.json", "images": home / "photos"}
    given |= {"steps": 4, "batch": 6, "lr": 1e-3, "projection_dim": 16, "cpu": True}
    return groundling.train_clip(**{**given, **settings}, out=out)


def test_stored_vectors_are_as_good_as_the_model(home: Path, tmp_path: Path) -> None:
    settings = {
        "text_model": home / "encoder",
        "head_layers": 2,
        "eval_captions": home / "captions.json",
    }
    live = trained(home, tmp_path / "live", image_model=home / "clip", **settings)
    stored = f"vectors:{home / 'vectors'}"
    given = trained(home, tmp_path / "given", image_model=stored, images="", **settings)
    assert given["train_metrics"] == live["train_metrics"]
    assert given["retrieval"]["images"] == 12
    for name in ("model/model.safetensors", "model/image_head.safetensors"):
        one, other = (tmp_path / side / name for side in ("live", "given"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("freeze", [True, False])
def test_a_text_encoder_becomes_a_sentence_encoder_of_the_joint_space(
    freeze: bool, home: Path, tmp_path: Path
) -> None:
    settings = {"text_model": home / "encoder", "head_layers": 2, "freeze_text": freeze}
    result = trained(home, tmp_path, image_model=f"vectors:{home / 'vectors'}", **settings)
    folder = tmp_path / "model"
    before = load_text_encoder(home / "encoder").encoder.state_dict()
    after = load_text_encoder(folder).encoder.state_dict()
    assert freeze == all(torch.equal(before[name], after[name]) for name in before)
    texts = toys.sentences()[:3]
    theirs = SentenceTransformer(str(folder), device="cpu").encode(texts)
    ours = np.stack(list(vectors_of(text_teacher(str(folder), 1), "text", texts)))
    np.testing.assert_allclose(ours, theirs, atol=2e-6)
    images = VectorTable(tmp_path / "vectors", "image")
    assert (len(images), images.width, theirs.shape[1]) == (12, 16, 16)
    assert load_teacher_text(folder)[0].embed_dim == 16
    assert result["parameters"] > 0


def test_a_frozen_encoders_vectors_are_those_of_its_tokens(home: Path) -> None:
    """Computed once, before training, so no step runs the encoder."""
    text = load_text_encoder(home / "encoder")
    tower = EncoderText(text, make_head(text.sizes.text, 16, 2), freeze=True)
    model = LockedDualEncoder(tower, text.tokenizer, make_head(8, 16, 2)).eval()
    examples = [Example(f"{place}", one) for place, one in enumerate(toys.sentences()[:5])]
    rows = ClipRowEncoder(text.tokenizer, tower.context_length, max_windows=1)
    live = TextDataset(examples, None, rows)
    frozen = FrozenTexts(live, tower.vectors(live))
    batches = [collate(some.get(range(5), ())) for some in (live, frozen)]
    assert batches[1].clip is None
    torch.testing.assert_close(*(model(batch).text_embeds for batch in batches))


def test_without_a_text_encoder_the_text_tower_is_clips(home: Path, tmp_path: Path) -> None:
    small = {"text_tower": (32, 1), "vocab_size": 600}
    stored = f"vectors:{home / 'vectors'}"
    trained(home, tmp_path, image_model=stored, images="", loss="sigmoid", **small)
    tower, _ = load_clip_text_tower(tmp_path / "model")
    assert tower.embed_dim == 16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": ""}, "needs images=FOLDER"),
        ({"freeze_text": True}, "freeze_text: .*image_model"),
        ({"image_model": "clip", "model": "clip"}, "leave out model"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings: dict[str, Any], message: str, home: Path, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(home)
    with pytest.raises(InputError, match=message):
        trained(home, tmp_path / "out", **settings)
