"""The run that a command names: by its directory, or as `gavel runs` lists it."""

import json
from pathlib import Path
from typing import Any, cast

from gavel.base.errors import GavelError
from gavel.cli.named_scenario import scenario_named
from gavel.scenarios.scenario import Scenario
from gavel.trainer.runs.run_directory import runs_root


def find_run(named: str) -> Path | None:
    """Its directory; None where there is none. `named`: a directory, or `project/name`."""
    return next((path for path in (Path(named), runs_root() / named) if (path / "model.json").is_file()), None)


def run_named(named: str) -> Path:
    """Its directory. Raises `GavelError` where there is none."""
    if (found := find_run(named)) is None:
        raise GavelError(
            f"there is no run {named}.", "Name it as `gavel runs` lists it (project/name), or by its directory."
        )
    return found


def experiment_of(run: Path) -> dict[str, Any]:
    """What experiment.json says of the run; empty where there is none that can be read."""
    try:
        found = json.loads((run / "experiment.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def scenario_of(run: Path) -> Scenario | None:
    """As experiment.json names it; None where it cannot be loaded from here (a file elsewhere)."""
    named = experiment_of(run).get("scenario")
    try:
        return scenario_named(str(named)) if named else None
    except GavelError:
        return None
