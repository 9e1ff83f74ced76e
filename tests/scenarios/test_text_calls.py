"""Calls that are written as text."""

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gavel.scenarios.text_calls import TextCall, Unreadable, Words, read_turn
from gavel.scenarios.tools import Toolbox


def look_up(order_id: str) -> str:
    """Look up an order."""
    return order_id


def book(city: str, nights: int, late: bool = False) -> str:
    """Book a room."""
    return city


def wait() -> str:
    """Wait."""
    return ""


SCHEMAS = Toolbox([look_up, book, wait]).schemas
LOOK = [TextCall("look_up", '{"order_id": "7"}')]


@pytest.mark.parametrize(
    "text",
    [
        'Thought: I need the order.\nAction: look_up {"order_id": "7"}',
        'Thought: hm\n\nAction:\nlook_up {"order_id": "7"}\nObservation: it is a lamp\nThought: good\n',
        'Thought: hm\nAction: look_up with Action Input: {"order_id": "7"}',
        'Thought: hm\nAction: look_up\nAction Input: {"order_id": "7"}</s>',
        '**Thought:** hm\n**Action:** look_up(order_id="7")',
        "Action: look_up('7')",
        "Action: look_up 7",
        'Action: look_up "7"',
        "look_up 7",
        "Action: lookup 7",
        'Thought: I need the order. Action: look_up {"order_id": "7"}',
        "lookup 7",
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


def test_values_have_the_types_of_the_schema() -> None:
    assert read_turn("Action: book Rome 3", SCHEMAS) == [TextCall("book", '{"city": "Rome", "nights": 3}')]
    assert read_turn('Action: book("Rome", 3, late=True)', SCHEMAS) == [
        TextCall("book", '{"city": "Rome", "nights": 3, "late": true}')
    ]
    assert read_turn("Action: wait", SCHEMAS) == [TextCall("wait", "{}")]


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("Action: lookup orderid 7", {"order_id": "7"}),
        ("Action: book city New York, nights 2", {"city": "New York", "nights": 2}),
        ("Action: book nights 2 city Rome late true", {"nights": 2, "city": "Rome", "late": True}),
    ],
)
def test_a_call_without_its_punctuation_is_read_by_the_names_of_its_arguments(text: str, arguments: object) -> None:
    turn = read_turn(text, SCHEMAS)
    assert isinstance(turn, list)
    assert json.loads(turn[0].arguments) == arguments


def test_several_calls_of_one_turn_are_read_in_order() -> None:
    calls = '[{"name": "look_up", "arguments": {"order_id": "7"}}, {"name": "wait", "arguments": {}}]'
    assert read_turn(calls, SCHEMAS) == [*LOOK, TextCall("wait", "{}")]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Thought: done\nAnswer: It is refunded.", "It is refunded."),
        ("Final Answer: 42", "42"),
        ('Action: finish with Action Input: {"answer": "42"}', "42"),
        ("Action: finish('42')", "42"),
        ("Action: finish 42", "42"),
        ("It is refunded.", "It is refunded."),
        ("I looked up 7.", "I looked up 7."),
        ("", ""),
    ],
)
def test_words_are_words(text: str, words: str) -> None:
    assert read_turn(text, SCHEMAS) == Words(words)


def test_without_tools_the_action_is_the_words() -> None:
    assert read_turn("Thought: east\nAction: go east", []) == Words("go east")
    assert read_turn("go east", []) == Words("go east")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Thought: I wonder", "neither an action nor an answer"),
        ("Action: refuse 7", "no tool 'refuse'"),
        ("Action: look_up {order", "not valid JSON"),
        ("Action: look_up 1\nAction: look_up 2", "one action"),
        ('{"name": "look_up", "arguments": {"order_id": ', "not valid JSON"),
        ("Action: book Rome", "needs city, nights"),
        ("Action: look_up(1, 2)", "takes 1 arguments"),
        ("Action: __import__('os').system('true')", "no tool"),
        ("Action: look_up(open('/etc/passwd').read())", "no tool"),
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


@pytest.mark.parametrize("text", ["(" * 100_000, "[" * 100_000, "{" * 100_000, "look_up(" * 3000, "-" * 19_000 + "1"])
def test_a_hostile_text_is_read_in_a_moment(text: str) -> None:
    began = time.monotonic()
    read_turn(f"Action: {text}", SCHEMAS)
    read_turn(f"Action: look_up({text})", SCHEMAS)
    assert time.monotonic() - began < 20
