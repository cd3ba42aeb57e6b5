"""What a run saved goes to the hub with a card, and nothing is lost if it does not arrive."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import homes
import hubs
import pytest
import yaml

import groundling
from groundling.cli import main
from groundling.command_line import COMMANDS
from groundling.commands.adapt import ADAPTING, AdaptConfig
from groundling.commands.finetune import TUNING, FinetuneConfig
from groundling.commands.push import COMMAND as push
from groundling.commands.push import PushConfig
from groundling.core.errors import InputError
from groundling.runs.model_card import card, command, end_of_path
from groundling.settings.training import PushToHubSettings

FEW = ["--steps", "1", "--batch", "4", "--cpu"]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student, a teacher, texts, RTE, and two finished runs."""
    folder = tmp_path_factory.mktemp("push")
    homes.student(folder / "student")
    homes.text(folder / "words.txt", 12)
    homes.rte(folder / "glue")
    adapt = ["adapt", "--student", str(folder / "student"), "--arm", "mlm", "--mask-rate", "0.3"]
    adapt += ["--text", str(folder / "words.txt"), *FEW, "--out", str(folder / "adapted")]
    tune = ["finetune", "--model", str(folder / "student"), "--task", "glue/rte", "--seeds", "2"]
    tune += ["--data", str(folder / "glue"), "--steps", "2", *FEW[2:], "--eval-every", "0.25"]
    tune += ["--keep-best"]
    for words in (adapt, [*tune, "--out", str(folder / "tuned")]):
        assert main(words) == 0
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> hubs.Hub:
    return hubs.put_up(monkeypatch)


def test_a_finished_run_is_pushed_with_a_card(place: Path, hub: hubs.Hub, capsys: Any) -> None:
    assert main(["push", str(place / "adapted"), "--to", "me/words"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {
        "pushed": str(place / "adapted/model"),
        "to": "https://hub.invalid/me/words",
    }
    assert hub.repositories == {"me/words": None}  # the owner's own default
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= hub.files["me/words"]
    assert "README.md" not in hub.files["me/words"]
    card = hub.cards["me/words"]
    _, head, body = card.split("---\n", 2)
    assert yaml.safe_load(head) == {"library_name": "transformers", "tags": ["groundling", "adapt"]}
    assert '`AutoModel.from_pretrained("me/words")`' in body
    assert "- started from: student" in body and "- text:0: words.txt" in body
    wanted = "groundling adapt --student student --text words.txt --arm mlm --mask-rate 0.3"
    assert f"\n{wanted} --steps 1 --batch 4 --cpu\n" in body
    assert "| train_metrics: mlm | " in body
    assert f"groundling {groundling.__version__}" in body
    assert str(place) not in card  # no folder of this machine


def test_a_fine_tuning_says_its_scores_and_what_flatters_them(place: Path, hub: hubs.Hub) -> None:
    assert (
        main(["push", str(place / "tuned"), "--to", "me/rte", "--model-seed", "1", "--private"])
        == 0
    )
    assert hub.repositories == {"me/rte": True}
    card = hub.cards["me/rte"]
    result = json.loads((place / "tuned/result.json").read_text())
    assert f"| median: dev: accuracy | {result['median']['dev']['accuracy']:.4g} |" in card
    assert "scores on dev are too high (selection bias)" in card
    assert "--eval-every 0.25 --keep-best" in card
    assert str(place) not in card


def test_a_hub_id_is_named_as_the_base(place: Path, tmp_path: Path, hub: hubs.Hub) -> None:
    run = tmp_path / "run"
    (run / "model").mkdir(parents=True)
    for name in ("config.json", "result.json"):
        text = (place / "adapted" / name).read_text()
        run.joinpath(name).write_text(text)
    described = json.loads((run / "config.json").read_text())
    described["config"]["student"] = "google-bert/bert-base-uncased"
    described["inputs"]["student"] = {
        "path": "google-bert/bert-base-uncased",
        "sha256": "not a local path",
    }
    (run / "config.json").write_text(json.dumps(described))
    assert main(["push", str(run), "--to", "me/bert"]) == 0
    head = yaml.safe_load(hub.cards["me/bert"].split("---\n", 2)[1])
    assert head["base_model"] == "google-bert/bert-base-uncased"
    assert "--student google-bert/bert-base-uncased" in hub.cards["me/bert"]


@pytest.mark.parametrize("kind", ["adapt", "finetune", "pretrain", "train-clip"])
def test_every_command_that_saves_has_a_card(kind: str, tmp_path: Path) -> None:
    settings = COMMANDS[kind].settings
    own, training = settings["_own"], settings["_train"]
    told = {**asdict(own), "train": asdict(training)}
    run = {"kind": kind, "config": told, "inputs": {}, "versions": {}, "commit": "none"}
    text = card("me/it", tmp_path, json.loads(json.dumps(run)), {"steps": 3}, (own, training))
    assert f"```\ngroundling {kind}\n```" in text
    assert "`hf download me/it --local-dir FOLDER`" in text and "- steps: 3" in text


def test_a_saved_model_names_no_folder(place: Path) -> None:
    for model in ("adapted/model", "tuned/seed-0/model"):
        assert str(place) not in homes.told_by(place / model)


def test_the_end_of_a_path_has_no_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "alice"))
    for name in ("encoder", "runs/a/model"):
        (tmp_path / "alice" / name).mkdir(parents=True)
    assert end_of_path(str(tmp_path / "alice/encoder")) == "encoder"
    assert end_of_path(str(tmp_path / "alice/runs/a/model")) == "a/model"


def run_words(place: Path, out: Path) -> list[str]:
    words = ["adapt", "--student", str(place / "student"), "--arm", "mlm", *FEW]
    return [*words, "--text", str(place / "words.txt"), "--out", str(out)]


def test_a_command_pushes_when_it_is_done(
    place: Path, tmp_path: Path, hub: hubs.Hub, capsys: Any
) -> None:
    words = run_words(place, tmp_path / "out")
    assert main([*words, "--push-to-hub", "me/new", "--private"]) == 0
    assert json.loads(capsys.readouterr().out)["arm"] == "mlm"
    assert hub.repositories == {"me/new": True}
    # Whether it is shared is no part of what the run is: the same run, finished, is only pushed.
    assert main([*words, "--push-to-hub", "me/again"]) == 0
    assert list(hub.cards) == ["me/new", "me/again"]
    assert "finished earlier" in capsys.readouterr().err
    groundling.adapt(
        student=place / "student",
        arm="mlm",
        steps=1,
        batch=4,
        cpu=True,
        text=place / "words.txt",
        push_to_hub="me/python",
        out=tmp_path / "out",
    )
    assert "me/python" in hub.cards


def test_a_failing_upload_loses_nothing(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    hubs.put_up(monkeypatch, fault="503 Server Error\nlong story")
    out = tmp_path / "out"
    assert main([*run_words(place, out), "--push-to-hub", "me/new"]) == 2
    line = capsys.readouterr().err.strip().splitlines()[-1]
    assert line == (
        f"groundling: {out}: the run is finished and saved, but the upload failed (me/new: the hub refused the upload "
        f"(RuntimeError: 503 Server Error long story)); retry with `groundling push {out} --to me/new`"
    )
    assert (out / "result.json").exists() and (out / "model/model.safetensors").exists()
    hub = hubs.put_up(monkeypatch)
    assert main(["push", str(out), "--to", "me/new"]) == 0
    assert "me/new" in hub.cards


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--push-to-hub", "no-owner"], "no-owner: not a valid hub name; expected OWNER/NAME"),
        (["--private"], "--private: needs --push-to-hub OWNER/NAME"),
    ],
)
def test_a_mistake_is_told_before_the_run(
    flags: list[str], message: str, place: Path, tmp_path: Path, hub: hubs.Hub, capsys: Any
) -> None:
    assert main([*run_words(place, tmp_path / "out"), *flags]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_login_and_no_hub_are_told_before_the_run(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: hubs.Hub, capsys: Any
) -> None:
    words = [*run_words(place, tmp_path / "out"), "--push-to-hub", "me/new"]
    hub.known = False
    assert main(words) == 2
    assert "no token found); log in with `hf auth login`" in capsys.readouterr().err
    monkeypatch.setattr("groundling.models.hub.is_hub_reachable", lambda: False)
    assert main(words) == 2
    assert "the hub does not answer" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="push_to_hub: save_model=False leaves nothing to push"):
        groundling.finetune(
            model=place / "student",
            data=place,
            task="glue/rte",
            save_model=False,
            push_to_hub="me/x",
        )
    assert PushToHubSettings() == PushToHubSettings(push_to_hub="", private=False)


def test_what_cannot_be_pushed_is_named(place: Path, tmp_path: Path, hub: hubs.Hub) -> None:
    (tmp_path / "half/model").mkdir(parents=True)
    settings = (place / "adapted/config.json").read_text()
    (tmp_path / "half/config.json").write_text(settings)
    (tmp_path / "other/model").mkdir(parents=True)
    (tmp_path / "other/config.json").write_text(settings.replace('"adapt"', '"regions"'))
    for name, message in (
        ("half", r"the run has not finished \(no result.json\)"),
        ("other", "expected the run folder of adapt, finetune, pretrain, train-clip"),
        ("nowhere", "no such folder"),
    ):
        with pytest.raises(InputError, match=message):
            push(PushConfig(run=str(tmp_path / name), to="me/it"))
    assert hub.cards == {}


def test_a_card_tells_no_folder_of_this_machine_whose_name_has_an_equals_sign() -> None:
    texts = ["/home/me/lr=1/t.txt=2", "/home/me/u.txt", "data/v.txt=3"]
    given = {"text": texts, "eval_text": ["~/a=b/held.txt"], "student": "me/bert", "train": {}}
    told = command({"kind": "adapt", "config": given}, {"data/v.txt"}, (AdaptConfig(), ADAPTING))
    assert (
        told
        == "groundling adapt --student me/bert --text t.txt=2 u.txt v.txt=3 --eval-text held.txt"
    )
    regions = {"regions": ["train=/home/me/k=3/store"], "train": {}}
    assert command(
        {"kind": "finetune", "config": regions}, set(), (FinetuneConfig(), TUNING)
    ).endswith("train=store")
