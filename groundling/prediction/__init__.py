"""A fine-tuned model's folder, asked again: in another process, about other data, without anything it learned from.

`load` gives a `FineTunedModel`, which answers (`predict`) and tells what it makes of texts and images (`encode`).
"""

from groundling.prediction.fine_tuned import FineTunedModel, load
from groundling.prediction.predictions import Candidate, Prediction

__all__ = ["Candidate", "FineTunedModel", "Prediction", "load"]
