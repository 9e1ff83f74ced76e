"""Reads a file of attempts for a command, and tells on stderr how it was read."""

from pathlib import Path

from rich.console import Console

from gavel.cli.terminal import plain
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.readers.reading import read_file


def read_attempts(file: Path, by: str | None = None) -> list[TrajectoryGroup]:
    """The groups of `file` (see `read_file`); its format, its counts and what cannot be compared go to stderr."""
    reading = read_file(file, by)
    console = Console(stderr=True)
    console.print(plain(reading.summary), soft_wrap=True)
    for note in reading.notes:
        console.print(plain(f"note: {note}", "yellow"), soft_wrap=True)
    return reading.groups
