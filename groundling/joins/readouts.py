"""How each paper reads a task off its model: at which place, through which layers, with which loss."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.batch import Example
from groundling.forms import Answer, Form


@dataclass(frozen=True)
class Readout:
    """Where an answer is read, and what lies between that place and the last Linear."""

    at: Literal["form", "mask", "second mask", "pair"] = "form"
    """form: as the form says; mask: a [MASK] behind the text, or as second text; pair: each image apart, then both."""
    between: Literal["", "gelu", "transform", "double", "double relu"] = ""
    """gelu: Linear, GELU; transform: and LayerNorm; double: the same, twice as wide; double relu: with ReLU."""
    loss: str = ""
    """Kind of the form's loss; empty: the form's own."""

    def form(self, form: Form) -> Form:
        """The form with this loss."""
        return replace(form, kind=self.loss) if self.loss else form  # type: ignore[type-var]

    def ask(self, example: Example, mask: str) -> Example:
        """The example with a [MASK] where the answer is read."""
        if self.at == "mask":
            return replace(example, text=f"{example.text} {mask}")
        return replace(example, pair=mask) if self.at == "second mask" else example


PLAIN = Readout()
"""The form's own place, one Linear."""

READOUTS = {
    # VisualBERT's code reads VQA at a [MASK] behind the question; the rest is BERT's pooler and one Linear.
    ("visualbert", "vqa"): Readout("mask", loss="kl"),
    # VL-BERT's code: the masked-LM head's transform (VQA), the region head's first layer (RefCOCO+).
    ("vlbert", "vqa"): Readout("second mask", "transform", "bce"),
    ("vlbert", "vcr/answer"): Readout(loss="bce"),
    ("vlbert", "vcr/rationale"): Readout(loss="bce"),
    ("vlbert", "refcoco+"): Readout(between="gelu", loss="bce"),
    # UNITER's code. VCR: two outputs a choice, wrong and right.
    ("uniter", "vqa"): Readout(between="double", loss="bce"),
    ("uniter", "snli-ve"): Readout(between="double", loss="bce"),
    ("uniter", "vcr/answer"): Readout(between="double relu", loss="each"),
    ("uniter", "vcr/rationale"): Readout(between="double relu", loss="each"),
    ("uniter", "refcoco+"): Readout(between="transform", loss="ce"),
    ("uniter", "nlvr2"): Readout("pair"),
    # Not in VL-BERT's code; its regions do not tell which image they are from, so the images are read apart.
    ("vlbert", "nlvr2"): Readout("pair"),
}
"""By join and task, where it is not `PLAIN`; see docs/papers.md for the settings that go with them."""


def readout(kind: str, task: str, regions: bool) -> Readout:
    """The paper's readout for a kind of model; a pair of images is read as `PLAIN` without `regions`."""
    found = READOUTS.get((kind, task), PLAIN)
    return PLAIN if found.at == "pair" and not regions else found


def answer_rows(form: Form, tokenizer: PreTrainedTokenizerBase, table: Tensor) -> Tensor:
    """Start of VL-BERT's last Linear for VQA (code): of each answer (outputs, E), the mean embedding of its pieces."""
    assert isinstance(form, Answer)
    pieces: Sequence[Any] = tokenizer(list(form.labels), add_special_tokens=False)["input_ids"]
    return torch.stack(
        [table[ids].mean(0) if ids else table.new_zeros(table.shape[1]) for ids in pieces]
    )
