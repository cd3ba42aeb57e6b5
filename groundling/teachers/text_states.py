"""A frozen text encoder as a teacher of the student's own tokens (VidLanKD, student stage)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import Batch, require
from groundling.core.errors import InputError
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.teachers import Teacher, TeacherContext, TeacherSpec

STATES = "teacher_states"
"""The feature: last hidden states (N, T, D)."""


class TextStatesTeacher(Teacher):
    """A frozen text encoder's last hidden states of the student's tokens, masked ones included, in eval mode.

    VidLanKD's code (zinengtang/VidLanKD, vlm/run_vlm_distributed.py) gives teacher and student the same
    corrupted tokens, too. The feature is `teacher_states` (N, T, D), with any value in padding.
    """

    name = "text_states"
    cacheable = "never"
    counts_truncated = False  # the student reads the same tokens, and counts truncated ones
    feature_names = (STATES,)
    reads_student_input = True

    def __init__(self, text: TextEncoder, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
        """`tokenizer`: the student's; `source`: the teacher's name in messages.

        Raises InputError if the teacher has other tokens than the student.
        """
        own = text.tokenizer
        special = set(tokenizer.all_special_ids)
        if own.get_vocab() != tokenizer.get_vocab() or set(own.all_special_ids) != special:
            raise InputError(f"kd_teacher={source}: its tokenizer differs from the student's")
        self.text = text.eval().requires_grad_(False)
        self.width = text.sizes.text
        self.display_name = f"the teacher {source}"

    def to(self, device: torch.device | str) -> TextStatesTeacher:
        """Move the encoder to a device."""
        self.text.to(device)
        return self

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """`teacher_states` (N, T, D) of a batch's texts, without a perturbation.

        Raises InputError if a text is longer than the teacher can read.
        """
        tokens = require(batch.text, "text", self.name)
        length = tokens.input_ids.shape[1]
        if length > self.text.max_length:
            raise InputError(f"{self.display_name}: use max_length={self.text.max_length}")
        encoded = self.text(replace(batch, perturbation={}))
        return {STATES: require(encoded.text, "text", self.name)}


def _make(context: TeacherContext) -> TextStatesTeacher:
    """Load the encoder of --kd-teacher; raises InputError without one, or without the student's tokenizer."""
    source = context.settings.state_distillation.kd_teacher
    if not source:
        raise InputError("nst, crd and nt_xent need kd_teacher=MODEL, a text encoder")
    tokenizer = require(context.tokenizer, "tokenizer", "kd_teacher")
    return TextStatesTeacher(load_text_encoder(source), tokenizer, source)


TEXT_STATES = TeacherSpec("text_states", (STATES,), _make)
