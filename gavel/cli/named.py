"""Resolves a command's arguments: a scenario, a run here or at a backend, a file of attempts, a file to write."""

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from gavel.base.errors import GavelError
from gavel.base.text import counted
from gavel.cli.terminal import say
from gavel.scenarios.formats.fields import Columns
from gavel.scenarios.formats.reading import read_file
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.mixture import Mixture, read_weights, scenario_references
from gavel.scenarios.scenario import Scenario, ScenarioError, find_scenario
from gavel.scenarios.truth import truth_of, with_truth_of_rows
from gavel.trainer.runs.run_directory import runs_root

if TYPE_CHECKING:
    from gavel.trainer.backends.remote.client import RemoteBackend

own_scenarios: dict[str, Scenario] = {}
"""The scenario of the file that called `gavel.run`, by its name."""


def scenario_named(reference: str) -> Scenario:
    """The scenario of the calling file, a shipped one, or that of a file. Raises `ScenarioError`."""
    return own_scenarios.get(reference) or find_scenario(reference)


def scenarios_named(reference: str, weights: Mapping[str, float]) -> Scenario | Mixture:
    """The scenario, or for `a+b` the mixture of several with these weights. Raises `ScenarioError`."""
    named = [scenario_named(each.strip()) for each in scenario_references(reference)]
    if len(named) > 1:
        return Mixture(named, read_weights(weights))
    if weights:
        raise ScenarioError(
            f"{reference} is one scenario, and weights are for several.",
            "Leave --weights out, or name several scenarios with + between them.",
        )
    return named[0]


def names_in(text: str) -> list[str]:
    """The names of a list with commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def find_run(named: str) -> Path | None:
    """The run's directory; None if there is none. `named`: a directory, or `project/name`."""
    return next((path for path in (Path(named), runs_root() / named) if (path / "model.json").is_file()), None)


def file_named(named: Path) -> Path:
    """The path itself, or the directory of the run that is so called where there is no such file (`project/name`)."""
    return named if named.exists() or str(named) == "-" else find_run(str(named)) or named


def read_attempts(
    files: Sequence[Path], by: str | None = None, columns: Columns | None = None
) -> list[TrajectoryGroup]:
    """The groups of files and runs (see `read_file`), with the truth that the columns of their rows
    hold; how they were read, and what cannot be compared, goes to stderr.

    Raises `JudgeError` for a group whose rows have different truths.
    """
    paths = [file_named(each) for each in files]
    for path in paths:
        if path.suffix == ".py":
            raise GavelError(
                f"{path} is a program, not trajectories.", f"To play its scenario: gavel check {shlex.quote(str(path))}"
            )
    reading = read_file(paths, by, columns)
    console = Console(stderr=True)
    say(console, reading.summary)
    for note in reading.notes:
        say(console, f"note: {note}", "yellow")
    groups = [with_truth_of_rows(group) for group in reading.groups]
    truths = Counter(name for group in groups for name in truth_of(group).dump())
    if truths:
        told = ", ".join(f"{name} of {counted(count, 'group')}" for name, count in sorted(truths.items()))
        say(console, f"the judge is told: {told}")
    return groups


async def remote_backend(url: str) -> "RemoteBackend":
    """The backend at an address, or on the cluster of `sky://CLUSTER`; to be closed by the caller."""
    if url.startswith("sky://"):
        from gavel.trainer.backends.skypilot.backend import SkyPilotBackend

        return await SkyPilotBackend.attach(url.removeprefix("sky://"))
    from gavel.trainer.backends.remote.client import RemoteBackend

    return RemoteBackend(url)
