"""Time limits of the tests, which guard against hanging alone: no test passes or fails by the speed of its machine."""

HANG_SECONDS = 600
"""After so long something hangs, even where every second of work takes ten."""

SLOW_TEST_SECONDS = HANG_SECONDS + 60
"""After so long a slow test fails by its name, later than its waits, which say more. Other tests: pyproject.toml."""
