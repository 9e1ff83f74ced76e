"""The endpoint's errors and replies: JSON or server-sent events, cancelled when the client disconnects.

What fails before the first event is raised, for a plain HTTP error with an object as OpenAI's API makes it; what fails
later is an event of its own.
"""

import asyncio
import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse

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


class UnknownModel(BadRequest):
    """A model, or a step of it, that is not served."""

    def __init__(self, name: str, served: list[str]) -> None:
        super().__init__(
            f"the model {name!r} is not served here; live: {', '.join(served)}",
            "Ask model.get_inference_name() for each rollout.",
        )


class TooLarge(BadRequest):
    """A body with more bytes than are read."""


class Unthreaded(BadRequest):
    """A thread of Anthropic's API, which its clients go on without when they are told so."""

    def __init__(self) -> None:
        self.details = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
        super().__init__("thread is not supported here", "Send the whole conversation as messages.")


class ClientGone(Exception):
    """The client closed the connection."""


class Closing(Exception):
    """The server closes while a request is answered."""


_CODES = {
    ContextOverflow: "context_length_exceeded",
    UnknownModel: "model_not_found",
    GrammarError: "invalid_json_schema",
}
"""Error codes of OpenAI's API."""
_UNREADABLE = (KeyError, TypeError, ValueError, AttributeError, RecursionError)
ANSWERED = (BadRequest, EngineError, ClientGone, Closing, *_UNREADABLE)
"""Exceptions of a request that `error_answer` turns into a reply."""


def error_answer(error: BaseException) -> tuple[int, dict[str, Any]]:
    """The status and the body that tell a client of one of `ANSWERED`; raises any other."""
    match error:
        case TooLarge():
            return 413, error_body(str(error), "request_too_large")
        case Unthreaded():
            body = error_body(str(error), "invalid_request")
            return 400, {"error": body["error"] | {"details": error.details}}
        case BadRequest() | ContextOverflow() | GrammarError():
            return 400, error_body(str(error), _CODES.get(type(error), "invalid_request"))
        case RecursionError():
            told = "the request is nested too deeply\nSend a flatter one."
            return 400, error_body(told, "invalid_request")
        case KeyError() | TypeError() | ValueError() | AttributeError():
            logger.warning("a request could not be read", exc_info=error)
            told = (
                f"the request cannot be read: {type(error).__name__}: {error}\nThe log of the endpoint has the place."
            )
            return 400, error_body(told, "invalid_request")
        case ClientGone():
            return CLIENT_GONE, error_body("the client closed the connection", "client_gone")
        case EngineError():
            return 503, error_body(str(error), "engine_stopped", "server_error")
        case Closing():
            return 503, error_body("the endpoint is closing", "closing", "server_error")
        case _:
            raise error


def error_body(message: str, code: str, kind: str = "invalid_request_error") -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def shown(value: object) -> str:
    """A value of a request, as a message repeats it: its beginning, if it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


T = TypeVar("T")
_MAX_BODY = 32 << 20
"""Bytes; as in Anthropic's API."""
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}


async def object_of(request: Request) -> dict[str, Any]:
    """The JSON object in a request's body. Raises one of `ANSWERED`."""
    try:
        read = await _body(request)
    except ClientDisconnect as error:
        raise ClientGone from error
    if coding := request.headers.get("content-encoding", "identity").replace("identity", ""):
        raise BadRequest(f"the body is encoded as {coding!r}, which is not read here", "Send it as it is.")
    try:
        body: object = json.loads(read)
    except UnicodeDecodeError as error:
        raise BadRequest("the body is not in UTF-8", "Encode it so.") from error
    except ValueError as error:  # also a number of thousands of digits
        raise BadRequest(f"the body is no JSON: {error}", "Send one JSON object.") from error
    if not isinstance(body, dict):
        raise BadRequest("the body is no JSON object", 'Send {"model": …, …}.')
    return cast("dict[str, Any]", body)


async def _body(request: Request) -> bytes:
    """Raises `TooLarge` before it is all in memory."""
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > _MAX_BODY:
            raise TooLarge(f"the body has more than {_MAX_BODY >> 20} MiB", "Shorten the conversation.")
    return bytes(read)


def event(data: Any, name: str | None = None) -> bytes:
    """One server-sent event."""
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


async def json_answer(request: Request, work: Coroutine[Any, Any, dict[str, Any]]) -> Response:
    """The object that `work` gives; the request's body must have been read. Raises what `work` raises."""
    # In ASCII: sampled arguments may hold half a surrogate pair, which no other encoding takes.
    return Response(json.dumps(await _answer_to(request, work)), media_type="application/json")


async def streamed_answer(
    request: Request, events: AsyncGenerator[bytes, None], failed: Callable[[dict[str, Any]], bytes] = event
) -> Response:
    """`events` as they come; `failed` makes the last one of an error's body. The request's body must have been read."""
    try:
        first = await _answer_to(request, anext(events))
    except ClientGone:
        await events.aclose()
        raise
    return StreamingResponse(_all(first, events, failed), media_type="text/event-stream", headers=_HEADERS)


async def _answer_to(request: Request, work: Coroutine[Any, Any, T]) -> T:
    try:
        return await run_until_gone(request, work)
    except asyncio.CancelledError as error:  # only a server that is closing cancels its requests
        raise Closing from error


async def run_until_gone(request: Request, work: Coroutine[Any, Any, T]) -> T:
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
    finally:
        gone.cancel()
        working.cancel()  # no effect on one that is done


async def _all(
    first: bytes, events: AsyncGenerator[bytes, None], failed: Callable[[dict[str, Any]], bytes]
) -> AsyncIterator[bytes]:
    try:
        yield first
        async for each in events:
            yield each
    except ANSWERED as error:
        yield failed(error_answer(error)[1])
    finally:
        await events.aclose()


async def _gone(request: Request) -> None:
    """Returns when the client has closed the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
