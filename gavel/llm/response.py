"""LiteLLM's response to one request -> a reply with its text, tokens and cost."""

from collections import Counter
from typing import Any

from gavel.llm.completion import read_message, sendable
from gavel.llm.prices import Prices, cost, listed_cost
from gavel.llm.providers import load_litellm
from gavel.llm.refusal_wording import CONTENT_FILTER, refusal_in
from gavel.llm.types import Message, Reply
from gavel.llm.usage import read_usage


def read_response(model: str, response: Any, messages: list[Message], prices: Prices, repairs: Counter[str]) -> Reply:
    """The reply in LiteLLM's response to `messages`. `repairs`: those that the response took, by kind.

    Its cost is by `prices` or LiteLLM's table. Tokens that the server did not count are counted here.
    """
    litellm = load_litellm()
    finish_reason = response.choices[0].finish_reason if response.choices else None
    message: dict[str, Any] = response.choices[0].message.model_dump() if response.choices else {}
    if finish_reason == "length":
        message["reasoning_content"] = None  # reasoning that is cut off holds no answer
    text, more = read_message(message)
    if not text.strip() and (refusal := refusal_in(message)):
        text, finish_reason = refusal, CONTENT_FILTER
    usage = read_usage(response.usage)
    prompt_tokens = usage.prompt_tokens or litellm.token_counter(model=model, messages=messages)
    completion_tokens = usage.completion_tokens or litellm.token_counter(model=model, text=text)
    cached, written = usage.cached_prompt_tokens, usage.written_prompt_tokens
    usd = cost(model, prompt_tokens, completion_tokens, prices, cached, written)
    if usd is None:
        usd = listed_cost(model, response, usage)
    return Reply(
        text,
        prompt_tokens,
        completion_tokens,
        usd,
        finish_reason or "",
        served_by=model_name(response.model),
        repairs=repairs + more,
        cached_prompt_tokens=cached,
    )


def model_name(reported: object) -> str:
    """The name of the model that answered; "" where the server reports none, or something else."""
    return sendable(reported)[:_LONGEST_NAME] if isinstance(reported, str) else ""


_LONGEST_NAME = 200
