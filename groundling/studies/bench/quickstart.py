"""`groundling quickstart`: a bench of one rendered world with fixed weights, from nothing to a table and a page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from groundling.runs.folder import read_json
from groundling.runs.jobs import Job
from groundling.runs.report import (
    Report,
    ReportImage,
    ReportSection,
    ScorePanel,
    save_figure,
    score_panels,
    svg_of,
)
from groundling.runs.run import Run
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.commands import QuickstartConfig
from groundling.studies.bench.engine import (
    METHOD,
    SHUFFLED,
    TEXT_CONTROL,
    Arm,
    Entry,
    Experiment,
    Reading,
    Weight,
    text_key,
)
from groundling.studies.bench.handed import make_encoder, make_teacher, make_world
from groundling.studies.bench.judge import judge_methods
from groundling.studies.bench.methods import slug
from groundling.studies.bench.methods.text_and_teacher import CONTRASTIVE, L1, XDBERT
from groundling.studies.bench.protocol import (
    ADAPTING,
    ENCODER,
    MAX_LENGTH,
    MODELS,
    PRETRAINING,
    PROBING,
    REDRAWN,
    REDRAWN_TEACHING,
    TEACHING,
    BenchFolder,
    BenchWorld,
    Files,
    key_of,
    scaled,
)
from groundling.studies.bench.readings import fine_tuned, read_nouns_of
from groundling.studies.bench.report import (
    NO_PROBE,
    READINGS,
    TERMS,
    arms_of,
    chance_of,
    headings_of,
    scale_warning,
    table_rows,
)

WORLD: Mapping[str, int] = {}
"""Sizes of the world, as settings of `data make-world`; by default that command's."""
SHORT_TEACHING = replace(TEACHING, steps=600)
WEIGHTS = {XDBERT.name: None, L1.name: 0.3, CONTRASTIVE.name: 1.0}
"""The methods of the full quickstart, and the values of their weights."""
STEPS = {"odd": 500, "truth": 250, "category": 250, "order": 250}
"""Fine-tuning steps of each question.

After 500 steps the training loss of "odd one out" is below 0.2 in arms with transfer; at 250 steps it just left its
plateau. The default of `groundling probe`, 1,000 steps, gives 0.02 to 0.03 more, but exceeds five minutes on two cores.
True/false is no better at 500 or 1,000.
"""
SHOWN = 8
"""Number of scenes in the report."""


@dataclass(frozen=True)
class Quickstart(Experiment):
    """Contrastive and its text control in one world; in full XDBERT and L1 too, and a teacher of redrawn attributes."""

    config: QuickstartConfig

    @property
    def fixed(self) -> object:
        """The run folder knows its settings."""
        return self.config.seed

    @property
    def training(self) -> TrainingArguments:
        """More steps than the bench's."""
        longer = replace(ADAPTING, steps=500, save_every=500)
        return scaled(longer, self.config.scale, self.config.seed)

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Texts are as short as the world's sentences."""
        return {"max_length": MAX_LENGTH}

    def files(self, arm: Arm) -> Files:
        """Everything lies in the run's folder: no method is to be kept from the answers."""
        root = self.folder.root
        world = root / "world"
        places = {name: root / name / "model" for name in MODELS}
        places |= {"corpus": world / "corpus" / "train.txt", "images": world / "images"}
        return Files(root, places, world)

    def setup(self, arm: Arm) -> list[Job]:
        """The world, its encoder, and the arm's teacher."""
        files, seed, full = self.files(arm), self.config.seed, self.config.full
        own = partial(scaled, scale=self.config.scale, seed=seed)
        key = key_of(self.fixed)
        world = {"family": self.config.family, "seed": seed, "control_images": full, **WORLD}
        rendering = partial(make_world, files.private, world)
        encoder = partial(make_encoder, files, own(PRETRAINING), ENCODER)
        jobs = [
            self.job("world", key, rendering),
            self.job("encoder", key, encoder, ("world",)),
        ]
        if arm.own_method:
            name = REDRAWN if arm.arm == SHUFFLED else "teacher"
            longer = TEACHING if full else SHORT_TEACHING
            training = own(REDRAWN_TEACHING if name == REDRAWN else longer)
            teacher = partial(make_teacher, files, name, training)
            jobs.append(self.job(name, key, teacher, ("world",)))
        return jobs

    def arms(self) -> list[Arm]:
        """Every method and its text control; in full also contrastive with its teacher's attributes redrawn."""
        world = BenchWorld(self.config.family, self.config.seed)
        return [
            Arm(method, arm, self.config.seed, world)
            for method in self.methods
            for arm in (METHOD, TEXT_CONTROL, SHUFFLED)
            if arm != SHUFFLED or (self.config.full and method == CONTRASTIVE)
        ]

    def choose(self, arm: Arm) -> Weight:
        """A fixed value."""
        return WEIGHTS[arm.own_method.name] if arm.own_method else None

    def stage_folder(self, arm: Arm, weight: Weight, number: int) -> Path:
        """A folder of the arm's name; every arm has one stage."""
        assert arm.method is not None
        names = {METHOD: arm.method.name, TEXT_CONTROL: f"{arm.arm} {text_key(arm.method)}"}
        name = names.get(arm.arm, f"{arm.method.name} {arm.arm}")
        return self.folder.root / "arms" / slug(name) / "adapt"

    def readings(self, arm: Arm) -> list[Reading]:
        """Linear probes, and a fine-tuned probe of each question."""
        world, own = self.files(arm).private, self.config
        made = [Reading("nouns", partial(read_nouns_of, world=world))]
        for question, steps in STEPS.items():
            seeds = (3 if own.full else 2) if question in ("odd", "truth") else 1
            training = scaled(replace(PROBING, steps=steps), own.scale, own.seed)
            how = {question: (seeds, training)}
            made.append(Reading(question, partial(fine_tuned, world=world, how=how)))
        return made


def quickstart(config: QuickstartConfig, run: Run) -> dict[str, Any]:
    """Run all missing jobs in the run's folder, print the report, and write `report.html` and `report.png`.

    Without `config.full` there are fewer methods, probe seeds and teacher steps, to finish in minutes. Returns the
    readings of every arm, the teacher's retrieval scores, and the run time in seconds.
    """
    began = time.perf_counter()
    methods = [XDBERT, L1, CONTRASTIVE] if config.full else [CONTRASTIVE]
    own = Quickstart(BenchFolder(run.folder), methods, config)
    own.run(config.processes)
    result = {
        "methods": {method.name: method.description() for method in methods},
        "runs": own.entries(),
        "retrieval": read_json(own.folder.job("teacher"))["retrieval"],
        "seconds": round(time.perf_counter() - began, 1),
        "scale": config.scale,
    }
    print(f"\n{write_report(run.folder, result)}\n\n{run.folder / 'report.html'}")
    return result


# -- the page ----------------------------------------------------------------------------------------------------------
INTRODUCTION = (
    "Every noun has visual attributes that only images show, and a category that only text shows. A CLIP teacher "
    "learns from the images; the text encoder reads text that never states a noun's visual attributes. Each arm adapts "
    "the encoder for the same number of steps on the same text, and is probed on nouns that no probe was fitted on."
)
FIGURE = (
    "One row per arm. The large mark and the number are the mean, small dots are fine-tuning seeds, the dashed line is "
    "guessing."
)


def write_report(out: Path, result: Mapping[str, Any]) -> str:
    """Write `out/report.html` and `out/report.png` of a quickstart's `result`; returns the report as text."""
    entries, methods = result["runs"], result["methods"]
    headings = headings_of(entries)
    arms = arms_of(entries, methods)
    panels = [
        ScorePanel(
            heading,
            chance_of(entries, name),
            {label: _seeds(own[0], name) for label, own in arms.items()},
        )
        for name, heading in headings.items()
        if name in READINGS
    ]
    figure = score_panels(panels, NO_PROBE)
    save_figure(figure, out / "report.png")
    picture = svg_of(figure, "Accuracy on held-out nouns, as in the table.")
    recall = {
        name.replace("_r@", " recall@").replace("_", " "): f"{value:,.1f}"
        for name, value in result["retrieval"].items()
    }
    sections = [
        ReportSection("Accuracy", rows=table_rows(entries, methods, headings)),
        ReportSection("Questions", figures=[picture], caption=FIGURE),
        ReportSection("Training scenes of the teacher", pictures=_scenes(out / "world")),
        ReportSection("Retrieval of the teacher on held-out scenes, in %", rows=[recall]),
    ]
    about = read_json(out / "config.json")
    warning = scale_warning(result["scale"])
    sentences = [one.sentence for one in judge_methods(entries, methods) if one.gain]
    report = Report(
        "Does a text encoder learn visual attributes?",
        sections,
        [*([warning] if warning else []), INTRODUCTION, *sentences],
        notes=[
            f"{result['seconds']:.0f} seconds in total; {datetime.now(UTC).date().isoformat()}; groundling "
            f"{about['versions']['groundling']}, commit {about['commit'][:12]}. Numbers differ slightly between "
            "processors, and between worlds: `groundling bench` has several."
        ],
        terms=TERMS,
    )
    report.write(out / "report.html")
    return report.text()


def _seeds(entry: Entry, reading: str) -> Sequence[float]:
    """Accuracies of the seeds whose probe trained; for readings without seeds, the single accuracy."""
    found = entry["readings"][reading]
    if "scores" not in found:
        return [found["test"]]
    by_seed = zip(found["scores"], found["trained"], strict=True)
    return [score for score, has_trained in by_seed if has_trained]


def _scenes(world: Path) -> list[ReportImage]:
    content = read_json(world / "captions_train.json")
    captions: dict[int, list[str]] = {}
    for note in content["annotations"]:
        captions.setdefault(note["image_id"], []).append(note["caption"])
    scenes = []
    for image in content["images"][:SHOWN]:
        png = (world / "images" / image["file_name"]).read_bytes()
        scenes.append(ReportImage(png, "\n".join(captions[image["id"]])))
    return scenes
