"""Time limits of the tests, which guard against hanging alone: no test passes or fails by the speed of its machine."""

HANG_SECONDS = 600
"""After so long something hangs, even where every second of work takes ten."""
