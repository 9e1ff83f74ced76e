"""Seeds by name: the same place in a run always gets the same randomness."""

import hashlib
import json

_BITS = 62


def seed_of(*place: int | str) -> int:
    """A 62-bit seed for a place such as `(seed, "train", step, task id, member)`; far apart for different places."""
    digest = hashlib.sha256(json.dumps(place).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> (64 - _BITS)
