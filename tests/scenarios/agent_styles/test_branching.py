"""Several candidates for each turn, and a vote."""

import json

import pytest
from openai import OpenAIError

from gavel.llm.types import Message
from gavel.scenarios.agent_styles.branching import UNREADABLE, branching
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.returns_desk import Case
from gavel.scenarios.library.returns_desk import scenario as returns_desk
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import ScenarioError, find_scenario

TASK = returns_desk.tasks()[0]
CASE = Case.model_validate(TASK.data)
RIGHT = [
    ("look_up_order", {"order_id": TASK.id}),
    ("read_policy", {"item": CASE.item}),
    (CASE.right_action, {"order_id": TASK.id}),
]


def voter(vote: str, *, same: bool = False) -> FunctionModel:
    """Offers the right turn as one of its candidates, told apart by their seeds, and wrong ones; votes as told, with
    RIGHT for the number of the right one."""
    offered: dict[int, int] = {}

    async def reply(request: ChatRequest) -> Message:
        last = request.messages[-1]
        if last["role"] == "user" and "possible" in last["content"]:
            assert request.tools == []
            right = next(i for i, part in enumerate(last["content"].split("\n\n")) if "RIGHT" in part)
            return {"content": vote.replace("RIGHT", str(right))}
        turn = sum(message["role"] == "assistant" for message in request.messages)
        offered[turn] = offered.get(turn, -1) + 1
        if turn == len(RIGHT):
            return {"content": "Done."}
        if offered[turn] != 1 and not same:
            return {"content": f"No idea {offered[turn]}."}
        name, arguments = RIGHT[turn]
        function = {"name": name, "arguments": json.dumps(arguments)}
        return {"content": "RIGHT", "tool_calls": [{"id": f"c{turn}", "type": "function", "function": function}]}

    return FunctionModel("voter", reply)


async def test_the_turn_that_is_voted_for_is_carried_out_and_the_others_are_histories() -> None:
    scenario = branching(returns_desk)
    played = await rollout(voter("Number RIGHT"), scenario, TASK, seed=1)
    assert played.status == "finished"
    assert scenario.success is not None
    assert scenario.success(played) == 1.0
    names = [call["function"]["name"] for m in played.messages() for call in m.get("tool_calls") or ()]
    assert names == [name for name, _ in RIGHT]
    agents = [history.agent for history in played.additional_histories]
    assert agents.count("vote") == 3
    assert agents.count("branch") == 3 * 2 + 2
    first = played.additional_histories[agents.index("branch")]
    assert first.messages()[:-1] == played.messages()[:2]
    assert first.messages()[-1]["content"].startswith("No idea")
    assert first.tools == played.tools
    assert len({id(choice) for choice in played.choices()}) == 4 + 8 + 3
    assert played.metrics[UNREADABLE] == 0


@pytest.mark.parametrize("vote", ["none of them", "7", "0", "9999999999"])
async def test_a_vote_that_names_none_takes_the_first_and_is_counted(vote: str) -> None:
    played = await rollout(voter(vote), branching(returns_desk), TASK, seed=1)
    assert played.metrics[UNREADABLE] == 1
    assert played.messages()[-1]["content"].startswith("No idea 0")
    assert played.metrics["success"] == 0.0


async def test_candidates_that_are_the_same_need_no_vote() -> None:
    played = await rollout(voter("1", same=True), branching(returns_desk, 2), TASK, seed=1)
    assert {history.agent for history in played.additional_histories} == {"branch"}
    assert played.metrics["success"] == 1.0


async def test_a_model_that_fails_fails_the_episode() -> None:
    async def reply(request: ChatRequest) -> Message:
        raise OpenAIError("the server is gone")

    lost = await rollout(FunctionModel("script", reply), branching(returns_desk), TASK, seed=1)
    assert lost.status == "failed"
    assert "the server is gone" in (lost.status_reason or "")


def test_one_branch_is_none() -> None:
    with pytest.raises(ScenarioError, match="nothing to choose"):
        branching(returns_desk, 1)
    assert find_scenario("branching:returns_desk").name == "returns_desk_branching"
