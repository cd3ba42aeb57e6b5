"""CLIP and its kin as a teacher of an image, a text and the words that matter most (CLIP-TD, Section 3.1; MAD)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from groundling.core.batch import Aside, Batch, Example, Sample, collate, needed
from groundling.core.errors import InputError
from groundling.core.keyed import generator
from groundling.data.clusters import Clusters, kmeans_1d
from groundling.data.images import Picture, digest_of, read_picture
from groundling.data.regions.pictures import pictures_of
from groundling.data.samples import Samples
from groundling.data.text.keywords import (
    BuiltIn,
    Keywords,
    keyword_importance,
    select,
    select_random,
    token_scores,
)
from groundling.data.text.words import spans
from groundling.models.clip import last_pieces
from groundling.settings.objectives import Targeted
from groundling.teachers import Teacher, origin
from groundling.teachers.kept import BATCH
from groundling.teachers.taught import each_of
from groundling.teachers.towers import Towers

FEATURES = (
    "clip_image",
    "clip_text",
    "clip_similarity",
    "clip_words",
    "clip_word",
    "clip_confidence",
)
"""What objectives may ask for; see `ClipTeacher`."""
SCORED_IMAGE = "clip_scored_image"
SCORED_TEXT = "clip_scored_text"
"""Embeddings in the space in which image and text are compared, where features are in another one."""


RELEVANCE = "clip_relevance"
"""The cosine of image and each raw word, which is not handed out."""


@dataclass(frozen=True)
class Answers:
    """How sure a teacher is of an image's answer: its softmax over all answers of the task, as texts (VQA)."""

    texts: tuple[str, ...]


@dataclass(frozen=True)
class Anchors:
    """How sure a teacher is of a class: each class is a cluster of the training data's similarities (SNLI-VE).

    The logit of a class is minus the squared distance to its centre, over twice the variance around all centres.
    """

    classes: int


class ClipTeacher(Teacher):
    """What a CLIP-like model says of each row's image and text; only what is asked for is computed.

    Features by row, float32: `clip_image` (N, Ei) and `clip_text` (N, Et), of unit length; `clip_similarity` (N,), the
    cosine of both times CLIP's own scale; `clip_words` (N, M, Et), of unit length, of the M words that matter most,
    each as its last piece shows it, and `clip_word` (N, M) int64, which raw words of the row these are, zeros and -1
    beyond; `clip_confidence` (N,), the largest share of its softmax over the task's answers.

    A row's text is its first text and, after a space, its second, in one window, cut from the end. The words that
    matter are those with the most visual relevance (cosine of image and word) and keyword importance (Eq. 5 and 6).
    """

    name = "clip"

    def __init__(
        self,
        towers: Towers,
        wants: Collection[str],
        options: Targeted | None = None,
        *,
        scorer: Towers | None = None,
        keywords: Keywords | None = None,
        sure_of: Answers | Anchors | None = None,
        pictures: Mapping[str, Picture] | None = None,
    ) -> None:
        """A teacher that is asked for `wants`, some of `FEATURES`.

        Args:
            towers: what makes the features.
            wants: what is asked for.
            options: the folder of the images, the space of the features, and how words are selected.
            scorer: another CLIP-like model, which compares image and text; without one, the towers themselves do.
            keywords: finds the keywords of a text; without, the built-in extractor does.
            sure_of: what `clip_confidence` is about.
            pictures: the images by id; without, those in the folder of the images.

        Raises InputError if something is asked for that these cannot say.
        """
        self.towers = towers
        self.options = options or Targeted()
        self.scorer = scorer or towers
        self.keywords = keywords or BuiltIn()
        self.sure_of = sure_of
        self.wants = tuple(name for name in (*FEATURES, SCORED_IMAGE, SCORED_TEXT) if name in wants)
        self.pictures = pictures
        self.files: dict[str, Picture] = {}
        self.digests: dict[str, str] = {}
        self.answers: list[Tensor] = []
        self.anchors: list[Clusters] = []
        text, image = towers.text, towers.image
        joint = self.options.space == "joint"
        if text is not None:
            self.width = text.width if joint else int(text.projection.in_features)
        else:
            self.width = 0
        if image is not None:
            self.image_width = image.width if joint else image.pooled_width
        self._check()

    def _check(self) -> None:
        asked = self._lacking(())
        if "clip_confidence" in asked and self.sure_of is None:
            raise InputError("a teacher's confidence needs a task with answers to be sure of")
        compares = {"clip_similarity", "clip_confidence"} & asked
        if (compares or ("clip_words" in asked and self._ranks)) and not self.scorer.joined:
            raise InputError(
                "image and text side of the teacher are of different models and share no space; pass "
                "--teacher-scorer MODEL, a CLIP-like model that compares image and text"
            )
        if self._sees(asked) and self.pictures is None and not self.options.teacher_images:
            raise InputError(
                f"a teacher that is asked for {', '.join(self.wants)} needs --teacher-images FOLDER"
            )
        if self.options.words < 1:
            raise InputError(f"words = {self.options.words}, expected at least 1")

    # -- what depends on what ----------------------------------------------------------------------------------------

    @property
    def scored_image(self) -> str:
        """The feature in which an image is compared with texts."""
        own = self.scorer is self.towers and self.options.space == "joint"
        return "clip_image" if own else SCORED_IMAGE

    @property
    def scored_text(self) -> str:
        """The feature in which a text is compared with images."""
        own = self.scorer is self.towers and self.options.space == "joint"
        return "clip_text" if own else SCORED_TEXT

    @property
    def _ranks(self) -> bool:
        """Whether words are selected by what they are worth, and not by chance."""
        return self.options.select == "top"

    def _lacking(self, known: Collection[str]) -> set[str]:
        """What has to be computed for what is asked for, where some features are known."""
        lacking = set(self.wants) - set(known)
        if "clip_confidence" in lacking:
            lacking.add(
                "clip_similarity" if isinstance(self.sure_of, Anchors) else self.scored_image
            )
            lacking -= set(known)
        if "clip_similarity" in lacking:
            lacking |= {self.scored_image, self.scored_text}
        if {"clip_words", "clip_word"} & lacking:
            lacking |= {"clip_words", "clip_word"}
            if self._ranks:
                lacking.add(self.scored_image)
        return lacking - set(known)

    def _of_image(self) -> set[str]:
        """Features that depend on the image alone."""
        sure = {"clip_confidence"} if isinstance(self.sure_of, Answers) else set()
        return {"clip_image", SCORED_IMAGE} | sure

    def _of_text(self) -> set[str]:
        """Features that depend on the text alone."""
        words = set() if self._ranks else {"clip_words", "clip_word"}
        return {"clip_text", SCORED_TEXT} | words

    def _sees(self, asked: Collection[str]) -> bool:
        return not set(asked) <= self._of_text()

    def _reads(self, asked: Collection[str]) -> bool:
        return not set(asked) <= self._of_image()

    def parts(self) -> Sequence[Teacher]:
        """One for images, one for texts, one for words, and one for what follows from these; as are needed."""
        asked = self._lacking(())
        # How sure it is follows from the image in no time; kept with it, a gate would need images of its own.
        groups: list[tuple[str, set[str], Literal["always", "fixed", "never"]]] = [
            ("clip_images", {"clip_image", SCORED_IMAGE}, "always"),
            ("clip_texts", {"clip_text", SCORED_TEXT}, "fixed"),
            ("clip_words", {"clip_words", "clip_word"}, "fixed"),
            ("clip_scores", {"clip_similarity", "clip_confidence"}, "never"),
        ]
        parts = []
        for name, group, keeps in groups:
            if group & asked:
                part = copy(self)
                part.name = name
                part.wants = tuple(sorted(group & asked))
                part.keeps = keeps
                part.counts = name != "clip_words" or not self._read_before_words(asked)
                parts.append(part)
        return parts

    def _read_before_words(self, asked: Collection[str]) -> bool:
        """Whether the part for texts reads with the towers what the part for words reads again."""
        own = {"clip_text"} if self.scorer is not self.towers else {"clip_text", SCORED_TEXT}
        return not own.isdisjoint(asked)

    def key(self) -> dict[str, Any]:
        """Weights, preprocessing, tokenizers, and the settings on which what is asked for depends."""
        key: dict[str, Any] = {"features": sorted(self.wants), "space": self.options.space}
        for name, towers in (("teacher", self.towers), ("scorer", self.scorer)):
            if name == "scorer" and towers is self.towers:
                continue
            if self._sees(self.wants) and towers.image is not None:
                key[f"{name}_image"] = towers.image_key
            of_text = self._reads(self.wants) or "clip_confidence" in self.wants
            if of_text and towers.text is not None:
                key[f"{name}_text"] = towers.text_key
        if "clip_words" in self.wants:
            chosen = {"words": self.options.words, "select": self.options.select}
            key["selection"] = chosen
            if self._ranks:
                extractor = self.keywords
                kind = extractor if hasattr(extractor, "__qualname__") else type(extractor)
                key["selection"] |= {"relevance": self.options.relevance, "keywords": origin(kind)}
        if "clip_confidence" in self.wants and isinstance(self.sure_of, Answers):
            listed = json.dumps(self.sure_of.texts).encode()
            key["answers"] = hashlib.sha256(listed).hexdigest()
        return key

    # -- what it reads -----------------------------------------------------------------------------------------------

    def to(self, device: torch.device | str) -> ClipTeacher:
        """Move the towers."""
        self.towers.to(device)
        self.scorer.to(device)
        return self

    def fit(self, samples: Samples) -> ClipTeacher:
        """Find the images, and the classes' clusters among the similarities of all rows.

        Raises InputError if an example has no image or several, or if an image is missing.
        """
        if self._sees(self._lacking(())):
            who = f"a teacher that is asked for {', '.join(self.wants)}"
            where = self.options.teacher_images if self.pictures is None else self.pictures
            self.files.update(pictures_of(samples, where, who))
        if isinstance(self.sure_of, Anchors) and "clip_confidence" in self.wants:
            self._cluster(samples, self.sure_of.classes)
        return self

    def _cluster(self, samples: Samples, classes: int) -> None:
        if self.anchors:
            return
        found: list[np.ndarray] = []
        rows: list[Sample] = []
        one = copy(self)
        one.wants = ("clip_similarity",)
        for number, sample in enumerate(each_of(samples), 1):
            rows += sample.rows
            if len(rows) >= BATCH or number == len(samples):
                found.append(
                    one.features(collate(one.inputs(rows)))["clip_similarity"].cpu().numpy()
                )
                rows = []
        self.anchors.append(kmeans_1d(np.concatenate(found), classes))

    def ids(self, rows: Sequence[Sample]) -> list[str]:
        """A hash of the text, of the image's file, or of both, as far as what is asked for depends on them.

        Of the text belongs which words may be selected, if the student does not read all of them.
        """
        sees, reads = self._sees(self.wants), self._reads(self.wants)
        ids = []
        for row in rows:
            example = needed(row.example, "example", "a teacher")
            text = text_of(example)
            lost = _unread(row, text) if "clip_words" in self.wants else ()
            parts = [_digest(f"{text}\n{lost}" if lost else text)] if reads else []
            parts += [self._image_id(example)] if sees else []
            ids.append("|".join(parts))
        return ids

    def _image_id(self, example: Example) -> str:
        (name,) = example.images
        if name not in self.digests:
            self.digests[name] = digest_of(self.files[name])[:32]
        return self.digests[name]

    def inputs(self, rows: Sequence[Sample]) -> list[Sample]:
        """Pixels and texts, as far as they are needed beside the features that the rows have already."""
        known = [name for name in rows[0].features if name in self._carried()]
        lacking = self._lacking(known)
        examples = [needed(row.example, "example", "a teacher") for row in rows]
        texts = [text_of(example) for example in examples]
        inputs = [
            Sample(name, features={feature: row.features[feature] for feature in known})
            for name, row in zip(self.ids(rows), rows, strict=True)
        ]
        inputs = self._with_texts(inputs, texts, lacking)
        if "clip_words" in lacking:
            inputs = [
                self._with_words(one, text, _unread(row, text))
                for one, text, row in zip(inputs, texts, rows, strict=True)
            ]
        return self._with_pictures(inputs, examples, lacking)

    def _carried(self) -> set[str]:
        """Features of other parts that are of use."""
        return self._lacking(()) | {"clip_similarity", SCORED_IMAGE, SCORED_TEXT, self.scored_image}

    def _with_texts(
        self, inputs: list[Sample], texts: Sequence[str], lacking: set[str]
    ) -> list[Sample]:
        """Inputs with their texts."""
        words = "clip_words" in lacking
        own = words or "clip_text" in lacking
        scored = SCORED_TEXT in lacking or (words and self._ranks)
        if own or (scored and self.scorer is self.towers):
            rows = self.towers.rows(texts)
            inputs = [
                replace(one, clip=row, dropped=dropped)
                for one, (row, dropped) in zip(inputs, rows, strict=True)
            ]
        if scored and self.scorer is not self.towers:
            others = [row for row, _ in self.scorer.rows(texts)]
            inputs = [
                _beside(one, "scorer", clip=row) for one, row in zip(inputs, others, strict=True)
            ]
        return inputs

    def _with_words(self, one: Sample, text: str, lost: Sequence[int]) -> Sample:
        """An input with what is needed to select its words: `candidate` and `importance` (K,), or `clip_word` (M,)."""
        places = spans(text)
        # Of a word that was cut off for either side nothing can be compared.
        is_candidate = _are_words(text, places)
        is_candidate[list(lost)] = False
        for row in (one.clip, one.asides["scorer"].clip if "scorer" in one.asides else None):
            if row is not None:
                is_candidate &= np.isin(np.arange(len(places)), row.word)
        if not self._ranks:
            rng = generator("clip_words", text)
            chosen = select_random(is_candidate, self.options.words, rng)
            return replace(one, features={**one.features, "clip_word": self._numbers(chosen)})
        worth = keyword_importance(text, places, self.keywords)
        features = {"candidate": is_candidate, "importance": worth}
        one = replace(one, features={**one.features, **features})
        if self.options.relevance == "isolated":
            one = _beside(one, "alone", clip=self.scorer.alone(text))
        return one

    def _numbers(self, chosen: np.ndarray) -> np.ndarray:
        """The numbers of selected words (M,) int64, -1 beyond."""
        numbers = np.full(self.options.words, -1, np.int64)
        numbers[: len(chosen)] = chosen
        return numbers

    def _with_pictures(
        self, inputs: list[Sample], examples: Sequence[Example], lacking: set[str]
    ) -> list[Sample]:
        apart = self.scorer is not self.towers
        own = "clip_image" in lacking or (SCORED_IMAGE in lacking and not apart)
        scored = SCORED_IMAGE in lacking and apart
        if not (own or scored):
            return inputs
        pixels: dict[str, tuple[np.ndarray | None, np.ndarray | None]] = {}
        out = []
        for one, example in zip(inputs, examples, strict=True):
            (name,) = example.images
            if name not in pixels:
                pixels[name] = self._pixels(name, own, scored)
            mine, others = pixels[name]
            one = replace(one, pixels=mine)
            out.append(_beside(one, "scorer", pixels=others) if scored else one)
        return out

    def _pixels(
        self, name: str, own: bool, scored: bool
    ) -> tuple[np.ndarray | None, np.ndarray | None]:
        """An image as the towers and as the scorer see it; raises InputError if its file is no image."""
        path = self.files[name]
        try:
            image = read_picture(path)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
        seen = []
        for towers, wanted in ((self.towers, own), (self.scorer, scored)):
            side = (
                needed(towers.image, "image", "what is asked of this teacher") if wanted else None
            )
            seen.append(None if side is None else side.pixels(image))
        return seen[0], seen[1]

    # -- what it says ------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def features(self, batch: Batch) -> dict[str, Tensor]:
        """What is asked for, by name; see the class."""
        batch = batch.to(self.scorer.device)
        known = [name for name in batch.features if name in self._carried()]
        # Words by chance are chosen with the inputs; their features are not known by that.
        lacking = self._lacking([name for name in known if name != "clip_word"])
        found = dict(batch.features)
        self._say_images(batch, lacking, found)
        self._say_texts(batch, lacking, found)
        if "clip_similarity" in lacking:
            scale = needed(self.scorer.text, "text", "a similarity").logit_scale.exp()
            pairs = found[self.scored_image] * found[self.scored_text]
            found["clip_similarity"] = scale * pairs.sum(-1)
        if "clip_confidence" in lacking:
            found["clip_confidence"] = self._confidence(found)
        return {name: found[name] for name in self.wants}

    def known(self, batch: Batch, features: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """Nothing: no objective counts by these."""
        return {}

    @torch.no_grad()
    def word_scores(self, rows: Sequence[Sample]) -> list[tuple[np.ndarray, np.ndarray]]:
        """By what the words of rows are selected: the score (K,) of each raw word, and which are candidates (K,) bool.

        Words that are none score 0. For a teacher that is asked for `clip_words`, chosen by what they are worth.
        """
        batch = collate(self.inputs(rows)).to(self.scorer.device)
        lacking = self._lacking(())
        found = dict(batch.features)
        self._say_images(batch, lacking, found)
        self._say_texts(batch, lacking, found)
        return self._worths(batch, found[RELEVANCE])

    def _say_images(self, batch: Batch, lacking: set[str], found: dict[str, Tensor]) -> None:
        names = [name.rpartition("|")[2] for name in batch.ids]
        apart = self.scorer is not self.towers
        if "clip_image" in lacking or (SCORED_IMAGE in lacking and not apart):
            pooled, joint = self.towers.pictures(batch, names)
            own = joint if self.options.space == "joint" else pooled
            found["clip_image"] = F.normalize(own, dim=-1)
            found[SCORED_IMAGE] = F.normalize(joint, dim=-1)
        if SCORED_IMAGE in lacking and apart:
            aside = batch.asides["scorer"]
            names = [name.rpartition("|")[2] for name in aside.batch.ids]
            _, joint = self.scorer.pictures(aside.batch, names)
            found[SCORED_IMAGE] = F.normalize(joint, dim=-1)[aside.row]

    def _say_texts(self, batch: Batch, lacking: set[str], found: dict[str, Tensor]) -> None:
        words = "clip_words" in lacking
        apart = self.scorer is not self.towers
        scored = SCORED_TEXT in lacking
        states: Tensor | None = None
        if words or "clip_text" in lacking or (scored and not apart):
            states, ends = self.towers.texts(batch)
            found["clip_text"] = self._unit(ends)
            if not apart:
                found[SCORED_TEXT] = F.normalize(_projected(self.towers, ends), dim=-1)
        contextual = words and self._ranks and self.options.relevance == "contextual"
        compared = states
        if apart and (scored or contextual):
            aside = batch.asides["scorer"]
            other, ends = self.scorer.texts(aside.batch)
            compared = other[aside.row]
            found[SCORED_TEXT] = F.normalize(_projected(self.scorer, ends), dim=-1)[aside.row]
        if words and states is not None:
            if self._ranks:
                found[RELEVANCE] = self._relevance(batch, compared, found)
                found["clip_word"] = self._selected(batch, found[RELEVANCE])
            found["clip_words"] = self._words(batch, states, found["clip_word"])

    def _unit(self, states: Tensor) -> Tensor:
        """States (..., D) of the text side as features (..., Et)."""
        if self.options.space == "joint":
            states = _projected(self.towers, states)
        return F.normalize(states, dim=-1)

    def _relevance(
        self, batch: Batch, states: Tensor | None, found: Mapping[str, Tensor]
    ) -> Tensor:
        """The cosine (U, K) of each row's image and each of its raw words."""
        count = batch.features["candidate"].shape[1]
        image = found[self.scored_image]
        if self.options.relevance == "isolated":
            return self._alone(batch.asides["alone"], image, count)
        read = batch if self.scorer is self.towers else batch.asides["scorer"].batch
        windows = needed(read.clip, "clip", "visual relevance")
        last = last_pieces(windows.word, count)
        if self.scorer is not self.towers:
            last = last[batch.asides["scorer"].row]
        of_words = _at(needed(states, "states", "visual relevance"), last)
        of_words = F.normalize(_projected(self.scorer, of_words), dim=-1)
        return (of_words @ image.unsqueeze(-1)).squeeze(-1)

    def _alone(self, aside: Aside, image: Tensor, count: int) -> Tensor:
        """The same of words that are each a text by itself."""
        windows = needed(aside.batch.clip, "clip", "visual relevance")
        side = needed(self.scorer.text, "text", "visual relevance")
        _, ends = side.unprojected(windows)
        ends = F.normalize(side.projection(ends), dim=-1)
        number = torch.arange(len(ends), device=ends.device)
        begins = torch.searchsorted(windows.row.contiguous(), windows.row.contiguous())
        place = number - begins
        by_row = ends.new_zeros(aside.batch.rows, max(count, int(place.max()) + 1), ends.shape[1])
        by_row[windows.row, place] = ends
        return (by_row[aside.row, :count] @ image.unsqueeze(-1)).squeeze(-1)

    def _selected(self, batch: Batch, relevance: Tensor) -> Tensor:
        """Numbers (U, M) of the words that matter most; raises InputError for a cosine that is no number."""
        chosen = [
            self._numbers(select(scores, candidates, self.options.words))
            for scores, candidates in self._worths(batch, relevance)
        ]
        return torch.from_numpy(np.stack(chosen)).to(relevance.device)

    def _worths(self, batch: Batch, relevance: Tensor) -> list[tuple[np.ndarray, np.ndarray]]:
        """Scores (K,) of each row's words and which are candidates (K,); raises InputError as `_selected`."""
        is_candidate = batch.features["candidate"].cpu().numpy()
        importance = batch.features["importance"].cpu().numpy()
        cosines = relevance.double().cpu().numpy()
        found = []
        for row, candidates in enumerate(is_candidate):
            if not np.isfinite(cosines[row][candidates]).all():
                raise InputError(
                    f"{self._named(batch.ids[row])}: the teacher's similarity of the image and a word of its text is "
                    "not a finite number; its weights may be damaged"
                )
            found.append((token_scores(cosines[row], importance[row], candidates), candidates))
        return found

    def _named(self, name: str) -> str:
        """The image of an input, as the data calls it."""
        digest = name.rpartition("|")[2]
        return next((image for image, own in self.digests.items() if own == digest), digest)

    def _words(self, batch: Batch, states: Tensor, chosen: Tensor) -> Tensor:
        """Features (U, M, Et) of selected words (U, M), zeros where there is none."""
        windows = needed(batch.clip, "clip", "features of words")
        count = 1 + max(0, int(windows.word.max()))
        last = last_pieces(windows.word, count).gather(1, chosen.clamp(min=0))
        return self._unit(_at(states, last)) * (chosen >= 0).unsqueeze(-1)

    def _confidence(self, found: Mapping[str, Tensor]) -> Tensor:
        """The largest share (U,) of the softmax over the answers."""
        if isinstance(self.sure_of, Answers):
            return self._of_answers(found[self.scored_image], self.sure_of.texts)
        similarity = found["clip_similarity"]
        (clusters,) = self.anchors
        logits = torch.from_numpy(clusters.logits(similarity.cpu().numpy()))
        return logits.softmax(-1).amax(-1).to(similarity)

    def _of_answers(self, image: Tensor, texts: Sequence[str]) -> Tensor:
        """The largest share (U,) of the softmax over answers, whose embeddings are computed once."""
        side = needed(self.scorer.text, "text", "an answer's embedding")
        if not self.answers:
            rows = [row for row, _ in self.scorer.rows(texts)]
            self.answers.append(self.scorer.embedded(rows))
        answers = torch.cat(self.answers).to(image.device)
        return (side.logit_scale.exp() * image @ answers.T).softmax(-1).amax(-1)


def text_of(example: Example) -> str:
    """What CLIP reads of a row: its first text and, after a space, its second, without a head's cue.

    Raw words keep the numbers that they have in the row (`Tokens.word`): the space ends the first text's last word.
    """
    text = example.text if example.pair is None else f"{example.text} {example.pair}"
    return text.removesuffix(example.cue).rstrip() if example.cue else text


def _are_words(text: str, places: np.ndarray) -> np.ndarray:
    """Which raw words (K,) bool are words, and no marks."""
    return np.array([text[start].isalnum() for start, _ in places], bool)


def _unread(row: Sample, text: str) -> tuple[int, ...]:
    """The words of a row's text of which the student has no piece, because they were cut off or have none."""
    if row.text is None or row.words is None:
        return ()
    unread = np.ones(len(row.words) + 1, bool)
    unread[row.text.word] = False  # -1, no word, is the place behind the last one
    if not unread[:-1].any():
        return ()
    is_word = _are_words(text, spans(text))  # a head's cue is behind them
    return tuple(np.flatnonzero(unread[: len(is_word)] & is_word).tolist())


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _beside(one: Sample, name: str, **parts: Any) -> Sample:
    """An input with more to be read beside it: under `name`, by a tower of its own."""
    aside = replace(one.asides.get(name, Sample(one.id)), **parts)
    return replace(one, asides={**one.asides, name: aside})


def _projected(towers: Towers, states: Tensor) -> Tensor:
    side = needed(towers.text, "text", "what is asked of this teacher")
    projected: Tensor = side.projection(states)
    return projected


def _at(states: Tensor, places: Tensor) -> Tensor:
    """States (U, V, D) at places (U, K): (U, K, D); the first one's where there is none (-1)."""
    index = places.clamp(min=0).unsqueeze(-1).expand(-1, -1, states.shape[-1])
    return states.gather(1, index)
