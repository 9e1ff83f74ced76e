"""An OpenAI-compatible endpoint over any engine, on loopback.

`POST /v1/chat/completions` with tools, `GET /v1/models`. The model `name@step` is sampled with that step's adapter,
`name` with the live one. Each choice carries what exact training needs: `token_ids`, `prompt_token_ids`,
`policy_version`, `temperature` and the standard `logprobs` (off with `logprobs: false`, `return_token_ids: false`), and
`continues_sampled`: whether the request extends a turn that was sampled here, unchanged. With `compact_logprobs: true`
the log-probs come as a plain list, `token_logprobs`, in place of the standard object.
"""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any

import uvicorn
from renderers import Renderer
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gavel.trainer.engines.protocol import Engine
from gavel.trainer.serving.capture_api import CaptureApi, CaptureMiddleware
from gavel.trainer.serving.capture_book import CaptureBook
from gavel.trainer.serving.chat import ChatCompletions
from gavel.trainer.serving.chat_request import switch
from gavel.trainer.serving.completions_api import CompletionsApi, Encode
from gavel.trainer.serving.errors import ANSWERED, EndpointError, UnknownModel, error_answer, error_body
from gavel.trainer.serving.generate_api import GenerateApi
from gavel.trainer.serving.in_process import no_longer_serve, serve_in_process
from gavel.trainer.serving.listener import address_of, listen
from gavel.trainer.serving.messages_api import MessagesApi
from gavel.trainer.serving.messages_objects import error_object
from gavel.trainer.serving.responses_api import ResponsesApi
from gavel.trainer.serving.sse import event, json_answer, object_of, refused, streamed_answer

_START_DEADLINE = 30.0


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
        max_reply: int | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        base_model: str | None = None,
        rendering_by: Callable[[Mapping[str, Any]], Renderer] | None = None,
        encode: Encode | None = None,
        vocabulary: int | None = None,
    ) -> None:
        """`decode` gives the text of token ids; `port` 0 takes a free one. Raises `EndpointError`.

        `max_context` bounds prompt and reply, `max_reply` a reply whose request sets no limit; both in tokens.
        `rendering_by` makes the renderer of a request's `chat_template_kwargs`, or raises ValueError.
        `encode` gives the tokens of a text; without it there is no `/v1/completions`.
        `vocabulary`: tokens of the model; without it a `logit_bias` of a token beyond them is not found out.
        """
        self._max_context = max_context
        self.chat = ChatCompletions(
            engine,
            renderer,
            decode,
            model=model,
            max_context=max_context,
            max_reply=max_reply,
            base_model=base_model,
            rendering_by=rendering_by,
            vocabulary=vocabulary,
        )
        listener = listen(host, port)
        self.base_url = f"{address_of(listener, host)}/v1"
        captures = CaptureBook()
        app = Starlette(
            routes=[
                Route("/v1/models", self._models),
                Route("/v1/v1/models", self._models),  # Anthropic's client, given OpenAI's base URL
                Route("/v1/models/{name:path}", self._one_model),
                Route("/v1/chat/completions", self._chat_completions, methods=["POST"]),
                *ResponsesApi(self.chat).routes,
                *MessagesApi(self.chat).routes,
                *(CompletionsApi(self.chat, encode).routes if encode else ()),
                *(GenerateApi(self.chat, encode).routes if encode else ()),
                *CaptureApi(captures).routes,
            ],
            middleware=[Middleware(CaptureMiddleware, captures=captures)],
            exception_handlers={404: _not_served, 405: _not_served},
        )
        config = uvicorn.Config(app, log_level="warning", lifespan="off", access_log=False, timeout_keep_alive=600)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, args=(listener,), name="gavel-endpoint", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_DEADLINE
        while not self._server.started:
            if time.monotonic() > deadline or not self._thread.is_alive():
                raise EndpointError(f"the endpoint at {self.base_url} did not start")
            time.sleep(0.01)

    def close(self) -> None:
        no_longer_serve(self.base_url)
        self._server.should_exit = True
        self._server.force_exit = True
        self._thread.join(timeout=_START_DEADLINE)

    def _run(self, listener: socket.socket) -> None:
        with asyncio.Runner(loop_factory=self._server.config.get_loop_factory()) as runner:
            runner.run(self._serve(listener))

    async def _serve(self, listener: socket.socket) -> None:
        serve_in_process(self.base_url, asyncio.get_running_loop(), self.chat.complete)
        try:
            await self._server.serve(sockets=[listener])
        finally:
            no_longer_serve(self.base_url)

    async def _models(self, request: Request) -> Response:
        names = self.chat.names
        listed = {"object": "list", "data": [self._model(name) for name in names]}
        return JSONResponse(listed | {"first_id": names[0], "last_id": names[-1], "has_more": False})

    async def _one_model(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name not in self.chat.names:
            return JSONResponse(error_answer(UnknownModel(name, self.chat.names))[1], 404)
        return JSONResponse(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        """In the form of OpenAI's API and of Anthropic's at once."""
        return {
            "id": name,
            "object": "model",
            "type": "model",
            "display_name": name,
            "created": 0,
            "created_at": "1970-01-01T00:00:00Z",
            "owned_by": "gavel",
            "max_model_len": self._max_context,
        }

    async def _chat_completions(self, request: Request) -> Response:
        try:
            body = await object_of(request)
            streams = switch(body, "stream")
        except ANSWERED as error:
            return refused(error)
        if streams:
            return await streamed_answer(request, _events(self.chat.stream(body)))
        return await json_answer(request, self.chat.complete(body))


async def _not_served(request: Request, error: Exception) -> Response:
    """In the form of the API that is asked, whose clients show it."""
    served = [f"{','.join(sorted(each.methods or ()))} {each.path}" for each in request.app.routes]
    told = f"{request.method} {request.url.path} is not served here; served: {'; '.join(dict.fromkeys(served))}"
    status = error.status_code if isinstance(error, HTTPException) else 404
    body = error_body(told, "not_served")
    if "/v1/messages" in request.url.path:
        body = error_object(body)
    return JSONResponse(body, status, getattr(error, "headers", None))


async def _events(chunks: AsyncGenerator[dict[str, Any], None]) -> AsyncGenerator[bytes, None]:
    try:
        async for chunk in chunks:
            yield event(chunk)
        yield event("[DONE]")
    finally:
        await chunks.aclose()
