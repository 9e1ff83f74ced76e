"""Checks of a request before its route: caller, query, body limits, and every rejection (RFC 9457).

    caller: TheCaller                                   authenticated before the body is read
    asked = await read_json(request, ScoreRequest)      strict JSON, checked against the model
    record = await wait_for(request, record)            given up when the client goes away

JSON must be unambiguous (RFC 8259, I-JSON): UTF-8, unique names in an object, and finite numbers. pydantic accepts NaN
and 1e999 as numbers, and takes the last value of a duplicate name; a proxy in front may take the first.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from email.message import Message
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import jiter
from fastapi import Depends, Header, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse

from gavel.judge.service.config import ServiceLimits
from gavel.judge.service.engine.admission import Caller
from gavel.judge.service.engine.engine import Engine
from gavel.judge.service.errors import InvalidRequestError, Problem, ServiceError
from gavel.judge.service.schemas import NAME_PATTERN, Described, Record

_Model = TypeVar("_Model", bound=BaseModel)
UNBUFFERED = {"X-Accel-Buffering": "no"}
"""Header of streamed responses: nginx passes each piece on at once."""
NDJSON = ("application/x-ndjson", "application/jsonl", "application/ndjson", "application/json")
_JSON = "application/json"
_OF_CURL = "application/x-www-form-urlencoded"
"""Content type of any body from `curl -d`. Browsers send it too, for cross-site forms; those name their origin."""
_SMALL_BYTES = 64 * 2**10
"""A body up to this size is parsed in less than a millisecond; a larger one is parsed in a thread."""
_MOST_VALUES = 200_000
"""Max JSON values of a body: Python takes about 50 ms to create an object for each."""
_MAX_TRACEPARENT = 200
_BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")
_DIGITS_AS_ZERO = bytes.maketrans(b"123456789E", b"000000000e")
"""Translation of digits before a substring search: a regex over digits takes ten times as long."""
_MAY_BE_INFINITE = (b"e000", b"e+000", b"0" * 200)
_WANTED = (
    "Send one JSON object in UTF-8 without a byte order mark; no NaN or Infinity, no name twice in an object, no half "
    "of a surrogate pair (JavaScript's toWellFormed() replaces it), and not nested deeper than 200."
)
_bearer = HTTPBearer(auto_error=False, description="A key of `gavel keys create`, where the service has keys.")


async def _authenticate(
    request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)] = None
) -> Caller:
    """Authenticates from the headers, since Basic authorization and X-API-Key are accepted too; the parameter is for
    OpenAPI."""
    engine: Engine = request.app.state.engine
    authorization = request.headers.get("authorization")
    if authorization is None and (key := request.headers.get("x-api-key")) is not None:
        authorization = f"Bearer {key}"
    caller = await engine.admission.authenticate(authorization, address_of(request))
    if request.scope["query_string"]:
        _check_query(request)
    if engine.tracing is not None and (header := request.headers.get("traceparent")):
        caller = replace(caller, traceparent=header[:_MAX_TRACEPARENT])
    return caller


def _check_query(request: Request) -> None:
    """Rejects unknown query parameters, since a misspelt filter would show everything, and values that are ignored."""
    fields: dict[str, Any] = {}
    parameters: list[Any] = request.scope["route"].dependant.query_params
    for parameter in parameters:
        own: dict[str, Any] | None = getattr(parameter.field_info.annotation, "model_fields", None)
        fields |= own or {parameter.alias: parameter.field_info}
    for name, number in Counter(name for name, _ in request.query_params.multi_items()).items():
        if name not in fields:
            remedy = f"There are: {', '.join(fields)}." if fields else "It has none."
            raise InvalidRequestError(f"there is no query parameter {name[:60]!r} here.", remedy)
        if number > 1 and "list" not in str(fields[name].annotation):
            raise InvalidRequestError(f"the query has several values of {name}.", "Send one of them.")


def address_of(request: Request) -> str:
    """The client's address; empty if unknown."""
    return request.client.host if request.client else ""


async def _engine(request: Request) -> Engine:
    return request.app.state.engine


TheEngine = Annotated[Engine, Depends(_engine)]
TheCaller = Annotated[Caller, Depends(_authenticate)]
IdempotencyKey = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=200,
        description="A name of this request: sent again with the same body, it gives the same judgement.",
    ),
]


async def wait_for(request: Request, record: Record, seconds: float | None = None) -> Record:
    """The record as `Engine.result` gives it; gives up when the client closes the connection. The body must have been
    read."""
    waiting = asyncio.ensure_future(request.app.state.engine.result(record, seconds))
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
    """Parses the body into the model. Raises `Problem` with the position of every mistake."""
    return await parse(model, await read_body(request))


async def read_body(request: Request) -> bytes:
    """The whole body, which is JSON. Raises `Problem` for another type, and for a body that is too large or too slow.

    The server discards the rest of a rejected body, so that its sender reads the reason.
    """
    _check_headers(request, _JSON)
    limits: ServiceLimits = request.app.state.engine.config.limits
    length = request.headers.get("content-length", "")
    if length.isdigit() and int(length) > limits.body_bytes:
        raise _too_large(limits)
    chunks, body = request.stream(), bytearray()
    until = asyncio.get_running_loop().time() + limits.body_seconds
    while (chunk := await _next_chunk(chunks, until, limits)) is not None:
        body += chunk
        if len(body) > limits.body_bytes:
            raise _too_large(limits)
    return bytes(body)


async def read_lines(request: Request) -> AsyncIterator[bytes | Problem]:
    """The non-blank lines of a batch, with a `Problem` in place of each line that is too large.

    Raises `Problem` for invalid headers, a line that is too slow, one too many, and if the client disconnects.
    """
    _check_headers(request, *NDJSON)
    limits: ServiceLimits = request.app.state.engine.config.limits
    chunks, clock = request.stream(), asyncio.get_running_loop().time
    # An incomplete line, and whether it is too large: then its rest is dropped.
    begun, is_cut, number = bytearray(), False, 0
    until = clock() + limits.body_seconds
    while True:
        chunk = await _next_chunk(chunks, until, limits)
        *ended, rest = (chunk or b"\n").split(b"\n")
        for part in ended:
            line, begun = bytes(begun + part), bytearray()
            number += 1
            if number > limits.waiting_groups:
                why = f"the batch has more than {limits.waiting_groups:,} lines; those before are accepted."
                remedy = "Send several batches, or raise the service's setting limits.waiting_groups."
                raise Problem(413, "too-many-lines", why, remedy)
            if is_cut or len(line) > limits.body_bytes:
                yield _too_large(limits)
            elif line.strip():
                yield line
            is_cut, until = False, clock() + limits.body_seconds
        if chunk is None:
            return
        if not is_cut:
            begun += rest
        if len(begun) > limits.body_bytes:
            is_cut, begun = True, bytearray()


async def _next_chunk(chunks: AsyncIterator[bytes], until: float, limits: ServiceLimits) -> bytes | None:
    """The next part of the body before this event loop time; None at its end."""
    try:
        async with asyncio.timeout_at(until):
            return await anext(chunks, None)
    except TimeoutError:
        why = f"the body did not arrive within {limits.body_seconds:g} s."
        remedy = "Send it again over a better connection, or raise the service's setting limits.body_seconds."
        raise Problem(408, "too-slow", why, remedy, {"Connection": "close"}) from None
    except ClientDisconnect:
        raise Problem(400, "incomplete", "the connection was closed before the body was complete.") from None


def _too_large(limits: ServiceLimits) -> Problem:
    why = f"the body is larger than {limits.body_bytes:,} bytes."
    return Problem(413, "too-large", why, "Send a smaller group, or raise the service's setting limits.body_bytes.")


async def parse(model: type[_Model], body: bytes) -> _Model:
    """Parses a body into the model, in a thread if it is large. Raises `Problem` as `read_json` does."""
    return validated(model, body) if len(body) <= _SMALL_BYTES else await asyncio.to_thread(validated, model, body)


def validated(model: type[_Model], value: bytes | Mapping[str, Any]) -> _Model:
    """The model of strict JSON, or of values translated from another body. Raises `Problem` as `read_json` does."""
    try:
        if not isinstance(value, bytes):
            return model.model_validate(value)
        if len(value) > _SMALL_BYTES:
            _check_number_of_values(value)
        return model.model_validate(read_strict_json(value))
    except ValidationError as error:
        raise validation_problem(error.errors(include_url=False, include_input=False)) from None
    except ValueError as error:
        raise Problem(400, "not-json", f"the body is no JSON: {error!s:.250}.", _WANTED) from None


def read_strict_json(text: bytes) -> Any:
    """The value. Raises `ValueError` with the position for anything but strict JSON."""
    if text.startswith(_BYTE_ORDER_MARKS):
        raise ValueError("it begins with a byte order mark")
    try:
        value = jiter.from_json(text, allow_inf_nan=False, cache_mode="keys", catch_duplicate_keys=True)
    except ValueError as error:
        half = " (half of a surrogate pair is no character)" if "hex escape" in str(error) else ""
        raise ValueError(f"{error!s:.200}{half}") from None
    digits = text.translate(_DIGITS_AS_ZERO)
    if any(shape in digits for shape in _MAY_BE_INFINITE):
        json.loads(text, parse_float=_finite)
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text:.20} is too large")
    return value


def _check_number_of_values(body: bytes) -> None:
    """Raises `Problem` if the JSON has too many values, such as a list of millions of numbers."""
    if sum(map(body.count, (b",", b"[", b"{"))) <= _MOST_VALUES:
        return
    outside_strings = body.replace(rb"\\", b"").replace(rb"\"", b"").split(b'"')[::2]
    if sum(map(b"".join(outside_strings).count, (b",", b"[", b"{"))) > _MOST_VALUES:
        why = f"the body has more than {_MOST_VALUES:,} JSON values."
        raise Problem(413, "too-many-values", why, "Send a smaller group, and data of this kind as text.")


def _check_headers(request: Request, *types: str) -> None:
    headers = request.headers
    codings = f"{headers.get('content-encoding', '')},{headers.get('transfer-encoding', '')}".lower().split(",")
    if encodings := {coding.strip() for coding in codings} - {"", "identity", "chunked"}:
        encoding = ", ".join(sorted(encodings))
        raise Problem(415, "content-encoding", f"the body is encoded as {encoding:.40}.", "Send it as it is.")
    content = Message()
    content["Content-Type"] = headers.get("content-type", _JSON)
    kind, charset = content.get_content_type(), content.get_content_charset("utf-8")
    is_known = kind in types or kind.endswith("+json") or (kind == _OF_CURL and "origin" not in headers)
    if not is_known or charset not in ("utf-8", "utf8"):
        remedy = f"Send {', '.join(types)} in UTF-8, and say so in Content-Type."
        raise Problem(415, "media-type", f"the body is {kind:.60}, charset {charset:.40}.", remedy)


def describe_body(
    model: type[BaseModel], example: dict[str, Any] | None = None, media_type: str = _JSON
) -> dict[str, Any]:
    """`openapi_extra` of a route that reads a body of this model itself; app.py adds the model's schema."""
    content: dict[str, Any] = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": media_type == _JSON, "content": {media_type: content}}}


MEDIA_TYPE = "application/problem+json"
_SHOWN_ERRORS = 10
NAME_RULE = "a name that stands in an address has no slash and no NUL, and is neither . nor .."


class ProblemOut(Described):
    """Why a request was refused (RFC 9457)."""

    model_config = ConfigDict(extra="allow")

    type: str
    """`urn:gavel:problem:` and the kind, for programs."""
    title: str
    status: int
    detail: str
    remedy: str = ""
    """What to do."""


def response(error: ServiceError) -> JSONResponse:
    """Renders the rejection as a problem."""
    return JSONResponse(error.problem, error.status, error.headers, MEDIA_TYPE)


def validation_problem(errors: Sequence[Any]) -> ServiceError:
    """The problem for pydantic's errors, with the first mistakes and their positions."""
    found: list[dict[str, str]] = []
    for one in errors[:_SHOWN_ERRORS]:
        is_name = one["type"] == "string_pattern_mismatch" and one.get("ctx", {}).get("pattern") == NAME_PATTERN
        found.append({"at": ".".join(map(str, one["loc"])), "message": NAME_RULE if is_name else one["msg"]})
    words = f"{found[0]['at'] or 'the body'}: {found[0]['message']}"
    error = InvalidRequestError(words, "GET /openapi.json describes it.")
    error.more = {"errors": found}
    return error


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The OpenAPI descriptions of these statuses, all of them problems."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemOut"}}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}
