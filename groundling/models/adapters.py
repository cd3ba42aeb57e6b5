"""Layers over frozen features: adapters over CLIP, and text towers beside an image encoder."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import FORWARD_BATCH, Batch, EncoderOutput, OutputSizes, collate, require
from groundling.core.errors import InputError, convert_errors, convert_read_errors, prefix_errors
from groundling.core.output_types import OpenAnswer
from groundling.data.samples import SampleDataset
from groundling.models.attention import AttentionCallback
from groundling.models.clip import ClipTextTower, save_clip_text
from groundling.models.frozen_clip import EncoderTextTower, FrozenClip, load_frozen_clip
from groundling.models.hub import ADAPTER, is_adapter
from groundling.models.loading import Encoder, ModelFormat
from groundling.models.sentence_modules import make_sentence_modules
from groundling.models.task_heads import HEAD, HeadContext, TaskHead, make_output_layer
from groundling.models.text_encoder import TextEncoder
from groundling.runs.folder import disk_errors, json_text, keep_path, kept_path, read_object
from groundling.runs.progress import track
from groundling.settings.input_settings import ClipAdapterSettings

WEIGHTS = "adapter.safetensors"
IMAGE = "clip_image"
TEXT = "clip_text"
"""Names of the features an adapter reads: unit-length CLIP embeddings in CLIP's joint space."""
CONSTANT = 1e-4
"""A feature of unit-length vectors with a smaller deviation counts as constant."""


def load_adapter_backbone(source: str) -> FrozenClip:
    """Load a frozen CLIP-like model with both towers; raises InputError if a tower or projection is missing."""
    clip = load_frozen_clip(source)
    widths = [require(side, "tower", source).embed_dim for side in (clip.image, clip.text)]
    if widths[0] != widths[1]:
        found = f"images are {widths[0]} wide, texts {widths[1]}"
        raise InputError(f"{source}: an adapter needs features of one width; {found}")
    return clip


class ClipFeatureAdapter(Encoder):
    """Layers over CLIP's embeddings (N, E) of each row's image and text; CLIP itself gets no gradient.

    `linear` standardises both and appends their product (3E); its only Linear is in the head. Without the product, an
    image would shift the scores of every question alike.

    The others are CLIP-TD's; Table 11 gives only their names. `mlp` with `concat` reads both as one vector (2E), and
    its last Linear is in the head; with `cosine` each embedding has its own MLP, and the output is the cosine of both
    times a learned scale. An MLP of 3 layers is Linear, GELU, Linear, GELU, Linear, all of width E. `attention` is one
    pre-LayerNorm encoder layer over a learned first position, the image and the text; the head reads the first
    position.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, base: FrozenClip, options: ClipAdapterSettings) -> None:
        super().__init__()
        self.clip_backbone = base
        self.options = options
        text = require(base.text, "text", "an adapter")
        width = outputs = text.embed_dim
        if options.adapter == "linear":
            self.register_buffer("mean", torch.zeros(2 * width))
            self.register_buffer("deviation", torch.ones(2 * width))
            outputs = 3 * width
        elif options.adapter == "attention":
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
            self.scale = nn.Parameter(text.logit_scale.detach().clone())
            outputs = 1
        else:
            self.mix = _layers(2 * width, width, options.adapter_layers - 1)
            outputs = width if len(self.mix) else 2 * width
        self.sizes = OutputSizes(pooler_output=outputs)

    def inputs(self, max_length: int) -> tuple[None, None]:
        """None: CLIP reads the texts as a teacher, and the samples carry its features."""
        return None, None

    def word_embeddings(self) -> nn.Module:
        """An empty module: the adapter has no word embeddings, and CLIP's are frozen."""
        return nn.ModuleList()

    def standardise(self, samples: SampleDataset) -> None:
        """Set `mean` and `deviation` (2E) of `linear` to those of the samples' rows; a constant's deviation is 1."""
        sums = torch.zeros(2, len(self.mean), dtype=torch.float64)
        rows = 0
        for start in range(0, len(samples), FORWARD_BATCH):
            some = samples.get(range(start, min(start + FORWARD_BATCH, len(samples))), ())
            features = [row.features for sample in some for row in sample.rows]
            both = [np.concatenate([one[IMAGE], one[TEXT]]) for one in features]
            values = torch.from_numpy(np.stack(both)).double()
            sums += torch.stack([values.sum(0), values.square().sum(0)])
            rows += len(values)
        mean, square = sums / rows
        variance = square - mean.square()
        # If all rows ask one question, text features are constant up to rounding, which must not be scaled to 1.
        varies = variance > CONSTANT**2
        self.mean.copy_(mean)
        self.deviation.copy_(torch.where(varies, variance, 1.0).sqrt())

    def forward(self, batch: Batch, attention: AttentionCallback | None = None) -> EncoderOutput:
        """`pooler_output` (N, P), P as in `sizes`, from the features `clip_image` and `clip_text` (N, E)."""
        batch.require((f"features.{IMAGE}", f"features.{TEXT}"), "an adapter over CLIP")
        image = batch.features[IMAGE].float()
        text = batch.features[TEXT].float()
        if self.options.adapter == "linear":
            both = (torch.cat([image, text], -1) - self.mean) / self.deviation
            image, text = both.chunk(2, -1)
            pooled = torch.cat([both, image * text], -1)
        elif self.options.adapter == "attention":
            first = self.first.expand(len(image), -1)
            pooled = self.attend(torch.stack([first, image, text], 1))[:, 0]
        elif self.options.fusion == "cosine":
            cosine = F.cosine_similarity(self.of_image(image), self.of_text(text), dim=-1)
            pooled = (self.scale.exp() * cosine).unsqueeze(-1)
        else:
            both = self.mix(torch.cat([image, text], -1))
            pooled = F.gelu(both) if len(self.mix) else both
        return EncoderOutput(pooler_output=pooled)

    def export(self, folder: Path) -> None:
        """Write the adapter's weights, and the source and hashes of its CLIP."""
        folder.mkdir(parents=True, exist_ok=True)
        about = {
            "clip": keep_path(folder, self.clip_backbone.source),
            "weights": _weights(self.clip_backbone),
            **vars(self.options),
        }
        with disk_errors(folder / ADAPTER):
            (folder / ADAPTER).write_text(json_text(about, indent=1) + "\n", encoding="utf-8")
            own = {name: value.cpu().contiguous() for name, value in self.state_dict().items()}
            save_file(own, folder / WEIGHTS)


def _weights(clip: FrozenClip) -> dict[str, str]:
    return {"image": clip.image_key["weights"], "text": clip.text_key["weights"]}


def _layers(width: int, out: int, layers: int) -> nn.Sequential:
    parts: list[nn.Module] = []
    for number in range(layers):
        parts += [nn.GELU()] if number else []
        parts.append(nn.Linear(width if not number else out, out))
    return nn.Sequential(*parts)


class ClipAdapterHead(TaskHead):
    """The last Linear of an adapter, without dropout; the identity if the cosine is the only output."""

    def __init__(self, context: HeadContext) -> None:
        """Raises InputError for a cosine (one number a row) and a task of open answers."""
        super().__init__()
        width = context.sizes.pooler_output
        if width == 1 and isinstance(context.output_type, OpenAnswer):
            raise InputError("fusion=cosine gives one number per row, not a choice of answers")
        is_answer = width == 1 and context.outputs == 1
        self.classify = nn.Identity() if is_answer else make_output_layer(width, context.outputs)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """(N, outputs)."""
        outputs: Tensor = self.classify(encoded.pooler_output)
        return outputs


def load_adapter(source: str | Path) -> ClipFeatureAdapter:
    """Load an exported adapter and its CLIP.

    Raises InputError if the folder is damaged, or if the CLIP is missing or its weights changed.
    """
    path = Path(source) / ADAPTER
    with prefix_errors(path), convert_errors("damaged"):
        about = read_object(path)
        options = ClipAdapterSettings(about["adapter"], about["adapter_layers"], about["fusion"])
        base = load_adapter_backbone(kept_path(source, about["clip"]))
        if _weights(base) != about["weights"]:
            raise InputError(f"trained over other weights than {base.source} has now")
        model = ClipFeatureAdapter(base, options)
    with convert_read_errors(Path(source) / WEIGHTS):
        model.load_state_dict(load_file(Path(source) / WEIGHTS))
    return model


KIND = ModelFormat("adapter over CLIP", is_adapter, load_adapter)


# -- a text tower beside frozen image features (LiT) ----------------------------------------------------------------
IMAGE_HEAD = "image_head.safetensors"
"""File of the layers that map the image encoder's features into the joint space."""


def make_head(width: int, dim: int, layers: int) -> nn.Sequential:
    """One Linear, or two with a GELU between them, from `width` to `dim`."""
    if layers == 1:
        return nn.Sequential(nn.Linear(width, dim, bias=False))
    return nn.Sequential(nn.Linear(width, dim), nn.GELU(), nn.Linear(dim, dim))


class LockedDualEncoder(nn.Module):
    """A trainable text tower, and a head on frozen image features; one window of text and one feature per sample.

    A frozen text encoder is not run in a step either: its vectors are the feature `text`.
    """

    is_siglip = False

    def __init__(
        self, text: ClipTextTower, tokenizer: PreTrainedTokenizerBase, image: nn.Module
    ) -> None:
        """`text`: a CLIP text tower, or `EncoderText`; `image`: the head on the features (N, E)."""
        super().__init__()
        self.text = text
        self.tokenizer = tokenizer
        self.image_head = image
        self.text.logit_scale.requires_grad_(False)  # that of the tower's own CLIP
        self.logit_scale = nn.Parameter(torch.tensor(math.log(1 / 0.07)))
        self.logit_bias: Tensor | None = None
        self.sizes = OutputSizes()

    @property
    def device(self) -> torch.device:
        """Its device."""
        return self.logit_scale.device

    def start_sigmoid(self) -> None:
        """As `ClipDualEncoder.start_sigmoid`."""
        self.logit_bias = nn.Parameter(torch.tensor(-10.0))
        with torch.no_grad():
            self.logit_scale.fill_(math.log(10))

    def forward(self, batch: Batch) -> EncoderOutput:
        """Unit-length embeddings of texts and of the feature `image` (N, E), if present, with scale and bias."""
        text = None
        image = None
        if batch.clip is not None:
            _, ends = self.text(batch.clip)
            text = F.normalize(ends, dim=-1)
        if "text" in batch.features:
            text = F.normalize(self.text.projection(batch.features["text"]), dim=-1)
        if "image" in batch.features:
            image = self.embed_images(batch.features["image"])
        scale = self.logit_scale.exp()
        return EncoderOutput(
            text_embeds=text, image_embeds=image, scale=scale, bias=self.logit_bias
        )

    def embed_images(self, features: Tensor) -> Tensor:
        """Unit-length embeddings (N, D) of image features (N, E)."""
        return F.normalize(self.image_head(F.normalize(features, dim=-1)), dim=-1)

    def export(self, folder: Path) -> None:
        """Write the text tower, a folder of Hugging Face or sentence-transformers, and the head on image features."""
        if isinstance(self.text, EncoderText):
            self.text.export(folder)
        else:
            save_clip_text(self.text, self.tokenizer, folder)
        weights = {name: value.contiguous() for name, value in self.image_head.state_dict().items()}
        save_file(weights, folder / IMAGE_HEAD)


class EncoderText(EncoderTextTower):
    """A text encoder with a head on its pooled states, in place of the modules after its own pooling."""

    def __init__(self, text: TextEncoder, head: nn.Sequential, freeze: bool) -> None:
        """An encoder without pooling of its own gets the mean over its tokens. `freeze`: only the head is trained."""
        if text.sentence is None:
            text.set_sentence_modules(
                make_sentence_modules("mean", text.sizes.text, text.max_length)
            )
        super().__init__(text)
        self.whole = text
        self.encoder.requires_grad_(not freeze)
        self.projection = head

    @torch.no_grad()
    def vectors(self, texts: SampleDataset) -> np.ndarray:
        """The pooled states (N, S) of texts, without dropout, in batches of a fixed size, on which rounding depends."""
        was_training = self.training
        self.eval()
        device = next(self.encoder.parameters()).device
        found = []
        for start in track(range(0, len(texts), FORWARD_BATCH), "captions", "batch"):
            some = texts.get(range(start, min(start + FORWARD_BATCH, len(texts))), ())
            windows = require(collate(some).to(device).clip, "clip", "a text encoder")
            found.append(self.forward_unprojected(windows)[1].float().cpu())
        self.train(was_training)
        return torch.cat(found).numpy()

    def export(self, folder: Path) -> None:
        """Write the encoder with its pooling, the head and a normalisation, as sentence-transformers loads it."""
        pooling = require(self.whole.sentence, "sentence", "a text tower")
        self.whole.set_sentence_modules(pooling.with_projection(self.projection))
        self.whole.export(folder)
