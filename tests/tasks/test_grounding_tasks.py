"""VCR, RefCOCO+ and Flickr30k Entities: files in their true formats, scores told another way."""

import io
import json
import os
import pickle
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import vcr_files
from tiny.homes import put, refused
from tiny.tasks import json_lines

from groundling.core.batch import RegionRow
from groundling.core.output_types import RegionSelection
from groundling.core.registry import resolve
from groundling.data.regions.annotations import read_vcr_objects
from groundling.tasks import Task, grounding, vcr
from groundling.tasks.grounding import (
    FLICKR30K,
    MERGED,
    UNITER,
    VL_BERT,
    IouCriterion,
    read_captions,
)
from groundling.tasks.vcr import ANSWER, RATIONALE, q_to_ar, read_items, render_text


def test_losses_over_regions_are_those_of_their_formulas() -> None:
    torch.manual_seed(0)
    outputs = (torch.randn(5, 6) * 3).requires_grad_()
    labels = torch.randint(0, 2, (5, 6))
    labels[1], labels[2, 4:], labels[3] = 0, -100, torch.tensor([1, 0, 0, -100, -100, -100])
    expected = {"bce": 0.0, "ce": 0.0, "kl": 0.0}
    for x, y in zip(outputs.detach().double().numpy(), labels.numpy(), strict=True):
        x, y = x[y >= 0], y[y >= 0]
        p = 1 / (1 + np.exp(-x))
        expected["bce"] -= float((y * np.log(p) + (1 - y) * np.log(1 - p)).sum())
        for share, q in zip(y / max(1, y.sum()), np.exp(x) / np.exp(x).sum(), strict=True):
            expected["ce"] -= float(share * np.log(q))
            expected["kl"] += float(share * np.log((share or 1) / q))
    for kind, value in expected.items():
        for fill in (5.0, -torch.inf):
            loss = RegionSelection(kind=kind).loss(outputs.masked_fill(labels < 0, fill), labels)
            (slope,) = torch.autograd.grad(loss, outputs)
            assert loss.item() == pytest.approx(value, rel=1e-5) and slope.isfinite().all()
    scores = np.array([[0.5, 2, 2, -np.inf], [-3, -4, -np.inf, -np.inf]])
    assert RegionSelection().predict(scores).tolist() == [1, 0]
    message = refused(RegionSelection().parse_label, "1", "f, line 2")
    assert message == "f, line 2: label '1', expected none for this task"


OBJECTS = ["person", "pottedplant", "person", "cellphone"]
BOXES = [[10.0, 5.0, 50.5, 95.0, 0.9], [0, 0, 100, 50, 0.8], [60, 10, 100, 100, 0.7]]
BOXES += [[40, 40, 80, 80, 0.99]]
CHOICES = ("Because [2] left .", "No .", "[{}] 's idea .", "Everyone did .")


def line(n: int, labelled: bool = True) -> dict[str, Any]:
    choices = [choice.format(n % 4) for choice in CHOICES]
    question = "Why is [0,2] near [1] ?"
    row = vcr_files.row(n, question, choices, choices[::-1], (n % 4, n // 4 % 4), OBJECTS)
    return row if labelled else {k: v for k, v in row.items() if not k.endswith("_label")}


@pytest.fixture
def stills(tmp_path: Path) -> Path:
    put(tmp_path / "val.jsonl", json_lines(*map(line, range(40))))
    put(tmp_path / "test.jsonl", json_lines(line(7, False), line(8, False)))
    segments = [[[[x, y], [x, y + 40], [x + 20, y + 40], [x + 20, y]]] for x, y, *_ in BOXES]
    content = {"boxes": BOXES, "segms": segments, "names": OBJECTS, "width": 100, "height": 100}
    for n in range(3):
        put(tmp_path / f"vcr1images/movie/{n}.json", json.dumps(content))
    return tmp_path


def test_vcr_reads_tokens_and_tags(stills: Path) -> None:
    answers, reasons = ANSWER.read(stills, "val"), RATIONALE.read(stills, "val")
    assert resolve("tasks", Task, "vcr/rationale") is RATIONALE
    first = answers[1]
    assert first.object_count == len(OBJECTS)  # B7: a store of another number is refused
    told = (first.id, first.label, first.images)
    assert told == ("vcr-answer-val-1", 1, ("movie/1",))
    assert first.text == "Why is Casey Jessie near pottedplant ?"
    tagged = [(first.text[a:b], n) for a, b, n in first.region_tags]
    assert tagged == [("Casey", 0), ("Jessie", 2), ("pottedplant", 1)]
    choices = "Because Jessie left .|No .|pottedplant 's idea .|Everyone did ."
    assert "|".join(first.choices) == choices
    assert first.choice_region_tags == (((8, 14, 2),), (), ((0, 11, 1),), ())
    # The rationale is asked after the right answer, whose tags move along.
    assert (reasons[2].id, reasons[2].label) == ("vcr-rationale-val-2", 0)
    assert reasons[2].text == "Why is Casey Jessie near pottedplant ? Jessie 's idea ."
    assert reasons[2].choices == answers[2].choices[::-1]
    assert reasons[2].choice_region_tags == answers[2].choice_region_tags[::-1]
    assert render_text([[16]], ["person"] * 17) == ("Riley", ((0, 5, 16),))


def test_objects_and_masks_of_vcr(stills: Path) -> None:
    path = stills / "vcr1images/movie/0.json"
    found = read_vcr_objects(path)
    assert (found.size, found.names) == ((100, 100), tuple(OBJECTS))
    assert np.allclose(found.boxes, np.array(BOXES)[:, :4] / 100) and found.confidence[
        3
    ] == np.float32(0.99)
    # Of a 100 x 50 box, 20 x 40 at its corner; the middle of a cell decides.
    mask = found.mask(1)
    middles = (np.arange(14) + 0.5) / 14
    assert np.array_equal(mask, (middles < 0.8)[:, None] & (middles < 0.2)) and mask.dtype == bool


def test_joint_accuracy_of_vcr_and_the_servers_file(stills: Path) -> None:
    rng, asked = np.random.default_rng(0), read_items(stills, "val")
    many = [replace(asked[n % 40], id=f"v-{n}") for n in range(3000)]
    answers, reasons = ({i.id: int(rng.integers(4)) for i in many} for _ in range(2))
    told = dict.fromkeys(("Q->A", "QA->R", "Q->AR"), 0)
    for i in many:
        told["Q->A"] += answers[i.id] == i.answer
        told["QA->R"] += reasons[i.id] == i.rationale
        told["Q->AR"] += answers[i.id] == i.answer and reasons[i.id] == i.rationale
    assert q_to_ar(answers, reasons, many[::-1]) == {name: n / 3000 for name, n in told.items()}
    assert refused(q_to_ar, answers, {}, many[:2]).endswith("missing for v-0 (2 such)")
    hidden, reasons_asked = ANSWER.read(stills, "test"), RATIONALE.read(stills, "test")
    assert [e.label for e in (*hidden, *reasons_asked)] == [None] * 10
    assert [e.id[-8:] for e in reasons_asked] == [f"val-{n}-a{k}" for n in (7, 8) for k in range(4)]
    assert [e.text[39:] for e in reasons_asked[:4]] == list(hidden[0].choices)
    # C4: official ids are fields, and keys are built of them.
    assert [e.official_id for e in hidden] == ["val-7", "val-8"]
    assert [e.official_id for e in reasons_asked] == [
        vcr.conditioned_id(f"val-{n}", k) for n in (7, 8) for k in range(4)
    ]
    scores = {e.official_id: rng.normal(size=4) * 3 for e in (*hidden, *reasons_asked)}
    own = {e.official_id: scores[e.official_id] for e in hidden}
    head, *rows = (row.split(",") for row in vcr.leaderboard(own, scores).splitlines())
    groups = ["answer", *(f"rationale_conditioned_on_a{n}" for n in range(4))]
    assert head == ["annot_id", *(f"{group}_{n}" for group in groups for n in range(4))]
    for name, *shares in rows:
        given = [scores[name], *(scores[vcr.conditioned_id(name, n)] for n in range(4))]
        expected = np.concatenate([np.exp(one) / np.exp(one).sum() for one in given])
        assert list(map(float, shares)) == pytest.approx(expected, rel=1e-4)
    assert [row[0] for row in rows] == ["val-7", "val-8"]
    assert "no scores for 'val-7-a0'" in refused(vcr.leaderboard, own, {})


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"question": ["Is", [4], "?"]}, "line 2: expected lists of words and of tags"),
        ({"rationale_choices": [["a"], ["b"], ["c"], [[-1]]]}, "line 2: expected lists of words"),
        ({"question": ["Is", [0.0], "?"]}, "line 2: expected lists of words"),
        ({"question": "Why?"}, "line 2: expected lists of words"),
        ({"objects": [1, 2, 3, 4]}, "line 2: a name in objects is not a text"),
        ({"answer_choices": [["a"], ["b"], ["c"], []]}, "line 2: expected lists of words"),
        ({"answer_choices": [["a"]] * 3}, "line 2: expected 4 answers and 4 rationales"),
        ({"answer_label": 4}, "line 2: label '4' is not one of 0, 1, 2, 3"),
        ({"annot_id": "val-0"}, "line 2: repeated annot_id val-0"),
        (None, "line 2: cannot be read (KeyError: 'answer_label')"),
    ],
)
def test_faults_of_vcr_name_file_and_line(fault: Any, complaint: str, tmp_path: Path) -> None:
    second = json_lines(line(1, fault is not None) | (fault or {}))
    path = put(tmp_path / "val.jsonl", json_lines(line(0)) + second)
    assert refused(read_items, tmp_path, "val").startswith(f"{path}, {complaint}")
    put(tmp_path / "test.jsonl", json_lines(line(0), line(1, False)))
    assert refused(read_items, tmp_path, "test").endswith("some have none")


def retold(a: list[Fraction], b: list[Fraction], rule: str) -> Fraction:
    """Intersection over union, exactly; MAttNet's as its script words it, on x, y, width, height and last pixels."""
    if rule == "matt":
        (ax, ay, aw, ah), (bx, by, bw, bh) = ([p, q, r - p, s - q] for p, q, r, s in (a, b))
        left, top = max(ax, bx), max(ay, by)
        right, low = min(ax + aw - 1, bx + bw - 1), min(ay + ah - 1, by + bh - 1)
        both = (right - left + 1) * (low - top + 1) if left < right and top < low else 0
        return Fraction(both, 1) / (aw * ah + bw * bh - both)
    one = 1 if rule == "inclusive" else 0
    wide, high = (max(0, min(a[k + 2], b[k + 2]) - max(a[k], b[k]) + one) for k in (0, 1))
    areas = [(c[2] - c[0] + one) * (c[3] - c[1] + one) for c in (a, b)]
    return Fraction(wide * high) / (sum(areas) - wide * high)


RULES = {"plain": IouCriterion(), "inclusive": VL_BERT, "matt": UNITER}


def boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Small boxes in quarters of a pixel, so that borders are met and sums are exact."""
    corner, side = rng.integers(0, 24, (count, 2)), rng.integers(1, 20, (count, 2))
    return np.concatenate([corner, corner + side], 1) / 4


@pytest.mark.parametrize("rule", RULES)
def test_overlaps_are_those_of_the_scripts(rule: str) -> None:
    some, others = boxes(np.random.default_rng(1), 60), boxes(np.random.default_rng(2), 60)
    truth = [
        [retold([Fraction(x) for x in a], [Fraction(x) for x in b], rule) for b in others]
        for a in some
    ]
    assert np.array_equal(RULES[rule].iou(some, others), np.array(truth, float))
    half, flat = Fraction(1, 2), [one for row in truth for one in row]
    assert any(one == half for one in flat)
    for strict in (True, False):
        told = [one > half or (one == half and not strict) for one in flat]
        own = replace(RULES[rule], strict=strict)
        assert own(some, others).reshape(-1).tolist() == told and 20 < sum(told[60:]) < 3000


def ref(n: int, split: str, *said: str) -> dict[str, Any]:
    sentences = [
        {"sent_id": 10 * n + k, "raw": s.title(), "sent": s, "tokens": s.split()}
        for k, s in enumerate(said)
    ]
    ids = {"ref_id": n, "ann_id": 100 + n, "image_id": n % 2, "category_id": 1}
    return ids | {"split": split, "sentences": sentences, "sent_ids": [10 * n]}


REFS = [ref(0, "train", "man left"), ref(1, "testA", "woman in röd", "she")]
REFS += [ref(2, "testB", "car"), ref(3, "val", "x")]


@pytest.fixture
def referred(tmp_path: Path) -> Path:
    notes = [
        {"id": 100 + n, "image_id": n % 2, "category_id": 1, "bbox": [n, 2.5, 10, 20.25]}
        for n in range(4)
    ]
    notes.append({"id": 200, "image_id": 1, "category_id": 2, "bbox": [1, 1, 0, 4]})
    images = [{"id": n, "width": 40, "height": 30, "file_name": f"{n}.jpg"} for n in range(2)]
    content = {"images": images, "annotations": notes, "categories": []}
    put(tmp_path / "instances.json", json.dumps(content))
    put(tmp_path / "refs(unc).p", pickle.dumps(REFS, protocol=2))
    return tmp_path


def test_refcoco_reads_splits_and_boxes(referred: Path) -> None:
    found = {split: grounding.read_expressions(referred, split) for split in grounding.SPLITS}
    numbers = [" ".join(e.official_id for e in own) for own in found.values()]  # C4
    assert numbers == ["0", "30", "10 11", "20", "10 11 20"]
    first = found["testA"][0]
    assert (first.text, first.images) == ("woman in röd", ("COCO_train2014_000000000001",))
    assert first.gold_boxes.boxes.tolist() == [[1, 2.5, 11, 22.75]]
    assert first.gold_boxes.image_size == (40, 30)
    assert [e.id for e in grounding.TASKS[0].read(referred, "val")] == ["refcoco-val-30"]
    assert "no expressions of 'dev'; splits: train" in refused(
        grounding.read_expressions, referred, "dev"
    )


PYTHON_2 = (
    b"(lp0\n(dp1\nS'split'\np2\nS'val'\np3\nsS'ann_id'\np4\nI103\nsS'image_id'\np5\nL1L\nsS'sentences'\np6\n(lp7\n\
(dp8\nS'sent_id'\np9\nI30\nsS'sent'\np10\nS'caf\\xe9 \\'s'\np11\nsS'score'\nF0.5\nsasa."
)


def test_pickles_of_python_2(referred: Path) -> None:
    put(referred / "refs(unc).p", PYTHON_2)
    assert [(e.official_id, e.text) for e in grounding.read_expressions(referred, "val")] == [
        ("30", "café 's")
    ]
    path = referred / "p"  # SHORT_BINSTRING, BININT, BINUNICODE
    path.write_bytes(
        b"\x80\x02]q\x00(U\x04caf\xe9q\x01J\xff\xff\xff\xffX\x03\x00\x00\x00\xc3\xa9ae."
    )
    assert grounding.load_plain_pickle(path) == ["café", -1, "éa"]
    for protocol in range(6):
        path.write_bytes(pickle.dumps(REFS, protocol))
        assert grounding.load_plain_pickle(path) == REFS


class Bomb:
    mark = Path()

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {Bomb.mark}",)


def test_pickles_that_could_run_code_are_refused(tmp_path: Path) -> None:
    Bomb.mark, path = tmp_path / "ran", tmp_path / "refs(unc).p"
    old = b"cos\nsystem\n(S'touch %s'\ntR." % str(Bomb.mark).encode()
    inst = b"(S'touch %s'\nios\nsystem\n." % str(Bomb.mark).encode()
    bad = [pickle.dumps([*REFS, Bomb()], protocol) for protocol in range(6)]
    some = (Fraction(1, 2), len, Path("a"), np.float64(1), RegionRow)
    bad += [old, inst, *(pickle.dumps([one], 2) for one in some)]
    for content in bad:
        path.write_bytes(content)
        told = refused(grounding.load_plain_pickle, path)
        assert f"{path}: cannot be read (UnpicklingError: needs " in told
    assert not Bomb.mark.exists()
    assert pickle.load(io.BytesIO(inst)) == 0 and Bomb.mark.exists()  # it would have run


def test_faults_of_refcoco(referred: Path) -> None:
    path = referred / "refs(unc).p"
    whole = path.read_bytes()

    def told(content: object) -> str:
        damaged = content if isinstance(content, bytes) else pickle.dumps(content, 2)
        path.write_bytes(damaged)
        return refused(grounding.read_expressions, referred, "val")

    endless = {"sent": "x", "sent_id": float("inf")}
    for damage in (
        *(whole[:50], {"a": 1}, [{"split": "val"}]),
        [REFS[3] | {"sentences": [endless]}],
    ):
        assert told(damage).startswith(f"{path}: cannot be read (")
    message = told([REFS[0], REFS[3] | {"image_id": 0}])
    assert message == f"{path}: annotation 103 does not belong to image 0"
    instances = json.loads((referred / "instances.json").read_text())
    images, annotations = instances["images"], instances["annotations"]
    for box in ([35, 2, 10, 20], [-3, 2, 10, 20], [3, 2, 0, 20], [3, 2, 10, -1]):
        annotations[3]["bbox"] = box
        put(referred / "instances.json", json.dumps(instances))
        assert told(whole) == f"{path}: the box of annotation 103 is empty or outside"
    for message, image in (
        ("an image without a size in pixels", {"width": 2**31}),
        ("image id '0' is not a whole number", {"id": "0"}),
    ):
        odd = instances | {
            "images": [images[0] | image, images[1]],
            "annotations": annotations[3:4],
        }
        put(referred / "instances.json", json.dumps(odd))
        assert message in told(whole)


LINES = [
    "[/EN#7/people/other A man] and [/EN#7/people a man] see [/EN#0/notvisual it] .",
    "[/EN#8/clothing hat] [/EN#9/scene outside] , [/EN#5/other nowhere] ]: [/EN#8/clothing the red hat]",
]
SPOT = "<object>{}<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
SIZE = "<size><width>50</width><height>40</height><depth>3</depth></size>"
FLAG = "<object><name>9</name><scene>1</scene><nobndbox>1</nobndbox></object>"


def xml(*spots: tuple[Any, ...], flag: str = FLAG) -> str:
    found = [
        SPOT.format(" ".join(f"<name>{name}</name>" for name in names), *box)
        for names, *box in spots
    ]
    return f"<annotation><filename>3.jpg</filename>{SIZE}{''.join(found)}{flag}</annotation>"


@pytest.fixture
def flickr(tmp_path: Path) -> Path:
    put(tmp_path / "val.txt", "3\n")
    put(tmp_path / "Sentences/3.txt", "\n".join(LINES) + "\n")
    put(
        tmp_path / "Annotations/3.xml",
        xml(((7,), 1, 2, 11, 22), ((7, 8), 21, 2, 31, 12), ((8,), 5, 5, 50, 40)),
    )
    return tmp_path


def test_flickr_entities_reads_phrases_and_boxes_and_matches_regions(flickr: Path) -> None:
    one, two = read_captions(flickr, "val")
    told = (one.id, one.text, one.image, one.size)
    assert told == ("3#0", "A man and a man see it .", "3", (50, 40))
    assert two.text == "hat outside , nowhere ]: the red hat"
    every = (*one.phrases, *one.skipped)
    told = [(p.chain, p.types, p.start, one.text[p.start : p.stop]) for p in every]
    assert told[:2] == [(7, ("people", "other"), 0, "A man"), (7, ("people",), 10, "a man")]
    assert told[2:] == [(0, ("notvisual",), 20, "it")]
    (last,) = two.phrases[1:]
    assert (last.chain, two.text[last.start : last.stop]) == (8, "the red hat")
    assert [p.chain for p in two.skipped] == [9, 5]  # a scene, and one without an object
    assert two.phrases[0].boxes.tolist() == [[21, 2, 31, 12], [5, 5, 50, 40]]
    examples = FLICKR30K.read(flickr, "val")
    assert [(e.text, e.images, e.region_tags) for e in examples[:2]] == [
        (one.text, ("3",), ((0, 5, 0),)),
        (one.text, ("3",), ((10, 15, 0),)),
    ]
    # C4: caption and phrase
    assert [e.official_id for e in examples] == ["3#0/0", "3#0/1", "3#1/0", "3#1/1"]
    phrase = one.phrases[0]
    # A little over 1/2, 1/3, 1 and 9/20 of one.
    corners = [[1, 2, 11, 12.5], [1, 2, 31, 22], [21, 2, 31, 12], [1, 2, 11, 11]]
    row = regions_of(corners, one.size)
    assert FLICKR30K.label_regions(examples[0], row).tolist() == [1, 0, 1, 0]
    assert MERGED.label_regions(MERGED.read(flickr, "val")[0], row).tolist() == [0, 1, 0, 0]
    golds = [
        [e.gold_boxes.boxes.tolist() for e in task.read(flickr, "val")]
        for task in (FLICKR30K, MERGED)
    ]
    assert golds[0][:2] == [phrase.boxes.tolist()] * 2 and golds[1][:2] == [[[1, 2, 31, 22]]] * 2


def regions_of(boxes: list[list[float]], size: tuple[int, int]) -> RegionRow:
    """A store's row of some boxes in pixels."""
    count = len(boxes)
    return RegionRow(
        features=np.zeros((count, 2), np.float32),
        boxes=np.array(boxes, np.float32) / np.array(size * 2, np.float32),
        confidence=np.ones(count, np.float32),
        image_index=np.zeros(count, np.int64),
        is_whole_image=np.zeros(count, bool),
    )


def test_recall_told_another_way() -> None:
    rng = np.random.default_rng(4)
    scores = [rng.integers(0, 6, rng.integers(1, 30)) / 2 for _ in range(1000)]  # with many ties
    right = [rng.random(len(own)) < 0.08 for own in scores]
    hits = {1: 0, 5: 0, 10: 0, 100: 0}
    outputs, labels = np.full((1000, 30), -np.inf), np.full((1000, 30), -100)
    for row, (own, good) in enumerate(zip(scores, right, strict=True)):
        outputs[row, : len(own)], labels[row, : len(own)] = own, good
        better = [
            sum(b > a or (b == a and j < i) for j, b in enumerate(own)) for i, a in enumerate(own)
        ]
        for k in hits:
            hits[k] += any(g and place < k for g, place in zip(good, better, strict=True))
    found = FLICKR30K.score(FLICKR30K.form.predict(outputs), labels, outputs)
    assert list(found) == ["picked", "R@1", "R@5", "R@10", "upper bound"]
    assert list(found.values()) == [n / 1000 for n in (hits[1], *hits.values())]
    # Phrases that nothing matches count as well.
    assert 0 < hits[1] < hits[5] < hits[10] < hits[100] < 1000


OPEN, OUTSIDE = "a phrase is not closed or has no words", "of chains [7] is empty or outside"
NO_BOX = "<object><name>9</name></object>"
FLAT = xml(((7,), 1, 2, 3, 4)).replace("<width>50", "<width>0")


@pytest.mark.parametrize(
    ("file", "text", "complaint"),
    [
        ("Sentences", LINES[0] + "\n[/EN#7/people A man and", f", line 2: {OPEN}"),
        ("Sentences", "[/EN#7/people A [/EN#8/other man] b]", f", line 1: {OPEN}"),
        ("Sentences", "see [/EN#7/people ]", f", line 1: {OPEN}"),
        ("Annotations", xml(((7,), 1, 2, 60, 22)), f": box [1, 2, 60, 22] {OUTSIDE} (50, 40)"),
        ("Annotations", xml(flag=NO_BOX), ": the object of chains [9] has no bndbox"),
        ("Annotations", xml(((7,), 1, 2, 3, "9" * 400)), ": not a complete annotation"),  # E14
        ("Annotations", FLAT, f": box [1, 2, 3, 4] {OUTSIDE} (0, 40)"),
        ("val.txt", "3\n4\n3\n", ": repeated image 3; remove the duplicates"),
    ],
)
def test_faults_of_flickr_entities(file: str, text: str, complaint: str, flickr: Path) -> None:
    place = flickr / file
    path = put(place if place.suffix else next(place.iterdir()), text)
    assert refused(read_captions, flickr, "val").startswith(f"{path}{complaint}")
