"""CLIP-TD's terms: worked numbers, a plain restatement of Eq. 1 to 10, the gate, and training without labels."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from tiny import homes, toys
from tiny.homes import STEPS, Killed, dying, log_of
from torch import Tensor, nn

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import (
    IGNORE,
    Batch,
    EncoderOutput,
    Example,
    OutputSizes,
    Regions,
    Sample,
    Tokens,
    collate,
)
from groundling.core.errors import InputError
from groundling.core.output_types import (
    Classification,
    MultipleChoice,
    OpenAnswer,
    OutputType,
    RegionSelection,
    Regression,
)
from groundling.data.regions.samples import RegionDataset, RegionOptions
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.task_heads import HeadContext, TaskHead
from groundling.objectives import Objective, ObjectiveContext, find_objective
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.targeted_distillation import (
    ConfidenceGate,
    SharedProjectionDistillation,
    SimilarityDistillation,
    TargetedDistillationTerm,
    TargetedImageDistillation,
    TargetedTextDistillation,
    TargetedWordDistillation,
)
from groundling.settings.fields import make_settings
from groundling.settings.objectives import ObjectiveSettings, TargetedDistillationSettings
from groundling.settings.training import TrainingArguments
from groundling.tasks.splits import UnlabelledDataset, missing_label
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.held_out_loss import means_by_epoch
from groundling.training.loop import ModelWithObjectives, train
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.uniter import UniterBinaryChoiceHead, uniter
from groundling.vision_language.vlbert import VLBertChoiceHead, vlbert

FOUR = MultipleChoice(("0", "1", "2", "3"))
TERMS = ("td_image", "td_text", "td_words")
EXACT = {"rtol": 0, "atol": 1e-6}


def batch_of(rows: int, samples: int = 0, **fields: Any) -> Batch:
    """A batch of so many rows, of as many samples or fewer."""
    ids = tuple(str(number) for number in range(samples or rows))
    text = Tokens(
        input_ids=torch.zeros(rows, 2, dtype=torch.long),
        attention_mask=torch.ones(rows, 2, dtype=torch.bool),
        special_tokens_mask=torch.zeros(rows, 2, dtype=torch.bool),
        word_ids=torch.zeros(rows, 2, dtype=torch.long),
        token_type_ids=torch.zeros(rows, 2, dtype=torch.long),
    )
    return Batch(ids, text=fields.pop("text", text), **fields)


def same_width(
    kind: type[TargetedDistillationTerm], width: int, **options: Any
) -> TargetedDistillationTerm:
    """A term whose projection changes nothing."""
    sizes = OutputSizes(text=width, visual=width, regions=3, teacher=width, teacher_image=width)
    term = kind(sizes, **options)
    nn.init.eye_(term.project.weight)
    nn.init.zeros_(term.project.bias)
    return term


# -- distance --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("width", "expected"), [(512, 25.5), (768, 31.3)])
def test_l1_between_random_directions(width: int, expected: float) -> None:
    # A mean over dimensions would make the term about 500 times smaller, so that nothing is distilled.
    states, features = torch.randn(2, 4000, width)
    term = same_width(TargetedTextDistillation, width)
    distances = term.distance(states, nn.functional.normalize(features, dim=-1))
    assert distances.mean().item() == pytest.approx(expected, abs=0.1)
    means = same_width(TargetedTextDistillation, width, td_reduction="mean")
    assert torch.allclose(means.distance(states, features), term.distance(states, features) / width)


def test_the_students_side_may_keep_its_length() -> None:
    states = torch.tensor([[3.0, 4.0]])
    features = torch.tensor([[0.6, 0.8]])
    assert same_width(TargetedTextDistillation, 2).distance(
        states, features
    ).item() == pytest.approx(0, abs=1e-6)
    raw = same_width(TargetedTextDistillation, 2, td_unit=False).distance(states, features)
    assert raw.item() == pytest.approx(2.4 + 3.2)


# -- what is compared ------------------------------------------------------------------------------------------------


def regions(whole: list[list[bool]], image: list[list[int]], mask: list[list[bool]]) -> Regions:
    rows, count = len(whole), len(whole[0])
    return Regions(
        features=torch.zeros(rows, count, 3),
        boxes=torch.zeros(rows, count, 4),
        mask=torch.tensor(mask),
        image_index=torch.tensor(image),
        is_whole_image=torch.tensor(whole),
        confidence=torch.ones(rows, count),
    )


def test_the_image_is_its_whole_region_or_the_mean_of_its_first_images() -> None:
    states = torch.arange(24.0).view(4, 3, 2)
    features = torch.zeros(4, 2)
    batch = batch_of(
        4,
        regions=regions(
            whole=[[True, False, False], [False] * 3, [False] * 3, [False] * 3],
            image=[[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]],
            mask=[[True] * 3, [True, True, False], [True] * 3, [False] * 3],
        ),
        features={"clip_image": features},
    )
    term = same_width(TargetedImageDistillation, 2, td_unit=False)
    expected = [states[0, 0], states[1, :2].mean(0), states[2, :2].mean(0)]
    found = term(EncoderOutput(visual=states), batch)
    assert found["td_image"].item() == pytest.approx(sum(row.sum().item() for row in expected))
    assert found["td_image_mean"].item() == 2
    assert term.count(batch) == {"td_image": 3, "td_image_mean": 3}
    swapped = replace(batch, labels={"sentence_image": torch.tensor([1, 0, 1, 1])})
    assert term.count(swapped)["td_image"] == 2
    found = term(EncoderOutput(visual=states), swapped)
    assert found["td_image"].item() == pytest.approx(sum(expected[i].sum().item() for i in (0, 2)))
    assert found["td_image_mean"].item() == 1


def words_batch() -> tuple[Tensor, Batch]:
    """Row 0: words 1 (two tokens) and 3; row 1: word 0, and a word of which the student sees nothing; row 2: none."""
    word = torch.tensor([[-1, 1, 1, 3, -1], [-1, 0, 2, 2, -1], [-1, 0, 1, -1, -1]])
    plain = batch_of(3).text
    assert plain is not None
    text = replace(plain, word_ids=word, input_ids=torch.zeros_like(word))
    selected = torch.tensor([[1, 3], [0, 7], [-1, -1]])
    batch = batch_of(
        3, text=text, features={"clip_word": selected, "clip_words": torch.zeros(3, 2, 2)}
    )
    return torch.arange(30.0).view(3, 5, 2), batch


def test_a_word_is_the_mean_of_its_tokens_and_a_row_that_of_its_words() -> None:
    states, batch = words_batch()
    first = states[0, 1:3].mean(0).sum().item(), states[0, 3].sum().item()
    second = states[1, 1].sum().item()
    term = same_width(TargetedWordDistillation, 2, td_unit=False)
    found = term(EncoderOutput(text=states), batch)
    assert found["td_words"].item() == pytest.approx(sum(first) / 2 + second)
    assert found["td_words_used"].item() == 3
    assert found["td_words_short"].item() == 2
    assert term.count(batch) == {"td_words": 3, "td_words_used": 3, "td_words_short": 3}
    literal = same_width(TargetedWordDistillation, 2, td_unit=False, td_words_reduction="sum")
    assert literal(EncoderOutput(text=states), batch)["td_words"].item() == pytest.approx(
        sum(first) + second
    )


def test_a_masked_word_takes_no_part() -> None:
    states, batch = words_batch()
    labels = torch.full((3, 5), IGNORE)
    labels[0, 2] = 5
    found = same_width(TargetedWordDistillation, 2, td_unit=False)(
        EncoderOutput(text=states), replace(batch, labels={"masked_lm": labels})
    )
    assert found["td_words_used"].item() == 2
    expected = states[0, 3].sum() + states[1, 1].sum()
    assert found["td_words"].item() == pytest.approx(expected.item())


def test_a_batch_without_a_selected_word_adds_zero() -> None:
    states, batch = words_batch()
    none = replace(batch, features={**batch.features, "clip_word": torch.full((3, 2), -1)})
    states.requires_grad_()
    term = same_width(TargetedWordDistillation, 2)
    loss = term(EncoderOutput(text=states), none)["td_words"]
    assert loss.item() == 0
    loss.backward()
    assert states.grad is not None
    assert states.grad.isfinite().all()


def test_only_the_right_choice() -> None:
    states = torch.randn(8, 1, 4)
    features = nn.functional.normalize(torch.randn(8, 4), dim=-1)
    labels = {"label": torch.tensor([2, 3])}
    batch = batch_of(8, 2, features={"clip_text": features}, labels=labels)
    sizes = OutputSizes(text=4, teacher=4)
    right = TargetedTextDistillation(sizes, td_choices="right", output_type=FOUR)
    assert right.count(batch) == {"td_text": 2}
    distances = right.distance(states[:, 0], features)
    found = right(EncoderOutput(text=states), batch)["td_text"]
    torch.testing.assert_close(found, distances[2] + distances[7])
    # no choice is known to be right of what has no label, and where there are no choices, every row is
    unlabelled = replace(batch, labels={"label": torch.tensor([2, IGNORE])})
    assert right.count(unlabelled) == {"td_text": 1}
    assert "labels.label" in right.required_fields
    plain = TargetedTextDistillation(
        sizes,
        td_choices="right",
        output_type=Classification(("a", "b")),
    )
    assert plain.count(batch) == {"td_text": 8}
    assert "labels.label" not in plain.required_fields


# -- ours: squared differences, one projection, similarities ---------------------------------------------------------


def test_squared_differences_fit_the_mean_and_absolute_ones_the_median() -> None:
    features = torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0]])
    points = torch.linspace(0, 1, 101)
    best = {}
    for kind in ("l1", "l2"):
        term = same_width(TargetedTextDistillation, 2, td_distance=kind, td_unit=False)
        candidates = torch.stack([points, torch.zeros(101)], 1)
        losses = torch.stack(
            [term.distance(one.expand(4, 2), features).sum() for one in candidates]
        )
        best[kind] = points[losses.argmin()].item()
    assert best == {"l1": 0.0, "l2": pytest.approx(0.25)}


def one_image(rows: int, width: int) -> Regions:
    """Two regions per row, of which the first is the whole image."""
    return regions(whole=[[True, False]] * rows, image=[[0, 0]] * rows, mask=[[True, True]] * rows)


def test_one_projection_for_image_and_text_restated() -> None:
    torch.manual_seed(0)
    visual, text = torch.randn(2, 2, 3), torch.randn(2, 2, 3)
    image_features, text_features = nn.functional.normalize(torch.randn(2, 2, 4), dim=-1)
    batch = batch_of(
        2,
        regions=one_image(2, 3),
        features={"clip_image": image_features, "clip_text": text_features},
    )
    sizes = OutputSizes(text=3, visual=3, regions=2, teacher=4, teacher_image=4)
    term = SharedProjectionDistillation(sizes)
    weight, bias = (one.detach().numpy() for one in (term.project.weight, term.project.bias))
    expected = 0.0
    for states, features in ((visual[:, 0], image_features), (text[:, 0], text_features)):
        projected = states.numpy() @ weight.T + bias
        projected /= np.linalg.norm(projected, axis=1, keepdims=True)
        expected += np.abs(projected - features.numpy()).sum()
    found = term(EncoderOutput(text=text, visual=visual), batch)
    assert found["td_image_text"].item() == pytest.approx(expected, rel=1e-5)
    assert found["td_image_text_mean"].item() == 0
    assert term.count(batch) == {"td_image_text": 2, "td_image_text_mean": 2}
    assert sum(one.numel() for one in term.parameters()) == 3 * 4 + 4
    with pytest.raises(InputError, match="image and text have two widths"):
        SharedProjectionDistillation(sizes._replace(teacher_image=5))


def test_similarities_of_choices_restated() -> None:
    torch.manual_seed(0)
    visual, text = torch.randn(8, 2, 3), torch.randn(8, 2, 3)
    similarity = torch.randn(8) * 3
    both = one_image(8, 3)
    none = replace(both, mask=both.mask & (torch.arange(8) != 5).unsqueeze(1))
    sizes = OutputSizes(text=3, visual=3, regions=2, teacher=4, teacher_image=4)
    term = SimilarityDistillation(sizes, output_type=FOUR)
    with torch.no_grad():
        image = term.image(visual[:, 0]).numpy()
        choice = term.text(text[:, 0]).numpy()
    cosines = (
        (image * choice).sum(1) / np.linalg.norm(image, axis=1) / np.linalg.norm(choice, axis=1)
    )
    expected = []
    for start in (0, 4):
        own = np.exp(cosines[start : start + 4] / 0.07)
        clip = np.exp(similarity[start : start + 4].double().numpy())
        own, clip = own / own.sum(), clip / clip.sum()
        expected.append((clip * np.log(clip / own)).sum())
    encoded = EncoderOutput(text=text, visual=visual)
    for seen, count, total in ((both, 2, sum(expected)), (none, 1, expected[0])):
        batch = said(similarity.view(2, 4), regions=seen)
        assert term.count(batch) == {"td_similarity": count}
        assert term(encoded, batch)["td_similarity"].item() == pytest.approx(total, rel=1e-4)
    assert term.saved_modules() == {}


def test_similarities_need_choices_and_regions() -> None:
    sizes = OutputSizes(text=3, visual=3, regions=2, teacher=4, teacher_image=4)
    with pytest.raises(InputError, match="only for a task of multiple choice"):
        SimilarityDistillation(sizes, output_type=Classification(("a", "b")))
    with pytest.raises(InputError, match="reads no regions"):
        SimilarityDistillation(sizes._replace(regions=0), output_type=FOUR)


# -- the gate --------------------------------------------------------------------------------------------------------

HALF = 0.5
"""A temperature at which toys' gates are open here and closed there: new heads are sure of nothing."""
COSINES = torch.tensor([[0.20, 0.25, 0.22, 0.21]])
LOGITS = torch.tensor([[1, 0.2, -0.5, 0.1]])


def said(similarity: Tensor, **more: Any) -> Batch:
    """What a teacher says of some samples' choices (B, C)."""
    features = {"clip_similarity": similarity.flatten()}
    return batch_of(similarity.numel(), len(similarity), features=features, **more)


def answered(logits: Tensor) -> EncoderOutput:
    return EncoderOutput(heads={"supervised": logits})


def test_ratios_of_the_worked_example() -> None:
    gate = ConfidenceGate(FOUR)
    scaled = said(100 * COSINES)
    assert gate.confidence_ratio(answered(LOGITS), scaled).item() == pytest.approx(1.934, abs=1e-3)
    assert gate.confidence_ratio(answered(LOGITS), scaled).item() == pytest.approx(
        0.9304 / 0.4810, abs=1e-3
    )
    assert gate.open_gates(answered(LOGITS), scaled).tolist() == [True]
    # without CLIP's scale the teacher is never sure: the gate stays closed
    raw = said(COSINES)
    assert gate.confidence_ratio(answered(LOGITS), raw).item() == pytest.approx(0.5355, abs=1e-4)
    assert gate.open_gates(answered(LOGITS), raw).tolist() == [False]
    # T
    warm = ConfidenceGate(FOUR, temperature=2.0)
    assert warm.confidence_ratio(answered(LOGITS), raw).item() == pytest.approx(
        2 * 0.5355, abs=2e-4
    )
    assert warm.open_gates(answered(LOGITS), raw).tolist() == [True]


def test_a_head_trained_with_bce_is_read_by_softmax() -> None:
    bce = ConfidenceGate(replace(FOUR, kind="bce"))
    batch = said(100 * COSINES)
    assert torch.equal(
        bce.confidence_ratio(answered(LOGITS), batch),
        ConfidenceGate(FOUR).confidence_ratio(answered(LOGITS), batch),
    )


def test_two_outputs_a_choice() -> None:
    pairs = torch.tensor([[0.3, 1.0, -1.0, 0.2, 2.0, -0.5, 0.0, 0.1]])  # wrong, right, wrong, ...
    batch = said(100 * COSINES)
    each = replace(FOUR, kind="each")
    right = ConfidenceGate(each).confidence_ratio(answered(pairs), batch)
    torch.testing.assert_close(
        right, ConfidenceGate(FOUR).confidence_ratio(answered(LOGITS), batch)
    )
    teacher = (100 * COSINES).softmax(-1)[0]
    student = pairs.view(4, 2).softmax(-1)[:, 1]
    by_pair = ConfidenceGate(each, "pair").confidence_ratio(answered(pairs), batch)
    torch.testing.assert_close(by_pair, teacher / student)


def test_a_gate_for_each_pair() -> None:
    gate = ConfidenceGate(FOUR, "pair")
    batch = said(100 * torch.cat([COSINES, COSINES.flip(1)]))
    logits = torch.cat([LOGITS, LOGITS])
    ratio = gate.confidence_ratio(answered(logits), batch)
    teacher = batch.features["clip_similarity"].view(2, 4).softmax(-1)
    torch.testing.assert_close(ratio, (teacher / logits.softmax(-1)).flatten())
    assert gate.count(batch) == 8
    assert ConfidenceGate(FOUR).count(batch) == 2
    # one answer to a question has no pairs of its own
    answers = OpenAnswer(tuple("abcde"))
    features = {"clip_confidence": torch.tensor([0.9, 0.1])}
    alone = batch_of(2, features=features)
    assert ConfidenceGate(answers, "pair").count(alone) == 2
    of_answers = ConfidenceGate(answers, "pair").confidence_ratio(
        answered(torch.zeros(2, 5)), alone
    )
    assert of_answers.tolist() == pytest.approx([4.5, 0.5])


def test_other_tasks_take_the_teachers_own_confidence() -> None:
    form = Classification(("no", "maybe", "yes"))
    batch = batch_of(3, features={"clip_confidence": torch.tensor([0.5, 0.2, 1.0])})
    logits = torch.tensor([[0.0, 0, 0], [0, 0, 0], [50, 0, 0]])
    gate = ConfidenceGate(form)
    assert gate.required_field == "features.clip_confidence"
    assert gate.confidence_ratio(answered(logits), batch).tolist() == pytest.approx([1.5, 0.6, 1.0])
    assert gate.open_gates(answered(logits), batch).tolist() == [
        True,
        False,
        False,
    ]  # at 1 it is closed


def test_closed_rows_add_nothing_and_are_counted() -> None:
    states = torch.randn(8, 1, 4)
    features = nn.functional.normalize(torch.randn(8, 4), dim=-1)
    batch = said(torch.cat([100 * COSINES, COSINES]))
    batch = replace(batch, features={**batch.features, "clip_text": features})
    encoded = replace(answered(LOGITS.expand(2, 4)), text=states)
    sizes = OutputSizes(text=4, teacher=4)
    gated = TargetedTextDistillation(sizes, td_gate="question", output_type=FOUR)
    found = gated(encoded, batch)
    torch.testing.assert_close(found["td_text"], gated.distance(states[:, 0], features)[:4].sum())
    assert found["td_text_gate_open"].item() == 1
    assert gated.count(batch) == {"td_text": 8, "td_text_gate_open": 2}
    assert gated.monitored_terms == ("td_text_gate_open",)
    pair = TargetedTextDistillation(sizes, td_gate="pair", output_type=FOUR)
    is_open = ConfidenceGate(FOUR, "pair").open_gates(encoded, batch)
    found = pair(encoded, batch)
    torch.testing.assert_close(
        found["td_text"], (pair.distance(states[:, 0], features) * is_open).sum()
    )
    assert 0 < found["td_text_gate_open"].item() == is_open.sum() < 8
    assert pair.count(batch) == {"td_text": 8, "td_text_gate_open": 8}
    # of right choices alone, gates of wrong ones are nobody's
    right = TargetedTextDistillation(
        sizes,
        td_gate="pair",
        td_choices="right",
        output_type=FOUR,
    )
    batch = replace(batch, labels={"label": torch.tensor([1, 2])})
    found = right(encoded, batch)
    assert found["td_text_gate_open"].item() == is_open[[1, 6]].sum()
    assert right.count(batch) == {"td_text": 2, "td_text_gate_open": 2}


def gate_of(form: OutputType | None, **options: Any) -> Objective:
    given = ObjectiveContext(
        OutputSizes(text=4, teacher=4),
        output_type=form,
        settings=ObjectiveSettings(
            targeted_distillation=TargetedDistillationSettings(**{"td_gate": "question", **options})
        ),
    )
    return find_objective("td_text").from_context(given)


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        (None, {}, "td_gate=question: only for a task; omit it"),
        (Regression(), {}, "this task has no answers to choose from"),
        (RegionSelection(), {}, "has no answers to choose"),
        (FOUR, {"td_temperature": 0.0}, "td_temperature = 0.0: expected"),
        (FOUR, {"td_temperature": math.nan}, "td_temperature = nan: expected"),
    ],
)
def test_a_gate_that_cannot_be(form: OutputType | None, options: Any, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        gate_of(form, **options)
    assert "\n" not in str(error.value)


def test_a_gate_without_logits_or_numbers() -> None:
    with pytest.raises(InputError, match="a gate on the task's answers needs"):
        ConfidenceGate(FOUR).confidence_ratio(EncoderOutput(), said(COSINES))
    with pytest.raises(InputError, match="the teacher's clip_similarity is not finite") as error:
        ConfidenceGate(FOUR).confidence_ratio(answered(LOGITS), said(COSINES * math.nan))
    assert "\n" not in str(error.value)


def test_a_text_student_has_no_image(student: Any, cross: Any) -> None:
    for model in (student(), cross):
        with pytest.raises(InputError, match="td_image: this model reads no regions") as error:
            find_objective("td_image").from_context(
                ObjectiveContext(model.sizes._replace(teacher=24))
            )
        assert "\n" not in str(error.value)


# -- the whole loss --------------------------------------------------------------------------------------------------


def questions(count: int = 12) -> list[Example]:
    """Questions on images with four choices, of which one is right."""
    texts = toys.sentences()
    return [
        Example(
            f"q{i}",
            texts[i],
            label=i % 4,
            choices=tuple(texts[20 + 4 * i : 24 + 4 * i]),
            images=(f"image{i}",),
        )
        for i in range(count)
    ]


def shown(examples: list[Example], whole: bool) -> RegionDataset:
    store = toys.RegionDict({f"image{i}": toys.regions(i, 2 + i % 4) for i in range(len(examples))})
    texts = TextDataset(examples, TextRowEncoder(toys.bert_words(), 60))
    return RegionDataset(texts, store, RegionOptions(whole_image=whole))


def seeing(name: str) -> tuple[SingleStreamModel, type[TaskHead]]:
    torch.manual_seed(4)
    words = toys.bert_words()
    bert = toys.bert(len(words))
    if name == "vlbert":
        return vlbert(bert, words, width=12).eval(), VLBertChoiceHead
    return uniter(bert, words, width=12).eval(), UniterBinaryChoiceHead


def distilled(name: str, gate: str, **options: Any) -> tuple[ModelWithObjectives, Batch]:
    """A tiny student with the task and all three terms, and a batch on which some gates are open and some are not."""
    model, kind = seeing(name)
    sizes = model.sizes._replace(teacher=24, teacher_image=20)
    task = SupervisedObjective(sizes, output_type=FOUR, head=kind(HeadContext(sizes, FOUR)).eval())
    settings = TargetedDistillationSettings(**{"td_gate": gate, "td_temperature": HALF, **options})
    given = ObjectiveContext(
        sizes,
        settings=ObjectiveSettings(targeted_distillation=settings),
        output_type=task.output_type,
    )
    terms = [find_objective(term).from_context(given) for term in TERMS]
    samples = toys.Clip(shown(questions(), model.reads_whole_image))
    batch = collate(samples.get(range(6), [np.random.default_rng(0)] * 6))
    return ModelWithObjectives(model, [task, *terms]).eval(), batch


def loss_of(step: ModelWithObjectives, batch: Batch) -> Tensor:
    """As the loop divides and weighs."""
    terms = step(batch, [one.name for one in step.objectives]).terms
    counts: dict[str, int] = {}
    for objective in step.objectives:
        counts |= objective.count(batch)  # type: ignore[operator]
    return sum(
        (step.weight(name, 0) * value / counts[name] for name, value in terms.items()),
        torch.zeros(()),
    )


def restated(step: ModelWithObjectives, batch: Batch, name: str, gate: str) -> Tensor:
    """Eq. 1 to 10, row by row; the same batch, weights and head."""
    task, image, text, words = step.objectives
    encoded = step.model(batch)
    logits = task.outputs(encoded, batch)  # type: ignore[operator]
    features, labels = batch.features, batch.labels["label"]
    total = torch.zeros(())
    for b, label in enumerate(labels.tolist()):
        scores = []
        for c in range(4):
            if name == "uniter":  # wrong and right of each choice
                pair = logits[b, 2 * c : 2 * c + 2]
                total = total - pair.log_softmax(0)[int(c == label)] / 24
                scores.append(pair[1])
            else:
                sign = 1 if c == label else -1
                total = total - nn.functional.logsigmoid(sign * logits[b, c]) / 24
                scores.append(logits[b, c])
        teacher = features["clip_similarity"][4 * b : 4 * b + 4].softmax(0)
        student = torch.stack(scores).detach().softmax(0)
        for c in range(4):
            row = 4 * b + c
            if gate == "question" and not HALF * teacher.max() / student.max() > 1:
                continue
            one = student[c]
            if name == "uniter":
                one = logits[b, 2 * c : 2 * c + 2].detach().softmax(0)[1]
            if gate == "pair" and not HALF * teacher[c] / one > 1:
                continue
            distance = apart(text, encoded.text[row, 0], features["clip_text"][row])
            there = batch.regions.mask[row]
            state = encoded.visual[row][there].mean(0)
            if name == "vlbert":
                state = encoded.visual[row, 0]
            distance = distance + apart(image, state, features["clip_image"][row])
            of_words = []
            for place, number in enumerate(features["clip_word"][row].tolist()):
                if number >= 0:
                    tokens = encoded.text[row][batch.text.word_ids[row] == number]
                    feature = features["clip_words"][row, place]
                    of_words.append(apart(words, tokens.mean(0), feature))
            if of_words:
                distance = distance + torch.stack(of_words).mean()
            total = total + 0.05 * distance / 24
    return total


def apart(term: Any, state: Tensor, feature: Tensor) -> Tensor:
    projected = term.project.weight @ state + term.project.bias
    return (projected / projected.norm() - feature).abs().sum()


@pytest.mark.parametrize("gate", ["none", "question", "pair"])
@pytest.mark.parametrize("name", ["vlbert", "uniter"])
def test_the_whole_loss_is_that_of_a_plain_loop(name: str, gate: str) -> None:
    step, batch = distilled(name, gate)
    terms = step(batch, [one.name for one in step.objectives]).terms
    if gate != "none":
        opened = {terms[f"{term}_gate_open"].item() for term in TERMS}
        assert len(opened) == 1
        assert 0 < opened.pop() < (6 if gate == "question" else 24)
    loss, plain = loss_of(step, batch), restated(step, batch, name, gate)
    torch.testing.assert_close(loss, plain, **EXACT)
    assert (terms["td_image_mean"].item() == 24) == (name == "uniter")
    loss.backward()
    found = {n: p.grad.clone() for n, p in step.named_parameters() if p.grad is not None}
    step.zero_grad()
    plain.backward()
    for parameter, gradient in found.items():
        torch.testing.assert_close(
            gradient, step.get_parameter(parameter).grad, rtol=1e-4, atol=1e-6
        )


def test_no_gradient_reaches_the_teacher_or_flows_through_the_gate() -> None:
    step, batch = distilled("uniter", "question")
    features = {
        name: value.clone().requires_grad_() if value.is_floating_point() else value
        for name, value in batch.features.items()
    }
    batch = replace(batch, features=features)
    terms = step(batch, [one.name for one in step.objectives]).terms
    distances = sum(terms[term] for term in TERMS)
    distances.backward()
    assert all(value.grad is None for value in features.values())
    assert not any(
        value.requires_grad for name, value in terms.items() if name not in {"task", *TERMS}
    )
    # the task's head gets its gradient from the task alone
    head = step.objectives[0].head
    assert all(parameter.grad is None for parameter in head.parameters())
    assert all(one.project.weight.grad.any() for one in list(step.objectives)[1:])


def test_settings_reach_the_terms() -> None:
    step, _ = distilled("uniter", "none", td_weight=0.5, num_words=1)
    image, text, words = list(step.objectives)[1:]
    assert [one.weight_at(0) for one in (image, text, words)] == [0.5] * 3
    assert words.weight_of("td_words", 0) == 0.5
    assert [words.weight_of(term, 0) for term in ("td_words_used", "td_words_short")] == [0, 0]
    assert image.weight_of("td_image_mean", 0) == 0
    assert all(one.saved_modules() == {} for one in (image, text, words))
    assert (
        TargetedDistillationSettings().td_weight
        == TargetedTextDistillation(OutputSizes(4, teacher=4)).weight
        == 0.05
    )


# -- what is logged, and what is said of it --------------------------------------------------------------------------

TEACHER = '''
"""What a CLIP might say, from a text's letters."""

import numpy as np
import torch

from groundling.core.batch import Sample
from groundling.teachers import Teacher


class Clip(Teacher):
    """Random features; the similarity is that of a teacher who is always sure."""

    name = "made_up"
    width = 24

    def inputs(self, rows):
        return [
            Sample(
                f"{row.example.text}|{row.example.text_pair}", word_type_ids=row.word_type_ids
            )
            for row in rows
        ]

    def features(self, batch):
        torch.manual_seed(len(batch))
        count = len(batch.word_type_ids)
        text = torch.nn.functional.normalize(torch.randn(count, 24), dim=-1)
        word = torch.tensor([0, 1]).expand(count, 2)
        words = torch.nn.functional.normalize(torch.randn(count, 2, 24), dim=-1)
        similarity = 100.0 * torch.arange(count)
        return {
            "clip_text": text,
            "clip_words": words,
            "clip_word": word,
            "clip_similarity": similarity,
        }
'''


@pytest.fixture
def gated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FinetuneConfig:
    """Fine-tuning on SWAG with two gated terms."""
    from tiny.tasks import SWAG_HEAD, swag_row

    homes.student(tmp_path / "student")
    homes.put(tmp_path / "made_up_clip.py", TEACHER)
    for split, size in (("train", 16), ("val", 8)):
        rows = [swag_row(number, number % 4) for number in range(size)]
        homes.put(tmp_path / "swag" / f"{split}.csv", homes.table([*SWAG_HEAD, "label"], *rows))
    monkeypatch.chdir(tmp_path)
    return make_settings(
        FinetuneConfig,
        model=str(tmp_path / "student"),
        task="swag",
        data=str(tmp_path / "swag"),
        max_length=64,
        objectives=("td_text", "td_words"),
        teacher="made_up_clip:Clip",
        td_gate="question",
        save_model=True,
    )


def test_finetuning_logs_the_gate_and_keeps_no_projection(
    gated: FinetuneConfig, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = finetune(gated, replace(STEPS, steps=4, batch=8, lr=0.0), tmp_path / "out")
    seed = tmp_path / "out" / "seed-0"
    for line in log_of(seed):
        assert line["td_text_gate_open"] == line["td_words_gate_open"] == 1
        assert line["td_words_used"] == 2
        assert line["td_words_short"] == 0
        weighed = line["task"] + 0.05 * (line["td_text"] + line["td_words"])
        assert line["loss"] == pytest.approx(weighed, abs=1e-5)
    # always open, in both of two epochs: said once, although two terms have that gate
    done = json.loads((seed / "result.json").read_text())
    assert done["watched"]["td_text_gate_open"] == [1.0, 1.0]
    assert done["watched"]["td_words_used"] == [2.0, 2.0]
    (note,) = [one for one in done["notes"] if not one.startswith("val: ")]
    assert note.startswith("the confidence gate was open in 100% of all cases in epoch 1, 2:")
    assert f"seed 0: {note}" in result["notes"]
    assert capsys.readouterr().err.count("the confidence gate was open") == 1
    heads = load_file(seed / "model" / "groundling_heads.safetensors")
    assert {key.split(".")[0] for key in heads} == {"supervised"}
    assert not any("project" in key for key in load_file(seed / "model" / "model.safetensors"))


def test_what_stands_out_is_said() -> None:
    gated = gate_of(FOUR)
    assert gated.notes({"td_text_gate_open": [0.4, 0.9]}) == []
    assert gated.notes({}) == []
    (never,) = gated.notes({"td_text_gate_open": [0.4, 0.0, 0.0]})
    assert "0% of all cases in epoch 2, 3: nothing" in never
    (always,) = gate_of(FOUR, td_gate="pair").notes({"td_text_gate_open": [1.0]})
    assert "100% of all cases in epoch 1: the gate had no effect" in always
    image = TargetedImageDistillation(
        OutputSizes(text=4, visual=4, regions=3, teacher=4, teacher_image=4)
    )
    assert image.notes({"td_image_mean": [0.0]}) == []
    (mean,) = image.notes({"td_image_mean": [0.25]})
    assert mean.startswith("td_image: 25% of the rows had no whole-image region")


def test_means_of_epochs(tmp_path: Path) -> None:
    lines = [(2, 1.0), (4, 0.5), (5, 0.0), (6, 1.0), (8, 0.2), (9, 0.7)]
    log = tmp_path / "log.jsonl"
    rows = [{"step": step, "loss": 0.1, "open": share} for step, share in lines]
    rows.insert(3, {"step": 5, "gradient_norm/task": 2.0})  # not a mean over steps
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    # epochs of four steps; a line counts by its steps
    found = means_by_epoch(log, ["open", "never"], 4.0)
    assert set(found) == {"open"}
    assert found["open"] == pytest.approx([0.75, (0 + 1 + 2 * 0.2) / 4, 0.7])


# -- without labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("form", "label"),
    [
        (Classification(("a", "b", "c")), np.array(2)),
        (FOUR, np.array(1)),
        (Regression(), np.array(-100.0)),  # a number like any other
        (OpenAnswer(tuple("abcde")), np.array([[1, 0.3], [4, 1.0]], np.float32)),
        # a question of which nobody listed an answer that the map has
        (OpenAnswer(tuple("abcde")), np.full((2, 2), IGNORE, np.float32)),
        (RegionSelection(), np.array([0, 1, 0])),
    ],
)
def test_hidden_labels_are_answered_and_not_scored(form: OutputType, label: np.ndarray) -> None:
    task = SupervisedObjective(OutputSizes(text=4), output_type=form)
    outputs = torch.randn(3, 3 if isinstance(form, RegionSelection) else max(form.head_width, 1))
    if isinstance(form, MultipleChoice):
        outputs = torch.randn(3, 4)
    samples = [Sample(str(n), labels={"label": label}) for n in range(3)]
    samples[1] = samples[1].with_label("label", missing_label(label))
    labels = collate(samples).labels
    batch = batch_of(3, labels=labels)
    encoded = EncoderOutput(heads={"supervised": outputs})
    assert task.count(batch) == {"task": 2}
    kept = torch.tensor([0, 2])
    expected = form.loss(outputs[kept], labels["label"][kept])
    torch.testing.assert_close(task(encoded, batch)["task"], expected)
    hidden_ones = collate([samples[1]] * 3).labels
    for unlabelled in (hidden_ones, {}):
        alone = batch_of(3, labels=unlabelled)
        assert task.count(alone) == {"task": 0}
        assert task(encoded, alone) == {}


def mixed(each: int = 2) -> DataSource:
    """Eight labelled questions, and twelve others beside them, whose labels nobody sees."""
    every = questions(20)
    labelled = toys.Clip(shown(every[:8], False))
    store = toys.RegionDict({f"image{i}": toys.regions(i, 2 + i % 4) for i in range(20)})
    others = TextDataset(every[8:], TextRowEncoder(toys.bert_words(), 60))
    rest = toys.Clip(RegionDataset(others, store))
    return DataSource(
        labelled, extra_samples=UnlabelledDataset(rest, np.array(0)), extra_per_sample=each
    )


def test_every_step_mixes_labelled_and_unlabelled() -> None:
    source = mixed()
    plan = plan_batches([source], [], TrainingArguments(batch=4, steps=6), 1)
    whole = MicroBatchDataset(plan, [], 1, 0, 1)
    seen = set()
    for step in range(6):
        batch = whole[step]
        known = batch.labels["label"] != IGNORE
        assert (int(known.sum()), len(batch)) == (4, 12)
        assert {int(name[1:]) < 8 for name, k in zip(batch.ids, known, strict=True) if k} == {True}
        seen |= {name for name, k in zip(batch.ids, known, strict=True) if not k}
        # whatever the split, the same samples; and the same again, as after a kill
        halves = [MicroBatchDataset(plan, [], 2, 0, 1)[2 * step + half] for half in range(2)]
        assert sorted(batch.ids) == sorted(name for half in halves for name in half.ids)
        ranks = [MicroBatchDataset(plan, [], 1, rank, 2)[step] for rank in range(2)]
        assert sorted(batch.ids) == sorted(name for rank in ranks for name in rank.ids)
        again = MicroBatchDataset(
            plan_batches([mixed()], [], TrainingArguments(batch=4, steps=6), 1), [], 1, 0, 1
        )[step]
        assert again.ids == batch.ids
    assert len(seen) > 8  # drawn anew for every labelled sample in every epoch
    assert not any(
        sample.example.label for sample in source.extra_samples.get(range(12), [None] * 12)
    )


def semi_supervised(out: Path, inner: Any = None, steps: int = 4) -> dict[str, Any]:
    """UNITER on labelled and unlabelled questions, gated."""
    model, kind = seeing("uniter")
    sizes = model.sizes._replace(teacher=24, teacher_image=20)
    torch.manual_seed(1)
    task = SupervisedObjective(sizes, output_type=FOUR, head=kind(HeadContext(sizes, FOUR)))
    settings = TargetedDistillationSettings(td_gate="question", td_temperature=HALF)
    given = ObjectiveContext(
        sizes,
        settings=ObjectiveSettings(targeted_distillation=settings),
        output_type=task.output_type,
    )
    terms = [find_objective(term).from_context(given) for term in TERMS]
    config = replace(STEPS, steps=steps, batch=4, lr=1e-3, save_every=2)
    train(model, [task, *terms], [mixed()], config, out, training_step=inner)
    return {
        **model.state_dict(),
        **{f"{t.name}.{k}": v for t in terms for k, v in t.state_dict().items()},
    }


def test_a_killed_semi_supervised_run_resumes_bit_equal(tmp_path: Path) -> None:
    whole = semi_supervised(tmp_path / "whole")
    with pytest.raises(Killed):
        semi_supervised(tmp_path / "killed", dying(3))
    killed = semi_supervised(tmp_path / "killed")
    assert whole.keys() == killed.keys()
    assert all(torch.equal(value, killed[name]) for name, value in whole.items())
    first, *_ = log_of(tmp_path / "whole")
    assert 0 < first["td_text_gate_open"] < 1
    assert first["td_image_mean"] == 1


def test_a_step_without_any_label_distils_all_the_same(tmp_path: Path) -> None:
    model, kind = seeing("uniter")
    sizes = model.sizes._replace(teacher=24, teacher_image=20)
    task = SupervisedObjective(sizes, output_type=FOUR, head=kind(HeadContext(sizes, FOUR)))
    text = find_objective("td_text").from_context(
        ObjectiveContext(
            sizes,
            settings=make_settings(ObjectiveSettings, td_gate="question"),
            output_type=task.output_type,
        )
    )
    samples = UnlabelledDataset(toys.Clip(shown(questions(), False)), np.array(0))
    before = {name: value.clone() for name, value in task.state_dict().items()}
    train(
        model, [task, text], samples, replace(STEPS, steps=2, batch=4, weight_decay=0.0), tmp_path
    )
    assert all("task" not in line and "td_text" in line for line in log_of(tmp_path))
    assert all(torch.equal(value, before[name]) for name, value in task.state_dict().items())
