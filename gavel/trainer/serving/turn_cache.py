"""Remembers the token ids of sampled turns, so that a conversation continues from exactly these.

    meaning(messages).key == meaning(rewritten).key

for messages whose tool arguments are compacted or in another order, whose tool calls are renamed consistently, whose
content comes as text parts, that carry null fields, or whose reasoning is left out. Any other change gives another key,
and is rendered. A request that extends a conversation sampled here gets a prompt that starts with the sampled ids.
Where the renderer cannot bridge to the next turn, the messages are rendered again, and the sampled ids replace the
rendered ones if both decode to the same text. Least recently used turns are dropped first.
"""

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from renderers import Renderer

from gavel.llm.types import Message

_INERT = {"refusal", "audio", "annotations", "function_call", "parsed", "token_ids", "token_logprobs"}
"""Fields of a reply that clients send back, and that no prompt shows; a refusal stands for content that is missing."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Compares conversations: harmless rewrites share the `key`; the other fields tell them apart."""

    key: bytes
    call_ids: tuple[str | None, ...]
    """Ids of its tool calls, in order."""
    reasonings: tuple[bytes, ...]
    """A digest of each assistant turn's reasoning; empty where it has none."""

    def is_rewritten(self, sampled: "Meaning", following: Sequence[Message]) -> bool:
        """Whether this is `sampled` with reasoning left out and calls renamed, which the messages after it must follow.

        Both have the same key.
        """
        for given, known in zip(self.reasonings, sampled.reasonings, strict=True):
            if given and given != known:
                return False
        answered = (message.get("tool_call_id") for message in following if message["role"] == "tool")
        return self.call_ids == sampled.call_ids or all(each in self.call_ids for each in answered)

    def likeness(self, sampled: "Meaning") -> tuple[bool, int]:
        """Larger for a likelier origin, among those that this may be rewritten from."""
        pairs = zip(self.reasonings, sampled.reasonings, strict=True)
        return self.call_ids == sampled.call_ids, sum(one == other for one, other in pairs)


def meaning(messages: Sequence[Message]) -> Meaning:
    """The `Meaning` of messages from `plain_message`."""
    said: list[Any] = []
    call_ids: list[str | None] = []
    reasonings: list[bytes] = []
    newest: dict[str | None, int] = {}
    """The number of the call that has an id."""
    for message in messages:
        calls: list[tuple[str, str]] = []
        for call in message.get("tool_calls") or ():
            call_id = call.get("id")
            newest[call_id] = len(call_ids)
            call_ids.append(call_id)
            calls.append((call["function"]["name"], _same_json(call["function"]["arguments"])))
        if message["role"] == "assistant":
            reasoning = message.get("reasoning_content")
            reasonings.append(digest(reasoning)[:8] if reasoning else b"")
        answered = message.get("tool_call_id")
        said.append((message["role"], message.get("content") or "", newest.get(answered, answered), calls))
    return Meaning(digest(said), tuple(call_ids), tuple(reasonings))


def plain_message(message: Message) -> Message:
    """The same as renderers expect it: without nulls, its text in one piece, the developer's as the system's."""
    plain: Message = {name: value for name, value in message.items() if value is not None and name not in _INERT}
    if plain["role"] == "developer":
        plain["role"] = "system"
    content = plain.get("content") or message.get("refusal") or ""
    if isinstance(content, list):
        content = "".join(part[part["type"]] for part in cast("list[dict[str, str]]", content))
    plain["content"] = content
    reasoning = plain.pop("reasoning", None)  # as newer vLLM calls it
    if isinstance(reasoning, str) and not plain.get("reasoning_content"):
        plain["reasoning_content"] = reasoning
    if not plain.get("reasoning_content", True):
        del plain["reasoning_content"]
    if calls := plain.pop("tool_calls", None):
        named = [(call.get("id"), call["function"]["name"], call["function"]["arguments"]) for call in calls]
        plain["tool_calls"] = [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
            for call_id, name, arguments in named
        ]
    return plain


def digest(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value).encode()).digest()


def _same_json(arguments: Any) -> str:
    """One text for all JSON texts of the same arguments, where 3.0 is 3; what is no JSON stands for itself."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    try:
        return json.dumps(json.loads(text or "{}", parse_float=_number), sort_keys=True)
    except ValueError:
        return f"text {text}"


def _number(text: str) -> float:
    value = float(text)
    return int(value) if value.is_integer() else value


_REMEMBERED_TURNS, _ALIKE = 8192, 512
"""Conversations that are kept, and of each the turns that differ in calls' ids and reasoning alone."""


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
    """Key of the arguments; empty for the model's own renderer."""

    @property
    def stop_ids(self) -> frozenset[int]:
        return frozenset(self.renderer.get_stop_token_ids())


@dataclass(frozen=True, slots=True)
class _Turn:
    meaning: Meaning
    """Meaning of the conversation up to and including the turn."""
    ids: dict[bytes, tuple[list[int], list[int]]] = field(default_factory=dict[bytes, tuple[list[int], list[int]]])
    """Token ids of (prompt, turn) by key of tools and template arguments."""


class TurnCache:
    """Renders requests to prompt ids; a bounded cache of sampled turns."""

    def __init__(self, renderer: Renderer, decode: Callable[[Sequence[int]], str]) -> None:
        """`decode` gives the text of token ids, special tokens included."""
        self._renderer = renderer
        self._decode = decode
        self._turns: OrderedDict[bytes, list[_Turn]] = OrderedDict()
        """Those after messages that say the same, the newest last."""

    def prompt(
        self, messages: Sequence[Message], tools: list[Message] | None, chat: ChatFormat | None = None
    ) -> Prompt:
        """The prompt of the next assistant turn, in the chat format of the request."""
        chat = chat or ChatFormat(self._renderer)
        messages = [plain_message(message) for message in messages]
        last = max((i for i, message in enumerate(messages) if message["role"] == "assistant"), default=-1)
        following = messages[last + 1 :]
        turn = self._turn(messages[: last + 1], following) if last >= 0 else None
        known = turn and turn.ids.get(_offered(tools, chat))
        if known and following:
            bridged = chat.renderer.bridge_to_next_turn(*known, following, tools=tools)  # type: ignore[arg-type]
            if bridged is not None:
                return Prompt(list(bridged.token_ids), True)
        asked: Any = {"tools": tools, "add_generation_prompt": True}
        rendered = list(chat.renderer.render_ids(messages, **asked))  # type: ignore[arg-type]
        if known:
            go_on = self._splice if following else self._asked_again
            rendered = go_on(known[0] + known[1], rendered, chat)
        return Prompt(rendered, turn is not None)

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
        said = meaning([plain_message(message) for message in (*messages, reply)])
        alike = self._turns.setdefault(said.key, [])
        turn = next((each for each in alike if each.meaning == said), None)
        if turn is None:
            alike.append(turn := _Turn(said))
        turn.ids[_offered(tools, chat or ChatFormat(self._renderer))] = (prompt_ids, token_ids)
        del alike[:-_ALIKE]
        self._turns.move_to_end(said.key)
        while len(self._turns) > _REMEMBERED_TURNS:
            self._turns.popitem(last=False)

    def _turn(self, messages: Sequence[Message], following: Sequence[Message]) -> _Turn | None:
        """The sampled turn that `messages` end with."""
        said = meaning(messages)
        alike = self._turns.get(said.key, [])
        if alike:
            self._turns.move_to_end(said.key)
        origins = [turn for turn in reversed(alike) if said.is_rewritten(turn.meaning, following)]
        return max(origins, key=lambda turn: said.likeness(turn.meaning), default=None)

    def _asked_again(self, sampled: list[int], rendered: list[int], chat: ChatFormat) -> list[int]:
        """The sampled tokens, and what opens another turn of the assistant after them; `rendered` if a turn that was
        cut has no end."""
        ends = [at for at, token in enumerate(rendered, 1) if token in chat.stop_ids]
        return sampled + rendered[ends[-1] :] if ends and sampled[-1] in chat.stop_ids else rendered

    def _splice(self, sampled: list[int], rendered: list[int], chat: ChatFormat) -> list[int]:
        """`rendered` with its beginning replaced by `sampled`, if both decode to the same text; else `rendered`.

        A turn that was cut by a limit goes on with the end that it is rendered with.
        """
        ends = [at for at, token in enumerate(rendered, 1) if token in chat.stop_ids]
        cut = sampled[-1] not in chat.stop_ids
        turns = sum(token in chat.stop_ids for token in sampled) + cut
        if len(ends) < turns:
            return rendered
        end = ends[turns - 1] - cut
        same = self._decode(rendered[:end]) == self._decode(sampled)
        return sampled + rendered[end:] if same else rendered


def _offered(tools: list[Message] | None, chat: ChatFormat) -> bytes:
    return digest([tools, chat.arguments] if chat.arguments else tools)
