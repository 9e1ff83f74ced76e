"""What vLLM's completions endpoint answers: errors, and streams joined to what it answers without streaming."""

import json
from collections.abc import Mapping
from typing import Any

import httpx

from gavel.trainer.engines.protocol import EngineError, OnTokens


async def streamed_choice(response: httpx.Response, on_tokens: OnTokens, version: int) -> dict[str, Any]:
    """The choice that the events of a stream add up to; `on_tokens` hears its tokens as they come.

    Raises `EngineError` for an error among the events, and `ValueError` or `KeyError` for what is no such stream.
    """
    token_ids: list[int] = []
    logprobs: list[float] = []
    finish_reason: str | None = None
    async for line in response.aiter_lines():
        if not line.startswith("data:") or line == "data: [DONE]":
            continue
        event = json.loads(line.removeprefix("data:"))
        if "error" in event:
            raise EngineError(f"the server ended a stream early: {_message(event)}")
        for choice in event["choices"]:
            new = choice["token_ids"] or []
            values = choice["logprobs"]["token_logprobs"] if new else []
            token_ids += new
            logprobs += values
            finish_reason = choice["finish_reason"] or finish_reason
            if new:
                on_tokens(new, values, version)
    if finish_reason is None:
        raise ValueError("the stream ended before its finish_reason")
    return {"token_ids": token_ids, "logprobs": {"token_logprobs": logprobs}, "finish_reason": finish_reason}


def error_message(response: httpx.Response) -> str:
    """The message of an error response."""
    try:
        return _message(response.json())
    except (ValueError, KeyError, TypeError):
        return response.text


def _message(body: Mapping[str, Any]) -> str:
    return body["error"]["message"]
