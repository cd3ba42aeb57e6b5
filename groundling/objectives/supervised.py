"""Fine-tuning on a task's labels."""

from __future__ import annotations

from typing import Self

from torch import Tensor, nn

from groundling.core.batch import IGNORE, Batch, EncoderOutput, OutputSizes, require
from groundling.core.errors import InputError
from groundling.core.output_types import MultipleChoice, OutputType, with_loss
from groundling.models.task_heads import HeadContext, TaskHead, make_plain_head
from groundling.objectives import Objective, ObjectiveContext


class SupervisedObjective(Objective):
    """A task's loss on the outputs of a head: the plain head of its output type, or a paper's (`vision_language/`).

    Samples without a label (hidden by `tasks/splits.py`) get outputs, which a gate reads, but no loss.
    """

    name = "supervised"
    arm_name = ""
    required_fields = ("labels.label",)

    def __init__(
        self,
        sizes: OutputSizes,
        *,
        output_type: OutputType,
        head: TaskHead | None = None,
        loss: str = "",
        weight: float = 1.0,
    ) -> None:
        """`output_type` defines the loss; `loss` overrides the kind that the head's paper uses.

        Raises InputError if the output type has no such loss.
        """
        super().__init__(sizes, weight=weight)
        self.head = make_plain_head(HeadContext(sizes, output_type)) if head is None else head
        self.output_type = self.head.output_type_for(output_type)
        if loss:
            self.output_type = with_loss(self.output_type, loss)

    @classmethod
    def from_context(cls, context: ObjectiveContext) -> Self:
        """The plain head of a run's task; raises InputError without a task."""
        output_type = require(context.output_type, "output_type", cls.name)
        return cls(context.sizes, output_type=output_type)

    def pretrained_layers(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, with their names in its file of heads."""
        return self.head.pretrained_layers()

    def outputs(self, encoded: EncoderOutput, batch: Batch) -> Tensor:
        """Outputs of the head: (B, outputs), (B, C) for C choices per sample, or (B, R) for regions.

        Raises InputError if the head returns another number of outputs.
        """
        outputs: Tensor = self.head(encoded, batch)
        rows = len(batch) if self.head.separates_images else batch.rows
        expected = rows * self.output_type.head_width
        if self.output_type.head_input == "first" and outputs.numel() != expected:
            found = f"{type(self.head).__name__} returns {tuple(outputs.shape)}"
            raise InputError(f"{found}, expected {expected} outputs for {rows} rows")
        return outputs.float().view(len(batch), -1)

    compute_logits = outputs

    def count_logits(self, batch: Batch) -> int:
        """Samples, or rows if each choice is classified right or wrong, with or without a label."""
        has_choices = isinstance(self.output_type, MultipleChoice)
        return batch.rows if has_choices and self.output_type.head_width > 1 else len(batch)

    def comparison_logits(self, logits: Tensor) -> Tensor:
        """One softmax per sample (B, K), or per row (N, 2) if each choice is classified right or wrong."""
        width = self.output_type.head_width
        return logits.view(-1, width) if width > 1 else logits

    def count(self, batch: Batch) -> dict[str, int]:
        """Number of items the head's paper averages the loss over, of samples with a label."""
        labels = batch.labels.get("label")
        if labels is None:
            return {"task": 0}
        labelled = labels[_has_label(labels)]
        return {"task": self.head.count_loss_items(labelled, batch.choices, self.output_type)}

    def forward(self, encoded: EncoderOutput, batch: Batch) -> dict[str, Tensor]:
        """The task's loss, summed over labelled samples to (), as `task`; empty if no sample is labelled."""
        labels = batch.labels.get("label")
        if labels is None:
            return {}
        labelled = batch.flat_indices(lambda one: _has_label(one.labels["label"]))
        if not len(labelled):
            return {}
        outputs = self.cached_logits(encoded, batch).index_select(0, labelled)
        return {"task": self.output_type.loss(outputs, labels.index_select(0, labelled))}


def _has_label(labels: Tensor) -> Tensor:
    flat = labels.flatten(1) if labels.ndim > 1 else labels.unsqueeze(1)
    if labels.is_floating_point():
        # NaN marks a missing label: a VQA question without listed answers has IGNORE everywhere, and is labelled.
        return ~flat.isnan().any(1)
    return (flat != IGNORE).any(1)
