"""What integrations add to Gavel, ours and those of other distributions, by group and name.

    [project.entry-points."gavel.scenarios"]        # of any distribution's pyproject.toml
    chess = "chess_gavel.scenario"                  # gavel train chess:ADDRESS

An entry point names a module, and its group says what the module holds:

    gavel.rewards      the function that a trainer's reward hook takes, in `__all__`
    gavel.scenarios    scenario_at(address) -> Scenario
    gavel.formats      FORMATS, EXPORTS: formats of trajectory files that are read and written
    gavel.hosts        open_host(place, **options) -> DeployHost
    gavel.commands     NAME, HELP, command: a command of `gavel`, as a function with Typer's annotations

An integration of ours has no entry points: its files are found by these names in `gavel/integrations/SYSTEM/`. A system
that is one file there is a reward alone. Listing imports nothing.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import ModuleType
from typing import Literal

from gavel.base.errors import GavelError

Group = Literal["gavel.rewards", "gavel.scenarios", "gavel.formats", "gavel.hosts", "gavel.commands"]
_FILES: dict[Group, str] = {
    "gavel.rewards": "reward",
    "gavel.scenarios": "scenario",
    "gavel.formats": "formats",
    "gavel.hosts": "host",
    "gavel.commands": "command",
}
_OURS = "gavel.integrations"


class EntryPointError(GavelError):
    """An integration cannot be told from another one, or cannot be imported."""


@cache
def names(group: Group) -> tuple[str, ...]:
    """The names in a group: ours first, then those of other distributions."""
    return tuple(dict.fromkeys(each.name for each in _found(group)))


@cache
def load(group: Group, name: str) -> ModuleType:
    """The module of an integration. Raises `EntryPointError` where two have the name, or it cannot be imported."""
    found = {each.value: each for each in _found(group) if each.name == name}
    if len(found) != 1:
        there = ", ".join(names(group)) or "none"
        problem = f"{' and '.join(found)} are both called" if found else "nothing is called"
        remedy = "Uninstall the distribution of one of them." if found else f"There are: {there}."
        raise EntryPointError(f"{problem} {name!r} in the entry points {group}.", remedy)
    (one,) = found.values()
    try:
        return importlib.import_module(one.module)
    except ImportError as error:
        of = one.dist.name if one.dist else "gavel-rl"
        raise EntryPointError(
            f"{name} of {group} cannot be imported: {error}", f"Install what it needs, or reinstall {of}."
        ) from error


def load_all(group: Group) -> list[ModuleType]:
    """The modules of a group, in the order of `names`."""
    return [load(group, name) for name in names(group)]


def _found(group: Group) -> Iterator[EntryPoint]:
    (folder,) = importlib.import_module(_OURS).__path__
    for module in pkgutil.iter_modules([folder]):
        if module.name.startswith("_"):
            continue
        path = f"{_OURS}.{module.name}"
        inside = pkgutil.iter_modules([f"{folder}/{module.name}"])
        files = {each.name for each in inside} if module.ispkg else {"reward"}
        if _FILES[group] in files:
            is_whole = group == "gavel.rewards"  # a reward is what the system's own module offers
            yield EntryPoint(module.name, path if is_whole else f"{path}.{_FILES[group]}", group)
    yield from entry_points(group=group)
