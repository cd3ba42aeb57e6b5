"""Fine-tuning on a task's labels."""

from __future__ import annotations

from torch import Tensor, nn

from groundling.core.batch import IGNORE, Batch, EncoderOutput, Sizes
from groundling.core.errors import InputError
from groundling.core.output_types import OutputType, with_loss
from groundling.models.task_heads import HeadContext, TaskHead, plain_head
from groundling.objectives import Objective


class Supervised(Objective):
    """A task's own loss on what a head answers: the plain head of its form, or a paper's (`vision_language/`).

    Samples whose label is hidden (`tasks/splits.py`) are answered, for a gate to see, and not scored.
    """

    name = "supervised"
    needs = ("labels.label",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        form: OutputType,
        head: TaskHead | None = None,
        loss: str = "",
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`form` gives the loss, in the kind that the head's paper trains it with, or in the kind `loss`.

        Raises InputError if the form has no such kind, or the head answers in another shape.
        """
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.head = plain_head(HeadContext(sizes, form)) if head is None else head
        self.form = self.head.trained_on(form)
        if loss:
            self.form = with_loss(self.form, loss)

    def starts(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, and what its file of heads calls them."""
        return self.head.starts()

    def outputs(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Outputs of the head: (B, outputs), (B, C) where every sample has C choices, (B, R) where it reads regions."""
        outputs: Tensor = self.head(encoded, batch)
        rows = len(batch) if self.head.apart else batch.rows
        if self.form.reads == "first" and outputs.numel() != rows * self.form.outputs:
            raise InputError(
                f"{type(self.head).__name__}: this head answers {tuple(outputs.shape)}, expected {self.form.outputs} "
                f"outputs of each of {rows} rows"
            )
        return outputs.float().view(len(batch), -1)

    def read(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """The task's logits (B, outputs), as `outputs`."""
        return self.outputs(encoded, batch)

    def answered(self, batch: Batch) -> int:
        """Samples, with a label or without."""
        return len(batch)

    def distributions(self, answer: Tensor) -> Tensor:
        """One softmax of every sample (B, K), or of every row where a choice is right or wrong by itself (N, 2)."""
        width = self.form.outputs
        return answer.view(-1, width) if width > 1 else answer

    def count(self, batch: Batch) -> dict[str, int]:
        """What the head's paper takes the mean over, of the samples with a label."""
        labels = batch.labels.get("label")
        if labels is None:
            return {"task": 0}
        known = labels[_known(labels)]
        return {"task": self.head.count(known, batch.choices, self.form)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The form's loss, summed over labelled samples to (), as `task`; nothing where no sample is labelled."""
        labels = batch.labels.get("label")
        if labels is None:
            return {}
        known = batch.places(lambda one: _known(one.labels["label"]))
        if not len(known):
            return {}
        outputs = self.answer(encoded, batch).index_select(0, known)
        return {"task": self.form.loss(outputs, labels.index_select(0, known))}


def _known(labels: Tensor) -> Tensor:
    """Which samples (B,) have a label, of labels (B,) or (B, L, ...)."""
    flat = labels.flatten(1) if labels.ndim > 1 else labels.unsqueeze(1)
    if labels.is_floating_point():
        # Any number may be a label, and a question of VQA whose answers nobody listed has IGNORE everywhere.
        return ~flat.isnan().any(1)
    return (flat != IGNORE).any(1)
