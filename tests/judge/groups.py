"""Small groups that the judge's tests share."""

import json
import re
from collections.abc import Sequence
from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.group import TrajectoryGroup
from gavel.scenarios.trajectory import MessagesAndChoices, Trajectory

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]},
        },
    }
    for name, description in [
        ("get_order", "Look up an order."),
        ("get_policy", "Look up an item's policy."),
        ("refund", "Refund an order."),
        ("exchange", "Exchange an item."),
        ("deny", "Deny the request."),
    ]
]

OPENING: list[Message] = [
    {"role": "system", "content": "You run the returns desk."},
    {"role": "user", "content": "I want a refund for order 7890."},
]

RESULTS: dict[str, Any] = {
    "get_order": {"item": "lamp", "days": 10, "opened": True},
    "get_policy": {"window": 30, "opened_ok": True},
    "refund": {"done": "refunded"},
    "exchange": {"done": "exchanged"},
    "deny": {"done": "denied"},
}


def choice(
    content: str | None = None, calls: Sequence[tuple[str, str]] = (), call_id: str = "c", **extra: Any
) -> Choice:
    """A sampled turn with tool calls as (name, arguments JSON)."""
    message: dict[str, Any] = {"role": "assistant", "content": content}
    if calls:
        message["tool_calls"] = [
            {"id": f"{call_id}{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(calls)
        ]
    return Choice.model_validate({"index": 0, "finish_reason": "stop", "message": message, **extra})


def desk(*tools: str, ending: str | None = "Done.", call_id: str = "c", **fields: Any) -> Trajectory:
    """An attempt at the returns desk that calls these tools one by one, then says `ending`."""
    items: MessagesAndChoices = list(OPENING)
    for number, tool in enumerate(tools):
        items.append(choice(calls=[(tool, '{"id": "7890"}')], call_id=f"{call_id}{number}-"))
        items.append({"role": "tool", "tool_call_id": f"{call_id}{number}-0", "content": json.dumps(RESULTS[tool])})
    if ending is not None:
        items.append(choice(ending))
    return Trajectory(messages_and_choices=items, tools=TOOLS, **fields)


def saying(*texts: str, **fields: Any) -> TrajectoryGroup:
    """A group whose members say one thing each."""
    return TrajectoryGroup((Trajectory(messages_and_choices=[*OPENING, choice(text)]) for text in texts), **fields)


def qualities(*numbers: int) -> TrajectoryGroup:
    """A group whose members tell their quality, from 0 to 9."""
    return saying(*(f"quality {number}, attempt {n}" for n, number in enumerate(numbers)))


def by_length(messages: Sequence[Message]) -> dict[str, float]:
    """A tenth for each letter of what a member says, by label: a judge that likes long endings."""
    shown = re.findall(r"trajectory (\w+)\n¦\w+ assistant: (\w*)", messages[1]["content"])
    return {label: len(text) / 10 for label, text in shown}


async def prefers_length(messages: Sequence[Message], schema: object) -> str:
    return json.dumps(by_length(messages))


async def broken(messages: Sequence[Message], schema: object) -> str:
    raise ValueError("no idea")


async def never(messages: Sequence[Message], schema: object) -> str:
    raise AssertionError("asked")


class Watches:
    """A judge that gives everyone 0.5 and keeps the messages that it was sent."""

    def __init__(self) -> None:
        self.prompts: list[list[dict[str, Any]]] = []

    async def __call__(self, messages: list[dict[str, Any]], schema: dict[str, Any]) -> str:
        self.prompts.append(messages)
        labels = schema["properties"]["scores"]["items"]["properties"]["trajectory_id"]["enum"]
        return json.dumps({"scores": [{"trajectory_id": n, "explanation": "", "score": 0.5} for n in labels]})

    @property
    def system(self) -> str:
        return self.prompts[-1][0]["content"]

    @property
    def user(self) -> str:
        return self.prompts[-1][1]["content"]
