"""CLIP-TD's terms: worked numbers, a plain restatement of Eq. 1 to 10, the gate, and training without labels."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import toys
from tiny.homes import STEPS, log_of, refused
from torch import Tensor, nn

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
from groundling.settings.objectives import ObjectiveSettings
from groundling.settings.training import TrainingArguments
from groundling.tasks.splits import UnlabelledDataset, missing_label
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
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


def test_distances() -> None:
    # L1 between random directions; a mean over dimensions is about 500 times smaller, so that nothing is distilled
    states, features = torch.randn(2, 4000, 512)
    features = nn.functional.normalize(features, dim=-1)
    gap = nn.functional.normalize(states, dim=-1) - features
    for options, expected in (
        ({}, gap.abs().sum(-1)),
        ({"td_distance": "l2"}, gap.square().sum(-1)),
        ({"td_reduction": "mean"}, gap.abs().mean(-1)),
        ({"td_unit": False}, (states - features).abs().sum(-1)),
    ):
        term = same_width(TargetedTextDistillation, 512, **options)
        torch.testing.assert_close(term.distance(states, features), expected)
    assert gap.abs().sum(-1).mean().item() == pytest.approx(25.5, abs=0.1)


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
    masked = torch.full((3, 5), IGNORE)
    masked[0, 2] = 5  # a part of the first word, which therefore takes no part
    for reduction, labels, expected, used, short in (
        ("mean", {}, sum(first) / 2 + second, 3, 2),
        ("sum", {}, sum(first) + second, 3, 2),
        ("mean", {"masked_lm": masked}, first[1] + second, 2, 3),
    ):
        term = same_width(TargetedWordDistillation, 2, td_unit=False, td_words_reduction=reduction)
        found = term(EncoderOutput(text=states), replace(batch, labels=labels))
        assert found["td_words"].item() == pytest.approx(expected)
        assert (found["td_words_used"].item(), found["td_words_short"].item()) == (used, short)
    assert term.count(batch) == {"td_words": 3, "td_words_used": 3, "td_words_short": 3}


def test_a_batch_without_a_selected_word_adds_zero() -> None:
    states, batch = words_batch()
    none = replace(batch, features={**batch.features, "clip_word": torch.full((3, 2), -1)})
    states.requires_grad_()
    loss = same_width(TargetedWordDistillation, 2)(EncoderOutput(text=states), none)["td_words"]
    loss.backward()
    assert loss.item() == 0 and states.grad.isfinite().all()


# -- ours: one projection, similarities ------------------------------------------------------------------------------


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


EACH = torch.tensor([[0.3, 1.0, -1.0, 0.2, 2.0, -0.5, 0.0, 0.1]])
"""Of each choice, wrong and right."""
SURE = (100 * COSINES).softmax(-1)


@pytest.mark.parametrize(
    ("gate", "logits", "scale", "ratio"),
    [
        (ConfidenceGate(FOUR), LOGITS, 100, [0.9304 / 0.4810]),
        # without CLIP's scale the teacher is never sure: the gate stays closed
        (ConfidenceGate(FOUR), LOGITS, 1, [0.5355]),
        (ConfidenceGate(FOUR, temperature=2.0), LOGITS, 1, [2 * 0.5355]),
        # a head trained with BCE is read by softmax
        (ConfidenceGate(replace(FOUR, kind="bce")), LOGITS, 100, [1.934]),
        # two outputs a choice
        (ConfidenceGate(replace(FOUR, kind="each")), EACH, 100, [1.934]),
        (
            ConfidenceGate(replace(FOUR, kind="each"), "pair"),
            EACH,
            100,
            SURE / EACH.view(4, 2).softmax(-1)[:, 1],
        ),
        (ConfidenceGate(FOUR, "pair"), LOGITS, 100, SURE / LOGITS.softmax(-1)),
    ],
)
def test_ratios_of_the_worked_example(gate, logits, scale, ratio) -> None:
    batch = said(scale * COSINES)
    found = gate.confidence_ratio(answered(logits), batch)
    torch.testing.assert_close(found, torch.as_tensor(ratio).flatten(), rtol=0, atol=1e-3)
    assert gate.open_gates(answered(logits), batch).tolist() == (found > 1).tolist()


def test_other_tasks_take_the_teachers_own_confidence() -> None:
    batch = batch_of(3, features={"clip_confidence": torch.tensor([0.5, 0.2, 1.0])})
    logits = answered(torch.tensor([[0.0, 0, 0], [0, 0, 0], [50, 0, 0]]))
    for gate in (
        ConfidenceGate(Classification(("no", "maybe", "yes"))),
        ConfidenceGate(OpenAnswer(tuple("abc")), "pair"),  # one answer has no pairs of its own
    ):
        assert gate.feature == "clip_confidence" and not gate.is_per_pair
        assert gate.confidence_ratio(logits, batch).tolist() == pytest.approx([1.5, 0.6, 1.0])
        assert gate.open_gates(logits, batch).tolist() == [True, False, False]  # at 1 it is closed


def test_closed_rows_add_nothing_and_are_counted() -> None:
    states = torch.randn(8, 1, 4)
    features = nn.functional.normalize(torch.randn(8, 4), dim=-1)
    batch = said(torch.cat([100 * COSINES, COSINES]))
    features = {**batch.features, "clip_text": features}
    batch = replace(batch, features=features, labels={"label": torch.tensor([1, 2])})
    encoded = replace(answered(LOGITS.expand(2, 4)), text=states)
    by_pair = ConfidenceGate(FOUR, "pair").open_gates(encoded, batch)
    assert 0 < by_pair.sum() < 8
    first = torch.arange(8) < 4
    right = torch.tensor([1, 6])  # of right choices alone, gates of wrong ones are nobody's
    for gate, choices, rows, opened, counts in (
        ("question", "all", first, 1, (8, 2)),
        ("pair", "all", by_pair, by_pair.sum(), (8, 8)),
        ("pair", "right", right[by_pair[right]], by_pair[right].sum(), (2, 2)),
    ):
        term = TargetedTextDistillation(
            OutputSizes(text=4, teacher=4), td_gate=gate, td_choices=choices, output_type=FOUR
        )
        found = term(encoded, batch)
        distances = term.distance(states[:, 0], features["clip_text"])
        torch.testing.assert_close(found["td_text"], distances[rows].sum())
        assert found["td_text_gate_open"].item() == opened
        assert tuple(term.count(batch).values()) == counts
    assert term.monitored_terms == ("td_text_gate_open",)
    # no choice is known to be right of what has no label, and where there are no choices, every row is
    unlabelled = replace(batch, labels={"label": torch.tensor([2, IGNORE])})
    assert term.count(unlabelled)["td_text"] == 1
    assert "labels.label" in term.required_fields
    plain = term_of(Classification(("a", "b")), td_choices="right")
    assert plain.count(batch) == {"td_text": 8} and "labels.label" not in plain.required_fields


def term_of(form: OutputType | None, name: str = "td_text", **options: Any) -> Objective:
    sizes = OutputSizes(text=3, visual=3, regions=2, teacher=4, teacher_image=4)
    return find_objective(name).from_context(
        ObjectiveContext(
            sizes._replace(**options.pop("sizes", {})),
            output_type=form,
            settings=make_settings(ObjectiveSettings, **options),
        )
    )


GATED = {"td_gate": "question"}
TWO = Classification(("a", "b"))


@pytest.mark.parametrize(
    ("form", "options", "message"),
    [
        (None, GATED, "td_gate=question: only for a task; omit it"),
        (Regression(), GATED, "this task has no answers to choose from"),
        (RegionSelection(), GATED, "has no answers to choose"),
        (FOUR, {**GATED, "td_temperature": 0.0}, "td_temperature = 0.0: expected"),
        (FOUR, {**GATED, "td_temperature": math.nan}, "td_temperature = nan: expected"),
        (TWO, {"name": "td_similarity"}, "only for a task of multiple choice"),
        (FOUR, {"name": "td_similarity", "sizes": {"regions": 0}}, "reads no regions"),
        (None, {"name": "td_image", "sizes": {"regions": 0}}, "td_image: this model reads no reg"),
        (None, {"name": "td_image_text", "sizes": {"teacher_image": 5}}, "image and text differ"),
    ],
)
def test_a_term_that_cannot_be(form: OutputType | None, options: Any, message: str) -> None:
    assert message in refused(lambda: term_of(form, **options))


def test_a_gate_without_logits() -> None:
    ratio = ConfidenceGate(FOUR).confidence_ratio
    assert "a gate on the task's answers needs" in refused(ratio, EncoderOutput(), said(COSINES))


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


def objectives_of(model: SingleStreamModel, kind: type[TaskHead], **options: Any) -> list[Any]:
    """The task and all three terms."""
    sizes = model.sizes._replace(teacher=24, teacher_image=20)
    task = SupervisedObjective(sizes, output_type=FOUR, head=kind(HeadContext(sizes, FOUR)))
    settings = make_settings(ObjectiveSettings, td_temperature=HALF, **options)
    given = ObjectiveContext(sizes, settings=settings, output_type=task.output_type)
    return [task, *(find_objective(term).from_context(given) for term in TERMS)]


def distilled(name: str, gate: str) -> tuple[ModelWithObjectives, Batch]:
    """A tiny student with the task and all three terms, and a batch on which some gates are open and some are not."""
    model, kind = seeing(name)
    samples = toys.Clip(shown(questions(), model.reads_whole_image))
    batch = collate(samples.get(range(6), [np.random.default_rng(0)] * 6))
    return ModelWithObjectives(model, objectives_of(model, kind, td_gate=gate)).eval(), batch


def loss_of(step: ModelWithObjectives, batch: Batch) -> Tensor:
    """As the loop divides and weighs."""
    terms = step(batch, [one.name for one in step.objectives]).terms
    counts: dict[str, int] = {}
    for objective in step.objectives:
        counts |= objective.count(batch)  # type: ignore[operator]
    return sum(
        (step.weight(name) * value / counts[name] for name, value in terms.items()),
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
    """Eq. 2."""
    projected = term.project.weight @ state + term.project.bias
    return (projected / projected.norm() - feature).abs().sum()


@pytest.mark.parametrize("gate", ["none", "question", "pair"])
@pytest.mark.parametrize("name", ["vlbert", "uniter"])
def test_the_whole_loss_is_that_of_a_plain_loop(name: str, gate: str) -> None:
    step, batch = distilled(name, gate)
    assert not any(one.saved_modules() for one in step.objectives[1:]), "no projection is kept"
    given = {n: v.requires_grad_(v.is_floating_point()) for n, v in batch.features.items()}
    terms = step(batch, [one.name for one in step.objectives]).terms
    if gate != "none":
        opened = {terms[f"{term}_gate_open"].item() for term in TERMS}
        assert len(opened) == 1
        assert 0 < opened.pop() < (6 if gate == "question" else 24)
    loss, plain = loss_of(step, batch), restated(step, batch, name, gate)
    torch.testing.assert_close(loss, plain, **EXACT)
    loss.backward()
    assert all(value.grad is None for value in given.values()), "the teacher learns nothing"
    found = {n: p.grad.clone() for n, p in step.named_parameters() if p.grad is not None}
    step.zero_grad()
    plain.backward()
    for parameter, gradient in found.items():
        torch.testing.assert_close(
            gradient, step.get_parameter(parameter).grad, rtol=1e-4, atol=1e-6
        )


# -- what is logged, and what is said of it --------------------------------------------------------------------------


def test_what_stands_out_is_said() -> None:
    gated, image = term_of(FOUR, td_gate="pair"), term_of(FOUR, "td_image")
    for term, means, note in (
        (gated, {"td_text_gate_open": 0.9}, ""),
        (gated, {}, ""),
        (gated, {"td_text_gate_open": 0.0}, "0% of the last cases: nothing"),
        (gated, {"td_text_gate_open": 1.0}, "100% of the last cases: the gate had no eff"),
        (image, {"td_image_mean": 0.0}, ""),
        (
            image,
            {"td_image_mean": 0.25},
            "td_image: 25% of the last rows had no whole-image region",
        ),
    ):
        notes = term.notes(means)
        assert len(notes) == bool(note) and note in "".join(notes)


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


def test_every_step_mixes_labelled_and_unlabelled() -> None:
    # eight labelled questions, and twelve others beside them, whose labels nobody sees
    every = questions(20)
    labelled = toys.Clip(shown(every[:8], False))
    store = toys.RegionDict({f"image{i}": toys.regions(i, 2 + i % 4) for i in range(20)})
    others = TextDataset(every[8:], TextRowEncoder(toys.bert_words(), 60))
    rest = toys.Clip(RegionDataset(others, store))
    source = DataSource(
        labelled, extra_samples=UnlabelledDataset(rest, np.array(0)), extra_per_sample=2
    )
    plan = plan_batches([source], [], TrainingArguments(batch=4, steps=6), 1)
    whole = MicroBatchDataset(plan, [], 1, 0, 1)
    seen = set()
    for step in range(6):
        batch = whole[step]
        known = (batch.labels["label"] != IGNORE).tolist()
        assert (sum(known), len(batch)) == (4, 12)
        assert [int(name[1:]) < 8 for name in batch.ids] == known
        seen |= {name for name, is_known in zip(batch.ids, known, strict=True) if not is_known}
        # whatever the split, the same samples
        halves = [MicroBatchDataset(plan, [], 2, 0, 1)[2 * step + half] for half in range(2)]
        ranks = [MicroBatchDataset(plan, [], 1, rank, 2)[step] for rank in range(2)]
        for parts in (halves, ranks):
            assert sorted(batch.ids) == sorted(name for part in parts for name in part.ids)
    assert len(seen) > 8  # drawn anew for every labelled sample in every epoch
    assert not any(
        sample.example.label for sample in source.extra_samples.get(range(12), [None] * 12)
    )


def test_a_step_without_any_label_distils_all_the_same(tmp_path: Path) -> None:
    model, kind = seeing("uniter")
    objectives = objectives_of(model, kind, td_gate="question")
    before = deepcopy(objectives[0].state_dict())
    samples = UnlabelledDataset(toys.Clip(shown(questions(), False)), np.array(0))
    train(model, objectives, samples, replace(STEPS, steps=2, batch=4, weight_decay=0.0), tmp_path)
    log = log_of(tmp_path)
    assert all("task" not in line and "td_text" in line for line in log)
    assert all(
        torch.equal(value, before[name]) for name, value in objectives[0].state_dict().items()
    )
