"""`groundling data shift`: VCR's files without the text's shortcuts: SM, EM and IM, with overlap statistics."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from groundling.command import Command
from groundling.core.documented import documented
from groundling.core.errors import InputError
from groundling.settings.fields import need


@documented
@dataclass(frozen=True)
class ShiftConfig:
    """How VCR's choices are edited or its items chosen, so that shortcuts of the text no longer help."""

    data: str = ""
    """Folder with VCR's official files, or one that this command wrote."""
    split: str = "val"
    """Which labelled split."""
    kind: Literal["none", "sm", "singular", "plural", "advtop", "keeptop", "em", "im"] = "none"
    """none: only measure; sm: pronouns for shared tags, in singular and in plural questions; advtop, keeptop: [MASK] \
where an attack model loses most, or everywhere else; em: synonyms for shared words; im: without what texts tell."""
    legacy: bool = False
    """plural: look for a group in sorted order only, as the released code does."""
    attack: str = ""
    """advtop, keeptop: `seed-N/model` of `finetune --task vcr/answer --save-model` without regions."""
    attack_rationale: str = ""
    """The same of `vcr/rationale`; empty: rationales stay as they are."""
    losses: str = ""
    """advtop, keeptop: instead of a model, a file of losses, such as the `losses.jsonl` of an earlier run."""
    keep: int = 1
    """keeptop: positions of a choice that are not masked (the paper: 1, 3, 5)."""
    max_length: int = 128
    """advtop, keeptop: pieces per text for the attack model; longer ones are cut and counted."""
    wordnet: str = ""
    """Folder of WordNet 3.0 or 3.1; empty: where Debian or NLTK put it (em), or none: words are not lemmatised."""
    least: int = 10
    """em: replace what so many items share with question or image, or more."""
    longest: int = 3
    """em: words of the longest n-gram."""
    predictions: str = ""
    """im: `seed-N/predictions_val.jsonl` of `finetune --task vcr/answer` without regions."""
    confident: float = 0.9
    """im: probability from which a right answer tells that the text is enough."""
    cpu: bool = False
    """Stay on the CPU even where there is an accelerator."""


READ_BY = {
    "legacy": ("sm", "plural"),
    "attack": ("advtop", "keeptop"),
    "attack_rationale": ("advtop", "keeptop"),
    "losses": ("advtop", "keeptop"),
    "predictions": ("im",),
}
"""Settings that only some kinds read."""


def check(config: ShiftConfig, out: str | Path) -> None:
    """Raises InputError for a setting that the kind does not read, or lacks."""
    need(config, "data shift", "data")
    for name, kinds in READ_BY.items():
        if config.__dict__[name] and config.kind not in kinds:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(
                f"data shift: --kind {config.kind} does not read {flag}, only {' and '.join(kinds)}"
            )
    if config.kind == "im":
        need(config, "data shift --kind im", "predictions")
    has_attack = bool(config.attack or config.attack_rationale)
    if config.kind in ("advtop", "keeptop") and has_attack == bool(config.losses):
        raise InputError(
            f"data shift --kind {config.kind} needs --attack FOLDER or --losses FILE, one of them"
        )
    if config.kind == "keeptop" and config.keep < 1:
        raise InputError(f"data shift: --keep {config.keep}, expected at least 1")


COMMAND = Command(
    "data shift",
    "VCR's files without the text's shortcuts: SM, EM and IM, with overlap statistics",
    "groundling.studies.clip_td.shift:shift",
    {"_own": ShiftConfig()},
    rules="groundling.studies.clip_td.commands.data_shift:check",
)
