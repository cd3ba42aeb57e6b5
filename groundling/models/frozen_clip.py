"""A frozen pair of CLIP-like towers, as teachers are: of Hugging Face, or any model of open_clip."""

from __future__ import annotations

import hashlib
import importlib
import string
import warnings
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from tokenizers import Regex, normalizers
from torch import Tensor, nn
from transformers import CLIPTokenizer, PreTrainedTokenizerBase

from groundling.core.batch import Batch, ClipWindows, Example, Sample, TextRow, collate, require
from groundling.core.errors import InputError, convert_errors, require_known
from groundling.data.samples import ClipRowEncoder
from groundling.data.text import word_spans
from groundling.models.attention import AttentionCallback
from groundling.models.clip import (
    CLIP_LIKE,
    ClipImageTower,
    ClipTextTower,
    load_clip_image_tower,
    load_clip_text_tower,
    main_input,
    reads_images,
)
from groundling.models.hub import (
    OPEN_CLIP,
    TIMM,
    is_open_clip,
    is_timm,
    library_errors,
    parse_open_clip,
)
from groundling.models.loading import check_finite, load_config, model_type, weights_sha256
from groundling.models.text_encoder import TextEncoder, load_text_encoder

TEXTS = 64
"""Number of texts that are embedded at a time."""


class FrozenClip:
    """A frozen CLIP-like image tower and text tower; one may be absent, and they may come from two models."""

    def __init__(
        self,
        image: ClipImageTower | None,
        text: ClipTextTower | None,
        tokenizer: PreTrainedTokenizerBase | None = None,
        share_space: bool = True,
        source: str = "",
    ) -> None:
        """`tokenizer`: the text tower's; `share_space`: both are of one model, the hub id or folder `source`."""
        for tower in (image, text):
            if tower is not None:
                tower.eval().requires_grad_(False)
        self.image = image
        self.text = text
        self.tokenizer = tokenizer
        self.share_space = share_space
        self.source = source
        self.windows: ClipRowEncoder | None = None
        if text is not None:
            own = require(tokenizer, "tokenizer", "a text side")
            self.windows = ClipRowEncoder(own, text.context_length, max_windows=1)

    def to(self, device: torch.device | str) -> None:
        """Move both towers to a device."""
        for tower in (self.image, self.text):
            if tower is not None:
                tower.to(device)

    @property
    def device(self) -> torch.device:
        """The device of the towers."""
        tower = self.text if self.text is not None else require(self.image, "image", "a teacher")
        return next(tower.parameters()).device

    def encode_images(self, batch: Batch, names: Sequence[str]) -> tuple[Tensor, Tensor]:
        """Pooled features (U, D) of each row's image, and embeddings (U, E) in the joint space.

        `names` (U,) identify the images; rows of one image share one forward pass.
        """
        tower = require(self.image, "image", "this teacher")
        first = {name: place for place, name in reversed(list(enumerate(names)))}
        order = {name: number for number, name in enumerate(first)}
        pixels = require(batch.pixels, "pixels", "a teacher of images")
        pooled = tower(pixels[list(first.values())])[[order[name] for name in names]]
        return pooled, tower.projection(pooled)

    def encode_texts(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Token states (U, V, D) of each row's text, and the state (U, D) at its end, before the projection."""
        tower = require(self.text, "text", "this teacher")
        windows = require(batch.clip, "clip", "a teacher of texts")
        states, ends = tower.forward_unprojected(windows)
        return windows.flatten_states(states), ends

    def project_texts(self, states: Tensor) -> Tensor:
        """Unit-length embeddings (..., E) in the joint space, of the text tower's states (..., D)."""
        return F.normalize(require(self.text, "text", "this teacher").projection(states), dim=-1)

    def tokenize(self, texts: Sequence[str]) -> list[tuple[TextRow, int]]:
        """Each text in one window, and its number of truncated tokens."""
        windows = require(self.windows, "text", "this teacher")
        examples = [Example(str(number), text) for number, text in enumerate(texts)]
        return windows.rows(examples, [(word_spans(text),) for text in texts])

    @torch.no_grad()
    def embed_texts(self, rows: Sequence[TextRow]) -> Tensor:
        """Unit-length embeddings (len(rows), E) in the joint space, of tokenized texts."""
        embedded = []
        for start in range(0, len(rows), TEXTS):
            some = rows[start : start + TEXTS]
            samples = [Sample(str(number), clip=row) for number, row in enumerate(some)]
            _, ends = self.encode_texts(collate(samples).to(self.device))
            embedded.append(self.project_texts(ends))
        return torch.cat(embedded)

    def tokenize_words(self, text: str) -> TextRow:
        """Each raw word of a text in a window of its own, as if it were a text; an empty text has one window."""
        words = [text[start:stop] for start, stop in word_spans(text)]
        rows = [row for row, _ in self.tokenize(words or [""])]
        window = [np.full(len(row.input_ids), number, np.int64) for number, row in enumerate(rows)]
        return TextRow(
            input_ids=np.concatenate([row.input_ids for row in rows]),
            special_tokens_mask=np.concatenate([row.special_tokens_mask for row in rows]),
            word_ids=np.concatenate([row.word_ids for row in rows]),
            token_type_ids=np.concatenate([row.token_type_ids for row in rows]),
            pad_token_id=rows[0].pad_token_id,
            window_index=np.concatenate(window),
        )

    @cached_property
    def image_key(self) -> dict[str, Any]:
        """Hash of the image tower's weights, and its preprocessing, as JSON."""
        tower = require(self.image, "image", "this teacher")
        return {"weights": weights_sha256(tower), "preprocessing": tower.preprocessing}

    @cached_property
    def text_key(self) -> dict[str, Any]:
        """Hashes of the text tower's weights and tokenizer, and its context length, as JSON."""
        tower = require(self.text, "text", "this teacher")
        windows = require(self.windows, "text", "this teacher")
        tokenizer = hashlib.sha256(windows.engine.to_str().encode()).hexdigest()
        return {
            "weights": weights_sha256(tower),
            "tokenizer": tokenizer,
            "positions": tower.context_length,
        }


def load_frozen_clip(source: str | Path, image: bool = True, text: bool = True) -> FrozenClip:
    """Load the towers of a CLIP-like model, or an image encoder or a text encoder alone.

    `source`: hub id or folder of Hugging Face, a model of open_clip, or an image encoder of timm.
    Raises InputError if a tower is missing.
    """
    if is_open_clip(source):
        return load_open_clip(str(source), image, text)
    if is_timm(source):
        return FrozenClip(load_timm(str(source)), None, source=str(source))
    tower = load_clip_image_tower(source) if image else None
    texts, tokenizer = load_text_tower(source) if text else (None, None)
    return FrozenClip(tower, texts, tokenizer, source=str(source))


def has_text_tower(source: str | Path) -> bool:
    """Whether a model, a source of `load_frozen_clip`, reads texts."""
    if is_open_clip(source):
        return True
    return not is_timm(source) and main_input(load_config(source)) != "pixel_values"


def has_image_tower(source: str | Path) -> bool:
    """Whether a model, a source of `load_frozen_clip`, reads images."""
    return is_open_clip(source) or is_timm(source) or reads_images(load_config(source))


def load_text_tower(source: str | Path) -> tuple[ClipTextTower, PreTrainedTokenizerBase]:
    """Load a CLIP-like text tower, or a text encoder as one, and its tokenizer."""
    if model_type(source) in CLIP_LIKE:
        return load_clip_text_tower(source)
    text = load_text_encoder(source)
    return EncoderTextTower(text), text.tokenizer


class EncoderTextTower(ClipTextTower):
    """A text encoder as a text tower; a text's feature is its sentence vector, or its first state, a decoder's last.

    A folder of sentence-transformers has sentence vectors, of its own pooling. The modules after the pooling are the
    projection, which is applied to every token too, as CLIP's is.
    """

    def __init__(self, text: TextEncoder) -> None:
        """Raises InputError for an encoder with a prompt."""
        nn.Module.__init__(self)
        self.encoder = text.encoder
        self.sentence = text.sentence
        self.causal = text.sizes.causal
        self.context_length = text.max_length
        self.states_width = self.embed_dim = text.sizes.text
        self.projection = nn.Identity()
        self.logit_scale = nn.Parameter(torch.zeros(()), requires_grad=False)
        if self.sentence is None:
            return
        name = text.tokenizer.name_or_path
        if self.sentence.prompt:
            raise InputError(f"{name}: a prompt is not supported: {self.sentence.prompt!r}")
        self.projection = self.sentence.after_pooling
        with convert_errors(f"{name}: sentence vectors are not made of one pooling"):
            self.embed_dim = _output_width(self.projection, self.states_width)
        if self.sentence.max_length:
            self.context_length = min(self.context_length, self.sentence.max_length)

    def forward(
        self, windows: ClipWindows, attention: AttentionCallback | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `ClipTextTower.forward`, without attention."""
        states, ends = self.forward_unprojected(windows)
        return self.projection(states), self.projection(ends)

    def forward_unprojected(self, windows: ClipWindows) -> tuple[Tensor, Tensor]:
        """Token states (W, S, D) and each window's pooled states (W, D)."""
        mask = windows.attention_mask
        states = self.encoder(windows.input_ids, attention_mask=mask.long()).last_hidden_state
        if self.sentence is None:
            number = torch.arange(len(states), device=states.device)
            return states, states[number, windows.eot_index if self.causal else 0]
        return states, self.sentence.pooling(states, mask)


def load_teacher_text(source: str | Path) -> tuple[ClipTextTower, PreTrainedTokenizerBase]:
    """Load the text tower and its tokenizer, as `load_frozen_clip` does."""
    clip = load_frozen_clip(source, image=False)
    return (
        require(clip.text, "text", str(source)),
        require(clip.tokenizer, "tokenizer", str(source)),
    )


# Teachers that open_clip loads. The towers are its modules as they are. Texts are tokenised by the Hugging Face engine
# of its tokenizer, which knows words, without the repair of broken characters (ftfy, HTML entities) before it.

NO_OPEN_CLIP = "open_clip cannot be imported; install it: pip install 'groundling[open_clip]'"
NO_TIMM = "timm cannot be imported; install it: pip install 'groundling[open_clip]'"
PUNCTUATION = Regex(f"[{''.join(chr(92) + one for one in string.punctuation)}]")


class OpenClipTextTower(ClipTextTower):
    """The text tower of an open_clip model: its TextTransformer, or a Hugging Face encoder."""

    def __init__(self, text: Any, logit_scale: Tensor, length: int, pad_token_id: int) -> None:
        """`length` in tokens, to which open_clip's tokenizer pads every text with `pad_token_id`."""
        nn.Module.__init__(self)
        self.is_hugging_face = hasattr(text, "pooler")
        if self.is_hugging_face:
            self.projection = text.proj
        else:
            self.projection = _take_projection(text, "text_projection")
        self.tower = text
        self.logit_scale = nn.Parameter(logit_scale.detach().reshape(()))
        width = text.transformer.config.hidden_size if self.is_hugging_face else 0
        self.states_width = int(width or text.ln_final.normalized_shape[0])
        self.embed_dim = _output_width(self.projection, self.states_width)
        self.context_length = length
        self.pad_token_id = pad_token_id

    def forward(
        self, windows: ClipWindows, attention: AttentionCallback | None = None
    ) -> tuple[Tensor, Tensor]:
        """As `ClipTextTower.forward`, without attention."""
        states, ends = self.forward_unprojected(windows)
        return self.projection(states), self.projection(ends)

    def forward_unprojected(self, windows: ClipWindows) -> tuple[Tensor, Tensor]:
        """Token states (W, S, D) after the final LayerNorm and each window's pooled state (W, D)."""
        tokens = windows.input_ids.shape[1]
        ids = windows.input_ids.masked_fill(~windows.attention_mask, self.pad_token_id)
        ids = F.pad(ids, (0, self.context_length - tokens), value=self.pad_token_id)
        if self.is_hugging_face:
            mask = (ids != self.tower.config.pad_token_id).long()
            out = self.tower.transformer(input_ids=ids, attention_mask=mask)
            return out.last_hidden_state[:, :tokens], self.tower.pooler(out, mask)
        out = self.tower.forward_intermediates(
            ids, indices=1, normalize_intermediates=True, output_fmt="NLC"
        )
        return out["text_intermediates"][0][:, :tokens], out["text_features"]


class OpenClipImageTower(ClipImageTower):
    """The image tower of an open_clip model or of timm; its features are before the projection, if it has one."""

    def __init__(self, visual: Any, transform: Any, preprocessing: Mapping[str, Any]) -> None:
        """`transform`: the library's, whose last two steps make a normalised tensor; `preprocessing`: its settings."""
        nn.Module.__init__(self)
        *self.steps, _, normalize = transform.transforms
        self.scale = 1 / 255
        self.register_buffer("mean", torch.as_tensor(normalize.mean).view(1, 3, 1, 1), False)
        self.register_buffer("std", torch.as_tensor(normalize.std).view(1, 3, 1, 1), False)
        self.preprocessing = {name: str(value) for name, value in preprocessing.items()}
        self.tower = visual
        self.projection = nn.Identity()
        visual.output_tokens = False  # CoCa's towers return patches too
        if hasattr(visual, "trunk") and not hasattr(visual.head, "pool"):
            self.tower, self.projection = visual.trunk, visual.head
        elif getattr(visual, "proj", None) is not None:
            self.projection = _take_projection(visual, "proj")
        with torch.no_grad():
            blank = self.preprocess(Image.new("RGB", (8, 8)))
            self.pooled_width = self.forward(torch.from_numpy(blank[None])).shape[1]
        self.embed_dim = _output_width(self.projection, self.pooled_width)

    def preprocess(self, image: Image.Image) -> np.ndarray:
        """An RGB image resized and cropped as open_clip does: (3, S, S) uint8, not normalised."""
        for step in self.steps:
            image = step(image)
        return np.asarray(image).transpose(2, 0, 1).copy()

    def forward(self, pixels: Tensor) -> Tensor:
        """As `ClipImageTower.forward`."""
        pooled: Tensor = self.tower((pixels.float() * self.scale - self.mean) / self.std)
        return pooled


def _take_projection(tower: Any, name: str) -> nn.Module:
    projection = getattr(tower, name)
    setattr(tower, name, None)
    if isinstance(projection, Tensor):  # multiplied from the right
        linear = nn.Linear(projection.shape[0], projection.shape[1], bias=False)
        linear.weight = nn.Parameter(projection.detach().T.contiguous())
        return linear
    return nn.Identity() if projection is None else projection


def _output_width(projection: nn.Module, width: int) -> int:
    return int(projection(torch.zeros(1, width)).shape[1])


def load_open_clip(source: str, image: bool, text: bool) -> FrozenClip:
    """Load the towers of an open_clip model with open_clip's own factory, in fp32.

    Raises InputError for a name that open_clip does not list, and for what it cannot load; pickled weights
    of a folder are not opened.
    """
    # A torchvision that does not fit torch raises a RuntimeError.
    with convert_errors(NO_OPEN_CLIP):
        library = importlib.import_module("open_clip")
    tag = None
    if source.startswith(OPEN_CLIP):
        name, tag = parse_open_clip(source)
        require_known(name, library.list_models(), f"{source}: open_clip lists no model {name}")
        tags = library.list_pretrained_tags_by_model(name)
        require_known(tag, tags, f"{source}: open_clip lists no weights {tag} of {name}")
    else:
        name = f"local-dir:{Path(source).absolute()}"
        if not any(Path(source).glob("*.safetensors")):
            raise InputError(f"{source}: no safetensors file; pickled weights are not opened")
    with (
        library_errors(source, "open_clip does not load it"),
        warnings.catch_warnings(),
        torch.random.fork_rng(devices=[]),  # for weights that the checkpoint replaces
    ):
        warnings.filterwarnings("error", "QuickGELU mismatch")  # trained with another activation
        model, transform = library.create_model_from_pretrained(name, tag, force_custom_text=True)
        check_finite(model.eval(), source)
        settings = model.visual.preprocess_cfg
        tower = OpenClipImageTower(model.visual, transform, settings) if image else None
        if not text:
            return FrozenClip(tower, None)
        own = library.get_tokenizer(name)
        tokenizer = _hugging_face_tokenizer(own)
        pad = int(tokenizer.pad_token_id) if hasattr(own, "tokenizer") else 0
        texts = OpenClipTextTower(model.text, model.logit_scale, own.context_length, pad)
        return FrozenClip(tower, texts, tokenizer, source=source)


def load_timm(source: str) -> OpenClipImageTower:
    """Load an image encoder of timm, timm:NAME or a folder of its format, without a classifier, in fp32.

    Raises InputError for a name that timm does not know, and for a folder without safetensors.
    """
    with convert_errors(NO_TIMM):
        library = importlib.import_module("timm")
    name = source.removeprefix(TIMM)
    if Path(name).is_dir():
        if not any(Path(name).glob("*.safetensors")):
            raise InputError(f"{name}: no safetensors file; pickled weights are not opened")
        name = f"local-dir:{Path(name).absolute()}"
    with library_errors(source, "timm does not load it"), torch.random.fork_rng(devices=[]):
        model = library.create_model(name, pretrained=True).float().eval()
        model.reset_classifier(0)
        settings = library.data.resolve_model_data_config(model)
        transform = library.data.create_transform(**settings)
        check_finite(model, source)
        return OpenClipImageTower(model, transform, settings)


def _hugging_face_tokenizer(tokenizer: Any) -> PreTrainedTokenizerBase:
    """A tokenizer of Hugging Face with the tokens of open_clip's; raises InputError if it has a mode of its own."""
    if not hasattr(tokenizer, "tokenizer"):  # CLIP's own
        ids = dict(tokenizer.encoder)
        for name, published in (("start", "startof"), ("end", "endof")):
            ids[f"<|{published}text|>"] = ids.pop(f"<{name}_of_text>")
        merges: list[Any] = list(tokenizer.bpe_ranks)
        return CLIPTokenizer(vocab=ids, merges=merges)
    if getattr(tokenizer, "strip_sep_token", False) or getattr(tokenizer, "tokenizer_mode", ""):
        raise InputError("a tokenizer with strip_sep_token or tokenizer_mode is not supported")
    own: PreTrainedTokenizerBase = tokenizer.tokenizer
    clean = getattr(getattr(tokenizer, "clean_fn", None), "__name__", "_clean_canonicalize")
    steps: list[Any] = []
    if clean == "_clean_canonicalize":  # SigLIP
        steps += [normalizers.Replace("_", " "), normalizers.Replace(PUNCTUATION, "")]
    if clean != "_clean_whitespace":
        steps.append(normalizers.Lowercase())
    steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    engine = own.backend_tokenizer
    engine.normalizer = normalizers.Sequence([*steps, *filter(None, [engine.normalizer])])
    return own
