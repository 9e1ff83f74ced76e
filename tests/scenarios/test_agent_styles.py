"""A scenario played with thoughts and actions as text."""

import json

import pytest
from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.agent_styles.branching import UNREADABLE as UNREADABLE_VOTES
from gavel.scenarios.agent_styles.branching import branching
from gavel.scenarios.agent_styles.react import UNREADABLE, react
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.returns_desk import Case
from gavel.scenarios.library.returns_desk import scenario as returns_desk
from gavel.scenarios.library.text_adventure import scenario as text_adventure
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import ScenarioError, find_scenario
from tests.scenarios.scripts import scripted

TASK = returns_desk.tasks()[0]
CASE = Case.model_validate(TASK.data)
SCRIPT = (
    f'Thought: the order.\nAction: look_up_order {{"order_id": "{TASK.id}"}}\nObservation: it is a sofa',
    f"Thought: its policy.\nAction: read_policy {CASE.item}",
    f"Thought: so.\nAction: {CASE.right_action}({TASK.id!r})",
    "Thought: told.\nAnswer: That is done.",
)


async def test_tools_are_called_by_text_and_the_scenario_measures_the_calls() -> None:
    scenario = react(returns_desk)
    played = await rollout(scripted(*SCRIPT), scenario, TASK, seed=1)
    assert played.status == "finished"
    assert played.tools is None
    system, opening, *rest = played.messages()
    assert system["content"].startswith(returns_desk.system)
    assert "- refund(order_id: string): Pay the money back." in system["content"]
    assert opening == {"role": "user", "content": TASK.user}
    assert [each["content"] for each in rest if each["role"] == "assistant"] == list(SCRIPT)
    assert rest[1]["content"].startswith('Observation: {"item"')
    assert all(isinstance(item, Choice) for item in played.messages_and_choices if not isinstance(item, dict))
    assert played.metrics["turns"] == 4
    assert scenario.success is not None
    assert scenario.hand_reward is not None
    assert scenario.success(played) == 1.0
    assert scenario.hand_reward(played) == pytest.approx(1.0)
    assert scenario.measures["looked_before_acting"](played) == 1.0


async def test_what_cannot_be_read_is_told_and_bounded() -> None:
    scenario = react(returns_desk)
    played = await rollout(scripted("Thought: hm", *SCRIPT[1:]), scenario, TASK, seed=1)
    assert played.metrics[UNREADABLE] == 1
    assert played.messages()[3]["content"].startswith("Observation: The thought is followed by neither")
    endless = await rollout(scripted("Thought: hm"), scenario, TASK, seed=1)
    assert endless.metrics[UNREADABLE] == returns_desk.max_turns
    assert endless.status == "finished"
    assert endless.metrics["success"] == 0.0


async def test_a_world_that_answers_words_is_played_by_its_actions() -> None:
    scenario = react(text_adventure)
    played = await rollout(scripted("Thought: where?\nAction: look"), scenario, scenario.tasks()[0], seed=1)
    assert played.status == "truncated"
    assert "You are in the" in played.messages()[3]["content"]
    assert played.metrics["success"] == 0.0


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
    assert played.metrics[UNREADABLE_VOTES] == 0


@pytest.mark.parametrize("vote", ["none of them", "7", "0", "9999999999"])
async def test_a_vote_that_names_none_takes_the_first_and_is_counted(vote: str) -> None:
    played = await rollout(voter(vote), branching(returns_desk), TASK, seed=1)
    assert played.metrics[UNREADABLE_VOTES] == 1
    assert played.messages()[-1]["content"].startswith("No idea 0")
    assert played.metrics["success"] == 0.0


async def test_candidates_that_are_the_same_need_no_vote() -> None:
    played = await rollout(voter("1", same=True), branching(returns_desk, 2), TASK, seed=1)
    assert {history.agent for history in played.additional_histories} == {"branch"}
    assert played.metrics["success"] == 1.0


def test_one_branch_is_none() -> None:
    with pytest.raises(ScenarioError, match="nothing to choose"):
        branching(returns_desk, 1)
    assert find_scenario("branching:returns_desk").name == "returns_desk_branching"
