"""`groundling modality`: how much a model looks at, and depends on, text and image; before and after distillation."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from groundling.checks.names import check_name
from groundling.command import Command
from groundling.core.documented import documented
from groundling.settings.fields import check_numbers, need
from groundling.settings.inputs import Asking, CaptionColumns
from groundling.studies.attention.settings import Attending


@documented
@dataclass(frozen=True)
class ModalityConfig:
    """Of which model it is asked how much it looks at, and depends on, text and image; and on which examples."""

    attending: Attending = field(default_factory=Attending)
    other: str = ""
    """A second model, compared with the first on the same examples, such as the same one after distillation."""
    data: str = ""
    """File or folder of captions of images, as `pretrain` reads them; with --task, or of a fine-tuned model, the \
task's official files or your own file with labels, as for `evaluate`."""
    columns: CaptionColumns = field(default_factory=CaptionColumns)
    task: str = ""
    """Task whose examples a pre-trained model reads, e.g. snli-ve; empty: captions; a fine-tuned model's own."""
    split: str = ""
    """Which split of the data; empty: the task's first with labels. Of Karpathy's captions it has to be said."""
    asking: Asking = field(default_factory=Asking)
    label: str = ""
    """A file of your own: column of the label; empty: as in the file that the model learned from."""
    trust: tuple[str, ...] = ()
    """MODULE:NAME of every object of your own that a fine-tuned model's folder asks for, such as its task; nothing is \
imported because a folder says so."""
    most_examples: int = 1000
    """Use at most so many examples, evenly spaced; 0: all."""
    query: Literal["cls", "all"] = "cls"
    """Whose attention is summed: that of [CLS], or the mean over all places."""
    outcome: Literal["best", "match", "words"] = "best"
    """What a pre-trained model is asked where inputs are changed: how well text and image match, or words that are \
hidden from it; best: the match if it has a head for it. A fine-tuned one is asked its task."""
    other_inputs: bool = True
    """Also ask it beside blank, shuffled and swapped images and texts, eight passes in all."""
    explained: int = 100
    """Examples, evenly spaced, whose answers are also explained by integrated gradients; 0: none."""
    line_points: int = 64
    """Points on the line from a blank input at which integrated gradients are taken."""
    teacher: str = ""
    """Compare attention to words with CLIP-TD's selection scores by this CLIP (hub id or folder); empty: leave out."""
    teacher_images: str = ""
    """--teacher: folder of the images that it sees; ids are paths there without the ending."""
    words: int = 2
    """--teacher: words of each text that are selected."""
    relevance: Literal["contextual", "isolated"] = "contextual"
    """--teacher: a word's visual relevance is that of its place in the text, or of the word by itself."""
    processes: int = 1
    """Processes that share the examples, on this machine; results do not depend on it. `torchrun` does the same."""


def check(config: ModalityConfig, out: str | Path) -> None:
    """Raises InputError without a model or data, for a task that there is not, and for a teacher without images."""
    need(config, "modality", "data")
    need(config.attending, "modality", "model")
    if config.teacher:
        need(config, "modality --teacher", "teacher_images")
    check_name("tasks", "Task", config.task)
    check_numbers(config)


COMMAND = Command(
    "modality",
    "how much a model looks at, and depends on, text and image; before and after distillation",
    "groundling.studies.attention.modality:modality",
    {"_own": ModalityConfig()},
    speaks=True,
    rules="groundling.studies.attention.commands.modality:check",
)
