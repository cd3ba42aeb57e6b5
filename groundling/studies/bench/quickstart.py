"""`groundling quickstart`: the complete pipeline on a rendered world, from nothing to a table and an HTML report.

A preset of the experiment engine: its arms have the bench's setup with fixed weights, and are read by `probe`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundling.core.registry import resolve_builtin
from groundling.runs.folder import read_json
from groundling.runs.jobs import Job
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
from groundling.settings.training import TrainingArguments
from groundling.stats.linear_probes import TEXTUAL as CATEGORY
from groundling.studies.bench.commands import QuickstartConfig
from groundling.studies.bench.engine import (
    METHOD,
    SHUFFLED,
    TEXT_CONTROL,
    Arm,
    Experiment,
    Reading,
    Weight,
)
from groundling.studies.bench.handed import make_encoder, make_teacher, make_world
from groundling.studies.bench.methods import CONTRASTIVE, L1, XDBERT
from groundling.studies.bench.protocol import (
    ADAPTING,
    ENCODER,
    MAX_LENGTH,
    MODELS,
    PRETRAINING,
    PROBING,
    REDRAWN_TEACHING,
    TEACHING,
    BenchFolder,
    Files,
    key_of,
    scaled,
)
from groundling.studies.bench.readings import run_probe
from groundling.tasks import Task

if TYPE_CHECKING:
    from matplotlib.figure import Figure

WORLD: Mapping[str, int] = {}
"""Sizes of the world, as settings of `data make-world`; by default that command's."""
SHORT_TEACHING = replace(TEACHING, steps=600)
ARMS = {
    "MLM only (control)": (CONTRASTIVE, TEXT_CONTROL, None),
    "XDBERT as published": (XDBERT, METHOD, None),
    "L1": (L1, METHOD, 0.3),
    "contrastive": (CONTRASTIVE, METHOD, 1.0),
    "contrastive, redrawn attributes": (CONTRASTIVE, SHUFFLED, 1.0),
}
"""Method, arm and weight of each row.

XDBERT reads blocks, as in its paper: of exactly 32 tokens here, the encoder's maximum length (512 in the paper). The
other arms read the same text by lines; a block contains about four. The last arm's teacher is trained on the same
scenes with every noun's visual attributes redrawn.
"""
SHORT_ARMS = ("MLM only (control)", "contrastive")
"""The minimal comparison: an arm that transfers visual attributes, and the text-only control."""
PROBES = {
    # After 500 steps the training loss of arms with transfer is below .2; at 250 steps it just left its plateau. The
    # default of `groundling probe`, 1,000 steps, gives .02 to .03 more, but exceeds five minutes on two cores.
    "odd": (("odd",), 3, 500),
    "truth": (("truth",), 3, 250),  # no better at 500 or 1,000
    "text": (("category", "order"), 1, 250),
}
"""Probes of every arm, by folder: questions, fine-tuning seeds of each, steps of each seed."""
SHORT_PROBES = PROBES | {"odd": (("odd",), 2, 500), "truth": (("truth",), 2, 250)}
"""Probes of the short quickstart."""


@dataclass(frozen=True)
class Quickstart(Experiment):
    """Five arms in one world, or the short quickstart's two."""

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
        world = {"family": self.config.family, "seed": seed, "control_images": full, **WORLD}
        jobs = [self._making("world", (), make_world, files.private, world)]
        encoder = own(PRETRAINING)
        jobs.append(self._making("encoder", ("world",), make_encoder, files, encoder, ENCODER))
        if arm.arm != TEXT_CONTROL:
            is_redrawn = arm.arm == SHUFFLED
            name, suffix = ("teacher-redrawn", "_redrawn") if is_redrawn else ("teacher", "")
            teaching = REDRAWN_TEACHING if is_redrawn else TEACHING if full else SHORT_TEACHING
            places = (
                files.private / f"captions{suffix}_train.json",
                files.private / f"images{suffix}",
            )
            arguments = (files, name, *places, own(teaching))
            jobs.append(self._making(name, ("world",), make_teacher, *arguments))
        return jobs

    def _making(self, name: str, after: tuple[str, ...], *call: Any) -> Job:
        return Job(name, self.make, (name, *call, key_of(self.fixed)), after)

    def rows(self) -> dict[str, Arm]:
        """The compared arms by the name of their row, the control first."""
        seed = self.config.seed
        names = list(ARMS) if self.config.full else SHORT_ARMS
        made = {name: ARMS[name] for name in names}
        return {
            name: Arm(method, arm, seed, weight=weight)
            for name, (method, arm, weight) in made.items()
        }

    def arms(self) -> list[Arm]:
        """The compared arms."""
        return list(self.rows().values())

    def stage_folder(self, arm: Arm, weight: Weight, number: int) -> Path:
        """The folder of the arm's row; every arm has one stage."""
        return self._folder(arm) / "adapt"

    def _folder(self, arm: Arm) -> Path:
        (name,) = (name for name, one in self.rows().items() if one == arm)
        return self.folder.root / "arms" / name.replace(", ", "-").replace(" ", "-")

    def reading_folder(self, arm: Arm, reading: Reading) -> Path:
        """A folder beside the arm's model."""
        return self._folder(arm) / "probes" / reading.name

    def readings(self, arm: Arm) -> list[Reading]:
        """Fine-tuned questions, with the linear probes beside them."""
        probes = PROBES if self.config.full else SHORT_PROBES
        made = []
        for name, (questions, seeds, steps) in probes.items():
            training = scaled(replace(PROBING, steps=steps), self.config.scale, self.config.seed)
            call = partial(
                run_probe,
                world=self.files(arm).private,
                questions=questions,
                seeds=seeds,
                training=training,
            )
            made.append(Reading(name, call))
        return made


def quickstart(config: QuickstartConfig, run: Run) -> dict[str, Any]:
    """Run all missing jobs in the run's folder, print the report, and write `report.html`.

    Without `config.full` there are fewer arms, probe seeds and teacher steps, to finish in minutes. Returns the arms'
    accuracies, the teacher's retrieval scores, and the run time in seconds.
    """
    began = time.perf_counter()
    own = Quickstart(BenchFolder(run.folder), [XDBERT, L1, CONTRASTIVE], config)
    own.run(config.processes)
    found = {one["name"]: one["readings"] for one in own.entries()}
    result = {
        "arms": {name: found[arm.name] for name, arm in own.rows().items()},
        "retrieval": read_json(own.folder.job("teacher"))["retrieval"],
        "seconds": round(time.perf_counter() - began, 1),
        "family": config.family,
        "seed": config.seed,
    }
    print(f"\n{write_report(run.folder, result)}\n\n{run.folder / 'report.html'}")
    return result


# -- the table and the sentences ---------------------------------------------------------------------------------------

VISUAL = {"world/truth": "attribute true/false", "world/odd": "odd one out"}
"""Labels in the table for fine-tuned probes of visual attributes."""
LINEAR = "linear/"
"""Start of the names of linear probes."""
READ_OUT = {"readout/odd": "odd one out, read out"}
"""The label for the readout from the nouns' states, without fine-tuning."""
TEXTUAL = {"world/category": "category", "world/order": "word order"}
"""Labels for category and word order, which text alone answers."""
SEES = 0.6
"""Accuracy from which a visual probe, if it is above the control's, counts as transferred; guessing is 0.5."""
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


def glossary(world: Path, attributes: Sequence[str]) -> dict[str, str]:
    """Glossary of the page, with an example of each question of the world."""
    truth, odd, category = (_example(world, name) for name in ("truth", "odd", "category"))
    named = ", ".join(attributes)
    return {
        "arm": "One way to adapt the text encoder. All arms start from the same encoder and train on the same text for "
        "the same time.",
        "attribute true/false": f"After fine-tuning: is “{truth}” true?",
        "odd one out": f"After fine-tuning: is “{odd}” true?",
        "odd one out, read out": "The same questions without fine-tuning: linear probes predict each noun's visual "
        "attributes; the similarity of two nouns is their expected number of common attributes.",
        named: "A linear probe predicts the attribute from the encoder's state at the noun.",
        "category": f"After fine-tuning: does the verb of “{category}” fit the noun? Text alone answers it.",
        "word order": "After fine-tuning: are two words of the sentence swapped? Text alone answers it.",
        "seed": "Fine-tuning initialises a new head and shuffles the examples. Each small dot is one seed; ± is the "
        "standard deviation. World, teachers and encoders have one seed here; docs/results.md has several worlds.",
        NOTHING: "The probe's training loss stayed above 98 % of the guessing loss. This shows nothing about the arm's "
        "knowledge: longer fine-tuning might succeed.",
        "guessing": "Accuracy of the majority class.",
        "redrawn attributes": "A control teacher, trained on the same scenes with every noun's visual attributes "
        "redrawn in each image. Gains from this teacher do not come from images.",
    }


def _example(world: Path, question: str) -> str:
    """A true sentence of a question's training examples."""
    examples = resolve_builtin("tasks", Task, f"world/{question}").read(world, "train")
    return next(example.text for example in examples if example.label)


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
    control = next(iter(arms.values()))
    reached = []
    for test in VISUAL:
        own, without = arms[name][test][split], control[test][split]
        reached.append(own is not None and own >= SEES and (without is None or own > without))
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
        terms=glossary(out / "world", list(linear_probes(arms).values())),
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
