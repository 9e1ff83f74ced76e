"""Agents that follow a script, for the shipped scenarios."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel

Step = tuple[str, dict[str, Any]] | str


def script(steps: Callable[[], Iterator[Step]]) -> FunctionModel:
    """Each episode follows a new iterator: a text is said, a pair is a tool call; its answer comes by `send`."""
    running: dict[str, Any] = {}

    async def reply(request: ChatRequest) -> Message:
        key = json.dumps(request.messages[:2])
        last = request.messages[-1]
        if last["role"] != "tool" and not any(message["role"] == "assistant" for message in request.messages):
            running[key] = steps()
            step = next(running[key])
        else:
            step = running[key].send(last["content"])
        if isinstance(step, str):
            return {"content": step}
        function = {"name": step[0], "arguments": json.dumps(step[1])}
        return {"tool_calls": [{"id": f"c{len(request.messages)}", "type": "function", "function": function}]}

    return FunctionModel("script", reply)
