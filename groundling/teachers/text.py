"""Teachers of text: a CLIP-like text tower, the student before training, and models of the student's own tokens."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from groundling.core.batch import FORWARD_BATCH, Batch, Example, Sample, collate, require
from groundling.core.errors import InputError, prefix_errors
from groundling.data.samples import ClipRowEncoder, SampleDataset, TextDataset
from groundling.models.clip import ClipTextTower, last_token_positions
from groundling.models.heads import LM_HEAD, LMHead, load_head
from groundling.models.loading import weights_sha256
from groundling.models.text_encoder import TextEncoder, load_text_encoder
from groundling.models.visual_token import (
    FEATURE,
    VisualTokenEncoder,
    load_visual_token_encoder,
)
from groundling.teachers import (
    Teacher,
    TeacherContext,
    TeacherSpec,
    check_same_tokens,
    digest,
    get_fixed,
    token_inputs,
)

CALIBRATION = 2048
"""Number of samples for the features' mean and standard deviation."""
STATES = "teacher_states"
"""A feature: last hidden states (N, T, D) of the student's own tokens (VidLanKD, student stage)."""


class StandardizedTextTeacher(Teacher):
    """A teacher of `sentence` (N, E) and, if it has some, `words` (N, K, E) and `has` (N, K), standardised. Abstract.

    Features are standardised per dimension over the first samples of the data (`fit`), because CLIP's features
    have a large common component that dominates their differences. Its inputs have `word_type_ids`.
    """

    def __init__(self, standardise: bool) -> None:
        self.standardise = standardise
        self.stats: dict[str, tuple[Tensor, Tensor]] = {}
        self.calibrated_on = ""

    def raw_features(self, batch: Batch) -> dict[str, Tensor]:
        """The features before they are standardised. Abstract."""
        raise NotImplementedError

    def to(self, device: torch.device | str) -> Self:
        """Move its modules, mean and standard deviation to a device."""
        self.stats = {part: (m.to(device), s.to(device)) for part, (m, s) in self.stats.items()}
        return super().to(device)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """`sentence` (U, E), `words` (U, K, E), and `has` (U, K), True for words with a feature."""
        features = self.raw_features(batch)
        for part, (mean, spread) in self.stats.items():
            features[part] = (features[part] - mean) / spread
        return features

    def fit(self, samples: SampleDataset) -> StandardizedTextTeacher:
        """Estimate the features' mean and standard deviation on the data's first samples, deterministically."""
        if not self.standardise or self.stats:
            return self
        parts: dict[str, list[Tensor]] = {"sentence": [], "words": []}
        digest = hashlib.blake2b(digest_size=16)
        count = min(CALIBRATION, len(samples))
        for start in range(0, count, FORWARD_BATCH):
            indices = range(start, min(start + FORWARD_BATCH, count))
            some = get_fixed(samples, indices)
            inputs = self.inputs([row for sample in some for row in sample.rows])
            digest.update("".join(one.id for one in inputs).encode())
            features = self.raw_features(collate(inputs))
            parts["sentence"].append(features["sentence"])
            if "words" in features:
                parts["words"].append(features["words"][features["has"]])
        for part, values in parts.items():
            if not values:
                continue
            every = torch.cat(values)
            self.stats[part] = (every.mean(0), every.std(0).clamp(min=1e-6))
        self.calibrated_on = digest.hexdigest()
        return self

    def unbatch(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """Each row's features, without padding of words."""
        counts = (require(batch.word_type_ids, "word_type_ids", "the teacher") >= 0).sum(1).tolist()
        arrays = {name: value.cpu().numpy() for name, value in features.items()}
        return [
            {
                "sentence": arrays["sentence"][row],
                "words": arrays["words"][row, :count],
                "has": arrays["has"][row, :count],
            }
            for row, count in enumerate(counts)
        ]


class ClipTextTeacher(StandardizedTextTeacher):
    """Sentence and word features of a text from a frozen CLIP-like text tower, in eval mode; not saved.

    A word's feature is its last token's (the tower is causal, so only that token has read the whole word).
    A text of several windows has the mean of their end-token features.
    """

    name = "clip_text"

    def __init__(
        self,
        clip: ClipTextTower,
        tokenizer: PreTrainedTokenizerBase,
        standardise: bool = True,
        max_windows: int = 0,
    ) -> None:
        """`tokenizer`: the tower's; `max_windows`: maximum number of windows per text (0: no limit)."""
        super().__init__(standardise)
        self.clip = clip.eval().requires_grad_(False)
        self.width = clip.embed_dim
        self.windows = ClipRowEncoder(tokenizer, clip.context_length, max_windows)

    @property
    def device(self) -> torch.device:
        """The tower's device."""
        return self.clip.logit_scale.device

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Windows and words of each row's text; equal ones have equal ids."""
        examples = [require(row.example, "example", "a teacher of texts") for row in rows]
        texts = [Example(str(n), one.text, one.text_pair) for n, one in enumerate(examples)]
        samples = TextDataset(texts, None, self.windows).get(range(len(texts)))
        names = self.ids(rows)
        for place, (one, name) in enumerate(zip(samples, names, strict=True)):
            row = require(one.clip, "clip", "a teacher of texts")
            words = require(one.word_type_ids, "word_type_ids", "a teacher of texts")
            has = np.isin(np.arange(len(words)), row.word_ids)  # a token in the windows
            samples[place] = replace(one, id=name, features={"has": has})
        return samples

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """A hash of each row's texts, which are tokenized only if they are not cached."""
        examples = [require(row.example, "example", "a teacher of texts") for row in rows]
        return [digest(f"{one.text}\n{one.text_pair}".encode()) for one in examples]

    def key(self) -> dict[str, Any]:
        """The tower's weights, its windows, and the texts of the mean and standard deviation."""
        return {
            "weights": weights_sha256(self.clip),
            "windows": [self.windows.limit, self.windows.max_windows],
            "standardised_on": self.calibrated_on,
        }

    @torch.no_grad()
    def raw_features(self, batch: Batch) -> dict[str, Tensor]:
        """As `features`, before they are standardised."""
        batch = batch.to(self.device)
        windows = require(batch.clip, "clip", "the teacher")
        numbers = require(batch.word_type_ids, "word_type_ids", "the teacher")
        states, pooled = self.clip(windows)
        rows, count = numbers.shape
        one_each = torch.ones_like(windows.row_index)
        windows_of_row = torch.zeros_like(numbers[:, 0]).index_add(0, windows.row_index, one_each)
        total = pooled.new_zeros(rows, pooled.shape[1]).index_add(0, windows.row_index, pooled)
        flat = windows.flatten_states(states)  # (U, V, E)
        last = last_token_positions(windows.word_ids, count)
        chosen = last.clamp(min=0).unsqueeze(-1).expand(-1, -1, flat.shape[-1])
        return {
            "sentence": total / windows_of_row.unsqueeze(-1),
            "words": flat.gather(1, chosen),
            "has": batch.features["has"],
        }


class ClipSentenceTeacher(ClipTextTeacher):
    """The sentence features alone, not standardised: CLIP's text embeddings.

    With one window this is CLIP's embedding of the truncated text; with several windows, their mean.
    """

    name = "clip_sentences"

    def __init__(
        self, clip: ClipTextTower, tokenizer: PreTrainedTokenizerBase, max_windows: int = 1
    ) -> None:
        """As `ClipTextTeacher`."""
        super().__init__(clip, tokenizer, standardise=False, max_windows=max_windows)

    def features(self, batch: Batch) -> dict[str, Tensor]:
        """`sentence` (U, E)."""
        return {"sentence": super().features(batch)["sentence"]}

    def unbatch(self, features: Mapping[str, Tensor], batch: Batch) -> list[dict[str, np.ndarray]]:
        """Each row's feature."""
        return Teacher.unbatch(self, features, batch)


class FrozenCopy(Teacher):
    """A frozen copy of the student before training: its pooled sentence vectors of the student's texts."""

    name = "frozen_copy"

    def __init__(self, text: TextEncoder) -> None:
        """Copies the encoder. Raises InputError if it is no sentence encoder."""
        if text.sentence is None:
            raise InputError(f"{text.tokenizer.name_or_path}: no sentence vectors to retain")
        self.text = TextEncoder(copy.deepcopy(text.encoder), text.tokenizer)
        self.text.set_sentence_modules(text.sentence)
        self.text.eval().requires_grad_(False)

    @property
    def device(self) -> torch.device:
        """The copy's device."""
        return next(self.text.parameters()).device

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Each row's tokens before masking; equal ones have equal ids."""
        return token_inputs(rows, self.name)

    def key(self) -> dict[str, Any]:
        """Its weights and its pooling."""
        sentence = require(self.text.sentence, "sentence", self.name)
        return {
            "weights": weights_sha256(self.text.encoder),
            "pooling": list(sentence.modes),
        }

    @torch.no_grad()
    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """`initial_sentence_embedding` (U, S), of unit length."""
        encoded = self.text(batch.to(self.device))
        return {
            "initial_sentence_embedding": F.normalize(
                require(encoded.sentence_embedding, "sentence_embedding", self.name), dim=-1
            )
        }


class TextStatesTeacher(Teacher):
    """A frozen text encoder's last hidden states of the student's tokens, masked ones included, in eval mode.

    VidLanKD's code (zinengtang/VidLanKD, vlm/run_vlm_distributed.py) gives teacher and student the same
    corrupted tokens, too. The feature is `teacher_states` (N, T, D), with any value in padding.
    """

    name = "text_states"

    def __init__(self, text: TextEncoder, tokenizer: PreTrainedTokenizerBase, source: str) -> None:
        """`tokenizer`: the student's; `source`: the teacher's name in messages.

        Raises InputError if the teacher has other tokens than the student.
        """
        check_same_tokens(text.tokenizer, tokenizer, f"kd_teacher={source}")
        self.text = text.eval().requires_grad_(False)
        self.width = text.sizes.text
        self.source = source

    def features(self, batch: Batch) -> Mapping[str, Tensor]:
        """`teacher_states` (N, T, D) of a batch's texts, without a perturbation.

        Raises InputError if a text is longer than the teacher can read.
        """
        tokens = require(batch.text, "text", self.name)
        length = tokens.input_ids.shape[1]
        if length > self.text.max_length:
            raise InputError(f"kd_teacher={self.source}: use max_length={self.text.max_length}")
        encoded = self.text(replace(batch, perturbation={}))
        return {STATES: require(encoded.text, "text", self.name)}


def _make_text_states(context: TeacherContext) -> TextStatesTeacher:
    source = context.settings.state_distillation.kd_teacher
    if not source:
        raise InputError("nst, crd and nt_xent need kd_teacher=MODEL, a text encoder")
    tokenizer = require(context.tokenizer, "tokenizer", "kd_teacher")
    return TextStatesTeacher(load_text_encoder(source), tokenizer, source)


TEXT_STATES = TeacherSpec("text_states", (STATES,), _make_text_states)


JOINT_FOLDER = (
    "the folder `joint` that `groundling adapt --arm visual_token_mlm --save-joint` writes into its "
    "run folder"
)


class ClipBertTeacher(Teacher):
    """Masked-LM logits of a frozen CLIP-BERT, which reads the student's masked captions and their images.

    A batch without images gets no logits.
    """

    name = "visual_token"
    image_features = ("mlm_logits",)

    def __init__(self, model: VisualTokenEncoder, head: LMHead) -> None:
        """`head`: its masked-LM head."""
        self.model = model.eval().requires_grad_(False)
        self.head = head.eval().requires_grad_(False)

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
        raise InputError(f"{source}: has no masked-LM head; expected {JOINT_FOLDER}")
    student = require(tokenizer, "tokenizer", "mlm_distillation")
    check_same_tokens(model.text.tokenizer, student, str(source))
    return ClipBertTeacher(model, head)


def _make_clip_bert(context: TeacherContext) -> ClipBertTeacher:
    source = context.settings.masked_lm_distillation.mlm_teacher
    if not source:
        raise InputError(f"mlm_distillation needs mlm_teacher=FOLDER, {JOINT_FOLDER}")
    with prefix_errors("mlm_teacher"):
        return load_visual_token_teacher(source, context.tokenizer)


VISUAL_TOKEN = TeacherSpec("CLIP-BERT", ("mlm_logits",), _make_clip_bert, reads=(FEATURE,))
