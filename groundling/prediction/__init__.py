"""Inference with a saved fine-tuned model, in a new process and without its training data.

`load` returns a `FineTunedModel`, which predicts answers (`predict`), scores labelled data (`evaluate`) and returns
hidden states of texts and images (`encode`).
"""

from groundling.prediction.fine_tuned import FineTunedModel, load
from groundling.prediction.predictions import Candidate, Prediction

__all__ = ["Candidate", "FineTunedModel", "Prediction", "load"]
