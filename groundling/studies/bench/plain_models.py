"""Is what a method exports the handed-over encoder with other weights?"""

from __future__ import annotations

from pathlib import Path

from transformers import AutoConfig, AutoModel, AutoTokenizer

NOT_COMPARED = {"auto_map", "architectures", "dtype", "transformers_version", "_name_or_path"}
"""Settings of a model's configuration that do not change its states, or are compared apart."""


def plain_faults(model: Path, encoder: Path) -> list[str]:
    """Why an exported model is no plain encoder like the handed-over one; empty if it is."""
    faults: list[str] = []
    own, handed = (AutoTokenizer.from_pretrained(one) for one in (model, encoder))
    if own.get_vocab() != handed.get_vocab():
        faults.append("another vocabulary")
    elif own.backend_tokenizer.to_str() != handed.backend_tokenizer.to_str():
        faults.append("another tokenizer")
    changed, config = (AutoConfig.from_pretrained(one).to_dict() for one in (model, encoder))
    if changed.get("auto_map"):
        faults.append("code of its own")
    names = sorted(
        name for name in {*changed, *config} - NOT_COMPARED if changed.get(name) != config.get(name)
    )
    if names:
        faults.append(f"another configuration ({', '.join(names)})")
    more = parameters_of(model) - parameters_of(encoder)
    if more > 0:
        faults.append(f"{more:,} more parameters")
    return faults


def parameters_of(model: Path) -> int:
    """Number of parameters of an encoder, as `AutoModel` loads it."""
    return sum(one.numel() for one in AutoModel.from_pretrained(model).parameters())
