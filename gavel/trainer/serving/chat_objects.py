"""A sampled turn as OpenAI's objects: message, choice, completion, and what a stream may show of it.

A choice, and the last chunk of a streamed one, carries what exact training needs: `token_ids`, `prompt_token_ids`,
`policy_version`, `temperature`, `logprobs`, `continues_sampled` and `sample_id`. A tool call that cannot be read is
text of its message, as it was sampled. A stream shows text once nothing that follows can take it back: no beginning of
a call or of a stop string, no half of a character, no space that may be stripped from the end.
"""

import json
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from renderers import ParsedResponse, ParsedToolCall, ToolCallParseStatus

from gavel.llm.types import Message
from gavel.trainer.engines.protocol import BASE, Sampled, SamplingRequest
from gavel.trainer.serving.chat_request import ChatRequest
from gavel.trainer.serving.turn_cache import ChatFormat, Prompt

_OPENING = re.compile(r"[<\[{`][^\s>\]}]{0,32}\Z")
"""The end of a text that may turn out to begin a tool call."""
_HALF = "\ufffd"
"""The character that an incomplete UTF-8 sequence decodes to."""
_DATA = ("{", "[", "<", "`")
"""Prefixes of a text that may turn out to be a tool call as a whole."""
_FIELDS = ("reasoning_content", "content")

Part = Literal["reasoning", "text", "call"]
Decode = Callable[[Sequence[int]], str]
_OF_THE_WHOLE = ("message", "token_ids", "token_logprobs", "logprobs", "finish_reason", "sample_id")
"""Fields of a choice that are not known when it begins."""


@dataclass(frozen=True, slots=True)
class Chat:
    """A request that is being answered, or one of its turns."""

    asked: ChatRequest
    form: ChatFormat
    prompt: Prompt
    request: SamplingRequest
    decode: Decode
    opening: tuple[int, ...] = ()
    """Tokens at the prompt's end that the turn begins with: it is a second attempt, which is made to call a tool."""
    sample_id: str = ""
    """Distinguishes the turn from an equal one."""

    def parse(self, token_ids: Sequence[int]) -> ParsedResponse:
        return self.form.renderer.parse_response(
            [*self.opening, *token_ids],
            tools=self.asked.offered,  # type: ignore[arg-type]
            prompt_ids=self.prompt.token_ids[: len(self.prompt.token_ids) - len(self.opening)],
        )


class ChoiceChunks:
    """Makes the chunks of a choice, without what they share."""

    def __init__(self, chat: Chat, index: int) -> None:
        self._chat, self._asked, self._index = chat, chat.asked, index
        self._shown: dict[str, str] = dict.fromkeys(_FIELDS, "")
        self._parsed = self._told = 0
        """Tokens at the last look, and those that were shown."""

    def opening(self, turn: Sampled) -> dict[str, Any]:
        """The first chunk, which says what is known before a token."""
        empty = Sampled([], [], "stop", turn.adapter_version)
        choice = choice_object(self._chat, self._index, {}, empty)
        known = {name: value for name, value in choice.items() if name not in _OF_THE_WHOLE}
        return known | {"delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def more(self, turn: Sampled) -> dict[str, Any] | None:
        """The chunk of what is new in a turn that is still being sampled; None where that is too little."""
        if len(turn.token_ids) < self._parsed + 1 + self._parsed // 64:  # parsing takes a turn's length each time
            return None
        self._parsed = len(turn.token_ids)
        parsed = self._chat.parse(turn.token_ids)
        if parsed.tool_calls:
            return self._chunk({}, turn)
        content = parsed.content
        reasoning = (parsed.reasoning_content or "").lstrip()  # as most parsers do once it is complete
        safe = {"content": self._certain(content), "reasoning_content": self._certain(reasoning)}
        if self._asked.offered is not None and content.lstrip().startswith(_DATA):
            safe["content"] = ""
        delta: dict[str, Any] = {}
        for name, text in safe.items():
            if text.startswith(shown := self._shown[name]) and text != shown:
                delta[name], self._shown[name] = text[len(shown) :], text
        return self._chunk(delta, turn)

    def rest(self, reply: Message, turn: Sampled, chat: Chat) -> dict[str, Any]:
        """The last chunk, of the turn as it was asked for in the end. Text that was shown stays as shown, in `reply`
        too, even if the final parse differs."""
        self._chat = chat
        delta: dict[str, Any] = {}
        for name in _FIELDS:
            whole, shown = reply.get(name) or "", self._shown[name]
            if name == "reasoning_content":
                whole = whole.lstrip()
            piece = whole.removeprefix(shown) if whole.startswith(shown) else ""
            if name in reply or shown:
                reply[name] = shown + piece
            if piece:
                delta[name] = piece
        if calls := reply.get("tool_calls"):
            delta["tool_calls"] = [{"index": at} | call for at, call in enumerate(calls)]
        choice = choice_object(chat, self._index, reply, turn)
        del choice["message"], choice["logprobs"]
        return choice | self._chunk(delta, turn) | {"finish_reason": choice["finish_reason"]}

    def _chunk(self, delta: dict[str, Any], turn: Sampled) -> dict[str, Any]:
        told, self._told = self._told, len(turn.token_ids)
        new_ids, new_logprobs = turn.token_ids[told:], turn.logprobs[told:]
        logprobs = None
        if self._asked.return_token_ids:
            delta = delta | {"token_ids": new_ids}
        if self._asked.logprobs and self._asked.compact_logprobs:
            delta = delta | {"token_logprobs": new_logprobs}
        elif self._asked.logprobs and new_ids:
            logprobs = logprobs_object(turn, self._chat.decode, told)
        return {"index": self._index, "delta": delta, "logprobs": logprobs, "finish_reason": None}

    def _certain(self, text: str) -> str:
        before = None
        while text != before:
            before, text = text, _OPENING.sub("", text.rstrip().rstrip(_HALF))
        for stop in self._asked.stop:
            if (at := text.find(stop)) >= 0:
                text = text[:at]
            longest = next((n for n in range(min(len(stop), len(text)), 0, -1) if text.endswith(stop[:n])), 0)
            text = text[: len(text) - longest]
        return text


def with_calls(
    parsed: ParsedResponse, calls: Sequence[ParsedToolCall], token_ids: Sequence[int], decode: Decode
) -> str:
    """The content and behind it `calls`, as they were sampled where the turn has no others.

    `token_ids`: of the turn, without the token that ended it.
    """
    parts = [part for part in (parsed.content, *(_sampled(call, token_ids, decode) for call in calls)) if part]
    if len(calls) == len(parsed.tool_calls) and parts:
        whole, thought = decode(token_ids), parsed.reasoning_content or ""
        start = whole.find(parts[0], max(0, whole.find(thought)) + len(thought))
        if start >= 0:
            return whole[start:]
    return "\n".join(parts)


def _sampled(call: ParsedToolCall, token_ids: Sequence[int], decode: Decode) -> str:
    """The call's tokens with the tags around them, if the parser reports which tokens it read."""
    if call.token_span is None:
        return call.raw
    text = decode(token_ids[slice(*call.token_span)])
    return text if call.raw.strip() in text else call.raw


def is_call(call: ParsedToolCall) -> bool:
    """Whether an agent can be given a tool call: one that can be read, whose name is text, and whose arguments are an
    object of JSON, which knows no infinite numbers."""
    if call.status != ToolCallParseStatus.OK or not isinstance(call.name, str):
        return False
    try:
        given = json.loads(call.arguments) if isinstance(call.arguments, str) else call.arguments
        json.dumps(given, allow_nan=False)
    except (ValueError, RecursionError):
        return False
    return isinstance(given, dict)


def reply_message(parsed: ParsedResponse, token_ids: Sequence[int], decode: Decode, *, tools: bool = True) -> Message:
    """The assistant message that `token_ids` are parsed as; a tool call that cannot be read stays in the text, for the
    agent to see, and so does any where no `tools` may be called."""
    calls = [call for call in parsed.tool_calls if tools and is_call(call)]
    unread = [call for call in parsed.tool_calls if not (tools and is_call(call))]
    content = with_calls(parsed, unread, token_ids, decode) if unread else parsed.content
    reply: Message = {"role": "assistant", "content": content}
    if parsed.reasoning_content:
        reply["reasoning_content"] = parsed.reasoning_content
    if calls:
        reply["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {
                    "name": call.name or "",
                    "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
                },
            }
            for call in calls
        ]
    return reply


def choice_object(chat: Chat, index: int, reply: Message, sampled: Sampled) -> dict[str, Any]:
    asked, shaping = chat.asked, chat.request.shaping
    called = reply.get("tool_calls") and sampled.finish_reason == "stop"
    choice: dict[str, Any] = {
        "index": index,
        "finish_reason": "tool_calls" if called else sampled.finish_reason,
        "message": reply,
        "logprobs": None,
        "policy_version": sampled.adapter_version,
        "temperature": asked.temperature,
        "continues_sampled": chat.prompt.continues,
    }
    if chat.sample_id:
        choice["sample_id"] = chat.sample_id
    shaped_by = sorted(shaping.asked()) if shaping else []
    if sampled.redrawn:
        shaped_by.append("response_format")
    if sampled.adapter_version == BASE:
        shaped_by.append("model")
    if chat.opening:
        choice["discarded_attempts"] = 1
    if shaped_by:
        choice["shaped_by"] = shaped_by
    if asked.stop and sampled.finish_reason == "stop":  # as vLLM calls it: the one that comes first
        text = chat.decode(sampled.token_ids)
        choice["stop_reason"] = min((each for each in asked.stop if each in text), key=text.find, default=None)
    if asked.logprobs and asked.compact_logprobs:
        choice["token_logprobs"] = sampled.logprobs
    elif asked.logprobs:
        choice["logprobs"] = logprobs_object(sampled, chat.decode)
    if asked.return_token_ids:
        choice["token_ids"] = sampled.token_ids
        choice["prompt_token_ids"] = chat.prompt.token_ids
    return choice


def logprobs_object(sampled: Sampled, decode: Decode, start: int = 0) -> dict[str, Any]:
    """The log-probs of its tokens from `start` on."""
    pairs = zip(sampled.token_ids[start:], sampled.logprobs[start:], strict=True)
    return {"content": [_token(*pair, decode) for pair in pairs]}


def parts_of(said: Message) -> Iterator[tuple[Part, Message, str]]:
    """The parts of an assistant message: the kind, the call, and the text."""
    if said.get("reasoning_content"):
        yield "reasoning", {}, said["reasoning_content"]
    if said.get("content"):
        yield "text", {}, said["content"]
    for call in said.get("tool_calls") or ():
        yield "call", call, call["function"]["arguments"]


def usage_object(prompt: Prompt, completion_tokens: int) -> dict[str, int]:
    asked = len(prompt.token_ids)
    return {
        "prompt_tokens": asked,
        "completion_tokens": completion_tokens,
        "total_tokens": asked + completion_tokens,
    }


def head_object(model: str, kind: str) -> dict[str, Any]:
    return {"id": f"chatcmpl-{uuid.uuid4().hex}", "object": kind, "created": int(time.time()), "model": model}


def _token(token_id: int, logprob: float, decode: Decode) -> dict[str, Any]:
    text = decode([token_id])
    # Part of a character decodes to the sign for what is none, whose bytes are not the token's.
    shown = None if _HALF in text else list(text.encode())
    return {"token": text, "logprob": logprob, "bytes": shown, "top_logprobs": []}
