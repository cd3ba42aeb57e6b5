"""Random choices that depend on a key alone, never on what was drawn before, where, or by which process."""

import hashlib

import numpy as np

Key = str | int


def _digest(key: tuple[Key, ...]) -> int:
    text = "\x1f".join(f"{type(part).__name__}:{part}" for part in key)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "little")


def generator(*key: Key) -> np.random.Generator:
    """A generator that is the same for the same key, e.g. `generator(seed, epoch, sample.id, "masked_lm")`."""
    return np.random.Generator(np.random.Philox(key=_digest(key)))


def seed_of(*key: Key) -> int:
    """A 63-bit integer seed for `torch.manual_seed`, the same for the same key."""
    return _digest(key) >> 65
