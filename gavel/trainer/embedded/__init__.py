"""The embedded policy: a tiny Qwen3-shaped agent that ships with Gavel, for use without a GPU or a download.

    TrainableModel(name="clerk", project="demo", base_model="embedded/returns-desk")

It was cloned from noisy demonstrations of the returns desk, so it knows the format and the task, and often acts without
looking up the order first. `python -m gavel.trainer.embedded.behavior_cloning` makes it again.
"""

from pathlib import Path

EMBEDDED_POLICY = "embedded/returns-desk"
"""Its name as a `base_model`."""

EMBEDDED_PATH = Path(__file__).parent / "returns_desk"
