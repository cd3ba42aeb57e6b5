"""Settings of a run, as dataclasses; their docstrings are the command line's help. Imports nothing heavy."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class TrainConfig:
    """How `train` optimises."""

    steps: int = 0
    """Optimizer steps; 0 means `epochs` decides."""
    epochs: float = 1.0
    """Passes over the data, if `steps` is 0."""
    batch: int = 32
    """Samples per optimizer step, over all processes and accumulation."""
    accumulate: int = 1
    """Micro-batches per optimizer step and process."""
    lr: float = 1e-4
    """Peak learning rate of AdamW."""
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    """Course of the learning rate after warm-up."""
    warmup: float = 0.05
    """Share of the schedule's steps in which the learning rate grows from 0."""
    horizon: int = 0
    """Steps over which the schedule is laid out; 0 means the steps of the run. XDBERT's code: 139600."""
    weight_decay: float = 0.01
    """Decoupled weight decay; biases and LayerNorms are spared."""
    head_lr: float = 1.0
    """Learning rate of the objectives' heads, as a multiple of `lr`."""
    head_start: int = 0
    """Steps in which only the heads are trained; warm-up of everything else begins after them."""
    clip: float = 1.0
    """Largest gradient norm."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward passes; weights stay fp32."""
    seed: int = 0
    """Seed of every random choice."""
    workers: int = 0
    """Data-loading processes per training process; results do not depend on it."""
    save_every: int = 500
    """Steps between checkpoints from which a killed run goes on."""
    log_every: int = 10
    """Steps between lines of log.jsonl."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""
