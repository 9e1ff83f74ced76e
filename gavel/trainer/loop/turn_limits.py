"""A schedule of turn limits: short episodes first, longer ones later (ScalingInter-RL, arXiv 2509.08755).

    turn_limit({0: 10, 20: 20, 40: 30}, 19)  ->  10        turn_limit({20: 20}, 19)  ->  None, the scenario's own

The limit of a rollout depends on its step alone, so a run that goes on has the same. Held-out episodes always have the
largest limit, so the points of a learning curve can be compared.
"""

from collections.abc import Mapping

from gavel.scenarios.scenario import Scenario
from gavel.trainer.loop.watchdog import LoopError


def turn_limit(limits: Mapping[int, int], step: int) -> int | None:
    """The limit at `step`; None before the first one."""
    begun = [first for first in limits if first <= step]
    return limits[max(begun)] if begun else None


def with_turn_limit(scenario: Scenario, limits: Mapping[int, int], step: int) -> Scenario:
    """The scenario with the turns of a rollout for training at `step`."""
    limit = turn_limit(limits, step)
    return scenario if limit is None else scenario.with_max_turns(limit)


def held_out_scenario(scenario: Scenario, limits: Mapping[int, int]) -> Scenario:
    """The scenario with the turns of a held-out episode."""
    most = max(limits.values(), default=0)
    return scenario.with_max_turns(most) if most > scenario.max_turns else scenario


def check_turn_limits(scenario: Scenario, limits: Mapping[int, int]) -> None:
    """Raises `LoopError` for a scenario whose rollouts count their turns themselves."""
    if limits and scenario.rollout is not None:
        raise LoopError(
            f"turn_limits are for the built-in agent loop; {scenario.name} has a rollout of its own, which they miss",
            "Leave turn_limits (--turn-limits) out, and count the turns within the rollout.",
        )
