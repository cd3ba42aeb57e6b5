"""Random choices that depend on a key alone, never on what was drawn before, where, or by which process."""

import hashlib

import numpy as np

Key = str | int
"""A part of a key; 1 and "1" are different parts."""

SEPARATOR = "\x1f"
"""Between a key's parts: the control character for this purpose, which occurs in no name."""


def _digest(key: tuple[Key, ...]) -> int:
    """128 bits of a key, the same on every machine."""
    text = SEPARATOR.join(f"{type(part).__name__}:{part}" for part in key)
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return int.from_bytes(digest, "little")


def generator(*key: Key) -> np.random.Generator:
    """A generator that is the same for the same key, e.g. `generator(seed, epoch, sample.id, "masked_lm")`."""
    return np.random.Generator(np.random.Philox(key=_digest(key)))


def derive_seed(*key: Key) -> int:
    """A 63-bit integer seed for `torch.manual_seed`, the same for the same key."""
    return _digest(key) >> 65
