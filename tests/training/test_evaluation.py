"""Evaluation on the way: when it is due, which weights are kept, when a run stops, and all of it after a kill."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tiny import homes, toys

from groundling.commands.adapt import COMMAND as adapt
from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import COMMAND as pretrain
from groundling.commands.pretrain import PretrainConfig
from groundling.commands.train_clip import COMMAND as teach
from groundling.commands.train_clip import TrainClipConfig
from groundling.core.batch import collate
from groundling.core.errors import InputError
from groundling.core.output_types import Classification
from groundling.data.regions import ImageRegions, RegionWriter
from groundling.objectives import order_for_corruption
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.objectives.supervised import SupervisedObjective
from groundling.objectives.xdbert import SameSentencePrediction
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.training import EvaluationSettings, TrainingArguments
from groundling.training.batch_sampler import DataSource, corrupt_samples
from groundling.training.evaluation import Evaluator
from groundling.training.fit import HeldOutLoss, compare_with_baseline, constant_loss
from groundling.training.loop import _TrainingLoop, train

STEPS = TrainingArguments(epochs=2, batch=16, lr=1e-2, log_every=3, save_every=3, cpu=True)


def scripted(scores: list[float], **options: Any) -> Evaluator:
    """An exam every half epoch whose scores are known beforehand."""
    told = iter(scores)
    settings = EvaluationSettings(eval_every=0.5, **options)
    return Evaluator(settings, "dev", "accuracy", lambda: {"accuracy": next(told)})


def taken(*scores: float) -> list[dict[str, float]]:
    return [{"step": 10 * n + 10, "accuracy": score} for n, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("every", "steps"),
    [(0.5, [2, 4, 6, 7]), (1, [4, 7]), (1 / 3, [2, 3, 4, 6, 7]), (0.1, [*range(1, 8)]), (9, [7])],
)
def test_it_is_due_where_a_share_of_an_epoch_ends_and_at_the_end(every, steps):
    exam = replace(scripted([]), settings=EvaluationSettings(eval_every=every))
    assert [step for step in range(1, 8) if exam.is_due(step, 7, 4.0)] == steps


def test_the_first_of_equal_scores_is_the_best_and_an_undefined_one_the_worst() -> None:
    exam = scripted([])
    assert exam.best(taken(0.1, 0.7, 0.7))["step"] == 20
    assert exam.best(taken(math.nan, -0.5, math.nan))["step"] == 20
    assert exam.best(taken(math.nan, math.nan))["step"] == 10
    assert replace(exam, higher_is_better=False).best(taken(0.5, 0.2, 0.9))["step"] == 20


def test_patience_counts_exams_that_were_no_better() -> None:
    exam = scripted([], patience=2)
    scores = (0.1, 0.5, 0.5, 0.3, 0.9)
    over = [exam.should_stop(taken(*scores[:count])) for count in range(6)]
    assert over == [False, False, False, False, True, False]
    assert not scripted([]).should_stop(taken(0.9, 0.1, 0.1, 0.1))


class ScriptedRun:
    """A training whose exam is scripted, and the weights at each of its exams."""

    def __init__(self, student: Any, samples: Any, out: Path, exam: Evaluator, at: int = 0) -> None:
        self.model = student()
        torch.manual_seed(3)
        task = SupervisedObjective(self.model.sizes, output_type=Classification(("no", "yes")))
        self.seen: list[dict[str, torch.Tensor]] = []

        def measure() -> dict[str, float]:
            self.seen.append(self.weights())
            assert self.model.training
            return dict(exam.measure())

        watched = replace(exam, measure=measure)
        self.result = train(
            self.model,
            [task],
            samples,
            STEPS,
            out,
            evaluator=watched,
            training_step=homes.dying(at),
        )

    def weights(self) -> dict[str, torch.Tensor]:
        return {name: value.clone() for name, value in self.model.state_dict().items()}

    def has(self, weights: dict[str, torch.Tensor]) -> bool:
        return all(torch.equal(value, weights[name]) for name, value in self.weights().items())


def test_the_best_weights_are_kept_and_a_killed_run_keeps_the_same(student, text_only, tmp_path):
    scores = [0.2, 0.9, 0.4, 0.8]
    whole = ScriptedRun(student, text_only, tmp_path / "whole", scripted(scores, keep_best=True))
    assert whole.has(whole.seen[1]) and not whole.has(whole.seen[3])
    told = whole.result["evaluation"]
    assert (told["kept_step"], told["evaluations"], told["stopped_early"]) == (4, 4, False)
    assert [one["accuracy"] for one in told["scores"]] == scores
    lines = homes.log_of(tmp_path / "whole")
    assert [line["step"] for line in lines if "dev accuracy" in line] == [2, 4, 6, 8]
    # Killed after the best one was set aside, and after the checkpoint behind it.
    out = tmp_path / "killed"
    with pytest.raises(homes.Killed):
        ScriptedRun(student, text_only, out, scripted(scores, keep_best=True), at=6)
    assert (out / "checkpoints/best-000000004.safetensors").exists()
    again = ScriptedRun(student, text_only, out, scripted(scores[2:], keep_best=True))
    assert again.has(whole.weights())
    assert again.result["evaluation"] == told
    assert homes.log_of(out) == lines


def test_weights_that_are_no_numbers_are_neither_examined_nor_kept(student, text_only, tmp_path):
    task = SupervisedObjective(student().sizes, output_type=Classification(("no", "yes")))
    exam = replace(scripted([]), settings=EvaluationSettings(eval_every=0.1, keep_best=True))
    with pytest.raises(InputError, match=r"step 1: weights are NaN or infinite"):
        train(student(), [task], text_only, replace(STEPS, lr=1e39), tmp_path, evaluator=exam)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_kill_before_the_checkpoint_loses_no_best_weights(
    student: Any, text_only: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = ScriptedRun(
        student, text_only, tmp_path / "whole", scripted([0.5, 0.1, 0.2, 0.3], keep_best=True)
    )
    out = tmp_path / "killed"

    def killed(*_: Any) -> None:
        raise homes.Killed

    with monkeypatch.context() as patch:
        # Were the score at step 4 the best, its weights would be there now, beside those of step 2.
        later = iter([0.5, 0.9])
        exam = replace(scripted([], keep_best=True), measure=lambda: {"accuracy": next(later)})
        patch.setattr("groundling.training.loop._TrainingLoop._save", _third(killed))
        with pytest.raises(homes.Killed):
            ScriptedRun(student, text_only, out, exam)
    there = sorted(path.name for path in (out / "checkpoints").glob("best-*"))
    assert there == ["best-000000002.safetensors", "best-000000004.safetensors"]
    again = ScriptedRun(student, text_only, out, scripted([0.1, 0.2, 0.3], keep_best=True))
    assert again.has(whole.weights()) and again.has(whole.seen[0])


def test_an_undefined_score_on_the_way_survives_a_kill(student, text_only, tmp_path, capsys):
    scores = [math.nan, 0.1, math.nan, 0.05]
    whole = ScriptedRun(student, text_only, tmp_path / "whole", scripted(scores, keep_best=True))
    assert "accuracy undefined" in capsys.readouterr().err
    out = tmp_path / "killed"
    with pytest.raises(homes.Killed):
        ScriptedRun(student, text_only, out, scripted(scores, keep_best=True), at=7)
    again = ScriptedRun(student, text_only, out, scripted(scores[3:], keep_best=True))
    for run in (whole, again):
        told = run.result["evaluation"]
        assert [one["accuracy"] for one in told["scores"]] == [None, 0.1, None, 0.05]
        assert told["kept_step"] == 4
    lines = [line for line in homes.log_of(out) if "dev accuracy" in line]
    assert [line["dev accuracy"] for line in lines] == [None, 0.1, None, 0.05]
    assert "NaN" not in (out / "log.jsonl").read_text()


def _third(killed: Any) -> Any:
    """`_TrainingLoop._save` that is a kill where it is called for the third time, which is after step 4."""
    save = _TrainingLoop._save
    calls = iter([save, save, killed])
    return lambda training: next(calls)(training)


def test_it_stops_early_and_stays_stopped(student: Any, text_only: Any, tmp_path: Path) -> None:
    scores = [0.9, 0.1, 0.8]
    run = ScriptedRun(student, text_only, tmp_path, scripted(scores, patience=2))
    assert run.has(run.seen[2])  # kept is the last step, if nobody asks for the best
    assert (run.result["steps"], run.result["epochs"]) == (6, 1.5)
    assert run.result["evaluation"]["stopped_early"]
    again = ScriptedRun(student, text_only, tmp_path, scripted([], patience=2))
    assert again.result["evaluation"] == run.result["evaluation"]


# -- fine-tuning -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> FinetuneConfig:
    home = tmp_path_factory.mktemp("home")
    return make_settings(
        FinetuneConfig,
        model=str(homes.student(home / "model")),
        task="glue/rte",
        data=str(homes.rte(home / "glue")),
        eval_every=0.5,
        keep_best=True,
        patience=2,
    )


def test_finetune_says_what_was_kept(settings, tmp_path, capsys):
    result = finetune(settings, replace(STEPS, epochs=3, batch=4), tmp_path)
    said = capsys.readouterr().err
    assert "step 2: dev accuracy " in said and "(best so far: " in said
    told = json.loads((tmp_path / "seed-0/result.json").read_text())
    exam = told["evaluation"]
    best = max(exam["scores"], key=lambda one: one["accuracy"])
    assert exam["kept_step"] == best["step"]
    assert told["scores"]["dev"]["accuracy"] == best["accuracy"]  # the kept weights answered
    assert any("scores on dev are too high (selection bias)" in one for one in result["notes"])


def test_evaluating_leaves_no_trace(student: Any, text_only: Any, tmp_path: Path) -> None:
    watched = ScriptedRun(student, text_only, tmp_path / "watched", scripted([0.1] * 4))
    plain = student()
    torch.manual_seed(3)
    task = SupervisedObjective(plain.sizes, output_type=Classification(("no", "yes")))
    train(plain, [task], text_only, STEPS, tmp_path / "plain")
    assert watched.has(plain.state_dict())


# -- losses on held-out data -------------------------------------------------------------------------------------------


FEW_STEPS = replace(homes.STEPS, steps=4, batch=4, lr=1e-2, save_every=9)


def test_it_is_the_mean_over_all_samples_and_leaves_no_trace() -> None:
    model = toys.cross_modal(dropout=0.5).train()
    objectives = [
        MaskedLM(model.sizes, mask_id=4, joint=True),
        SameSentencePrediction(model.sizes, weight=0.5),
    ]
    samples = toys.both_sides(13)
    config = TrainingArguments(
        batch=8, gradient_accumulation_steps=2, seed=3
    )  # passes of 4, 4 and 5
    held = HeldOutLoss("texts", [DataSource(samples)], model, objectives, (), config)
    state = torch.random.get_rng_state()
    found = held.measure()
    assert torch.equal(state, torch.random.get_rng_state())
    assert model.training and objectives[0].training
    model.eval()
    batch = collate(corrupt_samples(samples, range(13), 3, -1, order_for_corruption(objectives)))
    means = {}
    with torch.no_grad():
        encoded = model(batch)
        for one in objectives:
            for term, value in one(encoded, batch).items():
                means[term] = float(value) / one.count(batch)[term]
    assert found == pytest.approx(
        {"loss": means["mlm"] + 0.5 * means["match"], **means}, rel=1e-4, abs=1e-5
    )


# -- guessing --------------------------------------------------------------------------------------------------------


def test_what_guessing_loses() -> None:
    for kind, values, loss in (
        ("class", [0, 1, 1, 0, 1, 0], log(2) + 1 / 12),
        ("class", [3] * 6, 0),
        ("share", [[1.0, 0.0], [0.0, 1.0]], log(2)),
        ("share", [[0.5, 0.5], [0.0, 0.0]], log(2) / 2),
        ("number", [[0.0, 5.0], [2.0, 5.0], [4.0, 5.0]], 8 / 3),
    ):
        assert constant_loss(kind, np.array(values)) == pytest.approx(loss)


@pytest.mark.parametrize("kind", ["soft", "regress"])
def test_who_always_says_the_same_loses_just_that(kind) -> None:
    """The loss itself, of a head that is made to say the best constant answer."""
    model, samples = toys.seer(), toys.seen()
    torch.manual_seed(0)
    objective = MaskedRegionModeling(model.sizes._replace(classes=5), kind=kind)
    batch = collate(corrupt_samples(samples, range(48), 0, 0, [objective]))
    ((term, (found, values)),) = objective.loss_targets(batch).items()
    scored = objective.count(batch)[term]
    assert len(values) == scored
    for parameter in objective.parameters():
        torch.nn.init.zeros_(parameter)
    mean = values.mean(0)
    with torch.no_grad():
        objective.head[-1].bias.copy_(mean if kind == "regress" else mean.clamp(min=1e-9).log())
        loss = objective(model(batch), batch)[term] / scored
    assert loss.item() == pytest.approx(constant_loss(found, values.numpy()), rel=1e-4)


def test_who_has_not_left_guessing_is_told() -> None:
    losses = {"loss": 9.0, "mlm": 2.0, "match": 0.690, "word_region": 0.1, "bad": float("nan")}
    levels = {"mlm": 5.0, "match": 0.6931, "bad": 1.0}
    beside = SimpleNamespace(measure=lambda: losses, baseline_losses=lambda: levels)
    told, notes = compare_with_baseline(beside, "mend it")
    assert told["mlm"] == {"loss": 2.0, "guessing": 5.0}
    assert "word_region" not in told
    assert [note.split()[0] for note in notes] == ["match", "bad"]
    assert "its loss is 0.69, that of" in notes[0] and notes[0].endswith("is 0.6931; mend it")


# -- commands --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, a text encoder and a CLIP; twelve pictures with captions, of which the last four are held out."""
    folder = tmp_path_factory.mktemp("held")
    homes.student(folder / "bert")
    homes.teacher(folder / "clip")
    homes.text(folder / "train.txt", 24)
    homes.put(folder / "held.txt", "\n".join(toys.sentences()[24:36]) + "\n")
    names = [f"{number:02d}" for number in range(12)]
    rows = [f"{name}.png\ta dog and {name} cats" for name in names]
    homes.put(folder / "train.tsv", "image\tcaption\n" + "\n".join(rows[:8]) + "\n")
    homes.put(folder / "held.tsv", "image\tcaption\n" + "\n".join(rows[8:]) + "\n")
    writer = RegionWriter(folder / "store")
    found = []
    for number, name in enumerate(names):
        homes.picture(folder / f"images/{name}.png", (number * 20, 9, 99), (16, 16))
        row = toys.regions(number, 3)
        values = (row.boxes, row.confidence, row.features, row.classes)
        found.append(ImageRegions(name, (16, 16), *values))
    (folder / "store").mkdir(exist_ok=True)
    writer.write(0, found)
    writer.close({"source": "test"})
    return folder


def adapting(place: Path) -> AdaptConfig:
    return make_settings(
        AdaptConfig,
        student=str(place / "bert"),
        teacher=str(place / "clip"),
        text=(str(place / "train.txt"),),
        eval_text=(str(place / "held.txt"),),
        max_length=24,
    )


def pretraining(place: Path) -> PretrainConfig:
    return make_settings(
        PretrainConfig,
        architecture="uniter",
        model=str(place / "bert"),
        regions=str(place / "store"),
        captions=(str(place / "train.tsv"),),
        eval_captions=(str(place / "held.tsv"),),
    )


def teaching(place: Path) -> TrainClipConfig:
    small = {"size": 16, "patch_size": 8, "projection_dim": 8}
    small |= {"vision_tower": (8, 1), "text_tower": (8, 1)}
    return make_settings(
        TrainClipConfig,
        captions=str(place / "train.tsv"),
        eval_captions=str(place / "held.tsv"),
        images=str(place / "images"),
        vocab_size=300,
        **small,
    )


COMMANDS: list[tuple[Any, Callable[[Path], Any]]] = [
    (adapt, adapting),
    (pretrain, pretraining),
    (teach, teaching),
]


def result_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "result.json").read_text())


@pytest.mark.parametrize(("recipe", "settings"), COMMANDS)
def test_a_command_keeps_the_weights_of_its_best_exam(recipe, settings, place, tmp_path):
    config = replace_settings(settings(place), eval_every=0.25, keep_best=True)
    recipe(config, FEW_STEPS, tmp_path / "whole")
    whole = result_of(tmp_path / "whole")
    exam = whole["evaluation"]
    assert exam["evaluations"] >= 2
    at_best = next(one for one in exam["scores"] if one["step"] == exam["kept_step"])
    if recipe is teach:
        assert exam["metric"] == "mean_recall"
        report = whole["retrieval"]
        recalls = [value for name, value in report.items() if "_r@" in name]
        assert report["mean_recall"] == pytest.approx(sum(recalls) / 6, abs=0.01)
    else:
        assert at_best["loss"] == min(one["loss"] for one in exam["scores"])
        report = {"loss": whole["held"]["loss"], **whole["held"]["terms"]}
    for name in at_best.keys() - {"step"}:
        assert report[name] == at_best[name]  # the kept weights were measured
    kept = f"the weights of step {exam['kept_step']} were kept"
    assert any(note.startswith(kept) for note in whole["notes"])


def test_a_pretraining_says_which_parts_still_guess(place, tmp_path, capsys):
    parts = pretrain(pretraining(place), replace(FEW_STEPS, lr=1e-9), tmp_path / "out")["guessing"]
    assert {"mlm", "sentence_image"} <= parts.keys()
    assert "word_region" not in parts
    still = [term for term, one in parts.items() if one["loss"] >= 0.98 * one["guessing"]]
    assert still
    told = capsys.readouterr().err
    assert all(f"note: {term} is no better than a constant prediction: " in told for term in still)


def test_what_is_held_out_and_learned_from_is_told(place: Path, tmp_path: Path) -> None:
    both = str(homes.put(tmp_path / "both.tsv", (place / "train.tsv").read_text()))
    text = str(place / "train.txt")
    once = replace(FEW_STEPS, steps=1)
    for recipe, config, what in (
        (adapt, replace_settings(adapting(place), eval_text=(text,)), "1 of 1 held-out files"),
        (pretrain, replace_settings(pretraining(place), eval_captions=(both,)), "8 of 8 held-out"),
        (teach, replace_settings(teaching(place), eval_captions=both), "8 of 8 held-out images"),
    ):
        notes = recipe(config, once, tmp_path / recipe.name)["notes"]
        assert any(note.startswith(what) and "in the training data" in note for note in notes)


NONE = "eval_every: there is no held-out data"
REFUSED = [
    (adapt, adapting, {"eval_text": ()}, NONE),
    (pretrain, pretraining, {"eval_captions": ()}, NONE),
    (teach, teaching, {"eval_captions": ""}, NONE),
    (
        pretrain,
        pretraining,
        {"captions": (), "task": "vqa", "data": "x"},
        r"eval_captions=.*held.tsv: applies only to captions",
    ),
]


@pytest.mark.parametrize(("recipe", "settings", "values", "message"), REFUSED)
def test_settings_that_do_not_fit(recipe, settings, values, message, place, tmp_path):
    config = replace_settings(settings(place), **{"eval_every": 1.0, **values})
    with pytest.raises(InputError, match=message):
        recipe(config, FEW_STEPS, tmp_path / "out")
    assert not (tmp_path / "out/log.jsonl").exists()
