"""Which process gets the reply to a question, where several share a cassette.

A process claims a question before it asks a model, and releases it afterwards; the others wait. It renews its claims
every `BEAT` seconds from a thread. A claim is void when its process is dead, which is seen at once on the same machine;
elsewhere, when it was not renewed for `EXPIRY` seconds by the wall clock, or for as long as another process watched it.
"""

import os
import secrets
import socket
import time
from functools import cache
from pathlib import Path

from gavel.llm.cassette_storage import Claim

BEAT = 2.0
EXPIRY = 10.0
PATIENCE = 1800.0
"""Seconds after which a waiting process asks for itself, though the claim is renewed."""


def holder_name() -> str:
    """A new name for the claims of this process: its machine, its id, and a random part."""
    return f"{_machine()} {os.getpid()} {secrets.token_hex(4)}"


def is_dead(holder: str) -> bool:
    """Whether the process of this name ran on this machine, and runs no more."""
    machine, pid, _ = holder.rsplit(" ", 2)
    if machine != _machine():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


class ClaimWatch:
    """Watches the claim on one question."""

    def __init__(self) -> None:
        self._began = self._since = time.monotonic()
        self._seen: tuple[str, int] | None = None

    def is_void(self, claim: Claim) -> bool:
        """Whether the process of the claim is dead, going by what was seen so far."""
        seen = claim.holder, claim.beats
        if seen != self._seen:
            self._seen, self._since = seen, time.monotonic()
        silent = time.monotonic() - self._since
        return max(silent, claim.age) > EXPIRY or is_dead(claim.holder)

    @property
    def is_over(self) -> bool:
        """Whether the wait has lasted too long."""
        return time.monotonic() - self._began > PATIENCE


@cache
def _machine() -> str:
    """A name that two machines, or two containers with processes of their own, do not share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()
