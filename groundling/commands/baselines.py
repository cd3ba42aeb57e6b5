"""`groundling baselines`: what a frozen CLIP answers to questions about photos without fine-tuning."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Annotated, Any

from groundling.command_line import Command, CommandOutput
from groundling.core.errors import InputError
from groundling.runs.progress import CommandContext
from groundling.settings.fields import InputKind, Settings, required, settings
from groundling.settings.input_settings import TableTaskSettings, check_one_task

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np

    from groundling.core.batch import Example
    from groundling.core.output_types import Classification
    from groundling.teachers.feature_cache import TeacherSet

NEIGHBOURS = 5
"""Neighbours that vote: the training rows with the most similar image and question."""


@settings
class BaselinesConfig(Settings):
    """A CLIP, and questions about photos in your own file."""

    model: Annotated[str, InputKind.MODEL, required] = ""
    """Hub id or folder of a CLIP-like model with both towers."""
    data: Annotated[str, InputKind.FILE, required] = ""
    """Your own csv, tsv, json or jsonl file, as for `finetune`, which holds out the same rows."""
    images: Annotated[str, InputKind.FOLDER, required] = ""
    """Folder of the photos."""
    own: TableTaskSettings = field(default_factory=TableTaskSettings)
    skip_bad: bool = False
    """Leave out the examples of photos that are missing or do not decode, and count these photos; \
otherwise the first is an error."""
    cpu: bool = False
    """Run on the CPU even if an accelerator is available."""


def check(config: BaselinesConfig) -> None:
    """Raises InputError without columns, or without one of photos."""
    check_one_task("baselines", "", config.own, "task")
    if not config.own.image:
        raise InputError("baselines needs image=COLUMN")


def baselines(config: BaselinesConfig, work: CommandContext) -> dict[str, Any]:
    """Main scores on the held-out rows of `finetune`, with n; features are computed once.

    `majority`: the most common training answer; `majority per question`: the most common one to the same question;
    `zero-shot`: the answer whose text, after the question's, is most similar to the image (not trained);
    `linear probe`: logistic regression on the image's features, the question's and their product, its penalty chosen
    by cross-validation on the training rows; `nearest neighbours`: the vote of the most similar training rows.
    """
    from pathlib import Path

    import numpy as np

    from groundling.commands.finetune.data import bad_photos_note, readable_photos
    from groundling.commands.finetune.result import majority_baseline
    from groundling.core.output_types import Classification
    from groundling.tasks.table import table_task
    from groundling.training.image_use import majority_per_question

    task = table_task(Path(config.data), config.own)
    form = task.form
    if not isinstance(form, Classification):
        raise InputError(f"{config.data}: the labels are numbers; baselines are of classes")
    every = {split: task.read(Path(config.data), split) for split in ("train", "dev")}
    splits, faults = readable_photos(every, config.images, config.skip_bad)
    work.note(*bad_photos_note(faults))
    train, held = splits["train"], splits["dev"]
    clip = _teacher_set(config)
    rows = [_features(some, clip) for some in (train, held)]
    train_labels, labels = (np.array([one.label for one in some]) for some in (train, held))
    answers: dict[str, np.ndarray] = {
        "majority per question": majority_per_question(train, held),
        "zero-shot": _zero_shot(held, form, clip),
        **_fitted(rows[0], train_labels, rows[1]),
    }
    metric = task.metrics[0]
    majority = majority_baseline(task, train, {"dev": held})["majority"]["scores"]["dev"]
    scores = {"majority": majority[metric.name]}
    scores |= {name: metric.compute(said, labels) for name, said in answers.items()}
    work.note(*_notes(scores))
    return {"metric": metric.name, "n": {"train": len(train), "dev": len(held)}, "scores": scores}


def _notes(scores: Mapping[str, float]) -> list[str]:
    bar = max(scores[name] for name in ("majority", "majority per question"))
    names = [name for name, score in scores.items() if score > bar]
    said = f"above both majorities ({bar:.3f}): {', '.join(names)}"
    return [
        said if names else f"no baseline that reads the photos is above both majorities ({bar:.3f})"
    ]


def _teacher_set(config: BaselinesConfig) -> TeacherSet:
    from groundling.models.adapters import IMAGE, TEXT, load_adapter_backbone
    from groundling.runs.jobs import process_state
    from groundling.settings.objectives import TargetedDistillationSettings
    from groundling.teachers.clip import ClipTeacher
    from groundling.teachers.feature_cache import FeatureCache, TeacherSet

    options = TargetedDistillationSettings(teacher_images=config.images)
    teacher = ClipTeacher(load_adapter_backbone(config.model), {IMAGE, TEXT}, options)
    return TeacherSet([teacher.to(process_state(config.cpu).device)], FeatureCache())


def _features(examples: Sequence[Example], clip: TeacherSet) -> tuple[np.ndarray, np.ndarray]:
    """Unit-length embeddings (N, E) of the examples' images and texts."""
    import numpy as np

    from groundling.data.samples import TextDataset
    from groundling.models.adapters import IMAGE, TEXT

    samples, _ = clip.wrap(TextDataset(examples, None))
    found = [sample.rows[0].features for sample in samples.get(range(len(examples)), ())]
    image, text = (np.stack([one[name] for one in found]) for name in (IMAGE, TEXT))
    return image, text


def _zero_shot(examples: Sequence[Example], form: Classification, clip: TeacherSet) -> np.ndarray:
    """The class (N,) whose name, after the question, is most similar to the image."""
    from dataclasses import replace

    import numpy as np

    offered = [
        replace(one, id=f"{one.id}-{name}", text=f"{one.text} {name}")
        for one in examples
        for name in form.labels
    ]
    image, text = _features(offered, clip)
    return np.argmax((image * text).sum(1).reshape(len(examples), -1), axis=1)


def _fitted(
    train: tuple[np.ndarray, np.ndarray], labels: np.ndarray, held: tuple[np.ndarray, np.ndarray]
) -> dict[str, np.ndarray]:
    import numpy as np
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import GridSearchCV
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    # A linear score of both features cannot answer another question about the same photo
    # differently; their product can.
    def crossed(part: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
        image, text = part
        return np.concatenate([image, text, image * text], axis=1)

    counts = np.bincount(labels)
    some = counts[labels] > 1  # cross-validation needs two rows of a class
    folds = min(5, int(counts[counts > 1].min(initial=5)))
    if len(np.unique(labels[some])) < 2:
        raise InputError("baselines need two classes with two training rows each")
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    penalties = {"logisticregression__C": np.logspace(-5, 1, 7)}
    probe = GridSearchCV(logistic, penalties, cv=folds)
    nearest = KNeighborsClassifier(min(NEIGHBOURS, len(labels)))
    return {
        "linear probe": probe.fit(crossed(train)[some], labels[some]).predict(crossed(held)),
        "nearest neighbours": nearest.fit(np.concatenate(train, axis=1), labels).predict(
            np.concatenate(held, axis=1)
        ),
    }


COMMAND = Command(
    "baselines",
    "score what a frozen CLIP answers about your photos: zero-shot, linear probe, nearest neighbours",
    "groundling.commands.baselines:baselines",
    {"_own": BaselinesConfig()},
    title="Judge",
    example="groundling baselines --model openai/clip-vit-base-patch32 --images my_photos --data "
    "my_questions.csv --text question --image photo --label answer",
    common_flags="model data images text image label cpu",
    validate=check,
    output=CommandOutput(),
)
