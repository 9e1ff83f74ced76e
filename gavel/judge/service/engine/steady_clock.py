"""The time by which old judgements are deleted: a clock that is set ahead by mistake deletes nothing.

clock.now() - 30 * DAY          what is older is 30 days old also by the time that has passed since the start
"""

import logging
import time

_LOG = logging.getLogger(__name__)
_TELLING_SECONDS = 3600.0


class SteadyClock:
    """Unix seconds that never run ahead of the seconds that have passed since it was made."""

    def __init__(self) -> None:
        self._started = time.time() - _passed()

    def now(self) -> float:
        """The earlier of the system's time and the time by the seconds that have passed."""
        system, passed = time.time(), self._started + _passed()
        if system - passed > _TELLING_SECONDS:
            _LOG.warning(
                "the system's clock was set ahead by %.1f h since the start; judgements are deleted by the time that "
                "has passed. Start the service again if the clock is right now.",
                (system - passed) / 3600,
            )
        return min(system, passed)


def _passed() -> float:
    """Seconds since the machine started, those of its sleep included where the system tells them."""
    clock = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if clock is None else time.clock_gettime(clock)
