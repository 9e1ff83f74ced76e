"""An OpenAI-compatible endpoint over any engine, on loopback.

`POST /v1/chat/completions` with tools, `GET /v1/models`. The model `name@step` is sampled with that step's adapter,
`name` with the live one. Each choice carries what exact training needs: `token_ids`, `prompt_token_ids`,
`policy_version`, `temperature` and the standard `logprobs` (off with `logprobs: false`, `return_token_ids: false`), and
`continues_sampled`: whether the request extends a turn that was sampled here, unchanged. With `compact_logprobs: true`
the log-probs come as a plain list, `token_logprobs`, in place of the standard object.
"""

import asyncio
import json
import math
import secrets
import socket
import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, cast

import uvicorn
from renderers import ParsedResponse, Renderer, ToolCallParseStatus
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.llm.errors import GavelError
from gavel.llm.types import Message
from gavel.trainer.engines.protocol import AdapterGone, ContextOverflow, Engine, EngineError, Sampled, SamplingRequest
from gavel.trainer.serving.capture_book import CaptureBook
from gavel.trainer.serving.capture_middleware import CaptureApi, CaptureMiddleware, current_capture
from gavel.trainer.serving.chat_errors import REFUSED, BadRequest, ClientGone, UnknownModel, refusal
from gavel.trainer.serving.messages_api import MessagesApi
from gavel.trainer.serving.replies import json_reply
from gavel.trainer.serving.responses_api import ResponsesApi
from gavel.trainer.serving.turn_cache import ChatFormat, Prompt, TurnCache

_START_DEADLINE = 30.0
_DEFAULT_MAX_TOKENS = 1024
_MAX_TEMPERATURE = 2.0
"""As in OpenAI's API."""
_FORMATS = 64
"""Renderers that are kept, for arguments of the chat template that requests give."""
_ROLES = ("system", "user", "assistant", "tool")
_KNOWN = {
    "model",
    "messages",
    "tools",
    "max_completion_tokens",
    "max_tokens",
    "temperature",
    "seed",
    "logprobs",
    "compact_logprobs",
    "return_token_ids",
    "chat_template_kwargs",
    "user",
}
_HARMLESS = {
    "top_p": (None, 1, 1.0),
    "n": (None, 1),
    "stop": (None, []),
    "frequency_penalty": (None, 0, 0.0),
    "presence_penalty": (None, 0, 0.0),
    "logit_bias": (None, {}),
    "response_format": (None, {"type": "text"}),
    "stream": (None, False),
    "top_logprobs": (None, 0),
    "parallel_tool_calls": (None, True),
    "tool_choice": (None, "auto", "none"),
}
"""Unsupported parameters (many would falsify the log-probs), with the values that change nothing."""


class EndpointError(GavelError):
    """The endpoint cannot be started."""


class EndpointServer:
    """Serves one model in a thread of its own, so that it answers while the caller's event loop is busy."""

    def __init__(
        self,
        engine: Engine,
        renderer: Renderer,
        decode: Callable[[Sequence[int]], str],
        *,
        model: str,
        max_context: int,
        host: str = "127.0.0.1",
        port: int = 0,
        rendering_by: Callable[[Mapping[str, Any]], Renderer] | None = None,
    ) -> None:
        """`decode` gives the text of token ids; `port` 0 takes a free one. Raises `EndpointError`.

        `rendering_by` makes the renderer of a request's `chat_template_kwargs`, or raises ValueError.
        """
        self._engine = engine
        self._decode = decode
        self._model = model
        self._max_context = max_context
        self.turn_cache = TurnCache(renderer, decode)
        self._own_format = ChatFormat(renderer)
        self._rendering_by = rendering_by
        self._formats: OrderedDict[str, ChatFormat] = OrderedDict()
        """Those of requests with arguments of the chat template."""
        listener = _listen(host, port)
        self.base_url = f"http://{host}:{listener.getsockname()[1]}/v1"
        captures = CaptureBook()
        app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/chat/completions", self._chat_completions, methods=["POST"]),
                *ResponsesApi(self).routes,
                *MessagesApi(self).routes,
                *CaptureApi(captures).routes,
            ],
            middleware=[Middleware(CaptureMiddleware, captures=captures)],
        )
        config = uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False, timeout_keep_alive=600)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, kwargs={"sockets": [listener]}, name="gavel-endpoint", daemon=True
        )
        self._thread.start()
        deadline = time.monotonic() + _START_DEADLINE
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise EndpointError(f"the endpoint at {self.base_url} did not start")
            time.sleep(0.01)

    def close(self) -> None:
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=_START_DEADLINE)

    def _names(self) -> list[str]:
        return [self._model, *(f"{self._model}@{version}" for version in self._engine.adapter_versions)]

    def _version(self, name: str) -> int | None:
        """Of the adapter that a request names; None: the live one."""
        if name not in self._names():
            raise UnknownModel(name, self._names())
        step = name.removeprefix(self._model)
        return int(step[1:]) if step else None

    async def _models(self, request: Request) -> Response:
        models = [{"id": name, "object": "model", "created": 0, "owned_by": "gavel"} for name in self._names()]
        return JSONResponse({"object": "list", "data": models})

    async def _chat_completions(self, request: Request) -> Response:
        try:
            return JSONResponse(await self.complete(request, json.loads(await request.body())))
        except REFUSED as error:
            told = refusal(error)
            fault = {"message": told.message, "type": "invalid_request_error", "code": told.code}
            return json_reply({"error": fault}, told.status)

    async def complete(self, request: Request, body: Message) -> Message:
        self._check(body)
        version = self._version(body["model"])
        messages: list[Message] = body["messages"]
        tools = _tools(body)
        chat = self._chat_format(body.get("chat_template_kwargs"))
        prompt = self.turn_cache.prompt(messages, tools, chat)
        prompt_ids = prompt.token_ids
        room = self._max_context - len(prompt_ids)
        if room <= 0:
            raise ContextOverflow(
                f"the prompt has {len(prompt_ids)} tokens; the maximum context length is {self._max_context}"
            )
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or _DEFAULT_MAX_TOKENS
        temperature = 1.0 if body.get("temperature") is None else float(body["temperature"])
        seed = body.get("seed")
        sampling = SamplingRequest(
            prompt_ids=prompt_ids,
            stop_ids=chat.stop_ids,
            max_tokens=min(int(wanted), room),
            temperature=temperature,
            seed=secrets.randbits(62) if seed is None else int(seed),
            adapter_version=version,
        )
        try:
            sampled = await self._sampled(request, sampling)
        except AdapterGone as error:  # replaced since the request came in
            raise UnknownModel(body["model"], self._names()) from error
        parsed = chat.renderer.parse_response(sampled.token_ids, tools=tools, prompt_ids=prompt_ids)  # type: ignore[arg-type]
        reply = _message(parsed)
        self.turn_cache.sampled(messages, tools, reply, prompt_ids, sampled.token_ids, chat)
        capture = current_capture.get()
        if capture is not None:
            whole = self._completion({"compact_logprobs": True}, reply, prompt, sampled, temperature)
            capture.add(messages, tools, whole["choices"][0])
        return self._completion(body, reply, prompt, sampled, temperature)

    async def stream(self, request: Request, body: Message) -> AsyncIterator[Message]:
        completion = await self.complete(request, body)
        choice = completion["choices"][0]
        told = {name: completion[name] for name in ("id", "created", "model")}
        calls = [call | {"index": index} for index, call in enumerate(choice["message"].get("tool_calls", ()))]
        delta = choice["message"] | {"tool_calls": calls}
        yield {**told, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
        yield {
            **told,
            "choices": [{"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]}],
            "usage": completion["usage"],
        }

    def prompt_tokens(self, body: Message) -> int:
        """Tokens of the prompt of a request."""
        self._check(body)
        self._version(body["model"])
        chat = self._chat_format(body.get("chat_template_kwargs"))
        return len(self.turn_cache.prompt(body["messages"], _tools(body), chat).token_ids)

    def _chat_format(self, arguments: Any) -> ChatFormat:
        """Raises `BadRequest` for arguments that the chat template does not read."""
        if arguments is None or arguments == {}:
            return self._own_format
        if not isinstance(arguments, dict) or self._rendering_by is None:
            raise BadRequest(f"chat_template_kwargs={arguments!r} is not supported here", "Leave it out, or give {}.")
        given = cast("dict[str, Any]", arguments)
        key = json.dumps(given, sort_keys=True)
        known = self._formats.get(key)
        if known is None:
            try:
                renderer = self._rendering_by(given)
            except ValueError as error:
                raise BadRequest(str(error), "Leave it out of chat_template_kwargs.") from error
            known = self._own_format if renderer is self._own_format.renderer else ChatFormat(renderer, key)
            self._formats[key] = known
        self._formats.move_to_end(key)
        while len(self._formats) > _FORMATS:
            self._formats.popitem(last=False)
        return known

    async def _sampled(self, request: Request, sampling: SamplingRequest) -> Sampled:
        """The engine's reply; the request is cancelled when the client closes the connection."""
        sampled = asyncio.wrap_future(self._engine.submit(sampling))
        gone = asyncio.ensure_future(_gone(request))
        try:
            await asyncio.wait({sampled, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not sampled.done():
                raise ClientGone
            answer = sampled.result()
        finally:
            gone.cancel()
            sampled.cancel()  # no effect on one that is done
        if not all(map(math.isfinite, answer.logprobs)):
            raise EngineError(
                "the engine gave a log-prob that is not a finite number, so its weights or its arithmetic overflow",
                "Go on from an earlier checkpoint with a smaller learning rate, or sample in a wider dtype.",
            )
        return answer

    def _check(self, body: dict[str, Any]) -> None:
        if not body["messages"]:
            raise BadRequest("there are no messages")
        for number, message in enumerate(body["messages"]):
            _check_message(number, message)
        for name, value in body.items():
            if name not in _KNOWN and value not in _HARMLESS.get(name, (None,)):
                raise BadRequest(f"{name}={value!r} is not supported here", f"Leave {name} out.")
        temperature = body.get("temperature")
        if temperature is not None and not 0 <= temperature <= _MAX_TEMPERATURE:
            raise BadRequest(f"temperature={temperature!r} is not between 0 and {_MAX_TEMPERATURE:g}")
        for name in ("max_completion_tokens", "max_tokens"):
            if body.get(name) is not None and body[name] < 1:
                raise BadRequest(f"{name}={body[name]!r} leaves nothing to sample")

    def _completion(
        self, body: dict[str, Any], reply: Message, prompt: Prompt, sampled: Sampled, temperature: float
    ) -> dict[str, Any]:
        finish_reason = (
            "tool_calls" if reply.get("tool_calls") and sampled.finish_reason == "stop" else sampled.finish_reason
        )
        choice: dict[str, Any] = {
            "index": 0,
            "finish_reason": finish_reason,
            "message": reply,
            "logprobs": None,
            "policy_version": sampled.adapter_version,
            "temperature": temperature,
            "continues_sampled": prompt.continues,
        }
        compact = body.get("compact_logprobs") is True
        if body.get("logprobs") is False:
            pass
        elif compact:
            choice["token_logprobs"] = sampled.logprobs
        else:
            choice["logprobs"] = {
                "content": [self._token(*pair) for pair in zip(sampled.token_ids, sampled.logprobs, strict=True)]
            }
        completion: dict[str, Any] = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": f"{self._model}@{sampled.adapter_version}",
            "choices": [choice],
            "usage": {
                "prompt_tokens": len(prompt.token_ids),
                "completion_tokens": len(sampled.token_ids),
                "total_tokens": len(prompt.token_ids) + len(sampled.token_ids),
            },
        }
        if body.get("return_token_ids") is not False:
            choice["token_ids"] = sampled.token_ids
            choice["prompt_token_ids"] = prompt.token_ids
            if not compact:  # vLLM has them here
                completion["prompt_token_ids"] = prompt.token_ids
        return completion

    def _token(self, token_id: int, logprob: float) -> dict[str, Any]:
        text = self._decode([token_id])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode()), "top_logprobs": []}


def _tools(body: Message) -> list[Message] | None:
    return None if body.get("tool_choice") == "none" else body.get("tools") or None


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection; the body must have been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _message(parsed: ParsedResponse) -> Message:
    """The assistant message; a tool call that cannot be read stays in the text, for the agent to see."""
    calls = [call for call in parsed.tool_calls if call.status == ToolCallParseStatus.OK]
    broken = [call.raw for call in parsed.tool_calls if call.status != ToolCallParseStatus.OK]
    reply: Message = {"role": "assistant", "content": "\n".join(part for part in (parsed.content, *broken) if part)}
    if parsed.reasoning_content:
        reply["reasoning_content"] = parsed.reasoning_content
    if calls:
        reply["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:24]}",
                "type": "function",
                "function": {
                    "name": call.name or "",
                    "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
                },
            }
            for call in calls
        ]
    return reply


def _check_message(number: int, message: Message) -> None:
    """Raises `BadRequest` for content that the renderers would silently drop from the prompt."""
    if message["role"] not in _ROLES:
        raise BadRequest(f"message {number} has the role {message['role']!r}; known: {', '.join(_ROLES)}")
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    if not (content is None or isinstance(content, str | list)) or any(part.get("type") != "text" for part in parts):
        raise BadRequest(f"message {number} has content that is no text", "This endpoint serves text only.")


def _listen(host: str, port: int) -> socket.socket:
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except (OSError, OverflowError) as error:
        listener.close()
        raise EndpointError(
            f"the endpoint cannot listen on {host}:{port}: {error}",
            "Choose another port, or none to take a free one.",
        ) from error
    return listener
