"""Modality importance, ablation and attributions: worked cases, plain restatements, planted
differences, the command.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
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
from groundling.data.samples import MappedDataset, TextDataset, TextRowEncoder
from groundling.models.attention import AttentionMap, PositionKind, SequencePositions
from groundling.models.frozen_clip import load_frozen_clip
from groundling.models.heads import LM_HEAD, save_heads
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.input_settings import TableTaskSettings
from groundling.settings.objectives import TargetedDistillationSettings
from groundling.studies.attention import attribution
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
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.uniter import uniter
from groundling.vision_language.visualbert import visualbert
from groundling.vision_language.vlbert import vlbert

P, T, S, R, W, A = (
    PositionKind.PADDING,
    PositionKind.TOKEN,
    PositionKind.SPECIAL,
    PositionKind.REGION,
    PositionKind.WHOLE_IMAGE,
    PositionKind.ADDED,
)


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
        rows = tuple(Sample(name) for _ in range(choices))
        samples.append(Sample(name, labels=label, choices=rows))
    return AttentionBatch(Batch(names), samples, range(len(names)))


def masses(*maps: AttentionMap, query: Any = "cls", **options: Any) -> ModalityImportance:
    one = ModalityImportance(query)
    for each in maps:
        one.consume(seen(*(f"s{n}" for n in range(options.pop("count", 1))), **options), each)
    return one


# -- masses ------------------------------------------------------------------------------------------------------------

WORKED = [S, T, T, T, R, R, R, R, S]


def test_worked_cases() -> None:
    """methods.md, C: even attention over [CLS], 3 words, 4 regions, [SEP]; and all attention on one region."""
    even = torch.full((1, 2, 9, 9), 1 / 9)
    one_hot = torch.zeros(1, 2, 9, 9)
    one_hot[..., 5] = 1
    found = masses(a_map(even, WORKED), a_map(one_hot, WORKED, layer=1)).by_head
    np.testing.assert_allclose(found[0], [[4 / 9, 3 / 9, 2 / 9]] * 2, atol=1e-7)
    np.testing.assert_allclose(found[1], [[1, 0, 0]] * 2)
    found = masses(a_map(even, WORKED)).uniform
    np.testing.assert_allclose(found, [[4 / 9, 3 / 9, 2 / 9]])


def test_padding_is_nothing_and_what_a_join_adds_is_special() -> None:
    row = [S, T, S, P, W, R, A, P]
    weights = torch.tensor([0.1, 0.2, 0.1, 0, 0.3, 0.2, 0.1, 0]).expand(1, 1, 8, 8)
    one = masses(a_map(weights, row))
    np.testing.assert_allclose(one.rows.stacked()[0, 0], [0.5, 0.2, 0.3], atol=1e-7)
    np.testing.assert_allclose(one.uniform[0], [2 / 6, 1 / 6, 3 / 6])


@pytest.mark.parametrize("query", ["cls", "all"])
def test_masses_of_random_attention_by_a_plain_loop(query: Any) -> None:
    rows = [[S, T, T, S, P, R, R, P], [S, T, S, P, P, W, R, R]]
    real = torch.tensor([[one != P for one in row] for row in rows])
    weights = torch.randn(2, 3, 8, 8).masked_fill(~real[:, None, None], -torch.inf).softmax(-1)
    found = attention_by_modality(a_map(weights, *rows), query)
    one = masses(a_map(weights, *rows), query=query, count=2)
    kinds = {0: (R, W), 1: (T,), 2: (S, A)}
    for n, row in enumerate(rows):
        for head in range(3):
            for kind, these in kinds.items():
                total, asked = 0.0, [0] if query == "cls" else [i for i in range(8) if row[i] != P]
                for i in asked:
                    for j in range(8):
                        total += float(weights[n, head, i, j]) * (row[j] in these) / len(asked)
                assert float(found[n, head, kind]) == pytest.approx(total, abs=1e-6)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-5)
    np.testing.assert_allclose(one.by_head[0], found.mean(0), atol=1e-6)
    np.testing.assert_allclose(one.rows.stacked()[:, 0], found.mean(1), atol=1e-6)


def test_choices_count_as_one_example_and_the_right_one_is_looked_at() -> None:
    weights = torch.rand(4, 2, 4, 4).softmax(-1)
    rows = [[S, T, S, R]] * 4
    one, looks = ModalityImportance(), ClsAttention()
    for consumer in (one, looks):
        consumer.consume(seen("a", "b", labels=[1, 0], choices=2), a_map(weights, *rows))
    of_rows = weights[:, :, 0, 3]
    np.testing.assert_allclose(one.by_head[0, :, 0], of_rows.mean(0), rtol=1e-6)
    np.testing.assert_allclose(one.rows.stacked()[0, 0, 0], of_rows[:2].mean(), rtol=1e-6)
    np.testing.assert_allclose(
        looks.attention.by_sample()[0][0], weights[1, :, 0].mean(0), rtol=1e-6
    )
    np.testing.assert_allclose(
        looks.attention.by_sample()[1][0], weights[2, :, 0].mean(0), rtol=1e-6
    )
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
    parts = ModalityImportance()
    looks = ClsAttention()
    for chosen in ([1, 2], [0, 3]):
        some = replace(seen("x", "y"), places=chosen)
        for consumer in (parts, looks):
            consumer.consume(some, a_map(weights[chosen], *rows * 2))
    for place, own in enumerate(looks.attention.by_sample()):
        np.testing.assert_allclose(own[0], weights[place, :, 0].mean(0), rtol=1e-6)
    np.testing.assert_array_equal(parts.rows.stacked(), whole.rows.stacked())
    np.testing.assert_array_equal(parts.uniform, whole.uniform)
    np.testing.assert_allclose(parts.by_head, whole.by_head)
    assert parts.layers == [0]


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
    images = [f"i{n // 2}" for n in range(60)]
    before, after = (
        ImportanceEstimate(planted(share, n), Bootstrap(images, 0))
        for n, share in enumerate((0.3, 0.35))
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
    assert compare_importance(before, before)["overall"]["gap"] == {
        "mean": 0.0,
        "low": 0.0,
        "high": 0.0,
    }
    deeper = compare_importance(
        before, ImportanceEstimate(planted(0.3, 1, layers=3), Bootstrap(images, 0))
    )
    assert "by_layer" not in deeper and "by_head" not in deeper


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
    torch.testing.assert_close(
        right_answer_probability(out, label, Classification(("a", "b", "c"))), own
    )
    torch.testing.assert_close(
        right_answer_probability(out, label, MultipleChoice(("0", "1", "2"))), own
    )
    pairs = torch.stack([torch.zeros(2, 3), out], -1).flatten(1)
    torch.testing.assert_close(
        right_answer_probability(pairs, label, MultipleChoice(("0", "1", "2"), "each")), own
    )
    soft = torch.tensor([[[2, 1.0], [0, 0.3]], [[-100, -100], [1, 0.0]]])
    found = right_answer_probability(out, soft, OpenAnswer(("a", "b", "c")))
    assert found[0] == softmax[0, 2] and found[1].isnan()
    regions = torch.tensor([[1, 0, -100], [0, 0, 0]])
    found = right_answer_probability(out, regions, RegionSelection())
    torch.testing.assert_close(found[0], out[0, :2].softmax(0)[0])
    assert found[1].isnan()
    assert (
        right_answer_probability(torch.tensor([[1.5]]), torch.tensor([1.0]), Regression()).item()
        == -0.25
    )


def test_only_metrics_that_are_means_are_told() -> None:
    objective = SupervisedObjective(toys.seer().sizes, output_type=Classification(("a", "b")))
    assert RightAnswerOutcome(objective, (ACCURACY, F1)).names[1:] == ("accuracy",)


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
    blank = text_of(blank_words(own, kept))
    before = text_of(own)
    is_kept = np.isin(before.input_ids, kept)
    assert is_kept.sum() == 4, "[CLS], [MASK] and two [SEP]"
    assert (blank.input_ids[is_kept] == before.input_ids[is_kept]).all()
    assert (blank.input_ids[~is_kept] == words.pad_token_id).all() and len(blank.input_ids) == len(
        before.input_ids
    )
    other = text_of(shuffle_words(own, kept, 0))
    assert (other.input_ids != before.input_ids).any()
    assert (other.input_ids[is_kept] == before.input_ids[is_kept]).all()
    assert (other.token_type_ids == before.token_type_ids).all()
    for number in np.unique(before.word_ids[~is_kept]):
        assert (
            other.input_ids[other.word_ids == number] == before.input_ids[before.word_ids == number]
        ).all()
        assert (np.diff(np.flatnonzero(other.word_ids == number)) == 1).all(), "in one token"
    again = text_of(shuffle_words(own, kept, 0))
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
    hidden = HiddenWordsOutcome(MaskedLM(toys.seer().sizes, mask_id=4))
    right = RightAnswerOutcome(
        SupervisedObjective(toys.seer().sizes, output_type=RegionSelection())
    )

    def asked(outcome: Any, form: Any, example: Example) -> set[str]:
        return {
            name
            for name, one in INPUT_CONDITIONS.items()
            if not undefined_reason(one, outcome, form, [example])
        }

    every = set(INPUT_CONDITIONS)
    assert asked(right, Classification(("a",)), plain) == every
    assert every - asked(right, RegionSelection(), plain) == {"image swapped"}
    assert every - asked(right, Classification(("a",)), tagged) == {"image swapped"}
    assert every - asked(hidden, None, plain) == {"text shuffled", "text swapped"}
    phrase = every - asked(right, RegionSelection("phrase"), plain)
    assert phrase == {"image swapped", "text shuffled", "text swapped"}


# -- attribution -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seer():
    model = toys.seer().eval()
    torch.manual_seed(3)
    return model, ImageTextMatching(model.sizes).eval()


def test_attributions_add_up_to_what_the_answer_loses_on_a_blank_input(seer) -> None:
    model, head = seer
    samples = toys.seen(3)
    outcome = MatchOutcome(head)
    found = attribution.attribute_answers(model, outcome, samples, 2, 24)
    kept = model.text.tokenizer.all_special_ids
    blank = MappedDataset(samples, lambda one: blank_words(zero_region_features(one, 12), kept))
    own, none = (measure_outcomes(model, outcome, some, 2)[:, 0] for some in (samples, blank))
    np.testing.assert_allclose([one.change for one in found], own - none, atol=1e-5)
    for one, sample in zip(found, samples.get(range(3), ()), strict=True):
        assert abs(one.residual) < 0.02 * max(abs(one.change), 0.05)
        total = one.tokens.sum() + one.regions.sum()
        assert total + one.residual == pytest.approx(one.change, abs=1e-5)
        assert len(one.regions) == len(sample.regions) and len(one.tokens) == len(
            sample.text.input_ids
        )
        assert not one.tokens[sample.text.special_tokens_mask].any() and one.regions.all()


@pytest.mark.parametrize("join", [visualbert, vlbert, uniter])
def test_attributions_by_a_plain_sum_along_the_line(join: Any) -> None:
    """Changes the embeddings directly, without the library's perturbations."""
    words = toys.bert_words()
    model = join(toys.bert(len(words)), words, width=12).eval()
    torch.manual_seed(3)
    for weights in model.join.parameters():
        torch.nn.init.normal_(weights, std=0.3)
    head = ImageTextMatching(model.sizes).eval()
    texts = TextDataset([Example("a", "a naïve dog", images=("a",))], TextRowEncoder(words, 40))
    samples = RegionDataset(
        texts, toys.RegionDict({"a": toys.regions(0, 3)}), RegionOptions(model.reads_whole_image)
    )
    (found,) = attribution.attribute_answers(model, MatchOutcome(head), samples, 1, 6)
    (sample,) = samples.get([0], ())
    batch = collate([sample])
    features = batch.regions.features
    table = model.word_embeddings().weight.detach()
    words = table[batch.text.input_ids[0]]
    start = torch.where(batch.text.special_tokens_mask[0][:, None], words, table[0])
    grad_words, grad_regions = torch.zeros_like(words), torch.zeros_like(features)
    embed = model.word_embeddings()
    for place, weight in zip(*np.polynomial.legendre.leggauss(6), strict=True):
        part = (place + 1) / 2
        share, weight = part**3, weight * 3 * part**2  # most points are near the baseline
        at = (start + share * (words - start)).requires_grad_()
        looks = (share * features).requires_grad_()
        hook = embed.register_forward_hook(lambda *_, at=at: at[None])
        moved = replace(batch, regions=replace(batch.regions, features=looks))
        logits = head.compute_logits(model(moved), moved)
        hook.remove()
        a, b = torch.autograd.grad((logits[:, 1] - logits[:, 0]).sum(), [at, looks])
        grad_words, grad_regions = grad_words + a * weight / 2, grad_regions + b * weight / 2
    of_words = (grad_words * (words - start)).sum(-1).numpy()
    np.testing.assert_allclose(found.tokens, of_words, atol=1e-5)
    np.testing.assert_allclose(found.regions, (grad_regions * features).sum(-1)[0], atol=1e-5)


# -- points on the line from the baseline, with a LayerNorm that jumps near it -----------------------------------------

EXAMPLES = 4


def model_of(join: Any, bias: float) -> SingleStreamModel:
    """A small model with weights as large as trained ones, and biases with this standard
    deviation.
    """
    torch.manual_seed(0)
    words = toys.bert_words()
    model: SingleStreamModel = join(toys.bert(len(words), type_vocab_size=3), words, 12).eval()
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if weights.dim() == 2:
                weights.mul_(1.5)
            elif name.endswith("bias"):
                weights.normal_(std=bias) if bias else weights.zero_()
    return model


def missing(model: SingleStreamModel, steps: int) -> np.ndarray:
    """The share of each example's change that attributions miss."""
    torch.manual_seed(1)
    head = ImageTextMatching(model.sizes).eval()
    with torch.no_grad():
        for weights in head.parameters():
            weights.mul_(20)
    texts = toys.sentences()
    examples = [Example(f"s{n}", texts[n], images=(f"i{n}",)) for n in range(EXAMPLES)]
    store = toys.RegionDict({f"i{n}": toys.regions(n, 2 + n) for n in range(EXAMPLES)})
    seeing = RegionOptions(
        model.reads_whole_image, model.has_inclusive_boxes, width=model.sizes.regions
    )
    samples = RegionDataset(
        TextDataset(examples, TextRowEncoder(toys.bert_words(), 40)), store, seeing
    )
    found = attribution.attribute_answers(model, MatchOutcome(head), samples, EXAMPLES, steps)
    return np.array([abs(one.residual) / abs(one.change) for one in found])


def test_points_integrate_what_is_smooth_and_what_is_steep_at_the_beginning() -> None:
    shares, weights = attribution.quadrature_points(64)
    assert shares.min() > 0 and shares.max() < 1 and weights.sum() == pytest.approx(1)
    assert (weights * shares**5).sum() == pytest.approx(1 / 6)
    for start in (
        1e-1,
        1e-3,
        1e-6,
    ):  # the slope of s / sqrt(s^2 + start^2), which jumps within `start`
        slope = start**2 / (shares**2 + start**2) ** 1.5
        assert (weights * slope).sum() == pytest.approx(1 / np.hypot(1, start), rel=0.03)
    assert [part.tolist() for part in attribution.quadrature_points(1)] == [[0.125], [1.0]]


@pytest.mark.parametrize(("join", "bias"), [(uniter, 0.0), (uniter, 1e-3), (vlbert, 0.0)])
def test_shares_add_up_also_where_a_normalised_vector_starts_at_zero(
    join: Any, bias: float
) -> None:
    assert missing(model_of(join, bias), 64).max() < 0.1


def test_more_points_are_not_worse() -> None:
    model = model_of(uniter, 0.0)
    few, many = (np.median(missing(model, steps)) for steps in (16, 96))
    assert many < 0.01 and many < few


def test_even_points_would_step_over_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the tests above would prove nothing."""
    monkeypatch.setattr(attribution, "POINT_POWER", 1)
    assert np.median(missing(model_of(uniter, 0.0), 64)) > 0.1


# -- agreement ---------------------------------------------------------------------------------------------------------


def test_agreement_with_attention() -> None:
    sample = row("red dog waits quietly")
    word = text_of(sample).word_ids
    sample = replace(sample, regions=toys.regions(0, 4))
    tokens = np.array([{-1: 9.0}.get(w, float(w)) / (word == w).sum() for w in word.tolist()])
    shares = attribution.Attribution(tokens, np.array([-4.0, 3, 2, 1]), 0, 0)
    of_words = np.array([5.0 if w < 0 else w / 10 / (word == w).sum() for w in word.tolist()])
    rising = np.concatenate([of_words, [4, 3, 2, 1]])
    looks = np.stack([rising, -rising])
    found = attribution.attribution_agreement(looks, shares, sample)
    np.testing.assert_allclose(found[:2], [[1, 1], [-1, -1]])
    assert np.isnan(found[2]).all(), "the mean of layers is constant"
    assert np.isnan(attribution.rank_correlation(np.arange(2), np.arange(2)))
    expected = stats.spearmanr([3, 1, 2, 2], [1, 0, 5, 7]).statistic
    assert attribution.rank_correlation(np.array([3, 1, 2, 2]), np.array([1, 0, 5, 7])) == expected


# -- selected words ----------------------------------------------------------------------------------------------------


def test_attention_to_words_against_their_scores() -> None:
    worth = attribution.TeacherWordScores(
        np.array([0.5, 0.4, 0.0, 0.1, 0.2]),
        np.array([True, True, False, True, True]),
        ("a", "b", ".", "c", "d"),
        "a b . c d",
    )
    attention = np.array([[0.4, 0.3, 0.9, 0.1, 0.2], [0.1, 0.2, 0.9, 0.4, 0.3]])
    found = attribution.selection_agreement(attention, worth, 2)
    np.testing.assert_allclose(found[0], [1, 1, 0.5])
    np.testing.assert_allclose(found[1], [-1, 0, 0.5])
    shown = attribution.example_scores(worth, [attention])
    assert shown["words"][2] == {"word": ".", "score": None, "attention": [0.9]}
    none = replace(worth, candidates=np.zeros(5, bool))
    assert np.isnan(attribution.selection_agreement(attention, none, 2)).all()
    sample = row("red dogs wait")
    word = text_of(sample).word_ids
    looks = ClsAttention()
    looks.attention.put([0], 0, [np.arange(float(len(word) + 3))])
    (of_words,) = attribution.attention_to_words(
        looks, [sample], [replace(worth, words=tuple("abcd"))]
    )
    assert of_words[0].tolist() == [sum(np.flatnonzero(word == w)) for w in range(4)]


# -- the command -------------------------------------------------------------------------------------------------------

NAMES = [f"image{n}" for n in range(6)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two pre-trained models with their heads, one without, one fine-tuned; captions, questions, a store, a CLIP."""
    folder = tmp_path_factory.mktemp("modality")
    texts = toys.sentences()
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
    captions = [f"{texts[n]}\t{NAMES[n % 6]}.jpg" for n in range(12)]
    put(folder / "captions.tsv", "\n".join(captions) + "\n")
    rows = [(f"is it a dog {n} ?", f"{NAMES[n % 6]}.jpg", "yn"[n % 2]) for n in range(24)]
    put(folder / "questions.csv", homes.table(("question", "photo", "answer"), *rows))
    for name in NAMES:
        (folder / "images").mkdir(exist_ok=True)
        Image.new("RGB", (60, 40)).save(folder / "images" / f"{name}.jpg")
    homes.teacher(folder / "clip")
    CLIPImageProcessorPil(size={"shortest_edge": 16}, crop_size=16).save_pretrained(folder / "clip")
    own = TableTaskSettings(text="question", image="photo", label="answer")
    config = make_settings(
        FinetuneConfig, model=str(folder / "one"), data=str(folder / "questions.csv")
    )
    config = replace(
        config, own=own, regions=replace(config.regions, regions=str(folder / "store"))
    )
    finetune(config, replace(STEPS, steps=2, batch=4), folder / "tuned")
    return folder


def config_of(home: Path, **settings: Any) -> ModalityConfig:
    settings = {"model": "one", "data": "captions.tsv", "regions": "store", "cpu": True} | settings
    for name in ("model", "other", "data", "regions", "teacher", "teacher_images"):
        if settings.get(name):
            settings[name] = str(home / settings[name])
    return make_settings(ModalityConfig, **settings)


def test_two_models_on_captions(home: Path, tmp_path: Path, capsys) -> None:
    config = config_of(
        home,
        other="two",
        teacher="clip",
        teacher_images="images",
        ig_examples=3,
        ig_steps=2,
        batch=5,
    )
    result = MODALITY(config, tmp_path)
    assert result == json.loads((tmp_path / "result.json").read_text())
    assert (result["examples"], result["images"]) == (12, 6)
    for model in result["models"]:
        by_head = np.array([model["by_head"][name] for name in ("visual", "textual", "special")])
        assert by_head.shape == (3, 2, 2)
        np.testing.assert_allclose(by_head.sum(0), 1, atol=1e-5)
        mean = by_head.mean(2)
        for row in model["by_layer"]:
            assert row["visual"]["mean"] == pytest.approx(mean[0, row["layer"]], abs=1e-5)
            assert row["gap"]["mean"] == pytest.approx(
                mean[1, row["layer"]] - mean[0, row["layer"]], abs=2e-5
            )
        given = {row["given"]: row for row in model["inputs"]["rows"]}
        assert len(given) == 8 and given["as it is"]["changes"][0]["mean"] == 0
        change = given["image blank"]["changes"][0]["mean"]
        own = given["as it is"]["values"][0]["mean"]
        assert given["image blank"]["values"][0]["mean"] - own == pytest.approx(change, abs=1e-5)
        assert len({row["values"][0]["mean"] for row in given.values()}) == 8, "all inputs differ"
        assert model["attribution"]["examples"] == 3
    one, two = (model["overall"]["visual"]["mean"] for model in result["models"])
    assert result["difference"]["overall"]["visual"]["mean"] == pytest.approx(two - one, abs=2e-6)
    shown = result["selected_words"]["shown"]["words"]
    assert all(len(word["attention"]) == 2 for word in shown)
    told = capsys.readouterr().out
    assert "even attention" in told and f"attention of {home / 'two'}, %" in told
    assert MODALITY(config, tmp_path) == result


def test_the_teachers_scores_are_those_by_which_it_selects(home: Path) -> None:
    towers = load_frozen_clip(str(home / "clip"))
    texts = toys.sentences()
    examples = [Example(str(n), texts[n], images=(NAMES[n],)) for n in range(4)]
    samples = TextDataset(examples, TextRowEncoder(toys.bert_words(), 40))
    options = TargetedDistillationSettings(teacher_images=str(home / "images"))
    teacher = ClipTeacher(towers, {"clip_word"}, options).fit(samples)
    rows = samples.get(range(4))
    chosen = teacher.features(collate(teacher.inputs(rows)))["clip_word"].numpy()
    for (scores, candidates), word in zip(teacher.word_scores(rows), chosen, strict=True):
        best = np.argsort(-np.where(candidates, scores, -np.inf), kind="stable")[:2]
        assert best.tolist() == word.tolist() and not scores[~candidates].any()


def test_notes_tell_what_would_mislead(home: Path, tmp_path: Path) -> None:
    """Equal boxes make two rows equal; a change close to 0 needs no more points."""
    model = toys.seer()
    faint = ImageTextMatching(model.sizes)
    with torch.no_grad():
        for weights in faint.parameters():
            weights.mul_(1e-3)
    (home / "faint").mkdir()
    model.export(home / "faint")
    save_heads(home / "faint", faint.saved_modules())
    rng = np.random.default_rng(0)
    boxes = np.array([[0, 0, 1, 0.5], [0, 0.5, 1, 1]], np.float32)
    looks = rng.normal(size=(6, 2, 12)).astype(np.float32)
    found = [ImageRegions(NAMES[n], (60, 40), boxes, np.ones(2, "f4"), looks[n]) for n in range(6)]
    writer = RegionWriter(home / "grid")
    writer.write(0, found)
    writer.close({"source": "test"})
    texts = ("a dog", "a cat", "a dog a")
    put(home / "few.tsv", "".join(f"{text}\t{NAMES[n]}.jpg\n" for n, text in enumerate(texts)))
    settings = {"model": "faint", "data": "few.tsv", "regions": "grid", "max_length": 5}
    result = MODALITY(config_of(home, **settings, ig_steps=1), tmp_path)
    (told,) = result["models"]
    assert 0 < told["attribution"]["rest_median"] < 0.01
    assert told["attribution"]["change_mean_size"] < 10 * told["attribution"]["rest_median"]
    assert told["attribution"]["complete"] == 1
    values = {row["given"]: row["values"] for row in told["inputs"]["rows"]}
    assert values["image shuffled"] == values["image swapped"] != values["as it is"]
    lost, same = result["notes"]
    assert lost == "truncated 1 token of texts that are too long (max_length)"
    assert "image shuffled and image swapped give this model the same input" in same


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
    config = config_of(home, model="headless", ig_examples=0, limit=6, query="all")
    result = MODALITY(config, tmp_path)
    (model,) = result["models"]
    assert "masked token" in model["inputs"]["measures"][0] and model["attribution"] is None
    assert any("undefined" in row for row in model["inputs"]["rows"])
    assert result["notes"] == ["used 6 of 12 examples, evenly spaced"]
    (model,) = MODALITY(replace(config, outcome="match"), tmp_path / "b")["models"]
    assert model["inputs"] == {"undefined": "the model has no image-text matching head"}


def test_what_is_wrong_is_one_line(home: Path, tmp_path: Path, capsys) -> None:
    none = np.zeros((0, 4), np.float32)
    writer = RegionWriter(tmp_path / "bare")
    bare = [ImageRegions(one, (60, 40), none, none[:, 0], np.zeros((0, 12))) for one in NAMES]
    writer.write(0, bare)
    writer.close({"source": "test"})
    lone = put(tmp_path / "lone.tsv", f"a dog\t{NAMES[0]}.jpg\na cat\t{NAMES[0]}.jpg\n")
    for settings, told in (
        ({"data": ""}, "modality needs data"),
        ({"model": ""}, "modality needs model"),
        ({"data": str(lone)}, "at least 2"),
        ({"data": str(home / "none.tsv")}, "no such file"),
        ({"teacher": str(home / "clip")}, "needs teacher_images"),
        ({"ig-steps": "0"}, "ig_steps = '0': expected"),
        ({"model": str(home / "clip")}, "reads no regions"),
        ({"regions": str(tmp_path / "bare")}, f"{NAMES[0]}: has no region (12 such)"),
    ):
        flags = {"model": str(home / "one"), "data": str(home / "captions.tsv")}
        flags |= {"regions": str(home / "store"), **settings}
        words = [part for name, value in flags.items() for part in (f"--{name}", value)]
        out = str(tmp_path / "out")
        assert main(["modality", *words, "--cpu", "--out", out]) == 2
        error = capsys.readouterr().err.strip()
        assert told in error and error.count("\n") == 0, error
