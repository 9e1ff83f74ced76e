"""What the messages of a conversation say, whatever a client does to the way in which they say it.

    meaning(messages).key == meaning(rewritten).key

for messages whose tool arguments are compacted or in another order, whose tool calls are renamed consistently, whose
content comes as text parts, that carry null fields, or whose reasoning is left out. Any other change gives another key.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from gavel.llm.types import Message

_INERT = {"refusal", "audio", "annotations", "function_call", "parsed", "token_ids", "token_logprobs"}
"""Fields of a reply that clients send back, and that no prompt shows; a refusal stands for content that is missing."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """Of a conversation: the key is what all harmless rewrites have in common, the rest is what tells them apart."""

    key: bytes
    call_ids: tuple[str | None, ...]
    """Of its tool calls, in order."""
    reasonings: tuple[bytes, ...]
    """A digest of each assistant turn's reasoning; empty where it has none."""

    @property
    def exact(self) -> bytes:
        return digest([self.key.hex(), self.call_ids, [each.hex() for each in self.reasonings]])

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
    """Of messages as `plain_message` gives them."""
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
        plain["tool_calls"] = [_plain_call(call) for call in calls]
    return plain


def digest(value: object) -> bytes:
    return hashlib.sha256(json.dumps(value).encode()).digest()


def _plain_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {
        "id": call.get("id"),
        "type": "function",
        "function": {"name": function["name"], "arguments": function["arguments"]},
    }


def _same_json(arguments: Any) -> str:
    """One text for all JSON texts of the same arguments; what is no JSON stands for itself."""
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            return f"text {arguments}"
    return json.dumps(_same_numbers(arguments), sort_keys=True)


def _same_numbers(value: Any) -> Any:
    """Numbers as JavaScript writes them: 3.0 is 3."""
    match value:
        case dict():
            return {name: _same_numbers(each) for name, each in cast("dict[str, Any]", value).items()}
        case list():
            return [_same_numbers(each) for each in cast("list[Any]", value)]
        case float() if value.is_integer():
            return int(value)
        case _:
            return value
