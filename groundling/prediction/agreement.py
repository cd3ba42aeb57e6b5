"""Whether the predictions in a run's file are what the outputs beside them say; edited or mixed files are told so."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from groundling.core.errors import InputError
from groundling.core.forms import Answer, Choose, Form, Regress

ROUNDED = 1.1e-5
"""By so much two outputs may differ that were written with five digits and were equal."""


class Agreement:
    """Checks one file, line by line, and then as a whole."""

    def __init__(self, form: Form | None, classes: bool = True) -> None:
        """`form`: of the task's answers; where nobody knows it, None, and `classes` says whether they are classes."""
        self.form = form
        self.classes = classes if form is None else not isinstance(form, Regress)
        self.predicted: set[int] = set()
        self.outdone: dict[int, str] = {}
        """Of classes that were not predicted although their outputs are higher: the first line, in words."""

    def check(self, where: str, row: Mapping[str, Any], prediction: float) -> None:
        """Raises InputError, which begins with `where`, for a prediction that is none or not its outputs'."""
        if self.classes and not (prediction >= 0 and float(prediction).is_integer()):
            raise InputError(
                f"{where}: 'prediction' is {prediction}, expected the number of a class"
            )
        outputs = row.get("outputs")
        if outputs is None:  # a file of others
            return
        try:
            values = np.array([-math.inf if one is None else one for one in outputs], float)
            likely = [int(place) for place, _ in row.get("likely", ())]
        except (TypeError, ValueError, OverflowError):
            raise InputError(f"{where}: expected numbers in 'outputs'") from None
        if values.ndim != 1 or not len(values) or np.isnan(values).any():
            raise InputError(f"{where}: expected a list of numbers in 'outputs'")
        if not self.classes:
            self._check_number(where, prediction, values)
        elif likely:
            if int(prediction) not in likely:
                raise InputError(f"{where}: 'prediction' {int(prediction)} is none of the 'likely'")
        elif len(values) > 1:
            self._check_class(where, int(prediction), values)

    def end(self) -> None:
        """Raises InputError for a class that is predicted in some lines, and in others not, where its output is best.

        One that is never predicted may be barred, as VQA's `<unk>` is.
        """
        for best, told in self.outdone.items():
            if best in self.predicted:
                raise InputError(told)

    def _check_number(self, where: str, prediction: float, values: np.ndarray) -> None:
        size = max(1.0, abs(prediction))
        if len(values) == 1 and not abs(values[0] - prediction) <= ROUNDED * size:
            raise InputError(
                f"{where}: 'prediction' is {prediction}, but its 'outputs' say {values[0]}"
            )

    def _check_class(self, where: str, prediction: int, values: np.ndarray) -> None:
        self.predicted.add(prediction)
        best = 0
        is_class = False
        for scores in self._readings(values):
            best = int(scores.argmax())
            if prediction >= len(scores):
                continue
            is_class = True
            if prediction == best or scores[prediction] >= scores[best] - ROUNDED:
                return
        told = f"{where}: 'prediction' is {prediction}, but its 'outputs' are highest at {best}"
        if not is_class or not (self.form is None or isinstance(self.form, Answer)):
            raise InputError(told)
        self.outdone.setdefault(best, told)

    def _readings(self, values: np.ndarray) -> list[np.ndarray]:
        """Scores of the classes; where each may have two, wrong and right (UNITER's on VCR), the right ones, too."""
        if isinstance(self.form, Choose):
            in_pairs = len(values) == 2 * len(self.form.labels)
            return [values[1::2] if in_pairs else values]
        if self.form is None and len(values) > 2 and len(values) % 2 == 0:
            return [values[1::2], values]
        return [values]
