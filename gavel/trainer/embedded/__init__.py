"""The embedded policies: small Qwen3-shaped agents that ship with Gavel, for use without a GPU or a download.

    TrainableModel(name="clerk", project="demo", base_model="embedded/returns-desk")
    TrainableModel(name="clerk", project="mine", base_model="tool-caller")

`embedded/…` were cloned from noisy demonstrations of one scenario each, so they know the format and the task, and often
act without looking first; `benchmarks/clone_policy.py` makes them again. The tool caller knows no job: it reads the
tools that are described, calls them with what it reads, and says what came of it. `benchmarks/tool_caller.py` makes it
again; the README.md beside its weights says how it was made, and what it cannot do.
"""

from pathlib import Path

EMBEDDED_POLICY = "embedded/returns-desk"
"""The default `base_model`."""
BOOKING_POLICY = "embedded/booking-desk"
TOOL_CALLER = "tool-caller"
"""For any scenario with tools."""

SCENARIOS = {EMBEDDED_POLICY: "returns_desk", BOOKING_POLICY: "booking_desk"}
"""The one scenario that each embedded policy knows."""
EMBEDDED = (*SCENARIOS, TOOL_CALLER)


def embedded_path(base_model: str) -> Path:
    """The directory of an embedded policy."""
    return Path(__file__).parent / SCENARIOS.get(base_model, "tool_caller")


EMBEDDED_PATH = embedded_path(EMBEDDED_POLICY)
