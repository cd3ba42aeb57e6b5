"""CLIP-KD's two losses of its text tower: feature mimicry and interactive contrast (Yang et al. 2024)."""

from __future__ import annotations

from groundling.studies.bench.methods import CAPTIONS, GRID, IMAGES, TEACHER, BenchMethod, Stage

FEATURE_MIMICRY = BenchMethod(
    name="feature_mimicry",
    paper="CLIP-KD, feature mimicry (Yang et al. 2024): its half of the text tower",
    data=TEACHER,
    stages=(Stage("mlm+feature_mimicry", settings={"mimicry_target": "text"}),),
    weight="mimicry_weight",
    # The squared difference is a mean over dimensions: the scripts' 2000 at 512 are 250 at the bench's 64.
    grid=(20.0, 200.0, 2000.0),
)
INTERACTIVE_CONTRAST = BenchMethod(
    name="interactive_contrast",
    paper="CLIP-KD, interactive contrastive learning (Yang et al. 2024): its half of the text tower",
    data=IMAGES,
    stages=(Stage("mlm+interactive_contrast", (CAPTIONS,)),),
    weight="interactive_weight",
    grid=GRID,
)
