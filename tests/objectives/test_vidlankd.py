"""VidLanKD's student stage: NST, CRD, the NT-Xent of its code, and the teacher of token states."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import homes, toys
from tiny.homes import STEPS
from tiny.objectives import tokens_of
from torch import Tensor, nn

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import Batch, EncoderOutput, OutputSizes, Tokens, collate
from groundling.core.errors import InputError
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.objectives import Objective
from groundling.objectives.state_distillation import (
    ContrastiveRepresentationDistillation,
    NeuronSelectivityTransfer,
    NTXent,
    StudentHead,
)
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.objectives import ObjectiveSettings
from groundling.teachers import TeacherContext, add_features
from groundling.teachers.text import TEXT_STATES, TextStatesTeacher

SIZES = OutputSizes(text=6, teacher=6)


class Unit(nn.Module):
    """A head that only makes unit vectors."""

    def forward(self, states: Tensor) -> Tensor:
        return F.normalize(states, dim=-1)


def plain(objective: Objective) -> Objective:
    objective.head = Unit()
    return objective.train()


def batch_of(student: Tensor, teacher: Tensor, mask: Tensor) -> tuple[EncoderOutput, Batch]:
    """States (N, T, D), and a batch in which `mask` (N, T) marks tokens, 2 special ones and 0 padding."""
    ids = tuple(str(n) for n in range(len(mask)))
    batch = Batch(ids, text=tokens_of(mask), features={"teacher_states": teacher})
    return EncoderOutput(text=student), batch


def value(objective: Objective, student: Tensor, teacher: Tensor, mask: Tensor) -> float:
    """The loss as the loop computes it: the sum divided by the count."""
    encoded, batch = batch_of(student, teacher, mask)
    (total,) = objective(encoded, batch).values()
    (count,) = objective.count(batch).values()
    return float(total) / count


def drawn(rows: int = 5, length: int = 7, width: int = 6) -> tuple[Tensor, Tensor, Tensor]:
    """Random states, with a special token at the start of each text, another at its end, and padding after it."""
    rng = torch.Generator().manual_seed(4)
    student, teacher = torch.randn(2, rows, length, width, generator=rng)
    mask = torch.zeros(rows, length, dtype=torch.long)
    for row, end in enumerate([6, 4, 6, 3, 5][:rows]):
        mask[row, : end + 1] = 1
        mask[row, [0, end]] = 2
    return student, teacher, mask


def unit(values: np.ndarray) -> np.ndarray:
    return values / np.linalg.norm(values, axis=-1, keepdims=True)


# -- by hand ---------------------------------------------------------------------------------------------------------
TWO = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
THEIRS = torch.tensor([[[2.0, 0.0]], [[3.0, 4.0]]])


def test_crd_with_a_partition_by_hand() -> None:
    """The mean score is (e + e^.8 + e^.6 + 1) / 4 = 1.941486, and N = 1: h = e^x / (e^x + 1.941486)."""
    crd, again = (
        plain(
            ContrastiveRepresentationDistillation(
                OutputSizes(text=2, teacher=2), crd_temperature=1.0, crd_partition="first_batch"
            )
        )
        for _ in range(2)
    )
    mean = (math.e + math.exp(0.8) + math.exp(0.6) + 1) / 4
    expected = sum(math.log(1 + mean / math.exp(x)) for x in (1, 0.8))
    expected += sum(math.log(1 + math.exp(x) / mean) for x in (0.6, 0))
    found = value(crd, TWO, THEIRS, torch.ones(2, 1, dtype=torch.long))
    assert found == pytest.approx(expected / 2, rel=1e-5)
    assert float(crd.log_partition) == pytest.approx(math.log(mean), rel=1e-5)
    value(crd, THEIRS, TWO.flip(0), torch.ones(2, 1, dtype=torch.long))
    assert float(crd.log_partition) == pytest.approx(math.log(mean), rel=1e-5), "the first batch's"
    again.load_state_dict(crd.state_dict())
    value(again, THEIRS, TWO.flip(0), torch.ones(2, 1, dtype=torch.long))
    assert float(again.log_partition) == pytest.approx(math.log(mean), rel=1e-5), "a resumed run's"


# -- against loops ---------------------------------------------------------------------------------------------------
def nst_by_loops(student: np.ndarray, teacher: np.ndarray, with_teacher: bool = True) -> float:
    """Of states (tokens, D) of one sentence; tokens to unit length, then channels."""
    s = [c / np.linalg.norm(c) for c in unit(student).T]
    t = [c / np.linalg.norm(c) for c in unit(teacher).T]
    own = np.mean([(a @ b) ** 2 for a in s for b in s])
    other = np.mean([(a @ b) ** 2 for a in t for b in t])
    cross = np.mean([(a @ b) ** 2 for a in s for b in t])
    return own + with_teacher * other - 2 * cross


def test_nst_equals_loops_over_channels() -> None:
    student, teacher, mask = drawn()
    each = [
        nst_by_loops(student[n][mask[n] == 1].numpy(), teacher[n][mask[n] == 1].numpy())
        for n in range(5)
    ]
    found = value(plain(NeuronSelectivityTransfer(SIZES)), student, teacher, mask)
    assert found == pytest.approx(np.mean(each), rel=1e-4)
    whole = [nst_by_loops(student[n].numpy(), teacher[n].numpy(), False) for n in range(5)]
    released = plain(NeuronSelectivityTransfer(SIZES, kd_variant="released"))
    assert value(released, student, teacher, mask) == pytest.approx(sum(whole) / 7, rel=1e-4)


def crd_by_loops(
    student: Tensor, teacher: Tensor, mask: Tensor, tau: float, limit: int = 0, m: int = 0
) -> list[float]:
    """The loss of every token."""
    s, t, inside = unit(student.numpy()), unit(teacher.numpy()), (mask == 1).numpy()
    rows, length = mask.shape
    losses = []
    for row in range(rows):
        for place in range(length):
            if not inside[row, place]:
                continue
            order = [(row + step) % rows for step in range(1, rows)]
            there = [one for one in order if inside[one, place]]
            chosen = there[:limit] if limit else there
            n, pool = len(chosen), m or len(there) + 1
            if not n:
                losses.append(0.0)
                continue

            def h(one: int, row: int = row, place: int = place, share: float = n / pool) -> float:
                e = math.exp(float(t[one, place] @ s[row, place]) / tau)
                return e / (e + share)

            losses.append(-math.log(h(row)) - sum(math.log(1 - h(one)) for one in chosen))
    return losses


@pytest.mark.parametrize(
    ("tau", "limit", "m"), [(0.5, 0, 0), (0.5, 2, 0), (1.0, 2, 9), (1.0, 1, 1000)]
)
def test_crd_equals_loops_over_tokens(tau: float, limit: int, m: int) -> None:
    student, teacher, mask = drawn()
    losses = crd_by_loops(student, teacher, mask, tau, limit, m)
    crd = ContrastiveRepresentationDistillation(
        SIZES, crd_temperature=tau, crd_negatives=limit, crd_cardinality=m
    )
    assert crd.count(batch_of(student, teacher, mask)[1]) == {"crd": len(losses)}
    assert value(plain(crd), student, teacher, mask) == pytest.approx(np.mean(losses), rel=1e-4)


def nt_xent_by_loops(student: Tensor, teacher: Tensor, inside: Tensor) -> list[list[float]]:
    """The losses of all anchors at each position."""
    s, t = unit(student.numpy()), unit(teacher.numpy())
    found: list[list[float]] = []
    for place in range(student.shape[1]):
        rows = [n for n in range(len(s)) if inside[n, place]]
        items = [(n, s[n, place]) for n in rows] + [(n, t[n, place]) for n in rows]
        losses = []
        for i, (row, anchor) in enumerate(items):
            scores = {j: float(anchor @ z) for j, (_, z) in enumerate(items) if j != i}
            (right,) = [j for j in scores if items[j][0] == row]
            losses.append(math.log(sum(map(math.exp, scores.values()))) - scores[right])
        found.append(losses)
    return found


def test_nt_xent_equals_loops_over_anchors() -> None:
    student, teacher, mask = drawn()
    flat = [x for losses in nt_xent_by_loops(student, teacher, mask == 1) for x in losses]
    assert value(plain(NTXent(SIZES)), student, teacher, mask) == pytest.approx(
        np.mean(flat), rel=1e-4
    )
    every = nt_xent_by_loops(student, teacher, torch.ones_like(mask).bool())
    expected = np.mean([np.mean(losses) / 10 for losses in every])  # 2B = 10
    released = plain(NTXent(SIZES, kd_variant="released"))
    assert value(released, student, teacher, mask) == pytest.approx(expected, rel=1e-4)


def test_the_head_is_a_linear_gelu_norm_linear_to_unit_length() -> None:
    torch.manual_seed(0)
    head = StudentHead(OutputSizes(text=6, teacher=4, epsilon=1e-5))
    states = torch.randn(2, 3, 6)
    x = (head.dense.weight @ states[1, 2] + head.dense.bias).detach().numpy().astype(np.float64)
    x = np.array([v * 0.5 * (1 + math.erf(v / math.sqrt(2))) for v in x])
    x = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
    x = head.project.weight.detach().numpy() @ x + head.project.bias.detach().numpy()
    np.testing.assert_allclose(
        head(states)[1, 2].detach().numpy(), x / np.linalg.norm(x), rtol=1e-4
    )


def test_a_batch_without_others_trains_nothing_by_contrast() -> None:
    student, teacher, mask = drawn(rows=1)
    student.requires_grad_()
    encoded, batch = batch_of(student, teacher, mask)
    for objective in (ContrastiveRepresentationDistillation(SIZES), NTXent(SIZES)):
        (total,) = plain(objective)(encoded, batch).values()
        total.backward()
        assert float(total.detach()) == pytest.approx(0, abs=1e-6)
        assert student.grad is not None and student.grad.abs().max() < 1e-6


# -- the teacher -----------------------------------------------------------------------------------------------------
def test_the_teacher_reads_the_masked_tokens(student) -> None:
    text: TextEncoder = student()
    teacher = TextStatesTeacher(load_as_teacher(text), text.tokenizer, "mine")
    samples = TextDataset(toys.examples(4), TextRowEncoder(text.tokenizer, 40))
    batch = collate(samples.get(range(4)))
    tokens = batch.text
    assert tokens is not None
    ids = tokens.input_ids.clone()
    ids[:, 2] = text.tokenizer.mask_token_id
    masked = replace(batch, text=replace(tokens, input_ids=ids))
    seen = add_features(teacher, masked)
    with torch.no_grad():
        expected = text.eval()(masked).text
    inside = tokens.attention_mask
    torch.testing.assert_close(seen.features["teacher_states"][inside], expected[inside])
    unmasked = add_features(teacher, batch).features["teacher_states"]
    assert not torch.allclose(unmasked[inside], expected[inside], atol=1e-3)
    assert not any(parameter.requires_grad for parameter in teacher.text.parameters())


def load_as_teacher(text: TextEncoder) -> TextEncoder:
    copy = TextEncoder(toys.bert(len(text.tokenizer)), text.tokenizer)
    copy.load_state_dict(text.state_dict())
    return copy


def context(tokenizer: object, source: str) -> TeacherContext:
    settings = make_settings(ObjectiveSettings, kd_teacher=source)
    return TeacherContext("", frozenset({"teacher_states"}), settings, tokenizer=tokenizer)


def test_what_a_teacher_must_be(tmp_path: Path) -> None:
    words = homes.words()
    source = str(homes.student(tmp_path / "teacher"))
    assert TEXT_STATES.make(context(words, source)).width == 32
    with pytest.raises(InputError, match=r"^nst, crd and nt_xent need kd_teacher=MODEL"):
        TEXT_STATES.make(context(words, ""))
    with pytest.raises(InputError, match=r"kd_teacher needs `tokenizer`"):
        TEXT_STATES.make(context(None, source))
    other = toys.roberta_words()
    with pytest.raises(InputError, match=r"its tokenizer differs from the student's"):
        TEXT_STATES.make(context(other, source))
    teacher = TextStatesTeacher(load_text_encoder(source), words, source)
    long = Tokens(*(torch.ones(1, 65, dtype=torch.long) for _ in range(5)))
    with pytest.raises(InputError, match=r"use max_length=64"):
        teacher.features(Batch(ids=("a",), text=long))


def test_bad_settings_are_named() -> None:
    with pytest.raises(InputError, match=r"^crd_negatives=5: above crd_cardinality=4"):
        ContrastiveRepresentationDistillation(SIZES, crd_negatives=5, crd_cardinality=4)


def test_a_run_names_its_teacher_and_is_refused_without_it(tmp_path: Path) -> None:
    text = (str(homes.text(tmp_path / "text.txt")),)
    student = str(homes.student(tmp_path / "student"))
    config = make_settings(AdaptConfig, student=student, text=text, arm="mlm+nst")
    with pytest.raises(InputError, match=r"arm=mlm\+nst needs kd_teacher"):
        adapt(config, STEPS, tmp_path / "out")
    taught = replace_settings(config, kd_teacher=student)
    adapt(taught, replace(STEPS, steps=1), tmp_path / "out")
    card = (tmp_path / "out/model/README.md").read_text()
    assert f"- teacher: `{tmp_path.name}/student`" in card
