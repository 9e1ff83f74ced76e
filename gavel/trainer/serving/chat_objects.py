"""A sampled turn as OpenAI's objects: message, choice, completion, and the chunks of a stream.

A choice, and the last chunk of a streamed one, carries what exact training needs: `token_ids`, `prompt_token_ids`,
`policy_version`, `temperature`, `logprobs` and `continues_sampled`.
"""

import json
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from renderers import ParsedResponse, ToolCallParseStatus

from gavel.llm.types import Message
from gavel.trainer.engines.protocol import Sampled
from gavel.trainer.serving.chat_request import ChatRequest
from gavel.trainer.serving.turn_cache import Prompt

Decode = Callable[[Sequence[int]], str]


def reply_message(parsed: ParsedResponse) -> Message:
    """The assistant message; a tool call that cannot be read stays in the text, for the agent to see."""
    calls = [call for call in parsed.tool_calls if call.status == ToolCallParseStatus.OK]
    broken = [call.raw for call in parsed.tool_calls if call.status != ToolCallParseStatus.OK]
    reply: Message = {"role": "assistant", "content": "\n".join(part for part in (parsed.content, *broken) if part)}
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


def choice_object(
    asked: ChatRequest, index: int, reply: Message, prompt: Prompt, sampled: Sampled, decode: Decode
) -> dict[str, Any]:
    called = reply.get("tool_calls") and sampled.finish_reason == "stop"
    choice: dict[str, Any] = {
        "index": index,
        "finish_reason": "tool_calls" if called else sampled.finish_reason,
        "message": reply,
        "logprobs": None,
        "policy_version": sampled.adapter_version,
        "temperature": asked.temperature,
        "continues_sampled": prompt.continues,
    }
    if asked.logprobs and asked.compact:
        choice["token_logprobs"] = sampled.logprobs
    elif asked.logprobs:
        choice["logprobs"] = logprobs_object(sampled.token_ids, sampled.logprobs, decode)
    if asked.token_ids:
        choice["token_ids"] = sampled.token_ids
        choice["prompt_token_ids"] = prompt.token_ids
    return choice


def logprobs_object(token_ids: Sequence[int], logprobs: Sequence[float], decode: Decode) -> dict[str, Any]:
    return {"content": [_token(*pair, decode) for pair in zip(token_ids, logprobs, strict=True)]}


def completion_object(
    asked: ChatRequest, model: str, choices: list[dict[str, Any]], prompt: Prompt, completion_tokens: int
) -> dict[str, Any]:
    completion: dict[str, Any] = {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": choices,
        "usage": {
            "prompt_tokens": len(prompt.token_ids),
            "completion_tokens": completion_tokens,
            "total_tokens": len(prompt.token_ids) + completion_tokens,
        },
    }
    if asked.token_ids and not asked.compact:  # vLLM has them here
        completion["prompt_token_ids"] = prompt.token_ids
    return completion


def chunks_of(asked: ChatRequest, completion: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The chunks that add up to a completion; see `chat_chunks` for what stands where."""
    head = {name: completion[name] for name in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    for choice in completion["choices"]:
        delta = {name: value for name, value in choice["message"].items() if name != "tool_calls"}
        if calls := choice["message"].get("tool_calls"):
            delta["tool_calls"] = [{"index": at} | call for at, call in enumerate(calls)]
        accumulated = {name: choice[name] for name in ("token_ids", "token_logprobs") if name in choice}
        rest = {name: value for name, value in choice.items() if name != "message"}
        opening = {name: value for name, value in rest.items() if name not in accumulated} | {"finish_reason": None}
        yield head | {"choices": [opening | {"delta": delta | accumulated}]}
        yield head | {"choices": [rest | {"delta": {}, "logprobs": None}]}
    if asked.include_usage:
        yield head | {"choices": [], "usage": completion["usage"]}


def _token(token_id: int, logprob: float, decode: Decode) -> dict[str, Any]:
    text = decode([token_id])
    return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}
