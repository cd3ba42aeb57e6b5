"""`groundling bench-real`: methods on an encoder, a teacher, captions and evaluation sets of the user's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import groundling
from groundling.command_line.names import parse_arm, teacher_settings
from groundling.commands.adapt import ADAPTING
from groundling.commands.adapt.run import own_lm_head
from groundling.core.errors import InputError, duplicates
from groundling.core.registry import is_import_path
from groundling.models.hub import VECTORS
from groundling.models.text_encoder import load_text_encoder
from groundling.runs.folder import read_object
from groundling.runs.jobs import Job
from groundling.runs.progress import CommandContext, end_dry_run
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
    weights_of,
)
from groundling.studies.bench.handed import (
    check_teacher,
    hand_over_texts,
    permute_teacher,
    real_files,
)
from groundling.studies.bench.judge import MIN_UNITS, judge_sets, set_sentences
from groundling.studies.bench.methods import (
    CAPTIONS,
    IMAGES,
    TEXT,
    BenchMethod,
    find_methods,
    for_encoder,
)
from groundling.studies.bench.protocol import BenchFolder, Files, key_of
from groundling.studies.bench.readings import SetReader, set_readers, shared_sets
from groundling.studies.bench.report import make_set_report, publish

CHOOSING_SEED = 10_000
"""Adaptation seed of the runs by which weights are chosen."""
UNADAPTED = Arm(None, BEFORE)
PERMUTED = "permuted teacher"
NO_HEAD = {
    False: "; methods and controls that train masked LM start from a new one, and the encoder forgets while it learns",
    True: ": methods leave it out beside another objective, and their text control is SimCSE",
}
"""What a missing head means, by whether the student is a sentence encoder."""


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
        """As `adapt` trains by itself: new heads first and fast, so that they do not pull a pretrained encoder away."""
        own = self.config
        return replace(
            ADAPTING, steps=own.steps, batch=own.batch, lr=own.lr, log_every=50, cpu=own.cpu
        )

    @property
    def defaults(self) -> Mapping[str, Any]:
        """A sentence encoder would be kept close to itself, which no method here does by itself."""
        return {"max_length": self.config.max_length, "retain_weight": 0.0}

    def files(self, arm: Arm) -> Files:
        """The user's files, and what controls read."""
        return real_files(self.folder.root, self.config)

    def setup(self, arm: Arm) -> list[Job]:
        """The permuted teacher of a control."""
        if arm.arm != SHUFFLED or arm.method is None or not arm.method.replaces_teacher:
            return []
        call = partial(permute_teacher, self.files(arm), self.config)
        return [self.job(PERMUTED, key_of(self.fixed, PERMUTED), call)]

    def arms(self) -> list[Arm]:
        """The unadapted encoder, then every method with its controls."""
        arms = (METHOD, TEXT_CONTROL, SHUFFLED)
        return [UNADAPTED, *self.every_arm(arms, self.config.adapt_seeds, None)]

    def grid(self, arm: Arm) -> list[Arm]:
        """The values of the method's weight, with a seed of their own, if weights are chosen."""
        method = arm.method
        if not self.config.tune or method is None:
            return []
        values = method.grid if arm.tuned_method else ()
        return [replace(arm, seed=CHOOSING_SEED, weight=value) for value in values]

    def readings(self, arm: Arm) -> list[Reading]:
        """Every set; of a value of a weight only the facts, on which it is chosen."""
        encoder, cpu = self.encoder(arm), self.config.cpu
        return [
            Reading(one.name, partial(one.read, encoder=encoder, cpu=cpu), key=one.key)
            for one in self.sets
            if one.halves or arm.weight is None
        ]

    def conclude(self, counts: Mapping[str, int], notes: Sequence[str]) -> dict[str, Any]:
        """Judge everything in the folder, write `bench.json` and the page, print the table and the sentences.

        Methods, sets and seeds of earlier commands are judged too: a folder with one command for each method has the
        same correction as one command with all methods. Raises InputError if nothing is finished.
        """
        found = self.entries()
        entries = [one for one in found if one["seed"] != CHOOSING_SEED]
        before = next((one for one in entries if one["arm"] == BEFORE), None)
        if before is None:
            raise InputError(f"{self.folder.root}: nothing is finished yet")
        methods = methods_of(entries, self.methods)
        verdicts = judge_sets(entries, methods)
        sharing = [
            f"{one} and {other} share items: their results are one finding, and no mean is taken over sets"
            for one, other in shared_sets(list(before["readings"].values()))
        ]
        weights = weights_of([one for one in found if one not in entries], methods)
        result = {
            "groundling": groundling.__version__,
            "settings": self.fixed,
            "texts": counts,
            "methods": methods,
            "runs": [summary_of(one) for one in entries],
            "weights": weights,
            "notes": [*notes, *self.notes(methods), *sharing, *self._weight_notes(weights)],
            "verdicts": [asdict(one) for one in verdicts],
        }
        publish(
            result, make_set_report(result, verdicts, set_sentences(verdicts)), self.folder.root
        )
        return result

    def _weight_notes(self, weights: Mapping[str, Mapping[str, Any]]) -> list[str]:
        if not self.config.tune:
            return [
                "no setting is tuned: each method has the weights of its paper or its released code, and one of your "
                "own the defaults of its code"
            ]
        return [
            f"{name}, {arm}: {value['chosen']} chosen on the other half of the nouns, of "
            + ", ".join(f"{weight} ({score:.3f})" for weight, score in value["scores"])
            for arm, by_method in weights.items()
            for name, value in by_method.items()
        ]


def bench_real(config: RealBenchConfig, work: CommandContext) -> dict[str, Any]:
    """Run everything that is missing; prints the table and a sentence for each method.

    Raises InputError before anything is trained for texts, images, models or sets that cannot be used.
    """
    # Sets read an encoder's states, so a method that is read otherwise is left out, unless it is named.
    methods = [one for one in find_methods(config.method) if config.method or not one.vectors]
    for method in methods:
        _require_inputs(method, config)
    sets = set_readers(config)
    if not config.report:
        for one in sets:
            one.check()
    encoder = load_text_encoder(config.student)
    notes = []
    has_head = bool(own_lm_head(config.student, encoder))
    if not has_head:
        notes.append(
            f"{config.student} has no masked-LM head{NO_HEAD[encoder.sentence is not None]}"
        )
    layers = encoder.encoder.config.num_hidden_layers
    methods = [for_encoder(one, layers, has_head or encoder.sentence is None) for one in methods]
    needing = [one for one in methods if one.data != TEXT]
    if needing:
        check_teacher(config.teacher, needing)
    own = RealBench(BenchFolder(work.out.resolve()), methods, config, sets)
    missing = own.missing()  # jobs of another version end the bench before anything is written
    files = own.files(UNADAPTED)
    counts = hand_over_texts(files, config, writes=not (config.plan or config.report))
    work.counts.update(counts)
    if counts["missing"]:
        notes.append(f"{counts['missing']:,} captioned images are missing and were skipped")
    if config.plan:
        text = config.text or "the captions without their images"
        print(f"{counts['captions']:,} captions of {counts['images']:,} images; text: {text}")
        for note in notes:
            print(f"note: {note}")
        return own.print_plan()
    end_dry_run(f"{len(missing):,} jobs")
    if not config.report:
        if config.adapt_seeds < MIN_UNITS:
            print(
                f"note: a verdict needs {MIN_UNITS} adaptation seeds; with {config.adapt_seeds} there is none"
            )
        own.run(config.processes, [UNADAPTED])  # its readings' names are checked before training
        done = {own.folder.job(f"{UNADAPTED.name}: {one.name}") for one in own.sets}
        for name in duplicates(name for job in done for name in read_object(job)["readings"]):
            raise InputError(f"two files hold {name}; leave one out")
        own.run(config.processes)
    return own.conclude(counts, notes)


def _require_inputs(method: BenchMethod, config: RealBenchConfig) -> None:
    """Raises InputError if the user does not hand over what a method reads."""
    texts = [text.partition("=")[0] for stage in method.stages for text in stage.texts]
    needed = {one for stage in method.stages for one in teacher_settings(parse_arm(stage.arm))}
    if method.vectors is not None:
        raise InputError(
            f"method={method.name}: does not change the encoder, which is what the data sets score"
        )
    has_images = config.images or config.teacher.startswith(VECTORS)
    if (CAPTIONS in texts or method.data == IMAGES) and not (config.captions and has_images):
        raise InputError(
            f"method={method.name}: reads captions with images; pass captions and images, or other methods"
        )
    if "voken_classification" in method.objectives and is_import_path(config.teacher):
        raise InputError(
            f"method={method.name}: vokens need a teacher that is not {config.teacher}"
        )
    if "teacher" in needed and not config.teacher:
        raise InputError(
            f"method={method.name}: learns from a CLIP-like teacher; pass teacher, or other methods"
        )
