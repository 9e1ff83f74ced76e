"""`gavel config`: the whole configuration of a run, as a file that `gavel train` reads."""

from collections.abc import Mapping
from typing import Any

import typer

from gavel.cli.lazy_commands import single_command
from gavel.cli.options import RUN_FLAGS, Assignments, Recipe, Source, run_config, with_options
from gavel.cli.run_file import to_toml
from gavel.trainer.run_config import RunConfig

_ABOUT_PATHS = "# Relative paths are those of the directory that this file is in."


def config(
    values: Mapping[str, Any],
    source: Source = "returns_desk",
    assignments: Assignments = None,
    recipe: Recipe = None,
) -> None:
    """Print the whole configuration of a run as TOML, with defaults and descriptions.

    The same arguments as for `gavel train`; what is printed is itself a run.toml.
    """
    given = run_config(source, values, assignments, recipe=recipe)
    text = f"{_ABOUT_PATHS}\n\n{to_toml(given.resolved(), given)}"
    typer.echo(text.encode(), nl=False)  # TOML is UTF-8, whatever the terminal is


app = single_command(with_options(config, RunConfig, RUN_FLAGS))
