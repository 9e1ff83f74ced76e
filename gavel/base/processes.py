"""Names of processes, by which others on the same machine detect that one has died."""

import os
import secrets
import socket
from functools import cache
from pathlib import Path


def holder_name() -> str:
    """A new name for this process as an owner: its machine, its process id, and a random part."""
    return f"{_machine()} {os.getpid()} {secrets.token_hex(4)}"


def is_dead(holder: str) -> bool:
    """Whether the process of this name ran on this machine and has ended."""
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


@cache
def _machine() -> str:
    """A machine name that is unique per machine and per container with its own process ids."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()
