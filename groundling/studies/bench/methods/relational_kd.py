"""Relational distillation: distances and angles among texts follow the teacher's (Park et al. 2019)."""

from __future__ import annotations

from groundling.studies.bench.methods import GRID, TEACHER, BenchMethod, Stage

METHOD = BenchMethod(
    name="relational_kd",
    paper="relational knowledge distillation (Park et al. 2019), distance and angle",
    data=TEACHER,
    # As in the paper, student and teacher read the same input.
    stages=(Stage("mlm+relational_kd", settings={"relational_target": "text"}),),
    weight="relational_weight",
    grid=GRID,
)
