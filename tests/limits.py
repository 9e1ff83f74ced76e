"""Limits of the tests. Those of time guard against hanging alone: no test passes or fails by its machine's speed."""

import time
from collections.abc import Callable

HANG_SECONDS = 600
"""After so long something hangs, even where every second of work takes ten."""

SLOW_TEST_SECONDS = HANG_SECONDS + 60
"""After so long a slow test fails by its name, later than its waits, which say more. Other tests: pyproject.toml."""

MANY_TESTS = 1000
"""From so many on, a run loads at once what most of its tests would load for themselves."""


def wait_until(holds: Callable[[], object]) -> None:
    """Returns when it holds."""
    deadline = time.monotonic() + HANG_SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.05)
