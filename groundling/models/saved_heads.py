"""Heads of objectives, kept beside an exported encoder, from which a next run may start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers.utils.hub import cached_file

from groundling.core.errors import reading
from groundling.models.heads import LMHead, grown, lm_head_weights
from groundling.models.hub import local_only
from groundling.runs.folder import disk_errors

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
    for name in ("model.safetensors", "model.safetensors.index.json"):
        weights = cached_file(
            str(source),
            name,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=False,
            **local_only(source),
        )
        if weights:
            return Path(weights).parent
    return Path(source)


def load_head(folder: Path, head: nn.Module, name: str) -> bool:
    """Fill a head from a folder written by `save_heads`, where it is called `name`; False if none there fits.

    Raises InputError if the file is damaged.
    """
    file = folder / HEADS
    if not file.exists():
        return False
    prefix = f"{name}."
    with reading(file), safe_open(file, framework="pt") as stored:
        keys = [key for key in list(stored.keys()) if key.startswith(prefix)]
        weights = {key.removeprefix(prefix): stored.get_tensor(key) for key in keys}
    fitting = head.fitted(weights) if isinstance(head, LMHead) else _fitted(head, weights)
    if not fitting:
        return False
    head.load_state_dict(fitting)
    return True


def _fitted(head: nn.Module, stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights (...) of a head, as long as its own; none if one is missing or of another shape."""
    before = head.state_dict()
    if not before.keys() <= stored.keys():
        return {}
    weights = {key: grown(stored[key], made) for key, made in before.items()}
    fits = all(weights[key].shape == made.shape for key, made in before.items())
    return weights if fits else {}
