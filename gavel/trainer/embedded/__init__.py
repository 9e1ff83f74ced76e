"""The embedded policies: tiny Qwen3-shaped agents that ship with Gavel, for use without a GPU or a download.

    TrainableModel(name="clerk", project="demo", base_model="embedded/returns-desk")

Each was cloned from noisy demonstrations of one scenario, so it knows the format and the task, and often acts without
looking first. `benchmarks/clone_policy.py` makes it again.
"""

from pathlib import Path

EMBEDDED_POLICY = "embedded/returns-desk"
"""The default `base_model`."""
BOOKING_POLICY = "embedded/booking-desk"

SCENARIOS = {EMBEDDED_POLICY: "returns_desk", BOOKING_POLICY: "booking_desk"}
"""The one scenario that each embedded policy knows."""


def embedded_path(base_model: str) -> Path:
    """The directory of an embedded policy."""
    return Path(__file__).parent / SCENARIOS[base_model]


EMBEDDED_PATH = embedded_path(EMBEDDED_POLICY)
