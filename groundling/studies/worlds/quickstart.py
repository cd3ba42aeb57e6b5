"""The whole path on a rendered world, from nothing: world, teachers, text encoder, arms, probes, report, page."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import BertConfig, BertModel, BertTokenizer

from groundling.commands.adapt import COMMAND as ADAPT
from groundling.commands.adapt import AdaptConfig
from groundling.commands.train_clip import COMMAND as TEACH
from groundling.commands.train_clip import TeachConfig
from groundling.core.rng import derive_seed
from groundling.data.tables import lines_of
from groundling.runs.folder import read_json, whole_folder
from groundling.runs.jobs import Job, run_jobs
from groundling.runs.report import (
    ReportImage,
    ReportSection,
    ScorePanel,
    TableRow,
    format_table,
    in_two_widths,
    score_panels,
    write_report,
)
from groundling.runs.run import Run
from groundling.settings.fields import make_settings, replace_settings
from groundling.settings.training import TrainConfig
from groundling.studies.worlds.commands import (
    PROBE,
    PROBING,
    ProbeConfig,
    QuickstartConfig,
    WorldConfig,
)
from groundling.studies.worlds.probe import LEARNED, READOUT
from groundling.studies.worlds.world import World

# A small untrained BERT whose vocabulary is a text file's words.

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def new_encoder(text: Path, folder: Path, seed: int, layers: int = 2, positions: int = 32) -> None:
    """Write an untrained small BERT whose vocabulary is every word (and letter) of a text file, as an HF folder.

    `positions`: longest input, word pieces. Does nothing if the folder holds an encoder already. Raises InputError if
    the text cannot be read.
    """
    if (folder / "tokenizer_config.json").exists():
        return
    tokenizer = BertTokenizer(
        vocab=_vocabulary(text), do_lower_case=True, model_max_length=positions
    )
    torch.manual_seed(derive_seed(seed, "new encoder"))
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=128,
        num_hidden_layers=layers,
        num_attention_heads=4,
        intermediate_size=256,
        max_position_embeddings=positions,
        # BERT's own values are for models six times as wide, trained a thousand times as long; feed-forward
        # layers of its four times the width took longer here and did no better on dev nouns.
        initializer_range=0.04,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    with whole_folder(folder.parent) as partial:
        BertModel(config).save_pretrained(partial / folder.name)
        tokenizer.save_pretrained(partial / folder.name)


def _vocabulary(text: Path) -> dict[str, int]:
    """Word pieces by number, made by hand: the word-piece trainer numbers them differently in every process."""
    words: set[str] = set()
    for line in lines_of(text):
        words.update(line.lower().split())
    letters = sorted(set("".join(words)))
    pieces = [*SPECIAL, *letters]
    pieces += [f"##{letter}" for letter in letters]
    pieces += sorted(words)
    # A word of one letter is a piece already; it keeps its first place.
    return {piece: number for number, piece in enumerate(dict.fromkeys(pieces))}


# What the quickstart found: the table on the screen, the sentences, and the page with figures.

VISUAL = {"world/truth": "attribute true/false", "world/odd": "odd one out"}
"""Probes of looks by name, and what the table calls them."""
READ_OUT = {READOUT: "odd one out, read out"}
"""The same for what is read from the nouns' states without any fine-tuning."""
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
NOTHING = "learned nothing"
"""What is said of fine-tuned probes none of which left its plateau: no accuracy, for nothing was measured."""
SHOWN = 8
"""Scenes in the report."""
ProbeResult = Mapping[str, Any]
"""What a probe found: accuracies `test` and `dev`, `chance`, that of guessing, and each seed's of fine-tuned ones."""
ArmResults = Mapping[str, Mapping[str, ProbeResult]]
"""What was found of each arm, by probe."""


ABOUT = {
    "MLM only (control)": "reads the text, and learns to fill in its masked words (MLM)",
    "XDBERT as published": "the same, and reads it together with the teacher's text tower",
    "L1": "the same as the control, and brings its states near the teacher's features",
    "contrastive": "the same as the control, and tells the teacher's features of its own text from those of others",
    "contrastive, blind teacher": "as contrastive, from a teacher whose images showed nouns with other looks each time",
}
"""What each arm does, in words."""
TERMS = {
    "arm": "One way to adapt the text encoder. All arms start from the same one and read the same text for as long.",
    "attribute true/false": "After fine-tuning: is “the zib is red .” true?",
    "odd one out": "After fine-tuning: is “the p looks like the q , not the r .” true?",
    "odd one out, read out": "The same questions without any fine-tuning: linear probes read each noun's colour, "
    "shape, size and texture, and two nouns are as alike as the number of these that they are read to share.",
    "colour, shape, size, texture": "A linear probe reads the attribute from the encoder's state at the noun.",
    "category": "After fine-tuning: does the verb of “she eats the zib .” fit the noun? Only text tells.",
    "word order": "After fine-tuning: are two words of the sentence exchanged? Only text tells.",
    "seed": "Fine-tuning draws a new layer and an order of examples. Each small dot is one such draw; ± is their "
    "standard deviation. World, teachers and encoders have one seed here: several worlds are in docs/results.md.",
    NOTHING: f"The probe's training loss never fell below {100 * LEARNED:.0f} % of what guessing costs. Its accuracy "
    "would be that of guessing, but of the arm's knowledge it says nothing: longer fine-tuning might find some.",
    "guessing": "The best single answer to all questions.",
    "blind teacher": "It saw the same scenes with every noun's look redrawn each time. Whatever its student gains does "
    "not come from images.",
}
"""What the words of the page mean."""


def table_rows(arms: ArmResults, split: str = "test") -> list[dict[str, str]]:
    """One row per arm and one for guessing; accuracies on nouns of `split`, which no probe was fitted on."""
    columns = VISUAL | READ_OUT | LINEAR | TEXTUAL
    rows = []
    for name, scores in arms.items():
        row = {"arm": name}
        for test, label in columns.items():
            row[label] = _cell(scores[test], split)
        rows.append(row)
    guessing = {"arm": "guessing"}
    any_arm = next(iter(arms.values()))  # the nouns are the same for all
    for test, label in columns.items():
        guessing[label] = f"{any_arm[test]['chance']:.2f}"
    return [*rows, guessing]


def _cell(found: ProbeResult, split: str) -> str:
    """An accuracy, with its standard deviation over probe seeds, and how many of them learned anything if not all."""
    if found[split] is None:
        return NOTHING
    cell = f"{found[split]:.2f}"
    if found.get(f"{split}_sd") is not None:
        cell += f" ± {found[f'{split}_sd']:.2f}"
    learned = found.get("learned", ())
    if not all(learned):
        cell += f" ({sum(learned)} of {len(learned)})"
    return cell


def verdict(arms: ArmResults, split: str = "test") -> str:
    """What the table shows, in plain words, against the control that saw the same text without a teacher."""
    control, *others = arms
    parts = []
    for name in others:
        compared = [
            f"{label} {_compare_with_control(arms, name, test, split)}"
            for test, label in (VISUAL | TEXTUAL).items()
        ]
        parts.append(f"{name}: {describe_visual_result(arms, name, split)} ({', '.join(compared)})")
    return f"Against {control}, on nouns never described to it. " + "; ".join(parts) + "."


def _compare_with_control(arms: ArmResults, name: str, test: str, split: str) -> str:
    """An arm's accuracy and the control's."""
    control, own = (
        NOTHING if one[test][split] is None else f"{one[test][split]:.2f}"
        for one in (next(iter(arms.values())), arms[name])
    )
    return f"{NOTHING}, as the control" if own == control == NOTHING else f"{own} against {control}"


def _difference(arms: ArmResults, name: str, test: str, split: str) -> str:
    """What an arm's accuracy has more than the control's; if a side learned nothing, which."""
    control = next(iter(arms.values()))[test][split]
    own = arms[name][test][split]
    if own is None:
        return NOTHING
    return f"control {NOTHING}" if control is None else f"{own - control:+.2f}"


def describe_visual_result(arms: ArmResults, name: str, split: str = "test") -> str:
    """Whether an arm sees what its visual probes ask."""
    found = [arms[name][test][split] for test in VISUAL]
    seen = [accuracy is not None and accuracy >= SEES for accuracy in found]
    if all(seen):
        return "sees"
    if any(seen):
        return "sees in part"
    return "does not see"


# -- the page ----------------------------------------------------------------------------------------------------------


def write_page(out: Path, result: Mapping[str, Any]) -> None:
    """Write `out/report.html` and `out/report.png` of a quickstart's `result`."""
    arms = result["arms"]
    control = next(iter(arms))
    asked = VISUAL | READ_OUT | TEXTUAL
    write_report(
        out / "report.html",
        "Does a text encoder learn to see?",
        [
            ReportSection("What each arm does, and what comes of it", rows=_arm_rows(arms)),
            ReportSection("Accuracy on nouns that no probe was fitted on", rows=table_rows(arms)),
            ReportSection(
                "Differences from the control",
                [f"Accuracy less that of {control}, on the same nouns."],
                rows=_difference_rows(arms),
            ),
            ReportSection("Questions", FIGURE, figure=_figure(arms, asked, out / "report.png")),
            ReportSection(
                "Attributes read from the noun's own state", figure=_figure(arms, LINEAR)
            ),
            ReportSection("What the teacher sees", pictures=_scenes(out / "world")),
            ReportSection("How well the teacher sees", rows=_recall_rows(result["retrieval"])),
        ],
        [
            "Every noun has a look that only images show, and a category that only text shows. A CLIP teacher sees "
            "the images; the text encoder reads text that never tells a noun's look. Each arm adapts it for the same "
            "number of steps on the same text.",
            _summary(arms),
        ],
        notes=_footer(out, result),
        terms=TERMS,
    )


FIGURE = (
    "A row for each arm. The large mark and the number are the mean, small dots are the seeds of fine-tuning, and the "
    "dashed line is guessing.",
)


def _summary(arms: ArmResults) -> str:
    """Which arms see, in a few words each."""
    groups = {"sees": "See what no text tells", "sees in part": "See it in part"}
    groups["does not see"] = "Do not see it"
    told = []
    for word, group in groups.items():
        names = [name for name in arms if describe_visual_result(arms, name) == word]
        if names:
            told.append(f"{group}: {'; '.join(names)}.")
    return " ".join(told)


def _arm_rows(arms: ArmResults) -> list[TableRow]:
    """What each arm does, and whether it sees."""
    return [
        {
            "arm": name,
            "what it does": ABOUT.get(name, ""),
            "on unseen nouns": describe_visual_result(arms, name),
        }
        for name in arms
    ]


def _difference_rows(arms: ArmResults) -> list[TableRow]:
    """A row for each arm but the first, which is the control."""
    rows: list[TableRow] = []
    for name in list(arms)[1:]:
        row = {"arm": name}
        for test, label in (VISUAL | READ_OUT | LINEAR | TEXTUAL).items():
            row[label] = _difference(arms, name, test, "test")
        rows.append(row)
    return rows


def _figure(arms: ArmResults, probes: Mapping[str, str], path: Path | None = None) -> str:
    """Test accuracies of all arms, and as PNG at `path`."""
    shown = []
    for test, label in probes.items():
        scores = {name: _seeds(found[test]) for name, found in arms.items()}
        words = dict.fromkeys(arms, NOTHING)
        chance = next(iter(arms.values()))[test]["chance"]
        shown.append(ScorePanel(label, chance, scores, words))

    told = []
    for test, label in probes.items():
        cells = [f"{name} {_cell(found[test], 'test')}" for name, found in arms.items()]
        told.append(f"{label}: {', '.join(cells)}")
    return in_two_widths(
        partial(score_panels, shown), "Accuracy on unseen nouns. " + "; ".join(told), path
    )


def _seeds(found: ProbeResult) -> list[float]:
    """The accuracies of all seeds that learned something, or the one that there is."""
    if "learned" not in found:
        return [found["test"]]
    by_seed = zip(found["scores"]["test"], found["learned"], strict=True)
    return [score for score, has_learned in by_seed if has_learned]


def _recall_rows(retrieval: Mapping[str, float]) -> list[TableRow]:
    """Recall on unseen scenes, a row for each direction."""
    rows: list[TableRow] = []
    for way, asked in (
        ("text_to_image", "image of a caption"),
        ("image_to_text", "caption of an image"),
    ):
        row = {"what is looked for": asked}
        for name, value in retrieval.items():
            rank = name.removeprefix(f"{way}_r@")
            if rank != name:
                row["found first" if rank == "1" else f"among the first {rank}"] = f"{value:.1f} %"
        row["unseen scenes"] = f"{retrieval['images']:,.0f}"
        rows.append(row)
    return rows


def _footer(out: Path, result: Mapping[str, Any]) -> list[str]:
    about = read_json(out / "config.json")
    today = datetime.now(UTC).date().isoformat()
    return [
        f"World and weights of seed {result['seed']}; {result['seconds']:.0f} seconds in all; {today}; groundling "
        f"{about['versions']['groundling']}, commit {about['commit'][:12]}. Another processor rounds otherwise, so its "
        "numbers differ a little."
    ]


def _scenes(world: Path) -> list[ReportImage]:
    """The first images as PNG, each with its captions."""
    content = read_json(world / "captions_train.json")
    captions: dict[int, list[str]] = {}
    for note in content["annotations"]:
        captions.setdefault(note["image_id"], []).append(note["caption"])
    scenes = []
    for image in content["images"][:SHOWN]:
        png = (world / "images" / image["file_name"]).read_bytes()
        scenes.append(ReportImage(png, "\n".join(captions[image["id"]])))
    return scenes


# Chosen on the dev nouns of world 100; see docs/results.md for what was tried.
TEACHER = TeachConfig(
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
    warmup_ratio=0.1,
    weight_decay=0.01,
    log_every=50,
    save_every=500,
    cpu=True,
)
ADAPTING = TrainConfig(
    steps=500, batch=64, lr=2e-3, warmup_ratio=0.05, log_every=50, save_every=500, cpu=True
)
ADAPTING_ON_BLOCKS = replace(ADAPTING, batch=16)  # as much text: a block holds four lines
ADAPTER = AdaptConfig(max_length=32)


@dataclass(frozen=True)
class ProbePlan:
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
    "odd": ProbePlan(("odd",), seeds=3, steps=500),
    "truth": ProbePlan(("truth",), seeds=3, steps=250),  # no better at 500 or 1,000
    "text": ProbePlan(("category", "order"), seeds=1, steps=250),
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
    plan = _QuickstartPlan(config, run.folder)
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
    print(f"\n{format_table(table_rows(arms))}\n\n{verdict(arms)}\n\n{page} {took}")
    write_page(run.folder, result)
    return result


def _probes_of(arm: str, part: str) -> str:
    """The name of the job that asks an arm one part of `PROBES`."""
    return f"{arm}: probes, {part}"


@dataclass(frozen=True)
class _QuickstartPlan:
    """What has to be done, and where each job finds what others have made."""

    config: QuickstartConfig
    out: Path

    @property
    def arms(self) -> Sequence[str]:
        """Names of those that are compared, the control first."""
        return list(ARMS) if self.config.full else SHORT_ARMS

    @property
    def probes(self) -> Mapping[str, ProbePlan]:
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
