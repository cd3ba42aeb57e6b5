"""The other verb: predictions and metrics of a model on a task's examples."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather_object
from torch import nn

from groundling.batch import IGNORE, collate
from groundling.data.samples import Samples
from groundling.objectives.supervised import Supervised
from groundling.runs import disk_errors
from groundling.tasks import Task

MANY = 100
"""More outputs than this are not kept: VQA's 3,129 for its 214,354 questions would fill 20 GB."""


@dataclass(frozen=True)
class Scores:
    """A model's answers on one split, by example."""

    ids: list[str]
    outputs: np.ndarray  # (N, outputs), or (N, 1), the best one, where there are more than `MANY`
    predictions: np.ndarray  # (N,)
    labels: np.ndarray | None  # (N,), or (N, K, 2) of soft targets
    metrics: dict[str, float]
    officials: list[str] = field(default_factory=list)
    """`Example.official` of each; empty: not known."""

    def write(self, path: Path) -> None:
        """One JSON line per example: id, prediction, label, outputs, and official where it is known."""
        with disk_errors(path), path.open("w", encoding="utf-8") as file:
            for i, name in enumerate(self.ids):
                label = None if self.labels is None else self.labels[i].tolist()
                line = {
                    "id": name,
                    "prediction": self.predictions[i].item(),
                    "label": label,
                    "outputs": [round(float(x), 5) for x in self.outputs[i]],
                }
                if self.officials and self.officials[i]:
                    line["official"] = self.officials[i]
                file.write(json.dumps(line) + "\n")


@torch.no_grad()
def evaluate(
    model: nn.Module, objective: Supervised, task: Task, samples: Samples, batch: int = 64
) -> Scores:
    """Run `model` over all samples in eval mode, on every process's share of them; metrics if they have labels."""
    state = PartialState()
    device = next(model.parameters()).device
    training = model.training
    model.eval(), objective.eval()
    order = np.argsort(samples.lengths, kind="stable")  # equal lengths together need little padding
    mine: list[tuple[int, list[float], float, Any]] = []
    for start in range(state.process_index * batch, len(order), batch * state.num_processes):
        chosen = [int(i) for i in order[start : start + batch]]
        found = collate(samples.get(chosen, ())).to(device)
        outputs = objective.outputs(model(found), found).cpu().numpy()
        predicted = objective.form.predict(outputs)
        if outputs.shape[1] > MANY and objective.form.reads == "first":
            outputs = np.take_along_axis(outputs, predicted[:, None], 1)
        labels = found.labels["label"].tolist() if "label" in found.labels else [None] * len(chosen)
        mine.extend(zip(chosen, outputs.tolist(), predicted.tolist(), labels, strict=True))
    model.train(training), objective.train(training)
    every = sorted(gather_object(mine) if state.num_processes > 1 else mine)
    outputs_all = _even([o for _, o, _, _ in every], -np.inf)
    predictions = np.array([p for _, _, p, _ in every])
    labelled = bool(every) and every[0][3] is not None
    labels_all = _even([y for _, _, _, y in every], IGNORE) if labelled else None
    metrics = task.score(predictions, labels_all, outputs_all) if labels_all is not None else {}
    return Scores(
        [samples.ids[i] for i, *_ in every], outputs_all, predictions, labels_all, metrics
    )


def _even(rows: list[Any], fill: float) -> np.ndarray:
    """Rows as one array; those with one number per region differ in length from batch to batch."""
    if not rows or not isinstance(rows[0], list) or len({len(row) for row in rows}) == 1:
        return np.array(rows, float)
    width = max(map(len, rows))
    return np.array([[*row, *[fill] * (width - len(row))] for row in rows], float)
