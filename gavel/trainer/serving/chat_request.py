"""A chat completion's body, read and checked: what is asked of the engine, and how the reply is to be shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gavel.llm.types import Message
from gavel.trainer.serving.errors import BadRequest

_MAX_TEMPERATURE = 2.0
"""As in OpenAI's API."""
_MAX_CHOICES = 128
"""Ditto."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
_KNOWN = {
    "model",
    "messages",
    "tools",
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "seed",
    "n",
    "stop",
    "parallel_tool_calls",
    "logprobs",
    "compact_logprobs",
    "return_token_ids",
    "chat_template_kwargs",
    "stream",
    "stream_options",
}
_INERT = {
    "include_reasoning",
    "metadata",
    "modalities",
    "prediction",
    "prompt_cache_key",
    "prompt_cache_retention",
    "reasoning_effort",
    "return_tokens_as_token_ids",
    "safety_identifier",
    "service_tier",
    "store",
    "user",
    "verbosity",
}
"""Parameters that say nothing about what is sampled here."""
_HARMLESS = {
    "top_p": (None, 1, 1.0),
    "top_k": (None, 0, -1),
    "min_p": (None, 0, 0.0),
    "repetition_penalty": (None, 1, 1.0),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "top_logprobs": (None, 0),
    "tool_choice": (None, "auto", "none"),
}
"""Unsupported parameters (many would falsify the log-probs), with the values that change nothing."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """What a body asks for."""

    model: str
    messages: list[Message]
    tools: list[Message] | None
    """None where the turn may call none."""
    temperature: float
    max_tokens: int | None
    seed: int | None
    n: int
    """Turns to sample."""
    stop: tuple[str, ...]
    """Strings that end a turn."""
    one_call: bool
    """A turn ends after its first tool call."""
    template_arguments: Any
    stream: bool
    include_usage: bool
    """A stream ends with a chunk of its usage."""
    logprobs: bool
    compact: bool
    """Log-probs as a plain list."""
    token_ids: bool


def read_chat_request(body: Mapping[str, Any]) -> ChatRequest:
    """Raises `BadRequest`, or what reading a malformed body raises."""
    if not body["messages"]:
        raise BadRequest("there are no messages")
    for number, message in enumerate(body["messages"]):
        _check_message(number, message)
    for name, value in body.items():
        if name not in _KNOWN and name not in _INERT and value not in _HARMLESS.get(name, (None,)):
            raise BadRequest(f"{name}={value!r} is not supported here", f"Leave {name} out.")
    temperature = body.get("temperature")
    if temperature is not None and not 0 <= temperature <= _MAX_TEMPERATURE:
        raise BadRequest(f"temperature={temperature!r} is not between 0 and {_MAX_TEMPERATURE:g}")
    for name in ("max_completion_tokens", "max_tokens"):
        if body.get(name) is not None and body[name] < 1:
            raise BadRequest(f"{name}={body[name]!r} leaves nothing to sample")
    n = body.get("n")
    if n is not None and (not isinstance(n, int) or not 1 <= n <= _MAX_CHOICES):
        raise BadRequest(f"n={n!r} is not between 1 and {_MAX_CHOICES}")
    wanted = body.get("max_completion_tokens") or body.get("max_tokens")
    seed = body.get("seed")
    tools = cast("list[Message] | None", body.get("tools")) or None
    return ChatRequest(
        model=body["model"],
        messages=body["messages"],
        tools=None if body.get("tool_choice") == "none" else tools,
        temperature=1.0 if temperature is None else float(temperature),
        max_tokens=None if wanted is None else int(wanted),
        seed=None if seed is None else int(seed),
        n=n or 1,
        stop=_stop_strings(body.get("stop")),
        one_call=body.get("parallel_tool_calls") is False,
        template_arguments=body.get("chat_template_kwargs"),
        stream=body.get("stream") is True,
        include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        logprobs=body.get("logprobs") is not False,
        compact=body.get("compact_logprobs") is True,
        token_ids=body.get("return_token_ids") is not False,
    )


def _stop_strings(stop: Any) -> tuple[str, ...]:
    found = (stop,) if isinstance(stop, str) else tuple(stop or ())
    if not all(isinstance(each, str) and each for each in found):
        raise BadRequest(f"stop={stop!r} is no list of strings")
    return found


def _check_message(number: int, message: Message) -> None:
    """Raises `BadRequest` for content that the renderers would silently drop from the prompt."""
    if message["role"] not in _ROLES:
        raise BadRequest(f"message {number} has the role {message['role']!r}; known: {', '.join(_ROLES)}")
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if not (content is None or isinstance(content, str | list)) or any(part.get("type") != "text" for part in parts):
        raise BadRequest(f"message {number} has content that is no text", "This endpoint serves text only.")
