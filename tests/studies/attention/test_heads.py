"""Heads as classifiers of phrases: equal to plain loops, worked cases, and no map is stored."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import toys
from tiny.attention import HEADS, LAYERS, StubAttention, entities, samples_of, three_regions

from groundling.cli import main
from groundling.core.batch import Batch, EncoderOutput, Example, GoldBoxes, RegionRow
from groundling.core.errors import InputError
from groundling.data.regions.samples import RegionDataset
from groundling.data.samples import SampleDataset, TextDataset, TextRowEncoder
from groundling.data.text import word_spans
from groundling.models.attention import (
    AttentionMap,
    SequencePositions,
    region_positions,
    text_positions,
)
from groundling.studies.attention.grounding import (
    HeadGrounding,
    HeadLeaderboard,
    PhraseBaselines,
    PhraseSpan,
    PhraseStatus,
    assign_halves,
    query_tokens,
)
from groundling.studies.attention.inspected_models import (
    OtherImageStore,
    consume_attention,
    shuffle_images,
)
from groundling.tasks.grounding import FLICKR30K, MERGED, union_box

TEXTS = ("a wet dog near 3 trees", "two cats wait", "the café owner throws a ball to a naïve clown")


class Pointing(StubAttention):
    """Head h always attends most to region h."""

    def weights(self, name: str, layer: int, size: int) -> np.ndarray:
        made = np.full((self.heads, size, size), 0.01, np.float32)
        for head in range(self.heads):
            made[head, :, size - self.heads + head] = 1
        return made


def phrase(example: Example, words: str, *boxes: list[float]) -> PhraseSpan:
    start = example.text.index(words)
    own = replace(example, gold_boxes=GoldBoxes(np.array(boxes, float), (100, 100)))
    return PhraseSpan(own, start, start + len(words))


def row(boxes: list[list[float]], whole: bool = False, confidence: Any = None) -> RegionRow:
    """Regions with boxes in per cent of both sides; with `whole`, the first is the whole image."""
    count = len(boxes)
    return RegionRow(
        np.eye(count, 6, dtype=np.float32),
        np.array(boxes, np.float32) / 100,
        np.array(confidence or [1] * count, np.float32),
        np.zeros(count, np.int64),
        np.arange(count) == (0 if whole else -1),
    )


@pytest.fixture(scope="module")
def text() -> TextRowEncoder:
    return TextRowEncoder(toys.bert_words(), 40)


@pytest.fixture(scope="module")
def many(text) -> tuple[SampleDataset, list[list[PhraseSpan]], dict[str, RegionRow]]:
    """14 texts on 7 images of 1 to 7 regions, half of which are gold boxes, with 1 to 3 phrases each."""
    rng = np.random.default_rng(0)
    store = {f"image{n}": toys.regions(n, 1 + n) for n in range(7)}
    examples, phrases = [], []
    for n in range(14):
        example = Example(f"t{n}", TEXTS[n % 3], images=(f"image{n % 7}",))
        words = [("dog", "3 trees", "a wet dog"), ("two cats",), ("owner", "naïve clown")][n % 3]
        boxes = store[example.images[0]].boxes * 100
        own = []
        for one in words:
            gold = boxes[rng.integers(0, 2, len(boxes)) > 0].tolist() or [[0, 0, 1, 1]]
            own.append(phrase(example, one, *gold))
        examples.append(example)
        phrases.append(own)
    return samples_of(examples, store, text), phrases, store


# -- equal to plain loops ----------------------------------------------------------------------------------------------
def plainly(samples: Any, phrases: Any, reading: str) -> tuple[np.ndarray, np.ndarray]:
    """Hits and region shares (Q, layers x heads) from the model's own maps, one number at a time."""
    model = StubAttention()
    hits, shares = [], []
    for index, own in enumerate(phrases):
        (sample,) = samples.get([index], ())
        tokens, words = len(sample.text.input_ids), sample.text.word_ids
        for one in own:
            inner = "".join(" " if c.isspace() else "x" for c in one.example.text)
            first = len(inner[: one.start].split())
            last = first + len(inner[one.start : one.stop].split()) - 1
            asked = [place for place in range(tokens) if first <= words[place] <= last]
            if reading == "last":
                asked = asked[-1:]
            gold = one.example.gold_boxes.boxes
            right = [max(_iou(box * 100, g) for g in gold) >= 0.5 for box in sample.regions.boxes]
            hits.append([])
            shares.append([])
            for layer in range(LAYERS):
                weights = model.weights(sample.id, layer, tokens + len(right))
                weights = weights / weights.sum(-1, keepdims=True)
                for head in range(HEADS):
                    sent = [weights[head, place, tokens:] for place in asked]
                    scores = [sum(each) / len(sent) for each in zip(*sent, strict=True)]
                    hits[-1].append(right[scores.index(max(scores))])
                    shares[-1].append(sum(scores))
    return np.array(hits), np.array(shares)


def _iou(a: Any, b: Any) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    both = max(0, wide) * max(0, high)
    return both / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both)


@pytest.mark.parametrize(("reading", "batch"), [("last", 1), ("mean", 4)])
def test_one_streamed_pass_equals_loops_over_held_maps(reading: Any, batch: int, many: Any) -> None:
    """Also of two groups, as of two relations."""
    samples, phrases, _ = many
    texts = [one.text for one in samples.get([0, 2], ())]
    assert any(np.unique(one.word_ids[1:-1]).size < len(one.word_ids) - 2 for one in texts)
    halves = [n % 2 for n in range(14)]
    grouped = [[replace(one, group=n % 2) for n, one in enumerate(own)] for own in phrases]
    grounding = HeadGrounding(grouped, FLICKR30K.label_regions, halves, reading)
    consume_attention(StubAttention(), samples, grounding, batch)
    hits, shares = plainly(samples, phrases, reading)
    assert 0.2 < hits.mean() < 0.9 and len(set(hits.mean(0))) > 3
    half = np.repeat(halves, [len(own) for own in phrases])
    for group in (0, 1):
        found = grounding.result(group)
        own = np.array([one.group for own in grouped for one in own]) == group
        assert (found.is_right == hits[own]).all() and (found.half == half[own]).all()
        assert found.heads == [("self", n, h) for n in range(LAYERS) for h in range(HEADS)]
        for side in (0, 1):
            expected = shares[own & (half == side)].mean(0)
            assert found.half_means[side, :, 0] == pytest.approx(expected, abs=1e-6)


# -- nothing is held, and cost is one pass -----------------------------------------------------------------------------
# -- worked cases (methods.md F) ---------------------------------------------------------------------------------------
LEFT, RIGHT, BOTH, FAR = [0, 0, 40, 40], [60, 0, 100, 40], [0, 0, 100, 40], [0, 60, 30, 100]


def hits(
    text: TextRowEncoder,
    own: RegionRow,
    task: Any = FLICKR30K,
    gold: Any = (LEFT, RIGHT),
    **seeing: Any,
) -> tuple[list[bool], PhraseBaselines]:
    """Which heads are right, each of which attends to one region; and the phrase's statistics."""
    example = Example("t", "a wet dog waits", images=("i",))
    boxes = np.array(gold)
    if task is MERGED:
        boxes = union_box(boxes)
    asked = [phrase(example, "dog", *boxes.tolist()), phrase(example, "a wet", *boxes.tolist())]
    samples = samples_of([example], {"i": own}, text, **seeing)
    grounding = HeadGrounding([asked], task.label_regions, [0])
    consume_attention(Pointing(1, len(own)), samples, grounding)
    found = grounding.result()
    assert (found.is_right[0] == found.is_right[1]).all()
    return found.is_right[0].tolist(), found.baselines


def test_any_box_and_merged_box(text: TextRowEncoder) -> None:
    own = row([LEFT, RIGHT, BOTH, FAR, [0, 0, 20, 40], [0, 0, 20, 39]])
    right, facts = hits(text, own)
    # Half of the left box is just enough; a box around both is too large for either.
    assert right == [True, True, False, False, True, False]
    assert facts.chance.tolist() == [0.5, 0.5] and facts.has_matching_region.all()
    right, facts = hits(text, own, MERGED)
    assert right == [False, False, True, False, False, False]
    # A phrase without a right region is a miss, not left out.
    right, facts = hits(text, row([FAR, FAR]), MERGED)
    assert right == [False, False] and not facts.has_matching_region.any()
    assert (facts.status == PhraseStatus.SCORED).all()


def test_the_whole_image_is_no_answer_and_of_equals_the_first_counts(text: TextRowEncoder) -> None:
    own = row([[0, 0, 100, 100], LEFT, FAR, RIGHT], whole=True)
    gold = ([0, 0, 100, 100], LEFT)
    right, facts = hits(text, own, gold=gold, whole_image=True)
    # The head that attends to the whole image predicts the first of the other regions, which are equal.
    assert right == [True, True, False, False]
    assert facts.chance[0] == pytest.approx(1 / 3)
    right, facts = hits(text, row([[0, 0, 100, 100]], whole=True), gold=gold, whole_image=True)
    assert right == [False] and not facts.has_matching_region.any()


@pytest.mark.parametrize(
    ("own", "right", "known"),
    [
        (row([FAR, LEFT, RIGHT], confidence=[0.5, 0.9, 0.9]), True, True),
        (row([FAR, LEFT], confidence=[0.9, 0.9]), False, False),  # no detector told them apart
        (row([FAR, LEFT, RIGHT], True, [0.2, 0.1, 0.3]), True, True),  # the first is no candidate
    ],
)
def test_the_rule_takes_the_most_confident_region(own, right, known, text):
    _, facts = hits(text, own, whole_image=bool(own.is_whole_image.any()))
    assert facts.confident_is_right.tolist() == [right] * 2
    assert facts.has_confidence.tolist() == [known] * 2


def test_where_a_phrase_is_asked(text: TextRowEncoder) -> None:
    example = Example("t", "a naïve clown's 3 hats")
    short = TextRowEncoder(toys.bert_words(), 8)
    (sample,), (cut,) = (TextDataset([example], one).get([0]) for one in (text, short))
    word_ids = sample.text.word_ids

    def asked(start: int, stop: int, of: Any = sample) -> tuple[np.ndarray, PhraseStatus]:
        return query_tokens(PhraseSpan(example, start, stop), of)

    for stop, words in ((15, [1, 2, 3, 4]), (13, [1, 2])):  # a, naïve, clown, ', s, 3, hats
        tokens, state = asked(2, stop)
        assert state == PhraseStatus.SCORED and sorted(set(word_ids[tokens])) == words
        assert tokens[-1] + 1 == np.flatnonzero(word_ids == words[-1] + 1)[0]
    assert asked(2, 11)[1] == asked(3, 13)[1] == PhraseStatus.SPLITS_WORD
    last, spans = int(cut.text.word_ids.max()), word_spans(example.text)
    assert cut.truncated_tokens and last == 2
    statuses = [asked(0, spans[word][1], cut)[1].name for word in (last - 1, last, last + 1)]
    assert statuses == ["SCORED", "TRUNCATED", "TRUNCATED"]  # the second perhaps
    for start, stop in ((3, 3), (4, 2), (-1, 3), (20, 23), (1, 2)):
        with pytest.raises(InputError, match=f"^t: .* from character {start} to {stop} is not in "):
            asked(start, stop)


def test_phrases_that_cannot_be_asked_are_counted_and_cost_the_others_nothing() -> None:
    short = TextRowEncoder(toys.bert_words(), 10)
    example = Example("t", "a dog \u200b and the café owner throws a ball", images=("i",))
    asked = [phrase(example, words, LEFT) for words in ("a dog", "a do", "\u200b", "a ball")]
    samples = samples_of([example], {"i": row([LEFT, FAR])}, short)
    grounding = HeadGrounding([asked], FLICKR30K.label_regions, [0])
    consume_attention(Pointing(2, 2), samples, grounding)
    found = grounding.result()
    names = ("SCORED", "SPLITS_WORD", "NO_TOKENS", "TRUNCATED")
    assert found.baselines.status.tolist() == [PhraseStatus[name] for name in names]
    assert found.is_right.tolist() == [[True, False] * 2, *[[False] * 4] * 3]
    assert np.isnan(found.half_means[1]).all(), "no phrase in the other half"


class Blind(StubAttention):
    """All attention to the first token."""

    def weights(self, name: str, layer: int, size: int) -> np.ndarray:
        return np.eye(1, size, dtype=np.float32) * np.ones((self.heads, size, 1), np.float32)


class Deaf(StubAttention):
    """No maps."""

    def forward(self, batch: Batch, attention: Any) -> EncoderOutput:
        return EncoderOutput()


def test_regions_without_attention_are_refused(text: TextRowEncoder) -> None:
    example = Example("t", "a dog", images=("i",))
    samples = samples_of([example], {"i": row([LEFT, FAR])}, text)
    grounding = HeadGrounding([[phrase(example, "a dog", LEFT)]], FLICKR30K.label_regions, [0])
    consume_attention(Deaf(), samples, grounding)
    with pytest.raises(InputError, match="no attention from text to regions"):
        grounding.result()
    with pytest.raises(InputError, match=r"^a head of layer 0 gives the regions no attention"):
        consume_attention(Blind(), samples, grounding)
    with pytest.raises(InputError, match="the data contains no examples"):
        consume_attention(StubAttention(), samples_of([], {}, text), grounding)


# -- controls ----------------------------------------------------------------------------------------------------------
def test_every_image_gets_another_ones_looks_and_keeps_its_boxes() -> None:
    images = [f"image{n}" for n in range(9)] * 2
    partner = shuffle_images(images, 0)
    assert sorted(partner) == sorted(partner.values()) == sorted(set(images))
    assert all(one != other for one, other in partner.items())
    assert partner == shuffle_images(images, 0) != shuffle_images(images, 1)
    with pytest.raises(InputError, match="1 image, and the control with other images"):
        shuffle_images(["a", "a"], 0)
    three, two = row([BOTH, LEFT, FAR, RIGHT], whole=True), row([FAR, LEFT])
    store = OtherImageStore(toys.RegionDict({"a": three, "b": two}), {"a": "b", "b": "a"})
    seen = store["a"]
    assert (seen.boxes == three.boxes).all() and (seen.is_whole_image == three.is_whole_image).all()
    assert seen.features[1:].argmax(1).tolist() == [0, 1, 0], "the other's, again from the first"
    assert (seen.features[0] == two.features.mean(0)).all()
    assert store["b"].features.argmax(1).tolist() == [1, 2], "not the other's whole image"
    assert ("a" in store, "c" in store, store.count("b")) == (True, False, 2)


class Looking(StubAttention):
    """Head 0 attends to the region with the features that the phrase names; head 1 to the first region; 2 to text."""

    def forward(self, batch: Batch, attention: Any) -> EncoderOutput:
        places = SequencePositions.concatenate(
            text_positions(batch.text), region_positions(batch.regions)
        )
        size = places.kinds.shape[1]
        count = batch.regions.features.shape[1]
        weights = torch.full((len(batch), 3, size, size), 0.001)
        looks = batch.regions.features.argmax(-1)
        named = (batch.text.word_ids % 4).unsqueeze(-1) == looks[:, None]
        weights[:, 0, :-count, -count:] += named.float()
        weights[:, 1, :, -count] += 1
        weights[:, 2, :, 0] += 1
        weights[:, 2, :-count, -count:] += 0.01 * named
        attention(AttentionMap("self", 0, weights / weights.sum(-1, keepdim=True), places, places))
        return EncoderOutput()


def looked_at(text: TextRowEncoder, others: bool) -> tuple[HeadLeaderboard, list[str]]:
    """40 images of four objects in four places, in any order; each phrase, a word, names one by its number."""
    rng = np.random.default_rng(1)
    spots = [LEFT, RIGHT, FAR, [60, 60, 100, 100]]
    store, examples, phrases = {}, [], []
    for n in range(40):
        order = rng.permutation(4)
        own = replace(row(spots), features=np.eye(4, 6, dtype=np.float32)[order])
        store[f"i{n}"] = own
        example = Example(f"t{n}", "a dog on main", images=(f"i{n}",))
        place = n % 4
        word = example.text.split()[order[place]]
        phrases.append([phrase(example, word, spots[place])])
        examples.append(example)
    images = list(store)
    shelf: Any = toys.RegionDict(store)
    if others:
        shelf = OtherImageStore(shelf, shuffle_images(images, 0))
    samples = RegionDataset(TextDataset(examples, text), shelf)
    half_of = assign_halves(images, 0)
    grounding = HeadGrounding(
        phrases, FLICKR30K.label_regions, [half_of[image] for image in images]
    )
    consume_attention(Looking(), samples, grounding)
    return grounding.result(), images


def test_a_head_that_looks_falls_to_chance_before_other_images(text: TextRowEncoder) -> None:
    found, images = looked_at(text, False)
    null, _ = looked_at(text, True)
    half_of = assign_halves(images, 0)
    assert sum(half_of.values()) == 20
    own = {"image": np.arange(40), "min_region_share": 0.2, "is_right_shuffled": null.is_right}
    told = replace(found, **own).report()
    assert told["chosen"] == ["0-0", "0-0"] and told["active_heads"] == 2
    assert told["held_out"] == {"value": 100.0, "interval": [100.0, 100.0]}
    assert told["chance"]["value"] == 25 and told["upper_bound"]["value"] == 100
    assert told["confidence"] is None
    assert 5 <= told["other_images"]["value"] <= 45
    low, high = told["held_out_less_other_images"]["interval"]
    assert 50 < low < told["held_out_less_other_images"]["value"] < high <= 100
    looking, first, idle = told["heads"]
    # Positions do not change with the features, so a head that uses positions keeps its accuracy.
    assert first["accuracy"] == first["other_images"] == 25.0
    assert (looking["accuracy"], looking["active"]) == (100, True)
    assert idle["accuracy"] == 100 and not idle["active"], "it is right, but hardly looks"
    assert told["layers"][0]["mean"] == pytest.approx(75)


# -- the best of many --------------------------------------------------------------------------------------------------
def board(hits: np.ndarray, half: np.ndarray, active: np.ndarray, **more: Any) -> HeadLeaderboard:
    count, heads = hits.shape
    ones = np.ones(count, bool)
    facts = PhraseBaselines(np.zeros(count, int), ones, ones, ones * 0.5, ones)
    means = np.stack([np.stack([a, a, a], -1) for a in active])
    names = [("self", n, 0) for n in range(heads)]
    own = {"image": np.arange(count), "min_region_share": 0.2, **more}
    return HeadLeaderboard(facts, hits, means, names, half, **own)


def test_heads_are_chosen_on_one_half_and_scored_on_the_other() -> None:
    half = np.arange(8) % 2
    # Right on half 0 alone, on half 1 alone, on three quarters of all; and on all, but hardly active.
    columns = [half == 0, half == 1, np.arange(8) > 1, np.ones(8, bool)]
    active = np.array([[0.5, 0.5, 0.5, 0.2]] * 2)
    one = board(np.stack(columns, 1), half, active)
    told = one.report()
    assert told["chosen"] == ["0-0", "1-0"], "each is perfect where it was chosen"
    assert told["held_out"]["value"] == 0, "and worthless elsewhere"
    assert told["best"] == {"head": "2-0", **told["best"]} and told["best"]["value"] == 75
    assert told["held_out_less_rule"]["value"] == -100
    three = [layer["held_out"] for layer in told["layers"]]
    assert [layer and layer["value"] for layer in three] == [50, 50, 75, None]
    told = board(np.stack(columns, 1), half, active * 0.1).report()
    assert told["held_out"] is None and told["chosen"] == [None, None] and told["best"] is None
    lonely = board(np.stack(columns, 1)[:1], half[:1], active).report()
    assert lonely["held_out"] is None and lonely["chosen"] == ["0-0", None]


def test_intervals_are_over_images() -> None:
    """Ten equal phrases of an image give no more information than one."""
    rng = np.random.default_rng(0)
    half = np.arange(40) % 2
    hits = rng.random((40, 1)) < 0.5
    active = np.ones((2, 1))
    once = board(hits, half, active).report()["best"]
    ten = board(np.repeat(hits, 10, 0), np.repeat(half, 10), active)
    assert replace(ten, image=np.repeat(np.arange(40), 10)).report()["best"] == once
    apart = ten.report()["best"]["interval"]
    assert apart[1] - apart[0] < 0.5 * (once["interval"][1] - once["interval"][0])


# -- the command -------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two captions of each of three images, a store of their regions, a model, and a text encoder."""
    folder = tmp_path_factory.mktemp("heads")
    marked = "a [/EN#1/people wet dog] near [/EN#2/other/clothing 3 trees] by [/EN#0/notvisual it]"
    other = "[/EN#3/scene main-street] and [/EN#1/people two cats]"
    entities(folder, [marked, other])
    toys.seer().text.export(folder / "text")
    return folder


def run(place: Path, out: Path, *more: str) -> int:
    usual = {"--model": "model", "--data": "data", "--regions": "store"}
    given = [word for flag in usual.keys() - set(more) for word in (flag, f"{place}/{usual[flag]}")]
    return main(["heads", *given, "--cpu", "--out", str(out), *more])


def test_the_command_writes_all_heads(place: Path, tmp_path: Path, capsys: Any) -> None:
    assert run(place, tmp_path / "out", "--min-region-attention", "0.1") == 0
    shown = capsys.readouterr().out
    assert "heads count from 0" in shown and "the region of highest confidence" in shown
    assert (tmp_path / "out/heads.svg").read_bytes()[:5] == b"<?xml"
    told = json.loads((tmp_path / "out/result.json").read_text())
    counts = told["counts"]
    assert (counts["images"], counts["texts"], counts["asked"]) == (3, 6, 9)
    assert counts["without_box"] == 6
    assert told["upper_bound"]["value"] == 100 and told["confidence"]["value"] == 66.67
    assert told["held_out_less_other_images"] is not None
    heads = [(one["layer"], one["head"]) for one in told["heads"]]
    assert heads == [(layer, head) for layer in (0, 1) for head in (0, 1)]
    few = ["--no-shuffled-images-control", "--untrained"]
    assert run(place, tmp_path / "few", *few, "--query", "mean") == 0
    told = json.loads((tmp_path / "few/result.json").read_text())
    assert (told["counts"]["texts"], told["counts"]["asked"]) == (6, 9)
    assert told["other_images"] is None


def test_the_control_reads_other_images(place: Path, tmp_path: Path) -> None:
    """It equals a run on a store in which other images' features were written under the boxes."""
    told = []
    rng = np.random.default_rng(0)
    looks = {str(n): 30 * rng.normal(size=(3, 12)).astype(np.float32) for n in range(3)}
    partner = shuffle_images(list(looks), 0)
    three_regions(tmp_path / "own", list(looks), looks)
    others = {image: looks[other] for image, other in partner.items()}
    three_regions(tmp_path / "others", list(looks), others)
    # Images differ in their captions, or a permutation would leave the mean as it is.
    shutil.copytree(place / "data", tmp_path / "data")
    for image, kept in (("0", 1), ("2", 0)):
        path = tmp_path / f"data/Sentences/{image}.txt"
        path.write_text(path.read_text().splitlines()[kept] + "\n")
    for store, control in ((tmp_path / "own", True), (tmp_path / "others", False)):
        more = () if control else ("--no-shuffled-images-control",)
        out = tmp_path / f"run-{store.name}"
        flags = ("--regions", str(store), "--data", str(tmp_path / "data"), *more)
        assert run(place, out, *flags, "--min-region-attention", "0") == 0
        told.append(json.loads((out / "result.json").read_text())["heads"])
    control, expected = told
    assert [one["other_images"] for one in control] == [one["accuracy"] for one in expected]
    assert [one["other_images"] for one in control] != [one["accuracy"] for one in control]


@pytest.mark.parametrize(
    ("flags", "complaint"),
    [
        (("--model", "{0}/text"), "reads no regions: TextEncoder, expected RegionEncoder"),
        (("--task", "vqa"), "task=vqa: its answers are not regions"),
        (("--split", "dev"), "dev.txt: "),
        (("--images", "{0}"), "this model reads stored features, no pixels; leave out images"),
        (("--max-length", "3"), "no phrase is left on which a head can be scored"),
        (("--regions", "{0}/nowhere"), "nowhere"),
    ],
)
def test_mistakes_are_one_line(flags, complaint, place, tmp_path, capsys):
    assert run(place, tmp_path / "out", *(flag.format(place) for flag in flags)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert complaint in line
