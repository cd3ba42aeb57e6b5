"""Adapters: a few layers over a frozen CLIP, which is asked once for each image and text (CLIP-TD, Table 11)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, EncoderOutput, OutputSizes
from groundling.core.errors import InputError, convert_errors, prefix_errors
from groundling.core.output_types import OpenAnswer
from groundling.models.attention import AttentionCallback
from groundling.models.clip import (
    ClipImageTower,
    ClipTextTower,
    load_clip_image_tower,
    load_clip_text_tower,
)
from groundling.models.formats import Encoder, ModelFormat
from groundling.models.hub import ADAPTER, is_adapter
from groundling.models.loading import weights_sha256
from groundling.models.task_heads import HEAD, HeadContext, TaskHead, make_output_layer
from groundling.runs.folder import disk_errors, json_text, read_json
from groundling.settings.input_settings import AdapterSettings, check_adapter

WEIGHTS = "adapter.safetensors"
IMAGE = "clip_image"
TEXT = "clip_text"
"""What it reads of every row: CLIP's embeddings, of unit length, in CLIP's joint space."""


@dataclass(frozen=True)
class AdapterBase:
    """The frozen CLIP that an adapter stands on; no part of the model, so that nothing can train or save it."""

    source: str
    """Hub id or folder."""
    image: ClipImageTower
    text: ClipTextTower
    tokenizer: PreTrainedTokenizerBase

    @property
    def weights(self) -> dict[str, str]:
        """SHA-256 of both sides' weights."""
        return {"image": weights_sha256(self.image), "text": weights_sha256(self.text)}


def load_adapter_base(source: str) -> AdapterBase:
    """A CLIP-like model with both sides, frozen; raises InputError for one that lacks a side or its projection."""
    image = load_clip_image_tower(source)
    text, tokenizer = load_clip_text_tower(source)
    if image.embed_dim != text.embed_dim:
        raise InputError(
            f"{source}: its images have {image.embed_dim} numbers and its texts {text.embed_dim}, so they share no space; "
            "expected a CLIP-like model with both projections"
        )
    for side in (image, text):
        side.eval().requires_grad_(False)
    return AdapterBase(source, image, text, tokenizer)


class ClipAdapter(Encoder):
    """Layers over CLIP's embeddings of each row's image and text, E numbers each; CLIP itself gets no gradient.

    `mlp` with `concat` reads both as one vector (2E), and its last Linear is the head's; with `cosine` each side has
    an MLP of its own, and the answer is their cosine times a learned scale. With 3 layers an MLP is Linear, GELU,
    Linear, GELU, Linear, as wide as an embedding. `attention` is one pre-LayerNorm encoder layer over a learned
    position, the image and the text, read at the first. The paper gives no more than the names (Table 11).
    """

    def __init__(self, base: AdapterBase, options: AdapterSettings) -> None:
        """Raises InputError for settings that do not go together; see `check_adapter`."""
        super().__init__()
        check_adapter(options)
        self.base = base
        self.options = options
        width = base.image.embed_dim
        self.sizes = OutputSizes(pooler_output=self._output_width(width))
        if options.adapter == "attention":
            self.first = nn.Parameter(torch.randn(width) * 0.02)
            self.attend = nn.TransformerEncoderLayer(
                width,
                max(1, width // HEAD),
                4 * width,
                activation="gelu",
                batch_first=True,
                norm_first=True,
            )
        elif options.fusion == "cosine":
            self.of_image = _layers(width, width, options.adapter_layers)
            self.of_text = _layers(width, width, options.adapter_layers)
            self.scale = nn.Parameter(base.text.logit_scale.detach().clone())
        else:
            self.mix = _layers(2 * width, width, options.adapter_layers - 1)

    def _output_width(self, width: int) -> int:
        """Width of what the head reads."""
        if self.options.adapter == "attention":
            return width
        if self.options.fusion == "cosine":
            return 1
        return width if self.options.adapter_layers > 1 else 2 * width

    def inputs(self, max_length: int) -> tuple[None, None]:
        """No texts of its own: a teacher beside the samples reads them for it."""
        return None, None

    def word_embeddings(self) -> nn.Module:
        """None of its own; CLIP's stay as they are."""
        return nn.ModuleList()

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """`pooled` (N, P), P as in `sizes`, from the features `clip_image` and `clip_text` (N, E)."""
        batch.require((f"features.{IMAGE}", f"features.{TEXT}"), "an adapter over CLIP")
        image = batch.features[IMAGE].float()
        text = batch.features[TEXT].float()
        if self.options.adapter == "attention":
            first = self.first.expand(len(image), -1)
            return EncoderOutput(
                pooler_output=self.attend(torch.stack([first, image, text], 1))[:, 0]
            )
        if self.options.fusion == "cosine":
            cosine = F.cosine_similarity(self.of_image(image), self.of_text(text), dim=-1)
            return EncoderOutput(pooler_output=(self.scale.exp() * cosine).unsqueeze(-1))
        both = self.mix(torch.cat([image, text], -1))
        return EncoderOutput(pooler_output=F.gelu(both) if len(self.mix) else both)

    def export(self, folder: Path) -> None:
        """The adapter's weights, and which CLIP it stands on."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "clip": self.base.source,
            "weights": self.base.weights,
            "adapter": self.options.adapter,
            "adapter_layers": self.options.adapter_layers,
            "fusion": self.options.fusion,
        }
        with disk_errors(folder / ADAPTER):
            (folder / ADAPTER).write_text(json_text(about, indent=1) + "\n", encoding="utf-8")
            own = {name: value.cpu().contiguous() for name, value in self.state_dict().items()}
            save_file(own, folder / WEIGHTS)


def _layers(width: int, out: int, layers: int) -> nn.Sequential:
    """Linears with GELU between them; none for no layers."""
    parts: list[nn.Module] = []
    for number in range(layers):
        parts += [nn.GELU()] if number else []
        parts.append(nn.Linear(width if not number else out, out))
    return nn.Sequential(*parts)


class AdapterHead(TaskHead):
    """The last Linear of an adapter, without dropout; of a cosine that is the one answer, nothing at all."""

    def __init__(self, context: HeadContext) -> None:
        """Raises InputError where one cosine a row would have to tell thousands of answers apart."""
        super().__init__()
        width = context.sizes.pooler_output
        if width == 1 and isinstance(context.output_type, OpenAnswer):
            raise InputError(
                f"--fusion cosine gives one number a row, and this task has {context.outputs} answers; pass --fusion "
                "concat"
            )
        is_answer = width == 1 and context.outputs == 1
        self.classify = nn.Identity() if is_answer else make_output_layer(width, context.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs)."""
        outputs: Tensor = self.classify(encoded.pooler_output)
        return outputs


def load_adapter(source: str | Path) -> ClipAdapter:
    """An exported adapter with its CLIP.

    Raises InputError if the folder is damaged, or the CLIP is not there or has other weights.
    """
    path = Path(source) / ADAPTER
    about = read_json(path)
    fields: Mapping[str, Any] = about if isinstance(about, dict) else {}
    settings = {name: fields.get(name) for name in ("adapter", "adapter_layers", "fusion")}
    kinds = (("mlp", "attention"), (1, 3), ("concat", "cosine"))
    known = [value in kind for value, kind in zip(settings.values(), kinds, strict=True)]
    if not (all(known) and isinstance(fields.get("clip"), str)):
        raise InputError(f"{path}: does not say what adapter it is, and of which CLIP; damaged")
    with prefix_errors(f"{path}: its CLIP cannot be loaded"):
        base = load_adapter_base(fields["clip"])
    if base.weights != fields.get("weights"):
        raise InputError(
            f"{path}: the adapter was trained over another model than {base.source} is now; its weights differ"
        )
    model = ClipAdapter(base, AdapterSettings(**settings))  # type: ignore[arg-type]
    with convert_errors(f"{Path(source) / WEIGHTS}: not the weights of this adapter"):
        model.load_state_dict(load_file(Path(source) / WEIGHTS))
    return model


KIND = ModelFormat("adapter over CLIP", is_adapter, load_adapter)
