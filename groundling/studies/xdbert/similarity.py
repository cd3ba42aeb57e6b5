"""How alike two encoders' word embeddings are, as a command (XDBERT, Table 2)."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from groundling.runs.run import Run
from groundling.studies.xdbert.commands import SimilarityConfig, check_similarity
from groundling.studies.xdbert.published import PWCCA
from groundling.studies.xdbert.word_similarity import similarity as compare_models


def similarity(config: SimilarityConfig, out: str | Path) -> dict[str, Any]:
    """Similarity of two models' word embeddings beside the published values; also in `out/result.json`.

    Raises InputError if a model is missing, is none, or shares too few words with the other.
    """
    check_similarity(config, out)
    run = Run(out, "similarity", asdict(config), {})
    result = compare_models(config.a, config.b, config.top, config.draws, config.seed)
    result["published_pwcca"] = {" / ".join(pair): value for pair, value in PWCCA.items()}
    return run.finish(result)
