"""The training loop of pre-training, adaptation, distillation and fine-tuning, which differ in its arguments."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import (
    DistributedDataParallelKwargs,
    GradientAccumulationPlugin,
    gather_object,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader

from groundling.core.batch import Batch, EncoderOutput, to_device
from groundling.core.errors import InputError
from groundling.core.rng import derive_seed
from groundling.data.samples import SampleDataset
from groundling.models.loading import Encoder
from groundling.models.packing import pack_texts
from groundling.models.sdpa import cudnn_attention, faster_attention
from groundling.models.text_encoder import compiled_layers, gradient_checkpointing
from groundling.objectives import Objective
from groundling.objectives.contrastive import JoinedPass
from groundling.runs.folder import disk_errors, json_safe, json_text, read_log, write_whole
from groundling.runs.jobs import process_state, use_cpu
from groundling.runs.progress import Progress, print_line
from groundling.runs.run import Checkpoints, Counters
from groundling.settings.training import TrainingArguments
from groundling.teachers import Teacher, add_features
from groundling.training.batch_sampler import (
    BatchPlan,
    DataSource,
    MicroBatchDataset,
    is_scored_by,
    plan_batches,
)
from groundling.training.cached_negatives import join_micro_batches
from groundling.training.evaluation import Evaluator
from groundling.training.optimizers import clip_each_gradient, make_optimizer, set_learning_rates
from groundling.training.throughput import (
    Volume,
    Work,
    head_work,
    known_peak,
    measure_peak,
    model_work,
    scored_items,
    speed_of,
)
from groundling.training.training_steps import (
    ForwardOutput,
    MicroBatchContext,
    PlainTrainingStep,
    Terms,
    TrainingStep,
)

MIN_METRIC_STEPS = 50
"""Minimum number of last steps over which a result's losses are averaged; all steps of a shorter run."""
FEW_LENGTHS = 8
"""Number of lengths up to which cuDNN's attention pays; see `cudnn_attention`."""
LENGTHS_AT_ONCE = 10_000
"""Number of lengths that are looked through together for it."""
MAX_WORKERS = 4
"""Maximum number of data-loading processes by default."""
ADVICE = "start again in another folder with a lower lr, or with precision fp32"
"""Advice for numbers that are not finite."""


class ModelWithObjectives(nn.Module):
    """A model and its objectives as one module, so that DDP has all trainable parameters."""

    def __init__(self, model: nn.Module, objectives: Sequence[Objective]) -> None:
        super().__init__()
        names = [objective.name for objective in objectives]
        if len({"", *names}) <= len(names):  # names are keys of heads and counts
            raise InputError(f"objectives: expected distinct names, found {names}")
        self.model = model
        self.objectives = nn.ModuleList(objectives)
        self.weights: dict[str, float] = {}
        """The weight of each term so far, from its objective."""
        if isinstance(model, Encoder) and any(one.reads_layers for one in objectives):
            model.return_layers()

    def encode(self, batch: Batch, scoring: Sequence[Objective]) -> EncoderOutput:
        """The model's outputs, with those of the objectives' heads."""
        encoded: EncoderOutput = self.model(batch)
        answers = {one.name: one.compute_logits(encoded, batch) for one in scoring}
        heads = {name: answer for name, answer in answers.items() if answer is not None}
        return replace(encoded, heads=heads)

    def forward(
        self,
        batch: Batch,
        active: Sequence[str],
        return_logits: bool = False,
        joined: Mapping[str, JoinedPass] = MappingProxyType({}),
    ) -> ForwardOutput:
        """One pass: the model, then the heads of all active objectives, then their losses.

        Logits are returned only if `return_logits`: DDP expects a gradient through every output. `joined`: the passes
        of objectives whose rows are gathered with those of other micro-batches.
        """
        scoring = [o for o in self.objectives if isinstance(o, Objective) and o.name in active]
        # Joined objectives first, as without the others: their heads draw the same random numbers.
        scoring.sort(key=lambda one: one.name not in joined)
        encoded = self.encode(batch, scoring)
        heads = encoded.heads
        terms: dict[str, Tensor] = {}
        for objective in scoring:
            with joined[objective.name].run() if objective.name in joined else nullcontext():
                scored = objective(encoded, batch)
            for term, value in scored.items():
                if term in terms or value.ndim:  # else sums would be mixed up
                    raise InputError(
                        f"{objective.name}: `forward` returned {term!r}, expected a term of its own, and its sum ()"
                    )
                self.weights[term] = objective.weight_of(term)
                terms[term] = value
        zero = None if terms else torch.stack([p.sum() * 0 for p in self.parameters()]).sum()
        if not return_logits:
            rows = [row for one in joined.values() for row in one.rows]
            return ForwardOutput(terms, {}, zero, rows)
        named = {objective.name: objective for objective in scoring}
        logits = {name: named[name].comparison_logits(answer) for name, answer in heads.items()}
        return ForwardOutput(terms, logits, zero)

    def weight(self, term: str) -> float:
        """A term's weight, from its objective; 1 for a term of the training step itself."""
        return self.weights.get(term, 1.0)


def train(
    model: nn.Module,
    objectives: Sequence[Objective],
    data: SampleDataset | Sequence[DataSource],
    config: TrainingArguments,
    out: str | Path,
    *,
    teachers: Sequence[Teacher] = (),
    training_step: TrainingStep | None = None,
    evaluator: Evaluator | None = None,
    saves: Mapping[int, Callable[[], None]] = MappingProxyType({}),
) -> dict[str, object]:
    """Train `model` in place on the weighted sum of all objectives' terms; returns the last means and counters.

    Each step draws from one of several `DataSource`s. `out` gets `log.jsonl`, `tensorboard/` and checkpoints: after a
    kill, the same call resumes from the last one, with bit-identical results on one type of machine. `teachers` are
    those without a cache, whose inputs the samples carry (`TeacherDataset`); they are neither trained nor saved.
    `training_step` runs the passes of each micro-batch. The `evaluator` may stop the run early, or choose the step
    whose weights the model has afterwards. `saves` are called after the steps that they are listed by, and again if a
    run resumes before them. For several processes, launch with `torchrun` or `accelerate launch`.
    Raises InputError if the loss is not finite.
    """
    sources = list(data) if isinstance(data, Sequence) else [DataSource(data)]
    training_step = PlainTrainingStep() if training_step is None else training_step
    with pack_texts(model) if config.packing else nullcontext():
        training = _TrainingLoop(
            model, objectives, sources, config, Path(out), teachers, training_step, evaluator
        )
        training.saves = saves
        recomputed = (
            gradient_checkpointing(model) if config.gradient_checkpointing else nullcontext()
        )
        compiled = compiled_layers(model) if config.compile else nullcontext()
        with recomputed, compiled, faster_attention(), cudnn_attention(_lengths_are_few(sources)):
            training.run()
    return training.result()


class _TrainingLoop:
    def __init__(
        self,
        model: nn.Module,
        objectives: Sequence[Objective],
        sources: Sequence[DataSource],
        config: TrainingArguments,
        out: Path,
        teachers: Sequence[Teacher],
        training_step: TrainingStep,
        evaluator: Evaluator | None,
    ) -> None:
        self.objectives = objectives
        self.sources = sources
        self.config = config
        self.teachers = teachers
        self.saves: Mapping[int, Callable[[], None]] = {}
        self.training_step = training_step
        self.evaluator = evaluator if evaluator and evaluator.settings.eval_every else None
        if config.cached_negatives:
            _check_joining(objectives, training_step)
        self.accelerator = _accelerator(config, out)
        self.plan = plan_batches(sources, objectives, config, self.accelerator.num_processes)
        self.module = ModelWithObjectives(model, objectives).to(self.accelerator.device)
        self.optimizer = make_optimizer(self.module, config)
        self.checkpoints = Checkpoints(out / "checkpoints")
        self.counters = self.checkpoints.restore(self.module, self.optimizer) or Counters()
        self.start = self.counters.step
        self.wrapped, self.stepper = self.accelerator.prepare(self.module, self.optimizer)
        if self.counters.scaler is not None and self.accelerator.scaler is not None:
            self.accelerator.scaler.load_state_dict(self.counters.scaler)
        for teacher in teachers:
            teacher.to(self.accelerator.device)
        self.log = _TrainingLog(out / "log.jsonl", self.accelerator, self.start)
        self.checked_sources: set[int] = set()
        self.zero: Tensor | None = None
        """`ForwardOutput.zero` of the last pass."""
        # Truncated tokens and regions since the last checkpoint: () at first, then (2,).
        self.truncated = torch.zeros((), dtype=torch.long)
        device, precision = self.accelerator.device, self.accelerator.mixed_precision
        peak = (measure_peak if config.measure_peak else known_peak)(device, precision)
        self.peak = peak * self.accelerator.num_processes
        self.work: Work | None = None
        self.head_work: dict[str, float] = {}
        # Tokens, positions and kFLOPs since the last line: () at first, then (3,).
        self.volume = torch.zeros((), dtype=torch.long)
        self.has_logged = False

    def run(self) -> None:
        """Run all remaining steps."""
        micro_batches = _batches(
            self.plan, self.objectives, self.config, self.accelerator, self.start
        )
        self.module.train()
        self.line_began = time.perf_counter()
        began = self.line_began - self.counters.seconds
        progress = Progress("training", len(self.plan), "step", done=self.start)
        for step in range(self.start, len(self.plan)):
            if self.evaluator is not None and self.evaluator.should_stop(self.counters.evaluations):
                break
            batches = self._next_batches(micro_batches)
            self._check_first(step, batches)
            if self.peak and self.work is None:
                with pack_texts(self.module.model, False) if self.config.packing else nullcontext():
                    self.work = model_work(self.module.model, batches[0])
                self.head_work = {one.name: head_work(one) for one in self.objectives}
                self.module.train()
            norm = self._optimizer_step(step, batches)
            self.counters.step = step + 1
            self.counters.seconds = time.perf_counter() - began
            if step + 1 in self.saves:  # before a checkpoint, so that no resumed run lacks it
                self._call_save(self.saves[step + 1])
            self._record(norm, progress)
            progress.update()
        progress.close()
        best = self._best_step()
        if best:
            self.checkpoints.load_best(self.module, best)
        # end_training() would also destroy the process group, which later runs need.
        with disk_errors(self.log.path):
            for tracker in self.accelerator.trackers:
                tracker.finish()

    def _call_save(self, save: Callable[[], None]) -> None:
        self._check_weights()
        began = time.perf_counter()
        save()
        self.line_began += time.perf_counter() - began  # saving is not training

    def _active(self, step: int) -> list[Objective]:
        source = self.sources[self.plan.step_sources[step]]
        return [objective for objective in self.objectives if is_scored_by(source, objective)]

    def _next_batches(self, micro_batches: Iterator[Batch]) -> list[Batch]:
        batches = []
        for _ in range(self.config.gradient_accumulation_steps):
            batch = next(micro_batches).to(self.accelerator.device, non_blocking=True)
            for teacher in self.teachers:
                batch = add_features(teacher, batch)
            batches.append(batch)
        return batches

    def _check_first(self, step: int, batches: Sequence[Batch]) -> None:
        """In the first step of each source, check what would train on wrong numbers in silence."""
        source = int(self.plan.step_sources[step])
        if source in self.checked_sources:
            return
        self.checked_sources.add(source)
        counting: list[Objective | TrainingStep] = [*self._active(step), self.training_step]
        counted: set[str] = set()
        for one in counting:
            if isinstance(one, Objective):
                batches[0].require(one.required_fields, one.name)
            for term, count in one.count(batches[0].cpu_copy).items():
                # A fraction would be rounded, and the counts of one term added up.
                if term in counted or not isinstance(count, int | np.integer) or count < 0:
                    raise InputError(
                        f"{type(one).__name__}: `count` returned {count!r} as {term!r}, expected a term of its own, "
                        "and an integer, 0 or more"
                    )
                counted.add(term)

    def _optimizer_step(self, step: int, batches: Sequence[Batch]) -> Tensor:
        active = self._active(step)
        counts, head_counts = self._counts(active, batches)
        set_learning_rates(self.optimizer, self.config, step, len(self.plan), self.plan.per_epoch)
        joined = self._join_negatives(step, batches, counts)
        for number, batch in enumerate(batches):
            terms = self._run_micro_batch(step, number, batch, counts, head_counts, joined[number])
            self.log.add(terms, {term: self.module.weight(term) for term in terms})
        self.log.count(counts)
        limit = self.config.max_grad_norm or math.inf
        whole = math.inf if self.config.clip_per_tensor else limit
        norm: Tensor = self.accelerator.clip_grad_norm_(self.module.parameters(), whole)
        if self.config.clip_per_tensor and limit < math.inf:
            clip_each_gradient(self.module, limit)
        self.stepper.step()
        self.stepper.zero_grad(set_to_none=True)
        return norm

    def _counts(
        self, active: Sequence[Objective], batches: Sequence[Batch]
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Items () of each term and of each head in the whole optimizer step, over all micro-batches and processes.

        Also adds truncated tokens and regions, and what is read, to the run's totals. Reads the batches in host
        memory, without synchronising with the GPU.
        """
        hosts = [batch.cpu_copy for batch in batches]
        counting: list[Objective | TrainingStep] = [*active, self.training_step]
        counted = [[one.count(batch) for batch in hosts] for one in counting]
        counts = add_counts(one for some in counted for one in some)
        logit_counts = [sum(one.count_logits(batch) for batch in hosts) for one in active]
        tokens = sum(batch.truncated_tokens for batch in hosts)
        regions = sum(batch.truncated_regions for batch in hosts)
        read = [tokens, regions, *self._volume(active, hosts, counted)]
        totals = torch.tensor([*read, *logit_counts, *counts.values()], dtype=torch.long)
        if self.accelerator.num_processes > 1:
            totals = self.accelerator.reduce(to_device(totals, self.accelerator.device), "sum")
        self.truncated = self.truncated + totals[:2]
        self.volume = self.volume + totals[2:5]
        summed = totals[5:].unbind()
        names = [objective.name for objective in active]
        heads = dict(zip(names, summed, strict=False))
        return dict(zip(counts, summed[len(names) :], strict=True)), heads

    def _volume(
        self,
        active: Sequence[Objective],
        hosts: Sequence[Batch],
        counted: Sequence[Sequence[Mapping[str, int]]],
    ) -> tuple[int, int, int]:
        """Tokens, positions with padding, and kFLOPs (0 without a peak) of this process's micro-batches."""
        volumes = [Volume.of(batch) for batch in hosts]
        flops = 0.0
        if self.work is not None:
            flops = sum(self.work.of(volume) for volume in volumes)
            for one, counts in zip(active, counted, strict=False):
                flops += sum(map(scored_items, counts)) * self.head_work[one.name]
        tokens = sum(volume.tokens for volume in volumes)
        return tokens, sum(volume.positions for volume in volumes), round(flops / 1e3)

    def _run_micro_batch(
        self,
        step: int,
        number: int,
        batch: Batch,
        counts: Mapping[str, Tensor],
        head_counts: Mapping[str, Tensor],
        joined: Mapping[str, JoinedPass],
    ) -> Terms:
        names = [objective.name for objective in self._active(step)]
        torch.manual_seed(self._dropout_seed(step, number, 0))

        def forward(changed: Batch) -> ForwardOutput:
            output: ForwardOutput = self.wrapped(
                changed, names, self.training_step.compares_logits, joined
            )
            self.zero = output.zero
            return output

        def backward(loss: Tensor, **options: Any) -> None:
            starts = [pair for one in joined.values() for pair in one.cached_gradients()]
            if loss.requires_grad:  # not if all of it is among gathered rows
                starts.append((self._scaled(loss), torch.ones_like(loss)))
            values, gradients = zip(*starts, strict=True)
            torch.autograd.backward(values, gradients, **options)

        micro = MicroBatchContext(
            batch,
            forward,
            lambda terms: self._loss(terms, counts),
            backward if joined else self.accelerator.backward,
            self.objectives[0].sizes,
            head_counts,
        )
        last = number == self.config.gradient_accumulation_steps - 1
        no_sync = nullcontext() if last else self.accelerator.no_sync(self.wrapped)
        with no_sync, self.accelerator.autocast():
            return self.training_step(micro)

    def _dropout_seed(self, step: int, number: int, what: int | str) -> int:
        # The micro-batch's place in the step, whether processes or accumulation split the step.
        place = number * self.accelerator.num_processes + self.accelerator.process_index
        return derive_seed(self.config.seed, "dropout", step, place, what)

    def _join_negatives(
        self, step: int, batches: Sequence[Batch], counts: Mapping[str, Tensor]
    ) -> list[dict[str, JoinedPass]]:
        """With `cached_negatives`, for each micro-batch the passes of objectives with in-batch negatives."""
        joining = [one for one in self._active(step) if one.in_batch_negatives]
        if not (self.config.cached_negatives and joining and len(batches) > 1):
            return [{} for _ in batches]
        self.zero = None
        encoded = []
        # The casts of weights that autocast keeps must not be those without gradient.
        with torch.no_grad(), self.accelerator.autocast():
            for number, batch in enumerate(batches):
                torch.manual_seed(self._dropout_seed(step, number, 0))
                encoded.append(self.module.encode(batch, joining))

        def loss(objective: Objective, terms: Terms) -> Tensor:
            self.module.weights |= {term: objective.weight_of(term) for term in terms}
            return self._scaled(self._loss(terms, counts))

        passes = {}
        with self.accelerator.autocast():
            for one in joining:
                seeds = [self._dropout_seed(step, place, one.name) for place in range(len(batches))]
                passes[one.name] = join_micro_batches(
                    one, encoded, batches, seeds, partial(loss, one)
                )
        return [
            {name: some[place] for name, some in passes.items()} for place in range(len(batches))
        ]

    def _scaled(self, loss: Tensor) -> Tensor:
        scaler = self.accelerator.scaler
        return loss if scaler is None else scaler.scale(loss)

    def _loss(self, terms: Terms, totals: Mapping[str, Tensor]) -> Tensor:
        parts = [
            self.module.weight(term)
            * value
            / (totals[term].clamp(min=1) if term in totals else 1.0)
            for term, value in terms.items()
        ]
        if self.zero is not None:
            parts.append(self.zero)
        # DDP averages gradients over processes; multiplying makes it a sum.
        loss: Tensor = torch.stack(parts).sum() * self.accelerator.num_processes
        return loss

    def _record(self, norm: Tensor, progress: Progress) -> None:
        counters = self.counters
        done = counters.step
        steps = len(self.plan)
        evaluator = self.evaluator
        if evaluator is not None and not evaluator.is_due(done, steps, self.plan.per_epoch):
            evaluator = None
        saving = done % self.config.save_every == 0 or done == steps or evaluator is not None
        if saving or done % self.config.log_every == 0:
            rate = self.optimizer.param_groups[0]["lr"]
            read = float(norm)  # waits for the step
            speed = self._measure_speed()
            means = self.log.write(done, rate, read, counters.seconds, speed)
            progress.set_measurements({**means, **speed})
            least = max(MIN_METRIC_STEPS, self.config.log_every, -(-steps // 10))
            counters.windows.append(self.log.window)
            # The fewest last windows that cover at least so many steps.
            while sum(one["steps"] for one in counters.windows[1:]) >= least:
                del counters.windows[0]
        if saving:
            self._check_weights()
        if evaluator is not None:
            self._evaluate(evaluator)
        if saving:
            self._save()
        if not self.volume.ndim:  # a line was written: saving and evaluation are not training
            self.line_began = time.perf_counter()

    def _measure_speed(self) -> dict[str, float]:
        """Speed since the last line; the run's own leaves out each process's first line, which is a warm-up."""
        counters = self.counters
        tokens, positions, work = self.volume.expand(3).tolist()
        self.volume = torch.zeros((), dtype=torch.long)
        line = [tokens, work, time.perf_counter() - self.line_began]
        counters.tokens += tokens
        counters.positions += positions
        if self.has_logged:
            counters.timed = [sum(pair) for pair in zip(counters.timed, line, strict=True)]
        else:
            counters.warm_up = line
        self.has_logged = True
        return speed_of(line, tokens, positions, self.peak)

    def _evaluate(self, evaluator: Evaluator) -> None:
        counters = self.counters
        scores = json_safe(evaluator.measure())  # in a checkpoint's JSON types
        counters.evaluations = [*counters.evaluations, {"step": counters.step, **scores}]
        self.log.note(counters.step, {f"{evaluator.split} {name}": scores[name] for name in scores})
        print_line(evaluator.describe(counters.evaluations))
        if self._best_step() == counters.step and self.accelerator.is_main_process:
            self.checkpoints.save_best(self.module, counters.step)

    def _best_step(self) -> int:
        if self.evaluator is None:
            return 0
        return self.evaluator.kept_step(self.counters.evaluations)

    def _check_weights(self) -> None:
        weights = self.module.state_dict().values()
        is_finite = [value.isfinite().all() for value in weights if value.is_floating_point()]
        # Read all at once: each read synchronises with the GPU.
        if not torch.stack(is_finite).all():
            raise InputError(
                f"step {self.counters.step}: weights are NaN or infinite, so none is written; {ADVICE}"
            )

    def _save(self) -> None:
        if self.accelerator.scaler is not None:
            self.counters.scaler = self.accelerator.scaler.state_dict()
        truncated_tokens, truncated_regions = self.truncated.expand(2).tolist()
        self.counters.truncated_tokens += truncated_tokens
        self.counters.truncated_regions += truncated_regions
        self.truncated = torch.zeros((), dtype=torch.long)
        if self.accelerator.is_main_process:
            self.checkpoints.save(self.module, self.optimizer, self.counters, self._best_step())
        self.accelerator.wait_for_everyone()

    def result(self) -> dict[str, object]:
        """The result of the run."""
        counters = self.counters
        metrics, weights = means_of_windows(counters.windows)
        result: dict[str, object] = {
            "steps": counters.step,
            "epochs": round(self.plan.covered_epochs() * counters.step / len(self.plan), 4),
            "samples": count_samples(self.sources),
            "truncated_tokens": counters.truncated_tokens,
            "truncated_regions": counters.truncated_regions,
            "seconds": round(counters.seconds, 1),
            "speed": self._whole_speed(),
            "train_metrics": metrics,
            "train_metrics_steps": sum(window["steps"] for window in counters.windows),
            # In `train_metrics`, the loss is the sum of each term times its weight.
            "loss_weights": weights,
        }
        if self.evaluator is not None:
            result["evaluation"] = self.evaluator.report(
                counters.evaluations, counters.step, len(self.plan)
            )
        return result

    def _whole_speed(self) -> dict[str, float]:
        counters = self.counters
        timed = counters.timed if counters.timed[2] else counters.warm_up
        speed = speed_of(timed, counters.tokens, counters.positions, self.peak)
        return {**speed, "peak_gflops": round(self.peak / 1e9, 1)} if self.peak else speed


def means_of_windows(
    windows: Sequence[Mapping[str, Any]],
) -> tuple[dict[str, float], dict[str, float]]:
    """The loss and every term's mean over its items in all windows, and the terms' last weights."""
    sums: dict[str, float] = {}
    counts: dict[str, float] = {}
    weights: dict[str, float] = {}
    for window in windows:
        for term, (total, count, weight) in window["terms"].items():
            sums[term] = sums.get(term, 0.0) + total
            counts[term] = counts.get(term, 0.0) + count
            weights[term] = weight
    means = {term: total / max(1.0, counts[term]) for term, total in sums.items()}
    loss = sum(weights[term] * mean for term, mean in means.items())
    return ({"loss": loss, **means} if windows else {}), weights


def resolve_precision(config: TrainingArguments) -> str:
    """The precision of forward passes on this machine, accelerate's name for it; `auto` also turns TF32 on."""
    precision: str = config.precision
    if precision == "auto":
        precision = "fp32"
        if torch.cuda.is_available() and not use_cpu(config.cpu):
            torch.set_float32_matmul_precision("high")
            if torch.cuda.is_bf16_supported(including_emulation=False):
                precision = "bf16"
    if precision == "fp16" and use_cpu(config.cpu):  # accelerate would train in fp32 without a word
        raise InputError("precision=fp16 needs an accelerator; a processor has bf16 and fp32")
    return "no" if precision == "fp32" else precision


def _check_joining(objectives: Sequence[Objective], training_step: TrainingStep) -> None:
    if not isinstance(training_step, PlainTrainingStep):
        raise InputError(
            f"cached_negatives: the training step {type(training_step).__name__} has passes of its own, whose "
            "representations are not those that were cached"
        )
    if not any(one.in_batch_negatives for one in objectives):
        names = ", ".join(one.arm_name or one.name for one in objectives)
        raise InputError(f"cached_negatives: no objective of {names} has in-batch negatives")


def _accelerator(config: TrainingArguments, out: Path) -> Accelerator:
    process_state(config.cpu)
    AcceleratorState._reset_state()  # forget an earlier call's precision; the process group stays
    accelerator = Accelerator(
        cpu=use_cpu(config.cpu),
        mixed_precision=resolve_precision(config),
        log_with="tensorboard",
        project_dir=out,
        # Without these two, accelerate would read them from the environment and change the run in silence.
        gradient_accumulation_plugin=GradientAccumulationPlugin(num_steps=1),
        dynamo_backend="no",
        # Poolers, and objectives that are inactive in a step, get no gradient.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    processes = accelerator.num_processes
    parts = config.gradient_accumulation_steps * processes
    if not config.batch_tokens and config.batch % parts:
        where = f" on {processes} processes" if processes > 1 else ""
        raise InputError(
            f"batch {config.batch}: cannot be split evenly into {config.gradient_accumulation_steps} micro-batches"
            f"{where}; pass a batch that is a multiple of {parts}"
        )
    return accelerator


def _batches(
    plan: BatchPlan,
    objectives: Sequence[Objective],
    config: TrainingArguments,
    accelerator: Accelerator,
    start: int,
) -> Iterator[Batch]:
    rank, world = accelerator.process_index, accelerator.num_processes
    dataset = MicroBatchDataset(plan, objectives, config.gradient_accumulation_steps, rank, world)
    workers = config.workers
    if workers < 0:
        on_cpu = accelerator.device.type == "cpu"
        workers = 0 if on_cpu else min(MAX_WORKERS, os.cpu_count() or 1)
    return iter(
        DataLoader(
            dataset,
            batch_size=None,
            sampler=range(start * config.gradient_accumulation_steps, len(dataset)),
            num_workers=workers,
            pin_memory=accelerator.device.type == "cuda",
        )
    )


def _lengths_are_few(sources: Sequence[DataSource]) -> bool:
    found: set[int] = set()
    for source in sources:
        lengths = source.samples.lengths
        for start in range(0, len(lengths), LENGTHS_AT_ONCE):
            found.update(np.unique(lengths[start : start + LENGTHS_AT_ONCE]).tolist())
            if len(found) > FEW_LENGTHS:  # most data sets end here, in their first thousands
                return False
    return True


def count_samples(sources: Sequence[DataSource]) -> int:
    """Number of samples, those of a data set once: UNITER lists one for each objective."""
    return sum({id(source.samples): len(source.samples) for source in sources}.values())


def add_counts(counted: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Number of items of each term in this process's micro-batches."""
    counts: dict[str, int] = {}
    for one in counted:
        for term, count in one.items():
            counts[term] = counts.get(term, 0) + count
    return counts


class _TrainingLog:
    """Writes `log.jsonl`: means of every term since the last line, over all processes.

    When a run resumes, later lines are removed.
    """

    def __init__(self, path: Path, accelerator: Accelerator, step: int) -> None:
        self.path = path
        self.accelerator = accelerator
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor | int] = {}
        self.in_step: set[str] = set()
        self.weights: dict[str, float] = {}
        self.steps = 0
        self.window: dict[str, Any] = {}
        """Of the last line: its steps, and by term the sum, the items that divide it, and the weight."""
        if accelerator.is_main_process:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                kept = [json_text(line) for line in read_log(path) if line["step"] <= step]
                write_whole(path, "".join(line + "\n" for line in kept))
        with disk_errors(path.parent / "tensorboard"):
            accelerator.init_trackers("tensorboard")

    def add(self, terms: Terms, weights: Mapping[str, float]) -> None:
        """Add a micro-batch's sums."""
        for term, value in terms.items():
            before = self.sums.get(term, torch.zeros_like(value, dtype=torch.float))
            self.sums[term] = before + value.detach().float()
        self.in_step |= terms.keys()
        self.weights.update(weights)

    def count(self, counts: Mapping[str, Tensor]) -> None:
        """End an optimizer step; `counts` divide its sums, and the number of steps that have a term those without."""
        self.steps += 1
        for term in self.in_step | counts.keys():
            self.counts[term] = self.counts.get(term, 0) + counts.get(term, 1)
        self.in_step = set()

    def _totals(self) -> dict[str, list[float]]:
        counts = {term: float(self.counts[term]) for term in self.sums}
        if self.accelerator.num_processes > 1:
            every = gather_object([counts])
            terms = sorted(set().union(*every))
            counts = {term: max(one.get(term, 0.0) for one in every) for term in terms}
        if not counts:
            return {}
        zero = torch.zeros((), device=self.accelerator.device)
        sums = torch.stack([self.sums.get(term, zero) for term in counts])
        totals = self.accelerator.reduce(sums, "sum").tolist()
        return {
            term: [total, count, self.weights.get(term, 1.0)]
            for (term, count), total in zip(counts.items(), totals, strict=True)
        }

    def write(
        self, step: int, lr: float, norm: float, seconds: float, speed: Mapping[str, float]
    ) -> dict[str, float]:
        """Append a line and reset the sums; returns the loss and every term's mean."""
        self.window = {"steps": self.steps, "terms": self._totals()}
        line, _ = means_of_windows([self.window])
        # With fp16, a scaler skips steps whose gradient is not finite.
        scales = self.accelerator.scaler is not None
        if not (math.isfinite(line["loss"]) and (scales or math.isfinite(norm))):
            loss = line["loss"]
            raise InputError(f"step {step}: the loss is {loss}, the gradient norm {norm}; {ADVICE}")
        measured = {"lr": lr, "grad_norm": norm, "seconds": round(seconds, 2), **speed}
        self.note(step, {**line, **measured})
        self.sums = {}
        self.counts = {}
        self.steps = 0
        return line

    def note(self, step: int, measured: Mapping[str, float | None]) -> None:
        """Append measurements after a step, from the main process; None marks an undefined value."""
        if not self.accelerator.is_main_process:
            return
        with disk_errors(self.path):
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json_text({"step": step, **measured}) + "\n")
            defined = {name: value for name, value in measured.items() if value is not None}
            self.accelerator.log(defined, step=step)
