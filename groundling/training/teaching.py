"""Objectives and frozen teachers beside whatever else a run trains with: the one road for every recipe."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from groundling.core.batch import Sizes, collate
from groundling.core.errors import InputError
from groundling.core.find import built, described, is_outside, named
from groundling.core.forms import Answer, Classify, Form
from groundling.core.keyed import seed_of
from groundling.data.samples import Samples
from groundling.data.text.keywords import Keywords
from groundling.models.adapters import IMAGE, TEXT, Base
from groundling.models.clip import load_clip_image, load_clip_text
from groundling.models.crossmodal import CrossModal
from groundling.models.saved_heads import save_heads
from groundling.models.text import TextEncoder
from groundling.objectives import Given, Objective, Vocabulary, part_named
from groundling.runs.folder import PREPARED
from groundling.settings.objectives import Adversarial, Distilling, Targeted
from groundling.settings.training import TrainConfig
from groundling.teachers import Teacher, features_of, inputs_of, is_teacher, kept_of
from groundling.teachers.clip import FEATURES, Anchors, Answers, ClipTeacher
from groundling.teachers.clip_text import ClipTextTeacher
from groundling.teachers.taught import Taught
from groundling.teachers.towers import Towers
from groundling.training.inner_steps import InnerPart, InnerStep, is_inner_step
from groundling.training.watched import means_by_epoch
from groundling.vision_language.single_stream import SingleStream


def vocabulary(text: TextEncoder) -> Vocabulary:
    """Mask id and ordinary ids of an encoder's tokenizer; raises InputError if it has no mask token."""
    mask_id = text.tokenizer.mask_token_id
    if mask_id is None:
        raise InputError(
            f"{text.tokenizer.name_or_path}: the tokenizer has no mask token, masked LM is not possible"
        )
    special = set(text.tokenizer.all_special_ids)
    ordinary = [number for number in range(len(text.tokenizer)) if number not in special]
    return Vocabulary(int(mask_id), ordinary)


def text_encoder_of(student: object) -> TextEncoder | None:
    """The text encoder inside a model, whose pieces are masked; None if there is none."""
    if isinstance(student, TextEncoder):
        return student
    return student.text if isinstance(student, CrossModal | SingleStream) else None


SILENT = frozenset({"cache_gb", "teacher_cache"})
"""Settings that say where something is kept, which need no reader."""


def unread(config: object, names: Sequence[str], inner: str) -> list[str]:
    """A line if settings were given that none of the objectives `names` reads, nor the inner step."""
    if any(is_outside(name) for name in (*names, inner)):
        return []  # which may read any of them
    kinds = [part_named(name) for name in names]
    read = {
        "masking": bool({"mlm", "joint_mlm"} & set(names)),
        "crossing": any(kind.joint for kind in kinds),
        "distilling": any(kind.taught for kind in kinds),
        "targeted": any(name.startswith("td_") for name in names),
        "adversarial": bool(inner),
    }
    # A cross-modal model reads as many windows as a teacher would.
    silent = SILENT | ({"max_windows"} if read["crossing"] else set())
    flags = []
    for name, group in vars(config).items():
        if read.get(name, True):
            continue
        usual = vars(type(group)())
        changed = [one for one in usual if vars(group)[one] != usual[one] and one not in silent]
        flags += [f"--{one.replace('_', '-')}" for one in changed]
    if not flags:
        return []
    trained = " and ".join(names) or "the task's own loss"
    return [f"nothing here reads {', '.join(flags)}: what is trained is {trained}"]


def make_objectives(names: Sequence[str], given: Given, seed: int) -> list[Objective]:
    """Objectives by name; each one's head is drawn by its own key, so it is the same in every run that has it."""
    objectives = []
    for name in names:
        torch.manual_seed(seed_of(seed, "init", name))
        made: object = part_named(name).make(given)
        if not isinstance(made, Objective):
            raise InputError(f"{name}: makes {described(made)}, expected an Objective")
        check_saved(made)
        objectives.append(made)
    return objectives


def check_saved(objective: Objective) -> None:
    """Raises InputError now for what could not be saved when all is trained."""
    saved: object = objective.saved()
    sound = isinstance(saved, Mapping) and all(
        isinstance(name, str) and isinstance(head, nn.Module) for name, head in saved.items()
    )
    if not sound:
        raise InputError(f"{objective.name}: `saved` returns no modules by name, expected a dict")


def save_objectives(folder: Path, objectives: Sequence[Objective]) -> None:
    """Write what objectives keep for a next run beside an exported model."""
    heads = {name: head for one in objectives for name, head in one.saved().items()}
    save_heads(folder, heads)


def teacher_inputs(source: str, options: Targeted) -> dict[str, str | Path]:
    """The models and images of a run's teachers, whose hashes tell it from other runs."""
    return {
        "teacher": "" if is_outside(source) else source,
        "teacher_text": options.teacher_text,
        "teacher_scorer": options.teacher_scorer,
        "teacher_images": options.teacher_images,
    }


def needs_of(names: Sequence[str], given: Given) -> frozenset[str]:
    """What objectives will ask teachers for: names of features."""
    # What an objective needs may follow from its settings, so that it must be made to be asked; any width will do.
    sizes = given.sizes._replace(teacher=1, teacher_image=1)
    taught = [name for name in names if part_named(name).taught]
    made = make_objectives(taught, replace(given, sizes=sizes), seed=0)
    parts = [need.partition(".") for objective in made for need in objective.needs]
    return frozenset(name for field, _, name in parts if field == "features")


def load_teacher(source: str, options: Distilling) -> Teacher:
    """A CLIP-like text tower by hub id or folder, or MODULE:NAME of a teacher of your own or of what makes it."""
    if not is_outside(source):
        clip, tokenizer = load_clip_text(source)
        standardise = options.l1_targets == "standard"
        return ClipTextTeacher(clip, tokenizer, standardise, options.max_windows)
    teacher = built(source, is_teacher, "a Teacher")
    if not (teacher.name and (teacher.width or teacher.image_width)):
        raise InputError(f"{source}: a teacher needs a `name`, and the `width` of its features")
    return teacher


def load_clip_teacher(
    source: str, needs: Collection[str], options: Targeted, form: Form | None
) -> ClipTeacher:
    """A CLIP-like model as a teacher of images and texts, with the sides that `needs` ask for; see `Targeted`."""
    by_chance = {"clip_words", "clip_word"} if options.select == "random" else set()
    sees = not set(needs) <= {"clip_text"} | by_chance
    reads = bool(set(needs) - {"clip_image"})
    text_source = options.teacher_text or source
    joined = text_source == source
    if not joined:  # what compares image and text is the scorer's
        sees = "clip_image" in needs
        reads = bool({"clip_text", "clip_words"} & set(needs))
    image = load_clip_image(source) if sees else None
    text, tokenizer = load_clip_text(text_source) if reads else (None, None)
    scorer = None
    if options.teacher_scorer:
        side = load_clip_image(options.teacher_scorer)
        scorer = Towers(side, *load_clip_text(options.teacher_scorer))
    return ClipTeacher(
        Towers(image, text, tokenizer, joined),
        needs,
        options,
        scorer=scorer,
        keywords=_keywords(options.keywords),
        sure_of=_sure_of(form) if "clip_confidence" in needs else None,
    )


def _keywords(name: str) -> Keywords | None:
    """An extractor of keywords of your own, MODULE:NAME (a function, or a class made without arguments)."""
    return built(name, _is_extractor, "a function from a text to its keywords") if name else None


def _is_extractor(value: object) -> TypeGuard[Keywords]:
    return callable(value)


def _sure_of(form: Form | None) -> Answers | Anchors:
    """What a teacher can be sure of in a task; raises InputError for one without answers."""
    if isinstance(form, Answer):
        return Answers(tuple(text for text in form.labels if text not in form.never))
    if isinstance(form, Classify):
        return Anchors(len(form.labels))
    raise InputError("--td-gate: this task has no answers of which a teacher could be sure")


MEASURED = 64
"""Samples from which the size of all features is estimated."""


def features_gb(samples: Samples, teacher: Teacher) -> float:
    """About how many GiB a teacher's features of all samples take, from some of them."""
    count = min(MEASURED, len(samples))
    places = [len(samples) * number // count for number in range(count)]
    rows = [row for sample in samples.get(places, ()) for row in sample.rows]
    batch = collate(inputs_of(teacher, rows))
    kept = kept_of(teacher, features_of(teacher, batch), batch)
    measured = sum(values.nbytes for row in kept for values in row.values())
    return measured / count * len(samples) / 2**30


class Classroom:
    """The teachers of a run and how they are put beside samples; one serves all seeds."""

    def __init__(
        self,
        teachers: Sequence[Teacher] = (),
        limit_gb: float = 0.0,
        folder: Path | None = None,
    ) -> None:
        """Teachers whose features are kept in `folder`, or in memory without one.

        Features of a teacher that has no parts are kept if they take at most `limit_gb` GiB; if it is 0, none are.
        """
        self.teachers = teachers
        self.limit_gb = limit_gb
        self.folder = folder
        self.fits: dict[str, bool] = {}

    def wrap(self, samples: Samples, fixed: bool = True) -> tuple[Samples, list[Teacher]]:
        """The samples with the teachers beside them, and the teachers that the loop must ask.

        Features are computed once and kept. Samples that are drawn anew in every epoch say `fixed=False`: of them only
        what depends on the image alone is kept. A teacher belongs below regions and pixels, which it need not wait for.
        """
        live: list[Teacher] = []
        for teacher in self.teachers:
            samples = self._beside(teacher, samples, fixed, live)
        return samples, live

    def _beside(
        self, teacher: Teacher, samples: Samples, fixed: bool, live: list[Teacher]
    ) -> Samples:
        """The samples with one teacher beside them; what is to be asked in the loop joins `live`."""
        kept, rest = self._kept(teacher, samples, fixed)
        for part in kept:
            folder = None if self.folder is None else self.folder / part.name
            samples = Taught(samples, part, folder=folder)
        for part in rest:
            samples = Taught(samples, part, cached=False)
            live.append(part)
        return samples

    def _kept(
        self, teacher: Teacher, samples: Samples, fixed: bool
    ) -> tuple[Sequence[Teacher], Sequence[Teacher]]:
        """The parts of a teacher whose features are kept, and those that are asked in every step."""
        parts = teacher.parts()
        is_whole = len(parts) == 1 and parts[0] is teacher
        if not self.limit_gb or (is_whole and not (fixed and self._fits(teacher, samples))):
            return [], [teacher]
        kept = [
            part for part in parts if part.keeps == "always" or (fixed and part.keeps == "fixed")
        ]
        rest = [part for part in parts if part not in kept]
        # Of drawn texts, all that is left is said in one go: no text is read twice.
        return kept, rest if fixed or not rest else [teacher]

    def _fits(self, teacher: Teacher, samples: Samples) -> bool:
        if teacher.name not in self.fits:
            teacher.fit(samples)
            self.fits[teacher.name] = features_gb(samples, teacher) <= self.limit_gb
        return self.fits[teacher.name]

    def sizes(self, sizes: Sizes) -> Sizes:
        """A model's sizes with the teachers' widths; raises InputError if two teachers' texts differ in width."""
        widths = {teacher.width for teacher in self.teachers if teacher.width}
        if len(widths) > 1:
            raise InputError(
                f"the objectives read features of texts of two widths, {min(widths)} and {max(widths)}, because of "
                "--teacher-text or --space; train them in two runs"
            )
        images = [teacher.image_width for teacher in self.teachers]
        return sizes._replace(teacher=max(widths, default=0), teacher_image=max(images, default=0))


def place_of_features(cache: str, out: Path) -> Path:
    """Where teachers' features are kept: in --teacher-cache, or without one below the run's folder `out`."""
    return Path(cache) if cache else out / PREPARED / "teacher"


def classroom(
    source: str,
    names: Sequence[str],
    given: Given,
    device: torch.device,
    out: Path,
    seed: int,
    also: Sequence[Teacher] = (),
) -> Classroom:
    """The teachers that the objectives `names` of a run ask, on its device: those of a `source`, and those of `also`.

    Features are kept in --teacher-cache, or below the run's folder `out`. Raises InputError if a teacher cannot say
    what is asked.
    """
    torch.manual_seed(seed_of(seed, "init", "teacher"))
    teachers = _teachers(source, needs_of(names, given), given) if source else []
    teachers += also
    if not teachers:
        return Classroom()
    for teacher in teachers:
        teacher.to(device)
    folder = place_of_features(given.targeted.teacher_cache, out)
    return Classroom(teachers, given.distilling.cache_gb, folder)


def base_room(base: Base, options: Targeted, device: torch.device, out: Path) -> Classroom:
    """The CLIP under an adapter as a teacher of every row's image and text, on a device; always asked beforehand.

    Features are kept in --teacher-cache, or below the run's folder `out`. Raises InputError without --teacher-images.
    """
    towers = Towers(base.image, base.text, base.tokenizer)
    teacher = ClipTeacher(towers, {IMAGE, TEXT}, options).to(device)
    return Classroom([teacher], math.inf, place_of_features(options.teacher_cache, out))


def _teachers(source: str, needs: Collection[str], given: Given) -> list[Teacher]:
    """What is asked for tells whether the teacher must see images."""
    seen = set(needs) & set(FEATURES)
    if not seen and given.targeted.teacher_images:
        raise InputError(
            f"nothing reads --teacher-images {given.targeted.teacher_images}; name an objective that does, such as "
            "td_image"
        )
    if is_outside(source) or not seen:
        return [load_teacher(source, given.distilling)]
    teachers: list[Teacher] = []
    if set(needs) - seen:
        teachers.append(load_teacher(source, given.distilling))
    return [*teachers, load_clip_teacher(source, seen, given.targeted, given.form)]


def inner_step(name: str, options: Adversarial) -> InnerStep | None:
    """An inner step by name, or your own, MODULE:NAME (an object, or what makes one); None without a name.

    Raises InputError for an unknown name, or if your own is none.
    """
    if name and not is_outside(name):
        return named("training.inner_steps", InnerPart, name).make(options)
    if not name:
        return None
    return built(name, is_inner_step, "an InnerStep")


def fewer_negatives(objectives: Sequence[Objective], training: TrainConfig) -> list[str]:
    """What is to be said where accumulation leaves objectives fewer in-batch negatives than the batch has samples."""
    names = [one.name for one in objectives if one.in_batch_negatives]
    if not names or training.accumulate == 1:
        return []
    size = f"{training.batch // training.accumulate} of a step's {training.batch} samples"
    if training.batch_tokens:
        size = f"one of a step's {training.accumulate} on each process"
    return [
        f"--accumulate {training.accumulate}: {', '.join(names)} takes its negatives from one micro-batch ({size}), so "
        "that the loss is another one than of the whole batch at once"
    ]


def watched_terms(
    objectives: Sequence[Objective], folder: Path, trained: Mapping[str, Any]
) -> tuple[dict[str, list[float]], list[str]]:
    """The mean of every watched term in each epoch of a finished training, and what is to be said of them, once.

    `trained` is what `train` returned, and `folder` where it wrote its log.
    """
    terms = [term for objective in objectives for term in objective.watched]
    if not terms:
        return {}, []
    # An epoch of fewer than a ten-thousandth is written as 0.
    epoch = trained["steps"] / max(trained["epochs"], 1e-4)
    means = means_by_epoch(folder / "log.jsonl", terms, epoch)
    # Terms that share a gate say the same of it.
    notes = list(dict.fromkeys(line for one in objectives for line in one.remarks(means)))
    return means, notes


def with_teachers(given: Given, room: Classroom) -> Given:
    """What is known, with the widths of the teachers' features."""
    return replace(given, sizes=room.sizes(given.sizes))
