"""`baselines`, and evaluation of an adapter: exchanged photos, broken photos, answers in words."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

import pytest
from tiny import homes
from tiny.homes import STEPS, put

from groundling.commands.baselines import COMMAND as baselines
from groundling.commands.baselines import BaselinesConfig
from groundling.commands.evaluate import COMMAND as evaluate
from groundling.commands.evaluate import EvaluateConfig
from groundling.commands.finetune import COMMAND as finetune
from groundling.commands.finetune import FinetuneConfig
from groundling.core.errors import InputError
from groundling.settings.fields import make_settings, replace_settings

COLUMNS = {"text": "question", "image": "photo", "label": "answer"}
COUNT = 60


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A CLIP, black and white photos, and questions whose answers only the photos tell."""
    folder = tmp_path_factory.mktemp("photos")
    homes.seeing_clip(folder / "clip")
    lines = ["question,photo,answer"]
    for number in range(COUNT):
        light = number % 2
        homes.picture(folder / f"photos/{number}.png", (200 * light + number % 50,) * 3, (16, 16))
        lines.append(f"is it bright ?,{number}.png,{'yes' if light else 'no'}")
    put(folder / "my.csv", "\n".join(lines) + "\n")
    return folder


def frozen_clip(place: Path, photos: Path) -> BaselinesConfig:
    return make_settings(
        BaselinesConfig,
        model=str(place / "clip"),
        data=str(place / "my.csv"),
        images=str(photos),
        cpu=True,
        **COLUMNS,
    )


def test_the_probe_reads_the_photos(place: Path) -> None:
    config = frozen_clip(place, place / "photos")
    found = baselines(config)
    assert sum(found["n"].values()) == COUNT
    assert found["scores"]["linear probe"] == 1
    assert found["scores"]["majority per question"] == found["scores"]["majority"] < 0.7
    assert "linear probe" in found["notes"][0]
    assert baselines(config) == found


def test_an_adapter_is_asked_about_exchanged_and_broken_photos(place: Path, tmp_path: Path) -> None:
    config = make_settings(
        FinetuneConfig,
        model=str(place / "clip"),
        data=str(place / "my.csv"),
        teacher_images=str(place / "photos"),
        adapter="mlp",
        **COLUMNS,
    )
    done = finetune(config, replace(STEPS, steps=60, batch=16, lr=1e-2), tmp_path / "run")
    use = done["image_use"]["dev"]
    assert use["right"] == done["median"]["dev"]["accuracy"] > use["exchanged"]
    assert any("does it use the photographs?" in note for note in done["notes"])

    other = replace_settings(config, shuffle_images=True)
    control = finetune(other, replace(STEPS, steps=60, batch=16, lr=1e-2), tmp_path / "control")
    assert control["shuffled_images"] and "image_use" not in control
    assert control["n"] == done["n"] and control["majority"] == done["majority"]
    assert control["median"]["dev"]["accuracy"] < done["median"]["dev"]["accuracy"]

    def scored(**changes: object) -> dict[str, object]:
        settings = {
            "model": str(tmp_path / "run"),
            "data": str(place / "my.csv"),
            "split": "dev",
            "images": str(place / "photos"),
            "cpu": True,
        }
        return dict(evaluate(make_settings(EvaluateConfig, **(settings | changes))))

    table, page = tmp_path / "answers.csv", tmp_path / "answers.html"
    found = scored(answers=str(table))
    assert found["image_use"] == done["image_use"]
    scored(answers=str(page))
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    right = [row["right"] == "True" for row in rows]
    assert right == sorted(right) and sum(right) / len(right) == use["right"]
    text = page.read_text(encoding="utf-8")
    assert text.count("data:image/png") == len(rows) and "Confusion matrix" in text
    assert f"{len(rows)} answers; all are below, worst first" in text
    assert text.count(f", right\n{rows[0]['photo']}</figcaption>") == 1
    with pytest.raises(InputError, match="exists already"):
        scored(answers=str(table))

    broken = rows[0]["photo"]
    for number in range(COUNT):
        source = place / f"photos/{number}.png"
        put(tmp_path / f"photos/{number}.png", source.read_bytes())
    put(tmp_path / f"photos/{broken}.png", b"no picture")
    left = scored(images=str(tmp_path / "photos"), skip_bad=True)
    assert left["n"] == {"dev": len(rows) - 1} and left["skipped_images"] == 1
    assert left["skipped_first"][0].startswith(f"{broken}: does not decode")  # type: ignore[index]
    with pytest.raises(InputError):
        scored(images=str(tmp_path / "photos"))
    asked = frozen_clip(place, tmp_path / "photos")
    with pytest.raises(InputError, match="does not decode"):
        baselines(asked)
    frozen = baselines(replace_settings(asked, skip_bad=True))
    assert frozen["n"]["dev"] == len(rows) - 1 and "skipped 1 photo(s)" in frozen["notes"][0]
    config = replace_settings(config, teacher_images=str(tmp_path / "photos"), skip_bad=True)
    again = finetune(config, replace(STEPS, steps=2, batch=16), tmp_path / "again")
    assert again["n"] == {"dev": len(rows) - 1}
    assert any(
        f"skipped 1 photo(s) with their rows; the first: {broken}" in n for n in again["notes"]
    )
    assert any("2 steps are too few for an adapter" in note for note in again["notes"])
    (tmp_path / f"photos/{broken}.png").unlink()
    config = replace_settings(config, skip_bad=False)
    with pytest.raises(InputError, match=f"{broken}: no such image .*1 of 60 photos"):
        finetune(config, replace(STEPS, steps=2, batch=16), tmp_path / "missing")
