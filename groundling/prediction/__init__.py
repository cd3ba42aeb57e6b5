"""A fine-tuned model's folder, asked again: in another process, about other data, without anything it learned from.

`load` gives a `Fitted`, which answers (`predict`) and tells what it makes of texts and images (`encode`).
"""

from groundling.prediction.answers import Candidate, Prediction
from groundling.prediction.fitted import Fitted, load

__all__ = ["Candidate", "Fitted", "Prediction", "load"]
