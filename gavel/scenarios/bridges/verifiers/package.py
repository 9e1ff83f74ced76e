"""A scenario as an installable package of verifiers: pyproject.toml, and a module with a taskset and a harness.

desk/pyproject.toml
desk/gavel_returns_desk.py        Tasks, Agent = verifiers_environment("returns_desk")
desk/own_scenario.py              a copy, where the scenario is a file of the user's
"""

import re
from pathlib import Path

from gavel.base.errors import GavelError
from gavel.prompts import render
from gavel.scenarios.bridges.verifiers.environment import check_exportable
from gavel.scenarios.scenario import find_scenario

_NOT_IN_NAMES = re.compile(r"\W+")


class ExportError(GavelError):
    """A package cannot be written."""


def write_package(reference: str, folder: Path) -> str:
    """Writes the package; the id by which verifiers loads it.

    Raises `ScenarioError` for a scenario that is not there or has no reward, `ExportError` for a folder that is in use.
    """
    scenario = find_scenario(reference)
    check_exportable(scenario)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportError(f"{folder} is not empty", "Name a folder that is not there yet.")
    module = f"gavel_{_NOT_IN_NAMES.sub('_', scenario.name).strip('_').lower()}"
    path, _, variable = reference.partition(":")
    copied = f"{module}_scenario.py" if path.endswith(".py") else None
    folder.mkdir(parents=True, exist_ok=True)
    if copied is not None:
        (folder / copied).write_text(Path(path).read_text("utf-8"), "utf-8")
    values = {
        "module": module,
        "modules": [module, *([copied.removesuffix(".py")] if copied else [])],
        "project": module.replace("_", "-"),
        "copied": copied,
        "variable": variable,
        "reference": reference,
    }
    (folder / f"{module}.py").write_text(render("scenarios/verifiers_module.j2", **values), "utf-8")
    (folder / "pyproject.toml").write_text(render("scenarios/verifiers_pyproject.j2", **values), "utf-8")
    return module.replace("_", "-")
