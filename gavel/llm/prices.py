"""The cost of a call, in US dollars; an unknown cost is None, never 0."""

import json
import os
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from gavel.llm.errors import LlmError
from gavel.llm.local_models import PROVIDER
from gavel.llm.providers import model_info

Price = tuple[float, float]
"""US dollars per million prompt tokens and per million completion tokens."""

Prices = Mapping[str, Price]
"""By model id."""

_Usd = Annotated[float, Field(ge=0, allow_inf_nan=False)]
_TABLE = TypeAdapter(dict[str, tuple[_Usd, _Usd]])


def prices_from_environment() -> Prices:
    """The prices in `GAVEL_PRICES`, JSON such as `{"openai/o3": [2, 8]}`; empty when it is not set."""
    text = os.environ.get("GAVEL_PRICES", "").strip()
    if not text:
        return {}
    try:
        return _TABLE.validate_python(json.loads(text))
    except (json.JSONDecodeError, ValidationError) as error:
        raise LlmError(
            f"GAVEL_PRICES is not a table of prices: {text[:80]}",
            'Write USD per million prompt and completion tokens: GAVEL_PRICES={"openai/o3": [2, 8]}',
        ) from error


def checked_prices(prices: Prices) -> Prices:
    """The prices. Raises `LlmError` for an invalid amount, with which a budget in dollars could not be kept."""
    try:
        return _TABLE.validate_python(dict(prices))
    except ValidationError as error:
        raise LlmError(
            f"{dict(prices)} is not a table of prices.",
            'Give USD per million prompt and completion tokens, 0 or more: prices={"openai/o3": (2, 8)}.',
        ) from error


def _given(model: str, prices: Prices) -> Price | None:
    """The user's price; a local model costs nothing."""
    return prices.get(model) or ((0.0, 0.0) if model.startswith(f"{PROVIDER}/") else None)


def price(model: str, prices: Prices) -> Price | None:
    """The given price, else LiteLLM's; None = unknown."""
    given = _given(model, prices)
    if given:
        return given
    listed = model_info(model)
    per_token = listed.get("input_cost_per_token") or 0.0, listed.get("output_cost_per_token") or 0.0
    if not any(per_token):  # how LiteLLM marks an unknown price
        return None
    return per_token[0] * 1e6, per_token[1] * 1e6


def cost(model: str, prompt_tokens: int, completion_tokens: int, prices: Prices) -> float | None:
    """USD by the given prices, or None when they do not name the model."""
    given = _given(model, prices)
    if given is None:
        return None
    return (prompt_tokens * given[0] + completion_tokens * given[1]) / 1e6
