"""The loop: it learns, and how a batch is split, prefetched or scheduled changes nothing it should not."""

import os
import signal
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from tiny import homes, toys
from tiny.homes import log_of
from tiny.objectives import assert_close, still, weights
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.core.batch import OutputSizes
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.models.task_heads import HeadContext, PooledClsHead
from groundling.models.text_encoder import encoder_layers
from groundling.objectives import Objective, in_batch_negatives_note
from groundling.objectives.contrastive import ClipContrastiveLoss, JoinedPass
from groundling.objectives.feature_distillation import ContrastiveDistillation, L1Distillation
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.mcse import SimCSE
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.xdbert import ClipTokenClassification, SameSentencePrediction
from groundling.runs import run as checkpoint
from groundling.runs.run import RunFolder
from groundling.settings.fields import make_settings
from groundling.settings.objectives import TrainingStepSettings
from groundling.settings.training import TrainingArguments
from groundling.teachers.feature_cache import FeatureCache, TeacherDataset
from groundling.teachers.text import ClipTextTeacher
from groundling.training import loop
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import (
    MicroBatchContext,
    ModelWithObjectives,
    PlainTrainingStep,
    _accelerator,
    resolve_precision,
    train,
)
from groundling.training.training_steps import VillaStep

CPU = {"cpu": True, "log_every": 1, "save_every": 1000}
FORM = Classification(("no", "yes"))


def xdbert(sizes, **options) -> list[Objective]:
    torch.manual_seed(11)
    return [
        MaskedLM(sizes, mask_id=4, joint=True, **options),
        SameSentencePrediction(sizes),
        ClipTokenClassification(sizes),
    ]


@pytest.fixture
def run(student, text_only, tmp_path):
    """A short run of masked LM, or of the objectives that `make` makes: its log, and its weights before and after."""

    def call(name="run", make=lambda sizes: [MaskedLM(sizes, mask_id=4)], **settings):
        model = student()
        torch.manual_seed(4)
        parts = make(model.sizes)
        before = weights(model, parts)
        config = TrainingArguments(**{"batch": 8, **CPU, **settings})
        result = train(model, parts, text_only, config, tmp_path / name)
        return SimpleNamespace(
            model=model,
            parts=parts,
            result=result,
            log=log_of(tmp_path / name),
            before=before,
            after=weights(model, parts),
        )

    return call


def answers(sizes) -> SupervisedObjective:
    return SupervisedObjective(sizes, output_type=FORM)


def test_a_learnable_task_is_learnt(run):
    done = run(
        make=lambda sizes: [answers(sizes)], steps=40, batch=16, lr=3e-3, schedule="constant"
    )
    lines = [line["task"] for line in done.log]
    assert sum(lines[-5:]) < 0.5 * sum(lines[:5]), "the label says whether `dog` is in the text"
    assert (done.result["steps"], done.result["epochs"]) == (40, 10.0)
    assert done.result["train_metrics"]["task"] == pytest.approx(sum(lines) / 40)


# -- a batch is a batch however it is split --------------------------------------------------------------------------


def test_the_environment_changes_nothing(run, monkeypatch):
    """What accelerate reads there is pinned, or refused before anything is written."""
    plain = run("plain", steps=3).log
    monkeypatch.setenv("ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "4")
    monkeypatch.setenv("ACCELERATE_DYNAMO_BACKEND", "INDUCTOR")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    assert run("changed", steps=3).log == plain
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    with pytest.raises(InputError, match=r"^ACCELERATE_USE_FSDP: groundling trains with plain"):
        run("refused", steps=3)


def test_batches_of_all_lengths_are_compiled_a_few_times(run, monkeypatch):
    counter = CompileCounter()  # a backend that only counts graphs
    whole = torch.compile
    monkeypatch.setattr(
        torch, "compile", lambda call, **options: whole(call, backend=counter, **options)
    )
    run(steps=12, batch=2, compile=True)
    assert 1 <= counter.frame_count < 5


def test_compiled_passes_change_neither_weights_nor_names(run, tmp_path, monkeypatch):
    """The compiler is a stand-in that counts: the true one needs seconds before the first pass."""
    passes = []

    def compiled(function, *, dynamic):
        assert dynamic, "batches differ in length"

        def call(*given, **options):
            passes.append(type(function.__self__))
            return function(*given, **options)

        return call

    monkeypatch.setattr(torch, "compile", compiled)
    plain, one = (run(str(on), steps=3, compile=on) for on in (False, True))
    assert passes == 3 * [type(layer) for layer in encoder_layers(one.model.encoder)]
    assert_close(plain.after, one.after, 0.0)
    assert plain.log == one.log
    file = "checkpoints/step-000000003/state.safetensors"
    kept, stored = (load_file(tmp_path / str(on) / file).keys() for on in (False, True))
    assert kept == stored


def test_a_plain_loop_gives_the_same_weights(student, text_only, tmp_path, monkeypatch):
    """One process, no accumulation: nothing but AdamW on the weighted means, written out by hand."""
    flat = TrainingArguments(
        steps=3, batch=8, lr=1e-3, warmup_ratio=0.0, schedule="constant", **CPU
    )
    config = replace(flat, max_grad_norm=1e9, weight_decay=0.1)
    ours, theirs = still(student()), still(student())
    torch.manual_seed(3)
    monkeypatch.setattr(PooledClsHead, "dropout_rate", 0.0)
    head = PooledClsHead(HeadContext(ours.sizes, FORM))
    parts = [
        SupervisedObjective(ours.sizes, output_type=FORM, head=head),
        MaskedLM(ours.sizes, mask_id=4, weight=0.5),
    ]
    task, masked = copies = deepcopy(parts)
    train(ours, parts, text_only, config, tmp_path)
    plan = plan_batches([DataSource(text_only)], [], config, 1)
    feed = MicroBatchDataset(plan, copies, 1, 0, 1)
    parameters = list(ModelWithObjectives(theirs, copies).parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, 1e-3)
    for number, line in enumerate(log_of(tmp_path)):
        batch = feed[number]
        encoded, labels = theirs(batch), batch.labels["masked_lm"]
        first = nn.functional.cross_entropy(task.outputs(encoded, batch), batch.labels["label"])
        logits = masked.head(encoded.text, encoded.input_embeddings).transpose(1, 2)
        second = nn.functional.cross_entropy(logits, labels)  # the mean over masked tokens
        assert line["task"] == pytest.approx(first.item(), abs=1e-5)
        assert line["mlm"] == pytest.approx(second.item(), abs=1e-5)
        (first + 0.5 * second).backward()
        norm = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).norm()
        assert line["grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
        optimizer.step(), optimizer.zero_grad()
    assert_close(weights(ours, parts), weights(theirs, copies), 2e-5)


# -- what trains, and what does not ----------------------------------------------------------------------------------


def test_every_trainable_parameter_changes_and_frozen_ones_do_not(cross, samples, tmp_path):
    cross.text.encoder.embeddings.word_embeddings.requires_grad_(False)
    frozen = {f"model.{name}" for name, p in cross.named_parameters() if not p.requires_grad}
    objectives = xdbert(cross.sizes)
    before = weights(cross, objectives)
    config = TrainingArguments(steps=3, batch=32, lr=1e-3, warmup_ratio=0.0, **CPU)
    train(cross, objectives, samples, config, tmp_path)
    after = weights(cross, objectives)
    same = {name for name in before if torch.equal(before[name], after[name])}
    # BERT's own pooler is read by none of these objectives.
    unread = {f"model.text.encoder.pooler.dense.{part}" for part in ("weight", "bias")}
    assert "model.text.encoder.embeddings.word_embeddings.weight" in frozen
    assert same == frozen | unread


@pytest.mark.parametrize("head_start", [{"freeze_encoder_steps": 4}, {"freeze_encoder_ratio": 0.2}])
def test_head_start_leaves_the_encoder_alone(run, head_start):
    for steps, moved in ((4, False), (5, True)):
        done = run(str(steps), steps=steps, schedule_steps=20, lr=1e-3, **head_start)
        same = {name for name in done.before if torch.equal(done.before[name], done.after[name])}
        encoder = {name for name in done.before if name.startswith("model.")}
        assert (same == encoder) is not moved
        assert same <= encoder


def test_head_lr_scales_the_heads_only(run):
    def heads(sizes) -> list[Objective]:
        objective = MaskedLM(sizes, mask_id=4)
        for parameter in objective.parameters():
            nn.init.normal_(parameter, std=0.1)
        return [objective]

    moved = {}
    for scale in (1.0, 10.0):
        done = run(str(scale), heads, steps=1, head_lr=scale)
        for name, value in done.after.items():
            key = name.split(".")[0], scale
            moved[key] = max(moved.get(key, 0.0), float((value - done.before[name]).abs().max()))
    assert moved["model", 10.0] == pytest.approx(moved["model", 1.0], rel=1e-3)
    assert moved["objectives", 10.0] == pytest.approx(10 * moved["objectives", 1.0], rel=1e-2)


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
    other.examples = [replace(e, id=f"other-{e.id}") for e in other.examples]
    other.kept = {}
    model = student()
    objectives = [First(model.sizes), Second(model.sizes)]
    data = [DataSource(text_only, 3.0, ("first",), "a"), DataSource(other, 1.0, ("second",), "b")]
    train(model, objectives, data, TrainingArguments(steps=30, batch=4, **CPU), tmp_path)
    assert all(not i.startswith("other") for i in objectives[0].seen)
    assert all(i.startswith("other") for i in objectives[1].seen)
    assert len(objectives[0].seen) + len(objectives[1].seen) == 30 * 4
    # Binomial(30, 3/4): mean 22.5, sd 2.4
    assert 13 <= len(objectives[0].seen) / 4 <= 29
    lines = log_of(tmp_path)
    assert all(("first" in line) != ("second" in line) for line in lines)


def test_calls_of_one_process_may_differ_in_precision(run):
    half, whole = (run(one, steps=2, precision=one).log[-1]["loss"] for one in ("bf16", "fp32"))
    assert half != whole
    assert half == pytest.approx(whole, rel=0.05)


@pytest.mark.parametrize(
    ("gpu", "bf16", "cpu", "expected"),
    [
        (True, True, False, ("bf16", "high")),
        (True, False, False, ("no", "high")),
        (True, True, True, ("no", "highest")),
        (False, True, False, ("no", "highest")),
    ],
)
def test_precision_suits_the_device(gpu, bf16, cpu, expected, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    assert torch.get_float32_matmul_precision() == "highest"
    try:
        found = resolve_precision(TrainingArguments(cpu=cpu))
        assert (found, torch.get_float32_matmul_precision()) == expected
    finally:
        torch.set_float32_matmul_precision("highest")


def test_an_epoch_sees_every_sample_once(run, text_only):
    seen = run(make=lambda sizes: [First(sizes)], epochs=2).parts[0].seen
    assert len(seen) == 128
    assert sorted(seen[:64]) == sorted(seen[64:]) == sorted(text_only.ids)
    assert seen[:64] != seen[64:]


# -- teachers --------------------------------------------------------------------------------------------------------


def test_teacher_is_neither_trained_nor_saved(student, tower, samples, tmp_path):
    model, (clip, tokens) = student(), tower()
    teacher = ClipTextTeacher(clip.train(), tokens)
    before = {k: v.clone() for k, v in clip.state_dict().items()}
    parts = [ContrastiveDistillation(model.sizes._replace(teacher=24))]
    keys = set(ModelWithObjectives(model, parts).state_dict())
    modes = []

    class PassSpy(PlainTrainingStep):
        def __call__(self, micro: MicroBatchContext):
            modes.append(any(part.training for part in clip.modules()))
            return super().__call__(micro)

    taught = {"teachers": [teacher], "training_step": PassSpy()}
    config = TrainingArguments(steps=3, batch=8, **CPU)
    train(model, parts, TeacherDataset(samples, teacher), config, tmp_path, **taught)
    assert modes == [False] * 3
    assert all(torch.equal(before[k], v) for k, v in clip.state_dict().items())
    assert all(p.grad is None and not p.requires_grad for p in clip.parameters())
    stored = load_file(next((tmp_path / "checkpoints").glob("step-*")) / "state.safetensors")
    names = {name.removeprefix("weight.") for name in stored if name.startswith("weight.")}
    assert {name for name in names if "buffer." not in name} <= keys


# -- the log ---------------------------------------------------------------------------------------------------------


def test_log_has_one_line_per_log_step_with_means_between(run):
    each, fourth = (run(str(every), steps=10, log_every=every).log for every in (1, 4))
    assert [line["step"] for line in each] == list(range(1, 11))
    assert [line["step"] for line in fourth] == [4, 8, 10]
    assert {"step", "loss", "mlm", "lr", "grad_norm"} <= set(fourth[0])
    singles = [line["mlm"] for line in each[:4]]
    # A mean over masked tokens, not over steps: it lies between the steps' means.
    assert min(singles) < fourth[0]["mlm"] < max(singles)


def test_last_losses_are_of_enough_steps_and_the_same_after_a_kill(
    student, text_only, tmp_path, monkeypatch
):
    """Eight steps at least, in whole log lines."""
    monkeypatch.setattr("groundling.training.loop.MIN_METRIC_STEPS", 8)

    def losses(folder: Path, dies_at: int = 0) -> dict:
        model = student()
        torch.manual_seed(2)
        each = CPU | {"log_every": 3, "save_every": 8}
        config = TrainingArguments(steps=12, batch=2, **each)
        dying = homes.dying(dies_at)
        result = train(
            model, [answers(model.sizes)], text_only, config, folder, training_step=dying
        )
        return {key: result[key] for key in ("train_metrics", "train_metrics_steps")}

    whole = losses(tmp_path / "whole")
    # Lines after steps 3, 6, 8 (a checkpoint), 9 and 12: the last eight steps are in those from step 3 on.
    spans = {6: 3, 8: 2, 9: 1, 12: 3}
    lines = {line["step"]: line["task"] for line in log_of(tmp_path / "whole")}
    assert whole["train_metrics_steps"] == 9
    mean = sum(lines[step] * span for step, span in spans.items()) / 9
    assert whole["train_metrics"]["task"] == pytest.approx(mean, rel=1e-5)
    with pytest.raises(homes.Killed):
        losses(tmp_path / "killed", dies_at=11)
    assert losses(tmp_path / "killed") == whole, "from the checkpoint after two thirds"


def test_a_term_without_a_count_is_a_mean_over_the_steps_that_have_it(student, text_only, tmp_path):
    class Uncounted(First):
        def count(self, batch):
            return {}

    logs = {}
    for every in (1, 8):
        model = student()
        torch.manual_seed(2)
        parts = [Uncounted(model.sizes), Second(model.sizes)]
        data = [DataSource(text_only, 1.0, (one.name,)) for one in parts]
        config = TrainingArguments(steps=8, batch=4, **CPU | {"log_every": every})
        train(model, parts, data, config, tmp_path / str(every))
        logs[every] = log_of(tmp_path / str(every))
    each = [line["first"] for line in logs[1] if "first" in line]
    assert 0 < len(each) < 8
    assert logs[8][0]["first"] == pytest.approx(sum(each) / len(each), rel=1e-5)


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


@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_not_a_number_ends_the_run_and_leaves_a_sound_checkpoint(
    where, student, text_only, tmp_path
):
    model = student()
    config = TrainingArguments(steps=8, batch=8, cpu=True, log_every=1, save_every=2)
    with pytest.raises(InputError, match=r"step [45]") as error:
        train(model, [Breaks(model.sizes, at=4, where=where)], text_only, config, tmp_path)
    assert "nan" in str(error.value)
    stored = load_file(next((tmp_path / "checkpoints").glob("step-*")) / "state.safetensors")
    assert not [name for name, value in stored.items() if not value.isfinite().all()]


SMALL = TrainingArguments(steps=1, batch=4, **CPU)
FAULTS = {
    "few samples": ([MaskedLM], {"batch": 65}, "64 samples are fewer than one batch of 65"),
    "batch": ([MaskedLM], {"batch": 10, "gradient_accumulation_steps": 4}, "batch 10: "),
    "tokens": ([MaskedLM], {"batch_tokens": 20}, "batch_tokens = 20: data: the sample 's"),
    "no CLIP side": ([ClipTokenClassification], {}, "clip_tokens needs `clip`"),
    "in a worker": ([ClipTokenClassification], {"workers": 1}, "clip_tokens needs `clip`"),
    "no features": ([ContrastiveDistillation], {}, "contrastive needs `features.sentence`"),
    "names": ([answers, answers], {}, "distinct names, found ['supervised', 'supervised']"),
}
"""Objectives, settings and what is said of them, on texts alone."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_mistake_is_one_line(name, student, text_only, tmp_path):
    kinds, settings, message = FAULTS[name]
    model = student()
    parts = [kind(model.sizes._replace(teacher=24)) for kind in kinds]
    with pytest.raises(InputError) as error:
        train(model, parts, text_only, replace(SMALL, **settings), tmp_path)
    assert message in str(error.value)


# -- negatives and accumulation ----------------------------------------------------------------------

WIDTHS = OutputSizes(text=8, teacher=8, input_embeddings=(10, 8))


def test_a_run_says_that_its_negatives_are_fewer(tmp_path: Path) -> None:
    config = make_settings(
        AdaptConfig,
        student=str(homes.student(tmp_path / "student")),
        teacher=str(homes.teacher(tmp_path / "clip")),
        arm="contrastive",
        text=(str(homes.text(tmp_path / "text.txt", 16)),),
    )
    steps = replace(homes.STEPS, steps=1, gradient_accumulation_steps=2)
    notes = adapt(config, steps, tmp_path / "out")["notes"]
    assert [note for note in notes if note.startswith("gradient_accumulation_steps=2")]


def test_which_negatives_are_fewer() -> None:
    clip, distilled = ClipContrastiveLoss(WIDTHS), ContrastiveDistillation(WIDTHS)
    for objectives, steps, named in (
        ([clip], 4, "contrast"),
        ([clip, distilled], 2, "contrast, contrastive"),
        ([clip], 1, ""),
        ([L1Distillation(WIDTHS), MaskedLM(WIDTHS)], 4, ""),
    ):
        settings = TrainingArguments(gradient_accumulation_steps=steps)
        notes = in_batch_negatives_note(objectives, settings)
        assert len(notes) == bool(named)
        assert all(f": {named} takes its negatives from one micro-batch" in note for note in notes)


class OwnRows(ContrastiveDistillation):
    """Negatives of the own micro-batch alone."""

    def compare(self, student: Tensor, teacher: Tensor, number: Tensor) -> Tensor:
        return (student @ teacher.T).logsumexp(-1).sum()


@pytest.mark.parametrize(
    ("kind", "step", "told"),
    [
        (MaskedLM, PlainTrainingStep(), "no objective of mlm has in-batch negatives"),
        (ContrastiveDistillation, VillaStep(TrainingStepSettings()), "the training step VillaStep"),
        (OwnRows, PlainTrainingStep(), "contrastive takes its negatives from its own micro-batch"),
    ],
)
def test_what_cannot_cache_negatives(kind, step, told, cross, samples, tower, tmp_path) -> None:
    sizes = cross.sizes._replace(teacher=24)
    taught = TeacherDataset(samples, ClipTextTeacher(*tower()), FeatureCache())
    config = TrainingArguments(
        steps=1, batch=8, gradient_accumulation_steps=2, cached_negatives=True, cpu=True
    )
    with pytest.raises(InputError, match=f"^cached_negatives: {told}"):
        train(cross, [kind(sizes)], taught, config, tmp_path, training_step=step)


def half_on_a_processor(config: TrainingArguments, out: Path) -> Accelerator:
    """As on a GPU: autocast to fp16, and a scaler of losses."""
    made = _accelerator(replace(config, precision="fp32"), out)
    made.state._mixed_precision = "fp16"
    made.scaler, made.native_amp = torch.amp.GradScaler("cpu", init_scale=1024), True
    return made


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_the_second_pass_of_cached_negatives_draws_the_same_dropout(
    precision, student, text_only, tmp_path, monkeypatch
) -> None:
    if precision == "fp16":
        monkeypatch.setattr(loop, "_accelerator", half_on_a_processor)
    model = student()
    objectives = [MaskedLM(model.sizes, mask_id=4), SimCSE(model.sizes)]
    pairs, cached = [], JoinedPass.cached_gradients

    def look(one: JoinedPass) -> list[tuple[Tensor, Tensor]]:
        (rows,), ((table, starts),) = one.rows, one.gathered
        pairs.append((rows.detach(), table[starts[one.place] :][: len(rows)]))
        return cached(one)

    monkeypatch.setattr(JoinedPass, "cached_gradients", look)
    config = TrainingArguments(
        steps=2, batch=8, gradient_accumulation_steps=4, cached_negatives=True, precision=precision,
        cpu=True,
    )  # fmt: skip
    train(model, objectives, text_only, config, tmp_path)
    assert len(pairs) == 8 and len(pairs[0][1]) == 2
    assert pairs[0][0].dtype == {"bf16": torch.bfloat16, "fp16": torch.half}.get(
        precision, torch.float
    )
    for again, first in pairs:
        torch.testing.assert_close(again, first)


def test_precision_and_compilation_that_a_run_cannot_have(student, text_only, tmp_path) -> None:
    model = student()
    half = TrainingArguments(steps=2, batch=8, precision="fp16", cpu=True)
    with pytest.raises(InputError, match=r"^precision=fp16 needs an accelerator"):
        train(model, [MaskedLM(model.sizes, mask_id=4)], text_only, half, tmp_path)
    with pytest.raises(InputError, match=r"^cached_negatives: not with compile"):
        TrainingArguments(cached_negatives=True, compile=True)


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
    objectives = xdbert(model.sizes)
    accumulated = TrainingArguments(steps=STEPS, batch=8, gradient_accumulation_steps=2, lr=1e-3)
    config = replace(accumulated, save_every=3, log_every=1, cpu=True)
    data = toys.both_sides(40)  # an epoch is 5 steps
    train(model, objectives, data, config, out, training_step=DyingStep())
    save_file(weights(model, objectives), Path(out) / "end.safetensors")


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
    assert [line["step"] for line in log_of(out)] == list(range(1, STEPS + 1))
    assert log_of(whole) == log_of(out)


def test_checkpoints_that_a_kill_behind_the_result_left_are_cleared(tmp_path: Path) -> None:
    state = homes.put(tmp_path / "checkpoints/step-000000002/counters.json", "{}")
    assert RunFolder(tmp_path).result is None and state.exists()  # it is resumed from there
    homes.put(tmp_path / "result.json", '{"steps": 2}')
    assert RunFolder(tmp_path).result == {"steps": 2}
    assert not (tmp_path / "checkpoints").exists()
