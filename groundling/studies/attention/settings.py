"""Whose attention is looked at, and on which regions."""

from __future__ import annotations

from dataclasses import dataclass

from groundling.core.documented import documented
from groundling.settings.fields import _list_lone_texts


@documented
@dataclass(frozen=True)
class Attending:
    """Whose attention is looked at, and what it reads beside the texts."""

    model: str = ""
    """Model that reads text and regions, pre-trained or fine-tuned: a folder of `pretrain`, `finetune --save-model`, \
or of Hugging Face's VisualBERT, LXMERT or ViLT."""
    untrained: bool = False
    """Random weights in place of the model's own: a control, which must show nothing."""
    regions: tuple[str, ...] = ()
    """Region stores of the images (`groundling regions`); the first that has an image counts."""
    images: str = ""
    """VL-BERT end to end, ViLT: folder of the images, whose ids are paths there without the ending."""
    most_regions: int = 0
    """Regions per image, best first; 0: all."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    tags: bool = True
    """VCR: words that name objects are tied to these objects' regions (turn off for a store of others: a grid's); a \
fine-tuned model reads them as it learned."""
    max_length: int = 128
    """Pieces per text; longer ones are cut, and what is lost is counted."""
    at_once: int = 32
    """Texts that are read at a time."""
    seed: int = 0
    """Draws the controls, the halves of the data and the resamples of the intervals."""
    kind: str = ""
    """MODULE:NAME of a `Kind` of your own that loads the model."""
    join: str = ""
    """MODULE:NAME of a `Design` of your own that the model was made with."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""

    def __post_init__(self) -> None:
        _list_lone_texts(self, "regions")
