"""LiteLLM's calls without the work that it does for callbacks, where nobody has any, and with a faster cost.

After each call LiteLLM builds a payload for callbacks, in a task and a queue, and works out its cost by its whole
table. A call whose parameters are ordinary, in a process without callbacks, budget or cache of LiteLLM's, is given a
logging object that leaves the payload out. Its cost is LiteLLM's: where that is linear in the tokens, by rates that are
found by asking LiteLLM (linear_cost.py), and anything else as LiteLLM works it out.
"""

import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from typing import Any

from gavel.llm.linear_cost import LinearRates, TokenCounts, linear_rates
from gavel.llm.providers import load_litellm

_ORDINARY = {
    *("model", "messages", "response_format", "logger_fn", "timeout", "max_retries", "num_retries"),
    *("api_base", "base_url", "api_key", "api_version", "organization", "extra_headers", "extra_body"),
    *("temperature", "top_p", "seed", "stop", "max_tokens", "max_completion_tokens", "reasoning_effort", "verbosity"),
    *("presence_penalty", "frequency_penalty", "logprobs", "top_logprobs", "num_ctx", "thinking", "prompt_cache_key"),
}
"""Parameters that neither callbacks nor the price of a call depend on."""
_SETTINGS = (
    *("callbacks", "input_callback", "success_callback", "failure_callback"),
    *("_async_input_callback", "_async_success_callback", "_async_failure_callback", "service_callback"),
    *("pre_call_rules", "post_call_rules", "cache", "max_budget"),
)
"""Settings of LiteLLM that need its own logging object."""
_COUNTED = {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details", "completion_tokens_details"}
_STATED_COST = "llm_provider-x-litellm-response-cost"
_RATES_SECONDS = 60.0
"""After which rates are found anew: LiteLLM's table may be changed at any time."""
_MOST_RATES = 256


@dataclass(frozen=True, slots=True)
class _Found:
    rates: LinearRates | None
    until: float


_rates: OrderedDict[tuple[object, ...], _Found] = OrderedDict()


def quiet_logging(request: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `litellm.acompletion` for a request: none where LiteLLM's own logging may be needed."""
    litellm = load_litellm()
    if not request.keys() <= _ORDINARY or any(getattr(litellm, name, None) for name in _SETTINGS):
        return {}
    provider = request["model"].partition("/")[0]
    if any(entry["provider"] == provider for entry in litellm.custom_provider_map):
        return {}  # LiteLLM makes such providers known to itself where it sets up its logging
    logging = _logging_class()(
        model=request["model"],
        messages=request["messages"],
        stream=False,
        call_type="acompletion",
        start_time=datetime.now(),  # LiteLLM subtracts local times
        litellm_call_id=str(uuid.uuid4()),
        function_id="",
        kwargs=dict(request),
    )
    return {"litellm_logging_obj": logging, "litellm_call_id": logging.litellm_call_id}


@cache
def _logging_class() -> Any:
    load_litellm()
    from litellm.litellm_core_utils.litellm_logging import Logging  # pyright: ignore[reportMissingTypeStubs]

    class QuietLogging(Logging):
        """What LiteLLM notes of one call."""

        def claim_async_success_log(self) -> bool:
            return False

        async def async_success_handler(self, *_: Any, **__: Any) -> None:
            """Nothing: nobody has a callback."""

        def handle_sync_success_callbacks_for_async_calls(self, *_: Any, **__: Any) -> None:
            """Nothing: nobody has a callback."""

        def failure_handler(self, *_: Any, **__: Any) -> None:
            """Nothing: nobody has a callback."""

        async def async_failure_handler(self, *_: Any, **__: Any) -> None:
            """Nothing: nobody has a callback."""

        def response_cost_calculator(self, result: Any, *arguments: Any, **options: Any) -> float | None:
            def listed(response: Any) -> float | None:
                return super(QuietLogging, self).response_cost_calculator(response, *arguments, **options)

            tokens = _tokens(result)
            if tokens is None:
                return listed(result)
            provider = self.model_call_details.get("custom_llm_provider")
            tier = getattr(result, "service_tier", None)
            model = options.get("litellm_model_name") or self.model
            rates = _rates_of((model, result.model, provider, tier), result, listed)
            return listed(result) if rates is None else rates.cost(tokens)

    return QuietLogging


def _rates_of(key: tuple[object, ...], response: Any, listed: Any) -> LinearRates | None:
    found = _rates.get(key)
    if found is None or found.until < time.monotonic():

        def cost(tokens: TokenCounts) -> float | None:
            return listed(_with_tokens(response, tokens))

        found = _rates[key] = _Found(linear_rates(cost), time.monotonic() + _RATES_SECONDS)
        while len(_rates) > _MOST_RATES:
            _rates.popitem(last=False)
    return found.rates


def _with_tokens(response: Any, tokens: TokenCounts) -> Any:
    """A copy of the response whose usage has these tokens."""
    litellm = load_litellm()
    other = response.model_copy()
    other.usage = litellm.Usage(
        prompt_tokens=tokens.prompt,
        completion_tokens=tokens.completion,
        total_tokens=tokens.prompt + tokens.completion,
        prompt_tokens_details={"cached_tokens": tokens.cached},
        completion_tokens_details={"reasoning_tokens": tokens.reasoning},
    )
    return other


def _tokens(response: Any) -> TokenCounts | None:
    """The tokens that the cost of a response depends on; None where it may depend on more."""
    usage = getattr(response, "usage", None)
    if usage is None or _STATED_COST in (response._hidden_params.get("additional_headers") or ()):
        return None
    counted: dict[str, Any] = {name: value for name, value in usage.model_dump().items() if value}
    if not counted.keys() <= _COUNTED:
        return None
    prompt, completion = counted.get("prompt_tokens", 0), counted.get("completion_tokens", 0)
    cached = _part(counted.get("prompt_tokens_details"), "cached_tokens", prompt)
    reasoning = _part(counted.get("completion_tokens_details"), "reasoning_tokens", completion)
    if cached is None or reasoning is None:
        return None
    return TokenCounts(prompt, completion, cached, reasoning)


def _part(details: Mapping[str, Any] | None, name: str, total: int) -> int | None:
    """The part of the tokens that details name so, where all others are text; None where not."""
    found = {each: value for each, value in (details or {}).items() if value}
    part = found.pop(name, 0)
    return part if part <= total and found in ({}, {"text_tokens": total - part}) else None
