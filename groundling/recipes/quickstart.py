"""The whole path on a rendered world, from nothing: world, teachers, text encoder, arms, probes, report."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groundling.config import (
    PROBING,
    AdaptConfig,
    Masking,
    ProbeConfig,
    QuickstartConfig,
    TeachConfig,
    TrainConfig,
    changed,
)
from groundling.jobs import Job, run_jobs
from groundling.recipes.adapt import adapt
from groundling.recipes.lifecycle import Run
from groundling.recipes.probe import probe
from groundling.recipes.teach import teach
from groundling.report import Picture, Section, bars, table, write_report
from groundling.runs import read_json
from groundling.world import World, WorldConfig
from groundling.world.encoder import new_encoder

# Chosen on the dev nouns of world 100; see docs/results.md for what was tried.
TEACHER = TeachConfig(
    size=32,
    patch=16,
    vision=(192, 2),
    text=(64, 2),
    projection=64,
    vocabulary=1000,
    window=20,
    flip=False,
    shift=0.03,
)
TEACHING = TrainConfig(
    steps=900,
    batch=128,
    lr=1e-3,
    schedule="cosine",
    weight_decay=0.1,
    log_every=50,
    save_every=300,
    cpu=True,
)
BLIND_TEACHING = replace(TEACHING, steps=250)  # it has no looks to learn, only how scenes are told
PRETRAINING = TrainConfig(
    steps=1500,
    batch=64,
    lr=2e-3,
    warmup=0.1,
    weight_decay=0.01,
    log_every=50,
    save_every=500,
    cpu=True,
)
ADAPTING = TrainConfig(
    steps=500, batch=64, lr=2e-3, warmup=0.05, log_every=50, save_every=500, cpu=True
)
ADAPTING_ON_BLOCKS = replace(ADAPTING, batch=16)  # as much text: a block holds four lines
ADAPTER = AdaptConfig(max_length=32)
PROBES = replace(PROBING, steps=250, log_every=50, cpu=True)

ARMS = {
    "MLM only (control)": ("mlm", "", 0.0),
    "XDBERT as published": ("xdbert", "teacher", 0.0),
    "L1": ("l1", "teacher", 0.3),
    "contrastive": ("contrastive", "teacher", 1.0),
    "contrastive, blind teacher": ("contrastive", "teacher-blind", 1.0),
}
"""Each arm's objectives, teacher, and weight of what it distils.

XDBERT reads blocks, as in its paper: of exactly 32 pieces here, which is what the encoder reads (512 there). The others
read the same text by lines, of which a block holds about four. The blind teacher saw the same scenes with every noun's
looks redrawn.
"""

VISUAL = {"world/truth": "attribute true/false", "world/odd": "odd one out"}
"""Probes of looks by name, and what the table calls them."""
LINEAR = {
    "linear/colour": "colour",
    "linear/shape": "shape",
    "linear/size": "size",
    "linear/texture": "texture",
}
"""The same for linear probes of the nouns' states."""
TEXTUAL = {"world/category": "category", "world/order": "word order"}
"""The same for category and word order, which are known from text alone."""
SEES = 0.6
"""An arm sees what a visual probe asks if its accuracy is at least this; guessing is 0.5."""
SHOWN = 8
"""Scenes in the report."""
LAST_FILES = {
    "text": "world.json",
    "images": "captions_dev.json",
    "blind images": "captions_blind_dev.json",
}
"""The file that each part of a world ends with."""

Arms = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Each arm's accuracies by probe: `test`, `dev`, and `chance`, that of guessing."""


def render(world: World, folder: Path, part: str) -> None:
    """Write one part of a world, "text", "images" or "blind images", unless an earlier run has finished it."""
    if (folder / LAST_FILES[part]).exists():
        return
    if part == "text":
        world.write_text(folder)
    else:
        world.write_images(folder, blind=part == "blind images")


def quickstart(
    config: QuickstartConfig, out: str | Path, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Run everything, or what is missing of it, into `out`, print the table, write `report.html`.

    Returns the arms' accuracies, the teacher's retrieval scores, and the seconds it took. Raises InputError if `out`
    holds another run.
    """
    began = time.perf_counter()
    run = Run(out, "quickstart", {"seed": config.seed, "scale": config.scale}, {})
    folder = run.folder
    results = run_jobs(_Plan(config, folder).jobs(), config.processes, say)
    arms = {name: results[_probes_of(name)] for name in ARMS}
    result = {
        "arms": arms,
        "retrieval": results["teacher"]["retrieval"],
        "seconds": round(time.perf_counter() - began, 1),
        "seed": config.seed,
    }
    run.finish(result)
    rows = table_rows(arms)
    page = folder / "report.html"
    say(f"\n{table(rows)}\n\n{verdict(arms)}\n\n{page} ({result['seconds']:.0f} s in all)")
    _report(folder, rows, result)
    return result


def _probes_of(arm: str) -> str:
    """The name of the job that probes an arm."""
    return f"{arm}: probes"


@dataclass(frozen=True)
class _Plan:
    """What has to be done, and where each job finds what others have made."""

    config: QuickstartConfig
    out: Path

    @property
    def world(self) -> Path:
        return self.out / "world"

    @property
    def corpus(self) -> Path:
        return self.world / "corpus" / "train.txt"

    def jobs(self) -> list[Job]:
        """All jobs in the order in which they should start; short ones last: no process idles long at the end."""
        world = World(WorldConfig(seed=self.config.seed))
        untrained = self.out / "new"
        jobs = [
            Job("images", render, (world, self.world, "images")),
            Job("text", render, (world, self.world, "text")),
            Job("new encoder", new_encoder, (self.corpus, untrained, self.config.seed), ("text",)),
            self._teacher("teacher", "", TEACHING, after="images"),
            self._text_encoder(untrained),
            Job("blind images", render, (world, self.world, "blind images")),
            self._teacher("teacher-blind", "_blind", BLIND_TEACHING, after="blind images"),
        ]
        jobs += [self._arm(name) for name in ARMS]
        jobs += [self._probes(name) for name in ARMS]
        return jobs

    def _scaled(self, training: TrainConfig) -> TrainConfig:
        steps = max(2, round(training.steps * self.config.scale))
        return replace(training, seed=self.config.seed, steps=steps)

    def _teacher(self, name: str, suffix: str, training: TrainConfig, after: str) -> Job:
        settings = replace(
            TEACHER,
            captions=str(self.world / f"captions{suffix}_train.json"),
            images=str(self.world / f"images{suffix}"),
            eval_captions=str(self.world / f"captions{suffix}_dev.json"),
        )
        return Job(name, teach, (settings, self._scaled(training), self.out / name), (after,))

    def _text_encoder(self, untrained: Path) -> Job:
        """The encoder that all arms start from: it knows the corpus, and no teacher."""
        settings = AdaptConfig(
            student=str(untrained),
            arm="mlm",
            text=(str(self.corpus),),
            max_length=32,
            masking=Masking(mask_rate=0.25),
        )
        arguments = (settings, self._scaled(PRETRAINING), self.out / "encoder")
        return Job("text encoder", adapt, arguments, ("new encoder",))

    def _folder(self, arm: str) -> Path:
        return self.out / "arms" / arm.replace(", ", "-").replace(" ", "-")

    def _arm(self, name: str) -> Job:
        arm, teacher, weight = ARMS[name]
        settings = changed(
            ADAPTER,
            arm=arm,
            text=(str(self.corpus),),
            student=str(self.out / "encoder" / "model"),
            distill_weight=weight,
        )
        after: tuple[str, ...] = ("text encoder",)
        if teacher:
            settings = replace(settings, teacher=str(self.out / teacher / "model"))
            after = ("text encoder", teacher)
        training = ADAPTING_ON_BLOCKS if arm == "xdbert" else ADAPTING
        arguments = (settings, self._scaled(training), self._folder(name) / "adapt")
        return Job(name, adapt, arguments, after)

    def _probes(self, name: str) -> Job:
        folder = self._folder(name)
        settings = ProbeConfig(model=str(folder / "adapt" / "model"), data=str(self.world))
        arguments = (settings, self._scaled(PROBES), folder / "probes")
        return Job(_probes_of(name), probe, arguments, (name,))


def table_rows(arms: Arms, split: str = "test") -> list[dict[str, str]]:
    """One row per arm and one for guessing; accuracies on nouns of `split`, which no probe was fitted on."""
    columns = VISUAL | LINEAR | TEXTUAL
    rows = []
    for name, scores in arms.items():
        row = {"arm": name}
        for test, label in columns.items():
            row[label] = f"{scores[test][split]:.2f}"
        rows.append(row)
    guessing = {"arm": "guessing"}
    for label, chance in zip(columns.values(), _chances(arms, columns), strict=True):
        guessing[label] = f"{chance:.2f}"
    return [*rows, guessing]


def _chances(arms: Arms, probes: Iterable[str]) -> list[float]:
    """What guessing gets in each probe; the nouns are the same for all arms, so any arm tells."""
    any_arm = next(iter(arms.values()))
    return [any_arm[name]["chance"] for name in probes]


def verdict(arms: Arms, split: str = "test") -> str:
    """What the table shows, in plain words, against the control that saw the same text without a teacher."""
    control, *others = arms
    parts = []
    for name in others:
        changes = []
        for test, label in (VISUAL | TEXTUAL).items():
            gain = arms[name][test][split] - arms[control][test][split]
            changes.append(f"{label} {gain:+.2f}")
        parts.append(f"{name}: {_sight(arms, name, split)} ({', '.join(changes)})")
    return f"Against {control}, on nouns never described to it. " + "; ".join(parts) + "."


def _sight(arms: Arms, name: str, split: str) -> str:
    seen = [arms[name][test][split] >= SEES for test in VISUAL]
    if all(seen):
        return "sees"
    if any(seen):
        return "sees in part"
    return "does not see"


def _report(out: Path, rows: list[dict[str, str]], result: dict[str, Any]) -> None:
    arms = result["arms"]
    fine_tuned = _bars(arms, VISUAL | TEXTUAL, out / "report.png")
    recall = ", ".join(f"{name} {value}" for name, value in result["retrieval"].items())
    write_report(
        out / "report.html",
        "Does a text encoder learn to see?",
        [
            Section("What the teacher sees", pictures=_scenes(out / "world")),
            Section("Questions answered after fine-tuning", figure=fine_tuned),
            Section(
                "Attributes read from the noun's own state by a linear probe",
                figure=_bars(arms, LINEAR),
            ),
            Section("Accuracy on nouns no probe was fitted on", rows=rows),
        ],
        [
            "Every noun has a look that only images show, and a category that only text shows. A CLIP teacher sees "
            "the images; the text encoder reads text that never tells a noun's look. Each arm adapts it for the same "
            "number of steps on the same text.",
            verdict(arms),
        ],
        notes=[
            f"World and weights of seed {result['seed']}; {result['seconds']:.0f} seconds in all. "
            f"Teacher on held-out scenes: {recall}. The blind teacher saw scenes in which each noun's look was "
            "redrawn every time: whatever its student gains does not come from images.",
        ],
    )


def _bars(arms: Arms, probes: Mapping[str, str], path: Path | None = None) -> str:
    """Test accuracies of all arms as SVG, and as PNG at `path`."""
    series = {}
    for name, scores in arms.items():
        series[name] = [scores[test]["test"] for test in probes]
    label = "accuracy, unseen nouns"
    return bars(list(probes.values()), series, _chances(arms, probes), path, label)


def _scenes(world: Path) -> list[Picture]:
    """The first images as PNG, each with its captions."""
    content = read_json(world / "captions_train.json")
    captions: dict[int, list[str]] = {}
    for note in content["annotations"]:
        captions.setdefault(note["image_id"], []).append(note["caption"])
    scenes = []
    for image in content["images"][:SHOWN]:
        png = (world / "images" / image["file_name"]).read_bytes()
        scenes.append(Picture(png, " / ".join(captions[image["id"]])))
    return scenes
