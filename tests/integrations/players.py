"""Agents that follow a script."""

import json
from collections.abc import Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.scenario import find_scenario
from gavel.scenarios.task import Task


def call(name: str, number: int = 0, /, **arguments: Any) -> Message:
    return calls((name, json.dumps(arguments)), first=number)


def calls(*made: tuple[str, str], first: int = 0) -> Message:
    """A turn with tool calls, arguments as they are written."""
    return {
        "content": "",
        "tool_calls": [
            {"id": f"call_{first}_{i}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for i, (name, arguments) in enumerate(made)
        ],
    }


def script(turns: Sequence[Message]) -> FunctionModel:
    """One turn after another."""

    async def reply(request: ChatRequest) -> Message:
        return turns[sum(message["role"] == "assistant" for message in request.messages)]

    return FunctionModel("script", reply)


DESK = find_scenario("returns_desk")


def right_turns(task: Task, action: str) -> list[Any]:
    order = str(task.data["order_id"])
    return [
        call("look_up_order", 0, order_id=order),
        call("read_policy", 1, item=task.data["item"]),
        call(action, 2, order_id=order),
        {"content": "It is done."},
    ]


SCRIPTS = {
    "refunds": lambda task: right_turns(task, "refund"),
    "denies": lambda task: right_turns(task, "deny"),
    "only talks": lambda task: [{"content": "No."}],
    "runs out of turns": lambda task: [call("look_up_order", i, order_id="1") for i in range(6)],
}
