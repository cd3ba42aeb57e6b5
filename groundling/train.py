"""The one loop. Pre-training, adaptation, distillation and fine-tuning differ in what is passed to it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs, gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from groundling.batch import Batch, collate
from groundling.checkpoint import Checkpoints, Counters
from groundling.config import TrainConfig, check_training
from groundling.data.samples import Samples
from groundling.errors import InputError
from groundling.feed import Feed, Source, Steps, planned, scores
from groundling.find import described
from groundling.inner_steps import InnerStep, MicroStep, Once, Outcome, Terms
from groundling.keyed import generator, seed_of
from groundling.objectives import Objective
from groundling.optimizers import clip_each, optimizer_of, set_rates
from groundling.runs import disk_errors
from groundling.teachers import Teacher, said


class Step(nn.Module):
    """A model and its objectives as one module, so that DDP sees every parameter that trains."""

    def __init__(self, model: nn.Module, objectives: Sequence[Objective]) -> None:
        """Both are registered, not copied."""
        super().__init__()
        self.model = model
        self.objectives = nn.ModuleList(objectives)
        self.scored_by: dict[str, Objective] = {}

    def forward(self, batch: Batch, active: Sequence[str], compared: bool = False) -> Outcome:
        """One pass: the model runs once, then every active objective's head, then their losses.

        Heads are returned if they are `compared`: DDP expects a gradient through everything that is returned.
        """
        encoded = self.model(batch)
        scoring = [o for o in self.objectives if isinstance(o, Objective) and o.name in active]
        heads = {}
        for objective in scoring:
            answer = objective.read(encoded, batch)
            if answer is not None:
                heads[objective.name] = answer
        encoded = replace(encoded, heads=heads)
        terms: dict[str, Tensor] = {}
        for objective in scoring:
            scored = objective(encoded, batch)
            shared = sorted(scored.keys() & terms.keys())
            if shared:
                raise InputError(
                    f"{objective.name}: another objective has a term {shared[0]!r}, too; each term needs a name"
                )
            self.scored_by.update(dict.fromkeys(scored, objective))
            terms.update(scored)
        if not compared:
            return Outcome(terms, {})
        named = {objective.name: objective for objective in scoring}
        logits = {name: named[name].distributions(answer) for name, answer in heads.items()}
        return Outcome(terms, logits)

    def weight(self, term: str, step: int) -> float:
        """Weight of a term at an optimizer step, as its objective says; 1 for a term of the inner step's own."""
        objective = self.scored_by.get(term)
        return 1.0 if objective is None else objective.weight_of(term, step)


def train(
    model: nn.Module,
    objectives: Sequence[Objective],
    data: Samples | Sequence[Source],
    config: TrainConfig,
    out: str | Path,
    *,
    teachers: Sequence[Teacher] = (),
    inner: InnerStep | None = None,
) -> dict[str, object]:
    """Train `model` in place with the weighted sum of all objectives' terms; returns the last means and counters.

    `data` is one data set or several `Source`s, one of which is drawn per step. `teachers` are live ones, whose inputs
    the data carries (`Taught`); they are neither saved nor trained. `inner` runs each micro-batch's passes, such as
    those of adversarial training. `out` receives `log.jsonl`, `tensorboard/` and the checkpoints from which the same
    call resumes after a kill, bit-equal on one kind of machine. Launch through `torchrun` or `accelerate launch` for
    several processes. Raises InputError on a loss that is not a number.
    """
    out = Path(out)
    inner = Once() if inner is None else inner
    check_training(config)
    sources = list(data) if isinstance(data, Sequence) else [Source(data)]

    # -- set-up ------------------------------------------------------------------------------------------------------
    accelerator = _accelerator(config, out)
    _check_names(objectives)
    _check_needs(sources, objectives, config)
    plan = planned(sources, objectives, config, accelerator.num_processes)
    steps = len(plan)
    module = Step(model, objectives).to(accelerator.device)
    optimizer = optimizer_of(module, config)
    checkpoints = Checkpoints(out / "checkpoints")
    counters = checkpoints.restore(module, optimizer) or Counters()
    wrapped, stepper = accelerator.prepare(module, optimizer)
    if counters.scaler is not None and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(counters.scaler)
    for teacher in teachers:
        teacher.to(accelerator.device)
    log = _Log(out / "log.jsonl", accelerator, counters.step)
    start = counters.step
    feed = _batches(plan, objectives, config, accelerator, start)
    module.train()
    began = time.perf_counter() - counters.seconds
    quiet = None if accelerator.is_main_process else True
    bar = tqdm(total=steps, initial=start, disable=quiet, unit="step")

    # -- the loop ----------------------------------------------------------------------------------------------------
    for step in range(start, steps):
        source = sources[plan.picks[step]]
        active = [objective for objective in objectives if scores(source, objective)]
        names = [objective.name for objective in active]
        batches = [
            next(feed).to(accelerator.device, non_blocking=True) for _ in range(config.accumulate)
        ]
        for teacher in teachers:
            batches = [said(teacher, batch) for batch in batches]
        if step == start:
            for objective in active:
                batches[0].require(objective.needs, objective.name)

        # A term's sum is divided by its count over the whole step, whatever the split into micro-batches and ranks.
        counts = _counted([*active, inner], batches)
        answered = [sum(one.answered(batch) for batch in batches) for one in active]
        pieces = sum(batch.dropped for batch in batches)
        regions = sum(batch.left_out for batch in batches)
        every = [pieces, regions, *answered, *counts.values()]
        totals = torch.tensor(every, device=accelerator.device)
        dropped, left_out, *summed = accelerator.reduce(totals, "sum")
        totals_by_head = dict(zip(names, summed, strict=False))
        totals_by_term = dict(zip(counts, summed[len(names) :], strict=True))
        counters.dropped += int(dropped)
        counters.left_out += int(left_out)

        def loss_of(
            terms: Terms, step: int = step, totals: Mapping[str, Tensor] = totals_by_term
        ) -> Tensor:
            parts = [
                module.weight(term, step) * value / _divisor(totals, term)
                for term, value in terms.items()
            ]
            if not parts:  # nothing to score: a loss of 0 that reaches the parameters all the same
                return sum((p.sum() * 0 for p in module.parameters()), torch.zeros(()))
            # DDP averages gradients over processes; the number of processes makes that a sum.
            loss: Tensor = torch.stack(parts).sum() * accelerator.num_processes
            return loss

        set_rates(optimizer, config, step, steps, plan.per_epoch)
        for number, batch in enumerate(batches):
            torch.manual_seed(
                seed_of(config.seed, "dropout", step, number, accelerator.process_index)
            )
            micro = MicroStep(
                batch,
                lambda changed, names=names: wrapped(changed, names, inner.compares),  # type: ignore[misc]
                loss_of,
                accelerator.backward,
                objectives[0].sizes,
                totals_by_head,
            )
            last = number == config.accumulate - 1
            with nullcontext() if last else accelerator.no_sync(wrapped), accelerator.autocast():
                terms = inner(micro)
            if not isinstance(terms, Mapping):
                raise InputError(
                    f"{type(inner).__name__}: an inner step returns its summed terms by name, not {described(terms)}"
                )
            log.add(terms, {term: module.weight(term, step) for term in terms})
        log.count(totals_by_term)
        norm = _clipped(accelerator, module, config)
        if accelerator.scaler is None and not math.isfinite(norm):
            raise InputError(
                f"step {step + 1}: the gradient's norm is {norm}; the last checkpoint is intact, "
                "lower --lr or use --precision fp32"
            )
        stepper.step()
        stepper.zero_grad(set_to_none=True)

        # -- log and save ----------------------------------------------------------------------------------------
        bar.update()
        done = step + 1
        counters.step = done
        counters.seconds = time.perf_counter() - began
        saving = done % config.save_every == 0 or done == steps
        if saving or done % config.log_every == 0:
            rate = optimizer.param_groups[0]["lr"]
            counters.last = log.write(done, lr=rate, norm=norm, seconds=counters.seconds)
            bar.set_postfix({term: f"{value:.3f}" for term, value in counters.last.items()})
        if saving:
            if accelerator.scaler is not None:
                counters.scaler = accelerator.scaler.state_dict()
            if accelerator.is_main_process:
                checkpoints.save(module, optimizer, counters)
            accelerator.wait_for_everyone()
    bar.close()
    for tracker in (
        accelerator.trackers
    ):  # not end_training(): it takes the process group down, and runs follow
        tracker.finish()
    return {
        "steps": steps,
        "epochs": round(plan.covered(), 4),
        "samples": sum(len(source.samples) for source in _different(sources)),
        "dropped_pieces": counters.dropped,
        "dropped_regions": counters.left_out,
        "seconds": round(counters.seconds, 1),
        "last": counters.last,
    }


def _accelerator(config: TrainConfig, out: Path) -> Accelerator:
    """Device, processes and precision; raises InputError if the batch cannot be split over them."""
    AcceleratorState._reset_state()  # or an earlier call's precision would bind this one; the process group stays
    accelerator = Accelerator(
        cpu=config.cpu,
        mixed_precision={"fp32": "no"}.get(config.precision, config.precision),
        log_with="tensorboard",
        project_dir=out,
        # Poolers, and objectives that sit a step out, get no gradient.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    processes = accelerator.num_processes
    if not config.batch_tokens and config.batch % (config.accumulate * processes):
        raise InputError(
            f"batch={config.batch} cannot be split into {config.accumulate} micro-batches on {processes} processes"
        )
    return accelerator


def _check_needs(
    sources: Sequence[Source], objectives: Sequence[Objective], config: TrainConfig
) -> None:
    """Raises InputError if an objective lacks an input; labels and features may still come, inputs cannot."""
    for source in sources:
        for samples in (source.samples, source.beside):
            if samples is None:
                continue
            plain = collate(samples.get([0], [generator(config.seed, "check")]))
            for objective in objectives:
                if scores(source, objective):
                    inputs = [name for name in objective.needs if "." not in name]
                    plain.require(inputs, objective.name)


def _batches(
    plan: Steps,
    objectives: Sequence[Objective],
    config: TrainConfig,
    accelerator: Accelerator,
    start: int,
) -> Iterator[Batch]:
    """This process's micro-batches from optimizer step `start` on."""
    rank, world = accelerator.process_index, accelerator.num_processes
    feed = Feed(plan, objectives, config.accumulate, rank, world)
    return iter(
        DataLoader(
            feed,
            batch_size=None,
            sampler=range(start * config.accumulate, len(feed)),
            num_workers=config.workers,
            pin_memory=accelerator.device.type == "cuda",
        )
    )


def _clipped(accelerator: Accelerator, module: nn.Module, config: TrainConfig) -> float:
    """Clip the step's gradient; its norm before that."""
    together = config.clip if config.clip and not config.clip_each else math.inf
    norm = float(accelerator.clip_grad_norm_(module.parameters(), together))
    if config.clip and config.clip_each:
        clip_each(module, config.clip)
    return norm


def _different(sources: Sequence[Source]) -> list[Source]:
    """Sources of different samples: UNITER lists one data set once for each objective."""
    return list({id(source.samples): source for source in sources}.values())


def _check_names(objectives: Sequence[Objective]) -> None:
    """Terms, heads and counts are kept by their objective's name, so two of one name would be mixed up."""
    for objective in objectives:
        if not objective.name:
            raise InputError(f"{type(objective).__name__}: this objective has no `name`")
    names = [objective.name for objective in objectives]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise InputError(
            f"two objectives are called {twice[0]!r}, of the model's own and the added ones; each may be there once"
        )


def _counted(counting: Sequence[Objective | InnerStep], batches: Sequence[Batch]) -> dict[str, int]:
    """Items of every term over all micro-batches of this process; InputError if two count the same term."""
    counts: dict[str, int] = {}
    for one in counting:
        own: dict[str, int] = {}
        for batch in batches:
            for term, count in one.count(batch).items():
                own[term] = own.get(term, 0) + count
        shared = sorted(own.keys() & counts.keys())
        if shared:
            raise InputError(
                f"two objectives, or one and the inner step, count the term {shared[0]!r}; each term needs a name"
            )
        counts.update(own)
    return counts


def _divisor(totals: Mapping[str, Tensor], term: str) -> Tensor | float:
    """What a term's sum is divided by: its count, 1 if there is none."""
    return totals[term].clamp(min=1) if term in totals else 1.0


class _Log:
    """Means of every term since the last line, over all processes; lines after the restart point are removed."""

    def __init__(self, path: Path, accelerator: Accelerator, step: int) -> None:
        self.path = path
        self.accelerator = accelerator
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}
        self.steps = 0
        if accelerator.is_main_process:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
                whole = [line for line in lines if line.endswith("}")]
                kept = [line for line in whole if json.loads(line)["step"] <= step]
                path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        accelerator.init_trackers("tensorboard")

    def add(self, terms: Terms, weights: Mapping[str, float]) -> None:
        """Adds a micro-batch's sums."""
        for term, value in terms.items():
            before = self.sums.get(term, torch.zeros_like(value, dtype=torch.float))
            self.sums[term] = before + value.detach().float()
        self.weights.update(weights)

    def count(self, counts: Mapping[str, Tensor]) -> None:
        """Ends an optimizer step: what each sum of it is divided by."""
        self.steps += 1
        for term, count in counts.items():
            self.counts[term] = self.counts.get(term, torch.zeros_like(count)) + count

    def _means(self) -> dict[str, float]:
        """Means over all processes, some of which may never have had a term; without a count, means over steps."""
        terms = list(self.sums)
        if self.accelerator.num_processes > 1:
            terms = sorted(set(gather_object(terms)))
        if not terms:
            return {}
        zero = torch.zeros((), device=self.accelerator.device)
        sums = torch.stack([self.sums.get(term, zero) for term in terms])
        totals = self.accelerator.reduce(sums, "sum").tolist()
        means = {}
        for term, total in zip(terms, totals, strict=True):
            means[term] = total / max(1.0, float(self.counts.get(term, self.steps)))
        return means

    def write(self, step: int, lr: float, norm: float, seconds: float) -> dict[str, float]:
        """Appends a line, and begins anew; returns the loss and every term's mean."""
        means = self._means()
        loss = sum(self.weights.get(term, 1.0) * mean for term, mean in means.items())
        if not math.isfinite(loss):
            raise InputError(
                f"step {step}: the loss is {loss}; the last checkpoint is intact, lower --lr or use --precision fp32"
            )
        if self.accelerator.is_main_process:
            measured = {
                "loss": loss,
                **means,
                "lr": lr,
                "grad_norm": norm,
                "seconds": round(seconds, 2),
            }
            with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **measured}) + "\n")
            self.accelerator.log(measured, step=step)
        self.sums = {}
        self.counts = {}
        self.steps = 0
        return {"loss": loss, **means}
