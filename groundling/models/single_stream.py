"""Single-stream models: a stock BERT over text and regions; VisualBERT, VL-BERT and UNITER differ in the join."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import BertModel, PreTrainedTokenizerBase
from transformers.masking_utils import create_bidirectional_mask
from transformers.models.bert.modeling_bert import BertLayer, BertSelfAttention

from groundling.batch import Batch, Encoded
from groundling.data.samples import TextInput
from groundling.errors import InputError
from groundling.joins import (
    JOINS,
    Join,
    Joined,
    UniterJoin,
    VisualBertJoin,
    VLBertJoin,
    add_types,
    fresh,
)
from groundling.models.kinds import Kind
from groundling.models.text import TextEncoder, load_text_encoder


class SingleStream(nn.Module):
    """A BERT whose every layer attends over text and regions alike; a join makes one sequence of them.

    With `early` off (VisualBERT "without early fusion", Section 5.3), BERT reads the text alone, and only one new layer
    over its output and the embedded regions joins the two; a text without regions skips that layer (code).
    """

    def __init__(
        self, bert: BertModel, tokenizer: PreTrainedTokenizerBase, join: Join, early: bool = True
    ) -> None:
        """The join was made for this BERT."""
        super().__init__()
        self.text, self.join, self.fusion = TextEncoder(bert, tokenizer), join, None
        if not early:
            self.fusion = BertLayer(bert.config)
            fresh(self.fusion)
        self.sizes = self.text.sizes._replace(visual=self.text.sizes.text, regions=join.width)
        self.whole = join.whole

    @property
    def max_length(self) -> int:
        """Most pieces of text, special ones included."""
        return min(
            self.text.max_length, self.text.encoder.config.max_position_embeddings - self.join.after
        )

    def inputs(self, max_length: int) -> tuple[TextInput, None]:
        """Texts of at most `max_length` pieces, or what the model can take."""
        return self.text.inputs(min(max_length, self.max_length))

    def word_embeddings(self) -> nn.Module:
        """BERT's input embeddings."""
        return self.text.word_embeddings()

    def forward(self, batch: Batch, maps: bool = False) -> Encoded:
        """Last states of `text` (B, T, H) and regions, `visual` (B, R, H), each having read the other.

        With `maps`, `attention` holds each layer's (B, heads, S, S) weights over the whole sequence of the join.
        """
        bert, found = self.text.encoder, list[Tensor]()
        joined = self.join(bert.embeddings, batch)
        if maps:
            with self._eager(found):
                states = self.encode(joined)
            if not found:
                raise RuntimeError("this version of transformers gives no attention maps")
        else:
            states = self.encode(joined)
        return Encoded(
            text=states[:, joined.text],
            visual=None if batch.regions is None else states[:, joined.regions],
            pooled=bert.pooler(states) if self.sizes.pooled else None,
            word_table=bert.get_input_embeddings().weight,
            region_table=self.join.table(),
            attention=tuple(found),
        )

    def encode(self, joined: Joined) -> Tensor:
        """Last states (B, S, H) of a joined sequence."""
        encoder, text = self.text.encoder.encoder, joined.text
        if self.fusion is None or joined.regions.start == joined.regions.stop:
            return encoder(
                joined.states, attention_mask=self._mask(joined.states, joined.mask)
            ).last_hidden_state
        words, mask = joined.states[:, text], joined.mask[:, text]
        words = encoder(words, attention_mask=self._mask(words, mask)).last_hidden_state
        states = torch.cat([words, joined.states[:, text.stop :]], 1)
        return self.fusion(states, self._mask(states, joined.mask))

    def _mask(self, states: Tensor, mask: Tensor) -> Any:
        return create_bidirectional_mask(
            config=self.text.encoder.config, inputs_embeds=states, attention_mask=mask.long()
        )

    @contextmanager
    def _eager(self, found: list[Tensor]) -> Iterator[None]:
        """Inside, every self-attention appends its weights to `found`; only eager attention has any."""
        bert = self.text.encoder
        before = bert.config._attn_implementation
        layers = [layer for layer in self.modules() if isinstance(layer, BertSelfAttention)]
        hooks = [
            layer.register_forward_hook(lambda layer, args, out: found.append(out[1]))
            for layer in layers
        ]
        bert.set_attn_implementation("eager")
        try:
            yield
        finally:
            bert.set_attn_implementation(before)
            for hook in hooks:
                hook.remove()

    def see(self, images: int) -> None:
        """Make room for samples of several images: UNITER's later ones start with the first one's segment (code)."""
        join, bert = self.join, self.text.encoder
        if isinstance(join, UniterJoin) and (more := images - len(join.image_types)) > 0:
            first = bert.config.type_vocab_size
            add_types(bert, [join.image_types[0]] * more)
            join.image_types = [*join.image_types, *range(first, first + more)]
            join.options["image_types"] = join.image_types

    def export(self, folder: Path) -> None:
        """Write the whole model: `bert` as a stock HF folder, the join (and its description) beside it."""
        self.text.export(folder / "bert")
        weights = {k: v for k, v in self.state_dict().items() if k.startswith(("join.", "fusion."))}
        save_file(weights, folder / "join.safetensors")
        described = {
            "kind": self.join.kind,
            "early": self.fusion is None,
            "options": self.join.options,
        }
        (folder / JOIN).write_text(json.dumps(described, indent=1) + "\n", encoding="utf-8")


def visualbert(
    bert: BertModel,
    tokenizer: PreTrainedTokenizerBase,
    width: int = 2048,
    boxes: bool = False,
    early: bool = True,
) -> SingleStream:
    """VisualBERT from a BERT: uncased, region features `width` wide (VCR 512, NLVR2 1024)."""
    return SingleStream(bert, tokenizer, VisualBertJoin(bert, width, boxes), early)


def vlbert(
    bert: BertModel, tokenizer: PreTrainedTokenizerBase, width: int = 2048, pixels: bool = False
) -> SingleStream:
    """VL-BERT from a BERT, whose segment table gets a third, random row, in place: uncased."""
    add_types(bert, [None] * max(0, 3 - bert.config.type_vocab_size))
    return SingleStream(bert, tokenizer, VLBertJoin(bert, width, pixels))


def uniter(
    bert: BertModel,
    tokenizer: PreTrainedTokenizerBase,
    width: int = 2048,
    text_types: Sequence[int] = (0, 0),
    image_types: Sequence[int] = (1,),
) -> SingleStream:
    """UNITER from a BERT: cased; `add_types(bert, [1])` first for NLVR2, `add_types(bert, [0, 0])` for VCR."""
    return SingleStream(bert, tokenizer, UniterJoin(bert, width, text_types, image_types))


BUILDERS: dict[str, Callable[..., SingleStream]] = {
    "visualbert": visualbert,
    "vlbert": vlbert,
    "uniter": uniter,
}
"""Models by name."""


def join_to(start: Any, kind: str, width: int, **options: Any) -> SingleStream:
    """A new model of a kind around a loaded BERT, or `start` itself if it is a single-stream model already.

    Raises InputError if it is another encoder.
    """
    if isinstance(start, SingleStream):
        return start
    return BUILDERS[kind](bert_of(start), start.tokenizer, width, **options)


def bert_of(start: Any) -> BertModel:
    """The BERT inside a loaded text encoder; raises InputError if it holds another encoder."""
    if not isinstance(start, TextEncoder) or not isinstance(start.encoder, BertModel):
        raise InputError(
            f"expected a BERT or a single-stream model to start from, found a {type(start).__name__}"
        )
    return start.encoder


JOIN = "join.json"
"""Marks a folder of a single-stream model."""
CNN = "cnn"
"""Beside it, the folder of the CNN of a model that reads pixels; `end_to_end` loads these."""


def load_single_stream(folder: str | Path) -> SingleStream:
    """A single-stream model from a folder written by its `export`."""
    folder = Path(folder)
    try:
        described = json.loads((folder / JOIN).read_text(encoding="utf-8"))
        kind, early, options = (described[key] for key in ("kind", "early", "options"))
        weights = load_file(folder / "join.safetensors")
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(
            f"{folder}: its {JOIN} or join.safetensors cannot be read ({reason})"
        ) from None
    if kind not in JOINS:
        raise InputError(
            f"{folder / JOIN}: unknown kind {kind!r}; there are: {', '.join(sorted(JOINS))}"
        )
    text = load_text_encoder(folder / "bert")
    try:
        model = SingleStream(
            text.encoder, text.tokenizer, JOINS[kind](text.encoder, **options), early
        )
        own = model.state_dict()
        model.load_state_dict({k: v for k, v in own.items() if k.startswith("text.")} | weights)
    except (RuntimeError, TypeError) as error:
        reason = " ".join(str(error).split())[:160]
        raise InputError(f"{folder}: the join does not fit the BERT beside it ({reason})") from None
    return model


JOINED = Kind(
    "single-stream model",
    lambda source: (Path(source) / JOIN).exists() and not (Path(source) / CNN).exists(),
    load_single_stream,
)
