"""The complete pipeline on a rendered world: world, teachers, text encoder, arms, probes, table, and HTML report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.commands.train_clip import COMMAND as TEACH
from groundling.commands.train_clip import TrainClipConfig
from groundling.models.small_encoder import new_encoder
from groundling.runs.folder import read_json
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.report import (
    Report,
    ReportImage,
    ReportSection,
    ScorePanel,
    TableRow,
    save_figure,
    score_panels,
    svg_of,
)
from groundling.runs.run import Run
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.training import TrainingArguments
from groundling.studies.worlds.commands import (
    PROBE,
    PROBING,
    ProbeConfig,
    QuickstartConfig,
    WorldConfig,
)
from groundling.studies.worlds.families import WorldFamily, find_family
from groundling.studies.worlds.probe import LEARNED, READOUT
from groundling.studies.worlds.probe import TEXTUAL as CATEGORY
from groundling.studies.worlds.world import World

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Results of the quickstart: the printed table, the sentences, and the HTML page with figures.

VISUAL = {"world/truth": "attribute true/false", "world/odd": "odd one out"}
"""Labels in the table for fine-tuned probes of visual attributes."""
LINEAR = "linear/"
"""Start of the names of linear probes."""
READ_OUT = {READOUT: "odd one out, read out"}
"""The label for the readout from the nouns' states, without fine-tuning."""
TEXTUAL = {"world/category": "category", "world/order": "word order"}
"""Labels for category and word order, which text alone answers."""
SEES = 0.6
"""Accuracy from which a visual probe counts as transferred; guessing is 0.5."""
NOTHING = "probe did not train"
"""Shown instead of an accuracy if no seed of a fine-tuned probe trained."""
SHOWN = 8
"""Number of scenes in the report."""
ProbeResult = Mapping[str, Any]
"""Result of a probe: accuracies `test` and `dev`, guessing accuracy `chance`, and each seed's for fine-tuned probes."""
ArmResults = Mapping[str, Mapping[str, ProbeResult]]
"""Probe results by arm and probe."""


ABOUT = {
    "MLM only (control)": "masked language modelling (MLM) on the text",
    "XDBERT as published": "MLM with cross-attention to the teacher's text tower, as in XDBERT",
    "L1": "MLM and an L1 loss between its states and the teacher's features",
    "contrastive": "MLM and a contrastive loss between its states and the teacher's features",
    "contrastive, redrawn attributes": "as contrastive, with a teacher whose images show redrawn visual attributes",
}
"""Descriptions of the arms."""


def _terms(family: WorldFamily) -> dict[str, str]:
    """Glossary of the page."""
    attributes = list(family.attributes)
    truth = family.truth.format(noun="zib", value=family.attributes[attributes[0]][0])
    odd = family.odd.format(subject="p", like="q", unlike="r")
    verbs, endings = next(iter(family.categories.values()))
    category = family.category.format(
        person=family.persons[0], verb=verbs[0], noun="zib", ending=endings[0]
    )
    return {
        "arm": "One way to adapt the text encoder. All arms start from the same encoder and train on the same text for "
        "the same time.",
        "attribute true/false": f"After fine-tuning: is “{truth}” true?",
        "odd one out": f"After fine-tuning: is “{odd}” true?",
        "odd one out, read out": "The same questions without fine-tuning: linear probes predict each noun's "
        f"{', '.join(attributes[:-1])} and {attributes[-1]}; the similarity of two nouns is their expected number of "
        "common attributes.",
        ", ".join(
            attributes
        ): "A linear probe predicts the attribute from the encoder's state at the noun.",
        "category": f"After fine-tuning: does the verb of “{category}” fit the noun? Text alone answers it.",
        "word order": "After fine-tuning: are two words of the sentence swapped? Text alone answers it.",
        "seed": "Fine-tuning initialises a new head and shuffles the examples. Each small dot is one seed; ± is the "
        "standard deviation. World, teachers and encoders have one seed here; docs/results.md has several worlds.",
        NOTHING: f"The probe's training loss stayed above {100 * LEARNED:.0f} % of the guessing loss. This shows "
        "nothing about the arm's knowledge: longer fine-tuning might succeed.",
        "guessing": "Accuracy of the majority class.",
        "redrawn attributes": "A control teacher, trained on the same scenes with every noun's visual attributes "
        "redrawn in each image. Gains from this teacher do not come from images.",
    }


def linear_probes(arms: ArmResults) -> dict[str, str]:
    """Labels for linear probes of the nouns' states, one for each visual attribute of the world."""
    names = [name for name in next(iter(arms.values())) if name.startswith(LINEAR)]
    return {name: name.removeprefix(LINEAR) for name in names if name != LINEAR + CATEGORY}


def table_rows(arms: ArmResults, split: str = "test") -> list[dict[str, str]]:
    """One row per arm and one for guessing; accuracies on nouns of `split`, which are held out from the probes."""
    columns = VISUAL | READ_OUT | linear_probes(arms) | TEXTUAL
    rows = []
    for name, scores in arms.items():
        row = {"arm": name}
        for test, label in columns.items():
            row[label] = _cell(scores[test], split)
        rows.append(row)
    guessing = {"arm": "guessing"}
    any_arm = next(iter(arms.values()))  # all arms have the same nouns
    for test, label in columns.items():
        guessing[label] = f"{any_arm[test]['chance']:.2f}"
    return [*rows, guessing]


def _cell(result: ProbeResult, split: str) -> str:
    """An accuracy with its standard deviation over probe seeds, and the number of seeds that trained if not all."""
    if result[split] is None:
        return NOTHING
    cell = f"{result[split]:.2f}"
    if result.get(f"{split}_sd") is not None:
        cell += f" ± {result[f'{split}_sd']:.2f}"
    learned = result.get("learned", ())
    if not all(learned):
        cell += f" ({sum(learned)} of {len(learned)})"
    return cell


def verdict(arms: ArmResults, split: str = "test") -> str:
    """A sentence that compares each arm with the control, which read the same text without a teacher."""
    control, *others = arms
    parts = []
    for name in others:
        compared = [
            f"{label} {_compare_with_control(arms, name, test, split)}"
            for test, label in (VISUAL | TEXTUAL).items()
        ]
        parts.append(f"{name}: {describe_visual_result(arms, name, split)} ({', '.join(compared)})")
    return (
        f"Visual attributes compared with {control}, on nouns that its text never describes. "
        + "; ".join(parts)
        + "."
    )


def _compare_with_control(arms: ArmResults, name: str, test: str, split: str) -> str:
    """An arm's accuracy against the control's."""
    control, own = (
        NOTHING if one[test][split] is None else f"{one[test][split]:.2f}"
        for one in (next(iter(arms.values())), arms[name])
    )
    return (
        f"{NOTHING}, nor the control's" if own == control == NOTHING else f"{own} against {control}"
    )


def describe_visual_result(arms: ArmResults, name: str, split: str = "test") -> str:
    """Whether an arm's visual probes show transfer of visual attributes."""
    accuracies = [arms[name][test][split] for test in VISUAL]
    reached = [accuracy is not None and accuracy >= SEES for accuracy in accuracies]
    if all(reached):
        return "transferred"
    if any(reached):
        return "partly transferred"
    return "not transferred"


# -- the page ----------------------------------------------------------------------------------------------------------


def write_report(out: Path, result: Mapping[str, Any]) -> str:
    """Write `out/report.html` and `out/report.png` of a quickstart's `result`; returns the report as text."""
    arms = result["arms"]
    questions = _figure(arms, VISUAL | READ_OUT | TEXTUAL)
    save_figure(questions, out / "report.png")
    nouns = "Attributes predicted from the noun's state"
    report = Report(
        "Does a text encoder learn visual attributes?",
        [
            ReportSection("Arms and results", rows=_arm_rows(arms)),
            ReportSection("Accuracy on nouns held out from the probes", rows=table_rows(arms)),
            ReportSection("Questions", figures=[svg_of(questions, LABEL)], caption=FIGURE),
            ReportSection(nouns, figures=[svg_of(_figure(arms, linear_probes(arms)), LABEL)]),
            ReportSection("Training scenes of the teacher", pictures=_scenes(out / "world")),
            ReportSection("Retrieval of the teacher", rows=_recall_rows(result["retrieval"])),
        ],
        [
            "Every noun has visual attributes that only images show, and a category that only text shows. A CLIP "
            "teacher learns from the images; the text encoder reads text that never states a noun's visual attributes. "
            "Each arm adapts the encoder for the same number of steps on the same text.",
            verdict(arms),
        ],
        notes=_footer(out, result),
        terms=_terms(find_family(result["family"])),
    )
    report.write(out / "report.html")
    return report.text()


FIGURE = (
    "One row per arm. The large mark and the number are the mean, small dots are fine-tuning seeds, the dashed line is "
    "guessing."
)
LABEL = "Accuracy on held-out nouns, whose numbers are in the table."


def _arm_rows(arms: ArmResults) -> list[TableRow]:
    """Description and outcome of each arm."""
    return [
        {
            "arm": name,
            "what it does": ABOUT.get(name, ""),
            "on unseen nouns": describe_visual_result(arms, name),
        }
        for name in arms
    ]


def _figure(arms: ArmResults, probes: Mapping[str, str]) -> Figure:
    """Figure of all arms' test accuracies."""
    panels = []
    for test, label in probes.items():
        scores = {name: _seeds(results[test]) for name, results in arms.items()}
        chance = next(iter(arms.values()))[test]["chance"]
        panels.append(ScorePanel(label, chance, scores))
    return score_panels(panels, NOTHING)


def _seeds(result: ProbeResult) -> list[float]:
    """Accuracies of the seeds whose probe trained; for probes without seeds, the single accuracy."""
    if "learned" not in result:
        return [result["test"]]
    by_seed = zip(result["scores"]["test"], result["learned"], strict=True)
    return [score for score, has_learned in by_seed if has_learned]


def _recall_rows(retrieval: Mapping[str, float]) -> list[TableRow]:
    """Recall on held-out scenes, one row per direction."""
    rows: list[TableRow] = []
    for way, asked in (
        ("text_to_image", "caption to image"),
        ("image_to_text", "image to caption"),
    ):
        row = {"direction": asked}
        for name, value in retrieval.items():
            rank = name.removeprefix(f"{way}_r@")
            if rank != name:
                row[f"recall@{rank}"] = f"{value:.1f} %"
        row["held-out scenes"] = f"{retrieval['images']:,.0f}"
        rows.append(row)
    return rows


def _footer(out: Path, result: Mapping[str, Any]) -> list[str]:
    about = read_json(out / "config.json")
    today = datetime.now(UTC).date().isoformat()
    return [
        f"World of {result['family']}, world and weights of seed {result['seed']}; "
        f"{result['seconds']:.0f} seconds in total; {today}; groundling "
        f"{about['versions']['groundling']}, commit {about['commit'][:12]}. Numbers differ slightly between processors."
    ]


def _scenes(world: Path) -> list[ReportImage]:
    """The first images as PNG with their captions."""
    content = read_json(world / "captions_train.json")
    captions: dict[int, list[str]] = {}
    for note in content["annotations"]:
        captions.setdefault(note["image_id"], []).append(note["caption"])
    scenes = []
    for image in content["images"][:SHOWN]:
        png = (world / "images" / image["file_name"]).read_bytes()
        scenes.append(ReportImage(png, "\n".join(captions[image["id"]])))
    return scenes


# Chosen on the dev nouns of world 100; docs/results.md lists the alternatives.
TEACHER = TrainClipConfig(
    size=32,
    patch_size=16,
    vision_tower=(192, 2),
    text_tower=(64, 2),
    projection_dim=64,
    vocab_size=1000,
    context_length=20,
    flip=False,
    max_shift=0.03,
)
TEACHING = TrainingArguments(
    steps=900,
    batch=128,
    lr=1e-3,
    schedule="cosine",
    weight_decay=0.1,
    log_every=50,
    save_every=300,
    cpu=True,
)
REDRAWN_TEACHING = replace(TEACHING, steps=250)  # without attributes to learn, only caption wording
PRETRAINING = TrainingArguments(
    steps=1500,
    batch=64,
    lr=2e-3,
    warmup_ratio=0.1,
    weight_decay=0.01,
    log_every=50,
    save_every=500,
    cpu=True,
)
ADAPTING = TrainingArguments(
    steps=500, batch=64, lr=2e-3, warmup_ratio=0.05, log_every=50, save_every=500, cpu=True
)
ADAPTING_ON_BLOCKS = replace(
    ADAPTING, batch=16
)  # the same amount of text: a block contains four lines
ADAPTER = AdaptConfig(max_length=32)


@dataclass(frozen=True)
class ProbeFineTuningSpec:
    """Settings of some fine-tuned questions, the same for every arm."""

    questions: tuple[str, ...]
    """Names of the questions' files."""
    seeds: int
    """Number of fine-tuning seeds per question."""
    steps: int
    """Optimizer steps per seed."""


SHORT_TEACHING = replace(TEACHING, steps=600)

PROBES = {
    # After 500 steps the training loss of arms with transfer is below .2; at 250 steps it just left its plateau. The
    # default of `groundling probe`, 1,000 steps, gives .02 to .03 more, but exceeds five minutes on two cores.
    "odd": ProbeFineTuningSpec(("odd",), seeds=3, steps=500),
    "truth": ProbeFineTuningSpec(("truth",), seeds=3, steps=250),  # no better at 500 or 1,000
    "text": ProbeFineTuningSpec(("category", "order"), seeds=1, steps=250),
}
"""Probes of every arm, by folder name."""
SHORT_PROBES = {
    **PROBES,
    "odd": replace(PROBES["odd"], seeds=2),
    "truth": replace(PROBES["truth"], seeds=2),
}
"""Probes of the short quickstart."""

REDRAWN_TEACHER = "teacher-redrawn"
"""Job and folder of the teacher that is trained on scenes with redrawn visual attributes."""

ARMS = {
    "MLM only (control)": ("mlm", "", 0.0),
    "XDBERT as published": ("xdbert", "teacher", 0.0),
    "L1": ("l1", "teacher", 0.3),
    "contrastive": ("contrastive", "teacher", 1.0),
    "contrastive, redrawn attributes": ("contrastive", REDRAWN_TEACHER, 1.0),
}
"""Objectives, teacher, and distillation weight of each arm.

XDBERT reads blocks, as in its paper: of exactly 32 tokens here, the encoder's maximum length (512 in the paper). The
other arms read the same text by lines; a block contains about four. The last arm's teacher is trained on the same
scenes with every noun's visual attributes redrawn.
"""

SHORT_ARMS = ("MLM only (control)", "contrastive")
"""The minimal comparison: an arm that transfers visual attributes, and the text-only control."""

LAST_FILES = {
    "text": "world.json",
    "images": "captions_dev.json",
    "redrawn images": "captions_redrawn_dev.json",
}
"""The file that is written last for each part of a world."""


def render(world: World, folder: Path, part: str) -> None:
    """Write one part of a world, "text", "images" or "redrawn images", unless it is already complete."""
    if (folder / LAST_FILES[part]).exists():
        return
    if part == "text":
        world.write_text(folder)
    else:
        world.write_images(folder, redraw_attributes=part == "redrawn images")


def quickstart(config: QuickstartConfig, run: Run) -> dict[str, Any]:
    """Run all missing jobs in the run's folder, print the report, and write `report.html`.

    Without `config.full` there are fewer arms, probe seeds and teacher steps, to finish in minutes. Returns the arms'
    accuracies, the teacher's retrieval scores, and the run time in seconds.
    """
    began = time.perf_counter()
    plan = _QuickstartPlan(config, run.folder)
    results = run_jobs(plan.jobs(), config.processes, print)
    arms = {}
    for name in plan.arms:
        of_arm = [results[_probes_of(name, part)] for part in plan.probes]
        arms[name] = {question: scores for part in of_arm for question, scores in part.items()}
    result = {
        "arms": arms,
        "retrieval": results["teacher"]["retrieval"],
        "seconds": round(time.perf_counter() - began, 1),
        "family": config.family,
        "seed": config.seed,
    }
    print(f"\n{write_report(run.folder, result)}\n\n{run.folder / 'report.html'}")
    return result


def _probes_of(arm: str, part: str) -> str:
    """Name of the job for one part of an arm's `PROBES`."""
    return f"{arm}: probes, {part}"


@dataclass(frozen=True)
class _QuickstartPlan:
    """The jobs of a quickstart and the folders that they share."""

    config: QuickstartConfig
    out: Path

    @property
    def arms(self) -> Sequence[str]:
        """Names of the compared arms, the control first."""
        return list(ARMS) if self.config.full else SHORT_ARMS

    @property
    def probes(self) -> Mapping[str, ProbeFineTuningSpec]:
        """Probes of each arm, by folder name."""
        return PROBES if self.config.full else SHORT_PROBES

    @property
    def world(self) -> Path:
        return self.out / "world"

    @property
    def corpus(self) -> Path:
        return self.world / "corpus" / "train.txt"

    def jobs(self) -> list[Job]:
        """All jobs in starting order; short jobs are last, so no process idles long at the end."""
        world = World(WorldConfig(family=self.config.family, seed=self.config.seed))
        untrained = self.out / "new"
        jobs = [
            Job("images", render, (world, self.world, "images")),
            Job("text", render, (world, self.world, "text")),
            Job("new encoder", new_encoder, (self.corpus, untrained, self.config.seed), ("text",)),
            self._teacher("teacher", "", self._teacher_training, after="images"),
            self._text_encoder(untrained),
        ]
        if any(ARMS[name][1] == REDRAWN_TEACHER for name in self.arms):
            jobs.append(Job("redrawn images", render, (world, self.world, "redrawn images")))
            jobs.append(
                self._teacher(REDRAWN_TEACHER, "_redrawn", REDRAWN_TEACHING, after="redrawn images")
            )
        jobs += [self._arm(name) for name in self.arms]
        jobs += [self._probe(name, part) for part in self.probes for name in self.arms]
        return jobs

    @property
    def _teacher_training(self) -> TrainingArguments:
        return TEACHING if self.config.full else SHORT_TEACHING

    def _scaled(self, training: TrainingArguments) -> TrainingArguments:
        steps = max(2, round(training.steps * self.config.scale))
        return replace(training, seed=self.config.seed, steps=steps)

    def _teacher(self, name: str, suffix: str, training: TrainingArguments, after: str) -> Job:
        settings = replace(
            TEACHER,
            captions=str(self.world / f"captions{suffix}_train.json"),
            images=str(self.world / f"images{suffix}"),
            eval_captions=str(self.world / f"captions{suffix}_dev.json"),
        )
        return Job(name, TEACH, (settings, self._scaled(training), self.out / name), (after,))

    def _text_encoder(self, untrained: Path) -> Job:
        """The job for the encoder that all arms start from, pre-trained on the corpus without a teacher."""
        settings = make_settings(
            AdaptConfig,
            student=str(untrained),
            arm="mlm",
            text=(str(self.corpus),),
            max_length=32,
            mask_rate=0.25,
        )
        arguments = (settings, self._scaled(PRETRAINING), self.out / "encoder")
        return Job("text encoder", ADAPT, arguments, ("new encoder",))

    def _folder(self, arm: str) -> Path:
        return self.out / "arms" / arm.replace(", ", "-").replace(" ", "-")

    def _arm(self, name: str) -> Job:
        arm, teacher, weight = ARMS[name]
        settings = replace_settings(
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
        plan = self.probes[part]
        settings = ProbeConfig(
            model=str(folder / "adapt" / "model"),
            data=str(self.world),
            seeds=plan.seeds,
            questions=plan.questions,
        )
        training = self._scaled(replace(PROBING, steps=plan.steps, cpu=True))
        arguments = (settings, training, folder / "probes" / part)
        return Job(_probes_of(name, part), PROBE, arguments, (name,))
