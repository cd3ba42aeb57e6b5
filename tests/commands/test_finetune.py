"""`finetune`: every seed and the median, predictions, submissions, seeds that are added."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest
import torch
from safetensors.torch import load_file
from tiny.homes import STEPS, digests, put, rte
from tiny.results import rows_of
from tiny.toys import sentences
from transformers import AutoModel

from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.finetune.result import summary
from groundling.settings.fields import make_settings, replace_settings
from groundling.tasks.glue import STSB
from groundling.training import fit as fitting
from groundling.training.loop import train


@pytest.fixture(scope="session")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rte(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="session")
def tune(encoder: Path, glue: Path) -> FinetuneConfig:
    return make_settings(
        FinetuneConfig, model=str(encoder), task="glue/rte", data=str(glue), max_length=64
    )


@pytest.fixture(scope="session")
def tuned(tune: FinetuneConfig, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    out = tmp_path_factory.mktemp("tuned")
    return out, finetune(replace(tune, seeds=2, submit=True), replace(STEPS, seed=4), out)


def test_finetune_reports_every_seed_and_the_median(tuned: tuple[Path, dict]) -> None:
    out, result = tuned
    assert (result["task"], result["headline"], result["seeds"]) == ("glue/rte", "accuracy", [4, 5])
    assert list(result["scores"]) == list(result["median"]) == ["dev"]
    lines = (out / "seed-4/predictions_dev.jsonl").read_text().splitlines()
    assert result["n"] == {"dev": len(lines)}
    each = [json.loads((out / f"seed-{seed}" / "result.json").read_text()) for seed in (4, 5)]
    assert [run["seed"] for run in each] == [4, 5]
    assert result["scores"]["dev"]["accuracy"] == [run["scores"]["dev"]["accuracy"] for run in each]
    assert result["median"]["dev"]["accuracy"] == median(result["scores"]["dev"]["accuracy"])
    constant = [run["seed"] for run in each if "constant" in run["scores"]["dev"]]
    assert result["degenerate_seeds"] == constant
    assert json.loads((out / "result.json").read_text()) == result


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # A6: three collapsed seeds of five once dropped out, and the median was that of the other two
        ([0.9, 0.0, 0.0, 0.87, 0.0], 0.0),
        ([0.9, 0.8, 0.7], 0.8),
        ([0.9, float("nan"), 0.7], None),
        ([float("nan")], None),
    ],
)
def test_no_seed_drops_out_of_a_median(scores: list[float], expected: float | None) -> None:
    runs = []
    for seed, score in enumerate(scores):
        dev = {"pearson": score, "spearman": score} | ({} if score else {"constant": 1.0})
        runs.append({"seed": seed, "scores": {"dev": dev}, "truncated_tokens": 0})
    result = summary(STSB, runs, "model")
    assert result["median"]["dev"]["pearson"] == expected
    assert len(result["scores"]["dev"]["pearson"]) == len(result["seeds"]) == len(scores)
    assert result["degenerate_seeds"] == [n for n, score in enumerate(scores) if score == 0]


def test_a_collapsed_seed_of_stsb_scores_0_and_counts(encoder: Path, tmp_path: Path) -> None:
    # A6, the whole way: with a rate of 0 and a head of zeros, every prediction is the same
    rows = [
        f"{n}\t\t\t\t\t\t\t{text}\tA cat.\t{n % 5}.0" for n, text in enumerate(sentences()[:16])
    ]
    header = (
        "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2\tscore"
    )
    for split in ("train", "dev"):
        put(tmp_path / "glue" / "STS-B" / f"{split}.tsv", "\n".join([header, *rows]) + "\n")
    config = make_settings(
        FinetuneConfig, model=str(encoder), task="glue/sts-b", data=str(tmp_path / "glue"), seeds=2
    )
    torch_zero = replace(STEPS, lr=0.0, steps=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("groundling.models.task_heads.make_output_layer", silent)
        result = finetune(config, torch_zero, tmp_path / "out")
    assert result["scores"]["dev"]["pearson"] == [0.0, 0.0]
    assert result["median"]["dev"]["pearson"] == 0.0
    assert result["degenerate_seeds"] == [0, 1]


def silent(width: int, outputs: int) -> torch.nn.Linear:
    """A last layer that says the same of everything."""
    linear = torch.nn.Linear(width, outputs)
    for parameter in linear.parameters():
        torch.nn.init.zeros_(parameter)
    return linear


def test_a_text_of_spaces_is_noted(tune: FinetuneConfig, tmp_path: Path) -> None:
    folder = rte(tmp_path / "glue")
    dev = folder / "RTE/dev.tsv"
    put(dev, dev.read_text() + "99\tIt snowed.\t \tentailment\n")
    result = finetune(
        replace_settings(tune, data=str(folder)), replace(STEPS, steps=1), tmp_path / "out"
    )
    told = f"{dev}, example rte-dev-8: expected text, found none"
    assert f"seed 0: {told}" in result["notes"]


def test_predictions_are_the_scores(tuned: tuple[Path, dict]) -> None:
    out, result = tuned
    outputs = []
    for number, seed in enumerate((4, 5)):
        found = rows_of(out / f"seed-{seed}" / "predictions_dev.jsonl")
        assert [row["id"] for row in found] == [f"rte-dev-{i}" for i in range(8)]
        assert [row["label"] for row in found] == [1 - i % 2 for i in range(8)]
        for row in found:
            assert row["prediction"] == max((0, 1), key=lambda i: row["outputs"][i])
        right = sum(row["prediction"] == row["label"] for row in found) / 8
        assert right == result["scores"]["dev"]["accuracy"][number]
        outputs.append([row["outputs"] for row in found])
    assert outputs[0] != outputs[1]


def test_submission_is_what_was_predicted(tuned: tuple[Path, dict]) -> None:
    for seed in (4, 5):
        own = tuned[0] / f"seed-{seed}"
        predicted = rows_of(own / "predictions_test.jsonl")
        names = ("entailment", "not_entailment")
        expected = [f"{i}\t{names[row['prediction']]}" for i, row in enumerate(predicted)]
        assert (own / "RTE.tsv").read_text().splitlines() == ["index\tprediction", *expected]
        assert len(expected) == 5
        assert {row["label"] for row in predicted} == {None}


def test_seeds_can_be_added(
    tune: FinetuneConfig, tuned: tuple[Path, dict], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, training, drawn = tmp_path / "out", replace(STEPS, seed=4), []
    config = replace(tune, submit=True)
    assert finetune(config, training, out)["seeds"] == [4]

    def counted(
        model: object,
        objectives: object,
        data: object,
        config: object,
        *rest: object,
        **options: object,
    ) -> dict:
        drawn.append(config.seed)
        return train(model, objectives, data, config, *rest, **options)

    monkeypatch.setattr(fitting, "train", counted)
    before = digests(out / "seed-4")
    result = finetune(replace_settings(config, seeds=2), training, out)
    assert drawn == [5]
    assert digests(out / "seed-4") == before
    assert result == tuned[1]
    assert finetune(replace_settings(config, seeds=2), training, out) == result
    assert drawn == [5]


def test_finetune_keeps_what_it_trained_unless_told_not_to(
    tune: FinetuneConfig, tuned: tuple[Path, dict], encoder: Path, tmp_path: Path
) -> None:
    assert (tuned[0] / "seed-4" / "model").exists()
    finetune(replace(tune, save_model=False, limit_train=9), STEPS, tmp_path / "none")
    assert not (tmp_path / "none" / "seed-0" / "model").exists()
    result = finetune(replace(tune, limit_train=9), STEPS, tmp_path / "out")
    folder = tmp_path / "out" / "seed-0"
    assert json.loads((folder / "result.json").read_text())["samples"] == 9
    assert result["seeds"] == [0]
    model = AutoModel.from_pretrained(folder / "model")
    assert sum(p.numel() for p in model.parameters()) == sum(
        p.numel() for p in AutoModel.from_pretrained(encoder).parameters()
    )
    assert load_file(folder / "model" / "groundling_heads.safetensors")
