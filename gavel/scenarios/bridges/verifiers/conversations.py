"""What a program asked a model, put together again as conversations.

    calls ([u], A1), ([u, A1, t], A2), ([s], B1)  →  [u, A1, t, A2] and [s, B1]

A request continues the conversation whose messages it begins with; any other one begins a further conversation.
"""

from typing import Any

from openai.types.chat.chat_completion import Choice

from gavel.llm.types import Message
from gavel.scenarios.trajectory import History, MessageOrChoice, Trajectory


class Conversations:
    def __init__(self) -> None:
        self._found: list[History] = []
        self.turns = 0

    def add(self, messages: list[Message], tools: list[Message] | None, choice: Choice) -> None:
        """A turn: the request's messages, and what was sampled."""
        self.turns += 1
        longest = max((each for each in self._found if _begins(each, messages)), key=_length, default=None)
        if longest is None:
            longest = History(messages_and_choices=list[MessageOrChoice](messages), tools=tools or None)
            self._found.append(longest)
        else:
            longest.messages_and_choices += messages[_length(longest) :]
        longest.messages_and_choices.append(choice)

    def into(self, trajectory: Trajectory) -> None:
        """The longest conversation is the trajectory's own, the others are its further histories."""
        first, *others = sorted(self._found, key=_length, reverse=True) or [History()]
        trajectory.messages_and_choices = first.messages_and_choices
        trajectory.tools = first.tools
        trajectory.additional_histories = others


def _length(history: History) -> int:
    return len(history.messages_and_choices)


def _begins(history: History, messages: list[Message]) -> bool:
    said = history.messages()
    return len(said) < len(messages) and all(
        _plain(one) == _plain(other) for one, other in zip(said, messages, strict=False)
    )


def _plain(message: Message) -> tuple[Any, ...]:
    """What stays of a message when a program sends it again."""
    made: list[Message] = message.get("tool_calls") or []
    calls = [(call.get("id"), _name(call)) for call in made]
    return message.get("role"), message.get("content") or None, message.get("tool_call_id"), calls


def _name(call: Message) -> Any:
    function: Message = call.get("function") or {}
    return function.get("name")
