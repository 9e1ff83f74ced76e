"""What the commands that train and evaluate share: their scenario, their extra, and a run that Ctrl-C can stop."""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

import typer

from gavel.extras import MissingExtraError, missing_parts

if TYPE_CHECKING:
    from gavel.scenarios.scenario import Scenario

RESUME = "Finished steps are saved; the same command goes on from there."
INTERRUPTED = 130

own_scenarios: "dict[str, Scenario]" = {}
"""The scenario of the file that called `gavel.run`, by its name."""


def scenario_named(reference: str) -> "Scenario":
    """The scenario of the calling file, a shipped one, or that of a file. Raises `ScenarioError`."""
    from gavel.scenarios.scenario import find_scenario

    return own_scenarios.get(reference) or find_scenario(reference)


def need_training(command: str) -> None:
    """Raises `MissingExtraError` when the extra `train` is not installed."""
    if missing := missing_parts("train"):
        raise MissingExtraError(command, missing[0], "train")


def run_to_end(work: Coroutine[Any, Any, object], resume: str = "") -> None:
    """Runs `work`. Ctrl-C lets a training step in progress finish, prints `resume`, and exits with status 130."""
    try:
        asyncio.run(work)
    except KeyboardInterrupt:
        typer.echo(f"Stopped. {resume}" if resume else "Stopped.", err=True)
        raise typer.Exit(INTERRUPTED) from None
