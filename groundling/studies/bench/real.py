"""`groundling bench --real`: methods on an encoder, a teacher, captions and evaluation sets of the user's own."""

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
from groundling.core.errors import InputError
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import write_json
from groundling.runs.progress import CommandContext
from groundling.runs.report import format_count
from groundling.settings.training import TrainingArguments
from groundling.studies.bench.commands import BenchConfig, RealSettings
from groundling.studies.bench.engine import (
    METHOD,
    SHUFFLED,
    TEXT_CONTROL,
    Arm,
    Entry,
    Experiment,
    Reading,
    describe_controls,
    has_arm,
    methods_of,
    read_job,
)
from groundling.studies.bench.gains import BEFORE, judge_gains, make_report, sentences_of
from groundling.studies.bench.handed import (
    TextCounts,
    check_teacher,
    hand_over_texts,
    permute_teacher,
    real_files,
)
from groundling.studies.bench.methods import (
    CAPTIONS,
    IMAGES,
    BenchMethod,
    built_in_methods,
    find_methods,
    for_encoder,
)
from groundling.studies.bench.protocol import BenchFolder, Files
from groundling.studies.bench.sets import (
    GAINS,
    KEY,
    SetReader,
    check_set,
    set_readers,
    shared_sets,
)

FORMAT = "groundling bench on a real encoder"
VERSION = 2
"""Increases with every change of the file's layout."""
PERMUTED = "the teacher with its text tower's token embeddings permuted"
UNADAPTED = Arm(None, BEFORE)
ITEMS = ("groups", "items", "cosines", "ratings")
"""What a reading has of each item; the job's files keep it."""


@dataclass(frozen=True)
class RealBench(Experiment):
    """Methods on the user's own encoder, read before and after on every set."""

    config: BenchConfig
    sets: Sequence[SetReader]

    @property
    def settings(self) -> RealSettings:
        """Settings of the real encoder."""
        return self.config.real_encoder

    @property
    def fixed(self) -> object:
        """How methods are trained."""
        return self.settings.identity()

    @property
    def training(self) -> TrainingArguments:
        """The user's steps, samples and learning rate."""
        own = self.settings
        return TrainingArguments(
            steps=own.steps, batch=own.batch, lr=own.lr, log_every=50, cpu=own.cpu
        )

    @property
    def defaults(self) -> Mapping[str, Any]:
        """A sentence encoder would be kept close to itself, which no method here does by itself."""
        return {"max_length": self.settings.max_length, "retain_weight": 0.0}

    def files(self, arm: Arm) -> Files:
        """The user's files, and what controls read."""
        return real_files(self.folder.root, self.settings)

    def arms(self) -> list[Arm]:
        """The unadapted encoder, then every method with its controls."""
        return [
            UNADAPTED,
            *(
                Arm(method, arm, seed)
                for method in self.methods
                for arm in (METHOD, TEXT_CONTROL, SHUFFLED)
                if has_arm(method, arm)
                for seed in range(self.config.adapt_seeds)
            ),
        ]

    def readings(self, arm: Arm) -> list[Reading]:
        """Every set."""
        return [
            Reading(one.name, partial(one.read, cpu=self.settings.cpu), key=one.key)
            for one in self.sets
        ]

    def controls(self, method: BenchMethod) -> dict[str, str]:
        """The controls of a method, in words."""
        return describe_controls(method, PERMUTED, (TEXT_CONTROL, SHUFFLED))

    def describe(self, method: BenchMethod) -> dict[str, Any]:
        """Also the controls."""
        return super().describe(method) | {"controls": self.controls(method)}

    def reading_names(self, jobs: Sequence[Entry]) -> Mapping[tuple[str, str], str]:
        """This command's sets first; other items of one name have the hash of their set in it.

        Only of what the unadapted encoder is read on.
        """
        order = [one.name for one in self.sets]
        before = [job for job in jobs if job["name"] == UNADAPTED.name]
        before.sort(key=lambda job: (*order, job["reading"]).index(job["reading"]))
        first: dict[str, Any] = {}
        names: dict[tuple[str, str], str] = {}
        for job in before:
            for name, one in job["readings"].items():
                # One file read with more modes is another set with the same items.
                is_same = first.setdefault(name, one) == one
                names[job["reading"], name] = (
                    name if is_same else f"{name} ({job['reading'][-KEY:]})"
                )
        return names

    def check_distinct_sets(self) -> None:
        """Raises InputError if two files hold one set, which the unadapted encoder's readings show."""
        names: set[str] = set()
        for one, reading in zip(self.sets, self.readings(UNADAPTED), strict=True):
            job = self.folder.job(f"{UNADAPTED.name}: {reading.name}")
            for name in read_job(job)["readings"]:
                if name in names:
                    raise InputError(f"{one.source}: another file holds {name} too; leave one out")
                names.add(name)

    def print_handed(self, counts: TextCounts) -> None:
        """Print what is handed over, how methods are trained, and what is read."""
        own = self.settings
        handed = "no captions"
        if own.captions:
            handed = f"{format_count(counts.captions, 'caption')} of {format_count(counts.images, 'image')}"
        seeds = format_count(self.config.adapt_seeds, "adaptation seed")
        gains, prices = (
            "; ".join(one.about for one in self.sets if (one.kind in GAINS) == is_gain)
            for is_gain in (True, False)
        )
        print(
            f"encoder: {own.student}; teacher: {own.teacher or 'none'}\n"
            f"handed over: {handed}; text: {own.text or 'the captions without their images'}\n"
            f"training of each method and control: {own.steps:,} steps of {own.batch} samples, learning rate "
            f"{own.lr:g}, at most {own.max_length} tokens, {seeds}\n"
            f"gains: {gains}\nprice: {prices or 'nothing is read'}"
        )


def bench_real(config: BenchConfig, work: CommandContext) -> dict[str, Any]:
    """Run everything that is missing; prints the table and a sentence for each method.

    Raises InputError before anything is trained for texts, images, models or sets that cannot be used.
    """
    settings = config.real_encoder
    methods, left_out = choose_methods(config.method, settings)
    sets = set_readers(settings)
    for one in sets:
        check_set(one)
        if [other.name for other in sets].count(one.name) > 1:
            raise InputError(f"{one.source}: another file holds the same; leave one out")
    encoder = load_text_encoder(settings.student)
    notes = [f"{name} is left out: {reason}" for name, reason in left_out.items()]
    if not own_lm_head(settings.student, encoder):
        notes.append(
            f"{settings.student} has no masked-LM head; methods and controls that train masked LM start from a new "
            "one, and the encoder forgets while it learns"
        )
    methods = [for_encoder(one, encoder.encoder.config.num_hidden_layers) for one in methods]
    permutes = any(one.replaces_teacher for one in methods)
    if settings.teacher and (permutes or any(method.data == IMAGES for method in methods)):
        check_teacher(settings.teacher)
    own = RealBench(BenchFolder(work.out.resolve()), methods, config, sets)
    own.missing()  # jobs of another version end the bench before anything is written
    files = own.files(UNADAPTED)
    counts = hand_over_texts(files, settings, writes=not (config.plan or config.report))
    if counts.missing:
        notes.append(f"{counts.missing:,} captioned images are missing and were skipped")
    if config.plan:
        own.print_handed(counts)
        for note in notes:
            print(f"note: {note}")
        return own.print_plan(own.controls)
    if not config.report:
        if permutes:
            permute_teacher(files, settings)
        own.run(config.processes, [UNADAPTED])  # before anything is trained
        own.check_distinct_sets()
        own.run(config.processes)
    return conclude(own, counts, notes, work.out)


def choose_methods(
    names: Sequence[str], settings: RealSettings
) -> tuple[list[BenchMethod], dict[str, str]]:
    """The methods to compare, and those of the package that are left out, with the reason.

    Raises InputError for a method that lacks its captions or its teacher, if the user named it.
    """
    methods = find_methods(names)
    lacking = {one.name: reason for one in methods if (reason := _lacks(one, settings))}
    if names and lacking:
        name, reason = next(iter(lacking.items()))
        raise InputError(f"method={name}: {reason}")
    kept = [one for one in methods if one.name not in lacking]
    if not names:
        offered = built_in_methods().items()
        lacking |= {name: reason for name, one in offered if (reason := one.why_not())}
    return kept, lacking


def _lacks(method: BenchMethod, settings: RealSettings) -> str:
    """What a method reads that the user does not hand over; empty if nothing."""
    texts = [text.partition("=")[0] for stage in method.stages for text in stage.texts]
    if (CAPTIONS in texts or method.data == IMAGES) and not settings.captions:
        return "reads captions with images; pass captions and images"
    needed = {one for stage in method.stages for one in teacher_settings(parse_arm(stage.arm))}
    if "teacher" in needed and not settings.teacher:
        return "learns from a CLIP-like teacher; pass teacher"
    return ""


def conclude(own: RealBench, counts: TextCounts, notes: Sequence[str], out: Path) -> dict[str, Any]:
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
        "format": FORMAT,
        "version": VERSION,
        "groundling": groundling.__version__,
        "settings": own.fixed,
        "texts": vars(counts),
        "methods": methods,
        "runs": entries,
    }
    verdicts = judge_gains(bench)
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
    controls = {name: about["controls"].get(SHUFFLED, "") for name, about in methods.items()}
    sentences = sentences_of(verdicts, controls)
    bench["runs"] = [_summary(one) for one in entries]
    write_json(out / "bench.json", bench)
    report = make_report(bench, verdicts, sentences)
    report.write(out / "report.html")
    print(f"\n{report.text()}\n\n{out / 'bench.json'}\n{out / 'report.html'}")
    return bench


def _summary(entry: Entry) -> dict[str, Any]:
    """An entry for `bench.json`: readings without their items."""
    kept = {name: one for name, one in entry.items() if name not in ("name", "about", "control")}
    kept["readings"] = {
        name: {part: value for part, value in one.items() if part not in ITEMS}
        for name, one in entry["readings"].items()
    }
    return kept
