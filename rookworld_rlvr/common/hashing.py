"""Pseudo-random draws that depend only on a text and a seed."""

from __future__ import annotations

import hashlib


def draw(text: str, salt: bytes = b"") -> float:
    """A number in [0, 1) computed from a text: the same in every run and on every machine."""
    digest = hashlib.blake2b(text.encode(), digest_size=4, salt=salt).digest()
    return int.from_bytes(digest, "big") / (1 << 32)
