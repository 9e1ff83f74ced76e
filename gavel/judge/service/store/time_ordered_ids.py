"""Ids that sort by the time of their making: UUIDs of version 7 (RFC 9562), in ascending order within a process."""

import secrets
import threading
import time
from uuid import UUID

ID_PATTERN = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
_COUNTER_BITS = 32
_lock = threading.Lock()
_last = 0


def new_id() -> str:
    """A new id: 48 bits of Unix milliseconds, a counter that starts at random, and random bits."""
    global _last
    with _lock:
        milliseconds = time.time_ns() // 1_000_000
        # The counter's first bit starts at 0, so that it cannot overflow within a millisecond.
        fresh = milliseconds << _COUNTER_BITS | secrets.randbits(_COUNTER_BITS - 1)
        _last = max(_last + 1, fresh)
        stamp, bits = _last, secrets.randbits(42)
    milliseconds, counter = stamp >> _COUNTER_BITS, stamp & (2**_COUNTER_BITS - 1)
    high, low = counter >> 20, counter & (2**20 - 1)
    tail = low << 42 | bits
    return str(UUID(int=milliseconds << 80 | 0x7 << 76 | high << 64 | 0b10 << 62 | tail))


def first_id_at(seconds: float) -> str:
    """The lowest id of this time: those made earlier sort before it."""
    milliseconds = int(min(max(seconds * 1000, 0), 2**48 - 1))
    return str(UUID(int=milliseconds << 80 | 0x7 << 76 | 0b10 << 62))
