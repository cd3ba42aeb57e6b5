"""Whose attention is looked at, and on which regions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from groundling.settings.fields import Input, Settings, at_least, may_repeat


@dataclass(frozen=True)
class Attending(Settings):
    """Whose attention is looked at, and what it reads beside the texts."""

    model: Annotated[str, Input.MODEL] = ""
    """Model that reads text and regions, pre-trained or fine-tuned: a folder of `pretrain`, `finetune --save-model`, \
or of Hugging Face's VisualBERT, LXMERT or ViLT."""
    untrained: bool = False
    """Random weights in place of the model's own: a control, which must show nothing."""
    regions: Annotated[tuple[str, ...], Input.NAMED, may_repeat] = ()
    """Region stores of the images (`groundling regions`); the first that has an image counts."""
    images: Annotated[str, Input.FOLDER] = ""
    """VL-BERT end to end, ViLT: folder of the images, whose ids are paths there without the ending."""
    most_regions: Annotated[int, at_least(0)] = 0
    """Regions per image, best first; 0: all."""
    other_regions: bool = False
    """Accept regions made by another detector or backbone than the model was trained with."""
    tags: bool = True
    """VCR: words that name objects are tied to these objects' regions (turn off for a store of others: a grid's); a \
fine-tuned model reads them as it learned."""
    max_length: Annotated[int, at_least(0)] = 128
    """Pieces per text; longer ones are cut, and what is lost is counted."""
    at_once: Annotated[int, at_least(1)] = 32
    """Texts that are read at a time."""
    seed: Annotated[int, at_least(0)] = 0
    """Draws the controls, the halves of the data and the resamples of the intervals."""
    kind: str = ""
    """MODULE:NAME of a `Kind` of your own that loads the model."""
    join: str = ""
    """MODULE:NAME of a `Design` of your own that the model was made with."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""
