"""The embedded policy: a tiny Qwen3-shaped agent that ships with Gavel, for use without a GPU or a download.

    TrainableModel(name="clerk", project="demo", base_model="embedded/returns-desk")

It was cloned from noisy demonstrations of the returns desk (`python -m gavel.trainer.embedded.cloning` makes it again),
so it knows the format and the task, and often acts without looking up the order first.
"""

from pathlib import Path

EMBEDDED_POLICY = "embedded/returns-desk"
"""Its name as a `base_model`."""

EMBEDDED_PATH = Path(__file__).parent / "returns_desk"
