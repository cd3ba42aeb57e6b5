"""CLIP-TD's two terms of text, on captions alone and with words that the images select (Wang et al. 2022)."""

from __future__ import annotations

from groundling.studies.bench.methods import CAPTIONS, IMAGES, TEACHER, BenchMethod, Stage

WEIGHTS = (0.005, 0.05, 0.5)
"""The paper's 0.05 in the middle."""
TD_TEXT = BenchMethod(
    name="td_text",
    paper="CLIP-TD, the term of the text (Wang et al. 2022, Eq. 4)",
    data=TEACHER,
    stages=(Stage("mlm+td_text"),),
    weight="td_weight",
    grid=WEIGHTS,
)
TD_WORDS = BenchMethod(
    name="td_words",
    paper="CLIP-TD, the terms of the text and of selected words (Wang et al. 2022, Eq. 4 and 7)",
    data=IMAGES,
    stages=(Stage("mlm+td_text+td_words", (CAPTIONS,)),),
    weight="td_weight",
    grid=WEIGHTS,
    reads_text_tower=True,
)
