"""The loop: it learns, and how a batch is split, prefetched or scheduled changes nothing it should not."""

import json
import os
import signal
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import homes, toys
from torch import nn

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import OutputSizes
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.models.task_heads import HeadContext, PooledClsHead
from groundling.objectives import Objective, in_batch_negatives_note
from groundling.objectives.contrastive import ClipContrastiveLoss
from groundling.objectives.feature_distillation import ContrastiveDistillation, L1Distillation
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.runs import run as checkpoint
from groundling.runs.run import RunFolder
from groundling.settings.fields import make_settings
from groundling.settings.training import TrainingArguments
from groundling.teachers.feature_cache import TeacherDataset
from groundling.teachers.text import ClipTextTeacher
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import (
    MicroBatchContext,
    ModelWithObjectives,
    PlainTrainingStep,
    train,
)

CPU = {"cpu": True, "log_every": 1, "save_every": 1000}


def log_of(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def quiet(model: nn.Module) -> nn.Module:
    """A copy without dropout."""
    model = deepcopy(model)
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in ("dropout", "attention_dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)
    return model


def xdbert(sizes, **options) -> list[Objective]:
    torch.manual_seed(11)
    return [
        MaskedLM(sizes, mask_id=4, joint=True, **options),
        SameSentencePrediction(sizes),
        ClipTokenClassification(sizes),
    ]


def weights(model: nn.Module, objectives: list[Objective]) -> dict[str, torch.Tensor]:
    return {
        k: v.detach().clone() for k, v in ModelWithObjectives(model, objectives).named_parameters()
    }


def close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float) -> None:
    # A key's bias cannot change attention: its gradient is rounding noise, which Adam's division blows up.
    for name in a:
        if not name.endswith(("key.bias", "k_proj.bias")):
            torch.testing.assert_close(
                a[name], b[name], rtol=0, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}"
            )


def assert_same_losses(a: list[dict], b: list[dict], tolerance: float = 1e-5) -> None:
    assert len(a) == len(b)
    for one, two in zip(a, b, strict=True):
        assert one.keys() == two.keys()
        for key in one:
            assert one[key] == pytest.approx(two[key], abs=tolerance, rel=tolerance), (
                key,
                one["step"],
            )


# -- it learns -------------------------------------------------------------------------------------------------------


def test_a_learnable_task_is_learnt(student, text_only, tmp_path):
    model = student()
    task = SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))
    config = TrainingArguments(steps=40, batch=16, lr=3e-3, schedule="constant", **CPU)
    result = train(model, [task], text_only, config, tmp_path)
    lines = log_of(tmp_path)
    first, last = (sum(line["task"] for line in part) / 5 for part in (lines[:5], lines[-5:]))
    assert last < 0.5 * first, "the label says whether `dog` is in the text"
    assert result["steps"] == 40
    assert result["epochs"] == 10.0
    assert result["train_metrics"]["task"] == pytest.approx(
        sum(line["task"] for line in lines) / 40
    )


# -- a batch is a batch however it is split --------------------------------------------------------------------------


def test_the_environment_changes_nothing(student, text_only, tmp_path, monkeypatch):
    """What accelerate reads there is pinned, or refused before anything is written."""
    config = TrainingArguments(steps=3, batch=8, **CPU)

    def losses(name: str) -> list[dict]:
        model = student()
        torch.manual_seed(4)
        train(model, [MaskedLM(model.sizes, mask_id=4)], text_only, config, tmp_path / name)
        return homes.log_of(tmp_path / name)

    plain = losses("plain")
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert losses("changed") == plain
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match=r"^ACCELERATE_USE_FSDP: groundling trains with plain"):
        losses("refused")
    monkeypatch.delenv("ACCELERATE_USE_FSDP")


def test_compiled_passes_change_neither_weights_nor_names(
    student, text_only, tmp_path, monkeypatch
):
    """The compiler is a stand-in that counts: the true one needs seconds before the first pass."""
    passes = []

    def compiled(function, *, dynamic):
        assert dynamic, "batches differ in length"

        def call(batch):
            passes.append(len(batch))
            return function(batch)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    trained = {}
    for name in ("plain", "compiled"):
        model = student()
        torch.manual_seed(11)
        parts = [MaskedLM(model.sizes, mask_id=4)]
        config = TrainingArguments(steps=3, batch=8, compile=name == "compiled", **CPU)
        train(model, parts, text_only, config, tmp_path / name)
        model.export(tmp_path / name / "model")
        trained[name] = weights(model, parts)
    assert passes == [8, 8, 8]
    close(trained["plain"], trained["compiled"], 0.0)
    assert_same_losses(homes.log_of(tmp_path / "plain"), homes.log_of(tmp_path / "compiled"), 0.0)
    for file in ("model/model.safetensors", "checkpoints/step-000000003/state.safetensors"):
        assert load_file(tmp_path / "plain" / file).keys() == (
            load_file(tmp_path / "compiled" / file).keys()
        )


def test_a_plain_loop_gives_the_same_weights(student, text_only, tmp_path):
    """One process, no accumulation: nothing but AdamW on the weighted means, written out by hand."""
    options = {
        "lr": 1e-3,
        "warmup_ratio": 0.0,
        "schedule": "constant",
        "max_grad_norm": 1e9,
        "weight_decay": 0.1,
    }
    ours, theirs = quiet(student()), quiet(student())
    torch.manual_seed(3)
    form = Classification(("no", "yes"))
    head = PooledClsHead(HeadContext(ours.sizes, form), dropout=0.0)
    task = SupervisedObjective(ours.sizes, output_type=form, head=head)
    masked = MaskedLM(ours.sizes, mask_id=4, weight=0.5)
    task2, masked2 = deepcopy(task), deepcopy(masked)
    train(
        ours,
        [task, masked],
        text_only,
        TrainingArguments(steps=3, batch=8, **options, **CPU),
        tmp_path,
    )

    feed = MicroBatchDataset(
        plan_batches([DataSource(text_only)], [], TrainingArguments(batch=8, steps=3), 1),
        [task2, masked2],
        1,
        0,
        1,
    )
    named = list(ModelWithObjectives(theirs, [task2, masked2]).named_parameters())
    parameters = [p for _, p in named]
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, 1e-3)
    for line, batch in zip(log_of(tmp_path), feed, strict=False):
        encoded, labels = theirs(batch), batch.labels["masked_lm"]
        first = nn.functional.cross_entropy(task2.outputs(encoded, batch), batch.labels["label"])
        logits = masked2.head(encoded.text, encoded.input_embeddings).transpose(1, 2)
        second = nn.functional.cross_entropy(logits, labels)  # the mean over masked tokens
        assert line["task"] == pytest.approx(first.item(), abs=1e-5)
        assert line["mlm"] == pytest.approx(second.item(), abs=1e-5)
        (first + 0.5 * second).backward()
        norm = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm()
        assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        optimizer.step(), optimizer.zero_grad()
        if line["step"] == 3:
            break
    close(weights(ours, [task, masked]), weights(theirs, [task2, masked2]), 2e-5)


# -- what trains, and what does not ----------------------------------------------------------------------------------


def test_every_trainable_parameter_changes_and_frozen_ones_do_not(cross, samples, tmp_path):
    frozen = {
        n
        for n, p in cross.named_parameters()
        if n.startswith("text.encoder.embeddings.word") or not p.requires_grad
    }
    cross.text.encoder.embeddings.word_embeddings.requires_grad_(False)
    objectives = xdbert(cross.sizes)
    before = weights(cross, objectives)
    train(
        cross,
        objectives,
        samples,
        TrainingArguments(steps=3, batch=32, lr=1e-3, warmup_ratio=0.0, **CPU),
        tmp_path,
    )
    after = weights(cross, objectives)
    same = {name for name in before if torch.equal(before[name], after[name])}
    # BERT's own pooler is read by none of these objectives.
    unread = {f"model.text.encoder.pooler.dense.{part}" for part in ("weight", "bias")}
    assert {f"model.{n}" for n in frozen} <= same
    assert same - {f"model.{n}" for n in frozen} == unread


def test_head_start_leaves_the_encoder_alone(student, text_only, tmp_path):
    for steps, moved in ((4, False), (5, True)):
        model = student()
        objectives = [MaskedLM(model.sizes, mask_id=4)]
        before = weights(model, objectives)
        config = TrainingArguments(
            steps=steps, batch=8, freeze_encoder_steps=4, schedule_steps=20, lr=1e-3, **CPU
        )
        train(model, objectives, text_only, config, tmp_path / str(steps))
        after = weights(model, objectives)
        encoder = [torch.equal(before[n], after[n]) for n in before if n.startswith("model.")]
        assert all(encoder) is not moved
        assert not any(
            torch.equal(before[n], after[n]) for n in before if n.startswith("objectives.")
        )


def test_head_lr_scales_the_heads_only(student, text_only, tmp_path):
    moved = {}
    for scale in (1.0, 10.0):
        model = student()
        objectives = [MaskedLM(model.sizes, mask_id=4)]
        torch.manual_seed(5)
        for p in objectives[0].parameters():
            nn.init.normal_(p, std=0.1)
        before = weights(model, objectives)
        train(
            model,
            objectives,
            text_only,
            TrainingArguments(steps=1, batch=8, head_lr=scale, **CPU),
            tmp_path / str(scale),
        )
        after = weights(model, objectives)
        for part in ("model.", "objectives."):
            moved[part, scale] = max(
                float((after[n] - before[n]).abs().max()) for n in before if n.startswith(part)
            )
    assert moved["model.", 10.0] == pytest.approx(moved["model.", 1.0], rel=1e-3)
    assert moved["objectives.", 10.0] == pytest.approx(10 * moved["objectives.", 1.0], rel=1e-2)


def test_an_objectives_weight_warms_up(student, text_only, tmp_path):
    model = student()
    objectives = [MaskedLM(model.sizes, mask_id=4, weight=2.0, warmup=4)]
    train(model, objectives, text_only, TrainingArguments(steps=6, batch=8, **CPU), tmp_path)
    for n, line in enumerate(log_of(tmp_path)):
        assert line["loss"] == pytest.approx(2.0 * min(1.0, (n + 1) / 4) * line["mlm"], rel=1e-6)


# -- several sources -------------------------------------------------------------------------------------------------


class Noting(Objective):
    """Scores nothing much; notes which samples it saw."""

    required_fields = ("text",)

    def __init__(self, sizes):
        super().__init__(sizes)
        self.seen: list[str] = []
        self.scale = nn.Parameter(torch.ones(()))

    def count(self, batch):
        return {self.name: len(batch)}

    def forward(self, encoded, batch):
        self.seen += batch.ids
        return {self.name: self.scale * encoded.text[:, 0].pow(2).sum()}


class First(Noting):
    name = "first"


class Second(Noting):
    name = "second"


def test_sources_by_ratio_with_their_own_objectives(student, text_only, tmp_path):
    other = deepcopy(text_only)
    other.ids = [f"other-{i}" for i in other.ids]
    other.examples = [
        type(e)(f"other-{e.id}", e.text, e.text_pair, e.label) for e in other.examples
    ]
    other.kept = {}
    model = student()
    objectives = [First(model.sizes), Second(model.sizes)]
    data = [DataSource(text_only, 3.0, ("first",), "a"), DataSource(other, 1.0, ("second",), "b")]
    train(model, objectives, data, TrainingArguments(steps=60, batch=4, **CPU), tmp_path)
    assert all(not i.startswith("other") for i in objectives[0].seen)
    assert all(i.startswith("other") for i in objectives[1].seen)
    assert len(objectives[0].seen) + len(objectives[1].seen) == 60 * 4
    # Binomial(60, 3/4): mean 45, sd 3.4
    assert 45 - 14 <= len(objectives[0].seen) / 4 <= 45 + 14
    lines = log_of(tmp_path)
    assert all(("first" in line) != ("second" in line) for line in lines)


def test_calls_of_one_process_may_differ_in_precision(student, text_only, tmp_path):
    seen = {}
    for precision in ("bf16", "fp32"):
        model = student()
        torch.manual_seed(0)
        objective = MaskedLM(model.sizes, mask_id=4)
        config = TrainingArguments(steps=2, batch=4, precision=precision, **CPU)
        train(model, [objective], text_only, config, tmp_path / precision)
        seen[precision] = log_of(tmp_path / precision)[-1]["loss"]
    assert seen["bf16"] != seen["fp32"]
    assert seen["bf16"] == pytest.approx(seen["fp32"], rel=0.05)


def test_an_epoch_sees_every_sample_once(student, text_only, tmp_path):
    model = student()
    objective = First(model.sizes)
    train(model, [objective], text_only, TrainingArguments(epochs=2, batch=8, **CPU), tmp_path)
    assert len(objective.seen) == 128
    assert sorted(objective.seen[:64]) == sorted(objective.seen[64:]) == sorted(text_only.ids)
    assert objective.seen[:64] != objective.seen[64:]


# -- teachers --------------------------------------------------------------------------------------------------------


def test_teacher_is_neither_trained_nor_saved(student, tower, samples, tmp_path):
    model = student()
    clip = tower()[0]
    teacher = ClipTextTeacher(clip.train(), tower()[1])
    samples = TeacherDataset(samples, teacher)
    before = {k: v.clone() for k, v in clip.state_dict().items()}
    objective = ContrastiveDistillation(model.sizes._replace(teacher=24))
    module = ModelWithObjectives(model, [objective])
    modes = []

    class PassSpy(PlainTrainingStep):
        def __call__(self, micro: MicroBatchContext):
            modes.append(any(part.training for part in clip.modules()))
            return super().__call__(micro)

    keys = set(module.state_dict())
    train(
        model,
        [objective],
        samples,
        TrainingArguments(steps=3, batch=8, **CPU),
        tmp_path,
        teachers=[teacher],
        training_step=PassSpy(),
    )
    assert modes == [False] * 3
    assert all(torch.equal(before[k], v) for k, v in clip.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in clip.parameters())
    stored = load_file(next((tmp_path / "checkpoints").glob("step-*")) / "state.safetensors")
    assert {
        k.removeprefix("weight.") for k in stored if k.startswith("weight.") and "buffer." not in k
    } <= keys


# -- the log ---------------------------------------------------------------------------------------------------------


def test_log_has_one_line_per_log_step_with_means_between(student, text_only, tmp_path):
    runs = {}
    for every in (1, 4):
        model = student()
        torch.manual_seed(2)
        config = TrainingArguments(steps=10, batch=8, cpu=True, log_every=every, save_every=1000)
        train(model, [MaskedLM(model.sizes, mask_id=4)], text_only, config, tmp_path / str(every))
        runs[every] = log_of(tmp_path / str(every))
    assert [line["step"] for line in runs[1]] == list(range(1, 11))
    assert [line["step"] for line in runs[4]] == [4, 8, 10]
    assert {"step", "loss", "mlm", "lr", "grad_norm", "seconds"} <= set(runs[4][0])
    singles = [line["mlm"] for line in runs[1][:4]]
    # A mean over masked tokens, not over steps: it lies between the steps' means.
    assert min(singles) < runs[4][0]["mlm"] < max(singles)


@pytest.mark.parametrize(("steps", "log_every", "covered"), [(63, 7, 56), (12, 5, 12)])
def test_last_losses_are_of_enough_steps_and_the_same_after_a_kill(
    student, text_only, tmp_path, steps, log_every, covered
):
    """Fifty steps at least, in whole log lines, or all."""

    def losses(folder: Path, dies_at: int = 0) -> dict:
        model = student()
        torch.manual_seed(2)
        task = SupervisedObjective(model.sizes, output_type=Classification(("no", "yes")))
        each = CPU | {"log_every": log_every, "save_every": 2 * steps // 3}
        config = TrainingArguments(steps=steps, batch=2, **each)
        dying = homes.dying(dies_at)
        result = train(model, [task], text_only, config, folder, training_step=dying)
        return {key: result[key] for key in ("train_metrics", "train_metrics_steps")}

    whole = losses(tmp_path / "whole")
    lines = [line["task"] for line in log_of(tmp_path / "whole")]
    ends = [line["step"] for line in log_of(tmp_path / "whole")]
    spans = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    lines = [line if end > steps - covered else 0.0 for line, end in zip(lines, ends, strict=True)]
    mean = sum(a * b for a, b in zip(lines, spans, strict=True)) / covered
    assert whole["train_metrics_steps"] == covered
    assert whole["train_metrics"]["task"] == pytest.approx(mean, rel=1e-5)
    with pytest.raises(homes.Killed):
        losses(tmp_path / "killed", dies_at=steps - 1)
    assert losses(tmp_path / "killed") == whole, "from the checkpoint after two thirds"


# -- errors a user can mend ------------------------------------------------------------------------------------------


class Breaks(Objective):
    """NaN at a step: in the loss, or in the gradient alone."""

    name = "breaks"
    required_fields = ("text",)

    def __init__(self, sizes, at: int, where: str):
        super().__init__(sizes)
        self.at, self.where, self.step = at, where, 0
        self.scale = nn.Parameter(torch.ones(()))

    def count(self, batch):
        return {"broken": len(batch)}

    def forward(self, encoded, batch):
        self.step += 1
        loss = encoded.text.pow(2).mean() * self.scale
        if self.step == self.at:
            zero = encoded.text.sum() * 0 * self.scale
            loss = loss * float("nan") if self.where == "loss" else loss + zero.abs().sqrt()
        return {"broken": loss}


def one_line(error: pytest.ExceptionInfo) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_not_a_number_ends_the_run_and_leaves_a_sound_checkpoint(
    where, student, text_only, tmp_path
):
    model = student()
    config = TrainingArguments(steps=8, batch=8, cpu=True, log_every=1, save_every=2)
    with pytest.raises(InputError, match=r"step [45]") as error:
        train(model, [Breaks(model.sizes, at=4, where=where)], text_only, config, tmp_path)
    assert "nan" in one_line(error)
    stored = load_file(next((tmp_path / "checkpoints").glob("step-*")) / "state.safetensors")
    broken = [name for name, value in stored.items() if not value.isfinite().all()]
    assert not broken, (
        f"the message says the last checkpoint is intact, but {len(broken)} tensors are not finite"
    )


class Clash(Objective):
    """Returns a term of another objective that it has not counted."""

    name = "clash"

    def count(self, batch):
        return {}

    def forward(self, encoded, batch):
        return {"task": encoded.text.sum()}


class CountingStep(PlainTrainingStep):
    def count(self, batch):
        return {"task": len(batch)}


def answers(sizes) -> SupervisedObjective:
    return SupervisedObjective(sizes, output_type=Classification(("no", "yes")))


SMALL = TrainingArguments(steps=1, batch=4, **CPU)
FAULTS = {
    "few samples": ([MaskedLM], {"batch": 65}, "64 samples are fewer than one batch of 65"),
    "batch": ([MaskedLM], {"batch": 10, "gradient_accumulation_steps": 4}, "batch 10: "),
    "tokens": ([MaskedLM], {"batch_tokens": 20}, "batch_tokens = 20: data: the sample 's"),
    "no CLIP side": ([ClipTokenClassification], {}, "clip_tokens needs `clip`"),
    "in a worker": ([ClipTokenClassification], {"workers": 1}, "clip_tokens needs `clip`"),
    "no features": ([ContrastiveDistillation], {}, "contrastive needs `features.sentence`"),
    "names": ([answers, answers], {}, "distinct names, found ['supervised', 'supervised']"),
    "terms": ([answers, Clash], {}, "`forward` returned 'task', expected a term of its own"),
    "counts": ([answers], {}, "CountingStep: `count` returned 4 as 'task', expected a term of"),
}
"""Objectives, settings and what is said of them, on texts alone."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_is_one_line(name, student, text_only, tmp_path):
    kinds, settings, message = FAULTS[name]
    model = student()
    parts = [kind(model.sizes._replace(teacher=24)) for kind in kinds]
    step = {"training_step": CountingStep()} if name == "counts" else {}
    with pytest.raises(InputError) as error:
        train(model, parts, text_only, replace(SMALL, **settings), tmp_path, **step)
    assert message in one_line(error)


# -- negatives and accumulation ----------------------------------------------------------------------

WIDTHS = OutputSizes(text=8, teacher=8, input_embeddings=(10, 8))


def run(tmp_path: Path, arm: str, accumulate: int) -> tuple[dict, float]:
    """The result, and the first step's loss of sentences."""
    out = tmp_path / f"{arm}-{accumulate}"
    config = make_settings(
        AdaptConfig,
        student=str(homes.student(tmp_path / "student")),
        teacher=str(homes.teacher(tmp_path / "clip")),
        arm=arm,
        text=(str(homes.text(tmp_path / "text.txt", 16)),),
    )
    result = adapt(
        config, replace(homes.STEPS, steps=1, gradient_accumulation_steps=accumulate), out
    )
    return result, homes.log_of(out)[0][f"{arm}_sentence"]


def test_only_a_contrastive_loss_is_another_one_and_the_run_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, contrastive = run(tmp_path, "contrastive", 1)
    assert "gradient_accumulation_steps" not in capsys.readouterr().err
    result, less = run(tmp_path, "contrastive", 2)
    assert less < contrastive - 0.1
    (note,) = [note for note in result["notes"] if note.startswith("gradient_accumulation_steps=2")]
    assert "contrastive" in note
    assert note in capsys.readouterr().err
    result, _ = run(tmp_path, "l1", 2)
    assert not [
        note for note in result.get("notes", ()) if note.startswith("gradient_accumulation_steps")
    ]


@pytest.mark.parametrize(
    ("objectives", "steps", "named"),
    [
        ([ClipContrastiveLoss(WIDTHS)], 4, "contrast"),
        (
            [ClipContrastiveLoss(WIDTHS), ContrastiveDistillation(WIDTHS)],
            2,
            "contrast, contrastive",
        ),
        ([ClipContrastiveLoss(WIDTHS)], 1, ""),
        ([L1Distillation(WIDTHS), MaskedLM(WIDTHS)], 4, ""),
    ],
)
def test_what_is_said(objectives: list, steps: int, named: str) -> None:
    settings = TrainingArguments(gradient_accumulation_steps=steps)
    notes = in_batch_negatives_note(objectives, settings)
    assert len(notes) == bool(named)
    assert all(f": {named} takes its negatives from one micro-batch" in note for note in notes)


# -- resume ------------------------------------------------------------------------------------------

STEPS = 14
KILLED = -signal.SIGKILL


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run_that_dies(out: str, place: str, at: int) -> None:
    """The whole run, from its folder's last checkpoint on; kills its own process at the `at`-th call of `place`."""
    calls = {"inner": 0, "save": 0}

    class DyingStep(PlainTrainingStep):
        def __call__(self, micro: MicroBatchContext):
            calls["inner"] += 1
            if place == "forward" and calls["inner"] == at:
                die()
            terms = super().__call__(micro)
            if place == "backward" and calls["inner"] == at:
                die()
            return terms

    def half_written(tensors, path):
        calls["save"] += 1
        if place == "save" and calls["save"] == at:
            Path(path).write_bytes(b"half a file")
            die()
        save_file(tensors, path)

    checkpoint.save_file = half_written
    model = toys.cross_modal()
    torch.manual_seed(9)
    objectives = [
        MaskedLM(model.sizes, mask_id=4, joint=True),
        SameSentencePrediction(model.sizes),
        ClipTokenClassification(model.sizes),
    ]
    config = TrainingArguments(
        steps=STEPS,
        batch=8,
        gradient_accumulation_steps=2,
        save_every=3,
        log_every=1,
        lr=1e-3,
        cpu=True,
    )
    train(
        model, objectives, toys.both_sides(40), config, out, training_step=DyingStep()
    )  # an epoch is 5 steps
    state = {
        k: v.detach().clone()
        for k, v in ModelWithObjectives(model, objectives).state_dict().items()
    }
    save_file(state, Path(out) / "end.safetensors")


@pytest.fixture
def start(processes):
    """`start(out, place, at)` runs in a process of its own and returns its exit code."""

    def call(out: Path, place: str = "never", at: int = 0) -> int:
        process = processes.Process(target=run_that_dies, args=(str(out), place, at))
        process.start()
        process.join()
        return process.exitcode

    return call


def checkpoints(out: Path) -> list[str]:
    return sorted(p.name for p in (out / "checkpoints").glob("*"))


def log(out: Path) -> list[dict]:
    lines = [json.loads(line) for line in (out / "log.jsonl").open()]
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def test_killed_four_times_bit_equal(start, tmp_path):
    whole, out = tmp_path / "whole", tmp_path / "killed"
    assert start(whole) == 0
    # Two calls of `inner` are one optimizer step. Before the first checkpoint, between the halves of step 2:
    assert start(out, "backward", 3) == KILLED
    assert checkpoints(out) == []
    # From nothing; in the second half of step 5 (epoch 1 ends with it), so step 3 is the last one saved:
    assert start(out, "forward", 10) == KILLED
    assert checkpoints(out) == ["step-000000003"]
    # From 3; while the checkpoint of step 9 is being written, after that of step 6:
    assert start(out, "save", 2) == KILLED
    assert checkpoints(out) == [".partial", "step-000000006"]
    assert (
        out / "checkpoints" / ".partial" / "step-000000009" / "state.safetensors"
    ).read_bytes() == b"half a file"
    # From 6; in the first half of step 11, mid-epoch:
    assert start(out, "backward", 9) == KILLED
    assert checkpoints(out) == ["step-000000009"]
    with (out / "log.jsonl").open("a") as file:
        file.write('{"step": 11, "lo')  # a line cut off by the kill
    assert start(out) == 0

    one, other = load_file(whole / "end.safetensors"), load_file(out / "end.safetensors")
    assert one.keys() == other.keys()
    assert not [name for name in one if not torch.equal(one[name], other[name])]
    assert [line["step"] for line in log(out)] == list(range(1, STEPS + 1))
    assert log(whole) == log(out)


def test_checkpoints_that_a_kill_behind_the_result_left_are_cleared(tmp_path: Path) -> None:
    state = homes.put(tmp_path / "checkpoints/step-000000002/counters.json", "{}")
    assert RunFolder(tmp_path).result is None and state.exists()  # it is resumed from there
    homes.put(tmp_path / "result.json", '{"steps": 2}')
    assert RunFolder(tmp_path).result == {"steps": 2}
    assert not (tmp_path / "checkpoints").exists()
