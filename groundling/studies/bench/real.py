"""`groundling bench-real`: methods on an encoder, a teacher, captions and evaluation sets of the user's own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import groundling
from groundling.command_line.names import parse_arm, teacher_settings
from groundling.commands.adapt.run import own_lm_head
from groundling.core.errors import InputError, duplicates
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import read_object
from groundling.runs.progress import CommandContext
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.commands import RealBenchConfig
from groundling.studies.bench.engine import (
    BEFORE,
    METHOD,
    SHUFFLED,
    TEXT_CONTROL,
    Arm,
    Experiment,
    Reading,
    methods_of,
    summary_of,
)
from groundling.studies.bench.handed import (
    check_teacher,
    hand_over_texts,
    permute_teacher,
    real_files,
)
from groundling.studies.bench.judge import judge_sets, set_sentences
from groundling.studies.bench.methods import (
    CAPTIONS,
    IMAGES,
    BenchMethod,
    find_methods,
    for_encoder,
    left_out_methods,
)
from groundling.studies.bench.protocol import BenchFolder, Files
from groundling.studies.bench.readings import SetReader, set_readers, shared_sets
from groundling.studies.bench.report import make_set_report, publish

UNADAPTED = Arm(None, BEFORE)


@dataclass(frozen=True)
class RealBench(Experiment):
    """Methods on the user's own encoder, read before and after on every set."""

    config: RealBenchConfig
    sets: Sequence[SetReader]

    @property
    def fixed(self) -> object:
        """How methods are trained."""
        return self.config.identity()

    @property
    def training(self) -> TrainingArguments:
        """The user's steps, samples and learning rate."""
        own = self.config
        return TrainingArguments(
            steps=own.steps, batch=own.batch, lr=own.lr, log_every=50, cpu=own.cpu
        )

    @property
    def defaults(self) -> Mapping[str, Any]:
        """A sentence encoder would be kept close to itself, which no method here does by itself."""
        return {"max_length": self.config.max_length, "retain_weight": 0.0}

    def files(self, arm: Arm) -> Files:
        """The user's files, and what controls read."""
        return real_files(self.folder.root, self.config)

    def arms(self) -> list[Arm]:
        """The unadapted encoder, then every method with its controls."""
        arms = (METHOD, TEXT_CONTROL, SHUFFLED)
        return [UNADAPTED, *self.every_arm(arms, self.config.adapt_seeds, None)]

    def readings(self, arm: Arm) -> list[Reading]:
        """Every set."""
        return [
            Reading(one.name, partial(one.read, cpu=self.config.cpu), key=one.key)
            for one in self.sets
        ]


def bench_real(config: RealBenchConfig, work: CommandContext) -> dict[str, Any]:
    """Run everything that is missing; prints the table and a sentence for each method.

    Raises InputError before anything is trained for texts, images, models or sets that cannot be used.
    """
    methods, left_out = choose_methods(config)
    sets = set_readers(config)
    for one in sets:
        one.check()
    for name in duplicates(one.name for one in sets):
        raise InputError(f"two files hold {name}; leave one out")
    encoder = load_text_encoder(config.student)
    notes = [f"{name} is left out: {reason}" for name, reason in left_out.items()]
    if not own_lm_head(config.student, encoder):
        notes.append(
            f"{config.student} has no masked-LM head; methods and controls that train masked LM start from a new "
            "one, and the encoder forgets while it learns"
        )
    methods = [for_encoder(one, encoder.encoder.config.num_hidden_layers) for one in methods]
    permutes = any(one.replaces_teacher for one in methods)
    if config.teacher and (permutes or any(method.data == IMAGES for method in methods)):
        check_teacher(config.teacher)
    own = RealBench(BenchFolder(work.out.resolve()), methods, config, sets)
    own.missing()  # jobs of another version end the bench before anything is written
    files = own.files(UNADAPTED)
    counts = hand_over_texts(files, config, writes=not (config.plan or config.report))
    if counts["missing"]:
        notes.append(f"{counts['missing']:,} captioned images are missing and were skipped")
    if config.plan:
        text = config.text or "the captions without their images"
        print(f"{counts['captions']:,} captions of {counts['images']:,} images; text: {text}")
        for note in notes:
            print(f"note: {note}")
        return own.print_plan()
    if not config.report:
        if permutes:
            permute_teacher(files, config)
        own.run(config.processes, [UNADAPTED])  # before anything is trained
        done = [own.folder.job(f"{UNADAPTED.name}: {one.name}") for one in own.readings(UNADAPTED)]
        for name in duplicates(name for job in done for name in read_object(job)["readings"]):
            raise InputError(f"two files hold {name}; leave one out")
        own.run(config.processes)
    return conclude(own, counts, notes, work.out)


def choose_methods(config: RealBenchConfig) -> tuple[list[BenchMethod], dict[str, str]]:
    """The methods to compare, and those of the package that are left out, with the reason.

    Raises InputError for a method that lacks its captions or its teacher, if the user named it.
    """
    lacking = {
        one.name: reason for one in find_methods(config.method) if (reason := _lacks(one, config))
    }
    if config.method and lacking:
        name, reason = next(iter(lacking.items()))
        raise InputError(f"method={name}: {reason}")
    kept = [one for one in find_methods(config.method) if one.name not in lacking]
    return kept, lacking | (left_out_methods() if not config.method else {})


def _lacks(method: BenchMethod, config: RealBenchConfig) -> str:
    """What a method reads that the user does not hand over; empty if nothing."""
    texts = [text.partition("=")[0] for stage in method.stages for text in stage.texts]
    if (CAPTIONS in texts or method.data == IMAGES) and not config.captions:
        return "reads captions with images; pass captions and images"
    needed = {one for stage in method.stages for one in teacher_settings(parse_arm(stage.arm))}
    if "teacher" in needed and not config.teacher:
        return "learns from a CLIP-like teacher; pass teacher"
    return ""


def conclude(
    own: RealBench, counts: Mapping[str, int], notes: Sequence[str], out: Path
) -> dict[str, Any]:
    """Judge everything in the folder, write bench.json and the page, print the table and the sentences.

    Methods, sets and seeds of earlier commands are judged too: a folder with one command for each method has the
    same correction as one command with all methods. Raises InputError if nothing is finished.
    """
    entries = own.entries()
    if not any(one["arm"] == BEFORE for one in entries):
        raise InputError(f"{own.folder.root}: nothing is finished yet")
    described = {one.name: own.describe(one) for one in own.methods}
    methods = described | methods_of(entries, own.methods)
    bench: dict[str, Any] = {
        "groundling": groundling.__version__,
        "settings": own.fixed,
        "texts": counts,
        "methods": methods,
        "runs": [summary_of(one) for one in entries],
    }
    verdicts = judge_sets(entries, methods)
    (before,) = (one for one in entries if one["arm"] == BEFORE)
    judged = Counter(one.method for one in verdicts)
    bench["notes"] = [
        *notes,
        *own.notes(methods),
        *(
            f"{name} is of an earlier command in this folder, and judged too"
            for name in methods
            if name not in described
        ),
        *(
            f"{name} has no verdict: it or a control is not finished"
            for name in methods
            if name not in judged
        ),
        *(
            f"{one} and {other} share items: their results are one finding, and no mean is taken over sets"
            for one, other in shared_sets(list(before["readings"].values()))
        ),
        "no setting is tuned: each method has the weights of its paper or its released code, and one of your own the "
        "defaults of its code",
    ]
    bench["verdicts"] = [one.as_json() for one in verdicts]
    publish(bench, make_set_report(bench, verdicts, set_sentences(verdicts)), out)
    return bench
