"""`groundling merge`: interpolate an adapted model and the model that it comes from, or its control."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from annotated_types import Interval

from groundling.command_line import Command, ResumableRun
from groundling.command_line.names import input_paths
from groundling.core.errors import InputError, convert_read_errors
from groundling.models.hub import find_file
from groundling.runs.folder import read_object
from groundling.settings.fields import InputKind, Settings, may_repeat, required, settings

if TYPE_CHECKING:
    from torch import Tensor

    from groundling.runs.run import Run

LAYER = re.compile(r"\.layers?\.(\d+)\.|\.h\.(\d+)\.")
"""A layer's number in the name of a weight."""
EMBEDDINGS = re.compile(r"embed|\bw[tp]e\b")
"""Names of embeddings; GPT-2's have no more than `wte` and `wpe`."""
HEADS = "groundling_heads.safetensors"
"""Heads of training alone, which are not merged."""
LM_HEAD = "masked_lm.head."
"""Prefix there of a copy of the language model's own head, which would be read instead of the merged one."""
LANGUAGE_MODELS = ("ForMaskedLM", "ForPreTraining", "ForCausalLM", "LMHeadModel")
"""Endings of transformers' names of models with such a head."""


@settings
class MergeConfig(Settings):
    """Two models of the same architecture, and the share of the first."""

    model: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of the adapted model, whose other files the merged model gets."""
    origin: Annotated[str, InputKind.MODEL, required] = ""
    """The model before adaptation, or a control: hub id or folder."""
    share: Annotated[tuple[Annotated[float, Interval(ge=0, le=1)], ...], may_repeat] = (0.5,)
    """Share of --model: one number, or one for the embeddings and one for each layer; modules \
after the layers get the last one."""


def merge(config: MergeConfig, run: Run) -> dict[str, Any]:
    """Write the merged model as `model`, in the format of the adapted one; returns how many weights were merged.

    Weights without a partner, such as a new masked-LM head, stay those of the adapted model, with a note.
    """
    from safetensors.torch import load_file, save_file

    given, origin = Path(config.model), Path(config.origin)
    if not origin.is_dir():  # a hub id
        file = find_file(config.origin, "model.safetensors")
        if file is None:
            raise InputError(f"{config.origin}: no model.safetensors")
        origin = file.parent
    files = _weight_files(given)
    # Modules of sentence-transformers have weights of one name, each in a folder of its own.
    by_folder: dict[Path, dict[str, Tensor]] = {}
    for file in _weight_files(origin):
        with convert_read_errors(origin / file):
            by_folder.setdefault(file.parent, {}).update(load_file(origin / file))
    encoder = max(by_folder.values(), key=len)
    merged: list[str] = []
    alone: list[str] = []

    def write(partial: Path) -> None:
        shutil.copytree(given, partial / "model")
        for file in files:
            with convert_read_errors(given / file):
                weights = load_file(given / file)
            partners = by_folder.get(file.parent, encoder)
            for name, value in weights.items():
                partner = _partner(name, partners)
                (alone if partner is None else merged).append(name)
                if partner is None:
                    continue
                if value.shape != partner.shape:
                    raise InputError(f"{origin}: {name} has another shape than in {given}")
                if value.is_floating_point():
                    share = _share_of(name, config.share)
                    wide = value.double().lerp(partner.double(), 1 - share)
                    weights[name] = wide.to(value.dtype)
            save_file(weights, partial / "model" / file, metadata={"format": "pt"})
        if not merged:
            raise InputError(f"{origin}: no weight has a name of {given}")
        _drop_copied_head(partial / "model")

    run.save(write)
    if alone:
        run.note(f"{len(alone)} weights have no partner and stay as they are, such as {alone[0]}")
    return {"merged": len(merged), "alone": len(alone), "share": list(config.share)}


def _drop_copied_head(folder: Path) -> None:
    """Remove the copy of a language model's head from the heads of a merged model, whose own head is merged."""
    from safetensors.torch import load_file, save_file

    config, file = folder / "config.json", folder / HEADS
    kinds = read_object(config).get("architectures") or [""] if config.exists() else [""]
    if not file.exists() or not kinds[0].endswith(LANGUAGE_MODELS):
        return
    with convert_read_errors(file):
        heads = load_file(file)
    kept = {name: value for name, value in heads.items() if not name.startswith(LM_HEAD)}
    if kept:
        save_file(kept, file)
    else:
        file.unlink()


def _weight_files(folder: Path) -> list[Path]:
    files = sorted(one.relative_to(folder) for one in folder.rglob("*.safetensors"))
    found = [file for file in files if file.name != HEADS]
    if not found:
        raise InputError(f"{folder}: no safetensors file")
    return found


def _partner(name: str, partners: Mapping[str, Tensor]) -> Tensor | None:
    """The other model's weight, which may be with or without the name of the encoder inside a model with a head."""
    _, _, inner = name.partition(".")
    for other in (name, inner):
        if other in partners:
            return partners[other]
    outer = [other for other in partners if other.partition(".")[2] == name]
    return partners[outer[0]] if len(outer) == 1 else None


def _share_of(name: str, shares: Sequence[float]) -> float:
    if len(shares) == 1:
        return shares[0]
    layer = LAYER.search(f".{name}")
    if layer is None:
        return shares[0] if EMBEDDINGS.search(name) else shares[-1]
    number = int(next(filter(None, layer.groups()))) + 1
    if number >= len(shares):
        raise InputError(f"share: {len(shares)} shares, but {name} is of layer {number}")
    return shares[number]


COMMAND = Command(
    "merge",
    "interpolate an adapted model with the model that it comes from, which may undo forgetting",
    "groundling.commands.merge:merge",
    {"_own": MergeConfig()},
    title="Use",
    example="groundling merge --model runs/adapted/model --origin bert-base-uncased --share 0.5 --out runs/merged",
    common_flags="model origin share",
    output=ResumableRun(input_paths),
)
