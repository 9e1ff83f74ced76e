"""Spans of calls to language models, after OpenTelemetry's conventions for generative AI; none unless asked for.

    with traced_calls(tracer):
        await client.ask(messages, schema)       a span "chat gpt-5-mini" for each request that is sent

A span has the model, who serves it, tokens and the kind of an error: nothing of what was asked or answered.
"""

import contextlib
from collections.abc import Callable, Generator
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import openai

from gavel.llm.providers import model_info
from gavel.llm.types import Reply, Wire

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

_TRACER: "ContextVar[Tracer | None]" = ContextVar("gavel_tracer", default=None)
_PROVIDERS = {
    "azure": "azure.ai.openai",
    "azure_ai": "azure.ai.inference",
    "bedrock": "aws.bedrock",
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "vertex_ai": "gcp.vertex_ai",
    "watsonx": "ibm.watsonx.ai",
    "xai": "x_ai",
}
"""The conventions' names of providers that LiteLLM calls otherwise."""


@contextlib.contextmanager
def traced_calls(tracer: "Tracer") -> Generator[None]:
    """Calls that are made in here, also by tasks that begin in here, have spans."""
    token = _TRACER.set(tracer)
    try:
        yield
    finally:
        _TRACER.reset(token)


@contextlib.contextmanager
def call_span(name: str, wire: Wire) -> Generator[Callable[[Reply], None]]:
    """The span of a request to the model `name`, a LiteLLM id or that of a function; gives what notes its reply."""
    tracer = _TRACER.get()
    if tracer is None:
        yield lambda reply: None
        return
    from opentelemetry.trace import SpanKind, StatusCode

    provider, slash, model = name.partition("/")
    if not slash:
        provider, model = str(model_info(name).get("litellm_provider") or ""), name
    operation = "decisions" if wire == "decisions" else "chat"
    attributes: dict[str, Any] = {"gen_ai.operation.name": operation, "gen_ai.request.model": model}
    if provider:
        attributes["gen_ai.provider.name"] = _PROVIDERS.get(provider, provider)
    with tracer.start_as_current_span(
        f"{operation} {model}",
        kind=SpanKind.CLIENT,
        attributes=attributes,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield lambda reply: span.set_attributes(_attributes_of(reply))
        except BaseException as error:  # told by its status or class, never by its message
            is_answer = isinstance(error, openai.APIStatusError)
            span.set_attribute("error.type", str(error.status_code) if is_answer else type(error).__name__)
            span.set_status(StatusCode.ERROR)
            raise


def _attributes_of(reply: Reply) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "gen_ai.response.model": reply.served_by,
        "gen_ai.response.finish_reasons": [reply.finish_reason] if reply.finish_reason else None,
        "gen_ai.usage.input_tokens": reply.prompt_tokens,
        "gen_ai.usage.output_tokens": reply.completion_tokens,
        "gen_ai.usage.cache_read.input_tokens": reply.cached_prompt_tokens,
    }
    return {name: value for name, value in attributes.items() if value}  # what the server did not tell is left out
