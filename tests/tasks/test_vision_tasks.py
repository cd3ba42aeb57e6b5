"""VQA v2, NLVR2 and SNLI-VE: files in their true formats, scores against the official scripts told another way."""

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import nan
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny.homes import put, refused
from tiny.tasks import entailed, json_lines, task_texts

from groundling.core.batch import Example, OutputSizes, collate
from groundling.core.output_types import OpenAnswer
from groundling.core.registry import resolve
from groundling.data.samples import TextDataset, TextRowEncoder
from groundling.objectives.supervised import SupervisedObjective
from groundling.tasks import Task, vqa
from groundling.tasks.visual_inference import NLVR2, SNLI_VE
from groundling.tasks.vqa import VQA, normalise_answer

SOFT = np.array([[0, 0.9, 0.3, 0], [0, 0, 0, 0], [1, 0, 0, 0.6]], np.float32)


def test_losses_of_soft_targets_are_those_of_their_formulas() -> None:
    outputs = torch.randn(3, 4) * 3
    x, p = outputs.double().numpy(), outputs.double().softmax(-1).numpy()
    sigmoid = 1 / (1 + np.exp(-x))
    share = SOFT / np.maximum(SOFT.sum(1, keepdims=True), 1e-9)
    bce = -(SOFT * np.log(sigmoid) + (1 - SOFT) * np.log(1 - sigmoid)).sum()
    kl = sum(t * (np.log(t) - np.log(q)) for t, q in zip(SOFT.flat, p.flat, strict=True) if t > 0)
    for kind, value in (("bce", bce), ("kl", kl), ("ce", -(share * np.log(p)).sum())):
        form = OpenAnswer(("", "yes", "no", "<unk>"), kind)
        sparse = [
            form.targets({form.labels[i]: row[i] for i in np.flatnonzero(row)} | {"else": 1.0})
            for row in SOFT
        ]
        padded = np.stack(
            [np.pad(pairs, ((0, 3 - len(pairs)), (0, 0)), constant_values=-100) for pairs in sparse]
        )
        for labels in (SOFT, padded):
            assert form.loss(outputs, torch.from_numpy(labels)).item() == pytest.approx(
                value, rel=1e-5
            )
        assert torch.equal(
            form.loss(outputs, torch.tensor([2, 0, 3])), form.loss(outputs, torch.eye(4)[[2, 0, 3]])
        )


def test_barred_answers_are_never_predicted() -> None:
    outputs = np.array([[9.0, 1.0, 2.0, 8.0], [3.0, 1.0, 2.0, 8.0]])
    form = OpenAnswer(("", "yes", "no", "<unk>"))
    for never, expected in (((), [0, 3]), (("<unk>",), [0, 0]), (("", "<unk>", "absent"), [2, 2])):
        assert replace(form, excluded_answers=never).predict(outputs).tolist() == expected
    assert (form.head_width, form.parse_label("no", ""), form.format_prediction(1.0)) == (
        4,
        2,
        "yes",
    )
    message = refused(form.parse_label, "maybe", "f.json, line 3")
    assert message == "f.json, line 3: label 'maybe' is not one of , yes, no, <unk>"
    bare = refused(lambda: SupervisedObjective(OutputSizes(text=8), output_type=VQA.form))
    assert "use task.with_answers_of(folder)" in bare


def test_a_question_without_an_answer_of_the_map_has_no_best_answer() -> None:
    """Labels are padded with class -100, which is no place to look for an answer."""
    some = np.array([[1, 0.3], [0, 0.9], [-100, -100]], np.float32)
    for form in (OpenAnswer(("yes", "no")), OpenAnswer(tuple(map(str, range(3129))))):
        for label in (some[2:], some[:0], None, np.array([[1, 0]], np.float32)):
            assert form.best_answer(label) == ""
        assert form.best_answer(some) == form.best_answer(0) == form.labels[0]


def test_the_task_phase_reads_a_question_without_an_answer_alone(folder: Path) -> None:
    put(folder / "trainval_label2ans.json", json.dumps(["yes", *map(str, range(200))]))
    texts = task_texts(VQA.with_answers_of(folder), folder)
    assert [example.text_pair for example in texts] == [None, "yes", "yes", "yes"] * 3


MARKS = set('!?,`@<>-_+=(){}[]/;"\\')


def retold(text: str) -> str:
    """The official treatment, character by character."""
    text = " ".join(re.split("[\n\t]", text)).strip()
    beside = set("".join(re.findall("(?=(. | .))", text)))
    every = any(
        a.isdigit() and b == "," and c.isdigit()
        for a, b, c in zip(text, text[1:], text[2:], strict=False)
    )
    text = "".join(("" if every or c in beside else " ") if c in MARKS else c for c in text)
    out, periods = "", 0
    for c, after in zip(text, text[1:] + " ", strict=False):
        drop = c == "." and not after.isdigit() and periods < 32
        periods, out = periods + drop, out + c * (not drop)
    fixes = {
        "none": "0",
        "two": "2",
        "dont": "don't",
        "couldn'tve": "couldn't've",
        "ow's'at": "'ow's'at",
    }
    words = [(fixes | {"somebody'd": "somebodyd"}).get(w, w) for w in out.lower().split()]
    return " ".join(w for w in words if w not in ("a", "an", "the"))


def leave_one_out(said: str, answers: list[str]) -> Fraction:
    plain = [" ".join(re.split("[\n\t]", a)).strip() for a in (said, *answers)]
    said, *people = map(retold, plain) if len(set(plain[1:])) > 1 else plain
    others = [people[:i] + people[i + 1 :] for i in range(len(people))]
    return sum(
        min(Fraction(1), Fraction(sum(o == said for o in nine), 3)) for nine in others
    ) / len(people)


@pytest.mark.parametrize(
    ("text", "official"),
    [
        ("\tRed\nhat ", "red hat"),
        ("a:b 'c'", "a:b 'c'"),
        ("what?!", "what"),
        ("The Cat and AN owl", "cat and owl"),
        ("red,white", "red white"),
        ("t-shirt", "t shirt"),  # no space beside the mark: it becomes one
        ("red, white", "red white"),
        ("x-ray - yes", "xray yes"),  # a space beside one of them: all of them go
        ("1,000", "1000"),
        ("1,000 t-shirts (new)", "1000 tshirts new"),  # a thousands' comma deletes every mark
        ("2.5", "2.5"),
        (".5", ".5"),
        ("st. john", "st john"),
        ("a", ""),
        ("none Two ten eleven", "0 2 10 eleven"),
        ("dont wont cant lets shes", "don't won't can't lets shes"),
        ("Im Ive", "im ive"),
        ("'ow'sat", "'ow's'at"),
        ("shouldnt've shouldn'tve shouldntve", "shouldn't've shouldn't've shouldntve"),
        ("yall'd've", "y'all'd've"),
        # The script's mistakes: a period after a digit, more than 32 periods, a reversed entry.
        ("3. no.", "3 no"),
        ("." * 40, "." * 8),
        ("somebody'd somebodyd", "somebodyd somebodyd"),
        # B26: under Python 2, its patterns know no digits but ASCII's.
        ("٢,٣ t-shirt", "٢ ٣ t shirt"),  # no thousands' comma, so marks become spaces
        ("٣.5", "٣.5"),
        ("１,０００ 1,０", "１ ０００ 1 ０"),
        ("3.٥", "3٥"),  # no digit follows the period
    ],
)
def test_answers_are_normalised_as_officially(text: str, official: str) -> None:
    assert normalise_answer(text) == official
    # Of the script's 120, without the two idle ones and the four with a capital.
    assert len(vqa.CONTRACTIONS) == 114


def test_official_accuracy_is_the_mean_over_nine_of_ten() -> None:
    assert [vqa.credit(n) for n in range(11)] == [0, 0.3, 0.6, 0.9] + [1] * 7
    rng = np.random.default_rng(0)
    words = ["the", "A", "two", "None", "red", "Red.", "1,000", "t-shirt", "x - y", "3.", "dont"]
    words += ["somebody'd", "\n", "couldn'tve", "ow's'at", "." * 20, " (b)", "5.5", "10", "", "?"]
    made = [" ".join(rng.choice(words, rng.integers(1, 5))) for _ in range(1000)]
    asked, said = [], {}
    for i, text in enumerate(made):
        assert normalise_answer(text) == retold(text)
        choice = [text, text.upper(), text.replace(",", " "), f"the {text}", text.strip("."), "no"]
        people = tuple(rng.choice(choice[: rng.integers(1, 7)], 10).tolist())
        types = (["yes/no", "number", "other"], ["what is", "how many", "is the"])
        kinds = tuple(str(rng.choice(some)) for some in types)
        asked.append(vqa.VqaQuestion(i, "?", "", {}, people, kinds))
        said[i] = str(rng.choice(choice))
    truth = {q.id: leave_one_out(said[q.id], list(q.answers)) for q in asked}
    assert {q.id: vqa.accuracy(said[q.id], q.answers) for q in asked} == {
        i: float(x) for i, x in truth.items()
    }
    assert set(truth.values()) == {Fraction(n, 10) for n in (0, 3, 6, 9, 10)}
    found = vqa.official_accuracy(said, asked)
    for name in ("yes/no", "number", "other", "what is", "how many", "is the", ""):
        own = [truth[q.id] for q in asked if not name or name in q.types]
        got = found[f"official, {name}" if name else "official"]
        assert round(100 * got, 2) == round(float(100 * sum(own) / len(own)), 2)
    assert len(found) == 7
    for answered, some, number in (({1: "no"}, asked[:3], 0), ({0: "no", 7: "no"}, asked[:1], 7)):
        message = refused(vqa.official_accuracy, answered, some)
        assert message == f"vqa: question {number} has no prediction, or is unknown"


MAP = ["", "yes", "no", "red", "2", "blue"]


def asking(image: int, k: int, text: str = "what is this?") -> dict[str, Any]:
    return {"image_id": image, "question": text, "question_id": image * 1000 + k}


def noted(entry: dict[str, Any], *said: str) -> dict[str, Any]:
    answers = [
        {"answer": a, "answer_confidence": "yes", "answer_id": n} for n, a in enumerate(said, 1)
    ]
    own = {"question_type": "what is", "multiple_choice_answer": said[-1], "answer_type": "yes/no"}
    return own | {"answers": answers} | {k: entry[k] for k in ("image_id", "question_id")}


def asked_in(folder: Path, year: str, questions: list[dict], notes: Sequence[dict] = ()) -> None:
    """The official files of a year."""
    info = {"info": {}, "task_type": "Open-Ended", "data_subtype": year}
    path = folder / f"v2_OpenEnded_mscoco_{year}_questions.json"
    put(path, json.dumps(info | {"questions": questions}))
    if notes:
        path = folder / f"v2_mscoco_{year}_annotations.json"
        put(path, json.dumps(info | {"annotations": notes}))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for year, size in (("train2014", 12), ("val2014", 6)):
        asked = [asking(40 + n, n, f"is {n} the dog red?") for n in range(size)]
        notes = [
            noted(q, *["yes"] * (n % 4), "Two", *["red"] * (9 - n % 4)) for n, q in enumerate(asked)
        ]
        asked_in(tmp_path, year, asked, notes[::-1])  # joined by id, whatever the order
    for year in ("test-dev2015", "test2015"):
        asked_in(tmp_path, year, [asking(7, k) for k in range(3)])
    put(tmp_path / "trainval_label2ans.json", json.dumps(MAP))
    return tmp_path


def test_vqa_reads_official_files(folder: Path, student: Any) -> None:
    found = VQA.read(folder, "val")
    first = ("vqa-val-41001", "is 1 the dog red?", ("COCO_val2014_000000000041",), "41001")
    assert [(e.id, e.text, e.images, e.official_id) for e in found[1:2]] == [first]
    dense = [{MAP[int(c)]: round(float(s), 3) for c, s in e.label if c >= 0} for e in found[:4]]
    assert dense == [{"red": 1}, *({"yes": share, "red": 1} for share in (0.3, 0.6, 0.9))]
    assert {e.label.shape for e in found} == {(2, 2)}
    batch = collate(TextDataset(found, TextRowEncoder(student().tokenizer, 32)).get([3, 0]))
    assert np.array_equal(batch.labels["label"].numpy(), np.stack([found[3].label, found[0].label]))
    test = VQA.read(folder, "test-dev")
    assert [(e.label, e.images) for e in test] == [(None, ("COCO_test2015_000000000007",))] * 3
    for path in folder.glob("*val2014*"):
        content = json.loads(path.read_text())
        put(path, json.dumps(content.get("questions") or content["annotations"]))  # a bare list
    assert [e.id for e in VQA.read(folder, "val")] == [e.id for e in found]


def test_the_answer_map_is_read_and_never_made(folder: Path) -> None:
    path = folder / "trainval_label2ans.json"
    assert VQA.with_answers_of(folder).form.labels == tuple(MAP)
    path.unlink()
    assert "expected trainval_label2ans.json, *ans2label.json or answers_vqa.txt" in refused(
        VQA.read, folder, "val"
    )
    put(folder / "answers_vqa.txt", "<unk>\nyes\nno\n")
    form = OpenAnswer(("<unk>", "yes", "no"), excluded_answers=("<unk>",))
    assert VQA.with_answers_of(folder).form == form
    rest = {f"w{n}": n for n in range(2, 12)}
    other = put(folder / "uniter_ans2label.json", json.dumps({"no": 1, "yes": 0, **rest}))
    assert VQA.with_answers_of(folder).form.labels == ("yes", "no", *rest)
    for gap in ({"no": 1, "yes": 2}, {"no": 1, "yes": 1}):
        put(other, json.dumps(gap))
        told = refused(VQA.with_answers_of, folder)
        assert told == f"{other}: expected answers numbered from 0 on without gaps"
    put(folder / "b_ans2label.json", "{}")
    assert "keep b_ans2label.json or uniter_ans2label.json" in refused(VQA.with_answers_of, folder)
    put(path, '["yes", "no", "yes"]')
    assert refused(VQA.with_answers_of, folder) == f"{path}: repeated answer 'yes'"
    put(path, "3")
    assert f"{path}: cannot be read" in refused(VQA.with_answers_of, folder)
    put(path, json.dumps(["Ja", "Nein"]))
    assert refused(VQA.read, folder, "val") == f"{path}: has no answer to any question of val"


def test_vqa_reads_lxmerts_lists(folder: Path) -> None:
    image = {"img_id": "COCO_val2014_000000000042"}
    row = {"question_id": 42001, "sent": "why?", "label": {"red": 0.9, "odd": 1}} | image
    path = put(folder / "minival.json", json.dumps([row, row | {"question_id": 5, "label": {}}]))
    found = VQA.read(folder, "minival")
    assert found[0].images == ("COCO_val2014_000000000042",)
    assert [e.label.round(3).tolist() for e in found] == [[[3, pytest.approx(0.9)]], [[-100, -100]]]
    task, ids = VQA.with_answers_of(folder), [e.official_id for e in found]
    assert task.official(folder, "minival", ids, [3, 3]) == {}
    shares = [{"label": {"red": share}} for share in (nan, 1.5, -1, 10**400, "1", "yes")]  # E5
    for fault in ({"img_id": "42"}, *shares):
        put(path, json.dumps([row | fault]))
        assert refused(VQA.read, folder, "minival").startswith(f"{path}: ")
    put(path, json.dumps([row, {"question_id": 5, "sent": "?"} | image]))
    assert f"{path}: cannot be read (KeyError: 'label')" in refused(VQA.read, folder, "minival")


ASKED = [asking(1, 0)]
NOTED, OTHER = [noted(ASKED[0], "a")], noted(asking(2, 0), "a")


@pytest.mark.parametrize(
    ("asked", "notes", "complaint"),
    [
        ([*ASKED, asking(1, 1)], NOTED, "Q, N: question_id 1001 is in one of them only"),
        (ASKED, [*NOTED, OTHER], "Q, N: question_id 2000 is in one of them only"),
        (ASKED * 2, NOTED, "Q: repeated question_id"),
        (ASKED, [NOTED[0] | {"answers": []}], "N: question_id 1000 has no answers"),
        ([ASKED[0] | {"image_id": "x"}], NOTED, "Q: cannot be read (ValueError"),
        ([], NOTED, "Q: contains no questions"),
    ],
)
def test_faults_of_vqa_name_file_and_id(asked, notes, complaint, folder):
    asked_in(folder, "val2014", asked, notes)
    files = {"Q": "v2_OpenEnded_mscoco_val2014_questions.json"}
    files |= {"N": "v2_mscoco_val2014_annotations.json"}
    told = re.sub(r"\b[QN]\b", lambda m: files[m[0]], complaint)
    assert refused(VQA.read, folder, "val").replace(f"{folder}/", "").startswith(told)


def test_scores_and_submission_of_vqa(folder: Path) -> None:
    task, found = VQA.with_answers_of(folder), VQA.read(folder, "val")
    ids, labels = [e.official_id for e in found], np.stack([e.label for e in found])
    for said, expected in ((1, [0, 0.3, 0.6, 0.9, 0, 0.3]), (3, [1] * 6), (5, [0] * 6)):
        assert task.score([said] * 6, labels) == {"score": pytest.approx(np.mean(expected))}
        got = task.official(folder, "val", ids, [said] * 6)
        assert set(got) == {"official", "official, yes/no", "official, what is"}
        assert got["official"] == pytest.approx(np.mean(expected))
    # "Two" is no answer of the map as written, but officially "2" is the same.
    assert task.score([4] * 6, labels) == {"score": 0}
    assert task.official(folder, "val", ids, [4] * 6)["official"] == pytest.approx(0.3)
    sent = json.loads(task.submission("test-dev", ["7000", "7001"], [1, 3]))
    assert sent == [{"question_id": 7000, "answer": "yes"}, {"question_id": 7001, "answer": "red"}]
    with pytest.raises(ValueError, match="longer"):
        task.submission("test-dev", ["7000"], [1, 3])


def pair(name: str, label: str | None, sentence: str = "both are dogs") -> dict[str, Any]:
    row = {"sentence": sentence, "left_url": "u", "identifier": name, "synset": "dog", "query": "q"}
    return row if label is None else row | {"label": label, "validation": {"1": label}}


def test_nlvr2_reads_json_lines(tmp_path: Path) -> None:
    rows = pair("dev-850-0-1", "True"), pair("dev-850-2-1", "false", 'a "dog", left')
    put(tmp_path / "dev.json", json_lines(*rows))
    put(tmp_path / "test1.json", json_lines(pair("test1-1-0-0", None), pair("test1-1-0-1", None)))
    images = ("dev-850-2-img0", "dev-850-2-img1")
    assert NLVR2.read(tmp_path, "dev")[1] == Example(
        "nlvr2-dev-850-2-1", 'a "dog", left', label=0, images=images, official_id="dev-850-2-1"
    )
    test = NLVR2.read(tmp_path, "test1")
    assert [(e.label, e.images) for e in test] == [(None, ("test1-1-0-img0", "test1-1-0-img1"))] * 2
    ids = [e.official_id for e in test]
    sent = NLVR2.submission("test1", ids, [1, 0])
    assert sent == "test1-1-0-0,True\ntest1-1-0-1,False\n"
    assert NLVR2.official(tmp_path, "test1", ids, [1, 0]) == {}
    rows = pair("test2-1-0-0", "True"), pair("test2-1-0-1", None)
    path = put(tmp_path / "test2.json", json_lines(*rows))
    told = refused(NLVR2.read, tmp_path, "test2")
    assert told == f"{path}: some lines have a label and some have none"


def test_consistency_is_over_all_pairs_of_a_sentence(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    every = [f"dev-{g}-{p}-{s}" for g in range(200) for p in range(4) for s in range(2)]
    names = [name for name in every if rng.random() < 0.8]
    labels = dict(zip(names, rng.integers(0, 2, len(names)).tolist(), strict=True))
    rows = [pair(name, str(bool(label))) for name, label in labels.items()]
    put(tmp_path / "dev.json", json_lines(*rows))
    halves = {"balanced": names[::2], "unbalanced": names[1::2]}
    said = [y if rng.random() < 0.8 else 1 - y for y in labels.values()]
    good = {name for name, p in zip(names, said, strict=True) if p == labels[name]}

    def retold(own: list[str]) -> float:
        groups, broken = (
            {tuple(n.split("-")[1::2]) for n in some} for some in (own, set(own) - good)
        )
        return (len(groups) - len(broken)) / len(groups)

    expected = {"consistency": retold(names)}
    for part, own in halves.items():
        put(tmp_path / f"{part}_dev_identifiers.txt", "\n".join(own))
        expected |= {
            f"{part} accuracy": len(good & set(own)) / len(own),
            f"{part} consistency": retold(own),
        }
    assert NLVR2.official(tmp_path, "dev", names, said) == expected
    assert 0.2 < expected["consistency"] < 0.8
    message = f"nlvr2: no prediction for {names[0]} of dev (2 such)"
    assert refused(NLVR2.official, tmp_path, "dev", names[2:], said[2:]) == message
    path = put(tmp_path / "balanced_dev_identifiers.txt", "dev-1-0-x\n")
    message = refused(NLVR2.official, tmp_path, "dev", names, said)
    assert message == f"{path}: 'dev-1-0-x' is not in dev.json"


def test_snli_ve_reads_three_spellings_of_its_image(tmp_path: Path) -> None:
    rows = [
        entailed("5.jpg#2r1e", "entailment", Flikr30kID="5.jpg"),
        entailed("5.jpg#2r1n", "-", Flikr30kID="5.jpg"),
        entailed("6.jpg#0r1c", "contradiction", Flickr30K_ID="6"),
        entailed("7#0r1n", "neutral", Flikr30kID="7"),
    ]
    put(tmp_path / "snli_ve_dev.jsonl", json_lines(*rows))
    found = SNLI_VE.read(tmp_path, "dev")  # the annotators of one line disagree
    assert [(e.images, e.label) for e in found] == [(("5",), 0), (("6",), 2), (("7",), 1)]
    assert resolve("tasks", Task, "snli-ve") is SNLI_VE
    name = "5.jpg#2r1e"
    assert found[0] == Example(
        f"snli-ve-dev-{name}", f"a claim of {name}", label=0, images=("5",), official_id=name
    )
    assert SNLI_VE.score([0, 1, 1], [0, 2, 1]) == {"accuracy": pytest.approx(2 / 3)}


FIVE = entailed("5r1", "neutral", Flikr30kID="5.jpg")
TRUE = pair("dev-1-0-0", "True")


@pytest.mark.parametrize(
    ("task", "text", "complaint"),
    [
        (SNLI_VE, json_lines(FIVE, FIVE), ", line 2: repeated pairID 5r1, first in line 1"),
        (SNLI_VE, json_lines(entailed("5r1", "neutral")), ", line 1: no image; expected one of"),
        (SNLI_VE, json_lines(FIVE | {"gold_label": "no"}), ", line 1: label 'no' is not one of"),
        (SNLI_VE, json_lines(FIVE | {"gold_label": "-"}), ": contains no examples"),
        (SNLI_VE, json_lines(FIVE | {"sentence2": 3}), ", line 1: no text in field 'sentence2'"),
        (NLVR2, json_lines(TRUE) + "{", ", line 2: not valid JSON"),
        (NLVR2, json_lines(TRUE, TRUE), ", line 2: repeated identifier dev-1-0-0"),
        (NLVR2, json_lines(pair("dev-1-0", "True")), ", line 1: 'dev-1-0'; expected split-set-"),
        (NLVR2, json_lines(pair("dev-1-0-0", "yes")), ", line 1: label 'Yes' is not one of False"),
        (NLVR2, json_lines(TRUE, pair("dev-1-0-1", None)), ", line 2: label 'None' is not one of"),
        (NLVR2, "[3]\n", ", line 1: expected an object"),
    ],
)
def test_faults_of_json_lines_name_file_and_line(task, text, complaint, tmp_path):
    path = put(task.file(tmp_path, "dev"), text)
    assert refused(task.read, tmp_path, "dev").startswith(f"{path}{complaint}")
    path.unlink()
    assert refused(task.read, tmp_path, "dev") == f"{path}: no such file"
