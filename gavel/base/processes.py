"""Names of processes, by which others on the same machine see that one runs no more."""

import os
import secrets
import socket
from functools import cache
from pathlib import Path


def holder_name() -> str:
    """A new name for what this process holds: its machine, its process id, and a random part."""
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


@cache
def _machine() -> str:
    """A name that two machines, or two containers with processes of their own, do not share."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return socket.gethostname()
