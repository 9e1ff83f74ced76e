"""Remembers the token ids of sampled turns, so that a conversation continues from exactly these.

A request that extends a conversation sampled here gets a prompt that starts with the sampled ids. Where the renderer
cannot bridge to the next turn, the messages are rendered again, and the sampled ids replace the rendered ones if both
decode to the same text. Messages that a client changed are rendered. Least recently used turns are dropped first.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from renderers import Renderer

from gavel.llm.types import Message

T = TypeVar("T")

_REMEMBERED_TURNS = 8192


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of the next assistant turn."""

    token_ids: list[int]
    continues: bool
    """Whether the last assistant message was sampled here, and nothing up to it has been changed."""


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """The renderer of a request, by the arguments of the chat template that it gives."""

    renderer: Renderer
    arguments: str = ""
    """What tells it from others; empty for the model's own."""

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset(self.renderer.get_stop_token_ids())


class TurnCache:
    """Renders requests to prompt ids; a bounded cache of sampled turns."""

    def __init__(self, renderer: Renderer, decode: Callable[[Sequence[int]], str]) -> None:
        """`decode` gives the text of token ids, special tokens included."""
        self._renderer = renderer
        self._decode = decode
        self._turns: OrderedDict[bytes, dict[bytes, tuple[list[int], list[int]]]] = OrderedDict()
        """Prompt and sampled ids, by the messages up to the turn, and by the tools and arguments of the template."""
        self._openings: OrderedDict[bytes, list[int]] = OrderedDict()

    def prompt(
        self, messages: Sequence[Message], tools: list[Message] | None, chat: ChatFormat | None = None
    ) -> Prompt:
        """The prompt of the next assistant turn, in the chat format of the request."""
        chat = chat or ChatFormat(self._renderer)
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=None)
        if last is None or last + 1 == len(messages):
            return Prompt(self._rendered(messages, tools, chat), False)
        turns = _recall(self._turns, _key(messages[: last + 1])) or {}
        known = turns.get(_offered(tools, chat))
        if known is None:
            return Prompt(self._rendered(messages, tools, chat), bool(turns))
        bridged = chat.renderer.bridge_to_next_turn(
            *known,
            list(messages[last + 1 :]),  # type: ignore[arg-type]
            tools=tools,  # type: ignore[arg-type]
        )
        if bridged is not None:
            return Prompt(list(bridged.token_ids), True)
        return Prompt(self._spliced(known[0] + known[1], self._rendered(messages, tools, chat), chat), True)

    def sampled(
        self,
        messages: Sequence[Message],
        tools: list[Message] | None,
        reply: Message,
        prompt_ids: list[int],
        token_ids: list[int],
        chat: ChatFormat | None = None,
    ) -> None:
        """Remembers that `reply` to `messages` was sampled as `token_ids` after `prompt_ids`."""
        key = _key([*messages, reply])
        offered = _offered(tools, chat or ChatFormat(self._renderer))
        turns = self._turns.get(key, {}) | {offered: (prompt_ids, token_ids)}
        _remember(self._turns, key, turns)

    def _rendered(self, messages: Sequence[Message], tools: list[Message] | None, chat: ChatFormat) -> list[int]:
        key = _key(messages) + _offered(tools, chat)
        opening = _recall(self._openings, key)
        if opening is None:
            rendered = chat.renderer.render_ids(
                [_renderable(message) for message in messages],  # type: ignore[arg-type]
                tools=tools,  # type: ignore[arg-type]
                add_generation_prompt=True,
            )
            opening = list(rendered)
            _remember(self._openings, key, opening)
        return opening

    def _spliced(self, sampled: list[int], rendered: list[int], chat: ChatFormat) -> list[int]:
        """`rendered` with its beginning replaced by `sampled`, if both decode to the same text; else `rendered`."""
        ends = [at for at, token in enumerate(rendered, 1) if token in chat.stop_ids]
        turns = sum(token in chat.stop_ids for token in sampled)
        if sampled[-1] not in chat.stop_ids or len(ends) < turns:
            return rendered
        end = ends[turns - 1]
        same = self._decode(rendered[:end]) == self._decode(sampled)
        return sampled + rendered[end:] if same else rendered


def _recall(memory: OrderedDict[bytes, T], key: bytes) -> T | None:
    if key in memory:
        memory.move_to_end(key)
    return memory.get(key)


def _remember(memory: OrderedDict[bytes, T], key: bytes, value: T) -> None:
    memory[key] = value
    memory.move_to_end(key)
    while len(memory) > _REMEMBERED_TURNS:
        memory.popitem(last=False)


def _key(messages: Sequence[Message]) -> bytes:
    return _digest(
        [
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
    )


def conversation_key(messages: Sequence[Message]) -> bytes:
    """Equal for conversations that say the same."""
    return _key(messages)


def _offered(tools: list[Message] | None, chat: ChatFormat) -> bytes:
    return _digest([tools, chat.arguments] if chat.arguments else tools)


def _digest(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value).encode()).digest()


def _renderable(message: Message) -> Message:
    """OpenAI's null contents as the empty text that renderers expect."""
    return message | {"content": ""} if message.get("content") is None else message
