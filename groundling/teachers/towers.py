"""A CLIP-like model's two sides, frozen, as what a teacher of images and texts is made of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, Example, Row, Sample, collate, needed
from groundling.data.samples import WindowInput
from groundling.data.text.words import spans
from groundling.models.clip import ClipImage, ClipText
from groundling.models.weights import weights_sha256


class Towers:
    """A CLIP-like image side and text side, frozen; either may be absent, or come from a model of its own."""

    def __init__(
        self,
        image: ClipImage | None,
        text: ClipText | None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        joined: bool = True,
    ) -> None:
        """The tokenizer is the text side's own. `joined`: both sides are of one model, so that they share a space."""
        for side in (image, text):
            if side is not None:
                side.eval().requires_grad_(False)
        self.image = image
        self.text = text
        self.joined = joined
        self.windows: WindowInput | None = None
        if text is not None:
            own = needed(tokenizer, "tokenizer", "a text side")
            self.windows = WindowInput(own, text.window, max_windows=1)

    def to(self, device: torch.device | str) -> None:
        """Move both sides."""
        for side in (self.image, self.text):
            if side is not None:
                side.to(device)

    @property
    def device(self) -> torch.device:
        """Where they are."""
        side = self.text if self.text is not None else needed(self.image, "image", "a teacher")
        return next(side.parameters()).device

    def pictures(self, batch: Batch, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Of each row's picture the pooled feature (U, D), and its embedding in the joint space (U, E).

        `names` (U,) tell pictures apart; each is looked at once.
        """
        side = needed(self.image, "image", "what is asked of this teacher")
        first = {name: place for place, name in reversed(list(enumerate(names)))}
        order = {name: number for number, name in enumerate(first)}
        pixels = needed(batch.pixels, "pixels", "a teacher of images")
        pooled = side(pixels[list(first.values())])[[order[name] for name in names]]
        return pooled, side.projection(pooled)

    def texts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Of each row's text the states of its pieces (U, V, D), and the one at its end (U, D); not projected."""
        side = needed(self.text, "text", "what is asked of this teacher")
        windows = needed(batch.clip, "clip", "a teacher of texts")
        states, ends = side.unprojected(windows)
        return windows.join(states), ends

    def rows(self, texts: Sequence[str]) -> list[tuple[Row, int]]:
        """Each text in one window, and how many pieces were cut off its end."""
        windows = needed(self.windows, "text", "what is asked of this teacher")
        examples = [Example(str(number), text) for number, text in enumerate(texts)]
        return windows.rows(examples, [(spans(text),) for text in texts])

    @torch.no_grad()
    def embedded(self, rows: Sequence[Row], batch: int = 64) -> Tensor:
        """The embeddings (len(rows), E), of unit length, in the joint space of texts as `rows` makes them.

        Read so many at a time, on the towers' device.
        """
        side = needed(self.text, "text", "a text's embedding")
        embedded = []
        for start in range(0, len(rows), batch):
            some = rows[start : start + batch]
            samples = [Sample(str(number), clip=row) for number, row in enumerate(some)]
            _, ends = self.texts(collate(samples).to(self.device))
            embedded.append(F.normalize(side.projection(ends), dim=-1))
        return torch.cat(embedded)

    def alone(self, text: str) -> Row:
        """Each raw word of a text as a text by itself, in a window of its own; an empty text has one window."""
        words = [text[start:stop] for start, stop in spans(text)]
        rows = [row for row, _ in self.rows(words or [""])]
        window = [np.full(len(row.ids), number, np.int64) for number, row in enumerate(rows)]
        return Row(
            ids=np.concatenate([row.ids for row in rows]),
            special=np.concatenate([row.special for row in rows]),
            word=np.concatenate([row.word for row in rows]),
            types=np.concatenate([row.types for row in rows]),
            pad=rows[0].pad,
            window=np.concatenate(window),
        )

    @cached_property
    def image_key(self) -> dict[str, Any]:
        """Weights and preprocessing of the image side, as JSON."""
        side = needed(self.image, "image", "what is asked of this teacher")
        preprocessing = json.loads(json.dumps(side.processor.to_dict(), default=str))
        return {"weights": weights_sha256(side), "preprocessing": preprocessing}

    @cached_property
    def text_key(self) -> dict[str, Any]:
        """Weights and tokenizer of the text side, as JSON."""
        side = needed(self.text, "text", "what is asked of this teacher")
        windows = needed(self.windows, "text", "what is asked of this teacher")
        tokenizer = hashlib.sha256(windows.engine.to_str().encode()).hexdigest()
        return {"weights": weights_sha256(side), "tokenizer": tokenizer, "positions": side.window}
