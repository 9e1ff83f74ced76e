"""Agents that follow a script."""

import json
from collections.abc import Sequence
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel


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


async def _halve(request: ChatRequest) -> Message:
    low, high, guess = 1, 9, 5
    for message in request.messages:
        if message["role"] == "assistant":
            made = (message.get("tool_calls") or [None])[0]
            text = made["function"]["arguments"] if made else message["content"]
            guess = json.loads(text)["number"] if made else int(text)
        elif "higher" in message["content"]:
            low = guess + 1
        elif "lower" in message["content"]:
            high = guess - 1
    guess = (low + high) // 2
    turns = sum(message["role"] == "assistant" for message in request.messages)
    return call("act", turns, number=guess) if request.tools else {"content": str(guess)}


HALVER = FunctionModel("halver", _halve)
"""Finds the number of the stand-in's environment, by tool calls or in words."""
