"""Calls without LiteLLM's work for callbacks: the cost is LiteLLM's, and whoever has callbacks still has them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gavel.llm.providers import load_litellm
from gavel.llm.quiet_logging import quiet_logging

REQUEST: dict[str, Any] = {"messages": [{"role": "user", "content": "yes?"}], "timeout": 5}
MODELS = (
    "openai/gpt-5-mini",
    "gpt-4o",
    "gemini/gemini-2.5-pro",
    "anthropic/claude-sonnet-4-5",
    "xai/grok-4",
    "deepseek/deepseek-chat",
    "mistral/mistral-large-latest",
    "openai/of-nobody",
    "hosted_vllm/own",
)
counts = st.integers(0, 400_000)
details = st.fixed_dictionaries(
    {},
    optional={
        "cached_tokens": st.integers(0, 1000),
        "reasoning_tokens": st.integers(0, 1000),
        "text_tokens": st.integers(0, 1000),
        "audio_tokens": st.integers(0, 9),
    },
)


def logging_of(model: str, kind: str) -> Any:
    """A logging object for a call to the model: the quiet one, or LiteLLM's."""
    litellm = load_litellm()
    quiet = quiet_logging({**REQUEST, "model": model})["litellm_logging_obj"]
    if kind == "quiet":
        made = quiet
    else:
        made = type(quiet).__mro__[1](model, REQUEST["messages"], False, "acompletion", quiet.start_time, "1", "")
    provider = litellm.get_llm_provider(model)[1]
    made.update_environment_variables(
        model=model, user="", optional_params={}, litellm_params={"api_base": ""}, custom_llm_provider=provider
    )
    return made


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=30)
@given(counts, counts, details, details, st.sampled_from(["", "gpt-4o-mini", "who-knows"]))
def test_the_cost_of_a_call_is_that_of_litellm(
    model: str, prompt: int, completion: int, of_prompt: dict[str, int], of_completion: dict[str, int], served: str
) -> None:
    litellm = load_litellm()
    usage = litellm.Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=of_prompt or None,
        completion_tokens_details=of_completion or None,
    )
    response = litellm.ModelResponse(model=served or model.rpartition("/")[2], usage=usage)
    costs = [
        logging_of(model, kind).response_cost_calculator(result=response.model_copy(), litellm_model_name=model)
        for kind in ("quiet", "LiteLLM's")
    ]
    assert costs[0] == (None if costs[1] is None else pytest.approx(costs[1], rel=1e-9, abs=1e-15))


@contextmanager
def callback(name: str, value: Any) -> Iterator[None]:
    litellm = load_litellm()
    before = getattr(litellm, name)
    setattr(litellm, name, value)
    try:
        yield
    finally:
        setattr(litellm, name, before)


@pytest.mark.parametrize(
    ("name", "value"),
    [("success_callback", [print]), ("callbacks", [print]), ("max_budget", 1.0), ("_async_failure_callback", [print])],
)
def test_litellm_logs_by_itself_where_somebody_listens(name: str, value: Any) -> None:
    request = {**REQUEST, "model": "openai/gpt-5-mini"}
    assert quiet_logging(request)
    with callback(name, value):
        assert quiet_logging(request) == {}


@pytest.mark.parametrize("parameter", ["metadata", "service_tier", "fallbacks", "input_cost_per_token", "tools"])
def test_a_request_with_other_parameters_is_left_to_litellm(parameter: str) -> None:
    assert quiet_logging({**REQUEST, "model": "openai/gpt-5-mini", parameter: None}) == {}


def test_a_provider_of_ones_own_is_left_to_litellm_which_makes_it_known_to_itself() -> None:
    assert quiet_logging({**REQUEST, "model": "gavel/stand-in"}) == {}
    assert quiet_logging({**REQUEST, "model": "openai/gpt-5-mini"})
