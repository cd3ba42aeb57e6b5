"""How models are trained, and evaluated on the way: settings that several commands have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from groundling.core.errors import InputError
from groundling.settings.fields import (
    InvalidSettingError,
    Settings,
    above,
    at_least,
    between,
    format_value,
    refuse_settings,
)


@dataclass(frozen=True)
class TrainConfig(Settings):
    """How `train` optimises."""

    steps: Annotated[int, at_least(0)] = 0
    """Optimizer steps; 0 means `epochs` decides."""
    epochs: Annotated[float, above(0)] = 1.0
    """Passes over the data, if `steps` is 0."""
    batch: Annotated[int, at_least(1)] = 32
    """Samples per optimizer step, over all processes and accumulation."""
    batch_tokens: Annotated[int, at_least(0)] = 0
    """In place of --batch: most tokens (pieces and regions, padding included) of a micro-batch of one process; an \
optimizer step has --gradient-accumulation-steps of them on every process (UNITER); 0: --batch counts."""
    gradient_accumulation_steps: Annotated[int, at_least(1)] = 1
    """Micro-batches per optimizer step and process; contrastive terms take their negatives from one of them."""
    optimizer: Literal["adamw", "bertadam", "sgd"] = "adamw"
    """adamw; bertadam, which does not correct the first steps' bias (VisualBERT, XDBERT); sgd (VL-BERT's VCR)."""
    lr: Annotated[float, at_least(0)] = 1e-4
    """Peak learning rate."""
    betas: Annotated[tuple[float, float], at_least(0, below=1)] = (0.9, 0.999)
    """adamw, bertadam: decay of the two running means (UNITER: 0.9 0.98)."""
    epsilon: Annotated[float, above(0)] = 1e-8
    """adamw, bertadam: added to the denominator (UNITER, VL-BERT, VisualBERT: 1e-6)."""
    momentum: Annotated[float, at_least(0, below=1)] = 0.9
    """sgd: momentum (VL-BERT's VCR: 0.9)."""
    schedule: Literal["linear", "cosine", "constant", "steps"] = "linear"
    """Course of the learning rate after warm-up; steps: constant, and multiplied at every one of --milestones."""
    milestones: Annotated[tuple[float, ...], at_least(0)] = ()
    """--schedule steps: epochs after which the learning rate is multiplied (VL-BERT's VCR: 14 18)."""
    milestone_factor: Annotated[float, at_least(0)] = 0.1
    """--schedule steps: by what it is multiplied (VL-BERT: 0.1)."""
    warmup_ratio: Annotated[float, between(0, 1)] = 0.05
    """Share of the schedule's steps in which the learning rate grows from 0."""
    warmup_steps: Annotated[int, at_least(0)] = 0
    """Steps in which the learning rate grows from 0, in place of that share; 0: the share counts."""
    schedule_steps: Annotated[int, at_least(0)] = 0
    """Steps over which the schedule is laid out; 0 means the steps of the run. XDBERT's code: 139600."""
    weight_decay: Annotated[float, at_least(0)] = 0.01
    """Weight decay (of sgd part of the gradient, otherwise apart from it); biases and LayerNorms are spared."""
    decay_bias_and_norm: bool = False
    """Let weights decay everywhere, in biases and LayerNorms too (the code of VL-BERT and XDBERT)."""
    head_lr: Annotated[float, at_least(0)] = 1.0
    """Learning rate of the objectives' heads, as a multiple of `lr`."""
    freeze_encoder_steps: Annotated[int, at_least(0)] = 0
    """Steps in which only the heads are trained; warm-up of everything else begins after them; 0: --freeze-encoder-ratio \
counts."""
    freeze_encoder_ratio: Annotated[float, at_least(0, below=1)] = 0.0
    """The same as a share of the schedule's steps."""
    max_grad_norm: Annotated[float, at_least(0)] = 1.0
    """Largest gradient norm; 0: gradients are not clipped."""
    clip_per_tensor: bool = False
    """Clip the gradient of every tensor by itself, in place of all together (VisualBERT's code)."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Arithmetic of forward passes; weights stay fp32."""
    gradient_checkpointing: bool = False
    """Keep less of the forward pass and compute it again in the backward pass: less memory, more time (about 1.4 \
times), the same numbers (docs/running.md)."""
    seed: Annotated[int, at_least(0)] = 0
    """Seed of every random choice."""
    compile: bool = False
    """Compile the model's passes (torch.compile, of any shape): minutes before the first steps, faster ones after \
them, numbers equal up to rounding but for dropout, which draws others; for long runs on a GPU."""
    workers: Annotated[int, at_least(-1)] = -1
    """Data-loading processes per training process; results do not depend on it. -1: none on a CPU, up to 4 of its \
cores where there is an accelerator."""
    save_every: Annotated[int, at_least(1)] = 500
    """Steps between checkpoints from which a killed run resumes."""
    log_every: Annotated[int, at_least(1)] = 10
    """Steps between lines of log.jsonl."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.schedule == "steps") != bool(self.milestones):
            raise InputError("--schedule steps and --milestones (epochs) need each other")
        if list(self.milestones) != sorted(self.milestones):
            raise InvalidSettingError(
                "milestones",
                f" = {format_value(self.milestones)}, expected rising numbers of epochs",
            )

    @property
    def batch_size(self) -> str:
        """What a batch is, in words."""
        return f"{self.batch_tokens} tokens" if self.batch_tokens else str(self.batch)


@dataclass(frozen=True)
class EvaluationSettings(Settings):
    """Evaluation on held-out data while training, and what follows from it."""

    eval_every: Annotated[float, at_least(0)] = 0.0
    """Epochs from one evaluation to the next, such as 1 or 0.25; 0: none until the end. On finetune: the task's first \
development split; adapt: the loss on --eval-text; pretrain: that on --eval-captions, --eval-image-list or --eval-splits; \
teach: retrieval on these."""
    keep_best: bool = False
    """--eval-every: which weights are kept: those of the last step, as the papers have it, or those that scored best \
there, whose score there is flattered by the choice."""
    patience: Annotated[int, at_least(0)] = 0
    """--eval-every: stop after so many evaluations that were no better than the best one; 0: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.eval_every:
            asked = {"--keep-best": self.keep_best, "--patience": self.patience}
            refuse_settings(asked, "needs --eval-every EPOCHS, more than 0")


def check_has_eval_data(examining: EvaluationSettings, is_held: bool, flags: str) -> None:
    """Raises InputError for evaluation on the way without data for it; `flags` say what to pass."""
    if examining.eval_every and not is_held:
        raise InputError(f"--eval-every: nothing is held out to evaluate on; pass {flags}")


@dataclass(frozen=True)
class HubSettings(Settings):
    """Where on Hugging Face's hub a saved model goes."""

    push_to_hub: str = ""
    """OWNER/NAME: upload the saved model there after the run, with a card of how it was made, as `groundling push` \
does; of several seeds the best on dev; empty: nothing leaves this machine."""
    private: bool = False
    """--push-to-hub: make a new repository private; otherwise it is public, unless the owner's own default says \
otherwise. One that is there stays as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.push_to_hub:
            refuse_settings({"--private": self.private}, "needs --push-to-hub OWNER/NAME")
