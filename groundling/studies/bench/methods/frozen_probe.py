"""ShareLock's idea: a head on the frozen text encoder is trained against images (Ruthardt et al. 2024)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Ge
from safetensors.torch import load_file
from torch import Tensor, nn

from groundling.core.batch import Batch, EncoderOutput, Example, OutputSizes, collate, require
from groundling.core.errors import convert_read_errors
from groundling.data.samples import TextDataset
from groundling.models.heads import HEADS
from groundling.models.text_encoder import load_text_encoder
from groundling.objectives.caption_to_image import number_images
from groundling.objectives.clip_kd import ProjectedSentence
from groundling.objectives.contrastive import (
    gather_across_processes,
    info_nce,
    pool_sentences,
    pool_states,
    sentence_width,
)
from groundling.settings.fields import settings
from groundling.settings.objectives import PoolingSettings
from groundling.studies.bench.methods import CAPTIONS, IMAGES, BenchMethod, Stage

SCALE = math.exp(2.6592)
"""The inverse temperature, which the released code does not train."""
DROPOUT = 0.2


@settings
class FrozenProbeSettings(PoolingSettings):
    """ShareLock's head on a frozen text encoder (objective frozen_probe)."""

    probe_layers: Annotated[int, Ge(1)] = 4
    """frozen_probe: Linear layers of the head (released configuration: 4)."""
    probe_width: Annotated[int, Ge(1)] = 4096
    """frozen_probe: width between them (released configuration: 4096, for states as wide)."""


class FrozenProbe(ProjectedSentence):
    """CLIP's loss between a head on frozen sentence vectors and frozen images (ShareLock: 2410.07173).

    The mean of both directions' cross-entropy of s x y, with s = e^2.6592 fixed; x is the head's output and y the
    teacher's image, both of unit length. Scale, loss and head (four Linear, 4096 wide, dropout 0.2) are those of
    JonaRuthardt/ShareLock at 39603eb (sharelock/utils/misc.py, sharelock/models/projection.py, configs), but for its
    BatchNorm1d, here LayerNorm: a text's vector would depend on how a batch is split. Captions of the same image are no
    negatives. The encoder gets no gradient; dropout that its configuration asks for stays on.
    """

    name = "frozen_probe"
    required_fields = ("text", "features.clip_image")
    Settings = FrozenProbeSettings
    settings: FrozenProbeSettings

    def __init__(self, sizes: OutputSizes, **options: Any) -> None:
        super().__init__(sizes, **options)
        own = self.settings
        width = sentence_width(sizes, own.pooling)
        self.project = make_probe(width, own.probe_width, own.probe_layers, sizes.teacher_image)

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The mean of both directions' cross-entropy, summed over texts to ()."""
        frozen = pool_sentences(encoded, batch, self.sizes, self.settings.pooling, self.name)
        text = F.normalize(self.project(frozen.detach()).float(), dim=-1)
        image = batch.features["clip_image"].float()
        texts, start = gather_across_processes(text)
        images, _ = gather_across_processes(image)
        numbers = number_images(image)
        same = numbers[:, None] == gather_across_processes(numbers)[0][None]
        to_image = info_nce(text, images, start, SCALE, same)
        to_text = info_nce(image, texts, start, SCALE, same)
        return {self.name: (to_image + to_text) / 2}


def make_probe(width: int, hidden: int, layers: int, out: int) -> nn.Sequential:
    """The head from (N, width) to (N, out): Linear, LayerNorm, ReLU, dropout, and so on; a Linear at the end."""
    modules: list[nn.Module] = []
    for _ in range(layers - 1):
        modules += [nn.Linear(width, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Dropout(DROPOUT)]
        width = hidden
    return nn.Sequential(*modules, nn.Linear(width, out))


@torch.no_grad()
def embed_texts(model: Path, texts: Sequence[str], max_length: int) -> np.ndarray:
    """Unit-length outputs (N, E) of the head that a run left beside its encoder, of the mean states of each text."""
    with convert_read_errors(model / HEADS):
        prefix = f"{FrozenProbe.name}.project."
        stored = {
            name.removeprefix(prefix): value
            for name, value in load_file(model / HEADS).items()
            if name.startswith(prefix)
        }
        linear = sorted(
            (int(name.partition(".")[0]), value)
            for name, value in stored.items()
            if value.ndim == 2
        )
        hidden, width = linear[0][1].shape
        head = make_probe(width, hidden, len(linear), len(linear[-1][1]))
        head.load_state_dict(stored)
    encoder = load_text_encoder(str(model)).eval()
    samples = TextDataset([Example(text, text) for text in texts], *encoder.inputs(max_length))
    batch = collate(samples.get(range(len(texts))))
    states = require(encoder(batch).text, "text", FrozenProbe.name)
    vectors: np.ndarray = F.normalize(
        head.eval()(pool_states(states, batch, "mean", FrozenProbe.name)), dim=-1
    ).numpy()
    return vectors


METHOD = BenchMethod(
    name="frozen_probe",
    paper="ShareLock (Ruthardt et al. 2024): a head on the frozen encoder, which is what is read",
    data=IMAGES,
    # The release's 4096 is as wide as its states; the bench's are 128 wide.
    stages=(
        Stage(
            "frozen_probe",
            (CAPTIONS,),
            settings={"pooling": "mean", "option": ("probe_width=512",)},
        ),
    ),
    vectors=embed_texts,
)
