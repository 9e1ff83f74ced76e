"""A program's requests to a chat model, reassembled into the histories of a trajectory.

calls ([u], A1), ([u, A1, t], A2), ([s], B1)  →  [u, A1, t, A2] and [s, B1]
"""

import json
from collections.abc import Sequence
from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.trajectory import History, Trajectory


def add_turn(
    trajectory: Trajectory,
    messages: Sequence[Message],
    tools: list[Message] | None,
    choice: Choice,
    new: type[History] = History,
) -> None:
    """Adds a turn, in place, to the longest history whose messages the request begins with; else to a `new` one."""
    histories = [trajectory, *trajectory.additional_histories]
    fitting = [each for each in histories if _begins(each.messages(), messages)]
    if fitting:
        history = max(fitting, key=lambda each: len(each.messages_and_choices))
    else:
        history = new()
        trajectory.additional_histories.append(history)
    history.messages_and_choices += [*messages[len(history.messages_and_choices) :], choice]
    history.tools = tools or history.tools


def _begins(said: Sequence[Message], messages: Sequence[Message]) -> bool:
    return [*map(_essence, said)] == [*map(_essence, messages[: len(said)])]


def _essence(message: Message) -> tuple[Any, ...]:
    """A message's content, independent of fields that clients drop, add or reorder."""
    functions: list[Message] = [call.get("function") or {} for call in message.get("tool_calls") or ()]
    calls = [(each.get("name"), _parsed(each.get("arguments"))) for each in functions]
    return message["role"], message.get("content") or "", calls, message.get("tool_call_id")


def _parsed(arguments: Any) -> Any:
    try:
        return json.loads(arguments)
    except (TypeError, ValueError):
        return arguments
