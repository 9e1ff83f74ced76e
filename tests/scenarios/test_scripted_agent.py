import json
from typing import Any

import pytest

from gavel.scenarios.rollout import rollout
from gavel.scenarios.scenario import Scenario
from gavel.scenarios.scripted_agent import example, talker, tool_user
from gavel.scenarios.task import Task


def look_up(order_id: str, limit: int = 3) -> str:
    """Look up an order."""
    return f"order {order_id}"


def refund(order_id: str, amounts: list[float]) -> str:
    """Refund an order."""
    return "done"


SHOP = Scenario(
    "shop", system="Help.", tools=[look_up, refund], tasks=[Task(user="Where is order A-1001?")], held_out=0
)


async def test_a_tool_user_calls_every_tool_once_with_arguments_that_run():
    episode = await rollout(tool_user(), SHOP, SHOP.tasks()[0])
    assert episode.status == "finished"
    assert episode.metrics["tool_errors"] == 0
    calls = [call.function for choice in episode.choices() for call in choice.message.tool_calls or ()]
    assert [call.name for call in calls] == ["look_up", "refund"]
    assert json.loads(calls[0].arguments)["order_id"] == "A-1001"


async def test_a_tool_user_takes_arguments_that_the_task_s_data_has():
    task = Task(user="Where is it?", data={"order_id": "B-7", "limit": 2, "amounts": [1.0], "reason": "broken"})
    episode = await rollout(tool_user(task.data), SHOP, task)
    calls = [call.function for choice in episode.choices() for call in choice.message.tool_calls or ()]
    assert json.loads(calls[0].arguments) == {"order_id": "B-7", "limit": 2}
    assert json.loads(calls[1].arguments)["order_id"] == "B-7"


async def test_a_talker_only_answers():
    episode = await rollout(talker(), SHOP, SHOP.tasks()[0])
    assert episode.metrics["turns"] == 1


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string", "enum": ["a", "b"]}, "a"),
        ({"type": "string", "minLength": 9}, "examplexx"),
        ({"type": ["integer", "null"], "minimum": 5}, 5),
        ({"type": "number", "exclusiveMinimum": 1}, 2),
        ({"type": "array", "minItems": 2, "items": {"type": "integer"}}, [1, 1]),
        ({"anyOf": [{"type": "null"}, {"type": "string"}]}, None),
        ({"type": "object", "required": ["a"], "properties": {"a": {"type": "string"}, "b": {}}}, {"a": "example"}),
        ({"$ref": "#/$defs/X", "$defs": {"X": {"type": "integer"}}}, 1),
        ({"$ref": "#/$defs/missing"}, None),
        (True, None),
    ],
)
def test_an_example_is_what_the_schema_allows(schema: Any, value: Any):
    assert example(schema) == value


def test_an_example_of_a_schema_that_contains_itself_ends():
    node: dict[str, Any] = {"type": "object", "required": ["next"], "properties": {"next": {"$ref": "#/$defs/N"}}}
    assert "next" in example({"$ref": "#/$defs/N", "$defs": {"N": node}})
