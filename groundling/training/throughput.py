"""How fast a run trains: real tokens, padding, and the share of the device's peak that the model's FLOPs make (MFU)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_flop

from groundling.core.batch import Batch
from groundling.models.heads import LMHead
from groundling.objectives import Objective

PEAKS: Mapping[str, tuple[float, float, float]] = {
    "B200": (2250, 1125, 75),
    "H200 NVL": (835, 417, 60),
    "H200": (989, 494, 67),
    "GH200": (989, 494, 67),
    "H100 NVL": (835, 417, 60),
    "H100 PCIe": (756, 378, 51),
    "H100": (989, 494, 67),
    "A100": (312, 156, 19.5),
    "L40S": (362, 183, 91.6),
    "L40": (181, 90.5, 90.5),
    "L4": (121, 60, 30.3),
    "A10G": (70, 35, 31.2),
    "V100": (125, 15.7, 15.7),
    "T4": (65, 8.1, 8.1),
}
"""TFLOPS of a GPU without sparsity: half precision, TF32 (fp32 where a GPU has none), and fp32, from NVIDIA's data \
sheets; the first entry counts whose words are all in the GPU's name."""
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""Data types of products in mixed precision, by accelerate's name."""
_PAIRS = ("attention", "bmm", "baddbmm")
"""Parts of names of operations whose work grows with the square of the length."""


class Volume(NamedTuple):
    """What a model reads in a batch, without padding except in `positions`; sums over rows."""

    tokens: int
    """Tokens and regions; those of a text encoder and of a CLIP tower both count."""
    positions: int
    """The same with padding."""
    pairs: int
    """Squares of the lengths of all sequences."""
    images: int
    """Images that are read as pixels."""

    @staticmethod
    def of(batch: Batch, padded: bool = False) -> Volume:
        """The volume of a batch in host memory; `padded`: as if padding were tokens."""
        masks = []
        joint = [one for one in (batch.text, batch.regions) if one is not None]
        if joint:  # a row's tokens and regions attend to each other
            each = [one.mask if hasattr(one, "mask") else one.attention_mask for one in joint]
            masks.append(torch.cat(each, 1))
        if batch.clip is not None:
            masks.append(batch.clip.attention_mask)
        sizes = [(torch.ones_like(mask) if padded else mask).sum(1) for mask in masks]
        return Volume(
            sum(int(size.sum()) for size in sizes),
            sum(mask.numel() for mask in masks),
            sum(int((size**2).sum()) for size in sizes),
            0 if batch.pixels is None else len(batch.pixels),
        )


class Work(NamedTuple):
    """FLOPs of training a model, forward and backward."""

    token: float
    """Per token or region: products with weights."""
    pair: float
    """Per pair of positions that attend to each other."""
    image: float
    """Per image: everything inside of a module that reads pixels, and convolutions."""

    def of(self, volume: Volume) -> float:
        """FLOPs of a batch, without padding."""
        sides = zip(self, (volume.tokens, volume.pairs, volume.images), strict=True)
        return sum(each * number for each, number in sides)


def model_work(model: nn.Module, batch: Batch) -> Work:
    """Count the FLOPs of a model by a forward pass over a batch, in evaluation mode and not compiled.

    A backward pass is twice the forward pass of what trains (Chowdhery et al. 2022, Appendix B); of what is frozen, the
    forward pass alone counts. Leaves the model in evaluation mode.
    """
    model.eval()
    counter = _FlopCounter()
    towers = [one for one in model.modules() if _reads_pixels(one)]
    hooks = [one.register_forward_pre_hook(counter.enter_image) for one in towers]
    hooks += [one.register_forward_hook(counter.leave_image) for one in towers]
    eager = torch.compiler.set_stance("force_eager")
    try:
        with eager, torch.no_grad(), torch.autocast(batch.device.type, enabled=False), counter:
            model(batch)
    finally:
        for hook in hooks:
            hook.remove()
    inside = {id(one) for tower in towers for one in tower.parameters()}
    parameters = list(model.parameters())
    text = 1 + 2 * _trained_share([one for one in parameters if id(one) not in inside])
    image = 1 + 2 * _trained_share([one for one in parameters if id(one) in inside or one.ndim > 3])
    volume = Volume.of(batch.cpu_copy, padded=True)
    return Work(
        text * counter.flops["token"] / max(1, volume.tokens),
        text * counter.flops["pair"] / max(1, volume.pairs),
        image * counter.flops["image"] / max(1, volume.images),
    )


def head_work(objective: Objective) -> float:
    """FLOPs of an objective's head for an item that it scores: its matrices and the vocabulary."""
    tables = {id(one.weight) for one in objective.modules() if isinstance(one, nn.Embedding)}
    values = [one for one in objective.parameters() if one.ndim > 1 and id(one) not in tables]
    tied = [one for one in objective.modules() if isinstance(one, LMHead) and one.is_tied]
    trained = sum(one.numel() for one in values if one.requires_grad)
    frozen = sum(one.numel() for one in values if not one.requires_grad)
    trained += sum(one.config.vocab_size * _table_width(one) for one in tied)
    return float(6 * trained + 2 * frozen)


def scored_items(counts: Mapping[str, int]) -> int:
    """Number of items that an objective's head scores in a batch, from the items of each of its terms."""
    return max(counts.values(), default=0)


def _table_width(head: LMHead) -> int:
    config = head.config
    return int(getattr(config, "embedding_size", config.hidden_size))


def _reads_pixels(module: nn.Module) -> bool:
    return getattr(module, "main_input_name", "") == "pixel_values"


def _trained_share(parameters: Sequence[nn.Parameter]) -> float:
    matrices = [one for one in parameters if one.ndim > 1]
    trained = sum(one.numel() for one in matrices if one.requires_grad)
    return trained / max(1, sum(one.numel() for one in matrices))


class _FlopCounter(TorchDispatchMode):
    """Adds up the FLOPs of products by what they grow with."""

    def __init__(self) -> None:
        super().__init__()
        self.flops: Counter[str] = Counter()
        self.towers = 0
        aten = torch.ops.aten
        fused = aten._scaled_dot_product_flash_attention_for_cpu
        self.formulas = {**flop_registry, fused: _fused_on_processors}

    def enter_image(self, *_: Any) -> None:
        self.towers += 1

    def leave_image(self, *_: Any) -> None:
        self.towers -= 1

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        formula = self.formulas.get(function.overloadpacket)
        if formula is not None:
            name = str(function.overloadpacket)
            kind = "pair" if any(part in name for part in _PAIRS) else "token"
            if self.towers or "convolution" in name:
                kind = "image"
            self.flops[kind] += formula(*args, **(kwargs or {}), out_val=result)
        return result


def _fused_on_processors(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> int:
    return int(sdpa_flop(q.shape, k.shape, v.shape))


def speed_of(timed: Sequence[float], tokens: int, positions: int, peak: float) -> dict[str, float]:
    """Tokens per second, share of padding, and MFU: FLOPS over all devices' peak; without what is not known.

    `timed`: tokens, kFLOPs and seconds; `tokens` and `positions`: those that padding is a share of.
    """
    speed = {}
    some, work, seconds = timed
    if positions and seconds:
        speed["tokens_per_second"] = round(some / seconds, 1)
        speed["padding"] = round(1 - tokens / positions, 4)
    if peak and work:
        speed["mfu"] = round(1e3 * work / seconds / peak, 4)
    return speed


def known_peak(device: torch.device, precision: str) -> float:
    """FLOPS that a GPU reaches at best in products of this precision (fp32: with TF32 if it is on); 0 if unknown."""
    if device.type != "cuda":
        return 0.0
    words = set(torch.cuda.get_device_name(device).replace("-", " ").split())
    # A part of a GPU has a part of its peak.
    rates = [] if "MIG" in words else [one for key, one in PEAKS.items() if words >= {*key.split()}]
    column = 0 if precision in DTYPES else 1 if _has_tf32() else 2
    return 1e12 * rates[0][column] if rates else 0.0


def _has_tf32() -> bool:
    return torch.get_float32_matmul_precision() != "highest"


def measure_peak(device: torch.device, precision: str) -> float:
    """FLOPS of products of square matrices on a device, the best of five tries of at least a tenth of a second."""
    side = 8192 if device.type == "cuda" else 1024
    dtype = DTYPES.get(precision, torch.float32)
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    number, best = 1, 0.0
    while True:
        tries = [_seconds(lambda: left @ right, number, device) for _ in range(5)]
        best = max(best, 2 * side**3 * number / min(tries))
        if min(tries) > 0.1:
            return best
        number *= 2


def _seconds(product: Callable[[], object], number: int, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    for _ in range(number):
        product()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began
