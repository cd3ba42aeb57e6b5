"""Settings that are missing, unknown or out of range: told by their flag before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from pathlib import Path
from typing import Any

import pytest
from tiny.homes import put

from groundling.commands.adapt import AdaptConfig
from groundling.commands.finetune import FinetuneConfig
from groundling.commands.pretrain import PretrainConfig
from groundling.core.errors import InputError
from groundling.settings.fields import make_settings

TUNE = ["finetune", "--model", "STUDENT", "--data", "GLUE", "--task", "glue/rte"]
SEEING = ["pretrain", "--model", "STUDENT", "--regions", "R", "--captions", "C"]


@pytest.mark.parametrize(
    ("command", "complaint"),
    [
        (["adapt"], "needs student"),
        (["adapt", "--student", "x"], "needs teacher"),
        (
            ["adapt", "--student", "x", "--arm", "mlm+nonsense"],
            "no objective is called 'nonsense'; there are: ",
        ),
        (["adapt", "--student", "STUDENT", "--arm", "mlm"], "no text to adapt on"),
        (["train-clip"], "needs captions"),
        (["finetune"], "needs model"),
        (
            ["finetune", "--model", "STUDENT", "--data", "GLUE", "--task", "glue/x"],
            "no task is called 'glue/x'",
        ),
        (
            ["finetune", "--model", "STUDENT", "--data", "absent", "--task", "glue/rte"],
            "absent: no such file or folder",
        ),
        (
            [*TUNE, "--label", "y"],
            "finetune needs either task, or text and label",
        ),
        (
            [*TUNE, "--zero-region-features"],
            "zero_region_features: needs regions; pass regions=STORE or leave it out",
        ),
        ([*TUNE, "--max-regions", "3"], "max_regions=3: needs regions"),
        (["probe"], "needs model"),
        (
            ["probe", "--model", "STUDENT", "--data", "GLUE"],
            "expected a folder `probes`",
        ),
        (["compare", "--arms", "mlm"], "compare needs either tasks, or text and label"),
        (
            [
                "compare",
                "--arms",
                "nonsense",
                "--no-control",
                "--tasks",
                "glue/rte",
                "--data",
                "GLUE",
            ],
            "no objective is called 'nonsense'",
        ),
        (
            ["data", "make-world", "--nouns", "3"],
            "nouns = '3': expected greater than or equal to 4",
        ),
        (["info", "nonsense"], "nonsense: neither a model folder nor a preset"),
        (
            [*SEEING, "--max-total-length", "-1"],
            "max_total_length = '-1': expected greater than or equal to 0",
        ),
        (
            [*SEEING, "--max-regions", "-1"],
            "max_regions = '-1': expected greater than or equal to 0",
        ),
        (
            [
                "finetune",
                "--model",
                "STUDENT",
                "--data",
                "GLUE",
                "--task",
                "cola",
                "--limit-train=-1",
            ],
            "limit_train = '-1': expected greater than or equal to 0",
        ),
    ],
)
def test_settings_that_are_missing_or_unknown(
    command: list[str], complaint: str, given: Path, tmp_path: Path, refusal: Callable[..., str]
) -> None:
    names = {"STUDENT": str(given / "student"), "GLUE": str(given / "glue")}
    out = [] if command[0] == "info" else ["--out", str(tmp_path / "out")]
    assert complaint in refusal(*[names.get(word, word) for word in command], *out)


NUMBERS = {
    "td_weight": (nan, -0.1, inf),
    "td_temperature": (nan, inf, 0.0, -1.0),
    "temperature": (nan, inf, 0.0, -0.07),
    "distill_weight": (nan, -1.0),
    "sentence_weight": (inf,),
    "word_weight": (-0.5,),
    "num_words": (0,),
    "max_windows": (-1,),
    "cache_gb": (nan, -1.0),
    "mask_rate": (1.5, nan),
    "adversarial_lr": (nan,),
}


@pytest.mark.parametrize("kind", [AdaptConfig, PretrainConfig, FinetuneConfig])
def test_numbers_out_of_range_are_told_by_name(kind: Any) -> None:
    make_settings(kind, cache_gb=inf, td_weight=0.0)
    for name, values in NUMBERS.items():
        for value in values:
            with pytest.raises(InputError) as told:
                make_settings(kind, **{name: value})
            assert str(told.value).startswith(f"{name} = {value}: expected ")


def test_numbers_of_a_recipe_are_told_by_their_line(
    tmp_path: Path, refusal: Callable[..., str]
) -> None:
    file = put(
        tmp_path / "s.py",
        'from groundling.recipes import step\nstep("finetune", name="a", td_weight=-1.0)\n',
    )
    told = refusal("run", str(file), "--out", str(tmp_path / "out"))
    assert "s.py, line 2: a: td_weight = -1.0: expected greater than or equal to 0" in told
