"""CLIP-KD's feature mimicry: the student's text vector becomes the teacher's (Yang et al. 2024)."""

from __future__ import annotations

from groundling.studies.bench.methods import TEACHER, BenchMethod, Stage

METHOD = BenchMethod(
    name="feature_mimicry",
    paper="CLIP-KD, feature mimicry (Yang et al. 2024): its half of the text tower",
    data=TEACHER,
    stages=(Stage("mlm+feature_mimicry", settings={"mimicry_target": "text"}),),
    weight="mimicry_weight",
    # The squared difference is a mean over dimensions: the scripts' 2000 at 512 are 250 at the bench's 64.
    grid=(20.0, 200.0, 2000.0),
)
