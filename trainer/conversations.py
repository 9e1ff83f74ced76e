"""Which tokens a conversation was sampled as.

A request whose messages continue a conversation that was sampled here is continued from those very
token ids; it is rendered afresh only when the renderer cannot prove the bridge, or when the client
changed what was said. The memory is bounded: the longest unused turns are forgotten first.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Sequence
from typing import TypeVar

from renderers import Renderer

from scenarios.trajectory import Message

T = TypeVar("T")

_REMEMBERED_TURNS = 8192


class Conversations:
    """Renders requests to prompt ids, over a memory of sampled turns."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._turns: OrderedDict[bytes, tuple[list[int], list[int]]] = OrderedDict()
        self._openings: OrderedDict[bytes, list[int]] = OrderedDict()

    def prompt_ids(self, messages: Sequence[Message], tools: list[Message] | None) -> list[int]:
        """The token ids of the prompt that asks for the next assistant turn."""
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
        if last is not None and last + 1 < len(messages):
            known = _recall(self._turns, _key(messages[: last + 1], tools))
            if known is not None:
                bridged = self._renderer.bridge_to_next_turn(
                    *known,
                    list(messages[last + 1 :]),  # type: ignore[arg-type]
                    tools=tools,  # type: ignore[arg-type]
                )
                if bridged is not None:
                    return list(bridged.token_ids)
        key = _key(messages, tools)
        opening = _recall(self._openings, key)
        if opening is None:
            rendered = self._renderer.render_ids(
                [_renderable(message) for message in messages],  # type: ignore[arg-type]
                tools=tools,  # type: ignore[arg-type]
                add_generation_prompt=True,
            )
            opening = list(rendered)
            _remember(self._openings, key, opening)
        return opening

    def sampled(
        self,
        messages: Sequence[Message],
        tools: list[Message] | None,
        reply: Message,
        prompt_ids: list[int],
        token_ids: list[int],
    ) -> None:
        """Remembers that `reply` to `messages` was sampled as `token_ids` after `prompt_ids`."""
        _remember(self._turns, _key([*messages, reply], tools), (prompt_ids, token_ids))


def _recall(memory: OrderedDict[bytes, T], key: bytes) -> T | None:
    if key in memory:
        memory.move_to_end(key)
    return memory.get(key)


def _remember(memory: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED_TURNS:
        memory.popitem(last=False)


def _key(messages: Sequence[Message], tools: list[Message] | None) -> bytes:
    essence = [
        (
            message["role"],
            message.get("content") or "",
            message.get("reasoning_content") or "",
            message.get("tool_call_id"),
            [
                (call["id"], call["function"]["name"], call["function"]["arguments"])
                for call in message.get("tool_calls") or ()
            ],
        )
        for message in messages
    ]
    return hashlib.sha256(json.dumps([essence, tools]).encode()).digest()


def _renderable(message: Message) -> Message:
    """OpenAI's null contents as the empty text that renderers expect."""
    return message | {"content": ""} if message.get("content") is None else message
