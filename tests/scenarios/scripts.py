"""Agents and rollouts that follow a script."""

import asyncio
import contextlib
import gc
import json
import warnings
from collections.abc import Iterator
from typing import Any

from gavel.llm.types import Message
from gavel.scenarios.chat_model import ChatRequest, FunctionModel
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import Trajectory

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


async def act(
    name: str = "", after: asyncio.Event | None = None, then: asyncio.Event | None = None, **fields: object
) -> Trajectory:
    """A rollout that waits for `after`, and sets `then` when it is done."""
    if after:
        await after.wait()
    if then:
        then.set()
    return Trajectory(metadata={"name": name}, **fields)


def names(*groups: TrajectoryGroup) -> list[list[object]]:
    return [[trajectory.metadata["name"] for trajectory in group] for group in groups]


@contextlib.contextmanager
def nothing_left_unawaited() -> Iterator[None]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert not [warning for warning in caught if "never awaited" in str(warning.message)]
