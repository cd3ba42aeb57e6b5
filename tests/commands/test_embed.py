"""Stored vectors are as good as their model: `embed`, `train-clip` against frozen features; and `merge`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from tiny import homes, toys
from tiny.objectives import captioned_run
from transformers import AutoModel, BertForMaskedLM, GPT2Config, GPT2LMHeadModel

import groundling
from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.data.image_samples import FrozenTexts
from groundling.data.samples import ClipRowEncoder, TextDataset
from groundling.data.vectors import VectorTable
from groundling.models.adapters import EncoderText, LockedDualEncoder, make_head
from groundling.models.clip import load_clip_text_tower
from groundling.models.frozen_clip import load_teacher_text
from groundling.models.heads import HEADS, LM_HEAD, save_heads
from groundling.models.hub import check_model
from groundling.models.text_encoder import load_text_encoder
from groundling.settings.fields import setting_values
from groundling.studies.knowledge.pair_likelihoods import load_lm_head
from groundling.teachers import vectors as stored_vectors
from groundling.teachers.vectors import text_teacher, vectors_of


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("embed")


@pytest.fixture(scope="module")
def config(home: Path) -> dict[str, Any]:
    return setting_values(captioned_run(home, "caption_to_image"))


@pytest.fixture(scope="module")
def vectors(home: Path, config: dict[str, Any]) -> Path:
    groundling.embed(**embedding_of(config), out=home / "vectors")
    return home / "vectors"


def embedding_of(config: dict[str, Any]) -> dict[str, Any]:
    given = {"teacher": config["teacher"], "text": config["text"]}
    return {**given, "images": config["teacher_images"], "cpu": True}


def weights(config: dict[str, Any], out: Path) -> dict[str, torch.Tensor]:
    groundling.adapt(**config, steps=3, batch=4, cpu=True, out=out)
    return load_file(out / "model/model.safetensors")


@pytest.mark.parametrize(
    ("arm", "settings"),
    [
        ("caption_to_image", {}),
        ("mlm+lexi_contrastive", {}),
        ("contrastive", {"word_weight": 0.0}),
        ("l1", {"word_weight": 0.0, "l1_targets": "unit"}),
    ],
)
def test_training_on_vectors_needs_no_teacher_and_is_bit_equal(
    arm: str, settings: dict[str, Any], config: dict[str, Any], vectors: Path, tmp_path: Path
) -> None:
    reads_images = not settings
    config = {**config, **settings, "arm": arm}
    if not reads_images:
        config["teacher_images"] = ""
    live = weights(config, tmp_path / "live")
    given = {**config, "teacher": f"vectors:{vectors}", "teacher_images": ""}
    stored = weights(given, tmp_path / "stored")
    assert all(torch.equal(live[name], stored[name]) for name in live)


def test_a_killed_run_goes_on_with_the_missing_files(config, vectors, tmp_path, monkeypatch):
    given = {**embedding_of(config), "out": tmp_path / "out"}

    embed = stored_vectors.embed

    def die_at_texts(teacher: object, modality: str, *given: Any) -> int:
        if modality == "text":
            raise KeyboardInterrupt
        return embed(teacher, modality, *given)

    with monkeypatch.context() as patch:
        patch.setattr(stored_vectors, "embed", die_at_texts)
        with pytest.raises(KeyboardInterrupt):
            groundling.embed(**given)
    images = (tmp_path / "out/images-00000.npy").stat().st_mtime_ns
    groundling.embed(**given)
    assert (tmp_path / "out/images-00000.npy").stat().st_mtime_ns == images
    for file in vectors.glob("*-0*"):
        assert (tmp_path / "out" / file.name).read_bytes() == file.read_bytes()


def test_damaged_images_are_named_before_anything_is_embedded(config, tmp_path):
    images = tmp_path / "images"
    kept = [homes.noise(images / f"{number:03}.png", (8, 8), number) for number in range(66)]
    cut = [images / "x/cut.png", images / "y/cut.jpg"]
    for file in cut:
        sound = homes.noise(file, (64, 64), 1).read_bytes()
        file.write_bytes(sound[: len(sound) // 2])
    given = {**embedding_of(config), "text": (), "images": str(images), "shard_size": 32}
    with pytest.raises(InputError, match=r"^x/cut: does not decode as an image .*\(2 such\)$"):
        groundling.embed(**given, out=tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.npy")) and len(kept) == 66


def test_an_image_encoder_embeds_no_texts(config, tmp_path):
    toys.vit().save_pretrained(tmp_path / "vit")
    with pytest.raises(InputError, match="vit: no text tower; without text, all images"):
        groundling.embed(
            **embedding_of(config) | {"teacher": str(tmp_path / "vit")}, out=tmp_path / "v"
        )


OWN = """
import numpy as np

from groundling.core.batch import Sample
from groundling.models.frozen_clip import load_frozen_clip, load_teacher_text
from groundling.teachers import Teacher, TeacherSpec
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.text import ClipTextTeacher


def texts(options):
    return ClipTextTeacher(*load_teacher_text(options["clip"]), standardise=False)


def seeing(context):
    clip = load_frozen_clip(CLIP, text=False)
    return ClipTeacher(clip, context.features, context.settings.targeted_distillation)


class Other(Teacher):
    name = "other"
    width = 4

    def inputs(self, rows):
        return [row.text[0] for row in rows]


class Bag(Other):
    def inputs(self, rows):
        return [Sample(row.example.text, word_type_ids=np.zeros(1, int)) for row in rows]

    def features(self, batch):
        return {"bag": batch.word_type_ids.float()}


PHOTOS = TeacherSpec("photos", (), seeing)
"""


def test_a_teacher_of_ones_own_embeds_too(config, vectors, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_eyes.py").write_text(f"CLIP = {str(config['teacher'])!r}\n{OWN}")
    given = embedding_of(config)
    texts = {"text": given["text"], "option": [f"clip={config['teacher']}"], "cpu": True}
    groundling.embed(teacher="own_eyes:texts", **texts, out="texts")
    for kind, own in (("texts", {}), ("images", {"teacher": "own_eyes:PHOTOS", "text": ()})):
        if own:
            groundling.embed(**given | own, out=kind)
        for file in vectors.glob(f"{kind}-0*"):
            assert (tmp_path / kind / file.name).read_bytes() == file.read_bytes()
    for name, told in (
        ("Other", "reads more than a row's"),
        ("Bag", "has bag of each text, and not"),
    ):
        with pytest.raises(InputError, match=f"the teacher other {told}"):
            groundling.embed(teacher=f"own_eyes:{name}", text=given["text"], out=name)


def test_a_text_encoder_embeds_no_images_and_says_so_first(config, tmp_path):
    homes.sentence_encoder(tmp_path / "texts")
    with pytest.raises(InputError, match="texts: "):
        groundling.embed(
            **embedding_of(config) | {"teacher": tmp_path / "texts"}, out=tmp_path / "out"
        )
    assert not list((tmp_path / "out").glob("texts-*"))


def test_a_dry_run_misses_a_vector(vectors: Path, config: dict[str, Any], tmp_path: Path) -> None:
    """All captions are looked up in it, and vectors read."""
    fewer = shutil.copytree(vectors, tmp_path / "fewer")
    (file,) = fewer.glob("images*.npy")
    (ids,) = fewer.glob("images*.txt")
    np.save(file, np.load(file)[1:])
    ids.write_text("".join(ids.read_text().splitlines(keepends=True)[1:]))
    given = {**config, "teacher_images": "", "batch": 4, "out": tmp_path / "out"}
    assert "dry_run" in groundling.adapt(**given | {"teacher": f"vectors:{vectors}"}, dry_run=True)
    with pytest.raises(InputError, match=r"fewer: no vector of the image "):
        groundling.adapt(**given | {"teacher": f"vectors:{fewer}"}, dry_run=True)


def test_a_folder_of_vectors_is_no_model(vectors: Path) -> None:
    with pytest.raises(InputError, match=r"vectors: holds vectors; call it vectors:/.*/vectors$"):
        check_model(str(vectors))


def test_what_vectors_lack_is_said_before_training(config, vectors, tmp_path):
    given = {**config, "teacher": f"vectors:{vectors}", "teacher_images": "", "out": tmp_path / "a"}
    with pytest.raises(InputError, match="no words; word_weight=0"):
        groundling.adapt(**given | {"arm": "contrastive"})
    others = tmp_path / "others"
    shutil.copytree(vectors, others)
    file = others / "images-00000.txt"
    file.write_text(file.read_text().replace("3", "x", 1))
    with pytest.raises(InputError, match="no vector of the image '3'"):
        groundling.adapt(**given | {"teacher": f"vectors:{others}"})


# -- `train-clip` against frozen image features: what it trains, what it writes, and that both libra


@pytest.fixture(scope="module")
def locked_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve photos with captions, their vectors, and models."""
    locked_home = tmp_path_factory.mktemp("locked")
    images = [(number, f"{number}.png") for number in range(12)]
    for number, name in images:
        homes.noise(locked_home / "photos" / name, (16, 16), number)
    sentences = toys.sentences()
    homes.coco(locked_home / "captions.json", images, [(n % 12, sentences[n]) for n in range(24)])
    homes.seeing_clip(locked_home / "clip")
    homes.sentence_encoder(locked_home / "encoder")
    groundling.embed(
        teacher=locked_home / "clip",
        images=locked_home / "photos",
        out=locked_home / "vectors",
        cpu=True,
    )
    return locked_home


def trained(locked_home: Path, out: Path, **settings: Any) -> dict[str, Any]:
    given = {"captions": locked_home / "captions.json", "images": locked_home / "photos"}
    given |= {"steps": 4, "batch": 6, "lr": 1e-3, "projection_dim": 16, "cpu": True}
    return groundling.train_clip(**{**given, **settings}, out=out)


def test_stored_vectors_are_as_good_as_the_model(locked_home: Path, tmp_path: Path) -> None:
    settings = {
        "text_model": locked_home / "encoder",
        "head_layers": 2,
        "eval_captions": locked_home / "captions.json",
    }
    live = trained(locked_home, tmp_path / "live", image_model=locked_home / "clip", **settings)
    stored = f"vectors:{locked_home / 'vectors'}"
    given = trained(locked_home, tmp_path / "given", image_model=stored, images="", **settings)
    assert given["train_metrics"] == live["train_metrics"]
    assert given["retrieval"]["images"] == 12
    assert 'SentenceTransformer("FOLDER")' in (tmp_path / "given/model/README.md").read_text()
    for name in ("model/model.safetensors", "model/image_head.safetensors"):
        one, other = (tmp_path / side / name for side in ("live", "given"))
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("freeze", [True, False])
def test_a_text_encoder_becomes_a_sentence_encoder_of_the_joint_space(
    freeze, locked_home, tmp_path
):
    settings = {"text_model": locked_home / "encoder", "head_layers": 2, "freeze_text": freeze}
    result = trained(
        locked_home, tmp_path, image_model=f"vectors:{locked_home / 'vectors'}", **settings
    )
    folder = tmp_path / "model"
    before = load_text_encoder(locked_home / "encoder").encoder.state_dict()
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


def test_a_killed_run_on_frozen_texts_ends_as_a_whole_one(locked_home, tmp_path):
    stored = f"vectors:{locked_home / 'vectors'}"
    frozen = {"text_model": locked_home / "encoder", "freeze_text": True, "image_model": stored}

    def recipe(config: object, steps: object, out: Path) -> None:
        trained(locked_home, out, **frozen, head_layers=2, save_every=1)

    whole, resumed = homes.whole_and_resumed(recipe, None, None, tmp_path, "model", at=3)
    assert whole == resumed and len(whole) > 3


def test_a_frozen_encoders_vectors_are_those_of_its_tokens(locked_home: Path) -> None:
    """Computed once, before training, so no step runs the encoder."""
    text = load_text_encoder(locked_home / "encoder")
    tower = EncoderText(text, make_head(text.sizes.text, 16, 2), freeze=True)
    model = LockedDualEncoder(tower, text.tokenizer, make_head(8, 16, 2)).eval()
    examples = [Example(f"{place}", one) for place, one in enumerate(toys.sentences()[:5])]
    rows = ClipRowEncoder(text.tokenizer, tower.context_length, max_windows=1)
    live = TextDataset(examples, None, rows)
    frozen = FrozenTexts(live, tower.vectors(live))
    batches = [collate(some.get(range(5), ())) for some in (live, frozen)]
    assert batches[1].clip is None
    torch.testing.assert_close(*(model(batch).text_embeds for batch in batches))


def test_without_a_text_encoder_the_text_tower_is_clips(locked_home: Path, tmp_path: Path) -> None:
    small = {"text_tower": (32, 1), "vocab_size": 600}
    stored = f"vectors:{locked_home / 'vectors'}"
    trained(locked_home, tmp_path, image_model=stored, images="", loss="sigmoid", **small)
    tower, _ = load_clip_text_tower(tmp_path / "model")
    assert tower.embed_dim == 16
    card = (tmp_path / "model/README.md").read_text()
    assert 'CLIPTextModelWithProjection.from_pretrained("FOLDER")' in card


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"images": ""}, "needs images=FOLDER"),
        ({"freeze_text": True}, "freeze_text: .*image_model"),
        ({"image_model": "clip", "model": "clip"}, "leave out model"),
    ],
)
def test_settings_that_do_not_fit_are_refused(
    settings, message, locked_home, tmp_path, monkeypatch
):
    monkeypatch.chdir(locked_home)
    with pytest.raises(InputError, match=message):
        trained(locked_home, tmp_path / "out", **settings)


# -- `groundling merge`: weights_of between two models, by layer or whole, and folders that transfor


def new_encoder(folder: Path, seed: int, head: bool = False) -> Path:
    config = toys.bert(len(homes.words())).config
    torch.manual_seed(seed)
    model = BertForMaskedLM(config) if head else AutoModel.from_config(config)
    return homes.home(folder, model, homes.words())


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    return dict(AutoModel.from_pretrained(folder).named_parameters())


@pytest.mark.parametrize("head", [False, True])
def test_one_share_is_a_straight_line(head: bool, tmp_path: Path) -> None:
    given, origin = new_encoder(tmp_path / "given", 1, head), new_encoder(tmp_path / "origin", 2)
    result = groundling.merge(model=given, origin=origin, share=(0.25,), out=tmp_path / "out")
    one, other, found = (weights_of(f) for f in (given, origin, tmp_path / "out/model"))
    for name, value in found.items():
        if "pooler" not in name:  # a model with a head has none
            torch.testing.assert_close(value, 0.25 * one[name] + 0.75 * other[name])
    assert result["merged"] > 30
    assert bool(result["alone"]) == head
    for share, expected in ((0.0, other), (1.0, one)):
        out = tmp_path / f"out{share}"
        groundling.merge(model=given, origin=origin, share=(share,), out=out)
        same = [
            torch.equal(value, expected[name]) for name, value in weights_of(out / "model").items()
        ]
        assert all(same[:-2])


def test_each_layer_has_its_share(tmp_path: Path) -> None:
    given, origin = new_encoder(tmp_path / "given", 1), new_encoder(tmp_path / "origin", 2)
    layers = AutoModel.from_pretrained(given).config.num_hidden_layers
    shares = (0.0, *(1.0 for _ in range(layers)))
    groundling.merge(model=given, origin=origin, share=shares, out=tmp_path / "out")
    one, other, found = (weights_of(f) for f in (given, origin, tmp_path / "out/model"))
    for name, value in found.items():
        assert torch.equal(value, (other if name.startswith("embeddings") else one)[name]), name
    with pytest.raises(InputError, match=r"2 shares, but .* is of layer 2"):
        groundling.merge(model=given, origin=origin, share=(0.0, 1.0), out=tmp_path / "bad")


def test_gpt2s_embeddings_have_the_first_share(tmp_path: Path) -> None:
    for seed, name in enumerate(("given", "origin")):
        torch.manual_seed(seed)
        config = GPT2Config(vocab_size=len(homes.words()), n_embd=32, n_layer=1, n_head=2)
        homes.home(tmp_path / name, GPT2LMHeadModel(config), homes.words())
    given, origin, out = tmp_path / "given", tmp_path / "origin", tmp_path / "out"
    groundling.merge(model=given, origin=origin, share=(0.0, 1.0), out=out)
    one, other, found = (weights_of(f) for f in (given, origin, out / "model"))
    for name, value in found.items():
        assert torch.equal(value, (other if name[:4] in ("wte.", "wpe.") else one)[name]), name


@pytest.mark.parametrize("others", [{}, {"kept": torch.nn.Linear(2, 2)}])
def test_the_head_of_a_merged_language_model_is_the_merged_one(others, tmp_path: Path) -> None:
    given, origin = (new_encoder(tmp_path / name, n, True) for n, name in enumerate(("a", "b")))
    text = load_text_encoder(given)
    head, _ = load_lm_head(text, given)
    save_heads(given, {LM_HEAD: head, **others})  # as `adapt --arm mlm` does
    groundling.merge(model=given, origin=origin, share=(0.25,), out=tmp_path / "out")
    merged = tmp_path / "out/model"
    found, _ = load_lm_head(load_text_encoder(merged), merged)
    whole = BertForMaskedLM.from_pretrained(merged)
    for name, value in found.state_dict().items():
        assert torch.equal(value, whole.state_dict()[name]), name
    assert (merged / HEADS).exists() == bool(others)


def test_modules_of_a_sentence_encoder_keep_apart(tmp_path: Path) -> None:
    # Two Dense modules have weights of one name, in a folder each; here even of one shape.
    values = {"given": (1.0, 2.0), "origin": (3.0, 4.0)}
    for name, numbers in values.items():
        new_encoder(tmp_path / name, 1)
        for module, value in zip(("2_Dense", "3_Dense"), numbers, strict=True):
            (tmp_path / name / module).mkdir()
            weights = {"linear.weight": torch.full((2, 2), value)}
            save_file(weights, tmp_path / name / module / "model.safetensors")
    given, origin, out = tmp_path / "given", tmp_path / "origin", tmp_path / "out"
    groundling.merge(model=given, origin=origin, share=(0.0,), out=out)
    for module, value in zip(("2_Dense", "3_Dense"), values["origin"], strict=True):
        weights = load_file(out / "model" / module / "model.safetensors")
        assert torch.equal(weights["linear.weight"], torch.full((2, 2), value)), module


def test_other_models_are_refused(tmp_path: Path) -> None:
    given = new_encoder(tmp_path / "given", 1)
    homes.home(tmp_path / "wide", toys.bert(len(homes.words()), positions=80), homes.words())
    with pytest.raises(InputError, match=r"position_embeddings.* has another shape"):
        groundling.merge(model=given, origin=tmp_path / "wide", out=tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no safetensors"):
        groundling.merge(model=given, origin=tmp_path / "empty", out=tmp_path / "other")
