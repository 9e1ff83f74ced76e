"""Schedules of turn limits."""

import pytest

from gavel.scenarios.library.returns_desk import scenario
from gavel.scenarios.scenario import Scenario, ScenarioError
from gavel.scenarios.task import Task
from gavel.trainer.config import LoopConfig
from gavel.trainer.loop.watchdog import LoopError, check_turn_limits, held_out_scenario, turn_limit, with_turn_limit

LIMITS = {0: 10, 20: 20, 40: 30}


def test_the_limit_is_that_of_the_last_step_that_was_reached() -> None:
    assert [turn_limit(LIMITS, step) for step in (0, 19, 20, 39, 40, 1000)] == [10, 10, 20, 20, 30, 30]
    assert turn_limit({20: 20}, 19) is None
    assert turn_limit({40: 30, 0: 10}, 5) == 10


def test_rollouts_get_the_limit_and_the_scenario_stays_as_it_was() -> None:
    own = scenario.max_turns
    assert with_turn_limit(scenario, {0: 2}, 3).max_turns == 2
    assert with_turn_limit(scenario, {5: 2}, 3).max_turns == own
    assert scenario.max_turns == own
    assert with_turn_limit(scenario, {0: 2}, 3).tasks("held_out") == scenario.tasks("held_out")


def test_held_out_episodes_have_the_longest_limit() -> None:
    assert held_out_scenario(scenario, {0: 1, 5: scenario.max_turns + 4}).max_turns == scenario.max_turns + 4
    assert held_out_scenario(scenario, {0: 1}).max_turns == scenario.max_turns
    assert held_out_scenario(scenario, {}).max_turns == scenario.max_turns


def test_wrong_limits_are_refused() -> None:
    async def own(model: object, task: Task) -> None: ...

    counted = Scenario("own", rollout=own, tasks=[Task(user="Hello")])  # pyright: ignore[reportArgumentType]
    with pytest.raises(LoopError, match="rollout of its own"):
        check_turn_limits(counted, {0: 2})
    check_turn_limits(counted, {})
    with pytest.raises(ScenarioError, match="no limit"):
        scenario.with_max_turns(0)
    for wrong in ({0: 0}, {-1: 3}):
        with pytest.raises(ValueError, match="turn_limits"):
            LoopConfig(turn_limits=wrong)
