"""Agents that follow a script."""

import json
from collections.abc import Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel


def call(name: str, number: int = 0, /, **arguments: Any) -> Message:
    """A turn with one tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"content": "", "tool_calls": [{"id": f"call_{number}", "type": "function", "function": function}]}


def script(turns: Sequence[Message]) -> FunctionModel:
    """One turn after another."""

    async def reply(request: ChatRequest) -> Message:
        return turns[sum(message["role"] == "assistant" for message in request.messages)]

    return FunctionModel("script", reply)
