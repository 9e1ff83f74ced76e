"""What vLLM's completions endpoint answers: errors, and streams joined to what it answers without streaming."""

import json
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import httpx

from gavel.trainer.engines.protocol import EngineError, OnTokens, Sampled


async def streamed_choice(response: httpx.Response, on_tokens: OnTokens, version: int, top: int = 0) -> dict[str, Any]:
    """The choice that the events of a stream add up to; `on_tokens` hears its tokens as they come, with `top` likeliest
    ones beside each.

    Raises `EngineError` for an error among the events, and `ValueError` or `KeyError` for what is no such stream.
    """
    token_ids: list[int] = []
    logprobs: list[float] = []
    likeliest: list[dict[str, float]] = []
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
            told = (choice["logprobs"].get("top_logprobs") or []) if new else []
            likeliest += told
            finish_reason = choice["finish_reason"] or finish_reason
            if new:
                on_tokens(Sampled(new, values, "stop", version, top_logprobs(told, top)))
    if finish_reason is None:
        raise ValueError("the stream ended before its finish_reason")
    shown = {"token_logprobs": logprobs, "top_logprobs": likeliest}
    return {"token_ids": token_ids, "logprobs": shown, "finish_reason": finish_reason}


def top_logprobs(told: Sequence[Mapping[str, float]], count: int) -> list[list[tuple[int, float]]]:
    """The likeliest tokens at each position, of `return_tokens_as_token_ids`; none where none were asked for."""
    if not count:
        return []
    found: list[list[tuple[int, float]]] = []
    for each in told:
        pairs = [(int(name.removeprefix("token_id:")), value) for name, value in each.items()]
        found.append(sorted(pairs, key=lambda pair: -pair[1])[:count])
    return found


def sampled_turn(choice: Mapping[str, Any], version: int, top: int, redrawn: bool) -> Sampled:
    """`redrawn`: whether a grammar chose among its tokens."""
    shown, token_ids = choice["logprobs"], choice["token_ids"]
    likeliest = top_logprobs(shown.get("top_logprobs") or [], top)
    count = len(token_ids) if redrawn else 0
    return Sampled(token_ids, shown["token_logprobs"], choice["finish_reason"], version, likeliest, count)


def error_message(response: httpx.Response) -> str:
    """The message of an error response."""
    try:
        return _message(response.json())
    except (ValueError, KeyError, TypeError):
        return response.text


def failed_future(error: EngineError) -> "Future[Any]":
    """What a request gets that is not even sent."""
    future: Future[Any] = Future()
    future.set_exception(error)
    return future


def _message(body: Mapping[str, Any]) -> str:
    return body["error"]["message"]
