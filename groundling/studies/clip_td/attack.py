"""What an attack model loses when one position of a choice is hidden: the numbers by which `masks` hides.

Model and rule as `masks` tells; the attack model here reads the text alone, so a hidden position loses its tag with its
name. Scores are model-specific, therefore the losses are written to a file, which anybody can shift by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from groundling.core.batch import Example, collate
from groundling.core.errors import InputError
from groundling.data.samples import TextSamples
from groundling.models.saved_heads import load_head
from groundling.models.text import TextEncoder
from groundling.objectives.supervised import Supervised
from groundling.runs.folder import finished
from groundling.studies.clip_td.files import MASK, Line, Part
from groundling.studies.clip_td.masks import masked, positions
from groundling.tasks import Task
from groundling.tasks.vcr import ANSWER, RATIONALE, render
from groundling.vision_language.loading import load_student

ROWS = 256
"""Texts a model reads at a time."""
TASKS: dict[Part, Task] = {"answer": ANSWER, "rationale": RATIONALE}
DIGITS = 6
"""Of a loss in the file."""


@dataclass(frozen=True)
class Row:
    """One choice with one position hidden."""

    line: int
    """Which of the lines."""
    choice: int
    """Which of its choices."""
    is_right: bool
    """Whether that is the right one."""
    text: str
    """What the choice is asked after."""
    hidden: str
    """The choice, with the model's own mask token."""


class Attack:
    """A text encoder and its head, as `finetune --save-model` left them."""

    def __init__(self, folder: Path, part: Part, max_length: int, device: torch.device) -> None:
        """Raises InputError if the folder holds no text encoder with a head for the part's task, and a mask token."""
        task = TASKS[part]
        done = finished(folder.parent)
        if done is not None and done.get("task") != task.name:
            raise InputError(
                f"{folder}: a model of {done.get('task')}, expected one of {task.name}"
            )
        student = load_student(folder)
        if not isinstance(student, TextEncoder):
            raise InputError(f"{folder}: expected a text encoder, found a {type(student).__name__}")
        if student.tokenizer.mask_token is None:
            raise InputError(f"{folder}: the tokenizer has no mask token to hide a position with")
        self.objective = Supervised(student.sizes, form=task.form)
        if not load_head(folder, self.objective, self.objective.name):
            raise InputError(
                f"{folder}: no head of a plain {task.name}; pass `seed-N/model` of `finetune --task {task.name} "
                "--save-model`"
            )
        self.part = part
        self.mask = student.tokenizer.mask_token
        self.inputs, _ = student.inputs(max_length)
        self.student = student.to(device).eval()
        self.objective.to(device).eval()
        self.device = device

    def losses(self, lines: Sequence[Line]) -> tuple[list[list[list[float]]], int]:
        """Of every line, of its four choices, a loss for each position; and how many texts were cut to the length."""
        out = [[[0.0] * positions(choice) for choice in line.choices(self.part)] for line in lines]
        places = [[0] * len(of_line) for of_line in out]
        cut = 0
        rows = self._rows(lines)  # of VCR's val more than a million: never a list
        while some := list(islice(rows, ROWS)):
            logits, dropped = self._logits(some)
            cut += dropped
            for row, loss in zip(some, cross_entropy(logits, some), strict=True):
                place = places[row.line][row.choice]
                out[row.line][row.choice][place] = round(float(loss), DIGITS)
                places[row.line][row.choice] = place + 1
        return out, cut

    def _rows(self, lines: Sequence[Line]) -> Iterator[Row]:
        """Every choice with every one of its positions hidden, in order."""
        for number, line in enumerate(lines):
            objects = line.item.objects
            text, _ = render(line.asked(self.part), objects)
            for which, choice in enumerate(line.choices(self.part)):
                for place in range(positions(choice)):
                    words, _ = render(masked(choice, {place}), objects)
                    hidden = words.replace(MASK, self.mask)
                    yield Row(number, which, which == line.right(self.part), text, hidden)

    @torch.no_grad()
    def _logits(self, rows: Sequence[Row]) -> tuple[np.ndarray, int]:
        """The score (N,) of each row's choice, and how many rows were cut."""
        examples = [Example(str(n), row.text, row.hidden) for n, row in enumerate(rows)]
        samples = TextSamples(examples, self.inputs).get(range(len(rows)))
        batch = collate(samples).to(self.device)
        outputs = self.objective.outputs(self.student(batch), batch).cpu().numpy()
        return outputs[:, 0], sum(sample.dropped > 0 for sample in samples)


def cross_entropy(logits: np.ndarray, rows: Sequence[Row]) -> np.ndarray:
    """Sigmoid cross-entropy (N,) of each row's own score (N,): the right choice's should be high, another's low."""
    signs = np.array([-1.0 if row.is_right else 1.0 for row in rows])
    return np.logaddexp(0, signs * logits)
