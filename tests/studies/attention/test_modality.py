"""Modality importance, ablation and attributions: worked cases, plain loops, planted differences."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from tiny import homes, toys
from tiny.homes import STEPS, put
from tiny.regions import store
from transformers import CLIPImageProcessorPil

from groundling.cli import main
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Batch, Example, Sample, TextRow, collate
from groundling.core.errors import InputError
from groundling.core.metrics import ACCURACY, F1
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    RegionSelection,
    Regression,
)
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import MappedDataset, SampleDataset, TextDataset, TextRowEncoder
from groundling.models.attention import AttentionMap, PositionKind, SequencePositions
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.heads import LM_HEAD, save_heads
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.studies.attention import modality as analysis
from groundling.studies.attention.answers import (
    INPUT_CONDITIONS,
    HiddenWordsOutcome,
    MatchOutcome,
    RightAnswerOutcome,
    blank_words,
    measure_outcomes,
    right_answer_probability,
    shuffle_words,
    swap_texts,
    undefined_reason,
    zero_region_features,
)
from groundling.studies.attention.commands import MODALITY, ModalityConfig
from groundling.studies.attention.importance import (
    Bootstrap,
    ClsAttention,
    ImportanceEstimate,
    ModalityImportance,
    attention_by_modality,
    compare_importance,
    right_choice_row,
)
from groundling.studies.attention.inspected_models import AttentionBatch
from groundling.teachers.clip import ClipTeacher
from groundling.vision_language.uniter import uniter
from groundling.vision_language.visualbert import visualbert
from groundling.vision_language.vlbert import vlbert

NAMES_OF_KINDS = ("PADDING", "TOKEN", "SPECIAL", "REGION", "WHOLE_IMAGE", "ADDED")
P, T, S, R, W, A = (PositionKind[name] for name in NAMES_OF_KINDS)


def places(*rows: list[PositionKind]) -> SequencePositions:
    holds = torch.tensor([[int(one) for one in row] for row in rows])
    return SequencePositions(holds, torch.arange(holds.shape[1]).expand_as(holds))


def a_map(
    weights: torch.Tensor, *rows: list[PositionKind], layer: int = 0, name: str = "self"
) -> Any:
    where = places(*rows)
    return AttentionMap(name, layer, weights, where, where)


def seen(*names: str, labels: Any = None, choices: int = 0) -> AttentionBatch:
    samples = []
    for number, name in enumerate(names):
        label = {} if labels is None else {"label": np.array(labels[number])}
        samples.append(Sample(name, labels=label, choices=(Sample(name),) * choices))
    return AttentionBatch(Batch(names), samples, range(len(names)))


def masses(*maps: AttentionMap, count: int = 1) -> ModalityImportance:
    one = ModalityImportance()
    for each in maps:
        one.consume(seen(*(f"s{n}" for n in range(count))), each)
    return one


# -- masses ------------------------------------------------------------------------------------------------------------
WORKED = [S, T, T, T, R, R, R, R, S]


def test_worked_cases() -> None:
    """Even attention over [CLS], 3 words, 4 regions, [SEP]; all attention on one region; padding and [END]."""
    even = torch.full((1, 2, 9, 9), 1 / 9)
    one_hot = torch.zeros(1, 2, 9, 9)
    one_hot[..., 5] = 1
    found = masses(a_map(even, WORKED), a_map(one_hot, WORKED, layer=1))
    np.testing.assert_allclose(found.by_head[0], [[4 / 9, 3 / 9, 2 / 9]] * 2, atol=1e-7)
    np.testing.assert_allclose(found.by_head[1], [[1, 0, 0]] * 2)
    np.testing.assert_allclose(found.uniform, [[4 / 9, 3 / 9, 2 / 9]])
    weights = torch.tensor([0.1, 0.2, 0.1, 0, 0.3, 0.2, 0.1, 0]).expand(1, 1, 8, 8)
    one = masses(a_map(weights, [S, T, S, P, W, R, A, P]))
    np.testing.assert_allclose(one.rows.stacked()[0, 0], [0.5, 0.2, 0.3], atol=1e-7)
    np.testing.assert_allclose(one.uniform[0], [2 / 6, 1 / 6, 3 / 6])


def test_masses_of_random_attention_by_a_plain_loop() -> None:
    rows = [[S, T, T, S, P, R, R, P], [S, T, S, P, P, W, R, R]]
    real = torch.tensor([[one != P for one in row] for row in rows])
    weights = torch.randn(2, 3, 8, 8).masked_fill(~real[:, None, None], -torch.inf).softmax(-1)
    found = attention_by_modality(a_map(weights, *rows))
    one = masses(a_map(weights, *rows), count=2)
    kinds = {0: (R, W), 1: (T,), 2: (S, A)}
    for n, row in enumerate(rows):
        for head in range(3):
            for kind, these in kinds.items():
                total = sum(float(weights[n, head, 0, j]) for j in range(8) if row[j] in these)
                assert float(found[n, head, kind]) == pytest.approx(total, abs=1e-6)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(one.by_head[0], found.mean(0), atol=1e-6)
    np.testing.assert_allclose(one.rows.stacked()[:, 0], found.mean(1), atol=1e-6)


def test_choices_count_as_one_example_and_the_right_one_is_looked_at() -> None:
    weights = torch.rand(4, 2, 4, 4).softmax(-1)
    one, looks = ModalityImportance(), ClsAttention()
    for consumer in (one, looks):
        batch = seen("a", "b", labels=[1, 0], choices=2)
        consumer.consume(batch, a_map(weights, *[[S, T, S, R]] * 4))
    of_rows = weights[:, :, 0, 3]
    np.testing.assert_allclose(one.by_head[0, :, 0], of_rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(one.rows.stacked()[0, 0, 0], of_rows[:2].mean(), rtol=1e-6)
    for found, row in zip(looks.attention.by_sample(), (1, 2), strict=True):
        np.testing.assert_allclose(found[0], weights[row, :, 0].mean(0), rtol=1e-6)
    assert right_choice_row(Sample("x", labels={"label": np.array(3)})) == 0


def test_layers_of_text_alone_are_passed_over_and_damage_is_named() -> None:
    text = torch.full((1, 1, 3, 3), 1 / 3)
    both = torch.full((1, 1, 4, 4), 1 / 4)
    one = masses(a_map(text, [S, T, S]), a_map(both, [S, T, S, R], layer=1))
    assert one.layers == [1] and one.by_head.shape == (1, 1, 3)
    with pytest.raises(InputError, match="two-stream"):
        masses(a_map(both, [S, T, S, R], name="text over regions"))
    with pytest.raises(InputError, match="attention of layer 0 does not sum to 1"):
        masses(a_map(both * torch.nan, [S, T, S, R]))
    with pytest.raises(InputError, match=r"off by 0\.2"):
        masses(a_map(both * 0.8, [S, T, S, R]))


def test_batches_are_in_the_order_of_samples() -> None:
    weights = torch.rand(4, 2, 4, 4).softmax(-1)
    rows = [[S, T, S, R]]
    whole = masses(a_map(weights, *rows * 4), count=4)
    parts, looks = ModalityImportance(), ClsAttention()
    for chosen in ([1, 2], [0, 3]):
        some = replace(seen("x", "y"), places=chosen)
        for consumer in (parts, looks):
            consumer.consume(some, a_map(weights[chosen], *rows * 2))
    for place, own in enumerate(looks.attention.by_sample()):
        np.testing.assert_allclose(own[0], weights[place, :, 0].mean(0), rtol=1e-6)
    np.testing.assert_array_equal(parts.rows.stacked(), whole.rows.stacked())
    np.testing.assert_array_equal(parts.uniform, whole.uniform)
    np.testing.assert_allclose(parts.by_head, whole.by_head)


# -- intervals and comparisons -----------------------------------------------------------------------------------------
def planted(visual: float, seed: int, layers: int = 2) -> ModalityImportance:
    """Importance of 60 examples of 30 images around a visual share."""
    rng = np.random.default_rng(seed)
    one = ModalityImportance()
    for layer in range(layers):
        share = visual + rng.normal(0, 0.01, (60, 3))
        rows = np.stack([share, 0.9 - share, np.full((60, 3), 0.1)], -1)
        one.heads[layer] = rows.sum(0)
        one.rows.put(list(range(60)), layer, rows.mean(1))
    one.even.put(list(range(60)), 0, np.array([[0.5, 0.4, 0.1]] * 60))
    return one


def test_a_planted_difference_is_found() -> None:
    bootstrap = Bootstrap([f"i{n // 2}" for n in range(60)], 0)
    before, after, deeper = (
        ImportanceEstimate(planted(*arguments), bootstrap)
        for arguments in ((0.3, 0), (0.35, 1), (0.3, 1, 3))
    )
    numbers = before.to_json()
    assert numbers["overall"]["gap"]["mean"] == pytest.approx(0.3, abs=0.01)
    assert numbers["ratio"]["visual"]["mean"] == pytest.approx(0.6, abs=0.02)
    found = compare_importance(before, after)
    for name, expected in {"visual": 0.05, "textual": -0.05, "special": 0, "gap": -0.1}.items():
        for row in (found["overall"], *found["by_layer"]):
            assert row[name]["mean"] == pytest.approx(expected, abs=0.01)
            assert row[name]["low"] <= row[name]["mean"] <= row[name]["high"]
    assert found["relative"]["gap_size"]["mean"] == pytest.approx(-1 / 3, abs=0.02)
    assert found["relative"]["gap_size"]["high"] < 0
    assert found["relative"]["visual"]["mean"] == pytest.approx(1 / 6, abs=0.02)
    assert set(compare_importance(before, before)["overall"]["gap"].values()) == {0.0}
    assert not {"by_layer", "by_head"} & compare_importance(before, deeper).keys()


def test_intervals_are_over_images_and_nan_is_no_value() -> None:
    values = np.array([[1.0, np.nan], [1.0, np.nan], [1.0, 5.0], [0.0, np.nan]])
    drawn = Bootstrap(["a", "a", "a", "b"], 0).means(values)
    assert drawn[0].tolist() == [0.75, 5.0]
    # Images are drawn with all examples: a twice, b twice, or each once.
    assert set(drawn[1:, 0]) == {0.0, 0.75, 1.0}
    assert set(drawn[1:, 1][np.isfinite(drawn[1:, 1])]) == {5.0}
    with pytest.raises(InputError, match="at least 2"):
        Bootstrap(["a"] * 4, 0).means(values)


# -- outcomes ----------------------------------------------------------------------------------------------------------
def test_the_share_of_what_is_right() -> None:
    out = torch.randn(2, 3)
    softmax = out.softmax(1)
    label = torch.tensor([2, 0])
    own = torch.stack([softmax[0, 2], softmax[1, 0]])
    pairs = torch.stack([torch.zeros(2, 3), out], -1).flatten(1)
    for scores, form in (
        (out, Classification(("a", "b", "c"))),
        (out, MultipleChoice(("0", "1", "2"))),
        (pairs, MultipleChoice(("0", "1", "2"), "each")),
    ):
        torch.testing.assert_close(right_answer_probability(scores, label, form), own)
    soft = torch.tensor([[[2, 1.0], [0, 0.3]], [[-100, -100], [1, 0.0]]])
    found = right_answer_probability(out, soft, OpenAnswer(("a", "b", "c")))
    assert found[0] == softmax[0, 2] and found[1].isnan()
    regions = torch.tensor([[1, 0, -100], [0, 0, 0]])
    found = right_answer_probability(out, regions, RegionSelection())
    torch.testing.assert_close(found[0], out[0, :2].softmax(0)[0])
    assert found[1].isnan()
    found = right_answer_probability(torch.tensor([[1.5]]), torch.tensor([1.0]), Regression())
    assert found.item() == -0.25
    objective = SupervisedObjective(toys.seer().sizes, output_type=Classification(("a", "b")))
    means_alone = RightAnswerOutcome(objective, (ACCURACY, F1)).names[1:]
    assert means_alone == ("accuracy",)


# -- other inputs ------------------------------------------------------------------------------------------------------
def row(text: str = "two dogs chase a naïve clown [MASK]", pair: str | None = None) -> Sample:
    (sample,) = TextDataset([Example("e", text, pair)], TextRowEncoder(toys.bert_words(), 40)).get(
        [0]
    )
    return sample


def text_of(sample: Sample) -> TextRow:
    assert sample.text is not None
    return sample.text


def test_blank_and_shuffled_texts() -> None:
    words = toys.bert_words()
    kept = words.all_special_ids
    own = row(pair="a girl waits on the beach")
    before, blank, other, again = (
        text_of(one)
        for one in (own, blank_words(own, kept), *[shuffle_words(own, kept, 0) for _ in range(2)])
    )
    is_kept = np.isin(before.input_ids, kept)
    assert is_kept.sum() == 4, "[CLS], [MASK] and two [SEP]"
    padded = np.where(is_kept, before.input_ids, words.pad_token_id)
    assert blank.input_ids.tolist() == padded.tolist()
    assert (other.input_ids != before.input_ids).any()
    assert (other.input_ids[is_kept] == before.input_ids[is_kept]).all()
    assert (other.token_type_ids == before.token_type_ids).all()
    for number in np.unique(before.word_ids[~is_kept]):
        there = np.flatnonzero(other.word_ids == number)
        assert (other.input_ids[there] == before.input_ids[before.word_ids == number]).all()
        assert (np.diff(there) == 1).all(), "in one token"
    assert (again.input_ids == other.input_ids).all()


def test_a_stranger_has_another_text_and_image() -> None:
    image_of = {"a": "i", "b": "i", "c": "j", "d": "j", "e": "k"}
    examples = [Example(text, text, images=(image,)) for text, image in image_of.items()]
    for example, other in zip(examples, swap_texts(examples, 0), strict=True):
        assert (image_of[other.text],) != example.images == other.images
    same = [replace(one, text="same") for one in examples[:4]] + examples[4:]
    assert [one.text for one in swap_texts(same[2:], 0)] == ["e", "e", "same"]
    with pytest.raises(InputError, match="a: no example differs"):
        swap_texts(examples[:2], 0)


def test_what_cannot_be_asked_is_said() -> None:
    plain, tagged = Example("a", "x"), Example("b", "x", object_count=2)
    sizes = toys.seer().sizes
    hidden = HiddenWordsOutcome(MaskedLM(sizes, mask_id=4))
    right = RightAnswerOutcome(SupervisedObjective(sizes, output_type=RegionSelection()))
    classes = Classification(("a",))
    for outcome, form, example, undefined in (
        (right, classes, plain, set()),
        (right, RegionSelection(), plain, {"image swapped"}),
        (right, classes, tagged, {"image swapped"}),
        (hidden, None, plain, {"text shuffled", "text swapped"}),
        (
            right,
            RegionSelection("phrase"),
            plain,
            {"image swapped", "text shuffled", "text swapped"},
        ),
    ):
        found = {
            name
            for name, one in INPUT_CONDITIONS.items()
            if undefined_reason(one, outcome, form, [example])
        }
        assert found == undefined


# -- attribution -------------------------------------------------------------------------------------------------------
def asked(model: Any, examples: Sequence[Example], store: Any) -> SampleDataset:
    texts = TextDataset(examples, TextRowEncoder(toys.bert_words(), 40))
    width = model.sizes.regions
    seeing = RegionOptions(model.reads_whole_image, model.has_inclusive_boxes, width=width)
    return RegionDataset(texts, toys.RegionDict(store), seeing)


@pytest.mark.parametrize("join", [visualbert, vlbert, uniter])
def test_attributions_by_a_plain_sum_along_the_line(join: Any) -> None:
    """Changes the embeddings directly, without the library's perturbations."""
    words = toys.bert_words()
    model = join(toys.bert(len(words)), words, width=12).eval()
    torch.manual_seed(3)
    for weights in model.join.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    outcome = MatchOutcome(ImageTextMatching(model.sizes).eval())
    example = Example("a", "a naïve dog", images=("a",))
    samples = asked(model, [example], {"a": toys.regions(0, 3)})
    (found,) = analysis.attribute_answers(model, outcome, samples, 1, 6)
    (sample,) = samples.get([0], ())
    batch = collate([sample])
    features = batch.regions.features
    embed = model.word_embeddings()
    table = embed.weight.detach()
    words = table[batch.text.input_ids[0]]
    start = torch.where(batch.text.special_tokens_mask[0][:, None], words, table[0])
    grad_words, grad_regions = torch.zeros_like(words), torch.zeros_like(features)
    for place, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
        part = (place + 1) / 2
        share, weight = part**3, weight * 3 * part**2  # most points are near the baseline
        at = (start + share * (words - start)).requires_grad_()
        looks = (share * features).requires_grad_()
        hook = embed.register_forward_hook(lambda *_, at=at: at[None])
        moved = replace(batch, regions=replace(batch.regions, features=looks))
        answer = outcome.attribution_target(model(moved), moved).sum()
        hook.remove()
        a, b = torch.autograd.grad(answer, [at, looks])
        grad_words, grad_regions = grad_words + a * weight / 2, grad_regions + b * weight / 2
    of_words = (grad_words * (words - start)).sum(-1).numpy()
    np.testing.assert_allclose(found.tokens, of_words, atol=1e-5)
    np.testing.assert_allclose(found.regions, (grad_regions * features).sum(-1)[0], atol=1e-5)
    # What is missing is the change, and that is what a blank input loses.
    kept = model.text_tokenizer.all_special_ids
    blank = MappedDataset(samples, lambda one: blank_words(zero_region_features(one, 12), kept))
    own, none = (measure_outcomes(model, outcome, some, 1)[0, 0] for some in (samples, blank))
    assert found.change == pytest.approx(own - none, abs=1e-5)
    total = found.tokens.sum() + found.regions.sum()
    assert total + found.residual == pytest.approx(found.change, abs=1e-5)


def test_points_integrate_what_is_smooth_and_what_is_steep_at_the_beginning() -> None:
    shares, weights = analysis.quadrature_points(64)
    assert shares.min() > 0 and shares.max() < 1 and weights.sum() == pytest.approx(1)
    assert (weights * shares**5).sum() == pytest.approx(1 / 6)
    for start in (1e-1, 1e-3, 1e-6):  # the slope of s / sqrt(s^2 + start^2) jumps within `start`
        slope = start**2 / (shares**2 + start**2) ** 1.5
        assert (weights * slope).sum() == pytest.approx(1 / np.hypot(1, start), rel=0.03)


# -- agreement ---------------------------------------------------------------------------------------------------------
def test_agreement_with_attention() -> None:
    sample = row("red dog waits quietly")
    word = text_of(sample).word_ids
    sample = replace(sample, regions=toys.regions(0, 4))
    tokens = np.array([{-1: 9.0}.get(w, float(w)) / (word == w).sum() for w in word.tolist()])
    shares = analysis.Attribution(tokens, np.array([-4.0, 3, 2, 1]), 0, 0)
    of_words = np.array([5.0 if w < 0 else w / 10 / (word == w).sum() for w in word.tolist()])
    rising = np.concatenate([of_words, [4, 3, 2, 1]])
    for attention, expected in ((rising, 1), (-rising, -1), (0 * rising, np.nan)):
        found = analysis.attribution_agreement(attention, shares, sample)
        np.testing.assert_allclose(found, [expected] * 2)
    assert np.isnan(analysis.rank_correlation(np.arange(2), np.arange(2)))
    expected = stats.spearmanr([3, 1, 2, 2], [1, 0, 5, 7]).statistic
    assert analysis.rank_correlation(np.array([3, 1, 2, 2]), np.array([1, 0, 5, 7])) == expected


# -- selected words ----------------------------------------------------------------------------------------------------
def test_attention_to_words_against_their_scores() -> None:
    worth = analysis.TeacherWordScores(
        np.array([0.5, 0.4, 0.0, 0.1, 0.2]),
        np.array([True, True, False, True, True]),
        ("a", "b", ".", "c", "d"),
        "a b . c d",
    )
    attention = np.array([0.4, 0.3, 0.9, 0.1, 0.2])
    other = np.array([0.1, 0.2, 0.9, 0.4, 0.3])
    np.testing.assert_allclose(analysis.selection_agreement(attention, worth, 2), [1, 1, 0.5])
    np.testing.assert_allclose(analysis.selection_agreement(other, worth, 2), [-1, 0, 0.5])
    shown = analysis.example_scores(worth, [attention])
    assert shown["words"][2] == {"word": ".", "score": None, "attention": [0.9]}
    none = replace(worth, candidates=np.zeros(5, bool))
    assert np.isnan(analysis.selection_agreement(attention, none, 2)).all()
    sample = row("red dogs wait")
    word = text_of(sample).word_ids
    looks = ClsAttention()
    looks.attention.put([0], 0, [np.arange(float(len(word) + 3))])
    looks.attention.put([0], 1, [np.arange(float(len(word) + 3))])
    (of_words,) = analysis.attention_to_words(
        looks, [sample], [replace(worth, words=tuple("abcd"))]
    )
    assert of_words.tolist() == [sum(np.flatnonzero(word == w)) for w in range(4)]


# -- the command -------------------------------------------------------------------------------------------------------
NAMES = [f"image{n}" for n in range(6)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pre-trained models with their heads, one without, one fine-tuned; captions, questions, a store, a CLIP."""
    folder = tmp_path_factory.mktemp("modality")
    for number, name in enumerate(("one", "two", "headless")):
        model = toys.seer()
        torch.manual_seed(number)
        with torch.no_grad():
            model.join.projection.weight.normal_(std=0.2 * (number + 1))
        (folder / name).mkdir()
        model.export(folder / name)
        heads = ImageTextMatching(model.sizes).saved_modules()
        if name == "headless":
            heads = {LM_HEAD: MaskedLM(model.sizes, mask_id=4).head}
        save_heads(folder / name, heads)
    store(folder / "store", NAMES)
    said = [f"{text}\t{NAMES[n % 6]}.jpg\n" for n, text in enumerate(toys.sentences()[:12])]
    put(folder / "captions.tsv", "".join(said))
    rows = [(f"is it a dog {n} ?", f"{NAMES[n % 6]}.jpg", "yn"[n % 2]) for n in range(24)]
    data = put(folder / "questions.csv", homes.table(("question", "photo", "answer"), *rows))
    for name in NAMES:
        homes.picture(folder / f"images/{name}.jpg", size=(60, 40))
    homes.teacher(folder / "clip")
    CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16).save_pretrained(folder / "clip")
    columns = {"text": "question", "image": "photo", "label": "answer"}
    places = {"model": str(folder / "one"), "data": str(data), "regions": str(folder / "store")}
    config = make_settings(FinetuneConfig, **places, **columns)
    finetune(config, replace(STEPS, steps=2, batch=4), folder / "tuned")
    return folder


def config_of(home: Path, **settings: Any) -> ModalityConfig:
    settings = {"model": "one", "data": "captions.tsv", "regions": "store", "cpu": True} | settings
    folders = ("model", "other", "data", "regions", "teacher", "teacher_images")
    found = {name: str(home / settings[name]) for name in folders if settings.get(name)}
    return make_settings(ModalityConfig, **settings | found)


def test_two_models_on_captions(home: Path, tmp_path: Path, capsys) -> None:
    teaching = {"teacher": "clip", "teacher_images": "images"}
    config = config_of(home, other="two", **teaching, ig_examples=3, ig_steps=2, batch=5)
    result = MODALITY(config, tmp_path)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert (result["examples"], result["images"]) == (12, 6)
    for model in result["models"]:
        by_head = np.array([model["by_head"][name] for name in ("visual", "textual", "special")])
        assert by_head.shape == (3, 2, 2)
        np.testing.assert_allclose(by_head.sum(0), 1, atol=1e-5)
        visual, textual, _ = by_head.mean(2)
        for row in model["by_layer"]:
            layer = row["layer"]
            assert row["visual"]["mean"] == pytest.approx(visual[layer], abs=1e-5)
            assert row["gap"]["mean"] == pytest.approx(textual[layer] - visual[layer], abs=2e-5)
        given = {row["given"]: row for row in model["inputs"]["rows"]}
        assert len({row["values"][0]["mean"] for row in given.values()}) == 8, "all inputs differ"
        change = given["image blank"]["changes"][0]["mean"]
        own = given["as it is"]["values"][0]["mean"]
        assert given["as it is"]["changes"][0]["mean"] == 0
        assert given["image blank"]["values"][0]["mean"] - own == pytest.approx(change, abs=1e-5)
        assert model["attribution"]["examples"] == 3
    one, two = (model["overall"]["visual"]["mean"] for model in result["models"])
    assert result["difference"]["overall"]["visual"]["mean"] == pytest.approx(two - one, abs=2e-6)
    shown = result["selected_words"]["shown"]["words"]
    assert all(len(word["attention"]) == 2 for word in shown)
    told = capsys.readouterr().out
    assert "even attention" in told and "integrated gradients of the log-odds" in told
    assert "by chance" in told


def test_the_teachers_scores_are_those_by_which_it_selects(home: Path) -> None:
    texts = toys.sentences()
    examples = [Example(str(n), texts[n], images=(NAMES[n],)) for n in range(4)]
    samples = TextDataset(examples, TextRowEncoder(toys.bert_words(), 40))
    options = TargetedDistillationSettings(teacher_images=str(home / "images"))
    teacher = ClipTeacher(load_frozen_clip(str(home / "clip")), {"clip_word"}, options).fit(samples)
    rows = samples.get(range(4))
    chosen = teacher.features(collate(teacher.inputs(rows)))["clip_word"].numpy()
    for (scores, candidates), word in zip(teacher.word_scores(rows), chosen, strict=True):
        best = np.argsort(-np.where(candidates, scores, -np.inf), kind="stable")[:2]
        assert best.tolist() == word.tolist() and not scores[~candidates].any()


def test_a_residual_is_small_beside_the_change_or_close_to_0() -> None:
    residuals = {1.0: (0.04, 0.06), 1e-3: (0.005, 0.02)}
    sample = replace(row("red dog waits"), regions=toys.regions(0, 3))
    length = len(text_of(sample).word_ids)
    looks = ClsAttention()
    attributions = [
        analysis.Attribution(np.ones(length), np.ones(3), change, residual)
        for change, both in residuals.items()
        for residual in both
    ]
    looks.attention.put(range(4), 0, [np.ones(length + 3)] * 4)
    summary = analysis.attribution_summary(
        attributions, looks, [sample] * 4, Bootstrap(list("abcd"), 0)
    )
    assert summary["complete"] == 0.5
    assert summary["text_share"]["mean"] == pytest.approx(length / (length + 3), abs=1e-6)


def stored(folder: Path, found: list[ImageRegions]) -> Path:
    writer = RegionWriter(folder)
    writer.write(0, found)
    writer.close({"source": "test"})
    return folder


def test_a_fine_tuned_model_is_asked_its_task(home: Path, tmp_path: Path) -> None:
    config = config_of(home, model="tuned", data="questions.csv", ig_examples=2, ig_steps=2)
    (model,) = MODALITY(config, tmp_path)["models"]
    assert model["inputs"]["measures"] == ["probability of the right answer", "accuracy"]
    values = {row["given"]: row["values"] for row in model["inputs"]["rows"]}
    assert 0 <= values["as it is"][1]["mean"] <= 1
    for given in ("image shuffled", "image swapped"):
        assert values[given][0]["mean"] != values["as it is"][0]["mean"]
    with pytest.raises(InputError, match="always reads max_regions and object_tags as in its trai"):
        MODALITY(replace_settings(config, max_regions=2), tmp_path / "b")


def test_a_model_without_a_match_head_is_asked_for_hidden_words(home: Path, tmp_path: Path) -> None:
    config = config_of(home, model="headless", ig_examples=0, limit=6, max_length=5)
    result = MODALITY(config, tmp_path)
    (model,) = result["models"]
    assert "masked token" in model["inputs"]["measures"][0] and model["attribution"] is None
    assert any("undefined" in row for row in model["inputs"]["rows"])
    used, cut = result["notes"]
    assert used == "used 6 of 12 examples, evenly spaced"
    assert re.fullmatch(r"truncated \d+ tokens of texts that are too long \(max_length\)", cut)
    (model,) = MODALITY(replace(config, outcome="match"), tmp_path / "b")["models"]
    assert model["inputs"] == {"undefined": "the model has no image-text matching head"}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        ({"data": ""}, "modality needs data"),
        ({"data": "lone.tsv"}, "at least 2"),
        ({"data": "none.tsv"}, "no such file"),
        ({"teacher": "clip"}, "needs teacher_images"),
        ({"model": "clip"}, "reads no regions"),
        ({"regions": "bare"}, "image0: has no region (12 such)"),
    ],
)
def test_a_mistake_is_one_line(flags, told, home, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(home)
    none = np.zeros((0, 4), np.float32)
    bare = [ImageRegions(one, (60, 40), none, none[:, 0], np.zeros((0, 12))) for one in NAMES]
    if not (home / "bare").exists():
        stored(home / "bare", bare)
        put(home / "lone.tsv", f"a dog\t{NAMES[0]}.jpg\na cat\t{NAMES[0]}.jpg\n")
    given = {"model": "one", "data": "captions.tsv", "regions": "store", **flags}
    words = [part for name, value in given.items() for part in (f"--{name}", value)]
    assert main(["modality", *words, "--cpu", "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err.strip()
    assert told in error and error.count("\n") == 0, error
