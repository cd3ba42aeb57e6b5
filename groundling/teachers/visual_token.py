"""A CLIP-BERT as a teacher: masked-LM predictions of the student's masked captions, with their images."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, require
from groundling.core.errors import InputError, prefix_errors
from groundling.models.heads import LM_HEAD, LMHead, load_head
from groundling.models.loading import weights_sha256
from groundling.models.visual_token import (
    FEATURE,
    VisualTokenEncoder,
    load_visual_token_encoder,
)
from groundling.teachers import Teacher, TeacherContext, TeacherSpec

EXPECTED = (
    "the folder `joint` that `groundling adapt --arm visual_token_mlm --save-joint` writes into its "
    "run folder"
)


class ClipBertTeacher(Teacher):
    """Masked-LM logits of a frozen CLIP-BERT, which reads the student's masked captions and their images.

    A batch without images gets no logits.
    """

    name = "visual_token"
    feature_names = ("mlm_logits",)
    reads_images = True
    reads_student_input = True
    display_name = "the CLIP-BERT"

    def __init__(self, model: VisualTokenEncoder, head: LMHead) -> None:
        """`head`: its masked-LM head."""
        self.model = model.eval().requires_grad_(False)
        self.head = head.eval().requires_grad_(False)

    def to(self, device: torch.device | str) -> ClipBertTeacher:
        """Move the model and its head to a device."""
        self.model.to(device)
        self.head.to(device)
        return self

    def key(self) -> dict[str, Any]:
        """The weights of the model and of its head."""
        return {"weights": weights_sha256(self.model), "head": weights_sha256(self.head)}

    @torch.no_grad()
    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """`mlm_logits` (N, T, vocabulary) of every position, padding included; empty without images."""
        if FEATURE not in batch.features:
            return {}
        encoded = self.model(batch)
        return {"mlm_logits": self.head(encoded.text, encoded.input_embeddings)}


def load_visual_token_teacher(
    source: str | Path, tokenizer: PreTrainedTokenizerBase | None
) -> ClipBertTeacher:
    """Load a CLIP-BERT with its masked-LM head as a teacher of a student with this `tokenizer`.

    Raises InputError for another folder, one without the head, or a student with other tokens.
    """
    model = load_visual_token_encoder(source)
    sizes = model.sizes
    head = LMHead(sizes.text, sizes.input_embeddings, sizes.config)
    if not load_head(Path(source), head, LM_HEAD):
        raise InputError(f"{source}: has no masked-LM head; expected {EXPECTED}")
    student = require(tokenizer, "tokenizer", "mlm_distillation")
    own = model.text.tokenizer
    if own.get_vocab() != student.get_vocab() or type(own) is not type(student):
        raise InputError(f"{source}: its tokenizer differs from the student's")
    return ClipBertTeacher(model, head)


def _make(context: TeacherContext) -> ClipBertTeacher:
    source = context.settings.masked_lm_distillation.mlm_teacher
    if not source:
        raise InputError(f"mlm_distillation needs mlm_teacher=FOLDER, {EXPECTED}")
    with prefix_errors("mlm_teacher"):
        return load_visual_token_teacher(source, context.tokenizer)


VISUAL_TOKEN = TeacherSpec("CLIP-BERT", ("mlm_logits",), _make, reads=(FEATURE,))
