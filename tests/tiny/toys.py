"""Tiny everything, built from configurations: no network, no files. Also imported by the processes tests start."""

from __future__ import annotations

import io
import itertools
import json
import pickle
import random
from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import torch
from tokenizers import (
    ByteLevelBPETokenizer,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
)
from tokenizers.trainers import WordLevelTrainer
from transformers import (
    BertConfig,
    BertModel,
    BertTokenizer,
    CLIPConfig,
    CLIPModel,
    CLIPTokenizer,
    DebertaV2Config,
    DebertaV2Model,
    DebertaV2Tokenizer,
    ElectraConfig,
    ElectraModel,
    LxmertConfig,
    LxmertForPreTraining,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
    RobertaTokenizer,
    SiglipConfig,
    SiglipModel,
    T5Config,
    T5Model,
    ViltConfig,
    ViltForMaskedLM,
    ViTConfig,
    ViTModel,
)

from groundling.commands.train_clip.run import clip_tokenizer
from groundling.core.batch import Batch, Example, RegionRow, Sample
from groundling.core.rng import generator
from groundling.data.captions import CaptionPairs
from groundling.data.regions.samples import RegionDataset
from groundling.data.samples import ClipRowEncoder, TextDataset, TextRowEncoder
from groundling.models.clip import make_clip_text_tower
from groundling.models.cross_modal import CrossModalEncoder
from groundling.models.text_encoder import TextEncoder
from groundling.vision_language.single_stream import SingleStreamModel
from groundling.vision_language.visualbert import visualbert

torch.set_num_threads(1)

T = TypeVar("T")

WINDOW = 16
"""Positions of the tiny CLIP-like towers, so that longer sentences need several windows."""

BERT_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}
SPREAD = {"initializer_range": 0.2}


class Copier:
    """Makes copies of a thing; five times as fast as `deepcopy`, which walks a model's modules in Python."""

    def __init__(self, thing: Any) -> None:
        self.tensors: list[torch.Tensor] = []
        numbers: dict[int, int] = {}

        def number(part: Any) -> int | None:
            if not isinstance(part, torch.Tensor):
                return None
            if id(part) not in numbers:
                numbers[id(part)] = len(self.tensors)
                self.tensors.append(part)
            return numbers[id(part)]

        pickler = pickle.Pickler(out := io.BytesIO(), pickle.HIGHEST_PROTOCOL)
        pickler.persistent_id = number
        pickler.dump(thing)
        self.rest = out.getvalue()

    def __call__(self) -> Any:
        reader = pickle.Unpickler(io.BytesIO(self.rest))
        reader.persistent_load = [deepcopy(one) for one in self.tensors].__getitem__
        return reader.load()


def made_once(make: Callable[[], T]) -> Callable[[], T]:
    """The function, which makes its thing once and gives copies."""
    kept = cache(lambda: Copier(make()))
    return wraps(make)(lambda: kept()())


ODD = [
    "a naïve café owner isn't selling 1,000 crêpes – they're sold-out!",
    "two dogs 🐶🐕 chase 3 cats on Zürich's main-street at 10:30",
    "the girl's red-and-white hat cost $4.50, didn't it?",
    "snow_board_jump #7 ... 👩‍🚀 waves",
    "It's 100% über-cool & we'll see 2 of 'em",
]


@made_once
def sentences() -> list[str]:
    """205 invented captions; equal in every process."""
    rng = random.Random(0)
    who = "dog,girl,boy's horse,naïve clown,man,old woman,team,cat,café owner,biker"
    does = "runs,isn't sleeping,jumps,eats a crêpe,waits,can't swim,throws a ball,plays"
    how = "red,blue,tiny,well-known,wet,happy,grey,green-and-white"
    where = "on the beach,in a park,near 3 trees,at 10:30,by the river,on main-street 42,under a 🎈"
    parts = (part.split(",") for part in (how, who, does, where))
    chosen = rng.sample(list(itertools.product(*parts)), 200)
    made = [f"a {h} {w} {d} {p}" for h, w, d, p in chosen]
    return [
        f"{t} while {n} people watch" if (n := rng.randrange(12)) > 5 else t for t in made
    ] + ODD


def examples(count: int = 64) -> list[Example]:
    """Captions as examples; every eighth is a pair."""
    texts = sentences()
    return [
        Example(
            f"s{i}",
            texts[i],
            text_pair=texts[-1 - i] if i % 8 == 7 else None,
            label=int("dog" in texts[i]),
        )
        for i in range(count)
    ]


def images_of(*splits: list[Example]) -> list[str]:
    """The ids of all images in some examples, sorted."""
    return sorted({image for split in splits for example in split for image in example.images})


# -- tokenizers ------------------------------------------------------------------------------------------------------
@made_once
def bert_words() -> BertTokenizer:
    """Characters, two-letter tokens and frequent words. The trainer of `tokenizers` breaks ties by chance: not used."""
    normalizer, splitter = (
        normalizers.BertNormalizer(lowercase=True),
        pre_tokenizers.BertPreTokenizer(),
    )
    words = Counter(
        w for t in sentences() for w, _ in splitter.pre_tokenize_str(normalizer.normalize_str(t))
    )
    tokens = {c for w in words for c in w} | {f"##{c}" for w in words for c in w}
    tokens |= {f"##{w[i : i + 2]}" for w in words for i in range(1, len(w) - 1) if w.isascii()}
    tokens |= {w for w, n in words.items() if n > 25}
    return BertTokenizer(
        vocab={p: i for i, p in enumerate([*BERT_SPECIAL, *sorted(tokens)])}, do_lower_case=True
    )


@made_once
def clip_words() -> CLIPTokenizer:
    return clip_tokenizer(sentences(), 700)


@made_once
def roberta_words() -> RobertaTokenizer:
    learner = ByteLevelBPETokenizer()
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    learner.train_from_iterator(
        sentences(), 500, min_frequency=1, show_progress=False, special_tokens=special
    )
    model = json.loads(learner.to_str())["model"]
    return RobertaTokenizer(vocab=model["vocab"], merges=[tuple(m) for m in model["merges"]])


@made_once
def deberta_words() -> DebertaV2Tokenizer:
    """SentencePiece's unigrams: characters and frequent words, a space being part of the token after it."""
    words = Counter("▁" + w for t in sentences() for w in t.split())
    tokens = {c for w in words for c in w} | {w for w, n in words.items() if n > 25}
    special = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
    scored = [(p, 0.0) for p in special] + [
        (p, -2.0 if len(p) > 1 else -8.0) for p in sorted(tokens)
    ]
    return DebertaV2Tokenizer(vocab=scored)


@made_once
def siglip_words() -> PreTrainedTokenizerFast:
    """Whole words and an end token, no start token; pads with id 0, as SigLIP 2's tokenizer does."""
    learner = Tokenizer(models.WordLevel(unk_token="<unk>"))
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.train_from_iterator(
        sentences(),
        WordLevelTrainer(special_tokens=["<pad>", "<eos>", "<unk>"], show_progress=False),
    )
    learner.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=learner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )


# -- models ----------------------------------------------------------------------------------------------------------
def made(
    seed: int, model: type, config: type, vocabulary: int, positions: int = 64, **own: Any
) -> Any:
    """A text encoder of the sizes `SMALL`, always with the same weights."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": vocabulary, "max_position_embeddings": positions, **SMALL, **SPREAD}
    return model(config(**sizes, **own))


def bert(vocabulary: int, **options: Any) -> BertModel:
    return made(1, BertModel, BertConfig, vocabulary, **options)


def poolerless(vocabulary: int) -> BertModel:
    """As sentence encoders are saved: their library pools by itself."""
    torch.manual_seed(10)
    return BertModel(bert(vocabulary).config, add_pooling_layer=False)


def electra(vocabulary: int) -> ElectraModel:
    return made(2, ElectraModel, ElectraConfig, vocabulary, embedding_size=16)


def roberta(vocabulary: int) -> RobertaModel:
    own = {"type_vocab_size": 1, "layer_norm_eps": 1e-5}
    return made(3, RobertaModel, RobertaConfig, vocabulary, 66, **own)


def modernbert(vocabulary: int) -> ModernBertModel:
    own = {"local_attention": 16, "global_attn_every_n_layers": 2, "pad_token_id": 0}
    own |= {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3}
    return made(4, ModernBertModel, ModernBertConfig, vocabulary, **own)


def deberta(vocabulary: int) -> DebertaV2Model:
    """With the settings of version 3: relative positions alone, in buckets, and no segments."""
    own = {"type_vocab_size": 0, "position_biased_input": False, "relative_attention": True}
    own |= {"max_relative_positions": -1, "position_buckets": 8, "norm_rel_ebd": "layer_norm"}
    own |= {"share_att_key": True, "pos_att_type": "p2c|c2p", "layer_norm_eps": 1e-7}
    return made(9, DebertaV2Model, DebertaV2Config, vocabulary, **own)


def vit() -> ViTModel:
    return ViTModel(ViTConfig(image_size=16, patch_size=8, **SMALL))


def vilt(vocabulary: int) -> ViltForMaskedLM:
    """Patches of 8 pixels, with places for a square of 4 x 4."""
    torch.manual_seed(11)
    sizes = {"image_size": 32, "patch_size": 8, "max_position_embeddings": 40, **SMALL, **SPREAD}
    model = ViltForMaskedLM(ViltConfig(vocab_size=vocabulary, **sizes))
    with torch.no_grad():  # transformers starts positions and the class token at 0
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model


def t5(vocabulary: int) -> T5Model:
    return T5Model(
        T5Config(vocab_size=vocabulary, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2)
    )


def clip(tokenizer: PreTrainedTokenizerBase, width: int = 32, heads: int = 2) -> CLIPModel:
    torch.manual_seed(5)
    text = {
        "vocab_size": len(tokenizer),
        "max_position_embeddings": WINDOW,
        "projection_dim": 24,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = {"image_size": 16, "patch_size": 8, "projection_dim": 24}
    sizes = {**SMALL, "hidden_size": width, "num_attention_heads": heads}
    model = CLIPModel(
        CLIPConfig(
            projection_dim=24,
            text_config={**text, **sizes, **SPREAD},
            vision_config={**vision, **SMALL, **SPREAD},
        )
    )
    # HF scales CLIP's initialisation by another factor than `initializer_range`: spread what is too small to compare.
    torch.manual_seed(6)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.2)
    return model


def siglip(tokenizer: PreTrainedTokenizerBase) -> SiglipModel:
    torch.manual_seed(7)
    text = {"vocab_size": len(tokenizer), "max_position_embeddings": WINDOW, "projection_size": 32}
    vision = {"image_size": 16, "patch_size": 8}
    return SiglipModel(
        SiglipConfig(text_config={**text, **SMALL}, vision_config={**vision, **SMALL})
    )


# -- put together ----------------------------------------------------------------------------------------------------
def cross_modal(dropout: float | None = None) -> CrossModalEncoder:
    """BERT + CLIP text tower + two cross-modal layers, always with the same weights."""
    words, tokens = bert_words(), clip_words()
    names = () if dropout is None else ("hidden_dropout_prob", "attention_probs_dropout_prob")
    options = dict.fromkeys(names, dropout)
    text = TextEncoder(bert(len(words), **options), words)
    tower = make_clip_text_tower(clip(tokens))
    torch.manual_seed(8)
    return CrossModalEncoder(text, tower, 2, tokens)


def both_sides(count: int = 64, max_length: int = 40, max_windows: int = 0) -> TextDataset:
    return TextDataset(
        examples(count),
        TextRowEncoder(bert_words(), max_length),
        ClipRowEncoder(clip_words(), WINDOW, max_windows),
    )


def regions(seed: int, count: int, width: int = 12, classes: int = 5) -> RegionRow:
    """Random boxes with random features, none of them the whole image."""
    rng = np.random.default_rng(seed)
    corner, side = rng.uniform(0, 0.5, (2, count, 2)).astype(np.float32)
    return RegionRow(
        rng.normal(size=(count, width)).astype(np.float32),
        np.concatenate([corner, corner + side], 1),
        rng.random(count).astype(np.float32),
        np.zeros(count, np.int64),
        np.zeros(count, bool),
        rng.dirichlet(np.ones(classes), count).astype(np.float32),
    )


class RegionDict(dict[str, RegionRow]):
    """A region store in memory."""

    def count(self, image: str) -> int:
        return len(self[image].boxes)

    def size(self, image: str) -> tuple[int, int]:
        return 0, 0

    def in_annotated_order(self, image: str) -> bool:
        return True

    def appended_detections(self, image: str) -> int:
        return 0


def seen(count: int = 48, choices: tuple[str, ...] = ()) -> RegionDataset:
    """Texts, each with an image of 2 to 7 regions, and perhaps with choices."""
    store = RegionDict({f"image{i}": regions(i, 2 + i % 6) for i in range(count)})
    texts = [
        replace(e, images=(f"image{i}",), choices=choices) for i, e in enumerate(examples(count))
    ]
    return RegionDataset(TextDataset(texts, TextRowEncoder(bert_words(), 40)), store)


def lxmert(words: BertTokenizer) -> LxmertForPreTraining:
    """Two layers of text, one of regions and two of both; its regions are as wide as `seer`'s."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    layers = {"l_layers": 2, "r_layers": 1, "x_layers": 2}
    config = LxmertConfig(
        vocab_size=len(words), visual_feat_dim=12, num_qa_labels=3, num_object_labels=5,
        num_attr_labels=3, max_position_embeddings=64, **sizes, **layers, **SPREAD,
    )  # fmt: skip
    return LxmertForPreTraining(config)


def seer() -> SingleStreamModel:
    """A tiny VisualBERT, always with the same weights."""
    words = bert_words()
    torch.manual_seed(9)
    return visualbert(bert(len(words)), words, width=12)


class Clip:
    """Samples with what a CLIP of random features (24 of texts, 20 of images) says of each row; 0 to 2 words each.

    With a `vocabulary`, also the logits of a masked LM.
    """

    def __init__(
        self, samples: Any, words: int = 2, vocabulary: int = 0, image_width: int = 20
    ) -> None:
        self.image_width = image_width
        self.samples, self.words, self.vocabulary = samples, words, vocabulary
        self.ids, self.lengths, self.images = samples.ids, samples.lengths, samples.images

    def __len__(self) -> int:
        return len(self.samples)

    def get(self, indices: Any, rngs: Any = ()) -> list[Sample]:
        return [self._with(sample) for sample in self.samples.get(indices, rngs)]

    def _with(self, sample: Sample) -> Sample:
        numbers = iter(range(len(sample.rows)))
        return sample.each_row(
            lambda row: replace(
                row, features={**row.features, **self.said(row, f"{sample.id}-{next(numbers)}")}
            )
        )

    def said(self, row: Sample, key: str) -> dict[str, np.ndarray]:
        assert row.text is not None
        rng = generator("clip", key)
        there = np.unique(row.text.word_ids[row.text.word_ids >= 0])
        chosen = rng.permutation(there)[: rng.integers(self.words + 1)]
        word = np.full(self.words, -1, np.int64)
        word[: len(chosen)] = chosen
        of_words = unit(rng.normal(size=(self.words, 24)))
        logits = {}
        if self.vocabulary:
            size = (len(row.text.word_ids), self.vocabulary)
            logits["mlm_logits"] = rng.normal(size=size).astype(np.float32)
        return {
            **logits,
            "clip_image": unit(rng.normal(size=self.image_width)),
            "clip_text": unit(rng.normal(size=24)),
            "clip_similarity": np.array(rng.normal() * 2, np.float32),
            "clip_confidence": np.array(rng.random(), np.float32),
            "clip_words": np.where(word[:, None] >= 0, of_words, 0).astype(np.float32),
            "clip_word": word,
        }


class Vokens(Clip):
    """Samples with a random voken, of 24, for each token of each row; 0 for special tokens."""

    def said(self, row: Sample, key: str) -> dict[str, np.ndarray]:
        assert row.text is not None
        drawn = generator("vokens", key).integers(24, size=len(row.text.input_ids))
        return {"voken": np.where(row.text.special_tokens_mask, 0, drawn).astype(np.int32)}


def unit(values: np.ndarray) -> np.ndarray:
    """The same directions (..., D), each of length 1."""
    return (values / np.linalg.norm(values, axis=-1, keepdims=True)).astype(np.float32)


class Photos(Clip):
    """Samples with the image features (20) of a CLIP: random, and equal for captions of the same image."""

    def said(self, row: Sample, key: str) -> dict[str, np.ndarray]:
        assert row.example is not None
        rng = generator("photo", *row.example.images)
        return {"clip_image": unit(rng.normal(size=20))}


def captions(count: int = 48, each: int = 2, max_length: int = 40) -> Photos:
    """Captions for both sides, `each` of them of the same image."""
    texts = [replace(e, images=(f"image{i // each}",)) for i, e in enumerate(examples(count))]
    words = TextRowEncoder(bert_words(), max_length)
    return Photos(TextDataset(texts, words, ClipRowEncoder(clip_words(), WINDOW)))


def caption_pairs(count: int = 48, each: int = 2, max_length: int = 40) -> CaptionPairs:
    """Pairs of captions of the same image."""
    return CaptionPairs(captions(count, each, max_length), "toys")


class Pictures:
    """Captions (one window each) with a picture whose colours follow from the caption's number; two share an image."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, count: int = 32) -> None:
        self.texts = TextDataset(
            [Example(f"p{i}", t) for i, t in enumerate(sentences()[:count])],
            None,
            ClipRowEncoder(tokenizer, WINDOW, max_windows=1),
        )
        self.ids, self.lengths = self.texts.ids, self.texts.lengths
        self.images = [()] * count

    def __len__(self) -> int:
        return len(self.texts)

    def get(self, indices: Any, rngs: Any = ()) -> list[Sample]:
        return [
            replace(
                sample,
                pixels=np.random.default_rng(i // 2).integers(0, 256, (3, 16, 16), dtype=np.uint8),
                labels={"image": np.array(i // 2)},
            )
            for i, sample in zip(indices, self.texts.get(indices), strict=True)
        ]


def clip_ids(batch: Batch) -> torch.Tensor:
    """The ids (N, V) of a CLIP side's tokens, window after window; 0 in padding."""
    assert batch.clip is not None
    return batch.clip.flatten_states(batch.clip.input_ids.unsqueeze(-1)).squeeze(-1)
