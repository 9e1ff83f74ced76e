"""A run on disk: its directory, its checkpoints, its metrics."""
