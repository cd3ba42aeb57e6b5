"""Shifted VCR files: the sheet's worked cases, idempotence, statistics, and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import expit
from tiny import vcr_files
from tiny.homes import STEPS, put, refused, student
from tiny.vcr_files import row, tokens

from groundling.cli import main
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.batch import Example, collate
from groundling.data.samples import TextDataset
from groundling.settings.fields import replace_settings
from groundling.studies.clip_td.commands import DATA_SHIFT as shift
from groundling.studies.clip_td.commands import VcrShiftConfig
from groundling.studies.clip_td.explicit_mitigation import (
    SynonymEditor,
    WordNet,
    inflect,
    wordnet_folder,
)
from groundling.studies.clip_td.shift import (
    AttackModel,
    count_positions,
    mask_positions,
    plural_rule,
    positions_to_mask,
    rephrase_by_rules,
    singular_rule,
)
from groundling.studies.clip_td.vcr_files import (
    PARTS,
    VcrLine,
    compare_overlap,
    read_lines,
    tag_overlap_baseline,
)
from groundling.tasks.vcr import read_items, render_text


def line(tmp_path: Path, **changes: Any) -> VcrLine:
    vcr_files.write(tmp_path / "one/val.jsonl", [row(0, **changes)])
    (found,) = read_lines(tmp_path / "one", "val")
    return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return vcr_files.folder(tmp_path / "vcr")


@pytest.fixture(scope="module")
def wordnet(tmp_path_factory: pytest.TempPathFactory) -> WordNet:
    return WordNet(vcr_files.write_wordnet(tmp_path_factory.mktemp("wordnet")))


def refusal(config: VcrShiftConfig, out: Path, **changes: Any) -> str:
    return refused(lambda: shift(replace_settings(config, **changes), out))


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(one) for one in path.read_text().splitlines()]


# -- SM, by rule -----------------------------------------------------------------------------------------------------
SINGULAR = [
    # right: the only tag becomes a pronoun, which what else the choice says decides, then the question, then "he"
    ("[0] is happy .", True, "He is happy ."),
    ("No , [0] lost her hat .", True, "No , she lost her hat ."),
    ("[0] likes his dog and her hat .", True, "He likes his dog and her hat ."),
    ("the [3] hit [0] .", True, "the [3] hit he ."),
    # what has a pronoun already has no tag to replace
    ("He is happy .", True, "He is happy ."),
    # wrong: the tag, and every he and she, become the question's tag; possessives and objects stay
    ("[1] is happy .", False, "[0] is happy ."),
    ("She thinks she lost her hat .", False, "[0] thinks [0] lost her hat ."),
    ("[1] and [1] like [3] .", False, "[0] and [0] like [3] ."),
    # not of one person alone
    ("[0] and [1] talk .", False, None),
    ("[1] says he is happy .", False, None),
    ("Yes .", False, None),
    ("[0] says he is happy .", True, None),
]


def edited(edit: Any, choice: str, is_right: bool) -> Any:
    return edit(tokens(choice), is_right)


def words(text: str | None) -> Any:
    return None if text is None else tokens(text)


def test_singular(tmp_path: Path) -> None:
    edit = singular_rule(line(tmp_path, question="Why is [0] with the [3] ?"))
    for choice, is_right, expected in SINGULAR:
        assert edited(edit, choice, is_right) == words(expected), choice
    # the question decides between as many of each pronoun
    edit = singular_rule(line(tmp_path, question="Why does [0] show her hat ?"))
    assert edited(edit, "[0] likes it .", True) == tokens("She likes it .")
    assert edited(edit, "[0] likes his dog .", True) == tokens("He likes his dog .")


PLURAL = [
    ("[0,1] are happy .", True, "They are happy .", "They are happy ."),
    ("No , [1,2] talk .", True, "No , they talk .", "No , they talk ."),
    # the release sorts a group and then looks for it as it stands
    ("[1,0] are happy .", True, "They are happy .", "[1,0] are happy ."),
    ("[0,1] are happy .", False, "[2,1] are happy .", "[1,2] are happy ."),
    ("[1,0] are happy .", False, "[2,1] are happy .", "[1,0] are happy ."),
    ("They say they talk .", False, "[2,1] say [2,1] talk .", "[1,2] say [1,2] talk ."),
    ("[0] and [1] talk .", False, None, None),
    ("[0,3] are there .", False, None, None),
    ("[0] talks .", False, None, None),
]


def test_plural(tmp_path: Path) -> None:
    asked = line(tmp_path, question="Where are [2,1] ?")
    for choice, is_right, expected, released in PLURAL:
        assert edited(plural_rule(asked), choice, is_right) == words(expected), choice
        legacy = plural_rule(asked, legacy=True)
        assert edited(legacy, choice, is_right) == words(released), choice


APPLIES = {
    "Why is [0] there ?": (True, False),
    "Why is [0] with [0] ?": (True, False),
    "Why is [0] by the [3] ?": (True, False),
    "Why are [0,1] there ?": (False, True),
    "Why are [0,3] there ?": (True, False),
    "Why are [0,1] by the [3] ?": (False, False),
    "Why is [0] with [1] ?": (False, False),
    "What is it ?": (False, False),
}


def test_which_questions_a_rule_is_for(tmp_path: Path) -> None:
    asked = {question: line(tmp_path, question=question) for question in APPLIES}
    rules = (singular_rule, plural_rule)
    found = {q: tuple(rule(one) is not None for rule in rules) for q, one in asked.items()}
    assert found == APPLIES


def test_rationales_are_edited_against_the_questions_tag(tmp_path: Path) -> None:
    rationales = ("[1] talks .", "[2] talks .", "They talk .", "Yes .")
    (edited,) = rephrase_by_rules(
        [line(tmp_path, rationales=rationales, right=(0, 1))], [singular_rule]
    ).lines
    assert edited.item.rationales == [
        tokens("[0] talks ."),
        tokens("He talks ."),
        tokens("They talk ."),
        tokens("Yes ."),
    ]


# -- SM, adversarial -------------------------------------------------------------------------------------------------
def test_each_member_of_a_group_is_a_position() -> None:
    text = tokens("No , [0,1,2] talk .")
    assert count_positions(text) == 7
    assert mask_positions(text, {3}) == tokens("No , [0] [MASK] [2] talk .")
    assert mask_positions(text, {0, 2}) == tokens("[MASK] , [MASK] [1,2] talk .")
    assert mask_positions(text, set()) == text
    losses = [0.1, 0.9, 0.3, 0.9, 0.2]
    hidden = [positions_to_mask(losses, keep) for keep in (0, 1, 3, 5, 9)]
    assert hidden == [{1}, {0, 2, 3, 4}, {0, 4}, set(), set()]  # the first of equals


def losses_of(data: Path, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    rows = []
    for one in read_lines(data, "val"):
        own: dict[str, Any] = {"annot_id": one.item.id}
        for part in PARTS:
            sizes = [count_positions(choice) for choice in one.choices(part)]
            own[f"{part}_losses"] = [rng.random(size).round(6).tolist() for size in sizes]
        rows.append(own)
    return rows


def test_masks_from_a_file_of_losses(data: Path, tmp_path: Path) -> None:
    rows = losses_of(data)
    del rows[0]["rationale_losses"]  # as where there is no model for them
    path = vcr_files.write(tmp_path / "losses.jsonl", rows)
    config = VcrShiftConfig(data=str(data), protocol="advtop", losses=str(path))
    result = shift(config, tmp_path / "top")
    assert result["edited choices"]["answer"] == {"right": 14, "wrong": 42}
    assert result["edited choices"]["rationale"] == {"right": 13, "wrong": 39}
    first, second = rows_of(tmp_path / "top/val.jsonl")[:2]
    place = int(np.argmax(rows[1]["answer_losses"][2]))
    assert second["answer_choices"][2][place] == "[MASK]"
    assert "[MASK]" not in str(first["rationale_choices"])
    shift(replace_settings(config, protocol="keeptop", keep_top=1), tmp_path / "keep")
    answers = [choice for one in read_items(tmp_path / "keep", "val") for choice in one.answers]
    assert {len(choice) - choice.count("[MASK]") for choice in answers} == {1}


def test_damaged_losses(data: Path, tmp_path: Path) -> None:
    rows = losses_of(data)
    path = tmp_path / "losses.jsonl"
    config = VcrShiftConfig(data=str(data), protocol="advtop", losses=str(path))
    not_four = "line 1: no losses (ValueError: expected 4 lists of finite numbers)"
    for damaged, message in (
        (rows[:12], "losses.jsonl: no losses for val-12 (2 such)"),
        ([rows[0] | {"answer_losses": [[float("nan")], [1], [1], [1]]}], not_four),
        ([rows[0] | {"answer_losses": [[1], [1], [1]]}], not_four),
        ([rows[0], rows[0]], "line 2: repeated annot_id val-0"),
        (
            [rows[0] | {"answer_losses": [[1.0]] * 4}, *rows[1:]],
            "val-0, answer 0: 1 losses for 5 positions",
        ),
        ([{"annot_id": "val-0"}], "expected answer_losses, rationale_losses or both"),
    ):
        vcr_files.write(path, damaged)
        assert message in refusal(config, tmp_path / "out")
    needs = "protocol=advtop needs either attack=FOLDER or losses=FILE"
    for changes, message in (
        ({"losses": ""}, needs),
        ({"attack": "x"}, needs),
        ({"protocol": "keeptop", "keep_top": 0}, "keep_top = 0: expected"),
    ):
        assert message in refusal(config, tmp_path / "out", **changes)


@pytest.fixture(scope="module")
def text_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a text encoder on the questions of `data`, with its model and its predictions."""
    place = tmp_path_factory.mktemp("text")
    data = vcr_files.folder(place / "vcr")
    model = str(student(place / "student"))
    config = FinetuneConfig(model, "vcr/answer", str(data), max_length=32, save_model=True)
    finetune(config, STEPS, place / "run")
    return place / "run"


def test_an_attack_models_losses(text_run: Path, tmp_path: Path) -> None:
    """Against one text at a time through the same model, and a plain restatement of the loss."""
    data = vcr_files.folder(tmp_path / "vcr", val=3)
    model = text_run / "seed-0/model"
    config = VcrShiftConfig(data=str(data), protocol="advtop", attack=str(model), cpu=True)
    shift(config, tmp_path / "out")
    attack = AttackModel(model, "answer", 128, torch.device("cpu"))
    written = rows_of(tmp_path / "out/losses.jsonl")
    for one, told in zip(read_lines(data, "val"), written, strict=True):
        assert set(told) == {"annot_id", "answer_losses"}
        question, _ = render_text(one.item.question, one.item.objects)
        for number, choice in enumerate(one.item.answers):
            for place, loss in enumerate(told["answer_losses"][number]):
                hidden, _ = render_text(mask_positions(choice, {place}), one.item.objects)
                example = Example("x", question, hidden)
                batch = collate(TextDataset([example], attack.inputs).get([0]))
                with torch.no_grad():
                    logit = attack.objective.outputs(attack.student(batch), batch).item()
                chance = expit(logit if number == one.item.answer else -logit)
                assert loss == pytest.approx(-np.log(chance), abs=1e-5)
    # the file that it wrote makes the same masks
    losses = str(tmp_path / "out/losses.jsonl")
    shift(replace_settings(config, attack="", losses=losses), tmp_path / "again")
    assert (tmp_path / "again/val.jsonl").read_bytes() == (tmp_path / "out/val.jsonl").read_bytes()


def test_an_attack_model_that_is_none(text_run: Path, data: Path, tmp_path: Path) -> None:
    config = VcrShiftConfig(data=str(data), protocol="advtop", cpu=True)
    bare = str(student(tmp_path / "bare"))
    assert "no default head for vcr/answer" in refusal(config, tmp_path / "a", attack=bare)
    told = refusal(config, tmp_path / "b", attack_rationale=str(text_run / "seed-0/model"))
    assert told.endswith("a run of vcr/answer, expected one of vcr/rationale")


# -- WordNet and EM --------------------------------------------------------------------------------------------------
READINGS = {
    "dogs": ("dog", "n"),  # more often a noun than a verb
    "children": ("child", "n"),
    "saw": ("see", "v"),
    "talking": ("talk", "v"),
    "stopped": ("stop", "v"),
    "happier": ("happy", "a"),
    "quickly": ("quickly", "r"),
    "police_officers": ("police_officer", "n"),
    "zebras": ("zebras", ""),
}


def test_readings(wordnet: WordNet) -> None:
    assert {form: tuple(wordnet.most_frequent(form)) for form in READINGS} == READINGS


FORMS = {
    ("dog", "n", "plural"): "dogs",
    ("child", "n", "plural"): "children",
    ("policeman", "n", "plural"): "policemen",
    ("canopy", "n", "plural"): "canopies",
    ("domestic_dog", "n", "plural"): "domestic dogs",
    ("speak", "v", "third"): "speaks",
    ("speak", "v", "ing"): "speaking",
    ("speak", "v", "past"): None,  # spoke or spoken?
    ("behold", "v", "past"): "beheld",
    ("stop", "v", "past"): "stopped",
    ("stop", "v", "ing"): "stopping",
    ("talk", "v", "past"): "talked",
    ("chase", "v", "ing"): "chasing",
    ("chase", "v", "past"): "chased",
}


def test_forms(wordnet: WordNet) -> None:
    for (lemma, pos, form), expected in FORMS.items():
        found = inflect(lemma, pos, form, wordnet)  # type: ignore[arg-type]
        assert found == (expected and expected.split()), (lemma, form)


EM = [
    # question, choice, what it becomes
    ("Does [0] see a dog ?", "A dog barks .", "An animal barks ."),
    ("Is the Child here ?", "Children talk .", "Kids talk ."),
    ("Do they talk ?", "No , they are talking .", "No , they are speaking ."),
    ("Did they talk ?", "They talked .", None),  # spoke or spoken?
    ("Who has an umbrella ?", "[0] has an Umbrella .", "[0] has an Awning ."),
    ("Who stops ?", "[0] stopped there .", "[0] halted there ."),
    ("Is there an apple ?", "It is an apple .", "It is a fruit ."),
    # the only other word is in the context
    ("Is there an apple or fruit ?", "It is an apple .", None),
    ("Is that a police officer ?", "He is a police officer .", "He is a policeman ."),
    ("Is that a hat ?", "It is a hat .", None),  # WordNet has no other word
    ("Are they happier ?", "[0] is happier .", None),
    ("Is that a zebra ?", "It is a zebra .", None),
    ("Do they look ?", "[0] looks .", "[0] sees ."),
    ("Do they walk ?", "[0] sits .", None),  # nothing is shared
]


@pytest.mark.parametrize(("question", "choice", "expected"), EM)
def test_synonyms(tmp_path, wordnet, question, choice, expected):
    editor = SynonymEditor(wordnet, min_items=1)
    asked = line(
        tmp_path, question=question, answers=(choice, "No .", choice, "Yes ."), objects=["bus"] * 4
    )
    made = editor.edit_lines([asked])
    (edited,) = made.lines
    wanted = tokens(choice if expected is None else expected)
    assert edited.item.answers == [wanted, ["No", "."], wanted, ["Yes", "."]]  # the wrong one, too
    assert editor.edit_lines([edited]).lines[0].raw == edited.raw
    if expected is not None:
        assert made.log[0]["why"][0]["relation"] in ("synonym", "hypernym")


def test_the_images_classes_are_context_and_rare_words_stay(tmp_path, wordnet):
    rows = [row(n, "Why ?", ("The dog .", "A hat .", "No .", "Yes .")) for n in range(3)]
    rows.append(row(3, "Where is the cat ?", ("A cat .", "B .", "C .", "D .")))
    vcr_files.write(tmp_path / "vcr/val.jsonl", rows)
    lines = read_lines(tmp_path / "vcr", "val")
    made = SynonymEditor(wordnet, min_items=3).edit_lines(lines)
    assert made.lines[0].item.answers[0] == tokens("The animal .")
    assert made.lines[3] == lines[3]
    assert made.unedited_counts["shared in fewer than 3 items"] >= 1


def test_rationales_are_compared_with_the_answer_as_it_now_reads(tmp_path, wordnet):
    asked = line(
        tmp_path,
        question="Do the children talk ?",
        answers=("The children smile .", "No .", "Yes .", "So ."),
        rationales=("A kid smiles .", "Children smile .", "B .", "C ."),
    )
    (edited,) = SynonymEditor(wordnet, min_items=1).edit_lines([asked]).lines
    assert edited.item.answers[0] == tokens("The kids smile .")
    # kid is the answer's now and children the question's: the third word is left for both
    assert edited.item.rationales[:2] == [
        tokens("A youngster smiles ."),
        tokens("Youngsters smile ."),
    ]


def told_by(folder: Path) -> str:
    """Why a folder is no WordNet."""
    return refused(lambda: WordNet(wordnet_folder(str(folder))).lemma("fruit"))


def test_a_wordnet_that_is_none(tmp_path: Path) -> None:
    assert "no WordNet files (index.noun); install Debian's wordnet-base" in told_by(tmp_path)
    place = vcr_files.write_wordnet(tmp_path / "dict")
    assert wordnet_folder(str(tmp_path)) == place
    put(place / "data.noun", (place / "data.noun").read_text()[:-400])
    with pytest.warns(match="No WordNet synset found"):
        assert f"{place}: cannot be read (AttributeError" in told_by(place)
    put(place / "cntlist.rev", "dog 1 2 3\n")
    assert f"{place}: cannot be read (ValueError: too many values" in told_by(place)
    (place / "cntlist.rev").unlink()
    assert "cntlist.rev" in told_by(place)


# -- IM --------------------------------------------------------------------------------------------------------------
def predictions(path: Path, data: Path, scores: dict[int, list[float]]) -> Path:
    """Sure of the right answer, unless told otherwise by number."""
    rows = []
    for number, one in enumerate(read_items(data, "val")):
        own = scores.get(number, [9.0 * (k == one.answer) for k in range(4)])
        row = {"id": f"x{number}", "official": one.id, "prediction": int(np.argmax(own))}
        rows.append(row | {"outputs": own})
    return vcr_files.write(path, rows)


def test_implicit_mitigation(data: Path, tmp_path: Path) -> None:
    # of items 0, 4 and 8 answer 0 is right
    unsure, enough = (
        np.log([share, 0.95 - share, 0.03, 0.02]).tolist() for share in (0.8999, 0.9001)
    )
    wrong = [0.0, 0.0, 0.0, 50.0]
    path = predictions(tmp_path / "p.jsonl", data, {0: unsure, 4: enough, 8: wrong})
    config = VcrShiftConfig(data=str(data), protocol="im", predictions=str(path))
    result = shift(config, tmp_path / "im")
    assert result["groups"] == {"language_biased": 12, "image_biased": 1, "unsure": 1, "kept": 2}
    assert [one.id for one in read_items(tmp_path / "im", "val")] == ["val-0", "val-8"]
    assert [one.id for one in read_items(tmp_path / "im/image_biased", "val")] == ["val-8"]
    biased = [one.id for one in read_items(tmp_path / "im/language_biased", "val")]
    assert "val-4" in biased and len(biased) == 12
    assert result["after"]["items"] == 2 and result["language_biased"]["items"] == 12
    every = predictions(tmp_path / "all.jsonl", data, {})
    assert "protocol=im leaves no item" in refusal(config, tmp_path / "b", predictions=str(every))


def test_predictions_that_do_not_fit(data: Path, text_run: Path, tmp_path: Path) -> None:
    path = predictions(tmp_path / "p.jsonl", data, {})
    config = VcrShiftConfig(data=str(data), protocol="im", predictions=str(path))
    kept = path.read_text().splitlines(keepends=True)
    for lines, message in (
        (kept[1:], "no prediction for val-0"),
        ([kept[0].replace("9.0", "NaN"), *kept[1:]], "val-0: expected 4 finite scores"),
        (['{"id": "val-0", "prediction": 0, "outputs": [1]}'], "val-0: 1 scores for 4 choices"),
        ([kept[0], kept[0]], "example val-0 is repeated"),
    ):
        put(path, "".join(lines))
        told = refusal(config, tmp_path / "out")
        assert told.startswith(str(path)) and message in told
    assert refusal(config, tmp_path / "a", predictions="").endswith("im needs predictions")
    seeing = shutil.copytree(text_run, tmp_path / "seeing")
    content = json.loads((seeing / "config.json").read_text())
    content["config"]["regions"] = "a store"
    put(seeing / "config.json", json.dumps(content))
    own = str(seeing / "seed-0/predictions_val.jsonl")
    assert "read regions (a store)" in refusal(config, tmp_path / "c", predictions=own)


# -- all kinds -------------------------------------------------------------------------------------------------------
def every_kind(data: Path, tmp_path: Path) -> dict[str, VcrShiftConfig]:
    losses = str(vcr_files.write(tmp_path / "losses.jsonl", losses_of(data)))
    said = str(predictions(tmp_path / "p.jsonl", data, {3: [0, 0, 0, 0.1], 5: [5, 0, 0, 0]}))
    words = str(vcr_files.write_wordnet(tmp_path / "wordnet"))
    plain = VcrShiftConfig(data=str(data))
    return {
        "none": plain,
        "sm": replace_settings(plain, protocol="sm"),
        "plural": replace_settings(plain, protocol="plural", legacy=True),
        "advtop": replace_settings(plain, protocol="advtop", losses=losses),
        "keeptop": replace_settings(plain, protocol="keeptop", losses=losses, keep_top=3),
        "em": replace_settings(plain, protocol="em", wordnet=words, min_count=1),
        "im": replace_settings(plain, protocol="im", predictions=said),
    }


def test_only_choices_are_edited_and_twice_is_once(data: Path, tmp_path: Path) -> None:
    lines = (data / "val.jsonl").read_text().splitlines()
    original = {one["annot_id"]: one for one in map(json.loads, lines)}
    for kind, config in every_kind(data, tmp_path).items():
        once, twice = tmp_path / kind, tmp_path / f"{kind}-again"
        first = shift(config, once)
        log = rows_of(once / "edits.jsonl")
        edits = sum(sum(counts.values()) for counts in first["edited choices"].values())
        assert edits == len(log) and (edits > 0) == (kind not in ("none", "im")), kind
        for entry in log:
            before = original[entry["annot_id"]][f"{entry['part']}_choices"]
            assert entry["before"] == before[entry["choice"]]
        for text in (once / "val.jsonl").read_text().splitlines():
            one = json.loads(text)
            before = original[one["annot_id"]]
            assert list(one) == list(before)
            choices = {part: one[part] for part in ("answer_choices", "rationale_choices")}
            assert one == before | choices and all(len(some) == 4 for some in choices.values())
            assert text in lines or one != before
        second = shift(replace_settings(config, data=str(once)), twice)
        assert (twice / "val.jsonl").read_bytes() == (once / "val.jsonl").read_bytes(), kind
        assert (twice / "edits.jsonl").read_text() == ""
        assert second["before"] == second["after"] == first["after"]


def test_a_shifted_folder_is_a_whole_one(data: Path, tmp_path: Path) -> None:
    put(data / "vcr1images/movie/0.json", "{}")
    flags = ["--data", str(data), "--protocol", "sm", "--out", str(tmp_path / "sm")]
    assert main(["data", "shift", *flags]) == 0
    assert (tmp_path / "sm/vcr1images/movie/0.json").is_file()
    assert (tmp_path / "sm/train.jsonl").read_bytes() == (data / "train.jsonl").read_bytes()
    assert (tmp_path / "sm/unedited/train.jsonl").is_file()
    unedited = [one.id for one in read_items(tmp_path / "sm/unedited", "val")]
    assert unedited == [one.id for one in read_items(tmp_path / "sm", "val")]
    result = json.loads((tmp_path / "sm/result.json").read_text())
    assert result["links"] == ["train.jsonl", "vcr1images"]
    own = shift(VcrShiftConfig(data=str(data), protocol="sm", split="train"), tmp_path / "train")
    assert own["links"] == ["vcr1images"]
    assert not (tmp_path / "train/train.jsonl").is_symlink()
    assert result["items"] == {"read": 14, "written": len(unedited)}
    assert result["before, of the items written"]["items"] == len(unedited) < 14


def test_one_training_is_scored_on_standard_and_shifted_files(data: Path, tmp_path: Path) -> None:
    shift(VcrShiftConfig(data=str(data), protocol="sm"), tmp_path / "sm")
    model = str(student(tmp_path / "student"))
    config = FinetuneConfig(model, "vcr/answer", str(data), max_length=32)
    plain = finetune(config, STEPS, tmp_path / "plain")
    both = finetune(
        replace_settings(config, extra_eval=(f"sm={tmp_path / 'sm'}",)), STEPS, tmp_path / "both"
    )
    assert set(both["median"]) == {"val", "sm"}
    assert both["median"]["val"] == plain["median"]["val"]
    written = rows_of(tmp_path / "both/seed-0/predictions_sm.jsonl")
    assert [one["official"] for one in written] == [
        one.id for one in read_items(tmp_path / "sm", "val")
    ]
    taken = replace_settings(config, extra_eval=(f"val={data}",))
    assert "has a split 'val' already" in refused(finetune, taken, STEPS, tmp_path / "bad")


def test_refusals(data: Path, tmp_path: Path) -> None:
    config = VcrShiftConfig(data=str(data), protocol="sm")
    assert refusal(config, tmp_path / "a", split="dev").endswith("dev.jsonl: no such file")
    secret = row(0)
    del secret["answer_label"]
    vcr_files.write(tmp_path / "none/test.jsonl", [secret])
    vcr_files.write(tmp_path / "none/val.jsonl", [row(0, "What is it ?")])
    none = replace_settings(config, data=str(tmp_path / "none"))
    assert refusal(none, tmp_path / "b").endswith("val.jsonl: protocol=sm leaves no item")
    assert "no labels" in refusal(none, tmp_path / "b", split="test")


# -- statistics and rules --------------------------------------------------------------------------------------------
def test_table_9s_columns() -> None:
    counts = np.array([[3, 0, 1, 2], [0, 1, 1, 1], [1, 1, 1, 1], [0, 2, 0, 1]])
    found = compare_overlap(counts, np.array([0, 0, 3, 1]))
    means = {"correct": (3 + 0 + 1 + 2) / 4, "incorrect": (1 + 1 + 1 + 1 / 3) / 4}
    shares = {"correct has more": 0.5, "incorrect has more": 0.25, "neither": 0.25}
    assert found == pytest.approx(means | shares)


def test_overlaps_by_hand(tmp_path: Path) -> None:
    answers = ("The happy dogs .", "[0] sits .", "Happy .", "A dog .")
    vcr_files.write(
        tmp_path / "vcr/val.jsonl",
        [row(0, "Why is [0] happy about the dog ?", answers, right=(3, 0))],
    )
    words = str(vcr_files.write_wordnet(tmp_path / "wordnet"))
    config = VcrShiftConfig(data=str(tmp_path / "vcr"))
    bare = shift(config, tmp_path / "bare")
    assert bare["lemmas"] == "forms in lower case"
    assert bare["after"]["answer"]["question"]["incorrect"] == pytest.approx((1 + 0 + 1) / 3)
    lemmas = shift(replace_settings(config, wordnet=words), tmp_path / "lemmas")
    assert lemmas["lemmas"] == "WordNet 3.0"
    answer = lemmas["after"]["answer"]
    assert answer["question"]["correct"] == 1  # dog
    assert answer["question"]["incorrect"] == pytest.approx((2 + 0 + 1) / 3)
    assert answer["image"]["correct"] == 1
    assert answer["image"]["incorrect"] == pytest.approx(1 / 3)
    # the, happy; [0]; happy against dog: stop words and tags count here, lemmas do not
    assert answer["question, every token"]["incorrect"] == pytest.approx((2 + 1 + 1) / 3)
    assert answer["question, every token"]["correct"] == 1


def test_tags_alone_by_both_rules_of_ties(tmp_path: Path) -> None:
    rows = [
        row(0, "Why is [0] with [1] ?", ("[2] .", "[0] [1] .", "[0] .", "No ."), right=(1, 0)),
        row(1, "Why is [0] there ?", ("[0] .", "[0,1] .", "A .", "B ."), right=(1, 0)),
        row(2, "Why ?", ("[0] .", "[1] .", "A .", "B ."), right=(0, 0)),
        row(3, "Why is [0] there ?", ("[0] .", "A .", "B .", "C ."), right=(3, 0)),
    ]
    vcr_files.write(tmp_path / "vcr/val.jsonl", rows)
    lines = read_lines(tmp_path / "vcr", "val")
    assert tag_overlap_baseline(lines, "answer") == {
        "first of the best": 0.5,
        "among the best": 0.75,
    }
    # a rationale may share tags with the right answer, too
    found = tag_overlap_baseline(lines[:1], "rationale")
    assert found == {"first of the best": 1.0, "among the best": 1.0}
