"""The scenario that a command names: the calling file's own, a shipped one, or that of a file."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gavel.scenarios.scenario import Scenario

own_scenarios: "dict[str, Scenario]" = {}
"""The scenario of the file that called `gavel.run`, by its name."""


def scenario_named(reference: str) -> "Scenario":
    """The scenario of the calling file, a shipped one, or that of a file. Raises `ScenarioError`."""
    from gavel.scenarios.scenario import find_scenario

    return own_scenarios.get(reference) or find_scenario(reference)
