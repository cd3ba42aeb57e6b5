"""What a model that is looked at says to a text and an image: its answer, or how well the two belong together."""

from __future__ import annotations

from pathlib import Path

import torch

from groundling.core.batch import Example, Sample, collate
from groundling.core.forms import Choose, Pick, Regress
from groundling.models.saved_heads import load_head
from groundling.objectives.sentence_image import SentenceImage
from groundling.prediction import Candidate, Fitted
from groundling.prediction.answers import Wording
from groundling.prediction.sight import Seen
from groundling.studies.attention.outcomes import Match
from groundling.studies.attention.page.views import Answer, Boxes
from groundling.training.evaluation import evaluate
from groundling.vision_language.single_stream import SingleStream

SHOWN = 3
"""Of the most likely answers."""
MATCH = "Image and text belong together"


def answer_of(fitted: Fitted, example: Example, seen: Seen, boxes: Boxes) -> Answer:
    """What a fine-tuned model answers, asked as `groundling predict` asks it; the example has all of its choices.

    `boxes` are those that the page shows, by which it calls a region that is picked.
    """
    form = fitted.form
    if isinstance(form, Choose) and not example.choices:
        return Answer("No answer: this model chooses among texts, and none are given")
    if form.reads == "phrase" and not example.tags:
        return Answer("No answer: this model looks for a phrase of the text, and none is named")
    samples = fitted.samples([example], seen)
    scores = evaluate(fitted.student, fitted.objective, fitted.form_alone, samples)
    (prediction,) = Wording(form, SHOWN).predictions(scores, [example])

    def told(one: Candidate) -> str:
        if isinstance(form, Pick):
            return f"box {boxes.title(int(one.answer))}"
        if isinstance(form, Regress):
            return f"{one.answer:.4g}"
        return str(one.answer) if one.choice is None else one.choice

    return Answer("Answer", [(told(one), one.probability) for one in prediction.best])


def match_of(student: SingleStream, folder: str, sample: Sample, device: str) -> Answer:
    """How likely text and image belong together by the head that `pretrain` left beside the model, if it left one."""
    if sample.regions is None:
        return Answer("No answer: this model was trained on no task, and sees no image here")
    head = SentenceImage(student.sizes)
    if not all(load_head(Path(folder), part, name) for name, part in head.saved().items()):
        return Answer(
            "No answer: this model was trained on no task, and has no head that tells whether image and text match"
        )
    batch = collate([sample]).to(device)
    with torch.no_grad():
        log_odds = Match(head.to(device).eval()).explained(student(batch), batch)
    return Answer(MATCH, [("yes", float(log_odds.sigmoid()))])
