"""A request before its route: who sends it, its query, and its body within limits of size, time and form.

    caller: TheCaller                                   authenticated before the body is read
    asked = await read_json(request, ScoreRequest)      strict JSON, checked against the model
    record = await while_connected(request, work)       given up when the client goes away

JSON is that which all read alike (RFC 8259, I-JSON): in UTF-8, no name twice in an object, and finite numbers. pydantic
reads NaN and 1e999 as numbers, and of a name that stands twice the last value; a proxy in front may read the first.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from difflib import get_close_matches
from email.message import Message
from typing import Annotated, Any, TypeVar, get_args, get_origin

import jiter
from fastapi import Depends, Header, Security
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from limits import RateLimitItemPerMinute
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request

from gavel.judge.service.config import ServiceLimits
from gavel.judge.service.engine.caller import Caller
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import UnauthorizedError
from gavel.judge.service.http.problems import Problem, validation_problem

_T = TypeVar("_T")
_Model = TypeVar("_Model", bound=BaseModel)
UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Header of answers that come in pieces: nginx hands each on at once."""
NDJSON = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/json")
_JSON = "application/json"
_OF_CURL = "application/x-www-form-urlencoded"
"""What `curl -d` says of any body. Browsers say it too, for forms of other sites; those name their origin."""
_WRONG_KEYS = RateLimitItemPerMinute(10)
"""Of one address, before further ones are refused unread."""
_SMALL_BYTES = 64 * 2**10
"""A body of this size is parsed in less than a millisecond; larger ones are parsed in a thread."""
_MOST_VALUES = 200_000
"""JSON values of a body: Python takes about 50 ms to make an object of each."""
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
"""In which substrings are looked for: a pattern over digits takes ten times as long."""
_MAY_BE_INFINITE = (b"e000", b"e+000", b"0" * 200)
_WANTED = (
    "Send one JSON object in UTF-8 without a byte order mark; no NaN or Infinity, no name twice in an object, no half "
    "of a surrogate pair (JavaScript's toWellFormed() replaces it), and not nested deeper than 200."
)
_bearer = HTTPBearer(auto_error=False, description="A key of `gavel keys create`, where the service has keys.")


class WrongKeys:
    """Counts wrong API keys by address. A right key is always taken, so that nobody locks out a neighbour."""

    def __init__(self) -> None:
        self._limiter = FixedWindowRateLimiter(MemoryStorage())

    async def counted(self, request: Request, authenticating: Coroutine[Any, Any, _T]) -> _T:
        """What `authenticating` gives. Raises `UnauthorizedError`, or `Problem` (429) after too many of those."""
        try:
            return await authenticating
        except UnauthorizedError:
            if self._limiter.hit(_WRONG_KEYS, request.client.host if request.client else ""):
                raise
            raise Problem(
                429,
                "wrong-keys",
                "too many requests with a wrong API key came from this address.",
                "Correct the key, and wait a minute.",
                {"Retry-After": "60"},
            ) from None


async def _caller(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
) -> Caller:
    """Also takes Basic authorization and X-API-Key, so it reads the headers; the parameter is for the description."""
    state = request.app.state
    engine: Engine = state.engine
    authorization = request.headers.get("authorization")
    if authorization is None and (key := request.headers.get("x-api-key")) is not None:
        authorization = f"Bearer {key}"
    authenticating = engine.admission.authenticate(authorization)
    caller: Caller = await (state.wrong_keys.counted(request, authenticating) if authorization else authenticating)
    if engine.tracing.is_on and (header := request.headers.get("traceparent")):
        caller = replace(caller, traceparent=engine.tracing.traceparent(header))
    return caller


async def known_parameters(request: Request) -> None:
    """Refuses a query with a name that the route does not know: a filter with a slip would show everything."""
    if not request.query_params:
        return
    route = request.scope["route"]
    assert isinstance(route, APIRoute)
    known = {field.alias: field.field_info.annotation for field in route.dependant.query_params}
    for name in request.query_params:
        if name not in known:
            near = get_close_matches(name, known, 1)
            there_are = f"There are: {', '.join(known)}." if known else "It has none."
            remedy = f"Did you mean {near[0]}?" if near else there_are
            raise Problem(422, "invalid-request", f"there is no query parameter {name[:60]!r} here.", remedy)
        is_list = any(get_origin(each) is list for each in (known[name], *get_args(known[name])))
        if not is_list and len(request.query_params.getlist(name)) > 1:
            raise Problem(422, "invalid-request", f"the query has several values of {name}.", "Send one of them.")


async def _engine(request: Request) -> Engine:
    return request.app.state.engine


TheEngine = Annotated[Engine, Depends(_engine)]
TheCaller = Annotated[Caller, Depends(_caller)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A name of this request: sent again with the same body, it gives the same judgement.",
    ),
]


async def while_connected(request: Request, work: Coroutine[Any, Any, _T]) -> _T:
    """What the work gives; it is cancelled when the client closes the connection. The body must have been read."""
    waiting = asyncio.ensure_future(work)
    left = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait((waiting, left), return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            raise Problem(400, "incomplete", "the connection was closed before the answer was there.")
        return waiting.result()
    finally:
        waiting.cancel()
        left.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue


async def read_json(request: Request, model: type[_Model]) -> _Model:
    """The model in the body. Raises `Problem` with the place of every mistake."""
    return await parse(model, await read_body(request))


async def read_body(request: Request) -> bytes:
    """The whole body. Raises `Problem` for one that is too large, too slow, or not JSON by its headers.

    The server drops the rest of a body that is refused, so that its sender reads why.
    """
    _check_headers(request)
    return await read_bytes(request, request.app.state.engine.config.limits)


async def read_bytes(request: Request, limits: ServiceLimits) -> bytes:
    """The whole body, of any type. Raises `Problem` for one that is too large or too slow."""
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in request.stream():
                chunks.append(chunk)
                size += len(chunk)
                if size > limits.body_bytes:
                    raise _too_large(limits)
    except TimeoutError:
        raise _too_slow(limits) from None
    except ClientDisconnect:
        raise _incomplete() from None
    return b"".join(chunks)


async def parse(model: type[_Model], body: bytes) -> _Model:
    """The model in a body; a large one is parsed in a thread. Raises `Problem` as `read_json` does."""
    if len(body) <= _SMALL_BYTES:
        return _parse(model, body)
    return await asyncio.to_thread(_parse, model, body)


def _parse(model: type[_Model], body: bytes) -> _Model:
    if len(body) > _SMALL_BYTES:
        _check_number_of_values(body)
    try:
        check_json(body)
    except ValueError as error:
        raise Problem(400, "not-json", f"the body is no JSON: {error!s:.250}.", _WANTED) from None
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        raise validation_problem(error.errors(include_url=False, include_input=False)) from None


def check_json(text: bytes) -> None:
    """Raises `ValueError`, which says where, for what is no strict JSON."""
    if text.startswith(_BYTE_ORDER_MARKS):
        raise ValueError("it begins with a byte order mark")
    try:
        jiter.from_json(text, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
    except ValueError as error:
        half = " (half of a surrogate pair is no character)" if "hex escape" in str(error) else ""
        raise ValueError(f"{error!s:.200}{half}") from None
    digits = text.translate(_DIGITS_AS_ZERO)
    if any(shape in digits for shape in _MAY_BE_INFINITE):
        json.loads(text, parse_float=_finite)


def _finite(text: str) -> float:
    value = float(text)
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {text:.20} is too large")
    return value


def _check_number_of_values(body: bytes) -> None:
    """Raises `Problem` where the JSON has too many values, as a list of millions of numbers has."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= _MOST_VALUES:
        return
    outside_strings = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    if sum(map(b"".join(outside_strings).count, (b",", b"[", b"{"))) > _MOST_VALUES:
        raise Problem(
            413,
            "too-many-values",
            f"the body has more than {_MOST_VALUES:,} JSON values.",
            "Send a smaller group, and data of this kind as text.",
        )


def built(model: type[_Model], **values: Any) -> _Model:
    """The model with these values, translated from another body. Raises `Problem` as `read_json` does."""
    try:
        return model(**values)
    except ValidationError as error:
        raise validation_problem(error.errors(include_url=False, include_input=False)) from None


def _check_headers(request: Request, *types: str) -> None:
    """Raises `Problem` for a body that is too large, encoded or no JSON by its headers."""
    headers, limits = request.headers, request.app.state.engine.config.limits
    codings = f"{headers.get('content-encoding', '')},{headers.get('transfer-encoding', '')}".lower().split(",")
    if encodings := {coding.strip() for coding in codings} - {"", "identity", "chunked"}:
        encoding = ", ".join(sorted(encodings))
        raise Problem(415, "content-encoding", f"the body is encoded as {encoding:.40}.", "Send it as it is.")
    content = Message()
    content["Content-Type"] = headers.get("content-type", _JSON)
    kind, charset = content.get_content_type(), content.get_content_charset("utf-8")
    from_curl = kind == _OF_CURL and "origin" not in headers
    if not (from_curl or kind in (types or (_JSON,)) or kind.endswith("+json")) or charset not in ("utf-8", "utf8"):
        accepted = ", ".join(types or (_JSON,))
        raise Problem(
            415,
            "media-type",
            f"the body is {kind:.60}, charset {charset:.40}.",
            f"Send {accepted} in UTF-8, and say so in Content-Type.",
        )
    length = headers.get("content-length", "")
    if length.isdigit() and not types and int(length) > limits.body_bytes:
        raise _too_large(limits)


async def read_lines(request: Request) -> AsyncIterator[bytes | Problem]:
    """The lines of a batch that are not blank, with a `Problem` in the place of each that is too large.

    One that is too slow to arrive, or one too many, is a `Problem` too, and the last. Raises `Problem` for headers that
    are not right, and when the client is gone.
    """
    _check_headers(request, *NDJSON)
    limits: ServiceLimits = request.app.state.engine.config.limits
    clock = asyncio.get_running_loop().time
    chunks = request.stream()
    begun: list[bytes] = []
    """The parts of a line that is not complete."""
    is_cut = False
    """Whether that line is too large: the rest of it is dropped."""
    size = number = 0
    seconds = limits.body_seconds
    while True:
        began = clock()
        try:
            async with asyncio.timeout(seconds):
                chunk = await anext(chunks, None)
        except TimeoutError:
            yield _too_slow(limits)
            return
        except ClientDisconnect:
            raise _incomplete() from None
        seconds -= clock() - began
        ended, newline, rest = (chunk or b"").rpartition(b"\n")
        if newline or chunk is None:
            lines = b"".join([*begun, ended]).split(b"\n")
            if is_cut:
                yield _too_large(limits)
                is_cut, lines[0] = False, b""
            begun, size, seconds = [], 0, limits.body_seconds
            number += len(lines)
            if number > limits.waiting_groups:
                yield _too_many(limits)
                return
            for line in lines:
                if len(line) > limits.body_bytes:
                    yield _too_large(limits)
                elif line.strip():
                    yield line
        size += len(rest)
        is_cut = size > limits.body_bytes
        if is_cut:
            begun.clear()
        else:
            begun.append(rest)
        if chunk is None:
            return


def _incomplete() -> Problem:
    return Problem(400, "incomplete", "the connection was closed before the body was complete.")


def _too_large(limits: ServiceLimits) -> Problem:
    return Problem(
        413,
        "too-large",
        f"the body is larger than {limits.body_bytes:,} bytes.",
        "Send a smaller group, or raise the service's setting limits.body_bytes.",
    )


def _too_slow(limits: ServiceLimits) -> Problem:
    return Problem(
        408,
        "too-slow",
        f"the body did not arrive within {limits.body_seconds:g} s.",
        "Send it again over a better connection, or raise the service's setting limits.body_seconds.",
        {"Connection": "close"},
    )


def _too_many(limits: ServiceLimits) -> Problem:
    return Problem(
        413,
        "too-many-lines",
        f"the batch has more than {limits.waiting_groups:,} lines; those before are accepted.",
        "Send several batches, or raise the service's setting limits.waiting_groups.",
    )


def describe_body(
    model: type[BaseModel], example: dict[str, Any] | None = None, media_type: str = _JSON
) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a body of this model itself; app.py adds the model's schema."""
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": media_type == _JSON, "content": {media_type: content}}}
