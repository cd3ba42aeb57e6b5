"""Checkpoints in open_clip's format: against a forward pass written anew from its weights, and what is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import homes
import numpy as np
import pytest
import torch
import toys
from builders.open_clip import (
    HEADS,
    JOINT,
    LAYERS,
    PATCH,
    SIDE,
    WIDTH,
    model_config,
    random_weights,
    write,
)
from homes import tokens
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

from groundling.cli import main
from groundling.core.errors import InputError
from groundling.models import open_clip
from groundling.models.clip import load_clip_text_tower, load_frozen_clip
from groundling.models.hub import check_model, is_open_clip
from groundling.models.loading import (
    load_config,
    load_processor,
    load_tokenizer,
    load_weights,
    model_type,
)

# -- a forward pass from open_clip's weights, written anew -------------------------------------------------------------


def transformer(
    weights: dict[str, Tensor], start: str, states: Tensor, quick: bool, mask: Any
) -> Tensor:
    """Pre-norm layers over states (S, N, D), as torch's own multi-head attention computes them."""
    for number in range(LAYERS):
        own = {
            name.removeprefix(f"{start}transformer.resblocks.{number}."): value
            for name, value in weights.items()
        }
        normed = F.layer_norm(states, (WIDTH,), own["ln_1.weight"], own["ln_1.bias"])
        attended, _ = F.multi_head_attention_forward(
            normed, normed, normed, WIDTH, HEADS,
            own["attn.in_proj_weight"], own["attn.in_proj_bias"], None, None, False, 0.0,
            own["attn.out_proj.weight"], own["attn.out_proj.bias"], training=False, attn_mask=mask,
        )  # fmt: skip
        states = states + attended
        normed = F.layer_norm(states, (WIDTH,), own["ln_2.weight"], own["ln_2.bias"])
        inner = F.linear(normed, own["mlp.c_fc.weight"], own["mlp.c_fc.bias"])
        inner = inner * torch.sigmoid(1.702 * inner) if quick else F.gelu(inner)
        states = states + F.linear(inner, own["mlp.c_proj.weight"], own["mlp.c_proj.bias"])
    return states


def text_feature(weights: dict[str, Tensor], prefix: str, ids: list[int], quick: bool) -> Tensor:
    """The projected state at the largest id."""
    states = weights[f"{prefix}token_embedding.weight"][torch.tensor(ids)]
    states = (states + weights[f"{prefix}positional_embedding"][: len(ids)]).unsqueeze(1)
    mask = torch.full((len(ids), len(ids)), float("-inf")).triu(1)
    states = transformer(weights, prefix, states, quick, mask)[:, 0]
    norm = f"{prefix}ln_final"
    states = F.layer_norm(states, (WIDTH,), weights[f"{norm}.weight"], weights[f"{norm}.bias"])
    return states[int(np.argmax(ids))] @ weights[f"{prefix}text_projection"]


def image_feature(weights: dict[str, Tensor], pixels: Tensor, quick: bool) -> Tensor:
    """The projected state of the class token, for normalised pixels (3, S, S)."""
    patches = F.conv2d(pixels[None], weights["visual.conv1.weight"], stride=PATCH)
    states = torch.cat([weights["visual.class_embedding"][None], patches[0].flatten(1).T])
    states = states + weights["visual.positional_embedding"]
    norm = "visual.ln_pre"
    states = F.layer_norm(states, (WIDTH,), weights[f"{norm}.weight"], weights[f"{norm}.bias"])
    state = transformer(weights, "visual.", states.unsqueeze(1), quick, None)[0, 0]
    norm = "visual.ln_post"
    state = F.layer_norm(state, (WIDTH,), weights[f"{norm}.weight"], weights[f"{norm}.bias"])
    return state @ weights["visual.proj"]


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("prefix", ["", "text."])
def test_features_equal_a_forward_pass_from_open_clips_weights(
    tmp_path: Path, quick: bool, prefix: str
) -> None:
    config = model_config(quick, **({"custom_text": True} if prefix else {}))
    folder = write(tmp_path / "model", config, prefix)
    weights = load_file(folder / open_clip.WEIGHTS)
    clip = load_frozen_clip(folder)
    texts = ["two dogs chase a cat", "a red ball"]
    rows = [row for row, _ in clip.tokenize(texts)]
    expected = torch.stack(
        [text_feature(weights, prefix, row.input_ids.tolist(), quick) for row in rows]
    )
    torch.testing.assert_close(
        clip.embed_texts(rows), F.normalize(expected, dim=-1), rtol=1e-4, atol=1e-5
    )
    image = Image.fromarray(
        np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
    )
    assert clip.image is not None
    shown = torch.from_numpy(clip.image.preprocess(image))
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in ([0.4, 0.5, 0.6], [0.2, 0.3, 0.25]))
    normal = (torch.from_numpy(np.array(image)).permute(2, 0, 1) / 255 - mean) / std
    with torch.no_grad():
        found = clip.image.projection(clip.image(shown[None]))[0]
    torch.testing.assert_close(found, image_feature(weights, normal, quick), rtol=1e-4, atol=1e-4)


def test_the_loaders_of_a_clip_take_the_folder(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", model_config())
    check_model(str(folder))
    assert model_type(folder) == "clip"
    assert load_config(folder).text_config.max_position_embeddings == toys.WINDOW
    tower, tokenizer = load_clip_text_tower(folder)
    assert tower.embed_dim == JOINT and len(tokenizer) == len(tokens())
    before = torch.random.get_rng_state()
    load_weights(AutoModel, folder)
    assert torch.equal(before, torch.random.get_rng_state())


def test_hugging_faces_files_in_the_same_folder_are_used_and_timms_are_not(tmp_path: Path) -> None:
    folder = write(tmp_path / "model", model_config())
    (folder / "config.json").write_text('{"architecture": "vit_base_patch32_clip_224"}')
    assert is_open_clip(folder)
    toys.clip(tokens()).save_pretrained(folder)
    assert not is_open_clip(folder)


def test_a_squashed_image_keeps_its_border(tmp_path: Path) -> None:
    folder = write(
        tmp_path / "model", model_config(), resize_mode="squash", interpolation="bilinear"
    )
    image = Image.new("RGB", (2 * SIDE, SIDE))
    image.paste((255, 255, 255), (0, 0, SIDE // 2, SIDE))
    pixels = load_processor(folder)(images=image, do_normalize=False, return_tensors="np")
    columns = pixels["pixel_values"][0].mean((0, 1))
    assert columns.shape == (SIDE,) and columns[0] > 0.9 > 0.1 > columns[-1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vision_cfg__layers": [3, 4, 6, 3]}, "num_hidden_layers"),  # a ResNet
        (
            {"vision_cfg__timm_model_name": "convnext_base"},
            "sets timm_model_name = 'convnext_base'",
        ),
        ({"text_cfg__hf_model_name": "roberta-base"}, "sets hf_model_name = 'roberta-base'"),
        ({"init_logit_bias": -10}, "sets init_logit_bias = '-10'"),
        ({"multimodal_cfg": {"width": 8}}, "sets multimodal_cfg"),
        ({"text_cfg__pool_type": "last"}, "sets pool_type = 'last'"),
        ({"vision_cfg__ls_init_value": 0.1}, "sets ls_init_value"),
        ({"vision_cfg": None}, "'NoneType'"),
        ({"embed_dim": "24"}, "projection_dim"),
        ({"vision_cfg__head_width": 64}, "ZeroDivisionError"),
        ({"vision_cfg__width": 16}, "size mismatch"),
        ({"text_cfg__layers": 3}, "Missing key"),
        ({"text_cfg__layers": 1}, "Unexpected key"),
        ({"text_cfg__vocab_size": 20}, "expected CLIP's tokenizer"),
    ],
)
def test_another_architecture_is_refused_in_one_line(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    folder = write(tmp_path / "model", model_config(**changes))
    with pytest.raises(InputError) as caught:
        load_clip_text_tower(folder)
    assert message in str(caught.value) and "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"interpolation": "random"}, "no image processor found.*random"),
        ({"resize_mode": "longest"}, "resize_mode is 'longest'; expected shortest or squash"),
        ({"mean": [0.5]}, "no image processor found.*3 elements"),
    ],
)
def test_other_preprocessing_is_refused(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        load_processor(write(tmp_path / "model", model_config(), **values))


def test_damaged_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "model", model_config())
    weights = folder / open_clip.WEIGHTS
    whole = weights.read_bytes()
    weights.write_bytes(whole[:100])
    with pytest.raises(InputError, match="cannot be read"):
        load_weights(AutoModel, folder)
    save_file({**random_weights(), "visual.attn_pool.query": torch.zeros(3)}, weights)
    with pytest.raises(InputError, match=r"Unexpected key.*visual\.attn_pool\.query"):
        load_weights(AutoModel, folder)
    weights.unlink()
    with pytest.raises(InputError, match="no such file"):
        load_weights(AutoModel, folder)
    (folder / open_clip.OPEN_CLIP_CONFIG).write_text('{"model_cfg": [], "preprocess_cfg": {}}')
    with pytest.raises(InputError, match="ViT image towers"):
        load_config(folder)
    bare = write(tmp_path / "bare", model_config())
    for file in bare.glob("*token*"):
        file.unlink()
    for name in ("vocab.json", "merges.txt"):
        (bare / name).unlink(missing_ok=True)
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match=r"pip install .groundling.open_clip"):
        load_tokenizer(bare)


# -- open_clip:NAME/TAG, with a stand-in for the library ---------------------------------------------------------------


class Library(SimpleNamespace):
    """What is asked of open_clip: its lists, configurations and vocabulary."""

    def __init__(self, **weights: Any) -> None:
        ids = dict(tokens().get_vocab())
        for published, own in (
            ("<|startoftext|>", "<start_of_text>"),
            ("<|endoftext|>", "<end_of_text>"),
        ):
            ids[own] = ids.pop(published)
        merges = json.loads(tokens().backend_tokenizer.to_str())["model"]["merges"]
        ranks = {tuple(pair): rank for rank, pair in enumerate(merges)}
        simple = SimpleNamespace(encoder=ids, bpe_ranks=ranks)
        super().__init__(
            list_models=lambda: ["ViT-T-8", "ViT-T-8-quickgelu"],
            list_pretrained_tags_by_model=lambda name: list(weights),
            get_model_config=lambda name: model_config("quickgelu" in name),
            pretrained=SimpleNamespace(get_pretrained_cfg=lambda name, tag: weights[tag]),
            tokenizer=SimpleNamespace(SimpleTokenizer=lambda: simple),
        )


def test_a_name_and_tag_are_looked_up_and_downloaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write(tmp_path / "model", model_config())
    library = Library(
        mine={"hf_hub": "me/tiny/", "quick_gelu": True, "mean": [0.4, 0.5, 0.6], "url": ""},
        old={"url": "https://a.pt", "hf_hub": "", "quick_gelu": True},
    )
    monkeypatch.setitem(sys.modules, "open_clip", library)
    asked = []

    def download(repository: str, name: str, **options: Any) -> str:
        asked.append((repository, name, options))
        return str(folder / name)

    monkeypatch.setattr(open_clip.huggingface_hub, "hf_hub_download", download)
    source = "open_clip:ViT-T-8-quickgelu/mine"
    ours, own = load_frozen_clip(source), load_frozen_clip(folder)
    rows, own_rows = ([row for row, _ in one.tokenize(["a red ball"])] for one in (ours, own))
    np.testing.assert_array_equal(rows[0].input_ids, own_rows[0].input_ids)
    torch.testing.assert_close(ours.embed_texts(rows), own.embed_texts(own_rows))
    assert asked[0] == ("me/tiny", open_clip.WEIGHTS, {"local_files_only": True})
    assert list(load_processor(source).image_mean) == [0.4, 0.5, 0.6]
    for wrong, message in {
        "open_clip:ViT-T-9/mine": "lists no model 'ViT-T-9'; did you mean ViT-T-8",
        "open_clip:ViT-T-8/nine": "lists no weights 'nine' of ViT-T-8; there are: mine, old",
        "open_clip:ViT-T-8/mine": "trained with another activation",
        "open_clip:ViT-T-8": "expected open_clip:NAME/TAG",
    }.items():
        with pytest.raises(InputError, match=message):
            load_config(wrong)

    def fail(*_: Any, **__: Any) -> str:
        raise OSError("no network")

    monkeypatch.setattr(open_clip.huggingface_hub, "hf_hub_download", fail)
    with pytest.raises(InputError, match="of me/tiny was not downloaded"):
        load_weights(AutoModel, source)


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(InputError, match=r"pip install 'groundling\[open_clip\]'"):
        load_config("open_clip:ViT-B-32/laion2b_s34b_b79k")
    with pytest.raises(InputError, match="expected open_clip:NAME/TAG"):
        check_model("open_clip:ViT-B-32")


def test_adapt_learns_from_the_folder(tmp_path: Path) -> None:
    teacher = write(tmp_path / "teacher", model_config())
    student = homes.home(tmp_path / "student", toys.bert(len(homes.words())), homes.words())
    text = homes.put(tmp_path / "text.txt", "\n".join(toys.sentences()) + "\n")
    words = (
        f"adapt --student {student} --teacher {teacher} --text {text} --arm contrastive --steps 2"
    )
    assert main([*words.split(), "--batch", "4", "--cpu", "--out", str(tmp_path / "run")]) == 0
    losses = (tmp_path / "run" / "log.jsonl").read_text()
    assert "contrastive" in losses
    AutoModel.from_pretrained(tmp_path / "run" / "model")
