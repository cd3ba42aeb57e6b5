"""LexiContrastive Grounding with an image encoder alone, as in its paper: no space that is shared with texts."""

from __future__ import annotations

from groundling.studies.bench.methods import CAPTIONS, GRID, IMAGES, BenchMethod, Stage

METHOD = BenchMethod(
    name="lexi_contrastive_image",
    paper="LexiContrastive Grounding (Zhuang et al. 2024) with the teacher's image tower alone",
    data=IMAGES,
    stages=(
        # Before its projection a CLIP's tower is a plain image encoder, if one that learned from captions.
        Stage("mlm+lexi_contrastive", (CAPTIONS,), settings={"teacher_space": "pre_projection"}),
    ),
    weight="lcg_weight",
    grid=GRID,
)
