"""Model folders that are broken, or of another kind: one line that names the folder, and no code of theirs runs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import homes, toys
from tiny.commands import adapting_with, tuning_with
from tiny.homes import home, never, put, words
from transformers import AutoModel

from groundling.core.errors import InputError
from groundling.models.clip import load_clip_image_tower
from groundling.models.loading import load_config, load_processor, load_tokenizer, load_weights
from groundling.models.text_encoder import load_text_encoder
from groundling.studies.attention.commands import VisualizeConfig
from groundling.studies.attention.page import make_page
from groundling.vision_language.loading import load_encoder
from groundling.vision_language.uniter import uniter


def weights_of(folder: Path) -> Path:
    return homes.student(folder) / "model.safetensors"


def other_sizes(folder: Path) -> None:
    config = json.loads((homes.student(folder) / "config.json").read_text())
    put(folder / "config.json", json.dumps(config | {"num_hidden_layers": 3}))


def not_finite(folder: Path) -> None:
    """The first bias of a layer is NaN."""
    weights = load_file(folder / "model.safetensors")
    name = next(one for one in weights if ".0." in one and one.endswith("bias"))
    weights[name][0] = float("nan")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no tokenizer": (lambda at: home(at, toys.bert(len(words())), None), "no tokenizer"),
    "no config": (lambda at: home(at, None, words()), "in its config.json"),
    "no weights": (lambda at: weights_of(at).unlink(), "the weights could not be loaded"),
    "corrupt": (lambda at: put(weights_of(at), b"no tensors in here"), "not be loaded"),
    "other sizes": (other_sizes, "first is encoder.layer.2"),
    "NaN": (lambda at: not_finite(homes.student(at)), "bias are NaN or infinite"),
    "small table": (lambda at: home(at, toys.bert(50), words()), "tokens, but 50 word embeddings"),
    "image encoder": (lambda at: home(at, toys.vit(), words()), "a vit model is no"),
    "decoder": (lambda at: home(at, toys.t5(len(words())), words()), "a t5 model is no"),
    "two towers": (homes.teacher, "a clip model is not a text encoder"),
    "no mask": (lambda at: home(at, toys.bert(400), toys.siglip_words()), "no mask token"),
    "nowhere": (lambda at: None, "no model found"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_student(case, given, tmp_path, refusal):
    damage, complaint = BROKEN[case]
    damage(tmp_path / "broken")
    line = refusal(*adapting_with(given, tmp_path / "out", student=tmp_path / "broken", arm="mlm"))
    assert complaint in line and str(tmp_path / "broken") in line
    if case in ("no config", "decoder"):  # fine-tuning loads it alike
        line = refusal(*tuning_with(given, tmp_path / "tuned", model=tmp_path / "broken"))
        assert complaint in line and str(tmp_path / "broken") in line


NOT_INSPECTED: dict[str, tuple[Callable[[Path], object], str]] = {
    "weights": (lambda at: put(at / "model.safetensors", b"short"), "weights could not be loaded"),
    "NaN": (not_finite, "are NaN or infinite"),
    "no tokenizer": (lambda at: [file.unlink() for file in at.glob("*token*")], "no tokenizer"),
    "processor": (lambda at: put(at / "preprocessor_config.json", "{"), "no image processor found"),
}


@pytest.mark.parametrize("case", NOT_INSPECTED)
@pytest.mark.parametrize("make", [homes.vilt, homes.seeing_clip])
def test_a_broken_model_for_inspection(make, case, tmp_path):
    damage, complaint = NOT_INSPECTED[case]
    damage(make(tmp_path / "broken"))
    photo = homes.noise(tmp_path / "photo.png", (40, 30))
    config = VisualizeConfig(model=(f"{tmp_path}/broken",), image=str(photo), text="dog", cpu=True)
    line = homes.refused(make_page, config)
    assert complaint in line and line.startswith(str(tmp_path / "broken"))


def test_a_broken_teacher(given: Path, tmp_path: Path, refusal: Callable[..., str]) -> None:
    line = refusal(*adapting_with(given, tmp_path / "a", teacher=given / "student", arm="xdbert"))
    assert f"{given / 'student'}: a bert model has no CLIP-like text tower" in line
    stored = f"vectors:{given}"
    line = refusal(*adapting_with(given, tmp_path / "v", teacher=stored, arm="xdbert"))
    assert f"{stored}: a text tower is read, which stored vectors have not" in line
    line = refusal(*adapting_with(given, tmp_path / "s", student=stored, arm="mlm"))
    assert "these are vectors, and a model is read here" in line
    clip = home(tmp_path / "t", toys.clip(homes.tokens()), None)
    line = refusal(*adapting_with(given, tmp_path / "b", teacher=clip))
    assert f"{tmp_path / 't'}: no tokenizer" in line


EVIL = """
from pathlib import Path
Path(__file__).with_name("ran").touch()
from transformers import BertConfig as Evil
"""


@pytest.mark.parametrize(
    ("file", "kind", "said"),
    [
        ("config.json", {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}, "custom"),
        ("config.json", {"model_type": "bert", "auto_map": {"AutoModel": "evil.Evil"}}, ""),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["evil.Evil", None]}}, ""),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "evil.Evil"}}, "custom"),
    ],
)
def test_e11_code_that_a_folder_brings_is_never_run(file, kind, said, tmp_path, monkeypatch):
    """A stock class is taken where there is one; else one line, and nobody is asked anything."""
    monkeypatch.setattr("builtins.input", never)
    folder = homes.student(tmp_path / "evil")
    put(folder / "evil.py", EVIL)
    old = json.loads((folder / file).read_text()) if (folder / file).exists() else {}
    old.pop("tokenizer_class", None)
    put(folder / file, json.dumps(old | kind))
    told = []
    for load in (load_config, load_tokenizer, partial(load_weights, AutoModel), load_processor):
        try:
            load(folder)
        except InputError as error:
            told.append(str(error))
    assert not list(tmp_path.rglob("ran"))
    assert not [line for line in told if "\n" in line or str(folder) not in line]
    assert any("contains custom code" in line for line in told) == bool(said)


def test_e11_pickled_weights_are_never_opened(tmp_path: Path) -> None:
    folder = homes.student(tmp_path / "student")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    with pytest.raises(InputError, match=r"no file named model.safetensors"):
        load_text_encoder(folder)


def test_e14_what_a_model_folder_says_of_pixels_and_regions_is_looked_at(tmp_path: Path) -> None:
    folder = homes.seeing_clip(tmp_path / "clip")
    file = folder / "preprocessor_config.json"
    about = json.loads(file.read_text())
    for mean in ([0.5, 0.5], None):
        file.write_text(json.dumps(about | {"image_mean": mean}))
        with pytest.raises(InputError, match=r"clip: no image processor found: preprocessor_conf"):
            load_processor(folder)
    file.write_text(json.dumps(about | {"image_mean": 0.25}))
    assert load_clip_image_tower(folder).mean.flatten().tolist() == [0.25] * 3


def test_e14_a_model_folder_is_named_whatever_is_wrong_in_it(tmp_path: Path) -> None:
    uniter(toys.bert(len(homes.words())), homes.words(), 8).export(tmp_path)
    about = json.loads((tmp_path / "join.json").read_text())
    for change in ({"regions_from": [[]]}, {"options": 3}, {"kind": None}):
        put(tmp_path / "join.json", json.dumps(about | change))
        with pytest.raises(InputError, match=f"{tmp_path}"):
            load_encoder(tmp_path)
