"""Heads of objectives, kept beside an exported encoder, from which a next run may start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils.hub import cached_file

from groundling.errors import InputError
from groundling.models.heads import LMHead, grown, lm_head_weights
from groundling.models.hub import local_only
from groundling.runs import disk_errors

HEADS = "groundling_heads.safetensors"
"""The file of the heads; transformers ignores it."""
LM_HEAD = "masked_lm.head"
"""What the masked-LM head of the text encoder itself is called there."""
JOINT_LM_HEAD = "joint_masked_lm.head"
"""What XDBERT's is called, which reads the text after the cross-modal encoder and says nothing of the encoder alone."""


def save_heads(folder: Path, heads: Mapping[str, nn.Module]) -> None:
    """Write heads, by what each is called, beside an exported model."""
    weights: dict[str, Tensor] = {}
    for name, head in heads.items():
        for key, value in head.state_dict().items():
            weights[f"{name}.{key}"] = value.detach().cpu().contiguous()
    with disk_errors(folder / HEADS):
        save_file(weights, folder / HEADS)


def start_lm_head(
    head: LMHead, source: str | Path, family: str, names: Sequence[str] = (LM_HEAD,)
) -> str:
    """Fill a masked-LM head from a hub id or folder; whose it is: `an earlier run's`, `the checkpoint's`, or `new`.

    `names` are what an earlier run may have called it, the first that is there is taken.
    """
    folder = _folder(source)
    if any(load_head(folder, head, name) for name in names):
        return "an earlier run's"
    return "the checkpoint's" if head.load(folder, family) else "new"


def start_layer(layer: nn.Module, source: str | Path, name: str, family: str) -> bool:
    """Fill a layer from a hub id or folder, where an earlier run called it `name`; False if there is none that fits.

    Layers of a masked-LM head come from the checkpoint's own if no earlier run left one, as VL-BERT's VQA head does
    (jackroos/VL-BERT, vqa/modules/resnet_vlbert_for_vqa.py).
    """
    folder = _folder(source)
    if load_head(folder, layer, name):
        return True
    before = layer.state_dict()
    prefix = f"{LM_HEAD}."
    if not name.startswith(prefix):
        return False
    part = f"{name.removeprefix(prefix)}."
    own = lm_head_weights(folder, family)
    weights = {key: own[part + key] for key in before if part + key in own}
    if len(weights) < len(before) or any(weights[k].shape != before[k].shape for k in before):
        return False
    layer.load_state_dict(weights)
    return True


def _folder(source: str | Path) -> Path:
    """Where the weights of a hub id or folder lie on this machine."""
    weights = cached_file(
        str(source),
        "model.safetensors",
        _raise_exceptions_for_missing_entries=False,
        _raise_exceptions_for_connection_errors=False,
        **local_only(source),
    )
    return Path(weights).parent if weights else Path(source)


def load_head(folder: Path, head: nn.Module, name: str) -> bool:
    """Fill a head from a folder written by `save_heads`, where it is called `name`; False if none there fits.

    Raises InputError if the file is damaged.
    """
    file = folder / HEADS
    if not file.exists():
        return False
    before = head.state_dict()
    try:
        with safe_open(file, framework="pt") as stored:
            names = {key: f"{name}.{key}" for key in before}
            if not set(names.values()) <= set(stored.keys()):
                return False
            weights = {
                key: grown(stored.get_tensor(stored_as), before[key])
                for key, stored_as in names.items()
            }
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file}: damaged or not safetensors ({error})") from None
    if any(weights[key].shape != before[key].shape for key in before):
        return False
    head.load_state_dict(weights)
    return True
