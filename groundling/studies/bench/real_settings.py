"""Settings of `bench --real`: an encoder, captions and images of one's own, and published evaluation sets."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any

from annotated_types import Ge, Gt

from groundling.core.errors import InputError
from groundling.runs.outputs import Inputs
from groundling.settings.fields import (
    InputKind,
    Settings,
    require_settings,
    setting_values,
    settings,
    settings_of,
)
from groundling.settings.input_settings import CaptionSettings

REAL_VERSION = 3
"""Increases with every change after which results of two benches on real encoders are not comparable."""
FILL_MASK = "fill-mask"
"""The mode of `probe-facts` that needs a masked-LM head."""


@settings
class RealSettings(Settings):
    """With --real: your encoder, teacher, captions and images, and the sets on which it is read."""

    real: bool = False
    """Compare the methods on --student, with your own captions and images, instead of in rendered worlds."""
    student: Annotated[str, InputKind.MODEL] = ""
    """--real: text encoder from which every method starts, hub id or folder."""
    teacher: Annotated[str, InputKind.MODEL] = ""
    """--real: CLIP-like teacher: hub id or folder of Hugging Face."""
    captions: Annotated[str, InputKind.PATH] = ""
    """--real: captions, in any file or folder that `train-clip` reads."""
    caption_settings: CaptionSettings = field(default_factory=CaptionSettings)
    images: Annotated[str, InputKind.FOLDER] = ""
    """--real: folder of the captions' images, searched recursively."""
    skip_missing: bool = False
    """--real: skip captions whose image is missing, and count them; otherwise a missing image is an \
error."""
    text: Annotated[str, InputKind.FILE] = ""
    """--real: plain text that methods read beside captions, one text per line; empty: the captions \
without their images."""
    facts: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """--real: files of visual facts that `probe-facts` reads: Memory Colors, CoDa, ViComTe, \
ImageNetVC, VEC, spatial commonsense, feature norms."""
    modes: tuple[str, ...] = (FILL_MASK, "linear")
    """--real: how facts are read, as in `probe-facts --modes`; fill-mask needs an encoder with a \
masked-LM head."""
    words: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """--real: files of rated word pairs that `probe-words` reads: MEN, SimLex-999, WordSim-353, \
SimVerb-3500, RG-65."""
    retention_pairs: Annotated[str, InputKind.PATH] = ""
    """--real, price: text pairs with similarities, as in `adapt --retention-pairs`: the folder of \
STS-B or GLUE, or a tsv."""
    minimal_pairs: Annotated[tuple[str, ...], InputKind.PATH] = ()
    """--real, price: minimal pairs that `pairs` reads, such as BLiMP; needs an encoder with a \
masked-LM head."""
    pair_limit: Annotated[int, Ge(0)] = 0
    """--real: maximum number of minimal pairs per paradigm, evenly spaced; 0: all."""
    tasks: Annotated[tuple[str, ...], InputKind.OBJECT] = ()
    """--real, price: tasks of GLUE to fine-tune on, e.g. glue/rte glue/cola."""
    data: Annotated[str, InputKind.DATA] = ""
    """--real: folder of the tasks' official files."""
    task_seeds: Annotated[int, Ge(1)] = 3
    """--real: fine-tuning seeds of each encoder and task."""
    limit_train: Annotated[int, Ge(0)] = 0
    """--real: maximum number of training examples per task, evenly spaced; 0: all."""
    steps: Annotated[int, Ge(1)] = 1000
    """--real: steps of every method and control, over all of its stages together."""
    batch: Annotated[int, Ge(2)] = 64
    """--real: samples per step (64: MCSE, ViComTe)."""
    lr: Annotated[float, Gt(0)] = 5e-5
    """--real: peak learning rate (5e-5: CLIP-BERT, ViComTe; XDBERT: 1e-4; MCSE: 3e-5)."""
    max_length: Annotated[int, Ge(8)] = 64
    """--real: maximum tokens of a text that methods read."""
    cpu: bool = False
    """--real: run on the CPU even if an accelerator is available."""

    def identity(self) -> dict[str, Any]:
        """Everything that decides how methods are trained; evaluation sets may be added later."""
        read = (
            *("facts", "modes", "words", "retention_pairs", "minimal_pairs", "pair_limit"),
            *("tasks", "data", "task_seeds", "limit_train", "cpu"),
        )
        kept = {name: value for name, value in setting_values(self).items() if name not in read}
        return kept | {"version": REAL_VERSION}

    def inputs(self) -> Inputs:
        """Models and files by name, whose hashes identify the bench."""
        names = ("student", "teacher", "captions", "images", "text")
        return {name: vars(self)[name] for name in names if vars(self)[name]}


def check_real(settings: RealSettings) -> None:
    """Raises InputError for settings that do not fit together: after hours nothing could be read, or too little."""
    if not settings.real:
        for one in settings_of(settings):
            if one.value != one.default:
                raise InputError(f"{one.name} needs real")
        return
    require_settings(settings, "real", "student")
    needs = {
        "text, or captions and images": settings.text or (settings.captions and settings.images),
        "facts or words": settings.facts or settings.words,
        "modes": settings.modes or not settings.facts,
        "data": settings.data or not settings.tasks,
    }
    lacking = [name for name, value in needs.items() if not value]
    if lacking:
        raise InputError(f"real needs {lacking[0]}")
