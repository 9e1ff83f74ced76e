"""What `gavel train …` will do elsewhere: its options are read here, so a wrong one is told before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer.main

from gavel.cli import train
from gavel.cli.run_file import read_tables
from gavel.cli.run_options import run_config
from gavel.scenarios.mixture import scenario_references
from gavel.scenarios.scenario import find_scenario
from gavel.trainer.run_config import RunConfig


def train_config(program: str, options: Sequence[str]) -> RunConfig:
    """The run of `gavel train PROGRAM OPTIONS`. Raises a `GavelError` or click's for what is wrong in it."""
    command = typer.main.get_command(train.app)
    parsed = command.make_context("gavel train", [program, *options]).params
    given: dict[str, Any] = {name: [*value] if isinstance(value, tuple) else value for name, value in parsed.items()}
    config = run_config(given["source"], given, given["assignments"], recipe=given["recipe"])
    for named in scenario_references(config.scenario):
        if not named.partition(":")[0].endswith(".py"):  # what a file loads may be there alone
            find_scenario(named)
    return config


def scenario_file(run_file: str) -> str | None:
    """The file of Python that a run.toml names, as it is written there; None for a shipped scenario."""
    named = str(read_tables(Path(run_file))[0].get("scenario", "")).partition(":")[0]
    return named if named.endswith(".py") else None
