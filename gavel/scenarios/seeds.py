"""Named seeds: the same position in a run always gets the same seed."""

import hashlib
import json


def seed_of(*name: int | str) -> int:
    """A 62-bit seed for a name such as `(seed, "train", step, task id, member)`; unrelated for different names."""
    digest = hashlib.sha256(json.dumps(name).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 2
