"""Weight merging: the encoder of another method, interpolated with the one that it comes from."""

from __future__ import annotations

from groundling.studies.bench.methods import MERGED_SHARE, TEACHER, BenchMethod, Stage

METHOD = BenchMethod(
    name="merging",
    paper="weights of contrastive's encoder and of the handed-over one, interpolated (WiSE-FT, Wortsman et al. 2022)",
    data=TEACHER,
    # The weight that the bench chose for contrastive itself.
    stages=(Stage("contrastive", settings={"distill_weight": 10.0}),),
    weight=MERGED_SHARE,
    grid=(0.25, 0.5, 0.75),
)
