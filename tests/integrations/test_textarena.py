"""textarena's own games, alone and against others."""

import asyncio
import re

import pytest

pytest.importorskip("textarena", reason="make test-bridges installs textarena")

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import ScenarioError, find_scenario
from gavel.scenarios.trajectory import Trajectory

pytestmark = pytest.mark.bridges


async def _halve(request: ChatRequest) -> Message:
    low, high, guess = 1, 20, 0
    for message in request.messages:
        if message["role"] == "assistant":
            guess = int(message["content"].strip("[]"))
        elif "target number is higher" in message["content"]:
            low = guess + 1
        elif "target number is lower" in message["content"]:
            high = guess - 1
    return {"content": f"[{(low + high) // 2}]"}


async def _first_free(request: ChatRequest) -> Message:
    moves = re.findall(r"'\[(\d)\]'", request.messages[-1]["content"].rpartition("Available Moves")[2])
    return {"content": f"[{moves[0]}]"}


async def _nonsense(request: ChatRequest) -> Message:
    return {"content": "I would rather not."}


HALVER, FIRST, FOOL = FunctionModel("h", _halve), FunctionModel("f", _first_free), FunctionModel("n", _nonsense)


async def test_a_game_that_is_played_alone_is_won_and_lost():
    scenario = find_scenario("textarena:GuessTheNumber-v0?tasks=20")
    assert scenario.success is not None
    for task in scenario.tasks()[:5]:
        won = await rollout(HALVER, scenario, task)
        assert (won.status, won.status_reason) == ("finished", None)
        assert scenario.success(won)
        assert won.metrics["environment_reward"] == 1.0
        assert "Guess The Number" in won.messages()[0]["content"]
        shown = [message["content"] for message in won.messages() if message["role"] == "user"]
        assert "You are playing Guess The Number" not in shown[1]  # what was told is not told again
        lost = await rollout(FOOL, scenario, task)
        assert not scenario.success(lost)


async def test_the_same_seed_is_the_same_game_also_among_64_others():
    scenario = find_scenario("textarena:GuessTheNumber-v0?tasks=64")
    alone = [await rollout(HALVER, scenario, task) for task in scenario.tasks()[:6]]
    together = await asyncio.gather(*(rollout(HALVER, scenario, task) for task in scenario.tasks()))
    assert [each.messages() for each in alone] == [each.messages() for each in together[:6]]
    assert len({str(each.messages()) for each in together}) > 10


async def test_both_sides_of_a_game_learn_in_self_play():
    scenario = find_scenario("textarena:TicTacToe-v0")
    others: list[Trajectory] = []
    first = await rollout(FIRST, scenario, scenario.tasks()[0], others=others)
    (second,) = others
    assert {first.agent, second.agent} == {"player 0", "player 1"}
    assert first.metrics["environment_reward"] == -second.metrics["environment_reward"] != 0
    assert {first.metrics["success"], second.metrics["success"]} == {0.0, 1.0}
    assert "The game is over." in first.messages()[-1]["content"]


async def test_a_game_that_does_not_end_is_truncated_without_a_reward():
    scenario = find_scenario("textarena:TicTacToe-v0?turns=2")
    others: list[Trajectory] = []
    first = await rollout(FIRST, scenario, scenario.tasks()[0], others=others)
    for each in (first, *others):
        assert each.status == "truncated"
        assert each.metrics["environment_reward"] == 0.0


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("textarena:Nothing-v0", "has no game"),
        ("textarena:TicTacToe-v0?players=7", "cannot be begun"),
        ("textarena:TicTacToe-v0?opponent=earlier:soon", "no number of steps"),
        ("textarena:TicTacToe-v0?colour=red", "has no game"),
    ],
)
def test_an_address_that_is_none_is_told(address: str, said: str):
    with pytest.raises(ScenarioError, match=said) as caught:
        find_scenario(address)
    assert caught.value.remedy
