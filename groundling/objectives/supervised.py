"""Fine-tuning on a task's labels."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from groundling.batch import Batch, Encoded, Sizes
from groundling.forms import Form
from groundling.models.task_heads import Reading, TaskHead, plain_head
from groundling.objectives import Objective


class Supervised(Objective):
    """A task's own loss on what a head answers: the plain head of its form, or a paper's (`groundling/joins/`)."""

    name = "supervised"
    needs = ("labels.label",)

    def __init__(
        self,
        sizes: Sizes,
        *,
        form: Form,
        head: TaskHead | None = None,
        weight: float = 1.0,
        warmup: int = 0,
    ) -> None:
        """`form` gives the loss, in the kind that the head's paper trains it with."""
        super().__init__(sizes, weight=weight, warmup=warmup)
        self.head = plain_head(Reading(sizes, form)) if head is None else head
        self.form = self.head.trained_on(form)

    def starts(self) -> list[tuple[nn.Module, str]]:
        """Layers that an earlier run may have trained, and what its file of heads calls them."""
        return self.head.starts()

    def outputs(self, encoded: Encoded, batch: Batch) -> Tensor:
        """Outputs of the head: (B, outputs), (B, C) where every sample has C choices, (B, R) where it reads regions."""
        outputs: Tensor = self.head(encoded, batch)
        return outputs.float().view(len(batch), -1)

    def read(self, encoded: Encoded, batch: Batch) -> Tensor:
        """The task's logits (B, outputs), as `outputs`."""
        return self.outputs(encoded, batch)

    def distributions(self, answer: Tensor) -> Tensor:
        """One softmax of every sample (B, K), or of every row where a choice is right or wrong by itself (N, 2)."""
        width = self.form.outputs
        return answer.view(-1, width) if width > 1 else answer

    def count(self, batch: Batch) -> dict[str, int]:
        """Samples."""
        return {"task": len(batch)}

    def forward(self, encoded: Encoded, batch: Batch) -> dict[str, Tensor]:
        """The form's loss, summed over samples to (), as `task`."""
        outputs = self.answer(encoded, batch)
        return {"task": self.form.loss(outputs, torch.as_tensor(batch.labels["label"]))}
