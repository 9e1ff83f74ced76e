"""The scenario that a command names: the calling file's own, a shipped one, or that of a file."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gavel.scenarios.mixture import Mixture
    from gavel.scenarios.scenario import Scenario

own_scenarios: "dict[str, Scenario]" = {}
"""The scenario of the file that called `gavel.run`, by its name."""


def scenario_named(reference: str) -> "Scenario":
    """The scenario of the calling file, a shipped one, or that of a file. Raises `ScenarioError`."""
    from gavel.scenarios.scenario import find_scenario

    return own_scenarios.get(reference) or find_scenario(reference)


def scenarios_named(reference: str, weights: Mapping[str, float]) -> "Scenario | Mixture":
    """The scenario, or for `a+b` the mixture of several with these weights. Raises `ScenarioError`."""
    from gavel.scenarios.mixture import Mixture, read_weights, scenario_references
    from gavel.scenarios.scenario import ScenarioError

    named = [scenario_named(each.strip()) for each in scenario_references(reference)]
    if len(named) > 1:
        return Mixture(named, read_weights(weights))
    if weights:
        raise ScenarioError(
            f"{reference} is one scenario, and weights are for several.",
            "Leave --weights out, or name several scenarios with + between them.",
        )
    return named[0]
