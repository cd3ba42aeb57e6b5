"""CLIP-KD's interactive contrast: the student's texts among the teacher's images (Yang et al. 2024)."""

from __future__ import annotations

from groundling.studies.bench.methods import CAPTIONS, GRID, IMAGES, BenchMethod, Stage

METHOD = BenchMethod(
    name="interactive_contrast",
    paper="CLIP-KD, interactive contrastive learning (Yang et al. 2024): its half of the text tower",
    data=IMAGES,
    stages=(Stage("mlm+interactive_contrast", (CAPTIONS,)),),
    weight="interactive_weight",
    grid=GRID,
)
