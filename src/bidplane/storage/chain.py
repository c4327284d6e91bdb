"""
A hash chain: each link covers its own payload and, through the link before, everything
earlier. Changing, removing or reordering any link changes every hash after it.

What a chain cannot show by itself is that its newest links were cut off; keep a copy of
a head somewhere else to prove that.
"""

from __future__ import annotations

import hashlib

GENESIS = bytes(32)


def link(previous: bytes, sequence: int, at: int, payload: bytes) -> bytes:
    """Return the hash of a link. The numbers have a fixed width, so no two links read alike."""
    head = previous + sequence.to_bytes(8, "big") + at.to_bytes(8, "big")
    return hashlib.sha256(head + payload).digest()


def digest(payload: bytes) -> str:
    """Return the hash that stands in a link for a payload too large to repeat there."""
    return hashlib.sha256(payload).hexdigest()
