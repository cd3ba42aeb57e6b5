"""Several texts in one row without padding: variable-length attention on a GPU, text by text elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from groundling.core.batch import Batch, select, to_device
from groundling.core.errors import InputError, convert_errors
from groundling.models.loading import Encoder

PACKED = "groundling_packed"
"""The attention's name in transformers; without packed texts, it is its `sdpa`."""
HALF = (torch.bfloat16, torch.float16)
"""What flash attention reads."""


class PackedTexts(NamedTuple):
    """Where B texts of at most L tokens are in one row of all T tokens."""

    places: Tensor
    """(T,) long: flat places in the padded batch (B, L)."""
    starts: Tensor
    """(B + 1,) int: the first token of each text, and T."""
    lengths: Tensor
    """(B,) long, in host memory."""
    longest: int
    """L."""

    @staticmethod
    def of(mask: Tensor, device: torch.device) -> PackedTexts:
        """Of the texts of a mask (B, L) in host memory; does not synchronise with a GPU."""
        lengths = mask.sum(1)
        places = mask.flatten().nonzero().squeeze(1)
        starts = F.pad(lengths.cumsum(0), (1, 0)).int()
        places, starts = (to_device(one, device) for one in (places, starts))
        return PackedTexts(places, starts, lengths, mask.shape[1])

    def pack(self, values: Tensor) -> Tensor:
        """One row (1, T, ...) of values (B, L, ...)."""
        return select(values, self.places)[None]

    def unpack(self, values: Tensor) -> Tensor:
        """Values (B, L, D) of a row (1, T, D), with zeros at padding."""
        padded = values.new_zeros(len(self.lengths) * self.longest, values.shape[-1])
        padded = padded.index_copy(0, self.places, values[0])
        return padded.view(len(self.lengths), self.longest, -1)


def packed_texts(batch: Batch) -> PackedTexts | None:
    """Where a batch's texts are in one row; None if none is padded."""
    text = batch.cpu_copy.text
    if text is None or bool(text.attention_mask.all()):
        return None
    return PackedTexts.of(text.attention_mask, batch.device)


def encode_packed(encoder: Any, arguments: Mapping[str, Any], packed: PackedTexts) -> Any:
    """Outputs of a Hugging Face encoder for a padded batch's arguments, computed in one row; zeros at padding."""
    tokens = {"input_ids", "inputs_embeds", "token_type_ids"} & arguments.keys()
    row = {name: packed.pack(arguments[name]) for name in tokens}
    columns = packed.places % packed.longest
    table = position_table(encoder)
    # A mask of four axes is passed on as it is; packed attention reads none.
    row["attention_mask"] = columns.new_zeros(1, 1, 1, 1)
    row["position_ids"] = columns[None] + (0 if table is None else first_position(table))
    out = encoder(**{**arguments, **row}, packed=packed)
    out["last_hidden_state"] = packed.unpack(out.last_hidden_state)
    if out.get("hidden_states") is not None:
        out["hidden_states"] = tuple(packed.unpack(one) for one in out.hidden_states)
    if out.get("pooler_output") is not None:  # of the row's first token
        out["pooler_output"] = encoder.pooler(out.last_hidden_state)
    return out


def position_table(encoder: nn.Module) -> nn.Embedding | None:
    """An encoder's learned positions, if it has such."""
    for name, module in encoder.named_modules():
        if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
            return module
    return None


def first_position(table: nn.Embedding) -> int:
    """The row of a text's first token: RoBERTa-like models reserve the rows up to padding's."""
    return 0 if table.padding_idx is None else table.padding_idx + 1


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    packed: PackedTexts | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention (1, T, heads, D) of each text over itself, from (1, heads, T, D); transformers' `sdpa` if not packed.

    On a GPU in half precision all texts are one call of torch's flash attention.
    """
    sides = (query, key, value)
    if packed is None:
        return sdpa_attention_forward(module, *sides, attention_mask, dropout, scaling, **options)
    window = options.get("sliding_window") or 0
    is_known = not window or module.config.model_type == "modernbert"
    if not is_known or options.get("position_bias") is not None:
        raise InputError(f"packing: unknown options of a {type(module).__name__}")
    if query.is_cuda and query.dtype in HALF and query.shape[-1] % 8 == 0:
        # `torch.nn.attention.varlen.varlen_attn` is this kernel without its dropout.
        places = (packed.starts, packed.starts, packed.longest, packed.longest)
        around = {"window_size_left": window - 1, "window_size_right": window - 1}  # -1: none
        q, k, v = (one[0].transpose(0, 1) for one in sides)
        attended = torch.ops.aten._flash_attention_forward(
            *(q, k, v, *places, dropout, False, False), scale=scaling, **around
        )
        return attended[0][None], None
    return attend_one_by_one(*sides, packed, dropout, scaling, window), None


def attend_one_by_one(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    packed: PackedTexts,
    dropout: float,
    scaling: float | None,
    window: int,
) -> Tensor:
    """The reference: attention (1, T, heads, D), a call for each text."""
    sizes = packed.lengths.tolist()
    parts = []
    texts = zip(query.split(sizes, 2), key.split(sizes, 2), value.split(sizes, 2), strict=True)
    for q, k, v in texts:
        mask = None
        if 0 < window < q.shape[2]:
            place = torch.arange(q.shape[2], device=q.device)
            mask = (place[:, None] - place).abs() < window
        parts.append(F.scaled_dot_product_attention(q, k, v, mask, dropout, scale=scaling))
    return torch.cat(parts, 2).transpose(1, 2)


AttentionInterface.register(PACKED, attend)
AttentionMaskInterface.register(PACKED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def check_packing(encoder: Any) -> None:
    """Raises InputError unless an encoder reads two texts in one row as it reads them padded."""
    before, was_training = encoder.config._attn_implementation, encoder.training
    encoder.eval()
    try:
        with (
            torch.no_grad(),
            convert_errors(f"packing: not for a {encoder.config.model_type} model"),
        ):
            _compare(encoder)
    finally:
        encoder.set_attn_implementation(before)
        encoder.train(was_training)


def _compare(encoder: Any) -> None:
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])
    ids = torch.arange(10).view(2, 5) + 1 + (encoder.config.pad_token_id or 0)
    arguments = {"input_ids": ids % encoder.config.vocab_size, "attention_mask": mask}
    arguments = {name: value.to(encoder.device) for name, value in arguments.items()}
    padded = encoder(**arguments)
    encoder.set_attn_implementation(PACKED)
    if encoder.config._attn_implementation != PACKED:
        raise TypeError("it has an attention of its own")
    packed = PackedTexts.of(mask, encoder.device)
    row = encode_packed(encoder, arguments, packed)
    pairs = [[packed.pack(one.last_hidden_state) for one in (padded, row)]]
    if row.get("pooler_output") is not None:
        pairs.append([padded.pooler_output, row.pooler_output])
    for right, found in pairs:
        # Far above rounding, far below what another position or neighbour changes.
        if not torch.allclose(found, right, rtol=0, atol=0.01 * float(right.abs().max())):
            raise ValueError("texts in one row get other states than single texts")


@contextmanager
def pack_texts(model: nn.Module, on: bool = True) -> Iterator[None]:
    """Within the context, a model's text encoder reads the texts of a batch in one row; `on=False`: padded.

    Raises InputError for a model that cannot.
    """
    if not isinstance(model, Encoder):
        raise InputError(f"packing: not for a {type(model).__name__}")
    before = model.pack_texts(on)
    try:
        yield
    finally:
        model.pack_texts(before)
