"""What the model card of a run says: where a model comes from, and how it is loaded."""

from __future__ import annotations

import os
from pathlib import Path

MLM_HEAD_TEXTS = {
    "this run's": "`AutoModelForMaskedLM.from_pretrained` loads the masked-LM head that was trained in this run. "
    "`AutoModel`, which needs no head, reports its weights as UNEXPECTED.",
    "the student's": "`AutoModelForMaskedLM.from_pretrained` loads the student's own masked-LM head, "
    "which was not trained in this run. "
    "`AutoModel`, which needs no head, reports its weights as UNEXPECTED.",
    "none": "There is no masked-LM head: `AutoModelForMaskedLM` would initialise one randomly.",
}
"""Text of a model card on the masked-LM head, by the head's origin."""


def end_of_path(place: str) -> str:
    """The last two parts of a local path, without the folders of this machine; a hub id as it is."""
    if not Path(place).exists():
        return place
    path = Path(os.path.abspath(place))
    top = Path.home() if path.is_relative_to(Path.home()) else Path(path.anchor)
    return "/".join(path.relative_to(top).parts[-2:])


def library_of(folder: Path) -> str:
    """The library that loads a model folder."""
    if (folder / "modules.json").exists():
        return "sentence-transformers"
    return "transformers" if (folder / "config.json").exists() else "groundling"
