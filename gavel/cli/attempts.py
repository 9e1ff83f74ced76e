"""Reads a file of attempts for a command, and tells on stderr how it was read."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.named_run import find_run
from gavel.cli.terminal import plain
from gavel.scenarios.formats.completions import Columns
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.truth import truth_of, with_truth_of_rows


def file_named(named: Path) -> Path:
    """The path itself, or the directory of the run that is so called where there is no such file (`project/name`)."""
    return named if named.exists() or str(named) == "-" else find_run(str(named)) or named


def read_attempts(
    file: Path | Sequence[Path], by: str | None = None, columns: Columns | None = None
) -> list[TrajectoryGroup]:
    """The groups of a file or a run, or of several (see `read_file`), with the truth that the columns of their rows
    hold; how they were read, and what cannot be compared, goes to stderr.

    Raises `JudgeError` for a group whose rows have different truths.
    """
    paths = [file_named(each) for each in ([file] if isinstance(file, Path) else file)]
    for path in paths:
        if path.suffix == ".py":
            raise GavelError(f"{path} is a program, not trajectories.", f"To play its scenario: gavel check {path}")
    reading = read_file(paths, by, columns)
    console = Console(stderr=True)
    console.print(plain(reading.summary), soft_wrap=True)
    for note in reading.notes:
        console.print(plain(f"note: {note}", "yellow"), soft_wrap=True)
    groups = [with_truth_of_rows(group) for group in reading.groups]
    truths = Counter(name for group in groups for name in truth_of(group).dump())
    if truths:
        told = ", ".join(f"{name} of {counted(count, 'group')}" for name, count in sorted(truths.items()))
        console.print(plain(f"the judge is told: {told}"), soft_wrap=True)
    return groups
