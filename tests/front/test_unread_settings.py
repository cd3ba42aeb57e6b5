"""Nothing that is given goes unread in silence: things that stand twice, teachers and settings without a reader."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path

import pytest
from tiny.commands import adapting_with

from groundling.cli import COMMANDS, main
from groundling.command_line.names import check_teacher, input_paths
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.objectives import built_in_objectives, unused_settings_note
from groundling.settings.fields import Settings, make_settings, may_repeat, settings_of
from groundling.settings.objectives import (
    CrossModalEncoderSettings,
    ExtraObjectiveSettings,
    NoSettings,
    ObjectiveSettings,
)


def lists() -> list[tuple[str, str, str]]:
    """Every setting of every command that is a list of texts: command, flag and name."""
    found = []
    for command, about in COMMANDS.items():
        for prefix, settings in about.settings.items():
            start = "" if prefix.startswith("_") else f"{prefix}."
            for one in settings_of(settings):
                is_list = one.field.annotation == tuple[str, ...]
                if is_list and may_repeat not in one.field.metadata:
                    flag = f"--{start}{one.name.replace('_', '-')}"
                    found.append((command, flag, one.name))
    return found


@pytest.mark.parametrize(("command", "flag", "name"), lists())
def test_a_list_in_which_something_stands_twice_is_refused(command, flag, name, capsys):
    assert main([*command.split(), flag, "a", "b", "a"]) == 2
    assert "('a', 'b', 'a'): a is given twice" in capsys.readouterr().err.replace("[", "(").replace(
        "]", ")"
    )
    main([*command.split(), flag, "a", "b"])
    assert "twice" not in capsys.readouterr().err


def test_the_flags_of_the_field_are_among_them() -> None:
    names = {name for _, _, name in lists()}
    assert {"arms", "tasks", "objectives", "train_splits", "modes", "questions", "runs"} <= names


@pytest.mark.parametrize(
    ("names", "inner", "is_refused"),
    [
        ((), "", True),
        (("mlm",), "", True),
        (("mlm",), "villa", True),
        (("contrastive",), "", False),
        (("td_image",), "", False),
        ((), "mine.step:Step", False),
    ],
)
def test_a_teacher_whom_nobody_asks_is_refused(names, inner, is_refused):
    asked = nullcontext()
    if is_refused:
        asked = pytest.raises(InputError, match="no objective uses teacher=clip; name one")
    with asked:
        check_teacher(ExtraObjectiveSettings(names, "clip"), inner)


def test_an_objective_without_its_teacher_is_refused() -> None:
    check_teacher(ExtraObjectiveSettings(("mlm",)), "")
    with pytest.raises(InputError, match=r"^td_image needs teacher"):
        check_teacher(ExtraObjectiveSettings(("mlm", "td_image")), "")


@pytest.mark.parametrize(
    ("given", "reader"),
    [
        ({"mask_rate": 0.3}, "mlm"),
        ({"distill_weight": 2}, "contrastive"),
        ({"td_gate": "question"}, "td_image"),
        ({"td_similarity_weight": 2}, "td_similarity"),
        ({"teacher_scorer": "clip"}, "td_similarity"),
    ],
)
def test_settings_without_a_reader_are_named(given: dict[str, object], reader: str) -> None:
    settings = make_settings(ObjectiveSettings, **given)
    (note,) = unused_settings_note((), settings, "")
    assert f"{next(iter(given))} has no effect: this run trains the task's own loss" in note
    assert unused_settings_note((reader,), settings, "") == []
    assert (
        unused_settings_note(("mine.x:X",), settings, "")
        == unused_settings_note((), settings, "mine.x:X")
        == []
    )
    assert unused_settings_note((), ObjectiveSettings(), "") == []


def test_settings_of_other_terms_have_no_reader() -> None:
    settings = make_settings(ObjectiveSettings, td_gate="question", td_choices="right")
    (note,) = unused_settings_note(("td_similarity",), settings, "")
    assert "td_choices, td_gate has no effect" in note


def test_every_group_of_settings_has_an_objective_that_reads_it() -> None:
    read = {one.Settings for one in built_in_objectives().values()}
    groups = {type(one) for one in vars(ObjectiveSettings()).values() if isinstance(one, Settings)}
    assert read == {*groups, CrossModalEncoderSettings, NoSettings}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("finetune --model m --task vqa --data d --backbone b", "backbone=b: needs images"),
        (
            "pretrain --model m --regions r --task vqa --data d --no-flip",
            "flip=False: needs images=FOLDER",
        ),
        ("finetune --model m --task vqa --data d --dev x.csv", "needs either task, or text and"),
        ("compare --tasks vqa --data d --dev x.csv", "needs either tasks, or text and label"),
        ("bench --curve steps --adapt-seeds 3", "adapt_seeds=3: curve does not read it"),
        ("bench --worlds", "bench needs worlds"),
        (
            "finetune --model m --task glue/rte --data d --adversarial-steps 2",
            "adversarial_steps=2: needs training_step=villa",
        ),
        ("vcr --both . --answers . --data .", "answers=.: both=. has both; leave it out"),
        (
            "adapt --student m --arm mlm --text t --save-joint",
            "save_joint: arm=mlm has no cross-modal model",
        ),
        ("verdict --runs a b --published c=BERT-b", "no group is called 'c'; there are: a, b"),
    ],
)
def test_what_nothing_reads_is_refused(line, fault, capsys):
    words = [*line.split(), "--out", "x.csv"] if line.startswith("predict") else line.split()
    assert main(words) == 2
    assert fault in capsys.readouterr().err


def test_of_the_cross_modal_encoder_too() -> None:
    usual, crossing = ObjectiveSettings(), CrossModalEncoderSettings(hard_negatives=3)
    assert "hard_negatives" in unused_settings_note(("mlm", "l1"), usual, "", crossing)[0]
    assert unused_settings_note(("joint_mlm", "match"), usual, "", crossing) == []
    windows = make_settings(ObjectiveSettings, max_windows=2)
    assert unused_settings_note(("joint_mlm", "match"), windows, "") == []
    assert "max_windows" in unused_settings_note(("mlm",), windows, "")[0]


def test_stored_vectors_have_a_space_of_their_own() -> None:
    settings = make_settings(ObjectiveSettings, teacher_space="pre_projection")
    assert unused_settings_note(("lexi_contrastive",), settings, "", teacher="clip") == []
    (note,) = unused_settings_note(("lexi_contrastive",), settings, "", teacher="vectors:v")
    assert "teacher_space has no effect: " in note and note.endswith(" on vectors:v")


def test_a_control_notes_a_setting_of_teachers(given: Path, tmp_path: Path) -> None:
    words = adapting_with(given, tmp_path / "out", **{"arm": "mlm", "td-gate": "question"})
    assert main([*map(str, words)]) == 0
    notes = json.loads((tmp_path / "out/result.json").read_text())["notes"]
    assert any("td_gate has no effect" in note for note in notes)


# -- the inputs that identify a run --------------------------------------------------------------------------------
def test_each_setting_gives_its_paths() -> None:
    config = make_settings(
        FinetuneConfig,
        model="bert",
        task="glue/rte",
        data="glue",
        extra_eval=("shifted=other",),
        regions="store",
        train_regions="more",
        partition="few.json",
    )
    assert input_paths(config) == {
        "model": "bert",
        "data": "glue",
        "extra_eval": "other",
        "regions": "store/manifest.json",
        "train_regions": "more/manifest.json",
        "partition": "few.json",
        "backbone": "microsoft/resnet-101",
    }
    weighted = make_settings(
        AdaptConfig, student="bert", teacher="mine:Teacher", text=("a.txt=2", "b.txt=1")
    )
    # Files are numbered without their weights, and own modules are no files.
    assert input_paths(weighted) == {"student": "bert", "text": "a.txt", "text:1": "b.txt"}
