"""A chat completion's body, read and checked: what is asked of the engine, and how the reply is to be shown.

text(item, "call_id", "input item 2")     ->   "c1", or BadRequest: input item 2 has no call_id

Each field of a request's JSON is read as what it must be, or refused by its place.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from gavel.llm.types import Message
from gavel.trainer.engines.protocol import Shaping
from gavel.trainer.serving.errors import BadRequest, shown

_KINDS: dict[type, str] = {
    bool: "true or false",
    int: "a number",
    float: "a number",
    str: "text",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def text(holder: Message, name: str, where: str) -> str:
    """A field that must be there, and be text. Raises `BadRequest`."""
    if name not in holder:
        raise BadRequest(f"{where} has no {name}", f'Give it {{"{name}": "…"}}.')
    value = holder[name]
    if not isinstance(value, str):
        raise BadRequest(f"the {name} of {where} is {kind_of(value)}", "Give it as text.")
    return value


def an_object(value: Any, where: str) -> Message:
    """A JSON object. Raises `BadRequest`."""
    if not isinstance(value, dict):
        raise BadRequest(f"{where} is {kind_of(value)}", "Give an object: {…}.")
    return cast("Message", value)


def objects(value: Any, where: str, each: str) -> list[Message]:
    """A list of JSON objects; `each` is what one is called. Raises `BadRequest`."""
    if not isinstance(value, list):
        raise BadRequest(f"{where} is {kind_of(value)}", "Give a list of objects: [{…}].")
    return [an_object(item, f"{each} {number}") for number, item in enumerate(cast("list[Any]", value))]


def parts(content: Any, where: str) -> list[Message]:
    """The parts of a content that is not plain text. Raises `BadRequest`."""
    if not isinstance(content, list):
        raise BadRequest(f"{where} is {kind_of(content)}", "Give text, or a list of parts with text.")
    return objects(content, where, f"{where}, part")


def check_types(body: Mapping[str, Any], types: Mapping[str, type]) -> None:
    """Raises `BadRequest` for a field of another type than the vendor's API takes; null is none."""
    for name, wanted in types.items():
        value = body.get(name)
        if value is not None and not isinstance(value, wanted):
            raise BadRequest(f"{name}={shown(value)} is not {_KINDS[wanted]}", f"Correct it, or leave {name} out.")


def kind_of(value: Any) -> str:
    return _KINDS.get(type(value), "of an unknown kind")


_MAX_TEMPERATURE = 2.0
"""As in OpenAI's API."""
_GREEDY_BELOW = 1e-5
"""Temperatures by which log-probs cannot be divided are 0."""
_MAX_CHOICES = 128
"""Ditto."""
_ROLES = ("system", "developer", "user", "assistant", "tool")
_KNOWN = {
    "model",
    "messages",
    "tools",
    "max_completion_tokens",
    "max_tokens",
    "modalities",
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
    "tool_choice",
    "logit_bias",
    "response_format",
    "top_logprobs",
}
_INERT = {
    "include_reasoning": bool,
    "metadata": dict,
    "prediction": dict,
    "prompt_cache_key": str,
    "prompt_cache_retention": str,
    "reasoning_effort": str,
    "return_tokens_as_token_ids": bool,
    "safety_identifier": str,
    "service_tier": str,
    "store": bool,
    "user": str,
    "verbosity": str,
}
"""Parameters that say nothing about what is sampled here, with their types."""
_MAX_TOOLS = 1024
"""Rendering more keeps the endpoint busy for seconds."""
_CALL_FORM = '{"id": …, "type": "function", "function": {"name": …, "arguments": "{…}"}}'
_TOOL_FORM = '{"type": "function", "function": {"name": …, "parameters": …}}'
_SHOWN_NAMES = 500
"""Characters."""
_MAX_TOP_LOGPROBS = 20
"""As in OpenAI's API."""
_SHAPING: dict[str, tuple[float, float]] = {
    "top_p": (0.0, 1.0),
    "top_k": (-1, 10**9),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.01, 100.0),
    "presence_penalty": (-2.0, 2.0),
    "frequency_penalty": (-2.0, 2.0),
}
"""Parameters that change the distribution, with their ranges."""
_MAX_BIAS = 100.0
"""As in OpenAI's API."""


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
    must_call: bool
    """A turn calls a tool."""
    call: str | None
    """The one that it calls; None: any."""
    shaping: Shaping | None
    schema: str | None
    """What the turn's JSON must fit, as JSON; None: it may be any text."""
    template_arguments: Any
    stream: bool
    include_usage: bool
    """A stream ends with a chunk of its usage."""
    logprobs: bool
    top_logprobs: int
    """Likeliest tokens to show beside each sampled one."""
    compact: bool
    """Log-probs as a plain list."""
    token_ids: bool
    forced: bool = False
    """The turn is a second attempt, which was made to call a tool; no body asks for that."""
    sample_id: str = ""
    """What tells the turn from one that is equal to it; no body gives it."""


def read_chat_request(body: Mapping[str, Any], vocabulary: int | None = None) -> ChatRequest:
    """`vocabulary`: tokens of the model, where it is known. Raises `BadRequest`, or what reading a malformed body
    raises."""
    messages = check_messages(body.get("messages"))
    if not isinstance(body.get("model"), str):
        raise BadRequest("the request names no model", "Ask model.get_inference_name() for each rollout.")
    for name, value in body.items():
        if name not in _KNOWN | _INERT.keys() | _SHAPING.keys() and value is not None:
            raise BadRequest(f"{name}={shown(value)} is not supported here", f"Leave {name} out.")
    check_types(body, _INERT)
    if body.get("modalities") not in (None, [], ["text"]):
        raise BadRequest(
            f"modalities={shown(body['modalities'])} is not supported here", "This endpoint serves text only."
        )
    temperature = _temperature(body.get("temperature"))
    limits = [token_limit(body, name) for name in ("max_completion_tokens", "max_tokens")]
    n = _whole(body, "n")
    if n is not None and not 1 <= n <= _MAX_CHOICES:
        raise BadRequest(f"n={n!r} is not between 1 and {_MAX_CHOICES}", "Send several requests for more.")
    tools = _tools(body.get("tools"))
    must_call, call = _tool_choice(body.get("tool_choice"), tools)
    return ChatRequest(
        model=body["model"],
        messages=messages,
        tools=None if body.get("tool_choice") == "none" else tools,
        temperature=temperature,
        max_tokens=limits[0] or limits[1],
        seed=_whole(body, "seed"),
        n=n or 1,
        stop=_stop_strings(body.get("stop")),
        one_call=switch(body, "parallel_tool_calls") is False,
        must_call=must_call,
        call=call,
        shaping=_shaping(body, vocabulary),
        schema=_schema(body.get("response_format")),
        template_arguments=body.get("chat_template_kwargs"),
        stream=switch(body, "stream") is True,
        include_usage=_includes_usage(body.get("stream_options")),
        logprobs=switch(body, "logprobs") is not False,
        top_logprobs=_top_logprobs(body),
        compact=switch(body, "compact_logprobs") is True,
        token_ids=switch(body, "return_token_ids") is not False,
    )


def _temperature(value: Any) -> float:
    if value is None:
        return 1.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MAX_TEMPERATURE:
        raise BadRequest(f"temperature={shown(value)} is not between 0 and {_MAX_TEMPERATURE:g}")
    return 0.0 if value < _GREEDY_BELOW else float(value)


def token_limit(body: Mapping[str, Any], name: str) -> int | None:
    """The most tokens that a reply may have; None: as many as fit. Raises `BadRequest`."""
    limit = _whole(body, name)
    if limit is not None and limit < 1:
        raise BadRequest(f"{name}={limit} leaves nothing to sample", f"Set it to 1 or more, or leave {name} out.")
    return limit


def switch(body: Mapping[str, Any], name: str) -> bool | None:
    """A parameter that is on or off; None: as usual. Raises `BadRequest` for anything else, which would be guessed."""
    value = body.get(name)
    if value is None or isinstance(value, bool):
        return value
    raise BadRequest(f"{name}={shown(value)} is neither true nor false")


def _includes_usage(options: Any) -> bool:
    if options is None:
        return False
    if not isinstance(options, dict):
        raise BadRequest(f"stream_options={shown(options)} is no object", 'Give {"include_usage": true}.')
    return bool(switch(cast("dict[str, Any]", options), "include_usage"))


def _whole(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise BadRequest(f"{name}={shown(value)} is no whole number")


def _tools(given: Any) -> list[Message] | None:
    """Raises `BadRequest` for what the renderers would show the policy as they please, or not at all."""
    if given is not None and not isinstance(given, list):
        raise BadRequest("tools is no list of tools", f"Give [{_TOOL_FORM}].")
    tools = cast("list[Any]", given or [])
    if len(tools) > _MAX_TOOLS:
        raise BadRequest(f"there are {len(tools)} tools, more than {_MAX_TOOLS}", "Offer those that the task may need.")
    for number, tool in enumerate(tools):
        match tool:
            case {"type": kind} if kind != "function":
                raise BadRequest(
                    f"tool {number} is of type {shown(kind)}, which is not supported here",
                    "Offer function tools alone.",
                )
            case {"function": {"name": str(name), **rest}} if name:
                if not isinstance(rest.get("parameters"), dict | None):
                    raise BadRequest(f"the parameters of tool {number} are no object", "Give a JSON schema: {…}.")
                if not isinstance(rest.get("description") or "", str):
                    raise BadRequest(f"the description of tool {number} is no text", "Give it as text.")
            case _:
                raise BadRequest(f"tool {number} has no name", f"Give {_TOOL_FORM}.")
    return tools or None


def _schema(form: Any) -> str | None:
    match form:
        case None | {"type": "text"}:
            return None
        case {"type": "json_object"}:
            return '{"type": "object"}'
        case {"type": "json_schema", "json_schema": {"schema": dict(schema)}}:
            return json.dumps(schema)
        case _:
            raise BadRequest(
                f"response_format={shown(form)} is not supported here",
                "Known: text, json_object, and json_schema with a schema.",
            )


def _top_logprobs(body: Mapping[str, Any]) -> int:
    count = _whole(body, "top_logprobs") or 0
    if not 0 <= count <= _MAX_TOP_LOGPROBS:
        raise BadRequest(f"top_logprobs={count!r} is not between 0 and {_MAX_TOP_LOGPROBS}")
    if count and body.get("logprobs") is False:
        raise BadRequest("top_logprobs come with logprobs alone", "Set logprobs=True.")
    return count


def _tool_choice(choice: Any, tools: list[Message] | None) -> tuple[bool, str | None]:
    """Whether a tool must be called, and which."""
    if choice in (None, "auto", "none"):
        return False, None
    names = [tool["function"]["name"] for tool in tools or ()]
    if choice == "required" and names:
        return True, None
    match choice:
        case {"type": "function", "function": {"name": str(name)}} if name in names:
            return True, name
        case _:
            raise BadRequest(
                f"tool_choice={shown(choice)} names none of the tools: "
                f"{', '.join(names)[:_SHOWN_NAMES] or 'there are none'}",
                'Known: "auto", "none", "required", {"type": "function", "function": {"name": …}}. To allow some tools '
                "alone, offer these alone.",
            )


def _shaping(body: Mapping[str, Any], vocabulary: int | None) -> Shaping | None:
    """None where the distribution stays the policy's."""
    given = {name: body[name] for name in _SHAPING if body.get(name) is not None}
    for name, value in given.items():
        low, high = _SHAPING[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadRequest(f"{name}={shown(value)} is not between {low:g} and {high:g}")
    if "top_k" in given:
        given["top_k"] = max(0, _whole(given, "top_k") or 0)
    try:
        bias = {int(token): float(value) for token, value in (body.get("logit_bias") or {}).items()}
    except (TypeError, ValueError, AttributeError) as error:
        raise BadRequest(
            f"logit_bias={shown(body['logit_bias'])} gives no numbers to token ids", 'Write {"1234": -100}, say.'
        ) from error
    if any(token < 0 for token in bias):
        raise BadRequest(f"logit_bias={shown(body['logit_bias'])} names a token below 0")
    if vocabulary is not None and (foreign := next((token for token in bias if token >= vocabulary), None)):
        raise BadRequest(
            f"logit_bias={shown(body['logit_bias'])} names the token {foreign}, which the model does not have",
            f"Its tokens are 0 to {vocabulary - 1}.",
        )
    if not all(abs(value) <= _MAX_BIAS for token, value in bias.items()):
        raise BadRequest(f"logit_bias={shown(body['logit_bias'])} is not within {-_MAX_BIAS:g} and {_MAX_BIAS:g}")
    shaping = Shaping(**given, logit_bias=bias)
    return shaping if shaping.asked() else None


def _stop_strings(stop: Any) -> tuple[str, ...]:
    given: Any = [stop] if isinstance(stop, str) else stop or []
    found: tuple[Any, ...] = tuple(cast("list[Any]", given)) if isinstance(given, list) else (None,)
    if not all(isinstance(each, str) and each for each in found):
        raise BadRequest(f"stop={shown(stop)} is no list of strings", "Give a text, or texts, none of them empty.")
    check_characters(found)
    return found


def check_characters(texts: Any) -> None:
    """Raises `BadRequest` for texts that no tokenizer takes."""
    try:
        json.dumps(texts, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise BadRequest(
            f"the request has half a surrogate pair, which is no character: {error.object[error.start]!r}",
            'Replace it; in Python by text.encode("utf-8", "replace").decode().',
        ) from error


def check_messages(given: Any) -> list[Message]:
    """Raises `BadRequest` for what is no conversation, and for content that the renderers would silently drop."""
    if not given:
        raise BadRequest("there are no messages", 'Give "messages": [{"role": "user", "content": "…"}].')
    if not isinstance(given, list):
        raise BadRequest("messages is no list", 'Give [{"role": "user", "content": "…"}].')
    for number, message in enumerate(cast("list[Any]", given)):
        if not isinstance(message, dict) or "role" not in message:
            raise BadRequest(f"message {number} is no message", 'Give {"role": "user", "content": "…"}.')
        _check_message(number, cast("Message", message))
    return cast("list[Message]", given)


def _check_message(number: int, message: Message) -> None:
    if message["role"] not in _ROLES:
        raise BadRequest(f"message {number} has the role {shown(message['role'])}; known: {', '.join(_ROLES)}")
    if message.get("function_call"):
        raise BadRequest(f"message {number} has a function_call, which is not supported here", "Give tool_calls.")
    content = message.get("content")
    if content is None and message["role"] != "assistant":
        own = ' "tool_call_id": "…",' if message["role"] == "tool" else ""
        raise BadRequest(
            f"message {number} has no content",
            f'Give {{"role": "{message["role"]}",{own} "content": "…"}}; the content may be "".',
        )
    parts = cast("list[Any]", content) if isinstance(content, list) else []
    if not (content is None or isinstance(content, str | list)) or not all(map(_is_text, parts)):
        raise BadRequest(f"message {number} has content that is no text", "This endpoint serves text only.")
    for name in ("name", "reasoning_content", "refusal", "tool_call_id"):
        if not isinstance(message.get(name) or "", str):
            raise BadRequest(f"the {name} of message {number} is no text", "Give it as text.")
    calls = message.get("tool_calls") or []
    if not isinstance(calls, list):
        raise BadRequest(f"the tool_calls of message {number} are no list", f"Give [{_CALL_FORM}].")
    for call in cast("list[Any]", calls):
        match call:
            case {"function": {"name": str(), "arguments": str() | dict()}, **rest} if isinstance(
                rest.get("id") or "", str
            ):
                pass
            case _:
                raise BadRequest(f"message {number} has a tool call without a name or arguments", f"Give {_CALL_FORM}.")


def _is_text(part: Any) -> bool:
    match part:
        case {"type": "text", "text": str()} | {"type": "refusal", "refusal": str()}:
            return True
        case _:
            return False
