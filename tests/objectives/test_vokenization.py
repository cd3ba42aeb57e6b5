"""Vokenization: both losses restated in numpy, the vokenizer as a teacher, and both stages as runs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, log_of, never
from tiny.objectives import captioned_run, tokens_of
from torch import Tensor, nn
from transformers import AutoModel

import groundling
from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import (
    IGNORE,
    Batch,
    EncoderOutput,
    Example,
    OutputSizes,
    Sample,
    TextRow,
    Tokens,
    collate,
)
from groundling.core.errors import InputError
from groundling.core.rng import generator
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.clip import load_clip_image_tower
from groundling.models.frozen_clip import FrozenClip
from groundling.models.heads import (
    MATCHING_HEADS,
    TokenImageMatchingHeads,
    load_matching_heads,
    save_heads,
)
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.objectives.vokenization import DRAW, IMAGE, TokenImageMatching, VokenClassification
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.objectives import ObjectiveSettings, TargetedDistillationSettings
from groundling.teachers import TeacherContext
from groundling.teachers.clip import ClipTeacher
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.teachers.vokens import VokenImages, VokenTeacher, make_voken_teacher


def texts_of(lengths: list[int]) -> Tokens:
    """Rows of [CLS], so many ordinary tokens, [SEP], and padding."""
    place = torch.arange(max(lengths) + 2).expand(len(lengths), -1)
    last = torch.tensor(lengths)[:, None] + 1
    ordinary = (place > 0) & (place < last)
    return tokens_of((place <= last).long() + ((place <= last) & ~ordinary))


def matching_batch(
    lengths: list[int], images: Tensor, numbers: list[int], draws: list[int]
) -> Batch:
    return Batch(
        tuple(str(row) for row in range(len(lengths))),
        text=texts_of(lengths),
        features={"clip_image": images},
        labels={IMAGE: torch.tensor(numbers), DRAW: torch.tensor(draws)},
    )


def layered(states: Tensor, *earlier: Tensor) -> EncoderOutput:
    """What an encoder returns whose embeddings and layers are `earlier` and `states`."""
    return EncoderOutput(text=states, layers=(*earlier, states))


def plain_matching(**options: Any) -> TokenImageMatching:
    """Vectors of two dimensions that no head changes."""
    sizes = OutputSizes(text=2, teacher_image=2)
    one = TokenImageMatching(sizes, vokenizer_head="none", vokenizer_layers=1, **options)
    one.heads.image = nn.Identity()
    return one


# -- the hinge ---------------------------------------------------------------------------------------------------------
STATES = torch.tensor(
    [
        # [CLS]     token       [SEP]       padding
        [[1.0, 0.0], [3.0, 4.0], [0.0, 2.0], [9.0, 9.0]],
        # [CLS]     token       token       [SEP]
        [[5.0, 0.0], [4.0, 3.0], [0.0, 7.0], [0.0, 1.0]],
    ]
)
IMAGES = torch.tensor([[1.0, 0.0], [0.0, 1.0]])


def in_numpy(
    one: TokenImageMatching, layers: list[Tensor], batch: Batch, negatives: list[int | None]
) -> float:
    """The loss from its formula: one token after the other."""

    def head(part: str, vector: np.ndarray) -> np.ndarray:
        weights = {key: x.detach().double().numpy() for key, x in one.heads.named_parameters()}
        if f"{part}.0.weight" in weights:
            vector = weights[f"{part}.0.weight"] @ vector + weights[f"{part}.0.bias"]
            vector = np.where(vector > 0, vector, 0)
            vector = weights[f"{part}.3.weight"] @ vector + weights[f"{part}.3.bias"]
        return vector / math.sqrt(sum(x * x for x in vector))

    assert batch.text is not None
    images = [head("image", row.double().numpy()) for row in batch.features["clip_image"]]
    total = 0.0
    for row, negative in enumerate(negatives):
        if negative is None:
            continue
        for place in range(batch.text.input_ids.shape[1]):
            special = batch.text.special_tokens_mask[row, place]
            is_left_out = special and one.settings.vokenizer_hinge == "paper"
            if is_left_out or not batch.text.attention_mask[row, place]:
                continue
            state = np.concatenate([layer[row, place].double().numpy() for layer in layers])
            token = head("text", state)
            gap = one.settings.vokenizer_margin - token @ images[row] + token @ images[negative]
            total += max(0.0, gap)
    return total


def candidates(numbers: list[int], draws: list[int]) -> list[int | None]:
    """Of each row, the draw's choice among the rows of other images."""
    chosen: list[int | None] = []
    for number, draw in zip(numbers, draws, strict=True):
        others = [place for place, other in enumerate(numbers) if other != number]
        chosen.append(others[draw % len(others)] if others else None)
    return chosen


@pytest.mark.parametrize("head", ["mlp", "none"])
@pytest.mark.parametrize("hinge", ["paper", "released"])
def test_the_hinge_is_its_formula(head: str, hinge: str) -> None:
    torch.manual_seed(0)
    sizes = OutputSizes(text=6, teacher_image=5)
    options = {"vokenizer_layers": 2, "vokenizer_width": 7, "vokenizer_margin": 0.3}
    one = TokenImageMatching(sizes, vokenizer_head=head, vokenizer_hinge=hinge, **options).eval()
    numbers, draws = [4, 4, 9, 2, 9, 4], [0, 5, 17, 2, 1 << 61, 3]
    images = torch.randn(6, 5)
    images[[1, 5]] = images[0].clone()
    batch = matching_batch([3, 1, 4, 2, 2, 5], images, numbers, draws)
    layers = list(torch.randn(4, 6, 7, 6))  # the embeddings, and three layers
    negatives = candidates(numbers, draws)
    if hinge == "released":
        negatives = [3, 4, 5, 0, 1, 2]
    found = one(EncoderOutput(text=layers[-1], layers=tuple(layers)), batch)
    expected = in_numpy(one, layers[-2:], batch, negatives)
    assert expected > 1
    # Six texts of 17 tokens; [CLS] and [SEP] are scored in the released code.
    assert one.count(batch) == {"token_image_matching": 17 + 12 * (hinge == "released")}
    assert found["token_image_matching"].item() == pytest.approx(expected, rel=1e-5)


def test_a_caption_without_another_image_adds_nothing() -> None:
    batch = matching_batch([1, 2], IMAGES, [10, 10], [3, 8])
    states = STATES.clone().requires_grad_()
    one = plain_matching(vokenizer_frozen=False)
    loss = one(layered(states, STATES), batch)["token_image_matching"]
    loss.backward()
    assert loss.item() == 0 and not states.grad.any()
    assert one.count(batch) == {"token_image_matching": 3}


def test_labels_follow_from_the_key_and_the_image() -> None:
    def labels(name: str, image: str, key: int) -> tuple[int, int]:
        sample = Sample(name, example=Example(name, "a dog", images=(image,) if image else ()))
        made = plain_matching().corrupt(sample, generator(key), never).labels
        return int(made[IMAGE]), int(made[DRAW])

    assert labels("a", "photo", 0) == labels("b", "photo", 0)
    for other in (labels("a", "other", 0), labels("a", "", 0), labels("b", "", 0)):
        assert labels("a", "photo", 0)[0] != other[0]
    assert labels("a", "", 0)[0] != labels("b", "", 0)[0]
    assert labels("a", "photo", 0)[1] != labels("a", "photo", 1)[1]


def test_only_the_heads_train_unless_the_encoder_does() -> None:
    for frozen in (True, False):
        one = TokenImageMatching(
            OutputSizes(text=2, teacher_image=2), vokenizer_layers=1, vokenizer_frozen=frozen
        )
        states = STATES.clone().requires_grad_()
        batch = matching_batch([1, 2], IMAGES, [10, 11], [3, 8])
        one(layered(states, STATES), batch)["token_image_matching"].backward()
        assert (states.grad is None) == frozen
        assert all(parameter.grad is not None for parameter in one.parameters())


def test_the_heads_are_the_releases() -> None:
    heads = TokenImageMatching(OutputSizes(text=8, teacher_image=5), vokenizer_width=3).heads
    assert [heads.text[0].in_features, heads.text[3].out_features] == [32, 3]
    assert [heads.image[0].in_features, heads.image[3].out_features] == [5, 3]
    assert [heads.text[0].out_features, heads.text[2].p] == [256, 0.3]


def test_more_layers_than_there_are_are_refused() -> None:
    one = TokenImageMatching(OutputSizes(text=2, teacher_image=2))
    with pytest.raises(InputError, match=r"^vokenizer_layers=4: this encoder has 1 layers; set at"):
        one(layered(STATES, STATES), matching_batch([1, 2], IMAGES, [10, 11], [3, 8]))


# -- voken classification ----------------------------------------------------------------------------------------------
def voken_batch(lengths: list[int], vokens: Tensor, **labels: Tensor) -> Batch:
    ids = tuple(str(row) for row in range(len(lengths)))
    return Batch(ids, text=texts_of(lengths), features={"voken": vokens}, labels=labels)


def classified_in_numpy(
    one: VokenClassification, states: Tensor, targets: list[list[int]]
) -> float:
    """Cross-entropy of the head's formula; a negative target is not scored."""
    inner, _, norm, outer = one.head
    parameters = (one for layer in (inner, norm, outer) for one in (layer.weight, layer.bias))
    w, b, gain, shift, out, bias = (one.detach().double().numpy() for one in parameters)
    total = 0.0
    for row, goals in enumerate(targets):
        for place, goal in enumerate(goals):
            if goal < 0:
                continue
            hidden = w @ states[row, place].double().numpy() + b
            hidden = np.array([x * 0.5 * (1 + math.erf(x / math.sqrt(2))) for x in hidden])
            spread = math.sqrt(hidden.var() + norm.eps)
            logits = out @ (gain * (hidden - hidden.mean()) / spread + shift) + bias
            total += math.log(np.exp(logits).sum()) - logits[goal]
    return total


def test_voken_classification_is_its_formula() -> None:
    torch.manual_seed(0)
    one = VokenClassification(OutputSizes(text=6, teacher=9))
    states = torch.randn(3, 6, 6)
    vokens = torch.randint(9, (3, 6), dtype=torch.int32)
    # The second token of the first text is masked, and scored as all others.
    masked = torch.full((3, 6), IGNORE)
    masked[0, 2] = 5
    batch = voken_batch([4, 1, 2], vokens, masked_lm=masked)
    tokens = batch.text
    assert tokens is not None
    targets = vokens.long().masked_fill(tokens.special_tokens_mask, -1).tolist()
    found = one(EncoderOutput(text=states), batch)["voken_classification"]
    assert found.item() == pytest.approx(classified_in_numpy(one, states, targets), rel=1e-5)
    assert one.count(batch) == {"voken_classification": 7}


def text_sample(length: int) -> Sample:
    special = np.array([True] + [False] * length + [True])
    zeros = np.zeros(length + 2, np.int64)
    row = TextRow(np.arange(length + 2), special, zeros, zeros, 0)
    vokens = np.where(special, 0, 100 + np.arange(length + 2)).astype(np.int32)
    return Sample("a", text=row, features={"voken": vokens})


def test_random_vokens_are_any_equally_often() -> None:
    one = VokenClassification(OutputSizes(text=2, teacher=5), voken_control="random")
    found: Counter[int] = Counter()
    for key in range(1000):
        label = one.corrupt(text_sample(3), generator(key), never).labels["voken_classification"]
        assert label[[0, -1]].tolist() == [IGNORE, IGNORE]
        found.update(label[1:-1].tolist())
    assert set(found) == set(range(5))
    assert all(abs(count - 600) < 5 * math.sqrt(3000 * 4 / 25) for count in found.values())


def test_shuffled_and_reversed_vokens_are_those_of_the_text() -> None:
    def targets(control: str, key: int) -> list[int]:
        one = VokenClassification(OutputSizes(text=2, teacher=200), voken_control=control)
        samples = [one.corrupt(text_sample(length), generator(key), never) for length in (3, 2)]
        return one._targets(collate(samples)).tolist()

    assert targets("none", 0) == [101, 102, 103, 101, 102]
    assert targets("reversed", 0) == [103, 102, 101, 102, 101]
    found = {tuple(targets("shuffled", key)) for key in range(200)}
    assert {(*sorted(one[:3]), *sorted(one[3:])) for one in found} == {(101, 102, 103, 101, 102)}
    assert len({one[:3] for one in found}) == 6


# -- the vokenizer as a teacher ----------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a CLIP, photos with captions, a bank of other photos, and a text."""
    root = tmp_path_factory.mktemp("vokens")
    captioned_run(root, "mlm")
    for number in range(7):
        place = root / "bank" / ("deep" if number % 2 else "")
        homes.noise(place / f"{number}.png", (16, 18), 50 + number)
    homes.text(root / "text.txt")
    return root


def matcher(
    folder: Path, student: Path, image: int = 24, layers: int = 2, head: bool = True
) -> Path:
    """A folder as the first stage writes it, with heads that were never trained."""
    load_text_encoder(student).export(folder)
    torch.manual_seed(2)
    heads = TokenImageMatchingHeads(32 * layers, image, width=6, has_text_head=head)
    save_heads(folder, {MATCHING_HEADS: heads})
    return folder


def given(place: Path, settings: dict[str, Any], teacher: str = "clip") -> TeacherContext:
    made = make_settings(ObjectiveSettings, **settings)
    tokenizer = homes.words()
    return TeacherContext(str(place / teacher), frozenset({"voken"}), made, None, tokenizer)


@pytest.mark.parametrize("head", [True, False])
def test_vokens_are_the_best_images(place: Path, tmp_path: Path, head: bool) -> None:
    folder = matcher(tmp_path / "matcher", place / "student", head=head)
    settings = {"voken_matcher": str(folder), "voken_images": str(place / "bank")}
    teacher = make_voken_teacher(given(place, settings))
    assert isinstance(teacher, VokenTeacher) and teacher.width == 7
    texts = TextDataset(toys.examples(9), TextRowEncoder(homes.words(), 40))
    taught = TeacherDataset(texts, teacher, FeatureCache())
    # The images' features are those that the first stage reads.
    files = {"0": "0", "1": "deep/1", "2": "2", "3": "deep/3", "4": "4", "5": "deep/5", "6": "6"}
    order = sorted(files.values())
    examples = [Example(name, "a", images=(name,)) for name in order]
    clip = FrozenClip(load_clip_image_tower(place / "clip"), None)
    options = TargetedDistillationSettings(teacher_images=str(place / "bank"))
    shown = TextDataset(examples, TextRowEncoder(homes.words(), 8))
    seen = TeacherDataset(shown, ClipTeacher(clip, ["clip_image"], options), FeatureCache())
    every = [np.array(one.features["clip_image"]) for one in seen.get(range(7))]
    features = torch.from_numpy(np.stack(every))
    heads = load_matching_heads(folder)
    images = heads.image(features)
    images = images / images.norm(dim=-1, keepdim=True)
    encoder = AutoModel.from_pretrained(folder).eval()
    found = set()
    for sample in taught.get(range(9)):
        row = sample.text
        with torch.no_grad():
            out = encoder(
                torch.from_numpy(row.input_ids)[None],
                token_type_ids=torch.from_numpy(row.token_type_ids)[None],
                output_hidden_states=True,
            ).hidden_states
        expected = []
        for token, special in enumerate(row.special_tokens_mask):
            state = heads.text(torch.cat([out[-2][0, token], out[-1][0, token]]))
            scores = [float(state @ image) for image in images]
            expected.append(0 if special else scores.index(max(scores)))
        assert sample.features["voken"].tolist() == expected
        assert sample.features["voken"].dtype == np.int32
        found |= set(expected)
    assert len(found) > 1


def test_the_key_follows_space_images_and_heads(place: Path, tmp_path: Path) -> None:
    clip = FrozenClip(load_clip_image_tower(place / "clip"), None)
    spaces = ("joint", "pre_projection")
    joint, before = (VokenImages(place / "bank", clip, space) for space in spaces)
    assert joint.features().shape == (7, 24) and before.features().shape == (7, 32)
    keys = {str(joint.key), str(before.key)}
    for layers in (1, 2):
        folder = matcher(tmp_path / str(layers), place / "student", layers=layers)
        for images in ("bank", "photos"):
            settings = {"voken_matcher": str(folder), "voken_images": str(place / images)}
            keys.add(str(make_voken_teacher(given(place, settings)).key()))
    assert len(keys) == 6


def test_what_does_not_fit_is_refused(place: Path, tmp_path: Path) -> None:
    folder = matcher(tmp_path / "matcher", place / "student")
    right = {"voken_matcher": str(folder), "voken_images": str(place / "bank")}
    words = toys.roberta_words()
    TextEncoder(toys.roberta(len(words)), words).export(tmp_path / "roberta")
    strange = matcher(tmp_path / "strange", tmp_path / "roberta")
    homes.noise(tmp_path / "one" / "a.png", (16, 16))
    for changed, told in (
        ({"voken_matcher": ""}, r"^voken_classification needs voken_matcher=FOLDER"),
        ({"voken_images": ""}, r"^voken_classification needs voken_images=FOLDER"),
        ({"voken_matcher": place / "student"}, r"groundling_heads\.safetensors: has no heads"),
        ({"voken_matcher": strange}, "its tokenizer differs from the student's"),
        ({"voken_images": tmp_path / "one"}, "vokens need at least 2 images"),
    ):
        with pytest.raises(InputError, match=told):
            make_voken_teacher(given(place, right | changed))
    wide = matcher(tmp_path / "wide", place / "student", image=20)
    teacher = make_voken_teacher(given(place, right | {"voken_matcher": wide}))
    with pytest.raises(InputError, match="was trained with another teacher or teacher_space"):
        teacher.features(collate([text_sample(3)]))
    text = TextDataset([Example("a", "a dog " * 60)], TextRowEncoder(homes.words(), 100))
    with pytest.raises(InputError, match=r"set max_length=64"):
        TeacherDataset(text, make_voken_teacher(given(place, right)), FeatureCache())


def test_token_ids_as_vokens(place: Path) -> None:
    teacher = make_voken_teacher(given(place, {"voken_control": "token_id"}))
    assert teacher.width == len(homes.words())
    texts = TextDataset(toys.examples(4), TextRowEncoder(homes.words(), 40))
    for sample in TeacherDataset(texts, teacher, FeatureCache()).get(range(4)):
        assert sample.features["voken"].tolist() == sample.text.input_ids.tolist()


# -- runs --------------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def first(place: Path) -> AdaptConfig:
    return make_settings(
        AdaptConfig,
        student=str(place / "student"),
        teacher=str(place / "clip"),
        teacher_images=str(place / "photos"),
        text=(str(place / "captions.json"),),
        arm="token_image_matching",
        vokenizer_layers=2,
        max_length=40,
    )


@pytest.fixture(scope="module")
def vokenizer(place: Path, first: AdaptConfig) -> Path:
    adapt(first, STEPS, place / "vokenizer")
    return place / "vokenizer" / "model"


@pytest.fixture(scope="module")
def second(place: Path, first: AdaptConfig, vokenizer: Path) -> AdaptConfig:
    return replace_settings(
        first,
        text=(str(place / "text.txt"),),
        arm="mlm+voken_classification",
        teacher_images="",
        voken_matcher=str(vokenizer),
        voken_images=str(place / "bank"),
        teacher_cache=str(place / "cache"),
    )


@pytest.fixture(scope="module")
def classified(place: Path, second: AdaptConfig) -> tuple[Path, dict[str, Any]]:
    return place / "classified", adapt(second, STEPS, place / "classified")


def test_vectors_of_the_same_teacher_give_the_same_vokens(
    place: Path,
    first: AdaptConfig,
    second: AdaptConfig,
    classified: tuple[Path, dict[str, Any]],
    tmp_path: Path,
) -> None:
    """Both stages, to the last bit: captions and bank have vectors in place of images."""
    for name in ("photos", "bank"):
        groundling.embed(teacher=place / "clip", images=place / name, cpu=True, out=tmp_path / name)
    stored = {"teacher": f"vectors:{tmp_path / 'photos'}", "teacher_images": ""}
    adapt(replace_settings(first, **stored), STEPS, tmp_path / "vokenizer")
    heads = "model/groundling_heads.safetensors"
    written = (tmp_path / "vokenizer" / heads).read_bytes()
    assert written == (place / "vokenizer" / heads).read_bytes()
    pooled = replace_settings(
        second,
        teacher=f"vectors:{tmp_path / 'bank'}",
        voken_matcher=tmp_path / "vokenizer/model",
        voken_images="",
    )
    adapt(pooled, STEPS, tmp_path / "every")
    assert log_of(tmp_path / "every") == log_of(classified[0])
    some = replace_settings(pooled, voken_images=place / "bank/deep")
    adapt(some, replace(STEPS, steps=1), tmp_path / "some")
    assert len(voken_head(tmp_path / "some")) == 3


def test_the_first_stage(place: Path, vokenizer: Path) -> None:
    log = log_of(vokenizer.parent)
    assert all(0 < line["token_image_matching"] < 1.5 for line in log)
    heads = load_file(vokenizer / "groundling_heads.safetensors")
    assert {name.rsplit(".", 2)[0] for name in heads} == {
        "token_image_matching.text",
        "token_image_matching.image",
    }
    loaded = load_matching_heads(vokenizer)
    assert (loaded.states_width, loaded.image_width, loaded.width) == (64, 24, 64)


def voken_head(out: Path) -> Tensor:
    heads = load_file(out / "model" / "groundling_heads.safetensors")
    return heads["voken_classification.head.3.weight"]


def test_the_second_stage(classified: tuple[Path, dict[str, Any]]) -> None:
    out, result = classified
    assert set(result["train_metrics"]) == {"mlm", "voken_classification", "loss"}
    # Seven images: a new head knows no more than chance.
    chance = pytest.approx(math.log(7), abs=0.7)
    assert log_of(out)[0]["voken_classification"] == chance
    assert voken_head(out).shape == (7, 32)


def test_vokens_are_computed_once(second, classified, tmp_path, monkeypatch):
    live = replace_settings(second, cache_gb=0.0)
    adapt(live, STEPS, tmp_path / "live")
    second = replace_settings(second, cache_gb=1e-9)
    monkeypatch.setattr(VokenTeacher, "features", never)
    adapt(second, STEPS, tmp_path / "two")
    assert log_of(classified[0]) == log_of(tmp_path / "two") == log_of(tmp_path / "live")


@pytest.mark.parametrize("control", ["random", "token_id"])
def test_controls(control, second, classified, tmp_path):
    once = replace(STEPS, steps=1)
    adapt(replace_settings(second, voken_control=control), once, tmp_path / control)
    real, other = log_of(classified[0]), log_of(tmp_path / control)
    assert real[0]["mlm"] == other[0]["mlm"], "the same masks"
    assert real[0]["voken_classification"] != other[0]["voken_classification"]
    vokens = len(homes.words()) if control == "token_id" else 7
    assert len(voken_head(tmp_path / control)) == vokens


def test_the_teachers_images_are_the_bank_unless_another_is_given(place, second, tmp_path):
    config = replace_settings(second, voken_images="", teacher_images=str(place / "photos"))
    adapt(config, replace(STEPS, steps=1), tmp_path)
    assert len(voken_head(tmp_path)) == 8
