"""The endpoint's errors and replies: JSON or server-sent events, cancelled when the client disconnects.

What fails before the first event is raised, for a plain HTTP error with an object as OpenAI's API makes it; what fails
later is an event of its own.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterable, Mapping
from typing import Any, TypeVar, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from gavel.base.errors import GavelError
from gavel.trainer.engines.grammar import GrammarError
from gavel.trainer.engines.protocol import ContextOverflow, EngineError

logger = logging.getLogger(__name__)

CLIENT_GONE = 499
"""The status by which web servers log a client that closed the connection."""


_SHOWN = 200
"""Characters."""


class EndpointError(GavelError):
    """The endpoint cannot be started."""


class BadRequest(GavelError):
    """A request that cannot be served as asked."""

    def __init__(
        self, message: str, remedy: str, code: str = "invalid_request", status: int = 400, details: Any = None
    ) -> None:
        super().__init__(message, remedy)
        self.code, self.status, self.details = code, status, details


def unknown_model(name: str, served: list[str]) -> BadRequest:
    """The error for a model, or a step of it, that is not served."""
    told = f"the model {name!r} is not served here; live: {', '.join(served)}"
    return BadRequest(told, "Ask model.get_inference_name() for each rollout.", "model_not_found")


class ClientGone(Exception):
    """The client closed the connection."""


class Closing(Exception):
    """The server closes while a request is answered."""


_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
ANSWERED = (BadRequest, EngineError, ClientGone, Closing, ExceptionGroup, *_UNREADABLE)
"""Exceptions of a request that `error_answer` turns into a reply."""


def error_answer(error: BaseException) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell a client of one of `ANSWERED`; raises any other."""
    match error:
        case BadRequest():
            return error.status, error_body(str(error), error.code, details=error.details)
        case ContextOverflow():
            return 400, error_body(str(error), "context_length_exceeded")
        case GrammarError():
            return 400, error_body(str(error), "invalid_json_schema")
        case EngineError():
            return 503, error_body(str(error), "engine_stopped", "server_error")
        case RecursionError():
            return 400, error_body("the request is nested too deeply\nSend a flatter one.", "invalid_request")
        case KeyError() | TypeError() | ValueError() | AttributeError():
            logger.warning("a request could not be read", exc_info=error)
            told = f"the request cannot be read: {type(error).__name__}: {error}"
            return 400, error_body(f"{told}\nThe log of the endpoint has the place.", "invalid_request")
        case ClientGone():
            return CLIENT_GONE, error_body("the client closed the connection", "client_gone")
        case ExceptionGroup():  # of turns of one request
            return error_answer(error.exceptions[0])
        case Closing():
            return 503, error_body("the endpoint is closing", "closing", "server_error")
        case _:
            raise error


def error_body(
    message: str, code: str, kind: str = "invalid_request_error", details: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    fault: dict[str, Any] = {"message": message, "type": kind, "param": None, "code": code}
    return {"error": fault | {"details": details} if details else fault}


def shown(value: object) -> str:
    """A value of a request, as a message repeats it: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


T = TypeVar("T")
_MAX_BODY = 32 << 20
"""Bytes; as in Anthropic's API."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def object_of(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body. Raises one of `ANSWERED`; of a large body before it is all in memory."""
    read = bytearray()
    try:
        async for chunk in request.stream():
            read += chunk
            if len(read) > _MAX_BODY:
                told = f"the body has more than {_MAX_BODY >> 20} MiB"
                raise BadRequest(told, "Shorten the conversation.", "request_too_large", 413)
    except ClientDisconnect as error:
        raise ClientGone from error
    if coding := request.headers.get("content-encoding", "identity").replace("identity", ""):
        raise BadRequest(f"the body is encoded as {coding!r}, which is not read here", "Send it as it is.")
    try:
        body: object = json.loads(bytes(read))
    except UnicodeDecodeError as error:
        raise BadRequest("the body is not in UTF-8", "Encode it so.") from error
    except ValueError as error:  # also a number of thousands of digits
        raise BadRequest(f"the body is no JSON: {error}", "Send one JSON object.") from error
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object", 'Send {"model": …, …}.')
    return cast("dict[str, Any]", body)


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


async def json_answer(
    request: Request, work: Coroutine[Any, Any, dict[str, Any]], events: Callable[[Any], Iterable[bytes]] | None = None
) -> Response:
    """The object that `work` gives, or `events` made of it, all at once; the request's body must have been read.

    Raises what `work` raises.
    """
    made = await _until_gone(request, work)
    if events is not None:
        return Response(b"".join(events(made)), media_type="text/event-stream", headers=_HEADERS)
    # In ASCII: sampled arguments may hold half a surrogate pair, which no other encoding takes.
    return Response(json.dumps(made), media_type="application/json")


def translated(
    path: str,
    complete: Callable[[dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]],
    translate: Callable[[dict[str, Any]], tuple[dict[str, Any], Callable[[dict[str, Any]], dict[str, Any]]]],
    events: Callable[[dict[str, Any]], Iterable[dict[str, Any]]],
) -> Route:
    """Another vendor's API over chat completions.

    `translate` makes of a body the chat request, and what makes the answer of the completion; `events` are those of a
    stream that says what the answer does.
    """

    async def respond(request: Request) -> Response:
        body = await object_of(request)
        asked, answer = translate(body)

        async def whole() -> dict[str, Any]:
            return answer(await complete(asked))

        named: Callable[[Any], Iterable[bytes]] = lambda made: (event(each, each["type"]) for each in events(made))  # noqa: E731
        return await json_answer(request, whole(), named if body.get("stream") else None)

    return Route(path, respond, methods=["POST"])


async def streamed_answer(request: Request, events: AsyncGenerator[bytes, None]) -> Response:
    """`events` as they come; the request's body must have been read."""
    try:
        first = await _until_gone(request, anext(events))
    except ClientGone:
        await events.aclose()
        raise
    return StreamingResponse(_all(first, events), media_type="text/event-stream", headers=_HEADERS)


async def _until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Returns the result of `work`, which is cancelled when the client disconnects. Raises `ClientGone` then."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            working.cancel()
            await asyncio.wait({working})
            raise ClientGone
        return working.result()
    except asyncio.CancelledError as error:  # only a server that is closing cancels its requests
        raise Closing from error
    finally:
        gone.cancel()
        working.cancel()  # no effect on one that is done


async def _all(first: bytes, events: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    try:
        yield first
        async for each in events:
            yield each
    except ANSWERED as error:
        yield event(error_answer(error)[1])
    finally:
        await events.aclose()


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
