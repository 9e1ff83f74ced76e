"""How busy each process of one port is: numbers in memory that all of them share.

Each number is written by one process alone, so no lock is needed; a number that is read may be a moment old.
"""

import ctypes
from multiprocessing.context import BaseContext

_CLOSED = -1


class ProcessLoad:
    """The load of each process, by its place. Sent to a process when it is started."""

    def __init__(self, processes: int, context: BaseContext) -> None:
        self.processes = processes
        self._loads = context.RawArray(ctypes.c_int64, [_CLOSED] * processes)
        self._taken = context.RawArray(ctypes.c_int64, processes * processes)

    def of(self, place: int) -> int | None:
        """Requests that the process works on; None while it takes none from others."""
        load = self._loads[place]
        return None if load == _CLOSED else load

    def set(self, place: int, load: int) -> None:
        self._loads[place] = load

    def close(self, place: int) -> None:
        """The process takes nothing from others until it sets its load again."""
        self._loads[place] = _CLOSED

    def taken(self, place: int, sender: int) -> int:
        """Connections that the process at `place` has taken from the one at `sender` so far."""
        return self._taken[place * self.processes + sender]

    def take(self, place: int, sender: int) -> None:
        """Counts one more of them, in the process at `place`."""
        self._taken[place * self.processes + sender] += 1
