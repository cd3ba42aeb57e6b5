"""The one loop. Pre-training, adaptation, distillation and fine-tuning differ in what is passed to it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from accelerate.utils import DistributedDataParallelKwargs
from torch import Tensor, nn
from torch.utils.data import DataLoader
from tqdm import tqdm

from groundling.batch import Batch, collate
from groundling.checkpoint import Checkpoints
from groundling.config import TrainConfig
from groundling.data.samples import Samples
from groundling.errors import InputError
from groundling.feed import Feed, Plan, Source
from groundling.keyed import generator, seed_of
from groundling.objectives import Objective
from groundling.runs import disk_errors

Terms = Mapping[str, Tensor]
Inner = Callable[
    [nn.Module, Batch, Sequence[str], Callable[[Terms], Tensor], Callable[[Tensor], None]], Terms
]


class Step(nn.Module):
    """A model and its objectives as one module, so that DDP sees every parameter that trains."""

    def __init__(self, model: nn.Module, objectives: Sequence[Objective]) -> None:
        super().__init__()
        self.model, self.objectives = model, nn.ModuleList(objectives)

    def forward(self, batch: Batch, active: Sequence[str]) -> dict[str, Tensor]:
        """Summed loss terms of the active objectives; the model runs once."""
        encoded = self.model(batch)
        terms: dict[str, Tensor] = {}
        for objective in self.objectives:
            if objective.name in active:
                terms.update(objective(encoded, batch))
        return terms


def once(
    step: nn.Module,
    batch: Batch,
    active: Sequence[str],
    loss_of: Callable[[Terms], Tensor],
    backward: Callable[[Tensor], None],
) -> Terms:
    """The ordinary inner step: one forward, one backward. Adversarial training passes its own in its place."""
    terms = step(batch, active)
    backward(loss_of(terms))
    return terms


def train(
    model: nn.Module,
    objectives: Sequence[Objective],
    data: Samples | Sequence[Source],
    config: TrainConfig,
    out: str | Path,
    *,
    teachers: Sequence[Any] = (),
    inner: Inner = once,
) -> dict[str, Any]:
    """Train `model` in place with the weighted sum of all objectives' terms; returns the last means and counters.

    `data` is one data set or several `Source`s, one of which is drawn per step. `teachers` are frozen callables
    `Batch -> Batch` with `.to(device)`; they are neither saved nor trained. `out` receives `log.jsonl`, `tensorboard/`
    and the checkpoints from which the same call goes on after a kill, bit-equal on one kind of machine. Launch through
    `torchrun` or `accelerate launch` for several processes. Raises InputError on a loss that is not a number.
    """
    out = Path(out)
    sources = list(data) if isinstance(data, Sequence) else [Source(data)]
    steps = _steps(sources, config)

    # -- set-up ------------------------------------------------------------------------------------------------------
    AcceleratorState._reset_state()  # or an earlier call's precision would bind this one; the process group stays
    accelerator = Accelerator(
        cpu=config.cpu,
        mixed_precision={"fp32": "no"}.get(config.precision, config.precision),
        log_with="tensorboard",
        project_dir=out,
        # Poolers, and objectives that sit a step out, get no gradient.
        kwargs_handlers=[DistributedDataParallelKwargs(find_unused_parameters=True)],
    )
    world, rank = accelerator.num_processes, accelerator.process_index
    if config.batch % (config.accumulate * world):
        raise InputError(
            f"batch={config.batch} cannot be split into {config.accumulate} micro-batches on {world} processes"
        )
    for source in sources:
        plain = collate(source.samples.get([0], [generator(config.seed, "check")]))
        for objective in objectives:
            if source.objectives is None or objective.name in source.objectives:
                # Labels and features may still come, from corruption and teachers; inputs cannot.
                plain.require([need for need in objective.needs if "." not in need], objective.name)
    swapping = [o.name for o in objectives if o.swaps]
    if teachers and swapping:
        raise InputError(
            f"{swapping[0]} exchanges inputs that a teacher would read; wrap the data in `Taught` instead"
        )
    plan = Plan(sources, config.batch, steps, config.seed)
    feed = Feed(plan, objectives, config.accumulate, rank, world)
    module = Step(model, objectives).to(accelerator.device)
    optimizer = torch.optim.AdamW(_groups(module, config), lr=config.lr, fused=True)
    checkpoints = Checkpoints(out / "checkpoints")
    counters = checkpoints.restore(module, optimizer) or {
        "step": 0,
        "dropped": 0,
        "seconds": 0.0,
        "last": {},
    }
    wrapped, stepper = accelerator.prepare(module, optimizer)
    if counters.get("scaler") and accelerator.scaler is not None:
        accelerator.scaler.load_state_dict(counters["scaler"])
    for teacher in teachers:
        teacher.to(accelerator.device)
    log = _Log(out / "log.jsonl", accelerator, counters["step"])
    start = counters["step"]
    micro_batches = iter(
        DataLoader(
            feed,
            batch_size=None,
            sampler=range(start * config.accumulate, len(feed)),
            num_workers=config.workers,
            pin_memory=accelerator.device.type == "cuda",
        )
    )
    module.train()
    began = time.perf_counter() - counters["seconds"]
    bar = tqdm(
        total=steps,
        initial=start,
        disable=None if accelerator.is_main_process else True,
        unit="step",
    )

    # -- the loop ----------------------------------------------------------------------------------------------------
    for step in range(start, steps):
        source = sources[plan[step].source]
        active = [
            o.name for o in objectives if source.objectives is None or o.name in source.objectives
        ]
        batches = [
            next(micro_batches).to(accelerator.device, non_blocking=True)
            for _ in range(config.accumulate)
        ]
        for teacher in teachers:
            batches = [teacher(batch) for batch in batches]
        if step == start:
            for objective in objectives:
                if objective.name in active:
                    batches[0].require(objective.needs, objective.name)

        # A term's sum is divided by its count over the whole step, whatever the split into micro-batches and ranks.
        counts, weights = _counts(objectives, active, batches, step)
        mine = [*counts.values(), sum(batch.dropped for batch in batches)]
        *totals, dropped = accelerator.reduce(torch.tensor(mine, device=accelerator.device), "sum")
        divisor = {term: total.clamp(min=1) for term, total in zip(counts, totals, strict=True)}
        counters["dropped"] += int(dropped)

        def loss_of(
            terms: Terms, weights: dict[str, float] = weights, divisor: dict[str, Tensor] = divisor
        ) -> Tensor:
            # DDP averages gradients over processes; `world` makes that a sum.
            return (
                torch.stack([weights[t] * value / divisor[t] for t, value in terms.items()]).sum()
                * world
            )

        for group in optimizer.param_groups:
            group["lr"] = (
                config.lr * group["scale"] * _rate(step, steps, config, head=group["head"])
            )
        for micro, batch in enumerate(batches):
            torch.manual_seed(seed_of(config.seed, "dropout", step, micro, rank))
            last = micro == config.accumulate - 1
            with nullcontext() if last else accelerator.no_sync(wrapped), accelerator.autocast():
                terms = inner(wrapped, batch, active, loss_of, accelerator.backward)
            log.add(terms, divisor if micro == 0 else {}, weights)
        norm = accelerator.clip_grad_norm_(module.parameters(), config.clip)
        if accelerator.scaler is None and not math.isfinite(float(norm)):
            raise InputError(
                f"step {step + 1}: the gradient's norm is {float(norm)}; the last checkpoint is intact, "
                "lower --lr or use --precision fp32"
            )
        stepper.step()
        stepper.zero_grad(set_to_none=True)

        # -- log and save ----------------------------------------------------------------------------------------
        bar.update()
        done = step + 1
        counters["step"], counters["seconds"] = done, time.perf_counter() - began
        if done % config.log_every == 0 or done == steps or done % config.save_every == 0:
            rate = optimizer.param_groups[0]["lr"]
            counters["last"] = log.write(
                done, lr=rate, norm=float(norm), seconds=counters["seconds"]
            )
            bar.set_postfix({k: f"{v:.3f}" for k, v in counters["last"].items()})
        if done % config.save_every == 0 or done == steps:
            if accelerator.scaler is not None:
                counters["scaler"] = accelerator.scaler.state_dict()
            if accelerator.is_main_process:
                checkpoints.save(
                    done, module, optimizer, {k: v for k, v in counters.items() if k != "step"}
                )
            accelerator.wait_for_everyone()
    bar.close()
    for tracker in (
        accelerator.trackers
    ):  # not end_training(): it takes the process group down, and runs go on
        tracker.finish()
    return {
        "steps": steps,
        "epochs": round(plan.covered(), 4),
        "samples": sum(len(s.samples) for s in sources),
        "dropped_pieces": counters["dropped"],
        "seconds": round(counters["seconds"], 1),
        "last": counters["last"],
    }


def _steps(sources: Sequence[Source], config: TrainConfig) -> int:
    if config.steps:
        return config.steps
    samples = sum(len(s.samples) for s in sources)
    return max(1, math.floor(config.epochs * samples / config.batch))


def _groups(module: Step, config: TrainConfig) -> list[dict[str, Any]]:
    """Parameter groups: weights and no-decay parameters of the model and of the heads."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in module.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((name.startswith("objectives."), parameter.ndim > 1), []).append(
                parameter
            )
    return [
        {
            "params": parameters,
            "weight_decay": config.weight_decay if decays else 0.0,
            "scale": config.head_lr if head else 1.0,
            "head": head,
        }
        for (head, decays), parameters in groups.items()
    ]


def _rate(step: int, steps: int, config: TrainConfig, head: bool) -> float:
    """Learning rate at a step, as a share of its peak."""
    delay = 0 if head else config.head_start
    at, span = step - delay, max(1, (config.horizon or steps) - delay)
    if at < 0:
        return 0.0
    warm = round(config.warmup * span)
    if at < warm:
        return (at + 1) / warm
    progress = min(1.0, (at - warm) / max(1, span - warm))
    return {
        "linear": 1 - progress,
        "cosine": (1 + math.cos(math.pi * progress)) / 2,
        "constant": 1.0,
    }[config.schedule]


def _counts(
    objectives: Sequence[Objective], active: Sequence[str], batches: Sequence[Batch], step: int
) -> tuple[dict[str, int], dict[str, float]]:
    counts: dict[str, int] = {}
    weights: dict[str, float] = {}
    for objective in objectives:
        if objective.name in active:
            for batch in batches:
                for term, count in objective.count(batch).items():
                    counts[term] = counts.get(term, 0) + count
                    weights[term] = objective.weight_at(step)
    return counts, weights


class _Log:
    """Means of every term since the last line, over all processes; lines after the restart point are removed."""

    def __init__(self, path: Path, accelerator: Accelerator, step: int) -> None:
        self.path, self.accelerator = path, accelerator
        self.sums: dict[str, Tensor] = {}
        self.counts: dict[str, Tensor] = {}
        self.weights: dict[str, float] = {}
        if accelerator.is_main_process:
            with disk_errors(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
                kept = [
                    line
                    for line in lines
                    if line.endswith("}") and json.loads(line)["step"] <= step
                ]
                path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
        accelerator.init_trackers("tensorboard")

    def add(self, terms: Terms, counts: Mapping[str, Tensor], weights: Mapping[str, float]) -> None:
        for term, value in terms.items():
            self.sums[term] = (
                self.sums.get(term, torch.zeros_like(value, dtype=torch.float))
                + value.detach().float()
            )
        for term, count in counts.items():
            self.counts[term] = self.counts.get(term, torch.zeros_like(count)) + count
        self.weights.update(weights)

    def write(self, step: int, lr: float, norm: float, seconds: float) -> dict[str, float]:
        sums = self.accelerator.reduce(torch.stack(list(self.sums.values())), "sum").tolist()
        means = {
            term: total / float(self.counts[term])
            for term, total in zip(self.sums, sums, strict=True)
        }
        loss = sum(self.weights[term] * mean for term, mean in means.items())
        if not math.isfinite(loss):
            raise InputError(
                f"step {step}: the loss is {loss}; the last checkpoint is intact, lower --lr or use --precision fp32"
            )
        if self.accelerator.is_main_process:
            line = {
                "step": step,
                "loss": loss,
                **means,
                "lr": lr,
                "grad_norm": norm,
                "seconds": round(seconds, 2),
            }
            with disk_errors(self.path), self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
            self.accelerator.log({k: v for k, v in line.items() if k != "step"}, step=step)
        self.sums, self.counts = {}, {}
        return {"loss": loss, **means}
