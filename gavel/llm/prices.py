"""The cost of a call, in US dollars; an unknown cost is None, never 0."""

import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from gavel.llm.errors import LlmError
from gavel.llm.providers import is_local, load_litellm, model_info
from gavel.llm.types import Usage

Price = tuple[float, float] | tuple[float, float, float]
"""US dollars per million prompt tokens, per million completion tokens and, where it is lower, per million prompt tokens
that the server had in its cache."""

Prices = Mapping[str, Price]
"""Model id -> price."""

_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
PriceTable = dict[str, tuple[_Usd, _Usd] | tuple[_Usd, _Usd, _Usd]]
"""`Prices` with the check of each amount: a dollar budget could not be kept with one below 0."""


def prices_from_environment() -> Prices:
    """The prices in `GAVEL_PRICES`, JSON such as `{"openai/gpt-5-mini": [0.25, 2]}`; empty if it is not set."""
    text = os.environ.get("GAVEL_PRICES", "").strip()
    if not text:
        return {}
    try:
        return TypeAdapter(PriceTable).validate_json(text)
    except ValidationError as error:
        raise LlmError(
            f"GAVEL_PRICES is not a table of prices: {text[:80]}",
            "Write USD per million prompt and completion tokens, and if you like per million cached prompt tokens: "
            'GAVEL_PRICES={"openai/gpt-5-mini": [0.25, 2, 0.025]}',
        ) from error


def _given(model: str, prices: Prices) -> Price | None:
    """The user's price; a local model is free."""
    return prices.get(model) or ((0.0, 0.0) if is_local(model) else None)


def price(model: str, prices: Prices) -> Price | None:
    """The user's price, else LiteLLM's; None = unknown."""
    given = _given(model, prices)
    if given:
        return given
    listed = model_info(model)
    per_token = listed.get("input_cost_per_token") or 0.0, listed.get("output_cost_per_token") or 0.0
    if not any(per_token):  # LiteLLM's mark of an unknown price
        return None
    return per_token[0] * 1e6, per_token[1] * 1e6


def cost(model: str, usage: Usage, prices: Prices) -> float | None:
    """USD by the user's prices; None if they do not name the model.

    Without a separate price, cached tokens cost as much as others; tokens written to the server's cache are surcharged
    by LiteLLM's table.
    """
    given = _given(model, prices)
    if given is None:
        return None
    of_cached = given[2] if len(given) == 3 else given[0]
    usd = (usage.prompt_tokens - usage.cached_prompt_tokens) * given[0] + usage.cached_prompt_tokens * of_cached
    if usage.written_prompt_tokens:
        listed = model_info(model)
        plain, written = listed.get("input_cost_per_token"), listed.get("cache_creation_input_token_cost")
        surcharge = max(0.0, written / plain - 1) if plain and written else 0.0
        usd += usage.written_prompt_tokens * given[0] * surcharge
    return (usd + usage.completion_tokens * given[1]) / 1e6


def listed_cost(model: str, usage: Usage) -> float | None:
    """USD by LiteLLM's table, which has prices of cached tokens and of long prompts; None = unknown."""
    if price(model, {}) is None:
        return None
    written, cached = usage.written_prompt_tokens, usage.cached_prompt_tokens
    of_cache = {"cache_creation_input_tokens": written, "cache_read_input_tokens": cached}
    tokens = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
    return sum(load_litellm().cost_per_token(model=model, **tokens, **of_cache))
