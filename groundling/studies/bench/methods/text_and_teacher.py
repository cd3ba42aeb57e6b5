"""Methods that read text and the teacher's text tower: XDBERT, and two baselines of ours."""

from __future__ import annotations

from groundling.studies.bench.methods import GRID, TEACHER, BenchMethod, Stage

XDBERT = BenchMethod(
    name="xdbert",
    paper="XDBERT (Hsu et al. 2022)",
    data=TEACHER,
    # A block of 32 tokens holds about four lines, so a quarter of the samples is the same text.
    stages=(Stage("xdbert", settings={"text_layout": "blocks"}, batch=16),),
)
L1 = BenchMethod(
    name="l1",
    paper="masked LM and L1 to the teacher's features, a baseline of ours",
    data=TEACHER,
    stages=(Stage("l1"),),
    weight="distill_weight",
    grid=GRID,
)
CONTRASTIVE = BenchMethod(
    name="contrastive",
    paper="masked LM and InfoNCE to the teacher's features, a baseline of ours",
    data=TEACHER,
    stages=(Stage("contrastive"),),
    weight="distill_weight",
    grid=GRID,
)
