"""Registry of integrations, ours and those of other distributions, by group and name.

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
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from types import MappingProxyType, ModuleType
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
    """An integration's name is ambiguous, or its module cannot be imported."""


def names(group: Group, own: Mapping[str, str] = MappingProxyType({})) -> tuple[str, ...]:
    """The names in a group: ours first, then those of other distributions. `own`: additional names of ours, with their
    modules."""
    return tuple(dict.fromkeys((*own, *(each.name for each in _found(group)))))


def load(group: Group, name: str, own: Mapping[str, str] = MappingProxyType({})) -> ModuleType:
    """Returns the module of an integration. Raises `EntryPointError` if two have this name, or the import fails."""
    found = {each.value: each for each in _found(group) if each.name == name}
    if name in own:
        found[own[name]] = EntryPoint(name, own[name], group)
    if len(found) != 1:
        problem = f"{' and '.join(found)} are both called" if found else "nothing is called"
        remedy = (
            "Uninstall the distribution of one of them." if found else f"There are: {', '.join(names(group, own))}."
        )
        raise EntryPointError(f"{problem} {name!r} in the entry points {group}.", remedy)
    (one,) = found.values()
    try:
        return importlib.import_module(one.module)
    except ImportError as error:
        of = one.dist.name if one.dist else "gavel-rl"
        raise EntryPointError(
            f"{name} of {group} cannot be imported: {error}", f"Install what it needs, or uninstall {of}."
        ) from error


def load_all(group: Group) -> list[ModuleType]:
    """The modules of a group, in the order of `names`."""
    return [load(group, name) for name in names(group)]


@cache
def _found(group: Group) -> tuple[EntryPoint, ...]:
    return (*_ours(group), *entry_points(group=group))


def _ours(group: Group) -> Iterator[EntryPoint]:
    (folder,) = importlib.import_module(_OURS).__path__
    for module in pkgutil.iter_modules([folder]):
        if module.name.startswith("_"):
            continue
        path = f"{_OURS}.{module.name}"
        inside = pkgutil.iter_modules([f"{folder}/{module.name}"])
        files = {each.name for each in inside} if module.ispkg else {"reward"}
        if _FILES[group] in files:
            is_whole = group == "gavel.rewards"  # the system's own module exports its reward
            yield EntryPoint(module.name, path if is_whole else f"{path}.{_FILES[group]}", group)
