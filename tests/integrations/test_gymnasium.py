"""Gymnasium's own text worlds, and classes of the user's."""

import asyncio
import random
from typing import Any

import pytest

gymnasium = pytest.importorskip("gymnasium", reason="make test-bridges installs gymnasium")

from gavel.integrations.gymnasium.scenario import gymnasium_scenario  # noqa: E402
from gavel.scenarios.rollout import rollout  # noqa: E402
from gavel.scenarios.scenario import ScenarioError, find_scenario  # noqa: E402
from tests.scenarios.scripts import Step, scripted  # noqa: E402

pytestmark = pytest.mark.bridges
WAY = ["down", "down", "right", "right", "down", "right"]


def act(action: str) -> Step:
    return "act", {"action": action}


async def test_the_way_over_the_ice():
    scenario: Any = find_scenario("gymnasium:FrozenLake-v1?is_slippery=false")
    found = await rollout(scripted(*(act(step) for step in WAY)), scenario, scenario.tasks()[0])
    assert found.status == "finished"
    assert scenario.success(found)
    assert found.metrics["environment_reward"] == 1.0
    assert found.messages()[1]["content"].startswith("[S]FFF")
    tool = (found.tools or [])[0]["function"]
    assert tool["parameters"]["properties"]["action"]["enum"] == ["left", "down", "right", "up"]


async def test_bad_actions_survive():
    scenario = find_scenario("gymnasium:Taxi-v4?turns=6")
    turns = act("fly"), ("act", {"way": "north"}), ("act", {}), ("jump", {}), "north", act("north")
    found = await rollout(scripted(*turns), scenario, scenario.tasks()[0])
    assert found.status == "truncated"
    assert found.metrics["tool_errors"] == 4
    assert found.metrics["raw_return"] == -1.0


async def test_chance_is_of_the_seed_also_among_64_others():
    scenario = find_scenario("gymnasium:FrozenLake-v1?tasks=64")  # which is slippery

    async def played(task: Any) -> list[Any]:
        return (await rollout(scripted(act("right")), scenario, task)).messages()

    alone = [await played(task) for task in scenario.tasks()[:6]]
    together = await asyncio.gather(*(played(task) for task in scenario.tasks()))
    assert together[:6] == alone
    assert len({str(each) for each in together}) > 10


class Echo(gymnasium.Env):
    """Says what it hears, with a number from the process's own dice."""

    action_space = gymnasium.spaces.Text(8)
    observation_space = gymnasium.spaces.Text(100)
    closed = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        return f"Listening {random.randint(0, 10**6)}.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        if action == "burst":
            raise OSError("the pipe burst")
        return f"{action} {random.randint(0, 10**6)}", 0.5, action == "end", False, {}

    def close(self) -> None:
        type(self).closed += 1


async def test_a_class_of_one_s_own_acts_on_text():
    Echo.closed = 0
    scenario: Any = gymnasium_scenario(Echo, name="echo", goal="Say end.", success=1.0)
    assert "Say end." in scenario.system
    agent = scripted(act("hello"), act("much too long"), act("end"))
    one, other = [await rollout(agent, scenario, scenario.tasks()[0]) for _ in range(2)]
    assert one.messages() == other.messages()
    assert one.metrics["tool_errors"] == 1
    assert scenario.success(one)
    assert Echo.closed == 3  # the sample that told the actions, too


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("gymnasium:Nothing-v0", "no environment"),
        ("gymnasium:CartPole-v1?actions=left", "2 actions, and 1 names"),
        ("gymnasium:Pendulum-v1", "neither Text nor Discrete"),
        ("gymnasium:FrozenLake-v1?wind=3", "cannot be made"),
        ("gymnasium:FrozenLake-v1?is_slippery=no", "is_slippery=no is neither true nor false"),
    ],
)
def test_an_address_that_is_none_is_told(address: str, said: str):
    with pytest.raises(ScenarioError, match=said) as caught:
        find_scenario(address)
    assert caught.value.remedy


async def test_an_environment_that_raises_fails_its_episode():
    scenario = gymnasium_scenario(Echo, name="echo", describe=lambda observation, info: f"It says {observation}")
    found = await rollout(scripted(act("burst")), scenario, scenario.tasks()[0])
    assert found.status == "failed"
    assert "the pipe burst" in (found.status_reason or "")
    assert found.messages()[1]["content"].startswith("It says Listening")
