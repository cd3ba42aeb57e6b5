"""VILLA's inner step: what it is by its release, restated by hand; what it is not; and that it resumes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import homes, toys
from tiny.homes import Killed, log_of
from tiny.objectives import JOINS, still, three_choices, two_classes, weights
from torch import Tensor, nn

from groundling.core.batch import Batch
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, RegionSelection
from groundling.models.task_heads import HeadContext
from groundling.objectives import Objective
from groundling.objectives.image_text_matching import ImageTextMatching
from groundling.objectives.masked_lm import MaskedLM
from groundling.objectives.masked_regions import MaskedRegionModeling
from groundling.objectives.supervised import SupervisedObjective
from groundling.settings.objectives import TrainingStepSettings
from groundling.settings.training import TrainingArguments
from groundling.tasks.splits import UnlabelledDataset
from groundling.training.batch_sampler import DataSource, MicroBatchDataset, plan_batches
from groundling.training.loop import ModelWithObjectives, train
from groundling.training.training_steps import (
    MicroBatchContext,
    TrainingStep,
    VillaStep,
    load_training_step,
)
from groundling.vision_language.uniter import UniterBinaryChoiceHead, uniter

ADAMW = TrainingArguments(steps=3, batch=6, lr=1e-3, log_every=1, save_every=1, cpu=True)
FLAT = replace(ADAMW, warmup_ratio=0.0, schedule="constant", max_grad_norm=0.0, weight_decay=0.0)
SGD = replace(FLAT, optimizer="sgd", momentum=0.0, lr=0.1)
CHOICES = 3


def villa(**options: Any) -> VillaStep:
    return VillaStep(
        TrainingStepSettings(**{f"adversarial_{name}": value for name, value in options.items()})
    )


def vcr() -> tuple[nn.Module, SupervisedObjective, Any]:
    """UNITER with its head for VCR: two logits for each choice."""
    words = homes.words()
    torch.manual_seed(9)
    model = uniter(toys.bert(len(words)), words, width=12)
    form = MultipleChoice(tuple(str(number) for number in range(CHOICES)))
    head = UniterBinaryChoiceHead(
        HeadContext(model.sizes, UniterBinaryChoiceHead.output_type_for(form))
    )
    return model, SupervisedObjective(model.sizes, output_type=form, head=head), three_choices()


class WatchedSteps(TrainingStep):
    """Another inner step, whose passes are looked at; after the `dies`-th backward pass the process is gone."""

    compares_logits = True

    def __init__(self, inner: TrainingStep, dies: int = 0) -> None:
        self.inner = inner
        self.left = dies
        self.changes: list[Any] = []
        self.losses: list[float] = []
        self.backwards = 0

    def count(self, batch: Batch) -> dict[str, int]:
        return self.inner.count(batch)

    def __call__(self, micro: MicroBatchContext) -> Any:
        def forward(batch: Batch) -> Any:
            self.changes.append(batch.perturbation)
            outcome = micro.forward(batch)
            self.losses += [value.item() for name, value in outcome.terms.items() if name == "task"]
            return outcome

        def backward(loss: Tensor, **options: bool) -> None:
            micro.backward(loss, **options)
            self.backwards += 1
            self.left -= 1
            if not self.left:
                raise Killed

        return self.inner(replace(micro, forward=forward, backward=backward))


# -- what it is --------------------------------------------------------------------------------------------------------


class ByHand:
    """VILLA's step restated: perturbations enter by a hook on the embedding and by changed features.

    zhegan27/VILLA, train_vcr_adv.py, with the mean over rows, that is over choices.
    """

    def __init__(self, passes: int, size: float, kl: float, modality: str, norm: str, over: str):
        self.passes, self.size, self.kl = passes, size, kl
        self.modality, self.norm, self.over = modality, norm, over

    def step(self, model: Any, task: SupervisedObjective, batch: Batch) -> None:
        rows, tokens = batch.text.input_ids.shape
        text = torch.zeros(rows, tokens, model.sizes.input_embeddings[1])
        image = torch.zeros_like(batch.regions.features)
        clean = self.logits(model, task, batch, None, None)
        turns = {
            "both": [(True, True)],
            "text": [(True, False)],
            "image": [(False, True)],
            "alternate": [(True, False), (False, True)],
        }[self.modality]
        for number in range(self.passes):
            text.requires_grad_(), image.requires_grad_()
            loss = 0
            for with_text, with_image in turns:
                part = (text if with_text else None, image if with_image else None)
                loss = loss + self.loss(clean, self.logits(model, task, batch, *part), batch)
            (loss / (self.passes * len(turns))).backward(retain_graph=True)
            if number + 1 < self.passes:
                text, image = self.climbed(text), self.climbed(image)

    def logits(
        self, model: Any, task: SupervisedObjective, batch: Batch, text: Any, image: Any
    ) -> Tensor:
        """(rows, 2)."""

        def add(module: nn.Module, inputs: Any, output: Tensor) -> Tensor:
            return output if text is None else output + text

        if image is not None:
            seen = replace(batch.regions, features=batch.regions.features + image)
            batch = replace(batch, regions=seen)
        hook = model.word_embeddings().register_forward_hook(add)
        outputs = task.head(model(batch), batch)
        hook.remove()
        return outputs

    def loss(self, clean: Tensor, found: Tensor, batch: Batch) -> Tensor:
        is_right = F.one_hot(batch.labels["label"], CHOICES).view(-1)
        loss = F.cross_entropy(found, is_right, reduction="sum")
        p, q = clean.softmax(1), found.softmax(1)
        kl = (p * (p / q).log() + q * (q / p).log()).sum()
        if self.over == "mean":
            kl = kl / 2  # the mean over rows and over both classes
        return (loss + self.kl * kl) / batch.rows

    def climbed(self, part: Tensor) -> Tensor:
        if part.grad is None:
            return part.detach()
        moved = []
        for row, gradient in zip(part.detach(), part.grad, strict=True):
            size = gradient.norm() if self.norm == "l2" else gradient.abs().max()
            moved.append(row + self.size * gradient / max(float(size), 1e-8))
        return torch.stack(moved)


SETTINGS = [
    {"modality": modality, "passes": 3, "size": 0.3, "kl": 1.5, "norm": "l2", "over": "sum"}
    for modality in ("both", "text", "image", "alternate")
]
SETTINGS += [
    {"modality": "both", "passes": 2, "size": 0.1, "kl": 1.0, "norm": "linf", "over": "mean"},
    {"modality": "text", "passes": 1, "size": 1.0, "kl": 0.5, "norm": "l2", "over": "sum"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=lambda one: f"{one['modality']}-{one['norm']}")
def test_it_is_what_a_plain_restatement_does(settings: dict[str, Any], tmp_path: Path) -> None:
    steps = 2
    model, task, data = vcr()
    config = replace(SGD, steps=steps)
    names = {"passes": "steps", "size": "lr", "kl": "kl_weight", "over": "kl_reduction"}
    made = villa(**{names.get(name, name): value for name, value in settings.items()})
    train(still(model), [still(task)], data, config, tmp_path, training_step=made)
    plain, head, _ = vcr()
    still(plain).train(), still(head).train()
    feed = MicroBatchDataset(plan_batches([DataSource(data)], [], config, 1), [head], 1, 0, 1)
    parameters = list(ModelWithObjectives(plain, [head]).parameters())
    optimizer = torch.optim.SGD(parameters, SGD.lr)
    for number in range(steps):
        ByHand(**settings).step(plain, head, feed[number])
        optimizer.step()
        optimizer.zero_grad()
    expected = weights(plain, [head])
    for name, value in weights(model, [task]).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-4, atol=2e-6)


def test_no_two_passes_share_a_dropout_mask(tmp_path: Path) -> None:
    """With nothing added the passes differ by dropout alone, and so do their answers."""
    watching = WatchedSteps(villa(lr=0.0))
    model, task, data = vcr()
    train(model, [task], data, replace(SGD, steps=1), tmp_path, training_step=watching)
    assert len({round(loss, 5) for loss in watching.losses}) == 4
    assert log_of(tmp_path)[0]["divergence"] > 0


# -- every inner step, on every model ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*JOINS, "bert"])
def test_accumulation_changes_nothing(name: str, tmp_path: Path) -> None:
    """Each row has a perturbation of its own, and each sum is divided by the whole step's count."""
    found = []
    for accumulate in (1, 3):
        model, task, data = two_classes(name)
        out = tmp_path / str(accumulate)
        config = replace(SGD, steps=2, gradient_accumulation_steps=accumulate)
        step = load_training_step(TrainingStepSettings("villa", adversarial_lr=0.1))
        train(still(model), [still(task)], data, config, out, training_step=step)
        found.append((log_of(out), weights(model, [task])))
    for one, other in zip(found[0][0], found[1][0], strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)
        assert one["loss"] == pytest.approx(one["task"] + one["divergence"], rel=1e-5)
        assert one["divergence"] > 0
    for weight, value in found[0][1].items():
        torch.testing.assert_close(found[1][1][weight], value, rtol=1e-4, atol=1e-5)


def test_a_killed_run_resumes_bit_equal(tmp_path: Path) -> None:
    config = replace(ADAMW, gradient_accumulation_steps=2)

    def resume(out: Path, dies: int) -> dict[str, Tensor]:
        model, task, data = two_classes("uniter")  # with dropout, whose masks must come back too
        train(model, [task], data, config, out, training_step=WatchedSteps(villa(steps=2), dies))
        return weights(model, [task])

    whole = resume(tmp_path / "whole", 0)
    with pytest.raises(Killed):
        resume(tmp_path / "killed", 7)  # in the second step, between two passes
    again = resume(tmp_path / "killed", 0)
    assert [name for name in whole if not torch.equal(whole[name], again[name])] == []
    assert log_of(tmp_path / "whole") == log_of(tmp_path / "killed")


# -- where something is missing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("modality", ["both", "alternate"])
def test_a_model_of_text_alone_has_its_words_perturbed(modality: str, tmp_path: Path) -> None:
    watching = WatchedSteps(villa(modality=modality, steps=2))
    model, task, data = two_classes("bert")
    train(model, [task], data, replace(SGD, steps=1), tmp_path, training_step=watching)
    assert len(watching.changes) == 3
    assert all([*one] == ["text"] for one in watching.changes[1:])


def test_images_of_a_model_of_text_alone_are_refused(tmp_path: Path) -> None:
    model, task, data = two_classes("bert")
    with pytest.raises(InputError, match="image: this data or model has only text to perturb"):
        train(model, [task], data, SGD, tmp_path, training_step=villa(modality="image"))


def pretraining() -> tuple[Any, dict[str, Objective], Any]:
    words = homes.words()
    torch.manual_seed(9)
    model = still(uniter(toys.bert(len(words)), words, width=12))
    sizes = model.sizes._replace(classes=5)
    every = [
        MaskedLM(sizes, mask_id=4, mask_rate=0.3),
        ImageTextMatching(sizes),
        MaskedRegionModeling(sizes, kind="regress", min_masked=1, tied=True),
        MaskedRegionModeling(sizes, min_masked=1),
    ]
    return model, {one.name: still(one) for one in every}, toys.seen(24)


def test_pretraining_compares_every_heads_answers(tmp_path: Path, capsys: Any) -> None:
    """Masked words, matches and classes have logits; the divergence of each is a mean over its own items."""
    model, objectives, data = pretraining()
    for name in ("masked_lm", "sentence_image", "masked_regions"):
        source = DataSource(data, objectives=(name,))
        train(
            model, [objectives[name]], [source], SGD, tmp_path / name, training_step=villa(lr=0.5)
        )
        assert all(line["divergence"] > 0 for line in log_of(tmp_path / name))
    assert "note" not in capsys.readouterr().err


def test_a_step_without_logits_has_no_divergence_and_says_so(tmp_path: Path, capsys: Any) -> None:
    model, objectives, data = pretraining()
    train(model, [objectives["regress_regions"]], data, SGD, tmp_path, training_step=villa())
    assert all("divergence" not in line for line in log_of(tmp_path))
    notes = [line for line in capsys.readouterr().err.splitlines() if "note:" in line]
    assert len(notes) == 1 and "has no divergence" in notes[0]


def test_samples_without_labels_are_kept_close_too(tmp_path: Path) -> None:
    """The divergence needs no label, and is a mean over all samples, however a step is split."""
    found = []
    for accumulate in (1, 3):
        model, task, data = two_classes("uniter")
        others = UnlabelledDataset(data, np.array(0))
        source = DataSource(data, extra_samples=others, extra_per_sample=2)
        out = tmp_path / str(accumulate)
        config = replace(SGD, gradient_accumulation_steps=accumulate)
        train(still(model), [still(task)], [source], config, out, training_step=villa(lr=0.5))
        found.append(log_of(out))
    for one, other in zip(*found, strict=True):
        assert one["divergence"] > 0
        assert one == pytest.approx(other, rel=1e-4, abs=1e-5)


def test_regions_that_are_not_there_do_not_diverge(tmp_path: Path) -> None:
    """Heads over regions say -inf where a row has fewer of them."""
    model, _, data = two_classes("uniter")
    task = SupervisedObjective(model.sizes, output_type=RegionSelection(kind="ce"))
    data.options = replace(
        data.options, label_regions=lambda example, row: (row.boxes[:, 0] > 0.25).astype(int)
    )
    train(still(model), [still(task)], data, SGD, tmp_path, training_step=villa(lr=0.5))
    divergences = [line["divergence"] for line in log_of(tmp_path)]
    assert all(0 < value < 10 for value in divergences)


# -- by name -----------------------------------------------------------------------------------------------------------
