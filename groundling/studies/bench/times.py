"""Estimated times of a bench's jobs."""

from groundling.studies.bench.arms import IMAGE_TOWER, TOWER

SECONDS_PER_STEP = {
    "default": 0.12,
    "mlm": 0.07,
    "contrastive": 0.09,
    "l1": 0.09,
    "xdbert": 0.18,
}
"""Seconds per step of 64 samples on one core, by arm; what a bench's own runs took replaces them."""
SECONDS = {
    "render": 60.0,
    "captions": 2.0,
    "teacher": 110.0,
    "teacher-redrawn": 40.0,
    "teacher-untrained": 10.0,
    "encoder": 100.0,
    "hash": 5.0,
    "arm": 12.0,
    TOWER: 5.0,
    IMAGE_TOWER: 20.0,
    "probe step": 0.015,
}
"""Seconds of other jobs on one core; `arm`: what an arm takes beside its steps."""
