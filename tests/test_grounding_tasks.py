"""VCR, RefCOCO+ and Flickr30k Entities: files in their true formats, scores told another way."""

import io
import json
import pickle
import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from homes import put

from groundling.data.samples import Example
from groundling.errors import InputError
from groundling.find import named
from groundling.tasks import Task, flickr_entities, refcoco, vcr
from groundling.tasks.flickr_entities import captions, positives, recall
from groundling.tasks.forms import Pick
from groundling.tasks.refcoco import UNITER, VL_BERT, VL_BERT_LABELS, Expression, Overlap, accuracy, expressions
from groundling.tasks.vcr import ANSWER, RATIONALE, items, mentioned, objects_of, q_to_ar, render


def refusal(call: Callable[..., Any], *arguments: Any) -> str:
    with pytest.raises(InputError) as caught:
        call(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# -- forms -----------------------------------------------------------------------------------------------------------


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
            expected["kl"] += float(share * np.log(share / q)) if share else 0.0
    for kind, value in expected.items():
        loss = Pick(kind).loss(outputs, labels)
        assert loss.item() == pytest.approx(value, rel=1e-5)
        (slope,) = torch.autograd.grad(loss, outputs)
        assert slope.isfinite().all() and not slope[labels < 0].any()
        padded = Pick(kind).loss(outputs.masked_fill(labels < 0, -torch.inf), labels)
        assert padded.item() == pytest.approx(value, rel=1e-5)
    assert Pick().predict(np.array([[0.5, 2, 2, -np.inf], [-3, -4, -np.inf, -np.inf]])).tolist() == [1, 0]
    assert (Pick().outputs, Pick().spell(3.0)) == (1, "3")
    assert refusal(Pick().label, "1", "f, line 2") == "f, line 2: label '1'; regions are right or wrong by their boxes"


# -- VCR -------------------------------------------------------------------------------------------------------------

OBJECTS = ["person", "pottedplant", "person", "cellphone"]
QUESTION = ["Why", "is", [0, 2], "near", [1], "?"]
BOXES = [[10.0, 5.0, 50.5, 95.0, 0.9], [0, 0, 100, 50, 0.8], [60, 10, 100, 100, 0.7], [40, 40, 80, 80, 0.99]]


def line(n: int, labelled: bool = True) -> dict[str, Any]:
    """All 23 keys of the real file."""
    choices = [["Because", [2], "left", "."], ["No", "."], [[n % 4], "'s", "idea", "."], ["Everyone", "did", "."]]
    row: dict[str, Any] = {
        "movie": "M", "objects": OBJECTS, "interesting_scores": [0], "answer_likelihood": "likely",
        "img_fn": f"lsmdc_M/M_00.01.4{n % 3}@0.jpg", "metadata_fn": f"lsmdc_M/M_00.01.4{n % 3}@0.json",
        "answer_orig": "", "question_orig": "", "rationale_orig": "", "question": QUESTION,
        "answer_match_iter": [0, 1, 2, 3], "answer_sources": [1, 2, 3, 4], "answer_choices": choices,
        "answer_label": n % 4, "rationale_choices": choices[::-1], "rationale_sources": [4, 3, 2, 1],
        "rationale_match_iter": [0, 1, 2, 3], "rationale_label": (n // 4) % 4, "img_id": f"val-{n % 3}",
        "question_number": n, "annot_id": f"val-{n}", "match_fold": "val-0", "match_index": n,
    }  # fmt: skip
    assert len(row) == 23
    return row if labelled else {k: v for k, v in row.items() if not k.endswith("_label")}


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture
def stills(tmp_path: Path) -> Path:
    put(tmp_path / "val.jsonl", lines(*map(line, range(40))))
    put(tmp_path / "test.jsonl", lines(line(7, False), line(8, False)))
    segments = [[[[x, y], [x, y + 40], [x + 20, y + 40], [x + 20, y]]] for x, y in ((10, 5), (0, 0), (60, 10), (40, 40))]
    content = {"boxes": BOXES, "segms": segments, "names": OBJECTS, "width": 100, "height": 100}
    for n in range(3):
        put(tmp_path / f"vcr1images/lsmdc_M/M_00.01.4{n}@0.json", json.dumps(content))
    return tmp_path


def test_vcr_reads_tokens_and_tags(stills: Path) -> None:
    answers, reasons = ANSWER.read(stills, "val"), RATIONALE.read(stills, "val")
    assert (named("tasks", Task, "vcr/answer"), named("tasks", Task, "vcr/rationale")) == (ANSWER, RATIONALE)
    first = answers[1]
    assert (first.id, first.label, first.images) == ("vcr-answer-val-1", 1, ("lsmdc_M/M_00.01.41@0",))
    assert first.text == "Why is Casey Jessie near pottedplant ?"
    assert [(first.text[a:b], n) for a, b, n in first.tags] == [("Casey", 0), ("Jessie", 2), ("pottedplant", 1)]
    assert first.choices == ("Because Jessie left .", "No .", "pottedplant 's idea .", "Everyone did .")
    assert first.choice_tags == (((8, 14, 2),), (), ((0, 11, 1),), ())
    # The rationale is asked after the right answer, whose tags move along.
    assert [(e.id, e.label, e.text) for e in reasons[2:3]] == [
        ("vcr-rationale-val-2", 0, "Why is Casey Jessie near pottedplant ? Jessie 's idea .")
    ]
    assert (reasons[2].choices, reasons[2].choice_tags) == (answers[2].choices[::-1], answers[2].choice_tags[::-1])
    for e in (*answers, *reasons):
        for text, tags in zip((e.text, *e.choices), (e.tags, *e.choice_tags), strict=True):
            for a, b, n in tags:
                assert text[a:b] == (vcr.NAMES[n] if OBJECTS[n] == "person" else OBJECTS[n])
    assert render([[16]], ["person"] * 17) == ("Riley", ((0, 5, 16),))


def test_who_is_meant() -> None:
    assert mentioned([QUESTION, ["No", [3]]], OBJECTS) == [0, 1, 2, 3]
    assert mentioned([["No", [3]]], OBJECTS) == [3]
    assert mentioned([["No", [3]], ["Everyones", "idea"]], OBJECTS) == [0, 2, 3]
    assert mentioned([["No"]], OBJECTS) == [0, 2]
    assert mentioned([["everyone"]], ["car", "cat"]) == [0, 1]


def test_objects_and_masks_of_vcr(stills: Path) -> None:
    (item, *_) = items(stills, "val")
    found = objects_of(stills, item)
    assert (found.size, found.names) == ((100, 100), tuple(OBJECTS))
    assert np.allclose(found.boxes, np.array(BOXES)[:, :4] / 100) and found.confidence[3] == np.float32(0.99)
    # Of a 100 x 50 box, 20 x 40 at its corner; the middle of a cell decides.
    mask = found.mask(1)
    middles = (np.arange(14) + 0.5) / 14
    assert np.array_equal(mask, (middles < 0.8)[:, None] & (middles < 0.2)) and mask.dtype == bool
    path = stills / "vcr1images/lsmdc_M/M_00.01.40@0.json"
    content = json.loads(path.read_text())
    for box, complaint in (
        ([10, 5, 10, 95, 1], "box 2 is empty or outside"), ([60, 10, 104, 100, 1], "box 2 is empty or outside"),
    ):  # fmt: skip
        put(path, json.dumps(content | {"boxes": [*BOXES[:2], box, BOXES[3]]}))
        assert complaint in refusal(objects_of, stills, item)
    put(path, json.dumps(content | {"names": OBJECTS[::-1]}))
    assert "are not those of the 4 objects of val-0" in refusal(objects_of, stills, item)
    put(path, json.dumps(content | {"boxes": [box[:4] for box in BOXES], "segms": []}))
    assert "4 names, " in refusal(objects_of, stills, item) or "not VCR's boxes" in refusal(objects_of, stills, item)
    put(path, json.dumps({"boxes": BOXES}))
    assert "not VCR's boxes with scores" in refusal(objects_of, stills, item)
    put(path, path.read_text()[:20])
    assert "not valid JSON" in refusal(objects_of, stills, item)


def test_joint_accuracy_of_vcr_and_the_servers_file(stills: Path) -> None:
    rng, asked = np.random.default_rng(0), items(stills, "val")
    many = [replace(asked[n % 40], id=f"v-{n}") for n in range(3000)]
    answers, reasons = ({i.id: int(rng.integers(4)) for i in many} for _ in range(2))
    told = [0, 0, 0]
    for i in many:
        told[0] += answers[i.id] == i.answer
        told[1] += reasons[i.id] == i.rationale
        told[2] += answers[i.id] == i.answer and reasons[i.id] == i.rationale
    assert q_to_ar(answers, reasons, many[::-1]) == {
        "Q->A": told[0] / 3000, "QA->R": told[1] / 3000, "Q->AR": told[2] / 3000
    }  # fmt: skip
    assert refusal(q_to_ar, answers, {}, many[:2]).endswith("predicted for v-0 (2 such)")
    hidden, reasons_asked = ANSWER.read(stills, "test"), RATIONALE.read(stills, "test")
    assert [e.label for e in (*hidden, *reasons_asked)] == [None] * 10
    assert [e.id for e in reasons_asked[:5]] == [f"vcr-rationale-val-{n}" for n in ("7-a0", "7-a1", "7-a2", "7-a3", "8-a0")]
    assert [e.text[39:] for e in reasons_asked[:4]] == list(hidden[0].choices)
    scores = {e.id: rng.normal(size=4) * 3 for e in (*hidden, *reasons_asked)}
    own = {e.id: scores[e.id] for e in hidden}
    head, *rows = vcr.leaderboard(own, scores).splitlines()
    columns = head.split(",")
    assert (len(columns), columns[0], columns[4]) == (21, "annot_id", "answer_3")
    assert columns[5::4] == [f"rationale_conditioned_on_a{n}_0" for n in range(4)]
    assert [row.split(",")[0] for row in rows] == ["val-7", "val-8"]
    given = dict(zip(columns[1:], map(float, rows[1].split(",")[1:]), strict=True))
    for name, key in (("answer", "answer-val-8"), ("rationale_conditioned_on_a2", "rationale-val-8-a2")):
        expected = np.exp(scores[f"vcr-{key}"]) / np.exp(scores[f"vcr-{key}"]).sum()
        assert [given[f"{name}_{n}"] for n in range(4)] == pytest.approx(expected, rel=1e-4)
    assert "no scores of 'vcr-rationale-val-7-a0'" in refusal(vcr.leaderboard, own, {})


@pytest.mark.parametrize(
    ("fault", "complaint"),
    [
        ({"question": ["Is", [4], "?"]}, "line 2: '[4]'; expected words, and lists of objects from 0 to 3"),
        ({"question": ["Is", [-1], "?"]}, "line 2: '[-1]'; expected words"),
        ({"rationale_choices": [["a"], ["b"], ["c"], [[True]]]}, "line 2: '[True]'; expected words"),
        ({"question": "Why?"}, "line 2: 'Why?'; expected words"),
        ({"answer_choices": [["a"]] * 3}, "line 2: 3 answers and 4 rationales, expected 4 and 4"),
        ({"answer_label": 4}, "line 2: label '4' is none of 0, 1, 2, 3"),
        ({"annot_id": "val-0"}, "line 2: annot_id val-0 stands there before"),
        ({"img_fn": None}, "line 2: no text in field 'img_fn'"),
        (None, "line 2: not a line of VCR ('answer_label' is missing)"),
        ("cut", "line 2: not valid JSON"),
    ],
)
def test_faults_of_vcr_name_file_and_line(fault: Any, complaint: str, tmp_path: Path) -> None:
    second = lines(line(1, fault is not None) | (fault if isinstance(fault, dict) else {}))
    path = put(tmp_path / "val.jsonl", lines(line(0)) + (second[:300] if fault == "cut" else second))
    assert refusal(items, tmp_path, "val").startswith(f"{path}, {complaint}")
    put(tmp_path / "test.jsonl", lines(line(0), line(1, False)))
    assert refusal(items, tmp_path, "test").endswith("some lines have a label and some have none")


# -- boxes -----------------------------------------------------------------------------------------------------------


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


RULES = {"plain": Overlap(), "inclusive": VL_BERT, "matt": UNITER}


def boxes(rng: np.random.Generator, count: int) -> np.ndarray:
    """Small boxes in quarters of a pixel, so that borders are met and sums are exact."""
    corner, side = rng.integers(0, 24, (count, 2)), rng.integers(1, 20, (count, 2))
    return np.concatenate([corner, corner + side], 1) / 4


@pytest.mark.parametrize("rule", RULES)
def test_overlaps_are_those_of_the_scripts(rule: str) -> None:
    some, others = boxes(np.random.default_rng(1), 60), boxes(np.random.default_rng(2), 60)
    truth = [[retold([Fraction(x) for x in a], [Fraction(x) for x in b], rule) for b in others] for a in some]
    assert np.array_equal(RULES[rule].iou(some, others), np.array(truth, float))
    half, exact = Fraction(1, 2), sum(one == Fraction(1, 2) for row in truth for one in row)
    assert exact > 3
    for strict in (True, False):
        told = [[one > half or (one == half and not strict) for one in row] for row in truth]
        assert np.array_equal(replace(RULES[rule], strict=strict)(some, others), told)


def test_borders_of_overlaps() -> None:
    gold, half, thin = [0, 0, 10, 10], [0, 0, 10, 5], [9, 0, 19, 10]
    assert [bool(rule(half, gold)) for rule in (Overlap(), replace(Overlap(), strict=True), VL_BERT)] == [True, False, True]
    assert VL_BERT.iou(half, gold)[0, 0] == 66 / 121 and VL_BERT(*[[[0, 0, 9, 4]], [[0, 0, 9, 9]]])
    assert not VL_BERT_LABELS([0, 0, 9, 4], [0, 0, 9, 9]) and not UNITER(half, gold)
    assert (Overlap().iou(thin, gold)[0, 0], UNITER.iou(thin, gold)[0, 0]) == (10 / 190, 0)
    assert VL_BERT.iou([10, 0, 20, 10], gold)[0, 0] > 0 == Overlap().iou([10, 0, 20, 10], gold)[0, 0]
    assert Overlap().iou([3, 3, 3, 3], [3, 3, 3, 3])[0, 0] == 0


# -- RefCOCO ---------------------------------------------------------------------------------------------------------


def ref(n: int, split: str, *said: str) -> dict[str, Any]:
    sentences = [{"sent_id": 10 * n + k, "raw": s.title(), "sent": s, "tokens": s.split()} for k, s in enumerate(said)]
    return {"ref_id": n, "ann_id": 100 + n, "image_id": n % 2, "category_id": 1, "split": split, "sentences": sentences,
            "file_name": f"COCO_train2014_{n % 2:012d}_{100 + n}.jpg", "sent_ids": [s["sent_id"] for s in sentences]}  # fmt: skip


REFS = [ref(0, "train", "man left"), ref(1, "testA", "woman in röd", "she"), ref(2, "testB", "car"), ref(3, "val", "x")]


@pytest.fixture
def referred(tmp_path: Path) -> Path:
    notes = [{"id": 100 + n, "image_id": n % 2, "category_id": 1, "bbox": [n, 2.5, 10, 20.25]} for n in range(4)]
    notes.append({"id": 200, "image_id": 1, "category_id": 2, "bbox": [1, 1, 0, 4]})
    images = [{"id": n, "width": 40, "height": 30, "file_name": f"COCO_train2014_{n:012d}.jpg"} for n in range(2)]
    put(tmp_path / "instances.json", json.dumps({"images": images, "annotations": notes, "categories": []}))
    put(tmp_path / "refs(unc).p", pickle.dumps(REFS, protocol=2))
    return tmp_path


def test_refcoco_reads_splits_and_boxes(referred: Path) -> None:
    found = {split: expressions(referred, split) for split in refcoco.SPLITS}
    assert [[e.id for e in own] for own in found.values()] == [[0], [30], [10, 11], [20], [10, 11, 20]]
    first = found["testA"][0]
    assert (first.text, first.image, first.object) == ("woman in röd", "COCO_train2014_000000000001", 101)
    assert first.box.tolist() == [1, 2.5, 11, 22.75]
    assert expressions(referred, "val", image="{number}")[0].image == "1"
    true = refcoco.annotated(referred)
    assert true["COCO_train2014_000000000001"].tolist() == [[1, 2.5, 11, 22.75], [3, 2.5, 13, 22.75]]
    dets = [{"image_id": 1, "box": [1, 2, 3, 4.5], "score": 0.5, "category_id": 3, "category_name": "car", "det_id": n}
            for n in range(2)]  # fmt: skip
    path = put(referred / "dets.json", json.dumps(dets))
    assert refcoco.detected(path, "{number}")["1"].tolist() == [[1, 2, 4, 6.5, 0.5]] * 2
    put(path, json.dumps([{"image_id": 1}]))
    assert refusal(refcoco.detected, path).startswith(f"{path}: not a list of detections with image_id, box and score")
    assert "holds no expressions of 'dev'" in refusal(expressions, referred, "dev")


PYTHON_2 = b"(lp0\n(dp1\nS'split'\np2\nS'val'\np3\nsS'ann_id'\np4\nI103\nsS'image_id'\np5\nL1L\nsS'sentences'\np6\n(lp7\n\
(dp8\nS'sent_id'\np9\nI30\nsS'sent'\np10\nS'caf\\xe9 \\'s'\np11\nsS'score'\nF0.5\nsasa."


def test_pickles_of_python_2(referred: Path) -> None:
    put(referred / "refs(unc).p", PYTHON_2)
    assert [(e.id, e.text) for e in expressions(referred, "val")] == [(30, "café 's")]
    path = referred / "p"  # SHORT_BINSTRING, BININT, BINUNICODE
    path.write_bytes(b"\x80\x02]q\x00(U\x04caf\xe9q\x01J\xff\xff\xff\xffX\x03\x00\x00\x00\xc3\xa9ae.")
    assert refcoco.read_plain(path) == ["café", -1, "éa"]
    for protocol in range(6):
        path.write_bytes(pickle.dumps(REFS, protocol))
        assert refcoco.read_plain(path) == REFS


class Bomb:
    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (f"touch {Bomb.mark}",)

    mark = Path()


def test_pickles_that_could_run_code_are_refused(tmp_path: Path) -> None:
    Bomb.mark, path = tmp_path / "ran", tmp_path / "refs(unc).p"
    old = b"cos\nsystem\n(S'touch %s'\ntR." % str(Bomb.mark).encode()
    inst = b"(S'touch %s'\nios\nsystem\n." % str(Bomb.mark).encode()
    bad = [pickle.dumps([*REFS, Bomb()], protocol) for protocol in range(6)]
    bad += [old, inst, *(pickle.dumps([one], 2) for one in (Fraction(1, 2), len, Path("a"), np.float64(1), Expression))]
    for content in bad:
        path.write_bytes(content)
        assert re.fullmatch(r".*refs\(unc\)\.p: not read \(this pickle asks for '[^']+', .*\)", refusal(refcoco.read_plain, path))
    assert not Bomb.mark.exists()
    assert pickle.load(io.BytesIO(inst)) == 0 and Bomb.mark.exists()  # it would have run


def test_faults_of_refcoco(referred: Path) -> None:
    path, instances = referred / "refs(unc).p", json.loads((referred / "instances.json").read_text())
    whole = path.read_bytes()
    for cut in (0, 3, 50, len(whole) - 1):
        path.write_bytes(whole[:cut])
        assert refusal(expressions, referred, "val").startswith(f"{path}: not a whole pickle (")
    path.write_bytes(b"\x80\x02Pid\n.")
    assert "not a whole pickle" in refusal(expressions, referred, "val")
    for content in ({"a": 1}, [3], [{"split": "val"}], [REFS[3] | {"sentences": [{"sent": "x"}]}], 5):
        path.write_bytes(pickle.dumps(content, 2))
        assert "not a list of refs with split, ann_id, image_id and sentences" in refusal(expressions, referred, "val")
    path.write_bytes(pickle.dumps([REFS[0], REFS[3] | {"image_id": 0}], 2))
    assert refusal(expressions, referred, "val") == f"{path}, refs[1]: annotation 103 of image 1, not 0"
    path.write_bytes(whole)
    for box in ([35, 2, 10, 20], [-3, 2, 10, 20], [3, 2, 0, 20], [3, 2, 10, -1]):
        instances["annotations"][3]["bbox"] = box
        put(referred / "instances.json", json.dumps(instances))
        assert "refs[3]: box [" in (told := refusal(expressions, referred, "val")) and "empty or outside" in told
    put(referred / "instances.json", "{}")
    assert "not COCO's images and annotations with bbox" in refusal(expressions, referred, "val")
    path.unlink()
    put(referred / "instances.json", json.dumps(instances))
    assert refusal(expressions, referred, "val") == f"{path}: not read ([Errno 2] No such file or directory: '{path}')"


@pytest.mark.parametrize("rule", RULES)
def test_accuracy_of_refcoco_told_another_way(rule: str) -> None:
    rng = np.random.default_rng(3)
    golds, picks = boxes(rng, 2000), boxes(rng, 2000)
    picks[:600] = golds[:600] + rng.integers(-1, 2, (600, 4)) / 4 * np.array([-1, -1, 1, 1])
    picks[:600, 2:] = np.maximum(picks[:600, 2:], picks[:600, :2] + 0.25)
    asked = [Expression(n, "", "", 0, gold) for n, gold in enumerate(golds)]
    said: dict[int, Any] = dict(enumerate(picks)) | {7: None, 999: None}
    right = 0
    for e in asked:
        if said[e.id] is not None:
            found = retold([Fraction(x) for x in said[e.id]], [Fraction(x) for x in e.box], rule)
            right += found > Fraction(1, 2) if RULES[rule].strict else found >= Fraction(1, 2)
    assert accuracy(said, asked, RULES[rule]) == right / 2000 and 100 < right < 1500
    assert refusal(accuracy, {}, asked, VL_BERT) == "refcoco: no prediction for expression 0 (2,000 such)"
