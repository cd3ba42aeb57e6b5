"""Settings of training and of evaluation during training, shared by several commands."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from annotated_types import Ge, Gt, Interval

from groundling.core.errors import InputError
from groundling.settings.fields import Settings, refuse_settings, settings


@settings
class TrainingArguments(Settings):
    """Optimisation."""

    steps: Annotated[int, Ge(0)] = 0
    """Number of optimizer steps; 0: use --epochs."""
    epochs: Annotated[float, Gt(0)] = 1.0
    """Passes over the data, if --steps is 0."""
    batch: Annotated[int, Ge(1)] = 32
    """Samples per optimizer step, over all processes and accumulated micro-batches."""
    batch_tokens: Annotated[int, Ge(0)] = 0
    """Instead of --batch: maximum tokens and regions, padding included, of a micro-batch on one \
process; an optimizer step has --gradient-accumulation-steps of them per process (UNITER). 0: use --batch."""
    gradient_accumulation_steps: Annotated[int, Ge(1)] = 1
    """Micro-batches per optimizer step and process; contrastive negatives come from the same \
micro-batch, unless --cached-negatives."""
    cached_negatives: bool = False
    """Contrastive negatives come from all micro-batches of the optimizer step: losses and gradients \
are those of one batch, for one more forward pass (GradCache, Gao et al. 2021)."""
    optimizer: Literal["adamw", "bertadam", "sgd", "muon"] = "adamw"
    """adamw; bertadam: Adam without bias correction (VisualBERT, XDBERT); sgd (VL-BERT on VCR); muon: Muon for the \
matrices of the model's layers, with updates as large as AdamW's, and adamw for embeddings, heads, norms and biases."""
    lr: Annotated[float, Ge(0)] = 1e-4
    """Peak learning rate."""
    betas: tuple[Annotated[float, Interval(ge=0, lt=1)], Annotated[float, Interval(ge=0, lt=1)]] = (
        0.9,
        0.999,
    )
    """adamw, bertadam, muon's adamw: decay rates of the two running means (UNITER: 0.9 0.98)."""
    epsilon: Annotated[float, Gt(0)] = 1e-8
    """adamw, bertadam: constant added to the denominator (UNITER, VL-BERT, VisualBERT: 1e-6)."""
    momentum: Annotated[float, Interval(ge=0, lt=1)] = 0.9
    """sgd: momentum (VL-BERT on VCR: 0.9)."""
    schedule: Literal["linear", "cosine", "constant", "steps"] = "linear"
    """Learning-rate schedule after warm-up; steps: constant, multiplied by --milestone-factor at \
each of --milestones."""
    milestones: tuple[Annotated[float, Ge(0)], ...] = ()
    """--schedule steps: epochs after which the learning rate is multiplied by --milestone-factor \
(VL-BERT on VCR: 14 18)."""
    milestone_factor: Annotated[float, Ge(0)] = 0.1
    """--schedule steps: factor on the learning rate at each milestone (VL-BERT: 0.1)."""
    warmup_ratio: Annotated[float, Interval(ge=0, le=1)] = 0.05
    """Share of the schedule's steps in which the learning rate grows linearly from 0."""
    warmup_steps: Annotated[int, Ge(0)] = 0
    """Number of warm-up steps, instead of --warmup-ratio; 0: use --warmup-ratio."""
    schedule_steps: Annotated[int, Ge(0)] = 0
    """Number of steps of the learning-rate schedule; 0: the steps of the run. XDBERT's code: 139600."""
    weight_decay: Annotated[float, Ge(0)] = 0.01
    """Weight decay, decoupled except for sgd; not applied to biases and LayerNorms."""
    decay_bias_and_norm: bool = False
    """Apply weight decay to biases and LayerNorms too (code of VL-BERT and XDBERT)."""
    head_lr: Annotated[float, Ge(0)] = 1.0
    """Learning rate of the objectives' heads, as a multiple of --lr. Layers inside the model are \
not heads, even if new: XDBERT's cross-modal layers, the projection of visual_token_mlm."""
    freeze_encoder_steps: Annotated[int, Ge(0)] = 0
    """Steps in which only the heads (see --head-lr) are trained; warm-up of the encoder begins after \
them. 0: use --freeze-encoder-ratio."""
    freeze_encoder_ratio: Annotated[float, Interval(ge=0, lt=1)] = 0.0
    """Share of the schedule's steps in which only the heads (see --head-lr) are trained."""
    max_grad_norm: Annotated[float, Ge(0)] = 1.0
    """Maximum gradient norm; 0: no clipping."""
    clip_per_tensor: bool = False
    """Clip the gradient of each tensor separately instead of the global norm (VisualBERT's code)."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Precision of forward passes; weights stay in fp32. auto: bf16 on a GPU that supports it, with \
TF32 for what stays in fp32; otherwise fp32."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about 1.4 times the time, the same \
numbers (docs/running.md)."""
    packing: bool = False
    """Text encoders read all texts of a batch in one row, without padding: the same numbers up to \
rounding, but dropout draws differ. For lines of unequal length; not with --compile."""
    seed: Annotated[int, Ge(0)] = 0
    """Random seed."""
    compile: bool = False
    """Compile each layer (torch.compile, dynamic shapes): the first steps take up to a minute, later ones are faster. \
Numbers are equal up to rounding, but dropout draws differ. For runs on a GPU."""
    workers: Annotated[int, Ge(-1)] = -1
    """Data-loading processes per training process; results do not depend on it. -1: none on a \
CPU, up to 4 with an accelerator."""
    save_every: Annotated[int, Ge(1)] = 500
    """Steps between checkpoints, from which a killed run resumes."""
    log_every: Annotated[int, Ge(1)] = 10
    """Steps between lines of log.jsonl."""
    measure_peak: bool = False
    """Measure the peak of matrix products on this device for a second, for the MFU in every line \
of the log; off: the peak of a known GPU, and no MFU elsewhere (docs/performance.md)."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""

    def __post_init__(self) -> None:
        is_increasing = list(self.milestones) == sorted(self.milestones)
        if (self.schedule == "steps") != bool(self.milestones) or not is_increasing:
            raise InputError("schedule=steps, and only that, needs milestones, increasing epochs")
        if self.packing and self.compile:  # each batch would be compiled anew
            raise InputError("packing: not with compile")
        if (
            self.cached_negatives and self.compile
        ):  # a compiled pass without gradient may draw other dropout
            raise InputError("cached_negatives: not with compile")

    @property
    def batch_size(self) -> str:
        """The batch size in words."""
        return f"{self.batch_tokens} tokens" if self.batch_tokens else str(self.batch)


WITHOUT_EFFECT = ("train.workers", "train.save_every", "train.log_every", "train.measure_peak")
"""Settings of a command's training on which no weight depends, so that a run may be resumed with others."""


def count_steps(epochs: float, per_epoch: float) -> int:
    """Optimizer steps of a run of so many epochs, with `per_epoch` steps in each."""
    # Round to ten digits first, so that a ratio of 1/6 does not lose a step to rounding errors.
    return max(1, math.floor(round(epochs * per_epoch, 10)))


@settings
class EvaluationSettings(Settings):
    """Evaluation on held-out data during training, and early stopping."""

    eval_every: Annotated[float, Ge(0)] = 0.0
    """Epochs between evaluations, such as 1 or 0.25; 0: evaluate only at the end. What is evaluated: finetune: the \
task's first development split; adapt: the loss on --eval-text; pretrain and train-clip: the loss and retrieval, \
respectively, on --eval-captions, --eval-image-list or --eval-splits."""
    keep_best: bool = False
    """--eval-every: save the weights with the best evaluation score, which then has selection \
bias; off: save those of the last step, as in the papers."""
    patience: Annotated[int, Ge(0)] = 0
    """--eval-every: stop after this many evaluations without improvement; 0: never stop early."""

    def __post_init__(self) -> None:
        if not self.eval_every:
            refuse_settings(self, "needs eval_every=EPOCHS, more than 0", "keep_best", "patience")
