"""One completion within its time limit: through LiteLLM, or on the direct wire to a server of the user's own.

    hosted_vllm/…, openai/… with an address (api_base, OPENAI_BASE_URL)    the direct wire: one pooled HTTP client
    every other model, and what needs more of LiteLLM or a proxy           litellm.acompletion

On the direct wire LiteLLM resolves model, key, address and parameters; its client, types and bookkeeping take ten times
the CPU of a bare request. Either way errors are those of OpenAI's client, a reply that is streamed unasked is read, and
one ends with an error after `MAX_REPLY_BYTES`. What an endpoint accepts is learned from its rejections.
"""

import asyncio
import json
import logging
import os
from collections import defaultdict
from collections.abc import AsyncGenerator, Hashable, Mapping
from contextvars import ContextVar
from functools import cache, lru_cache
from ssl import create_default_context
from typing import Any, cast
from urllib.request import getproxies_environment
from weakref import WeakKeyDictionary

import aiohttp
import openai

from gavel.base.network import is_on_this_machine
from gavel.llm.errors import PermanentError
from gavel.llm.failures import openai_httpx, read_failure, status_error
from gavel.llm.providers import load_litellm, model_info, time_limit
from gavel.llm.response import LOGPROBS, WITHOUT_LOGPROBS
from gavel.llm.types import Message, Schema, is_mapping

DIRECT_WIRE = "GAVEL_DIRECT_WIRE"
"""Environment variable that disables the direct wire if 0."""
MAX_REPLY_BYTES = 64 * 2**20
"""Largest reply, in bytes on the wire."""
_IDLE_SECONDS = 4.0
"""Seconds after which an idle connection is closed, before servers do: uvicorn closes after 5."""
_PLACE = frozenset({"api_base", "base_url", "api_key"})


FORMATS = ("json_schema", "json_object", "text")
"""Reply formats, from the most helpful to the most widely supported."""


def response_format(name: str, schema: Schema) -> dict[str, Any]:
    if name == "text":
        return {}
    described = {"json_schema": {"name": "scores", "schema": schema, "strict": True}} if name == "json_schema" else {}
    return {"response_format": {"type": name, **described}}


COMPLETION_CAPS = ("max_completion_tokens", "max_tokens")
"""Parameter names of the reply token limit, the newer first."""
_TWINS: dict[str, str] = dict(zip(COMPLETION_CAPS, reversed(COMPLETION_CAPS), strict=True))
_DISPENSABLE = {"temperature", "top_p", "top_k", "seed", "presence_penalty", "frequency_penalty", *COMPLETION_CAPS}
"""Parameters that can be dropped without changing the judge; without another one, such as reasoning_effort, it would be
a different judge."""
CONNECTION = frozenset(
    {"api_key", "api_base", "base_url", "api_version", "organization", "custom_llm_provider", "client", "timeout"}
)
"""Connection parameters; they are not part of the request's body."""


class Dialect:
    """Formats and parameters that one endpoint is known to accept."""

    def __init__(self) -> None:
        self.format = 0
        """Index of the first accepted format in `FORMATS`."""
        self.takes_cap = True
        """Whether it respects a limit on reply tokens."""
        self._names: dict[str, str] = {}
        """Parameter -> the name under which it is sent; "" = left out."""

    def translate(self, params: Mapping[str, Any]) -> dict[str, Any]:
        return {sent: value for name, value in params.items() if (sent := self._names.get(name, name))}

    def adapt(self, error: Exception, model: str, params: Mapping[str, Any], sent: Mapping[str, Any]) -> bool:
        """Renames or drops the one of the `params` that the endpoint rejected; False if none is why a request failed.

        `sent`: the rejected request, translated; another call may have changed the dialect since. Raises
        `PermanentError` for a parameter that cannot be dropped.
        """
        names = {self._names.get(name, name): name for name in params if name not in CONNECTION}
        names = {_TWINS[known]: name for known, name in names.items() if known in _TWINS} | names
        found = read_failure(error).refused_parameter(names.keys() - {""})
        if found is None:
            return False
        if (name := names[found]) not in _DISPENSABLE:
            raise PermanentError(f"{model} does not take {name}: {error}", _advice_without(name)) from error
        known = self._names.get(name, name)
        if known in sent:
            self._names[name] = _TWINS.get(name, "") if known == name else ""
            if not self._names[name]:
                self.takes_cap = self.takes_cap and name not in COMPLETION_CAPS
                logging.getLogger(__name__).warning("%s does not take %s: it is left out.", model, name)
        return True


def _advice_without(parameter: str) -> str:
    if parameter in LOGPROBS:
        return (
            "Where the server gives fewer log-probabilities, add --judge-param top_logprobs=5 (params); where it gives "
            f"none, {WITHOUT_LOGPROBS}"
        )
    return f"Leave {parameter} out of the judge's parameters (--judge-param, params)."


def endpoint_of(model: str, params: Mapping[str, Any]) -> tuple[str, str]:
    """The model and its server, if the user names one."""
    return model, str(params.get("api_base") or params.get("base_url") or "")


dialects: defaultdict[Hashable, Dialect] = defaultdict(Dialect)
"""The dialects of endpoints, shared by all their callers in this process."""


async def complete_in_time(
    model: str, messages: list[Message], options: Mapping[str, Any], seconds: float
) -> dict[str, Any]:
    """The completion within `seconds`, as the body of OpenAI's response; LiteLLM's cost in USD is its `response_cost`.

    An error inside the choice, as OpenRouter reports its providers' errors, is raised as such.
    """
    direct = _direct_request(model, messages, options)
    async with time_limit(model, seconds):
        if direct is not None:
            body = await _send_directly(*direct)
        else:
            once = {"timeout": seconds, "max_retries": 0, "num_retries": 0, "shared_session": await _session()}
            body = await _send_by_litellm(model=model, messages=messages, **once | dict(options))
    choice: dict[str, Any] = body["choices"][0] if body["choices"] else {}
    choice = {**choice, **(choice.get("provider_specific_fields") or {})}
    if (error := choice.get("error")) or choice.get("native_finish_reason", choice.get("finish_reason")) == "error":
        words = f"the provider failed: {json.dumps(error, default=str)}"
        raise load_litellm().APIError(_status_in(error, 502), words, "", model)
    return body


def _direct_request(
    model: str, messages: list[Message], options: Mapping[str, Any]
) -> tuple[str, dict[str, str], dict[str, Any]] | None:
    """URL, headers and body of the request as LiteLLM would send it; None = LiteLLM must send it."""
    provider, address = model.partition("/")[0], options.get("api_base") or options.get("base_url")
    if provider == "openai":
        address = address or os.environ.get("OPENAI_BASE_URL") or os.environ.get("OPENAI_API_BASE")
    if provider != "hosted_vllm" and (provider != "openai" or not address):
        return None
    litellm = load_litellm(address)
    lists = litellm.callbacks, litellm.success_callback, litellm.failure_callback, litellm.input_callback
    callbacks = {str(each) for one in lists for each in one} - {"cache"}  # which stays behind a request to Gemini
    if os.environ.get(DIRECT_WIRE) == "0" or callbacks or litellm.cache or options.keys() & _litellms_own():
        return None
    known = {*_PLACE, "response_format"}  # each group has its own schema, which LiteLLM sends unchanged
    try:
        packed = json.dumps({name: value for name, value in options.items() if name not in known})
    except TypeError:
        return None
    settings = litellm.api_base, litellm.api_key, litellm.openai_key, litellm.drop_params
    environment = tuple(map(os.environ.get, _VARIABLES))
    route = _resolve_route(model, address, options.get("api_key"), packed, settings, environment)
    if route is None or (not is_on_this_machine(route[0]) and getproxies_environment()):
        return None
    url, headers, params, config = route
    body = {"messages": messages, **{name: options[name] for name in ("response_format",) if name in options}, **params}
    if all(each.keys() == _PLAIN and isinstance(each["content"], str) for each in messages):
        return url, headers, body
    return url, headers, config.transform_request(body["model"], list(body.pop("messages")), body, {}, {})


_PLAIN = {"role", "content"}
_PROBE: list[Message] = [{"role": role, "content": role} for role in ("system", "user", "assistant", "user")]
_VARIABLES = ("OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_API_BASE", "HOSTED_VLLM_API_KEY", "HOSTED_VLLM_API_BASE")


@lru_cache(256)  # LiteLLM takes as long to resolve this as the request itself
def _resolve_route(
    model: str, address: str | None, api_key: str | None, packed: str, settings: object, variables: object
) -> tuple[str, dict[str, str], dict[str, Any], Any] | None:
    """URL, headers, body but for the messages, and LiteLLM's configuration, of requests to a server with these
    parameters (`packed`, as JSON); None = it changes messages of text. `settings`, `variables`: its further inputs."""
    litellm = load_litellm(address)
    name, provider, key, base = litellm.get_llm_provider(model, api_base=address, api_key=api_key)
    if not base or provider not in ("hosted_vllm", "openai") or name.startswith("responses/"):
        return None
    if model_info(model).get("mode", "chat") != "chat":
        return None
    params = litellm.utils.get_optional_params(model=name, custom_llm_provider=provider, **json.loads(packed))
    for unused in ("stream", "max_retries"):
        params.pop(unused, None)
    config = litellm.utils.ProviderConfigManager.get_provider_chat_config(name, litellm.LlmProviders(provider))
    sent = config.transform_request(name, [dict(each) for each in _PROBE], dict(params), {}, {})
    if sent != {"model": name, "messages": _PROBE, **params}:
        return None
    key = key or litellm.api_key or litellm.openai_key or os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    extra: dict[str, Any] = params.pop("extra_body", None) or {}
    body = {"model": name, **params, **extra}
    headers |= body.pop("extra_headers", None) or {}
    return f"{str(base).rstrip('/')}/chat/completions", headers, body, config


@cache
def _litellms_own() -> frozenset[str]:
    """Parameters that LiteLLM acts on and does not send."""
    return frozenset({*load_litellm().types.utils.all_litellm_params, "timeout", "organization", "stream"} - _PLACE)


async def _send_directly(url: str, headers: dict[str, str], body: dict[str, Any]) -> dict[str, Any]:
    try:
        session = await _session()
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/json"}
        async with session.post(url, data=data, headers=kind | headers) as answer:
            content = await answer.read()
    except aiohttp.ClientError as error:
        words = f"no answer of {url}: {error or type(error).__name__}"
        raise openai.APIConnectionError(message=words, request=openai_httpx.Request("POST", url)) from error
    text = content.decode("utf-8", "replace")
    if answer.status < 300 and (completion := _completion_in(text)):
        return completion
    try:
        read: object = json.loads(text)
    except ValueError as error:
        if answer.status < 300:
            words = f"the reply is no JSON: {text[:500]!r}"
            response = openai_httpx.Response(200, request=openai_httpx.Request("POST", url))
            raise openai.APIResponseValidationError(response=response, body=None, message=words) from error
        read = text
    inner = read.get("error", read) if is_mapping(read) else read
    words = inner["message"] if is_mapping(inner) and isinstance(inner.get("message"), str) else text
    status = answer.status if answer.status >= 300 else _status_in(inner, 500)
    raise status_error(status, f"HTTP {answer.status}: {words}", read, url, answer.headers)


def _completion_in(text: str) -> dict[str, Any] | None:
    """The completion in the body of a response, which may be streamed unasked; None = there is none."""
    parts, is_stream = [text], not text.lstrip().startswith("{")
    if is_stream:
        events = (line[5:].strip() for line in text.splitlines() if line.startswith("data:"))
        parts = [event for event in events if event not in ("", "[DONE]")]
    try:
        bodies = list(map(json.loads, parts))
    except ValueError:
        return None
    if not bodies or not all(is_mapping(body) and isinstance(body.get("choices"), list) for body in bodies):
        return None
    if not is_stream:
        return bodies[0]
    litellm = load_litellm()
    return litellm.stream_chunk_builder([litellm.ModelResponseStream(**body) for body in bodies]).model_dump()


def _status_in(error: object, otherwise: int) -> int:
    """The status of an error that a server sent with HTTP status 200."""
    code = error.get("code") if is_mapping(error) else None
    return code if isinstance(code, int) and 400 <= code < 600 else otherwise


_answers: ContextVar["list[_BoundedResponse] | None"] = ContextVar("_answers", default=None)
"""The answers to the request that LiteLLM is sending."""


class _BoundedResponse(aiohttp.ClientResponse):
    """An answer whose body breaks off after `MAX_REPLY_BYTES`."""

    async def start(self, connection: Any) -> aiohttp.ClientResponse:
        await super().start(connection)
        self.content = _BoundedStream(self.content)  # type: ignore[assignment]
        if (answers := _answers.get()) is not None:
            answers.append(self)
        return self


class _BoundedStream:
    def __init__(self, stream: aiohttp.StreamReader) -> None:
        self._stream, self._left = stream, MAX_REPLY_BYTES
        self.received: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    async def iter_chunked(self, size: int) -> AsyncGenerator[bytes]:
        async for chunk in self._stream.iter_chunked(size):
            self._left -= len(chunk)
            if self._left < 0:
                raise aiohttp.ClientPayloadError(f"the reply is longer than {MAX_REPLY_BYTES:,} bytes")
            self.received.append(chunk)
            yield chunk

    async def read(self) -> bytes:
        return b"".join([chunk async for chunk in self.iter_chunked(2**16)])


async def _session() -> aiohttp.ClientSession:
    """The running event loop's HTTP client, which LiteLLM shares."""
    return await anext(_sessions.setdefault(asyncio.get_running_loop(), _open_session()))


async def _open_session() -> AsyncGenerator[aiohttp.ClientSession]:
    """Yields one client. An event loop closes its generators when it ends, and thereby the client."""
    verify = load_litellm().llms.custom_httpx.http_handler.get_ssl_configuration()
    trusted = create_default_context(cafile=verify) if isinstance(verify, str) else verify
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_SECONDS, ssl=trusted),
        timeout=aiohttp.ClientTimeout(total=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        response_class=_BoundedResponse,
    ) as session:
        while True:
            yield session


_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncGenerator[aiohttp.ClientSession]] = WeakKeyDictionary()


async def _send_by_litellm(**request: Any) -> dict[str, Any]:
    """Sends through LiteLLM, which rejects a message in content parts, and a stream that was not asked for; such a
    reply is complete and paid for, so its body is passed on."""
    litellm = load_litellm(request.get("api_base") or request.get("base_url"))
    if request["model"].startswith(("gemini/", "vertex_ai/")):  # LiteLLM uses separate clients for these
        handler = litellm.llms.custom_httpx.http_handler.AsyncHTTPHandler
        request.setdefault("client", handler(shared_session=request.pop("shared_session")))
    token = _answers.set(answers := list[_BoundedResponse]())
    try:
        response = await litellm.acompletion(**request)
    except openai.OpenAIError as error:
        if not answers or answers[-1].status != 200:
            raise
        text = b"".join(cast("Any", answers[-1].content).received).decode("utf-8", "replace")
        if completion := _completion_in(text):
            return completion
        if isinstance(error, openai.BadRequestError):
            words = f"the server answered with status 200 and an error: {error}"
            raise litellm.APIError(500, words, "", str(request.get("model"))) from error
        raise
    finally:
        _answers.reset(token)
    return {**response.model_dump(warnings=False), "response_cost": response._hidden_params.get("response_cost")}
