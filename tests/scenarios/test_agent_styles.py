"""A scenario played with thoughts and actions as text."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.agent_styles.branching import UNREADABLE as UNREADABLE_VOTES
from gavel.scenarios.agent_styles.branching import branching
from gavel.scenarios.agent_styles.react import UNREADABLE, react
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.library.returns_desk import Case
from gavel.scenarios.library.returns_desk import scenario as returns_desk
from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import ScenarioError, find_scenario
from gavel.scenarios.text_calls import TextCall, Turn, Unreadable, Words, read_turn
from gavel.scenarios.tools import Toolbox
from tests.scenarios.scripts import scripted
from tests.scenarios.scripts import turn as turn_of


def look_up(order_id: str) -> None: ...
def book(city: str, nights: int, late: bool = False) -> None: ...
def wait() -> None: ...


SCHEMAS = Toolbox([look_up, book, wait]).schemas


@pytest.mark.parametrize(
    "text",
    [
        'Thought: I need the order.\nAction: look_up {"order_id": "7"}',
        'Thought: hm\n\nAction:\nlook_up {"order_id": "7"}\nObservation: it is a lamp\nThought: good\n',
        'Thought: hm\nAction: look_up with Action Input: {"order_id": "7"}',
        '**Thought:** hm\n**Action:** look_up(order_id="7")',
        "Action: look_up 7",
        "Action: lookup 7",
        '{"name": "look_up", "arguments": {"order_id": "7"}}',
        '{"name": "look_up", "arguments": "{\\"order_id\\": \\"7\\"}"}',
        '```json\n{"thought": "I think", "function_name": "look_up", "arguments": {"order_id": "7"}}\n```',
        '<tool_call>\n{"name": "look_up", "arguments": {"order_id": "7"}}\n</tool_call>',
        'Sure: {"type": "function", "function": {"name": "look_up", "arguments": "{\\"order_id\\": \\"7\\"}"}}',
        'Action: {"action": "look_up", "action_input": {"order_id": "7"}}',
        'Action: ```json\n{"name": "look_up", "arguments": {"order_id": "7"}}\n```',
    ],
)
def test_a_call_is_read_in_each_form(text: str) -> None:
    turn = read_turn(text, SCHEMAS)
    assert isinstance(turn, list)
    assert [(call.name, json.loads(call.arguments)) for call in turn] == [("look_up", {"order_id": "7"})]


@pytest.mark.parametrize(
    ("text", "turn"),
    [
        ("Action: book Rome 3", [TextCall("book", '{"city": "Rome", "nights": 3}')]),
        ('Action: book("Rome", 3, late=True)', [TextCall("book", '{"city": "Rome", "nights": 3, "late": true}')]),
        ("Action: wait", [TextCall("wait", "{}")]),
        ("Thought: done\nAnswer: It is refunded.", Words("It is refunded.")),
        ('Action: finish with Action Input: {"answer": "42"}', Words("42")),
        ("Action: finish('42')", Words("42")),
        ("It is refunded.", Words("It is refunded.")),
        ("", Words("")),
    ],
)
def test_values_have_the_types_of_the_schema_and_words_are_words(text: str, turn: Turn) -> None:
    assert read_turn(text, SCHEMAS) == turn
    for without_tools in ("Thought: east\nAction: go east", "go east"):
        assert read_turn(without_tools, []) == Words("go east")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Thought: I wonder", "neither an action nor an answer"),
        ("Action: refuse 7", "no tool 'refuse'"),
        ("Action: look_up {order", "not valid JSON"),
        ("Action: look_up 1\nAction: look_up 2", "one action"),
        ('{"name": "look_up", "arguments": {"order_id": ', "not valid JSON"),
        ("Action: book Rome", "needs city, nights"),
        ("Action: lookup orderid 7", "`Action: look_up ORDER_ID`"),
        ("Action: book city New York, nights 2", "`Action: book CITY NIGHTS`"),
        ("Action: look_up(1, 2)", "takes 1 arguments"),
        ("Action: __import__('os').system('true')", "no tool"),
        ("Action: look_up(open('/etc/passwd').read())", "no literal values"),
    ],
)
def test_what_was_meant_as_a_call_is_told_what_is_wrong(text: str, told: str) -> None:
    turn = read_turn(text, SCHEMAS)
    assert isinstance(turn, Unreadable), turn
    assert told in turn.problem


@given(st.text() | st.text(alphabet='{}[]"():,Action look_up\n\\').map(lambda text: f"Action: {text}"))
def test_no_text_raises(text: str) -> None:
    read_turn(text, SCHEMAS)
    read_turn(text, [])


@pytest.mark.timeout(20)
@pytest.mark.parametrize("text", ["(" * 100_000, "[" * 100_000, "{" * 100_000, "look_up(" * 3000, "-" * 19_000 + "1"])
def test_a_hostile_text_is_read_in_a_moment(text: str) -> None:
    read_turn(f"Action: {text}", SCHEMAS)
    read_turn(f"Action: look_up({text})", SCHEMAS)


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
    measured: Any = {"success": scenario.success, "hand_reward": scenario.hand_reward, **scenario.measures}
    for name in ("success", "hand_reward", "looked_before_acting"):
        assert measured[name](played) == pytest.approx(1.0)


async def test_what_cannot_be_read_is_told_and_bounded() -> None:
    scenario = react(returns_desk)
    played = await rollout(scripted("Thought: hm", *SCRIPT[1:]), scenario, TASK, seed=1)
    assert played.metrics[UNREADABLE] == 1
    assert played.messages()[3]["content"].startswith("Observation: The thought is followed by neither")
    endless = await rollout(scripted("Thought: hm"), scenario, TASK, seed=1)
    assert endless.metrics[UNREADABLE] == returns_desk.max_turns
    assert (endless.status, endless.metrics["success"]) == ("finished", 0.0)


ORDER = {"order_id": TASK.id}
RIGHT = [("look_up_order", ORDER), ("read_policy", {"item": CASE.item}), (CASE.right_action, ORDER)]


def voter(vote: str) -> FunctionModel:
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
        if offered[turn] != 1:
            return {"content": f"No idea {offered[turn]}."}
        return turn_of(RIGHT[turn], turn) | {"content": "RIGHT"}

    return FunctionModel("voter", reply)


async def test_the_turn_that_is_voted_for_is_carried_out_and_the_others_are_histories() -> None:
    played = await rollout(voter("Number RIGHT"), branching(returns_desk), TASK, seed=1)
    assert (played.status, played.metrics["success"]) == ("finished", 1.0)
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


def test_one_branch_is_none() -> None:
    with pytest.raises(ScenarioError, match="nothing to choose"):
        branching(returns_desk, 1)
    assert find_scenario("branching:returns_desk").name == "returns_desk_branching"
