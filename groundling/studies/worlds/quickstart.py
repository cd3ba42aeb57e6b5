"""The whole path on a rendered world, from nothing: world, teachers, text encoder, arms, probes, report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.commands.teach import COMMAND as TEACH
from groundling.commands.teach import TeachConfig
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.report import table
from groundling.runs.run import Run
from groundling.settings.fields import changed
from groundling.settings.objectives import Masking
from groundling.settings.training import TrainConfig
from groundling.studies.worlds.commands import (
    PROBE,
    PROBING,
    ProbeConfig,
    QuickstartConfig,
    WorldConfig,
)
from groundling.studies.worlds.encoder import new_encoder
from groundling.studies.worlds.quickstart_page import table_rows, verdict, write_page
from groundling.studies.worlds.world import World

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


@dataclass(frozen=True)
class Probing:
    """How some questions are put to every arm."""

    questions: tuple[str, ...]
    """Names of their files."""
    seeds: int
    """Times that each is fine-tuned on."""
    steps: int
    """Optimizer steps of each time."""


SHORT_TEACHING = replace(TEACHING, steps=600)

PROBES = {
    # By then the training loss of arms that see is below .2; at 250 steps it had just left its plateau. The default of
    # `groundling probe`, 1,000 steps, gives .02 to .03 more, for which five minutes on two cores are too short.
    "odd": Probing(("odd",), seeds=3, steps=500),
    "truth": Probing(("truth",), seeds=3, steps=250),  # no better at 500 or 1,000
    "text": Probing(("category", "order"), seeds=1, steps=250),
}
"""What is asked of every arm, by the name of its folder."""
SHORT_PROBES = {
    **PROBES,
    "odd": replace(PROBES["odd"], seeds=2),
    "truth": replace(PROBES["truth"], seeds=2),
}
"""The same where time is short."""

BLIND = "teacher-blind"
"""The job and folder of the teacher that saw the same scenes with every noun's looks redrawn."""

ARMS = {
    "MLM only (control)": ("mlm", "", 0.0),
    "XDBERT as published": ("xdbert", "teacher", 0.0),
    "L1": ("l1", "teacher", 0.3),
    "contrastive": ("contrastive", "teacher", 1.0),
    "contrastive, blind teacher": ("contrastive", BLIND, 1.0),
}
"""Each arm's objectives, teacher, and weight of what it distils.

XDBERT reads blocks, as in its paper: of exactly 32 pieces here, which is what the encoder reads (512 there). The others
read the same text by lines, of which a block holds about four. The blind teacher saw the same scenes with every noun's
looks redrawn.
"""

SHORT_ARMS = ("MLM only (control)", "contrastive")
"""The arms that show whether knowledge of looks arrives, and that text alone does not bring it."""

LAST_FILES = {
    "text": "world.json",
    "images": "captions_dev.json",
    "blind images": "captions_blind_dev.json",
}
"""The file that each part of a world ends with."""


def render(world: World, folder: Path, part: str) -> None:
    """Write one part of a world, "text", "images" or "blind images", unless an earlier run has finished it."""
    if (folder / LAST_FILES[part]).exists():
        return
    if part == "text":
        world.write_text(folder)
    else:
        world.write_images(folder, blind=part == "blind images")


def quickstart(config: QuickstartConfig, run: Run) -> dict[str, Any]:
    """Run everything, or what is missing of it, into the run's folder, print the table, write `report.html`.

    Without `config.full` there are fewer arms, probes and steps of the teacher, to show the same in minutes.
    Returns the arms' accuracies, the teacher's retrieval scores, and the seconds it took.
    """
    began = time.perf_counter()
    plan = _Plan(config, run.folder)
    results = run_jobs(plan.jobs(), config.processes, print)
    arms = {}
    for name in plan.arms:
        every = [results[_probes_of(name, part)] for part in plan.probes]
        arms[name] = {question: found for part in every for question, found in part.items()}
    result = {
        "arms": arms,
        "retrieval": results["teacher"]["retrieval"],
        "seconds": round(time.perf_counter() - began, 1),
        "seed": config.seed,
    }
    page = run.folder / "report.html"
    took = f"({result['seconds']:.0f} s in all)"
    print(f"\n{table(table_rows(arms))}\n\n{verdict(arms)}\n\n{page} {took}")
    write_page(run.folder, result)
    return result


def _probes_of(arm: str, part: str) -> str:
    """The name of the job that asks an arm one part of `PROBES`."""
    return f"{arm}: probes, {part}"


@dataclass(frozen=True)
class _Plan:
    """What has to be done, and where each job finds what others have made."""

    config: QuickstartConfig
    out: Path

    @property
    def arms(self) -> Sequence[str]:
        """Names of those that are compared, the control first."""
        return list(ARMS) if self.config.full else SHORT_ARMS

    @property
    def probes(self) -> Mapping[str, Probing]:
        """What is asked of each, by the name of its folder."""
        return PROBES if self.config.full else SHORT_PROBES

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
            self._teacher("teacher", "", self._teaching, after="images"),
            self._text_encoder(untrained),
        ]
        if any(ARMS[name][1] == BLIND for name in self.arms):
            jobs.append(Job("blind images", render, (world, self.world, "blind images")))
            jobs.append(self._teacher(BLIND, "_blind", BLIND_TEACHING, after="blind images"))
        jobs += [self._arm(name) for name in self.arms]
        jobs += [self._probe(name, part) for part in self.probes for name in self.arms]
        return jobs

    @property
    def _teaching(self) -> TrainConfig:
        return TEACHING if self.config.full else SHORT_TEACHING

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
        return Job(name, TEACH, (settings, self._scaled(training), self.out / name), (after,))

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
        return Job("text encoder", ADAPT, arguments, ("new encoder",))

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
        return Job(name, ADAPT, arguments, after)

    def _probe(self, name: str, part: str) -> Job:
        folder = self._folder(name)
        how = self.probes[part]
        settings = ProbeConfig(
            model=str(folder / "adapt" / "model"),
            data=str(self.world),
            seeds=how.seeds,
            questions=how.questions,
        )
        training = self._scaled(replace(PROBING, steps=how.steps, cpu=True))
        arguments = (settings, training, folder / "probes" / part)
        return Job(_probes_of(name, part), PROBE, arguments, (name,))
