"""Agents that follow a script."""

import json
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel

Step = str | tuple[str, Any]
"""Words, or a tool's name with its arguments."""


def turn(step: Step, number: int = 0) -> Message:
    if isinstance(step, str):
        return {"content": step}
    name, arguments = step
    function = {"name": name, "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}
    return {"content": "", "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}]}


def scripted(*steps: Step) -> FunctionModel:
    """Does one thing after another, and the last again and again."""

    async def reply(request: ChatRequest) -> Message:
        number = sum(message["role"] == "assistant" for message in request.messages)
        return turn(steps[min(number, len(steps) - 1)], number)

    return FunctionModel("script", reply)
