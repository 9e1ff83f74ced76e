"""Small groups that the judge's tests share."""

import json
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
